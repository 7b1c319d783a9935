/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of the cuda device: GPUs of one host that write into each other's memory.
 *
 * peers_join() makes every GPU's memory of cudaMalloc() accessible to every other GPU, and makes a
 * board that all ranks share. Each rank allocates an inbox and flags when it reserves its memory,
 * and the rows that ranks sum by alloc_shared(); it puts their addresses on the board. The first
 * sum copies the addresses into the struct that kernels take. By then all ranks have reserved and
 * allocated, because the model makes all of them do so before its first step.
 *
 * GPUs that cannot reach each other's memory use NCCL for sums (nccl_cuda.h), and so do all GPUs if
 * the setting disable_custom_all_reduce is on. Steps with NCCL are not recorded: decodes hung where
 * recorded steps and others took turns (NCCL 2.28).
 *
 * kernels/ranks.cu describes the protocols. A kernel that waits for a peer polls two words of the
 * board: a rank has left, and a sum was given up. Either ends all sums at once, and the steps with
 * ERR_GPU. */
#include "config.h"

#include "device/parts_cuda.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/far_cuda.h"
#include "device/nccl_cuda.h"

#define SHARED_MAX    64       /* allocations per rank */
#define NCCL_STUCK_US 60000000 /* a step with NCCL takes less, or will never end */
#define NCCL_POLL_US  20

/* Words that kernels poll: pinned memory, one cache line each, so that writing one does not slow
 * readers of the other. */
struct board_words {
    uint32_t left, unused[31];
    uint32_t failed, unused_too[31];
};

/* What alloc_shared() gave. */
struct shared {
    char *memory;
    size_t bytes;
};

struct peers {
    int n;
    struct cuda *all[K_RANKS_MAX];
    void *inbox[K_RANKS_MAX];
    uint64_t *flags[K_RANKS_MAX];
    struct shared shared[K_RANKS_MAX][SHARED_MAX]; /* in the order of the calls */
    int n_shared[K_RANKS_MAX];
    struct board_words *words; /* pinned */
    struct nccl *nccl;         /* NULL: peer pointers */
    atomic_int n_refs;
};

/* --- joining ------------------------------------------------------------------------------ */

/* True if all GPUs can reach each other's memory. */
static bool peers_can_reach(struct device *const *all, int n)
{
    for (int i = 0; i < n * n; i++) {
        int from = cuda_of(all[i / n])->ordinal, to = cuda_of(all[i % n])->ordinal, can = 0;

        if (from == to)
            continue;
        if (cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || !can) {
            (void)cudaGetLastError(); /* the answer is no */
            log_warn("device: GPU %d cannot reach the memory of GPU %d (nvidia-smi topo -p2p r): "
                     "NCCL sums over the ranks, which takes longer",
                     from, to);
            return false;
        }
    }
    return true;
}

/* Let GPU `from` access the memory of GPU `to`. */
int peers_open_way(const struct cuda *from, const struct cuda *to)
{
    int before, rc = ERR_OK;
    cudaError_t error;

    if (from->ordinal == to->ordinal)
        return ERR_OK;
    before = cuda_enter(from);
    error = cudaDeviceEnablePeerAccess(to->ordinal, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled)
        (void)cudaGetLastError(); /* another model of this process has opened it */
    else
        rc = cuda_check(error, "opening peer access");
    cuda_leave(before);
    return rc;
}

/* Access is opened per direction, so all ordered pairs are needed. */
static int peers_open_ways(struct device *const *all, int n)
{
    int rc = ERR_OK;

    for (int i = 0; i < n * n && rc == ERR_OK; i++)
        rc = peers_open_way(cuda_of(all[i / n]), cuda_of(all[i % n]));
    return rc;
}

/* NCCL opens peer access itself where it can. */
static int peers_open_nccl(struct peers *peers, struct device *const *all, int n)
{
    int gpus[K_RANKS_MAX];

    for (int i = 0; i < n; i++)
        gpus[i] = cuda_of(all[i])->ordinal;
    return nccl_open(&peers->nccl, gpus, n);
}

