/* SPDX-License-Identifier: Apache-2.0
 *
 * Each token is looked up when it comes, whether or not drafts are made: a guess costs 0.1 us, but
 * a wrong draft costs the device rows and the sequence its run ahead. So drafts begin after some
 * correct guesses, grow while they are right, and pause for longer after each one that was all
 * wrong. */
#include "engine/draft.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "engine/guide.h"
#include "engine/seq.h"
#include "engine/think.h"

#define DRAFT_STREAK       3     /* correct guesses before drafts begin */
#define DRAFT_TRIES        8     /* earlier places that are compared */
#define DRAFT_DEPTH        64    /* tokens compared at each */
#define DRAFT_REST         8     /* tokens without drafts after one that was all wrong */
#define DRAFT_RESTS        512   /* the longest such pause */
#define DRAFT_NGRAMS       5     /* vLLM's default of prompt_lookup_min and _max */
#define DRAFT_INDEXED      4096  /* tokens of a long prompt indexed per step: some 50 us */
#define DRAFT_DECAY        4     /* a difference divides the number of agreeing tokens by this */
#define DRAFT_HOLD         2     /* a place with fewer agreeing tokens is given up */
#define DRAFT_PRESET       3     /* tokens per draft of a model without num_speculative_tokens */
#define DRAFT_SHARE        0.7f  /* of a model's drafts that are right, before any was computed */
#define DRAFT_FORCED_RESTS 16    /* the longest pause of forced drafts, tokens */
#define DRAFT_SHARE_MIN    0.01f /* 0 says that none was computed */
#define DRAFT_WEIGHT       0.1f  /* of a draft in the running mean of that share */

/* --- options -------------------------------------------------------------------------------- */

/* Errors are sentences such as "'method' must be "ngram" or "suffix"". */
static int draft_refuse(char *why, size_t cap, const char *name, const char *wanted)
{
    (void)snprintf(why, cap, "'%s' must be %s", name, wanted);
    return ERR_INVALID;
}

/* Read a whole number of 1 .. most into *out, if the field is there. */
static int draft_read_count(const struct json *o, const char *name, int most, int *out, char *why,
                            size_t cap)
{
    const struct json *value = json_get(o, name);
    char wanted[48];

    if (value == NULL || value->kind == JSON_NULL)
        return ERR_OK;
    if (value->kind == JSON_INT && value->whole >= 1 && value->whole <= most) {
        *out = (int)value->whole;
        return ERR_OK;
    }
    (void)snprintf(wanted, sizeof wanted, "a whole number from 1 to %d", most);
    return draft_refuse(why, cap, name, wanted);
}

/* As in vLLM: one of the two bounds alone sets both. */
static int draft_read_lookup(struct draft_options *out, const struct json *o, char *why, size_t cap)
{
    int rc;

    out->n_min = out->n_max = 0;
    rc = draft_read_count(o, "prompt_lookup_min", DRAFT_DEPTH, &out->n_min, why, cap);
    if (rc == ERR_OK)
        rc = draft_read_count(o, "prompt_lookup_max", DRAFT_DEPTH, &out->n_max, why, cap);
    if (rc != ERR_OK)
        return rc;
    if (out->n_min == 0 && out->n_max == 0)
        out->n_min = out->n_max = DRAFT_NGRAMS;
    else if (out->n_min == 0 || out->n_max == 0)
        out->n_min = out->n_max = out->n_min + out->n_max;
    if (out->n_min <= out->n_max)
        return ERR_OK;
    return draft_refuse(why, cap, "prompt_lookup_min", "at most prompt_lookup_max");
}

/* Suffix decoding in vLLM's words: the factor limits a draft by the length of the agreement. */
static int draft_read_suffix(struct draft_options *out, const struct json *o, char *why, size_t cap)
{
    const struct json *factor = json_get(o, "suffix_decoding_max_spec_factor");

    out->n_min = 2;
    out->n_max = DRAFT_MAX;
    if (factor != NULL && factor->kind != JSON_NULL) {
        if (!json_is_number(factor) || json_real(factor) <= 0.0 || json_real(factor) > 100.0)
            return draft_refuse(why, cap, factor->key, "a number above 0 and at most 100");
        out->factor = json_real(factor);
    }
    return draft_read_count(o, "suffix_decoding_max_tree_depth", 1 << 16, &out->n_max, why, cap);
}

