/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the mask of a walk: the union of the masks of its configurations. Each has two parts.
 *
 * 1. The part that does not depend on the stack. Start in the configuration's state, with an
 *    unknown frame (a hole) below, and walk the trie. The result is an entry: the tokens that are
 *    read without leaving the rule (a bitmap), and the nodes of the trie at which the rule may end
 *    in the middle of a token (the pops). Entries that took long to find are kept in the cache, by
 *    state.
 * 2. The part that depends on the stack. At each pop, walk the children with the real frames below.
 *    Usually these are few: after a string's closing quote about a hundred tokens go on.
 *
 * With nothing below, an end is the end of the output, and no pop is recorded. A rule that may end
 * anywhere (free text) with something below it has a pop at nearly every inner node of the trie,
 * and a vocabulary has more of these than tokens. Then the entry is computed again with the topmost
 * frame known: the text after the rule is read in the same walk, and only the pops of the next
 * frame remain; and so on, up to KNOWN_MAX frames. Such entries are kept by state and known frames.
 * Beyond that the real stack is walked, and nothing is kept.
 *
 * Where characters are counted (automaton.h), the count does not matter while more characters are
 * left than any token of the entry takes, including its way to the end. Closer to the end the real
 * stack is walked.
 *
 * Where a string may go on for long enough, all tokens of a slice (trie.h) are allowed at once, and
 * only the trie of the other tokens is walked. */
#include <stdatomic.h>
#include <string.h>

#include "base/must.h"
#include "grammar/walk_parts.h"

#define ENTRY_STEPS   300 /* keep entries that took longer than a look-up and a copy would */
#define CACHE_SLOTS   4096u
#define CACHE_POPS    256u /* pops per state that walk_cache_bytes() allows for; most have few */
#define CACHE_PROBES  16
#define DEPTH_RESERVE 64 /* frames that a cached entry may push */
#define KNOWN_MAX     3
#define POPS_MANY     UINT32_MAX

/* The key of an entry: the state, the topmost frames, and whether anything is below these. */
struct entry_key {
    uint32_t state;
    uint16_t n_known;
    uint16_t is_all;           /* 1: nothing is below */
    uint32_t known[KNOWN_MAX]; /* states of frames, topmost first; the rest is 0 */
};

struct entry_head {
    struct entry_key key;
    uint32_t trie;   /* the trie in which pops are indices */
    uint32_t need;   /* characters that must be left if the frame below counts them */
    uint32_t ends;   /* 1: the known part may end before any byte */
    uint32_t n_pops; /* POPS_MANY: too many; one more frame must be known. No words follow then */
};

struct mask_entry {
    struct entry_head head;
    uint32_t words[]; /* the bitmap, then the pops */
};

/* An append-only hash table that threads share without locks: an entry is written completely before
 * its offset is published in a slot, and is never changed or removed. */
struct walk_cache {
    uint64_t bytes; /* of the whole cache */
    _Atomic uint64_t used;
    _Atomic uint32_t slots[CACHE_SLOTS]; /* offset / 8 of an entry; 0: free */
};

size_t walk_cache_bytes(uint32_t n_vocab, uint32_t n_states)
{
    size_t words = ((size_t)n_vocab + 31) / 32 + CACHE_POPS;

    return sizeof(struct walk_cache) +
           n_states * ((sizeof(struct mask_entry) + words * sizeof(uint32_t) + 7) & ~(size_t)7);
}

void walk_cache_init(struct walk_cache *cache, size_t bytes)
{
    must(bytes >= sizeof *cache && (uintptr_t)cache % 8 == 0);
    memset(cache, 0, sizeof *cache);
    cache->bytes = bytes;
    atomic_store(&cache->used, (sizeof *cache + 7) & ~(size_t)7);
}

/* The slot to try at a probe. */
static uint32_t mask_find_slot(const struct entry_key *key, uint32_t probe)
{
    uint32_t hash = key->state * 0x9e3779b1u + key->is_all;

    for (uint32_t i = 0; i < key->n_known; i++)
        hash = (hash ^ hash >> 15 ^ key->known[i]) * 0x85ebca6bu;
    return ((hash >> 16) + probe) % CACHE_SLOTS;
}

static const struct mask_entry *mask_entry_at(const struct walk_cache *cache, uint32_t offset)
{
    return (const struct mask_entry *)((const char *)cache + (size_t)offset * 8);
}

