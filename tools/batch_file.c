/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of quire batch. The input is mapped and stays so; a line is parsed once to be checked
 * and once more when it is asked, so that only the custom_ids take memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "tools/batch.h"

#define BATCH_TOLD_MAX 20 /* wrong lines that are printed */

/* A file's whole text, mapped. An empty one has no text. */
static bool batch_map(int fd, const char **text, size_t *len)
{
    struct stat st;
    void *p;

    *text = "";
    *len = 0;
    if (fd == -1 || fstat(fd, &st) == -1)
        return false;
    if (!S_ISREG(st.st_mode)) {
        errno = EINVAL;
        return false;
    }
    if (st.st_size == 0)
        return true;
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return false;
    *text = p;
    *len = (size_t)st.st_size;
    return true;
}

/* The next line without its end. False: there is none. */
static bool batch_next(const char **at, const char *end, const char **line, size_t *len)
{
    const char *after;

    if (*at == end)
        return false;
    *line = *at;
    after = memchr(*at, '\n', (size_t)(end - *at));
    *at = after == NULL ? end : after + 1;
    *len = (size_t)((after == NULL ? end : after) - *line);
    return true;
}

static bool batch_is_blank(const char *line, size_t len)
{
    size_t i = 0;

    while (i < len && strchr(" \t\r", line[i]) != NULL)
        i++;
    return i == len;
}

/* The reason why a line is no request; NULL: it is one. */
static const char *batch_judge(const struct json *object, const char **custom_id)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-";
    const struct json *id = json_get_kind(object, "custom_id", JSON_TEXT);
    const struct json *body = json_get_kind(object, "body", JSON_OBJECT);
    const char *url = json_get_text(object, "url", "");

    if (id == NULL || id->text_len == 0 || json_has_nul(id))
        return "custom_id must be a text";
    if (strcmp(json_get_text(object, "method", ""), "POST") != 0)
        return "method must be POST";
    if (url[0] != '/' || url[strspn(url, plain)] != '\0')
        return "url must be the path of an endpoint, such as /v1/chat/completions";
    if (body == NULL)
        return "body must be an object";
    if (json_get_bool(body, "stream", false))
        return "a request of a batch cannot be streamed";
    *custom_id = id->text;
    return NULL;
}

/* Check a line and keep its custom_id. False: why has the reason. */
static bool batch_take(struct batch_file *f, struct batch_item *item, char *why, size_t cap)
{
    struct arena arena = {0};
    const struct json *object;
    const char *id = NULL, *reason = "the line is not an object";
    char syntax[160];

    if (json_parse(&object, &arena, item->line, item->len, syntax, sizeof syntax) != ERR_OK)
        (void)snprintf(why, cap, "the line is not JSON: %s", syntax);
    else if (object->kind != JSON_OBJECT || (reason = batch_judge(object, &id)) != NULL)
        (void)snprintf(why, cap, "%s", reason);
    else if ((item->custom_id = arena_strndup(&f->arena, id, strlen(id))) == NULL)
        (void)snprintf(why, cap, "out of memory");
    arena_reset(&arena);
    return item->custom_id != NULL;
}

static int batch_compare(const void *a, const void *b)
{
    const struct batch_item *x = *(struct batch_item *const *)a;
    const struct batch_item *y = *(struct batch_item *const *)b;
    int order = strcmp(x->custom_id, y->custom_id);

    return order != 0 ? order : (x->number > y->number) - (x->number < y->number);
}

/* Sort by custom_id. The number of those that come twice, printed. */
static size_t batch_sort(struct batch_file *f, const char *command, const char *path)
{
    size_t n_wrong = 0;

    for (size_t i = 0; i < f->n; i++)
        f->by_id[i] = &f->items[i];
    if (f->n > 0)
        qsort((void *)f->by_id, f->n, sizeof(struct batch_item *), batch_compare);
    for (size_t i = 1; i < f->n; i++) {
        const struct batch_item *a = f->by_id[i - 1], *b = f->by_id[i];

        if (strcmp(a->custom_id, b->custom_id) == 0 && n_wrong++ < BATCH_TOLD_MAX)
            (void)fprintf(stderr, "%s: %s:%zu: custom_id \"%s\" is also in line %zu\n", command,
                          path, b->number, b->custom_id, a->number);
    }
    return n_wrong;
}

/* Room for an item per line. */
static bool batch_reserve(struct batch_file *f, const char *text, const char *end)
{
    const char *line;
    size_t n = 0, len;

    while (batch_next(&text, end, &line, &len))
        n++;
    f->items = mem_zalloc_array(n + 1, sizeof *f->items);
    f->by_id = (struct batch_item **)mem_zalloc_array(n + 1, sizeof(struct batch_item *));
    return f->items != NULL && f->by_id != NULL;
}

