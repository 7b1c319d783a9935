/* SPDX-License-Identifier: Apache-2.0
 *
 * LMDB with default durability: a commit is on disk when it returns. The map is address space only,
 * and much larger than the index ever gets.
 *
 * LMDB maps lock.mdb and writes to it through the map: a block that the disk lacks is then a signal
 * and not an error. So its blocks are allocated before LMDB opens the file; without room for them
 * the index is opened without locks, for reading only.
 *
 * A damaged LMDB file can crash its reader. So a child process reads the whole index first
 * (store_db_rebuild()), and its end shows the state of the file. */
#include "kv/store_db.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/own.h"

#define STORE_DB_RENEW      10000 /* records that a reader sees in one snapshot */
#define STORE_DB_READERS    64
#define STORE_DB_LOCK_BYTES 8192 /* two blocks; 64 readers take 4,224 bytes */
#define STORE_DB_PROBE_S    60   /* of CPU time, because a disk may be slow */
#define STORE_DB_READ_BYTES 65536
#define STORE_DB_NODE_MIN   8       /* bytes of LMDB's smallest record, apart from key and value */
#define STORE_DB_SPARE      65536   /* a copy may be larger than its source by this many bytes */
#define STORE_DB_RATES      "rates" /* key in meta */

/* Exit statuses of the child. Any other one, and a signal, is judged by its progress. */
enum {
    STORE_DB_PROBE_VERSION = 11,
    STORE_DB_PROBE_NO_MEMORY = 12, /* before the old index was completely read */
    STORE_DB_PROBE_UNREADABLE = 13,
    STORE_DB_PROBE_NO_COPY = 14, /* the old index is good, the new one cannot be written */
};

/* The progress of the child, in memory that it shares with its parent. */
enum { STORE_DB_AT_OLD = 0, STORE_DB_AT_COPY = 1, STORE_DB_AT_NEW = 2 };

struct store_db {
    MDB_env *env;
    MDB_dbi meta, spaces, slots, uses;
    bool read_only;
    bool failed; /* LMDB does not write until it is opened again */
};

/* Errors of LMDB that mean a damaged file, and not a lack of something. */
static bool store_db_is_damage(int rc)
{
    /* In these cases the file itself is bad. Any other error, such as a full disk or missing
     * memory, is no reason to give up the index. */
    switch (rc) {
    case MDB_CORRUPTED:
    case MDB_INVALID:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
    case MDB_VERSION_MISMATCH:
    case MDB_INCOMPATIBLE:
    case MDB_NOTFOUND:
    case MDB_CURSOR_FULL:
    case MDB_BAD_VALSIZE: return true;
    default: return false;
    }
}

/* Log an error of LMDB and translate it: ERR_CORRUPT is the only one that speaks against the
 * file. */
static int store_db_error(const char *what, int rc)
{
    log_error("store: %s: %s", what, mdb_strerror(rc));
    if (store_db_is_damage(rc))
        return ERR_CORRUPT;
    /* The file may still be good. */
    if (rc == ENOMEM || rc == ENOSPC || rc == EDQUOT)
        return ERR_NO_MEMORY;
    return ERR_IO;
}

/* The result of a write. */
static int store_db_wrote(struct store_db *db, const char *what, int rc)
{
    if (rc == 0)
        return ERR_OK;
    db->failed = db->failed || store_db_is_damage(rc);
    return store_db_error(what, rc);
}

/* Open an environment. NORDAHEAD because the index is read at random, NOTLS because read
 * transactions are not bound to a thread. */
static int store_db_env(struct store_db *db, const char *dir, unsigned flags, size_t map_bytes)
{
    int rc = mdb_env_create(&db->env);

    if (rc == 0 && map_bytes != 0)
        rc = mdb_env_set_mapsize(db->env, map_bytes);
    if (rc == 0)
        /* Those of store_db_tables(). */
        rc = mdb_env_set_maxdbs(db->env, 4);
    if (rc == 0)
        rc = mdb_env_set_maxreaders(db->env, STORE_DB_READERS);
    if (rc == 0)
        rc = mdb_env_open(db->env, dir, flags | MDB_NORDAHEAD | MDB_NOTLS, 0600);
    return rc;
}

