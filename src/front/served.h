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
    struct names names;     /* names that clients may use for the model */
    const char *model_name; /* the first of them */
    struct defaults defaults;
    struct arena arena;             /* for data that is read at start */
    const struct json *chat_kwargs; /* template variables of chats that do not set them, or NULL */
    int64_t model_unix_s; /* last change of the model's folder, so that all fronts report the
                           * same */
    char fingerprint[48]; /* system_fingerprint: "quire-VERSION-" and 8 digits of build and model */
    struct engines engines;
    struct compiled_cache compiled;
    struct vocabulary vocabulary;
};

/* Open everything of the model that settings name. handover_fd: eventfd that is written when the
 * vocabulary is ready. ERR_INVALID and others (logged); the caller ends the process then. */
int served_open(struct served *m, int handover_fd) ERR_CHECKED;

#endif
