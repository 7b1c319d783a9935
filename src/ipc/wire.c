/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout digest and the bucket tables. */
#include "ipc/wire.h"

#include "base/hash.h"

uint64_t wire_layout(void)
{
    static const uint32_t facts[] = {
#ifdef WIRE_OTHER_LAYOUT /* a test's programs, which stand for another build's */
        1,
#endif
        sizeof(struct wire_request),
        offsetof(struct wire_request, arena_offset),
        offsetof(struct wire_request, n_tokens),
        offsetof(struct wire_request, temperature),
        offsetof(struct wire_request, n_logprobs),
        offsetof(struct wire_request, n_asked),
        offsetof(struct wire_request, ask),
        offsetof(struct wire_request, retain),
        offsetof(struct wire_request, space),
        offsetof(struct wire_request, answer),
        offsetof(struct wire_request, n_stop_ids),
        offsetof(struct wire_request, think_max),
        offsetof(struct wire_request, think_close),
        offsetof(struct wire_request, salt),
        offsetof(struct wire_request, tenant),
        sizeof(struct wire_out),
        offsetof(struct wire_out, kind),
        offsetof(struct wire_out, time_us),
        offsetof(struct wire_out, rank),
        sizeof(struct wire_bias),
        sizeof(struct wire_offer),
        WIRE_LOGPROBS_MAX,
        WIRE_FINISHED,
        WIRE_TOP,
        WIRE_FACT,
        WIRE_FACTS,
        sizeof(struct wire_slot),
        offsetof(struct wire_slot, cancel),
        offsetof(struct wire_slot, out_tail),
        offsetof(struct wire_slot, out_head),
        sizeof(struct wire_lane),
        offsetof(struct wire_lane, n_slots),
        offsetof(struct wire_lane, heartbeat_us),
        offsetof(struct wire_lane, progress_us),
        offsetof(struct wire_lane, room_tokens),
        offsetof(struct wire_lane, queue_tail),
        offsetof(struct wire_lane, refused),
        offsetof(struct wire_lane, queue_head),
        offsetof(struct wire_lane, engine_sleeping),
        offsetof(struct wire_lane, front_sleeping),
        offsetof(struct wire_lane, ready),
        sizeof(struct wire_hello),
        sizeof(struct wire_welcome),
        offsetof(struct wire_welcome, fingerprint),
        sizeof(struct wire_stats),
        offsetof(struct wire_stats, histograms),
        offsetof(struct wire_stats, cache_config),
        offsetof(struct wire_stats, tenants),
        sizeof(struct wire_tenant),
        WIRE_TENANTS,
        offsetof(struct wire_stats, spaces),
        sizeof(struct wire_space),
        WIRE_SPACES,
        WIRE_OUT_CAP,
        METRIC_COUNT,
        HISTOGRAM_COUNT,
    };

    return hash_xxh3(facts, sizeof facts);
}

#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, ...)                                          \
    static const double wire_bounds_##id[] = {__VA_ARGS__};                     \
    _Static_assert(sizeof wire_bounds_##id / sizeof(double) < WIRE_BUCKETS_MAX, \
                   "one bucket is left for +Inf");
#include "ipc/metric.def"
#undef HISTOGRAM

const double *wire_bucket_bounds(enum wire_histogram_id id, int *n)
{
    switch (id) {
#define HISTOGRAM(id, name, help, ...)                        \
    case HISTOGRAM_##id:                                      \
        *n = (int)(sizeof wire_bounds_##id / sizeof(double)); \
        return wire_bounds_##id;
#include "ipc/metric.def"
#undef HISTOGRAM
    case HISTOGRAM_COUNT: break;
    }
    *n = 0;
    return NULL;
}
