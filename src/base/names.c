/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of served model names. It is split in place: names point into out->text.
 *
 * For example, "qwen3, default *" means the names qwen3 and default, and that any other name is
 * accepted as well. Without a list, the name is the last part of the model's folder. */
#include "base/names.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"

/* "/models/Qwen3-8B" gives "Qwen3-8B"; a trailing slash is not expected. */
static const char *names_last_part(const char *folder)
{
    const char *slash = strrchr(folder, '/');

    if (slash == NULL || slash[1] == '\0')
        return folder;
    return slash + 1;
}

/* False: there are too many. "*" is no name: it makes the server accept any name. */
static bool names_add(struct names *out, const char *name)
{
    must(out->n <= NAMES_MAX);
    if (strcmp(name, "*") == 0) {
        out->any = true;
        return true;
    }
    for (int i = 0; i < out->n; i++) {
        if (strcmp(out->at[i], name) == 0)
            return true; /* listed twice */
    }
    if (out->n == NAMES_MAX)
        return false;
    out->at[out->n++] = name;
    return true;
}

int names_read(struct names *out, const char *list, const char *folder)
{
    static const char between[] = ", \t";
    char *rest = out->text;
    char *name;

    must(list != NULL && folder != NULL);
    out->n = 0;
    out->any = false;
    if (strlen(list) >= sizeof out->text) {
        log_error("settings: served_model_name is longer than %zu bytes; shorten it",
                  sizeof out->text - 1);
        return ERR_INVALID;
    }
    /* strtok_r() puts a NUL after each name, so at[] can point into the text. */
    memcpy(out->text, list, strlen(list) + 1);
    while ((name = strtok_r(rest, between, &rest)) != NULL) {
        if (!names_add(out, name)) {
            log_error("settings: served_model_name has more than %d names; remove some", NAMES_MAX);
            return ERR_INVALID;
        }
    }
    if (out->n == 0)
        out->at[out->n++] = names_last_part(folder);
    return ERR_OK;
}

/* The name need not end with NUL, since it may be a part of a path. */
bool names_have(const struct names *names, const char *name, size_t len)
{
    if (names->any)
        return true;
    for (int i = 0; i < names->n; i++) {
        if (strlen(names->at[i]) == len && memcmp(names->at[i], name, len) == 0)
            return true;
    }
    return false;
}
