/* SPDX-License-Identifier: Apache-2.0
 *
 * Options and answers that quire chat and quire generate share. */
#include "tools/ask.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ask_init(struct ask *a, const char *command)
{
    *a = (struct ask){
        .command = command, .key = "", .system = "", .url = {.host = "127.0.0.1", .port = "8000"}};
}

/* A value that must be JSON of some kind. NULL (told): it is not. */
static const struct json *ask_parse(const struct ask *a, struct arena *arena, const char *name,
                                    const char *value)
{
    const struct json *node;
    char why[160];

    if (json_parse(&node, arena, value, strlen(value), why, sizeof why) == ERR_OK)
        return node;
    (void)fprintf(stderr, "%s: --%s %s: %s\n", a->command, name, value, why);
    return NULL;
}

static bool ask_take_number(struct ask *a, const char *option, const char *field, const char *value)
{
    struct arena arena = {0};
    const struct json *node = ask_parse(a, &arena, option, value);
    bool good = json_is_number(node);

    if (good)
        buf_printf(&a->fields, "\"%s\":%s,", field, value);
    else if (node != NULL)
        (void)fprintf(stderr, "%s: --%s must be a number, not %s\n", a->command, option, value);
    arena_reset(&arena);
    return good;
}

/* The members of an object are put among the fields. */
static bool ask_take_extra(struct ask *a, const char *value)
{
    struct arena arena = {0};
    const struct json *node = ask_parse(a, &arena, "extra", value);
    bool good = node != NULL && node->kind == JSON_OBJECT;

    for (uint32_t i = 0; good && i < node->n; i++) {
        const struct json *member = &node->items[i];

        buf_add_json_string(&a->fields, member->key, member->key_len);
        buf_add_byte(&a->fields, ':');
        json_write(&a->fields, member, JSON_EXACT);
        buf_add_byte(&a->fields, ',');
    }
    if (node != NULL && !good)
        (void)fprintf(stderr, "%s: --extra must be a JSON object\n", a->command);
    arena_reset(&arena);
    return good;
}

bool ask_take(struct ask *a, int option, const char *value)
{
    char why[512];

    switch (option) {
    case ASK_URL:
        a->has_url = true;
        if (http_url_read(&a->url, value, why, sizeof why) == ERR_OK)
            return true;
        (void)fprintf(stderr, "%s: --url: %s\n", a->command, why);
        return false;
    case ASK_MODEL: return snprintf(a->model, sizeof a->model, "%s", value) < (int)sizeof a->model;
    case ASK_KEY: a->key = value; return true;
    case ASK_SYSTEM: a->system = value; return true;
    case ASK_EXTRA: return ask_take_extra(a, value);
#define ASK_NUMBER(option, field) \
    case ASK_NUMBER_##field: return ask_take_number(a, option, #field, value);
        ASK_NUMBERS(ASK_NUMBER)
#undef ASK_NUMBER
    default: return false;
    }
}

void ask_refusal(struct http *h, char *text, size_t cap)
{
    struct arena arena = {0};
    struct buf body = {0};
    const struct json *answer = NULL;
    const char *message = "";

    if (http_read_all(h, &body) == ERR_OK &&
        json_parse(&answer, &arena, buf_text(&body), body.len, NULL, 0) == ERR_OK)
        message = json_get_text(json_get(answer, "error"), "message", "");
    if (message[0] != '\0')
        (void)snprintf(text, cap, "%s (%d)", message, h->status);
    else
        (void)snprintf(text, cap, "the server answered with status %d", h->status);
    buf_fini(&body);
    arena_reset(&arena);
}

