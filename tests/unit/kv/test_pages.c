/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the pool keeps its five rules under any order of calls. Method: a random walk beside a
 * naive model (arrays and linear search), pages_check() on the way, then named cases. */
#include "ipc/prefix.h"
#include "kv/pages.h"
#include "tests/tap.h"

#define N_PAGES 37
#define BLOCK   4

static struct hash name_of(int n)
{
    struct hash root = {{0}};
    int32_t tokens[BLOCK] = {n, n + 1, n + 2, n + 3};

    return prefix_name(&root, tokens, BLOCK);
}

static void test_walk(unsigned seed)
{
    struct pages *p;
    int refs[N_PAGES] = {0};
    int named[N_PAGES]; /* number of the name, or -1 */
    bool good = true;

    must_ok(pages_open(&p, N_PAGES, BLOCK));
    for (int i = 0; i < N_PAGES; i++)
        named[i] = -1;
    for (int step = 0; step < 200000 && good; step++) {
        int page = (int)(random_next(&seed) % N_PAGES);
        int n = (int)(random_next(&seed) % 60);
        struct hash name = name_of(n);
        int32_t tokens[BLOCK] = {n, n, n, n};
        struct page_label label;
        bool evicted;
        int32_t got;
        int where = -1;

        for (int i = 0; i < N_PAGES; i++) {
            if (named[i] == n)
                where = i;
        }
        switch (random_next(&seed) % 5) {
        case 0: {
            int unused = 0;

            for (int i = 0; i < N_PAGES; i++)
                unused += refs[i] == 0;
            got = pages_take(p, &evicted, &label);
            good = good && (got == -1) == (unused == 0) && (got == -1 || refs[got] == 0);
            if (got == -1)
                break;
            good = good && evicted == (named[got] != -1);
            if (evicted) {
                struct hash was = name_of(named[got]);

                good = good && memcmp(&was, &label.name, sizeof was) == 0 &&
                       label.tokens[0] == named[got];
            }
            named[got] = -1;
            refs[got] = 1;
            break;
        }
        case 1:
        case 2:
            if (refs[page] > 0) {
                pages_unref(p, page);
                refs[page]--;
            }
            break;
        case 3:
            if (refs[page] > 0 && named[page] == -1) {
                bool done = pages_name(p, page, &name, &name, tokens);

                good = good && done == (where == -1);
                if (done)
                    named[page] = n;
            }
            break;
        default:
            got = pages_find(p, &name);
            good = good && got == where;
            if (got != -1)
                refs[got]++;
            break;
        }
        if (step % 1000 == 0)
            pages_check(p);
    }
    pages_check(p);
    ok(good, "200000 random calls agree with the naive model");
    pages_close(p);
}

/* Parts beside a naive model: tokens of 0 and 1, so that many begin alike. */
static void test_parts(unsigned seed)
{
    struct pages *p;
    struct part {
        int refs, n, family;
        int32_t tokens[BLOCK];
    } parts[N_PAGES] = {0};
    bool good = true;

    must_ok(pages_open(&p, N_PAGES, BLOCK));
    for (int step = 0; step < 100000 && good; step++) {
        int page = (int)(random_next(&seed) % N_PAGES);
        int family = (int)(random_next(&seed) % 3), n = 1 + (int)(random_next(&seed) % (BLOCK - 1));
        struct hash parent = name_of(1000 + family);
        int32_t tokens[BLOCK];
        int best = 0, n_same = 0;
        struct page_label label;
        bool evicted;
        int32_t got;

        for (int i = 0; i < BLOCK; i++)
            tokens[i] = (int32_t)(random_next(&seed) % 2);
        for (int i = 0; i < N_PAGES; i++) {
            int same = 0;

            while (parts[i].family == family && same < n && same < parts[i].n &&
                   parts[i].tokens[same] == tokens[same])
                same++;
            best = same > best ? same : best;
        }
        switch (random_next(&seed) % 4) {
        case 0:
            got = pages_take(p, &evicted, &label);
            good = got == -1 || (parts[got].refs == 0 && evicted == (parts[got].n == BLOCK));
            if (got != -1)
                parts[got] = (struct part){.refs = 1};
            break;
        case 1:
            if (parts[page].refs > 0) {
                pages_unref(p, page);
                parts[page].refs--;
            }
            break;
        case 2: {
            struct hash name = prefix_name(&parent, tokens, BLOCK);
            bool full = random_next(&seed) % 4 == 0, done;

            if (parts[page].refs == 0 || parts[page].n > 0)
                break;
            done = full ? pages_name(p, page, &name, &parent, tokens)
                        : pages_name_part(p, page, &parent, tokens, n);
            good = full || done == (best < n);
            if (done) {
                parts[page] = (struct part){parts[page].refs, full ? BLOCK : n, family, {0}};
                memcpy(parts[page].tokens, tokens, sizeof tokens);
            }
            break;
        }
        default:
            got = pages_find_part(p, &parent, tokens, n, PAGES_ANYBODY, &n_same);
            good = n_same == best && (got == -1) == (best == 0);
            if (got != -1) {
                good = good && parts[got].family == family && parts[got].n >= n_same &&
                       memcmp(parts[got].tokens, tokens, sizeof *tokens * (size_t)n_same) == 0;
                parts[got].refs++;
            }
            break;
        }
        if (step % 1000 == 0)
            pages_check(p);
    }
    pages_check(p);
    ok(good, "100000 random calls about parts agree with the naive model");
    pages_close(p);
}

