/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the engine takes good requests and answers them, refuses each bad one with its reason and
 * counts it, ends what is cancelled or out of time, and has all pages, sequences and places back
 * afterwards. Method: an engine in this process (world.h), of which the test makes each pass;
 * fronts that break one field, one word, one rule of the ring at a time; answers are compared with
 * the same model run alone. */
#include <math.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/buf.h"
#include "base/log.h"
#include "grammar/trie.h"
#include "tests/unit/engine/world.h"

#define N_PROMPT 4 /* tokens of most requests, and of their answers */
#define N_NEW    4
#define SECOND   1000000u
#define ZEROS    32768 /* an offset in the arena where nothing was written */

static struct answer answers[WORLD_SLOTS];
static struct peer peers[3];

static void clear_answers(void)
{
    for (int i = 0; i < WORLD_SLOTS; i++)
        answers[i].n_out = answers[i].n_tokens = answers[i].ended = 0;
}

/* A world with one front. */
static struct world *begin(struct world_options o)
{
    struct world *w = world_open(o);

    clear_answers();
    must_ok(peer_open(w, &peers[0]));
    return w;
}

static void finish(struct world *w, const char *name)
{
    for (int i = 0; i < 3; i++) /* the last step has ended, and what left is forgotten */
        world_pass(w);
    ok(world_is_empty(w), "%s: all pages, sequences and places are back", name);
    world_close(w);
}

/* Submit the prompt of a seed. */
static void start(struct peer *p, uint32_t slot, struct wire_request r, unsigned seed)
{
    int32_t tokens[WORLD_LEN];

    world_prompt(tokens, (int)r.n_tokens, seed);
    peer_submit(p, slot, r, tokens, NULL);
}

/* Is the answer admitted, the oracle's n tokens after the prompt of a seed, and the end by length,
 * and nothing else? */
static bool is_whole(struct world *w, const struct answer *a, int n_prompt, unsigned seed, int n)
{
    int32_t prompt[WORLD_LEN], want[WORLD_LEN];

    world_prompt(prompt, n_prompt, seed);
    world_expect(w, prompt, n_prompt, want, n);
    return a->ended && answer_end(a).finish == WIRE_FIN_LENGTH && a->n_out == n + 2 &&
           a->out[0].kind == WIRE_ADMITTED && a->n_tokens == n &&
           memcmp(a->tokens, want, (size_t)n * sizeof *want) == 0;
}

/* Has the slot ended with this error, after n records? */
static bool has_failed(const struct answer *a, int err, int n)
{
    struct wire_out end = answer_end(a);

    return end.finish == WIRE_FIN_ERROR && end.value == err && a->n_out == n + 1;
}

static void passes(struct world *w, int n)
{
    for (int i = 0; i < n; i++)
        world_pass(w);
}

static void read_all(struct peer *p, int n_slots)
{
    for (int i = 0; i < n_slots; i++)
        peer_read(p, (uint32_t)i, &answers[i], WORLD_OUT_MAX);
}

/* --- one broken field ------------------------------------------------------------------------- */

union field {
    uint32_t whole;
    float real;
};

#define AT(member)     offsetof(struct wire_request, member)
#define GEN(member)    AT(generate.member)
#define SAMPLE(member) AT(generate.sampling.member)
#define WHOLE(n)               \
    {                          \
        .whole = (uint32_t)(n) \
    }
#define REAL(v)     \
    {               \
        .real = (v) \
    }

