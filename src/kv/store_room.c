/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the disk: unusable, readable, or writable as well. A lack of room or a failing disk
 * leaves the files as they are; only an index that was read and is damaged, or has another format,
 * is moved aside.
 *
 *   STORE_AWAY --attach--> STORE_WRITING <--reopen-- STORE_READING
 *        '------attach: no room for the index----------^
 *                  STORE_WRITING --index fails--> STORE_READING */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/own.h"
#include "kv/store_parts.h"

#define ROOM_LOCK_TRIES 25
#define ROOM_LOCK_US    20000
#define ROOM_RETRY_US   10000000u
#define ROOM_RETRY_MAX  300000000u
#define ROOM_SWEEP_US   3600000000u
#define ROOM_BAD_S      (7 * 86400)         /* files that were moved aside are kept this long */
#define ROOM_BAD_BYTES  ((off_t)1 << 30)    /* and larger files are not kept */
#define ROOM_INDEX      ((uint64_t)1 << 18) /* free bytes that opening needs beside the copy */

/* Files that are moved aside; always to the same names, so at most one of each is kept. */
static const char *const room_files[] = {"data.mdb", "lock.mdb", "pages.kv"};

/* The path of one of the store's files. */
static void room_path(const struct store *st, char *out, size_t cap, const char *name)
{
    (void)snprintf(out, cap, "%s/%s", st->options.dir, name);
}

/* Lock the store. A process that was killed may have left a child that still holds the lock for a
 * moment, so this tries for half a second. */
static bool room_lock(int fd)
{
    /* flock() without waiting, so that a store in use is reported and not waited for. */
    for (int i = 0; i < ROOM_LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return true;
        clock_sleep_us(ROOM_LOCK_US);
    }
    return false;
}

/* Create the folder and lock it: two engines must not write to one store. */
static int room_open_lock(struct store *st)
{
    char path[4096];
    int rc;

    /* For this user alone: pages hold prompts. */
    if (mkdir(st->options.dir, 0700) == -1 && errno != EEXIST) {
        log_error("store: %s: %s", st->options.dir, strerror(errno));
        return ERR_IO;
    }
    if ((rc = own_folder("store", st->options.dir)) != ERR_OK)
        return rc;
    room_path(st, path, sizeof path, "engine.lock");
    if ((rc = own_open("store", path, O_RDWR | O_CREAT, &st->lock_fd)) != ERR_OK)
        return rc == ERR_NOT_FOUND ? ERR_IO : rc; /* the folder was removed just now */
    if (!room_lock(st->lock_fd)) {
        log_error("store: another engine uses %s; stop it, or set kv_store_dir", st->options.dir);
        return ERR_IN_USE;
    }
    return ERR_OK;
}

/* --- files that were moved aside -------------------------------------------------------------- */

/* Move the first n files aside; earlier ones of those names are overwritten. */
static void room_set_aside(const struct store *st, const char *why, size_t n)
{
    log_warn("store: %s in %s; it is moved aside as *.bad and begun anew", why, st->options.dir);
    for (size_t i = 0; i < n; i++) {
        struct stat file;
        char from[4096];
        char to[4096];

        room_path(st, from, sizeof from, room_files[i]);
        (void)snprintf(to, sizeof to, "%.4000s.bad", from);
        /* A page file can fill the disk by itself; keeping it would leave no room for the next
         * one. */
        if (stat(from, &file) == 0 && file.st_size > ROOM_BAD_BYTES) {
            log_warn("store: %s is too large to be kept; it is removed", from);
            (void)unlink(to); /* the earlier one, too */
            (void)unlink(from);
        } else if (rename(from, to) == -1 && errno != ENOENT) {
            log_warn("store: %s: %s", from, strerror(errno));
        }
    }
}

/* Remove files that were moved aside before this time, seconds. */
static void room_sweep(struct store *st, int64_t before_s)
{
    for (size_t i = 0; i < sizeof room_files / sizeof room_files[0]; i++) {
        struct stat file;
        char path[4096];

        (void)snprintf(path, sizeof path, "%.4000s/%s.bad", st->options.dir, room_files[i]);
        /* ctime is the time of the rename. */
        if (lstat(path, &file) == 0 && (int64_t)file.st_ctime <= before_s && unlink(path) == 0)
            log_info("store: %s is removed", path);
    }
    st->swept_us = clock_us();
}

/* --- opening -------------------------------------------------------------------------------- */

/* A damaged index makes the page file useless as well, so both are moved aside. */
static int room_open_index(struct store *st)
{
    size_t n = sizeof room_files / sizeof room_files[0];
    int rc = store_db_begin(st->db, st->options.dir, &st->format, STORE_MAP_BYTES);

    if (rc == ERR_CORRUPT || rc == ERR_VERSION) {
        room_set_aside(st, rc == ERR_VERSION ? "pages of another size" : "a damaged index", n);
        rc = store_db_begin(st->db, st->options.dir, &st->format, STORE_MAP_BYTES);
    }
    return rc;
}

