/* SPDX-License-Identifier: Apache-2.0
 *
 * Parameter values that a model does not write as JSON: plain text, whose type the tool's schema
 * gives, and Python literals. Both are appended as JSON. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hex.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/output/reply_parts.h"

#define VALUE_BYTES_MAX  ((size_t)64 << 20)
#define PYTHON_DEPTH_MAX 64 /* of Python's brackets */

/* --- by type ------------------------------------------------------------------------------ */

/* The schema of parameter `key` of the tool `name`; NULL when the request has none. */
static const struct json *reply_schema_of(const struct json *tools, const struct buf *name,
                                          const struct buf *key)
{
    /* A tool of a request has this form:
     *
     *     {"function": {"name": "f", "parameters": {"properties": {"key": SCHEMA}}}} */
    for (uint32_t i = 0; tools != NULL && i < tools->n; i++) {
        const struct json *function = json_get(&tools->items[i], "function");
        const struct json *given = json_get(function, "name");

        /* Names are compared with their lengths, because `name` is not a C string while it is
         * empty. */
        if (given == NULL || given->kind != JSON_TEXT || given->text_len != name->len ||
            memcmp(given->text, name->bytes, name->len) != 0)
            continue;
        return json_get_n(json_get(json_get(function, "parameters"), "properties"),
                          key->len == 0 ? "" : key->bytes, key->len);
    }
    return NULL;
}

/* Does the schema's "type" name this type, alone or in a list? */
static bool reply_has_type(const struct json *schema, const char *type)
{
    const struct json *types = json_get(schema, "type");

    /* {"type": ["integer", "null"]} names two types. */
    if (types != NULL && types->kind == JSON_LIST) {
        for (uint32_t i = 0; i < types->n; i++) {
            if (json_is_text(&types->items[i], type))
                return true;
        }
    }
    return json_is_text(types, type);
}

/* Append a parsed value. A number beyond the range of a double would be written as Infinity, which
 * is no JSON, so the model's own text is kept for it. */
static void reply_add_typed_value(struct buf *out, const struct json *value, const char *text,
                                  size_t len)
{
    size_t from = out->len;

    /* The value is written anew, in the spacing of Python's json.dumps(). */
    json_write(out, value, JSON_PYTHON);
    if (out->failed || strstr(out->bytes + from, "Infinity") == NULL)
        return;
    out->len = from;
    buf_add(out, text, len);
}

bool reply_add_json(struct buf *out, const char *text, size_t len, bool no_text)
{
    struct arena arena = {.limit_bytes = VALUE_BYTES_MAX};
    const struct json *value = NULL;
    /* The text must be JSON as a whole. {"a": 1} is an object, while {"a": 1}; is a string. */
    bool good = json_parse(&value, &arena, text, len, NULL, 0) == ERR_OK &&
                !(no_text && value->kind == JSON_TEXT);

    if (good)
        reply_add_typed_value(out, value, text, len);
    arena_reset(&arena);
    return good;
}

/* Append text if it is a JSON number, without a fraction or exponent when whole is set. */
static bool reply_add_number(struct buf *out, const char *text, size_t len, bool whole)
{
    struct arena arena = {.limit_bytes = VALUE_BYTES_MAX};
    const struct json *value = NULL;
    /* "007" and "1." are no numbers of JSON, so they remain strings. */
    bool good = json_parse(&value, &arena, text, len, NULL, 0) == ERR_OK && json_is_number(value) &&
                (!whole || value->kind != JSON_REAL);

    if (good)
        reply_add_typed_value(out, value, text, len);
    arena_reset(&arena);
    return good;
}

static bool reply_is_word(const char *text, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(text, word, len) == 0;
}

/* Append text by its schema's type. False when no type fits: the value is then a string. A schema
 * without a simple type (anyOf, $ref) accepts any JSON, or a Python literal. */