/* The folder of a drafter. It runs on one device, whatever the target has. */
static int draft_read_model(struct draft_options *out, const struct json *o, char *why, size_t cap)
{
    const struct json *model = json_get_kind(o, "model", JSON_TEXT);
    const struct json *adaptive = json_get(o, "adaptive");
    int n_devices = 1;

    if (adaptive != NULL && adaptive->kind != JSON_BOOL)
        return draft_refuse(why, cap, "adaptive", "true or false");
    out->is_fixed = adaptive != NULL && !adaptive->flag;
    if (json_get(o, "model") == NULL && out->method == DRAFT_MTP)
        return draft_read_count(o, "draft_tensor_parallel_size", 1, &n_devices, why, cap);
    if (model == NULL || model->text_len == 0 || model->text_len >= sizeof out->model ||
        json_has_nul(model))
        return draft_refuse(why, cap, "model", "the folder of the drafter");
    memcpy(out->model, model->text, model->text_len + 1);
    return draft_read_count(o, "draft_tensor_parallel_size", 1, &n_devices, why, cap);
}

/* True for the methods whose drafts a model makes; without a method a model is enough. */
static bool draft_has_model(const struct json *method, const struct json *o, enum draft_method *out)
{
    static const struct {
        const char *name;
        enum draft_method method;
    } methods[] = {{"draft_model", DRAFT_MODEL}, {"eagle3", DRAFT_EAGLE3}, {"mtp", DRAFT_MTP}};

    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (json_is_text(method, methods[i].name)) {
            *out = methods[i].method;
            return true;
        }
    }
    if ((method != NULL && method->kind != JSON_NULL) || json_get(o, "model") == NULL)
        return false;
    *out = DRAFT_MODEL;
    return true;
}

/* num_speculative_tokens above DRAFT_MAX is reduced to it, because vLLM's users ask for more. */
static int draft_read_object(struct draft_options *out, const struct json *o, char *why, size_t cap)
{
    const struct json *method = json_get(o, "method");
    int n_tokens = DRAFT_MAX, rc;

    if (json_is_text(method, "ngram")) {
        out->method = DRAFT_NGRAM;
        rc = draft_read_lookup(out, o, why, cap);
    } else if (json_is_text(method, "suffix")) {
        out->method = DRAFT_SUFFIX;
        rc = draft_read_suffix(out, o, why, cap);
    } else if (draft_has_model(method, o, &out->method)) {
        n_tokens = DRAFT_PRESET;
        rc = draft_read_model(out, o, why, cap);
    } else if (json_is_text(method, "forced")) {
        out->method = DRAFT_FORCED;
        rc = ERR_OK;
    } else {
        return draft_refuse(
            why, cap, "method",
            "\"draft_model\", \"eagle3\", \"forced\", \"mtp\", \"ngram\" or \"suffix\"");
    }
    if (rc == ERR_OK)
        rc = draft_read_count(o, "num_speculative_tokens", 1 << 16, &n_tokens, why, cap);
    out->n_tokens = n_tokens < DRAFT_MAX ? n_tokens : DRAFT_MAX;
    return rc;
}

int draft_read_options(struct draft_options *out, const char *text, char *why, size_t why_cap)
{
    struct arena arena = {0};
    const struct json *object;
    int rc;

    *out = (struct draft_options){.method = DRAFT_NONE, .factor = 1.0};
    if (text[0] == '\0')
        return ERR_OK;
    rc = json_parse(&object, &arena, text, strlen(text), why, why_cap);
    if (rc == ERR_OK && object->kind != JSON_OBJECT)
        rc = draft_refuse(why, why_cap, "it", "a JSON object");
    else if (rc == ERR_OK)
        rc = draft_read_object(out, object, why, why_cap);
    arena_reset(&arena);
    return rc;
}

