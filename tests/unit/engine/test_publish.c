/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a front reads what the model sampled, all of it, in order and once: tokens, log
 * probabilities, ends; a front that does not read stops its own sequence and no other. Method: an
 * engine in this process (world.h) beside the same model run alone, token by token, with the same
 * sampling; log probabilities are computed again from the rows of logits that are sent whole. */
#include <math.h>
#include <poll.h>

#include "base/log.h"
#include "tests/unit/engine/world.h"

#define N_PROMPT 20
#define N_NEW    40

static struct answer answers[WORLD_SLOTS];
static struct peer peer;
static int32_t prompts[WORLD_SLOTS][WORLD_LEN]; /* of the slots: random, and the same each time */

static void clear_answers(void)
{
    for (int i = 0; i < WORLD_SLOTS; i++)
        answers[i].n_out = answers[i].n_tokens = answers[i].ended = 0;
}

static struct world *begin(struct world_options o)
{
    struct world *w = world_open(o);

    clear_answers();
    must_ok(peer_open(w, &peer));
    return w;
}

static void finish(struct world *w, const char *name)
{
    peer_close(&peer);
    for (int i = 0; i < 3; i++)
        world_pass(w);
    ok(world_is_empty(w), "%s: all pages, sequences and places are back", name);
    world_close(w);
}

/* Ask in a slot for the answer to its prompt, from an empty record of it. */
static struct answer *ask(uint32_t slot, struct wire_request r, const int32_t *extra)
{
    answers[slot].n_out = answers[slot].n_tokens = answers[slot].ended = 0;
    peer_submit(&peer, slot, r, prompts[slot], extra);
    return &answers[slot];
}

static struct answer *ask_whole(uint32_t slot, struct wire_request r, const int32_t *extra)
{
    struct answer *a = ask(slot, r, extra);

    peer_await(&peer, slot, a);
    return a;
}

/* Two ids that all others are far below: what a request with these biases gives repeats itself, and
 * each of the two comes soon. */
static const struct batch_bias coin[2] = {{5, 10000}, {7, 10000}};

/* The max_tokens tokens that the model gives alone, with the coin if the request has biases;
 * ids[n_ids] may not come before min_tokens. */
static void expect(struct world *w, const struct wire_request *r, const int32_t *prompt,
                   const int32_t *ids, int n_ids, int32_t *out)
{
    static struct run_seq s;
    int n_prompt = (int)r->n_tokens, n = (int)r->generate.max_tokens;
    struct batch_extra extra = {
        .target = -1, .n_top = -1, .n_biases = 2, .biases = coin, .mask = -1};
    struct run *run = &w->run;

    run->b.extras = &extra;
    s = (struct run_seq){.n_tokens = n_prompt};
    memcpy(s.tokens, prompt, (size_t)n_prompt * sizeof *prompt);
    while (s.n_tokens < n_prompt + n) {
        int left = s.n_tokens - s.n_computed;
        struct batch_row *row = &run->rows[0];

        run_clear(run);
        run_add(run, &s, left < 200 ? left : 200, false);
        row->sampling = r->generate.sampling;
        row->position = (uint64_t)s.n_tokens;
        row->history = s.tokens;
        row->n_history = s.n_tokens;
        row->n_prompt = n_prompt;
        row->n_banned = s.n_tokens - n_prompt < (int)r->generate.min_tokens ? n_ids : 0;
        for (int i = 0; i < row->n_banned; i++)
            row->banned[i] = ids[i];
        run->b.n_extras = r->generate.n_biases > 0 && run->b.n_rows > 0;
        must_ok(run_step(run));
        if (run->b.n_rows > 0)
            s.tokens[s.n_tokens++] = run->ids[0];
    }
    memcpy(out, s.tokens + n_prompt, (size_t)n * sizeof *out);
}

