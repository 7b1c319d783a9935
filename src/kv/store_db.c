/* SPDX-License-Identifier: Apache-2.0
 *
 * LMDB. Default durability: a commit is on disk when it returns. The map is virtual room only
 * and much larger than the index ever gets. */
#include "kv/store_db.h"

#include <errno.h>
#include <lmdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"

#define STORE_DB_RENEW   10000 /* records a reader sees in one snapshot */
#define STORE_DB_READERS 64
#define STORE_DB_PROBE_S 60
#define STORE_DB_RATES   "rates" /* in meta */

/* Exit statuses of the child. */
enum { STORE_DB_PROBE_NONE = 10, STORE_DB_PROBE_VERSION = 11, STORE_DB_PROBE_NO_ROOM = 12 };

struct store_db {
    MDB_env *env;
    MDB_dbi meta, spaces, slots, uses;
    bool read_only;
};

static int store_db_error(const char *what, int rc)
{
    log_error("store: %s: %s", what, mdb_strerror(rc));
    switch (rc) {
    case MDB_CORRUPTED:
    case MDB_INVALID:
    case MDB_PAGE_NOTFOUND:
    case MDB_PANIC:
    case MDB_VERSION_MISMATCH:
    case MDB_INCOMPATIBLE:
    case MDB_NOTFOUND:
    case MDB_BAD_VALSIZE: return ERR_CORRUPT;
    case ENOMEM:
    case ENOSPC:
    case EDQUOT: return ERR_NO_MEMORY; /* says nothing against the file */
    default: return ERR_IO;
    }
}

static int store_db_env(struct store_db *db, const char *dir, unsigned flags, size_t map_bytes)
{
    int rc = mdb_env_create(&db->env);

    if (rc == 0 && map_bytes != 0)
        rc = mdb_env_set_mapsize(db->env, map_bytes);
    if (rc == 0)
        rc = mdb_env_set_maxdbs(db->env, 4);
    if (rc == 0)
        rc = mdb_env_set_maxreaders(db->env, STORE_DB_READERS);
    if (rc == 0)
        rc = mdb_env_open(db->env, dir, flags | MDB_NORDAHEAD | MDB_NOTLS, 0660);
    return rc;
}

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
    MDB_val v = {.mv_size = len};

    memcpy(&v.mv_data, &p, sizeof p); /* LMDB does not write through it */
    return v;
}

static int store_db_format(struct store_db *db, MDB_txn *txn, struct store_format *out)
{
    MDB_val key = store_db_val("format", 6);
    MDB_val v;
    int rc = mdb_get(txn, db->meta, &key, &v);

    if (rc != 0)
        return rc;
    if (v.mv_size != sizeof *out)
        return MDB_INCOMPATIBLE;
    memcpy(out, v.mv_data, sizeof *out);
    return out->magic == STORE_MAGIC ? 0 : MDB_INCOMPATIBLE;
}

/* A new, empty store of this format. */
static int store_db_create(struct store_db **out, const char *dir,
                           const struct store_format *format, size_t map_bytes)
{
    struct store_db *db = mem_zalloc(sizeof *db);
    MDB_val key = store_db_val("format", 6);
    MDB_val v = store_db_val(format, sizeof *format);
    MDB_txn *txn = NULL;
    int rc;

    if (db == NULL)
        return ERR_NO_MEMORY;
    rc = store_db_env(db, dir, 0, map_bytes);
    if (rc == 0)
        rc = mdb_txn_begin(db->env, NULL, 0, &txn);
    if (rc == 0)
        rc = store_db_tables(db, txn, MDB_CREATE);
    if (rc == 0)
        rc = mdb_put(txn, db->meta, &key, &v, 0);
    if (rc == 0) {
        rc = mdb_txn_commit(txn);
        txn = NULL;
    }
    if (txn != NULL)
        mdb_txn_abort(txn);
    if (rc != 0) {
        store_db_close(db);
        return store_db_error(dir, rc);
    }
    *out = db;
    return ERR_OK;
}

int store_db_open_read(struct store_db **out, const char *dir, struct store_format *format)
{
    struct store_db *db = mem_zalloc(sizeof *db);
    MDB_txn *txn = NULL;
    int rc;

    if (db == NULL)
        return ERR_NO_MEMORY;
    db->read_only = true;
    rc = store_db_env(db, dir, MDB_RDONLY, 0);
    if (rc == ENOENT) {
        store_db_close(db);
        return ERR_NOT_FOUND;
    }
    if (rc == 0)
        rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);
    if (rc == 0)
        rc = store_db_tables(db, txn, 0);
    if (rc == 0)
        rc = store_db_format(db, txn, format);
    if (rc == 0) {
        rc = mdb_txn_commit(txn); /* keeps the table handles */
        txn = NULL;
    }
    if (txn != NULL)
        mdb_txn_abort(txn);
    if (rc != 0) {
        store_db_close(db);
        return store_db_error(dir, rc);
    }
    *out = db;
    return ERR_OK;
}

