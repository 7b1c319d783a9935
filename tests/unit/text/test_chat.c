/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: every template gets messages in the form that it wants, a continued message ends the prompt
 * where Hugging Face ends it, and nothing that a request says becomes a control token.
 * Method: small templates; and, when QUIRE_TEST_DATA names a folder with templates/, each of these
 * over conversations without content, over the prefills of tests/golden/text/make_prefills.py, and
 * over every control token in every field, encoded by a tokenizer that has them all. */
#include "text/template/chat.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "tests/tap.h"
#include "text/file.h"
#include "text/tokenizer/tokenizer.h"

#define WORK "test_chat_work"

static const struct json *parse(struct arena *a, const char *text)
{
    const struct json *node = NULL;
    char why[300] = "";

    if (json_parse(&node, a, text, strlen(text), why, sizeof why) != ERR_OK) {
        printf("# %s: %s\n", why, text);
        exit(1);
    }
    return node;
}

static void write_file(const char *path, const char *text, size_t len)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(text, 1, len, f) != len || fclose(f) != 0)
        tap_skip_all("the current folder cannot be written");
}

static struct chat *open_source(const char *source)
{
    struct chat *c = NULL;
    char why[700] = "";

    write_file(WORK ".jinja", source, strlen(source));
    if (chat_open(&c, tap_path("tests/golden/text/gpt2"), WORK ".jinja", why, sizeof why) !=
        ERR_OK) {
        printf("# %s\n", why);
        exit(1);
    }
    (void)remove(WORK ".jinja");
    return c;
}

/* Render a chat given as JSON; the prompt is the caller's. */
static int render(const struct chat *c, struct arena *a, const char *messages, bool go_on,
                  struct chat_prompt *out)
{
    struct chat_request r = {.messages = parse(a, messages),
                             .add_generation_prompt = !go_on,
                             .continue_final_message = go_on,
                             .now_unix_s = 1700000000};

    return chat_render(c, &r, a, out);
}

static void check(const char *source, const char *messages, bool go_on, const char *want)
{
    struct chat *c = open_source(source);
    struct chat_prompt out = {0};
    struct arena a = {0};
    int rc = render(c, &a, messages, go_on, &out);

    if (want != NULL)
        is_text(rc == ERR_OK ? out.text.bytes : out.why, want, "%.50s <- %.60s", source, messages);
    else
        is_int(rc, ERR_INVALID, "%.50s <- %.60s: %s", source, messages, out.why);
    chat_prompt_fini(&out);
    chat_close(c);
    arena_reset(&a);
}

#define LOOP(inner) "{% for m in messages %}" inner "{% endfor %}"
#define USER(text)  "{\"role\":\"user\",\"content\":\"" text "\"}"
#define CALLED(content, arguments)                                                       \
    "{\"role\":\"assistant\"" content ",\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":" \
    "\"function\",\"function\":{\"name\":\"now\",\"arguments\":" arguments "}}]}"

