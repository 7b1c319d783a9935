/* SPDX-License-Identifier: Apache-2.0
 *
 * PyTorch's files of weights (pytorch_model.bin): a ZIP archive without compression, in which a
 * pickle describes the tensors and each storage is a member of its own. */
#ifndef QUIRE_MODEL_TORCH_ZIP_H
#define QUIRE_MODEL_TORCH_ZIP_H

#include "model/safetensors.h"

/* Check a whole file's bytes and list its tensors; as safetensors_parse(). Tensors may share bytes.
 * The pickle is read by pickle_parse(), which executes nothing.
 *
 * ERR_CORRUPT if the file breaks a rule; ERR_UNSUPPORTED for a file in PyTorch's older format, a
 * tensor that is not contiguous or has more than TENSOR_DIMS_MAX dimensions, or a dictionary that
 * has other things than tensors (`why` receives the reason); ERR_NO_MEMORY. */
int torch_zip_parse(struct tensor_list *out, struct arena *arena, const uint8_t *bytes, size_t len,
                    char *why, size_t why_cap) ERR_CHECKED;

#endif
