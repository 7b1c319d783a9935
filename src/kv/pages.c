/* SPDX-License-Identifier: Apache-2.0
 *
 * Four structures over one array of pages:
 *
 *   free      a list of unnamed, unreferenced pages
 *   cached    named, unreferenced pages in eviction order (eviction.h)
 *   table     from name to full page (table.h)
 *   families  per bucket of that table a list of the pages, full or parts, whose parent's name
 *             belongs there, newest first: a page is found by its parent and first tokens
 *
 * A page's life: free -> referenced -> named, referenced -> cached -> evicted, then referenced by
 * its next owner. */
#include "kv/pages.h"

#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "kv/eviction.h"
#include "kv/table.h"

struct page {
    struct hash name;
    struct hash parent;
    uint64_t space;
    uint64_t maker;
    int32_t refs;
    int32_t prev; /* neighbours in the free list, or -1 */
    int32_t next;
    int32_t elder; /* neighbours in the family, or -1 */
    int32_t younger;
    int32_t n_tokens; /* that count; 0: unnamed, page_tokens: full */
    bool stored, drafted;
};

struct page_list {
    int32_t first; /* taken next */
    int32_t last;
    int count;
};

struct pages {
    int n_pages;
    int page_tokens;
    struct page *page;  /* [n_pages] */
    int32_t *tokens;    /* int32 [n_pages][page_tokens] */
    struct table table; /* of full pages */
    int32_t *families;  /* [table.mask + 1], id of the newest page or -1 */
    int n_full;
    struct page_list free;
    struct eviction *cached; /* pages that are named and unreferenced; has the retention of all */
};

/* --- the free list ---------------------------------------------------------------------------- */

/* Pages without a name. They are taken from the front and returned at the end, so a page that was
 * just freed is overwritten last. A page is in this list, or in the eviction order, or it has
 * references: pages_check() proves that each is in exactly one of the three. */

/* Append to the list; pages are taken from its front. */
static void pages_list_push(struct pages *p, struct page_list *l, int32_t id)
{
    struct page *page = &p->page[id];

    page->prev = l->last;
    page->next = -1;
    if (l->last == -1)
        l->first = id;
    else
        p->page[l->last].next = id;
    l->last = id;
    l->count++;
}

static void pages_list_remove(struct pages *p, struct page_list *l, int32_t id)
{
    struct page *page = &p->page[id];

    /* A neighbour that is missing means that the page is at that end of the list. */
    if (page->prev == -1)
        l->first = page->next;
    else
        p->page[page->prev].next = page->next;
    if (page->next == -1)
        l->last = page->prev;
    else
        p->page[page->next].prev = page->prev;
    page->prev = -1;
    page->next = -1;
    l->count--;
}

/* All pages begin in the free list. */
int pages_open(struct pages **out, int n_pages, int page_tokens)
{
    struct pages *p = mem_zalloc(sizeof *p);

    must(n_pages >= 1);
    must(page_tokens >= 1);
    if (p == NULL)
        return ERR_NO_MEMORY;
    p->n_pages = n_pages;
    p->page_tokens = page_tokens;
    p->page = mem_zalloc_array((size_t)n_pages, sizeof *p->page);
    p->tokens = mem_zalloc_array((size_t)n_pages * (size_t)page_tokens, sizeof *p->tokens);
    /* The table reads names inside the array of pages, so that must exist first. */
    if (p->page == NULL || p->tokens == NULL ||
        table_open(&p->table, &p->page->name, sizeof *p->page, (uint32_t)n_pages) != ERR_OK ||
        eviction_open(&p->cached, n_pages, n_pages / 2) != ERR_OK) {
        pages_close(p);
        return ERR_NO_MEMORY;
    }
    /* As many families as the table has buckets: table_home() gives both. */
    p->families = mem_zalloc_array((size_t)p->table.mask + 1, sizeof *p->families);
    if (p->families == NULL) {
        pages_close(p);
        return ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i <= p->table.mask; i++)
        p->families[i] = -1;
    /* No page has a name yet. */
    p->free = (struct page_list){.first = -1, .last = -1};
    for (int32_t i = 0; i < n_pages; i++)
        pages_list_push(p, &p->free, i);
    *out = p;
    return ERR_OK;
}

void pages_close(struct pages *p)
{
    if (p == NULL)
        return;
    mem_free(p->page);
    mem_free(p->tokens);
    table_close(&p->table);
    mem_free(p->families);
    eviction_close(p->cached);
    mem_free(p);
}

/* The tokens of a page, kept for its label and for finding parts. */
static int32_t *pages_tokens(const struct pages *p, int32_t page)
{
    return p->tokens + (size_t)page * (size_t)p->page_tokens;
}

