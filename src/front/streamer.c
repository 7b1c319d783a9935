/* SPDX-License-Identifier: Apache-2.0
 *
 * The streamer: one thread, one epoll, every open exchange of the process. It submits to the
 * lane, reads what the engine says, writes answers as far as sockets take them, and notices
 * clients and engines that go away. It never blocks on any of them.
 *
 * An exchange that ends during a pass is freed at the end of the pass, because events of the
 * same pass may still name it; its connection leaves epoll when it is closed then. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/service.h"
#include "front/answer.h"
#include "front/cache.h"
#include "front/front.h"
#include "front/health.h"
#include "front/logprobs.h"

#define STREAMER_EVENTS      256
#define STREAMER_TICK_MS     500          /* timeouts are looked at this often */
#define STREAMER_DETACHED_MS 50           /* without an engine: how often to try to attach */
#define STREAMER_BACKLOG     (256u << 10) /* unsent bytes past which a client's records wait */
#define STREAMER_YIELD_US    1000000
#define STREAMER_SUBMITS_MAX 3 /* engines that may die under a request before it is blamed */

struct streamer {
    struct front *f;
    int epoll_fd;
    uint64_t now_us;
    uint64_t tick_us;
    struct exchange *open;      /* all that are not dead */
    struct exchange *dead;      /* to be freed at the end of the pass */
    struct exchange *unflushed; /* answers with several choices that have something to send */
    struct gen *waiting;        /* generations without an engine, oldest first */
    int n_open;
    bool draining;
    uint64_t drain_us; /* when that began */
    uint64_t drain_until_us;
};

/* --- lists -------------------------------------------------------------------------------- */

static void streamer_link(struct streamer *s, struct exchange *x)
{
    x->prev = NULL;
    x->next = s->open;
    if (s->open != NULL)
        s->open->prev = x;
    s->open = x;
    s->n_open++;
}

static void streamer_unlink(struct streamer *s, struct exchange *x)
{
    if (x->prev == NULL)
        s->open = x->next;
    else
        x->prev->next = x->next;
    if (x->next != NULL)
        x->next->prev = x->prev;
    s->n_open--;
}

static void streamer_wait_add(struct streamer *s, struct gen *g)
{
    struct gen **at = &s->waiting;

    if (g->waiting)
        return;
    while (*at != NULL)
        at = &(*at)->next;
    g->next = NULL;
    g->waiting = true;
    g->wait_us = s->now_us;
    *at = g;
}

static void streamer_wait_remove(struct streamer *s, struct gen *g)
{
    struct gen **at = &s->waiting;

    if (!g->waiting)
        return;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    g->waiting = false;
}

/* --- ends --------------------------------------------------------------------------------- */

/* Drop what a slot says that nobody wants; its last record makes it free. */
static void streamer_drain_slot(struct link *l, uint32_t slot)
{
    struct wire_out o;

    while (lane_record(&l->lane, slot, &o)) {
        if (o.kind == WIRE_FINISHED) {
            link_release(l, slot);
            return;
        }
    }
}

/* Nobody wants what the engine still says about g; its slot comes back with the last record,
 * which may be there already. */
static void streamer_let_go(struct streamer *s, struct gen *g, enum wire_cancel why)
{
    struct link *l = &s->f->link;

    streamer_wait_remove(s, g);
    if (g->slot < 0)
        return;
    lane_cancel(&l->lane, (uint32_t)g->slot, why);
    l->by_slot[g->slot] = NULL;
    streamer_drain_slot(l, (uint32_t)g->slot);
    g->slot = -1;
}

static void streamer_close(struct streamer *s, struct exchange *x)
{
    for (int i = 0; i < x->n_gens; i++)
        streamer_let_go(s, &x->gens[i], WIRE_CLIENT_GONE);
    streamer_unlink(s, x);
    x->dead = true; /* later events of this pass pass over it */
    x->next = s->dead;
    s->dead = x;
}