/* Find an entry. Slots are only filled, never emptied, so a free slot ends the probing. The acquire
 * load pairs with the release in mask_cache_keep(): an offset is visible only after its entry. */
static const struct mask_entry *mask_cache_find(struct walk_cache *cache,
                                                const struct entry_key *key)
{
    uint32_t i;

    /* At most CACHE_PROBES slots are read. An entry that found none free was not kept, so it
     * cannot be farther away. */
    for (i = 0; i < CACHE_PROBES; i++) {
        uint32_t offset =
            atomic_load_explicit(&cache->slots[mask_find_slot(key, i)], memory_order_acquire);

        if (offset == 0)
            return NULL;
        /* The whole key is compared: a slot may hold another entry with an equal hash. */
        if (memcmp(&mask_entry_at(cache, offset)->head.key, key, sizeof *key) == 0)
            return mask_entry_at(cache, offset);
    }
    return NULL;
}

/* Keep the entry just found. If two threads keep the same entry, one copy is never found; that only
 * wastes memory. */
static void mask_cache_keep(struct walk_cache *cache, const struct walk_work *work,
                            const struct token_trie *trie, const struct entry_head *head)
{
    bool many = head->n_pops == POPS_MANY;
    size_t words = many ? 0 : (size_t)trie->n_words + head->n_pops;
    size_t bytes = (sizeof(struct mask_entry) + words * sizeof(uint32_t) + 7) & ~(size_t)7;
    uint64_t at = atomic_fetch_add(&cache->used, bytes);
    struct mask_entry *entry;
    uint32_t i;

    /* Space is reserved by adding to `used`. If it is exhausted the reservation is undone; a
     * concurrent one may then fail as well, which only means that its entry is not kept. */
    if (at + bytes > cache->bytes || at / 8 > UINT32_MAX) {
        atomic_fetch_sub(&cache->used, bytes);
        return;
    }
    entry = (struct mask_entry *)((char *)cache + at);
    entry->head = *head;
    if (!many) {
        memcpy(entry->words, work->bits, trie->n_words * sizeof entry->words[0]);
        memcpy(entry->words + trie->n_words, work->pops, head->n_pops * sizeof entry->words[0]);
    }
    for (i = 0; i < CACHE_PROBES; i++) {
        uint32_t empty = 0;

        if (atomic_compare_exchange_strong_explicit(&cache->slots[mask_find_slot(&head->key, i)],
                                                    &empty, (uint32_t)(at / 8),
                                                    memory_order_release, memory_order_relaxed))
            return;
    }
}

/* --- walking a trie ----------------------------------------------------------------------- */

/* A closed set to walk from. */
struct mask_start {
    struct set set;
    bool can[256]; /* the bytes for which some configuration has an edge */
};

/* Fill start->can. Most subtrees of the
 * first level are skipped by this table. */
static void mask_first_bytes(const struct walk_work *work, struct mask_start *start)
{
    uint32_t i, k;

    memset(start->can, 0, sizeof start->can);
    for (i = 0; i < start->set.n; i++) {
        uint32_t at = work->pool[start->set.at + i].state;

        while (at != AUTOMATON_NONE) { /* the state, then its base */
            const struct automaton_state *state = automaton_states(work->a) + at;
            const struct automaton_edge *edge = automaton_edges(work->a) + state->edge_at;

            for (k = 0; k < state->n_edges; k++)
                memset(start->can + edge[k].lo, 1,
                       (size_t)edge[k].hi - edge[k].lo + 1); /* includes dead edges: harmless */
            at = state->base;
        }
    }
}

/* Enter a node: close the set after its byte and remember where its subtree ends. */
static void mask_descend(struct walk_work *work, struct level *level, struct set set, uint32_t end)
{
    walk_set_close(work, &set);
    level->set = set;
    level->end = end;
}

/* Walk the nodes [at, end) of a trie from a closed set. Sets the bits of allowed tokens, and
 * records a pop where the hole is reached. `can` is mask_first_bytes() of the set. levels[] is the
 * stack of the walk: one set per byte on the way to the current node. */
