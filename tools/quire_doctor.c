/* SPDX-License-Identifier: Apache-2.0
 *
 * quire doctor: looks at what a server needs of its machine, and says how to mend what is missing.
 *
 * Every check prints one line, `ok` or `mend`. Nothing is changed. What only a service needs is
 * looked at where systemd runs. The settings are those of the file that the service reads. */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include "base/settings.h"
#include "tools/quire.h"
#include "tools/serve.h"

#define DOCTOR_CONFIG     "/etc/quire/quire.conf"
#define DOCTOR_FILES      4096 /* for a thousand clients; the units have 65536 */
#define DOCTOR_CAPABILITY 80   /* the oldest GPUs with kernels */

static const char doctor_usage[] =
    "usage: quire doctor [--config FILE]\n"
    "\n"
    "Looks at what a server needs of this machine: driver and GPUs, /dev/shm, limits, model,\n"
    "prefix cache, sockets, nginx, ports, systemd, clock. A line begins with `ok`, or with `mend`\n"
    "and ends with the way to mend it. Nothing is changed.\n"
    "\n"
    "  --config FILE  /etc/quire/quire.conf, if there is one   the service's settings\n"
    "\n"
    "Exit status: 0; 1 when something must be mended; 2 usage, or the settings are wrong.\n";

struct doctor {
    struct settings settings;
    struct serve tools; /* for serve_find() alone */
    int n_wrong;
};

static void doctor_say(const char *begin, const char *what, const char *format, va_list args)
{
    char text[512];

    (void)vsnprintf(text, sizeof text, format, args);
    printf("%-5s%s: %s\n", begin, what, text);
}

