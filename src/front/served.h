/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that a front serves: its texts (tokenizer, template, presets), its names, and the links
 * to its engines. A front has one, or those of models_dir.
 *
 * Constant after the start, except for the members that link.h, compiled.h and vocabulary.h guard,
 * and the atomic ones. */
#ifndef QUIRE_FRONT_SERVED_H
#define QUIRE_FRONT_SERVED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/models.h"
#include "base/names.h"
#include "base/pooling.h"
#include "base/settings.h"
#include "front/link/engines.h"
#include "front/request/defaults.h"
#include "front/structured/compiled.h"
#include "front/structured/vocabulary.h"
#include "text/template/chat.h"
#include "text/tokenizer/tokenizer.h"

struct served {
    struct settings settings; /* the front's, with those of the model's file on top; its texts live
                               * as long as the process */
    struct tokenizer *tokenizer;
    struct chat *chat;
    enum reply_format reply_format;
    enum reply_reasoning reply_reasoning;
    struct pooling pooling; /* how it pools, if it does */
    struct names names;     /* names that clients may use for the model */
    const char *model_name; /* the first of them */
    struct defaults defaults;
    struct arena arena;             /* for data that is read at start */
    const struct json *chat_kwargs; /* template variables of chats that do not set them, or NULL */
    const struct json *prompts;     /* of sentence-transformers: texts that a request may put before
                                 * its own (prompt_name); NULL: none */
    const struct json *labels;      /* of a classifier: {"0": name, ...}; NULL: none */
    int64_t model_unix_s; /* last change of the model's folder, so that all fronts report the
                           * same */
    char fingerprint[48]; /* system_fingerprint: "quire-VERSION-" and 8 digits of build and model */
    struct engines engines;
    bool on_demand;     /* its engine is started by the first connection: none is made without a
                      * request */
    atomic_bool wanted; /* the streamer writes it: a connection is to be made, or exists anyway */
    const char *why;    /* it cannot be served, for this reason; NULL: it can */
    char file_name[MODELS_NAME]; /* of several models: the name of its file, without .conf */
    struct models_file file;     /* the folder's thread: as it was read */
    int n_missing;               /* the folder's thread: looks that did not find the file */
    atomic_bool removed;         /* its file is gone: no further request may have it */
    struct compiled_cache compiled;
    struct vocabulary vocabulary;
};

/* Set `wanted` of the models whose engines run and take fronts, by the engines' table in run
 * (models_run), and clear it of the others. */
void served_want_running(struct served *at, int n, const char *run);

/* The models of a front. */
struct served_list {
    struct served *at; /* [cap], the first n are used */
    int n, cap;
    uint64_t unusable; /* of models_look() at the start */
};

/* Models of models_dir that a front can have had, those whose files are gone included. */
#define SERVED_MAX (4 * MODELS_MAX)

/* The model with this name, which need not end with NUL; NULL: none. */
struct served *served_find(struct served *at, int n, const char *name, size_t len);

/* May new requests have the model? Any thread. */
static inline bool served_is_here(const struct served *m)
{
    return !atomic_load_explicit(&m->removed, memory_order_relaxed);
}

/* Is this exactly one of the model's names, and is it here? "*" in its list does not count. */
bool served_has_name(const struct served *m, const char *name, size_t len);

/* Do the settings give the model's engines adapters? */
bool served_adapts(const struct served *m);

/* Is the model in the list of models that a key may use? Names are separated by commas or blanks;
 * an empty list, or "*", means all. */
bool served_is_allowed(const struct served *m, const char *list);

/* What a model is opened with. */
struct served_source {
    const struct settings *settings; /* the front's */
    int argc;
    char **argv; /* the front's */
    int handover_fd;
};

/* Read the models of settings->models_dir, or make the one of the settings. A model of the folder
 * whose settings or folder cannot be used has a reason in `why`, is logged, and does not disturb
 * the others. */
int served_read(struct served_list *out, const struct served_source *from) ERR_CHECKED;

/* Open the model NAME of the folder as list->at[list->n], without counting it. One with a name of
 * another model is logged and `removed`. ERR_NO_MEMORY. Takes as long as its tokenizer: 1 ms to
 * some seconds. */
int served_add(struct served_list *list, const struct served_source *from,
               const char *name) ERR_CHECKED;

#endif
