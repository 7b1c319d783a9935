/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: what Python's objects would be, and how Python prints, compares and counts them. */
#include "text/template/jinja_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/unicode.h"

const struct jorigin jorigin_own = {0};

#define PRINT_DEPTH_MAX (JSON_DEPTH_MAX + JINJA_DEPTH_MAX) /* of lists and dicts in print */

bool jraise(struct jrender *r, const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return jfault_set(&r->fault, ERR_INVALID, "line %d: %s", r->line, text);
}

bool jno_memory(struct jrender *r)
{
    return jfault_set(&r->fault, ERR_NO_MEMORY, "out of memory for the rendering");
}

bool jstep(struct jrender *r, size_t n)
{
    r->steps -= (int64_t)(n < INT32_MAX ? n : INT32_MAX);
    if (r->steps > 0)
        return true;
    return jfault_set(&r->fault, ERR_LIMIT, "line %d: the template takes too many steps", r->line);
}

struct jval jv_text(const char *text, size_t len)
{
    return (struct jval){.kind = JV_TEXT, .len = (uint32_t)len, .text = text};
}

struct jval jv_own(const char *text, size_t len)
{
    return (struct jval){
        .kind = JV_TEXT, .len = (uint32_t)len, .origin = &jorigin_own, .text = text};
}

struct jval jv_part(struct jval v, size_t from, size_t len)
{
    return (struct jval){
        .kind = JV_TEXT, .len = (uint32_t)len, .origin = v.origin, .text = v.text + from};
}

struct jval jv_int(int64_t whole)
{
    return (struct jval){.kind = JV_INT, .whole = whole};
}

struct jval jv_bool(bool flag)
{
    return (struct jval){.kind = JV_BOOL, .flag = flag};
}

struct jval jv_real(double real)
{
    return (struct jval){.kind = JV_REAL, .real = real};
}

struct jval jv_none(void)
{
    return (struct jval){.kind = JV_NONE};
}

struct jval jv_undefined(const char *name, size_t len)
{
    return (struct jval){.kind = JV_UNDEFINED, .len = (uint32_t)len, .text = name};
}

bool jv_is(struct jval v, const char *text)
{
    return v.kind == JV_TEXT && strlen(text) == v.len && memcmp(text, v.text, v.len) == 0;
}

bool jv_is_number(struct jval v)
{
    return v.kind == JV_BOOL || v.kind == JV_INT || v.kind == JV_REAL;
}

bool jv_is_callable(struct jval v)
{
    return v.kind == JV_MACRO || v.kind == JV_GLOBAL || v.kind == JV_METHOD || v.kind == JV_JOINER;
}

double jv_real_of(struct jval v)
{
    return v.kind == JV_REAL ? v.real : (double)jv_int_of(v);
}

int64_t jv_int_of(struct jval v)
{
    return v.kind == JV_BOOL ? v.flag : v.whole;
}

bool jv_truth(struct jval v)
{
    switch (v.kind) {
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return v.flag;
    case JV_INT: return v.whole != 0;
    case JV_REAL: return v.real != 0;
    case JV_TEXT: return v.len != 0;
    case JV_LIST:
    case JV_TUPLE: return v.list->n != 0;
    case JV_DICT: return v.dict->n != 0;
    case JV_BIG:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_GLOBAL:
    case JV_METHOD:
    case JV_JOINER: return true;
    }
    return false;
}

const char *jv_type_name(struct jval v)
{
    switch (v.kind) {
    case JV_UNDEFINED: return "Undefined";
    case JV_NONE: return "NoneType";
    case JV_BOOL: return "bool";
    case JV_INT:
    case JV_BIG: return "int";
    case JV_REAL: return "float";
    case JV_TEXT: return "str";
    case JV_LIST: return "list";
    case JV_TUPLE: return "tuple";
    case JV_DICT: return "dict";
    case JV_NAMESPACE: return "Namespace";
    case JV_LOOP: return "LoopContext";
    case JV_MACRO: return "Macro";
    case JV_GLOBAL:
    case JV_METHOD: return "function";
    case JV_JOINER: return "Joiner";
    }
    return "object";
}

static bool equal_depth(struct jval a, struct jval b, int depth);

static bool lists_equal(const struct jlist *a, const struct jlist *b, int depth)
{
    size_t i;

    if (a->n != b->n)
        return false;
    for (i = 0; i < a->n; i++)
        if (!equal_depth(a->items[i], b->items[i], depth + 1))
            return false;
    return true;
}

