/* SPDX-License-Identifier: Apache-2.0
 *
 * Stages of the cpu device: devices of one process that compute consecutive layers of a model.
 *
 * Each device runs on a thread of its own. A stage copies its rows to an inbox of the next one,
 * which has room for two steps: so a stage computes the next step while its rows wait. device.h
 * defines the operations. */
#ifndef QUIRE_DEVICE_CPU_STAGES_H
#define QUIRE_DEVICE_CPU_STAGES_H

#include "device/device.h"

struct cpu_stages;

/* Make the object for n_stages * n_parts devices, which hold one reference each.
 * ERR_NO_MEMORY. */
int cpu_stages_make(struct cpu_stages **out, int n_stages, int n_parts) ERR_CHECKED;
void cpu_stages_unref(struct cpu_stages *s); /* NULL is fine */

bool cpu_stages_is_first(const struct cpu_stages *s, int idx);

/* The inbox of device idx, for the largest step. ERR_NO_MEMORY. */
int cpu_stages_reserve(struct cpu_stages *s, int idx,
                       const struct device_limits *limits) ERR_CHECKED;

/* take() and hand() of device idx, of n_rows rows. hand() waits while two steps lie in the inbox.
 * ERR_GPU: the stages were ended. */
int cpu_stages_take(struct cpu_stages *s, int idx, const struct device_segment *segments, int n,
                    int n_rows) ERR_CHECKED;
int cpu_stages_hand(struct cpu_stages *s, int idx, const struct device_segment *segments, int n,
                    int n_rows) ERR_CHECKED;

/* The last stage has sampled its first n_steps steps; the first one waits for that. ERR_GPU: the
 * stages were ended. */
void cpu_stages_sampled(struct cpu_stages *s, unsigned n_steps);
int cpu_stages_await_ids(struct cpu_stages *s, unsigned n_steps) ERR_CHECKED;

/* End all waits, present and future. */
void cpu_stages_end(struct cpu_stages *s);
bool cpu_stages_ended(struct cpu_stages *s);

#endif
