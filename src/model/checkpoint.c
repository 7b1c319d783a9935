/* SPDX-License-Identifier: Apache-2.0
 *
 * The tensors of a checkpoint folder, found by name.
 *
 * With model.safetensors.index.json, only the files that it names are read, because folders often
 * hold a second copy of the weights in another arrangement, and each name must be in the file that
 * the index gives. Without it, the one file is model.safetensors. A folder that has neither may
 * have PyTorch's files, pytorch_model.bin with or without an index.
 *
 * A checkpoint may also be a GGUF file, or several with names such as NAME-00001-of-00003.gguf.
 *
 * Files are mapped to parse their headers; tensor data is read by pread() (checkpoint_read()),
 * because an I/O error is then a return value and not a signal. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/gguf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/must.h"
#include "model/hf_config.h"
#include "model/safetensors.h"
#include "model/torch_zip.h"

/* Bounds against damaged or hostile folders; real ones are far below. */
#define FILES_MAX       4096
#define INDEX_BYTES_MAX ((size_t)256 << 20)
#define ARENA_MAX       ((size_t)4 << 30)

struct checkpoint_file {
    const char *path;
    int fd;    /* open while map is not NULL */
    void *map; /* NULL until mapped */
    size_t len;
    struct tensor_list list; /* sorted by address of data; copied to the checkpoint's list later */
};

struct checkpoint {
    struct arena arena;
    struct checkpoint_file *files;
    int n_files;
    enum { FILES_SAFETENSORS, FILES_TORCH, FILES_GGUF } kind;
    struct tensor *tensors; /* of all files, sorted by name for bsearch() */
    size_t n_tensors;
};

