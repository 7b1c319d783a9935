/* SPDX-License-Identifier: Apache-2.0
 *
 * The first byte chooses Anthropic's API (its lowest bit: the count) or responses; the rest is a
 * request's body, said as a chat and read as one, as a front does before it renders. */
#include <string.h>

#include "base/must.h"
#include "front/request/fields.h"
#include "front/request/translate.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

static const struct names names = {.at = {"demo"}, .n = 1};

/* What is taken has messages with roles, and goes through the chat's table. */
static void chat_check(const struct json *chat)
{
    const struct json *messages = json_get_kind(chat, "messages", JSON_LIST);
    struct exchange x = {.format = EXCHANGE_CHAT};
    struct defaults defaults;
    struct fields f;
    struct reason reason = {.text = ""};
    struct buf text = {0};

    must(messages != NULL);
    for (uint32_t i = 0; i < messages->n; i++) {
        const struct json *content = json_get(&messages->items[i], "content");

        must(json_get_kind(&messages->items[i], "role", JSON_TEXT) != NULL && content != NULL);
        must(content->kind == JSON_TEXT || content->kind == JSON_LIST ||
             (content->kind == JSON_NULL && json_get(&messages->items[i], "tool_calls") != NULL));
    }
    json_write(&text, chat, JSON_COMPACT); /* walks the whole tree */
    must(text.failed || text.len > 0);
    buf_fini(&text);
    defaults_init(&defaults);
    if (fields_read(&f, &x, chat, &defaults, &names, &reason) != ERR_OK)
        must(reason.text[0] != '\0' && reason.param != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct arena a = {.limit_bytes = (size_t)64 << 20};
    const struct json *body = NULL;
    struct reason reason = {.text = ""};
    struct json chat;
    char *text;
    int rc;

    if (len == 0 || (text = arena_strndup(&a, (const char *)bytes + 1, len - 1)) == NULL)
        return 0;
    if (json_parse(&body, &a, text, len - 1, reason.text, sizeof reason.text) == ERR_OK &&
        body->kind == JSON_OBJECT) {
        reason.text[0] = '\0';
        rc = (bytes[0] & 2) != 0
                 ? translate_responses(&chat, &a, &(struct translate_responses_in){.body = body},
                                       &reason)
                 : translate_messages(&chat, &a, body, (bytes[0] & 1) != 0, &reason);
        if (rc == ERR_OK)
            chat_check(&chat);
        else
            must(reason.text[0] != '\0' && (reason.param != NULL || rc == ERR_NO_MEMORY));
    }
    arena_reset(&a);
    return 0;
}
