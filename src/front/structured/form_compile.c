/* SPDX-License-Identifier: Apache-2.0
 *
 * From a form to a compiled constraint. The grammar is composed of parts (grammar/grammar.h):
 *
 *   [ reasoning ]  ( content | calls )
 *
 * The content's part comes from the client's schema, pattern and so on; the calls' part from the
 * tools' parameters and the model's format of calls (calls.c).
 *
 * Examples, for a model whose reasoning is between <think> and </think>:
 *
 *   a schema                         ( <think> free text </think> )?  schema
 *   tool_choice "required"           ( <think> free text </think> )?  calls
 *   a strict tool, not required      ( <think> free text </think> )?  free text with calls
 *   a schema, the prompt ends with <think>:    free text </think>  schema */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "front/structured/calls.h"
#include "front/structured/form.h"
#include "front/structured/tags.h"

#define SPACE "[ \\t\\r\\n]{0,16}" /* white space between a reasoning and the rest */

/* --- the content -------------------------------------------------------------------------- */

/* The meaning of a node in a schema's JSON. */
enum form_node {
    NODE_SCHEMA,
    NODE_MAP,  /* an object whose members are schemas */
    NODE_DATA, /* plain data, such as the values of an enum */
    NODE_TAG,  /* part of a structural tag */
};

/* In a structural tag, these two members hold a schema. */
static enum form_node form_node_in_tag(const char *key)
{
    if (strcmp(key, "json_schema") == 0 || strcmp(key, "schema") == 0)
        return NODE_SCHEMA;
    return NODE_TAG;
}

/* In a schema, some members hold schemas by name and some hold data, in which a member called
 * "properties" means nothing. */
static enum form_node form_node_in_schema(const char *key)
{
    static const char *const maps[] = {"properties", "patternProperties", "$defs", "definitions",
                                       "dependentSchemas"};
    static const char *const others[] = {"enum", "const", "default", "examples", "required"};

    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        if (strcmp(key, maps[i]) == 0)
            return NODE_MAP;
        if (strcmp(key, others[i]) == 0)
            return NODE_DATA;
    }
    return NODE_SCHEMA;
}

/* The meaning of a member, from that of the node around it. */
static enum form_node form_node_of(const struct json *m, enum form_node node, bool is_object)
{
    if (node == NODE_TAG && is_object)
        return form_node_in_tag(m->key);
    if (node == NODE_TAG)
        return NODE_TAG;
    if (!is_object)
        return NODE_SCHEMA;
    if (node == NODE_SCHEMA)
        return form_node_in_schema(m->key);
    return NODE_SCHEMA;
}

/* disable_additional_properties: write a schema in which objects that declare members allow no
 * others, unless the schema itself sets additionalProperties. Recursive, at most JSON_DEPTH_MAX
 * deep. */
static void form_write_closed(struct buf *b, const struct json *v, enum form_node node)
{
    bool is_object = v->kind == JSON_OBJECT;
    bool closes = node == NODE_SCHEMA && is_object && json_get(v, "additionalProperties") == NULL &&
                  (json_get(v, "properties") != NULL || json_get(v, "patternProperties") != NULL);

    if (node == NODE_DATA || (!is_object && v->kind != JSON_LIST)) {
        json_write(b, v, JSON_COMPACT);
        return;
    }
    buf_add_byte(b, is_object ? '{' : '[');
    for (uint32_t i = 0; i < v->n && !b->failed; i++) {
        const struct json *member = &v->items[i];

        if (i > 0)
            buf_add_byte(b, ',');
        if (is_object) {
            buf_add_json_string(b, member->key, member->key_len);
            buf_add_byte(b, ':');
        }
        form_write_closed(b, member, form_node_of(member, node, is_object));
    }
    if (closes)
        buf_add_text(b, ",\"additionalProperties\":false"); /* after the declared members */
    buf_add_byte(b, is_object ? '}' : ']');
}

