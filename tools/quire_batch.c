/* SPDX-License-Identifier: Apache-2.0
 *
 * quire batch: a file of requests in OpenAI's batch format, answered into another file.
 *
 *   input, checked whole -> items that the output does not have -> threads -> lines of the output
 *
 * A line of the output is written when its answer is whole, so a run that is killed loses only the
 * requests on their way, and the next run asks these. A server that cannot be reached ends the run;
 * a refusal is an answer and gets its line. */
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "tools/ask.h"
#include "tools/batch.h"
#include "tools/private.h"
#include "tools/quire.h"

#define BATCH_COMMAND     "quire batch"
#define BATCH_THREADS_MAX 1024
#define BATCH_TRIES       10 /* of a request that is refused because the server is full */
#define BATCH_WAIT_MAX_S  30
#define BATCH_BAR         30 /* characters of the progress bar */
#define BATCH_TELL_S      5  /* between lines of progress that are not on a terminal */

enum { BATCH_HELP = 256, BATCH_MODEL, BATCH_URL, BATCH_KEY, BATCH_AT_ONCE };

struct batch {
    const char *in, *out, *model, *key;
    bool has_url;
    struct http_url url;
    int n_at_once;
    struct batch_file file;

    pthread_mutex_t lock; /* of the rest */
    size_t next, n_asked, n_failed;
    bool is_over; /* the server is gone, or the output cannot be written */
    uint64_t begin_us;
};

static volatile sig_atomic_t batch_stop;

static const char batch_usage[] =
    "usage: quire batch IN.jsonl OUT.jsonl [--model FOLDER | --url URL] [options] [-- settings]\n"
    "\n"
    "Answers a file of requests in OpenAI's batch format. A line of IN:\n"
    "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{...}}\n"
    "A line of OUT, in the order of the answers:\n"
    "{\"id\":...,\"custom_id\":\"a\",\"response\":{\"status_code\":200,...,\"body\":{...}},\n"
    "\"error\":null}. IN is checked whole before anything is asked. A run that was stopped or\n"
    "killed goes on when it is started again: requests that OUT has are not asked again.\n"
    "\n"
    "  -i, --input-file FILE, -o, --output-file FILE  as vLLM's run-batch takes them\n"
    "  --model FOLDER                                 start a private server for this model;\n"
    "                                                 settings of quire serve follow --\n"
    "  --url URL             http://127.0.0.1:8000    server: plain http, or unix:PATH\n"
    "  --api-key KEY                                  default: none\n"
    "  --concurrency N       64                       requests at once\n"
    "\n"
    "Exit status: 0; 1 when a request was refused or has no answer; 2 usage, or IN is wrong.\n";

/* The next item that the output does not have; NULL: there is none. */
static const struct batch_item *batch_take_item(struct batch *b)
{
    const struct batch_item *item = NULL;

    (void)pthread_mutex_lock(&b->lock);
    while (!b->is_over && !batch_stop && item == NULL && b->next < b->file.n) {
        item = &b->file.items[b->next++];
        if (item->is_done)
            item = NULL;
    }
    (void)pthread_mutex_unlock(&b->lock);
    return item;
}

/* One attempt. ERR_OK: *status and the answer. */
static int batch_try(const struct batch *b, const char *path, const struct buf *body,
                     struct buf *answer, struct http *http)
{
    struct http_request request = {.url = &b->url,
                                   .path = path,
                                   .key = b->key,
                                   .body = body,
                                   .silence_s = ASK_SILENCE_S,
                                   .stop = &batch_stop};
    int rc = http_ask(http, &request);

    buf_clear(answer);
    if (rc == ERR_OK)
        rc = http_read_all(http, answer);
    http_close(http);
    return rc;
}

/* Wait in steps, because a signal ends it. */
static void batch_pause(int wait_s)
{
    if (wait_s < 1)
        wait_s = 1;
    if (wait_s > BATCH_WAIT_MAX_S)
        wait_s = BATCH_WAIT_MAX_S;
    for (int i = 0; i < 10 * wait_s && !batch_stop; i++)
        clock_sleep_us(100000);
}