static const struct broken {
    const char *name;
    size_t at;
    union field value; /* that is refused */
    int err;
    bool has_within;
    union field within; /* the last that is taken */
} broken[] = {
    {"no token", AT(n_tokens), WHOLE(0), ERR_INVALID, false, WHOLE(0)},
    {"as many tokens as the model's length", AT(n_tokens), WHOLE(WORLD_LEN), ERR_TOO_LONG, false,
     WHOLE(0)},
    {"2^32 - 1 tokens", AT(n_tokens), WHOLE(UINT32_MAX), ERR_TOO_LONG, false, WHOLE(0)},
    {"a task that there is not", AT(task), WHOLE(WIRE_ADAPTER + 1), ERR_INVALID, false, WHOLE(0)},
    {"an adapter that is not loaded", AT(adapter), WHOLE(7), ERR_NO_ADAPTER, true, WHOLE(0)},
    {"tokens behind the arena", AT(arena_offset), WHOLE(WORLD_ARENA_BYTES - 12), ERR_INVALID, true,
     WHOLE(WORLD_ARENA_BYTES - 16)},
    {"tokens far behind it", AT(arena_offset), WHOLE(UINT32_MAX - 3), ERR_INVALID, false, WHOLE(0)},
    {"tokens between words", AT(arena_offset), WHOLE(ZEROS + 2), ERR_INVALID, true, WHOLE(ZEROS)},
    {"no prompt", GEN(n_prompt), WHOLE(0), ERR_INVALID, true, WHOLE(1)},
    {"a prompt longer than the tokens", GEN(n_prompt), WHOLE(N_PROMPT + 1), ERR_INVALID, false,
     WHOLE(0)},
    {"no token wanted", GEN(max_tokens), WHOLE(0), ERR_INVALID, false, WHOLE(0)},
    {"logprobs", GEN(n_logprobs), WHOLE(WORLD_VOCAB + 1), ERR_INVALID, true, WHOLE(WORLD_VOCAB)},
    {"logprobs of the prompt", GEN(n_prompt_logprobs), WHOLE(WORLD_VOCAB + 1), ERR_INVALID, true,
     WHOLE(WORLD_VOCAB)},
    {"an automaton's place", GEN(automaton), WHOLE(WIRE_AUTOMATA_MAX + 1), ERR_INVALID, false,
     WHOLE(0)},
    {"an automaton that was not uploaded", GEN(automaton), WHOLE(1), ERR_INVALID, false, WHOLE(0)},
    {"words of a set of ids", GEN(n_allowed), WHOLE(WORLD_VOCAB / 32 + 1), ERR_INVALID, false,
     WHOLE(0)},
    {"too few of them", GEN(n_allowed), WHOLE(WORLD_VOCAB / 32 - 1), ERR_INVALID, false, WHOLE(0)},
    {"biases", GEN(n_biases), WHOLE(WIRE_BIASES_MAX + 1), ERR_INVALID, false, WHOLE(0)},
    {"bad words", GEN(n_bad), WHOLE(WIRE_BAD_WORDS_MAX + 1), ERR_INVALID, false, WHOLE(0)},
    {"more drafts than there can be", GEN(drafts), WHOLE(WIRE_DRAFTS_MAX + 2), ERR_INVALID, false,
     WHOLE(WIRE_DRAFTS_MAX + 1)},
    {"asked ids without log probabilities", GEN(n_asked), WHOLE(1), ERR_INVALID, false, WHOLE(0)},
    {"a priority of retention", GEN(retain), WHOLE(102), ERR_INVALID, true, WHOLE(101)},
    {"words of a set of stop ids", GEN(n_stops), WHOLE(WORLD_VOCAB / 32 - 1), ERR_INVALID, false,
     WHOLE(0)},
    {"a set of stop ids beside a list", GEN(n_stops), WHOLE(WORLD_VOCAB / 32), ERR_INVALID, false,
     WHOLE(0)},
    {"stop ids", GEN(n_stop_ids), WHOLE(WIRE_STOP_IDS + 1), ERR_INVALID, true,
     WHOLE(WIRE_STOP_IDS)},
    {"a stop id", GEN(stop_ids[0]), WHOLE(WORLD_VOCAB), ERR_INVALID, true, WHOLE(WORLD_VOCAB - 1)},
    {"a negative stop id", GEN(stop_ids[0]), WHOLE(-1), ERR_INVALID, true, WHOLE(0)},
    {"a bound of a reasoning without its tags", GEN(think_max), WHOLE(1), ERR_INVALID, false,
     WHOLE(0)},
    {"temperature", SAMPLE(temperature), REAL(-0.5f), ERR_INVALID, true, REAL(0.0f)},
    {"a temperature that is no number", SAMPLE(temperature), REAL(NAN), ERR_INVALID, false,
     WHOLE(0)},
    {"top_p of 0", SAMPLE(top_p), REAL(0.0f), ERR_INVALID, true, REAL(1e-6f)},
    {"top_p", SAMPLE(top_p), REAL(1.01f), ERR_INVALID, true, REAL(1.0f)},
    {"top_k", SAMPLE(top_k), WHOLE(-1), ERR_INVALID, true, WHOLE(INT32_MAX)},
    {"min_p", SAMPLE(min_p), REAL(1.01f), ERR_INVALID, true, REAL(1.0f)},
    {"presence_penalty", SAMPLE(presence_penalty), REAL(2.01f), ERR_INVALID, true, REAL(0.0f)},
    {"frequency_penalty", SAMPLE(frequency_penalty), REAL(-2.01f), ERR_INVALID, true, REAL(0.0f)},
    {"repetition_penalty", SAMPLE(repetition_penalty), REAL(0.0f), ERR_INVALID, true, REAL(1.0f)},
};

/* A request whose field has this value, in the slot itself: lane_submit() reads some of them. */
static void ask_with(struct peer *p, size_t at, union field value)
{
    struct wire_request r = peer_request(N_PROMPT, N_NEW);
    int32_t tokens[N_PROMPT] = {7, 8, 9, 10};

    r.generate.n_stop_ids = 1;
    r.generate.stop_ids[0] = WORLD_VOCAB - 1;
    clear_answers();
    must_ok(lane_submit(&p->lane, 0, r, tokens, NULL));
    memcpy((char *)&p->lane.slots[0].request + at, &value, sizeof value);
    lane_publish(&p->lane);
    peer_await(p, 0, &answers[0]);
}

static void test_fields(void)
{
    struct world *w = begin((struct world_options){0});

    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const struct broken *b = &broken[i];
        uint64_t n_errors = world_metric(w, METRIC_success_error);
        uint64_t n_bad = world_metric(w, METRIC_bad_entries);

        ask_with(&peers[0], b->at, b->value);
        ok(has_failed(&answers[0], b->err, 0), "%s: refused with error %d", b->name, b->err);
        ok(world_metric(w, METRIC_success_error) - n_errors == (b->at != AT(task)) &&
               world_metric(w, METRIC_bad_entries) - n_bad == (b->err == ERR_INVALID),
           "%s: and counted", b->name);
        if (!b->has_within)
            continue;
        ask_with(&peers[0], b->at, b->within);
        ok(answer_end(&answers[0]).finish == WIRE_FIN_LENGTH && answers[0].n_tokens > 0,
           "%s: the last that may be is answered", b->name);
    }
    is_int(w->e.sched.tenants.list[0].n_refused, 0, "none of it is a refusal for the load");
    peer_close(&peers[0]);
    finish(w, "broken fields");
}

