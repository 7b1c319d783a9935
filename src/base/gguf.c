/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the head of a GGUF file, and checks all of it.
 *
 * The format, little-endian: "GGUF", u32 version, u64 number of tensors, u64 number of settings;
 * the settings: text name, u32 kind, value; the tensors: text name, u32 number of dimensions, u64
 * of each, u32 type, u64 offset; then, at the next multiple of general.alignment, the data. A text
 * is a u64 length and that many bytes; a list is u32 kind, u64 number of items, items.
 *
 * A cursor that has once run past the end stays failed, so that a reader checks once. */
#include "base/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bounds against damaged files, which could otherwise ask for any amount of memory. */
#define VALUES_MAX    ((uint64_t)1 << 16)
#define TENSORS_MAX   ((uint64_t)1 << 20)
#define ALIGNMENT     32 /* where general.alignment is missing */
#define ALIGNMENT_MAX ((int64_t)1 << 20)
#define NAME_BYTES    256 /* longest name of a tensor; the format's own limit is 64 */

/* Types of tensors: elements of a block, and its bytes. Types without a name are not read. */
static const struct {
    const char *name;
    int elems, bytes;
} types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},   [14] = {"Q6_K", 256, 210},
    [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98},
    [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},
    [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},
    [25] = {"I16", 1, 2},        [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},
    [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
    [40] = {"NVFP4", 64, 36},
};

#define N_TYPES (sizeof types / sizeof types[0])

/* Bytes of a setting that has a fixed size; 0: texts and lists. */
static const uint8_t kind_bytes[GGUF_KINDS] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_FLAG] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

/* --- a cursor --------------------------------------------------------------------------------- */

struct gguf_cursor {
    const uint8_t *bytes;
    size_t len, at;
    bool failed; /* the bytes ended too early */
    char *why;
    size_t why_cap;
};

/* Write the reason for an error. Returns rc. */
__attribute__((format(printf, 3, 4))) static int gguf_refuse(const struct gguf_cursor *c, int rc,
                                                             const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(c->why, c->why_cap, format, args); /* cut is fine */
    va_end(args);
    return rc;
}

static int gguf_cut_short(const struct gguf_cursor *c)
{
    return gguf_refuse(c, ERR_CORRUPT,
                       "the head does not end within the file's %zu bytes (is it "
                       "cut short?)",
                       c->len);
}

/* Step over n bytes; NULL if there are fewer. */
static const uint8_t *gguf_take(struct gguf_cursor *c, uint64_t n)
{
    const uint8_t *at = c->bytes + c->at;

    if (c->failed || n > c->len - c->at) {
        c->failed = true;
        return NULL;
    }
    c->at += (size_t)n;
    return at;
}

/* A number of n bytes, assembled byte by byte, because the format is little-endian on every
 * machine. */
static uint64_t gguf_number_at(const uint8_t *at, int n)
{
    uint64_t number = 0;

    for (int i = 0; i < n; i++)
        number |= (uint64_t)at[i] << (8 * i);
    return number;
}

static uint64_t gguf_take_number(struct gguf_cursor *c, int n)
{
    const uint8_t *at = gguf_take(c, (uint64_t)n);

    if (at == NULL)
        return 0;
    return gguf_number_at(at, n);
}

static struct gguf_text gguf_take_text(struct gguf_cursor *c)
{
    uint64_t len = gguf_take_number(c, 8);
    const uint8_t *at = gguf_take(c, len);

    if (at == NULL)
        return (struct gguf_text){"", 0};
    return (struct gguf_text){(const char *)at, (size_t)len};
}

/* --- settings --------------------------------------------------------------------------------- */

/* Step over the n items of a list or the one of a setting. */
static void gguf_take_items(struct gguf_cursor *c, const struct gguf_value *v)
{
    uint64_t size = kind_bytes[v->kind];

    if (size > 0 && v->n > c->len / size)
        c->failed = true; /* the product below could overflow */
    else if (size > 0)
        (void)gguf_take(c, v->n * size); /* a failure is kept in the cursor */
    /* Each text takes at least 8 bytes, so the loop ends with the file. */
    for (uint64_t i = 0; size == 0 && i < v->n && !c->failed; i++)
        (void)gguf_take_text(c); /* likewise */
}

