/* SPDX-License-Identifier: Apache-2.0
 *
 * Cuts a text step by step. Patterns of most models have a scanner (scan.h), the others use PCRE2.
 * The five behaviors are those of Hugging Face's Split. A step passes each of its pieces to the
 * next step at once; the recursion is as deep as the chain is long (at most STEPS_MAX):
 *
 *     "I'm 12"  ->  Split by a pattern  ->  "I" "'m" " " "12"  ->  ...  ->  sink */
#define _GNU_SOURCE 1 /* memmem() */
#include "text/tokenizer/pretoken.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/regex.h"
#include "text/tokenizer/vocab.h"
#include "text/unicode.h"

/* A part of a text: a match of the pattern, or the gap between two matches. */
struct cut {
    size_t start;
    size_t end;
    bool is_match;
};

struct pretoken_work {
    struct regex_work *regex;
    /* One of each per step, because a step runs inside the loop of the previous one. */
    struct cut *cuts[STEPS_MAX];
    size_t cuts_cap[STEPS_MAX];
    struct buf rewritten[STEPS_MAX];
    struct buf unspelled;
};

/* The arguments that all steps share. */
struct cutting {
    const struct pretoken *p;
    struct pretoken_work *w;
    pretoken_sink *sink;
    void *context;
};

struct pretoken_work *pretoken_work_open(const struct pretoken *pretoken)
{
    struct pretoken_work *w = mem_zalloc(sizeof *w);

    if (w == NULL || !pretoken->has_regex)
        return w;
    w->regex = regex_work_open();
    if (w->regex == NULL) {
        mem_free(w);
        return NULL;
    }
    return w;
}

void pretoken_work_close(struct pretoken_work *w)
{
    int i;

    if (w == NULL)
        return;
    for (i = 0; i < STEPS_MAX; i++) {
        mem_free(w->cuts[i]);
        buf_fini(&w->rewritten[i]);
    }
    buf_fini(&w->unspelled);
    regex_work_close(w->regex);
    mem_free(w);
}

static int pretoken_cut_step(const struct cutting *cutting, int step, const char *text, size_t len,
                             bool first);

/* --- finding -----------------------------------------------------------------------------------*/

/* Find the next match in text[from .. len). ERR_OK, ERR_NOT_FOUND, or an error. */
static int pretoken_next_match(const struct cutting *cutting, int step, const char *text,
                               size_t len, size_t from, struct regex_match *match)
{
    const struct step_draft *draft = &cutting->p->chain.steps[step];
    struct scanner scanner = {
        .bits = cutting->p->bits, .text = text, .len = len, .kind = (enum scan_kind)draft->kind};
    const char *found;
    size_t at;

    if (draft->kind == PRETOKEN_REGEX)
        return regex_next(cutting->p->regexes[step], cutting->w->regex, text, len, from, match);
    if (draft->kind == PRETOKEN_LITERAL) {
        if (from >= len)
            return ERR_NOT_FOUND;
        found = memmem(text + from, len - from, draft->pattern, draft->pattern_len);
        if (found == NULL)
            return ERR_NOT_FOUND;
        match->start = (size_t)(found - text);
        match->end = match->start + draft->pattern_len;
        return ERR_OK;
    }
    /* scan_skip() jumps to the next character that can begin a match. */
    for (at = scan_skip(&scanner, from); at < len;
         at = scan_skip(&scanner, at + utf8_sequence(text + at, len - at))) {
        match->end = scan_match(&scanner, at);
        match->start = at;
        if (match->end > at)
            return ERR_OK;
    }
    return ERR_NOT_FOUND;
}

/* Where to search after a match: at its end, or after an empty match one character further. */
static size_t pretoken_next_from(const struct regex_match *match, const char *text, size_t len)
{
    if (match->end > match->start)
        return match->end;
    if (match->start < len)
        return match->end + utf8_sequence(text + match->start, len - match->start);
    return match->end + 1;
}

