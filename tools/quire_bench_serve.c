/* SPDX-License-Identifier: Apache-2.0
 *
 * quire bench serve: load on a server with OpenAI's API, its own or another's, and what clients
 * saw of it. Options are those of `vllm bench serve` where they have a meaning here.
 *
 * One thread: requests are sent when they are due and a stream is free, and answers are read as
 * they come (epoll). A connection per request, as most clients of such APIs have it. What this
 * program itself takes is printed: its share of a core, and the longest time for which a part of an
 * answer lay readable while others were read. */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/must.h"
#include "tools/ask.h"
#include "tools/figures.h"
#include "tools/quire.h"
#include "tools/stream.h"
#include "tools/work.h"

#define SERVE_EVENTS     256
#define SERVE_POLL_MS    100 /* the interruption is looked at so often */
#define SERVE_STREAMS    16384
#define SERVE_SPARE_FDS  16
#define SERVE_NUMBER_MAX 100000000

struct serve_bench {
    struct ask ask; /* address, model, key, further fields */
    struct work_options of_work;
    struct figures_options of_figures;
    const char *backend, *endpoint, *label, *result;
    const char *host, *port;
    const char *result_dir; /* of a file that is named by vLLM's rule; NULL: none */
    bool saves, ignores_eos;
    double temperature;
    int max_concurrency, n_warmups;

    struct work work;
    struct sockaddr_storage address;
    socklen_t address_len;
    struct stream *streams; /* [n_streams] */
    int n_streams, n_open;
    struct stream_result *results; /* [work.n] */
    int epoll_fd;
    struct figures_run run;
};

static volatile sig_atomic_t serve_stop;

static void serve_interrupt(int sig)
{
    (void)sig;
    serve_stop = 1;
}

/* --- requests ----------------------------------------------------------------------------- */

/* Look the server's address up once: a name is not looked up for every request. */
static bool serve_find(struct serve_bench *b)
{
    const struct http_url *url = &b->ask.url;
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    int rc;

    if (url->socket[0] != '\0') {
        struct sockaddr_un *at = (struct sockaddr_un *)&b->address;

        at->sun_family = AF_UNIX;
        memcpy(at->sun_path, url->socket, sizeof at->sun_path);
        b->address_len = sizeof *at;
        return true;
    }
    rc = getaddrinfo(url->host, url->port, &hints, &list);
    if (rc != 0) {
        (void)fprintf(stderr, "quire bench serve: %s: %s\n", url->host, gai_strerror(rc));
        return false;
    }
    /* The first address that takes a connection: "localhost" may have one without a server. */
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        memcpy(&b->address, a->ai_addr, a->ai_addrlen);
        b->address_len = a->ai_addrlen;
        rc = fd != -1 ? connect(fd, a->ai_addr, a->ai_addrlen) : -1;
        if (fd != -1)
            (void)close(fd);
        if (rc == 0)
            break;
    }
    freeaddrinfo(list);
    return true;
}

static void serve_body(const struct serve_bench *b, const struct work_item *item, struct buf *body)
{
    const char *limit = b->of_work.chat ? "max_completion_tokens" : "max_tokens";

    buf_add_text(body, "{\"model\":");
    buf_add_json_string(body, b->ask.model, strlen(b->ask.model));
    if (b->of_work.chat)
        buf_printf(body, ",\"messages\":[{\"role\":\"user\",\"content\":%s}]", item->prompt);
    else
        buf_printf(body, ",\"prompt\":%s", item->prompt);
    buf_printf(body, ",\"%s\":%d,\"temperature\":%g,", limit, item->output_len, b->temperature);
    if (b->ignores_eos)
        buf_add_text(body, "\"ignore_eos\":true,");
    buf_add(body, buf_text(&b->ask.fields), b->ask.fields.len);
    buf_add_text(body, "\"stream\":true,\"stream_options\":{\"include_usage\":true}}");
}

static void serve_request(const struct serve_bench *b, const struct work_item *item,
                          struct buf *out)
{
    struct buf body = {0};