static void mask_walk_nodes(struct walk_work *work, const struct trie_node *nodes, uint32_t at,
                            uint32_t end, const struct mask_start *start, uint32_t *bits)
{
    struct level *levels = work->levels;
    uint32_t depth = 0;

    levels[0].set = start->set;
    levels[0].end = end;
    while (at < end && !work->failed && !work->many) {
        const struct trie_node *node = &nodes[at];
        struct level *level;
        struct set next;

        while (at >= levels[depth].end) { /* leave subtrees; level 0 ends at `end` */
            walk_work_rewind(work, levels[depth].n_frames, levels[depth].n_pool);
            depth--;
        }
        if (depth == 0 && !start->can[node->byte]) {
            at += node->skip;
            continue;
        }
        level = &levels[depth + 1]; /* a trie is at most TRIE_TOKEN_MAX deep */
        level->n_frames = work->n_frames;
        level->n_pool = work->n_pool;
        work->n_bytes = depth + 1;
        next = walk_set_step(work, &levels[depth].set, node->byte);
        if (next.n == 0) {
            at += node->skip;
            continue;
        }
        if (node->token != TRIE_NO_TOKEN)
            bits[node->token / 32] |= 1u << node->token % 32;
        if (node->skip == 1) {
            walk_work_rewind(work, level->n_frames, level->n_pool);
            at++;
            continue;
        }
        mask_descend(work, level, next, at + node->skip);
        if (level->set.hole) {
            if (work->n_pops == POPS_MAX)
                work->many = true;
            else
                work->pops[work->n_pops++] = at;
        }
        depth++;
        at++;
    }
    while (depth > 0) {
        walk_work_rewind(work, levels[depth].n_frames, levels[depth].n_pool);
        depth--;
    }
}

/* The trie without the largest slice that the state allows as a whole: its tokens are not
 * walked. */
static uint32_t mask_choose_trie(const struct automaton *automaton, const struct token_trie *trie,
                                 uint32_t state)
{
    unsigned plain = automaton_states(automaton)[state].plain;
    uint32_t t = TRIE_TRIES - 1;

    if ((automaton_states(automaton)[state].flags & AUTOMATON_COUNTED) != 0)
        return 0; /* the characters of each token must be counted */
    while (t > 0 && (plain == 0 || plain < trie->tries[t].slice_chars))
        t--;
    return t;
}

/* Push the known frames of a key onto a hole, or onto nothing. */
static uint32_t mask_key_frames(struct walk_work *work, const struct entry_key *key)
{
    uint32_t frame = key->is_all != 0 ? FRAME_BOTTOM : FRAME_HOLE;

    for (uint32_t i = key->n_known; i-- > 0;)
        frame = walk_frame_push(work, key->known[i], frame, 0);
    return frame;
}

/* Compute the entry of head->key, into work->bits and work->pops. */
static void mask_find_entry(struct walk_work *work, const struct token_trie *trie,
                            struct entry_head *head)
{
    uint32_t t = mask_choose_trie(work->a, trie, head->key.state);
    uint32_t frame = mask_key_frames(work, &head->key);
    struct mask_start start = {.set.at = work->n_pool};

    work->n_pops = 0;
    work->many = false;
    work->depth_max = 0;
    work->need = 0;
    if (frame == UINT32_MAX) { /* out of frames */
        work->failed = true;
        return;
    }
    if (t > 0)
        memcpy(work->bits, trie_slice(trie, t), trie->n_words * sizeof work->bits[0]);
    else
        memset(work->bits, 0, trie->n_words * sizeof work->bits[0]);
    walk_set_add(work, &start.set, head->key.state, frame);
    walk_set_close(work, &start.set);
    mask_first_bytes(work, &start);
    mask_walk_nodes(work, trie_nodes(trie) + trie->tries[t].node_at, 0, trie->tries[t].n_nodes,
                    &start, work->bits);
    head->trie = t;
    head->need = work->need;
    head->ends = start.set.hole || start.set.bottom;
    if (work->many)
        head->n_pops = POPS_MANY;
    else
        head->n_pops = work->n_pops;
    work->many = false;
}

/* --- the mask ----------------------------------------------------------------------------- */

/* The state of one call of walk_mask_within(). */
struct masking {
    struct walk_work *s;
    const struct token_trie *v;
    struct walk_cache *cache;
    uint32_t *mask;
    struct set tops; /* configurations to process; those below an end are added */
    bool can_end;
};

/* Walk the whole trie with the real stack. */
static void mask_directly(struct masking *masking, struct walk_top top)
{
    struct walk_work *work = masking->s;
    struct mask_start start = {.set.at = work->n_pool};

    walk_set_add(work, &start.set, top.state, top.frame);
    walk_set_close(work, &start.set);
    masking->can_end = masking->can_end || start.set.bottom;
    mask_first_bytes(work, &start);
    mask_walk_nodes(work, trie_nodes(masking->v) + masking->v->tries[0].node_at, 0,
                    masking->v->tries[0].n_nodes, &start, masking->mask);
}