/* Are the records an admission, these n tokens and this end, and nothing else? */
static bool is_answer(const struct answer *a, const int32_t *tokens, int n, enum wire_finish why)
{
    struct wire_out end = answer_end(a);

    for (int i = 1; i <= a->n_tokens && i < a->n_out; i++) {
        bool last = i == n && why == WIRE_FIN_STOP;

        if (a->out[i].kind != WIRE_TOKEN || a->out[i].finish != (last ? WIRE_FIN_STOP : 0) ||
            a->out[i].time_us < a->out[i - 1].time_us)
            return false;
    }
    return a->n_out == n + 2 && a->out[0].kind == WIRE_ADMITTED && a->n_tokens == n &&
           memcmp(a->tokens, tokens, (size_t)n * sizeof *tokens) == 0 && end.finish == why &&
           end.value == (why == WIRE_FIN_STOP ? tokens[n - 1] : 0);
}

/* --- tokens ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    struct sampling sampling;
    uint32_t n_biases;
} samplings[] = {
    {"a coin", {.temperature = 100, .top_p = 1, .repetition_penalty = 1, .seed = 3}, 2},
    {"greedy", {.top_p = 1, .repetition_penalty = 1}, 0},
    {"a seed", {.temperature = 1.2f, .top_p = 1, .repetition_penalty = 1, .seed = 41}, 0},
    {"another seed", {.temperature = 1.2f, .top_p = 1, .repetition_penalty = 1, .seed = 42}, 0},
    {"top_p", {.temperature = 0.9f, .top_p = 0.8f, .repetition_penalty = 1, .seed = 5}, 0},
    {"top_k", {.temperature = 2, .top_p = 1, .top_k = 4, .repetition_penalty = 1, .seed = 6}, 0},
    {"penalties",
     {.temperature = 0.5f,
      .top_p = 1,
      .presence_penalty = 1,
      .frequency_penalty = 0.5f,
      .repetition_penalty = 1.3f,
      .seed = 7},
     0},
};
#define N_SAMPLINGS (sizeof samplings / sizeof *samplings)

static struct wire_request sampled_request(uint32_t i)
{
    struct wire_request r = peer_request(N_PROMPT + (int)i, N_NEW + 3 * (int)i);

    r.generate.sampling = samplings[i].sampling;
    r.generate.n_biases = samplings[i].n_biases;
    return r;
}

/* All at once; each slot has a sampling and a length of its own. */
static void test_tokens(const char *drafts, const char *name)
{
    struct world *w = begin((struct world_options){.n_seqs = 16, .drafts = drafts});
    int32_t want[WORLD_LEN];

    for (uint32_t i = 0; i < N_SAMPLINGS; i++)
        (void)ask(i, sampled_request(i), (const int32_t *)coin);
    for (uint32_t i = 0; i < N_SAMPLINGS; i++) {
        struct wire_request r = sampled_request(i);

        peer_await(&peer, i, &answers[i]);
        expect(w, &r, prompts[i], NULL, 0, want);
        ok(is_answer(&answers[i], want, N_NEW + 3 * (int)i, WIRE_FIN_LENGTH),
           "%s%s: the front reads what the model samples", samplings[i].name, name);
    }
    is_int((long long)world_metric(w, METRIC_generation_tokens),
           N_SAMPLINGS * N_NEW + 3 * (N_SAMPLINGS - 1) * N_SAMPLINGS / 2, "tokens are counted%s",
           name);
    if (drafts != NULL)
        ok(world_metric(w, METRIC_draft_tokens) > world_metric(w, METRIC_draft_accepted) &&
               world_metric(w, METRIC_draft_accepted) > 0,
           "some drafts were right and some were not (%d of %d)",
           (int)world_metric(w, METRIC_draft_accepted), (int)world_metric(w, METRIC_draft_tokens));
    finish(w, "tokens");
}

/* --- ends ------------------------------------------------------------------------------------- */

/* Where the n tokens have id, at or after `from`; n: nowhere. */
static int first_of(const int32_t *tokens, int n, int from, int32_t id)
{
    for (int i = from; i < n; i++) {
        if (tokens[i] == id)
            return i;
    }
    return n;
}

