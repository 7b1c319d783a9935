/* SPDX-License-Identifier: Apache-2.0
 *
 * A load generator for the fronts: N connections, each with one request after another, through
 * nginx (HTTP, kept alive) or straight to the fronts' sockets (FastCGI, a connection a request).
 * Beside mock_engine it knows when each token was put into the ring, and so how long it took.
 *
 *   load http|fcgi SOCKET[,SOCKET] completions|chat|health whole|stream N MAX-TOKENS STEP-US
 *        WARM-S SECONDS KEYS WORD-BYTES TIMES-FILE NAME=PID[,PID] ...
 *
 * Prints one line of NAME=VALUE: requests, tokens and events a second, microseconds from sending
 * to the whole answer (request) and from a token's emission to its arrival (token), and seconds of
 * processor time that each named group of processes, this one and the whole machine (busy) took, a
 * second.
 * Exit status 1 when an answer was not as it should be. One thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "tests/bench/mock.h"

#define LOAD_READ_BYTES (64u << 10)
#define LOAD_EVENTS     256
#define LOAD_GROUPS     8
#define LOAD_PIDS       16
#define LOAD_BUCKET_US  10     /* of the histograms */
#define LOAD_BUCKETS    200000 /* 2 s; what takes longer counts as that */

struct histogram {
    uint32_t counts[LOAD_BUCKETS];
    uint64_t n;
};

/* A connection, and the answer that is under way on it. */
struct conn {
    int fd;
    uint32_t row;    /* of the times, and the request's seed */
    struct buf in;   /* bytes that are not taken apart yet */
    struct buf text; /* of the body, events not yet complete */
    uint64_t sent_us;
    uint32_t n_said;
    bool head;     /* the head was read */
    bool chunked;  /* else left is the body's rest */
    bool close;    /* after this answer */
    bool complete; /* the answer is whole */
    bool done;     /* [DONE] came */
    size_t left;   /* bytes of the body or of the chunk */
};

struct group {
    const char *name;
    clockid_t clocks[LOAD_PIDS];
    int n;
    double from_s;
};

struct load {
    bool fcgi, stream, chat, health;
    char *paths[2];
    int n_paths;
    int n;
    int max_tokens;
    int n_keys;
    size_t word_bytes;
    struct mock_times *times;
    int epoll_fd;
    struct conn *conns; /* [n] */
    uint64_t n_asked;
    bool measuring;
    uint64_t n_requests, n_tokens, n_events, n_errors;
    struct histogram request_us, token_us;
    struct group groups[LOAD_GROUPS];
    int n_groups;
    char bytes[LOAD_READ_BYTES];
};

/* --- figures ------------------------------------------------------------------------------ */

static void histogram_add(struct histogram *h, uint64_t us)
{
    uint64_t i = us / LOAD_BUCKET_US;

    h->counts[i < LOAD_BUCKETS ? i : LOAD_BUCKETS - 1]++;
    h->n++;
}

static unsigned histogram_us(const struct histogram *h, double share)
{
    uint64_t want = (uint64_t)((double)h->n * share);
    uint64_t seen = 0;

    for (unsigned i = 0; i < LOAD_BUCKETS; i++) {
        seen += h->counts[i];
        if (seen > want)
            return (i + 1) * LOAD_BUCKET_US;
    }
    return 0;
}