static int gguf_take_value(struct gguf_cursor *c, struct gguf_value *out)
{
    uint64_t kind;

    out->key = gguf_take_text(c);
    kind = gguf_take_number(c, 4);
    out->is_list = kind == GGUF_LIST;
    out->n = 1;
    if (out->is_list) {
        kind = gguf_take_number(c, 4);
        out->n = gguf_take_number(c, 8);
    }
    if (c->failed)
        return gguf_cut_short(c);
    if (kind >= GGUF_KINDS || kind == GGUF_LIST)
        return gguf_refuse(c, ERR_CORRUPT, "setting %.*s has a value of unknown kind %llu",
                           (int)(out->key.len < 100 ? out->key.len : 100), out->key.bytes,
                           (unsigned long long)kind);
    out->kind = (enum gguf_kind)kind;
    out->bytes = c->bytes + c->at;
    gguf_take_items(c, out);
    if (c->failed)
        return gguf_cut_short(c);
    out->len = (size_t)(c->bytes + c->at - out->bytes);
    return ERR_OK;
}

/* --- tensors ---------------------------------------------------------------------------------- */

/* The bytes of a tensor, by its shape and type. */
static int gguf_size_tensor(const struct gguf_cursor *c, struct gguf_tensor *t, uint64_t type)
{
    uint64_t elems = 1;
    int64_t cols = t->n_dims > 0 ? t->dims[t->n_dims - 1] : 1;

    if (type >= N_TYPES || types[type].name == NULL)
        return gguf_refuse(c, ERR_UNSUPPORTED, "tensor %s has type %llu, which is not read",
                           t->name, (unsigned long long)type);
    t->type = types[type].name;
    if (cols % types[type].elems != 0)
        return gguf_refuse(c, ERR_CORRUPT,
                           "tensor %s has rows of %lld elements, which are no whole blocks of %s",
                           t->name, (long long)cols, t->type);
    for (int i = 0; i < t->n_dims; i++) {
        if (__builtin_mul_overflow(elems, (uint64_t)t->dims[i], &elems))
            return gguf_refuse(c, ERR_CORRUPT, "tensor %s: the product of its shape overflows",
                               t->name);
    }
    if (__builtin_mul_overflow(elems / (uint64_t)types[type].elems, (uint64_t)types[type].bytes,
                               &t->bytes))
        return gguf_refuse(c, ERR_CORRUPT, "tensor %s: its size overflows", t->name);
    return ERR_OK;
}

/* One entry of the list. Its offset is kept in *offset until the place of the data is known. */
static int gguf_take_tensor(struct gguf_cursor *c, struct arena *arena, struct gguf_tensor *t,
                            uint64_t *offset)
{
    const struct gguf_text name = gguf_take_text(c);
    uint64_t n_dims = gguf_take_number(c, 4), type;

    if (c->failed)
        return gguf_cut_short(c);
    if (name.len == 0 || name.len > NAME_BYTES || memchr(name.bytes, '\0', name.len) != NULL)
        return gguf_refuse(c, ERR_CORRUPT, "a tensor's name is empty, too long or has a NUL");
    if ((t->name = arena_strndup(arena, name.bytes, name.len)) == NULL)
        return gguf_refuse(c, ERR_NO_MEMORY, "no memory for the list of tensors");
    if (n_dims > GGUF_DIMS_MAX)
        return gguf_refuse(c, ERR_CORRUPT, "tensor %s has %llu dimensions", t->name,
                           (unsigned long long)n_dims);
    t->n_dims = (int)n_dims;
    for (int i = t->n_dims - 1; i >= 0; i--) { /* the file's first dimension is the fastest */
        uint64_t dim = gguf_take_number(c, 8);

        if (dim > INT64_MAX)
            return gguf_refuse(c, ERR_CORRUPT, "tensor %s has a dimension out of range", t->name);
        t->dims[i] = (int64_t)dim;
    }
    type = gguf_take_number(c, 4);
    *offset = gguf_take_number(c, 8);
    if (c->failed)
        return gguf_cut_short(c);
    return gguf_size_tensor(c, t, type);
}