enum stop_by { BY_LIST, BY_SET, BY_EOS };

/* A seed with which the coin shows coin[1] at the first place where it may end the output, and,
 * without a bound, not at once. */
static uint64_t stop_seed(struct world *w, struct wire_request r, const int32_t *prompt)
{
    const int32_t id = coin[1].id;
    int at = (int)r.generate.min_tokens;
    int32_t want[N_NEW];

    for (r.generate.sampling.seed = 1; r.generate.sampling.seed < 500; r.generate.sampling.seed++) {
        expect(w, &r, prompt, &id, 1, want);
        if (at == N_NEW || (at == 0 && first_of(want, N_NEW, 0, id) == 3) ||
            (at > 0 && want[at] == id))
            return r.generate.sampling.seed;
    }
    must_ok(-1);
    return 0;
}

/* The id ends the output where the model says it, from min_tokens on; before, it does not come. */
static void test_stop(struct world *w, enum stop_by by, int min_tokens, const char *name)
{
    static const int32_t id = 7; /* one of the coin's */
    uint32_t words[4 + WORLD_VOCAB / 32] = {0};
    struct wire_request r = peer_request(N_PROMPT, N_NEW);
    int32_t want[N_NEW];
    const struct answer *a;
    int at;

    r.generate.sampling.temperature = 100.0f;
    r.generate.n_biases = 2;
    r.generate.min_tokens = (uint32_t)min_tokens;
    r.generate.sampling.seed = stop_seed(w, r, prompts[0]);
    expect(w, &r, prompts[0], &id, 1, want);
    at = first_of(want, N_NEW, min_tokens, id);
    w->shape.n_eos = by == BY_EOS;
    w->shape.eos[0] = id;
    if (by == BY_EOS)
        r.flags &= ~(uint32_t)WIRE_IGNORE_EOS;
    r.generate.n_stop_ids = by == BY_LIST ? 2 : 0;
    r.generate.stop_ids[0] = WORLD_VOCAB - 1; /* the coin never shows it */
    r.generate.stop_ids[1] = id;
    r.generate.n_stops = by == BY_SET ? WORLD_VOCAB / 32 : 0;
    memcpy(words, coin, sizeof coin);
    words[4 + id / 32] = 1u << id % 32;
    a = ask_whole(0, r, (const int32_t *)words);
    if (at < N_NEW)
        ok(is_answer(a, want, at + 1, WIRE_FIN_STOP), "%s: %d tokens, the last is the stop", name,
           at + 1);
    else
        ok(is_answer(a, want, N_NEW, WIRE_FIN_LENGTH), "%s: it does not come", name);
    if (by == BY_EOS) {
        r.flags |= WIRE_IGNORE_EOS;
        expect(w, &r, prompts[0], NULL, 0, want);
        a = ask_whole(0, r, (const int32_t *)words);
        ok(is_answer(a, want, N_NEW, WIRE_FIN_LENGTH), "%s: with ignore_eos it is a token", name);
    }
    w->shape.n_eos = 0;
}

static void test_stops(const char *drafts)
{
    struct world *w = begin((struct world_options){.drafts = drafts});
    uint64_t n_stopped = world_metric(w, METRIC_success_stop);

    test_stop(w, BY_LIST, 0, "a stop id");
    test_stop(w, BY_SET, 0, "a stop id of a set");
    test_stop(w, BY_EOS, 0, "an end of text");
    is_int((int)(world_metric(w, METRIC_success_stop) - n_stopped), 3, "stops are counted");
    test_stop(w, BY_LIST, 12, "a stop id and min_tokens");
    test_stop(w, BY_SET, 12, "a stop id of a set and min_tokens");
    test_stop(w, BY_EOS, 12, "an end of text and min_tokens");
    test_stop(w, BY_EOS, N_NEW, "min_tokens as long as max_tokens");
    finish(w, "stops");
}

