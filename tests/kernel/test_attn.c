/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms of heads, rotation, pages and attention against their references: every head size class,
 * groups, pages, chunks and decodes mixed, bf16 and fp8 pages, lengths around the limits of tiles,
 * pages, shares and windows. What stands in pages behind a sequence's end, and in front of a
 * window, is NaN; tables name pages of NaN where no key is in view. Steps that are all decodes
 * run twice: rotated by k_rope_kv(), and by attention itself, which must give the same bits; and
 * every decode alone, which must agree. Runs are decodes of one sequence, as those that verify
 * drafts.
 *
 * Weights of the softmax are rounded to bfloat16, so results may be off by 2^-8. */
#include "tests/kernel/gpu.h"

#define SEQS_MAX  40
#define TURNS_LEN 4096

struct attn_case {
    int n_heads, n_kv_heads, head_dim, page_tokens;
    enum k_type type;
    int n_seqs;
    int kv_len[SEQS_MAX], n_new[SEQS_MAX];
};

/* Chunks and decodes. */
static const struct attn_case mixed[] = {
    {8, 2, 8, 16, K_BF16, 3, {1, 15, 40}, {1, 15, 7}},
    {5, 1, 12, 4, K_BF16, 4, {1, 17, 65, 300}, {1, 17, 3, 1}},
    {6, 3, 16, 16, K_BF16, 3, {64, 128, 129}, {64, 65, 1}},
    {4, 4, 32, 32, K_BF16, 3, {63, 31, 257}, {63, 1, 1}},
    {8, 4, 64, 16, K_BF16, 5, {16, 17, 512, 513, 300}, {16, 1, 1, 1, 129}},
    {14, 2, 64, 16, K_BF16, 2, {70, 600}, {70, 1}},
    {10, 2, 80, 16, K_BF16, 2, {70, 90}, {70, 1}},
    {6, 2, 96, 16, K_BF16, 3, {100, 33, 33}, {37, 33, 1}},
    {32, 8, 128, 16, K_BF16, 6, {1, 2, 255, 256, 1153, 200}, {1, 2, 1, 1, 1, 200}},
    {16, 1, 128, 64, K_BF16, 2, {320, 257}, {64, 1}},
    {32, 2, 128, 1, K_BF16, 2, {33, 20}, {33, 1}},
    {4, 2, 200, 8, K_BF16, 2, {66, 67}, {66, 1}},
    {4, 2, 250, 8, K_BF16, 2, {66, 67}, {66, 1}},
    {2, 1, 256, 16, K_BF16, 3, {130, 700, 3}, {130, 1, 3}},
    {8, 1, 512, 16, K_BF16, 4, {70, 300, 3, 33}, {70, 1, 3, 20}},
    {8, 2, 512, 16, K_E4M3, 3, {70, 300, 40}, {70, 1, 7}},
    {5, 1, 510, 12, K_BF16, 3, {66, 67, 1}, {66, 1, 1}},
    {2, 1, 328, 16, K_E4M3, 2, {66, 67}, {66, 1}},
};

/* Steps of decodes. Lengths: one of 0 belongs to no sequence. A token of 64 heads is more than a
 * block of k_rope_kv() has threads for. */
static const int all_sorts[] = {1,   2,   7,   8,  9,  15,  16,  17,  0,   24,  31,  32,
                                33,  47,  48,  49, 63, 64,  65,  100, 127, 128, 129, 0,
                                255, 256, 257, 0,  1,  511, 513, 700, 1,   0};
static const int skewed[] = {3001, 5, 1, 130, 64, 0, 17, 16};
static const int equal[] = {272, 272, 272, 272, 272, 272, 272, 272, 272, 272};
static const int single[] = {1024};
static const int one_key[] = {1};
static const int no_keys[] = {0, 0};

