/* SPDX-License-Identifier: Apache-2.0
 *
 * Three sums that fade exponentially with time under load: seconds, requests and tokens. A rate is
 * a quotient of two of them, so the fading cancels out. */
#include "engine/rate.h"

#include <math.h>

#define RATE_MEMORY_S   20.0
#define RATE_DONE_MIN   8.0 /* ended requests that make a rate */
#define RATE_PASS_MAX_S 5.0 /* a longer pass was stopped, not busy */
#define RATE_RETRY_MAX  60.0

/* Ends are only noted here; rate_pass() decides whether their time counts. */
void rate_end(struct rate *r, int n_tokens)
{
    r->n_ended++;
    r->n_ended_tokens += n_tokens;
}

/* Time of a full pass is added together with the ends in it; ends in other passes are forgotten,
 * because they do not show how fast the server could be. */
void rate_pass(struct rate *r, uint64_t now_us, bool full)
{
    double s = r->last_us == 0 || now_us < r->last_us ? 0.0 : (double)(now_us - r->last_us) * 1e-6;
    double keep = exp(-s / RATE_MEMORY_S);

    if (full && s > 0.0 && s < RATE_PASS_MAX_S) {
        r->full_s = r->full_s * keep + s;
        r->n_done = r->n_done * keep + r->n_ended;
        r->n_tokens = r->n_tokens * keep + (double)r->n_ended_tokens;
    }
    if (s > 0.0 || r->last_us == 0) {
        r->n_ended = 0;
        r->n_ended_tokens = 0;
        r->last_us = now_us;
    }
}

/* The slower of both estimates: by requests, and by the tokens of their prompts. */
double rate_wait_s(const struct rate *r, int n_reqs, int64_t n_tokens)
{
    double by_reqs, by_tokens;

    if (r->n_done < RATE_DONE_MIN || r->full_s <= 0.0)
        return 0.0;
    by_reqs = (double)n_reqs * r->full_s / r->n_done;
    by_tokens = r->n_tokens > 0.0 ? (double)n_tokens * r->full_s / r->n_tokens : 0.0;
    if (by_reqs > by_tokens)
        return by_reqs;
    return by_tokens;
}

/* Without a measurement a client may try again after a second. */
uint32_t rate_retry_after_s(const struct rate *r, int n_reqs, int64_t n_tokens)
{
    double s = ceil(rate_wait_s(r, n_reqs, n_tokens));

    if (s < 1.0)
        return 1;
    if (s > RATE_RETRY_MAX)
        return (uint32_t)RATE_RETRY_MAX;
    return (uint32_t)s;
}
