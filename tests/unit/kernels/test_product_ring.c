/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the rings of sm90_product.cu neither stop nor are filled while they are read, whichever
 * part is late. Two CTAs that share a tile are sent what they wait for, neither over what is still
 * read nor when they have gone. Method: their protocol, played for cuts that product_cut_of()
 * makes: a producer and eight warps as coroutines, which a seeded scheduler lets go on in any
 * order, some of them seldom; copies and sums arrive out of order. Which stage, round and turn
 * comes next is the kernel's own code (product_ring.h); the contents of stages and the waits are
 * counted here: a change of what is waited for or given back must be made in both. */
#include <stdlib.h>
#include <ucontext.h>

#include "kernels/product_cut.h"
#include "kernels/product_ring.h"
#include "tests/tap.h"

#define N_WARPS     8
#define N_AGENTS    (N_WARPS + 1)
#define STACK_BYTES (64 * 1024)
#define COPIES_MAX  (2 * CUT_DEPTH_MAX)
#define PUSHES_MAX  (2 * N_WARPS)
#define STILL       200000 /* turns in which nothing happens */

/* mbarrier: a phase ends when all have arrived and what was expected is there. */
struct bar {
    int need, left, pending;
    unsigned phase;
};

struct cta;

struct agent {
    ucontext_t context;
    char *stack;
    struct cta *cta;
    int warp; /* N_WARPS: the producer */
    bool seldom, done;
};

struct copy {
    bool is_x;
    int stage, what;
};

struct cta {
    int rank, steps; /* of its share of n_in: */
    int first, last; /* its slabs */
    struct bar full[CUT_DEPTH_MAX], empty[CUT_DEPTH_MAX], x_full[CUT_DEPTH_MAX];
    struct bar x_empty[CUT_DEPTH_MAX], ready, arrived;
    int w[CUT_DEPTH_MAX], x[CUT_DEPTH_MAX]; /* what is there: the number of its load */
    int readers[CUT_DEPTH_MAX], x_readers[CUT_DEPTH_MAX];
    struct copy copies[COPIES_MAX];
    int n_copies, met;
    int pushes[PUSHES_MAX], n_pushes; /* bytes on their way to this CTA */
    int n_stored;                     /* warps that have stored their own rows' sums */
    int n_done;
    struct agent agents[N_AGENTS];
};

static struct {
    struct product_cut c;
    int n, tiles, first_stages, n_ctas;
    bool direct; /* ends of tiles in registers: no CTAs meet */
    struct cta ctas[2];
    int n_begun; /* agents that have arrived at the cluster's first barrier */
    long happened;
    const char *fault;
    ucontext_t scheduler;
    struct agent *current;
    unsigned seed;
} s;

static int draw(int n)
{
    s.seed = s.seed * 1664525U + 1013904223U;
    return (int)((s.seed >> 8) % (unsigned)n);
}

static void others(void)
{
    (void)swapcontext(&s.current->context, &s.scheduler);
}

static void fail(const char *why)
{
    if (s.fault == NULL)
        s.fault = why;
}

/* --- barriers --------------------------------------------------------------------------- */

static void look(struct bar *b)
{
    s.happened++;
    if (b->left == 0 && b->pending == 0) {
        b->phase++;
        b->left = b->need;
    }
}

static void arrive(struct bar *b)
{
    if (b->left-- <= 0)
        fail("more arrivals than are counted");
    look(b);
}

static void await(const struct bar *b, unsigned parity)
{
    while ((b->phase & 1) == parity && s.fault == NULL)
        others();
}

static void load(struct cta *k, bool is_x, int stage, int what)
{
    struct bar *full = is_x ? &k->x_full[stage] : &k->full[stage];

    full->pending++;
    arrive(full);
    k->copies[k->n_copies++] = (struct copy){is_x, stage, what};
}

/* --- loads ----------------------------------------------------------------------------- */

/* The number of a step among all of the CTA's, whose tiles are 0, n_groups, ... */
static int number_of(const struct cta *k, struct ring_step at)
{
    return at.tile / s.c.n_groups * k->steps + (at.slab - k->first) / s.c.box;
}

static void next_step(const struct cta *k, struct ring_step *at)
{
    ring_next_step(at, k->first, k->last, s.c.box, s.c.n_groups);
}

static bool is_within(struct ring_step at)
{
    return at.tile < s.tiles * s.c.n_groups && s.fault == NULL;
}

static void load_x(struct cta *k, struct ring_stage *to, struct ring_step *x)
{
    await(&k->x_empty[to->at], to->parity);
    load(k, true, to->at, number_of(k, *x));
    ring_next(to, 1, s.c.x_depth);
    next_step(k, x);
}

