/* SPDX-License-Identifier: Apache-2.0
 *
 * What copies of pages beside them cost steps of decodes, and what pinning memory costs.
 *
 *   bench_copies MODEL-FOLDER [TABLE [DEVICE [QUANTIZATION]]]
 *
 * Weights are random. A line each: what goes on meanwhile, the time of a step beside that of the
 * same steps alone, and how fast the copies were. Pages are copied as the engine does it: some are
 * started before each step, as long as not too many are under way. Last, a step of four decodes
 * with a chunk of a few tokens behind a long prefix, beside one of five decodes. */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/bench/model.h"

#define SEQS      16
#define PROMPT    960
#define STEPS     150
#define PER_STEP  32 /* pages that are started before a step */
#define MARKS     8  /* steps whose pages may be under way */
#define HOST_MIB  2048
#define LONG      4032 /* the prefix before a short chunk */
#define FIRST_OWN 2048 /* pages of copies: behind those of all sequences */

enum { OUT = 1, IN = 2 };

struct copying {
    struct model *m;
    char *host;
    int n_host, next; /* pages of host memory */
    uint64_t marks[2][MARKS];
    int n_marks[2];
    uint64_t n_bytes;
};

struct pinning {
    struct model *m;
    char *memory;
    size_t chunk;
    atomic_bool stop;
    uint64_t n_bytes;
    double pin_s; /* in the call that pins */
};

/* As a file on tmpfs: its pages exist; whether they are mapped, too, is what pinning finds. */
static char *host_memory(size_t bytes, bool mapped)
{
    int fd = memfd_create("bench_copies", MFD_CLOEXEC);
    char *p;

    if (fd == -1 || ftruncate(fd, (off_t)bytes) != 0 || posix_fallocate(fd, 0, (off_t)bytes) != 0)
        bench_stop("no memory");
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (p == MAP_FAILED)
        bench_stop("no memory");
    if (mapped)
        memset(p, 1, bytes);
    return p;
}

/* --- what goes on beside steps ------------------------------------------------------------- */

static void copy_some(struct copying *c, int ways)
{
    size_t page_bytes = model_shape(c->m)->page_bytes;

    for (int way = 0; way < 2; way++) {
        enum model_way model_way = way == 0 ? MODEL_OUT : MODEL_IN;

        if ((ways & (way == 0 ? OUT : IN)) == 0)
            continue;
        while (c->n_marks[way] > 0 && model_copy_done(c->m, model_way, c->marks[way][0]) == 1) {
            c->n_marks[way]--;
            memmove(c->marks[way], c->marks[way] + 1,
                    (size_t)c->n_marks[way] * sizeof c->marks[way][0]);
            c->n_bytes += PER_STEP * page_bytes;
        }
        if (c->n_marks[way] == MARKS)
            continue;
        for (int i = 0; i < PER_STEP; i++, c->next = (c->next + 1) % c->n_host) {
            char *at = c->host + (size_t)c->next * page_bytes;
            int page = FIRST_OWN + way * 512 + c->next % 512;

            if ((way == 0 ? model_page_out(c->m, page, at) : model_page_in(c->m, page, at)) !=
                ERR_OK)
                bench_stop("a copy fails");
        }
        if (model_copy_mark(c->m, model_way, &c->marks[way][c->n_marks[way]++]) != ERR_OK)
            bench_stop("no mark");
    }
}

static void copy_end(struct copying *c)
{
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < c->n_marks[way]; i++) {
            while (model_copy_done(c->m, way == 0 ? MODEL_OUT : MODEL_IN, c->marks[way][i]) == 0)
                clock_sleep_us(100);
        }
        c->n_marks[way] = 0;
    }
}

