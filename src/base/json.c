/* SPDX-License-Identifier: Apache-2.0
 *
 * JSON by cJSON, between a strict scan and a conversion that remove its traps.
 *
 * 1. Scan: checks RFC 8259, UTF-8 and the depth, because cJSON accepts more than that, and cuts
 *    texts at NULs. It also notes the place of each number.
 * 2. cJSON reads a copy in which every number is a 0, so that cJSON's double (and its limit of 63
 *    digits) never matters, and in which every \u0000 is the six bytes NUL_MARK, because its
 *    strings end at a NUL. Those bytes are not UTF-8, so no other text can contain them.
 * 3. Conversion: walks cJSON's tree in document order beside the list of numbers, makes our tree,
 *    and turns the marks into NULs again.
 *
 *   text     {"n": 1.50, "s": "a\u0000b"}
 *   cJSON    {"n": 0   , "s": "a??????b"}     ?: a byte of NUL_MARK
 *   tree     n: JSON_REAL "1.50", s: 3 bytes
 *
 * Both recursions (cJSON's and convert_node()'s) are bounded by JSON_DEPTH_MAX, which the scan has
 * checked. */
#include "base/json.h"

#include <cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/hex.h"
#include "base/must.h"
#include "base/utf8.h"

#define INDEX_FROM   9 /* with fewer members comparing one by one is as fast */

#define NUL_ESCAPE   "\\u0000"
#define NUL_MARK     "\xff\xfe\xfe\xfe\xfe\xfe" /* as long as the escape */
#define NUL_MARK_LEN (sizeof NUL_MARK - 1)

/* The place of a number in the text. */
struct number_place {
    uint32_t at;
    uint32_t len;
};

/* The state of a scan; the conversion uses it, too. */
struct scan {
    const char *text;
    size_t len;
    size_t at;
    const char *reason; /* NULL while no error was found */
    int rc;
    struct number_place *numbers;
    size_t n_numbers;
    size_t numbers_cap;
    size_t numbers_bytes; /* lengths of all numbers, with a NUL each */
    size_t n_nuls;        /* number of \u0000 escapes */
    size_t n_values;
    size_t values_max; /* number of values whose trees fit the arena's limit */
};

/* --- scan --------------------------------------------------------------------------------------
 *
 * Each scan function checks one construct at s->at and moves past it. False: scan_fail() has noted
 * the first error, and s->at is its place. */
static bool scan_fail(struct scan *s, int rc, const char *reason)
{
    if (s->reason == NULL) {
        s->reason = reason;
        s->rc = rc;
    }
    return false;
}

/* The next byte, or -1 at the end. */
static int scan_peek(const struct scan *s)
{
    if (s->at < s->len)
        return (unsigned char)s->text[s->at];
    return -1;
}

/* Skip white space. JSON has only these four characters. */
static void scan_space(struct scan *s)
{
    while (s->at < s->len && (s->text[s->at] == ' ' || s->text[s->at] == '\t' ||
                              s->text[s->at] == '\n' || s->text[s->at] == '\r'))
        s->at++;
}

/* Four hexadecimal digits at `at`; -1 when there are fewer. */
static int scan_hex4(const struct scan *s, size_t at)
{
    if (at > s->len)
        return -1;
    return (int)hex_number(s->text + at, s->len - at, 4);
}

/* After "\u": four digits. A high surrogate must be followed by the escape of a low one; together
 * they are one character above U+FFFF, as in "\ud83d\ude00". */
