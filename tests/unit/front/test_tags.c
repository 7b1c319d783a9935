/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: structural tags hold outputs to what xgrammar says that they mean; what is not uploaded is
 * refused by its name and place. Method: a table of tags, each compiled, with texts that it takes
 * and texts that it does not. */
#include "front/structured/tags.h"

#include "tests/unit/grammar/accept.h"

#define FORMAT(f)    "{\"type\":\"structural_tag\",\"format\":" f "}"
#define CONST(s)     "{\"type\":\"const_string\",\"value\":\"" s "\"}"
#define DIGITS       "{\"type\":\"regex\",\"pattern\":\"[0-9]+\"}"
#define ANY          "{\"type\":\"any_text\"}"
#define TAG(b, c, e) "{\"type\":\"tag\",\"begin\":\"" b "\",\"content\":" c ",\"end\":" e "}"
#define LIST(t, l)   "{\"type\":\"" t "\",\"elements\":[" l "]}"
#define SCHEMA       "{\"type\":\"json_schema\",\"json_schema\":{\"type\":\"integer\"}}"
#define OLD                                                                                     \
    "\"structures\":[{\"begin\":\"<f=a>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</f>\"}," \
    "{\"begin\":\"<f=b>\",\"end\":\"</f>\"}]"
#define TWO "\"tags\":[" TAG("<a>", DIGITS, "\"</a>\"") "," TAG("<ab>", ANY, "\"</ab>\"") "]"

