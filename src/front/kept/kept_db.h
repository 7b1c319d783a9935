/* The file of kept responses: LMDB, one environment for all fronts of a machine.
 *
 *   names    SHA-256 of tenant and id -> number of the record
 *   records  number, part -> up to KEPT_PART_BYTES of it; the first part begins with its head
 *   meta     "totals": the next number, the bytes of all records
 *
 * Numbers rise, so the first record is the oldest. A record lies in parts of half a page, because
 * LMDB wants adjoining pages for a value that is larger than that, and a file that is nearly full
 * has few of them. A commit is on disk when it returns (two fdatasync). A process that dies in mid
 * write leaves the last commit; its lock is released by the kernel (robust mutex). */
#ifndef QUIRE_FRONT_KEPT_KEPT_DB_H
#define QUIRE_FRONT_KEPT_KEPT_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"

struct kept_db;

/* Two texts of JSON: the response object, the list of the items that led to it. */
struct kept_record {
    struct hash name;
    int64_t created_s; /* unix seconds */
    const char *response;
    size_t response_len;
    const char *input;
    size_t input_len;
};

/* Open or make the file in folder dir, which is this user's alone. bytes_max bounds the file;
 * records take three quarters of it at most. With probes a child reads it first; a file that is
 * damaged is set aside as dir.bad (logged), in place of an earlier one, and a new one begun. Call
 * with probes before the process has other threads: up to KEPT_PROBE_S.
 *
 * ERR_FOREIGN, ERR_NO_MEMORY (also: the disk is full), ERR_IO, ERR_CORRUPT; all logged. */
int kept_db_open(struct kept_db **out, const char *dir, uint64_t bytes_max,
                 bool probes) ERR_CHECKED;
void kept_db_close(struct kept_db *db); /* NULL is fine */

/* May a record of so many bytes be put? A quarter of the room is the most that one may take. */
bool kept_db_takes(const struct kept_db *db, size_t bytes);

/* Put records, all of them or none, in one commit: in place of those of their names, and of the
 * oldest where there is no room. ERR_NO_MEMORY (disk or file full), ERR_IO, ERR_CORRUPT. One thread
 * at a time; blocks on other processes' writes and on the disk. */
int kept_db_put(struct kept_db *db, const struct kept_record *const *records, int n) ERR_CHECKED;

/* Remove records created before that second, at most so many. The same errors. */
int kept_db_expire(struct kept_db *db, int64_t before_s, int n_max) ERR_CHECKED;

/* Read a record, its texts into the arena. ERR_NOT_FOUND, also when it was created before before_s;
 * ERR_CORRUPT, ERR_NO_MEMORY, ERR_IO. Any thread. */
int kept_db_get(struct kept_db *db, const struct hash *name, int64_t before_s, struct arena *arena,
                struct kept_record *out) ERR_CHECKED;

/* ERR_NOT_FOUND; else as kept_db_put(). Any thread. */
int kept_db_remove(struct kept_db *db, const struct hash *name) ERR_CHECKED;

/* Nothing more can be written before it is opened again. */
bool kept_db_is_broken(const struct kept_db *db);

#endif
