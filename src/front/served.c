/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a model: names, tokenizer, chat template, presets, links. */
#include "front/served.h"

#include <config.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "ipc/seats.h"
#include "text/file.h"

#define SERVED_FILE_MAX ((size_t)8 << 20) /* bytes of a file that describes the model */

/* "created" of /v1/models. The folder's time, because the start times of several fronts differ. */
static int64_t served_model_time(const struct settings *s)
{
    struct stat st;

    if (stat(s->model, &st) == 0)
        return (int64_t)st.st_mtime;
    return clock_unix_s();
}

/* Log how the tokenizer was opened, and a reason for which its cache could not be used. Mapping is
 * much faster than building, so an operator should see which it was. */
static void served_log_tokenizer(const struct tokenizer_opening *how, uint64_t us)
{
    const char *way = "built in memory";

    if (how->written)
        way = "compiled and written";
    else if (how->mapped)
        way = "mapped";
    if (how->cache_why[0] != '\0')
        log_warn("front: compiled tokenizer: %s", how->cache_why);
    log_info("front: tokenizer %s in %.1f ms", way, (double)us / 1e3);
}

/* Read default_chat_template_kwargs, which lives as long as the process. */
static int served_read_kwargs(struct served *m, char *why, size_t why_cap)
{
    const char *text = m->settings.default_chat_template_kwargs;
    char reason[200] = "";
    int rc = ERR_OK;

    if (text[0] == '\0')
        return ERR_OK;
    rc = json_parse(&m->chat_kwargs, &m->arena, text, strlen(text), reason, sizeof reason);
    if (rc == ERR_OK && m->chat_kwargs->kind != JSON_OBJECT) {
        (void)snprintf(reason, sizeof reason, "it must be a JSON object");
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "default_chat_template_kwargs: %s", reason);
    return rc;
}

/* A member of a file of the folder, which is optional. It lives as long as the process. */
static int served_read_member(struct served *m, const char *file, const char *member,
                              const struct json **out, char *why, size_t why_cap)
{
    const struct json *whole = NULL;
    struct buf text = {0};
    int rc = file_read(&text, m->settings.model, file, SERVED_FILE_MAX, why, why_cap);

    if (rc == ERR_OK)
        rc = json_parse(&whole, &m->arena, buf_text(&text), text.len, why, why_cap);
    buf_fini(&text);
    *out = json_get_kind(whole, member, JSON_OBJECT);
    return rc == ERR_NOT_FOUND ? ERR_OK : rc;
}

/* What a model that pools has besides: prompts, and names of labels. */
static int served_read_pooling(struct served *m, char *why, size_t why_cap)
{
    int rc = served_read_member(m, "config_sentence_transformers.json", "prompts", &m->prompts, why,
                                why_cap);

    if (rc != ERR_OK || m->pooling.kind != POOLING_SCORE)
        return rc;
    return served_read_member(m, "config.json", "id2label", &m->labels, why, why_cap);
}

/* Open tokenizer, chat template and default sampling parameters. Each step runs only if those
 * before succeeded; `why` is the reason of the first failure, logged once at the end. */
static int served_open_text(struct served *m)
{
    uint64_t from_us = clock_us();
    struct tokenizer_opening how;
    char why[512] = "";
    int rc;

    if (m->settings.model[0] == '\0') {
        log_error("front: model is not set; set it to a Hugging Face folder or a GGUF file");
        return ERR_INVALID;
    }
    rc = tokenizer_open_cached(&m->tokenizer, m->settings.model, m->settings.tokenizer_cache_dir,
                               &how, why, sizeof why);
    if (rc == ERR_OK)
        served_log_tokenizer(&how, clock_us() - from_us);
    if (rc == ERR_OK)
        rc = chat_open(&m->chat, m->settings.model, m->settings.chat_template, why, sizeof why);
    if (rc == ERR_OK && !chat_force_content(m->chat, m->settings.chat_template_content_format)) {
        (void)snprintf(why, sizeof why,
                       "chat_template_content_format must be auto, string or openai");
        rc = ERR_INVALID;
    }
    defaults_init(&m->defaults);
    /* The order of precedence: the model's file, then the setting, then the request. */
    if (rc == ERR_OK && strcmp(m->settings.generation_config, "auto") == 0)
        rc = defaults_read(&m->defaults, m->settings.model, why, sizeof why);
    if (rc == ERR_OK)
        rc = defaults_override(&m->defaults, m->settings.override_generation_config, why,
                               sizeof why);
    if (rc == ERR_OK)
        rc = served_read_kwargs(m, why, sizeof why);
    if (rc == ERR_OK && m->pooling.kind != POOLING_NONE)
        rc = served_read_pooling(m, why, sizeof why);
    /* These limits are settings of the server, not of the model's folder. */
    m->defaults.max_logprobs = (int)m->settings.max_logprobs;
    m->defaults.max_stops = (int)m->settings.max_stop_strings;
    m->defaults.tokens_as_ids = m->settings.return_tokens_as_token_ids;
    m->defaults.include_usage = m->settings.enable_force_include_usage;
    if (rc != ERR_OK)
        log_error("front: %s", why[0] == '\0' ? err_sentence(rc) : why);
    else if (!chat_has_template(m->chat) && m->pooling.kind == POOLING_NONE)
        log_warn("front: the model has no chat template: chat requests are refused; set "
                 "chat_template to a file");
    else if (!chat_knows_tools(m->chat) && m->pooling.kind == POOLING_NONE)
        log_warn("front: the chat template does not support tools: prompts will not contain those "
                 "of a request; "
                 "set chat_template to a file with one that does");
    return rc;
}

