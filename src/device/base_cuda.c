/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the cuda device stand on: errors and memory. Calls none of them. */
#include "device/parts_cuda.h"

#include "base/log.h"
#include "base/must.h"

int cuda_check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return ERR_OK;
    log_error("device: %s: %s", what, cudaGetErrorString(e));
    return ERR_GPU;
}

/* Keep the first error of a step; rc is a launcher's (0 or -1) or an enum err. */
void cuda_keep(struct cuda *c, int rc, const char *what)
{
    if (rc == 0 || c->rc != ERR_OK)
        return;
    if (rc == -1)
        (void)cuda_check(cudaGetLastError(), what);
    c->rc = ERR_GPU;
}

int cuda_enter(const struct cuda *c)
{
    int before = c->ordinal;

    if (cudaGetDevice(&before) != cudaSuccess || before == c->ordinal)
        return c->ordinal;
    (void)cudaSetDevice(c->ordinal); /* it was set before, by start(): cannot fail now */
    return before;
}

void cuda_leave(int before)
{
    (void)cudaSetDevice(before); /* as above */
}

static void *cuda_alloc_cleared(struct cuda *c, size_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaMalloc(&p, bytes == 0 ? 1 : bytes);

    if (e != cudaSuccess) {
        (void)cudaGetLastError(); /* clears it: a failed allocation is no error of the device */
        log_error("device: no GPU memory for %zu bytes: %s", bytes, cudaGetErrorString(e));
        return NULL;
    }
    c->allocs[c->n_allocs++] = p;
    c->base.allocated_bytes += bytes;
    if (cuda_check(cudaMemsetAsync(p, 0, bytes, c->stream), "clearing memory") != ERR_OK)
        return NULL;
    return p;
}

void *cuda_alloc(struct device *d, size_t bytes)
{
    struct cuda *c = cuda_of(d);
    int before;
    void *p;

    must(c->n_allocs < CUDA_ALLOCS_MAX);
    before = cuda_enter(c);
    p = cuda_alloc_cleared(c, bytes);
    cuda_leave(before);
    return p;
}

/* Copies wait for the stream first, so that they come after what was enqueued. */
void *cuda_pinned(size_t bytes)
{
    void *p = NULL;

    return cuda_check(cudaMallocHost(&p, bytes), "pinned memory") == ERR_OK ? p : NULL;
}