static void test_forms(void)
{
    static const char two[] = "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                              "{\"type\":\"input_text\",\"text\":\"b\"}]}]";

    check(LOOP("{{ m.content }}"), two, false, "a\nb");
    check(LOOP("{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
               "<{{ p.text }}>{% endfor %}{% endif %}"),
          two, false, "<a><b>");
    check("{% macro say(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}"
          "{% endfor %}{% endif %}{% endmacro %}" LOOP("{{ say(m.content) }}"),
          two, false, "ab");
    check(LOOP("{% set c = m.content %}{% if c is string %}{{ c }}{% else %}{% for p in c %}"
               "{{ p['text'] }}{% endfor %}{% endif %}"),
          two, false, "ab");
    check(LOOP("{% for p in m.content %}{{ p['text'] }}{% endfor %}"), "[" USER("hi") "]", false,
          "hi");
}

static void test_content(void)
{
    static const char add[] = LOOP("{{ m.role + ':' + m.content + '.' }}"
                                   "{% for t in m.tool_calls %}{{ t.function.name }}{% endfor %}");
    static const char only_none[] =
        LOOP("{% if m.content is none %}{{ m.tool_calls[0].function.name + "
             "m.tool_calls[0].function.arguments }}{% elif m.content %}{{ m.content }}{% endif %}");

    check(add, "[" USER("a") "," CALLED(",\"content\":null", "{}") "]", false,
          "user:a.assistant:.now");
    check(add, "[" USER("a") "," CALLED("", "{}") "]", false, "user:a.assistant:.now");
    check(add, "[{\"role\":\"assistant\",\"reasoning\":\"r\",\"tool_calls\":null}]", false,
          "assistant:.");
    check(LOOP("{{ m.content }}{% if m.tool_calls is defined %}!{% endif %}"),
          "[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[],\"name\":null}]", false,
          "x");
    check(only_none, "[" USER("a") "," CALLED(",\"content\":null", "{\"zone\": 1}") "]", false,
          "anow{\"zone\": 1}");
}

static void test_arguments(void)
{
    static const char object[] = "[" USER("a") "," CALLED(",\"content\":\"\"", "{\"a\":7}") "]";
    static const char text[] =
        "[" USER("a") "," CALLED(",\"content\":\"\"", "\"{\\\"a\\\":7}\"") "]";
    static const char concat[] =
        LOOP("{% for t in m.tool_calls %}{{ 'f' + t.function.arguments }}{% endfor %}");
    static const char print[] =
        LOOP("{% for t in m.tool_calls %}{{ t.function.arguments }}{% endfor %}");

    check(concat, text, false, "f{\"a\":7}");
    check(concat, object, false, "f{\"a\": 7}");
    check(print, text, false, "{\"a\":7}");
    /* Gemma 4's prints a text as it is, and an object in a form of its own. */
    check(LOOP("{% for t in m.tool_calls %}{% if t.function.arguments is mapping %}"
               "{% for k, v in t.function.arguments | items %}{{ k }}:{{ v }};{% endfor %}"
               "{% else %}{{ t.function.arguments }}{% endif %}{% endfor %}"),
          text, false, "a:7;");
    check(LOOP("{% for t in m.tool_calls %}{{ t.function.arguments | tojson }}{% endfor %}"), text,
          false, "{\"a\": 7}");
    /* gpt-oss's first template looks for them beside the call's id. */
    check(LOOP("{% for t in m.tool_calls %}{{ t.name + (t.arguments | tojson) }}{% endfor %}"),
          text, false, "now{\"a\": 7}");
    /* Not to be found out at start: it wants a text in this conversation alone. */
    check(LOOP("{% for t in m.tool_calls %}{{ 'f' + t.function.arguments if m.odd else "
               "t.function.arguments | tojson }}{% endfor %}"),
          "[" USER("a") "," CALLED(",\"odd\":1", "\"{\\\"a\\\":7}\"") "]", false, "f{\"a\":7}");
}

static void test_reasoning(void)
{
    check(LOOP("{{ m.reasoning_content }}"),
          "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\"}]", false, "r");
    check(LOOP("{{ m['reasoning'] }}"),
          "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"r\"}]", false, "r");
    check(LOOP("{% if \"thinking\" in m %}{{ m.thinking }}{% endif %}"),
          "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning\":\"r\"}]", false, "r");
    check(LOOP("{% if m.thinking and m.content %}{{ raise_exception('both') }}{% endif %}"
               "{{ m.content }}"),
          "[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning\":\"r\"}]", false, "c");
    check(LOOP("{{ m.thinking }}"),
          "[{\"role\":\"assistant\",\"content\":\"\",\"thinking\":\"t\",\"reasoning\":\"r\"}]",
          false, "t");
}

static void test_system(void)
{
    static const char late[] =
        "[{\"role\":\"system\",\"content\":\"A\"},{\"role\":\"user\",\"content\":\"u\"},"
        "{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"B\"}]},"
        "{\"role\":\"user\",\"content\":\"v\"}]";
    static const char first[] =
        LOOP("{% if m.role == 'system' and not loop.first %}{{ raise_exception('first') }}"
             "{% endif %}{{ m.role[0] ~ m.content ~ ';' }}");

    check(LOOP("{{ m.role[0] ~ m.content ~ ';' }}"), late, false, "sA;uu;sB;uv;");
    check(first, late, false, "sA\n\nB;uu;uv;");
    check(first, "[" USER("u") ",{\"role\":\"system\",\"content\":\"B\"}]", false, "sB;uu;");
    check("{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}" LOOP(
              "{% if m.role != 'system' %};{{ m.content }}{% endif %}"),
          late, false, "A\n\nB;u;v");
}

static void test_errors(void)
{
    check("x\n\n{{ raise_exception('no, ' + messages[0].role) }}", "[" USER("a") "]", false,
          "chat template, line 3: no, user");
    check("\n{{ 1 + messages[0].content }}", "[" USER("a") "]", false,
          "chat template, line 2: unsupported operand type(s) for +: 'int' and 'str'");
}

static void test_tools_known(void)
{
    struct chat *none = open_source(LOOP("{{ m.content }}"));
    struct chat *some = open_source("{{ tools | tojson }}" LOOP("{{ m.content }}"));

    ok(!chat_knows_tools(none), "a template without tools is known as such");
    ok(chat_knows_tools(some), "and one that prints them");
    chat_close(none);
    chat_close(some);
}

static void test_marks(void)
{
    static const char plain[] = LOOP("<{{ m.role }}>{{ m.content }}\n");
    static const char strip[] = LOOP("<{{ m.role }}>{{ m.content | trim }}\n");

    check(plain, "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"<\"}]", true,
          "<user>a\n<assistant><");
    check(plain, "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"so far \"}]", true,
          "<user>a\n<assistant>so far ");
    check(strip, "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"so far \"}]", true,
          "<user>a\n<assistant>so far");
    check(plain, "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"\"}]", true,
          "<user>a\n<assistant>");
    check(plain,
          "[" USER("a") ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":"
                        "\"x\"},{\"type\":\"text\",\"text\":\"y \"}]}]",
          true, "<user>a\n<assistant>x\ny ");
    check("{{ messages[0].content }}", "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"x\"}]",
          true, NULL);
}

/* --- real templates ----------------------------------------------------------------------------*/

typedef void template_fn(const char *name, struct chat *c, void *context);

static void open_one(const char *root, const char *entry, template_fn *run, void *context)
{
    size_t n = strlen(entry);
    bool file = n > 6 && strcmp(entry + n - 6, ".jinja") == 0;
    struct chat *c = NULL;
    char name[300];
    char path[700];
    char why[700] = "";

    (void)snprintf(path, sizeof path, "%s/%s", root, entry);
    (void)snprintf(name, sizeof name, "%.*s", (int)(file ? n - 6 : n), entry);
    if (chat_open(&c, file ? tap_path("tests/golden/text/gpt2") : path, file ? path : NULL, why,
                  sizeof why) != ERR_OK)
        ok(false, "%s opens: %s", name, why);
    else if (chat_has_template(c))
        run(name, c, context);
    chat_close(c);
}

static bool each_template(template_fn *run, void *context)
{
    const char *data = getenv("QUIRE_TEST_DATA");
    struct dirent **entries = NULL;
    char root[600];
    int n;

    (void)snprintf(root, sizeof root, "%s/templates", data == NULL ? "" : data);
    n = data == NULL ? -1 : scandir(root, &entries, NULL, alphasort);
    if (n <= 0) {
        ok(true, "real templates # SKIP QUIRE_TEST_DATA names no folder with templates/");
        return false;
    }
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.')
            open_one(root, entries[i]->d_name, run, context);
        free(entries[i]);
    }
    free(entries);
    return true;
}

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"now\",\"description\":\"What time\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"zone\":{\"type\":\"string\","
    "\"description\":\"of time\"}},\"required\":[]}}}]";

