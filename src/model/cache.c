/* SPDX-License-Identifier: Apache-2.0
 *
 * Choose the size of a page, and place each layer in it.
 *
 * Layers that keep the same tokens are collected in sets. A set is then cut into groups: as many
 * consecutive layers as fit one page. The page size is the one that wastes the fewest bytes over
 * all groups; candidates are the sizes of the first k layers of each set, because any other size
 * would leave a gap after some layer. States come last, since they fit pages of any size.
 *
 * Example: 24 layers with a window and 8 without, each 2 units per page. A page of 16 units gives
 * one group of full layers and three groups of window layers, without waste. */
#include "model/cache.h"

#include <stdint.h>
#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

/* Layers that keep the same tokens. */
struct cache_set {
    enum cache_kind kind;
    int window;
    size_t bytes; /* of all its layers in a page, or of the states */
};

/* The input of cache_make(), with the sets and candidate page sizes found so far. */
struct cache_maker {
    const struct plan *plan;
    int page_tokens;
    size_t elem_bytes;
    int n_sets;
    struct cache_set sets[CACHE_GROUPS_MAX];
    int n_pages;
    size_t pages[HF_CONFIG_LAYERS_MAX];
};

/* The set that a layer belongs to; bytes are those of this layer alone. */
static struct cache_set cache_set_of(const struct cache_maker *m, int layer)
{
    const struct layer_plan *planned = &m->plan->layers[layer];
    const struct attn_plan *attn = &planned->attn;

    if (plan_state_elems(planned) > 0)
        return (struct cache_set){.kind = CACHE_STATE,
                                  .bytes =
                                      plan_state_elems(planned) * plan_state_elem_bytes(m->plan)};
    return (struct cache_set){.kind = attn->window > 0 ? CACHE_WINDOW : CACHE_FULL,
                              .window = attn->window,
                              .bytes = (size_t)m->page_tokens * (size_t)plan_kv_elems(attn) *
                                       m->elem_bytes};
}

static bool cache_is_shared(const struct plan *plan, int layer)
{
    return plan->layers[layer].mixer == MIXER_ATTENTION && plan->layers[layer].attn.is_shared;
}

/* A layer that reads another's keys and values has no bytes in a page, nor has an FFN alone. */
static bool cache_has_none(const struct plan *plan, int layer)
{
    return cache_is_shared(plan, layer) || plan->layers[layer].mixer == MIXER_NONE;
}

/* Bytes are not compared: layers of one set may differ in their heads. */
static bool cache_is_in_set(const struct cache_set *set, const struct cache_set *layer)
{
    return set->kind == layer->kind && set->window == layer->window;
}

/* The sets of one kind, in the order of their first layers. */
static int cache_find_sets(struct cache_maker *m, enum cache_kind kind)
{
    for (int i = 0; i < m->plan->n_layers; i++) {
        struct cache_set layer = cache_set_of(m, i);
        int seq = 0;

        if (layer.kind != kind || cache_has_none(m->plan, i))
            continue;
        while (seq < m->n_sets && !cache_is_in_set(&m->sets[seq], &layer))
            seq++;
        if (seq == CACHE_GROUPS_MAX) {
            log_error("model: layers with more than %d different windows are not supported",
                      CACHE_GROUPS_MAX);
            return ERR_UNSUPPORTED;
        }
        if (seq == m->n_sets)
            m->sets[m->n_sets++] = layer;
        else
            m->sets[seq].bytes += layer.bytes;
    }
    return ERR_OK;
}

/* Cut a set into groups for pages of page_bytes. Returns the number of groups, or 0 when a layer
 * alone is larger than a page. `places` (NULL: only count) receives the positions, with groups
 * numbered from `first`. The inner rule is first fit in layer order: a layer that does not fit
 * opens the next group. */
