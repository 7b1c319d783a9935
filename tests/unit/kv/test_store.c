/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a page comes back as it was written or not at all: over restarts, kill -9, damage of
 * every file, full disks and a bound on its size. Method: a real store in a temporary folder,
 * payloads that can be recomputed from their number. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "ipc/prefix.h"
#include "kv/store.h"
#include "kv/store_db.h"
#include "tests/tap.h"

#define BLOCK      16
#define PAGE_BYTES 10000 /* not a multiple of the alignment */

static char dir[64];

struct page_of {
    struct hash name;
    struct hash parent;
    int32_t tokens[BLOCK];
    unsigned char payload[PAGE_BYTES];
};

/* Page n of chain c. */
static void make_page(struct page_of *p, int c, int n)
{
    struct hash root = {{(uint8_t)c}};

    p->parent = root;
    for (int i = 0; i <= n; i++) {
        if (i > 0)
            p->parent = p->name;
        for (int t = 0; t < BLOCK; t++)
            p->tokens[t] = c * 1000 + i * BLOCK + t;
        p->name = prefix_name(&p->parent, p->tokens, BLOCK);
    }
    for (int i = 0; i < PAGE_BYTES; i++)
        p->payload[i] = (unsigned char)(i * 7 + c * 31 + n);
}

static int open_store(struct store **st, size_t max_bytes, int space)
{
    struct store_options o = {.dir = dir,
                              .max_bytes = max_bytes,
                              .page_bytes = PAGE_BYTES,
                              .page_tokens = BLOCK,
                              .n_buffers = 6,
                              .kept_pct = 50,
                              .namespace_id = {{(uint8_t)space}},
                              .namespace_name = "test"};

    return store_open(st, &o);
}

static void save_kept(struct store *st, int c, int n, struct retain r)
{
    struct page_of p;
    struct page_label label;
    void *buffer;

    make_page(&p, c, n);
    while ((buffer = store_buffer(st)) == NULL)
        store_flush(st);
    memcpy(buffer, p.payload, PAGE_BYTES);
    label = (struct page_label){
        .name = p.name, .parent = p.parent, .tokens = p.tokens, .space = (uint64_t)c, .retain = r};
    store_save(st, buffer, &label);
}

static void save(struct store *st, int c, int n)
{
    save_kept(st, c, n, (struct retain){0});
}

/* 1: came back right; 0: a miss; -1: came back wrong. */
static int load(struct store *st, int c, int n)
{
    struct page_of p;
    struct store_done done;
    struct pollfd f = {.fd = store_event_fd(st), .events = POLLIN};
    int good;
    int rc;

    make_page(&p, c, n);
    rc = store_load(st, &p.name, p.tokens, 42);
    if (rc == ERR_NOT_FOUND)
        return 0;
    if (rc != ERR_OK)
        return -1;
    while (!store_poll(st, &done)) { /* empties the event, then waits for a real one */
        if (poll(&f, 1, 5000) != 1)
            return -1;
    }
    if (done.ticket != 42)
        return -1;
    if (done.rc != ERR_OK)
        return 0;
    good = memcmp(done.payload, p.payload, PAGE_BYTES) == 0 ? 1 : -1;
    store_release(st, done.payload);
    return good;
}

static int count_good(struct store *st, int c, int n, int *n_wrong)
{
    int good = 0;

    for (int i = 0; i < n; i++) {
        int r = load(st, c, i);

        good += r == 1;
        *n_wrong += r == -1;
    }
    return good;
}

static void wipe(void)
{
    char command[128];

    (void)snprintf(command, sizeof command, "rm -rf %s/*", dir);
    (void)!system(command);
}

