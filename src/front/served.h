/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that a front serves: its texts (tokenizer, template, presets), its names, and the links
 * to its engines. A front has one, or those of models_dir.
 *
 * Constant after the start, except for the members that link.h, compiled.h and vocabulary.h guard,
 * and the atomic ones. */
#ifndef QUIRE_FRONT_SERVED_H
#define QUIRE_FRONT_SERVED_H

#include <stdbool.h>
#include <stdint.h>

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
    bool on_demand;  /* its engine is started by the first connection: none is made without a
                      * request */
    bool wanted;     /* the streamer's: a connection is to be made, or exists anyway */
    const char *why; /* it cannot be served, for this reason; NULL: it can */
    struct compiled_cache compiled;
    struct vocabulary vocabulary;
};

/* Set `wanted` of the models whose engines run and take fronts, by the engines' table in run
 * (models_run), and clear it of the others. */
void served_want_running(struct served *at, int n, const char *run);

/* The models of a front. */
struct served_list {
    struct served *at; /* [n] */
    int n;
};

/* The model with this name, which need not end with NUL; NULL: none. */
struct served *served_find(struct served *at, int n, const char *name, size_t len);

/* Is this exactly one of the model's names? "*" in its list does not count. */
bool served_has_name(const struct served *m, const char *name, size_t len);

/* Do the settings give the model's engines adapters? */
bool served_adapts(const struct served *m);

/* Is the model in the list of models that a key may use? Names are separated by commas or blanks;
 * an empty list, or "*", means all. */
bool served_is_allowed(const struct served *m, const char *list);

/* Read the models of settings->models_dir, or make the one of the settings. A model of the folder
 * whose settings or folder cannot be used has a reason in `why`, is logged, and does not disturb
 * the others. Two models with the same name are refused. argc, argv: the front's. */
int served_read(struct served_list *out, const struct settings *settings, int argc, char **argv,
                int handover_fd) ERR_CHECKED;

#endif
