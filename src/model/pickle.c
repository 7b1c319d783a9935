/* SPDX-License-Identifier: Apache-2.0
 *
 * A pickle is a program for a machine with a stack: each operation pushes a value or combines those
 * on top. Source: Lib/pickletools.py of CPython, which describes every operation.
 *
 * Operations that combine "all values since the mark" find it on a second stack, of depths. The
 * memo gives values numbers, so that later ones can refer to them. */
#include "model/pickle.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MARKS_MAX      1000    /* nested lists */
#define MEMO_MAX       4000000 /* numbers of values */
#define PUSHES_MAX     8000000 /* some 30 per tensor: 260,000 tensors per file, in 1 GB of memory */
#define LONG_MAX_BYTES 8

/* Functions and classes that a file of weights may name. */
static const char *const names[] = {"collections.OrderedDict",
                                    "torch._utils._rebuild_tensor_v2",
                                    "torch._utils._rebuild_parameter",
                                    "torch.FloatStorage",
                                    "torch.HalfStorage",
                                    "torch.BFloat16Storage",
                                    "torch.DoubleStorage",
                                    "torch.LongStorage",
                                    "torch.IntStorage",
                                    "torch.ShortStorage",
                                    "torch.CharStorage",
                                    "torch.ByteStorage",
                                    "torch.BoolStorage"};

/* A growing array of values. */
struct values {
    struct pickle **at;
    uint32_t n, cap;
};

struct machine {
    struct arena *arena;
    const uint8_t *bytes;
    size_t len, next; /* next: of the byte that is read next */
    struct values stack, memo;
    uint32_t marks[MARKS_MAX];
    int n_marks;
    uint32_t n_pushes;
    char *why;
    size_t why_cap;
};

/* Write the reason for an error. Returns rc. */
__attribute__((format(printf, 3, 4))) static int pickle_refuse(const struct machine *m, int rc,
                                                               const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(m->why, m->why_cap, format, args); /* cut is fine */
    va_end(args);
    return rc;
}

/* --- values ----------------------------------------------------------------------------- */

/* Make room for n values, whose new ones are NULL. The old array stays in the arena. A first array
 * is no larger than n: tuples do not grow, and files have many small ones. */
static int pickle_grow(const struct machine *m, struct values *v, uint32_t n)
{
    uint32_t cap = v->cap == 0 ? n : v->cap;
    struct pickle **at;

    if (n <= v->cap)
        return ERR_OK;
    while (cap < n)
        cap *= 2;
    if ((at = arena_zalloc(m->arena, cap * sizeof *at)) == NULL)
        return pickle_refuse(m, ERR_NO_MEMORY, "no memory for %u values", cap);
    if (v->n > 0)
        memcpy(at, v->at, v->n * sizeof *at);
    v->at = at;
    v->cap = cap;
    return ERR_OK;
}

/* The limit bounds memory: a value takes some hundred times the bytes of its operation. */
static int pickle_push(struct machine *m, struct pickle *value)
{
    int rc;

    if (m->n_pushes++ == PUSHES_MAX)
        return pickle_refuse(m, ERR_CORRUPT, "it has more than %d values", PUSHES_MAX);
    rc = pickle_grow(m, &m->stack, m->stack.n + 1);
    if (rc == ERR_OK)
        m->stack.at[m->stack.n++] = value;
    return rc;
}

/* Push a new value of a kind; *out may be NULL. */
static int pickle_push_new(struct machine *m, enum pickle_kind kind, int64_t whole,
                           struct pickle **out)
{
    struct pickle *value = arena_zalloc(m->arena, sizeof *value);

    if (value == NULL)
        return pickle_refuse(m, ERR_NO_MEMORY, "no memory for a value");
    value->kind = kind;
    value->whole = whole;
    if (out != NULL)
        *out = value;
    return pickle_push(m, value);
}

