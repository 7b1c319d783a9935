/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: no step waits for slow masks longer than the bounds of guide.h say, one tenant's do not use
 * up what others may, and a slow mask comes all the same: right, and in its turn. Method: a guide
 * without an engine, a vocabulary of 131,072 tokens, forms that are quick, slow and beyond all
 * bounds; elementary steps are counted, and masks compared with those made at leisure. */
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/must.h"
#include "engine/guide.h"
#include "grammar/grammar.h"
#include "ipc/attach.h"
#include "tests/grammar/pieces.h"
#include "tests/tap.h"

#define N_VOCAB  131072
#define N_WORDS  (N_VOCAB / 32)
#define N_SEQS   12
#define PASS_MAX 100000 /* of 100 us: it takes some hundred */

static struct guide guide;
static struct guide_lane lane;
static struct seq_pool pool;
static uint32_t masks[N_SEQS * N_WORDS];
static const int32_t end_ids[] = {N_VOCAB - 1};

enum form { QUICK, TEXT, SLOW, NAMED, ENDLESS, N_FORMS };

static const char *const forms[N_FORMS] = {
    "root ::= [ab]+",
    "root ::= [^<]* \"<\" root | [^>]*",
    "root ::= x \"1\"\nx ::= y | y x\ny ::= z \"0\"? z?\nz ::= [a-z ]+ | \" \" [a-z]+",
    "root ::= \"{\\\"\" (\"name\" | \"number\") \"\\\"\" [ ]* \":\" [ ]* \"\\\"\" [a-z]+ \"\\\"}\"",
    "root ::= a \"1\"\na ::= b | b a a? \",\"?\nb ::= c \"0\"? c? \"-\"?\n"
    "c ::= d | d d \";\"? | [a-z] c \"_\"?\nd ::= [a-z ]+ (\"x\" b)?",
};

static void upload(enum wire_upload_kind kind, uint32_t idx, const struct buf *image)
{
    struct wire_upload o = {.kind = kind, .idx = idx, .bytes = image->len};
    int sealed;

    must_ok(attach_seal(image->bytes, image->len, &sealed));
    must_ok(guide_take_upload(&guide, &lane, &o, sealed));
}

static void lane_begin(const struct pieces *p)
{
    struct buf image = {0};

    must_ok(guide_lane_init(&lane));
    (void)pieces_image(p, &image);
    upload(WIRE_VOCABULARY, 0, &image);
    for (uint32_t i = 0; i < N_FORMS; i++) {
        struct grammar_request r = {
            .kind = GRAMMAR_EBNF, .source = forms[i], .source_len = strlen(forms[i])};
        struct grammar_error why = {.text = ""};

        buf_clear(&image);
        is_int(grammar_compile(&r, &image, &why), 0, "form %u compiles %s", i, why.text);
        upload(WIRE_AUTOMATON, i, &image);
    }
    buf_fini(&image);
}

/* Its prompt is one token; tenant_idx as the engine counts them. */
static struct seq *seq_of(enum form form, int tenant_idx)
{
    struct seq *q = seq_claim(&pool);

    must(q != NULL);
    q->request.generate.automaton = form + 1;
    q->tenant_idx = tenant_idx;
    q->n_prompt = q->n_tokens = 1;
    must_ok(guide_begin(&guide, &lane, q, NULL));
    return q;
}

static void seq_end(struct seq *q)
{
    guide_end(q);
    seq_release(&pool, q);
}

static int late_of(struct seq *const *seqs, int n)
{
    int late = 0;

    for (int i = 0; i < n; i++)
        late += seqs[i]->is_late;
    return late;
}

/* A step with those that are not late; the jobs stand in their order. */
static void step(struct seq *const *seqs, int n)
{
    guide_clear(&guide);
    for (int i = 0; i < n; i++)
        if (!seqs[i]->is_late)
            (void)guide_add(&guide, seqs[i]);
    guide_run(&guide);
}

