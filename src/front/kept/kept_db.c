/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of stored responses in LMDB.
 *
 * LMDB maps the file, so damage may show as a signal (SIGBUS, SIGSEGV) and not as an error.
 * Therefore a child process reads the whole file before a front opens it. lock.mdb gets its blocks
 * before LMDB maps it, because writing to a mapped block that a full disk cannot provide is a
 * signal, too.
 *
 * A record in `records`, with 4 of its keys (number, part):
 *
 *    7,0: head, response ...   7,1: ... response, input ...   7,2: ... input */
#include "front/kept/kept_db.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"
#include "base/own.h"

#define KEPT_MAGIC      0x31746b71u /* "qkt1" */
#define KEPT_READERS    1024        /* enough for 16 fronts of 64 threads */
#define KEPT_LOCK_BYTES 131072      /* size of lock.mdb: 64 bytes per reader, and its head */
#define KEPT_PATH_BYTES 4400
#define KEPT_PART_BYTES 2016 /* with key and heads exactly half of a page of 4,096 bytes */
#define KEPT_PART_COST  2048
/* cost of a record in `names`, whose pages are at least half full */
#define KEPT_NAME_COST    128
#define KEPT_PROBE_S      5        /* seconds; a file not completely read by then is assumed good */
#define KEPT_LOCK_WAIT_US 20000000 /* for another front that is opening the file */

/* Exit statuses of the child. A signal, or any other status, means damage. */
enum { KEPT_PROBE_GOOD = 0, KEPT_PROBE_UNREAD = 3 };

/* An open file. broken is set by any thread that finds damage. */
struct kept_db {
    MDB_env *env;
    MDB_dbi names, records, meta;
    uint64_t room; /* bytes that records may use */
    _Atomic int broken;
};

struct kept_totals {
    uint32_t magic;
    uint32_t zero;
    uint64_t next; /* number of the next record */
    uint64_t bytes;
};

/* The head of a record, before the texts. */
struct kept_head {
    struct hash name;
    int64_t created_s;
    uint64_t response_len;
    uint64_t input_len;
    uint64_t sum; /* XXH3 of both texts */
};

/* --- errors -------------------------------------------------------------------------------- */

/* LMDB's errors that mean a damaged file, as opposed to a full disk or a lack of memory. */
static bool kept_is_damage(int rc)
{
    switch (rc) {
    case MDB_CORRUPTED:
    case MDB_INVALID:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
    case MDB_VERSION_MISMATCH:
    case MDB_INCOMPATIBLE:
    case MDB_CURSOR_FULL:
    case MDB_BAD_VALSIZE: return true;
    default: return false;
    }
}

/* Our error for LMDB's. Damage makes the file unusable: kept.c then opens it again. */
static int kept_error(struct kept_db *db, int rc)
{
    if (rc == 0)
        return ERR_OK;
    if (rc == MDB_NOTFOUND)
        return ERR_NOT_FOUND;
    if (kept_is_damage(rc)) {
        db->broken = 1;
        return ERR_CORRUPT;
    }
    if (rc == ENOMEM || rc == ENOSPC || rc == EDQUOT || rc == MDB_MAP_FULL)
        return ERR_NO_MEMORY;
    return ERR_IO;
}

bool kept_db_is_broken(const struct kept_db *db)
{
    return db->broken != 0;
}

/* A value that points to our memory. */
static MDB_val kept_val(const void *p, size_t len)
{
    MDB_val value = {.mv_size = len};

    memcpy(&value.mv_data, &p, sizeof p); /* LMDB does not write through it */
    return value;
}

/* --- records ------------------------------------------------------------------------------- */

struct kept_key {
    uint8_t bytes[12]; /* number and part, high byte first, because LMDB compares bytes */
};

static struct kept_key kept_key(uint64_t number, uint32_t part)
{
    struct kept_key part_key;

    for (int i = 0; i < 8; i++)
        part_key.bytes[i] = (uint8_t)(number >> (56 - 8 * i));
    for (int i = 0; i < 4; i++)
        part_key.bytes[8 + i] = (uint8_t)(part >> (24 - 8 * i));
    return part_key;
}

