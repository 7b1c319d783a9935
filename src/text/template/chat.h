/* Chats: a conversation becomes the text of a prompt by the model's own template.
 *
 * Immutable after chat_open(): shared by threads without locks. */
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

/* What to render. All borrowed for the call. */
struct chat_request {
    const struct json *messages;  /* list of objects, as OpenAI's API has them */
    const struct json *tools;     /* list, or NULL */
    const struct json *documents; /* list, or NULL */
    const struct json *kwargs;    /* object of further variables (chat_template_kwargs), or NULL */
    bool add_generation_prompt;   /* end with the start of the assistant's answer */
    bool continue_final_message;  /* end inside the last message, so that it goes on */
    int64_t now_unix_s;           /* what the template takes for now; 0 stands for the clock */
};

/* What comes of it. Start from {0}. */
struct chat_prompt {
    struct buf text;  /* without a NUL inside */
    struct spans own; /* bytes of text that the template wrote itself, in the arena of the call: all
                         others came out of the request */
    bool raised;      /* after ERR_INVALID: the template did not take the messages */
    char why[512];    /* after an error: a sentence for the client */
};

void chat_prompt_fini(struct chat_prompt *prompt);

/* Load the template of a model folder: template_path if not NULL or "", else
 * chat_template.jinja, else chat_template of tokenizer_config.json (a text, or a list of named
 * ones: "tool_use" when there are tools, else "default"), else chat_template.json.
 *
 * Returns ERR_OK, also when the folder has no template (chat_has_template() says so);
 * ERR_NOT_FOUND when template_path does not exist; ERR_IO, ERR_SYNTAX, ERR_INVALID,
 * ERR_UNSUPPORTED, ERR_NO_MEMORY with the file and the reason in why. */
int chat_open(struct chat **out, const char *dir, const char *template_path, char *why,
              size_t why_cap) ERR_CHECKED;
void chat_close(struct chat *chat); /* NULL is fine */

/* The form of content that the template gets, in place of the one that was found: vLLM's "string",
 * "openai" (lists of parts), or "auto", which changes nothing. False for another word. Before the
 * first chat_render(). */
bool chat_force_content(struct chat *chat, const char *form);

/* The text of a part of content: a text itself, {"text": ...} of type text, input_text, output_text
 * or none, {"refusal": ...} or {"thinking": ...} of that type. NULL: it is none. */
const struct json *chat_part_text(const struct json *part);

bool chat_has_template(const struct chat *chat);

/* Does the prompt say which tools there are? Found out at chat_open(). */
bool chat_knows_tools(const struct chat *chat);

/* What the template's text says of the model's replies (reply.h). */
enum reply_format chat_reply_format(const struct chat *chat);
enum reply_reasoning chat_reply_reasoning(const struct chat *chat);

/* Make the prompt, in *out. Tokenize it with add_special = false.
 *
 * What a template wants is found out at chat_open(), and messages are shaped accordingly: content
 * that is a list of text parts is passed as such where the role's are read so, else joined by
 * newlines (other kinds of parts are refused then); an assistant's content that is null or missing
 * becomes "" (null where calls are printed only then); arguments of tool calls become an object, or
 * JSON text; reasoning comes under the names that the template looks for; messages of the system's
 * that come later join the first one where no others are known.
 *
 * continue_final_message: the prompt ends where the last message's content does, as transformers'
 * apply_chat_template() has it.
 *
 *   arena   scratch for the call, and for out->own
 *
 * Returns ERR_OK; ERR_INVALID when the messages are not as they must be or the template raised;
 * ERR_UNSUPPORTED when the model has no template; ERR_LIMIT; ERR_NO_MEMORY. */
int chat_render(const struct chat *chat, const struct chat_request *request, struct arena *arena,
                struct chat_prompt *out) ERR_CHECKED;

#endif