/* Order of the checkpoint's list, for qsort() and bsearch(). */
static int checkpoint_by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* 8 bytes is the least that a safetensors file can have: the length of its header. */
static int checkpoint_map_file(struct checkpoint_file *f)
{
    int fd = open(f->path, O_RDONLY | O_CLOEXEC), rc = ERR_IO;
    struct stat st;

    if (fd == -1) {
        log_error("model: %s: %s", f->path, strerror(errno));
        if (errno == ENOENT)
            return ERR_NOT_FOUND;
        return ERR_IO;
    }
    if (fstat(fd, &st) == -1 || !S_ISREG(st.st_mode) || st.st_size < 8) {
        log_error("model: %s: not a file of at least 8 bytes", f->path);
        rc = ERR_CORRUPT;
        goto out;
    }
    f->len = (size_t)st.st_size;
    f->map = mmap(NULL, f->len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (f->map == MAP_FAILED) {
        f->map = NULL;
        log_error("model: %s: mapping %zu bytes: %s", f->path, f->len, strerror(errno));
        goto out;
    }
    f->fd = fd;
    fd = -1;
    (void)posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* a hint: doubles the kernel's
                                                              * readahead */
    rc = ERR_OK;
out:
    if (fd != -1)
        (void)close(fd); /* was only read */
    return rc;
}

/* The tensors of a GGUF file, as those of other files. */
static int checkpoint_parse_gguf(struct tensor_list *out, struct arena *arena,
                                 const struct checkpoint_file *f, char *why, size_t why_cap)
{
    struct gguf g = {.n_values = 0};
    struct tensor *tensors;
    int rc = gguf_parse(&g, arena, f->map, f->len, why, why_cap);

    if (rc != ERR_OK)
        return rc;
    tensors = arena_zalloc(arena, (g.n_tensors + 1) * sizeof *tensors);
    if (tensors == NULL)
        return ERR_NO_MEMORY;
    for (size_t i = 0; i < g.n_tensors; i++) {
        const struct gguf_tensor *from = &g.tensors[i];

        tensors[i] = (struct tensor){.name = from->name,
                                     .dtype = from->type,
                                     .n_dims = from->n_dims,
                                     .data = from->data,
                                     .bytes = from->bytes};
        memcpy(tensors[i].dims, from->dims, sizeof from->dims);
    }
    *out = (struct tensor_list){tensors, g.n_tensors};
    return ERR_OK;
}

/* Tensors of a file note its number, so that their data can be read and their path reported
 * later. */
static int checkpoint_open_file(struct checkpoint *c, int file)
{
    struct checkpoint_file *entry = &c->files[file];
    char why[500];
    int rc = checkpoint_map_file(entry);

    if (rc != ERR_OK)
        return rc;
    switch (c->kind) {
    case FILES_SAFETENSORS:
        rc = safetensors_parse(&entry->list, &c->arena, entry->map, entry->len, why, sizeof why);
        break;
    case FILES_TORCH:
        rc = torch_zip_parse(&entry->list, &c->arena, entry->map, entry->len, why, sizeof why);
        break;
    case FILES_GGUF:
        rc = checkpoint_parse_gguf(&entry->list, &c->arena, entry, why, sizeof why);
        break;
    }
    if (rc != ERR_OK) {
        log_error("model: %s: %s", entry->path, rc == ERR_NO_MEMORY ? err_sentence(rc) : why);
        return rc;
    }
    for (size_t i = 0; i < entry->list.n; i++)
        entry->list.tensors[i].file = file;
    return ERR_OK;
}

/* Collect the tensors of all files in one list, sorted by name. A name in two files is an error,
 * because bsearch() would return either of them. */
static int checkpoint_gather_tensors(struct checkpoint *c)
{
    size_t n = 0;

    for (int i = 0; i < c->n_files; i++)
        n += c->files[i].list.n;
    /* One more than needed, so that an empty checkpoint allocates something. */
    c->tensors = arena_alloc(&c->arena, (n + 1) * sizeof *c->tensors);
    if (c->tensors == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < c->n_files; i++) {
        if (c->files[i].list.n == 0)
            continue;
        memcpy(c->tensors + c->n_tensors, c->files[i].list.tensors,
               c->files[i].list.n * sizeof *c->tensors);
        c->n_tensors += c->files[i].list.n;
    }
    qsort(c->tensors, c->n_tensors, sizeof *c->tensors, checkpoint_by_name);
    for (size_t i = 1; i < c->n_tensors; i++) {
        if (checkpoint_by_name(&c->tensors[i - 1], &c->tensors[i]) == 0) {
            log_error("model: tensor %.100s appears twice", c->tensors[i].name);
            return ERR_CORRUPT;
        }
    }
    return ERR_OK;
}

/* The index of the file with this name, which is added if it is not there yet; negative on error. A
 * name with a slash could leave the folder and is refused. */
static int checkpoint_add_file(struct checkpoint *c, const char *dir, const char *name)
{
    size_t room = strlen(dir) + strlen(name) + 2;
    char *path;

    if (name[0] == '\0' || strchr(name, '/') != NULL || strcmp(name, "..") == 0) {
        log_error("model: %s: the index names a file outside the folder: \"%.100s\"", dir, name);
        return ERR_CORRUPT;
    }
    for (int i = 0; i < c->n_files; i++) {
        if (strcmp(strrchr(c->files[i].path, '/') + 1, name) == 0)
            return i;
    }
    if (c->n_files == FILES_MAX)
        return ERR_LIMIT;
    if ((path = arena_alloc(&c->arena, room)) == NULL)
        return ERR_NO_MEMORY;
    (void)snprintf(path, room, "%s/%s", dir, name);
    /* Opened later by checkpoint_open_files(), when all names are known. */
    c->files[c->n_files].path = path;
    return c->n_files++;
}

/* The index looks like {"metadata": {...}, "weight_map": {"lm_head.weight":
 * "model-00002.safetensors"}}. Only weight_map is read. */
static int checkpoint_read_index(struct checkpoint *c, const struct json **map, const char *path,
                                 const char *text, size_t len)
{
    const struct json *index;
    char why[200];
    int rc = json_parse(&index, &c->arena, text, len, why, sizeof why);

    if (rc != ERR_OK) {
        log_error("model: %s: %s", path, rc == ERR_NO_MEMORY ? err_sentence(rc) : why);
        return rc;
    }
    /* "metadata" has the total size, which is not needed. */
    *map = json_get_kind(index, "weight_map", JSON_OBJECT);
    if (*map == NULL) {
        log_error("model: %s: weight_map is missing", path);
        return ERR_SYNTAX;
    }
    for (uint32_t i = 0; i < (*map)->n; i++) {
        if ((*map)->items[i].kind != JSON_TEXT) {
            log_error("model: %s: weight_map must hold file names", path);
            return ERR_SYNTAX;
        }
    }
    return ERR_OK;
}

/* Verify that each tensor of the index is in the file that the index gives for it. */
static int checkpoint_check_index(const struct checkpoint *c, const struct json *map)
{
    for (uint32_t i = 0; i < map->n; i++) {
        const struct tensor *tensor = checkpoint_find(c, map->items[i].key);

        if (tensor == NULL ||
            !json_is_text(&map->items[i], strrchr(c->files[tensor->file].path, '/') + 1)) {
            log_error("model: by the index %.100s holds %.100s, but it does not",
                      map->items[i].text, map->items[i].key);
            return ERR_CORRUPT;
        }
    }
    return ERR_OK;
}

/* List the files of a set. */
static int checkpoint_add_gguf(struct checkpoint *c, const char *path)
{
    size_t room = strlen(path) + 1;
    int n;

    c->kind = FILES_GGUF;
    if (gguf_set_count(path, &n) != ERR_OK) {
        log_error("model: %s: name the first file of the set", path);
        return ERR_INVALID;
    }
    for (int i = 0; i < n; i++) {
        char *name = arena_alloc(&c->arena, room);

        if (name == NULL)
            return ERR_NO_MEMORY;
        gguf_set_path(name, room, path, i, n);
        c->files[c->n_files++].path = name;
    }
    return ERR_OK;
}

_Static_assert(GGUF_SET_MAX <= FILES_MAX, "a set fits");

/* map is the index's weight_map, NULL without an index. */
static int checkpoint_open_files(struct checkpoint *c, const char *dir, const struct json *map)
{
    int rc;

    for (uint32_t i = 0; map != NULL && i < map->n; i++) {
        if ((rc = checkpoint_add_file(c, dir, map->items[i].text)) < 0)
            return rc;
    }
    for (int i = 0; i < c->n_files; i++) {
        if ((rc = checkpoint_open_file(c, i)) != ERR_OK)
            return rc;
    }
    if ((rc = checkpoint_gather_tensors(c)) != ERR_OK)
        return rc;
    if (map == NULL)
        return ERR_OK;
    return checkpoint_check_index(c, map);
}

static bool checkpoint_has(const char *dir, const char *name)
{
    char path[4096];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name); /* a path that is cut does not exist */
    return access(path, F_OK) == 0;
}

