/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention against its references: rows in the pages, absorbed queries, attention whose
 * values begin its keys, and values; sizes of released models and odd ones, pairs of both kinds,
 * padding sequences, decodes and chunks. Results are rounded to bfloat16 once by each operation. */
#include "kernels/e4m3.h"
#include "kernels/latent.h"
#include "tests/kernel/gpu.h"

#define E4M3_SCALE 0.5f
#define SEQS       5
#define TOKENS     150
#define COLUMNS    70 /* of a row of the table */
#define PAGES      (SEQS * COLUMNS + 1)
#define PAGE       16
#define BEFORE     16 /* elements before the layer's in a page */

static const struct {
    struct k_latent_shape shape; /* of a rank */
    bool interleaved;
} shapes[] = {{{16, 0, 512, 128, 64, 128}, true},    {{128, 1536, 512, 128, 64, 128}, true},
              {{20, 768, 512, 192, 64, 256}, false}, {{32, 1024, 256, 64, 64, 128}, true},
              {{3, 0, 20, 9, 8, 5}, true},           {{5, 7, 26, 15, 6, 21}, false},
              {{1, 0, 512, 512, 2, 512}, true}};

/* A padding sequence, one that begins, decodes, chunks; up to 16 tokens, up to 64, and more. */
static const struct {
    int32_t starts[SEQS + 1], lens[SEQS];
} steps[] = {{{0, 1, 8, 9, 10, 43}, {0, 7, 1, 90, 60}},
             {{0, 1, 2, 3, 4, 5}, {0, 1, 2, 33, 900}},
             {{0, 1, 2, 3, 4, 4}, {0, 1, 33, 1100, 5}},
             {{0, 70, 72, 135, 148, 150}, {70, 3, 64, 1000, 2}}};
#define STEPS (sizeof steps / sizeof steps[0])

/* Host and device copies of one case. */
struct latent_case {
    int n_tokens, row;
    struct k_latent host, dev;
    struct k_kv kv, dkv;
    struct k_tokens t, dt;
    struct k_attn_plan plan;
    float *pages;
    size_t n_pages;
    int32_t table[SEQS * COLUMNS], seq[TOKENS], pos[TOKENS];
    int32_t tile_seqs[TOKENS], tile_starts[TOKENS], decode_seqs[TOKENS];
};

static float unwritten(void)
{
    return gpu_widen(0xabab);
}

static void make_weights(struct latent_case *c, int i)
{
    const struct k_latent_shape *s = &shapes[i].shape;
    size_t n_up = (size_t)s->n_heads * (size_t)(s->nope_dim + s->v_dim) * (size_t)s->kv_rank;
    size_t n_turns = 1152 * (size_t)s->rope_dim;
    size_t q_rank = s->q_rank > 0 ? (size_t)s->q_rank : 1;
    float *norm = gpu_random((size_t)s->kv_rank, 1.0f), *turns = malloc(n_turns * sizeof *turns);
    float *q_norm = gpu_random(q_rank, 1.0f);
    float *up = gpu_random(n_up, 2.0f / sqrtf((float)s->kv_rank));

    for (size_t k = 0; k < n_turns; k += 2) {
        float angle = (float)(k / (size_t)s->rope_dim) *
                      powf(10.0f, -(float)(k % (size_t)s->rope_dim) / 16.0f);

        turns[k] = cosf(angle);
        turns[k + 1] = sinf(angle);
    }
    c->host = (struct k_latent){.shape = *s,
                                .q_norm = q_norm,
                                .norm = norm,
                                .up = up,
                                .turns = turns,
                                .interleaved = shapes[i].interleaved,
                                .eps = 1e-6f};
    c->dev = c->host;
    c->dev.q_norm = gpu_bf16(q_norm, q_rank);
    c->dev.norm = gpu_bf16(norm, (size_t)s->kv_rank);
    c->dev.up = gpu_bf16(up, n_up);
    c->dev.turns = gpu_array(turns, n_turns * sizeof *turns);
    c->row = k_latent_row(s);
}

/* Numbers as bytes of e4m3; they become what the bytes say. */
static k_e4m3 *round_to_bytes(float *f, size_t n)
{
    k_e4m3 *bytes = malloc(n);

    for (size_t i = 0; i < n; i++) {
        bytes[i] = k_e4m3_round(f[i] / E4M3_SCALE);
        f[i] = k_e4m3_value(bytes[i]) * E4M3_SCALE;
    }
    return bytes;
}