static bool dicts_equal(const struct jdict *a, const struct jdict *b, int depth)
{
    size_t i;

    if (a->n != b->n)
        return false;
    for (i = 0; i < a->n; i++) {
        const struct jval *other = jdict_get(b, a->pairs[i].key);

        if (other == NULL || !equal_depth(a->pairs[i].value, *other, depth + 1))
            return false;
    }
    return true;
}

static bool equal_depth(struct jval a, struct jval b, int depth)
{
    if (depth > PRINT_DEPTH_MAX)
        return false;
    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_REAL || b.kind == JV_REAL)
            return jv_real_of(a) == jv_real_of(b);
        return jv_int_of(a) == jv_int_of(b);
    }
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case JV_UNDEFINED:
    case JV_NONE: return true;
    case JV_TEXT:
    case JV_BIG:
    case JV_GLOBAL: return a.len == b.len && memcmp(a.text, b.text, a.len) == 0;
    case JV_LIST:
    case JV_TUPLE: return a.list == b.list || lists_equal(a.list, b.list, depth);
    case JV_DICT: return a.dict == b.dict || dicts_equal(a.dict, b.dict, depth);
    case JV_BOOL:
    case JV_INT:
    case JV_REAL:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_METHOD:
    case JV_JOINER: break;
    }
    return a.list == b.list; /* the same object */
}

bool jv_equal(struct jval a, struct jval b)
{
    return equal_depth(a, b, 0);
}

bool jv_compare(struct jrender *r, struct jval a, struct jval b, int *order)
{
    size_t i;

    if (jv_is_number(a) && jv_is_number(b)) {
        if (a.kind == JV_REAL || b.kind == JV_REAL)
            *order = jv_real_of(a) < jv_real_of(b) ? -1 : jv_real_of(a) > jv_real_of(b);
        else
            *order = jv_int_of(a) < jv_int_of(b) ? -1 : jv_int_of(a) > jv_int_of(b);
        return true;
    }
    if (a.kind == JV_TEXT && b.kind == JV_TEXT) {
        int bytes = memcmp(a.text, b.text, a.len < b.len ? a.len : b.len);

        *order = bytes != 0 ? bytes : a.len < b.len ? -1 : a.len > b.len;
        return true;
    }
    if ((a.kind == JV_LIST || a.kind == JV_TUPLE) && a.kind == b.kind) {
        if (++r->depth > JINJA_DEPTH_MAX * 20)
            return jraise(r, "values nest too deep to be compared");
        for (i = 0; i < a.list->n && i < b.list->n; i++)
            if (!jv_equal(a.list->items[i], b.list->items[i])) {
                bool good = jv_compare(r, a.list->items[i], b.list->items[i], order);

                r->depth--;
                return good;
            }
        r->depth--;
        *order = a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
        return true;
    }
    return jraise(r, "'<' is not supported between '%s' and '%s'", jv_type_name(a),
                  jv_type_name(b));
}

/* --- lists and dicts ---------------------------------------------------------------------------*/

struct jlist *jlist_new(struct jrender *r, size_t cap)
{
    struct jlist *l = arena_zalloc(r->arena, sizeof *l);

    if (l != NULL && cap > 0)
        l->items = arena_alloc(r->arena, cap * sizeof *l->items);
    if (l == NULL || (cap > 0 && l->items == NULL)) {
        (void)jno_memory(r);
        return NULL;
    }
    l->cap = cap;
    return l;
}

bool jlist_add(struct jrender *r, struct jlist *l, struct jval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap == 0 ? 8 : l->cap * 2;
        struct jval *grown = arena_alloc(r->arena, cap * sizeof *grown);

        if (grown == NULL)
            return jno_memory(r);
        if (l->n > 0)
            memcpy(grown, l->items, l->n * sizeof *grown);
        l->items = grown;
        l->cap = cap;
    }
    l->items[l->n++] = v;
    return jstep(r, 1);
}

struct jval jv_list(struct jlist *l)
{
    return (struct jval){.kind = JV_LIST, .list = l};
}

struct jdict *jdict_new(struct jrender *r, size_t cap)
{
    struct jdict *d = arena_zalloc(r->arena, sizeof *d);

