/* The pool of KV pages: who uses a page, what it holds, which goes next.
 *
 * A page is the keys and values of page_tokens consecutive tokens, all layers; here it is a
 * number. A page that is full gets a name (prefix.h): a digest of all tokens up to its end.
 * A finished page keeps its name and content until its place is needed. The last page of a
 * sequence that ends is named as a part: its first n tokens count, and no name leads to it but its
 * parent's. Who knows other tokens from some place on copies the page and goes on in the copy.
 *
 * Rules:
 *  1. Without a reference, a page's content is not touched.
 *  2. A page with a name is never written again; of a part that is true of its n tokens.
 *  3. Only the last unref makes a page cached (named) or free (unnamed).
 *  4. Only pages_take() and pages_drop() erase a name; the first reports it, so that the content
 *     can be saved before the next step overwrites it. Parts are not worth saving: it says nothing
 *     of them.
 *  5. Two pages never carry the same name; the second stays unnamed.
 *  6. Of the cached pages goes first what has the lowest priority, then what was used least
 *     recently (eviction.h).
 *
 * Pure memory: no device, no clock, no I/O. The engine's thread alone. */
#ifndef QUIRE_KV_PAGES_H
#define QUIRE_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "kv/retain.h"

/* What a page holds; kept beside it so that it can be stored after its sequence is gone. */
struct page_label {
    struct hash name;
    struct hash parent;    /* name of the page before it, or the namespace's root */
    const int32_t *tokens; /* int32 [page_tokens]; borrowed until the page is taken again */
    uint64_t space;        /* its namespace (prefix_space()); 0: not known */
    struct retain retain;  /* how long it is to stay */
};

struct pages;

int pages_open(struct pages **out, int n_pages, int page_tokens) ERR_CHECKED;
void pages_close(struct pages *p); /* NULL is fine */

/* Take a page with one reference: a free one, else the cached one that goes first. Returns its id,
 * or -1 when every page is referenced. When a name was erased, *evicted is true and *label is what
 * the page holds until it is written; label->tokens is valid until pages_name() for that page.
 * O(log n). */
int32_t pages_take(struct pages *p, bool *evicted, struct page_label *label);

void pages_ref(struct pages *p, int32_t page);
void pages_unref(struct pages *p, int32_t page);

/* Name a full page; tokens int32 [page_tokens] are copied. False, and nothing happens, when
 * another page has the name already. */
bool pages_name(struct pages *p, int32_t page, const struct hash *name, const struct hash *parent,
                const int32_t *tokens);

/* Name the page as a part of its first n_tokens, 1 to page_tokens - 1. False, and nothing happens,
 * when a page of this parent begins with them already. */
bool pages_name_part(struct pages *p, int32_t page, const struct hash *parent,
                     const int32_t *tokens, int n_tokens);

/* Of the pages after `parent`, full or parts, the one that begins with the most of tokens,
 * int32 [n_tokens], with one more reference; *n_same, 1 to n_tokens, says with how many. -1 when
 * none begins with the first. Only those that maker may know of; looks at the newest
 * PAGES_SIBLINGS pages. */
#define PAGES_SIBLINGS 64
int32_t pages_find_part(struct pages *p, const struct hash *parent, const int32_t *tokens,
                        int n_tokens, uint64_t maker, int *n_same);

/* Who computed a page, so that others are not told of it: a number per tenant, PAGES_ANYBODY for
 * what all may know of, 0 for what is not known (a page that came from a lower tier). maker above,
 * and of pages_is_theirs(), is the one who asks; PAGES_ANYBODY: every page is theirs. */
#define PAGES_ANYBODY UINT64_MAX
void pages_set_maker(struct pages *p, int32_t page, uint64_t maker); /* of one just named */
bool pages_is_theirs(const struct pages *p, int32_t page, uint64_t maker);

/* The full page of that name, with one more reference, or -1. */
int32_t pages_find(struct pages *p, const struct hash *name);

/* The same without a reference: is it here? */
bool pages_has(const struct pages *p, const struct hash *name);

/* The same, and which: -1 when it is not. */
int32_t pages_look(const struct pages *p, const struct hash *name);

/* It is now_s, unix seconds: hints that end by then count no longer. */
void pages_tick(struct pages *p, uint32_t now_s);

/* At most so many pages are above the default priority; half of all unless it is said. */
void pages_bound_kept(struct pages *p, int kept_max);

/* What a page, or part, that was just named belongs to, and how long it is to stay. */
void pages_own(struct pages *p, int32_t page, uint64_t space, struct retain r);

/* Something is said of a page beside what was said before; nothing for an unnamed one or a
 * part. */
void pages_retain(struct pages *p, int32_t page, struct retain r);

/* A page loses its name, or is no part any more, whoever uses it: nobody finds it. The second:
 * all parts that continue the page of this name. */
void pages_drop(struct pages *p, int32_t page);
void pages_drop_parts(struct pages *p, const struct hash *parent);

/* Is it a part? *space is its namespace. */
bool pages_is_part(const struct pages *p, int32_t page, uint64_t *space);

/* What a full page holds; false for an unnamed one, and for a part. */
bool pages_label(const struct pages *p, int32_t page, struct page_label *label);

/* A mark the store keeps per page: its content lies on disk as well. Reset by pages_take(). */
void pages_set_stored(struct pages *p, int32_t page);
bool pages_stored(const struct pages *p, int32_t page);

int pages_count(const struct pages *p);  /* all */
int pages_free(const struct pages *p);   /* what pages_take() can hand out: free and cached */
int pages_cached(const struct pages *p); /* named and unreferenced */
int pages_named(const struct pages *p);
int pages_kept(const struct pages *p); /* above the default priority */

/* Prove the invariants: every page is free, cached or referenced, lists and table agree with
 * the marks. O(n). must() on failure. */
void pages_check(const struct pages *p);

#endif
