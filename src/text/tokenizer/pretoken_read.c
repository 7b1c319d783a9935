/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the pre_tokenizer of a tokenizer.json into a chain of steps (pretoken.h). A file that asks
 * for anything unknown is refused with the name of the element, because pieces that are cut
 * differently give other tokens than the model was trained with. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/tokenizer/pretoken.h"

/* Hugging Face's names of the behaviors. */
static const struct {
    const char *name;
    enum pretoken_behavior behavior;
} behaviors[] = {
    {"Isolated", PRETOKEN_ISOLATED},
    {"Removed", PRETOKEN_REMOVED},
    {"MergedWithPrevious", PRETOKEN_WITH_PREVIOUS},
    {"MergedWithNext", PRETOKEN_WITH_NEXT},
    {"Contiguous", PRETOKEN_CONTIGUOUS},
};

struct pretoken_reading {
    struct steps_draft *out;
    bool spelled; /* a ByteLevel was read */
    char *why;
    size_t why_cap;
};

static int pretoken_refuse_step(struct pretoken_reading *reading, const char *what,
                                const char *name)
{
    (void)snprintf(reading->why, reading->why_cap, "%s \"%.80s\" is not supported", what, name);
    return ERR_UNSUPPORTED;
}

static int pretoken_too_many(struct pretoken_reading *reading)
{
    return pretoken_refuse_step(reading, "a pre-tokenizer with so many steps as", "this");
}

/* Look up the member "behavior" of a Split. A missing one is read as Isolated. */
static int pretoken_read_behavior(struct pretoken_reading *reading, const struct json *node,
                                  unsigned *out)
{
    const char *name = json_get_text(node, "behavior", "Isolated");
    size_t i;

    /* An unknown behavior is refused and not read as Isolated, because it would cut texts at
     * other places. */
    for (i = 0; i < sizeof behaviors / sizeof behaviors[0]; i++)
        if (strcmp(behaviors[i].name, name) == 0) {
            *out = behaviors[i].behavior;
            return ERR_OK;
        }
    return pretoken_refuse_step(reading, "behavior", name);
}

/* {"type": "Split", "pattern": {"Regex": "..."}, "behavior": "Isolated", "invert": false} */
static int pretoken_read_split(struct pretoken_reading *reading, const struct json *node)
{
    const struct json *pattern = json_get(node, "pattern");
    const struct json *regex = json_get_kind(pattern, "Regex", JSON_TEXT);
    const struct json *text = regex != NULL ? regex : json_get_kind(pattern, "String", JSON_TEXT);
    enum scan_kind scan = SCAN_KINDS;
    struct step_draft *step;
    unsigned behavior = 0;
    int rc = pretoken_read_behavior(reading, node, &behavior);

    if (rc != ERR_OK)
        return rc;
    if (text == NULL || text->text_len == 0) {
        (void)snprintf(reading->why, reading->why_cap, "a Split without a pattern");
        return ERR_INVALID;
    }
    if (regex != NULL)
        scan = scan_find(text->text, text->text_len);
    step = steps_add(reading->out, regex == NULL ? PRETOKEN_LITERAL : PRETOKEN_REGEX);
    if (step == NULL)
        return pretoken_too_many(reading);
    if (scan != SCAN_KINDS)
        step->kind = scan;
    step->behavior = behavior;
    step->invert = json_get_bool(node, "invert", false);
    step->pattern = text->text;
    step->pattern_len = text->text_len;
    /* Keeping only the matches of a pattern without gaps is the same as isolating them. */
    if (step->kind <= SCAN_TEKKEN && behavior == PRETOKEN_REMOVED && step->invert)
        step->behavior = PRETOKEN_ISOLATED;
    /* These scanners are written for one behavior; PCRE2 handles the others. */
    if (step->kind <= SCAN_TEKKEN && step->behavior != PRETOKEN_ISOLATED)
        step->kind = PRETOKEN_REGEX;
    return ERR_OK;
}

/* {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}: up to three steps. */
static int pretoken_read_byte_level(struct pretoken_reading *reading, const struct json *node)
{
    if (reading->spelled)
        return pretoken_refuse_step(reading, "a second", "ByteLevel");
    reading->spelled = true;
    if (json_get_bool(node, "add_prefix_space", true) &&
        steps_add(reading->out, PRETOKEN_PREFIX) == NULL)
        return pretoken_too_many(reading);
    if (json_get_bool(node, "use_regex", true) && steps_add(reading->out, SCAN_GPT2) == NULL)
        return pretoken_too_many(reading);
    /* Needed by the steps after it; pretoken_read() removes it when it is the last. */
    if (steps_add(reading->out, PRETOKEN_SPELL) == NULL)
        return pretoken_too_many(reading);
    return ERR_OK;
}

static int pretoken_read_digits(struct pretoken_reading *reading, const struct json *node)
{
    bool single = json_get_bool(node, "individual_digits", false);

    if (steps_add(reading->out, single ? SCAN_DIGIT : SCAN_DIGITS) == NULL)
        return pretoken_too_many(reading);
    return ERR_OK;
}

/* {"type": "Punctuation", "behavior": "Isolated"}. Contiguous has a scanner of its own. */
static int pretoken_read_punctuation(struct pretoken_reading *reading, const struct json *node)
{
    unsigned behavior = 0;
    int rc = pretoken_read_behavior(reading, node, &behavior);
    struct step_draft *step;

    if (rc != ERR_OK)
        return rc;
    /* "Contiguous" joins adjacent matches, here a run of punctuation. The scanner returns the
     * run as one match, so its behavior is then the same as Isolated. */
    step = steps_add(reading->out, behavior == PRETOKEN_CONTIGUOUS ? SCAN_PUNCTS : SCAN_PUNCT);
    if (step == NULL)
        return pretoken_too_many(reading);
    if (behavior == PRETOKEN_CONTIGUOUS)
        step->behavior = PRETOKEN_ISOLATED;
    else
        step->behavior = behavior;
    return ERR_OK;
}

