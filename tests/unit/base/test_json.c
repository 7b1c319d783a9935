/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: what json.h promises. Method: a table of texts that must be refused, with a part of the
 * reason; trees read member by member; numbers and texts written back as Python writes them. */
#include "base/json.h"

#include "tests/tap.h"

static const struct {
    const char *text;
    int rc;
    const char *why;
} refused[] = {
    {"", ERR_SYNTAX, "ends where a value"},
    {" ", ERR_SYNTAX, "line 1, column 2"},
    {"\xef\xbb\xbf{}", ERR_SYNTAX, "a value is expected"},
    {"{\"a\":1,}", ERR_SYNTAX, "member's name"},
    {"[1,]", ERR_SYNTAX, "a value is expected"},
    {"[1 2]", ERR_SYNTAX, "',' or ']'"},
    {"{\"a\" 1}", ERR_SYNTAX, "':'"},
    {"{a:1}", ERR_SYNTAX, "member's name"},
    {"{} x", ERR_SYNTAX, "more after"},
    {"01", ERR_SYNTAX, "begin with 0"},
    {"-", ERR_SYNTAX, "digit"},
    {"1.", ERR_SYNTAX, "after the point"},
    {".5", ERR_SYNTAX, "a value"},
    {"1e", ERR_SYNTAX, "exponent"},
    {"+1", ERR_SYNTAX, "a value"},
    {"NaN", ERR_SYNTAX, "a value"},
    {"Infinity", ERR_SYNTAX, "a value"},
    {"nul", ERR_SYNTAX, "a value"},
    {"truex", ERR_SYNTAX, "more after"},
    {"'a'", ERR_SYNTAX, "a value"},
    {"\"a", ERR_SYNTAX, "does not end"},
    {"\"\\", ERR_SYNTAX, "does not end"},
    {"\"\\x41\"", ERR_SYNTAX, "escape"},
    {"\"\\u00g0\"", ERR_SYNTAX, "hexadecimal"},
    {"\"\\u12", ERR_SYNTAX, "hexadecimal"},
    {"{\"a\\u0000b\":1}", ERR_SYNTAX, "\\u0000 is not supported in a member's name"},
    {"{\"a\":1,\"a\\u0000\":2}", ERR_SYNTAX, "line 1, column 17"},
    {"\"\\ud800\"", ERR_SYNTAX, "high surrogate"},
    {"\"\\ud800\\u0041\"", ERR_SYNTAX, "high surrogate"},
    {"\"\\udc00\"", ERR_SYNTAX, "low surrogate"},
    {"\"a\nb\"", ERR_SYNTAX, "control character"},
    {"\"\xff\"", ERR_SYNTAX, "UTF-8"},
    {"\"\xed\xa0\x80\"", ERR_SYNTAX, "UTF-8"},
    {"\"\xc3", ERR_SYNTAX, "UTF-8"},
    {"{\n\"a\": [1,\n  x]}", ERR_SYNTAX, "line 3, column 3"},
};

static void test_refused(void)
{
    size_t i;

    for (i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct arena a = {0};
        const struct json *node = NULL;
        char why[200] = "";
        int rc = json_parse(&node, &a, refused[i].text, strlen(refused[i].text), why, sizeof why);

        ok(rc == refused[i].rc && node == NULL && strstr(why, refused[i].why) != NULL,
           "refused: case %zu: %s", i, why);
        arena_reset(&a);
    }
}

static const struct {
    const char *text;
    const char *python; /* json.dumps(json.loads(text), ensure_ascii=False) */
} written[] = {
    {"1.0", "1.0"},
    {"1", "1"},
    {"-0", "0"},
    {"-0.0", "-0.0"},
    {"9007199254740993", "9007199254740993"},
    {"-9223372036854775808", "-9223372036854775808"},
    {"18446744073709551615", "18446744073709551615"},
    {"123456789012345678901234567890", "123456789012345678901234567890"},
    {"0.1", "0.1"},
    {"0.30000000000000004", "0.30000000000000004"},
    {"1e16", "1e+16"},
    {"1E15", "1000000000000000.0"},
    {"123456789.125e3", "123456789125.0"},
    {"1e-4", "0.0001"},
    {"1e-5", "1e-05"},
    {"1.5e300", "1.5e+300"},
    {"5e-324", "5e-324"},
    {"1e999", "Infinity"},
    {"0.1000000000000000000000000000000000000000000000000000000000000000000000000001", "0.1"},
    {"[1,[],{},\"a\\\"\\u00e9\\n\"]", "[1, [], {}, \"a\\\"\xc3\xa9\\n\"]"},
    {"{\"b\":1,\"a\":2,\"b\":3}", "{\"b\": 3, \"a\": 2}"},
    {"\"\\ud83d\\ude00\\/\"", "\"\xf0\x9f\x98\x80/\""},
    {" [ true , false , null ] ", "[true, false, null]"},
};