/* Steps until no sequence is late any more; in all of them the first n_quick have their masks. */
static int run_late(struct seq *const *seqs, int n, int n_quick, unsigned *most_steps)
{
    int passes = 0, missing = 0;

    while (late_of(seqs, n) > 0 && passes < PASS_MAX) {
        guide_pass(&guide, seqs, n);
        step(seqs, n_quick);
        for (int i = 0; i < guide.n_jobs; i++)
            missing += guide.jobs[i].rc != ERR_OK;
        if (guide.pass_steps > *most_steps)
            *most_steps = guide.pass_steps;
        clock_sleep_us(100);
        passes++;
    }
    is_int(missing, 0, "in each of %d steps meanwhile the others have their masks", passes);
    return passes;
}

static bool mask_is_right(const struct seq *q, const uint32_t *mask)
{
    struct walk_work *work = guide_work(&guide);
    uint32_t *again = calloc(N_WORDS, sizeof *again);
    bool same;

    must_ok(walk_mask(work, q->automaton->a, q->automaton->vocab, NULL, q->walk, again));
    same = memcmp(mask, again, N_WORDS * sizeof *again) == 0;
    mem_free(work);
    free(again);
    return same;
}

static void test_bounds(void)
{
    struct seq *seqs[N_SEQS];
    unsigned width = (unsigned)pool_width(guide.pool), most = 0;
    bool right = true;

    for (int i = 0; i < 2; i++)
        seqs[i] = seq_of(QUICK, 2);
    for (int i = 2; i < 6; i++)
        seqs[i] = seq_of(TEXT, 1);
    for (int i = 6; i < N_SEQS; i++)
        seqs[i] = seq_of(SLOW, 1);
    step(seqs + 2, N_SEQS - 2); /* the greedy tenant alone */
    ok(guide.tenant_steps[1] <= GUIDE_TENANT_STEPS + width * GUIDE_MASK_STEPS * 11 / 10,
       "the masks of one tenant took %u steps", guide.tenant_steps[1]);
    ok(guide.pass_steps <= width * (GUIDE_PASS_STEPS + GUIDE_MASK_STEPS * 11 / 10),
       "all together %u", guide.pass_steps);
    ok(late_of(seqs, N_SEQS) >= 6, "%d of %d are late", late_of(seqs, N_SEQS), N_SEQS);
    for (int i = 2; i < N_SEQS; i++)
        seqs[i]->is_late = false;
    step(seqs, N_SEQS);
    ok(guide.jobs[0].rc == ERR_OK && guide.jobs[1].rc == ERR_OK, "beside another's nothing is");
    (void)run_late(seqs, N_SEQS, 2, &most);
    ok(most <= width * (GUIDE_PASS_STEPS + GUIDE_MASK_STEPS * 11 / 10),
       "which took %u steps at most", most);
    is_int(late_of(seqs, N_SEQS), 0, "all come");
    step(seqs, N_SEQS);
    for (int i = 0; i < N_SEQS; i++)
        right = right && guide.jobs[i].rc == ERR_OK && mask_is_right(seqs[i], guide.jobs[i].mask);
    ok(right, "and are those that are made at leisure");
    for (int i = 0; i < N_SEQS; i++)
        seq_end(seqs[i]);
}