/* Ask, again while the server is full or cannot be reached. */
static int batch_ask(const struct batch *b, const char *path, const struct buf *body,
                     struct buf *answer, struct http *http)
{
    int rc = ERR_NO_MEMORY;

    for (int i = 0; i < BATCH_TRIES && !batch_stop && !body->failed; i++) {
        if (i > 0)
            batch_pause(http->retry_after_s);
        *http = (struct http)HTTP_CLOSED;
        http->retry_after_s = -1;
        rc = batch_try(b, path, body, answer, http);
        if (rc == ERR_OK ? http->status != 429 && http->status != 503
                         : rc != ERR_ENGINE_GONE && rc != ERR_IO)
            break;
    }
    return rc;
}

static void batch_add_id(struct buf *out)
{
    unsigned char bytes[12] = {0};

    if (getrandom(bytes, sizeof bytes, 0) == -1) /* the name is for people alone */
        memcpy(bytes, &(uint64_t){clock_us()}, sizeof(uint64_t));
    for (size_t i = 0; i < sizeof bytes; i++)
        buf_printf(out, "%02x", bytes[i]);
}

/* The answer as the output's line. An answer that is not JSON stands there as a text. */
static void batch_write(const struct batch_item *item, int rc, const struct http *http,
                        const struct buf *answer, struct arena *arena, struct buf *out)
{
    const struct json *whole = NULL;

    buf_add_text(out, "{\"id\":\"batch_req_");
    batch_add_id(out);
    buf_add_text(out, "\",\"custom_id\":");
    buf_add_json_string(out, item->custom_id, strlen(item->custom_id));
    if (rc != ERR_OK) {
        const char *why = http->why[0] != '\0' ? http->why : err_sentence(rc);

        buf_add_text(out, ",\"response\":null,\"error\":{\"code\":\"request_failed\",\"message\":");
        buf_add_json_string(out, why, strlen(why));
        buf_add_text(out, "}}\n");
        return;
    }
    if (json_parse(&whole, arena, buf_text(answer), answer->len, NULL, 0) != ERR_OK)
        whole = NULL;
    buf_printf(out, ",\"response\":{\"status_code\":%d,\"request_id\":", http->status);
    if (json_get_kind(whole, "id", JSON_TEXT) != NULL)
        json_write(out, json_get(whole, "id"), JSON_EXACT);
    else
        buf_add_text(out, "null");
    buf_add_text(out, ",\"body\":");
    if (whole != NULL)
        json_write(out, whole, JSON_EXACT);
    else
        buf_add_json_string(out, buf_text(answer), answer->len);
    buf_add_text(out, "},\"error\":null}\n");
}

/* Put an item's line into the output, or end the run: a server that cannot be reached answers none
 * of the others, and the next run asks this one again. */
static void batch_put(struct batch *b, const struct http *http, int rc, const struct buf *line)
{
    bool is_lost = rc == ERR_ENGINE_GONE || rc == ERR_IO || rc == ERR_NO_MEMORY || line->failed;

    (void)pthread_mutex_lock(&b->lock);
    if (is_lost || batch_stop) {
        if (!b->is_over && !batch_stop)
            (void)fprintf(stderr, "%s: %s; the run ends, and the same command goes on later\n",
                          BATCH_COMMAND, http->why[0] != '\0' ? http->why : err_sentence(rc));
        b->is_over = true;
    } else if (!b->is_over) {
        b->is_over = !batch_file_append(&b->file, BATCH_COMMAND, line);
        b->n_asked += !b->is_over;
        b->n_failed += !b->is_over && (rc != ERR_OK || http->status != 200);
    }
    (void)pthread_mutex_unlock(&b->lock);
}

