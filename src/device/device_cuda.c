/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda device: one GPU, one stream, bfloat16 weights, activations and KV.
 *
 * A step's arrays travel in one copy: begin() lays them out in pinned memory, mirrored on the
 * device, so that a pointer is the same offset on both sides. The sampled ids come back the same
 * way, and end() waits for them. The first error sticks, is logged once and comes out of end().
 *
 * Bits: the row operations and attention of chunks treat every sequence by itself; attention of
 * decodes cuts keys by the lengths of all of them. Products are cuBLASLt's, whose order of adding
 * may change with the number of rows; gemm_rows() makes it a function of a few buckets. So on
 * this device a row's bits depend on the step it was in. */
#include "config.h"

#include "device/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/gemm_cuda.h"

#define ALLOCS_MAX      16384
#define WORKSPACE_BYTES ((size_t)32 << 20) /* what NVIDIA advises for Hopper */
#define CONVERT_ELEMS   ((size_t)1 << 20)  /* weights converted at a time */
#define HISTORY_MAX     ((size_t)16 << 20) /* tokens of histories copied at a time */
#define ALIGN           256
#define DEVICE_ORDINAL  0 /* CUDA_VISIBLE_DEVICES chooses among several */

/* The arrays of a step, as pointers into the pinned block or its mirror. */
struct step_arrays {
    int32_t *ids, *seq, *pos, *seq_start, *kv_len, *page_ids;
    int32_t *row_tokens, *decode_seqs, *tile_seqs, *tile_starts;
    struct k_sample_row *rows;
    size_t bytes; /* used */
};

struct cuda {
    struct device base; /* first */
    cudaStream_t stream;
    struct gemm *gemm;
    const struct device_batch *batch;
    struct k_tokens tokens;    /* on the device */
    struct k_attn_plan plan;   /* on the device */
    struct step_arrays arrays; /* on the device */
    char *staging, *mirror;    /* pinned, and its image on the device */
    size_t staging_bytes;
    int32_t *history, *history_mirror; /* int32 [history_cap] */
    size_t history_cap;
    int32_t *ids, *ids_mirror; /* int32 [n_seqs]: pinned, on the device */
    void *attn_work, *attn_schedule;
    bool is_planned; /* attn_schedule is of this step */
    float *sample_scratch;
    int32_t *counts;
    k_bf16 *convert; /* pinned, [CONVERT_ELEMS] */
    int rc;          /* the first error of a step */
    int n_allocs;
    void *allocs[ALLOCS_MAX];
};

static struct cuda *cuda_of(struct device *d)
{
    return (struct cuda *)d;
}

static int check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return ERR_OK;
    log_error("device: %s: %s", what, cudaGetErrorString(e));
    return ERR_GPU;
}

/* Keep the first error of a step; rc is a launcher's (0 or -1) or an enum err. */
static void keep(struct cuda *c, int rc, const char *what)
{
    if (rc == 0 || c->rc != ERR_OK)
        return;
    if (rc == -1)
        (void)check(cudaGetLastError(), what);
    c->rc = ERR_GPU;
}

/* --- memory ---------------------------------------------------------------------------- */

static int cuda_free_bytes(struct device *d, size_t *free_bytes, size_t *total_bytes)
{
    (void)d;
    return check(cudaMemGetInfo(free_bytes, total_bytes), "asking for free memory");
}

static void *cuda_alloc(struct device *d, size_t bytes)
{
    struct cuda *c = cuda_of(d);
    void *p = NULL;
    cudaError_t e;

    must(c->n_allocs < ALLOCS_MAX);
    e = cudaMalloc(&p, bytes == 0 ? 1 : bytes);
    if (e != cudaSuccess) {
        (void)cudaGetLastError(); /* clears it: a failed allocation is no error of the device */
        log_error("device: no GPU memory for %zu bytes: %s", bytes, cudaGetErrorString(e));
        return NULL;
    }
    c->allocs[c->n_allocs++] = p;
    d->allocated_bytes += bytes;
    if (check(cudaMemsetAsync(p, 0, bytes, c->stream), "clearing memory") != ERR_OK)
        return NULL;
    return p;
}

