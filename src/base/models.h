/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder models_dir: a file NAME.conf per model. Fronts and quire serve read it again each
 * MODELS_LOOK_US, so that files come and go while they run. */
#ifndef QUIRE_BASE_MODELS_H
#define QUIRE_BASE_MODELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define MODELS_MAX     64
#define MODELS_NAME    64 /* bytes of a name, with NUL */

#define MODELS_LOOK_US 1000000 /* between two looks at the folder */
#define MODELS_MISSING \
    3 /* a file that is missing in so many looks is gone; an editor may
                                * remove and write one */

struct models {
    char names[MODELS_MAX][MODELS_NAME]; /* sorted; the first n */
    int n;
    uint64_t unusable; /* a digest of the names of files that are left out; 0: none is */
};

/* The state of a model's file; all 0: it is not there. */
struct models_file {
    uint64_t inode, bytes;
    int64_t changed_ns;
};

/* Read the names of a folder. Files whose names do not end in .conf are ignored. Left out and
 * logged, unless they are those of *out, which an earlier call wrote (or {0}): files with other
 * bytes in their names than letters, digits, '-', '_' and '.', or more than MODELS_NAME - 1, and
 * those beyond MODELS_MAX. ERR_IO (not logged, errno set): the folder cannot be read; *out is
 * empty. */
int models_look(struct models *out, const char *folder) ERR_CHECKED;

/* models_look() at the start of a program. ERR_IO, or ERR_INVALID: there is no model (both
 * logged). */
int models_read(struct models *out, const char *folder) ERR_CHECKED;

bool models_have(const struct models *models, const char *name);

/* The state of the file of a model. */
struct models_file models_state_of(const char *folder, const char *name);
bool models_same_file(const struct models_file *a, const struct models_file *b);

/* Write the path of a model's file, cut to cap bytes. */
void models_file(char *path, size_t cap, const char *folder, const char *name);

/* Write the path of the socket of a model's engine in models_run, cut to cap bytes. */
void models_socket(char *path, size_t cap, const char *run, const char *name);

#endif
