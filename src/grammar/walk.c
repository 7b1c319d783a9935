/* SPDX-License-Identifier: Apache-2.0 */
#include "grammar/walk_parts.h"

#include <string.h>

/* --- frames ------------------------------------------------------------------------------- */

static uint32_t frame_hash(uint32_t state, uint32_t below, uint32_t count)
{
    uint32_t h = state * 0x9e3779b1u ^ below * 0x85ebca6bu ^ count * 0xc2b2ae35u;

    return (h ^ h >> 15) & (FRAME_HEADS - 1);
}

uint32_t frame_push(struct walk_work *s, uint32_t state, uint32_t below, uint32_t count)
{
    uint32_t h = frame_hash(state, below, count);
    uint32_t depth = below > FRAME_HOLE ? s->frames[below].depth + 1 : 1;
    uint32_t i;

    for (i = s->heads[h]; i != 0; i = s->frames[i].next) {
        s->steps++;
        if (s->frames[i].state == state && s->frames[i].below == below &&
            s->frames[i].count == count)
            return i;
    }
    if (depth > WALK_DEPTH_MAX)
        return UINT32_MAX;
    if (s->n_frames == FRAMES_CAP) {
        s->failed = true;
        return UINT32_MAX;
    }
    i = s->n_frames++;
    s->frames[i] = (struct frame){.state = state,
                                  .below = below,
                                  .next = s->heads[h],
                                  .depth = (uint16_t)depth,
                                  .count = (uint16_t)count};
    s->heads[h] = i;
    s->depth_max = depth > s->depth_max ? depth : s->depth_max;
    return i;
}

void work_rewind(struct walk_work *s, uint32_t n_frames, uint32_t n_pool)
{
    while (s->n_frames > n_frames) {
        const struct frame *f = &s->frames[--s->n_frames];

        s->heads[frame_hash(f->state, f->below, f->count)] = f->next; /* it was the chain's first */
    }
    s->n_pool = n_pool;
}

void work_reset(struct walk_work *s, const struct automaton *a)
{
    work_rewind(s, 2, 0);
    s->a = a;
    s->steps = 0;
    atomic_store_explicit(&s->steps_max, WALK_TOKEN_STEPS, memory_order_relaxed);
    s->failed = false;
    s->many = false;
    s->depth_max = 0;
    s->need = 0;
    s->n_pops = 0;
}

size_t walk_work_bytes(uint32_t n_vocab)
{
    return sizeof(struct walk_work) + ((size_t)n_vocab + 31) / 32 * sizeof(uint32_t);
}

void walk_work_init(struct walk_work *s, uint32_t n_vocab)
{
    memset(s, 0, walk_work_bytes(n_vocab));
    s->n_words = (n_vocab + 31) / 32;
    s->n_frames = 2;
}

uint32_t walk_steps(const struct walk_work *s)
{
    return s->steps;
}

void walk_stop(struct walk_work *s)
{
    atomic_store_explicit(&s->steps_max, 0, memory_order_relaxed);
}

/* --- sets --------------------------------------------------------------------------------- */

void set_add(struct walk_work *s, struct set *set, uint32_t state, uint32_t frame)
{
    const struct walk_top *tops = s->pool + set->at;
    uint32_t i;

    s->steps += 1 + set->n / 4;
    for (i = 0; i < set->n; i++)
        if (tops[i].state == state && tops[i].frame == frame)
            return;
    if (set->n == ONE_SET_MAX || s->n_pool == SET_CAP ||
        s->steps > atomic_load_explicit(&s->steps_max, memory_order_relaxed)) {
        s->failed = true;
        return;
    }
    s->pool[s->n_pool].state = state;
    s->pool[s->n_pool++].frame = frame;
    set->n++;
}

/* What a frame begins to count with. */
static uint32_t call_count(const struct walk_work *s, uint32_t start)
{
    const struct automaton_state *state = automaton_states(s->a) + start;

    if ((state->flags & AUTOMATON_COUNTED) != 0 || state->count == 0)
        return 0;
    return state->count < UINT16_MAX ? state->count + 1u : UINT16_MAX;
}

/* One configuration's calls and its end. */
static void close_one(struct walk_work *s, struct set *set, struct walk_top top)
{
    const struct automaton_state *state = automaton_states(s->a) + top.state;
    const struct automaton_call *call = automaton_calls(s->a) + state->call_at;
    uint32_t i, frame;

    for (i = 0; i < state->n_calls && !s->failed; i++) { /* set_add() or frame_push() counts */
        frame = call[i].back == AUTOMATON_NONE
                    ? top.frame
                    : frame_push(s, call[i].back, top.frame, call_count(s, call[i].start));
        if (frame != UINT32_MAX)
            set_add(s, set, call[i].start, frame);
    }
    if ((state->flags & AUTOMATON_END) == 0)
        return;
    if (top.frame == FRAME_BOTTOM)
        set->bottom = true;
    else if (top.frame == FRAME_HOLE)
        set->hole = true;
    else
        set_add(s, set, s->frames[top.frame].state, s->frames[top.frame].below);
}

