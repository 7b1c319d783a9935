/* SPDX-License-Identifier: Apache-2.0
 *
 * Pre-tokenizers: cut a text into the pieces that BPE encodes one by one. */
#ifndef QUIRE_TEXT_TOKENIZER_PRETOKEN_H
#define QUIRE_TEXT_TOKENIZER_PRETOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "text/tokenizer/image.h"
#include "text/tokenizer/scan.h"
#include "text/tokenizer/steps.h"

/* Kinds of steps. Smaller numbers are scanners: enum scan_kind. */
enum pretoken_kind {
    PRETOKEN_REGEX = 64,
    PRETOKEN_LITERAL,   /* cut at a literal text */
    PRETOKEN_PREFIX,    /* put a space before a piece that does not begin with one */
    PRETOKEN_METASPACE, /* replace spaces by `by`; see enum metaspace */
    PRETOKEN_SPELL,     /* spell bytes in GPT-2's alphabet, for the steps that follow */
    PRETOKEN_RUNS,      /* the cuts that Kimi's class makes first in long texts */
};

/* Which pieces a step makes of the matches of its pattern and of the text between them. */
enum pretoken_behavior {
    PRETOKEN_ISOLATED,
    PRETOKEN_REMOVED,
    PRETOKEN_WITH_PREVIOUS,
    PRETOKEN_WITH_NEXT,
    PRETOKEN_CONTIGUOUS,
    PRETOKEN_BEHAVIORS
};

/* The behavior of PRETOKEN_METASPACE: when `by` is put before a piece that does not begin with
 * it. */
enum metaspace { METASPACE_NEVER, METASPACE_FIRST, METASPACE_ALWAYS, METASPACE_SCHEMES };

/* A chain of steps: each step cuts the pieces of the previous one. */
struct pretoken {
    struct steps_draft chain;         /* the texts of its steps are borrowed */
    struct regex *regexes[STEPS_MAX]; /* of PRETOKEN_REGEX; owned */
    bool has_regex;
    bool spelled;  /* the last pieces are in GPT-2's alphabet */
    uint8_t *bits; /* table of scan_fill(); owned */
};

/* Read the pre_tokenizer of a tokenizer.json; NULL or null has no steps.
 *
 *   byte_level  out: the chain contains ByteLevel, so BPE starts from bytes
 *
 * ERR_UNSUPPORTED or ERR_INVALID, with the element in why. Patterns are not compiled yet. */
int pretoken_read(struct steps_draft *out, bool *byte_level, const struct json *node, char *why,
                  size_t why_cap) ERR_CHECKED;

/* The chain of vocab.json + merges.txt: ByteLevel with GPT-2's pattern. */
void pretoken_gpt2(struct steps_draft *out, bool add_prefix_space);

/* The steps of Kimi's class TikTokenTokenizer, whose folders have no tokenizer.json. */
void pretoken_kimi(struct steps_draft *out);

/* Prepare a chain, whose texts must outlive `pretoken`: compile its regexes, fill the table of
 * characters. ERR_CORRUPT for steps that the functions above cannot produce, ERR_UNSUPPORTED for a
 * regex that cannot be translated, ERR_NO_MEMORY. On error pretoken_fini() is not needed. */
int pretoken_init(struct pretoken *pretoken, const struct steps_draft *chain, char *why,
                  size_t why_cap) ERR_CHECKED;
void pretoken_fini(struct pretoken *pretoken);

/* Receives one piece, which is valid until it returns. An error ends the cutting and is
 * returned. */
typedef int pretoken_sink(void *context, const char *piece, size_t len);

struct pretoken_receiver {
    pretoken_sink *sink;
    void *context; /* its first argument */
};

struct pretoken_work; /* scratch memory of one call */

struct pretoken_work *pretoken_work_open(const struct pretoken *pretoken); /* NULL: no memory */
void pretoken_work_close(struct pretoken_work *w);

/* Cut valid UTF-8 and pass the pieces to the sink in order. `first` is set when text is the start
 * of the text that is being tokenized. Returns ERR_OK, ERR_LIMIT (a regex exceeded its bound),
 * ERR_NO_MEMORY, or the sink's error. */
int pretoken_cut(const struct pretoken *pretoken, struct pretoken_work *w, const char *text,
                 size_t len, bool first, const struct pretoken_receiver *to) ERR_CHECKED;

#endif
