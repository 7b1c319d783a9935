/* SPDX-License-Identifier: Apache-2.0
 *
 * From a tensor's bytes to the ranks' memory, piece by piece as the reader's threads bring them.
 *
 * Bytes that the device takes as they are, or converts itself, go through its pipe. All others are
 * made float32 on the host and stored by the device's own operation, which is not thread-safe as
 * pipes are, hence the mutex. Some tensors have to be complete first: transposed ones, those of
 * formats whose rows are not the matrix's, and those that are packed. */
#include <string.h>

#include "base/mem.h"
#include "model/loader_parts.h"

#define FLOATS ((size_t)1 << 20) /* numbers of a tensor that the host converts at a time */

/* targets is [n_items][n_ranks]. */
struct target *loader_target_of(const struct loader *l, size_t item, int rank)
{
    return &l->targets[item * (size_t)l->n_ranks + (size_t)rank];
}

struct target *loader_leader(const struct loader *l, size_t item)
{
    for (int i = 0; i < l->n_ranks; i++) {
        if (loader_target_of(l, item, i)->use != BYTES_SUMMED)
            return loader_target_of(l, item, i);
    }
    return loader_target_of(l, item, 0);
}

/* Bytes of one number in a file. */
static size_t loader_file_bytes(enum device_type type)
{
    if (type == DEVICE_F32)
        return 4;
    return 2;
}

/* Bytes of n elements of one row in a file, packed formats included. */
size_t loader_elem_bytes(const struct target *to, int n)
{
    if (to->part.kind != NULL)
        return k_format_row_bytes(&to->part.format, n);
    return (size_t)n * loader_file_bytes(to->type);
}

/* A tensor whose rows are not the matrix's is converted when all of it has come; packed are all. */
bool loader_is_gathered(const struct target *to)
{
    return to->use == BYTES_PACKED || ((to->use == BYTES_CONVERTED || to->use == BYTES_QUANTISED ||
                                        to->use == BYTES_WIDENED) &&
                                       to->part.kind != NULL && to->part.kind->is_whole);
}

/* Of one row of the tensor in the file; 0 if it is gathered. */
size_t loader_row_bytes(const struct target *to)
{
    if (quant_has_values(&to->part))
        return quant_row_bytes(&to->part);
    return loader_elem_bytes(to, to->slice.cols);
}

/* Store n numbers that bf16 holds exactly, from element `at` of the target on. */
static int loader_store_bf16(struct device *d, const struct target *to, size_t at,
                             const float *floats, size_t n)
{
    uint16_t halves[256];
    int rc = ERR_OK;

    for (size_t first = 0; first < n && rc == ERR_OK; first += 256) {
        size_t some = n - first < 256 ? n - first : 256;

        for (size_t i = 0; i < some; i++)
            memcpy(&halves[i], (const char *)&floats[first + i] + 2, 2); /* the upper half */
        rc = d->ops->upload(d, (uint16_t *)to->dst + at + first, halves, 2 * some);
    }
    return rc;
}

/* Round n rows of a rank's slice, which are slice.cols numbers apart, and store their codes and
 * scales from its row `row` on. Threads round beside each other: the mutex is held for the uploads
 * alone. */
