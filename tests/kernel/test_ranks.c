/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: sums over ranks are exact, and stay so call after call. Method: two to eight devices, a
 * thread each; float sums in the order of the ranks, rounded once, must have the same bits. With
 * fewer GPUs than ranks several ranks share one: the protocols do not see it. Sizes are below and
 * above each protocol's bound, odd ones among them; then thousands of sums of noise without a
 * pause, and ranks that come late; last a rank that leaves. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device.h"
#include "tests/tap.h"

#define RANKS_MAX 8
#define DIM       4096
#define TOKENS    1024
#define N_MAX     ((size_t)5 * TOKENS * DIM / 2)
#define WIDE      (4 * 1000)
#define ROWS      67

static struct device *ranks[RANKS_MAX];
static enum device_links links;
static int n_ranks;
static pthread_barrier_t barrier;
static uint64_t seed;
static k_bf16 *shared_rows[RANKS_MAX]; /* N_MAX + 8 */
static float *gathered[RANKS_MAX];     /* [ROWS][n_ranks * WIDE] of rank 0 */

static k_bf16 rounded(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, 4);
    return (k_bf16)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

static float widened(k_bf16 h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;

    memcpy(&f, &bits, 4);
    return f;
}

/* Element i of a rank's rows in a round: any bits of a moderate exponent. */
static k_bf16 noise(uint64_t round, int rank, size_t i)
{
    uint64_t x = (seed + round * 0x9e3779b97f4a7c15ULL) ^ ((uint64_t)rank << 56) ^ i;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    x ^= x >> 31;
    return (k_bf16)((x & 0x8000) | (0x3c00 + (x >> 20 & 0x3ff)));
}

static const char *name_of_links(void)
{
    return links == DEVICE_LINKS_NCCL ? "NCCL, " : "";
}

static float sum_of(uint64_t round, size_t i)
{
    float sum = 0.0f;

    for (int r = 0; r < n_ranks; r++)
        sum += widened(noise(round, r, i));
    return sum;
}

/* --- plain sums --------------------------------------------------------------------------- */

struct task {
    int rank;
    size_t n;
    uint64_t round;
    int late_us;
    size_t n_wrong;
    int rc;
};

static void *sum_some(void *arg)
{
    struct task *t = arg;
    struct device *d = ranks[t->rank];
    k_bf16 *host = malloc(t->n * sizeof *host + 16), *rows;

    (void)d->ops->use(d);
    rows = shared_rows[t->rank];
    for (size_t i = 0; i < t->n; i++)
        host[i] = noise(t->round, t->rank, i);
    for (int i = 0; i < 8; i++)
        host[t->n + i] = 0xabab;
    t->rc = d->ops->upload(d, rows, host, t->n * sizeof *host + 16);
    (void)pthread_barrier_wait(&barrier);
    (void)usleep((unsigned)t->late_us);
    d->ops->sum_ranks(d, rows, 1, (int)t->n);
    if (d->ops->download(d, host, rows, t->n * sizeof *host + 16) != 0)
        t->rc = ERR_GPU;
    for (size_t i = 0; i < t->n; i++)
        t->n_wrong += host[i] != rounded(sum_of(t->round, i));
    for (int i = 0; i < 8; i++)
        t->n_wrong += host[t->n + i] != 0xabab;
    free(host);
    return NULL;
}

static void run_all(void *(*fn)(void *), struct task *tasks)
{
    pthread_t threads[RANKS_MAX];

    for (int r = 0; r < n_ranks; r++) {
        tasks[r].rank = r;
        (void)pthread_create(&threads[r], NULL, fn, &tasks[r]);
    }
    for (int r = 0; r < n_ranks; r++)
        (void)pthread_join(threads[r], NULL);
}

static void check_sum(size_t n, uint64_t round, bool late)
{
    struct task tasks[RANKS_MAX] = {{0}};
    size_t n_wrong = 0;
    int rc = 0;

    for (int r = 0; r < n_ranks; r++) {
        tasks[r].n = n;
        tasks[r].round = round;
        tasks[r].late_us = late && r == (int)(round % (uint64_t)n_ranks) ? 20000 : 0;
    }
    run_all(sum_some, tasks);
    for (int r = 0; r < n_ranks; r++) {
        n_wrong += tasks[r].n_wrong;
        rc |= tasks[r].rc;
    }
    ok(rc == 0 && n_wrong == 0, "%s%d ranks: %zu elements%s: %zu wrong", name_of_links(), n_ranks,
       n, late ? ", one comes late" : "", n_wrong);
}

/* --- with a residual ------------------------------------------------------------------------ */