/* Values above the last mark may be taken, not those below it. */
static uint32_t pickle_floor(const struct machine *m)
{
    return m->n_marks == 0 ? 0 : m->marks[m->n_marks - 1];
}

static int pickle_pop(struct machine *m, struct pickle **out)
{
    if (m->stack.n <= pickle_floor(m))
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu takes a value that is not there", m->next);
    *out = m->stack.at[--m->stack.n];
    return ERR_OK;
}

static int pickle_pop_kind(struct machine *m, enum pickle_kind kind, struct pickle **out)
{
    int rc = pickle_pop(m, out);

    if (rc == ERR_OK && (*out)->kind != kind)
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu takes a value of another kind", m->next);
    return rc;
}

/* Append values first .. n - 1 of the stack to the items of a value, and take them away. */
static int pickle_move(struct machine *m, struct pickle *to, uint32_t first)
{
    struct values items = {to->items, to->n, to->cap};
    uint32_t n = m->stack.n - first;
    int rc = pickle_grow(m, &items, to->n + n);

    if (rc != ERR_OK)
        return rc;
    if (n > 0)
        memcpy(items.at + to->n, m->stack.at + first, n * sizeof *items.at);
    to->items = items.at;
    to->cap = items.cap;
    to->n += n;
    m->stack.n = first;
    return ERR_OK;
}

/* --- the program's bytes ---------------------------------------------------------------- */

/* n bytes, or NULL at the end of the pickle. */
static const uint8_t *pickle_take(struct machine *m, size_t n)
{
    const uint8_t *at = m->bytes + m->next;

    if (n > m->len - m->next)
        return NULL;
    m->next += n;
    return at;
}

/* A little-endian number of 1 to 8 bytes. */
static int pickle_number(struct machine *m, size_t n, uint64_t *out)
{
    const uint8_t *at = pickle_take(m, n);

    if (at == NULL)
        return pickle_refuse(m, ERR_CORRUPT, "it ends within a number");
    *out = 0;
    for (size_t i = 0; i < n; i++)
        *out |= (uint64_t)at[i] << (8 * i);
    return ERR_OK;
}

/* A signed number of n bytes, 0 to 8. */
static int pickle_push_int(struct machine *m, size_t n)
{
    uint64_t value = 0;
    int rc = pickle_number(m, n, &value);

    if (rc == ERR_OK && n > 0 && n < 8 && (value >> (8 * n - 1) & 1) != 0)
        value |= ~(uint64_t)0 << (8 * n);
    if (rc == ERR_OK)
        rc = pickle_push_new(m, PICKLE_INT, (int64_t)value, NULL);
    return rc;
}

/* An unsigned number of n bytes. */
static int pickle_push_count(struct machine *m, size_t n)
{
    uint64_t value = 0;
    int rc = pickle_number(m, n, &value);

    return rc == ERR_OK ? pickle_push_new(m, PICKLE_INT, (int64_t)value, NULL) : rc;
}

/* The length in one byte, then a number of so many. */
static int pickle_push_long(struct machine *m)
{
    uint64_t n = 0;
    int rc = pickle_number(m, 1, &n);

    if (rc == ERR_OK && n > LONG_MAX_BYTES)
        return pickle_refuse(m, ERR_CORRUPT, "a number has %d bytes", (int)n);
    return rc == ERR_OK ? pickle_push_int(m, (size_t)n) : rc;
}

/* A text whose length is a number of `width` bytes. */
static int pickle_push_text(struct machine *m, size_t width)
{
    struct pickle *value = NULL;
    const uint8_t *at;
    uint64_t n = 0;
    int rc = pickle_number(m, width, &n);

    if (rc != ERR_OK)
        return rc;
    if ((at = pickle_take(m, (size_t)n)) == NULL || memchr(at, '\0', (size_t)n) != NULL)
        return pickle_refuse(m, ERR_CORRUPT, "it ends within a text, or a text has a zero byte");
    if ((rc = pickle_push_new(m, PICKLE_TEXT, 0, &value)) != ERR_OK)
        return rc;
    value->text = arena_strndup(m->arena, (const char *)at, (size_t)n);
    return value->text != NULL ? ERR_OK : pickle_refuse(m, ERR_NO_MEMORY, "no memory for a text");
}