/* A folder of safetensors files, or of PyTorch's. */
static int checkpoint_open_folder(struct checkpoint *c, const char *dir)
{
    const struct json *map = NULL;
    const char *file = "model.safetensors";
    char path[4096], *text = NULL;
    size_t len = 0;
    int rc;

    if (!checkpoint_has(dir, file) && !checkpoint_has(dir, "model.safetensors.index.json") &&
        (checkpoint_has(dir, "pytorch_model.bin") ||
         checkpoint_has(dir, "pytorch_model.bin.index.json"))) {
        file = "pytorch_model.bin";
        c->kind = FILES_TORCH;
    }
    (void)snprintf(path, sizeof path, "%s/%s.index.json", dir, file);
    rc = config_file(&text, &len, path, INDEX_BYTES_MAX);
    if (rc == ERR_OK)
        rc = checkpoint_read_index(c, &map, path, text, len);
    else if (rc == ERR_NOT_FOUND)
        rc = ERR_OK;
    if (rc == ERR_OK && map == NULL)
        rc = checkpoint_add_file(c, dir, file);
    if (rc >= ERR_OK)
        rc = checkpoint_open_files(c, dir, map);
    mem_free(text);
    return rc;
}

/* The array of files has its final size from the start, so that pointers to its members stay
 * valid. */