/* Pages with rows of earlier tokens. */
static void make_pages(struct latent_case *c, enum k_type type)
{
    k_e4m3 *bytes;

    size_t elems = BEFORE + (size_t)PAGE * (size_t)c->row;

    c->n_pages = PAGES * elems;
    c->pages = gpu_random(c->n_pages, 1.0f);
    c->kv = (struct k_kv){.pages = c->pages,
                          .page_elems = elems,
                          .layer_elems = BEFORE,
                          .n_kv_heads = 1,
                          .head_dim = c->row,
                          .value_dim = c->host.shape.kv_rank,
                          .page_tokens = PAGE,
                          .type = K_BF16,
                          .k_scale = 1.0f,
                          .v_scale = 1.0f,
                          .is_shared = true};
    c->dkv = c->kv;
    if (type == K_BF16) {
        c->dkv.pages = gpu_bf16(c->pages, c->n_pages);
        return;
    }
    bytes = round_to_bytes(c->pages, c->n_pages);
    c->dkv.pages = gpu_array(bytes, c->n_pages);
    c->dkv.type = type;
    c->dkv.k_scale = c->dkv.v_scale = E4M3_SCALE;
    free(bytes);
}

/* The device's pages as numbers. */
static float *pages_of(const struct latent_case *c)
{
    k_e4m3 *bytes;
    float *f;

    if (c->dkv.type == K_BF16)
        return gpu_floats(c->dkv.pages, c->n_pages);
    bytes = malloc(c->n_pages);
    f = malloc(c->n_pages * sizeof *f);
    ok(gpu_get(bytes, c->dkv.pages, c->n_pages), "guard bands are whole");
    for (size_t i = 0; i < c->n_pages; i++)
        f[i] = k_e4m3_value(bytes[i]) * E4M3_SCALE;
    free(bytes);
    return f;
}

static void make_tokens(struct latent_case *c, int step)
{
    const int32_t *starts = steps[step].starts, *lens = steps[step].lens;

    c->n_tokens = starts[SEQS];
    for (int s = 0; s < SEQS; s++) {
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            c->seq[i] = s;
            c->pos[i] = lens[s] == 0 ? 0 : lens[s] - starts[s + 1] + i;
        }
    }
    for (int k = 0; k < SEQS * COLUMNS; k++)
        c->table[k] = (int32_t)(k * 7 % PAGES);
    c->t = (struct k_tokens){.seq = c->seq,
                             .pos = c->pos,
                             .seq_start = starts,
                             .kv_len = lens,
                             .page_ids = c->table,
                             .n_tokens = starts[SEQS],
                             .n_seqs = SEQS,
                             .pages_max = COLUMNS};
    c->dt = c->t;
    c->dt.seq = gpu_array(c->seq, sizeof c->seq);
    c->dt.pos = gpu_array(c->pos, sizeof c->pos);
    c->dt.seq_start = gpu_array(starts, sizeof steps[step].starts);
    c->dt.kv_len = gpu_array(lens, sizeof steps[step].lens);
    c->dt.page_ids = gpu_array(c->table, sizeof c->table);
}

static void make_plan(struct latent_case *c)
{
    k_attn_tiles(c->tile_seqs, c->tile_starts, &c->plan, &c->t, c->host.shape.n_heads);
    for (int s = 0; s < SEQS; s++) {
        if (c->t.seq_start[s + 1] - c->t.seq_start[s] == 1)
            c->decode_seqs[c->plan.n_decodes++] = s;
    }
    c->plan.tile_seqs = gpu_array(c->tile_seqs, sizeof c->tile_seqs);
    c->plan.tile_starts = gpu_array(c->tile_starts, sizeof c->tile_starts);
    c->plan.decode_seqs = gpu_array(c->decode_seqs, sizeof c->decode_seqs);
    c->plan.schedule = gpu_array(NULL, k_attn_schedule_bytes(c->plan.n_decodes));
    c->plan.work = gpu_array(NULL, k_attn_work_bytes(c->row, c->host.shape.n_heads, 1));
}

