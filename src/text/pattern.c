/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass over the pattern. Outside of classes most of it is copied. A class is read into its
 * parts: members, and the members that an intersection demands or forbids; it becomes
 * (?:(?=[demanded])(?![forbidden])[members]). */
#include "text/pattern.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define SPACE_MEMBERS                                    \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}" \
    "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

struct translating {
    const char *text;
    size_t len;
    size_t at;
    pattern_additions *additions;
    struct buf *out;
    char *why;
    size_t why_cap;
};

static int pattern_refuse(struct translating *translating, const char *what)
{
    (void)snprintf(translating->why, translating->why_cap, "%s in a regex is not supported", what);
    return ERR_UNSUPPORTED;
}

/* The name in \p{name} at t->at, behind the 'p'; false when there is none. */
static bool pattern_read_property(struct translating *translating, const char **name, size_t *len)
{
    const char *from = translating->text + translating->at;
    const char *end;

    if (translating->at >= translating->len || from[0] != '{')
        return false;
    end = memchr(from, '}', translating->len - translating->at);
    if (end == NULL)
        return false;
    *name = from + 1;
    *len = (size_t)(end - from) - 1;
    translating->at += *len + 2;
    return true;
}

static void pattern_add_property(struct translating *translating, const char *name, size_t len,
                                 struct buf *out)
{
    if (len == 3 && memcmp(name, "Han", 3) == 0) {
        /* With what the script has grown by in Unicode 15.0 and 15.1. */
        buf_add_text(out, "\\p{sc:Han}\\x{31350}-\\x{323af}\\x{2ebf0}-\\x{2ee5d}");
        return;
    }
    buf_add_text(out, "\\p{");
    buf_add(out, name, len);
    buf_add_byte(out, '}');
    translating->additions(name, len, out);
}

/* An escape inside a class, t->at behind the backslash. */
static int pattern_add_member_escape(struct translating *translating, struct buf *out)
{
    char c = translating->text[translating->at++];
    const char *name;
    size_t len;

    if (c == 's') {
        buf_add_text(out, SPACE_MEMBERS);
        return ERR_OK;
    }
    if (c == 'S')
        return pattern_refuse(translating, "\\S inside a class");
    if (c == 'p' && pattern_read_property(translating, &name, &len)) {
        pattern_add_property(translating, name, len, out);
        return ERR_OK;
    }
    buf_add_byte(out, '\\');
    buf_add_byte(out, c);
    return ERR_OK;
}

/* Members up to a bracket or "&&", which t->at then stands at. */
static int pattern_add_members(struct translating *translating, struct buf *out)
{
    int rc = ERR_OK;

    while (translating->at < translating->len && rc == ERR_OK) {
        char c = translating->text[translating->at];

        if (c == '[' || c == ']')
            return ERR_OK;
        if (c == '&' && translating->at + 1 < translating->len &&
            translating->text[translating->at + 1] == '&')
            return ERR_OK;
        translating->at++;
        if (c == '\\' && translating->at < translating->len)
            rc = pattern_add_member_escape(translating, out);
        else
            buf_add_byte(out, c);
    }
    return rc != ERR_OK ? rc : pattern_refuse(translating, "a class without an end");
}

/* A class in a class, t->at behind its bracket; its members to out, whether negated. */
static int pattern_read_inner(struct translating *translating, struct buf *out, bool *negated)
{
    int rc;

    *negated = translating->at < translating->len && translating->text[translating->at] == '^';
    translating->at += *negated;
    rc = pattern_add_members(translating, out);
    if (rc != ERR_OK)
        return rc;
    if (translating->text[translating->at] != ']')
        return pattern_refuse(translating, "a class three deep");
    translating->at++;
    return ERR_OK;
}

struct class_parts {
    struct buf members;
    struct buf demanded;
    struct buf forbidden;
    bool intersects; /* "&&" has been there */
};

