/* What lmdb-dump is asked for, for its parts. */
#ifndef QUIRE_TOOLS_DUMP_H
#define QUIRE_TOOLS_DUMP_H

#include <stdbool.h>
#include <stdint.h>

struct dump_wishes {
    bool json;
    bool verify;
    bool summary;
    const char *name; /* prefix of a page's name, hexadecimal; NULL: all */
    uint64_t limit;   /* entries that are shown; 0: all */
};

/* Print the host tier's file; the exit status. */
int dump_host(const char *path, const struct dump_wishes *wishes);

#endif