void store_db_close(struct store_db *db)
{
    if (db == NULL)
        return;
    if (db->env != NULL)
        mdb_env_close(db->env);
    mem_free(db);
}

int store_db_space(struct store_db *db, const struct store_space *space, uint32_t *index)
{
    MDB_txn *txn = NULL;
    uint32_t i = 0;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    for (; rc == 0 && i < STORE_SPACES_MAX; i++) {
        MDB_val key = store_db_val(&i, sizeof i);
        MDB_val v;

        rc = mdb_get(txn, db->spaces, &key, &v);
        if (rc == 0 && v.mv_size == sizeof *space &&
            memcmp(v.mv_data, space, sizeof space->fingerprint) == 0)
            break;
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
    return rc == 0 ? ERR_OK : store_db_error("a namespace cannot be written", rc);
}

bool store_db_read_space(struct store_db *db, uint32_t index, struct store_space *out)
{
    MDB_val key = store_db_val(&index, sizeof index);
    MDB_txn *txn = NULL;
    MDB_val v;
    bool found = false;

    if (mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn) != 0)
        return false;
    if (mdb_get(txn, db->spaces, &key, &v) == 0 && v.mv_size == sizeof *out) {
        memcpy(out, v.mv_data, sizeof *out);
        out->name[sizeof out->name - 1] = '\0';
        found = true;
    }
    mdb_txn_abort(txn);
    return found;
}

static struct store_use store_db_use(struct store_db *db, MDB_txn *txn, uint64_t slot)
{
    struct store_use use = {0};
    uint32_t chunk = (uint32_t)(slot / STORE_USES);
    MDB_val key = store_db_val(&chunk, sizeof chunk);
    MDB_val v;

    if (mdb_get(txn, db->uses, &key, &v) == 0 && v.mv_size == sizeof use * STORE_USES)
        memcpy(&use, (const char *)v.mv_data + sizeof use * (slot % STORE_USES), sizeof use);
    return use;
}

/* Up to STORE_DB_RENEW records from *from on, in one snapshot; *from is where to go on. */
static int store_db_scan_part(struct store_db *db, MDB_txn *txn, uint64_t *from, store_db_fn *fn,
                              void *context, uint64_t *n_bad)
{
    MDB_val key = store_db_val(from, sizeof *from);
    MDB_cursor *cursor = NULL;
    MDB_val v;
    int rc = mdb_cursor_open(txn, db->slots, &cursor);

    if (rc == 0)
        rc = mdb_cursor_get(cursor, &key, &v, MDB_SET_RANGE);
    for (int n = 0; rc == 0 && n < STORE_DB_RENEW; n++) {
        struct store_record r = {0};
        uint64_t slot;

        if (key.mv_size == sizeof slot) {
            memcpy(&slot, key.mv_data, sizeof slot);
            *from = slot + 1;
            if (*from == 0)
                rc = MDB_NOTFOUND; /* the highest key there can be: nothing follows */
        }
        if (key.mv_size != sizeof slot ||
            (v.mv_size != sizeof r && v.mv_size != STORE_RECORD_OLD)) {
            (*n_bad)++;
        } else {
            struct store_use use = store_db_use(db, txn, slot);

            memcpy(&r, v.mv_data, v.mv_size);
            fn(context, slot, &r, &use);
        }
        if (rc == 0)
            rc = mdb_cursor_get(cursor, &key, &v, MDB_NEXT);
    }
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    return rc;
}

int store_db_scan(struct store_db *db, store_db_fn *fn, void *context, uint64_t *n_bad)
{
    uint64_t from = 0;
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn);

    *n_bad = 0;
    while (rc == 0) { /* ends with MDB_NOTFOUND: *from grows in every part */
        rc = store_db_scan_part(db, txn, &from, fn, context, n_bad);
        if (rc == 0) {
            mdb_txn_reset(txn);
            rc = mdb_txn_renew(txn);
        }
    }
    if (txn != NULL)
        mdb_txn_abort(txn);
    return rc == MDB_NOTFOUND ? ERR_OK : store_db_error("the index cannot be read", rc);
}

int store_db_commit(struct store_db *db, const struct store_change *changes, int n_changes)
{
    MDB_txn *txn = NULL;
    int dead = 0;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    for (int i = 0; rc == 0 && i < n_changes; i++) {
        MDB_val key = store_db_val(&changes[i].slot, sizeof changes[i].slot);
        MDB_val v = store_db_val(&changes[i].record, sizeof changes[i].record);

        rc = changes[i].erase ? mdb_del(txn, db->slots, &key, NULL)
                              : mdb_put(txn, db->slots, &key, &v, 0);
        if (changes[i].erase && rc == MDB_NOTFOUND)
            rc = 0;
    }
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    (void)mdb_reader_check(db->env, &dead); /* a killed reader would hold old pages for ever */
    return rc == 0 ? ERR_OK : store_db_error("the index cannot be written", rc);
}

