/* Structured output, the side of a front: from what a client asked for to one automaton.
 *
 * A schema, a regular expression, a list of choices, an EBNF grammar or a composition of these
 * with literal text becomes an automaton image (automaton.h) that the engine checks and walks
 * (walk.h). What cannot be honoured exactly is refused with the keyword and its place; only
 * annotations (title, description, default, examples, unknown formats, ...) are passed over.
 *
 * What is decided here, and where peers do the same:
 *
 *   order       members of an object come in the order of `properties`, then names that only
 *               `required` has, then additional ones (xgrammar, llguidance)
 *   whitespace  GRAMMAR_FLEXIBLE, the default: wherever JSON allows it between tokens nothing, one
 *               blank, or a line's end (or two) and up to 32 blanks of indentation; before ':' one
 *               space at most. xgrammar and llguidance bound nothing, and weak models go on there
 *               for ever; llama.cpp's grammars have a like bound. None before or after the whole
 *               value. GRAMMAR_COMPACT: one optional space after ',' and ':'. GRAMMAR_SPACED: at
 *               all those places what matches the client's pattern and is JSON's white space
 *   numbers     an integer is written without '.' and exponent; a number under a bound or
 *               multipleOf without exponent
 *   strings     free ones may use every JSON escape; those under a pattern, a format or an enum
 *               escape only what JSON demands
 *   oneOf       exactly one: alternatives are made disjoint, or refused where that grows too large
 *   $ref        within the document; with draft-04 to draft-07 its siblings are not looked at
 *   $schema     of json-schema.org, or OpenAPI 3.1's; another one is refused
 *   formats     "time" and "date-time" beside other constraints, and "hostname" beside minLength
 *               or maxLength, are held less exactly; nothing valid is refused
 *   uniqueItems of items that are of an enum, const or boolean: exact up to 6 values, of up to 256
 *               they come in the order of the enum; of others (set[str]) it is refused, unless
 *               maxItems is 1
 *   maxLength   beside a pattern or format up to 65,000 characters, counted beside its states
 *   names       an additional name may occur twice: a finite automaton cannot remember them */
#ifndef QUIRE_GRAMMAR_GRAMMAR_H
#define QUIRE_GRAMMAR_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

#define GRAMMAR_COMPILE_US  180000 /* a compilation that computes for longer is refused */
#define GRAMMAR_BYTES_MAX   ((size_t)32 << 20)  /* an image is never larger */
#define GRAMMAR_STATES_MAX  300000              /* of an image */
#define GRAMMAR_MEMORY_MAX  ((size_t)256 << 20) /* taken while compiling, then given back */
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

/* One step of a composition. */
enum grammar_part_kind {
    PART_TEXT,     /* exactly these bytes */
    PART_SCHEMA,   /* a JSON value under this schema ("" or "true": any value). Its parts may be one
                    * PART_REGEX: every string in the value, and every name that the schema leaves
                    * open, matches that as a whole, too, and is escaped only where JSON demands */
    PART_STRING,   /* a string under this schema, as it is: without quotes and escapes; parts as
                    * with PART_SCHEMA */
    PART_OBJECT,   /* any JSON object */
    PART_REGEX,    /* text that matches as a whole; its parts may be one more PART_REGEX, which it
                    * matches, too */
    PART_EBNF,     /* text of this grammar */
    PART_FREE,     /* any text without those of `never`, up to (and without) the next part, which
                    * must be a PART_TEXT or a PART_CHOICE of them and whose first occurrence ends
                    * it; as the last part: any text to the end */
    PART_SEQUENCE, /* its parts, one after another */
    PART_CHOICE,   /* one of its parts */
    PART_REPEAT,   /* its parts as a sequence, min to max times, `text` between two of them */
    PART_TRIGGERS, /* free text in which each of its parts (PART_SEQUENCE that begin with
                    * PART_TEXT, the trigger) may stand, min to max of them together: once a
                    * trigger is written, the rest of its sequence follows, then free text again.
                    * After the max-th it ends; so it does at a PART_TEXT, or a PART_CHOICE of them,
                    * that is the next part, once there were min. `never` as with PART_FREE */
};

struct grammar_part {
    enum grammar_part_kind kind;
    const char *text; /* bytes, schema, pattern, grammar or separator */
    size_t len;
    const struct grammar_part *parts;
    size_t n_parts;
    const struct grammar_part *never; /* PART_TEXT each: what free text may not hold */
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
 *   image    out: appended to; left as it was on error
 *   error    out on error; may be NULL
 *
 * Returns ERR_OK; ERR_SYNTAX when the source is not well formed; ERR_INVALID when it is not a
 * schema, or nothing can satisfy it; ERR_UNSUPPORTED for what cannot be honoured (text names it);
 * ERR_LIMIT when it would take more time, states or memory than the bounds above; ERR_NO_MEMORY.
 * Any thread. Takes 0.1 to 5 ms as a rule, never more than about GRAMMAR_COMPILE_US. */
int grammar_compile(const struct grammar_request *request, struct buf *image,
                    struct grammar_error *error) ERR_CHECKED;

#endif