    if (d != NULL && cap > 0)
        d->pairs = arena_alloc(r->arena, cap * sizeof *d->pairs);
    if (d == NULL || (cap > 0 && d->pairs == NULL)) {
        (void)jno_memory(r);
        return NULL;
    }
    d->cap = cap;
    return d;
}

struct jval *jdict_get(const struct jdict *d, struct jval key)
{
    size_t i;

    if (key.kind == JV_TEXT)
        return jdict_get_text(d, key.text, key.len);
    for (i = 0; i < d->n; i++)
        if (jv_equal(d->pairs[i].key, key))
            return &d->pairs[i].value;
    return NULL;
}

struct jval *jdict_get_text(const struct jdict *d, const char *key, size_t len)
{
    size_t i;

    for (i = 0; i < d->n; i++) {
        const struct jval *k = &d->pairs[i].key;

        if (k->kind == JV_TEXT && k->len == len && memcmp(k->text, key, len) == 0)
            return &d->pairs[i].value;
    }
    return NULL;
}

bool jdict_set(struct jrender *r, struct jdict *d, struct jval key, struct jval value)
{
    struct jval *known = jdict_get(d, key);

    if (known != NULL) {
        *known = value;
        return true;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap == 0 ? 8 : d->cap * 2;
        struct jpair *grown = arena_alloc(r->arena, cap * sizeof *grown);

        if (grown == NULL)
            return jno_memory(r);
        if (d->n > 0)
            memcpy(grown, d->pairs, d->n * sizeof *grown);
        d->pairs = grown;
        d->cap = cap;
    }
    d->pairs[d->n++] = (struct jpair){.key = key, .value = value};
    return jstep(r, 1 + d->n / 16);
}

bool jv_iterate(struct jrender *r, struct jval v, struct jlist **out)
{
    struct jlist *l;
    size_t i = 0;

    if (v.kind == JV_LIST || v.kind == JV_TUPLE) {
        *out = v.list;
        return true;
    }
    if (v.kind != JV_UNDEFINED && v.kind != JV_TEXT && v.kind != JV_DICT)
        return jraise(r, "'%s' object is not iterable", jv_type_name(v));
    l = jlist_new(r, v.kind == JV_DICT ? v.dict->n : 0);
    if (l == NULL)
        return false;
    *out = l;
    while (v.kind == JV_TEXT && i < v.len) {
        size_t n = utf8_sequence(v.text + i, v.len - i);

        if (!jlist_add(r, l, jv_part(v, i, n)))
            return false;
        i += n;
    }
    for (i = 0; v.kind == JV_DICT && i < v.dict->n; i++)
        if (!jlist_add(r, l, v.dict->pairs[i].key))
            return false;
    return true;
}

static struct jval from_json_members(struct arena *a, const struct json *node, bool *failed)
{
    struct jlist *list = arena_zalloc(a, sizeof *list);
    struct jdict *dict = arena_zalloc(a, sizeof *dict);
    struct jval v = {.kind = JV_LIST, .list = list};
    void *members = arena_alloc(a, (node->n + (size_t)1) * sizeof(struct jpair));
    uint32_t i;

    if (list == NULL || dict == NULL || members == NULL) {
        *failed = true;
        return jv_none();
    }
    if (node->kind == JSON_OBJECT)
        v = (struct jval){.kind = JV_DICT, .dict = dict};
    list->items = members;
    dict->pairs = members;
    for (i = 0; i < node->n; i++) {
        const struct json *item = &node->items[i];
        struct jval value = jv_from_json(a, item, failed);

        if (node->kind == JSON_LIST)
            list->items[i] = value;
        else
            dict->pairs[i] = (struct jpair){jv_text(item->key, item->key_len), value};
    }
    list->n = list->cap = node->n;
    dict->n = dict->cap = node->n;
    return v;
}

/* As deep as the tree, JSON_DEPTH_MAX at most. */
struct jval jv_from_json(struct arena *a, const struct json *node, bool *failed)
{
    struct jval big;

    if (node == NULL)
        return jv_none();
    switch (node->kind) {
    case JSON_NULL: return jv_none();
    case JSON_BOOL: return jv_bool(node->flag);
    case JSON_INT: return jv_int(node->whole);
    case JSON_TEXT: return jv_text(node->text, node->text_len);
    case JSON_UINT:
    case JSON_REAL:
        if (node->kind == JSON_REAL && strpbrk(node->text, ".eE") != NULL)
            return jv_real(node->real);
        big = jv_text(node->text, node->n);
        big.kind = JV_BIG;
        return big;
    case JSON_LIST:
    case JSON_OBJECT: return from_json_members(a, node, failed);
    }
    return jv_none();
}