/* A schema or structural tag as text; it may have been sent as a text. */
static int form_source(const struct form *f, struct arena *arena, const char **text, size_t *len)
{
    const struct json *source = f->source;
    struct buf buf = {.limit = GRAMMAR_SOURCE_MAX};
    bool closes = f->closed && (f->kind == GRAMMAR_SCHEMA || f->kind == GRAMMAR_PARTS);
    char *copy;

    /* A schema that is a text must be parsed first, to be changed. */
    if (closes && source->kind == JSON_TEXT &&
        json_parse(&source, arena, source->text, source->text_len, NULL, 0) != ERR_OK)
        source = f->source; /* the compiler will report the error */
    if (source == NULL || source->kind == JSON_TEXT) {
        if (source == NULL)
            *text = "";
        else
            *text = source->text;
        if (source == NULL)
            *len = 0;
        else
            *len = source->text_len;
        if (*len > GRAMMAR_SOURCE_MAX)
            return ERR_LIMIT;
        return ERR_OK;
    }
    if (closes)
        form_write_closed(&buf, source, f->kind == GRAMMAR_PARTS ? NODE_TAG : NODE_SCHEMA);
    else
        json_write(&buf, source, JSON_COMPACT);
    if (buf.failed)
        copy = NULL;
    else
        copy = arena_strndup(arena, buf.bytes, buf.len);
    *text = copy;
    *len = buf.len;
    buf_fini(&buf);
    if (copy == NULL)
        return ERR_LIMIT;
    return ERR_OK;
}

/* May the reply contain calls? */
static bool form_has_calls(const struct form *f)
{
    return f->tools != NULL && f->calls != FORM_CALLS_NONE;
}

/* The parts of a structural tag, which tags.c composes. */
static int form_tags(const struct form *f, enum reply_format format, struct arena *arena,
                     struct grammar_part *out, char *why, size_t cap)
{
    struct json text = {.kind = JSON_TEXT};
    int rc;

    if (!f->closed)
        return tags_compose(f->source, format, arena, out, why, cap);
    rc = form_source(f, arena, &text.text, &text.text_len);
    if (rc != ERR_OK)
        return rc;
    return tags_compose(&text, format, arena, out, why, cap);
}

/* Keep content and calls apart: content next to constrained calls must not look like a call. Where
 * calls are not constrained, they may appear in the content. */
static int form_keep_apart(const struct form *f, enum reply_format format, struct arena *arena,
                           struct grammar_part *out, char *why, size_t cap)
{
    bool held = form_has_calls(f) && (f->strict || f->allowed != NULL) && format != REPLY_PLAIN;

    if (f->kind == GRAMMAR_SCHEMA || f->kind == GRAMMAR_JSON_OBJECT ||
        (f->kind == GRAMMAR_REGEX && held))
        return calls_avoid(format, arena, out);
    if (f->kind == GRAMMAR_PARTS && !(held && calls_may_begin_bare(format)))
        return form_tags(f, held || format == REPLY_HARMONY ? format : REPLY_PLAIN, arena, out, why,
                         cap);
    if (!held || f->kind == GRAMMAR_CHOICE)
        return ERR_OK;
    (void)snprintf(why, cap,
                   "'%s': a %s is not supported together with strict or allowed tools, because "
                   "its texts could look like calls of this model",
                   f->param, f->kind == GRAMMAR_EBNF ? "grammar" : "structural tag");
    return ERR_UNSUPPORTED;
}

/* The content as one part. why is written only for errors that the compiler cannot explain. */
static int form_content(const struct form *f, enum reply_format format, struct arena *arena,
                        struct grammar_part *out, char *why, size_t cap)
{
    static const enum grammar_part_kind kinds[] = {
        [GRAMMAR_SCHEMA] = PART_SCHEMA, [GRAMMAR_JSON_OBJECT] = PART_SCHEMA,
        [GRAMMAR_REGEX] = PART_REGEX,   [GRAMMAR_CHOICE] = PART_CHOICE,
        [GRAMMAR_EBNF] = PART_EBNF,     [GRAMMAR_PARTS] = PART_SEQUENCE};
    struct grammar_part *choices;
    int rc;