/* Tokens that leave the rule at these nodes continue in the frame below. */
static void mask_pops(struct masking *masking, const uint32_t *pops, uint32_t n_pops, uint32_t trie,
                      uint32_t frame)
{
    const struct trie_node *nodes = trie_nodes(masking->v) + masking->v->tries[trie].node_at;
    struct walk_work *work = masking->s;
    struct mask_start start = {.set.at = work->n_pool};
    uint32_t i;

    /* At the bottom the end of the rule is the end of the output, and no byte may follow. */
    if (frame == FRAME_BOTTOM || n_pops == 0)
        return;
    /* The set after the return: the state that the frame holds, on the stack below it. */
    walk_set_add(work, &start.set, work->frames[frame].state, work->frames[frame].below);
    walk_set_close(work, &start.set);
    /* Most tokens fail at their first byte, so the bytes that can begin are computed once for
     * all pops. */
    mask_first_bytes(work, &start);
    /* A pop is a node at which the rule has ended inside of a token. The rest of that token is
     * its subtree, which is walked from the set after the return. */
    for (i = 0; i < n_pops && !work->failed; i++) {
        work->steps++;
        mask_walk_nodes(work, nodes, pops[i] + 1, pops[i] + nodes[pops[i]].skip, &start,
                        masking->mask);
    }
}

/* The known part may end before any byte, so the configuration below it is one more to process. A
 * set can only grow while it is the pool's last, so this is called after the walk's sets are
 * removed. */
static void mask_mark_below(struct masking *masking, uint32_t frame)
{
    struct walk_work *work = masking->s;

    if (frame == FRAME_BOTTOM)
        masking->can_end = true;
    else
        walk_set_add(work, &masking->tops, work->frames[frame].state, work->frames[frame].below);
}

static void mask_or_words(uint32_t *to, const uint32_t *from, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        to[i] |= from[i];
}

/* Make one more frame known; false when that is not possible. *below becomes the frame under it. */
static bool mask_key_deepen(const struct walk_work *work, struct entry_key *key, uint32_t *below)
{
    if (key->n_known == KNOWN_MAX || *below == FRAME_BOTTOM || work->frames[*below].count != 0)
        return false;
    key->known[key->n_known++] = work->frames[*below].state;
    *below = work->frames[*below].below;
    key->is_all = *below == FRAME_BOTTOM;
    return true;
}

/* Are so many characters left in the frame that no token can reach the end of the count? */
static bool mask_has_plenty(const struct walk_work *work, uint32_t below, uint32_t need)
{
    return below <= FRAME_HOLE || work->frames[below].count == 0 ||
           work->frames[below].count > need;
}

/* Add the entry of a key to the mask, from the cache or computed. POPS_MANY in the returned head:
 * the entry was not usable and nothing was added. */
static struct entry_head mask_entry(struct masking *masking, const struct entry_key *key,
                                    uint32_t below)
{
    struct entry_head head = {.key = *key, .n_pops = POPS_MANY};
    const struct mask_entry *kept =
        masking->cache == NULL ? NULL : mask_cache_find(masking->cache, key);
    struct walk_work *work = masking->s;
    uint32_t n_frames = work->n_frames, n_pool = work->n_pool, steps = work->steps;

    if (kept != NULL && !mask_has_plenty(work, below, kept->head.need))
        return head;
    if (kept != NULL && kept->head.n_pops != POPS_MANY) {
        mask_or_words(masking->mask, kept->words, masking->v->n_words);
        mask_pops(masking, kept->words + masking->v->n_words, kept->head.n_pops, kept->head.trie,
                  below);
    }
    if (kept != NULL)
        return kept->head;
    mask_find_entry(work, masking->v, &head);
    walk_work_rewind(work, n_frames, n_pool);
    if (work->failed ||
        work->depth_max > DEPTH_RESERVE) /* tokens of many brackets: the real depth matters */
        return (struct entry_head){.key = *key, .n_pops = POPS_MANY};
    if (masking->cache != NULL && work->steps - steps > ENTRY_STEPS)
        mask_cache_keep(masking->cache, work, masking->v, &head);
    if (!mask_has_plenty(work, below, head.need))
        return (struct entry_head){.key = *key, .n_pops = POPS_MANY};
    if (head.n_pops != POPS_MANY) {
        mask_or_words(masking->mask, work->bits, masking->v->n_words);
        mask_pops(masking, work->pops, head.n_pops, head.trie,
                  below); /* adds no pops itself, because no hole is below */
    }
    return head;
}

