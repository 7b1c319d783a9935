/* SPDX-License-Identifier: Apache-2.0
 *
 * One engine of several on a machine (data_parallel_size): what it has of its own. */
#ifndef QUIRE_ENGINE_RANK_H
#define QUIRE_ENGINE_RANK_H

#include "base/err.h"
#include "base/settings.h"

/* Give the engine its own socket, files and GPUs: changes settings and, before CUDA reads it, the
 * environment. No effect with one engine. ERR_INVALID (logged): a rank that is missing or out of
 * range, too few GPUs in CUDA_VISIBLE_DEVICES, or a list of sockets; ERR_NO_MEMORY. */
int rank_take(struct settings *s) ERR_CHECKED;

#endif