/* By address, so that overlaps show between neighbours. */
static int gguf_by_data(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;

    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* Give each tensor its data: offsets count from the next multiple of the alignment after the
 * head. */
static int gguf_place_tensors(const struct gguf_cursor *c, struct gguf *g, const uint64_t *offsets)
{
    int64_t alignment = ALIGNMENT;
    size_t at, room;

    (void)gguf_whole(g, "general.alignment", &alignment); /* stays the preset when missing */
    if (alignment < 1 || alignment > ALIGNMENT_MAX)
        return gguf_refuse(c, ERR_CORRUPT, "general.alignment %lld is out of range",
                           (long long)alignment);
    at = (c->at + (size_t)alignment - 1) / (size_t)alignment * (size_t)alignment;
    if (at > c->len) /* a file without tensors may end with the head */
        at = c->len;
    room = c->len - at;
    g->data = c->bytes + at;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];

        if (offsets[i] > room || t->bytes > room - (size_t)offsets[i])
            return gguf_refuse(c, ERR_CORRUPT,
                               "tensor %s needs %zu bytes from %llu on, and the file has %zu bytes "
                               "of data (is it cut short?)",
                               t->name, t->bytes, (unsigned long long)offsets[i], room);
        t->data = g->data + (size_t)offsets[i];
    }
    if (g->n_tensors > 0)
        qsort(g->tensors, g->n_tensors, sizeof *g->tensors, gguf_by_data);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *before = &g->tensors[i - 1];

        if ((size_t)(g->tensors[i].data - before->data) < before->bytes)
            return gguf_refuse(c, ERR_CORRUPT, "tensor %s overlaps %s", g->tensors[i].name,
                               before->name);
    }
    return ERR_OK;
}

/* --- the file --------------------------------------------------------------------------------- */

/* The fixed part: magic, version and the two counts. */
static int gguf_take_head(struct gguf_cursor *c, uint64_t *n_tensors, uint64_t *n_values)
{
    const uint8_t *magic = gguf_take(c, 4);
    uint64_t version = gguf_take_number(c, 4);

    if (magic == NULL || memcmp(magic, "GGUF", 4) != 0)
        return gguf_refuse(c, ERR_CORRUPT, "not a GGUF file");
    *n_tensors = gguf_take_number(c, 8);
    *n_values = gguf_take_number(c, 8);
    if (c->failed)
        return gguf_cut_short(c);
    if (version > 0xffff) /* 3 in the other byte order */
        return gguf_refuse(c, ERR_UNSUPPORTED, "a big-endian GGUF file is not read");
    if (version != 2 && version != 3) /* version 1 had counts of 32 bits */
        return gguf_refuse(c, ERR_UNSUPPORTED, "GGUF version %llu is not read, only 2 and 3",
                           (unsigned long long)version);
    if (*n_tensors > TENSORS_MAX || *n_values > VALUES_MAX)
        return gguf_refuse(c, ERR_CORRUPT, "the head claims %llu tensors and %llu settings",
                           (unsigned long long)*n_tensors, (unsigned long long)*n_values);
    return ERR_OK;
}

/* An entry takes 13 bytes of the head or more, so a short file cannot ask for a long list. */
static bool gguf_could_hold(const struct gguf_cursor *c, uint64_t n_entries)
{
    return n_entries <= (c->len - c->at) / 13;
}

int gguf_parse(struct gguf *out, struct arena *arena, const uint8_t *bytes, size_t len, char *why,
               size_t why_cap)
{
    struct gguf_cursor c = {.bytes = bytes, .len = len, .why = why, .why_cap = why_cap};
    struct gguf g = {.n_values = 0};
    uint64_t n_tensors = 0, n_values = 0, *offsets;
    int rc = gguf_take_head(&c, &n_tensors, &n_values);

    if (rc != ERR_OK)
        return rc;
    if (!gguf_could_hold(&c, n_tensors + n_values))
        return gguf_cut_short(&c);
    /* One more than needed, so that an empty list allocates something. */
    g.values = arena_zalloc(arena, (size_t)(n_values + 1) * sizeof *g.values);
    g.tensors = arena_zalloc(arena, (size_t)(n_tensors + 1) * sizeof *g.tensors);
    offsets = arena_zalloc(arena, (size_t)(n_tensors + 1) * sizeof *offsets);
    if (g.values == NULL || g.tensors == NULL || offsets == NULL)
        return gguf_refuse(&c, ERR_NO_MEMORY, "no memory for %llu settings and %llu tensors",
                           (unsigned long long)n_values, (unsigned long long)n_tensors);
    for (; g.n_values < n_values && rc == ERR_OK; g.n_values++)
        rc = gguf_take_value(&c, &g.values[g.n_values]);
    for (; g.n_tensors < n_tensors && rc == ERR_OK; g.n_tensors++)
        rc = gguf_take_tensor(&c, arena, &g.tensors[g.n_tensors], &offsets[g.n_tensors]);
    if (rc == ERR_OK)
        rc = gguf_place_tensors(&c, &g, offsets);
    if (rc == ERR_OK)
        *out = g;
    return rc;
}