/* An empty board; *out is set only if there is memory for it. */
static int peers_make_board(struct peers **out, int n)
{
    struct peers *peers = mem_zalloc(sizeof *peers);

    if (peers == NULL)
        return ERR_NO_MEMORY;
    if ((peers->words = cuda_pinned(sizeof *peers->words)) == NULL) {
        mem_free(peers);
        return ERR_NO_MEMORY;
    }
    memset(peers->words, 0, sizeof *peers->words);
    peers->n = n;
    atomic_store(&peers->n_refs, n);
    *out = peers;
    return ERR_OK;
}

static void peers_free_board(struct peers *peers)
{
    nccl_close(peers->nccl);
    (void)cudaFreeHost(peers->words);
    mem_free(peers);
}

/* Each device holds one reference to the board. */
int peers_join(struct device *const *all, int n, enum device_links links)
{
    struct peers *peers = NULL;
    int rc;

    must(n >= 1);
    if (n > K_RANKS_MAX) {
        log_error("device: %d ranks, the kernels take at most %d", n, K_RANKS_MAX);
        return ERR_UNSUPPORTED;
    }
    if ((rc = peers_make_board(&peers, n)) != ERR_OK)
        return rc;
    if (links == DEVICE_LINKS_NCCL || !peers_can_reach(all, n))
        rc = peers_open_nccl(peers, all, n);
    else
        rc = peers_open_ways(all, n);
    if (rc != ERR_OK) {
        peers_free_board(peers);
        return rc;
    }
    for (int i = 0; i < n; i++) {
        struct cuda *gpu = cuda_of(all[i]);

        must(gpu->peers == NULL);
        peers->all[i] = gpu;
        gpu->rank = gpu->idx = i;
        gpu->samples = i == 0;
        gpu->peers = peers;
    }
    return ERR_OK;
}

/* A device without ranks counts as its own only rank. */
int peers_all(struct cuda *c, struct cuda **all)
{
    if (c->stages != NULL)
        return stages_all(c, all);
    if (c->peers == NULL) {
        all[0] = c;
        return 1;
    }
    memcpy(all, c->peers->all, sizeof c->peers->all);
    return c->peers->n;
}

struct cuda *peers_first(struct cuda *c)
{
    if (c->peers == NULL)
        return c;
    return c->peers->all[0];
}

/* Kernels of other ranks see the word while they wait, and so does peers_wait(). */
void peers_leave(struct device *d)
{
    const struct cuda *gpu = cuda_of(d);

    if (gpu->peers != NULL)
        ((volatile struct board_words *)gpu->peers->words)->left = 1;
}

/* Read after each step; the kernels write `failed`. */
bool peers_failed(const struct cuda *c)
{
    const volatile struct board_words *words = c->peers == NULL ? NULL : c->peers->words;

    return words != NULL && (words->failed != 0 || words->left != 0);
}

static bool peers_use_nccl(const struct cuda *c)
{
    return c->peers != NULL && c->peers->nccl != NULL;
}

/* With NCCL, work that waits for a rank which has left never ends by itself. */
static void peers_abort_stuck(struct cuda *c, uint64_t since_us)
{
    if (far_is_open(c) && far_failed(c))
        far_stop(c);
    if (peers_use_nccl(c) && (peers_failed(c) || nccl_failed(c->peers->nccl, c->rank) ||
                              clock_us() - since_us > NCCL_STUCK_US)) {
        c->peers->words->failed = 1;
        nccl_abort(c->peers->nccl, c->rank);
    }
}

/* Kernels of this project give up by themselves, so only NCCL's need a wait with an end. */
int peers_wait(struct cuda *c, cudaEvent_t event)
{
    uint64_t since_us = clock_us();
    cudaError_t error;

    if (!peers_use_nccl(c) && !far_is_open(c))
        return cuda_check(event == NULL ? cudaStreamSynchronize(c->stream)
                                        : cudaEventSynchronize(event),
                          "a step");
    while ((error = event == NULL ? cudaStreamQuery(c->stream) : cudaEventQuery(event)) ==
           cudaErrorNotReady) {
        peers_abort_stuck(c, since_us);
        (void)usleep(NCCL_POLL_US);
    }
    return cuda_check(error, "a step");
}

