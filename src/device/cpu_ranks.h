/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of the cpu device: devices of one process that sum their results.
 *
 * Each rank runs on a thread of its own. A sum has two meetings: after the first, each rank adds a
 * share of the rows in the order of the ranks and writes it to all; after the second, all go on.
 * Gathering is alike.
 * device.h defines the operations. */
#ifndef QUIRE_DEVICE_CPU_RANKS_H
#define QUIRE_DEVICE_CPU_RANKS_H

#include "device/device.h"

struct cpu_ranks;

/* Make the object for n ranks, which hold one reference each; cpu_ranks_unref() drops it.
 * ERR_NO_MEMORY. */
int cpu_ranks_make(struct cpu_ranks **out, int n) ERR_CHECKED;
void cpu_ranks_unref(struct cpu_ranks *r); /* NULL is fine */

/* rows float [n] of rank `rank` become the sum over all ranks. After cpu_ranks_end() nothing
 * changes. */
void cpu_ranks_sum(struct cpu_ranks *r, int rank, float *rows, size_t n);

/* all [n][ranks * width] of rank 0 gets part [n][width] of each rank as columns rank * width and
 * on; other ranks pass NULL. Waits as cpu_ranks_sum(). */
void cpu_ranks_gather(struct cpu_ranks *r, int rank, float *all, const float *part, int n,
                      int width);

/* End all sums, present and future: no rank waits any longer, and their results are invalid. */
void cpu_ranks_end(struct cpu_ranks *r);
bool cpu_ranks_ended(struct cpu_ranks *r);

#endif
