/* SPDX-License-Identifier: Apache-2.0
 *
 * quire serve: nginx, fronts and engines in the foreground, watched by one loop.
 *
 *   starting    all children run; a child that ends, ends all
 *   ready       /health has answered; engines and fronts that end are started again, as often as
 *               their systemd units allow
 *   stopping    nginx ends its streams, fronts and engines drain; what is left later is killed
 *
 * A tick of the loop prints what the logs have got, looks for ended children and for the answer of
 * /health. Signals come through a descriptor. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "tools/http.h"
#include "tools/quire.h"
#include "tools/serve.h"

#define SERVE_TICK_MS       100
#define SERVE_HEALTH_S      5
#define SERVE_STOP_MORE_S   10 /* for nginx and the engine's cache, after drain_timeout_s */
#define SERVE_STOP_EARLY_S  5  /* nothing was ready yet, so nothing is drained */
#define SERVE_FILES         65536
#define SERVE_HOST_FILE     "/dev/shm/quire/pages" /* the default of kv_host_file: a service's */
#define SERVE_NGINX_PACKAGE "nginx (apt install nginx-light, or nginx)"

void serve_say(const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(stderr, "quire serve: %s\n", text);
}

const char *serve_text(struct serve *s, const char *format, ...)
{
    va_list args;
    char *text;
    int len;

    va_start(args, format);
    len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    text = len < 0 ? NULL : arena_alloc(&s->arena, (size_t)len + 1);
    if (text == NULL) {
        serve_say("out of memory");
        exit(1);
    }
    va_start(args, format);
    (void)vsnprintf(text, (size_t)len + 1, format, args);
    va_end(args);
    return text;
}

/* A child; its program's own arguments follow. */
static void serve_describe(struct serve_child *c, const char *name, const char *program,
                           const char *log)
{
    *c = (struct serve_child){
        .name = name, .log = log, .listen_fd = -1, .stop_signal = SIGTERM, .shows_all = false};
    serve_args_add(&c->args, program);
}

static struct serve_child *serve_add(struct serve *s, const char *name, const char *program,
                                     const char *log)
{
    struct serve_child *c = &s->children[s->n_children++];

    serve_describe(c, name, program, log);
    return c;
}

static void serve_add_args(struct serve_child *c, const struct serve_args *args)
{
    for (int i = 0; i < args->n; i++)
        serve_args_add(&c->args, args->at[i]);
}

/* The table of matrix products beside a program that is not installed. */
static const char *serve_gemm_table(struct serve *s, const char *engine)
{
    const char *slash = strrchr(engine, '/');
    const char *table =
        serve_text(s, "%.*s/../kernels/gemm-h200.txt", (int)(slash - engine), engine);

    if (s->wishes.settings.gemm_table[0] != '\0' || access(table, R_OK) != 0)
        return NULL;
    return table;
}

/* Engine I of several has its socket in a folder I. */
static bool serve_add_engines(struct serve *s, const char *program)
{
    const struct settings *settings = &s->wishes.settings;
    const char *socket = serve_text(s, "--engine-socket=%s/engine.sock", s->folder);
    const char *table = serve_gemm_table(s, program);
    int n = settings->data_parallel_size;

    for (int i = 0; i < n; i++) {
        const char *name = n == 1 ? "engine" : serve_text(s, "engine %d", i);
        struct serve_child *c =
            serve_add(s, name, program, serve_text(s, "%s/engine%d.log", s->folder, i));

        c->shows_all = true;
        c->starts_max = 5;
        c->window_s = 600;
        c->pause_ms = 1000;
        serve_add_args(c, &s->wishes.engine);
        serve_args_add(&c->args, socket);
        if (strcmp(settings->kv_host_file, SERVE_HOST_FILE) == 0)
            serve_args_add(&c->args, s->memory[0] == '\0'
                                         ? "--kv-host-file="
                                         : serve_text(s, "--kv-host-file=%s/pages", s->memory));
        if (table != NULL)
            serve_args_add(&c->args, serve_text(s, "--gemm-table=%s", table));
        if (n == 1)
            continue;
        serve_args_add(&c->args, serve_text(s, "--data-parallel-rank=%d", i));
        if (mkdir(serve_text(s, "%s/%d", s->folder, i), 0700) == -1) {
            serve_say("%s: %s", s->folder, strerror(errno));
            return false;
        }
    }
    return true;
}

/* A place for the engine of a model: that of one whose model is gone, or a new one. NULL: there are
 * too many. */
static struct serve_child *serve_place(struct serve *s)
{
    int n = 0;