/* Copies wait for the stream first, so that they come after what was enqueued. */
static int cuda_copy(struct cuda *c, void *dst, const void *src, size_t bytes,
                     enum cudaMemcpyKind kind)
{
    int rc = check(cudaMemcpyAsync(dst, src, bytes, kind, c->stream), "copying");

    return rc != ERR_OK ? rc : check(cudaStreamSynchronize(c->stream), "copying");
}

static int cuda_upload(struct device *d, void *dst, const void *src, size_t bytes)
{
    return cuda_copy(cuda_of(d), dst, src, bytes, cudaMemcpyHostToDevice);
}

static int cuda_download(struct device *d, void *dst, const void *src, size_t bytes)
{
    return cuda_copy(cuda_of(d), dst, src, bytes, cudaMemcpyDeviceToHost);
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static k_bf16 bf16_of_bits(uint32_t bits)
{
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (k_bf16)(bits >> 16 | 64);
    return (k_bf16)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

static uint32_t float_bits_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t bits;
    float f;

    if (exponent != 0)
        return sign | (exponent == 31 ? 255U : exponent + 112) << 23 | fraction << 13;
    f = (float)fraction * 0x1p-24f;
    memcpy(&bits, &f, sizeof bits);
    return sign | bits;
}

static void convert(k_bf16 *out, const char *src, enum device_type type, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        uint16_t half;

        if (type == DEVICE_F32) {
            memcpy(&bits, src + 4 * i, 4);
        } else {
            memcpy(&half, src + 2 * i, 2);
            bits = float_bits_of_half(half);
        }
        out[i] = bf16_of_bits(bits);
    }
}

static int cuda_weights(struct device *d, void *dst, size_t at, const void *src,
                        enum device_type type, size_t n)
{
    struct cuda *c = cuda_of(d);
    size_t elem_bytes = type == DEVICE_F32 ? 4 : 2;
    int rc = ERR_OK;

    if (type == DEVICE_BF16)
        return cuda_upload(d, (k_bf16 *)dst + at, src, n * sizeof(k_bf16));
    for (size_t i = 0; i < n && rc == ERR_OK; i += CONVERT_ELEMS) {
        size_t part = n - i < CONVERT_ELEMS ? n - i : CONVERT_ELEMS;

        convert(c->convert, (const char *)src + i * elem_bytes, type, part);
        rc = cuda_upload(d, (k_bf16 *)dst + at + i, c->convert, part * sizeof(k_bf16));
    }
    return rc;
}

static int cuda_fill_random(struct device *d, void *dst, size_t n, float deviation, uint64_t seed)
{
    if (k_fill_random(dst, n, deviation, seed, cuda_of(d)->stream) != 0)
        return check(cudaGetLastError(), "random weights");
    return ERR_OK;
}

/* --- a step's arrays ------------------------------------------------------------------- */

static void *lay(char *base, size_t *at, size_t n, size_t bytes)
{
    void *p = base == NULL ? NULL : base + *at;

    *at = (*at + n * bytes + ALIGN - 1) / ALIGN * ALIGN;
    return p;
}

/* Tiles are at most one a sequence and one for every full tile of tokens. */
static struct step_arrays lay_out(char *base, int n_tokens, int n_seqs, int n_pages, int n_rows)
{
    struct step_arrays a;
    size_t at = 0, tokens = (size_t)n_tokens, seqs = (size_t)n_seqs, rows = (size_t)n_rows;

    a.ids = lay(base, &at, tokens, 4);
    a.seq = lay(base, &at, tokens, 4);
    a.pos = lay(base, &at, tokens, 4);
    a.seq_start = lay(base, &at, seqs + 1, 4);
    a.kv_len = lay(base, &at, seqs, 4);
    a.page_ids = lay(base, &at, seqs * (size_t)n_pages, 4);
    a.row_tokens = lay(base, &at, rows, 4);
    a.decode_seqs = lay(base, &at, seqs, 4);
    a.tile_seqs = lay(base, &at, tokens, 4);
    a.tile_starts = lay(base, &at, tokens, 4);
    a.rows = lay(base, &at, rows, sizeof *a.rows);
    a.bytes = at;
    return a;
}

