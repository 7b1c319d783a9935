/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: what kept.h and kept_db.h promise: records come back to the byte, the oldest go first, the
 * file keeps its bound, a writer that is killed loses nothing that it said was written, damage is
 * set aside. Method: a file in a folder of its own, records made of their number, children that are
 * killed, bytes overwritten. */
#include <fcntl.h>
#include <lmdb.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/must.h"
#include "front/kept/kept.h"
#include "tests/tap.h"

#define MIB ((uint64_t)1 << 20)

static char folder[] = "/tmp/quire-kept-XXXXXX";
static char dir[64];

static void wipe(void)
{
    char command[200];

    (void)snprintf(command, sizeof command, "rm -rf %s/*", folder);
    must(system(command) == 0);
}

static struct hash name_of(unsigned n)
{
    char id[32];

    (void)snprintf(id, sizeof id, "resp_%u", n);
    return kept_name("tenant", id);
}

/* Record n, whose texts are a pattern of n. */
static struct kept_record make(unsigned n, size_t response_len, size_t input_len)
{
    static char bytes[4 << 20];

    must(response_len + input_len <= sizeof bytes);
    for (size_t i = 0; i < response_len + input_len; i++)
        bytes[i] = (char)(n * 31 + i * 7 + i / 256);
    return (struct kept_record){.name = name_of(n),
                                .created_s = clock_unix_s(),
                                .response = bytes,
                                .response_len = response_len,
                                .input = bytes + response_len,
                                .input_len = input_len};
}

static int put(struct kept_db *db, unsigned n, size_t response_len, size_t input_len)
{
    struct kept_record r = make(n, response_len, input_len);
    const struct kept_record *one = &r;

    return kept_db_put(db, &one, 1);
}

static int get(struct kept_db *db, unsigned n, struct arena *a, struct kept_record *out)
{
    struct hash name = name_of(n);

    return kept_db_get(db, &name, INT64_MIN, a, out);
}

/* Is record n there, and as it was made? */
static bool has(struct kept_db *db, unsigned n, size_t response_len, size_t input_len)
{
    struct kept_record want = make(n, response_len, input_len);
    struct arena a = {0};
    struct kept_record got;
    bool good = get(db, n, &a, &got) == ERR_OK && got.response_len == response_len &&
                got.input_len == input_len && got.created_s <= clock_unix_s() &&
                memcmp(got.response, want.response, response_len) == 0 &&
                memcmp(got.input, want.input, input_len) == 0;

    arena_reset(&a);
    return good;
}

static struct kept_db *open_db(uint64_t bytes_max)
{
    struct kept_db *db = NULL;

    must_ok(kept_db_open(&db, dir, bytes_max, true));
    return db;
}

