/* What lmdb-dump is asked for, for its parts. */
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
    uint64_t limit;   /* entries that are shown; 0: all */
};

/* What is to be told of how long a page stays: "-" for the default, else its priority, and the time
 * when that ends. */
void dump_retain(struct retain r, char out[48]);

/* Pages and uses by namespace (prefix_space()), and how many are retained; uses are reads of the
 * tier. What finds no place is counted in the first. */
#define DUMP_ROOTS 256
struct dump_roots {
    int n;
    struct dump_root {
        uint64_t root, pages, retained, uses;
    } list[DUMP_ROOTS];
};
void dump_count(struct dump_roots *roots, uint64_t root, struct retain r, uint64_t uses);
void dump_print_roots(const struct dump_roots *roots, bool json);

/* Tokens of prompts by namespace, and how many a cache had, since the store was begun. */
void dump_print_rates(const struct store_rate *rates, int n, bool json);

/* Print the host tier's file; the exit status. */
int dump_host(const char *path, const struct dump_wishes *wishes);

#endif