    serve_body(b, item, &body);
    buf_clear(out);
    buf_printf(out,
               "POST %s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
               "Content-Type: application/json\r\nContent-Length: %zu\r\n",
               b->ask.url.base, b->endpoint, b->ask.url.host, body.len);
    if (b->ask.key[0] != '\0')
        buf_printf(out, "Authorization: Bearer %s\r\n", b->ask.key);
    buf_add_text(out, "\r\n");
    buf_add(out, buf_text(&body), body.len);
    out->failed = out->failed || body.failed;
    buf_fini(&body);
}

/* Send a request on a free stream. */
static void serve_send(struct serve_bench *b, int i, struct buf *request)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET};
    struct stream *s = b->streams;

    while (s->state != STREAM_CLOSED)
        s++;
    serve_request(b, &b->work.items[i], request);
    stream_open(s, &b->results[i], (const struct sockaddr *)&b->address, b->address_len, request);
    if (s->state == STREAM_CLOSED)
        return;
    event.data.ptr = s;
    if (epoll_ctl(b->epoll_fd, EPOLL_CTL_ADD, s->fd, &event) == -1) {
        stream_fail(s, strerror(errno));
        return;
    }
    b->n_open++;
    if (b->n_open > b->run.n_at_once)
        b->run.n_at_once = b->n_open;
}

/* --- the run ------------------------------------------------------------------------------ */

/* Milliseconds until request i is due, at most SERVE_POLL_MS. */
static int serve_timeout_ms(const struct serve_bench *b, int i, int end, uint64_t passed_us)
{
    uint64_t due_us;

    if (i == end || b->n_open == b->n_streams)
        return SERVE_POLL_MS;
    due_us = b->work.items[i].due_us;
    if (due_us <= passed_us)
        return 0;
    if (due_us - passed_us >= SERVE_POLL_MS * 1000u)
        return SERVE_POLL_MS;
    return (int)((due_us - passed_us + 999u) / 1000u);
}

/* Wait for answers, and read what is there. */
static void serve_read(struct serve_bench *b, int timeout_ms)
{
    struct epoll_event events[SERVE_EVENTS];
    int n = epoll_wait(b->epoll_fd, events, SERVE_EVENTS, timeout_ms);
    uint64_t from_us = clock_us();
    double late_ms;

    for (int i = 0; i < n; i++) {
        struct stream *s = events[i].data.ptr;

        if (s->state == STREAM_CLOSED)
            continue;
        stream_ready(s);
        b->n_open -= s->state == STREAM_CLOSED;
    }
    late_ms = (double)(clock_us() - from_us) * 1e-3;
    if (n > 0 && late_ms > b->run.late_ms)
        b->run.late_ms = late_ms;
}

/* Requests [begin, end): send them when they are due, and read their answers. */
static void serve_run(struct serve_bench *b, int begin, int end)
{
    struct buf request = {0};
    uint64_t start_us = clock_us();
    int next = begin;

    while ((next < end || b->n_open > 0) && serve_stop == 0) {
        uint64_t passed_us = clock_us() - start_us;

        while (next < end && b->n_open < b->n_streams && b->work.items[next].due_us <= passed_us) {
            serve_send(b, next++, &request);
            /* A long row of requests that are due does not keep answers waiting. */
            if (b->n_open % 16 == 0)
                serve_read(b, 0);
        }
        serve_read(b, serve_timeout_ms(b, next, end, clock_us() - start_us));
    }
    for (int i = 0; i < b->n_streams; i++) {
        if (b->streams[i].state != STREAM_CLOSED)
            stream_fail(&b->streams[i], "interrupted");
    }
    b->n_open = 0;
    for (; next < end; next++)
        (void)snprintf(b->results[next].why, sizeof b->results[next].why, "interrupted");
    buf_fini(&request);
}

