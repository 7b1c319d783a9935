/* The grammar of calls: texts that text/output/reply.h takes apart into calls of the request's
 * tools with arguments that are valid, in the way that the model's format writes them. */
#ifndef QUIRE_FRONT_STRUCTURED_CALLS_H
#define QUIRE_FRONT_STRUCTURED_CALLS_H

#include "base/mem.h"
#include "front/structured/form.h"
#include "grammar/grammar.h"
#include "text/output/reply.h"

/* What strings of a PART_SCHEMA, or a whole PART_REGEX, may not hold, because it would be taken for
 * a call or an end: gives the part its parts. ERR_OK, ERR_NO_MEMORY. */
int calls_avoid(enum reply_format format, struct arena *arena,
                struct grammar_part *part) ERR_CHECKED;

/* The i-th of these texts, counted from 0; NULL behind the last. */
const char *calls_avoided(enum reply_format format, size_t i);

/* Are there calls without any text before them, at the beginning of a reply? */
bool calls_may_begin_bare(enum reply_format format);

/* Add to body[0 .. *n), a choice, how calls are written; in REPLY_HARMONY also what stands around
 * the content, which may be there already. There is room for one more.
 *
 * ERR_INVALID, ERR_UNSUPPORTED for a name or a schema that the format cannot write (why says
 * which), ERR_NO_MEMORY. What is in body lives in the arena and in the tools. */
int calls_compose(const struct form *f, enum reply_format format, bool one_call,
                  struct arena *arena, struct grammar_part *body, size_t *n, char *why,
                  size_t cap) ERR_CHECKED;

#endif