static double load_clock_s(clockid_t clock)
{
    struct timespec t = {0};

    (void)clock_gettime(clock, &t); /* a process that has gone has used nothing */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Processor time of the whole machine, so that a run beside another load is noticed. */
static double load_busy_s(void)
{
    unsigned long long t[8] = {0}; /* user nice system idle iowait irq softirq steal */
    FILE *f = fopen("/proc/stat", "r");
    int n = 0;

    if (f != NULL) {
        n = fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &t[0], &t[1], &t[2], &t[3],
                   &t[4], &t[5], &t[6], &t[7]);
        (void)fclose(f);
    }
    return n < 8 ? 0
                 : (double)(t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
}

static double group_s(const struct group *g)
{
    double s = 0;

    for (int i = 0; i < g->n; i++)
        s += load_clock_s(g->clocks[i]);
    return s;
}

/* NAME=PID[,PID] */
static void load_add_group(struct load *l, char *text)
{
    struct group *g = &l->groups[l->n_groups++];
    char *at = strchr(text, '=');

    g->name = text;
    while (at != NULL && g->n < LOAD_PIDS) {
        *at = '\0';
        if (clock_getcpuclockid((pid_t)strtol(at + 1, NULL, 10), &g->clocks[g->n]) == 0)
            g->n++;
        at = strchr(at + 1, ',');
    }
}

static void load_error(struct load *l, const char *what, const struct conn *c)
{
    l->n_errors++;
    if (l->n_errors <= 3)
        (void)fprintf(stderr, "load: %s: %.300s\n", what,
                      c->text.len > 0 ? c->text.bytes
                      : c->in.len > 0 ? c->in.bytes
                                      : "");
}

/* --- requests ----------------------------------------------------------------------------- */

static void load_body(const struct load *l, const struct conn *c, struct buf *b)
{
    if (l->health)
        return;
    if (l->chat)
        buf_add_text(b, "{\"model\":\"demo\",\"messages\":[{\"role\":\"user\",\"content\":");
    else
        buf_add_text(b, "{\"model\":\"demo\",\"prompt\":");
    buf_add_text(b, "\"Say in a few words what the weather will be like in the valley "
                    "tomorrow, and whether we should go up the hill.\"");
    buf_add_text(b, l->chat ? "}]" : "");
    buf_printf(b, ",\"max_tokens\":%d,\"seed\":%u%s}", l->max_tokens, c->row,
               l->stream ? ",\"stream\":true" : "");
}

static const char *load_path(const struct load *l)
{
    return l->health ? "/health" : l->chat ? "/v1/chat/completions" : "/v1/completions";
}

static void load_http(const struct load *l, const struct buf *body, struct buf *out)
{
    buf_printf(out,
               "%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-test-%d\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
               l->health ? "GET" : "POST", load_path(l), (int)(l->n_asked % (uint64_t)l->n_keys),
               body->len);
    buf_add(out, body->len == 0 ? "" : body->bytes, body->len);
}

static void load_record(struct buf *out, int type, const char *bytes, size_t len)
{
    const char head[8] = {1, (char)type, 0, 1, (char)(len >> 8), (char)len, 0, 0};

    buf_add(out, head, sizeof head);
    buf_add(out, bytes, len);
}

static void load_param(struct buf *out, const char *name, const char *value)
{
    buf_add_byte(out, (char)strlen(name));
    buf_add_byte(out, (char)strlen(value));
    buf_add_text(out, name);
    buf_add_text(out, value);
}

/* What nginx sends with nginx/quire-fastcgi.conf. */
static void load_fcgi(const struct load *l, const struct buf *body, struct buf *out)
{
    struct buf params = {0};
    char text[40];

    load_param(&params, "REQUEST_METHOD", l->health ? "GET" : "POST");
    load_param(&params, "REQUEST_URI", load_path(l));
    load_param(&params, "CONTENT_TYPE", "application/json");
    (void)snprintf(text, sizeof text, "%zu", body->len);
    load_param(&params, "CONTENT_LENGTH", text);
    load_param(&params, "HTTP_AUTHORIZATION", "");
    load_param(&params, "QUIRE_TENANT", "tenant");
    (void)snprintf(text, sizeof text, "%032llx", (unsigned long long)l->n_asked);
    load_param(&params, "QUIRE_REQUEST_ID", text);
    load_record(out, 1, "\0\1\0\0\0\0\0\0", 8); /* begin: a responder */
    load_record(out, 4, params.bytes, params.len);
    load_record(out, 4, "", 0);
    if (body->len > 0)
        load_record(out, 5, body->bytes, body->len);
    load_record(out, 5, "", 0);
    buf_fini(&params);
}

static int load_connect(const struct load *l, const struct conn *c)
{
    const char *path = l->paths[(l->n_asked + c->row) % (uint64_t)l->n_paths];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (fd == -1)
        return -1;
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == -1 ||
        fcntl(fd, F_SETFL, O_NONBLOCK) == -1) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* Send c's next request, over a new connection when it has none. */
static void load_ask(struct load *l, struct conn *c)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
    struct buf body = {0}, out = {0};

    if (c->fd == -1) {
        c->fd = load_connect(l, c);
        if (c->fd == -1 || epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, c->fd, &ev) == -1) {
            (void)fprintf(stderr, "load: connect: %s\n", strerror(errno));
            exit(2);
        }
    }
    buf_clear(&c->in);
    buf_clear(&c->text);
    c->n_said = 0;
    c->head = c->chunked = c->close = c->complete = c->done = false;
    c->left = 0;
    load_body(l, c, &body);
    if (l->fcgi)
        load_fcgi(l, &body, &out);
    else
        load_http(l, &body, &out);
    l->n_asked++;
    c->sent_us = clock_us();
    if (send(c->fd, out.bytes, out.len, MSG_NOSIGNAL) != (ssize_t)out.len)
        load_error(l, "the request was not taken", c);
    buf_fini(&body);
    buf_fini(&out);
}

