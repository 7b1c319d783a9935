/* SPDX-License-Identifier: Apache-2.0
 *
 * The compilers that grammar_compile() chooses from. Each builds the texts that its source
 * describes and returns the state to start from; the texts end at ends of the automaton. */
#ifndef QUIRE_GRAMMAR_SOURCE_H
#define QUIRE_GRAMMAR_SOURCE_H

#include "grammar/build.h"
#include "grammar/compile.h"
#include "grammar/grammar.h"

/* A JSON value under a schema; "" is any value. The text must stay valid until the compilation
 * ends. */
uint32_t schema_build(struct build *build, const char *text, size_t len, enum grammar_space space);

/* The value of a part, PART_SCHEMA or PART_STRING. */
uint32_t schema_part_build(struct build *build, const struct grammar_part *part,
                           enum grammar_space space);

/* A grammar in GBNF or Lark. */
uint32_t ebnf_build(struct build *build, const char *text, size_t len);

/* A composition: parts one after another. */
uint32_t parts_build(struct build *build, const struct grammar_part *parts, size_t n,
                     enum grammar_space space);

/* Text that matches a pattern as a whole. */
uint32_t grammar_build_pattern(struct build *build, const char *text, size_t len);

#endif