static bool scan_unicode_escape(struct scan *s)
{
    int high = scan_hex4(s, s->at);
    int low;

    if (high < 0)
        return scan_fail(s, ERR_SYNTAX, "\\u needs four hexadecimal digits");
    s->n_nuls += high == 0;
    if (high >= 0xdc00 && high <= 0xdfff)
        return scan_fail(s, ERR_SYNTAX, "a low surrogate without a high one before it");
    s->at += 4;
    if (high < 0xd800 || high > 0xdbff)
        return true;
    low = -1;
    if (s->len - s->at >= 6 && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u')
        low = scan_hex4(s, s->at + 2);
    if (low < 0xdc00 || low > 0xdfff)
        return scan_fail(s, ERR_SYNTAX, "a high surrogate without a low one after it");
    s->at += 6;
    return true;
}

/* At a backslash. */
static bool scan_escape(struct scan *s)
{
    int c;

    s->at++;
    c = scan_peek(s);
    if (c == -1)
        return scan_fail(s, ERR_SYNTAX, "the string does not end");
    if (c == 0 || (c != 'u' && strchr("\"\\/bfnrt", c) == NULL))
        return scan_fail(s, ERR_SYNTAX, "an unknown escape in a string");
    s->at++;
    return c != 'u' || scan_unicode_escape(s);
}

/* At a quote: the string up to its closing quote. */
static bool scan_string(struct scan *s)
{
    s->at++;
    while (s->at < s->len) {
        unsigned char c = (unsigned char)s->text[s->at];
        size_t n = 1;

        if (c == '"') {
            s->at++;
            return true;
        }
        if (c < 0x20)
            return scan_fail(s, ERR_SYNTAX, "a control character in a string must be escaped");
        if (c == '\\') {
            if (!scan_escape(s))
                return false;
            continue;
        }
        if (c >= 0x80)
            n = utf8_sequence(s->text + s->at, s->len - s->at);
        if (n == 0)
            return scan_fail(s, ERR_SYNTAX, "invalid UTF-8");
        s->at += n;
    }
    return scan_fail(s, ERR_SYNTAX, "the string does not end");
}

/* Skip digits; returns their number. */
static size_t scan_digits(struct scan *s)
{
    size_t from = s->at;

    while (s->at < s->len && s->text[s->at] >= '0' && s->text[s->at] <= '9')
        s->at++;
    return s->at - from;
}

/* Note the place of the number that ends here, for the conversion. */
static bool scan_note_number(struct scan *s, size_t from)
{
    if (s->n_numbers == s->numbers_cap) {
        size_t cap = s->numbers_cap == 0 ? 64 : s->numbers_cap * 2;
        struct number_place *grown = mem_realloc(s->numbers, cap * sizeof *grown);

        if (grown == NULL)
            return scan_fail(s, ERR_NO_MEMORY, "out of memory");
        s->numbers = grown;
        s->numbers_cap = cap;
    }
    s->numbers[s->n_numbers++] =
        (struct number_place){.at = (uint32_t)from, .len = (uint32_t)(s->at - from)};
    s->numbers_bytes += s->at - from + 1;
    return true;
}

/* number = [ "-" ] ( "0" | digits ) [ "." digits ] [ ( "e" | "E" ) [ "+" | "-" ] digits ] */
static bool scan_number(struct scan *s)
{
    size_t from = s->at;

    if (scan_peek(s) == '-')
        s->at++;
    if (scan_peek(s) == '0')
        s->at++;
    else if (scan_digits(s) == 0)
        return scan_fail(s, ERR_SYNTAX, "a digit is missing in a number");
    if (scan_peek(s) >= '0' && scan_peek(s) <= '9')
        return scan_fail(s, ERR_SYNTAX, "a number must not begin with 0");
    if (scan_peek(s) == '.') {
        s->at++;
        if (scan_digits(s) == 0)
            return scan_fail(s, ERR_SYNTAX, "a digit is missing after the point");
    }
    if (scan_peek(s) == 'e' || scan_peek(s) == 'E') {
        s->at++;
        if (scan_peek(s) == '+' || scan_peek(s) == '-')
            s->at++;
        if (scan_digits(s) == 0)
            return scan_fail(s, ERR_SYNTAX, "a digit is missing in the exponent");
    }
    return scan_note_number(s, from);
}

/* At a letter: true, false or null. */
static bool scan_word(struct scan *s, const char *word)
{
    size_t n = strlen(word);

    if (s->len - s->at < n || memcmp(s->text + s->at, word, n) != 0)
        return scan_fail(s, ERR_SYNTAX, "a value is expected here");
    s->at += n;
    return true;
}

/* A string, number, true, false or null. */
static bool scan_scalar(struct scan *s)
{
    switch (scan_peek(s)) {
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    case -1: return scan_fail(s, ERR_SYNTAX, "the text ends where a value is expected");
    default: break;
    }
    if (scan_peek(s) != '-' && (scan_peek(s) < '0' || scan_peek(s) > '9'))
        return scan_fail(s, ERR_SYNTAX, "a value is expected here");
    return scan_number(s);
}

/* A member's name and its ':'. NULs in names are refused: names are compared as C strings all over
 * the program, and "a\u0000b" must not pass for "a". */
static bool scan_name(struct scan *s)
{
    size_t n_nuls = s->n_nuls;

    scan_space(s);
    if (scan_peek(s) != '"')
        return scan_fail(s, ERR_SYNTAX, "a member's name in quotes is expected here");
    if (!scan_string(s))
        return false;
    if (s->n_nuls != n_nuls)
        return scan_fail(s, ERR_SYNTAX, "\\u0000 is not supported in a member's name");
    scan_space(s);
    if (scan_peek(s) != ':')
        return scan_fail(s, ERR_SYNTAX, "':' is expected here");
    s->at++;
    return true;
}

/* After a value: consume its ',' or the ends of lists and objects that it completes, up to the
 * start of the next value. Sets *done when the outermost value is complete. */
static bool scan_after(struct scan *s, const char *open, int *depth, bool *done)
{
    while (*depth > 0) {
        char closing = open[*depth - 1] == '{' ? '}' : ']';

        scan_space(s);
        if (scan_peek(s) == ',') {
            s->at++;
            *done = false;
            return closing == ']' || scan_name(s);
        }
        if (scan_peek(s) != closing)
            return scan_fail(s, ERR_SYNTAX,
                             closing == '}' ? "',' or '}' is expected here"
                                            : "',' or ']' is expected here");
        s->at++;
        --*depth;
    }
    *done = true;
    return true;
}

/* At '{' or '[': push it. *empty is true when it closes at once. */
static bool scan_open(struct scan *s, char *open, int *depth, bool *empty)
{
    char c = s->text[s->at];

    if (*depth == JSON_DEPTH_MAX)
        return scan_fail(s, ERR_LIMIT, "lists and objects are nested too deep");
    s->at++;
    scan_space(s);
    *empty = scan_peek(s) == (c == '{' ? '}' : ']');
    if (*empty) {
        s->at++;
        return true;
    }
    open[(*depth)++] = c;
    return c == '[' || scan_name(s);
}

/* The scan is a loop with a stack of open brackets in place of recursion: `open` holds a '{' or '['
 * per level. `whole` is false after a bracket that opened a level, because the next token is then
 * its first member and not something that follows a value. */
static bool scan_all(struct scan *s)
{
    char open[JSON_DEPTH_MAX];
    int depth = 0;
    bool done = false;

    while (!done) {
        bool whole = true;

        if (s->n_values++ == s->values_max)
            return scan_fail(s, ERR_NO_MEMORY, "there are too many values");
        scan_space(s);
        if (scan_peek(s) == '{' || scan_peek(s) == '[') {
            if (!scan_open(s, open, &depth, &whole))
                return false;
        } else if (!scan_scalar(s)) {
            return false;
        }
        if (whole && !scan_after(s, open, &depth, &done))
            return false;
    }
    scan_space(s);
    if (s->at != s->len)
        return scan_fail(s, ERR_SYNTAX, "there is more after the end of the value");
    return true;
}

/* Make "line 3, column 14: ..." for the client. Columns count bytes. */
static void scan_explain(const struct scan *s, char *why, size_t why_cap)
{
    size_t line = 1;
    size_t column = 1;
    size_t i;

    if (why == NULL || why_cap == 0)
        return;
    for (i = 0; i < s->at && i < s->len; i++) {
        column++;
        if (s->text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    (void)snprintf(why, why_cap, "line %zu, column %zu: %s", line, column, s->reason);
}

/* --- conversion --------------------------------------------------------------------------------
 *
 * The tree lies in the caller's arena. Members of one list or object are one array. Large objects
 * also get a hash index: index[0] is its mask, index[1 ..] are slots, each 0 or 1 + the number of a
 * member; collisions go to the next slot. It is at most half full. */
struct convert {
    struct arena *arena;
    const struct scan *scan;
    size_t next_number;
    char *numbers; /* room for the numbers' texts */
};

/* The slot of a name, or the free slot where it belongs. */
static uint32_t *index_slot(uint32_t *index, const struct json *items, const char *key, size_t len)
{
    uint32_t mask = index[0];
    uint32_t i = (uint32_t)hash_xxh3(key, len) & mask;

    while (index[1 + i] != 0) {
        const struct json *item = &items[index[1 + i] - 1];

        if (item->key_len == len && memcmp(item->key, key, len) == 0)
            break;
        i = (i + 1) & mask;
    }
    return &index[1 + i];
}

/* An index for n members. */
static uint32_t *index_new(struct arena *arena, uint32_t n)
{
    uint32_t size = 16;
    uint32_t *index;

    must(n >= INDEX_FROM);
    while (size < n * 2)
        size *= 2;
    index = arena_zalloc(arena, ((size_t)size + 1) * sizeof *index);
    if (index != NULL)
        index[0] = size - 1;
    return index;
}

/* The kind follows from the spelling: 1 is JSON_INT, 1.0 and 1e0 are JSON_REAL. Whole numbers that
 * fit neither int64_t nor uint64_t become JSON_REAL; their text remains exact. */
static void convert_number(struct convert *c, struct json *node)
{
    const struct number_place *place = &c->scan->numbers[c->next_number++];
    char *text = c->numbers;
    bool whole;

    memcpy(text, c->scan->text + place->at, place->len);
    text[place->len] = '\0';
    c->numbers += place->len + 1;
    node->text = text;
    node->n = place->len;
    whole = strpbrk(text, ".eE") == NULL;
    errno = 0;
    if (whole) {
        node->kind = JSON_INT;
        node->whole = strtoll(text, NULL, 10);
        if (errno == 0)
            return;
    }
    errno = 0;
    if (whole && text[0] != '-') {
        node->kind = JSON_UINT;
        node->uwhole = strtoull(text, NULL, 10);
        if (errno == 0)
            return;
    }
    node->kind = JSON_REAL;
    node->real = strtod(text, NULL);
}

/* Replace each mark by a NUL; returns the shorter length. */
static size_t nuls_restored(char *text, size_t n)
{
    size_t len = 0;
    size_t i = 0;

    while (i < n) {
        if (text[i] == NUL_MARK[0]) {
            text[len++] = '\0';
            i += NUL_MARK_LEN;
        } else {
            text[len++] = text[i++];
        }
    }
    text[len] = '\0';
    return len;
}

/* A string, with its NULs restored. */
static int convert_text(const struct convert *c, const char *from, struct json *node)
{
    size_t n = strlen(from);
    char *text = arena_strndup(c->arena, from, n);

    if (text == NULL)
        return ERR_NO_MEMORY;
    node->kind = JSON_TEXT;
    node->text = text;
    if (c->scan->n_nuls == 0)
        node->text_len = n;
    else
        node->text_len = nuls_restored(text, n);
    return ERR_OK;
}

static int convert_node(struct convert *c, const cJSON *from, struct json *node);

/* The place for a member: a further one, or that of an earlier member with this name, because the
 * last value counts. */
static struct json *member_place(struct json *items, uint32_t *n, uint32_t *index, const char *key,
                                 size_t key_len)
{
    uint32_t i;

    if (index != NULL) {
        uint32_t *slot = index_slot(index, items, key, key_len);

        if (*slot == 0)
            *slot = ++*n;
        return &items[*slot - 1];
    }
    for (i = 0; i < *n; i++)
        if (items[i].key_len == key_len && memcmp(items[i].key, key, key_len) == 0)
            return &items[i];
    return &items[(*n)++];
}

/* cJSON's lists are linked; count them first, so that the array is allocated once. */
static int convert_members(struct convert *c, const cJSON *from, struct json *node)
{
    uint32_t n = 0;
    uint32_t count = 0;
    uint32_t *index = NULL;
    const cJSON *child;
    struct json *items;

    for (child = from->child; child != NULL; child = child->next)
        count++;
    items = arena_zalloc(c->arena, (count + (size_t)1) * sizeof *items);
    if (items == NULL)
        return ERR_NO_MEMORY;
    /* Only large objects are worth an index. */
    if (node->kind == JSON_OBJECT && count >= INDEX_FROM) {
        index = index_new(c->arena, count);
        if (index == NULL)
            return ERR_NO_MEMORY;
    }
    for (child = from->child; child != NULL; child = child->next) {
        struct json *item = &items[n];
        const char *key = NULL;
        size_t key_len = 0;
        int rc;

        if (node->kind == JSON_OBJECT) {
            key_len = strlen(child->string);
            key = arena_strndup(c->arena, child->string, key_len);
            if (key == NULL)
                return ERR_NO_MEMORY;
            item = member_place(items, &n, index, key, key_len);
        } else {
            n++;
        }
        item->key = key;
        item->key_len = key_len;
        rc = convert_node(c, child, item);
        if (rc != ERR_OK)
            return rc;
    }
    node->n = n;
    node->index = index;
    node->items = items;
    return ERR_OK;
}

/* A cJSON node of any kind becomes one of ours. Only valid text comes here, so an unknown kind is a
 * bug of cJSON or of this file. */
static int convert_node(struct convert *c, const cJSON *from, struct json *node)
{
    switch (from->type & 0xff) {
    case cJSON_NULL: node->kind = JSON_NULL; return ERR_OK;
    case cJSON_True:
        node->kind = JSON_BOOL;
        node->flag = true;
        return ERR_OK;
    case cJSON_False:
        node->kind = JSON_BOOL;
        node->flag = false;
        return ERR_OK;
    case cJSON_Number: convert_number(c, node); return ERR_OK;
    case cJSON_String: return convert_text(c, from->valuestring, node);
    case cJSON_Array: node->kind = JSON_LIST; return convert_members(c, from, node);
    case cJSON_Object: node->kind = JSON_OBJECT; return convert_members(c, from, node);
    default: break;
    }
    must(!"cJSON made a node of a kind that it does not parse");
    return ERR_INTERNAL;
}

/* Replace each \u0000 by NUL_MARK, which has the same length. In text that was scanned, a
 * backslash occurs only in strings and always begins an escape, so two bytes are skipped per
 * escape. */
static void mark_nuls(char *text, size_t len)
{
    char *at = memchr(text, '\\', len);

    while (at != NULL) {
        size_t n = 2;

        if (strncmp(at, NUL_ESCAPE, NUL_MARK_LEN) == 0) {
            memcpy(at, NUL_MARK, NUL_MARK_LEN);
            n = NUL_MARK_LEN;
        }
        at += n;
        at = memchr(at, '\\', (size_t)(text + len - at));
    }
}

/* A copy of the text with every number overwritten by 0 and spaces, and every \u0000 marked. */
static char *blanked(const struct scan *s)
{
    char *copy = mem_alloc(s->len + 1);
    size_t i;

    if (copy == NULL)
        return NULL;
    memcpy(copy, s->text, s->len);
    copy[s->len] = '\0';
    for (i = 0; i < s->n_numbers; i++) {
        /* The copy keeps its length, so that places in it are those of the text. */
        memset(copy + s->numbers[i].at, ' ', s->numbers[i].len);
        copy[s->numbers[i].at] = '0';
    }
    if (s->n_nuls > 0)
        mark_nuls(copy, s->len);
    return copy;
}

/* Steps 2 and 3, for a text that the scan has accepted. */
static int parse_scanned(const struct json **out, struct arena *arena, const struct scan *s)
{
    struct convert convert = {.arena = arena, .scan = s};
    int rc = ERR_NO_MEMORY;
    struct json *root = arena_zalloc(arena, sizeof *root);
    char *copy = blanked(s);
    cJSON *tree = NULL;

    convert.numbers = arena_alloc(arena, s->numbers_bytes + 1);
    if (root == NULL || copy == NULL || convert.numbers == NULL)
        goto out;
    tree = cJSON_ParseWithLengthOpts(copy, s->len + 1, NULL, 1);
    if (tree == NULL)
        goto out; /* the scan accepted the text, so cJSON lacks memory */
    rc = convert_node(&convert, tree, root);
    if (rc == ERR_OK)
        *out = root;
out:
    cJSON_Delete(tree);
    mem_free(copy);
    return rc;
}

/* Errors of the scan are the client's; errors after it are out-of-memory. */
int json_parse(const struct json **out, struct arena *arena, const char *text, size_t len,
               char *why, size_t why_cap)
{
    struct scan scan = {.text = text, .len = len, .values_max = SIZE_MAX};
    int rc;

    /* cJSON's allocator has no limit, so the number of values is bounded in advance, by the memory
     * that its tree and ours take per value. */
    if (arena->limit_bytes != 0)
        scan.values_max =
            (arena->limit_bytes - arena->used_bytes) / (sizeof(struct json) + sizeof(cJSON));

    if (len > JSON_BYTES_MAX) {
        scan.len = 0;
        scan.reason = "the text is too long";
        scan.rc = ERR_LIMIT;
    } else if (scan_all(&scan)) {
        rc = parse_scanned(out, arena, &scan);
        if (rc != ERR_OK) {
            scan.reason = "out of memory";
            scan.rc = rc;
        }
    }
    arena->limited =
        arena->limited || (scan.rc == ERR_NO_MEMORY && scan.n_values > scan.values_max);
    if (scan.reason != NULL)
        scan_explain(&scan, why, why_cap);
    mem_free(scan.numbers);
    return scan.rc;
}

/* --- reading -----------------------------------------------------------------------------------
 *
 * Lookups take NULL for the object, so that calls can be nested: json_get(json_get(body, "a"),
 * "b"). */
const struct json *json_get_n(const struct json *obj, const char *name, size_t name_len)
{
    const uint32_t *index;
    uint32_t i;

    if (obj == NULL || obj->kind != JSON_OBJECT)
        return NULL;
    index = obj->index;
    if (index == NULL) {
        for (i = 0; i < obj->n; i++)
            if (obj->items[i].key_len == name_len && memcmp(obj->items[i].key, name, name_len) == 0)
                return &obj->items[i];
        return NULL;
    }
    i = (uint32_t)hash_xxh3(name, name_len) & index[0];
    for (; index[1 + i] != 0; i = (i + 1) & index[0]) {
        const struct json *item = &obj->items[index[1 + i] - 1];

        if (item->key_len == name_len && memcmp(item->key, name, name_len) == 0)
            return item;
    }
    return NULL;
}

/* A member by its name, or NULL. */
const struct json *json_get(const struct json *obj, const char *name)
{
    return json_get_n(obj, name, strlen(name));
}

/* A member of this kind, or NULL. Null itself counts as missing. */
const struct json *json_get_kind(const struct json *obj, const char *name, enum json_kind kind)
{
    const struct json *node = json_get(obj, name);

    if (node != NULL && node->kind == kind && kind != JSON_NULL)
        return node;
    return NULL;
}

/* A flag; preset when it is missing or of another kind. Likewise the next two. */
bool json_get_bool(const struct json *obj, const char *name, bool preset)
{
    const struct json *node = json_get_kind(obj, name, JSON_BOOL);

    if (node == NULL)
        return preset;
    return node->flag;
}

int64_t json_get_int(const struct json *obj, const char *name, int64_t preset)
{
    const struct json *node = json_get_kind(obj, name, JSON_INT);

    if (node == NULL)
        return preset;
    return node->whole;
}

const char *json_get_text(const struct json *obj, const char *name, const char *preset)
{
    const struct json *node = json_get_kind(obj, name, JSON_TEXT);

    if (node == NULL || json_has_nul(node))
        return preset;
    return node->text;
}

/* The value of a number of any kind as a double. */
double json_real(const struct json *node)
{
    must(json_is_number(node));
    if (node->kind == JSON_INT)
        return (double)node->whole;
    if (node->kind == JSON_UINT)
        return (double)node->uwhole;
    return node->real;
}

/* Is this a number of any kind? NULL is none. */
bool json_is_number(const struct json *node)
{
    return node != NULL &&
           (node->kind == JSON_INT || node->kind == JSON_UINT || node->kind == JSON_REAL);
}

/* Is this exactly the text? NULL is none, and a text with NULs never is. */
bool json_is_text(const struct json *node, const char *text)
{
    return node != NULL && node->kind == JSON_TEXT && strlen(text) == node->text_len &&
           memcmp(node->text, text, node->text_len) == 0;
}

/* Does the text contain a NUL? It cannot be used as a C string then. */
bool json_has_nul(const struct json *node)
{
    return node->kind == JSON_TEXT && strlen(node->text) != node->text_len;
}

/* The kind of a value, for errors. */
const char *json_kind_name(enum json_kind kind)
{
    switch (kind) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return "true or false";
    case JSON_INT: return "whole number";
    case JSON_UINT: return "whole number";
    case JSON_REAL: return "number";
    case JSON_TEXT: return "string";
    case JSON_LIST: return "list";
    case JSON_OBJECT: return "object";
    }
    return "value";
}

/* --- making ------------------------------------------------------------------------------------
 *
 * Items live in the arena, which cannot grow an allocation; so the array doubles into a further
 * allocation, and the old one is wasted until the arena ends. */
void json_put(struct json_made *m, const char *key, const struct json *value)
{
    must(m->n <= m->cap);
    if (m->n == m->cap && !m->failed) {
        uint32_t cap = m->cap == 0 ? 4 : 2 * m->cap;
        struct json *items = arena_alloc(m->arena, cap * sizeof *items);

        m->failed = items == NULL;
        if (items != NULL && m->n > 0)
            memcpy(items, m->items, m->n * sizeof *items);
        if (items != NULL) {
            m->items = items;
            m->cap = cap;
        }
    }
    if (m->failed)
        return;
    m->items[m->n] = *value;
    m->items[m->n].key = key;
    if (key == NULL)
        m->items[m->n].key_len = 0;
    else
        m->items[m->n].key_len = strlen(key);
    m->n++;
}

/* Append a member that is a text. The text is not copied. */
void json_put_text(struct json_made *m, const char *key, const char *text)
{
    json_put(m, key, &(struct json){.kind = JSON_TEXT, .text = text, .text_len = strlen(text)});
}

void json_put_flag(struct json_made *m, const char *key, bool flag)
{
    json_put(m, key, &(struct json){.kind = JSON_BOOL, .flag = flag});
}

void json_put_null(struct json_made *m, const char *key)
{
    json_put(m, key, &(struct json){.kind = JSON_NULL});
}

/* The list or object of the members so far. */
struct json json_made(const struct json_made *m, enum json_kind kind)
{
    must(kind == JSON_LIST || kind == JSON_OBJECT);
    return (struct json){.kind = kind, .n = m->n, .items = m->items};
}

/* Append a list or an object of members that were made before. */
void json_put_made(struct json_made *m, const char *key, enum json_kind kind,
                   const struct json_made *members)
{
    struct json node = json_made(members, kind);

    m->failed = m->failed || members->failed;
    json_put(m, key, &node);
}

/* --- writing ------------------------------------------------------------------------------- */

/* Write the fewest digits that read back as the same double, in the form d.ddde+xx or d.ddde-xx. At
 * most 17 digits are ever needed. */
static void shortest_digits(double value, char *out, size_t cap)
{
    int precision;

    for (precision = 0; precision <= 16; precision++) {
        (void)snprintf(out, cap, "%.*e", precision, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

/* As Python's repr: an exponent below -4 or from 16 on is written as 1.5e+16, all others as plain
 * digits with a point: 0.00015, 15.0. */
void json_write_real(struct buf *out, double value)
{
    char text[40];
    char digits[32];
    size_t n_digits = 0;
    const char *p = text;
    long exponent;
    size_t i;

    if (isnan(value) || isinf(value)) {
        buf_add_text(out, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    shortest_digits(value, text, sizeof text);
    if (*p == '-')
        buf_add_byte(out, *p++);
    for (; *p != 'e'; p++)
        if (*p != '.')
            digits[n_digits++] = *p;
    exponent = strtol(p + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        buf_add_byte(out, digits[0]);
        if (n_digits > 1)
            buf_add_byte(out, '.');
        buf_add(out, digits + 1, n_digits - 1);
        buf_printf(out, "e%c%02ld", exponent < 0 ? '-' : '+', labs(exponent));
        return;
    }
    /* "0.000" lends as many zeros as needed. */
    if (exponent < 0) {
        buf_add(out, "0.000", (size_t)(1 - exponent));
        buf_add(out, digits, n_digits);
        return;
    }
    /* The digits before the point, with zeros for those that are missing: 1e3 is 1000.0. */
    for (i = 0; i <= (size_t)exponent; i++)
        buf_add_byte(out, i < n_digits ? digits[i] : '0');
    buf_add_byte(out, '.');
    if (n_digits > (size_t)exponent + 1)
        buf_add(out, digits + exponent + 1, n_digits - (size_t)exponent - 1);
    else
        buf_add_byte(out, '0');
}

/* A number as it was read, or in Python's spelling, which writes 1e2 as 100.0. */
static void write_number(struct buf *out, const struct json *node, enum json_style style)
{
    if (style == JSON_EXACT)
        buf_add(out, node->text, node->n);
    else if (node->kind != JSON_REAL || strpbrk(node->text, ".eE") == NULL) {
        if (strcmp(node->text, "-0") == 0)
            buf_add_byte(out, '0'); /* as a whole number it has no sign */
        else
            buf_add(out, node->text, node->n);
    } else if (isinf(node->real)) {
        buf_add_text(out, node->real < 0 ? "-Infinity" : "Infinity");
    } else {
        json_write_real(out, node->real);
    }
}

/* Recursive; the depth of a tree is at most JSON_DEPTH_MAX. */
void json_write(struct buf *out, const struct json *node, enum json_style style)
{
    uint32_t i;

    if (node->kind == JSON_NULL)
        buf_add_text(out, "null");
    else if (node->kind == JSON_BOOL)
        buf_add_text(out, json_flag_text(node->flag));
    else if (node->kind == JSON_TEXT)
        buf_add_json_string(out, node->text, node->text_len);
    else if (json_is_number(node))
        write_number(out, node, style);
    if (node->kind != JSON_LIST && node->kind != JSON_OBJECT)
        return;
    buf_add_byte(out, node->kind == JSON_LIST ? '[' : '{');
    for (i = 0; i < node->n; i++) {
        if (i > 0)
            buf_add_text(out, style == JSON_PYTHON ? ", " : ",");
        if (node->kind == JSON_OBJECT) {
            buf_add_json_string(out, node->items[i].key, node->items[i].key_len);
            buf_add_text(out, style == JSON_PYTHON ? ": " : ":");
        }
        json_write(out, &node->items[i], style);
    }
    buf_add_byte(out, node->kind == JSON_LIST ? ']' : '}');
}
