/* SPDX-License-Identifier: Apache-2.0
 *
 * Page tables: entries [first, n) are pages with one reference each. In tables of tokens the page
 * of token t is entry t / page_tokens, and all of them have the same n. Example: 40 tokens
 * computed, pages of 16, a window of 16:
 *
 *   CACHE_FULL    first 0, n 3: pages 0 1 2
 *   CACHE_WINDOW  first 1, n 3: pages   1 2, because token 40 attends to 25 .. 40
 *   CACHE_STATE   first 0, n n_state_pages */
#include "engine/tables.h"

#include <limits.h>

#include "base/mem.h"
#include "base/must.h"
#include "ipc/prefix.h"

#define PART_PARENT (-1) /* no page has the name of this part */

/* States have pages too, but no page per tokens: most loops treat them apart. */
static bool tables_is_state(const struct tables *t, int g)
{
    return t->groups[g].kind == CACHE_STATE;
}

/* How many pages before a page border a token after the border attends to. */
static int tables_seen(const struct tables *t, int g)
{
    const struct cache_group *of = &t->groups[g];
    int block = t->limits.page_tokens;

    switch (of->kind) {
    case CACHE_FULL: return INT_MAX;
    case CACHE_WINDOW: return (of->window - 1 + block - 1) / block;
    case CACHE_STATE: break;
    }
    return 0;
}

static int tables_pages_of(const struct tables *t, int n_tokens)
{
    return (n_tokens + t->limits.page_tokens - 1) / t->limits.page_tokens;
}

/* The most names that tables_names() can write: one per token group and one per page of a state. */
int tables_names_max(const struct tables *t)
{
    return t->n_token_groups + t->n_state_pages;
}

/* The list of evictions has room for every page: each can be evicted once before the list is
 * emptied. */
