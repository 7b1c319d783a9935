/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration of a model that is a GGUF file: its settings as a config.json, the names of its
 * tensors, and the ways in which they differ from those of the family's own checkpoints. */
#ifndef QUIRE_MODEL_GGUF_CONFIG_H
#define QUIRE_MODEL_GGUF_CONFIG_H

#include "base/err.h"
#include "model/hf_config.h"

/* Read the first or only file of a model; overrides as in hf_config_read(). Errors as there, and
 * ERR_CORRUPT for a damaged file; all are logged. */
int gguf_config_read(struct hf_config *out, const char *path, const char *overrides) ERR_CHECKED;

#endif
