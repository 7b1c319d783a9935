/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout of a page: which layers keep their keys, values and states in it, and at which offset.
 * This is the only module that knows the inside of a page.
 *
 * All pages have the same bytes. Layers that keep the same tokens are a set; a set whose layers do
 * not fit one page together is cut into several groups, each with a page table of its own. A page
 * of a group holds page_tokens tokens of its layers, one layer after another, each [K|V][kv_head]
 * [page_tokens][head_dim]. A layer that reads another's keys and values has that one's place.
 * States form one group: the states of its layers follow one another in n_state_pages pages, which
 * are read as one piece. */
#ifndef QUIRE_MODEL_CACHE_H
#define QUIRE_MODEL_CACHE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "base/hash.h"
#include "model/batch.h"
#include "model/plan.h"

/* The position of a layer's part. */
struct cache_place {
    int group; /* 0 of a layer that keeps nothing */
    size_t at; /* elements from the page's start; for a state, from the state's start */
};

struct cache {
    size_t page_bytes;
    int page_tokens;
    int n_groups;
    struct cache_group groups[CACHE_GROUPS_MAX];
    int n_layers;
    struct cache_place *layers; /* [n_layers] */
};

/* Choose groups and the page size. Groups are ordered: full, window, state. The page size is the
 * one that wastes the fewest bytes over all groups, or a larger one within an eighth of that; it is
 * at most the size that all layers of the smallest set need, unless that would make more than
 * CACHE_GROUPS_MAX groups. elem_bytes: size of a key or value element.
 *
 * ERR_NO_MEMORY; ERR_UNSUPPORTED (logged) for layers with too many different windows. */
int cache_make(struct cache *out, const struct plan *plan, int page_tokens,
               size_t elem_bytes) ERR_CHECKED;
void cache_fini(struct cache *c); /* accepts {0} */

/* The part of a layout that one stage has: layers first .. end - 1 of the plan, in pages of its own
 * size. Groups and tables stay those of the whole, though a stage may have no layer of some. Within
 * a page of a simple layout the part of a stage is bytes `from` on, and the parts of all stages are
 * the page. ERR_NO_MEMORY. */
int cache_cut(struct cache *out, size_t *from, const struct cache *whole, const struct plan *plan,
              struct plan_stage stage, size_t elem_bytes) ERR_CHECKED;

/* The pages of n_tokens tokens in a table of any group but a state's. */
int cache_pages(const struct cache *c, int n_tokens);

/* The index of the first of these pages that a token at position pos or later sees. */
int cache_first_page(const struct cache *c, const struct cache_group *g, int pos);

/* The smallest number of pages with which a sequence of n_tokens tokens can be computed: all pages
 * of full groups; of a window the pages that a token sees and one more; two copies of states. */
int cache_need(const struct cache *c, int n_tokens);

/* The largest number of tokens, up to n_tokens, for which n_pages pages suffice; 0: not even
 * one. */
int cache_tokens(const struct cache *c, int n_pages, int n_tokens);

/* The number of entries that a row of a page table needs for sequences of n_tokens tokens. */
int cache_row(const struct cache *c, int n_tokens);

/* True if all layers keep all tokens, in one group. */
bool cache_is_simple(const struct cache *c);

/* Extend the digest `before` by the layout: page size, groups, and the place of each layer. */
struct hash cache_digest(const struct cache *c, struct hash before);

#endif