/* Conversations in which %s stands for the content of a message that called tools: one each with
 * null, without content, and with an empty text make 30 and their 10 models. */
#define CALLS(more)                                                                        \
    ",\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":\"function\",\"function\":{\"name\":" \
    "\"now\",\"arguments\":\"{\\\"zone\\\": \\\"UTC\\\"}\"}}" more "]"
#define SECOND                                                                                   \
    ",{\"id\":\"abcdef124\",\"type\":\"function\",\"function\":{\"name\":\"now\",\"arguments\":" \
    "\"{}\"}}"
#define RESULT(id) \
    "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"name\":\"now\",\"content\":\"noon\"}"

static const char *const silent[] = {
    "[" USER("a") ",{\"role\":\"assistant\"%s" CALLS("") "}," RESULT("abcdef123") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s" CALLS("") "}," RESULT(
        "abcdef123") ",{\"role\":"
                     "\"assistant\",\"content\":\"Noon.\"}," USER("b") "]",
    "[{\"role\":\"system\",\"content\":\"s\"}," USER("a") ",{\"role\":\"assistant\"%s" CALLS(
        "") "}," RESULT("abcdef123") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s" CALLS(SECOND) "}," RESULT("abcdef123") "," RESULT(
        "abcdef124") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s" CALLS("") "}," RESULT(
        "abcdef123") ",{\"role\":"
                     "\"assistant\",\"content\":\"\"" CALLS("") "}," RESULT("abcdef123") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s,\"reasoning\":\"must ask\"" CALLS("") "}," RESULT(
        "abcdef123") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s,\"refusal\":null,\"audio\":null,\"function_call\":"
                  "null" CALLS("") "}," RESULT("abcdef123") "]",
    "[" USER("a") ",{\"role\":\"assistant\",\"content\":\"One.\"}," USER(
        "b") ",{\"role\":"
             "\"assistant\"%s" CALLS("") "}," RESULT("abcdef123") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s,\"reasoning_content\":\"only this\"}," USER("b") "]",
    "[" USER("a") ",{\"role\":\"assistant\"%s,\"tool_calls\":null}," USER("b") "]",
};