/* 64 malformed requests are answered; one more ends the lane. */
static void test_many_bad(void)
{
    struct world *w = begin((struct world_options){0});
    struct engine_lane *lane = peer_lane(&peers[0], 0);
    int n_answered = 0;

    for (int i = 0; i < 64; i++) {
        ask_with(&peers[0], GEN(max_tokens), (union field)WHOLE(0));
        n_answered += has_failed(&answers[0], ERR_INVALID, 0);
    }
    ok(n_answered == 64 && lane->state == LANE_OPEN, "64 malformed requests are answered");
    ask_with(&peers[0], GEN(max_tokens), (union field)WHOLE(0));
    is_int(lane->state, LANE_FREE, "with one more the front is dropped");
    peer_close(&peers[0]);
    finish(w, "many of them");
}

/* --- words in the arena ----------------------------------------------------------------------- */

#define NOT_A_NUMBER 0x7fc00000
#define INFINITE     0x7f800000

static const struct words {
    const char *name;
    uint32_t n_biases, n_bad, n_asked;
    int32_t words[6];
    int err;
} words[] = {
    {"biases in order", 2, 0, 0, {5, 0, 7, 0}, ERR_OK},
    {"a bias of an id that there is not", 1, 0, 0, {WORLD_VOCAB, 0}, ERR_INVALID},
    {"of a negative one", 1, 0, 0, {-1, 0}, ERR_INVALID},
    {"one that is no number", 1, 0, 0, {5, NOT_A_NUMBER}, ERR_INVALID},
    {"one that is infinite", 1, 0, 0, {5, INFINITE}, ERR_INVALID},
    {"two of one id", 2, 0, 0, {5, 0, 5, 0}, ERR_INVALID},
    {"two in the wrong order", 2, 0, 0, {7, 0, 5, 0}, ERR_INVALID},
    {"bad words", 0, 5, 0, {1, WORLD_VOCAB - 1, 2, 1, 2}, ERR_OK},
    {"an empty one", 0, 1, 0, {0}, ERR_INVALID},
    {"one of negative length", 0, 2, 0, {-1, 5}, ERR_INVALID},
    {"one longer than the rest", 0, 2, 0, {2, 5}, ERR_INVALID},
    {"one of an id that there is not", 0, 2, 0, {1, WORLD_VOCAB}, ERR_INVALID},
    {"one of a negative id", 0, 2, 0, {1, -1}, ERR_INVALID},
    {"asked ids", 0, 0, 2, {0, WORLD_VOCAB - 1}, ERR_OK},
    {"one that there is not", 0, 0, 2, {0, WORLD_VOCAB}, ERR_INVALID},
    {"a negative one", 0, 0, 2, {-1, 0}, ERR_INVALID},
};

static void test_words(void)
{
    static const int32_t wrong[] = {-1, WORLD_VOCAB, INT32_MAX, INT32_MIN};
    struct world *w = begin((struct world_options){0});

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct wire_request r = peer_request(N_PROMPT, N_NEW);
        int32_t tokens[N_PROMPT] = {7, 8, 9, 10};

        clear_answers();
        r.flags |= WIRE_LOGPROBS;
        r.generate.n_biases = words[i].n_biases;
        r.generate.n_bad = words[i].n_bad;
        r.generate.n_asked = words[i].n_asked;
        peer_submit(&peers[0], 0, r, tokens, words[i].words);
        peer_await(&peers[0], 0, &answers[0]);
        if (words[i].err == ERR_OK)
            is_int(answers[0].n_tokens, N_NEW, "%s: answered", words[i].name);
        else
            ok(has_failed(&answers[0], words[i].err, 0), "%s: refused", words[i].name);
    }
    for (size_t i = 0; i < 2 * sizeof wrong / sizeof *wrong; i++) {
        int32_t tokens[N_PROMPT] = {7, 8, 9, 10};

        clear_answers();
        tokens[i % 2 == 0 ? 0 : N_PROMPT - 1] = wrong[i / 2];
        peer_submit(&peers[0], 0, peer_request(N_PROMPT, N_NEW), tokens, NULL);
        peer_await(&peers[0], 0, &answers[0]);
        ok(has_failed(&answers[0], ERR_INVALID, 0), "token %d in place %zu: refused", wrong[i / 2],
           i % 2);
    }
    peer_close(&peers[0]);
    finish(w, "words");
}

/* --- good requests ---------------------------------------------------------------------------- */

