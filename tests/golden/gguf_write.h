/* SPDX-License-Identifier: Apache-2.0
 *
 * For the tests of GGUF files: files of random blocks and their twins, whose matrices are the
 * blocks' values as float32, and the logits that both give on the cpu device. The folder `root` is
 * the test's. */
#ifndef QUIRE_TESTS_GOLDEN_GGUF_WRITE_H
#define QUIRE_TESTS_GOLDEN_GGUF_WRITE_H

#include <fcntl.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/gguf.h"
#include "kernels/kernels.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

enum {
    DIM = 256,
    FF = 512,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD = 64,
    VOCAB = 70,
    LAYERS = 2,
    PROMPT = 9
};

static char root[] = "/tmp/quire-gguf-XXXXXX";
static int tokens_a_step = PROMPT; /* of logits_with() */

/* --- writing ---------------------------------------------------------------------------------- */

struct file {
    struct buf settings, tensors, data;
    unsigned n_settings, n_tensors;
};

static inline void put(struct buf *b, uint64_t number, int n)
{
    for (int i = 0; i < n; i++)
        buf_add_byte(b, (char)(number >> (8 * i) & 255));
}

static inline void put_text(struct buf *b, const char *text)
{
    put(b, strlen(text), 8);
    buf_add_text(b, text);
}

static inline void set_number(struct file *f, const char *key, enum gguf_kind kind, uint64_t bits)
{
    put_text(&f->settings, key);
    put(&f->settings, kind, 4);
    put(&f->settings, bits, 4);
    f->n_settings++;
}

static inline void set_float(struct file *f, const char *key, float value)
{
    uint32_t bits;

    memcpy(&bits, &value, 4);
    set_number(f, key, GGUF_F32, bits);
}

static inline void set_text(struct file *f, const char *key, const char *value)
{
    put_text(&f->settings, key);
    put(&f->settings, GGUF_TEXT, 4);
    put_text(&f->settings, value);
    f->n_settings++;
}

struct entry {
    const char *name;
    unsigned type;
    int rows, cols; /* rows 0: a vector */
    int planes;     /* matrices in the tensor; 0: it is one */
};

static inline void add(struct file *f, const struct entry *t, const void *bytes, size_t n)
{
    put_text(&f->tensors, t->name);
    put(&f->tensors, t->planes > 0 ? 3 : t->rows > 0 ? 2 : 1, 4);
    put(&f->tensors, (uint64_t)t->cols, 8);
    if (t->rows > 0)
        put(&f->tensors, (uint64_t)t->rows, 8);
    if (t->planes > 0)
        put(&f->tensors, (uint64_t)t->planes, 8);
    put(&f->tensors, t->type, 4);
    while (f->data.len % 32 != 0)
        buf_add_byte(&f->data, '\0');
    put(&f->tensors, f->data.len, 8);
    buf_add(&f->data, bytes, n);
    f->n_tensors++;
}

static inline void finish(struct file *f, const char *path)
{
    struct buf all = {.bytes = NULL};
    FILE *out = fopen(path, "wb");

    buf_add_text(&all, "GGUF");
    put(&all, 3, 4);
    put(&all, f->n_tensors, 8);
    put(&all, f->n_settings, 8);
    buf_add(&all, buf_text(&f->settings), f->settings.len);
    buf_add(&all, buf_text(&f->tensors), f->tensors.len);
    while (all.len % 32 != 0)
        buf_add_byte(&all, '\0');
    buf_add(&all, buf_text(&f->data), f->data.len);
    if (out == NULL || all.failed || fwrite(all.bytes, 1, all.len, out) != all.len ||
        fclose(out) != 0) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
    buf_fini(&all);
    buf_fini(&f->settings);
    buf_fini(&f->tensors);
    buf_fini(&f->data);
}

static const struct kind {
    const char *name;
    enum k_type type;
    unsigned number; /* in the file */
    int halves[2];   /* places of float16 scales in a block; -1: none */
    unsigned half;   /* their value: 2^-8 or 2^-12 */
} kinds[] = {
    {"Q4_0", K_Q4_0, 2, {0, -1}, 0x1c00},      {"Q4_1", K_Q4_1, 3, {0, 2}, 0x1c00},
    {"Q5_0", K_Q5_0, 6, {0, -1}, 0x1c00},      {"Q5_1", K_Q5_1, 7, {0, 2}, 0x1c00},
    {"Q8_0", K_Q8_0, 8, {0, -1}, 0x0c00},      {"Q2_K", K_Q2_K, 10, {80, 82}, 0x1c00},
    {"Q3_K", K_Q3_K, 11, {108, -1}, 0x0c00},   {"Q4_K", K_Q4_K, 12, {0, 2}, 0x0c00},
    {"Q5_K", K_Q5_K, 13, {0, 2}, 0x0c00},      {"Q6_K", K_Q6_K, 14, {208, -1}, 0x0c00},
    {"IQ4_NL", K_IQ4_NL, 20, {0, -1}, 0x0c00}, {"IQ4_XS", K_IQ4_XS, 23, {0, -1}, 0x0400},
    {"MXFP4", K_MXFP4, 39, {-1, -1}, 0},
};

#define N_KINDS (sizeof kinds / sizeof kinds[0])

static inline unsigned random_byte(unsigned *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 24;
}

