/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: an engine of a model that pools answers each text with the row that the model alone gives,
 * to the last bit: from an empty and a full cache, in chunks, beside others, after preemption; the
 * mean is that of all rows; nothing is said of tokens; requests for anything else are refused, and
 * pooled ones by an engine that generates. Method: an engine in this process (world.h). */
#include "tests/unit/engine/world.h"

#define ROWS_MAX 64 /* the model's dim */

static struct answer answers[WORLD_SLOTS];
static struct peer peer;

static struct world *begin(struct world_options o)
{
    struct world *w = world_open(o);

    must_ok(peer_open(w, &peer));
    must_ok(o.pools && w->shape.n_vocab > ROWS_MAX);
    return w;
}

static void finish(struct world *w, const char *name)
{
    for (int i = 0; i < 3; i++)
        world_pass(w);
    ok(world_is_empty(w), "%s: all pages, sequences and places are back", name);
    peer_close(&peer);
    world_close(w);
}

static struct wire_request request(int n, enum wire_pooling how)
{
    struct wire_request r = peer_request(n, 1);

    r.flags = 0;
    r.generate.pooling = how;
    return r;
}

static void start(uint32_t slot, struct wire_request r, unsigned seed)
{
    int32_t tokens[WORLD_LEN + 8];

    world_prompt(tokens, (int)r.n_tokens, seed);
    peer_submit(&peer, slot, r, tokens, NULL);
    answers[slot].n_out = answers[slot].n_tokens = 0;
    answers[slot].ended = false;
}

static const struct answer *await(uint32_t slot)
{
    peer_await(&peer, slot, &answers[slot]);
    return &answers[slot];
}

/* The row of the oracle, in steps of as many rows as it may have. */
static void expect(struct world *w, int n, unsigned seed, enum wire_pooling how, float *out)
{
    static struct run_seq s;
    float row[ROWS_MAX];
    int dim = w->shape.n_vocab;

    memset(&s, 0, sizeof s);
    s.n_tokens = n;
    world_prompt(s.tokens, n, seed);
    memset(out, 0, sizeof *out * (size_t)dim);
    while (s.n_computed < n) {
        int left = n - s.n_computed;

        run_clear(&w->run);
        run_add(&w->run, &s, left < 4 ? left : 4, true);
        for (int g = 0; g < w->shape.n_groups; g++)
            run_row(&w->run, 0, g);
        must_ok(model_step_begin(w->oracle, &w->run.b));
        for (int r = 0; r < w->run.b.n_rows; r++) {
            must_ok(model_row_logits(w->oracle, r, row));
            for (int i = 0; i < dim; i++)
                out[i] = how == WIRE_POOL_MEAN ? out[i] + row[i] : row[i];
        }
        must_ok(model_step_sample(w->oracle, &w->run.b));
        must_ok(model_step_end(w->oracle, w->run.ids, NULL));
    }
    for (int i = 0; i < dim && how == WIRE_POOL_MEAN; i++)
        out[i] /= (float)n;
}

/* Is the answer an admission, the oracle's row and an end, and nothing else? */
static bool is_row(struct world *w, const struct answer *a, int n, unsigned seed,
                   enum wire_pooling how)
{
    float want[ROWS_MAX], got[ROWS_MAX + 3];
    int dim = w->shape.n_vocab, n_records = (dim + 2) / 3;
    bool good = a->ended && a->n_out == n_records + 2 && a->out[0].kind == WIRE_ADMITTED &&
                answer_end(a).finish == WIRE_FIN_STOP;

    expect(w, n, seed, how, want);
    for (int i = 0; i < n_records && good; i++) {
        const struct wire_out *o = &a->out[1 + i];

        good = o->kind == WIRE_ROW;
        memcpy(&got[3 * i], &o->value, sizeof o->value);
        memcpy(&got[3 * i + 1], o->logits, sizeof o->logits);
    }
    return good && memcmp(got, want, sizeof *want * (size_t)dim) == 0;
}