static void *pin_run(void *arg)
{
    struct pinning *p = arg;
    size_t total = (size_t)HOST_MIB << 20, at = 0;

    while (!atomic_load(&p->stop) && at + p->chunk <= total) {
        uint64_t from = clock_us();

        if (model_pin(p->m, p->memory + at, p->chunk) != ERR_OK)
            bench_stop("memory cannot be pinned");
        p->pin_s += bench_ms(from) * 1e-3;
        at += p->chunk;
        p->n_bytes = at;
    }
    return NULL;
}

/* --- steps --------------------------------------------------------------------------------- */

/* Milliseconds of a step of n decodes; c or NULL: copies beside them. */
static double decode(struct model *m, int n, struct copying *c, int ways, int n_steps)
{
    struct run *r = malloc(sizeof *r);
    struct run_seq *seqs = calloc((size_t)n, sizeof *seqs);
    int pages = (PROMPT + 2 * STEPS) / BENCH_BLOCK + 2;
    uint64_t start_us = 0;

    run_init(r, m);
    for (int i = 0; i < n; i++)
        bench_prefill(r, &seqs[i], i, PROMPT, i * pages);
    for (int step = -4; step < n_steps; step++) { /* a few first: they are recorded */
        if (step == 0)
            start_us = clock_us();
        run_clear(r);
        for (int i = 0; i < n; i++)
            run_add(r, &seqs[i], 1, false);
        if (c != NULL && step >= 0)
            copy_some(c, ways);
        bench_step(r);
        for (int i = 0; i < n; i++)
            seqs[i].tokens[seqs[i].n_tokens++] = r->ids[i];
    }
    free(seqs);
    free(r);
    return bench_ms(start_us) / n_steps;
}

static void measure_copies(struct model *m, int n)
{
    static const struct {
        const char *name;
        int ways;
    } kinds[] = {{"pages go out", OUT}, {"pages come in", IN}, {"both", OUT | IN}};
    struct copying c = {.m = m};
    double alone;

    c.n_host = (int)(((size_t)HOST_MIB << 20) / model_shape(m)->page_bytes);
    c.host = host_memory((size_t)HOST_MIB << 20, true);
    if (model_pin(m, c.host, (size_t)HOST_MIB << 20) != ERR_OK)
        bench_stop("memory cannot be pinned");
    (void)decode(m, n, NULL, 0, STEPS);
    alone = decode(m, n, NULL, 0, STEPS);
    printf("%d decodes alone: %.3f ms a step\n", n, alone);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        double ms;

        c.n_bytes = 0;
        ms = decode(m, n, &c, kinds[k].ways, STEPS);
        printf("%d decodes, %s: %.3f ms (%+.1f%%), %.1f GB/s\n", n, kinds[k].name, ms,
               (ms / alone - 1.0) * 100.0, (double)c.n_bytes * 1e-9 / (ms * STEPS * 1e-3));
        copy_end(&c);
    }
    model_unpin(m, c.host);
    (void)munmap(c.host, (size_t)HOST_MIB << 20);
}

static void measure_pinning(struct model *m, size_t chunk_mib, bool mapped)
{
    struct pinning p = {.m = m, .chunk = chunk_mib << 20};
    double alone = decode(m, 1, NULL, 0, 30), ms;
    pthread_t thread;

    p.memory = host_memory((size_t)HOST_MIB << 20, mapped);
    if (pthread_create(&thread, NULL, pin_run, &p) != 0)
        bench_stop("no thread");
    ms = decode(m, 1, NULL, 0, 30);
    atomic_store(&p.stop, true);
    (void)pthread_join(thread, NULL);
    printf("1 decode, %zu MiB%s pinned at a time: %.3f ms (%+.1f%%), %.1f GB/s in the call, "
           "%.2f ms each, %.1f GB\n",
           chunk_mib, mapped ? ", mapped," : "", ms, (ms / alone - 1.0) * 100.0,
           (double)p.n_bytes * 1e-9 / p.pin_s, p.pin_s * 1e3 / (double)(p.n_bytes / p.chunk),
           (double)p.n_bytes * 1e-9);
    for (size_t at = 0; at < p.n_bytes; at += p.chunk)
        model_unpin(m, p.memory + at);
    (void)munmap(p.memory, (size_t)HOST_MIB << 20);
}

