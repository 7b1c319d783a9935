/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the bytes of many tensors, each once, by a few threads.
 *
 * A thread takes a tensor, reads it piece by piece into one of its two pipes, hashes it, and has
 * each piece placed; while the device still copies from one pipe, the other is filled. Tensors are
 * taken largest first, so that no thread is left alone with a large one at the end. Pieces of one
 * tensor are placed in order; the order of tensors is not defined. */
#ifndef QUIRE_MODEL_READER_H
#define QUIRE_MODEL_READER_H

#include "base/err.h"
#include "device/device.h"
#include "model/safetensors.h"

struct reader_item {
    const struct tensor *t;
    size_t step;   /* bytes: all pieces but the last are multiples of it; at least 1 */
    uint64_t xxh3; /* of the tensor's bytes; set by reader_run() */
};

/* Place bytes at .. at + bytes - 1 of item idx, which are at the start of the pipe. Copies that are
 * sent from the pipe need not be complete on return. Called by several threads. */
typedef int reader_place(void *context, size_t idx, struct device_pipe *pipe, size_t at,
                         size_t bytes);

struct reader {
    const struct checkpoint *files;
    struct device *device;
    struct reader_item *items; /* [n_items] */
    size_t n_items;
    reader_place *place;
    void *context;
    int n_threads; /* including the caller's; 0: chosen by cores and bytes */
};

/* Read all items. place() may write to device memory that was allocated before the call; everything
 * is there on return. Logs progress every few seconds, and the speed at the end.
 *
 * Returns ERR_OK, or the first error: of checkpoint_read(), of place(), ERR_NO_MEMORY, ERR_GPU. */
int reader_run(const struct reader *r) ERR_CHECKED;

#endif
