/* SPDX-License-Identifier: Apache-2.0
 *
 * The cuda device: one GPU, one stream, bfloat16 weights, activations and KV.
 *
 * This file has memory, pipes, one function per operation of a step, and opening. Other parts are
 * in files of their own (parts_cuda.h). An operation only enqueues kernels; its error is kept in
 * c->rc.
 *
 * Bits: row operations and attention of chunks treat every sequence by itself. Attention of decodes
 * divides keys by the lengths of all sequences, and products (cuBLASLt's, or k_multiply()'s for few
 * rows) add in an order that may change with the number of rows, in buckets. So on this device the
 * bits of a row depend on the other rows of its step. */
#include "config.h"

#include "device/far_cuda.h"
#include "device/parts_cuda.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/gemm_table.h"
#include "kernels/gated.h"

#define WORKSPACE_BYTES ((size_t)32 << 20) /* NVIDIA's recommendation for Hopper */
#define CONVERT_ELEMS   ((size_t)1 << 20)  /* weights that are converted at a time */
#define ROWS_MULTIPLE   256                /* gemm_rows() rounds up to a divisor of it */
#define GATED_ROWS_MIN  1024               /* below, the library and the gate are as fast */

/* --- memory ---------------------------------------------------------------------------- */

/* upload() and download() wait for the device's stream, and so for steps in flight; fetch() uses a
 * stream of its own and does not. */

/* Makes this GPU current for the calling thread. */
static int cuda_use(struct device *d)
{
    return cuda_check(cudaSetDevice(cuda_of(d)->ordinal), "choosing the GPU");
}

/* Memory that other processes use is not free. */
static int cuda_free_bytes(struct device *d, size_t *free_bytes, size_t *total_bytes)
{
    int before = cuda_enter(cuda_of(d));
    int rc = cuda_check(cudaMemGetInfo(free_bytes, total_bytes), "asking for free memory");

    cuda_leave(before);
    return rc;
}

/* Waits, so the caller may reuse src at once. CUDA's own wait has no end if another rank has left,
 * so the stream is waited for first. */
static int cuda_copy(struct cuda *c, void *dst, const void *src, size_t bytes,
                     enum cudaMemcpyKind kind)
{
    int rc = peers_wait(c, NULL);

    if (rc == ERR_OK)
        rc = cuda_check(cudaMemcpyAsync(dst, src, bytes, kind, c->stream), "copying");
    if (rc != ERR_OK)
        return rc;
    return cuda_check(cudaStreamSynchronize(c->stream), "copying");
}

static int cuda_upload(struct device *d, void *dst, const void *src, size_t bytes)
{
    return cuda_copy(cuda_of(d), dst, src, bytes, cudaMemcpyHostToDevice);
}

static int cuda_download(struct device *d, void *dst, const void *src, size_t bytes)
{
    return cuda_copy(cuda_of(d), dst, src, bytes, cudaMemcpyDeviceToHost);
}

/* Does not wait for steps, so it must not read memory that a step writes. */
static int cuda_fetch(struct device *d, void *dst, const void *src, size_t bytes)
{
    struct cuda *gpu = cuda_of(d);
    int rc =
        cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, gpu->side), "copying");

    if (rc != ERR_OK)
        return rc;
    return cuda_check(cudaStreamSynchronize(gpu->side), "copying");
}

/* The time in sums is a counter of the kernels'. */
static void cuda_measure(struct device *d, struct device_load *out)
{
    const struct cuda *gpu = cuda_of(d);
    uint64_t sum_ns = 0;

    if (gpu->links.calls != NULL &&
        cuda_fetch(d, &sum_ns, gpu->links.calls + 2, sizeof sum_ns) != ERR_OK)
        sum_ns = 0; /* the next step reports the error */
    *out = (struct device_load){
        .n_steps = gpu->n_steps, .busy_us = (uint64_t)gpu->busy_us, .sum_us = sum_ns / 1000};
}

/* Rounds to nearest, ties to even; NaN stays NaN. */
static k_bf16 cuda_bf16_of_bits(uint32_t bits)
{
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (k_bf16)(bits >> 16 | 64);
    return (k_bf16)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

/* F16 to the bits of a float32; subnormals are computed as fraction * 2^-24. */
static uint32_t cuda_float_bits_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t bits;
    float value;

    if (exponent != 0)
        return sign | (exponent == 31 ? 255U : exponent + 112) << 23 | fraction << 13;
    value = (float)fraction * 0x1p-24f;
    memcpy(&bits, &value, sizeof bits);
    return sign | bits;
}

/* F32 or F16 to bf16, on the host. In place is allowed, because no output is longer than its
 * input. */
static void cuda_convert_weights(k_bf16 *out, const char *src, enum device_type type, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        uint16_t half;

        if (type == DEVICE_F32) {
            memcpy(&bits, src + 4 * i, 4);
        } else {
            memcpy(&half, src + 2 * i, 2);
            bits = cuda_float_bits_of_half(half);
        }
        out[i] = cuda_bf16_of_bits(bits);
    }
}

