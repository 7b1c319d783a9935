/* SPDX-License-Identifier: Apache-2.0
 *
 * The pages of a sequence: one page table per cache group of the model (struct cache_group).
 *
 * Pages of all groups have one size and come from one pool (kv/pages.h). They differ in their
 * names: a prefix of whole pages has one name in the chain of ipc/prefix.h, and the page of each
 * group at its end has a name that is derived from it. The lower tiers move pages by their names
 * and know nothing of groups.
 *
 *   CACHE_FULL    a page per page_tokens tokens, all of them
 *   CACHE_WINDOW  likewise, but pages that no later token attends to are given back
 *   CACHE_STATE   n_state_pages pages that every step overwrites. Copies of them, snapshots, are
 *                 taken after whole pages and named like pages: at the end of the prompt, at
 *                 every TABLES_STRIDE tokens of a long one, where it leaves the prefix that its
 *                 other groups found, and the newest of the output
 *
 * A cached prefix of n pages can be used if each group has the pages that the next token needs: all
 * n pages, those of the last window, the snapshot after page n. The longest such n is taken.
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
#define TABLES_BRANCH 128 /* tokens that a snapshot where prompts part must save the next of them */

struct tables_limits {
    int n_groups; /* 1 .. CACHE_GROUPS_MAX */
    const struct cache_group *groups;
    int page_tokens;
    int max_num_seqs;
    int chunk_tokens; /* most tokens of one sequence per step */
    bool prefix_caching;
};

/* A page that lost its name; its content is valid until the step runs. */
struct tables_eviction {
    int32_t page;
    struct page_label label;
};

/* A page to be copied before the step; `from` has a reference until tables_copied(). */
struct tables_copy {
    int32_t from, to;
};

struct tables {
    struct tables_limits limits;
    struct cache_group groups[CACHE_GROUPS_MAX];
    struct pages *pages; /* borrowed */
    int n_token_groups;  /* CACHE_FULL and CACHE_WINDOW */
    int n_full_groups;
    int n_state_pages; /* pages of all states of a sequence; 0: no group is CACHE_STATE */
    int stride;        /* TABLES_STRIDE, rounded up to whole pages; tokens */

    struct tables_eviction *evictions; /* [evictions_cap]; emptied by its reader */
    int n_evictions;
    int evictions_cap;
    /* To be carried out in this order, after the evictions are saved and before the step. */
    struct tables_copy *copies; /* [copies_cap] */
    int n_copies;
    int copies_cap;

    int32_t *used; /* int32 [evictions_cap]: work memory of tables_use_prefix() */

    uint64_t n_parts;     /* pages copied for their first tokens; never falls */
    uint64_t n_snapshots; /* snapshots taken; never falls */
};

int tables_init(struct tables *t, const struct tables_limits *limits,
                struct pages *pages) ERR_CHECKED;
void tables_fini(struct tables *t);

/* Take a page; an eviction is added to evictions. -1 when there is none. */
int32_t tables_take_page(struct tables *t);

/* All copies are enqueued: their sources are unreferenced. */
void tables_copied(struct tables *t);

/* --- cached prefixes --- */

/* Is a page, or a part of a snapshot, available? tokens: int32 [page_tokens], the last ones of the
 * prefix that it ends. */
typedef bool tables_has_fn(void *context, const struct hash *name, const int32_t *tokens);

/* The longest prefix of seq's reusable tokens, in whole pages, that can be used if `has` reports
 * the available pages; *chain is its name. Cost: a hash per page and group. */
int tables_reach(const struct tables *t, const struct seq *seq, tables_has_fn *has, void *context,
                 struct hash *chain);

/* The name of a page and of its parent (struct page_label). */
struct tables_name {
    struct hash name, parent;
};

/* The names of the pages at the end of the prefix `chain` of i + 1 pages, which follows the prefix
 * `before`: those that a prefix of n pages needs, i < n; with n 0, all that may exist. Fills names
 * [tables_names_max()] and returns how many. */
