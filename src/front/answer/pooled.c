/* SPDX-License-Identifier: Apache-2.0
 *
 * The shapes are those of vLLM: OpenAI's embeddings, its own scores, and Jina's ranks. */
#include "front/answer/pooled.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/must.h"

const char *pooled_id_prefix(enum pooled_answer answer)
{
    switch (answer) {
    case POOLED_EMBEDDINGS: return "embd-";
    case POOLED_ROWS: return "pool-";
    case POOLED_CLASSES: return "classify-";
    case POOLED_SCORES: return "score-";
    case POOLED_RANKS: return "rerank-";
    }
    return "";
}

/* Rows of g's answer. */
static size_t pooled_n_rows(const struct gen *g)
{
    return g->exchange->pooled->each ? g->n_prompt : 1;
}

/* Three floats come in a record; the last one of a row is padded. */
void pooled_row(struct gen *g, const struct wire_out *o, uint32_t n)
{
    size_t row_bytes = (size_t)n * sizeof(float), left = row_bytes - g->row.len % row_bytes;
    float piece[3];

    must(g->row.len < pooled_n_rows(g) * row_bytes || g->row.failed);
    g->exchange->pooled->n_floats = n;
    memcpy(piece, &o->value, sizeof o->value);
    memcpy(piece + 1, o->logits, sizeof o->logits);
    buf_add(&g->row, piece, left < sizeof piece ? left : sizeof piece);
    g->exchange->out.failed = g->exchange->out.failed || g->row.failed;
}

bool pooled_is_whole(const struct gen *g)
{
    uint32_t n = g->exchange->pooled->n_floats;

    return n > 0 && g->row.len == pooled_n_rows(g) * (size_t)n * sizeof(float);
}

/* --- numbers ---------------------------------------------------------------------------------- */

/* How many numbers of a row the answer has. */
static int pooled_width(const struct pooled *p)
{
    int n = (int)p->n_floats;

    if (p->model->kind == POOLING_SCORE && n > p->model->n_labels)
        return p->model->n_labels; /* the others fill it up */
    if (p->model->kind == POOLING_EMBED && p->dimensions > 0 && n > p->dimensions)
        return p->dimensions;
    return n;
}

/* The numbers of a row; *n: how many the answer has. */
static float *pooled_numbers(const struct gen *g, int *n)
{
    *n = pooled_width(g->exchange->pooled);
    return (float *)(void *)g->row.bytes;
}

