/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between the device and host memory beside the steps: a stream for each way, so that both
 * copy engines work while the multiprocessors compute. A mark is an event; tickets count marks. */
#include "config.h"

#include "device/parts_cuda.h"

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

/* At the end, when nothing can be done about errors. */
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

int copy_pin(struct device *d, void *memory, size_t bytes)
{
    (void)d;
    return cuda_check(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "pinning memory");
}

void copy_unpin(struct device *d, void *memory)
{
    (void)d;
    (void)cudaHostUnregister(memory); /* the memory goes anyway */
}

/* Where one stream's work goes on behind what is in the other now. */
static int copy_follow(struct copy_way *w, cudaStream_t behind, cudaStream_t stream)
{
    int rc = cuda_check(cudaEventRecord(w->fence, stream), "a fence");

    return rc != ERR_OK ? rc : cuda_check(cudaStreamWaitEvent(behind, w->fence, 0), "a fence");
}

/* What a step under way reads or writes may be a page that was given away since: copies in wait
 * for it. Pages that go out are not written by anybody. */
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

    w->is_open = false; /* without a mark too: what comes next follows the steps of its time */
    if (w->n_marks - w->n_done == DEVICE_MARKS_MAX)
        return ERR_AGAIN;
    rc = cuda_check(cudaEventRecord(w->marks[w->n_marks % DEVICE_MARKS_MAX], w->stream), "a mark");
    if (rc != ERR_OK)
        return rc;
    *ticket = ++w->n_marks;
    return ERR_OK;
}

int copy_done(struct device *d, enum device_way way, uint64_t ticket)
{
    struct copy_way *w = &cuda_of(d)->ways[way];

    while (w->n_done < ticket) {
        cudaError_t e = cudaEventQuery(w->marks[w->n_done % DEVICE_MARKS_MAX]);

        if (e == cudaErrorNotReady) {
            (void)cudaGetLastError(); /* that is no error */
            return 0;
        }
        if (cuda_check(e, "copying pages") != ERR_OK)
            return ERR_GPU;
        w->n_done++;
    }
    return 1;
}

/* Copies in that come next follow the steps anew, and so what goes out before them: it may be what
 * stood in their pages. */
int copy_fence(struct device *d)
{
    struct cuda *c = cuda_of(d);
    struct copy_way *w = &c->ways[DEVICE_OUT];

    c->ways[DEVICE_IN].is_open = false;
    return copy_follow(w, c->stream, w->stream);
}