/* --- the table of n-grams --------------------------------------------------------------------- */

/* A power of two that is at least the greatest length of seq: at least half of the buckets stay
 * free. */
static uint32_t draft_buckets(const struct seq *seq)
{
    uint32_t n = 256;

    while (n < (uint32_t)seq->tokens_max)
        n *= 2;
    return n;
}

/* Hash of the n tokens that end before position `end`. */
static uint32_t draft_hash(const int32_t *tokens, int end, int n)
{
    uint32_t h = 0x9e3779b9u;

    for (int i = end - n; i < end; i++)
        h = (h ^ (uint32_t)tokens[i]) * 0x85ebca6bu;
    return h ^ h >> 15;
}

/* Add the tokens since the last call to the table. heads[] has the last occurrence of each hash and
 * before[] chains the earlier ones, both as positions plus one, so that 0 is the end. */
static void draft_index(const struct draft_options *o, struct seq *seq)
{
    struct draft *draft = &seq->draft;
    uint32_t n = draft_buckets(seq);

    if (draft->n_indexed == 0) {
        memset(draft->heads, 0, n * sizeof *draft->heads);
        draft->n_indexed = o->n_min - 1;
        draft->place = -1;
        draft->length = o->n_tokens;
        draft->backoff = DRAFT_REST;
    }
    for (int i = 0; i < DRAFT_INDEXED && draft->n_indexed < seq->n_tokens; i++) {
        int end = ++draft->n_indexed; /* of the n-gram */
        int32_t *head = &draft->heads[draft_hash(seq->tokens, end, o->n_min) & (n - 1)];

        draft->before[end - 1] = *head;
        *head = end;
    }
}

/* How many tokens before `at` agree with the tokens at the end of the text, at most `most`. */
static int draft_agree(const struct seq *seq, int at, int most)
{
    int n = 0;

    while (n < most && n < at && seq->tokens[at - 1 - n] == seq->tokens[seq->n_tokens - 1 - n])
        n++;
    return n;
}

/* The earlier position that continues the text best, -1: none; *n_same tokens before it agree. Only
 * the last DRAFT_TRIES occurrences are compared. */
static int draft_find(const struct draft_options *o, const struct seq *seq, int *n_same)
{
    const struct draft *draft = &seq->draft;
    int most = o->method == DRAFT_NGRAM ? o->n_max : DRAFT_DEPTH;
    int best = -1, at;

    *n_same = 0;
    if (seq->n_tokens < o->n_min + 1 || draft->n_indexed != seq->n_tokens)
        return -1;
    at = draft->before[seq->n_tokens - 1];
    for (int i = 0; i < DRAFT_TRIES && at > 0; i++) {
        int n = draft_agree(seq, at, most);

        if (n >= o->n_min && n > *n_same) {
            *n_same = n;
            best = at;
        }
        at = draft->before[at - 1];
    }
    return best;
}

int draft_most(const struct draft_options *o, const struct seq *seq)
{
    int wanted = (int)seq->request.generate.drafts - 1;

    return wanted < 0 || wanted > o->n_tokens ? o->n_tokens : wanted;
}

/* No rows that are reported whole: there is room for one. Near the end of a reasoning's budget a
 * row's only token follows from the host's count; think_follow() may be some tokens behind. */
bool draft_may(const struct seq *seq)
{
    return seq->request.generate.drafts != 1 && !seq_has_rows(seq) &&
           !think_may_force(seq, 2 * (DRAFT_MAX + 1)) &&
           (seq->automaton == NULL || !seq->automaton->is_slow);
}

/* Choose where to read the drafts: at the place that the text has followed so far, unless another
 * occurrence agrees with at least as many tokens, or too few tokens agree at that place. */
static void draft_align(const struct draft_options *o, struct seq *seq)
{
    struct draft *draft = &seq->draft;
    int n_same, at = draft_find(o, seq, &n_same);
    bool holds = draft->place >= 0 && draft->run >= DRAFT_HOLD;

    if (holds && (at < 0 || n_same < draft->run))
        return;
    draft->place = at;
    draft->run = n_same;
}