static void test_restart(void)
{
    struct store *st;
    struct store *second;
    struct store_counters k;
    int wrong = 0;

    must_ok(open_store(&st, 100 * 16384, 1));
    is_int(load(st, 1, 0), 0, "an empty store has nothing");
    for (int i = 0; i < 20; i++)
        save(st, 1, i);
    store_flush(st);
    is_int(count_good(st, 1, 20, &wrong), 20, "what was saved comes back");
    is_int(open_store(&second, 100 * 16384, 1), ERR_IN_USE, "a second engine is refused");
    store_close(st);
    must_ok(open_store(&st, 100 * 16384, 1));
    is_int(count_good(st, 1, 20, &wrong), 20, "and after a restart");
    save(st, 1, 3);
    store_flush(st);
    store_read_counters(st, &k);
    is_int(k.entries, 20, "a page saved twice is kept once");
    is_int(k.written, 0, "and not written again");
    store_close(st);
    must_ok(open_store(&st, 100 * 16384, 2));
    store_read_counters(st, &k);
    is_int(k.entries, 0, "another model counts its own pages only");
    store_close(st);
    is_int(wrong, 0, "nothing came back wrong");
    wipe();
}

/* Counts of asked namespaces outlive the process that counted. */
static void test_rates(void)
{
    struct store_rate rates[STORE_RATES_MAX], got[STORE_RATES_MAX];
    struct store *st;

    for (int i = 0; i < STORE_RATES_MAX; i++)
        rates[i] =
            (struct store_rate){.space = (uint64_t)i << 40, .used = 7, .queries = 1000, .hits = 10};
    must_ok(open_store(&st, 100 * 16384, 1));
    is_int(store_rates(st, got), 0, "a new store knows none");
    store_set_rates(st, rates, 3);
    is_int(store_rates(st, got), 3, "what was set is told");
    store_close(st);
    must_ok(open_store(&st, 100 * 16384, 2));
    ok(store_rates(st, got) == 3 && memcmp(got, rates, 3 * sizeof *got) == 0,
       "the next life has the same, whatever its model");
    store_close(st);
    must_ok(open_store(&st, 100 * 16384, 1));
    is_int(store_rates(st, got), 3, "they stay without requests");
    store_set_rates(st, rates, STORE_RATES_MAX);
    store_close(st);
    must_ok(open_store(&st, 100 * 16384, 1));
    ok(store_rates(st, got) == STORE_RATES_MAX && memcmp(got, rates, sizeof got) == 0,
       "as many as there may be");
    store_set_rates(st, rates, 1);
    fault_arm(FAULT_store_note, 1, false);
    store_close(st);
    fault_arm(FAULT_store_note, 0, false);
    must_ok(open_store(&st, 100 * 16384, 1));
    is_int(store_rates(st, got), STORE_RATES_MAX, "what cannot be written is lost, and no more");
    store_close(st);
    wipe();
}

/* Pages that are saved as they are evicted come end first. */
static void test_child_first(void)
{
    struct store *st;

    must_ok(open_store(&st, 10 * 16384, 1));
    save(st, 9, 1);
    store_flush(st);
    save(st, 9, 0);
    store_flush(st);
    for (int i = 0; i < 40; i++) {
        save(st, 10 + i, 0);
        store_flush(st);
    }
    is_int(load(st, 9, 1), 0, "a page that came before its parent is evicted");
    is_int(load(st, 9, 0), 0, "and its parent after it");
    store_close(st);
    wipe();
}

static void test_bound(void)
{
    struct store *st;
    struct stat s;
    char path[128];
    int wrong = 0;

    must_ok(open_store(&st, 10 * 16384, 1));
    for (int i = 0; i < 4; i++)
        save(st, 9, i);
    store_flush(st);
    for (int i = 0; i < 40; i++) {
        save(st, 1 + i % 4, i / 4);
        store_flush(st);
        (void)load(st, 9, 3); /* in use: stays, and so does what it continues */
    }
    is_int(count_good(st, 9, 4, &wrong), 4, "a prefix in use survives eviction with its parents");
    (void)snprintf(path, sizeof path, "%s/pages.kv", dir);
    must_ok(stat(path, &s));
    ok(s.st_size > 0 && s.st_size <= 10 * 16384, "the page file keeps its bound (%lld)",
       (long long)s.st_size);
    is_int(wrong, 0, "reused slots never give an old page");
    store_close(st);
    wipe();
}

