/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the folder of models. */
#include "base/models.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "base/log.h"

#define MODELS_END   ".conf"
#define MODELS_BYTES "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."

static int models_compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* The length of the model's name in that of a file; 0: it is no model's file. */
static size_t models_name_len(const char *file)
{
    size_t len = strlen(file), end_len = strlen(MODELS_END);

    if (file[0] == '.' || len <= end_len || strcmp(file + len - end_len, MODELS_END) != 0)
        return 0;
    return len - end_len;
}

static bool models_is_usable(const char *file, size_t len)
{
    return len < MODELS_NAME && strspn(file, MODELS_BYTES) == strlen(file);
}

/* Say which files are left out. */
static void models_log(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int n = 0;

    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        size_t len = models_name_len(entry->d_name);

        if (len > 0 && !models_is_usable(entry->d_name, len))
            log_error("settings: %s/%s is left out: a model's name has at most %d letters, digits, "
                      "'-', '_' and '.'; rename the file",
                      folder, entry->d_name, MODELS_NAME - 1);
        n += len > 0 && models_is_usable(entry->d_name, len);
    }
    if (dir != NULL)
        (void)closedir(dir);
    if (n > MODELS_MAX)
        log_error("settings: %s has %d models: %d of them are left out, the limit is %d", folder, n,
                  n - MODELS_MAX, MODELS_MAX);
}

int models_look(struct models *out, const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    uint64_t unusable = 0;

    out->n = 0;
    if (dir == NULL)
        return ERR_IO;
    while ((entry = readdir(dir)) != NULL) {
        const char *file = entry->d_name;
        size_t len = models_name_len(file);

        if (len == 0)
            continue;
        if (!models_is_usable(file, len) || out->n == MODELS_MAX) {
            unusable += hash_xxh3(file, strlen(file)) | 1; /* in any order */
            continue;
        }
        memcpy(out->names[out->n], file, len);
        out->names[out->n++][len] = '\0';
    }
    (void)closedir(dir);
    qsort(out->names, (size_t)out->n, sizeof out->names[0], models_compare);
    if (unusable != 0 && unusable != out->unusable)
        models_log(folder);
    out->unusable = unusable;
    return ERR_OK;
}

int models_read(struct models *out, const char *folder)
{
    out->unusable = 0;
    if (models_look(out, folder) != ERR_OK) {
        log_error("settings: models_dir %s: %s", folder, strerror(errno));
        return ERR_IO;
    }
    if (out->n > 0)
        return ERR_OK;
    log_error("settings: models_dir %s has no file NAME.conf", folder);
    return ERR_INVALID;
}

bool models_have(const struct models *models, const char *name)
{
    for (int i = 0; i < models->n; i++) {
        if (strcmp(models->names[i], name) == 0)
            return true;
    }
    return false;
}

struct models_file models_state_of(const char *folder, const char *name)
{
    char path[PATH_MAX];
    struct stat st;

    models_file(path, sizeof path, folder, name);
    if (stat(path, &st) != 0)
        return (struct models_file){0};
    return (struct models_file){.inode = st.st_ino,
                                .bytes = (uint64_t)st.st_size,
                                .changed_ns =
                                    (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec};
}

bool models_same_file(const struct models_file *a, const struct models_file *b)
{
    return a->inode == b->inode && a->bytes == b->bytes && a->changed_ns == b->changed_ns;
}

void models_file(char *path, size_t cap, const char *folder, const char *name)
{
    (void)snprintf(path, cap, "%s/%s" MODELS_END, folder, name);
}

void models_socket(char *path, size_t cap, const char *run, const char *name)
{
    (void)snprintf(path, cap, "%s/%s.sock", run, name);
}
