/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading the lane: the engine's records become tokens, text and answers. A slot's records are read
 * until its ring is empty, or until the client has STREAMER_BACKLOG unsent bytes; the engine pauses
 * a sequence whose ring is full, so a slow client slows only its own generation. */
#include <string.h>

#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/beams.h"
#include "front/answer/logprobs.h"
#include "front/answer/pooled.h"
#include "front/api/cache.h"
#include "front/api/health.h"
#include "front/stream/streamer_parts.h"

/* unsent bytes of an exchange above which its records are left in the ring */
#define STREAMER_BACKLOG (256u << 10)

/* Drop the records of a slot whose generation is cancelled; the last one frees the slot. */
static void streamer_drain_slot(struct link *l, uint32_t slot)
{
    struct wire_out record;

    must(slot < l->lane.n_slots);
    while (lane_record(&l->lane, slot, &record)) {
        if (record.kind == WIRE_FINISHED) {
            link_end(l, slot, &record);
            return;
        }
    }
}

/* Take a generation off the lane: its records no longer matter. The engine needs time to notice, so
 * the slot stays in use until its last record has come. */
void streamer_let_go(struct streamer *s, struct gen *g, enum wire_cancel why)
{
    struct link *link = g->link;

    streamer_wait_remove(s, g);
    if (g->slot < 0)
        return;
    lane_cancel(&link->lane, (uint32_t)g->slot, why);
    link->by_slot[g->slot] = NULL;
    streamer_drain_slot(link, (uint32_t)g->slot);
    g->slot = -1;
}

/* g's beam has its next token. The last beam of a prompt starts the next step or ends the
 * search. */
static void streamer_beam(struct streamer *s, struct gen *g)
{
    const struct wire_welcome *welcome = &g->link->engine;
    struct exchange *x = g->exchange;
    struct gen *first = g - g->index % x->n;
    uint32_t n_ends = welcome->n_eos < WIRE_EOS_MAX ? welcome->n_eos : WIRE_EOS_MAX;
    uint32_t longest = welcome->max_model_len - g->n_prompt; /* above 0: streamer_check() */
    enum beams_todo todo;

    must(g->exchange->beams != NULL);
    if (x->max_tokens_given && x->max_tokens < longest)
        longest = x->max_tokens;
    if (beams_told(g, welcome->eos, n_ends, longest, &todo) != ERR_OK) {
        streamer_fail(s, x, ERR_NO_MEMORY, NULL, NULL);
        return;
    }
    if (todo == BEAMS_SUBMIT)
        streamer_submit(s, x);
    for (int i = 0; i < x->n && todo == BEAMS_END; i++)
        answer_end(x, &first[i]);
}