static int cache_fill_set(const struct cache_maker *m, const struct cache_set *set,
                          size_t page_bytes, int first, struct cache_place *places)
{
    size_t at = 0;
    int n = 0;

    for (int i = 0; i < m->plan->n_layers; i++) {
        struct cache_set layer = cache_set_of(m, i);

        if (!cache_is_in_set(set, &layer) || cache_has_none(m->plan, i))
            continue;
        if (layer.bytes > page_bytes)
            return 0;
        if (n == 0 || at + layer.bytes > page_bytes) {
            n++;
            at = 0;
        }
        if (places != NULL)
            places[i] = (struct cache_place){first + n - 1, at / m->elem_bytes};
        at += layer.bytes;
    }
    return n;
}

/* The bytes of one page of every group, states excluded: the memory that a page's worth of tokens
 * takes. SIZE_MAX when this page size is impossible (a layer does not fit, or too many groups). */
static size_t cache_bytes_of_all(const struct cache_maker *m, size_t page_bytes)
{
    int n = 0, n_groups = 0;

    for (int seq = 0; seq < m->n_sets && n_groups <= CACHE_GROUPS_MAX; seq++) {
        int some = 1; /* states are always one group */

        if (m->sets[seq].kind != CACHE_STATE) {
            some = cache_fill_set(m, &m->sets[seq], page_bytes, 0, NULL);
            n += some;
        }
        if (some == 0)
            return SIZE_MAX;
        n_groups += some;
    }
    if (n_groups <= CACHE_GROUPS_MAX)
        return (size_t)n * page_bytes;
    return SIZE_MAX;
}

/* Candidates for the page size: the sums of the first 1, 2, 3 ... layers of each set. */
static void cache_list_page_sizes(struct cache_maker *m)
{
    size_t bytes[CACHE_GROUPS_MAX] = {0};

    for (int i = 0; i < m->plan->n_layers; i++) {
        struct cache_set layer = cache_set_of(m, i);
        int seq = 0;

        if (layer.kind == CACHE_STATE || cache_has_none(m->plan, i))
            continue;
        while (!cache_is_in_set(&m->sets[seq], &layer))
            seq++;
        bytes[seq] += layer.bytes;
        m->pages[m->n_pages++] = bytes[seq];
    }
}

/* The best candidate up to bytes_max; 0 if none works. The second loop prefers larger pages within
 * an eighth of the least waste, because fewer groups mean shorter tables and longer copies. */
static size_t cache_best_page(const struct cache_maker *m, size_t bytes_max)
{
    size_t least = SIZE_MAX, best = 0;

    for (int i = 0; i < m->n_pages; i++) {
        size_t all = cache_bytes_of_all(m, m->pages[i]);

        if (m->pages[i] <= bytes_max && all < least)
            least = all;
    }
    for (int i = 0; i < m->n_pages && least < SIZE_MAX; i++) {
        if (m->pages[i] <= bytes_max && m->pages[i] > best &&
            cache_bytes_of_all(m, m->pages[i]) <= least + least / 8)
            best = m->pages[i];
    }
    return best;
}

/* First try page sizes up to the bytes of the smallest set, so that no page is mostly empty; only
 * if that makes too many groups, allow any size. */
static size_t cache_choose_page(const struct cache_maker *m)
{
    size_t smallest = SIZE_MAX, states = 0, best;

    for (int seq = 0; seq < m->n_sets; seq++) {
        if (m->sets[seq].kind == CACHE_STATE)
            states = m->sets[seq].bytes;
        else if (m->sets[seq].bytes < smallest)
            smallest = m->sets[seq].bytes;
    }
    if (smallest == SIZE_MAX) /* there are only states: one page holds a whole state, 16-byte
                               * aligned */
        return (states + 15) / 16 * 16;
    best = cache_best_page(m, smallest);
    if (best > 0)
        return best;
    return cache_best_page(m, SIZE_MAX);
}

/* Place the states of all recurrent layers one after another, as one group. `at` counts elements of
 * states, whose type does not depend on that of keys and values. */
