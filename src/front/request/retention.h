/* How long the pages of a prompt are to stay in the cache: what a request says of it.
 *
 *   cache_retention   {"priority": 0..100, "seconds": N, "tokens": N}: quire's own, of any API.
 *                     35 is what every page has, lower goes earlier; without seconds it holds until
 *                     the page's turn has come; without tokens it is said of the whole prompt
 *   cache_control     {"type": "ephemeral", "ttl": "5m" | "1h"}: Anthropic's mark on a block. The
 *                     prompt is retained for that time, all of it: where in the tokens a block ends
 *                     is not known, and what stands behind a mark is mostly what comes next time
 *
 * Of several marks the longest time counts, and cache_retention counts before all marks. Both are
 * wishes: what has no room in kv_retained_pct is kept as any other. */
#ifndef QUIRE_FRONT_REQUEST_RETENTION_H
#define QUIRE_FRONT_REQUEST_RETENTION_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "ipc/wire_request.h"

#define RETENTION_PRIORITY_MAX 100 /* which the keys of operators give */
#define RETENTION_MARK         60  /* the priority of what is marked */
#define RETENTION_SECONDS_MAX  31536000

/* cache_retention. ERR_INVALID, why says what is wrong with it. */
int retention_read(struct wire_generate *r, const struct json *v, char *why,
                   size_t why_cap) ERR_CHECKED;

/* cache_control of an object, which may have none: *seconds grows to its time. where names the
 * object in why. ERR_INVALID. */
int retention_read_mark(const struct json *object, const char *where, uint32_t *seconds, char *why,
                        size_t why_cap) ERR_CHECKED;

/* The same of the parts of all messages. */
int retention_read_marks(const struct json *messages, uint32_t *seconds, char *why,
                         size_t why_cap) ERR_CHECKED;

/* What marks say, unless r says something already. */
void retention_mark(struct wire_generate *r, uint32_t seconds);

/* A client may say no more than max; of 0 it may say nothing. */
void retention_limit(struct wire_generate *r, int max);

#endif