/* --- printing ----------------------------------------------------------------------------------*/

bool jv_take_buf(struct jrender *r, struct buf *b, struct jval *out)
{
    char *copy = b->failed ? NULL : arena_strndup(r->arena, b->len == 0 ? "" : b->bytes, b->len);

    *out = jv_text(copy, b->len);
    r->text_bytes += b->len;
    buf_fini(b);
    if (r->text_bytes > 4 * JINJA_OUTPUT_MAX)
        return jfault_set(&r->fault, ERR_LIMIT, "the template makes too much text");
    return copy != NULL || jno_memory(r);
}

/* Spans of a text's own bytes, moved so that it begins at `at`. */
static bool add_origin(struct jrender *r, struct spans *own, struct jval v, size_t at)
{
    const struct jorigin *from = v.origin;
    size_t first;
    size_t i;

    if (from == NULL || v.len == 0)
        return true;
    if (from->base == NULL)
        return spans_add(own, r->arena, at, at + v.len);
    first = (size_t)(v.text - from->base);
    for (i = spans_find(from->items, from->n, first); i < from->n; i++) {
        struct span s = from->items[i];
        size_t start = s.start > first ? s.start - first : 0;
        size_t stop = s.stop - first < v.len ? s.stop - first : v.len;

        if (start >= v.len)
            break;
        if (!spans_add(own, r->arena, at + start, at + stop))
            return false;
    }
    return true;
}

/* A text of len bytes of which `own` are the template's. */
static bool with_origin(struct jrender *r, const struct spans *own, const char *text, size_t len,
                        struct jval *out)
{
    struct jorigin *origin;

    *out = jv_text(text, len);
    if (own->n == 0)
        return true;
    out->origin = &jorigin_own;
    if (own->n == 1 && own->items[0].start == 0 && own->items[0].stop == len)
        return true;
    origin = arena_alloc(r->arena, sizeof *origin);
    if (origin == NULL)
        return jno_memory(r);
    *origin = (struct jorigin){.base = text, .items = own->items, .n = own->n};
    out->origin = origin;
    return true;
}

void jbuf_add(struct jrender *r, struct jbuf *b, struct jval text)
{
    size_t at = b->text.len;

    buf_add(&b->text, text.text, text.len);
    if (!b->text.failed && !add_origin(r, &b->own, text, at))
        b->text.failed = true;
}

bool jbuf_take(struct jrender *r, struct jbuf *b, struct jval *out)
{
    return jv_take_buf(r, &b->text, out) && with_origin(r, &b->own, out->text, out->len, out);
}

bool jv_concat(struct jrender *r, struct jval a, struct jval b, struct jval *out)
{
    size_t len = (size_t)a.len + b.len;
    struct spans own = {0};
    char *text;

    r->text_bytes += len;
    if (len > JINJA_OUTPUT_MAX || r->text_bytes > 4 * JINJA_OUTPUT_MAX)
        return jfault_set(&r->fault, ERR_LIMIT, "the template makes too much text");
    text = arena_alloc(r->arena, len + 1);
    if (text == NULL)
        return jno_memory(r);
    memcpy(text, a.text, a.len);
    memcpy(text + a.len, b.text, b.len);
    text[len] = '\0';
    if (!add_origin(r, &own, a, 0) || !add_origin(r, &own, b, a.len))
        return jno_memory(r);
    return with_origin(r, &own, text, len, out);
}

static void repr_char(struct buf *out, uint32_t c, const char *utf8, size_t n, char quote)
{
    if (c == '\n')
        buf_add_text(out, "\\n");
    else if (c == '\r')
        buf_add_text(out, "\\r");
    else if (c == '\t')
        buf_add_text(out, "\\t");
    else if (c == '\\' || c == (uint32_t)quote)
        buf_printf(out, "\\%c", (char)c);
    else if (unicode_is_printable(c))
        buf_add(out, utf8, n);
    else if (c < 0x100)
        buf_printf(out, "\\x%02x", c);
    else if (c < 0x10000)
        buf_printf(out, "\\u%04x", c);
    else
        buf_printf(out, "\\U%08x", c);
}