/* Which kernel takes which tokens: fills the lists in a, and the counts of the plan. */
static void plan_attention(struct cuda *c, const struct step_arrays *a, const struct k_tokens *t)
{
    const struct device_limits *lim = &c->base.limits;
    int tile_tokens = K_TILE_TOKENS(lim->n_heads / lim->n_kv_heads);
    struct k_attn_plan *p = &c->plan;

    p->n_decodes = p->n_tiles = 0;
    for (int s = 0; s < t->n_seqs; s++) {
        int n = t->seq_start[s + 1] - t->seq_start[s];

        if (n == 1) {
            a->decode_seqs[p->n_decodes++] = s;
            continue;
        }
        for (int first = 0; first < n; first += tile_tokens) {
            a->tile_seqs[p->n_tiles] = s;
            a->tile_starts[p->n_tiles++] = first;
        }
    }
}

static int pages_needed(const struct cuda *c, const struct device_batch *b)
{
    const struct device_limits *lim = &c->base.limits;
    int len = 1;

    for (int s = 0; s < b->tokens.n_seqs; s++)
        len = b->tokens.kv_len[s] > len ? b->tokens.kv_len[s] : len;
    len = (len + lim->block_tokens - 1) / lim->block_tokens;
    return len < b->tokens.pages_max ? len : b->tokens.pages_max;
}

/* Rows of sampling, and where each one's history will stand (copy_histories()). */
static void fill_rows(struct cuda *c, const struct step_arrays *a, const struct device_batch *b)
{
    size_t at = 0;

    for (int r = 0; r < b->n_rows; r++) {
        size_t n = (size_t)b->rows[r].n_history;

        a->rows[r] = b->rows[r];
        a->row_tokens[r] = b->row_tokens[r];
        if (at + n > c->history_cap)
            at = 0;
        a->rows[r].history_at = (int64_t)at;
        at += n;
    }
}

static int cuda_begin(struct device *d, const struct device_batch *b)
{
    struct cuda *c = cuda_of(d);
    const struct k_tokens *t = &b->tokens;
    int n_pages = pages_needed(c, b);
    struct step_arrays a = lay_out(c->staging, t->n_tokens, t->n_seqs, n_pages, b->n_rows);
    size_t token_bytes = (size_t)t->n_tokens * 4, seq_bytes = (size_t)t->n_seqs * 4;

    must(a.bytes <= c->staging_bytes);
    memcpy(a.ids, t->ids, token_bytes);
    memcpy(a.seq, t->seq, token_bytes);
    memcpy(a.pos, t->pos, token_bytes);
    memcpy(a.seq_start, t->seq_start, seq_bytes + 4);
    memcpy(a.kv_len, t->kv_len, seq_bytes);
    for (int s = 0; s < t->n_seqs; s++)
        memcpy(a.page_ids + (size_t)s * (size_t)n_pages,
               t->page_ids + (size_t)s * (size_t)t->pages_max, (size_t)n_pages * 4);
    fill_rows(c, &a, b);
    plan_attention(c, &a, t);
    c->batch = b;
    c->arrays = lay_out(c->mirror, t->n_tokens, t->n_seqs, n_pages, b->n_rows);
    c->tokens = (struct k_tokens){
        .ids = c->arrays.ids,
        .seq = c->arrays.seq,
        .pos = c->arrays.pos,
        .seq_start = c->arrays.seq_start,
        .kv_len = c->arrays.kv_len,
        .page_ids = c->arrays.page_ids,
        .n_tokens = t->n_tokens,
        .n_seqs = t->n_seqs,
        .pages_max = n_pages,
    };
    c->plan.decode_seqs = c->arrays.decode_seqs;
    c->plan.tile_seqs = c->arrays.tile_seqs;
    c->plan.tile_starts = c->arrays.tile_starts;
    c->plan.schedule = c->attn_schedule;
    c->plan.work = c->attn_work;
    c->is_planned = false;
    return check(cudaMemcpyAsync(c->mirror, c->staging, a.bytes, cudaMemcpyHostToDevice, c->stream),
                 "copying a batch");
}

