/* Presets: values for requests that give none, from the model's folder (generation_config.json) and
 * the operator's settings. */
#ifndef QUIRE_FRONT_REQUEST_PRESETS_H
#define QUIRE_FRONT_REQUEST_PRESETS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/sampling.h"

/* Values are in the ranges of the fields of a request. */
struct presets {
    struct sampling sampling;
    uint32_t max_tokens; /* 0: as many as there is room for */
    int max_logprobs;    /* what a request may ask for, as the setting; -1: any number */
    int max_stops;
    bool tokens_as_ids; /* return_tokens_as_token_ids */
    bool include_usage; /* of streams, whatever they say */
};

/* sampling_presets(), nothing else. */
void presets_init(struct presets *p);

/* Take over what generation_config.json of a model's folder says, with vLLM's choice of members:
 * temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens; null counts as absent.
 *
 * ERR_OK, also when there is no such file; ERR_SYNTAX, ERR_INVALID, ERR_IO, ERR_LIMIT or
 * ERR_NO_MEMORY with the reason in why. p is then as it was. */
int presets_read(struct presets *p, const char *dir, char *why, size_t why_cap) ERR_CHECKED;

/* The same of a JSON text: the setting override_generation_config. "" changes nothing. */
int presets_override(struct presets *p, const char *text, char *why, size_t why_cap) ERR_CHECKED;

#endif
