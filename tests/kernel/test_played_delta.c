/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the gated delta rule as the GPU does it, without one. Method: its kernels played on the
 * host (play_portable.h) against the reference, results and states: heads of 128, which are fetched
 * in groups of four, and odd ones; decodes of both forms, few and many, sequences of few tokens,
 * chunks of the form by channel, a sequence that begins, a padding one; states in float32, and in
 * bfloat16; gates as products of a residual. Results are rounded to bfloat16 once. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernel/played.h"
#include "tests/kernel/values.h"
#include "tests/tap.h"

#define N_SEQS    4
#define N_MANY    32
#define TOKENS    60
#define PAGES_MAX 40
#define N_PAGES   (N_MANY * PAGES_MAX)
#define PAGE      2048 /* elements; of whole heads 4096 */

static const struct k_delta_shape shapes[] = {{1, 2, 128, 128, 4, false, false},
                                              {2, 4, 12, 20, 3, false, false},
                                              {2, 2, 128, 128, 4, true, false},
                                              {2, 4, 33, 21, 3, true, false},
                                              {3, 3, 20, 20, 2, true, false}};

/* A padding sequence, one that begins, one that goes on, a decode or one more of few tokens. */
enum step { DECODES, FEW, CHUNKS, MANY };
static const int32_t steps[][N_SEQS + 1] = {{0, 1, 2, 3, 4},
                                            {0, 3, 8, 16, 18},
                                            {0, 1, 38, 59, TOKENS}};
static const int32_t lens[N_SEQS] = {0, 37, 90, 500};

static int32_t table[N_PAGES], seqs[TOKENS], positions[TOKENS], many[N_MANY + 1];

/* Random numbers that bfloat16 has. */
static float *draw(size_t n, float by)
{
    float *f = aligned_alloc(64, (n * sizeof *f + 63) / 64 * 64);

    for (size_t i = 0; i < n; i++) {
        f[i] = widen(round_bf16(uniform() * by));
    }
    return f;
}

static k_bf16 *narrowed(const float *f, size_t n)
{
    k_bf16 *h = aligned_alloc(64, (n * sizeof *h + 63) / 64 * 64);

    for (size_t i = 0; i < n; i++)
        h[i] = round_bf16(f[i]);
    return h;
}

/* Numbers of a case, as the reference and the kernels read them. */
struct delta_case {
    float *taps, *a_log, *bias, *norm, *in, *gates, *a, *z, *pages, *want;
    k_bf16 *norm_low, *in_low, *z_low;
    void *pages_played;
    size_t n_out;
};

static struct k_tokens make_tokens(enum step step, int32_t *len)
{
    const int32_t *starts = step == MANY ? many : steps[step];
    int n_seqs = step == MANY ? N_MANY : N_SEQS;

    for (int s = 0; s < n_seqs; s++) {
        many[s + 1] = s + 1;
        len[s] = step == MANY ? s * 11 % 17 : lens[s];
        if (step != CHUNKS && s == 1)
            len[s] = starts[2] - starts[1]; /* it begins */
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            seqs[i] = s;
            positions[i] = len[s] == 0 ? 0 : len[s] - starts[s + 1] + i;
        }
    }
    for (int i = 0; i < N_PAGES; i++)
        table[i] = i * 7 % N_PAGES;
    return (struct k_tokens){.seq = seqs,
                             .pos = positions,
                             .seq_start = starts,
                             .kv_len = len,
                             .page_ids = table,
                             .n_tokens = starts[n_seqs],
                             .n_seqs = n_seqs,
                             .pages_max = PAGES_MAX,
                             .lengths = step == FEW ? K_LENGTHS_FEW : 0};
}

static struct k_delta make_case(struct delta_case *c, const struct k_delta_shape *s, int n_tokens,
                                size_t n_pages)
{
    size_t n = (size_t)n_tokens, keys = (size_t)(k_delta_keys(s) * s->n_taps);
    size_t values = n * (size_t)k_delta_values(s);

    c->n_out = values;
    c->taps = draw((size_t)(k_delta_channels(s) * s->n_taps), 1.0f);
    c->a_log = draw((size_t)s->n_v_heads, 1.0f);
    c->bias = draw((size_t)k_delta_forgets(s), 1.0f);
    c->norm = draw((size_t)s->v_dim, 1.0f);
    c->in = draw(n * (size_t)k_delta_row(s), 2.0f);
    c->gates = draw(n * (size_t)k_delta_gates(s), 2.0f);
    c->a = draw(n * (size_t)k_delta_forgets(s), 2.0f);
    c->z = draw(values, 2.0f);
    c->pages = draw(n_pages, 1.0f);
    c->want = calloc(values, sizeof *c->want);
    c->norm_low = narrowed(c->norm, (size_t)s->v_dim);
    c->in_low = narrowed(c->in, n * (size_t)k_delta_row(s));
    c->z_low = narrowed(c->z, values);
    return (struct k_delta){.shape = *s,
                            .q_taps = c->taps,
                            .k_taps = c->taps + keys,
                            .v_taps = c->taps + 2 * keys,
                            .a_log = c->a_log,
                            .dt_bias = c->bias,
                            .norm = c->norm,
                            .eps = 1e-6f,
                            .a = c->a,
                            .z = c->z};
}

