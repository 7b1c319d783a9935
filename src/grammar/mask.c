/* SPDX-License-Identifier: Apache-2.0
 *
 * The mask of a walk: the union over its configurations, each in two parts.
 *
 * 1. What does not depend on the stack: from the configuration's state, with unknown frames below,
 *    which tokens are read without leaving the rule (an entry: a bitmap), and at which nodes of
 *    the trie the rule may end in the middle of a token (its pops). Entries that took long to find
 *    are kept in the cache, by state.
 * 2. At each pop the children are walked on with the real frames below. Few as a rule: after a
 *    string's closing quote there are some hundred tokens that go on.
 *
 * Where nothing is below, an end is the end of the output and no pop is noted. A rule that may end
 * anywhere (free text) with something below has a pop at nearly every inner node of the trie, and a
 * vocabulary has as many of these as tokens and more. Then the entry is found anew with the
 * uppermost frame known: what follows the rule is read in the same walk, and the pops that remain
 * are those of the frame below it; and so on, up to KNOWN_MAX frames. Such entries are kept by
 * their state and those frames. With more the real stack is walked, and nothing is kept.
 *
 * Where characters are counted (automaton.h) the count is of no account while more are left than
 * any token of the entry takes, and its way to the end; nearer to the end the real stack is
 * walked.
 *
 * Where a string goes on for long enough, all tokens of a slice are allowed without a look and
 * only the trie of the others is walked. */
#include <stdatomic.h>
#include <string.h>

#include "grammar/walk_parts.h"

#define ENTRY_STEPS   300 /* keep what took longer than looking into the cache and copying */
#define CACHE_SLOTS   4096u
#define CACHE_POPS    256u /* what walk_cache_bytes() counts a state: most have few */
#define CACHE_PROBES  16
#define DEPTH_RESERVE 64 /* frames that a kept entry may push */
#define KNOWN_MAX     3
#define POPS_MANY     UINT32_MAX

/* What an entry depends on: the state, the uppermost frames, and what is below these. */
struct entry_key {
    uint32_t state;
    uint16_t n_known;
    uint16_t is_all;           /* 1: nothing is below */
    uint32_t known[KNOWN_MAX]; /* states of frames, the uppermost first; the rest 0 */
};

struct entry_head {
    struct entry_key key;
    uint32_t trie;   /* that pops count from */
    uint32_t need;   /* characters that must be left, where they are counted in the frame below */
    uint32_t ends;   /* 1: all that is known may end before any byte */
    uint32_t n_pops; /* POPS_MANY: too many, one more frame has to be known. Then no words follow */
};

struct entry {
    struct entry_head head;
    uint32_t words[]; /* the bitmap, then the pops */
};

struct walk_cache {
    uint64_t bytes; /* all of it */
    _Atomic uint64_t used;
    _Atomic uint32_t slots[CACHE_SLOTS]; /* offset / 8 of an entry; 0: free */
};

size_t walk_cache_bytes(uint32_t n_vocab, uint32_t n_states)
{
    size_t words = ((size_t)n_vocab + 31) / 32 + CACHE_POPS;

    return sizeof(struct walk_cache) +
           n_states * ((sizeof(struct entry) + words * sizeof(uint32_t) + 7) & ~(size_t)7);
}

void walk_cache_init(struct walk_cache *cache, size_t bytes)
{
    memset(cache, 0, sizeof *cache);
    cache->bytes = bytes;
    atomic_store(&cache->used, (sizeof *cache + 7) & ~(size_t)7);
}

static uint32_t slot_of(const struct entry_key *key, uint32_t probe)
{
    uint32_t h = key->state * 0x9e3779b1u + key->is_all;

    for (uint32_t i = 0; i < key->n_known; i++)
        h = (h ^ h >> 15 ^ key->known[i]) * 0x85ebca6bu;
    return ((h >> 16) + probe) % CACHE_SLOTS;
}

static const struct entry *entry_at(const struct walk_cache *cache, uint32_t offset)
{
    return (const struct entry *)((const char *)cache + (size_t)offset * 8);
}

static const struct entry *cache_find(struct walk_cache *cache, const struct entry_key *key)
{
    uint32_t i;

    for (i = 0; i < CACHE_PROBES; i++) {
        uint32_t offset =
            atomic_load_explicit(&cache->slots[slot_of(key, i)], memory_order_acquire);

        if (offset == 0)
            return NULL;
        if (memcmp(&entry_at(cache, offset)->head.key, key, sizeof *key) == 0)
            return entry_at(cache, offset);
    }
    return NULL;
}