static void test_written(void)
{
    size_t i;

    for (i = 0; i < sizeof written / sizeof written[0]; i++) {
        struct arena a = {0};
        const struct json *node = NULL;
        struct buf out = {0};
        char why[200] = "";

        if (json_parse(&node, &a, written[i].text, strlen(written[i].text), why, sizeof why) == 0)
            json_write(&out, node, JSON_PYTHON);
        is_text(out.bytes, written[i].python, "written as Python does: %s", written[i].text);
        buf_fini(&out);
        arena_reset(&a);
    }
}

/* A NUL is a character of a text like any other, in every place of it; what looks like its escape,
 * or like the mark that stands for it on the way, stays what it is. */
static void test_nuls(void)
{
    static const struct {
        const char *text;
        size_t len;
        const char *is;
    } cases[] = {
        {"\"\\u0000\"", 1, "\0"},
        {"\"a\\u0000b\"", 3, "a\0b"},
        {"\"\\u0000\\u0000x\\u0000\"", 4, "\0\0x\0"},
        {"\"\\\\u0000\"", 6, "\\u0000"},
        {"\"\\\\\\u0000\"", 2, "\\\0"},
        {"\"\xc3\xbf\\u0000\xc3\xbe\"", 5, "\xc3\xbf\0\xc3\xbe"},
        {"\"\\u00ff\\u00fe\\u0000\"", 5, "\xc3\xbf\xc3\xbe\0"},
        {"\"\\\"\\u0000\\\"\"", 3, "\"\0\""},
    };
    struct arena a = {0};
    const struct json *node = NULL;
    struct buf out = {0};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rc = json_parse(&node, &a, cases[i].text, strlen(cases[i].text), NULL, 0);

        ok(rc == ERR_OK && node->kind == JSON_TEXT && node->text_len == cases[i].len &&
               memcmp(node->text, cases[i].is, cases[i].len + 1) == 0,
           "%s is read to the byte", cases[i].text);
    }
    must_ok(json_parse(&node, &a, "{\"m\":\"gpt\\u0000x\",\"n\":\"gpt\"}", 28, NULL, 0));
    ok(!json_is_text(json_get(node, "m"), "gpt") && json_is_text(json_get(node, "n"), "gpt"),
       "a text with a NUL is not its beginning");
    ok(json_has_nul(json_get(node, "m")) && !json_has_nul(json_get(node, "n")), "it can be told");
    is_text(json_get_text(node, "m", "none"), "none", "no C string is made of it");
    json_write(&out, node, JSON_COMPACT);
    is_text(out.bytes, "{\"m\":\"gpt\\u0000x\",\"n\":\"gpt\"}", "written as it was read");
    is_int(json_parse(&node, &a, "\"\\\0\"", 4, NULL, 0), ERR_SYNTAX, "a raw NUL is no escape");
    buf_fini(&out);
    arena_reset(&a);
}

static void test_tree(void)
{
    static const char text[] = "{\"n\": 18446744073709551615, \"i\": -5, \"r\": 1.0, \"t\": \"x\", "
                               "\"l\": [1, 2], \"T\": true, \"z\": null, \"a\":1,\"b\":1,\"c\":1,"
                               "\"d\":1,\"a\":7}";
    struct arena a = {0};
    const struct json *node = NULL;
    struct buf out = {0};

    is_int(json_parse(&node, &a, text, strlen(text), NULL, 0), ERR_OK, "an object is read");
    is_int(json_get(node, "n")->kind, JSON_UINT, "above INT64_MAX: unsigned");
    ok(json_get(node, "n")->uwhole == UINT64_MAX, "its value");
    is_int(json_get_int(node, "i", 0), -5, "int");
    is_int(json_get(node, "r")->kind, JSON_REAL, "1.0 is real");
    is_text(json_get(node, "r")->text, "1.0", "source text of a number");
    is_text(json_get_text(node, "t", ""), "x", "text");
    ok(json_get_bool(node, "T", false), "names are case-sensitive");
    is_int(json_get(node, "l")->n, 2, "list");
    ok(json_get_kind(node, "z", JSON_TEXT) == NULL, "null counts as missing");
    ok(json_get(node, "nothing") == NULL && json_get(NULL, "x") == NULL, "missing members");
    is_int(json_get_int(node, "a", 0), 7, "the last of two equal names counts, indexed");
    is_int(node->n, 11, "and stands once");
    json_write(&out, json_get(node, "l"), JSON_COMPACT);
    is_text(out.bytes, "[1,2]", "compact");
    buf_clear(&out);
    must_ok(json_parse(&node, &a, "[1.50,-0,1e999, 7]", 18, NULL, 0));
    json_write(&out, node, JSON_EXACT);
    is_text(out.bytes, "[1.50,-0,1e999,7]", "numbers as they were written");
    buf_fini(&out);
    arena_reset(&a);
}

