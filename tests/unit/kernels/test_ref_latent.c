/* SPDX-License-Identifier: Apache-2.0
 *
 * The references of latent attention, in the absorbed form, against its definition in float64: each
 * head's keys and values are computed from the latents, and attention is the ordinary one. Tokens
 * come in chunks, over pages in any order, beside a padding sequence. */
#include <math.h>
#include <string.h>

#include "kernels/latent.h"
#include "tests/tap.h"

#define HEADS   3
#define RANK    10
#define NOPE    5
#define ROPE    6
#define VALUE   7
#define ROW     (RANK + ROPE)
#define QUERY   (NOPE + ROPE)
#define TOKENS  41
#define PAGE    4
#define N_PAGES ((TOKENS + PAGE - 1) / PAGE)
#define BEFORE  3 /* elements before the layer's in a page */
#define ELEMS   (BEFORE + PAGE * ROW)

#define Q_RANK  4
#define IN      (Q_RANK + ROW)

/* Rows of latents: of queries, then of keys and values. The queries do not come from the former. */
static float in[TOKENS * IN], queries[TOKENS * HEADS * QUERY], absorbed[TOKENS * HEADS * ROW];
static float q_norm[Q_RANK], normed[TOKENS * Q_RANK];
static float sums[TOKENS * HEADS * RANK], out[TOKENS * HEADS * VALUE];
static float norm[RANK], up[HEADS * (NOPE + VALUE) * RANK], turns[TOKENS * ROPE];
static float pages[N_PAGES * ELEMS];
static int32_t table[2 * N_PAGES], seqs[TOKENS], positions[TOKENS];

static const struct k_kv kv = {.pages = pages,
                               .page_elems = ELEMS,
                               .layer_elems = BEFORE,
                               .n_kv_heads = 1,
                               .head_dim = ROW,
                               .value_dim = RANK,
                               .page_tokens = PAGE,
                               .is_shared = true};

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(rand() % 2001 - 1000) * 1e-3f;
}

static void prepare(void)
{
    fill(in, sizeof in / sizeof *in);
    fill(queries, sizeof queries / sizeof *queries);
    fill(norm, RANK);
    fill(q_norm, Q_RANK);
    fill(up, sizeof up / sizeof *up);
    fill(pages, sizeof pages / sizeof *pages);
    for (int p = 0; p < TOKENS; p++) {
        for (int i = 0; i < ROPE / 2; i++) {
            turns[p * ROPE + 2 * i] = cosf((float)(p * (i + 1)) * 0.1f);
            turns[p * ROPE + 2 * i + 1] = sinf((float)(p * (i + 1)) * 0.1f);
        }
    }
    for (int i = 0; i < N_PAGES; i++)
        table[N_PAGES + i] = (i * 3 + 1) % N_PAGES;
}

/* The next n tokens of sequence 1, of `done`, through all references. */
static void run(const struct k_latent *l, int done, int n)
{
    int32_t start[3] = {0, 0, n}, len[2] = {0, done + n};
    struct k_tokens t = {.seq = seqs,
                         .pos = positions,
                         .seq_start = start,
                         .kv_len = len,
                         .page_ids = table,
                         .n_tokens = n,
                         .n_seqs = 2,
                         .pages_max = N_PAGES};
    float scratch[TOKENS];

    for (int i = 0; i < n; i++) {
        seqs[i] = 1;
        positions[i] = done + i;
    }
    ref_latent_keys(normed + done * Q_RANK, in + done * IN, l, &kv, &t, 0, n);
    for (int i = 0; i < n; i++) {
        for (int head = 0; head < HEADS; head++)
            ref_latent_queries(absorbed + done * HEADS * ROW, queries + done * HEADS * QUERY, l, &t,
                               i, head);
        ref_attn(sums + done * HEADS * RANK, absorbed + done * HEADS * ROW, &kv, &t, HEADS, 0.3f, i,
                 0, scratch);
        for (int head = 0; head < HEADS; head++)
            ref_latent_values(out + done * HEADS * VALUE, sums + done * HEADS * RANK, l, i, head);
    }
}

static void turn(double *to, const float *x, int pos, bool interleaved)
{
    for (int i = 0; i < ROPE / 2; i++) {
        int a = interleaved ? 2 * i : i, b = interleaved ? a + 1 : a + ROPE / 2;
        double cosine = (double)turns[pos * ROPE + 2 * i],
               sine = (double)turns[pos * ROPE + 2 * i + 1];

        to[a] = (double)x[a] * cosine - (double)x[b] * sine;
        to[b] = (double)x[b] * cosine + (double)x[a] * sine;
    }
}

