/* SPDX-License-Identifier: Apache-2.0
 *
 * A private server. Its standard output is a pipe that says when it is ready; its standard error is
 * a file, which is printed when the start fails. */
#include "tools/private.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/serve.h"

#define PRIVATE_ARGS_MAX   256
#define PRIVATE_TICK_MS    100
#define PRIVATE_LINES_SHOW 8192 /* bytes of the log's end that are printed */

struct private_plan {
    const char *args[PRIVATE_ARGS_MAX + 8];
    char socket[100], log[100];
};

static void private_describe(const struct private_server *p, struct private_plan *plan,
                             const char *model, char **settings, int n_settings)
{
    int n = 0;

    (void)snprintf(plan->socket, sizeof plan->socket, "%s/api.sock", p->folder);
    (void)snprintf(plan->log, sizeof plan->log, "%s/serve.log", p->folder);
    plan->args[n++] = "quire";
    plan->args[n++] = "serve";
    plan->args[n++] = model;
    plan->args[n++] = "--uds";
    plan->args[n++] = plan->socket;
    for (int i = 0; i < n_settings; i++)
        plan->args[n++] = settings[i];
    plan->args[n] = NULL;
}

/* In the new process. Its own process group: Ctrl-C reaches this command alone, which ends it. */
static _Noreturn void private_exec(const struct private_plan *plan, int out, pid_t parent)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int log = open(plan->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before prctl() */
        _exit(127);
    if (in == -1 || log == -1 || dup2(in, STDIN_FILENO) == -1 || dup2(out, STDOUT_FILENO) == -1 ||
        dup2(log, STDERR_FILENO) == -1)
        _exit(127);
    (void)execv("/proc/self/exe", (char *const *)(uintptr_t)plan->args);
    (void)fprintf(stderr, "/proc/self/exe: %s\n", strerror(errno));
    _exit(127);
}

/* The end of the log of a server that did not start. */
static void private_show(const struct private_plan *plan)
{
    FILE *file = fopen(plan->log, "re");
    char line[4096];

    if (file == NULL)
        return;
    if (fseeko(file, -PRIVATE_LINES_SHOW, SEEK_END) == -1)
        rewind(file); /* it is shorter */
    while (fgets(line, sizeof line, file) != NULL)
        (void)fputs(line, stderr);
    (void)fclose(file); /* it was only read from */
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
    int out[2];
    bool good;

    if (n_settings > PRIVATE_ARGS_MAX) {
        (void)fprintf(stderr, "there are more than %d settings\n", PRIVATE_ARGS_MAX);
        return false;
    }
    if (!serve_folder_new(p->folder, sizeof p->folder, &p->lock) || pipe2(out, O_CLOEXEC) == -1) {
        (void)fprintf(stderr, "no private server can be started: %s\n", strerror(errno));
        return false;
    }
    private_describe(p, &plan, model, settings, n_settings);
    p->pid = fork();
    if (p->pid == 0)
        private_exec(&plan, out[1], parent);
    (void)close(out[1]);
    if (p->pid == -1)
        p->pid = 0;
    good = p->pid != 0 && private_wait(out[0], stop);
    (void)close(out[0]);
    if (!good && !*stop)
        private_show(&plan);
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
        serve_folder_delete(p->folder);
        (void)close(p->lock);
        p->lock = -1;
    }
}