    must(f->param != NULL);
    *out = (struct grammar_part){.kind = kinds[f->kind]};
    if (f->kind == GRAMMAR_PARTS)
        return form_keep_apart(f, format, arena, out, why, cap);
    if (f->kind != GRAMMAR_CHOICE) {
        rc = form_source(f, arena, &out->text, &out->len);
        if (f->kind == GRAMMAR_JSON_OBJECT) {
            out->text = "{\"type\":\"object\"}";
            out->len = strlen(out->text);
        }
        if (rc != ERR_OK)
            return rc;
        return form_keep_apart(f, format, arena, out, why, cap);
    }
    /* Choices become texts of equal rank. */
    choices = arena_zalloc(arena, f->source->n * sizeof *choices);
    if (choices == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < f->source->n; i++)
        choices[i] = (struct grammar_part){.kind = PART_TEXT,
                                           .text = f->source->items[i].text,
                                           .len = f->source->items[i].text_len};
    out->parts = choices;
    out->n_parts = f->source->n;
    return ERR_OK;
}

/* --- the reasoning ------------------------------------------------------------------------ */

/* A constant text as a part. */
static struct grammar_part form_text(const char *text)
{
    return (struct grammar_part){.kind = PART_TEXT, .text = text, .len = strlen(text)};
}

/* A reasoning with its tags: a sequence of at most 4 parts. inside: the opening tag is in the
 * prompt. */
static size_t form_reasoning(const struct form_model *m, bool inside, struct grammar_part *parts)
{
    static const char space[] = SPACE;
    size_t n = 0;

    if (!inside)
        parts[n++] = form_text(reply_reason_open(m->reasoning));
    parts[n++] = (struct grammar_part){.kind = PART_FREE};
    parts[n++] = form_text(reply_reason_close(m->reasoning));
    parts[n++] = (struct grammar_part){.kind = PART_REGEX, .text = space, .len = sizeof space - 1};
    return n;
}

/* --- all of it ---------------------------------------------------------------------------- */

/* The whole composition in *top, at most 4 parts. n_top is 0 when there is no constraint. */
static int form_compose(const struct form *f, const struct form_model *m, struct arena *arena,
                        struct grammar_part *top, size_t *n_top, struct reason *reason)
{
    enum reply_format format = form_reply_format(f, m->format);
    struct grammar_part *thought = arena_zalloc(arena, 4 * sizeof *thought);
    struct grammar_part *body = arena_zalloc(arena, 2 * sizeof *body);
    bool forced = form_forces(f);
    size_t n_body = 0;
    int rc = thought == NULL || body == NULL ? ERR_NO_MEMORY : ERR_OK;

    *n_top = 0;
    if (rc == ERR_OK && f->param != NULL && !forced)
        rc = form_content(f, m->chat ? format : REPLY_PLAIN, arena, &body[n_body++], reason->text,
                          sizeof reason->text);
    if (rc == ERR_OK && m->chat && (form_has_calls(f) || format == REPLY_HARMONY)) {
        rc = calls_compose(f, m, arena, body, &n_body, reason);
        if (rc != ERR_OK && reason->text[0] != '\0')
            reason->param = "tools";
    }
    if (rc != ERR_OK || n_body == 0) /* a model without calls that need not make any */
        return rc;
    if (m->chat && format != REPLY_HARMONY && m->start == FORM_REASONS) {
        *n_top = form_reasoning(m, true, top);
    } else if (m->chat && format != REPLY_HARMONY && m->start == FORM_MAY_REASON) {
        top[(*n_top)++] = (struct grammar_part){.kind = PART_REPEAT,
                                                .parts = thought,
                                                .n_parts = form_reasoning(m, false, thought),
                                                .max = 1};
    }
    top[(*n_top)++] =
        n_body == 1 ? body[0]
                    : (struct grammar_part){.kind = PART_CHOICE, .parts = body, .n_parts = n_body};
    return ERR_OK;
}

/* Turn a compiler's error into a sentence for the client: "'FIELD': TEXT, at PLACE". */
static void form_explain(const char *what, const struct grammar_error *e, struct reason *reason)
{
    const char *at = e->where[0] == '\0' ? "" : ", at ";

    if (e->text[0] != '\0')
        (void)snprintf(reason->text, sizeof reason->text, "'%s': %s%s%s", what, e->text, at,
                       e->where);
}