/* Behavior Isolated: matches are pieces, and so are the gaps between them. */
static int pretoken_cut_isolated(const struct cutting *cutting, int step, const char *text,
                                 size_t len, bool first)
{
    struct regex_match match = {0, 0};
    size_t covered = 0;
    size_t from = 0;
    int rc = ERR_OK;

    while (from <= len &&
           (rc = pretoken_next_match(cutting, step, text, len, from, &match)) == ERR_OK) {
        /* The gap before the match is a piece of its own. `first` holds only for the piece at
         * the start of the text, where a Metaspace step may put its prefix. */
        if (match.start > covered)
            rc = pretoken_cut_step(cutting, step + 1, text + covered, match.start - covered,
                                   first && covered == 0);
        /* An empty match cuts the text at its position, but is no piece. */
        if (rc == ERR_OK && match.end > match.start)
            rc = pretoken_cut_step(cutting, step + 1, text + match.start, match.end - match.start,
                                   first && match.start == 0);
        if (rc != ERR_OK)
            return rc;
        covered = match.end;
        from = pretoken_next_from(&match, text, len);
    }
    /* ERR_NOT_FOUND ends the loop: no further match. Then the rest of the text is the last
     * gap. */
    if (rc != ERR_OK && rc != ERR_NOT_FOUND)
        return rc;
    return pretoken_cut_step(cutting, step + 1, text + covered, len - covered,
                             first && covered == 0);
}

/* Behavior Isolated for scanners that leave no gaps: every byte belongs to a match. */
static int pretoken_cut_scanned(const struct cutting *cutting, int step, const char *text,
                                size_t len, bool first)
{
    struct scanner scanner = {.bits = cutting->p->bits,
                              .text = text,
                              .len = len,
                              .kind = (enum scan_kind)cutting->p->chain.steps[step].kind};
    /* After the last step the pieces go to the sink directly, without a call per piece that only
     * finds that no step is left. */
    bool last = step + 1 == cutting->p->chain.n && !cutting->p->spelled;
    size_t at = 0;
    int rc = ERR_OK;

    /* scan_match() always advances, since each byte belongs to a match. */
    while (at < len && rc == ERR_OK) {
        size_t end = scan_match(&scanner, at);

        if (last)
            rc = cutting->sink(cutting->context, text + at, end - at);
        else
            rc = pretoken_cut_step(cutting, step + 1, text + at, end - at, first && at == 0);
        at = end;
    }
    return rc;
}

/* --- other behaviors ---------------------------------------------------------------------------*/

/* These need all matches of a text before the first piece is known. */

/* Append a cut to the list of a step. Empty cuts are dropped, because an empty piece has no tokens.
 * Each step has a list of its own, because the steps after it run while the list is read. */
static int pretoken_cuts_add(struct pretoken_work *w, int step, size_t *n, struct cut cut)
{
    if (cut.start == cut.end)
        return ERR_OK;
    /* The lists are kept for the next text, so they grow only for longer ones. */
    if (*n == w->cuts_cap[step]) {
        size_t cap = *n == 0 ? 64 : *n * 2;
        struct cut *grown = mem_realloc(w->cuts[step], cap * sizeof *grown);

        if (grown == NULL)
            return ERR_NO_MEMORY;
        w->cuts[step] = grown;
        w->cuts_cap[step] = cap;
    }
    w->cuts[step][(*n)++] = cut;
    return ERR_OK;
}

/* Collect matches and gaps, which together cover the text. */
static int pretoken_find_all(const struct cutting *cutting, int step, const char *text, size_t len,
                             size_t *n)
{
    struct regex_match match;
    size_t covered = 0;
    size_t from = 0;
    int rc = ERR_OK;

    while (from <= len &&
           (rc = pretoken_next_match(cutting, step, text, len, from, &match)) == ERR_OK) {
        /* Gaps and matches alternate, and each begins where the one before ends. */
        rc = pretoken_cuts_add(cutting->w, step, n,
                               (struct cut){.start = covered, .end = match.start});
        if (rc == ERR_OK)
            rc = pretoken_cuts_add(cutting->w, step, n, (struct cut){match.start, match.end, true});
        if (rc != ERR_OK)
            return rc;
        covered = match.end;
        from = pretoken_next_from(&match, text, len);
    }
    if (rc != ERR_OK && rc != ERR_NOT_FOUND)
        return rc;
    /* The last gap; dropped above if it is empty. */
    return pretoken_cuts_add(cutting->w, step, n, (struct cut){.start = covered, .end = len});
}

