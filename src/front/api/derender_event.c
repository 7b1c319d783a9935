/* SPDX-License-Identifier: Apache-2.0
 *
 * Derendering a stream event by event. The server keeps nothing between requests: the client sends
 * the state, with the ids of each choice and the number of ids already turned into text. All of
 * them go through detokenizer and reply parser again, first the old ones without output, then the
 * others, whose output is the delta.
 *
 *   chunk   {"choices": [{"index": 0, "token_ids": [9, 4]}]}
 *   state   {"created": 1, "choices": [{"index": 0, "n_said": 2, "token_ids": [5, 7]}]}
 *
 * Here 5 and 7 are replayed, the text of 9 and 4 is the delta, and the next state has "n_said": 4
 * and the ids 5, 7, 9 and 4. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/logprobs.h"
#include "front/api/api.h"
#include "front/api/derender.h"

/* The output of one choice in this event. */
struct piece {
    struct gen *g;
    const struct json *choice; /* of the event */
    const struct json *before; /* its entry in the state; NULL: this is its first event */
    int idx;
    bool says;    /* false while old ids are being replayed */
    int call;     /* the call whose JSON is open; -1: none */
    size_t n_now; /* ids turned into text so far, this event included */
    struct buf content, reasoning, calls;
};

/* --- the reply -----------------------------------------------------------------------------
 *
 * Pieces of calls are JSON members of tool_calls:
 * {"index":0,"id":...,"function":{"name":...,"arguments":"..."}}. One stays open until another call
 * begins or the event ends. */

/* End the JSON of the open call, if there is one. */
static void piece_close_call(struct piece *p)
{
    if (p->call >= 0)
        buf_add_text(&p->calls, "\"}}");
    p->call = -1;
}

/* Append a piece of a call. A call that began in an earlier event has only its index here, and no
 * id and name: clients add the pieces up by index. */
static void piece_call(struct piece *p, const struct reply_event *e)
{
    char id[40];

    /* Another call than the open one: close that, and begin this. */
    if (e->kind == REPLY_CALL_BEGIN || p->call != e->call) {
        piece_close_call(p);
        buf_printf(&p->calls, "%s{\"index\":%d,", p->calls.len == 0 ? "" : ",", e->call);
        if (e->kind == REPLY_CALL_BEGIN) {
            answer_call_id(p->g, e->call, id);
            buf_printf(&p->calls, "\"id\":\"%s\",\"type\":\"function\",", id);
        }
        buf_add_text(&p->calls, "\"function\":{");
        if (e->kind == REPLY_CALL_BEGIN) {
            buf_add_text(&p->calls, "\"name\":");
            buf_add_json_string(&p->calls, e->bytes, e->len);
            buf_add_byte(&p->calls, ',');
        }
        buf_add_text(&p->calls, "\"arguments\":\"");
        p->call = e->call;
    }
    if (e->kind == REPLY_CALL_ARGS)
        buf_add_json_text(&p->calls, e->bytes, e->len);
}

/* The reply parser's callback: count calls, and add visible, new text to the delta. */
static void piece_said(void *arg, const struct reply_event *e)
{
    struct piece *piece = arg;
    const struct exchange *x = piece->g->exchange;
    bool is_call = e->kind != REPLY_CONTENT && e->kind != REPLY_REASON;

    /* As in an answer of this server. */
    if ((e->kind == REPLY_REASON && x->hides_reasoning) || (is_call && e->call > 0 && x->one_call))
        return;
    piece->g->speech->n_calls += e->kind == REPLY_CALL_BEGIN;
    if (!piece->says)
        return;
    switch (e->kind) {
    case REPLY_CONTENT: buf_add(&piece->content, e->bytes, e->len); break;
    case REPLY_REASON: buf_add(&piece->reasoning, e->bytes, e->len); break;
    case REPLY_CALL_BEGIN:
    case REPLY_CALL_ARGS: piece_call(piece, e); break;
    case REPLY_CALL_END: piece_close_call(piece); break;
    }
}

/* Pass the detokenizer's text to the reply parser, or to the content if there is none. */
static void piece_hear(struct piece *p)
{
    struct gen *g = p->g;
    const char *text = buf_text(&g->text);

    if (g->speech == NULL && p->says)
        buf_add(&p->content, text, g->text.len);
    else if (g->speech != NULL && reply_push(&g->speech->reply, text, g->text.len) != ERR_OK)
        g->text.failed = true;
    buf_clear(&g->text);
}

/* --- choices -------------------------------------------------------------------------------- */

