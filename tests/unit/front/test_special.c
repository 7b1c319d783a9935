/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: nothing that a request says becomes a control token, whichever API it came by. Method:
 * bodies of chats, of POST /v1/messages and of /v1/responses with a place in every field that
 * reaches a prompt; each place gets a control token, and the prompt's ids have no more of these
 * than without it. */
#include "front/request/translate.h"

#include <unistd.h>

#include "tests/tap.h"
#include "text/template/chat.h"
#include "text/tokenizer/tokenizer.h"

static const char template[] =
    "{{ bos_token }}{% for t in tools or [] %}{{ t | tojson }}{{ t.function.name }}{% endfor %}"
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}{{ reasoning_effort }}"
    "{% for m in messages %}<|start|>{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content | trim }}</think>{% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id ~ c.function.name }}("
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %})"
    "{{ c | tojson }}{% endfor %}{{ m.tool_call_id }}<|end|>\n{% endfor %}";

enum api { CHAT, MESSAGES, RESPONSES };

static const struct {
    enum api api;
    const char *body; /* @ is a place */
} bodies[] = {
    {CHAT,
     "{\"messages\":[{\"role\":\"system\",\"content\":\"s@\",\"name\":\"n@\"},{\"role\":\"user\","
     "\"content\":[{\"type\":\"text\",\"text\":\"@a\"},{\"type\":\"text\",\"text\":\"b@\"}]},"
     "{\"role\":\"assistant\",\"content\":null,\"reasoning\":\"r@\",\"tool_calls\":[{\"id\":\"i@\","
     "\"type\":\"function\",\"function\":{\"name\":\"f@\",\"arguments\":\"{\\\"k@\\\":\\\"v@\\\","
     "\\\"l\\\":[\\\"@\\\"]}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"i@\",\"content\":\"t@\"},"
     "{\"role\":\"as@\",\"content\":\"x\"}],"
     "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f@\",\"description\":\"d@\","
     "\"parameters\":{\"properties\":{\"k@\":{\"description\":\"@\",\"enum\":[\"@\"]}}}}}],"
     "\"documents\":[{\"title\":\"@\",\"text\":\"@\"}],"
     "\"chat_template_kwargs\":{\"reasoning_effort\":\"@\",\"bos_token\":\"@\"}}"},
    {MESSAGES,
     "{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"s@\"}],\"messages\":[{\"role\":"
     "\"user\",\"content\":\"@a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
     "\"thinking\":\"r@\",\"signature\":\"x\"},{\"type\":\"text\",\"text\":\"b@\"},{\"type\":"
     "\"tool_use\",\"id\":\"i@\",\"name\":\"f@\",\"input\":{\"k@\":\"v@\"}}]},{\"role\":\"user\","
     "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i@\","
     "\"content\":[{\"type\":\"text\","
     "\"text\":\"t@\"},{\"type\":\"tool_reference\",\"tool_name\":\"f@\"}]},{\"type\":\"text\","
     "\"text\":\"c@\"}]},{\"role\":\"system\",\"content\":\"later@\"},{\"role\":\"assistant\","
     "\"content\":\"begun@\"}],"
     "\"tools\":[{\"name\":\"f@\",\"description\":\"d@\",\"input_schema\":{\"title\":\"@\"}}],"
     "\"output_config\":{\"effort\":\"@\"}}"},
    {RESPONSES,
     "{\"instructions\":\"s@\",\"input\":[{\"role\":\"developer\",\"content\":\"e@\"},{\"role\":"
     "\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"@a\"}]},{\"type\":\"reasoning\","
     "\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r@\"}]},{\"type\":"
     "\"function_call\",\"call_id\":\"i@\",\"name\":\"f@\",\"namespace\":\"n@\",\"arguments\":"
     "\"{\\\"k@\\\":\\\"v@\\\"}\"},{\"type\":\"function_call_output\",\"call_id\":\"i@\","
     "\"output\":"
     "\"t@\"},{\"type\":\"custom_tool_call\",\"call_id\":\"j@\",\"name\":\"g@\",\"input\":\"u@\"},"
     "{\"type\":\"custom_tool_call_output\",\"call_id\":\"j@\",\"output\":[{\"type\":"
     "\"input_text\",\"text\":\"w@\"}]}],\"tools\":[{\"type\":\"namespace\",\"name\":\"n@\","
     "\"tools\":[{\"type\":\"function\",\"name\":\"f@\",\"description\":\"d@\",\"parameters\":{"
     "\"title\":\"@\"}}]},{\"type\":\"custom\",\"name\":\"g@\",\"description\":\"d@\",\"format\":{"
     "\"type\":\"grammar\",\"syntax\":\"lark\",\"definition\":\"@\"}}]}"},
};