static double serve_cpu_s(void)
{
    struct rusage use;

    (void)getrusage(RUSAGE_SELF, &use); /* cannot fail with this argument */
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

/* As many streams as may be open at once: a descriptor each. */
static bool serve_allocate(struct serve_bench *b)
{
    struct rlimit limit;
    int most = SERVE_STREAMS;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit); /* else fewer streams fit, as the line below sees */
        if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < SERVE_STREAMS)
            most = (int)limit.rlim_cur - SERVE_SPARE_FDS;
    }
    b->n_streams = b->max_concurrency > 0 ? b->max_concurrency : b->work.n;
    if (b->n_streams > most) {
        (void)fprintf(stderr, "quire bench serve: at most %d requests at once\n", most);
        b->n_streams = most;
    }
    b->streams = mem_zalloc_array((size_t)b->n_streams, sizeof *b->streams);
    b->results = mem_zalloc_array((size_t)b->work.n, sizeof *b->results);
    b->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (int i = 0; i < b->n_streams && b->streams != NULL; i++)
        b->streams[i].fd = -1;
    return b->streams != NULL && b->results != NULL && b->epoll_fd != -1;
}

/* The time that counts ends with the last part of an answer. */
static double serve_seconds(const struct serve_bench *b, int n)
{
    uint64_t from_us = UINT64_MAX, to_us = 0;

    for (int i = 0; i < n; i++) {
        const struct stream_result *r = &b->results[i];

        if (r->sent_us != 0 && r->sent_us < from_us)
            from_us = r->sent_us;
        if (r->last_us > to_us)
            to_us = r->last_us;
    }
    return to_us > from_us ? (double)(to_us - from_us) * 1e-6 : 0.0;
}

/* --- results ------------------------------------------------------------------------------ */

static bool serve_save(const struct serve_bench *b, const struct figures *f)
{
    struct buf text = {0};
    char path[1024];
    FILE *file;
    bool good;

    (void)snprintf(path, sizeof path, "%s", b->result != NULL ? b->result : "");
    if (b->result == NULL)
        (void)snprintf(path, sizeof path, "%s/%s-%ld.json", b->result_dir, b->backend,
                       (long)clock_unix_s());
    else if (b->saves && b->result[0] != '/')
        (void)snprintf(path, sizeof path, "%s/%s", b->result_dir, b->result);
    figures_write(&text, f, &b->of_figures, &b->run, b->results);
    file = fopen(path, "we");
    good = file != NULL && !text.failed && fwrite(text.bytes, 1, text.len, file) == text.len;
    good = (file == NULL || fclose(file) == 0) && good;
    if (!good)
        (void)fprintf(stderr, "quire bench serve: %s: %s\n", path, strerror(errno));
    buf_fini(&text);
    return good;
}

static int serve_report(struct serve_bench *b)
{
    int n = b->work.n - b->n_warmups, rc = 1;
    int *input_lens = mem_zalloc_array((size_t)n, sizeof *input_lens);
    struct figures f = {0};

    for (int i = 0; i < n && input_lens != NULL; i++)
        input_lens[i] = b->work.items[i].input_len;
    if (input_lens == NULL || !figures_make(&f, &b->of_figures, b->results, input_lens, n)) {
        (void)fprintf(stderr, "quire bench serve: no memory\n");
    } else {
        figures_print(&f, &b->of_figures, &b->run, b->results);
        rc = f.n_succeeded < n;
        if ((b->result != NULL || b->saves) && !serve_save(b, &f))
            rc = 1;
    }
    figures_fini(&f);
    mem_free(input_lens);
    return rc;
}

/* The line before the run: what is sent. */
static void serve_print_work(const struct serve_bench *b)
{
    double n_input = 0.0, n_output = 0.0;
    int n = b->work.n - b->n_warmups;

    for (int i = 0; i < n; i++) {
        n_input += b->work.items[i].input_len;
        n_output += b->work.items[i].output_len;
    }
    printf("%d requests to %s%s, model %s; on average %.1f tokens in%s and %.1f out; ", n,
           b->ask.url.socket[0] != '\0' ? b->ask.url.socket : b->ask.url.host, b->endpoint,
           b->ask.model, n_input / n,
           b->of_work.kind == WORK_FILE && !b->work.counted ? " (estimated)" : "", n_output / n);
    if (isfinite(b->of_work.rate))
        printf("%g a second", b->of_work.rate);
    else
        printf("all at once");
    if (b->max_concurrency > 0)
        printf(", at most %d open", b->max_concurrency);
    printf("\n");
    (void)fflush(stdout);
}

