/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages between the device and the store. The device's cache is asked first; what it lacks of a
 * waiting prompt and the store has is read in the background into pages of its own, which then
 * are cached pages like any other: the scheduler finds them when it admits the sequence, and if
 * they were evicted meanwhile, that is a miss and nothing worse. */
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "engine/engine.h"
#include "kv/prefix.h"

#define TIERS_LOADS     64 /* pages under way at once: more than the staging buffers */
#define TIERS_LOOKAHEAD 8  /* waiting sequences whose pages are asked for before their turn */

int tiers_init(struct engine *e)
{
    e->dirty_cap = (uint32_t)pages_count(e->pages) + 1;
    e->n_loads = TIERS_LOADS;
    e->dirty = mem_zalloc_array(e->dirty_cap, sizeof *e->dirty);
    e->loads = mem_zalloc_array((size_t)e->n_loads, sizeof *e->loads);
    if (e->dirty == NULL || e->loads == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < e->n_loads; i++) {
        e->loads[i].tokens_copy = mem_zalloc_array((size_t)e->shape->block_tokens, sizeof(int32_t));
        if (e->loads[i].tokens_copy == NULL)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

static struct engine_load *tiers_load_slot(struct engine *e)
{
    for (int i = 0; i < e->n_loads; i++) {
        if (!e->loads[i].used)
            return &e->loads[i];
    }
    return NULL;
}

/* Ask for one page. False when nothing more can be asked for now. */
static bool tiers_load_page(struct engine *e, struct seq *q, const struct hash *name,
                            const struct hash *parent, const int32_t *tokens)
{
    struct engine_load *l = tiers_load_slot(e);
    int32_t page = l == NULL ? -1 : sched_take_page(&e->sched);

    if (page == -1)
        return false;
    tiers_save_evicted(e); /* the upload will overwrite the page before any step does */
    if (store_load(e->store, name, tokens, (uint64_t)(l - e->loads)) != ERR_OK) {
        pages_unref(e->pages, page);
        return false;
    }
    memcpy(l->tokens_copy, tokens, sizeof *tokens * (size_t)e->shape->block_tokens);
    l->used = true;
    l->page = page;
    l->name = *name;
    l->parent = *parent;
    l->seq = q;
    q->n_loading++;
    e->n_loads_used++;
    return true;
}

static void tiers_prefetch_seq(struct engine *e, struct seq *q)
{
    int block = e->shape->block_tokens;
    struct hash chain;
    int n = sched_match(&e->sched, q, &chain);
    int first = n;

    q->searched = true;
    while ((n + 1) * block <= sched_reusable(q)) {
        const int32_t *tokens = q->tokens + (size_t)n * (size_t)block;
        struct hash name = prefix_name(&chain, tokens, block);

        /* A page may be on the device behind one that only the store has. */
        if (!pages_has(e->pages, &name)) {
            if (!store_has(e->store, &name))
                break;
            if (!tiers_load_page(e, q, &name, &chain, tokens)) {
                q->searched = q->n_loading == 0; /* more when these have come */
                break;
            }
        }
        chain = name;
        n++;
    }
    if (!q->admitted && q->searched)
        stats_add(&e->stats, METRIC_store_queries, (uint64_t)(q->n_tokens - first * block));
}

void tiers_prefetch(struct engine *e)
{
    int n = 0;

    if (e->store == NULL || !e->sched.limits.prefix_caching)
        return;
    for (struct seq *q = e->sched.waiting; q != NULL && n < TIERS_LOOKAHEAD; q = q->next, n++) {
        if (!q->searched && q->n_loading == 0)
            tiers_prefetch_seq(e, q);
    }
}

static void tiers_loaded(struct engine *e, struct engine_load *l, const struct store_done *done)
{
    int rc = done->rc;

    if (rc == ERR_OK && !pages_has(e->pages, &l->name)) {
        rc = model_page_write(e->model, l->page, done->payload);
        if (rc == ERR_OK && pages_name(e->pages, l->page, &l->name, &l->parent, l->tokens_copy)) {
            pages_set_stored(e->pages, l->page);
            stats_add(&e->stats, METRIC_store_hits, (uint64_t)e->shape->block_tokens);
        }
    }
    if (done->rc == ERR_OK)
        store_release(e->store, done->payload);
    if (l->seq != NULL) {
        l->seq->n_loading--;
        if (done->rc != ERR_OK)
            l->seq->searched = true; /* what follows a hole is of no use */
    }
    pages_unref(e->pages, l->page);
    l->used = false;
    l->seq = NULL;
    e->n_loads_used--;
}

void tiers_poll(struct engine *e)
{
    struct store_done done;
    struct store_counters counters;

    if (e->store == NULL)
        return;
    while (store_poll(e->store, &done)) {
        must(done.ticket < (uint64_t)e->n_loads);
        must(e->loads[done.ticket].used);
        tiers_loaded(e, &e->loads[done.ticket], &done);
    }
    store_read_counters(e->store, &counters);
    stats_set(&e->stats, METRIC_store_faults, counters.faults);
}

void tiers_forget(struct engine *e, struct seq *q)
{
    if (q->n_loading == 0)
        return;
    for (int i = 0; i < e->n_loads; i++) {
        if (e->loads[i].used && e->loads[i].seq == q)
            e->loads[i].seq = NULL; /* the page is worth having all the same */
    }
    q->n_loading = 0;
}

/* Copy one page into a staging buffer and queue it. False when no buffer is free. */
static bool tiers_save_page(struct engine *e, int32_t page, const struct page_label *label)
{
    void *buffer = store_buffer(e->store);

    if (buffer == NULL)
        return false;
    if (model_page_read(e->model, page, buffer) != ERR_OK) {
        store_release(e->store, buffer);
        return true; /* the device is failing; the next step says so */
    }
    store_save(e->store, buffer, label);
    stats_add(&e->stats, METRIC_store_writes, 1);
    return true;
}

void tiers_save_evicted(struct engine *e)
{
    for (int i = 0; i < e->sched.n_evictions && e->store != NULL; i++) {
        const struct sched_eviction *v = &e->sched.evictions[i];

        if (store_has(e->store, &v->label.name))
            continue;
        if (!tiers_save_page(e, v->page, &v->label))
            stats_add(&e->stats, METRIC_store_skips, 1);
    }
    e->sched.n_evictions = 0;
}

void tiers_note_named(void *engine, int32_t page)
{
    struct engine *e = engine;
    struct page_label label;

    if (e->store == NULL || !pages_label(e->pages, page, &label))
        return;
    if (e->dirty_tail - e->dirty_head == e->dirty_cap)
        e->dirty_head++; /* the oldest waits for its eviction instead */
    e->dirty[e->dirty_tail++ % e->dirty_cap] =
        (struct engine_dirty){.page = page, .name = label.name};
}

/* Save the page behind one entry. False when no buffer is free; the entry stays then. */
static bool tiers_write_one(struct engine *e)
{
    const struct engine_dirty *d = &e->dirty[e->dirty_head % e->dirty_cap];
    struct page_label label;

    if (pages_label(e->pages, d->page, &label) &&
        memcmp(&label.name, &d->name, sizeof d->name) == 0 && !pages_stored(e->pages, d->page)) {
        if (!store_has(e->store, &d->name) && !tiers_save_page(e, d->page, &label))
            return false;
        pages_set_stored(e->pages, d->page);
    }
    e->dirty_head++;
    return true;
}

void tiers_write_behind(struct engine *e, int pages_max)
{
    if (e->store == NULL)
        return;
    for (int i = 0; i < pages_max && e->dirty_head != e->dirty_tail; i++) {
        if (!tiers_write_one(e))
            return;
    }
}

void tiers_save_all(struct engine *e)
{
    uint32_t n = e->dirty_tail - e->dirty_head;

    if (e->store == NULL)
        return;
    while (e->dirty_head != e->dirty_tail) {
        if (!tiers_write_one(e))
            store_flush(e->store); /* frees the buffers */
    }
    log_info("engine: %u pages saved to %s", n, e->settings.kv_store_dir);
}
