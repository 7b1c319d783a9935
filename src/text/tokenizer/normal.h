/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalizers: rewrite a text before it is searched for added tokens and cut into pieces. */
#ifndef QUIRE_TEXT_TOKENIZER_NORMAL_H
#define QUIRE_TEXT_TOKENIZER_NORMAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer/image.h"
#include "text/tokenizer/steps.h"

enum normal_kind {
    NORMAL_NFC,
    NORMAL_PREPEND, /* put `by` before a text that is not empty */
    NORMAL_REPLACE, /* each `pattern` becomes `by` */
    NORMAL_REPLACE_REGEX,
    NORMAL_KINDS
};

struct normal {
    struct steps_draft steps;         /* their texts are borrowed */
    struct regex *regexes[STEPS_MAX]; /* of NORMAL_REPLACE_REGEX; owned */
};

/* Scratch memory of one call. Start from {0}. */
struct normal_work {
    struct buf texts[2];
    struct regex_work *regex;
};

void normal_work_fini(struct normal_work *work);

/* Read the normalizer of a tokenizer.json; NULL or null has no steps. ERR_UNSUPPORTED or
 * ERR_INVALID, with the element in why. */
int normal_read(struct steps_draft *out, const struct json *node, char *why,
                size_t why_cap) ERR_CHECKED;

/* Prepare steps, whose texts must outlive `normal`: compile their regexes. ERR_CORRUPT for steps
 * that normal_read() cannot produce (a damaged image); ERR_UNSUPPORTED for a regex that cannot be
 * translated or that matches the empty text; ERR_NO_MEMORY. On error normal_fini() is not
 * needed. */
int normal_init(struct normal *normal, const struct steps_draft *steps, char *why,
                size_t why_cap) ERR_CHECKED;
void normal_fini(struct normal *normal);

/* Normalize valid UTF-8. *out is the text itself, or points into `work` and is valid until the next
 * call. ERR_OK, ERR_NO_MEMORY, or ERR_LIMIT when a regex exceeded its bound or the text grew to
 * more than 64 times its size. */
int normal_apply(const struct normal *normal, struct normal_work *work, const char *text,
                 size_t len, const char **out, size_t *out_len) ERR_CHECKED;

#endif