/* The number in a key; 0 for a key of another size, which no record has. */
static uint64_t kept_number(const MDB_val *key)
{
    const uint8_t *bytes = key->mv_data;
    uint64_t number = 0;

    for (int i = 0; i < 8 && key->mv_size == sizeof(struct kept_key); i++)
        number = number << 8 | bytes[i];
    return number;
}

/* The bytes of a record in the file, rounded up to parts. */
static uint64_t kept_cost(uint64_t len)
{
    return (len + sizeof(struct kept_head) + KEPT_PART_BYTES - 1) / KEPT_PART_BYTES *
               KEPT_PART_COST +
           KEPT_NAME_COST;
}

/* The totals: {next number, bytes of all records}. A file without them is new. */
static int kept_totals(struct kept_db *db, MDB_txn *txn, struct kept_totals *out)
{
    MDB_val key = kept_val("totals", 6);
    MDB_val value;
    int rc = mdb_get(txn, db->meta, &key, &value);

    *out = (struct kept_totals){.magic = KEPT_MAGIC, .next = 1};
    if (rc == MDB_NOTFOUND)
        return 0;
    if (rc != 0)
        return rc;
    if (value.mv_size != sizeof *out)
        return MDB_INCOMPATIBLE;
    memcpy(out, value.mv_data, sizeof *out);
    if (out->magic == KEPT_MAGIC)
        return 0;
    return MDB_INCOMPATIBLE;
}

/* Write the totals. */
static int kept_set_totals(struct kept_db *db, MDB_txn *txn, const struct kept_totals *totals)
{
    MDB_val key = kept_val("totals", 6);
    MDB_val value = kept_val(totals, sizeof *totals);

    return mdb_put(txn, db->meta, &key, &value, 0);
}

/* Read the head of the record whose first part the cursor is at. */
static int kept_head_at(MDB_cursor *cursor, struct kept_head *head)
{
    MDB_val key, value;
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_GET_CURRENT);

    if (rc != 0)
        return rc;
    if (value.mv_size < sizeof *head)
        return MDB_CORRUPTED;
    memcpy(head, value.mv_data, sizeof *head);
    return 0;
}

/* Delete the name of record `number`, unless the name belongs to a later record already. */
static int kept_forget_name(struct kept_db *db, MDB_txn *txn, const struct hash *name,
                            uint64_t number)
{
    MDB_val key = kept_val(name, sizeof *name);
    MDB_val value;
    uint64_t known = 0;
    int rc = mdb_get(txn, db->names, &key, &value);

    if (rc == 0 && value.mv_size == sizeof known)
        memcpy(&known, value.mv_data, sizeof known);
    /* A newer record of the same name has replaced the number. */
    if (rc == 0 && known == number)
        rc = mdb_del(txn, db->names, &key, NULL);
    if (rc == MDB_NOTFOUND)
        return 0;
    return rc;
}

/* Remove the record whose first part the cursor is at. The cursor is then at the next record. */
static int kept_remove_at(struct kept_db *db, MDB_txn *txn, MDB_cursor *cursor,
                          struct kept_totals *totals)
{
    struct kept_head head;
    MDB_val key, value;
    uint64_t number, cost;
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_GET_CURRENT);

    if (rc == 0)
        number = kept_number(&key);
    else
        number = 0;
    if (rc == 0)
        rc = kept_head_at(cursor, &head);
    if (rc == 0)
        rc = kept_forget_name(db, txn, &head.name, number);
    if (rc != 0)
        return rc;
    /* A damaged head must not make the total negative. */
    cost = kept_cost(head.response_len + head.input_len);
    if (cost > totals->bytes)
        cost = totals->bytes;
    totals->bytes -= cost;
    while (rc == 0 && kept_number(&key) == number) {
        rc = mdb_cursor_del(cursor, 0);
        if (rc == 0)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (rc == MDB_NOTFOUND)
        return 0;
    return rc;
}

/* Remove records from the oldest on, while they use more than room or were created before before_s;
 * at most n_max of them. */
static int kept_trim(struct kept_db *db, MDB_txn *txn, struct kept_totals *totals, uint64_t room,
                     int64_t before_s, int n_max)
{
    MDB_cursor *cursor = NULL;
    struct kept_head head;
    MDB_val key, value;
    int rc = mdb_cursor_open(txn, db->records, &cursor);

    for (int n = 0; rc == 0 && n < n_max; n++) {
        rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
        if (rc == 0)
            rc = kept_head_at(cursor, &head);
        /* Records are in the order of their creation, so the first one that may stay ends the
         * loop. */
        if (rc == 0 && totals->bytes <= room && head.created_s >= before_s)
            break;
        if (rc == 0)
            rc = kept_remove_at(db, txn, cursor, totals);
    }
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    if (rc == MDB_NOTFOUND)
        return 0;
    return rc;
}