/* The four tables of store_db.h. Integer keys are compared as numbers, which keeps records of
 * neighbouring slots on one page. */
static int store_db_tables(struct store_db *db, MDB_txn *txn, unsigned flags)
{
    int rc = mdb_dbi_open(txn, "meta", flags, &db->meta);

    if (rc == 0)
        rc = mdb_dbi_open(txn, "spaces", flags | MDB_INTEGERKEY, &db->spaces);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "slots", flags | MDB_INTEGERKEY, &db->slots);
    if (rc == 0)
        rc = mdb_dbi_open(txn, "uses", flags | MDB_INTEGERKEY, &db->uses);
    return rc;
}

static MDB_val store_db_val(const void *p, size_t len)
{
    MDB_val value = {.mv_size = len};

    /* A copy of the pointer, because mv_data is not const. */
    memcpy(&value.mv_data, &p, sizeof p); /* LMDB does not write through it */
    return value;
}

/* Read the format record. Any other size or magic is an index that this program does not know. */
static int store_db_format(struct store_db *db, MDB_txn *txn, struct store_format *out)
{
    MDB_val key = store_db_val("format", 6);
    MDB_val value;
    int rc = mdb_get(txn, db->meta, &key, &value);

    if (rc != 0)
        return rc;
    /* The size is compared first: a record of another version may be shorter than this
     * structure. */
    if (value.mv_size != sizeof *out)
        return MDB_INCOMPATIBLE;
    memcpy(out, value.mv_data, sizeof *out);
    if (out->magic == STORE_MAGIC)
        return 0;
    return MDB_INCOMPATIBLE;
}

/* Create an empty index of this format. LMDB's error. */
static int store_db_create(struct store_db *db, const char *dir, const struct store_format *format,
                           size_t map_bytes)
{
    MDB_val key = store_db_val("format", 6);
    MDB_val value = store_db_val(format, sizeof *format);
    MDB_txn *txn = NULL;
    /* The child process is alone with the file, so no lock is needed. */
    int rc = store_db_env(db, dir, MDB_NOLOCK, map_bytes);

    if (rc == 0)
        rc = mdb_txn_begin(db->env, NULL, 0, &txn);
    if (rc == 0)
        rc = store_db_tables(db, txn, MDB_CREATE);
    /* The format is written in the transaction that creates the tables: an index without one
     * cannot exist after a crash. */
    if (rc == 0)
        rc = mdb_put(txn, db->meta, &key, &value, 0);
    /* LMDB frees a transaction in a commit, even if the commit fails, so it must not be
     * aborted after one. */
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return rc;
}

/* Open an existing index for reading. LMDB's error; ENOENT: there is none. */
static int store_db_read(struct store_db *db, const char *dir, unsigned flags,
                         struct store_format *format)
{
    MDB_txn *txn = NULL;
    int rc;

    db->read_only = true;
    rc = store_db_env(db, dir, MDB_RDONLY | flags, 0);
    if (rc == 0)
        rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);
    if (rc == 0)
        rc = store_db_tables(db, txn, 0);
    if (rc == 0)
        rc = store_db_format(db, txn, format);
    if (rc == 0)
        rc = mdb_txn_commit(txn); /* keeps the table handles */
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return rc;
}

/* Allocate the blocks of lock.mdb. makes: create the file. A reader may belong to another user; if
 * it cannot open the file, LMDB reports that. */
static int store_db_allocate_lock(const char *dir, bool makes)
{
    char path[4200];
    int fd, rc;

    (void)snprintf(path, sizeof path, "%s/lock.mdb", dir);
    if (makes) {
        rc = own_open("store", path, O_RDWR | O_CREAT, &fd);
        if (rc != ERR_OK)
            return rc;
    } else if ((fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW)) == -1) {
        return ERR_OK;
    }
    /* It also lengthens a shorter file. */
    rc = posix_fallocate(fd, 0, STORE_DB_LOCK_BYTES);
    (void)close(fd);
    if (rc == 0)
        return ERR_OK;
    log_warn("store: %s: %s", path, strerror(rc));
    return ERR_NO_MEMORY;
}

