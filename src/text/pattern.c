/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over the pattern. Text outside of classes is copied, except for the escapes that the two
 * engines read differently. A class is first split into its members and into the members that an
 * intersection demands or forbids, and is then written with look-aheads, because PCRE2 has no
 * intersection:
 *
 *     [a-z&&[^aeiou]]   ->   (?:(?![aeiou])[a-z])
 *     [\w&&[\p{L}]]     ->   (?:(?=[\p{L}])[\w]) */
#include "text/pattern.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"

/* Members of Oniguruma's \s: the White_Space characters, without U+180E. */
#define SPACE_MEMBERS                                    \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}" \
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

/* A translation in progress: text[at .. len) is left to read. */
struct pattern_work {
    const char *text;
    size_t len;
    size_t at;
    pattern_additions *additions;
    struct buf *out;
    char *why;
    size_t why_cap;
};

/* Reports a construct that has no translation. The model is then refused at start, because a
 * pattern that is read differently would tokenize text differently without any error. */
static int pattern_refuse(struct pattern_work *work, const char *what)
{
    (void)snprintf(work->why, work->why_cap, "%s in a regex is not supported", what);
    return ERR_UNSUPPORTED;
}

/* Read the {name} of \p{name}; work->at is after the 'p'. False when no braces follow: \pL. */
static bool pattern_read_property(struct pattern_work *work, const char **name, size_t *len)
{
    const char *from = work->text + work->at;
    const char *end;

    if (work->at >= work->len || from[0] != '{')
        return false;
    end = memchr(from, '}', work->len - work->at);
    if (end == NULL)
        return false;
    /* Go past the name, its closing brace and the opening one. */
    *name = from + 1;
    *len = (size_t)(end - from) - 1;
    work->at += *len + 2;
    return true;
}

/* Write \p{name} as class members. */
static void pattern_add_property(struct pattern_work *work, const char *name, size_t len,
                                 struct buf *out)
{
    if (len == 3 && memcmp(name, "Han", 3) == 0) {
        /* PCRE2's Script_Extensions are wider, and its tables lack the ideographs that Unicode
         * 15.0 and 15.1 have added to the script. */
        buf_add_text(out, "\\p{sc:Han}\\x{31350}-\\x{323af}\\x{2ebf0}-\\x{2ee5d}");
        return;
    }
    buf_add_text(out, "\\p{");
    buf_add(out, name, len);
    buf_add_byte(out, '}');
    work->additions(name, len, out);
}

/* Translate an escape inside a class; work->at is after the backslash. */
static int pattern_add_member_escape(struct pattern_work *work, struct buf *out)
{
    char c = work->text[work->at++];
    const char *name;
    size_t len;

    /* PCRE2's \s and \p{...} differ from those of the tokenizers' library in a few characters,
     * so both are written out. */
    if (c == 's') {
        buf_add_text(out, SPACE_MEMBERS);
        return ERR_OK;
    }
    if (c == 'S')
        return pattern_refuse(work, "\\S inside a class");
    if (c == 'p' && pattern_read_property(work, &name, &len)) {
        pattern_add_property(work, name, len, out);
        return ERR_OK;
    }
    /* All other escapes mean the same to both libraries. */
    buf_add_byte(out, '\\');
    buf_add_byte(out, c);
    return ERR_OK;
}

/* Copy members up to a bracket or "&&", at which work->at is left. */
static int pattern_add_members(struct pattern_work *work, struct buf *out)
{
    int rc = ERR_OK;

    while (work->at < work->len && rc == ERR_OK) {
        char c = work->text[work->at];

        /* A nested class and an intersection are for the caller to read: PCRE2 has neither. */
        if (c == '[' || c == ']')
            return ERR_OK;
        if (c == '&' && work->at + 1 < work->len && work->text[work->at + 1] == '&')
            return ERR_OK;
        work->at++;
        if (c == '\\' && work->at < work->len)
            rc = pattern_add_member_escape(work, out);
        else
            buf_add_byte(out, c);
    }
    if (rc != ERR_OK)
        return rc;
    return pattern_refuse(work, "a class without an end");
}

/* Read a class inside a class, work->at after its bracket. Its members go to out; *negated reports
 * whether it began with '^'. */
static int pattern_read_inner(struct pattern_work *work, struct buf *out, bool *negated)
{
    int rc;

    *negated = work->at < work->len && work->text[work->at] == '^';
    work->at += *negated;
    rc = pattern_add_members(work, out);
    if (rc != ERR_OK)
        return rc;
    if (work->text[work->at] != ']')
        return pattern_refuse(work, "a class three deep");
    work->at++;
    return ERR_OK;
}

/* A class in pieces, until pattern_write_class() puts it together. */
struct class_parts {
    struct buf members;
    struct buf demanded;
    struct buf forbidden;
    bool intersects; /* a "&&" was read: later parts restrict the members */
};

/* Read one part of a class: a run of members, or a whole class inside it. The union of negated
 * classes is refused: it would need an alternation, and no known tokenizer has one. */
