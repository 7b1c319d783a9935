/* SPDX-License-Identifier: Apache-2.0
 *
 * Submission: generations are checked, get a slot and are written to the lane; or they wait in a
 * list until there is an engine, a vocabulary, or room.
 *
 * The result of a submission:
 *
 *   ERR_OK            submitted
 *   ERR_AGAIN         waits for the vocabulary
 *   ERR_ENGINE_GONE   waits for an engine
 *   ERR_OVERLOADED    waits for room if its answer has begun; otherwise it is refused
 *   others            the answer is an error */
#include <stdatomic.h>
#include <stdio.h>

#include "base/must.h"
#include "front/answer/answer.h"
#include "front/answer/beams.h"
#include "front/answer/logprobs.h"
#include "front/answer/pooled.h"
#include "front/stream/streamer_parts.h"

/* Put a generation on the waiting list. Those whose answer has begun come first: their clients
 * already see a stream that has stopped. */
void streamer_wait_add(struct streamer *s, struct gen *g, enum gen_wants wants)
{
    struct gen **at = &s->waiting;
    bool begun = g->exchange->head_sent;

    must(g->slot < 0);
    if (g->waiting)
        return;
    while (*at != NULL && (!begun || (*at)->exchange->head_sent))
        at = &(*at)->next;
    g->next = *at;
    g->waiting = true;
    g->wants = wants;
    g->wait_us = s->now_us;
    if (wants == GEN_WANTS_ENGINE)
        g->exchange->served->wanted = true;
    *at = g;
}

/* Take a generation off the list, if it is on it. */
void streamer_wait_remove(struct streamer *s, struct gen *g)
{
    struct gen **at = &s->waiting;

    if (!g->waiting)
        return;
    while (*at != g)
        at = &(*at)->next;
    *at = g->next;
    g->waiting = false;
}

/* Was g accepted by an engine, or has its client a part of the answer? Then it cannot be refused
 * any more and waits until there is room. */
static bool streamer_goes_on_with(const struct gen *g)
{
    return g->n_submits > 0 || g->tokens.len > g->n_prompt || g->exchange->head_sent;
}

bool streamer_has_others(const struct gen *g)
{
    const struct exchange *x = g->exchange;
    bool has = false;

    for (int i = 0; i < x->n_gens && x->pooled != NULL; i++)
        has =
            has || (&x->gens[i] != g && (x->gens[i].slot >= 0 || x->gens[i].finish != GEN_RUNNING));
    return has;
}

/* Count a refusal for the metrics. A generation that goes on is not refused, only delayed. */
static void streamer_count_refused(const struct gen *g, enum wire_refusal why)
{
    if (!streamer_goes_on_with(g) && !streamer_has_others(g))
        link_count_refused(g->link, why);
}