    for (int i = 0; i < s->n_children; i++) {
        struct serve_child *c = &s->children[i];

        if (c->on_demand && c->listen_fd == -1 && c->pid == 0)
            return c;
        n += c->on_demand;
    }
    return n < SERVE_ENGINES_MAX ? &s->children[s->n_children] : NULL;
}

/* The engine of a model starts on demand. */
bool serve_add_model(struct serve *s, const char *model)
{
    const char *program = serve_find(s, "quire-engine");
    const char *table = serve_gemm_table(s, program), *name = serve_text(s, "%s", model);
    const char *run = serve_models_run(s), *folder = serve_models_folder(s);
    struct serve_child *c = serve_place(s);
    struct stat log;

    if (c == NULL) {
        serve_say("model %s: there are %d engines already", model, SERVE_ENGINES_MAX);
        return false;
    }
    serve_describe(c, serve_text(s, "engine %s", name), program,
                   serve_text(s, "%s/engine-%s.log", s->folder, name));
    c->model = name;
    c->shows_all = true;
    c->on_demand = true;
    c->starts_max = 5;
    c->window_s = 600;
    c->pause_ms = 200;
    if (stat(c->log, &log) == 0)
        c->shown = log.st_size; /* of an earlier model of this name */
    serve_add_args(c, &s->wishes.engine);
    serve_args_add(&c->args, serve_text(s, "--config=%s/%s.conf", folder, name));
    serve_args_add(&c->args, serve_text(s, "--engine-socket=%s/%s.sock", run, name));
    serve_args_add(&c->args, serve_text(s, "--models-run=%s", run));
    if (strcmp(s->wishes.settings.kv_host_file, SERVE_HOST_FILE) == 0)
        serve_args_add(&c->args, s->memory[0] == '\0'
                                     ? "--kv-host-file="
                                     : serve_text(s, "--kv-host-file=%s/%s", s->memory, name));
    if (table != NULL)
        serve_args_add(&c->args, serve_text(s, "--gemm-table=%s", table));
    if (!serve_models_listen(s, c))
        return false;
    if (c == &s->children[s->n_children])
        s->n_children++;
    return true;
}

/* Of several models, each has an engine. */
static bool serve_add_models(struct serve *s)
{
    if (!serve_models_make(s))
        return false;
    for (int i = 0; i < s->models.n; i++) {
        if (!serve_add_model(s, s->models.names[i]))
            return false;
    }
    s->found = s->models;
    return true;
}

static void serve_add_fronts(struct serve *s, const char *program)
{
    const char *socket = serve_text(s, "--engine-socket=%s/engine.sock", s->folder);

    for (int i = 1; i <= s->wishes.n_fronts; i++) {
        struct serve_child *c = serve_add(s, serve_text(s, "front %d", i), program,
                                          serve_text(s, "%s/front%d.log", s->folder, i));

        c->starts_max = 30;
        c->window_s = 60;
        c->pause_ms = 200;
        serve_add_args(c, &s->wishes.front);
        if (serve_models_are_many(s)) {
            serve_args_add(&c->args, serve_text(s, "--models-dir=%s", serve_models_folder(s)));
            serve_args_add(&c->args, serve_text(s, "--models-run=%s", serve_models_run(s)));
        } else {
            serve_args_add(&c->args, socket);
        }
        serve_args_add(&c->args, "--listen="); /* the socket that is passed */
    }
}

/* Find the programs, make the folder and describe the children. */
static bool serve_prepare(struct serve *s)
{
    const char *engine = serve_find(s, "quire-engine");
    const char *front = serve_find(s, "quire-front");
    const char *nginx = serve_find(s, "nginx"), *sockets;
    struct serve_child *c;

    if (engine == NULL || front == NULL) {
        serve_say("there is no %s beside this program, and none on PATH",
                  engine == NULL ? "quire-engine" : "quire-front");
        return false;
    }
    if (nginx == NULL) {
        serve_say("nginx is missing: install the package " SERVE_NGINX_PACKAGE);
        return false;
    }
    if (!serve_folder_address(s) || !serve_folder_make(s))
        return false;
    if (serve_models_are_many(s) ? !serve_add_models(s) : !serve_add_engines(s, engine))
        return false;
    sockets = serve_text(s, "%s/engine.sock", s->folder);
    for (int i = 0, n = s->wishes.settings.data_parallel_size; n > 1 && i < n; i++)
        sockets = i == 0 ? serve_text(s, "%s/0/engine.sock", s->folder)
                         : serve_text(s, "%s,%s/%d/engine.sock", sockets, s->folder, i);
    if (serve_models_are_many(s))
        serve_say("logs and sockets are in %s; each engine starts with the first request for its "
                  "model",
                  s->folder);
    else
        serve_say("logs and sockets are in %s; quire top --engine-socket %s shows its work",
                  s->folder, sockets);
    serve_add_fronts(s, front);
    c = serve_add(s, "nginx", nginx, serve_text(s, "%s/nginx.log", s->folder));
    c->stop_signal = SIGQUIT;
    serve_args_add(&c->args, "-p");
    serve_args_add(&c->args, s->folder);
    serve_args_add(&c->args, "-e");
    serve_args_add(&c->args, serve_text(s, "%s/nginx-error.log", s->folder));
    serve_args_add(&c->args, "-c");
    serve_args_add(&c->args, serve_text(s, "%s/nginx.conf", s->folder));
    return serve_folder_listen(s);
}

