/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: patterns, choices, grammars and compositions accept what they say; what is too large is
 * refused in time. Method: texts on both sides; hostile sources with a clock beside them. */
#include "accept.h"

#include "base/clock.h"

static void pattern(const char *source, const char *yes, const char *no)
{
    accept_case((struct grammar_request){.kind = GRAMMAR_REGEX,
                                         .source = source,
                                         .source_len = strlen(source)},
                yes, no);
}

static void grammar(const char *source, const char *yes, const char *no)
{
    accept_case((struct grammar_request){.kind = GRAMMAR_EBNF,
                                         .source = source,
                                         .source_len = strlen(source)},
                yes, no);
}

/* len 0: all of it. */
static void refused(enum grammar_kind kind, const char *source, size_t len, int rc,
                    const char *name)
{
    struct grammar_request r = {.kind = kind,
                                .source = source,
                                .source_len = len != 0 || source == NULL ? len : strlen(source)};
    struct buf image = {0};
    uint64_t us = clock_cpu_us();
    int got = accept_compile(&r, &image);

    us = clock_cpu_us() - us;
    is_int(got, rc, "%s is refused: %s", name, accept_error.text);
    ok(us < 20000000, "in %.1f ms of CPU time", (double)us / 1e3); /* a bound that is none: hours */
    buf_fini(&image);
}

static void test_patterns(void)
{
    pattern("a|bc|", "a\nbc", "b\nabc");
    pattern("[a-c]{2,3}", "ab\nccc", "a\nabcd\nad");
    pattern("(ab)*c+d?", "c\nababccd", "abab\nabac");
    pattern("\\d{3}-\\w+\\s?", "123-a_Z9\n123-x ", "12-a\n123-\n123-\xc3\xa9");
    pattern("[^\\x00-\\x7f]+", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "a\n\xc3");
    pattern("[\\u00e9-\\u20ac]", "\xc3\xa9\n\xe2\x82\xac\n\xe0\xa4\x80",
            "\xc3\xa8\n\xe2\x82\xad\na");
    pattern(".", "a\n\xf4\x8f\xbf\xbf", "\xed\xa0\x80\n\xf4\x90\x80\x80\n\xc0\x80");
    pattern("^a$|^b$", "a\nb", "ab");
    pattern("(?:x(?<n>y){2}){2}", "xyyxyy", "xyy");
    pattern("^(?!foo)[a-z]+", "bar\nfo", "foo\nfoobar");
    pattern("(?=.*\\d)[a-z\\d]{3}", "ab1\n12a", "abc");
    pattern("a{,2}", "a{,2}", "aa");
    refused(GRAMMAR_REGEX, "a(?<=b)c", 8, ERR_UNSUPPORTED, "lookbehind");
    refused(GRAMMAR_REGEX, "\\bx", 3, ERR_UNSUPPORTED, "a word boundary");
    refused(GRAMMAR_REGEX, "(a)\\1", 5, ERR_UNSUPPORTED, "a back reference");
    refused(GRAMMAR_REGEX, "[z-a]", 5, ERR_SYNTAX, "a range backwards");
    refused(GRAMMAR_REGEX, "*a", 2, ERR_SYNTAX, "nothing to repeat");
}

/* Lark as llguidance has it, which the package guidance writes. */
static void test_guidance(void)
{
    grammar("%llguidance {}\n\nstart: x\nx[capture]: X\n\nX: \"Paris\"\n     | \"Rome\"\n",
            "Paris\nRome", "paris\nParisRome");
    grammar("%llguidance {\"a\":\"}\"}\nstart: \"It is \" x \".\"\n"
            "x[capture=\"__LIST_APPEND:x\", max_tokens=20, temperature=0.5]: X\nX: /[1-9]{1,4}/",
            "It is 12.\nIt is 1234.", "It is .\nIt is 12345.\nIt is 1");
    grammar("start: START\nSTART: \"b\"{0,3} S{2} \"c\"{,1} \"d\"{1,}\nS: /(?s:.)/\n",
            "xxd\nbbb\rycdd", "x\nbbbbxxx\nxxcc");
    grammar("start: /(?s:.*)./ \"!\"", "\ra!\na!", "!\na\n\r!");
    grammar(
        "start: \"<\" x \">\" x?\nx[capture]: %json {\"type\":\"object\",\"properties\":{\"a}\":"
        "{\"enum\":[\"}{\\\"\",1]}},\"required\":[\"a}\"],\"additionalProperties\":false,"
        "\"x-guidance\":{\"whitespace_flexible\":false}}\n",
        "<{\"a}\":1}>\n<{\"a}\": \"}{\\\"\"}>{\"a}\":1}", "<>\n<{}>\n<{\"a}\":2}>");
    grammar("start: a [b] \"c\"\na: \"a\"\nb: \"b\"\n", "abc\nac", "ab");
    grammar("\n%llguidance {}\nstart: \"a::=b\"", "a::=b", "a");
    grammar("root ::= \"%llguidance\"", "%llguidance", "a");
    refused(GRAMMAR_EBNF, "start: x\nx[stop=\"\\n\"]: /a*/", 0, ERR_UNSUPPORTED, "a rule's stop");
    refused(GRAMMAR_EBNF, "start: x\nx[capture: /a*/", 0, ERR_SYNTAX, "attributes without end");
    refused(GRAMMAR_EBNF, "start: x\nx[capture=]: /a*/", 0, ERR_SYNTAX, "one without a value");
    refused(GRAMMAR_EBNF, "start: %json {\"type\":\"object\"", 0, ERR_SYNTAX, "half a schema");
    refused(GRAMMAR_EBNF, "start: %json {\"type\":\"objec\"}", 0, ERR_INVALID, "no schema");
    refused(GRAMMAR_EBNF, "start: %regex {\"substring_chars\":\"a\"}", 0, ERR_UNSUPPORTED,
            "an extended pattern");
    refused(GRAMMAR_EBNF, "%llguidance {", 0, ERR_SYNTAX, "half a head");
    refused(GRAMMAR_EBNF, "start: \"b\"{3,2}", 0, ERR_SYNTAX, "a repeat that ends before");
}

