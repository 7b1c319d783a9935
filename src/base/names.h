/* The names under which a model is served: setting served_model_name, a list.
 *
 * Names are separated by commas or white space. The first is the model's own: it labels metrics and
 * stands in answers. "*" means that every name is answered; alone, it leaves the model its folder's
 * name. */
#ifndef QUIRE_BASE_NAMES_H
#define QUIRE_BASE_NAMES_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

#define NAMES_MAX   32
#define NAMES_BYTES 2048 /* all names together */

struct names {
    const char *at[NAMES_MAX]; /* n of them, in text or the caller's folder path; never 0 of them */
    int n;
    bool any; /* "*" is among them */
    char text[NAMES_BYTES];
};

/* Read a list, or take the last part of the folder's path if it is empty; folder must live as long
 * as the names. ERR_INVALID (logged) for too many names or bytes. */
int names_read(struct names *out, const char *list, const char *folder) ERR_CHECKED;

/* Is this a name of the model? */
bool names_have(const struct names *names, const char *name, size_t len);

#endif