int checkpoint_open(struct checkpoint **out, const char *dir)
{
    struct checkpoint *checkpoint = mem_zalloc(sizeof *checkpoint);
    int rc = ERR_NO_MEMORY;

    if (checkpoint == NULL)
        goto out;
    checkpoint->arena.limit_bytes = ARENA_MAX;
    checkpoint->files = arena_zalloc(&checkpoint->arena, FILES_MAX * sizeof *checkpoint->files);
    if (checkpoint->files == NULL)
        goto out;
    if (!gguf_is_path(dir))
        rc = checkpoint_open_folder(checkpoint, dir);
    else if ((rc = checkpoint_add_gguf(checkpoint, dir)) == ERR_OK)
        rc = checkpoint_open_files(checkpoint, dir, NULL);
    if (rc != ERR_OK)
        goto out;
    *out = checkpoint;
    checkpoint = NULL;
out:
    checkpoint_close(checkpoint);
    return rc;
}

/* Accepts a checkpoint that was opened half-way: files without a map were not opened. */
void checkpoint_close(struct checkpoint *c)
{
    if (c == NULL)
        return;
    for (int i = 0; i < c->n_files; i++) {
        if (c->files[i].map == NULL)
            continue;
        (void)munmap(c->files[i].map, c->files[i].len); /* own mapping: cannot fail */
        (void)close(c->files[i].fd);                    /* was only read */
    }
    arena_reset(&c->arena);
    mem_free(c);
}

/* Names are unique, as checkpoint_gather_tensors() has verified. */
const struct tensor *checkpoint_find(const struct checkpoint *c, const char *name)
{
    struct tensor key = {.name = name};

    return bsearch(&key, c->tensors, c->n_tensors, sizeof *c->tensors, checkpoint_by_name);
}

size_t checkpoint_size(const struct checkpoint *c)
{
    return c->n_tensors;
}

const struct tensor *checkpoint_tensor(const struct checkpoint *c, size_t i)
{
    must(i < c->n_tensors);
    return &c->tensors[i];
}

/* Large reads return in parts, and a signal may interrupt them. */
int checkpoint_read(const struct checkpoint *c, const struct tensor *t, size_t at, void *to,
                    size_t n)
{
    const struct checkpoint_file *file = &c->files[t->file];
    size_t offset = (size_t)(t->data - (const uint8_t *)file->map) + at;

    must(at <= t->bytes && n <= t->bytes - at);
    for (size_t done = 0; done < n;) { /* ends: each pass reads at least one byte or returns */
        ssize_t got = -1;

        /* The fault point makes the call fail as pread() would. */
        errno = EIO;
        if (!FAULT_HIT(model_read))
            got = pread(file->fd, (char *)to + done, n - done, (off_t)(offset + done));
        if (got == -1 && errno == EINTR)
            continue;
        if (got == -1) {
            log_error("model: %s: reading tensor %.100s: %s", file->path, t->name, strerror(errno));
            return ERR_IO;
        }
        if (got == 0) {
            log_error("model: %s: ends at byte %zu of %zu: it was truncated while it was read",
                      file->path, offset + done, file->len);
            return ERR_CORRUPT;
        }
        done += (size_t)got;
    }
    return ERR_OK;
}

/* For messages. */
const char *checkpoint_path(const struct checkpoint *c, const struct tensor *t)
{
    return c->files[t->file].path;
}