bool gguf_is_path(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

struct gguf_file {
    struct arena arena;
    void *map; /* NULL until mapped */
    size_t len;
    struct gguf g;
    struct gguf_file *next; /* of a set, owned; NULL behind the last */
};

static int gguf_map(struct gguf_file *file, const char *path, char *why, size_t why_cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = ERR_IO;
    struct stat st;

    if (fd == -1) {
        rc = errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO;
        (void)snprintf(why, why_cap, "%s: %s", path, strerror(errno));
        return rc;
    }
    if (fstat(fd, &st) == -1 || !S_ISREG(st.st_mode) || st.st_size < 24) {
        (void)snprintf(why, why_cap, "%s: not a file of at least 24 bytes", path);
        rc = ERR_CORRUPT;
        goto out;
    }
    file->len = (size_t)st.st_size;
    file->map = mmap(NULL, file->len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (file->map == MAP_FAILED) {
        file->map = NULL;
        (void)snprintf(why, why_cap, "%s: mapping %zu bytes: %s", path, file->len, strerror(errno));
        goto out;
    }
    rc = ERR_OK;
out:
    (void)close(fd); /* was only read; the mapping stays */
    return rc;
}

int gguf_open(struct gguf_file **out, const char *path, char *why, size_t why_cap)
{
    struct gguf_file *file = mem_zalloc(sizeof *file);
    char reason[300] = "out of memory";
    int rc = ERR_NO_MEMORY;

    if (file != NULL)
        rc = gguf_map(file, path, why, why_cap);
    if (rc == ERR_OK) {
        rc = gguf_parse(&file->g, &file->arena, file->map, file->len, reason, sizeof reason);
        if (rc != ERR_OK)
            (void)snprintf(why, why_cap, "%s: %s", path, reason);
    }
    if (rc == ERR_OK) {
        *out = file;
        return rc;
    }
    gguf_close(file);
    return rc;
}

void gguf_close(struct gguf_file *file)
{
    while (file != NULL) {
        struct gguf_file *next = file->next;

        if (file->map != NULL)
            (void)munmap(file->map, file->len); /* own mapping: cannot fail */
        arena_reset(&file->arena);
        mem_free(file);
        file = next;
    }
}

/* --- sets of files ---------------------------------------------------------------------------- */

#define SET_ENDING "-00001-of-00001.gguf"

int gguf_set_count(const char *path, int *n)
{
    size_t ending = sizeof SET_ENDING - 1, len = strlen(path);
    int idx = 0, count = 0, used = 0;

    *n = 1;
    if (len < ending)
        return ERR_OK;
    if (sscanf(path + len - ending, "-%5d-of-%5d.gguf%n", &idx, &count, &used) != 2 ||
        used != (int)ending)
        return ERR_OK;
    if (idx != 1 || count < 1 || count > GGUF_SET_MAX)
        return ERR_INVALID;
    *n = count;
    return ERR_OK;
}

void gguf_set_path(char *out, size_t cap, const char *path, int i, int n)
{
    size_t stem = strlen(path) - (n > 1 ? sizeof SET_ENDING - 1 : 0);

    if (n == 1)
        (void)snprintf(out, cap, "%s", path); /* the caller's room */
    else
        (void)snprintf(out, cap, "%.*s-%05d-of-%05d.gguf", (int)stem, path, i + 1, n);
}

/* Append the tensors of the others to the first file's. */
static int gguf_join(struct gguf_file *first)
{
    struct gguf_tensor *all;
    size_t n = 0, at = 0;

    for (const struct gguf_file *f = first; f != NULL; f = f->next)
        n += f->g.n_tensors;
    all = arena_zalloc(&first->arena, (n + 1) * sizeof *all);
    if (all == NULL)
        return ERR_NO_MEMORY;
    for (const struct gguf_file *f = first; f != NULL; f = f->next) {
        memcpy(all + at, f->g.tensors, f->g.n_tensors * sizeof *all);
        at += f->g.n_tensors;
    }
    first->g.tensors = all;
    first->g.n_tensors = n;
    return ERR_OK;
}

int gguf_open_set(struct gguf_file **out, const char *path, char *why, size_t why_cap)
{
    struct gguf_file *first = NULL, **last = &first;
    char name[4096];
    int n, rc = gguf_set_count(path, &n);

    if (rc != ERR_OK || strlen(path) >= sizeof name) {
        (void)snprintf(why, why_cap, "%s: name the first file of the set", path);
        return ERR_INVALID;
    }
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        gguf_set_path(name, sizeof name, path, i, n);
        rc = gguf_open(last, name, why, why_cap);
        if (rc == ERR_OK)
            last = &(*last)->next;
    }
    if (rc == ERR_OK && n > 1 && (rc = gguf_join(first)) != ERR_OK)
        (void)snprintf(why, why_cap, "%s: out of memory", path);
    if (rc == ERR_OK)
        *out = first;
    else
        gguf_close(first);
    return rc;
}

const struct gguf *gguf_of(const struct gguf_file *file)
{
    return &file->g;
}

/* --- reading settings ------------------------------------------------------------------------- */

bool gguf_text_is(struct gguf_text text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.bytes, word, text.len) == 0;
}

