/* SPDX-License-Identifier: Apache-2.0
 *
 * Structural tags: outputs described by a tree of formats, as defined by xgrammar and accepted by
 * vLLM. They become parts of a grammar. Both forms are supported: {"format": {...}}, and the older
 * {"structures": [{"begin", "schema", "end"}], "triggers": [...]}.
 *
 * Formats: const_string, json_schema (style json), regex, grammar, any_text, sequence, or,
 * optional, star, plus, repeat, tag, triggered_tags, tags_with_separator, dispatch. Other formats,
 * and members of these that are not supported, are refused by name. */
#ifndef QUIRE_FRONT_STRUCTURED_TAGS_H
#define QUIRE_FRONT_STRUCTURED_TAGS_H

#include "base/json.h"
#include "base/mem.h"
#include "grammar/grammar.h"
#include "text/output/reply.h"

/* v: the structural tag, an object or the text of one.
 *
 *   format   of replies: texts that look like a call, or like harmony's end of a message, are kept
 *            out of free text, patterns and schemas (not out of grammars); REPLY_PLAIN: no texts
 *   out      a sequence; its parts live in the arena and in v
 *   why      out on error: a sentence with the place in the structural tag
 *
 * ERR_SYNTAX, ERR_INVALID, ERR_UNSUPPORTED, ERR_LIMIT, ERR_NO_MEMORY. Any thread. */
int tags_compose(const struct json *v, enum reply_format format, struct arena *arena,
                 struct grammar_part *out, char *why, size_t cap) ERR_CHECKED;

#endif