/* A tenant with many slow masks leaves a place to the other, whose mask is not the last. */
static void test_turns(void)
{
    struct seq *seqs[N_SEQS];
    int before = -1;

    guide.late_steps[1] = 1; /* the first tenant had one already */
    for (int i = 0; i < N_SEQS; i++) {
        seqs[i] = seq_of(i == N_SEQS - 1 ? TEXT : SLOW, i == N_SEQS - 1 ? 2 : 1);
        seqs[i]->n_walked = 1;
        seqs[i]->is_late = true;
    }
    guide_pass(&guide, seqs, N_SEQS);
    ok(seqs[N_SEQS - 1]->late != NULL, "the other tenant's mask has a place");
    for (int passes = 0; late_of(seqs, N_SEQS) > 0 && passes < PASS_MAX; passes++) {
        if (before < 0 && !seqs[N_SEQS - 1]->is_late)
            before = N_SEQS - late_of(seqs, N_SEQS) - 1;
        clock_sleep_us(100);
        guide_pass(&guide, seqs, N_SEQS);
    }
    ok(before >= 0 && before < N_SEQS - 1, "%d of %d of the first come before it", before,
       N_SEQS - 1);
    for (int i = 0; i < N_SEQS; i++)
        seq_end(seqs[i]);
}

static void test_refused(void)
{
    struct seq *q = seq_of(ENDLESS, 1), *other;
    unsigned most = 0;

    q->tokens[q->n_tokens++] = 'a';
    step(&q, 1);
    is_int(guide.jobs[0].rc, ERR_AGAIN, "a mask beyond all bounds is late first");
    (void)run_late(&q, 1, 0, &most);
    step(&q, 1);
    is_int(guide.jobs[0].rc, ERR_LIMIT, "then its sequence ends");
    other = seq_claim(&pool);
    other->request.generate.automaton = ENDLESS + 1;
    is_int(guide_begin(&guide, &lane, other, NULL), ERR_LIMIT,
           "and so is each that names the form later");
    seq_release(&pool, other);
    seq_end(q);
}

/* The text of n tokens of q from `from` on. */
static const char *text_of(const struct seq *q, int from, int n)
{
    const uint32_t *at = trie_text_at(lane.vocab);
    static char text[256];
    size_t len = 0;

    for (int i = from; i < from + n; i++) {
        size_t more = at[q->tokens[i] + 1] - at[q->tokens[i]];

        must(len + more < sizeof text);
        memcpy(text + len, trie_text(lane.vocab) + at[q->tokens[i]], more);
        len += more;
    }
    text[len] = '\0';
    return text;
}

static int32_t id_of(const char *text)
{
    size_t len = 0;
    int32_t id = trie_longest(lane.vocab, text, strlen(text), &len);

    must(len == strlen(text));
    return id;
}

static void say(struct seq *q, const char *text)
{
    for (; *text != '\0'; text++)
        q->tokens[q->n_tokens++] = id_of((const char[]){*text, '\0'});
}

/* Tokens without a choice, drafts that are forbidden, and a form that is too slow for either. */
static void test_drafts(void)
{
    struct seq *q = seq_of(NAMED, 1), *slow = seq_of(ENDLESS, 1);
    struct guide_drafts drafts = guide_draft(&guide, q, 0, DRAFT_MAX);

    ok(drafts.n_kept == 0 && drafts.n > 0 && strcmp(text_of(q, 1, drafts.n), "{\"n") == 0,
       "%d tokens are forced up to the first choice: %s", drafts.n, text_of(q, 1, drafts.n));
    say(q, "{\"nu");
    drafts = guide_draft(&guide, q, 0, DRAFT_MAX);
    ok(strcmp(text_of(q, q->n_tokens, drafts.n), "mber\": \"") == 0 && guide_is_forced(&guide, q),
       "free white space is guessed: %s", text_of(q, q->n_tokens, drafts.n));
    drafts = guide_draft(&guide, q, 0, 1);
    is_int(drafts.n, 1, "and there are no more than are wanted");
    q->tokens[q->n_tokens] = id_of("m");
    q->tokens[q->n_tokens + 1] = id_of("b");
    q->tokens[q->n_tokens + 2] = id_of("x");
    drafts = guide_draft(&guide, q, 3, 3);
    ok(drafts.n_kept == 2 && drafts.n == 3, "of three drafts the last is forbidden, and replaced");
    ok(strncmp(text_of(q, q->n_tokens + 2, 1), "er", 1) == 0, "by %s",
       text_of(q, q->n_tokens + 2, 1));
    say(q, "mber\":\"x");
    ok(guide_draft(&guide, q, 0, 7).n == 0 && !guide_is_forced(&guide, q),
       "a choice of letters has none");
    for (int i = 0; i < 200 && !slow->automaton->is_slow; i++) {
        say(slow, "a");
        (void)guide_draft(&guide, slow, 0, 7);
    }
    ok(slow->automaton->is_slow && guide_draft(&guide, slow, 0, 7).n == 0 && !draft_may(slow),
       "a slow form is given up, after %d tokens", slow->n_tokens);
    seq_end(q);
    seq_end(slow);
}