struct rows_case {
    int n, dim;
    bool is_half;
};
static struct rows_case residual_case;

static float x_of(size_t i)
{
    return widened(noise(77, 9, i)) * 1.5f + 0x1p-20f;
}

/* An array on the device, and what it holds at first. */
static void *array(struct device *d, const void *src, size_t bytes)
{
    void *p = d->ops->alloc(d, bytes);

    if (p == NULL || d->ops->upload(d, p, src, bytes) != 0) {
        printf("Bail out! no memory\n");
        exit(1);
    }
    return p;
}

/* is_rounded: the sums of the ranks are, before they are added. */
static size_t compare_residual(const struct rows_case *c, const float *x, const uint16_t *normed,
                               const float *sums, uint64_t round, bool is_rounded)
{
    size_t n_wrong = 0;

    for (size_t i = 0; i < (size_t)c->n * (size_t)c->dim; i += 16) {
        double squares = 0.0;

        for (size_t j = i; j < i + 16; j++) {
            float sum = is_rounded ? widened(rounded(sum_of(round, j))) : sum_of(round, j);
            float want = x_of(j) + sum;
            float w = want * widened(noise(78, 0, j % (size_t)c->dim));
            uint16_t half;
            _Float16 h = (_Float16)w;

            memcpy(&half, &h, 2);
            n_wrong += x[j] != want;
            n_wrong += c->is_half ? normed[K_HALF_AT(j)] != half : normed[j] != rounded(w);
            squares += (double)want * (double)want;
        }
        n_wrong += fabs((double)sums[i / 16] - squares) > 1e-5 * squares;
    }
    return n_wrong;
}

static void *add_some(void *arg)
{
    struct task *t = arg;
    struct device *d = ranks[t->rank];
    const struct rows_case *c = &residual_case;
    size_t n = (size_t)c->n * (size_t)c->dim;
    float *x = malloc(n * sizeof *x), *sums = malloc(n / 16 * sizeof *sums);
    k_bf16 *part = malloc(n * sizeof *part), *norm = malloc((size_t)c->dim * sizeof *norm);
    uint16_t *normed = malloc(n * sizeof *normed);
    struct k_matrix w = {.n_out = c->dim, .n_in = c->dim};
    struct k_product p = {.kind = K_PRODUCT_RESIDUAL, .w = &w, .y_is_half = c->is_half};

    (void)d->ops->use(d);
    for (size_t i = 0; i < n; i++) {
        part[i] = noise(t->round, t->rank, i);
        x[i] = x_of(i);
    }
    for (int i = 0; i < c->dim; i++)
        norm[i] = noise(78, 0, (size_t)i);
    p.y = shared_rows[t->rank];
    t->rc = d->ops->upload(d, p.y, part, n * sizeof *part);
    p.residual = array(d, x, n * sizeof *x);
    p.norm = array(d, norm, (size_t)c->dim * sizeof *norm);
    p.normed = array(d, part, n * sizeof *normed);
    p.sums_out = array(d, x, n / 16 * sizeof *sums);
    (void)pthread_barrier_wait(&barrier);
    d->ops->sum_residual(d, &p, c->n);
    t->rc |= d->ops->download(d, x, p.residual, n * sizeof *x);
    t->rc |= d->ops->download(d, normed, p.normed, n * sizeof *normed);
    t->rc |= d->ops->download(d, sums, p.sums_out, n / 16 * sizeof *sums);
    t->n_wrong = compare_residual(c, x, normed, sums, t->round, false);
    if (t->n_wrong > 0) /* many rows are rounded, all of them */
        t->n_wrong = compare_residual(c, x, normed, sums, t->round, true);
    free(x), free(sums), free(part), free(norm), free(normed);
    return NULL;
}

static void check_residual(int n, int dim, bool is_half)
{
    struct task tasks[RANKS_MAX] = {{0}};
    size_t n_wrong = 0;
    int rc = 0;

    residual_case = (struct rows_case){n, dim, is_half};
    for (int r = 0; r < n_ranks; r++)
        tasks[r].round = (uint64_t)(n + dim);
    run_all(add_some, tasks);
    for (int r = 0; r < n_ranks; r++) {
        n_wrong += tasks[r].n_wrong;
        rc |= tasks[r].rc;
    }
    ok(rc == 0 && n_wrong == 0, "%d ranks: %d rows of %d with a residual, as %s: %zu wrong",
       n_ranks, n, dim, is_half ? "float16" : "bfloat16", n_wrong);
}

static void check_residuals(void)
{
    check_residual(1, 4096, false);
    check_residual(1, 4096, true);
    check_residual(3, 48, false);
    check_residual(5, 2880, true);
    check_residual(16, 8192, true);
    check_residual(33, 4096, false);
    check_residual(64, 8192, false);
    check_residual(63, 2064, true);
    check_residual(7, 16384, true);
}