/* --- names and calls -------------------------------------------------------------------- */

/* Push a name if it is one of `names`. */
static int pickle_push_name(struct machine *m, const char *module, size_t module_len,
                            const char *name, size_t name_len)
{
    char whole[200];
    struct pickle *value = NULL;
    int rc;

    (void)snprintf(whole, sizeof whole, "%.*s.%.*s", (int)(module_len < 90 ? module_len : 90),
                   module, (int)(name_len < 90 ? name_len : 90), name);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], whole) != 0)
            continue;
        if ((rc = pickle_push_new(m, PICKLE_NAME, 0, &value)) == ERR_OK)
            value->text = names[i];
        return rc;
    }
    return pickle_refuse(m, ERR_CORRUPT, "it names %s, which is no part of a tensor", whole);
}

/* Two lines: the module, and the name in it. */
static int pickle_global(struct machine *m)
{
    const char *module = (const char *)m->bytes + m->next, *name, *end;
    const uint8_t *at = memchr(module, '\n', m->len - m->next);

    if (at == NULL)
        return pickle_refuse(m, ERR_CORRUPT, "it ends within a name");
    name = (const char *)at + 1;
    m->next = (size_t)(at + 1 - m->bytes);
    if ((at = memchr(name, '\n', m->len - m->next)) == NULL)
        return pickle_refuse(m, ERR_CORRUPT, "it ends within a name");
    end = (const char *)at;
    m->next = (size_t)(at + 1 - m->bytes);
    return pickle_push_name(m, module, (size_t)(name - 1 - module), name, (size_t)(end - name));
}

/* The same from two texts on the stack. */
static int pickle_stack_global(struct machine *m)
{
    struct pickle *name, *module;
    int rc;

    if ((rc = pickle_pop_kind(m, PICKLE_TEXT, &name)) != ERR_OK ||
        (rc = pickle_pop_kind(m, PICKLE_TEXT, &module)) != ERR_OK)
        return rc;
    return pickle_push_name(m, module->text, strlen(module->text), name->text, strlen(name->text));
}

/* A call becomes a value; that of the class of dictionaries an empty one. */
static int pickle_reduce(struct machine *m)
{
    struct pickle *arguments, *name, *call = NULL;
    int rc;

    if ((rc = pickle_pop_kind(m, PICKLE_LIST, &arguments)) != ERR_OK ||
        (rc = pickle_pop_kind(m, PICKLE_NAME, &name)) != ERR_OK)
        return rc;
    if (strcmp(name->text, "collections.OrderedDict") == 0) {
        if (arguments->n > 0)
            return pickle_refuse(m, ERR_UNSUPPORTED, "a dictionary is made of a list");
        return pickle_push_new(m, PICKLE_DICT, 0, NULL);
    }
    if ((rc = pickle_push_new(m, PICKLE_CALL, 0, &call)) != ERR_OK)
        return rc;
    call->text = name->text;
    call->items = arguments->items;
    call->n = call->cap = arguments->n;
    return ERR_OK;
}

/* Attributes of a dictionary or tensor do not matter. */
static int pickle_build(struct machine *m)
{
    struct pickle *state, *of;
    int rc = pickle_pop(m, &state);

    if (rc == ERR_OK && (rc = pickle_pop(m, &of)) == ERR_OK)
        rc = pickle_push(m, of);
    return rc;
}

/* An object outside the pickle, by its description on the stack. */
static int pickle_persistent(struct machine *m)
{
    struct pickle *description, *id = NULL;
    int rc = pickle_pop_kind(m, PICKLE_LIST, &description);

    if (rc == ERR_OK && (rc = pickle_push_new(m, PICKLE_ID, 0, &id)) == ERR_OK) {
        id->items = description->items;
        id->n = id->cap = description->n;
    }
    return rc;
}

