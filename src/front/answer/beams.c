/* SPDX-License-Identifier: Apache-2.0
 *
 * The beam search of beams.h. gen.told holds the records of one step only: the alternatives of the
 * next token. The records of a beam's earlier tokens are kept with the beam, and put back into the
 * generation at the end.
 *
 * One step: the streamer submits a generation per live beam for one token, beams_told() is called
 * for each answer, and after the last of them the best extensions become the next live beams.
 *
 * With two beams, for example:
 *
 *   live beams       a, sum -1.0             b, sum -1.5
 *   alternatives     x -0.2   y -0.9 ...     x -0.1   z -2.0 ...
 *   next beams       ax, sum -1.2            bx, sum -1.6           (ay would be -1.9) */
#include "front/answer/beams.h"

#include <math.h>
#include <string.h>

#include "base/must.h"
#include "front/answer/logprobs.h"

struct beam {
    struct token_list out; /* tokens after the prompt, including the end of text */
    struct buf told;       /* struct logprob of the tokens in out, in the form of gen.told */
    double sum;            /* the sum of the log probabilities of out */
    double score;          /* only of a complete beam */
    bool ended;            /* the last token ends the text */
};

/* An extension of a live beam by one token. */
struct extension {
    int parent; /* index of the live beam */
    struct logprob token;
    double sum;
};

/* Where a generation is in the current step: without a beam, to be submitted, or submitted. */
enum beams_phase { PHASE_IDLE, PHASE_READY, PHASE_ASKED };

/* The search for one prompt. Arrays have n elements, one for each beam. */
struct beams_prompt {
    struct beam *live;        /* [n]; live[i] is in the prompt's generation i */
    struct beam *next;        /* [n]: the beams of the next step under construction */
    struct beam *done;        /* [n]: complete beams, best first */
    struct extension *best;   /* [n] */
    enum beams_phase *phases; /* [n] */
    int n_live;
    int n_done;
    int n_asked; /* generations of this step that the engine has not answered */
};

struct beams {
    struct beams_options o;
    int n;
    int n_prompts;
    bool ignores_eos;
    bool tells;     /* the client wants log probabilities */
    uint32_t n_top; /* alternatives per token that the client wants */
    struct beams_prompt prompts[];
};

/* The search that g belongs to. */
static struct beams_prompt *beams_of(const struct gen *g)
{
    must(g->exchange->beams != NULL);
    return &g->exchange->beams->prompts[g->index / g->exchange->n];
}

/* The first generation of g's prompt. */
static struct gen *beams_first(const struct gen *g)
{
    return &g->exchange->gens[g->index - g->index % g->exchange->n];
}

/* Free a beam's memory. */
static void beam_fini(struct beam *b)
{
    token_list_fini(&b->out);
    buf_fini(&b->told);
    *b = (struct beam){0};
}

/* The function in exchange.on_free: beams have memory outside the arena. */
static void beams_free(struct exchange *x)
{
    struct beams *search = x->beams;

    for (int i = 0; i < search->n_prompts; i++) {
        for (int k = 0; k < search->n; k++) {
            beam_fini(&search->prompts[i].live[k]);
            beam_fini(&search->prompts[i].next[k]);
            beam_fini(&search->prompts[i].done[k]);
        }
    }
}

/* Set up the searches. Each begins with one beam, the prompt itself. Generations get the options
 * that the search needs: alternatives for each token, no end by the engine. */