/* Stop all of x's generations and answer with an error. */
static void streamer_fail(struct streamer *s, struct exchange *x, int err, const char *message,
                          const char *param)
{
    int retry_after_s = 0;

    for (int i = 0; i < x->n_gens; i++)
        streamer_let_go(s, &x->gens[i], WIRE_CLIENT_GONE);
    if (err_http_status(err) == 429 || err_http_status(err) == 503) {
        struct link *l = &s->f->link;

        retry_after_s = x->retry_after_s;
        if (retry_after_s == 0 && l->control_fd != -1)
            retry_after_s = (int)atomic_load(&l->lane.shared->retry_after_s);
        if (retry_after_s < 1)
            retry_after_s = 1;
    }
    if (x->probe)
        health_failed(s->f, x, err);
    else
        answer_fail(x, err, message, param, retry_after_s);
}

/* --- writing ------------------------------------------------------------------------------ */

static void streamer_watch(struct streamer *s, struct exchange *x, bool out)
{
    struct epoll_event ev = {.events = EPOLLRDHUP | (out ? EPOLLOUT : 0), .data.ptr = x};

    if (x->watching_out == out)
        return;
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fcgi_fd(x->fcgi), &ev) == 0)
        x->watching_out = out;
}

static void streamer_flush(struct streamer *s, struct exchange *x)
{
    size_t left = x->out.len - x->out_sent;
    const char *from = left == 0 ? "" : x->out.bytes + x->out_sent;
    long n;

    if (x->dead)
        return;
    if (x->out.failed) {
        streamer_close(s, x);
        return;
    }
    if (left > 0 || x->complete) {
        n = x->complete ? fcgi_write_last(x->fcgi, from, left) : fcgi_write(x->fcgi, from, left);
        if (n < 0) {
            streamer_close(s, x);
            return;
        }
        if (n > 0)
            x->progress_us = s->now_us;
        x->out_sent += (size_t)n;
    }
    if (x->out_sent < x->out.len || (x->complete && !fcgi_has_ended(x->fcgi))) {
        streamer_watch(s, x, true);
        return;
    }
    buf_clear(&x->out);
    x->out_sent = 0;
    x->progress_us = s->now_us;
    if (x->complete)
        streamer_close(s, x);
    else
        streamer_watch(s, x, false);
}

/* --- submitting --------------------------------------------------------------------------- */

/* Everything that only the engine's welcome can tell. ERR_OK, or an error with its words. */
static int streamer_check(const struct streamer *s, const struct gen *g, char *why, size_t cap,
                          const char **param)
{
    const struct wire_welcome *w = &s->f->link.engine;
    const struct exchange *x = g->exchange;
    uint64_t longest = w->max_model_len;
    uint64_t more = x->max_tokens_given && !x->max_tokens_bends ? x->max_tokens : 1;

    *param = x->format == EXCHANGE_CHAT ? "messages" : "prompt";
    if (g->n_prompt + more > longest) {
        (void)snprintf(why, cap,
                       "This model's maximum context length is %llu tokens. However, you "
                       "requested %llu tokens (%u in the prompt, %llu in the completion).",
                       (unsigned long long)longest, (unsigned long long)(g->n_prompt + more),
                       g->n_prompt, (unsigned long long)more);
        return ERR_TOO_LONG;
    }
    for (size_t i = 0; i < g->tokens.len; i++) {
        if (g->tokens.ids[i] < 0 || g->tokens.ids[i] >= (int64_t)w->n_vocab) {
            (void)snprintf(why, cap, "token id %d is not in the model's vocabulary of %u",
                           g->tokens.ids[i], w->n_vocab);
            return ERR_INVALID;
        }
    }
    for (uint32_t i = 0; i < g->request.n_stop_ids; i++) {
        if (g->request.stop_ids[i] >= (int64_t)w->n_vocab) {
            *param = "stop_token_ids";
            (void)snprintf(why, cap, "token id %d is not in the model's vocabulary of %u",
                           g->request.stop_ids[i], w->n_vocab);
            return ERR_INVALID;
        }
    }
    return ERR_OK;
}

/* The engine has the vocabulary and the exchange's structure when it comes to a request that is
 * submitted afterwards. ERR_AGAIN while the vocabulary is being made. */
