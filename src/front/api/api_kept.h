/* How POST /v1/responses meets the responses that are kept. On reader threads, with f->kept. */
#ifndef QUIRE_FRONT_API_API_KEPT_H
#define QUIRE_FRONT_API_API_KEPT_H

#include "front/front.h"

#define API_KEPT_PREFIX        "resp_" /* of a response's id; behind it stands the request's */
#define API_KEPT_ID_BYTES      96      /* of such an id, its NUL included */
#define API_KEPT_MEMORY_FACTOR 8 /* what a request may take, in largest bodies: as route.c has it */

/* The items that the body's previous_response_id stands for: the input and the output of that
 * response; an empty list without one. False after an error answer. */
bool api_kept_before(struct front *f, struct exchange *x, const struct json *body,
                     struct json *earlier);

/* Replace *body by one whose input has the items that its references stand for. False after an
 * error answer. */
bool api_kept_references(struct front *f, struct exchange *x, const struct json *earlier,
                         const struct json **body);

/* Have x's response kept when it is complete, unless the body says `"store": false`. */
void api_keep(struct front *f, struct exchange *x, const struct json *body,
              const struct json *earlier);

#endif