static void test_lengths(void)
{
    static const struct {
        int n_prompt, max_tokens, want;
    } rows[] = {{N_PROMPT, 1, 1},         {N_PROMPT, 2, 2},          {1, 9, 9},
                {WORLD_LEN - 12, 12, 12}, {WORLD_LEN - 12, 500, 12}, {WORLD_LEN - 1, 7, 1}};
    struct world *w = begin((struct world_options){0});
    int32_t want[WORLD_LEN];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct wire_request r = peer_request(rows[i].n_prompt, rows[i].max_tokens);
        const struct answer *a = ask_whole(2, r, NULL);

        r.generate.max_tokens = (uint32_t)rows[i].want;
        expect(w, &r, prompts[2], NULL, 0, want);
        ok(is_answer(a, want, rows[i].want, WIRE_FIN_LENGTH),
           "%d tokens and max_tokens of %d: %d, and the end by length", rows[i].n_prompt,
           rows[i].max_tokens, rows[i].want);
    }
    finish(w, "lengths");
}

/* --- log probabilities ------------------------------------------------------------------------ */

/* A row of logits as records bring it: out[0] is the first of them. */
static void read_row(const struct wire_out *out, float *row)
{
    for (int i = 0; i < 1 + WORLD_VOCAB; i += 3) {
        float three[3];

        memcpy(three, &out[i / 3].value, sizeof *three);
        memcpy(three + 1, out[i / 3].logits, 2 * sizeof *three);
        for (int k = 0; k < 3 && i + k < 1 + WORLD_VOCAB; k++)
            row[i + k] = three[k];
    }
}

#define ROW_RECORDS ((1 + WORLD_VOCAB + 2) / 3)

/* Is row[0] the logarithm of the sum of the exponentials of the rest? */
static bool is_sum(const float *row)
{
    double sum = 0;
    float most = row[1];

    for (int i = 1; i <= WORLD_VOCAB; i++)
        most = row[i] > most ? row[i] : most;
    for (int i = 1; i <= WORLD_VOCAB; i++)
        sum += exp((double)(row[i] - most));
    return fabs((double)most + log(sum) - (double)row[0]) < 1e-4;
}

static bool is_near(float a, float b)
{
    return fabsf(a - b) < 1e-4f;
}

/* How many logits of the row are above that of id. */
static int n_above(const float *row, int32_t id)
{
    int n = 0;

    for (int i = 1; i <= WORLD_VOCAB; i++)
        n += row[i] > row[1 + id];
    return n;
}

static float rows[N_NEW][1 + WORLD_VOCAB]; /* of the output of test_rows() */

/* Whole rows: for each token its log probability, the row, the token. */
static void test_rows(struct world *w)
{
    struct wire_request r = peer_request(N_PROMPT, N_NEW);
    int32_t want[N_NEW];
    const struct answer *a;
    bool order = true, sums = true, chosen = true;
    int at = 1;

    r.flags |= WIRE_LOGPROBS;
    r.generate.n_logprobs = WORLD_VOCAB;
    expect(w, &r, prompts[1], NULL, 0, want);
    a = ask_whole(1, r, NULL);
    is_int(a->n_out, 2 + N_NEW * (2 + ROW_RECORDS), "whole rows: as many records as there are");
    for (int i = 0; i < N_NEW && order; i++) {
        const struct wire_out *own = &a->out[at++];

        for (int k = 0; k < ROW_RECORDS; k++)
            order = order && a->out[at + k].kind == WIRE_ROW;
        read_row(&a->out[at], rows[i]);
        at += ROW_RECORDS;
        order = order && own->kind == WIRE_CHOSEN && a->out[at].kind == WIRE_TOKEN &&
                a->out[at].value == want[i] && own->value == want[i];
        at++;
        sums = sums && is_sum(rows[i]);
        chosen = chosen && n_above(rows[i], want[i]) == 0 &&
                 is_near(own->logprob, rows[i][1 + want[i]] - rows[i][0]);
    }
    ok(order, "a log probability, a row, a token, and again");
    ok(sums, "each row begins with the sum of its exponentials");
    ok(chosen, "and the token is the largest of it");
}

