/* SPDX-License-Identifier: Apache-2.0
 *
 * The set of configurations of an automaton, advanced byte by byte. A step has two halves: follow
 * each configuration's edge for the byte, then close the set over calls (push) and ends (pop),
 * which take no byte. An automaton is nondeterministic only through calls, so sets are small:
 * usually one to three configurations. */
#include "grammar/walk_parts.h"

#include <string.h>

#include "base/must.h"

/* --- frames ------------------------------------------------------------------------------- */

/* Frames are hash-consed: a chain per hash value. A chain is in order of age, newest first, so
 * rewinding removes from its head. */
static uint32_t walk_frame_hash(uint32_t state, uint32_t below, uint32_t count)
{
    uint32_t hash = state * 0x9e3779b1u ^ below * 0x85ebca6bu ^ count * 0xc2b2ae35u;

    return (hash ^ hash >> 15) & (FRAME_HEADS - 1);
}

/* The frame for a return to `state` above the frame `below`. Equal frames are shared, so stacks
 * with a common lower part are a tree, and equal stacks have equal indices. UINT32_MAX when the
 * stack is too deep or no frame is left. */
uint32_t walk_frame_push(struct walk_work *work, uint32_t state, uint32_t below, uint32_t count)
{
    uint32_t hash = walk_frame_hash(state, below, count);
    uint32_t depth = below > FRAME_HOLE ? work->frames[below].depth + 1 : 1;
    uint32_t i;

    for (i = work->heads[hash]; i != 0; i = work->frames[i].next) {
        work->steps++;
        if (work->frames[i].state == state && work->frames[i].below == below &&
            work->frames[i].count == count)
            return i;
    }
    /* Too deep is not a failure: only this configuration is dropped, as a language of bounded depth
     * would do. */
    if (depth > WALK_DEPTH_MAX)
        return UINT32_MAX;
    if (work->n_frames == FRAMES_CAP) {
        work->failed = true;
        return UINT32_MAX;
    }
    i = work->n_frames++;
    work->frames[i] = (struct frame){.state = state,
                                     .below = below,
                                     .next = work->heads[hash],
                                     .depth = (uint16_t)depth,
                                     .count = (uint16_t)count};
    work->heads[hash] = i;
    if (depth > work->depth_max)
        work->depth_max = depth;
    return i;
}

void walk_work_rewind(struct walk_work *work, uint32_t n_frames, uint32_t n_pool)
{
    while (work->n_frames > n_frames) {
        const struct frame *f = &work->frames[--work->n_frames];

        /* The youngest frame is the first of its chain. */
        work->heads[walk_frame_hash(f->state, f->below, f->count)] = f->next;
    }
    work->n_pool = n_pool;
}

void walk_work_reset(struct walk_work *work, const struct automaton *automaton)
{
    walk_work_rewind(work, 2, 0);
    work->a = automaton;
    work->steps = 0;
    atomic_store_explicit(&work->steps_max, WALK_TOKEN_STEPS, memory_order_relaxed);
    work->failed = false;
    work->many = false;
    work->depth_max = 0;
    work->need = 0;
    work->n_pops = 0;
}

size_t walk_work_bytes(uint32_t n_vocab)
{
    return sizeof(struct walk_work) + ((size_t)n_vocab + 31) / 32 * sizeof(uint32_t);
}

void walk_work_init(struct walk_work *work, uint32_t n_vocab)
{
    must((uintptr_t)work % 8 == 0);
    memset(work, 0, walk_work_bytes(n_vocab));
    work->n_words = (n_vocab + 31) / 32;
    work->n_frames = 2;
}

uint32_t walk_steps(const struct walk_work *work)
{
    return work->steps;
}

void walk_stop(struct walk_work *work)
{
    atomic_store_explicit(&work->steps_max, 0, memory_order_relaxed);
}

/* --- sets --------------------------------------------------------------------------------- */

/* Add a configuration unless the set has it. Sets are small, so a linear search is faster than a
 * table; its cost is counted in steps, and reaching the bound on steps fails the whole work. */
void walk_set_add(struct walk_work *work, struct set *set, uint32_t state, uint32_t frame)
{
    const struct walk_top *tops = work->pool + set->at;
    uint32_t i;

    work->steps += 1 + set->n / 4;
    for (i = 0; i < set->n; i++)
        if (tops[i].state == state && tops[i].frame == frame)
            return;
    /* Bounds on one set, on all sets together, and on the work. walk_stop() sets the last one to
     * 0, which ends a walk from another thread. */
    if (set->n == ONE_SET_MAX || work->n_pool == SET_CAP ||
        work->steps > atomic_load_explicit(&work->steps_max, memory_order_relaxed)) {
        work->failed = true;
        return;
    }
    /* The set is the last one of the pool, so it grows in place. */
    work->pool[work->n_pool].state = state;
    work->pool[work->n_pool++].frame = frame;
    set->n++;
}