static void test_choices(void)
{
    static const char *const words[] = {"yes", "no", "yesterday", "\xc3\xa9t\xc3\xa9"};

    accept_case((struct grammar_request){.kind = GRAMMAR_CHOICE, .choices = words, .n_choices = 4},
                "yes\nno\nyesterday\n\xc3\xa9t\xc3\xa9", "ye\nyest\nnoo\n\xc3");
}

static void test_grammars(void)
{
    grammar("root ::= expr # sums\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
            "1+2\n(1+(2))+3", "1+\n()\n(1");
    grammar("start: expr\n// sums\nexpr: expr \"+\" term | term\nterm: NUM | \"(\" expr \")\"\n"
            "NUM: /[0-9]+/",
            "1+2\n(1+2)+3", "1+\n()");
    grammar("root ::= \"a\"{2,3} [^a-y\\n] .?", "aaz\naaaz!\naa\xc3\xa9", "aay\naz");
    grammar("?start: \"x\"i [\"y\"] \"a\"..\"c\"~2 -> alias\n", "Xyab\nxcc", "xya\nzab");
    grammar("root ::= (\"(\" root \")\")?", "(())\n()", "(()\n)");
    grammar("root ::= a | b\na ::= \"1\" a?\nb ::= \"1\" b \"2\" | \"3\"", "111\n11322\n3",
            "1132\n12");
    refused(GRAMMAR_EBNF, "root ::= a\na ::= b \"x\"\nb ::= a \"y\" | \"z\"", 0, ERR_UNSUPPORTED,
            "indirect left recursion");
    refused(GRAMMAR_EBNF, "root ::= missing", 0, ERR_INVALID, "a rule that is not defined");
    refused(GRAMMAR_EBNF, "start: \"a\"\n%ignore \" \"", 0, ERR_UNSUPPORTED, "a directive");
    refused(GRAMMAR_EBNF, "start: \"a\"\n%llguidance {}", 0, ERR_UNSUPPORTED, "one that is late");
    refused(GRAMMAR_EBNF, "root ::= \"a", 0, ERR_SYNTAX, "a text without end");
    refused(GRAMMAR_EBNF, "root ::= root", 0, ERR_INVALID, "a rule that is only itself");
}

#define TEXT(t)                                              \
    {                                                        \
        .kind = PART_TEXT, .text = (t), .len = sizeof(t) - 1 \
    }

