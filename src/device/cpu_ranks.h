/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of the cpu device: devices of one process that sum what each has computed.
 *
 * Each comes with its own thread. They meet twice for a sum: when all rows are there, each adds up
 * a share of them in the order of the ranks and writes it to all; when all shares are done, each
 * goes on. device.h says what the operations promise. */
#ifndef QUIRE_DEVICE_CPU_RANKS_H
#define QUIRE_DEVICE_CPU_RANKS_H

#include "device/device.h"

struct cpu_ranks;

/* All join at once; each leaves the memory by cpu_ranks_unref(). ERR_NO_MEMORY. */
int cpu_ranks_make(struct cpu_ranks **out, int n) ERR_CHECKED;
void cpu_ranks_unref(struct cpu_ranks *r); /* NULL is fine */

/* rows float [n], of rank `rank`, become the sum of all ranks'. After cpu_ranks_end() nothing. */
void cpu_ranks_sum(struct cpu_ranks *r, int rank, float *rows, size_t n);

/* No rank waits any more; what they sum is void. */
void cpu_ranks_end(struct cpu_ranks *r);
bool cpu_ranks_ended(struct cpu_ranks *r);

#endif
