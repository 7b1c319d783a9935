/* SPDX-License-Identifier: Apache-2.0
 *
 * quire-front: start, run, end. Exit codes: 0 stopped, 1 usage or configuration, 2 resources.
 *
 * main() opens everything in order: settings, tokenizer and templates, the links to the engines,
 * the listening socket. The readers start last; then main's thread becomes the streamer. */
#include <config.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/service.h"
#include "front/api/cache.h"
#include "front/front.h"

/* "created" of /v1/models. The folder's time, because the start times of several fronts differ. */
static int64_t main_model_time(const struct settings *s)
{
    struct stat st;

    if (stat(s->model, &st) == 0)
        return (int64_t)st.st_mtime;
    return clock_unix_s();
}

/* Log how the tokenizer was opened, and a reason for which its cache could not be used. Mapping is
 * much faster than building, so an operator should see which it was. */
static void main_log_tokenizer(const struct tokenizer_opening *how, uint64_t us)
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
static int main_read_kwargs(struct front *f, char *why, size_t why_cap)
{
    const char *text = f->settings.default_chat_template_kwargs;
    char reason[200] = "";
    int rc = ERR_OK;

    if (text[0] == '\0')
        return ERR_OK;
    rc = json_parse(&f->chat_kwargs, &f->arena, text, strlen(text), reason, sizeof reason);
    if (rc == ERR_OK && f->chat_kwargs->kind != JSON_OBJECT) {
        (void)snprintf(reason, sizeof reason, "it must be a JSON object");
        rc = ERR_INVALID;
    }
    if (rc != ERR_OK)
        (void)snprintf(why, why_cap, "default_chat_template_kwargs: %s", reason);
    return rc;
}

/* Open tokenizer, chat template and default sampling parameters. Each step runs only if those
 * before succeeded; `why` is the reason of the first failure, logged once at the end. */
static int main_open_text(struct front *f)
{
    uint64_t from_us = clock_us();
    struct tokenizer_opening how;
    char why[512] = "";
    int rc;

    if (f->settings.model[0] == '\0') {
        log_error("front: model is not set; set it to a Hugging Face folder or a GGUF file");
        return ERR_INVALID;
    }
    rc = tokenizer_open_cached(&f->tokenizer, f->settings.model, f->settings.tokenizer_cache_dir,
                               &how, why, sizeof why);
    if (rc == ERR_OK)
        main_log_tokenizer(&how, clock_us() - from_us);
    if (rc == ERR_OK)
        rc = chat_open(&f->chat, f->settings.model, f->settings.chat_template, why, sizeof why);
    if (rc == ERR_OK && !chat_force_content(f->chat, f->settings.chat_template_content_format)) {
        (void)snprintf(why, sizeof why,
                       "chat_template_content_format must be auto, string or openai");
        rc = ERR_INVALID;
    }
    defaults_init(&f->defaults);
    /* The order of precedence: the model's file, then the setting, then the request. */
    if (rc == ERR_OK && strcmp(f->settings.generation_config, "auto") == 0)
        rc = defaults_read(&f->defaults, f->settings.model, why, sizeof why);
    if (rc == ERR_OK)
        rc = defaults_override(&f->defaults, f->settings.override_generation_config, why,
                               sizeof why);
    if (rc == ERR_OK)
        rc = main_read_kwargs(f, why, sizeof why);
    /* These limits are settings of the server, not of the model's folder. */
    f->defaults.max_logprobs = (int)f->settings.max_logprobs;
    f->defaults.max_stops = (int)f->settings.max_stop_strings;
    f->defaults.tokens_as_ids = f->settings.return_tokens_as_token_ids;
    f->defaults.include_usage = f->settings.enable_force_include_usage;
    if (rc != ERR_OK)
        log_error("front: %s", why[0] == '\0' ? err_sentence(rc) : why);
    else if (!chat_has_template(f->chat))
        log_warn("front: the model has no chat template: chat requests are refused; set "
                 "chat_template to a file");
    else if (!chat_knows_tools(f->chat))
        log_warn("front: the chat template does not support tools: prompts will not contain those "
                 "of a request; "
                 "set chat_template to a file with one that does");
    return rc;
}

/* Choose the formats of tool calls and reasoning: from the settings, or by the template's text. */
static int main_choose_reply(struct front *f)
{
    const char *calls = f->settings.tool_call_parser, *reasoning = f->settings.reasoning_parser;

    /* The template's text contains the tags of its format. */
    f->reply_format = chat_reply_format(f->chat);
    f->reply_reasoning = chat_reply_reasoning(f->chat);
    /* A name of the settings replaces the one found in the template. */
    if (strcmp(calls, "auto") != 0)
        f->reply_format = reply_format_named(calls);
    if (strcmp(reasoning, "auto") != 0 && !reply_reasoning_named(reasoning, &f->reply_reasoning))
        f->reply_format = REPLY_FORMATS;
    if (f->reply_format != REPLY_FORMATS)
        return ERR_OK;
    log_error("front: tool_call_parser = '%s' or reasoning_parser = '%s' is unknown; "
              "quire-front --help lists the names",
              calls, reasoning);
    return ERR_INVALID;
}

/* Open the socket for nginx: at the path of the setting, or the one that systemd passes. With
 * systemd's socket no connection is refused while a front restarts. */
