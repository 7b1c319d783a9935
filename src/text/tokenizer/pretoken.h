/* Pre-tokenizers: how a text is cut into the pieces that BPE encodes one by one. */
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

/* Kinds of steps. Those below these are scanners: enum scan_kind. */
enum pretoken_kind {
    PRETOKEN_REGEX = 64,
    PRETOKEN_LITERAL,   /* a text that is looked for as it is */
    PRETOKEN_PREFIX,    /* a space before the piece unless it has one */
    PRETOKEN_METASPACE, /* spaces become `by`; see enum metaspace */
    PRETOKEN_SPELL,     /* bytes become GPT-2's alphabet for the steps that follow */
    PRETOKEN_RUNS,      /* cuts that Kimi's class makes in long texts before all others */
};

/* What becomes of the matches and of what stands between them. */
enum pretoken_behavior {
    PRETOKEN_ISOLATED,
    PRETOKEN_REMOVED,
    PRETOKEN_WITH_PREVIOUS,
    PRETOKEN_WITH_NEXT,
    PRETOKEN_CONTIGUOUS,
    PRETOKEN_BEHAVIORS
};

/* The behavior of PRETOKEN_METASPACE: when `by` is put in front of a piece that has none. */
enum metaspace { METASPACE_NEVER, METASPACE_FIRST, METASPACE_ALWAYS, METASPACE_SCHEMES };

/* A chain: each step cuts the pieces of the one before. */
struct pretoken {
    struct steps_draft chain;         /* the texts of its steps are borrowed */
    struct regex *regexes[STEPS_MAX]; /* of PRETOKEN_REGEX; owned */
    bool has_regex;
    bool spelled;  /* the pieces are in GPT-2's alphabet */
    uint8_t *bits; /* scan_fill(); owned */
};

/* Read the pre_tokenizer of a tokenizer.json; NULL or null has no steps.
 *
 *   byte_level  out: the chain holds ByteLevel, so BPE starts from bytes
 *
 * ERR_UNSUPPORTED and ERR_INVALID name what is not known. Patterns are not compiled yet. */
int pretoken_read(struct steps_draft *out, bool *byte_level, const struct json *node, char *why,
                  size_t why_cap) ERR_CHECKED;

/* The chain of vocab.json + merges.txt: ByteLevel with GPT-2's pattern. */
void pretoken_gpt2(struct steps_draft *out, bool add_prefix_space);

/* The steps of Kimi's TikTokenTokenizer, whose folders have no tokenizer.json. */
void pretoken_kimi(struct steps_draft *out);

/* Make a chain ready, whose texts must outlive p. ERR_CORRUPT for steps that none of these
 * functions makes, ERR_UNSUPPORTED for a regex that is not understood, ERR_NO_MEMORY. On error p
 * needs no pretoken_fini(). */
int pretoken_init(struct pretoken *pretoken, const struct steps_draft *chain, char *why,
                  size_t why_cap) ERR_CHECKED;
void pretoken_fini(struct pretoken *pretoken);

/* Takes one piece; an error ends the cutting and is passed on. */
typedef int pretoken_sink(void *context, const char *piece, size_t len);

struct pretoken_work; /* memory of one call */

struct pretoken_work *pretoken_work_open(const struct pretoken *pretoken); /* NULL: no memory */
void pretoken_work_close(struct pretoken_work *w);

/* Cut valid UTF-8. `first`: it stands at the start of what the caller tokenizes. ERR_OK,
 * ERR_LIMIT (a regex ran too long), ERR_NO_MEMORY, or the sink's. */
int pretoken_cut(const struct pretoken *pretoken, struct pretoken_work *w, const char *text,
                 size_t len, bool first, pretoken_sink *sink, void *context) ERR_CHECKED;

#endif
