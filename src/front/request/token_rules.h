/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of a request on single tokens: biases, the set of allowed ids, bad words, stop ids, ids
 * whose log probabilities are requested. A reader thread reads them into the exchange's arena. They
 * are written in the engine's form at submission, because only the engine knows how many ids there
 * are. */
#ifndef QUIRE_FRONT_REQUEST_TOKEN_RULES_H
#define QUIRE_FRONT_REQUEST_TOKEN_RULES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "base/mem.h"
#include "ipc/wire_request.h"
#include "text/tokenizer/tokenizer.h"

#define TOKEN_RULES_BIAS_MAX  100.0 /* larger biases are clamped, as in vLLM */
#define TOKEN_RULES_WORDS_MAX 128   /* maximum number of bad_words, as in vLLM */

struct token_rules {
    struct wire_bias *biases; /* [n_biases], ids ascending */
    uint32_t n_biases;
    int32_t *allowed; /* [n_allowed]; none: all ids are allowed */
    uint32_t n_allowed;
    int32_t *bad; /* [n_bad], in the form of struct wire_generate */
    uint32_t n_bad;
    int32_t *asked; /* [n_asked], each id once */
    uint32_t n_asked;
    int32_t *stop_ids; /* [n_stop_ids], ascending, each once */
    uint32_t n_stop_ids;
};

/* Read `logit_bias` {"id": number}, `allowed_token_ids` [id], `bad_words` [text] and so on. A bad
 * word is banned with and without a space before it. ERR_OK; ERR_INVALID or ERR_LIMIT (too many),
 * with a sentence in why; ERR_NO_MEMORY. */
int token_rules_read_biases(struct token_rules *s, struct arena *arena, const struct json *v,
                            char *why, size_t why_cap) ERR_CHECKED;
int token_rules_read_allowed(struct token_rules *s, struct arena *arena, const struct json *v,
                             char *why, size_t why_cap) ERR_CHECKED;
/* `logprob_token_ids` [id]: ids whose log probabilities are returned with each token. */
int token_rules_read_asked(struct token_rules *s, struct arena *arena, const struct json *v,
                           char *why, size_t why_cap) ERR_CHECKED;
/* `stop_token_ids` [id], any number of them. */
int token_rules_read_stops(struct token_rules *s, struct arena *arena, const struct json *v,
                           char *why, size_t why_cap) ERR_CHECKED;
bool token_rules_has_stop(const struct token_rules *s, int32_t id);
int token_rules_read_bad_words(struct token_rules *s, struct arena *arena,
                               const struct tokenizer *t, const struct json *v, char *why,
                               size_t why_cap) ERR_CHECKED;

/* Fill r->n_allowed, n_biases, n_bad, n_asked, n_stops, n_stop_ids and stop_ids, and allocate the
 * words that follow the tokens: int32 [wire_generate_extra(r)], for the caller to mem_free(); NULL
 * when there are none. ERR_INVALID with the field's name in *param and the id in *wrong when an id
 * is not below n_vocab; ERR_NO_MEMORY. */
int token_rules_write(const struct token_rules *s, uint32_t n_vocab, struct wire_generate *r,
                      int32_t **words, const char **param, int32_t *wrong) ERR_CHECKED;

#endif
