/* SPDX-License-Identifier: Apache-2.0
 *
 * The cpu device: computes in float32, work divided among a pool of threads.
 *
 * Each number is computed by one thread in an order that depends only on its own inputs
 * (cpu_math.h), so a token's result is the same alone and in a full batch, in one chunk and in
 * many. Operations on rows call the references of kernels/; products and attention (cpu_mix.c) use
 * the inner loops of cpu_math.c.
 *
 * Operations run when they are called. So "launch", "fence" and "wait" have nothing to do here, and
 * the results of a step are complete before end(). */
#include "config.h"

#include "device/parts_cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "kernels/e4m3.h"
#include "kernels/rng.h"

#define ROWS_A_TASK 128
/* From so many rows on, weights of a task are made float32 once, and not for each row. */
#define ROWS_EXPANDED 16
#define OUTS_EXPANDED 4 /* outputs whose weights are made float32 at a time for fewer rows */
#define ROUND_A_TASK  8 /* rows that a task rounds */
#define ALIGN         64
#ifdef __SANITIZE_ADDRESS__
#define WEIGHTS_BYTES ((size_t)0) /* each matrix by itself, so that its ends are watched */
#else
#define WEIGHTS_BYTES ((size_t)32 << 20)
#endif

/* --- memory ---------------------------------------------------------------------------- */

/* Sizes in bytes everywhere; nothing is freed before cpu_close(), which keeps allocation a matter
 * of start-up alone. */

/* Memory is aligned to a cache line. With may_sleep(), constant and scratch memory come from
 * regions that can be given back (cpu_sleep.c). */

/* All of the machine's memory counts as free: the size of the KV cache on cpu is a setting. */
static int cpu_free(struct device *d, size_t *free_bytes, size_t *total_bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);

    (void)d;
    *total_bytes = (size_t)pages * (size_t)page_bytes;
    *free_bytes = *total_bytes;
    return ERR_OK;
}

/* mem_zalloc() aligns less, so there is room to move up to ALIGN. */
static void *cpu_alloc(struct device *d, size_t bytes)
{
    struct cpu *cpu = cpu_of(d);
    char *memory;

    must(cpu->n_allocs < CPU_ALLOCS_MAX);
    if (bytes > SIZE_MAX - ALIGN || (memory = mem_zalloc(bytes + ALIGN)) == NULL) {
        log_error("device: no memory for %zu bytes", bytes);
        return NULL;
    }
    cpu->allocs[cpu->n_allocs++] = memory;
    d->allocated_bytes += bytes;
    memory += ALIGN - (uintptr_t)memory % ALIGN;
    cpu_sleep_advise(memory, bytes);
    return memory;
}

/* Reserves addresses; later allocations come from them. */
static int cpu_may_sleep(struct device *d)
{
    return cpu_sleep_init(&cpu_of(d)->sleep);
}

/* Weights are small pieces of few large ones, because only those have huge pages. */
static void *cpu_alloc_piece(struct device *d, size_t bytes)
{
    struct cpu *cpu = cpu_of(d);
    size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    char *memory;

    if (bytes > WEIGHTS_BYTES / 4)
        return cpu_alloc(d, bytes);
    if (room > cpu->weights_left) {
        cpu->weights_left = 0;
        if ((cpu->weights = cpu_alloc(d, WEIGHTS_BYTES)) == NULL)
            return NULL;
        d->allocated_bytes -= WEIGHTS_BYTES; /* each piece counts for itself */
        cpu->weights_left = WEIGHTS_BYTES;
    }
    memory = cpu->weights;
    cpu->weights += room;
    cpu->weights_left -= room;
    d->allocated_bytes += bytes;
    return memory;
}

/* Allocate from a region. Without may_sleep() the regions do not exist. */
static void *cpu_alloc_in(struct device *d, struct cpu_region *r, size_t bytes)
{
    void *memory;

    if (r->base == NULL)
        return cpu_alloc(d, bytes);
    if ((memory = cpu_sleep_alloc(r, bytes)) == NULL) {
        log_error("device: no memory for %zu bytes", bytes);
        return NULL;
    }
    d->allocated_bytes += bytes;
    d->sleeping_bytes += bytes;
    return memory;
}

