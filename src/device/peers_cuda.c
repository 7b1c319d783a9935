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
 * kernels/ranks.cu describes the protocols. A kernel that waits for a peer polls two words of the
 * board: a rank has left, and a sum was given up. Either ends all sums at once, and the steps with
 * ERR_GPU. */
#include "config.h"

#include "device/parts_cuda.h"

#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define SHARED_MAX 64 /* allocations per rank */

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
    atomic_int n_refs;
};

/* --- joining ------------------------------------------------------------------------------ */

/* Let GPU `from` access the memory of GPU `to`. */
static int peers_open_way(const struct cuda *from, const struct cuda *to)
{
    int can = 0, before, rc = ERR_OK;
    cudaError_t error;

    if (from->ordinal == to->ordinal)
        return ERR_OK;
    if (cuda_check(cudaDeviceCanAccessPeer(&can, from->ordinal, to->ordinal),
                   "asking for peer access") != ERR_OK)
        return ERR_GPU;
    if (!can) {
        log_error("device: GPU %d cannot reach the memory of GPU %d (nvidia-smi topo -p2p r): "
                  "tensor_parallel_size must be 1 on this machine",
                  from->ordinal, to->ordinal);
        return ERR_UNSUPPORTED;
    }
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
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            int rc = peers_open_way(cuda_of(all[i]), cuda_of(all[j]));

            if (rc != ERR_OK)
                return rc;
        }
    }
    return ERR_OK;
}

/* Each device holds one reference to the board. */
int peers_join(struct device *const *all, int n)
{
    struct peers *peers;
    int rc;

    must(n >= 1);
    if (n > K_RANKS_MAX) {
        log_error("device: %d ranks, the kernels take at most %d", n, K_RANKS_MAX);
        return ERR_UNSUPPORTED;
    }
    if ((rc = peers_open_ways(all, n)) != ERR_OK)
        return rc;
    if ((peers = mem_zalloc(sizeof *peers)) == NULL)
        return ERR_NO_MEMORY;
    if ((peers->words = cuda_pinned(sizeof *peers->words)) == NULL) {
        mem_free(peers);
        return ERR_NO_MEMORY;
    }
    memset(peers->words, 0, sizeof *peers->words);
    peers->n = n;
    atomic_store(&peers->n_refs, n);
    for (int i = 0; i < n; i++) {
        struct cuda *gpu = cuda_of(all[i]);

        must(gpu->peers == NULL);
        peers->all[i] = gpu;
        gpu->rank = i;
        gpu->peers = peers;
    }
    return ERR_OK;
}

/* A device without ranks counts as its own only rank. */
int peers_all(struct cuda *c, struct cuda **all)
{
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

/* Kernels of other ranks see the word while they wait. */
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

/* The last rank frees the board. Ranks are closed one after another. */
void peers_close(struct cuda *c)
{
    struct peers *peers = c->peers;

    c->peers = NULL;
    if (peers == NULL || atomic_fetch_sub(&peers->n_refs, 1) > 1)
        return;
    (void)cudaFreeHost(peers->words);
    mem_free(peers);
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
    c->links.calls = cuda_alloc(&c->base, 2 * sizeof(uint64_t));
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
 * recorded steps may contain them. */
static const struct k_links *peers_links(struct cuda *c)
{
    const struct peers *peers = c->peers;
    struct k_links *links = &c->links;

    must(peers != NULL);
    if (links->n > 0)
        return links;
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

void peers_sum(struct device *d, void *rows, int n, int width)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_links *links = peers_links(gpu);
    int idx = peers_shared_idx(gpu, rows);
    size_t n_elems = (size_t)n * (size_t)width;
    k_bf16 *all[K_RANKS_MAX] = {NULL};

    for (int i = 0; i < links->n; i++) {
        must(n_elems * sizeof(k_bf16) <= gpu->peers->shared[i][idx].bytes);
        all[i] = (k_bf16 *)gpu->peers->shared[i][idx].memory;
    }
    cuda_keep(gpu, k_sum_ranks(all, n_elems, links, gpu->stream), "a sum of ranks");
}

/* `all` of rank 0 is what the others write to. */
void peers_gather(struct device *d, float *all, const float *part, int n, int width)
{
    struct cuda *gpu = cuda_of(d);
    const struct k_links *links = peers_links(gpu);
    const struct shared *first = &gpu->peers->shared[0][peers_shared_idx(gpu, all)];

    must((size_t)n * (size_t)width * (size_t)links->n * sizeof *all <= first->bytes);
    cuda_keep(gpu,
              k_gather_ranks((float *)(void *)first->memory, part, n, width, links, gpu->stream),
              "gathering from ranks");
}

void peers_sum_residual(struct device *d, const struct k_product *p, int n)
{
    struct cuda *gpu = cuda_of(d);

    cuda_keep(gpu, k_sum_residual(p, n, peers_links(gpu), gpu->stream), "a sum of ranks");
}
