/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules on single tokens: reading them from a request, and writing them in the form of
 * wire_request.h. Ids are checked against the size of the vocabulary only when written, because a
 * front learns that size from the engine.
 *
 * The words after a request's tokens:
 *
 *   allowed     biases         bad words          asked    stops
 *   n_allowed   2 * n_biases   n_bad              n_asked  n_stops words
 *   (bits)      (id, value)    (length, ids ...)  (ids)    (bits) */
#include "front/request/token_rules.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "front/request/lax.h"

/* For qsort(): by token id. */
static int token_rules_by_id(const void *a, const void *b)
{
    const struct wire_bias *left = a, *right = b;

    return (left->id > right->id) - (left->id < right->id);
}

/* A member's name of logit_bias as a token id; -1 when it is none. */
static int64_t token_rules_id(const char *name)
{
    char *end;
    long long id;

    if (name[0] < '0' || name[0] > '9')
        return -1;
    errno = 0;
    id = strtoll(name, &end, 10);
    if (errno != 0 || *end != '\0' || id > INT32_MAX)
        return -1;
    return id;
}

/* A field: its name, the kind of its value, that kind for error texts, and the maximum number of
 * members. */
struct token_rules_field {
    const char *name;
    enum json_kind kind;
    const char *wanted;
    uint32_t most;
};

/* Check the kind of v and that it has at most `most` members. */
static int token_rules_count(const struct token_rules_field *field, const struct json *v, char *why,
                             size_t why_cap)
{
    char shown[LAX_SHOW_BYTES];

    if (v->kind != field->kind) {
        (void)snprintf(why, why_cap, "'%s' must be %s, not %s", field->name, field->wanted,
                       lax_show(v, shown));
        return ERR_INVALID;
    }
    if (v->n > field->most) {
        (void)snprintf(why, why_cap, "'%s' has %u members; at most %u are allowed", field->name,
                       v->n, field->most);
        return ERR_LIMIT;
    }
    return ERR_OK;
}

/* "logit_bias": {"1734": -100, "50256": "2.5"}. Sorted by id, so that equal ids are found. */
int token_rules_read_biases(struct token_rules *s, struct arena *arena, const struct json *v,
                            char *why, size_t why_cap)
{
    char shown[LAX_SHOW_BYTES];
    static const struct token_rules_field field = {
        "logit_bias", JSON_OBJECT, "an object of token ids and numbers", WIRE_BIASES_MAX};
    int rc = token_rules_count(&field, v, why, why_cap);

    if (rc != ERR_OK)
        return rc;
    s->biases = arena_zalloc(arena, (v->n + 1) * sizeof *s->biases);
    if (s->biases == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json bias = lax_number(&v->items[i]);
        int64_t id = token_rules_id(bias.key);
        double value = json_is_number(&bias) ? json_real(&bias) : 0.0;

        if (id < 0) {
            (void)snprintf(why, why_cap,
                           "'logit_bias' must map token ids to numbers: \"%.40s\" is not a token "
                           "id",
                           bias.key);
            return ERR_INVALID;
        }
        if (!json_is_number(&bias)) {
            (void)snprintf(why, why_cap,
                           "'logit_bias' must map token ids to numbers from -100 to 100: %.40s has "
                           "%s",
                           bias.key, lax_show(&v->items[i], shown));
            return ERR_INVALID;
        }
        /* Clamped, as in vLLM. */
        if (value > TOKEN_RULES_BIAS_MAX)
            value = TOKEN_RULES_BIAS_MAX;
        if (value < -TOKEN_RULES_BIAS_MAX)
            value = -TOKEN_RULES_BIAS_MAX;
        s->biases[i] = (struct wire_bias){.id = (int32_t)id, .value = (float)value};
    }
    qsort(s->biases, v->n, sizeof *s->biases, token_rules_by_id);
    for (uint32_t i = 1; i < v->n; i++) {
        if (s->biases[i].id == s->biases[i - 1].id) { /* "7" and "07" are different names */
            (void)snprintf(why, why_cap, "'logit_bias' has token id %d twice", s->biases[i].id);
            return ERR_INVALID;
        }
    }
    s->n_biases = v->n;
    return ERR_OK;
}