/* The same request with five alternatives and two ids asked for. */
static void test_tops(void)
{
    struct wire_request r = peer_request(N_PROMPT, N_NEW);
    int32_t asked[2] = {3, 0};
    const struct answer *a;
    bool order = true, values = true;
    int at = 1;

    asked[1] = WORLD_VOCAB - 1;
    r.flags |= WIRE_LOGPROBS;
    r.generate.n_logprobs = 5;
    r.generate.n_asked = 2;
    a = ask_whole(1, r, asked);
    for (int i = 0; i < N_NEW && order && values; i++) {
        int32_t tops[5];
        int32_t id = a->out[at].value;

        order = order && a->out[at].kind == WIRE_CHOSEN;
        values = values && is_near(a->out[at].logprob, rows[i][1 + id] - rows[i][0]);
        at++;
        for (int k = 0; k < 5; k++, at++) {
            const struct wire_out *o = &a->out[at];

            tops[k] = o->value;
            order = order && o->kind == WIRE_TOP && o->rank == (uint32_t)k + 1;
            values = values && n_above(rows[i], o->value) == k &&
                     is_near(o->logprob, rows[i][1 + o->value] - rows[i][0]);
        }
        for (int k = 0; k < 2; k++) {
            if (first_of(tops, 5, 0, asked[k]) < 5)
                continue; /* it was told */
            order = order && a->out[at].kind == WIRE_TOP && a->out[at].rank == 0 &&
                    a->out[at].value == asked[k];
            values = values && is_near(a->out[at].logprob, rows[i][1 + asked[k]] - rows[i][0]);
            at++;
        }
        order = order && a->out[at].kind == WIRE_TOKEN && a->out[at].value == id;
        at++;
    }
    ok(order && at == a->n_out - 1, "alternatives by rank, what was asked for, the token");
    ok(values, "with the log probabilities of the whole rows");
}

/* Log probabilities of a prompt: as those of the output that follows its first tokens. */
static void test_prompt(uint32_t n_tops, const char *name)
{
    struct wire_request r = peer_request(N_PROMPT, 3);
    const struct answer *a;
    int at = 1, per = n_tops > WIRE_LOGPROBS_MAX ? ROW_RECORDS : (int)n_tops;
    bool order = true, values = true;

    r.flags |= WIRE_PROMPT_LOGPROBS;
    r.generate.n_prompt_logprobs = n_tops;
    a = ask_whole(3, r, NULL);
    is_int(a->n_out, 1 + (N_PROMPT - 1) * (1 + per) + 3 + 1, "%s: the number of records", name);
    for (int i = 1; i < N_PROMPT && order && values; i++) {
        struct wire_request part = peer_request(i, 1);
        const struct wire_out *own = &a->out[at++];
        float row[1 + WORLD_VOCAB], of_prompt[1 + WORLD_VOCAB];

        part.flags |= WIRE_LOGPROBS;
        part.generate.n_logprobs = WORLD_VOCAB;
        memcpy(prompts[4], prompts[3], sizeof prompts[4]);
        read_row(&ask_whole(4, part, NULL)->out[2], row);
        order = own->kind == WIRE_PROMPT_CHOSEN && own->value == prompts[3][i] &&
                own->rank == (uint32_t)n_above(row, own->value) + 1;
        values = is_near(own->logprob, row[1 + own->value] - row[0]);
        if (n_tops > WIRE_LOGPROBS_MAX) {
            read_row(&a->out[at], of_prompt);
            values = values && memcmp(row, of_prompt, sizeof row) == 0;
        }
        for (int k = 0; k < per; k++, at++)
            order = order && (n_tops > WIRE_LOGPROBS_MAX ? a->out[at].kind == WIRE_PROMPT_ROW
                                                         : a->out[at].kind == WIRE_PROMPT_TOP &&
                                                               a->out[at].rank == (uint32_t)k + 1 &&
                                                               n_above(row, a->out[at].value) == k);
    }
    ok(order, "%s: each of its tokens but the first, with its rank and alternatives", name);
    ok(values, "%s: the log probabilities are those after its first tokens", name);
    ok(a->out[at].kind == WIRE_TOKEN, "%s: all of it before the first token", name);
}