/* Is each token's row the oracle's for the text that ends there, in order, and nothing else? */
static bool are_rows(struct world *w, const struct answer *a, int n, unsigned seed)
{
    float want[ROWS_MAX], got[ROWS_MAX + 3];
    int dim = w->shape.n_vocab, n_records = (dim + 2) / 3;
    bool good = a->ended && a->n_out == n * n_records + 2 && a->out[0].kind == WIRE_ADMITTED &&
                answer_end(a).finish == WIRE_FIN_STOP;

    for (int t = 0; t < n && good; t++) {
        expect(w, t + 1, seed, WIRE_POOL_LAST, want);
        for (int i = 0; i < n_records && good; i++) {
            const struct wire_out *o = &a->out[1 + t * n_records + i];

            good = o->kind == (t + 1 < n ? WIRE_PROMPT_ROW : WIRE_ROW);
            memcpy(&got[3 * i], &o->value, sizeof o->value);
            memcpy(&got[3 * i + 1], o->logits, sizeof o->logits);
        }
        good = good && memcmp(got, want, sizeof *want * (size_t)dim) == 0;
    }
    return good;
}

/* A row of each token: alone, again, beside others, over a preemption. */
static void test_each(void)
{
    struct world *w = begin(
        (struct world_options){.pools = true, .n_seqs = 4, .n_queued_reqs = 16, .n_pages = 65});

    for (int n = 1; n < 40; n += 13) {
        start(0, request(n, WIRE_POOL_EACH), 7);
        ok(are_rows(w, await(0), n, 7), "each: %d tokens", n);
        start(0, request(n, WIRE_POOL_EACH), 7);
        ok(are_rows(w, await(0), n, 7), "each: %d tokens again", n);
        is_int(answers[0].out[0].value, 0, "each: none of them from the cache");
    }
    for (uint32_t i = 0; i < 6; i++) {
        struct wire_request r =
            request(i % 2 == 0 ? 80 : 500, i % 2 == 0 ? WIRE_POOL_EACH : WIRE_POOL_LAST);

        r.priority = -(int32_t)i;
        start(i, r, 40 + i);
        for (int pass = 0; pass < 5; pass++)
            world_pass(w);
    }
    for (uint32_t i = 0; i < 6; i++)
        ok(i % 2 == 0 ? are_rows(w, await(i), 80, 40 + i)
                      : is_row(w, await(i), 500, 40 + i, WIRE_POOL_LAST),
           "each beside others: text %u", i);
    ok(w->e.sched.n_preemptions > 0, "each: there were %d preemptions",
       (int)w->e.sched.n_preemptions);
    finish(w, "each");
}

static void test_alone(enum wire_pooling how, const char *name)
{
    static const int lengths[] = {1, 2, WORLD_PAGE_TOKENS, 100, 300, WORLD_LEN};
    struct world *w = begin((struct world_options){.pools = true});

    is_int((int)peer.welcome.n_pooled, w->shape.n_vocab, "%s: the welcome tells the numbers", name);
    is_int((int)peer.welcome.n_vocab, WORLD_VOCAB, "%s: and the ids that texts may have", name);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        int n = lengths[i], reusable = (n - 1) / WORLD_PAGE_TOKENS * WORLD_PAGE_TOKENS;

        start(0, request(n, how), 7);
        ok(is_row(w, await(0), n, 7, how), "%s: %d tokens", name, n);
        start(0, request(n, how), 7);
        ok(is_row(w, await(0), n, 7, how), "%s: %d tokens again", name, n);
        if (how == WIRE_POOL_MEAN)
            is_int(answers[0].out[0].value, 0, "%s: none of them from the cache", name);
        else
            ok(answers[0].out[0].value >= reusable, "%s: %d of them from the cache (%d)", name,
               reusable, answers[0].out[0].value);
    }
    ok(world_metric(w, METRIC_generation_tokens) == 0, "%s: no token was generated", name);
    finish(w, name);
}

/* More texts than the engine computes at once, of all lengths, of both kinds. */
static void test_crowd(void)
{
    struct world *w =
        begin((struct world_options){.pools = true, .n_seqs = 4, .n_queued_reqs = 16});
    int n_good = 0;

    for (uint32_t i = 0; i < WORLD_SLOTS; i++)
        start(i, request(1 + (int)i * 31, i % 2 == 0 ? WIRE_POOL_LAST : WIRE_POOL_MEAN), i);
    for (uint32_t i = 0; i < WORLD_SLOTS; i++)
        n_good +=
            is_row(w, await(i), 1 + (int)i * 31, i, i % 2 == 0 ? WIRE_POOL_LAST : WIRE_POOL_MEAN);
    is_int(n_good, WORLD_SLOTS, "a crowd of both kinds");
    finish(w, "a crowd");
}