static void repr_text(struct buf *out, struct jval v)
{
    bool single = memchr(v.text, '\'', v.len) != NULL;
    char quote = single && memchr(v.text, '"', v.len) == NULL ? '"' : '\'';
    size_t i = 0;

    buf_add_byte(out, quote);
    while (i < v.len) {
        size_t n = utf8_sequence(v.text + i, v.len - i);

        repr_char(out, utf8_decode(v.text + i), v.text + i, n, quote);
        i += n;
    }
    buf_add_byte(out, quote);
}

static bool repr_list(struct jrender *r, struct buf *out, struct jval v, int depth)
{
    size_t i;

    buf_add_byte(out, v.kind == JV_LIST ? '[' : '(');
    for (i = 0; i < v.list->n; i++) {
        if (i > 0)
            buf_add_text(out, ", ");
        if (!jv_repr(r, out, v.list->items[i], depth + 1))
            return false;
    }
    if (v.kind == JV_TUPLE && v.list->n == 1)
        buf_add_byte(out, ',');
    buf_add_byte(out, v.kind == JV_LIST ? ']' : ')');
    return true;
}

static bool repr_dict(struct jrender *r, struct buf *out, const struct jdict *d, int depth)
{
    size_t i;

    buf_add_byte(out, '{');
    for (i = 0; i < d->n; i++) {
        if (i > 0)
            buf_add_text(out, ", ");
        if (!jv_repr(r, out, d->pairs[i].key, depth + 1))
            return false;
        buf_add_text(out, ": ");
        if (!jv_repr(r, out, d->pairs[i].value, depth + 1))
            return false;
    }
    buf_add_byte(out, '}');
    return true;
}

bool jv_repr(struct jrender *r, struct buf *out, struct jval v, int depth)
{
    if (depth > PRINT_DEPTH_MAX || out->len > JINJA_OUTPUT_MAX)
        return jfault_set(&r->fault, ERR_LIMIT, "a value is too deep or long to be printed");
    if (!jstep(r, 1))
        return false;
    switch (v.kind) {
    case JV_UNDEFINED: buf_add_text(out, depth > 0 ? "Undefined" : ""); return true;
    case JV_NONE: buf_add_text(out, "None"); return true;
    case JV_BOOL: buf_add_text(out, v.flag ? "True" : "False"); return true;
    case JV_INT: buf_printf(out, "%lld", (long long)v.whole); return true;
    case JV_REAL: json_write_real(out, v.real); return true;
    case JV_BIG: buf_add(out, v.text, v.len); return true;
    case JV_TEXT:
        buf_add_text(out, v.safe ? "Markup(" : "");
        repr_text(out, v);
        buf_add_text(out, v.safe ? ")" : "");
        return true;
    case JV_LIST:
    case JV_TUPLE: return repr_list(r, out, v, depth);
    case JV_DICT: return repr_dict(r, out, v.dict, depth);
    case JV_NAMESPACE:
        buf_add_text(out, "<Namespace ");
        if (!repr_dict(r, out, v.dict, depth))
            return false;
        buf_add_byte(out, '>');
        return true;
    case JV_LOOP:
    case JV_MACRO:
    case JV_GLOBAL:
    case JV_METHOD:
    case JV_JOINER: buf_printf(out, "<%s>", jv_type_name(v)); return true;
    }
    return true;
}

bool jv_str(struct jrender *r, struct jbuf *out, struct jval v)
{
    if (v.kind == JV_TEXT) {
        jbuf_add(r, out, v);
        return true;
    }
    return jv_repr(r, &out->text, v, 0);
}

bool jv_to_text(struct jrender *r, struct jval v, struct jval *out)
{
    struct buf b = {0};

    if (v.kind == JV_TEXT) {
        *out = v;
        return true;
    }
    if (!jv_repr(r, &b, v, 0)) {
        buf_fini(&b);
        return false;
    }
    return jv_take_buf(r, &b, out);
}

/* --- JSON --------------------------------------------------------------------------------------*/

