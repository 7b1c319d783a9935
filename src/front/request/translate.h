/* Requests of other APIs, said as a chat: what POST /v1/messages and POST /v1/responses ask for
 * becomes a body as POST /v1/chat/completions takes it, which goes the chat's way from there on.
 *
 * A table for each API (translate_messages.c, translate_responses.c) says of every field whether it
 * is used, harmless or refused by name; one that nobody knows is passed over. A field that is null
 * counts as absent. What both have in common stands in translate.c. */
#ifndef QUIRE_FRONT_REQUEST_TRANSLATE_H
#define QUIRE_FRONT_REQUEST_TRANSLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

/* A translation under way, and what it came to. */
struct translation {
    struct arena *arena;
    char *why; /* out on error: a sentence for the client */
    size_t why_cap;
    const char *param;          /* the field that is being read, or was refused */
    const struct json *earlier; /* translate_responses_in */

    struct json_made chat;     /* members of the chat's body */
    struct json_made messages; /* of its messages */
    struct json_made kwargs;   /* of its chat_template_kwargs */

    uint32_t
        mark_s; /* seconds that marks (cache_control) want the prompt to be retained; 0: none */

    /* What one role said, until another speaks. */
    const char *role;        /* NULL: nothing is open */
    struct json_made texts;  /* its content */
    struct json_made calls;  /* members of tool_calls */
    struct json_made reason; /* texts of its reasoning */
};

/* Anthropic's request -> *chat, an object in the arena, which shares nodes with body. is_count: as
 * count_tokens has it, without max_tokens.
 * On error why is a sentence and *param the field. ERR_INVALID, ERR_UNSUPPORTED, ERR_NO_MEMORY. */
int translate_messages(struct json *chat, struct arena *arena, const struct json *body,
                       bool is_count, char *why, size_t why_cap, const char **param) ERR_CHECKED;

/* OpenAI's request for a response. */
struct translate_responses_in {
    const struct json *body;
    const struct json *earlier; /* list of the items that previous_response_id stands for; NULL:
                                   none are kept, so that it is refused */
};

/* The same of it. */
int translate_responses(struct json *chat, struct arena *arena,
                        const struct translate_responses_in *in, char *why, size_t why_cap,
                        const char **param) ERR_CHECKED;

/* Begin one. The client's own chat_template_kwargs of body are taken first. */
void translate_begin(struct translation *t, struct arena *arena, const struct json *body, char *why,
                     size_t why_cap);

/* --- fields -------------------------------------------------------------------------------- */

struct translate_row;
typedef int translate_fn(struct translation *t, const struct translate_row *row,
                         const struct json *v);

struct translate_row {
    const char *name;
    translate_fn *read;
    const char *chat_name; /* of the chat's field, where it is one; NULL: the same */
};

/* Read all members of body by the table. */
int translate_fields(struct translation *t, const struct translate_row *rows, size_t n_rows,
                     const struct json *body) ERR_CHECKED;

translate_fn translate_max_tokens; /* as translate_same, from 1 on */
translate_fn translate_same;       /* the chat has it as well; fields.c looks at it */
translate_fn translate_ignore;     /* has no bearing on the answer */
translate_fn translate_object;     /* neither, but must be an object */
translate_fn translate_text;       /* neither, but must be a string */
translate_fn translate_flag;       /* neither, but must be true or false */
translate_fn translate_refuse;     /* is not uploaded, unless the value asks for nothing */

/* Fields of sampling and of the prompt that quire adds to every API: rows of any table. */
#define TRANSLATE_EXTRAS                                                                           \
    {"min_p", translate_same, NULL}, {"min_tokens", translate_same, NULL},                         \
        {"seed", translate_same, NULL}, {"presence_penalty", translate_same, NULL},                \
        {"frequency_penalty", translate_same, NULL}, {"repetition_penalty", translate_same, NULL}, \
        {"stop_token_ids", translate_same, NULL}, {"ignore_eos", translate_same, NULL},            \
        {"priority", translate_same, NULL}, {"timeout_s", translate_same, NULL},                   \
        {"cache_salt", translate_same, NULL}, {"request_id", translate_same, NULL},                \
        {"cache_retention", translate_same, NULL}, {"logit_bias", translate_same, NULL},           \
        {"bad_words", translate_same, NULL}, {"allowed_token_ids", translate_same, NULL},          \
        {"structured_outputs", translate_same, NULL},                                              \
        {"split_special_tokens", translate_same, NULL},                                            \
    {                                                                                              \
        "skip_special_tokens", translate_same, NULL                                                \
    }

/* Write why; returns rc. */
int translate_fail(struct translation *t, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "'where' must be WANTED, not KIND"; ERR_INVALID. v may be NULL: it is missing. */
int translate_type(struct translation *t, const char *where, const char *wanted,
                   const struct json *v);

/* A member of obj that must be a text; may be empty. On error where is named. A content may hold
 * NULs, a name must not. */
int translate_member_content(struct translation *t, const struct json *obj, const char *name,
                             const char *where, const struct json **out) ERR_CHECKED;
int translate_member_text(struct translation *t, const struct json *obj, const char *name,
                          const char *where, const char **out) ERR_CHECKED;

/* A tool's name, description, parameters and strictness as a chat's tool, appended to tools. */
int translate_tool(struct translation *t, const struct json *tool, const char *schema_name,
                   const char *where, struct json_made *tools) ERR_CHECKED;

/* The tools of a request for a response; rows of its table. */
translate_fn translate_tools;

/* The name of a namespace's tool, in the arena; space "" for none. */
const char *translate_spaced(struct translation *t, const char *space, const char *name);

/* Which tool of a request for a response a called function stands for. */
struct translate_called {
    const char *space; /* its namespace, or NULL */
    const char *name;  /* within that; the function's own where there is no such tool */
    bool is_custom;    /* it takes a text: the argument `input` */
};

struct translate_called translate_find_tool(const struct json *request, const char *name);

/* A tool choice of one function by its name. */
void translate_choose(struct translation *t, const char *name);

/* A variable of the template, unless the client's own chat_template_kwargs has it. */
void translate_kwarg(struct translation *t, const char *name, const struct json *value);

/* A schema of the answer, as the chat's response_format. name may be NULL. */
void translate_schema(struct translation *t, const char *name, const struct json *schema,
                      const struct json *strict);

/* --- the conversation ------------------------------------------------------------------------ */

/* Speak as role. What the same role says in a row is one message: templates want turns. */
void translate_role(struct translation *t, const char *role);

/* What the role says. */
void translate_say(struct translation *t, const struct json *text);
void translate_think(struct translation *t, const struct json *text);
void translate_call(struct translation *t, const char *id, const char *name,
                    const struct json *arguments);

/* A message of its own: what a tool gave back. */
void translate_result(struct translation *t, const char *id, const struct json *content);

/* Texts of a list as one content, a line each: every template takes a text, not all take parts. */
struct json translate_text_of(struct translation *t, const struct json_made *texts);

/* The end: *chat when all went well. ERR_NO_MEMORY. */
int translate_end(struct translation *t, struct json *chat) ERR_CHECKED;

#endif
