/* SPDX-License-Identifier: Apache-2.0
 *
 * The state machine of blocks.h: at most one block is open. A reply event of another kind closes it
 * and opens the next; the shape writes the JSON. */
#include "front/answer/blocks.h"

#include <string.h>

#include "base/clock.h"
#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/logprobs.h"
#include "front/kept/kept.h"

/* Two APIs have blocks: Anthropic's messages and OpenAI's responses. */
static const struct blocks_shape *blocks_shape_of(const struct gen *g)
{
    must(g->exchange->shape == SHAPE_MESSAGES || g->exchange->shape == SHAPE_RESPONSES);
    if (g->exchange->shape == SHAPE_MESSAGES)
        return &blocks_messages;
    return &blocks_responses;
}

/* --- helpers of the shapes --- */

/* Begin an event of a stream. The type is both in SSE's line and in the JSON, because clients read
 * one or the other. */
void blocks_event(struct gen *g, const char *name)
{
    buf_printf(&g->exchange->out, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

void blocks_event_end(struct gen *g)
{
    buf_add_text(&g->exchange->out, "}\n\n");
}

uint32_t blocks_output_tokens(const struct gen *g)
{
    must(g->tokens.len >= g->n_prompt);
    return (uint32_t)g->tokens.len - g->n_prompt;
}

/* Arguments are parsed only at the end of a call, in an arena of their own, because an answer may
 * have many calls. */
bool blocks_is_object(struct gen *g)
{
    const struct buf *text = &g->speech->blocks.text;
    const struct json *value = NULL;
    struct arena scratch = {.limit_bytes = g->exchange->arena.limit_bytes};
    bool is = text->len > 0 &&
              json_parse(&value, &scratch, text->bytes, text->len, NULL, 0) == ERR_OK &&
              value->kind == JSON_OBJECT;

    must(g->speech != NULL);
    arena_reset(&scratch);
    return is;
}

void blocks_add_text(struct buf *b, const char *name, const struct buf *text)
{
    buf_printf(b, "\"%s\":", name);
    buf_add_json_string(b, buf_text(text), text->len);
}

/* --- the state machine --- */

/* Has a buffer of the blocks run out of memory? The answer would lack a part then. */
static bool blocks_failed(const struct gen *g)
{
    const struct blocks *blocks = &g->speech->blocks;

    return blocks->name.failed || blocks->text.failed || blocks->told.failed || blocks->done.failed;
}

/* Close the open block, if there is one. Its final JSON is appended to `done`, the list that the
 * complete body is made of; in a stream the shape also writes the closing event. is_cut: the token
 * limit ended the reply inside this block. */
static void blocks_close(struct gen *g, bool is_cut)
{
    struct blocks *blocks = &g->speech->blocks;

    if (!blocks->is_open)
        return;
    if (blocks->done.len > 0)
        buf_add_byte(&blocks->done, ',');
    blocks_shape_of(g)->close(g, is_cut);
    g->exchange->out.failed = g->exchange->out.failed || blocks_failed(g);
    blocks->is_open = false;
}

/* Open a block for a reply event, after closing the one before. */
static void blocks_open(struct gen *g, const struct reply_event *e)
{
    struct blocks *blocks = &g->speech->blocks;

    blocks_close(g, false);
    must(!blocks->is_open);
    buf_clear(&blocks->text);
    buf_clear(&blocks->name);
    buf_clear(&blocks->told);
    blocks->told_said = 0;
    blocks->is_open = true;
    blocks->kind = (int)e->kind;
    blocks->call = e->call;
    blocks->n++;
    if (e->kind == REPLY_CALL_BEGIN)
        buf_add(&blocks->name, e->bytes, e->len);
    if (g->exchange->stream)
        blocks_shape_of(g)->open(g);
}

/* A reply event has come: REPLY_CONTENT and REPLY_REASON are pieces of a text, the three others the
 * begin, the arguments and the end of a call. */
void blocks_said(struct gen *g, const struct reply_event *e)
{
    struct blocks *blocks = &g->speech->blocks;

    must(g->speech != NULL);
    switch (e->kind) {
    /* A piece of the other kind of text opens a block by itself. Calls have an event for it. */
    case REPLY_CONTENT:
    case REPLY_REASON:
        if (!blocks->is_open || blocks->kind != (int)e->kind)
            blocks_open(g, e);
        break;
    case REPLY_CALL_BEGIN: blocks_open(g, e); return;
    case REPLY_CALL_ARGS: break;
    case REPLY_CALL_END: blocks_close(g, false); return;
    }
    buf_add(&blocks->text, e->bytes, e->len);
    if (e->kind == REPLY_CONTENT)
        logprobs_add_text(&blocks->told, g);
    if (g->exchange->stream)
        blocks_shape_of(g)->piece(g, e->bytes, e->len);
}

/* Start a stream's answer. */
void blocks_begin(struct gen *g)
{
    blocks_shape_of(g)->begin(g);
}

/* End the answer: in a stream with the last events, otherwise with the whole body. */
static void blocks_finish(struct gen *g)
{
    struct exchange *x = g->exchange;
    struct buf buf = {0};

    if (x->stream) {
        blocks_shape_of(g)->finish(g);
        x->complete = true;
        return;
    }
    blocks_shape_of(g)->body(g, &buf);
    exchange_reply_json(x, &buf);
}

/* Pass the response to the store. False: the answer need not wait for it. */
static bool blocks_keep(struct gen *g)
{
    struct exchange *x = g->exchange;
    struct keeping *keeping = x->keeping;
    struct kept_record record;
    struct buf buf = {0};

    if (keeping == NULL)
        return false;
    blocks_shape_of(g)->body(g, &buf);
    /* kept_write() copies the texts, so that the buffer may be freed below. */
    record = (struct kept_record){.name = kept_name(keeping->tenant, x->id),
                                  .created_s = x->completed,
                                  .response = buf.bytes,
                                  .response_len = buf.len,
                                  .input = keeping->input,
                                  .input_len = keeping->input_len};
    if (buf.failed)
        keeping->job = NULL;
    else
        keeping->job = kept_write(keeping->kept, &record);
    keeping->failed = keeping->job == NULL;
    keeping->since_us = clock_us();
    buf_fini(&buf);
    return !keeping->failed;
}

/* The answer of a stored response is held until the record is on disk, so that a client can name it
 * at once in its next request. KEPT_WAIT_US bounds the delay. */
bool blocks_wait(const struct exchange *x, uint64_t now_us)
{
    const struct keeping *keeping = x->keeping;

    return keeping != NULL && keeping->job != NULL && !x->complete &&
           kept_state(keeping->job) == KEPT_WAITS && now_us - keeping->since_us < KEPT_WAIT_US;
}

/* The record was written or failed, or took too long: answer now. */
void blocks_kept(struct exchange *x)
{
    struct keeping *keeping = x->keeping;

    must(keeping != NULL);
    must(x->n_gens > 0);
    keeping->failed = kept_state(keeping->job) != KEPT_WRITTEN;
    blocks_finish(&x->gens[0]);
}

/* The reply has ended. */
void blocks_end(struct gen *g)
{
    g->exchange->completed = clock_unix_s();
    blocks_close(g, g->finish == GEN_LENGTH);
    if (!blocks_keep(g))
        blocks_finish(g);
}

void blocks_fail(struct gen *g, int err, const char *message)
{
    if (message == NULL || message[0] == '\0')
        message = err_sentence(err);
    blocks_shape_of(g)->fail(g, err, message);
}
