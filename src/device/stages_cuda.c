/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of the cuda device: GPUs of one host that compute consecutive layers of a model.
 *
 * A device has an inbox with two places. The device of the stage before copies the rows of its
 * steps into them in turn, over peer access where there is any; this one copies them to its
 * activations, which have fixed addresses because recorded steps contain them. Two events for each
 * place order the streams: filled, for the receiver, and taken, for the sender's next use of the
 * place. An event must have been recorded before another stream can wait for it; so the threads
 * that enqueue count the rows they have put and got, and wait for each other's counts. They never
 * wait for a GPU.
 *
 * Sampled ids go back to the first stage through the pinned memory in which the sampling device
 * leaves them for the host. */
#include "config.h"

#include "device/parts_cuda.h"

#include <pthread.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define PLACES     2
#define FUSED_ROWS 64 /* PASS_FUSED_MAX: steps with more than the residual */
#define KERNEL_COPY \
    ((size_t)1 << 20) /* up to so many bytes a kernel copies: it does not queue
                                       * behind pages on a copy engine */

/* What device idx receives. */
struct inbox {
    char *places[PLACES]; /* on the device */
    size_t bytes;         /* of a place */
    cudaEvent_t filled[PLACES], taken[PLACES];
    unsigned n_put, n_got;
};

struct stages {
    int n_stages, n_parts;
    struct cuda *all[K_RANKS_MAX];
    struct inbox inboxes[K_RANKS_MAX];
    pthread_mutex_t lock; /* guards n_put, n_got and ended */
    pthread_cond_t progress;
    bool ended;
    int n_refs;
};

/* --- joining ------------------------------------------------------------------------------ */

/* Copies work without peer access too, through the host. */
static int stages_open_ways(struct stages *s, int n)
{
    int rc = ERR_OK;

    for (int i = 0; i + s->n_parts < n && rc == ERR_OK; i++) {
        const struct cuda *from = s->all[i], *to = s->all[i + s->n_parts];
        int can = 0;

        if (from->ordinal == to->ordinal)
            continue;
        if (cudaDeviceCanAccessPeer(&can, from->ordinal, to->ordinal) != cudaSuccess || !can) {
            (void)cudaGetLastError(); /* the answer is no */
            log_warn("device: GPU %d cannot reach the memory of GPU %d (nvidia-smi topo -p2p r): "
                     "stages hand their rows over through the host",
                     from->ordinal, to->ordinal);
            continue;
        }
        rc = peers_open_way(from, to);
    }
    return rc;
}

/* An event belongs to the GPU on whose stream it is recorded. */
static int stages_make_event(const struct cuda *of, cudaEvent_t *out)
{
    int before = cuda_enter(of);
    int rc = cuda_check(cudaEventCreateWithFlags(out, cudaEventDisableTiming), "an event");

    cuda_leave(before);
    return rc;
}

static int stages_make_events(struct stages *s, int n)
{
    int rc = ERR_OK;

    for (int i = s->n_parts; i < n && rc == ERR_OK; i++) {
        for (int k = 0; k < PLACES && rc == ERR_OK; k++) {
            rc = stages_make_event(s->all[i - s->n_parts], &s->inboxes[i].filled[k]);
            if (rc == ERR_OK)
                rc = stages_make_event(s->all[i], &s->inboxes[i].taken[k]);
        }
    }
    return rc;
}

/* Each device holds one reference. */
int stages_join(struct device *const *all, int n_stages, int n_parts)
{
    int n = n_stages * n_parts, rc;
    struct stages *stages;

    must(n_stages > 1 && n_parts >= 1);
    if (n > K_RANKS_MAX) {
        log_error("device: %d stages of %d ranks, at most %d GPUs are supported", n_stages, n_parts,
                  K_RANKS_MAX);
        return ERR_UNSUPPORTED;
    }
    if ((stages = mem_zalloc(sizeof *stages)) == NULL)
        return ERR_NO_MEMORY;
    stages->n_stages = n_stages;
    stages->n_parts = n_parts;
    stages->n_refs = n;
    (void)pthread_mutex_init(&stages->lock, NULL); /* default attributes: cannot fail on Linux */
    (void)pthread_cond_init(&stages->progress, NULL);
    for (int i = 0; i < n; i++) {
        stages->all[i] = cuda_of(all[i]);
        stages->all[i]->stages = stages;
        stages->all[i]->idx = i;
        stages->all[i]->samples = i == n - n_parts;
    }
    if ((rc = stages_open_ways(stages, n)) != ERR_OK)
        return rc;
    return stages_make_events(stages, n);
}

