/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: replies are taken apart as their formats want, whatever the cut into pieces. Method: a
 * table of replies with what is to be said; each in one piece, in two at every place, and byte by
 * byte, with like events joined. What is no call must come out as it went in. */
#include "text/output/reply.h"

#include "tests/tap.h"

#define TOOLS                                                                                   \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"," \
    "\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"x\":{\"type\":" \
    "\"number\"},\"b\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"l\":{\"type\":"     \
    "[\"array\",\"null\"]}}}}}]"

/* Events of a reply: content "..", reasoning R".." , a call name( args ). */
struct told {
    struct buf text;
    int kind, call;
};

static void said(void *arg, const struct reply_event *e)
{
    struct told *t = arg;

    if (e->kind == REPLY_CALL_BEGIN) {
        buf_printf(&t->text, "|%d:", e->call);
        buf_add(&t->text, e->bytes, e->len);
        buf_add_byte(&t->text, '(');
    } else if (e->kind == REPLY_CALL_END) {
        buf_add_byte(&t->text, ')');
    } else {
        if ((int)e->kind != t->kind && e->kind != REPLY_CALL_ARGS)
            buf_add_text(&t->text, e->kind == REPLY_CONTENT ? "|C:" : "|R:");
        if (e->len == 0)
            buf_add_text(&t->text, "EMPTY");
        buf_add(&t->text, e->bytes, e->len);
    }
    t->kind = (int)e->kind;
}

static const struct json *tools;

/* Cut the text at `cut`, or everywhere when it is 0. */
static void tell(struct told *t, enum reply_format format, enum reply_reasoning reasoning,
                 bool inside, const char *text, size_t cut)
{
    struct reply_options o = {
        .format = format, .reasoning = reasoning, .begins_inside = inside, .tools = tools};
    struct reply r;
    size_t len = strlen(text);

    buf_clear(&t->text);
    t->kind = -1;
    reply_init(&r, &o, said, t);
    if (cut > 0) {
        must_ok(reply_push(&r, text, cut));
        must_ok(reply_push(&r, text + cut, len - cut));
    } else {
        for (size_t i = 0; i < len; i++)
            must_ok(reply_push(&r, text + i, 1));
    }
    must_ok(reply_finish(&r));
    reply_fini(&r);
    buf_add(&t->text, "", 0);
}

static void check(enum reply_format format, enum reply_reasoning reasoning, bool inside,
                  const char *text, const char *want)
{
    struct told t = {0};
    size_t len = strlen(text), cut;

    tell(&t, format, reasoning, inside, text, len);
    is_text(t.text.bytes, want, "format %d: %.60s", (int)format, text);
    for (cut = 0; cut < len; cut++) {
        tell(&t, format, reasoning, inside, text, cut);
        if (strcmp(t.text.bytes, want) != 0)
            break;
    }
    ok(cut == len, "cut anywhere");
    if (cut < len)
        printf("# at %zu: %s\n", cut, t.text.bytes);
    buf_fini(&t.text);
}

#define BAR          "\xef\xbd\x9c"
#define LOW          "\xe2\x96\x81"
#define DS_CALLS     "<" BAR "tool" LOW "calls" LOW "begin" BAR ">"
#define DS_CALLS_END "<" BAR "tool" LOW "calls" LOW "end" BAR ">"
#define DS_CALL      "<" BAR "tool" LOW "call" LOW "begin" BAR ">"
#define DS_END       "<" BAR "tool" LOW "call" LOW "end" BAR ">"
#define DS_SEP       "<" BAR "tool" LOW "sep" BAR ">"