/* Find or add the namespace of this model. An index that cannot add it still serves. */
static int room_open_space(struct store *st)
{
    struct store_space space = {.fingerprint = st->options.namespace_id};
    uint32_t index;
    int rc;

    /* The name is for people; the fingerprint is the key. */
    (void)snprintf(space.name, sizeof space.name, "%s", st->options.namespace_name);
    rc = store_db_space(st->db, &space, &index);
    if (rc == ERR_OK)
        st->space = index;
    return rc;
}

/* The page file is opened after the index, because a damaged index makes it useless. */
static int room_open_file(struct store *st)
{
    struct stat file;
    char path[4096];
    int rc;

    room_path(st, path, sizeof path, "pages.kv");
    rc = own_open("store", path, O_RDWR | O_CREAT, &st->file_fd);
    if (rc != ERR_OK)
        return rc == ERR_NOT_FOUND ? ERR_IO : rc;
    /* Without O_DIRECT, on file systems that lack it, writes go through the page cache. */
    (void)fcntl(st->file_fd, F_SETFL, O_DIRECT);
    if (fstat(st->file_fd, &file) == -1) {
        log_error("store: %s: %s", path, strerror(errno));
        return ERR_IO;
    }
    st->file_bytes = (uint64_t)file.st_size;
    return ERR_OK;
}

/* fsync() of a folder makes its entries durable: without it a file that was just created may be
 * missing after a power cut. */
static void room_sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd == -1 || fsync(fd) == -1)
        log_warn("store: %s cannot be synced: %s; a power cut may lose pages", path,
                 strerror(errno));
    if (fd != -1)
        (void)close(fd);
}

/* The folder's entries must be on disk before anything is written to the new files: after a power
 * cut, the old index under its old name would lack all that was written since. */
static void room_sync_folders(const struct store *st)
{
    char above[4096];

    room_path(st, above, sizeof above, "..");
    room_sync_folder(st->options.dir);
    room_sync_folder(above);
}

/* Hit rates as on disk, unless newer ones were set. */
static void room_take_rates(struct store *st)
{
    (void)pthread_mutex_lock(&st->lock);
    /* Rates that the engine has set since the start are newer. */
    if (!st->rates_marked)
        st->n_rates = store_db_read_rates(st->db, st->rates);
    (void)pthread_mutex_unlock(&st->lock);
}

/* Each change of the mode starts the interval between attempts anew, and lets store_scrub_changed()
 * look at all changes again. */
static void room_set_mode(struct store *st, enum store_mode mode)
{
    (void)pthread_mutex_lock(&st->lock);
    st->mode = mode;
    st->n_scrubbed = 0;
    (void)pthread_mutex_unlock(&st->lock);
    st->tried_us = clock_us();
    st->try_next_us = st->options.retry_us != 0 ? st->options.retry_us : ROOM_RETRY_US;
    /* Logged once per change, because the operator has to make room. */
    if (mode == STORE_READING)
        log_warn("store: %s has no room for the index, or it cannot be written: its pages are read "
                 "and none is added until that ends",
                 st->options.dir);
}

/* The order matters: the lock keeps other engines out before anything is read or moved aside. */
static int room_attach(struct store *st)
{
    int rc = room_open_lock(st);

    if (rc == ERR_OK)
        rc = room_open_index(st);
    if (rc == ERR_OK)
        rc = room_open_file(st);
    if (rc != ERR_OK)
        return rc;
    room_sync_folders(st);
    room_sweep(st, (int64_t)clock_unix_s() - ROOM_BAD_S);
    if (room_open_space(st) != ERR_OK)
        st->space = STORE_SPACES_MAX; /* no room for a new one: no page is of this model */
    rc = store_load_index(st);
    if (rc == ERR_OK)
        room_take_rates(st);
    return rc;
}

/* All errors but ERR_IN_USE mean "try again later" to the caller, so they are made one. */
int store_attach(struct store *st)
{
    int rc = room_attach(st);

    /* The time of the attempt, whether or not it succeeds: attempts are made at intervals. */
    st->tried_us = clock_us();
    if (rc != ERR_OK) {
        /* room_attach() may have opened some of the files, which store_detach() closes. */
        store_detach(st);
        if (rc == ERR_CORRUPT || rc == ERR_VERSION || rc == ERR_NOT_FOUND)
            return ERR_IO;
        return rc;
    }
    /* Without a number in the table of spaces, pages of this model cannot be labelled and so not
     * be written. */
    if (store_db_writes(st->db) && st->space != STORE_SPACES_MAX)
        room_set_mode(st, STORE_WRITING);
    else
        room_set_mode(st, STORE_READING);
    return ERR_OK;
}