/* constant_bytes counts only memory that sleep() gives back. */
static void *cpu_alloc_constant(struct device *d, size_t bytes)
{
    size_t before = d->sleeping_bytes;
    struct cpu_region *region = &cpu_of(d)->sleep.constant;
    void *memory =
        region->base == NULL ? cpu_alloc_piece(d, bytes) : cpu_alloc_in(d, region, bytes);

    d->constant_bytes += d->sleeping_bytes - before;
    return memory;
}

static void *cpu_alloc_scratch(struct device *d, size_t bytes)
{
    return cpu_alloc_in(d, &cpu_of(d)->sleep.scratch, bytes);
}

/* In slices, as device.h describes. */
static int cpu_fall_asleep(struct device *d)
{
    return cpu_sleep_out(&cpu_of(d)->sleep);
}

/* Scratch memory comes back zeroed. */
static int cpu_wake(struct device *d)
{
    return cpu_sleep_in(&cpu_of(d)->sleep);
}

/* upload(), download(), fetch() and copy_within() are all this. */
static int cpu_copy(struct device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    memcpy(dst, src, bytes);
    return ERR_OK;
}

/* All host memory is equally fast here. */
static int cpu_pin(struct device *d, void *memory, size_t bytes)
{
    (void)d, (void)memory, (void)bytes;
    return ERR_OK;
}

static void cpu_unpin(struct device *d, void *memory)
{
    (void)d, (void)memory;
}

/* A copy is complete when it has been started, so marks and fences are trivial. */
static int cpu_copy_start(struct device *d, enum device_way way, void *dst, const void *src,
                          size_t bytes)
{
    (void)way;
    return cpu_copy(d, dst, src, bytes);
}

static int cpu_copy_mark(struct device *d, enum device_way way, uint64_t *ticket)
{
    (void)d, (void)way;
    *ticket = 0;
    return ERR_OK;
}

static int cpu_copy_done(struct device *d, enum device_way way, uint64_t ticket)
{
    (void)d, (void)way, (void)ticket;
    return 1;
}

static int cpu_copy_fence(struct device *d)
{
    (void)d;
    return ERR_OK;
}

/* F16 to float32; exponent 31 is infinity or NaN. */
static float cpu_float_of_half(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t bits;
    float value;

    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 */
        value = (float)fraction * 0x1p-24f;
        if (sign == 0)
            return value;
        return -value;
    }
    bits = sign | (exponent == 31 ? 255U : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* BF16 is the upper half of a float32. */
static int cpu_weights(struct device *d, void *dst, size_t at, const void *src,
                       enum device_type type, size_t n)
{
    float *out = (float *)dst + at;
    const char *bytes = src; /* a file's data need not be aligned */
    uint16_t half;

    (void)d;
    switch (type) {
    case DEVICE_F32: memcpy(out, src, n * sizeof *out); break;
    case DEVICE_BF16:
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;

            memcpy(&half, bytes + 2 * i, 2);
            bits = (uint32_t)half << 16;
            memcpy(out + i, &bits, 4);
        }
        break;
    case DEVICE_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&half, bytes + 2 * i, 2);
            out[i] = cpu_float_of_half(half);
        }
        break;
    }
    return ERR_OK;
}

/* Numbers of types other than float32; bytes of blocks whose exponents are near 1. */
static void cpu_fill_elements(const struct k_matrix *m, float deviation, uint64_t seed)
{
    size_t n = (size_t)m->n_out * cpu_row_bytes(m);
    uint8_t *out = m->data;

    for (size_t i = 0; i < n; i++) {
        if (m->format.elem == K_E4M3)
            out[i] = k_e4m3_round(k_noise(seed, i) * deviation);
        else
            out[i] = k_random(seed, i) & 255;
    }
    for (size_t i = 0; i < n && k_format_is_mxfp4(&m->format); i += 17)
        out[i] = (uint8_t)(120 + out[i] % 2);
}