/* Find the record of a name: a cursor at its first part. MDB_NOTFOUND when there is none. A name
 * without its record is damage, because both are written in one transaction. The caller closes the
 * cursor, which may be open on an error too. */
static int kept_find(struct kept_db *db, MDB_txn *txn, const struct hash *name, MDB_cursor **cursor,
                     uint64_t *number)
{
    MDB_val key = kept_val(name, sizeof *name);
    struct kept_key first;
    MDB_val value;
    int rc = mdb_get(txn, db->names, &key, &value);

    if (rc == 0 && value.mv_size != sizeof *number)
        rc = MDB_CORRUPTED;
    if (rc != 0)
        return rc;
    memcpy(number, value.mv_data, sizeof *number);
    /* The name gives the number, and the number the first part. */
    first = kept_key(*number, 0);
    key = kept_val(&first, sizeof first);
    rc = mdb_cursor_open(txn, db->records, cursor);
    if (rc == 0)
        rc = mdb_cursor_get(*cursor, &key, &value, MDB_SET);
    if (rc == MDB_NOTFOUND)
        return MDB_CORRUPTED;
    return rc;
}

/* Remove the record of a name. MDB_NOTFOUND. */
static int kept_remove_name(struct kept_db *db, MDB_txn *txn, const struct hash *name,
                            struct kept_totals *totals)
{
    MDB_cursor *cursor = NULL;
    uint64_t number;
    int rc = kept_find(db, txn, name, &cursor, &number);

    if (rc == 0)
        rc = kept_remove_at(db, txn, cursor, totals);
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    return rc;
}

/* --- writing ------------------------------------------------------------------------------- */

/* The contiguous bytes of a record from offset `at` on: of the head, the response or the input. */
static size_t kept_piece(const struct kept_record *r, const struct kept_head *head, size_t at,
                         const char **piece)
{
    must(at < sizeof *head + r->response_len + r->input_len);
    if (at < sizeof *head) {
        *piece = (const char *)head + at;
        return sizeof *head - at;
    }
    at -= sizeof *head;
    if (at < r->response_len) {
        *piece = r->response + at;
        return r->response_len - at;
    }
    at -= r->response_len;
    *piece = r->input + at;
    return r->input_len - at;
}

/* The head for a record, with its sum. */
static struct kept_head kept_head_of(const struct kept_record *r)
{
    struct kept_head head = {.name = r->name,
                             .created_s = r->created_s,
                             .response_len = r->response_len,
                             .input_len = r->input_len};
    struct hash_xxh3 xxh3;

    hash_xxh3_begin(&xxh3);
    hash_xxh3_add(&xxh3, r->response, r->response_len);
    hash_xxh3_add(&xxh3, r->input, r->input_len);
    head.sum = hash_xxh3_end(&xxh3);
    return head;
}

/* Write a record in parts. Numbers rise, so every key is the largest (MDB_APPEND), and LMDB fills
 * its pages completely. */
static int kept_put_parts(struct kept_db *db, MDB_txn *txn, const struct kept_record *r,
                          uint64_t number)
{
    const struct kept_head head = kept_head_of(r);
    size_t len = sizeof head + r->response_len + r->input_len;
    char part[KEPT_PART_BYTES];
    size_t at = 0;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && at < len; i++) {
        struct kept_key part_key = kept_key(number, i);
        MDB_val key = kept_val(&part_key, sizeof part_key);
        size_t n = 0;
        MDB_val value;

        /* Fill the part from as many pieces as needed. */
        while (n < sizeof part && at < len) {
            const char *piece;
            size_t more = kept_piece(r, &head, at, &piece);

            if (more > sizeof part - n)
                more = sizeof part - n;
            memcpy(part + n, piece, more);
            n += more;
            at += more;
        }
        value = kept_val(part, n);
        rc = mdb_put(txn, db->records, &key, &value, MDB_APPEND);
    }
    return rc;
}