#define LENGTHS(list) sizeof(list) / sizeof(list)[0], list
static const struct {
    int n_heads, n_kv_heads, head_dim, page_tokens;
    enum k_type type;
    size_t n_seqs;
    const int *kv_len;
} decodes[] = {
    {8, 8, 128, 16, K_BF16, LENGTHS(all_sorts)},  {8, 4, 64, 16, K_BF16, LENGTHS(all_sorts)},
    {6, 2, 80, 16, K_BF16, LENGTHS(all_sorts)},   {32, 8, 128, 16, K_BF16, LENGTHS(all_sorts)},
    {32, 8, 128, 16, K_BF16, LENGTHS(skewed)},    {32, 8, 128, 16, K_BF16, LENGTHS(equal)},
    {32, 8, 128, 16, K_BF16, LENGTHS(single)},    {32, 8, 128, 64, K_BF16, LENGTHS(single)},
    {32, 8, 128, 16, K_BF16, LENGTHS(one_key)},   {32, 8, 128, 16, K_BF16, LENGTHS(no_keys)},
    {32, 8, 128, 64, K_BF16, LENGTHS(all_sorts)}, {4, 1, 128, 32, K_BF16, LENGTHS(skewed)},
    {5, 1, 96, 16, K_BF16, LENGTHS(all_sorts)},   {14, 2, 64, 32, K_BF16, LENGTHS(skewed)},
    {16, 2, 128, 8, K_BF16, LENGTHS(all_sorts)},  {16, 1, 128, 16, K_BF16, LENGTHS(skewed)},
    {40, 2, 64, 16, K_BF16, LENGTHS(all_sorts)},  {8, 1, 256, 16, K_BF16, LENGTHS(all_sorts)},
    {16, 1, 256, 16, K_BF16, LENGTHS(skewed)},    {3, 1, 72, 16, K_BF16, LENGTHS(all_sorts)},
    {4, 2, 200, 16, K_BF16, LENGTHS(skewed)},     {5, 1, 12, 16, K_BF16, LENGTHS(all_sorts)},
    {4, 2, 10, 5, K_BF16, LENGTHS(skewed)},       {4, 2, 128, 1, K_BF16, LENGTHS(all_sorts)},
    {4, 2, 64, 24, K_BF16, LENGTHS(all_sorts)},   {2, 1, 250, 24, K_BF16, LENGTHS(skewed)},
    {8, 8, 128, 16, K_E4M3, LENGTHS(all_sorts)},  {32, 8, 128, 16, K_E4M3, LENGTHS(all_sorts)},
    {32, 8, 128, 16, K_E4M3, LENGTHS(skewed)},    {32, 8, 128, 64, K_E4M3, LENGTHS(single)},
    {16, 2, 128, 8, K_E4M3, LENGTHS(all_sorts)},  {16, 1, 128, 32, K_E4M3, LENGTHS(skewed)},
    {14, 2, 64, 16, K_E4M3, LENGTHS(all_sorts)},  {10, 2, 80, 16, K_E4M3, LENGTHS(all_sorts)},
    {6, 2, 96, 64, K_E4M3, LENGTHS(all_sorts)},   {8, 1, 256, 16, K_E4M3, LENGTHS(all_sorts)},
    {16, 1, 256, 8, K_E4M3, LENGTHS(skewed)},     {40, 2, 112, 16, K_E4M3, LENGTHS(skewed)},
    {6, 2, 90, 16, K_E4M3, LENGTHS(all_sorts)},   {4, 2, 10, 5, K_E4M3, LENGTHS(skewed)},
    {64, 8, 128, 16, K_BF16, LENGTHS(skewed)},    {64, 8, 128, 16, K_E4M3, LENGTHS(all_sorts)},
    {8, 1, 512, 16, K_BF16, LENGTHS(all_sorts)},  {4, 2, 512, 16, K_BF16, LENGTHS(skewed)},
    {16, 1, 512, 16, K_BF16, LENGTHS(skewed)},    {8, 2, 512, 8, K_BF16, LENGTHS(equal)},
    {8, 1, 512, 64, K_BF16, LENGTHS(single)},     {5, 1, 328, 16, K_BF16, LENGTHS(all_sorts)},
    {2, 1, 510, 24, K_BF16, LENGTHS(skewed)},     {8, 1, 512, 16, K_BF16, LENGTHS(no_keys)},
    {8, 1, 512, 16, K_E4M3, LENGTHS(all_sorts)},  {16, 1, 512, 8, K_E4M3, LENGTHS(skewed)},
    {8, 2, 512, 32, K_E4M3, LENGTHS(equal)},      {6, 2, 498, 16, K_E4M3, LENGTHS(skewed)},
    {16, 2, 64, 16, K_BF16, LENGTHS(all_sorts)},  {16, 2, 64, 64, K_E4M3, LENGTHS(all_sorts)},
    {8, 1, 64, 8, K_BF16, LENGTHS(single)},       {20, 4, 64, 16, K_E4M3, LENGTHS(skewed)},
};

/* Runs: their lengths, and the keys of each one's first decode. Some cross the borders of tiles and
 * pages. The last two are few enough for the kernel for short contexts. */
static const int ragged[][2] = {{8, 1},   {1, 40}, {4, 14}, {2, 31},  {3, 63}, {5, 126},
                                {6, 253}, {1, 0},  {1, 0},  {7, 698}, {1, 16}, {0, 0}};
static const int few_runs[][2] = {{4, 1021}, {0, 0}};
static const int two_runs[][2] = {{5, 509}, {3, 30}, {0, 0}};

