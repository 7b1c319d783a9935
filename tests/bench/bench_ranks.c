/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over ranks, with all GPUs of this machine: a line per size, in a graph of many sums, so that
 * no launch is waited for. Times are the median of many graphs. "moved" is the data rate that a
 * rank's link has one way at least, 2 (n - 1) / n of the rows' bytes per sum; beside it stands what
 * one GPU reads of another by a copy. LINKS=nccl: the same sums as the engine makes them with
 * disable_custom_all_reduce. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "tests/bench/cuda.h"

#define RANKS_MAX      8
#define TURNS          21
#define DIM            4096
#define ROWS_BYTES_MAX ((size_t)64 << 20)
#define COLUMNS        128256

static struct device *ranks[RANKS_MAX];
static enum device_links links = DEVICE_LINKS_PEERS;
static int n_ranks;
static pthread_barrier_t barrier;
static void *shared_rows[RANKS_MAX]; /* ROWS_BYTES_MAX each */
static float *gathered[RANKS_MAX], *parts[RANKS_MAX];

struct work {
    int rank, n_sums, n_rows; /* n_rows: of DIM with a residual; 0: a plain sum of n elements */
    size_t n;                 /* 0: n_rows of COLUMNS are gathered */
    float us;                 /* per sum; of rank 0 */
};

static void enqueue(const struct work *w, void *rows, struct k_product *p)
{
    struct device *d = ranks[w->rank];

    for (int i = 0; i < w->n_sums; i++) {
        if (w->n == 0)
            d->ops->gather_ranks(d, gathered[w->rank], parts[w->rank], w->n_rows,
                                 COLUMNS / n_ranks);
        else if (w->n_rows > 0)
            d->ops->sum_residual(d, p, w->n_rows);
        else
            d->ops->sum_ranks(d, rows, 1, (int)w->n);
    }
}

static void *run(void *arg)
{
    struct work *w = arg;
    struct device *d = ranks[w->rank];
    cudaStream_t stream = (cudaStream_t)device_cuda_stream(d);
    struct k_matrix m = {.n_out = DIM, .n_in = DIM};
    struct k_product p = {.kind = K_PRODUCT_RESIDUAL, .w = &m};
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = NULL;
    cudaEvent_t begin, end;
    float times[TURNS];
    void *rows;

    bench_must(d->ops->use(d), "a GPU");
    rows = shared_rows[w->rank];
    p.y = rows;
    p.residual = bench_array(NULL, 64 * DIM * sizeof(float));
    p.norm = bench_array(NULL, DIM * 2);
    p.normed = bench_array(NULL, 64 * DIM * 2);
    p.sums_out = bench_array(NULL, 64 * DIM / 16 * sizeof(float));
    bench_must(cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess,
               "events");
    enqueue(w, rows, &p); /* modules are loaded */
    bench_must(cudaStreamSynchronize(stream) != cudaSuccess, "a sum");
    (void)pthread_barrier_wait(&barrier);
    bench_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) != cudaSuccess,
               "recording");
    enqueue(w, rows, &p);
    bench_must(cudaStreamEndCapture(stream, &graph) != cudaSuccess ||
                   cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess,
               "recording");
    for (int i = 0; i < TURNS; i++) {
        (void)pthread_barrier_wait(&barrier);
        bench_must(cudaEventRecord(begin, stream) != cudaSuccess ||
                       cudaGraphLaunch(exec, stream) != cudaSuccess ||
                       cudaEventRecord(end, stream) != cudaSuccess ||
                       cudaStreamSynchronize(stream) != cudaSuccess ||
                       cudaEventElapsedTime(&times[i], begin, end) != cudaSuccess,
                   "sums");
    }
    w->us = bench_median(times, TURNS) * 1e3f / (float)w->n_sums;
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    return NULL;
}

static float measure(size_t n, int n_rows, int n_sums)
{
    struct work work[RANKS_MAX];
    pthread_t threads[RANKS_MAX];

    for (int r = 0; r < n_ranks; r++) {
        work[r] = (struct work){.rank = r, .n_sums = n_sums, .n_rows = n_rows, .n = n};
        (void)pthread_create(&threads[r], NULL, run, &work[r]);
    }
    for (int r = 0; r < n_ranks; r++)
        (void)pthread_join(threads[r], NULL);
    return work[0].us;
}

