/* SPDX-License-Identifier: Apache-2.0
 *
 * Health: GET /health and /ping.
 *
 * The engine writes two times into each lane: of the last pass of its loop, and of its last
 * progress (a step ended, or there was nothing to compute). /health fails when either is older than
 * health_stall_s. /health?deep=1 also has one token computed, with priority over all other work, at
 * most once per second; requests in between get the last result. */
#ifndef QUIRE_FRONT_API_HEALTH_H
#define QUIRE_FRONT_API_HEALTH_H

#include "front/front.h"

/* Called by the streamer when the probe in x has ended, well or with err (an enum err). */
void health_passed(struct front *f, struct exchange *x);
void health_failed(struct front *f, struct exchange *x, int err);

#endif