int store_db_open_read(struct store_db **out, const char *dir, struct store_format *format)
{
    struct store_db *db = store_db_new();
    int rc;

    if (db == NULL)
        return ERR_NO_MEMORY;
    /* Without an engine, this process is the first that writes to lock.mdb. */
    rc = store_db_allocate_lock(dir, false);
    if (rc == ERR_OK) {
        int failed = store_db_read(db, dir, 0, format);

        if (failed == ENOENT)
            rc = ERR_NOT_FOUND;
        else if (failed != 0)
            rc = store_db_error(dir, failed);
    }
    if (rc != ERR_OK) {
        store_db_close(db);
        return rc;
    }
    *out = db;
    return ERR_OK;
}

struct store_db *store_db_new(void)
{
    return mem_zalloc(sizeof(struct store_db));
}

void store_db_end(struct store_db *db)
{
    if (db->env != NULL)
        mdb_env_close(db->env);
    *db = (struct store_db){0};
}

void store_db_close(struct store_db *db)
{
    if (db == NULL)
        return;
    store_db_end(db);
    mem_free(db);
}

bool store_db_writes(const struct store_db *db)
{
    return db->env != NULL && !db->read_only && !db->failed;
}

/* Look at the indices from 0 on, until the fingerprint or a free one is found. When all are used,
 * the last one is overwritten. */
int store_db_space(struct store_db *db, const struct store_space *space, uint32_t *index)
{
    MDB_txn *txn = NULL;
    uint32_t i = 0;
    int rc = mdb_txn_begin(db->env, NULL, db->read_only ? MDB_RDONLY : 0, &txn);

    for (; rc == 0 && i < STORE_SPACES_MAX; i++) {
        MDB_val key = store_db_val(&i, sizeof i);
        MDB_val value;

        rc = mdb_get(txn, db->spaces, &key, &value);
        /* The fingerprint decides; the name is for people and may change. */
        if (rc == 0 && value.mv_size == sizeof *space &&
            memcmp(value.mv_data, space, sizeof space->fingerprint) == 0)
            break;
        if (db->read_only && (rc == MDB_NOTFOUND || i == STORE_SPACES_MAX - 1)) {
            i = STORE_SPACES_MAX; /* no record has it */
            rc = 0;
            break;
        }
        if (rc == MDB_NOTFOUND || i == STORE_SPACES_MAX - 1) {
            MDB_val fresh = store_db_val(space, sizeof *space);

            rc = mdb_put(txn, db->spaces, &key, &fresh, 0);
            break;
        }
    }
    *index = i;
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return store_db_wrote(db, "a namespace cannot be written", rc);
}

bool store_db_read_space(struct store_db *db, uint32_t index, struct store_space *out)
{
    MDB_val key = store_db_val(&index, sizeof index);
    MDB_txn *txn = NULL;
    MDB_val value;
    bool found = false;

    if (mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn) != 0)
        return false;
    /* A record of another size is from another version and counts as missing. */
    if (mdb_get(txn, db->spaces, &key, &value) == 0 && value.mv_size == sizeof *out) {
        memcpy(out, value.mv_data, sizeof *out);
        /* The name comes from a file and may lack its NUL. */
        out->name[sizeof out->name - 1] = '\0';
        found = true;
    }
    mdb_txn_abort(txn);
    return found;
}

/* Last uses are stored in chunks of STORE_USES slots, because writing each on its own would cost a
 * page of LMDB per use. */
static struct store_use store_db_use(struct store_db *db, MDB_txn *txn, uint64_t slot)
{
    struct store_use use = {0};
    uint32_t chunk = (uint32_t)(slot / STORE_USES);
    MDB_val key = store_db_val(&chunk, sizeof chunk);
    MDB_val value;

    if (mdb_get(txn, db->uses, &key, &value) == 0 && value.mv_size == sizeof use * STORE_USES)
        memcpy(&use, (const char *)value.mv_data + sizeof use * (slot % STORE_USES), sizeof use);
    return use;
}