/* Keep what was just found. Two threads may keep the same: then one is never found. */
static void cache_keep(struct walk_cache *cache, const struct walk_work *s,
                       const struct token_trie *v, const struct entry_head *head)
{
    bool many = head->n_pops == POPS_MANY;
    size_t words = many ? 0 : (size_t)v->n_words + head->n_pops;
    size_t bytes = (sizeof(struct entry) + words * sizeof(uint32_t) + 7) & ~(size_t)7;
    uint64_t at = atomic_fetch_add(&cache->used, bytes);
    struct entry *e;
    uint32_t i;

    if (at + bytes > cache->bytes || at / 8 > UINT32_MAX) {
        atomic_fetch_sub(&cache->used, bytes);
        return;
    }
    e = (struct entry *)((char *)cache + at);
    e->head = *head;
    if (!many) {
        memcpy(e->words, s->bits, v->n_words * sizeof e->words[0]);
        memcpy(e->words + v->n_words, s->pops, head->n_pops * sizeof e->words[0]);
    }
    for (i = 0; i < CACHE_PROBES; i++) {
        uint32_t empty = 0;

        if (atomic_compare_exchange_strong_explicit(&cache->slots[slot_of(&head->key, i)], &empty,
                                                    (uint32_t)(at / 8), memory_order_release,
                                                    memory_order_relaxed))
            return;
    }
}

/* --- walking a trie ----------------------------------------------------------------------- */

/* The bytes that a closed set has edges for. */
static void first_bytes(const struct walk_work *s, const struct set *set, bool *can)
{
    uint32_t i, k;

    memset(can, 0, 256);
    for (i = 0; i < set->n; i++) {
        uint32_t at = s->pool[set->at + i].state;

        while (at != AUTOMATON_NONE) { /* the state, then its base */
            const struct automaton_state *state = automaton_states(s->a) + at;
            const struct automaton_edge *e = automaton_edges(s->a) + state->edge_at;

            for (k = 0; k < state->n_edges; k++)
                memset(can + e[k].lo, 1, (size_t)e[k].hi - e[k].lo + 1); /* the dead ones, too */
            at = state->base;
        }
    }
}

/* One level down: the set after the node's byte, closed. */
static void descend(struct walk_work *s, struct level *l, struct set set, uint32_t end)
{
    set_close(s, &set);
    l->set = set;
    l->end = end;
}

/* Nodes [at, end) of a trie from a closed set: allowed tokens into bits; pops, where the hole is
 * reached. `can` are first_bytes() of the set. */
static void walk_nodes(struct walk_work *s, const struct trie_node *nodes, uint32_t at,
                       uint32_t end, const struct set *from, const bool *can, uint32_t *bits)
{
    struct level *levels = s->levels;
    uint32_t depth = 0;

    levels[0].set = *from;
    levels[0].end = end;
    while (at < end && !s->failed && !s->many) {
        const struct trie_node *node = &nodes[at];
        struct level *l;
        struct set next;

        while (at >= levels[depth].end) { /* level 0 ends at `end` */
            work_rewind(s, levels[depth].n_frames, levels[depth].n_pool);
            depth--;
        }
        if (depth == 0 && !can[node->byte]) {
            at += node->skip;
            continue;
        }
        l = &levels[depth + 1]; /* a trie is at most TRIE_TOKEN_MAX deep */
        l->n_frames = s->n_frames;
        l->n_pool = s->n_pool;
        s->n_bytes = depth + 1;
        next = set_step(s, &levels[depth].set, node->byte);
        if (next.n == 0) {
            at += node->skip;
            continue;
        }
        if (node->token != TRIE_NO_TOKEN)
            bits[node->token / 32] |= 1u << node->token % 32;
        if (node->skip == 1) {
            work_rewind(s, l->n_frames, l->n_pool);
            at++;
            continue;
        }
        descend(s, l, next, at + node->skip);
        if (l->set.hole) {
            if (s->n_pops == POPS_MAX)
                s->many = true;
            else
                s->pops[s->n_pops++] = at;
        }
        depth++;
        at++;
    }
    while (depth > 0) {
        work_rewind(s, levels[depth].n_frames, levels[depth].n_pool);
        depth--;
    }
}

/* The trie without the largest slice that the state allows as a whole. */
static uint32_t choose_trie(const struct automaton *a, const struct token_trie *v, uint32_t state)
{
    unsigned plain = automaton_states(a)[state].plain;
    uint32_t t = TRIE_TRIES - 1;

    if ((automaton_states(a)[state].flags & AUTOMATON_COUNTED) != 0)
        return 0; /* each token is looked at for its characters */
    while (t > 0 && (plain == 0 || plain < v->tries[t].slice_chars))
        t--;
    return t;
}