/* --- families --------------------------------------------------------------------------------- */

/* A sequence whose tokens end in the middle of a page finds that page by its parent: the page's own
 * name is the digest of all its tokens, which the sequence does not have. Full pages are members,
 * too, because a beginning of a full page is as good as a part. */

/* A family is a list through `elder` and `younger`, like the free list, but per bucket. Pages of
 * different parents can share a bucket, so pages_best() compares the parent's name as well. */
static void pages_family_join(struct pages *p, int32_t page)
{
    struct page *pg = &p->page[page];
    int32_t *youngest = &p->families[table_home(&p->table, &pg->parent)];

    /* At the front, because pages_best() looks at the newest ones only. */
    pg->elder = *youngest;
    pg->younger = -1;
    if (pg->elder != -1)
        p->page[pg->elder].younger = page;
    *youngest = page;
}

static void pages_family_leave(struct pages *p, int32_t page)
{
    const struct page *pg = &p->page[page];

    if (pg->elder != -1)
        p->page[pg->elder].younger = pg->younger;
    if (pg->younger != -1)
        p->page[pg->younger].elder = pg->elder;
    else
        p->families[table_home(&p->table, &pg->parent)] = pg->elder;
}

/* Erase a page's name and its retention. */
static void pages_forget(struct pages *p, int32_t id)
{
    struct page *page = &p->page[id];

    /* Only full pages are in the table of names. */
    if (page->n_tokens == p->page_tokens) {
        table_erase(&p->table, &page->name);
        p->n_full--;
    }
    pages_family_leave(p, id);
    eviction_end(p->cached, id);
    page->n_tokens = 0;
    page->stored = false;
}

/* --- taking and giving back ------------------------------------------------------------------- */

/* A free page if there is one, because evicting a cached page loses work. */
int32_t pages_take(struct pages *p, bool *evicted, struct page_label *label)
{
    bool from_cache = p->free.count == 0;
    int32_t id = from_cache ? eviction_first(p->cached) : p->free.first;
    struct page *page;

    *evicted = false;
    if (id == -1)
        return -1;
    page = &p->page[id];
    /* Rule 1: only a page without references can be taken. */
    must(page->refs == 0);
    /* Evicting: the label is read before the name is erased. */
    if (from_cache) {
        *evicted = pages_label(p, id, label);
        pages_forget(p, id);
    } else {
        pages_list_remove(p, &p->free, id);
    }
    page->refs = 1;
    /* The next owner's maker is not known yet. */
    page->maker = 0;
    page->drafted = false;
    return id;
}

/* A cached page that is referenced again must not be evicted. */
void pages_ref(struct pages *p, int32_t page)
{
    struct page *pg = &p->page[page];

    must(page >= 0 && page < p->n_pages);
    /* It was cached: it leaves the eviction order while it is in use. */
    if (pg->refs == 0) {
        must(pg->n_tokens > 0);
        eviction_remove(p->cached, page);
    }
    pg->refs++;
}

/* The last reference makes the page free, or cached as the most recently used one. */
void pages_unref(struct pages *p, int32_t page)
{
    struct page *pg = &p->page[page];

    must(page >= 0 && page < p->n_pages);
    must(pg->refs > 0);
    if (--pg->refs > 0)
        return;
    /* Unnamed: its content is of no use to others. */
    if (pg->n_tokens == 0) {
        pages_list_push(p, &p->free, page);
        return;
    }
    /* Its time of last use is when its last user leaves. */
    eviction_use(p->cached, page);
    eviction_add(p->cached, page);
}

/* The page's first n_tokens tokens count from now on. */
static void pages_hold(struct pages *p, int32_t page, const struct hash *parent,
                       const int32_t *tokens, int n_tokens)
{
    struct page *pg = &p->page[page];

    must(pg->refs > 0);
    must(pg->n_tokens == 0);
    pg->parent = *parent;
    /* Unknown until pages_own(). */
    pg->space = 0;
    pg->n_tokens = n_tokens;
    memcpy(pages_tokens(p, page), tokens, sizeof *tokens * (size_t)n_tokens);
    pages_family_join(p, page);
}

/* The name is checked first, so that a second page of equal tokens stays unnamed and is freed with
 * its sequence (rule 5). */
bool pages_name(struct pages *p, int32_t page, const struct hash *name, const struct hash *parent,
                const int32_t *tokens)
{
    int32_t *place = table_place(&p->table, name);

    /* Another page has this name: rule 5. */
    if (*place != -1)
        return false;
    *place = page;
    /* The table compares names in the array of pages, so the name is set with its entry. */
    p->page[page].name = *name;
    p->n_full++;
    pages_hold(p, page, parent, tokens, p->page_tokens);
    return true;
}

