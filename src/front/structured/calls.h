/* SPDX-License-Identifier: Apache-2.0
 *
 * The grammar of tool calls: the texts that text/output/reply.h parses into calls of the request's
 * tools with valid arguments, in the model's format. */
#ifndef QUIRE_FRONT_STRUCTURED_CALLS_H
#define QUIRE_FRONT_STRUCTURED_CALLS_H

#include "base/mem.h"
#include "front/structured/form.h"
#include "grammar/grammar.h"
#include "text/output/reply.h"

/* Make sure that a PART_SCHEMA's strings, or a whole PART_REGEX, contain no text that the reply
 * parser would take for a call or an end: adds that condition to the part. ERR_OK,
 * ERR_NO_MEMORY. */
int calls_avoid(enum reply_format format, struct arena *arena,
                struct grammar_part *part) ERR_CHECKED;

/* The i-th of these texts, counted from 0; NULL after the last. */
const char *calls_avoided(enum reply_format format, size_t i);

/* Can a reply of this format begin with a call without any tag? */
bool calls_may_begin_bare(enum reply_format format);

/* Add the calls to body[0 .. *n), the alternatives of the grammar; there is room for one more. In
 * REPLY_HARMONY the result also contains the messages around the content, which may be in body[0].
 *
 * ERR_INVALID or ERR_UNSUPPORTED for a name or schema that the format cannot express (*reason says
 * which), ERR_NO_MEMORY. The parts live in the arena and in the tools. */
int calls_compose(const struct form *f, const struct form_model *m, struct arena *arena,
                  struct grammar_part *body, size_t *n, struct reason *reason) ERR_CHECKED;

#endif
