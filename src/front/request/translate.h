/* SPDX-License-Identifier: Apache-2.0
 *
 * Translation of requests of other APIs to chats: POST /v1/messages and POST /v1/responses become a
 * body of POST /v1/chat/completions, and are then handled like one.
 *
 * A table per API (translate_messages.c, translate_responses.c) defines for every field whether it
 * is used, ignored as harmless, or refused by name. Unknown fields are ignored; a field that is
 * null counts as absent. translate.c has the common part. */
#ifndef QUIRE_FRONT_REQUEST_TRANSLATE_H
#define QUIRE_FRONT_REQUEST_TRANSLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/reason.h"

/* The state of a translation, and its result. */
struct translation {
    struct arena *arena;
    char *why; /* out on error: a sentence for the client */
    size_t why_cap;
    const char *param;          /* the field being read, or the refused one */
    const struct json *earlier; /* items of the previous response; see translate_responses_in */

    struct json_made chat;     /* members of the chat's body */
    struct json_made messages; /* of its messages */
    struct json_made kwargs;   /* of its chat_template_kwargs */

    uint32_t mark_s; /* seconds of retention that cache_control marks ask for; 0: none */

    /* The open turn. */
    const char *role;        /* of the open turn; NULL: none is open */
    struct json_made texts;  /* its content */
    struct json_made calls;  /* members of tool_calls */
    struct json_made reason; /* texts of its reasoning */
};

/* Translate a request of Anthropic's to *chat, an object in the arena that shares nodes with body.
 * is_count: the request is one of count_tokens, so max_tokens is optional. On an error
 * *reason is the client's. ERR_INVALID, ERR_UNSUPPORTED, ERR_NO_MEMORY. */
int translate_messages(struct json *chat, struct arena *arena, const struct json *body,
                       bool is_count, struct reason *reason) ERR_CHECKED;

/* A request of OpenAI's /v1/responses. */
struct translate_responses_in {
    const struct json *body;
    const struct json *earlier; /* the items of previous_response_id's conversation; NULL: responses
                                   are not stored, so that the field is refused */
};

/* Translate it, as translate_messages(). */
int translate_responses(struct json *chat, struct arena *arena,
                        const struct translate_responses_in *in, struct reason *reason) ERR_CHECKED;

/* Begin a translation. chat_template_kwargs of body take precedence over those added later. */
void translate_begin(struct translation *t, struct arena *arena, const struct json *body, char *why,
                     size_t why_cap);

/* --- fields -------------------------------------------------------------------------------- */

struct translate_row;
typedef int translate_fn(struct translation *t, const struct translate_row *row,
                         const struct json *v);

struct translate_row {
    const char *name;
    translate_fn *read;
    const char *chat_name; /* name of the chat's field; NULL: the same name */
};

/* Read all members of body by the table. */
int translate_fields(struct translation *t, const struct translate_row *rows, size_t n_rows,
                     const struct json *body) ERR_CHECKED;

translate_fn translate_max_tokens; /* as translate_same; must be at least 1 */
translate_fn translate_same;       /* copied to the chat; fields.c checks it */
translate_fn translate_ignore;     /* does not affect the answer */
translate_fn translate_object;     /* likewise, but must be an object */
translate_fn translate_text;       /* likewise, but must be a string */
translate_fn translate_flag;       /* likewise, but must be true or false */
translate_fn translate_refuse;     /* unsupported: refused unless the value switches it off */

/* Fields that quire accepts in every API; for use as rows of a table. */
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
        {"num_speculative_tokens", translate_same, NULL},                                          \
    {                                                                                              \
        "skip_special_tokens", translate_same, NULL                                                \
    }

/* Write a formatted sentence to why; returns rc. */
int translate_fail(struct translation *t, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "'where' must be WANTED, not KIND", or "'where' is required" when v is NULL. Returns
 * ERR_INVALID. */
int translate_type(struct translation *t, const char *where, const char *wanted,
                   const struct json *v);

/* A member of obj that must be a text, possibly empty; where names obj in errors. Content may hold
 * NULs, a name (translate_member_text()) must not. */
int translate_member_content(struct translation *t, const struct json *obj, const char *name,
                             const char *where, const struct json **out) ERR_CHECKED;
int translate_member_text(struct translation *t, const struct json *obj, const char *name,
                          const char *where, const char **out) ERR_CHECKED;

/* Append to tools a chat's tool with this tool's name, description, parameters and strictness. */
int translate_tool(struct translation *t, const struct json *tool, const char *schema_name,
                   const char *where, struct json_made *tools) ERR_CHECKED;

/* Reads the field `tools` of /v1/responses. */
translate_fn translate_tools;

/* The function's name for a tool in a namespace: SPACE__NAME, in the arena; NAME when space is
 * "". */
const char *translate_spaced(struct translation *t, const char *space, const char *name);

/* The tool of /v1/responses from which a called function was made. */
struct translate_called {
    const char *space; /* its namespace, or NULL */
    const char *name;  /* within the namespace; the function's name when no tool has it */
    bool is_custom;    /* it takes a text: the argument `input` */
};

struct translate_called translate_find_tool(const struct json *request, const char *name);

/* Set tool_choice to one function. */
void translate_choose(struct translation *t, const char *name);

/* Set a variable of the template, unless the client's own chat_template_kwargs has it. */
void translate_kwarg(struct translation *t, const char *name, const struct json *value);

/* Set response_format to a JSON schema. name may be NULL. */
void translate_schema(struct translation *t, const char *name, const struct json *schema,
                      const struct json *strict);

/* --- the conversation ------------------------------------------------------------------------ */

/* Open a turn of this role, unless it is open. */
void translate_role(struct translation *t, const char *role);

/* Add text, reasoning or a tool call to the open turn. */
void translate_say(struct translation *t, const struct json *text);
void translate_think(struct translation *t, const struct json *text);
void translate_call(struct translation *t, const char *id, const char *name,
                    const struct json *arguments);

/* Add a tool's result, which is a message of its own. */
void translate_result(struct translation *t, const char *id, const struct json *content);

/* Join texts to one content, with line feeds: all templates take a text, not all take parts. */
struct json translate_text_of(struct translation *t, const struct json_made *texts);

/* Close the last turn and make *chat. ERR_NO_MEMORY. */
int translate_end(struct translation *t, struct json *chat) ERR_CHECKED;

#endif