static uint64_t file_bytes(void)
{
    char path[200];
    struct stat st;

    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    return stat(path, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static void test_sizes(void)
{
    static const size_t sizes[] = {0,    1,    63,   64,   1951,   1952,
                                   1953, 2016, 2017, 4096, 100000, 2 << 20};
    struct kept_db *db = open_db(64 * MIB);
    unsigned n = sizeof sizes / sizeof sizes[0];
    struct arena a = {0};
    struct kept_record r;
    struct hash name;
    bool all = true;

    for (unsigned i = 0; i < n; i++)
        must_ok(put(db, i, sizes[i], sizes[n - 1 - i] / 2));
    for (unsigned i = 0; i < n; i++)
        all = all && has(db, i, sizes[i], sizes[n - 1 - i] / 2);
    ok(all, "records of 0 to 3 MiB come back to the byte");
    kept_db_close(db);
    db = open_db(64 * MIB);
    for (unsigned i = 0; i < n; i++)
        all = all && has(db, i, sizes[i], sizes[n - 1 - i] / 2);
    ok(all, "and when the file is opened again");
    is_int(get(db, n, &a, &r), ERR_NOT_FOUND, "one that was never put");
    must_ok(put(db, 3, 10, 20));
    ok(has(db, 3, 10, 20), "a record in place of its elder");
    name = name_of(3);
    is_int(kept_db_remove(db, &name), ERR_OK, "a record is removed");
    is_int(get(db, 3, &a, &r), ERR_NOT_FOUND, "    and gone");
    is_int(kept_db_remove(db, &name), ERR_NOT_FOUND, "    once");
    ok(has(db, 2, sizes[2], sizes[n - 3] / 2) && has(db, 4, sizes[4], sizes[n - 5] / 2),
       "    its neighbours stay");
    name = kept_name("other", "resp_4");
    is_int(kept_db_get(db, &name, INT64_MIN, &a, &r), ERR_NOT_FOUND, "another tenant has none");
    name = kept_name("tenantresp", "_4");
    is_int(kept_db_get(db, &name, INT64_MIN, &a, &r), ERR_NOT_FOUND, "names do not run together");
    arena_reset(&a);
    kept_db_close(db);
    wipe();
}

static void test_bound(void)
{
    struct kept_db *db = open_db(2 * MIB);
    unsigned oldest = 0, n = 300, gaps = 0;

    for (unsigned i = 0; i < n; i++)
        must_ok(put(db, i, 7000 + i * 40, 3000));
    while (oldest < n && !has(db, oldest, 7000 + oldest * 40, 3000))
        oldest++;
    for (unsigned i = oldest; i < n; i++)
        gaps += !has(db, i, 7000 + i * 40, 3000);
    ok(oldest > 150 && oldest < n - 40 && gaps == 0,
       "of 300 records in 2 MiB the last %u are there, without a gap", n - oldest);
    ok(file_bytes() <= 2 * MIB, "the file has %llu bytes", (unsigned long long)file_bytes());
    ok(!kept_db_takes(db, MIB) && kept_db_takes(db, 300000), "one takes a quarter at most");
    kept_db_close(db);
    wipe();
}

static void test_age(void)
{
    struct kept_db *db = open_db(2 * MIB);
    struct arena a = {0};
    struct kept_record r;
    struct hash name;

    for (unsigned i = 0; i < 5; i++) {
        const struct kept_record *one = &r;

        r = make(i, 3000, 100);
        r.created_s = 1000 + i;
        must_ok(kept_db_put(db, &one, 1));
    }
    name = name_of(2);
    is_int(kept_db_get(db, &name, 1003, &a, &r), ERR_NOT_FOUND, "too old: as if it were not there");
    is_int(kept_db_expire(db, 1003, 2), ERR_OK, "removed, some at a time");
    is_int(get(db, 1, &a, &r), ERR_NOT_FOUND, "    the oldest first");
    is_int(get(db, 2, &a, &r), ERR_OK, "    the rest later");
    is_int(kept_db_expire(db, 1003, 100), ERR_OK, "all that are too old");
    is_int(get(db, 2, &a, &r), ERR_NOT_FOUND, "    are gone");
    is_int(get(db, 3, &a, &r), ERR_OK, "    and no younger one");
    arena_reset(&a);
    kept_db_close(db);
    wipe();
}

/* A process that puts records and says each that was put, until it is killed. */
static _Noreturn void writer(int fd, unsigned from)
{
    struct kept_db *db = open_db(8 * MIB);

    for (unsigned n = from;; n++) {
        must_ok(put(db, n, 5000 + n % 7 * 1000, n % 3 * 4000));
        must(write(fd, &n, sizeof n) == sizeof n);
    }
}

static void test_kills(void)
{
    unsigned lost = 0, written = 0, from = 0;
    char bad[100];

    for (int round = 0; round < 20; round++) {
        unsigned n, first = from;
        int fds[2];
        pid_t child;
        struct kept_db *db;

        must(pipe(fds) == 0);
        child = fork();
        if (child == 0)
            writer(fds[1], from);
        (void)close(fds[1]);
        for (int i = 0; i < 5 && read(fds[0], &n, sizeof n) == sizeof n; i++)
            from = n + 1;
        clock_sleep_us((uint64_t)round * 997);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        while (read(fds[0], &n, sizeof n) == sizeof n)
            from = n + 1;
        (void)close(fds[0]);
        db = open_db(8 * MIB);
        for (unsigned i = first; i < from; i++, written++)
            lost += !has(db, i, 5000 + i % 7 * 1000, i % 3 * 4000);
        kept_db_close(db);
        from++; /* one may have been written unsaid */
    }
    is_int(lost, 0, "of %u records of 20 killed writers", written);
    (void)snprintf(bad, sizeof bad, "%s.bad", dir);
    ok(written >= 100 && access(bad, F_OK) != 0, "no file was called damaged");
    wipe();
}

/* Overwrite or cut the file; then it is opened, asked and written by a child. Its exit status. */
static int damage(uint64_t at, size_t len, bool cut)
{
    char path[200], junk[4096];
    int status = 0, fd;
    pid_t child;

    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    memset(junk, 0xa5, sizeof junk);
    fd = open(path, O_RDWR);
    must(fd != -1);
    if (cut)
        must(ftruncate(fd, (off_t)at) == 0);
    else
        must(pwrite(fd, junk, len, (off_t)at) == (ssize_t)len);
    (void)close(fd);
    child = fork();
    if (child == 0) {
        struct kept_db *db = open_db(8 * MIB);

        for (unsigned i = 0; i < 60; i++) {
            struct arena a = {0};
            struct kept_record r;
            int rc = get(db, i, &a, &r);

            if (rc == ERR_OK && !has(db, i, 9000, 500))
                _exit(9);
            arena_reset(&a);
        }
        _exit(put(db, 1000, 500, 500) == ERR_OK && has(db, 1000, 500, 500) ? 0 : 8);
    }
    must(waitpid(child, &status, 0) == child);
    return status;
}

static void test_damage(void)
{
    static const struct {
        const char *name;
        uint64_t at;
        size_t len;
        bool cut;
    } cases[] = {
        {"both heads", 0, 4096, false},
        {"the file cut in half", 300000, 0, true},
        {"the file cut to a page", 4096, 0, true},
        {"a file of no bytes", 0, 0, true},
        {"a page in the middle", 40 * 4096, 4096, false},
        {"a page behind", 100 * 4096, 4096, false},
    };
    char bad[100];

    (void)snprintf(bad, sizeof bad, "%s.bad", dir);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct kept_db *db = open_db(8 * MIB);
        int status;

        for (unsigned i = 0; i < 60; i++)
            must_ok(put(db, i, 9000, 500));
        kept_db_close(db);
        status = damage(cases[c].at, cases[c].len, cases[c].cut);
        ok(WIFEXITED(status) && WEXITSTATUS(status) == 0,
           "%s: it is used again, no wrong byte (%x)", cases[c].name, (unsigned)status);
        wipe();
    }
    for (unsigned i = 0; i < 30; i++) { /* a few bytes, anywhere */
        struct kept_db *db = open_db(8 * MIB);
        int status;

        for (unsigned k = 0; k < 6; k++)
            must_ok(put(db, k, 9000, 500));
        kept_db_close(db);
        status = damage((uint64_t)i * 104729 % file_bytes(), 8, false);
        if (!WIFEXITED(status) || WEXITSTATUS(status) == 9)
            ok(false, "8 bytes overwritten, case %u: %x", i, (unsigned)status);
        wipe();
    }
    ok(true, "30 files of 8 overwritten bytes: no wrong byte, no signal");
}

/* Take the records out of the file, and leave the names. */
static void drop_records(void)
{
    MDB_env *env = NULL;
    MDB_txn *txn = NULL;
    MDB_dbi records;

    must(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 4) == 0 &&
         mdb_env_open(env, dir, 0, 0600) == 0 && mdb_txn_begin(env, NULL, 0, &txn) == 0 &&
         mdb_dbi_open(txn, "records", 0, &records) == 0 && mdb_drop(txn, records, 0) == 0 &&
         mdb_txn_commit(txn) == 0);
    mdb_env_close(env);
}

