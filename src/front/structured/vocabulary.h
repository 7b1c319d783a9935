/* SPDX-License-Identifier: Apache-2.0
 *
 * The vocabulary in the form that the engine needs: the bytes of each token of this front's
 * tokenizer, as a trie.
 *
 * Making it takes 0.2 s, so a thread does it once an engine has reported the number of tokens and
 * the ids that end a text. Special tokens have no bytes, because constrained text must not contain
 * them. The exception are the tags that the reply parser reads as text (text/output/reply.h),
 * because a forced call must be able to write them. */
#ifndef QUIRE_FRONT_STRUCTURED_VOCABULARY_H
#define QUIRE_FRONT_STRUCTURED_VOCABULARY_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "ipc/wire_control.h"
#include "text/output/reply.h"
#include "text/tokenizer/tokenizer.h"

enum vocabulary_state { VOCABULARY_NONE, VOCABULARY_MADE, VOCABULARY_FAILED };

struct vocabulary {
    const struct tokenizer *tokenizer;
    enum reply_format format;
    enum reply_reasoning reasoning;
    int made_fd; /* an eventfd, written when the vocabulary is ready; borrowed */

    pthread_mutex_t lock; /* guards the members below */
    enum vocabulary_state state;
    bool making; /* a thread is making it */
    uint32_t n_vocab;
    uint32_t n_ends;
    int32_t ends[WIRE_EOS_MAX];
    int sealed; /* a memfd, in state VOCABULARY_MADE */
    size_t bytes;
};

int vocabulary_init(struct vocabulary *v, const struct tokenizer *t, enum reply_format format,
                    enum reply_reasoning reasoning, int made_fd) ERR_CHECKED;

/* Make the vocabulary for this engine, unless it is the same as for the last one. Returns at
 * once. */
void vocabulary_want(struct vocabulary *v, const struct wire_welcome *engine);

/* ERR_OK with its size and the memfd, which is owned by the vocabulary and valid until the next
 * vocabulary_want(); ERR_AGAIN while it is being made; ERR_NO_MEMORY. Called by the streamer. */
int vocabulary_get(struct vocabulary *v, int *sealed, size_t *bytes) ERR_CHECKED;

/* Build the image and append it. ERR_OK, ERR_INVALID, ERR_NO_MEMORY. Any thread. */
int vocabulary_build(const struct vocabulary *v, uint32_t n_vocab, const int32_t *ends,
                     uint32_t n_ends, struct buf *image) ERR_CHECKED;

#endif