/* Element i depends on seed and i alone, so tests can compare models. */
static int cpu_fill_random(struct device *d, const struct k_matrix *m, float deviation,
                           uint64_t seed)
{
    size_t n = (size_t)m->n_out * (size_t)m->n_in;
    float *out = m->data;

    (void)d;
    if (!k_format_is_plain(&m->format))
        cpu_fill_elements(m, deviation, seed);
    for (size_t i = 0; i < n && k_format_is_plain(&m->format); i++)
        out[i] = k_noise(seed, i) * deviation;
    return ERR_OK;
}

/* Float32 (the plain format), and formats that are read as they are: types without scales beside
 * them, types with scales of rows or groups, and floats of 4 bits of experts. Others are converted
 * while they are loaded. Rows that are read so are noted, because their products need memory. */
static bool cpu_takes(struct device *d, const struct k_matrix *m)
{
    const struct k_format *format = &m->format;
    bool takes = cpu_math_reads(format->elem) && format->elem != K_F32 && !format->has_global &&
                 m->n_in % k_type_block(format->elem) == 0;

    if (k_format_is_plain(format))
        return true;
    if (k_format_is_mxfp4(format))
        takes = m->n_in % K_MXFP4_GROUP == 0;
    else if (cpu_math_scales(format->elem))
        takes = takes && format->group_rows > 0 && format->scale == K_F32 &&
                (format->group_cols == 0 || format->group_cols % 16 == 0);
    else
        takes = takes && format->group_rows == 0 && !format->has_zeros;
    if (takes && m->n_in > cpu_of(d)->longest)
        cpu_of(d)->longest = m->n_in;
    return takes;
}