/* The number of characters of the first n tokens: bytes that do not continue one. */
static uint32_t piece_chars(const struct piece *p, size_t n)
{
    uint32_t chars = 0;

    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *text = tokenizer_bytes(p->g->detok.tokenizer, p->g->tokens.ids[i], &len);

        for (size_t k = 0; k < len; k++)
            chars += ((unsigned char)text[k] & 0xc0) != 0x80;
    }
    return chars;
}

/* The number of ids that may become text. A special token at the end waits for the next event,
 * because it may be the one that ended the text; then it is never shown. */
static size_t piece_end(const struct piece *p, bool by_length)
{
    size_t n = p->g->tokens.len;

    if (n == 0 || by_length || p->g->detok.include_stop ||
        !tokenizer_is_skipped(p->g->exchange->served->tokenizer, p->g->tokens.ids[n - 1]))
        return n;
    return n - 1;
}

/* Send all ids of the choice through detokenizer and parser; those from n_before on make the delta.
 * Before it, `says` is false and the output is dropped. */
static void piece_say(struct piece *p, size_t n_before)
{
    const struct json *why = json_get_kind(p->choice, "finish_reason", JSON_TEXT);
    bool by_length = why != NULL && json_is_text(why, "length");
    struct gen *g = p->g;
    size_t end = piece_end(p, by_length);

    /* A client may send fewer ids than the state had counted, but text that was sent stays sent. */
    if (end < n_before)
        end = n_before;
    for (size_t i = 0; i < end && g->detok.status == DETOK_GOING; i++) {
        if (i == n_before) {
            piece_hear(p);
            p->says = true;
        }
        (void)detok_push(&g->detok, g->tokens.ids[i], &g->text);
    }
    piece_hear(p); /* a text that had stopped before adds nothing */
    p->says = true;
    p->n_now = end;
    /* Offsets of log probabilities count from the first event on. */
    g->told_chars =
        piece_chars(p, g->tokens.len - json_get_kind(p->choice, "token_ids", JSON_LIST)->n);
    /* Without finish_reason more events follow, so a character that is not complete waits. */
    if (why == NULL)
        return;
    (void)detok_finish(&g->detok, &g->text);
    piece_hear(p);
    if (g->speech != NULL && reply_finish(&g->speech->reply) != ERR_OK)
        g->text.failed = true;
    if (by_length && g->detok.status != DETOK_STOPPED)
        g->finish = GEN_LENGTH;
    else
        g->finish = GEN_STOP;
}

/* Read the choice's ids, of the state and of this event. False after an error answer. */
static bool piece_read(struct exchange *x, struct piece *p)
{
    const struct json *ids = json_get_kind(p->choice, "token_ids", JSON_LIST);
    const struct json *before = json_get_kind(p->before, "token_ids", JSON_LIST);
    int64_t n_said = json_get_int(p->before, "n_said", 0);
    const char *param = "stream_state";
    struct link_state engine;
    char why[160] = "";
    int rc = ERR_OK;

    engines_read_state(&x->served->engines, &engine, 0);
    if (before != NULL)
        rc = gen_add_ids(p->g, before, why, sizeof why);
    if (rc == ERR_OK && (n_said < 0 || (size_t)n_said > p->g->tokens.len)) {
        (void)snprintf(why, sizeof why,
                       "'n_said' of choice %d must be from 0 to its number of tokens", p->idx);
        rc = ERR_INVALID;
    }
    if (rc == ERR_OK) {
        param = "generate_chunk";
        if (ids == NULL)
            rc = ERR_INVALID;
        else
            rc = gen_add_ids(p->g, ids, why, sizeof why);
    }
    /* Without this bound, a client could make the server parse any amount of text again with each
     * event. */
    if (rc == ERR_OK && engine.max_model_len > 0 && p->g->tokens.len > engine.max_model_len) {
        (void)snprintf(why, sizeof why, "choice %d has more token_ids than a context's %u", p->idx,
                       engine.max_model_len);
        rc = ERR_INVALID;
    }
    if (rc == ERR_OK && !derender_logprobs(p->g, json_get(p->choice, "logprobs"))) {
        (void)snprintf(why, sizeof why,
                       "the logprobs of choice %d must have tokens as "
                       "token_id:N",
                       p->idx);
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK) {
        exchange_reply_error(
            x, rc, why[0] == '\0' ? "each choice must have a list of token_ids" : why, param, 0);
        return false;
    }
    piece_say(p, (size_t)n_said);
    return true;
}

/* --- the answer ----------------------------------------------------------------------------- */

/* The delta of a chat. The first event of a choice has the role and a content, even an empty one,
 * as a stream has it. */