static void test_good(void)
{
    struct world *w = begin((struct world_options){0});
    struct wire_request r;
    int32_t tokens[WORLD_LEN];
    int n_whole = 0;

    for (uint32_t i = 0; i < 8; i++)
        start(&peers[0], i, peer_request(3 + 20 * (int)i, 5 + (int)i), i);
    for (uint32_t i = 0; i < 8; i++) {
        peer_await(&peers[0], i, &answers[i]);
        n_whole += is_whole(w, &answers[i], 3 + 20 * (int)i, i, 5 + (int)i);
    }
    is_int(n_whole, 8, "eight requests, four at a time: each has the tokens of the model alone");
    is_int((int)world_metric(w, METRIC_success_length), 8, "and is counted");
    clear_answers();
    start(&peers[0], 0, peer_request(WORLD_LEN - 1, 50), 3);
    peer_await(&peers[0], 0, &answers[0]);
    ok(is_whole(w, &answers[0], WORLD_LEN - 1, 3, 1), "the longest prompt has room for one token");
    /* An output of 4 tokens, of which 3 had come before the engine's death. */
    world_prompt(tokens, N_PROMPT, 9);
    world_expect(w, tokens, N_PROMPT, tokens + N_PROMPT, N_NEW);
    r = peer_request(N_PROMPT + 3, N_NEW);
    r.generate.n_prompt = N_PROMPT;
    r.flags |= WIRE_RESUMED;
    clear_answers();
    peer_submit(&peers[0], 0, r, tokens, NULL);
    peer_await(&peers[0], 0, &answers[0]);
    ok(answers[0].n_tokens == 1 && answers[0].tokens[0] == tokens[N_PROMPT + 3] &&
           answer_end(&answers[0]).finish == WIRE_FIN_LENGTH,
       "what is resumed ends where it would have");
    r.n_tokens = N_PROMPT + N_NEW;
    clear_answers();
    peer_submit(&peers[0], 0, r, tokens, NULL);
    peer_await(&peers[0], 0, &answers[0]);
    ok(has_failed(&answers[0], ERR_INVALID, 0), "what was complete is not resumed");
    peer_close(&peers[0]);
    finish(w, "good requests");
}

/* --- ends before the end ---------------------------------------------------------------------- */

/* Slots 0 and 1 run, slot 2 waits. */
static struct world *begin_two(void)
{
    struct world *w = begin((struct world_options){.n_seqs = 2});

    for (uint32_t i = 0; i < 3; i++)
        start(&peers[0], i, peer_request(20, 40), i);
    passes(w, 6);
    read_all(&peers[0], 3);
    ok(w->e.sched.n_running == 2 && sched_n_waiting(&w->e.sched) == 1 && answers[0].n_tokens > 1 &&
           answers[1].n_tokens > 1 && answers[2].n_out == 0,
       "two run, one waits");
    return w;
}

static void test_cancelled(void)
{
    struct world *w = begin_two();
    int n;

    lane_cancel(&peers[0].lane, 2, WIRE_CLIENT_GONE);
    world_intake(w);
    read_all(&peers[0], 3);
    ok(answers[2].n_out == 1 && answer_end(&answers[2]).finish == WIRE_FIN_CANCELLED &&
           answer_end(&answers[2]).value == WIRE_CLIENT_GONE,
       "cancelled while it waits: an end, and nothing else");
    is_int((int)world_metric(w, METRIC_success_abort), 1, "it counts as aborted");
    lane_cancel(&peers[0].lane, 0, WIRE_STOP_STRING);
    ok(w->e.n_begun != w->e.n_ended, "a step is in flight");
    world_intake(w);
    read_all(&peers[0], 3);
    n = answers[0].n_tokens;
    ok(answer_end(&answers[0]).finish == WIRE_FIN_CANCELLED &&
           answer_end(&answers[0]).value == WIRE_STOP_STRING,
       "cancelled while it runs: ended at once");
    is_int((int)world_metric(w, METRIC_success_stop), 1, "a stop string counts as a stop");
    peer_await(&peers[0], 1, &answers[1]);
    read_all(&peers[0], 3);
    ok(answers[0].n_tokens == n && answers[2].n_out == 1, "no record comes after an end");
    ok(is_whole(w, &answers[1], 20, 1, 40), "the sequence beside it has all its tokens");
    clear_answers();
    start(&peers[0], 0, peer_request(20, 8), 0);
    start(&peers[0], 2, peer_request(20, 8), 2);
    peer_await(&peers[0], 0, &answers[0]);
    peer_await(&peers[0], 2, &answers[2]);
    ok(is_whole(w, &answers[0], 20, 0, 8) && is_whole(w, &answers[2], 20, 2, 8),
       "both slots may be used again");
    peer_close(&peers[0]);
    finish(w, "cancelled");
}

static void test_deadlines(void)
{
    struct world *w = begin((struct world_options){.n_seqs = 2});
    struct wire_request r = peer_request(20, 40);

    r.deadline_us = clock_us() - 1;
    start(&peers[0], 0, r, 0);
    passes(w, 1);
    read_all(&peers[0], 1);
    ok(has_failed(&answers[0], ERR_DEADLINE, 0), "a deadline that has passed: ended at once");
    is_int((int)world_metric(w, METRIC_rejected_deadline), 1, "and counted");
    is_int(w->e.sched.tenants.list[tenants_find(&w->e.sched.tenants, r.tenant)].n_refused, 1,
           "for its tenant, too");
    clear_answers();
    r.deadline_us = clock_us() + 600 * (uint64_t)SECOND;
    for (uint32_t i = 0; i < 4; i++) {
        if (i == 3)
            r.deadline_us += SECOND;
        start(&peers[0], i, r, i);
    }
    passes(w, 5);
    read_all(&peers[0], 4);
    ok(answers[0].n_tokens > 0 && answers[2].n_out == 0, "before it they run and wait");
    w->e.settings.queue_timeout_s = 0; /* waiting is no reason here */
    w->later_us = 600 * (uint64_t)SECOND + SECOND / 2;
    world_intake(w);
    read_all(&peers[0], 4);
    ok(has_failed(&answers[0], ERR_DEADLINE, answers[0].n_tokens + 1),
       "it passes while one runs: ended");
    ok(has_failed(&answers[2], ERR_DEADLINE, 0), "while one waits: ended");
    ok(!answers[3].ended, "not one whose deadline is later");
    is_int((int)world_metric(w, METRIC_rejected_deadline), 4, "each is counted");
    peer_await(&peers[0], 3, &answers[3]);
    ok(is_whole(w, &answers[3], 20, 3, 40), "that one is answered");
    peer_close(&peers[0]);
    finish(w, "deadlines");
}

