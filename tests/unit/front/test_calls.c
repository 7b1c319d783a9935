/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: whatever a model says under the structure of a request is taken apart into what the request
 * demanded: calls of its tools with valid arguments, or content of its form, behind a reasoning or
 * not. Method: for each format of replies random walks through the structure, with a vocabulary of
 * characters, tags and words; their texts go through the reply's machine, whole and in pieces, and
 * arguments through the grammar of the tool's schema. */
#include <sys/mman.h>

#include "front/structured/calls.h"
#include "front/structured/form.h"
#include "grammar/walk.h"
#include "tests/tap.h"

#define WALKS      100
#define TOKENS_MAX 4000
#define LONG       160 /* tokens after which a walk makes for its end */
#define VOCAB_MAX  256

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"strict\":true,\"parameters"
    "\":{"
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\",\"minLength\":1,\"maxLeng"
    "th\":12},"
    "\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"type\":\"string\","
    "\"enum\":"
    "[\"C\",\"F\",\"none\"]},\"exact\":{\"type\":\"boolean\"}},\"required\":[\"city\",\"days\"],"
    "\"additionalProperties\":false}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"prope"
    "rties\":{"
    "\"x\":{\"type\":\"number\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},"
    "\"maxItems\":3},\"o\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":[\"string\",\"nu"
    "ll\"]}},"
    "\"required\":[\"a\"],\"additionalProperties\":false},\"n\":{\"anyOf\":[{\"type\":\"string\"},"
    "{\"type\":\"null\"}]},\"r\":{\"$ref\":\"#/$defs/t\"}},\"$defs\":{\"t\":{\"type\":\"array\","
    "\"items\":"
    "{\"type\":\"integer\"}}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"strict\":true}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\",\"strict\":true,\"parameters\":{\"type"
    "\":\"object\","
    "\"properties\":{\"any\":{},\"s\":{\"type\":\"string\"},\"w\":{\"type\":[\"string\",\"null\"]},"
    "\"i\":{\"type\":\"integer\"},\"k\":{\"enum\":[\"a b\",\"\"]},\"d\":{\"type\":\"string\",\"f"
    "ormat\":"
    "\"date\"}},\"required\":[\"s\",\"i\"],\"additionalProperties\":false}}}]";

static const char *const words[] = {
    "get_weather",
    "now",
    "city",
    "days",
    "unit",
    "exact",
    "true",
    "false",
    "null",
    "None",
    "none",
    "True",
    "\\u",
    "\\n",
    ", ",
    "\": ",
    "{\"",
    "\"}",
    "\xc3\xa9",
    "\xe6\x97\xa5",
    "name",
    "</",
    "<|",
    "arg_",
    "00",
    "tool_call",
    "1e",
    "\n</parameter>\n",
    "</think>",
    "<think>",
    " to=functions.",
    "parameter>",
    "<|python_end|>",
    "E+400",
    "\xef\xbd\x9c",
    "\xe2\x96\x81",
};

/* --- walks -------------------------------------------------------------------------------- */

struct fixture {
    struct arena arena;
    struct compiled_cache cache;
    const struct json *tools;
    struct token_trie *vocab;
    struct trie_token tokens[VOCAB_MAX];
    uint32_t n_tokens; /* the last one ends a text */
    struct walk_work *work;
    uint32_t *mask;
    uint64_t random;
    bool reasons; /* the reply begins with a reasoning, or may */
};

static uint32_t next_random(struct fixture *f)
{
    f->random = f->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(f->random >> 33);
}

static void add_token(struct fixture *f, const char *bytes, size_t len)
{
    f->tokens[f->n_tokens++] = (struct trie_token){bytes, len};
}

/* Characters, the format's tags and words; the last is the end. */
static void make_vocab(struct fixture *f, enum reply_format format)
{
    static char ascii[128];
    const char *tags[REPLY_TAGS_MAX];
    int n_tags = reply_tags(format, REPLY_THINK, tags);
    struct buf image = {0};
    int32_t end;

    f->n_tokens = 0;
    for (int i = 1; i < 128; i++) {
        ascii[i] = (char)i;
        add_token(f, ascii + i, 1);
    }
    for (int i = 0; i < n_tags; i++)
        add_token(f, tags[i], strlen(tags[i]));
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        add_token(f, words[i], strlen(words[i]));
    end = (int32_t)f->n_tokens;
    add_token(f, NULL, 0);
    must_ok(trie_build(f->tokens, f->n_tokens, &end, 1, &image));
    free(f->vocab);
    f->vocab = (struct token_trie *)image.bytes;
    free(f->work);
    f->work = malloc(walk_work_bytes(f->n_tokens));
    walk_work_init(f->work, f->n_tokens);
    free(f->mask);
    f->mask = calloc(f->vocab->n_words, sizeof *f->mask);
}

static bool allowed(const struct fixture *f, uint32_t token)
{
    return (f->mask[token / 32] >> token % 32 & 1) != 0;
}

static int32_t allowed_text(const struct fixture *f, const char *text)
{
    for (uint32_t t = 0; t + 1 < f->n_tokens; t++) {
        if (allowed(f, t) && f->tokens[t].len == strlen(text) &&
            memcmp(f->tokens[t].bytes, text, f->tokens[t].len) == 0)
            return (int32_t)t;
    }
    return -1;
}

/* A token that brings the end nearer, or none. */
static int32_t closing(const struct fixture *f, const struct buf *text)
{
    static const char *const closers[] = {"</arg_value>",
                                          "<|end|>",
                                          "\n</parameter>\n",
                                          "\"",
                                          "}",
                                          "]",
                                          ")",
                                          "<|tool_calls_section_end|>",
                                          " to=functions.",
                                          "\n",
                                          "<",
                                          "/",
                                          "1"};
    const char *tags[REPLY_TAGS_MAX];
    int n_tags = reply_tags(REPLY_DEEPSEEK_V31, REPLY_NO_REASONING, tags);
    int32_t token = -1;

    if (allowed(f, f->n_tokens - 1))
        return (int32_t)f->n_tokens - 1;
    if (f->reasons && (text->len == 0 || strstr(text->bytes, "</think>") == NULL))
        token = allowed_text(f, "</think>");
    if (token < 0 && allowed_text(f, "}") < 0) /* not inside of a text */
        token = allowed_text(f, tags[n_tags - 1]);
    for (size_t i = 0; i < sizeof closers / sizeof closers[0] && token < 0; i++)
        token = allowed_text(f, closers[i]);
    return token;
}

/* A random token that is allowed; half of the time one of several characters, if there is one. */
static int32_t choose(struct fixture *f)
{
    int32_t found = -1;
    uint32_t n = 0;
    bool longs = next_random(f) % 2 == 0;

    for (int pass = 0; pass < 2 && found < 0; pass++) {
        for (uint32_t t = 0; t < f->n_tokens; t++) {
            bool fits = pass == 1 || !longs || f->tokens[t].len > 1;

            if (allowed(f, t) && fits && next_random(f) % ++n == 0)
                found = (int32_t)t;
        }
    }
    return found;
}

/* One random text; false when it did not come to its end. */
static bool walk_once(struct fixture *f, const struct automaton *a, struct buf *text)
{
    struct walk w;

    buf_clear(text);
    walk_init(&w, a);
    for (int i = 0; i < TOKENS_MAX; i++) {
        int32_t token = -1;

        if (walk_mask(f->work, a, f->vocab, NULL, &w, f->mask) != ERR_OK)
            return false;
        if (i > LONG && next_random(f) % 8 != 0)
            token = closing(f, text);
        if (token < 0)
            token = choose(f);
        if (token < 0 || walk_accept(f->work, a, f->vocab, &w, token) != ERR_OK)
            return false;
        if (token == (int32_t)f->n_tokens - 1)
            return true;
        buf_add(text, f->tokens[token].bytes, f->tokens[token].len);
    }
    return false;
}

/* --- replies ------------------------------------------------------------------------------ */

struct heard {
    struct buf content, reasoning, calls; /* calls: name, TAB, arguments, NEWLINE */
    int n_calls;
};

static void hear(void *arg, const struct reply_event *e)
{
    struct heard *h = arg;

    switch (e->kind) {
    case REPLY_CONTENT: buf_add(&h->content, e->bytes, e->len); break;
    case REPLY_REASON: buf_add(&h->reasoning, e->bytes, e->len); break;
    case REPLY_CALL_BEGIN:
        h->n_calls++;
        buf_add(&h->calls, e->bytes, e->len);
        buf_add_byte(&h->calls, '\1');
        break;
    case REPLY_CALL_ARGS: buf_add(&h->calls, e->bytes, e->len); break;
    case REPLY_CALL_END: buf_add_byte(&h->calls, '\2'); break;
    }
}

static void heard_fini(struct heard *h)
{
    buf_fini(&h->content);
    buf_fini(&h->reasoning);
    buf_fini(&h->calls);
}

/* Bytes of the character at text[i]. */
static size_t char_len(const struct buf *b, size_t i)
{
    size_t n = 1;

    while (i + n < b->len && ((unsigned char)b->bytes[i + n] & 0xc0) == 0x80)
        n++;
    return n;
}

static void listen(struct fixture *f, const struct reply_options *o, const struct buf *text,
                   bool pieces, struct heard *h)
{
    struct reply r;

    reply_init(&r, o, hear, h);
    for (size_t i = 0; i < text->len;) {
        size_t n = pieces ? 0 : text->len;

        for (uint32_t k = 1 + next_random(f) % 5; pieces && k > 0 && i + n < text->len; k--)
            n += char_len(text, i + n);
        must_ok(reply_push(&r, text->bytes + i, n));
        i += n;
    }
    must_ok(reply_finish(&r));
    reply_fini(&r);
}

static bool same(const struct buf *a, const struct buf *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->bytes, b->bytes, a->len) == 0);
}