static void flood(struct store *st, int n)
{
    for (int i = 0; i < n; i++) {
        save(st, 100 + i, 0);
        store_flush(st);
    }
    store_prove(st);
}

/* The priority of a page, -1 when it is not there. */
static int priority_of(struct store *st, int c, int n)
{
    struct store_counters k;
    struct page_label label;
    struct page_of p;

    make_page(&p, c, n);
    store_read_counters(st, &k);
    for (uint32_t i = 0; i < k.slots; i++) {
        if (store_look(st, i, &label) && memcmp(&label.name, &p.name, sizeof p.name) == 0)
            return label.space == (uint64_t)c ? retain_priority(label.retain) : -2;
    }
    return -1;
}

static void test_retained(void)
{
    uint32_t now_s = (uint32_t)clock_unix_s();
    struct store *st;
    struct store_counters k;
    struct page_of p;
    int wrong = 0;

    must_ok(open_store(&st, 12 * 16384, 1));
    for (int i = 0; i < 2; i++)
        save_kept(st, 1, i, retain_of(RETAIN_PINNED, 0));
    save_kept(st, 2, 0, retain_of(60, now_s + 4));
    save(st, 3, 0);
    store_flush(st);
    make_page(&p, 3, 0);
    store_retain(st, &p.name, retain_of(50, 0));
    flood(st, 30);
    is_int(count_good(st, 1, 2, &wrong) + count_good(st, 2, 1, &wrong) +
               count_good(st, 3, 1, &wrong),
           4, "a flood takes all but what is retained, when it was saved or later");
    store_close(st);
    must_ok(open_store(&st, 12 * 16384, 1));
    is_int(priority_of(st, 1, 1), RETAIN_PINNED, "the next engine knows of what was saved so");
    is_int(priority_of(st, 3, 0), 50, "and of what was said later");
    flood(st, 30);
    is_int(count_good(st, 1, 2, &wrong) + count_good(st, 2, 1, &wrong) +
               count_good(st, 3, 1, &wrong),
           4, "and keeps it, too");
    while ((uint32_t)clock_unix_s() <= now_s + 4)
        clock_sleep_us(50000);
    flood(st, 30);
    is_int(count_good(st, 2, 1, &wrong), 0, "what is over goes as any other");
    for (int i = 0; i < 12; i++) {
        save_kept(st, 50 + i, 0, retain_of(99, 0));
        store_flush(st);
    }
    store_read_counters(st, &k);
    is_int(k.kept, 6, "a greedy client gets the share and no more");
    is_int(count_good(st, 1, 2, &wrong), 2, "and none of what is pinned");
    is_int(wrong, 0, "nothing came back wrong");
    store_close(st);
    wipe();
}

/* What was dropped is not there, for the next engine either: wherever its page was just then. */
static void test_drop(unsigned seed)
{
    bool gone[10];
    int wrong = 0, found = 0, lost = 0;

    for (int round = 0; round < 40; round++) {
        struct store *st;

        must_ok(open_store(&st, 30 * 16384, 1));
        for (int i = 0; i < 10; i++)
            save(st, 1, i); /* no flush: some are queued, some are being written */
        for (int i = 0; i < 10; i++) {
            struct page_of p;

            make_page(&p, 1, i);
            gone[i] = random_next(&seed) % 2 == 0;
            if (random_next(&seed) % 4 == 0)
                clock_sleep_us(random_next(&seed) % 3000);
            if (gone[i])
                (void)store_drop(st, &p.name);
        }
        store_flush(st);
        ok(store_is_quiet(st), "after a flush it is quiet");
        store_prove(st);
        if (round % 2 == 0) {
            store_close(st);
            must_ok(open_store(&st, 30 * 16384, 1));
        }
        for (int i = 0; i < 10; i++) {
            int is = load(st, 1, i);

            found += gone[i] && is != 0;
            lost += !gone[i] && is != 1;
            wrong += is < 0;
        }
        for (int i = 0; i < 10; i++)
            save(st, 1, i);
        store_flush(st);
        if (count_good(st, 1, 10, &wrong) != 10)
            lost++;
        store_close(st);
        wipe();
    }
    is_int(found, 0, "what was dropped is a miss");
    is_int(lost, 0, "what was not is there, and all can be saved again");
    is_int(wrong, 0, "nothing came back wrong");
}

