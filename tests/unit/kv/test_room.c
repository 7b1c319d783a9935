/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a full disk costs neither the store nor the process that uses it: nothing is set aside,
 * no page is lost, and when there is room again the store goes on. Method: a real store on a tmpfs
 * of its own, filled so that 0 to 128 KB are free in steps of one block; each life is a process of
 * its own, so that a signal counts as a failure and not as the end of the test. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "kv/host.h"
#include "kv/store.h"
#include "kv/store_db.h"
#include "tests/tap.h"

#define BLOCK      16
#define PAGE_BYTES 6000
#define SLOT_BYTES 12288
#define N_DEEP     5
#define N_PAGES    80
#define N_OLD      60 /* pages that lie there before the disk fills up */
#define N_SLOTS    200
#define DISK       "8m"
#define STEP_BYTES 4096
#define N_STEPS    33 /* 0 to 128 KB */
#define RETRY_US   20000
#define WAIT_US    30000000u
#define RESERVE    ((size_t)1 << 20)

#include "tests/unit/kv/chains.h" /* wants these */

static char mount_dir[64];
static char dir[96];
static struct page_of pages[N_PAGES];

/* --- the disk ------------------------------------------------------------------------------ */

static bool disk_mount(void)
{
    FILE *f;
    int uid = (int)getuid(), gid = (int)getgid();

    if (unshare(CLONE_NEWNS) == -1) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) == -1)
            return false;
        f = fopen("/proc/self/setgroups", "w");
        if (f != NULL && fputs("deny", f) >= 0)
            (void)fclose(f);
        f = fopen("/proc/self/uid_map", "w");
        if (f != NULL && fprintf(f, "0 %d 1", uid) > 0)
            (void)fclose(f);
        f = fopen("/proc/self/gid_map", "w");
        if (f != NULL && fprintf(f, "0 %d 1", gid) > 0)
            (void)fclose(f);
    }
    return mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
           mount("none", mount_dir, "tmpfs", 0, "size=" DISK) == 0;
}

static size_t disk_free(void)
{
    struct statvfs s;

    must_ok(statvfs(mount_dir, &s));
    return (size_t)s.f_bavail * s.f_frsize;
}

static void disk_empty(void)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/filler", mount_dir);
    (void)unlink(path);
}

/* Leave just so much. */
static void disk_fill(size_t left)
{
    char path[128];
    int fd;

    disk_empty();
    (void)snprintf(path, sizeof path, "%s/filler", mount_dir);
    fd = open(path, O_WRONLY | O_CREAT, 0600);
    must(disk_free() > left);
    must_ok(posix_fallocate(fd, 0, (off_t)(disk_free() - left)));
    (void)close(fd);
    must(disk_free() == left);
}

static void wipe(void)
{
    char command[128];

    disk_empty();
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    (void)!system(command);
}