/* --- judging ------------------------------------------------------------------------------ */

/* Do the bytes satisfy a grammar? */
static bool satisfies(struct fixture *f, const struct grammar_request *r, const char *bytes,
                      size_t len)
{
    struct buf image = {0};
    struct walk w;
    bool good;

    must_ok(grammar_compile(r, &image, NULL));
    walk_init(&w, (const struct automaton *)image.bytes);
    good = walk_bytes(f->work, (const struct automaton *)image.bytes, &w, bytes, len) == ERR_OK &&
           walk_can_end(f->work, (const struct automaton *)image.bytes, &w);
    buf_fini(&image);
    return good;
}

static bool is_object_of(struct fixture *f, const struct json *schema, const char *bytes,
                         size_t len)
{
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA};
    struct buf b = {0};
    bool good;

    if (schema == NULL)
        buf_add_text(&b, "{\"type\":\"object\"}");
    else
        json_write(&b, schema, JSON_COMPACT);
    r.source = b.bytes;
    r.source_len = b.len;
    good = len > 0 && bytes[0] == '{' && satisfies(f, &r, bytes, len);
    buf_fini(&b);
    return good;
}

/* Each call is of a tool, with its arguments. */
static bool are_calls(struct fixture *f, const struct heard *h, const char *only)
{
    const char *at = h->calls.bytes, *end = at + h->calls.len;

    while (at < end) {
        const char *args = memchr(at, '\1', (size_t)(end - at));
        const char *stop = args == NULL ? NULL : memchr(args, '\2', (size_t)(end - args));
        bool good = false;

        if (args == NULL)
            return false;
        if (stop == NULL)
            stop = end; /* a format whose call ends with the text */
        for (uint32_t i = 0; i < f->tools->n; i++) {
            const struct json *fn = json_get(&f->tools->items[i], "function");
            const char *name = json_get_text(fn, "name", "");

            if (strlen(name) == (size_t)(args - at) && memcmp(name, at, strlen(name)) == 0 &&
                (only == NULL || strcmp(only, name) == 0))
                good = is_object_of(f, json_get(fn, "parameters"), args + 1,
                                    (size_t)(stop - args - 1));
        }
        if (!good)
            return false;
        at = stop + 1;
    }
    return true;
}