/* Choose the formats of tool calls and reasoning: from the settings, or by the template's text. */
static int served_choose_reply(struct served *m)
{
    const char *calls = m->settings.tool_call_parser, *reasoning = m->settings.reasoning_parser;

    /* The template's text contains the tags of its format. */
    m->reply_format = chat_reply_format(m->chat);
    m->reply_reasoning = chat_reply_reasoning(m->chat);
    /* A name of the settings replaces the one found in the template. */
    if (strcmp(calls, "auto") != 0)
        m->reply_format = reply_format_named(calls);
    if (strcmp(reasoning, "auto") != 0 && !reply_reasoning_named(reasoning, &m->reply_reasoning))
        m->reply_format = REPLY_FORMATS;
    if (m->reply_format != REPLY_FORMATS)
        return ERR_OK;
    log_error("front: tool_call_parser = '%s' or reasoning_parser = '%s' is unknown; "
              "quire-front --help lists the names",
              calls, reasoning);
    return ERR_INVALID;
}

/* system_fingerprint of answers: equal for servers of the same build and model. */
static void served_fingerprint(struct served *m)
{
    char model[PATH_MAX + 32]; /* a path of the longest length */
    char digits[9];
    struct hash digest;
    int n = snprintf(model, sizeof model, "%s %lld", m->settings.model, (long long)m->model_unix_s);

    digest = hash_sha256(PACKAGE_VERSION, sizeof PACKAGE_VERSION, model, (size_t)n);
    hash_hex(digest.bytes, sizeof digits / 2, digits);
    (void)snprintf(m->fingerprint, sizeof m->fingerprint, "quire-%s-%s", PACKAGE_VERSION, digits);
}

/* The first error ends it. */
static int served_open(struct served *m, int handover_fd)
{
    int rc = names_read(&m->names, m->settings.served_model_name, m->settings.model);

    m->model_name = m->names.at[0];
    m->model_unix_s = served_model_time(&m->settings);
    served_fingerprint(m);
    if (rc == ERR_OK)
        rc = pooling_read(&m->pooling, &m->settings);
    if (rc == ERR_OK)
        rc = served_open_text(m);
    if (rc == ERR_OK)
        rc = served_choose_reply(m);
    if (rc == ERR_OK)
        rc = engines_init(&m->engines, m->settings.engine_socket, m->settings.data_parallel_size);
    if (rc == ERR_OK)
        rc = compiled_cache_init(&m->compiled);
    if (rc == ERR_OK)
        rc = vocabulary_init(&m->vocabulary, m->tokenizer, m->reply_format, m->reply_reasoning,
                             handover_fd);
    return rc;
}

bool served_adapts(const struct served *m)
{
    const struct settings *s = &m->settings;

    return s->enable_lora || s->lora_modules[0] != '\0' || s->lora_dir[0] != '\0';
}

bool served_has_name(const struct served *m, const char *name, size_t len)
{
    if (!served_is_here(m))
        return false;
    for (int i = 0; i < m->names.n; i++) {
        if (strlen(m->names.at[i]) == len && memcmp(m->names.at[i], name, len) == 0)
            return true;
    }
    return false;
}

struct served *served_find(struct served *at, int n, const char *name, size_t len)
{
    struct served *any = NULL;

    for (int i = 0; i < n; i++) {
        if (served_has_name(&at[i], name, len))
            return &at[i];
        if (at[i].names.any && any == NULL && served_is_here(&at[i]))
            any = &at[i];
    }
    return any;
}

bool served_is_allowed(const struct served *m, const char *list)
{
    static const char between[] = ", \t";
    const char *name = list + strspn(list, between);

    if (*name == '\0')
        return true;
    while (*name != '\0') {
        size_t len = strcspn(name, between);

        if ((len == 1 && *name == '*') || served_has_name(m, name, len))
            return true;
        name += len;
        name += strspn(name, between);
    }
    return false;
}

/* Make a text that lives as long as the process; NULL without memory. */
static const char *served_keep(const char *text)
{
    char *own = mem_alloc(strlen(text) + 1);

    if (own != NULL)
        memcpy(own, text, strlen(text) + 1);
    return own;
}

