/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: templates render byte for byte as jinja2 with Hugging Face's settings renders them.
 * Method: the cases of tests/golden/text/make_jinja.py; more of them from the file that
 * QUIRE_JINJA_CASES names; bounds; chats. */
#include "text/template/jinja.h"

#include "tests/tap.h"
#include "text/file.h"
#include "text/template/chat.h"

static void check_case(const struct json *c, int *wrong)
{
    struct arena a = {0};
    struct buf out = {0};
    struct jinja *j = NULL;
    struct jinja_vars v;
    const struct json *source = json_get(c, "template");
    const struct json *context = json_get(c, "context");
    const char *want = json_get_text(c, "expected", NULL);
    const char *raised = json_get_text(c, "raised", "");
    char why[600] = "";
    uint32_t i;
    bool good;
    int rc = jinja_compile(&j, source->text, source->text_len, why, sizeof why);

    if (rc == ERR_OK) {
        jinja_vars_init(&v, &a);
        v.now_unix_s = json_get_int(c, "now", 0);
        for (i = 0; i < context->n; i++)
            jinja_vars_json(&v, context->items[i].key, &context->items[i]);
        rc = jinja_render(j, &v, &a, &out, why, sizeof why);
    }
    if (want != NULL)
        good = rc == ERR_OK && strcmp(out.len == 0 ? "" : out.bytes, want) == 0;
    else
        good = rc == ERR_INVALID || j == NULL;
    if (want == NULL && json_get_bool(c, "exact", false))
        good = good && strncmp(why, "line ", 5) == 0 && strstr(why, ": ") != NULL &&
               strcmp(strstr(why, ": ") + 2, raised) == 0;
    if (!good && ++*wrong <= 30)
        printf("# wrong: %s\n#   wanted %s %.300s\n#   got %d %.300s %s\n",
               json_get_text(c, "name", ""), want == NULL ? "an error" : "",
               want == NULL ? raised : want, rc, out.len == 0 ? "" : out.bytes, why);
    jinja_close(j);
    buf_fini(&out);
    arena_reset(&a);
}

static void test_file(const char *path)
{
    struct buf text = {0};
    struct arena a = {0};
    const struct json *cases = NULL;
    char why[600] = "";
    int wrong = 0;
    uint32_t i;

    if (ok(file_read(&text, NULL, path, (size_t)1 << 28, why, sizeof why) == ERR_OK &&
               json_parse(&cases, &a, text.bytes, text.len, why, sizeof why) == ERR_OK,
           "cases are read %s", why)) {
        for (i = 0; i < cases->n; i++)
            check_case(&cases->items[i], &wrong);
        is_int(wrong, 0, "%u templates render as jinja2 does", cases->n);
    }
    buf_fini(&text);
    arena_reset(&a);
}

static void test_bound(const char *source, int want)
{
    struct arena a = {.limit_bytes = (size_t)512 << 20};
    struct buf out = {0};
    struct jinja *j = NULL;
    struct jinja_vars v;
    char why[600] = "";
    int rc = jinja_compile(&j, source, strlen(source), why, sizeof why);

    jinja_vars_init(&v, &a);
    if (rc == ERR_OK)
        rc = jinja_render(j, &v, &a, &out, why, sizeof why);
    ok(rc == want, "bounded: %.60s: %d %s", source, rc, why);
    jinja_close(j);
    buf_fini(&out);
    arena_reset(&a);
}

static void test_bounds(void)
{
    char deep[4096];

    memset(deep, '(', sizeof deep / 2);
    memset(deep + sizeof deep / 2, ')', sizeof deep / 2);
    memcpy(deep, "{{", 2);
    deep[sizeof deep / 2 - 1] = '1';
    memcpy(deep + sizeof deep - 3, "}}", 2);
    deep[sizeof deep - 1] = '\0';
    test_bound(deep, ERR_LIMIT);
    test_bound("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", ERR_LIMIT);
    test_bound("{% for i in range(9999) %}{% for j in range(999) %}{% endfor %}{% endfor %}",
               ERR_LIMIT);
    test_bound("{{ range(1000000) }}", ERR_INVALID);
    test_bound("{{ 'aaaaaaaaaa' * 99999999 }}", ERR_LIMIT);
    test_bound("{% set ns = namespace(s='a') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
               "{% endfor %}",
               ERR_LIMIT);
    test_bound("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", ERR_LIMIT);
}

static void render_chat(const char *messages, const char *tools, bool go_on, int want_rc,
                        const char *want)
{
    static const char source[] = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% if "
                                 "m.tool_calls %}{{ m.tool_calls[0].function.arguments.a }}{% "
                                 "endif %}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}";
    struct arena a = {0};
    struct chat_prompt out = {0};
    struct chat *c = NULL;
    struct chat_request r = {.add_generation_prompt = !go_on, .continue_final_message = go_on};
    char path[200];
    char why[700] = "";
    FILE *f;
    int rc;

    (void)snprintf(path, sizeof path, "test_chat_template.jinja");
    f = fopen(path, "wb");
    if (f == NULL || fputs(source, f) < 0 || fclose(f) != 0)
        tap_skip_all("the current folder cannot be written");
    if (json_parse(&r.messages, &a, messages, strlen(messages), why, sizeof why) != ERR_OK ||
        (tools != NULL && json_parse(&r.tools, &a, tools, strlen(tools), why, sizeof why) != 0) ||
        chat_open(&c, tap_path("tests/golden/text/gpt2"), path, why, sizeof why) != ERR_OK) {
        ok(false, "a chat opens: %s", why);
        return;
    }
    rc = chat_render(c, &r, &a, &out);
    ok(rc == want_rc && (want == NULL || strcmp(out.text.bytes, want) == 0), "chat %s: %d %s %s",
       messages, rc, out.text.len == 0 ? "" : out.text.bytes, out.why);
    (void)remove(path);
    chat_close(c);
    chat_prompt_fini(&out);
    arena_reset(&a);
}

static void test_chats(void)
{
    render_chat("[{\"role\":\"user\",\"content\":\"hi\"}]", NULL, false, ERR_OK, "<user>hi>");
    render_chat("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                "{\"type\":\"text\",\"text\":\"b\"}]}]",
                NULL, false, ERR_OK, "<user>a\nb>");
    render_chat("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", NULL, false,
                ERR_INVALID, NULL);
    render_chat("[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{"
                "\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 7}\"}}]}]",
                "[]", false, ERR_OK, "<assistant>7>");
    render_chat("[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}]",
                NULL, false, ERR_INVALID, NULL);
    render_chat("[{\"role\":\"assistant\",\"content\":\"so far \"}]", NULL, true, ERR_OK,
                "<assistant>so far ");
    render_chat("[]", NULL, false, ERR_INVALID, NULL);
    render_chat("[{\"content\":\"x\"}]", NULL, false, ERR_INVALID, NULL);
}

int main(void)
{
    const char *more = getenv("QUIRE_JINJA_CASES");

    (void)setenv("TZ", "UTC", 1);
    test_file(tap_path("tests/golden/text/jinja.json"));
    if (more != NULL)
        test_file(more);
    test_bounds();
    test_chats();
    return tap_done();
}
