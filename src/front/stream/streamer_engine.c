/* SPDX-License-Identifier: Apache-2.0
 *
 * Engines that come and go. When the engine dies, generations are submitted to the next one with
 * their output so far as part of the prompt, so that clients only notice a pause. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "base/must.h"
#include "base/service.h"
#include "front/answer/pooled.h"
#include "front/stream/streamer_parts.h"

#define STREAMER_YIELD_US 1000000 /* us before an unfinished request is given to another front */
#define STREAMER_LOST_MAX 3       /* so many engines may die during a request before it is blamed */

/* Is g's output complete although WIRE_FINISHED is missing, because the engine died in between? No
 * other engine could continue it. Fills *o with the missing record. */
static bool streamer_said_all(const struct gen *g, struct wire_out *o)
{
    const struct exchange *x = g->exchange;
    size_t n_out = g->tokens.len - g->n_prompt;
    size_t longest = g->link->engine.max_model_len - g->n_prompt;

    must(g->tokens.len >= g->n_prompt);
    *o = (struct wire_out){.kind = WIRE_FINISHED, .finish = WIRE_FIN_STOP};
    if (x->asks)
        return g->request.task == WIRE_POWER && g->request.power.action == WIRE_END;
    if (x->pooled != NULL)
        return pooled_is_whole(g);
    if (x->max_tokens_given && x->max_tokens < longest)
        longest = x->max_tokens;
    *o = (struct wire_out){.kind = WIRE_FINISHED, .finish = WIRE_FIN_LENGTH};
    if (g->ended) {
        o->finish = WIRE_FIN_STOP;
        o->value = g->tokens.ids[g->tokens.len - 1];
    }
    return g->ended || n_out >= longest;
}

/* The model of a link. */
static struct served *streamer_served(const struct streamer *s, const struct link *link)
{
    int i = 0;

    while (i + 1 < s->f->n_served && (link < s->f->served[i].engines.links ||
                                      link >= s->f->served[i].engines.links + ENGINES_MAX))
        i++;
    return &s->f->served[i];
}

/* The connection to an engine is gone: read the rest of its lane, then let all its unfinished
 * generations go on with another engine, or wait for one. */
void streamer_engine_lost(struct streamer *s, struct link *link)
{
    struct served *m = streamer_served(s, link);

    must(link->control_fd != -1);
    /* The records that the engine wrote before it died are still in the lane. */
    streamer_lane(s, link);
    for (uint32_t i = 0; i < link->lane.n_slots; i++) {
        struct gen *g = link->by_slot[i];
        struct wire_out end;

        if (g == NULL)
            continue;
        if (streamer_said_all(g, &end)) {
            streamer_finished(s, g, &end);
            streamer_flush(s, g->exchange);
            continue;
        }
        g->slot = -1;
        link->by_slot[i] = NULL; /* the answer may fail, and then lets all its generations go */
        if (++g->n_lost >= STREAMER_LOST_MAX) {
            /* It was running in each of the engines that died, so it may be the cause. */
            streamer_fail(s, g->exchange, ERR_INTERNAL,
                          "the engine stopped several times during this request", NULL);
            streamer_flush(s, g->exchange);
        } else {
            streamer_wait_add(s, g, GEN_WANTS_ENGINE);
        }
    }
    link_lost(link, s->now_us);
    /* A connection would start the next one. */
    if (m->on_demand)
        m->wanted = streamer_first(s, m, GEN_WANTS_ENGINE) != NULL;
    if (engines_serve(&m->engines)) {
        streamer_resume(s, m);
        return;
    }
    for (struct gen *g = s->waiting; g != NULL; g = g->next) {
        if (g->exchange->served == m)
            g->wait_us = s->now_us;
    }
}

/* Nothing of x was sent: when its connection is closed now, nginx tries another front. */
static bool streamer_can_hand_back(const struct exchange *x)
{
    return !x->head_sent && x->out.len == 0 && !x->probe;
}

/* Since when the engines are of another build; 0: none is, or one is attached. */
static uint64_t streamer_foreign_us(const struct streamer *s)
{
    uint64_t since_us = 0;

    for (int i = 0; i < s->f->n_links; i++) {
        const struct link *link = s->f->links[i];

        if (link->control_fd != -1)
            return 0;
        if (link->foreign_us != 0 && (since_us == 0 || link->foreign_us < since_us))
            since_us = link->foreign_us;
    }
    return since_us;
}

/* The engines are of another build and cannot take our requests. If our own program file was
 * replaced, stop, so that systemd starts the new one; nginx passes the requests that have no answer
 * yet to it or to another front. Wait a little before closing them, because the other fronts must
 * also have stopped accepting, or nginx would pass them to one of those. */
