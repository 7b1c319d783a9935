/* SPDX-License-Identifier: Apache-2.0
 *
 * Mark and sweep: a round marks the names of all pages of all tiers with its number, and then frees
 * the places whose mark is older. Names that are added meanwhile have the round's number, too. */
#include "engine/held.h"

#include "base/mem.h"
#include "engine/engine.h"

#define HELD_BUSY 64   /* pages or buckets per pass */
#define HELD_IDLE 8192 /* likewise, of an engine without work */

/* The marks are zero, and the first round is 1. */
int held_open(struct held *h, struct wire_held *page)
{
    *h = (struct held){.page = page, .round = 1};
    h->rounds = mem_zalloc_array((size_t)WIRE_HELD_BUCKETS * WIRE_HELD_PLACES, sizeof *h->rounds);
    if (h->rounds == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

void held_start(struct held *h)
{
    h->on = h->page != NULL;
}

/* The place of the name, else a free one, else one whose mark is oldest. */
void held_add(struct held *h, const struct hash *name)
{
    uint32_t tag = wire_held_tag(name->bytes), bucket = wire_held_bucket(name->bytes);
    uint8_t *rounds, most = 0;
    int place = 0;

    if (!h->on)
        return;
    rounds = h->rounds + (size_t)bucket * WIRE_HELD_PLACES;
    for (int i = 0; i < WIRE_HELD_PLACES; i++) {
        uint32_t old = atomic_load_explicit(&h->page->tags[bucket][i], memory_order_relaxed);
        uint8_t age = old == 0 ? UINT8_MAX : (uint8_t)(h->round - rounds[i]);

        if (old == tag) {
            rounds[i] = h->round;
            return;
        }
        if (age > most) {
            most = age;
            place = i;
        }
    }
    /* All of this round: any of them must go. */
    if (most == 0)
        place = (int)(tag % WIRE_HELD_PLACES);
    rounds[place] = h->round;
    atomic_store_explicit(&h->page->tags[bucket][place], tag, memory_order_relaxed);
}

void held_note(struct engine *e, int32_t page)
{
    struct page_label label;

    if (e->held.on && pages_label(e->pages, page, &label))
        held_add(&e->held, &label.name);
}

void held_sweep(struct held *h, uint32_t bucket)
{
    const uint8_t *rounds = h->rounds + (size_t)bucket * WIRE_HELD_PLACES;

    for (int i = 0; i < WIRE_HELD_PLACES; i++) {
        if (rounds[i] != h->round &&
            atomic_load_explicit(&h->page->tags[bucket][i], memory_order_relaxed) != 0)
            atomic_store_explicit(&h->page->tags[bucket][i], 0, memory_order_relaxed);
    }
}

/* Look at page i of a tier, below the tier's number of pages. */
static bool held_look(const struct engine *e, enum wire_tier tier, uint32_t i,
                      struct page_label *label)
{
    switch (tier) {
    case WIRE_DEVICE: return pages_label(e->pages, (int32_t)i, label);
    case WIRE_HOST: return host_read_slot(e->tiers.host, (int32_t)i, label);
    case WIRE_STORE: return store_look(e->tiers.store, i, label);
    }
    return false;
}

/* The number of pages of a tier. */
static uint32_t held_pages(const struct engine *e, enum wire_tier tier)
{
    struct store_counters store;

    switch (tier) {
    case WIRE_DEVICE: return (uint32_t)pages_count(e->pages);
    case WIRE_HOST: return e->tiers.host == NULL ? 0 : (uint32_t)host_n_slots(e->tiers.host);
    case WIRE_STORE:
        if (e->tiers.store == NULL)
            return 0;
        store_read_counters(e->tiers.store, &store);
        return (uint32_t)store.slots;
    }
    return 0;
}

/* One step of a round: first the pages of each tier, then the buckets. */
static void held_step(struct engine *e, const uint32_t *n_pages)
{
    struct held *h = &e->held;
    struct page_label label;
    uint32_t i = h->next++;

    for (int tier = 0; tier < WIRE_TIERS; tier++) {
        if (i < n_pages[tier]) {
            if (held_look(e, (enum wire_tier)tier, i, &label))
                held_add(h, &label.name);
            return;
        }
        i -= n_pages[tier];
    }
    if (i < WIRE_HELD_BUCKETS) {
        held_sweep(h, i);
        return;
    }
    h->next = 0;
    h->round++; /* wraps; a place is freed in the round after its last mark */
}

void held_pass(struct engine *e)
{
    bool is_busy = e->sched.n_running + sched_n_waiting(&e->sched) > 0;
    int n = is_busy ? HELD_BUSY : HELD_IDLE;
    uint32_t n_pages[WIRE_TIERS];

    if (!e->held.on)
        return;
    for (int tier = 0; tier < WIRE_TIERS; tier++)
        n_pages[tier] = held_pages(e, (enum wire_tier)tier);
    for (int i = 0; i < n; i++)
        held_step(e, n_pages);
}
