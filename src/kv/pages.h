/* SPDX-License-Identifier: Apache-2.0
 *
 * The pool of KV pages: which are in use, their contents, and which is evicted next.
 *
 * A page is the keys and values of page_tokens consecutive tokens in all layers; here it is a
 * number. A full page gets a name (prefix.h): a digest of all tokens up to its end. A finished page
 * keeps its name and content until it is evicted. The last page of a sequence that ends is kept as
 * a part: its first n tokens count, and it is found by its parent's name and these tokens only. A
 * prompt that diverges from a page copies it and continues in the copy.
 *
 * Rules:
 *
 *   1. The content of a page without a reference does not change.
 *   2. A named page is never written again; in a part this holds for its first n tokens.
 *   3. Only the last unref makes a page cached (named) or free (unnamed).
 *   4. Only pages_take() and pages_drop() erase a name. pages_take() reports the page, so that it
 *      can be saved before the next step overwrites it. Parts are not worth saving: they are not
 *      reported.
 *   5. No two pages have the same name; the second one stays unnamed.
 *   6. Of the cached pages, the one of the lowest priority is evicted first, and among equals the
 *      least recently used one (eviction.h).
 *
 * Pure memory: no device, no clock, no I/O. The engine's thread alone. */
#ifndef QUIRE_KV_PAGES_H
#define QUIRE_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kv/retain.h"

/* The description of a page; kept with it so that it can be saved after its sequence has ended. */
struct page_label {
    struct hash name;
    struct hash parent;    /* name of the page before it, or the root of the namespace */
    const int32_t *tokens; /* int32 [page_tokens]; borrowed until the page is taken again */
    uint64_t space;        /* its namespace (prefix_space()); 0: unknown */
    struct retain retain;  /* its priority, and until when */
};

struct pages;

int pages_open(struct pages **out, int n_pages, int page_tokens) ERR_CHECKED;
void pages_close(struct pages *p); /* NULL is fine */

/* Take a page with one reference: a free one, else the cached one that is evicted next. Returns its
 * id, or -1 when every page is referenced. If a full page was evicted, *evicted is true and *label
 * describes the content, which is valid until the page is written; label->tokens is valid until
 * pages_name() for that page. O(log n). */
int32_t pages_take(struct pages *p, bool *evicted, struct page_label *label);

void pages_ref(struct pages *p, int32_t page);
void pages_unref(struct pages *p, int32_t page);

/* Name a full page; tokens int32 [page_tokens] are copied. False, without effect, when another page
 * has the name. */
bool pages_name(struct pages *p, int32_t page, const struct hash *name, const struct hash *parent,
                const int32_t *tokens);

/* Name the page as a part: its first n_tokens count, 1 to page_tokens - 1. False, without effect,
 * when another page of this parent begins with the same tokens. */
bool pages_name_part(struct pages *p, int32_t page, const struct hash *parent,
                     const int32_t *tokens, int n_tokens);

/* Of the pages after `parent`, full or parts, the one that begins with the most of tokens, int32
 * [n_tokens], with one more reference; *n_same, 1 to n_tokens, is the number of equal tokens. -1
 * when none begins with the first. Only pages that `maker` may know about; only the PAGES_SIBLINGS
 * newest pages are compared. */
#define PAGES_SIBLINGS 64
int32_t pages_find_part(struct pages *p, const struct hash *parent, const int32_t *tokens,
                        int n_tokens, uint64_t maker, int *n_same);

/* The maker of a page, so that other tenants do not learn about it: a number per tenant,
 * PAGES_ANYBODY for pages that all may know about, 0 if unknown (a page from a lower tier). As an
 * argument above and of pages_is_theirs(), maker is the one that asks; PAGES_ANYBODY may know about
 * every page. */
#define PAGES_ANYBODY UINT64_MAX
void pages_set_maker(struct pages *p, int32_t page, uint64_t maker); /* right after it was named */
bool pages_is_theirs(const struct pages *p, int32_t page, uint64_t maker);

/* The full page with this name, with one more reference, or -1. */
int32_t pages_find(struct pages *p, const struct hash *name);

/* Is there a full page with this name? Takes no reference. */
bool pages_has(const struct pages *p, const struct hash *name);

/* The full page with this name without a new reference, or -1. */
int32_t pages_look(const struct pages *p, const struct hash *name);

/* Set the time, unix seconds: retention that ends by then has no effect any more. */
void pages_tick(struct pages *p, uint32_t now_s);

/* Limit the number of pages above the default priority; initially half of all pages. */
void pages_bound_kept(struct pages *p, int kept_max);

/* Set the namespace and the retention of a page or part that was just named. */
void pages_own(struct pages *p, int32_t page, uint64_t space, struct retain r);

/* Add to the retention of a page (retain_join()); no effect on an unnamed page or a part. */
void pages_retain(struct pages *p, int32_t page, struct retain r);

/* Erase a page's name, or its state as a part, even if it is in use: it is not found any more.
 * pages_drop_parts(): all parts whose parent has this name. */
void pages_drop(struct pages *p, int32_t page);
void pages_drop_parts(struct pages *p, const struct hash *parent);

/* Is it a part? *space is its namespace. */
bool pages_is_part(const struct pages *p, int32_t page, uint64_t *space);

/* Describe a full page; false for an unnamed one and for a part. */
bool pages_label(const struct pages *p, int32_t page, struct page_label *label);

/* A flag per page: a lower tier has its content. Cleared by pages_take(). */
void pages_set_stored(struct pages *p, int32_t page);
bool pages_stored(const struct pages *p, int32_t page);

/* Likewise: the drafter (engine/drafter.h) has the keys and values of all tokens of the page. */
void pages_set_drafted(struct pages *p, int32_t page, bool is_drafted);
bool pages_drafted(const struct pages *p, int32_t page);

int pages_count(const struct pages *p);  /* all pages */
int pages_free(const struct pages *p);   /* pages that pages_take() can return: free and cached */
int pages_cached(const struct pages *p); /* named and unreferenced */
int pages_named(const struct pages *p);
int pages_kept(const struct pages *p); /* above the default priority */

/* Check the invariants: every page is free, cached or referenced; lists and table agree with the
 * pages. O(n). must() on failure. */
void pages_check(const struct pages *p);

#endif
