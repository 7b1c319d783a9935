/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a front never sees a row of two updates of the adapters' table. Method: one thread writes
 * rows whose every byte is the update's number, another copies them. */
#include <pthread.h>

#include "base/must.h"
#include "ipc/wire_adapters.h"
#include "tests/tap.h"

#define N_UPDATES 20000

static void *write_all(void *context)
{
    struct wire_adapters *a = context;

    for (int i = 1; i <= N_UPDATES; i++) {
        struct wire_adapter_row row;
        uint32_t n = 1 + (uint32_t)i % 3;

        memset(&row, 'a' + i % 26, sizeof row);
        wire_adapters_begin(a);
        for (uint32_t at = 0; at < n; at++)
            wire_adapters_put(a, at, &row);
        wire_adapters_end(a, n);
        for (volatile int pause = 0; pause < 2000; pause++)
            continue; /* so that the reader gets through now and then */
    }
    return NULL;
}

/* Is every byte of a row of one update? The texts' last bytes are NUL. */
static bool is_whole(const struct wire_adapter_row *row)
{
    const char *bytes = (const char *)row;
    size_t path_end = WIRE_ADAPTER_NAME + WIRE_ADAPTER_PATH - 1;

    for (size_t i = 1; i < sizeof *row; i++) {
        if (i == WIRE_ADAPTER_NAME - 1 || i == path_end)
            continue;
        if (bytes[i] != bytes[0])
            return false;
    }
    return bytes[WIRE_ADAPTER_NAME - 1] == '\0' && bytes[path_end] == '\0';
}

static void test_updates(void)
{
    static struct wire_adapters a;
    struct wire_adapter_row row;
    pthread_t thread;
    long n_seen = 0, n_torn = 0;

    ok(!wire_adapters_at(&a, 0, &row), "an empty table has no row");
    must(pthread_create(&thread, NULL, write_all, &a) == 0);
    while (atomic_load(&a.version) < 2 * N_UPDATES) {
        for (uint32_t i = 0; i < 3; i++) {
            if (!wire_adapters_at(&a, i, &row))
                continue;
            n_seen++;
            n_torn += !is_whole(&row);
        }
    }
    must(pthread_join(thread, NULL) == 0);
    ok(n_torn == 0, "of %ld rows read during %d updates %ld are torn", n_seen, N_UPDATES, n_torn);
    ok(wire_adapters_at(&a, N_UPDATES % 3, &row) && is_whole(&row) &&
           row.name[0] == 'a' + N_UPDATES % 26 && !wire_adapters_at(&a, 3, &row),
       "and the last update is there");
    ok(!wire_adapters_at(&a, WIRE_ADAPTERS_MAX, &row), "there is no row behind the last");
}

static void test_find(void)
{
    static struct wire_adapters a;
    struct wire_adapter_row row = {.name = "one", .path = "/a", .digest = {1}};
    struct wire_adapter_row got = {.name = ""};

    wire_adapters_begin(&a);
    wire_adapters_put(&a, 0, &row);
    memcpy(row.name, "two", sizeof "two");
    row.digest[0] = 2;
    wire_adapters_put(&a, 1, &row);
    wire_adapters_end(&a, 2);
    ok(wire_adapters_find(&a, "two", 3, &got) && got.digest[0] == 2 && strcmp(got.path, "/a") == 0,
       "a row is found by its name");
    ok(!wire_adapters_find(&a, "tw", 2, &got) && !wire_adapters_find(&a, "three", 5, &got) &&
           !wire_adapters_find(&a, "", 0, &got),
       "and by nothing else");
    wire_adapters_begin(&a);
    ok(!wire_adapters_find(&a, "one", 3, &got), "an engine that died while it wrote has no rows");
}

int main(void)
{
    test_updates();
    test_find();
    return tap_done();
}
