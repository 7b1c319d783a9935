/* SPDX-License-Identifier: Apache-2.0
 *
 * Making the vocabulary's image: the bytes of all tokens, sorted into a trie by grammar/trie.c.
 *
 *   VOCABULARY_NONE     the thread works, for the engine that attached last
 *   VOCABULARY_MADE     the image is in a sealed memfd
 *   VOCABULARY_FAILED   no memory or no thread; tried again for the next engine */
#include "front/structured/vocabulary.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "grammar/trie.h"
#include "ipc/attach.h"

/* --- the bytes of tokens -------------------------------------------------------------------- */

/* Is the token one of those that end a text? A model has a few at most. */
static bool vocabulary_is_end(const int32_t *ends, uint32_t n_ends, int32_t id)
{
    for (uint32_t i = 0; i < n_ends; i++) {
        if (ends[i] == id)
            return true;
    }
    return false;
}

/* The trie holds the bytes that each token adds to a text. A token without bytes (a control token
 * such as <|im_start|>) can never be chosen inside a structure. Exceptions are the control tokens
 * that are part of the reply's format, such as <tool_call>: grammars contain them as texts, so they
 * get their spelling. */
int vocabulary_build(const struct vocabulary *v, uint32_t n_vocab, const int32_t *ends,
                     uint32_t n_ends, struct buf *image)
{
    struct trie_token *tokens = mem_zalloc_array(n_vocab, sizeof *tokens);
    const char *tags[REPLY_TAGS_MAX];
    int n_tags = reply_tags(v->format, v->reasoning, tags);
    int rc;

    must(n_ends == 0 || ends != NULL);
    if (tokens == NULL)
        return ERR_NO_MEMORY;
    /* n_vocab is the number of logits, which is often padded to more than the tokenizer has. */
    for (uint32_t i = 0; i < n_vocab && i < (uint32_t)tokenizer_n_vocab(v->tokenizer); i++) {
        if (tokenizer_is_special(v->tokenizer, (int32_t)i))
            continue;
        tokens[i].bytes = tokenizer_bytes(v->tokenizer, (int32_t)i, &tokens[i].len);
    }
    for (int i = 0; i < n_tags; i++) {
        int32_t id = tokenizer_find(v->tokenizer, tags[i], strlen(tags[i]));

        if (id >= 0 && (uint32_t)id < n_vocab)
            tokens[id] = (struct trie_token){tags[i], strlen(tags[i])};
    }
    for (uint32_t i = 0; i < n_vocab; i++) { /* tokens that end a text are not part of it */
        if (vocabulary_is_end(ends, n_ends, (int32_t)i))
            tokens[i] = (struct trie_token){0};
    }
    rc = trie_build(tokens, n_vocab, ends, n_ends, image);
    mem_free(tokens);
    return rc;
}

/* --- the thread --------------------------------------------------------------------------- */

/* Make the image outside the lock, and keep it only if it is still the wanted one. */
static void vocabulary_make(struct vocabulary *v, uint32_t n_vocab, const int32_t *ends,
                            uint32_t n_ends)
{
    uint64_t from_us = clock_us();
    struct buf image = {0};
    int sealed = -1;
    int rc = vocabulary_build(v, n_vocab, ends, n_ends, &image);

    if (rc == ERR_OK)
        rc = attach_seal(image.bytes, image.len, &sealed);
    if (rc == ERR_OK)
        log_info("front: vocabulary of %u tokens, %zu bytes, in %.1f ms", n_vocab, image.len,
                 (double)(clock_us() - from_us) / 1e3);
    else
        log_error("front: structured output is not available: %s", err_sentence(rc));
    (void)pthread_mutex_lock(&v->lock);
    /* vocabulary_want() may have run during the build, for an engine with another model. Then this
     * image is of no use, and vocabulary_run() makes the next. */
    if (v->n_vocab == n_vocab && v->n_ends == n_ends &&
        memcmp(v->ends, ends, n_ends * sizeof *ends) == 0) {
        if (rc == ERR_OK)
            v->state = VOCABULARY_MADE;
        else
            v->state = VOCABULARY_FAILED;
        v->sealed = sealed;
        v->bytes = image.len;
    } else if (sealed != -1) {
        (void)close(sealed); /* another engine has come in the meantime */
    }
    (void)pthread_mutex_unlock(&v->lock);
    buf_fini(&image);
}