/* Before a device is closed: none of its kernels waits for another rank any more. */
void peers_stop(struct cuda *c)
{
    peers_leave(&c->base);
    far_stop(c);
    if (peers_use_nccl(c))
        nccl_abort(c->peers->nccl, c->rank);
}

/* The last rank frees the board. Ranks are closed one after another. */
void peers_close(struct cuda *c)
{
    struct peers *peers = c->peers;

    c->peers = NULL;
    if (peers != NULL && atomic_fetch_sub(&peers->n_refs, 1) == 1)
        peers_free_board(peers);
}

/* --- sums --------------------------------------------------------------------------------- */

/* Inbox, flags and counter of a rank. Peers write to the first two. */
int peers_reserve(struct cuda *c)
{
    struct peers *peers = c->peers;

    if (peers == NULL)
        return ERR_OK;
    peers->inbox[c->rank] = cuda_alloc(&c->base, K_SUM_INBOX_BYTES(peers->n));
    peers->flags[c->rank] = cuda_alloc(&c->base, K_SUM_FLAGS * sizeof(uint64_t));
    c->links.calls = cuda_alloc(&c->base, 3 * sizeof(uint64_t));
    if (peers->inbox[c->rank] == NULL || peers->flags[c->rank] == NULL || c->links.calls == NULL)
        return ERR_NO_MEMORY;
    /* Clearing must be complete before a peer writes, which it may do as soon as its own memory is
     * ready. */
    return cuda_check(cudaStreamSynchronize(c->stream), "clearing memory");
}

/* Memory of cudaMalloc(), because peers have no access to memory that sleeps. Each rank writes its
 * own row of the board; the others read it in the next step. */
void *peers_alloc_shared(struct device *d, size_t bytes)
{
    struct cuda *gpu = cuda_of(d);
    struct peers *peers = gpu->peers;
    void *memory = cuda_alloc(d, bytes);

    if (peers == NULL || memory == NULL)
        return memory;
    must(peers->n_shared[gpu->rank] < SHARED_MAX);
    peers->shared[gpu->rank][peers->n_shared[gpu->rank]++] = (struct shared){memory, bytes};
    if (cuda_check(cudaStreamSynchronize(gpu->stream), "clearing memory") != ERR_OK)
        return NULL;
    return memory;
}

/* The allocation that contains `at` of a rank. */
static int peers_shared_idx(const struct cuda *c, const void *at)
{
    const struct peers *peers = c->peers;
    const struct shared *own = peers->shared[c->rank];

    for (int i = 0; i < peers->n_shared[c->rank]; i++) {
        if (own[i].memory == at)
            return i;
    }
    must(false); /* not the begin of memory of alloc_shared() */
    return -1;
}

/* The addresses of all ranks' memory; collected by the first sum and constant afterwards, so that
 * recorded steps may contain them. With NCCL, kernels see this rank as the only one. */
static const struct k_links *peers_links(struct cuda *c)
{
    const struct peers *peers = c->peers;
    struct k_links *links = &c->links;

    must(peers != NULL);
    if (links->n > 0)
        return links;
    if (peers->nccl != NULL) {
        links->n = 1;
        return links;
    }
    for (int i = 0; i < peers->n; i++) {
        must(peers->inbox[i] != NULL && peers->flags[i] != NULL);
        links->inbox[i] = peers->inbox[i];
        links->flags[i] = peers->flags[i];
    }
    links->rank = c->rank;
    links->left = &peers->words->left;
    links->failed = &peers->words->failed;
    links->n = peers->n;
    return links;
}

/* nccl_sum() has logged an error. */
static void peers_sum_nccl(struct cuda *c, void *rows, size_t n_elems)
{
    if (nccl_sum(c->peers->nccl, c->rank, rows, n_elems, c->stream) != 0)
        cuda_keep(c, ERR_GPU, "a sum of ranks");
}

