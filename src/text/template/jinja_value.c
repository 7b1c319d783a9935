/* SPDX-License-Identifier: Apache-2.0
 *
 * Values: the counterparts of Python's objects, and how Python prints, compares and orders them. */
#include "text/template/jinja_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

const struct jorigin jorigin_own = {0};

#define PRINT_DEPTH_MAX (JSON_DEPTH_MAX + JINJA_DEPTH_MAX) /* nesting of printed lists and dicts */

/* --- failures and limits -----------------------------------------------------------------------*/

bool jinja_raise(struct jrender *render, const char *format, ...)
{
    char text[400];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* The line is the one that is being rendered, in the template's source. */
    return jinja_fault_set(&render->fault, ERR_INVALID, "line %d: %s", render->line, text);
}

bool jinja_no_memory(struct jrender *render)
{
    return jinja_fault_set(&render->fault, ERR_NO_MEMORY, "out of memory for the rendering");
}

bool jinja_step(struct jrender *render, size_t n)
{
    render->steps -= (int64_t)(n < INT32_MAX ? n : INT32_MAX);
    if (render->steps > 0)
        return true;
    return jinja_fault_set(&render->fault, ERR_LIMIT, "line %d: the template takes too many steps",
                           render->line);
}

/* --- making and testing values -----------------------------------------------------------------*/

struct jval jv_text(const char *text, size_t len)
{
    return (struct jval){.kind = JV_TEXT, .len = (uint32_t)len, .text = text};
}

struct jval jv_own(const char *text, size_t len)
{
    return (struct jval){
        .kind = JV_TEXT, .len = (uint32_t)len, .origin = &jorigin_own, .text = text};
}

