/* Defaults: values for requests that give none, from the model's folder (generation_config.json)
 * and the operator's settings. */
#ifndef QUIRE_FRONT_REQUEST_DEFAULTS_H
#define QUIRE_FRONT_REQUEST_DEFAULTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/sampling.h"

/* Values are in the ranges of the fields of a request. */
struct defaults {
    struct sampling sampling;
    uint32_t max_tokens; /* 0: as many as there is room for */
    int max_logprobs;    /* what a request may ask for, as the setting; -1: any number */
    int max_stops;
    bool tokens_as_ids; /* return_tokens_as_token_ids */
    bool include_usage; /* of streams, whatever they say */
};

/* sampling_presets(), nothing else. */
void defaults_init(struct defaults *p);

/* Take over what generation_config.json of a model's folder says, with vLLM's choice of members:
 * temperature, top_p, top_k, min_p, repetition_penalty, max_new_tokens; null counts as absent.
 *
 * ERR_OK, also when there is no such file; ERR_SYNTAX, ERR_INVALID, ERR_IO, ERR_LIMIT or
 * ERR_NO_MEMORY with the reason in why. p is then as it was. */
int defaults_read(struct defaults *p, const char *dir, char *why, size_t why_cap) ERR_CHECKED;

/* The same of a JSON text: the setting override_generation_config. "" changes nothing. */
int defaults_override(struct defaults *p, const char *text, char *why, size_t why_cap) ERR_CHECKED;

#endif