/* BF16 needs no conversion; other types go through pinned memory in parts. */
static int cuda_weights(struct device *d, void *dst, size_t at, const void *src,
                        enum device_type type, size_t n)
{
    struct cuda *gpu = cuda_of(d);
    size_t elem_bytes = type == DEVICE_F32 ? 4 : 2;
    int rc = ERR_OK;

    if (type == DEVICE_BF16)
        return cuda_upload(d, (k_bf16 *)dst + at, src, n * sizeof(k_bf16));
    for (size_t i = 0; i < n && rc == ERR_OK; i += CONVERT_ELEMS) {
        size_t part = CONVERT_ELEMS;

        if (n - i < CONVERT_ELEMS)
            part = n - i;
        cuda_convert_weights(gpu->convert, (const char *)src + i * elem_bytes, type, part);
        rc = cuda_upload(d, (k_bf16 *)dst + at + i, gpu->convert, part * sizeof(k_bf16));
    }
    return rc;
}

/* Noise is computed on the GPU: a host thread would take minutes for a large model. */
static int cuda_fill_random(struct device *d, const struct k_matrix *m, float deviation,
                            uint64_t seed)
{
    size_t n = (size_t)m->n_out * (size_t)m->n_in;
    k_stream stream = cuda_of(d)->stream;
    int before = cuda_enter(cuda_of(d)), rc;

    if (k_format_is_mxfp4(&m->format))
        rc = k_fill_random_mxfp4(m->data, k_mxfp4_bytes(m->n_out, m->n_in), seed, stream);
    else if (k_format_is_packed(&m->format) || m->format.elem == K_INT8)
        rc = k_fill_random_packed(m, deviation, seed, stream);
    else if (m->format.elem == K_E4M3)
        rc = k_fill_random_e4m3(m->data, n, deviation, seed, stream);
    else
        rc = k_fill_random(m->data, n, deviation, seed, stream);
    cuda_leave(before);
    if (rc == 0)
        return ERR_OK;
    return cuda_check(cudaGetLastError(), "random weights");
}

/* The general path decides, because every matrix must be able to take it; k_multiply() is faster
 * for few rows only. */
static bool cuda_takes(struct device *d, const struct k_matrix *m)
{
    (void)d; /* of whole numbers the portable kernels read records alone */
    return gemm_takes(m) && !(k_is_portable() && k_format_is_by_row(&m->format, K_INT8));
}

/* --- pipes ------------------------------------------------------------------------------ */

/* Open a pipe's streams: one per rank, on the rank's GPU, because the bytes of a pipe may go to
 * every rank. Memory was cleared on the devices' own streams when it was allocated, and that must
 * have ended before anything is sent there. */
static int cuda_pipe_open_streams(struct cuda *c, struct cuda_pipe *p)
{
    struct cuda *all[K_RANKS_MAX];

    p->n = peers_all(c, all);
    for (int i = 0; i < p->n; i++) {
        int before = cuda_enter(all[i]);
        int rc = cuda_check(cudaStreamCreateWithFlags(&p->streams[i], cudaStreamNonBlocking),
                            "a stream");

        cuda_leave(before);
        if (rc == ERR_OK)
            rc = cuda_check(cudaStreamSynchronize(all[i]->stream), "clearing memory");
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* Also used on a pipe that could not be opened completely. */
static void cuda_pipe_close(struct device *d, struct device_pipe *pipe)
{
    struct cuda_pipe *state = pipe->stream;

    (void)d;
    for (int i = 0; i < state->n; i++) {
        if (state->streams[i] != NULL)
            (void)cudaStreamDestroy(state->streams[i]); /* errors are ignored, as in cuda_close() */
        (void)cudaFreeHost(state->converted[i]);
    }
    (void)cudaFreeHost(state->bytes);
    mem_free(state);
    *pipe = (struct device_pipe){.bytes = NULL};
}

/* p is attached first, so that cuda_pipe_close() can release a pipe that is half open. */
static int cuda_pipe_open(struct device *d, struct device_pipe *pipe, size_t bytes)
{
    struct cuda_pipe *state = mem_zalloc(sizeof *state);
    int rc = ERR_NO_MEMORY;

    if (state == NULL)
        return rc;
    pipe->stream = state;
    state->bytes = cuda_pinned(bytes);
    state->cap = bytes;
    if (state->bytes != NULL)
        rc = cuda_pipe_open_streams(cuda_of(d), state);
    pipe->bytes = state->bytes;
    if (rc != ERR_OK)
        cuda_pipe_close(d, pipe);
    return rc;
}

/* A pipe may be filled again when its copies on all ranks are complete. */
static int cuda_pipe_wait(struct device *d, struct device_pipe *pipe)
{
    struct cuda_pipe *state = pipe->stream;
    int rc = ERR_OK;

    (void)d;
    for (int i = 0; i < state->n && rc == ERR_OK; i++)
        rc = cuda_check(cudaStreamSynchronize(state->streams[i]), "copying weights");
    return rc;
}

/* Enqueue a copy to rank c's GPU, on the pipe's stream for that rank. */
static int cuda_pipe_send(const struct cuda *c, const struct cuda_pipe *p, void *dst,
                          const void *src, size_t bytes)
{
    return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, p->streams[c->idx]),
                      "copying weights");
}

