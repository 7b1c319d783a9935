/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of stored responses: LMDB, one environment for all fronts of a machine.
 *
 *   names    SHA-256 of tenant and id -> number of the record
 *   records  (number, part) -> up to KEPT_PART_BYTES; the first part begins with the record's head
 *   meta     "totals": the next number, and the bytes of all records
 *
 * Numbers rise, so the first record is the oldest. Records are split into parts of half a page,
 * because LMDB needs adjacent pages for larger values, and a nearly full file has few of those. A
 * commit is on disk when it returns (two fdatasync). A process that dies while writing leaves the
 * last commit intact, and the kernel releases its lock (robust mutex). */
#ifndef QUIRE_FRONT_KEPT_KEPT_DB_H
#define QUIRE_FRONT_KEPT_KEPT_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"

struct kept_db;

/* Two texts of JSON: the response object, and the list of the items that led to it. */
struct kept_record {
    struct hash name;
    int64_t created_s; /* unix seconds */
    const char *response;
    size_t response_len;
    const char *input;
    size_t input_len;
};

/* Open or make the file in the folder dir, which must be private to this user. bytes_max bounds the
 * file; records use at most three quarters of it. With probes, a child process reads it first, and
 * a damaged file is moved to dir.bad (logged; an earlier one is deleted) and replaced. Call with
 * probes only while the process has no other threads; takes up to KEPT_PROBE_S.
 *
 * ERR_FOREIGN, ERR_IN_USE, ERR_NO_MEMORY (also: the disk is full), ERR_IO, ERR_CORRUPT; all
 * logged. */
int kept_db_open(struct kept_db **out, const char *dir, uint64_t bytes_max,
                 bool probes) ERR_CHECKED;
void kept_db_close(struct kept_db *db); /* accepts NULL */

/* Can a record of so many bytes be stored? One may use at most a quarter of the room. */
bool kept_db_takes(const struct kept_db *db, size_t bytes);

/* Store records, all or none, in one commit. They replace records of the same names, and the oldest
 * ones when there is no room. ERR_NO_MEMORY (disk or file full), ERR_IO, ERR_CORRUPT. One thread at
 * a time; blocks on other processes' writes and on the disk. */
int kept_db_put(struct kept_db *db, const struct kept_record *const *records, int n) ERR_CHECKED;

/* Remove records created before before_s, at most n_max. Errors as kept_db_put(). */
int kept_db_expire(struct kept_db *db, int64_t before_s, int n_max) ERR_CHECKED;

/* Read a record; its texts are put into the arena. ERR_NOT_FOUND, also when it was created before
 * before_s; ERR_CORRUPT, ERR_NO_MEMORY, ERR_IO. Any thread. */
int kept_db_get(struct kept_db *db, const struct hash *name, int64_t before_s, struct arena *arena,
                struct kept_record *out) ERR_CHECKED;

/* Remove a record. ERR_NOT_FOUND; otherwise as kept_db_put(). Any thread. */
int kept_db_remove(struct kept_db *db, const struct hash *name) ERR_CHECKED;

/* True when the file is damaged; nothing can be written until it is opened again. */
bool kept_db_is_broken(const struct kept_db *db);

#endif