/* Join matches and gaps in place as the behavior asks. Returns the number of pieces left. */
static size_t pretoken_join_cuts(const struct step_draft *step, struct cut *cuts, size_t n)
{
    size_t kept = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        struct cut cut = cuts[i];
        bool joins = false;

        /* Contiguous joins equal neighbours, MergedWithPrevious a match to the gap before it,
         * MergedWithNext a gap to the match before it. */
        if (kept > 0 && step->behavior == PRETOKEN_CONTIGUOUS)
            joins = cuts[kept - 1].is_match == cut.is_match;
        else if (kept > 0 && step->behavior == PRETOKEN_WITH_PREVIOUS)
            joins = cut.is_match && !cuts[kept - 1].is_match;
        else if (kept > 0 && step->behavior == PRETOKEN_WITH_NEXT)
            joins = !cut.is_match && cuts[kept - 1].is_match;
        if (step->behavior == PRETOKEN_REMOVED && cut.is_match)
            continue;
        if (joins) {
            cuts[kept - 1].end = cut.end;
            cuts[kept - 1].is_match = cut.is_match || step->behavior == PRETOKEN_WITH_PREVIOUS;
            continue;
        }
        cuts[kept++] = cut;
    }
    return kept;
}

/* Behaviors that join or remove parts. `invert` exchanges matches and gaps first. */
static int pretoken_cut_joined(const struct cutting *cutting, int step, const char *text,
                               size_t len, bool first)
{
    const struct step_draft *st = &cutting->p->chain.steps[step];
    size_t n = 0;
    size_t i;
    int rc = pretoken_find_all(cutting, step, text, len, &n);

    if (rc != ERR_OK)
        return rc;
    /* With invert the pattern describes the words, and not their separators. */
    for (i = 0; st->invert && i < n; i++)
        cutting->w->cuts[step][i].is_match = !cutting->w->cuts[step][i].is_match;
    n = pretoken_join_cuts(st, cutting->w->cuts[step], n);
    for (i = 0; i < n && rc == ERR_OK; i++) {
        struct cut cut = cutting->w->cuts[step][i];

        rc = pretoken_cut_step(cutting, step + 1, text + cut.start, cut.end - cut.start,
                               first && cut.start == 0);
    }
    return rc;
}

/* --- rewriting ---------------------------------------------------------------------------------*/

/* These steps change the text and pass it on as one piece, in the step's own buffer. */

static int pretoken_cut_rewritten(const struct cutting *cutting, int step, bool first)
{
    const struct buf *buf = &cutting->w->rewritten[step];

    if (buf->failed)
        return ERR_NO_MEMORY;
    return pretoken_cut_step(cutting, step + 1, buf->bytes, buf->len, first);
}

/* Put a space before the text, unless it begins with one, as add_prefix_space demands. */
static int pretoken_cut_prefixed(const struct cutting *cutting, int step, const char *text,
                                 size_t len, bool first)
{
    struct buf *buf = &cutting->w->rewritten[step];

    if (text[0] == ' ')
        return pretoken_cut_step(cutting, step + 1, text, len, first);
    buf_clear(buf);
    buf_add_byte(buf, ' ');
    buf_add(buf, text, len);
    return pretoken_cut_rewritten(cutting, step, first);
}