static const struct {
    enum reply_format format;
    const char *text, *want;
} calls[] = {
    {REPLY_PLAIN, "<tool_call>{}</tool_call> ", "|C:<tool_call>{}</tool_call> "},
    /* hermes */
    {REPLY_HERMES, "Hello there.", "|C:Hello there."},
    {REPLY_HERMES, "  a \n b  ", "|C:  a \n b  "},
    {REPLY_HERMES,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, {\"b\": \"}\"}]}}\n</tool_call>",
     "|0:f({\"a\": [1, {\"b\": \"}\"}]})"},
    {REPLY_HERMES,
     "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
     "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"g\"}</tool_call>\n",
     "|C:Let me look.|0:f({})|1:g({\"x\": 1})"},
    {REPLY_HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>", "|0:f({})"},
    {REPLY_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}</tool_call>",
     "|0:f({\"a\": 1})"},
    {REPLY_HERMES,
     "<tool_call>{\"id\": 5, \"x\": [\"}\"], \"name\": \"f\", \"arguments\": {}, "
     "\"y\": null}</tool_call> done",
     "|0:f({})|C:done"},
    {REPLY_HERMES, "<tool_call>no JSON</tool_call> then", "|C:<tool_call>no JSON</tool_call> then"},
    {REPLY_HERMES, "<tool_call>{\"arguments\": {}}</tool_call>",
     "|C:<tool_call>{\"arguments\": {}}</tool_call>"},
    {REPLY_HERMES, "a < b <tool", "|C:a < b <tool"},
    {REPLY_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\\"",
     "|0:f({\"a\": \"\\\""},
    {REPLY_HERMES, "<tool_call>{\"name\": \"f", "|C:<tool_call>{\"name\": \"f"},
    /* llama3_json */
    {REPLY_LLAMA3, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|0:f({\"a\": 1})"},
    {REPLY_LLAMA3,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
     "\"arguments\": {\"b\": 2}}",
     "|0:f({})|1:g({\"b\": 2})"},
    {REPLY_LLAMA3, "{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}", "|0:f({})"},
    {REPLY_LLAMA3, "{\"answer\": 42, \"name\": \"f\"}", "|C:{\"answer\": 42, \"name\": \"f\"}"},
    {REPLY_LLAMA3, "Yes: {\"name\": \"f\", \"parameters\": {}}",
     "|C:Yes: {\"name\": \"f\", \"parameters\": {}}"},
    {REPLY_LLAMA3, "{1}", "|C:{1}"},
    /* mistral */
    {REPLY_MISTRAL,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "|0:f({\"a\": 1})|1:g({})"},
    {REPLY_MISTRAL, "Well. [TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]",
     "|C:Well.|0:f({})"},
    {REPLY_MISTRAL, "[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]abcdefghi[ARGS]{}",
     "|0:f({\"a\": 1})|1:g({})"},
    {REPLY_MISTRAL, "[TOOL_CALLS]f{\"a\": {\"b\": []}}", "|0:f({\"a\": {\"b\": []}})"},
    {REPLY_MISTRAL, "[TOOL", "|C:[TOOL"},
    {REPLY_MISTRAL, "[TOOL_CALLS][5]", "|C:[TOOL_CALLS][5]"},
    /* qwen3_coder */
    {REPLY_QWEN3_CODER,
     "I will.\n<tool_call>\n<function=f>\n<parameter=s>\n</function> 5\n</parameter>\n"
     "<parameter=i>\n-7\n</parameter>\n<parameter=x>2.50</parameter><parameter=b>\nTrue\n"
     "</parameter>\n</function>\n</tool_call>",
     "|C:I will.|0:f({\"s\": \"</function> 5\", \"i\": -7, \"x\": 2.5, \"b\": true})"},
    {REPLY_QWEN3_CODER,
     "<tool_call><function=f><parameter=o>\n{'a': (1, None), \"b\": [True,]}\n</parameter>"
     "<parameter=l>null</parameter><parameter=z>\n 5 \n</parameter></function></tool_call>",
     "|0:f({\"o\": {\"a\": [1, null], \"b\": [true]}, \"l\": null, \"z\": \" 5 \"})"},
    {REPLY_QWEN3_CODER, "<function=f></function><function=g>\n</function>", "|0:f({})|1:g({})"},
    {REPLY_QWEN3_CODER, "<tool_call>{}", "|C:<tool_call>{}"},
    /* pythonic */
    {REPLY_PYTHONIC, "[f(a=1, b=\"x\\n\", c=[1, {'k': None}], d=-2.5e3), g()]",
     "|0:f({\"a\": 1, \"b\": \"x\\n\", \"c\": [1, {\"k\": null}], \"d\": -2500.0})|1:g({})"},
    {REPLY_PYTHONIC, "<|python_start|>[f(a='\\u00e9\\'')]<|python_end|> ok",
     "|0:f({\"a\": \"\xc3\xa9'\"})|C:ok"},
    {REPLY_PYTHONIC, "[1, 2, 3]", "|C:[1, 2, 3]"},
    {REPLY_PYTHONIC, "[f(a=1), g(]", "|C:[f(a=1), g(]"},
    {REPLY_PYTHONIC, "[f(1)]", "|C:[f(1)]"},
    {REPLY_PYTHONIC, "Hello [f()]", "|C:Hello [f()]"},
    /* deepseek */
    {REPLY_DEEPSEEK_V3,
     "Sure." DS_CALLS DS_CALL "function" DS_SEP "f\n```json\n{\"a\": 1}\n```" DS_END "\n" DS_CALL
     "function" DS_SEP "g\n```json\n{}\n```" DS_END DS_CALLS_END,
     "|C:Sure.|0:f({\"a\": 1})|1:g({})"},
    {REPLY_DEEPSEEK_V31,
     DS_CALLS DS_CALL "f" DS_SEP "{\"a\": 1}" DS_END DS_CALL "g" DS_SEP "{}" DS_END DS_CALLS_END,
     "|0:f({\"a\": 1})|1:g({})"},
    {REPLY_DEEPSEEK_V31, DS_CALLS DS_CALL "f" DS_SEP "x", "|C:" DS_CALL "f" DS_SEP "x"},
    /* kimi_k2, glm45 */
    {REPLY_KIMI_K2,
     "Ok<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}"
     "<|tool_call_end|><|tool_calls_section_end|>",
     "|C:Ok|0:f({\"a\": 1})|1:g({})"},
    {REPLY_GLM45,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>5</arg_value>\n<arg_key>i</arg_key>\n"
     "<arg_value>6</arg_value>\n<arg_key>z</arg_key><arg_value>[1]</arg_value>\n</tool_call>\n"
     "<tool_call>g</tool_call>",
     "|0:f({\"s\": \"5\", \"i\": 6, \"z\": [1]})|1:g({})"},
    /* gemma4 */
    {REPLY_GEMMA4,
     "Ok.\n<|tool_call>call:f{s:<|\"|>a, \"b\" {}\\<|\"|>,i:7,z:[1,<|\"|>x<|\"|>,true,null],"
     "o:{k:<|\"|><|\"|>,m:{},l:[]}}<tool_call|><|tool_call>call:g{}<tool_call|>",
     "|C:Ok.|0:f({\"s\": \"a, \\\"b\\\" {}\\\\\", \"i\": 7, \"z\": [1, \"x\", true, null], "
     "\"o\": {\"k\": \"\", \"m\": {}, \"l\": []}})|1:g({})"},
    /* spaces, marked keys, strings of JSON, words without marks */
    {REPLY_GEMMA4,
     "<|tool_call>call: f { <|\"|>a b<|\"|> : \"x, }\\\"\" , b : 1.5e3 , c : Oslo, d:None}"
     "<tool_call|>",
     "|0:f({\"a b\": \"x, }\\\"\", \"b\": 1500.0, \"c\": \"Oslo\", \"d\": null})"},
    /* the bracket is forgotten; the call is cut; a value is no value; no call */
    {REPLY_GEMMA4, "<|tool_call>call:f{i:7<tool_call|>So.", "|0:f({\"i\": 7})|C:So."},
    {REPLY_GEMMA4, "<|tool_call>call:f{i:7}<tool_call|><|tool_response>", "|0:f({\"i\": 7})"},
    {REPLY_GEMMA4, "<|tool_call>call:f{i:7,s:<|\"|>a", "|0:f({\"i\": 7"},
    {REPLY_GEMMA4, "<|tool_call>call:f{z:[1 2},}<tool_call|>", "|0:f({\"z\": \"[1 2}\"})"},
    {REPLY_GEMMA4, "<|tool_call>f{}<tool_call|>", "|C:<|tool_call>f{}<tool_call|>"},
    /* harmony */
    {REPLY_HARMONY,
     "<|channel|>analysis<|message|>Let me see.\n<|end|><|start|>assistant<|channel|>final"
     "<|message|>It is 5.<|return|>",
     "|R:Let me see.|C:It is 5."},
    {REPLY_HARMONY,
     "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"a\": 1}<|call|>",
     "|R:x|0:f({\"a\": 1})"},
    {REPLY_HARMONY,
     " to=functions.g<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>"
     "commentary<|message|>And now<|end|>",
     "|0:g({})|C:And now"},
    {REPLY_HARMONY, "no channels", "|C:no channels"},
    /* text outside of messages is not lost */
    {REPLY_HARMONY, "Well.<|channel|>final<|message|>It is 5.<|return|>", "|C:Well.It is 5."},
    {REPLY_HARMONY,
     "<|channel|>analysis<|message|>x<|end|>Stray. <|start|>assistant<|channel|>final<|message|>5",
     "|R:x|C:Stray. 5"},
    {REPLY_HARMONY, "<|channel|>final<|message|>5<|end|> and<|message|>6<|return|>", "|C:5 and6"},
    {REPLY_HARMONY, "<|channel|>final<|message|>5<|end|>More", "|C:5More"},
    {REPLY_HARMONY, "<|start|>assistant to=functions.g<|channel|>commentary<|message|>{}<|call|>",
     "|0:g({})"},
    /* a list in JSON */
    {REPLY_LIST,
     "[{\"name\": \"f\", \"parameters\": {\"a\": [1]}}, {\"name\": \"g\", \"parameters\": {}}]",
     "|0:f({\"a\": [1]})|1:g({})"},
    {REPLY_LIST, "[1, 2]", "|C:[1, 2]"},
    {REPLY_LIST, "Well: [{\"name\": \"f\"}]", "|C:Well: [{\"name\": \"f\"}]"},
    /* numbers beyond a double's range stay as they are */
    {REPLY_PYTHONIC, "[f(a=1e400, b=[-1E+999])]", "|0:f({\"a\": 1e400, \"b\": [-1E+999]})"},
};

static const struct {
    enum reply_format format;
    enum reply_reasoning reasoning;
    bool inside;
    const char *text, *want;
} thoughts[] = {
    {REPLY_PLAIN, REPLY_THINK, false, "<think>\nWell,\n so.\n</think>\n\nYes.",
     "|R:Well,\n so.|C:Yes."},
    {REPLY_PLAIN, REPLY_THINK, true, "Well.\n</think>\n\nYes.\n", "|R:Well.|C:Yes.\n"},
    {REPLY_PLAIN, REPLY_THINK, false, "Yes. <think>", "|C:Yes. <think>"},
    {REPLY_PLAIN, REPLY_THINK, false, "\n<think>\n\n</think>\n\nYes.", "|C:Yes."},
    {REPLY_PLAIN, REPLY_THINK, true, "and so on </thin", "|R:and so on </thin"},
    {REPLY_HERMES, REPLY_THINK, false,
     "<think>a</think>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "|R:a|0:f({})"},
    {REPLY_MISTRAL, REPLY_THINK_BRACKETS, false, "[THINK]a[/THINK]b[TOOL_CALLS]f[ARGS]{}",
     "|R:a|C:b|0:f({})"},
    {REPLY_GEMMA4, REPLY_THINK_CHANNEL, false,
     "<|channel>thought\nHm.\n<channel|>Yes.<|tool_call>call:f{i:1}<tool_call|>",
     "|R:Hm.|C:Yes.|0:f({\"i\": 1})"},
    {REPLY_GEMMA4, REPLY_THINK_CHANNEL, false, "<|channel>thought\n<channel|>Yes.", "|C:Yes."},
    {REPLY_GEMMA4, REPLY_THINK_CHANNEL, false, "<|channel>Yes.", "|C:<|channel>Yes."},
    {REPLY_PLAIN, REPLY_NO_REASONING, false, "<think>a</think>b", "|C:<think>a</think>b"},
};

static void test_names(void)
{
    ok(reply_format_named("hermes") == REPLY_HERMES &&
           reply_format_named("openai") == REPLY_HARMONY &&
           reply_format_named("kimi_k2") == REPLY_KIMI_K2,
       "formats have vLLM's names");
    is_int(reply_format_named("x"), REPLY_FORMATS, "and no other");
    is_int(reply_format_of("{{ x }}"), REPLY_PLAIN, "a template without calls");
    is_int(reply_format_of("a <tool_call> b"), REPLY_HERMES, "one with hermes' tag");
    is_int(reply_format_of("<tool_call>\n<function=x><parameter=y>"), REPLY_QWEN3_CODER,
           "with functions in it");
    is_int(reply_format_of("<function=x>{}</function>"), REPLY_PLAIN, "functions of JSON");
    is_int(reply_format_of("```json " DS_CALL), REPLY_DEEPSEEK_V3, "with fences");
    is_int(reply_format_of("```json [TOOL_CALLS]"), REPLY_MISTRAL, "fences alone say nothing");
    is_int(reply_format_of("'<|tool_call>call:' + name"), REPLY_GEMMA4, "with Gemma 4's tag");
    is_int(reply_reasoning_of("x</think>"), REPLY_THINK, "reasoning");
    is_int(reply_reasoning_of("x\n<channel|>"), REPLY_THINK_CHANNEL, "in a channel");
    ok(reply_is_over(REPLY_THINK_CHANNEL, "<|channel>thought\n<channel|>", 28),
       "a prompt that switches reasoning off");
    ok(reply_is_inside(REPLY_THINK, "a<think>\n", 9), "a prompt that ends inside");
    ok(!reply_is_inside(REPLY_THINK, "a<think>\n\n</think>\n", 19), "one that closes it");
    ok(!reply_is_inside(REPLY_THINK, "what is <think> for?", 20), "one that speaks of it");
    ok(!reply_is_inside(REPLY_NO_REASONING, "<think>", 7), "no reasoning");
}

/* A megabyte in pieces of four bytes, inside each kind of value, takes no more than linear time:
 * a quadratic machine would need minutes. */
static void test_long(void)
{
    static const struct {
        enum reply_format format;
        const char *head;
    } longs[] = {
        {REPLY_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\""},
        {REPLY_HERMES, "<tool_call>{\"arguments\":{\"a\":\""},
        {REPLY_QWEN3_CODER, "<tool_call><function=f><parameter=s>"},
        {REPLY_PYTHONIC, "[f(a=\""},
        {REPLY_GEMMA4, "<|tool_call>call:f{a:<|\"|>"},
        {REPLY_GEMMA4, "<|tool_call>call:f{a:["},
        {REPLY_HERMES, "<"},
        {REPLY_LLAMA3, "{\"name\": \""},
    };

    for (size_t i = 0; i < sizeof longs / sizeof longs[0]; i++) {
        struct reply_options o = {.format = longs[i].format};
        struct told t = {0};
        struct reply r;

        reply_init(&r, &o, said, &t);
        must_ok(reply_push(&r, longs[i].head, strlen(longs[i].head)));
        for (int n = 0; n < 250000; n++)
            must_ok(reply_push(&r, "<toa", 4));
        must_ok(reply_finish(&r));
        ok(t.text.len >= 1000000 || longs[i].format == REPLY_QWEN3_CODER ||
               longs[i].format == REPLY_GEMMA4,
           "a megabyte after %s", longs[i].head);
        reply_fini(&r);
        buf_fini(&t.text);
    }
}

/* A push at a time: '+' where what was pushed may be content, '-' where it is none. */
static void test_may_be_content(void)
{
    static const struct {
        enum reply_format format;
        enum reply_reasoning reasoning;
        const char *pieces[12];
        const char *want;
    } rows[] = {
        {REPLY_PLAIN, REPLY_THINK, {"<think>", "a", "</think>", "\n\n", "b", " "}, "----++"},
        {REPLY_HERMES,
         REPLY_NO_REASONING,
         {"a ", "<tool_call>", "\n{\"name\": \"f\", ", "\"arguments\": {}", "}\n", "</tool_call>",
          "\n", "b"},
         "+++-+--+"},
        {REPLY_HERMES, REPLY_NO_REASONING, {"<tool", "_call>", "no", " call"}, "++++"},
        {REPLY_HARMONY,
         REPLY_NO_REASONING,
         {"<|channel|>", "analysis", "<|message|>", "a", "<|end|>", "<|start|>", "assistant",
          "<|channel|>", "final", "<|message|>", "b"},
         "----------+"},
    };
    struct told t;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct reply r;
        char got[13] = "";

        memset(&t, 0, sizeof t);
        reply_init(&r,
                   &(struct reply_options){
                       .format = rows[i].format, .reasoning = rows[i].reasoning, .tools = tools},
                   said, &t);
        for (size_t k = 0; k < 12 && rows[i].pieces[k] != NULL; k++) {
            must_ok(reply_push(&r, rows[i].pieces[k], strlen(rows[i].pieces[k])));
            got[k] = reply_may_be_content(&r) ? '+' : '-';
        }
        is_text(got, rows[i].want, "what may be content, row %zu", i);
        reply_fini(&r);
        buf_fini(&t.text);
    }
}

/* A call that must come, cut after each byte, leaves nothing that is content. */
static void test_only_calls(void)
{
    static const struct {
        enum reply_format format;
        const char *text;
    } rows[] = {
        {REPLY_HERMES, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
        {REPLY_LLAMA3, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}"},
        {REPLY_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}]"},
        {REPLY_QWEN3_CODER,
         "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>"},
        {REPLY_PYTHONIC, "[f(a=1)]"},
        {REPLY_LIST, "[{\"name\": \"f\", \"parameters\": {\"a\": 1}}]"},
        {REPLY_GLM45, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"},
        {REPLY_GEMMA4, "<|tool_call>call:f{a:1}<tool_call|>"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t cuts = 0, len = strlen(rows[i].text);

        for (size_t cut = 0; cut <= len; cut++) {
            struct reply_options o = {.format = rows[i].format, .only_calls = true, .tools = tools};
            struct told t = {0};
            struct reply r;

            reply_init(&r, &o, said, &t);
            must_ok(reply_push(&r, rows[i].text, cut));
            must_ok(reply_finish(&r));
            cuts += t.text.len == 0 || strstr(t.text.bytes, "|C:") == NULL;
            reply_fini(&r);
            buf_fini(&t.text);
        }
        is_int((int)cuts, (int)len + 1, "format %d: a forced call that is cut is no content",
               (int)rows[i].format);
    }
}

int main(void)
{
    struct arena arena = {.limit_bytes = (size_t)1 << 20};

    must_ok(json_parse(&tools, &arena, TOOLS, strlen(TOOLS), NULL, 0));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        check(calls[i].format, REPLY_NO_REASONING, false, calls[i].text, calls[i].want);
    for (size_t i = 0; i < sizeof thoughts / sizeof thoughts[0]; i++)
        check(thoughts[i].format, thoughts[i].reasoning, thoughts[i].inside, thoughts[i].text,
              thoughts[i].want);
    test_names();
    test_long();
    test_may_be_content();
    test_only_calls();
    arena_reset(&arena);
    return tap_done();
}