/* What a copy reads of another GPU, GB/s. */
static float copy_rate(void)
{
    size_t bytes = (size_t)256 << 20;
    cudaStream_t stream = (cudaStream_t)device_cuda_stream(ranks[0]);
    cudaEvent_t begin, end;
    float times[TURNS];
    void *to, *from;

    bench_must(ranks[1]->ops->use(ranks[1]), "a GPU");
    from = bench_array(NULL, bytes);
    bench_must(ranks[0]->ops->use(ranks[0]), "a GPU");
    to = bench_array(NULL, bytes);
    bench_must(cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess,
               "events");
    for (int i = 0; i < TURNS; i++)
        bench_must(cudaEventRecord(begin, stream) != cudaSuccess ||
                       cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream) !=
                           cudaSuccess ||
                       cudaEventRecord(end, stream) != cudaSuccess ||
                       cudaStreamSynchronize(stream) != cudaSuccess ||
                       cudaEventElapsedTime(&times[i], begin, end) != cudaSuccess,
                   "a copy");
    return (float)bytes / bench_median(times, TURNS) * 1e-6f;
}

static void reserve(int rank)
{
    static const struct device_limits limits = {.n_tokens = 8192,
                                                .n_seqs = 4,
                                                .pages_max = 4,
                                                .len_max = 64,
                                                .n_tables = 1,
                                                .page_tokens = 16,
                                                .dim = DIM,
                                                .ff_dim = DIM,
                                                .n_vocab = 1000};
    struct device *d = ranks[rank];

    bench_must(d->ops->use(d), "a GPU");
    bench_must(d->ops->reserve(d, &limits), "memory");
    shared_rows[rank] = d->ops->alloc_shared(d, ROWS_BYTES_MAX);
    gathered[rank] = d->ops->alloc_shared(d, (size_t)64 * COLUMNS * sizeof(float));
    parts[rank] = d->ops->alloc(d, (size_t)64 * COLUMNS * sizeof(float) / (size_t)n_ranks);
    bench_must(shared_rows[rank] == NULL || gathered[rank] == NULL || parts[rank] == NULL,
               "memory");
}

int main(void)
{
    static const size_t kib[] = {8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384, 65536};

    n_ranks = device_cuda_count() < RANKS_MAX ? device_cuda_count() : RANKS_MAX;
    if (n_ranks < 2) {
        printf("one GPU: nothing to sum\n");
        return 0;
    }
    if (getenv("LINKS") != NULL && strcmp(getenv("LINKS"), "nccl") == 0)
        links = DEVICE_LINKS_NCCL;
    (void)pthread_barrier_init(&barrier, NULL, (unsigned)n_ranks);
    for (int r = 0; r < n_ranks; r++)
        bench_must(device_cuda_open(&ranks[r], r), "a GPU");
    bench_must(ranks[0]->ops->join_ranks(ranks, n_ranks, links), "ranks");
    for (int r = 0; r < n_ranks; r++)
        reserve(r);
    printf("%d GPUs, a copy from one to another: %.0f GB/s\n", n_ranks, (double)copy_rate());
    for (size_t i = 0; i < sizeof kib / sizeof kib[0]; i++) {
        size_t bytes = kib[i] << 10;
        float us = measure(bytes / 2, 0, kib[i] > 1024 ? 8 : 64);

        printf("%6zu KiB: %8.2f us, moved %.0f GB/s\n", kib[i], (double)us,
               2.0 * (n_ranks - 1) / n_ranks * (double)bytes / (double)us * 1e-3);
        (void)fflush(stdout);
    }
    for (int rows = 1; rows <= 64; rows *= 4)
        printf("%d rows of %d with residual and norm: %.2f us\n", rows, DIM,
               (double)measure((size_t)rows * DIM, rows, 64));
    for (int rows = 1; rows <= 64; rows *= 4)
        printf("%d rows of %d columns gathered: %.2f us\n", rows, COLUMNS,
               (double)measure(0, rows, 64));
    return 0;
}