/* The normed latents of queries, of float16 where rows allow it. */
static void compare_normed(const struct latent_case *c, const void *q, bool is_half,
                           const float *want)
{
    size_t n = (size_t)c->n_tokens * (size_t)c->host.shape.q_rank;
    float *got;

    if (n == 0)
        return;
    got = is_half ? gpu_half_floats(q, n) : gpu_floats(q, n);
    gpu_compare(got, want, n, 5e-6, 4.1e-3, "normed latents of queries");
    free(got);
}

static void check_keys(struct latent_case *c)
{
    size_t n = (size_t)c->n_tokens * (size_t)k_latent_in(&c->host.shape);
    size_t n_q = (size_t)c->n_tokens * (size_t)c->host.shape.q_rank + 1;
    float *in = gpu_random(n, 2.0f), *want = malloc(n_q * sizeof *want), *got;
    bool is_half = c->host.shape.q_rank % 16 == 0 && c->dkv.type == K_E4M3;
    void *q = gpu_array(NULL, n_q * 2);

    gpu_must(k_latent_keys(q, is_half, gpu_bf16(in, n), &c->dev, &c->dkv, &c->dt,
                           device_cuda_stream(gpu)));
    ref_latent_keys(want, in, &c->host, &c->kv, &c->t, 0, c->n_tokens);
    compare_normed(c, q, is_half, want);
    free(want);
    got = pages_of(c);
    if (c->dkv.type == K_E4M3) /* few are rounded to a neighbour */
        free(round_to_bytes(c->pages, c->n_pages));
    gpu_compare(got, c->pages, c->n_pages, 5e-6, c->dkv.type == K_BF16 ? 4.1e-3 : 0.13,
                "rows in the pages");
    memcpy(c->pages, got, c->n_pages * sizeof *got); /* attention reads what is there */
    free(in), free(got);
}

/* Absorbed queries, which attention then reads as the kernel has rounded them. */
static k_bf16 *check_queries(struct latent_case *c, float **queries)
{
    const struct k_latent_shape *s = &c->host.shape;
    size_t n = (size_t)c->n_tokens * (size_t)k_latent_stride(s);
    size_t n_out = (size_t)c->n_tokens * (size_t)(s->n_heads * c->row);
    float *in = gpu_random(n, 1.0f), *want = malloc(n_out * sizeof *want);
    k_bf16 *out = gpu_array(NULL, n_out * 2);

    gpu_must(k_latent_queries(out, gpu_bf16(in, n), &c->dev, &c->dt, device_cuda_stream(gpu)));
    for (int token = 0; token < c->n_tokens; token++) {
        for (int head = 0; head < s->n_heads; head++)
            ref_latent_queries(want, in, &c->host, &c->t, token, head);
    }
    *queries = gpu_floats(out, n_out);
    gpu_compare(*queries, want, n_out, 5e-6, 4.1e-3, "absorbed queries");
    free(in), free(want);
    return out;
}

static void check_attention(struct latent_case *c, const k_bf16 *queries, const float *host_queries)
{
    const struct k_latent_shape *s = &c->host.shape;
    size_t n = (size_t)c->n_tokens * (size_t)(s->n_heads * s->kv_rank);
    float *want = malloc(n * sizeof *want), *got, scratch[1200];
    float scale = 1.0f / sqrtf((float)k_latent_query(s));
    k_bf16 *out = gpu_array(NULL, n * 2);

    for (size_t k = 0; k < n; k++)
        want[k] = unwritten();
    gpu_must(k_attn_schedule(&c->plan, &c->dkv, &c->dt, s->n_heads, device_cuda_stream(gpu)));
    gpu_must(k_attn(out, queries, &c->dkv, &c->dt, &c->plan, s->n_heads, scale,
                    device_cuda_stream(gpu)));
    for (int token = 0; token < c->n_tokens; token++) {
        if (c->t.kv_len[c->seq[token]] > 0)
            ref_attn(want, host_queries, &c->kv, &c->t, s->n_heads, scale, token, 0, scratch);
    }
    got = gpu_floats(out, n);
    gpu_compare(got, want, n, 3e-5, 1e-2, "attention");
    free(want), free(got);
}