static int streamer_offer(struct streamer *s, const struct exchange *x, uint32_t *automaton)
{
    struct link *l = &s->f->link;
    int sealed;
    size_t bytes;
    uint32_t idx = 0;
    int rc;

    *automaton = 0;
    if (x->structure == NULL)
        return ERR_OK;
    rc = vocabulary_get(&s->f->vocabulary, &sealed, &bytes);
    if (rc != ERR_OK)
        return rc;
    rc = offers_add_vocabulary(&l->offers, l->control_fd, sealed, bytes);
    if (rc == ERR_OK)
        rc = offers_claim(&l->offers, l->control_fd, x->structure, &idx);
    if (rc == ERR_OK)
        *automaton = idx + 1;
    return rc == ERR_AGAIN ? ERR_OVERLOADED : rc;
}

/* Put g into a slot of the lane. */
static int streamer_fill_slot(struct streamer *s, struct gen *g, uint32_t slot,
                              struct wire_request r, const int32_t *extra)
{
    struct link *l = &s->f->link;
    const struct exchange *x = g->exchange;
    int rc = streamer_offer(s, x, &r.automaton);

    if (rc != ERR_OK)
        return rc;
    l->automaton[slot] = r.automaton;
    r.flags |= logprobs_restart(g);
    r.arrival_us = x->arrival_us;
    r.n_tokens = (uint32_t)g->tokens.len;
    r.n_prompt = g->n_prompt;
    r.max_tokens = l->engine.max_model_len - g->n_prompt; /* above 0: streamer_check() */
    if (x->max_tokens_given && x->max_tokens < r.max_tokens)
        r.max_tokens = x->max_tokens;
    rc = lane_submit(&l->lane, slot, r, g->tokens.ids, extra);
    if (rc != ERR_OK)
        link_count_refused(l, WIRE_REFUSED_SLOTS);
    return rc == ERR_OK ? ERR_OK : ERR_OVERLOADED;
}

/* Submit g. ERR_OVERLOADED when there is no slot, no room for its prompt or no place for its
 * structure; ERR_AGAIN when it has to wait for the vocabulary. */
static int streamer_submit_gen(struct streamer *s, struct gen *g, char *why, size_t cap,
                               const char **param)
{
    struct link *l = &s->f->link;
    struct wire_request r = g->request;
    int rc = streamer_check(s, g, why, cap, param);
    enum wire_refusal refusal;
    int32_t *extra = NULL;
    int64_t slot;

    if (rc != ERR_OK)
        return rc;
    r.flags = (g->n_submits > 0 ? WIRE_RESUMED : 0) |
              (g->exchange->probe || g->exchange->asks ? WIRE_PROBE : 0);
    r.n_tokens = (uint32_t)g->tokens.len;
    refusal = link_refuses(l, &r);
    if (refusal != WIRE_REFUSALS) {
        link_count_refused(l, refusal);
        *param = NULL;
        return ERR_OVERLOADED;
    }
    rc = steering_write(&g->exchange->steering, l->engine.n_vocab, &r, &extra, param);
    if (rc != ERR_OK) {
        (void)snprintf(why, cap, "a token id is not in the model's vocabulary of %u",
                       l->engine.n_vocab);
        return rc;
    }
    *param = NULL;
    slot = link_claim(l, r.tenant);
    rc = slot < 0 ? ERR_OVERLOADED : streamer_fill_slot(s, g, (uint32_t)slot, r, extra);
    mem_free(extra);
    if (rc != ERR_OK) {
        if (slot >= 0)
            link_release(l, (uint32_t)slot);
        return rc;
    }
    g->slot = slot;
    g->n_submits++;
    l->by_slot[slot] = g;
    return ERR_OK;
}

