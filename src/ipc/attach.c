/* SPDX-License-Identifier: Apache-2.0
 *
 * The control socket and the passing of descriptors over it.
 *
 * Descriptors arrive with a message (SCM_RIGHTS) before its content can be checked. Every path that
 * refuses a message closes them, because a peer could otherwise fill our descriptor table. */
#include "ipc/attach.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "base/must.h"

#define ATTACH_BACKLOG     64
#define ATTACH_MESSAGE_MAX 512 /* bytes; larger than the first message of any build */
/* messages read per call: a peer that floods the socket must not occupy us */
#define ATTACH_WAKES_MAX 64
#define ATTACH_SEALS     (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

/* A path as a socket address. Socket paths have at most 107 bytes. */
static int attach_address(struct sockaddr_un *a, const char *path)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof a->sun_path) {
        log_error("attach: the socket path %s is longer than %zu bytes", path,
                  sizeof a->sun_path - 1);
        return ERR_INVALID;
    }
    (void)snprintf(a->sun_path, sizeof a->sun_path, "%s", path);
    return ERR_OK;
}

void attach_path_of(char *out, size_t cap, const char *path, int idx)
{
    const char *last = strrchr(path, '/');
    size_t len = last == NULL ? 0 : (size_t)(last - path) + 1;

    (void)snprintf(out, cap, "%.*s%d/%s", (int)len, path, idx, path + len);
}

/* Non-blocking also for connect(): a hung peer lets its backlog fill, and a blocking connect()
 * would then wait without end. */
static int attach_socket(void)
{
    return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Messages. attach_send() and attach_receive_any() carry one message and its descriptors, whatever
 * they are; attach_receive() adds the rules for a first message. The unions give the control buffer
 * the alignment of struct cmsghdr, which the CMSG macros require. */

/* Send one message with up to ATTACH_FDS descriptors. */
static int attach_send(int fd, const void *bytes, size_t len, const int *fds, int n_fds)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * ATTACH_FDS)];
    } control = {0};
    struct iovec iov = {.iov_len = len};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n;

    must(n_fds >= 0 && n_fds <= ATTACH_FDS);
    memcpy(&iov.iov_base, &bytes, sizeof bytes); /* msghdr wants a pointer that is not const;
                                                  * sendmsg() only reads */
    if (n_fds > 0) {
        struct cmsghdr *cmsg;

        message.msg_control = control.bytes;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)n_fds);
        cmsg = CMSG_FIRSTHDR(&message);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)n_fds);
        memcpy(CMSG_DATA(cmsg), fds, sizeof(int) * (size_t)n_fds);
    }
    do
        n = sendmsg(fd, &message, MSG_NOSIGNAL);
    while (n == -1 && errno == EINTR);
    if (n == -1 && (errno == EAGAIN || errno == ETOOMANYREFS))
        return ERR_AGAIN;
    if (n == (ssize_t)len)
        return ERR_OK;
    return ERR_CLIENT_GONE;
}

/* Receive one message of up to len bytes and up to ATTACH_FDS + 1 descriptors. Returns the length
 * of the message, or an error. The *n_got descriptors in got belong to the caller; *n_got is -1
 * when descriptors were sent but this process had no free ones for them. */
