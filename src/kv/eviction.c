/* SPDX-License-Identifier: Apache-2.0
 *
 * Three binary heaps over one array of pages, and each page knows its place in each:
 *
 *   EVICTION_NEXT  pages that may be evicted, the next one on top
 *   EVICTION_KEPT  pages above the default priority, the first to be displaced on top
 *   EVICTION_ENDS  pages whose retention has an end, the earliest on top
 *
 * Most pages have the default priority and were just used when they enter: they are in a list
 * instead of EVICTION_NEXT, which is sorted by last use because each enters at its end. The next
 * page to evict is the lesser of the list's first and the heap's top. */
#include "kv/eviction.h"

#include "base/mem.h"
#include "base/must.h"

enum eviction_heap { EVICTION_NEXT, EVICTION_KEPT, EVICTION_ENDS, EVICTION_HEAPS };

struct eviction_page {
    uint64_t used; /* number of its last use; the highest was used last */
    struct retain retain;
    uint32_t depth;             /* pages before it in its prefix, as far as known */
    int32_t at[EVICTION_HEAPS]; /* place in each heap, or -1 */
    int32_t prev, next;         /* in the list */
    bool listed;                /* it may be evicted, and is in the list instead of the heap */
};

struct heap {
    int32_t *ids; /* [n_pages] */
    int n;
};

struct eviction {
    int n_pages;
    int kept_max;
    uint32_t now_s;
    uint64_t n_used;
    struct eviction_page *pages; /* [n_pages] */
    struct heap heaps[EVICTION_HEAPS];
    int32_t first, last; /* the list: pages of default priority, by last use */
    int n_listed;
};

/* Every page begins outside all heaps and the list, with the default priority. The heaps have room
 * for all pages, so that no call allocates later. */
int eviction_open(struct eviction **out, int n, int kept_max)
{
    struct eviction *eviction = mem_zalloc(sizeof *eviction);
    bool whole = true;

    must(n >= 1);
    if (eviction == NULL)
        return ERR_NO_MEMORY;
    eviction->n_pages = n;
    eviction->kept_max = kept_max;
    eviction->first = eviction->last = -1;
    eviction->pages = mem_zalloc_array((size_t)n, sizeof *eviction->pages);
    for (int k = 0; k < EVICTION_HEAPS; k++) {
        eviction->heaps[k].ids = mem_zalloc_array((size_t)n, sizeof(int32_t));
        whole = whole && eviction->heaps[k].ids != NULL;
    }
    if (eviction->pages == NULL || !whole) {
        eviction_close(eviction);
        return ERR_NO_MEMORY;
    }
    /* No page is in any heap yet. */
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < EVICTION_HEAPS; k++)
            eviction->pages[i].at[k] = -1;
    }
    *out = eviction;
    return ERR_OK;
}

void eviction_close(struct eviction *o)
{
    if (o == NULL)
        return;
    for (int k = 0; k < EVICTION_HEAPS; k++)
        mem_free(o->heaps[k].ids);
    mem_free(o->pages);
    mem_free(o);
}

void eviction_bound(struct eviction *o, int kept_max)
{
    o->kept_max = kept_max;
}

/* --- heaps -------------------------------------------------------------------------------- */

/* The usual binary heaps: the children of place n are at 2n + 1 and 2n + 2, and no child is before
 * its parent. A page keeps its places in `at`, so it can be removed from the middle in O(log n). */

/* Is page a above page b in heap k? Equal pages are in the order of their last use, so the result
 * is the same however the heap was built. */
static bool eviction_before(const struct eviction *o, enum eviction_heap k, int32_t a, int32_t b)
{
    const struct eviction_page *x = &o->pages[a], *y = &o->pages[b];

    if (k == EVICTION_ENDS && x->retain.until != y->retain.until)
        return x->retain.until < y->retain.until;
    if (k != EVICTION_ENDS && x->retain.rank != y->retain.rank)
        return x->retain.rank < y->retain.rank;
    if (k == EVICTION_KEPT && x->depth != y->depth)
        return x->depth > y->depth;
    return x->used < y->used;
}

/* Write id at a place of a heap. Only here do ids[] and the page's own place change, so they cannot
 * disagree. */
static void eviction_put(struct eviction *o, enum eviction_heap k, int at, int32_t id)
{
    o->heaps[k].ids[at] = id;
    o->pages[id].at[k] = at;
}

