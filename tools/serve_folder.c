/* SPDX-License-Identifier: Apache-2.0
 *
 * The private folder of a server in the foreground, and nginx's files in it.
 *
 * The files are those of nginx/, which the build puts into the program (nginx_files.inc), with the
 * folder's paths in the place of a service's. The folder is locked while its server lives; folders
 * of servers that were killed have no lock any more, and the next server removes them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tools/serve.h"

#define FOLDER_PREFIX   "quire-serve-"
#define FOLDER_BASE_MAX 64 /* paths of unix sockets have room for 107 bytes */
#define FOLDER_MEMORY   "/dev/shm"
#define FOLDER_BACKLOG  4096

/* Every line of the files that Makefile.am names. */
static const struct {
    const char *file, *line;
} folder_lines[] = {
#include "tools/nginx_files.inc"
};

const char *serve_find(struct serve *s, const char *name)
{
    static const char further[] = "/usr/sbin:/usr/local/sbin:/sbin:/usr/local/nginx/sbin";
    const char *path = getenv("PATH");
    char self[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    char *rest, *list, *folder;

    if (len < 0)
        len = 0;
    self[len] = '\0';
    if (strrchr(self, '/') != NULL)
        *strrchr(self, '/') = '\0';
    list = (char *)(uintptr_t)serve_text(s, "%s:%s:%s", self, path == NULL ? "" : path, further);
    while ((folder = strtok_r(list, ":", &rest)) != NULL) {
        const char *found = serve_text(s, "%s/%s", folder, name);

        if (access(found, X_OK) == 0)
            return found;
        list = NULL;
    }
    return NULL;
}

/* Try to bind the address. *port is what it got. */
static bool folder_bind(const struct addrinfo *a, int *port)
{
    struct sockaddr_storage got;
    socklen_t got_len = sizeof got;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1, rc;
    char text[8];

    if (fd == -1)
        return false;
    /* As nginx does: connections of an earlier server that are still closing do not matter. */
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    rc = bind(fd, a->ai_addr, a->ai_addrlen);
    if (rc == 0)
        rc = listen(fd, 1);
    if (rc == 0 && getsockname(fd, (struct sockaddr *)&got, &got_len) == 0 &&
        getnameinfo((struct sockaddr *)&got, got_len, NULL, 0, text, sizeof text, NI_NUMERICSERV) ==
            0)
        *port = (int)strtol(text, NULL, 10);
    rc = rc == 0 ? 0 : errno;
    (void)close(fd);
    errno = rc;
    return rc == 0;
}

bool serve_folder_address(struct serve *s)
{
    struct serve_wishes *w = &s->wishes;
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const char *scheme = w->cert[0] == '\0' ? "http" : "https", *host;
    struct addrinfo *list = NULL;
    char port[8], number[64];
    bool good;
    int rc;

    if (w->uds[0] != '\0') {
        (void)snprintf(s->url, sizeof s->url, "unix:%s", w->uds);
        return true;
    }
    (void)snprintf(port, sizeof port, "%d", w->port);
    rc = getaddrinfo(w->host, port, &hints, &list);
    if (rc != 0) {
        serve_say("--host %s: %s", w->host, gai_strerror(rc));
        return false;
    }
    good = folder_bind(list, &w->port);
    if (!good && errno == EADDRINUSE)
        serve_say("port %d of %s is in use by another program; choose another with --port", w->port,
                  w->host);
    else if (!good)
        serve_say("%s port %d: %s", w->host, w->port, strerror(errno));
    (void)getnameinfo(list->ai_addr, list->ai_addrlen, number, sizeof number, NULL, 0,
                      NI_NUMERICHOST);
    (void)snprintf(s->address, sizeof s->address, list->ai_family == AF_INET6 ? "[%s]:%d" : "%s:%d",
                   number, w->port);
    host = s->address;
    freeaddrinfo(list);
    if (strcmp(number, "0.0.0.0") == 0 || strcmp(number, "::") == 0)
        (void)snprintf(s->url, sizeof s->url, "%s://127.0.0.1:%d/v1", scheme, w->port);
    else
        (void)snprintf(s->url, sizeof s->url, "%s://%s/v1", scheme, host);
    return good;
}

static int folder_remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    (void)remove(path); /* what cannot be removed stays, and so does its folder */
    return 0;
}