/* A page that is being read when it is dropped. */
static void test_drop_read(void)
{
    struct store *st;
    struct store_done done;
    struct page_of p;
    int n = 0;

    must_ok(open_store(&st, 3 * 16384, 1));
    for (int round = 0; round < 50; round++) {
        save(st, 1, 0);
        store_flush(st);
        make_page(&p, 1, 0);
        must_ok(store_load(st, &p.name, p.tokens, 7));
        ok(store_drop(st, &p.name), "it was there");
        save(st, 2 + round, 0);
        save(st, 60 + round, 0); /* its slot is not given away meanwhile */
        store_flush(st);
        while (!store_poll(st, &done))
            clock_sleep_us(100);
        n += done.rc == ERR_OK && memcmp(done.payload, p.payload, PAGE_BYTES) != 0;
        if (done.rc == ERR_OK)
            store_release(st, done.payload);
        store_prove(st);
        n += load(st, 1, 0) != 0;
    }
    is_int(n, 0, "a drop beside a read is a miss then or later, never a wrong page");
    store_close(st);
    wipe();
}

static _Noreturn void drop_and_wait(int told)
{
    struct store *st;
    struct page_of p;

    must_ok(open_store(&st, 30 * 16384, 1));
    for (int i = 0; i < 10; i++)
        save(st, 1, i);
    store_flush(st);
    clock_sleep_us(2000); /* the I/O thread sleeps */
    for (int i = 0; i < 5; i++) {
        make_page(&p, 1, 9 - i);
        (void)store_drop(st, &p.name);
    }
    while (!store_is_quiet(st))
        continue;
    (void)!write(told, "", 1);
    for (;;) /* until it is killed */
        (void)pause();
}

/* A process that is told that the store is quiet may be killed: what was dropped stays so. */
static void test_drop_kill(void)
{
    int found = 0, lost = 0;

    for (int round = 0; round < 60; round++) {
        struct store *st;
        int told[2];
        char byte;
        pid_t pid;

        must_ok(pipe(told));
        pid = fork();
        if (pid == 0)
            drop_and_wait(told[1]);
        (void)!read(told[0], &byte, 1);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        (void)close(told[0]);
        (void)close(told[1]);
        must_ok(open_store(&st, 30 * 16384, 1));
        for (int i = 0; i < 10; i++) {
            found += i >= 5 && load(st, 1, i) != 0;
            lost += i < 5 && load(st, 1, i) != 1;
        }
        store_close(st);
        wipe();
    }
    is_int(found, 0, "60 kills behind a drop: none comes back");
    is_int(lost, 0, "and nothing else is lost");
}

/* An index that fails for a moment undoes no drop, nor does one that fails for good: the pages are
 * overwritten then. What else was said of pages is lost with it. */