int stages_all(const struct cuda *c, struct cuda **all)
{
    memcpy(all, c->stages->all, sizeof c->stages->all);
    return c->stages->n_stages * c->stages->n_parts;
}

/* Devices are closed one after another by one thread. */
void stages_close(struct cuda *c)
{
    struct stages *stages = c->stages;

    c->stages = NULL;
    if (stages == NULL || --stages->n_refs > 0)
        return;
    for (int i = 0; i < K_RANKS_MAX; i++) {
        for (int k = 0; k < PLACES; k++) {
            if (stages->inboxes[i].filled[k] != NULL)
                (void)cudaEventDestroy(stages->inboxes[i].filled[k]);
            if (stages->inboxes[i].taken[k] != NULL)
                (void)cudaEventDestroy(stages->inboxes[i].taken[k]);
        }
    }
    (void)pthread_cond_destroy(&stages->progress);
    (void)pthread_mutex_destroy(&stages->lock);
    mem_free(stages);
}

/* The residual of the largest step; a fused one also has its normed rows and their sums. Memory of
 * cudaMalloc(), because peers have no access to memory that sleeps. */
int stages_reserve(struct cuda *c)
{
    const struct device_limits *lim = &c->base.limits;
    size_t dim = (size_t)lim->dim;
    struct inbox *inbox;

    if (c->stages == NULL || c->idx < c->stages->n_parts)
        return ERR_OK;
    inbox = &c->stages->inboxes[c->idx];
    inbox->bytes = (size_t)lim->n_tokens * dim * sizeof(float) +
                   FUSED_ROWS * (dim * sizeof(k_bf16) + (dim / 16 + 1) * sizeof(float));
    for (int k = 0; k < PLACES; k++) {
        /* Kernels copy 16 bytes at a time. */
        if ((inbox->places[k] = cuda_alloc(&c->base, inbox->bytes + 16)) == NULL)
            return ERR_NO_MEMORY;
    }
    return cuda_check(cudaStreamSynchronize(c->stream), "clearing memory");
}

/* --- ends ------------------------------------------------------------------------------- */

void stages_leave(struct device *d)
{
    struct stages *stages = cuda_of(d)->stages;

    peers_leave(d);
    if (stages == NULL)
        return;
    (void)pthread_mutex_lock(&stages->lock);
    stages->ended = true;
    (void)pthread_cond_broadcast(&stages->progress);
    (void)pthread_mutex_unlock(&stages->lock);
}

bool stages_failed(const struct cuda *c)
{
    struct stages *stages = c->stages;
    bool ended;

    if (stages == NULL)
        return false;
    (void)pthread_mutex_lock(&stages->lock);
    ended = stages->ended;
    (void)pthread_mutex_unlock(&stages->lock);
    return ended;
}

/* Wait until another thread's count is at least `wanted`. That thread enqueues the same step, or
 * has left. */
static int stages_await(struct stages *s, const unsigned *count, unsigned wanted)
{
    bool ended;

    (void)pthread_mutex_lock(&s->lock);
    while (!s->ended && (int)(*count - wanted) < 0)
        (void)pthread_cond_wait(&s->progress, &s->lock);
    ended = s->ended;
    (void)pthread_mutex_unlock(&s->lock);
    return ended ? ERR_GPU : ERR_OK;
}

static void stages_count(struct stages *s, unsigned *count)
{
    (void)pthread_mutex_lock(&s->lock);
    ++*count;
    (void)pthread_cond_broadcast(&s->progress);
    (void)pthread_mutex_unlock(&s->lock);
}

/* --- rows --------------------------------------------------------------------------------- */