int tables_init(struct tables *t, const struct tables_limits *limits, struct pages *pages)
{
    int block = limits->page_tokens;

    must(limits->n_groups >= 1 && limits->n_groups <= CACHE_GROUPS_MAX);
    *t = (struct tables){.limits = *limits,
                         .pages = pages,
                         .stride = (TABLES_STRIDE + block - 1) / block * block,
                         .evictions_cap = pages_count(pages)};
    for (int group = 0; group < limits->n_groups; group++) {
        t->groups[group] = limits->groups[group];
        t->n_token_groups += !tables_is_state(t, group);
        t->n_full_groups += t->groups[group].kind == CACHE_FULL;
        if (tables_is_state(t, group))
            t->n_state_pages += t->groups[group].n_state_pages;
    }
    if (tables_names_max(t) > TABLES_NAMES_MAX)
        return ERR_LIMIT;
    /* Per sequence the copies of its begin and of a snapshot; two sequences may be displaced in one
     * plan. */
    t->copies_cap = (limits->max_num_seqs + 2) * (t->n_token_groups + 2 * t->n_state_pages);
    t->evictions = mem_zalloc_array((size_t)t->evictions_cap, sizeof *t->evictions);
    t->copies = mem_zalloc_array((size_t)t->copies_cap, sizeof *t->copies);
    t->used = mem_zalloc_array((size_t)t->evictions_cap, sizeof *t->used);
    if (t->evictions == NULL || t->copies == NULL || t->used == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

void tables_fini(struct tables *t)
{
    mem_free(t->evictions);
    mem_free(t->copies);
    mem_free(t->used);
    t->evictions = NULL;
    t->copies = NULL;
    t->used = NULL;
}

/* The eviction is only listed; the engine saves the page before the step that overwrites it. */
int32_t tables_take_page(struct tables *t)
{
    struct tables_eviction eviction;
    bool evicted;

    eviction.page = pages_take(t->pages, &evicted, &eviction.label);
    /* The list is emptied every step; a page that is evicted twice in one step is not worth
     * saving. */
    if (evicted && t->n_evictions < t->evictions_cap)
        t->evictions[t->n_evictions++] = eviction;
    return eviction.page;
}

/* A copy keeps its source referenced, so that the source cannot be evicted before the copy is
 * enqueued. The target belongs to the sequence. */
static void tables_copy(struct tables *t, int32_t from, int32_t to)
{
    must(t->n_copies < t->copies_cap);
    t->copies[t->n_copies++] = (struct tables_copy){.from = from, .to = to};
}

/* The copies are in the device's queue, which keeps their order with later writes: the sources may
 * be evicted now. */
void tables_copied(struct tables *t)
{
    for (int i = 0; i < t->n_copies; i++)
        pages_unref(t->pages, t->copies[i].from);
    t->n_copies = 0;
}

/* --- names ---------------------------------------------------------------------------------- */

/* The lower tiers keep a page as long as another names it as its parent. Pages of a window and
 * snapshots outlive those before them, so they name a parent that does not exist. */
struct hash tables_parent(const struct tables *t, int group, const struct hash *chain)
{
    return prefix_group_name(chain, group, t->groups[group].kind == CACHE_FULL ? 0 : PART_PARENT);
}

/* A page is needed if the next token after n pages attends to it: every page of a full group, the
 * last pages of a window, and only the last snapshot. */
int tables_names(const struct tables *t, int i, int n, const struct hash *chain,
                 const struct hash *before, struct tables_name *names)
{
    int n_names = 0;

    for (int group = 0; group < t->limits.n_groups; group++) {
        bool is_state = tables_is_state(t, group);
        int n_parts = is_state ? t->groups[group].n_state_pages : 1;

        if (n > 0 && (is_state ? i + 1 < n : tables_seen(t, group) < n - i))
            continue;
        for (int part = 0; part < n_parts; part++)
            names[n_names++] =
                (struct tables_name){.name = prefix_group_name(chain, group, part),
                                     .parent = tables_parent(t, group, is_state ? chain : before)};
    }
    return n_names;
}

/* --- cached prefixes ------------------------------------------------------------------------ */

/* The last token must be computed, because its logits give the next one. */
int tables_reusable(const struct seq *seq)
{
    if (seq_tells_prompt(seq))
        return seq->n_told;
    return seq->n_tokens - 1;
}

/* State of the walk over a prefix, page by page: how many pages each group has without a gap, up to
 * the page that was looked at last. */
struct tables_walk {
    const struct tables *t;
    tables_has_fn *has;
    void *context;
    int run[CACHE_GROUPS_MAX]; /* pages without a gap; of a state unused */
    int found[CACHE_KINDS];    /* pages of the longest prefix that all groups of a kind can serve */
    int branch;                /* and all groups of tokens */
};

/* A snapshot is of use only with all its parts. */
static bool tables_has_state(const struct tables_walk *walk, int g, const struct hash *chain,
                             const int32_t *tokens)
{
    for (int part = 0; part < walk->t->groups[g].n_state_pages; part++) {
        struct hash name = prefix_group_name(chain, g, part);

        if (!walk->has(walk->context, &name, tokens))
            return false;
    }
    return true;
}

/* Look at the i-th page, the end of the prefix `chain`. *usable: the prefix of i + 1 pages can be
 * used. False: no longer prefix can be used either, because a full group has a gap. */
static bool tables_walk_page(struct tables_walk *walk, int i, const struct hash *chain,
                             const int32_t *tokens, bool *usable)
{
    const struct tables *tables = walk->t;
    bool serves[CACHE_KINDS] = {true, true, true};
    bool goes_on = true;

    for (int group = 0; group < tables->limits.n_groups && goes_on; group++) {
        int seen = tables_seen(tables, group);
        bool *does = &serves[tables->groups[group].kind];

        if (tables_is_state(tables, group)) {
            *does = *does && tables_has_state(walk, group, chain, tokens);
        } else {
            struct hash name = prefix_group_name(chain, group, 0);
            bool has = seen > 0 && walk->has(walk->context, &name, tokens);

            walk->run[group] = has ? walk->run[group] + 1 : 0;
            *does = *does && walk->run[group] >= (seen < i + 1 ? seen : i + 1);
            goes_on = has || tables->groups[group].kind != CACHE_FULL;
        }
    }
    for (int kind = 0; kind < CACHE_KINDS && goes_on; kind++) {
        if (serves[kind])
            walk->found[kind] = i + 1;
    }
    if (goes_on && serves[CACHE_FULL] && serves[CACHE_WINDOW])
        walk->branch = i + 1;
    *usable = goes_on && serves[CACHE_FULL] && serves[CACHE_WINDOW] && serves[CACHE_STATE];
    return goes_on;
}

/* The walk does not stop at the first prefix that cannot be used: a longer one can be, where a
 * window's pages or a snapshot are available again. */
static int tables_walk_prefix(struct tables_walk *walk, const struct seq *seq, struct hash *chain)
{
    int block = walk->t->limits.page_tokens, n_tokens = tables_reusable(seq);
    struct hash name = seq->root;
    bool goes_on = true;
    int best = 0;

    *chain = seq->root;
    for (int i = 0; goes_on && (i + 1) * block <= n_tokens; i++) {
        const int32_t *of_page = seq->tokens + (size_t)i * (size_t)block;
        bool usable;

        name = prefix_name(&name, of_page, block);
        goes_on = tables_walk_page(walk, i, &name, of_page, &usable);
        if (usable) {
            best = i + 1;
            *chain = name;
        }
    }
    return best;
}

int tables_reach(const struct tables *t, const struct seq *seq, tables_has_fn *has, void *context,
                 struct hash *chain)
{
    struct tables_walk walk = {.t = t, .has = has, .context = context};

    return tables_walk_prefix(&walk, seq, chain);
}

/* The device's own cache, as a sequence's tenant sees it. */
struct tables_device {
    const struct pages *pages;
    uint64_t maker;
    bool foreign; /* a page that was found is another tenant's */
};

/* `has` for a walk: is the page on the device? */
static bool tables_on_device(void *context, const struct hash *name, const int32_t *tokens)
{
    struct tables_device *d = context;
    int32_t page = pages_look(d->pages, name);

    (void)tokens; /* the name is a hash of them */
    if (page == -1)
        return false;
    d->foreign = d->foreign || !pages_is_theirs(d->pages, page, d->maker);
    return true;
}

/* Without prefix caching no page has a name, and nothing is found. */
int tables_match(const struct tables *t, const struct seq *seq, struct hash *chain)
{
    struct tables_device device = {.pages = t->pages, .maker = PAGES_ANYBODY};

    *chain = seq->root;
    if (!t->limits.prefix_caching)
        return 0;
    return tables_reach(t, seq, tables_on_device, &device, chain);
}

/* The prompt that comes next may be the one that was used longest ago, as where prompts come in
 * turn. A page has one name, so none is listed twice. */
void tables_use_prefix(struct tables *t, const struct seq *seq, int n)
{
    struct tables_name names[TABLES_NAMES_MAX];
    int block = t->limits.page_tokens, n_used = 0;
    struct hash chain = seq->root;

    for (int i = 0; i < n; i++) {
        struct hash before = chain;
        int n_names;

        chain = prefix_name(&before, seq->tokens + (size_t)i * (size_t)block, block);
        n_names = tables_names(t, i, n, &chain, &before, names);
        for (int part = 0; part < n_names; part++) {
            int32_t page = pages_look(t->pages, &names[part].name);

            if (page != -1)
                t->used[n_used++] = page;
        }
    }
    while (n_used > 0) {
        int32_t page = t->used[--n_used];

        pages_ref(t->pages, page);
        pages_unref(t->pages, page);
    }
}

/* As tables_match(); and note in seq what groups have beyond, and where a snapshot was missed. */
static int tables_search(const struct tables *t, struct seq *seq)
{
    struct tables_device device = {.pages = t->pages, .maker = seq->maker};
    struct tables_walk walk = {.t = t, .has = tables_on_device, .context = &device};
    int block = t->limits.page_tokens;
    struct hash chain;
    int n = 0;

    if (t->limits.prefix_caching)
        n = tables_walk_prefix(&walk, seq, &chain);
    seq->n_branch = 0;
    if (t->n_token_groups > 0 && (walk.branch - n) * block >= TABLES_BRANCH)
        seq->n_branch = walk.branch * block;
    for (int kind = 0; kind < CACHE_KINDS; kind++)
        seq->n_found[kind] = walk.found[kind] * block;
    seq->found_foreign = device.foreign;
    return n;
}

/* Reference the pages that a prefix of n pages needs at its i-th page. They exist: tables_match()
 * has just found them. */
static void tables_take_at(struct tables *t, struct seq *seq, int i, int n)
{
    int idx = 0;

    for (int group = 0; group < t->limits.n_groups; group++) {
        struct seq_table *of = &seq->tables[group];

        if (tables_is_state(t, group)) {
            for (int part = 0; i + 1 == n && part < t->groups[group].n_state_pages; part++) {
                struct hash name = prefix_group_name(&seq->chain, group, part);

                seq->newest.pages[idx] = pages_find(t->pages, &name);
                must(seq->newest.pages[idx++] != -1);
            }
        } else if (tables_seen(t, group) < n - i) {
            of->first = of->n = i + 1;
        } else {
            struct hash name = prefix_group_name(&seq->chain, group, 0);

            of->pages[i] = pages_find(t->pages, &name);
            must(of->pages[i] != -1);
            of->n = i + 1;
        }
    }
}

/* Did seq's tenant compute all pages at i? Hits on pages of other tenants would reveal their
 * prompts. */
static bool tables_are_theirs(const struct tables *t, const struct seq *seq, int i)
{
    for (int group = 0; group < t->limits.n_groups; group++) {
        const struct seq_table *of = &seq->tables[group];

        if (!tables_is_state(t, group) && i >= of->first &&
            !pages_is_theirs(t->pages, of->pages[i], seq->maker))
            return false;
    }
    return true;
}

/* Tokens of seq's cached prefix that other tenants computed. If the snapshot is another tenant's,
 * all are. */
static int tables_foreign(const struct tables *t, const struct seq *seq)
{
    int n = 0;

    for (int part = 0; seq->newest.at > 0 && part < t->n_state_pages; part++) {
        if (!pages_is_theirs(t->pages, seq->newest.pages[part], seq->maker))
            return seq->n_computed;
    }
    for (int i = 0; i < seq->n_named; i++)
        if (!tables_are_theirs(t, seq, i))
            n += t->limits.page_tokens;
    return n;
}

/* After this, n_computed tokens need no computing, and the pages of the prefix cannot be
 * evicted. */
void tables_take_prefix(struct tables *t, struct seq *seq)
{
    int block = t->limits.page_tokens;
    int n = tables_search(t, seq);

    seq->chain = seq->root;
    for (int i = 0; i < n; i++) {
        seq->chain = prefix_name(&seq->chain, seq->tokens + (size_t)i * (size_t)block, block);
        tables_take_at(t, seq, i, n);
    }
    seq->n_named = n;
    seq->n_computed = n * block;
    seq->newest.at = t->n_state_pages > 0 ? seq->n_computed : 0;
    seq->n_snapped = seq->newest.at;
    seq->n_foreign = tables_foreign(t, seq);
}

/* --- taking pages --------------------------------------------------------------------------- */

/* A window never holds more pages than its length needs, plus two for a step's borders. */
int tables_lacks(const struct tables *t, const struct seq *seq)
{
    int n_pages = tables_pages_of(t, seq->n_tokens);
    int lacks = 0;

    for (int group = 0; group < t->limits.n_groups; group++) {
        const struct cache_group *of = &t->groups[group];
        int n = n_pages - seq->tables[group].n;

        if (of->kind == CACHE_STATE) {
            n = of->n_state_pages - seq->tables[group].n;
        } else if (of->kind == CACHE_WINDOW) {
            /* Steps are shortened to the free pages (tables_clip_windows()). */
            int most = tables_pages_of(t, of->window) + 2;

            if (n > most)
                n = most;
        }
        if (n > 0)
            lacks += n;
    }
    return lacks;
}

/* All groups grow together, so that a false result leaves them at most one page apart. */
bool tables_grow(struct tables *t, struct seq *seq, int n_tokens)
{
    int n_pages = tables_pages_of(t, n_tokens);

    for (int group = 0; group < t->limits.n_groups; group++) {
        struct seq_table *of = &seq->tables[group];
        int need = tables_is_state(t, group) ? t->groups[group].n_state_pages : n_pages;

        while (of->n < need) {
            int32_t page = tables_take_page(t);

            if (page == -1)
                return false;
            of->pages[of->n++] = page;
        }
    }
    return true;
}

/* The states begin as copies of the snapshot, because steps overwrite them. */
static void tables_restore(struct tables *t, struct seq *seq)
{
    int idx = 0;

    if (seq->newest.at == 0)
        return;
    for (int group = 0; group < t->limits.n_groups; group++) {
        struct seq_table *of = &seq->tables[group];

        for (int part = 0; tables_is_state(t, group) && part < t->groups[group].n_state_pages;
             part++) {
            of->pages[of->n] = tables_take_page(t);
            must(of->pages[of->n] != -1); /* counted by tables_lacks() */
            tables_copy(t, seq->newest.pages[idx++], of->pages[of->n++]);
        }
    }
    seq->newest.at = 0; /* its references belong to the copies now */
}

/* Find for each token group a page that begins with seq's next tokens; returns how many of them all
 * groups' pages have. */
static int tables_find_parts(struct tables *t, const struct seq *seq, int n, int32_t *from)
{
    int n_same = INT_MAX;

    for (int group = 0; group < t->limits.n_groups; group++) {
        struct hash parent = tables_parent(t, group, &seq->chain);
        int same = 0;

        from[group] = -1;
        if (n_same > 0)
            from[group] = pages_find_part(t->pages, &parent, seq->tokens + seq->n_computed, n,
                                          seq->maker, &same);
        if (from[group] == -1)
            same = 0;
        if (same < n_same)
            n_same = same;
    }
    return n_same;
}

/* Where seq diverges inside a cached page, the page begins with some of seq's next tokens: they are
 * taken over in a copy. A state has no such part, because it exists only after whole pages.
 *
 *   cached page   a b c d e f g h      seq's next tokens   a b c x y
 *   seq's own page  a b c _ _ _ _ _      copied for a b c; x y are computed */
static void tables_copy_parts(struct tables *t, struct seq *seq)
{
    int block = t->limits.page_tokens, n_groups = t->limits.n_groups;
    int n = tables_reusable(seq) - seq->n_computed;
    int32_t from[CACHE_GROUPS_MAX];
    int n_same;

    if (!t->limits.prefix_caching || t->n_state_pages > 0 || n <= 0 ||
        t->n_copies + n_groups > t->copies_cap)
        return;
    if (n > block)
        n = block;
    n_same = tables_find_parts(t, seq, n, from);
    /* Referencing them took them from the free pages that tables_lacks() counted on: too few may be
     * left. */
    if (n_same == 0 || pages_free(t->pages) < tables_lacks(t, seq)) {
        for (int group = 0; group < n_groups; group++) {
            if (from[group] != -1)
                pages_unref(t->pages, from[group]);
        }
        return;
    }
    for (int group = 0; group < n_groups; group++) {
        struct seq_table *of = &seq->tables[group];

        of->pages[of->n] = tables_take_page(t);
        must(of->pages[of->n] != -1);
        tables_copy(t, from[group], of->pages[of->n++]);
        t->n_parts++;
    }
    seq->n_computed += n_same;
}

/* States first: they need pages that the count in tables_lacks() has set aside. */
void tables_begin(struct tables *t, struct seq *seq)
{
    tables_restore(t, seq);
    tables_copy_parts(t, seq);
}

/* An estimate: each running sequence may need one page for its next token, and one of them a
 * chunk's pages. */
int tables_margin(const struct tables *t, int n_running)
{
    return (n_running + t->limits.chunk_tokens / t->limits.page_tokens + 1) * t->n_token_groups;
}

/* --- snapshots ------------------------------------------------------------------------------ */

/* The last page border before the last of n tokens: a prompt with these n tokens can start
 * there. */
static int tables_border(const struct tables *t, int n)
{
    return n < 1 ? 0 : (n - 1) / t->limits.page_tokens * t->limits.page_tokens;
}

/* Pages of a window are given back soon, so it is better to compute less now than to preempt a
 * sequence for them: a step takes no more of them than are free. */
static int tables_clip_windows(const struct tables *t, int n)
{
    int n_pages = pages_free(t->pages) / t->n_token_groups - 1;
    int most = (n_pages > 1 ? n_pages : 1) * t->limits.page_tokens;

    if (n < most)
        return n;
    return most;
}

/* A snapshot can be taken only between steps, so a step must end at the next place where one is
 * due: a multiple of the stride, the last border of the prompt, or where it leaves a cached one. */
int tables_clip(const struct tables *t, const struct seq *seq, int n)
{
    int first = seq->n_computed + seq->n_ahead;
    int next = (first / t->stride + 1) * t->stride;
    int border = tables_border(t, seq->n_tokens);

    if (t->n_full_groups < t->n_token_groups)
        n = tables_clip_windows(t, n);
    if (t->n_state_pages == 0 || !t->limits.prefix_caching)
        return n;
    if (border > first && border < next)
        next = border;
    if (seq->n_branch > first && seq->n_branch < next)
        next = seq->n_branch;
    if (n < next - first)
        return n;
    return next - first;
}

/* Where snapshots are due: at the stride, where the prompt leaves a cached one, at its last border,
 * and at each border of the output. */
static bool tables_wants_snapshot(const struct tables *t, const struct seq *seq, int at)
{
    if (at == 0 || at % t->limits.page_tokens != 0 || at <= seq->n_snapped || seq->taken.at != 0)
        return false;
    return at % t->stride == 0 || at == seq->n_branch || at == tables_border(t, seq->n_prompt) ||
           at >= seq->n_prompt;
}

/* Enqueue a copy of seq's states, in pages that are taken for it: pages_free() has said that they
 * are there. */
static void tables_copy_states(struct tables *t, struct seq *seq, struct seq_snapshot *to, int at)
{
    int idx = 0;

    for (int group = 0; group < t->limits.n_groups; group++) {
        for (int part = 0; tables_is_state(t, group) && part < t->groups[group].n_state_pages;
             part++) {
            int32_t from = seq->tables[group].pages[part];

            to->pages[idx] = tables_take_page(t);
            pages_ref(t->pages, from);
            tables_copy(t, from, to->pages[idx++]);
        }
    }
    to->at = at;
}

/* The copy is enqueued with the plan's copies, before the next step overwrites the states. */
void tables_snapshot(struct tables *t, struct seq *seq)
{
    int at = seq->n_computed + seq->n_ahead;

    if (t->n_state_pages == 0 || !t->limits.prefix_caching || !tables_wants_snapshot(t, seq, at))
        return;
    /* Pages are short: a snapshot would cost another sequence its pages. The prefix is then found
     * up to an earlier snapshot. */
    if (pages_free(t->pages) < t->n_state_pages + tables_margin(t, 1) ||
        t->n_copies + t->n_state_pages > t->copies_cap)
        return;
    tables_copy_states(t, seq, &seq->taken, at);
    seq->n_snapped = at;
    t->n_snapshots++;
}

/* The pages keep their names, if they have any, and stay in the cache. */
static void tables_drop_snapshot(struct tables *t, struct seq_snapshot *s)
{
    for (int part = 0; s->at > 0 && part < t->n_state_pages; part++)
        pages_unref(t->pages, s->pages[part]);
    s->at = 0;
}

bool tables_keep(struct tables *t, struct seq *seq, int n_running)
{
    if (t->n_state_pages == 0)
        return true;
    must(seq->n_ahead == 0 && seq->kept.at == 0);
    if (seq->n_computed == 0 ||
        pages_free(t->pages) < t->n_state_pages + tables_margin(t, n_running) ||
        t->n_copies + t->n_state_pages > t->copies_cap)
        return false;
    tables_copy_states(t, seq, &seq->kept, seq->n_computed);
    return true;
}

/* The copies become the states. n_computed has not grown, so no page of tokens was named or given
 * back since: those of right drafts are computed again, with equal keys and values. */
void tables_go_back(struct tables *t, struct seq *seq)
{
    int idx = 0;

    must(seq->kept.at > 0 && seq->kept.at == seq->n_computed);
    for (int group = 0; group < t->limits.n_groups; group++) {
        for (int part = 0; tables_is_state(t, group) && part < t->groups[group].n_state_pages;
             part++) {
            int32_t *page = &seq->tables[group].pages[part];

            pages_unref(t->pages, *page);
            *page = seq->kept.pages[idx++];
        }
    }
    seq->kept.at = 0;
}

void tables_forget(struct tables *t, struct seq *seq)
{
    tables_drop_snapshot(t, &seq->kept);
}

int tables_to_border(const struct tables *t, const struct seq *seq)
{
    int block = t->limits.page_tokens;

    if (t->n_state_pages == 0 || !t->limits.prefix_caching)
        return INT_MAX;
    return block - seq->n_computed % block;
}

/* Name a page of seq, the end of its first n_tokens tokens. False: another page has this name
 * already; that one gets seq's retention. */
static bool tables_name(struct tables *t, const struct seq *seq, int32_t page,
                        const struct tables_name *name, int n_tokens)
{
    int block = t->limits.page_tokens;
    struct retain retain = seq_retain(seq, n_tokens);

    if (!pages_name(t->pages, page, &name->name, &name->parent, seq->tokens + n_tokens - block)) {
        pages_retain(t->pages, pages_look(t->pages, &name->name), retain);
        return false;
    }
    pages_own(t->pages, page, prefix_space(&seq->root), retain);
    pages_set_maker(t->pages, page, seq->maker);
    return true;
}

/* A new snapshot of the output replaces the one before it, because a conversation continues from
 * its end. */
static void tables_replace_newest(struct tables *t, struct seq *seq)
{
    for (int part = 0; seq->newest.at > 0 && part < t->n_state_pages; part++) {
        pages_drop(t->pages, seq->newest.pages[part]);
        pages_unref(t->pages, seq->newest.pages[part]);
    }
    seq->newest.at = seq->taken.at;
    for (int part = 0; part < t->n_state_pages; part++)
        seq->newest.pages[part] = seq->taken.pages[part];
    seq->taken.at = 0;
}

/* The snapshot after seq's named pages is computed: name its parts. Snapshots of the output are
 * kept by the sequence until the next one; they are not saved below, because they change often. */
static void tables_name_snapshot(struct tables *t, struct seq *seq, tables_named_fn *named,
                                 void *context)
{
    bool of_output = seq->taken.at >= seq->n_prompt;
    bool good = true;
    int idx = 0;

    for (int group = 0; group < t->limits.n_groups; group++) {
        for (int part = 0; tables_is_state(t, group) && part < t->groups[group].n_state_pages;
             part++) {
            struct tables_name name = {.name = prefix_group_name(&seq->chain, group, part),
                                       .parent = tables_parent(t, group, &seq->chain)};
            int32_t page = seq->taken.pages[idx++];

            good = tables_name(t, seq, page, &name, seq->taken.at) && good;
            if (good && !of_output)
                named(context, page);
        }
    }
    if (of_output && good) {
        tables_replace_newest(t, seq);
        return;
    }
    while (idx > 0)
        pages_unref(t->pages, seq->taken.pages[--idx]);
    seq->taken.at = 0;
}

/* --- steps that end ------------------------------------------------------------------------- */

/* Name the next page of each token group: its tokens are computed. */
static void tables_name_next(struct tables *t, struct seq *seq, tables_named_fn *named,
                             void *context)
{
    int block = t->limits.page_tokens, i = seq->n_named++;
    struct hash before = seq->chain;

    seq->chain = prefix_name(&before, seq->tokens + (size_t)i * (size_t)block, block);
    for (int group = 0; group < t->limits.n_groups; group++) {
        struct tables_name name = {.name = prefix_group_name(&seq->chain, group, 0),
                                   .parent = tables_parent(t, group, &before)};

        if (!tables_is_state(t, group) &&
            tables_name(t, seq, seq->tables[group].pages[i], &name, (i + 1) * block))
            named(context, seq->tables[group].pages[i]);
    }
}

/* Give back pages whose last token the next computed token does not attend to. */
static void tables_pass_windows(struct tables *t, struct seq *seq)
{
    for (int group = 0; group < t->limits.n_groups; group++) {
        struct seq_table *of = &seq->tables[group];
        int passed = seq->n_computed - t->groups[group].window + 1;

        if (t->groups[group].kind != CACHE_WINDOW)
            continue;
        while ((of->first + 1) * t->limits.page_tokens <= passed)
            pages_unref(t->pages, of->pages[of->first++]);
    }
}

/* A snapshot is enqueued while its tokens are computed or in flight. It is named when n_computed
 * has reached it, which is after the step that computed its tokens has ended. */
void tables_advance(struct tables *t, struct seq *seq, tables_named_fn *named, void *context)
{
    int block = t->limits.page_tokens;

    for (;;) { /* ends: n_named grows */
        if (seq->taken.at > 0 && seq->taken.at == seq->n_named * block)
            tables_name_snapshot(t, seq, named, context);
        if (!t->limits.prefix_caching || (seq->n_named + 1) * block > seq->n_computed)
            break;
        tables_name_next(t, seq, named, context);
    }
    tables_pass_windows(t, seq);
}

/* Applied when a sequence is admitted, to pages that others may have computed with less
 * retention. */
void tables_retain(struct tables *t, const struct seq *seq)
{
    for (int group = 0; group < t->limits.n_groups; group++) {
        const struct seq_table *of = &seq->tables[group];

        for (int i = of->first; i < of->n && !tables_is_state(t, group); i++)
            pages_retain(t->pages, of->pages[i], seq_retain(seq, (i + 1) * t->limits.page_tokens));
    }
    for (int part = 0; seq->newest.at > 0 && part < t->n_state_pages; part++)
        pages_retain(t->pages, seq->newest.pages[part], seq_retain(seq, seq->newest.at));
}

/* --- the end -------------------------------------------------------------------------------- */

/* The computed part of the page after the named ones can serve a prompt that continues there: it is
 * found by its parent and its tokens. Steps in flight may still write after those tokens, which
 * changes nothing for a reader. A page that the plan copies to gets no name, because its source has
 * all of these tokens. */
static void tables_keep_part(struct tables *t, const struct seq *seq)
{
    int block = t->limits.page_tokens;
    int n = seq->n_computed - seq->n_named * block;
    const int32_t *tokens = seq->tokens + (size_t)seq->n_named * (size_t)block;

    if (!t->limits.prefix_caching || t->n_state_pages > 0 || n <= 0)
        return;
    for (int group = 0; group < t->limits.n_groups; group++) {
        struct hash parent = tables_parent(t, group, &seq->chain);
        int32_t page = seq->tables[group].pages[seq->n_named];

        if (!pages_name_part(t->pages, page, &parent, tokens, n))
            continue;
        pages_own(t->pages, page, prefix_space(&seq->root), (struct retain){0});
        pages_set_maker(t->pages, page, seq->maker);
    }
}

/* Unreference the pages of all groups at i. */
static void tables_drop_at(struct tables *t, struct seq *seq, int i)
{
    for (int group = 0; group < t->limits.n_groups; group++) {
        struct seq_table *of = &seq->tables[group];

        if (of->n <= i)
            continue;
        if (i >= of->first)
            pages_unref(t->pages, of->pages[i]);
        of->n = i;
    }
}

/* From the end to the beginning: pages that are freed first are evicted first, and a prefix is
 * useful without its end but not without its beginning. */
void tables_drop(struct tables *t, struct seq *seq)
{
    int most = 0;

    tables_keep_part(t, seq);
    tables_drop_snapshot(t, &seq->taken);
    for (int group = 0; group < t->limits.n_groups; group++)
        most = most > seq->tables[group].n ? most : seq->tables[group].n;
    for (int i = most - 1; i >= 0; i--)
        tables_drop_at(t, seq, i);
    for (int group = 0; group < t->limits.n_groups; group++)
        seq->tables[group].first = 0;
    tables_drop_snapshot(t, &seq->newest);
    tables_drop_snapshot(t, &seq->kept);
    seq->n_named = 0;
    seq->n_snapped = 0;
    seq->chain = seq->root;
}

/* Called for every running sequence after each plan in the tests. */
void tables_check(const struct tables *t, const struct seq *seq)
{
    int block = t->limits.page_tokens;

    for (int group = 0; group < t->limits.n_groups; group++) {
        const struct seq_table *of = &seq->tables[group];

        if (tables_is_state(t, group)) {
            must(of->first == 0 && of->n == t->groups[group].n_state_pages);
            continue;
        }
        must(of->first <= of->n);
        must(of->n * block >= seq->n_computed + seq->n_ahead);
        must(t->groups[group].kind == CACHE_WINDOW || of->first == 0);
        must(of->first * block <= seq->n_computed);
    }
}
