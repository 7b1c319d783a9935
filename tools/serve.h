/* SPDX-License-Identifier: Apache-2.0
 *
 * quire serve: a whole server in one foreground process tree, as tools/run-local and systemd have
 * it: nginx, fronts, one or more engines. The parts:
 *
 *   serve_options.c  the command line: arguments of the programs, and the wishes about nginx
 *   serve_folder.c   the private folder: nginx's files, locks, removal
 *   serve_child.c    one child: its start, its log, its end
 *   serve_models.c   several models: their files, their engines, which start on demand
 *   quire_serve.c    the loop that watches all children
 *
 * One thread. Texts are borrowed from argv or live in the arena until the process ends. */
#ifndef QUIRE_TOOLS_SERVE_H
#define QUIRE_TOOLS_SERVE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/mem.h"
#include "base/models.h"
#include "base/settings.h"

#define SERVE_FRONTS_MAX  64
#define SERVE_ENGINES_MAX MODELS_MAX /* above the maximum of data_parallel_size */
#define SERVE_ARGS_MAX    256
#define SERVE_LIST_MAX    32 /* API keys, origins */

/* Arguments of a program; at[0] is its path, the last one is NULL. */
struct serve_args {
    const char *at[SERVE_ARGS_MAX];
    int n;
};

struct serve_list {
    const char *at[SERVE_LIST_MAX];
    int n;
};

/* The command line. */
struct serve_wishes {
    const char *host;            /* a name or an address */
    int port;                    /* 0: a free one */
    const char *uds;             /* path of a unix socket instead of host and port; "": none */
    const char *cert, *cert_key; /* PEM files, absolute; "": plain HTTP */
    struct serve_list keys, origins;
    struct serve_list readers; /* addresses and networks that may read /metrics */
    int n_fronts;
    bool logs_requests;
    bool has_no_page;                /* the API alone, without the page in the browser */
    bool has_model;                  /* the command line has named it */
    bool has_names;                  /* and its names */
    struct serve_args engine, front; /* without program and sockets */
    struct settings settings;        /* the engines', in effect */
    const char *draft;               /* --speculative-model; "": none */
    const char *draft_method;        /* --spec-method; "": none */
    int n_drafted;                   /* --num-speculative-tokens; 0: none */
    const char *rope_scaling;        /* --rope-scaling, JSON; "": none */
    const char *rope_theta;          /* --rope-theta; "": none */
    const char *name;                /* of the model, in answers; of several, a list */
    struct serve_list paths;         /* the models of the command line */
    const char *models_dir;          /* absolute; "": none */
};

/* One child process. */
struct serve_child {
    const char *name; /* for people: "engine", "front 1", "nginx" */
    struct serve_args args;
    const char *log; /* path: standard output and error */
    int listen_fd;   /* passed as systemd passes a socket; -1: none */
    int stop_signal; /* asks it to end in good order */
    bool shows_all;  /* print its whole log, not warnings and errors alone */
    int starts_max;  /* starts again within window_s, as in its systemd unit; 0: none */
    int window_s, pause_ms;
    pid_t pid;          /* 0: it does not run */
    bool on_demand;     /* it is started when a connection waits at listen_fd */
    const char *model;  /* on demand: the name of its model */
    int n_missing;      /* on demand: looks that did not find the model's file */
    uint64_t shut_us;   /* on demand: connections are turned away until then; 0: they are not */
    uint64_t again_us;  /* when to start it again; 0: not */
    uint64_t window_us; /* when the first of n_starts was */
    int n_starts;
    off_t shown; /* bytes of the log that were printed or are to be left out */
};

enum serve_phase { SERVE_STARTING, SERVE_READY, SERVE_STOPPING };

