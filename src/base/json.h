/* JSON, read strictly: RFC 8259 and nothing beside it, into a tree that never changes.
 *
 * What a template or a schema needs is kept: whole numbers stay whole (int64, uint64), other
 * numbers stay real (1.0 is not 1), every number keeps its source text, members keep their
 * order. Of a name that occurs twice the last value counts, in the place of the first, as in
 * Python. Refused: invalid UTF-8, lone surrogate escapes, \u0000 in the name of a member, raw
 * control characters, nesting above JSON_DEPTH_MAX, anything after the value.
 *
 * A text may hold NULs (\u0000): whatever takes it as content takes text_len bytes of it; whatever
 * takes it as a C string (a name, one word of several) looks at json_has_nul() before.
 *
 * A tree lives in the arena it was read into. Nodes are read by any thread without a lock. */
#ifndef QUIRE_BASE_JSON_H
#define QUIRE_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

#define JSON_DEPTH_MAX 128               /* lists and objects inside each other */
#define JSON_BYTES_MAX ((size_t)1 << 30) /* a text above this is refused unread */

enum json_kind {
    JSON_NULL,
    JSON_BOOL,
    JSON_INT,  /* written without '.' and exponent, fits int64_t */
    JSON_UINT, /* the same, above INT64_MAX, fits uint64_t */
    JSON_REAL, /* every other number; also whole ones beyond 64 bits (text is exact) */
    JSON_TEXT,
    JSON_LIST,
    JSON_OBJECT,
};

/* One value. Read the fields that the kind names; write none. */
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
        const char *text;         /* JSON_TEXT: UTF-8, NUL-terminated; NULs may be inside;
                                    numbers: their n bytes as they were written */
        const struct json *items; /* JSON_LIST, JSON_OBJECT: n nodes, in document order */
    };
};

/* Read one JSON text.
 *
 *   out      out: the value; lives as long as the arena
 *   why      out on error: a sentence for the sender with line, column and reason; may be NULL
 *
 * Returns ERR_OK; ERR_SYNTAX when the text is not JSON as described above (why says where);
 * ERR_LIMIT when it nests too deep or is too long (why says so); ERR_NO_MEMORY when the arena
 * gives out. Time is linear in len. The text is not kept. Any thread with its own arena. */
int json_parse(const struct json **out, struct arena *arena, const char *text, size_t len,
               char *why, size_t why_cap) ERR_CHECKED;

/* Member by its exact name; NULL when there is none or obj is NULL or not an object. Constant
 * time for large objects. */
const struct json *json_get(const struct json *obj, const char *name);
const struct json *json_get_n(const struct json *obj, const char *name, size_t name_len);

/* Like json_get(), but NULL also when the member is null or of another kind. */
const struct json *json_get_kind(const struct json *obj, const char *name, enum json_kind kind);

/* Member values with a preset for those that are missing or of another kind. json_get_text()
 * returns a NUL-terminated text; one with a NUL inside counts as missing. */
bool json_get_bool(const struct json *obj, const char *name, bool preset);
int64_t json_get_int(const struct json *obj, const char *name, int64_t preset);
const char *json_get_text(const struct json *obj, const char *name, const char *preset);

/* The value of a number of any kind, nearest double. must() be a number. */
double json_real(const struct json *node);

bool json_is_number(const struct json *node);                 /* false for NULL */
bool json_is_text(const struct json *node, const char *text); /* a text equal to this one */
bool json_has_nul(const struct json *node);                   /* a text that no C string is */

/* "null", "true or false", "whole number", "number", "string", "list", "object": for reasons. */
const char *json_kind_name(enum json_kind kind);

/* How json_write() spaces. */
enum json_style {
    JSON_COMPACT, /* {"a":1,"b":[1,2]} */
    JSON_EXACT,   /* compact, and every number as it was written: what is repeated stays JSON */
    JSON_PYTHON,  /* {"a": 1, "b": [1, 2]}, as Python's json.dumps(x, ensure_ascii=False) */
};

/* Append a value. Whole numbers are written exactly; reals as Python's repr() writes a double
 * (the shortest that reads back; 1.0, 1e+16), those beyond its range as Infinity. */
void json_write(struct buf *out, const struct json *node, enum json_style style);

/* Append a double as Python's repr() does: 1.0, 0.1, 1e+16, 1e-05, inf, -inf, nan. */
void json_write_real(struct buf *out, double value);

/* A list or object in the making. Members are put one by one; a key is NULL in a list, and is
 * borrowed, as are texts, until the arena ends. What finds no memory sets `failed` and all later
 * ones do nothing, so that a maker checks once, at the end. Names are not compared: the first of
 * two is found. */
struct json_made {
    struct arena *arena;
    struct json *items;
    uint32_t n;
    uint32_t cap;
    bool failed;
};

/* A copy of the node; what is below it is shared. */
void json_put(struct json_made *m, const char *key, const struct json *value);
void json_put_text(struct json_made *m, const char *key, const char *text);
void json_put_flag(struct json_made *m, const char *key, bool flag);
void json_put_null(struct json_made *m, const char *key);

/* The list or object (kind) that members are. They must not be put to any more. */
void json_put_made(struct json_made *m, const char *key, enum json_kind kind,
                   const struct json_made *members);

/* The value itself, to be looked at when nothing has failed. */
struct json json_made(const struct json_made *m, enum json_kind kind);

#endif
