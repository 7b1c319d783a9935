/* SPDX-License-Identifier: Apache-2.0
 *
 * The pre_tokenizer of a tokenizer.json becomes a chain of steps. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer/pretoken.h"

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

struct reading {
    struct steps_draft *out;
    bool spelled; /* ByteLevel has been there */
    char *why;
    size_t why_cap;
};

static int refuse(struct reading *r, const char *what, const char *name)
{
    (void)snprintf(r->why, r->why_cap, "%s \"%.80s\" is not supported", what, name);
    return ERR_UNSUPPORTED;
}

static int too_many(struct reading *r)
{
    return refuse(r, "a pre-tokenizer with so many steps as", "this");
}

static int read_behavior(struct reading *r, const struct json *node, unsigned *out)
{
    const char *name = json_get_text(node, "behavior", "Isolated");
    size_t i;

    for (i = 0; i < sizeof behaviors / sizeof behaviors[0]; i++)
        if (strcmp(behaviors[i].name, name) == 0) {
            *out = behaviors[i].behavior;
            return ERR_OK;
        }
    return refuse(r, "behavior", name);
}

static int read_split(struct reading *r, const struct json *node)
{
    const struct json *pattern = json_get(node, "pattern");
    const struct json *regex = json_get_kind(pattern, "Regex", JSON_TEXT);
    const struct json *text = regex != NULL ? regex : json_get_kind(pattern, "String", JSON_TEXT);
    enum scan_kind scan = SCAN_KINDS;
    struct step_draft *st;
    unsigned behavior = 0;
    int rc = read_behavior(r, node, &behavior);

    if (rc != ERR_OK)
        return rc;
    if (text == NULL || text->text_len == 0) {
        (void)snprintf(r->why, r->why_cap, "a Split without a pattern");
        return ERR_INVALID;
    }
    if (regex != NULL)
        scan = scan_find(text->text, text->text_len);
    st = steps_add(r->out, regex == NULL ? PRETOKEN_LITERAL : PRETOKEN_REGEX);
    if (st == NULL)
        return too_many(r);
    if (scan != SCAN_KINDS)
        st->kind = scan;
    st->behavior = behavior;
    st->invert = json_get_bool(node, "invert", false);
    st->pattern = text->text;
    st->pattern_len = text->text_len;
    /* To keep only the matches of a pattern that leaves nothing between them is to isolate them. */
    if (st->kind <= SCAN_TEKKEN && behavior == PRETOKEN_REMOVED && st->invert)
        st->behavior = PRETOKEN_ISOLATED;
    /* No other behavior is known of these, and PCRE2 can do it. */
    if (st->kind <= SCAN_TEKKEN && st->behavior != PRETOKEN_ISOLATED)
        st->kind = PRETOKEN_REGEX;
    return ERR_OK;
}

static int read_byte_level(struct reading *r, const struct json *node)
{
    if (r->spelled)
        return refuse(r, "a second", "ByteLevel");
    r->spelled = true;
    if (json_get_bool(node, "add_prefix_space", true) && steps_add(r->out, PRETOKEN_PREFIX) == NULL)
        return too_many(r);
    if (json_get_bool(node, "use_regex", true) && steps_add(r->out, SCAN_GPT2) == NULL)
        return too_many(r);
    /* Needed by steps behind it; dropped when it is the last. */
    return steps_add(r->out, PRETOKEN_SPELL) == NULL ? too_many(r) : ERR_OK;
}

static int read_digits(struct reading *r, const struct json *node)
{
    bool single = json_get_bool(node, "individual_digits", false);

    return steps_add(r->out, single ? SCAN_DIGIT : SCAN_DIGITS) == NULL ? too_many(r) : ERR_OK;
}

static int read_punctuation(struct reading *r, const struct json *node)
{
    unsigned behavior = 0;
    int rc = read_behavior(r, node, &behavior);
    struct step_draft *st;

    if (rc != ERR_OK)
        return rc;
    st = steps_add(r->out, behavior == PRETOKEN_CONTIGUOUS ? SCAN_PUNCTS : SCAN_PUNCT);
    if (st == NULL)
        return too_many(r);
    st->behavior = behavior == PRETOKEN_CONTIGUOUS ? PRETOKEN_ISOLATED : behavior;
    return ERR_OK;
}