/* Texts lose their pages to more urgent ones and are computed again. */
static void test_preempted(void)
{
    struct world *w = begin(
        (struct world_options){.pools = true, .n_seqs = 4, .n_queued_reqs = 16, .n_pages = 70});
    int n_good = 0;

    for (uint32_t i = 0; i < 6; i++) {
        struct wire_request r = request(500, i % 2 == 0 ? WIRE_POOL_MEAN : WIRE_POOL_LAST);

        r.priority = -(int32_t)i;
        start(i, r, 40 + i);
        for (int pass = 0; pass < 5; pass++)
            world_pass(w);
    }
    for (uint32_t i = 0; i < 6; i++)
        n_good += is_row(w, await(i), 500, 40 + i, i % 2 == 0 ? WIRE_POOL_MEAN : WIRE_POOL_LAST);
    is_int(n_good, 6, "texts over preemption");
    ok(w->e.sched.n_preemptions > 0, "there were %d", (int)w->e.sched.n_preemptions);
    finish(w, "preemption");
}

static void test_cancelled(void)
{
    struct world *w = begin((struct world_options){.pools = true});

    for (uint32_t i = 0; i < 4; i++)
        start(i, request(400, i % 2 == 0 ? WIRE_POOL_MEAN : WIRE_POOL_LAST), i);
    world_pass(w);
    for (uint32_t i = 0; i < 4; i++)
        lane_cancel(&peer.lane, i, WIRE_CLIENT_GONE);
    for (uint32_t i = 0; i < 4; i++)
        ok(answer_end(await(i)).finish == WIRE_FIN_CANCELLED, "text %u is cancelled", i);
    start(0, request(50, WIRE_POOL_LAST), 5);
    ok(is_row(w, await(0), 50, 5, WIRE_POOL_LAST), "the next is answered");
    finish(w, "cancelled");
}

/* --- refusals --------------------------------------------------------------------------------- */

static void refuse(const char *name, struct wire_request r, int err)
{
    start(0, r, 1);
    (void)await(0);
    ok(answers[0].n_out == 1 && answer_end(&answers[0]).finish == WIRE_FIN_ERROR &&
           answer_end(&answers[0]).value == err,
       "refused: %s", name);
}

static void test_refused(void)
{
    struct world *w = begin((struct world_options){.pools = true});
    struct wire_request r;

    refuse("tokens of a model that pools", peer_request(4, 4), ERR_INVALID);
    refuse("no such pooling", request(4, (enum wire_pooling)4), ERR_INVALID);
    refuse("a text that is too long", request(WORLD_LEN + 1, WIRE_POOL_LAST), ERR_TOO_LONG);
    r = request(4, WIRE_POOL_LAST), r.generate.max_tokens = 2;
    refuse("two tokens", r, ERR_INVALID);
    r = request(4, WIRE_POOL_LAST), r.generate.n_prompt = 3;
    refuse("a text that has output", r, ERR_INVALID);
    r = request(4, WIRE_POOL_LAST), r.generate.min_tokens = 1;
    refuse("min_tokens", r, ERR_INVALID);
    r = request(4, WIRE_POOL_LAST), r.flags = WIRE_LOGPROBS;
    refuse("log probabilities", r, ERR_INVALID);
    r = request(4, WIRE_POOL_MEAN), r.flags = WIRE_PROMPT_LOGPROBS;
    refuse("those of the prompt", r, ERR_INVALID);
    r = request(4, WIRE_POOL_MEAN), r.generate.n_prompt_logprobs = 200;
    refuse("rows of the prompt", r, ERR_INVALID);
    r = request(4, WIRE_POOL_LAST), r.generate.n_stop_ids = 1;
    refuse("stop ids", r, ERR_INVALID);
    r = request(4, WIRE_POOL_LAST), r.generate.sampling.presence_penalty = 1.0f;
    refuse("a penalty", r, ERR_INVALID);
    r = request(4, WIRE_POOL_LAST), r.generate.think_max = 1;
    refuse("a reasoning", r, ERR_INVALID);
    start(0, request(9, WIRE_POOL_LAST), 3);
    ok(is_row(w, await(0), 9, 3, WIRE_POOL_LAST), "a good one is answered");
    finish(w, "refused");

    w = begin((struct world_options){.n_seqs = 4});
    refuse("a row of a model that generates", request(4, WIRE_POOL_LAST), ERR_INVALID);
    is_int((int)peer.welcome.n_pooled, 0, "its welcome says so");
    finish(w, "generating");
}

int main(void)
{
    test_alone(WIRE_POOL_LAST, "last");
    test_alone(WIRE_POOL_MEAN, "mean");
    test_each();
    test_crowd();
    test_preempted();
    test_cancelled();
    test_refused();
    return tap_done();
}