static void doctor_ok(const char *what, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void doctor_mend(struct doctor *d, const char *what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void doctor_ok(const char *what, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    doctor_say("ok", what, format, args);
    va_end(args);
}

static void doctor_mend(struct doctor *d, const char *what, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    doctor_say("mend", what, format, args);
    va_end(args);
    d->n_wrong++;
}

/* The first line that a command prints on standard output; false: it fails or prints none. */
static bool doctor_ask(const char *command, char *line, size_t cap)
{
    FILE *pipe = popen(command, "re"); /* NOLINT(cert-env33-c): the text is a constant of this
                                        * program, with a path that it has found itself */
    bool good = pipe != NULL && fgets(line, (int)cap, pipe) != NULL;
    char rest[256];

    while (good && fgets(rest, sizeof rest, pipe) != NULL)
        continue;
    if (pipe != NULL)
        good = pclose(pipe) == 0 && good;
    if (good)
        line[strcspn(line, "\n")] = '\0';
    return good;
}

/* One line of nvidia-smi: "9.0, 143771 MiB, NVIDIA H200". */
static void doctor_gpu(struct doctor *d, int idx, const char *line)
{
    char what[16];
    int major = 0, minor = 0;

    (void)snprintf(what, sizeof what, "GPU %d", idx);
    if (sscanf(line, "%d.%d", &major, &minor) == 2 && major * 10 + minor >= DOCTOR_CAPABILITY)
        doctor_ok(what, "compute capability %s", line);
    else
        doctor_mend(d, what,
                    "compute capability %s: there are kernels from 8.0 on; use another "
                    "GPU, or device = cpu",
                    line);
}

static void doctor_gpus(struct doctor *d)
{
    FILE *pipe;
    char line[256];
    int n = 0;

    if (strcmp(d->settings.device, "cpu") == 0) {
        doctor_ok("device", "cpu, by the settings: no GPU is needed");
        return;
    }
    pipe = popen("nvidia-smi --query-gpu=compute_cap,memory.total,name --format=csv,noheader "
                 "2>/dev/null",
                 "re"); /* NOLINT(cert-env33-c): a constant text */
    while (pipe != NULL && fgets(line, sizeof line, pipe) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        doctor_gpu(d, n++, line);
    }
    if (pipe != NULL)
        (void)pclose(pipe); /* it is told by the number of lines */
    if (n == 0 && access("/proc/driver/nvidia/version", R_OK) != 0)
        doctor_mend(d, "driver",
                    "the NVIDIA driver is not loaded: install it, or set device = cpu");
    else if (n == 0)
        doctor_mend(d, "driver",
                    "it is loaded, and nvidia-smi shows no GPU: reboot after the "
                    "driver's installation, or install nvidia-smi");
}

/* Room in /dev/shm for the pages in host memory and the lanes of fronts. */
static void doctor_memory(struct doctor *d)
{
    double want = (double)d->settings.kv_host_bytes, room;
    struct statvfs fs;

    if (statvfs("/dev/shm", &fs) == -1) {
        doctor_mend(d, "/dev/shm", "%s: mount a tmpfs there", strerror(errno));
        return;
    }
    room = (double)fs.f_blocks * (double)fs.f_frsize;
    if (room < want)
        doctor_mend(d, "/dev/shm",
                    "%.1f GiB, and kv_host_bytes is %.1f GiB: mount -o remount,size=N /dev/shm, or "
                    "lower kv_host_bytes",
                    room / (1 << 30), want / (1 << 30));
    else
        doctor_ok("/dev/shm", "%.1f GiB", room / (1 << 30));
}

static void doctor_limits(struct doctor *d)
{
    struct rlimit files, locked;

    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_max < DOCTOR_FILES)
        doctor_mend(d, "open files",
                    "at most %llu: raise the hard limit of nofile to 65536 in "
                    "/etc/security/limits.conf; the systemd units have it",
                    (unsigned long long)files.rlim_max);
    else
        doctor_ok("open files", "at most %llu", (unsigned long long)files.rlim_max);
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
        doctor_ok("locked memory", "%llu KiB", (unsigned long long)locked.rlim_cur >> 10);
    else
        doctor_ok("locked memory", "without limit");
}

/* A file that others may write could be replaced by them. */
static void doctor_model(struct doctor *d)
{
    const char *model = d->settings.model;
    char config[4096];
    struct stat st;

    if (model[0] == '\0') {
        doctor_mend(d, "model", "none is set: write `model = FOLDER` into " DOCTOR_CONFIG);
        return;
    }
    (void)snprintf(config, sizeof config, "%s/config.json", model);
    if (stat(model, &st) == -1)
        doctor_mend(d, "model", "%s: %s: set `model` to a folder on this machine", model,
                    strerror(errno));
    else if (S_ISDIR(st.st_mode) && access(config, R_OK) != 0)
        doctor_mend(d, "model", "%s: %s: it must be a Hugging Face folder that this user can read",
                    config, strerror(errno));
    else if ((st.st_mode & S_IWOTH) != 0)
        doctor_mend(d, "model", "%s can be changed by every user: chmod o-w", model);
    else
        doctor_ok("model", "%s, of user %d", model, (int)st.st_uid);
}

static void doctor_store(struct doctor *d)
{
    const char *dir = d->settings.kv_store_dir;
    struct statvfs fs;
    double room;

    if (dir[0] == '\0' || access(dir, F_OK) != 0) {
        doctor_ok("prefix cache",
                  dir[0] == '\0' ? "not on disk" : "its folder is made by the first start");
        return;
    }
    if (statvfs(dir, &fs) == -1) {
        doctor_mend(d, "prefix cache", "%s: %s: give the folder to the engine's user", dir,
                    strerror(errno));
        return;
    }
    room = (double)fs.f_bavail * (double)fs.f_frsize;
    if (room < (double)d->settings.kv_store_reserve_bytes)
        doctor_mend(d, "prefix cache",
                    "%.1f GiB are free in %s, less than kv_store_reserve_bytes: make room, or set "
                    "kv_store_dir to another disk",
                    room / (1 << 30), dir);
    else
        doctor_ok("prefix cache", "%.1f GiB are free in %s", room / (1 << 30), dir);
}

static void doctor_socket(struct doctor *d)
{
    const char *path = d->settings.engine_socket;

    if (access(path, F_OK) != 0)
        doctor_ok("engine's socket", "no engine has made %s", path);
    else if (access(path, R_OK | W_OK) != 0)
        doctor_mend(d, "engine's socket",
                    "%s may not be used by this user: usermod -aG quire-socket USER", path);
    else
        doctor_ok("engine's socket", "%s", path);
}

static void doctor_nginx(struct doctor *d)
{
    const char *nginx = serve_find(&d->tools, "nginx");
    char line[256];

    if (nginx == NULL) {
        doctor_mend(d, "nginx", "it is missing: apt install nginx-light, or nginx");
        return;
    }
    if (!doctor_ask(serve_text(&d->tools, "'%s' -v 2>&1", nginx), line, sizeof line))
        doctor_mend(d, "nginx", "%s cannot be run: install the package again", nginx);
    else
        doctor_ok("nginx", "%s", line);
    if (geteuid() != 0 || access("/etc/nginx/nginx.conf", R_OK) != 0)
        return;
    if (doctor_ask(serve_text(&d->tools, "'%s' -t 2>&1", nginx), line, sizeof line))
        doctor_ok("nginx's files", "nginx -t is content");
    else
        doctor_mend(d, "nginx's files", "nginx -t names the line to mend");
}

/* Ports of quire serve and of the service: free, or a server of this machine has them. */
static void doctor_port(int port, const char *whose)
{
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_taken = fd != -1 && connect(fd, (const struct sockaddr *)&at, sizeof at) == 0;
    char what[16];

    (void)snprintf(what, sizeof what, "port %d", port);
    doctor_ok(what, "%s (%s)", is_taken ? "a server answers there" : "free", whose);
    if (fd != -1)
        (void)close(fd);
}

static void doctor_systemd(struct doctor *d)
{
    static const char *const units[] = {"quire-engine.service", "quire-front@1.service",
                                        "nginx.service"};
    char line[64];

    if (access("/run/systemd/system", F_OK) != 0) {
        doctor_ok("systemd", "it does not run here; quire serve needs none");
        return;
    }
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const char *command =
            serve_text(&d->tools, "systemctl is-failed %s 2>/dev/null || true", units[i]);

        if (!doctor_ask(command, line, sizeof line))
            doctor_ok(units[i], "unknown");
        else if (strcmp(line, "failed") == 0)
            doctor_mend(d, units[i], "it has failed: journalctl -u %s says why", units[i]);
        else
            doctor_ok(units[i], "%s", line);
    }
}

