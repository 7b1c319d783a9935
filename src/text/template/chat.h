/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: make the text of a prompt from a conversation, with the model's own template.
 *
 * Immutable after chat_open(): threads share it without locks. */
#ifndef QUIRE_TEXT_TEMPLATE_CHAT_H
#define QUIRE_TEXT_TEMPLATE_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/output/reply.h"
#include "text/spans.h"

struct chat;

/* The conversation to render. All pointers are borrowed for the call. */
struct chat_request {
    const struct json *messages;  /* list of objects, as in OpenAI's API */
    const struct json *tools;     /* list, or NULL */
    const struct json *documents; /* list, or NULL */
    const struct json *kwargs;    /* object of further variables (chat_template_kwargs), or NULL */
    bool add_generation_prompt;   /* end with the start of the assistant's answer */
    bool continue_final_message;  /* end inside the last message, so that the model continues it */
    int64_t now_unix_s;           /* current time for the template; 0: the system clock */
};

/* The result of a render. Start from {0}. */
struct chat_prompt {
    struct buf text;  /* contains no NUL */
    struct spans own; /* bytes of text that the template wrote itself, in the arena of the call; all
                         other bytes came from the request */
    bool raised;      /* after ERR_INVALID: the template rejected the messages */
    char why[512];    /* after an error: a sentence for the client */
};

void chat_prompt_fini(struct chat_prompt *prompt);

/* Load the template of a model folder. The first of these that exists is used: template_path (if
 * not NULL or ""), chat_template.jinja, chat_template of tokenizer_config.json (a text, or a list
 * of named ones: "tool_use" for requests with tools, else "default"), chat_template.json.
 *
 * Returns ERR_OK, also when the folder has no template (see chat_has_template()); ERR_NOT_FOUND
 * when template_path does not exist; ERR_IO, ERR_SYNTAX, ERR_INVALID, ERR_UNSUPPORTED,
 * ERR_NO_MEMORY with the file and the reason in why. */
int chat_open(struct chat **out, const char *dir, const char *template_path, char *why,
              size_t why_cap) ERR_CHECKED;
void chat_close(struct chat *chat); /* NULL is fine */

/* Replace the detected form of content: vLLM's "string", "openai" (lists of parts), or "auto",
 * which changes nothing. False for another word. Call before the first chat_render(). */
bool chat_force_content(struct chat *chat, const char *form);

/* The text of a part of content: of a plain text; of {"text": ...} with type text, input_text,
 * output_text or none; of {"refusal": ...} and {"thinking": ...}. NULL for other parts. */
const struct json *chat_part_text(const struct json *part);

bool chat_has_template(const struct chat *chat);

/* Does the template print the list of tools? Determined by chat_open(). */
bool chat_knows_tools(const struct chat *chat);

/* The format of the model's replies, as the template's source suggests (reply.h). */
enum reply_format chat_reply_format(const struct chat *chat);
enum reply_reasoning chat_reply_reasoning(const struct chat *chat);

/* Make the prompt, in *out. Tokenize it with add_special = false.
 *
 * chat_open() determines which form of messages a template expects, and messages are changed to
 * it: content that is a list of text parts stays a list if the template reads lists for this role,
 * else the texts are joined by newlines (and parts of other kinds are refused); missing or null
 * content of an assistant becomes "", or null where the template prints calls only then; arguments
 * of tool calls become an object or JSON text; reasoning is given under the names that the template
 * reads; later system messages are joined to the first if the template prints only that one.
 *
 * continue_final_message: the prompt ends where the last message's content ends, as with
 * Hugging Face's option of the same name.
 *
 *   arena   scratch memory for the call; out->own lies in it
 *
 * Returns ERR_OK; ERR_INVALID when the messages have the wrong form or the template raised;
 * ERR_UNSUPPORTED when the model has no template; ERR_LIMIT; ERR_NO_MEMORY. */
int chat_render(const struct chat *chat, const struct chat_request *request, struct arena *arena,
                struct chat_prompt *out) ERR_CHECKED;

#endif
