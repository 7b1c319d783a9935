/* SPDX-License-Identifier: Apache-2.0
 *
 * Drafts of sequences with constraints: which of them may come, and which tokens hardly have a
 * choice. Both look ahead on a copy of the sequence's walk, on the engine's thread, so each look is
 * bounded: an automaton that exceeds GUIDE_DRAFT_STEPS has no drafts from then on.
 *
 * An automaton says bytes: behind {"na it leaves no choice but me": and the model may cut these
 * into tokens as it likes, down to single bytes. It mostly takes the longest ones, as the tokenizer
 * does, and little white space where it is free to choose. So these are the drafts; like all drafts
 * they are compared with the sampled tokens. */
#include "engine/guide.h"

#define GUIDE_DRAFT_STEPS  40000 /* of one look: 200 us; one at {"name": takes 2,000 */
#define GUIDE_FORCED_BYTES 96    /* seven tokens are seldom longer */

/* Count a call of the look. False: the look took too long. */
static bool guide_look(struct guide *g, const struct seq *seq, uint32_t *steps)
{
    *steps += walk_steps(g->works[0]);
    if (*steps <= GUIDE_DRAFT_STEPS)
        return true;
    seq->automaton->is_slow = true;
    return false;
}

/* Bring the walk to seq's last token. False: not now; after the begin of a continued output its
 * first mask does it, and errors are the mask's to report. */
static bool guide_arrive(struct guide *g, struct seq *seq, uint32_t *steps)
{
    const struct guide_automaton *automaton = seq->automaton;

    if (automaton->is_slow || automaton->refused || seq->n_tokens - seq->n_walked > DRAFT_MAX + 1)
        return false;
    while (seq->n_walked < seq->n_tokens) {
        if (walk_accept(g->works[0], automaton->a, automaton->vocab, seq->walk,
                        seq->tokens[seq->n_walked]) != ERR_OK)
            return false;
        seq->n_walked++;
        if (!guide_look(g, seq, steps))
            return false;
    }
    walk_copy(g->ahead[0], seq->walk);
    return true;
}

static bool guide_lists(const struct seq *seq, int32_t id)
{
    return seq->request.generate.n_allowed == 0 || (seq->allowed[id / 32] >> id % 32 & 1) != 0;
}

/* Of n drafts those that may come; the walk ahead is behind them. */
static int guide_keep(struct guide *g, struct seq *seq, int n, uint32_t *steps)
{
    const struct guide_automaton *automaton = seq->automaton;
    const int32_t *drafts = seq->tokens + seq->n_tokens;

    for (int i = 0; i < n; i++) {
        if (!guide_lists(seq, drafts[i]))
            return i;
        if (automaton == NULL)
            continue;
        if (walk_accept(g->works[0], automaton->a, automaton->vocab, g->ahead[0], drafts[i]) !=
                ERR_OK ||
            !guide_look(g, seq, steps))
            return i;
    }
    return n;
}

/* The last byte of a token; 0: it has no text. */
static char guide_last_byte(const struct token_trie *vocab, int32_t id)
{
    const uint32_t *at = trie_text_at(vocab);

    if ((uint32_t)id >= vocab->n_vocab || at[id + 1] == at[id])
        return '\0';
    return (char)trie_text(vocab)[at[id + 1] - 1];
}

/* Write at most `most` tokens, to `to` behind the last draft that may come, of the bytes that
 * follow the walk ahead. */
static int guide_force(struct guide *g, const struct seq *seq, int32_t before, int32_t *to,
                       int most, uint32_t *steps)
{
    const struct guide_automaton *automaton = seq->automaton;
    char bytes[GUIDE_FORCED_BYTES], last = guide_last_byte(automaton->vocab, before);
    size_t len, at = 0;
    int n = 0;

    len = walk_likely(g->works[0], automaton->a, g->ahead[0], last, bytes, sizeof bytes);
    if (!guide_look(g, seq, steps))
        return 0;
    while (n < most && at < len) {
        size_t token_len = 0;
        int32_t id = trie_longest(automaton->vocab, bytes + at, len - at, &token_len);

        if (id < 0 || !guide_lists(seq, id))
            break;
        to[n++] = id;
        at += token_len;
    }
    return n;
}

struct guide_drafts guide_draft(struct guide *g, struct seq *seq, int n, int most)
{
    struct guide_drafts out = {0, 0};
    uint32_t steps = 0;

    if (seq->automaton != NULL && !guide_arrive(g, seq, &steps))
        return out;
    out.n_kept = out.n = guide_keep(g, seq, n, &steps);
    if (seq->automaton != NULL && !seq->automaton->is_slow && out.n < most) {
        int32_t *to = seq->tokens + seq->n_tokens + out.n;

        out.n += guide_force(g, seq, to[-1], to, most - out.n, &steps);
    }
    return out;
}

bool guide_is_forced(struct guide *g, struct seq *seq)
{
    int32_t ids[2];
    uint32_t steps = 0;

    return seq->automaton != NULL && guide_arrive(g, seq, &steps) &&
           guide_force(g, seq, seq->tokens[seq->n_tokens - 1], ids, 2, &steps) == 2;
}