static void piece_write_delta(struct buf *b, const struct piece *p)
{
    const char *comma = "";

    buf_add_text(b, "\"delta\":{");
    if (p->before == NULL) {
        buf_add_text(b, "\"role\":");
        buf_add_json_string(b, p->g->exchange->role, strlen(p->g->exchange->role));
        comma = ",";
    }
    if (p->content.len > 0 || p->before == NULL) {
        buf_printf(b, "%s\"content\":", comma);
        buf_add_json_string(b, buf_text(&p->content), p->content.len);
        comma = ",";
    }
    /* Under both names that clients use. */
    for (int i = 0; i < 2 && p->reasoning.len > 0; i++, comma = ",") {
        buf_printf(b, "%s\"%s\":", comma, i == 0 ? "reasoning" : "reasoning_content");
        buf_add_json_string(b, p->reasoning.bytes, p->reasoning.len);
    }
    if (p->calls.len > 0) {
        buf_printf(b, "%s\"tool_calls\":[", comma);
        buf_add(b, p->calls.bytes, p->calls.len);
        buf_add_byte(b, ']');
    }
    buf_add_byte(b, '}');
}

/* One choice of the answer. */
static void piece_write(struct buf *b, struct piece *p)
{
    struct gen *g = p->g;

    piece_close_call(p);
    buf_printf(b, "{\"index\":%d,", p->idx);
    if (g->exchange->format == EXCHANGE_CHAT) {
        piece_write_delta(b, p);
        buf_add_byte(b, ',');
        logprobs_write_chat(b, g);
    } else {
        buf_add_text(b, "\"text\":");
        buf_add_json_string(b, buf_text(&p->content), p->content.len);
        buf_add_byte(b, ',');
        logprobs_write_text(b, g);
    }
    buf_add_byte(b, ',');
    answer_reasons(g->exchange, b, g);
    buf_add_byte(b, '}');
    b->failed = b->failed || p->content.failed || p->reasoning.failed || p->calls.failed ||
                g->text.failed || g->told.failed;
}

/* The next state: the choices of this event, then those of the old state that it does not touch. */
static void write_state(struct buf *b, const struct exchange *x, const struct json *state,
                        const struct piece *pieces, uint32_t n)
{
    const struct json *choices = json_get_kind(state, "choices", JSON_LIST);
    const char *comma = "";

    buf_printf(b, ",\"stream_state\":{\"created\":%lld,\"choices\":[", (long long)x->created);
    for (uint32_t i = 0; i < n; i++, comma = ",") {
        buf_printf(b, "%s{\"index\":%d,\"n_said\":%zu,", comma, pieces[i].idx, pieces[i].n_now);
        answer_ids(b, "token_ids", pieces[i].g->tokens.ids, pieces[i].g->tokens.len);
        buf_add_byte(b, '}');
    }
    for (uint32_t i = 0; choices != NULL && i < choices->n; i++) {
        bool is_told = false;

        for (uint32_t k = 0; k < n; k++)
            is_told = is_told || pieces[k].before == &choices->items[i];
        if (is_told)
            continue;
        buf_add_text(b, comma);
        json_write(b, &choices->items[i], JSON_EXACT);
        comma = ",";
    }
    buf_add_text(b, "]}}");
}

/* The answer: the event as /v1/chat/completions or /v1/completions would have sent it, and the next
 * state. */
static void write_answer(struct exchange *x, const struct json *event, const struct json *state,
                         struct piece *pieces, uint32_t n)
{
    const struct json *usage = json_get_kind(event, "usage", JSON_OBJECT);
    struct buf buf = {.limit = x->arena.limit_bytes};

    buf_add_text(&buf, "{\"chunk\":");
    answer_object(x, &buf,
                  x->format == EXCHANGE_CHAT ? "chat.completion.chunk" : "text_completion");
    buf_add_text(&buf, ",\"choices\":[");
    for (uint32_t i = 0; i < n; i++) {
        buf_add_comma(&buf, i > 0);
        piece_write(&buf, &pieces[i]);
    }
    buf_add_text(&buf, "],\"usage\":");
    if (usage == NULL)
        buf_add_text(&buf, "null");
    else
        json_write(&buf, usage, JSON_EXACT);
    buf_add_byte(&buf, '}');
    write_state(&buf, x, state, pieces, n);
    exchange_reply_json(x, &buf);
}

/* --- requests ------------------------------------------------------------------------------- */

/* The entry of a choice in the state; NULL: its first event. */
static const struct json *find_before(const struct json *state, int idx)
{
    const struct json *choices = json_get_kind(state, "choices", JSON_LIST);

    for (uint32_t i = 0; choices != NULL && i < choices->n; i++) {
        if (json_get_int(&choices->items[i], "index", -1) == idx)
            return &choices->items[i];
    }
    return NULL;
}

