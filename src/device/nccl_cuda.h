/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL: sums over ranks, for GPUs that cannot reach each other's memory, and where the setting
 * disable_custom_all_reduce asks for it; and rows between two processes.
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

/* Two processes with a GPU each. nccl_name() makes a name that both pass to nccl_open_pair(), with
 * end 0 and 1; ERR_UNSUPPORTED (a warning is logged): no NCCL. nccl_open_pair() blocks until both
 * have called it; the rank of such a communicator in the functions below is 0. */
#define NCCL_NAME 128
int nccl_name(char name[NCCL_NAME]) ERR_CHECKED;
int nccl_open_pair(struct nccl **out, const char *name, int gpu, int end) ERR_CHECKED;

/* Send runs of memory to the other process, or receive them; it must do the opposite with runs of
 * the same sizes. 0, or -1 (logged). */
struct nccl_run {
    void *data;
    size_t bytes;
};
int nccl_move(struct nccl *n, bool sends, const struct nccl_run *runs, int n_runs,
              cudaStream_t stream);

/* True (logged) if a communicator has failed. Any thread. */
bool nccl_failed(const struct nccl *n, int rank);

/* End all work of a rank that waits for others; its communicator is of no use afterwards. Not
 * beside other calls for this rank. */
void nccl_abort(struct nccl *n, int rank);

#endif