/* --- columns ------------------------------------------------------------------------------- */

/* An exact number that no other element of a rank's part has. */
static float element(int rank, size_t i)
{
    return (float)rank * 1e6f + (float)i;
}

/* t->n is the number of rows, t->round the width. */
static void *gather_some(void *arg)
{
    struct task *t = arg;
    struct device *d = ranks[t->rank];
    size_t width = (size_t)t->round, n = t->n * width, n_all = n * (size_t)n_ranks;
    float *host = malloc(n_all * sizeof *host), *part;

    (void)d->ops->use(d);
    for (size_t i = 0; i < n; i++)
        host[i] = element(t->rank, i);
    part = array(d, host, n * sizeof *host);
    (void)pthread_barrier_wait(&barrier);
    d->ops->sum_ranks(d, shared_rows[t->rank], 1, 8);
    d->ops->gather_ranks(d, gathered[t->rank], part, (int)t->n, (int)width);
    /* Waits for the kernel's end on every rank. */
    t->rc = d->ops->download(d, host, t->rank == 0 ? gathered[0] : part,
                             (t->rank == 0 ? n_all : n) * sizeof *host);
    for (size_t i = 0; t->rank == 0 && i < n_all; i++) {
        size_t row = i / (width * (size_t)n_ranks), col = i % (width * (size_t)n_ranks);

        t->n_wrong += host[i] != element((int)(col / width), row * width + col % width);
    }
    free(host);
    return NULL;
}

static void check_gather(int n_rows, int width)
{
    struct task tasks[RANKS_MAX] = {{0}};
    int rc = 0;

    for (int r = 0; r < n_ranks; r++) {
        tasks[r].n = (size_t)n_rows;
        tasks[r].round = (uint64_t)width;
    }
    run_all(gather_some, tasks);
    for (int r = 0; r < n_ranks; r++)
        rc |= tasks[r].rc;
    ok(rc == 0 && tasks[0].n_wrong == 0, "%s%d ranks: %d rows of %d columns each: %zu wrong",
       name_of_links(), n_ranks, n_rows, width, tasks[0].n_wrong);
}

/* --- many, without a pause ------------------------------------------------------------------- */

static int n_sums = 4000;

/* The sizes take turns, so that both protocols and all halves follow each other. */
static void *sum_often(void *arg)
{
    static const int widths[] = {4096, 64, 524288, 24, 8192, 4096, 1048576, 8};
    struct task *t = arg;
    struct device *d = ranks[t->rank];
    struct k_matrix m = {.n_out = 1}; /* plain */
    k_bf16 *rows, *sums, *host = malloc(64 * (size_t)n_sums), want[8];

    (void)d->ops->use(d);
    rows = shared_rows[t->rank];
    sums = d->ops->alloc(d, 64 * (size_t)n_sums);
    m.data = rows;
    (void)pthread_barrier_wait(&barrier);
    for (int i = 0; i < n_sums; i++) {
        int width = widths[i % 8];

        m.n_in = width;
        t->rc |= d->ops->fill_random(d, &m, 1.0f, (uint64_t)i * RANKS_MAX + (uint64_t)t->rank);
        d->ops->sum_ranks(d, rows, 1, width);
        t->rc |= d->ops->copy_within(d, (char *)sums + 64 * (size_t)i, rows, 16);
        if (t->rank == i % n_ranks && i % 97 == 0)
            (void)usleep(200);
    }
    t->rc |= d->ops->download(d, host, sums, 64 * (size_t)n_sums);
    /* The ranks' noise of each 13th sum is made again on this device, and added here. */
    for (int i = 0; i < n_sums; i += 13) {
        float sum[8] = {0};

        for (int r = 0; r < n_ranks; r++) {
            m.n_in = 8;
            t->rc |= d->ops->fill_random(d, &m, 1.0f, (uint64_t)i * RANKS_MAX + (uint64_t)r);
            t->rc |= d->ops->download(d, want, rows, 16);
            for (int k = 0; k < 8; k++)
                sum[k] += widened(want[k]);
        }
        for (int k = 0; k < 8; k++)
            t->n_wrong += host[32 * (size_t)i + (size_t)k] != rounded(sum[k]);
    }
    free(host);
    return NULL;
}