static int cuda_pipe_bytes(struct device *d, struct device_pipe *pipe, void *dst, size_t bytes)
{
    return cuda_pipe_send(cuda_of(d), pipe->stream, dst, pipe->bytes, bytes);
}

/* The first n numbers of a pipe as bf16. Without ranks they are converted inside the pipe, because
 * none becomes longer. Numbers for several ranks are converted for each of them into memory of its
 * own, at the same offset, because an earlier copy may still be reading the pipe. NULL: no
 * memory. */
static k_bf16 *cuda_pipe_as_bf16(const struct cuda *c, struct device_pipe *pipe,
                                 enum device_type type, size_t n)
{
    struct cuda_pipe *state = pipe->stream;
    k_bf16 **own = &state->converted[c->idx], *to;

    if (type == DEVICE_BF16)
        return (k_bf16 *)(void *)pipe->bytes;
    if (state->n == 1) {
        to = (k_bf16 *)(void *)pipe->bytes;
    } else {
        if (*own == NULL && (*own = cuda_pinned(state->cap)) == NULL)
            return NULL;
        to = (k_bf16 *)(void *)((char *)*own + (pipe->bytes - state->bytes));
    }
    cuda_convert_weights(to, (const char *)pipe->bytes, type, n);
    return to;
}

/* Conversion to bf16 happens on the host, before the copy. */
static int cuda_pipe_weights(struct device *d, struct device_pipe *pipe, void *dst, size_t at,
                             enum device_type type, size_t n)
{
    const k_bf16 *from = cuda_pipe_as_bf16(cuda_of(d), pipe, type, n);

    if (from == NULL)
        return ERR_NO_MEMORY;
    return cuda_pipe_send(cuda_of(d), pipe->stream, (k_bf16 *)dst + at, from, n * sizeof *from);
}

/* The kernel reads pinned memory over the link, so the codes need no copy. */
static int cuda_pipe_quantise(struct device *d, struct device_pipe *pipe,
                              const struct k_quantised *out, enum device_type type, int n_rows,
                              int n_in)
{
    struct cuda *gpu = cuda_of(d);
    const struct cuda_pipe *state = pipe->stream;
    const k_bf16 *from = cuda_pipe_as_bf16(gpu, pipe, type, (size_t)n_rows * (size_t)n_in);
    int before, rc;

    if (from == NULL)
        return ERR_NO_MEMORY;
    before = cuda_enter(gpu);
    rc = k_quantise(out, from, n_rows, n_in, state->streams[gpu->idx]);
    if (rc != 0)
        rc = cuda_check(cudaGetLastError(), "rounding weights to e4m3");
    cuda_leave(before);
    return rc;
}

static void cuda_read_products(struct device *d, const char *path, bool expected)
{
    gemm_read(cuda_of(d)->gemm, path, expected);
}

/* --- operations ------------------------------------------------------------------------ */

/* Each enqueues one kernel or two. Where the next product reads codes, the operation writes them
 * directly, which saves a pass over the rows. */

/* Negative ids are looked up in c->sampled by the kernel. */
static void cuda_embed(struct device *d, float *x, const struct k_matrix *table)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu,
              k_embed(x, table->data, gpu->tokens.ids, gpu->sampled, gpu->tokens.n_tokens,
                      d->limits.dim, gpu->stream),
              "embed");
}

/* Is this matrix multiplied by rows of codes when there are n? The portable kernels multiply it by
 * bfloat16. Few rows are multiplied as float16 by k_multiply(), which reads at the memory's speed;
 * whether it takes the matrix depends on n_in alone, so all readers of the rows agree. */
static bool cuda_reads_codes(const struct k_matrix *w, int n)
{
    if (!k_format_reads_codes(&w->format) || k_is_portable())
        return false;
    return !k_format_is_by_row(&w->format, K_E4M3) || !k_multiply_takes(w, n);
}

/* The destination of n rows of codes for the product with w: by row, or with a stride of scales for
 * blocks. */
static const struct k_quantised *cuda_codes_for(struct device_rows *rows, const struct k_matrix *w,
                                                int n)
{
    must(rows->codes.data != NULL);
    rows->codes.x_scale = NULL;
    if (w->format.has_x_scale)
        rows->codes.x_scale = w->x_scale;
    rows->codes.stride = 0;
    if (k_format_has_groups(&w->format))
        rows->codes.stride = gemm_rows(n);
    return &rows->codes;
}