static void test_parts(void)
{
    static const char args[] = "{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},"
                               "\"required\":[\"x\"],\"additionalProperties\":false}";
    static const struct grammar_part call[] = {
        TEXT("<tool>"),
        {.kind = PART_SCHEMA, .text = args, .len = sizeof args - 1},
        TEXT("</tool>")};
    static const struct grammar_part thought[] = {
        TEXT("<think>"), {.kind = PART_FREE}, TEXT("</think>"), {.kind = PART_OBJECT}};
    static const struct grammar_part calls[] = {{.kind = PART_REPEAT,
                                                 .parts = call,
                                                 .n_parts = 3,
                                                 .min = 1,
                                                 .max = 2,
                                                 .text = "\n",
                                                 .len = 1}};
    static const struct grammar_part bodies[] = {
        {.kind = PART_SEQUENCE, .parts = call, .n_parts = 3}};
    struct grammar_part watch[] = {
        {.kind = PART_TRIGGERS, .parts = bodies, .n_parts = 1, .min = 0, .max = UINT32_MAX}};
    static const struct grammar_part two[] = {
        TEXT("a"), TEXT("ab"), {.kind = PART_REGEX, .text = "x+", .len = 2}};
    static const struct grammar_part either[] = {{.kind = PART_CHOICE, .parts = two, .n_parts = 3}};
    struct grammar_request r = {.kind = GRAMMAR_PARTS, .parts = call, .n_parts = 3};
    struct buf image = {0};

    accept_case(r, "<tool>{\"x\": 1}</tool>",
                "<tool>{}</tool>\n{\"x\":1}\n<tool>{\"x\":1}</tool> ");
    r.parts = thought;
    r.n_parts = 4;
    accept_case(r, "<think>a < b </th </think>{}\n<think></think>{\"a\":1}",
                "<think>a</think>\n<think>a</think>b</think>{}\n{}");
    r.parts = calls;
    r.n_parts = 1;
    must_ok(accept_compile(&r, &image));
    ok(accept_text(&image, "<tool>{\"x\":1}</tool>\n<tool>{\"x\":2}</tool>", 41), "two calls");
    ok(!accept_text(&image, "", 0), "none is too few");
    ok(!accept_text(&image, "<tool>{\"x\":1}</tool>\n", 21), "a separator needs another one");
    buf_fini(&image);
    r.parts = watch;
    accept_case(r, "hello <to <tool>{\"x\":1}</tool> and <tool>{\"x\":2}</tool>\nfree",
                "<tool>\nx<tool>{}</tool>");
    watch[0].min = 1;
    watch[0].max = 1;
    accept_case(r, "hello <tool>{\"x\":1}</tool>\n<<tool>{\"x\":1}</tool>",
                "free\n<tool>{\"x\":1}</tool>x");
    r.parts = either;
    accept_case(r, "a\nab\nxxx", "b\nax\naab");
}

/* Free text that several texts may end, that may not hold others, and with triggers in it. */
static void test_stops(void)
{
    static const struct grammar_part ends[] = {TEXT("</a>"), TEXT("</ab>")};
    static const struct grammar_part stop = {.kind = PART_CHOICE, .parts = ends, .n_parts = 2};
    static const struct grammar_part never[] = {TEXT("no"), TEXT("</a>")};
    static const struct grammar_part call[] = {
        TEXT("["), {.kind = PART_REGEX, .text = "[0-9]+", .len = 6}, TEXT("]")};
    static const struct grammar_part bodies[] = {
        {.kind = PART_SEQUENCE, .parts = call, .n_parts = 3}};
    struct grammar_part parts[] = {TEXT("<a>"), {.kind = PART_FREE}, stop, TEXT("!")};
    struct grammar_request r = {.kind = GRAMMAR_PARTS, .parts = parts, .n_parts = 4};

    accept_case(r, "<a>x</a>!\n<a></ab>!\n<a></a</a>!", "<a>x\n<a></a></a>!\n<a></b>!");
    parts[1].never = never;
    parts[1].n_never = 2; /* the stop counts, though it is listed */
    accept_case(r, "<a>x</a>!\n<a>n</ab>!\n<a>on</a>!", "<a>no</a>!\n<a>n no</ab>!");
    r.n_parts = 2;
    accept_case(r, "<a>n\n<a></ab>", "<a>no\n<a></a>");
    parts[1] = (struct grammar_part){
        .kind = PART_TRIGGERS, .parts = bodies, .n_parts = 1, .max = UINT32_MAX};
    r.n_parts = 4;
    accept_case(r, "<a></a>!\n<a>x[5]y[6]</ab>!\n<a>[7]</a>!", "<a>[x]</a>!\n<a>[5]\n<a>[</a>!");
    parts[1].min = 1;
    accept_case(r, "<a>x[5]y[6]z</ab>!\n<a>[7]</a>!", "<a>x</a>!\n<a></a>[5]</a>!");
    parts[1].min = 0;
    parts[1].max = 2;
    accept_case(r, "<a>x</a>!\n<a>[5]</ab>!\n<a>[7] [8]</a>!\n<a>[7][8]</ab>!",
                "<a>[7][8] </a>!\n<a>[7][8][9]</a>!");
}