/* Deadlines of certificates and times in logs need a clock that is set. */
static void doctor_clock(struct doctor *d)
{
    struct timex now = {0};

    if (adjtimex(&now) != TIME_ERROR)
        doctor_ok("clock", "it is kept in time");
    else if (access("/run/systemd/system", F_OK) == 0)
        doctor_mend(d, "clock", "nothing keeps it in time: timedatectl set-ntp true");
    else
        doctor_ok("clock", "the kernel does not know whether it is kept in time");
}

/* Read the settings of the file. The exit status, or -1 to go on. */
static int doctor_read(struct doctor *d, const char *config)
{
    char option[4096];
    char *argv[] = {(char *)(uintptr_t) "quire doctor", option, NULL};
    bool exit_now = false;

    if (config == NULL && access(DOCTOR_CONFIG, R_OK) == 0)
        config = DOCTOR_CONFIG;
    (void)snprintf(option, sizeof option, "--config=%s", config == NULL ? "" : config);
    if (settings_read(&d->settings, 'E', config == NULL ? 1 : 2, argv, &exit_now) != ERR_OK)
        return 2; /* logged */
    doctor_ok("settings", "%s",
              config == NULL ? "the defaults; there is no " DOCTOR_CONFIG : config);
    return -1;
}

int quire_doctor(int argc, char **argv)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"config", required_argument, NULL, 'c'},
                                            {NULL, 0, NULL, 0}};
    static struct doctor doctor;
    const char *config = NULL;
    int opt, status;

    while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (opt == 'c') {
            config = optarg;
            continue;
        }
        (void)fputs(doctor_usage, opt == 'h' ? stdout : stderr);
        return opt == 'h' ? 0 : 2;
    }
    if (optind < argc) {
        (void)fputs(doctor_usage, stderr);
        return 2;
    }
    status = doctor_read(&doctor, config);
    if (status != -1)
        return status;
    doctor_gpus(&doctor);
    doctor_memory(&doctor);
    doctor_limits(&doctor);
    doctor_model(&doctor);
    doctor_store(&doctor);
    doctor_socket(&doctor);
    doctor_nginx(&doctor);
    doctor_port(8000, "of quire serve");
    doctor_port(443, "of the service");
    doctor_systemd(&doctor);
    doctor_clock(&doctor);
    settings_fini(&doctor.settings);
    arena_reset(&doctor.tools.arena);
    return doctor.n_wrong > 0 ? 1 : 0;
}