/* --- the property ------------------------------------------------------------------------- */

struct wish {
    const char *name;
    struct form form;
    enum form_start start;
    bool one_call;
    int calls_min, calls_max;
    bool may_speak; /* content beside calls, or instead of them */
};

static bool judge(struct fixture *f, const struct wish *w, const struct reply_options *o,
                  const struct buf *text)
{
    struct heard whole = {.n_calls = 0}, pieces = {.n_calls = 0};
    bool good;

    listen(f, o, text, false, &whole);
    listen(f, o, text, true, &pieces);
    good = same(&whole.content, &pieces.content) && same(&whole.reasoning, &pieces.reasoning) &&
           same(&whole.calls, &pieces.calls);
    good = good && whole.n_calls >= w->calls_min && whole.n_calls <= w->calls_max;
    good = good && (w->may_speak || whole.content.len == 0 || w->form.param != NULL ||
                    o->format == REPLY_HARMONY); /* which may say what it is about to do */
    good = good && are_calls(f, &whole, w->form.function);
    if (w->form.kind == GRAMMAR_SCHEMA && w->form.param != NULL && whole.n_calls == 0)
        good = good && is_object_of(f, w->form.source, whole.content.bytes, whole.content.len);
    if (!good)
        printf("# content [%.300s]\n# calls [%.300s]\n",
               whole.content.len ? whole.content.bytes : "",
               whole.calls.len ? whole.calls.bytes : "");
    heard_fini(&whole);
    heard_fini(&pieces);
    return good;
}