static int main_open_listen(struct front *f)
{
    int flags;
    int rc = ERR_OK;

    if (f->settings.listen[0] != '\0') {
        rc = fcgi_listen(f->settings.listen, &f->listen_fd);
    } else {
        f->listen_fd = service_listen_fd();
        if (f->listen_fd == -1) {
            log_error("front: systemd passed no socket; set listen to the path of one");
            rc = ERR_INVALID;
        }
    }
    if (rc != ERR_OK)
        return rc;
    /* Several readers may be woken for one connection; the others must not block in accept(). */
    flags = fcntl(f->listen_fd, F_GETFL);
    if (flags == -1 || fcntl(f->listen_fd, F_SETFL, flags | O_NONBLOCK) == -1)
        return ERR_IO;
    return ERR_OK;
}

/* system_fingerprint of answers: equal for servers of the same build and model. */
static void main_fingerprint(struct front *f)
{
    char model[PATH_MAX + 32]; /* a path of the longest length */
    char digits[9];
    struct hash digest;
    int n = snprintf(model, sizeof model, "%s %lld", f->settings.model, (long long)f->model_unix_s);

    digest = hash_sha256(PACKAGE_VERSION, sizeof PACKAGE_VERSION, model, (size_t)n);
    hash_hex(digest.bytes, sizeof digits / 2, digits);
    (void)snprintf(f->fingerprint, sizeof f->fingerprint, "quire-%s-%s", PACKAGE_VERSION, digits);
}

/* Everything but threads. The first error ends it; the process then exits, so nothing is undone. */
static int main_open(struct front *f)
{
    int rc = service_signal_fd(&f->signal_fd);

    if (rc == ERR_OK)
        rc = names_read(&f->names, f->settings.served_model_name, f->settings.model);
    f->model_name = f->names.at[0];
    f->model_unix_s = main_model_time(&f->settings);
    main_fingerprint(f);
    /* Two counters that wake others: stop_fd all readers, handover_fd the streamer. */
    f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->handover_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rc == ERR_OK && (f->stop_fd == -1 || f->handover_fd == -1 ||
                         pthread_mutex_init(&f->handover_lock, NULL) != 0)) {
        log_error("front: eventfd: %s", strerror(errno));
        rc = ERR_IO;
    }
    if (rc == ERR_OK && f->settings.responses_dir[0] != '\0')
        rc = kept_open(&f->kept, f->settings.responses_dir, f->settings.responses_bytes,
                       f->settings.responses_days, f->handover_fd);
    if (rc == ERR_OK)
        rc = main_open_text(f);
    if (rc == ERR_OK)
        rc = main_choose_reply(f);
    if (rc == ERR_OK)
        rc = cache_open(f);
    if (rc == ERR_OK)
        rc = engines_init(&f->engines, f->settings.engine_socket, f->settings.data_parallel_size);
    if (rc == ERR_OK)
        rc = compiled_cache_init(&f->compiled);
    /* While a reader waits for the compilation of another one, a further reader may work. */
    f->compiled.before_wait = reader_step_aside;
    f->compiled.after_wait = reader_step_back;
    f->compiled.wait_arg = f;
    if (rc == ERR_OK && sem_init(&f->reading, 0, (unsigned)f->settings.front_threads) != 0)
        rc = ERR_IO;
    if (rc == ERR_OK)
        rc = vocabulary_init(&f->vocabulary, f->tokenizer, f->reply_format, f->reply_reasoning,
                             f->handover_fd);
    if (rc == ERR_OK)
        rc = fcgi_start();
    if (rc == ERR_OK)
        rc = main_open_listen(f);
    if (rc == ERR_OK)
        rc = idle_pool_open(&f->idle_pool, f->listen_fd, f->stop_fd);
    return rc;
}

/* Start front_threads threads. Each reads and answers requests until the end. */
static int main_start_readers(struct front *f)
{
    int rc = ERR_OK;

    for (int i = 0; i < f->settings.front_threads && rc == ERR_OK; i++)
        rc = reader_start(f);
    return rc;
}

int main(int argc, char **argv)
{
    static struct front front = {
        .listen_fd = -1, .signal_fd = -1, .stop_fd = -1, .handover_fd = -1};
    bool exit_now = false;
    int rc;

    /* Before any thread starts, because threads inherit the mask. The streamer reads signals from
     * signal_fd. */
    service_block_signals();
    fault_init();
    if (settings_read(&front.settings, 'F', argc, argv, &exit_now) != ERR_OK)
        return 1;
    if (exit_now)
        return 0;
    mem_trim_always(); /* a request of 30 MB may need half a gigabyte for a moment */
    /* Each step runs only if all before it succeeded. */
    rc = log_set_level_text(front.settings.log_level);
    if (rc == ERR_OK)
        rc = main_open(&front);
    if (rc == ERR_OK)
        rc = main_start_readers(&front);
    if (rc != ERR_OK) {
        log_error("front: cannot start: %s", err_sentence(rc));
        if (rc == ERR_NO_MEMORY || rc == ERR_IO)
            return 2;
        return 1;
    }
    service_ready();
    log_info("front: ready, model %s", front.model_name);
    rc = streamer_run(&front);
    kept_close(front.kept);
    if (front.settings.listen[0] != '\0')
        (void)unlink(front.settings.listen);
    log_info("front: stopped");
    if (rc == ERR_OK)
        return 0;
    return 2;
}