struct silence {
    int n_templates;
    int n_texts;
    int wrong;
};

static int render_silent(const struct chat *c, const char *format, const char *content,
                         struct chat_prompt *out)
{
    struct chat_request r = {.add_generation_prompt = true, .now_unix_s = 1700000000};
    struct arena a = {0};
    char messages[2000];
    const char *at = strstr(format, "%s");
    int rc;

    (void)snprintf(messages, sizeof messages, "%.*s%s%s", (int)(at - format), format, content,
                   at + 2);
    r.messages = parse(&a, messages);
    r.tools = parse(&a, tools);
    rc = chat_render(c, &r, &a, out);
    arena_reset(&a);
    return rc;
}

static void be_silent(const char *name, struct chat *c, void *context)
{
    static const char *const contents[] = {",\"content\":null", "", ",\"content\":\"\"",
                                           ",\"content\":\"x\""};
    struct silence *s = context;

    s->n_templates++;
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        struct chat_prompt out[4] = {{.raised = false}};
        bool called = false; /* it prints calls in one of the forms */
        bool good = true;
        int rc[4];

        for (int k = 0; k < 4; k++) {
            rc[k] = render_silent(c, silent[i], contents[k], &out[k]);
            called = called || (rc[k] == ERR_OK && strstr(out[k].text.bytes, "UTC") != NULL);
        }
        for (int k = 0; k < 3; k++) {
            good = good && rc[k] == rc[2] &&
                   (rc[k] != ERR_OK || (strcmp(out[k].text.bytes, out[2].text.bytes) == 0 &&
                                        (!called || strstr(out[k].text.bytes, "UTC") != NULL)));
            s->n_texts += rc[k] == ERR_OK;
        }
        if (!good && s->wrong++ < 10)
            printf("# %s, %zu: %d %d %d %s; ends %s\n", name, i, rc[0], rc[1], rc[2], out[0].why,
                   rc[0] == ERR_OK && out[0].text.len > 300
                       ? out[0].text.bytes + out[0].text.len - 300
                       : "");
        for (int k = 0; k < 4; k++)
            chat_prompt_fini(&out[k]);
    }
}

static void test_silent(void)
{
    struct silence s = {0};

    if (!each_template(be_silent, &s))
        return;
    ok(s.n_texts > s.n_templates * 20, "%d templates render %d conversations without content",
       s.n_templates, s.n_texts);
    is_int(s.wrong, 0, "a content that is null or missing is an empty one");
}

struct prefills {
    const struct json *golden;
    int n;
    int wrong;
};

