/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages between the device, host memory and the disk; tiers.h has the picture. The device's cache
 * is asked first. Pages of a waiting prompt that only a lower tier has are loaded in the background
 * into free pages, and become cached pages like any other: the scheduler finds them when it admits
 * the sequence, and if they were evicted meanwhile, that is only a miss.
 *
 * A page that gets a name is copied to host memory soon afterwards. It is written to disk when it
 * is used again there, or when it is evicted from there after a use. Without a host tier it is
 * written to disk directly. */
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "engine/engine.h"
#include "ipc/prefix.h"

#define TIERS_LOADS     1024 /* loads at once */
#define TIERS_LOOKAHEAD 8    /* waiting sequences whose pages are asked for in advance */
#define TIERS_MARKED    64   /* loads per mark: pages that become known as complete together */
#define TIERS_OUT       32   /* pages saved to host memory per pass; the copy engines do the work */
#define TIERS_OUT_LONG  512  /* as many beside a step of a prompt, which fills as many pages */
#define TIERS_LONG_STEP 1024 /* tokens of such a step */
#define TIERS_SMOOTH    16.0
#define TIERS_PATIENCE  4.0     /* time of a busy device is worth this many times the disk's */
#define TIERS_TRY       32      /* every n-th prompt reads from a slow disk, to measure it again */
#define TIERS_STUCK_US  5000000 /* without progress; a thousand pages take less */
/* between two looks at copies that are waited for */
#define TIERS_LOOK_US 200