static void cache_place_states(struct cache *c, const struct cache_maker *m, size_t bytes)
{
    size_t at = 0;

    for (int i = 0; i < c->n_layers; i++) {
        struct cache_set layer = cache_set_of(m, i);

        if (layer.kind != CACHE_STATE)
            continue;
        c->layers[i] = (struct cache_place){c->n_groups, at};
        at += plan_state_elems(&m->plan->layers[i]);
    }
    c->groups[c->n_groups++] = (struct cache_group){
        .kind = CACHE_STATE, .n_state_pages = (int)((bytes + c->page_bytes - 1) / c->page_bytes)};
}

/* Fill in groups and places for the chosen page size. Sets are in order (full, window, state), so
 * groups are too. */
static void cache_make_groups(struct cache *c, const struct cache_maker *m)
{
    for (int seq = 0; seq < m->n_sets; seq++) {
        const struct cache_set *set = &m->sets[seq];
        int n;

        if (set->kind == CACHE_STATE) {
            cache_place_states(c, m, set->bytes);
            continue;
        }
        n = cache_fill_set(m, set, c->page_bytes, c->n_groups, c->layers);

        for (int group = 0; group < n; group++)
            c->groups[c->n_groups++] =
                (struct cache_group){.kind = set->kind, .window = set->window};
    }
    for (int i = 0; i < c->n_layers; i++) {
        if (cache_is_shared(m->plan, i))
            c->layers[i] = c->layers[m->plan->layers[i].attn.kv_layer];
    }
}

/* Sets are found kind by kind, so that groups get the order that cache.h promises. */
int cache_make(struct cache *out, const struct plan *plan, int page_tokens, size_t elem_bytes)
{
    struct cache_maker maker = {.plan = plan, .page_tokens = page_tokens, .elem_bytes = elem_bytes};
    struct cache cache = {.page_tokens = page_tokens, .n_layers = plan->n_layers};

    must(page_tokens >= 1 && elem_bytes > 0);
    for (int kind = CACHE_FULL; kind <= CACHE_STATE; kind++) {
        if (cache_find_sets(&maker, (enum cache_kind)kind) != ERR_OK)
            return ERR_UNSUPPORTED;
    }
    cache_list_page_sizes(&maker);
    cache.page_bytes = cache_choose_page(&maker);
    if (cache.page_bytes == 0) {
        log_error("model: its layers need more than %d groups of pages, which is not supported",
                  CACHE_GROUPS_MAX);
        return ERR_UNSUPPORTED;
    }
    cache.layers = mem_zalloc_array((size_t)plan->n_layers, sizeof *cache.layers);
    if (cache.layers == NULL)
        return ERR_NO_MEMORY;
    cache_make_groups(&cache, &maker);
    *out = cache;
    return ERR_OK;
}

void cache_fini(struct cache *c)
{
    mem_free(c->layers);
    c->layers = NULL;
}

/* A range of bytes, of a page or of a state. */
struct cache_range {
    size_t from, end;
};

/* The bytes that a stage's layers have in the pages of a group; {0} if it has none of them. Layers
 * of a group lie in their order, so those of a stage follow one another. */
static struct cache_range cache_range_of(const struct cache *whole, const struct plan *plan,
                                         struct plan_stage stage, int group, size_t elem_bytes)
{
    const struct cache_maker maker = {
        .plan = plan, .page_tokens = whole->page_tokens, .elem_bytes = elem_bytes};
    struct cache_range range = {0, 0};

    for (int i = stage.first; i < stage.end; i++) {
        bool is_state = plan_state_elems(&plan->layers[i]) > 0;
        size_t at = whole->layers[i].at * (is_state ? plan_state_elem_bytes(plan) : elem_bytes);

        if (whole->layers[i].group != group || cache_has_none(plan, i))
            continue;
        if (range.end == 0)
            range.from = at;
        range.end = at + cache_set_of(&maker, i).bytes;
    }
    return range;
}

/* A state has as many pages in every stage, so they are smaller where it is. */
int cache_cut(struct cache *out, size_t *from, const struct cache *whole, const struct plan *plan,
              struct plan_stage stage, size_t elem_bytes)
{
    struct cache_range ranges[CACHE_GROUPS_MAX];
    struct cache cache = *whole;