/* Frames as the key says, on what is below them. */
static uint32_t key_frames(struct walk_work *s, const struct entry_key *key)
{
    uint32_t frame = key->is_all != 0 ? FRAME_BOTTOM : FRAME_HOLE;

    for (uint32_t i = key->n_known; i-- > 0;)
        frame = frame_push(s, key->known[i], frame, 0);
    return frame;
}

/* What does not depend on the unknown of the stack, into work->bits and work->pops. */
static void find_entry(struct walk_work *s, const struct token_trie *v, struct entry_head *head)
{
    uint32_t t = choose_trie(s->a, v, head->key.state);
    uint32_t frame = key_frames(s, &head->key);
    struct set set = {.at = s->n_pool};
    bool can[256];

    s->n_pops = 0;
    s->many = false;
    s->depth_max = 0;
    s->need = 0;
    if (frame == UINT32_MAX) { /* out of frames: noted */
        s->failed = true;
        return;
    }
    if (t > 0)
        memcpy(s->bits, trie_slice(v, t), v->n_words * sizeof s->bits[0]);
    else
        memset(s->bits, 0, v->n_words * sizeof s->bits[0]);
    set_add(s, &set, head->key.state, frame);
    set_close(s, &set);
    first_bytes(s, &set, can);
    walk_nodes(s, trie_nodes(v) + v->tries[t].node_at, 0, v->tries[t].n_nodes, &set, can, s->bits);
    head->trie = t;
    head->need = s->need;
    head->ends = set.hole || set.bottom;
    head->n_pops = s->many ? POPS_MANY : s->n_pops;
    s->many = false;
}

/* --- the mask ----------------------------------------------------------------------------- */

struct masking {
    struct walk_work *s;
    const struct token_trie *v;
    struct walk_cache *cache;
    uint32_t *mask;
    struct set tops; /* configurations to look at; grows by those that are below an end */
    bool can_end;
};

/* The whole trie with the real stack: for tops near the limit of depth. */
static void mask_directly(struct masking *m, struct walk_top top)
{
    struct walk_work *s = m->s;
    struct set set = {.at = s->n_pool};
    bool can[256];

    set_add(s, &set, top.state, top.frame);
    set_close(s, &set);
    m->can_end = m->can_end || set.bottom;
    first_bytes(s, &set, can);
    walk_nodes(s, trie_nodes(m->v) + m->v->tries[0].node_at, 0, m->v->tries[0].n_nodes, &set, can,
               m->mask);
}

/* Tokens that leave the rule at these nodes go on with what is below. */
static void mask_pops(struct masking *m, const uint32_t *pops, uint32_t n_pops, uint32_t trie,
                      uint32_t frame)
{
    const struct trie_node *nodes = trie_nodes(m->v) + m->v->tries[trie].node_at;
    struct walk_work *s = m->s;
    struct set set = {.at = s->n_pool};
    bool can[256];
    uint32_t i;

    if (frame == FRAME_BOTTOM || n_pops == 0)
        return;
    set_add(s, &set, s->frames[frame].state, s->frames[frame].below);
    set_close(s, &set);
    first_bytes(s, &set, can);
    for (i = 0; i < n_pops && !s->failed; i++) {
        s->steps++;
        walk_nodes(s, nodes, pops[i] + 1, pops[i] + nodes[pops[i]].skip, &set, can, m->mask);
    }
}

/* May what is known end before any byte? Then what is below is one more top. Sets are the pool's
 * last one at a time, so what is found is added when the closing is undone. */
static void mask_below(struct masking *m, uint32_t frame)
{
    struct walk_work *s = m->s;

    if (frame == FRAME_BOTTOM)
        m->can_end = true;
    else
        set_add(s, &m->tops, s->frames[frame].state, s->frames[frame].below);
}

static void or_words(uint32_t *to, const uint32_t *from, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++)
        to[i] |= from[i];
}

/* One more frame is known; false when no more can be. *below is what is under the known ones. */
static bool key_deepen(const struct walk_work *s, struct entry_key *key, uint32_t *below)
{
    if (key->n_known == KNOWN_MAX || *below == FRAME_BOTTOM || s->frames[*below].count != 0)
        return false;
    key->known[key->n_known++] = s->frames[*below].state;
    *below = s->frames[*below].below;
    key->is_all = *below == FRAME_BOTTOM;
    return true;
}

/* Are enough characters left in the frame that tokens cannot tell how many? */
static bool has_plenty(const struct walk_work *s, uint32_t below, uint32_t need)
{
    return below <= FRAME_HOLE || s->frames[below].count == 0 || s->frames[below].count > need;
}

/* The entry of a key into the mask; its head. POPS_MANY: it is of no use. */
static struct entry_head mask_entry(struct masking *m, const struct entry_key *key, uint32_t below)
{
    struct entry_head head = {.key = *key, .n_pops = POPS_MANY};
    const struct entry *kept = m->cache == NULL ? NULL : cache_find(m->cache, key);
    struct walk_work *s = m->s;
    uint32_t n_frames = s->n_frames, n_pool = s->n_pool, steps = s->steps;

