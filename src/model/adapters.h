/* SPDX-License-Identifier: Apache-2.0
 *
 * The places of adapters in the weights of a rank: which matrices may have adapters, and device
 * memory for those that are in use (kernels/adapter.h).
 *
 * While matrices are laid out, each is noted with its name and the rank's slice of it. A slot is
 * one piece of device memory, large enough for an adapter of the highest rank on all of them. An
 * adapter's matrices are divided as the matrix is: of one that is split by rows, B; of one that is
 * split by columns, A, and the ranks' sums complete the product. */
#ifndef QUIRE_MODEL_ADAPTERS_H
#define QUIRE_MODEL_ADAPTERS_H

#include "model/adapter.h"
#include "model/slice.h"

struct device;
struct adapters;

/* n_slots adapters of up to rank_max. NULL: no memory. */
struct adapters *adapters_new(int n_slots, int rank_max);
void adapters_free(struct adapters *a); /* NULL is fine; device memory goes with the device */

/* Note a matrix of these tensors, by their names in the checkpoint and the rank's slices. absent:
 * another rank has it. Returns the matrix's adapters, owned by a; NULL: no memory. */
const struct k_adapters *adapters_note(struct adapters *a, const char *const *names,
                                       const struct slice *slices, int n, bool of_rows,
                                       bool absent);

/* Allocate the slots, when all matrices are noted. ERR_NO_MEMORY. */
int adapters_alloc(struct adapters *a, struct device *d) ERR_CHECKED;

int adapters_widest(const struct adapters *a); /* input of a matrix */

/* Does the adapter fit the model: is each of its modules a matrix that was noted, of its sizes?
 * ERR_INVALID, ERR_UNSUPPORTED: `why` receives the first that is not. Any thread. */
int adapters_check(const struct adapters *a, const struct adapter *of, char *why,
                   size_t why_cap) ERR_CHECKED;

/* Make the image of an adapter that fits, for the slots of this rank's GPU. Takes some ns for each
 * number, so not on the engine's thread. Any thread that may allocate. ERR_NO_MEMORY. */
int adapters_pack(const struct adapters *a, struct adapter *of, int idx) ERR_CHECKED;

/* Copy the rank's part of an adapter that fits into a slot, on a GPU image idx of it. No step in
 * flight may use the slot; others are waited for. ERR_GPU. */
int adapters_place(struct adapters *a, struct device *d, int slot, const struct adapter *of,
                   int idx) ERR_CHECKED;

/* Fill a slot with an adapter of noise on all matrices, for measurements. Errors as above. */
int adapters_place_noise(struct adapters *a, struct device *d, int slot, int rank) ERR_CHECKED;

#endif
