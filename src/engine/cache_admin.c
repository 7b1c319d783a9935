/* SPDX-License-Identifier: Apache-2.0
 *
 * Cache administration; cache_admin.h describes it. Namespaces are counted in a small table with an
 * index by open addressing; when it is full, the least recently used namespace is merged into the
 * first entry. Answers to commands are sequences of WIRE_FACT records that fit into a slot's
 * ring. */
#include "engine/cache_admin.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "ipc/prefix.h"

#define CACHE_ADMIN_PART     16384    /* pages scanned per pass: a millisecond */
#define CACHE_ADMIN_DROP     7        /* a dropped page counts as this many more */
#define CACHE_ADMIN_WAIT_US  2000000  /* for the disk; then a drop is answered anyway */
#define CACHE_ADMIN_MORE_S   60       /* added to the retention in lower tiers */
#define CACHE_ADMIN_RATES_US 10000000 /* between two writes of hit rates to the store */
#define CACHE_ADMIN_ROWS     40       /* namespaces in a list; the rest is one row */

/* --- namespaces --------------------------------------------------------------------------- */

/* The index entry of a namespace, or the free one where it would be. Ends, because the index is at
 * most a quarter full. */
static uint32_t cache_admin_probe(const struct cache_admin *admin, uint64_t space)
{
    uint32_t i = (uint32_t)(space % CACHE_ADMIN_INDEX);

    while (admin->index[i] != 0 && admin->spaces[admin->index[i] - 1].space != space)
        i = (i + 1) % CACHE_ADMIN_INDEX;
    return i;
}

/* The namespace's entry, or the first one, which counts all others. */
static struct cache_admin_space *cache_admin_find(struct cache_admin *admin, uint64_t space)
{
    int16_t at = admin->index[cache_admin_probe(admin, space)];

    return &admin->spaces[at == 0 ? 0 : at - 1];
}

/* A free entry, or the least recently used one. */
static int cache_admin_place(struct cache_admin *admin)
{
    int oldest = 1;

    if (admin->n_spaces < CACHE_ADMIN_SPACES)
        return admin->n_spaces++;
    for (int i = 2; i < CACHE_ADMIN_SPACES; i++) {
        if (admin->spaces[i].used < admin->spaces[oldest].used)
            oldest = i;
    }
    return oldest;
}

/* Find or add a namespace. The entry that it replaces is merged into the first one, and the index
 * is rebuilt: rare, and simpler than deletion from a hash table. */
static struct cache_admin_space *cache_admin_add(struct cache_admin *admin, uint64_t space)
{
    struct cache_admin_space *of = cache_admin_find(admin, space);
    int at;

    if (of != &admin->spaces[0] || space == 0)
        return of;
    at = cache_admin_place(admin);
    admin->spaces[0].queries += admin->spaces[at].queries;
    admin->spaces[0].hits += admin->spaces[at].hits;
    admin->spaces[at] = (struct cache_admin_space){.space = space};
    memset(admin->index, 0, sizeof admin->index);
    for (int i = 1; i < admin->n_spaces; i++)
        admin->index[cache_admin_probe(admin, admin->spaces[i].space)] = (int16_t)(i + 1);
    return &admin->spaces[at];
}

/* Continue the counts of earlier engines that used this store. */
static void cache_admin_load_rates(struct engine *e)
{
    struct store_rate rates[STORE_RATES_MAX];
    int n = store_rates(e->tiers.store, rates);

    for (int i = 0; i < n; i++) {
        struct cache_admin_space *space = cache_admin_add(&e->cache_admin, rates[i].space);

        space->queries += rates[i].queries;
        space->hits += rates[i].hits;
        space->used = rates[i].used;
        if (rates[i].used > e->cache_admin.n_used)
            e->cache_admin.n_used = rates[i].used;
    }
    e->cache_admin.n_kept_used = e->cache_admin.n_used;
}

