/* SPDX-License-Identifier: Apache-2.0
 *
 * The terms of service of a request: its tenant, its urgency and its deadline.
 *
 * nginx sets the tenant (parameter QUIRE_TENANT, found by the API key). The client may set the
 * rest, in the body or in a header, for clients that cannot extend the body:
 *
 *   X-Vllm-Priority     in place of `priority`; at least client_priority_min
 *   X-Request-Timeout   seconds, like `timeout_s`; the shorter one applies */
#ifndef QUIRE_FRONT_REQUEST_POLICY_H
#define QUIRE_FRONT_REQUEST_POLICY_H

#include "base/settings.h"
#include "front/request/exchange.h"
#include "ipc/wire_request.h"

/* Fill tenant, priority and deadline_us of r. The values from the body are already in r and x.
 * False after an error answer. */
bool policy_read(const struct settings *s, struct exchange *x, struct wire_request *r);

/* Replace r's salt by one that only this tenant has (cache_per_key). Requests without a tenant keep
 * theirs and share one namespace. */
void policy_isolate(struct wire_request *r);

/* A tenant's name for the engine: a name that is too long is cut and ends in a hash. */
void policy_tenant(const char *name, char out[WIRE_TENANT_BYTES]);

#endif
