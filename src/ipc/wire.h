/* What crosses between processes: what its parts have in common.
 *
 *   wire_request.h  what a front asks the engine for
 *   wire_lane.h     the lane, shared memory of one front and the engine: slots, rings, records
 *   wire_control.h  the messages of the control socket, before and beside the lane
 *   wire_stats.h    the statistics page, which fronts and observers map
 *
 * Fixed widths, offsets in place of pointers, one writer per field. The texts of these headers are
 * part of the layout's digest: see wire_layout(). */
#ifndef QUIRE_IPC_WIRE_H
#define QUIRE_IPC_WIRE_H

#include <stdint.h>

#define WIRE_MAGIC        UINT64_C(0x3165726975716e6c) /* "lnquire1" */
#define WIRE_LINE         64                           /* bytes of a cache line */
#define WIRE_TENANT_BYTES 32                           /* of a tenant's name, its NUL included */

/* Digest of the texts of these headers and of the sizes of their structs: two builds that differ
 * refuse each other. */
uint64_t wire_layout(void);

#endif