static bool is_cut(const struct prefills *p, const struct chat *c, const struct json *row,
                   struct arena *a, struct chat_prompt *out)
{
    const struct json *earlier = json_get(p->golden, "earlier");
    const struct json *want = &row->items[2];
    struct json_made messages = {.arena = a};
    struct json_made last = messages;
    struct json list;
    struct chat_request r = {.continue_final_message = true,
                             .tools = json_get(p->golden, "tools"),
                             .now_unix_s = json_get_int(p->golden, "now", 0)};
    struct hash h;
    char hex[33];

    for (uint32_t i = 0; i < earlier->n; i++)
        json_put(&messages, NULL, &earlier->items[i]);
    json_put_text(&last, "role", "assistant");
    json_put(&last, "content", &row->items[1]);
    json_put_made(&messages, NULL, JSON_OBJECT, &last);
    list = json_made(&messages, JSON_LIST);
    r.messages = &list;
    if (chat_render(c, &r, a, out) != ERR_OK)
        return want->kind == JSON_NULL;
    if (want->kind == JSON_NULL)
        return false;
    h = hash_sha256(out->text.bytes, out->text.len, "", 0);
    hash_hex((const uint8_t *)&h, 8, hex);
    return (int64_t)out->text.len == want->items[0].whole && json_is_text(&want->items[1], hex);
}

static void go_on(const char *name, struct chat *c, void *context)
{
    struct prefills *p = context;
    const struct json *cases = json_get(p->golden, "cases");

    for (uint32_t i = 0; i < cases->n; i++) {
        const struct json *row = &cases->items[i];
        struct chat_prompt out = {0};
        struct arena a = {0};

        if (!json_is_text(&row->items[0], name))
            continue;
        p->n++;
        if (!is_cut(p, c, row, &a, &out) && p->wrong++ < 20) {
            size_t from = out.text.len > 60 ? out.text.len - 60 : 0;

            printf("# %s, prefill %u: %s, %zu bytes, ends \"%s\"\n", name, i, out.why, out.text.len,
                   out.text.len == 0 ? "" : out.text.bytes + from);
        }
        chat_prompt_fini(&out);
        arena_reset(&a);
    }
}

static void test_prefills(void)
{
    struct prefills p = {0};
    struct buf text = {0};
    struct arena a = {0};
    char why[300] = "";

    if (!ok(file_read(&text, NULL, tap_path("tests/golden/text/prefills.json"), (size_t)1 << 24,
                      why, sizeof why) == ERR_OK,
            "the prefills are read %s", why))
        return;
    p.golden = parse(&a, text.bytes);
    if (each_template(go_on, &p)) {
        ok(p.n >= 23 * 10, "%d prefills", p.n);
        is_int(p.wrong, 0, "prompts end where transformers ends them");
    }
    buf_fini(&text);
    arena_reset(&a);
}

/* --- control tokens ----------------------------------------------------------------------------*/

#define BAR "\xef\xbd\x9c"
#define LOW "\xe2\x96\x81"

/* What the templates write as control tokens; the tokenizer gets them all. Those with bars are left
 * ordinary, as some models' files have them. */
static const char *const controls[] = {"<|im_start|>",
                                       "<|im_end|>",
                                       "<|begin_of_text|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|eot_id|>",
                                       "<|eom_id|>",
                                       "<|python_tag|>",
                                       "<|user|>",
                                       "<|assistant|>",
                                       "<|system|>",
                                       "<|tool|>",
                                       "<|/tool|>",
                                       "<|tool_call|>",
                                       "<|end|>",
                                       "<|start|>",
                                       "<|message|>",
                                       "<|channel|>",
                                       "<|call|>",
                                       "<|return|>",
                                       "<|constrain|>",
                                       "<|endoftext|>",
                                       "<|START_OF_TURN_TOKEN|>",
                                       "<|END_OF_TURN_TOKEN|>",
                                       "<|SYSTEM_TOKEN|>",
                                       "<|USER_TOKEN|>",
                                       "<|CHATBOT_TOKEN|>",
                                       "<BOS_TOKEN>",
                                       "<start_of_turn>",
                                       "<end_of_turn>",
                                       "<bos>",
                                       "<eos>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "[TOOL_CALLS]",
                                       "[AVAILABLE_TOOLS]",
                                       "[/AVAILABLE_TOOLS]",
                                       "[TOOL_RESULTS]",
                                       "[/TOOL_RESULTS]",
                                       "<" BAR "User" BAR ">",
                                       "<" BAR "Assistant" BAR ">",
                                       "<" BAR "end" LOW "of" LOW "sentence" BAR ">",
                                       "<" BAR "tool" LOW "calls" LOW "begin" BAR ">",
                                       "<" BAR "tool" LOW "outputs" LOW "begin" BAR ">",
                                       "<unused7>",
                                       "<extra_id_0>",
                                       "<extra_id_1>"};

