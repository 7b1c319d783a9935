/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored responses, as POST /v1/responses uses them. On reader threads; f->kept must not be
 * NULL. */
#ifndef QUIRE_FRONT_API_API_KEPT_H
#define QUIRE_FRONT_API_API_KEPT_H

#include "front/front.h"

#define API_KEPT_PREFIX        "resp_" /* a response's id is this and the request's id */
#define API_KEPT_ID_BYTES      96      /* room for such an id with its NUL */
#define API_KEPT_MEMORY_FACTOR 8 /* memory limit per request, in maximum bodies; as in route.c */

/* Read the items of body's previous_response_id: the input and the output of that response; an
 * empty list when body has none. False after an error answer. */
bool api_kept_before(struct front *f, struct exchange *x, const struct json *body,
                     struct json *earlier);

/* Replace *body by one whose input has the items themselves in place of references. False after an
 * error answer. */
bool api_kept_references(struct front *f, struct exchange *x, const struct json *earlier,
                         const struct json **body);

/* Have x's response stored when it is complete, unless the body has "store": false. */
void api_keep(struct front *f, struct exchange *x, const struct json *body,
              const struct json *earlier);

#endif