/* --- operations ------------------------------------------------------------------------ */

static void cuda_embed(struct device *d, float *x, const void *table)
{
    struct cuda *c = cuda_of(d);

    keep(c, k_embed(x, table, c->tokens.ids, c->tokens.n_tokens, d->limits.dim, c->stream),
         "embed");
}

static void cuda_rmsnorm(struct device *d, void *out, const float *x, const void *weight, float eps,
                         int n)
{
    keep(cuda_of(d), k_rmsnorm(out, x, weight, eps, n, d->limits.dim, cuda_of(d)->stream),
         "rmsnorm");
}

static void cuda_add_rmsnorm(struct device *d, void *out, float *x, const void *delta,
                             const void *weight, float eps, int n)
{
    keep(cuda_of(d),
         k_add_rmsnorm(out, x, delta, weight, eps, n, d->limits.dim, cuda_of(d)->stream),
         "add_rmsnorm");
}

static void cuda_matmul(struct device *d, void *y, const void *x, const void *w, const void *bias,
                        int n, int n_out, int n_in)
{
    struct gemm_product p = {
        .y = y, .x = x, .w = w, .bias = bias, .n = n, .n_out = n_out, .n_in = n_in};

    keep(cuda_of(d), gemm_run(cuda_of(d)->gemm, &p, cuda_of(d)->stream), "matmul");
}

static void cuda_matmul_float(struct device *d, float *y, const void *x, const void *w, int n,
                              int n_out, int n_in)
{
    struct gemm_product p = {
        .y = y, .x = x, .w = w, .n = n, .n_out = n_out, .n_in = n_in, .y_is_float = true};

    keep(cuda_of(d), gemm_run(cuda_of(d)->gemm, &p, cuda_of(d)->stream), "matmul");
}

static void cuda_rope_kv(struct device *d, void *qkv, const struct k_kv *kv, const float *turns)
{
    struct cuda *c = cuda_of(d);

    if (!c->is_planned)
        keep(c, k_attn_schedule(&c->plan, kv, &c->tokens, d->limits.n_heads, c->stream), "attn");
    c->is_planned = true;
    /* Where all are decodes, attention itself rotates. */
    c->plan.turns = c->plan.n_tiles == 0 ? turns : NULL;
    if (c->plan.turns == NULL)
        keep(c, k_rope_kv(qkv, kv, &c->tokens, turns, d->limits.n_heads, c->stream), "rope_kv");
}

static void cuda_attn(struct device *d, void *out, const void *qkv, const struct k_kv *kv,
                      float scale)
{
    struct cuda *c = cuda_of(d);

    keep(c, k_attn(out, qkv, kv, &c->tokens, &c->plan, d->limits.n_heads, scale, c->stream),
         "attn");
}

static void cuda_silu_mul(struct device *d, void *out, const void *in, int n)
{
    keep(cuda_of(d), k_silu_mul(out, in, n, d->limits.ff_dim, cuda_of(d)->stream), "silu_mul");
}

static void cuda_gather_add(struct device *d, float *out, const float *x, const void *delta)
{
    struct cuda *c = cuda_of(d);

    keep(c,
         k_gather_add(out, x, delta, c->arrays.row_tokens, c->batch->n_rows, d->limits.dim,
                      c->stream),
         "gather_add");
}