/* --- finding ---------------------------------------------------------------------------------- */

/* A full page is found by its name in the table, in constant time. A part has no name: it is found
 * in its family by the tokens that it shares with the caller's. Both take a reference for the
 * caller. */

/* A page whose maker is PAGES_ANYBODY may be used by all; one of unknown maker (0) is foreign
 * unless the caller asks for all. */
bool pages_is_theirs(const struct pages *p, int32_t page, uint64_t maker)
{
    uint64_t of = p->page[page].maker;

    return maker == PAGES_ANYBODY || of == PAGES_ANYBODY || of == maker;
}

void pages_set_maker(struct pages *p, int32_t page, uint64_t maker)
{
    must(p->page[page].n_tokens > 0);
    p->page[page].maker = maker;
}

/* The page after `parent` that begins with the most of tokens, or -1. Linear in the family, but at
 * most PAGES_SIBLINGS pages are looked at: a system prompt can have thousands of successors. */
static int32_t pages_best(const struct pages *p, const struct hash *parent, const int32_t *tokens,
                          int n_tokens, uint64_t maker, int *n_same)
{
    int32_t best = -1;
    int left = PAGES_SIBLINGS;

    *n_same = 0;
    for (int32_t i = p->families[table_home(&p->table, parent)]; i != -1 && left-- > 0;
         i = p->page[i].elder) {
        const struct page *page = &p->page[i];
        const int32_t *has = pages_tokens(p, i);
        int most = n_tokens < page->n_tokens ? n_tokens : page->n_tokens;
        int n = 0;

        /* Pages that cannot be better than the best so far, pages of another parent in the same
         * bucket, and pages that the maker may not know about. */
        if (most <= *n_same || memcmp(&page->parent, parent, sizeof *parent) != 0 ||
            !pages_is_theirs(p, i, maker))
            continue;
        while (n < most && has[n] == tokens[n])
            n++;
        if (n > *n_same) {
            *n_same = n;
            best = i;
        }
    }
    return best;
}

/* A part that is a beginning of another page is of no use. */
bool pages_name_part(struct pages *p, int32_t page, const struct hash *parent,
                     const int32_t *tokens, int n_tokens)
{
    int n_same;

    /* A full page has a name, and one without tokens is no part. */
    must(n_tokens >= 1 && n_tokens < p->page_tokens);
    (void)pages_best(p, parent, tokens, n_tokens, PAGES_ANYBODY, &n_same);
    /* Another page has these tokens already: a second copy would be of no use. */
    if (n_same == n_tokens)
        return false;
    pages_hold(p, page, parent, tokens, n_tokens);
    return true;
}

int32_t pages_find_part(struct pages *p, const struct hash *parent, const int32_t *tokens,
                        int n_tokens, uint64_t maker, int *n_same)
{
    int32_t id = pages_best(p, parent, tokens, n_tokens, maker, n_same);

    if (id != -1)
        pages_ref(p, id);
    return id;
}

int32_t pages_find(struct pages *p, const struct hash *name)
{
    int32_t id = table_find(&p->table, name);

    if (id != -1)
        pages_ref(p, id);
    return id;
}

bool pages_has(const struct pages *p, const struct hash *name)
{
    return table_find(&p->table, name) != -1;
}

/* Parts have no label: their names would be those of pages that do not exist. */
bool pages_label(const struct pages *p, int32_t page, struct page_label *label)
{
    const struct page *pg = &p->page[page];

    /* A part is a page with fewer tokens than a full one. */
    if (pg->n_tokens != p->page_tokens)
        return false;
    *label = (struct page_label){
        .name = pg->name,
        .parent = pg->parent,
        .tokens = pages_tokens(p, page),
        .space = pg->space,
        .retain = eviction_retained(p->cached, page),
    };
    return true;
}

int32_t pages_look(const struct pages *p, const struct hash *name)
{
    return table_find(&p->table, name);
}

void pages_tick(struct pages *p, uint32_t now_s)
{
    eviction_tick(p->cached, now_s);
}

void pages_bound_kept(struct pages *p, int kept_max)
{
    eviction_bound(p->cached, kept_max);
}

int pages_kept(const struct pages *p)
{
    return eviction_n_kept(p->cached);
}

/* The depth of a page in its prefix comes from its parent, if that is here (eviction_begin()). */
void pages_own(struct pages *p, int32_t page, uint64_t space, struct retain r)
{
    must(p->page[page].n_tokens > 0);
    p->page[page].space = space;
    eviction_begin(p->cached, page, pages_look(p, &p->page[page].parent), r);
}