/* The settings of a model of the folder: what its file does not set is the front's, but for its
 * name and its engine's socket. */
static int served_read_settings(struct served *m, const struct served_source *from,
                                const char *name)
{
    const struct settings *base = from->settings;
    char path[PATH_MAX];
    const char *socket;
    int rc;

    models_file(path, sizeof path, base->models_dir, name);
    rc = settings_read_over(&m->settings, 'F', from->argc, from->argv, path);
    if (rc != ERR_OK)
        return rc;
    models_socket(path, sizeof path, base->models_run, name);
    socket = served_keep(path);
    if (socket == NULL)
        return ERR_NO_MEMORY;
    if (strcmp(m->settings.engine_socket, base->engine_socket) == 0)
        m->settings.engine_socket = socket;
    if (strcmp(m->settings.served_model_name, base->served_model_name) == 0)
        m->settings.served_model_name = served_keep(name);
    if (m->settings.served_model_name == NULL)
        return ERR_NO_MEMORY;
    if (m->settings.data_parallel_size == 1)
        return ERR_OK;
    log_error("front: model %s: data_parallel_size must be 1 with several models", name);
    return ERR_INVALID;
}

/* Open it, or keep the reason for which it cannot be served. */
static int served_try(struct served *m, const struct served_source *from, const char *name)
{
    int rc = served_read_settings(m, from, name);

    m->on_demand = true;
    if (rc == ERR_OK)
        rc = served_open(m, from->handover_fd);
    for (int i = 0; i < m->engines.n; i++) {
        m->engines.links[i].patience_ms = 0;
        m->engines.links[i].is_patient = true;
    }
    if (rc == ERR_OK)
        return ERR_OK;
    m->why = "this server cannot read the model's settings or its folder; its log has the reason";
    m->engines.n = 0;
    if (m->names.n == 0)
        rc = names_read(&m->names, served_keep(name), "");
    m->model_name = m->names.at[0];
    log_error("front: model %s is not served", name);
    return rc == ERR_NO_MEMORY ? rc : ERR_OK;
}

/* Does the model have a name of another one? One that takes any name has only its own. */
static bool served_is_double(const struct served_list *list, const struct served *m)
{
    for (int i = 0; i < list->n; i++) {
        for (int k = 0; k < m->names.n; k++) {
            const char *name = m->names.at[k];

            if (!served_has_name(&list->at[i], name, strlen(name)))
                continue;
            log_error("front: model %s is not served: model %s has the name %s, too", m->file_name,
                      list->at[i].file_name, name);
            return true;
        }
    }
    return false;
}

int served_add(struct served_list *list, const struct served_source *from, const char *name)
{
    struct served *m = &list->at[list->n];
    int rc;

    must(list->n < list->cap);
    (void)snprintf(m->file_name, sizeof m->file_name, "%s", name);
    /* Before it is read: a change while that goes on is noticed. */
    m->file = models_state_of(from->settings->models_dir, name);
    rc = served_try(m, from, name);
    if (rc == ERR_OK && served_is_double(list, m))
        atomic_store(&m->removed, true);
    return rc;
}

int served_read(struct served_list *out, const struct served_source *from)
{
    const struct settings *settings = from->settings;
    struct models models;
    int rc;

    out->n = 0;
    if (settings->models_dir[0] == '\0') {
        out->cap = 1;
        out->at = mem_zalloc(sizeof *out->at);
        if (out->at == NULL)
            return ERR_NO_MEMORY;
        out->at[out->n++].settings = *settings;
        return served_open(out->at, from->handover_fd);
    }
    if (settings->models_run[0] == '\0') {
        log_error("front: models_dir needs models_run");
        return ERR_INVALID;
    }
    rc = models_read(&models, settings->models_dir);
    if (rc != ERR_OK)
        return rc;
    out->unusable = models.unusable;
    out->cap = SERVED_MAX;
    out->at = mem_zalloc_array((size_t)out->cap, sizeof *out->at);
    if (out->at == NULL)
        return ERR_NO_MEMORY;
    for (int i = 0; i < models.n && rc == ERR_OK; i++) {
        rc = served_add(out, from, models.names[i]);
        out->n++;
    }
    return rc;
}

void served_want_running(struct served *at, int n, const char *run)
{
    struct seats *seats = NULL;

    if (seats_observe(&seats, run) != ERR_OK)
        seats = NULL; /* no engine has run yet */
    for (int i = 0; i < n; i++) {
        enum seat_state state;
        bool ready = false;

        at[i].wanted = seats != NULL && at[i].engines.n > 0 && served_is_here(&at[i]) &&
                       seats_find(seats, at[i].settings.engine_socket, &state, &ready) && ready;
    }
    seats_close(seats);
}