/* --- answers ------------------------------------------------------------------------------ */

static void load_token_times(struct load *l, struct conn *c, size_t n, uint64_t now_us)
{
    for (size_t i = 0; i < n; i++, c->n_said++) {
        uint64_t put_us = atomic_load_explicit(&l->times->put_us[c->row][c->n_said % MOCK_TOKENS],
                                               memory_order_relaxed);

        if (l->measuring)
            histogram_add(&l->token_us, now_us > put_us ? now_us - put_us : 0);
    }
    if (l->measuring)
        l->n_tokens += n;
}

/* Words have one length and need no escapes, so a text's length counts them. */
static void load_count(struct load *l, struct conn *c, const char *text, size_t len,
                       uint64_t now_us)
{
    const char *name = !l->chat ? "\"text\":\"" : "\"content\":\"";
    const char *at = memmem(text, len, name, strlen(name));
    const char *end;

    if (at == NULL)
        return;
    at += strlen(name);
    end = memchr(at, '"', (size_t)(text + len - at));
    if (end != NULL && end > at)
        load_token_times(l, c, (size_t)(end - at) / l->word_bytes, now_us);
}

/* Take whole events off the text. */
static void load_take_events(struct load *l, struct conn *c, uint64_t now_us)
{
    size_t from = 0;

    while (from < c->text.len) {
        const char *at = c->text.bytes + from;
        const char *end = memmem(at, c->text.len - from, "\n\n", 2);

        if (end == NULL)
            break;
        if (memcmp(at, "data: {", 7) == 0) {
            load_count(l, c, at, (size_t)(end - at), now_us);
            l->n_events += l->measuring;
        } else if (memcmp(at, "data: [DONE]", 12) == 0) {
            c->done = true;
        }
        from = (size_t)(end + 2 - c->text.bytes);
    }
    memmove(c->text.bytes, c->text.bytes + from, c->text.len - from);
    c->text.len -= from;
}

static void load_body_bytes(struct load *l, struct conn *c, const char *bytes, size_t len,
                            uint64_t now_us)
{
    buf_add(&c->text, bytes, len);
    if (l->stream && len > 0)
        load_take_events(l, c, now_us);
}

/* Read an HTTP or a CGI head at bytes. Its length; 0: not all of it is there. */
static size_t load_head(struct load *l, struct conn *c, const char *bytes, size_t len)
{
    const char *end = memmem(bytes, len, "\r\n\r\n", 4);
    const char *at;
    size_t head_len;

    if (end == NULL)
        return 0;
    head_len = (size_t)(end + 4 - bytes);
    c->head = true;
    if (memmem(bytes, head_len < 16 ? head_len : 16, " 200", 4) == NULL)
        load_error(l, "not 200", c);
    c->chunked = memmem(bytes, head_len, "chunked", 7) != NULL;
    c->close = memmem(bytes, head_len, "Connection: close", 17) != NULL;
    at = memmem(bytes, head_len, "Content-Length: ", 16);
    if (at != NULL)
        c->left = strtoul(at + 16, NULL, 10);
    return head_len;
}