/* Before anything else: the stages are free. */
static void begin_stages(struct cta *k)
{
    for (int i = 0; i < s.first_stages; i++)
        load(k, false, i, i);
}

/* The place of one more stage is not read any more: the other CTA may send its sums there. */
static void tell_other(struct cta *k, struct ring_stage next)
{
    struct cta *other = &s.ctas[k->rank ^ 1];

    while (s.n_begun < 2 * N_AGENTS && s.fault == NULL)
        others();
    if (next.at * s.c.stage_bytes != s.c.sent_at[k->rank])
        fail("sums are sent to another stage");
    await(&k->empty[next.at], next.parity);
    if (other->n_done == N_AGENTS)
        fail("the CTA that is told has gone");
    arrive(&other->ready);
}

static void load_all(struct cta *k)
{
    struct ring_stage to = {0, 1}, x_to = {0, 1};
    struct ring_step w = {0, k->first}, x = w;
    int w_steps = s.first_stages / s.c.n_blocks, x_steps = 0;

    ring_next(&to, s.first_stages, s.c.depth);
    for (int i = 0; i < w_steps; i++)
        next_step(k, &w);
    for (int b = s.first_stages % s.c.n_blocks; is_within(w); b = 0, w_steps++) {
        for (; ring_x_is_due(x_steps, w_steps) && s.fault == NULL; x_steps++)
            load_x(k, &x_to, &x);
        for (; b < s.c.n_blocks && s.fault == NULL; b++) {
            await(&k->empty[to.at], to.parity);
            load(k, false, to.at, number_of(k, w) * s.c.n_blocks + b);
            ring_next(&to, 1, s.c.depth);
            others();
        }
        next_step(k, &w);
    }
    while (is_within(x))
        load_x(k, &x_to, &x);
    if (s.n_ctas == 2)
        tell_other(k, to);
}

/* --- products -------------------------------------------------------------------------- */

static void pass(struct cta *k, struct ring_stage *from, int n)
{
    for (; n > 0; n--) {
        await(&k->full[from->at], from->parity);
        arrive(&k->empty[from->at]);
        ring_next(from, 1, s.c.depth);
        others();
    }
}

/* A stage of w and one of x; that of x is given back with the last block of a step. */
static void multiply(struct cta *k, int w, int x, bool last, int what, int step)
{
    if (k->w[w] != what || k->x[x] != step)
        fail("a stage holds another round");
    k->readers[w]++;
    k->x_readers[x]++;
    for (int i = draw(4); i >= 0; i--)
        others();
    k->readers[w]--;
    k->x_readers[x]--;
    arrive(&k->empty[w]);
    if (last)
        arrive(&k->x_empty[x]);
    others();
}

/* A step of a tile: every second is this warpgroup's, or of several blocks every second block. */
static void multiply_step(struct cta *k, int group, int i, int step, struct ring_stage *from,
                          int x_at)
{
    int own = RING_OWN_BLOCKS(s.c.n_blocks);

    if (s.c.n_blocks == 1 && ring_is_others(i % 2, group)) {
        pass(k, from, 1);
        arrive(&k->x_empty[x_at]);
        return;
    }
    for (int b = 0; b < own && s.fault == NULL; b++) {
        int block = s.c.n_blocks > 1 ? 2 * b + group : 0;

        pass(k, from, ring_n_before(s.c.n_blocks, group));
        await(&k->full[from->at], from->parity);
        multiply(k, from->at, x_at, ring_gives_x(s.c.n_blocks, b), step * s.c.n_blocks + block,
                 step);
        ring_next(from, 1, s.c.depth);
        pass(k, from, ring_n_after(s.c.n_blocks, group));
    }
}

/* Bytes of a warp's sixteen rows, where the other CTA ends some of them. */
static int pushed_bytes(const struct cta *k, int warp)
{
    int sixteens = (s.c.rows / 2 + 15) / 16, first = (k->rank ^ 1) * (s.c.rows / 2) / 16;

    return warp % 4 >= first && warp % 4 < first + sixteens ? 16 * s.c.columns * 4 : 0;
}

/* The end of a tile that two CTAs share. */
static void exchange(struct cta *k, int warp)
{
    struct cta *other = &s.ctas[k->rank ^ 1];
    int bytes = pushed_bytes(k, warp);

    if (bytes > 0) {
        await(&k->ready, 0);
        other->pushes[other->n_pushes++] = bytes;
        others();
    }
    k->n_stored++;
    s.happened++;
    while (k->n_stored < N_WARPS && s.fault == NULL)
        others();
    await(&k->arrived, 0);
}