static void check_many(void)
{
    struct task tasks[RANKS_MAX] = {{0}};
    size_t n_wrong = 0;
    int rc = 0;

    run_all(sum_often, tasks);
    for (int r = 0; r < n_ranks; r++) {
        n_wrong += tasks[r].n_wrong;
        rc |= tasks[r].rc;
    }
    ok(rc == 0 && n_wrong == 0, "%s%d ranks: %d sums without a pause: %zu wrong", name_of_links(),
       n_ranks, n_sums, n_wrong);
}

/* --- a rank that leaves ---------------------------------------------------------------------- */

static void *sum_or_leave(void *arg)
{
    struct task *t = arg;
    struct device *d = ranks[t->rank];
    k_bf16 *rows, one;

    (void)d->ops->use(d);
    rows = shared_rows[t->rank];
    (void)pthread_barrier_wait(&barrier);
    if (t->rank == 0)
        d->ops->leave_ranks(d);
    else
        d->ops->sum_ranks(d, rows, 1, 4096);
    t->rc = d->ops->download(d, &one, rows, sizeof one); /* waits for the kernel's end */
    return NULL;
}

static void check_leaving(void)
{
    struct task tasks[RANKS_MAX] = {{0}};
    int rc = 0;

    run_all(sum_or_leave, tasks);
    for (int r = 0; r < n_ranks; r++)
        rc |= tasks[r].rc;
    ok(rc == 0, "%s%d ranks: the others' kernels end when rank 0 leaves", name_of_links(), n_ranks);
}

/* --- all ------------------------------------------------------------------------------------- */

static void *reserve_one(void *arg)
{
    static const struct device_limits limits = {.n_tokens = TOKENS,
                                                .n_seqs = 4,
                                                .pages_max = 4,
                                                .len_max = 64,
                                                .n_tables = 1,
                                                .page_tokens = 16,
                                                .dim = DIM,
                                                .ff_dim = DIM,
                                                .n_vocab = 1000};
    struct task *t = arg;
    struct device *d = ranks[t->rank];
    size_t bytes = 0;

    (void)d->ops->use(d);
    t->rc = d->ops->reserve(d, &limits);
    shared_rows[t->rank] = d->ops->alloc_shared(d, N_MAX * sizeof(k_bf16) + 16);
    if (t->rank == 0)
        bytes = (size_t)ROWS * (size_t)n_ranks * WIDE * sizeof(float);
    gathered[t->rank] = d->ops->alloc_shared(d, bytes);
    if (shared_rows[t->rank] == NULL || gathered[t->rank] == NULL)
        t->rc = ERR_NO_MEMORY;
    return NULL;
}

static void check_ranks(int n, enum device_links by)
{
    static const size_t sizes[] = {1,      7,      8,       24,      4096,    4099,    262144,
                                   262145, 524288, 1048583, 4194304, 4194307, 10485760};
    struct task tasks[RANKS_MAX] = {{0}};
    int n_gpus = device_cuda_count(), rc = device_choose_kernels(getenv("QUIRE_TEST_KERNELS"));

    n_ranks = n;
    links = by;
    (void)pthread_barrier_init(&barrier, NULL, (unsigned)n);
    for (int r = 0; r < n; r++)
        rc |= device_cuda_open(&ranks[r], r % n_gpus);
    if (rc != 0 || ranks[0]->ops->join_ranks(ranks, n, links) != ERR_OK) {
        printf("Bail out! %d ranks do not open\n", n);
        exit(1);
    }
    run_all(reserve_one, tasks);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        check_sum(sizes[i], i, false);
    check_sum(4096, 100, true);
    check_sum(3145728, 101, true);
    /* NCCL's sum is rounded before the residual is added. */
    if (links == DEVICE_LINKS_PEERS)
        check_residuals();
    check_gather(1, 4);
    check_gather(3, 1000);
    check_gather(ROWS, WIDE);
    check_many();
    check_leaving();
    for (int r = 0; r < n; r++)
        device_close(ranks[r]);
    (void)pthread_barrier_destroy(&barrier);
}

int main(void)
{
    int n_gpus = device_cuda_count();
    const char *often = getenv("QUIRE_TEST_SUMS");

    if (n_gpus == 0)
        tap_skip_all("NO GPU: sums of ranks are not tested");
    if (often != NULL)
        n_sums = (int)strtol(often, NULL, 10);
    seed = tap_seed(1);
    printf("# %d GPUs\n", n_gpus);
    check_ranks(2, DEVICE_LINKS_PEERS);
    if (n_gpus >= 2)
        check_ranks(n_gpus >= 4 ? n_gpus : 4, DEVICE_LINKS_PEERS);
    /* Of two parts there is one sum, in any order; NCCL takes one rank per GPU. */
    if (n_gpus >= 2)
        check_ranks(2, DEVICE_LINKS_NCCL);
    return tap_done();
}