/* The body of an HTTP answer, from `from` on; where what is left of in begins. */
static size_t load_http_body(struct load *l, struct conn *c, size_t from, uint64_t now_us)
{
    while (from < c->in.len && !c->complete) {
        const char *at = c->in.bytes + from;
        size_t n = c->in.len - from;
        const char *line;

        if (c->left > 0) {
            n = n < c->left ? n : c->left;
            load_body_bytes(l, c, at, n, now_us);
            c->left -= n;
            from += n;
            c->complete = !c->chunked && c->left == 0;
            continue;
        }
        if (n >= 2 && memcmp(at, "\r\n", 2) == 0) { /* behind a chunk */
            from += 2;
            continue;
        }
        line = memmem(at, n, "\r\n", 2);
        if (line == NULL)
            break;
        c->left = strtoul(at, NULL, 16);
        if (c->left == 0 && n < (size_t)(line - at) + 4)
            break; /* the empty line behind the last chunk */
        from += (size_t)(line - at) + 2;
        c->complete = c->left == 0;
    }
    return from;
}

static void load_take_http(struct load *l, struct conn *c, uint64_t now_us)
{
    size_t from = 0;

    if (!c->head)
        from = load_head(l, c, c->in.bytes, c->in.len);
    if (c->head)
        from = load_http_body(l, c, from, now_us);
    memmove(c->in.bytes, c->in.bytes + from, c->in.len - from);
    c->in.len -= from;
}

static void load_take_fcgi(struct load *l, struct conn *c, uint64_t now_us)
{
    size_t from = 0;

    while (c->in.len - from >= 8) {
        const unsigned char *r = (const unsigned char *)c->in.bytes + from;
        size_t len = (size_t)r[4] << 8 | r[5];
        size_t whole = 8 + len + r[6];
        size_t head = 0;

        if (c->in.len - from < whole)
            break;
        if (r[1] == 6 && !c->head) /* the head comes in one record */
            head = load_head(l, c, (const char *)r + 8, len);
        if (r[1] == 6)
            load_body_bytes(l, c, (const char *)r + 8 + head, len - head, now_us);
        c->complete = c->complete || r[1] == 3;
        from += whole;
    }
    memmove(c->in.bytes, c->in.bytes + from, c->in.len - from);
    c->in.len -= from;
}

static void load_hang_up(struct conn *c)
{
    (void)close(c->fd); /* leaves epoll as well */
    c->fd = -1;
}

static void load_answered(struct load *l, struct conn *c, uint64_t now_us)
{
    if (!l->stream && !l->health)
        load_count(l, c, c->text.bytes, c->text.len, now_us);
    if ((l->stream && !c->done) || (!l->health && c->n_said != (uint32_t)l->max_tokens))
        load_error(l, "the answer is not whole", c);
    if (l->measuring) {
        l->n_requests++;
        histogram_add(&l->request_us, now_us - c->sent_us);
    }
    if (l->fcgi || c->close)
        load_hang_up(c);
    load_ask(l, c);
}

static void load_readable(struct load *l, struct conn *c)
{
    ssize_t n = recv(c->fd, l->bytes, sizeof l->bytes, 0);
    uint64_t now_us = clock_us();

    if (n == -1 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        load_error(l, "the connection ended", c);
        load_hang_up(c);
        load_ask(l, c);
        return;
    }
    buf_add(&c->in, l->bytes, (size_t)n);
    if (l->fcgi)
        load_take_fcgi(l, c, now_us);
    else
        load_take_http(l, c, now_us);
    if (c->complete)
        load_answered(l, c, now_us);
}

/* --- the run ------------------------------------------------------------------------------ */

