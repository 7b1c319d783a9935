/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows between GPUs of two processes, by NCCL: far_name() to far_take() are operations of the
 * table (device.h), the others are used by the files of the cuda device. */
#ifndef QUIRE_DEVICE_FAR_CUDA_H
#define QUIRE_DEVICE_FAR_CUDA_H

#include "device/parts_cuda.h"

int far_name(struct device *d, char name[DEVICE_FAR_NAME]);
int far_open(struct device *d, const struct device_far *how);
int far_hand(struct device *d, const struct device_segment *segments, int n);
int far_take(struct device *d, const struct device_segment *segments, int n);

bool far_is_open(const struct cuda *c);
/* True: the other process has ended, or NCCL reports an error. */
bool far_failed(const struct cuda *c);
/* End all kernels that wait for the other process; the connections are of no use afterwards. */
void far_stop(struct cuda *c);
void far_close(struct cuda *c); /* after far_stop() */

#endif