/* Move id up, then down, to its place. Only one of the loops moves it. */
static void eviction_settle(struct eviction *o, enum eviction_heap k, int32_t id)
{
    const struct heap *heap = &o->heaps[k];
    int at = o->pages[id].at[k];

    /* Up: while the parent belongs below id, it moves down into the gap. */
    while (at > 0 && eviction_before(o, k, id, heap->ids[(at - 1) / 2])) {
        eviction_put(o, k, at, heap->ids[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    /* Down: the lesser child moves up into the gap, until both belong below id. */
    for (int child = 2 * at + 1; child < heap->n; child = 2 * at + 1) {
        if (child + 1 < heap->n && eviction_before(o, k, heap->ids[child + 1], heap->ids[child]))
            child++;
        if (!eviction_before(o, k, heap->ids[child], id))
            break;
        eviction_put(o, k, at, heap->ids[child]);
        at = child;
    }
    eviction_put(o, k, at, id);
}

/* Remove id from a heap: the last entry takes its place and moves to where it belongs. */
static void eviction_take_out(struct eviction *o, enum eviction_heap k, int32_t id)
{
    struct heap *heap = &o->heaps[k];
    int at = o->pages[id].at[k];
    int32_t last;

    if (at == -1)
        return;
    o->pages[id].at[k] = -1;
    /* The heap stays dense: its last entry fills the gap. */
    last = heap->ids[--heap->n];
    if (last == id)
        return;
    eviction_put(o, k, at, last);
    eviction_settle(o, k, last);
}

/* Insert id into a heap, or move it to its place if it is there already. */
static void eviction_put_in(struct eviction *o, enum eviction_heap k, int32_t id)
{
    struct heap *heap = &o->heaps[k];

    if (o->pages[id].at[k] == -1)
        eviction_put(o, k, heap->n++, id);
    eviction_settle(o, k, id);
}

/* --- the order -------------------------------------------------------------------------------- */

/* Remove a page from the list. The ends of the list are in struct eviction, the inner links in the
 * pages. */
static void eviction_unlist(struct eviction *o, int32_t id)
{
    struct eviction_page *p = &o->pages[id];

    *(p->prev == -1 ? &o->first : &o->pages[p->prev].next) = p->next;
    *(p->next == -1 ? &o->last : &o->pages[p->next].prev) = p->prev;
    p->listed = false;
    o->n_listed--;
}

/* Enter the order: in the list if it stays sorted, else in the heap. */
static void eviction_enter(struct eviction *o, int32_t id)
{
    struct eviction_page *p = &o->pages[id];

    /* The list is sorted by last use, so a page may be appended only if it was used after all
     * others. Pages with a rank are never in the list, because their order does not depend on
     * their use alone. */
    if (p->retain.rank != 0 || (o->last != -1 && o->pages[o->last].used >= p->used)) {
        eviction_put_in(o, EVICTION_NEXT, id);
        return;
    }
    p->prev = o->last;
    p->next = -1;
    *(o->last == -1 ? &o->first : &o->pages[o->last].next) = id;
    o->last = id;
    p->listed = true;
    o->n_listed++;
}

/* True when it was in the order. */
static bool eviction_leave(struct eviction *o, int32_t id)
{
    bool was = o->pages[id].listed || o->pages[id].at[EVICTION_NEXT] != -1;

    if (o->pages[id].listed)
        eviction_unlist(o, id);
    eviction_take_out(o, EVICTION_NEXT, id);
    return was;
}

/* --- retention -------------------------------------------------------------------------------- */

/* Set a page's retention without regard to the limit, and its places in the heaps accordingly. */
static void eviction_set(struct eviction *o, int32_t id, struct retain r)
{
    struct eviction_page *p = &o->pages[id];
    bool may_go;

    /* The common case: nothing is retained, and no heap changes. */
    if (p->retain.rank == 0 && r.rank == 0)
        return;
    may_go = eviction_leave(o, id);
    eviction_take_out(o, EVICTION_KEPT, id);
    eviction_take_out(o, EVICTION_ENDS, id);
    p->retain = r;
    if (r.rank > 0)
        eviction_put_in(o, EVICTION_KEPT, id);
    if (r.rank != 0 && r.until != 0)
        eviction_put_in(o, EVICTION_ENDS, id);
    if (may_go)
        eviction_enter(o, id);
}

/* Does page id with retention r have more right to a place than the least of the retained pages?
 * Pins do not displace each other. */
static bool eviction_outranks(const struct eviction *o, int32_t id, struct retain r)
{
    const struct heap *kept = &o->heaps[EVICTION_KEPT];
    const struct eviction_page *least;

    /* Nothing to displace, or no retained pages allowed at all. */
    if (kept->n == 0 || o->kept_max == 0)
        return false;
    least = &o->pages[kept->ids[0]];
    return least->retain.rank < r.rank ||
           (least->retain.rank == r.rank && retain_priority(r) < RETAIN_PINNED &&
            least->depth > o->pages[id].depth);
}

/* Set a page's retention if the limit allows it: the least retained page is displaced, or r becomes
 * the default. */
static void eviction_admit(struct eviction *o, int32_t id, struct retain r)
{
    const struct heap *kept = &o->heaps[EVICTION_KEPT];

    if (r.rank > 0 && o->pages[id].at[EVICTION_KEPT] == -1 && kept->n >= o->kept_max) {
        /* The limit is reached: either the least retained page loses its retention, or this one
         * gets none. */
        if (eviction_outranks(o, id, r))
            eviction_set(o, kept->ids[0], (struct retain){0});
        else
            r = (struct retain){0};
    }
    eviction_set(o, id, r);
}

/* Only the top of EVICTION_ENDS has to be looked at, because it ends first. */
void eviction_tick(struct eviction *o, uint32_t now_s)
{
    const struct heap *ends = &o->heaps[EVICTION_ENDS];

    /* At most once per second, and never backwards. */
    if (now_s <= o->now_s)
        return;
    o->now_s = now_s;
    while (ends->n > 0 && o->pages[ends->ids[0]].retain.until <= now_s)
        /* Ends: each round removes one from the heap. */
        eviction_set(o, ends->ids[0], (struct retain){0});
}

/* --- pages ------------------------------------------------------------------------------------ */

void eviction_end(struct eviction *o, int32_t id)
{
    eviction_remove(o, id);
    eviction_set(o, id, (struct retain){0});
}

void eviction_begin(struct eviction *o, int32_t id, int32_t parent, struct retain r)
{
    eviction_set(o, id, (struct retain){0});
    /* The depth decides among retained pages of equal priority: the start of a prefix wins. */
    o->pages[id].depth = parent == -1 ? 0 : o->pages[parent].depth + 1;
    eviction_admit(o, id, retain_now(r, o->now_s));
}

void eviction_retain(struct eviction *o, int32_t id, struct retain r)
{
    struct retain was = o->pages[id].retain;
    struct retain want = retain_join(was, r, o->now_s);

    /* Most calls repeat a retention that is in effect already. */
    if (want.rank != was.rank || want.until != was.until)
        eviction_admit(o, id, want);
}

struct retain eviction_retained(const struct eviction *o, int32_t id)
{
    return o->pages[id].retain;
}

/* --- the order ---------------------------------------------------------------------------- */

/* The page moves to the end of the list, and down in the heaps: its key is larger than before. */
void eviction_use(struct eviction *o, int32_t id)
{
    struct eviction_page *p = &o->pages[id];
    /* Changing a key in place would break the order of the heap, so the page leaves and enters
     * again. */
    bool may_go = eviction_leave(o, id);

    p->used = ++o->n_used;
    if (may_go)
        eviction_enter(o, id);
    if (p->at[EVICTION_KEPT] != -1)
        eviction_settle(o, EVICTION_KEPT, id);
    if (p->at[EVICTION_ENDS] != -1)
        eviction_settle(o, EVICTION_ENDS, id);
}

void eviction_add(struct eviction *o, int32_t id)
{
    if (!o->pages[id].listed && o->pages[id].at[EVICTION_NEXT] == -1)
        eviction_enter(o, id);
}

void eviction_remove(struct eviction *o, int32_t id)
{
    (void)eviction_leave(o, id);
}

/* The list has only pages of default priority. Its first page goes before a heap's page of the same
 * priority only if it was used earlier. */
int32_t eviction_first(const struct eviction *o)
{
    int32_t top = o->heaps[EVICTION_NEXT].n == 0 ? -1 : o->heaps[EVICTION_NEXT].ids[0];

    /* If one of the two is empty, the other has the answer. */
    if (top == -1 || o->first == -1)
        return top == -1 ? o->first : top;
    if (eviction_before(o, EVICTION_NEXT, top, o->first))
        return top;
    return o->first;
}

int eviction_count(const struct eviction *o)
{
    return o->heaps[EVICTION_NEXT].n + o->n_listed;
}

int eviction_n_kept(const struct eviction *o)
{
    return o->heaps[EVICTION_KEPT].n;
}

/* The list is doubly linked, sorted by last use, and disjoint from EVICTION_NEXT. */
static void eviction_check_list(const struct eviction *o)
{
    int32_t prev = -1;
    int n = 0;

    /* Each page is in the list or in the heap, never in both. */
    for (int32_t i = o->first; i != -1; i = o->pages[i].next) {
        const struct eviction_page *p = &o->pages[i];

        must(p->listed && p->prev == prev && p->at[EVICTION_NEXT] == -1 && p->retain.rank == 0);
        must(prev == -1 || o->pages[prev].used < p->used);
        must(++n <= o->n_listed);
        prev = i;
    }
    must(o->last == prev && n == o->n_listed);
}

void eviction_check(const struct eviction *o)
{
    int n_in[EVICTION_HEAPS] = {0};

    eviction_check_list(o);
    for (int32_t i = 0; i < o->n_pages; i++) {
        const struct eviction_page *p = &o->pages[i];

        for (int k = 0; k < EVICTION_HEAPS; k++) {
            n_in[k] += p->at[k] != -1;
            must(p->at[k] == -1 || o->heaps[k].ids[p->at[k]] == i);
        }
        /* Exactly the retained pages are in KEPT, and exactly those with an end in ENDS. */
        must((p->retain.rank > 0) == (p->at[EVICTION_KEPT] != -1));
        must((p->retain.rank != 0 && p->retain.until != 0) == (p->at[EVICTION_ENDS] != -1));
        must(p->at[EVICTION_ENDS] == -1 || p->retain.until > o->now_s);
    }
    for (int k = 0; k < EVICTION_HEAPS; k++) {
        const struct heap *heap = &o->heaps[k];

        must(heap->n == n_in[k]);
        for (int i = 1; i < heap->n; i++)
            must(!eviction_before(o, (enum eviction_heap)k, heap->ids[i], heap->ids[(i - 1) / 2]));
    }
}