/* Results of tokens that are no padding. */
static void compare_results(const struct delta_case *c, const k_bf16 *got, size_t skip)
{
    double worst = 0.0;

    for (size_t i = skip; i < c->n_out; i++) {
        double off = fabs((double)widen(got[i]) - (double)c->want[i]);

        worst = fmax(worst, off / (1e-3 + fabs((double)c->want[i])));
    }
    ok(worst < 6e-3, "results: within %.1e of a unit", worst);
}

/* States: those of bfloat16 may be rounded to neighbours. */
static void compare_states(const struct delta_case *c, size_t n, bool is_bf16)
{
    double worst = 0.0;

    for (size_t i = 0; i < n; i++) {
        double got = is_bf16 ? (double)widen(((const k_bf16 *)c->pages_played)[i])
                             : (double)((const float *)c->pages_played)[i];
        double want = is_bf16 ? (double)widen(((const k_bf16 *)c->pages)[i]) : (double)c->pages[i];

        worst = fmax(worst, fabs(got - want) / (0.01 + fabs(want)));
    }
    ok(worst < (is_bf16 ? 8.1e-3 : 1e-4), "states: within %.1e", worst);
}

static void check(const struct k_delta_shape *s, enum step step, bool is_bf16)
{
    size_t page = s->k_dim == 128 ? 2 * PAGE : PAGE, n_pages = N_PAGES * page;
    struct delta_case c = {0};
    struct k_state state = {.page_elems = page, .at = 8, .is_bf16 = is_bf16};
    int32_t len[N_MANY];
    struct played_delta p = {.t = make_tokens(step, len)};
    const struct k_delta d = make_case(&c, s, p.t.n_tokens, n_pages);

    if (is_bf16) {
        void *low = narrowed(c.pages, n_pages);

        free(c.pages);
        c.pages = low;
    }
    c.pages_played = aligned_alloc(64, n_pages * (is_bf16 ? 2 : 4));
    memcpy(c.pages_played, c.pages, n_pages * (is_bf16 ? 2 : 4));
    p.d = d;
    p.d.norm = c.norm_low;
    p.d.z = c.z_low;
    p.d.rows = aligned_alloc(64, ((size_t)p.t.n_tokens * k_delta_work(s) * 4 + 63) / 64 * 64);
    p.in = c.in_low;
    p.gates = c.gates;
    p.out = calloc(c.n_out, sizeof *p.out);
    p.state = state;
    p.state.pages = c.pages_played;
    state.pages = c.pages;
    for (int seq = 0; seq < p.t.n_seqs; seq++) {
        for (int head = 0; head < s->n_k_heads; head++)
            ref_delta_rule(c.want, c.in, c.gates, &d, &state, &p.t, seq, head);
    }
    printf("# %d of %d heads of %d and %d, %s, %d tokens, states in %s\n", s->n_k_heads,
           s->n_v_heads, s->k_dim, s->v_dim, s->by_channel ? "by channel" : "by head", p.t.n_tokens,
           is_bf16 ? "bfloat16" : "float32");
    ok(played_delta(&p) == 0, "no lane waits in vain");
    compare_results(&c, p.out, (size_t)(p.t.seq_start[1] * k_delta_values(s)));
    compare_states(&c, n_pages, is_bf16);
    free(c.taps), free(c.a_log), free(c.bias), free(c.norm), free(c.in), free(c.gates), free(c.a);
    free(c.z), free(c.pages), free(c.want), free(c.norm_low), free(c.in_low), free(c.z_low);
    free(c.pages_played), free(p.d.rows), free(p.out);
}

/* Gates of three tokens as products of a residual, whose sum of squares is in two parts. */
static void check_gate(void)
{
    enum { TOKENS_GATED = 3, DIM = 620, GATES = 5 };
    float *x = draw(TOKENS_GATED * DIM, 3.0f), *w = draw((GATES + 1) * DIM, 0.5f);
    const float *norm = w + GATES * DIM;
    k_bf16 *low = narrowed(w, (GATES + 1) * DIM);
    float sums[TOKENS_GATED][2] = {0}, got[TOKENS_GATED][GATES];
    const struct k_delta_gating g = {.w = low,
                                     .x = x,
                                     .norm = low + GATES * DIM,
                                     .sums = sums[0],
                                     .dim = DIM,
                                     .n_sums = 2,
                                     .eps = 1e-5f};
    double worst = 0.0;

    for (int i = 0; i < TOKENS_GATED * DIM; i++)
        sums[i / DIM][i % 2] += x[i] * x[i];
    ok(played_gate(got[0], &g, GATES, TOKENS_GATED) == 0, "no lane waits in vain");
    for (int t = 0; t < TOKENS_GATED; t++) {
        for (int k = 0; k < GATES; k++) {
            double sum = 0.0;

            for (int i = 0; i < DIM; i++)
                sum += (double)x[t * DIM + i] * (double)norm[i] * (double)w[k * DIM + i];
            sum /= sqrt(((double)sums[t][0] + (double)sums[t][1]) / DIM + 1e-5);
            worst = fmax(worst, fabs((double)got[t][k] - sum) / (0.1 + fabs(sum)));
        }
    }
    ok(worst < 1e-5, "gates as products: within %.1e", worst);
    free(x), free(w), free(low);
}

int main(void)
{
    values_seed = tap_seed(1);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int step = DECODES; step <= (shapes[i].by_channel ? CHUNKS : FEW); step++) {
            check(&shapes[i], (enum step)step, false);
            check(&shapes[i], (enum step)step, true);
        }
    }
    check_gate();
    check(&shapes[0], MANY, false);
    check(&shapes[0], MANY, true);
    return tap_done();
}