int store_db_write_uses(struct store_db *db, const struct store_use *uses, const bool *marked,
                        uint32_t n_chunks)
{
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    for (uint32_t i = 0; rc == 0 && i < n_chunks; i++) {
        MDB_val key = store_db_val(&i, sizeof i);
        MDB_val v = store_db_val(uses + (size_t)i * STORE_USES, sizeof *uses * STORE_USES);

        if (marked[i])
            rc = mdb_put(txn, db->uses, &key, &v, 0);
    }
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return rc == 0 ? ERR_OK : store_db_error("last uses cannot be written", rc);
}

int store_db_write_rates(struct store_db *db, const struct store_rate *rates, int n)
{
    MDB_val key = store_db_val(STORE_DB_RATES, strlen(STORE_DB_RATES));
    MDB_val v = store_db_val(rates, sizeof *rates * (size_t)n);
    MDB_txn *txn = NULL;
    int rc = mdb_txn_begin(db->env, NULL, 0, &txn);

    if (rc == 0)
        rc = mdb_put(txn, db->meta, &key, &v, 0);
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else if (txn != NULL)
        mdb_txn_abort(txn);
    return rc == 0 ? ERR_OK : store_db_error("hit rates cannot be written", rc);
}

/* Whole rows, and no more than there may be. */
static bool store_db_get_rates(struct store_db *db, MDB_txn *txn, MDB_val *v)
{
    MDB_val key = store_db_val(STORE_DB_RATES, strlen(STORE_DB_RATES));

    return mdb_get(txn, db->meta, &key, v) == 0 && v->mv_size % sizeof(struct store_rate) == 0 &&
           v->mv_size <= STORE_RATES_MAX * sizeof(struct store_rate);
}

int store_db_read_rates(struct store_db *db, struct store_rate rates[STORE_RATES_MAX])
{
    MDB_txn *txn = NULL;
    MDB_val v;
    int n = 0;

    if (mdb_txn_begin(db->env, NULL, MDB_RDONLY, &txn) != 0)
        return 0;
    if (store_db_get_rates(db, txn, &v)) {
        memcpy(rates, v.mv_data, v.mv_size);
        n = (int)(v.mv_size / sizeof *rates);
    }
    mdb_txn_abort(txn);
    return n;
}

