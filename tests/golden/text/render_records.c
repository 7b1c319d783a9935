/* SPDX-License-Identifier: Apache-2.0
 *
 * Renders chats for templates.py, which knows what jinja2 with Hugging Face's settings makes of
 * them.
 *
 *   render_records FOLDER TEMPLATE-FILE < records > answers
 *
 * A record is a line of JSON: {"raw", "messages", "tools", "documents", "kwargs",
 * "add_generation_prompt", "now"}. With "raw" it is TEMPLATE-FILE over "kwargs" alone, as they
 * are; else FOLDER's own template over a chat as the front says it. An answer: 'T' and the text or
 * 'E' and the reason, behind its length in 4 bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/file.h"
#include "text/template/chat.h"
#include "text/template/jinja.h"

static int render_raw(const struct jinja *j, const struct json *r, struct arena *a, struct buf *out,
                      char *why, size_t why_cap)
{
    const struct json *kwargs = json_get_kind(r, "kwargs", JSON_OBJECT);
    struct jinja_vars v;
    uint32_t i;

    jinja_vars_init(&v, a);
    v.now_unix_s = json_get_int(r, "now", 0);
    for (i = 0; kwargs != NULL && i < kwargs->n; i++)
        jinja_vars_json(&v, kwargs->items[i].key, &kwargs->items[i]);
    return jinja_render(j, &v, a, out, why, why_cap);
}

static int render_chat(const struct chat *c, const struct json *record, struct arena *a,
                       struct buf *out, char *why, size_t why_cap)
{
    struct chat_request r = {
        .messages = json_get(record, "messages"),
        .tools = json_get_kind(record, "tools", JSON_LIST),
        .documents = json_get_kind(record, "documents", JSON_LIST),
        .kwargs = json_get_kind(record, "kwargs", JSON_OBJECT),
        .add_generation_prompt = json_get_bool(record, "add_generation_prompt", true),
        .now_unix_s = json_get_int(record, "now", 0),
    };

    struct chat_prompt p = {0};
    int rc;

    r.continue_final_message = json_get_bool(record, "continue_final_message", false);
    rc = chat_render(c, &r, a, &p);
    buf_add(out, p.text.len == 0 ? "" : p.text.bytes, p.text.len);
    (void)snprintf(why, why_cap, "%s", p.why);
    chat_prompt_fini(&p);
    return rc;
}

static void answer(const struct chat *c, const struct jinja *j, const char *line, size_t len)
{
    struct arena a = {.limit_bytes = (size_t)256 << 20};
    const struct json *record = NULL;
    struct buf out = {0};
    char why[1000] = "";
    int rc = json_parse(&record, &a, line, len, why, sizeof why);
    const char *text;
    uint32_t n;

    if (rc != ERR_OK) {
        fprintf(stderr, "render_records: %s\n", why);
        exit(2);
    }
    if (json_get_bool(record, "raw", false))
        rc = render_raw(j, record, &a, &out, why, sizeof why);
    else
        rc = render_chat(c, record, &a, &out, why, sizeof why);
    text = rc != ERR_OK ? why : out.len == 0 ? "" : out.bytes;
    n = (uint32_t)(rc == ERR_OK ? out.len : strlen(why));
    (void)putchar(rc == ERR_OK ? 'T' : 'E');
    if (fwrite(&n, 4, 1, stdout) != 1 || fwrite(text, 1, n, stdout) != n)
        exit(2);
    buf_fini(&out);
    arena_reset(&a);
}

int main(int argc, char **argv)
{
    struct buf source = {0};
    struct chat *c = NULL;
    struct jinja *j = NULL;
    char why[700] = "two arguments are wanted";
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;

    if (argc != 3 ||
        file_read(&source, NULL, argv[2], (size_t)4 << 20, why, sizeof why) != ERR_OK ||
        jinja_compile(&j, source.len == 0 ? "" : source.bytes, source.len, why, sizeof why) !=
            ERR_OK ||
        chat_open(&c, argv[1], NULL, why, sizeof why) != ERR_OK) {
        fprintf(stderr, "render_records FOLDER TEMPLATE-FILE: %s\n", why);
        return 1;
    }
    while ((len = getline(&line, &cap, stdin)) > 0)
        answer(c, j, line, (size_t)len);
    free(line);
    jinja_close(j);
    chat_close(c);
    buf_fini(&source);
    return 0;
}