/* Replace spaces by st->by ("▁"), and put one before the piece as the scheme demands. */
static int pretoken_cut_metaspace(const struct cutting *cutting, int step, const char *text,
                                  size_t len, bool first)
{
    const struct step_draft *st = &cutting->p->chain.steps[step];
    struct buf *buf = &cutting->w->rewritten[step];
    bool starts = text[0] == ' ' || (len >= st->by_len && memcmp(text, st->by, st->by_len) == 0);
    size_t i = 0;

    buf_clear(buf);
    /* A text that begins with a space gets its "▁" from that space; a second one would make
     * another token. */
    if (!starts && (st->behavior == METASPACE_ALWAYS || (st->behavior == METASPACE_FIRST && first)))
        buf_add(buf, st->by, st->by_len);
    /* " a  b" becomes "▁a▁▁b": each space is replaced, and runs are not joined. */
    while (i < len) {
        const char *space = memchr(text + i, ' ', len - i);
        size_t end = space == NULL ? len : (size_t)(space - text);

        buf_add(buf, text + i, end - i);
        if (space != NULL)
            buf_add(buf, st->by, st->by_len);
        i = end + 1;
    }
    return pretoken_cut_rewritten(cutting, step, first);
}

/* Spell each byte by a character of GPT-2's alphabet: patterns after ByteLevel expect that. */
static int pretoken_cut_spelled(const struct cutting *cutting, int step, const char *text,
                                size_t len, bool first)
{
    struct buf *buf = &cutting->w->rewritten[step];
    size_t i;

    buf_clear(buf);
    for (i = 0; i < len; i++) {
        char utf8[4];

        buf_add(buf, utf8, utf8_encode(vocab_byte_char((uint8_t)text[i]), utf8));
    }
    return pretoken_cut_rewritten(cutting, step, first);
}

/* Pass on the bytes of a piece that is spelled. All its characters are in the alphabet, because no
 * step after PRETOKEN_SPELL adds text (pretoken_init()). */
static int pretoken_sink_unspelled(const struct cutting *cutting, const char *text, size_t len)
{
    struct buf *buf = &cutting->w->unspelled;
    size_t i = 0;

    buf_clear(buf);
    while (i < len) {
        buf_add_byte(buf, (char)vocab_char_byte(utf8_decode(text + i)));
        i += utf8_sequence(text + i, len - i);
    }
    if (buf->failed)
        return ERR_NO_MEMORY;
    return cutting->sink(cutting->context, buf->bytes, buf->len);
}

/* Kimi's class hands tiktoken at most this many characters at once, and at most this many in a row
 * that are all white space or all not. Each such part is cut by the pattern separately. */
#define RUNS_CHARS_MAX 400000
#define RUNS_RUN_MAX   25000

static int pretoken_cut_runs(const struct cutting *cutting, int step, const char *text, size_t len,
                             bool first)
{
    size_t start = 0, at = 0;
    uint32_t n = 0, run = 0;
    bool was_space = false;
    int rc = ERR_OK;

    /* n counts the characters since the last multiple of RUNS_CHARS_MAX, run those of the current
     * run of spaces or of other characters. A cut is made before the character that would exceed
     * either. */
    while (len > RUNS_RUN_MAX && at < len && rc == ERR_OK) {
        bool is_space = unicode_is_python_space(utf8_decode(text + at));

        if (n == RUNS_CHARS_MAX)
            n = run = 0;
        if (n > 0 && is_space != was_space)
            run = 1;
        else
            run = run + 1;
        if ((n == 0 && at > 0) || run > RUNS_RUN_MAX) {
            rc =
                pretoken_cut_step(cutting, step + 1, text + start, at - start, first && start == 0);
            start = at;
            run = 1;
        }
        was_space = is_space;
        n++;
        at += utf8_sequence(text + at, len - at);
    }
    if (rc != ERR_OK)
        return rc;
    return pretoken_cut_step(cutting, step + 1, text + start, len - start, first && start == 0);
}