static void check_values(struct latent_case *c)
{
    const struct k_latent_shape *s = &c->host.shape;
    size_t n = (size_t)c->n_tokens * (size_t)(s->n_heads * s->kv_rank);
    size_t n_out = (size_t)c->n_tokens * (size_t)(s->n_heads * s->v_dim);
    float *in = gpu_random(n, 1.0f), *want = malloc(n_out * sizeof *want), *got;
    bool is_half = s->v_dim % 16 == 0 && c->dkv.type == K_E4M3;
    void *out = gpu_array(NULL, n_out * 2);

    gpu_must(
        k_latent_values(out, is_half, gpu_bf16(in, n), &c->dev, &c->dt, device_cuda_stream(gpu)));
    for (int token = 0; token < c->n_tokens; token++) {
        for (int head = 0; head < s->n_heads; head++)
            ref_latent_values(want, in, &c->host, token, head);
    }
    got = is_half ? gpu_half_floats(out, n_out) : gpu_floats(out, n_out);
    gpu_compare(got, want, n_out, 5e-6, 4.1e-3, "values");
    free(in), free(want), free(got);
}

/* Attention of a step of few decodes, and the values of its results. */
static void check_few(struct latent_case *c, const k_bf16 *queries, const float *host_queries)
{
    const struct k_latent_shape *s = &c->host.shape;
    size_t n = (size_t)c->n_tokens * (size_t)s->n_heads;
    size_t n_out = n * (size_t)s->v_dim;
    float *sums = calloc(n * (size_t)s->kv_rank, sizeof *sums), scratch[1200], *got;
    float *want = malloc(n_out * sizeof *want), scale = 1.0f / sqrtf((float)k_latent_query(s));
    k_bf16 *out = gpu_array(NULL, n_out * 2);

    gpu_must(k_latent_attend(queries, &c->dkv, &c->dt, &c->plan, s->n_heads, scale, false,
                             device_cuda_stream(gpu)));
    gpu_must(
        k_latent_attended(out, false, &c->dev, &c->dt, &c->plan, scale, device_cuda_stream(gpu)));
    for (int token = 0; token < c->n_tokens; token++) {
        if (c->t.kv_len[c->seq[token]] > 0)
            ref_attn(sums, host_queries, &c->kv, &c->t, s->n_heads, scale, token, 0, scratch);
        for (int head = 0; head < s->n_heads; head++)
            ref_latent_values(want, sums, &c->host, token, head);
    }
    got = gpu_floats(out, n_out);
    gpu_compare(got, want, n_out, 3e-5, 1e-2, "values of few decodes");
    free(sums), free(want), free(got);
}

/* As many decodes as a step of these kernels has, of up to 64 keys, one of a padding sequence. */
static void check_most_few(int i, enum k_type type)
{
    static int32_t starts[TOKENS + 1], lens[TOKENS];
    struct latent_case *c = calloc(1, sizeof *c);
    const struct k_latent_shape *s = &shapes[i].shape;
    size_t width;
    float *queries;
    int n = 64;

    make_weights(c, i);
    make_pages(c, type);
    c->plan.work = gpu_array(NULL, k_attn_work_bytes(c->row, s->n_heads, 1));
    for (c->plan.n_decodes = n; n > 0; c->plan.n_decodes = --n) {
        if (k_latent_is_few(&c->plan, &c->dkv, s, n))
            break;
    }
    for (int k = 0; k < n; k++) {
        starts[k + 1] = k + 1;
        lens[k] = k == 1 ? 0 : k * 7 % 64 + 1;
        c->seq[k] = k;
        c->pos[k] = lens[k] > 0 ? lens[k] - 1 : 0;
        for (int page = 0; page < 4; page++)
            c->table[k * 4 + page] = (k * 4 + page) * 7 % PAGES;
    }
    c->n_tokens = n;
    c->t = (struct k_tokens){.seq = c->seq,
                             .pos = c->pos,
                             .seq_start = starts,
                             .kv_len = lens,
                             .page_ids = c->table,
                             .n_tokens = n,
                             .n_seqs = n,
                             .pages_max = 4};
    c->dt = c->t;
    c->dt.seq = gpu_array(c->seq, sizeof c->seq);
    c->dt.pos = gpu_array(c->pos, sizeof c->pos);
    c->dt.seq_start = gpu_array(starts, sizeof starts);
    c->dt.kv_len = gpu_array(lens, sizeof lens);
    c->dt.page_ids = gpu_array(c->table, sizeof c->table);
    width = (size_t)n * (size_t)(s->n_heads * c->row);
    queries = gpu_random(width + 1, 1.0f);
    printf("# %d decodes of %d heads\n", n, s->n_heads);
    if (n > 0)
        check_few(c, gpu_bf16(queries, width), queries);
    free(queries), free(c->pages), free(c);
}