static const struct {
    int n_heads, n_kv_heads, head_dim, page_tokens;
    enum k_type type;
    const int (*runs)[2];
} verified[] = {
    {32, 8, 128, 16, K_BF16, ragged},   {32, 8, 128, 16, K_BF16, few_runs},
    {16, 4, 128, 64, K_BF16, two_runs}, {2, 2, 128, 16, K_BF16, ragged},
    {6, 2, 128, 16, K_BF16, ragged},    {8, 1, 128, 8, K_BF16, ragged},
    {5, 1, 128, 16, K_BF16, two_runs},  {32, 8, 128, 16, K_E4M3, ragged},
    {32, 8, 128, 64, K_E4M3, few_runs}, {8, 1, 128, 16, K_E4M3, ragged},
    {3, 3, 128, 16, K_E4M3, two_runs},  {4, 4, 64, 16, K_BF16, ragged},
    {12, 4, 64, 16, K_BF16, ragged},    {8, 2, 64, 16, K_BF16, two_runs},
    {16, 2, 64, 32, K_E4M3, ragged},    {4, 1, 64, 16, K_E4M3, few_runs},
    {8, 2, 256, 16, K_BF16, ragged},    {3, 1, 256, 16, K_BF16, two_runs},
    {8, 1, 256, 16, K_E4M3, ragged},    {4, 4, 256, 16, K_E4M3, two_runs},
    {14, 2, 96, 16, K_BF16, two_runs},  {16, 1, 128, 16, K_BF16, two_runs},
    {8, 2, 128, 12, K_BF16, two_runs},  {8, 2, 512, 16, K_BF16, two_runs},
};

/* Of all cases in turn: keys that a token sees; 0: all. Larger than K_ATTN_SHORT, too. */
static int window;
static const int windows[] = {0, 1, 20, 64, 128, 300, 2500};

/* Whether plans promise that contexts are short; whether heads are normed, and values too; whether
 * another layer has written the keys and values of the step. */
static int promises_short, has_norms, norms_values, is_shared;

/* Of scores; 0: none. */
static float cap;

/* Of the case's sequences: the place of each in its run. */
static int32_t places[SEQS_MAX];
static int has_runs, only_runs;

/* Everything of one case, on host and device. */
struct attn_run {
    const struct attn_case *c;
    struct k_tokens host, dev;
    struct k_kv host_kv, dev_kv;
    struct k_attn_plan plan;
    int32_t *seq, *pos, *page_ids, seq_start[SEQS_MAX + 1];
    int n_tokens, width, n_pages;
    float *qkv, *turns, *pages; /* pages: NaN where nothing stands */
    size_t qkv_size, page_size, out_size;
    k_bf16 *dev_qkv;
    struct k_rotary rotary, dev_rotary;
    float *norms; /* [2][head_dim]: weights of queries and keys */
    float scale;
    char name[120];
};

static k_stream stream(void)
{
    return device_cuda_stream(gpu);
}

/* --- e4m3 ------------------------------------------------------------------------------ */

static float e4m3_widen(uint8_t b)
{
    int exponent = b >> 3 & 15, fraction = b & 7;
    float f =
        exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(8 + fraction), exponent - 10);

    if ((b & 127) == 127)
        f = NAN;
    return b & 128 ? -f : f;
}

/* The nearest, the even one of two that are as near, 448 at most. */
static uint8_t e4m3_round(float f)
{
    uint8_t sign = signbit(f) ? 128 : 0, low = 0, high = 126;
    float x = fabsf(f);

    if (x != x)
        return 127;
    if (x >= 448.0f)
        return sign | 126;
    while (high - low > 1) {
        uint8_t middle = (uint8_t)((low + high) / 2);

        if (e4m3_widen(middle) <= x)
            low = middle;
        else
            high = middle;
    }
    if (x - e4m3_widen(low) > e4m3_widen(high) - x ||
        (x - e4m3_widen(low) == e4m3_widen(high) - x && low % 2 == 1))
        low = high;
    return sign | low;
}

/* --- a case ---------------------------------------------------------------------------- */

static size_t elem_bytes(const struct attn_run *r)
{
    return r->c->type == K_BF16 ? 2 : 1;
}

static int pages_of(const struct attn_case *c, int s)
{
    return (c->kv_len[s] + c->page_tokens - 1) / c->page_tokens;
}

/* The first position that a token of the step sees. */
static int lowest_of(const struct attn_case *c, int s)
{
    int first = c->kv_len[s] - c->n_new[s];

    return window > 0 && first >= window ? first - window + 1 : 0;
}

/* The last decode of the run that begins with sequence s. */
static int run_end(const struct attn_case *c, int s)
{
    while (s + 1 < c->n_seqs && places[s + 1] > places[s])
        s++;
    return s;
}

