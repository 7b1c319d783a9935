/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of requests in the forms that vLLM's clients may use.
 *
 * vLLM reads requests with pydantic, which accepts a number inside a string, a whole number written
 * as a real without a fraction, and flags written as 0, 1 or one of a few words. Clients rely on
 * it. */
#ifndef QUIRE_FRONT_REQUEST_LAX_H
#define QUIRE_FRONT_REQUEST_LAX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

#define LAX_SHOW_BYTES 64 /* room that lax_show() needs */

/* The number in v: JSON_INT for whole ones that fit, else JSON_UINT or JSON_REAL. Returns a copy of
 * v when it holds no number. Texts stay borrowed from v. */
struct json lax_number(const struct json *v);

/* Read v as a flag into *flag. False, with *flag untouched, when it is none. */
bool lax_flag(const struct json *v, bool *flag);

/* The flag in a member; fallback when the member is missing or no flag. */
bool lax_get_flag(const struct json *obj, const char *name, bool fallback);

/* v for an error text: numbers as they were written, texts in quotes (both cut to 40 bytes), for
 * all else the name of its kind. Returns out. */
const char *lax_show(const struct json *v, char out[LAX_SHOW_BYTES]);

#endif