static void test_order(void)
{
    struct pages *p;
    struct page_label label;
    bool evicted;
    int32_t tokens[BLOCK] = {0};
    struct hash names[3];

    must_ok(pages_open(&p, 3, BLOCK));
    for (int i = 0; i < 3; i++) {
        int32_t page = pages_take(p, &evicted, &label);

        names[i] = name_of(i * 10);
        (void)pages_name(p, page, &names[i], &names[i], tokens);
    }
    is_int(pages_take(p, &evicted, &label), -1, "no page is left while all are referenced");
    pages_unref(p, 2); /* a sequence gives its pages back last first */
    pages_unref(p, 1);
    pages_unref(p, 0);
    is_int(pages_free(p), 3, "cached pages count as available");
    is_int(pages_take(p, &evicted, &label), 2, "the end of a prefix goes before its start");
    ok(evicted, "and its name is reported");
    ok(pages_find(p, &names[2]) == -1, "an evicted name is gone");
    is_int(pages_find(p, &names[0]), 0, "others stay");
    pages_close(p);
}

static void test_names(void)
{
    struct hash fp = name_of(1);
    struct hash other = name_of(2);
    uint8_t salt[16] = {0};
    struct hash a = prefix_root(&fp, salt);
    struct hash b = prefix_root(&other, salt);
    struct hash c;

    salt[0] = 1;
    c = prefix_root(&fp, salt);
    ok(memcmp(&a, &b, sizeof a) != 0, "another model is another namespace");
    ok(memcmp(&a, &c, sizeof a) != 0, "another tenant too");
}

/* A part that another maker named is found by those that may know about all pages. */
static void test_makers(void)
{
    struct pages *p;
    struct page_label label;
    struct hash parent = name_of(5);
    int32_t tokens[BLOCK] = {1, 2, 3}, page;
    bool evicted;
    int n_same = 0;

    must_ok(pages_open(&p, 2, BLOCK));
    page = pages_take(p, &evicted, &label);
    ok(pages_name_part(p, page, &parent, tokens, 3), "a part is named");
    pages_set_maker(p, page, 7);
    is_int(pages_find_part(p, &parent, tokens, 3, 8, &n_same), -1,
           "another tenant does not find it");
    is_int(pages_find_part(p, &parent, tokens, 3, 7, &n_same), page, "its maker does");
    is_int(pages_find_part(p, &parent, tokens, 3, PAGES_ANYBODY, &n_same), page,
           "and so do all where nothing is kept apart");
    pages_close(p);
}

/* With two tokens per page a page's name is a digest of as many bytes as a group's. */
static void test_group_names(void)
{
    struct hash name = {.bytes = {1, 2, 3}};
    int n_equal = 0;

    for (int32_t group = 0; group < 4; group++) {
        for (int32_t part = group == 0; part < 4; part++) {
            struct hash page = prefix_name(&name, (const int32_t[]){group, part}, 2);
            struct hash other = prefix_group_name(&name, group, part);

            n_equal += memcmp(&page, &other, sizeof page) == 0;
        }
    }
    is_int(n_equal, 0, "no page of tokens has the name of a group's page");
}

int main(void)
{
    test_walk(tap_seed(1));
    test_parts(tap_seed(2));
    test_order();
    test_names();
    test_makers();
    test_group_names();
    return tap_done();
}