/* Do forced tokens follow? Some tokens pass without a look after drafts that were wrong. */
static void draft_follow_forced(const struct draft_options *o, struct seq *seq)
{
    struct draft *draft = &seq->draft;

    if (draft->n_forced_rest > 0)
        draft->n_forced_rest--;
    draft->is_forced = o->guide != NULL && seq->automaton != NULL && draft->n_forced_rest == 0 &&
                       guide_is_forced(o->guide, seq);
}

/* The guess at `place` is compared with the real token, whether or not a draft was made of it. */
void draft_follow(const struct draft_options *o, struct seq *seq)
{
    struct draft *draft = &seq->draft;

    if (o->method == DRAFT_NONE || !draft_may(seq))
        return;
    draft_follow_forced(o, seq);
    draft->n_rest -= draft->n_rest > 0;
    if (draft_is_model(o) || o->method == DRAFT_FORCED)
        return;
    if (draft->n_indexed > 0 && draft->place >= 0) {
        bool is_right = seq->tokens[seq->n_tokens - 1] == seq->tokens[draft->place++];

        if (is_right) {
            draft->n_right++;
            draft->run++;
        } else {
            draft->n_right = 0;
            draft->run /= DRAFT_DECAY;
        }
    }
    draft_index(o, seq);
    draft_align(o, seq);
    if (draft->place < 0)
        draft->n_right = 0;
    draft->is_on = draft->is_on || (draft->n_right >= DRAFT_STREAK && draft->n_rest == 0);
}

/* The text's own drafts are written after the known tokens in seq->tokens, where fill_tokens()
 * finds them; they do not count in n_tokens. Returns how many. */
static int draft_copy(const struct draft_options *o, struct seq *seq, int most)
{
    struct draft *draft = &seq->draft;
    int n = draft->length, at = draft->place;

    if (o->method == DRAFT_SUFFIX) {
        int wanted = (int)(o->factor * (draft->run < DRAFT_DEPTH ? draft->run : DRAFT_DEPTH));

        if (n > wanted)
            n = wanted;
        if (n > o->n_max)
            n = o->n_max;
    }
    if (n > most)
        n = most;
    if (at < 0 || n < 1) {
        draft->is_on = false; /* then it may run ahead */
        return 0;
    }
    /* A repetition continues in the drafts themselves: at + i may be one of them. */
    for (int i = 0; i < n; i++)
        seq->tokens[seq->n_tokens + i] = seq->tokens[at + i];
    return n;
}

/* Of n drafts of the method a forbidden one cannot be sampled. A text's place is wrong then, and
 * the sequence may run ahead; a model has computed it in vain. */
static void draft_forbid(const struct draft_options *o, struct seq *seq, int n)
{
    struct draft *draft = &seq->draft;

    if (draft_is_model(o))
        draft->share = fmaxf(DRAFT_SHARE_MIN, draft_share(draft) * (1.0f - DRAFT_WEIGHT));
    else if (n == 0)
        draft->is_on = false;
}

/* Forced drafts, where there is room for `most`. */
static int draft_most_forced(const struct draft *draft, int most)
{
    if (draft->n_forced_rest > 0)
        return 0;
    return draft->forced_length == 0 || draft->forced_length > most ? most : draft->forced_length;
}

void draft_propose(const struct draft_options *o, struct seq *seq, int most)
{
    struct draft *draft = &seq->draft;
    struct guide_drafts drafts = {0, 0};

    draft->n_forced = 0;
    draft->is_forced = false;
    if (most > draft_most(o, seq))
        most = draft_most(o, seq);
    if (draft->is_on && draft_is_model(o)) /* it has written them already */
        drafts.n = draft->made_at == seq->n_tokens ? draft->n_made : 0;
    else if (draft->is_on)
        drafts.n = draft_copy(o, seq, most);
    if (drafts.n > most)
        drafts.n = most;
    if (o->guide != NULL && most > 0 && draft_may(seq)) {
        int n = drafts.n, n_forced = draft_most_forced(draft, most - n);

        drafts = guide_draft(o->guide, seq, n, n + n_forced);
        if (drafts.n_kept < n)
            draft_forbid(o, seq, drafts.n_kept);
        draft->n_forced = drafts.n - drafts.n_kept;
    }
    draft->n = drafts.n;
}