/* A tree that is made is read and written as one that was parsed. */
static void test_made(void)
{
    struct arena a = {0};
    struct json_made outer = {.arena = &a};
    struct json_made inner = {.arena = &a};
    const struct json *parsed = NULL;
    struct buf out = {0};
    struct json root;

    must_ok(json_parse(&parsed, &a, "{\"x\":[1.50,{}]}", 15, NULL, 0));
    json_put_text(&inner, NULL, "a\"b");
    json_put_null(&inner, NULL);
    for (int i = 0; i < 9; i++) /* more than one growth */
        json_put_flag(&inner, NULL, i % 2 == 0);
    json_put_made(&outer, "list", JSON_LIST, &inner);
    json_put(&outer, "shared", json_get(parsed, "x"));
    json_put_text(&outer, "list", "the second of a name");
    root = json_made(&outer, JSON_OBJECT);
    ok(!outer.failed, "a tree is made");
    json_write(&out, &root, JSON_COMPACT);
    is_text(out.bytes,
            "{\"list\":[\"a\\\"b\",null,true,false,true,false,true,false,true,false,true],"
            "\"shared\":[1.5,{}],\"list\":\"the second of a name\"}",
            "and written");
    is_int(json_get(&root, "list")->n, 11, "the first of two names is found");
    ok(json_get(parsed, "x")->key_len == 1 && json_get(&root, "shared")->key_len == 6,
       "a shared node keeps its own name");
    a.limit_bytes = a.used_bytes + 1;
    json_put_text(&outer, "fits", "a");
    is_int(root.n, 3, "what was taken does not grow");
    json_put_text(&outer, "more", "b");
    ok(outer.failed && outer.n == 4, "no memory: the maker has failed");
    a.limit_bytes = 0;
    json_put_text(&outer, "more", "b");
    is_int(outer.n, 4, "and stays so");
    inner = (struct json_made){.arena = &a};
    json_put_made(&inner, "a", JSON_OBJECT, &outer);
    ok(inner.failed, "as does what it is put into");
    buf_fini(&out);
    arena_reset(&a);
}

/* 10 MB of '[' and of nested objects: refused at once, without depth. */
static void test_deep(void)
{
    size_t len = (size_t)10 << 20;
    char *text = malloc(len);
    struct arena a = {0};
    const struct json *node = NULL;
    char why[200] = "";
    size_t i;

    if (text == NULL)
        tap_skip_all("no memory");
    memset(text, '[', len);
    is_int(json_parse(&node, &a, text, len, why, sizeof why), ERR_LIMIT, "10 MB of [: %s", why);
    for (i = 0; i + 5 <= len; i += 5)
        memcpy(text + i, "{\"a\":", 5);
    is_int(json_parse(&node, &a, text, len, why, sizeof why), ERR_LIMIT, "10 MB of {: %s", why);
    memset(text, '[', JSON_DEPTH_MAX);
    memset(text + JSON_DEPTH_MAX, ']', JSON_DEPTH_MAX);
    is_int(json_parse(&node, &a, text, 2 * JSON_DEPTH_MAX, NULL, 0), ERR_OK, "the deepest allowed");
    memset(text, ' ', len);
    is_int(json_parse(&node, &a, text, len, NULL, 0), ERR_SYNTAX, "10 MB of spaces");
    arena_reset(&a);
    free(text);
}

/* Texts of the smallest values are refused by their number, before any tree is made. */
static void test_room(void)
{
    struct arena a = {.limit_bytes = 1 << 20};
    const struct json *node = NULL;
    struct buf b = {0};
    char why[200] = "";
    int i;

    buf_add_byte(&b, '[');
    for (i = 0; i < 100000; i++)
        buf_add_text(&b, "1,");
    buf_add_text(&b, "1]");
    is_int(json_parse(&node, &a, b.bytes, b.len, why, sizeof why), ERR_NO_MEMORY,
           "more values than the arena has room for");
    ok(a.limited && a.used_bytes == 0, "take none of it (%s)", why);
    arena_reset(&a);
    is_int(json_parse(&node, &a, b.bytes + 198001, 2000, why, sizeof why), ERR_SYNTAX, "no list");
    b.bytes[198000] = '[';
    is_int(json_parse(&node, &a, b.bytes + 198000, b.len - 198000, why, sizeof why), ERR_OK,
           "fewer find it");
    ok(!a.limited && node->n == 1001, "1001 of them: %u", node->n);
    buf_fini(&b);
    arena_reset(&a);
}

int main(void)
{
    test_refused();
    test_written();
    test_nuls();
    test_tree();
    test_made();
    test_deep();
    test_room();
    return tap_done();
}