/* Replace the record of the same name, remove the oldest until there is room, and write. */
static int kept_put_one(struct kept_db *db, MDB_txn *txn, const struct kept_record *r,
                        struct kept_totals *totals)
{
    uint64_t cost = kept_cost(r->response_len + r->input_len);
    uint64_t number = totals->next;
    MDB_val key = kept_val(&r->name, sizeof r->name);
    MDB_val value = kept_val(&number, sizeof number);
    int rc = kept_remove_name(db, txn, &r->name, totals);

    must(cost <= db->room);
    if (rc == 0 || rc == MDB_NOTFOUND)
        rc = kept_trim(db, txn, totals, db->room - cost, INT64_MIN, INT32_MAX);
    if (rc == 0)
        rc = kept_put_parts(db, txn, r, number);
    if (rc == 0)
        rc = mdb_put(txn, db->names, &key, &value, 0);
    /* Also after an error, because the transaction is then aborted as a whole. */
    totals->next++;
    totals->bytes += cost;
    return rc;
}

/* End a write transaction: commit if rc is 0, otherwise abort. Returns rc or the commit's error. */
static int kept_commit(struct kept_db *db, MDB_txn *txn, const struct kept_totals *totals, int rc)
{
    if (rc == 0)
        rc = kept_set_totals(db, txn, totals);
    if (rc == 0 && FAULT_HIT(kept_commit))
        rc = ENOSPC;
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return rc;
}

/* Begin a write transaction. LMDB allows one at a time, for all fronts: others wait here. */
static int kept_begin(struct kept_db *db, MDB_txn **txn, struct kept_totals *totals)
{
    int rc = mdb_txn_begin(db->env, NULL, 0, txn);

    if (rc != 0)
        return rc;
    return kept_totals(db, *txn, totals);
}

/* Write records in one transaction, so that one sync serves them all. */
static int kept_put_all(struct kept_db *db, const struct kept_record *const *records, int n)
{
    struct kept_totals totals;
    MDB_txn *txn = NULL;
    int rc = kept_begin(db, &txn, &totals);

    for (int i = 0; rc == 0 && i < n; i++)
        rc = kept_put_one(db, txn, records[i], &totals);
    return kept_commit(db, txn, &totals, rc);
}

/* Free the pages that dead readers hold, and remove half of all records. The map can be full
 * although the records fit, because old pages are still in use or the free list is fragmented. */
static int kept_make_room(struct kept_db *db)
{
    struct kept_totals totals;
    MDB_txn *txn = NULL;
    int n_dead = 0;
    int rc = mdb_reader_check(db->env, &n_dead);

    if (rc == 0)
        rc = kept_begin(db, &txn, &totals);
    if (rc == 0)
        rc = kept_trim(db, txn, &totals, totals.bytes / 2, INT64_MIN, INT32_MAX);
    return kept_commit(db, txn, &totals, rc);
}

/* A record larger than a quarter of the file would displace nearly all others. */
bool kept_db_takes(const struct kept_db *db, size_t bytes)
{
    return kept_cost(bytes) <= db->room / 4;
}

/* After MDB_MAP_FULL, make room and try once more. */
int kept_db_put(struct kept_db *db, const struct kept_record *const *records, int n)
{
    int rc = kept_put_all(db, records, n);

    must(n > 0);
    if (rc == MDB_MAP_FULL) {
        rc = kept_make_room(db);
        if (rc == 0)
            rc = kept_put_all(db, records, n);
    }
    if (rc != 0)
        log_warn("front: stored responses: %d cannot be written: %s", n, mdb_strerror(rc));
    return kept_error(db, rc);
}

/* Remove records that are too old, at most n_max at a time, because a long transaction would make
 * writers wait. */
int kept_db_expire(struct kept_db *db, int64_t before_s, int n_max)
{
    struct kept_totals totals;
    MDB_txn *txn = NULL;
    uint64_t bytes;
    int rc = kept_begin(db, &txn, &totals);

    bytes = totals.bytes;
    if (rc == 0)
        rc = kept_trim(db, txn, &totals, UINT64_MAX, before_s, n_max);
    if (rc == 0 && totals.bytes == bytes) {
        mdb_txn_abort(txn); /* nothing changed, so nothing needs a sync */
        return ERR_OK;
    }
    return kept_error(db, kept_commit(db, txn, &totals, rc));
}

