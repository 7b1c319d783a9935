/* SPDX-License-Identifier: Apache-2.0
 *
 * The inside of struct chat; for the chat*.c files only. */
#ifndef QUIRE_TEXT_TEMPLATE_CHAT_PARTS_H
#define QUIRE_TEXT_TEMPLATE_CHAT_PARTS_H

#include "text/template/chat.h"
#include "text/template/jinja.h"

/* The form in which a template reads the content of a role's messages. */
enum chat_form {
    CHAT_TEXT,   /* a text; lists of parts are joined */
    CHAT_EITHER, /* a text or a list of parts */
    CHAT_PARTS,  /* a list of parts only */
};

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES };

/* Names under which templates look for the reasoning of earlier turns. */
enum { CHAT_REASONING_CONTENT = 1, CHAT_REASONING = 2, CHAT_THINKING = 4 };

/* How a template treats messages. Determined by rendering small conversations (chat_habits.c),
 * because neither its source nor its syntax tree shows it as reliably. */
struct chat_habits {
    enum chat_form forms[CHAT_ROLES];
    unsigned reasoning;      /* names of reasoning that its source mentions */
    bool calls_without_text; /* it prints tool calls only if content is null */
    bool text_arguments;     /* it expects arguments of calls as JSON text, else as an object */
    bool bare_calls;         /* it reads name and arguments of a call beside its id */
    bool merges_system;      /* it prints only a system message that comes first */
    bool tools;              /* it prints the list of tools */
};

struct chat_template {
    struct jinja *jinja; /* NULL: there is no template */
    struct chat_habits habits;
};

struct chat {
    struct chat_template preset;
    struct chat_template tool_use; /* used for requests with tools, if it exists */
    struct arena arena;            /* tokenizer_config.json */
    const char *tokens[7];         /* texts of bos_token and so on; NULL: not named */
    enum reply_format format;
    enum reply_reasoning reasoning;
};

/* How to change messages; arena and why belong to the caller. */
struct chat_shaping {
    struct arena *arena;
    const struct chat_habits *habits;
    bool text_arguments;
    bool names_reasoning; /* copy reasoning to the names that the template reads */
    bool continues;       /* append CHAT_MARK to the last message's content */
    char *why;
    size_t why_cap;
};

/* Marks the end of the content that is to be continued while it is rendered; the prompt is cut
 * where the mark is found. The text and the space at its end are those that Hugging Face's
 * transformers use. */
#define CHAT_MARK "CONTINUE_FINAL_MESSAGE_TAG "

/* Make a list of messages in the form that the template expects; unchanged values are shared.
 * ERR_INVALID, ERR_NO_MEMORY. */
int chat_shape(struct chat_shaping *shaping, const struct json *messages,
               struct json *out) ERR_CHECKED;

/* Determine template->habits. source is the template's source. Costs about 20 renders of a few
 * messages. */
void chat_habits_find(const struct chat *chat, struct chat_template *template, const char *source);

/* Render messages that have the right form already. */
int chat_render_shaped(const struct chat *chat, const struct jinja *template,
                       const struct chat_request *request, const struct json *messages,
                       struct arena *arena, struct chat_prompt *out) ERR_CHECKED;

#endif