/* Vectors of length 1; a vector of zeros stays. */
static void pooled_unit(float *v, int n)
{
    double sum = 0.0;

    for (int i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    for (int i = 0; i < n && sum > 0.0; i++)
        v[i] = (float)((double)v[i] / sqrt(sum));
}

/* One label is true or not, of several one is. */
static void pooled_chances(float *v, int n)
{
    double most = (double)v[0], sum = 0.0;

    if (n == 1) {
        v[0] = (float)(1.0 / (1.0 + exp(-(double)v[0])));
        return;
    }
    for (int i = 1; i < n; i++)
        most = fmax(most, (double)v[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)v[i] - most);
    for (int i = 0; i < n; i++)
        v[i] = (float)(exp((double)v[i] - most) / sum);
}

/* What the request gets of a row of n numbers, in place. */
static void pooled_finish_row(const struct pooled *p, float *v, int n)
{
    for (int i = 0; i < n && p->model->kind == POOLING_SCORE; i++)
        v[i] = (float)(((double)v[i] - p->model->mean) / p->model->sigma);
    if (!p->activates)
        return;
    if (p->model->kind == POOLING_EMBED)
        pooled_unit(v, n);
    else
        pooled_chances(v, n);
}

/* The same of g's row; once per generation. */
static float *pooled_finish(const struct gen *g, int *n)
{
    float *v = pooled_numbers(g, n);

    pooled_finish_row(g->exchange->pooled, v, *n);
    return v;
}

/* Of the rows of all tokens of g, one behind the other: float [n_prompt][*n]. */
static float *pooled_finish_each(const struct gen *g, int *n)
{
    const struct pooled *p = g->exchange->pooled;
    float *first = pooled_numbers(g, n);

    for (size_t t = 0; t < g->n_prompt; t++) {
        float *v = first + t * p->n_floats;

        pooled_finish_row(p, v, *n);
        memmove(first + t * (size_t)*n, v, (size_t)*n * sizeof *v);
    }
    return first;
}

static double pooled_cosine(const struct gen *a, const struct gen *b)
{
    int n;
    const float *left = pooled_numbers(a, &n), *right = pooled_numbers(b, &n);
    double ab = 0.0, aa = 0.0, bb = 0.0;

    for (int i = 0; i < n; i++) {
        ab += (double)left[i] * (double)right[i];
        aa += (double)left[i] * (double)left[i];
        bb += (double)right[i] * (double)right[i];
    }
    if (aa == 0.0 || bb == 0.0)
        return 0.0;
    return ab / sqrt(aa * bb);
}

/* The score of pair i. */
static double pooled_score(const struct exchange *x, int i)
{
    const struct pooled *p = x->pooled;
    int n;

    if (!p->by_vectors)
        return (double)*pooled_finish(&x->gens[i], &n);
    return pooled_cosine(&x->gens[p->n_left == 1 ? 0 : i], &x->gens[p->n_left + i]);
}

/* --- text ------------------------------------------------------------------------------------- */

#define POOLED_DIGITS 9 /* of a float: as many as tell any two apart */

/* The digits behind the point of a number below 1: `zeros` of them, then those of m, without its
 * trailing zeros. */
static void pooled_add_fraction(struct buf *b, uint64_t m, int zeros)
{
    char text[40] = "0.";
    int at = 2 + zeros, end = at + POOLED_DIGITS;

    memset(text + 2, '0', (size_t)zeros);
    for (int i = end - 1; i >= at; i--, m /= 10)
        text[i] = (char)('0' + m % 10);
    while (text[end - 1] == '0' && text[end - 2] != '.')
        end--;
    buf_add(b, text, (size_t)end);
}

/* A number as JSON, in nine digits, which read back as the same float. A vector has thousands, and
 * this takes 20 ns for the usual sizes, where printf takes 200. */
static void pooled_add_float(struct buf *b, float value)
{
    static const double by[] = {1e9, 1e10, 1e11, 1e12, 1e13};
    double v = fabs((double)value);
    int zeros = 0;

    if (!isfinite(value)) {
        buf_add_text(b, "null");
        return;
    }
    if (v < 1e-5 || v >= 0.99999999) {
        buf_printf(b, "%.9g", (double)value);
        return;
    }
    if (value < 0.0f)
        buf_add_byte(b, '-');
    while (zeros < 4 && v * by[zeros] + 0.5 < 1e8)
        zeros++;
    pooled_add_fraction(b, (uint64_t)(v * by[zeros] + 0.5), zeros);
}

static void pooled_add_list(struct buf *b, const float *v, int n)
{
    buf_add_byte(b, '[');
    for (int i = 0; i < n; i++) {
        buf_add_comma(b, i > 0);
        pooled_add_float(b, v[i]);
    }
    buf_add_byte(b, ']');
}

static void pooled_add_lists(struct buf *b, const float *v, size_t n_rows, int n)
{
    buf_add_byte(b, '[');
    for (size_t t = 0; t < n_rows; t++) {
        buf_add_comma(b, t > 0);
        pooled_add_list(b, v + t * (size_t)n, n);
    }
    buf_add_byte(b, ']');
}

/* The bytes of the floats, little-endian, in base64. */
static void pooled_add_base64(struct buf *b, const float *v, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = (const uint8_t *)(const void *)v;
    size_t len = n * sizeof *v;

    buf_add_byte(b, '"');
    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i;
        uint32_t group = (uint32_t)bytes[i] << 16 | (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                         (left > 2 ? bytes[i + 2] : 0);
        const char text[4] = {digits[group >> 18], digits[group >> 12 & 63],
                              left > 1 ? digits[group >> 6 & 63] : '=',
                              left > 2 ? digits[group & 63] : '='};

        buf_add(b, text, sizeof text);
    }
    buf_add_byte(b, '"');
}

static void pooled_add_model(const struct exchange *x, struct buf *b)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"list\",\"created\":%lld,\"model\":", x->id,
               (long long)x->created);
    buf_add_json_string(b, x->model, strlen(x->model));
}

