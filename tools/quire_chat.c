/* SPDX-License-Identifier: Apache-2.0
 *
 * quire chat: a conversation in the terminal, over the HTTP API. Each turn sends the whole history,
 * and the server finds its beginning in the prefix cache.
 *
 * Ctrl-C while an answer comes closes the connection, which stops the sequence in the engine; what
 * has come stays in the history. With a model's folder a private server runs until the end. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/ask.h"
#include "tools/quire.h"

#define CHAT_DIM   "\033[2m" /* reasoning */
#define CHAT_PLAIN "\033[0m"

static volatile sig_atomic_t chat_interrupted;

struct chat {
    struct ask ask;
    struct buf messages; /* the history: JSON objects with commas between */
    struct buf text;     /* of the answer that comes */
    struct arena arena;  /* of one event */
    bool is_terminal;    /* someone types: prompt, hints and dim reasoning */
    bool is_reasoning;   /* reasoning is being printed */
};

static const char chat_usage[] =
    "usage: quire chat [FOLDER|FILE.gguf] [options] [-- settings]\n"
    "\n"
    "Talks with a model: of a running server (quire serve, or any with OpenAI's API), or one of\n"
    "this disk, which a private server loads. Lines go to the model; a line that ends with \\\n"
    "goes on in the next one.\n"
    "\n" ASK_USAGE "\n"
    "  /reset   begin a new conversation\n"
    "  /exit    end; so does Ctrl-D\n"
    "  Ctrl-C   stop the answer that comes\n";

static void chat_on_interrupt(int signal_number)
{
    (void)signal_number;
    chat_interrupted = 1;
}

/* Print a piece of an answer. Control characters could move a terminal's cursor or worse. */
static void chat_print(const struct chat *c, const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];

        if (!c->is_terminal || byte >= ' ' || byte == '\n' || byte == '\t')
            (void)putchar(byte);
    }
    (void)fflush(stdout);
}

/* Reasoning is shown dim on a terminal, and not at all elsewhere. */
static void chat_reason(struct chat *c, const struct json *text)
{
    if (text == NULL || !c->is_terminal)
        return;
    if (!c->is_reasoning)
        (void)fputs(CHAT_DIM, stdout);
    c->is_reasoning = true;
    chat_print(c, text->text, text->text_len);
}

static void chat_end_reasoning(struct chat *c)
{
    if (c->is_reasoning)
        (void)fputs(CHAT_PLAIN "\n", stdout);
    c->is_reasoning = false;
}

/* One event of the stream. ERR_INTERNAL: the server told an error (printed). */
static int chat_event(struct chat *c, const char *data, size_t len)
{
    const struct json *event, *delta, *content;
    int rc;

    arena_reset(&c->arena);
    rc = json_parse(&event, &c->arena, data, len, NULL, 0);
    if (rc != ERR_OK)
        return rc;
    if (json_get_kind(event, "error", JSON_OBJECT) != NULL) {
        chat_end_reasoning(c);
        (void)fprintf(stderr, "\n%s: %s\n", c->ask.command,
                      json_get_text(json_get(event, "error"), "message", "the server failed"));
        return ERR_INTERNAL;
    }
    delta = ask_first_choice(event, "delta");
    chat_reason(c, json_get_kind(delta, "reasoning", JSON_TEXT));
    content = json_get_kind(delta, "content", JSON_TEXT);
    if (content == NULL || content->text_len == 0)
        return ERR_OK;
    chat_end_reasoning(c);
    chat_print(c, content->text, content->text_len);
    buf_add(&c->text, content->text, content->text_len);
    return ERR_OK;
}

/* Read the stream to its end. ERR_IO (printed): it broke before [DONE]. */
static int chat_read_stream(struct chat *c, struct http *h)
{
    static const char data[] = "data: ", done[] = "data: [DONE]";
    struct buf line = {0};
    bool ended = false;
    int rc = ERR_OK;

    while (rc == ERR_OK && (rc = http_read_line(h, &line, &ended)) == ERR_OK) {
        if (ended || strcmp(buf_text(&line), done) == 0)
            break;
        if (line.len > strlen(data) && strncmp(line.bytes, data, strlen(data)) == 0)
            rc = chat_event(c, line.bytes + strlen(data), line.len - strlen(data));
    }
    if (rc == ERR_OK && ended) {
        (void)snprintf(h->why, sizeof h->why, "the answer was cut");
        rc = ERR_IO;
    }
    chat_end_reasoning(c);
    (void)putchar('\n');
    if (rc != ERR_OK && rc != ERR_INTERNAL && rc != ERR_CLIENT_GONE)
        (void)fprintf(stderr, "%s: %s\n", c->ask.command,
                      h->why[0] != '\0' ? h->why : err_sentence(rc));
    buf_fini(&line);
    return rc;
}

