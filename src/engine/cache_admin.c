/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/cache_admin.h"

#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "kv/prefix.h"

#define CACHE_ADMIN_PART     16384    /* pages looked at in a pass: a millisecond */
#define CACHE_ADMIN_DROP     7        /* more for one that is dropped */
#define CACHE_ADMIN_WAIT_US  2000000  /* for the disk, before a drop is answered all the same */
#define CACHE_ADMIN_MORE_S   60       /* that a lower tier retains a page for longer */
#define CACHE_ADMIN_RATES_US 10000000 /* the store is told of hit rates this often at most */
#define CACHE_ADMIN_ROWS     40       /* namespaces of a list: the rest is one row */

/* --- namespaces --------------------------------------------------------------------------- */

/* Where a namespace stands in the index, or would. Ends: it is a quarter full at most. */
static uint32_t cache_admin_probe(const struct cache_admin *k, uint64_t space)
{
    uint32_t i = (uint32_t)(space % CACHE_ADMIN_INDEX);

    while (k->index[i] != 0 && k->spaces[k->index[i] - 1].space != space)
        i = (i + 1) % CACHE_ADMIN_INDEX;
    return i;
}

/* Its place, or the one of those that have none. */
static struct cache_admin_space *cache_admin_find(struct cache_admin *k, uint64_t space)
{
    int16_t at = k->index[cache_admin_probe(k, space)];

    return &k->spaces[at == 0 ? 0 : at - 1];
}

/* A free place, or that of the namespace which was used least recently. */
static int cache_admin_place(struct cache_admin *k)
{
    int oldest = 1;

    if (k->n_spaces < CACHE_ADMIN_SPACES)
        return k->n_spaces++;
    for (int i = 2; i < CACHE_ADMIN_SPACES; i++) {
        if (k->spaces[i].used < k->spaces[oldest].used)
            oldest = i;
    }
    return oldest;
}

static struct cache_admin_space *cache_admin_add(struct cache_admin *k, uint64_t space)
{
    struct cache_admin_space *s = cache_admin_find(k, space);
    int at;

    if (s != &k->spaces[0] || space == 0)
        return s;
    at = cache_admin_place(k);
    k->spaces[0].queries += k->spaces[at].queries;
    k->spaces[0].hits += k->spaces[at].hits;
    k->spaces[at] = (struct cache_admin_space){.space = space};
    memset(k->index, 0, sizeof k->index);
    for (int i = 1; i < k->n_spaces; i++)
        k->index[cache_admin_probe(k, k->spaces[i].space)] = (int16_t)(i + 1);
    return &k->spaces[at];
}

/* What earlier engines counted. */
static void cache_admin_load_rates(struct engine *e)
{
    struct store_rate rates[STORE_RATES_MAX];
    int n = store_rates(e->tiers.store, rates);

    for (int i = 0; i < n; i++) {
        struct cache_admin_space *s = cache_admin_add(&e->cache_admin, rates[i].space);

        s->queries += rates[i].queries;
        s->hits += rates[i].hits;
        s->used = rates[i].used;
        if (rates[i].used > e->cache_admin.n_used)
            e->cache_admin.n_used = rates[i].used;
    }
    e->cache_admin.n_kept_used = e->cache_admin.n_used;
}

void cache_admin_save_rates(struct engine *e)
{
    struct store_rate rates[STORE_RATES_MAX];
    struct cache_admin *k = &e->cache_admin;

    _Static_assert(CACHE_ADMIN_SPACES <= STORE_RATES_MAX, "each has a row");
    if (e->tiers.store == NULL || k->n_used == k->n_kept_used)
        return;
    for (int i = 0; i < k->n_spaces; i++) {
        const struct cache_admin_space *s = &k->spaces[i];

        rates[i] = (struct store_rate){
            .space = s->space, .used = s->used, .queries = s->queries, .hits = s->hits};
    }
    store_set_rates(e->tiers.store, rates, k->n_spaces);
    k->n_kept_used = k->n_used;
    k->kept_us = e->now_us;
}

/* The same on the statistics page. */
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

int cache_admin_init(struct engine *e)
{
    static const uint8_t none[WIRE_SALT_BYTES];
    struct cache_admin *k = &e->cache_admin;
    struct hash root = prefix_root(&e->shape->fingerprint, none);

    k->shared = prefix_space(&root);
    k->n_spaces = 1;
    k->tokens = mem_zalloc_array((size_t)e->shape->max_model_len, sizeof *k->tokens);
    if (e->tiers.store != NULL)
        cache_admin_load_rates(e);
    return k->tokens == NULL ? ERR_NO_MEMORY : ERR_OK;
}