int tables_names(const struct tables *t, int i, int n, const struct hash *chain,
                 const struct hash *before, struct tables_name *names);
int tables_names_max(const struct tables *t);
#define TABLES_NAMES_MAX 512 /* bound of tables_names_max(): tables_init() refuses more */

/* The parent of a token group's page after the prefix `chain`; partly filled pages are found by
 * their parent (pages_drop_parts()). */
struct hash tables_parent(const struct tables *t, int group, const struct hash *chain);

/* How many of seq's tokens may come from cached pages: not the last one, whose row samples the next
 * token, and no token whose log probabilities are still to be reported. */
int tables_reusable(const struct seq *seq);

/* The longest prefix of seq that pages on the device can serve, in pages; takes no references. */
int tables_match(const struct tables *t, const struct seq *seq, struct hash *chain);

/* Of the pages that a prefix of n pages of seq needs, those that are on the device become its most
 * recently used ones, the first page last: so pages that are taken for the others are not these. */
void tables_use_prefix(struct tables *t, const struct seq *seq, int n);

/* --- a sequence's tables --- */

/* Reference the longest cached prefix: n_computed becomes its length, n_foreign the part that other
 * tenants computed, n_found what the groups of each kind could serve, as far as those of all tokens
 * reach. If a state alone made the prefix shorter, a snapshot is due where it could have ended. */
void tables_take_prefix(struct tables *t, struct seq *seq);

/* Pages that seq's known tokens need beyond those that it holds; for windows, as many as are held
 * at a time. */
int tables_lacks(const struct tables *t, const struct seq *seq);

/* seq is admitted after tables_take_prefix(), and tables_lacks() pages are free: its states are
 * copied from the snapshot, and where it diverges inside a cached page, a copy of that page serves
 * the tokens that they share. */
void tables_begin(struct tables *t, struct seq *seq);

/* Take pages for n_tokens; false when the pool is empty. Pages taken so far stay. */
bool tables_grow(struct tables *t, struct seq *seq, int n_tokens);

/* How many of n tokens a step may compute: it ends where a snapshot is due, and takes no more pages
 * of windows than are free. */
int tables_clip(const struct tables *t, const struct seq *seq, int n);

/* Before a plan: copy seq's states if a snapshot is due. Skipped when pages are short. */
void tables_snapshot(struct tables *t, struct seq *seq);

/* seq's next step is to compute drafts: copy its states, so that tables_go_back() can. n_running:
 * for whose next tokens pages stay free. False: there are too few. Without states there is nothing
 * to do. */
bool tables_keep(struct tables *t, struct seq *seq, int n_running);

/* A draft was wrong: the states are those before the step again. */
void tables_go_back(struct tables *t, struct seq *seq);

/* The step has ended well, or there was none: the copy is given back. */
void tables_forget(struct tables *t, struct seq *seq);

/* Tokens that a step of a decode may compute with its drafts: with states it ends at the next
 * border of pages, where a snapshot is due. */
int tables_to_border(const struct tables *t, const struct seq *seq);

/* n_computed has grown: name pages that are full and snapshots that are computed, and give back
 * pages that a window has passed. Calls named() for each page that is worth saving in a lower
 * tier. */
typedef void tables_named_fn(void *context, int32_t page);
void tables_advance(struct tables *t, struct seq *seq, tables_named_fn *named, void *context);

/* Apply seq's retention to the cached pages that it uses. */
void tables_retain(struct tables *t, const struct seq *seq);

/* Give all pages back, from the end of the prefix on, so that the end is evicted first. */
void tables_drop(struct tables *t, struct seq *seq);

/* Pages that a step may take beyond those that its sequences hold, if n_running continue. */
int tables_margin(const struct tables *t, int n_running);

/* Check that seq's tables agree with its computed tokens. must() on failure. */
void tables_check(const struct tables *t, const struct seq *seq);

#endif
