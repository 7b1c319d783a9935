/* What a chat is made of; for the chat*.c files alone. */
#ifndef QUIRE_TEXT_TEMPLATE_CHAT_PARTS_H
#define QUIRE_TEXT_TEMPLATE_CHAT_PARTS_H

#include "text/template/chat.h"
#include "text/template/jinja.h"

/* The form in which a template reads the content of a role's messages. */
enum chat_form {
    CHAT_TEXT,   /* a text; lists of parts are joined */
    CHAT_EITHER, /* both */
    CHAT_PARTS,  /* a list of parts only */
};

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES };

/* Names under which templates look for the reasoning of earlier turns. */
enum { CHAT_REASONING_CONTENT = 1, CHAT_REASONING = 2, CHAT_THINKING = 4 };

/* What a template does with messages, found out by rendering small conversations (chat_habits.c):
 * neither its text nor its syntax tree tells it as surely. */
struct chat_habits {
    enum chat_form forms[CHAT_ROLES];
    unsigned reasoning;      /* names that occur in its text */
    bool calls_without_text; /* it prints tool calls only where content is none */
    bool text_arguments;     /* it wants arguments of calls as JSON text, else as an object */
    bool merges_system;      /* it knows a system message only as the first one */
    bool tools;              /* it prints tools */
};

struct chat_template {
    struct jinja *jinja; /* NULL: there is none */
    struct chat_habits habits;
};

struct chat {
    struct chat_template preset;
    struct chat_template tool_use; /* used when there are tools, if there is one */
    struct arena arena;            /* tokenizer_config.json */
    const char *tokens[7];         /* contents of bos_token and so on; NULL: not named */
    enum reply_format format;
    enum reply_reasoning reasoning;
};

/* How to shape messages; arena and why are the caller's. */
struct chat_shaping {
    struct arena *arena;
    const struct chat_habits *habits;
    bool text_arguments;
    bool names_reasoning; /* reasoning goes under the names that the template reads */
    bool continues;       /* CHAT_MARK is added to the last message's content */
    char *why;
    size_t why_cap;
};

/* Stands behind the content that is to be continued, while it is rendered: the prompt ends where it
 * is found. The same text, with the same white space behind it, as transformers takes. */
#define CHAT_MARK "CONTINUE_FINAL_MESSAGE_TAG "

/* Messages as the template wants them: a new list, which shares what is unchanged. ERR_INVALID,
 * ERR_NO_MEMORY. */
int chat_shape(struct chat_shaping *shaping, const struct json *messages,
               struct json *out) ERR_CHECKED;

/* Find out; source is the template's text. Costs some 20 renders of a few messages. */
void chat_habits_find(const struct chat *chat, struct chat_template *template, const char *source);

/* Render messages that need no more shaping. */
int chat_render_shaped(const struct chat *chat, const struct jinja *template,
                       const struct chat_request *request, const struct json *messages,
                       struct arena *arena, struct chat_prompt *out) ERR_CHECKED;

#endif