/* The compiler sees one grammar and does not know the tools. Compile each tool's parameters alone,
 * to find the one that caused the error. */
static bool form_blame_tool(const struct form *f, const struct form_model *m,
                            struct compiled_cache *cache, struct reason *reason)
{
    for (uint32_t i = 0; f->tools != NULL && i < f->tools->n; i++) {
        const struct json *function = json_get(&f->tools->items[i], "function");
        const struct json *schema = json_get_kind(function, "parameters", JSON_OBJECT);
        struct grammar_request request = {.kind = GRAMMAR_SCHEMA};
        struct grammar_error error = {.text = ""};
        struct compiled *st = NULL;
        struct buf buf = {.limit = GRAMMAR_SOURCE_MAX};
        char what[64];

        if (schema == NULL)
            continue;
        json_write(&buf, schema, JSON_COMPACT);
        request.source = buf.bytes;
        request.source_len = buf.len;
        (void)snprintf(what, sizeof what, "tools[%u].function.parameters", i);
        if (!buf.failed && compiled_cache_get(cache, &request, m->tenant, &st, &error) != ERR_OK)
            form_explain(what, &error, reason);
        compiled_unref(st);
        buf_fini(&buf);
        if (reason->text[0] != '\0')
            return true;
    }
    return false;
}

/* Choices without anything around them are compiled in a way of their own, because there may be
 * thousands. */
static int form_choices(const struct form *f, struct arena *arena, struct grammar_request *r)
{
    const char **choices = arena_alloc(arena, f->source->n * sizeof *choices);

    must(f->kind == GRAMMAR_CHOICE);
    if (choices == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < f->source->n; i++)
        choices[i] = f->source->items[i].text;
    *r = (struct grammar_request){
        .kind = GRAMMAR_CHOICE, .choices = choices, .n_choices = f->source->n};
    return ERR_OK;
}

/* Compile the form, or find it compiled. Errors name the field whose value is wrong. */
int form_compile(const struct form *f, const struct form_model *m, struct compiled_cache *cache,
                 struct arena *arena, struct compiled **out, struct reason *reason)
{
    struct grammar_error error = {.text = ""};
    struct grammar_part top[5] = {{.kind = PART_FREE}};
    /* Calls are written on one line, as models are trained to; additional white space would only
     * delay the end. */
    enum grammar_space space = f->param == NULL || form_forces(f) ? GRAMMAR_COMPACT : f->space;
    struct grammar_request request = {.kind = GRAMMAR_PARTS, .space = space, .parts = top};
    int rc;

    reason->param = "tools";
    if (f->param != NULL)
        reason->param = f->param;
    rc = form_compose(f, m, arena, top, &request.n_parts, reason);
    if (f->spacing != NULL && space != GRAMMAR_COMPACT) {
        request.space = GRAMMAR_SPACED;
        request.spacing = f->spacing->text;
        request.spacing_len = f->spacing->text_len;
    }
    if (rc == ERR_OK && request.n_parts == 1 && top[0].kind == PART_CHOICE && f->param != NULL &&
        f->kind == GRAMMAR_CHOICE && (!m->chat || !form_has_calls(f)))
        rc = form_choices(f, arena, &request);
    if (rc == ERR_OK && (request.kind != GRAMMAR_PARTS || request.n_parts > 0))
        rc = compiled_cache_get(cache, &request, m->tenant, out, &error);
    if (rc == ERR_OK || rc == ERR_NO_MEMORY || rc == ERR_OVERLOADED) {
        (void)snprintf(reason->text, sizeof reason->text, "%s", error.text);
        return rc;
    }
    if (rc == ERR_LIMIT && error.text[0] == '\0')
        (void)snprintf(error.text, sizeof error.text, "longer than %zu bytes", GRAMMAR_SOURCE_MAX);
    if (reason->text[0] == '\0' && (f->param != NULL || !form_blame_tool(f, m, cache, reason)))
        form_explain(reason->param, &error, reason);
    return rc;
}