static void test_drop_faults(void)
{
    for (int n = 1; n <= 6; n++) {
        struct store *st;
        struct page_of p;
        int left;

        must_ok(open_store(&st, 30 * 16384, 1));
        for (int i = 0; i < 10; i++)
            save(st, 1, i);
        store_flush(st);
        fault_arm(FAULT_store_note, n < 6 ? n : 1, n == 6);
        for (int i = 5; i < 10; i++) {
            make_page(&p, 1, i);
            (void)store_drop(st, &p.name);
        }
        make_page(&p, 1, 0);
        store_retain(st, &p.name, retain_of(70, 0));
        store_flush(st);
        is_int(priority_of(st, 1, 5), -1, "a drop counts at once");
        fault_arm(FAULT_store_note, 0, false);
        store_close(st);
        must_ok(open_store(&st, 30 * 16384, 1));
        left = count_good(st, 1, 10, &(int){0});
        is_int(left, 5, "and after a start, also where the index failed for good");
        is_int(priority_of(st, 1, 0), n < 6 ? 70 : RETAIN_DEFAULT, "so does what was said");
        store_close(st);
        wipe();
    }
}

/* A node of LMDB's leaf pages: the value's length, its upper half, flags, the key's length, the
 * key, the value. A smaller length leaves a gap behind the value, as LMDB does itself. */
struct leaf_node {
    uint16_t length, upper, flags, key_length;
    uint64_t slot;
    struct store_record record;
};