/* --- hints of requests --------------------------------------------------------------------- */

/* Was as much said of the last cached page below? Then of all before it: a conversation says the
 * same at every turn. */
static bool cache_admin_said_below(const struct engine *e, const struct seq *q)
{
    if (q->n_cached > q->retain_tokens || q->n_named != q->n_cached / e->shape->page_tokens)
        return false; /* chain is another page's name */
    return e->tiers.host != NULL    ? host_retains(e->tiers.host, &q->chain, q->retain)
           : e->tiers.store != NULL ? store_retains(e->tiers.store, &q->chain, q->retain)
                                    : true;
}

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
    if (slot >= 0) /* it is to outlive the machine, too */
        tiers_want_stored(e, slot, name);
}

/* The lower tiers may have pages that the device had already. They are told a little more than was
 * said, and so need not be told again at once. */
static void cache_admin_retain_below(struct engine *e, const struct seq *q)
{
    int block = e->shape->page_tokens;
    struct retain r = q->retain;
    struct hash name = q->root;

    if (cache_admin_said_below(e, q))
        return;
    if (r.until != 0)
        r.until += r.until > UINT32_MAX - CACHE_ADMIN_MORE_S ? 0 : CACHE_ADMIN_MORE_S;

    for (int n = block; n <= q->n_cached && n <= q->retain_tokens; n += block) {
        const int32_t *tokens = q->tokens + (n - block);
        struct tables_name names[TABLES_NAMES_MAX];
        struct hash before = name;
        int n_names;

        name = prefix_name(&before, tokens, block);
        n_names = tables_names(&e->sched.tables, n / block - 1, 0, &name, &before, names);
        for (int k = 0; k < n_names; k++)
            cache_admin_retain_one(e, &names[k].name, tokens, r);
    }
}

void cache_admin_note_admitted(struct engine *e, const struct seq *q)
{
    struct cache_admin *k = &e->cache_admin;
    struct cache_admin_space *s;

    if (q->retain.rank > 0)
        cache_admin_retain_below(e, q);
    if ((q->request.flags & WIRE_PROBE) != 0)
        return;
    s = cache_admin_add(k, prefix_space(&q->root));
    s->used = ++k->n_used;
    s->queries += (uint64_t)q->n_prompt;
    s->hits += (uint64_t)q->n_cached;
}

void cache_admin_tell(struct engine *e, const struct seq *q)
{
    int block = e->shape->page_tokens;
    struct hash name = q->root;
    struct page_label label;
    int n = 0;

    while (n + block <= q->retain_tokens) {
        int32_t page;

        name = prefix_name(&name, q->tokens + n, block);
        page = pages_look(e->pages, &name);
        if (page == -1 || !pages_label(e->pages, page, &label) ||
            label.retain.rank < q->retain.rank)
            break;
        n += block;
    }
    lane_put(&e->lanes[q->lane_idx].lane, q->slot,
             (struct wire_out){.kind = WIRE_FACT, .value = WIRE_FACT_HELD, .amount = (uint64_t)n});
}

/* --- what operators ask for ------------------------------------------------------------------ */

/* A page of all tiers. */
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

/* Parts behind the prefix of this name, of all groups. */
static void cache_admin_drop_parts(struct engine *e, const struct hash *name)
{
    for (int g = 0; g < e->shape->n_groups; g++) {
        struct hash parent = tables_parent(&e->sched.tables, g, name);

        pages_drop_parts(e->pages, &parent);
    }
}

static uint64_t cache_admin_drop_prompt(struct engine *e, const struct wire_request *r)
{
    int block = e->shape->page_tokens;
    struct hash name = prefix_root(&e->shape->fingerprint, r->salt);
    struct tables_name names[TABLES_NAMES_MAX];
    uint64_t dropped = 0;

    cache_admin_drop_parts(e, &name);
    for (uint32_t n = 0; n + (uint32_t)block <= r->n_tokens; n += (uint32_t)block) {
        struct hash before = name;
        int n_names;

        name = prefix_name(&before, e->cache_admin.tokens + n, block);
        n_names = tables_names(&e->sched.tables, (int)n / block, 0, &name, &before, names);
        for (int k = 0; k < n_names; k++) {
            tiers_drop(e, &names[k].name, 0);
            dropped += cache_admin_drop_page(e, &names[k].name);
        }
        cache_admin_drop_parts(e, &name);
    }
    return dropped;
}