static const struct {
    const char *tag;
    const char *yes; /* texts, a line each */
    const char *no;
} taken[] = {
    {FORMAT(CONST("hi")), "hi", "h\nhi "},
    {FORMAT(SCHEMA), "5\n-12", "x\n1.5\n\"5\""},
    {FORMAT(DIGITS), "5\n55", "x\n5x"},
    {FORMAT("{\"type\":\"grammar\",\"grammar\":\"root ::= \\\"a\\\" \\\"b\\\"*\"}"), "a\nabb", "b"},
    {FORMAT(ANY), "whatever <x>", NULL},
    {FORMAT("{\"type\":\"any_text\",\"excludes\":[\"no\",\"nil\"]}"), "n o ni l\nyes", "no\nx nil"},
    {FORMAT(LIST("sequence", CONST("a") "," DIGITS "," CONST("b"))), "a5b", "a5\n5b\nab"},
    {FORMAT(LIST("sequence", CONST("a") "," ANY)), "a\nax", "x"},
    {FORMAT(LIST("sequence", ANY "," CONST("b") "," DIGITS)), "b5\nxab7", "b\nbb5\nx"},
    {FORMAT(LIST("or", CONST("a") "," DIGITS)), "a\n5", "b\na5"},
    {FORMAT("{\"type\":\"optional\",\"content\":" CONST("a") "}"), "a", "aa"},
    {FORMAT("{\"type\":\"star\",\"content\":" CONST("ab") "}"), "ab\nababab", "aba"},
    {FORMAT("{\"type\":\"plus\",\"content\":" CONST("ab") "}"), "ab\nabab", "a"},
    {FORMAT("{\"type\":\"repeat\",\"min\":1,\"max\":2,\"content\":" DIGITS "}"), "1\n12", "x"},
    {FORMAT("{\"type\":\"repeat\",\"min\":2,\"max\":-1,\"content\":" CONST("a") "}"), "aa\naaaa",
     "a"},
    {FORMAT(TAG("<a>", DIGITS, "\"</a>\"")), "<a>5</a>", "<a></a>\n<a>5\n5"},
    {FORMAT(TAG("<a>", ANY, "\"</a>\"")), "<a></a>\n<a>x</b></a>", "<a>x\n<a></a></a>"},
    {FORMAT(TAG("<a>", ANY, "[\"</a>\",\"!\"]")), "<a>x!\n<a>y</a>", "<a>!!\n<a>y"},
    {FORMAT(TAG("<a>", "{\"type\":\"any_text\",\"excludes\":[\"<a>\",\"</a>\"]}", "\"</a>\"")),
     "<a>x</a>", "<a><a></a>"},
    {FORMAT(TAG("<a>", LIST("or", ANY "," DIGITS), "\"!\"")), "<a>5!\n<a>x!", "<a>x!!"},
    {FORMAT(TAG("<a>", LIST("sequence", DIGITS "," ANY), "\"!\"")), "<a>5!\n<a>5x!", "<a>x!"},
    {FORMAT(TAG("<a>", TAG("<b>", ANY, "\"\""), "\"!\"")), "<a><b>x!", "<a><b>x\n<a>x!"},
    {FORMAT(LIST("sequence", TAG("<a>", ANY, "\"!\"") "," DIGITS)), "<a>x!5", "<a>x!\n<a>x!y"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a>\",\"<ab\"]," TWO "}"),
     "free < text\n<a>5</a>\nx<a>5</a> y <ab>z</ab>", "<a>x\n<a>x</a>\n<ab>z\n<abc"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO ",\"excludes\":[\"no\"]}"),
     "free <b>\n<a>5</a> <ab>no</ab>", "<ac>\nno\n<a>5</a>no"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO ",\"at_least_one\":true}"),
     "<a>5</a>\n<ab>x</ab> free <a>1</a>", "free\nx<a>5</a>"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO
            ",\"stop_after_first\":true}"),
     "free\nx<a>5</a>", "<a>5</a>x\n<a>5</a><a>5</a>"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO
            ",\"stop_after_first\":true,\"at_least_one\":true}"),
     "<a>5</a>", "free\nx<a>5</a>\n<a>5</a>x"},
    {FORMAT(TAG("{", "{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO "}", "\"}\"")),
     "{}\n{x}\n{x<a>5</a>y}\n{<ab>}</ab>}", "{x\n{<a>}\n{x}}"},
    {FORMAT("{\"type\":\"tags_with_separator\",\"separator\":\", \"," TWO "}"),
     "<a>5</a>\n<a>5</a>, <ab>x</ab>", "<a>5</a>, \n<a>5</a><a>5</a>\nx"},
    {FORMAT("{\"type\":\"tags_with_separator\",\"separator\":\"\",\"stop_after_first\":true,"
            "\"at_least_one\":true," TWO "}"),
     "<a>5</a>", "<a>5</a><a>5</a>"},
    {FORMAT("{\"type\":\"dispatch\",\"rules\":[[\"<n>\"," DIGITS "],[\"<t>\"," CONST("x") "]]}"),
     "free\n<n>5 and <t>x", "<n>x\n<t>y"},
    {FORMAT("{\"type\":\"dispatch\",\"loop\":false,\"rules\":[[\"<n>\"," CONST("x") "]]}"),
     "free\na<n>x", "<n>xy"},
    {"{\"type\":\"structural_tag\"," OLD ",\"triggers\":[\"<f=\"]}",
     "free\n<f=a>5</f>!<f=b>{\"x\": [1]}</f>", "<f=c>\n<f=a>\"x\"</f>\n<f=a>5"},
    {"{" OLD ",\"triggers\":[\"<f=a\",\"<f=b\"]}", "<f=c>\n<f=a>5</f>", "<f=a>x</f>"},
};

