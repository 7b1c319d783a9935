/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the host tier gives a page back as it was filled or not at all: over restarts, kill -9 at
 * any moment, damage of every part of the file, and a bound on its size. Method: a real file in a
 * temporary folder, payloads that can be recomputed from their number. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"
#include "ipc/prefix.h"
#include "kv/host.h"
#include "tests/tap.h"

#define BLOCK      16
#define PAGE_BYTES 10000 /* not a multiple of the alignment */
#define PAYLOAD    12288

static char path[96];
static int n_pinned;

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

static int pin(void *context, void *memory, size_t bytes)
{
    (void)context, (void)memory, (void)bytes;
    n_pinned++;
    return ERR_OK;
}

static void unpin(void *context, void *memory)
{
    (void)context, (void)memory;
    n_pinned--;
}

static int open_tier(struct host **h, int n_slots, int model)
{
    struct host_options o = {.path = path,
                             .max_bytes = (size_t)n_slots * PAYLOAD,
                             .page_bytes = PAGE_BYTES,
                             .page_tokens = BLOCK,
                             .kept_pct = 50,
                             .fingerprint = {{(uint8_t)model}},
                             .name = "test",
                             .pin = pin,
                             .unpin = unpin};

    int rc = host_open(h, &o);

    if (rc == ERR_OK)
        host_wait(*h, 5000000);
    return rc;
}

/* Let the threads' ends come in; true when a check ended well. */
static bool settle(struct host *h)
{
    uint64_t ticket, until = clock_us() + 20000000;
    struct host_counters c;
    bool good = false;

    do {
        while (host_poll(h, &ticket, &good))
            continue;
        host_read_counters(h, &c);
        if (c.jobs > 0)
            usleep(200);
    } while (c.jobs > 0 && clock_us() < until);
    return good;
}

/* 1: it is there now; 0: there is no slot for it. */
static int fill_kept(struct host *h, int c, int n, struct retain r, struct host_victim *victim)
{
    struct page_of p;
    struct page_label label = {.tokens = p.tokens, .space = (uint64_t)c, .retain = r};
    struct host_victim other;
    int32_t slot;

    make_page(&p, c, n);
    label.name = p.name;
    label.parent = p.parent;
    slot = host_take(h, &label, victim != NULL ? victim : &other);
    if (slot < 0)
        return 0;
    host_fill(h, slot, &label);
    memcpy(host_payload(h, slot), p.payload, PAGE_BYTES);
    host_filled(h, slot, true);
    return 1;
}

static int fill(struct host *h, int c, int n, struct host_victim *victim)
{
    return fill_kept(h, c, n, (struct retain){0}, victim);
}

/* The same when the only page that could go is at its checksum, or memory is on its way. */
static int fill_soon(struct host *h, int c, int n, struct host_victim *victim)
{
    for (int i = 0; i < 200; i++) {
        if (fill(h, c, n, victim) == 1)
            return 1;
        settle(h);
    }
    return 0;
}

/* 1: it is there and right; 0: a miss; -1: it is wrong. */
static int look(struct host *h, int c, int n)
{
    struct page_of p;
    int32_t slot;
    int is = 0;

    make_page(&p, c, n);
    slot = host_find(h, &p.name, p.tokens);
    if (slot < 0)
        return 0;
    host_hold(h, slot);
    host_use(h, slot);
    if (!host_is_checked(h, slot)) {
        uint64_t ticket = 0, until = clock_us() + 5000000;
        bool good = false, came = false;

        host_check(h, slot, 7);
        while (!(came = host_poll(h, &ticket, &good)) && clock_us() < until)
            usleep(100);
        ok(came && ticket == 7, "a check ends");
        if (!good) {
            host_release(h, slot);
            return 0;
        }
    }
    is = memcmp(host_payload(h, slot), p.payload, PAGE_BYTES) == 0 ? 1 : -1;
    host_release(h, slot);
    return is;
}

static int count(struct host *h, int c, int n_pages)
{
    int n = 0;

    for (int i = 0; i < n_pages; i++) {
        int is = look(h, c, i);

        if (is < 0)
            return -1;
        n += is;
    }
    return n;
}

static void begin_tier(struct host **h, int n_slots)
{
    (void)unlink(path);
    must_ok(open_tier(h, n_slots, 1));
    settle(*h); /* the first memory is there */
}

