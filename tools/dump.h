/* SPDX-License-Identifier: Apache-2.0
 *
 * The options of lmdb-dump, and the functions that its files share. */
#ifndef QUIRE_TOOLS_DUMP_H
#define QUIRE_TOOLS_DUMP_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/retain.h"
#include "kv/store_db.h"

struct dump_wishes {
    bool json;
    bool verify;
    bool summary;
    const char *name; /* prefix of a page's name, hexadecimal; NULL: all */
    uint64_t limit;   /* maximum entries printed; 0: all */
};

/* A page's retention as text: "-" for the default, otherwise its priority and the time of its
 * end. */
void dump_retain(struct retain r, char out[48]);

/* Pages, retained pages and uses (reads of the tier) per namespace (prefix_space()). Element 0
 * collects the namespaces that found no place. */
#define DUMP_ROOTS 256
struct dump_roots {
    int n;
    struct dump_root {
        uint64_t root, pages, retained, uses;
    } list[DUMP_ROOTS];
};
void dump_count(struct dump_roots *roots, uint64_t root, struct retain r, uint64_t uses);
void dump_print_roots(const struct dump_roots *roots, bool json);

/* Prompt tokens per namespace, and those found in a cache, since the store's creation. */
void dump_print_rates(const struct store_rate *rates, int n, bool json);

/* Print the host tier's file. Returns the exit status. */
int dump_host(const char *path, const struct dump_wishes *wishes);

#endif