/* A name that leads to no record is damage, to readers and writers alike. */
static void test_lost_record(void)
{
    for (int way = 0; way < 2; way++) {
        struct kept_db *db = open_db(2 * MIB);
        struct hash name = name_of(3);
        struct kept_record r;
        struct arena a = {0};
        int rc;

        must_ok(put(db, 3, 500, 500));
        kept_db_close(db);
        drop_records();
        db = open_db(2 * MIB);
        rc = way == 0 ? get(db, 3, &a, &r) : kept_db_remove(db, &name);
        is_int(rc, ERR_CORRUPT, "%s: a name whose record is lost", way == 0 ? "get" : "remove");
        ok(kept_db_is_broken(db) == (way == 1),
           "a writer calls the file damaged, a reader does not");
        kept_db_close(db);
        arena_reset(&a);
        wipe();
    }
}

static void test_owners(void)
{
    struct kept_db *db = open_db(2 * MIB);
    char path[200], other[220];

    kept_db_close(db);
    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    (void)snprintf(other, sizeof other, "%s/second", folder);
    must(link(path, other) == 0);
    is_int(kept_db_open(&db, dir, 2 * MIB, true), ERR_FOREIGN, "a file with a second name");
    must(unlink(other) == 0 && chmod(dir, 0777) == 0);
    is_int(kept_db_open(&db, dir, 2 * MIB, true), ERR_FOREIGN, "a folder that everybody may write");
    wipe();
}