/* The thread: repeat until the made image is the wanted one. */
static void *vocabulary_run(void *arg)
{
    struct vocabulary *vocabulary = arg;
    uint64_t one = 1;

    (void)pthread_mutex_lock(&vocabulary->lock);
    while (vocabulary->state == VOCABULARY_NONE) {
        int32_t ends[WIRE_EOS_MAX];
        uint32_t n_vocab = vocabulary->n_vocab;
        uint32_t n_ends = vocabulary->n_ends;

        /* Copy the wish under the lock, because the build must not hold it: it takes long, and
         * vocabulary_get() is called for each request. */
        memcpy(ends, vocabulary->ends, sizeof ends);
        (void)pthread_mutex_unlock(&vocabulary->lock);
        vocabulary_make(vocabulary, n_vocab, ends, n_ends);
        (void)pthread_mutex_lock(&vocabulary->lock);
    }
    vocabulary->making = false;
    (void)pthread_mutex_unlock(&vocabulary->lock);
    (void)!write(vocabulary->made_fd, &one, sizeof one); /* cannot fail: the counter is small */
    return NULL;
}

/* --- for the streamer --------------------------------------------------------------------- */

/* No thread runs yet: the first engine's welcome starts it. */
int vocabulary_init(struct vocabulary *v, const struct tokenizer *t, enum reply_format format,
                    enum reply_reasoning reasoning, int made_fd)
{
    *v = (struct vocabulary){
        .tokenizer = t, .format = format, .reasoning = reasoning, .made_fd = made_fd, .sealed = -1};
    if (pthread_mutex_init(&v->lock, NULL) == 0)
        return ERR_OK;
    return ERR_NO_MEMORY;
}

/* Called whenever an engine attaches. An engine with the vocabulary of the one before changes
 * nothing, so the image survives a restart of the engine. */
void vocabulary_want(struct vocabulary *v, const struct wire_welcome *engine)
{
    uint32_t n_ends = engine->n_eos < WIRE_EOS_MAX ? engine->n_eos : WIRE_EOS_MAX;
    size_t bytes = n_ends * sizeof *v->ends;
    pthread_attr_t attr;
    pthread_t thread;

    (void)pthread_mutex_lock(&v->lock);
    if (v->n_vocab != engine->n_vocab || v->n_ends != n_ends ||
        memcmp(v->ends, engine->eos, bytes) != 0 || v->state == VOCABULARY_FAILED) {
        v->n_vocab = engine->n_vocab;
        v->n_ends = n_ends;
        memcpy(v->ends, engine->eos, bytes);
        v->state = VOCABULARY_NONE;
        if (v->sealed != -1)
            (void)close(v->sealed);
        v->sealed = -1;
        /* A running thread sees the new wish itself, before it ends. The thread is detached: the
         * process never joins it. */
        if (!v->making) {
            v->making = pthread_attr_init(&attr) == 0 &&
                        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) == 0 &&
                        pthread_create(&thread, &attr, vocabulary_run, v) == 0;
            if (!v->making)
                v->state = VOCABULARY_FAILED;
        }
    }
    (void)pthread_mutex_unlock(&v->lock);
}

/* ERR_AGAIN while the thread works; made_fd becomes readable at its end. */
int vocabulary_get(struct vocabulary *v, int *sealed, size_t *bytes)
{
    int rc = ERR_AGAIN;

    (void)pthread_mutex_lock(&v->lock);
    switch (v->state) {
    case VOCABULARY_NONE: break;
    case VOCABULARY_MADE:
        *sealed = v->sealed;
        *bytes = v->bytes;
        rc = ERR_OK;
        break;
    case VOCABULARY_FAILED: rc = ERR_NO_MEMORY; break;
    }
    (void)pthread_mutex_unlock(&v->lock);
    return rc;
}