static bool reply_add_typed(struct buf *out, const struct json *schema, const char *text,
                            size_t len)
{
    struct buf literal = {0};
    bool good;

    if (reply_is_word(text, len, "null") || reply_is_word(text, len, "none")) {
        buf_add_text(out, "null");
        return true;
    }
    /* If a string is allowed, the text is one, even if it looks like a number: "007" must not
     * become 7. */
    if (reply_has_type(schema, "string"))
        return false;
    if (reply_has_type(schema, "integer") && reply_add_number(out, text, len, true))
        return true;
    if (reply_has_type(schema, "number") && reply_add_number(out, text, len, false))
        return true;
    if (reply_has_type(schema, "boolean") &&
        (reply_is_word(text, len, "true") || reply_is_word(text, len, "false"))) {
        buf_add_text(out, reply_is_word(text, len, "true") ? "true" : "false");
        return true;
    }
    if (!reply_has_type(schema, "object") && !reply_has_type(schema, "array") &&
        json_get(schema, "anyOf") == NULL && json_get(schema, "oneOf") == NULL &&
        json_get(schema, "$ref") == NULL)
        return false;
    if (reply_add_json(out, text, len, false))
        return true;
    /* Models trained on Python write {'a': True} where JSON is wanted. */
    good = reply_add_python(&literal, text, len) && !literal.failed;
    if (good)
        buf_add(out, literal.bytes, literal.len);
    buf_fini(&literal);
    return good;
}

/* Qwen3-Coder writes values on lines of their own, so one line feed at each end is removed
 * there. */
void reply_add_value(struct buf *out, const struct json *tools, const struct buf *name,
                     const struct buf *key, const struct buf *value, bool guess)
{
    const struct json *schema = reply_schema_of(tools, name, key);
    const char *text = value->len == 0 ? "" : value->bytes;
    size_t len = value->len;

    must(name != NULL && key != NULL && value != NULL);
    if (!guess && len > 0 && text[0] == '\n') {
        text++;
        len--;
    }
    if (!guess && len > 0 && text[len - 1] == '\n')
        len--;
    /* The schema decides first: "5" is a number for {"type": "integer"} and a string for
     * {"type": "string"}. */
    if (schema != NULL && reply_add_typed(out, schema, text, len))
        return;
    /* Without a useful schema the text itself is the only hint: with `guess` a value that parses
     * as JSON is taken as such, and all other text is a string. */
    if (guess && !reply_has_type(schema, "string") && reply_add_json(out, text, len, true))
        return;
    buf_add_json_string(out, text, len);
}

/* --- Python ------------------------------------------------------------------------------- */

/* A small parser of Python literals: strings, numbers, True, False, None, and lists, tuples and
 * dicts of these. The JSON is written while the literal is read:
 *
 *     {'a': (1, 2.5), "b": None}   ->   {"a": [1, 2.5], "b": null} */
struct py {
    const char *at, *end;
};

static void reply_py_space(struct py *python)
{
    while (python->at < python->end && reply_is_space(*python->at))
        python->at++;
}

static bool reply_py_is_word(char c, bool first)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (!first && ((c >= '0' && c <= '9') || c == '.'));
}

/* Consume a word, dots included (a module's function), and return its length. */
static size_t reply_py_word(struct py *python)
{
    size_t n = 0;

    while (python->at + n < python->end && reply_py_is_word(python->at[n], n == 0))
        n++;
    python->at += n;
    return n;
}

/* Append the character of an escape; python->at is after the backslash. Python keeps the backslash
 * of an escape that it does not know. */
static bool reply_py_escape(struct py *python, struct buf *text)
{
    static const char from[] = "ntrbf\\'\"", to[] = "\n\t\r\b\f\\'\"";
    char c = python->at < python->end ? *python->at++ : '\0';
    const char *found = c == '\0' ? NULL : strchr(from, c);

    if (found != NULL) {
        buf_add_byte(text, to[found - from]);
        return true;
    }
    if (c == 'x' || c == 'u') {
        size_t n = c == 'x' ? 2 : 4;
        char utf8[4];
        int64_t code;

        code = hex_number(python->at, (size_t)(python->end - python->at), n);
        if (code <= 0 || (code >= 0xd800 && code < 0xe000))
            return false;
        python->at += n;
        buf_add(text, utf8, utf8_encode((uint32_t)code, utf8));
        return true;
    }
    if (c == '\0')
        return false;
    buf_add_byte(text, '\\'); /* unknown: kept */
    buf_add_byte(text, c);
    return true;
}

