/* SPDX-License-Identifier: Apache-2.0
 *
 * Defaults: values for fields that a request does not have, from the model's folder
 * (generation_config.json) and from the operator's settings. */
#ifndef QUIRE_FRONT_REQUEST_DEFAULTS_H
#define QUIRE_FRONT_REQUEST_DEFAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/sampling.h"

/* All values lie in the ranges of the request's fields. */
struct defaults {
    struct sampling sampling;
    uint32_t max_tokens; /* 0: as many as fit into the context */
    int max_logprobs;    /* maximum that a request may ask for; -1: any number */
    int max_stops;
    bool tokens_as_ids; /* return_tokens_as_token_ids */
    bool include_usage; /* streams end with their usage even if not requested */
};

/* The values of sampling_presets() and the built-in limits. */
void defaults_init(struct defaults *p);

/* Read generation_config.json of a model's folder: temperature, top_p, top_k, min_p,
 * repetition_penalty and max_new_tokens, the members that vLLM uses too; null counts as absent.
 *
 * ERR_OK, also when there is no such file; ERR_SYNTAX, ERR_INVALID, ERR_IO, ERR_LIMIT or
 * ERR_NO_MEMORY with the reason in why, and p unchanged. */
int defaults_read(struct defaults *p, const char *dir, char *why, size_t why_cap) ERR_CHECKED;

/* Read a JSON object of such members: the setting override_generation_config. "" changes nothing.
 * Errors as defaults_read(). */
int defaults_override(struct defaults *p, const char *text, char *why, size_t why_cap) ERR_CHECKED;

#endif