    cache.page_bytes = 0;
    cache.layers = mem_zalloc_array((size_t)plan->n_layers, sizeof *cache.layers);
    if (cache.layers == NULL)
        return ERR_NO_MEMORY;
    for (int group = 0; group < whole->n_groups; group++) {
        const struct cache_group *of = &whole->groups[group];
        size_t bytes;

        ranges[group] = cache_range_of(whole, plan, stage, group, elem_bytes);
        bytes = ranges[group].end - ranges[group].from;
        if (of->kind == CACHE_STATE)
            bytes = (bytes + (size_t)of->n_state_pages - 1) / (size_t)of->n_state_pages;
        if (!cache_is_simple(whole))
            bytes = (bytes + 15) / 16 * 16; /* a whole number of elements of any type */
        if (bytes > cache.page_bytes)
            cache.page_bytes = bytes;
    }
    for (int i = stage.first; i < stage.end; i++) {
        bool is_state = plan_state_elems(&plan->layers[i]) > 0;

        cache.layers[i] = whole->layers[i];
        if (plan->layers[i].mixer == MIXER_NONE)
            continue;
        cache.layers[i].at -= ranges[whole->layers[i].group].from /
                              (is_state ? plan_state_elem_bytes(plan) : elem_bytes);
    }
    *from = ranges[0].from;
    *out = cache;
    return ERR_OK;
}

int cache_pages(const struct cache *c, int n_tokens)
{
    must(n_tokens >= 0);
    return (n_tokens + c->page_tokens - 1) / c->page_tokens;
}

/* A token at pos sees pos - window + 1 .. pos. */
int cache_first_page(const struct cache *c, const struct cache_group *g, int pos)
{
    must(pos >= 0);
    if (g->kind != CACHE_WINDOW || pos < g->window)
        return 0;
    return (pos - g->window + 1) / c->page_tokens;
}

/* A window of w tokens touches at most w / page_tokens + 2 pages, because it may begin and end in
 * the middle of one. States count twice: the running state and a snapshot of it. */
int cache_need(const struct cache *c, int n_tokens)
{
    int all = cache_pages(c, n_tokens), n = 0;

    for (int group = 0; group < c->n_groups; group++) {
        int seen = c->groups[group].window / c->page_tokens + 2;

        switch (c->groups[group].kind) {
        case CACHE_FULL: n += all; break;
        case CACHE_WINDOW: n += seen < all ? seen : all; break;
        case CACHE_STATE: n += 2 * c->groups[group].n_state_pages; break;
        }
    }
    return n;
}

int cache_tokens(const struct cache *c, int n_pages, int n_tokens)
{
    int enough = 0, tokens = n_tokens;

    must(n_pages >= 0 && n_tokens >= 0);
    /* Invariant: `enough` tokens fit, and more than `tokens` do not. */
    while (enough < tokens) {
        int middle = enough + (tokens - enough + 1) / 2;

        if (cache_need(c, middle) <= n_pages)
            enough = middle;
        else
            tokens = middle - 1;
    }
    return enough;
}

/* A state may have more pages than a short sequence has pages of tokens. */
int cache_row(const struct cache *c, int n_tokens)
{
    int n = cache_pages(c, n_tokens);

    for (int group = 0; group < c->n_groups; group++) {
        if (c->groups[group].n_state_pages > n)
            n = c->groups[group].n_state_pages;
    }
    return n;
}

bool cache_is_simple(const struct cache *c)
{
    return c->n_groups == 1 && c->groups[0].kind == CACHE_FULL;
}

/* The text that is hashed describes every layer, so that stores written with another layout are
 * refused. */
struct hash cache_digest(const struct cache *c, struct hash before)
{
    char line[120];
    int n;

    for (int i = 0; i < c->n_layers; i++) {
        const struct cache_place *place = &c->layers[i];
        const struct cache_group *group = &c->groups[place->group];

        n = snprintf(line, sizeof line, "layer %d: page %zu, group %d, kind %d, window %d, at %zu",
                     i, c->page_bytes, place->group, (int)group->kind, group->window, place->at);
        before = hash_sha256(&before, sizeof before, line, (size_t)n);
    }
    return before;
}
