/* On what terms a request is served: who asks, how urgent it is, until when it is wanted.
 *
 * nginx says who (QUIRE_TENANT, from the key). The client may say the rest, in the body or in a
 * header, which any client can set:
 *
 *   X-Vllm-Priority     in place of `priority`; no more urgent than client_priority_min
 *   X-Request-Timeout   seconds, as `timeout_s`; the shorter one counts */
#ifndef QUIRE_FRONT_REQUEST_POLICY_H
#define QUIRE_FRONT_REQUEST_POLICY_H

#include "base/settings.h"
#include "front/request/exchange.h"
#include "ipc/wire_request.h"

/* Fill tenant, priority and deadline_us of r; what the body said of them stands in r and x. False
 * after an error answer. */
bool policy_read(const struct settings *s, struct exchange *x, struct wire_request *r);

/* The tenant's own namespace for what r's salt says (cache_per_key); nobody's is the shared one. */
void policy_isolate(struct wire_request *r);

/* A tenant's name as it crosses to the engine: what is too long is cut, and its end made a hash. */
void policy_tenant(const char *name, char out[WIRE_TENANT_BYTES]);

#endif
