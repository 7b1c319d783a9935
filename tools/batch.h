/* SPDX-License-Identifier: Apache-2.0
 *
 * The two files of quire batch, in OpenAI's format. */
#ifndef QUIRE_TOOLS_BATCH_H
#define QUIRE_TOOLS_BATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/mem.h"

struct batch_item {
    const char *line;   /* of the mapped input; it has no end of line */
    size_t len, number; /* number: from 1 on, for people */
    const char *custom_id;
    bool is_done; /* the output has it */
};

struct batch_file {
    struct batch_item *items;  /* [n], in the order of the input */
    struct batch_item **by_id; /* [n], sorted by custom_id */
    size_t n, n_done;
    struct arena arena; /* of the texts */
    int out;            /* the output, locked, at its end; -1: closed */
};

#define BATCH_FILE_CLOSED \
    {                     \
        .out = -1         \
    }

/* Read the input and look at every line before any is asked, as OpenAI does: each is a JSON object
 * with a custom_id of its own, the method POST, the path of an endpoint and a body that is not
 * streamed. False: the wrong lines were printed, up to 20. `command` begins messages. */
bool batch_file_read(struct batch_file *f, const char *command, const char *path);

/* Open or make the output, cut a last line without an end off, and note the items it has. False:
 * the reason was printed; another process may write it. */
bool batch_file_resume(struct batch_file *f, const char *command, const char *path);

/* Append a line in one write. Callers take turns. False: the disk is full, for example (printed);
 * the file ends with a whole line. */
bool batch_file_append(struct batch_file *f, const char *command, const struct buf *line);

void batch_file_fini(struct batch_file *f);

#endif
