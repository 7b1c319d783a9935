/* SPDX-License-Identifier: Apache-2.0
 *
 * What the mock engine and the load generator tell each other beside requests and answers: how
 * fast tokens are to come, and when each was said.
 *
 * A file that both map. A request names its row by its seed, so that the answers themselves carry
 * nothing that a real engine's would not. */
#ifndef QUIRE_BENCH_MOCK_H
#define QUIRE_BENCH_MOCK_H

#include <stdatomic.h>
#include <stdint.h>

#define MOCK_ROWS   2048 /* connections of one load generator */
#define MOCK_TOKENS 4096 /* of one request */

struct mock_times {
    _Atomic uint64_t step_us; /* [W: load] between two tokens; 0: as fast as rings take them */
    /* clock_us() at which the token was put into the ring. [W: mock_engine] */
    _Atomic uint64_t put_us[MOCK_ROWS][MOCK_TOKENS];
};

#endif