#define N_CONTROLS (sizeof controls / sizeof controls[0])

/* gpt2's small tokenizer with the tokens above added, in a folder of its own. */
static struct tokenizer *open_controls(void)
{
    static const char key[] = "\"added_tokens\":";
    struct tokenizer *t = NULL;
    struct buf file = {0};
    struct buf out = {0};
    char why[500] = "";
    const char *list;
    const char *end;

    if (file_read(&file, NULL, tap_path("tests/golden/text/gpt2/tokenizer.json"), (size_t)1 << 24,
                  why, sizeof why) != ERR_OK ||
        (list = strstr(file.bytes, key)) == NULL || (end = strchr(list, ']')) == NULL)
        tap_skip_all("there is no small tokenizer");
    buf_add(&out, file.bytes, (size_t)(list - file.bytes));
    buf_printf(&out, "%s[", key);
    for (size_t i = 0; i < N_CONTROLS; i++) {
        const char *c = controls[i];
        bool bars = strncmp(c, "<|im", 4) == 0 || strncmp(c, "<\xef", 2) == 0;

        buf_printf(&out, "%s{\"id\":%zu,\"content\":", i == 0 ? "" : ",", 460 + i);
        buf_add_json_string(&out, c, strlen(c));
        buf_printf(&out,
                   ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":%s,"
                   "\"special\":%s}",
                   strcmp(c, "<s>") == 0 ? "true" : "false", bars ? "false" : "true");
    }
    buf_add_text(&out, end);
    (void)mkdir(WORK, 0755);
    write_file(WORK "/tokenizer.json", out.bytes, out.len);
    if (tokenizer_open(&t, WORK, why, sizeof why) != ERR_OK) {
        printf("# %s\n", why);
        exit(1);
    }
    (void)remove(WORK "/tokenizer.json");
    (void)rmdir(WORK);
    buf_fini(&file);
    buf_fini(&out);
    return t;
}

static void test_control_kind(void)
{
    struct tokenizer *t = open_controls();
    int n = 0;

    for (size_t i = 0; i < N_CONTROLS; i++)
        n += tokenizer_is_control(t, tokenizer_find(t, controls[i], strlen(controls[i])));
    is_int(n, (int)N_CONTROLS, "tokens that control are known, special or named as such");
    ok(!tokenizer_is_control(t, 5) && !tokenizer_is_control(t, -1), "others are none");
    tokenizer_close(t);
}

/* A request with a place in every field for a text: @0 .. @9 and @a .. @e. */
#define PLACES "0123456789abcde"
static const char *const hostile_messages[] = {
    "[{\"role\":\"system\",\"content\":\"Be @0 brief.\"},{\"role\":\"user\",\"name\":\"Ann@1\","
    "\"content\":\"@2 Hi\"},{\"role\":\"assistant\",\"content\":\"ok@3\",\"reasoning\":\"hm @4\","
    "\"tool_calls\":[{\"id\":\"abcdef123\",\"type\":\"function\",\"function\":{\"name\":\"now@5\","
    "\"arguments\":{\"zone@6\":\"u@7\"}}}]},{\"role\":\"tool\",\"tool_call_id\":\"abcdef123\","
    "\"name\":\"now@5\",\"content\":\"noon @8\"},{\"role\":\"assistant\",\"content\":\"Noon.\"},"
    "{\"role\":\"user\",\"content\":\"thanks@9\"}]",
    /* for templates that know no system, or no result between others */
    "[{\"role\":\"user\",\"content\":\"@0 Hi @1\"},{\"role\":\"assistant\",\"content\":"
    "\"@2 ok\"},{\"role\":\"user\",\"content\":\"thanks@9\"}]"};