/* Nothing is written while no namespace was used since the last time. */
void cache_admin_save_rates(struct engine *e)
{
    struct store_rate rates[STORE_RATES_MAX];
    struct cache_admin *admin = &e->cache_admin;

    _Static_assert(CACHE_ADMIN_SPACES <= STORE_RATES_MAX, "each has a row");
    if (e->tiers.store == NULL || admin->n_used == admin->n_kept_used)
        return;
    for (int i = 0; i < admin->n_spaces; i++) {
        const struct cache_admin_space *space = &admin->spaces[i];

        rates[i] = (struct store_rate){.space = space->space,
                                       .used = space->used,
                                       .queries = space->queries,
                                       .hits = space->hits};
    }
    store_set_rates(e->tiers.store, rates, admin->n_spaces);
    admin->n_kept_used = admin->n_used;
    admin->kept_us = e->now_us;
}

/* Copy the counts to the statistics page. */
static void cache_admin_show_rates(struct engine *e)
{
    for (int i = 0; i < e->cache_admin.n_spaces; i++) {
        const struct cache_admin_space *from = &e->cache_admin.spaces[i];
        struct wire_space *to = &e->stats.page->spaces[i];

        atomic_store_explicit(&to->space, from->space, memory_order_relaxed);
        atomic_store_explicit(&to->queries, from->queries, memory_order_relaxed);
        atomic_store_explicit(&to->hits, from->hits, memory_order_relaxed);
    }
}