/* Remove the record of a name. */
int kept_db_remove(struct kept_db *db, const struct hash *name)
{
    struct kept_totals totals;
    MDB_txn *txn = NULL;
    int rc = kept_begin(db, &txn, &totals);

    if (rc == 0)
        rc = kept_remove_name(db, txn, name, &totals);
    return kept_error(db, kept_commit(db, txn, &totals, rc));
}

/* --- reading ------------------------------------------------------------------------------- */

/* Copy the parts of a record, from the first on, to bytes [len]. */
static int kept_get_parts(MDB_cursor *cursor, uint64_t number, char *bytes, size_t len)
{
    MDB_val key, value;
    size_t at = 0;
    int rc = mdb_cursor_get(cursor, &key, &value, MDB_GET_CURRENT);

    while (rc == 0 && at < len) {
        if (kept_number(&key) != number || value.mv_size > len - at || value.mv_size == 0)
            return MDB_CORRUPTED;
        memcpy(bytes + at, value.mv_data, value.mv_size);
        at += value.mv_size;
        if (at < len)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (rc == MDB_NOTFOUND)
        return MDB_CORRUPTED;
    return rc;
}

/* Read the record at the cursor. The sum covers both texts, so damage in any part is found. */
static int kept_get_at(struct kept_db *db, MDB_cursor *cursor, uint64_t number, int64_t before_s,
                       struct arena *arena, struct kept_record *out)
{
    struct kept_head head;
    char *bytes;
    size_t len;
    int rc = kept_head_at(cursor, &head);

    if (rc != 0)
        return rc;
    /* A record that has expired counts as missing, even before it is removed. */
    if (head.created_s < before_s || memcmp(&head.name, &out->name, sizeof head.name) != 0)
        return MDB_NOTFOUND;
    /* Lengths from a damaged head must not become an allocation. */
    if (head.response_len > db->room || head.input_len > db->room)
        return MDB_CORRUPTED;
    len = sizeof head + head.response_len + head.input_len;
    bytes = arena_alloc(arena, len);
    if (bytes == NULL)
        return ENOMEM;
    rc = kept_get_parts(cursor, number, bytes, len);
    if (rc != 0)
        return rc;
    out->created_s = head.created_s;
    out->response = bytes + sizeof head;
    out->response_len = head.response_len;
    out->input = out->response + head.response_len;
    out->input_len = head.input_len;
    if (kept_head_of(out).sum == head.sum)
        return 0;
    return MDB_CORRUPTED;
}

/* Find and read the record of out->name. */
static int kept_get(struct kept_db *db, MDB_txn *txn, int64_t before_s, struct arena *arena,
                    struct kept_record *out)
{
    MDB_cursor *cursor = NULL;
    uint64_t number = 0;
    int rc = kept_find(db, txn, &out->name, &cursor, &number);

    if (rc == 0)
        rc = kept_get_at(db, cursor, number, before_s, arena, out);
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    return rc;
}

/* Read a record. The texts are copied to the arena, because the map may change after the
 * transaction. */
int kept_db_get(struct kept_db *db, const struct hash *name, int64_t before_s, struct arena *arena,
                struct kept_record *out)
{
    struct kept_record found = {.name = *name};
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);

    if (rc == MDB_READERS_FULL) { /* some may belong to processes that died */
        (void)mdb_reader_check(db->env, NULL);
        rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);
    }
    if (rc == 0)
        rc = kept_get(db, txn, before_s, arena, &found);
    if (txn != NULL)
        mdb_txn_abort(txn);
    if (rc == 0)
        *out = found;
    else if (rc != MDB_NOTFOUND)
        log_warn("front: stored responses: one cannot be read: %s", mdb_strerror(rc));
    /* A damaged record alone does not make the whole file unusable. */
    if (rc == MDB_CORRUPTED)
        return ERR_CORRUPT;
    return kept_error(db, rc);
}

/* --- opening ------------------------------------------------------------------------------- */

/* Open the three tables. */
static int kept_tables(struct kept_db *db, unsigned flags)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, (flags & MDB_CREATE) != 0 ? 0 : MDB_RDONLY, &txn);

    if (rc == 0)
        rc = mdb_dbi_open(txn, "names", flags, &db->names);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "records", flags, &db->records);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "meta", flags, &db->meta);
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return rc;
}

