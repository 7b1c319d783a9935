/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: Retry-After is about the time that a queue takes. Method: a server of known speed is
 * simulated, with queues of many short and of few long prompts, with pauses, with ends that come in
 * bursts; what is said is compared with the time that it takes. */
#include "engine/rate.h"
#include "tests/tap.h"

#define PASS_US 20000u

static uint64_t now_us = 1000000;

/* Serve for seconds: burst requests of n_tokens end together, per_s of them in a second. */
static void serve(struct rate *r, double seconds, double per_s, int burst, int n_tokens, bool full)
{
    double due = 0;

    for (double t = 0; t < seconds; t += PASS_US * 1e-6) {
        now_us += PASS_US;
        due += per_s * PASS_US * 1e-6;
        while (due >= burst) {
            for (int i = 0; i < burst; i++)
                rate_end(r, n_tokens);
            due -= burst;
        }
        rate_pass(r, now_us, full);
    }
}

static void about(double got, double want, const char *what)
{
    ok(got > 0.8 * want && got < 1.25 * want, "%s: %.2f s, it takes %.2f s", what, got, want);
}

int main(void)
{
    struct rate r = {0};

    ok(rate_wait_s(&r, 100, 1000) <= 0.0, "nothing is said where nothing was measured");
    is_int(rate_retry_after_s(&r, 100, 1000), 1, "a client may come again in a second");
    serve(&r, 10, 100, 1, 50, false);
    ok(rate_wait_s(&r, 100, 1000) <= 0.0, "a server that is not full tells nothing of its speed");
    serve(&r, 10, 20, 1, 50, true);
    about(rate_wait_s(&r, 100, 5000), 5.0, "100 requests at 20 a second");
    is_int(rate_retry_after_s(&r, 101, 5000), 6, "whole seconds, rounded up");
    about(rate_wait_s(&r, 4, 20000), 20.0, "4 long prompts at 1000 tokens a second");
    serve(&r, 300, 1, 1, 50, false);
    about(rate_wait_s(&r, 100, 5000), 5.0, "five minutes with little to do change nothing");
    serve(&r, 60, 20, 40, 50, true);
    about(rate_wait_s(&r, 100, 5000), 5.0, "ends in bursts of 40 are no other speed");
    serve(&r, 60, 5, 1, 50, true);
    about(rate_wait_s(&r, 100, 5000), 20.0, "after a minute at 5 a second that is what counts");
    is_int(rate_retry_after_s(&r, 100000, 0), 60, "no client waits for longer than a minute");
    now_us += 3600000000u;
    rate_pass(&r, now_us, true);
    about(rate_wait_s(&r, 100, 5000), 20.0, "a process that was stopped for an hour was not slow");
    return tap_done();
}