static void place(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    int pages_max = 1, t = 0, step;

    for (int s = 0; s < c->n_seqs; s++) {
        pages_max = pages_of(c, s) > pages_max ? pages_of(c, s) : pages_max;
        r->n_pages += pages_of(c, places[s] == 0 ? run_end(c, s) : s) * (places[s] == 0);
        r->seq_start[s] = r->n_tokens;
        r->n_tokens += c->n_new[s];
    }
    r->seq_start[c->n_seqs] = r->n_tokens;
    r->n_pages += r->n_pages == 0;
    r->seq = calloc((size_t)r->n_tokens, 4);
    r->pos = calloc((size_t)r->n_tokens, 4);
    r->page_ids = calloc((size_t)(pages_max * c->n_seqs), 4);
    for (step = 7; r->n_pages % step == 0;)
        step += 4; /* no divisor, so that pages are shuffled; for 7, 11, 15, ... one is found */
    for (int s = 0, page = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < c->n_new[s]; i++, t++) {
            r->seq[t] = s;
            r->pos[t] = c->kv_len[s] == 0 ? 0 : c->kv_len[s] - c->n_new[s] + i;
        }
        if (places[s] > 0) { /* its run's table is complete */
            memcpy(r->page_ids + s * pages_max, r->page_ids + (s - 1) * pages_max,
                   (size_t)pages_max * 4);
            continue;
        }
        for (int p = 0; p < pages_of(c, run_end(c, s)); p++, page++)
            r->page_ids[s * pages_max + p] =
                p < lowest_of(c, s) / c->page_tokens ? r->n_pages : page * step % r->n_pages;
    }
    r->n_pages++; /* one of NaN */
    r->host = (struct k_tokens){.seq = r->seq,
                                .pos = r->pos,
                                .seq_start = r->seq_start,
                                .kv_len = c->kv_len,
                                .page_ids = r->page_ids,
                                .n_tokens = r->n_tokens,
                                .n_seqs = c->n_seqs,
                                .pages_max = pages_max};
    r->host_kv = (struct k_kv){.n_kv_heads = c->n_kv_heads,
                               .head_dim = c->head_dim,
                               .page_tokens = c->page_tokens,
                               .window = window,
                               .is_shared = is_shared,
                               .cap = cap,
                               .type = c->type,
                               .k_scale = 0.5f,
                               .v_scale = 0.25f};
    if (c->n_heads % 4 == 0)
        r->host_kv.sinks = gpu_random((size_t)c->n_heads, 4.0f);
    /* Two layers; the second is used. */
    r->host_kv.layer_elems = (size_t)(2 * c->n_kv_heads * c->page_tokens * c->head_dim);
    r->host_kv.page_elems = 2 * r->host_kv.layer_elems;
    r->page_size = r->host_kv.page_elems * (size_t)r->n_pages;
}

/* Random keys and values that the type holds where the sequences have some, NaN elsewhere. */
static void fill_pages(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    const struct k_kv *kv = &r->host_kv;
    size_t side = (size_t)(c->n_kv_heads * c->page_tokens * c->head_dim);

    r->pages = malloc(r->page_size * 4);
    for (size_t i = 0; i < r->page_size; i++)
        r->pages[i] = NAN;
    for (int s = 0; s < c->n_seqs; s++) {
        /* A chunk's keys are loaded in whole pages. */
        int first = lowest_of(c, s) / (c->n_new[s] == 1 ? 1 : c->page_tokens) *
                    (c->n_new[s] == 1 ? 1 : c->page_tokens);

        int end = is_shared ? c->kv_len[run_end(c, s)] : c->kv_len[s] - c->n_new[s];

        for (int p = first; p < end && places[s] == 0; p++) {
            int32_t page = r->page_ids[s * r->host.pages_max + p / c->page_tokens];

            for (int h = 0; h < 2 * c->n_kv_heads * c->head_dim; h++) {
                int head = h / c->head_dim % c->n_kv_heads;
                size_t at = (size_t)page * kv->page_elems + kv->layer_elems +
                            (size_t)(h / c->head_dim / c->n_kv_heads) * side +
                            (size_t)((head * c->page_tokens + p % c->page_tokens) * c->head_dim +
                                     h % c->head_dim);
                float x = gpu_widen(gpu_round(gpu_uniform() * 3.0f));
                float scale = h / c->head_dim < c->n_kv_heads ? kv->k_scale : kv->v_scale;

                r->pages[at] = c->type == K_BF16 ? x : scale * e4m3_widen(e4m3_round(x / scale));
            }
        }
    }
}

