/* The fields of a generation request: which there are, what they may be, what becomes of them.
 *
 * One table (fields.c) says for each field whether it is used, harmless or refused. A field
 * that is null counts as absent. */
#ifndef QUIRE_FRONT_REQUEST_FIELDS_H
#define QUIRE_FRONT_REQUEST_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/names.h"
#include "front/request/defaults.h"
#include "front/request/exchange.h"
#include "front/structured/form.h"

/* Sampling and answer fields of a request; `prompt` and `messages` are the caller's. */
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
    uint32_t mark_s;          /* seconds that marks (cache_control) want; 0: none */
    struct detok_stop *stops; /* in the exchange's arena */
    int n_stops;
};

/* Read body (an object). defaults: sampling values of fields that are absent. Fills *out and what
 * the exchange holds of a request's wishes (n, stream, max_tokens, ...).
 * On error why is a sentence for the client and *param the field's name.
 * ERR_INVALID, ERR_UNSUPPORTED, ERR_NO_MODEL. */
int fields_read(struct fields *out, struct exchange *x, const struct json *body,
                const struct defaults *defaults, const struct names *names, char *why,
                size_t why_cap, const char **param) ERR_CHECKED;

/* Append the members of a JSON schema's "properties": a format's fields with type and range. */
void fields_describe(struct buf *b, enum exchange_format format);

/* Is it an effort of reasoning as OpenAI names them, none to max? */
bool fields_is_effort(const struct json *v);

/* A cache_salt as it crosses to the engine; false when it cannot be one. */
bool fields_read_salt(const struct json *v, uint8_t salt[WIRE_SALT_BYTES]);

#endif