static void test_format(struct fixture *f, enum reply_format format, const struct wish *w)
{
    struct form_model m = {.format = format,
                           .start = w->start,
                           .reasoning =
                               w->start == FORM_NO_REASONING ? REPLY_NO_REASONING : REPLY_THINK,
                           .chat = true,
                           .one_call = w->one_call};
    struct reply_options o = {.format = form_reply_format(&w->form, format),
                              .reasoning = m.reasoning,
                              .begins_inside = w->start == FORM_REASONS,
                              .tools = f->tools};
    struct compiled *st = NULL;
    struct buf text = {0};
    struct reason reason = {.text = ""};
    int n_good = 0, n_ended = 0;
    int rc = form_compile(&w->form, &m, &f->cache, &f->arena, &st, &reason);
    const void *image;

    if (!ok(rc == ERR_OK && st != NULL, "%s, format %d: a structure %s", w->name, (int)format,
            reason.text))
        return;
    image = mmap(NULL, st->bytes, PROT_READ, MAP_PRIVATE, st->sealed, 0);
    must_ok(automaton_check(image, st->bytes));
    make_vocab(f, o.format);
    f->reasons = w->start != FORM_NO_REASONING && format != REPLY_HARMONY;
    for (int i = 0; i < WALKS; i++) {
        bool ended = walk_once(f, image, &text);
        bool good = ended && judge(f, w, &o, &text);

        n_ended += ended;
        n_good += good;
        if (!good && n_good + 3 > i)
            printf("# %s [%.900s]\n", ended ? "text" : "no end", text.len ? text.bytes : "");
    }
    is_int(n_good, WALKS, "%s, format %d: of %d walks %d ended, and were taken apart", w->name,
           (int)format, WALKS, n_ended);
    buf_fini(&text);
    (void)munmap((void *)(uintptr_t)image, st->bytes);
    compiled_unref(st);
}

static void test_wishes(struct fixture *f, const struct json *schema)
{
    static const struct json pattern = {
        .kind = JSON_TEXT, .text = "[\\s\\S]{0,60}", .text_len = 12};
    /* Without '=' and '_' the element does not spell a tag of calls. */
    static const char tag[] =
        "{\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"any_text\"},{\"type\":"
        "\"tag\",\"begin\":\"<\",\"content\":{\"type\":\"regex\",\"pattern\":\"[^>=_]{0,30}\"},"
        "\"end\":\">\"}]}}";
    static const struct json tags = {.kind = JSON_TEXT, .text = tag, .text_len = sizeof tag - 1};
    const struct wish wishes[] = {
        {"required", {.calls = FORM_CALLS_REQUIRED, .tools = f->tools}, 0, false, 1, 1000, false},
        {"one call", {.calls = FORM_CALLS_REQUIRED, .tools = f->tools}, 0, true, 1, 1, false},
        {"named",
         {.calls = FORM_CALLS_NAMED, .function = "g", .tools = f->tools},
         FORM_NO_REASONING,
         false,
         1,
         1,
         false},
        {"reasoning, then calls",
         {.calls = FORM_CALLS_REQUIRED, .tools = f->tools},
         FORM_REASONS,
         false,
         1,
         1000,
         false},
        {"maybe reasoning, then a call",
         {.calls = FORM_CALLS_REQUIRED, .tools = f->tools},
         FORM_MAY_REASON,
         true,
         1,
         1,
         false},
        {"strict", {.tools = f->tools, .strict = true}, 0, false, 0, 1000, true},
        {"reasoning, then strict",
         {.tools = f->tools, .strict = true},
         FORM_REASONS,
         false,
         0,
         1000,
         true},
        {"content or calls",
         {.param = "response_format", .kind = GRAMMAR_SCHEMA, .source = schema, .tools = f->tools},
         FORM_NO_REASONING,
         true,
         0,
         1,
         false},
        {"content behind reasoning",
         {.param = "response_format", .kind = GRAMMAR_SCHEMA, .source = schema},
         FORM_MAY_REASON,
         false,
         0,
         0,
         false},
        {"a pattern or strict calls",
         {.param = "response_format",
          .kind = GRAMMAR_REGEX,
          .source = &pattern,
          .tools = f->tools,
          .strict = true},
         FORM_NO_REASONING,
         true,
         0,
         1,
         false},
        {"a structural tag or strict calls",
         {.param = "response_format",
          .kind = GRAMMAR_PARTS,
          .source = &tags,
          .tools = f->tools,
          .strict = true},
         FORM_NO_REASONING,
         true,
         0,
         1,
         false},
    };

    for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
        for (int format = 0; format < REPLY_FORMATS; format++) {
            bool forces = form_forces(&wishes[i].form);

            if (format == REPLY_LIST || (format == REPLY_PLAIN && !forces && i != 8))
                continue; /* that of a model without calls that is made to call */
            if (wishes[i].form.kind == GRAMMAR_PARTS && calls_may_begin_bare(format))
                continue; /* is refused */
            test_format(f, (enum reply_format)format, &wishes[i]);
        }
    }
}