static int serve_measure(struct serve_bench *b)
{
    struct sigaction interrupt = {.sa_handler = serve_interrupt};
    int n, rc;
    double cpu_s;

    b->of_work.url = &b->ask.url;
    b->of_work.model = b->ask.model;
    b->of_work.key = b->ask.key;
    b->of_work.n += b->n_warmups;
    rc = work_make(&b->work, &b->of_work);
    if (rc == ERR_NO_MEMORY || (rc == ERR_OK && !serve_allocate(b)))
        (void)fprintf(stderr, "quire bench serve: no memory, or no descriptor\n");
    if (rc != ERR_OK || b->epoll_fd == -1 || b->results == NULL)
        return 1;
    n = b->work.n - b->n_warmups;
    serve_print_work(b);
    (void)sigaction(SIGINT, &interrupt, NULL);
    (void)sigaction(SIGTERM, &interrupt, NULL);
    for (int i = n; i < b->work.n; i++)
        b->work.items[i].due_us = 0;
    serve_run(b, n, b->work.n);
    b->run.n_at_once = 0;
    b->run.late_ms = 0.0;
    cpu_s = serve_cpu_s();
    serve_run(b, 0, n);
    b->run.cpu_s = serve_cpu_s() - cpu_s;
    b->run.seconds = serve_seconds(b, n);
    b->run.backend = b->backend;
    b->run.model = b->ask.model;
    b->run.label = b->label;
    b->run.rate = b->of_work.rate;
    b->run.burstiness = b->of_work.burstiness;
    b->run.max_concurrency = b->max_concurrency;
    return serve_report(b);
}

/* --- options ------------------------------------------------------------------------------ */

enum serve_option {
    SERVE_HELP = 256,
    SERVE_URL,
    SERVE_HOST,
    SERVE_PORT,
    SERVE_MODEL,
    SERVE_KEY,
    SERVE_BACKEND,
    SERVE_ENDPOINT,
    SERVE_DATASET,
    SERVE_PATH,
    SERVE_RATE,
    SERVE_BURSTINESS,
    SERVE_SEED,
    SERVE_RATIO,
    SERVE_EOS,
    SERVE_TEMPERATURE,
    SERVE_EXTRA,
    SERVE_GOODPUT,
    SERVE_PERCENTILES,
    SERVE_LABEL,
    SERVE_RESULT,
    SERVE_SAVE,
    SERVE_DETAILED,
    SERVE_DIR,
    SERVE_NUMBERS /* the first of serve_numbers */
};

/* Options that are whole numbers: name, smallest value, place in struct serve_bench. */
static const struct {
    const char *name;
    int least;
    size_t at;
} serve_numbers[] = {
    {"num-prompts", 1, offsetof(struct serve_bench, of_work.n)},
    {"max-concurrency", 1, offsetof(struct serve_bench, max_concurrency)},
    {"num-warmups", 0, offsetof(struct serve_bench, n_warmups)},
    {"random-input-len", 1, offsetof(struct serve_bench, of_work.input_len)},
    {"random-output-len", 1, offsetof(struct serve_bench, of_work.output_len)},
    {"random-prefix-len", 0, offsetof(struct serve_bench, of_work.prefix_len)},
    {"random-vocab-size", WORK_FIRST_ID + 1, offsetof(struct serve_bench, of_work.vocab_size)},
    {"sharegpt-output-len", 1, offsetof(struct serve_bench, of_work.file_output_len)},
};
#define SERVE_N_NUMBERS ((int)(sizeof serve_numbers / sizeof serve_numbers[0]))