/* A disk that fills up: writes fail, all that was written is there, and is there again later. */
static void test_full_disk(void)
{
    struct kept_db *db;
    unsigned n = 0;
    bool all = true;
    int rc = ERR_OK;

    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", folder, "tmpfs", 0, "size=1m") != 0) {
        ok(true, "a full disk # SKIP no tmpfs can be mounted");
        return;
    }
    db = open_db(64 * MIB);
    while (n < 1000 && (rc = put(db, n, 9000, 500)) == ERR_OK)
        n++;
    ok(rc == ERR_NO_MEMORY || rc == ERR_IO, "a full disk: the record after %u is refused", n);
    for (unsigned i = 0; i < n; i++)
        all = all && has(db, i, 9000, 500);
    ok(all && n > 30, "those before are there");
    kept_db_close(db);
    db = open_db(64 * MIB);
    for (unsigned i = 0; i < n; i++)
        all = all && has(db, i, 9000, 500);
    ok(all, "and when the file is opened again");
    must(mount("tmpfs", folder, "tmpfs", MS_REMOUNT, "size=4m") == 0);
    is_int(put(db, n, 9000, 500), ERR_OK, "with room again it is taken");
    kept_db_close(db);
    must(umount(folder) == 0);
}

/* No room for the file itself, of any size: an error, no signal. */
static void test_no_room(void)
{
    unsigned n_open = 0, n_refused = 0, n_died = 0;

    for (int kib = 4; kib <= 256; kib += 4) {
        char size[32];
        int status = 0;
        pid_t child;

        (void)snprintf(size, sizeof size, "size=%dk", kib);
        if (mount("tmpfs", folder, "tmpfs", 0, size) != 0) {
            ok(true, "no room for the file # SKIP no tmpfs can be mounted");
            return;
        }
        child = fork();
        if (child == 0) {
            struct kept_db *db = NULL;

            _exit(kept_db_open(&db, dir, 64 * MIB, true) != ERR_OK ? 1
                  : put(db, 1, 9000, 500) == ERR_OK                ? 0
                                                                   : 2);
        }
        must(waitpid(child, &status, 0) == child && umount(folder) == 0);
        n_died += !WIFEXITED(status);
        n_open += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        n_refused += WIFEXITED(status) && WEXITSTATUS(status) != 0;
    }
    ok(n_died == 0 && n_open > 5 && n_refused > 5, "disks of 4 to 256 KiB: %u refused, %u died",
       n_refused, n_died);
}

static bool ends(const struct kept_job *job)
{
    uint64_t from_us = clock_us();

    while (kept_state(job) == KEPT_WAITS && clock_us() - from_us < 30000000)
        clock_sleep_us(1000);
    return kept_state(job) != KEPT_WAITS;
}

static void test_thread(void)
{
    struct kept_record r = make(1, 5000, 3000);
    int fd = eventfd(0, EFD_NONBLOCK);
    struct kept_job *job, *large, *left;
    struct kept *k = NULL;
    struct arena a = {0};
    uint64_t n;

    must_ok(kept_open(&k, folder, 2 * MIB, 1, fd));
    job = kept_write(k, &r);
    ok(job != NULL && ends(job), "a record is written by the thread");
    is_int(kept_state(job), KEPT_WRITTEN, "    and is on disk");
    ok(read(fd, &n, sizeof n) == sizeof n && kept_has_news(k) && !kept_has_news(k),
       "    which it says");
    kept_leave(job);
    is_int(kept_read(k, &r.name, &a, &r), ERR_OK, "    and is read");
    r = make(2, MIB, MIB / 2);
    large = kept_write(k, &r);
    ok(large != NULL && ends(large) && kept_state(large) == KEPT_FAILED, "one that is too large");
    kept_leave(large);
    r = make(3, 100, 100);
    fault_arm(FAULT_kept_commit, 1, false);
    job = kept_write(k, &r);
    ok(job != NULL && ends(job) && kept_state(job) == KEPT_FAILED, "a disk that is full");
    kept_leave(job);
    left = kept_write(k, &r);
    kept_leave(left);
    kept_close(k);
    must_ok(kept_open(&k, folder, 2 * MIB, 1, fd));
    is_int(kept_read(k, &r.name, &a, &r), ERR_OK,
           "answers without a reader are written before the end");
    is_int(kept_remove(k, &r.name), ERR_OK, "and removed");
    is_int(kept_remove(k, &r.name), ERR_NOT_FOUND, "once");
    kept_close(k);
    arena_reset(&a);
    (void)close(fd);
    wipe();
}

int main(void)
{
    must(mkdtemp(folder) != NULL);
    (void)snprintf(dir, sizeof dir, "%s/responses", folder);
    test_sizes();
    test_bound();
    test_age();
    test_kills();
    test_damage();
    test_lost_record();
    test_owners();
    test_thread();
    test_full_disk();
    test_no_room();
    (void)rmdir(folder);
    return tap_done();
}