int beams_init(struct exchange *x, const struct beams_options *o)
{
    size_t n = (size_t)x->n;
    int n_prompts = x->n_gens / x->n;
    struct beams *search =
        arena_zalloc(&x->arena, sizeof *search + (size_t)n_prompts * sizeof search->prompts[0]);
    struct wire_request *request = &x->gens[0].request;

    must(x->beams == NULL);
    must(x->n >= 1 && x->n <= BEAMS_WIDTH_MAX);
    must(x->n_gens % x->n == 0);
    if (search == NULL)
        return ERR_NO_MEMORY;
    search->o = *o;
    search->n = x->n;
    search->n_prompts = n_prompts;
    search->ignores_eos = (request->flags & WIRE_IGNORE_EOS) != 0;
    search->tells = (request->flags & WIRE_LOGPROBS) != 0;
    search->n_top = request->generate.n_logprobs;
    for (int i = 0; i < n_prompts; i++) {
        struct beams_prompt *prompt = &search->prompts[i];

        prompt->live = arena_zalloc(&x->arena, n * sizeof *prompt->live);
        prompt->next = arena_zalloc(&x->arena, n * sizeof *prompt->next);
        prompt->done = arena_zalloc(&x->arena, n * sizeof *prompt->done);
        prompt->best = arena_zalloc(&x->arena, n * sizeof *prompt->best);
        prompt->phases = arena_zalloc(&x->arena, n * sizeof *prompt->phases);
        if (prompt->live == NULL || prompt->next == NULL || prompt->done == NULL ||
            prompt->best == NULL || prompt->phases == NULL)
            return ERR_NO_MEMORY;
        prompt->n_live = 1; /* the prompt itself */
        prompt->phases[0] = PHASE_READY;
        prompt->n_asked = 1;
    }
    for (int i = 0; i < x->n_gens; i++) {
        request = &x->gens[i].request;
        request->flags |= WIRE_LOGPROBS | WIRE_IGNORE_EOS;
        /* 2n alternatives: n may end the text, and then n still remain to go on with. */
        request->generate.n_logprobs =
            2 * (uint32_t)x->n > search->n_top ? 2 * (uint32_t)x->n : search->n_top;
        request->generate.sampling.temperature =
            0.0f; /* the engine's choice of a token is ignored */
        request->generate.sampling.repetition_penalty = 1.0f;
    }
    x->beams = search;
    x->on_free = beams_free;
    return ERR_OK;
}

/* Must g be submitted in this step? True once for each step. */
bool beams_asks(struct gen *g)
{
    enum beams_phase *phase = &beams_of(g)->phases[g->index % g->exchange->n];

    if (*phase != PHASE_READY)
        return false;
    *phase = PHASE_ASKED;
    return true;
}

/* The engine generates one more token than g has. */
uint32_t beams_max_tokens(const struct gen *g)
{
    must(g->tokens.len >= g->n_prompt);
    return (uint32_t)g->tokens.len - g->n_prompt + 1;
}

/* --- one step ------------------------------------------------------------------------------ */

/* The score of a beam: the sum of its log probabilities, divided by a power of its length. */
static double beams_score(const struct gen *first, double sum, size_t n_out)
{
    return sum / pow((double)(first->n_prompt + n_out), first->exchange->beams->o.length_penalty);
}

/* Does this token end the text: a stop id of the request, or the model's end of text? */
static bool beams_is_end(const struct gen *first, int32_t id, const int32_t *ends, uint32_t n_ends)
{
    if (token_rules_has_stop(&first->exchange->token_rules, id))
        return true;
    for (uint32_t i = 0; i < n_ends; i++) {
        if (ends[i] == id)
            return true;
    }
    return false;
}

/* Make *to of *from and the token of e. `told` has the records of the step, of which the client
 * gets the first n_top alternatives. */
static int beam_extend(struct beam *to, const struct beam *from, const struct extension *e,
                       const struct buf *told, const struct beams *b)
{
    struct logprob entry = e->token;
    uint32_t n_top = 0;
    int rc = ERR_OK;

    beam_fini(to);
    for (size_t i = 0; i < from->out.len && rc == ERR_OK; i++)
        rc = token_list_add(&to->out, from->out.ids[i]);
    if (rc == ERR_OK)
        rc = token_list_add(&to->out, entry.id);
    to->sum = e->sum;
    if (!b->tells)
        return rc;
    if (from->told.len > 0)
        buf_add(&to->told, from->told.bytes, from->told.len);
    entry.begins = true;
    buf_add(&to->told, &entry, sizeof entry);
    for (size_t at = sizeof entry; at < told->len && n_top < b->n_top; at += sizeof entry, n_top++)
        buf_add(&to->told, told->bytes + at, sizeof entry);
    if (to->told.failed)
        return ERR_NO_MEMORY;
    return rc;
}

/* Insert a complete beam into the list of the n best; the worst of more than n is dropped. Among
 * equal ones the earlier stays first. */