static const struct option serve_names[] = {
    {"help", no_argument, NULL, SERVE_HELP},
    {"url", required_argument, NULL, SERVE_URL},
    {"base-url", required_argument, NULL, SERVE_URL},
    {"host", required_argument, NULL, SERVE_HOST},
    {"port", required_argument, NULL, SERVE_PORT},
    {"model", required_argument, NULL, SERVE_MODEL},
    {"api-key", required_argument, NULL, SERVE_KEY},
    {"backend", required_argument, NULL, SERVE_BACKEND},
    {"endpoint", required_argument, NULL, SERVE_ENDPOINT},
    {"dataset-name", required_argument, NULL, SERVE_DATASET},
    {"dataset-path", required_argument, NULL, SERVE_PATH},
    {"request-rate", required_argument, NULL, SERVE_RATE},
    {"burstiness", required_argument, NULL, SERVE_BURSTINESS},
    {"seed", required_argument, NULL, SERVE_SEED},
    {"random-range-ratio", required_argument, NULL, SERVE_RATIO},
    {"ignore-eos", no_argument, NULL, SERVE_EOS},
    {"temperature", required_argument, NULL, SERVE_TEMPERATURE},
    {"extra-body", required_argument, NULL, SERVE_EXTRA},
    {"goodput", required_argument, NULL, SERVE_GOODPUT},
    {"metric-percentiles", required_argument, NULL, SERVE_PERCENTILES},
    {"label", required_argument, NULL, SERVE_LABEL},
    {"result", required_argument, NULL, SERVE_RESULT},
    {"result-filename", required_argument, NULL, SERVE_RESULT},
    {"save-result", no_argument, NULL, SERVE_SAVE},
    {"save-detailed", no_argument, NULL, SERVE_DETAILED},
    {"result-dir", required_argument, NULL, SERVE_DIR},
    {"num-prompts", required_argument, NULL, SERVE_NUMBERS + 0},
    {"max-concurrency", required_argument, NULL, SERVE_NUMBERS + 1},
    {"num-warmups", required_argument, NULL, SERVE_NUMBERS + 2},
    {"random-input-len", required_argument, NULL, SERVE_NUMBERS + 3},
    {"random-output-len", required_argument, NULL, SERVE_NUMBERS + 4},
    {"random-prefix-len", required_argument, NULL, SERVE_NUMBERS + 5},
    {"random-vocab-size", required_argument, NULL, SERVE_NUMBERS + 6},
    {"sharegpt-output-len", required_argument, NULL, SERVE_NUMBERS + 7},
    {NULL, 0, NULL, 0},
};

static const char serve_usage[] =
    "usage: quire bench serve [--url URL] [options]\n\n"
    "Sends requests to a server with OpenAI's API and prints what clients saw of it.\n\n"
    "  --url URL, --base-url URL   http://127.0.0.1:8000   plain http, or unix:PATH\n"
    "  --host NAME, --port N                               instead of --url\n"
    "  --model NAME                the server's first\n"
    "  --api-key KEY               none\n"
    "  --backend NAME              openai       openai, vllm: completions; openai-chat: chats\n"
    "  --endpoint PATH             that of the backend\n"
    "  --dataset-name NAME         random       random, sharegpt (a file), sharegpt-like\n"
    "  --dataset-path FILE                      JSON list or lines: conversations, messages, or\n"
    "                                           prompt with completion or output_tokens\n"
    "  --num-prompts N             1000\n"
    "  --num-warmups N             0            requests before, which do not count\n"
    "  --request-rate R            inf          requests per second\n"
    "  --burstiness B              1            1: a Poisson process; below: more uneven\n"
    "  --max-concurrency N         no limit     requests at once\n"
    "  --random-input-len N        1024         tokens of a prompt\n"
    "  --random-output-len N       128          tokens of an output\n"
    "  --random-range-ratio R      0            lengths are within R of these, 0 to 1\n"
    "  --random-prefix-len N       0            tokens that all prompts begin with\n"
    "  --random-vocab-size N       2000         ids are 100 to N - 1; words with chats\n"
    "  --sharegpt-output-len N     that of the file's answers\n"
    "  --seed N                    0\n"
    "  --ignore-eos                             outputs have their full length\n"
    "  --temperature X             0\n"
    "  --extra-body JSON                        an object with further fields of requests\n"
    "  --goodput T:MS ...                       goals of a good request: ttft, tpot, e2el\n"
    "  --metric-percentiles LIST   90,99\n"
    "  --result FILE                            the figures as JSON, with vLLM's names;\n"
    "                                           also --save-result, --result-dir,\n"
    "                                           --result-filename\n"
    "  --save-detailed                          in it the times of each request\n"
    "  --label TEXT                             in it\n\n"
    "random-range-ratio draws both lengths evenly from [N * (1 - R), N * (1 + R)]. sharegpt-like\n"
    "draws lengths as conversations have them: log-normal, medians of 100 in and 145 out,\n"
    "4 to 1024 tokens. The exit status is 1 if a request failed.\n";

