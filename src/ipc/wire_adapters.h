/* SPDX-License-Identifier: Apache-2.0
 *
 * The LoRA adapters that an engine has, by name: a table in shared memory behind the statistics and
 * the held prefixes. The engine writes it, and fronts look requests' models up in it.
 *
 * The version is odd while the table is written. A reader copies, and copies again if the version
 * has changed meanwhile. Rows are words, each stored with release and loaded with acquire: a reader
 * that has seen one word of an update also sees that update's version. */
#ifndef QUIRE_IPC_WIRE_ADAPTERS_H
#define QUIRE_IPC_WIRE_ADAPTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ipc/wire.h"

#define WIRE_ADAPTERS_MAX   64  /* a bit each in running and waiting */
#define WIRE_ADAPTER_NAME   128 /* bytes of a name, its NUL included */
#define WIRE_ADAPTER_PATH   512 /* likewise of a folder's path */
#define WIRE_ADAPTER_DIGEST 32
#define WIRE_ADAPTERS_TRIES 1000 /* copies of a row; the engine writes for microseconds */

struct wire_adapter_row {
    char name[WIRE_ADAPTER_NAME];
    char path[WIRE_ADAPTER_PATH];
    uint8_t digest[WIRE_ADAPTER_DIGEST]; /* of the content; what requests refer to */
};

/* A row as words. */
#define WIRE_ADAPTER_WORDS (sizeof(struct wire_adapter_row) / sizeof(uint32_t))
_Static_assert(sizeof(struct wire_adapter_row) % sizeof(uint32_t) == 0, "a row is whole words");

struct wire_adapters { /* [W: engine] */
    _Atomic uint32_t version;
    _Atomic uint32_t n; /* 0 .. WIRE_ADAPTERS_MAX */
    /* For metrics, whatever the version: of the row with number i the bit i. A reader may see those
     * of other names for a pass after names have changed. */
    _Atomic uint64_t running, waiting; /* sequences with the row's adapter run, wait */
    _Atomic uint32_t n_slots;          /* adapters that may run at a time; 0: adapters are off */
    _Atomic uint32_t rows[WIRE_ADAPTERS_MAX][WIRE_ADAPTER_WORDS]; /* struct wire_adapter_row */
};

/* The engine's side: begin an update of the table, put rows 0 .. n - 1, end it. */
static inline void wire_adapters_begin(struct wire_adapters *a)
{
    uint32_t version = atomic_load_explicit(&a->version, memory_order_relaxed);

    atomic_store_explicit(&a->version, version + 1, memory_order_relaxed);
}

static inline void wire_adapters_put(struct wire_adapters *a, uint32_t i,
                                     const struct wire_adapter_row *row)
{
    uint32_t words[WIRE_ADAPTER_WORDS];

    memcpy(words, row, sizeof words);
    for (size_t w = 0; w < WIRE_ADAPTER_WORDS; w++)
        atomic_store_explicit(&a->rows[i][w], words[w], memory_order_release);
}

static inline void wire_adapters_end(struct wire_adapters *a, uint32_t n)
{
    uint32_t version = atomic_load_explicit(&a->version, memory_order_relaxed);

    atomic_store_explicit(&a->n, n, memory_order_release);
    atomic_store_explicit(&a->version, version + 1, memory_order_release);
}

/* Copy row i; false: there are no more rows. The texts end with NUL whatever the engine wrote. */
static inline bool wire_adapters_at(const struct wire_adapters *a, uint32_t i,
                                    struct wire_adapter_row *out)
{
    for (int try = 0; try < WIRE_ADAPTERS_TRIES; try++) {
        uint32_t words[WIRE_ADAPTER_WORDS];
        uint32_t before = atomic_load_explicit(&a->version, memory_order_acquire);
        uint32_t n = atomic_load_explicit(&a->n, memory_order_acquire);
        bool is_there = i < n && i < WIRE_ADAPTERS_MAX;

        for (size_t w = 0; is_there && w < WIRE_ADAPTER_WORDS; w++)
            words[w] = atomic_load_explicit(&a->rows[i][w], memory_order_acquire);
        if (before % 2 != 0 || before != atomic_load_explicit(&a->version, memory_order_relaxed))
            continue;
        if (!is_there)
            return false;
        memcpy(out, words, sizeof words);
        out->name[WIRE_ADAPTER_NAME - 1] = out->path[WIRE_ADAPTER_PATH - 1] = '\0';
        return true;
    }
    return false; /* the engine died while it wrote */
}

/* Copy the row of a name of len bytes; false: there is none. */
static inline bool wire_adapters_find(const struct wire_adapters *a, const char *name, size_t len,
                                      struct wire_adapter_row *out)
{
    if (len == 0 || len >= WIRE_ADAPTER_NAME)
        return false;
    for (uint32_t i = 0; i < WIRE_ADAPTERS_MAX && wire_adapters_at(a, i, out); i++) {
        if (strlen(out->name) == len && memcmp(out->name, name, len) == 0)
            return true;
    }
    return false;
}

#endif