/* Kept pages are counted by what they have in common. */
static void cache_admin_count_hint(struct cache_admin *k, enum wire_tier at,
                                   const struct page_label *label)
{
    int i = 0;

    while (i < k->n_hints &&
           (k->hints[i].space != label->space || k->hints[i].retain.rank != label->retain.rank ||
            k->hints[i].retain.until != label->retain.until))
        i++;
    if (i == CACHE_ADMIN_HINTS) {
        i = CACHE_ADMIN_HINTS - 1;
        k->hints[i].space = 0; /* of several from now on */
        k->hints[i].retain = (struct retain){0};
    } else if (i == k->n_hints) {
        k->hints[k->n_hints++] =
            (struct cache_admin_hint){.space = label->space, .retain = label->retain};
    }
    k->hints[i].pages[at]++;
}

static void cache_admin_count(struct cache_admin *k, enum wire_tier at,
                              const struct page_label *label)
{
    struct cache_admin_space *s = cache_admin_find(k, label->space);

    if (s == &k->spaces[0] && k->n_spaces < CACHE_ADMIN_SPACES && label->space != 0)
        s = cache_admin_add(k, label->space);
    s->pages[at]++;
    if (label->retain.rank <= 0)
        return;
    s->n_kept++;
    cache_admin_count_hint(k, at, label);
}

/* How many places a tier has, and what is in one of them. */
static int32_t cache_admin_slots(const struct engine *e, enum wire_tier at)
{
    struct store_counters c;

    switch (at) {
    case WIRE_DEVICE: return pages_count(e->pages);
    case WIRE_HOST: return e->tiers.host == NULL ? 0 : host_n_slots(e->tiers.host);
    case WIRE_STORE:
        if (e->tiers.store == NULL)
            return 0;
        store_read_counters(e->tiers.store, &c);
        return (int32_t)c.slots;
    }
    return 0;
}

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

static void cache_admin_visit(struct engine *e, struct cache_admin_ask *a,
                              const struct page_label *label)
{
    struct hash name = label->name; /* the label may stand where the page does */

    switch (a->action) {
    case WIRE_LIST: cache_admin_count(&e->cache_admin, a->at, label); return;
    case WIRE_DROP_SPACE: /* what is of no known one is from an older store: it may be of this */
        if (label->space == a->space || label->space == 0)
            a->dropped += cache_admin_drop_page(e, &name);
        return;
    case WIRE_DROP_ALL: a->dropped += cache_admin_drop_page(e, &name); return;
    case WIRE_DROP_PROMPT: return; /* done when it was asked for */
    }
}

/* Parts are on the device alone, and nothing of their own is counted of them. */
static void cache_admin_visit_part(struct engine *e, const struct cache_admin_ask *a, int32_t page)
{
    uint64_t space;

    if (a->action != WIRE_LIST && pages_is_part(e->pages, page, &space) &&
        (a->action == WIRE_DROP_ALL || space == a->space))
        pages_drop(e->pages, page);
}

/* Some more pages. True when all were looked at. */
static bool cache_admin_scan(struct engine *e, struct cache_admin_ask *a)
{
    struct page_label label;

    for (int left = CACHE_ADMIN_PART; left > 0 && !a->scanned; left--) {
        if (a->next >= cache_admin_slots(e, a->at)) {
            a->scanned = a->at == WIRE_STORE;
            a->at = a->scanned ? a->at : (enum wire_tier)(a->at + 1);
            a->next = 0;
        } else if (cache_admin_look(e, a->at, a->next++, &label)) {
            cache_admin_visit(e, a, &label);
            left -= a->action == WIRE_LIST ? 0 : CACHE_ADMIN_DROP;
        } else if (a->at == WIRE_DEVICE) {
            cache_admin_visit_part(e, a, a->next - 1);
        }
    }
    e->tiers.drops = e->tiers.drops && !a->scanned;
    return a->scanned;
}

static void cache_admin_begin(struct engine *e, struct cache_admin_ask *a)
{
    struct cache_admin *k = &e->cache_admin;

    a->until_us = e->now_us + CACHE_ADMIN_WAIT_US;
    if (a->action == WIRE_DROP_PROMPT) {
        a->scanned = true; /* its pages were dropped when it was asked for */
        return;
    }
    if (a->action != WIRE_LIST) {
        e->tiers.drops = true;
        e->tiers.drops_space = a->action == WIRE_DROP_SPACE ? a->space : 0;
        tiers_drop(e, NULL, e->tiers.drops_space);
        return;
    }
    k->n_hints = 0;
    for (int i = 0; i < k->n_spaces; i++) {
        memset(k->spaces[i].pages, 0, sizeof k->spaces[i].pages);
        k->spaces[i].n_kept = 0;
    }
}