/* Add the tokens of one configuration: with as few known frames as possible, or else with the real
 * stack. */
static void mask_top(struct masking *masking, struct walk_top top)
{
    struct walk_work *work = masking->s;
    uint32_t n_frames = work->n_frames;
    uint32_t n_pool = work->n_pool;
    uint32_t depth = top.frame > FRAME_HOLE ? work->frames[top.frame].depth : 0;
    struct entry_key key = {.state = top.state, .is_all = top.frame == FRAME_BOTTOM};
    uint32_t below = top.frame;
    struct entry_head head = {.n_pops = POPS_MANY};
    bool more = depth + DEPTH_RESERVE <= WALK_NEST_MAX;

    /* One frame more is taken as known each time, until the entry has few pops or the stack
     * ends. */
    while (more && !work->failed) {
        head = mask_entry(masking, &key, below);
        more = head.n_pops == POPS_MANY && mask_key_deepen(work, &key, &below);
    }
    if (work->failed)
        return;
    /* No depth gave an entry that is worth keeping, so the tokens are walked with the real
     * stack. */
    if (head.n_pops == POPS_MANY)
        mask_directly(masking, top);
    walk_work_rewind(work, n_frames,
                     head.n_pops == POPS_MANY ? n_pool : masking->tops.at + masking->tops.n);
    if (head.n_pops != POPS_MANY && head.ends != 0)
        mask_mark_below(masking, below);
}

/* The bound on steps per mask, which grows with the vocabulary. */
static uint32_t mask_steps_max(const struct token_trie *trie)
{
    uint64_t steps = (uint64_t)trie->tries[0].n_nodes * WALK_NODE_STEPS;

    if (steps < WALK_STEPS_MAX)
        return WALK_STEPS_MAX;
    if (steps > UINT32_MAX / 2)
        return UINT32_MAX / 2;
    return (uint32_t)steps;
}

int walk_mask_within(struct walk_work *work, const struct walk_language *language,
                     const struct walk *walk, uint32_t steps, uint32_t *mask)
{
    const struct token_trie *trie = language->trie;
    uint32_t most = mask_steps_max(trie);
    struct masking masking = {.s = work, .v = trie, .cache = language->cache, .mask = mask};
    uint32_t i;

    must(language->automaton != NULL && language->trie != NULL);
    must(mask != NULL);
    if (trie->n_words > work->n_words)
        return ERR_INVALID;
    memset(mask, 0, trie->n_words * sizeof *mask);
    if (walk->ended)
        return ERR_OK;
    walk_work_reset(work, language->automaton);
    steps = steps < most ? steps : most;
    atomic_store_explicit(&work->steps_max, steps, memory_order_relaxed);
    masking.tops = walk_set_load(work, walk);
    /* A token is allowed if one configuration allows it, so the masks of all are united. */
    for (i = 0; i < masking.tops.n && !work->failed; i++) /* at most ONE_SET_MAX */
        mask_top(&masking, work->pool[masking.tops.at + i]);
    /* The caller may raise its bound and try again only if the bound was the cause. Beyond the
     * largest bound, and for sets or stacks that are too large, trying again is of no use. */
    if (work->failed) {
        if (steps < most && work->steps > steps)
            return ERR_AGAIN;
        return ERR_LIMIT;
    }
    /* Tokens with equal bytes have one place in the trie. The others are copies of that one's
     * bit. */
    for (i = 0; i < trie->n_aliases; i++) {
        const struct trie_alias *alias = &trie_aliases(trie)[i];

        if ((mask[alias->token / 32] >> alias->token % 32 & 1) != 0)
            mask[alias->alias / 32] |= 1u << alias->alias % 32;
    }
    for (i = 0; i < trie->n_ends; i++) { /* end tokens are never allowed by their text */
        uint32_t end = trie_ends(trie)[i];

        mask[end / 32] &= ~(1u << end % 32);
        if (masking.can_end)
            mask[end / 32] |= 1u << end % 32;
    }
    return ERR_OK;
}

int walk_mask(struct walk_work *work, const struct automaton *automaton,
              const struct token_trie *trie, struct walk_cache *cache, const struct walk *walk,
              uint32_t *mask)
{
    const struct walk_language language = {.automaton = automaton, .trie = trie, .cache = cache};

    return walk_mask_within(work, &language, walk, UINT32_MAX, mask);
}
