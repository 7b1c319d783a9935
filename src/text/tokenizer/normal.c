/* SPDX-License-Identifier: Apache-2.0
 *
 * A normalizer is a chain of steps. Two buffers are written in turn: each step reads the text in
 * one and writes the other. A step that would change nothing passes its text on without a copy. */
#define _GNU_SOURCE 1 /* memmem() */
#include "text/tokenizer/normal.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "text/regex.h"
#include "text/unicode.h"

#define GROWTH_MAX  ((size_t)64) /* factor; real models need 3: a space becomes three bytes */
#define GROWTH_FREE ((size_t)64 << 10)

void normal_work_fini(struct normal_work *work)
{
    buf_fini(&work->texts[0]);
    buf_fini(&work->texts[1]);
    regex_work_close(work->regex);
    work->regex = NULL;
}

/* --- reading -----------------------------------------------------------------------------------*/

static int normal_refuse_step(char *why, size_t why_cap, const char *what, const char *name)
{
    (void)snprintf(why, why_cap, "%s \"%.80s\" is not supported", what, name);
    return ERR_UNSUPPORTED;
}

/* {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, or with "Regex". */
static int normal_read_replace(struct step_draft *step, const struct json *node, char *why,
                               size_t why_cap)
{
    const struct json *pattern = json_get(node, "pattern");
    const struct json *regex = json_get_kind(pattern, "Regex", JSON_TEXT);
    const struct json *text = regex != NULL ? regex : json_get_kind(pattern, "String", JSON_TEXT);
    const struct json *by = json_get_kind(node, "content", JSON_TEXT);

    /* A pattern without length would match between all characters. */
    if (text == NULL || text->text_len == 0 || by == NULL)
        return normal_refuse_step(why, why_cap, "normalizer Replace without", "pattern or content");
    /* Literal patterns have their own kind, because they need no regex engine. */
    if (regex != NULL)
        step->kind = NORMAL_REPLACE_REGEX;
    else
        step->kind = NORMAL_REPLACE;
    step->pattern = text->text;
    step->pattern_len = text->text_len;
    step->by = by->text;
    step->by_len = by->text_len;
    return ERR_OK;
}

/* One normalizer of a chain: NFC, Replace or Prepend. */
static int normal_read_step(struct steps_draft *out, const struct json *node, char *why,
                            size_t why_cap)
{
    const char *type = json_get_text(node, "type", "");
    const struct json *text = json_get_kind(node, "prepend", JSON_TEXT);
    /* A new step is an NFC; the other kinds change it. */
    struct step_draft *step = steps_add(out, NORMAL_NFC);

    if (step == NULL)
        return normal_refuse_step(why, why_cap, "a normalizer with so many steps as", "this");
    if (strcmp(type, "NFC") == 0)
        return ERR_OK;
    if (strcmp(type, "Replace") == 0)
        return normal_read_replace(step, node, why, why_cap);
    /* Prepend puts a text before a text that is not empty, such as "▁" for a first word. */
    if (strcmp(type, "Prepend") == 0 && text != NULL) {
        step->kind = NORMAL_PREPEND;
        step->by = text->text;
        step->by_len = text->text_len;
        return ERR_OK;
    }
    return normal_refuse_step(why, why_cap, "normalizer", type);
}

int normal_read(struct steps_draft *out, const struct json *node, char *why, size_t why_cap)
{
    const struct json *list = json_get_kind(node, "normalizers", JSON_LIST);
    int rc = ERR_OK;
    uint32_t i;

    must(out != NULL);
    out->n = 0;
    /* No normalizer is common: models that start from bytes need none. */
    if (node == NULL || node->kind == JSON_NULL)
        return ERR_OK;
    if (strcmp(json_get_text(node, "type", ""), "Sequence") != 0)
        return normal_read_step(out, node, why, why_cap);
    if (list == NULL)
        return normal_refuse_step(why, why_cap, "normalizer Sequence without", "normalizers");
    for (i = 0; i < list->n && rc == ERR_OK; i++)
        rc = normal_read_step(out, &list->items[i], why, why_cap);
    return rc;
}

/* --- preparing ---------------------------------------------------------------------------------*/

/* Compile a pattern and refuse it if it matches the empty text: Hugging Face and PCRE2 could differ
 * in how they continue after an empty match. */
static int normal_open_regex(struct regex **out, const struct step_draft *step, char *why,
                             size_t why_cap)
{
    struct regex_work *work = regex_work_open();
    struct regex_match match;
    int rc = work == NULL ? ERR_NO_MEMORY
                          : regex_open(out, step->pattern, step->pattern_len, why, why_cap);

    /* The empty text is the only input on which the test is made; empty matches in other
     * contexts are found when a text is normalized. */
    if (rc == ERR_OK && regex_next(*out, work, "", 0, 0, &match) == ERR_OK) {
        (void)snprintf(why, why_cap, "a normalizer whose regex matches \"\" is not supported");
        rc = ERR_UNSUPPORTED;
    }
    regex_work_close(work);
    return rc;
}