static int stages_copy(struct cuda *c, void *to, const void *from, size_t bytes)
{
    if (bytes > KERNEL_COPY || bytes % 16 != 0)
        return cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, c->stream),
                          "handing rows over");
    if (k_copy(to, from, bytes, c->stream) == 0)
        return ERR_OK;
    return cuda_check(cudaGetLastError(), "handing rows over");
}

/* Segments follow one another in a place, each on a multiple of 16 bytes. */
static size_t stages_segment_bytes(const struct device *d, const struct device_segment *segment)
{
    return (size_t)d->step_tokens * segment->row_bytes;
}

int stages_take(struct device *d, const struct device_segment *segments, int n)
{
    struct cuda *gpu = cuda_of(d);
    struct stages *stages = gpu->stages;
    struct inbox *inbox = &stages->inboxes[gpu->idx];
    unsigned place = inbox->n_got % PLACES;
    const char *from = inbox->places[place];
    int rc = stages_await(stages, &inbox->n_put, inbox->n_got + 1);

    if (rc == ERR_OK)
        rc = cuda_check(cudaStreamWaitEvent(gpu->stream, inbox->filled[place], 0),
                        "waiting for rows");
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        size_t bytes = stages_segment_bytes(d, &segments[i]);

        rc = stages_copy(gpu, segments[i].data, from, bytes);
        from += (bytes + 15) / 16 * 16;
    }
    if (rc == ERR_OK)
        rc = cuda_check(cudaEventRecord(inbox->taken[place], gpu->stream), "taking rows");
    if (rc == ERR_OK)
        stages_count(stages, &inbox->n_got);
    return rc;
}

int stages_hand(struct device *d, const struct device_segment *segments, int n)
{
    struct cuda *gpu = cuda_of(d);
    struct stages *stages = gpu->stages;
    struct inbox *inbox = &stages->inboxes[gpu->idx + stages->n_parts];
    unsigned place = inbox->n_put % PLACES;
    char *to = inbox->places[place];
    int rc;

    if (FAULT_HIT(rank_lost))
        stages_leave(d);
    rc = stages_await(stages, &inbox->n_got, inbox->n_put + 1 - PLACES);
    if (rc == ERR_OK && inbox->n_put >= PLACES)
        rc = cuda_check(cudaStreamWaitEvent(gpu->stream, inbox->taken[place], 0),
                        "waiting for room for rows");
    for (int i = 0; i < n && rc == ERR_OK; i++) {
        size_t bytes = stages_segment_bytes(d, &segments[i]);

        must((size_t)(to - inbox->places[place]) + bytes <= inbox->bytes + 16);
        rc = stages_copy(gpu, to, segments[i].data, bytes);
        to += (bytes + 15) / 16 * 16;
    }
    if (rc == ERR_OK)
        rc = cuda_check(cudaEventRecord(inbox->filled[place], gpu->stream), "handing rows over");
    if (rc == ERR_OK)
        stages_count(stages, &inbox->n_put);
    return rc;
}

/* --- ids ---------------------------------------------------------------------------------- */

/* The slot of that step is not used again before this step has read it: the step that uses it waits
 * for rows of this one. */
int stages_fetch_ids(struct cuda *c)
{
    struct stages *stages = c->stages;
    const struct cuda *sampler = stages->all[(stages->n_stages - 1) * stages->n_parts];
    unsigned step = c->n_begun - device_stages(c->base.limits.n_stages); /* of all nodes */
    const struct step_slot *slot = &sampler->slots[step % device_steps(c->base.limits.n_stages)];

    if (c->idx >= stages->n_parts)
        return ERR_OK;
    if (cuda_check(cudaStreamWaitEvent(c->stream, sampler->marks[step % CUDA_MARKS].done, 0),
                   "waiting for ids") != ERR_OK)
        return ERR_GPU;
    if (k_copy(c->own_sampled, slot->ids, (size_t)slot->n_rows * sizeof *slot->ids, c->stream) == 0)
        return ERR_OK;
    return cuda_check(cudaGetLastError(), "copying ids");
}
