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

/* Events without timing are cheaper to record. */
int copy_open(struct cuda *c)
{
    for (int way = 0; way < DEVICE_WAYS; way++) {
        struct copy_way *w = &c->ways[way];

        if (cuda_check(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "a stream") !=
                ERR_OK ||
            cuda_check(cudaEventCreateWithFlags(&w->fence, cudaEventDisableTiming), "an event") !=
                ERR_OK)
            return ERR_GPU;
        for (int i = 0; i < DEVICE_MARKS_MAX; i++) {
            if (cuda_check(cudaEventCreateWithFlags(&w->marks[i], cudaEventDisableTiming),
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
        struct copy_way *w = &c->ways[way];

        if (w->stream != NULL) {
            (void)cudaStreamSynchronize(w->stream);
            (void)cudaStreamDestroy(w->stream);
        }
        if (w->fence != NULL)
            (void)cudaEventDestroy(w->fence);
        for (int i = 0; i < DEVICE_MARKS_MAX; i++) {
            if (w->marks[i] != NULL)
                (void)cudaEventDestroy(w->marks[i]);
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

    return rc != ERR_OK ? rc : cuda_check(cudaStreamWaitEvent(behind, w->fence, 0), "a fence");
}

/* The first copy in after a mark waits for the steps so far: a step in flight may still use the
 * page, which was given away since. Copies out need no wait, because nothing writes their pages. */
int copy_start(struct device *d, enum device_way way, void *dst, const void *src, size_t bytes)
{
    struct cuda *c = cuda_of(d);
    struct copy_way *w = &c->ways[way];
    int rc = ERR_OK;

    if (way == DEVICE_IN && !w->is_open)
        rc = copy_follow(w, w->stream, c->stream);
    w->is_open = true;
    return rc != ERR_OK ? rc
                        : cuda_check(cudaMemcpyAsync(dst, src, bytes,
                                                     way == DEVICE_IN ? cudaMemcpyHostToDevice
                                                                      : cudaMemcpyDeviceToHost,
                                                     w->stream),
                                     "copying a page");
}

int copy_within(struct device *d, void *dst, const void *src, size_t bytes)
{
    struct cuda *c = cuda_of(d);

    return cuda_check(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, c->stream),
                      "copying a page");
}

int copy_mark(struct device *d, enum device_way way, uint64_t *ticket)
{
    struct copy_way *w = &cuda_of(d)->ways[way];
    int rc;

    w->is_open = false; /* even without a mark: later copies wait for the steps of their own time */
    if (w->n_marks - w->n_done == DEVICE_MARKS_MAX)
        return ERR_AGAIN;
    rc = cuda_check(cudaEventRecord(w->marks[w->n_marks % DEVICE_MARKS_MAX], w->stream), "a mark");
    if (rc != ERR_OK)
        return rc;
    *ticket = ++w->n_marks;
    return ERR_OK;
}

/* Marks complete in order, so n_done of them can be counted. */
int copy_done(struct device *d, enum device_way way, uint64_t ticket)
{
    struct copy_way *w = &cuda_of(d)->ways[way];

    while (w->n_done < ticket) {
        cudaError_t e = cudaEventQuery(w->marks[w->n_done % DEVICE_MARKS_MAX]);

        if (e == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* "not ready" is not an error */
            return 0;
        }
        if (cuda_check(e, "copying pages") != ERR_OK)
            return ERR_GPU;
        w->n_done++;
    }
    return 1;
}

/* The next step waits for all copies out. Later copies in wait for the steps again, and so for
 * these copies out: they may replace the very pages that go out. */
int copy_fence(struct device *d)
{
    struct cuda *c = cuda_of(d);
    struct copy_way *w = &c->ways[DEVICE_OUT];

    c->ways[DEVICE_IN].is_open = false;
    return copy_follow(w, c->stream, w->stream);
}
