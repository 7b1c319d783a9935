/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by calls.c and calls_args.c: lists of parts in an arena, and the first error. */
#ifndef QUIRE_FRONT_STRUCTURED_CALLS_PARTS_H
#define QUIRE_FRONT_STRUCTURED_CALLS_PARTS_H

#include "base/json.h"
#include "front/structured/calls.h"

struct calls {
    struct arena *arena;
    enum reply_format format;
    int rc; /* of the first error; functions may be called after it, without effect */
    char *why;
    size_t cap;
};

struct part_list {
    struct grammar_part *items;
    size_t n, cap;
};

/* Note an error, if it is the first. */
void calls_fail(struct calls *c, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Append a part. */
void calls_add(struct calls *c, struct part_list *l, struct grammar_part part);

/* Append a text or pattern. The text is borrowed; that of calls_add_printf() lies in the arena. */
void calls_add_text(struct calls *c, struct part_list *l, const char *text);
void calls_add_regex(struct calls *c, struct part_list *l, const char *pattern);
void calls_add_printf(struct calls *c, struct part_list *l, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A list as one part: a sequence, a choice, or min to max repetitions of its sequence with the text
 * `between` in between. */
struct grammar_part calls_sequence(const struct part_list *l);
struct grammar_part calls_choice(const struct part_list *l);
struct grammar_part calls_repeat(const struct part_list *l, uint32_t min, uint32_t max,
                                 const char *between);

/* Append the arguments of a call as the format writes them: a JSON object, members in tags, or
 * arguments of Python. schema: the tool's parameters; NULL: any. */
void calls_add_args(struct calls *c, struct part_list *l, const char *function,
                    const struct json *schema);

#endif