/* Can the operation before a product with w write codes only? Adapters read the rows themselves. */
static bool cuda_needs_codes_only(const struct cuda *c, const struct k_matrix *w, int n)
{
    return cuda_reads_codes(w, n) && !adapt_is_due(c, w);
}

/* Codes of rows that were kept as well. */
static void cuda_quantise_kept(struct device *d, struct device_rows *rows, int n,
                               const struct k_matrix *to)
{
    if (!cuda_needs_codes_only(cuda_of(d), to, n))
        cuda_quantise(d, rows, n, to);
}

/* Writes bf16, or codes directly. */
static void cuda_rmsnorm(struct device *d, struct device_rows *out, const float *x,
                         const void *weight, float eps, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    int dim = d->limits.dim, rc;

    if (cuda_needs_codes_only(gpu, to, n))
        rc = k_rmsnorm_e4m3(cuda_codes_for(out, to, n), x, weight, eps, n, dim, gpu->stream);
    else
        rc = k_rmsnorm(out->data, x, weight, eps, n, dim, gpu->stream);
    cuda_keep(gpu, rc, "rmsnorm");
    cuda_quantise_kept(d, out, n, to);
}

/* One pass over the residual for sum and norm. */
static void cuda_add_rmsnorm(struct device *d, struct device_rows *out, float *x, const void *delta,
                             const void *weight, float eps, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    int dim = d->limits.dim, rc;

    if (cuda_needs_codes_only(gpu, to, n))
        rc = k_add_rmsnorm_e4m3(cuda_codes_for(out, to, n), x, delta, weight, eps, n, dim,
                                gpu->stream);
    else
        rc = k_add_rmsnorm(out->data, x, delta, weight, eps, n, dim, gpu->stream);
    cuda_keep(gpu, rc, "add_rmsnorm");
    cuda_quantise_kept(d, out, n, to);
}

/* For producers that cannot write codes themselves. */
void cuda_quantise(struct device *d, struct device_rows *rows, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    if (cuda_reads_codes(to, n))
        cuda_keep(gpu,
                  k_quantise(cuda_codes_for(rows, to, n), rows->data, n, to->n_in, gpu->stream),
                  "quantise");
}

/* Few rows of plain weights: k_multiply() is nearer to the time of a read, and begins while the
 * operation before it ends. */
static void cuda_run_few(struct cuda *gpu, const struct gemm_product *p)
{
    const struct k_product product = {.kind = p->y_is_float ? K_PRODUCT_FLOAT : K_PRODUCT_PLAIN,
                                      .x = p->x,
                                      .w = p->w,
                                      .bias = p->bias,
                                      .y = p->y};

    cuda_keep(gpu, k_multiply(&product, p->n, gpu->n_sms, gpu->stream), "matmul");
}

/* Selects codes or plain rows by the format of w. */
static void cuda_run_product(struct device *d, struct gemm_product p, const struct device_rows *x)
{
    struct cuda *gpu = cuda_of(d);
    bool adapts = adapt_is_due(gpu, p.w);
    struct k_adapting adapting;

    if (adapts)
        adapt_before(gpu, &adapting, &p, x->data);
    p.x = x->data;
    p.x_scales = NULL;
    if (cuda_reads_codes(p.w, p.n)) {
        p.x = x->codes.data;
        p.x_scales = x->codes.scales;
    }
    if (k_format_is_packed(&p.w->format) || p.w->format.elem == K_INT8 ||
        (k_format_reads_codes(&p.w->format) && !cuda_reads_codes(p.w, p.n)))
        cuda_keep(gpu, packed_run(gpu, &p), "matmul");
    else if (k_format_is_plain(&p.w->format) && k_multiply_takes(p.w, p.n))
        cuda_run_few(gpu, &p);
    else
        cuda_keep(gpu, gemm_run(gpu->gemm, &p, gpu->stream), "matmul");
    if (adapts)
        adapt_after(gpu, &adapting);
}

/* Results are bf16. */
static void cuda_matmul(struct device *d, void *y, const struct device_rows *x,
                        const struct k_matrix *w, const void *bias, int n)
{
    cuda_run_product(d, (struct gemm_product){.y = y, .w = w, .bias = bias, .n = n}, x);
}

/* The logits are float32, because sampling and log probabilities need the precision. */
static void cuda_matmul_float(struct device *d, float *y, const struct device_rows *x,
                              const struct k_matrix *w, int n)
{
    cuda_run_product(d, (struct gemm_product){.y = y, .w = w, .n = n, .y_is_float = true}, x);
}

/* Point c->plan at the schedule for layers of this shape. False if this step has not filled it yet:
 * then it is to be filled. */
