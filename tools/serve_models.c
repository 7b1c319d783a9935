/* SPDX-License-Identifier: Apache-2.0
 *
 * Several models of quire serve. Each has an engine of its own, whose listening socket is made here
 * and passed on, as systemd does it: the first connection of a front starts the engine. One that
 * cannot be started turns its connections away, and disturbs no other. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "ipc/attach.h"
#include "ipc/seats.h"
#include "tools/serve.h"

#define MODELS_BACKLOG 64
#define MODELS_SHUT_US 5000000u /* after an engine that cannot be started */

bool serve_models_are_many(const struct serve *s)
{
    return s->models.n > 0;
}

const char *serve_models_run(struct serve *s)
{
    return serve_text(s, "%s/models", s->folder);
}

const char *serve_models_folder(struct serve *s)
{
    if (s->wishes.models_dir[0] != '\0')
        return s->wishes.models_dir;
    return serve_text(s, "%s/models.d", s->folder);
}

/* The last part of a model's path, without .gguf. */
static bool models_name(char name[MODELS_NAME], const char *path)
{
    const char *last = strrchr(path, '/') == NULL ? path : strrchr(path, '/') + 1;
    size_t len = strlen(last);

    if (len > 5 && strcmp(last + len - 5, ".gguf") == 0)
        len -= 5;
    if (len == 0 || len >= MODELS_NAME)
        return false;
    memcpy(name, last, len);
    name[len] = '\0';
    return true;
}

bool serve_models_read(struct serve *s)
{
    const struct serve_list *paths = &s->wishes.paths;

    s->models.n = 0;
    if (s->wishes.models_dir[0] != '\0' && paths->n > 0) {
        serve_say("name models, or --models-dir, not both");
        return false;
    }
    if (s->wishes.models_dir[0] != '\0')
        return models_read(&s->models, s->wishes.models_dir) == ERR_OK;
    for (int i = 0; i < paths->n && paths->n > 1; i++) {
        char *name = s->models.names[i];

        if (!models_name(name, paths->at[i])) {
            serve_say("%s: its last part is no name, or one of more than %d bytes", paths->at[i],
                      MODELS_NAME - 1);
            return false;
        }
        for (int k = 0; k < i; k++) {
            if (strcmp(s->models.names[k], name) == 0) {
                serve_say("two models have the name %s: use --models-dir, where files name them",
                          name);
                return false;
            }
        }
        s->models.n++;
    }
    return true;
}

/* Write NAME.conf for a model of the command line. */
static bool models_write(struct serve *s, int i)
{
    char path[sizeof s->folder + MODELS_NAME + 32];
    FILE *file;

    models_file(path, sizeof path, serve_models_folder(s), s->models.names[i]);
    file = fopen(path, "wxe");
    if (file != NULL)
        (void)fprintf(file, "model = %s\n", s->wishes.paths.at[i]);
    if (file != NULL && fclose(file) == 0)
        return true;
    serve_say("%s: %s", path, strerror(errno));
    return false;
}

bool serve_models_make(struct serve *s)
{
    bool good = mkdir(serve_models_run(s), 0700) == 0 && seats_mark(serve_models_run(s)) == ERR_OK;

    if (good && s->wishes.models_dir[0] == '\0')
        good = mkdir(serve_models_folder(s), 0700) == 0;
    if (!good)
        serve_say("%s: %s", s->folder, strerror(errno));
    for (int i = 0; i < s->models.n && good && s->wishes.models_dir[0] == '\0'; i++)
        good = models_write(s, i);
    return good;
}

bool serve_models_listen(struct serve *s, struct serve_child *c)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};

    models_socket(at.sun_path, sizeof at.sun_path, serve_models_run(s), c->model);
    c->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->listen_fd != -1 && bind(c->listen_fd, (const struct sockaddr *)&at, sizeof at) == 0 &&
        listen(c->listen_fd, MODELS_BACKLOG) == 0)
        return true;
    serve_say("%s: %s", at.sun_path, strerror(errno));
    if (c->listen_fd != -1)
        (void)close(c->listen_fd);
    c->listen_fd = -1;
    return false;
}

void serve_models_ended(struct serve_child *c, int status)
{
    bool is_final = WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 127);
    char reason[160];

    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return; /* it found no seat: the next request starts it again */
    (void)serve_child_reason(status, reason, sizeof reason);
    if (!is_final && serve_may_start(c)) {
        serve_say("%s %s; the next request starts it again (%d of at most %d times in %d s)",
                  c->name, reason, c->n_starts, c->starts_max, c->window_s);
        return;
    }
    serve_say("%s %s; requests for its model are refused for %d s", c->name, reason,
              (int)(MODELS_SHUT_US / 1000000u));
    c->again_us = 0;
    c->shut_us = clock_us() + MODELS_SHUT_US;
}

bool serve_models_look(struct serve_child *c)
{
    struct pollfd waits = {.fd = c->listen_fd, .events = POLLIN};
    uint64_t now_us = clock_us();

    if (c->pid != 0 || poll(&waits, 1, 0) != 1)
        return true;
    if (c->shut_us > now_us) {
        attach_turn_away(c->listen_fd, ERR_INVALID);
        return true;
    }
    c->shut_us = 0;
    if (c->again_us > now_us)
        return true;
    return serve_child_start(c);
}

/* The child of a model; NULL: none, or its file was gone. */
static struct serve_child *models_child(struct serve *s, const char *model)
{
    for (int i = 0; i < s->n_children; i++) {
        struct serve_child *c = &s->children[i];

        if (c->on_demand && c->listen_fd != -1 && strcmp(c->model, model) == 0)
            return c;
    }
    return NULL;
}

/* The file of a model is gone: its engine, if it runs, notices and ends. */
static void models_forget(struct serve *s, struct serve_child *c)
{
    char path[sizeof s->folder + MODELS_NAME + 32];

    models_socket(path, sizeof path, serve_models_run(s), c->model);
    (void)unlink(path); /* nothing depends on it */
    (void)close(c->listen_fd);
    c->listen_fd = -1;
}

void serve_models_follow(struct serve *s)
{
    uint64_t now_us = clock_us();

    if (s->wishes.models_dir[0] == '\0' || now_us - s->looked_us < MODELS_LOOK_US)
        return;
    s->looked_us = now_us;
    if (models_look(&s->found, s->wishes.models_dir) != ERR_OK)
        return;
    for (int i = 0; i < s->n_children; i++) {
        struct serve_child *c = &s->children[i];

        if (!c->on_demand || c->listen_fd == -1)
            continue;
        c->n_missing = models_have(&s->found, c->model) ? 0 : c->n_missing + 1;
        if (c->n_missing == MODELS_MISSING)
            models_forget(s, c);
    }
    for (int i = 0; i < s->found.n; i++) {
        if (models_child(s, s->found.names[i]) == NULL)
            (void)serve_add_model(s, s->found.names[i]); /* on failure the next look tries again */
    }
}
