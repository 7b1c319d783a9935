/* The pages that sequences hold: for each cache group of the model (struct cache_group) a table.
 *
 * Pages of all groups are alike and come from one pool (kv/pages.h). They differ in their names: a
 * prefix of whole pages has one name in the chain of kv/prefix.h, and each group's page at its end
 * has a name that is made of that one. Everything below the device moves pages by their names and
 * knows nothing of groups.
 *
 *   CACHE_FULL    a page per page_tokens tokens, all of them
 *   CACHE_WINDOW  the same, but pages that no later token sees are given back
 *   CACHE_STATE   n_state_pages pages that every step overwrites. Copies of them, snapshots, are
 *                 taken behind whole pages and named as pages are: at the end of the prompt, at
 *                 every TABLES_STRIDE tokens of a long one, and the newest of the output
 *
 * A cached prefix of n pages can be used when each group has what the next token needs: all n
 * pages, those of the last window, the snapshot behind page n. The longest such n counts.
 *
 * Pure memory, like pages.h. The engine's thread alone. */
#ifndef QUIRE_ENGINE_TABLES_H
#define QUIRE_ENGINE_TABLES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/seq.h"
#include "kv/pages.h"
#include "model/batch.h"

#define TABLES_STRIDE 1024 /* tokens between snapshots of a long prompt; rounded up to pages */

struct tables_limits {
    int n_groups; /* 1 .. CACHE_GROUPS_MAX */
    const struct cache_group *groups;
    int page_tokens;
    int max_num_seqs;
    int chunk_tokens; /* most tokens of a sequence in a step */
    bool prefix_caching;
};

/* A page that lost its name; its content stands until the step runs. */
struct tables_eviction {
    int32_t page;
    struct page_label label;
};

/* A page to be copied before the step; `from` is referenced until tables_copied(). */
struct tables_copy {
    int32_t from, to;
};

struct tables {
    struct tables_limits limits;
    struct cache_group groups[CACHE_GROUPS_MAX];
    struct pages *pages; /* borrowed */
    int n_token_groups;  /* CACHE_FULL and CACHE_WINDOW */
    int n_full_groups;
    int n_state_pages; /* of a sequence's states together; 0: no group is CACHE_STATE */
    int stride;        /* TABLES_STRIDE in whole pages, tokens */

    struct tables_eviction *evictions; /* [evictions_cap]; emptied by their reader */
    int n_evictions;
    int evictions_cap;
    /* Behind the evictions and before the step, in this order. */
    struct tables_copy *copies; /* [copies_cap] */
    int n_copies;
    int copies_cap;

    uint64_t n_parts;     /* pages copied for their first tokens; only growing */
    uint64_t n_snapshots; /* taken; only growing */
};

int tables_init(struct tables *t, const struct tables_limits *limits,
                struct pages *pages) ERR_CHECKED;
void tables_fini(struct tables *t);

/* Take a page; reports an eviction. -1 when there is none. */
int32_t tables_take_page(struct tables *t);

/* The plan's copies are enqueued. */
void tables_copied(struct tables *t);

/* --- cached prefixes --- */

/* Whether a page, or a part of a snapshot, can be had. tokens: int32 [page_tokens], the last of
 * the prefix that it ends. */
typedef bool tables_has_fn(void *context, const struct hash *name, const int32_t *tokens);

/* The longest prefix of tokens [n_tokens], in whole pages, that could be used if `has` says which
 * pages there are; *chain is its name in the chain that begins with root. Cost: a hash per page and
 * group. */
int tables_reach(const struct tables *t, const struct hash *root, const int32_t *tokens,
                 int n_tokens, tables_has_fn *has, void *context, struct hash *chain);

/* A page's name and its parent's (struct page_label). */
struct tables_name {
    struct hash name, parent;
};

/* The pages that end the prefix of i + 1 pages `chain`, behind the prefix `before`: those that a
 * prefix of n pages needs, i < n; n 0: all that there may be. Fills names [n_names], which is
 * tables_names_max() long, and returns how many. */
int tables_names(const struct tables *t, int i, int n, const struct hash *chain,
                 const struct hash *before, struct tables_name *names);
int tables_names_max(const struct tables *t);
#define TABLES_NAMES_MAX 512 /* bound of tables_names_max(): tables_init() refuses more */

/* The parent that a token group's page behind the prefix `chain` has: parts of it are found by
 * that (pages_drop_parts()). */
struct hash tables_parent(const struct tables *t, int group, const struct hash *chain);

/* How many of q's tokens may come from pages that others computed: not the last, which gives the
 * next, nor those whose log probabilities are to be told. */
int tables_reusable(const struct seq *q);

/* The longest prefix of q that the device's pages can serve, in pages; takes no references. */
int tables_match(const struct tables *t, const struct seq *q, struct hash *chain);

/* --- a sequence's tables --- */

/* Reference the longest cached prefix: n_computed is its length, n_foreign the part that other
 * tenants computed. */
void tables_take_prefix(struct tables *t, struct seq *q);

/* Pages that q's known tokens need beside those that it holds; of windows as many as are held at a
 * time. */
int tables_lacks(const struct tables *t, const struct seq *q);

/* q is admitted behind tables_take_prefix(), and there are tables_lacks() pages: its states are
 * copied from the snapshot, and of the page where it leaves the cached ones the tokens that it
 * shares are taken over in a copy. */
void tables_begin(struct tables *t, struct seq *q);

/* Make room for n_tokens; false when the pool is empty. What was taken stays. */
bool tables_grow(struct tables *t, struct seq *q, int n_tokens);

/* How many of n tokens a step may compute: it ends where a snapshot is due, and needs no more pages
 * of windows than are free. */
int tables_clip(const struct tables *t, const struct seq *q, int n);

/* Before a plan: copy q's states where a snapshot is due. Skipped when pages are short. */
void tables_snapshot(struct tables *t, struct seq *q);

/* n_computed has grown: name pages that are full and snapshots that are computed, and give back
 * what a window has passed. Calls named() for each page that is worth saving below. */
typedef void tables_named_fn(void *context, int32_t page);
void tables_advance(struct tables *t, struct seq *q, tables_named_fn *named, void *context);

/* How long the cached pages that q uses are to stay. */
void tables_retain(struct tables *t, const struct seq *q);

/* Give all pages back, the end of the prefix first, so that it is evicted first. */
void tables_drop(struct tables *t, struct seq *q);

/* Pages that a step may take beside those that its sequences hold, if n_running go on. */
int tables_margin(const struct tables *t, int n_running);

/* Prove that q's tables agree with what it has computed. must() on failure. */
void tables_check(const struct tables *t, const struct seq *q);

#endif