/* Find out where the replies began, and set their parsers up. False after an error answer. */
static bool listen(struct exchange *x, const struct json *request, struct piece *pieces, uint32_t n)
{
    struct chat_prompt prompt = {0};
    bool fine = request == NULL || api_render_chat(x, request, &prompt);

    for (uint32_t i = 0; i < n && fine; i++) {
        struct gen *g = pieces[i].g;
        struct reply_options options;

        if (g->speech == NULL)
            continue;
        options = g->speech->reply.o;
        reply_fini(&g->speech->reply);
        if (request == NULL) { /* the beginning of the reply is unknown: its text is not parsed */
            g->speech = NULL;
            g->detok.skip_special = true;
            continue;
        }
        reply_init(&g->speech->reply, &options, piece_said, &pieces[i]);
    }
    if (fine && request != NULL && x->n_gens > 0)
        (void)gen_begin(x->gens, x->n_gens, &prompt.text);
    chat_prompt_fini(&prompt);
    return fine;
}

/* Make a piece of each choice in the event. False after an error answer. */
static bool place(struct front *f, struct exchange *x, const struct json *choices,
                  const struct json *state, struct piece *pieces)
{
    char why[128];

    for (uint32_t i = 0; i < choices->n; i++) {
        int64_t idx = json_get_int(&choices->items[i], "index", -1);

        if (idx < 0 || idx >= f->settings.max_choices) {
            (void)snprintf(why, sizeof why, "a choice's 'index' must be from 0 to %d",
                           (int)f->settings.max_choices - 1);
            exchange_reply_error(x, ERR_INVALID, why, "generate_chunk", 0);
            return false;
        }
        x->gens[i].index = (int)idx;
        pieces[i] = (struct piece){.g = &x->gens[i],
                                   .choice = &choices->items[i],
                                   .before = find_before(state, (int)idx),
                                   .idx = (int)idx,
                                   .call = -1};
    }
    return true;
}

/* Check the members that are required. Returns NULL, or a sentence and the member's name. */
static const char *event_check(const struct front *f, const struct json *event,
                               const struct json *state, const char **param)
{
    const struct json *choices = json_get_kind(event, "choices", JSON_LIST);

    *param = "generate_chunk";
    if (choices == NULL || choices->n > (uint32_t)f->settings.max_choices)
        return "'generate_chunk' must be an event of /inference/v1/generate, with 'choices'";
    *param = "stream_state";
    if (state != NULL && state->kind != JSON_NULL && state->kind != JSON_OBJECT)
        return "'stream_state' must be that of the answer to the previous event, or null";
    return NULL;
}

/* An event of /inference/v1/generate with its state becomes an event with texts. Anything may be
 * wrong in both, because they come from the client: places, ids and counts are checked before
 * use. */
void derender_event(struct front *f, struct exchange *x, const struct json *body)
{
    bool chat = strncmp(fcgi_param(x->fcgi, "REQUEST_URI"), "/v1/chat/", 9) == 0;
    const struct json *event = json_get_kind(body, "generate_chunk", JSON_OBJECT);
    const struct json *state = json_get(body, "stream_state");
    const struct json *request =
        json_get_kind(body, chat ? "chat_request" : "completion_request", JSON_OBJECT);
    const struct json *choices = json_get_kind(event, "choices", JSON_LIST);
    const char *param, *wrong = event_check(f, event, state, &param);
    uint32_t n = choices == NULL ? 0 : choices->n;
    struct piece *pieces = arena_zalloc(&x->arena, sizeof *pieces * (n + 1));
    struct json fields;
    bool fine = true;

    if (wrong != NULL) {
        exchange_reply_error(x, ERR_INVALID, wrong, param, 0);
        return;
    }
    if (pieces == NULL || !derender_fields(x, body, request, event, &fields)) {
        exchange_reply_error(x, ERR_NO_MEMORY, NULL, NULL, 1);
        return;
    }
    if (!gen_prepare(f, x, &fields, chat ? EXCHANGE_CHAT : EXCHANGE_COMPLETION,
                     n == 0 ? 1 : (int)n))
        return;
    /* Name and time must be the same in all events of a stream. */
    gen_keep_name(x, json_get_kind(event, "request_id", JSON_TEXT));
    x->created =
        json_get_int(json_get_kind(body, "stream_state", JSON_OBJECT), "created", x->created);
    if (state != NULL && state->kind != JSON_OBJECT)
        state = NULL;
    if (!place(f, x, choices, state, pieces) || !listen(x, chat ? request : NULL, pieces, n))
        return;
    for (uint32_t i = 0; i < n && fine; i++)
        fine = piece_read(x, &pieces[i]);
    if (fine)
        write_answer(x, event, state, pieces, n);
    for (uint32_t i = 0; i < n; i++) {
        buf_fini(&pieces[i].content);
        buf_fini(&pieces[i].reasoning);
        buf_fini(&pieces[i].calls);
    }
}