/* The shared namespace is that of the zero salt; lists mark it. */
int cache_admin_init(struct engine *e)
{
    static const uint8_t none[WIRE_SALT_BYTES];
    struct cache_admin *admin = &e->cache_admin;
    struct hash root = prefix_root(&e->shape->fingerprint, none);

    admin->shared = prefix_space(&root);
    admin->n_spaces = 1;
    admin->tokens = mem_zalloc_array((size_t)e->shape->max_model_len, sizeof *admin->tokens);
    if (e->tiers.store != NULL)
        cache_admin_load_rates(e);
    if (admin->tokens == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* --- retention by requests -------------------------------------------------------------------- */

/* Has the last cached page this retention already in the lower tier? Then all pages before it have
 * it too, because the turns of a conversation repeat their retention. */
static bool cache_admin_said_below(const struct engine *e, const struct seq *seq)
{
    if (seq->n_cached > seq->retain_tokens || seq->n_named != seq->n_cached / e->shape->page_tokens)
        return false; /* chain names another page */
    if (e->tiers.host != NULL)
        return host_retains(e->tiers.host, &seq->chain, seq->retain);
    if (e->tiers.store != NULL)
        return store_retains(e->tiers.store, &seq->chain, seq->retain);
    return true;
}

/* The store keeps the retention in its record, the host tier in its slot; a page of host memory
 * alone is queued for the disk as well. */
static void cache_admin_retain_one(struct engine *e, const struct hash *name, const int32_t *tokens,
                                   struct retain r)
{
    int32_t slot;

    if (e->tiers.store != NULL)
        store_retain(e->tiers.store, name, r);
    if (e->tiers.host == NULL)
        return;
    host_retain(e->tiers.host, name, r);
    slot = host_find(e->tiers.host, name, tokens);
    if (slot >= 0) /* retained pages should survive a restart of the machine */
        tiers_want_stored(e, slot, name);
}

/* The lower tiers may hold pages that the device had already. They get a slightly longer retention
 * than requested, so that the next turn of a conversation need not repeat it at once. */
static void cache_admin_retain_below(struct engine *e, const struct seq *seq)
{
    int block = e->shape->page_tokens;
    struct retain retain = seq->retain;
    struct hash name = seq->root;

    if (cache_admin_said_below(e, seq))
        return;
    if (retain.until != 0 && retain.until <= UINT32_MAX - CACHE_ADMIN_MORE_S)
        retain.until += CACHE_ADMIN_MORE_S;

    for (int n = block; n <= seq->n_cached && n <= seq->retain_tokens; n += block) {
        const int32_t *tokens = seq->tokens + (n - block);
        struct tables_name names[TABLES_NAMES_MAX];
        struct hash before = name;
        int n_names;

        name = prefix_name(&before, tokens, block);
        n_names = tables_names(&e->sched.tables, n / block - 1, 0, &name, &before, names);
        for (int part = 0; part < n_names; part++)
            cache_admin_retain_one(e, &names[part].name, tokens, retain);
    }
}

/* Probes are no traffic, and would spoil the hit rate of the shared namespace. */
void cache_admin_note_admitted(struct engine *e, const struct seq *seq)
{
    struct cache_admin *admin = &e->cache_admin;
    struct cache_admin_space *space;

    if (seq->retain.rank > 0)
        cache_admin_retain_below(e, seq);
    if ((seq->request.flags & WIRE_PROBE) != 0)
        return;
    space = cache_admin_add(admin, prefix_space(&seq->root));
    space->used = ++admin->n_used;
    space->queries += (uint64_t)seq->n_prompt;
    space->hits += (uint64_t)seq->n_cached;
}

/* Count the tokens of full pages whose priority is at least the requested one, up to the first page
 * that is gone or has less. */
void cache_admin_tell(struct engine *e, const struct seq *seq)
{
    int block = e->shape->page_tokens;
    struct hash name = seq->root;
    struct page_label label;
    int n = 0;

    while (n + block <= seq->retain_tokens) {
        int32_t page;

        name = prefix_name(&name, seq->tokens + n, block);
        page = pages_look(e->pages, &name);
        if (page == -1 || !pages_label(e->pages, page, &label) ||
            label.retain.rank < seq->retain.rank)
            break;
        n += block;
    }
    lane_put(&e->lanes[seq->lane_idx].lane, seq->slot,
             (struct wire_out){.kind = WIRE_FACT, .value = WIRE_FACT_HELD, .amount = (uint64_t)n});
}

/* --- commands of operators -------------------------------------------------------------------- */

/* Drop a page from all tiers. Returns in how many tiers it was. */
static uint64_t cache_admin_drop_page(struct engine *e, const struct hash *name)
{
    int32_t page = pages_look(e->pages, name);
    uint64_t n = page != -1;

    if (page != -1)
        pages_drop(e->pages, page);
    pages_drop_parts(e->pages, name);
    n += e->tiers.host != NULL && host_drop(e->tiers.host, name);
    n += e->tiers.store != NULL && store_drop(e->tiers.store, name);
    return n;
}

/* Drop the partly filled pages after the prefix `name`, in all groups. */
static void cache_admin_drop_parts(struct engine *e, const struct hash *name)
{
    for (int group = 0; group < e->shape->n_groups; group++) {
        struct hash parent = tables_parent(&e->sched.tables, group, name);

        pages_drop_parts(e->pages, &parent);
    }
}

/* Drop the pages of one prompt: they are found by their names, so no scan is needed. */
static uint64_t cache_admin_drop_prompt(struct engine *e, const struct wire_request *request)
{
    int block = e->shape->page_tokens;
    struct hash name = lora_root(e, request);
    struct tables_name names[TABLES_NAMES_MAX];
    uint64_t dropped = 0;

    cache_admin_drop_parts(e, &name);
    for (uint32_t n = 0; n + (uint32_t)block <= request->n_tokens; n += (uint32_t)block) {
        struct hash before = name;
        int n_names;

        name = prefix_name(&before, e->cache_admin.tokens + n, block);
        n_names = tables_names(&e->sched.tables, (int)n / block, 0, &name, &before, names);
        for (int part = 0; part < n_names; part++) {
            tiers_drop(e, &names[part].name, 0);
            dropped += cache_admin_drop_page(e, &names[part].name);
        }
        cache_admin_drop_parts(e, &name);
    }
    return dropped;
}

/* Count a retained page with others of equal namespace and retention. */
static void cache_admin_count_hint(struct cache_admin *admin, enum wire_tier at,
                                   const struct page_label *label)
{
    int i = 0;

    while (i < admin->n_hints && (admin->hints[i].space != label->space ||
                                  admin->hints[i].retain.rank != label->retain.rank ||
                                  admin->hints[i].retain.until != label->retain.until))
        i++;
    if (i == CACHE_ADMIN_HINTS) {
        i = CACHE_ADMIN_HINTS - 1;
        admin->hints[i].space = 0; /* counts several kinds from now on */
        admin->hints[i].retain = (struct retain){0};
    } else if (i == admin->n_hints) {
        admin->hints[admin->n_hints++] =
            (struct cache_admin_hint){.space = label->space, .retain = label->retain};
    }
    admin->hints[i].pages[at]++;
}

/* Count a page in a list. The namespaces of old pages may be unknown; they get an entry while there
 * is room. */
static void cache_admin_count(struct cache_admin *admin, enum wire_tier at,
                              const struct page_label *label)
{
    struct cache_admin_space *space = cache_admin_find(admin, label->space);

    if (space == &admin->spaces[0] && admin->n_spaces < CACHE_ADMIN_SPACES && label->space != 0)
        space = cache_admin_add(admin, label->space);
    space->pages[at]++;
    if (label->retain.rank <= 0)
        return;
    space->n_kept++;
    cache_admin_count_hint(admin, at, label);
}

/* The number of pages or slots of a tier; the next function reads one of them. */
static int32_t cache_admin_slots(const struct engine *e, enum wire_tier at)
{
    struct store_counters counters;

    switch (at) {
    case WIRE_DEVICE: return pages_count(e->pages);
    case WIRE_HOST: return e->tiers.host == NULL ? 0 : host_n_slots(e->tiers.host);
    case WIRE_STORE:
        if (e->tiers.store == NULL)
            return 0;
        store_read_counters(e->tiers.store, &counters);
        return (int32_t)counters.slots;
    }
    return 0;
}

/* Describe the page in one place of a tier; false when it is empty. */
static bool cache_admin_look(const struct engine *e, enum wire_tier at, int32_t i,
                             struct page_label *label)
{
    switch (at) {
    case WIRE_DEVICE: return pages_label(e->pages, i, label);
    case WIRE_HOST: return host_read_slot(e->tiers.host, i, label);
    case WIRE_STORE: return store_look(e->tiers.store, (uint32_t)i, label);
    }
    return false;
}

/* Apply a command to a page that the scan has found. */
static void cache_admin_visit(struct engine *e, struct cache_admin_ask *ask,
                              const struct page_label *label)
{
    struct hash name = label->name; /* the label may be part of the page that is dropped */

    switch (ask->action) {
    case WIRE_LIST: cache_admin_count(&e->cache_admin, ask->at, label); return;
    case WIRE_DROP_SPACE: /* a page of namespace 0 is from an older store, and may belong to any */
        if (label->space == ask->space || label->space == 0)
            ask->dropped += cache_admin_drop_page(e, &name);
        return;
    case WIRE_DROP_ALL: ask->dropped += cache_admin_drop_page(e, &name); return;
    case WIRE_DROP_PROMPT: return; /* was done when it was asked for */
    }
}

/* Partly filled pages exist on the device only, and lists do not count them. */
static void cache_admin_visit_part(struct engine *e, const struct cache_admin_ask *ask,
                                   int32_t page)
{
    uint64_t space;

    if (ask->action != WIRE_LIST && pages_is_part(e->pages, page, &space) &&
        (ask->action == WIRE_DROP_ALL || space == ask->space))
        pages_drop(e->pages, page);
}

/* Scan some more pages. True when all tiers were scanned. */
static bool cache_admin_scan(struct engine *e, struct cache_admin_ask *ask)
{
    struct page_label label;

    for (int left = CACHE_ADMIN_PART; left > 0 && !ask->scanned; left--) {
        if (ask->next >= cache_admin_slots(e, ask->at)) {
            ask->scanned = ask->at == WIRE_STORE;
            if (!ask->scanned)
                ask->at = (enum wire_tier)(ask->at + 1);
            ask->next = 0;
        } else if (cache_admin_look(e, ask->at, ask->next++, &label)) {
            cache_admin_visit(e, ask, &label);
            if (ask->action != WIRE_LIST)
                left -= CACHE_ADMIN_DROP;
        } else if (ask->at == WIRE_DEVICE) {
            cache_admin_visit_part(e, ask, ask->next - 1);
        }
    }
    e->tiers.drops = e->tiers.drops && !ask->scanned;
    return ask->scanned;
}

/* Start the first command of the queue. While a drop runs, pages of its namespace that arrive in a
 * tier are not kept (tiers_drops()), or they would appear after the scan has passed. */
static void cache_admin_begin(struct engine *e, struct cache_admin_ask *ask)
{
    struct cache_admin *admin = &e->cache_admin;

    ask->until_us = e->now_us + CACHE_ADMIN_WAIT_US;
    if (ask->action == WIRE_DROP_PROMPT) {
        ask->scanned = true; /* its pages were dropped when it was asked for */
        return;
    }
    if (ask->action != WIRE_LIST) {
        e->tiers.drops = true;
        e->tiers.drops_space = ask->action == WIRE_DROP_SPACE ? ask->space : 0;
        tiers_drop(e, NULL, e->tiers.drops_space);
        return;
    }
    admin->n_hints = 0;
    for (int i = 0; i < admin->n_spaces; i++) {
        memset(admin->spaces[i].pages, 0, sizeof admin->spaces[i].pages);
        admin->spaces[i].n_kept = 0;
    }
}

/* A drop of one prompt is done at once, because its pages are found by name; all other commands
 * wait for their turn to scan. */
int cache_admin_ask(struct engine *e, struct engine_lane *lane, uint32_t slot,
                    const struct wire_request *request)
{
    struct cache_admin *admin = &e->cache_admin;
    struct hash root = lora_root(e, request);
    struct cache_admin_ask *ask = &admin->asks[admin->n_asks];
    int rc = ERR_OK;

    if (e->draining)
        return ERR_DRAINING;
    if (request->cache.action > WIRE_DROP_ALL ||
        request->n_tokens >= (uint32_t)e->shape->max_model_len)
        return ERR_INVALID;
    if (admin->n_asks == CACHE_ADMIN_ASKS)
        return ERR_OVERLOADED;
    *ask = (struct cache_admin_ask){.lane_idx = (int)(lane - e->lanes),
                                    .slot = slot,
                                    .action = (enum wire_cache_action)request->cache.action,
                                    .space = request->cache.space != 0 ? request->cache.space
                                                                       : prefix_space(&root)};
    for (int i = 0; i < admin->n_asks; i++) {
        if (admin->asks[i].lane_idx == ask->lane_idx && admin->asks[i].slot == slot)
            return ERR_INVALID; /* a slot has one command at a time */
    }
    if (ask->action == WIRE_DROP_PROMPT) {
        rc = lane_tokens(&lane->lane, request, e->shape->n_words, admin->tokens);
        if (rc == ERR_OK)
            ask->dropped = cache_admin_drop_prompt(e, request);
    }
    if (rc == ERR_OK && admin->n_asks++ == 0)
        cache_admin_begin(e, ask);
    return rc;
}

/* Remove a command from the queue; the others keep their order. */
static void cache_admin_end_ask(struct cache_admin *admin, int i)
{
    admin->n_asks--;
    memmove(&admin->asks[i], &admin->asks[i + 1],
            sizeof admin->asks[0] * (size_t)(admin->n_asks - i));
}

/* A front has gone: its waiting commands are removed, but the one in progress is completed, because
 * half of a drop would be of no use. */
void cache_admin_forget_lane(struct engine *e, const struct engine_lane *lane)
{
    struct cache_admin *admin = &e->cache_admin;

    for (int i = admin->n_asks - 1; i > 0; i--) {
        if (admin->asks[i].lane_idx == lane - e->lanes)
            cache_admin_end_ask(admin, i);
    }
    if (admin->n_asks > 0 && admin->asks[0].lane_idx == lane - e->lanes)
        admin->asks[0].lane_idx = -1; /* a command in progress is completed without an answer */
}

/* --- answers -------------------------------------------------------------------------------- */

/* One record of an answer; wire_lane.h defines the facts and their order. */
static void cache_admin_fact(struct engine *e, const struct cache_admin_ask *ask,
                             enum wire_fact fact, uint64_t amount)
{
    lane_put(&e->lanes[ask->lane_idx].lane, ask->slot,
             (struct wire_out){.kind = WIRE_FACT, .value = (int32_t)fact, .amount = amount});
}

/* One row of a list per tier: room, pages, retained pages and their limit. */
static void cache_admin_tell_tier(struct engine *e, const struct cache_admin_ask *ask,
                                  enum wire_tier at)
{
    struct host_counters host = {0};
    struct store_counters store = {0};
    uint64_t slots = (uint64_t)cache_admin_slots(e, at), pages = 0, kept = 0;

    if (e->tiers.host != NULL)
        host_read_counters(e->tiers.host, &host);
    if (e->tiers.store != NULL)
        store_read_counters(e->tiers.store, &store);
    switch (at) {
    case WIRE_DEVICE:
        pages = (uint64_t)pages_named(e->pages);
        kept = (uint64_t)pages_kept(e->pages);
        break;
    case WIRE_HOST:
        pages = host.pages;
        kept = host.kept;
        break;
    case WIRE_STORE:
        pages = store.entries;
        kept = store.kept;
        break;
    }
    cache_admin_fact(e, ask, WIRE_FACT_TIER, at);
    cache_admin_fact(e, ask, WIRE_FACT_SLOTS, slots);
    cache_admin_fact(e, ask, WIRE_FACT_PAGES, pages);
    cache_admin_fact(e, ask, WIRE_FACT_KEPT, kept);
    cache_admin_fact(e, ask, WIRE_FACT_KEPT_MAX,
                     slots * (uint64_t)e->settings.kv_retained_pct / 100);
}

/* The weight decides which namespaces have rows of their own. */
static uint64_t cache_admin_weight(const struct cache_admin_space *space)
{
    return space->queries + space->pages[WIRE_DEVICE] + space->pages[WIRE_HOST] +
           space->pages[WIRE_STORE];
}

/* A row of a list per namespace. Namespaces without any use or page are left out. */
static void cache_admin_tell_space(struct engine *e, const struct cache_admin_ask *ask,
                                   const struct cache_admin_space *space)
{
    if (cache_admin_weight(space) == 0)
        return;
    cache_admin_fact(e, ask, WIRE_FACT_SPACE, space->space);
    if (space->space == e->cache_admin.shared)
        cache_admin_fact(e, ask, WIRE_FACT_SHARED, 1);
    cache_admin_fact(e, ask, WIRE_FACT_DEVICE, space->pages[WIRE_DEVICE]);
    cache_admin_fact(e, ask, WIRE_FACT_HOST, space->pages[WIRE_HOST]);
    cache_admin_fact(e, ask, WIRE_FACT_STORE, space->pages[WIRE_STORE]);
    cache_admin_fact(e, ask, WIRE_FACT_KEPT_PAGES, space->n_kept);
    cache_admin_fact(e, ask, WIRE_FACT_QUERIES, space->queries);
    cache_admin_fact(e, ask, WIRE_FACT_HITS, space->hits);
}

/* The largest namespaces, one by one, and all others as one row. */
static void cache_admin_tell_spaces(struct engine *e, const struct cache_admin_ask *ask)
{
    const struct cache_admin *admin = &e->cache_admin;
    struct cache_admin_space rest = admin->spaces[0];
    bool told[CACHE_ADMIN_SPACES] = {[0] = true};

    for (int row = 0; row < CACHE_ADMIN_ROWS; row++) {
        int best = 0;

        for (int i = 1; i < admin->n_spaces; i++) {
            if (!told[i] && (best == 0 || cache_admin_weight(&admin->spaces[i]) >
                                              cache_admin_weight(&admin->spaces[best])))
                best = i;
        }
        if (best == 0)
            break;
        told[best] = true;
        cache_admin_tell_space(e, ask, &admin->spaces[best]);
    }
    for (int i = 1; i < admin->n_spaces; i++) {
        if (told[i])
            continue;
        rest.queries += admin->spaces[i].queries;
        rest.hits += admin->spaces[i].hits;
        rest.n_kept += admin->spaces[i].n_kept;
        for (int tier = 0; tier < WIRE_TIERS; tier++)
            rest.pages[tier] += admin->spaces[i].pages[tier];
    }
    cache_admin_tell_space(e, ask, &rest);
}

/* One row per kind of retention that the scan has found. */
static void cache_admin_tell_hints(struct engine *e, const struct cache_admin_ask *ask)
{
    for (int i = 0; i < e->cache_admin.n_hints; i++) {
        const struct cache_admin_hint *hint = &e->cache_admin.hints[i];

        cache_admin_fact(e, ask, WIRE_FACT_HINT, hint->space);
        if (hint->retain.rank > 0) { /* else: pages of several kinds */
            cache_admin_fact(e, ask, WIRE_FACT_PRIORITY, (uint64_t)retain_priority(hint->retain));
            cache_admin_fact(e, ask, WIRE_FACT_UNTIL, hint->retain.until);
        }
        cache_admin_fact(e, ask, WIRE_FACT_DEVICE, hint->pages[WIRE_DEVICE]);
        cache_admin_fact(e, ask, WIRE_FACT_HOST, hint->pages[WIRE_HOST]);
        cache_admin_fact(e, ask, WIRE_FACT_STORE, hint->pages[WIRE_STORE]);
    }
}

#define CACHE_ADMIN_FACTS_MAX \
    (WIRE_TIERS * 5 + (CACHE_ADMIN_ROWS + 1) * 8 + CACHE_ADMIN_HINTS * 6 + 1)
_Static_assert(CACHE_ADMIN_FACTS_MAX < WIRE_OUT_CAP, "a list fits a slot's ring");

/* The last record ends the slot. The room for a whole list was checked by a static assertion, so no
 * record has to wait. */
static void cache_admin_answer(struct engine *e, const struct cache_admin_ask *ask)
{
    struct lane *lane;

    if (ask->action != WIRE_LIST) {
        log_info("engine: %llu pages of the cache were dropped", (unsigned long long)ask->dropped);
        stats_add(&e->stats, METRIC_dropped, ask->dropped);
    }
    if (ask->lane_idx < 0)
        return;
    lane = &e->lanes[ask->lane_idx].lane;
    if (lane_room(lane, ask->slot) <= CACHE_ADMIN_FACTS_MAX)
        /* The ring was empty when the front sent the command, so the front broke the protocol. */
        return;
    if (ask->action == WIRE_LIST) {
        for (int tier = 0; tier < WIRE_TIERS; tier++)
            cache_admin_tell_tier(e, ask, (enum wire_tier)tier);
        cache_admin_tell_spaces(e, ask);
        cache_admin_tell_hints(e, ask);
    } else {
        cache_admin_fact(e, ask, WIRE_FACT_DROPPED, ask->dropped);
    }
    lane_put(
        lane, ask->slot,
        (struct wire_out){.kind = WIRE_FINISHED, .finish = WIRE_FIN_STOP, .time_us = e->now_us});
}

bool cache_admin_has_work(const struct engine *e)
{
    return e->cache_admin.n_asks > 0;
}

/* Once per pass; the first part runs once per second. */
void cache_admin_pass(struct engine *e)
{
    struct cache_admin *admin = &e->cache_admin;
    uint32_t now_s = clock_stamp_s();
    bool waits;

    if (now_s != admin->ticked_s) {
        admin->ticked_s = now_s;
        pages_tick(e->pages, now_s);
        if (e->tiers.host != NULL)
            host_tick(e->tiers.host, now_s);
        cache_admin_show_rates(e);
        if (e->now_us - admin->kept_us > CACHE_ADMIN_RATES_US)
            cache_admin_save_rates(e);
    }
    if (admin->n_asks == 0 || !cache_admin_scan(e, &admin->asks[0]))
        return;
    waits = admin->asks[0].action != WIRE_LIST && e->tiers.store != NULL &&
            !store_is_quiet(e->tiers.store);
    if (waits && e->now_us < admin->asks[0].until_us)
        return;
    cache_admin_answer(e, &admin->asks[0]);
    cache_admin_end_ask(admin, 0);
    if (admin->n_asks > 0)
        cache_admin_begin(e, &admin->asks[0]);
}
