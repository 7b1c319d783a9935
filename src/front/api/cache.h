/* What operators do with the cache: GET /admin/cache, POST /admin/cache/pin and /admin/cache/drop,
 * POST /reset_prefix_cache (vLLM's name).
 *
 * They need the key of admin_key_file, which nginx hands on as QUIRE_ADMIN_KEY on these paths
 * alone; without that setting there are no such paths. An ask crosses the lane as a generation
 * does, and is answered by facts (wire_lane.h). A pin is a generation of one token, whose pages
 * stay. */
#ifndef QUIRE_FRONT_API_CACHE_H
#define QUIRE_FRONT_API_CACHE_H

#include "front/front.h"

#define CACHE_KEY_MAX 200 /* bytes of the admin key */

/* Read the key from admin_key_file; none when that is empty. ERR_INVALID, ERR_IO (logged). */
int cache_open(struct front *f) ERR_CHECKED;

/* May this request ask? False after an error answer. */
bool cache_allows(const struct front *f, struct exchange *x);

/* The streamer's: a fact has come, and the end of what was asked. */
void cache_fact(struct exchange *x, const struct wire_out *o);
void cache_answer(struct front *f, struct exchange *x);

#endif