static int attach_receive_any(int fd, void *bytes, size_t len, int *got, int *n_got)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * (ATTACH_FDS + 1))];
    } control = {0};
    struct iovec iov = {.iov_base = bytes, .iov_len = len};
    /* Not sizeof control: the kernel would use its padding for one more descriptor. */
    struct msghdr message = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_LEN(sizeof(int) * (ATTACH_FDS + 1))};
    bool lacks;
    ssize_t n;

    *n_got = 0;
    do
        n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    while (n == -1 && errno == EINTR);
    if (n == -1)
        return errno == EAGAIN ? ERR_AGAIN : ERR_CLIENT_GONE;
    if (n == 0)
        return ERR_CLIENT_GONE;
    for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&message); cmsg != NULL;
         cmsg = CMSG_NXTHDR(&message, cmsg)) {
        if (cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS) {
            *n_got = (int)((cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(got, CMSG_DATA(cmsg), sizeof(int) * (size_t)*n_got);
        }
    }
    /* Something was cut off. Either the message is longer than any of ours, or carries more
     * descriptors than we accept: corrupt. Or there was room, and the kernel could not give us
     * descriptors: then our own table is full, and the peer has done nothing wrong. */
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
        return (int)n;
    lacks =
        (message.msg_flags & MSG_TRUNC) == 0 && *n_got <= ATTACH_FDS; /* room was left in control */
    for (int i = 0; i < *n_got; i++)
        (void)close(got[i]);
    if (lacks)
        *n_got = -1;
    else
        *n_got = 0;
    if (lacks)
        return (int)n;
    return ERR_CORRUPT;
}

/* Is this the first message of another build? It may have any length. */
static bool attach_is_foreign(const void *bytes, size_t len)
{
    uint64_t begin[2]; /* magic, layout */

    if (len < sizeof begin)
        return false;
    memcpy(begin, bytes, sizeof begin);
    if (begin[0] != WIRE_MAGIC || begin[1] == wire_layout())
        return false;
    log_warn("attach: the peer's layout is %016llx, ours is %016llx: quire-engine and quire-front "
             "are of different builds; install the same version of both",
             (unsigned long long)begin[1], (unsigned long long)wire_layout());
    return true;
}

/* Receive a first message of exactly len bytes and n_fds descriptors. ERR_NOT_FOUND: a welcome
 * without descriptors, which carries an error; ERR_VERSION (logged); ERR_LIMIT: no free descriptors
 * here. */
static int attach_receive(int fd, void *bytes, size_t len, int *fds, int n_fds)
{
    char message[ATTACH_MESSAGE_MAX];
    int got[ATTACH_FDS + 1];
    bool foreign;
    int n_got;
    int n = attach_receive_any(fd, message, sizeof message, got, &n_got);

    must(len <= ATTACH_MESSAGE_MAX);
    must(n_fds >= 0 && n_fds <= ATTACH_FDS);
    if (n < 0)
        return n;
    foreign = attach_is_foreign(message, (size_t)n);
    if ((size_t)n == len)
        memcpy(bytes, message, len);
    if ((size_t)n == len && n_got == n_fds && !foreign) {
        if (n_fds > 0)
            memcpy(fds, got, sizeof(int) * (size_t)n_fds);
        return ERR_OK;
    }
    for (int i = 0; i < n_got; i++)
        (void)close(got[i]);
    for (int i = 0; i < n_fds; i++)
        fds[i] = -1;
    if (foreign)
        return ERR_VERSION;
    if (n_got == -1)
        return ERR_LIMIT;
    if ((size_t)n == len && n_got == 0)
        return ERR_NOT_FOUND;
    return ERR_CORRUPT;
}

/* Listening. A socket file outlives its process, so the engine must decide whether the file at its
 * path is in use. connect() decides it: only a refused connection proves that no process
 * listens. */
int attach_clear(const char *path)
{
    struct sockaddr_un address;
    struct stat st;
    int rc = attach_address(&address, path);
    int probe, error;

    if (rc != ERR_OK || lstat(path, &st) == -1)
        return rc;
    if (!S_ISSOCK(st.st_mode)) {
        log_error("attach: %s exists and is not a socket; remove it, or choose another path", path);
        return ERR_INVALID;
    }
    probe = attach_socket();
    error =
        probe == -1 || connect(probe, (struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    if (probe != -1)
        (void)close(probe);
    /* EAGAIN: its backlog is full. EPROTOTYPE: a socket of another type, such as a front's. */
    if (error == 0 || error == EAGAIN || error == EPROTOTYPE) {
        log_error("attach: another process listens on %s; stop it, or choose another path", path);
        return ERR_IN_USE;
    }
    if (error == ECONNREFUSED)
        (void)unlink(path); /* its process is dead */
    return ERR_OK;
}

/* Listen at the path. Its mode allows the group, which fronts and observers belong to. */
int attach_listen(const char *path, int *fd)
{
    struct sockaddr_un address;
    int sock;
    int rc = attach_address(&address, path);

    if (rc == ERR_OK)
        rc = attach_clear(path);
    if (rc != ERR_OK)
        return rc;
    sock = attach_socket();
    if (sock == -1 || bind(sock, (struct sockaddr *)&address, sizeof address) == -1 ||
        chmod(path, 0660) == -1 || listen(sock, ATTACH_BACKLOG) == -1) {
        log_error("attach: cannot listen at %s: %s", path, strerror(errno));
        if (sock != -1)
            (void)close(sock);
        return ERR_IO;
    }
    *fd = sock;
    return ERR_OK;
}

int attach_adopt(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    int type = 0;
    socklen_t len = sizeof type;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == -1 || type != SOCK_SEQPACKET) {
        log_error("attach: the socket that was passed is not of the type SOCK_SEQPACKET "
                  "(ListenSequentialPacket= in its unit)");
        return ERR_INVALID;
    }
    if (flags == -1 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) == -1 ||
        fcntl(fd, F_SETFD, FD_CLOEXEC) == -1)
        return ERR_IO;
    return ERR_OK;
}

void attach_turn_away(int listen_fd, int error)
{
    struct wire_welcome welcome = {.magic = WIRE_MAGIC, .layout = wire_layout(), .error = error};
    int fd;

    while (listen_fd != -1 &&
           (fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) != -1) {
        (void)!attach_send_welcome(fd, &welcome, NULL); /* the peer may have gone */
        (void)close(fd);
    }
}

/* Accept a connection, and find out which process it is. */
int attach_accept(struct listener *listener, int *fd, pid_t *pid, uid_t *uid)
{
    struct ucred who;
    socklen_t len = sizeof who;
    int sock;
    int rc = listener_accept(listener, SOCK_NONBLOCK | SOCK_CLOEXEC, &sock);

    if (rc != ERR_OK)
        return rc;
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) == -1) {
        (void)close(sock);
        return ERR_AGAIN;
    }
    *fd = sock;
    *pid = who.pid;
    *uid = who.uid;
    return ERR_OK;
}