static void test_waited(void)
{
    struct world *w = begin((struct world_options){.n_seqs = 2});
    struct wire_request r = peer_request(20, 40);

    for (uint32_t i = 0; i < 5; i++) {
        r.flags = WIRE_IGNORE_EOS | (i == 3 ? WIRE_RESUMED : i == 4 ? WIRE_PROBE : 0);
        start(&peers[0], i, r, i);
    }
    passes(w, 4);
    w->later_us = 299 * (uint64_t)SECOND;
    world_intake(w);
    read_all(&peers[0], 5);
    is_int(answers[2].n_out, 0, "one may wait for less than queue_timeout_s");
    w->later_us = 301 * (uint64_t)SECOND;
    world_intake(w);
    read_all(&peers[0], 5);
    ok(has_failed(&answers[2], ERR_OVERLOADED, 0) && answer_end(&answers[2]).retry_after_s >= 1,
       "then it is refused, with a time to try again");
    ok(!answers[0].ended && !answers[1].ended, "not those that run");
    ok(!answers[3].ended && !answers[4].ended, "nor one that is resumed, nor a probe");
    is_int((int)world_metric(w, METRIC_rejected_timeout), 1, "one is counted");
    for (uint32_t i = 0; i < 5; i++)
        peer_await(&peers[0], i, &answers[i]);
    ok(is_whole(w, &answers[3], 20, 3, 40) && is_whole(w, &answers[0], 20, 0, 40),
       "and the others are answered");
    peer_close(&peers[0]);
    finish(w, "waited");
}

/* A front that leaves: with a step in flight, one that waits and others that run. */
static void test_closed(void)
{
    struct world *w = begin((struct world_options){.n_seqs = 3});
    struct peer *honest = &peers[1];
    uint64_t n_aborted;

    must_ok(peer_open(w, honest));
    start(honest, 0, peer_request(30, 60), 7);
    passes(w, 2);
    for (uint32_t i = 0; i < 3; i++)
        start(&peers[0], i, peer_request(100, 100), i);
    passes(w, 4);
    ok(w->e.sched.n_running == 3 && sched_n_waiting(&w->e.sched) == 1 &&
           w->e.n_begun != w->e.n_ended,
       "two of a front run, one waits, a step is in flight");
    n_aborted = world_metric(w, METRIC_success_abort);
    peer_close(&peers[0]);
    world_intake(w);
    is_int(w->e.lanes[0].state, LANE_FREE, "its lane is free at once");
    sched_check(&w->e.sched);
    pages_check(w->e.pages);
    is_int(w->e.sched.n_running + sched_n_waiting(&w->e.sched), 1, "its sequences have ended");
    is_int((int)(world_metric(w, METRIC_success_abort) - n_aborted), 3, "as aborted");
    /* The other's: 30 tokens of prompt and its output, and no page of those that left. */
    ok(pages_count(w->e.pages) - pages_free(w->e.pages) <= (30 + 60) / WORLD_PAGE_TOKENS + 1,
       "their pages are back");
    peer_await(honest, 0, &answers[0]);
    ok(is_whole(w, &answers[0], 30, 7, 60), "the other front's answer is whole");
    must_ok(peer_open(w, &peers[0]));
    is_int(w->e.lanes[0].state, LANE_OPEN, "the next front has that lane");
    clear_answers();
    start(&peers[0], 2, peer_request(20, 5), 2);
    peer_await(&peers[0], 2, &answers[2]);
    ok(is_whole(w, &answers[2], 20, 2, 5), "and is answered");
    peer_close(&peers[0]);
    peer_close(honest);
    finish(w, "a front that left");
}

/* --- the queue -------------------------------------------------------------------------------- */

