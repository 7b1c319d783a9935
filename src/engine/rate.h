/* How fast what waits is served, measured; and how long a queue takes at that rate.
 *
 * Only time counts in which somebody waits: a server that is not full serves as fast as it is
 * asked, which says nothing of what it could. Ends of requests and the tokens of their prompts are
 * counted apart, because a queue of few long prompts takes as long as one of many short ones. What
 * was measured fades within RATE_MEMORY_S of such time. */
#ifndef QUIRE_ENGINE_RATE_H
#define QUIRE_ENGINE_RATE_H

#include <stdbool.h>
#include <stdint.h>

struct rate {
    double full_s;    /* seconds with a queue, faded */
    double n_done;    /* requests that ended in them, faded */
    double n_tokens;  /* of their prompts, faded */
    uint64_t last_us; /* of the call before */
    int n_ended;      /* since then */
    int64_t n_ended_tokens;
};

/* A request that had been admitted ended; its prompt had n_tokens. */
void rate_end(struct rate *r, int n_tokens);

/* Once a pass: has somebody waited since the last call? */
void rate_pass(struct rate *r, uint64_t now_us, bool full);

/* Seconds until so many requests with so many tokens in their prompts have been served; 0 while
 * too little was measured to say. */
double rate_wait_s(const struct rate *r, int n_reqs, int64_t n_tokens);

/* The same as a Retry-After: whole seconds, 1 .. 60, behind which common clients take it for a
 * mistake. */
uint32_t rate_retry_after_s(const struct rate *r, int n_reqs, int64_t n_tokens);

#endif
