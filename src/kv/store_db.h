/* SPDX-License-Identifier: Apache-2.0
 *
 * The index of the page store on disk: LMDB, and the layout of its values and of the page file's
 * headers. Only store_db.c includes lmdb.h; both the engine's store (store.c) and the operator's
 * tool (tools/dump_cache.c) use this interface.
 *
 *   meta    "format" -> struct store_format
 *   spaces  u32 index -> struct store_space      one per model (namespace)
 *   slots   u64 slot -> struct store_record      MDB_INTEGERKEY: 170 bytes written per put,
 *                                                against 5.4 KB when keyed by random hashes;
 *                                                an older record ends before its last two
 *                                                fields, which are read as 0
 *   uses    u32 chunk -> struct store_use [STORE_USES]   last use of that many slots
 *
 * All numbers are little-endian, like the machines that run this. */
#ifndef QUIRE_KV_STORE_DB_H
#define QUIRE_KV_STORE_DB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kv/store.h"

#define STORE_MAGIC        UINT64_C(0x31736567617071)
#define STORE_VERSION      1
#define STORE_ALIGN        4096 /* alignment of slots in the page file, for O_DIRECT */
#define STORE_HEADER_BYTES 4096
#define STORE_TOKENS_MAX   768 /* token ids that fit into a header */
#define STORE_USES         256 /* slots per chunk of last uses: 2 KiB values */
#define STORE_SPACES_MAX   1024

struct store_format {
    uint64_t magic;
    uint32_t version;
    uint32_t page_tokens;
    uint64_t slot_bytes; /* header and payload, a multiple of STORE_ALIGN */
    uint64_t page_bytes; /* payload */
};

struct store_space {
    struct hash fingerprint;
    char name[96]; /* NUL-terminated, for people */
};

struct store_record {
    struct hash name;
    struct hash parent;
    uint64_t generation; /* of the slot: incremented with each reuse */
    uint64_t payload_xxh3;
    uint32_t space;
    uint32_t n_tokens;
    uint32_t created; /* unix seconds */
    uint32_t unused;
    uint64_t retains; /* its retention: retain_pack() */
    uint64_t root;    /* prefix_space() of its namespace; 0: unknown */
};

#define STORE_RECORD_OLD offsetof(struct store_record, retains) /* size of older records */

struct store_use {
    uint32_t last;  /* unix seconds */
    uint32_t count; /* reads since it was written */
};

/* The first STORE_HEADER_BYTES of a slot in the page file describe its page. */
struct store_header {
    uint64_t magic;
    uint32_t version;
    uint32_t n_tokens;
    uint64_t generation;
    uint64_t payload_bytes;
    uint64_t payload_xxh3;
    struct hash name;
    struct hash parent;
    struct hash fingerprint;
    int32_t tokens[STORE_TOKENS_MAX];
    uint64_t header_xxh3; /* of all bytes before it */
};

_Static_assert(sizeof(struct store_header) <= STORE_HEADER_BYTES, "a header fits its place");
_Static_assert(sizeof(struct store_record) == 112, "records are part of the format");

struct store_db;

/* Open the engine's index. An existing index is first read completely by a child process and
 * written to a new file, which then replaces it: damage in a part of the tree without records
 * cannot harm the writer later, and the file has no holes. A million records take about a second.
 * If the disk has no room for the copy or for lock.mdb, the old file stays and the index is open
 * for reading only: see store_db_writes().
 *
 * ERR_OK, also for a new index; ERR_VERSION when the format on disk is another; ERR_CORRUPT
 * (logged) when it was read and is damaged; ERR_FOREIGN (logged) when other users have access to
 * it; ERR_IO (logged) when it cannot be read; ERR_NO_MEMORY, also when the disk has no room for a
 * new one. On any error the files are unchanged. */
int store_db_open(struct store_db **out, const char *dir, const struct store_format *format,
                  size_t map_bytes) ERR_CHECKED;

/* store_db_open() in two parts, so that an index can be opened again without allocating.
 * store_db_new() returns NULL without memory; store_db_end() closes an index that store_db_begin()
 * opened. Any thread, one at a time. */
struct store_db *store_db_new(void);
int store_db_begin(struct store_db *db, const char *dir, const struct store_format *format,
                   size_t map_bytes) ERR_CHECKED;
void store_db_end(struct store_db *db);

/* Can it be written? Not any more after LMDB found damage in a page that it was to change. */
bool store_db_writes(const struct store_db *db);

/* Open for reading beside a running engine; takes no lock that it would have to wait for.
 * ERR_NOT_FOUND when there is no store, ERR_IO, ERR_CORRUPT; ERR_NO_MEMORY, also when the disk has
 * no room for lock.mdb. */
int store_db_open_read(struct store_db **out, const char *dir,
                       struct store_format *format) ERR_CHECKED;

void store_db_close(struct store_db *db); /* NULL is fine */

/* The index of a namespace, created if it is new. In an index that is open for reading only, a new
 * one gets STORE_SPACES_MAX, which no record has. */
int store_db_space(struct store_db *db, const struct store_space *space,
                   uint32_t *index) ERR_CHECKED;

/* The description of a namespace; false when this index is not used. */
bool store_db_read_space(struct store_db *db, uint32_t index, struct store_space *out);

/* Call fn for each record, by rising slot; use is zero where none was recorded. Values of a wrong
 * size are skipped and counted in *n_bad. A reader renews its snapshot every 10,000 records, so
 * that the writer can reuse old pages. */
typedef void store_db_fn(void *context, uint64_t slot, const struct store_record *record,
                         const struct store_use *use);
int store_db_scan(struct store_db *db, store_db_fn *fn, void *context, uint64_t *n_bad) ERR_CHECKED;

/* One transaction of changes. erase: delete the record of the slot. */
struct store_change {
    uint64_t slot;
    bool erase;
    struct store_record record;
};
int store_db_commit(struct store_db *db, const struct store_change *changes,
                    int n_changes) ERR_CHECKED;

/* Write chunks of last uses: uses is [n_chunks * STORE_USES]; only the marked chunks are
 * written. */
int store_db_write_uses(struct store_db *db, const struct store_use *uses, const bool *marked,
                        uint32_t n_chunks) ERR_CHECKED;

/* Write all n rows at once. */
int store_db_write_rates(struct store_db *db, const struct store_rate *rates, int n) ERR_CHECKED;

/* Read the rows that were written last; returns how many, 0 also when they cannot be read. */
int store_db_read_rates(struct store_db *db, struct store_rate rates[STORE_RATES_MAX]);

/* Is the header valid for this record? The payload's checksum is left to the caller. */
bool store_header_matches(const struct store_header *h, const struct store_record *record,
                          uint64_t page_bytes);

#endif
