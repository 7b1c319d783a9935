/* Values of requests as vLLM's clients may write them.
 *
 * vLLM reads requests with pydantic, which takes a number from a string that holds one, a whole
 * number from a real without a fraction, and a flag from 0, 1 and a few words. Clients rely on it.
 * */
#ifndef QUIRE_FRONT_REQUEST_LAX_H
#define QUIRE_FRONT_REQUEST_LAX_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"

#define LAX_SHOW_BYTES 64 /* room that lax_show() needs */

/* The number that v stands for: JSON_INT for whole ones that fit, else JSON_UINT or JSON_REAL. v
 * itself when it stands for none. */
struct json lax_number(const struct json *v);

/* The flag that v stands for. False when it stands for none; *flag is untouched then. */
bool lax_flag(const struct json *v, bool *flag);

/* The flag that a member stands for; default when there is none, or it stands for no flag. */
bool lax_get_flag(const struct json *obj, const char *name, bool fallback);

/* v as a reason shows it: numbers as they were written, texts in quotes, both cut; the kind of
 * anything else. Returns out. */
const char *lax_show(const struct json *v, char out[LAX_SHOW_BYTES]);

#endif