/* A generation has ended, by its last record. */
void streamer_finished(struct streamer *s, struct gen *g, const struct wire_out *o)
{
    static const char costly[] =
        "the output constraint needs more steps per mask, or nests deeper, than the limits allow: "
        "simplify it";
    struct exchange *x = g->exchange;
    const char *why = NULL;

    must(g->slot >= 0);
    /* The engine found the automaton too expensive: remember that, so that the next request with it
     * is refused at once. */
    if (o->finish == WIRE_FIN_ERROR && o->value == ERR_LIMIT && x->compiled != NULL) {
        compiled_cache_refuse(&x->served->compiled, &x->compiled->name, ERR_LIMIT, costly);
        why = costly;
    }
    /* The slot is free from here on. */
    link_end(g->link, (uint32_t)g->slot, o);
    g->slot = -1;
    if (o->finish == WIRE_FIN_ERROR && o->value == ERR_DRAINING) {
        g->link->drains = true;
        streamer_go_on(s, g);
        return;
    }
    if (o->finish == WIRE_FIN_ERROR && o->value == ERR_OVERLOADED && streamer_has_others(g)) {
        streamer_go_on(s, g);
        return;
    }
    if (o->finish != WIRE_FIN_STOP && o->finish != WIRE_FIN_LENGTH) {
        x->retry_after_s = o->retry_after_s;
        streamer_fail(s, x, o->finish == WIRE_FIN_ERROR ? o->value : ERR_INTERNAL, why, NULL);
        return;
    }
    if (x->probe) {
        health_passed(s->f, x);
        return;
    }
    if (x->asks) {
        cache_end(g);
        return;
    }
    if (x->beams != NULL) {
        streamer_beam(s, g);
        return;
    }
    if (x->pooled != NULL) {
        g->finish = GEN_STOP;
        if (pooled_is_whole(g))
            answer_end(x, g);
        else
            streamer_fail(s, x, ERR_INTERNAL, NULL, NULL);
        return;
    }
    (void)detok_finish(&g->detok, &g->text);
    if (o->finish == WIRE_FIN_STOP)
        g->finish = GEN_STOP;
    else
        g->finish = GEN_LENGTH;
    /* A stop string may have ended the text in the same step as the limit. */
    if (g->detok.status == DETOK_STOPPED)
        g->finish = GEN_STOP;
    if (o->finish == WIRE_FIN_STOP && token_rules_has_stop(&x->token_rules, o->value))
        g->stop_id = o->value;
    answer_end(x, g);
}

/* A token has come. Its text may be held back by the detokenizer, because it could be the beginning
 * of a stop string or half of a character. */
static void streamer_token(struct streamer *s, struct gen *g, const struct wire_out *o)
{
    struct exchange *x = g->exchange;

    /* Health checks and commands have no use for the token. */
    if (x->only_echo)
        return;
    logprobs_token(g);
    if (x->beams != NULL) {
        g->ended = true; /* of this step; the token itself is not used */
        return;
    }
    if (token_list_add(&g->tokens, o->value) != ERR_OK) {
        streamer_fail(s, x, ERR_NO_MEMORY, NULL, NULL);
        return;
    }
    g->ended = o->finish == WIRE_FIN_STOP;
    /* A token that ends the text is counted, but its text is left out unless requested. */
    if (o->finish == WIRE_FIN_STOP && !g->detok.include_stop)
        return;
    if (detok_push(&g->detok, o->value, &g->text) == DETOK_STOPPED) {
        streamer_let_go(s, g, WIRE_STOP_STRING);
        g->finish = GEN_STOP;
        answer_end(x, g);
    } else if (x->shape == SHAPE_RESPONSES && (g->request.flags & WIRE_LOGPROBS) != 0) {
        answer_text(x, g); /* per token, so that each one's log probability finds its text */
    }
}

/* Was a choice of x refused before this one was admitted? Its slot may be read later in this pass,
 * and once the answer has begun its status cannot change. True: the refusal is the answer. */
static bool streamer_was_refused(struct streamer *s, struct exchange *x)
{
    struct wire_out record;

    for (int i = 0; i < x->n_gens && !x->head_sent; i++) {
        struct gen *g = &x->gens[i];

        if (g->slot < 0 || !lane_peek(&g->link->lane, (uint32_t)g->slot, &record) ||
            record.kind != WIRE_FINISHED || record.finish != WIRE_FIN_ERROR ||
            record.value == ERR_DRAINING || streamer_has_others(g))
            continue;
        (void)lane_record(&g->link->lane, (uint32_t)g->slot,
                          &record); /* take the record that was looked at */
        streamer_finished(s, g, &record);
        return true;
    }
    return false;
}

/* A piece of a row: of logits, or of a pooled answer. A probe only waits for its end. */
static void streamer_row(struct gen *g, const struct wire_out *o)
{
    const struct wire_welcome *engine = &g->link->engine;

    if (g->exchange->pooled != NULL)
        pooled_row(g, o, engine->n_pooled);
    else if (engine->n_pooled == 0)
        logprobs_row(g, o, engine->n_vocab);
}