static void test_logprobs(void)
{
    struct world *w = begin((struct world_options){0});

    test_rows(w);
    test_tops();
    test_prompt(0, "a prompt");
    test_prompt(3, "a prompt with alternatives");
    test_prompt(WORLD_VOCAB, "a prompt with whole rows");
    finish(w, "log probabilities");
}

/* --- a ring that is full ---------------------------------------------------------------------- */

/* Records in the ring that were not read. */
static int n_unread(void)
{
    return WIRE_OUT_CAP - lane_room(&peer.w->e.lanes[0].lane, 0);
}

/* A client that does not read: its sequence pauses, another does not, and it goes on later. */
static void test_full(const char *name, uint32_t flags, uint32_t n_logprobs, uint32_t n_prompt)
{
    static struct answer fast;
    struct world *w = begin((struct world_options){0});
    struct wire_request r = peer_request(N_PROMPT + 60, 100);
    const struct seq *seq;
    int n_passes = 0, n_before = -1;

    r.flags |= flags;
    r.generate.n_logprobs = n_logprobs;
    r.generate.n_prompt_logprobs = n_prompt;
    fast = *ask_whole(0, r, NULL);
    ok(fast.ended && fast.n_out > 2 * WIRE_OUT_CAP, "%s: %d records when they are read", name,
       fast.n_out);
    (void)ask(0, r, NULL);
    for (int same = 0; same < 20 && n_passes < WORLD_PASSES; n_passes++) {
        world_pass(w);
        same = n_unread() == n_before ? same + 1 : 0;
        n_before = n_unread();
    }
    seq = w->e.lanes[0].by_slot[0];
    ok(seq != NULL && seq->paused && n_before <= WIRE_OUT_CAP,
       "%s: not read, its sequence pauses (%d records, %d passes)", name, n_before, n_passes);
    (void)ask_whole(1, peer_request(30, 50), NULL);
    ok(answers[1].n_tokens == 50 && n_unread() == n_before, "%s: another goes on meanwhile", name);
    ok(w->e.sched.n_running == 1 && !answers[0].ended, "%s: and it waits", name);
    peer_await(&peer, 0, &answers[0]);
    ok(answers[0].ended && answers[0].n_tokens == 100, "%s: read again, it goes on", name);
    finish(w, name);
}

/* Do both have the same records? Times differ. */
static bool is_same(const struct answer *a, const struct answer *b)
{
    for (int i = 0; i < a->n_out && i < b->n_out; i++) {
        const struct wire_out *x = &a->out[i], *y = &b->out[i];
        bool timed = x->kind <= WIRE_FINISHED;

        if (x->kind != y->kind || x->finish != y->finish ||
            (x->value != y->value && x->kind != WIRE_ADMITTED) ||
            (!timed && x->amount != y->amount))
            return false;
    }
    return a->n_out == b->n_out;
}