static void streamer_submit(struct streamer *s, struct gen *g)
{
    struct exchange *x = g->exchange;
    const char *param = NULL;
    char why[256] = "";
    int rc;

    if (s->f->link.control_fd == -1) {
        streamer_wait_add(s, g);
        return;
    }
    rc = streamer_submit_gen(s, g, why, sizeof why, &param);
    g->unspelled = rc == ERR_AGAIN;
    if (rc == ERR_AGAIN || rc == ERR_ENGINE_GONE)
        streamer_wait_add(s, g); /* for the vocabulary, or the next engine */
    else if (rc != ERR_OK)
        streamer_fail(s, x, rc, why[0] == '\0' ? NULL : why, param);
}

/* The vocabulary may have been made: submit those that wait for it. */
static void streamer_spell(struct streamer *s)
{
    struct gen *g = s->waiting;
    int sealed;
    size_t bytes;

    if (g == NULL || s->f->link.control_fd == -1 ||
        vocabulary_get(&s->f->vocabulary, &sealed, &bytes) == ERR_AGAIN)
        return;
    while (g != NULL) { /* each pass makes one spelled, and one that fails takes others with it */
        while (g != NULL && !g->unspelled)
            g = g->next;
        if (g == NULL)
            return;
        streamer_wait_remove(s, g);
        streamer_submit(s, g);
        streamer_flush(s, g->exchange);
        g = s->waiting;
    }
}

/* There is an engine: submit those that wait, each once. */
static void streamer_resume(struct streamer *s)
{
    int n = 0;

    for (const struct gen *g = s->waiting; g != NULL; g = g->next)
        n++;
    for (; n > 0 && s->waiting != NULL; n--) { /* one that fails may take others with it */
        struct gen *g = s->waiting;

        streamer_wait_remove(s, g);
        streamer_submit(s, g);
        streamer_flush(s, g->exchange);
    }
}

static void streamer_adopt_one(struct streamer *s, struct exchange *x)
{
    struct epoll_event ev = {.events = EPOLLRDHUP, .data.ptr = x};

    streamer_link(s, x);
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fcgi_fd(x->fcgi), &ev) == -1) {
        log_warn("front: epoll: %s", strerror(errno));
        streamer_close(s, x);
        return;
    }
    for (int i = 0; i < x->n_gens && !x->complete; i++)
        streamer_submit(s, &x->gens[i]);
    streamer_flush(s, x);
}

void streamer_adopt(struct front *f, struct exchange *x)
{
    uint64_t one = 1;
    bool sleeps;

    (void)pthread_mutex_lock(&f->handover_lock);
    x->next = f->handover;
    f->handover = x;
    sleeps = f->handover_sleeps;
    f->handover_sleeps = false;
    (void)pthread_mutex_unlock(&f->handover_lock);
    if (sleeps)
        (void)!write(f->handover_fd, &one, sizeof one); /* cannot fail: the counter is small */
}

/* Before the streamer sleeps: true when nothing was handed over; what is from now on wakes it. */
static bool streamer_may_sleep(struct streamer *s)
{
    bool empty;

    (void)pthread_mutex_lock(&s->f->handover_lock);
    empty = s->f->handover == NULL;
    s->f->handover_sleeps = empty;
    (void)pthread_mutex_unlock(&s->f->handover_lock);
    return empty;
}

static void streamer_adopt_all(struct streamer *s)
{
    struct exchange *list;
    struct exchange *in_order = NULL;

    (void)pthread_mutex_lock(&s->f->handover_lock);
    list = s->f->handover;
    s->f->handover = NULL;
    s->f->handover_sleeps = false;
    (void)pthread_mutex_unlock(&s->f->handover_lock);
    while (list != NULL) { /* newest first; serve the oldest first */
        struct exchange *next = list->next;

        list->next = in_order;
        in_order = list;
        list = next;
    }
    while (in_order != NULL) {
        struct exchange *next = in_order->next;

        streamer_adopt_one(s, in_order);
        in_order = next;
    }
}

/* --- what the engine says ----------------------------------------------------------------- */