static const char hostile_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"now@a\",\"description\":\"What @b time\","
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"zone@c\":{\"type\":\"string\","
    "\"description\":\"of @d\",\"enum\":[\"u@d\"]}},\"required\":[]}}}]";
static const char hostile_documents[] = "[{\"title\":\"t@e\",\"text\":\"d@e\"}]";
static const char hostile_kwargs[] =
    "{\"date_string\":\"26@e\",\"reasoning_effort\":\"low@e\",\"bos_token_\":\"@e\"}";

/* The JSON with text in the place and nothing in all others. */
static const struct json *fill(struct arena *a, const char *json, char place, const char *text)
{
    struct buf b = {0};
    const struct json *node;

    for (; *json != '\0'; json++) {
        if (*json != '@') {
            buf_add_byte(&b, *json);
            continue;
        }
        if (*++json == place)
            buf_add_json_text(&b, text, strlen(text));
    }
    node = parse(a, b.bytes);
    buf_fini(&b);
    return node;
}

struct hiding {
    struct tokenizer *t;
    int conversation;
    int n_templates;
    int n_prompts;
    int n_found; /* prompts with another control token when these are looked for everywhere */
    int missed;  /* control tokens of templates that are not found */
    int let_in;
};

/* The control tokens of a prompt's ids. */
static int keep_controls(const struct tokenizer *t, struct token_list *ids)
{
    size_t n = 0;

    for (size_t i = 0; i < ids->len; i++)
        if (tokenizer_is_control(t, ids->ids[i]))
            ids->ids[n++] = ids->ids[i];
    ids->len = n;
    return (int)n;
}

/* Its control tokens with a text in the place; false when the template raises. */
static bool controls_of(const struct hiding *h, const struct chat *c, char place, const char *text,
                        struct token_list *own, struct token_list *all)
{
    struct chat_request r = {.add_generation_prompt = true, .now_unix_s = 1700000000};
    struct chat_prompt out = {0};
    struct arena a = {0};
    bool good;

    r.messages = fill(&a, hostile_messages[h->conversation], place, text);
    r.tools = fill(&a, hostile_tools, place, text);
    r.documents = fill(&a, hostile_documents, place, text);
    r.kwargs = fill(&a, hostile_kwargs, place, text);
    own->len = all->len = 0;
    good = chat_render(c, &r, &a, &out) == ERR_OK;
    if (good &&
        (tokenizer_encode_own(h->t, out.text.bytes, out.text.len, false, &out.own, own) != ERR_OK ||
         tokenizer_encode(h->t, out.text.bytes, out.text.len, false, all) != ERR_OK))
        exit(1);
    (void)keep_controls(h->t, own);
    (void)keep_controls(h->t, all);
    chat_prompt_fini(&out);
    arena_reset(&a);
    return good;
}

static bool same_ids(const struct token_list *a, const struct token_list *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->ids, b->ids, a->len * 4) == 0);
}

static void hide(const char *name, struct chat *c, void *context)
{
    struct hiding *h = context;
    struct token_list plain = {0};
    struct token_list own = {0};
    struct token_list all = {0};
    bool good;

    h->n_templates++;
    h->conversation = 0;
    good = controls_of(h, c, '-', "", &plain, &all);
    if (!good) {
        h->conversation = 1;
        good = controls_of(h, c, '-', "", &plain, &all);
    }
    if (!good || !same_ids(&plain, &all) || plain.len == 0) {
        printf("# %s: of %zu control tokens of its own %zu are found\n", name, all.len, plain.len);
        h->missed++;
    }
    for (const char *place = PLACES; good && *place != '\0'; place++) {
        for (size_t i = 0; i < N_CONTROLS; i++) {
            if (!controls_of(h, c, *place, controls[i], &own, &all))
                continue;
            h->n_prompts++;
            h->n_found += !same_ids(&all, &plain);
            if (!same_ids(&own, &plain) && h->let_in++ < 10)
                printf("# %s: %s in place %c\n", name, controls[i], *place);
        }
    }
    token_list_fini(&plain);
    token_list_fini(&own);
    token_list_fini(&all);
}

