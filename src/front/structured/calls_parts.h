/* What calls.c and calls_args.c share: lists of parts in an arena, and one first error. */
#ifndef QUIRE_FRONT_STRUCTURED_CALLS_PARTS_H
#define QUIRE_FRONT_STRUCTURED_CALLS_PARTS_H

#include "base/json.h"
#include "front/structured/calls.h"

struct calls {
    struct arena *arena;
    enum reply_format format;
    int rc; /* of the first error; what follows it is harmless */
    char *why;
    size_t cap;
};

struct part_list {
    struct grammar_part *items;
    size_t n, cap;
};

/* Note the first error. */
void calls_fail(struct calls *c, int rc, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void calls_add(struct calls *c, struct part_list *l, struct grammar_part part);

/* Text is borrowed; that of calls_add_printf() is made in the arena. */
void calls_add_text(struct calls *c, struct part_list *l, const char *text);
void calls_add_regex(struct calls *c, struct part_list *l, const char *pattern);
void calls_add_printf(struct calls *c, struct part_list *l, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A list as one part; min to max of its sequence with `between`. */
struct grammar_part calls_sequence(const struct part_list *l);
struct grammar_part calls_choice(const struct part_list *l);
struct grammar_part calls_repeat(const struct part_list *l, uint32_t min, uint32_t max,
                                 const char *between);

/* The arguments of a call, in the way of the format: an object as JSON, members in tags, or
 * arguments of Python. schema: the tool's parameters; NULL: any. */
void calls_add_args(struct calls *c, struct part_list *l, const char *function,
                    const struct json *schema);

#endif