static void load_run(struct load *l, uint64_t until_us)
{
    while (clock_us() < until_us) {
        struct epoll_event ev[LOAD_EVENTS];
        int n = epoll_wait(l->epoll_fd, ev, LOAD_EVENTS, 10);

        for (int i = 0; i < n; i++)
            load_readable(l, ev[i].data.ptr);
    }
}

static void load_measure(struct load *l, uint64_t us)
{
    uint64_t from_us = clock_us();
    double own_s = load_clock_s(CLOCK_PROCESS_CPUTIME_ID);
    double busy_s = load_busy_s();
    double s;

    for (int i = 0; i < l->n_groups; i++)
        l->groups[i].from_s = group_s(&l->groups[i]);
    l->measuring = true;
    load_run(l, from_us + us);
    l->measuring = false;
    s = (double)(clock_us() - from_us) * 1e-6;
    for (int i = 0; i < l->n_groups; i++)
        (void)printf("%s=%.3f ", l->groups[i].name,
                     (group_s(&l->groups[i]) - l->groups[i].from_s) / s);
    (void)printf("busy=%.3f ", (load_busy_s() - busy_s) / s);
    (void)printf("client=%.3f requests_s=%.1f tokens_s=%.1f events_s=%.1f request_p50_us=%u "
                 "request_p99_us=%u token_p50_us=%u token_p99_us=%u errors=%llu\n",
                 (load_clock_s(CLOCK_PROCESS_CPUTIME_ID) - own_s) / s, (double)l->n_requests / s,
                 (double)l->n_tokens / s, (double)l->n_events / s,
                 histogram_us(&l->request_us, 0.5), histogram_us(&l->request_us, 0.99),
                 histogram_us(&l->token_us, 0.5), histogram_us(&l->token_us, 0.99),
                 (unsigned long long)l->n_errors);
}

static bool load_open(struct load *l, char **argv)
{
    int fd = open(argv[12], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    char *comma = strchr(argv[2], ',');

    l->fcgi = strcmp(argv[1], "fcgi") == 0;
    l->chat = strcmp(argv[3], "chat") == 0;
    l->health = strcmp(argv[3], "health") == 0;
    l->stream = strcmp(argv[4], "stream") == 0;
    l->paths[l->n_paths++] = argv[2];
    if (comma != NULL) {
        *comma = '\0';
        l->paths[l->n_paths++] = comma + 1;
    }
    l->n = (int)strtol(argv[5], NULL, 10);
    l->max_tokens = (int)strtol(argv[6], NULL, 10);
    l->n_keys = (int)strtol(argv[10], NULL, 10);
    l->word_bytes = strtoul(argv[11], NULL, 10);
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->n < 1 || l->n > MOCK_ROWS || l->max_tokens < 1 || l->max_tokens > MOCK_TOKENS ||
        l->n_keys < 1 || l->word_bytes < 1)
        return false;
    l->conns = mem_zalloc_array((size_t)l->n, sizeof *l->conns);
    if (fd == -1 || l->epoll_fd == -1 || l->conns == NULL || ftruncate(fd, sizeof *l->times) == -1)
        return false;
    l->times = mmap(NULL, sizeof *l->times, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (l->times == MAP_FAILED)
        return false;
    atomic_store(&l->times->step_us, strtoull(argv[7], NULL, 10));
    return true;
}

int main(int argc, char **argv)
{
    struct load *l = mem_zalloc(sizeof *l);

    if (argc < 13 || argc > 13 + LOAD_GROUPS || l == NULL || !load_open(l, argv)) {
        (void)fprintf(stderr, "load: its head comment says how it is called\n");
        return 2;
    }
    for (int i = 13; i < argc; i++)
        load_add_group(l, argv[i]);
    for (int i = 0; i < l->n; i++) {
        l->conns[i].fd = -1;
        l->conns[i].row = (uint32_t)i;
        load_ask(l, &l->conns[i]);
    }
    load_run(l, clock_us() + (uint64_t)(strtod(argv[8], NULL) * 1e6));
    load_measure(l, (uint64_t)(strtod(argv[9], NULL) * 1e6));
    return l->n_errors > 0;
}
