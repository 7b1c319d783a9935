/* SPDX-License-Identifier: Apache-2.0
 *
 * The measured rate at which waiting requests are served, and the time that a queue takes at that
 * rate.
 *
 * Only time with a queue counts: a server that is not full serves as fast as it is asked, which
 * does not show how fast it could. Ended requests and the tokens of their prompts are counted
 * separately, because few long prompts take as long as many short ones. Measurements fade within
 * RATE_MEMORY_S of such time. */
#ifndef QUIRE_ENGINE_RATE_H
#define QUIRE_ENGINE_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct rate {
    double full_s;    /* seconds with a queue, faded */
    double n_done;    /* requests that ended in them, faded */
    double n_tokens;  /* tokens of their prompts, faded */
    uint64_t last_us; /* time of the previous call */
    int n_ended;      /* ends since then, and the tokens of their prompts */
    int64_t n_ended_tokens;
};

/* An admitted request has ended; its prompt had n_tokens. */
void rate_end(struct rate *r, int n_tokens);

/* Once per pass. full: a request has waited since the last call. */
void rate_pass(struct rate *r, uint64_t now_us, bool full);

/* Seconds until n_reqs requests with n_tokens in their prompts have been served; 0 while too little
 * was measured. */
double rate_wait_s(const struct rate *r, int n_reqs, int64_t n_tokens);

/* rate_wait_s() as a Retry-After: whole seconds from 1 to 60, because common clients take more for
 * an error. */
uint32_t rate_retry_after_s(const struct rate *r, int n_reqs, int64_t n_tokens);

#endif