static void test_queue(void)
{
    struct world *w = begin((struct world_options){.n_seqs = 2, .n_queued_reqs = 3});
    struct wire_request r = peer_request(8, 30);
    const struct wire_lane *shared = peers[0].lane.shared;
    int n_refused = 0;

    is_int(atomic_load(&shared->room_reqs), 5, "an idle engine has room for places and queue");
    for (uint32_t i = 0; i < 8; i++)
        start(&peers[0], i, r, i);
    passes(w, 1);
    read_all(&peers[0], 8);
    for (int i = 0; i < 5; i++)
        n_refused += answers[i].ended;
    is_int(n_refused, 0, "two that run at once and three that wait are taken");
    for (int i = 5; i < 8; i++)
        n_refused += has_failed(&answers[i], ERR_OVERLOADED, 0) &&
                     answer_end(&answers[i]).retry_after_s >= 1;
    is_int(n_refused, 3, "three more are refused, with a time to try again");
    is_int((int)world_metric(w, METRIC_rejected_requests), 3, "and counted for their reason");
    is_int((int)world_metric(w, METRIC_success_error), 0, "not as errors");
    passes(w, 2);
    is_int(atomic_load(&shared->room_reqs), 0, "fronts see that there is no room");
    clear_answers();
    memcpy(r.tenant, "t1", 3);
    start(&peers[0], 8, r, 8);
    passes(w, 1);
    read_all(&peers[0], 9);
    ok(has_failed(&answers[4], ERR_OVERLOADED, 0) && !answers[3].ended && !answers[8].ended,
       "for another tenant's request the last of the first one's gives way");
    is_int((int)world_metric(w, METRIC_rejected_tenant), 1, "which is counted as the tenant's");
    r.flags |= WIRE_RESUMED;
    start(&peers[0], 9, r, 9);
    passes(w, 1);
    read_all(&peers[0], 10);
    ok(has_failed(&answers[9], ERR_OVERLOADED, 0),
       "where there is no place at all, what is resumed is refused as well");
    is_int((int)world_metric(w, METRIC_rejected_requests), 3, "though not by the bounds");
    peer_await(&peers[0], 8, &answers[8]);
    ok(is_whole(w, &answers[8], 8, 8, 30), "the other tenant is answered");
    peer_await(&peers[0], 3, &answers[3]);
    is_int(atomic_load(&shared->room_reqs), 5, "and there is room again");
    peer_close(&peers[0]);
    finish(w, "the queue");
}

/* Resumed requests and probes pass the bounds while there are sequences. */
static void test_queue_tokens(void)
{
    struct world *w =
        begin((struct world_options){.n_seqs = 1, .n_queued_reqs = 8, .n_queued_tokens = 100});
    struct wire_request r = peer_request(60, 10);

    start(&peers[0], 0, peer_request(300, 10), 0);
    start(&peers[0], 1, r, 1);
    r.flags |= WIRE_RESUMED;
    start(&peers[0], 2, r, 2);
    r.flags = WIRE_IGNORE_EOS | WIRE_PROBE;
    start(&peers[0], 3, r, 3);
    passes(w, 1);
    read_all(&peers[0], 4);
    ok(!answers[0].ended, "where nothing waits a prompt of any length is taken");
    ok(has_failed(&answers[1], ERR_OVERLOADED, 0), "then as many tokens as are allowed");
    is_int((int)world_metric(w, METRIC_rejected_tokens), 1, "and it is counted");
    ok(!answers[2].ended && !answers[3].ended, "what is resumed passes, and so does a probe");
    for (uint32_t i = 0; i < 4; i++)
        peer_await(&peers[0], i, &answers[i]);
    ok(is_whole(w, &answers[0], 300, 0, 10) && is_whole(w, &answers[2], 60, 2, 10) &&
           is_whole(w, &answers[3], 60, 3, 10),
       "all of them are answered");
    is_int((int)world_metric(w, METRIC_success_length), 2, "a probe is not counted");
    peer_close(&peers[0]);
    finish(w, "tokens of the queue");
}

/* --- the ring and its rules ------------------------------------------------------------------- */

enum breach { BREACH_TWICE, BREACH_SLOT, BREACH_TAIL, BREACH_HEAD, BREACH_HEAD_RUNNING };

static void commit(struct peer *p, enum breach breach)
{
    struct lane *l = &p->lane;

    if (breach == BREACH_HEAD)
        atomic_store(&l->slots[1].out_head, 1);
    start(p, breach == BREACH_TWICE ? 0 : 1, peer_request(20, 30), 1);
    if (breach == BREACH_SLOT)
        l->queue[(l->queue_at - 1) & (l->queue_cap - 1)] = WORLD_SLOTS;
    if (breach == BREACH_TAIL)
        atomic_fetch_add(&l->shared->queue_tail, l->queue_cap);
    if (breach == BREACH_HEAD_RUNNING)
        atomic_store(&l->slots[0].out_head, 1000000);
}

static void test_ring(enum breach breach, const char *name)
{
    struct world *w = begin((struct world_options){0});

    must_ok(peer_open(w, &peers[1]));
    start(&peers[1], 0, peer_request(30, 20), 7);
    start(&peers[0], 0, peer_request(20, 30), 0);
    passes(w, 3);
    is_int(w->e.sched.n_running, 2, "%s: before it, both fronts are served", name);
    commit(&peers[0], breach);
    world_intake(w);
    is_int(w->e.lanes[0].state, LANE_FREE, "%s: the front is dropped", name);
    is_int((int)world_metric(w, METRIC_bad_entries), 1, "%s: and counted", name);
    is_int(w->e.sched.n_running + sched_n_waiting(&w->e.sched), 1, "%s: with its sequences", name);
    peer_await(&peers[1], 0, &answers[0]);
    ok(is_whole(w, &answers[0], 30, 7, 20), "%s: the other front's answer is whole", name);
    peer_close(&peers[0]);
    peer_close(&peers[1]);
    finish(w, name);
}

/* --- uploads ---------------------------------------------------------------------------------- */