/* Only the first engine's numbers are kept, as of n_cached. */
static void streamer_found(struct gen *g, const struct wire_out *o)
{
    if (o->amount < WIRE_GROUPS && g->found[o->amount] == 0)
        g->found[o->amount] =
            (uint32_t)o->value < g->n_prompt ? 1 + (uint32_t)o->value : 1 + g->n_prompt;
}

/* One record of a generation that is not cancelled. */
static void streamer_record(struct streamer *s, struct gen *g, const struct wire_out *o)
{
    struct exchange *x = g->exchange;

    streamer_trace_record(x, o);
    switch ((enum wire_kind)o->kind) {
    case WIRE_ADMITTED:
        if (x->n_gens > 1 && streamer_was_refused(s, x))
            break;
        /* Only the first number is kept: a later engine finds the output in its cache, too. */
        if (!g->admitted)
            g->n_cached = (uint32_t)o->value < g->n_prompt ? (uint32_t)o->value : g->n_prompt;
        g->admitted = true;
        answer_begin(x);
        break;
    case WIRE_FOUND: streamer_found(g, o); break;
    case WIRE_TOKEN: streamer_token(s, g, o); break;
    case WIRE_FINISHED: streamer_finished(s, g, o); break;
    case WIRE_PROMPT_CHOSEN:
    case WIRE_PROMPT_TOP:
    case WIRE_CHOSEN:
    case WIRE_TOP: logprobs_record(g, o); break;
    case WIRE_PROMPT_ROW:
    case WIRE_ROW: streamer_row(g, o); break;
    case WIRE_FACT:
    case WIRE_TEXT: cache_fact(g, o); break;
    }
    x->said_us = s->now_us;
}

/* The choices of one answer usually get their tokens in the same step: send them in one write, when
 * all slots were read. */
static void streamer_flush_later(struct streamer *s, struct exchange *x)
{
    if (x->unflushed)
        return;
    x->unflushed = true;
    x->next_unflushed = s->unflushed;
    s->unflushed = x;
}

/* Send the answers whose slots were read in this pass. */
void streamer_flush_all(struct streamer *s)
{
    while (s->unflushed != NULL) {
        struct exchange *x = s->unflushed;

        s->unflushed = x->next_unflushed;
        x->unflushed = false;
        streamer_flush(s, x); /* does nothing if it has ended */
    }
}

/* Read a slot until it is empty, its generation has ended, or its client has too many unsent
 * bytes. */
void streamer_slot(struct streamer *s, struct link *link, uint32_t slot)
{
    struct gen *g = link->by_slot[slot];
    struct exchange *x;
    struct wire_out record;
    bool behind;

    must(slot < link->lane.n_slots);
    if (g == NULL) {
        streamer_drain_slot(link, slot);
        return;
    }
    x = g->exchange;
    do { /* at most twice: then nothing is unsent */
        behind = x->out.len - x->out_sent >= STREAMER_BACKLOG;
        while (!behind && g->link == link && g->slot == (int64_t)slot &&
               lane_record(&link->lane, slot, &record))
            streamer_record(s, g, &record);
        if (!x->complete && g->finish == GEN_RUNNING && !logprobs_echo_waits(g))
            answer_text(x, g);
        if (!behind && x->n_gens > 1) {
            streamer_flush_later(s, x);
            return;
        }
        streamer_flush(s, x);
        /* The client has caught up in this flush: neither epoll nor the ready bit will come
         * again. */
    } while (behind && !x->dead && x->out.len == 0);
}

/* Read all slots of an engine that have records. A word has the ready bits of 64 slots. */
void streamer_lane(struct streamer *s, struct link *link)
{
    for (uint32_t w = 0; link->control_fd != -1 && w * 64 < link->lane.n_slots; w++) {
        uint64_t bits = lane_ready(&link->lane, w);

        while (bits != 0) {
            uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(bits);

            bits &= bits - 1;
            if (slot < link->lane.n_slots)
                streamer_slot(s, link, slot);
        }
    }
}
