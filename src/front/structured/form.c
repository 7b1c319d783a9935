/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the fields that constrain an output. Only their form is checked here; the grammar's
 * compiler finds errors inside schemas and patterns.
 *
 *   content   response_format, structured_outputs, guided_...: one constraint in all
 *   calls     tools, tool_choice */
#include "front/structured/form.h"

#include <stdio.h>
#include <string.h>

#include "base/must.h"

#define FORM_NAME_MAX  64      /* characters of a schema's name, as in OpenAI's API */
#define FORM_PAIRS_MAX 1000000 /* pairs of names compared: 0.1 s */

/* --- content ------------------------------------------------------------------------------
 *
 * The content has at most one constraint: a schema, any JSON object, a pattern, a choice, a
 * grammar, or a structural tag. */

/* Write a source as compact JSON. A schema may be an object or the text of one; a text that is not
 * JSON is written as it is. */
static bool form_write(struct buf *b, const struct json *source, bool is_json)
{
    struct arena arena = {0};
    const struct json *parsed = source;

    if (is_json && source->kind == JSON_TEXT &&
        json_parse(&parsed, &arena, source->text, source->text_len, NULL, 0) != ERR_OK)
        parsed = source;
    json_write(b, parsed, JSON_COMPACT);
    arena_reset(&arena);
    return !b->failed;
}

/* Is this the constraint that f already has? Clients for several versions of vLLM send one under
 * its old and its new name. */
static bool form_is_same(const struct form *f, enum grammar_kind kind, const struct json *source)
{
    bool is_json = kind == GRAMMAR_SCHEMA || kind == GRAMMAR_PARTS;
    struct buf buf = {.limit = GRAMMAR_SOURCE_MAX}, text = {.limit = GRAMMAR_SOURCE_MAX};
    bool same;

    /* A JSON object without a schema has no source. */
    if (f->kind != kind || f->source == NULL || source == NULL)
        return f->kind == kind && f->source == source;
    /* Compare the compact texts, because one may be an object and the other its text with
     * spaces. */
    same = form_write(&buf, f->source, is_json) && form_write(&text, source, is_json) &&
           buf.len == text.len && memcmp(buf.bytes, text.bytes, buf.len) == 0;
    buf_fini(&buf);
    buf_fini(&text);
    return same;
}

/* Set the content's constraint; a second, different one is an error. */
static int form_set(struct form *f, const char *param, enum grammar_kind kind,
                    const struct json *source, char *why, size_t cap)
{
    if (f->param != NULL && form_is_same(f, kind, source))
        return ERR_OK;
    if (f->param != NULL) {
        if (strcmp(f->param, param) == 0)
            (void)snprintf(why, cap, "'%s' has more than one output constraint", param);
        else
            (void)snprintf(why, cap,
                           "only one output constraint is allowed, but both '%s' and '%s' are set",
                           f->param, param);
        return ERR_INVALID;
    }
    f->param = param;
    f->kind = kind;
    f->source = source;
    return ERR_OK;
}

/* Write the error of a value of the wrong type: the field, the expected type, and the type that it
 * has. */
static int form_wrong(char *why, size_t cap, const char *name, const char *wanted,
                      const struct json *v)
{
    if (v->kind == JSON_TEXT)
        (void)snprintf(why, cap, "'%s' must be %s, not \"%.40s\"", name, wanted, v->text);
    else
        (void)snprintf(why, cap, "'%s' must be %s, not %s", name, wanted, json_kind_name(v->kind));
    return ERR_INVALID;
}

