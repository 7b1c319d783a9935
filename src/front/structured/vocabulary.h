/* The vocabulary that an engine is uploaded: what the tokens of this front's tokenizer spell.
 *
 * It takes 0.2 s to make, so a thread of its own makes it, once an engine has said how many
 * tokens there are and which of them end a text. Special tokens spell nothing, for no text is to
 * hold them; but the tags of the model's replies are read as text (text/output/reply.h), and a
 * call that must come has to be written with them. */
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
    int made_fd; /* an eventfd that is written to when it is made; borrowed */

    pthread_mutex_t lock; /* guards what follows */
    enum vocabulary_state state;
    bool making; /* a thread is at it */
    uint32_t n_vocab;
    uint32_t n_ends;
    int32_t ends[WIRE_EOS_MAX];
    int sealed; /* memfd, with VOCABULARY_MADE */
    size_t bytes;
};

int vocabulary_init(struct vocabulary *v, const struct tokenizer *t, enum reply_format format,
                    enum reply_reasoning reasoning, int made_fd) ERR_CHECKED;

/* Make it for this engine; nothing to do when it is as the last one was. Returns at once. */
void vocabulary_want(struct vocabulary *v, const struct wire_welcome *engine);

/* ERR_OK with the memfd, which stays the vocabulary's until the next vocabulary_want(), and its
 * size; ERR_AGAIN while it is being made; ERR_NO_MEMORY. The streamer's. */
int vocabulary_get(struct vocabulary *v, int *sealed, size_t *bytes) ERR_CHECKED;

/* Append the image. ERR_OK, ERR_INVALID, ERR_NO_MEMORY. Any thread. */
int vocabulary_build(const struct vocabulary *v, uint32_t n_vocab, const int32_t *ends,
                     uint32_t n_ends, struct buf *image) ERR_CHECKED;

#endif