/* Up to STORE_DB_RENEW records from *from on, in one snapshot; *from becomes the next slot. */
static int store_db_scan_part(struct store_db *db, MDB_txn *txn, uint64_t *from, store_db_fn *fn,
                              void *context, uint64_t *n_bad)
{
    MDB_val key = store_db_val(from, sizeof *from);
    MDB_cursor *cursor = NULL;
    MDB_val value;
    int rc = mdb_cursor_open(txn, db->slots, &cursor);

    if (rc == 0)
        rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    for (int n = 0; rc == 0 && n < STORE_DB_RENEW; n++) {
        struct store_record record = {0};
        uint64_t slot;

        if (key.mv_size == sizeof slot) {
            memcpy(&slot, key.mv_data, sizeof slot);
            *from = slot + 1;
            if (*from == 0)
                rc = MDB_NOTFOUND; /* the highest possible key: nothing follows */
        }
        if (key.mv_size != sizeof slot ||
            (value.mv_size != sizeof record && value.mv_size != STORE_RECORD_OLD)) {
            (*n_bad)++;
        } else {
            struct store_use use = store_db_use(db, txn, slot);

            memcpy(&record, value.mv_data, value.mv_size);
            fn(context, slot, &record, &use);
        }
        if (rc == 0)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    return rc;
}

/* Between two parts the snapshot is renewed, so that the writer can reuse pages that were freed
 * meanwhile. *n_bad counts values of wrong size. */
int store_db_scan(struct store_db *db, store_db_fn *fn, void *context, uint64_t *n_bad)
{
    uint64_t from = 0;
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);

    *n_bad = 0;
    while (rc == 0) { /* ends with MDB_NOTFOUND, because `from` grows in every part */
        rc = store_db_scan_part(db, txn, &from, fn, context, n_bad);
        if (rc == 0) {
            mdb_txn_reset(txn);
            rc = mdb_txn_renew(txn);
        }
    }
    if (txn != NULL)
        mdb_txn_abort(txn);
    if (rc == MDB_NOTFOUND)
        return ERR_OK;
    return store_db_error("the index cannot be read", rc);
}

/* One transaction for a batch: with the default durability each costs an fdatasync() of LMDB. */
int store_db_commit(struct store_db *db, const struct store_change *changes, int n_changes)
{
    MDB_txn *txn = NULL;
    int dead = 0;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    for (int i = 0; rc == 0 && i < n_changes; i++) {
        MDB_val key = store_db_val(&changes[i].slot, sizeof changes[i].slot);
        MDB_val value = store_db_val(&changes[i].record, sizeof changes[i].record);

        if (!changes[i].erase)
            rc = mdb_put(txn, db->slots, &key, &value, 0);
        else if ((rc = mdb_del(txn, db->slots, &key, NULL)) == MDB_NOTFOUND)
            rc = 0;
    }
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    (void)mdb_reader_check(db->env, &dead); /* a killed reader would hold old pages forever */
    return store_db_wrote(db, "the index cannot be written", rc);
}

/* Only chunks with a change are written: 2 KiB each. */
int store_db_write_uses(struct store_db *db, const struct store_use *uses, const bool *marked,
                        uint32_t n_chunks)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    for (uint32_t i = 0; rc == 0 && i < n_chunks; i++) {
        MDB_val key = store_db_val(&i, sizeof i);
        MDB_val value = store_db_val(uses + (size_t)i * STORE_USES, sizeof *uses * STORE_USES);

        /* A chunk without a mark has not changed since it was last written. */
        if (marked[i])
            rc = mdb_put(txn, db->uses, &key, &value, 0);
    }
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return store_db_wrote(db, "last uses cannot be written", rc);
}

int store_db_write_rates(struct store_db *db, const struct store_rate *rates, int n)
{
    MDB_val key = store_db_val(STORE_DB_RATES, strlen(STORE_DB_RATES));
    MDB_val value = store_db_val(rates, sizeof *rates * (size_t)n);
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    /* Only a transaction that was not committed is aborted, see store_db_create(). */
    if (rc == 0)
        rc = mdb_put(txn, db->meta, &key, &value, 0);
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return store_db_wrote(db, "hit rates cannot be written", rc);
}

/* The value of the rates, if it is whole rows and not too many. */
static bool store_db_get_rates(struct store_db *db, MDB_txn *txn, MDB_val *v)
{
    MDB_val key = store_db_val(STORE_DB_RATES, strlen(STORE_DB_RATES));

    return mdb_get(txn, db->meta, &key, v) == 0 && v->mv_size % sizeof(struct store_rate) == 0 &&
           v->mv_size <= STORE_RATES_MAX * sizeof(struct store_rate);
}

