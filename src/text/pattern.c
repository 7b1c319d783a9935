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

static int refuse(struct translating *t, const char *what)
{
    (void)snprintf(t->why, t->why_cap, "%s in a regex is not supported", what);
    return ERR_UNSUPPORTED;
}

/* The name in \p{name} at t->at, behind the 'p'; false when there is none. */
static bool read_property(struct translating *t, const char **name, size_t *len)
{
    const char *from = t->text + t->at;
    const char *end;

    if (t->at >= t->len || from[0] != '{')
        return false;
    end = memchr(from, '}', t->len - t->at);
    if (end == NULL)
        return false;
    *name = from + 1;
    *len = (size_t)(end - from) - 1;
    t->at += *len + 2;
    return true;
}

static void add_property(struct translating *t, const char *name, size_t len, struct buf *out)
{
    if (len == 3 && memcmp(name, "Han", 3) == 0) {
        /* With what the script has grown by in Unicode 15.0 and 15.1. */
        buf_add_text(out, "\\p{sc:Han}\\x{31350}-\\x{323af}\\x{2ebf0}-\\x{2ee5d}");
        return;
    }
    buf_add_text(out, "\\p{");
    buf_add(out, name, len);
    buf_add_byte(out, '}');
    t->additions(name, len, out);
}

/* An escape inside a class, t->at behind the backslash. */
static int add_member_escape(struct translating *t, struct buf *out)
{
    char c = t->text[t->at++];
    const char *name;
    size_t len;

    if (c == 's') {
        buf_add_text(out, SPACE_MEMBERS);
        return ERR_OK;
    }
    if (c == 'S')
        return refuse(t, "\\S inside a class");
    if (c == 'p' && read_property(t, &name, &len)) {
        add_property(t, name, len, out);
        return ERR_OK;
    }
    buf_add_byte(out, '\\');
    buf_add_byte(out, c);
    return ERR_OK;
}

/* Members up to a bracket or "&&", which t->at then stands at. */
static int add_members(struct translating *t, struct buf *out)
{
    int rc = ERR_OK;

    while (t->at < t->len && rc == ERR_OK) {
        char c = t->text[t->at];

        if (c == '[' || c == ']')
            return ERR_OK;
        if (c == '&' && t->at + 1 < t->len && t->text[t->at + 1] == '&')
            return ERR_OK;
        t->at++;
        if (c == '\\' && t->at < t->len)
            rc = add_member_escape(t, out);
        else
            buf_add_byte(out, c);
    }
    return rc != ERR_OK ? rc : refuse(t, "a class without an end");
}

/* A class in a class, t->at behind its bracket; its members to out, whether negated. */
static int read_inner(struct translating *t, struct buf *out, bool *negated)
{
    int rc;

    *negated = t->at < t->len && t->text[t->at] == '^';
    t->at += *negated;
    rc = add_members(t, out);
    if (rc != ERR_OK)
        return rc;
    if (t->text[t->at] != ']')
        return refuse(t, "a class three deep");
    t->at++;
    return ERR_OK;
}

struct class_parts {
    struct buf members;
    struct buf demanded;
    struct buf forbidden;
    bool intersects; /* "&&" has been there */
};

/* One part of a class: members, or a class inside it. */
static int read_part(struct translating *t, struct class_parts *p)
{
    struct buf inner = {0};
    struct buf *to = &p->members;
    bool negated = false;
    int rc;

    if (t->text[t->at] != '[') {
        rc = add_members(t, p->intersects ? &p->demanded : &p->members);
        return rc;
    }
    t->at++;
    rc = read_inner(t, &inner, &negated);
    if (rc == ERR_OK && negated && !p->intersects)
        rc = refuse(t, "a negated class joined to another");
    if (rc == ERR_OK && p->intersects)
        to = negated ? &p->forbidden : &p->demanded;
    if (rc == ERR_OK)
        buf_add(to, inner.bytes, inner.len);
    to->failed = to->failed || inner.failed;
    buf_fini(&inner);
    return rc;
}

static int write_class(struct translating *t, const struct class_parts *p, bool negated)
{
    if (p->members.failed || p->demanded.failed || p->forbidden.failed)
        return ERR_NO_MEMORY;
    if (p->members.len == 0)
        return refuse(t, "an empty class");
    if (!p->intersects) {
        buf_printf(t->out, negated ? "[^%s]" : "[%s]", p->members.bytes);
        return ERR_OK;
    }
    if (negated || p->demanded.len + p->forbidden.len == 0)
        return refuse(t, "such an intersection of classes");
    buf_add_text(t->out, "(?:");
    if (p->demanded.len > 0)
        buf_printf(t->out, "(?=[%s])", p->demanded.bytes);
    if (p->forbidden.len > 0)
        buf_printf(t->out, "(?![%s])", p->forbidden.bytes);
    buf_printf(t->out, "[%s])", p->members.bytes);
    return ERR_OK;
}

/* A class, t->at behind its bracket. */
static int translate_class(struct translating *t)
{
    struct class_parts p = {.intersects = false};
    bool negated = t->at < t->len && t->text[t->at] == '^';
    int rc = ERR_OK;

    t->at += negated;
    if (t->at < t->len && t->text[t->at] == ']') /* the first one is a member */
        rc = refuse(t, "a bracket that is not escaped");
    while (rc == ERR_OK && t->at < t->len && t->text[t->at] != ']') {
        if (t->text[t->at] == '&' && t->at + 1 < t->len && t->text[t->at + 1] == '&') {
            if (p.intersects)
                rc = refuse(t, "a second intersection");
            p.intersects = true;
            t->at += 2;
            continue;
        }
        rc = read_part(t, &p);
    }
    if (rc == ERR_OK && t->at >= t->len)
        rc = refuse(t, "a class without an end");
    if (rc == ERR_OK) {
        t->at++;
        rc = write_class(t, &p, negated);
    }
    buf_fini(&p.members);
    buf_fini(&p.demanded);
    buf_fini(&p.forbidden);
    return rc;
}

/* An escape outside of classes, t->at behind the backslash. */
static void translate_escape(struct translating *t)
{
    char c = t->text[t->at++];
    const char *name;
    size_t len;

    if (c == 's') {
        buf_add_text(t->out, "[^\\S\\x{180e}]");
    } else if (c == 'S') {
        buf_add_text(t->out, "[\\S\\x{180e}]");
    } else if ((c == 'p' || c == 'P') && read_property(t, &name, &len)) {
        buf_add_text(t->out, c == 'p' ? "[" : "[^");
        add_property(t, name, len, t->out);
        buf_add_byte(t->out, ']');
    } else {
        buf_add_byte(t->out, '\\');
        buf_add_byte(t->out, c);
    }
}

int pattern_translate(const char *pattern, size_t len, pattern_additions *additions,
                      struct buf *out, char *why, size_t why_cap)
{
    struct translating t = {.text = pattern,
                            .len = len,
                            .additions = additions,
                            .out = out,
                            .why = why,
                            .why_cap = why_cap};
    int rc = ERR_OK;

    while (t.at < t.len && rc == ERR_OK) {
        char c = t.text[t.at++];

        if (c == '[')
            rc = translate_class(&t);
        else if (c == '\\' && t.at < t.len)
            translate_escape(&t);
        else
            buf_add_byte(out, c);
    }
    if (rc == ERR_OK && out->failed)
        rc = ERR_NO_MEMORY;
    return rc;
}