/* {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true} is a step
 * that replaces spaces and, with split, one that cuts before each replacement. */
static int pretoken_read_metaspace(struct pretoken_reading *reading, const struct json *node)
{
    const struct json *by = json_get_kind(node, "replacement", JSON_TEXT);
    const struct json *prefix = json_get_kind(node, "add_prefix_space", JSON_BOOL);
    const char *scheme = json_get_text(node, "prepend_scheme", "always");
    struct step_draft *step = steps_add(reading->out, PRETOKEN_METASPACE);

    if (step == NULL)
        return pretoken_too_many(reading);
    if (by == NULL || by->text_len == 0 || utf8_sequence(by->text, by->text_len) != by->text_len)
        return pretoken_refuse_step(reading, "a Metaspace whose replacement is",
                                    "not one character");
    /* add_prefix_space is the older member; false overrides the scheme. */
    if (prefix != NULL && !prefix->flag)
        step->behavior = METASPACE_NEVER;
    else if (strcmp(scheme, "always") == 0)
        step->behavior = METASPACE_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        step->behavior = METASPACE_FIRST;
    else if (strcmp(scheme, "never") == 0)
        step->behavior = METASPACE_NEVER;
    else
        return pretoken_refuse_step(reading, "prepend_scheme", scheme);
    step->by = by->text;
    step->by_len = by->text_len;
    if (!json_get_bool(node, "split", true))
        return ERR_OK;
    step = steps_add(reading->out, PRETOKEN_LITERAL);
    if (step == NULL)
        return pretoken_too_many(reading);
    step->behavior = PRETOKEN_WITH_NEXT;
    step->pattern = by->text;
    step->pattern_len = by->text_len;
    return ERR_OK;
}

/* Read one pre-tokenizer of a chain. */
static int pretoken_read_step(struct pretoken_reading *reading, const struct json *node)
{
    static const struct {
        const char *type;
        int (*read)(struct pretoken_reading *, const struct json *);
    } readers[] = {{"ByteLevel", pretoken_read_byte_level},
                   {"Split", pretoken_read_split},
                   {"Digits", pretoken_read_digits},
                   {"Punctuation", pretoken_read_punctuation},
                   {"Metaspace", pretoken_read_metaspace}};
    const char *type = json_get_text(node, "type", "");
    size_t i;

    /* An unknown pre-tokenizer is refused: without it, texts would be cut at other places and
     * get other tokens. */
    for (i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(readers[i].type, type) == 0)
            return readers[i].read(reading, node);
    return pretoken_refuse_step(reading, "pre-tokenizer", type);
}

int pretoken_read(struct steps_draft *out, bool *byte_level, const struct json *node, char *why,
                  size_t why_cap)
{
    const struct json *list = json_get_kind(node, "pretokenizers", JSON_LIST);
    struct pretoken_reading reading = {.out = out, .why = why, .why_cap = why_cap};
    int rc = ERR_OK;
    uint32_t i;

    must(out != NULL && byte_level != NULL);
    out->n = 0;
    if (node == NULL || node->kind == JSON_NULL)
        rc = ERR_OK;
    else if (strcmp(json_get_text(node, "type", ""), "Sequence") != 0)
        rc = pretoken_read_step(&reading, node);
    else if (list == NULL)
        rc = pretoken_refuse_step(&reading, "Sequence without", "pretokenizers");
    else
        for (i = 0; i < list->n && rc == ERR_OK; i++)
            rc = pretoken_read_step(&reading, &list->items[i]);
    /* A spelling after which nothing is cut has no effect on pieces, because bytes are merged
     * directly. */
    if (out->n > 0 && out->steps[out->n - 1].kind == PRETOKEN_SPELL)
        out->n--;
    *byte_level = reading.spelled;
    return rc;
}

void pretoken_gpt2(struct steps_draft *out, bool add_prefix_space)
{
    out->n = 0;
    if (add_prefix_space)
        (void)steps_add(out, PRETOKEN_PREFIX); /* cannot fail: two of STEPS_MAX steps */
    (void)steps_add(out, SCAN_GPT2);
}

/* Kimi's pattern, from tokenization_kimi.py. Han characters are excluded from the words, because a
 * first alternative takes runs of them. */
#define KIMI_LARGE "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

/* The pattern of Kimi's class TikTokenTokenizer, and its limits on the runs of a text. */
void pretoken_kimi(struct steps_draft *out)
{
    static const char pattern[] =
        "[\\p{Han}]+|"
        "[^\\r\\n\\p{L}\\p{N}]?" KIMI_LARGE "*" KIMI_SMALL "+" KIMI_SHORT "|"
        "[^\\r\\n\\p{L}\\p{N}]?" KIMI_LARGE "+" KIMI_SMALL "*" KIMI_SHORT "|"
        "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    struct step_draft *step;

    out->n = 0;
    (void)steps_add(out, PRETOKEN_RUNS); /* cannot fail: two of STEPS_MAX steps */
    step = steps_add(out, PRETOKEN_REGEX);
    step->behavior = PRETOKEN_ISOLATED;
    step->pattern = pattern;
    step->pattern_len = sizeof pattern - 1;
}
