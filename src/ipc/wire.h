/* SPDX-License-Identifier: Apache-2.0
 *
 * Constants that all messages and memory shared between processes have in common.
 *
 *   wire_request.h  one request of a front to the engine
 *   wire_lane.h     the lane, shared memory of one front and the engine: slots, rings, records
 *   wire_control.h  the messages of the control socket: attaching, wake-ups, uploads
 *   wire_stats.h    the statistics page, which fronts and observers map
 *
 * All of them use fixed widths, offsets in place of pointers, and one writer per field. The texts
 * of these headers are part of the layout digest: see wire_layout(). */
#ifndef QUIRE_IPC_WIRE_H
#define QUIRE_IPC_WIRE_H

#include <stdint.h>

#define WIRE_MAGIC        UINT64_C(0x3165726975716e6c) /* "lnquire1" */
#define WIRE_LINE         64                           /* bytes of a cache line */
#define WIRE_TENANT_BYTES 32                           /* of a tenant's name, its NUL included */

/* Digest of the texts of these headers and of the sizes of their structs. Programs of two builds
 * refuse each other by it, because they may read the same bytes differently. */
uint64_t wire_layout(void);

#endif
