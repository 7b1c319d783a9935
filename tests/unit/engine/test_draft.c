/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts over texts that are known beforehand: how many steps a text takes, and how many drafts are
 * wasted. A step has one token that is sampled, and the drafts before it that are right; the texts
 * are a copy, a copy with single tokens replaced, one with tokens inserted, nothing to copy, and a
 * prompt whose continuations are all wrong. Drafts never change what is said: each is compared with
 * the text here, as the engine compares it with what was sampled. */
#include "engine/draft.h"

#include <stdlib.h>
#include <string.h>

#include "engine/seq.h"
#include "tests/tap.h"

#define LEN 600

/* A sequence that says `text` after its prompt. */
struct trace {
    const char *name;
    int32_t prompt[2 * LEN], text[LEN];
    int n_prompt;
    int n_steps, n_drafts, n_right; /* after run() */
};

/* Ids from `low` on that never repeat. */
static int fill(int32_t *out, int n, int low)
{
    for (int i = 0; i < n; i++)
        out[i] = low + i;
    return n;
}

static void run(struct trace *t, const struct draft_options *o)
{
    int cap = 4 * LEN;
    struct seq q = {.tokens_max = cap, .n_tokens = t->n_prompt};
    int said = 0;

    q.tokens = calloc((size_t)cap, sizeof *q.tokens);
    q.draft.heads = calloc((size_t)cap * 4, sizeof *q.draft.heads);
    q.draft.before = calloc((size_t)cap, sizeof *q.draft.before);
    memcpy(q.tokens, t->prompt, (size_t)t->n_prompt * sizeof *q.tokens);
    t->n_steps = t->n_drafts = t->n_right = 0;
    while (said < LEN) {
        int n = 0, n_right = 0;

        if (said > 0)
            draft_propose(o, &q, LEN - said - 1);
        n = q.draft.n;
        while (n_right < n && q.tokens[q.n_tokens + n_right] == t->text[said + n_right])
            n_right++;
        for (int i = 0; i <= n_right; i++) {
            q.tokens[q.n_tokens++] = t->text[said++];
            draft_follow(o, &q);
        }
        if (n > 0)
            draft_learn(o, &q, n, n_right);
        q.draft.n = 0;
        t->n_steps++;
        t->n_drafts += n;
        t->n_right += n_right;
    }
    free(q.tokens), free(q.draft.heads), free(q.draft.before);
}

/* Both methods: at most `steps` steps and `wasted` drafts that are wrong. */
static void check(struct trace *t, int steps, int wasted)
{
    static const char *const methods[] = {"{\"method\":\"ngram\"}", "{\"method\":\"suffix\"}"};
    char why[200];

    for (int i = 0; i < 2; i++) {
        struct draft_options o;

        is_int(draft_read_options(&o, methods[i], why, sizeof why), ERR_OK, "%s", methods[i]);
        run(t, &o);
        ok(t->n_steps <= steps && t->n_drafts - t->n_right <= wasted,
           "%s: %d tokens in %d steps (at most %d), %d of %d drafts wrong (at most %d)", t->name,
           LEN, t->n_steps, steps, t->n_drafts - t->n_right, t->n_drafts, wasted);
    }
}

static void check_copies(void)
{
    static struct trace copy = {.name = "a copy"}, edited = {.name = "one token of 12 replaced"};
    static struct trace longer = {.name = "three tokens inserted at each 60th"};

    fill(copy.text, LEN, 100);
    copy.n_prompt = fill(copy.prompt, LEN, 100);
    check(&copy, LEN / 8 + 20, 10);

    fill(edited.text, LEN, 100);
    edited.n_prompt = fill(edited.prompt, LEN, 100);
    for (int i = 11; i < LEN; i += 12)
        edited.prompt[i] = 5000 + i;
    check(&edited, LEN / 3, LEN / 2);

    longer.n_prompt = fill(longer.prompt, LEN, 100);
    for (int i = 0, at = 0; i < LEN; i++)
        longer.text[i] = i % 63 < 60 ? longer.prompt[at++] : 9000 + i;
    check(&longer, LEN / 3, LEN / 3);
}