static void streamer_finished(struct streamer *s, struct gen *g, const struct wire_out *o)
{
    struct exchange *x = g->exchange;

    link_release(&s->f->link, (uint32_t)g->slot);
    g->slot = -1;
    if (o->finish == WIRE_FIN_ERROR && o->value == ERR_DRAINING) {
        streamer_wait_add(s, g); /* the next engine goes on with it */
        return;
    }
    if (o->finish != WIRE_FIN_STOP && o->finish != WIRE_FIN_LENGTH) {
        x->retry_after_s = o->retry_after_s;
        streamer_fail(s, x, o->finish == WIRE_FIN_ERROR ? o->value : ERR_INTERNAL, NULL, NULL);
        return;
    }
    if (x->probe) {
        health_passed(s->f, x);
        return;
    }
    if (x->asks) {
        cache_answer(s->f, x);
        return;
    }
    (void)detok_finish(&g->detok, &g->text);
    g->finish = o->finish == WIRE_FIN_STOP ? GEN_STOP : GEN_LENGTH;
    if (g->detok.status == DETOK_STOPPED)
        g->finish = GEN_STOP;
    for (uint32_t i = 0; i < g->request.n_stop_ids && o->finish == WIRE_FIN_STOP; i++) {
        if (g->request.stop_ids[i] == o->value)
            g->stop_id = o->value;
    }
    answer_end(x, g);
}

static void streamer_token(struct streamer *s, struct gen *g, const struct wire_out *o)
{
    struct exchange *x = g->exchange;

    if (x->only_echo)
        return;
    logprobs_token(g);
    if (token_list_add(&g->tokens, o->value) != ERR_OK) {
        streamer_fail(s, x, ERR_NO_MEMORY, NULL, NULL);
        return;
    }
    g->ended = o->finish == WIRE_FIN_STOP;
    /* The token that ends a text is counted but not said, unless its text was asked for. */
    if (o->finish == WIRE_FIN_STOP && !g->detok.include_stop)
        return;
    if (detok_push(&g->detok, o->value, &g->text) == DETOK_STOPPED) {
        streamer_let_go(s, g, WIRE_STOP_STRING);
        g->finish = GEN_STOP;
        answer_end(x, g);
    } else if (x->shape == SHAPE_RESPONSES && (g->request.flags & WIRE_LOGPROBS) != 0) {
        answer_text(x, g); /* token by token, so that each finds the text it is of */
    }
}

/* One record of a generation that somebody wants. */
static void streamer_record(struct streamer *s, struct gen *g, const struct wire_out *o)
{
    struct exchange *x = g->exchange;

    switch ((enum wire_kind)o->kind) {
    case WIRE_ADMITTED:
        if (!g->admitted)
            g->n_cached = (uint32_t)o->value < g->n_prompt ? (uint32_t)o->value : g->n_prompt;
        g->admitted = true;
        answer_begin(x);
        break;
    case WIRE_TOKEN: streamer_token(s, g, o); break;
    case WIRE_FINISHED: streamer_finished(s, g, o); break;
    case WIRE_PROMPT_CHOSEN:
    case WIRE_PROMPT_TOP:
    case WIRE_CHOSEN:
    case WIRE_TOP: logprobs_record(g, o); break;
    case WIRE_FACT: cache_fact(x, o); break;
    }
    x->said_us = s->now_us;
}

/* Choices of one answer mostly say their tokens together: they are sent by one write, when all
 * slots were read. */
static void streamer_flush_later(struct streamer *s, struct exchange *x)
{
    if (x->unflushed)
        return;
    x->unflushed = true;
    x->next_unflushed = s->unflushed;
    s->unflushed = x;
}

static void streamer_flush_all(struct streamer *s)
{
    while (s->unflushed != NULL) {
        struct exchange *x = s->unflushed;

        s->unflushed = x->next_unflushed;
        x->unflushed = false;
        streamer_flush(s, x); /* nothing when it has ended meanwhile */
    }
}