/* --- lists and dictionaries ------------------------------------------------------------- */

static int pickle_mark(struct machine *m)
{
    if (m->n_marks == MARKS_MAX)
        return pickle_refuse(m, ERR_CORRUPT, "more than %d lists are nested", MARKS_MAX);
    m->marks[m->n_marks++] = m->stack.n;
    return ERR_OK;
}

static int pickle_unmark(struct machine *m, uint32_t *first)
{
    if (m->n_marks == 0)
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu needs a mark", m->next);
    *first = m->marks[--m->n_marks];
    return ERR_OK;
}

/* A tuple of the last n values, or of those since the mark. */
static int pickle_tuple(struct machine *m, uint32_t first)
{
    struct pickle *list = arena_zalloc(m->arena, sizeof *list);
    int rc;

    if (list == NULL)
        return pickle_refuse(m, ERR_NO_MEMORY, "no memory for a value");
    list->kind = PICKLE_LIST;
    if ((rc = pickle_move(m, list, first)) != ERR_OK)
        return rc;
    return pickle_push(m, list);
}

static int pickle_tuple_of(struct machine *m, uint32_t n)
{
    if (m->stack.n - pickle_floor(m) < n)
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu takes values that are not there", m->next);
    return pickle_tuple(m, m->stack.n - n);
}

static int pickle_tuple_since_mark(struct machine *m)
{
    uint32_t first = 0;
    int rc = pickle_unmark(m, &first);

    return rc == ERR_OK ? pickle_tuple(m, first) : rc;
}

/* Append to the list or dictionary below: pairs to a dictionary. */
static int pickle_append(struct machine *m, uint32_t first, enum pickle_kind kind)
{
    struct pickle *to;

    if (first <= pickle_floor(m) || (to = m->stack.at[first - 1])->kind != kind ||
        (kind == PICKLE_DICT && (m->stack.n - first) % 2 != 0))
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu adds to a value of another kind", m->next);
    return pickle_move(m, to, first);
}

static int pickle_append_since_mark(struct machine *m, enum pickle_kind kind)
{
    uint32_t first = 0;
    int rc = pickle_unmark(m, &first);

    return rc == ERR_OK ? pickle_append(m, first, kind) : rc;
}

static int pickle_append_last(struct machine *m, uint32_t n, enum pickle_kind kind)
{
    if (m->stack.n - pickle_floor(m) < n + 1)
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu takes values that are not there", m->next);
    return pickle_append(m, m->stack.n - n, kind);
}

/* --- the memo --------------------------------------------------------------------------- */

static int pickle_put(struct machine *m, uint64_t number)
{
    int rc;

    if (m->stack.n <= pickle_floor(m) || number >= MEMO_MAX || number > m->len)
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu remembers nothing", m->next);
    if ((rc = pickle_grow(m, &m->memo, (uint32_t)number + 1)) != ERR_OK)
        return rc;
    if (m->memo.n <= number)
        m->memo.n = (uint32_t)number + 1;
    m->memo.at[number] = m->stack.at[m->stack.n - 1];
    return ERR_OK;
}

static int pickle_put_numbered(struct machine *m, size_t width)
{
    uint64_t number = 0;
    int rc = pickle_number(m, width, &number);

    return rc == ERR_OK ? pickle_put(m, number) : rc;
}

static int pickle_get(struct machine *m, size_t width)
{
    uint64_t number = 0;
    int rc = pickle_number(m, width, &number);

    if (rc == ERR_OK && (number >= m->memo.n || m->memo.at[number] == NULL))
        return pickle_refuse(m, ERR_CORRUPT, "byte %zu refers to a value that is not there",
                             m->next);
    return rc == ERR_OK ? pickle_push(m, m->memo.at[number]) : rc;
}

