/* SPDX-License-Identifier: Apache-2.0
 *
 * The names under which a model is served: the setting served_model_name, a list.
 *
 * Names are separated by commas or white space. The first is the model's own: it labels metrics and
 * appears in answers. "*" accepts any name in requests; alone, it leaves the model the name of its
 * folder. */
#ifndef QUIRE_BASE_NAMES_H
#define QUIRE_BASE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define NAMES_MAX   32
#define NAMES_BYTES 2048 /* all names together */

struct names {
    const char *at[NAMES_MAX]; /* n of them, at least 1; they point into text or the folder path */
    int n;
    bool any; /* "*" is in the list */
    char text[NAMES_BYTES];
};

/* Read a list; an empty list means the last part of the folder's path. folder must live as long as
 * the names. ERR_INVALID (logged) for too many names or bytes. */
int names_read(struct names *out, const char *list, const char *folder) ERR_CHECKED;

/* Is this a name of the model? */
bool names_have(const struct names *names, const char *name, size_t len);

#endif
