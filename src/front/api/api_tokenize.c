/* SPDX-License-Identifier: Apache-2.0
 *
 * POST /tokenize and /detokenize, in vLLM's shapes. */
#include <string.h>

#include "front/api/api.h"
#include "front/request/lax.h"

/* Answer with the text of a buffer, and free it. */
void api_reply_buf(struct exchange *x, struct buf *b)
{
    if (b->failed)
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
    else
        exchange_reply(x, 200, "application/json", b->bytes, b->len);
    buf_fini(b);
}

/* return_token_strs: the tokens as they are written in the tokenizer's files. */
static void api_add_written(struct buf *b, const struct served *m, const struct token_list *ids)
{
    buf_add_text(b, ",\"token_strs\":[");
    for (size_t i = 0; i < ids->len; i++) {
        size_t len;
        const char *text = tokenizer_written(m->tokenizer, ids->ids[i], &len);

        buf_add_comma(b, i > 0);
        buf_add_json_string(b, text == NULL ? "" : text, len);
    }
    buf_add_byte(b, ']');
}

/* {"prompt": text} or {"messages": [...]} becomes {"count": N, "max_model_len": N, "tokens":
 * [ids]}. */
void api_tokenize(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *prompt = json_get(body, "prompt");
    bool chat = prompt == NULL && json_get(body, "messages") != NULL;
    struct token_list ids = {0};
    struct link_state state;
    struct chat_prompt text = {0};
    struct buf buf = {0};
    int rc;

    (void)f;
    if (!chat && (prompt == NULL || prompt->kind != JSON_TEXT)) {
        exchange_reply_error(x, ERR_INVALID, "'prompt' must be a string, or give 'messages'",
                             "prompt", 0);
        return;
    }
    if (chat && json_get(body, "chat_template") != NULL &&
        json_get(body, "chat_template")->kind != JSON_NULL) { /* refused as in chats */
        exchange_reply_error(x, ERR_UNSUPPORTED, "'chat_template' is not supported",
                             "chat_template", 0);
        return;
    }
    if (chat && !api_render_chat(x, body, &text)) {
        chat_prompt_fini(&text);
        return;
    }
    /* A rendered chat already has the special tokens that its template writes, so none are added
     * unless the client asks. Spans of the prompt that came from the client may be kept from
     * becoming control tokens. */
    if (chat)
        rc = tokenizer_encode_own(x->served->tokenizer, buf_text(&text.text), text.text.len,
                                  lax_get_flag(body, "add_special_tokens", false),
                                  x->splits_special ? &text.own : NULL, &ids);
    else
        rc = tokenizer_encode(x->served->tokenizer, prompt->text, prompt->text_len,
                              lax_get_flag(body, "add_special_tokens", true), &ids);
    chat_prompt_fini(&text);
    if (rc != ERR_OK) {
        exchange_reply_error(x, rc, NULL, "prompt", 0);
        token_list_fini(&ids);
        return;
    }
    /* max_model_len is 0 before the first engine. */
    engines_read_state(&x->served->engines, &state, x->arrival_us);
    buf_printf(&buf, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids.len,
               state.max_model_len);
    for (size_t i = 0; i < ids.len; i++) {
        buf_add_comma(&buf, i > 0);
        buf_printf(&buf, "%d", ids.ids[i]);
    }
    buf_add_byte(&buf, ']');
    if (lax_get_flag(body, "return_token_strs", false))
        api_add_written(&buf, x->served, &ids);
    buf_add_byte(&buf, '}');
    token_list_fini(&ids);
    api_reply_buf(x, &buf);
}

/* {"tokens": [ids]} becomes {"prompt": text}. */
void api_detokenize(struct front *f, struct exchange *x, const struct json *body)
{
    const struct json *tokens = json_get_kind(body, "tokens", JSON_LIST);
    struct token_list ids = {0};
    struct buf text = {0};
    struct buf buf = {0};
    int rc = tokens == NULL ? ERR_INVALID : ERR_OK;

    (void)f;
    /* The detokenizer must only see ids that exist. */
    for (uint32_t i = 0; rc == ERR_OK && i < tokens->n; i++) {
        const struct json *id = &tokens->items[i];

        if (id->kind != JSON_INT || id->whole < 0 ||
            id->whole >= tokenizer_n_vocab(x->served->tokenizer))
            rc = ERR_INVALID;
        else
            rc = token_list_add(&ids, (int32_t)id->whole);
    }
    if (rc != ERR_OK) {
        exchange_reply_error(x, rc, "'tokens' must be a list of token ids of this model", "tokens",
                             0);
    } else {
        /* Special tokens are shown. */
        tokenizer_decode(x->served->tokenizer, ids.ids, ids.len, false, &text);
        buf_add_text(&buf, "{\"prompt\":");
        buf_add_json_string(&buf, buf_text(&text), text.len);
        buf_add_byte(&buf, '}');
        /* A text that lacks its end must not be sent. */
        buf.failed = buf.failed || text.failed;
        api_reply_buf(x, &buf);
    }
    buf_fini(&text);
    token_list_fini(&ids);
}