static float scale_of(const struct attn_run *r, size_t elem)
{
    size_t side = r->host_kv.layer_elems / 2;

    return elem / side % 2 == 0 ? r->host_kv.k_scale : r->host_kv.v_scale;
}

/* Pages to the device, and back as numbers. */
static void *upload_pages(const struct attn_run *r)
{
    uint8_t *raw = malloc(r->page_size * 2);
    void *dev;

    for (size_t i = 0; i < r->page_size; i++) {
        k_bf16 h = r->pages[i] != r->pages[i] ? 0xffff : gpu_round(r->pages[i]);

        if (r->c->type == K_BF16)
            memcpy(raw + 2 * i, &h, 2);
        else
            raw[i] = e4m3_round(r->pages[i] / scale_of(r, i));
    }
    dev = gpu_array(raw, r->page_size * elem_bytes(r));
    free(raw);
    return dev;
}

static float *download_pages(const struct attn_run *r, const void *dev)
{
    float *f = malloc(r->page_size * 4);
    uint8_t *raw = malloc(r->page_size * 2);

    ok(gpu_get(raw, dev, r->page_size * elem_bytes(r)), "guard bands are whole");
    for (size_t i = 0; i < r->page_size; i++) {
        k_bf16 h;

        memcpy(&h, raw + 2 * (r->c->type == K_BF16 ? i : 0), 2);
        f[i] = r->c->type == K_BF16 ? gpu_widen(h) : scale_of(r, i) * e4m3_widen(raw[i]);
    }
    free(raw);
    return f;
}

static void upload(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    size_t tokens = (size_t)r->n_tokens, seqs = (size_t)c->n_seqs;

    r->dev = r->host;
    r->dev.seq = gpu_array(r->seq, tokens * 4);
    r->dev.pos = gpu_array(r->pos, tokens * 4);
    r->dev.seq_start = gpu_array(r->seq_start, (seqs + 1) * 4);
    r->dev.kv_len = gpu_array(c->kv_len, seqs * 4);
    r->dev.page_ids = gpu_array(r->page_ids, seqs * (size_t)r->host.pages_max * 4);
    r->dev_kv = r->host_kv;
    if (r->host_kv.sinks != NULL)
        r->dev_kv.sinks = gpu_array(r->host_kv.sinks, (size_t)c->n_heads * sizeof(float));
    r->host_kv.pages = r->pages;
    r->dev_kv.pages = upload_pages(r);
    r->dev_qkv = gpu_bf16(r->qkv, r->qkv_size);
    r->dev_rotary = r->rotary;
    r->dev_rotary.turns = gpu_array(r->turns, TURNS_LEN * (size_t)c->head_dim * 4);
    if (r->rotary.q_norm != NULL) {
        r->dev_rotary.q_norm = gpu_bf16(r->norms, (size_t)c->head_dim);
        r->dev_rotary.k_norm = gpu_bf16(r->norms + c->head_dim, (size_t)c->head_dim);
    }
}

/* Whether they may, so that it makes a difference. */
static int is_short(const struct attn_case *c)
{
    int n_decodes = 0, group = c->n_heads / c->n_kv_heads, together = 1;

    if (has_runs && group <= 8)
        together = group <= 4 ? 4 : 16 / group;

    for (int s = 0; s < c->n_seqs; s++) {
        n_decodes += c->n_new[s] == 1;
        if (c->kv_len[s] > K_ATTN_SHORT)
            return 0;
    }
    return n_decodes > 0 && n_decodes * c->n_kv_heads <= 16 * together;
}

static void plan(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    int32_t decode_seqs[SEQS_MAX], tiles[1024], starts[1024];
    struct k_attn_plan *p = &r->plan;
    int32_t zero = 0;

    for (int s = 0; s < c->n_seqs; s++) {
        if (c->n_new[s] == 1)
            decode_seqs[p->n_decodes++] = s;
    }
    k_attn_tiles(tiles, starts, p, &r->host, c->n_heads / c->n_kv_heads);
    p->drawn = gpu_array(&zero, sizeof zero);
    p->is_short = promises_short;
    /* Steps of decodes alone need no list. */
    p->decode_seqs = p->n_tiles == 0 ? NULL : gpu_array(decode_seqs, sizeof decode_seqs);
    p->places = has_runs ? gpu_array(places, sizeof places) : NULL;
    p->tile_seqs = gpu_array(tiles, sizeof tiles);
    p->tile_starts = gpu_array(starts, sizeof starts);
    p->schedule = gpu_array(NULL, k_attn_schedule_bytes(p->n_decodes));
    p->work = gpu_array(NULL, k_attn_work_bytes(c->head_dim, c->n_heads, c->n_kv_heads));
}

static struct attn_run *run_open(const struct attn_case *c)
{
    struct attn_run *r = calloc(1, sizeof *r);