/* Rates are statistics, so an error is the same as none. */
int store_db_read_rates(struct store_db *db, struct store_rate rates[STORE_RATES_MAX])
{
    MDB_txn *txn = NULL;
    MDB_val value;
    int n = 0;

    /* Reading needs a transaction, too: the value points into the map and is valid until its
     * end. */
    if (mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn) != 0)
        return 0;
    if (store_db_get_rates(db, txn, &value)) {
        memcpy(rates, value.mv_data, value.mv_size);
        n = (int)(value.mv_size / sizeof *rates);
    }
    mdb_txn_abort(txn);
    return n;
}

/* Copy a table. Not yet in use, the new file needs only one transaction. */
static int store_db_copy_table(MDB_txn *from, MDB_dbi from_table, MDB_txn *to, MDB_dbi to_table)
{
    MDB_cursor *cursor = NULL;
    MDB_val key;
    MDB_val value;
    int rc = mdb_cursor_open(from, from_table, &cursor);

    if (rc == 0)
        rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (rc == 0) {
        rc = mdb_put(to, to_table, &key, &value,
                     MDB_APPEND); /* full pages: not larger than the old file */
        /* MDB_APPEND fails where the key is not above the last one; insert it at its place. */
        if (rc == MDB_KEYEXIST)
            rc = mdb_put(to, to_table, &key, &value, 0);
        if (rc == 0)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    if (rc == MDB_NOTFOUND)
        return 0;
    return rc;
}

/* One transaction on each side; the format is in the new index already. */
static int store_db_copy(struct store_db *from, struct store_db *to)
{
    MDB_val key = store_db_val(STORE_DB_RATES, strlen(STORE_DB_RATES));
    MDB_txn *a = NULL;
    MDB_txn *b = NULL;
    MDB_val value;
    int rc = mdb_txn_begin(from->env, NULL, MDB_RDONLY, &a);

    if (rc == 0)
        rc = mdb_txn_begin(to->env, NULL, 0, &b);
    if (rc == 0)
        rc = store_db_copy_table(a, from->spaces, b, to->spaces);
    if (rc == 0)
        rc = store_db_copy_table(a, from->slots, b, to->slots);
    if (rc == 0)
        rc = store_db_copy_table(a, from->uses, b, to->uses);
    /* Rates are optional: an index without any is complete. */
    if (rc == 0 && store_db_get_rates(from, a, &value))
        rc = mdb_put(b, to->meta, &key, &value, 0);
    /* After a commit `b` is gone, even if the commit failed. */
    if (rc == 0) {
        rc = mdb_txn_commit(b);
        b = NULL;
    }
    /* A read transaction is always ended by an abort; it has nothing to lose. */
    if (b != NULL)
        mdb_txn_abort(b);
    if (a != NULL)
        mdb_txn_abort(a);
    return rc;
}

/* --- the child ------------------------------------------------------------------------------ */

/* fork() -> the child reads the old index and writes the copy -> its exit status and *progress are
 * judged by the parent. While it is STORE_DB_AT_OLD a crash means a damaged index; later, the old
 * index has been read completely and remains usable. The child never returns into the engine's
 * code. */

/* Read the whole file with pread(): a failing disk is an error here, but in LMDB's map it would be
 * the same signal as a damaged tree. *len is the file's length, 0 when there is none. Returns
 * errno. */
static int store_db_read_bytes(const char *dir, off_t *len)
{
    char bytes[STORE_DB_READ_BYTES];
    char path[4200];
    ssize_t n = 1;
    int fd;

    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    *len = 0;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd == -1)
        return errno == ENOENT ? 0 : errno;
    /* A signal may interrupt the read before the first byte, which is no error. */
    while (n > 0 || (n == -1 && errno == EINTR)) {
        n = pread(fd, bytes, sizeof bytes, *len);
        *len += n > 0 ? n : 0;
    }
    /* The sign of n is read before close() may change errno. */
    n = n == -1 ? errno : 0;
    (void)close(fd);
    return (int)n;
}