/* Are the first n_bytes of two arrays of `bytes` on the device the same? */
static bool are_same(const void *a, const void *b, size_t n_bytes, size_t bytes)
{
    char *x = malloc(bytes), *y = malloc(bytes);
    bool same = gpu_get(x, a, bytes) && gpu_get(y, b, bytes) && memcmp(x, y, n_bytes) == 0;

    free(x), free(y);
    return same;
}

/* A token's absorbed queries and values are the same bits among few tokens and among many. */
static void check_bits(int i)
{
    static const int counts[] = {1, 16, 17, 64, TOKENS};
    struct latent_case *c = calloc(1, sizeof *c);
    const struct k_latent_shape *s = &shapes[i].shape;
    size_t n_in = TOKENS * (size_t)k_latent_stride(s),
           n_sums = TOKENS * (size_t)(s->n_heads * s->kv_rank);
    size_t row_bytes, v_bytes = (size_t)(s->n_heads * s->v_dim) * 2;
    float *in = gpu_random(n_in, 1.0f), *sums = gpu_random(n_sums, 1.0f);
    k_bf16 *dev_in, *dev_sums, *absorbed[2], *values[2];

    make_weights(c, i);
    make_tokens(c, STEPS - 1);
    row_bytes = (size_t)(s->n_heads * c->row) * 2;
    dev_in = gpu_bf16(in, n_in), dev_sums = gpu_bf16(sums, n_sums);
    for (int k = 0; k < 2; k++) {
        absorbed[k] = gpu_array(NULL, TOKENS * row_bytes);
        values[k] = gpu_array(NULL, TOKENS * v_bytes);
    }
    for (size_t k = sizeof counts / sizeof counts[0]; k-- > 0;) {
        size_t n = (size_t)counts[k];
        int to = counts[k] < TOKENS;

        c->dt.n_tokens = counts[k];
        gpu_must(k_latent_queries(absorbed[to], dev_in, &c->dev, &c->dt, device_cuda_stream(gpu)));
        gpu_must(
            k_latent_values(values[to], false, dev_sums, &c->dev, &c->dt, device_cuda_stream(gpu)));
        if (to == 1)
            ok(are_same(absorbed[0], absorbed[1], n * row_bytes, TOKENS * row_bytes) &&
                   are_same(values[0], values[1], n * v_bytes, TOKENS * v_bytes),
               "%d heads: %d tokens have the bits of %d", s->n_heads, counts[k], TOKENS);
    }
    free(in), free(sums), free(c);
}

/* q_b in a format: numbers that it has exactly, on both sides. */
static struct k_matrix make_q_b(const struct k_latent_shape *s, struct k_format f, float **host)
{
    int rows = s->n_heads * k_latent_query(s), cols = s->q_rank;
    size_t n = (size_t)rows * (size_t)cols;
    int high = f.group_rows > 0 ? f.group_rows : 1, wide = f.group_cols > 0 ? f.group_cols : cols;
    int across = k_format_scale_cols(&f, cols);
    size_t n_scales = k_format_n_scales(&f, rows, cols);
    struct k_matrix m = {.format = f, .n_out = rows, .n_in = cols};
    float *w = *host = gpu_random(n, 2.0f / sqrtf((float)cols)), *scales;
    k_e4m3 *codes = malloc(n);

    if (k_format_is_plain(&f)) {
        m.data = gpu_bf16(w, n);
        free(codes);
        return m;
    }
    scales = gpu_random(n_scales, 0.01f);
    for (size_t k = 0; k < n; k++) {
        size_t at =
            k / (size_t)cols / (size_t)high * (size_t)across + k % (size_t)cols / (size_t)wide;

        codes[k] = k_e4m3_round(w[k] / 0.01f);
        w[k] = k_e4m3_value(codes[k]) * scales[at];
    }
    m.data = gpu_array(codes, n);
    m.scales = gpu_array(scales, n_scales * sizeof *scales);
    free(codes), free(scales);
    return m;
}

/* out [n][n_out] = w x of x, which becomes rounded to bfloat16; out is rounded likewise. */
static void multiply_rounded(float *out, const float *w, float *x, int n, int n_out, int n_in)
{
    for (int i = 0; i < n * n_in; i++)
        x[i] = gpu_widen(gpu_round(x[i]));
    for (int i = 0; i < n * n_out; i++) {
        const float *row = w + (size_t)(i % n_out) * (size_t)n_in;
        double sum = 0.0;

        for (int k = 0; k < n_in; k++)
            sum += (double)row[k] * (double)x[i / n_out * n_in + k];
        out[i] = gpu_widen(gpu_round((float)sum));
    }
}