static bool cuda_find_schedule(struct cuda *c, const struct k_kv *kv, int n_heads)
{
    const struct device_heads *shapes = c->base.limits.shapes;
    bool is_filled;
    int i = 0;

    while (i < c->base.limits.n_shapes &&
           (shapes[i].window != kv->window || shapes[i].head_dim != kv->head_dim ||
            shapes[i].n_kv_heads != kv->n_kv_heads || shapes[i].n_heads != n_heads))
        i++;
    must(i < c->base.limits.n_shapes);
    is_filled = c->schedules[i].is_filled;
    c->plan.schedule = c->schedules[i].memory;
    c->schedules[i].is_filled = true;
    return is_filled;
}

/* Fill the schedule of decodes with these pages, unless this step has one. True if it had. */
bool cuda_schedule(struct cuda *c, const struct k_kv *kv, int n_heads)
{
    const struct k_tokens tokens = k_tokens_of(&c->tokens, kv->group);

    if (cuda_find_schedule(c, kv, n_heads))
        return true;
    cuda_keep(c, k_attn_schedule(&c->plan, kv, &tokens, n_heads, c->stream), "attn");
    return false;
}

/* One list per size of a group. */
void cuda_find_tiles(struct cuda *c, int group)
{
    int i = 0;

    while (i < c->n_lists && c->lists[i].group != group)
        i++;
    must(i < c->n_lists);
    c->plan.tile_seqs = c->arrays.tile_seqs[i];
    c->plan.tile_starts = c->arrays.tile_starts[i];
    c->plan.n_tiles = c->lists[i].n_tiles;
    c->plan.tile_keys = c->lists[i].tile_keys;
}

static void cuda_rope_kv(struct device *d, void *qkv, const struct k_kv *kv,
                         const struct k_rotary *r, int n_heads)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->tokens, kv->group);

    cuda_find_tiles(gpu, n_heads / kv->n_kv_heads);
    /* Attention that follows the scheduling kernel must wait for it. Otherwise it may start early,
     * with the pages of earlier steps, while the product before it still runs. */
    gpu->plan.overlap = k_attn_is_brief(&gpu->plan, kv, n_heads) || cuda_schedule(gpu, kv, n_heads);
    /* If all sequences are decodes, the attention kernel rotates by itself and saves a launch.
     * Tokens of a chunk read keys of tokens before them, so those are written first, but for runs
     * whose keys are read once. */
    gpu->plan.rotary = NULL;
    if (gpu->plan.n_tiles == 0 && k_attn_rotates(r, kv) &&
        (!gpu->has_chunks || (gpu->has_whole_runs && k_attn_joins(&gpu->plan, kv, n_heads))))
        gpu->plan.rotary = r;
    if (gpu->plan.rotary == NULL)
        cuda_keep(gpu, k_rope_kv(qkv, kv, &tokens, r, n_heads, gpu->stream), "rope_kv");
}

/* Each channel runs through its sequence's tokens in order. */
static void cuda_recurrent(struct device *d, void *out, const void *in, const struct k_state *state,
                           int width, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->state_tokens, state->group);

    cuda_keep(gpu,
              k_recurrent(out, to != NULL && k_format_reads_half(&to->format), in, state, &tokens,
                          width, gpu->stream),
              "recurrent");
}

static void cuda_mamba(struct device *d, void *out, const void *in, const struct k_mamba *mamba,
                       const struct k_state *state, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->state_tokens, state->group);

    cuda_keep(gpu,
              k_mamba_scan(out, to != NULL && k_format_reads_half(&to->format), in, mamba, state,
                           &tokens, gpu->stream),
              "mamba");
}

static void cuda_short_conv(struct device *d, void *out, const void *in,
                            const struct k_short_conv *conv, const struct k_state *state,
                            const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_tokens tokens = k_tokens_of(&gpu->state_tokens, state->group);

    cuda_keep(gpu,
              k_short_convolve(out, to != NULL && k_format_reads_half(&to->format), in, conv, state,
                               &tokens, gpu->stream),
              "short_conv");
}

/* The common gate, which can write codes. */
static void cuda_silu_mul(struct device *d, struct device_rows *out, const void *in, int ff_dim,
                          int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);
    int rc;

    if (cuda_needs_codes_only(gpu, to, n))
        rc = k_silu_mul_e4m3(cuda_codes_for(out, to, n), in, n, ff_dim, gpu->stream);
    else
        rc = k_silu_mul(out->data, in, n, ff_dim, gpu->stream);
    cuda_keep(gpu, rc, "silu_mul");
    cuda_quantise_kept(d, out, n, to);
}