/* Touch every byte of a table. A tree with a cycle has more records than its file has room for. */
static int store_db_walk_table(MDB_txn *txn, MDB_dbi table, off_t bytes)
{
    MDB_cursor *cursor = NULL;
    MDB_val key, value;
    volatile unsigned char sum = 0;
    off_t left = bytes / STORE_DB_NODE_MIN;
    int rc = mdb_cursor_open(txn, table, &cursor);

    if (rc == 0)
        rc = mdb_cursor_get(cursor, &key, &value, MDB_FIRST);
    while (rc == 0) { /* ends, because `left` falls */
        /* `sum` is volatile, so that no read is optimised away. */
        for (size_t i = 0; i < key.mv_size; i++)
            sum = (unsigned char)(sum + ((const unsigned char *)key.mv_data)[i]);
        for (size_t i = 0; i < value.mv_size; i++)
            sum = (unsigned char)(sum + ((const unsigned char *)value.mv_data)[i]);
        if (left-- > 0)
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        else
            rc = MDB_CORRUPTED;
    }
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    if (rc == MDB_NOTFOUND)
        return 0;
    return rc;
}

/* All four tables, so that a fault anywhere is found by the child and not by the engine. */
static int store_db_walk(struct store_db *db, off_t bytes)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);

    /* The walk reads every page of every tree. A damaged page makes LMDB fail or the process end
     * by a signal; both are found by the parent. */
    if (rc == 0)
        rc = store_db_walk_table(txn, db->meta, bytes);
    if (rc == 0)
        rc = store_db_walk_table(txn, db->spaces, bytes);
    if (rc == 0)
        rc = store_db_walk_table(txn, db->slots, bytes);
    if (rc == 0)
        rc = store_db_walk_table(txn, db->uses, bytes);
    if (txn != NULL)
        mdb_txn_abort(txn);
    return rc;
}

/* Read the whole old index; *len is the file's length, 0 when there is none. Returns only if all is
 * well; else it exits with a status. */
static void store_db_probe_old(struct store_db *from, const char *dir,
                               const struct store_format *format, off_t *len)
{
    struct store_format got;
    /* An error of the disk ends here, before LMDB maps the file. */
    int rc = store_db_read_bytes(dir, len);

    if (rc == 0 && *len == 0)
        return;
    if (rc == 0)
        rc = store_db_read(from, dir, MDB_NOLOCK, &got); /* no other process writes to it */
    /* The index of another version is not walked. */
    if (rc == 0 && memcmp(&got, format, sizeof got) != 0)
        _exit(STORE_DB_PROBE_VERSION);
    if (rc == 0)
        rc = store_db_walk(from, *len);
    switch (rc == 0 ? ERR_OK : store_db_error(dir, rc)) {
    case ERR_OK: return;
    case ERR_CORRUPT: _exit(1);
    case ERR_NO_MEMORY: _exit(STORE_DB_PROBE_NO_MEMORY);
    default: _exit(STORE_DB_PROBE_UNREADABLE);
    }
}

/* Allocate the blocks that the copy will need, beyond the end of an empty file. A file system that
 * cannot do that reports later that it is full. Returns errno. */
static int store_db_allocate_copy(const char *scratch, off_t bytes, int *fd)
{
    char path[4200];

    (void)snprintf(path, sizeof path, "%s/data.mdb", scratch);
    *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd == -1)
        return errno;
    if (fallocate(*fd, FALLOC_FL_KEEP_SIZE, 0, bytes) == -1 && errno != EOPNOTSUPP)
        return errno;
    return 0;
}

/* Give back the blocks that were not needed. */
static int store_db_trim_copy(int fd)
{
    struct stat st;

    if (fstat(fd, &st) == -1 || ftruncate(fd, st.st_size) == -1)
        return errno;
    return 0;
}

/* The child: do everything that opening does with an old file, where a crash does no harm. LMDB
 * trusts its file, and a damaged tree may crash its reader. The old index is read completely first;
 * errors after that do not speak against it. Exit status 0: the copy is in scratch. */
