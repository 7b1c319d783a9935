/* SPDX-License-Identifier: Apache-2.0
 *
 * quire generate: many prompts over the HTTP API, several at once, answers in the order of the
 * prompts.
 *
 * Threads take the next prompt, ask, and put the answer into a ring of GENERATE_WINDOW slots; the
 * thread that fills the first empty one prints what is complete from there on. So the input is read
 * as it is needed, and a slow answer holds back at most a window of others.
 *
 *    prompt i -> slot i % GENERATE_WINDOW -> standard output when 0 .. i - 1 are printed */
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "tools/ask.h"
#include "tools/quire.h"

#define GENERATE_PROMPTS     256 /* of the command line */
#define GENERATE_THREADS_MAX 1024
#define GENERATE_WINDOW      4096
#define GENERATE_TRIES       10 /* of a request that is refused because the server is full */
#define GENERATE_WAIT_MAX_S  30
#define GENERATE_TICK_MS     100 /* a signal ends the wait for input within it */

enum {
    GENERATE_OPTION_PROMPT = ASK_OWN,
    GENERATE_OPTION_AT_ONCE,
    GENERATE_OPTION_JSON,
    GENERATE_OPTION_RAW
};

static volatile sig_atomic_t generate_stop; /* by a signal; a second one kills the process */

/* Prompts, one per line. */
struct generate_input {
    int fd; /* -1: none */
    size_t at, n;
    char bytes[4096]; /* at .. n - 1 are not read yet */
};

struct generate_slot {
    struct buf out; /* the line for standard output */
    bool done;
};

struct generate {
    struct ask ask;
    const char *prompts[GENERATE_PROMPTS];
    int n_prompts;
    int n_at_once;
    bool wants_json; /* JSON lines also for plain prompts */
    bool is_raw;     /* prompts go to the model without its chat template */

    pthread_mutex_t input_lock; /* of the next three */
    struct generate_input input;
    size_t n_taken;
    bool at_end;

    pthread_mutex_t output_lock; /* of the rest */
    pthread_cond_t printed;
    size_t n_printed, n_failed;
    struct generate_slot slots[GENERATE_WINDOW];
};

/* One prompt on its way through a thread. */
struct generate_item {
    size_t idx;
    struct buf line;           /* as it was read */
    struct buf body;           /* of the request */
    struct arena arena;        /* of the line and of the answer */
    const struct json *fields; /* the line as an object; NULL: it is a plain prompt */
    bool is_json;              /* the line begins as an object */
    bool is_chat;
    char why[512];
};

static const char generate_usage[] =
    "usage: quire generate [options] [--prompt TEXT]... [FILE|-] [-- settings]\n"
    "\n"
    "Sends prompts to a running server, or to a private one for a model of this disk, and prints\n"
    "the answers in the order of the prompts. A line of FILE (-: standard input, also the\n"
    "default) is a prompt, or a JSON object with \"prompt\" or \"messages\" and further fields of\n"
    "the request. Such lines are answered by JSON lines:\n"
    "{\"index\":0,\"text\":...,\"response\":{...}}, or {\"index\":0,\"error\":...}.\n"
    "\n" ASK_USAGE "  --concurrency N       16                      requests at once\n"
    "  --json                                        JSON lines also for plain prompts\n"
    "  --raw                                         no chat template: prompts are continued\n"
    "\n"
    "Exit status: 0; 1 when a prompt has no answer; 2 usage.\n";

/* Read what there is. False: the input has ended, or the run stops. A terminal may give nothing for
 * hours, and signals go to the main thread: so the wait is cut in pieces. */