static void shorten_records(void)
{
    char path[128];
    char *bytes;
    struct stat s;
    int n = 0;
    int fd;

    (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
    fd = open(path, O_RDWR);
    must_ok(fstat(fd, &s));
    bytes = malloc((size_t)s.st_size);
    (void)!pread(fd, bytes, (size_t)s.st_size, 0);
    for (off_t at = 0; at + (off_t)sizeof(struct leaf_node) <= s.st_size; at += 2) {
        struct leaf_node node;
        uint16_t old = STORE_RECORD_OLD;

        memcpy(&node, bytes + at, sizeof node);
        if (node.length != sizeof node.record || node.upper != 0 || node.flags != 0 ||
            node.key_length != sizeof node.slot || node.slot >= 20 || node.record.n_tokens != BLOCK)
            continue;
        (void)!pwrite(fd, &old, sizeof old, at);
        n++;
    }
    free(bytes);
    (void)close(fd);
    ok(n >= 20, "%d records are made shorter", n);
}

/* An index whose records are as short as they once were. */
static void test_old_records(void)
{
    struct store *st;
    int wrong = 0;

    must_ok(open_store(&st, 100 * 16384, 1));
    for (int i = 0; i < 20; i++)
        save_kept(st, 1, i, retain_of(RETAIN_PINNED, 0));
    store_close(st);
    shorten_records();
    must_ok(open_store(&st, 100 * 16384, 1));
    is_int(count_good(st, 1, 20, &wrong), 20, "older records are read");
    is_int(priority_of(st, 1, 0), -2, "as of no known namespace");
    save(st, 2, 0);
    store_close(st);
    is_int(wrong, 0, "nothing came back wrong");
    wipe();
}

static void test_kill(void)
{
    int wrong = 0;
    int good = 0;
    int opened = 0;

    for (int round = 0; round < 12; round++) {
        struct store *st;
        pid_t pid = fork();

        if (pid == 0) {
            must_ok(open_store(&st, 30 * 16384, 1));
            for (int i = 0;; i++) /* until killed */
                save(st, i % 5, i / 5 % 10);
        }
        clock_sleep_us((20000 + (uint64_t)round * 3791) * TAP_SLOWER);
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
        if (open_store(&st, 30 * 16384, 1) != ERR_OK)
            continue;
        opened++;
        for (int c = 0; c < 5; c++)
            good += count_good(st, c, 10, &wrong);
        store_close(st);
    }
    is_int(opened, 12, "killed while writing, it opens again each time");
    is_int(wrong, 0, "and gives no wrong page");
    ok(good > 12, "but most of the right ones (%d)", good);
    wipe();
}

static void scribble(const char *name, off_t from, off_t to, int n, unsigned *seed)
{
    char path[128];
    int fd;

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    fd = open(path, O_RDWR);
    for (int i = 0; i < n; i++) {
        unsigned char byte = (unsigned char)random_next(seed);

        (void)!pwrite(fd, &byte, 1, from + (off_t)(random_next(seed) % (unsigned)(to - from)));
    }
    (void)close(fd);
}

static void test_damaged_payload(unsigned seed)
{
    struct store *st;
    struct store_counters k;
    int wrong = 0;
    int good;

    must_ok(open_store(&st, 100 * 16384, 1));
    for (int i = 0; i < 20; i++)
        save(st, 1, i);
    store_close(st);
    scribble("pages.kv", 0, 10 * 16384, 2000, &seed);
    must_ok(open_store(&st, 100 * 16384, 1));
    good = count_good(st, 1, 20, &wrong);
    ok(good >= 10 && good < 20 && wrong == 0, "damaged payloads are misses (%d of 20 good)", good);
    store_read_counters(st, &k);
    is_int(k.faults, 20 - good, "each is counted");
    is_int(count_good(st, 1, 20, &wrong), good, "and forgotten");
    for (int i = 0; i < 20; i++)
        save(st, 1, i);
    store_flush(st);
    is_int(count_good(st, 1, 20, &wrong), 20, "what was lost can be saved again");
    store_close(st);
    wipe();
}

/* Random bytes anywhere in the index: it opens, with what is left or anew, and lies never. */
static void test_damaged_index(unsigned seed)
{
    int wrong = 0;
    int opened = 0;
    int good = 0;

    for (int round = 0; round < 40; round++) {
        struct store *st;
        struct stat s;
        char path[128];

        must_ok(open_store(&st, 100 * 16384, 1));
        for (int i = 0; i < 20; i++)
            save(st, 1, i);
        store_close(st);
        (void)snprintf(path, sizeof path, "%s/data.mdb", dir);
        must_ok(stat(path, &s));
        if (round % 4 == 3)
            must_ok(truncate(path, s.st_size / 2));
        else
            scribble("data.mdb", round % 2 ? 0 : 8192, s.st_size, 1 << (round % 12), &seed);
        if (open_store(&st, 100 * 16384, 1) != ERR_OK)
            continue;
        opened++;
        good += count_good(st, 1, 20, &wrong);
        save(st, 2, 0);
        store_close(st);
        if (round % 8 == 0)
            wipe();
    }
    is_int(opened, 40, "with a damaged index it opens each time");
    is_int(wrong, 0, "and gives no wrong page (%d right ones)", good);
    wipe();
}

/* Records that lie, written as an engine would write them. */
static void test_lying_records(unsigned seed)
{
    struct store_format format = {.magic = STORE_MAGIC,
                                  .version = STORE_VERSION,
                                  .page_tokens = BLOCK,
                                  .slot_bytes = STORE_HEADER_BYTES + 12288,
                                  .page_bytes = PAGE_BYTES};
    int wrong = 0;
    int good = 0;

    for (int round = 0; round < 30; round++) {
        struct store_change changes[8];
        struct store_db *db;
        struct store *st;

        must_ok(open_store(&st, 100 * 16384, 1));
        for (int i = 0; i < 20; i++)
            save(st, 1, i);
        store_close(st);
        must_ok(store_db_open(&db, dir, &format, (size_t)1 << 30));
        for (int i = 0; i < 8; i++) {
            struct page_of p;
            unsigned char *bytes = (unsigned char *)&changes[i].record;

            make_page(&p, 1, (int)(random_next(&seed) % 20));
            changes[i] = (struct store_change){
                .slot = random_next(&seed) % 4 ? random_next(&seed) % 24 : UINT64_MAX - (uint64_t)i,
                .record = {.name = p.name, .parent = p.parent, .n_tokens = BLOCK, .generation = 1}};
            if (random_next(&seed) % 2)
                bytes[random_next(&seed) % sizeof changes[i].record] ^= 1;
        }
        must_ok(store_db_commit(db, changes, 8));
        store_db_close(db);
        must_ok(open_store(&st, 100 * 16384, 1));
        good += count_good(st, 1, 20, &wrong);
        save(st, 2, round % 10);
        store_close(st);
    }
    is_int(wrong, 0, "index entries that lie are misses (%d of 600 pages survive)", good);
    ok(good > 100, "and harm no others");
    wipe();
}

static void test_faults(void)
{
    static const enum fault faults[] = {FAULT_store_write, FAULT_store_read, FAULT_store_commit};
    int wrong = 0;

    for (int f = 0; f < 3; f++) {
        for (int n = 1; n < 8; n++) {
            struct store *st;

            must_ok(open_store(&st, 8 * 16384, 1));
            fault_arm(faults[f], n, n % 2 == 0);
            for (int i = 0; i < 16; i++) {
                save(st, 1, i % 12);
                if (i % 3 == 0)
                    store_flush(st);
                (void)count_good(st, 1, 4, &wrong);
            }
            fault_arm(faults[f], 0, false);
            save(st, 3, 0);
            store_flush(st);
            if (load(st, 3, 0) != 1)
                wrong++;
            store_close(st);
            if (n == 7)
                wipe();
        }
    }
    is_int(wrong, 0,
           "failing writes, reads and commits lose pages, never give wrong ones, and "
           "the store goes on");
}

/* --- readers beside a writer --- */

struct reader {
    int ask, answer;      /* pipes to the writer */
    uint64_t n, n_second; /* records seen, and those of the second generation */
};

static void reader_one(void *context, uint64_t slot, const struct store_record *r,
                       const struct store_use *use)
{
    struct reader *w = context;
    char byte = 0;

    (void)slot;
    (void)use;
    w->n_second += r->generation == 2;
    if (++w->n == 5000) { /* in the middle of the first snapshot: let the writer change all */
        (void)!write(w->ask, &byte, 1);
        (void)!read(w->answer, &byte, 1);
    }
}

static void write_generation(struct store_db *db, uint64_t generation)
{
    static struct store_change changes[1000];

    for (int i = 0; i < 25; i++) {
        for (int k = 0; k < 1000; k++)
            changes[k] =
                (struct store_change){.slot = (uint64_t)(i * 1000 + k),
                                      .record = {.n_tokens = BLOCK, .generation = generation}};
        must_ok(store_db_commit(db, changes, 1000));
    }
}

/* A reader that kept one snapshot would keep every page of it from being used again. */
static void test_reader(void)
{
    struct store_format format = {.magic = STORE_MAGIC, .slot_bytes = STORE_ALIGN};
    struct store_db *db;
    int ask[2];
    int answer[2];
    int status = 1;
    char byte;
    pid_t pid;

    must_ok(store_db_open(&db, dir, &format, (size_t)1 << 30));
    write_generation(db, 1);
    must_ok(pipe(ask));
    must_ok(pipe(answer));
    pid = fork();
    if (pid == 0) { /* LMDB wants another process */
        struct reader w = {.ask = ask[1], .answer = answer[0]};
        struct store_db *mine;
        uint64_t n_bad;

        if (store_db_open_read(&mine, dir, &format) != ERR_OK ||
            store_db_scan(mine, reader_one, &w, &n_bad) != ERR_OK)
            _exit(1);
        _exit(w.n == 25000 && w.n_second == 15000 ? 0 : 2);
    }
    (void)!read(ask[0], &byte, 1);
    write_generation(db, 2);
    (void)!write(answer[1], &byte, 1);
    (void)waitpid(pid, &status, 0);
    is_int(WEXITSTATUS(status), 0,
           "a reader takes a new snapshot every 10000 records, and the writer never waits");
    store_db_close(db);
    wipe();
}

/* The files are their owner's alone, whatever the umask; what belongs to others, or what they could
 * have written, is not used: the store is away until it is mended. */
static void test_permissions(void)
{
    static const char *const names[] = {"data.mdb", "lock.mdb", "pages.kv", "engine.lock"};
    mode_t mask = umask(0);
    struct stat s;
    struct store *st;
    char path[128], other[128];
    int status = 1;
    pid_t pid;

    must_ok(open_store(&st, 1 << 20, 1));
    save(st, 1, 0);
    store_close(st);
    for (int i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        must_ok(stat(path, &s));
        is_int(s.st_mode & 0777, 0600, "%s is its owner's alone", names[i]);
        must_ok(chmod(path, 0644));
    }
    must_ok(open_store(&st, 1 << 20, 1));
    is_int(load(st, 1, 0), 1, "files that others could read are used");
    store_close(st);
    for (int i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        must_ok(stat(path, &s));
        is_int(s.st_mode & 0777, 0600, "and can be read by them no longer: %s", names[i]);
        must_ok(chmod(path, 0620));
        must_ok(open_store(&st, 1 << 20, 1));
        ok(store_mode(st) != STORE_WRITING, "what others may write is not used: %s", names[i]);
        store_close(st);
        must_ok(chmod(path, 0600));
        (void)snprintf(other, sizeof other, "%s/link", dir);
        must_ok(link(path, other));
        must_ok(open_store(&st, 1 << 20, 1));
        ok(store_mode(st) != STORE_WRITING, "nor what has a second name: %s", names[i]);
        store_close(st);
        must_ok(unlink(other));
        must_ok(rename(path, other));
        must_ok(symlink(other, path));
        must_ok(open_store(&st, 1 << 20, 1));
        ok(store_mode(st) != STORE_WRITING, "nor a link: %s", names[i]);
        store_close(st);
        must_ok(rename(other, path));
        if (geteuid() == 0) {
            must_ok(chown(path, 65534, (gid_t)-1));
            must_ok(open_store(&st, 1 << 20, 1));
            ok(store_mode(st) != STORE_WRITING, "nor what another user owns: %s", names[i]);
            store_close(st);
            must_ok(chown(path, 0, (gid_t)-1));
        }
    }
    must_ok(open_store(&st, 1 << 20, 1));
    is_int(load(st, 1, 0), 1, "mended, all is there");
    if (geteuid() == 0) {
        must_ok(chmod(dir, 0755));
        pid = fork();
        if (pid == 0) {
            struct store_format format;
            struct store_db *mine;

            if (setgid(s.st_gid) == -1 || setuid(65534) == -1)
                _exit(9);
            _exit(store_db_open_read(&mine, dir, &format) == ERR_OK ? 0 : 1);
        }
        (void)waitpid(pid, &status, 0);
        is_int(WEXITSTATUS(status), 1, "a stranger of the owner's group is refused, not crashed");
    } else {
        ok(true, "other users # SKIP only root can become others");
    }
    store_close(st);
    (void)umask(mask);
    wipe();
}

static void test_other_format(void)
{
    struct store *st;
    struct store_options o = {.dir = dir,
                              .max_bytes = 1 << 20,
                              .page_bytes = 512,
                              .page_tokens = 4,
                              .n_buffers = 2,
                              .namespace_name = "small"};

    must_ok(open_store(&st, 100 * 16384, 1));
    save(st, 1, 0);
    store_close(st);
    is_int(store_open(&st, &o), ERR_OK, "pages of another size: begun anew");
    store_close(st);
    wipe();
}

int main(void)
{
    unsigned seed = tap_seed(11);

    (void)snprintf(dir, sizeof dir, "/tmp/quire-store-XXXXXX");
    if (mkdtemp(dir) == NULL)
        tap_skip_all("no temporary folder");
    log_set_level(0);
    test_restart();
    test_rates();
    test_bound();
    test_child_first();
    test_retained();
    test_drop(seed);
    test_drop_read();
    test_drop_kill();
    test_drop_faults();
    test_old_records();
    test_kill();
    test_damaged_payload(seed);
    test_damaged_index(seed);
    test_lying_records(seed);
    test_faults();
    test_other_format();
    test_reader();
    test_permissions();
    (void)rmdir(dir);
    return tap_done();
}