/* Clients that read some records now and then: nothing is lost, and no ring overruns. */
static void test_slow(unsigned seed)
{
    static struct answer fast[3];
    struct world *w = begin((struct world_options){0});
    int n_paused = 0, n_passes = 0;
    bool good = true;

    for (int slow = 0; slow < 2; slow++) {
        for (uint32_t i = 0; i < 3; i++) {
            struct wire_request r = peer_request(N_PROMPT + 30 * (int)i, 60);

            r.flags |= WIRE_LOGPROBS | WIRE_PROMPT_LOGPROBS;
            r.generate.n_logprobs = i == 2 ? WORLD_VOCAB : 40 + i;
            r.generate.n_prompt_logprobs = i == 1 ? WORLD_VOCAB : 30;
            (void)ask(i, r, NULL);
        }
        for (uint32_t i = 0; i < 3 && slow == 0; i++) {
            for (int k = 0; k < WORLD_PASSES && !answers[i].ended; k++) {
                for (uint32_t other = 0; other < 3; other++)
                    peer_read(&peer, other, &answers[other], WORLD_OUT_MAX);
                world_pass(w);
            }
            fast[i] = answers[i];
        }
    }
    while (good && !(answers[0].ended && answers[1].ended && answers[2].ended) &&
           n_passes++ < 100000) {
        uint32_t slot = random_next(&seed) % 3;

        peer_read(&peer, slot, &answers[slot], (int)(random_next(&seed) % 200));
        world_pass(w);
        for (uint32_t i = 0; i < 3; i++) {
            const struct seq *seq = w->e.lanes[0].by_slot[i];

            n_paused += seq != NULL && seq->paused;
            good = good && lane_room(&w->e.lanes[0].lane, i) >= 0;
        }
    }
    ok(good && n_paused > 0, "slow clients: no ring overruns (%d passes, %d pauses)", n_passes,
       n_paused);
    for (int i = 0; i < 3; i++)
        ok(is_same(&answers[i], &fast[i]), "client %d reads the same %d records as a fast one", i,
           fast[i].n_out);
    finish(w, "slow clients");
}

/* Sequences that give their pages up and are computed again tell nothing twice. */
static void test_preempted(void)
{
    static struct answer alone[4];
    struct world *w = begin((struct world_options){.n_pages = WORLD_LEN / WORLD_PAGE_TOKENS});
    int n_same = 0;

    for (int crowd = 0; crowd < 2; crowd++) {
        for (uint32_t i = 0; i < 4; i++) {
            struct wire_request r = peer_request(100, 150);

            r.flags |= WIRE_PROMPT_LOGPROBS;
            r.generate.n_prompt_logprobs = 2;
            if (crowd == 0)
                alone[i] = *ask_whole(i, r, NULL);
            else
                (void)ask(i, r, NULL);
        }
    }
    for (uint32_t i = 0; i < 4; i++) {
        peer_await(&peer, i, &answers[i]);
        n_same += answers[i].ended && is_same(&answers[i], &alone[i]);
    }
    world_pass(w);
    ok(world_metric(w, METRIC_preemptions) > 0, "more tokens than pages: %d preemptions",
       (int)world_metric(w, METRIC_preemptions));
    is_int(n_same, 4, "each has the records that it has alone");
    finish(w, "preempted");
}

/* --- what is told beside tokens --------------------------------------------------------------- */

/* Cached tokens of a prompt are told to the tenant that had it computed, and to no other. */
static void test_admitted(void)
{
    struct world *w = begin((struct world_options){0});
    struct wire_request r = peer_request(40, 4);
    int told;

    is_int(ask_whole(5, r, NULL)->out[0].value, 0, "a new prompt: nothing is cached");
    told = ask_whole(5, r, NULL)->out[0].value;
    ok(told >= 32 && told < 40, "the same again: %d of 40 tokens are", told);
    memcpy(r.tenant, "t1", 3);
    is_int(ask_whole(5, r, NULL)->out[0].value, 0, "another tenant hears nothing of it");
    is_int((int)world_metric(w, METRIC_prompt_tokens), 120, "prompts are counted");
    ok((int)world_metric(w, METRIC_prompt_hits) >= told, "hits, too");
    r.flags |= WIRE_TELL_KEPT;
    (void)ask_whole(5, r, NULL);
    ok(answers[5].n_out == 7 && answers[5].out[5].kind == WIRE_FACT &&
           answers[5].out[5].value == WIRE_FACT_HELD && answers[5].out[5].amount == 0,
       "what is retained is told before the end, if it was asked for");
    r.flags |= WIRE_PROBE;
    (void)ask_whole(5, r, NULL);
    is_int((int)world_metric(w, METRIC_prompt_tokens), 160, "a probe is not counted");
    is_int((int)world_metric(w, METRIC_generation_tokens), 16, "nor are its tokens");
    is_int((int)world_metric(w, METRIC_success_length), 4, "nor its end");
    finish(w, "admissions");
}