/* As many connections as a service may have, if this user may. */
static void serve_raise_limits(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= SERVE_FILES)
        return;
    limit.rlim_cur = limit.rlim_max < SERVE_FILES ? limit.rlim_max : SERVE_FILES;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* what there is, is enough for few clients */
}

/* End all children; the status is that of the first reason. */
static void serve_stop(struct serve *s, int status)
{
    int wait_s = SERVE_STOP_EARLY_S;

    if (s->phase == SERVE_STOPPING)
        return;
    if (s->phase == SERVE_READY)
        wait_s = s->wishes.settings.drain_timeout_s + SERVE_STOP_MORE_S;
    s->phase = SERVE_STOPPING;
    s->status = status;
    s->stop_by_us = clock_us() + (uint64_t)wait_s * 1000000u;
    for (int i = 0; i < s->n_children; i++) {
        s->children[i].again_us = 0;
        serve_child_signal(&s->children[i], s->children[i].stop_signal);
    }
}

/* A second Ctrl-C, or the time is over. */
static void serve_kill(struct serve *s)
{
    s->killed = true;
    for (int i = 0; i < s->n_children; i++)
        serve_child_kill(&s->children[i]);
}

/* Count a further start. False: there were too many within window_s. */
bool serve_may_start(struct serve_child *c)
{
    uint64_t now_us = clock_us();

    if (c->window_us == 0 || now_us - c->window_us > (uint64_t)c->window_s * 1000000u) {
        c->window_us = now_us;
        c->n_starts = 0;
    }
    if (c->n_starts == c->starts_max)
        return false;
    c->n_starts++;
    c->again_us = now_us + (uint64_t)c->pause_ms * 1000u;
    return true;
}

/* A child has ended: start it again later, or end all. The status 1 is of programs that dislike
 * their settings, 127 of those that cannot be run. */
static void serve_ended(struct serve *s, struct serve_child *c, int status)
{
    bool is_final = s->phase == SERVE_STARTING ||
                    (WIFEXITED(status) && (WEXITSTATUS(status) == 1 || WEXITSTATUS(status) == 127));
    char reason[160];

    (void)serve_child_reason(status, reason, sizeof reason);
    if (s->phase == SERVE_STOPPING) {
        serve_child_show(c);
    } else if (c->on_demand) {
        serve_child_show(c);
        serve_models_ended(c, status);
    } else if (!is_final && serve_may_start(c)) {
        serve_child_show(c);
        serve_say("%s %s; it is started again (%d of at most %d times in %d s), and requests go on",
                  c->name, reason, c->n_starts, c->starts_max, c->window_s);
    } else {
        c->shows_all = true; /* its last lines */
        serve_child_show(c);
        serve_say("%s %s%s; all is stopped", c->name, reason, c->n_starts > 0 ? " again" : "");
        serve_stop(s, 1);
    }
}

/* Look at all children. The number of those that run or will run again. */
static int serve_watch(struct serve *s)
{
    int n = 0;

    for (int i = 0; i < s->n_children; i++) {
        struct serve_child *c = &s->children[i];
        int status;

        if (serve_child_ended(c, &status))
            serve_ended(s, c, status);
        else
            serve_child_show(c);
        if (c->on_demand && s->phase != SERVE_STOPPING && !serve_models_look(c))
            serve_stop(s, 1);
        if (!c->on_demand && c->again_us != 0 && clock_us() >= c->again_us && !serve_child_start(c))
            serve_stop(s, 1);
        n += c->pid != 0 || (!c->on_demand && c->again_us != 0);
    }
    return n;
}