static int loader_store_quantised(struct loader *l, struct device *d, const struct target *to,
                                  const float *floats, int row, int n)
{
    size_t cols = (size_t)to->slice.n_cols;
    int step = (int)(FLOATS / cols) + 1, rc = ERR_OK;
    k_e4m3 *codes = mem_alloc((size_t)step * cols);
    float *scales = mem_zalloc_array((size_t)step, sizeof *scales);

    if (codes == NULL || scales == NULL)
        rc = ERR_NO_MEMORY;
    for (int first = 0; first < n && rc == ERR_OK; first += step) {
        int some = n - first < step ? n - first : step;

        for (int i = 0; i < some; i++) {
            const struct k_quantised out = {.data = codes + (size_t)i * cols, .scales = scales + i};

            ref_quantise(&out, floats + (size_t)(first + i) * (size_t)to->slice.cols, 1, (int)cols);
        }
        (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
        rc = d->ops->upload(d, (k_e4m3 *)to->dst + to->at + (size_t)(row + first) * cols, codes,
                            (size_t)some * cols);
        if (rc == ERR_OK)
            rc = d->ops->upload(d, to->scales + row + first, scales, (size_t)some * sizeof *scales);
        (void)pthread_mutex_unlock(&l->turn);
    }
    mem_free(codes);
    mem_free(scales);
    return rc;
}

/* Store a row of a slice with room, in runs of columns. */
static int loader_store_runs(struct device *d, const struct target *to, const float *row, size_t at)
{
    const struct slice_pad *pad = &to->slice.shape.pad_cols;
    int n_cols = to->slice.shape.own_cols, step = pad->n > 0 ? pad->n : n_cols, rc = ERR_OK;

    for (int col = 0; col < n_cols && rc == ERR_OK; col += step)
        rc = d->ops->weights(d, to->dst, at + (size_t)slice_padded(pad, col), row + col, DEVICE_F32,
                             (size_t)step);
    return rc;
}

/* The same as below, of a slice with room. */
static int loader_store_padded(struct loader *l, int rank, const struct target *to,
                               const float *floats, int first, int n)
{
    const struct slice *slice = &to->slice;
    int rc = ERR_OK;

    for (int i = 0; i < n && rc == ERR_OK; i++) {
        int row = slice_to(slice, first + i);

        if (row < 0)
            continue;
        row = slice_padded(&slice->shape.pad_rows, row);
        rc = loader_store_runs(l->ranks[rank].device, to,
                               floats + (size_t)i * (size_t)slice->cols + slice->col,
                               to->at + (size_t)row * (size_t)slice->n_cols);
    }
    return rc;
}

/* Store a rank's slice of rows first .. first + n - 1 of a tensor, which are float32. Rows that are
 * whole in the slice go in one call, others one by one. The mutex is held unless the use is
 * BYTES_QUANTISED. */
static int loader_store_floats(struct loader *l, int rank, const struct target *to,
                               const float *floats, int first, int n)
{
    struct device *device = l->ranks[rank].device;
    const struct slice *slice = &to->slice;
    struct slice_run run = slice_next(slice, first, first + n);
    int rc = ERR_OK;

    if (slice_is_padded(&slice->shape))
        return loader_store_padded(l, rank, to, floats, first, n);
    for (; run.n > 0 && rc == ERR_OK; run = slice_next(slice, run.from + run.n, first + n)) {
        const float *from = floats + (size_t)(run.from - first) * (size_t)slice->cols + slice->col;
        int step = run.n;

        if (to->use == BYTES_QUANTISED) {
            rc = loader_store_quantised(l, device, to, from, run.to, run.n);
            continue;
        }
        if (slice->n_cols < slice->cols)
            step = 1;
        for (int i = 0; i < run.n && rc == ERR_OK; i += step) {
            const float *row = from + (size_t)i * (size_t)slice->cols;
            size_t at = to->at + (size_t)(run.to + i) * (size_t)slice->n_cols;
            size_t some = (size_t)step * (size_t)slice->n_cols;

            rc = to->is_bf16 ? loader_store_bf16(device, to, at, row, some)
                             : device->ops->weights(device, to->dst, at, row, DEVICE_F32, some);
        }
    }
    return rc;
}

/* Columns of n_rows rows of a tensor that has them in turns, each of `elem` bytes or, if that is 0,
 * in the file's format, come into the matrix's order; all ranks' parts are in that. */
static int loader_order_columns(const struct target *to, void *rows, int n_rows, size_t elem)
{
    const struct slice *slice = &to->slice;
    size_t chunk = elem * (size_t)slice->shape.col_chunk;
    void *row;

    if (slice->shape.col_turn <= 1)
        return ERR_OK;
    if (elem == 0)
        chunk = loader_elem_bytes(to, slice->shape.col_chunk);
    row = mem_alloc((size_t)(slice->cols / slice->shape.col_chunk) * chunk);
    if (row == NULL)
        return ERR_NO_MEMORY;
    slice_order_columns(slice, rows, n_rows, chunk, row);
    mem_free(row);
    return ERR_OK;
}

/* True if the host computes the numbers before they are stored. */
static bool loader_is_converted(const struct target *to)
{
    return to->use == BYTES_CONVERTED || to->use == BYTES_QUANTISED || to->use == BYTES_RAISED ||
           to->use == BYTES_WIDENED;
}

/* Gemma stores weights of norms minus one. Adding in float32, before rounding to the device's type,
 * keeps the small digits. */
static void loader_take_numbers(float *out, const struct tensor *t, size_t n, float more)
{
    for (size_t i = 0; i < n; i++)
        out[i] = quant_number(t, i) + more;
}

/* Convert n_rows rows from `first` on to float32 and store each rank's slice. The mutex is held
 * while storing, because the device's own operations are not thread-safe as pipes are; rows that
 * are rounded first take it themselves. */
static int loader_convert_rows(struct loader *l, size_t idx, unsigned char *bytes, int first,
                               int n_rows)
{
    const struct target *to = loader_leader(l, idx);
    size_t cols = (size_t)to->slice.cols;
    int step = (int)(FLOATS / cols) + 1, rc = ERR_OK;
    float *floats = mem_zalloc_array((size_t)step * cols, sizeof *floats);
    struct tensor part = *l->items[idx].t;

    if (floats == NULL)
        return ERR_NO_MEMORY;
    /* A row of 0 bytes: all of the tensor is at hand for every row. */
    for (int row = 0; row < n_rows && rc == ERR_OK;
         row += step, bytes += (size_t)step * loader_row_bytes(to)) {
        int some = step;

        if (n_rows - row < step)
            some = n_rows - row;
        part.data = bytes;
        if (to->use == BYTES_RAISED)
            loader_take_numbers(floats, &part, (size_t)some * cols, 1.0f);
        else if (to->part.kind == NULL && k_format_is_plain(&to->packed))
            loader_take_numbers(floats, &part, (size_t)some * cols, 0.0f);
        else
            rc = to->part.kind != NULL
                     ? quant_dequantise(floats, &to->part, bytes, first + row, some)
                     : quant_round(floats, &part, 0, some, (int)cols, to->packed.elem);
        if (rc == ERR_OK)
            rc = loader_order_columns(to, floats, some, sizeof *floats);
        for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
            const struct target *its = loader_target_of(l, idx, i);

            if (its->use != BYTES_QUANTISED)
                (void)pthread_mutex_lock(&l->turn); /* cannot fail, as above */
            if (loader_is_converted(its))
                rc = loader_store_floats(l, i, its, floats, first + row, some);
            if (its->use != BYTES_QUANTISED)
                (void)pthread_mutex_unlock(&l->turn);
        }
    }
    mem_free(floats);
    return rc;
}

