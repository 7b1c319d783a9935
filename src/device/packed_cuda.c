/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of any number of rows with packed matrices (k_format_is_packed()), with bytes by row,
 * and with e4m3 where the kernels are portable; of few rows with e4m3 by row.
 *
 * Few rows are multiplied with the codes, and on Hopper so are many with codes of 4 bits. Else, for
 * many, a run of rows of the matrix becomes bfloat16 in scratch memory, and cuBLASLt multiplies
 * with it; the numbers are those of a matrix that was converted at load. Few rows for e4m3 are put
 * into the order of its product there. Where a checkpoint or a setting asks for inputs of 8-bit
 * whole numbers, many rows are rounded so, in scratch memory, and multiplied as such; with codes of
 * 4 bits very many, and a run of rows of the matrix is rounded likewise. */
#include "config.h"

#include "device/parts_cuda.h"

#include "base/must.h"
#include "kernels/bytes.h"

/* Up to so many rows, products with the codes are faster than widening the matrix, although each 64
 * rows read it again. */
#define ROWS_FEW 256
/* The same of codes of 8 bits in groups of 32, whose sums end four times a record. */
#define ROWS_FEW_GROUPS 128
/* From so many rows on, products of whole numbers are faster. */
#define ROWS_BYTES 65
/* The same where codes of 4 bits have to become such numbers first. */
#define ROWS_ROUNDED 1024
/* Rows of the scratch matrix are a multiple of the library's tiles. */
#define ROWS_UNIT 256

/* Scratch memory is zeroed, as k_multiply_many() wants its counters. With packed matrices rows for
 * e4m3 stand behind these, where it leaves sums between products. */
int packed_reserve(struct cuda *c)
{
    size_t bytes = device_widened_bytes(&c->base.limits, k_is_portable());
    bool is_many = c->base.limits.packed && !k_is_portable();

    if (bytes == 0)
        return ERR_OK;
    must(!is_many || k_multiply_many_bytes(c->n_sms) <= bytes);
    c->many = sleep_alloc_scratch(&c->base, bytes);
    if (c->many == NULL)
        return ERR_NO_MEMORY;
    c->widened = (k_bf16 *)((char *)c->many + (is_many ? K_MANY_COUNTERS : 0));
    return ERR_OK;
}

static int packed_rows_few(const struct k_matrix *w)
{
    return w->format.elem == K_INT8 && w->format.group_cols == 32 ? ROWS_FEW_GROUPS : ROWS_FEW;
}

/* K_PRODUCT_ROWS_MAX rows at a time. Where scratch memory is for widened matrices, up to ROWS_FEW
 * rows of any length have room in it. */
static int packed_run_few(struct cuda *c, const struct gemm_product *p)
{
    struct k_product few = {
        .kind = p->y_is_float ? K_PRODUCT_FLOAT : K_PRODUCT_PLAIN, .w = p->w, .bias = p->bias};
    size_t y_bytes = (size_t)p->w->n_out * (p->y_is_float ? sizeof(float) : sizeof(k_bf16));
    const k_bf16 *x = p->x;
    int rc = 0;

    if (k_format_reads_half(&p->w->format)) {
        must((size_t)p->n * (size_t)p->w->n_in * sizeof(k_bf16) <= DEVICE_HALVED_BYTES ||
             k_is_portable());
        rc = k_halve_rows(c->widened, x, (size_t)p->n * (size_t)p->w->n_in, c->stream);
        x = c->widened;
    }
    for (int row = 0; row < p->n && rc == 0; row += K_PRODUCT_ROWS_MAX) {
        int n = p->n - row < K_PRODUCT_ROWS_MAX ? p->n - row : K_PRODUCT_ROWS_MAX;

        few.x = x + (size_t)row * (size_t)p->w->n_in;
        few.y = (char *)p->y + (size_t)row * y_bytes;
        rc = k_multiply(&few, n, c->n_sms, c->stream);
    }
    return rc;
}

/* Any number of rows at once. */
static int packed_run_many(struct cuda *c, const struct gemm_product *p)
{
    const struct k_product many = {.kind = p->y_is_float ? K_PRODUCT_FLOAT : K_PRODUCT_PLAIN,
                                   .x = p->x,
                                   .w = p->w,
                                   .bias = p->bias,
                                   .y = p->y};

    return k_multiply_many(&many, p->n, c->many, c->n_sms, c->stream);
}

