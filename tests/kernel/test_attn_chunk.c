/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of chunks against its reference: head sizes, groups, pages, windows, prefixes and
 * lengths around the limits of tiles and blocks; a table and random cases.
 *
 * All that belongs to no sequence is NaN: the rest of a last page, free pages, the other layer,
 * pages in front of a window; page ids behind a sequence's last page and in front of a window are
 * nonsense. Twice the same bits, and a sequence by itself has the bits that it has in a crowd. Of
 * long cases a sample of tokens is compared. */
#include "tests/kernel/gpu.h"

#define SEQS_MAX     8
#define RANDOM_CASES 60

struct chunk_case {
    int n_heads, n_kv_heads, head_dim, page_tokens, window;
    int n_seqs;
    int kv_len[SEQS_MAX], n_new[SEQS_MAX];
    enum k_type type;
};

static const struct chunk_case cases[] = {
    {1, 1, 128, 16, 0, 1, {2}, {2}, K_BF16},
    {1, 1, 128, 16, 0, 1, {128}, {128}, K_BF16},
    {2, 1, 128, 16, 0, 1, {257}, {257}, K_BF16},
    {4, 1, 128, 16, 0, 3, {31, 160, 545}, {31, 33, 32}, K_BF16},
    {8, 2, 128, 16, 0, 2, {700, 640}, {700, 2}, K_BF16},
    {5, 1, 128, 16, 0, 2, {300, 129}, {77, 129}, K_BF16},
    {7, 1, 128, 64, 0, 2, {200, 1030}, {150, 19}, K_BF16},
    {16, 2, 128, 8, 0, 3, {17, 16, 1111}, {17, 16, 3}, K_BF16},
    {3, 3, 128, 64, 0, 2, {513, 384}, {511, 128}, K_BF16},
    {4, 2, 128, 128, 0, 2, {400, 129}, {140, 129}, K_BF16},
    {4, 2, 128, 256, 0, 2, {400, 700}, {140, 20}, K_BF16},
    {8, 2, 64, 16, 0, 3, {64, 129, 700}, {64, 128, 258}, K_BF16},
    {4, 1, 64, 64, 0, 2, {1023, 65}, {40, 65}, K_BF16},
    {8, 1, 64, 32, 0, 1, {333}, {333}, K_BF16},
    {10, 2, 80, 16, 0, 2, {170, 290}, {170, 10}, K_BF16},
    {4, 4, 80, 8, 0, 1, {300}, {300}, K_BF16},
    {6, 2, 96, 16, 0, 3, {100, 333, 2}, {37, 333, 2}, K_BF16},
    {4, 1, 96, 64, 0, 1, {260}, {129}, K_BF16},
    {2, 1, 256, 16, 0, 3, {130, 700, 3}, {130, 70, 3}, K_BF16},
    {4, 1, 256, 64, 0, 2, {66, 513}, {66, 64}, K_BF16},
    {2, 2, 256, 128, 0, 1, {300}, {290}, K_BF16},
    {4, 2, 128, 5, 0, 2, {66, 300}, {66, 129}, K_BF16},
    {4, 2, 72, 16, 0, 2, {66, 300}, {66, 129}, K_BF16},
    {2, 1, 12, 16, 0, 2, {166, 300}, {66, 300}, K_BF16},
    {4, 1, 128, 16, 100, 2, {700, 60}, {350, 60}, K_BF16},
    {4, 2, 128, 16, 128, 2, {900, 130}, {200, 130}, K_BF16},
    {2, 2, 128, 64, 1, 2, {300, 129}, {300, 2}, K_BF16},
    {4, 1, 64, 16, 200, 1, {1000}, {600}, K_BF16},
    {2, 1, 256, 16, 70, 1, {500}, {300}, K_BF16},
    {4, 2, 40, 16, 50, 1, {300}, {200}, K_BF16},
    {32, 8, 128, 16, 0, 6, {9, 200, 3, 128, 1153, 64}, {9, 200, 2, 128, 40, 64}, K_BF16},
    {8, 2, 128, 16, 0, 3, {300, 130, 900}, {300, 2, 200}, K_E4M3},
    {4, 1, 128, 64, 150, 2, {300, 700}, {300, 64}, K_E4M3},
    {8, 2, 64, 16, 0, 2, {300, 513}, {300, 40}, K_E4M3},
    {4, 1, 80, 8, 0, 2, {200, 300}, {200, 40}, K_E4M3},
    {4, 2, 96, 32, 0, 1, {300}, {140}, K_E4M3},
    {4, 2, 256, 16, 0, 2, {300, 100}, {140, 100}, K_E4M3},
    {1, 1, 128, 16, 0, 1, {2}, {2}, K_E4M3},
    {32, 8, 128, 16, 0, 6, {9, 200, 3, 128, 1153, 64}, {9, 200, 2, 128, 40, 64}, K_E4M3},
    {16, 2, 128, 8, 0, 3, {17, 16, 1111}, {17, 16, 3}, K_E4M3},
    {5, 1, 128, 16, 100, 3, {700, 60, 129}, {350, 60, 2}, K_E4M3},
    {2, 2, 128, 64, 1, 2, {300, 129}, {300, 2}, K_E4M3},
    {3, 1, 128, 256, 0, 2, {400, 700}, {140, 20}, K_E4M3},
    {7, 1, 128, 16, 0, 1, {4100}, {300}, K_E4M3},
    {4, 2, 128, 5, 0, 2, {300, 100}, {140, 100}, K_E4M3},
    {4, 2, 50, 16, 0, 2, {300, 100}, {140, 100}, K_E4M3},
    {8, 1, 512, 16, 0, 3, {300, 129, 3}, {140, 129, 3}, K_BF16},
    {4, 2, 512, 64, 70, 2, {500, 33}, {150, 33}, K_BF16},
    {5, 1, 510, 12, 0, 2, {200, 31}, {40, 31}, K_BF16},
    {8, 2, 512, 16, 0, 2, {300, 65}, {70, 65}, K_E4M3},
    {2, 1, 320, 16, 40, 1, {300}, {140}, K_E4M3},
};