/* The masks of a step with drafts are those of steps with one token each. */
static void test_draft_masks(void)
{
    static const char text[] = "{\"number\": ";
    struct seq *q = seq_of(NAMED, 1), *other = seq_of(QUICK, 2);
    int n = sizeof text - 1, n_right = 0;
    static uint32_t of_step[N_SEQS * N_WORDS];

    must(n <= N_SEQS);
    say(q, text);
    q->n_tokens -= n; /* they are drafts */
    guide_clear(&guide);
    for (int i = 0; i <= n - 2; i++)
        (void)guide_add(&guide, q);
    (void)guide_add(&guide, other);
    guide_run(&guide);
    memcpy(of_step, masks, sizeof of_step);
    for (int i = 0; i <= n - 2; i++) {
        n_right += guide.jobs[i].rc == ERR_OK && guide.jobs[i].n_drafts == i;
        step(&q, 1);
        n_right += memcmp(of_step + (size_t)i * N_WORDS, masks, N_WORDS * sizeof *masks) == 0;
        q->n_tokens++;
    }
    is_int(n_right, 2 * (n - 1), "%d masks are those of single steps", n - 1);
    q->tokens[q->n_tokens] = id_of("x");
    guide_clear(&guide);
    for (int i = 0; i < 3; i++)
        (void)guide_add(&guide, q);
    guide_run(&guide);
    ok(guide.jobs[0].rc == ERR_OK && guide.jobs[1].rc == ERR_NO_TOKEN &&
           guide.jobs[2].rc == ERR_NO_TOKEN && !q->is_late,
       "there is none behind a forbidden draft");
    seq_end(q);
    seq_end(other);
}

/* Sequences and their lane go while masks are made. */
static void test_gone(void)
{
    struct seq *q[4];
    int held = 0;

    for (int i = 0; i < 4; i++) {
        q[i] = seq_of(SLOW, i);
        q[i]->n_walked = 1;
        q[i]->is_late = true;
    }
    guide_pass(&guide, q, 4);
    for (int i = 0; i < 4; i++)
        seq_end(q[i]);
    guide_lane_drop(&guide, &lane);
    for (int i = 0; i < GUIDE_LATE; i++)
        held += guide.late[i].p != NULL;
    is_int(held, 0, "a lane that goes stops its late masks");
    ok(lane.vocab == NULL && lane.automata[SLOW].a == NULL, "and takes its forms along");
}

int main(void)
{
    static struct pieces p;
    struct guide_shape shape = {
        .n_vocab = N_VOCAB, .max_num_seqs = N_SEQS, .n_eos = 1, .eos = end_ids, .masks = masks};

    pieces_begin(&p, N_VOCAB - 1);
    pieces_fill(&p);
    must_ok(guide_init(&guide, &shape));
    must_ok(seq_pool_init(&pool, &(struct seq_pool_limits){.n_seqs = 2 * N_SEQS,
                                                           .max_model_len = 1024,
                                                           .page_tokens = 16,
                                                           .n_vocab = N_VOCAB,
                                                           .n_groups = 1}));
    lane_begin(&p);
    test_bounds();
    test_turns();
    test_drafts();
    test_draft_masks();
    test_refused();
    test_gone();
    pieces_end(&p);
    return tap_done();
}