/* A vocabulary of n tokens, as a sealed memfd. */
static int seal_vocabulary(uint32_t n, uint64_t *bytes)
{
    static struct trie_token tokens[WORLD_VOCAB + 1];
    struct buf image = {0};
    int sealed;

    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (struct trie_token){.bytes = "abcdefgh" + i % 8, .len = 1};
    must_ok(trie_build(tokens, n, (const int32_t[]){0}, 1, &image));
    must_ok(attach_seal(image.bytes, image.len, &sealed));
    *bytes = image.len;
    buf_fini(&image);
    return sealed;
}

enum upload_flaw { UP_NONE, UP_KIND, UP_IDX, UP_SIZE, UP_OPEN, UP_GARBAGE, UP_LARGE, UP_ALONE };

static void test_upload(enum upload_flaw flaw, const char *name)
{
    struct world *w = begin((struct world_options){0});
    struct wire_upload upload = {.kind = WIRE_VOCABULARY};
    int sealed = seal_vocabulary(WORLD_VOCAB + (flaw == UP_LARGE), &upload.bytes);
    bool good = flaw == UP_NONE;

    if (flaw == UP_KIND)
        upload.kind = WIRE_AUTOMATON + 1;
    if (flaw == UP_IDX || flaw == UP_ALONE)
        upload.kind = WIRE_AUTOMATON;
    if (flaw == UP_IDX)
        upload.idx = WIRE_AUTOMATA_MAX;
    if (flaw == UP_SIZE)
        upload.bytes++;
    if (flaw == UP_OPEN || flaw == UP_GARBAGE) {
        (void)close(sealed);
        sealed = memfd_create("open", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        must_ok(ftruncate(sealed, (off_t)upload.bytes));
    }
    if (flaw == UP_GARBAGE) {
        (void)close(sealed);
        must_ok(attach_seal(broken, sizeof broken, &sealed));
        upload.bytes = sizeof broken;
    }
    must_ok(attach_upload(peers[0].control_fd, &upload, sealed));
    passes(w, 1);
    is_int(w->e.lanes[0].state, good ? LANE_OPEN : LANE_FREE, "%s: the front %s", name,
           good ? "stays" : "is dropped");
    is_int((int)world_metric(w, METRIC_bad_entries), !good, "%s: the count of bad entries", name);
    ok((w->e.lanes[0].guide.vocab != NULL) == good, "%s: the vocabulary", name);
    (void)close(sealed);
    peer_close(&peers[0]);
    finish(w, name);
    ok(w->e.lanes[0].guide.vocab == NULL, "%s: nothing is left of it", name);
}

/* More uploads than any front needs, and no request. */
static void test_flood(void)
{
    struct world *w = begin((struct world_options){0});
    struct engine_lane *lane = peer_lane(&peers[0], 0);
    struct wire_upload upload = {.kind = WIRE_VOCABULARY};
    int sealed = seal_vocabulary(WORLD_VOCAB, &upload.bytes);
    uint64_t most = 0, n_sent = 0;

    for (int i = 0; i < 10000 && lane->state == LANE_OPEN; i++) {
        uint64_t before = lane->n_uploaded;

        while (attach_upload(peers[0].control_fd, &upload, sealed) == ERR_OK)
            n_sent++;
        passes(w, 1);
        if (lane->n_uploaded - before > most)
            most = lane->n_uploaded - before;
    }
    ok(lane->state == LANE_FREE && n_sent > 4096, "uploads without a request: %llu, then dropped",
       (unsigned long long)n_sent);
    is_int((long long)lane->n_uploaded, 4097, "one more than a front may");
    ok(most <= 256, "a pass takes at most 256 of a lane (%llu)", (unsigned long long)most);
    (void)close(sealed);
    peer_close(&peers[0]);
    finish(w, "a flood of uploads");
}

/* --- connections ------------------------------------------------------------------------------ */

/* Connect and send a hello of so many bytes, or nothing. */
static int stranger(const struct world *w, const struct wire_hello *hello, size_t bytes)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", w->path);
    must_ok(connect(fd, (struct sockaddr *)&a, sizeof a));
    if (bytes > 0)
        must_ok(send(fd, hello, bytes, MSG_NOSIGNAL) != (ssize_t)bytes);
    return fd;
}

/* Does the engine's end of fd say no more? What it said before is read. */
static bool is_hung_up(int fd)
{
    struct wire_welcome welcome;

    for (int i = 0; i < 4; i++) {
        ssize_t n = recv(fd, &welcome, sizeof welcome, 0);

        if (n <= 0)
            return n == 0;
    }
    return false;
}

