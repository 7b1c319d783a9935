/* SPDX-License-Identifier: Apache-2.0
 *
 * Log probabilities that a model gives to texts: what `quire eval` prints, and what
 * `quire quantize` compares before and after. One model in this process, no server; one thread. */
#ifndef QUIRE_TOOLS_EVAL_H
#define QUIRE_TOOLS_EVAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/settings.h"

struct eval;

/* Open the model and the tokenizer of a folder or GGUF file; settings->model is not read. `len`:
 * tokens of context, 2 or more; 0: 2048, or the model's longest if that is shorter. Errors are
 * logged. */
int eval_open(struct eval **out, const char *folder, const struct settings *settings,
              int len) ERR_CHECKED;
void eval_close(struct eval *e); /* NULL is fine */

/* Tokens of context. */
int eval_len(const struct eval *e);

/* The model, which eval_close() closes. */
struct model *eval_model(const struct eval *e);

/* Compute a text, in windows of eval_len() tokens one after another, at most *n_left tokens of it,
 * and count them down. */
int eval_read(struct eval *e, const char *text, size_t len, long *n_left) ERR_CHECKED;

/* The sum over the tokens that were counted. */
struct eval_sum {
    double nats; /* -log p */
    long n_tokens;
    long n_bytes; /* of the whole text */
};

/* Count a whole text in windows of eval_len() tokens, each half a window after the one before it,
 * so that a token is counted once, behind at least half a window of others (the first window's
 * tokens behind all that there are). Where the tokenizer puts a token before texts, each window
 * begins with it. ERR_INVALID for a text of fewer than two tokens; logged. */
int eval_text(struct eval *e, const char *text, size_t len, struct eval_sum *out) ERR_CHECKED;

/* Count the tokens of `choice` behind `prompt`: those of prompt and choice joined, without as many
 * as the prompt alone has. If both are longer than the context, the prompt's beginning is left out.
 * ERR_LIMIT when the choice alone is longer, or empty in tokens; logged. */
int eval_choice(struct eval *e, const char *prompt, const char *choice,
                struct eval_sum *out) ERR_CHECKED;

#endif
