/* Goal: the rings of sm90_product.cu neither stand still nor are filled while somebody reads,
 * whoever is late. Method: their protocol, played for cuts that product_cut_of() makes: one who
 * orders and eight warps as coroutines, which a seeded scheduler lets go on in any order, some of
 * them seldom; copies arrive out of order. A change of who waits for or gives back what is to be
 * made in both. */
#include <stdlib.h>
#include <ucontext.h>

#include "kernels/product_cut.h"
#include "tests/tap.h"

#define N_WARPS     8
#define STACK_BYTES (64 * 1024)
#define COPIES_MAX  (2 * CUT_DEPTH_MAX)
#define STILL       200000 /* turns in which nothing happens */

/* mbarrier: a phase ends when all have arrived and what was expected is there. */
struct bar {
    int need, left, pending;
    unsigned phase;
};

struct agent {
    ucontext_t context;
    char *stack;
    int warp; /* N_WARPS: orders */
    bool seldom, done;
};

struct copy {
    bool is_x;
    int slot, what;
};

static struct {
    struct product_cut c;
    int steps, tiles, first_slots;
    bool fp8, direct; /* ends of tiles in registers: nobody meets */
    struct bar full[CUT_DEPTH_MAX], empty[CUT_DEPTH_MAX], x_full[CUT_DEPTH_MAX];
    struct bar x_empty[CUT_DEPTH_MAX];
    int w[CUT_DEPTH_MAX], x[CUT_DEPTH_MAX]; /* what is there: the number of its order */
    int readers[CUT_DEPTH_MAX], x_readers[CUT_DEPTH_MAX];
    struct copy copies[COPIES_MAX];
    int n_copies, met;
    long happened;
    const char *fault;
    struct agent agents[N_WARPS + 1];
    ucontext_t scheduler;
    struct agent *current;
    unsigned seed;
} s;

struct place {
    int at;
    unsigned parity;
};

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

static void order(struct bar *full, bool is_x, int slot, int what)
{
    full->pending++;
    arrive(full);
    s.copies[s.n_copies++] = (struct copy){is_x, slot, what};
}

static void next(struct place *p, int depth)
{
    if (++p->at == depth) {
        p->at = 0;
        p->parity ^= 1;
    }
}

/* --- who orders ------------------------------------------------------------------------- */

static void order_x(struct place *to, int *step)
{
    await(&s.x_empty[to->at], to->parity);
    order(&s.x_full[to->at], true, to->at, (*step)++);
    next(to, s.c.x_depth);
}

static void order_all(void)
{
    struct place to = {0, 1}, x_to = {0, 1};
    int before_x = s.first_slots, x_steps = 0, total = s.steps * s.tiles;

    for (int step = 0; step < total; step++) {
        for (int b = 0; b < s.c.n_blocks && s.fault == NULL; b++) {
            before_x--;
            while (before_x < 0 && x_steps <= step && s.fault == NULL)
                order_x(&x_to, &x_steps);
            await(&s.empty[to.at], to.parity);
            order(&s.full[to.at], false, to.at, step * s.c.n_blocks + b);
            next(&to, s.c.depth);
            others();
        }
    }
    while (x_steps < total && s.fault == NULL)
        order_x(&x_to, &x_steps);
}

/* --- who multiply ----------------------------------------------------------------------- */

struct held {
    int w, x, reads_x; /* -1: none; given back with it; read */
};

static void give_back(struct held *h)
{
    if (h->w < 0)
        return;
    s.readers[h->w]--;
    s.x_readers[h->reads_x]--;
    arrive(&s.empty[h->w]);
    if (h->x >= 0)
        arrive(&s.x_empty[h->x]);
    h->w = -1;
}

static void pass(struct place *from, int n)
{
    for (; n > 0; n--) {
        await(&s.full[from->at], from->parity);
        arrive(&s.empty[from->at]);
        next(from, s.c.depth);
        others();
    }
}

/* A slot of this warp's: bf16 gives the one before back, e4m3 this one. */
static void multiply(struct held *before, struct held now, int what, int step)
{
    if (s.w[now.w] != what || s.x[now.reads_x] != step)
        fail("a slot holds another round");
    s.readers[now.w]++;
    s.x_readers[now.reads_x]++;
    for (int i = draw(4); i >= 0; i--)
        others();
    give_back(s.fp8 ? &now : before);
    if (!s.fp8)
        *before = now;
    others();
}

static void multiply_all(int group)
{
    int own = s.c.n_blocks == 4 ? 2 : 1, step = 0;
    struct place from = {0, 0}, x_from = {0, 0};

    for (int tile = 0; tile < s.tiles; tile++) {
        struct held before = {-1, -1, -1};

        for (int i = 0; i < s.steps; i++, step++) {
            await(&s.x_full[x_from.at], x_from.parity);
            if (s.c.n_blocks == 1 && i % 2 != group) {
                pass(&from, 1);
                arrive(&s.x_empty[x_from.at]);
                next(&x_from, s.c.x_depth);
                continue;
            }
            for (int b = 0; b < own && s.fault == NULL; b++) {
                int block = s.c.n_blocks > 1 ? 2 * b + group : 0;

                pass(&from, s.c.n_blocks > 1 ? group : 0);
                await(&s.full[from.at], from.parity);
                multiply(&before, (struct held){from.at, b + 1 == own ? x_from.at : -1, x_from.at},
                         step * s.c.n_blocks + block, step);
                next(&from, s.c.depth);
                pass(&from, s.c.n_blocks > 1 ? 1 - group : 0);
            }
            next(&x_from, s.c.x_depth);
        }
        give_back(&before);
        s.met++;
        s.happened++;
        while (!s.direct && s.met < N_WARPS * (tile + 1) && s.fault == NULL)
            others();
        for (int i = s.direct ? draw(60) : 0; i > 0; i--)
            others();
    }
}