/* What the copy engines and the bus give, by copies of so many bytes. */
static void measure_bus(struct model *m, size_t copy_bytes)
{
    size_t total = (size_t)1 << 30;
    char *host = host_memory(total, true), *device = NULL;
    cudaStream_t stream;
    double ms = 0.0;

    if (model_pin(m, host, total) != ERR_OK || cudaMalloc((void **)&device, total) != cudaSuccess ||
        cudaStreamCreate(&stream) != cudaSuccess)
        bench_stop("no memory");
    for (int turn = 0; turn < 2; turn++) {
        uint64_t from = clock_us();

        for (size_t at = 0; at < total; at += copy_bytes)
            (void)cudaMemcpyAsync(device + at, host + at, copy_bytes, cudaMemcpyHostToDevice,
                                  stream);
        if (cudaStreamSynchronize(stream) != cudaSuccess)
            bench_stop("a copy fails");
        ms = bench_ms(from);
    }
    printf("1 GiB to the device in copies of %zu MiB: %.1f GB/s\n", copy_bytes >> 20,
           (double)total * 1e-6 / ms);
    (void)cudaStreamDestroy(stream);
    (void)cudaFree(device);
    model_unpin(m, host);
    (void)munmap(host, total);
}

/* A chunk of n tokens behind LONG others, with four decodes; n 1: a decode like them. */
static void measure_chunk(struct model *m, int n)
{
    struct run *r = malloc(sizeof *r);
    struct run_seq *seqs = calloc(5, sizeof *seqs);
    uint64_t start_us = 0;
    int n_steps = 30;

    run_init(r, m);
    for (int i = 0; i < 5; i++) {
        int len = i == 4 ? LONG : PROMPT;

        bench_prompt(&seqs[i], i, len + 20, i * 80);
        run_clear(r);
        run_add(r, &seqs[i], len, false);
        bench_step(r);
    }
    for (int step = -4; step < n_steps; step++) {
        if (step == 0)
            start_us = clock_us();
        run_clear(r);
        for (int i = 0; i < 5; i++) {
            seqs[i].n_computed = i == 4 ? LONG : PROMPT;
            seqs[i].n_tokens = seqs[i].n_computed + (i == 4 ? n : 1);
            run_add(r, &seqs[i], i == 4 ? n : 1, false);
        }
        bench_step(r);
    }
    printf("4 decodes and %d tokens behind %d: %.3f ms a step\n", n, LONG,
           bench_ms(start_us) / n_steps);
    free(seqs);
    free(r);
}

int main(int argc, char **argv)
{
    static const int chunks[] = {1, 2, 3, 4, 8, 9, 16, 64};
    struct model_options o = {.max_num_seqs = SEQS,
                              .max_num_batched_tokens = 4096,
                              .max_model_len = RUN_TOKENS,
                              .num_pages = FIRST_OWN + 1024,
                              .cpu_kv_bytes = (size_t)1 << 30};
    struct model *m;

    log_set_level(LOG_LEVEL_WARN);
    if (argc < 2) {
        fprintf(stderr, "usage: bench_copies MODEL-FOLDER [TABLE [DEVICE [QUANTIZATION]]]\n");
        return 2;
    }
    m = bench_open(argc, argv, 2, o);
    for (size_t i = 0; i < sizeof chunks / sizeof chunks[0]; i++)
        measure_chunk(m, chunks[i]);
    measure_bus(m, (size_t)1 << 30);
    measure_bus(m, model_shape(m)->page_bytes);
    measure_copies(m, 1);
    measure_copies(m, SEQS);
    for (size_t mib = 64; mib >= 4; mib /= 4) {
        measure_pinning(m, mib, false);
        measure_pinning(m, mib, true);
    }
    model_close(m);
    return 0;
}