/* Run one step on a piece; after the last step the piece goes to the sink. */
static int pretoken_cut_step(const struct cutting *cutting, int step, const char *text, size_t len,
                             bool first)
{
    const struct step_draft *st = &cutting->p->chain.steps[step];

    /* An empty piece has no tokens. Later steps rely on at least one byte. */
    if (len == 0)
        return ERR_OK;
    /* With `spelled`, the pieces are in GPT-2's alphabet of printable characters and are turned
     * back to bytes here, because the tables of BPE hold bytes. */
    if (step == cutting->p->chain.n) {
        if (cutting->p->spelled)
            return pretoken_sink_unspelled(cutting, text, len);
        return cutting->sink(cutting->context, text, len);
    }
    /* The scanners up to SCAN_TEKKEN leave no gaps. They are the common patterns, recognized by
     * their text and matched by code instead of a regex. */
    if (st->kind <= SCAN_TEKKEN)
        return pretoken_cut_scanned(cutting, step, text, len, first);
    if (st->kind == PRETOKEN_PREFIX)
        return pretoken_cut_prefixed(cutting, step, text, len, first);
    if (st->kind == PRETOKEN_METASPACE)
        return pretoken_cut_metaspace(cutting, step, text, len, first);
    if (st->kind == PRETOKEN_SPELL)
        return pretoken_cut_spelled(cutting, step, text, len, first);
    if (st->kind == PRETOKEN_RUNS)
        return pretoken_cut_runs(cutting, step, text, len, first);
    /* Isolated is by far the most common behavior and needs no list of cuts. */
    if (st->behavior == PRETOKEN_ISOLATED)
        return pretoken_cut_isolated(cutting, step, text, len, first);
    return pretoken_cut_joined(cutting, step, text, len, first);
}

int pretoken_cut(const struct pretoken *pretoken, struct pretoken_work *w, const char *text,
                 size_t len, bool first, const struct pretoken_receiver *to)
{
    struct cutting cutting = {.p = pretoken, .w = w, .sink = to->sink, .context = to->context};

    must(to->sink != NULL);
    must(w != NULL);
    return pretoken_cut_step(&cutting, 0, text, len, first);
}

/* --- preparing ---------------------------------------------------------------------------------*/

/* Is this a step that the code above can run? An image file may contain any numbers. */
static bool pretoken_is_known(const struct step_draft *step)
{
    switch (step->kind) {
    case PRETOKEN_REGEX:
    case PRETOKEN_LITERAL: return step->behavior < PRETOKEN_BEHAVIORS && step->pattern_len > 0;
    case PRETOKEN_METASPACE:
        return step->behavior < METASPACE_SCHEMES && step->by_len > 0 && step->by_len <= 4;
    case PRETOKEN_PREFIX:
    case PRETOKEN_RUNS:
    case PRETOKEN_SPELL: return true;
    default: return step->kind < SCAN_KINDS && step->behavior < PRETOKEN_BEHAVIORS;
    }
}

int pretoken_init(struct pretoken *pretoken, const struct steps_draft *chain, char *why,
                  size_t why_cap)
{
    int rc = ERR_OK;
    int i;

    must(chain->n >= 0 && chain->n <= STEPS_MAX);
    *pretoken = (struct pretoken){.chain = *chain, .bits = mem_alloc(SCAN_BMP)};
    if (pretoken->bits == NULL)
        return ERR_NO_MEMORY;
    scan_fill(pretoken->bits);
    for (i = 0; rc == ERR_OK && i < chain->n; i++) {
        const struct step_draft *step = &chain->steps[i];

        if (!pretoken_is_known(step) || (pretoken->spelled && step->kind == PRETOKEN_SPELL)) {
            rc = ERR_CORRUPT;
        } else if (pretoken->spelled &&
                   (step->kind == PRETOKEN_PREFIX || step->kind == PRETOKEN_METASPACE)) {
            /* The text that these add is not in the alphabet. */
            (void)snprintf(why, why_cap,
                           "a pre-tokenizer that adds text after ByteLevel is not supported");
            rc = ERR_UNSUPPORTED;
        } else if (step->kind == PRETOKEN_REGEX) {
            pretoken->has_regex = true;
            rc = regex_open(&pretoken->regexes[i], step->pattern, step->pattern_len, why, why_cap);
        }
        /* All steps after the spelling see the alphabet of bytes instead of the text. */
        pretoken->spelled = pretoken->spelled || step->kind == PRETOKEN_SPELL;
    }
    if (rc != ERR_OK)
        pretoken_fini(pretoken);
    return rc;
}

void pretoken_fini(struct pretoken *pretoken)
{
    int i;

    for (i = 0; i < STEPS_MAX; i++)
        regex_close(pretoken->regexes[i]);
    mem_free(pretoken->bits);
    *pretoken = (struct pretoken){0};
}