void set_close(struct walk_work *s, struct set *set)
{
    uint32_t i;

    for (i = 0; i < set->n && !s->failed; i++) /* grows to ONE_SET_MAX at most */
        close_one(s, set, s->pool[set->at + i]);
}

static bool too_deep(const struct walk_work *s, uint32_t state, uint32_t frame)
{
    return frame > FRAME_HOLE && s->frames[frame].depth >= WALK_NEST_MAX &&
           (automaton_states(s->a)[state].flags & AUTOMATON_NESTS) != 0;
}

/* The frame of a configuration that a byte leads to a state of a rule that counts; UINT32_MAX: not
 * enough characters are left. */
static uint32_t counted(struct walk_work *s, uint32_t state, uint32_t frame)
{
    const struct automaton_state *to = automaton_states(s->a) + state;
    const struct frame *f = &s->frames[frame];
    uint32_t left = frame <= FRAME_HOLE ? 0 : f->count;

    if (frame == FRAME_HOLE && s->n_bytes + to->count > s->need)
        s->need = s->n_bytes + to->count;
    if (left == 0) /* not counted, or not known */
        return frame;
    if ((to->flags & AUTOMATON_CHAR) != 0)
        left--;
    if (left < 1 + (uint32_t)to->count)
        return UINT32_MAX;
    return left == f->count ? frame : frame_push(s, f->state, f->below, left);
}

struct set set_step(struct walk_work *s, const struct set *from, uint8_t byte)
{
    struct set to = {.at = s->n_pool};
    uint32_t i, state;

    s->steps += from->n;
    for (i = 0; i < from->n; i++) {
        struct walk_top top = s->pool[from->at + i];

        state = automaton_step(s->a, top.state, byte);
        if (state == AUTOMATON_DEAD || too_deep(s, state, top.frame))
            continue;
        if ((automaton_states(s->a)[state].flags & AUTOMATON_COUNTED) != 0)
            top.frame = counted(s, state, top.frame);
        if (top.frame != UINT32_MAX)
            set_add(s, &to, state, top.frame);
    }
    return to;
}

/* --- walks -------------------------------------------------------------------------------- */

void walk_init(struct walk *w, const struct automaton *a)
{
    w->n_tops = 1;
    w->n_frames = 1;
    w->ended = false;
    w->tops[0] = (struct walk_top){.state = a->root};
    w->frames[0] = (struct walk_frame){0};
}

void walk_copy(struct walk *to, const struct walk *from)
{
    to->n_tops = from->n_tops;
    to->n_frames = from->n_frames;
    to->ended = from->ended;
    memcpy(to->tops, from->tops, from->n_tops * sizeof from->tops[0]);
    memcpy(to->frames, from->frames, from->n_frames * sizeof from->frames[0]);
}

/* Frame i of a walk becomes frame i + 1 of the work: their order is that of making. */
struct set set_load(struct walk_work *s, const struct walk *w)
{
    struct set set = {.at = s->n_pool};
    uint32_t i;

    for (i = 1; i < w->n_frames; i++) {
        uint32_t below = w->frames[i].below;

        (void)frame_push(s, w->frames[i].state, below == 0 ? FRAME_BOTTOM : below + 1,
                         w->frames[i].count);
    }
    for (i = 0; i < w->n_tops; i++)
        set_add(s, &set, w->tops[i].state,
                w->tops[i].frame == 0 ? FRAME_BOTTOM : w->tops[i].frame + 1);
    return set;
}

/* The frames that a set needs, in their order, and its tops. ERR_LIMIT: they do not fit. */
static int set_store(struct walk_work *s, const struct set *set, struct walk *w)
{
    uint32_t i, f;
    uint32_t n = 1;

    if (set->n > WALK_TOPS_MAX)
        return ERR_LIMIT;
    for (i = 0; i < s->n_frames; i++)
        s->frames[i].next = 0;   /* from here on: its number in w */
    for (i = 0; i < set->n; i++) /* mark; what is marked has all below it marked */
        for (f = s->pool[set->at + i].frame; f > FRAME_HOLE && s->frames[f].next == 0;
             f = s->frames[f].below)
            s->frames[f].next = 1;
    for (i = 2; i < s->n_frames; i++) {
        struct frame *frame = &s->frames[i];

        if (frame->next == 0)
            continue;
        if (n == WALK_FRAMES_MAX)
            return ERR_LIMIT;
        w->frames[n].state = frame->state;
        w->frames[n].below =
            (uint16_t)(frame->below == FRAME_BOTTOM ? 0 : s->frames[frame->below].next);
        w->frames[n].depth = frame->depth;
        w->frames[n].count = frame->count;
        frame->next = n++;
    }
    for (i = 0; i < set->n; i++) {
        f = s->pool[set->at + i].frame;
        w->tops[i].state = s->pool[set->at + i].state;
        w->tops[i].frame = f == FRAME_BOTTOM ? 0 : s->frames[f].next;
    }
    w->n_tops = (uint16_t)set->n;
    w->n_frames = (uint16_t)n;
    return ERR_OK;
}