/* Append a quoted string as a JSON string. */
static bool reply_py_text(struct py *python, struct buf *out)
{
    struct buf text = {0};
    char quote = *python->at++;
    bool good = true;

    /* Up to the quote that began the string; the other kind of quote may occur inside. */
    while (good && python->at < python->end && *python->at != quote) {
        if (*python->at == '\\') {
            python->at++;
            good = reply_py_escape(python, &text);
        } else {
            buf_add_byte(&text, *python->at++);
        }
    }
    good = good && python->at < python->end;
    python->at++;
    if (good)
        buf_add_json_string(out, text.len == 0 ? "" : text.bytes, text.len);
    out->failed = out->failed || text.failed;
    buf_fini(&text);
    return good;
}

/* Append a number; underscores are refused by the JSON parser. */
static bool reply_py_number(struct py *python, struct buf *out)
{
    const char *from = python->at;

    while (python->at < python->end && *python->at != '\0' &&
           strchr("+-.0123456789eE_", *python->at) != NULL)
        python->at++;
    return python->at > from && reply_add_number(out, from, (size_t)(python->at - from), false);
}

/* Append the JSON of True, False or None; JSON's own spellings are accepted. */
static bool reply_py_constant(struct py *python, struct buf *out)
{
    /* The model mixes both spellings even within one call. */
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    const char *from = python->at;
    size_t n = reply_py_word(python);

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (n == strlen(words[i][0]) && memcmp(from, words[i][0], n) == 0) {
            buf_add_text(out, words[i][1]);
            return true;
        }
    }
    return false;
}

/* The tokens that may come next inside brackets. */
enum py_next { PY_VALUE, PY_VALUE_OR_END, PY_COLON, PY_COMMA };

/* Append one literal that has no brackets. */
static bool reply_py_atom(struct py *python, struct buf *out)
{
    char c = *python->at;

    /* The first byte decides: a quote, a letter of True, False or None, or a number. */
    if (c == '"' || c == '\'')
        return reply_py_text(python, out);
    if (reply_py_is_word(c, true))
        return reply_py_constant(python, out);
    return reply_py_number(python, out);
}

/* Append one literal without recursion: `stack` holds the closing bracket of each open level, and
 * keyed[i] is set while level i is a dict whose current member has its key. Lists and tuples both
 * become lists; only strings are accepted as keys. */
static bool reply_py_literal(struct py *python, struct buf *out)
{
    char stack[PYTHON_DEPTH_MAX];
    bool keyed[PYTHON_DEPTH_MAX]; /* a dict's member has its key */
    int depth = 0;
    enum py_next next = PY_VALUE;

    do { /* each pass takes a byte or ends */
        char c;

        reply_py_space(python);
        if (python->at >= python->end)
            return false;
        c = *python->at;
        if (depth > 0 && c == stack[depth - 1] &&
            (next == PY_VALUE_OR_END || (next == PY_COMMA && !(c == '}' && !keyed[depth - 1])))) {
            python->at++;
            buf_add_byte(out, c == ')' ? ']' : c);
            depth--;
            next = PY_COMMA;
        } else if (next == PY_COMMA && c == ',') {
            python->at++;
            reply_py_space(python);
            if (python->at < python->end && *python->at == stack[depth - 1])
                continue; /* a comma at the end */
            buf_add_text(out, ", ");
            keyed[depth - 1] = false;
            next = PY_VALUE;
        } else if (next == PY_COLON && c == ':') {
            python->at++;
            buf_add_text(out, ": ");
            keyed[depth - 1] = true;
            next = PY_VALUE;
        } else if (next == PY_COMMA || next == PY_COLON) {
            return false;
        } else if (c == '[' || c == '(' || c == '{') {
            if (depth == PYTHON_DEPTH_MAX ||
                (depth > 0 && stack[depth - 1] == '}' && !keyed[depth - 1]))
                return false;
            python->at++;
            buf_add_byte(out, c == '(' ? '[' : c);
            keyed[depth] = false;
            stack[depth++] = c == '[' ? ']' : c == '(' ? ')' : '}';
            next = PY_VALUE_OR_END;
        } else {
            bool is_key = depth > 0 && stack[depth - 1] == '}' && !keyed[depth - 1];

            if (is_key && c != '"' && c != '\'')
                return false;
            if (!reply_py_atom(python, out))
                return false;
            if (is_key)
                next = PY_COLON;
            else
                next = PY_COMMA;
        }
    } while (depth > 0);
    return true;
}