/* Everything of one case, on host and device. */
struct chunk_run {
    const struct chunk_case *c;
    struct k_tokens host, dev;
    struct k_kv host_kv, dev_kv;
    struct k_attn_plan plan;
    int32_t *seq, *pos, *page_ids, seq_start[SEQS_MAX + 1], tile_seqs[4096], tile_starts[4096];
    int n_tokens, n_pages;
    float *qkv, *pages, *want, scale;
    uint8_t *bytes; /* the pages as e4m3 */
    size_t qkv_size, page_size, out_size, row;
    k_bf16 *dev_qkv;
};

static int pages_of(const struct chunk_case *c, int s)
{
    return (c->kv_len[s] + c->page_tokens - 1) / c->page_tokens;
}

/* The first page that a token of the step sees. */
static int first_page(const struct chunk_case *c, int s)
{
    int first = c->kv_len[s] - c->n_new[s];

    return c->window > 0 && first >= c->window ? (first - c->window + 1) / c->page_tokens : 0;
}

/* Tokens, and pages in random order; one page in eight belongs to no sequence. */
static void place(struct chunk_run *r)
{
    const struct chunk_case *c = r->c;
    int pages_max = 2, used = 0, t = 0;
    int *order;

    for (int s = 0; s < c->n_seqs; s++) {
        pages_max = pages_of(c, s) + 2 > pages_max ? pages_of(c, s) + 2 : pages_max;
        used += pages_of(c, s);
        r->seq_start[s] = r->n_tokens;
        r->n_tokens += c->n_new[s];
    }
    r->seq_start[c->n_seqs] = r->n_tokens;
    r->n_pages = used + used / 8 + 1;
    order = malloc((size_t)r->n_pages * sizeof *order);
    for (int i = 0; i < r->n_pages; i++) {
        int j = (int)((gpu_uniform() + 1.0f) * 0.5f * (float)(i + 1)) % (i + 1);

        order[i] = order[j];
        order[j] = i;
    }
    r->seq = calloc((size_t)r->n_tokens, 4);
    r->pos = calloc((size_t)r->n_tokens, 4);
    r->page_ids = malloc((size_t)(pages_max * c->n_seqs) * 4);
    memset(r->page_ids, 0x3f, (size_t)(pages_max * c->n_seqs) * 4);
    for (int s = 0, page = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < c->n_new[s]; i++, t++) {
            r->seq[t] = s;
            r->pos[t] = c->kv_len[s] - c->n_new[s] + i;
        }
        for (int p = 0; p < pages_of(c, s); p++, page++) {
            if (p >= first_page(c, s))
                r->page_ids[s * pages_max + p] = order[page];
        }
    }
    free(order);
    r->host = (struct k_tokens){.seq = r->seq,
                                .pos = r->pos,
                                .seq_start = r->seq_start,
                                .kv_len = c->kv_len,
                                .page_ids = r->page_ids,
                                .n_tokens = r->n_tokens,
                                .n_seqs = c->n_seqs,
                                .pages_max = pages_max};
}