static const struct {
    const char *tag;
    int rc;
    const char *word; /* in the sentence */
} refused[] = {
    {"{}", ERR_INVALID, "'format'"},
    {"[]", ERR_INVALID, "'format'"},
    {FORMAT("5"), ERR_INVALID, ".format'"},
    {FORMAT("{}"), ERR_INVALID, "'type'"},
    {FORMAT("{\"type\":\"xml\"}"), ERR_INVALID, "xml"},
    {FORMAT("{\"type\":\"token\",\"token\":5}"), ERR_UNSUPPORTED, "token"},
    {FORMAT("{\"type\":\"any_tokens\"}"), ERR_UNSUPPORTED, "any_tokens"},
    {FORMAT("{\"type\":\"qwen_xml_parameter\",\"json_schema\":{}}"), ERR_UNSUPPORTED, "qwen_xml"},
    {FORMAT("{\"type\":\"const_string\"}"), ERR_INVALID, "'value'"},
    {FORMAT(CONST("")), ERR_INVALID, "empty"},
    {FORMAT("{\"type\":\"json_schema\"}"), ERR_INVALID, "json_schema"},
    {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{},\"style\":\"glm_xml\"}"), ERR_UNSUPPORTED,
     "style"},
    {FORMAT("{\"type\":\"json_schema\",\"json_schema\":{},\"any_order\":true}"), ERR_UNSUPPORTED,
     "any_order"},
    {FORMAT("{\"type\":\"any_text\",\"max_tokens\":5}"), ERR_UNSUPPORTED, "max_tokens"},
    {FORMAT("{\"type\":\"any_text\",\"excludes\":[\"\"]}"), ERR_INVALID, "excludes"},
    {FORMAT("{\"type\":\"any_text\",\"excludes\":\"a\"}"), ERR_INVALID, "excludes"},
    {FORMAT("{\"type\":\"regex\"}"), ERR_INVALID, "pattern"},
    {FORMAT("{\"type\":\"grammar\"}"), ERR_INVALID, "grammar"},
    {FORMAT("{\"type\":\"sequence\"}"), ERR_INVALID, "elements"},
    {FORMAT(LIST("or", "")), ERR_INVALID, "empty"},
    {FORMAT(LIST("sequence", ANY "," DIGITS)), ERR_UNSUPPORTED, "elements[0]"},
    {FORMAT("{\"type\":\"star\",\"content\":" ANY "}"), ERR_UNSUPPORTED, ".content'"},
    {FORMAT("{\"type\":\"repeat\",\"min\":2,\"max\":1,\"content\":" DIGITS "}"), ERR_INVALID,
     "max"},
    {FORMAT("{\"type\":\"repeat\",\"min\":-1,\"max\":1,\"content\":" DIGITS "}"), ERR_INVALID,
     "min"},
    {FORMAT("{\"type\":\"tag\",\"begin\":\"a\",\"end\":\"b\"}"), ERR_INVALID, "content"},
    {FORMAT("{\"type\":\"tag\",\"begin\":\"a\",\"content\":" DIGITS "}"), ERR_INVALID, "end"},
    {FORMAT("{\"type\":\"tag\",\"content\":" DIGITS ",\"end\":\"b\"}"), ERR_INVALID, "begin"},
    {FORMAT("{\"type\":\"tag\",\"begin\":{\"type\":\"token\",\"token\":1},\"content\":" DIGITS
            ",\"end\":\"b\"}"),
     ERR_UNSUPPORTED, "begin"},
    {FORMAT(TAG("<a>", DIGITS, "{\"type\":\"token\"}")), ERR_UNSUPPORTED, "end"},
    {FORMAT("{\"type\":\"triggered_tags\"," TWO "}"), ERR_INVALID, "triggers"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[]," TWO "}"), ERR_INVALID, "triggers"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a>\"]," TWO "}"), ERR_INVALID,
     "tags[1]"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<\",\"<a\"]," TWO "}"), ERR_INVALID,
     "not with 2"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\",\"<b\"]," TWO "}"), ERR_INVALID,
     "'<b'"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO ",\"at_least_one\":5}"),
     ERR_INVALID, "at_least_one"},
    {FORMAT(TAG("{", "{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO "}", "\"<a}\"")),
     ERR_INVALID, "trigger"},
    {FORMAT(TAG("{", "{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO "}", "\"!<a}\"")),
     ERR_INVALID, "trigger"},
    {FORMAT(LIST("sequence",
                 "{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"]," TWO "}," CONST("<a!"))),
     ERR_INVALID, "trigger"},
    {FORMAT(TAG("<a>", "{\"type\":\"any_text\",\"excludes\":[\"<\"]}", "\"</a>\"")), ERR_INVALID,
     "'</a>'"},
    {FORMAT(LIST("sequence", "{\"type\":\"any_text\",\"excludes\":[\"/\"]}," CONST("</a>"))),
     ERR_INVALID, "'/'"},
    {FORMAT("{\"type\":\"triggered_tags\",\"triggers\":[\"<a\"],\"excludes\":[\"<\"]," TWO "}"),
     ERR_INVALID, "'<a'"},
    {FORMAT("{\"type\":\"tags_with_separator\"," TWO "}"), ERR_INVALID, "separator"},
    {FORMAT("{\"type\":\"dispatch\",\"rules\":[[\"a\"]]}"), ERR_INVALID, "rules[0]"},
    {"{\"structures\":5,\"triggers\":[]}", ERR_INVALID, "structures"},
    {"{" OLD "}", ERR_INVALID, "triggers"},
    {"{\"structures\":[],\"triggers\":[\"a\"]}", ERR_INVALID, "tags"},
    {"{\"structures\":[{\"schema\":{}}],\"triggers\":[\"a\"]}", ERR_INVALID, "begin"},
    {"\"{\"", ERR_SYNTAX, "JSON"},
    {"\"5\"", ERR_INVALID, "'format'"},
};