/* Read a slot until it is empty, its generation has ended, or its client is too far behind. */
static void streamer_slot(struct streamer *s, uint32_t slot)
{
    struct link *l = &s->f->link;
    struct gen *g = l->by_slot[slot];
    struct exchange *x;
    struct wire_out o;
    bool behind;

    if (g == NULL) {
        streamer_drain_slot(l, slot);
        return;
    }
    x = g->exchange;
    do { /* at most twice: with nothing unsent it is not behind */
        behind = x->out.len - x->out_sent >= STREAMER_BACKLOG;
        while (!behind && g->slot == (int64_t)slot && lane_record(&l->lane, slot, &o))
            streamer_record(s, g, &o);
        if (!x->complete && g->finish == GEN_RUNNING && !logprobs_echo_waits(g))
            answer_text(x, g);
        if (!behind && x->n_gens > 1) {
            streamer_flush_later(s, x);
            return;
        }
        streamer_flush(s, x);
        /* Caught up in this very flush: neither epoll nor the slot's mark would come again. */
    } while (behind && !x->dead && x->out.len == 0);
}

static void streamer_lane(struct streamer *s)
{
    struct link *l = &s->f->link;

    if (l->control_fd == -1)
        return;
    for (uint32_t w = 0; w * 64 < l->lane.n_slots; w++) {
        uint64_t bits = lane_ready(&l->lane, w);

        while (bits != 0) {
            uint32_t slot = w * 64 + (uint32_t)__builtin_ctzll(bits);

            bits &= bits - 1;
            if (slot < l->lane.n_slots)
                streamer_slot(s, slot);
        }
    }
}

/* --- engines that come and go ------------------------------------------------------------- */

/* An engine may die between the last token and the end of a text: no other could go on with it.
 * Fills *o with the end that did not come. */
static bool streamer_said_all(const struct streamer *s, const struct gen *g, struct wire_out *o)
{
    const struct exchange *x = g->exchange;
    size_t n_out = g->tokens.len - g->n_prompt;
    size_t longest = s->f->link.engine.max_model_len - g->n_prompt;

    if (x->max_tokens_given && x->max_tokens < longest)
        longest = x->max_tokens;
    *o = (struct wire_out){.kind = WIRE_FINISHED, .finish = WIRE_FIN_LENGTH};
    if (g->ended) {
        o->finish = WIRE_FIN_STOP;
        o->value = g->tokens.ids[g->tokens.len - 1];
    }
    return g->ended || n_out >= longest;
}

static void streamer_engine_lost(struct streamer *s)
{
    struct link *l = &s->f->link;

    /* What the engine said before it died is still in the lane. */
    streamer_lane(s);
    for (uint32_t i = 0; i < l->lane.n_slots; i++) {
        struct gen *g = l->by_slot[i];
        struct wire_out end;

        if (g == NULL)
            continue;
        if (streamer_said_all(s, g, &end)) {
            streamer_finished(s, g, &end);
            streamer_flush(s, g->exchange);
            continue;
        }
        g->slot = -1;
        if (g->n_submits >= STREAMER_SUBMITS_MAX) {
            /* It was under way in every one of them: do not offer it to another. */
            streamer_fail(s, g->exchange, ERR_INTERNAL,
                          "the engine stopped several times during this request", NULL);
            streamer_flush(s, g->exchange);
        } else {
            streamer_wait_add(s, g);
        }
    }
    for (struct gen *g = s->waiting; g != NULL; g = g->next)
        g->wait_us = s->now_us;
    link_lost(l, s->now_us);
}

static void streamer_drain(struct streamer *s)
{
    uint64_t one = 1;

    service_stopping();
    log_info("front: stopping; %d requests under way", s->n_open);
    s->drain_until_us = s->now_us;
    if (!s->draining) {
        s->drain_us = s->now_us;
        s->drain_until_us += (uint64_t)s->f->settings.drain_timeout_s * 1000000u;
    }
    s->draining = true;
    (void)!write(s->f->stop_fd, &one, sizeof one); /* never read: it stays readable */
}

/* Nothing of x was said: closed without an answer, it is asked for again at another front. */
static bool streamer_can_hand_back(const struct exchange *x)
{
    return !x->head_sent && x->out.len == 0 && !x->probe;
}

/* The engine is of another build, and will not take what is here. A front whose own file was
 * replaced makes room for the new one; nginx asks that, or another front's, for what has not begun.
 * Not at once: the others shall have stopped accepting by then, or it would come back from them. */