static bool there(const char *name)
{
    char path[160];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

/* --- one life ------------------------------------------------------------------------------ */

static int begin_with(struct store **st, size_t reserve_bytes)
{
    struct store_options o = {.dir = dir,
                              .max_bytes = (size_t)N_SLOTS * SLOT_BYTES,
                              .reserve_bytes = reserve_bytes,
                              .retry_us = RETRY_US,
                              .page_bytes = PAGE_BYTES,
                              .page_tokens = BLOCK,
                              .n_buffers = 4,
                              .namespace_name = "test"};

    return store_open(st, &o);
}

static int begin(struct store **st)
{
    return begin_with(st, 0);
}

static void save(struct store *st, int k)
{
    struct page_label label = {
        .name = pages[k].name, .parent = pages[k].parent, .tokens = pages[k].tokens};
    void *buffer;

    while ((buffer = store_buffer(st)) == NULL)
        store_flush(st);
    memcpy(buffer, pages[k].payload, PAGE_BYTES);
    store_save(st, buffer, &label);
}

/* 1: came back right; 0: a miss; -1: wrong. */
static int load(struct store *st, int k)
{
    struct pollfd f = {.fd = store_event_fd(st), .events = POLLIN};
    struct store_done done;
    int good;

    if (store_load(st, &pages[k].name, pages[k].tokens, 42) != ERR_OK)
        return 0;
    while (!store_poll(st, &done)) {
        if (poll(&f, 1, 10000) != 1)
            return -1;
    }
    if (done.rc != ERR_OK)
        return 0;
    good = memcmp(done.payload, pages[k].payload, PAGE_BYTES) == 0 ? 1 : -1;
    store_release(st, done.payload);
    return good;
}

static int count(struct store *st, int n)
{
    int good = 0;

    for (int k = 0; k < n; k++) {
        int r = load(st, k);

        if (r < 0)
            return -1;
        good += r;
    }
    return good;
}

/* In the child: its exit status is how many of the old pages were there. */
static _Noreturn void live(bool writes)
{
    struct store *st;
    int good;

    if (begin(&st) != ERR_OK)
        _exit(254);
    good = count(st, N_OLD);
    for (int k = N_OLD; k < N_PAGES && writes; k++)
        save(st, k);
    store_flush(st);
    if (count(st, N_OLD) != good)
        _exit(253);
    store_close(st);
    _exit(good < 0 ? 252 : good);
}

/* How many old pages a whole life sees; negative: it died of that signal. */
static int life(bool writes)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        live(writes);
    (void)waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Is every record's page whole? */
static bool verify(void)
{
    char command[300];
    const char *build = getenv("builddir");

    (void)snprintf(command, sizeof command, "%s/lmdb-dump --verify --summary %s >/dev/null",
                   build == NULL ? "." : build, dir);
    return system(command) == 0;
}

/* --- the tests ----------------------------------------------------------------------------- */

enum lock_state { LOCK_WHOLE, LOCK_HOLE, LOCK_NONE };

/* What the process before left of lock.mdb: all, a file without blocks as its death by SIGBUS
 * leaves it, nothing. */
static void set_lock(enum lock_state state)
{
    char path[160];

    (void)snprintf(path, sizeof path, "%s/lock.mdb", dir);
    if (state == LOCK_HOLE) {
        must_ok(truncate(path, 0));
        must_ok(truncate(path, 8192));
    } else if (state == LOCK_NONE) {
        must_ok(unlink(path));
    }
}

static void test_steps(enum lock_state state, const char *name)
{
    int n_died = 0, n_aside = 0, n_lost = 0, n_after = 0, n_bad = 0;

    for (int step = 0; step < N_STEPS; step++) {
        size_t left = (size_t)step * STEP_BYTES;

        wipe();
        {
            struct store *st;

            must_ok(begin(&st));
            for (int k = 0; k < N_OLD; k++)
                save(st, k);
            store_flush(st);
            store_close(st);
        }
        set_lock(state);
        disk_fill(left);
        for (int i = 0; i < 2; i++) {
            int n = life(true);

            n_died += n < 0 || n > N_OLD;
            n_lost += n != N_OLD;
        }
        n_aside += there("data.mdb.bad") || there("pages.kv.bad");
        disk_empty();
        n_after += life(true) != N_OLD;
        n_aside += there("data.mdb.bad") || there("pages.kv.bad");
        n_bad += !verify();
    }
    is_int(n_died, 0, "%s, 0 to 128 KB free: no life on a full disk dies or fails", name);
    is_int(n_lost, 0, "and each has all pages that lay there");
    is_int(n_aside, 0, "nothing is set aside");
    is_int(n_after, 0, "with room again all are there");
    is_int(n_bad, 0, "and lmdb-dump --verify finds every page whole");
    wipe();
}

/* Wait for a mode: the I/O thread tries every RETRY_US. */
static bool becomes(struct store *st, enum store_mode mode)
{
    for (unsigned us = 0; us < WAIT_US && store_mode(st) != mode; us += 1000)
        clock_sleep_us(1000);
    return store_mode(st) == mode;
}

static void save_old(struct store *st)
{
    for (int k = 0; k < N_OLD; k++)
        save(st, k);
    store_flush(st);
}

/* A store that is begun on a full disk has no pages until there is room, and then takes them. */
static void test_away(void)
{
    struct store *st;

    must_ok(mkdir(dir, 0700));
    disk_fill(0);
    must_ok(begin(&st));
    is_int(store_mode(st), STORE_AWAY, "a new store on a full disk is away");
    save_old(st);
    is_int(count(st, N_OLD), 0, "it has no pages");
    ok(!there("data.mdb"), "and nothing half done is left behind");
    disk_empty();
    ok(becomes(st, STORE_WRITING), "when there is room it comes back by itself");
    save_old(st);
    is_int(count(st, N_OLD), N_OLD, "and takes pages");
    store_close(st);
    ok(verify(), "all of them whole");
    wipe();
}

/* Read alone for a while; what was dropped meanwhile is gone, what was said is kept. */
static void test_reading(bool dies)
{
    struct store *st;
    int status = 0;
    pid_t pid;

    must_ok(begin(&st));
    save_old(st);
    store_close(st);
    disk_fill(0);
    pid = dies ? fork() : 0;
    if (pid > 0) {
        (void)waitpid(pid, &status, 0);
        is_int(WEXITSTATUS(status), 0, "a life that only reads can drop pages");
    } else {
        must_ok(begin(&st));
        must(store_mode(st) == STORE_READING);
        store_retain(st, &pages[0].name, retain_of(70, 0));
        for (int k = 0; k < 10; k++)
            (void)store_drop(st, &pages[k].name);
        store_flush(st);
        must(count(st, 10) == 0 && count(st, N_OLD) == N_OLD - 10);
        if (dies)
            _exit(0);
        store_prove(st);
        disk_empty();
        ok(becomes(st, STORE_WRITING), "an index that had no room is written again later");
        save(st, N_OLD);
        store_flush(st);
        is_int(load(st, N_OLD), 1, "and takes pages");
        store_close(st);
        ok(verify(), "all of them whole");
    }
    disk_empty();
    must_ok(begin(&st));
    is_int(count(st, 10), 0, "what was dropped on a full disk does not come back");
    is_int(count(st, N_OLD), N_OLD - 10, "and nothing else is lost");
    store_close(st);
    wipe();
}

/* The page file leaves others their room: it grows no more, and its pages are exchanged. */
static void test_reserve(void)
{
    struct store *st;
    int n;

    must_ok(begin_with(&st, RESERVE));
    disk_fill(RESERVE + (size_t)20 * SLOT_BYTES);
    for (int k = 0; k < N_PAGES; k++) {
        save(st, k);
        store_flush(st);
    }
    n = count(st, N_PAGES);
    ok(n >= 10 && n <= 21, "%d pages lie where the reserve leaves room for 20", n);
    ok(disk_free() + 65536 >= RESERVE, "%zu bytes are still free", disk_free());
    is_int(load(st, N_PAGES - 1), 1, "the last one is there");
    store_prove(st);
    store_close(st);
    ok(verify(), "all of them whole");
    wipe();
}

static void damage(void)
{
    char path[160];
    int fd;

    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    fd = open(path, O_WRONLY);
    for (int i = 0; i < 200; i++)
        must(pwrite(fd, "damage", 6, i * 40) == 6);
    (void)close(fd);
}

/* What is set aside is there once, and goes when room is short. */
static void test_aside(void)
{
    struct store *st;

    for (int i = 0; i < 3; i++) {
        must_ok(begin(&st));
        save_old(st);
        store_close(st);
        damage();
    }
    must_ok(begin_with(&st, RESERVE));
    ok(there("data.mdb.bad") && there("pages.kv.bad"), "a damaged store is set aside");
    disk_fill(RESERVE / 2);
    save(st, 0);
    store_flush(st);
    ok(!there("data.mdb.bad") && !there("pages.kv.bad"), "and goes when room is short");
    ok(disk_free() > RESERVE / 2, "which there is more of then");
    is_int(load(st, 0), 1, "for a page, too");
    store_close(st);
    wipe();
}

/* --- the host tier --------------------------------------------------------------------------- */

static int host_pin(void *context, void *memory, size_t bytes)
{
    (void)context, (void)memory, (void)bytes;
    return ERR_OK;
}

static void host_unpin(void *context, void *memory)
{
    (void)context, (void)memory;
}

static void begin_host(struct host **h, const char *path)
{
    struct host_options o = {.path = path,
                             .max_bytes = (size_t)N_OLD * 8192,
                             .page_bytes = PAGE_BYTES,
                             .page_tokens = BLOCK,
                             .retry_us = RETRY_US,
                             .name = "test",
                             .pin = host_pin,
                             .unpin = host_unpin};

    must_ok(host_open(h, &o));
    host_wait(*h, WAIT_US);
}

/* How many of the first pages it takes, within some time. */
static int fill_host(struct host *h, int n)
{
    int n_filled = 0;

    for (int i = 0; i < 1000 && n_filled < n; i++) {
        struct page_label label = {.name = pages[n_filled].name,
                                   .parent = pages[n_filled].parent,
                                   .tokens = pages[n_filled].tokens};
        struct host_victim victim;
        uint64_t ticket;
        bool good;
        int32_t slot = host_take(h, &label, &victim);

        if (slot >= 0) {
            host_fill(h, slot, &label);
            memcpy(host_payload(h, slot), pages[n_filled].payload, PAGE_BYTES);
            host_filled(h, slot, true);
            n_filled++;
        } else {
            clock_sleep_us(200);
        }
        while (host_poll(h, &ticket, &good))
            continue;
    }
    return n_filled;
}

static int find_host(struct host *h, int n)
{
    int n_found = 0;

    for (int k = 0; k < n; k++)
        n_found += host_find(h, &pages[k].name, pages[k].tokens) >= 0;
    return n_found;
}

/* A tier that finds no memory when it opens, or when it grows, has none until there is some. */
static void test_host(void)
{
    struct host *h;
    char path[128];

    (void)snprintf(path, sizeof path, "%s/host", mount_dir);
    disk_fill(0);
    begin_host(&h, path);
    is_int(fill_host(h, 3) + host_n_slots(h), 0, "host memory on a full tmpfs takes no page");
    host_tick(h, 1);
    host_prove(h);
    disk_fill((size_t)40 * 4096); /* more than its labels take, less than a chunk of pages */
    clock_sleep_us(2 * RETRY_US);
    host_tick(h, 1);
    is_int(host_n_slots(h), N_OLD, "it opens when there is some room");
    is_int(fill_host(h, 3), 0, "and waits for more");
    disk_empty();
    clock_sleep_us(2 * RETRY_US);
    is_int(fill_host(h, 10), 10, "which it takes when there is");
    host_prove(h);
    host_close(h);
    begin_host(&h, path);
    is_int(find_host(h, 10), 10, "the next engine finds the pages");
    host_close(h);
    must_ok(chmod(path, 0620));
    begin_host(&h, path);
    is_int(find_host(h, 10) + fill_host(h, 3), 0, "a file that others may write is not used");
    must_ok(chmod(path, 0600));
    clock_sleep_us(2 * RETRY_US);
    host_tick(h, 1);
    host_wait(h, WAIT_US);
    is_int(find_host(h, 10), 10, "until they may not");
    host_close(h);
    (void)unlink(path);
    must_ok(symlink("/dev/null", path));
    begin_host(&h, path);
    is_int(fill_host(h, 3), 0, "nor is what a link leads to");
    host_close(h);
    (void)unlink(path);
}

int main(void)
{
    (void)snprintf(mount_dir, sizeof mount_dir, "/tmp/quire-room-XXXXXX");
    if (mkdtemp(mount_dir) == NULL)
        tap_skip_all("no temporary folder");
    if (!disk_mount()) {
        (void)rmdir(mount_dir);
        tap_skip_all("this process may not mount a tmpfs");
    }
    (void)snprintf(dir, sizeof dir, "%s/store", mount_dir);
    log_set_level(0);
    make_pages(pages, N_PAGES);
    test_steps(LOCK_WHOLE, "a lock file as it was");
    test_steps(LOCK_HOLE, "one without blocks");
    test_steps(LOCK_NONE, "none");
    test_away();
    test_reading(false);
    test_reading(true);
    test_reserve();
    test_aside();
    test_host();
    (void)umount2(mount_dir, MNT_DETACH);
    (void)rmdir(mount_dir);
    return tap_done();
}
