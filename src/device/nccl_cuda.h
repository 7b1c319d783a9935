/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over ranks by NCCL: for GPUs that cannot reach each other's memory, and where the setting
 * disable_custom_all_reduce asks for it.
 *
 * The library (libnccl.so.2) is loaded by nccl_open(), so that a server with one GPU neither needs
 * it nor waits for it. Sums and gathering enqueue work on a stream of the rank's GPU; all ranks
 * must make the same calls in the same order. */
#ifndef QUIRE_DEVICE_NCCL_CUDA_H
#define QUIRE_DEVICE_NCCL_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/kernels.h"

struct nccl;

/* A communicator for each of n GPUs of this process, by CUDA's numbers of them; takes some 100 ms
 * and some 100 MB per GPU. ERR_UNSUPPORTED (logged): no NCCL, or built without its header; ERR_GPU,
 * ERR_NO_MEMORY. */
int nccl_open(struct nccl **out, const int *gpus, int n) ERR_CHECKED;
void nccl_close(struct nccl *n); /* NULL is fine; aborts what is still under way */

/* rows bf16 [n] of all ranks become their sum. The order of the sum is NCCL's: the same bits each
 * time and on each rank, but with more than two ranks not those of k_sum_ranks(). 0, or -1
 * (logged). */
int nccl_sum(struct nccl *n, int rank, k_bf16 *rows, size_t n_elems, cudaStream_t stream);

/* As k_gather_ranks(); all: NULL on ranks above 0. */
int nccl_gather(struct nccl *n, int rank, float *all, const float *part, int n_rows, int width,
                cudaStream_t stream);

/* True (logged) if a communicator has failed. Any thread. */
bool nccl_failed(const struct nccl *n, int rank);

/* End all work of a rank that waits for others; its communicator is of no use afterwards. Not
 * beside other calls for this rank. */
void nccl_abort(struct nccl *n, int rank);

#endif