/* The count with which the frame of a call begins, as it is stored: plus 1. */
static uint32_t walk_call_count(const struct walk_work *work, uint32_t start)
{
    const struct automaton_state *state = automaton_states(work->a) + start;

    if ((state->flags & AUTOMATON_COUNTED) != 0 || state->count == 0)
        return 0;
    if (state->count < UINT16_MAX)
        return state->count + 1u;
    return UINT16_MAX;
}

/* Follow the calls of one configuration, and its end. */
static void walk_close_one(struct walk_work *work, struct set *set, struct walk_top top)
{
    const struct automaton_state *state = automaton_states(work->a) + top.state;
    const struct automaton_call *call = automaton_calls(work->a) + state->call_at;
    uint32_t i, frame;

    /* The steps of this loop are counted by walk_set_add() and walk_frame_push(). */
    for (i = 0; i < state->n_calls && !work->failed; i++) {
        if (call[i].back == AUTOMATON_NONE)
            frame = top.frame;
        else
            frame = walk_frame_push(work, call[i].back, top.frame,
                                    walk_call_count(work, call[i].start));
        if (frame != UINT32_MAX)
            walk_set_add(work, set, call[i].start, frame);
    }
    if ((state->flags & AUTOMATON_END) == 0)
        return;
    if (top.frame == FRAME_BOTTOM)
        set->bottom = true;
    else if (top.frame == FRAME_HOLE)
        set->hole = true;
    else
        walk_set_add(work, set, work->frames[top.frame].state, work->frames[top.frame].below);
}

void walk_set_close(struct walk_work *work, struct set *set)
{
    uint32_t i;

    for (i = 0; i < set->n && !work->failed; i++) /* the set grows, to at most ONE_SET_MAX */
        walk_close_one(work, set, work->pool[set->at + i]);
}

/* Would a list or object begin here although the stack is nearly full? */
static bool walk_too_deep(const struct walk_work *work, uint32_t state, uint32_t frame)
{
    return frame > FRAME_HOLE && work->frames[frame].depth >= WALK_NEST_MAX &&
           (automaton_states(work->a)[state].flags & AUTOMATON_NESTS) != 0;
}

/* The frame of a configuration after a byte that leads to a state of a counting rule: one character
 * less, if one is complete. UINT32_MAX: too few characters are left to reach the end. */
static uint32_t walk_counted(struct walk_work *work, uint32_t state, uint32_t frame)
{
    const struct automaton_state *to = automaton_states(work->a) + state;
    const struct frame *f = &work->frames[frame];
    uint32_t left = frame <= FRAME_HOLE ? 0 : f->count;

    if (frame == FRAME_HOLE && work->n_bytes + to->count > work->need)
        work->need = work->n_bytes + to->count;
    if (left == 0) /* not counted, or unknown */
        return frame;
    if ((to->flags & AUTOMATON_CHAR) != 0)
        left--;
    if (left < 1 + (uint32_t)to->count)
        return UINT32_MAX;
    if (left == f->count)
        return frame;
    return walk_frame_push(work, f->state, f->below, left);
}

/* The set after a byte. Configurations without an edge for it are dropped; an empty set means that
 * the byte is not allowed. */
struct set walk_set_step(struct walk_work *work, const struct set *from, uint8_t byte)
{
    struct set to = {.at = work->n_pool};
    uint32_t i, state;

    work->steps += from->n;
    for (i = 0; i < from->n; i++) {
        struct walk_top top = work->pool[from->at + i];

        state = automaton_step(work->a, top.state, byte);
        if (state == AUTOMATON_DEAD || walk_too_deep(work, state, top.frame))
            continue;
        /* A counted state reads one character more of its string's maximum. */
        if ((automaton_states(work->a)[state].flags & AUTOMATON_COUNTED) != 0)
            top.frame = walk_counted(work, state, top.frame);
        if (top.frame != UINT32_MAX)
            walk_set_add(work, &to, state, top.frame);
    }
    return to;
}

/* --- walks -------------------------------------------------------------------------------- */

void walk_init(struct walk *walk, const struct automaton *automaton)
{
    must(automaton->root < automaton->n_states);
    walk->n_tops = 1;
    walk->n_frames = 1;
    walk->ended = false;
    walk->tops[0] = (struct walk_top){.state = automaton->root};
    walk->frames[0] = (struct walk_frame){0};
}