int cache_admin_ask(struct engine *e, struct engine_lane *l, uint32_t slot,
                    const struct wire_request *r)
{
    struct cache_admin *k = &e->cache_admin;
    struct hash root = prefix_root(&e->shape->fingerprint, r->salt);
    struct cache_admin_ask *a = &k->asks[k->n_asks];
    int rc = ERR_OK;

    if (e->draining)
        return ERR_DRAINING;
    if (r->cache.action > WIRE_DROP_ALL || r->n_tokens >= (uint32_t)e->shape->max_model_len)
        return ERR_INVALID;
    if (k->n_asks == CACHE_ADMIN_ASKS)
        return ERR_OVERLOADED;
    *a = (struct cache_admin_ask){.lane_idx = (int)(l - e->lanes),
                                  .slot = slot,
                                  .action = (enum wire_cache_action)r->cache.action,
                                  .space =
                                      r->cache.space != 0 ? r->cache.space : prefix_space(&root)};
    for (int i = 0; i < k->n_asks; i++) {
        if (k->asks[i].lane_idx == a->lane_idx && k->asks[i].slot == slot)
            return ERR_INVALID; /* a slot asks for one thing at a time */
    }
    if (a->action == WIRE_DROP_PROMPT) {
        rc = lane_tokens(&l->lane, r, e->shape->n_vocab, k->tokens);
        if (rc == ERR_OK)
            a->dropped = cache_admin_drop_prompt(e, r);
    }
    if (rc == ERR_OK && k->n_asks++ == 0)
        cache_admin_begin(e, a);
    return rc;
}

static void cache_admin_end_ask(struct cache_admin *k, int i)
{
    k->n_asks--;
    memmove(&k->asks[i], &k->asks[i + 1], sizeof k->asks[0] * (size_t)(k->n_asks - i));
}

void cache_admin_forget_lane(struct engine *e, const struct engine_lane *l)
{
    struct cache_admin *k = &e->cache_admin;

    for (int i = k->n_asks - 1; i > 0; i--) {
        if (k->asks[i].lane_idx == l - e->lanes)
            cache_admin_end_ask(k, i);
    }
    if (k->n_asks > 0 && k->asks[0].lane_idx == l - e->lanes)
        k->asks[0].lane_idx = -1; /* what was begun is done, and nobody is told */
}

/* --- answers -------------------------------------------------------------------------------- */

static void cache_admin_fact(struct engine *e, const struct cache_admin_ask *a, enum wire_fact fact,
                             uint64_t amount)
{
    lane_put(&e->lanes[a->lane_idx].lane, a->slot,
             (struct wire_out){.kind = WIRE_FACT, .value = (int32_t)fact, .amount = amount});
}

static void cache_admin_tell_tier(struct engine *e, const struct cache_admin_ask *a,
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
    cache_admin_fact(e, a, WIRE_FACT_TIER, at);
    cache_admin_fact(e, a, WIRE_FACT_SLOTS, slots);
    cache_admin_fact(e, a, WIRE_FACT_PAGES, pages);
    cache_admin_fact(e, a, WIRE_FACT_KEPT, kept);
    cache_admin_fact(e, a, WIRE_FACT_KEPT_MAX, slots * (uint64_t)e->settings.kv_retained_pct / 100);
}

static uint64_t cache_admin_weight(const struct cache_admin_space *s)
{
    return s->queries + s->pages[WIRE_DEVICE] + s->pages[WIRE_HOST] + s->pages[WIRE_STORE];
}

static void cache_admin_tell_space(struct engine *e, const struct cache_admin_ask *a,
                                   const struct cache_admin_space *s)
{
    if (cache_admin_weight(s) == 0)
        return;
    cache_admin_fact(e, a, WIRE_FACT_SPACE, s->space);
    if (s->space == e->cache_admin.shared)
        cache_admin_fact(e, a, WIRE_FACT_SHARED, 1);
    cache_admin_fact(e, a, WIRE_FACT_DEVICE, s->pages[WIRE_DEVICE]);
    cache_admin_fact(e, a, WIRE_FACT_HOST, s->pages[WIRE_HOST]);
    cache_admin_fact(e, a, WIRE_FACT_STORE, s->pages[WIRE_STORE]);
    cache_admin_fact(e, a, WIRE_FACT_KEPT_PAGES, s->n_kept);
    cache_admin_fact(e, a, WIRE_FACT_QUERIES, s->queries);
    cache_admin_fact(e, a, WIRE_FACT_HITS, s->hits);
}

