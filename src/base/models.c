/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the folder of models. */
#include "base/models.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define MODELS_END   ".conf"
#define MODELS_BYTES "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

static int models_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Add the model of a file, if it is one. */
static int models_add(struct models *out, const char *folder, const char *file)
{
    size_t len = strlen(file);

    if (len <= strlen(MODELS_END) || strcmp(file + len - strlen(MODELS_END), MODELS_END) != 0)
        return ERR_OK;
    len -= strlen(MODELS_END);
    if (len >= MODELS_NAME || file[0] == '.' || strspn(file, MODELS_BYTES) != strlen(file)) {
        log_error("settings: %s/%s: a model's name has at most %d letters, digits, '-', '_' and "
                  "'.'; rename the file",
                  folder, file, MODELS_NAME - 1);
        return ERR_INVALID;
    }
    if (out->n == MODELS_MAX) {
        log_error("settings: %s has more than %d models", folder, MODELS_MAX);
        return ERR_INVALID;
    }
    memcpy(out->names[out->n], file, len);
    out->names[out->n++][len] = '\0';
    return ERR_OK;
}

int models_read(struct models *out, const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int rc = ERR_OK;

    out->n = 0;
    if (dir == NULL) {
        log_error("settings: models_dir %s: %s", folder, strerror(errno));
        return ERR_IO;
    }
    while (rc == ERR_OK && (entry = readdir(dir)) != NULL)
        rc = models_add(out, folder, entry->d_name);
    (void)closedir(dir);
    if (rc == ERR_OK && out->n == 0) {
        log_error("settings: models_dir %s has no file NAME.conf", folder);
        rc = ERR_INVALID;
    }
    qsort(out->names, (size_t)out->n, sizeof out->names[0], models_compare);
    return rc;
}

void models_file(char *path, size_t cap, const char *folder, const char *name)
{
    (void)snprintf(path, cap, "%s/%s" MODELS_END, folder, name);
}

void models_socket(char *path, size_t cap, const char *run, const char *name)
{
    (void)snprintf(path, cap, "%s/%s.sock", run, name);
}
