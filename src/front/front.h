/* A front: one process that turns HTTP into token ids and token ids into HTTP.
 *
 *   reader threads  accept, read, parse, tokenize      idle_pool.c, reader.c -> route.c -> api_*.c
 *   streamer        the lane, every answer's bytes     streamer.c -> link.c, answer.c
 *
 * What both sides see stands in struct front and is constant after start, but for the hand-over
 * list and what link.h marks. */
#ifndef QUIRE_FRONT_FRONT_H
#define QUIRE_FRONT_FRONT_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/names.h"
#include "base/settings.h"
#include "front/http/idle_pool.h"
#include "front/kept/kept.h"
#include "front/link/link.h"
#include "front/request/defaults.h"
#include "front/request/exchange.h"
#include "front/structured/compiled.h"
#include "front/structured/vocabulary.h"
#include "text/template/chat.h"
#include "text/tokenizer/tokenizer.h"

struct front {
    struct settings settings;
    struct tokenizer *tokenizer;
    struct chat *chat;
    enum reply_format reply_format;
    enum reply_reasoning reply_reasoning;
    struct names names;     /* under which clients ask for the model */
    const char *model_name; /* the first of them */
    struct defaults defaults;
    struct arena arena;             /* of what is read at start and lives as long as the process */
    const struct json *chat_kwargs; /* template variables of chats that do not set them, or NULL */
    int64_t model_unix_s;           /* when its folder was last changed: the same in every front */
    char fingerprint[48]; /* system_fingerprint: "quire-VERSION-" and 8 digits of build and model */
    int listen_fd;
    int signal_fd;
    int stop_fd;                /* readable once the process stops accepting */
    struct idle_pool idle_pool; /* the readers' */
    _Atomic int n_readers;      /* reader threads that still run */
    sem_t reading;              /* front_threads of them may look for requests at a time */
    _Atomic int n_spare;        /* that wait for this */
    _Atomic int n_surplus;      /* that are to, after their request */
    struct link link;
    struct compiled_cache compiled;
    struct vocabulary vocabulary;
    struct kept *kept;         /* NULL: responses are not kept */
    bool has_admin_key;        /* else nobody is an operator */
    struct hash admin_key;     /* its digest */
    _Atomic uint64_t probe_us; /* when the last probe of health.h began */
    atomic_bool probe_failed;  /* how the last that ended did */

    pthread_mutex_t handover_lock;
    struct exchange *handover; /* newest first; from readers to the streamer */
    bool handover_sleeps;      /* the streamer does, or is about to: wake it */
    int handover_fd;           /* eventfd: something is there, or the vocabulary is made */
};

/* --- reader.c --- */

/* Start a thread that accepts until stop_fd is readable. ERR_NO_MEMORY or ERR_IO (logged). */
int reader_start(struct front *f) ERR_CHECKED;

/* The calling reader is going to wait for something else than its peers, and another looks for
 * requests meanwhile; when it steps back, one of those who look does so no longer once it has dealt
 * with its request. Neither waits. front: a struct front. */
void reader_step_aside(void *front);
void reader_step_back(void *front);

/* --- route.c --- */

/* Append the paths of an OpenAPI description, without the braces around them. */
void route_describe(struct buf *b);

/* Answer the request, or give the exchange its generations. */
void route_exchange(struct front *f, struct exchange *x);

/* --- streamer.c --- */

/* The streamer: runs in main's thread until SIGTERM has been followed through. */
int streamer_run(struct front *f) ERR_CHECKED;

/* Give an exchange to the streamer. Any thread. */
void streamer_adopt(struct front *f, struct exchange *x);

#endif
