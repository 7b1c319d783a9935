/* SPDX-License-Identifier: Apache-2.0
 *
 * One child of quire serve. Its output goes to a file, not through a pipe: a terminal that stands
 * still must not stop an engine in the middle of a log line.
 *
 * A child leads a process group of its own, so that Ctrl-C reaches this process alone, which then
 * ends all in order; and so that nginx's workers can be killed with their master. The kernel sends
 * SIGTERM to a child whose parent dies. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/serve.h"

#define CHILD_SOCKET_FD   3 /* SD_LISTEN_FDS_START */
#define CHILD_LINE_BYTES  4096
#define CHILD_EXEC_FAILED 127

/* In the new process. The variables of a service manager above us concern us, not the child. */
static _Noreturn void child_exec(const struct serve_child *c, pid_t parent)
{
    int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int out = open(c->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    sigset_t none;
    char text[16];

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before prctl() */
        _exit(CHILD_EXEC_FAILED);
    if (in == -1 || out == -1 || dup2(in, STDIN_FILENO) == -1 || dup2(out, STDOUT_FILENO) == -1 ||
        dup2(out, STDERR_FILENO) == -1)
        _exit(CHILD_EXEC_FAILED);
    (void)unsetenv("NOTIFY_SOCKET");
    (void)unsetenv("WATCHDOG_USEC");
    (void)unsetenv("WATCHDOG_PID");
    if (c->listen_fd != -1) {
        (void)snprintf(text, sizeof text, "%d", (int)getpid());
        if (dup2(c->listen_fd, CHILD_SOCKET_FD) == -1 || fcntl(CHILD_SOCKET_FD, F_SETFD, 0) == -1 ||
            setenv("LISTEN_PID", text, 1) != 0 || setenv("LISTEN_FDS", "1", 1) != 0)
            _exit(CHILD_EXEC_FAILED);
    }
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execv(c->args.at[0], (char *const *)(uintptr_t)c->args.at);
    (void)fprintf(stderr, "%s: %s\n", c->args.at[0], strerror(errno));
    _exit(CHILD_EXEC_FAILED);
}

bool serve_child_start(struct serve_child *c)
{
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid == -1) {
        serve_say("%s cannot be started: %s", c->name, strerror(errno));
        return false;
    }
    if (pid == 0)
        child_exec(c, parent);
    (void)setpgid(pid,
                  pid); /* both sides do it, because a signal may be sent before the child runs */
    c->pid = pid;
    c->again_us = 0;
    return true;
}

bool serve_child_ended(struct serve_child *c, int *status)
{
    if (c->pid == 0 || waitpid(c->pid, status, WNOHANG) != c->pid)
        return false;
    (void)kill(-c->pid, SIGKILL); /* mostly there is nothing left */
    c->pid = 0;
    return true;
}

void serve_child_signal(const struct serve_child *c, int signal_number)
{
    if (c->pid != 0)
        (void)kill(c->pid, signal_number); /* it may have ended */
}

void serve_child_kill(const struct serve_child *c)
{
    if (c->pid != 0)
        (void)kill(-c->pid, SIGKILL);
}

/* Is the line a warning or an error? The forms are those of base/log.c and of nginx. */
static bool child_matters(const char *line)
{
    return strstr(line, " WARN ") != NULL || strstr(line, " ERROR ") != NULL ||
           strncmp(line, "<3>", 3) == 0 || strncmp(line, "<4>", 3) == 0 ||
           strstr(line, "[emerg]") != NULL;
}

void serve_child_show(struct serve_child *c)
{
    FILE *file = fopen(c->log, "re");
    char line[CHILD_LINE_BYTES];

    if (file == NULL)
        return; /* it has said nothing yet */
    if (fseeko(file, c->shown, SEEK_SET) == 0) {
        while (fgets(line, sizeof line, file) != NULL) {
            size_t len = strlen(line);

            if (line[len - 1] != '\n' && len + 1 < sizeof line)
                break; /* the rest of the line comes */
            c->shown += (off_t)len;
            if (c->shows_all || child_matters(line))
                (void)fputs(line, stderr);
        }
    }
    (void)fclose(file); /* it was only read from */
}

/* The meaning of the exit codes of quire-engine and quire-front. */
static const char *child_meaning(int code)
{
    switch (code) {
    case 1: return ": usage or configuration";
    case 2: return ": memory, a file or a socket was not available";
    case 3: return ": the device reported an error";
    case CHILD_EXEC_FAILED: return ": it cannot be run";
    default: return "";
    }
}

const char *serve_child_reason(int status, char *text, size_t cap)
{
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT)
        (void)snprintf(text, cap, "failed an internal check, which is a defect of quire");
    else if (WIFSIGNALED(status))
        (void)snprintf(text, cap, "was ended by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        (void)snprintf(text, cap, "ended with exit status %d%s", WEXITSTATUS(status),
                       child_meaning(WEXITSTATUS(status)));
    return text;
}
