/* What the layers of a model keep of a sequence, and where: the one place that knows a page's
 * inside.
 *
 * All pages have the same bytes. Layers that keep the same tokens are a set; a set whose layers do
 * not fit one page together is cut into several groups, each with a table of its own. A page of a
 * group holds page_tokens tokens of its layers, one layer behind the other, each [K|V][kv_head]
 * [page_tokens][head_dim]. States are one group: those of its layers stand one behind the other
 * in n_state_pages pages, read as if they were one piece. */
#ifndef QUIRE_MODEL_CACHE_H
#define QUIRE_MODEL_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/hash.h"
#include "model/batch.h"
#include "model/plan.h"

/* Where a layer has its part. */
struct cache_place {
    int group;
    size_t at; /* elements from a page's start; of a state, floats from the state's */
};

struct cache {
    size_t page_bytes;
    int page_tokens;
    int n_groups;
    struct cache_group groups[CACHE_GROUPS_MAX];
    int n_layers;
    struct cache_place *layers; /* [n_layers] */
};

/* Full groups first, then windows, then states. Pages have the size that wastes least in all groups
 * together or, within an eighth of that, a larger one, but not a larger one than all layers of the
 * smallest set need, unless there would be more than CACHE_GROUPS_MAX groups. elem_bytes: of keys
 * and values.
 *
 * ERR_NO_MEMORY; ERR_UNSUPPORTED (logged) for layers with too many different windows. */
int cache_make(struct cache *out, const struct plan *plan, int page_tokens,
               size_t elem_bytes) ERR_CHECKED;
void cache_fini(struct cache *c); /* accepts {0} */

/* Pages of a table for n_tokens tokens, which all groups but states have. */
int cache_pages(const struct cache *c, int n_tokens);

/* The first of these whose tokens one at position pos or behind it sees. */
int cache_first_page(const struct cache *c, const struct cache_group *g, int pos);

/* The least number of pages with which a sequence of n_tokens tokens can be computed: all of full
 * groups, of a window those that a token sees and one more, of states two. */
int cache_need(const struct cache *c, int n_tokens);

/* The most tokens for which n_pages are enough, up to n_tokens; 0: none. */
int cache_tokens(const struct cache *c, int n_pages, int n_tokens);

/* Entries that a row of a table must have room for, of sequences of n_tokens tokens. */
int cache_row(const struct cache *c, int n_tokens);

/* Whether all layers keep all tokens, in one group. */
bool cache_is_simple(const struct cache *c);

/* The hash before, and what is in which page. */
struct hash cache_digest(const struct cache *c, struct hash before);

#endif
