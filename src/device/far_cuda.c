/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between GPUs of two processes, by NCCL: over the network, or over a host's own links when
 * both processes run there.
 *
 * A kernel of NCCL that receives stays on the GPU until the rows have come. Node 0 has its first
 * stage and the output matrix on one GPU: if the receiver started before that stage's kernels were
 * launched, and one of these had to be loaded first, which waits for the whole GPU, both would wait
 * forever. So the receiver of a step starts behind the sender of that step: an event orders the
 * streams, and a count of the steps that were handed over orders the threads that enqueue.
 *
 * NCCL connects at the first message, and waits for the GPU then. With rows of another step on
 * their way, which fit into no buffer, both processes waited forever; so far_open() sends one
 * message already. */
#include "config.h"

#include "device/far_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/mem.h"
#include "base/must.h"
#include "device/nccl_cuda.h"

#define WAIT_MS 100 /* between looks at whether the other process has ended */

struct far {
    struct nccl *pair;
    const atomic_bool *lost;
    struct far *sender;                   /* of a receiver: rows come behind its; NULL: at once */
    cudaEvent_t handed[DEVICE_STEPS_MAX]; /* of a sender: behind the rows of a step */
    unsigned n_rows;                      /* steps that were handed over, or taken */
    pthread_mutex_t lock;                 /* guards n_rows */
    pthread_cond_t progress;
};

int far_name(struct device *d, char name[DEVICE_FAR_NAME])
{
    (void)d;
    return nccl_name(name);
}

static void far_free(struct far *f)
{
    if (f == NULL)
        return;
    nccl_close(f->pair);
    for (int i = 0; i < DEVICE_STEPS_MAX; i++) {
        if (f->handed[i] != NULL)
            (void)cudaEventDestroy(f->handed[i]);
    }
    (void)pthread_cond_destroy(&f->progress);
    (void)pthread_mutex_destroy(&f->lock);
    mem_free(f);
}

static int far_make(struct far **out, struct cuda *c, const struct device_far *how)
{
    struct far *far = mem_zalloc(sizeof *far);
    int rc = ERR_OK;

    if (far == NULL)
        return ERR_NO_MEMORY;
    far->lost = how->lost;
    (void)pthread_mutex_init(&far->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&far->progress, NULL);
    for (int i = 0; i < DEVICE_STEPS_MAX && how->sends && rc == ERR_OK; i++)
        rc = cuda_check(cudaEventCreateWithFlags(&far->handed[i], cudaEventDisableTiming),
                        "an event");
    if (rc == ERR_OK)
        rc = nccl_open_pair(&far->pair, how->name, c->ordinal, how->sends ? 0 : 1);
    if (rc == ERR_OK)
        *out = far;
    else
        far_free(far);
    return rc;
}

/* The first message of a connection. */
static int far_greet(struct cuda *c, const struct far *f, bool sends)
{
    struct nccl_run run = {.data = c->own_sampled, .bytes = sizeof *c->own_sampled};

    must(run.data != NULL);
    if (nccl_move(f->pair, sends, &run, 1, c->stream) != 0)
        return ERR_GPU;
    return cuda_check(cudaStreamSynchronize(c->stream), "connecting with another node");
}

int far_open(struct device *d, const struct device_far *how)
{
    struct cuda *gpu = cuda_of(d);
    struct far **place = how->sends ? &gpu->far_out : &gpu->far_in;
    int before = cuda_enter(gpu), rc;

    must(*place == NULL);
    rc = far_make(place, gpu, how);
    if (rc == ERR_OK)
        rc = far_greet(gpu, *place, how->sends);
    cuda_leave(before);
    if (rc == ERR_OK && how->after != NULL) {
        (*place)->sender = cuda_of(how->after)->far_out;
        must((*place)->sender != NULL);
    }
    return rc;
}

/* --- rows --------------------------------------------------------------------------------- */

static int far_move(struct cuda *c, struct far *f, bool sends,
                    const struct device_segment *segments, int n)
{
    struct nccl_run runs[DEVICE_SEGMENTS_MAX];

    must(n <= DEVICE_SEGMENTS_MAX);
    for (int i = 0; i < n; i++)
        runs[i] = (struct nccl_run){.data = segments[i].data,
                                    .bytes = (size_t)c->base.step_tokens * segments[i].row_bytes};
    return nccl_move(f->pair, sends, runs, n, c->stream) == 0 ? ERR_OK : ERR_GPU;
}

int far_hand(struct device *d, const struct device_segment *segments, int n)
{
    struct cuda *gpu = cuda_of(d);
    struct far *far = gpu->far_out;
    int rc = far_move(gpu, far, true, segments, n);

    if (rc == ERR_OK)
        rc = cuda_check(cudaEventRecord(far->handed[far->n_rows % DEVICE_STEPS_MAX], gpu->stream),
                        "handing rows over");
    (void)pthread_mutex_lock(&far->lock);
    far->n_rows += rc == ERR_OK;
    (void)pthread_cond_broadcast(&far->progress);
    (void)pthread_mutex_unlock(&far->lock);
    return rc;
}

/* Wait until the sender of this process has enqueued the rows of step n. */
static int far_await(struct far *sender, unsigned n)
{
    (void)pthread_mutex_lock(&sender->lock);
    while ((int)(sender->n_rows - n) <= 0 && !atomic_load(sender->lost)) {
        struct timespec end;

        (void)clock_gettime(CLOCK_REALTIME, &end);
        end.tv_nsec += WAIT_MS * 1000000L;
        end.tv_sec += end.tv_nsec / 1000000000L;
        end.tv_nsec %= 1000000000L;
        (void)pthread_cond_timedwait(&sender->progress, &sender->lock, &end);
    }
    (void)pthread_mutex_unlock(&sender->lock);
    return atomic_load(sender->lost) ? ERR_GPU : ERR_OK;
}

int far_take(struct device *d, const struct device_segment *segments, int n)
{
    struct cuda *gpu = cuda_of(d);
    struct far *far = gpu->far_in;
    int rc = ERR_OK;

    if (far->sender != NULL) {
        rc = far_await(far->sender, far->n_rows);
        if (rc == ERR_OK)
            rc =
                cuda_check(cudaStreamWaitEvent(
                               gpu->stream, far->sender->handed[far->n_rows % DEVICE_STEPS_MAX], 0),
                           "waiting for rows");
    }
    if (rc == ERR_OK)
        rc = far_move(gpu, far, false, segments, n);
    far->n_rows++;
    return rc;
}

/* --- ends --------------------------------------------------------------------------------- */

bool far_is_open(const struct cuda *c)
{
    return c->far_in != NULL || c->far_out != NULL;
}

static bool far_one_failed(const struct far *f)
{
    return f != NULL && (atomic_load(f->lost) || nccl_failed(f->pair, 0));
}

bool far_failed(const struct cuda *c)
{
    return far_one_failed(c->far_in) || far_one_failed(c->far_out);
}

void far_stop(struct cuda *c)
{
    if (c->far_in != NULL)
        nccl_abort(c->far_in->pair, 0);
    if (c->far_out != NULL)
        nccl_abort(c->far_out->pair, 0);
}

void far_close(struct cuda *c)
{
    far_free(c->far_in);
    far_free(c->far_out);
    c->far_in = c->far_out = NULL;
}