/* Copy histories of rows first .. last - 1 and count them. */
static void count_histories(struct cuda *c, int first, int last, size_t n)
{
    if (n == 0)
        return;
    keep(c,
         check(cudaMemcpyAsync(c->history_mirror, c->history, n * sizeof *c->history,
                               cudaMemcpyHostToDevice, c->stream),
               "copying histories"),
         "histories");
    keep(c,
         k_sample_count(c->counts, c->arrays.rows, c->history_mirror, first, last,
                        c->base.limits.n_vocab, c->stream),
         "sample_count");
}

/* Places are those that fill_rows() gave. When the room is used up, the stream is waited for:
 * rare, and right. */
static void copy_histories(struct cuda *c)
{
    const struct device_batch *b = c->batch;
    size_t at = 0;
    int first = 0;

    for (int r = 0; r < b->n_rows; r++) {
        size_t n = (size_t)b->rows[r].n_history;

        if (at + n > c->history_cap) {
            count_histories(c, first, r, at);
            keep(c, check(cudaStreamSynchronize(c->stream), "counting histories"), "histories");
            at = 0;
            first = r;
        }
        if (n > 0)
            memcpy(c->history + at, b->histories[r], n * sizeof *c->history);
        at += n;
    }
    count_histories(c, first, b->n_rows, at);
}

static void cuda_sample(struct device *d, const float *logits)
{
    struct cuda *c = cuda_of(d);
    int n_rows = c->batch->n_rows;

    copy_histories(c);
    keep(c,
         k_sample(c->ids_mirror, logits, n_rows, d->limits.n_vocab, c->arrays.rows,
                  c->sample_scratch, c->counts, c->stream),
         "sample");
    keep(c,
         check(cudaMemcpyAsync(c->ids, c->ids_mirror, (size_t)n_rows * sizeof *c->ids,
                               cudaMemcpyDeviceToHost, c->stream),
               "copying ids"),
         "sample");
}

static int cuda_end(struct device *d, int32_t *ids)
{
    struct cuda *c = cuda_of(d);

    keep(c, check(cudaStreamSynchronize(c->stream), "a step"), "a step");
    if (c->rc != ERR_OK)
        return c->rc;
    if (c->batch->n_rows > 0)
        memcpy(ids, c->ids, (size_t)c->batch->n_rows * sizeof *ids);
    c->batch = NULL;
    return ERR_OK;
}

/* --- open and close -------------------------------------------------------------------- */

static void *pinned(size_t bytes)
{
    void *p = NULL;

    return check(cudaMallocHost(&p, bytes), "pinned memory") == ERR_OK ? p : NULL;
}

