/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON, read strictly by RFC 8259 into a tree that never changes.
 *
 * The tree keeps the details that templates and schemas need: whole numbers stay whole (int64,
 * uint64), other numbers stay real (1.0 is not 1), every number keeps its source text, members keep
 * their order. When a name occurs twice, the last value counts, in the place of the first, as in
 * Python. Refused are: invalid UTF-8, lone surrogate escapes, \u0000 in the name of a member, raw
 * control characters, nesting deeper than JSON_DEPTH_MAX, and anything after the value.
 *
 * A text may hold NULs (\u0000). Code that uses it as content takes its text_len bytes; code that
 * uses it as a C string (a name, a keyword) calls json_has_nul() first.
 *
 * A tree lives in the arena it was read into. Any thread may read nodes without a lock. */
#ifndef QUIRE_BASE_JSON_H
#define QUIRE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

#define JSON_DEPTH_MAX 128               /* lists and objects inside each other */
#define JSON_BYTES_MAX ((size_t)1 << 30) /* longer texts are refused unread */

enum json_kind {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,  /* written without '.' and exponent, fits int64_t */
    JSON_UINT, /* likewise, above INT64_MAX, fits uint64_t */
    JSON_REAL, /* every other number; also whole ones beyond 64 bits (text is exact) */
    JSON_TEXT,
    JSON_LIST,
    JSON_OBJECT,
};

/* One value. Only the fields of its kind are valid. Never write to one. */
struct json {
    enum json_kind kind;
    uint32_t n;      /* list, object: members; number: bytes of text; text: unused */
    const char *key; /* in an object: the name, NUL-terminated, without NUL inside; else NULL */
    size_t key_len;
    union {
        bool flag;             /* JSON_BOOL */
        int64_t whole;         /* JSON_INT */
        uint64_t uwhole;       /* JSON_UINT */
        double real;           /* JSON_REAL, finite or +-infinity when the text is out of range */
        size_t text_len;       /* JSON_TEXT */
        const uint32_t *index; /* JSON_OBJECT: hash index of large ones, else NULL */
    };
    union {
        const char *text;         /* JSON_TEXT: UTF-8, NUL-terminated, and NULs may be inside.
                                   * Numbers: their n bytes as they were written */
        const struct json *items; /* JSON_LIST, JSON_OBJECT: n nodes, in document order */
    };
};

/* Read one JSON text.
 *
 *   out      out: the value; lives as long as the arena
 *   why      out on error: a sentence for the sender with line, column and reason; may be NULL
 *
 * Returns ERR_OK; ERR_SYNTAX when the text is not JSON as described above; ERR_LIMIT when it nests
 * too deep or is too long; ERR_NO_MEMORY when the arena's limit or the memory is exhausted. Time is
 * linear in len. The text is not kept. Any thread, with an arena of its own. */
int json_parse(const struct json **out, struct arena *arena, const char *text, size_t len,
               char *why, size_t why_cap) ERR_CHECKED;

/* The member with exactly this name; NULL when there is none, or obj is NULL or not an object.
 * Constant time for large objects. */
const struct json *json_get(const struct json *obj, const char *name);
const struct json *json_get_n(const struct json *obj, const char *name, size_t name_len);

/* Like json_get(), but NULL also when the member is null or of another kind. */
const struct json *json_get_kind(const struct json *obj, const char *name, enum json_kind kind);

/* The value of a member, or preset when it is missing or of another kind. json_get_text() returns a
 * NUL-terminated text; a text with a NUL inside counts as missing. */
bool json_get_bool(const struct json *obj, const char *name, bool preset);
int64_t json_get_int(const struct json *obj, const char *name, int64_t preset);
const char *json_get_text(const struct json *obj, const char *name, const char *preset);

/* The value of a number of any kind as the nearest double. node must be a number. */
double json_real(const struct json *node);

bool json_is_number(const struct json *node);                 /* false for NULL */
bool json_is_text(const struct json *node, const char *text); /* a text equal to this one */
bool json_has_nul(const struct json *node);                   /* a NUL is inside: not a C string */

/* "null", "true or false", "whole number", "number", "string", "list", "object": for error
 * messages. */
const char *json_kind_name(enum json_kind kind);

/* A flag as JSON writes it. */
static inline const char *json_flag_text(bool flag)
{
    return flag ? "true" : "false";
}

/* Spacing and numbers of json_write(). */
enum json_style {
    JSON_COMPACT, /* {"a":1,"b":[1,2]} */
    JSON_EXACT,   /* compact, with every number as it was written, so that a copy is equal */
    JSON_PYTHON,  /* {"a": 1, "b": [1, 2]}, as Python's json.dumps(x, ensure_ascii=False) */
};

/* Append a value. Whole numbers are written exactly, reals as Python's repr writes a double (the
 * shortest text that reads back: 1.0, 1e+16), those beyond a double's range as Infinity. */
void json_write(struct buf *out, const struct json *node, enum json_style style);

/* Append a double as Python's repr does: 1.0, 0.1, 1e+16, 1e-05, inf, -inf, nan. */
void json_write_real(struct buf *out, double value);

/* A list or object under construction. Members are appended one by one. A key is NULL in a list;
 * keys and texts are borrowed until the arena ends. An append that finds no memory sets `failed`
 * and all later ones do nothing: a maker checks once, at the end. Names are not compared; of two
 * equal ones json_get() finds the first. */
struct json_made {
    struct arena *arena;
    struct json *items;
    uint32_t n;
    uint32_t cap;
    bool failed;
};

/* Append a copy of the node; its members are shared. */
void json_put(struct json_made *m, const char *key, const struct json *value);
void json_put_text(struct json_made *m, const char *key, const char *text);
void json_put_flag(struct json_made *m, const char *key, bool flag);
void json_put_null(struct json_made *m, const char *key);

/* Append the list or object (kind) that members has become. No more may be put to members. */
void json_put_made(struct json_made *m, const char *key, enum json_kind kind,
                   const struct json_made *members);

/* The finished value; valid when nothing has failed. */
struct json json_made(const struct json_made *m, enum json_kind kind);

#endif