static void test_life(void)
{
    struct host_counters c;
    struct host *h, *other;

    begin_tier(&h, 32);
    ok(n_pinned == 1, "memory is pinned before it is used");
    for (int i = 0; i < 20; i++)
        ok(fill(h, 1, i, NULL) == 1, "page %d finds a slot", i);
    ok(fill(h, 1, 3, NULL) == 0, "a page that is there is not taken twice");
    ok(count(h, 1, 20) == 20, "all come back at once");
    ok(look(h, 2, 0) == 0, "what was not filled is a miss");
    ok(open_tier(&other, 32, 1) == ERR_IN_USE, "a second engine is refused");
    settle(h);
    host_prove(h);
    host_close(h);
    ok(n_pinned == 0, "all is unpinned at the end");
    must_ok(open_tier(&h, 32, 1));
    settle(h);
    ok(count(h, 1, 20) == 20, "the next engine has them");
    host_read_counters(h, &c);
    ok(c.pages == 20 && c.faults == 0, "and counts them");
    host_prove(h);
    host_close(h);
    must_ok(open_tier(&h, 32, 2));
    settle(h);
    ok(count(h, 1, 20) == 0, "another model's engine begins anew");
    host_close(h);
}

static void test_bound(void)
{
    struct host_victim victim;
    struct page_of p;
    struct host *h;
    int n = 0;

    begin_tier(&h, 16);
    for (int i = 0; i < 16; i++)
        n += fill(h, 1, i, NULL);
    settle(h);
    ok(n == 16, "it is full");
    ok(fill_soon(h, 2, 0, &victim) == 1, "one more finds a slot");
    make_page(&p, 1, 15);
    ok(look(h, 1, 15) == 0 && look(h, 1, 0) == 1, "a prefix loses its end before its start");
    ok(victim.n_uses == 0, "what was never used again needs no other place");
    settle(h);
    for (int i = 0; i < 8; i++)
        (void)look(h, 1, i); /* used: the others go first */
    for (int i = 1; i < 8; i++) {
        (void)fill_soon(h, 2, i, &victim);
        settle(h);
    }
    ok(count(h, 1, 8) == 8, "what is used stays");
    (void)fill_soon(h, 3, 0, &victim);
    for (int i = 1; i < 16; i++) {
        settle(h);
        if (fill_soon(h, 3, i, &victim) == 1 && victim.n_uses > 1)
            break;
    }
    ok(victim.n_uses > 1 && ((const unsigned char *)victim.payload)[0] < 255,
       "what was used is uploaded to another place when it goes");
    host_prove(h);
    host_close(h);
}

/* However long the prefix is: without its start the rest of it would be of no use. */
static void test_long_prefix(void)
{
    struct host *h;
    int n = 0;

    begin_tier(&h, 200);
    for (int i = 0; i < 200; i++)
        n += fill(h, 1, i, NULL);
    for (int i = 0; i < 50; i++) {
        settle(h);
        n += fill_soon(h, 2, i, NULL);
    }
    ok(n == 250 && count(h, 1, 200) == 150 && count(h, 1, 150) == 150,
       "a prefix of 200 pages loses its end before its start");
    host_prove(h);
    host_close(h);
}

static void test_holding(void)
{
    struct page_of p;
    int32_t slot;
    struct host *h;
    int n = 0;

    begin_tier(&h, 4);
    for (int i = 0; i < 4; i++)
        (void)fill(h, 1, i, NULL);
    settle(h);
    make_page(&p, 1, 2);
    slot = host_find(h, &p.name, p.tokens);
    host_hold(h, slot);
    for (int i = 0; i < 12; i++) {
        n += fill_soon(h, 2, i, NULL);
        settle(h);
    }
    ok(n == 12 && memcmp(host_payload(h, slot), p.payload, PAGE_BYTES) == 0,
       "a page that is held stays");
    host_release(h, slot);
    ok(host_drop(h, &p.name) && !host_drop(h, &p.name), "one that is not can be dropped");
    host_prove(h);
    host_close(h);
}