static void *batch_work(void *context)
{
    struct batch *b = context;
    const struct batch_item *item;
    struct buf body = {0}, answer = {0}, line = {0};
    struct http http = HTTP_CLOSED;

    while ((item = batch_take_item(b)) != NULL) {
        struct arena arena = {0};
        const struct json *object;
        int rc = json_parse(&object, &arena, item->line, item->len, NULL, 0);

        buf_clear(&body);
        buf_clear(&line);
        if (rc == ERR_OK) { /* it was when the input was checked */
            json_write(&body, json_get(object, "body"), JSON_EXACT);
            rc = batch_ask(b, json_get_text(object, "url", ""), &body, &answer, &http);
        }
        batch_write(item, rc, &http, &answer, &arena, &line);
        batch_put(b, &http, rc, &line);
        arena_reset(&arena);
    }
    buf_fini(&body);
    buf_fini(&answer);
    buf_fini(&line);
    return NULL;
}

/* One line about the state; on a terminal it replaces the last one. */
static void batch_tell(struct batch *b, bool is_terminal, bool is_last)
{
    double passed_s = (double)(clock_us() - b->begin_us) / 1e6;
    size_t n_done, n_failed, n_asked;
    char bar[BATCH_BAR + 1];

    (void)pthread_mutex_lock(&b->lock);
    n_asked = b->n_asked;
    n_failed = b->n_failed;
    (void)pthread_mutex_unlock(&b->lock);
    n_done = b->file.n_done + n_asked;
    memset(bar, '.', BATCH_BAR);
    if (b->file.n > 0)
        memset(bar, '#', n_done * BATCH_BAR / b->file.n);
    bar[BATCH_BAR] = '\0';
    (void)fprintf(stderr, "%s%s: %s%s%s%zu of %zu, %zu refused, %.1f per s%s",
                  is_terminal ? "\r" : "", BATCH_COMMAND, is_terminal ? "[" : "",
                  is_terminal ? bar : "", is_terminal ? "] " : "", n_done, b->file.n, n_failed,
                  passed_s > 0.0 ? (double)n_asked / passed_s : 0.0,
                  is_terminal && !is_last ? "" : "\n");
}

/* Print the progress until all items have a line, or the run is over. */
static void *batch_watch(void *context)
{
    struct batch *b = context;
    bool is_terminal = isatty(STDERR_FILENO) == 1, is_over = false;
    uint64_t told_us = clock_us();

    while (!is_over) {
        clock_sleep_us(100000);
        (void)pthread_mutex_lock(&b->lock);
        is_over = b->is_over || batch_stop || b->file.n_done + b->n_asked == b->file.n;
        (void)pthread_mutex_unlock(&b->lock);
        if (!is_over && (is_terminal || clock_us() - told_us > (uint64_t)BATCH_TELL_S * 1000000u)) {
            told_us = clock_us();
            batch_tell(b, is_terminal, false);
        }
    }
    return NULL;
}

/* Run the threads to their end. The exit status. */
static int batch_run(struct batch *b)
{
    static pthread_t threads[BATCH_THREADS_MAX];
    pthread_t watch;
    size_t n_left = b->file.n - b->file.n_done;
    bool is_watched;
    int n = 0;

    if (b->file.n_done > 0)
        (void)fprintf(stderr, "%s: %s has %zu of %zu answers\n", BATCH_COMMAND, b->out,
                      b->file.n_done, b->file.n);
    b->begin_us = clock_us();
    is_watched = pthread_create(&watch, NULL, batch_watch, b) == 0;
    while (n < b->n_at_once && (size_t)n < n_left &&
           pthread_create(&threads[n], NULL, batch_work, b) == 0)
        n++;
    if (n == 0)
        (void)batch_work(b);
    while (n > 0)
        (void)pthread_join(threads[--n], NULL);
    if (is_watched)
        (void)pthread_join(watch, NULL);
    batch_tell(b, isatty(STDERR_FILENO) == 1, true);
    return b->is_over || batch_stop || b->n_failed > 0 ? 1 : 0;
}