struct jval jv_part(struct jval value, size_t from, size_t len)
{
    return (struct jval){
        .kind = JV_TEXT, .len = (uint32_t)len, .origin = value.origin, .text = value.text + from};
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

bool jv_is(struct jval value, const char *text)
{
    return value.kind == JV_TEXT && strlen(text) == value.len &&
           memcmp(text, value.text, value.len) == 0;
}

bool jv_is_number(struct jval value)
{
    return value.kind == JV_BOOL || value.kind == JV_INT || value.kind == JV_REAL;
}

bool jv_is_callable(struct jval value)
{
    return value.kind == JV_MACRO || value.kind == JV_GLOBAL || value.kind == JV_METHOD ||
           value.kind == JV_JOINER;
}

double jv_real_of(struct jval value)
{
    if (value.kind == JV_REAL)
        return value.real;
    return (double)jv_int_of(value);
}

int64_t jv_int_of(struct jval value)
{
    if (value.kind == JV_BOOL)
        return value.flag;
    return value.whole;
}

/* Python's bool(value). */
bool jv_truth(struct jval value)
{
    /* As in Python: zero, empty and none are false, everything else is true. An undefined value
     * is false and no error, which templates use as a test: {% if tools %}. */
    switch (value.kind) {
    case JV_UNDEFINED:
    case JV_NONE: return false;
    case JV_BOOL: return value.flag;
    case JV_INT: return value.whole != 0;
    case JV_REAL: return value.real != 0;
    case JV_TEXT: return value.len != 0;
    case JV_LIST:
    case JV_TUPLE: return value.list->n != 0;
    case JV_DICT: return value.dict->n != 0;
    /* JV_BIG is a number too large for 64 bits, so it is not 0. */
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

/* The name of the value's type in Python, for error texts. */
const char *jv_type_name(struct jval value)
{
    /* These are the names of Python and Jinja, so that errors read like those that authors of
     * templates know. */
    switch (value.kind) {
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

/* --- comparison --------------------------------------------------------------------------------*/

static bool jinja_equal_at_depth(struct jval left, struct jval right, int depth);

/* Lists are equal if their items are, at the same depth. The depth is bounded, because a request's
 * JSON may nest lists deeply. */
static bool jinja_lists_equal(const struct jlist *a, const struct jlist *b, int depth)
{
    size_t i;

    if (a->n != b->n)
        return false;
    for (i = 0; i < a->n; i++)
        if (!jinja_equal_at_depth(a->items[i], b->items[i], depth + 1))
            return false;
    return true;
}

/* Dicts are equal when they have the same pairs in any order. */
static bool jinja_dicts_equal(const struct jdict *a, const struct jdict *b, int depth)
{
    size_t i;

    if (a->n != b->n)
        return false;
    /* Both have the same number of keys, so if each key of one is in the other, the keys are
     * equal. */
    for (i = 0; i < a->n; i++) {
        const struct jval *other = jdict_get(b, a->pairs[i].key);

        if (other == NULL || !jinja_equal_at_depth(a->pairs[i].value, *other, depth + 1))
            return false;
    }
    return true;
}

/* Python's ==. Numbers of different kinds compare by value; other values of different kinds are
 * unequal. Beyond the bound on depth nothing is equal: a template cannot build such a value. */
static bool jinja_equal_at_depth(struct jval left, struct jval right, int depth)
{
    if (depth > PRINT_DEPTH_MAX)
        return false;
    /* As in Python, 1 == 1.0 and True == 1. */
    if (jv_is_number(left) && jv_is_number(right)) {
        if (left.kind == JV_REAL || right.kind == JV_REAL)
            return jv_real_of(left) == jv_real_of(right);
        return jv_int_of(left) == jv_int_of(right);
    }
    if (left.kind != right.kind)
        return false;
    switch (left.kind) {
    case JV_UNDEFINED:
    case JV_NONE: return true;
    case JV_TEXT:
    case JV_BIG:
    case JV_GLOBAL: return left.len == right.len && memcmp(left.text, right.text, left.len) == 0;
    case JV_LIST:
    case JV_TUPLE:
        return left.list == right.list || jinja_lists_equal(left.list, right.list, depth);
    case JV_DICT: return left.dict == right.dict || jinja_dicts_equal(left.dict, right.dict, depth);
    case JV_BOOL:
    case JV_INT:
    case JV_REAL:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_METHOD:
    case JV_JOINER: break;
    }
    return left.list == right.list; /* all others: only an object is equal to itself */
}

bool jv_equal(struct jval left, struct jval right)
{
    return jinja_equal_at_depth(left, right, 0);
}

/* Python's <, for numbers, texts, and lists element by element. UTF-8 bytes sort like code
 * points. */
bool jv_compare(struct jrender *render, struct jval left, struct jval right, int *order)
{
    size_t i;

    if (jv_is_number(left) && jv_is_number(right)) {
        if (left.kind == JV_REAL || right.kind == JV_REAL) {
            if (jv_real_of(left) < jv_real_of(right))
                *order = -1;
            else
                *order = jv_real_of(left) > jv_real_of(right);
        } else {
            if (jv_int_of(left) < jv_int_of(right))
                *order = -1;
            else
                *order = jv_int_of(left) > jv_int_of(right);
        }
        return true;
    }
    if (left.kind == JV_TEXT && right.kind == JV_TEXT) {
        int bytes = memcmp(left.text, right.text, left.len < right.len ? left.len : right.len);

        if (bytes != 0)
            *order = bytes;
        else if (left.len < right.len)
            *order = -1;
        else
            *order = left.len > right.len;
        return true;
    }
    if ((left.kind == JV_LIST || left.kind == JV_TUPLE) && left.kind == right.kind) {
        if (++render->depth > JINJA_DEPTH_MAX * 20)
            return jinja_raise(render, "values nest too deep to be compared");
        /* The first pair of items that differ decides. */
        for (i = 0; i < left.list->n && i < right.list->n; i++)
            if (!jv_equal(left.list->items[i], right.list->items[i])) {
                bool good = jv_compare(render, left.list->items[i], right.list->items[i], order);

                render->depth--;
                return good;
            }
        render->depth--;
        if (left.list->n < right.list->n)
            *order = -1;
        else
            *order = left.list->n > right.list->n;
        return true;
    }
    return jinja_raise(render, "'<' is not supported between '%s' and '%s'", jv_type_name(left),
                       jv_type_name(right));
}

/* --- lists and dicts ---------------------------------------------------------------------------*/

/* Both grow in the arena by doubling. A dict is searched from its start: those of templates have
 * few members, and jinja_step() counts the work. */

struct jlist *jlist_new(struct jrender *render, size_t cap)
{
    struct jlist *list = arena_zalloc(render->arena, sizeof *list);

    if (list != NULL && cap > 0)
        list->items = arena_alloc(render->arena, cap * sizeof *list->items);
    if (list == NULL || (cap > 0 && list->items == NULL)) {
        (void)jinja_no_memory(render);
        return NULL;
    }
    list->cap = cap;
    return list;
}

/* Append a value. Capacity doubles, so n additions copy at most 2n values; the arena keeps the
 * outgrown arrays until the end of the render. Each addition is a step of work, which bounds the
 * memory of loops that build lists. */
bool jlist_add(struct jrender *render, struct jlist *list, struct jval value)
{
    if (list->n == list->cap) {
        size_t cap = list->cap == 0 ? 8 : list->cap * 2;
        struct jval *grown = arena_alloc(render->arena, cap * sizeof *grown);

        if (grown == NULL)
            return jinja_no_memory(render);
        if (list->n > 0)
            memcpy(grown, list->items, list->n * sizeof *grown);
        list->items = grown;
        list->cap = cap;
    }
    list->items[list->n++] = value;
    /* Even a list that grows without any output reaches the limit on steps. */
    return jinja_step(render, 1);
}

struct jval jv_list(struct jlist *list)
{
    return (struct jval){.kind = JV_LIST, .list = list};
}

struct jdict *jdict_new(struct jrender *render, size_t cap)
{
    struct jdict *dict = arena_zalloc(render->arena, sizeof *dict);

    /* With cap 0 the array is made by the first jdict_set(). */
    if (dict != NULL && cap > 0)
        dict->pairs = arena_alloc(render->arena, cap * sizeof *dict->pairs);
    if (dict == NULL || (cap > 0 && dict->pairs == NULL)) {
        (void)jinja_no_memory(render);
        return NULL;
    }
    dict->cap = cap;
    return dict;
}

/* Dicts are arrays that are searched from the start. Those of messages and tools have few members,
 * so hashing would not be faster; the cost is counted by jinja_step() in the callers. */
struct jval *jdict_get(const struct jdict *dict, struct jval key)
{
    size_t i;

    /* Keys of JSON are texts, so this is the usual case. */
    if (key.kind == JV_TEXT)
        return jdict_get_text(dict, key.text, key.len);
    for (i = 0; i < dict->n; i++)
        if (jv_equal(dict->pairs[i].key, key))
            return &dict->pairs[i].value;
    return NULL;
}

/* Only texts can be equal to a text key. The comparison of length and bytes avoids the general
 * one. */
struct jval *jdict_get_text(const struct jdict *dict, const char *key, size_t len)
{
    size_t i;

    must(key != NULL || len == 0);
    for (i = 0; i < dict->n; i++) {
        const struct jval *member = &dict->pairs[i].key;

        if (member->kind == JV_TEXT && member->len == len && memcmp(member->text, key, len) == 0)
            return &dict->pairs[i].value;
    }
    return NULL;
}

/* Insertion order is kept, because Python's dicts have it and tojson prints it. */
bool jdict_set(struct jrender *render, struct jdict *dict, struct jval key, struct jval value)
{
    struct jval *known = jdict_get(dict, key);

    /* An existing key keeps its place. */
    if (known != NULL) {
        *known = value;
        return true;
    }
    if (dict->n == dict->cap) {
        size_t cap = dict->cap == 0 ? 8 : dict->cap * 2;
        struct jpair *grown = arena_alloc(render->arena, cap * sizeof *grown);

        if (grown == NULL)
            return jinja_no_memory(render);
        if (dict->n > 0)
            memcpy(grown, dict->pairs, dict->n * sizeof *grown);
        dict->pairs = grown;
        dict->cap = cap;
    }
    dict->pairs[dict->n++] = (struct jpair){.key = key, .value = value};
    /* The cost grows with the dict, because keys are searched one after the other. */
    return jinja_step(render, 1 + dict->n / 16);
}

/* The items of a value: those of a list, the characters of a text, the keys of a dict. A list is
 * returned itself, without a copy. An undefined value is an empty list, as in Jinja. */
bool jv_iterate(struct jrender *render, struct jval value, struct jlist **out)
{
    struct jlist *list;
    size_t i = 0;

    if (value.kind == JV_LIST || value.kind == JV_TUPLE) {
        *out = value.list;
        return true;
    }
    if (value.kind != JV_UNDEFINED && value.kind != JV_TEXT && value.kind != JV_DICT)
        return jinja_raise(render, "'%s' object is not iterable", jv_type_name(value));
    /* The list of a text grows as it is filled, because the number of characters is not known. */
    list = jlist_new(render, value.kind == JV_DICT ? value.dict->n : 0);
    if (list == NULL)
        return false;
    *out = list;
    while (value.kind == JV_TEXT && i < value.len) {
        size_t n = utf8_sequence(value.text + i, value.len - i);

        if (!jlist_add(render, list, jv_part(value, i, n)))
            return false;
        i += n;
    }
    for (i = 0; value.kind == JV_DICT && i < value.dict->n; i++)
        if (!jlist_add(render, list, value.dict->pairs[i].key))
            return false;
    return true;
}

/* Convert a JSON list or object. Both arrays use one allocation, sized for the larger element. */
static struct jval jinja_from_json_members(struct arena *arena, const struct json *node,
                                           bool *failed)
{
    struct jlist *list = arena_zalloc(arena, sizeof *list);
    struct jdict *dict = arena_zalloc(arena, sizeof *dict);
    struct jval v = {.kind = JV_LIST, .list = list};
    /* One element more than needed, so that an empty list does not ask for 0 bytes. */
    void *members = arena_alloc(arena, (node->n + (size_t)1) * sizeof(struct jpair));
    uint32_t i;

    if (list == NULL || dict == NULL || members == NULL) {
        *failed = true;
        return jv_none();
    }
    if (node->kind == JSON_OBJECT)
        v = (struct jval){.kind = JV_DICT, .dict = dict};
    /* Only one of both is used; the other one, an empty struct, is not worth a branch. */
    list->items = members;
    dict->pairs = members;
    for (i = 0; i < node->n; i++) {
        const struct json *item = &node->items[i];
        struct jval value = jv_from_json(arena, item, failed);

        if (node->kind == JSON_LIST)
            list->items[i] = value;
        else
            dict->pairs[i] = (struct jpair){jv_text(item->key, item->key_len), value};
    }
    /* The capacity equals the length, so a later addition copies the array first. */
    list->n = list->cap = node->n;
    dict->n = dict->cap = node->n;
    return v;
}

/* Recursion is bounded by JSON_DEPTH_MAX. Integers that do not fit keep their text. */
struct jval jv_from_json(struct arena *arena, const struct json *node, bool *failed)
{
    struct jval big;

    must(failed != NULL);
    if (node == NULL)
        return jv_none();
    switch (node->kind) {
    case JSON_NULL: return jv_none();
    case JSON_BOOL: return jv_bool(node->flag);
    case JSON_INT: return jv_int(node->whole);
    case JSON_TEXT: return jv_text(node->text, node->text_len);
    case JSON_UINT:
    case JSON_REAL:
        /* A JSON number without '.' or exponent is an integer in Python, of any size. Its digits
         * are kept, because the template can do nothing with it but print it. */
        if (node->kind == JSON_REAL && strpbrk(node->text, ".eE") != NULL)
            return jv_real(node->real);
        big = jv_text(node->text, node->n);
        big.kind = JV_BIG;
        return big;
    case JSON_LIST:
    case JSON_OBJECT: return jinja_from_json_members(arena, node, failed);
    }
    return jv_none();
}

/* --- printing ----------------------------------------------------------------------------------*/

/* The total of all texts is bounded as well as each one: a loop could otherwise fill the memory
 * with many small texts. */

/* Move a buffer's text into the arena and free the buffer. All texts of a render are counted,
 * because a template that doubles a text in a loop would otherwise fill memory within few steps. */
bool jv_take_buf(struct jrender *render, struct buf *buf, struct jval *out)
{
    char *copy = buf->failed
                     ? NULL
                     : arena_strndup(render->arena, buf->len == 0 ? "" : buf->bytes, buf->len);

    *out = jv_text(copy, buf->len);
    /* The buffer is freed here in every case, so callers need no branch for an error. */
    render->text_bytes += buf->len;
    buf_fini(buf);
    if (render->text_bytes > 4 * JINJA_OUTPUT_MAX)
        return jinja_fault_set(&render->fault, ERR_LIMIT, "the template makes too much text");
    return copy != NULL || jinja_no_memory(render);
}

/* Add the spans of a text's own bytes to `own`, for a copy of the text that begins at `at`. */
static bool jinja_add_origin(struct jrender *render, struct spans *own, struct jval value,
                             size_t at)
{
    const struct jorigin *from = value.origin;
    size_t first;
    size_t i;

    /* No origin: no byte of the text is the template's, so there is nothing to add. */
    if (from == NULL || value.len == 0)
        return true;
    /* Without a base the origin is the shared one: the whole text is the template's, wherever it
     * is. */
    if (from->base == NULL)
        return spans_add(own, render->arena, at, at + value.len);
    /* Clip each span that overlaps the text, and move it. */
    first = (size_t)(value.text - from->base);
    for (i = spans_find(from->items, from->n, first); i < from->n; i++) {
        struct span span = from->items[i];
        size_t start = span.start > first ? span.start - first : 0;
        size_t stop = span.stop - first < value.len ? span.stop - first : value.len;

        if (start >= value.len)
            break;
        if (!spans_add(own, render->arena, at + start, at + stop))
            return false;
    }
    return true;
}

/* A text with the spans `own`. A text that the template wrote entirely shares jorigin_own. */
static bool jinja_with_origin(struct jrender *render, const struct spans *own, const char *text,
                              size_t len, struct jval *out)
{
    struct jorigin *origin;

    *out = jv_text(text, len);
    /* No span: all of the text comes from a client. */
    if (own->n == 0)
        return true;
    /* The shared origin saves an allocation for the many texts that a template joins from its
     * own parts. */
    out->origin = &jorigin_own;
    if (own->n == 1 && own->items[0].start == 0 && own->items[0].stop == len)
        return true;
    origin = arena_alloc(render->arena, sizeof *origin);
    if (origin == NULL)
        return jinja_no_memory(render);
    /* Spans are positions in `base`, so that a part of the text can find its own by the distance
     * of both pointers. */
    *origin = (struct jorigin){.base = text, .items = own->items, .n = own->n};
    out->origin = origin;
    return true;
}

void jbuf_add(struct jrender *render, struct jbuf *buf, struct jval text)
{
    size_t at = buf->text.len;

    buf_add(&buf->text, text.text, text.len);
    if (!buf->text.failed && !jinja_add_origin(render, &buf->own, text, at))
        buf->text.failed = true;
}

bool jbuf_take(struct jrender *render, struct jbuf *buf, struct jval *out)
{
    return jv_take_buf(render, &buf->text, out) &&
           jinja_with_origin(render, &buf->own, out->text, out->len, out);
}

/* a ~ b */
bool jv_concat(struct jrender *render, struct jval left, struct jval right, struct jval *out)
{
    size_t len = (size_t)left.len + right.len;
    struct spans own = {0};
    char *text;

    must(left.kind == JV_TEXT && right.kind == JV_TEXT);
    /* All text of a render is counted, and not only its longest: a loop that doubles a text
     * would use up the arena before its output is too long. */
    render->text_bytes += len;
    if (len > JINJA_OUTPUT_MAX || render->text_bytes > 4 * JINJA_OUTPUT_MAX)
        return jinja_fault_set(&render->fault, ERR_LIMIT, "the template makes too much text");
    text = arena_alloc(render->arena, len + 1);
    if (text == NULL)
        return jinja_no_memory(render);
    memcpy(text, left.text, left.len);
    memcpy(text + left.len, right.text, right.len);
    text[len] = '\0';
    /* The spans of the right text move by the length of the left one. */
    if (!jinja_add_origin(render, &own, left, 0) ||
        !jinja_add_origin(render, &own, right, left.len))
        return jinja_no_memory(render);
    return jinja_with_origin(render, &own, text, len, out);
}

/* One character of Python's repr: escaped if it is not printable. */
static void jinja_repr_char(struct buf *out, uint32_t c, const char *utf8, size_t n, char quote)
{
    /* Python has short forms for these three only; \b, for example, is printed as \x08. */
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

/* Python's repr of a text: in single quotes, unless it contains these and no double quotes. */
static void jinja_repr_text(struct buf *out, struct jval value)
{
    /* 'it\'s' would be right as well, but Python writes "it's". */
    bool single = memchr(value.text, '\'', value.len) != NULL;
    char quote = single && memchr(value.text, '"', value.len) == NULL ? '"' : '\'';
    size_t i = 0;

    buf_add_byte(out, quote);
    /* By characters, because whether one is printable depends on the whole code point: é stays,
     * U+200B becomes \u200b. */
    while (i < value.len) {
        size_t n = utf8_sequence(value.text + i, value.len - i);

        jinja_repr_char(out, utf8_decode(value.text + i), value.text + i, n, quote);
        i += n;
    }
    buf_add_byte(out, quote);
}

/* [1, 2], (1, 2) and (1,) */
static bool jinja_repr_list(struct jrender *render, struct buf *out, struct jval value, int depth)
{
    size_t i;

    buf_add_byte(out, value.kind == JV_LIST ? '[' : '(');
    for (i = 0; i < value.list->n; i++) {
        if (i > 0)
            buf_add_text(out, ", ");
        if (!jv_repr(render, out, value.list->items[i], depth + 1))
            return false;
    }
    /* The comma distinguishes a tuple with one item from parentheses. */
    if (value.kind == JV_TUPLE && value.list->n == 1)
        buf_add_byte(out, ',');
    buf_add_byte(out, value.kind == JV_LIST ? ']' : ')');
    return true;
}

/* Python's form of a dict: {'a': 1, 'b': [2, 3]}. */
static bool jinja_repr_dict(struct jrender *render, struct buf *out, const struct jdict *dict,
                            int depth)
{
    size_t i;

    buf_add_byte(out, '{');
    for (i = 0; i < dict->n; i++) {
        if (i > 0)
            buf_add_text(out, ", ");
        /* Keys and values are printed as repr() prints them, so texts are quoted inside of a
         * dict and unquoted alone. */
        if (!jv_repr(render, out, dict->pairs[i].key, depth + 1))
            return false;
        buf_add_text(out, ": ");
        if (!jv_repr(render, out, dict->pairs[i].value, depth + 1))
            return false;
    }
    buf_add_byte(out, '}');
    return true;
}

/* Equal to Python's str for all values but texts, which str prints without quotes. */
bool jv_repr(struct jrender *render, struct buf *out, struct jval value, int depth)
{
    must(depth >= 0);
    if (depth > PRINT_DEPTH_MAX || out->len > JINJA_OUTPUT_MAX)
        return jinja_fault_set(&render->fault, ERR_LIMIT,
                               "a value is too deep or long to be printed");
    if (!jinja_step(render, 1))
        return false;
    switch (value.kind) {
    /* An undefined value prints as nothing, but is visible inside of a list. */
    case JV_UNDEFINED: buf_add_text(out, depth > 0 ? "Undefined" : ""); return true;
    case JV_NONE: buf_add_text(out, "None"); return true;
    case JV_BOOL: buf_add_text(out, value.flag ? "True" : "False"); return true;
    case JV_INT: buf_printf(out, "%lld", (long long)value.whole); return true;
    case JV_REAL: json_write_real(out, value.real); return true;
    case JV_BIG: buf_add(out, value.text, value.len); return true;
    case JV_TEXT:
        buf_add_text(out, value.safe ? "Markup(" : "");
        jinja_repr_text(out, value);
        buf_add_text(out, value.safe ? ")" : "");
        return true;
    case JV_LIST:
    case JV_TUPLE: return jinja_repr_list(render, out, value, depth);
    case JV_DICT: return jinja_repr_dict(render, out, value.dict, depth);
    case JV_NAMESPACE:
        buf_add_text(out, "<Namespace ");
        if (!jinja_repr_dict(render, out, value.dict, depth))
            return false;
        buf_add_byte(out, '>');
        return true;
    case JV_LOOP:
    case JV_MACRO:
    case JV_GLOBAL:
    case JV_METHOD:
    case JV_JOINER: buf_printf(out, "<%s>", jv_type_name(value)); return true;
    }
    return true;
}

bool jv_str(struct jrender *render, struct jbuf *out, struct jval value)
{
    if (value.kind == JV_TEXT) {
        jbuf_add(render, out, value);
        return true;
    }
    return jv_repr(render, &out->text, value, 0);
}

/* Texts are returned as they are, so they keep their origin and are not quoted. */
bool jv_to_text(struct jrender *render, struct jval value, struct jval *out)
{
    struct buf buf = {0};

    if (value.kind == JV_TEXT) {
        *out = value;
        return true;
    }
    /* All other kinds print like str() of Python: True, None, 1.5, [1, 2]. */
    if (!jv_repr(render, &buf, value, 0)) {
        buf_fini(&buf);
        return false;
    }
    return jv_take_buf(render, &buf, out);
}

/* --- JSON --------------------------------------------------------------------------------------*/

/* A string with ensure_ascii: characters beyond the BMP are surrogate pairs. */

/* A text as json.dumps() writes it by default: everything above ASCII is escaped. Characters above
 * U+FFFF become a surrogate pair:
 *
 *     U+1F600  ->  "\ud83d\ude00" */
static void jinja_json_ascii(struct buf *out, struct jval value)
{
    size_t i = 0;

    buf_add_byte(out, '"');
    while (i < value.len) {
        size_t n = utf8_sequence(value.text + i, value.len - i);
        uint32_t c = utf8_decode(value.text + i);

        if (c < 0x7f)
            buf_add_json_text(out, value.text + i, n);
        else if (c == 0x7f)
            buf_add_byte(out, '\x7f'); /* DEL is ASCII and not escaped by Python */
        else if (c < 0x10000)
            buf_printf(out, "\\u%04x", c);
        else
            buf_printf(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                       0xdc00 + ((c - 0x10000) & 0x3ff));
        i += n;
    }
    buf_add_byte(out, '"');
}

static void jinja_json_text(struct buf *out, struct jval value, const struct jdump *how)
{
    if (how->ascii)
        jinja_json_ascii(out, value);
    else
        buf_add_json_string(out, value.text, value.len);
}

/* A line end and indentation, when indent was given. */
static void jinja_json_line(struct buf *out, const struct jdump *how, int depth)
{
    int i;

    /* Without an indent everything is on one line. */
    if (how->indent < 0)
        return;
    buf_add_byte(out, '\n');
    for (i = 0; i < how->indent * depth; i++)
        buf_add_byte(out, ' ');
}

/* A list on one line, or with an item per line if an indent was given. An empty list is always
 * "[]". */
static bool jinja_json_list(struct jrender *render, struct buf *out, const struct jlist *list,
                            const struct jdump *how, int depth)
{
    size_t i;

    /* Python's json.dumps() puts the separators at the ends of lines, so `item` comes before the
     * line feed. */
    buf_add_byte(out, '[');
    for (i = 0; i < list->n; i++) {
        if (i > 0)
            buf_add_text(out, how->item);
        jinja_json_line(out, how, depth + 1);
        if (!jv_json(render, out, list->items[i], how, depth + 1))
            return false;
    }
    if (list->n > 0)
        jinja_json_line(out, how, depth);
    buf_add_byte(out, ']');
    return true;
}

/* The pair whose key follows that of `last` in order; NULL after the last one. Quadratic in the
 * number of keys, but every look is counted as a step. */
static const struct jpair *jinja_next_sorted(struct jrender *render, const struct jdict *dict,
                                             const struct jpair *last)
{
    const struct jpair *best = NULL;
    int order;
    size_t i;

    for (i = 0; i < dict->n; i++) {
        const struct jpair *pair = &dict->pairs[i];

        if (!jinja_step(render, 1))
            return NULL;
        /* Keys of different types have no order: jv_compare() raises for them, as Python does. */
        if (last != NULL && (!jv_compare(render, pair->key, last->key, &order) || order <= 0))
            continue;
        if (best == NULL || (jv_compare(render, pair->key, best->key, &order) && order < 0))
            best = pair;
    }
    return best;
}

/* An object. Keys that are not texts are written as their JSON, in quotes. */
static bool jinja_json_dict(struct jrender *render, struct buf *out, const struct jdict *dict,
                            const struct jdump *how, int depth)
{
    const struct jpair *pair = NULL;
    size_t i;

    buf_add_byte(out, '{');
    for (i = 0; i < dict->n; i++) {
        /* Sorting selects the next larger key each time. Dicts are small, and no copy is needed. */
        if (how->sort_keys)
            pair = jinja_next_sorted(render, dict, pair);
        else
            pair = &dict->pairs[i];
        if (pair == NULL)
            break;
        if (i > 0)
            buf_add_text(out, how->item);
        jinja_json_line(out, how, depth + 1);
        if (pair->key.kind == JV_TEXT) {
            jinja_json_text(out, pair->key, how);
        } else {
            buf_add_byte(out, '"');
            if (!jv_json(render, out, pair->key, how, depth + 1))
                return false;
            buf_add_byte(out, '"');
        }
        buf_add_text(out, how->key);
        if (!jv_json(render, out, pair->value, how, depth + 1))
            return false;
    }
    if (dict->n > 0)
        jinja_json_line(out, how, depth);
    buf_add_byte(out, '}');
    return render->fault.rc == ERR_OK;
}

bool jv_json(struct jrender *render, struct buf *out, struct jval value, const struct jdump *how,
             int depth)
{
    must(how != NULL && depth >= 0);
    if (depth > PRINT_DEPTH_MAX || out->len > JINJA_OUTPUT_MAX)
        return jinja_fault_set(&render->fault, ERR_LIMIT, "a value is too deep or long for JSON");
    if (!jinja_step(render, 1))
        return false;
    switch (value.kind) {
    case JV_NONE: buf_add_text(out, "null"); return true;
    case JV_BOOL: buf_add_text(out, value.flag ? "true" : "false"); return true;
    case JV_INT: buf_printf(out, "%lld", (long long)value.whole); return true;
    case JV_BIG: buf_add(out, value.text, value.len); return true;
    /* JSON has no such numbers, but json.dumps() writes them, and templates see what Python
     * writes. */
    case JV_REAL:
        if (isnan(value.real) || isinf(value.real))
            buf_add_text(out, isnan(value.real) ? "NaN"
                              : value.real < 0  ? "-Infinity"
                                                : "Infinity");
        else
            json_write_real(out, value.real);
        return true;
    case JV_TEXT: jinja_json_text(out, value, how); return true;
    case JV_LIST:
    case JV_TUPLE: return jinja_json_list(render, out, value.list, how, depth);
    case JV_DICT: return jinja_json_dict(render, out, value.dict, how, depth);
    case JV_UNDEFINED:
    case JV_NAMESPACE:
    case JV_LOOP:
    case JV_MACRO:
    case JV_GLOBAL:
    case JV_METHOD:
    case JV_JOINER: break;
    }
    return jinja_raise(render, "Object of type %s is not JSON serializable", jv_type_name(value));
}