static void folder_remove_all(const char *path)
{
    (void)nftw(path, folder_remove_one, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* A locked descriptor of the folder; -1: another process has the lock, or it is not our folder. */
static int folder_lock(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd == -1)
        return -1;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    (void)close(fd);
    return -1;
}

/* Remove what killed servers of this user have left in a folder. */
static void folder_sweep(const char *base)
{
    DIR *dir = opendir(base);
    const struct dirent *entry;

    if (dir == NULL)
        return;
    while ((entry = readdir(dir)) != NULL) {
        char path[FOLDER_BASE_MAX + NAME_MAX + 2];
        int fd;

        if (strncmp(entry->d_name, FOLDER_PREFIX, strlen(FOLDER_PREFIX)) != 0)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s", base, entry->d_name);
        fd = folder_lock(path);
        if (fd == -1)
            continue;
        folder_remove_all(path);
        (void)close(fd);
    }
    (void)closedir(dir);
}

/* Make a folder of mode 0700 and lock it. False, with errno. */
static bool folder_make_in(const char *base, char *path, size_t cap, int *lock)
{
    for (int i = 0; i < 16; i++) {
        (void)snprintf(path, cap, "%s/" FOLDER_PREFIX "XXXXXX", base);
        if (mkdtemp(path) == NULL)
            break;
        *lock = folder_lock(path);
        if (*lock != -1 && access(path, W_OK) == 0)
            return true;
        /* Another server swept it before it was locked. */
        if (*lock != -1)
            (void)close(*lock);
        *lock = -1;
    }
    path[0] = '\0';
    return false;
}

/* Where the folder is made. nginx takes no blanks and quotes in names. */
static const char *folder_base(void)
{
    const char *base = getenv("XDG_RUNTIME_DIR");

    if (base == NULL || base[0] != '/' || strlen(base) > FOLDER_BASE_MAX ||
        base[strspn(base, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._+-")] !=
            '\0' ||
        access(base, W_OK | X_OK) != 0)
        return "/tmp";
    return base;
}

bool serve_folder_new(char *path, size_t cap, int *lock)
{
    return folder_make_in(folder_base(), path, cap, lock);
}

void serve_folder_delete(const char *path)
{
    folder_remove_all(path);
}

/* Write a line of a file of nginx/ with the values of this server. */
static void folder_write_line(const struct serve *s, FILE *file, const char *line)
{
    const struct serve_wishes *w = &s->wishes;
    char listen[192];
    const struct {
        const char *from, *to;
    } values[] = {
        {"@RUN@", s->folder},
        {"@LISTEN@", listen},
        {"/etc/quire", s->folder},
        {"/usr/share/quire", s->folder},
        {"rate=100r/s", "rate=10000r/s"}, /* one person's server: the engine's queue is the limit */
    };
    const size_t n_values = sizeof values / sizeof values[0];

    if (w->uds[0] != '\0')
        (void)snprintf(listen, sizeof listen, "unix:%s", w->uds);
    else
        (void)snprintf(listen, sizeof listen, "%s%s", s->address,
                       w->cert[0] == '\0' ? "" : " ssl http2");
    while (*line != '\0') {
        size_t i = 0;

        while (i < n_values && strncmp(line, values[i].from, strlen(values[i].from)) != 0)
            i++;
        if (i == n_values) {
            (void)fputc(*line++, file);
            continue;
        }
        (void)fputs(values[i].to, file);
        line += strlen(values[i].from);
    }
}

/* Lines that are more than a value: the fronts, TLS, the access log. */
static void folder_write_nginx(const struct serve *s, FILE *file, const char *line)
{
    static const char front[] = "server unix:/run/quire-front/";
    const struct serve_wishes *w = &s->wishes;

    if (strstr(line, front) != NULL) {
        for (int i = 1; strstr(line, "/1.sock") != NULL && i <= w->n_fronts; i++)
            (void)fprintf(file, "    server unix:%s/front%d.sock max_fails=0;\n", s->folder, i);
        return;
    }
    if (w->cert[0] == '\0' && strncmp(line + strspn(line, " "), "ssl_", 4) == 0)
        return;
    if (w->has_no_page && strstr(line, "include @RUN@/quire-page.conf") != NULL)
        return;
    if (!w->logs_requests && strstr(line, "access_log @RUN@") != NULL)
        line = "    access_log off;\n";
    folder_write_line(s, file, line);
}

static FILE *folder_create(const struct serve *s, const char *name)
{
    char path[sizeof s->folder + 64];
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s", s->folder, name);
    file = fopen(path, "wxe");
    if (file == NULL)
        serve_say("%s: %s", path, strerror(errno));
    return file;
}

/* The folder of the page's files. */
static bool folder_make_page(const struct serve *s)
{
    char path[sizeof s->folder + 8];

    (void)snprintf(path, sizeof path, "%s/page", s->folder);
    if (mkdir(path, 0700) == 0)
        return true;
    serve_say("%s: %s", path, strerror(errno));
    return false;
}

/* Write all files of nginx/. A write that fails is noticed at the end of its file. */
static bool folder_write_files(const struct serve *s)
{
    const size_t n = sizeof folder_lines / sizeof folder_lines[0];

    for (size_t i = 0; i < n;) {
        const char *name = folder_lines[i].file;
        bool is_main = strcmp(name, "local.conf.in") == 0;
        FILE *file = folder_create(s, is_main ? "nginx.conf" : name);

        if (file == NULL)
            return false;
        if (is_main && geteuid() == 0) /* nginx would drop to a user that cannot open our sockets */
            (void)fputs("user root;\n", file);
        for (; i < n && strcmp(folder_lines[i].file, name) == 0; i++)
            folder_write_nginx(s, file, folder_lines[i].line);
        if (fclose(file) != 0) {
            serve_say("%s in %s: %s", name, s->folder, strerror(errno));
            return false;
        }
    }
    return true;
}

/* Keys and origins, in the forms that nginx/keys.map and nginx/origins.map show, and the readers of
 * /metrics. */
static bool folder_write_maps(const struct serve *s)
{
    const struct serve_wishes *w = &s->wishes;
    FILE *keys = folder_create(s, "keys.map");
    FILE *origins = folder_create(s, "origins.map");
    FILE *readers = folder_create(s, "metrics.allow");
    bool good = keys != NULL && origins != NULL && readers != NULL;

    for (int i = 0; keys != NULL && i < w->keys.n; i++)
        (void)fprintf(keys, "\"Bearer %s\" key%d;\n", w->keys.at[i], i + 1);
    if (keys != NULL && w->keys.n == 0)
        (void)fputs("\"~.\" anyone;\n", keys);
    for (int i = 0; origins != NULL && i < w->origins.n; i++)
        (void)fprintf(origins, "\"%s\" $http_origin;\n",
                      strcmp(w->origins.at[i], "*") == 0 ? "~." : w->origins.at[i]);
    for (int i = 0; readers != NULL && i < w->readers.n; i++)
        (void)fprintf(readers, "allow %s;\n", w->readers.at[i]);
    if (readers != NULL)
        good = fclose(readers) == 0 && good;
    if (keys != NULL)
        good = fclose(keys) == 0 && good;
    if (origins != NULL)
        good = fclose(origins) == 0 && good;
    return good;
}

/* nginx's file names these two in the folder. */
static bool folder_link_certificate(struct serve *s)
{
    const struct serve_wishes *w = &s->wishes;

    if (w->cert[0] == '\0')
        return true;
    if (symlink(w->cert, serve_text(s, "%s/cert.pem", s->folder)) == 0 &&
        symlink(w->cert_key, serve_text(s, "%s/cert.key", s->folder)) == 0)
        return true;
    serve_say("%s: %s", s->folder, strerror(errno));
    return false;
}

/* The fronts' sockets are made here and passed on, so that they stay open while a front is started
 * again. */
bool serve_folder_listen(struct serve *s)
{
    for (int i = 0, front = 0; i < s->n_children; i++) {
        struct serve_child *c = &s->children[i];
        struct sockaddr_un at = {.sun_family = AF_UNIX};

        if (strncmp(c->name, "front", 5) != 0)
            continue;
        (void)snprintf(at.sun_path, sizeof at.sun_path, "%.84s/front%d.sock", s->folder, ++front);
        c->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->listen_fd == -1 ||
            bind(c->listen_fd, (const struct sockaddr *)&at, sizeof at) == -1 ||
            listen(c->listen_fd, FOLDER_BACKLOG) == -1) {
            serve_say("%s: %s", at.sun_path, strerror(errno));
            return false;
        }
    }
    return true;
}

bool serve_folder_make(struct serve *s)
{
    const char *base = folder_base();

    folder_sweep(base);
    folder_sweep(FOLDER_MEMORY);
    if (!folder_make_in(base, s->folder, sizeof s->folder, &s->folder_lock)) {
        serve_say("no folder can be made in %s: %s", base, strerror(errno));
        return false;
    }
    /* Without it the engine serves, and keeps no pages in host memory. */
    (void)folder_make_in(FOLDER_MEMORY, s->memory, sizeof s->memory, &s->memory_lock);
    return folder_make_page(s) && folder_write_files(s) && folder_write_maps(s) &&
           folder_link_certificate(s);
}

void serve_folder_remove(struct serve *s)
{
    if (s->folder[0] != '\0')
        folder_remove_all(s->folder);
    if (s->memory[0] != '\0')
        folder_remove_all(s->memory);
}