static void check_nothing(void)
{
    static struct trace none = {.name = "nothing to copy"}, wrong = {.name = "wrong guesses"};

    fill(none.text, LEN, 100);
    none.n_prompt = fill(none.prompt, LEN, 10000);
    check(&none, LEN, 0);

    /* Each two tokens of the text are in the prompt, and another one follows them there. */
    fill(wrong.text, LEN, 100);
    for (int i = 0; i + 2 < LEN; i += 2) {
        wrong.n_prompt += fill(wrong.prompt + wrong.n_prompt, 2, 100 + i);
        wrong.prompt[wrong.n_prompt++] = 9000 + i;
    }
    check(&wrong, LEN, LEN / 10);
}

/* A model's drafts: the share of right ones follows what becomes of them, and keys of right drafts
 * stay, but a head's. */
static void check_model(void)
{
    static struct seq seq;
    struct draft_options o;
    char why[160];

    ok(draft_read_options(&o, "{\"model\": \"/m\"}", why, sizeof why) == ERR_OK &&
           o.method == DRAFT_MODEL && strcmp(o.model, "/m") == 0 && !o.is_fixed,
       "a model alone is a draft model");
    ok(draft_read_options(&o, "{\"method\": \"eagle3\", \"model\": 1}", why, sizeof why) ==
               ERR_INVALID &&
           draft_read_options(&o, "{\"method\": \"ngram\", \"model\": \"/m\"}", why, sizeof why) ==
               ERR_OK &&
           o.method == DRAFT_NGRAM,
       "the method decides");
    o.method = DRAFT_MODEL;
    seq.draft = (struct draft){.n_beside = 10, .n_made = 3};
    draft_learn(&o, &seq, 3, 3);
    ok(seq.draft.n_beside == 12 && draft_share(&seq.draft) > 0.7f, "three right drafts");
    seq.draft.n_made = 3;
    draft_learn(&o, &seq, 3, 1);
    ok(seq.draft.n_beside == 13, "the keys of one stay");
    for (int i = 0; i < 50; i++)
        draft_learn(&o, &seq, 3, 0);
    ok(draft_share(&seq.draft) < 0.05f, "none are right");
    o.method = DRAFT_EAGLE3;
    seq.draft = (struct draft){.n_beside = 10, .n_made = 3};
    draft_learn(&o, &seq, 3, 3);
    ok(seq.draft.n_beside == 10, "a head's are computed again");
}

/* Forced drafts are fewer after wrong ones, rest after drafts that were all wrong, and are counted
 * apart from the method's own. */
static void check_forced(void)
{
    static struct seq seq;
    struct draft_options o;
    char why[160];

    ok(draft_read_options(&o, "{\"method\": \"forced\"}", why, sizeof why) == ERR_OK &&
           o.method == DRAFT_FORCED && o.n_tokens == DRAFT_MAX && !draft_is_model(&o),
       "forced drafts alone");
    ok(draft_read_options(&o, "{\"method\": \"mtp\"}", why, sizeof why) == ERR_OK &&
           o.method == DRAFT_MTP && o.model[0] == '\0' && draft_is_model(&o),
       "an MTP layer is in the model's own folder");
    ok(draft_read_options(&o, "{\"method\": \"mtp\", \"model\": 3}", why, sizeof why) ==
           ERR_INVALID,
       "or in another, which has a name");
    o.method = DRAFT_MODEL;
    seq.draft = (struct draft){.n_beside = 10, .n_made = 2, .n_forced = 4};
    draft_learn(&o, &seq, 6, 6);
    ok(seq.draft.n_beside == 11 && seq.draft.forced_length == 0 && draft_share(&seq.draft) > 0.7f,
       "two drafts of a model and four forced ones are right");
    seq.draft.n_made = 2;
    draft_learn(&o, &seq, 6, 1);
    ok(seq.draft.forced_length == 0 && seq.draft.n_forced_rest == 0,
       "behind a wrong draft of the model they say nothing");
    seq.draft.n_made = 2;
    draft_learn(&o, &seq, 6, 3);
    ok(seq.draft.forced_length == 2, "one of four is right: two are next");
    for (int i = 0; i < 10; i++) {
        seq.draft.n_made = 2;
        draft_learn(&o, &seq, 6, 2);
    }
    ok(seq.draft.n_forced_rest == 16 && seq.draft.forced_length == 1, "none is: they rest");
}

int main(void)
{
    check_model();
    check_forced();
    check_copies();
    check_nothing();
    return tap_done();
}