/* Is v a name as OpenAI's API allows it for a schema? */
static bool form_is_name(const struct json *v)
{
    if (v == NULL || v->kind != JSON_TEXT || v->text_len == 0 || v->text_len > FORM_NAME_MAX)
        return false;
    return strspn(v->text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
           v->text_len;
}

/* {"type": "json_schema", "json_schema": {"name": N, "schema": {...}, "strict": true}} */
static int form_read_json_schema(struct form *f, const struct json *v, char *why, size_t cap)
{
    const struct json *given = json_get(v, "json_schema");
    const struct json *schema = json_get(given, "schema");
    const struct json *strict = json_get(given, "strict");

    if (given == NULL || given->kind != JSON_OBJECT) {
        (void)snprintf(why, cap, "'response_format.json_schema' is required, an object");
        return ERR_INVALID;
    }
    if (!form_is_name(json_get(given, "name"))) {
        (void)snprintf(why, cap,
                       "'response_format.json_schema.name' is required, a name of at "
                       "most %d letters, digits, '_' and '-'",
                       FORM_NAME_MAX);
        return ERR_INVALID;
    }
    if (strict != NULL && strict->kind != JSON_BOOL && strict->kind != JSON_NULL)
        return form_wrong(why, cap, "response_format.json_schema.strict", "true or false", strict);
    /* A schema may also be true or false. */
    if (schema == NULL || (schema->kind != JSON_OBJECT && schema->kind != JSON_BOOL)) {
        (void)snprintf(why, cap, "'response_format.json_schema.schema' is required, an object");
        return ERR_INVALID;
    }
    return form_set(f, "response_format", GRAMMAR_SCHEMA, schema, why, cap);
}

/* response_format, by its type. The default type "text" has no constraint. */
int form_read_response_format(struct form *f, const struct json *v, char *why, size_t cap)
{
    const struct json *type = json_get_kind(v, "type", JSON_TEXT);

    if (v->kind != JSON_OBJECT)
        return form_wrong(why, cap, "response_format", "an object", v);
    if (json_is_text(type, "text"))
        return ERR_OK;
    if (json_is_text(type, "json_object"))
        return form_set(f, "response_format", GRAMMAR_JSON_OBJECT, NULL, why, cap);
    if (json_is_text(type, "json_schema"))
        return form_read_json_schema(f, v, why, cap);
    if (json_is_text(type, "structural_tag"))
        return form_set(f, "response_format", GRAMMAR_PARTS, v, why, cap);
    (void)snprintf(why, cap,
                   "'response_format.type' must be text, json_object, json_schema or "
                   "structural_tag");
    return ERR_INVALID;
}

/* Is v a list of texts without NULs that are not empty? */
static bool form_is_choices(const struct json *v)
{
    if (v->kind != JSON_LIST || v->n == 0)
        return false;
    for (uint32_t i = 0; i < v->n; i++) {
        if (v->items[i].kind != JSON_TEXT || v->items[i].text_len == 0 ||
            json_has_nul(&v->items[i]))
            return false;
    }
    return true;
}

/* A member of structured_outputs, or an older guided_ field. */
struct form_source {
    const char *param; /* the field */
    const char *name;  /* the path, for error texts */
    const char *kind;  /* "json", "regex", ... */
};

/* Read the value of one source of a constraint. */
static int form_read_kind(struct form *f, const struct form_source *from, const struct json *v,
                          char *why, size_t cap)
{
    /* This is not a constraint by itself; it only changes the spaces of a schema. */
    if (strcmp(from->kind, "whitespace_pattern") == 0) {
        if (v->kind != JSON_TEXT || json_has_nul(v))
            return form_wrong(why, cap, from->name, "a string", v);
        f->spacing = v;
        return ERR_OK;
    }
    /* A text is parsed by the compiler, which reports its errors with their place. */
    if (strcmp(from->kind, "json") == 0) {
        if (v->kind != JSON_OBJECT && v->kind != JSON_TEXT && v->kind != JSON_BOOL)
            return form_wrong(why, cap, from->name, "a JSON schema, or the text of one", v);
        return form_set(f, from->param, GRAMMAR_SCHEMA, v, why, cap);
    }
    if (strcmp(from->kind, "structural_tag") == 0) {
        if (v->kind != JSON_OBJECT && v->kind != JSON_TEXT)
            return form_wrong(why, cap, from->name, "a structural tag, or the text of one", v);
        return form_set(f, from->param, GRAMMAR_PARTS, v, why, cap);
    }
    if (strcmp(from->kind, "choice") == 0) {
        if (!form_is_choices(v))
            return form_wrong(why, cap, from->name,
                              "a list of strings that are not empty and hold no \\u0000", v);
        return form_set(f, from->param, GRAMMAR_CHOICE, v, why, cap);
    }
    if (v->kind != JSON_TEXT)
        return form_wrong(why, cap, from->name, "a string", v);
    return form_set(f, from->param, strcmp(from->kind, "regex") == 0 ? GRAMMAR_REGEX : GRAMMAR_EBNF,
                    v, why, cap);
}

/* The fields of vLLM's older versions: the kind follows the prefix, as in guided_json. */
int form_read_guided(struct form *f, const char *field, const struct json *v, char *why, size_t cap)
{
    const struct form_source from = {field, field, field + strlen("guided_")};

    return form_read_kind(f, &from, v, why, cap);
}

/* Read a member of structured_outputs that is a flag. */
static int form_read_flag(struct form *f, const struct json *m, char *why, size_t cap)
{
    char name[96];

    (void)snprintf(name, sizeof name, "structured_outputs.%.64s", m->key);
    if (strcmp(m->key, "json_object") == 0 || strcmp(m->key, "disable_any_whitespace") == 0 ||
        strcmp(m->key, "disable_additional_properties") == 0 ||
        strcmp(m->key, "disable_fallback") == 0) {
        if (m->kind != JSON_BOOL)
            return form_wrong(why, cap, name, "true or false", m);
        if (!m->flag || strcmp(m->key, "disable_fallback") == 0) /* there is never a fallback */
            return ERR_OK;
        if (strcmp(m->key, "json_object") == 0)
            return form_set(f, "structured_outputs", GRAMMAR_JSON_OBJECT, NULL, why, cap);
        if (strcmp(m->key, "disable_any_whitespace") == 0)
            f->space = GRAMMAR_COMPACT;
        else
            f->closed = true;
        return ERR_OK;
    }
    (void)snprintf(why, cap, "'%s' is not supported", name);
    return ERR_UNSUPPORTED;
}

/* structured_outputs: at most one of its members may be a constraint. */
int form_read_structured(struct form *f, const struct json *v, char *why, size_t cap)
{
    static const char *const kinds[] = {"json",    "regex",          "choice",
                                        "grammar", "structural_tag", "whitespace_pattern"};

    if (v->kind != JSON_OBJECT)
        return form_wrong(why, cap, "structured_outputs", "an object", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *member = &v->items[i];
        const char *kind = NULL;
        char name[64];
        int rc = ERR_OK;

        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
            if (strcmp(member->key, kinds[k]) == 0)
                kind = kinds[k];
        if (member->kind == JSON_NULL)
            continue;
        if (kind == NULL) {
            rc = form_read_flag(f, member, why, cap);
        } else {
            (void)snprintf(name, sizeof name, "structured_outputs.%s", kind);
            rc = form_read_kind(f, &(struct form_source){"structured_outputs", name, kind}, member,
                                why, cap);
        }
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* --- calls -------------------------------------------------------------------------------- */

/* A tool must have a name, because calls name it. The chat template reads everything else. */
int form_read_tools(struct form *f, const struct json *v, char *why, size_t cap)
{
    if (v->kind != JSON_LIST)
        return form_wrong(why, cap, "tools", "a list of tools", v);
    for (uint32_t i = 0; i < v->n; i++) {
        const struct json *function = json_get_kind(&v->items[i], "function", JSON_OBJECT);
        const struct json *name = json_get_kind(function, "name", JSON_TEXT);
        const struct json *schema = json_get(function, "parameters");

        if (!json_is_text(json_get(&v->items[i], "type"), "function") || name == NULL ||
            name->text_len == 0 || json_has_nul(name) ||
            (schema != NULL && schema->kind != JSON_OBJECT && schema->kind != JSON_NULL)) {
            (void)snprintf(why, cap,
                           "'tools[%u]' must be of type function, with a name and an object of "
                           "parameters",
                           i);
            return ERR_INVALID;
        }
        /* One strict tool is enough: the calls are then constrained by the schemas. */
        f->strict = f->strict || json_get_bool(function, "strict", false);
    }
    if (v->n > 0)
        f->tools = v;
    else
        f->tools = NULL;
    return ERR_OK;
}

/* The name of a tool's function; "" if it lacks one. */
static const char *form_tool_name(const struct json *tool)
{
    return json_get_text(json_get_kind(tool, "function", JSON_OBJECT), "name", "");
}

/* Read {"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name":
 * ...}}]}. */
static int form_read_allowed(struct form *f, const struct json *v, char *why, size_t cap)
{
    const struct json *mode = json_get(v, "mode");
    const struct json *tools = json_get_kind(v, "tools", JSON_LIST);

    if (!json_is_text(mode, "auto") && !json_is_text(mode, "required")) {
        (void)snprintf(why, cap, "'tool_choice.allowed_tools.mode' must be auto or required");
        return ERR_INVALID;
    }
    if (tools == NULL || tools->n == 0) {
        (void)snprintf(why, cap,
                       "'tool_choice.allowed_tools.tools' must be a list of tools that is not "
                       "empty");
        return ERR_INVALID;
    }
    for (uint32_t i = 0; i < tools->n; i++) {
        if (json_is_text(json_get(&tools->items[i], "type"), "function") &&
            form_tool_name(&tools->items[i])[0] != '\0')
            continue;
        (void)snprintf(why, cap,
                       "'tool_choice.allowed_tools.tools[%u]' must be {\"type\": \"function\", "
                       "\"function\": {\"name\": ...}}",
                       i);
        return ERR_INVALID;
    }
    if (json_is_text(mode, "auto"))
        f->calls = FORM_CALLS_AUTO;
    else
        f->calls = FORM_CALLS_REQUIRED;
    f->allowed = tools;
    return ERR_OK;
}

/* The words are in the order of enum form_calls. */
int form_read_tool_choice(struct form *f, const struct json *v, char *why, size_t cap)
{
    static const char *const words[] = {"auto", "none", "required"};
    const struct json *name = json_get_kind(json_get(v, "function"), "name", JSON_TEXT);

    for (int i = 0; i < 3; i++) {
        if (json_is_text(v, words[i])) {
            f->calls = (enum form_calls)i;
            return ERR_OK;
        }
    }
    if (json_is_text(json_get(v, "type"), "allowed_tools"))
        return form_read_allowed(f, json_get(v, "allowed_tools"), why, cap);
    if (json_is_text(json_get(v, "type"), "function") && name != NULL && !json_has_nul(name)) {
        f->calls = FORM_CALLS_NAMED;
        f->function = name->text;
        return ERR_OK;
    }
    (void)snprintf(why, cap,
                   "'tool_choice' must be none, auto, required, {\"type\": \"function\", "
                   "\"function\": {\"name\": ...}} or {\"type\": \"allowed_tools\", "
                   "\"allowed_tools\": {\"mode\": ..., \"tools\": [...]}}");
    return ERR_INVALID;
}

/* Must the reply be a call? */
bool form_forces(const struct form *f)
{
    return f->calls == FORM_CALLS_REQUIRED || f->calls == FORM_CALLS_NAMED;
}

/* Is there a tool with this name? */
static bool form_has_tool(const struct form *f, const char *name)
{
    must(f->tools != NULL);
    for (uint32_t i = 0; i < f->tools->n; i++) {
        if (strcmp(form_tool_name(&f->tools->items[i]), name) == 0)
            return true;
    }
    return false;
}

/* May the reply call the function with this name? */
bool form_allows(const struct form *f, const char *name)
{
    bool allows = f->allowed == NULL;

    must(f->calls != FORM_CALLS_NAMED || f->function != NULL);
    if (f->calls == FORM_CALLS_NAMED)
        return strcmp(name, f->function) == 0;
    for (uint32_t i = 0; !allows && i < f->allowed->n; i++)
        allows = strcmp(form_tool_name(&f->allowed->items[i]), name) == 0;
    return allows;
}

/* Checks of fields that depend on each other, when all have been read. The functions that
 * tool_choice names must exist; each is searched in the list of tools, which is why the number of
 * pairs is limited. */
int form_check(const struct form *f, const char **param, char *why, size_t cap)
{
    const char *unknown = NULL;

    if (f->spacing != NULL && f->space == GRAMMAR_COMPACT) {
        *param = "structured_outputs";
        (void)snprintf(why, cap,
                       "'whitespace_pattern' and 'disable_any_whitespace' exclude each other");
        return ERR_INVALID;
    }
    *param = "tool_choice";
    /* auto and none need no tools. */
    if (!form_forces(f) && f->allowed == NULL)
        return ERR_OK;
    if (f->tools == NULL) {
        (void)snprintf(why, cap, "'tool_choice' requires a call, but there are no 'tools'");
        return ERR_INVALID;
    }
    if (f->allowed != NULL && (uint64_t)f->allowed->n * f->tools->n > FORM_PAIRS_MAX) {
        (void)snprintf(why, cap, "'tool_choice' allows %u of %u tools: too many to compare",
                       f->allowed->n, f->tools->n);
        return ERR_LIMIT;
    }
    if (f->calls == FORM_CALLS_NAMED && !form_has_tool(f, f->function))
        unknown = f->function;
    for (uint32_t i = 0; f->allowed != NULL && unknown == NULL && i < f->allowed->n; i++) {
        const char *name = form_tool_name(&f->allowed->items[i]);

        if (!form_has_tool(f, name))
            unknown = name;
    }
    if (unknown == NULL)
        return ERR_OK;
    (void)snprintf(why, cap, "'tool_choice' names the function '%.100s', which is not in 'tools'",
                   unknown);
    return ERR_INVALID;
}

/* Does the form constrain the output? If not, no grammar is compiled. */
bool form_binds(const struct form *f)
{
    if (f->param != NULL)
        return true;
    if (form_forces(f))
        return true;
    return f->calls == FORM_CALLS_AUTO && (f->strict || f->allowed != NULL);
}

/* The format in which the reply is parsed. Without tools nothing is parsed, so that a text that
 * looks like a call remains a text. A model without a format of its own can still be forced to
 * write calls: then as a list in JSON. */
enum reply_format form_reply_format(const struct form *f, enum reply_format of_model)
{
    if (of_model == REPLY_HARMONY) /* its reasoning and content are messages, too */
        return of_model;
    if (f->tools == NULL || f->calls == FORM_CALLS_NONE)
        return REPLY_PLAIN;
    if (of_model == REPLY_PLAIN && form_forces(f))
        return REPLY_LIST;
    return of_model;
}