/* Flip a byte of each region in turn: never a wrong page. */
static void test_damage(void)
{
    int wrong = 0, missed = 0, whole = 0;
    struct stat st;
    struct host *h;

    for (int turn = 0; turn < 200; turn++) {
        unsigned char byte;
        off_t at;
        int fd, n;

        begin_tier(&h, 8);
        for (int i = 0; i < 8; i++)
            (void)fill(h, 1, i, NULL);
        settle(h);
        host_close(h);
        fd = open(path, O_RDWR | O_CLOEXEC);
        must(fd != -1 && fstat(fd, &st) == 0);
        at = (off_t)((uint64_t)rand() * 2654435761u % (uint64_t)st.st_size);
        if (turn % 2 == 0)
            at %= 12288; /* the index */
        must(pread(fd, &byte, 1, at) == 1);
        byte ^= (unsigned char)(1 + rand() % 255);
        must(pwrite(fd, &byte, 1, at) == 1);
        (void)close(fd);
        must_ok(open_tier(&h, 8, 1));
        settle(h);
        n = count(h, 1, 8);
        wrong += n < 0;
        missed += n >= 0 && n < 8;
        whole += n == 8;
        host_prove(h);
        host_close(h);
    }
    ok(wrong == 0, "200 flipped bytes: no wrong page");
    ok(missed > 20 && whole > 20, "%d runs missed something, %d had all", missed, whole);
    must_ok(truncate(path, 5000));
    must_ok(open_tier(&h, 8, 1));
    settle(h);
    ok(count(h, 1, 8) == 0, "a file that was cut is begun anew");
    host_close(h);
}

/* A child fills and is killed; what is there afterwards is right. */
static void test_kill(void)
{
    int wrong = 0, had = 0;

    for (int turn = 0; turn < 60; turn++) {
        struct host *h;
        pid_t child;
        int n;

        (void)unlink(path);
        fflush(stdout);
        child = fork();
        must(child != -1);
        if (child == 0) {
            must_ok(open_tier(&h, 16, 1));
            for (int i = 0;; i++) { /* until it is killed */
                (void)fill(h, 1 + i / 40 % 5, i % 40, NULL);
                (void)host_poll(h, &(uint64_t){0}, &(bool){false});
            }
        }
        usleep((useconds_t)(1000 + rand() % 30000) * TAP_SLOWER);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        must_ok(open_tier(&h, 16, 1));
        settle(h);
        n = 0;
        for (int c = 1; c <= 5; c++) {
            int k = count(h, c, 40);

            wrong += k < 0;
            n += k > 0 ? k : 0;
        }
        had += n > 0;
        host_prove(h);
        host_close(h);
    }
    ok(wrong == 0, "60 kills: no wrong page");
    ok(had >= 20, "and %d times there were some", had);
}

static void test_no_memory(void)
{
    struct host *h;

    (void)unlink(path);
    fault_arm(FAULT_host_grow, 1, false);
    must_ok(open_tier(&h, 16, 1));
    settle(h);
    ok(fill(h, 1, 0, NULL) == 0, "without memory there is no slot");
    host_close(h);
    fault_arm(FAULT_host_check, 0, false);
    begin_tier(&h, 4);
    (void)fill(h, 1, 0, NULL);
    settle(h);
    host_close(h);
    fault_arm(FAULT_host_check, 1, false);
    must_ok(open_tier(&h, 4, 1));
    settle(h);
    ok(look(h, 1, 0) == 0, "a page that fails its check is a miss");
    ok(fill_soon(h, 1, 0, NULL) == 1 && look(h, 1, 0) == 1, "and can be filled again");
    host_prove(h);
    host_close(h);
    fault_arm(FAULT_host_check, 0, false);
}

/* Other pages, one at a time, each of a chain of its own. */
static void flood(struct host *h, int n)
{
    for (int i = 0; i < n; i++) {
        (void)fill_soon(h, 100 + i, 0, NULL);
        settle(h);
    }
    host_prove(h);
}

/* The priority that a page has, -1 when it is not there. */
static int priority_of(struct host *h, int c, int n)
{
    struct page_label label;
    struct page_of p;
    int32_t slot;

    make_page(&p, c, n);
    slot = host_find(h, &p.name, p.tokens);
    if (slot < 0 || !host_read_slot(h, slot, &label))
        return -1;
    ok(label.space == (uint64_t)c, "a page knows its namespace");
    return retain_priority(label.retain);
}