/* 448 and -448 are the largest e4m3; 0x7f is NaN. */
static float e4m3_value(uint8_t b)
{
    float value = (b & 0x78) == 0 ? ldexpf((float)(b & 7), -9)
                                  : ldexpf((float)(8 + (b & 7)), (b >> 3 & 15) - 10);

    return b & 0x80 ? -value : value;
}

/* A number for element i of the pages, in both forms; kind: 0 a key, 1 a value. */
static void put(struct chunk_run *r, size_t i, int kind)
{
    if (r->c->type == K_BF16) {
        r->pages[i] = gpu_widen(gpu_round(gpu_uniform() * 3.0f));
        return;
    }
    r->bytes[i] = (uint8_t)((int)((gpu_uniform() + 1.0f) * 36.0f) + (gpu_uniform() < 0 ? 128 : 0));
    r->pages[i] = e4m3_value(r->bytes[i]) * (kind == 0 ? r->host_kv.k_scale : r->host_kv.v_scale);
}

/* Two layers, of which the second is used; random where a key stands, NaN elsewhere. */
static void fill(struct chunk_run *r)
{
    const struct chunk_case *c = r->c;
    size_t layer = (size_t)(2 * c->n_kv_heads * c->page_tokens * c->head_dim);
    size_t hd = (size_t)c->head_dim, bt = (size_t)c->page_tokens;

    r->host_kv = (struct k_kv){.layer_elems = layer,
                               .page_elems = 2 * layer,
                               .n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .page_tokens = c->page_tokens,
                               .window = c->window,
                               .type = c->type,
                               .k_scale = 0.75f,
                               .v_scale = 1.3f};
    if (c->n_heads % 4 == 0)
        r->host_kv.sinks = gpu_random((size_t)c->n_heads, 4.0f);
    r->page_size = 2 * layer * (size_t)r->n_pages;
    r->pages = malloc(r->page_size * 4);
    for (size_t i = 0; i < r->page_size; i++)
        r->pages[i] = NAN;
    r->bytes = malloc(r->page_size);
    memset(r->bytes, 0x7f, r->page_size);
    for (int s = 0; s < c->n_seqs; s++) {
        for (int pos = first_page(c, s) * c->page_tokens; pos < c->kv_len[s]; pos++) {
            size_t page = (size_t)r->page_ids[s * r->host.pages_max + pos / c->page_tokens];
            size_t at = page * 2 * layer + layer + (size_t)pos % bt * hd;

            for (int h = 0; h < 2 * c->n_kv_heads; h++, at += bt * hd)
                for (size_t d = 0; d < hd; d++)
                    put(r, at + d, h >= c->n_kv_heads);
        }
    }
    r->host_kv.pages = r->pages;
    r->row = (size_t)(c->n_heads * c->head_dim);
    r->qkv_size = (size_t)r->n_tokens * (size_t)((c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
    r->out_size = (size_t)r->n_tokens * r->row;
    r->qkv = gpu_random(r->qkv_size, 3.0f);
    r->scale = 1.0f / sqrtf((float)c->head_dim);
}

static void upload(struct chunk_run *r)
{
    const struct chunk_case *c = r->c;
    size_t tokens = (size_t)r->n_tokens, seqs = (size_t)c->n_seqs;
    int32_t zero = 0;

    r->dev = r->host;
    r->dev.seq = gpu_array(r->seq, tokens * 4);
    r->dev.pos = gpu_array(r->pos, tokens * 4);
    r->dev.seq_start = gpu_array(r->seq_start, (seqs + 1) * 4);
    r->dev.kv_len = gpu_array(c->kv_len, seqs * 4);
    r->dev.page_ids = gpu_array(r->page_ids, seqs * (size_t)r->host.pages_max * 4);
    r->dev_kv = r->host_kv;
    if (r->host_kv.sinks != NULL)
        r->dev_kv.sinks = gpu_array(r->host_kv.sinks, (size_t)c->n_heads * sizeof(float));
    r->dev_kv.pages = c->type == K_BF16 ? (void *)gpu_bf16(r->pages, r->page_size)
                                        : gpu_array(r->bytes, r->page_size);
    r->dev_qkv = gpu_bf16(r->qkv, r->qkv_size);
    k_attn_tiles(r->tile_seqs, r->tile_starts, &r->plan, &r->host, c->n_heads / c->n_kv_heads);
    r->plan.tile_seqs = gpu_array(r->tile_seqs, (size_t)r->plan.n_tiles * 4);
    r->plan.tile_starts = gpu_array(r->tile_starts, (size_t)r->plan.n_tiles * 4);
    r->plan.drawn = gpu_array(&zero, sizeof zero);
}

static float *run(struct chunk_run *r, const struct k_attn_plan *plan)
{
    k_bf16 *out = gpu_array(NULL, r->out_size * 2);
    int32_t drawn;

    gpu_must(k_attn(out, r->dev_qkv, &r->dev_kv, &r->dev, plan, r->c->n_heads, r->scale,
                    device_cuda_stream(gpu)));
    gpu_must(!gpu_get(&drawn, plan->drawn, sizeof drawn));
    if (drawn != 0)
        is_int(drawn, 0, "the counter is back at 0");
    return gpu_floats(out, r->out_size);
}

/* Of n tokens, whether one is compared: all of a few, else the ends of tiles and some. */
static bool is_compared(const struct chunk_run *r, int i)
{
    return r->n_tokens < 80 || i < 3 || i > r->n_tokens - 3 || i % 64 < 2 || i % 17 == 0;
}

static void check_want(struct chunk_run *r, const float *got, const char *name)
{
    const struct chunk_case *c = r->c;
    float *scratch = malloc(4096 * 4), *want = malloc(r->out_size * 4);
    float *out = calloc(r->out_size, 4);
    bool rounds = k_attn_rounds(&r->dev_kv, c->n_heads) != 0;
    void (*ref)(float *, const float *, const struct k_kv *, const struct k_tokens *, int, float,
                int, int, float *) = rounds ? ref_attn_e4m3 : ref_attn;
    size_t n = 0;

    for (int t = 0; t < r->n_tokens; t++) {
        if (!is_compared(r, t))
            continue;
        for (int h = 0; h < c->n_kv_heads; h++)
            ref(out, r->qkv, &r->host_kv, &r->host, c->n_heads, r->scale, t, h, scratch);
        memcpy(want + n, out + (size_t)t * r->row, r->row * 4);
        memcpy(out + n, got + (size_t)t * r->row, r->row * 4);
        n += r->row;
    }
    /* Another order of sums rounds a weight to a neighbour now and then. */
    gpu_compare(out, want, n, rounds ? 1e-4 : 2e-5, rounds ? 3e-2 : 8e-3, name);
    free(scratch), free(want), free(out);
}

/* A sequence by itself, in its own launch. */
static void check_alone(struct chunk_run *r, const float *got, const char *name)
{
    int n_seqs = r->c->n_seqs;

    for (int s = 0; s < n_seqs && n_seqs > 1; s++) {
        struct k_attn_plan alone = r->plan;
        int32_t seqs[4096], starts[4096];
        size_t at = (size_t)r->seq_start[s] * r->row, n = (size_t)r->c->n_new[s] * r->row;
        float *second;

        alone.n_tiles = 0;
        for (int i = 0; i < r->plan.n_tiles; i++) {
            if (r->tile_seqs[i] != s)
                continue;
            seqs[alone.n_tiles] = s;
            starts[alone.n_tiles++] = r->tile_starts[i];
        }
        alone.tile_keys = r->c->kv_len[s];
        alone.tile_seqs = gpu_array(seqs, (size_t)alone.n_tiles * 4);
        alone.tile_starts = gpu_array(starts, (size_t)alone.n_tiles * 4);
        second = run(r, &alone);
        ok(memcmp(got + at, second + at, n * 4) == 0, "%s: sequence %d alone", name, s);
        free(second);
    }
}

static void check_case(const struct chunk_case *c)
{
    struct chunk_run *r = calloc(1, sizeof *r);
    char name[160];
    float *got, *second;

    r->c = c;
    snprintf(name, sizeof name, "%d/%d x %d %s, pages of %d, window %d, %d seqs, first %d of %d",
             c->n_heads, c->n_kv_heads, c->head_dim, c->type == K_BF16 ? "bf16" : "e4m3",
             c->page_tokens, c->window, c->n_seqs, c->n_new[0], c->kv_len[0]);
    place(r);
    fill(r);
    upload(r);
    got = run(r, &r->plan);
    second = run(r, &r->plan);
    check_want(r, got, name);
    ok(memcmp(got, second, r->out_size * 4) == 0, "%s: twice the same bits", name);
    check_alone(r, got, name);
    free((void *)(uintptr_t)r->host_kv.sinks);
    free(got), free(second), free(r->qkv), free(r->pages), free(r->bytes);
    free(r->seq), free(r->pos), free(r->page_ids), free(r);
}

static int pick(int n)
{
    return (int)((gpu_uniform() + 1.0f) * 0.5f * (float)n) % n;
}

/* Lengths stay small: the reference is what takes time. */
static void check_random(void)
{
    static const int head_dims[] = {64, 80, 96, 128, 128, 256, 56}, groups[] = {1, 2, 4, 5, 7, 8};
    static const int blocks[] = {8, 16, 16, 16, 64, 12, 32};
    struct chunk_case c = {.n_kv_heads = 1 + pick(2), .n_seqs = 1 + pick(4)};

    c.head_dim = head_dims[pick(7)];
    c.page_tokens = blocks[pick(7)];
    c.n_heads = groups[pick(6)] * c.n_kv_heads;
    c.window = pick(4) == 0 ? 1 + pick(300) : 0;
    c.type = pick(4) == 0 ? K_E4M3 : K_BF16;
    for (int s = 0; s < c.n_seqs; s++) {
        c.n_new[s] = 2 + pick(pick(2) == 0 ? 20 : 300);
        c.kv_len[s] = c.n_new[s] + (pick(2) == 0 ? 0 : pick(500));
    }
    if (gpu_has_turn())
        check_case(&c);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (gpu_has_turn())
            check_case(&cases[i]);
    }
    for (int i = 0; i < RANDOM_CASES; i++)
        check_random();
    device_close(gpu);
    return tap_done();
}
