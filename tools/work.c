/* SPDX-License-Identifier: Apache-2.0
 *
 * Lengths, prompts and times are draws of one generator, in a fixed order: first all lengths, then
 * all prompts, then all times. So a change of the rate does not change the prompts. */
#include "tools/work.h"

#include <math.h>
#include <string.h>

#include "base/buf.h"

/* Median and deviation of the logarithms of the lengths of conversations, fitted to the means that
 * vLLM's tables give for ShareGPT after its filter: some 215 tokens in and 195 out. */
#define WORK_IN_MEDIAN     100.0
#define WORK_IN_DEVIATION  1.35
#define WORK_OUT_MEDIAN    145.0
#define WORK_OUT_DEVIATION 0.95
#define WORK_LEN_MIN       4
#define WORK_LEN_MAX       1024

/* Words that most vocabularies have as one token each, with the space before them. */
static const char *const work_words[] = {
    "time",  "year",   "people", "way",    "day",    "man",    "thing", "woman", "life",  "child",
    "world", "school", "state",  "family", "group",  "hand",   "part",  "place", "case",  "week",
    "work",  "number", "night",  "point",  "home",   "water",  "room",  "area",  "money", "story",
    "fact",  "month",  "lot",    "right",  "study",  "book",   "eye",   "job",   "word",  "side",
    "kind",  "head",   "house",  "friend", "father", "power",  "hour",  "game",  "line",  "end",
    "law",   "car",    "city",   "name",   "team",   "minute", "idea",  "body",  "back",  "face",
};
#define WORK_WORDS ((int)(sizeof work_words / sizeof work_words[0]))

/* Source: splitmix64, Steele, Lea and Flood, 2014. */
static uint64_t work_next(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double work_uniform(uint64_t *state)
{
    return (double)(work_next(state) >> 11) * 0x1p-53;
}

/* The method of Box and Muller; its second value is not used. */
double work_normal(uint64_t *state)
{
    double radius = sqrt(-2.0 * log(1.0 - work_uniform(state)));

    return radius * cos(2.0 * M_PI * work_uniform(state));
}

/* A draw of the gamma distribution with this shape and mean 1. Source: Marsaglia and Tsang, 2000;
 * below shape 1 with the correction of its last section. */
static double work_gamma(uint64_t *state, double shape)
{
    double boost = 1.0, more = shape, d, c;

    if (shape < 1.0) {
        boost = pow(1.0 - work_uniform(state), 1.0 / shape);
        more = shape + 1.0;
    }
    d = more - 1.0 / 3.0;
    c = 1.0 / sqrt(9.0 * d);
    for (;;) { /* more than 95% of the draws are accepted */
        double x = work_normal(state), v = 1.0 + c * x, u = 1.0 - work_uniform(state);

        v = v * v * v;
        if (v > 0.0 && log(u) < 0.5 * x * x + d - d * v + d * log(v))
            return boost * d * v / shape;
    }
}

static int work_between(uint64_t *state, int low, int high)
{
    return low + (int)(work_uniform(state) * (high - low + 1));
}

static int work_ranged(uint64_t *state, int len, double ratio)
{
    int low = (int)floor(len * (1.0 - ratio)), high = (int)ceil(len * (1.0 + ratio));

    return work_between(state, low < 1 ? 1 : low, high < 1 ? 1 : high);
}

static int work_skewed(uint64_t *state, double median, double deviation)
{
    double len = median * exp(deviation * work_normal(state));

    if (len < WORK_LEN_MIN)
        return WORK_LEN_MIN;
    if (len > WORK_LEN_MAX)
        return WORK_LEN_MAX;
    return (int)len;
}

/* The pauses between requests. */
static void work_times(struct work *w, const struct work_options *o, uint64_t *state)
{
    double at_s = 0.0;

    for (int i = 0; i < w->n && isfinite(o->rate); i++) {
        w->items[i].due_us = (uint64_t)(at_s * 1e6);
        at_s += work_gamma(state, o->burstiness) / o->rate;
    }
}

static void work_lengths(struct work *w, const struct work_options *o, uint64_t *state)
{
    for (int i = 0; i < w->n; i++) {
        struct work_item *item = &w->items[i];

        if (o->kind == WORK_RANDOM) {
            item->input_len = work_ranged(state, o->input_len, o->range_ratio);
            item->output_len = work_ranged(state, o->output_len, o->range_ratio);
        } else {
            item->input_len = work_skewed(state, WORK_IN_MEDIAN, WORK_IN_DEVIATION);
            item->output_len = work_skewed(state, WORK_OUT_MEDIAN, WORK_OUT_DEVIATION);
        }
    }
}

/* Append n tokens to a list of ids, or as many words to a text. */
static void work_tokens(struct buf *out, const struct work_options *o, int n, uint64_t *state)
{
    for (int i = 0; i < n; i++) {
        if (o->chat)
            buf_printf(out, " %s", work_words[work_between(state, 0, WORK_WORDS - 1)]);
        else
            buf_printf(out, "%s%d", out->len > 1 ? "," : "",
                       work_between(state, WORK_FIRST_ID, o->vocab_size - 1));
    }
}

/* The prompts of made lengths. With a prefix, it is added to the length, as vLLM does. */
static int work_prompts(struct work *w, const struct work_options *o, uint64_t *state)
{
    int prefix_len = o->kind == WORK_RANDOM ? o->prefix_len : 0;
    struct buf prefix = {0}, text = {0};
    bool failed = false;

    work_tokens(&prefix, o, prefix_len, state);
    for (int i = 0; i < w->n && !failed; i++) {
        struct work_item *item = &w->items[i];

        buf_clear(&text);
        buf_add_byte(&text, o->chat ? '"' : '[');
        buf_add(&text, buf_text(&prefix), prefix.len);
        work_tokens(&text, o, item->input_len, state);
        buf_add_byte(&text, o->chat ? '"' : ']');
        item->input_len += prefix_len;
        item->prompt = text.failed ? NULL : arena_strndup(&w->arena, text.bytes, text.len);
        failed = item->prompt == NULL;
    }
    buf_fini(&prefix);
    buf_fini(&text);
    return failed ? ERR_NO_MEMORY : ERR_OK;
}

int work_make(struct work *w, const struct work_options *o)
{
    uint64_t state = o->seed;
    int rc = ERR_NO_MEMORY;

    *w = (struct work){.n = o->n};
    w->items = arena_zalloc(&w->arena, sizeof *w->items * (size_t)o->n);
    if (w->items == NULL)
        return rc;
    if (o->kind == WORK_FILE) {
        rc = work_read_file(w, o, &state);
    } else {
        work_lengths(w, o, &state);
        rc = work_prompts(w, o, &state);
    }
    if (rc == ERR_OK)
        work_times(w, o, &state);
    return rc;
}

void work_fini(struct work *w)
{
    arena_reset(&w->arena);
    w->items = NULL;
    w->n = 0;
}