static _Noreturn void store_db_probe_child(const char *dir, const char *scratch,
                                           const struct store_format *format, size_t map_bytes,
                                           _Atomic int *progress)
{
    struct rlimit cpu = {.rlim_cur = STORE_DB_PROBE_S, .rlim_max = 2 * STORE_DB_PROBE_S};
    struct store_db from = {0};
    struct store_db to = {0};
    off_t len;
    int fd, rc;

    /* The child must not keep the engine's lock on the store. */
    (void)close_range(STDERR_FILENO + 1, ~0U, 0);
    (void)setrlimit(RLIMIT_CPU, &cpu); /* an endless loop in a damaged tree ends by signal */
    store_db_probe_old(&from, dir, format, &len);
    /* From here on a crash does not mean a damaged old index. */
    *progress = len == 0 ? STORE_DB_AT_NEW : STORE_DB_AT_COPY;
    rc = store_db_allocate_copy(scratch, len + STORE_DB_SPARE, &fd);
    if (rc == 0)
        rc = store_db_create(&to, scratch, format, map_bytes);
    /* Without an old index the new one remains empty. */
    if (rc == 0 && len > 0)
        rc = store_db_copy(&from, &to);
    if (rc == 0)
        rc = store_db_trim_copy(fd);
    if (rc != 0)
        log_warn("store: the index in %s cannot be written anew: %s", dir, mdb_strerror(rc));
    store_db_end(&to);
    _exit(rc == 0 ? 0 : STORE_DB_PROBE_NO_COPY);
}

/* Signals that a process gets for reading damaged data. */
static bool store_db_is_crash(int status)
{
    int sig = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    return !WIFSIGNALED(status) || sig == SIGSEGV || sig == SIGBUS || sig == SIGABRT ||
           sig == SIGFPE || sig == SIGILL || sig == SIGXCPU || sig == SIGTRAP;
}

/* The result of the child, from its status and progress. */
static int store_db_judge(int status, int progress)
{
    if (WIFEXITED(status)) {
        switch (WEXITSTATUS(status)) {
        case 0: return ERR_OK;
        case STORE_DB_PROBE_VERSION: return ERR_VERSION;
        case STORE_DB_PROBE_NO_MEMORY: return ERR_NO_MEMORY;
        case STORE_DB_PROBE_UNREADABLE: return ERR_IO;
        default: break;
        }
    }
    switch (progress) {
    /* Another signal, such as SIGKILL when memory is short, says nothing about the file. */
    case STORE_DB_AT_OLD: return store_db_is_crash(status) ? ERR_CORRUPT : ERR_NO_MEMORY;
    case STORE_DB_AT_COPY: return ERR_AGAIN;
    default: return ERR_NO_MEMORY;
    }
}

/* Copy the index in dir to scratch in a child process; create a new one when there is none. ERR_OK;
 * ERR_AGAIN when the old one is good and the copy cannot be made; ERR_VERSION; ERR_CORRUPT when the
 * child failed in reading the old one; ERR_IO; ERR_NO_MEMORY. */
static int store_db_rebuild(const char *dir, const char *scratch, const struct store_format *format,
                            size_t map_bytes)
{
    _Atomic int *progress =
        mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int status = 0;
    int at;
    pid_t pid;

    /* The child reports its progress in shared memory, since its exit status alone does not show
     * which of both indexes it was working on. */
    if (progress == MAP_FAILED)
        return ERR_NO_MEMORY;
    pid = fork();
    /* The child ends in store_db_probe_child() and does not return. */
    if (pid == 0)
        store_db_probe_child(dir, scratch, format, map_bytes, progress);
    /* Other signals of the engine may interrupt the wait. */
    while (pid != -1 && waitpid(pid, &status, 0) == -1 && errno == EINTR)
        continue;
    /* The child has ended, so the word does not change any more. */
    at = *progress;
    (void)munmap(progress, sizeof *progress);
    if (pid == -1)
        return ERR_NO_MEMORY;
    return store_db_judge(status, at);
}

/* The scratch folder has at most the two files of an LMDB environment. */
static void store_db_clear(const char *scratch)
{
    static const char *const names[] = {"data.mdb", "lock.mdb"};

    for (size_t i = 0; i < 2; i++) {
        char path[4200];

        (void)snprintf(path, sizeof path, "%s/%s", scratch, names[i]);
        (void)unlink(path); /* may not be there */
    }
    (void)rmdir(scratch);
}

/* --- opening -------------------------------------------------------------------------------- */