void walk_copy(struct walk *to, const struct walk *from)
{
    must(from->n_tops <= WALK_TOPS_MAX && from->n_frames <= WALK_FRAMES_MAX);
    to->n_tops = from->n_tops;
    to->n_frames = from->n_frames;
    to->ended = from->ended;
    memcpy(to->tops, from->tops, from->n_tops * sizeof from->tops[0]);
    memcpy(to->frames, from->frames, from->n_frames * sizeof from->frames[0]);
}

/* Frame i of a walk becomes frame i + 1 of the work, because frames are stored in order of
 * creation. */
struct set walk_set_load(struct walk_work *work, const struct walk *walk)
{
    struct set set = {.at = work->n_pool};
    uint32_t i;

    must(walk->n_tops <= WALK_TOPS_MAX && walk->n_frames <= WALK_FRAMES_MAX);
    /* A frame's `below` is always one that was created before, so its new number is known. 0 is
     * the bottom in a walk, and the work has two reserved numbers, hence the distance of one. */
    for (i = 1; i < walk->n_frames; i++) {
        uint32_t below = walk->frames[i].below;

        (void)walk_frame_push(work, walk->frames[i].state, below == 0 ? FRAME_BOTTOM : below + 1,
                              walk->frames[i].count);
    }
    for (i = 0; i < walk->n_tops; i++)
        walk_set_add(work, &set, walk->tops[i].state,
                     walk->tops[i].frame == 0 ? FRAME_BOTTOM : walk->tops[i].frame + 1);
    return set;
}

/* Store a set into a walk: the frames it needs, in order, and its tops. ERR_LIMIT: they do not fit.
 * Uses the chains' links for marks and numbers; walk_work_wipe() must follow. */
static int walk_set_store(struct walk_work *work, const struct set *set, struct walk *walk)
{
    uint32_t i, f;
    uint32_t n = 1;

    if (set->n > WALK_TOPS_MAX)
        return ERR_LIMIT;
    for (i = 0; i < work->n_frames; i++)
        work->frames[i].next = 0; /* becomes the frame's number in the walk */
    for (i = 0; i < set->n; i++)  /* mark the frames of each stack; stop at a marked one */
        for (f = work->pool[set->at + i].frame; f > FRAME_HOLE && work->frames[f].next == 0;
             f = work->frames[f].below)
            work->frames[f].next = 1;
    for (i = 2; i < work->n_frames; i++) {
        struct frame *frame = &work->frames[i];

        if (frame->next == 0)
            continue;
        if (n == WALK_FRAMES_MAX)
            return ERR_LIMIT;
        walk->frames[n].state = frame->state;
        walk->frames[n].below =
            (uint16_t)(frame->below == FRAME_BOTTOM ? 0 : work->frames[frame->below].next);
        walk->frames[n].depth = frame->depth;
        walk->frames[n].count = frame->count;
        frame->next = n++;
    }
    for (i = 0; i < set->n; i++) {
        f = work->pool[set->at + i].frame;
        walk->tops[i].state = work->pool[set->at + i].state;
        if (f == FRAME_BOTTOM)
            walk->tops[i].frame = 0;
        else
            walk->tops[i].frame = work->frames[f].next;
    }
    walk->n_tops = (uint16_t)set->n;
    walk->n_frames = (uint16_t)n;
    return ERR_OK;
}

/* Forget all frames without following their chains, which walk_set_store() has overwritten. */
static void walk_work_wipe(struct walk_work *work)
{
    memset(work->heads, 0, sizeof work->heads);
    work->n_frames = 2;
    work->n_pool = 0;
}

/* Advance a walk by at most TRIE_TOKEN_MAX bytes. */
static int walk_follow_bytes(struct walk_work *work, struct walk *walk, const unsigned char *bytes,
                             size_t len)
{
    struct set set = walk_set_load(work, walk);
    size_t i;
    int rc;

    for (i = 0; i < len && !work->failed; i++) {
        walk_set_close(work, &set);
        if (work->failed)
            break;
        set = walk_set_step(work, &set, bytes[i]);
        if (set.n == 0) {
            if (work->failed)
                return ERR_LIMIT;
            return ERR_INVALID;
        }
        if (work->n_pool > SET_CAP / 2) { /* only the last set is needed: move it to the front */
            memmove(work->pool, work->pool + set.at, set.n * sizeof work->pool[0]);
            set.at = 0;
            work->n_pool = set.n;
        }
    }
    if (work->failed)
        return ERR_LIMIT;
    rc = walk_set_store(work, &set, walk);
    walk_work_wipe(work);
    return rc;
}

