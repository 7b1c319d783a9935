/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of a pickle, the format in which Python writes objects, as far as PyTorch's files of
 * weights use it.
 *
 * Nothing is executed. Python's own reader imports and calls whatever function a pickle names, so a
 * file can run any program; here a call is a value with the function's name and its arguments, and
 * a name that has nothing to do with tensors is refused. */
#ifndef QUIRE_MODEL_PICKLE_H
#define QUIRE_MODEL_PICKLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"

enum pickle_kind {
    PICKLE_OTHER, /* None, a truth value or a float: never a part of a tensor */
    PICKLE_INT,   /* whole */
    PICKLE_TEXT,  /* text */
    PICKLE_LIST,  /* a list or tuple: items [n] */
    PICKLE_DICT,  /* items [n]: key, value, key, value, ... */
    PICKLE_NAME,  /* text: "torch.FloatStorage" */
    PICKLE_CALL,  /* text: the function's name; items [n]: its arguments */
    PICKLE_ID,    /* an object outside the pickle, which items [n] describe */
};

/* A value; all memory is in the arena. A value may be part of several others, even of itself. */
struct pickle {
    enum pickle_kind kind;
    int64_t whole;
    const char *text;
    struct pickle **items;
    uint32_t n, cap;
};

/* Read a pickle of protocol 2 to 5. ERR_CORRUPT if it breaks a rule or names a function that has
 * nothing to do with tensors, ERR_UNSUPPORTED for an operation that PyTorch does not write (`why`
 * receives the reason), ERR_NO_MEMORY. Any thread. Time and memory are linear in len, about 100
 * bytes per byte; ERR_CORRUPT, too, for a pickle of more than 8 million values. */
int pickle_parse(const struct pickle **out, struct arena *arena, const uint8_t *bytes, size_t len,
                 char *why, size_t why_cap) ERR_CHECKED;

#endif