void pages_retain(struct pages *p, int32_t page, struct retain r)
{
    if (p->page[page].n_tokens == p->page_tokens)
        eviction_retain(p->cached, page, r);
}

/* A page in use keeps its content, and becomes free with its last reference. */
void pages_drop(struct pages *p, int32_t page)
{
    if (p->page[page].n_tokens == 0)
        return;
    pages_forget(p, page);
    if (p->page[page].refs == 0)
        pages_list_push(p, &p->free, page);
}

/* The next page is read before the drop, which changes the list. */
void pages_drop_parts(struct pages *p, const struct hash *parent)
{
    int32_t i = p->families[table_home(&p->table, parent)];

    while (i != -1) {
        const struct page *page = &p->page[i];
        int32_t elder = page->elder;

        if (page->n_tokens < p->page_tokens && memcmp(&page->parent, parent, sizeof *parent) == 0)
            pages_drop(p, i);
        i = elder;
    }
}

bool pages_is_part(const struct pages *p, int32_t page, uint64_t *space)
{
    const struct page *pg = &p->page[page];

    *space = pg->space;
    return pg->n_tokens > 0 && pg->n_tokens < p->page_tokens;
}

void pages_set_stored(struct pages *p, int32_t page)
{
    p->page[page].stored = true;
}

bool pages_stored(const struct pages *p, int32_t page)
{
    return p->page[page].stored;
}

void pages_set_drafted(struct pages *p, int32_t page, bool is_drafted)
{
    p->page[page].drafted = is_drafted;
}

bool pages_drafted(const struct pages *p, int32_t page)
{
    return p->page[page].drafted;
}

int pages_count(const struct pages *p)
{
    return p->n_pages;
}

int pages_free(const struct pages *p)
{
    return p->free.count + eviction_count(p->cached);
}

int pages_named(const struct pages *p)
{
    return p->n_full;
}

int pages_cached(const struct pages *p)
{
    return eviction_count(p->cached);
}

/* --- checks ----------------------------------------------------------------------------------- */

/* The free list is doubly linked, and its pages have neither references nor names. */
static int pages_walk_free(const struct pages *p)
{
    int n = 0;
    int32_t prev = -1;

    /* The bound on n is tested first, so a list that became a ring ends in a failure and not in
     * an endless loop. */
    for (int32_t i = p->free.first; i != -1; i = p->page[i].next) {
        must(n < p->n_pages);
        must(p->page[i].refs == 0);
        must(p->page[i].n_tokens == 0);
        must(p->page[i].prev == prev);
        prev = i;
        n++;
    }
    must(p->free.last == prev);
    must(p->free.count == n);
    return n;
}

/* The number of pages in families; each is in the bucket of its parent's name. */
static int pages_walk_families(const struct pages *p)
{
    int n = 0;

    /* One slot per bucket of the table, with its pages from the youngest to the eldest. */
    for (uint32_t slot = 0; slot <= p->table.mask; slot++) {
        int32_t younger = -1;

        for (int32_t i = p->families[slot]; i != -1; i = p->page[i].elder) {
            must(n < p->n_pages);
            must(p->page[i].n_tokens > 0);
            /* A page in the wrong bucket would never be found by the name of its parent. */
            must(table_home(&p->table, &p->page[i].parent) == slot);
            must(p->page[i].younger == younger);
            younger = i;
            n++;
        }
    }
    return n;
}

void pages_check(const struct pages *p)
{
    int n_unused = pages_walk_free(p) + eviction_count(p->cached);
    int n_used = 0;
    int n_cached = 0;
    int n_named = 0;
    int n_full = 0;

    for (int32_t i = 0; i < p->n_pages; i++) {
        const struct page *page = &p->page[i];

        must(page->refs >= 0);
        /* Count the pages by state. */
        n_used += page->refs > 0;
        n_named += page->n_tokens > 0;
        n_full += page->n_tokens == p->page_tokens;
        n_cached += page->n_tokens > 0 && page->refs == 0;
        /* Only full pages have retention. */
        if (page->n_tokens == 0)
            must(eviction_retained(p->cached, i).rank == 0);
        if (page->n_tokens == p->page_tokens)
            must(table_find(&p->table, &page->name) == i);
        else
            must(eviction_retained(p->cached, i).rank == 0);
    }
    eviction_check(p->cached);
    /* Every page is in exactly one of: free list, eviction order, in use. */
    must(n_cached == eviction_count(p->cached));
    must(n_unused + n_used == p->n_pages);
    must(n_full == (int)table_count(&p->table) && n_full == p->n_full);
    must(n_named == pages_walk_families(p));
}