/* The engine's end: hello, welcome, uploads. */
int attach_read_hello(int fd, enum wire_visitor *visitor)
{
    struct wire_hello hello;
    int rc = attach_receive(fd, &hello, sizeof hello, NULL, 0);

    if (rc != ERR_OK)
        return rc == ERR_NOT_FOUND ? ERR_CORRUPT : rc;
    if (hello.magic != WIRE_MAGIC)
        return ERR_CORRUPT;
    /* A number that is unknown counts as a front. */
    if (hello.visitor == WIRE_OBSERVER || hello.visitor == WIRE_FRONT_CHOOSES)
        *visitor = (enum wire_visitor)hello.visitor;
    else
        *visitor = WIRE_FRONT;
    return ERR_OK;
}

/* Read messages until one is an upload. Returns 1 with it, 0 when none has come, or an error. A
 * single byte is only a wake-up and is skipped. */
int attach_read_upload(int fd, struct wire_upload *upload, int *uploaded)
{
    for (int i = 0; i < ATTACH_WAKES_MAX; i++) {
        int got[ATTACH_FDS + 1];
        int n_got;
        int n = attach_receive_any(fd, upload, sizeof *upload, got, &n_got);

        if (n == ERR_AGAIN)
            return 0;
        if (n < 0)
            return n;
        if (n == (int)sizeof *upload && (n_got == 1 || n_got == -1)) {
            if (n_got == 1)
                *uploaded = got[0];
            else
                *uploaded = -1;
            return 1;
        }
        for (int f = 0; f < n_got; f++)
            (void)close(got[f]);
        if (n != 1 || n_got != 0)
            return ERR_CORRUPT;
    }
    return 0; /* the rest is read next time */
}

/* Map an upload, read-only. */
int attach_map_upload(const struct wire_upload *upload, int uploaded, const void **bytes)
{
    /* The seals guarantee that the front can neither change nor shrink the memory that we map. */
    int seals = fcntl(uploaded, F_GET_SEALS);
    void *p = MAP_FAILED;
    struct stat st;
    int rc = ERR_CORRUPT;

    if (seals != -1 && (seals & ATTACH_SEALS) == ATTACH_SEALS && fstat(uploaded, &st) == 0 &&
        st.st_size > 0 && (uint64_t)st.st_size == upload->bytes) {
        p = mmap(NULL, (size_t)upload->bytes, PROT_READ, MAP_PRIVATE, uploaded, 0);
        if (p == MAP_FAILED)
            rc = ERR_NO_MEMORY;
        else
            rc = ERR_OK;
    }
    (void)close(uploaded);
    if (rc == ERR_OK)
        *bytes = p;
    return rc;
}

/* Refuse an upload that does not fit in its place. */
int attach_refuse_upload(int uploaded)
{
    (void)close(uploaded);
    return ERR_CORRUPT;
}

/* The front's end. An upload is written once into a sealed memfd and can be sent to several engines
 * in turn. */