/* One part of a class: members, or a class inside it. */
static int pattern_read_part(struct translating *translating, struct class_parts *p)
{
    struct buf inner = {0};
    struct buf *to = &p->members;
    bool negated = false;
    int rc;

    if (translating->text[translating->at] != '[') {
        rc = pattern_add_members(translating, p->intersects ? &p->demanded : &p->members);
        return rc;
    }
    translating->at++;
    rc = pattern_read_inner(translating, &inner, &negated);
    if (rc == ERR_OK && negated && !p->intersects)
        rc = pattern_refuse(translating, "a negated class joined to another");
    if (rc == ERR_OK && p->intersects)
        to = negated ? &p->forbidden : &p->demanded;
    if (rc == ERR_OK)
        buf_add(to, inner.bytes, inner.len);
    to->failed = to->failed || inner.failed;
    buf_fini(&inner);
    return rc;
}

static int pattern_write_class(struct translating *translating, const struct class_parts *p,
                               bool negated)
{
    if (p->members.failed || p->demanded.failed || p->forbidden.failed)
        return ERR_NO_MEMORY;
    if (p->members.len == 0)
        return pattern_refuse(translating, "an empty class");
    if (!p->intersects) {
        buf_printf(translating->out, negated ? "[^%s]" : "[%s]", p->members.bytes);
        return ERR_OK;
    }
    if (negated || p->demanded.len + p->forbidden.len == 0)
        return pattern_refuse(translating, "such an intersection of classes");
    buf_add_text(translating->out, "(?:");
    if (p->demanded.len > 0)
        buf_printf(translating->out, "(?=[%s])", p->demanded.bytes);
    if (p->forbidden.len > 0)
        buf_printf(translating->out, "(?![%s])", p->forbidden.bytes);
    buf_printf(translating->out, "[%s])", p->members.bytes);
    return ERR_OK;
}

/* A class, t->at behind its bracket. */
static int pattern_translate_class(struct translating *translating)
{
    struct class_parts p = {.intersects = false};
    bool negated = translating->at < translating->len && translating->text[translating->at] == '^';
    int rc = ERR_OK;

    translating->at += negated;
    if (translating->at < translating->len &&
        translating->text[translating->at] == ']') /* the first one is a member */
        rc = pattern_refuse(translating, "a bracket that is not escaped");
    while (rc == ERR_OK && translating->at < translating->len &&
           translating->text[translating->at] != ']') {
        if (translating->text[translating->at] == '&' && translating->at + 1 < translating->len &&
            translating->text[translating->at + 1] == '&') {
            if (p.intersects)
                rc = pattern_refuse(translating, "a second intersection");
            p.intersects = true;
            translating->at += 2;
            continue;
        }
        rc = pattern_read_part(translating, &p);
    }
    if (rc == ERR_OK && translating->at >= translating->len)
        rc = pattern_refuse(translating, "a class without an end");
    if (rc == ERR_OK) {
        translating->at++;
        rc = pattern_write_class(translating, &p, negated);
    }
    buf_fini(&p.members);
    buf_fini(&p.demanded);
    buf_fini(&p.forbidden);
    return rc;
}

/* An escape outside of classes, t->at behind the backslash. */
static void pattern_translate_escape(struct translating *translating)
{
    char c = translating->text[translating->at++];
    const char *name;
    size_t len;

    if (c == 's') {
        buf_add_text(translating->out, "[^\\S\\x{180e}]");
    } else if (c == 'S') {
        buf_add_text(translating->out, "[\\S\\x{180e}]");
    } else if ((c == 'p' || c == 'P') && pattern_read_property(translating, &name, &len)) {
        buf_add_text(translating->out, c == 'p' ? "[" : "[^");
        pattern_add_property(translating, name, len, translating->out);
        buf_add_byte(translating->out, ']');
    } else {
        buf_add_byte(translating->out, '\\');
        buf_add_byte(translating->out, c);
    }
}

int pattern_translate(const char *pattern, size_t len, pattern_additions *additions,
                      struct buf *out, char *why, size_t why_cap)
{
    struct translating translating = {.text = pattern,
                                      .len = len,
                                      .additions = additions,
                                      .out = out,
                                      .why = why,
                                      .why_cap = why_cap};
    int rc = ERR_OK;

    while (translating.at < translating.len && rc == ERR_OK) {
        char c = translating.text[translating.at++];

        if (c == '[')
            rc = pattern_translate_class(&translating);
        else if (c == '\\' && translating.at < translating.len)
            pattern_translate_escape(&translating);
        else
            buf_add_byte(out, c);
    }
    if (rc == ERR_OK && out->failed)
        rc = ERR_NO_MEMORY;
    return rc;
}