static void json_ascii(struct buf *out, struct jval v)
{
    size_t i = 0;

    buf_add_byte(out, '"');
    while (i < v.len) {
        size_t n = utf8_sequence(v.text + i, v.len - i);
        uint32_t c = utf8_decode(v.text + i);

        if (c < 0x7f)
            buf_add_json_text(out, v.text + i, n);
        else if (c == 0x7f)
            buf_add_byte(out, '\x7f');
        else if (c < 0x10000)
            buf_printf(out, "\\u%04x", c);
        else
            buf_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                       0xdc00 + ((c - 0x10000) & 0x3ff));
        i += n;
    }
    buf_add_byte(out, '"');
}

static void json_text(struct buf *out, struct jval v, const struct jdump *how)
{
    if (how->ascii)
        json_ascii(out, v);
    else
        buf_add_json_string(out, v.text, v.len);
}

static void json_line(struct buf *out, const struct jdump *how, int depth)
{
    int i;

    if (how->indent < 0)
        return;
    buf_add_byte(out, '\n');
    for (i = 0; i < how->indent * depth; i++)
        buf_add_byte(out, ' ');
}

static bool json_list(struct jrender *r, struct buf *out, const struct jlist *l,
                      const struct jdump *how, int depth)
{
    size_t i;

    buf_add_byte(out, '[');
    for (i = 0; i < l->n; i++) {
        if (i > 0)
            buf_add_text(out, how->item);
        json_line(out, how, depth + 1);
        if (!jv_json(r, out, l->items[i], how, depth + 1))
            return false;
    }
    if (l->n > 0)
        json_line(out, how, depth);
    buf_add_byte(out, ']');
    return true;
}

/* The key that comes next in order after `last`; NULL at the end. Quadratic, but counted. */
static const struct jpair *next_sorted(struct jrender *r, const struct jdict *d,
                                       const struct jpair *last)
{
    const struct jpair *best = NULL;
    int order;
    size_t i;

    for (i = 0; i < d->n; i++) {
        const struct jpair *p = &d->pairs[i];

        if (!jstep(r, 1))
            return NULL;
        if (last != NULL && (!jv_compare(r, p->key, last->key, &order) || order <= 0))
            continue;
        if (best == NULL || (jv_compare(r, p->key, best->key, &order) && order < 0))
            best = p;
    }
    return best;
}

static bool json_dict(struct jrender *r, struct buf *out, const struct jdict *d,
                      const struct jdump *how, int depth)
{
    const struct jpair *p = NULL;
    size_t i;

    buf_add_byte(out, '{');
    for (i = 0; i < d->n; i++) {
        p = how->sort_keys ? next_sorted(r, d, p) : &d->pairs[i];
        if (p == NULL)
            break;
        if (i > 0)
            buf_add_text(out, how->item);
        json_line(out, how, depth + 1);
        if (p->key.kind == JV_TEXT) {
            json_text(out, p->key, how);
        } else {
            buf_add_byte(out, '"');
            if (!jv_json(r, out, p->key, how, depth + 1))
                return false;
            buf_add_byte(out, '"');
        }
        buf_add_text(out, how->key);
        if (!jv_json(r, out, p->value, how, depth + 1))
            return false;
    }
    if (d->n > 0)
        json_line(out, how, depth);
    buf_add_byte(out, '}');
    return r->fault.rc == ERR_OK;
}

bool jv_json(struct jrender *r, struct buf *out, struct jval v, const struct jdump *how, int depth)
{
    if (depth > PRINT_DEPTH_MAX || out->len > JINJA_OUTPUT_MAX)
        return jfault_set(&r->fault, ERR_LIMIT, "a value is too deep or long for JSON");
    if (!jstep(r, 1))
        return false;
    switch (v.kind) {
    case JV_NONE: buf_add_text(out, "null"); return true;
    case JV_BOOL: buf_add_text(out, v.flag ? "true" : "false"); return true;
    case JV_INT: buf_printf(out, "%lld", (long long)v.whole); return true;
    case JV_BIG: buf_add(out, v.text, v.len); return true;
    case JV_REAL:
        if (isnan(v.real) || isinf(v.real))
            buf_add_text(out, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
        else
            json_write_real(out, v.real);
        return true;
    case JV_TEXT: json_text(out, v, how); return true;
    case JV_LIST:
    case JV_TUPLE: return json_list(r, out, v.list, how, depth);
    case JV_DICT: return json_dict(r, out, v.dict, how, depth);
    case JV_UNDEFINED:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_GLOBAL:
    case JV_METHOD:
    case JV_JOINER: break;
    }
    return jraise(r, "Object of type %s is not JSON serializable", jv_type_name(v));
}