/* Read the first name of /v1/models. */
static bool ask_read_model(struct ask *a, struct http *h)
{
    struct arena arena = {0};
    struct buf body = {0};
    const struct json *answer = NULL, *list;
    const char *name = "";

    if (http_read_all(h, &body) == ERR_OK &&
        json_parse(&answer, &arena, buf_text(&body), body.len, NULL, 0) == ERR_OK) {
        list = json_get_kind(answer, "data", JSON_LIST);
        if (list != NULL && list->n > 0)
            name = json_get_text(&list->items[0], "id", "");
    }
    (void)snprintf(a->model, sizeof a->model, "%s", name);
    buf_fini(&body);
    arena_reset(&arena);
    return a->model[0] != '\0';
}

bool ask_find_model(struct ask *a)
{
    struct http_request request = {
        .url = &a->url, .path = "/v1/models", .key = a->key, .silence_s = 60};
    struct http http = HTTP_CLOSED;
    char text[512] = "";
    bool good = false;
    int rc;

    if (a->model[0] != '\0')
        return true;
    rc = http_ask(&http, &request);
    if (rc != ERR_OK)
        (void)fprintf(stderr, "%s: %s%s\n", a->command, http.why,
                      rc != ERR_ENGINE_GONE ? ""
                                            : "; start a server with quire serve FOLDER, name one "
                                              "with --url, or start one with --model FOLDER");
    if (rc == ERR_OK && http.status != 200)
        ask_refusal(&http, text, sizeof text);
    else if (rc == ERR_OK && !(good = ask_read_model(a, &http)))
        (void)snprintf(text, sizeof text, "the server names no model; use --model");
    if (text[0] != '\0')
        (void)fprintf(stderr, "%s: %s\n", a->command, text);
    http_close(&http);
    return good;
}

int ask_take_settings(struct ask *a, int argc, char **argv)
{
    int first, n = private_split(argc, argv, &first);

    a->settings = argv + first;
    a->n_settings = argc - first;
    return n;
}

/* A folder with config.json, or a GGUF file. Other names are those of a server's models. */
static bool ask_is_model(const char *path)
{
    char config[4096];
    struct stat st;
    size_t len = strlen(path);

    if (stat(path, &st) == -1)
        return false;
    if (S_ISREG(st.st_mode))
        return len > 5 && strcmp(path + len - 5, ".gguf") == 0;
    return snprintf(config, sizeof config, "%s/config.json", path) < (int)sizeof config &&
           access(config, R_OK) == 0;
}

bool ask_connect(struct ask *a, struct private_server *server, const volatile sig_atomic_t *stop)
{
    char path[sizeof a->model];

    if (a->path == NULL && !a->has_url && ask_is_model(a->model)) {
        memcpy(path, a->model, sizeof path);
        a->path = path;
    }
    if (a->path == NULL && a->n_settings > 0) {
        (void)fprintf(stderr, "%s: settings after -- are for a server that --model FOLDER starts\n",
                      a->command);
        return false;
    }
    if (a->path != NULL) {
        if (isatty(STDERR_FILENO) == 1)
            (void)fprintf(stderr, "%s: starting %s\n", a->command, a->path);
        if (!private_start(server, a->path, a->settings, a->n_settings, stop, &a->url))
            return false;
        a->path = NULL;
        a->model[0] = '\0'; /* the server names it */
    }
    return ask_find_model(a);
}

bool ask_could_print(const struct ask *a)
{
    if (ferror(stdout) == 0)
        return true;
    /* Which write failed is not known here; another one fails for the same reason. */
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    (void)fprintf(stderr, "%s: standard output cannot be written: %s\n", a->command,
                  strerror(errno));
    return false;
}

void ask_add_message(struct buf *messages, const char *role, const char *content, size_t len)
{
    buf_add_comma(messages, messages->len > 0);
    buf_printf(messages, "{\"role\":\"%s\",\"content\":", role);
    buf_add_json_string(messages, content, len);
    buf_add_byte(messages, '}');
}

const struct json *ask_first_choice(const struct json *answer, const char *member)
{
    const struct json *choices = json_get_kind(answer, "choices", JSON_LIST);

    if (choices == NULL || choices->n == 0)
        return NULL;
    return json_get(&choices->items[0], member);
}