/* Send the history and print the answer as it comes. */
static int chat_answer(struct chat *c)
{
    struct buf body = {0};
    struct http_request request = {.url = &c->ask.url,
                                   .path = "/v1/chat/completions",
                                   .key = c->ask.key,
                                   .body = &body,
                                   .silence_s = ASK_SILENCE_S,
                                   .stop = &chat_interrupted};
    struct http http = HTTP_CLOSED;
    char text[512];
    int rc;

    buf_add_text(&body, "{\"model\":");
    buf_add_json_string(&body, c->ask.model, strlen(c->ask.model));
    buf_printf(&body, ",%s\"stream\":true,\"messages\":[%s]}", buf_text(&c->ask.fields),
               buf_text(&c->messages));
    buf_clear(&c->text);
    chat_interrupted = 0;
    rc = body.failed || c->messages.failed ? ERR_NO_MEMORY : http_ask(&http, &request);
    if (rc == ERR_OK && http.status == 200) {
        rc = chat_read_stream(c, &http);
    } else if (rc == ERR_OK) {
        ask_refusal(&http, text, sizeof text);
        (void)fprintf(stderr, "%s: %s\n", c->ask.command, text);
        rc = ERR_INVALID;
    } else if (rc != ERR_CLIENT_GONE) {
        (void)fprintf(stderr, "%s: %s\n", c->ask.command, http.why);
    }
    http_close(&http);
    buf_fini(&body);
    chat_interrupted = 0;
    return rc;
}

/* One turn. A turn without any answer is taken out of the history. */
static int chat_turn(struct chat *c, const struct buf *said)
{
    size_t before = c->messages.len;
    int rc;

    ask_add_message(&c->messages, "user", buf_text(said), said->len);
    rc = chat_answer(c);
    if (c->text.len > 0) {
        ask_add_message(&c->messages, "assistant", c->text.bytes, c->text.len);
    } else if (rc != ERR_OK) {
        c->messages.len = before;
        c->messages.bytes[before] = '\0';
    }
    if (rc == ERR_CLIENT_GONE)
        return ERR_OK; /* it was wanted */
    return rc;
}

static void chat_reset(struct chat *c)
{
    buf_clear(&c->messages);
    if (c->ask.system[0] != '\0')
        ask_add_message(&c->messages, "system", c->ask.system, strlen(c->ask.system));
}

/* Read a line, or several that end with a backslash. False: the input has ended. */
static bool chat_read(const struct chat *c, struct buf *said)
{
    char part[4096];

    buf_clear(said);
    if (c->is_terminal)
        (void)fputs("> ", stdout);
    (void)fflush(stdout);
    for (;;) { /* ends by the input */
        if (fgets(part, sizeof part, stdin) == NULL) {
            if (!ferror(stdin) || errno != EINTR)
                return said->len > 0;
            clearerr(stdin);
            buf_clear(said);
            (void)fputs(c->is_terminal ? "\n(/exit or Ctrl-D ends the chat)\n> " : "", stdout);
            (void)fflush(stdout);
            continue;
        }
        buf_add_text(said, part);
        if (said->len == 0 || said->bytes[said->len - 1] != '\n')
            continue; /* the rest of a long line */
        said->bytes[--said->len] = '\0';
        if (said->len == 0 || said->bytes[said->len - 1] != '\\')
            return true;
        said->bytes[said->len - 1] = '\n';
    }
}

/* Talk until the input ends. The exit status. */
static int chat_run(struct chat *c)
{
    struct buf said = {0};
    int rc = ERR_OK;

    chat_reset(c);
    if (c->is_terminal)
        printf("%s; /reset begins anew, /exit ends, Ctrl-C stops an answer\n", c->ask.model);
    while (ferror(stdout) == 0 && chat_read(c, &said) && strcmp(buf_text(&said), "/exit") != 0) {
        if (strcmp(buf_text(&said), "/reset") == 0)
            chat_reset(c);
        else if (said.len > 0 && said.bytes[0] == '/' && strchr(said.bytes, ' ') == NULL)
            (void)fprintf(stderr, "%s: there are /reset and /exit\n", c->ask.command);
        else if (said.len > 0)
            rc = chat_turn(c, &said);
    }
    buf_fini(&said);
    return ask_could_print(&c->ask) && rc == ERR_OK ? 0 : 1;
}

int quire_chat(int argc, char **argv)
{
    static const struct option options[] = {ASK_LONG_OPTIONS{NULL, 0, NULL, 0}};
    struct sigaction interrupt = {.sa_handler = chat_on_interrupt}; /* reads are not begun again */
    struct private_server server = PRIVATE_NONE;
    static struct chat chat;
    int opt, status = 1, n_own;

    ask_init(&chat.ask, "quire chat");
    n_own = ask_take_settings(&chat.ask, argc, argv);
    while ((opt = getopt_long(n_own, argv, "", options, NULL)) != -1) {
        if (opt == ASK_HELP) {
            (void)fputs(chat_usage, stdout);
            return 0;
        }
        if (opt == '?')
            (void)fputs(chat_usage, stderr);
        if (opt == '?' || !ask_take(&chat.ask, opt, optarg))
            return 2;
    }
    if (optind < n_own && !chat.ask.has_url)
        chat.ask.path = argv[optind++];
    if (optind != n_own) {
        (void)fputs(chat_usage, stderr);
        return 2;
    }
    chat.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    (void)sigaction(SIGINT, &interrupt, NULL);
    if (ask_connect(&chat.ask, &server, &chat_interrupted))
        status = chat_run(&chat);
    private_end(&server);
    buf_fini(&chat.ask.fields);
    buf_fini(&chat.messages);
    buf_fini(&chat.text);
    arena_reset(&chat.arena);
    return status;
}