void store_detach(struct store *st)
{
    /* Every part accepts that it was not opened. */
    if (st->db != NULL)
        store_db_end(st->db);
    if (st->file_fd != -1)
        (void)close(st->file_fd); /* everything of importance was synced */
    if (st->lock_fd != -1)
        (void)close(st->lock_fd);
    st->file_fd = -1;
    st->lock_fd = -1;
}

/* --- while it runs -------------------------------------------------------------------------- */

/* An attempt to write again needs room for a copy of the index (store_db_begin()). Pages are
 * written only while the reserve stays free; the reserve is left to other programs. */

/* Free bytes for users other than root; a file system that reports nothing has enough. */
static uint64_t room_free(const struct store *st)
{
    struct statvfs fs;

    if (statvfs(st->options.dir, &fs) == -1)
        return INT64_MAX;
    return (uint64_t)fs.f_bavail * fs.f_frsize;
}

/* Files that were moved aside are removed first when the disk is short. The reserve is left to
 * other programs. */
void store_measure_room(struct store *st)
{
    uint64_t room = room_free(st), wants = st->options.reserve_bytes + st->format.slot_bytes;

    /* Short of room. */
    if (room < wants) {
        room_sweep(st, INT64_MAX); /* first of all, remove files that nothing needs */
        room = room_free(st);
    }
    if (room > INT64_MAX)
        room = INT64_MAX;
    st->room_bytes =
        room < st->options.reserve_bytes ? 0 : (int64_t)(room - st->options.reserve_bytes);
}

/* Is there room for a copy of the index? Checking costs much less than trying. */
static bool room_has_copy(const struct store *st)
{
    struct stat file;
    char path[4096];

    room_path(st, path, sizeof path, "data.mdb");
    return stat(path, &file) == -1 || room_free(st) >= (uint64_t)file.st_size + ROOM_INDEX;
}

/* Mark all records as changed: the new index has none of them. */
static void room_write_all(struct store *st)
{
    (void)pthread_mutex_lock(&st->lock);
    for (uint32_t i = 0; i < st->n_slots; i++) {
        if (st->entries[i].used)
            store_note_changed(st, (int32_t)i);
    }
    (void)pthread_mutex_unlock(&st->lock);
}

/* Open the index again for writing. The index in memory stays as it is. */
static void room_reopen(struct store *st)
{
    bool anew = false;
    int rc;

    store_db_end(st->db);
    rc = store_db_begin(st->db, st->options.dir, &st->format, STORE_MAP_BYTES);
    if (rc == ERR_CORRUPT || rc == ERR_VERSION) {
        room_set_aside(st, "a damaged index", 1);
        anew = true;
        rc = store_db_begin(st->db, st->options.dir, &st->format, STORE_MAP_BYTES);
    }
    if (rc == ERR_OK && store_db_writes(st->db))
        rc = room_open_space(st);
    /* Still no room: the old index is open for reading again, and the next attempt comes later. */
    if (rc != ERR_OK || !store_db_writes(st->db))
        return;
    room_sync_folders(st);
    room_set_mode(st, STORE_WRITING);
    if (anew)
        room_write_all(st);
    log_info("store: %s is written to again", st->options.dir);
}

/* Is it time for the next attempt? The interval doubles with each one. */
static bool room_is_time(struct store *st)
{
    uint64_t now = clock_us();

    if (now - st->tried_us < st->try_next_us)
        return false;
    st->tried_us = now;
    if (st->options.retry_us == 0)
        st->try_next_us =
            2 * st->try_next_us < ROOM_RETRY_MAX ? 2 * st->try_next_us : ROOM_RETRY_MAX;
    return true;
}

/* Called by the I/O thread between batches. The cases are the modes of the picture above. */
void store_tend(struct store *st)
{
    switch (st->mode) { /* only this thread changes it */
    case STORE_WRITING:
        if (!store_db_writes(st->db))
            room_set_mode(st, STORE_READING);
        else if (clock_us() - st->swept_us > ROOM_SWEEP_US)
            room_sweep(st, (int64_t)clock_unix_s() - ROOM_BAD_S);
        return;
    case STORE_READING:
        if (room_is_time(st) && room_has_copy(st))
            room_reopen(st);
        return;
    case STORE_AWAY:
        if (room_is_time(st) && store_attach(st) == ERR_OK)
            log_info("store: %s can be used again", st->options.dir);
        return;
    }
}

/* With a working disk only the hourly sweep is due; otherwise the next attempt. */
uint64_t store_tend_in_us(const struct store *st)
{
    uint64_t past = clock_us() - st->tried_us;

    if (st->mode == STORE_WRITING)
        return ROOM_SWEEP_US;
    if (past < st->try_next_us)
        return st->try_next_us - past;
    return 0;
}