bool reply_add_python(struct buf *out, const char *text, size_t len)
{
    struct py python = {text, text + len};

    if (!reply_py_literal(&python, out))
        return false;
    reply_py_space(&python);
    return python.at == python.end;
}

/* Parse name(k=v, ...): the name to *from and *n, the arguments to out as a JSON object. */
static bool reply_py_call(struct py *python, const char **from, size_t *n, struct buf *out)
{
    bool first = true;

    reply_py_space(python);
    *from = python->at;
    *n = reply_py_word(python);
    reply_py_space(python);
    if (*n == 0 || python->at >= python->end || *python->at++ != '(')
        return false;
    buf_add_byte(out, '{');
    for (;;) { /* each pass takes a member or ends */
        const char *key;
        size_t key_len;

        reply_py_space(python);
        if (python->at < python->end && *python->at == ')')
            break;
        if (!first && (python->at >= python->end || *python->at++ != ','))
            return false;
        reply_py_space(python);
        if (!first && python->at < python->end && *python->at == ')')
            break;
        key = python->at;
        key_len = reply_py_word(python);
        reply_py_space(python);
        if (key_len == 0 || python->at >= python->end || *python->at++ != '=')
            return false;
        buf_add_text(out, first ? "" : ", ");
        buf_add_json_string(out, key, key_len);
        buf_add_text(out, ": ");
        if (!reply_py_literal(python, out))
            return false;
        first = false;
    }
    python->at++;
    buf_add_byte(out, '}');
    return true;
}

/* Parse all calls of a list, and emit them when reply is not NULL. */
static bool reply_py_calls(struct reply *reply, const char *text, size_t len)
{
    struct py python = {text, text + len};
    bool good = false, more = true;

    reply_py_space(&python);
    if (python.at >= python.end || *python.at++ != '[')
        return false;
    while (more) { /* each pass takes a call */
        struct buf args = {0};
        const char *name;
        size_t n;

        good = reply_py_call(&python, &name, &n, &args) && !args.failed;
        if (good && reply != NULL) {
            reply_say_call(reply, name, n);
            reply_say(reply, REPLY_CALL_ARGS, args.bytes, args.len);
            reply_say(reply, REPLY_CALL_END, NULL, 0);
            reply->is_said = false;
        }
        buf_fini(&args);
        reply_py_space(&python);
        more = good && python.at < python.end && *python.at == ',';
        python.at += more;
    }
    if (!good || python.at >= python.end || *python.at++ != ']')
        return false;
    reply_py_space(&python);
    return python.at == python.end;
}

/* Parse twice: nothing may be emitted before the whole list is known to be valid. */
bool reply_say_python(struct reply *reply, const char *text, size_t len)
{
    struct buf copy = {0};
    bool good = reply_py_calls(NULL, text, len);

    must(text != NULL || len == 0);
    if (good) { /* a copy, because text is reply->raw and emitting a call clears it */
        buf_add(&copy, text, len);
        good = !copy.failed && reply_py_calls(reply, copy.bytes, copy.len);
        buf_fini(&copy);
    }
    return good;
}

/* May this be the beginning of a list of calls, "[name(..."? Text that ends early may be. */
bool reply_may_be_python(const char *text, size_t len)
{
    /* Each check follows the order of the text: "[", a name, "(". Text that ends before one of
     * them may still become a call, so the answer is yes until a byte contradicts. */
    struct py python = {text, text + len};

    must(text != NULL || len == 0);
    reply_py_space(&python);
    if (python.at == python.end)
        return true;
    if (*python.at++ != '[')
        return false;
    reply_py_space(&python);
    if (python.at == python.end)
        return true;
    if (reply_py_word(&python) == 0)
        return false;
    reply_py_space(&python);
    return python.at == python.end || *python.at == '(';
}