/* A head's key and value of the token at pos. */
static void expand(double key[QUERY], double value[VALUE], int pos, int head, bool interleaved)
{
    const float *row = in + pos * IN + Q_RANK;
    double c[RANK], square = 0.0;

    for (int j = 0; j < RANK; j++)
        square += (double)row[j] * (double)row[j];
    for (int j = 0; j < RANK; j++)
        c[j] = (double)row[j] / sqrt(square / RANK + 1e-6) * (double)norm[j];
    for (int d = 0; d < NOPE + VALUE; d++) {
        double sum = 0.0;

        for (int j = 0; j < RANK; j++)
            sum += (double)up[(head * (NOPE + VALUE) + d) * RANK + j] * c[j];
        if (d < NOPE)
            key[d] = sum;
        else
            value[d - NOPE] = sum;
    }
    turn(key + NOPE, row + RANK, pos, interleaved);
}

/* The largest difference of a token's head from the definition. */
static double error_of(int pos, int head, bool interleaved)
{
    const float *query = queries + (pos * HEADS + head) * QUERY;
    double q[QUERY], want[VALUE] = {0.0}, all = 0.0, worst = 0.0;

    for (int d = 0; d < NOPE; d++)
        q[d] = (double)query[d];
    turn(q + NOPE, query + NOPE, pos, interleaved);
    for (int i = 0; i <= pos; i++) {
        double key[QUERY], value[VALUE], dot = 0.0;

        expand(key, value, i, head, interleaved);
        for (int d = 0; d < QUERY; d++)
            dot += q[d] * key[d];
        all += exp(dot * 0.3);
        for (int d = 0; d < VALUE; d++)
            want[d] += exp(dot * 0.3) * value[d];
    }
    for (int d = 0; d < VALUE; d++)
        worst = fmax(worst, fabs(want[d] / all - (double)out[(pos * HEADS + head) * VALUE + d]));
    return worst;
}

/* The largest difference of a token's normed latent of queries from the definition. */
static double norm_error_of(int pos)
{
    const float *x = in + pos * IN, *got = normed + pos * Q_RANK;
    double square = 0.0, worst = 0.0;

    for (int i = 0; i < Q_RANK; i++)
        square += (double)x[i] * (double)x[i];
    for (int i = 0; i < Q_RANK; i++)
        worst = fmax(worst, fabs((double)x[i] / sqrt(square / Q_RANK + 1e-6) * (double)q_norm[i] -
                                 (double)got[i]));
    return worst;
}

static void check(bool interleaved)
{
    const struct k_latent l = {.shape = {HEADS, Q_RANK, RANK, NOPE, ROPE, VALUE},
                               .q_norm = q_norm,
                               .norm = norm,
                               .up = up,
                               .turns = turns,
                               .interleaved = interleaved,
                               .eps = 1e-6f};
    double worst = 0.0, norm_worst = 0.0;

    prepare();
    for (int done = 0, n; done < TOKENS; done += n) {
        n = done % 3 == 0 ? 7 : 1;
        if (n > TOKENS - done)
            n = TOKENS - done;
        run(&l, done, n);
    }
    for (int pos = 0; pos < TOKENS; pos++) {
        norm_worst = fmax(norm_worst, norm_error_of(pos));
        for (int head = 0; head < HEADS; head++)
            worst = fmax(worst, error_of(pos, head, interleaved));
    }
    ok(worst < 3e-6, "pairs %s: within %.1e of keys and values of each head",
       interleaved ? "side by side" : "apart", worst);
    ok(norm_worst < 1e-6, "latents of queries within %.1e of their norm", norm_worst);
}

/* Tokens of a padding sequence write nothing to pages. Without latents of queries their rows begin
 * with the queries themselves. */
static void check_padding(void)
{
    const struct k_latent l = {
        .shape = {HEADS, 0, RANK, NOPE, ROPE, VALUE}, .norm = norm, .turns = turns, .eps = 1e-6f};
    int32_t len[2] = {0, 0};
    struct k_tokens t = {.seq = seqs, .pos = positions, .kv_len = len, .n_tokens = 1};
    static float before[N_PAGES * ELEMS];

    ok(k_latent_in(&l.shape) == HEADS * QUERY + ROW &&
           k_latent_stride(&l.shape) == k_latent_in(&l.shape),
       "queries and latents share rows");

    memcpy(before, pages, sizeof pages);
    ref_latent_keys(NULL, in, &l, &kv, &t, 0, 1);
    ok(memcmp(before, pages, sizeof pages) == 0, "a padding sequence writes nothing");
}

int main(void)
{
    unsigned seed = tap_seed(1);

    srand(seed);
    check(true);
    check(false);
    check_padding();
    return tap_done();
}