static int cuda_reserve(struct device *d, const struct device_limits *lim)
{
    struct cuda *c = cuda_of(d);
    size_t rows = (size_t)lim->n_seqs, vocab = (size_t)lim->n_vocab;
    size_t history = rows * (size_t)lim->len_max;

    if (lim->n_heads / lim->n_kv_heads > K_TILE_ROWS) {
        log_error("device: %d query heads a kv head are more than the kernels' %d",
                  lim->n_heads / lim->n_kv_heads, K_TILE_ROWS);
        return ERR_UNSUPPORTED;
    }
    d->limits = *lim;
    c->staging_bytes = lay_out(NULL, lim->n_tokens, lim->n_seqs, lim->pages_max, lim->n_seqs).bytes;
    c->history_cap = history < HISTORY_MAX                ? history
                     : HISTORY_MAX > (size_t)lim->len_max ? HISTORY_MAX
                                                          : (size_t)lim->len_max;
    c->staging = pinned(c->staging_bytes);
    c->history = pinned(c->history_cap * sizeof *c->history);
    c->ids = pinned(rows * sizeof *c->ids);
    c->mirror = cuda_alloc(d, c->staging_bytes);
    c->history_mirror = cuda_alloc(d, c->history_cap * sizeof *c->history);
    c->ids_mirror = cuda_alloc(d, rows * sizeof *c->ids);
    c->attn_schedule = cuda_alloc(d, k_attn_schedule_bytes(lim->n_seqs));
    c->attn_work = cuda_alloc(d, k_attn_work_bytes(lim->head_dim, lim->n_heads, lim->n_kv_heads));
    c->sample_scratch = cuda_alloc(d, rows * vocab * sizeof *c->sample_scratch);
    c->counts = cuda_alloc(d, rows * vocab * sizeof *c->counts);
    if (c->staging == NULL || c->history == NULL || c->ids == NULL || c->mirror == NULL ||
        c->history_mirror == NULL || c->ids_mirror == NULL || c->attn_work == NULL ||
        c->attn_schedule == NULL || c->sample_scratch == NULL || c->counts == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Errors while closing are of no account: the process ends, or never used the device. */
static void cuda_close(struct device *d)
{
    struct cuda *c = cuda_of(d);

    if (c->stream != NULL)
        (void)cudaStreamSynchronize(c->stream);
    gemm_close(c->gemm);
    for (int i = 0; i < c->n_allocs; i++)
        (void)cudaFree(c->allocs[i]);
    (void)cudaFreeHost(c->convert);
    (void)cudaFreeHost(c->staging);
    (void)cudaFreeHost(c->history);
    (void)cudaFreeHost(c->ids);
    if (c->stream != NULL)
        (void)cudaStreamDestroy(c->stream);
    mem_free(c);
}

static const struct device_ops cuda_ops = {
    .close = cuda_close,
    .free = cuda_free_bytes,
    .alloc = cuda_alloc,
    .upload = cuda_upload,
    .download = cuda_download,
    .weights = cuda_weights,
    .fill_random = cuda_fill_random,
    .reserve = cuda_reserve,
    .begin = cuda_begin,
    .embed = cuda_embed,
    .rmsnorm = cuda_rmsnorm,
    .add_rmsnorm = cuda_add_rmsnorm,
    .matmul = cuda_matmul,
    .matmul_float = cuda_matmul_float,
    .rope_kv = cuda_rope_kv,
    .attn = cuda_attn,
    .silu_mul = cuda_silu_mul,
    .gather_add = cuda_gather_add,
    .sample = cuda_sample,
    .end = cuda_end,
};

int device_cuda_count(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) == cudaSuccess)
        return n;
    (void)cudaGetLastError(); /* no driver or no GPU is an answer, not an error */
    return 0;
}

k_stream device_cuda_stream(struct device *d)
{
    return cuda_of(d)->stream;
}

static int start(struct cuda *c)
{
    struct cudaDeviceProp prop;
    void *workspace;

    if (check(cudaSetDevice(DEVICE_ORDINAL), "choosing the GPU") != ERR_OK ||
        check(cudaGetDeviceProperties(&prop, DEVICE_ORDINAL), "the GPU's properties") != ERR_OK)
        return ERR_GPU;
    if (prop.major != 9) {
        log_error("device: %s has compute capability %d.%d; the kernels are built for 9.0 (Hopper)",
                  prop.name, prop.major, prop.minor);
        return ERR_UNSUPPORTED;
    }
    (void)snprintf(c->base.name, sizeof c->base.name, "%.60s", prop.name);
    if (check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream") != ERR_OK)
        return ERR_GPU;
    workspace = cuda_alloc(&c->base, WORKSPACE_BYTES);
    c->convert = pinned(CONVERT_ELEMS * sizeof *c->convert);
    if (workspace == NULL || c->convert == NULL)
        return ERR_NO_MEMORY;
    return gemm_open(&c->gemm, workspace, WORKSPACE_BYTES);
}

int device_cuda_open(struct device **out)
{
    struct cuda *c;
    int rc;

    if (device_cuda_count() == 0) {
        log_error("device: there is no usable GPU; use --device cpu, or look at nvidia-smi");
        return ERR_GPU;
    }
    if ((c = mem_zalloc(sizeof *c)) == NULL)
        return ERR_NO_MEMORY;
    c->base.ops = &cuda_ops;
    c->base.elem_bytes = sizeof(k_bf16);
    c->base.is_gpu = true;
    c->base.rows_multiple = 256;
    if ((rc = start(c)) != ERR_OK) {
        cuda_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return ERR_OK;
}
