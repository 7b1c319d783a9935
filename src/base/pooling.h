/* SPDX-License-Identifier: Apache-2.0
 *
 * How a model is served: does it generate, or does it turn a text into a vector or a score?
 *
 * The settings say so (runner, convert, pooler_config, hf_overrides), or else the model's folder:
 * the files of sentence-transformers and config.json. Engine and fronts read the same settings and
 * files, so they come to the same result. */
#ifndef QUIRE_BASE_POOLING_H
#define QUIRE_BASE_POOLING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/settings.h"

#define POOLING_DIMENSIONS_MAX 64   /* members of matryoshka_dimensions */
#define POOLING_LABELS_MAX     4096 /* of a classifier */
#define POOLING_TOKENS_MAX     16   /* of classifier_from_token */
#define POOLING_TOKEN_BYTES    64   /* of one of them, its NUL included */

enum pooling_kind {
    POOLING_NONE,  /* it generates */
    POOLING_EMBED, /* a row of the last norm's results is the answer */
    POOLING_SCORE, /* products of that row with some rows of numbers, one per label, are */
};

/* The position whose row counts. */
enum pooling_type { POOLING_LAST, POOLING_MEAN, POOLING_CLS };

struct pooling {
    enum pooling_kind kind;
    enum pooling_type type;
    bool activates;     /* use_activation: vectors get the length 1, scores are made
                              * probabilities */
    bool is_matryoshka; /* a vector may be cut to its first numbers */
    int n_dimensions;   /* lengths that it may be cut to; 0: any */
    int dimensions[POOLING_DIMENSIONS_MAX];
    int preset_dimensions; /* the length without the field `dimensions`; 0: all */
    int len_max;           /* tokens of a text, by sentence_bert_config.json; 0: not said, or as
                              * many as config.json allows */
    double mean, sigma;    /* a score is (logit - mean) / sigma before its activation */
    int n_labels;          /* of POOLING_SCORE, 1 .. POOLING_LABELS_MAX */
    /* The labels are tokens: their rows of the output matrix. Without any, they are the tensor
     * score.weight. */
    int n_tokens;
    struct pooling_token {
        char text[POOLING_TOKEN_BYTES]; /* as the vocabulary has it; "": id is set */
        int32_t id;                     /* -1: not looked up yet */
    } tokens[POOLING_TOKENS_MAX];
    bool is_difference; /* the one label is the second token's row less the first one's */
};

/* Read the settings and the folder that they name. ERR_OK, also where a file of the folder is
 * missing; ERR_INVALID, ERR_SYNTAX, ERR_UNSUPPORTED, ERR_IO, ERR_NO_MEMORY, all logged. */
int pooling_read(struct pooling *out, const struct settings *s) ERR_CHECKED;

/* Look up the ids of the tokens in tokenizer.json, or else vocab.json, of the folder. Takes up to a
 * second. Errors as above. */
int pooling_find_tokens(struct pooling *p, const char *dir) ERR_CHECKED;

/* May a vector be cut to n numbers? */
bool pooling_has_dimension(const struct pooling *p, int64_t n);

/* The name of a pooling, as vLLM has it. */
const char *pooling_type_name(enum pooling_type type);

/* Is a member of hf_overrides read here, and not by the reader of config.json? */
bool pooling_overrides(const char *name);

/* The length of the architecture's name without what says how it is used: "Qwen3" of
 * "Qwen3ForCausalLM", "Qwen3ForSequenceClassification" and "Qwen3Model". 0: it has no such end.
 * *is_headless: it has no output matrix. */
size_t pooling_stem(const char *architecture, bool *is_headless);

#endif