static void streamer_yield(struct streamer *s)
{
    uint64_t since_us = s->f->link.foreign_us;

    if (!s->draining) {
        if (!service_was_replaced())
            return; /* wait for an engine of this build, as for any */
        log_info("front: the engine is of another build, and so is the file of this program: "
                 "making room for it");
        streamer_drain(s);
    }
    since_us = since_us < s->drain_us ? s->drain_us : since_us;
    if (s->now_us - since_us < STREAMER_YIELD_US)
        return;
    for (struct exchange *x = s->open, *next; x != NULL; x = next) {
        next = x->next;
        if (x->complete)
            continue;
        if (streamer_can_hand_back(x)) {
            streamer_close(s, x);
            continue;
        }
        streamer_fail(s, x, ERR_ENGINE_GONE, NULL, NULL);
        streamer_flush(s, x);
    }
}

static void streamer_engine(struct streamer *s)
{
    struct link *l = &s->f->link;
    struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = &l->control_fd};

    if (!link_try(l, s->now_us)) {
        if (l->foreign_us != 0)
            streamer_yield(s);
        return;
    }
    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, l->control_fd, &ev) == -1) {
        log_error("front: epoll: %s", strerror(errno));
        link_lost(l, s->now_us);
        return;
    }
    vocabulary_want(&s->f->vocabulary, &l->engine);
    streamer_resume(s);
}

/* --- time --------------------------------------------------------------------------------- */

/* Its time is over, and the engine, which should have said so, does not. */
static bool streamer_late(const struct streamer *s, const struct exchange *x)
{
    return x->n_gens > 0 && x->gens[0].request.deadline_us != 0 &&
           s->now_us > x->gens[0].request.deadline_us + STREAMER_TICK_MS * 1000u;
}

/* Has one of x's generations been without an engine for too long? One that is leaving may take its
 * time with what it has; the wait for the next begins when it is gone. */
static bool streamer_waited(const struct streamer *s, const struct exchange *x)
{
    uint64_t wait_us = (uint64_t)s->f->settings.engine_wait_ms * 1000u;
    const struct link *l = &s->f->link;

    if (l->control_fd != -1 && atomic_load(&l->lane.shared->engine_state) == WIRE_DRAINING)
        return false;

    for (int i = 0; i < x->n_gens; i++) {
        if (x->gens[i].waiting && s->now_us - x->gens[i].wait_us > wait_us)
            return true;
    }
    return false;
}

static void streamer_tick_one(struct streamer *s, struct exchange *x)
{
    const struct settings *c = &s->f->settings;
    uint64_t stall_us = (uint64_t)c->client_stall_s * 1000000u;

    if ((x->out_sent < x->out.len || x->complete) && s->now_us - x->progress_us > stall_us) {
        streamer_close(s, x);
        return;
    }
    if (!x->complete && streamer_late(s, x))
        streamer_fail(s, x, ERR_DEADLINE, NULL, NULL);
    else if (!x->complete && streamer_waited(s, x))
        streamer_fail(s, x, ERR_ENGINE_GONE, NULL, NULL);
    else if (!x->complete && s->draining && s->now_us > s->drain_until_us)
        streamer_fail(s, x, ERR_DRAINING, NULL, NULL);
    else if (!x->complete && x->stream && x->head_sent && x->out.len == 0 &&
             s->now_us - x->said_us > (uint64_t)c->keepalive_s * 1000000u) {
        answer_keepalive(x);
        x->said_us = s->now_us;
    }
    streamer_flush(s, x);
}

static void streamer_tick(struct streamer *s)
{
    struct exchange *x = s->open;

    if (s->now_us - s->tick_us < STREAMER_TICK_MS * 1000u)
        return;
    s->tick_us = s->now_us;
    while (x != NULL) {
        struct exchange *next = x->next;

        streamer_tick_one(s, x);
        x = next;
    }
    service_watchdog(s->now_us);
}

/* --- the loop ----------------------------------------------------------------------------- */