/* Open LMDB's environment. MDB_NOTLS: a reader belongs to its transaction and not to its thread,
 * since requests may move between threads. bytes_max 0: as the file says. */
static int kept_env(struct kept_db *db, const char *dir, unsigned flags, uint64_t bytes_max)
{
    int rc = mdb_env_create(&db->env);

    if (rc == 0 && bytes_max != 0)
        rc = mdb_env_set_mapsize(db->env, bytes_max);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(db->env, 3);
    if (rc == 0)
        rc = mdb_env_set_maxreaders(db->env, KEPT_READERS);
    if (rc == 0)
        rc = mdb_env_open(db->env, dir, flags | MDB_NORDAHEAD | MDB_NOTLS, 0600);
    return rc;
}

/* Read every page of a table. */
static int kept_probe_table(MDB_txn *txn, MDB_dbi table)
{
    MDB_cursor *cursor = NULL;
    volatile uint8_t seen = 0;
    MDB_val key, value;
    int rc = mdb_cursor_open(txn, table, &cursor);

    if (rc == 0)
        rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (rc == 0) {
        /* One byte of each cache line is enough: damage shows by page. */
        for (size_t i = 0; i < value.mv_size; i += 64)
            seen ^= ((const uint8_t *)value.mv_data)[i];
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (rc == MDB_NOTFOUND)
        return 0;
    return rc;
}

/* The child: read all tables, with an alarm as a time limit. Returns the exit status. */
static int kept_probe_all(const char *dir)
{
    struct kept_db db = {0};
    struct kept_totals totals;
    MDB_txn *txn = NULL;
    int rc;

    (void)signal(SIGALRM, SIG_DFL);
    (void)alarm(KEPT_PROBE_S);
    /* Any of these calls may also end the child with a signal. */
    rc = kept_env(&db, dir, MDB_RDONLY, 0);
    if (rc == 0)
        rc = kept_tables(&db, 0);
    if (rc == MDB_NOTFOUND)
        return KEPT_PROBE_GOOD; /* its creator died before making the tables */
    if (rc == 0)
        rc = mdb_txn_begin(db.env, NULL, MDB_RDONLY, &txn);
    if (rc == 0)
        rc = kept_totals(&db, txn, &totals);
    if (rc == 0)
        rc = kept_probe_table(txn, 0); /* LMDB's own list of free pages */
    if (rc == 0)
        rc = kept_probe_table(txn, db.names);
    if (rc == 0)
        rc = kept_probe_table(txn, db.records);
    if (txn != NULL)
        mdb_txn_abort(txn);
    if (db.env != NULL)
        mdb_env_close(db.env);
    if (rc == 0)
        return KEPT_PROBE_GOOD;
    if (kept_is_damage(rc))
        return 1;
    return KEPT_PROBE_UNREAD;
}

/* SIGALRM is the time limit, SIGKILL perhaps the kernel out of memory; neither means damage. */
static bool kept_is_damaged(const char *dir)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0)
        _exit(kept_probe_all(dir));
    /* No child: go on without the check. */
    if (child == -1 || waitpid(child, &status, 0) != child)
        return false;
    if (WIFSIGNALED(status))
        return WTERMSIG(status) != SIGALRM && WTERMSIG(status) != SIGKILL;
    return WEXITSTATUS(status) != KEPT_PROBE_GOOD && WEXITSTATUS(status) != KEPT_PROBE_UNREAD;
}

/* Remove an older folder of damaged files. */
static void kept_remove_files(const char *dir)
{
    static const char *const names[] = {"data.mdb", "lock.mdb"};
    char path[KEPT_PATH_BYTES + 16];

    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        (void)unlink(path); /* it may not exist */
    }
    (void)rmdir(dir);
}

/* Rename the folder with all files, its locks included. A front that has it open continues to use
 * it, alone. */
static int kept_set_aside(const char *dir)
{
    char path[KEPT_PATH_BYTES];

    (void)snprintf(path, sizeof path, "%s.bad", dir);
    kept_remove_files(path);
    if (rename(dir, path) == 0) {
        log_error("front: the stored responses are damaged: set aside as %s; a new file is begun",
                  path);
        return ERR_OK;
    }
    log_error("front: %s: %s", path, strerror(errno));
    return ERR_IO;
}

