/* SPDX-License-Identifier: Apache-2.0
 *
 * The retention of a prompt's pages: how long they stay in the cache, as far as a request sets it.
 *
 *   cache_retention   {"priority": 0..100, "seconds": N, "tokens": N}: quire's own, in any API. 35
 *                     is the default of all pages; lower ones are evicted earlier. Without seconds
 *                     it lasts until the page is evicted; without tokens it applies to all pages
 *                     of the prompt
 *   cache_control     {"type": "ephemeral", "ttl": "5m" | "1h"}: Anthropic's mark on a block. The
 *                     whole prompt is retained for that time, because the front does not know where
 *                     a block ends in the tokens, and the text after a mark is often reused, too
 *
 * Of several marks the longest time applies; cache_retention takes precedence over all marks. Both
 * are hints: pages that do not fit into kv_retained_pct have the default priority. */
#ifndef QUIRE_FRONT_REQUEST_RETENTION_H
#define QUIRE_FRONT_REQUEST_RETENTION_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "ipc/wire_request.h"

#define RETENTION_PRIORITY_MAX 100 /* only operators' keys may use it */
#define RETENTION_MARK         60  /* the priority of marked prompts */
#define RETENTION_SECONDS_MAX  31536000

/* Read cache_retention into r. ERR_INVALID with a sentence in why. */
int retention_read(struct wire_generate *r, const struct json *v, char *why,
                   size_t why_cap) ERR_CHECKED;

/* Read the cache_control of an object, which may have none: *seconds grows to its time. where names
 * the object in why. ERR_INVALID. */
int retention_read_mark(const struct json *object, const char *where, uint32_t *seconds, char *why,
                        size_t why_cap) ERR_CHECKED;

/* Read the cache_control of all parts of all messages, likewise. */
int retention_read_marks(const struct json *messages, uint32_t *seconds, char *why,
                         size_t why_cap) ERR_CHECKED;

/* Apply the marks' time to r, unless r has a retention of its own. */
void retention_mark(struct wire_generate *r, uint32_t seconds);

/* Bound the priority by the setting client_retention_max; 0: no retention at all. */
void retention_limit(struct wire_generate *r, int max);

#endif
