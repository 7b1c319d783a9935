/* Whether the server serves: GET /health and /ping.
 *
 * The engine says in each lane when its loop came by last and when it last made progress: ended a
 * step, or had none to do. /health fails when either is longer ago than health_stall_s.
 * /health?deep=1 has one token computed besides, before all other work. That is done once a
 * second at most, whoever asks: in between the last result is told again. */
#ifndef QUIRE_FRONT_API_HEALTH_H
#define QUIRE_FRONT_API_HEALTH_H

#include "front/front.h"

/* The streamer's: how the probe that x is ended. err is an enum err. */
void health_passed(struct front *f, struct exchange *x);
void health_failed(struct front *f, struct exchange *x, int err);

#endif
