/* SPDX-License-Identifier: Apache-2.0
 *
 * A front: one process that turns HTTP requests into token ids, and token ids into HTTP answers.
 *
 *   reader threads  accept, read, parse, tokenize      idle_pool.c, reader.c -> route.c -> api_*.c
 *   streamer        the lane, every answer's bytes     streamer.c -> link.c, answer.c
 *
 * Letters that always mean the same in this folder: f front, x exchange (one HTTP request), g gen
 * (one choice of its answer), s streamer, b output buffer, v JSON value.
 *
 * struct front holds everything that both sides use. It is constant after the start, except for the
 * hand-over list, the atomic members, and the members that link.h marks. */
#ifndef QUIRE_FRONT_FRONT_H
#define QUIRE_FRONT_FRONT_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/settings.h"
#include "front/http/idle_pool.h"
#include "front/kept/kept.h"
#include "front/request/exchange.h"
#include "front/served.h"
#include "front/trace/trace.h"

struct front {
    struct settings settings;
    struct served_list models; /* the folder's thread adds to it, and then to n_served */
    struct served *served;     /* [n_served], the models; at the start sorted by name */
    _Atomic int n_served;      /* at least 1; it grows (folder.c) */
    struct link **links;       /* [n_links], those of all models */
    struct served **served_of; /* [n_links], their models */
    _Atomic int n_links;       /* is raised before n_served */
    struct served_source source;
    pthread_t folder_thread;
    bool folder_full; /* that thread's: no further model, which was logged */
    int listen_fd;
    int signal_fd;
    int stop_fd;                /* readable once the process stops accepting */
    struct idle_pool idle_pool; /* the readers' */
    _Atomic int n_readers;      /* reader threads that still run */
    sem_t reading;              /* counts the readers that may look for requests: front_threads at a
                                 * time */
    _Atomic int n_spare;        /* readers that wait for this semaphore */
    _Atomic int n_surplus;      /* readers that must wait for it after their current request */
    struct trace *trace;        /* NULL: requests are not traced */
    struct kept *kept;          /* NULL: responses are not stored */
    bool has_admin_key;         /* false: operators' requests are refused */
    struct hash admin_key;      /* the digest of the admin key */
    _Atomic uint64_t probe_us;  /* clock_us() at the start of the last probe of health.h */
    atomic_bool probe_failed;   /* the result of the last probe that ended */

    pthread_mutex_t handover_lock;
    struct exchange *handover; /* newest first; from readers to the streamer */
    bool handover_sleeps;      /* the streamer sleeps or is about to: wake it */
    int handover_fd;           /* eventfd: the list has an exchange, or the vocabulary is ready */
};

/* --- reader.c --- */

/* Start a thread that accepts until stop_fd is readable. ERR_NO_MEMORY or ERR_IO (logged). */
int reader_start(struct front *f) ERR_CHECKED;

/* reader_step_aside(): the calling reader is about to wait for a compilation, so another one may
 * look for requests meanwhile. reader_step_back(): it goes on; one reader too many now looks for
 * requests, and the first to notice it waits after its current request. Neither call blocks. front:
 * a struct front. */
void reader_step_aside(void *front);
void reader_step_back(void *front);

/* --- folder.c --- */

/* Start the thread that looks at models_dir; no effect without that setting. ERR_IO (logged). */
int folder_start(struct front *f) ERR_CHECKED;
void folder_end(struct front *f); /* waits for the thread */

/* What a model needs of the front; its links are in the list of all, which has room. */
void folder_show(struct front *f, struct served *m);

/* --- route.c --- */

/* Append the paths of the OpenAPI description, without the braces around them. */
void route_describe(struct buf *b);

/* Answer the request, or fill the exchange with its generations. */
void route_exchange(struct front *f, struct exchange *x);

/* --- streamer.c --- */

/* The streamer's loop. Runs in the main thread, and returns after SIGTERM when all answers have
 * ended. */
int streamer_run(struct front *f) ERR_CHECKED;

/* Hand an exchange over to the streamer, which owns it from then on. Any thread. */
void streamer_adopt(struct front *f, struct exchange *x);

#endif