/* All between the first product and attention in one launch. */
static void check_join(struct latent_case *c, struct k_format f, const char *name)
{
    const struct k_latent_shape *s = &c->host.shape;
    size_t n = (size_t)c->n_tokens, n_in = n * (size_t)k_latent_in(s);
    size_t n_out = n * (size_t)(s->n_heads * c->row);
    float *in = gpu_random(n_in, 2.0f), *want = malloc(n_out * sizeof *want), *w, *got;
    float *x = malloc(n * (size_t)s->q_rank * sizeof *x),
          *q = malloc(n * (size_t)k_latent_stride(s) * sizeof *q);
    k_bf16 *out = gpu_array(NULL, n_out * 2);
    struct k_matrix m = make_q_b(s, f, &w);

    gpu_must(k_latent_join(out, gpu_bf16(in, n_in), &c->dev, &m, &c->dkv, &c->dt,
                           device_cuda_stream(gpu)));
    ref_latent_keys(x, in, &c->host, &c->kv, &c->t, 0, c->n_tokens);
    multiply_rounded(q, w, x, c->n_tokens, m.n_out, m.n_in);
    for (int token = 0; token < c->n_tokens; token++) {
        for (int head = 0; head < s->n_heads; head++)
            ref_latent_queries(want, q, &c->host, &c->t, token, head);
    }
    got = gpu_floats(out, n_out);
    gpu_compare(got, want, n_out, 2e-5, 1e-2, name);
    free(got);
    got = pages_of(c);
    if (c->dkv.type == K_E4M3)
        free(round_to_bytes(c->pages, c->n_pages));
    gpu_compare(got, c->pages, c->n_pages, 5e-6, c->dkv.type == K_BF16 ? 4.1e-3 : 0.13,
                "rows in the pages");
    free(in), free(want), free(w), free(got), free(x), free(q);
}

static void check_joins(struct latent_case *c)
{
    static const char *const names[] = {"joined, bf16", "joined, e4m3 by row",
                                        "joined, e4m3 in blocks"};
    const struct k_format formats[] = {
        {.elem = K_BF16}, k_format_by_row(K_E4M3), k_format_in_groups(K_E4M3, 128, 128)};

    for (int i = 0; i < 3; i++) {
        const struct k_matrix m = {.format = formats[i],
                                   .n_out = c->host.shape.n_heads * k_latent_query(&c->host.shape),
                                   .n_in = c->host.shape.q_rank};

        if (k_latent_joins(&c->host.shape, &m, c->n_tokens))
            check_join(c, formats[i], names[i]);
    }
}

static void check(int i, int step, enum k_type type)
{
    struct latent_case *c = calloc(1, sizeof *c);
    float *host_queries;
    k_bf16 *queries;

    make_weights(c, i);
    make_pages(c, type);
    make_tokens(c, step);
    make_plan(c);
    printf("# %d heads of %d on latents of %d in %s\n", c->host.shape.n_heads,
           k_latent_query(&c->host.shape), c->row, type == K_BF16 ? "bf16" : "e4m3");
    check_keys(c);
    queries = check_queries(c, &host_queries);
    /* The portable kernels take no rows above 256. */
    if (c->row <= K_HEAD_DIM_PORTABLE || !k_is_portable())
        check_attention(c, queries, host_queries);
    check_values(c);
    if (k_latent_is_few(&c->plan, &c->dkv, &c->host.shape, c->n_tokens))
        check_few(c, queries, host_queries);
    check_joins(c);
    free(c->pages), free(host_queries), free(c);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (gpu_has_turn())
            check_bits((int)i);
    }
    for (int i = 0; i < 3; i++) {
        if (gpu_has_turn())
            check_most_few(i, i == 1 ? K_E4M3 : K_BF16);
    }
    for (size_t step = 0; step < STEPS; step++) {
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            if (gpu_has_turn())
                check((int)i, (int)step, K_BF16);
            if (gpu_has_turn())
                check((int)i, (int)step, K_E4M3);
        }
    }
    device_close(gpu);
    return tap_done();
}