static int beams_complete(struct gen *first, int parent, const struct extension *e)
{
    const struct beams *search = first->exchange->beams;
    struct beams_prompt *prompt = beams_of(first);
    double score = beams_score(first, e->sum, prompt->live[parent].out.len);
    struct beam made = {0};
    int at = prompt->n_done;
    int rc;

    must(parent < prompt->n_live);
    /* The list is short, so it is kept sorted by insertion. */
    while (at > 0 && prompt->done[at - 1].score < score)
        at--;
    if (at == search->n)
        return ERR_OK;
    rc = beam_extend(&made, &prompt->live[parent], e, &first[parent].told, search);
    if (rc != ERR_OK) {
        beam_fini(&made);
        return rc;
    }
    made.score = score;
    made.ended = true;
    if (prompt->n_done == search->n)
        beam_fini(&prompt->done[--prompt->n_done]);
    memmove(prompt->done + at + 1, prompt->done + at,
            (size_t)(prompt->n_done - at) * sizeof *prompt->done);
    prompt->done[at] = made;
    prompt->n_done++;
    return ERR_OK;
}

/* Insert e into the n best extensions of this step. Among equal ones the earlier stays first. */
static void beams_consider(const struct beams *b, struct beams_prompt *p, int *n_best,
                           const struct extension *e)
{
    int at = *n_best;

    must(*n_best <= b->n);
    while (at > 0 && p->best[at - 1].sum < e->sum)
        at--;
    if (at == b->n)
        return;
    if (*n_best == b->n)
        (*n_best)--;
    memmove(p->best + at + 1, p->best + at, (size_t)(*n_best - at) * sizeof *p->best);
    p->best[at] = *e;
    (*n_best)++;
}

/* Consider every extension of every live beam. Record 0 of a generation is the token that the
 * engine took, which is among the alternatives anyway. */
static int beams_extend(struct gen *first, const int32_t *ends, uint32_t n_ends, int *n_best)
{
    const struct beams *search = first->exchange->beams;
    struct beams_prompt *prompt = beams_of(first);
    int rc = ERR_OK;

    *n_best = 0;
    for (int i = 0; i < prompt->n_live; i++) {
        const struct buf *told = &first[i].told;
        size_t most = 2 * (size_t)search->n + 1; /* after the token that the engine took */
        size_t n = told->len / sizeof(struct logprob);

        for (size_t k = 1; k < n && k < most && rc == ERR_OK; k++) {
            struct extension extension = {.parent = i};

            /* Record k is alternative k; buffers do not align records. */
            memcpy(&extension.token, told->bytes + k * sizeof extension.token,
                   sizeof extension.token);
            if (!isfinite(extension.token.logprob))
                continue;
            extension.sum = prompt->live[i].sum + (double)extension.token.logprob;
            if (beams_is_end(first, extension.token.id, ends, n_ends))
                rc = beams_complete(first, i, &extension);
            else
                beams_consider(search, prompt, n_best, &extension);
        }
    }
    return rc;
}

/* The best extensions become the live beams. Beams are copied, not moved, because several
 * extensions may have the same parent. */
static int beams_advance(struct gen *first, int n_best)
{
    const struct beams *search = first->exchange->beams;
    struct beams_prompt *prompt = beams_of(first);
    struct beam *swap = prompt->live;
    int rc = ERR_OK;

    must(n_best <= search->n);
    for (int i = 0; i < n_best && rc == ERR_OK; i++) {
        const struct extension *extension = &prompt->best[i];

        rc = beam_extend(&prompt->next[i], &prompt->live[extension->parent], extension,
                         &first[extension->parent].told, search);
    }
    prompt->live = prompt->next;
    prompt->next = swap;
    prompt->n_live = n_best;
    return rc;
}

/* Can a live beam still become one of the n best? All live beams have the same length, and the
 * first has the largest sum, which can only fall. As a function of the length, a score is largest
 * at one of the two ends of the possible lengths. */
static bool beams_may_gain(const struct gen *first, uint32_t longest)
{
    const struct beams *search = first->exchange->beams;
    const struct beams_prompt *prompt = beams_of(first);
    double sum, now, last;

    if (prompt->n_live == 0)
        return false;
    if (prompt->n_done < search->n)
        return true;
    if (search->o.early_stopping)
        return false;
    sum = prompt->live[0].sum;
    now = beams_score(first, sum, prompt->live[0].out.len);
    last = beams_score(first, sum, longest);
    return now > prompt->done[search->n - 1].score || last > prompt->done[search->n - 1].score;
}

/* --- between steps ------------------------------------------------------------------------- */

/* Put the beam's tokens into the generation. */
static int beams_hold(struct gen *g, const struct beam *beam)
{
    int rc = ERR_OK;

    must(g->tokens.len >= g->n_prompt);
    g->tokens.len = g->n_prompt;
    for (size_t i = 0; i < beam->out.len && rc == ERR_OK; i++)
        rc = token_list_add(&g->tokens, beam->out.ids[i]);
    g->told.len = g->told_whole = 0;
    g->ended = false;
    g->n_submits = 0;
    return rc;
}