    r->c = c;
    r->scale = 1.0f / sqrtf((float)c->head_dim);
    snprintf(r->name, sizeof r->name, "%d/%d x %d, pages of %d %s, window %d", c->n_heads,
             c->n_kv_heads, c->head_dim, c->page_tokens, c->type == K_BF16 ? "bf16" : "e4m3",
             window);
    place(r);
    r->width = k_qkv_heads(&r->host_kv, c->n_heads) * c->head_dim;
    r->qkv_size = (size_t)r->n_tokens * (size_t)r->width;
    r->out_size = (size_t)r->n_tokens * (size_t)(c->n_heads * c->head_dim);
    r->qkv = gpu_random(r->qkv_size, 3.0f);
    fill_pages(r);
    r->turns = malloc(TURNS_LEN * (size_t)c->head_dim * 4);
    for (int i = 0; i < TURNS_LEN * c->head_dim / 2; i++) {
        r->turns[2 * i] = cosf((float)i * 0.37f);
        r->turns[2 * i + 1] = sinf((float)i * 0.37f);
    }
    r->norms = gpu_random(2 * (size_t)c->head_dim, 2.0f);
    r->rotary = (struct k_rotary){.turns = r->turns,
                                  .q_norm = has_norms ? r->norms : NULL,
                                  .k_norm = has_norms ? r->norms + c->head_dim : NULL,
                                  .eps = 0.25f,
                                  .norms_values = norms_values};
    upload(r);
    plan(r);
    return r;
}

static void run_close(struct attn_run *r)
{
    free((void *)(uintptr_t)r->host_kv.sinks);
    free(r->qkv), free(r->pages), free(r->turns), free(r->seq), free(r->pos), free(r->page_ids);
    free(r->norms), free(r);
}

/* --- checks ---------------------------------------------------------------------------- */

/* k_rope_kv() against its reference; padding sequences have no pages. fp8 may fall to the other
 * side of a rounding: 2^-4 of the largest. */
static void check_rope(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    float *got;

    ref_rope_kv(r->qkv, &r->host_kv, &r->host, &r->rotary, c->n_heads, 0, r->n_tokens);
    gpu_must(k_rope_kv(r->dev_qkv, &r->dev_kv, &r->dev, &r->dev_rotary, c->n_heads, stream()));
    got = gpu_floats(r->dev_qkv, r->qkv_size);
    gpu_compare(got, r->qkv, r->qkv_size, 5e-6, 4.1e-3, "rope_kv, queries");
    free(got);
    got = download_pages(r, r->dev_kv.pages);
    for (size_t i = 0; i < r->page_size; i++) {
        float scale = scale_of(r, i);

        if (r->pages[i] != r->pages[i])
            r->pages[i] = got[i] = got[i] != got[i] ? 0.0f : 1e30f;
        else if (c->type != K_BF16) /* the reference writes floats; their rounding is no error */
            r->pages[i] = scale * e4m3_widen(e4m3_round(r->pages[i] / scale));
    }
    if (c->type == K_BF16)
        gpu_compare(got, r->pages, r->page_size, 5e-6, 4.1e-3, "rope_kv, pages");
    else
        gpu_compare(got, r->pages, r->page_size, 1e-4, 6.3e-2, "rope_kv, pages");
    free(got);
}

/* Run attention into fresh memory; what it should not write stays 0xABAB, as bfloat16. */
static float *attend(struct attn_run *r, const k_bf16 *qkv, const struct k_attn_plan *p)
{
    k_bf16 *out = gpu_array(NULL, r->out_size * 2);

    gpu_must(k_attn(out, qkv, &r->dev_kv, &r->dev, p, r->c->n_heads, r->scale, stream()));
    return p->out_is_half ? gpu_half_floats(out, r->out_size) : gpu_floats(out, r->out_size);
}

static void schedule(struct attn_run *r, const struct k_attn_plan *p)
{
    gpu_must(k_attn_schedule(p, &r->dev_kv, &r->dev, r->c->n_heads, stream()));
}

/* A decode by itself, in its own launch: what it had beside the others, but for the order in
 * which parts of its keys are added. */
static void check_alone(struct attn_run *r, const float *got)
{
    const struct attn_case *c = r->c;
    size_t row = (size_t)(c->n_heads * c->head_dim);
    int32_t *list = gpu_array(NULL, 4);
    int n = 0;

    for (int s = 0; s < c->n_seqs; s++) {
        struct k_attn_plan alone = r->plan;
        size_t at = (size_t)r->seq_start[s] * row;
        float *all;

        if (c->n_new[s] != 1 || c->kv_len[s] == 0 || (n++ > 3 && c->kv_len[s] < 1000))
            continue;
        gpu_must(gpu->ops->upload(gpu, list, &s, 4));
        alone.decode_seqs = list;
        alone.n_decodes = 1;
        alone.places = NULL;
        alone.n_tiles = 0;
        schedule(r, &alone);
        all = attend(r, r->dev_qkv, &alone);
        gpu_compare(all + at, got + at, row, 2e-5, 8e-3, "alone");
        free(all);
    }
    schedule(r, &r->plan);
}