/* Strings within a schema, or a string as it is, that must match a pattern besides. */
static void test_held_strings(void)
{
    static const char pattern[] = "(?![^]*</v>)(?!none$)[^\\x00]*";
    static const struct grammar_part holds[] = {
        {.kind = PART_REGEX, .text = pattern, .len = sizeof pattern - 1}};
    struct grammar_part part = {.kind = PART_SCHEMA, .parts = holds, .n_parts = 1};
    struct grammar_request r = {.kind = GRAMMAR_PARTS, .parts = &part, .n_parts = 1};
    static const struct {
        enum grammar_part_kind kind;
        const char *schema, *yes, *no;
    } cases[] = {
        {PART_SCHEMA, "{}", "\"a</v\"\n{\"a\":[\"<\\n\\\"\"]}\n5",
         "\"a</v>\"\n{\"</v>\":1}\n[[\"</v>\"]]\n\"none\"\n\"a\\/\"\n\"\\u0000\""},
        {PART_SCHEMA, "{\"enum\":[\"</v>\",\"b\",\"none\",7]}", "\"b\"\n7", "\"</v>\"\n\"none\""},
        {PART_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^<\",\"maxLength\":4}",
         "\"<\"\n\"</v\"\n\"</ab\"", "\"</v>\"\n\"a\"\n\"<abcd\""},
        {PART_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":4}},"
         "\"additionalProperties\":false}",
         "{\"a\":\"</v\"}\n{}", "{\"a\":\"</v>\"}\n{\"b\":1}"},
        {PART_STRING, "{\"type\":\"string\"}", "a\n\"a\"\n\\\n</v\n", "a</v>\nnone"},
        {PART_STRING, "{\"type\":[\"string\",\"null\"],\"maxLength\":3}", "abc\n</v",
         "abcd\nnone\n</v>"},
        {PART_STRING, "{\"enum\":[\"x\",\"</v>\",\"none\"]}", "x", "</v>\nnone\n\"x\""},
        {PART_STRING, "{\"anyOf\":[{\"const\":\"x\"},{\"type\":\"string\",\"format\":\"ipv4\"}]}",
         "x\n1.2.3.4", "y\n1.2.3"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        part.kind = cases[i].kind;
        part.text = cases[i].schema;
        part.len = strlen(part.text);
        accept_case(r, cases[i].yes, cases[i].no);
    }
}

static void test_hostile(void)
{
    const size_t n = 1 << 20;
    char *text = malloc(3 * n);
    size_t at = 0;
    int i;

    memset(text, '[', n);
    refused(GRAMMAR_SCHEMA, text, n, ERR_LIMIT, "a megabyte of '['");
    refused(GRAMMAR_REGEX, text, n, ERR_LIMIT, "a pattern of a megabyte of '['");
    memset(text, '(', n);
    refused(GRAMMAR_REGEX, text, n, ERR_LIMIT, "a pattern of a megabyte of '('");
    memcpy(text, "root ::= ", 9);
    refused(GRAMMAR_EBNF, text, n, ERR_LIMIT, "a grammar of a megabyte of '('");
    refused(GRAMMAR_REGEX, "(a{1000}){1000}", 15, ERR_LIMIT, "(a{1000}){1000}");
    refused(GRAMMAR_REGEX, "(.*a.{50}){20}", 14, ERR_LIMIT, "a pattern of many states");
    at = (size_t)snprintf(text, 3 * n, "{\"anyOf\":[");
    for (i = 0; i < 100000; i++)
        at += (size_t)snprintf(text + at, 3 * n - at, "%s{\"const\":%d}", i > 0 ? "," : "", i);
    at += (size_t)snprintf(text + at, 3 * n - at, "]}");
    refused(GRAMMAR_SCHEMA, text, at, ERR_LIMIT, "100,000 alternatives");
    at = (size_t)snprintf(text, 3 * n, "{\"oneOf\":[");
    for (i = 0; i < 300; i++)
        at += (size_t)snprintf(text + at, 3 * n - at, "%s{\"multipleOf\":%d}", i > 0 ? "," : "",
                               i + 2);
    at += (size_t)snprintf(text + at, 3 * n - at, "]}");
    refused(GRAMMAR_SCHEMA, text, at, ERR_LIMIT, "300 overlapping alternatives");
    for (at = 0, i = 0; i < 10000; i++)
        at += (size_t)snprintf(text + at, 3 * n - at, "{\"not\":");
    refused(GRAMMAR_SCHEMA, text, at, ERR_LIMIT, "10,000 nested schemas");
    refused(GRAMMAR_SCHEMA,
            "{\"allOf\":[{\"$ref\":\"#\"},{\"$ref\":\"#\"}],\"not\":{\"$ref\":\"#\"}}", 0,
            ERR_INVALID, "a schema that is not itself");
    refused(GRAMMAR_SCHEMA, text, 3 * n, ERR_LIMIT, "three megabytes");
    refused(GRAMMAR_CHOICE, NULL, 0, ERR_INVALID, "no choices");
    free(text);
}

int main(void)
{
    test_patterns();
    test_guidance();
    test_choices();
    test_grammars();
    test_parts();
    test_stops();
    test_held_strings();
    test_hostile();
    return tap_done();
}