/* Forget all frames without looking at their chains, which set_store() has used for numbers. */
static void work_wipe(struct walk_work *s)
{
    memset(s->heads, 0, sizeof s->heads);
    s->n_frames = 2;
    s->n_pool = 0;
}

static int go(struct walk_work *s, struct walk *w, const unsigned char *bytes, size_t len)
{
    struct set set = set_load(s, w);
    size_t i;
    int rc;

    for (i = 0; i < len && !s->failed; i++) {
        set_close(s, &set);
        if (s->failed)
            break;
        set = set_step(s, &set, bytes[i]);
        if (set.n == 0)
            return s->failed ? ERR_LIMIT : ERR_INVALID;
        if (s->n_pool > SET_CAP / 2) { /* long inputs: only the last set is needed */
            memmove(s->pool, s->pool + set.at, set.n * sizeof s->pool[0]);
            set.at = 0;
            s->n_pool = set.n;
        }
    }
    if (s->failed)
        return ERR_LIMIT;
    rc = set_store(s, &set, w);
    work_wipe(s);
    return rc;
}

int walk_bytes(struct walk_work *s, const struct automaton *a, struct walk *w, const void *bytes,
               size_t len)
{
    const unsigned char *at = bytes;
    int rc = ERR_OK;

    if (w->ended)
        return ERR_INVALID;
    while (len > 0 && rc == ERR_OK) { /* pieces, because frames are kept while one is walked */
        size_t n = len < TRIE_TOKEN_MAX ? len : TRIE_TOKEN_MAX;

        work_reset(s, a);
        rc = go(s, w, at, n);
        at += n;
        len -= n;
    }
    return rc;
}

bool walk_can_end(struct walk_work *s, const struct automaton *a, const struct walk *w)
{
    struct set set;

    if (w->ended)
        return true;
    work_reset(s, a);
    set = set_load(s, w);
    set_close(s, &set);
    return set.bottom && !s->failed;
}

static bool is_end(const struct token_trie *v, uint32_t token)
{
    uint32_t i;

    for (i = 0; i < v->n_ends; i++)
        if (trie_ends(v)[i] == token)
            return true;
    return false;
}

int walk_accept(struct walk_work *s, const struct automaton *a, const struct token_trie *v,
                struct walk *w, int32_t token)
{
    uint32_t at, n;

    if (token < 0 || (uint32_t)token >= v->n_vocab || w->ended)
        return ERR_INVALID;
    if (is_end(v, (uint32_t)token) && walk_can_end(s, a, w)) {
        w->ended = true;
        return ERR_OK;
    }
    at = trie_text_at(v)[token];
    n = trie_text_at(v)[token + 1] - at;
    if (n == 0)
        return ERR_INVALID;
    return walk_bytes(s, a, w, trie_text(v) + at, n);
}

/* The one byte that a closed set has edges for; -1 when there are several or none. */
static int only_byte(const struct walk_work *s, const struct set *set)
{
    int only = -1;
    uint32_t i;
    int byte;

    for (byte = 0; byte < 256; byte++)
        for (i = 0; i < set->n; i++)
            if (automaton_step(s->a, s->pool[set->at + i].state, (uint8_t)byte) != AUTOMATON_DEAD) {
                if (only >= 0)
                    return -1;
                only = byte;
                break;
            }
    return only;
}

size_t walk_forced(struct walk_work *s, const struct automaton *a, const struct walk *w,
                   char *bytes, size_t cap)
{
    struct set set;
    size_t n;

    work_reset(s, a);
    set = set_load(s, w);
    for (n = 0; n < cap && n < TRIE_TOKEN_MAX; n++) {
        int byte;

        set_close(s, &set);
        byte = s->failed || set.bottom ? -1 : only_byte(s, &set);
        if (byte < 0)
            break;
        bytes[n] = (char)byte;
        set = set_step(s, &set, (uint8_t)byte);
    }
    return n;
}