int attach_seal(const void *bytes, size_t len, int *sealed)
{
    int fd = memfd_create("quire-upload", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t done = 0;

    while (fd != -1 && done < len) {
        ssize_t n = write(fd, (const char *)bytes + done, len - done);

        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    /* The last seal forbids further ones, so that a receiver can rely on these. */
    if (fd != -1 && done == len && fcntl(fd, F_ADD_SEALS, ATTACH_SEALS | F_SEAL_SEAL) == 0) {
        *sealed = fd;
        return ERR_OK;
    }
    log_error("attach: cannot put %zu bytes into shared memory for the engine: %s", len,
              strerror(errno));
    if (fd != -1)
        (void)close(fd);
    return ERR_NO_MEMORY;
}

/* Send a sealed memfd to the engine. */
int attach_upload(int fd, const struct wire_upload *upload, int sealed)
{
    int rc = attach_send(fd, upload, sizeof *upload, &sealed, 1);

    if (rc == ERR_CLIENT_GONE)
        return ERR_ENGINE_GONE;
    return rc;
}

/* Send the welcome with the lane's descriptors; fds NULL: with an error. */
int attach_send_welcome(int fd, const struct wire_welcome *w, const int *fds)
{
    return attach_send(fd, w, sizeof *w, fds, fds == NULL ? 0 : ATTACH_FDS);
}

/* Has this process free descriptors for the socket s and for those of the welcome? Checked before
 * the hello, because otherwise the engine would make a lane in vain. Only a hint: other threads may
 * take the descriptors in the meantime. */
static bool attach_has_room(int s)
{
    int spare[ATTACH_FDS];
    int n = 0;

    while (s != -1 && n < ATTACH_FDS && (spare[n] = fcntl(s, F_DUPFD_CLOEXEC, 0)) != -1)
        n++;
    for (int i = 0; i < n; i++)
        (void)close(spare[i]);
    return s != -1 && n == ATTACH_FDS;
}

/* Connect and send the hello. An engine without a free lane answers and hangs up before it reads
 * the hello: then sending may fail although the answer can be read. */
int attach_call(const char *path, enum wire_visitor visitor, int *fd)
{
    struct wire_hello hello = {.magic = WIRE_MAGIC, .layout = wire_layout(), .visitor = visitor};
    struct sockaddr_un address;
    int sock;
    int rc = attach_address(&address, path);

    if (rc != ERR_OK)
        return rc;
    sock = attach_socket();
    if (!attach_has_room(sock)) {
        if (sock != -1)
            (void)close(sock);
        return ERR_LIMIT;
    }
    if (connect(sock, (struct sockaddr *)&address, sizeof address) == -1 ||
        attach_send(sock, &hello, sizeof hello, NULL, 0) == ERR_AGAIN) {
        (void)close(sock);
        return ERR_ENGINE_GONE;
    }
    *fd = sock;
    return ERR_OK;
}

/* A welcome without descriptors carries an error; any other end of the conversation means that
 * there is no engine to talk to. The first call that reads after the engine has hung up may fail
 * although the answer is there. */
int attach_answer(int fd, int timeout_ms, struct wire_welcome *w, int *fds)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    int rc;

    if (poll(&poll_fd, 1, timeout_ms) != 1)
        return ERR_AGAIN;
    rc = attach_receive(fd, w, sizeof *w, fds, ATTACH_FDS);
    if (rc == ERR_CLIENT_GONE)
        rc = attach_receive(fd, w, sizeof *w, fds, ATTACH_FDS);
    if (rc == ERR_NOT_FOUND)
        rc = w->error != ERR_OK ? w->error : ERR_CORRUPT;
    else if (rc == ERR_CLIENT_GONE || rc == ERR_AGAIN)
        rc = ERR_ENGINE_GONE;
    return rc;
}

/* Read the statistics page as an observer. The connection is closed at once; the mapping stays. */
int attach_observe(const char *path, int timeout_ms, struct wire_welcome *w,
                   const struct wire_stats **stats)
{
    int fd, fds[ATTACH_FDS];
    int rc = attach_call(path, WIRE_OBSERVER, &fd);
    void *page;

    if (rc != ERR_OK)
        return rc;
    rc = attach_answer(fd, timeout_ms, w, fds);
    if (rc != ERR_OK) {
        (void)close(fd);
        return rc == ERR_AGAIN ? ERR_ENGINE_GONE : rc;
    }
    page = mmap(NULL, sizeof **stats, PROT_READ, MAP_SHARED, fds[ATTACH_STATS], 0);
    for (int i = 0; i < ATTACH_FDS; i++)
        (void)close(fds[i]);
    (void)close(fd);
    if (page == MAP_FAILED)
        return ERR_NO_MEMORY;
    *stats = page;
    return ERR_OK;
}