/* Every array has its final length here, because the engine allocates nothing later. */
int tiers_init(struct engine *e)
{
    e->tiers.dirty_cap = (uint32_t)pages_count(e->pages) + 1;
    e->tiers.n_loads = TIERS_LOADS;
    e->tiers.dirty = mem_zalloc_array(e->tiers.dirty_cap, sizeof *e->tiers.dirty);
    e->tiers.loads = mem_zalloc_array((size_t)e->tiers.n_loads, sizeof *e->tiers.loads);
    e->tiers.hot = mem_zalloc_array(TIERS_HOT, sizeof *e->tiers.hot);
    if (e->tiers.dirty == NULL || e->tiers.loads == NULL || e->tiers.hot == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < e->tiers.n_loads; i++) {
        e->tiers.loads[i].tokens_copy =
            mem_zalloc_array((size_t)e->shape->page_tokens, sizeof(int32_t));
        if (e->tiers.loads[i].tokens_copy == NULL)
            return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

/* --- loads: asking for pages ------------------------------------------------------------------ */

/* A free load, or NULL. The search begins after the last one that was taken. */
static struct tiers_load *tiers_load_slot(struct engine *e)
{
    for (int i = 0; i < e->tiers.n_loads && e->tiers.n_loads_used < e->tiers.n_loads; i++) {
        struct tiers_load *load = &e->tiers.loads[(e->tiers.next_load + i) % e->tiers.n_loads];

        if (load->state != LOAD_FREE)
            continue;
        e->tiers.next_load = (int)(load - e->tiers.loads) + 1;
        return load;
    }
    return NULL;
}

/* Enqueue the copy from the slot or buffer with the payload. False: it failed. */
static bool tiers_start_copy(struct engine *e, struct tiers_load *load)
{
    const void *from = load->slot >= 0 ? host_payload(e->tiers.host, load->slot) : load->payload;

    if (FAULT_HIT(host_copy) || model_page_in(e->model, load->page, from) != ERR_OK)
        return false;
    load->state = LOAD_STARTED;
    return true;
}

/* The slot is held until the load ends. A page that was not read since the engine's start is
 * checked first, because a crash may have left half of it. */
static void tiers_from_host(struct engine *e, struct tiers_load *load, int32_t slot)
{
    struct page_label label;

    load->slot = slot;
    if (host_read_slot(e->tiers.host, slot, &label)) {
        host_retain(e->tiers.host, &label.name,
                    /* At least the default priority, because the page is used. */
                    (struct retain){0});
        load->retain = label.retain;
    }
    host_use(e->tiers.host, slot);
    load->state = LOAD_CHECKING;
    if (!host_is_checked(e->tiers.host, slot))
        host_check(e->tiers.host, slot, (uint64_t)(load - e->tiers.loads));
    else if (!tiers_start_copy(e, load))
        load->state = LOAD_FAILED; /* tiers_poll() drops it */
}

/* A read is counted from here until tiers_time_read(), to measure the disk. */
static int tiers_from_store(struct engine *e, struct tiers_load *load, const struct hash *name,
                            const int32_t *tokens)
{
    int rc = store_load(e->tiers.store, name, tokens, (uint64_t)(load - e->tiers.loads));

    if (rc != ERR_OK)
        return rc;
    if (e->tiers.n_reads++ == 0)
        e->tiers.reads_since_us = e->now_us;
    load->slot = -1;
    load->state = LOAD_READING;
    return ERR_OK;
}

/* A page to ask for. */
struct tiers_wish {
    struct tables_name name;
    const int32_t *tokens; /* int32 [page_tokens] */
    int n_tokens;          /* as in struct tiers_load */
    int32_t slot;          /* slot of the host tier; -1: it is in the store */
};

/* Start one load. False when no further load is possible now. */
static bool tiers_load_page(struct engine *e, struct seq *seq, const struct tiers_wish *wish)
{
    struct tiers_load *load = tiers_load_slot(e);
    int32_t page;

    if (load == NULL || (wish->slot < 0 && !store_has_buffer(e->tiers.store)))
        return false; /* before a page is evicted in vain */
    if (wish->slot >= 0)
        /* The evicted page takes a slot, which must not be this one. */
        host_hold(e->tiers.host, wish->slot);
    page = tables_take_page(&e->sched.tables);
    if (page == -1) {
        if (wish->slot >= 0)
            host_release(e->tiers.host, wish->slot);
        return false;
    }
    tiers_save_evicted(e); /* the copy overwrites the page before the next step does */
    load->page = page;
    load->space = prefix_space(&seq->root);
    load->retain = (struct retain){0};
    load->dropped = false;
    if (wish->slot >= 0)
        tiers_from_host(e, load, wish->slot);
    else if (tiers_from_store(e, load, &wish->name.name, wish->tokens) != ERR_OK) {
        pages_unref(e->pages, page);
        return false;
    }
    memcpy(load->tokens_copy, wish->tokens, sizeof *wish->tokens * (size_t)e->shape->page_tokens);
    load->n_tokens = wish->n_tokens;
    load->name = wish->name.name;
    load->parent = wish->name.parent;
    load->payload = NULL;
    load->seq = seq;
    seq->n_loading++;
    e->tiers.n_loads_used++;
    return true;
}

/* The load of the page of this name, or NULL. */
static struct tiers_load *tiers_find_load(const struct engine *e, const struct hash *name)
{
    for (int i = 0; i < e->tiers.n_loads && e->tiers.n_loads_used > 0; i++) {
        struct tiers_load *load = &e->tiers.loads[i];

        if (load->state > LOAD_SHARED && load->state != LOAD_FAILED &&
            memcmp(&load->name, name, sizeof *name) == 0)
            return load;
    }
    return NULL;
}

/* Another sequence has asked for this page: seq waits for that load and then searches again, so
 * that prompts with the same beginning load their pages once. False when there is no such load. */
static bool tiers_share_load(struct engine *e, struct seq *seq, const struct hash *name)
{
    const struct tiers_load *other = tiers_find_load(e, name);
    struct tiers_load *load;

    if (other == NULL || (load = tiers_load_slot(e)) == NULL)
        return false;
    load->state = LOAD_SHARED;
    load->of = (int)(other - e->tiers.loads);
    load->seq = seq;
    seq->n_loading++;
    e->tiers.n_loads_used++;
    e->tiers.n_loads_shared++;
    return true;
}

/* Is reading from the disk faster than computing? While other sequences need the device, its time
 * counts more. Every TIERS_TRY-th prompt reads anyway, because a disk may become faster again. */
static bool tiers_worth_reading(const struct engine *e, const struct seq *seq)
{
    double compute_us = e->tiers.prefill_us * e->shape->page_tokens;

    if (e->tiers.read_us <= 0.0 || compute_us <= 0.0 || seq->arrival % TIERS_TRY == 0)
        return true;
    return e->tiers.read_us < compute_us * (e->sched.n_running > 0 ? TIERS_PATIENCE : 1.0);
}

/* Where the device can get a page that it lacks: a slot of the host tier, -1: the store, -2:
 * nowhere. */
static int32_t tiers_find(const struct engine *e, const struct hash *name, const int32_t *tokens,
                          bool reads)
{
    int32_t slot = e->tiers.host == NULL ? -1 : host_find(e->tiers.host, name, tokens);

    if (slot >= 0)
        return slot;
    if (reads && e->tiers.store != NULL && store_has(e->tiers.store, name))
        return -1;
    return -2;
}

/* All loads are in use by others: seq waits for a free one, as it would for pages. That is soon,
 * and computing the whole prompt takes longer. */
static void tiers_await_place(const struct engine *e, struct seq *seq)
{
    if (e->tiers.n_loads_used < e->tiers.n_loads || seq->n_loading > 0)
        return;
    seq->awaits_load = true;
    seq->n_loading = 1;
}

/* A load is free again. */
static void tiers_end_await(const struct engine *e, struct seq *seq)
{
    if (!seq->awaits_load || e->tiers.n_loads_used == e->tiers.n_loads)
        return;
    seq->awaits_load = false;
    seq->n_loading = 0;
}

/* A mark after all copies in one direction so far. False: there is none to be had now. */
static bool tiers_mark(struct engine *e, enum model_way way, uint64_t *mark)
{
    int rc = model_copy_mark(e->model, way, mark);

    e->tiers.device_failed = e->tiers.device_failed || rc == ERR_GPU;
    return rc == ERR_OK;
}

/* Are all copies before a mark done? Copies of a device that has failed never are. */
static bool tiers_is_done(struct engine *e, enum model_way way, uint64_t mark)
{
    int done = e->tiers.device_failed ? 0 : model_copy_done(e->model, way, mark);

    e->tiers.device_failed = e->tiers.device_failed || done == ERR_GPU;
    return done == 1;
}

/* Put one mark after the copies that were started. Without a mark they stay started. */
static void tiers_mark_loads(struct engine *e)
{
    uint64_t mark = 0;
    bool any = false;

    for (int i = 0; i < e->tiers.n_loads && !any; i++)
        any = e->tiers.loads[i].state == LOAD_STARTED;
    if (!any || !tiers_mark(e, MODEL_IN, &mark))
        return;
    for (int i = 0; i < e->tiers.n_loads; i++) {
        if (e->tiers.loads[i].state != LOAD_STARTED)
            continue;
        e->tiers.loads[i].state = LOAD_COPYING;
        e->tiers.loads[i].mark = mark;
    }
}

/* The tiers in which pages of a prompt are searched. */
struct tiers_search {
    const struct engine *e;
    bool reads; /* in the store, too */
};

static bool tiers_has(void *context, const struct hash *name, const int32_t *tokens)
{
    const struct tiers_search *search = context;

    return pages_has(search->e->pages, name) ||
           tiers_find(search->e, name, tokens, search->reads) != -2;
}

/* How many pages of seq's prompt all tiers together can serve. If all groups keep all tokens, every
 * page that is found is of use, and the search ends at the first that is not; so the goal is the
 * whole prompt. */
static int tiers_goal(struct engine *e, const struct seq *seq, bool reads)
{
    const struct tables *tables = &e->sched.tables;
    struct tiers_search search = {.e = e, .reads = reads};
    struct hash chain;

    if (tables->n_full_groups == tables->limits.n_groups)
        return tables_reusable(seq) / e->shape->page_tokens;
    return tables_reach(tables, seq, tiers_has, &search, &chain);
}

enum tiers_asked { TIERS_ASKED, TIERS_NOWHERE, TIERS_NO_ROOM, TIERS_SHARED };

/* Ask for the pages at the end of the prefix `chain` of i + 1 pages that the device lacks. */
static enum tiers_asked tiers_ask(struct engine *e, struct seq *seq, int i,
                                  const struct hash *chain, const struct hash *before, bool reads)
{
    struct tables_name names[TABLES_NAMES_MAX];
    int n = tables_names(&e->sched.tables, i, seq->n_goal, chain, before, names);
    int block = e->shape->page_tokens;

    for (int part = 0; part < n; part++) {
        struct tiers_wish wish = {.name = names[part],
                                  .tokens = seq->tokens + (size_t)i * (size_t)block,
                                  .n_tokens = part == 0 ? block : 0};

        /* The device may have a page whose predecessor only a lower tier has. */
        if (pages_has(e->pages, &wish.name.name))
            continue;
        if (seq->n_loading == 0 && tiers_share_load(e, seq, &wish.name.name))
            return TIERS_SHARED;
        if (n > 1 && tiers_find_load(e, &wish.name.name) != NULL)
            continue; /* asked for before loads ran out */
        wish.slot = tiers_find(e, &wish.name.name, wish.tokens, reads);
        if (wish.slot == -2)
            return TIERS_NOWHERE;
        if (seq->n_loading == 0)
            tables_use_prefix(&e->sched.tables, seq, seq->n_goal);
        if (!tiers_load_page(e, seq, &wish))
            return TIERS_NO_ROOM;
    }
    return TIERS_ASKED;
}

/* Ask for all pages of seq's prompt that only lower tiers have, as far as there are loads; a later
 * call continues from there as loads end. `chain` is the name of the first i pages. */
static void tiers_prefetch_seq(struct engine *e, struct seq *seq)
{
    const struct tables *tables = &e->sched.tables;
    int block = e->shape->page_tokens, before = seq->n_loading;
    bool reads = tiers_worth_reading(e, seq), goes_on = seq->n_loading > 0;
    struct hash chain = seq->asked_chain;
    int i = goes_on ? seq->n_asked : tables_match(tables, seq, &chain);

    if (!goes_on && !seq->admitted)
        seq->n_searched_from = i;
    if (!goes_on) {
        seq->n_goal = tiers_goal(e, seq, reads);
        if (tables->n_full_groups <
            tables->limits.n_groups) { /* other groups may lack pages of the prefix */
            i = 0;
            chain = seq->root;
        }
    }
    seq->searched = true;
    seq->n_asked = 0;
    for (; i < seq->n_goal; i++) {
        const int32_t *tokens = seq->tokens + (size_t)i * (size_t)block;
        struct hash name = prefix_name(&chain, tokens, block);
        enum tiers_asked asked = tiers_ask(e, seq, i, &name, &chain, reads);

        if (asked == TIERS_SHARED) {
            seq->searched = false;
            return;
        }
        if (asked == TIERS_NO_ROOM) {
            tiers_await_place(e, seq);
            seq->searched = seq->n_loading == 0; /* continue when some of these have arrived */
            seq->n_asked = seq->awaits_load ? 0 : i;
            seq->asked_chain = chain;
        }
        if (asked != TIERS_ASKED)
            break;
        if (seq->n_loading - before >= TIERS_MARKED) {
            tiers_mark_loads(e);
            before = seq->n_loading;
        }
        chain = name;
    }
    if (!seq->admitted && seq->searched)
        stats_add(&e->stats, METRIC_store_queries,
                  (uint64_t)(seq->n_tokens - seq->n_searched_from * block));
}

/* Only the first waiting sequences: pages of later ones would be evicted before they are
 * admitted. */
void tiers_prefetch(struct engine *e)
{
    struct seq *seq;

    if ((e->tiers.store == NULL && e->tiers.host == NULL) || !e->sched.limits.prefix_caching)
        return;
    tenants_begin(&e->sched.tenants);
    for (int n = 0; n < TIERS_LOOKAHEAD && (seq = tenants_next(&e->sched.tenants)) != NULL; n++) {
        tiers_end_await(e, seq);
        if (!seq->searched && (seq->n_loading == 0 || seq->n_asked > 0))
            tiers_prefetch_seq(e, seq);
    }
    if (e->tiers.n_loads_used > 0)
        tiers_mark_loads(e);
}

/* --- loads: pages that arrive ----------------------------------------------------------------- */

/* If the ring is full, the page is not written: it is still in host memory. */
void tiers_want_stored(struct engine *e, int32_t slot, const struct hash *name)
{
    if (e->tiers.store == NULL || e->tiers.hot_tail - e->tiers.hot_head == TIERS_HOT)
        return;
    e->tiers.hot[e->tiers.hot_tail++ % TIERS_HOT] = (struct tiers_hot){.slot = slot, .name = *name};
}

/* The caller has released everything that the load held. */
static void tiers_free_load(struct engine *e, struct tiers_load *load)
{
    e->tiers.n_loads_shared -= load->state == LOAD_SHARED;
    load->state = LOAD_FREE;
    load->seq = NULL;
    e->tiers.n_loads_used--;
}

/* Quadratic in the loads, but only while there are some; a sequence counts once. */
int tiers_n_deferred(const struct engine *e)
{
    int n = 0;

    for (int i = 0; i < e->tiers.n_loads && e->tiers.n_loads_used > 0; i++) {
        const struct seq *seq = e->tiers.loads[i].state == LOAD_FREE ? NULL : e->tiers.loads[i].seq;
        bool first = seq != NULL;

        for (int part = 0; part < i && first; part++)
            first = e->tiers.loads[part].state == LOAD_FREE || e->tiers.loads[part].seq != seq;
        n += first;
    }
    return n;
}

/* Sequences that wait for load `of` search again. */
static void tiers_end_shared(struct engine *e, int of)
{
    for (int i = 0; i < e->tiers.n_loads && e->tiers.n_loads_shared > 0; i++) {
        struct tiers_load *load = &e->tiers.loads[i];

        if (load->state != LOAD_SHARED || load->of != of)
            continue;
        load->seq->n_loading--;
        tiers_free_load(e, load);
    }
}

/* A load has ended: name its page, or give it back. Everything it holds is released here: the slot
 * or the buffer, the page's reference, and its part of the sequence's wait. */
static void tiers_end_load(struct engine *e, struct tiers_load *load, bool good)
{
    good = good && !load->dropped && !tiers_drops(&e->tiers, load->space) &&
           !pages_has(e->pages, &load->name) &&
           pages_name(e->pages, load->page, &load->name, &load->parent, load->tokens_copy);
    if (good) {
        pages_own(e->pages, load->page, load->space, load->retain);
        pages_set_stored(e->pages, load->page);
        if (load->seq != NULL)
            load->seq->n_fetched += load->n_tokens;
        stats_add(&e->stats, load->slot >= 0 ? METRIC_host_hits : METRIC_store_hits,
                  (uint64_t)load->n_tokens);
    }
    if (load->slot >= 0) {
        if (good) /* it was used again: write it to disk */
            tiers_want_stored(e, load->slot, &load->name);
        host_release(e->tiers.host, load->slot);
    }
    if (load->payload != NULL)
        store_release(e->tiers.store, load->payload);
    if (load->seq != NULL) {
        load->seq->n_loading--;
        if (!good) /* pages after a missing one are of no use */
            load->seq->searched = true;
    }
    pages_unref(e->pages, load->page);
    tiers_free_load(e, load);
    tiers_end_shared(e, (int)(load - e->tiers.loads));
}

/* Measure the time per page while reads are in flight. */
static void tiers_time_read(struct engine *e)
{
    double us = (double)(e->now_us - e->tiers.reads_since_us);

    must(e->tiers.n_reads > 0);
    e->tiers.reads_since_us = e->now_us;
    e->tiers.n_reads--;
    e->tiers.read_us += e->tiers.read_us <= 0.0 ? us : (us - e->tiers.read_us) / TIERS_SMOOTH;
}

/* Answers of the I/O threads: pages that were read, and pages of the host tier that were
 * written. */
static void tiers_poll_store(struct engine *e)
{
    struct store_counters counters;
    struct store_done done;

    while (store_poll(e->tiers.store, &done)) {
        struct tiers_load *load;

        if (done.saved) { /* a page of the host tier, whose slot was held */
            host_release(e->tiers.host, (int32_t)done.ticket);
            continue;
        }
        load = &e->tiers.loads[done.ticket];
        must(done.ticket < (uint64_t)e->tiers.n_loads && load->state == LOAD_READING);
        tiers_time_read(e);
        load->payload = done.rc == ERR_OK ? done.payload : NULL;
        load->retain = done.rc == ERR_OK ? done.retain : (struct retain){0};
        if (done.rc != ERR_OK || !tiers_start_copy(e, load))
            tiers_end_load(e, load, false);
    }
    store_read_counters(e->tiers.store, &counters);
    stats_set(&e->stats, METRIC_store_faults, counters.faults);
    stats_set(&e->stats, METRIC_store_pages, counters.entries);
    stats_set(&e->stats, METRIC_store_slots, counters.slots);
    stats_set(&e->stats, METRIC_store_kept, counters.kept);
}

static void tiers_poll_host(struct engine *e)
{
    struct host_counters counters;
    uint64_t ticket;
    bool good;

    while (host_poll(e->tiers.host, &ticket, &good)) {
        struct tiers_load *load = &e->tiers.loads[ticket];

        must(ticket < (uint64_t)e->tiers.n_loads && load->state == LOAD_CHECKING);
        if (!good || !tiers_start_copy(e, load))
            tiers_end_load(e, load, false);
    }
    host_read_counters(e->tiers.host, &counters);
    stats_set(&e->stats, METRIC_host_pages, counters.pages);
    stats_set(&e->stats, METRIC_host_slots, counters.slots);
    stats_set(&e->stats, METRIC_host_faults, counters.faults);
    stats_set(&e->stats, METRIC_host_kept, counters.kept);
}

static void tiers_poll_loads(struct engine *e)
{
    uint64_t waits = UINT64_MAX; /* the first mark that is not reached: later ones are not either */

    for (int i = 0; i < e->tiers.n_loads && e->tiers.n_loads_used > 0; i++) {
        struct tiers_load *load = &e->tiers.loads[i];

        if (load->state == LOAD_FAILED)
            tiers_end_load(e, load, false);
        if (load->state != LOAD_COPYING || load->mark >= waits)
            continue;
        if (tiers_is_done(e, MODEL_IN, load->mark))
            tiers_end_load(e, load, true);
        else
            waits = load->mark;
    }
}

/* The retention of a page may have changed while it was being copied. Retained pages are written to
 * disk as well, because they should survive a restart of the machine. */
static void tiers_retain_saved(struct engine *e, const struct tiers_save *save)
{
    int32_t page = pages_look(e->pages, &save->name);
    struct page_label label;

    if (page != -1 && pages_label(e->pages, page, &label))
        host_retain(e->tiers.host, &save->name, label.retain);
    if (host_read_slot(e->tiers.host, save->slot, &label) && label.retain.rank > 0 &&
        memcmp(&label.name, &save->name, sizeof save->name) == 0)
        tiers_want_stored(e, save->slot, &save->name);
}

/* Saves end in the order of their marks, so the first one that is not done ends the look. */
static void tiers_poll_saves(struct engine *e)
{
    while (e->tiers.saves_head != e->tiers.saves_tail) {
        struct tiers_save *save = &e->tiers.saves[e->tiers.saves_head % TIERS_SAVES];
        bool good;

        if (!save->marked || !tiers_is_done(e, MODEL_OUT, save->mark))
            return;
        good = !FAULT_HIT(host_copy) && !save->dropped;
        host_filled(e->tiers.host, save->slot, good);
        if (good)
            tiers_retain_saved(e, save);
        if (save->page >= 0)
            pages_unref(e->pages, save->page);
        e->tiers.saves_head++;
    }
}

/* Take all that has ended since the last pass. Saves first, because they free slots. */
void tiers_poll(struct engine *e)
{
    if (e->tiers.store != NULL)
        tiers_poll_store(e);
    if (e->tiers.host != NULL) {
        tiers_poll_saves(e);
        tiers_poll_host(e);
    }
    if (e->tiers.n_loads_used > 0)
        tiers_poll_loads(e);
}

bool tiers_copy_in(const struct engine *e)
{
    for (int i = 0; i < e->tiers.n_loads; i++) {
        if (e->tiers.loads[i].state > LOAD_READING)
            return true;
    }
    return false;
}

/* Keeps the loop from sleeping long while something can be saved. */
bool tiers_have_work(const struct engine *e)
{
    return e->tiers.dirty_head != e->tiers.dirty_tail || e->tiers.hot_head != e->tiers.hot_tail ||
           e->tiers.saves_head != e->tiers.saves_tail ||
           (e->tiers.host != NULL && host_is_growing(e->tiers.host));
}

/* The loads go on without the sequence: the pages may serve another one. */
void tiers_forget(struct engine *e, struct seq *seq)
{
    if (seq->n_loading == 0)
        return;
    for (int i = 0; i < e->tiers.n_loads; i++) {
        if (e->tiers.loads[i].state == LOAD_FREE || e->tiers.loads[i].seq != seq)
            continue;
        if (e->tiers.loads[i].state == LOAD_SHARED)
            tiers_free_load(e, &e->tiers.loads[i]);
        else
            e->tiers.loads[i].seq = NULL; /* the page is of use to others */
    }
    seq->n_loading = 0;
    seq->awaits_load = false;
}

static bool tiers_is(const struct hash *name, uint64_t space, const struct hash *of,
                     uint64_t of_space)
{
    return (name == NULL || memcmp(name, of, sizeof *name) == 0) &&
           (space == 0 || space == of_space);
}

void tiers_drop(struct engine *e, const struct hash *name, uint64_t space)
{
    for (int i = 0; i < e->tiers.n_loads; i++) {
        struct tiers_load *load = &e->tiers.loads[i];

        load->dropped = load->dropped || tiers_is(name, space, &load->name, load->space);
    }
    for (uint32_t i = e->tiers.saves_head; i != e->tiers.saves_tail; i++) {
        struct tiers_save *save = &e->tiers.saves[i % TIERS_SAVES];

        save->dropped = save->dropped || tiers_is(name, space, &save->name, save->space);
    }
}

void tiers_time_step(struct engine *e, const struct engine_step *step)
{
    double us = (double)(e->now_us - step->begun_us);

    if (step->n_tokens < 4 * step->n_seqs || step->n_tokens < 2 * e->shape->page_tokens)
        return; /* no step of a prompt */
    us /= (double)step->n_tokens;
    e->tiers.prefill_us +=
        e->tiers.prefill_us <= 0.0 ? us : (us - e->tiers.prefill_us) / TIERS_SMOOTH;
}

/* --- saves ------------------------------------------------------------------------------------ */

/* Copy a payload from host memory into the store. False when it has no buffer. */
static bool tiers_save_payload(struct engine *e, const struct page_label *label,
                               const void *payload)
{
    void *buffer;

    if (store_has(e->tiers.store, &label->name))
        return true;
    if ((buffer = store_buffer(e->tiers.store)) == NULL)
        return false;
    memcpy(buffer, payload, e->shape->page_bytes);
    store_save(e->tiers.store, buffer, label);
    stats_add(&e->stats, METRIC_store_writes, 1);
    return true;
}

/* Copy one page of the device into a staging buffer of the store. False when it has no buffer. */
static bool tiers_save_to_store(struct engine *e, int32_t page, const struct page_label *label)
{
    void *buffer;

    if (store_has(e->tiers.store, &label->name))
        return true;
    if ((buffer = store_buffer(e->tiers.store)) == NULL)
        return false;
    if (model_page_read(e->model, page, buffer) != ERR_OK) {
        store_release(e->tiers.store, buffer);
        return true; /* the device is failing; the next step reports it */
    }
    store_save(e->tiers.store, buffer, label);
    stats_add(&e->stats, METRIC_store_writes, 1);
    return true;
}

/* Start a copy into a slot of the host tier. The page evicted from there is written to disk if it
 * was used. is_held: the page keeps a reference until the copy is done; else it was evicted, and
 * its reader must wait for the copy. False when there is no slot. */
static bool tiers_save_to_host(struct engine *e, int32_t page, const struct page_label *label,
                               bool is_held)
{
    struct host_victim victim;
    int32_t slot;

    if (host_find(e->tiers.host, &label->name, label->tokens) >= 0)
        return true;
    if (e->tiers.saves_tail - e->tiers.saves_head == TIERS_SAVES)
        return false;
    slot = host_take(e->tiers.host, label, &victim);
    if (victim.n_uses > 0 && e->tiers.store != NULL &&
        !tiers_save_payload(e, &victim.label, victim.payload))
        stats_add(&e->stats, METRIC_store_skips, 1);
    if (slot < 0)
        return false;
    host_fill(e->tiers.host, slot, label);
    if (model_page_out(e->model, page, host_payload(e->tiers.host, slot)) != ERR_OK) {
        host_filled(e->tiers.host, slot, false);
        return true; /* the device is failing; the next step reports it */
    }
    if (is_held)
        pages_ref(e->pages, page);
    e->tiers.saves[e->tiers.saves_tail++ % TIERS_SAVES] = (struct tiers_save){
        .page = is_held ? page : -1, .slot = slot, .name = label->name, .space = label->space};
    return true;
}

static void tiers_mark_saves(struct engine *e)
{
    uint64_t mark = 0;

    if (e->tiers.saves_head == e->tiers.saves_tail ||
        e->tiers.saves[(e->tiers.saves_tail - 1) % TIERS_SAVES].marked ||
        !tiers_mark(e, MODEL_OUT, &mark))
        return;
    for (uint32_t i = e->tiers.saves_head; i != e->tiers.saves_tail; i++) {
        struct tiers_save *save = &e->tiers.saves[i % TIERS_SAVES];

        if (save->marked)
            continue;
        save->marked = true;
        save->mark = mark;
    }
}

/* One way down: host memory if there is a host tier, else the disk. */
static bool tiers_save(struct engine *e, int32_t page, const struct page_label *label, bool is_held)
{
    if (tiers_drops(&e->tiers, label->space))
        return true; /* it is being dropped */
    if (e->tiers.host != NULL)
        return tiers_save_to_host(e, page, label, is_held);
    return tiers_save_to_store(e, page, label);
}

/* The device must not overwrite evicted pages before they are copied: the fence makes the next step
 * wait for the copies on the device, not the host. */
void tiers_save_evicted(struct engine *e)
{
    uint32_t before = e->tiers.saves_tail;

    for (int i = 0; i < e->sched.tables.n_evictions; i++) {
        const struct tables_eviction *eviction = &e->sched.tables.evictions[i];

        if (e->tiers.host == NULL && e->tiers.store == NULL)
            continue;
        if (!tiers_save(e, eviction->page, &eviction->label, false))
            stats_add(&e->stats, METRIC_store_skips, 1);
    }
    e->sched.tables.n_evictions = 0;
    if (e->tiers.saves_tail == before)
        return;
    tiers_mark_saves(e);
    (void)!model_copy_fence(e->model); /* a failing device reports it at the next step */
}

/* A callback of sched_advance(): called for every page that gets its name. */
void tiers_note_named(void *engine, int32_t page)
{
    struct engine *e = engine;
    struct page_label label;

    held_note(e, page);
    if ((e->tiers.store == NULL && e->tiers.host == NULL) || !pages_label(e->pages, page, &label))
        return;
    if (e->tiers.dirty_tail - e->tiers.dirty_head == e->tiers.dirty_cap)
        e->tiers.dirty_head++; /* the oldest one is saved when it is evicted instead */
    e->tiers.dirty[e->tiers.dirty_tail++ % e->tiers.dirty_cap] =
        (struct tiers_dirty){.page = page, .name = label.name};
}

/* Pages to save, and pages being saved. */
static uint32_t tiers_n_unsaved(const struct engine *e)
{
    return e->tiers.dirty_tail - e->tiers.dirty_head + (e->tiers.saves_tail - e->tiers.saves_head);
}

/* A number that changes whenever a page was saved or a load has ended. Nothing may begin meanwhile
 * that would undo the change. */
static uint32_t tiers_progress(const struct engine *e)
{
    return e->tiers.dirty_head + e->tiers.saves_head + e->tiers.hot_head -
           (uint32_t)e->tiers.n_loads_used;
}

static void tiers_note_progress(struct engine *e, uint64_t now_us)
{
    e->tiers.progress = tiers_progress(e);
    e->tiers.moved_us = now_us;
}

/* Has nothing been saved for so long that nothing ever will be? */
static bool tiers_have_stopped(struct engine *e, uint64_t now_us)
{
    if (tiers_progress(e) != e->tiers.progress)
        tiers_note_progress(e, now_us);
    return now_us - e->tiers.moved_us > TIERS_STUCK_US;
}

static void tiers_log_stuck(const struct engine *e)
{
    log_error("engine: the device fails, or has ended no copy for %d s: %u pages are not saved",
              TIERS_STUCK_US / 1000000, tiers_n_unsaved(e));
}

/* The device loses its content in a sleep, so all pages that exist only there become dirty,
 * whatever happened to their entries before. */
void tiers_gather(struct engine *e)
{
    e->tiers.dirty_head = e->tiers.dirty_tail; /* the loop below finds them again */
    for (int32_t i = 0; i < pages_count(e->pages); i++) {
        if (!pages_stored(e->pages, i))
            tiers_note_named(e, i);
    }
    tiers_note_progress(e, e->now_us);
}

bool tiers_are_stuck(struct engine *e)
{
    tiers_poll(e); /* this process may have been stopped itself */
    if (e->tiers.saves_head == e->tiers.saves_tail || !tiers_have_stopped(e, e->now_us))
        return false;
    tiers_log_stuck(e);
    return true;
}

void tiers_give_up(struct engine *e)
{
    if (e->tiers.dirty_head != e->tiers.dirty_tail)
        log_warn("engine: %u pages are not saved: host memory is full, or the disk is too slow",
                 e->tiers.dirty_tail - e->tiers.dirty_head);
    e->tiers.dirty_head = e->tiers.dirty_tail;
    e->tiers.hot_head = e->tiers.hot_tail; /* they stay in host memory */
}

/* Save the page of the oldest dirty entry. False when there is no room; the entry stays. */
static bool tiers_write_one(struct engine *e)
{
    const struct tiers_dirty *dirty = &e->tiers.dirty[e->tiers.dirty_head % e->tiers.dirty_cap];
    struct page_label label;

    if (pages_label(e->pages, dirty->page, &label) &&
        memcmp(&label.name, &dirty->name, sizeof dirty->name) == 0 &&
        !pages_stored(e->pages, dirty->page)) {
        if (!tiers_save(e, dirty->page, &label, true))
            return false;
        pages_set_stored(e->pages, dirty->page);
    }
    e->tiers.dirty_head++;
    return true;
}

/* Write a page that was used again in host memory to disk. False when the store has no buffer. */
static bool tiers_write_hot(struct engine *e)
{
    const struct tiers_hot *hot = &e->tiers.hot[e->tiers.hot_head % TIERS_HOT];
    struct page_label label;

    if (host_label(e->tiers.host, hot->slot, &hot->name, &label) &&
        !store_has(e->tiers.store, &label.name)) {
        if (!store_save_from(e->tiers.store, host_payload(e->tiers.host, hot->slot), &label,
                             (uint64_t)hot->slot))
            return false;
        host_hold(e->tiers.host, hot->slot);
        stats_add(&e->stats, METRIC_store_writes, 1);
    }
    e->tiers.hot_head++;
    return true;
}

/* Once per pass, after the step has begun: a bounded number of copies, so that no pass is long. */
void tiers_write_behind(struct engine *e, int pages_max)
{
    bool is_long = e->sched.n_planned_tokens >= TIERS_LONG_STEP;
    int n_out = 0;

    if (e->tiers.host == NULL && e->tiers.store != NULL)
        n_out = pages_max;
    if (e->tiers.host != NULL) {
        host_be_gentle(e->tiers.host, e->sched.n_running + sched_n_waiting(&e->sched) > 0);
        n_out = is_long ? TIERS_OUT_LONG : TIERS_OUT;
    }
    for (int i = 0; i < n_out && e->tiers.dirty_head != e->tiers.dirty_tail; i++) {
        if (!tiers_write_one(e))
            break;
    }
    if (e->tiers.host == NULL)
        return;
    tiers_mark_saves(e);
    for (int i = 0; i < pages_max && e->tiers.hot_head != e->tiers.hot_tail; i++) {
        if (!tiers_write_hot(e))
            return;
    }
}

/* --- the end of the engine -------------------------------------------------------------------- */

/* Start and finish as much as possible. False when nothing is left to do. */
static bool tiers_save_some(struct engine *e)
{
    bool has_room = true, has_buffer = true, no_more;

    while (e->tiers.dirty_head != e->tiers.dirty_tail && has_room)
        has_room = tiers_write_one(e);
    /* The host tier outlives the engine but not the machine: pages used again go to disk. */
    while (e->tiers.store != NULL && e->tiers.hot_head != e->tiers.hot_tail && has_buffer &&
           (tiers_n_unsaved(e) == 0 || !has_room))
        has_buffer = tiers_write_hot(e);
    tiers_mark_saves(e);
    tiers_mark_loads(e);
    if (e->tiers.store != NULL &&
        (e->tiers.host == NULL || !has_buffer || e->tiers.n_loads_used > 0))
        store_flush(e->tiers.store); /* then only the device is waited for, and buffers are free */
    tiers_poll(e);
    /* The host tier is full and nothing can be evicted: the rest is computed again when needed. */
    no_more = e->tiers.host != NULL && !has_room && e->tiers.saves_head == e->tiers.saves_tail;
    return (tiers_n_unsaved(e) > 0 && !no_more) || e->tiers.n_loads_used > 0 ||
           (e->tiers.store != NULL && e->tiers.hot_head != e->tiers.hot_tail);
}

int tiers_save_all(struct engine *e)
{
    uint32_t n = tiers_n_unsaved(e);
    const char *to = e->tiers.host != NULL ? e->settings.kv_host_file : e->settings.kv_store_dir;

    if (e->tiers.host == NULL && e->tiers.store == NULL)
        return ERR_OK;
    tiers_note_progress(e, clock_us());
    while (!e->tiers.device_failed && tiers_save_some(e)) {
        uint64_t now_us = clock_us();

        e->tiers.device_failed = tiers_have_stopped(e, now_us);
        if (e->tiers.moved_us != now_us)
            clock_sleep_us(TIERS_LOOK_US);
    }
    if (e->tiers.store != NULL) { /* pages in its buffers need no device */
        store_flush(e->tiers.store);
        tiers_poll_store(e);
    }
    log_info("engine: %u pages saved to %s", n - tiers_n_unsaved(e), to);
    if (!e->tiers.device_failed)
        return ERR_OK;
    tiers_log_stuck(e);
    return ERR_GPU;
}