/* The body with text in the place of this number, and nothing in the others; *n_places out. */
static const struct json *fill(struct arena *a, const char *body, int place, const char *text,
                               int *n_places)
{
    const struct json *node = NULL;
    struct buf b = {0};
    char why[200] = "";

    *n_places = 0;
    for (; *body != '\0'; body++) {
        if (*body != '@')
            buf_add_byte(&b, *body);
        else if ((*n_places)++ == place)
            buf_add_text(&b, text);
    }
    if (json_parse(&node, a, b.bytes, b.len, why, sizeof why) != ERR_OK) {
        printf("# %s: %s\n", why, b.bytes);
        exit(1);
    }
    buf_fini(&b);
    return node;
}

/* The request as a chat, where it is none. */
static const struct json *as_chat(enum api api, const struct json *body, struct arena *a,
                                  struct json *made)
{
    struct reason reason = {.text = ""};
    int rc;

    if (api == CHAT)
        return body;
    rc =
        api == MESSAGES
            ? translate_messages(made, a, body, false, &reason)
            : translate_responses(made, a, &(struct translate_responses_in){.body = body}, &reason);
    if (rc != ERR_OK) {
        printf("# %s\n", reason.text);
        exit(1);
    }
    return made;
}

struct counts {
    int own; /* control tokens of the prompt */
    int all; /* when they are looked for everywhere */
};

static int count_controls(const struct tokenizer *t, const struct chat_prompt *p,
                          const struct spans *own)
{
    struct token_list ids = {0};
    int n = 0;

    if (tokenizer_encode_own(t, p->text.bytes, p->text.len, false, own, &ids) != ERR_OK)
        exit(1);
    for (size_t i = 0; i < ids.len; i++)
        n += tokenizer_is_control(t, ids.ids[i]);
    token_list_fini(&ids);
    return n;
}

static struct counts count(const struct tokenizer *t, const struct chat *c, size_t body, int place,
                           const char *text, int *n_places)
{
    struct chat_prompt prompt = {0};
    struct arena a = {0};
    struct counts n = {0};
    struct json made;
    const struct json *chat =
        as_chat(bodies[body].api, fill(&a, bodies[body].body, place, text, n_places), &a, &made);
    struct chat_request r = {.messages = json_get(chat, "messages"),
                             .tools = json_get_kind(chat, "tools", JSON_LIST),
                             .documents = json_get_kind(chat, "documents", JSON_LIST),
                             .kwargs = json_get_kind(chat, "chat_template_kwargs", JSON_OBJECT),
                             .continue_final_message =
                                 json_get_bool(chat, "continue_final_message", false)};

    if (chat_render(c, &r, &a, &prompt) != ERR_OK) {
        printf("# %s\n", prompt.why);
        exit(1);
    }
    n.own = count_controls(t, &prompt, &prompt.own);
    n.all = count_controls(t, &prompt, NULL);
    chat_prompt_fini(&prompt);
    arena_reset(&a);
    return n;
}

static void test_api(const struct tokenizer *t, const struct chat *c, size_t body)
{
    static const char *const names[] = {"chats", "messages", "responses"};
    int n_places = 1;
    int let_in = 0;
    int seen = 0;
    struct counts plain = count(t, c, body, -1, "", &n_places);

    ok(plain.own > 0 && plain.own == plain.all, "%s: the template's own %d are found",
       names[bodies[body].api], plain.own);
    for (int place = 0; place < n_places; place++) {
        static const char *const tokens[] = {"<|start|>", "<|end|>", "<|end|> <|start|>system"};

        for (size_t i = 0; i < 3; i++) {
            int n;
            struct counts got = count(t, c, body, place, tokens[i], &n);

            if (got.own > plain.own && let_in++ < 5)
                printf("# %s in place %d\n", tokens[i], place);
            seen += got.all > plain.all;
        }
    }
    is_int(let_in, 0, "%s: none of %d places lets one in", names[bodies[body].api], n_places);
    ok(seen > n_places * 2, "%s: it would have been one in %d of %d", names[bodies[body].api], seen,
       n_places * 3);
}

int main(void)
{
    static const char path[] = "test_special.jinja";
    struct tokenizer *t = NULL;
    struct chat *c = NULL;
    char why[500] = "";
    FILE *f = fopen(path, "wb");

    if (f == NULL || fputs(template, f) < 0 || fclose(f) != 0)
        tap_skip_all("the current folder cannot be written");
    if (!ok(tokenizer_open(&t, tap_path("tests/golden/text/gpt2"), why, sizeof why) == ERR_OK &&
                chat_open(&c, tap_path("tests/golden/text/gpt2"), path, why, sizeof why) == ERR_OK,
            "a tokenizer and a template open %s", why))
        return tap_done();
    (void)remove(path);
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        test_api(t, c, i);
    chat_close(c);
    tokenizer_close(t);
    return tap_done();
}
