/* SPDX-License-Identifier: Apache-2.0
 *
 * A private server. Its standard output is a pipe that says when it is ready; its standard error is
 * a file in memory, the end of which is printed when the start fails: also when that is because the
 * disk is full.
 *
 *    this command -> the keeper -> quire serve -> its engine and fronts
 *
 * Each gets SIGTERM when the one before it dies. The keeper, a fork of this command, removes
 * the folder when the server has ended: so nothing stays of a command that is killed. */
#include "tools/private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/serve.h"

#define PRIVATE_ARGS_MAX   256
#define PRIVATE_TICK_MS    100
#define PRIVATE_LINES_SHOW 8192 /* bytes of the log's end that are printed */

struct private_plan {
    const char *args[PRIVATE_ARGS_MAX + 8];
    char socket[100];
};

static void private_describe(const struct private_server *p, struct private_plan *plan,
                             const char *model, char **settings, int n_settings)
{
    int n = 0;

    (void)snprintf(plan->socket, sizeof plan->socket, "%s/api.sock", p->folder);
    plan->args[n++] = "quire";
    plan->args[n++] = "serve";
    plan->args[n++] = model;
    plan->args[n++] = "--uds";
    plan->args[n++] = plan->socket;
    for (int i = 0; i < n_settings; i++)
        plan->args[n++] = settings[i];
    plan->args[n] = NULL;
}

/* In the new process of the server. */
static _Noreturn void private_exec(const struct private_plan *plan, int out, int log, pid_t parent)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigset_t none;

    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before prctl() */
        _exit(127);
    if (in == -1 || dup2(in, STDIN_FILENO) == -1 || dup2(out, STDOUT_FILENO) == -1 ||
        dup2(log, STDERR_FILENO) == -1)
        _exit(127);
    (void)execv("/proc/self/exe", (char *const *)(uintptr_t)plan->args);
    (void)fprintf(stderr, "/proc/self/exe: %s\n", strerror(errno));
    _exit(127);
}

/* In the new process of the keeper, until the server has ended. Its own process group: Ctrl-C
 * reaches this command alone, which ends it. */
static _Noreturn void private_keep(const struct private_server *p, const struct private_plan *plan,
                                   int out, int log, pid_t parent)
{
    pid_t self = getpid(), server;
    sigset_t watched;
    int number, status;

    (void)setpgid(0, 0);
    (void)sigemptyset(&watched);
    (void)sigaddset(&watched, SIGTERM);
    (void)sigaddset(&watched, SIGCHLD);
    (void)sigprocmask(SIG_SETMASK, &watched, NULL);
    (void)signal(SIGCHLD, SIG_DFL); /* ignored, it would not be seen */
    (void)signal(SIGHUP, SIG_IGN);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    server = getppid() == parent ? fork() : -1;
    if (server == 0)
        private_exec(plan, out, log, self);
    (void)close(out); /* the command sees the server's end */
    /* A reader of the output of this command must see its end, so no copy stays open here. */
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        (void)close(fd);
    while (server > 0 && waitpid(server, &status, WNOHANG) == 0) {
        if (sigwait(&watched, &number) == 0 && number == SIGTERM)
            (void)kill(server, SIGTERM); /* it may have ended */
    }
    serve_folder_delete(p->folder);
    _exit(0);
}

/* The end of the log of a server that did not start. */
static void private_show(int log)
{
    char text[PRIVATE_LINES_SHOW];
    off_t len = lseek(log, 0, SEEK_END);
    ssize_t got =
        pread(log, text, sizeof text, len > PRIVATE_LINES_SHOW ? len - PRIVATE_LINES_SHOW : 0);

    if (got > 0)
        (void)fwrite(text, 1, (size_t)got, stderr);
}

/* Wait for the line "ready: ...". False: the server has ended, or *stop was set. */
static bool private_wait(int out, const volatile sig_atomic_t *stop)
{
    struct pollfd ready = {.fd = out, .events = POLLIN};
    char byte;
    ssize_t got = -1;

    while (!*stop && got == -1) { /* a large model takes minutes; the server ends when it fails */
        if (poll(&ready, 1, PRIVATE_TICK_MS) == 1)
            got = read(out, &byte, 1);
    }
    return got == 1;
}

bool private_start(struct private_server *p, const char *model, char **settings, int n_settings,
                   const volatile sig_atomic_t *stop, struct http_url *url)
{
    struct private_plan plan;
    pid_t parent = getpid();
    int out[2], log;
    bool good;

    if (n_settings > PRIVATE_ARGS_MAX) {
        (void)fprintf(stderr, "there are more than %d settings\n", PRIVATE_ARGS_MAX);
        return false;
    }
    if (!serve_folder_new(p->folder, sizeof p->folder, &p->lock)) {
        (void)fprintf(stderr, "no private server can be started: %s\n", strerror(errno));
        return false;
    }
    private_describe(p, &plan, model, settings, n_settings);
    log = memfd_create("serve.log", MFD_CLOEXEC);
    if (log == -1 || pipe2(out, O_CLOEXEC) == -1) {
        (void)fprintf(stderr, "no private server can be started: %s\n", strerror(errno));
        if (log != -1)
            (void)close(log);
        return false;
    }
    p->pid = fork();
    if (p->pid == 0)
        private_keep(p, &plan, out[1], log, parent);
    (void)close(out[1]);
    if (p->pid == -1)
        p->pid = 0;
    good = p->pid != 0 && private_wait(out[0], stop);
    (void)close(out[0]);
    if (!good && !*stop)
        private_show(log);
    (void)close(log);
    *url = (struct http_url){.host = "localhost"};
    (void)snprintf(url->socket, sizeof url->socket, "%s", plan.socket);
    return good;
}

int private_split(int argc, char **argv, int *first)
{
    int n = 1;

    while (n < argc && strcmp(argv[n], "--") != 0)
        n++;
    *first = n < argc ? n + 1 : argc;
    return n;
}

void private_end(struct private_server *p)
{
    int status;

    if (p->pid != 0) {
        (void)kill(p->pid, SIGTERM); /* it may have ended */
        while (waitpid(p->pid, &status, 0) == -1 && errno == EINTR)
            continue;
        p->pid = 0;
    }
    if (p->lock != -1) {
        serve_folder_delete(p->folder); /* the keeper has, unless it was killed */
        (void)close(p->lock);
        p->lock = -1;
    }
}