/* Copies one table as it is. The new file is not in use yet: one transaction. */
static int store_db_copy_table(MDB_txn *from, MDB_dbi from_table, MDB_txn *to, MDB_dbi to_table)
{
    MDB_cursor *cursor = NULL;
    MDB_val key;
    MDB_val v;
    int rc = mdb_cursor_open(from, from_table, &cursor);

    if (rc == 0)
        rc = mdb_cursor_get(cursor, &key, &v, MDB_FIRST);
    while (rc == 0) {
        rc = mdb_put(to, to_table, &key, &v, 0);
        if (rc == 0)
            rc = mdb_cursor_get(cursor, &key, &v, MDB_NEXT);
    }
    if (cursor != NULL)
        mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int store_db_copy(struct store_db *from, struct store_db *to)
{
    MDB_val key = store_db_val(STORE_DB_RATES, strlen(STORE_DB_RATES));
    MDB_txn *a = NULL;
    MDB_txn *b = NULL;
    MDB_val v;
    int rc = mdb_txn_begin(from->env, NULL, MDB_RDONLY, &a);

    if (rc == 0)
        rc = mdb_txn_begin(to->env, NULL, 0, &b);
    if (rc == 0)
        rc = store_db_copy_table(a, from->spaces, b, to->spaces);
    if (rc == 0)
        rc = store_db_copy_table(a, from->slots, b, to->slots);
    if (rc == 0)
        rc = store_db_copy_table(a, from->uses, b, to->uses);
    if (rc == 0 && store_db_get_rates(from, a, &v))
        rc = mdb_put(b, to->meta, &key, &v, 0);
    if (rc == 0) {
        rc = mdb_txn_commit(b);
        b = NULL;
    }
    if (b != NULL)
        mdb_txn_abort(b);
    if (a != NULL)
        mdb_txn_abort(a);
    return rc == 0 ? ERR_OK : store_db_error("the index cannot be copied", rc);
}

/* Everything that opening does with an old file, to be survived before it is done for real:
 * LMDB trusts its file, and a damaged tree may crash its reader. Exit status 0: it was. */
static _Noreturn void store_db_probe_child(const char *dir, const char *scratch,
                                           const struct store_format *format, size_t map_bytes)
{
    struct store_format got;
    struct store_db *from = NULL;
    struct store_db *to = NULL;
    int rc;

    /* The engine's lock on the store must not outlive the engine here. */
    (void)close_range(STDERR_FILENO + 1, ~0U, 0);
    (void)alarm(STORE_DB_PROBE_S); /* a loop in a damaged tree ends as a crash does */
    rc = store_db_open_read(&from, dir, &got);
    if (rc == ERR_OK && memcmp(&got, format, sizeof got) != 0)
        _exit(STORE_DB_PROBE_VERSION);
    if (rc == ERR_OK)
        rc = store_db_create(&to, scratch, format, map_bytes);
    if (rc == ERR_OK)
        rc = store_db_copy(from, to);
    store_db_close(to);
    switch (rc) {
    case ERR_OK: _exit(0);
    case ERR_NOT_FOUND: _exit(STORE_DB_PROBE_NONE);
    case ERR_NO_MEMORY: _exit(STORE_DB_PROBE_NO_ROOM);
    default: _exit(1);
    }
}

/* Copy the index in dir to scratch in a child process. ERR_OK, ERR_NOT_FOUND, ERR_VERSION,
 * ERR_NO_MEMORY when there was no room for the copy, or ERR_CORRUPT when the child did not come
 * through. */
static int store_db_rebuild(const char *dir, const char *scratch, const struct store_format *format,
                            size_t map_bytes)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        store_db_probe_child(dir, scratch, format, map_bytes);
    if (pid == -1)
        return ERR_NO_MEMORY;
    while (waitpid(pid, &status, 0) == -1 && errno == EINTR)
        continue;
    if (!WIFEXITED(status))
        return ERR_CORRUPT;
    switch (WEXITSTATUS(status)) {
    case 0: return ERR_OK;
    case STORE_DB_PROBE_NONE: return ERR_NOT_FOUND;
    case STORE_DB_PROBE_VERSION: return ERR_VERSION;
    case STORE_DB_PROBE_NO_ROOM: return ERR_NO_MEMORY;
    default: return ERR_CORRUPT;
    }
}

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

int store_db_open(struct store_db **out, const char *dir, const struct store_format *format,
                  size_t map_bytes)
{
    struct store_db *db = mem_zalloc(sizeof *db);
    char scratch[4096];
    char from[4200];
    char to[4200];
    int rc;

    if (db == NULL)
        return ERR_NO_MEMORY;
    (void)snprintf(scratch, sizeof scratch, "%s/rebuild", dir);
    store_db_clear(scratch); /* of an engine that died here */
    if (mkdir(scratch, 0750) == -1) {
        log_error("store: %s: %s", scratch, strerror(errno));
        mem_free(db);
        return ERR_IO;
    }
    rc = store_db_rebuild(dir, scratch, format, map_bytes);
    if (rc == ERR_NOT_FOUND) {
        rc = store_db_create(out, dir, format, map_bytes);
        store_db_clear(scratch);
        mem_free(db);
        return rc;
    }
    if (rc == ERR_OK) {
        (void)snprintf(from, sizeof from, "%s/data.mdb", scratch);
        (void)snprintf(to, sizeof to, "%s/data.mdb", dir);
        if (rename(from, to) == -1) /* readers of the old file keep it */
            rc = ERR_IO;
    }
    store_db_clear(scratch);
    if (rc == ERR_OK) {
        MDB_txn *txn = NULL;
        int e = store_db_env(db, dir, 0, map_bytes);

        if (e == 0)
            e = mdb_txn_begin(db->env, NULL, 0, &txn);
        if (e == 0)
            e = store_db_tables(db, txn, 0);
        if (e == 0)
            e = mdb_txn_commit(txn);
        else if (txn != NULL)
            mdb_txn_abort(txn);
        rc = e == 0 ? ERR_OK : store_db_error(dir, e);
    }
    if (rc != ERR_OK) {
        store_db_close(db);
        return rc;
    }
    *out = db;
    return ERR_OK;
}

bool store_header_matches(const struct store_header *h, const struct store_record *r,
                          uint64_t page_bytes)
{
    return h->magic == STORE_MAGIC && h->version == STORE_VERSION &&
           h->header_xxh3 == hash_xxh3(h, offsetof(struct store_header, header_xxh3)) &&
           h->generation == r->generation && h->n_tokens == r->n_tokens &&
           h->n_tokens <= STORE_TOKENS_MAX && h->payload_bytes == page_bytes &&
           memcmp(&h->name, &r->name, sizeof h->name) == 0 &&
           memcmp(&h->parent, &r->parent, sizeof h->parent) == 0;
}
