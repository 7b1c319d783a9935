/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers made of rows of numbers: vectors, scores, and documents in the order of their scores.
 *
 * Each text is a generation without output: the engine sends the row of its numbers, and the front
 * makes of it what the endpoint promises. Vectors are cut and get the length 1 here, and scores
 * their activation, because requests differ in that and the engine's rows do not. */
#ifndef QUIRE_FRONT_ANSWER_POOLED_H
#define QUIRE_FRONT_ANSWER_POOLED_H

#include "base/pooling.h"
#include "front/request/exchange.h"

#define POOLED_TEXTS_MAX  2048 /* of one request, as in OpenAI's API */
#define POOLED_TOKENS_MAX 8192 /* of all texts whose tokens have a row each */

enum pooled_answer {
    POOLED_EMBEDDINGS, /* /v1/embeddings */
    POOLED_ROWS,       /* /pooling */
    POOLED_CLASSES,    /* /classify */
    POOLED_SCORES,     /* /score */
    POOLED_RANKS,      /* /rerank */
};

/* What a request wants, in the exchange's arena. */
struct pooled {
    enum pooled_answer answer;
    const struct pooling *model;
    const char *param;         /* the field with the texts, for errors */
    bool base64;               /* encoding_format */
    bool each;                 /* a row for each token */
    bool activates;            /* use_activation */
    const struct json *labels; /* {"0": name, ...} of config.json; NULL: none */
    int dimensions;            /* of vectors; 0: all */
    uint32_t n_floats;         /* of one row; 0: none has come */
    uint64_t n_tokens; /* of all texts, before they were cut to what the answer depends on */
    /* Of scores. By vectors, the generations are those of the left texts, then of the right ones;
     * else one for each pair. One left text belongs to all right ones. */
    bool by_vectors;
    int n_left, n_right;
    const struct json **documents; /* [n_right], their texts */
    int64_t top_n;                 /* of ranks; 0: all */
    bool returns_documents;
};

/* The prefix of an answer's id. */
const char *pooled_id_prefix(enum pooled_answer answer);

/* A record of g's row has come; n: floats of a row. */
void pooled_row(struct gen *g, const struct wire_out *o, uint32_t n);

/* Has g its whole row? */
bool pooled_is_whole(const struct gen *g);

/* All rows are there: the whole answer. */
void pooled_reply(struct exchange *x);

#endif