float draft_share(const struct draft *draft)
{
    return draft->share > 0.0f ? draft->share : DRAFT_SHARE;
}

void draft_rest(struct draft *draft, int n)
{
    draft->is_on = false;
    draft->n_rest = n;
}

/* Each right draft and the first wrong one count; those behind a wrong one say nothing. The drafter
 * computed the keys of all its drafts but the last one: those of right ones stay, but a head's,
 * which are made of guesses. A rest after wrong ones is the drafter's to decide
 * (drafter_choose()). */
static void draft_learn_share(const struct draft_options *o, struct draft *draft, int n,
                              int n_right)
{
    float share = draft_share(draft);

    for (int i = 0; i < n && i <= n_right; i++)
        share += DRAFT_WEIGHT * ((i < n_right ? 1.0f : 0.0f) - share);
    draft->share = fmaxf(DRAFT_SHARE_MIN, share);
    if (n_right == n && n > 0)
        draft->backoff = 0;
    if (o->method == DRAFT_MODEL && n > 0)
        draft->n_beside += n_right < draft->n_made ? n_right : draft->n_made - 1;
    draft->n_made = 0;
}

/* Forced drafts are guesses of how bytes are cut into tokens. So there are more of them while all
 * are right, fewer after wrong ones, and none for a while where not even the first one was
 * right. */
static void draft_learn_forced(struct draft *draft, int n, int n_right)
{
    if (n_right < n)
        draft->forced_length = n_right + 1;
    else if (draft->forced_length < DRAFT_MAX)
        draft->forced_length *= 2;
    if (n_right > 0) {
        draft->forced_backoff = 0;
        return;
    }
    draft->forced_backoff = draft->forced_backoff == 0 ? 1 : 2 * draft->forced_backoff;
    if (draft->forced_backoff > DRAFT_FORCED_RESTS)
        draft->forced_backoff = DRAFT_FORCED_RESTS;
    draft->n_forced_rest = draft->forced_backoff;
}

/* A draft with a wrong first token may have met a difference: the place is tried once more if
 * enough tokens agree there. A second wrong draft ends the drafts for a while. */
static void draft_learn_place(const struct draft_options *o, struct draft *draft, int n,
                              int n_right)
{
    bool holds = draft->place >= 0 && draft->run >= DRAFT_HOLD && !draft->was_wrong;

    draft->was_wrong = n_right == 0;
    if (n_right == n) {
        draft->length *= 2;
        if (draft->length > o->n_tokens)
            draft->length = o->n_tokens;
        draft->backoff = DRAFT_REST;
    } else if (n_right > 0) {
        draft->length = n_right + 1;
    } else if (holds) {
        draft->length = 2 < o->n_tokens ? 2 : o->n_tokens;
    } else {
        draft->is_on = false;
        draft->n_right = 0;
        draft->n_rest = draft->backoff;
        draft->backoff *= 2;
        if (draft->backoff > DRAFT_RESTS)
            draft->backoff = DRAFT_RESTS;
        draft->length = 2 < o->n_tokens ? 2 : o->n_tokens;
    }
}

void draft_learn(const struct draft_options *o, struct seq *seq, int n, int n_right)
{
    struct draft *draft = &seq->draft;
    int n_forced = draft->n_forced > 0 ? draft->n_forced : 0;
    int own = n > n_forced ? n - n_forced : 0;
    int own_right = n_right < own ? n_right : own;

    if (n > own && n_right >= own)
        draft_learn_forced(draft, n - own, n_right - own);
    if (draft_is_model(o))
        draft_learn_share(o, draft, own, own_right);
    else if (own > 0)
        draft_learn_place(o, draft, own, own_right);
}