/* The same for an answer that is pooled. */
static int streamer_check_pooled(const struct gen *g, struct reason *reason)
{
    const struct pooled *p = g->exchange->pooled;
    uint32_t n = g->link->engine.n_pooled;

    reason->param = p->param;
    if (n == 0) {
        (void)snprintf(reason->text, sizeof reason->text,
                       "the engine generates text: its settings (runner, task) are not those of "
                       "this front");
        return ERR_UNSUPPORTED;
    }
    if (p->model->kind == POOLING_EMBED && p->dimensions > 0 && (uint32_t)p->dimensions > n) {
        reason->param = "dimensions";
        (void)snprintf(reason->text, sizeof reason->text, "'dimensions' must be at most %u", n);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* The checks that need values of the engine's welcome. ERR_OK, or an error with a sentence in
 * why. */
static int streamer_check(const struct gen *g, struct reason *reason)
{
    const struct wire_welcome *welcome = &g->link->engine;
    const struct exchange *x = g->exchange;
    uint64_t longest = welcome->max_model_len;
    uint64_t more = exchange_least_answer(x);
    int rc;

    must(g->tokens.len >= g->n_prompt);
    reason->param = x->format == EXCHANGE_CHAT ? "messages" : "prompt";
    if (x->pooled != NULL && (rc = streamer_check_pooled(g, reason)) != ERR_OK)
        return rc;
    if (g->n_prompt + more > longest) {
        (void)snprintf(reason->text, sizeof reason->text,
                       "This model's maximum context length is %llu tokens. However, you "
                       "requested %llu tokens (%u in the prompt, %llu in the completion).",
                       (unsigned long long)longest, (unsigned long long)(g->n_prompt + more),
                       g->n_prompt, (unsigned long long)more);
        return ERR_TOO_LONG;
    }
    /* The engine would index the embedding with these ids. */
    for (size_t i = 0; i < g->tokens.len; i++) {
        if (g->tokens.ids[i] < 0 || g->tokens.ids[i] >= (int64_t)welcome->n_vocab) {
            (void)snprintf(reason->text, sizeof reason->text,
                           "token id %d is not in the model's vocabulary of %u", g->tokens.ids[i],
                           welcome->n_vocab);
            return ERR_INVALID;
        }
    }
    if (g->request.task == WIRE_GENERATE)
        return logprobs_check(g, welcome->n_vocab, x->served->defaults.max_logprobs,
                              welcome->max_model_len, reason);
    return ERR_OK;
}

/* Make sure that the engine has the vocabulary and the exchange's automaton before it takes the
 * request. ERR_AGAIN while the vocabulary is being made. */
static int streamer_upload(const struct gen *g, const struct wire_request *r, uint32_t *automaton)
{
    const struct exchange *x = g->exchange;
    struct link *link = g->link;
    int sealed;
    size_t bytes;
    uint32_t idx = 0;
    int rc;

    *automaton = 0;
    if (r->task != WIRE_GENERATE || (x->compiled == NULL && r->generate.think_max == 0))
        return ERR_OK;
    rc = vocabulary_get(&x->served->vocabulary, &sealed, &bytes);
    if (rc != ERR_OK)
        return rc;
    /* The engine must have the vocabulary first, because automata refer to its tokens. */
    rc = uploads_add_vocabulary(&link->uploads, link->control_fd, sealed, bytes);
    if (rc == ERR_OK && x->compiled == NULL)
        return ERR_OK;
    if (rc == ERR_OK)
        rc = uploads_claim(&link->uploads, link->control_fd, x->compiled, &idx);
    if (rc == ERR_OK)
        *automaton = idx + 1;
    if (rc == ERR_AGAIN)
        return ERR_OVERLOADED;
    return rc;
}

/* Fill in the members of a generation that are known only now. */
static void streamer_fill_generate(const struct gen *g, uint32_t automaton, struct wire_generate *r)
{
    const struct exchange *x = g->exchange;
    uint32_t n_vocab = g->link->engine.n_vocab;

    must(g->n_prompt + exchange_least_answer(x) <= g->link->engine.max_model_len);

    if (r->n_logprobs > WIRE_LOGPROBS_MAX && r->n_logprobs > n_vocab)
        r->n_logprobs = n_vocab;
    if (r->n_prompt_logprobs > WIRE_LOGPROBS_MAX && r->n_prompt_logprobs > n_vocab)
        r->n_prompt_logprobs = n_vocab;
    r->automaton = automaton;
    r->n_prompt = g->n_prompt;
    r->answer = x->answer;
    r->n_choices = (uint32_t)x->n;
    r->max_tokens = g->link->engine.max_model_len - g->n_prompt; /* above 0: streamer_check() */
    if (x->max_tokens_given && x->max_tokens < r->max_tokens)
        r->max_tokens = x->max_tokens;
    if (x->pooled != NULL)
        r->max_tokens = 1;
    if (x->probe && g->link->engine.n_pooled > 0)
        r->pooling = WIRE_POOL_LAST;
    /* A beam asks for one token per step. */
    if (x->beams != NULL) {
        r->max_tokens = beams_max_tokens(g);
        r->answer = 0; /* the beams of a step do not wait for each other */
        r->n_choices = 1;
    }
}

/* Write g into a slot of the lane. */
static int streamer_fill_slot(struct gen *g, uint32_t slot, struct wire_request r,
                              const int32_t *extra)
{
    struct link *link = g->link;
    uint32_t automaton;
    int rc = streamer_upload(g, &r, &automaton);

    must(slot < link->lane.n_slots);
    if (rc != ERR_OK)
        return rc;
    /* From here on link_release() returns the automaton with the slot. */
    link->automaton[slot] = automaton;
    r.flags |= logprobs_restart(g);
    r.arrival_us = g->exchange->arrival_us;
    r.n_tokens = (uint32_t)g->tokens.len;
    if (r.task == WIRE_GENERATE)
        streamer_fill_generate(g, automaton, &r.generate);
    rc = lane_submit(&link->lane, slot, r, g->tokens.ids, extra);
    if (rc == ERR_OK) {
        link->unpublished = true;
        return ERR_OK;
    }
    streamer_count_refused(g, WIRE_REFUSED_SLOTS);
    return ERR_OVERLOADED;
}

/* Make the words that follow a generation's tokens. Errors have a reason. */
static int streamer_steer(const struct exchange *x, uint32_t n_vocab, struct wire_request *r,
                          int32_t **extra, struct reason *reason)
{
    int32_t wrong;
    int rc;

    *extra = NULL;
    if (r->task != WIRE_GENERATE)
        return ERR_OK;
    rc = token_rules_write(&x->token_rules, n_vocab, &r->generate, extra, &reason->param, &wrong);
    if (rc == ERR_INVALID)
        (void)snprintf(reason->text, sizeof reason->text,
                       "'%s' has token id %d; this model's are 0 to %u", reason->param, wrong,
                       n_vocab - 1);
    return rc;
}

/* The engine that g must follow: the only one that it is for; that of an earlier choice of its
 * prompt, or of its stream, because choices of one answer share their prompt, and none is refused
 * once another has begun; or that of the step before of its beam. NULL: any; so it is for one that
 * goes on, because its engine may have no room or drain. */
static struct link *streamer_follows(const struct gen *g)
{
    const struct exchange *x = g->exchange;
    const struct gen *from = x->stream ? x->gens : g - g->index % x->n;

    if (g->only > 0)
        return &x->served->engines.links[g->only - 1];
    if (x->served->engines.n == 1)
        return NULL;
    if (x->beams != NULL && g->link != NULL && engines_takes(g->link))
        return g->link;
    if (streamer_goes_on_with(g))
        return NULL;
    for (; from < g; from++) {
        if (from->slot >= 0 && engines_takes(from->link))
            return from->link;
    }
    return NULL;
}

/* Choose the engine for g: sets g->link. *refusal: would it refuse the request? ERR_ENGINE_GONE
 * when none is attached. */
static int streamer_choose(struct streamer *s, struct gen *g, const struct wire_request *r,
                           enum wire_refusal *refusal)
{
    struct link *link = streamer_follows(g);

    *refusal = WIRE_NOT_REFUSED;
    if (link == NULL)
        link = engines_choose(&g->exchange->served->engines, r, g->held, s->now_us, refusal);
    else if (link->control_fd != -1)
        *refusal = link_refuses(link, r);
    if (link == NULL || link->control_fd == -1)
        return ERR_ENGINE_GONE;
    g->link = link;
    return ERR_OK;
}

/* Submit g. ERR_OVERLOADED when there is no slot, no room for its prompt or no place for its
 * automaton; ERR_AGAIN when it must wait for the vocabulary; ERR_ENGINE_GONE. */
static int streamer_submit_gen(struct streamer *s, struct gen *g, struct reason *reason)
{
    struct wire_request request = g->request;
    enum wire_refusal refusal;
    int32_t *extra;
    int64_t slot;
    int rc;

    must(g->slot < 0);
    request.flags = (streamer_goes_on_with(g) ? WIRE_RESUMED : 0) |
                    (g->exchange->probe || g->exchange->asks ? WIRE_PROBE : 0);
    request.n_tokens = (uint32_t)g->tokens.len;
    rc = streamer_choose(s, g, &request, &refusal);
    if (rc == ERR_OK)
        rc = streamer_check(g, reason);
    if (rc != ERR_OK)
        return rc;
    /* Refuse before a slot is taken and anything is copied. */
    if (refusal != WIRE_NOT_REFUSED) {
        streamer_count_refused(g, refusal);
        reason->param = NULL;
        return ERR_OVERLOADED;
    }
    rc = streamer_steer(g->exchange, g->link->engine.n_vocab, &request, &extra, reason);
    if (rc != ERR_OK)
        return rc;
    reason->param = NULL;
    /* A slot without a request is given back below. */
    slot = link_claim(g->link, request.tenant);
    if (slot < 0)
        rc = ERR_OVERLOADED;
    else
        rc = streamer_fill_slot(g, (uint32_t)slot, request, extra);
    mem_free(extra);
    if (rc != ERR_OK) {
        if (slot >= 0)
            link_release(g->link, (uint32_t)slot);
        return rc;
    }
    g->slot = slot;
    g->n_submits++;
    g->link->by_slot[slot] = g;
    return ERR_OK;
}

/* The result decides: submitted, waiting for something, or failed. */
static void streamer_submit_one(struct streamer *s, struct gen *g)
{
    struct exchange *x = g->exchange;
    struct reason reason = {.text = ""};
    int rc;

    rc = streamer_submit_gen(s, g, &reason);
    if (rc == ERR_AGAIN)
        streamer_wait_add(s, g, GEN_WANTS_VOCABULARY);
    else if (rc == ERR_ENGINE_GONE)
        streamer_wait_add(s, g, GEN_WANTS_ENGINE);
    else if (rc == ERR_OVERLOADED && (streamer_goes_on_with(g) || streamer_has_others(g)))
        streamer_wait_add(s, g, GEN_WANTS_ROOM);
    else if (rc != ERR_OK)
        streamer_fail(s, x, rc, reason.text, reason.param);
}

/* Let the engines take the submitted choices of one answer. */
static void streamer_publish(struct streamer *s)
{
    for (int i = 0; i < s->f->n_links; i++) {
        if (s->f->links[i]->control_fd != -1)
            link_publish(s->f->links[i]);
    }
}

/* Submit all choices of an answer that are not waiting, then let the engine take them in one pass,
 * so that they share the work on their prompt. */
void streamer_submit(struct streamer *s, struct exchange *x)
{
    for (int i = 0; i < x->n_gens && !x->complete; i++) {
        if (x->beams == NULL || beams_asks(&x->gens[i]))
            streamer_submit_one(s, &x->gens[i]);
    }
    streamer_publish(s);
}

struct gen *streamer_first(const struct streamer *s, const struct served *m, enum gen_wants wants)
{
    struct gen *g = s->waiting;

    while (g != NULL && (g->wants != wants || g->exchange->served != m))
        g = g->next;
    return g;
}

/* Submit a waiting generation. Consecutive ones of one answer are published together. */
static void streamer_submit_waiting(struct streamer *s, struct gen *g)
{
    struct exchange *x = g->exchange;
    bool last = g->next == NULL || g->next->exchange != x;

    streamer_wait_remove(s, g);
    streamer_submit_one(s, g);
    if (last)
        streamer_publish(s);
    streamer_flush(s, x);
}

/* The vocabulary may be ready: submit the generations that wait for it. */
void streamer_spell(struct streamer *s)
{
    struct gen *g;
    int sealed;
    size_t bytes;

    for (int i = 0; i < s->f->n_served && s->waiting != NULL; i++) {
        struct served *m = &s->f->served[i];

        if (vocabulary_get(&m->vocabulary, &sealed, &bytes) == ERR_AGAIN)
            continue;
        /* Each pass removes one from the list; one that fails removes others of its exchange,
         * too. */
        while ((g = streamer_first(s, m, GEN_WANTS_VOCABULARY)) != NULL)
            streamer_submit_waiting(s, g);
    }
    streamer_publish(s);
}

/* There may be room again: submit a model's waiting generations in their order, until one finds no
 * room. */
void streamer_submit_rest(struct streamer *s, const struct served *m)
{
    struct gen *g;

    if (streamer_first(s, m, GEN_WANTS_ROOM) == NULL)
        return;
    /* Each pass removes one, or makes it wait for the vocabulary, or ends the loop. */
    while ((g = streamer_first(s, m, GEN_WANTS_ROOM)) != NULL) {
        uint64_t wait_us = g->wait_us;

        streamer_submit_waiting(s, g);
        if (g->waiting && g->wants == GEN_WANTS_ROOM) {
            g->wait_us = wait_us; /* its wait goes on */
            break;                /* those after it would find no room either */
        }
    }
    streamer_publish(s);
}

void streamer_go_on(struct streamer *s, struct gen *g)
{
    bool any = g->only == 0 && engines_serve(&g->exchange->served->engines);

    streamer_wait_add(s, g, any ? GEN_WANTS_ROOM : GEN_WANTS_ENGINE);
}

/* All waiting generations of a model may be submitted, but those that are for an engine that is not
 * there. */
void streamer_resume(struct streamer *s, struct served *m)
{
    for (struct gen *g = s->waiting; g != NULL; g = g->next) {
        if (g->exchange->served != m ||
            (g->only > 0 && m->engines.links[g->only - 1].control_fd == -1))
            continue;
        g->wants = GEN_WANTS_ROOM;
        g->wait_us = s->now_us;
    }
    streamer_submit_rest(s, m);
}