/* Saves a pass over the product's output, and its writing. An adapter adds to that output. */
static bool cuda_gated(struct device *d, struct device_rows *out, const struct device_rows *x,
                       const struct k_matrix *w, int n, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    if (n < GATED_ROWS_MIN || adapt_is_due(gpu, w) || !k_multiply_gated_takes(w))
        return false;
    cuda_keep(gpu, k_multiply_gated(out->data, x->data, w, n, gpu->n_sms, gpu->stream), "gated");
    cuda_quantise(d, out, n, to);
    return true;
}

/* The residual of the sampled rows only. */
static void cuda_gather_add(struct device *d, float *out, const float *x, const void *delta,
                            float scale)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu,
              k_gather_add(out, x, delta, scale, gpu->arrays.row_tokens, d->step_rows,
                           d->limits.dim, gpu->stream),
              "gather_add");
}

/* Products for few rows are kernels of quire's own. */
static bool cuda_few(struct device *d, const struct k_matrix *w, int n)
{
    (void)d;
    if (w->adapters != NULL && !k_adapt_fuses(w->adapters, w->n_out))
        return false;
    return k_multiply_takes(w, n) != 0;
}

/* The fused start of a step: embedding, and the sums of squares for the first norm. */
static void cuda_embed_normed(struct device *d, float *x, void *normed, float *sums,
                              const void *table, const void *norm, const struct k_matrix *to)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu,
              k_embed_normed(x, normed, k_format_reads_half(&to->format), sums, table,
                             gpu->tokens.ids, gpu->sampled, norm, gpu->tokens.n_tokens,
                             d->limits.dim, gpu->stream),
              "embed");
}

/* One fused product for few rows. */
static void cuda_product(struct device *d, const struct k_product *p, int n)
{
    if (adapt_is_due(cuda_of(d), p->w)) {
        adapt_product(cuda_of(d), p, n);
        return;
    }
    cuda_keep(cuda_of(d), k_multiply(p, n, cuda_of(d)->n_sms, cuda_of(d)->stream), "product");
}

/* --- open and close -------------------------------------------------------------------- */

/* One schedule per shape, because windows and heads change how many keys there are to share. The
 * work memory is that of the largest. */