static void multiply_all(struct cta *k, int warp)
{
    int step = 0;
    struct ring_stage from = {0, 0}, x_from = {0, 0};

    for (int tile = 0; tile < s.tiles; tile++) {
        for (int i = 0; i < k->steps; i++, step++) {
            await(&k->x_full[x_from.at], x_from.parity);
            multiply_step(k, warp / 4, i, step, &from, x_from.at);
            ring_next(&x_from, 1, s.c.x_depth);
        }
        k->met++;
        s.happened++;
        while (!s.direct && k->met < N_WARPS * (tile + 1) && s.fault == NULL)
            others();
        if (s.n_ctas == 2)
            exchange(k, warp);
        for (int i = s.direct ? draw(60) : 0; i > 0; i--)
            others();
    }
}

/* --- the scheduler ---------------------------------------------------------------------- */

static void agent_main(void)
{
    struct agent *a = s.current;

    s.n_begun++;
    if (a->warp == N_WARPS)
        load_all(a->cta);
    else
        multiply_all(a->cta, a->warp);
    while (s.n_ctas == 2 && s.n_begun < 2 * N_AGENTS && s.fault == NULL)
        others();
    a->done = true;
    a->cta->n_done++;
    s.happened++;
    others();
}

/* One of the oldest copies is there. */
static void finish_copy(struct cta *k)
{
    int i = draw(k->n_copies < 6 ? k->n_copies : 6);
    struct copy c = k->copies[i];
    struct bar *full = c.is_x ? &k->x_full[c.stage] : &k->full[c.stage];

    if ((c.is_x ? k->x_readers : k->readers)[c.stage] > 0)
        fail("a stage is filled while it is read");
    (c.is_x ? k->x : k->w)[c.stage] = c.what;
    memmove(&k->copies[i], &k->copies[i + 1], (size_t)(--k->n_copies - i) * sizeof k->copies[0]);
    full->pending--;
    look(full);
}

/* Some sums of the other CTA are there, over the stages. */
static void finish_push(struct cta *k)
{
    int i = draw(k->n_pushes), bytes = k->pushes[i], stage = s.c.sent_at[k->rank] / s.c.stage_bytes;

    if (k->n_done == N_AGENTS)
        fail("sums come to a CTA that has gone");
    for (int c = 0; c < k->n_copies; c++) {
        if (!k->copies[c].is_x && k->copies[c].stage == stage)
            fail("sums come before a copy");
    }
    if (k->readers[stage] > 0 || stage == s.c.own_at[k->rank] / s.c.stage_bytes)
        fail("sums come over a stage that is read");
    if (k->arrived.pending < bytes)
        fail("more bytes are sent than waited for");
    k->w[stage] = -1;
    k->pushes[i] = k->pushes[--k->n_pushes];
    k->arrived.pending -= bytes;
    look(&k->arrived);
}

static void init_bars(struct bar *b, int n)
{
    for (int i = 0; i < CUT_DEPTH_MAX; i++)
        b[i] = (struct bar){.need = n, .left = n};
}

/* late: none, a warpgroup, one warp, the one that loads, all. */
static void begin_agent(struct cta *k, int warp, int late, int late_group)
{
    struct agent *a = &k->agents[warp];

    a->cta = k;
    a->warp = warp;
    a->done = false;
    a->seldom = late == 1   ? warp / 4 == late_group
                : late == 2 ? warp == 5
                : late == 3 ? warp == N_WARPS
                            : late == 4;
    (void)getcontext(&a->context);
    a->context.uc_stack.ss_sp = a->stack;
    a->context.uc_stack.ss_size = STACK_BYTES;
    a->context.uc_link = NULL;
    makecontext(&a->context, agent_main, 0);
}

static void begin_cta(struct cta *k, int late)
{
    int late_group = draw(2);

    init_bars(k->full, 1), init_bars(k->x_full, 1);
    init_bars(k->empty, N_WARPS), init_bars(k->x_empty, N_WARPS);
    k->ready = (struct bar){.need = 1, .left = 1};
    k->arrived = (struct bar){.need = 1, .left = 0, .pending = 2 * s.c.part * 4};
    memset(k->readers, 0, sizeof k->readers), memset(k->x_readers, 0, sizeof k->x_readers);
    k->n_copies = k->met = k->n_pushes = k->n_stored = k->n_done = 0;
    begin_stages(k);
    for (int i = 0; i < N_AGENTS; i++)
        begin_agent(k, i, late, late_group);
}

