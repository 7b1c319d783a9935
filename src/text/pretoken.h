/* Pre-tokenizers: how a text is cut into the pieces that BPE encodes one by one. */
#ifndef QUIRE_TEXT_PRETOKEN_H
#define QUIRE_TEXT_PRETOKEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"

#define PRETOKEN_STEPS_MAX 16

enum pretoken_kind {
    PRETOKEN_GPT2, /* scanners of the patterns that most models use */
    PRETOKEN_LLAMA3,
    PRETOKEN_QWEN2,
    PRETOKEN_QWEN35,
    PRETOKEN_REGEX,
    PRETOKEN_DIGIT,  /* each digit alone */
    PRETOKEN_DIGITS, /* runs of digits */
    PRETOKEN_PREFIX, /* a space before the piece unless it has one */
};

/* What becomes of the matches and of what stands between them. */
enum pretoken_behavior {
    PRETOKEN_ISOLATED,
    PRETOKEN_REMOVED,
    PRETOKEN_WITH_PREVIOUS,
    PRETOKEN_WITH_NEXT,
    PRETOKEN_CONTIGUOUS,
};

struct pretoken_step {
    enum pretoken_kind kind;
    enum pretoken_behavior behavior;
    bool invert;
    struct regex *regex; /* PRETOKEN_REGEX; owned */
};

/* A chain: each step cuts the pieces of the one before. */
struct pretoken {
    struct pretoken_step steps[PRETOKEN_STEPS_MAX];
    int n_steps;
    bool byte_level;  /* the chain ends in ByteLevel, as a byte-level model needs */
    uint8_t *classes; /* of the code points below U+10000; owned */
};

/* Read the pre_tokenizer of a tokenizer.json. ERR_UNSUPPORTED names what is not known. On error
 * p needs no pretoken_fini(). */
int pretoken_init(struct pretoken *p, const struct json *node, char *why,
                  size_t why_cap) ERR_CHECKED;

/* The chain of vocab.json + merges.txt: ByteLevel with GPT-2's pattern. */
int pretoken_init_gpt2(struct pretoken *p, bool add_prefix_space) ERR_CHECKED;
void pretoken_fini(struct pretoken *p);

/* Takes one piece; an error ends the cutting and is passed on. */
typedef int pretoken_sink(void *context, const char *piece, size_t len);

struct pretoken_work; /* memory of one call */

struct pretoken_work *pretoken_work_open(void); /* NULL: no memory */
void pretoken_work_close(struct pretoken_work *w);

/* Cut valid UTF-8. ERR_OK, ERR_LIMIT (a regex ran too long), ERR_NO_MEMORY, or the sink's. */
int pretoken_cut(const struct pretoken *p, struct pretoken_work *w, const char *text, size_t len,
                 pretoken_sink *sink, void *context) ERR_CHECKED;

#endif
