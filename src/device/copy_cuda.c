/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between the device and host memory beside the steps: one stream per direction, so that
 * both copy engines work while the multiprocessors compute. A mark is a CUDA event, and a ticket is
 * the number of a mark.
 *
 * Order with steps: copies in wait for the steps that have begun, because their pages may still be
 * in use by those; the next step waits for copies out only after copy_fence(). */
#include "config.h"

#include "device/parts_cuda.h"

#include "base/must.h"

/* Events without timing are cheaper to record. */
int copy_open(struct cuda *c)
{
    for (int way = 0; way < DEVICE_WAYS; way++) {
        struct copy_way *queue = &c->ways[way];

        if (cuda_check(cudaStreamCreateWithFlags(&queue->stream, cudaStreamNonBlocking),
                       "a stream") != ERR_OK ||
            cuda_check(cudaEventCreateWithFlags(&queue->fence, cudaEventDisableTiming),
                       "an event") != ERR_OK)
            return ERR_GPU;
        for (int i = 0; i < DEVICE_MARKS_MAX; i++) {
            if (cuda_check(cudaEventCreateWithFlags(&queue->marks[i], cudaEventDisableTiming),
                           "an event") != ERR_OK)
                return ERR_GPU;
        }
    }
    return ERR_OK;
}

/* Errors are ignored at the end. */
void copy_close(struct cuda *c)
{
    for (int way = 0; way < DEVICE_WAYS; way++) {
        struct copy_way *queue = &c->ways[way];

        if (queue->stream != NULL) {
            (void)cudaStreamSynchronize(queue->stream);
            (void)cudaStreamDestroy(queue->stream);
        }
        if (queue->fence != NULL)
            (void)cudaEventDestroy(queue->fence);
        for (int i = 0; i < DEVICE_MARKS_MAX; i++) {
            if (queue->marks[i] != NULL)
                (void)cudaEventDestroy(queue->marks[i]);
        }
    }
}

/* Portable: pinned for all GPUs of the process. */
int copy_pin(struct device *d, void *memory, size_t bytes)
{
    (void)d;
    return cuda_check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "pinning memory");
}

void copy_unpin(struct device *d, void *memory)
{
    (void)d;
    (void)cudaHostUnregister(memory); /* the memory is freed next */
}

/* Make `behind` wait for all work that is now in `stream`. */
static int copy_follow(struct copy_way *w, cudaStream_t behind, cudaStream_t stream)
{
    int rc = cuda_check(cudaEventRecord(w->fence, stream), "a fence");

    if (rc != ERR_OK)
        return rc;
    return cuda_check(cudaStreamWaitEvent(behind, w->fence, 0), "a fence");
}

/* The first copy in after a mark waits for the steps so far: a step in flight may still use the
 * page, which was given away since. Copies out need no wait, because nothing writes their pages. */
int copy_start(struct device *d, enum device_way way, void *dst, const void *src, size_t bytes)
{
    struct cuda *gpu = cuda_of(d);
    struct copy_way *queue = &gpu->ways[way];
    int rc = ERR_OK;

    if (way == DEVICE_IN && !queue->is_open)
        rc = copy_follow(queue, queue->stream, gpu->stream);
    queue->is_open = true;
    if (rc != ERR_OK)
        return rc;
    return cuda_check(
        cudaMemcpyAsync(dst, src, bytes,
                        way == DEVICE_IN ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                        queue->stream),
        "copying a page");
}

int copy_within(struct device *d, void *dst, const void *src, size_t bytes)
{
    struct cuda *gpu = cuda_of(d);

    return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, gpu->stream),
                      "copying a page");
}

int copy_mark(struct device *d, enum device_way way, uint64_t *ticket)
{
    struct copy_way *queue = &cuda_of(d)->ways[way];
    int rc;

    queue->is_open =
        false; /* even without a mark: later copies wait for the steps of their own time */
    if (queue->n_marks - queue->n_done == DEVICE_MARKS_MAX)
        return ERR_AGAIN;
    rc = cuda_check(cudaEventRecord(queue->marks[queue->n_marks % DEVICE_MARKS_MAX], queue->stream),
                    "a mark");
    if (rc != ERR_OK)
        return rc;
    *ticket = ++queue->n_marks;
    return ERR_OK;
}

/* Marks complete in order, so n_done of them can be counted. */
int copy_done(struct device *d, enum device_way way, uint64_t ticket)
{
    struct copy_way *queue = &cuda_of(d)->ways[way];

    must(ticket <= queue->n_marks);
    while (queue->n_done < ticket) {
        cudaError_t error = cudaEventQuery(queue->marks[queue->n_done % DEVICE_MARKS_MAX]);

        if (error == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* "not ready" is not an error */
            return 0;
        }
        if (cuda_check(error, "copying pages") != ERR_OK)
            return ERR_GPU;
        queue->n_done++;
    }
    return 1;
}

/* The next step waits for all copies out. Later copies in wait for the steps again, and so for
 * these copies out: they may replace the very pages that go out. */
int copy_fence(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    struct copy_way *queue = &gpu->ways[DEVICE_OUT];

    gpu->ways[DEVICE_IN].is_open = false;
    return copy_follow(queue, gpu->stream, queue->stream);
}
