/* SPDX-License-Identifier: Apache-2.0
 *
 * The layout digest, which makes programs of different builds refuse each other, and the bucket
 * tables of histograms, which are generated from metric.def. */
#include "ipc/wire.h"

#include "base/hash.h"
#include "ipc/wire_control.h"
#include "ipc/wire_digest.h" /* made in the build folder */
#include "ipc/wire_lane.h"
#include "ipc/wire_stats.h"

/* WIRE_DIGEST is a hash of the texts of all headers that wire.h names and of metric.def (WIRE_TEXTS
 * in Makefile.am), so a changed field cannot be forgotten here. The sizes catch the differences
 * that the texts do not show: another compiler, or a constant of another header. */
uint64_t wire_layout(void)
{
    static const uint64_t facts[] = {
#ifdef WIRE_OTHER_LAYOUT /* a test's programs, which play another build */
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

/* metric.def is included twice: first for one array of bounds per histogram, then for the cases of
 * a switch that returns them. Counters and gauges expand to nothing. */
#define COUNTER(id, name, labels, help)
#define GAUGE(id, name, labels, help)
#define HISTOGRAM(id, name, help, ...)                                          \
    static const double wire_bounds_##id[] = {__VA_ARGS__};                     \
    _Static_assert(sizeof wire_bounds_##id / sizeof(double) < WIRE_BUCKETS_MAX, \
                   "one bucket is left for +Inf");
#include "ipc/metric.def"
#undef HISTOGRAM

/* The upper bounds of a histogram's buckets, and their number; the last bucket has none. */
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
