/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompts of a file, in the forms in which people have them:
 *
 *   {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
 *   {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
 *   {"prompt": "...", "completion": "..."}   or with "output_tokens": N
 *
 * as a JSON list or as lines. Objects are found by their braces and read one at a time, because
 * the file that most people have is 670 MB. As in vLLM, the first question counts and the length of
 * its answer; very short and long ones are left out, and too few are used again. */
#include "tools/work.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"

#define FILE_LEN_MIN      4 /* vLLM's filter of ShareGPT */
#define FILE_INPUT_MAX    1024
#define FILE_TOTAL_MAX    2048
#define FILE_TOKEN_BYTES  4   /* of English text, for servers that do not count */
#define FILE_PRESET_OUT   128 /* tokens of an output whose length is not in the file */
#define FILE_COUNT_WAIT_S 60

struct file_span {
    const char *text;
    size_t len;
};

struct file {
    char *text; /* mapped */
    size_t len;
    struct file_span *spans; /* [n], the objects; in the items' arena */
    int n;
    bool counts; /* the server counts tokens */
};

static int file_open(struct file *f, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    void *p = MAP_FAILED;

    if (fd != -1 && fstat(fd, &st) == 0 && st.st_size > 0) {
        f->len = (size_t)st.st_size;
        p = mmap(NULL, f->len, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    if (p == MAP_FAILED)
        (void)fprintf(stderr, "quire bench serve: %s: %s\n", path,
                      fd != -1 && errno == 0 ? "empty" : strerror(errno));
    else
        f->text = p;
    if (fd != -1)
        (void)close(fd);
    return f->text != NULL ? ERR_OK : ERR_IO;
}

/* The end of the object that begins at `at`: after its closing brace; NULL: it has none. */
static const char *file_object_end(const char *at, const char *end)
{
    bool quoted = false;
    int depth = 0;

    for (; at < end; at++) {
        if (quoted) {
            at += *at == '\\';
            quoted = at >= end || *at != '"';
        } else if (*at == '"') {
            quoted = true;
        } else if (*at == '{') {
            depth++;
        } else if (*at == '}' && --depth == 0) {
            return at + 1;
        }
    }
    return NULL;
}

/* Count the objects, and note them if spans has room for them. */
static int file_find(const struct file *f, struct file_span *spans)
{
    const char *at = f->text, *end = f->text + f->len;
    int n = 0;

    while (at < end && (at = memchr(at, '{', (size_t)(end - at))) != NULL) {
        const char *after = file_object_end(at, end);

        if (after == NULL)
            break;
        if (spans != NULL)
            spans[n] = (struct file_span){at, (size_t)(after - at)};
        n++;
        at = after;
    }
    return n;
}

/* The text of a turn of a conversation, in either form; NULL: it has none. */
static const struct json *file_turn(const struct json *turns, uint32_t i)
{
    const struct json *text;

    if (turns == NULL || turns->n <= i)
        return NULL;
    text = json_get_kind(&turns->items[i], "value", JSON_TEXT);
    return text != NULL ? text : json_get_kind(&turns->items[i], "content", JSON_TEXT);
}

/* The question and the answer of an object. answer: NULL if it has none. */
static const struct json *file_question(const struct json *object, const struct json **answer)
{
    const struct json *turns = json_get_kind(object, "conversations", JSON_LIST);
    const struct json *question;
    uint32_t first = 0;

    if (turns == NULL)
        turns = json_get_kind(object, "messages", JSON_LIST);
    if (turns == NULL) {
        *answer = json_get_kind(object, "completion", JSON_TEXT);
        return json_get_kind(object, "prompt", JSON_TEXT);
    }
    if (turns->n > 0 && strcmp(json_get_text(&turns->items[0], "role", ""), "system") == 0)
        first = 1;
    question = file_turn(turns, first);
    *answer = file_turn(turns, first + 1);
    return question;
}

/* Ask the server for the number of a text's tokens. -1: it does not say. */
static int file_ask_count(const struct work_options *o, const struct json *text)
{
    struct http_request request = {
        .url = o->url, .path = "/tokenize", .key = o->key, .silence_s = FILE_COUNT_WAIT_S};
    struct http http = HTTP_CLOSED;
    struct arena arena = {0};
    struct buf body = {0}, answer = {0};
    const struct json *root = NULL;
    int n = -1;

    buf_add_text(&body, "{\"model\":");
    buf_add_json_string(&body, o->model, strlen(o->model));
    buf_add_text(&body, ",\"prompt\":");
    buf_add_json_string(&body, text->text, text->text_len);
    buf_add_byte(&body, '}');
    request.body = &body;
    if (!body.failed && http_ask(&http, &request) == ERR_OK && http.status == 200 &&
        http_read_all(&http, &answer) == ERR_OK &&
        json_parse(&root, &arena, buf_text(&answer), answer.len, NULL, 0) == ERR_OK)
        n = (int)json_get_int(root, "count", -1);
    http_close(&http);
    buf_fini(&body);
    buf_fini(&answer);
    arena_reset(&arena);
    return n;
}

/* Tokens of a text. After a server's first refusal all are estimated. */
static int file_count(struct file *f, const struct work_options *o, const struct json *text)
{
    int n = -1;

    if (f->counts && (n = file_ask_count(o, text)) < 0)
        f->counts = false;
    if (n >= 0)
        return n;
    return (int)((text->text_len + FILE_TOKEN_BYTES - 1) / FILE_TOKEN_BYTES);
}

/* Read an object into an item. False: it is not of a known form, or too short or long. Texts that
 * are too long by any count are not sent to be counted. */
static bool file_take(struct file *f, struct work *w, const struct work_options *o,
                      const struct file_span *span, struct work_item *item)
{
    struct arena arena = {0};
    const struct json *object, *question = NULL, *answer = NULL;
    struct buf text = {0};
    bool good = false;

    if (json_parse(&object, &arena, span->text, span->len, NULL, 0) == ERR_OK)
        question = file_question(object, &answer);
    if (question != NULL && question->text_len <= (size_t)16 * FILE_INPUT_MAX) {
        item->input_len = file_count(f, o, question);
        item->output_len = (int)json_get_int(object, "output_tokens", FILE_PRESET_OUT);
        if (o->file_output_len > 0)
            item->output_len = o->file_output_len;
        else if (answer != NULL)
            item->output_len = file_count(f, o, answer);
        good = item->input_len >= FILE_LEN_MIN && item->input_len <= FILE_INPUT_MAX &&
               item->output_len >= (o->file_output_len > 0 ? 1 : FILE_LEN_MIN) &&
               item->input_len + item->output_len <= FILE_TOTAL_MAX;
    }
    if (good) {
        buf_add_json_string(&text, question->text, question->text_len);
        item->prompt = text.failed ? NULL : arena_strndup(&w->arena, text.bytes, text.len);
        good = item->prompt != NULL;
    }
    buf_fini(&text);
    arena_reset(&arena);
    return good;
}

/* Objects in random order, until all items are filled. */
static int file_fill(struct file *f, struct work *w, const struct work_options *o, uint64_t *state)
{
    int n_taken = 0;

    for (int i = 0; i < f->n && n_taken < w->n; i++) {
        int other = i + (int)(work_uniform(state) * (f->n - i));
        struct file_span span = f->spans[other];

        f->spans[other] = f->spans[i];
        f->spans[i] = span;
        n_taken += file_take(f, w, o, &span, &w->items[n_taken]);
    }
    if (n_taken == 0) {
        (void)fprintf(stderr,
                      "quire bench serve: %s has no prompt of %d to %d tokens with an "
                      "answer\n",
                      o->path, FILE_LEN_MIN, FILE_INPUT_MAX);
        return ERR_INVALID;
    }
    if (n_taken < w->n)
        (void)fprintf(stderr, "quire bench serve: %s has %d usable prompts; they are used again\n",
                      o->path, n_taken);
    for (int i = n_taken; i < w->n; i++)
        w->items[i] = w->items[i - n_taken];
    return ERR_OK;
}

int work_read_file(struct work *w, const struct work_options *o, uint64_t *state)
{
    struct file f = {.counts = true};
    int rc = file_open(&f, o->path);

    if (rc != ERR_OK)
        return rc;
    f.n = file_find(&f, NULL);
    f.spans = arena_alloc(&w->arena, sizeof *f.spans * (size_t)(f.n + 1));
    if (f.spans != NULL)
        f.n = file_find(&f, f.spans);
    rc = f.spans != NULL ? file_fill(&f, w, o, state) : ERR_NO_MEMORY;
    w->counted = f.counts;
    (void)munmap(f.text, f.len);
    return rc;
}