int normal_init(struct normal *normal, const struct steps_draft *steps, char *why, size_t why_cap)
{
    int rc = ERR_OK;
    int i;

    must(steps->n >= 0 && steps->n <= STEPS_MAX);
    *normal = (struct normal){.steps = *steps};
    for (i = 0; rc == ERR_OK && i < steps->n; i++) {
        const struct step_draft *step = &steps->steps[i];

        /* The steps may come from an image file, whose numbers can be anything. */
        if (step->kind >= NORMAL_KINDS || (step->kind >= NORMAL_REPLACE && step->pattern_len == 0))
            rc = ERR_CORRUPT;
        else if (step->kind == NORMAL_REPLACE_REGEX)
            rc = normal_open_regex(&normal->regexes[i], step, why, why_cap);
    }
    /* Regexes that were compiled before the error are freed. */
    if (rc != ERR_OK)
        normal_fini(normal);
    return rc;
}

void normal_fini(struct normal *normal)
{
    int i;

    for (i = 0; i < STEPS_MAX; i++)
        regex_close(normal->regexes[i]);
    *normal = (struct normal){0};
}

/* --- applying ----------------------------------------------------------------------------------*/

/* Replace a literal text. memchr() for one byte is several times faster than memmem(). */
static void normal_replace_text(const struct step_draft *step, const char *text, size_t len,
                                struct buf *out)
{
    size_t from = 0;

    while (from < len) {
        const char *found = step->pattern_len == 1
                                ? memchr(text + from, step->pattern[0], len - from)
                                : memmem(text + from, len - from, step->pattern, step->pattern_len);
        size_t at = found == NULL ? len : (size_t)(found - text);

        /* The text up to the match is copied, then the replacement in place of the match. */
        buf_add(out, text + from, at - from);
        if (found == NULL)
            return;
        buf_add(out, step->by, step->by_len);
        from = at + step->pattern_len;
    }
}

static int normal_replace_regex(const struct step_draft *step, const struct regex *regex,
                                struct normal_work *work, const char *text, size_t len,
                                struct buf *out)
{
    struct regex_match match;
    size_t from = 0;
    int rc = ERR_OK;

    /* The work area is made at the first use and kept for further texts. */
    if (work->regex == NULL)
        work->regex = regex_work_open();
    if (work->regex == NULL)
        return ERR_NO_MEMORY;
    while (from < len && (rc = regex_next(regex, work->regex, text, len, from, &match)) == ERR_OK) {
        if (match.end == match.start) /* empty only in some contexts, hence unnoticed at start */
            return ERR_LIMIT;
        buf_add(out, text + from, match.start - from);
        buf_add(out, step->by, step->by_len);
        from = match.end;
    }
    /* The rest after the last match. */
    buf_add(out, text + from, len - from);
    if (rc == ERR_NOT_FOUND)
        return ERR_OK;
    return rc;
}

int normal_apply(const struct normal *normal, struct normal_work *work, const char *text,
                 size_t len, const char **out, size_t *out_len)
{
    size_t limit = GROWTH_MAX * len + GROWTH_FREE;
    int turn = 0;
    int rc = ERR_OK;
    int i;

    must(text != NULL || len == 0);
    must(out != NULL && out_len != NULL);
    /* The steps alternate between two buffers: each reads the text of the one before. */
    for (i = 0; i < normal->steps.n && rc == ERR_OK && len > 0; i++) {
        const struct step_draft *step = &normal->steps.steps[i];
        struct buf *buf = &work->texts[turn];

        if (step->kind == NORMAL_NFC && unicode_is_nfc(text, len))
            continue;
        buf_clear(buf);
        buf->limit = limit;
        if (step->kind == NORMAL_NFC) {
            unicode_nfc(text, len, buf);
        } else if (step->kind == NORMAL_PREPEND) {
            buf_add(buf, step->by, step->by_len);
            buf_add(buf, text, len);
        } else if (step->kind == NORMAL_REPLACE) {
            normal_replace_text(step, text, len, buf);
        } else {
            rc = normal_replace_regex(step, normal->regexes[i], work, text, len, buf);
        }
        /* The buffer fails both at its limit and without memory; its length tells them apart. */
        if (buf->failed) {
            if (buf->len >= limit / 2)
                rc = ERR_LIMIT;
            else
                rc = ERR_NO_MEMORY;
        }
        if (buf->len == 0)
            text = "";
        else
            text = buf->bytes;
        len = buf->len;
        turn = 1 - turn;
    }
    *out = text;
    *out_len = len;
    return rc;
}
