/* Structural tags: outputs described by a tree of formats, as xgrammar has them and vLLM takes
 * them, become parts of a grammar. Both shapes: {"format": {...}}, and the older
 * {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
 *
 * Kinds of formats: const_string, json_schema (style json), regex, grammar, any_text, sequence, or,
 * optional, star, plus, repeat, tag, triggered_tags, tags_with_separator, dispatch. The others, and
 * what is known of these and not uploaded, are refused by name. */
#ifndef QUIRE_FRONT_STRUCTURED_TAGS_H
#define QUIRE_FRONT_STRUCTURED_TAGS_H

#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "text/output/reply.h"

/* v: the structural tag, an object or the text of one.
 *
 *   format   of replies: what would be taken for a call, or harmony's end of a message, is kept
 *            out of free text, patterns and schemas (not out of grammars); REPLY_PLAIN: nothing is
 *   out      a sequence; what is in it lives in the arena and in v
 *   why      out on error: a sentence with the place in the structural tag
 *
 * ERR_SYNTAX, ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT, ERR_NO_MEMORY. Any thread. */
int tags_compose(const struct json *v, enum reply_format format, struct arena *arena,
                 struct grammar_part *out, char *why, size_t cap) ERR_CHECKED;

#endif