/* A tensor as blocks in f and as float32 in twin; kind NULL: the same float32 in both. */
static inline void add_tensor(struct file *f, struct file *twin, const struct kind *kind,
                              const struct entry *as_floats)
{
    const char *name = as_floats->name;
    size_t n = (size_t)as_floats->rows * (size_t)as_floats->cols, n_blocks, size;
    float *values;
    unsigned seed = (unsigned)name[4] * 7919U + (unsigned)strlen(name);
    struct entry as_blocks = *as_floats;
    uint8_t *bytes;

    if (as_floats->planes > 0)
        n *= (size_t)as_floats->planes;
    values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)((int)random_byte(&seed) - 128) * 0x1p-9f;
    if (kind == NULL) {
        add(f, as_floats, values, 4 * n);
        add(twin, as_floats, values, 4 * n);
        free(values);
        return;
    }
    n_blocks = n / (size_t)k_type_block(kind->type);
    size = (size_t)k_type_block_bytes(kind->type);
    bytes = malloc(n_blocks * size);
    for (size_t i = 0; i < n_blocks * size; i++)
        bytes[i] = (uint8_t)random_byte(&seed);
    for (size_t i = 0; i < n_blocks; i++) {
        for (int k = 0; k < 2 && kind->halves[k] >= 0; k++) {
            bytes[i * size + (size_t)kind->halves[k]] = (uint8_t)(kind->half & 255);
            bytes[i * size + (size_t)kind->halves[k] + 1] = (uint8_t)(kind->half >> 8);
        }
        if (kind->type == K_MXFP4)
            bytes[i * size] = (uint8_t)(120 + i % 3);
    }
    ref_blocks(values, kind->type, bytes, n_blocks);
    as_blocks.type = kind->number;
    add(f, &as_blocks, bytes, n_blocks * size);
    add(twin, as_floats, values, 4 * n);
    free(bytes);
    free(values);
}

static inline void add_matrix(struct file *f, struct file *twin, const char *name,
                              const struct kind *kind, int rows, int cols)
{
    const struct entry t = {.name = name, .rows = rows, .cols = cols};

    add_tensor(f, twin, kind, &t);
}

static inline void add_vector(struct file *f, struct file *twin, const char *name, int n)
{
    const struct entry t = {.name = name, .cols = n};
    float ones[DIM];

    for (int i = 0; i < n; i++)
        ones[i] = 1.0f + (float)(i % 7) * 0.05f;
    add(f, &t, ones, (size_t)n * sizeof *ones);
    add(twin, &t, ones, (size_t)n * sizeof *ones);
}

/* Logits of a short prompt; the caller frees them. NULL, with the error in *rc. */
static inline float *logits_with(const char *path, const char *inputs, int n_ranks, int *rc)
{
    struct model_options o = {.dir = path,
                              .cpu_inputs = inputs,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = "cpu",
                              .page_tokens = 16,
                              .num_pages = 64,
                              .max_num_seqs = 4,
                              .max_num_batched_tokens = 64,
                              .n_ranks = n_ranks};
    struct run *r = calloc(1, sizeof *r);
    struct run_seq *s = calloc(1, sizeof *s);
    float *logits = calloc(VOCAB, sizeof *logits);
    struct model *m = NULL;

    for (s->n_tokens = 0; s->n_tokens < PROMPT; s->n_tokens++)
        s->tokens[s->n_tokens] = s->n_tokens * 7 % VOCAB;
    if ((*rc = model_open(&m, &o)) == ERR_OK) {
        run_init(r, m);
        for (int i = 0; i < PROMPT && *rc == ERR_OK; i += tokens_a_step) {
            run_clear(r);
            run_add(r, s, tokens_a_step, false);
            *rc = run_step(r);
        }
    }
    if (*rc == ERR_OK)
        *rc = model_logits(m, logits);
    model_close(m);
    free(s);
    free(r);
    if (*rc == ERR_OK)
        return logits;
    free(logits);
    return NULL;
}

/* With inputs of products as they are. */
static inline float *logits_of(const char *path, int n_ranks, int *rc)
{
    return logits_with(path, NULL, n_ranks, rc);
}

/* Equal bits, and numbers that are not all the same. */
static inline void compare(const char *what, const char *path, const char *twin_path, int n_ranks)
{
    int rc[2];
    float *got = logits_of(path, n_ranks, &rc[0]), *want = logits_of(twin_path, n_ranks, &rc[1]);

    ok(rc[0] == ERR_OK && rc[1] == ERR_OK, "%s: both open", what);
    ok(got != NULL && want != NULL && memcmp(got, want, VOCAB * sizeof *got) == 0 &&
           got[0] - got[1] != 0.0f && got[0] - got[0] == 0.0f,
       "%s: ranks: %d: logits equal those of the values", what, n_ranks);
    free(got);
    free(want);
}

/* Is the file refused, with this in the line that says it? */
static inline bool refused_with(const char *path, const char *words)
{
    char line[600] = "", said[300];
    int old = dup(STDERR_FILENO), fd, rc;
    ssize_t n;

    snprintf(said, sizeof said, "%s/said", root);
    fd = open(said, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (old == -1 || fd == -1 || dup2(fd, STDERR_FILENO) == -1)
        return false;
    (void)logits_of(path, 1, &rc);
    (void)dup2(old, STDERR_FILENO);
    n = pread(fd, line, sizeof line - 1, 0);
    (void)close(old), (void)close(fd), (void)unlink(said);
    return rc != ERR_OK && n > 0 && strstr(line, words) != NULL;
}

#endif