static int compose(const char *text, struct arena *a, struct grammar_part *out, char why[512])
{
    const struct json *v = NULL;

    must_ok(json_parse(&v, a, text, strlen(text), why, 512));
    why[0] = '\0';
    return tags_compose(v, REPLY_PLAIN, a, out, why, 512);
}

/* What the texts of free text may not be taken for, in harmony. */
static void test_harmony(struct arena *a)
{
    static const char text[] = FORMAT(TAG("<a>", ANY, "\"</a>\""));
    const struct json *v = NULL;
    struct grammar_part part;
    struct grammar_request r = {.kind = GRAMMAR_PARTS, .parts = &part, .n_parts = 1};
    char why[512] = "";

    must_ok(json_parse(&v, a, text, strlen(text), why, sizeof why));
    must_ok(tags_compose(v, REPLY_HARMONY, a, &part, why, sizeof why));
    accept_case(r, "<a>x <|end</a>", "<a>x <|end|></a>");
}

static void test_deep(struct arena *a)
{
    char text[4000] = "{\"format\":";
    char why[512];
    struct grammar_part out;

    for (int i = 0; i < 14; i++)
        strcat(text, "{\"type\":\"optional\",\"content\":");
    strcat(text, DIGITS);
    for (int i = 0; i < 15; i++)
        strcat(text, "}");
    is_int(compose(text, a, &out, why), ERR_LIMIT, "formats that are nested too deep");
    ok(strstr(why, "deep") != NULL, "and it says so: %s", why);
}

int main(void)
{
    struct arena a = {.limit_bytes = (size_t)16 << 20};
    char why[512];

    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        struct grammar_part part = {0};
        struct grammar_request r = {.kind = GRAMMAR_PARTS,
                                    .parts = &part,
                                    .n_parts = 1,
                                    .source =
                                        taken[i].tag + strlen("{\"type\":\"structural_tag\"")};
        int rc = compose(taken[i].tag, &a, &part, why);

        is_int(rc, ERR_OK, "taken: %s %s", taken[i].tag, why);
        if (rc == ERR_OK)
            accept_case(r, taken[i].yes, taken[i].no);
        arena_reset(&a);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct grammar_part part;

        is_int(compose(refused[i].tag, &a, &part, why), refused[i].rc, "refused: %s",
               refused[i].tag);
        ok(strstr(why, refused[i].word) != NULL, "and says of %s: %s", refused[i].word, why);
        arena_reset(&a);
    }
    test_harmony(&a);
    test_deep(&a);
    arena_reset(&a);
    return tap_done();
}