const struct gguf_value *gguf_find(const struct gguf *g, const char *key)
{
    for (size_t i = 0; i < g->n_values; i++) {
        if (gguf_text_is(g->values[i].key, key))
            return &g->values[i];
    }
    return NULL;
}

/* Whole numbers of every width, the signed ones extended. */
static bool gguf_item_whole(const struct gguf_value *v, uint64_t i, int64_t *out)
{
    int n = kind_bytes[v->kind];
    uint64_t bits;

    if (n == 0 || i >= v->n || v->kind == GGUF_F32 || v->kind == GGUF_F64)
        return false;
    bits = gguf_number_at(v->bytes + (size_t)i * (size_t)n, n);
    switch (v->kind) {
    case GGUF_I8: *out = (int8_t)bits; return true;
    case GGUF_I16: *out = (int16_t)bits; return true;
    case GGUF_I32: *out = (int32_t)bits; return true;
    case GGUF_FLAG: *out = bits != 0; return true;
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F32:
    case GGUF_TEXT:
    case GGUF_LIST:
    case GGUF_F64:
    case GGUF_KINDS: break;
    }
    *out = (int64_t)bits;
    return v->kind == GGUF_I64 || bits <= INT64_MAX;
}

bool gguf_item(const struct gguf_value *v, uint64_t i, double *out)
{
    int64_t whole;
    uint64_t bits;
    uint32_t half;
    float small;

    if (gguf_item_whole(v, i, &whole)) {
        *out = (double)whole;
        return true;
    }
    if (i >= v->n || (v->kind != GGUF_F32 && v->kind != GGUF_F64))
        return false;
    bits = gguf_number_at(v->bytes + (size_t)i * kind_bytes[v->kind], kind_bytes[v->kind]);
    if (v->kind == GGUF_F64) {
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    half = (uint32_t)bits;
    memcpy(&small, &half, sizeof small);
    *out = (double)small;
    return true;
}

bool gguf_whole(const struct gguf *g, const char *key, int64_t *out)
{
    const struct gguf_value *value = gguf_find(g, key);

    return value != NULL && !value->is_list && value->kind != GGUF_FLAG &&
           gguf_item_whole(value, 0, out);
}

bool gguf_real(const struct gguf *g, const char *key, double *out)
{
    const struct gguf_value *value = gguf_find(g, key);

    return value != NULL && !value->is_list && value->kind != GGUF_FLAG && gguf_item(value, 0, out);
}

bool gguf_flag(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_value *value = gguf_find(g, key);

    if (value == NULL || value->is_list || value->kind != GGUF_FLAG)
        return false;
    *out = value->bytes[0] != 0;
    return true;
}

bool gguf_get_text(const struct gguf *g, const char *key, struct gguf_text *out)
{
    const struct gguf_value *value = gguf_find(g, key);
    struct gguf_walk walk;

    if (value == NULL || value->is_list || value->kind != GGUF_TEXT)
        return false;
    walk = gguf_walk(value);
    return gguf_next(&walk, out);
}

const struct gguf_value *gguf_list(const struct gguf *g, const char *key, enum gguf_kind kind)
{
    const struct gguf_value *value = gguf_find(g, key);

    if (value == NULL || !value->is_list || value->kind != kind)
        return NULL;
    return value;
}

struct gguf_walk gguf_walk(const struct gguf_value *list)
{
    if (list == NULL || list->kind != GGUF_TEXT)
        return (struct gguf_walk){.left = 0};
    return (struct gguf_walk){list->bytes, list->bytes + list->len, list->n};
}

/* The lengths were checked by gguf_parse(), and are again, because a mapped file can change. */
bool gguf_next(struct gguf_walk *walk, struct gguf_text *out)
{
    uint64_t len;

    if (walk->left == 0 || walk->end - walk->at < 8)
        return false;
    len = gguf_number_at(walk->at, 8);
    if (len > (uint64_t)(walk->end - walk->at) - 8)
        return false;
    *out = (struct gguf_text){(const char *)walk->at + 8, (size_t)len};
    walk->at += 8 + (size_t)len;
    walk->left--;
    return true;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++) {
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    }
    return NULL;
}