/* Prepare the generations of the live beams for the next step. */
static int beams_ask_next(struct gen *first)
{
    struct beams_prompt *prompt = beams_of(first);
    int rc = ERR_OK;

    for (int i = 0; i < prompt->n_live && rc == ERR_OK; i++) {
        rc = beams_hold(&first[i], &prompt->live[i]);
        prompt->phases[i] = PHASE_READY;
    }
    prompt->n_asked = prompt->n_live;
    return rc;
}

/* Make the beam g's final choice: its tokens, text and log probabilities. */
static int beams_choose(struct gen *g, const struct beam *beam)
{
    const struct beams *search = g->exchange->beams;
    int rc = beams_hold(g, beam);

    if (rc != ERR_OK)
        return rc;
    buf_add(&g->told, buf_text(&beam->told), beam->told.len);
    g->told_whole = g->told.len;
    g->request.generate.n_logprobs = search->n_top;
    if (!search->tells)
        g->request.flags &= ~(uint32_t)WIRE_LOGPROBS;
    g->ended = beam->ended;
    for (size_t i = 0; i < beam->out.len; i++) {
        /* The token that ended the text is not a part of it. */
        if (!beam->ended || i + 1 < beam->out.len || g->detok.include_stop)
            (void)detok_push(&g->detok, beam->out.ids[i], &g->text);
    }
    (void)detok_finish(&g->detok, &g->text);
    if (beam->ended)
        g->finish = GEN_STOP;
    else
        g->finish = GEN_LENGTH;
    if (beam->ended &&
        token_rules_has_stop(&g->exchange->token_rules, beam->out.ids[beam->out.len - 1]))
        g->stop_id = beam->out.ids[beam->out.len - 1];
    if (g->told.failed || g->text.failed)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* The n best of the complete and live beams become the choices, in order; of equal ones a complete
 * one first. Both lists are sorted, so this is a merge. */
static int beams_finish(struct gen *first)
{
    const struct beams *search = first->exchange->beams;
    struct beams_prompt *prompt = beams_of(first);
    const struct beam none = {0};
    int done = 0, live = 0;
    int rc = ERR_OK;

    /* With early_stopping the live beams no longer count once there are n complete ones. */
    if (search->o.early_stopping && prompt->n_done == search->n)
        prompt->n_live = 0;
    for (int i = 0; i < search->n && rc == ERR_OK; i++) {
        const struct beam *of_live = live < prompt->n_live ? &prompt->live[live] : NULL;
        const struct beam *of_done = done < prompt->n_done ? &prompt->done[done] : NULL;

        if (of_done != NULL && of_live != NULL &&
            of_done->score < beams_score(first, of_live->sum, of_live->out.len))
            of_done = NULL;
        if (of_done != NULL)
            done++;
        else
            live++;
        if (of_done != NULL || of_live != NULL)
            rc = beams_choose(&first[i], of_done != NULL ? of_done : of_live);
        else /* the vocabulary has fewer tokens than there are beams */
            rc = beams_choose(&first[i], &none);
    }
    return rc;
}

/* An answer has come. After the last one of a step the search advances, and *todo says how to go
 * on. */
int beams_told(struct gen *g, const int32_t *ends, uint32_t n_ends, uint32_t longest,
               enum beams_todo *todo)
{
    struct gen *first = beams_first(g);
    struct beams_prompt *prompt = beams_of(g);
    int n_best;
    int rc;

    must(prompt->n_asked > 0);
    *todo = BEAMS_NOTHING;
    prompt->phases[g->index % g->exchange->n] = PHASE_IDLE;
    if (--prompt->n_asked > 0)
        return ERR_OK;
    rc = beams_extend(first, ends, g->exchange->beams->ignores_eos ? 0 : n_ends, &n_best);
    if (rc == ERR_OK)
        rc = beams_advance(first, n_best);
    if (rc != ERR_OK)
        return rc;
    if (prompt->n_live > 0 && prompt->live[0].out.len < longest && beams_may_gain(first, longest)) {
        *todo = BEAMS_SUBMIT;
        return beams_ask_next(first);
    }
    *todo = BEAMS_END;
    return beams_finish(first);
}