/* As many rows at a time as have room. */
static int packed_run_bytes(struct cuda *c, const struct gemm_product *p)
{
    size_t n_in = (size_t)p->w->n_in, n_out = (size_t)p->w->n_out;
    int step = (int)(DEVICE_WIDENED_BYTES / k_bytes_size(1, p->w->n_in)) / ROWS_UNIT * ROWS_UNIT;
    int rc = 0;

    for (int row = 0; row < p->n && rc == 0; row += step) {
        int n = p->n - row < step ? p->n - row : step;
        const struct k_bytes bytes = k_bytes_in(c->widened, n, p->w->n_in);

        rc = k_round_bytes(&bytes, (const k_bf16 *)p->x + (size_t)row * n_in, n, p->w->n_in,
                           c->stream);
        if (rc == 0)
            rc = k_multiply_bytes((k_bf16 *)p->y + (size_t)row * n_out, p->w->n_out, &bytes, p->w,
                                  p->bias, n, c->n_sms, c->stream);
    }
    return rc;
}

/* Rows of x with all of a matrix of codes, of which a run of rows at a time becomes bytes in the
 * first half of scratch memory. */
static int packed_round_matrix(struct cuda *c, const struct gemm_product *p, k_bf16 *y,
                               const struct k_bytes *x, int n)
{
    const struct k_matrix *w = p->w;
    int step = (int)(DEVICE_WIDENED_BYTES / k_bytes_size(1, w->n_in)) / ROWS_UNIT * ROWS_UNIT;
    int rc = 0;

    for (int row = 0; row < w->n_out && rc == 0; row += step) {
        int n_out = w->n_out - row < step ? w->n_out - row : step;
        const struct k_bytes bytes = k_bytes_in(c->widened, n_out, w->n_in);
        struct k_matrix run = {.data = bytes.data,
                               .scales = bytes.scales,
                               .format = k_format_by_row(K_INT8),
                               .n_out = n_out,
                               .n_in = w->n_in};

        run.format.rounds_x = true;
        rc = k_round_codes(bytes.data, bytes.scales, w, row, n_out, c->stream);
        if (rc == 0)
            rc = k_multiply_bytes(y + row, w->n_out, x, &run,
                                  p->bias != NULL ? p->bias + row : NULL, n, c->n_sms, c->stream);
    }
    return rc;
}

/* As many rows of x at a time as the second half has room for. */
static int packed_run_rounded(struct cuda *c, const struct gemm_product *p)
{
    size_t n_in = (size_t)p->w->n_in, n_out = (size_t)p->w->n_out;
    int step = (int)(DEVICE_WIDENED_BYTES / k_bytes_size(1, p->w->n_in)) / ROWS_UNIT * ROWS_UNIT;
    int rc = 0;

    for (int row = 0; row < p->n && rc == 0; row += step) {
        int n = p->n - row < step ? p->n - row : step;
        const struct k_bytes x =
            k_bytes_in((char *)c->widened + DEVICE_WIDENED_BYTES, n, p->w->n_in);

        rc = k_round_bytes(&x, (const k_bf16 *)p->x + (size_t)row * n_in, n, p->w->n_in, c->stream);
        if (rc == 0)
            rc = packed_round_matrix(c, p, (k_bf16 *)p->y + (size_t)row * n_out, &x, n);
    }
    return rc;
}

int packed_run(struct cuda *c, const struct gemm_product *p)
{
    const struct k_matrix *w = p->w;
    struct k_matrix run = {.data = c->widened, .n_in = w->n_in};
    struct gemm_product part = *p;
    int step = (int)(DEVICE_WIDENED_BYTES / sizeof(k_bf16) / (size_t)w->n_in), rc = 0;

    must(c->widened != NULL);
    if (p->n >= ROWS_ROUNDED && !p->y_is_float && w->format.elem == K_INT4 && w->format.rounds_x &&
        !k_is_portable())
        return packed_run_rounded(c, p);
    if (p->n > K_PRODUCT_ROWS_MAX && k_multiply_many_takes(w))
        return packed_run_many(c, p);
    if (p->n >= ROWS_BYTES && !p->y_is_float && k_multiply_bytes_takes(w))
        return packed_run_bytes(c, p);
    if (p->n <= packed_rows_few(w))
        return packed_run_few(c, p);
    must(k_is_portable() || w->format.elem == K_INT8); /* there is room for it */
    if (step > ROWS_UNIT)
        step = step / ROWS_UNIT * ROWS_UNIT;
    part.w = &run;
    part.y_stride = w->n_out;
    for (int row = 0; row < w->n_out && rc == 0; row += step) {
        size_t elem = p->y_is_float ? sizeof(float) : sizeof(k_bf16);

        run.n_out = w->n_out - row < step ? w->n_out - row : step;
        part.y = (char *)p->y + (size_t)row * elem;
        part.bias = p->bias != NULL ? p->bias + row : NULL;
        if (k_format_is_packed(&w->format))
            rc = k_dequantise(c->widened, w, row, run.n_out, c->stream);
        else
            rc = k_widen_codes(c->widened, w, row, run.n_out, c->stream);
        if (rc == 0)
            rc = gemm_run(c->gemm, &part, c->stream);
    }
    return rc;
}