    if (kept != NULL && !has_plenty(s, below, kept->head.need))
        return head;
    if (kept != NULL && kept->head.n_pops != POPS_MANY) {
        or_words(m->mask, kept->words, m->v->n_words);
        mask_pops(m, kept->words + m->v->n_words, kept->head.n_pops, kept->head.trie, below);
    }
    if (kept != NULL)
        return kept->head;
    find_entry(s, m->v, &head);
    work_rewind(s, n_frames, n_pool);
    if (s->failed || s->depth_max > DEPTH_RESERVE) /* a token of many brackets: its depth matters */
        return (struct entry_head){.key = *key, .n_pops = POPS_MANY};
    if (m->cache != NULL && s->steps - steps > ENTRY_STEPS)
        cache_keep(m->cache, s, m->v, &head);
    if (!has_plenty(s, below, head.need))
        return (struct entry_head){.key = *key, .n_pops = POPS_MANY};
    if (head.n_pops != POPS_MANY) {
        or_words(m->mask, s->bits, m->v->n_words);
        mask_pops(m, s->pops, head.n_pops, head.trie, below); /* finds no pops itself: no hole */
    }
    return head;
}

static void mask_top(struct masking *m, struct walk_top top)
{
    struct walk_work *s = m->s;
    uint32_t n_frames = s->n_frames;
    uint32_t n_pool = s->n_pool;
    uint32_t depth = top.frame > FRAME_HOLE ? s->frames[top.frame].depth : 0;
    struct entry_key key = {.state = top.state, .is_all = top.frame == FRAME_BOTTOM};
    uint32_t below = top.frame;
    struct entry_head head = {.n_pops = POPS_MANY};
    bool more = depth + DEPTH_RESERVE <= WALK_NEST_MAX;

    while (more && !s->failed) {
        head = mask_entry(m, &key, below);
        more = head.n_pops == POPS_MANY && key_deepen(s, &key, &below);
    }
    if (s->failed)
        return;
    if (head.n_pops == POPS_MANY)
        mask_directly(m, top);
    work_rewind(s, n_frames, head.n_pops == POPS_MANY ? n_pool : m->tops.at + m->tops.n);
    if (head.n_pops != POPS_MANY && head.ends != 0)
        mask_below(m, below);
}

static uint32_t mask_steps_max(const struct token_trie *v)
{
    uint64_t steps = (uint64_t)v->tries[0].n_nodes * WALK_NODE_STEPS;

    return steps < WALK_STEPS_MAX   ? WALK_STEPS_MAX
           : steps > UINT32_MAX / 2 ? UINT32_MAX / 2
                                    : (uint32_t)steps;
}

int walk_mask_within(struct walk_work *s, const struct automaton *a, const struct token_trie *v,
                     struct walk_cache *cache, const struct walk *w, uint32_t steps, uint32_t *mask)
{
    uint32_t most = mask_steps_max(v);
    struct masking m = {.s = s, .v = v, .cache = cache, .mask = mask};
    uint32_t i;

    if (v->n_words > s->n_words)
        return ERR_INVALID;
    memset(mask, 0, v->n_words * sizeof *mask);
    if (w->ended)
        return ERR_OK;
    work_reset(s, a);
    steps = steps < most ? steps : most;
    atomic_store_explicit(&s->steps_max, steps, memory_order_relaxed);
    m.tops = set_load(s, w);
    for (i = 0; i < m.tops.n && !s->failed; i++) /* grows to ONE_SET_MAX at most */
        mask_top(&m, s->pool[m.tops.at + i]);
    if (s->failed)
        return steps < most && s->steps > steps ? ERR_AGAIN : ERR_LIMIT;
    for (i = 0; i < v->n_aliases; i++) {
        const struct trie_alias *alias = &trie_aliases(v)[i];

        if ((mask[alias->token / 32] >> alias->token % 32 & 1) != 0)
            mask[alias->alias / 32] |= 1u << alias->alias % 32;
    }
    for (i = 0; i < v->n_ends; i++) { /* whatever an end token spells */
        uint32_t end = trie_ends(v)[i];

        mask[end / 32] &= ~(1u << end % 32);
        if (m.can_end)
            mask[end / 32] |= 1u << end % 32;
    }
    return ERR_OK;
}

int walk_mask(struct walk_work *s, const struct automaton *a, const struct token_trie *v,
              struct walk_cache *cache, const struct walk *w, uint32_t *mask)
{
    return walk_mask_within(s, a, v, cache, w, UINT32_MAX, mask);
}