/* The largest of them, and all others as one. */
static void cache_admin_tell_spaces(struct engine *e, const struct cache_admin_ask *a)
{
    const struct cache_admin *k = &e->cache_admin;
    struct cache_admin_space rest = k->spaces[0];
    bool told[CACHE_ADMIN_SPACES] = {[0] = true};

    for (int row = 0; row < CACHE_ADMIN_ROWS; row++) {
        int best = 0;

        for (int i = 1; i < k->n_spaces; i++) {
            if (!told[i] && (best == 0 || cache_admin_weight(&k->spaces[i]) >
                                              cache_admin_weight(&k->spaces[best])))
                best = i;
        }
        if (best == 0)
            break;
        told[best] = true;
        cache_admin_tell_space(e, a, &k->spaces[best]);
    }
    for (int i = 1; i < k->n_spaces; i++) {
        if (told[i])
            continue;
        rest.queries += k->spaces[i].queries;
        rest.hits += k->spaces[i].hits;
        rest.n_kept += k->spaces[i].n_kept;
        for (int t = 0; t < WIRE_TIERS; t++)
            rest.pages[t] += k->spaces[i].pages[t];
    }
    cache_admin_tell_space(e, a, &rest);
}

static void cache_admin_tell_hints(struct engine *e, const struct cache_admin_ask *a)
{
    for (int i = 0; i < e->cache_admin.n_hints; i++) {
        const struct cache_admin_hint *h = &e->cache_admin.hints[i];

        cache_admin_fact(e, a, WIRE_FACT_HINT, h->space);
        if (h->retain.rank > 0) { /* else several kinds */
            cache_admin_fact(e, a, WIRE_FACT_PRIORITY, (uint64_t)retain_priority(h->retain));
            cache_admin_fact(e, a, WIRE_FACT_UNTIL, h->retain.until);
        }
        cache_admin_fact(e, a, WIRE_FACT_DEVICE, h->pages[WIRE_DEVICE]);
        cache_admin_fact(e, a, WIRE_FACT_HOST, h->pages[WIRE_HOST]);
        cache_admin_fact(e, a, WIRE_FACT_STORE, h->pages[WIRE_STORE]);
    }
}

#define CACHE_ADMIN_FACTS_MAX \
    (WIRE_TIERS * 5 + (CACHE_ADMIN_ROWS + 1) * 8 + CACHE_ADMIN_HINTS * 6 + 1)
_Static_assert(CACHE_ADMIN_FACTS_MAX < WIRE_OUT_CAP, "a list fits a slot's ring");

static void cache_admin_answer(struct engine *e, const struct cache_admin_ask *a)
{
    struct lane *lane;

    if (a->action != WIRE_LIST) {
        log_info("engine: %llu pages of the cache were dropped", (unsigned long long)a->dropped);
        stats_add(&e->stats, METRIC_dropped, a->dropped);
    }
    if (a->lane_idx < 0)
        return;
    lane = &e->lanes[a->lane_idx].lane;
    if (lane_room(lane, a->slot) <= CACHE_ADMIN_FACTS_MAX)
        return; /* it was empty when its front asked: that one lies */
    if (a->action == WIRE_LIST) {
        for (int t = 0; t < WIRE_TIERS; t++)
            cache_admin_tell_tier(e, a, (enum wire_tier)t);
        cache_admin_tell_spaces(e, a);
        cache_admin_tell_hints(e, a);
    } else {
        cache_admin_fact(e, a, WIRE_FACT_DROPPED, a->dropped);
    }
    lane_put(
        lane, a->slot,
        (struct wire_out){.kind = WIRE_FINISHED, .finish = WIRE_FIN_STOP, .time_us = e->now_us});
}

bool cache_admin_has_work(const struct engine *e)
{
    return e->cache_admin.n_asks > 0;
}

void cache_admin_pass(struct engine *e)
{
    struct cache_admin *k = &e->cache_admin;
    uint32_t now_s = clock_stamp_s();
    bool waits;

    if (now_s != k->ticked_s) {
        k->ticked_s = now_s;
        pages_tick(e->pages, now_s);
        if (e->tiers.host != NULL)
            host_tick(e->tiers.host, now_s);
        cache_admin_show_rates(e);
        if (e->now_us - k->kept_us > CACHE_ADMIN_RATES_US)
            cache_admin_save_rates(e);
    }
    if (k->n_asks == 0 || !cache_admin_scan(e, &k->asks[0]))
        return;
    waits =
        k->asks[0].action != WIRE_LIST && e->tiers.store != NULL && !store_is_quiet(e->tiers.store);
    if (waits && e->now_us < k->asks[0].until_us)
        return;
    cache_admin_answer(e, &k->asks[0]);
    cache_admin_end_ask(k, 0);
    if (k->n_asks > 0)
        cache_admin_begin(e, &k->asks[0]);
}