/* A writer always starts with a copy: the copy is as small as its records, was written from records
 * that were read completely, and replaces the old file by one rename(). When that is impossible,
 * for want of room above all, the old file is used as it is, for reading. */

/* Replace the index by its copy: ERR_OK. ERR_AGAIN: the old one is good, and stays. */
static int store_db_renew(const char *dir, const struct store_format *format, size_t map_bytes)
{
    char scratch[4096];
    char from[4200];
    char to[4200];
    int rc;

    (void)snprintf(scratch, sizeof scratch, "%s/rebuild", dir);
    (void)snprintf(from, sizeof from, "%s/data.mdb", scratch);
    (void)snprintf(to, sizeof to, "%s/data.mdb", dir);
    store_db_clear(scratch); /* of an engine that died here */
    /* On error the child has no place to write to, and reports it. */
    if (mkdir(scratch, 0700) == -1)
        log_warn("store: %s: %s", scratch, strerror(errno));
    rc = store_db_rebuild(dir, scratch, format, map_bytes);
    if (rc == ERR_OK && rename(from, to) == -1) { /* readers of the old file keep it */
        log_error("store: %s: %s", to, strerror(errno));
        /* Without an old index there is none to read from. */
        rc = access(to, F_OK) == 0 ? ERR_AGAIN : ERR_IO;
    }
    store_db_clear(scratch);
    return rc;
}

/* The tables must exist: the child has created the file. */
static int store_db_write_env(struct store_db *db, const char *dir, size_t map_bytes)
{
    MDB_txn *txn = NULL;
    int rc = store_db_env(db, dir, 0, map_bytes);

    /* Opening tables needs a transaction, whose commit makes the handles valid for later ones. */
    if (rc == 0)
        rc = mdb_txn_begin(db->env, NULL, 0, &txn);
    if (rc == 0)
        rc = store_db_tables(db, txn, 0);
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    if (rc == 0)
        return ERR_OK;
    return store_db_error(dir, rc);
}

/* If the copy or lock.mdb cannot be made, the old index is opened for reading only, without locks:
 * the engine's own lock keeps other writers away. */
int store_db_begin(struct store_db *db, const char *dir, const struct store_format *format,
                   size_t map_bytes)
{
    struct store_format got;
    char path[4200];
    int fd, rc;

    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    rc = own_open("store", path, O_RDONLY, &fd);
    if (rc == ERR_OK)
        (void)close(fd);
    else if (rc != ERR_NOT_FOUND)
        return rc;
    rc = store_db_renew(dir, format, map_bytes);
    if (rc == ERR_OK && store_db_allocate_lock(dir, true) == ERR_OK) {
        rc = store_db_write_env(db, dir, map_bytes);
        if (rc == ERR_OK)
            return ERR_OK;
        store_db_end(db);
    }
    if (rc != ERR_OK && rc != ERR_AGAIN)
        return rc;
    rc = store_db_read(db, dir, MDB_NOLOCK, &got); /* a child has read all of it */
    if (rc == 0)
        return ERR_OK;
    store_db_end(db);
    return store_db_error(dir, rc);
}

int store_db_open(struct store_db **out, const char *dir, const struct store_format *format,
                  size_t map_bytes)
{
    struct store_db *db = store_db_new();
    int rc;

    if (db == NULL)
        return ERR_NO_MEMORY;
    rc = store_db_begin(db, dir, format, map_bytes);
    /* store_db_close() accepts a database that was opened in part. */
    if (rc != ERR_OK) {
        store_db_close(db);
        return rc;
    }
    *out = db;
    return ERR_OK;
}

/* The header repeats the record, so a slot that was reused after a lost index entry is recognised
 * by its generation. */
bool store_header_matches(const struct store_header *h, const struct store_record *record,
                          uint64_t page_bytes)
{
    return h->magic == STORE_MAGIC && h->version == STORE_VERSION &&
           h->header_xxh3 == hash_xxh3(h, offsetof(struct store_header, header_xxh3)) &&
           h->generation == record->generation && h->n_tokens == record->n_tokens &&
           h->n_tokens <= STORE_TOKENS_MAX && h->payload_bytes == page_bytes &&
           memcmp(&h->name, &record->name, sizeof h->name) == 0 &&
           memcmp(&h->parent, &record->parent, sizeof h->parent) == 0;
}