/* What was said of a page outlives floods and engines, until its time is over. */
static void test_retained(void)
{
    uint32_t now_s = (uint32_t)clock_unix_s();
    struct host_counters c;
    struct page_of p;
    struct host *h;

    begin_tier(&h, 16);
    host_tick(h, now_s);
    for (int i = 0; i < 3; i++)
        (void)fill_kept(h, 1, i, retain_of(RETAIN_PINNED, 0), NULL);
    for (int i = 0; i < 2; i++)
        (void)fill_kept(h, 2, i, retain_of(60, now_s + 1000), NULL);
    (void)fill_kept(h, 3, 0, retain_of(0, 0), NULL);
    (void)fill(h, 4, 0, NULL);
    flood(h, 10);
    ok(look(h, 3, 0) == 0 && look(h, 4, 0) == 1, "what was to go early goes first");
    flood(h, 40);
    ok(count(h, 1, 3) == 3 && count(h, 2, 2) == 2, "a flood takes all but what is retained");
    ok(look(h, 4, 0) == 0, "which is less than that");
    host_close(h);
    must_ok(open_tier(&h, 16, 1));
    settle(h);
    is_int(priority_of(h, 1, 0), RETAIN_PINNED, "the next engine knows");
    flood(h, 40);
    ok(count(h, 1, 3) == 3 && count(h, 2, 2) == 2, "and keeps it, too");
    host_tick(h, now_s + 1000);
    is_int(priority_of(h, 2, 1), RETAIN_DEFAULT, "until that is over");
    flood(h, 40);
    ok(count(h, 1, 3) == 3 && count(h, 2, 2) == 0, "then they go as any others");
    make_page(&p, 1, 0);
    host_retain(h, &p.name, retain_of(10, 0));
    is_int(priority_of(h, 1, 0), RETAIN_PINNED, "another's word does not end a pin");
    for (int i = 0; i < 16; i++) {
        (void)fill_kept(h, 50 + i, 0, retain_of(99, 0), NULL);
        settle(h);
    }
    host_read_counters(h, &c);
    is_int(c.kept, 8, "a greedy client gets the share and no more");
    ok(count(h, 1, 3) == 3, "and none of what is pinned");
    host_prove(h);
    host_close(h);
}

/* What floods faster than checksums are made takes nothing that is retained either. */
static void test_busy_flood(void)
{
    int lost = 0;

    for (int round = 0; round < 40; round++) {
        struct host *h;

        begin_tier(&h, 16);
        for (int i = 0; i < 2; i++)
            (void)fill_kept(h, 1, i, retain_of(RETAIN_PINNED, 0), NULL);
        settle(h);
        for (int i = 0; i < 300; i++) {
            (void)fill(h, 2 + i % 4, i / 4, NULL);
            (void)host_poll(h, &(uint64_t){0}, &(bool){false});
        }
        settle(h);
        lost += count(h, 1, 2) != 2;
        host_prove(h);
        host_close(h);
    }
    is_int(lost, 0, "40 floods faster than checksums take nothing that is pinned");
}

/* A dropped page is not found, even while it is held; and not by the next engine either. */
static void test_drop(void)
{
    struct page_of p;
    int32_t slot;
    struct host *h;

    begin_tier(&h, 8);
    for (int i = 0; i < 4; i++)
        (void)fill_kept(h, 1, i, retain_of(RETAIN_PINNED, 0), NULL);
    make_page(&p, 1, 3);
    ok(host_drop(h, &p.name), "a page whose checksum is being made can be dropped");
    ok(host_find(h, &p.name, p.tokens) == -1, "and is a miss");
    settle(h);
    host_prove(h);
    make_page(&p, 1, 2);
    slot = host_find(h, &p.name, p.tokens);
    host_hold(h, slot);
    ok(host_drop(h, &p.name) && host_find(h, &p.name, p.tokens) == -1,
       "one that is held can be dropped");
    ok(memcmp(host_payload(h, slot), p.payload, PAGE_BYTES) == 0, "the holder has it still");
    flood(h, 12);
    ok(memcmp(host_payload(h, slot), p.payload, PAGE_BYTES) == 0, "whatever comes meanwhile");
    host_release(h, slot);
    host_prove(h);
    host_close(h);
    must_ok(open_tier(&h, 8, 1));
    settle(h);
    is_int(count(h, 1, 4), 2, "the next engine finds what was not dropped");
    ok(fill(h, 1, 2, NULL) == 1 && look(h, 1, 2) == 1, "it can be filled again");
    host_prove(h);
    host_close(h);
}

int main(void)
{
    char dir[] = "/tmp/quire-host-XXXXXX";

    must(mkdtemp(dir) != NULL);
    (void)snprintf(path, sizeof path, "%s/pages", dir);
    log_set_level(LOG_LEVEL_ERROR);
    srand(tap_seed((unsigned)clock_us()));
    test_life();
    test_bound();
    test_long_prefix();
    test_holding();
    test_retained();
    test_busy_flood();
    test_drop();
    test_damage();
    test_kill();
    test_no_memory();
    (void)unlink(path);
    (void)rmdir(dir);
    return tap_done();
}