static void streamer_yield(struct streamer *s, uint64_t since_us)
{
    if (!s->draining) {
        if (!service_was_replaced())
            return; /* wait for an engine of this build */
        log_info("front: engine and program file are of another build: stopping, so that the new "
                 "version can start");
        streamer_drain(s);
    }
    if (since_us < s->drain_us)
        since_us = s->drain_us;
    if (s->now_us - since_us < STREAMER_YIELD_US)
        return;
    for (struct exchange *x = s->open, *next; x != NULL; x = next) {
        next = x->next;
        if (x->complete || streamer_keeps(x))
            continue;
        if (streamer_can_hand_back(x)) {
            streamer_close(s, x);
            continue;
        }
        streamer_fail(s, x, ERR_ENGINE_GONE, NULL, NULL);
        streamer_flush(s, x);
    }
}

/* Poll a connection to an engine; `data` is the address of the variable that has it. A connection
 * that was polled for its welcome is in the set already. */
static int streamer_poll(struct streamer *s, int fd, uint32_t events, const int *data)
{
    struct epoll_event ev = {.events = events, .data.ptr = (void *)(uintptr_t)data};

    if (epoll_ctl(s->epoll_fd, EPOLL_CTL_MOD, fd, &ev) == 0 ||
        epoll_ctl(s->epoll_fd, EPOLL_CTL_ADD, fd, &ev) == 0)
        return ERR_OK;
    log_error("front: epoll: %s", strerror(errno));
    return ERR_IO;
}

/* Try to attach to engine i of m; true when it is attached and polled. */
static bool streamer_attach(struct streamer *s, struct served *m, int i)
{
    struct link *link = &m->engines.links[i];
    int calling_fd = link->calling_fd;

    /* A connection would start the engine. */
    if (m->on_demand && !m->wanted)
        return false;
    if (!engines_try(&m->engines, i, s->now_us)) {
        /* The welcome ends the wait; without the poll it is found a little later. */
        if (link->calling_fd != -1 && link->calling_fd != calling_fd)
            (void)!streamer_poll(s, link->calling_fd, EPOLLIN, &link->calling_fd);
        return false;
    }
    if (streamer_poll(s, link->control_fd, EPOLLIN | EPOLLRDHUP, &link->control_fd) != ERR_OK) {
        link_lost(link, s->now_us);
        return false;
    }
    vocabulary_want(&m->vocabulary, &link->engine);
    return true;
}

/* The engine of m cannot be started, or found no room: end the requests that wait for it. */
static void streamer_refused(struct streamer *s, struct served *m, int err)
{
    struct gen *g;
    char why[256];

    (void)snprintf(why, sizeof why,
                   "the engine of the model '%.100s' cannot be started; its log has the reason",
                   m->model_name);
    /* Each pass ends an exchange, whose generations leave the list. */
    while ((g = streamer_first(s, m, GEN_WANTS_ENGINE)) != NULL) {
        struct exchange *x = g->exchange;

        if (err == ERR_ASLEEP)
            streamer_fail(s, x, err, NULL, NULL);
        else
            streamer_fail(s, x, ERR_ENGINE_GONE, why, NULL);
        streamer_flush(s, x);
    }
}

/* An engine that runs is attached to, also without a request, so that its state and its load are
 * known. */
void streamer_look_around(struct streamer *s)
{
    if (!s->f->served[0].on_demand)
        return;
    served_want_running(s->f->served, s->f->n_served, s->f->settings.models_run);
    for (int i = 0; i < s->f->n_served; i++) {
        struct served *m = &s->f->served[i];

        m->wanted = m->wanted || streamer_first(s, m, GEN_WANTS_ENGINE) != NULL;
        for (int k = 0; k < m->engines.n && !m->wanted; k++)
            link_hang_up(&m->engines.links[k]);
    }
}

/* The same for one model. True: an engine was attached. */
static bool streamer_engine_of(struct streamer *s, struct served *m)
{
    bool any = false;

    for (int i = 0; i < m->engines.n; i++)
        any = streamer_attach(s, m, i) || any;
    for (int i = 0; i < m->engines.n; i++) {
        int err = m->engines.links[i].refused;

        m->engines.links[i].refused = ERR_OK;
        if (err != ERR_OK)
            streamer_refused(s, m, err);
    }
    if (any)
        streamer_resume(s, m);
    else
        streamer_submit_rest(s, m);
    return any;
}

/* In each pass: attach to the engines that there are, and submit waiting generations. */
void streamer_engine(struct streamer *s)
{
    bool any = false;
    uint64_t since_us;

    for (int i = 0; i < s->f->n_served; i++)
        any = streamer_engine_of(s, &s->f->served[i]) || any;
    since_us = streamer_foreign_us(s);
    if (!any && since_us != 0)
        streamer_yield(s, since_us);
}