static void pooled_add_usage(const struct exchange *x, struct buf *b)
{
    unsigned long long n = x->pooled->n_tokens, cached = 0;

    for (int i = 0; i < x->n_gens; i++)
        cached += x->gens[i].n_cached;
    buf_printf(b,
               "\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu,\"completion_tokens\":0,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%llu}}",
               n, n, cached);
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Vectors and rows differ in names only. */
static void pooled_add_vectors(const struct exchange *x, struct buf *b)
{
    bool rows = x->pooled->answer == POOLED_ROWS;

    pooled_add_model(x, b);
    buf_add_text(b, ",\"data\":[");
    for (int i = 0; i < x->n_gens; i++) {
        const struct gen *g = &x->gens[i];
        bool each = x->pooled->each;
        int n;
        const float *v = each ? pooled_finish_each(g, &n) : pooled_finish(g, &n);

        buf_add_comma(b, i > 0);
        buf_printf(b, "{\"index\":%d,\"object\":\"%s\",\"%s\":", i, rows ? "pooling" : "embedding",
                   rows ? "data" : "embedding");
        if (x->pooled->base64)
            pooled_add_base64(b, v, pooled_n_rows(g) * (size_t)n);
        else if (each)
            pooled_add_lists(b, v, g->n_prompt, n);
        else
            pooled_add_list(b, v, n);
        buf_add_byte(b, '}');
    }
    buf_add_text(b, "],");
    pooled_add_usage(x, b);
    buf_add_byte(b, '}');
}

/* The name of a label; null without one. */
static void pooled_add_label(const struct pooled *p, struct buf *b, int label)
{
    char key[16];
    const struct json *name;

    (void)snprintf(key, sizeof key, "%d", label);
    name = json_get_kind(p->labels, key, JSON_TEXT);
    if (name == NULL)
        buf_add_text(b, "null");
    else
        buf_add_json_string(b, name->text, name->text_len);
}

/* The most probable label of each text, and the probabilities of all. */
static void pooled_add_classes(const struct exchange *x, struct buf *b)
{
    pooled_add_model(x, b);
    buf_add_text(b, ",\"data\":[");
    for (int i = 0; i < x->n_gens; i++) {
        int n, best = 0;
        const float *v = pooled_finish(&x->gens[i], &n);

        for (int label = 1; label < n; label++) {
            if (v[label] > v[best])
                best = label;
        }
        buf_add_comma(b, i > 0);
        buf_printf(b, "{\"index\":%d,\"label\":", i);
        pooled_add_label(x->pooled, b, best);
        buf_add_text(b, ",\"probs\":");
        pooled_add_list(b, v, n);
        buf_printf(b, ",\"num_classes\":%d}", n);
    }
    buf_add_text(b, "],");
    pooled_add_usage(x, b);
    buf_add_byte(b, '}');
}

static void pooled_add_scores(const struct exchange *x, struct buf *b)
{
    pooled_add_model(x, b);
    buf_add_text(b, ",\"data\":[");
    for (int i = 0; i < x->pooled->n_right; i++) {
        buf_add_comma(b, i > 0);
        buf_printf(b, "{\"index\":%d,\"object\":\"score\",\"score\":", i);
        pooled_add_float(b, (float)pooled_score(x, i));
        buf_add_byte(b, '}');
    }
    buf_add_text(b, "],");
    pooled_add_usage(x, b);
    buf_add_byte(b, '}');
}

struct pooled_rank {
    double score;
    int index;
};

/* The best first; equal ones in the order of the request. */
static int pooled_order(const void *a, const void *b)
{
    const struct pooled_rank *left = a, *right = b;

    if (left->score != right->score)
        return left->score < right->score ? 1 : -1;
    return left->index - right->index;
}

static void pooled_add_rank(const struct pooled *p, struct buf *b, const struct pooled_rank *rank)
{
    const struct json *text = p->documents[rank->index];

    buf_printf(b, "{\"index\":%d,", rank->index);
    if (p->returns_documents) {
        buf_add_text(b, "\"document\":{\"text\":");
        buf_add_json_string(b, text->text, text->text_len);
        buf_add_text(b, "},");
    }
    buf_add_text(b, "\"relevance_score\":");
    pooled_add_float(b, (float)rank->score);
    buf_add_byte(b, '}');
}

static void pooled_add_ranks(struct exchange *x, struct buf *b)
{
    const struct pooled *p = x->pooled;
    int n = p->n_right;
    struct pooled_rank *ranks = arena_alloc(&x->arena, sizeof *ranks * (size_t)n);

    if (ranks == NULL) {
        b->failed = true;
        return;
    }
    for (int i = 0; i < n; i++) {
        double score = pooled_score(x, i);

        ranks[i] = (struct pooled_rank){isnan(score) ? -HUGE_VAL : score, i};
    }
    qsort(ranks, (size_t)n, sizeof *ranks, pooled_order);
    if (p->top_n > 0 && p->top_n < n)
        n = (int)p->top_n;
    buf_printf(b, "{\"id\":\"%s\",\"model\":", x->id);
    buf_add_json_string(b, x->model, strlen(x->model));
    buf_printf(b, ",\"usage\":{\"prompt_tokens\":%llu,\"total_tokens\":%llu},\"results\":[",
               (unsigned long long)p->n_tokens, (unsigned long long)p->n_tokens);
    for (int i = 0; i < n; i++) {
        buf_add_comma(b, i > 0);
        pooled_add_rank(p, b, &ranks[i]);
    }
    buf_add_text(b, "]}");
}

void pooled_reply(struct exchange *x)
{
    struct buf buf = {0};

    switch (x->pooled->answer) {
    case POOLED_EMBEDDINGS:
    case POOLED_ROWS: pooled_add_vectors(x, &buf); break;
    case POOLED_CLASSES: pooled_add_classes(x, &buf); break;
    case POOLED_SCORES: pooled_add_scores(x, &buf); break;
    case POOLED_RANKS: pooled_add_ranks(x, &buf); break;
    }
    exchange_reply_json(x, &buf);
}