/* The same for a product with e4m3; in want, what is not to be written is 0xABAB as bfloat16. */
static void check_half(struct attn_run *r, const float *want)
{
    struct k_attn_plan p = r->plan;
    float *got, untouched = gpu_widen(0xabab);
    const uint16_t bits = 0xabab;
    _Float16 untouched_half;

    memcpy(&untouched_half, &bits, sizeof bits);
    p.out_is_half = 1;
    got = attend(r, r->dev_qkv, &p);
    for (size_t i = 0; i < r->out_size; i++) {
        if (want[i] == untouched && got[i] == (float)untouched_half)
            got[i] = untouched;
    }
    gpu_compare(got, want, r->out_size, 2e-5, 8e-3, "as float16");
    free(got);
}

static void check_attn(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    float *want = malloc(r->out_size * 4), *scratch = malloc(4096 * 4), *got, *second;

    /* What the device holds after the rotation is the reference's input. */
    free(r->qkv), free(r->pages);
    r->qkv = gpu_floats(r->dev_qkv, r->qkv_size);
    r->pages = r->host_kv.pages = download_pages(r, r->dev_kv.pages);
    for (size_t i = 0; i < r->out_size; i++)
        want[i] = gpu_widen(0xabab);
    for (int t = 0; t < r->n_tokens; t++)
        for (int h = 0; h < c->n_kv_heads && c->kv_len[r->seq[t]] > 0; h++)
            ref_attn(want, r->qkv, &r->host_kv, &r->host, c->n_heads, r->scale, t, h, scratch);
    schedule(r, &r->plan);
    got = attend(r, r->dev_qkv, &r->plan);
    second = attend(r, r->dev_qkv, &r->plan);
    gpu_compare(got, want, r->out_size, 2e-5, 8e-3, r->name);
    ok(memcmp(got, second, r->out_size * 4) == 0, "twice the same bits");
    check_alone(r, got);
    if (c->n_heads * c->head_dim % 16 == 0)
        check_half(r, want);
    free(want), free(scratch), free(got), free(second);
}

/* Results times the sigmoids of gates: rounded once, those without gates twice. Padding sequences
 * have no results. */
static void check_gates(struct attn_run *r, const k_bf16 *raw, const struct k_attn_plan *p,
                        const float *without)
{
    float *gates = gpu_random(r->out_size, 4.0f), *want = malloc(r->out_size * sizeof *want), *got;
    const float none = gpu_widen(0xabab);
    struct k_attn_plan with = *p;

    with.gates = gpu_bf16(gates, r->out_size);
    got = attend(r, raw, &with);
    for (size_t i = 0; i < r->out_size; i++)
        want[i] = without[i] == none ? none : without[i] / (1.0f + expf(-gates[i]));
    gpu_compare(got, want, r->out_size, 1e-5, 8.2e-3, "with gates");
    free(gates), free(want), free(got);
}

static void check_case(const struct attn_case *c)
{
    struct attn_run *r = run_open(c);

    printf("# %s, %d sequences%s%s%s%s%s\n", r->name, c->n_seqs, promises_short ? ", short" : "",
           has_norms ? ", with norms" : "", norms_values ? ", of values too" : "",
           is_shared ? ", shared" : "", cap > 0.0f ? ", capped" : "");
    check_rope(r);
    check_attn(r);
    run_close(r);
}