/* Does a good answer of /health speak for all engines? With several it says how many are well. */
static bool serve_is_whole(struct http *http)
{
    struct buf body = {0};
    struct arena arena = {0};
    const struct json *said = NULL;
    bool whole = http_read_all(http, &body) == ERR_OK &&
                 json_parse(&said, &arena, buf_text(&body), body.len, NULL, 0) == ERR_OK &&
                 json_get_int(said, "engines", 1) == json_get_int(said, "healthy", 1);

    buf_fini(&body);
    arena_reset(&arena);
    return whole;
}

/* Ask for /health once, through nginx and one of the fronts. */
static bool serve_is_well(const struct serve *s)
{
    struct http_url url = {.host = "localhost"};
    struct http_request request = {.url = &url, .path = "/health", .silence_s = SERVE_HEALTH_S};
    struct http http = HTTP_CLOSED;
    bool good;

    (void)snprintf(url.socket, sizeof url.socket, "%.90s/nginx.sock", s->folder);
    good = http_ask(&http, &request) == ERR_OK && http.status == 200 && serve_is_whole(&http);
    http_close(&http);
    return good;
}

/* Is every front attached to every engine? nginx asks them in turn, so each is asked twice. */
static void serve_ask_health(struct serve *s)
{
    for (int i = 0; i < 2 * s->wishes.n_fronts; i++) {
        if (!serve_is_well(s))
            return;
    }
    s->phase = SERVE_READY;
    printf("ready: %s  (%s %s; Ctrl-C ends it)\n", s->url,
           serve_models_are_many(s) ? "models" : "model", s->wishes.name);
    if (!s->wishes.has_no_page && s->wishes.uds[0] == '\0') /* the address without its /v1 */
        serve_say("a page for browsers: %.*s/", (int)strlen(s->url) - 3, s->url);
    (void)fflush(stdout);
}

/* Signals that came. SIGCHLD only ends a wait. */
static void serve_read_signals(struct serve *s, int signal_fd)
{
    struct signalfd_siginfo got;

    while (read(signal_fd, &got, sizeof got) == (ssize_t)sizeof got) {
        if (got.ssi_signo == SIGCHLD)
            continue;
        if (s->phase == SERVE_STOPPING) {
            serve_kill(s);
        } else {
            serve_say("stopping%s", s->phase == SERVE_READY
                                        ? " after the running requests; Ctrl-C again: at once"
                                        : "");
            serve_stop(s, 0);
        }
    }
}

/* Wait for a signal, a connection that is to start an engine, or the next tick. */
static void serve_wait(const struct serve *s, int signal_fd)
{
    struct pollfd fds[1 + SERVE_ENGINES_MAX] = {{.fd = signal_fd, .events = POLLIN}};
    nfds_t n = 1;

    for (int i = 0; i < s->n_children; i++) {
        const struct serve_child *c = &s->children[i];

        if (c->on_demand && c->pid == 0 && c->again_us <= clock_us())
            fds[n++] = (struct pollfd){.fd = c->listen_fd, .events = POLLIN};
    }
    (void)poll(fds, n, SERVE_TICK_MS);
}

/* Until no child is left. */
static void serve_run(struct serve *s, int signal_fd)
{
    for (int i = 0; i < s->n_children && s->phase == SERVE_STARTING; i++) {
        if (!s->children[i].on_demand && !serve_child_start(&s->children[i]))
            serve_stop(s, 1);
    }
    while (serve_watch(s) > 0) { /* ends after a signal, or when a child gives up */
        serve_wait(s, signal_fd);
        serve_read_signals(s, signal_fd);
        if (s->phase == SERVE_STARTING)
            serve_ask_health(s);
        if (s->phase == SERVE_READY)
            serve_models_follow(s);
        if (s->phase == SERVE_STOPPING && !s->killed && clock_us() > s->stop_by_us)
            serve_kill(s);
    }
}

int quire_serve(int argc, char **argv)
{
    static struct serve serve = {.folder_lock = -1, .memory_lock = -1, .status = 1};
    sigset_t signals;
    int signal_fd;

    if (!serve_options_read(&serve, argc, argv))
        return 2;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGHUP);
    (void)sigaddset(&signals, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &signals, NULL);
    signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    serve_raise_limits();
    if (signal_fd == -1)
        serve_say("signalfd: %s", strerror(errno));
    else if (serve_prepare(&serve))
        serve_run(&serve, signal_fd);
    serve_folder_remove(&serve);
    settings_fini(&serve.wishes.settings);
    arena_reset(&serve.arena);
    return serve.status;
}