static int cuda_reserve_attention(struct cuda *c)
{
    const struct device_limits *lim = &c->base.limits;
    size_t work = 0;

    must(lim->n_shapes <= DEVICE_TABLES_MAX);
    for (int i = 0; i < lim->n_shapes; i++) {
        const struct device_heads *h = &lim->shapes[i];
        size_t bytes = k_attn_work_bytes(h->head_dim, h->n_heads, h->n_kv_heads);

        c->schedules[i].memory = cuda_alloc(&c->base, k_attn_schedule_bytes(lim->n_seqs));
        if (c->schedules[i].memory == NULL)
            return ERR_NO_MEMORY;
        if (bytes > work)
            work = bytes;
    }
    c->attn_work = cuda_alloc(&c->base, work);
    c->plan.drawn = cuda_alloc(&c->base, sizeof *c->plan.drawn);
    if (c->attn_work == NULL || c->plan.drawn == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* What some models need is not there in the portable kernels, or on some of their GPUs. They also
 * compute attention with soft caps. */
static int cuda_check_portable(const struct cuda *c, const struct device_limits *lim)
{
    int bytes = 0;

    if (lim->caps_scores && !k_attn_caps()) {
        log_error("device: soft caps of scores need the portable kernels, which this build lacks "
                  "(configure --with-cuda-arch)");
        return ERR_UNSUPPORTED;
    }
    if (!k_is_portable() && !lim->caps_scores)
        return ERR_OK;
    if (lim->head_dim > K_HEAD_DIM_PORTABLE) {
        log_error("device: heads of %d elements, the portable kernels take at most %d",
                  lim->head_dim, K_HEAD_DIM_PORTABLE);
        return ERR_UNSUPPORTED;
    }
    if (cuda_check(
            cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, c->ordinal),
            "asking for shared memory") != ERR_OK)
        return ERR_GPU;
    if (bytes < lim->state_shared) {
        log_error("device: recurrent layers need %d bytes of shared memory per block, %s has %d",
                  lim->state_shared, c->base.name, bytes);
        return ERR_UNSUPPORTED;
    }
    return ERR_OK;
}

/* Limits of the kernels are checked here, before memory is taken. */
static int cuda_reserve(struct device *d, const struct device_limits *lim)
{
    struct cuda *gpu = cuda_of(d);
    int rc;

    if (lim->n_vocab > K_SAMPLE_VOCAB_MAX) {
        log_error("device: a vocabulary of %d tokens, the kernels take at most %d", lim->n_vocab,
                  K_SAMPLE_VOCAB_MAX);
        return ERR_UNSUPPORTED;
    }
    if ((rc = cuda_check_portable(gpu, lim)) != ERR_OK)
        return rc;
    d->limits = *lim;
    if ((rc = step_find_lists(gpu)) != ERR_OK)
        return rc;
    if (lim->follows)
        gpu->samples = false;
    if ((rc = step_reserve(gpu)) != ERR_OK || (rc = peers_reserve(gpu)) != ERR_OK ||
        (rc = stages_reserve(gpu)) != ERR_OK || (rc = experts_reserve(gpu)) != ERR_OK ||
        (rc = packed_reserve(gpu)) != ERR_OK || (rc = adapt_reserve(gpu)) != ERR_OK)
        return rc;
    if (lim->n_shapes > 0)
        return cuda_reserve_attention(gpu);
    return ERR_OK;
}

/* Errors while closing are ignored: the process ends, or never used the device. */
static void cuda_close(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    int before = cuda_enter(gpu);

    peers_stop(gpu);
    if (gpu->stream != NULL)
        (void)cudaStreamSynchronize(gpu->stream);
    step_close(gpu);
    copy_close(gpu);
    adapt_close(gpu);
    gemm_close(gpu->gemm);
    for (int i = 0; i < gpu->n_allocs; i++)
        (void)cudaFree(gpu->allocs[i]);
    sleep_close(gpu);
    (void)cudaFreeHost(gpu->convert);
    if (gpu->stream != NULL)
        (void)cudaStreamDestroy(gpu->stream);
    if (gpu->side != NULL)
        (void)cudaStreamDestroy(gpu->side);
    far_close(gpu);
    stages_close(gpu);
    peers_close(gpu);
    cuda_leave(before);
    mem_free(gpu);
}

static const struct device_ops cuda_ops = {
    .close = cuda_close,
    .use = cuda_use,
    .free = cuda_free_bytes,
    .alloc = cuda_alloc,
    .upload = cuda_upload,
    .download = cuda_download,
    .fetch = cuda_fetch,
    .may_sleep = sleep_prepare,
    .alloc_constant = sleep_alloc_constant,
    .alloc_scratch = sleep_alloc_scratch,
    .alloc_shared = peers_alloc_shared,
    .sleep = sleep_out,
    .wake = sleep_in,
    .pin = copy_pin,
    .unpin = copy_unpin,
    .copy_within = copy_within,
    .copy_start = copy_start,
    .copy_mark = copy_mark,
    .copy_done = copy_done,
    .copy_fence = copy_fence,
    .weights = cuda_weights,
    .pipe_open = cuda_pipe_open,
    .pipe_close = cuda_pipe_close,
    .pipe_wait = cuda_pipe_wait,
    .pipe_bytes = cuda_pipe_bytes,
    .pipe_weights = cuda_pipe_weights,
    .pipe_quantise = cuda_pipe_quantise,
    .fill_random = cuda_fill_random,
    .takes = cuda_takes,
    .arrange = experts_arrange,
    .read_products = cuda_read_products,
    .join_ranks = peers_join,
    .leave_ranks = stages_leave,
    .join_stages = stages_join,
    .take = stages_take,
    .hand = stages_hand,
    .far_name = far_name,
    .far_open = far_open,
    .far_take = far_take,
    .far_hand = far_hand,
    .sum_ranks = peers_sum,
    .squares = layers_squares,
    .norm_squares = layers_norm_squares,
    .sum_residual = peers_sum_residual,
    .gather_ranks = peers_gather,
    .reserve = cuda_reserve,
    .begin = step_begin,
    .replay = step_replay,
    .embed = cuda_embed,
    .rmsnorm = cuda_rmsnorm,
    .add_rmsnorm = cuda_add_rmsnorm,
    .quantise = cuda_quantise,
    .experts = experts_mix,
    .matmul = cuda_matmul,
    .matmul_float = cuda_matmul_float,
    .rope_kv = cuda_rope_kv,
    .attn = layers_attn,
    .recurrent = cuda_recurrent,
    .delta_gate = layers_delta_gate,
    .delta = layers_delta,
    .has_state_work = true,
    .mamba = cuda_mamba,
    .short_conv = cuda_short_conv,
    .shut_attn = layers_shut_attn,
    .shut = layers_shut,
    .silu_mul = cuda_silu_mul,
    .gated = cuda_gated,
    .activate = layers_activate,
    .norm = layers_norm,
    .norm_within = layers_norm_within,
    .gate = layers_gate,
    .gate_by = layers_gate_by,
    .layer_embeds = layers_layer_embeds,
    .place = layers_place,
    .grow = layers_grow,
    .halve = layers_halve,
    .latent_joins = layers_latent_joins,
    .latent_join = layers_latent_join,
    .latent_keys = layers_latent_keys,
    .latent_queries = layers_latent_queries,
    .latent_values = layers_latent_values,
    .has_index_work = true,
    .index_keys = layers_index_keys,
    .index_choose = layers_index_choose,
    .attn_chosen = layers_attn_chosen,
    .pick = layers_pick,
    .scale = layers_scale,
    .add = layers_add,
    .add_within = layers_add_within,
    .add_normed = layers_add_normed,
    .soften = layers_soften,
    .gather_add = cuda_gather_add,
    .few = cuda_few,
    .embed_normed = cuda_embed_normed,
    .product = cuda_product,
    .launch = step_launch,
    .place_rows = step_place_rows,
    .sample = step_sample,
    .end = step_end,
    .measure = cuda_measure,
};

int device_cuda_count(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) == cudaSuccess)
        return n;
    (void)cudaGetLastError(); /* no driver or no GPU means 0, it is not an error */
    return 0;
}