/* The other rules are lists of ids. allowed_token_ids may be as long as the vocabulary;
 * logprob_token_ids is short and keeps its order; stop_token_ids is sorted for bsearch(). */
int token_rules_read_allowed(struct token_rules *s, struct arena *arena, const struct json *v,
                             char *why, size_t why_cap)
{
    char shown[LAX_SHOW_BYTES];
    static const struct token_rules_field field = {"allowed_token_ids", JSON_LIST,
                                                   "a list of token ids", UINT32_MAX};
    int rc = token_rules_count(&field, v, why, why_cap);

    if (rc == ERR_OK && v->n == 0) {
        (void)snprintf(why, why_cap, "'allowed_token_ids' must not be empty");
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK)
        return rc;
    s->allowed = arena_zalloc(arena, v->n * sizeof *s->allowed);
    if (s->allowed == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json id = lax_number(&v->items[i]);

        if (id.kind != JSON_INT || id.whole < 0 || id.whole > INT32_MAX) {
            (void)snprintf(why, why_cap, "'allowed_token_ids' must have token ids, not %s",
                           lax_show(&v->items[i], shown));
            return ERR_INVALID;
        }
        s->allowed[i] = (int32_t)id.whole;
    }
    s->n_allowed = v->n;
    return ERR_OK;
}

/* A token that is named twice is asked for once. */
int token_rules_read_asked(struct token_rules *s, struct arena *arena, const struct json *v,
                           char *why, size_t why_cap)
{
    static const struct token_rules_field field = {"logprob_token_ids", JSON_LIST,
                                                   "a list of token ids", WIRE_ASKED_MAX};
    int rc = token_rules_count(&field, v, why, why_cap);

    s->n_asked = 0;
    if (rc != ERR_OK || v->n == 0)
        return rc;
    s->asked = arena_zalloc(arena, v->n * sizeof *s->asked);
    if (s->asked == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json id = lax_number(&v->items[i]);
        char shown[LAX_SHOW_BYTES];
        bool twice = false;

        if (id.kind != JSON_INT || id.whole < 0 || id.whole > INT32_MAX) {
            (void)snprintf(why, why_cap, "'logprob_token_ids' must have token ids, not %s",
                           lax_show(&v->items[i], shown));
            return ERR_INVALID;
        }
        /* WIRE_ASKED_MAX is small, so this is not slow. */
        for (uint32_t k = 0; k < s->n_asked; k++)
            twice = twice || s->asked[k] == (int32_t)id.whole;
        if (!twice)
            s->asked[s->n_asked++] = (int32_t)id.whole;
    }
    return ERR_OK;
}

/* For qsort() and bsearch(). */
static int token_rules_by_value(const void *a, const void *b)
{
    const int32_t *left = a, *right = b;

    return (*left > *right) - (*left < *right);
}

/* Duplicates are removed, so that short lists fit in the request itself. */
int token_rules_read_stops(struct token_rules *s, struct arena *arena, const struct json *v,
                           char *why, size_t why_cap)
{
    char shown[LAX_SHOW_BYTES];
    static const struct token_rules_field field = {"stop_token_ids", JSON_LIST,
                                                   "a list of token ids", UINT32_MAX};
    int rc = token_rules_count(&field, v, why, why_cap);

    s->n_stop_ids = 0;
    if (rc != ERR_OK || v->n == 0)
        return rc;
    s->stop_ids = arena_zalloc(arena, v->n * sizeof *s->stop_ids);
    if (s->stop_ids == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json id = lax_number(&v->items[i]);

        if (id.kind != JSON_INT || id.whole < 0 || id.whole > INT32_MAX) {
            (void)snprintf(why, why_cap, "'stop_token_ids' must be a list of token ids, not %s",
                           lax_show(&v->items[i], shown));
            return ERR_INVALID;
        }
        s->stop_ids[i] = (int32_t)id.whole;
    }
    qsort(s->stop_ids, v->n, sizeof *s->stop_ids, token_rules_by_value);
    for (uint32_t i = 0; i < v->n; i++) {
        if (i == 0 || s->stop_ids[i] != s->stop_ids[i - 1])
            s->stop_ids[s->n_stop_ids++] = s->stop_ids[i];
    }
    return ERR_OK;
}