/* Check all lines. The number of wrong ones, printed. */
static size_t batch_check(struct batch_file *f, const char *command, const char *path,
                          const char *text, size_t len)
{
    const char *end = text + len;
    size_t n_wrong = 0;
    struct batch_item item = {0};

    while (batch_next(&text, end, &item.line, &item.len)) {
        char why[256];

        item.number++;
        item.custom_id = NULL;
        if (batch_is_blank(item.line, item.len))
            continue;
        if (batch_take(f, &item, why, sizeof why))
            f->items[f->n++] = item;
        else if (n_wrong++ < BATCH_TOLD_MAX)
            (void)fprintf(stderr, "%s: %s:%zu: %s\n", command, path, item.number, why);
    }
    return n_wrong;
}

bool batch_file_read(struct batch_file *f, const char *command, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    const char *text;
    size_t len, n_wrong;

    if (!batch_map(fd, &text, &len)) {
        (void)fprintf(stderr, "%s: %s: %s\n", command, path, strerror(errno));
        if (fd != -1)
            (void)close(fd);
        return false;
    }
    (void)close(fd); /* the mapping stays */
    if (!batch_reserve(f, text, text + len)) {
        (void)fprintf(stderr, "%s: out of memory\n", command);
        return false;
    }
    n_wrong = batch_check(f, command, path, text, len);
    n_wrong += batch_sort(f, command, path);
    if (n_wrong > 0)
        (void)fprintf(stderr, "%s: %zu wrong lines in %s; nothing was asked\n", command, n_wrong,
                      path);
    return n_wrong == 0;
}

/* Note that the output has the item of a line. */
static void batch_note(struct batch_file *f, const char *line, size_t len)
{
    struct arena arena = {0};
    const struct json *object;
    struct batch_item key = {0}, *key_at = &key, **found = NULL;

    if (json_parse(&object, &arena, line, len, NULL, 0) == ERR_OK && object->kind == JSON_OBJECT) {
        size_t low = 0, high = f->n;

        key_at->custom_id = json_get_text(object, "custom_id", "");
        while (low < high) { /* number 0 sorts before each item of this custom_id */
            size_t middle = low + (high - low) / 2;

            if (batch_compare((const void *)&f->by_id[middle], (const void *)&key_at) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        if (low < f->n && strcmp(f->by_id[low]->custom_id, key.custom_id) == 0)
            found = &f->by_id[low];
    }
    if (found != NULL && !(*found)->is_done) {
        (*found)->is_done = true;
        f->n_done++;
    }
    arena_reset(&arena);
}

bool batch_file_resume(struct batch_file *f, const char *command, const char *path)
{
    const char *text, *at, *line;
    size_t len, whole;
    bool good;

    f->out = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (f->out != -1 && flock(f->out, LOCK_EX | LOCK_NB) == -1) {
        (void)fprintf(stderr, "%s: another process writes %s\n", command, path);
        return false;
    }
    if (!batch_map(f->out, &text, &len)) {
        (void)fprintf(stderr, "%s: %s: %s\n", command, path, strerror(errno));
        return false;
    }
    whole = len;
    while (whole > 0 && text[whole - 1] != '\n')
        whole--;
    at = text;
    for (size_t line_len; batch_next(&at, text + whole, &line, &line_len);)
        batch_note(f, line, line_len);
    if (len > 0)
        (void)munmap((void *)(uintptr_t)text, len);
    good = whole == len || ftruncate(f->out, (off_t)whole) == 0;
    if (!good)
        (void)fprintf(stderr, "%s: %s: %s\n", command, path, strerror(errno));
    return good;
}

bool batch_file_append(struct batch_file *f, const char *command, const struct buf *line)
{
    off_t before = lseek(f->out, 0, SEEK_END);
    size_t n = 0;

    while (n < line->len) {
        ssize_t got = write(f->out, line->bytes + n, line->len - n);

        if (got == -1 && errno == EINTR)
            continue;
        if (got == -1)
            break;
        n += (size_t)got;
    }
    if (n == line->len)
        return true;
    (void)fprintf(stderr, "%s: the output cannot be written: %s\n", command, strerror(errno));
    if (ftruncate(f->out, before) == -1)
        return false; /* the next run cuts the line off */
    return false;
}

void batch_file_fini(struct batch_file *f)
{
    if (f->out != -1)
        (void)close(f->out); /* every write was checked */
    f->out = -1;
    mem_free(f->items);
    f->items = NULL;
    mem_free((void *)f->by_id);
    f->by_id = NULL;
    arena_reset(&f->arena);
}