/* For tests. */
k_stream device_cuda_stream(struct device *d)
{
    return cuda_of(d)->stream;
}

/* Non-blocking streams, so that the default stream of a library never orders them. */
static int cuda_open_streams(struct cuda *c)
{
    if (cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "a stream") !=
            ERR_OK ||
        copy_open(c) != ERR_OK ||
        cuda_check(cudaStreamCreateWithFlags(&c->side, cudaStreamNonBlocking), "a stream") !=
            ERR_OK)
        return ERR_GPU;
    c->workspace = cuda_alloc(&c->base, WORKSPACE_BYTES);
    c->convert = cuda_pinned(CONVERT_ELEMS * sizeof *c->convert);
    if (c->workspace == NULL || c->convert == NULL)
        return ERR_NO_MEMORY;
    return gemm_open(&c->gemm, c->workspace, WORKSPACE_BYTES, c->base.name);
}

/* Other GPUs than Hopper get the portable kernels, and then all GPUs of the process do. False
 * (logged) if this build has none for the GPU. */
static bool cuda_has_kernels(const struct cudaDeviceProp *prop)
{
    int capability = prop->major * 10 + prop->minor;

    if (capability < 80) {
        log_error("device: %s has compute capability %d.%d; quire needs 8.0 or later", prop->name,
                  prop->major, prop->minor);
        return false;
    }
    if (prop->major != 9 && k_use_portable() != 0) {
        log_error("device: %s has compute capability %d.%d; this build has kernels for 9.0 only "
                  "(configure --with-cuda-arch)",
                  prop->name, prop->major, prop->minor);
        return false;
    }
#ifdef PORTABLE_LEAST
    if (k_is_portable() && capability < PORTABLE_LEAST) {
        log_error("device: %s has compute capability %d.%d; this build has kernels from %d.%d on "
                  "(configure --with-cuda-arch)",
                  prop->name, prop->major, prop->minor, PORTABLE_LEAST / 10, PORTABLE_LEAST % 10);
        return false;
    }
#endif
    if (k_is_portable())
        log_info("device: portable kernels on %s (compute capability %d.%d)", prop->name,
                 prop->major, prop->minor);
    return true;
}

/* The caller's current GPU is restored. */
static int cuda_start(struct cuda *c)
{
    struct cudaDeviceProp prop;
    int before, rc;

    if (cuda_check(cudaGetDeviceProperties(&prop, c->ordinal), "the GPU's properties") != ERR_OK)
        return ERR_GPU;
    if (!cuda_has_kernels(&prop))
        return ERR_UNSUPPORTED;
    c->n_sms = prop.multiProcessorCount;
    (void)snprintf(c->base.name, sizeof c->base.name, "%.60s", prop.name);
    if (cuda_check(cudaGetDevice(&before), "asking for the GPU") != ERR_OK ||
        cuda_check(cudaSetDevice(c->ordinal), "choosing the GPU") != ERR_OK)
        return ERR_GPU;
    rc = cuda_open_streams(c);
    cuda_leave(before);
    return rc;
}

/* The struct is large (it notes every allocation) and zeroed, so that cuda_close() can release a
 * device at any stage. */
int device_cuda_open(struct device **out, int idx)
{
    int n = device_cuda_count(), rc;
    struct cuda *gpu;

    if (n == 0) {
        log_error("device: there is no usable GPU; use --device cpu, or look at nvidia-smi");
        return ERR_GPU;
    }
    if (idx >= n) {
        log_error("device: GPU %d was requested, but this process sees %d (CUDA_VISIBLE_DEVICES, "
                  "nvidia-smi); tensor_parallel_size times "
                  "pipeline_parallel_size may be at most their number",
                  idx, n);
        return ERR_INVALID;
    }
    if ((gpu = mem_zalloc(sizeof *gpu)) == NULL)
        return ERR_NO_MEMORY;
    gpu->ordinal = idx;
    gpu->samples = true;
    gpu->base.ops = &cuda_ops;
    gpu->base.elem_bytes = sizeof(k_bf16);
    gpu->base.is_gpu = true;
    gpu->base.has_adapters = true;
    gpu->base.rows_multiple = ROWS_MULTIPLE;
    if ((rc = cuda_start(gpu)) != ERR_OK) {
        cuda_close(&gpu->base);
        return rc;
    }
    *out = &gpu->base;
    return ERR_OK;
}