struct serve {
    struct arena arena;
    struct serve_wishes wishes;
    enum serve_phase phase;
    int status;          /* of this process at its end */
    bool killed;         /* the children got SIGKILL */
    uint64_t stop_by_us; /* then they do */
    char folder[96];     /* private, removed at the end; "": not made yet */
    char memory[64];     /* likewise, on tmpfs, for pages in host memory; "": none */
    int folder_lock, memory_lock;
    char address[80];     /* numeric, as nginx's listen takes it */
    char url[128];        /* of the API */
    struct models models; /* of several, at the start; none: n is 0 */
    struct models found;  /* by the last look at models_dir */
    uint64_t looked_us;
    struct serve_child children[SERVE_ENGINES_MAX + SERVE_FRONTS_MAX + 1];
    int n_children;
};

/* Print a line about the server on standard error, after "quire serve: ". */
void serve_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A text in the arena. Ends the process when there is no memory. */
const char *serve_text(struct serve *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void serve_args_add(struct serve_args *args, const char *arg); /* must have room */

/* serve_options.c: read the command line, argv[1] on. Everything is checked as the programs would
 * do it. False: the reason was printed. */
bool serve_options_read(struct serve *s, int argc, char **argv);

/* serve_hub.c. Does the name have the form ORG/NAME of the Hugging Face hub? */
bool serve_is_hub_name(const char *name);

/* The folder of such a model in the hub's cache on this disk; NULL: it is not there. */
const char *serve_hub_find(struct serve *s, const char *name);

/* serve_folder.c. The path of a program beside this one, on PATH, or in a folder of administrators'
 * programs; NULL: none. */
const char *serve_find(struct serve *s, const char *name);

/* Resolve host and find out whether the port is free; sets address, url, and port if it was 0.
 * False: the reason was printed. */
bool serve_folder_address(struct serve *s);

/* Make the private folders and nginx's files in them. False: the reason was printed. */
bool serve_folder_make(struct serve *s);

/* Make the sockets of the children that are fronts. False: the reason was printed. */
bool serve_folder_listen(struct serve *s);

void serve_folder_remove(struct serve *s);

/* Make and lock a folder of mode 0700 for another command. The next server of this user removes it
 * once the lock is gone. path has room for at least 80 bytes. False, with errno. */
bool serve_folder_new(char *path, size_t cap, int *lock);
void serve_folder_delete(const char *path); /* with all that is in it */

/* serve_models.c. Are there several models? */
bool serve_models_are_many(const struct serve *s);

/* The names of the models of the command line or of --models-dir. False: the reason was printed. */
bool serve_models_read(struct serve *s);

/* Make the files of the models of the command line in the private folder, and the sockets' folder.
 * False: the reason was printed. */
bool serve_models_make(struct serve *s);
const char *serve_models_run(struct serve *s);    /* the sockets' folder */
const char *serve_models_folder(struct serve *s); /* the models' files */

/* Make the socket of the engine of the child's model; it is the child's listen_fd. */
bool serve_models_listen(struct serve *s, struct serve_child *c);

/* Once a second: engines for the models of new files, and no more connections for those whose files
 * are gone. */
void serve_models_follow(struct serve *s);

/* Describe the engine of a model (quire_serve.c). False: the reason was printed. */
bool serve_add_model(struct serve *s, const char *model);

/* An engine on demand has ended: it is started again by the next connection, or those are turned
 * away for a while because it cannot be started. */
void serve_models_ended(struct serve_child *c, int status);

/* Start it if a connection waits. False: there is no process for it. */
bool serve_models_look(struct serve_child *c);

/* Count a start within window_s (quire_serve.c). False: there were too many. */
bool serve_may_start(struct serve_child *c);

/* serve_child.c: start a child. False: there is no process for it (logged). */
bool serve_child_start(struct serve_child *c);

/* Has the child ended? Then *status is that of waitpid(), and what it may have left in its process
 * group is killed. */
bool serve_child_ended(struct serve_child *c, int *status);

void serve_child_signal(const struct serve_child *c, int signal_number); /* if it runs */
void serve_child_kill(const struct serve_child *c);                      /* and its descendants */

/* Print what its log has had since the last call, as shows_all says. */
void serve_child_show(struct serve_child *c);

/* "ended with exit status 2 (...)" for a status of waitpid(). */
const char *serve_child_reason(int status, char *text, size_t cap);

#endif