/* An eventfd: one read takes all that was written. */
static void streamer_take_wake(int fd)
{
    uint64_t n;

    (void)!read(fd, &n, sizeof n); /* non-blocking */
}

static void streamer_drain_fd(int fd)
{
    char bytes[512];

    while (read(fd, bytes, sizeof bytes) > 0)
        continue; /* non-blocking */
}

/* An exchange's socket: the client left, or takes bytes again. */
static void streamer_client(struct streamer *s, struct exchange *x, uint32_t events)
{
    if (x->dead)
        return;
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
        streamer_close(s, x);
        return;
    }
    streamer_flush(s, x);
    for (int i = 0; i < x->n_gens && !x->dead; i++) {
        if (x->gens[i].slot >= 0)
            streamer_slot(s, (uint32_t)x->gens[i].slot); /* records that were left waiting */
    }
}

static void streamer_events(struct streamer *s, int timeout_ms)
{
    struct front *f = s->f;
    struct epoll_event ev[STREAMER_EVENTS];
    int n = epoll_wait(s->epoll_fd, ev, STREAMER_EVENTS, timeout_ms);
    bool spells = false; /* the vocabulary may be there */

    s->now_us = clock_us();
    for (int i = 0; i < n; i++) {
        void *p = ev[i].data.ptr;

        if (p == &f->link.control_fd) {
            if ((ev[i].events & (EPOLLRDHUP | EPOLLHUP)) != 0 ||
                lane_take_wakes(f->link.control_fd) != ERR_OK)
                streamer_engine_lost(s);
        } else if (p == &f->signal_fd) {
            streamer_drain_fd(f->signal_fd);
            streamer_drain(s);
        } else if (p == &f->handover_fd) {
            streamer_take_wake(f->handover_fd);
            spells = true;
        } else {
            streamer_client(s, p, ev[i].events);
        }
    }
    streamer_adopt_all(s);
    if (spells)
        streamer_spell(s);
}

static int streamer_timeout_ms(struct streamer *s)
{
    struct link *l = &s->f->link;

    if (!streamer_may_sleep(s))
        return 0;
    if (l->control_fd == -1)
        return STREAMER_DETACHED_MS;
    if (!lane_front_sleep(&l->lane))
        return 0;
    return s->n_open > 0 ? STREAMER_TICK_MS : 2 * STREAMER_TICK_MS;
}

static void streamer_bury(struct streamer *s)
{
    while (s->dead != NULL) {
        struct exchange *x = s->dead;

        s->dead = x->next;
        exchange_free(x);
    }
}

static int streamer_open(struct streamer *s)
{
    struct front *f = s->f;
    int *fds[] = {&f->signal_fd, &f->handover_fd};

    s->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        struct epoll_event ev = {.events = EPOLLIN, .data.ptr = fds[i]};

        if (s->epoll_fd == -1 || epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, *fds[i], &ev) == -1) {
            log_error("front: epoll: %s", strerror(errno));
            return ERR_IO;
        }
    }
    return ERR_OK;
}

/* A reader may be held by a body that never comes whole: its time ends with the drain. The last
 * reader may have handed something over since this pass looked. */
static bool streamer_goes_on(struct streamer *s)
{
    if (!s->draining || s->n_open > 0)
        return true;
    if (atomic_load(&s->f->n_readers) > 0)
        return s->now_us <= s->drain_until_us;
    streamer_adopt_all(s); /* before n_readers became 0: all of it is in the list */
    return s->n_open > 0 || s->dead != NULL;
}

int streamer_run(struct front *f)
{
    struct streamer s = {.f = f, .epoll_fd = -1, .now_us = clock_us()};
    int rc = streamer_open(&s);

    while (rc == ERR_OK && streamer_goes_on(&s)) {
        int timeout_ms = streamer_timeout_ms(&s);

        streamer_events(&s, timeout_ms);
        if (f->link.control_fd != -1)
            lane_front_awake(&f->link.lane);
        streamer_engine(&s);
        streamer_lane(&s);
        streamer_flush_all(&s);
        streamer_tick(&s);
        streamer_bury(&s);
    }
    return rc;
}