/* n_rows rows of a tensor become columns `first` and on of the matrix that is gathered. */
static int loader_turn_columns(struct target *to, const struct tensor *t, unsigned char *bytes,
                               int first, int n_rows)
{
    size_t rows = (size_t)to->slice.rows, cols = (size_t)to->slice.cols;
    struct tensor part = *t;
    float *floats = NULL;
    int rc = ERR_OK;

    if (to->part.kind != NULL) {
        if ((floats = mem_zalloc_array((size_t)n_rows * rows, sizeof *floats)) == NULL)
            return ERR_NO_MEMORY;
        rc = quant_dequantise(floats, &to->part, bytes, first, n_rows);
    }
    part.data = bytes;
    for (size_t i = 0; i < (size_t)n_rows * rows && rc == ERR_OK; i++)
        to->turned[i % rows * cols + (size_t)first + i / rows] =
            floats != NULL ? floats[i] : quant_number(&part, i);
    mem_free(floats);
    return rc;
}

/* Take n_rows rows from `first` on of a tensor that is the transpose of its matrix. They are
 * columns of the matrix, so the matrix is gathered on the host and stored when the last row has
 * come. One thread reads a tensor, in the order of its rows, so no lock is needed until then. */
static int loader_turn_rows(struct loader *l, size_t idx, unsigned char *bytes, int first,
                            int n_rows)
{
    struct target *to = loader_leader(l, idx);
    int rows = to->slice.rows, cols = to->slice.cols, rc = ERR_OK;

    if (to->turned == NULL &&
        (to->turned = mem_zalloc_array((size_t)rows * (size_t)cols, sizeof(float))) == NULL)
        return ERR_NO_MEMORY;
    rc = loader_turn_columns(to, l->items[idx].t, bytes, first, n_rows);
    if (rc != ERR_OK)
        return rc;
    if (first + n_rows < cols)
        return ERR_OK;
    (void)pthread_mutex_lock(&l->turn); /* cannot fail: initialised, not held by us */
    for (int i = 0; i < l->n_ranks && rc == ERR_OK; i++) {
        if (loader_target_of(l, idx, i)->use == BYTES_TURNED)
            rc = loader_store_floats(l, i, loader_target_of(l, idx, i), to->turned, 0, rows);
    }
    (void)pthread_mutex_unlock(&l->turn);
    mem_free(to->turned);
    to->turned = NULL;
    return rc;
}

/* Take `bytes` bytes from `at` on of a tensor that is converted as a whole. As above, they come in
 * order, from one thread. */