static int pattern_read_part(struct pattern_work *work, struct class_parts *p)
{
    struct buf inner = {0};
    struct buf *to = &p->members;
    bool negated = false;
    int rc;

    if (work->text[work->at] != '[') {
        rc = pattern_add_members(work, p->intersects ? &p->demanded : &p->members);
        return rc;
    }
    work->at++;
    rc = pattern_read_inner(work, &inner, &negated);
    if (rc == ERR_OK && negated && !p->intersects)
        rc = pattern_refuse(work, "a negated class joined to another");
    /* After && a class is one side of an intersection: its members are demanded, or forbidden if it
     * is negated. */
    if (rc == ERR_OK && p->intersects) {
        if (negated)
            to = &p->forbidden;
        else
            to = &p->demanded;
    }
    if (rc == ERR_OK)
        buf_add(to, inner.bytes, inner.len);
    to->failed = to->failed || inner.failed;
    buf_fini(&inner);
    return rc;
}

/* Write a class that was read to its end. Look-aheads test the same character that the last class
 * then consumes, so they are an intersection. */
static int pattern_write_class(struct pattern_work *work, const struct class_parts *p, bool negated)
{
    if (p->members.failed || p->demanded.failed || p->forbidden.failed)
        return ERR_NO_MEMORY;
    if (p->members.len == 0)
        return pattern_refuse(work, "an empty class");
    if (!p->intersects) {
        buf_printf(work->out, negated ? "[^%s]" : "[%s]", p->members.bytes);
        return ERR_OK;
    }
    if (negated || p->demanded.len + p->forbidden.len == 0)
        return pattern_refuse(work, "such an intersection of classes");
    buf_add_text(work->out, "(?:");
    if (p->demanded.len > 0)
        buf_printf(work->out, "(?=[%s])", p->demanded.bytes);
    if (p->forbidden.len > 0)
        buf_printf(work->out, "(?![%s])", p->forbidden.bytes);
    buf_printf(work->out, "[%s])", p->members.bytes);
    return ERR_OK;
}

/* Translate a class, work->at after its bracket. A ']' in first place would be a member in one
 * engine and the end in the other, so it is refused. */
static int pattern_translate_class(struct pattern_work *work)
{
    struct class_parts p = {.intersects = false};
    bool negated = work->at < work->len && work->text[work->at] == '^';
    int rc = ERR_OK;

    work->at += negated;
    if (work->at < work->len && work->text[work->at] == ']')
        rc = pattern_refuse(work, "a bracket that is not escaped");
    while (rc == ERR_OK && work->at < work->len && work->text[work->at] != ']') {
        if (work->text[work->at] == '&' && work->at + 1 < work->len &&
            work->text[work->at + 1] == '&') {
            /* [a&&b&&c] would need a list of demanded classes; no tokenizer's pattern has one. */
            if (p.intersects)
                rc = pattern_refuse(work, "a second intersection");
            p.intersects = true;
            work->at += 2;
            continue;
        }
        rc = pattern_read_part(work, &p);
    }
    if (rc == ERR_OK && work->at >= work->len)
        rc = pattern_refuse(work, "a class without an end");
    if (rc == ERR_OK) {
        work->at++;
        rc = pattern_write_class(work, &p, negated);
    }
    buf_fini(&p.members);
    buf_fini(&p.demanded);
    buf_fini(&p.forbidden);
    return rc;
}

/* Translate an escape outside of classes, work->at after the backslash. Negated properties become
 * negated classes, so that the added characters are excluded as well. */
static void pattern_translate_escape(struct pattern_work *work)
{
    char c = work->text[work->at++];
    const char *name;
    size_t len;

    if (c == 's') {
        buf_add_text(work->out, "[^\\S\\x{180e}]");
    } else if (c == 'S') {
        buf_add_text(work->out, "[\\S\\x{180e}]");
    } else if ((c == 'p' || c == 'P') && pattern_read_property(work, &name, &len)) {
        buf_add_text(work->out, c == 'p' ? "[" : "[^");
        pattern_add_property(work, name, len, work->out);
        buf_add_byte(work->out, ']');
    } else {
        buf_add_byte(work->out, '\\');
        buf_add_byte(work->out, c);
    }
}

int pattern_translate(const char *pattern, size_t len, pattern_additions *additions,
                      struct buf *out, char *why, size_t why_cap)
{
    struct pattern_work work = {.text = pattern,
                                .len = len,
                                .additions = additions,
                                .out = out,
                                .why = why,
                                .why_cap = why_cap};
    int rc = ERR_OK;

    must(pattern != NULL || len == 0);
    must(additions != NULL && out != NULL);
    /* Every character is read once. `at` is advanced past the character that was looked at before
     * the helpers are called. */
    while (work.at < work.len && rc == ERR_OK) {
        char c = work.text[work.at++];

        if (c == '[')
            rc = pattern_translate_class(&work);
        else if (c == '\\' && work.at < work.len)
            pattern_translate_escape(&work);
        else
            buf_add_byte(out, c);
    }
    if (rc == ERR_OK && out->failed)
        rc = ERR_NO_MEMORY;
    return rc;
}