static bool serve_bad(const char *option, const char *value, const char *wanted)
{
    (void)fprintf(stderr, "quire bench serve: --%s %s: must be %s\n", option, value, wanted);
    return false;
}

static bool serve_take_real(double *to, const char *option, const char *value, double most)
{
    char *end;
    double x = strtod(value, &end);

    if (end == value || *end != '\0' || isnan(x) || x < 0.0 || x > most)
        return serve_bad(option, value, "a number from 0 on");
    *to = x;
    return true;
}

static bool serve_take_number(struct serve_bench *b, int i, const char *value)
{
    char *end;
    long n = strtol(value, &end, 10);

    if (end == value || *end != '\0' || n < serve_numbers[i].least || n > SERVE_NUMBER_MAX) {
        (void)fprintf(stderr, "quire bench serve: --%s %s: must be a whole number from %d on\n",
                      serve_numbers[i].name, value, serve_numbers[i].least);
        return false;
    }
    *(int *)((char *)b + serve_numbers[i].at) = (int)n;
    return true;
}

/* One goal: NAME:MS. */
static bool serve_take_goal(struct serve_bench *b, const char *value)
{
    static const char *const names[FIGURES_TIMES] = {"ttft:", "tpot:", "itl:", "e2el:"};

    for (int i = 0; i < FIGURES_TIMES; i++) {
        size_t len = strlen(names[i]);

        if (i == FIGURES_ITL || strncmp(value, names[i], len) != 0)
            continue;
        b->of_figures.has_goals = true;
        return serve_take_real(&b->of_figures.goals_ms[i], "goodput", value + len, 1e9);
    }
    return serve_bad("goodput", value, "ttft:MS, tpot:MS or e2el:MS");
}

/* A list of percentiles, replacing the preset. */
static bool serve_take_percentiles(struct serve_bench *b, const char *value)
{
    struct figures_options *o = &b->of_figures;
    const char *at = value;
    int n = 0;

    while (*at != '\0') {
        char *end;
        double x = strtod(at, &end);

        if (end == at || !(x > 0.0 && x <= 100.0) || n == FIGURES_PERCENTILES ||
            (*end != '\0' && *end != ','))
            return serve_bad("metric-percentiles", value, "up to 8 numbers above 0, with commas");
        o->percentiles[n++] = x;
        at = *end == ',' ? end + 1 : end;
    }
    o->n_percentiles = n;
    return true;
}

static bool serve_take_backend(struct serve_bench *b, const char *value)
{
    b->backend = value;
    b->of_work.chat = strcmp(value, "openai-chat") == 0;
    return b->of_work.chat || strcmp(value, "openai") == 0 || strcmp(value, "vllm") == 0 ||
           serve_bad("backend", value, "openai, vllm or openai-chat");
}

static bool serve_take_dataset(struct serve_bench *b, const char *value)
{
    if (strcmp(value, "random") == 0)
        b->of_work.kind = WORK_RANDOM;
    else if (strcmp(value, "sharegpt-like") == 0)
        b->of_work.kind = WORK_SHAREGPT_LIKE;
    else if (strcmp(value, "sharegpt") == 0 || strcmp(value, "custom") == 0)
        b->of_work.kind = WORK_FILE;
    else
        return serve_bad("dataset-name", value, "random, sharegpt or sharegpt-like");
    return true;
}

