/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout digest and the bucket tables. */
#include "ipc/wire.h"

#include "base/hash.h"
#include "ipc/wire_control.h"
#include "ipc/wire_digest.h" /* made in the build folder */
#include "ipc/wire_lane.h"
#include "ipc/wire_stats.h"

/* The texts of the headers that wire.h names, and of metric.def, give WIRE_DIGEST (WIRE_TEXTS in
 * Makefile.am), so no field can be forgotten.
 * The sizes are there for what else may differ: a compiler, or a constant from elsewhere. */
uint64_t wire_layout(void)
{
    static const uint64_t facts[] = {
#ifdef WIRE_OTHER_LAYOUT /* a test's programs, which stand for another build's */
        1,
#endif
        WIRE_DIGEST,
        sizeof(struct wire_request),
        sizeof(struct wire_out),
        sizeof(struct wire_slot),
        sizeof(struct wire_lane),
        sizeof(struct wire_upload),
        sizeof(struct wire_hello),
        sizeof(struct wire_welcome),
        sizeof(struct wire_stats),
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