/* --- operations ------------------------------------------------------------------------- */

/* Bytes after an operation that are of no use. */
static int pickle_skip(struct machine *m, size_t n)
{
    return pickle_take(m, n) != NULL ? ERR_OK : pickle_refuse(m, ERR_CORRUPT, "it is cut short");
}

static int pickle_push_float(struct machine *m)
{
    int rc = pickle_skip(m, 8);

    return rc == ERR_OK ? pickle_push_new(m, PICKLE_OTHER, 0, NULL) : rc;
}

/* The operations that make values. ERR_NOT_FOUND: it is none of them. */
static int pickle_run_value(struct machine *m, uint8_t op)
{
    switch (op) {
    case 'N':
    case 0x88:
    case 0x89: return pickle_push_new(m, PICKLE_OTHER, 0, NULL);
    case 'G': return pickle_push_float(m);
    case 'J': return pickle_push_int(m, 4);
    case 'K': return pickle_push_count(m, 1);
    case 'M': return pickle_push_count(m, 2);
    case 0x8a: return pickle_push_long(m);
    case 'X': return pickle_push_text(m, 4);
    case 0x8c: return pickle_push_text(m, 1);
    case 0x8d: return pickle_push_text(m, 8);
    case '}': return pickle_push_new(m, PICKLE_DICT, 0, NULL);
    case ']':
    case ')': return pickle_push_new(m, PICKLE_LIST, 0, NULL);
    case 'c': return pickle_global(m);
    case 0x93: return pickle_stack_global(m);
    default: return ERR_NOT_FOUND;
    }
}

/* Those that combine values. */
static int pickle_run_combination(struct machine *m, uint8_t op)
{
    switch (op) {
    case 0x80: return pickle_skip(m, 1); /* the protocol */
    case 0x95: return pickle_skip(m, 8); /* a frame */
    case '(': return pickle_mark(m);
    case 't': return pickle_tuple_since_mark(m);
    case 0x85:
    case 0x86:
    case 0x87: return pickle_tuple_of(m, (uint32_t)(op - 0x84));
    case 'a': return pickle_append_last(m, 1, PICKLE_LIST);
    case 'e': return pickle_append_since_mark(m, PICKLE_LIST);
    case 's': return pickle_append_last(m, 2, PICKLE_DICT);
    case 'u': return pickle_append_since_mark(m, PICKLE_DICT);
    case 'q': return pickle_put_numbered(m, 1);
    case 'r': return pickle_put_numbered(m, 4);
    case 0x94: return pickle_put(m, m->memo.n);
    case 'h': return pickle_get(m, 1);
    case 'j': return pickle_get(m, 4);
    case 'R': return pickle_reduce(m);
    case 'b': return pickle_build(m);
    case 'Q': return pickle_persistent(m);
    default:
        return pickle_refuse(m, ERR_UNSUPPORTED, "byte %zu is operation 0x%02x, which is not read",
                             m->next - 1, (unsigned)op);
    }
}

/* The last operation is '.', with the result on the stack. */
int pickle_parse(const struct pickle **out, struct arena *arena, const uint8_t *bytes, size_t len,
                 char *why, size_t why_cap)
{
    struct machine m = {.arena = arena, .bytes = bytes, .len = len, .why = why, .why_cap = why_cap};
    struct pickle *result;
    int rc = ERR_OK;

    while (rc == ERR_OK && m.next < m.len) {
        uint8_t op = bytes[m.next++];

        if (op == '.') {
            if ((rc = pickle_pop(&m, &result)) == ERR_OK)
                *out = result;
            return rc;
        }
        if ((rc = pickle_run_value(&m, op)) == ERR_NOT_FOUND)
            rc = pickle_run_combination(&m, op);
    }
    return rc != ERR_OK ? rc : pickle_refuse(&m, ERR_CORRUPT, "it is cut short");
}