static bool generate_read(struct generate_input *input)
{
    struct pollfd ready = {.fd = input->fd, .events = POLLIN};
    ssize_t got;

    while (!generate_stop && poll(&ready, 1, GENERATE_TICK_MS) != 1)
        continue;
    if (generate_stop)
        return false;
    got = read(input->fd, input->bytes, sizeof input->bytes);
    input->at = 0;
    input->n = got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* Read a line of any length. False: the input has ended. */
static bool generate_read_line(struct generate_input *input, struct buf *line)
{
    while (input->at < input->n || generate_read(input)) {
        const char *from = input->bytes + input->at;
        const char *end = memchr(from, '\n', input->n - input->at);
        size_t len = end != NULL ? (size_t)(end - from) : input->n - input->at;

        buf_add(line, from, len);
        input->at += len + (end != NULL);
        if (end != NULL)
            return true;
    }
    return line->len > 0;
}

/* Take the next prompt that is not an empty line. False: there is none. */
static bool generate_take(struct generate *g, struct generate_item *item)
{
    bool good = false;

    buf_clear(&item->line);
    (void)pthread_mutex_lock(&g->input_lock);
    if (g->n_taken < (size_t)g->n_prompts) {
        buf_add_text(&item->line, g->prompts[g->n_taken]);
        good = true;
    }
    while (!good && !g->at_end && item->line.len == 0) {
        g->at_end = g->input.fd == -1 || !generate_read_line(&g->input, &item->line);
        good = item->line.len > 0;
    }
    item->idx = g->n_taken;
    g->n_taken += good;
    (void)pthread_mutex_unlock(&g->input_lock);
    return good;
}

/* Copy the members of the line's object into the body. A prompt of a chat becomes a message. */
static void generate_add_fields(struct generate_item *item)
{
    for (uint32_t i = 0; i < item->fields->n; i++) {
        const struct json *member = &item->fields->items[i];

        if (item->is_chat && strcmp(member->key, "prompt") == 0)
            continue;
        buf_add_json_string(&item->body, member->key, member->key_len);
        buf_add_byte(&item->body, ':');
        json_write(&item->body, member, JSON_EXACT);
        buf_add_byte(&item->body, ',');
    }
}

/* Read the line. A plain prompt is *text; so is the text of "prompt". False: it is not one of the
 * forms (why). */
static bool generate_parse(const struct generate *g, struct generate_item *item, const char **text,
                           size_t *len)
{
    const struct json *prompt;
    char why[256];

    *text = buf_text(&item->line);
    *len = item->line.len;
    item->fields = NULL;
    item->is_json = (*text)[strspn(*text, " \t")] == '{' && item->idx >= (size_t)g->n_prompts;
    item->is_chat = !g->is_raw;
    if (!item->is_json)
        return true;
    if (json_parse(&item->fields, &item->arena, *text, *len, why, sizeof why) != ERR_OK) {
        (void)snprintf(item->why, sizeof item->why, "the line is not JSON: %s", why);
        return false;
    }
    prompt = json_get(item->fields, "prompt");
    if (prompt == NULL && json_get(item->fields, "messages") == NULL) {
        (void)snprintf(item->why, sizeof item->why, "the line has no prompt and no messages");
        return false;
    }
    *text = NULL;
    if (json_get(item->fields, "messages") != NULL) {
        item->is_chat = true;
    } else if (prompt->kind == JSON_TEXT) {
        *text = prompt->text;
        *len = prompt->text_len;
    } else {
        item->is_chat = false; /* token ids, or several prompts */
    }
    return true;
}

/* Make the body of the request. Of members with equal names the last one counts, so those of the
 * line win over the options. */
static bool generate_make(const struct generate *g, struct generate_item *item)
{
    const char *text;
    size_t len;

    if (!generate_parse(g, item, &text, &len))
        return false;
    buf_clear(&item->body);
    buf_add_text(&item->body, "{\"model\":");
    buf_add_json_string(&item->body, g->ask.model, strlen(g->ask.model));
    buf_printf(&item->body, ",%s", buf_text(&g->ask.fields));
    if (item->fields != NULL)
        generate_add_fields(item);
    if (item->is_chat && text != NULL) {
        struct buf list = {0};

        if (g->ask.system[0] != '\0')
            ask_add_message(&list, "system", g->ask.system, strlen(g->ask.system));
        ask_add_message(&list, "user", text, len);
        buf_printf(&item->body, "\"messages\":[%s],", buf_text(&list));
        item->body.failed = item->body.failed || list.failed;
        buf_fini(&list);
    } else if (item->fields == NULL) {
        buf_add_text(&item->body, "\"prompt\":");
        buf_add_json_string(&item->body, text, len);
        buf_add_byte(&item->body, ',');
    }
    buf_add_text(&item->body, "\"stream\":false}");
    return true;
}

/* One attempt. ERR_OVERLOADED: the server is full or starts, *wait_s says for how long. Other
 * errors have their reason in why. */
static int generate_try(const struct generate *g, struct generate_item *item, struct buf *answer,
                        int *wait_s)
{
    struct http_request request = {.url = &g->ask.url,
                                   .path =
                                       item->is_chat ? "/v1/chat/completions" : "/v1/completions",
                                   .key = g->ask.key,
                                   .body = &item->body,
                                   .silence_s = ASK_SILENCE_S,
                                   .stop = &generate_stop};
    struct http http = HTTP_CLOSED;
    int rc = item->body.failed ? ERR_NO_MEMORY : http_ask(&http, &request);

    buf_clear(answer);
    if (rc == ERR_OK && http.status == 200) {
        rc = http_read_all(&http, answer);
    } else if (rc == ERR_OK) {
        ask_refusal(&http, item->why, sizeof item->why);
        *wait_s = http.retry_after_s < 1 ? 1 : http.retry_after_s;
        rc = http.status == 429 || http.status == 503 ? ERR_OVERLOADED : ERR_INVALID;
    }
    if (rc != ERR_OK && rc != ERR_OVERLOADED && rc != ERR_INVALID)
        (void)snprintf(item->why, sizeof item->why, "%s",
                       http.why[0] != '\0' ? http.why : err_sentence(rc));
    http_close(&http);
    return rc;
}

/* Ask, again while the server is full. */
static int generate_ask(const struct generate *g, struct generate_item *item, struct buf *answer)
{
    int rc = ERR_OVERLOADED, wait_s = 0;

    for (int i = 0; i < GENERATE_TRIES && rc == ERR_OVERLOADED && !generate_stop; i++) {
        if (i > 0)
            clock_sleep_us((uint64_t)(wait_s < GENERATE_WAIT_MAX_S ? wait_s : GENERATE_WAIT_MAX_S) *
                           1000000u);
        rc = generate_try(g, item, answer, &wait_s);
    }
    return rc;
}

/* Write the answer's line. False: the answer has no text (why). */
static bool generate_write(const struct generate *g, struct generate_item *item,
                           const struct buf *answer, struct buf *out)
{
    const struct json *whole, *text;

    if (json_parse(&whole, &item->arena, buf_text(answer), answer->len, NULL, 0) != ERR_OK) {
        (void)snprintf(item->why, sizeof item->why, "the answer is not JSON");
        return false;
    }
    if (item->is_chat)
        text = json_get(ask_first_choice(whole, "message"), "content");
    else
        text = ask_first_choice(whole, "text");
    if (!g->wants_json && !item->is_json) {
        if (text != NULL && text->kind == JSON_TEXT)
            buf_add(out, text->text, text->text_len);
        buf_add_byte(out, '\n');
        return true;
    }
    buf_printf(out, "{\"index\":%zu,\"text\":", item->idx);
    if (text == NULL) /* a call of a tool, for example: the response has it */
        buf_add_text(out, "null");
    else
        json_write(out, text, JSON_EXACT);
    buf_add_text(out, ",\"response\":");
    json_write(out, whole, JSON_EXACT);
    buf_add_text(out, "}\n");
    return true;
}

/* From a prompt to its line of output. False: there is no answer; why says the reason. */
static bool generate_one(const struct generate *g, struct generate_item *item, struct buf *out)
{
    struct buf answer = {0};
    bool good;

    item->why[0] = '\0';
    arena_reset(&item->arena);
    good = generate_make(g, item) && generate_ask(g, item, &answer) == ERR_OK &&
           generate_write(g, item, &answer, out);
    if (!good) {
        (void)fprintf(stderr, "%s: prompt %zu: %s\n", g->ask.command, item->idx, item->why);
        if (g->wants_json || item->is_json) {
            buf_printf(out, "{\"index\":%zu,\"error\":", item->idx);
            buf_add_json_string(out, item->why, strlen(item->why));
            buf_add_byte(out, '}');
        }
        buf_add_byte(out, '\n'); /* line n belongs to prompt n */
    }
    buf_fini(&answer);
    return good;
}

/* Put a line into its slot, and print what is complete. */
static void generate_print(struct generate *g, size_t idx, struct buf *out, bool good)
{
    struct generate_slot *slot = &g->slots[idx % GENERATE_WINDOW];

    (void)pthread_mutex_lock(&g->output_lock);
    slot->out = *out;
    slot->done = true;
    *out = (struct buf){0};
    g->n_failed += !good;
    while (g->slots[g->n_printed % GENERATE_WINDOW].done) {
        slot = &g->slots[g->n_printed++ % GENERATE_WINDOW];
        (void)fwrite(slot->out.bytes, 1, slot->out.len, stdout);
        buf_fini(&slot->out);
        slot->done = false;
    }
    (void)fflush(stdout);
    if (ferror(stdout) != 0)
        generate_stop = 1; /* nothing would be seen of further answers */
    (void)pthread_cond_broadcast(&g->printed);
    (void)pthread_mutex_unlock(&g->output_lock);
}

static void *generate_work(void *context)
{
    struct generate *g = context;
    struct generate_item item = {0};

    while (!generate_stop && generate_take(g, &item)) {
        struct buf out = {0};
        bool good;

        (void)pthread_mutex_lock(&g->output_lock);
        while (item.idx - g->n_printed >= GENERATE_WINDOW)
            (void)pthread_cond_wait(&g->printed, &g->output_lock);
        (void)pthread_mutex_unlock(&g->output_lock);
        good = generate_one(g, &item, &out);
        generate_print(g, item.idx, &out, good);
    }
    buf_fini(&item.line);
    buf_fini(&item.body);
    arena_reset(&item.arena);
    return NULL;
}

/* Run the threads to their end. The exit status. */
static int generate_run(struct generate *g)
{
    static pthread_t threads[GENERATE_THREADS_MAX];
    int n = 0;

    while (n < g->n_at_once && pthread_create(&threads[n], NULL, generate_work, g) == 0)
        n++;
    if (n == 0)
        (void)generate_work(g);
    while (n > 0)
        (void)pthread_join(threads[--n], NULL);
    if (g->n_failed > 0)
        (void)fprintf(stderr, "%s: %zu of %zu prompts have no answer\n", g->ask.command,
                      g->n_failed, g->n_taken);
    return !ask_could_print(&g->ask) || g->n_failed > 0 || generate_stop ? 1 : 0;
}

/* Take one option. The exit status, or -1 to go on. */
static int generate_option(struct generate *g, int opt, const char *value)
{
    char *end = NULL;

    switch (opt) {
    case ASK_HELP: (void)fputs(generate_usage, stdout); return 0;
    case '?': (void)fputs(generate_usage, stderr); return 2;
    case GENERATE_OPTION_PROMPT:
        if (g->n_prompts == GENERATE_PROMPTS) {
            (void)fprintf(stderr, "%s: more than %d prompts: put them into a file\n",
                          g->ask.command, GENERATE_PROMPTS);
            return 2;
        }
        g->prompts[g->n_prompts++] = value;
        return -1;
    case GENERATE_OPTION_AT_ONCE:
        g->n_at_once = (int)strtol(value, &end, 10);
        if (*end == '\0' && g->n_at_once >= 1 && g->n_at_once <= GENERATE_THREADS_MAX)
            return -1;
        (void)fprintf(stderr, "%s: --concurrency must be a number from 1 to %d\n", g->ask.command,
                      GENERATE_THREADS_MAX);
        return 2;
    case GENERATE_OPTION_JSON: g->wants_json = true; return -1;
    case GENERATE_OPTION_RAW: g->is_raw = true; return -1;
    default: return ask_take(&g->ask, opt, value) ? -1 : 2;
    }
}

/* Open what has the prompts. False: there is no such file, or nothing at all (told). */
static bool generate_open(struct generate *g, const char *path)
{
    if (path == NULL && (g->n_prompts > 0 || isatty(STDIN_FILENO))) {
        if (g->n_prompts == 0)
            (void)fputs(generate_usage, stderr);
        return g->n_prompts > 0;
    }
    if (path == NULL || strcmp(path, "-") == 0)
        g->input.fd = STDIN_FILENO;
    else
        g->input.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (g->input.fd == -1)
        perror(path);
    return g->input.fd != -1;
}

static void generate_on_signal(int number)
{
    (void)number;
    generate_stop = 1;
}

int quire_generate(int argc, char **argv)
{
    static const struct option options[] = {
        ASK_LONG_OPTIONS{"prompt", required_argument, NULL, GENERATE_OPTION_PROMPT},
        {"concurrency", required_argument, NULL, GENERATE_OPTION_AT_ONCE},
        {"json", no_argument, NULL, GENERATE_OPTION_JSON},
        {"raw", no_argument, NULL, GENERATE_OPTION_RAW},
        {NULL, 0, NULL, 0}};
    static struct generate generate = {.n_at_once = 16,
                                       .input = {.fd = -1},
                                       .input_lock = PTHREAD_MUTEX_INITIALIZER,
                                       .output_lock = PTHREAD_MUTEX_INITIALIZER,
                                       .printed = PTHREAD_COND_INITIALIZER};
    struct private_server server = PRIVATE_NONE;
    struct sigaction on_signal = {.sa_handler = generate_on_signal, .sa_flags = SA_RESETHAND};
    int opt, status, n_own;

    ask_init(&generate.ask, "quire generate");
    n_own = ask_take_settings(&generate.ask, argc, argv);
    while ((opt = getopt_long(n_own, argv, "", options, NULL)) != -1) {
        status = generate_option(&generate, opt, optarg);
        if (status != -1)
            return status;
    }
    if (n_own - optind > 1) {
        (void)fprintf(stderr, "quire generate: one file only; a prompt follows --prompt\n");
        return 2;
    }
    if (!generate_open(&generate, optind < n_own ? argv[optind] : NULL))
        return 2;
    (void)sigaction(SIGINT, &on_signal, NULL);
    (void)sigaction(SIGTERM, &on_signal, NULL);
    status = 1;
    if (ask_connect(&generate.ask, &server, &generate_stop))
        status = generate_run(&generate);
    private_end(&server);
    if (generate.input.fd != -1)
        (void)close(generate.input.fd); /* it was only read from */
    buf_fini(&generate.ask.fields);
    return status;
}