static void test_hidden(void)
{
    struct hiding h = {.t = open_controls()};

    if (each_template(hide, &h)) {
        is_int(h.missed, 0, "%d templates: their own control tokens are found", h.n_templates);
        is_int(h.let_in, 0, "%d prompts with a control token in a value: none of these is one",
               h.n_prompts);
        ok(h.n_found > 1000, "in %d of them it would have been", h.n_found);
    }
    tokenizer_close(h.t);
}

static void check_own(const char *source, const char *content, const char *want)
{
    struct chat *c = open_source(source);
    struct chat_prompt out = {0};
    struct arena a = {0};
    struct buf got = {0};
    struct json_made messages = {.arena = &a};
    struct json_made m = messages;
    struct json list;
    struct chat_request r = {0};
    bool in = false;

    json_put_text(&m, "role", "user");
    json_put_text(&m, "content", content);
    json_put_made(&messages, NULL, JSON_OBJECT, &m);
    list = json_made(&messages, JSON_LIST);
    r.messages = &list;
    if (chat_render(c, &r, &a, &out) != ERR_OK)
        buf_add_text(&got, out.why);
    for (size_t i = 0, s = 0; i < out.text.len; i++) {
        while (s < out.own.n && out.own.items[s].stop <= i)
            s++;
        if ((s < out.own.n && out.own.items[s].start <= i) != in) {
            buf_add_byte(&got, in ? ']' : '[');
            in = !in;
        }
        buf_add_byte(&got, out.text.bytes[i]);
    }
    if (in)
        buf_add_byte(&got, ']');
    is_text(got.bytes, want, "origins: %.70s", source);
    buf_fini(&got);
    chat_prompt_fini(&out);
    chat_close(c);
    arena_reset(&a);
}

/* What stands in [] is the template's own. */
static void test_origins(void)
{
    check_own("a{{ messages[0].content }}b", "xy", "[a]xy[b]");
    check_own("{{ '<' + messages[0].content ~ '>' }}", "x", "[<]x[>]");
    check_own("{{ ('<|' ~ messages[0].role ~ '|>') | trim }}", "x", "[<|user|>]");
    check_own("{% set c %}<{{ messages[0].content }}>{% endset %}{{ c[1:] }}", "xy", "xy[>]");
    check_own("{% macro m(c) %}({{ c }}){% endmacro %}{{ m(messages[0].content) | trim }}", " x ",
              "[(] x [)]");
    check_own("{{ ('a,' ~ messages[0].content ~ ',b').split(',') | join('-') }}", "x,y",
              "[a-]x[-]y[-b]");
    check_own("{{ ['<a>', messages[0].content] | join('') }}", "x", "[<a>]x");
    check_own("{{ '<a>X</a>'.replace('X', messages[0].content) }}", "x", "[<a>]x[</a>]");
    check_own("{{ '%s:%s' % ('<a>', messages[0].content) }}", "x", "[<a>:]x");
    check_own("{{ '{}:{}'.format('<a>', messages[0].content) }}", "x", "[<a>:]x");
    check_own("{{ messages[0].content.split('|')[1] }}", "a|<b>", "<b>");
    check_own("{{ messages[0].content | tojson }}", "x", "\"x\"");
    check_own("{{ messages[0].content | upper }}{{ '<a>' | upper }}", "x", "X[<A>]");
    check_own("{{ bos_token }}{{ messages[0].content }}", "<|start|>", "[<|start|>]<|start|>");
    check_own("{{ '<a>' * 2 }}{{ ('x' ~ messages[0].content)[::-1] }}", "y", "[<a><a>]y[x]");
    check_own("{{ ('<a>\\n' ~ messages[0].content) | indent(2) }}", "y", "[<a>\n]  y");
}

int main(void)
{
    (void)setenv("TZ", "UTC", 1);
    test_forms();
    test_content();
    test_arguments();
    test_reasoning();
    test_system();
    test_errors();
    test_tools_known();
    test_marks();
    test_origins();
    test_control_kind();
    test_silent();
    test_prefills();
    test_hidden();
    return tap_done();
}
