/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by quire chat and quire generate: the options about the server and about sampling, the
 * start of a private server, and the reading of answers. */
#ifndef QUIRE_TOOLS_ASK_H
#define QUIRE_TOOLS_ASK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "tools/http.h"
#include "tools/private.h"

#define ASK_SILENCE_S 660 /* nginx gives up after 600 s without a byte */

/* Options whose value is a number of the request: option, field. */
#define ASK_NUMBERS(NUMBER)                        \
    NUMBER("temperature", temperature)             \
    NUMBER("top-p", top_p)                         \
    NUMBER("top-k", top_k)                         \
    NUMBER("min-p", min_p)                         \
    NUMBER("max-tokens", max_tokens)               \
    NUMBER("seed", seed)                           \
    NUMBER("presence-penalty", presence_penalty)   \
    NUMBER("frequency-penalty", frequency_penalty) \
    NUMBER("repetition-penalty", repetition_penalty)

/* Values of struct option of getopt_long(); a command's own begin at ASK_OWN. */
enum ask_option {
    ASK_HELP = 256,
    ASK_URL,
    ASK_MODEL,
    ASK_KEY,
    ASK_EXTRA,
    ASK_SYSTEM,
#define ASK_NUMBER(option, field) ASK_NUMBER_##field,
    ASK_NUMBERS(ASK_NUMBER)
#undef ASK_NUMBER
        ASK_OWN
};

#define ASK_LONG_NUMBER(option, field) {option, required_argument, NULL, ASK_NUMBER_##field},

/* Rows for the table of getopt_long(). */
#define ASK_LONG_OPTIONS                                                              \
    {"help", no_argument, NULL, ASK_HELP}, {"url", required_argument, NULL, ASK_URL}, \
        {"model", required_argument, NULL, ASK_MODEL},                                \
        {"api-key", required_argument, NULL, ASK_KEY},                                \
        {"extra", required_argument, NULL, ASK_EXTRA},                                \
        {"system", required_argument, NULL, ASK_SYSTEM}, ASK_NUMBERS(ASK_LONG_NUMBER)

/* The lines about these options for a command's --help. */
#define ASK_USAGE                                                                             \
    "  --url URL             http://127.0.0.1:8000   server: plain http, or unix:PATH\n"      \
    "  --model NAME                                  default: the server's first. A folder\n" \
    "                                                or FILE.gguf without --url: a private\n" \
    "                                                server, which ends with this command;\n" \
    "                                                settings of quire serve follow --\n"     \
    "  --api-key KEY                                 default: none\n"                         \
    "  --system TEXT                                 the system's message\n"                  \
    "  --temperature X, --top-p X, --top-k N, --min-p X, --max-tokens N, --seed N,\n"         \
    "  --presence-penalty X, --frequency-penalty X, --repetition-penalty X\n"                 \
    "                                                default: the model's\n"                  \
    "  --extra JSON                                  an object with further fields of the\n"  \
    "                                                request\n"

struct ask {
    const char *command; /* begins messages: "quire chat" */
    struct http_url url;
    const char *key, *system; /* "": none */
    char model[256];          /* its name, or a path until ask_connect() */
    bool has_url;
    const char *path; /* of the model of a private server; NULL: the server runs already */
    char **settings;  /* [n_settings] further arguments of the private server */
    int n_settings;
    struct buf fields; /* members of a JSON object, each followed by a comma */
};

/* Start with the defaults. */
void ask_init(struct ask *a, const char *command);

/* Take an option; false: its value is bad (printed). option is below ASK_OWN and not ASK_HELP. */
bool ask_take(struct ask *a, int option, const char *value);

/* Take the arguments behind "--" as settings of a private server. Returns the number of arguments
 * before it, which are the command's own. */
int ask_take_settings(struct ask *a, int argc, char **argv);

/* Ask the server for its model's name unless --model gave one. False: the reason was printed. */
bool ask_find_model(struct ask *a);

/* Start a private server if path is set, or if --model names a model's folder or GGUF file of this
 * disk and there is no --url; then ask_find_model().
 * False: the reason was printed, or *stop was set. The caller calls private_end() in either case.
 * Called by the main thread; blocks until the model is loaded. */
bool ask_connect(struct ask *a, struct private_server *server, const volatile sig_atomic_t *stop);

/* The sentence of an answer with an error status, from its JSON if it has some. Reads the body. */
void ask_refusal(struct http *h, char *text, size_t cap);

/* Could everything be printed on standard output? False: the reason was printed. */
bool ask_could_print(const struct ask *a);

/* Append {"role":role,"content":content} to a list of messages, with a comma where needed. */
void ask_add_message(struct buf *messages, const char *role, const char *content, size_t len);

/* The delta or message of the first choice of an answer; NULL: it has none. */
const struct json *ask_first_choice(const struct json *answer, const char *member);

#endif
