/* SPDX-License-Identifier: Apache-2.0
 *
 * Structured output in a front: compiles a client's demand on the output into one automaton.
 *
 * A schema, a regular expression, a list of choices, an EBNF grammar or a composition of these with
 * literal text becomes an automaton image (automaton.h) that the engine checks and walks (walk.h).
 * A constraint that cannot be enforced exactly is refused with its keyword and its place; only
 * annotations (title, description, default, examples, unknown formats, ...) are ignored.
 *
 * Decisions, with the other implementations that decide alike:
 *
 *   order       members of an object come in the order of `properties`, then names that only
 *               `required` has, then additional ones (xgrammar, llguidance)
 *   whitespace  GRAMMAR_FLEXIBLE, the default: wherever JSON allows it between tokens nothing, one
 *               blank, or one or two line ends with up to 32 blanks of indentation; before ':' at
 *               most one space. xgrammar and llguidance set no bound, and weak models then write
 *               blanks without end; llama.cpp's grammars have a similar bound. None before or after
 *               the whole value. GRAMMAR_COMPACT: one optional space after ',' and ':'.
 *               GRAMMAR_SPACED: at all those places the texts that match the client's pattern and
 *               are JSON's white space
 *   numbers     an integer is written without '.' and exponent; a number under a bound or
 *               multipleOf without exponent
 *   strings     free ones may use every JSON escape; those under a pattern, a format or an enum
 *               escape only the characters that JSON requires
 *   oneOf       exactly one: alternatives are made disjoint, or refused where that grows too large
 *   $ref        within the document; with draft-04 to draft-07 its siblings are ignored
 *   $schema     of json-schema.org, or OpenAPI 3.1's; others are refused
 *   formats     "time" and "date-time" together with other constraints, and "hostname" together
 *               with minLength or maxLength, are enforced less exactly; nothing valid is refused
 *   uniqueItems of items that are of an enum, const or boolean: exact up to 6 values; of up to 256
 *               they come in the order of the enum; of others (set[str]) it is refused, unless
 *               maxItems is 1
 *   maxLength   with a pattern or format up to 65,000 characters, counted in the stack
 *   names       an additional name may occur twice: a finite automaton cannot remember them */
#ifndef QUIRE_GRAMMAR_GRAMMAR_H
#define QUIRE_GRAMMAR_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define GRAMMAR_COMPILE_US  180000              /* CPU time after which a compilation is refused */
#define GRAMMAR_BYTES_MAX   ((size_t)32 << 20)  /* size of an image */
#define GRAMMAR_STATES_MAX  300000              /* states of an image */
#define GRAMMAR_MEMORY_MAX  ((size_t)256 << 20) /* memory of a compilation, freed at its end */
#define GRAMMAR_SOURCE_MAX  ((size_t)2 << 20)   /* bytes of one schema, pattern or grammar */
#define GRAMMAR_CHOICES_MAX 20000

enum grammar_kind {
    GRAMMAR_SCHEMA,      /* source: a JSON schema */
    GRAMMAR_JSON_OBJECT, /* any JSON object */
    GRAMMAR_REGEX,       /* source: a pattern that the whole output must match */
    GRAMMAR_CHOICE,      /* choices: the output is one of them */
    GRAMMAR_EBNF,        /* source: GBNF or Lark; see ebnf.c */
    GRAMMAR_PARTS,       /* parts: a composition */
};

enum grammar_space { GRAMMAR_FLEXIBLE, GRAMMAR_COMPACT, GRAMMAR_SPACED };

/* The kinds of parts of a composition. */
enum grammar_part_kind {
    PART_TEXT,   /* exactly these bytes */
    PART_SCHEMA, /* a JSON value under this schema ("" or "true": any value). Its parts may be one
                    * PART_REGEX: then every string in the value, and every name that the schema
                    * leaves open, must match that as a whole, too, and is escaped only where JSON
                    * requires it */
    PART_STRING, /* a string under this schema, written raw: without quotes and escapes; its parts
                    * as with PART_SCHEMA */
    PART_OBJECT, /* any JSON object */
    PART_REGEX,  /* text that matches as a whole; its parts may be one more PART_REGEX, which must
                    * match, too */
    PART_EBNF,   /* text of this grammar */
    PART_FREE,   /* any text that contains none of `never`, up to (and without) the next part. That
                    * must be a PART_TEXT or a PART_CHOICE of them; its first occurrence ends the
                    * free text. As the last part: any text to the end */
    PART_SEQUENCE, /* its parts, one after another */
    PART_CHOICE,   /* one of its parts */
    PART_REPEAT,   /* its parts as a sequence, min to max times, separated by `text` */
    PART_TRIGGERS, /* free text that may contain its parts, min to max of them in all. Each is a
                    * PART_SEQUENCE that begins with a PART_TEXT, the trigger: once the trigger is
                    * written, the rest of its sequence must follow, then free text again. It ends
                    * after the max-th, or, once there were min, at the next part, if that is a
                    * PART_TEXT or a PART_CHOICE of them. `never` as with PART_FREE */
};

struct grammar_part {
    enum grammar_part_kind kind;
    const char *text; /* bytes, schema, pattern, grammar or separator */
    size_t len;
    const struct grammar_part *parts;
    size_t n_parts;
    const struct grammar_part *never; /* PART_TEXT each: texts that free text must not contain */
    size_t n_never;
    uint32_t min;
    uint32_t max; /* UINT32_MAX: no limit */
};

struct grammar_request {
    enum grammar_kind kind;
    enum grammar_space space;
    const char *spacing; /* the pattern, with GRAMMAR_SPACED */
    size_t spacing_len;
    const char *source;
    size_t source_len;
    const char *const *choices; /* NUL-terminated */
    size_t n_choices;
    const struct grammar_part *parts; /* a sequence */
    size_t n_parts;
};

struct grammar_error {
    char text[256];  /* a sentence for the client */
    char where[256]; /* JSON pointer of the keyword in the schema, or "line:column", or "" */
};

/* Compile.
 *
 *   image    out: appended to; unchanged on error
 *   error    out on error; may be NULL
 *
 * Returns ERR_OK; ERR_SYNTAX when the source is not well formed; ERR_INVALID when it is not a
 * schema, or nothing can satisfy it; ERR_UNSUPPORTED for a constraint that cannot be enforced (text
 * names it); ERR_LIMIT when it would take more time, states or memory than the bounds above;
 * ERR_NO_MEMORY. Any thread. Usually takes 0.1 to 5 ms, at most about GRAMMAR_COMPILE_US. */
int grammar_compile(const struct grammar_request *request, struct buf *image,
                    struct grammar_error *error) ERR_CHECKED;

#endif