/* Is this one of the stop ids? */
bool token_rules_has_stop(const struct token_rules *s, int32_t id)
{
    return s->n_stop_ids > 0 && bsearch(&id, s->stop_ids, s->n_stop_ids, sizeof *s->stop_ids,
                                        token_rules_by_value) != NULL;
}

/* --- bad words --------------------------------------------------------------------------
 *
 * A bad word is a sequence of tokens whose last one must not follow the others. Most tokenizers
 * have different tokens for a word at the start of a text and after a space, so both are banned. */

/* Append one sequence: its length, then its ids. */
static int token_rules_add_word(struct token_rules *s, const struct token_list *ids)
{
    if (ids->len == 0)
        return ERR_OK;
    if (ids->len + 1 > WIRE_BAD_WORDS_MAX - s->n_bad)
        return ERR_LIMIT;
    s->bad[s->n_bad++] = (int32_t)ids->len;
    memcpy(s->bad + s->n_bad, ids->ids, ids->len * sizeof *ids->ids);
    s->n_bad += (uint32_t)ids->len;
    return ERR_OK;
}

/* Ban one word, bare and after a space. The second form is left out when it only adds tokens before
 * the first one, because banning that covers it. */
static int token_rules_ban_word(struct token_rules *s, struct arena *arena,
                                const struct tokenizer *t, const char *word, size_t len)
{
    struct token_list bare = {0}, spaced = {0};
    char *text;
    int rc = ERR_NO_MEMORY;

    /* Spaces before the word are removed: both forms are banned anyway. */
    while (len > 0 && *word == ' ') {
        word++;
        len--;
    }
    if (len == 0)
        return ERR_INVALID;
    text = arena_zalloc(arena, len + 2);
    if (text == NULL)
        goto out;
    text[0] = ' ';
    memcpy(text + 1, word, len);
    if ((rc = tokenizer_encode(t, word, len, false, &bare)) != ERR_OK ||
        (rc = tokenizer_encode(t, text, len + 1, false, &spaced)) != ERR_OK ||
        (rc = token_rules_add_word(s, &bare)) != ERR_OK)
        goto out;
    /* Compare the ends: with a tokenizer that writes the space as a token of its own, both forms
     * end alike. */
    if (spaced.len < bare.len ||
        memcmp(spaced.ids + (spaced.len - bare.len), bare.ids, bare.len * sizeof *bare.ids) != 0)
        rc = token_rules_add_word(s, &spaced);
out:
    token_list_fini(&bare);
    token_list_fini(&spaced);
    return rc;
}

/* Encode all words; this needs the tokenizer, so it is done after all fields are read. */
int token_rules_read_bad_words(struct token_rules *s, struct arena *arena,
                               const struct tokenizer *t, const struct json *v, char *why,
                               size_t why_cap)
{
    static const struct token_rules_field field = {"bad_words", JSON_LIST, "a list of strings",
                                                   TOKEN_RULES_WORDS_MAX};
    int rc = token_rules_count(&field, v, why, why_cap);

    if (rc != ERR_OK)
        return rc;
    s->bad = arena_zalloc(arena, WIRE_BAD_WORDS_MAX * sizeof *s->bad);
    if (s->bad == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *word = &v->items[i];

        rc = ERR_INVALID;
        if (word->kind == JSON_TEXT)
            rc = token_rules_ban_word(s, arena, t, word->text, word->text_len);
        if (rc == ERR_INVALID)
            (void)snprintf(why, why_cap,
                           "'bad_words' must be a list of strings that are not empty");
        if (rc == ERR_LIMIT)
            (void)snprintf(why, why_cap, "'bad_words' has more than %d tokens in all",
                           WIRE_BAD_WORDS_MAX);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* --- the engine's form ------------------------------------------------------------------
 *
 * The words after a request's tokens, in the order of struct wire_generate: the set of allowed ids,
 * biases, bad words, asked ids, the set of stop ids. A set has one bit per id. */

/* Set the bits of ids [n] in words. ERR_INVALID with the first id that is too large in *wrong. */
static int token_rules_write_set(const int32_t *ids, uint32_t n, uint32_t n_vocab, int32_t *words,
                                 int32_t *wrong)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = (uint32_t)ids[i], word;

        if (id >= n_vocab) {
            *wrong = (int32_t)id;
            return ERR_INVALID;
        }
        memcpy(&word, &words[id / 32], sizeof word);
        word |= UINT32_C(1) << id % 32;
        memcpy(&words[id / 32], &word, sizeof word);
    }
    return ERR_OK;
}