static void test_connections(void)
{
    struct world *w = begin((struct world_options){.n_lanes = 2});
    struct wire_hello hello = {.magic = WIRE_MAGIC, .layout = wire_layout() + 1};
    struct wire_welcome welcome = {0};
    int silent = stranger(w, NULL, 0), n_refused = 0, fd;

    passes(w, 1);
    is_int(w->e.lanes[1].state, LANE_GREETING, "one that says nothing has a lane");
    passes(w, 1);
    is_int(w->e.lanes[1].state, LANE_GREETING, "and keeps it for a second");
    w->e.lanes[1].since_us -= SECOND + SECOND / 2;
    passes(w, 1);
    ok(w->e.lanes[1].state == LANE_FREE && is_hung_up(silent), "then it is sent away");
    (void)close(silent);
    silent = stranger(w, NULL, 0);
    passes(w, 1);
    is_int(peer_open(w, &peers[1]), ERR_OK, "a front takes the lane of one that says nothing");
    ok(is_hung_up(silent), "which is sent away at once");
    (void)close(silent);
    for (int i = 0; i < 100; i++) /* the hang-up comes before the hello, or behind it */
        n_refused += peer_open(w, &peers[2]) == ERR_OVERLOADED;
    is_int(n_refused, 100, "where all lanes are in use, 100 fronts read that they are refused");
    peer_close(&peers[1]);
    passes(w, 1);
    fd = stranger(w, &hello, sizeof hello);
    passes(w, 2);
    is_int(recv(fd, &welcome, sizeof welcome, 0), sizeof welcome, "another build is answered");
    ok(welcome.error == ERR_VERSION && is_hung_up(fd) && w->e.lanes[1].state == LANE_FREE,
       "by its error, and sent away");
    (void)close(fd);
    hello.layout = wire_layout();
    fd = stranger(w, &hello, sizeof hello - 1);
    passes(w, 2);
    ok(w->e.lanes[1].state == LANE_FREE && is_hung_up(fd), "half a hello is none");
    (void)close(fd);
    is_int(w->e.lanes[0].state, LANE_OPEN, "the first front has its lane all the time");
    peer_close(&peers[0]);
    finish(w, "connections");
}

/* --- the stop --------------------------------------------------------------------------------- */

static void signal_stop(struct world *w)
{
    const uint64_t one = 1;

    must_ok(write(w->e.intake.signal_fd, &one, sizeof one) != sizeof one);
    world_pass(w);
}

static void test_stop(void)
{
    struct world *w = begin((struct world_options){0});

    start(&peers[0], 0, peer_request(20, 10), 0);
    start(&peers[0], 1, peer_request(20, 400), 1);
    passes(w, 3);
    signal_stop(w);
    is_int(atomic_load(&peers[0].lane.shared->engine_state), WIRE_DRAINING,
           "fronts see that the engine stops");
    start(&peers[0], 2, peer_request(20, 10), 2);
    passes(w, 1);
    read_all(&peers[0], 3);
    ok(has_failed(&answers[2], ERR_DRAINING, 0), "what comes then is refused");
    peer_await(&peers[0], 0, &answers[0]);
    ok(is_whole(w, &answers[0], 20, 0, 10), "what ran goes on");
    read_all(&peers[0], 3);
    ok(!answers[1].ended, "as long as there is time");
    signal_stop(w);
    world_pass(w);
    read_all(&peers[0], 3);
    ok(has_failed(&answers[1], ERR_DRAINING, answers[1].n_tokens + 1),
       "a second signal ends the time");
    peer_close(&peers[0]);
    finish(w, "the stop");
}

/* --- commands --------------------------------------------------------------------------------- */

static void test_commands(void)
{
    struct world *w = begin((struct world_options){0});
    struct wire_request cache = {.n_tokens = 1, .task = WIRE_CACHE};
    struct wire_request power = {.n_tokens = 1, .task = WIRE_POWER};
    uint64_t n_errors = world_metric(w, METRIC_success_error);

    cache.cache.action = WIRE_DROP_ALL + 1;
    start(&peers[0], 0, cache, 0);
    power.power.action = WIRE_END + 1;
    start(&peers[0], 1, power, 0);
    cache.cache.action = WIRE_DROP_ALL;
    start(&peers[0], 2, cache, 0);
    power.power.action = WIRE_SLEEP;
    start(&peers[0], 3, power, 0);
    for (uint32_t i = 0; i < 4; i++)
        peer_await(&peers[0], i, &answers[i]);
    ok(has_failed(&answers[0], ERR_INVALID, 0), "an action of the cache that there is not");
    ok(has_failed(&answers[1], ERR_INVALID, 0), "one of the power");
    ok(answers[2].ended && answer_end(&answers[2]).finish != WIRE_FIN_ERROR, "a good command");
    ok(has_failed(&answers[3], ERR_NO_SLEEP, 0), "sleep, of an engine that cannot");
    is_int((int)(world_metric(w, METRIC_success_error) - n_errors), 0,
           "no command counts as a request");
    is_int((int)world_metric(w, METRIC_bad_entries), 2, "malformed ones are counted");
    peer_close(&peers[0]);
    finish(w, "commands");
}

int main(void)
{
    log_set_level(0); /* refusals and drops are logged */
    test_good();
    test_fields();
    test_many_bad();
    test_words();
    test_cancelled();
    test_deadlines();
    test_waited();
    test_closed();
    test_queue();
    test_queue_tokens();
    test_ring(BREACH_TWICE, "a slot that is in use");
    test_ring(BREACH_SLOT, "a slot that there is not");
    test_ring(BREACH_TAIL, "a queue longer than it can be");
    test_ring(BREACH_HEAD, "records read that were not written");
    test_ring(BREACH_HEAD_RUNNING, "the same while it runs");
    test_upload(UP_NONE, "a good upload");
    test_upload(UP_KIND, "a kind that there is not");
    test_upload(UP_IDX, "a place that there is not");
    test_upload(UP_SIZE, "another size");
    test_upload(UP_OPEN, "a file that is not sealed");
    test_upload(UP_GARBAGE, "a vocabulary that is none");
    test_upload(UP_LARGE, "one larger than the model's");
    test_upload(UP_ALONE, "a vocabulary as an automaton");
    test_flood();
    test_connections();
    test_stop();
    test_commands();
    return tap_done();
}