/* What a format cannot write is refused by name, and so is what no grammar can hold. */
static void test_refusals(struct fixture *f)
{
    static const struct {
        enum reply_format format;
        const char *tool; /* its function */
        int rc;
        const char *says;
    } cases[] = {
        {REPLY_HERMES, "{\"name\":\"a b\"}", ERR_INVALID, "tools[0].function.name"},
        {REPLY_PYTHONIC, "{\"name\":\"a-b\"}", ERR_UNSUPPORTED, "not a name in Python"},
        {REPLY_HERMES, "{\"name\":\"a-b\"}", ERR_OK, ""},
        {REPLY_HERMES, "{\"name\":\"a\",\"parameters\":{\"type\":\"array\"}}", ERR_INVALID,
         "must be of type object"},
        {REPLY_GLM45, "{\"name\":\"a\",\"parameters\":{\"anyOf\":[{}]}}", ERR_UNSUPPORTED,
         "'anyOf' in the parameters of 'a'"},
        {REPLY_HERMES, "{\"name\":\"a\",\"parameters\":{\"anyOf\":[{}]}}", ERR_OK, ""},
        {REPLY_QWEN3_CODER, "{\"name\":\"a\",\"parameters\":{\"properties\":{\"b>\":{}}}}",
         ERR_UNSUPPORTED, "the parameter 'b>' of 'a'"},
        {REPLY_PYTHONIC, "{\"name\":\"a\",\"parameters\":{\"properties\":{\"b c\":{}}}}",
         ERR_UNSUPPORTED, "the parameter 'b c' of 'a'"},
        {REPLY_KIMI_K2,
         "{\"name\":\"a\",\"parameters\":{\"properties\":{\"b\":{\"pattern\":\"(\"}}}}", ERR_SYNTAX,
         "tools[0].function.parameters': pattern"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct form_model m = {.format = cases[i].format, .chat = true};
        struct form form = {.calls = FORM_CALLS_REQUIRED};
        struct compiled *st = NULL;
        struct buf b = {0};
        struct reason reason = {.text = ""};

        buf_printf(&b, "[{\"type\":\"function\",\"function\":%s}]", cases[i].tool);
        must_ok(json_parse(&form.tools, &f->arena, b.bytes, b.len, NULL, 0));
        is_int(form_compile(&form, &m, &f->cache, &f->arena, &st, &reason), cases[i].rc,
               "format %d, %s", (int)cases[i].format, cases[i].tool);
        ok(strstr(reason.text, cases[i].says) != NULL, "says: %s", reason.text);
        compiled_unref(st);
        buf_fini(&b);
    }
}

int main(void)
{
    static struct fixture f = {.random = 1};
    const struct json *schema = NULL;
    static const char schema_text[] =
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"arra"
        "y\","
        "\"items\":{\"type\":\"number\"}}},\"required\":[\"a\"],\"additionalProperties\":false}";

    must_ok(compiled_cache_init(&f.cache));
    must_ok(json_parse(&f.tools, &f.arena, tools_text, strlen(tools_text), NULL, 0));
    must_ok(json_parse(&schema, &f.arena, schema_text, strlen(schema_text), NULL, 0));
    test_wishes(&f, schema);
    test_refusals(&f);
    compiled_cache_fini(&f.cache);
    arena_reset(&f.arena);
    return tap_done();
}