/* Make or check the folder and its two files: private to this user, and lock.mdb with its blocks.
 * *is_new: there is no data yet. */
static int kept_files(const char *dir, bool *is_new)
{
    char path[KEPT_PATH_BYTES];
    int rc, error, fd = -1;

    if (mkdir(dir, 0700) == -1 && errno != EEXIST) {
        log_error("front: %s: %s", dir, strerror(errno));
        if (errno == ENOSPC || errno == EDQUOT)
            return ERR_NO_MEMORY;
        return ERR_IO;
    }
    rc = own_folder("front", dir);
    if (rc != ERR_OK)
        return rc;
    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    rc = own_open("front", path, O_RDWR, &fd);
    *is_new = rc == ERR_NOT_FOUND;
    if (rc == ERR_OK)
        (void)close(fd);
    else if (rc != ERR_NOT_FOUND)
        return rc;
    (void)snprintf(path, sizeof path, "%s/lock.mdb", dir);
    rc = own_open("front", path, O_RDWR | O_CREAT, &fd);
    if (rc != ERR_OK)
        return rc;
    error = posix_fallocate(fd, 0, KEPT_LOCK_BYTES);
    (void)close(fd);
    if (error == 0)
        return ERR_OK;
    log_error("front: %s: %s", path, strerror(error));
    return ERR_NO_MEMORY;
}

/* Take the lock that lets one front at a time open the file or set it aside. The lock lasts until
 * fd is closed. */
static int kept_lock(const char *dir, int *fd)
{
    uint64_t from_us = clock_us();
    char path[KEPT_PATH_BYTES];
    int rc;

    (void)snprintf(path, sizeof path, "%s.lock", dir);
    rc = own_open("front", path, O_RDWR | O_CREAT, fd);
    if (rc != ERR_OK)
        return rc;
    /* A blocking flock() could wait without end for a front that hangs. */
    while (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        if (clock_us() - from_us > KEPT_LOCK_WAIT_US) {
            log_error("front: %s: another front has been holding it for %u s", path,
                      KEPT_LOCK_WAIT_US / 1000000u);
            (void)close(*fd);
            return ERR_IN_USE;
        }
        clock_sleep_us(10000);
    }
    return ERR_OK;
}

/* Open the file with the lock held. Damaged files are set aside and a new file begun, once. */
static int kept_open_locked(struct kept_db *db, const char *dir, uint64_t bytes_max, bool probes)
{
    bool is_new = false;
    int error, rc = kept_files(dir, &is_new);

    if (rc == ERR_OK && probes && !is_new && kept_is_damaged(dir)) {
        rc = kept_set_aside(dir);
        if (rc == ERR_OK)
            rc = kept_files(dir, &is_new);
    }
    if (rc != ERR_OK)
        return rc;
    error = kept_env(db, dir, 0, bytes_max);
    if (error == 0)
        error = kept_tables(db, MDB_CREATE);
    if (error == 0)
        (void)mdb_reader_check(db->env, NULL); /* frees the slots of fronts that died */
    if (error != 0)
        log_error("front: stored responses: %s: %s", dir, mdb_strerror(error));
    if (error == 0)
        return ERR_OK;
    return kept_error(db, error);
}

/* Room for records is three quarters of the map: LMDB needs the rest for pages that readers still
 * see, and for its trees. */
int kept_db_open(struct kept_db **out, const char *dir, uint64_t bytes_max, bool probes)
{
    struct kept_db *db = mem_zalloc(sizeof *db);
    int fd = -1;
    int rc;

    if (db == NULL)
        return ERR_NO_MEMORY;
    db->room = bytes_max / 4 * 3;
    rc = kept_lock(dir, &fd);
    if (rc == ERR_OK) {
        rc = kept_open_locked(db, dir, bytes_max, probes);
        (void)close(fd);
    }
    if (rc != ERR_OK) {
        kept_db_close(db);
        return rc;
    }
    *out = db;
    return ERR_OK;
}

/* Accepts NULL and a file that is not open. */
void kept_db_close(struct kept_db *db)
{
    if (db == NULL)
        return;
    if (db->env != NULL)
        mdb_env_close(db->env);
    mem_free(db);
}