static const char *play(void)
{
    int late = draw(5), late_cta = draw(s.n_ctas), n_done = 0;
    long still = 0, happened = 0;

    s.happened = 0;
    s.n_begun = 0;
    s.fault = NULL;
    for (int i = 0; i < s.n_ctas; i++)
        begin_cta(&s.ctas[i], s.n_ctas == 1 || i == late_cta ? late : 0);
    while (n_done < N_AGENTS * s.n_ctas && s.fault == NULL) {
        struct cta *k = &s.ctas[draw(s.n_ctas)];
        struct agent *a = &k->agents[draw(N_AGENTS)];

        if (k->n_copies > 0 && draw(10) < 4)
            finish_copy(k);
        if (k->n_pushes > 0 && draw(10) < 2)
            finish_push(k);
        if (a->done || (a->seldom && draw(100) < 97))
            continue;
        s.current = a;
        (void)swapcontext(&s.scheduler, &a->context);
        n_done += a->done;
        still = s.happened != happened || k->n_copies + k->n_pushes > 0 ? 0 : still + 1;
        happened = s.happened;
        if (still > STILL)
            fail("all stand still");
    }
    for (int i = 0; i < s.n_ctas; i++) {
        if (s.ctas[i].n_pushes > 0)
            fail("sums come to a CTA that has gone");
    }
    return s.fault;
}

/* Shares of n_in, and the stages that are loaded first: of the shorter share's first tile at most,
 * often as many as a ring has. */
static void draw_shares(void)
{
    int least = 0;

    s.n_ctas = s.c.n_blocks == 1 ? s.c.n_split : 1;
    for (int i = 0; i < s.n_ctas; i++) {
        int rank = s.n_ctas == 1 ? draw(s.c.n_split) : i;
        struct cta *k = &s.ctas[i];

        k->rank = rank;
        k->first = rank * s.c.n_slabs / s.c.n_split;
        k->last = (rank + 1) * s.c.n_slabs / s.c.n_split;
        k->steps = (k->last - k->first + s.c.box - 1) / s.c.box;
    }
    least = (s.c.n_slabs / s.c.n_split + s.c.box - 1) / s.c.box * s.c.n_blocks;
    if (least > s.c.depth)
        least = s.c.depth;
    s.first_stages = draw(3) == 0 ? least : 1 + draw(least);
}

/* A cut that product_cut_of() makes, of few steps. */
static void draw_cut(void)
{
    const struct k_format format = {.elem = draw(2) == 0 ? K_BF16 : K_E4M3};
    enum k_product_kind kind = (enum k_product_kind)draw(K_PRODUCT_RESIDUAL + 1);
    const struct k_matrix w = {.format = format,
                               .n_out = 16 * (1 + draw(draw(2) == 0 ? 300 : 8000)),
                               .n_in = product_cut_slab_cols(&format) *
                                       (1 + draw(draw(4) == 0 ? 250 : 50))};

    s.n = 1 + draw(K_PRODUCT_ROWS_MAX);
    if (!product_cut_of(&s.c, &w, kind, s.n, 132))
        abort();
    s.tiles = (s.c.n_tiles + s.c.n_groups - 1) / s.c.n_groups;
    s.tiles = s.tiles > 4 ? 4 : s.tiles;
    s.direct = s.c.n_split == 1 && kind == K_PRODUCT_FLOAT && s.c.n_blocks > 1;
    draw_shares();
}

static void say_fault(int turn, const char *fault)
{
    printf("# turn %d, %s: %d blocks, %d and %d stages, %d first, %d tiles of %d rows, %d steps, "
           "%d CTAs, %d columns\n",
           turn, fault, s.c.n_blocks, s.c.depth, s.c.x_depth, s.first_stages, s.tiles, s.c.rows,
           s.ctas[0].steps, s.n_ctas, s.n);
}

int main(void)
{
    enum { TURNS = 600 };
    int n_good = 0, n_direct = 0, n_shared = 0, n_uneven = 0, n_full = 0;

    for (int i = 0; i < 2 * N_AGENTS; i++)
        s.ctas[i / N_AGENTS].agents[i % N_AGENTS].stack = malloc(STACK_BYTES);
    s.seed = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        const char *fault;

        draw_cut();
        fault = play();
        n_good += fault == NULL;
        n_direct += s.direct && s.tiles > 1;
        n_shared += s.n_ctas == 2;
        n_uneven += s.n_ctas == 2 && s.ctas[0].steps != s.ctas[1].steps;
        n_full += s.first_stages == s.c.depth;
        if (fault != NULL && turn - n_good < 5)
            say_fault(turn, fault);
    }
    ok(n_good == TURNS && n_direct > 10, "%d of %d rings come to their end, %d where no CTAs meet",
       n_good, TURNS, n_direct);
    ok(n_shared > 50 && n_uneven > 5 && n_full > 5,
       "%d tiles were shared, %d in uneven steps; %d rings full before x came", n_shared, n_uneven,
       n_full);
    for (int i = 0; i < 2 * N_AGENTS; i++)
        free(s.ctas[i / N_AGENTS].agents[i % N_AGENTS].stack);
    return tap_done();
}
