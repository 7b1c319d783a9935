/* SPDX-License-Identifier: Apache-2.0
 *
 * The pre_tokenizer of a tokenizer.json becomes a chain of steps. Patterns that have a scanner
 * are recognised by their text, character by character. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "text/pretoken.h"
#include "text/regex.h"
#include "text/unicode.h"

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL         "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define OTHERS       "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"

static const struct {
    const char *pattern;
    enum pretoken_kind kind;
} scanners[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
     PRETOKEN_GPT2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" OTHERS TAIL, PRETOKEN_LLAMA3},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" OTHERS TAIL, PRETOKEN_QWEN2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                  "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" TAIL,
     PRETOKEN_QWEN35},
};

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

static int refuse(char *why, size_t why_cap, const char *what, const char *name)
{
    (void)snprintf(why, why_cap, "%s \"%.80s\" is not supported", what, name);
    return ERR_UNSUPPORTED;
}

static struct pretoken_step *step_new(struct pretoken *p)
{
    return p->n_steps < PRETOKEN_STEPS_MAX ? &p->steps[p->n_steps] : NULL;
}

/* A literal text as a regex. */
static int open_literal(struct regex **out, const struct json *literal, char *why, size_t why_cap)
{
    struct buf quoted = {0};
    size_t i;
    int rc = ERR_NO_MEMORY;

    for (i = 0; i < literal->text_len; i++) {
        if (strchr("\\^$.[]|()?*+{}", literal->text[i]) != NULL)
            buf_add_byte(&quoted, '\\');
        buf_add_byte(&quoted, literal->text[i]);
    }
    if (!quoted.failed && quoted.len > 0)
        rc = regex_open(out, quoted.bytes, quoted.len, why, why_cap);
    else if (!quoted.failed)
        rc = refuse(why, why_cap, "pattern", "");
    buf_fini(&quoted);
    return rc;
}

static int read_pattern(struct pretoken_step *st, const struct json *node, char *why,
                        size_t why_cap)
{
    const struct json *pattern = json_get(node, "pattern");
    const struct json *regex = json_get_kind(pattern, "Regex", JSON_TEXT);
    const struct json *literal = json_get_kind(pattern, "String", JSON_TEXT);
    bool whole = st->behavior == PRETOKEN_ISOLATED && !st->invert;
    size_t i;

    /* To keep only the matches of a pattern that matches everything is to isolate them. */
    whole = whole || (st->behavior == PRETOKEN_REMOVED && st->invert);
    for (i = 0; regex != NULL && whole && i < sizeof scanners / sizeof scanners[0]; i++)
        if (json_is_text(regex, scanners[i].pattern)) {
            st->kind = scanners[i].kind;
            return ERR_OK;
        }
    st->kind = PRETOKEN_REGEX;
    if (regex != NULL)
        return regex_open(&st->regex, regex->text, regex->text_len, why, why_cap);
    if (literal != NULL)
        return open_literal(&st->regex, literal, why, why_cap);
    (void)snprintf(why, why_cap, "a Split without a pattern");
    return ERR_INVALID;
}

static int read_split(struct pretoken *p, struct pretoken_step *st, const struct json *node,
                      char *why, size_t why_cap)
{
    const char *name = json_get_text(node, "behavior", "");
    size_t i;
    int rc;

    for (i = 0; i < sizeof behaviors / sizeof behaviors[0]; i++)
        if (strcmp(behaviors[i].name, name) == 0)
            break;
    if (i == sizeof behaviors / sizeof behaviors[0])
        return refuse(why, why_cap, "Split behavior", name);
    *st = (struct pretoken_step){.behavior = behaviors[i].behavior,
                                 .invert = json_get_bool(node, "invert", false)};
    rc = read_pattern(st, node, why, why_cap);
    if (rc == ERR_OK)
        p->n_steps++;
    return rc;
}

static int read_byte_level(struct pretoken *p, const struct json *node, char *why, size_t why_cap)
{
    p->byte_level = true;
    if (json_get_bool(node, "add_prefix_space", true)) {
        if (step_new(p) == NULL)
            return refuse(why, why_cap, "chain of pre-tokenizers as long as", "this");
        *step_new(p) = (struct pretoken_step){.kind = PRETOKEN_PREFIX};
        p->n_steps++;
    }
    if (json_get_bool(node, "use_regex", true)) {
        if (step_new(p) == NULL)
            return refuse(why, why_cap, "chain of pre-tokenizers as long as", "this");
        *step_new(p) = (struct pretoken_step){.kind = PRETOKEN_GPT2};
        p->n_steps++;
    }
    return ERR_OK;
}

static int read_step(struct pretoken *p, const struct json *node, char *why, size_t why_cap)
{
    const char *type = json_get_text(node, "type", "");
    struct pretoken_step *st = step_new(p);

    if (p->byte_level)
        return refuse(why, why_cap, "after ByteLevel a pre-tokenizer of type", type);
    if (st == NULL)
        return refuse(why, why_cap, "chain of pre-tokenizers as long as", "this");
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(p, node, why, why_cap);
    if (strcmp(type, "Split") == 0)
        return read_split(p, st, node, why, why_cap);
    if (strcmp(type, "Digits") == 0) {
        bool single = json_get_bool(node, "individual_digits", false);

        *st = (struct pretoken_step){.kind = single ? PRETOKEN_DIGIT : PRETOKEN_DIGITS,
                                     .behavior = single ? PRETOKEN_ISOLATED : PRETOKEN_CONTIGUOUS};
        p->n_steps++;
        return ERR_OK;
    }
    return refuse(why, why_cap, "pre-tokenizer", type);
}

int pretoken_init(struct pretoken *p, const struct json *node, char *why, size_t why_cap)
{
    const struct json *list = json_get_kind(node, "pretokenizers", JSON_LIST);
    int rc = pretoken_init_gpt2(p, false);
    uint32_t i;

    if (rc != ERR_OK)
        return rc;
    p->n_steps = 0;
    p->byte_level = false;
    if (strcmp(json_get_text(node, "type", ""), "Sequence") != 0)
        rc = read_step(p, node, why, why_cap);
    else if (list == NULL)
        rc = refuse(why, why_cap, "Sequence without", "pretokenizers");
    else
        for (i = 0; i < list->n && rc == ERR_OK; i++)
            rc = read_step(p, &list->items[i], why, why_cap);
    if (rc != ERR_OK)
        pretoken_fini(p);
    return rc;
}
