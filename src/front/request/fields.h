/* SPDX-License-Identifier: Apache-2.0
 *
 * The fields of a generation request: their names, values and effects.
 *
 * One table (fields.c) has a row for each field: used, ignored as harmless, or refused. A field
 * that is null counts as absent. */
#ifndef QUIRE_FRONT_REQUEST_FIELDS_H
#define QUIRE_FRONT_REQUEST_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/names.h"
#include "base/reason.h"
#include "front/request/defaults.h"
#include "front/request/exchange.h"
#include "front/structured/form.h"

/* The values of sampling and answer fields. The callers read `prompt` and `messages`. */
struct fields {
    struct wire_request request; /* sampling, min_tokens, flags */
    bool seed_given;
    bool skip_special;
    bool skip_special_given;
    struct form form;
    bool include_stop;
    const struct json *bad_words; /* a list, or NULL */
    bool use_beams;               /* use_beam_search */
    struct beams_options beams;
    uint32_t mark_s;          /* seconds that cache_control marks ask for; 0: none */
    struct detok_stop *stops; /* in the exchange's arena */
    int n_stops;
};

/* Read body (an object). defaults has the sampling values of absent fields. Fills *out and the
 * members of the exchange that fields set (n, stream, max_tokens, ...).
 *
 * On an error *reason is the client's. ERR_INVALID,
 * ERR_UNSUPPORTED, ERR_NO_MODEL, ERR_NO_MEMORY. */
int fields_read(struct fields *out, struct exchange *x, const struct json *body,
                const struct defaults *defaults, const struct names *names,
                struct reason *reason) ERR_CHECKED;

/* Append the members of a JSON schema's "properties": the fields of a format, with type and
 * range. */
void fields_describe(struct buf *b, enum exchange_format format);

/* Is v one of OpenAI's efforts of reasoning, "none" to "max"? */
bool fields_is_effort(const struct json *v);

/* Hash a cache_salt into the 16 bytes that the engine gets; false when v is no string or empty. */
bool fields_read_salt(const struct json *v, uint8_t salt[WIRE_SALT_BYTES]);

#endif