static bool serve_take(struct serve_bench *b, int option, const char *value)
{
    switch (option) {
    case SERVE_URL: return ask_take(&b->ask, ASK_URL, value);
    case SERVE_MODEL: return ask_take(&b->ask, ASK_MODEL, value);
    case SERVE_EXTRA: return ask_take(&b->ask, ASK_EXTRA, value);
    case SERVE_HOST: b->host = value; return true;
    case SERVE_PORT: b->port = value; return true;
    case SERVE_KEY: b->ask.key = value; return true;
    case SERVE_BACKEND: return serve_take_backend(b, value);
    case SERVE_ENDPOINT: b->endpoint = value; return true;
    case SERVE_DATASET: return serve_take_dataset(b, value);
    case SERVE_PATH: b->of_work.path = value; return true;
    case SERVE_RATE: return serve_take_real(&b->of_work.rate, "request-rate", value, INFINITY);
    case SERVE_BURSTINESS: return serve_take_real(&b->of_work.burstiness, "burstiness", value, 1e6);
    case SERVE_RATIO:
        return serve_take_real(&b->of_work.range_ratio, "random-range-ratio", value, 1.0);
    case SERVE_TEMPERATURE: return serve_take_real(&b->temperature, "temperature", value, 100.0);
    case SERVE_SEED: b->of_work.seed = strtoull(value, NULL, 10); return true;
    case SERVE_EOS: b->ignores_eos = true; return true;
    case SERVE_GOODPUT: return serve_take_goal(b, value);
    case SERVE_PERCENTILES: return serve_take_percentiles(b, value);
    case SERVE_LABEL: b->label = value; return true;
    case SERVE_RESULT: b->result = value; return true;
    case SERVE_SAVE: b->saves = true; return true;
    case SERVE_DIR: b->result_dir = value; return true;
    case SERVE_DETAILED: b->of_figures.detailed = true; return true;
    default: return serve_take_number(b, option - SERVE_NUMBERS, value);
    }
}

/* What options mean together. */
static bool serve_settle(struct serve_bench *b)
{
    struct work_options *o = &b->of_work;
    char url[600];

    if (b->host != NULL || b->port != NULL) {
        (void)snprintf(url, sizeof url, "http://%s:%s", b->host != NULL ? b->host : "127.0.0.1",
                       b->port != NULL ? b->port : "8000");
        if (!ask_take(&b->ask, ASK_URL, url))
            return false;
    }
    if (o->path != NULL)
        o->kind = WORK_FILE;
    if (o->kind == WORK_FILE && o->path == NULL) {
        (void)fprintf(stderr, "quire bench serve: this dataset needs --dataset-path\n");
        return false;
    }
    if (!(o->rate > 0.0) || !(o->burstiness > 0.0))
        return serve_bad("request-rate", "and --burstiness", "above 0");
    if (b->endpoint == NULL)
        b->endpoint = o->chat ? "/v1/chat/completions" : "/v1/completions";
    return true;
}

int quire_bench_serve(int argc, char **argv)
{
    static struct serve_bench bench;
    struct serve_bench *b = &bench;
    int opt, rc;

    ask_init(&b->ask, "quire bench serve");
    b->backend = "openai";
    b->result_dir = ".";
    b->epoll_fd = -1;
    b->of_work = (struct work_options){.n = 1000,
                                       .input_len = 1024,
                                       .output_len = 128,
                                       .vocab_size = 2000,
                                       .rate = INFINITY,
                                       .burstiness = 1.0};
    b->of_figures = (struct figures_options){.percentiles = {90.0, 99.0}, .n_percentiles = 2};
    while ((opt = getopt_long(argc, argv, "", serve_names, NULL)) != -1) {
        if (opt == SERVE_HELP) {
            (void)fputs(serve_usage, stdout);
            return 0;
        }
        if (opt == '?' || !serve_take(b, opt, optarg))
            return 2;
        /* vLLM's --goodput takes several values. */
        while (opt == SERVE_GOODPUT && optind < argc && strchr(argv[optind], ':') != NULL &&
               argv[optind][0] != '-') {
            if (!serve_take(b, opt, argv[optind++]))
                return 2;
        }
    }
    if (optind != argc) {
        (void)fprintf(stderr, "quire bench serve: %s is not an option\n", argv[optind]);
        return 2;
    }
    if (!serve_settle(b))
        return 2;
    rc = ask_find_model(&b->ask) && serve_find(b) ? serve_measure(b) : 1;
    for (int i = 0; i < b->n_streams && b->streams != NULL; i++)
        stream_fini(&b->streams[i]);
    for (int i = 0; i < b->work.n && b->results != NULL; i++)
        mem_free(b->results[i].gaps_ms);
    mem_free(b->streams);
    mem_free(b->results);
    work_fini(&b->work);
    buf_fini(&b->ask.fields);
    return rc;
}