/* The choices of an answer count once, by the longest of them. */
static void test_choices(void)
{
    static const int lengths[3] = {5, 30, 12};
    struct world *w = begin((struct world_options){0});
    const struct wire_histogram *most = &w->e.stats.page->histograms[HISTOGRAM_req_generation_max];

    for (uint32_t i = 0; i < 3; i++) {
        struct wire_request r = peer_request(N_PROMPT, lengths[i]);

        r.generate.answer = 77;
        r.generate.n_choices = 3;
        (void)ask(i, r, NULL);
    }
    for (uint32_t i = 0; i < 3; i++)
        peer_await(&peer, i, &answers[i]);
    ok(answers[0].n_tokens == 5 && answers[1].n_tokens == 30 && answers[2].n_tokens == 12,
       "three choices, each as long as it was asked for");
    is_int(atomic_load(&most->count), 1, "one answer is counted");
    is_int(atomic_load(&most->sum_micro), 30000000, "with the length of the longest");
    finish(w, "choices");
}

/* Ready bits, wake-ups, and what the front has refused itself. */
static void test_lane(void)
{
    struct world *w = begin((struct world_options){0});
    struct pollfd f = {.fd = peer.control_fd, .events = POLLIN};
    struct wire_lane *shared = peer.lane.shared;
    uint64_t ready = 0;

    must_ok(lane_take_wakes(peer.control_fd));
    ok(lane_front_sleep(&peer.lane) && poll(&f, 1, 0) == 0,
       "a front sleeps while there is nothing");
    (void)ask(0, peer_request(N_PROMPT, 3), NULL);
    (void)ask(9, peer_request(N_PROMPT, 3), NULL);
    for (int i = 0; i < 3; i++)
        world_pass(w);
    is_int(poll(&f, 1, 0), 1, "records wake it");
    lane_front_awake(&peer.lane);
    must_ok(lane_take_wakes(peer.control_fd));
    for (int i = 0; i < 8; i++)
        world_pass(w);
    ready = lane_ready(&peer.lane, 0);
    is_int((long long)ready, 1 << 0 | 1 << 9, "the slots with records are marked");
    is_int(poll(&f, 1, 0), 0, "one that is awake is not woken");
    atomic_store(&shared->refused[WIRE_REFUSED_SLOTS], 3);
    atomic_store(&shared->refused[WIRE_REFUSED_TENANT], 1);
    world_pass(w);
    world_pass(w);
    ok(world_metric(w, METRIC_rejected_slots) == 3 && world_metric(w, METRIC_rejected_tenant) == 1,
       "refusals of the front are added once");
    atomic_fetch_add(&shared->refused[WIRE_REFUSED_SLOTS], (1u << 24) + 1);
    world_pass(w);
    ok(world_metric(w, METRIC_rejected_slots) == 3 && world_metric(w, METRIC_bad_entries) == 1,
       "a number that cannot be is not");
    finish(w, "the lane");
}

int main(void)
{
    unsigned seed = tap_seed(17);

    log_set_level(0);
    for (int i = 0; i < WORLD_SLOTS; i++)
        world_prompt(prompts[i], WORLD_LEN, seed + (unsigned)i);
    test_tokens(NULL, "");
    test_tokens("{\"method\": \"ngram\", \"num_speculative_tokens\": 4}", ", with drafts");
    test_stops(NULL);
    test_stops("{\"method\": \"ngram\", \"num_speculative_tokens\": 4}");
    test_lengths();
    test_logprobs();
    test_full("log probabilities", WIRE_LOGPROBS, 40, 0);
    test_full("of the prompt", WIRE_PROMPT_LOGPROBS, 0, 60);
    test_full("whole rows", WIRE_LOGPROBS, WORLD_VOCAB, 0);
    test_slow(seed);
    test_preempted();
    test_admitted();
    test_choices();
    test_lane();
    return tap_done();
}
