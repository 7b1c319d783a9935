/* SPDX-License-Identifier: Apache-2.0
 *
 * Walking an automaton, token by token: which tokens are allowed next, and the state after a token.
 *
 * How an engine uses it. At attach: trie_check() of the front's vocabulary. Per request:
 * automaton_check() of a private copy; sequences with the same digest share the automaton and one
 * struct walk_cache. Per sequence: a struct walk, begun by walk_init(). Per thread that makes
 * masks: a struct walk_work. In each step, for a sequence whose tokens are all known:
 *
 *     walk_mask(work, automaton, vocab, cache, &seq->walk, mask)   before its token is sampled
 *     walk_accept(work, automaton, vocab, &seq->walk, token)      when the token is known
 *
 * To continue an output: walk_init(), then walk_accept() of each of its tokens. For drafts: keep a
 * walk_copy() per token and go back by copying. A walk is plain memory without pointers.
 *
 * No function here allocates, blocks or recurses. The cost of a hostile automaton is bounded:
 * WALK_STEPS_MAX elementary steps per mask (of about 5 ns each), or WALK_NODE_STEPS per node of the
 * vocabulary if that is more; WALK_TOKEN_STEPS per accepted token; WALK_DEPTH_MAX frames per stack;
 * WALK_TOPS_MAX configurations. Beyond these the functions return ERR_LIMIT, and the sequence must
 * end with an error. */
#ifndef QUIRE_GRAMMAR_WALK_H
#define QUIRE_GRAMMAR_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "grammar/automaton.h"
#include "grammar/trie.h"

#define WALK_TOPS_MAX    256
#define WALK_FRAMES_MAX  1024    /* of all stacks of a walk; shared frames count once */
#define WALK_DEPTH_MAX   240     /* frames of one stack */
#define WALK_NEST_MAX    200     /* at this depth no further list or object may begin */
#define WALK_STEPS_MAX   4000000 /* per mask */
#define WALK_NODE_STEPS  64      /* per mask and node of the vocabulary's first trie */
#define WALK_TOKEN_STEPS 400000  /* per accepted token, or per 255 bytes */

/* A configuration: a state and the topmost frame of its stack. */
struct walk_top {
    uint32_t state;
    uint32_t frame; /* 0: the stack is empty */
};

struct walk_frame {
    uint32_t state; /* to continue in after the pop */
    uint16_t below; /* a lower index; 0: nothing */
    uint16_t depth;
    uint32_t count; /* characters that are left, plus 1; 0: not counted */
};

/* The position of a sequence. Frames form a forest: stacks share their lower parts. */
struct walk {
    uint16_t n_tops;
    uint16_t n_frames; /* frame 0 is not used */
    bool ended;        /* an end token was accepted */
    struct walk_top tops[WALK_TOPS_MAX];
    struct walk_frame frames[WALK_FRAMES_MAX];
};

void walk_init(struct walk *walk, const struct automaton *automaton);

/* Copy the used part of a walk: usually 100 bytes, at most 15 KiB. */
void walk_copy(struct walk *to, const struct walk *from);

/* Scratch memory of a thread, for vocabularies of at most n_vocab tokens; aligned to 8. */
struct walk_work;
size_t walk_work_bytes(uint32_t n_vocab);
void walk_work_init(struct walk_work *work, uint32_t n_vocab);

/* Results about the states of one automaton with one vocabulary, in memory that the caller
 * provides: at least walk_cache_bytes(n_vocab, 1) bytes, aligned to 8. Threads fill it concurrently
 * without locks; when it is full, no more results are kept. */
struct walk_cache;
size_t walk_cache_bytes(uint32_t n_vocab, uint32_t n_states);
void walk_cache_init(struct walk_cache *cache, size_t bytes);

/* Make the mask of the allowed tokens.
 *
 *   cache   NULL: none
 *   mask    out: uint32 [trie->n_words], bit t % 32 of word t / 32: token t is allowed
 *
 * End tokens are allowed where the output may end. Returns ERR_OK; ERR_LIMIT as above, with an
 * undefined mask. An empty mask means that the automaton was not written by build_write(): end the
 * sequence. */
int walk_mask(struct walk_work *work, const struct automaton *automaton,
              const struct token_trie *trie, struct walk_cache *cache, const struct walk *walk,
              uint32_t *mask) ERR_CHECKED;

/* Like walk_mask(), within a number of steps: ERR_AGAIN when they are used up but the bounds above
 * are not. Results are kept in the cache, so the next call may need fewer steps. */
struct walk_language {
    const struct automaton *automaton;
    const struct token_trie *trie;
    struct walk_cache *cache; /* of these two; NULL: none */
};
int walk_mask_within(struct walk_work *work, const struct walk_language *language,
                     const struct walk *walk, uint32_t steps, uint32_t *mask) ERR_CHECKED;

/* The steps that the last call with this work took. */
uint32_t walk_steps(const struct walk_work *work);

/* Make a call of another thread with this work end soon, with ERR_LIMIT. A call that begins later
 * is not affected. */
void walk_stop(struct walk_work *work);

/* Advance by a token. ERR_OK; ERR_INVALID when it is not allowed (the walk is then unchanged);
 * ERR_LIMIT. */
int walk_accept(struct walk_work *work, const struct automaton *automaton,
                const struct token_trie *trie, struct walk *walk, int32_t token) ERR_CHECKED;

/* Advance by bytes, for callers without a vocabulary. */
int walk_bytes(struct walk_work *work, const struct automaton *automaton, struct walk *walk,
               const void *bytes, size_t len) ERR_CHECKED;

/* May the output end here? */
bool walk_can_end(struct walk_work *work, const struct automaton *automaton,
                  const struct walk *walk);

/* Write the bytes that must come next because there is no choice, at most cap, and return their
 * number. 0 when there is a choice, or when the output may end here. The walk does not change. */
size_t walk_forced(struct walk_work *work, const struct automaton *automaton,
                   const struct walk *walk, char *bytes, size_t cap);

/* Likewise, but free white space is no choice: the bytes that will come if a blank follows each
 * colon and comma, where it may, and no other white space comes. last: the byte before them. */
size_t walk_likely(struct walk_work *work, const struct automaton *automaton,
                   const struct walk *walk, char last, char *bytes, size_t cap);

#endif
