/* SPDX-License-Identifier: Apache-2.0
 *
 * The base of the cuda device's files: errors, memory, and switching between GPUs. It calls none of
 * the other files.
 *
 * Errors of operations in a step are not returned one by one: the first is kept in c->rc
 * (cuda_keep()) and returned at the end of the step, so that enqueueing code stays straight. */
#include "device/parts_cuda.h"

#include "base/log.h"
#include "base/must.h"

/* what names the action for the log: "device: copying: out of memory". */
int cuda_check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return ERR_OK;
    log_error("device: %s: %s", what, cudaGetErrorString(e));
    return ERR_GPU;
}

/* Keep the first error of a step. rc is that of a launcher (0 or -1, with the reason in CUDA's last
 * error) or an enum err. */
void cuda_keep(struct cuda *c, int rc, const char *what)
{
    if (rc == 0 || c->rc != ERR_OK)
        return;
    if (rc == -1)
        (void)cuda_check(cudaGetLastError(), what);
    c->rc = ERR_GPU;
}

/* Skipped if the GPU is current already, which is the common case. */
int cuda_enter(const struct cuda *c)
{
    int before = c->ordinal;

    if (cudaGetDevice(&before) != cudaSuccess || before == c->ordinal)
        return c->ordinal;
    (void)cudaSetDevice(c->ordinal); /* it was set once by cuda_start(): cannot fail any more */
    return before;
}

void cuda_leave(int before)
{
    (void)cudaSetDevice(before); /* as above */
}

/* Allocations are freed all at once by cuda_close(), so they are only noted. Memory is cleared on
 * the device's stream, before any step. */
static void *cuda_alloc_cleared(struct cuda *c, size_t bytes)
{
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes == 0 ? 1 : bytes);

    if (error != cudaSuccess) {
        (void)cudaGetLastError(); /* clears CUDA's last error: a failed allocation is not an
                                   * error of the device */
        log_error("device: no GPU memory for %zu bytes: %s", bytes, cudaGetErrorString(error));
        return NULL;
    }
    c->allocs[c->n_allocs++] = memory;
    c->base.allocated_bytes += bytes;
    if (cuda_check(cudaMemsetAsync(memory, 0, bytes, c->stream), "clearing memory") != ERR_OK)
        return NULL;
    return memory;
}

void *cuda_alloc(struct device *d, size_t bytes)
{
    struct cuda *gpu = cuda_of(d);
    int before;
    void *memory;

    must(gpu->n_allocs < CUDA_ALLOCS_MAX);
    before = cuda_enter(gpu);
    memory = cuda_alloc_cleared(gpu, bytes);
    cuda_leave(before);
    return memory;
}

/* Host memory that the GPU reads at full speed. NULL (logged) if there is none. */
void *cuda_pinned(size_t bytes)
{
    void *memory = NULL;

    if (cuda_check(cudaMallocHost(&memory, bytes), "pinned memory") == ERR_OK)
        return memory;
    return NULL;
}