static int read_metaspace(struct reading *r, const struct json *node)
{
    const struct json *by = json_get_kind(node, "replacement", JSON_TEXT);
    const struct json *prefix = json_get_kind(node, "add_prefix_space", JSON_BOOL);
    const char *scheme = json_get_text(node, "prepend_scheme", "always");
    struct step_draft *st = steps_add(r->out, PRETOKEN_METASPACE);

    if (st == NULL)
        return too_many(r);
    if (by == NULL || by->text_len == 0 || utf8_sequence(by->text, by->text_len) != by->text_len)
        return refuse(r, "a Metaspace whose replacement is", "not one character");
    if (prefix != NULL && !prefix->flag)
        st->behavior = METASPACE_NEVER;
    else if (strcmp(scheme, "always") == 0)
        st->behavior = METASPACE_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        st->behavior = METASPACE_FIRST;
    else if (strcmp(scheme, "never") == 0)
        st->behavior = METASPACE_NEVER;
    else
        return refuse(r, "prepend_scheme", scheme);
    st->by = by->text;
    st->by_len = by->text_len;
    if (!json_get_bool(node, "split", true))
        return ERR_OK;
    st = steps_add(r->out, PRETOKEN_LITERAL);
    if (st == NULL)
        return too_many(r);
    st->behavior = PRETOKEN_WITH_NEXT;
    st->pattern = by->text;
    st->pattern_len = by->text_len;
    return ERR_OK;
}

static int read_step(struct reading *r, const struct json *node)
{
    static const struct {
        const char *type;
        int (*read)(struct reading *, const struct json *);
    } readers[] = {{"ByteLevel", read_byte_level},
                   {"Split", read_split},
                   {"Digits", read_digits},
                   {"Punctuation", read_punctuation},
                   {"Metaspace", read_metaspace}};
    const char *type = json_get_text(node, "type", "");
    size_t i;

    for (i = 0; i < sizeof readers / sizeof readers[0]; i++)
        if (strcmp(readers[i].type, type) == 0)
            return readers[i].read(r, node);
    return refuse(r, "pre-tokenizer", type);
}

int pretoken_read(struct steps_draft *out, bool *byte_level, const struct json *node, char *why,
                  size_t why_cap)
{
    const struct json *list = json_get_kind(node, "pretokenizers", JSON_LIST);
    struct reading r = {.out = out, .why = why, .why_cap = why_cap};
    int rc = ERR_OK;
    uint32_t i;

    out->n = 0;
    if (node == NULL || node->kind == JSON_NULL)
        rc = ERR_OK;
    else if (strcmp(json_get_text(node, "type", ""), "Sequence") != 0)
        rc = read_step(&r, node);
    else if (list == NULL)
        rc = refuse(&r, "Sequence without", "pretokenizers");
    else
        for (i = 0; i < list->n && rc == ERR_OK; i++)
            rc = read_step(&r, &list->items[i]);
    if (out->n > 0 && out->steps[out->n - 1].kind == PRETOKEN_SPELL)
        out->n--;
    *byte_level = r.spelled;
    return rc;
}

void pretoken_gpt2(struct steps_draft *out, bool add_prefix_space)
{
    out->n = 0;
    if (add_prefix_space)
        (void)steps_add(out, PRETOKEN_PREFIX); /* room for two is there */
    (void)steps_add(out, SCAN_GPT2);
}

#define KIMI_LARGE "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_SHORT "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

void pretoken_kimi(struct steps_draft *out)
{
    static const char pattern[] =
        "[\\p{Han}]+|"
        "[^\\r\\n\\p{L}\\p{N}]?" KIMI_LARGE "*" KIMI_SMALL "+" KIMI_SHORT "|"
        "[^\\r\\n\\p{L}\\p{N}]?" KIMI_LARGE "+" KIMI_SMALL "*" KIMI_SHORT "|"
        "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    struct step_draft *st;

    out->n = 0;
    (void)steps_add(out, PRETOKEN_RUNS); /* room for two is there */
    st = steps_add(out, PRETOKEN_REGEX);
    st->behavior = PRETOKEN_ISOLATED;
    st->pattern = pattern;
    st->pattern_len = sizeof pattern - 1;
}