/* Pipes are plain memory, and each send is complete on return. */
static int cpu_pipe_open(struct device *d, struct device_pipe *p, size_t bytes)
{
    (void)d;
    p->bytes = mem_alloc(bytes);
    if (p->bytes == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

static void cpu_pipe_close(struct device *d, struct device_pipe *p)
{
    (void)d;
    mem_free(p->bytes);
    p->bytes = NULL;
}

static int cpu_pipe_wait(struct device *d, struct device_pipe *p)
{
    (void)d, (void)p;
    return ERR_OK;
}

static int cpu_pipe_bytes(struct device *d, struct device_pipe *p, void *dst, size_t bytes)
{
    return cpu_copy(d, dst, p->bytes, bytes);
}

static int cpu_pipe_weights(struct device *d, struct device_pipe *p, void *dst, size_t at,
                            enum device_type type, size_t n)
{
    return cpu_weights(d, dst, at, p->bytes, type, n);
}

static int cpu_pipe_quantise(struct device *d, struct device_pipe *p, const struct k_quantised *out,
                             enum device_type type, int n_rows, int n_in)
{
    size_t n = (size_t)n_rows * (size_t)n_in;
    float *numbers = mem_alloc(n * sizeof *numbers);
    int rc = numbers == NULL ? ERR_NO_MEMORY : cpu_weights(d, numbers, 0, p->bytes, type, n);

    if (rc == ERR_OK)
        ref_quantise(out, numbers, n_rows, n_in);
    mem_free(numbers);
    return rc;
}

/* The codes of 32 elements, two in a byte, as a block has them. */
static void cpu_block_mxfp4(uint8_t *block, const uint8_t *codes, uint8_t exponent)
{
    block[0] = exponent;
    for (int i = 0; i < 16; i++) {
        int low = codes[i / 2] >> i % 2 * 4 & 15, high = codes[8 + i / 2] >> i % 2 * 4 & 15;

        block[1 + i] = (uint8_t)(low | high << 4);
    }
}

/* Gates and ups that are in turns in the file become all gates, then all ups. */
int cpu_arrange(struct device *d, const struct k_matrix *m, const struct k_mxfp4_rows *rows)
{
    size_t n_blocks = (size_t)m->n_in / K_MXFP4_GROUP, n = (size_t)rows->n_rows * n_blocks;
    uint8_t *aside = mem_alloc(n * 17), *at = m->data;

    (void)d;
    if (aside == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < rows->n_experts; i++, at += k_mxfp4_bytes(rows->n_rows, m->n_in)) {
        memcpy(aside, at, n * 17);
        for (int row = 0; row < rows->n_rows; row++) {
            int half = rows->n_rows / 2;
            int to = rows->is_mixed ? row / 2 + row % 2 * half : row;

            for (size_t b = 0; b < n_blocks; b++) {
                size_t from = (size_t)row * n_blocks + b;

                cpu_block_mxfp4(at + ((size_t)to * n_blocks + b) * 17, aside + from * 16,
                                aside[n * 16 + from]);
            }
        }
    }
    mem_free(aside);
    return ERR_OK;
}

static void cpu_read_products(struct device *d, const char *path, bool expected)
{
    (void)d, (void)path, (void)expected; /* products of this device are not tuned */
}

/* --- products -------------------------------------------------------------------------- */

/* A task computes ROWS_A_TASK rows of CPU_OUTS outputs: the weights of a task fit the cache and
 * are used for all of its rows. */

struct matmul_job {
    const struct cpu *cpu;
    struct cpu_matmul m; /* ranges are filled in for each task */
    int n, n_out_tasks;
};

/* Multiply with weights that are made float32 in `wide` first, outs at a time. */
static void cpu_matmul_wide(const struct cpu_math *math, const struct cpu_matmul *m, float *wide,
                            int outs)
{
    for (int out = m->out_first; out < m->out_last; out += outs) {
        struct cpu_matmul part = *m;

        part.out_first = out;
        part.out_last = m->out_last - out < outs ? m->out_last : out + outs;
        math->expand(wide, &part);
        part.w = wide;
        part.type = K_F32;
        part.w_bytes = (size_t)m->n_in * sizeof *wide;
        part.y += out;
        if (m->bias != NULL)
            part.bias += out;
        part.out_last -= out;
        part.out_first = 0;
        math->matmul(&part);
    }
}

void cpu_multiply_part(const struct cpu *cpu, const struct cpu_matmul *m, int worker)
{
    float *wide = cpu->wide + (size_t)worker * cpu->wide_len;
    bool is_many = m->row_last - m->row_first >= ROWS_EXPANDED;

    if (m->type == K_F32 || (!is_many && cpu_math_multiplies(m->type)))
        cpu->math->matmul(m);
    else
        cpu_matmul_wide(cpu->math, m, wide, is_many ? CPU_OUTS : OUTS_EXPANDED);
}

/* Neighbouring tasks have the same rows and the next outputs. */
static void cpu_matmul_task(void *arg, int task, int worker)
{
    const struct matmul_job *job = arg;
    struct cpu_matmul product = job->m;
    int out = task % job->n_out_tasks, row = task / job->n_out_tasks;

    product.out_first = out * CPU_OUTS;
    product.out_last =
        product.out_first + CPU_OUTS < product.n_out ? product.out_first + CPU_OUTS : product.n_out;
    product.row_first = row * ROWS_A_TASK;
    product.row_last =
        product.row_first + ROWS_A_TASK < job->n ? product.row_first + ROWS_A_TASK : job->n;
    cpu_multiply_part(job->cpu, &product, worker);
}

/* A product with rounded inputs: the rows of a part of it. */
struct round_job {
    const struct cpu_round *round;
    struct cpu_rounded r; /* ranges are filled in for each task */
    uint8_t *rows;
    const float *x;
    int n, n_out_tasks;
};

static void cpu_round_task(void *arg, int task, int worker)
{
    const struct round_job *job = arg;
    int first = task * ROUND_A_TASK, n_in = job->r.m.n_in;
    int n = job->n - first < ROUND_A_TASK ? job->n - first : ROUND_A_TASK;

    (void)worker;
    job->round->rows(job->rows + (size_t)first * cpu_round_row_bytes(n_in),
                     job->x + (size_t)first * (size_t)n_in, n, n_in);
}

/* As cpu_matmul_task(), of all rows. */
static void cpu_rounded_task(void *arg, int task, int worker)
{
    const struct round_job *job = arg;
    struct cpu_rounded product = job->r;
    int end = (task + 1) * CPU_OUTS;

    (void)worker;
    product.m.out_first = task * CPU_OUTS;
    product.m.out_last = end < product.m.n_out ? end : product.m.n_out;
    product.m.row_last = job->n;
    job->round->matmul(&product);
}

/* Rows that fit the memory for rounded ones; 0: the matrix is read with float32 inputs, whatever
 * their number. */
static int cpu_rounded_rows(const struct cpu *cpu, const struct k_matrix *w)
{
    size_t rows;

    if (cpu->round == NULL || !cpu_round_reads(cpu_type_of(w)))
        return 0;
    rows = cpu->rounded_bytes / cpu_round_row_bytes(w->n_in);
    return rows < ROWS_A_TASK ? (int)rows : ROWS_A_TASK;
}

/* y = product of n rows of x, a part of at most `at_once` rows after another. */
static void cpu_multiply_rounded(struct cpu *cpu, const struct cpu_matmul *m, int n, int at_once)
{
    struct round_job job = {.round = cpu->round, .rows = cpu->rounded, .r.rows = cpu->rounded};

    job.n_out_tasks = (m->n_out + CPU_OUTS - 1) / CPU_OUTS;
    for (int first = 0; first < n; first += at_once) {
        job.r.m = *m;
        job.r.m.y = m->y + (size_t)first * (size_t)m->n_out;
        job.x = m->x + (size_t)first * (size_t)m->n_in;
        job.n = n - first < at_once ? n - first : at_once;
        pool_run(cpu->pool, cpu_round_task, &job, (job.n + ROUND_A_TASK - 1) / ROUND_A_TASK);
        pool_run(cpu->pool, cpu_rounded_task, &job, job.n_out_tasks);
    }
}

/* A small product is computed by the caller, because waking threads costs more. */
static void cpu_multiply(struct device *d, void *y, const struct device_rows *x,
                         const struct k_matrix *w, const void *bias, int n)
{
    struct cpu *cpu = cpu_of(d);
    struct matmul_job job = {.cpu = cpu, .m = cpu_product_of(w, 0, w->n_out), .n = n};

    if (d->watch != NULL)
        d->watch(d->watch_context, w, x->data, n);
    job.m.y = y;
    job.m.x = x->data;
    job.m.bias = bias;
    job.m.row_last = n;
    job.m.out_last = w->n_out;
    if (cpu_rounded_rows(cpu, w) > 0) {
        cpu_multiply_rounded(cpu, &job.m, n, cpu_rounded_rows(cpu, w));
        return;
    }
    /* Waking threads takes longer than such a product. */
    if ((size_t)n * w->n_out * w->n_in < CPU_INLINE_WORK) {
        cpu_multiply_part(cpu, &job.m, 0);
        return;
    }
    job.n_out_tasks = (w->n_out + CPU_OUTS - 1) / CPU_OUTS;
    pool_run(cpu->pool, cpu_matmul_task, &job,
             job.n_out_tasks * ((n + ROWS_A_TASK - 1) / ROWS_A_TASK));
}

/* Only matrices that adapters may have, in steps with any, have more to do. */
static void cpu_matmul(struct device *d, void *y, const struct device_rows *x,
                       const struct k_matrix *w, const void *bias, int n)
{
    cpu_multiply(d, y, x, w, bias, n);
    if (w->adapters != NULL && cpu_of(d)->batch->adapters != NULL)
        cpu_adapt(d, y, x->data, w, n);
}

/* All results are float32 anyway. */
static void cpu_matmul_float(struct device *d, float *y, const struct device_rows *x,
                             const struct k_matrix *w, int n)
{
    cpu_matmul(d, y, x, w, NULL, n);
}

/* --- ranks ----------------------------------------------------------------------------- */

/* With ranks, each rank's device runs on a thread of its own and has a pool of its own. */

/* All devices belong to one process, so an object in memory joins them. */
static int cpu_join_ranks(struct device *const *all, int n, enum device_links links)
{
    struct cpu_ranks *ranks = NULL;
    int rc = cpu_ranks_make(&ranks, n);

    (void)links;
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        struct cpu *cpu = cpu_of(all[i]);

        cpu->ranks = ranks;
        cpu->sampler = cpu_of(all[0]);
        cpu->rank = i;
    }
    return rc;
}

/* Blocks until all ranks have called it. */
static void cpu_sum_ranks(struct device *d, void *rows, int n, int width)
{
    struct cpu *cpu = cpu_of(d);
    uint64_t since_us = clock_us();

    cpu_ranks_sum(cpu->ranks, cpu->rank, rows, (size_t)n * (size_t)width);
    (void)atomic_fetch_add(&cpu->sum_us, clock_us() - since_us);
}

/* Norms over the heads of all ranks: little work, so the calling thread does it. */
static void cpu_squares(struct device *d, void *squares, const void *x,
                        const struct k_split_norms *s, int n)
{
    (void)d;
    ref_squares(squares, x, s, n);
}

static void cpu_norm_squares(struct device *d, void *x, const void *squares,
                             const struct k_split_norms *s, int n)
{
    (void)d;
    ref_norm_squares(x, squares, s, n);
}

/* Little work, as above. */
static void cpu_grow(struct device *d, void *x, int stride, int width, const struct k_growth *g)
{
    ref_grow(x, stride, width, g, cpu_of(d)->batch->tokens.pos, d->step_tokens);
}

/* Blocks until all ranks have called it. */
static void cpu_gather_ranks(struct device *d, float *all, const float *part, int n, int width)
{
    struct cpu *cpu = cpu_of(d);
    uint64_t since_us = clock_us();

    cpu_ranks_gather(cpu->ranks, cpu->rank, cpu->rank == 0 ? all : NULL, part, n, width);
    (void)atomic_fetch_add(&cpu->sum_us, clock_us() - since_us);
}

static bool cpu_few(struct device *d, const struct k_matrix *w, int n)
{
    (void)d, (void)w, (void)n;
    return false; /* products of few rows gain nothing here */
}

/* --- memory of steps ---------------------------------------------------------------------- */

/* Arrays for extras, and per-step results. */
static int cpu_reserve_extras(struct device *d, size_t n_seqs)
{
    struct device_extras *extras = &d->extras;
    struct cpu *cpu = cpu_of(d);

    extras->mask_words = (d->limits.n_vocab + 31) / 32;
    extras->rows = cpu_alloc(d, n_seqs * sizeof *extras->rows);
    extras->biases = cpu_alloc(d, n_seqs * DEVICE_BIASES_MAX * sizeof *extras->biases);
    extras->masks = cpu_alloc(d, n_seqs * (size_t)extras->mask_words * sizeof *extras->masks);
    extras->asked = cpu_alloc(d, n_seqs * DEVICE_ASKED_MAX * sizeof *extras->asked);
    for (unsigned i = 0; i < device_steps(d->limits.n_stages); i++) {
        cpu->ids[i] = cpu_alloc(d, n_seqs * sizeof *cpu->ids[i]);
        cpu->logprobs[i] = cpu_alloc(d, n_seqs * sizeof *cpu->logprobs[i]);
        if (cpu->ids[i] == NULL || cpu->logprobs[i] == NULL)
            return ERR_NO_MEMORY;
    }
    if (extras->rows == NULL || extras->biases == NULL || extras->masks == NULL ||
        extras->asked == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Memory for rounded rows. */
static int cpu_reserve_rounded(struct device *d, const struct device_limits *limits)
{
    struct cpu *cpu = cpu_of(d);
    int n_in = (cpu->longest + CPU_ROUND_BLOCK - 1) / CPU_ROUND_BLOCK * CPU_ROUND_BLOCK;
    size_t rows = limits->n_tokens < ROWS_A_TASK ? (size_t)limits->n_tokens : ROWS_A_TASK;

    cpu->rounded_bytes = rows * cpu_round_row_bytes(n_in);
    cpu->rounded = cpu_alloc(d, cpu->rounded_bytes);
    if (cpu->rounded == NULL)
        return ERR_NO_MEMORY;
    cpu->round = cpu_round_choose();
    return ERR_OK;
}

/* Scratch memory of a thread holds the scores of a tile of queries, in rows that are rounded up
 * because cpu_math writes whole lanes, or the logits of one row. */
static int cpu_reserve(struct device *d, const struct device_limits *limits)
{
    struct cpu *cpu = cpu_of(d);
    size_t row_len = ((size_t)limits->len_max + 31) / 16 * 16, n_vocab = (size_t)limits->n_vocab;
    size_t width = (size_t)pool_width(cpu->pool);

    must(limits->n_tokens >= 1 && limits->n_seqs >= 1);
    d->limits = *limits;
    cpu->scratch_len = CPU_QUERIES * row_len > n_vocab ? CPU_QUERIES * row_len : n_vocab;
    cpu->scratch_len = (cpu->scratch_len + 63) / 64 * 64;
    cpu->scratch = cpu_alloc(d, width * cpu->scratch_len * sizeof *cpu->scratch);
    cpu->wide_len = ((size_t)CPU_OUTS * (size_t)cpu->longest + 15) / 16 * 16;
    cpu->wide = cpu_alloc(d, width * cpu->wide_len * sizeof *cpu->wide);
    cpu->counts = cpu_alloc(d, width * (size_t)limits->n_vocab * sizeof *cpu->counts);
    cpu->token_ids = cpu_alloc(d, (size_t)limits->n_tokens * sizeof *cpu->token_ids);
    cpu->attn_blocks = cpu_alloc(d, (size_t)limits->n_tokens * sizeof *cpu->attn_blocks);
    if (cpu->scratch == NULL || cpu->wide == NULL || cpu->counts == NULL ||
        cpu->token_ids == NULL || cpu->attn_blocks == NULL)
        return ERR_NO_MEMORY;
    if (limits->rounds && cpu_reserve_rounded(d, limits) != ERR_OK)
        return ERR_NO_MEMORY;
    if (limits->n_experts > 0 && cpu_reserve_experts(d) != ERR_OK)
        return ERR_NO_MEMORY;
    if (limits->n_adapters > 0 && cpu_reserve_adapters(d) != ERR_OK)
        return ERR_NO_MEMORY;
    if (cpu->stages != NULL && cpu_stages_reserve(cpu->stages, cpu->idx, limits) != ERR_OK)
        return ERR_NO_MEMORY;
    return cpu_reserve_extras(d, (size_t)limits->n_seqs);
}

/* Accepts a device that was opened half-way. */
static void cpu_close(struct device *d)
{
    struct cpu *cpu = cpu_of(d);

    pool_close(cpu->pool);
    cpu_ranks_unref(cpu->ranks);
    cpu_stages_unref(cpu->stages);
    for (int i = 0; i < cpu->n_allocs; i++)
        mem_free(cpu->allocs[i]);
    cpu_sleep_fini(&cpu->sleep);
    mem_free(cpu);
}

/* Operations that are NULL here: use() (any thread may call), and the fused ones, because cpu_few()
 * is false. */
static const struct device_ops cpu_ops = {
    .close = cpu_close,
    .free = cpu_free,
    .alloc = cpu_alloc,
    .upload = cpu_copy,
    .download = cpu_copy,
    .fetch = cpu_copy,
    .may_sleep = cpu_may_sleep,
    .alloc_constant = cpu_alloc_constant,
    .alloc_scratch = cpu_alloc_scratch,
    .alloc_shared = cpu_alloc,
    .sleep = cpu_fall_asleep,
    .wake = cpu_wake,
    .pin = cpu_pin,
    .unpin = cpu_unpin,
    .copy_within = cpu_copy,
    .copy_start = cpu_copy_start,
    .copy_mark = cpu_copy_mark,
    .copy_done = cpu_copy_done,
    .copy_fence = cpu_copy_fence,
    .weights = cpu_weights,
    .pipe_open = cpu_pipe_open,
    .pipe_close = cpu_pipe_close,
    .pipe_wait = cpu_pipe_wait,
    .pipe_bytes = cpu_pipe_bytes,
    .pipe_weights = cpu_pipe_weights,
    .pipe_quantise = cpu_pipe_quantise,
    .fill_random = cpu_fill_random,
    .takes = cpu_takes,
    .arrange = cpu_arrange,
    .read_products = cpu_read_products,
    .join_ranks = cpu_join_ranks,
    .leave_ranks = cpu_leave_ranks,
    .join_stages = cpu_join_stages,
    .take = cpu_take,
    .hand = cpu_hand,
    .sum_ranks = cpu_sum_ranks,
    .squares = cpu_squares,
    .norm_squares = cpu_norm_squares,
    .gather_ranks = cpu_gather_ranks,
    .reserve = cpu_reserve,
    .begin = cpu_begin,
    .replay = cpu_replay,
    .embed = cpu_embed,
    .pick = cpu_pick,
    .rmsnorm = cpu_rmsnorm,
    .add_rmsnorm = cpu_add_rmsnorm,
    .quantise = cpu_quantise,
    .experts = cpu_mix_experts,
    .matmul = cpu_matmul,
    .matmul_float = cpu_matmul_float,
    .rope_kv = cpu_rope_kv,
    .attn = cpu_attn,
    .recurrent = cpu_recurrent,
    .delta = cpu_delta,
    .delta_writes_turns = true,
    .mamba = cpu_mamba,
    .short_conv = cpu_short_conv,
    .latent_keys = cpu_latent_keys,
    .latent_queries = cpu_latent_queries,
    .latent_values = cpu_latent_values,
    .index_keys = cpu_index_keys,
    .index_choose = cpu_index_choose,
    .attn_chosen = cpu_attn_chosen,
    .shut = cpu_shut,
    .silu_mul = cpu_silu_mul,
    .activate = cpu_activate,
    .xielu = cpu_xielu,
    .gate_limited = cpu_gate_limited,
    .shut_by = cpu_shut_by,
    .norm = cpu_norm,
    .norm_within = cpu_norm_within,
    .gate = cpu_gate,
    .gate_by = cpu_gate_by,
    .layer_embeds = cpu_layer_embeds,
    .add_within = cpu_add_within,
    .add_normed = cpu_add_normed,
    .place = cpu_place,
    .grow = cpu_grow,
    .scale = cpu_scale,
    .add = cpu_add,
    .soften = cpu_soften,
    .gather_add = cpu_gather_add,
    .launch = cpu_launch,
    .sample = cpu_sample,
    .few = cpu_few,
    .end = cpu_end,
    .measure = cpu_measure,
};

/* All members that cpu_close() reads are valid from the start. */
int device_cpu_open(struct device **out, int n_threads)
{
    struct cpu *cpu = mem_zalloc(sizeof *cpu);
    int rc = ERR_NO_MEMORY;

    if (cpu == NULL)
        goto out;
    cpu->base.ops = &cpu_ops;
    cpu->base.elem_bytes = sizeof(float);
    cpu->base.rows_multiple = 1;
    cpu->base.has_adapters = true;
    cpu->sampler = cpu;
    cpu->sleep.fd = -1;
    cpu->math = cpu_math_choose();
    if ((rc = pool_open(&cpu->pool, n_threads)) != ERR_OK)
        goto out;
    (void)snprintf(cpu->base.name, sizeof cpu->base.name, "cpu, %d threads, %s",
                   pool_width(cpu->pool), cpu->math->name);
    *out = &cpu->base;
    cpu = NULL;
out:
    if (cpu != NULL)
        cpu_close(&cpu->base);
    return rc;
}
