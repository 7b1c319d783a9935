/* Walking an automaton, token by token: which tokens may come, and what is after one came.
 *
 * How an engine uses it. At attach: trie_check() of the front's vocabulary. For a request:
 * automaton_check() of a private copy; sequences with the same digest share the automaton and one
 * struct walk_cache. For each sequence a struct walk, begun by walk_init(). For each thread that
 * makes masks a struct walk_work. Each step, for a sequence whose tokens are all known:
 *
 *     walk_mask(work, automaton, vocab, cache, &seq->walk, mask)   before its token is sampled
 *     walk_accept(work, automaton, vocab, &seq->walk, token)      when the token is known
 *
 * Prompt continuation: walk_init(), then walk_accept() of the output so far. Speculation: keep a
 * walk_copy() a token, go back by copying. A walk is plain memory without pointers.
 *
 * No function here allocates, blocks or recurses. What a hostile automaton can cost is bounded:
 * WALK_STEPS_MAX elementary steps a mask (of some 5 ns each), or WALK_NODE_STEPS at each node of
 * the vocabulary where that is more; WALK_TOKEN_STEPS a token that is accepted; WALK_DEPTH_MAX
 * frames a stack, WALK_TOPS_MAX configurations; beyond, ERR_LIMIT, and the sequence is to end with
 * an error. */
#ifndef QUIRE_GRAMMAR_WALK_H
#define QUIRE_GRAMMAR_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "grammar/automaton.h"
#include "grammar/trie.h"

#define WALK_TOPS_MAX    256
#define WALK_FRAMES_MAX  1024    /* of all stacks of a walk together; common ones count once */
#define WALK_DEPTH_MAX   240     /* frames of one stack */
#define WALK_NEST_MAX    200     /* with so many frames no further list or object may begin */
#define WALK_STEPS_MAX   4000000 /* of one mask */
#define WALK_NODE_STEPS  64      /* of a mask, for each node of the vocabulary's first trie */
#define WALK_TOKEN_STEPS 400000  /* of one token, or 255 bytes, that are accepted */

struct walk_top {
    uint32_t state;
    uint32_t frame; /* 0: nothing below */
};

struct walk_frame {
    uint32_t state; /* to go on in */
    uint16_t below; /* a lower index; 0: nothing below */
    uint16_t depth;
    uint32_t count; /* of characters that may come, and 1; 0: they are not counted */
};

/* Where a sequence is. Frames are a forest: stacks share what is below. */
struct walk {
    uint16_t n_tops;
    uint16_t n_frames; /* the first is not used */
    bool ended;        /* an end token was accepted */
    struct walk_top tops[WALK_TOPS_MAX];
    struct walk_frame frames[WALK_FRAMES_MAX];
};

void walk_init(struct walk *walk, const struct automaton *automaton);

/* Copy what is used of a walk: 100 bytes as a rule, 15 KiB at most. */
void walk_copy(struct walk *to, const struct walk *from);

/* Room for a thread's work with vocabularies of at most n_vocab; aligned to 8; zeroed or not. */
struct walk_work;
size_t walk_work_bytes(uint32_t n_vocab);
void walk_work_init(struct walk_work *work, uint32_t n_vocab);

/* What was found out about the states of one automaton with one vocabulary: memory that the
 * caller gives, at least walk_cache_bytes(n_vocab, 1), aligned to 8. Filled by any number of
 * threads at once, without locks; when it is full nothing more is kept. */
struct walk_cache;
size_t walk_cache_bytes(uint32_t n_vocab, uint32_t n_states);
void walk_cache_init(struct walk_cache *cache, size_t bytes);

/* The tokens that may come.
 *
 *   cache   NULL: none
 *   mask    out: uint32 [v->n_words], bit t % 32 of word t / 32: token t is allowed
 *
 * End tokens are allowed where the output may end. Returns ERR_OK; ERR_LIMIT as above, the mask
 * is then undefined. An empty mask cannot come from an honest automaton: end the sequence. */
int walk_mask(struct walk_work *work, const struct automaton *automaton,
              const struct token_trie *trie, struct walk_cache *cache, const struct walk *walk,
              uint32_t *mask) ERR_CHECKED;

/* The same within so many steps: ERR_AGAIN when they are used up and the bounds above are not. What
 * was found is kept in the cache, so the next call may need fewer. */
int walk_mask_within(struct walk_work *work, const struct automaton *automaton,
                     const struct token_trie *trie, struct walk_cache *cache,
                     const struct walk *walk, uint32_t steps, uint32_t *mask) ERR_CHECKED;

/* The steps that the last call with this work took. */
uint32_t walk_steps(const struct walk_work *work);

/* Let a call of another thread with this work end soon, with ERR_LIMIT; one that begins later does
 * not know of it. */
void walk_stop(struct walk_work *work);

/* Go on by a token. ERR_OK; ERR_INVALID when it may not come (w is as it was); ERR_LIMIT. */
int walk_accept(struct walk_work *work, const struct automaton *automaton,
                const struct token_trie *trie, struct walk *walk, int32_t token) ERR_CHECKED;

/* The same by bytes, for callers without a vocabulary. */
int walk_bytes(struct walk_work *work, const struct automaton *automaton, struct walk *walk,
               const void *bytes, size_t len) ERR_CHECKED;

/* May the output end here? */
bool walk_can_end(struct walk_work *work, const struct automaton *automaton,
                  const struct walk *walk);

/* The bytes that must come next because nothing else may, at most cap; their number. 0 when
 * there is a choice, or when the output may end here. w does not move. */
size_t walk_forced(struct walk_work *work, const struct automaton *automaton,
                   const struct walk *walk, char *bytes, size_t cap);

#endif