static int loader_gather(struct loader *l, size_t idx, const unsigned char *from, size_t at,
                         size_t bytes)
{
    struct target *to = loader_leader(l, idx);
    size_t all = l->items[idx].t->bytes;
    int rc;

    if (to->whole == NULL && (to->whole = mem_alloc(all)) == NULL)
        return ERR_NO_MEMORY;
    memcpy(to->whole + at, from, bytes);
    if (at + bytes < all)
        return ERR_OK;
    if (to->use == BYTES_PACKED) {
        rc = loader_order_columns(to, to->whole, to->slice.rows, 0);
        if (rc == ERR_OK)
            rc = loader_pack(l, idx, to->whole);
    } else
        rc = loader_convert_rows(l, idx, to->whole, 0, to->slice.rows);
    mem_free(to->whole);
    to->whole = NULL;
    return rc;
}

/* Send n rows to the slice, from its row `to_row` on; in the pipe they begin at row `row`. */
static int loader_send_rows(struct device *d, const struct target *to,
                            const struct device_pipe *pipe, int row, int to_row, int n)
{
    int cols = to->slice.n_cols;
    size_t elems = (size_t)n * (size_t)cols, at = to->at + (size_t)to_row * (size_t)cols;
    struct device_pipe some = *pipe;
    struct k_quantised out;

    some.bytes += (size_t)row * loader_row_bytes(to) + loader_elem_bytes(to, to->slice.col);
    switch (to->use) {
    case BYTES_SUMMED:
    case BYTES_CONVERTED:
    case BYTES_QUANTISED:
    case BYTES_RAISED:
    case BYTES_WIDENED:
    case BYTES_TURNED:
    case BYTES_PACKED: break;
    case BYTES_FILLED: return d->ops->pipe_weights(d, &some, to->dst, at, to->type, elems);
    case BYTES_COPIED:
        return d->ops->pipe_bytes(
            d, &some, (char *)to->dst + to->at + (size_t)to_row * loader_elem_bytes(to, cols),
            (size_t)n * loader_elem_bytes(to, cols));
    case BYTES_ROUNDED:
        out = (struct k_quantised){.data = (k_e4m3 *)to->dst + at, .scales = to->scales + to_row};
        return d->ops->pipe_quantise(d, &some, &out, to->type, n, cols);
    }
    return ERR_OK;
}

/* Send a rank's slice of rows first .. first + n - 1 of a tensor, which are in the pipe. A row that
 * several ranks have is sent several times; so a device with ranks must not convert it inside the
 * pipe. */
static int loader_send_slice(struct device *d, const struct target *to,
                             const struct device_pipe *pipe, int first, int n)
{
    const struct slice *slice = &to->slice;
    struct slice_run run = slice_next(slice, first, first + n);
    int rc = ERR_OK;

    for (; run.n > 0 && rc == ERR_OK; run = slice_next(slice, run.from + run.n, first + n)) {
        int step = slice->n_cols < slice->cols ? 1 : run.n;

        for (int i = 0; i < run.n && rc == ERR_OK; i += step)
            rc = loader_send_rows(d, to, pipe, run.from + i - first, run.to + i, step);
    }
    return rc;
}

/* Called by the reader's threads: `bytes` bytes from `at` on of item idx are in the pipe. */
int loader_place_bytes(void *context, size_t idx, struct device_pipe *pipe, size_t at, size_t bytes)
{
    struct loader *loader = context;
    const struct target *to = loader_leader(loader, idx);
    size_t step = loader->items[idx].step;
    int rc = ERR_OK;

    if (to->use == BYTES_SUMMED)
        return ERR_OK;
    if (to->part.kind != NULL && to->part.kind->unpack != NULL)
        to->part.kind->unpack(pipe->bytes, bytes);
    if (to->use == BYTES_COPIED && to->part.format.elem == K_INT8)
        quant_order_bytes(pipe->bytes, bytes);
    if (loader_is_gathered(to))
        return loader_gather(loader, idx, pipe->bytes, at, bytes);
    if (to->use == BYTES_TURNED)
        return loader_turn_rows(loader, idx, pipe->bytes, (int)(at / step), (int)(bytes / step));
    if (loader_is_converted(to))
        return loader_convert_rows(loader, idx, pipe->bytes, (int)(at / step), (int)(bytes / step));
    rc = loader_order_columns(to, pipe->bytes, (int)(bytes / step), 0);
    for (int i = 0; i < loader->n_ranks && rc == ERR_OK; i++) {
        to = loader_target_of(loader, idx, i);
        if (to->use != BYTES_SUMMED)
            rc = loader_send_slice(loader->ranks[i].device, to, pipe, (int)(at / step),
                                   (int)(bytes / step));
    }
    return rc;
}
