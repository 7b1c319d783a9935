/* SPDX-License-Identifier: Apache-2.0
 *
 * One engine of several on a machine (data_parallel_size): its own socket, files and GPUs. Ranks
 * of model/rank.h are the devices of one engine. */
#ifndef QUIRE_ENGINE_REPLICA_H
#define QUIRE_ENGINE_REPLICA_H

#include "base/err.h"
#include "base/settings.h"

/* Give the engine its own socket and files: changes the settings. No effect with one engine.
 * ERR_INVALID (logged): a rank that is missing or out of range, or a list of sockets;
 * ERR_NO_MEMORY. */
int replica_take(struct settings *s) ERR_CHECKED;

/* The first of its tensor_parallel_size * pipeline_parallel_size GPUs, among those that CUDA shows:
 * no unit needs to name GPUs. */
int replica_first_gpu(const struct settings *s);

#endif
