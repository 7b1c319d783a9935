/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder models_dir: a file NAME.conf per model. */
#ifndef QUIRE_BASE_MODELS_H
#define QUIRE_BASE_MODELS_H

#include <stddef.h>

#include "base/err.h"

#define MODELS_MAX  64
#define MODELS_NAME 64 /* bytes of a name, with NUL */

struct models {
    char names[MODELS_MAX][MODELS_NAME]; /* sorted; the first n */
    int n;
};

/* Read the names of a folder. Files whose names do not end in .conf are ignored. ERR_IO: it cannot
 * be read; ERR_INVALID: there is no such file, too many, or a name with other bytes than letters,
 * digits, '-', '_' and '.', or longer than MODELS_NAME - 1 (all logged). */
int models_read(struct models *out, const char *folder) ERR_CHECKED;

/* Write the path of a model's file, cut to cap bytes. */
void models_file(char *path, size_t cap, const char *folder, const char *name);

/* Write the path of the socket of a model's engine in models_run, cut to cap bytes. */
void models_socket(char *path, size_t cap, const char *run, const char *name);

#endif