/* --- tokens ----------------------------------------------------------------------------------- */

static void gguf_add_end(int32_t *out, int *n, int cap, int64_t id)
{
    for (int i = 0; i < *n; i++) {
        if (out[i] == id)
            return;
    }
    if (*n < cap && id >= 0 && id <= INT32_MAX)
        out[(*n)++] = (int32_t)id;
}

/* Does a token of this name and type end a text? Some files have Gemma 4's as added ones, and its
 * <eos>, which is the second of its ends there, as a normal one. */
static bool gguf_is_end(struct gguf_text token, int kind, bool has_messages)
{
    /* The last tokens of turns and texts in the families' own generation_config.json. */
    static const char *const names[] = {
        "<|im_end|>",         "<|eot_id|>",    "<|eom_id|>",    "<|end_of_text|>",
        "<end_of_turn>",      "<|endoftext|>", "[|endofturn|]", "<|END_OF_TURN_TOKEN|>",
        "<end_of_utterance>", "<|return|>",    "<|call|>",      "<|flush|>",
        "<|calls|>",          "</s>"};

    if (gguf_text_is(token, "<eos>"))
        return true;
    if (gguf_text_is(token, "<turn|>") || gguf_text_is(token, "<|tool_response>"))
        return kind == GGUF_TOKEN_CONTROL || kind == GGUF_TOKEN_ADDED;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && kind == GGUF_TOKEN_CONTROL; i++) {
        if (gguf_text_is(token, names[i]))
            return true;
    }
    return kind == GGUF_TOKEN_CONTROL && !has_messages && gguf_text_is(token, "<|end|>");
}

/* In gpt-oss and Solar a turn is of several messages, each with <|end|> behind it, and ends with
 * one of these. */
static bool gguf_has_messages(const struct gguf_value *tokens)
{
    struct gguf_walk walk = gguf_walk(tokens);
    struct gguf_text token;

    while (gguf_next(&walk, &token)) {
        if (gguf_text_is(token, "<|return|>") || gguf_text_is(token, "<|flush|>"))
            return true;
    }
    return false;
}

int gguf_ends(const struct gguf *g, int32_t *out, int cap)
{
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    const struct gguf_value *kinds = gguf_find(g, "tokenizer.ggml.token_type");
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    struct gguf_walk walk = gguf_walk(tokens);
    bool has_messages = gguf_has_messages(tokens);
    struct gguf_text token;
    int64_t id = 0;
    int n = 0;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (gguf_whole(g, keys[i], &id))
            gguf_add_end(out, &n, cap, id);
    }
    for (id = 0; gguf_next(&walk, &token); id++) {
        double kind;

        if (kinds != NULL && gguf_item(kinds, (uint64_t)id, &kind) && kind >= 0.0 && kind < 100.0 &&
            gguf_is_end(token, (int)kind, has_messages))
            gguf_add_end(out, &n, cap, id);
    }
    return n;
}
