/* SPDX-License-Identifier: Apache-2.0
 *
 * quire-front: start, run, end. Exit codes: 0 stopped, 1 usage or configuration, 2 resources. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/service.h"
#include "front/cache.h"
#include "front/front.h"

/* The last part of the model folder's path names the model unless a setting does. */
static const char *main_model_name(const struct settings *s)
{
    const char *slash = strrchr(s->model, '/');

    if (s->served_model_name[0] != '\0')
        return s->served_model_name;
    return slash == NULL || slash[1] == '\0' ? s->model : slash + 1;
}

/* "created" of /v1/models. Not this process's start: fronts would give different answers. */
static int64_t main_model_time(const struct settings *s)
{
    struct stat st;

    return stat(s->model, &st) == 0 ? (int64_t)st.st_mtime : clock_unix_s();
}

static void main_log_tokenizer(const struct tokenizer_opening *how, uint64_t us)
{
    if (how->cache_why[0] != '\0')
        log_warn("front: compiled tokenizer: %s", how->cache_why);
    log_info("front: tokenizer %s in %.1f ms",
             how->written  ? "compiled and written"
             : how->mapped ? "mapped"
                           : "built in memory",
             (double)us / 1e3);
}

static int main_open_text(struct front *f)
{
    uint64_t from_us = clock_us();
    struct tokenizer_opening how;
    char why[512] = "";
    int rc;

    if (f->settings.model[0] == '\0') {
        log_error("front: no model: set model to a Hugging Face folder");
        return ERR_INVALID;
    }
    rc = tokenizer_open_cached(&f->tokenizer, f->settings.model, f->settings.tokenizer_cache_dir,
                               &how, why, sizeof why);
    if (rc == ERR_OK)
        main_log_tokenizer(&how, clock_us() - from_us);
    if (rc == ERR_OK)
        rc = chat_open(&f->chat, f->settings.model, f->settings.chat_template, why, sizeof why);
    presets_init(&f->presets);
    if (rc == ERR_OK && strcmp(f->settings.generation_config, "auto") == 0)
        rc = presets_read(&f->presets, f->settings.model, why, sizeof why);
    if (rc != ERR_OK)
        log_error("front: %s", why[0] == '\0' ? err_sentence(rc) : why);
    else if (!chat_has_template(f->chat))
        log_warn("front: the model has no chat template; chats are refused");
    else if (!chat_knows_tools(f->chat))
        log_warn("front: the chat template knows no tools: prompts do not name those of a request; "
                 "set chat_template to a file with one that does");
    return rc;
}

/* The formats of replies: a setting's, or what the template's text says. */
static int main_choose_reply(struct front *f)
{
    const char *calls = f->settings.tool_call_parser, *reasoning = f->settings.reasoning_parser;

    f->reply_format = chat_reply_format(f->chat);
    f->reply_reasoning = chat_reply_reasoning(f->chat);
    if (strcmp(calls, "auto") != 0)
        f->reply_format = reply_format_named(calls);
    if (strcmp(reasoning, "none") == 0)
        f->reply_reasoning = REPLY_NO_REASONING;
    else if (strcmp(reasoning, "mistral") == 0)
        f->reply_reasoning = REPLY_THINK_BRACKETS;
    else if (strcmp(reasoning, "think") == 0)
        f->reply_reasoning = REPLY_THINK;
    else if (strcmp(reasoning, "auto") != 0)
        f->reply_format = REPLY_FORMATS;
    if (f->reply_format != REPLY_FORMATS)
        return ERR_OK;
    log_error("front: tool_call_parser is '%s', reasoning_parser is '%s': one of them is unknown",
              calls, reasoning);
    return ERR_INVALID;
}

static int main_open_listen(struct front *f)
{
    int flags;
    int rc = ERR_OK;

    if (f->settings.listen[0] != '\0') {
        rc = fcgi_listen(f->settings.listen, &f->listen_fd);
    } else {
        f->listen_fd = service_listen_fd();
        if (f->listen_fd == -1) {
            log_error("front: systemd passed no socket; set listen to a path");
            rc = ERR_INVALID;
        }
    }
    if (rc != ERR_OK)
        return rc;
    /* Readers that lose the race for a connection must not sleep in accept(). */
    flags = fcntl(f->listen_fd, F_GETFL);
    if (flags == -1 || fcntl(f->listen_fd, F_SETFL, flags | O_NONBLOCK) == -1)
        return ERR_IO;
    return ERR_OK;
}

static int main_open(struct front *f)
{
    int rc = service_signal_fd(&f->signal_fd);

    f->model_name = main_model_name(&f->settings);
    f->model_unix_s = main_model_time(&f->settings);
    f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f->handover_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (rc == ERR_OK && (f->stop_fd == -1 || f->handover_fd == -1 ||
                         pthread_mutex_init(&f->handover_lock, NULL) != 0)) {
        log_error("front: eventfd: %s", strerror(errno));
        rc = ERR_IO;
    }
    if (rc == ERR_OK)
        rc = main_open_text(f);
    if (rc == ERR_OK)
        rc = main_choose_reply(f);
    if (rc == ERR_OK)
        rc = cache_open(f);
    if (rc == ERR_OK)
        rc = link_init(&f->link, f->settings.engine_socket);
    if (rc == ERR_OK)
        rc = structures_init(&f->structures);
    if (rc == ERR_OK)
        rc = vocabulary_init(&f->vocabulary, f->tokenizer, f->reply_format, f->reply_reasoning,
                             f->handover_fd);
    if (rc == ERR_OK)
        rc = fcgi_start();
    if (rc == ERR_OK)
        rc = main_open_listen(f);
    if (rc == ERR_OK)
        rc = lobby_open(&f->lobby, f->listen_fd, f->stop_fd);
    return rc;
}

static int main_start_readers(struct front *f)
{
    int rc = ERR_OK;

    for (int i = 0; i < f->settings.front_threads && rc == ERR_OK; i++)
        rc = reader_start(f);
    return rc;
}

int main(int argc, char **argv)
{
    static struct front f = {.listen_fd = -1, .signal_fd = -1, .stop_fd = -1, .handover_fd = -1};
    bool exit_now = false;
    int rc;

    fault_init();
    if (settings_read(&f.settings, 'F', argc, argv, &exit_now) != ERR_OK)
        return 1;
    if (exit_now)
        return 0;
    mem_trim_always(); /* a request of 30 MB may need half a gigabyte for a moment */
    rc = log_set_level_text(f.settings.log_level);
    if (rc == ERR_OK)
        rc = main_open(&f);
    if (rc == ERR_OK)
        rc = main_start_readers(&f);
    if (rc != ERR_OK) {
        log_error("front: cannot start: %s", err_sentence(rc));
        return rc == ERR_NO_MEMORY || rc == ERR_IO ? 2 : 1;
    }
    service_ready();
    log_info("front: ready, model %s", f.model_name);
    rc = streamer_run(&f);
    if (f.settings.listen[0] != '\0')
        (void)unlink(f.settings.listen);
    log_info("front: stopped");
    return rc == ERR_OK ? 0 : 2;
}