/* Fill in the counts of r, and write the words that follow the request's tokens. A few stop ids fit
 * in r itself; more become a set. ERR_INVALID with the field and the first id that is not in the
 * vocabulary. */
int token_rules_write(const struct token_rules *s, uint32_t n_vocab, struct wire_generate *r,
                      int32_t **words, const char **param, int32_t *wrong)
{
    int32_t *w;

    *words = NULL;
    if (s->n_stop_ids > 0 && (uint32_t)s->stop_ids[s->n_stop_ids - 1] >= n_vocab) {
        *param = "stop_token_ids";
        *wrong = s->stop_ids[s->n_stop_ids - 1];
        return ERR_INVALID;
    }
    if (s->n_stop_ids > WIRE_STOP_IDS)
        r->n_stops = (n_vocab + 31) / 32;
    else
        r->n_stops = 0;
    if (r->n_stops > 0)
        r->n_stop_ids = 0;
    else
        r->n_stop_ids = s->n_stop_ids;
    if (r->n_stop_ids > 0)
        memcpy(r->stop_ids, s->stop_ids, r->n_stop_ids * sizeof *s->stop_ids);
    if (s->n_allowed > 0)
        r->n_allowed = (n_vocab + 31) / 32;
    else
        r->n_allowed = 0;
    r->n_biases = s->n_biases;
    r->n_bad = s->n_bad;
    r->n_asked = s->n_asked;
    /* The usual case: no words at all. */
    if (wire_generate_extra(r) == 0)
        return ERR_OK;
    if (s->n_biases > 0 && (uint32_t)s->biases[s->n_biases - 1].id >= n_vocab) {
        *param = "logit_bias";
        *wrong = s->biases[s->n_biases - 1].id;
        return ERR_INVALID;
    }
    for (uint32_t i = 0; i < s->n_asked; i++) {
        if ((uint32_t)s->asked[i] >= n_vocab) {
            *param = "logprob_token_ids";
            *wrong = s->asked[i];
            return ERR_INVALID;
        }
    }
    /* Biases are sorted, so the last one has the largest id; so are stop ids above. */
    w = mem_zalloc_array((size_t)wire_generate_extra(r), sizeof *w);
    if (w == NULL)
        return ERR_NO_MEMORY;
    if (token_rules_write_set(s->allowed, s->n_allowed, n_vocab, w, wrong) != ERR_OK) {
        *param = "allowed_token_ids";
        mem_free(w);
        return ERR_INVALID;
    }
    if (s->n_biases > 0)
        memcpy(w + r->n_allowed, s->biases, s->n_biases * sizeof *s->biases);
    if (s->n_bad > 0)
        memcpy(w + r->n_allowed + 2 * (size_t)r->n_biases, s->bad, s->n_bad * sizeof *s->bad);
    if (s->n_asked > 0)
        memcpy(w + r->n_allowed + 2 * (size_t)r->n_biases + r->n_bad, s->asked,
               s->n_asked * sizeof *s->asked);
    *words = w;
    w += r->n_allowed + 2 * (size_t)r->n_biases + r->n_bad + r->n_asked;
    if (r->n_stops == 0)
        return ERR_OK;
    return token_rules_write_set(s->stop_ids, s->n_stop_ids, n_vocab, w, wrong);
}