int walk_bytes(struct walk_work *work, const struct automaton *automaton, struct walk *walk,
               const void *bytes, size_t len)
{
    const unsigned char *at = bytes;
    int rc = ERR_OK;

    must(bytes != NULL || len == 0);
    if (walk->ended)
        return ERR_INVALID;
    while (len > 0 && rc == ERR_OK) { /* in pieces, because frames accumulate during one */
        size_t n = len < TRIE_TOKEN_MAX ? len : TRIE_TOKEN_MAX;

        walk_work_reset(work, automaton);
        rc = walk_follow_bytes(work, walk, at, n);
        at += n;
        len -= n;
    }
    return rc;
}

/* Can the output end here? It can if, after all ends are popped, a configuration is at the bottom
 * of its stack. */
bool walk_can_end(struct walk_work *work, const struct automaton *automaton,
                  const struct walk *walk)
{
    struct set set;

    if (walk->ended)
        return true;
    walk_work_reset(work, automaton);
    set = walk_set_load(work, walk);
    walk_set_close(work, &set);
    return set.bottom && !work->failed;
}

/* Is a token one of those that end the output? */
static bool walk_is_end(const struct token_trie *trie, uint32_t token)
{
    uint32_t i;

    for (i = 0; i < trie->n_ends; i++)
        if (trie_ends(trie)[i] == token)
            return true;
    return false;
}

int walk_accept(struct walk_work *work, const struct automaton *automaton,
                const struct token_trie *trie, struct walk *walk, int32_t token)
{
    uint32_t at, n;

    if (token < 0 || (uint32_t)token >= trie->n_vocab || walk->ended)
        return ERR_INVALID;
    /* An end token ends the walk where the language allows an end. Elsewhere its text is followed
     * like that of any other token. */
    if (walk_is_end(trie, (uint32_t)token) && walk_can_end(work, automaton, walk)) {
        walk->ended = true;
        return ERR_OK;
    }
    at = trie_text_at(trie)[token];
    n = trie_text_at(trie)[token + 1] - at;
    if (n == 0)
        return ERR_INVALID;
    return walk_bytes(work, automaton, walk, trie_text(trie) + at, n);
}

#define WALK_BYTE_STEPS 64 /* a configuration's 256 edges take as long as so many steps */

static bool walk_is_white(int byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static bool walk_has_byte(const struct walk_work *work, const struct set *set, int byte)
{
    for (uint32_t i = 0; i < set->n; i++) {
        if (automaton_step(work->a, work->pool[set->at + i].state, (uint8_t)byte) != AUTOMATON_DEAD)
            return true;
    }
    return false;
}

/* The only byte for which a closed set has an edge, white space apart if that is skipped; -1 when
 * there are several or none. */
static int walk_only_byte(const struct walk_work *work, const struct set *set, bool skips_white)
{
    int only = -1;

    for (int byte = 0; byte < 256; byte++) {
        if ((skips_white && walk_is_white(byte)) || !walk_has_byte(work, set, byte))
            continue;
        if (only >= 0)
            return -1; /* the search ends at the second byte found */
        only = byte;
    }
    return only;
}

/* The byte that must come after `last`; -1: there is a choice, or the output may end. Likely ones,
 * too: of free white space a blank behind a colon or a comma, and none elsewhere. */
static int walk_next_byte(const struct walk_work *work, const struct set *set, bool likely,
                          char last)
{
    int byte;

    if (work->failed || set->bottom)
        return -1;
    byte = walk_only_byte(work, set, false);
    if (byte >= 0 || !likely)
        return byte;
    byte = walk_only_byte(work, set, true);
    if (byte >= 0 && (last == ':' || last == ',') && walk_has_byte(work, set, ' '))
        return ' ';
    return byte;
}

static size_t walk_bytes_ahead(struct walk_work *work, const struct walk *walk, bool likely,
                               char last, char *bytes, size_t cap)
{
    struct set set = walk_set_load(work, walk);
    size_t n;

    for (n = 0; n < cap && n < TRIE_TOKEN_MAX; n++) {
        int byte;

        walk_set_close(work, &set);
        work->steps += set.n * WALK_BYTE_STEPS;
        byte = walk_next_byte(work, &set, likely, last);
        if (byte < 0)
            break;
        last = bytes[n] = (char)byte;
        set = walk_set_step(work, &set, (uint8_t)byte);
    }
    return n;
}

size_t walk_forced(struct walk_work *work, const struct automaton *automaton,
                   const struct walk *walk, char *bytes, size_t cap)
{
    must(bytes != NULL || cap == 0);
    walk_work_reset(work, automaton);
    return walk_bytes_ahead(work, walk, false, '\0', bytes, cap);
}

size_t walk_likely(struct walk_work *work, const struct automaton *automaton,
                   const struct walk *walk, char last, char *bytes, size_t cap)
{
    must(bytes != NULL || cap == 0);
    walk_work_reset(work, automaton);
    return walk_bytes_ahead(work, walk, true, last, bytes, cap);
}