/* Attention that rotates and writes pages itself: the bits of k_rope_kv() and attention. */
static void check_fused(const struct attn_case *c)
{
    struct attn_run *r = run_open(c);
    void *apart = r->dev_kv.pages, *fused = upload_pages(r);
    k_bf16 *raw = gpu_bf16(r->qkv, r->qkv_size);
    struct k_attn_plan with_turns = r->plan;
    size_t bytes = r->page_size * elem_bytes(r);
    char *pages[2] = {malloc(bytes), malloc(bytes)};
    float *out[3];

    /* Decodes of a run that are not joined read each other's keys. */
    if (!k_attn_rotates(&r->dev_rotary, &r->dev_kv) ||
        (has_runs && !k_attn_joins(&r->plan, &r->dev_kv, c->n_heads))) {
        run_close(r), free(pages[0]), free(pages[1]);
        return;
    }
    with_turns.rotary = &r->dev_rotary;
    check_rope(r);
    schedule(r, &r->plan);
    out[0] = attend(r, r->dev_qkv, &r->plan);
    r->dev_kv.pages = fused;
    out[1] = attend(r, raw, &with_turns);
    with_turns.overlap = 1;
    out[2] = attend(r, raw, &with_turns);
    ok(memcmp(out[0], out[1], r->out_size * 4) == 0, "%s: rotated within, the same bits", r->name);
    ok(memcmp(out[0], out[2], r->out_size * 4) == 0, "overlapped, the same bits");
    ok(gpu_get(pages[0], apart, bytes) && gpu_get(pages[1], fused, bytes) &&
           memcmp(pages[0], pages[1], bytes) == 0,
       "written within, the same pages");
    if (k_attn_shuts(&with_turns, &r->dev_kv))
        check_gates(r, raw, &with_turns, out[0]);
    free(out[0]), free(out[1]), free(out[2]), free(pages[0]), free(pages[1]);
    run_close(r);
}

static bool is_too_large(int head_dim)
{
    return (k_is_portable() || cap > 0.0f) && head_dim > K_HEAD_DIM_PORTABLE;
}

static void check_runs(int head_dim)
{
    has_runs = 1;
    for (size_t i = 0; i < sizeof verified / sizeof verified[0]; i++) {
        struct attn_case c = {.n_heads = verified[i].n_heads,
                              .n_kv_heads = verified[i].n_kv_heads,
                              .head_dim = verified[i].head_dim,
                              .page_tokens = verified[i].page_tokens,
                              .type = verified[i].type};

        for (const int(*run)[2] = verified[i].runs; (*run)[0] > 0; run++) {
            for (int j = 0; j < (*run)[0]; j++, c.n_seqs++) {
                c.kv_len[c.n_seqs] = (*run)[1] + j;
                c.n_new[c.n_seqs] = 1;
                places[c.n_seqs] = j;
            }
        }
        if ((head_dim != 0 && c.head_dim != head_dim) || is_too_large(c.head_dim))
            continue;
        for (promises_short = 0; promises_short <= is_short(&c); promises_short++) {
            if (!gpu_has_turn())
                continue;
            check_case(&c);
            check_fused(&c);
        }
    }
    memset(places, 0, sizeof places);
    has_runs = 0;
}

static void check_cases(int head_dim)
{
    check_runs(head_dim);
    if (only_runs)
        return;

    for (size_t i = 0; i < sizeof mixed / sizeof mixed[0]; i++) {
        if (is_too_large(mixed[i].head_dim))
            continue;
        for (promises_short = 0; promises_short <= is_short(&mixed[i]); promises_short++) {
            if ((head_dim == 0 || mixed[i].head_dim == head_dim) && gpu_has_turn())
                check_case(&mixed[i]);
        }
    }
    for (size_t i = 0; i < sizeof decodes / sizeof decodes[0]; i++) {
        struct attn_case c = {.n_heads = decodes[i].n_heads,
                              .n_kv_heads = decodes[i].n_kv_heads,
                              .head_dim = decodes[i].head_dim,
                              .page_tokens = decodes[i].page_tokens,
                              .type = decodes[i].type};

        for (; c.n_seqs < (int)decodes[i].n_seqs; c.n_seqs++) {
            c.kv_len[c.n_seqs] = decodes[i].kv_len[c.n_seqs];
            c.n_new[c.n_seqs] = 1;
        }
        if ((head_dim != 0 && c.head_dim != head_dim) || is_too_large(c.head_dim))
            continue;
        for (promises_short = 0; promises_short <= is_short(&c); promises_short++) {
            if (!gpu_has_turn())
                continue;
            check_case(&c);
            check_fused(&c);
        }
    }
}

/* test_attn [HEAD_DIM [runs]]: all cases, or those of one head size (0: of all), or of runs. */
int main(int argc, char **argv)
{
    gpu_open();
    only_runs = argc > 2;
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        window = windows[i];
        for (has_norms = 0; has_norms <= 1; has_norms++)
            check_cases(argc > 1 ? atoi(argv[1]) : 0);
    }
    has_norms = norms_values = 1;
    for (is_shared = 0; is_shared <= 1; is_shared++) {
        window = is_shared ? 64 : 0;
        check_cases(argc > 1 ? atoi(argv[1]) : 0);
    }
    has_norms = norms_values = is_shared = 0;
    cap = k_attn_caps() ? 2.0f : 0.0f;
    for (size_t i = 0; i < 4 && cap > 0.0f; i += 3) {
        window = windows[i];
        check_cases(argc > 1 ? atoi(argv[1]) : 0);
    }
    device_close(gpu);
    return tap_done();
}