/* The rows of all ranks, of which `rows` are this one's. */
static void peers_rows(const struct cuda *c, void *rows, size_t n_elems, k_bf16 *all[K_RANKS_MAX])
{
    const struct peers *peers = c->peers;
    int idx = peers_shared_idx(c, rows);

    for (int i = 0; i < peers->n; i++) {
        must(n_elems * sizeof(k_bf16) <= peers->shared[i][idx].bytes);
        all[i] = (k_bf16 *)peers->shared[i][idx].memory;
    }
}

void peers_sum(struct device *d, void *rows, int n, int width)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_links *links = peers_links(gpu);
    size_t n_elems = (size_t)n * (size_t)width;
    k_bf16 *all[K_RANKS_MAX] = {NULL};

    if (gpu->peers->nccl != NULL) {
        peers_sum_nccl(gpu, rows, n_elems);
        return;
    }
    peers_rows(gpu, rows, n_elems, all);
    cuda_keep(gpu, k_sum_ranks(all, n_elems, links, gpu->stream), "a sum of ranks");
}

/* `all` of rank 0 is what the others write to. */
void peers_gather(struct device *d, float *all, const float *part, int n, int width)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_links *links = peers_links(gpu);
    const struct shared *first = &gpu->peers->shared[0][peers_shared_idx(gpu, all)];

    if (gpu->peers->nccl != NULL) {
        if (nccl_gather(gpu->peers->nccl, gpu->rank, all, part, n, width, gpu->stream) != 0)
            cuda_keep(gpu, ERR_GPU, "gathering from ranks");
        return;
    }
    must((size_t)n * (size_t)width * (size_t)links->n * sizeof *all <= first->bytes);
    cuda_keep(gpu,
              k_gather_ranks((float *)(void *)first->memory, part, n, width, links, gpu->stream),
              "gathering from ranks");
}

/* NCCL sums parts that are rounded to bf16; the kernel then adds the sum as if there were one
 * rank. */
void peers_sum_residual(struct device *d, const struct k_product *p, int n)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_links *links = peers_links(gpu);
    size_t n_elems = (size_t)n * (size_t)p->w->n_out;
    k_bf16 *all[K_RANKS_MAX] = {(k_bf16 *)p->y};

    if (gpu->peers->nccl != NULL)
        peers_sum_nccl(gpu, p->y, n_elems);
    else
        peers_rows(gpu, p->y, n_elems, all);
    cuda_keep(gpu, k_sum_residual(p, all, n, links, gpu->stream), "a sum of ranks");
}

/* --- ids -------------------------------------------------------------------------------- */

/* Rank 0 samples; the other ranks' first operation reads the ids, so it waits for the event at the
 * end of rank 0's step. Over peer pointers they read them on rank 0's GPU. Rank 0 does not
 * overwrite the ids too early, because its next step that samples waits in sums for the other
 * ranks, after they have read them. With NCCL they copy what rank 0 has sent to the host. */
int peers_fetch_ids(struct cuda *c)
{
    const struct cuda *first = peers_first(c);
    unsigned step = c->n_begun - 1;
    const struct step_slot *slot = &first->slots[step % device_steps(first->base.limits.n_stages)];

    if (c->rank == 0)
        return ERR_OK;
    if (cuda_check(cudaStreamWaitEvent(c->stream, first->marks[step % CUDA_MARKS].done, 0),
                   "waiting for ids") != ERR_OK)
        return ERR_GPU;
    if (c->peers->nccl == NULL)
        return ERR_OK;
    if (k_copy(c->own_sampled, slot->ids, (size_t)slot->n_rows * sizeof *slot->ids, c->stream) == 0)
        return ERR_OK;
    return cuda_check(cudaGetLastError(), "copying ids");
}

/* The ids that this rank's kernels read: rank 0's, or its own copy of them. */
int32_t *peers_ids(struct cuda *c)
{
    if (c->peers != NULL && c->peers->nccl != NULL)
        return c->own_sampled;
    return peers_first(c)->own_sampled;
}

bool peers_may_record(const struct cuda *c)
{
    return c->peers == NULL || c->peers->nccl == NULL;
}