/* Take one option. The exit status, or -1 to go on. */
static int batch_option(struct batch *b, int opt, const char *value)
{
    char why[512], *end = NULL;

    switch (opt) {
    case BATCH_HELP: (void)fputs(batch_usage, stdout); return 0;
    case 'i': b->in = value; return -1;
    case 'o': b->out = value; return -1;
    case BATCH_MODEL: b->model = value; return -1;
    case BATCH_KEY: b->key = value; return -1;
    case BATCH_URL:
        b->has_url = true;
        if (http_url_read(&b->url, value, why, sizeof why) == ERR_OK)
            return -1;
        (void)fprintf(stderr, "%s: --url: %s\n", BATCH_COMMAND, why);
        return 2;
    case BATCH_AT_ONCE:
        b->n_at_once = (int)strtol(value, &end, 10);
        if (*end == '\0' && b->n_at_once >= 1 && b->n_at_once <= BATCH_THREADS_MAX)
            return -1;
        (void)fprintf(stderr, "%s: --concurrency must be a number from 1 to %d\n", BATCH_COMMAND,
                      BATCH_THREADS_MAX);
        return 2;
    default: (void)fputs(batch_usage, stderr); return 2;
    }
}

/* Read the command line. The exit status, or -1 to go on; *settings are those of the server. */
static int batch_options(struct batch *b, int argc, char **argv, int *settings)
{
    static const struct option options[] = {{"help", no_argument, NULL, BATCH_HELP},
                                            {"input-file", required_argument, NULL, 'i'},
                                            {"output-file", required_argument, NULL, 'o'},
                                            {"model", required_argument, NULL, BATCH_MODEL},
                                            {"url", required_argument, NULL, BATCH_URL},
                                            {"api-key", required_argument, NULL, BATCH_KEY},
                                            {"concurrency", required_argument, NULL, BATCH_AT_ONCE},
                                            {NULL, 0, NULL, 0}};
    int opt, n_own = private_split(argc, argv, settings), status = -1;

    while (status == -1 && (opt = getopt_long(n_own, argv, "i:o:", options, NULL)) != -1)
        status = batch_option(b, opt, optarg);
    if (status != -1)
        return status;
    if (b->in == NULL && optind < n_own)
        b->in = argv[optind++];
    if (b->out == NULL && optind < n_own)
        b->out = argv[optind++];
    if (b->in == NULL || b->out == NULL || optind < n_own) {
        (void)fputs(batch_usage, stderr);
        return 2;
    }
    if ((b->model != NULL && b->has_url) || (b->model == NULL && *settings < argc)) {
        (void)fprintf(stderr,
                      "%s: --model starts a server, and settings after -- are for it; "
                      "--url names one that runs\n",
                      BATCH_COMMAND);
        return 2;
    }
    return -1;
}

static void batch_signal(int number)
{
    (void)number;
    batch_stop = 1;
}

int quire_batch(int argc, char **argv)
{
    static struct batch batch = {.key = "",
                                 .url = {.host = "127.0.0.1", .port = "8000"},
                                 .n_at_once = 64,
                                 .file = BATCH_FILE_CLOSED,
                                 .lock = PTHREAD_MUTEX_INITIALIZER};
    struct private_server server = PRIVATE_NONE;
    struct sigaction on_signal = {.sa_handler = batch_signal};
    int settings, status = batch_options(&batch, argc, argv, &settings);

    if (status != -1)
        return status;
    (void)sigaction(SIGINT, &on_signal, NULL);
    (void)sigaction(SIGTERM, &on_signal, NULL);
    status = 2;
    if (batch_file_read(&batch.file, BATCH_COMMAND, batch.in)) {
        status = 1;
        if (batch_file_resume(&batch.file, BATCH_COMMAND, batch.out))
            status = 0;
    }
    if (status == 0 && batch.file.n_done < batch.file.n) {
        status = 1;
        if (batch.model == NULL || private_start(&server, batch.model, argv + settings,
                                                 argc - settings, &batch_stop, &batch.url))
            status = batch_run(&batch);
    }
    private_end(&server);
    batch_file_fini(&batch.file);
    return status;
}