/* --- the scheduler ---------------------------------------------------------------------- */

static void agent_main(void)
{
    if (s.current->warp == N_WARPS)
        order_all();
    else
        multiply_all(s.current->warp / 4);
    s.current->done = true;
    s.happened++;
    others();
}

/* One of the oldest copies is there. */
static void finish_copy(void)
{
    int i = draw(s.n_copies < 6 ? s.n_copies : 6);
    struct copy k = s.copies[i];
    struct bar *full = k.is_x ? &s.x_full[k.slot] : &s.full[k.slot];

    if ((k.is_x ? s.x_readers : s.readers)[k.slot] > 0)
        fail("a slot is filled while somebody reads it");
    (k.is_x ? s.x : s.w)[k.slot] = k.what;
    memmove(&s.copies[i], &s.copies[i + 1], (size_t)(--s.n_copies - i) * sizeof s.copies[0]);
    full->pending--;
    look(full);
}

static void init_bars(struct bar *b, int n)
{
    for (int i = 0; i < CUT_DEPTH_MAX; i++)
        b[i] = (struct bar){.need = n, .left = n};
}

/* late: nobody, a warpgroup, one warp, who orders. */
static void begin_agent(struct agent *a, int warp, int late, int late_group)
{
    a->warp = warp;
    a->done = false;
    a->seldom = late == 1   ? warp / 4 == late_group
                : late == 2 ? warp == 5
                : late == 3 ? warp == N_WARPS
                            : false;
    (void)getcontext(&a->context);
    a->context.uc_stack.ss_sp = a->stack;
    a->context.uc_stack.ss_size = STACK_BYTES;
    a->context.uc_link = NULL;
    makecontext(&a->context, agent_main, 0);
}

static const char *play(void)
{
    int late = draw(4), late_group = draw(2), n_done = 0;
    long still = 0, happened = 0;

    init_bars(s.full, 1), init_bars(s.x_full, 1);
    init_bars(s.empty, N_WARPS), init_bars(s.x_empty, N_WARPS);
    memset(s.readers, 0, sizeof s.readers), memset(s.x_readers, 0, sizeof s.x_readers);
    s.n_copies = s.met = 0;
    s.happened = 0;
    s.fault = NULL;
    for (int i = 0; i <= N_WARPS; i++)
        begin_agent(&s.agents[i], i, late, late_group);
    while (n_done <= N_WARPS && s.fault == NULL) {
        struct agent *a = &s.agents[draw(N_WARPS + 1)];

        if (s.n_copies > 0 && draw(10) < 4)
            finish_copy();
        if (a->done || (a->seldom && draw(100) < 97))
            continue;
        s.current = a;
        (void)swapcontext(&s.scheduler, &a->context);
        n_done += a->done;
        still = s.happened != happened || s.n_copies > 0 ? 0 : still + 1;
        happened = s.happened;
        if (still > STILL)
            fail("all stand still");
    }
    return s.fault;
}

/* A cut that product_cut_of() makes, of few steps. */
static void draw_cut(void)
{
    static const int rows[] = {4, 8, 16, 24, 32, 48, 64};
    enum k_type type = draw(2) == 0 ? K_BF16 : K_E4M3;
    enum k_product_kind kind = (enum k_product_kind)draw(K_PRODUCT_RESIDUAL + 1);
    const struct k_matrix w = {.type = type,
                               .n_out = 16 * (1 + draw(draw(2) == 0 ? 300 : 8000)),
                               .n_in = product_cut_slab_cols(type) * (1 + draw(50))};
    int n = rows[draw(type == K_E4M3 ? 6 : 7)];

    if (!product_cut_of(&s.c, &w, kind, n, 132))
        abort();
    s.fp8 = type == K_E4M3;
    s.steps = ((s.c.n_slabs + s.c.n_split - 1) / s.c.n_split + s.c.box - 1) / s.c.box;
    s.tiles = (s.c.n_tiles + s.c.n_groups - 1) / s.c.n_groups;
    s.tiles = s.tiles > 4 ? 4 : s.tiles;
    s.direct = s.c.n_split == 1 && ((kind == K_PRODUCT_FLOAT && s.c.n_blocks > 1) ||
                                    (kind == K_PRODUCT_GATED && s.c.n_blocks == 4));
    s.first_slots = 1 + draw(s.c.depth);
}

int main(void)
{
    enum { TURNS = 400 };
    int n_good = 0, n_direct = 0;

    for (int i = 0; i <= N_WARPS; i++)
        s.agents[i].stack = malloc(STACK_BYTES);
    s.seed = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        const char *fault;

        draw_cut();
        fault = play();
        n_good += fault == NULL;
        n_direct += s.direct && s.tiles > 1;
        if (fault != NULL && turn - n_good < 5)
            printf("# turn %d, %s: %s, %d blocks, %d and %d slots, %d tiles of %d steps\n", turn,
                   fault, s.fp8 ? "e4m3" : "bf16", s.c.n_blocks, s.c.depth, s.c.x_depth, s.tiles,
                   s.steps);
    }
    ok(n_good == TURNS && n_direct > 10, "%d of %d rings come to their end, %d where nobody meets",
       n_good, TURNS, n_direct);
    for (int i = 0; i <= N_WARPS; i++)
        free(s.agents[i].stack);
    return tap_done();
}
