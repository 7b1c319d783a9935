/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: each keyword means what JSON Schema says, or is refused by name and place.
 * Method: small schemas, texts that they accept and texts that they do not. */
#include "accept.h"

static void schema(const char *source, const char *yes, const char *no)
{
    accept_case((struct grammar_request){.kind = GRAMMAR_SCHEMA,
                                         .source = source,
                                         .source_len = strlen(source)},
                yes, no);
}

static void refused(const char *source, int rc, const char *where)
{
    struct grammar_request r = {
        .kind = GRAMMAR_SCHEMA, .source = source, .source_len = strlen(source)};
    struct buf image = {0};

    is_int(accept_compile(&r, &image), rc, "%.60s is refused: %s", source, accept_error.text);
    is_text(accept_error.where, where, "and the place is named");
    ok(image.len == 0, "and nothing is written");
    buf_fini(&image);
}

static void test_types(void)
{
    schema("{}", "1\n\"a\"\nnull\n[1, {\"a\": [] }]\n{}\ntrue\n-0.5e+10",
           "01\n1.\nnul\n[1,]\n{\"a\"}\n 1");
    schema("true", "1\n{}", "");
    schema("{\"type\":\"integer\"}", "0\n-12\n120", "1.5\n\"1\"\n01\n1e3");
    schema("{\"type\":\"number\"}", "0\n1.25\n1e-9\n-3E5", "1.\n.5\n+1");
    schema("{\"type\":[\"string\",\"null\"]}", "null\n\"\"\n\"a\\n\\u00e9\\ud83d\\ude00\"",
           "1\n\"a\n\"\\ud83d\"\n\"\\x\"");
    schema("{\"type\":\"boolean\"}", "true\nfalse", "null\n0");
    schema("{\"enum\":[\"a\",\"b\\\"c\",1,2.50,null,[1],{\"k\":true}]}",
           "\"a\"\n\"b\\\"c\"\n1\n2.5\n2.50\nnull\n[1]\n{\"k\": true}",
           "\"b\"\n3\n[]\n{\"k\":false}\n25");
    schema("{\"const\":\"x\"}", "\"x\"", "\"y\"\nx");
    schema("{\"enum\":[\"a\",\"b\",1],\"type\":\"string\",\"not\":{\"const\":\"a\"}}", "\"b\"",
           "\"a\"\n1");
}

static void test_numbers(void)
{
    schema("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":305}", "-12\n0\n7\n99\n305\n-0",
           "-13\n306\n1000\n-100\n400");
    schema("{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":12}", "10\n11",
           "9\n12\n100\n1");
    schema("{\"minimum\":1.5,\"type\":\"number\"}", "1.5\n1.50\n1.51\n2\n10",
           "1.4999\n1\n-2\n1.49\n0");
    schema("{\"maximum\":-0.25,\"type\":\"number\"}", "-0.25\n-1\n-0.250",
           "-0.2\n0\n0.25\n-0.2499");
    schema("{\"type\":\"integer\",\"multipleOf\":7}", "0\n7\n-14\n700", "1\n8\n71");
    schema("{\"type\":\"number\",\"multipleOf\":0.01}", "0\n1\n0.25\n3.10\n3.100", "0.255\n1.001");
    schema("{\"type\":\"number\",\"not\":{\"multipleOf\":2}}", "1\n2.5\n3", "2\n4\n2.0");
    schema("{\"type\":\"number\",\"minimum\":1,\"exclusiveMinimum\":true,\"$schema\":"
           "\"http://json-schema.org/draft-04/schema#\"}",
           "2\n1.1", "1\n0");
    schema("{\"type\":\"number\",\"not\":{\"type\":\"integer\"}}", "1.5", "1\n2.0");
}

#define HOSTNAME "{\"type\":\"string\",\"format\":\"hostname\"}"

/* Labels that begin with "xn--" are Punycode; what is refused of it stands in hostname.c. */
static void test_hostnames(void)
{
    char name[80] = "\"xn--";
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA, .source = HOSTNAME};
    struct buf image = {0};
    int n;

    schema(HOSTNAME,
           "\"a\"\n\"1a.b-2.XN--zca29lwxobi7a\"\n\"xn--9n2bp8q.xn--9t4b11yi5a\"\n\"x.xn.xn-a\"\n"
           "\"a--b\"\n\"xn--ll-0ea\"\n\"xn--wva3je\"\n\"xn--k8j5u\"\n\"xn--11b2ezcw70k\"\n"
           "\"xn--bcher-kva.example\"\n\"xn--a-b-c-ooc\"\n\"xn--0-gyc\"",
           "\"\"\n\".\"\n\"a.\"\n\".a\"\n\"-a\"\n\"a-\"\n\"a_b\"\n\"xn-\"\n\"xn--\"\n\"xn--.a\"");
    schema(HOSTNAME, "\"xn--07j-9ya\"", /* with a '-' behind it all is ASCII */
           "\"xn--X\"\n\"xn--zca29lwxobi7\"\n\"a.xn--bb.c\"\n\"xn--abc-\"\n"
           "\"xn--07jt112bpxg.a\"\n\"xn--chb89f\"\n\"xn--07jceefgh4c\"\n"     /* forbidden */
           "\"xn--l-fda\"\n\"xn--l-gda\"\n\"xn--vek\"\n\"xn--defabc-k64e\"\n" /* alone */
           "\"xn--hello-txk\"\n\"XN--HELLO-ZED\"\n\"xn--hello-6bf\"");        /* marks */
    schema("{\"type\":\"string\",\"format\":\"hostname\",\"maxLength\":253}",
           "\"xn--bcher-kva.example\"", "\"a_b\"\n\"a-.b\"");
    r.source_len = strlen(r.source);
    must_ok(accept_compile(&r, &image));
    for (n = 5; n < 70; n++) { /* "1...1a" is one number */
        memcpy(name + n, "a\"", 2);
        if (accept_text(&image, name, (size_t)n + 2) != (n <= 63))
            break;
        name[n] = '1';
    }
    is_int(n, 70, "a label of Punycode has 63 characters at most");
    buf_fini(&image);
}

#define TIME_OF(more)      "{\"type\":\"string\",\"format\":\"time\"" more "}"
#define DATE_TIME_OF(more) "{\"type\":\"string\",\"format\":\"date-time\"" more "}"

/* Is local time - offset 23:59 in UTC, or the offset's minutes none that a zone has today? */
static bool leap_wanted(int local, int offset)
{
    bool minutes = (local - offset + 1440) % 60 == 59;
    bool rare = offset % 15 != 0;

    return rare ? minutes : (local - offset + 2880) % 1440 == 1439;
}

/* The first minutes and all ends of quarters, with all offsets that end in 0, 5 or 9. */
static void test_leap_offsets(void)
{
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA, .source = TIME_OF("")};
    struct buf image = {0};
    int wrong = 0;
    int local, offset;

    r.source_len = strlen(r.source);
    must_ok(accept_compile(&r, &image));
    for (local = 0; local < 1440; local += local % 15 == 14 ? 15 : 1)
        for (offset = -1439; offset < 1440; offset++) {
            int size = abs(offset);
            char text[40];
            int n = snprintf(text, sizeof text, "\"%02d:%02d:60%c%02d:%02d\"", local / 60,
                             local % 60, offset < 0 ? '-' : '+', size / 60, size % 60);

            if (size % 5 == 0 || size % 10 == 9)
                wrong += accept_text(&image, text, (size_t)n) != leap_wanted(local, offset);
        }
    is_int(wrong, 0, "a leap second's offset fits its minute, and its hour where zones are");
    buf_fini(&image);
}

/* A leap second is the last of a day in UTC. Beside other constraints its offset is free; where the
 * format must not hold, there, it is written in UTC. */
static void test_leap_seconds(void)
{
    schema(TIME_OF(""),
           "\"23:59:60Z\"\n\"23:59:60.5z\"\n\"01:29:60+01:30\"\n\"23:29:60+23:30\"\n"
           "\"00:29:60-23:30\"\n\"15:59:60.123-08:00\"\n\"05:44:60+05:45\"\n\"00:18:60+00:19\"\n"
           "\"00:00:00+00:01\"\n\"23:59:60-00:00\"",
           "\"22:59:60Z\"\n\"23:58:60Z\"\n\"23:59:60+01:00\"\n\"23:59:60+00:30\"\n"
           "\"23:59:60-01:00\"\n\"23:59:60-00:30\"\n\"24:59:60+01:00\"\n\"23:59:61Z\"\n"
           "\"00:18:60+00:20\"\n\"00:00:60\"");
    schema(DATE_TIME_OF(""), "\"1998-12-31T15:59:60.123-08:00\"\n\"1999-01-01t05:29:60+05:30\"",
           "\"1998-12-31T15:59:60.123-07:00\"\n\"1998-12-31T22:59:60Z\"");
    schema(DATE_TIME_OF(",\"maxLength\":255"),
           "\"1998-12-31T15:59:60.123-08:00\"\n\"1998-12-31T23:59:60Z\"",
           "\"1998-12-31T22:59:60Z\"\n\"1998-12-31\"");
    schema("{\"type\":\"string\",\"maxLength\":40,\"not\":{\"format\":\"date-time\"}}",
           "\"1998-12-31T15:59:60-07:00\"\n\"x\"",
           "\"1998-12-31T23:59:60Z\"\n\"1998-12-31T01:02:03-08:00\"");
    schema("{\"type\":\"string\",\"maxLength\":40,\"not\":{\"format\":\"hostname\"}}",
           "\"xn--X\"\n\"a.xn--bb.c\"\n\"-\"", "\"a.b-c\"\n\"1\"");
    schema(DATE_TIME_OF(",\"pattern\":\"^.{20,100}$\""),
           "\"1998-12-31T15:59:60.123-08:00\"\n\"1998-12-31T23:59:60Z\"",
           "\"1998-12-31T22:59:60Z\"\n\"1998-12-31T22:59:59\"");
    test_leap_offsets();
}

static void test_strings(void)
{
    static const char big[] = "{\"type\":\"string\",\"minLength\":300,\"maxLength\":2000}";

    schema("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           "\"ab\"\n\"abc\"\n\"\xc3\xa9\xf0\x9f\x98\x80\"\n\"\\n\\u00e9\"",
           "\"a\"\n\"abcd\"\n\"\"");
    {
        struct grammar_request r = {
            .kind = GRAMMAR_SCHEMA, .source = big, .source_len = sizeof big - 1};
        struct buf image = {0};
        char text[2100];
        int n;

        must_ok(accept_compile(&r, &image));
        for (n = 0; n <= 2002; n++) {
            memset(text, 'a', sizeof text);
            text[0] = '"';
            text[n + 1] = '"';
            if (accept_text(&image, text, (size_t)n + 2) != (n >= 300 && n <= 2000))
                break;
        }
        is_int(n, 2003, "300 to 2000 characters are counted in blocks");
        buf_fini(&image);
    }
    schema("{\"type\":\"string\",\"pattern\":\"^a+$\"}", "\"a\"\n\"aaa\"", "\"\"\n\"ab\"\n1");
    schema("{\"type\":\"string\",\"pattern\":\"b\"}", "\"b\"\n\"abc\"\n\"x\\\"b\"\n\"b\\n\"",
           "\"\"\n\"ac\"");
    schema("{\"type\":\"string\",\"pattern\":\"^[a-c]+$\",\"minLength\":2,\"maxLength\":2}",
           "\"ab\"", "\"a\"\n\"abc\"\n\"ad\"");
    schema("{\"type\":\"string\",\"pattern\":\"^\\\\\\\\$\"}", "\"\\\\\"", "\"/\"\n\"\"");
    schema("{\"type\":\"string\",\"format\":\"date\"}", "\"2024-02-29\"\n\"2000-02-29\"",
           "\"2023-02-29\"\n\"1900-02-29\"\n\"2024-04-31\"\n\"2024-1-1\"");
    schema("{\"type\":\"string\",\"format\":\"ipv6\"}",
           "\"::1\"\n\"1:2:3:4:5:6:7:8\"\n\"::ffff:1.2.3.4\"", "\":::\"\n\"1:2:3\"\n\"::1::\"");
    schema("{\"type\":\"string\",\"format\":\"uuid\",\"not\":{\"pattern\":\"^0\"}}",
           "\"12345678-1234-1234-1234-123456789abc\"", "\"02345678-1234-1234-1234-123456789abc\"");
    schema("{\"type\":\"string\",\"format\":\"uri\"}",
           "\"http://[::ffff:1.2.3.4]:80/a?b#c\"\n\"x://u@h.example\"\n\"a:b\"",
           "\"http://[::ffff:01.2.3.4]\"\n\"http://[1:2]/\"\n\"//h\"");
    test_hostnames();
    test_leap_seconds();
    schema("{\"type\":\"string\",\"format\":\"iri\"}", "\"a:b?\xf4\x8f\xbf\xbd\"",
           "\"a:b#\xf4\x8f\xbf\xbd\"");
    schema("{\"type\":\"string\",\"format\":\"made-up\"}", "\"anything\"", "1");
}

static void test_objects(void)
{
    schema("{\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{}},\"required\":[\"b\"],"
           "\"type\":\"object\"}",
           "{\"a\":1,\"b\":2}\n{\"b\":[]}\n{ \"a\" : 1 , \"b\" : {} , \"c\":3, \"ab\":1}",
           "{}\n{\"a\":1}\n{\"b\":1,\"a\":1}\n{\"a\":\"x\",\"b\":1}\n{\"c\":1,\"b\":1}");
    schema("{\"type\":\"object\",\"properties\":{\"ab\":{},\"abc\":{}},"
           "\"additionalProperties\":false}",
           "{}\n{\"ab\":1,\"abc\":2}\n{\"abc\":0}",
           "{\"a\":1}\n{\"abcd\":1}\n{\"abc\":1,\"ab\":1}");
    schema("{\"type\":\"object\",\"properties\":{\"x\\\"y\":{\"type\":\"null\"}},"
           "\"additionalProperties\":{\"type\":\"integer\"}}",
           "{\"x\\\"y\":null}\n{\"x\\\"z\":1}\n{\"x\":1}\n{\"q\":2,\"\xc3\xa9\":3}",
           "{\"x\\\"y\":1}\n{\"q\":\"s\"}\n{\"\\u0078\\\"y\":1}");
    schema("{\"type\":\"object\",\"patternProperties\":{\"^n_\":{\"type\":\"number\"},"
           "\"_s$\":{\"minimum\":3}},"
           "\"additionalProperties\":false}",
           "{\"n_a\":1}\n{\"n_s\":3}\n{\"x_s\":\"t\"}\n{}",
           "{\"n_s\":2}\n{\"n_a\":\"x\"}\n{\"other\":1}");
    schema("{\"type\":\"object\",\"minProperties\":2,\"maxProperties\":3}",
           "{\"a\":1,\"b\":2}\n{\"a\":1,\"b\":2,\"c\":3}",
           "{}\n{\"a\":1}\n{\"a\":1,\"b\":2,\"c\":3,\"d\":4}");
    schema("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"minProperties\":1,"
           "\"maxProperties\":2,\"additionalProperties\":false}",
           "{\"a\":1}\n{\"b\":1,\"c\":2}", "{}\n{\"a\":1,\"b\":1,\"c\":2}");
    schema("{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":3}}",
           "{\"abc\":1}\n{}", "{\"abcd\":1}\n{\"A\":1}");
    schema("{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}}",
           "{\"b\":1}\n{\"a\":1,\"b\":2}\n{}", "{\"a\":1}");
    schema("{\"type\":\"object\","
           "\"dependentSchemas\":{\"a\":{\"properties\":{\"c\":{\"type\":\"null\"}}}}}",
           "{\"a\":1}\n{\"c\":5}\n{\"a\":1,\"c\":null}", "{\"a\":1,\"c\":5}");
    schema("{\"type\":\"object\",\"not\":{\"required\":[\"a\"]}}", "{\"b\":1}\n{}", "{\"a\":1}");
    schema("{\"type\":\"object\",\"not\":{\"additionalProperties\":{\"type\":\"integer\"}}}",
           "{\"a\":\"x\"}\n{\"a\":1,\"b\":null}", "{}\n{\"a\":1}");
}

static void test_arrays(void)
{
    schema("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
           "[1]\n[1, 2,3]", "[]\n[1,2,3,4]\n[\"a\"]\n[1,]");
    schema("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"string\"}],"
           "\"items\":false}",
           "[]\n[null]\n[null,\"a\"]", "[1]\n[null,\"a\",1]");
    schema("{\"type\":\"array\",\"contains\":{\"const\":5}}", "[5]\n[1,5,2]", "[]\n[1]");
    schema(
        "{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"minContains\":2,\"maxContains\":3}",
        "[null,null]\n[1,null,2,null,null]", "[null]\n[null,null,null,null]\n[]");
    schema("{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"integer\"}}}", "[\"a\"]\n[1,null]",
           "[]\n[1]");
    schema("{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1}", "[]\n[1]", "[1,1]");
    schema(
        "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",1,null,\"a\",true]}}",
        "[]\n[\"a\"]\n[true, \"a\", 1]\n[1, null, true, \"a\"]",
        "[\"a\", \"a\"]\n[1, \"a\", 1]\n[1, null, true, \"a\", 1]\n[2]");
    schema("{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"maxItems\":2,"
           "\"items\":{\"$ref\":"
           "\"#/$defs/c\"},\"$defs\":{\"c\":{\"type\":\"string\",\"enum\":[\"x\",\"y\",\"z\",4]}}}",
           "[\"x\", \"z\"]\n[\"z\", \"x\"]",
           "[\"x\"]\n[\"x\", \"x\"]\n[\"x\", 4]\n[\"x\", \"y\", \"z\"]");
    schema("{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"anyOf\":[{\"type\":\"boolean\"},{"
           "\"const\":\"a\"}]}}",
           "[true, \"a\", false]", "[true, true]\n[\"b\"]");
    schema("{\"type\":\"array\",\"uniqueItems\":true,\"minItems\":2,\"items\":"
           "{\"enum\":[1,2,3,4,5,6,7,8,"
           "9]}}",
           "[1, 2]\n[1, 4, 9]\n[1, 2, 3, 4, 5, 6, 7, 8, 9]", "[1]\n[9]\n[1, 1]\n[2, 2]");
}

static void test_logic(void)
{
    schema("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", "1\n\"a\"",
           "\"ab\"\n1.5");
    schema("{\"oneOf\":[{\"multipleOf\":2},{\"multipleOf\":3}],\"type\":\"integer\"}", "2\n3\n4\n9",
           "6\n1\n0");
    schema("{\"allOf\":[{\"minimum\":3},{\"maximum\":5}],\"type\":\"integer\"}", "3\n5", "2\n6");
    schema(
        "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},"
        "{\"properties\":{\"b\":{\"type\":\"null\"},\"a\":{\"minimum\":4}}}],\"type\":\"object\"}",
        "{\"a\":4}\n{\"a\":5,\"b\":null}", "{\"a\":3}\n{\"b\":null}\n{\"a\":4,\"b\":1}");
    schema(
        "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},\"if\":{\"properties\":"
        "{\"k\":{\"const\":\"x\"}},\"required\":[\"k\"]},\"then\":{\"required\":[\"v\"]},"
        "\"else\":{\"not\":{\"required\":[\"v\"]}}}",
        "{\"k\":\"x\",\"v\":1}\n{\"k\":\"y\"}\n{}",
        "{\"k\":\"x\"}\n{\"k\":\"y\",\"v\":1}\n{\"v\":1}");
    schema("{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"a\"},"
           "\"n\":{\"type\":\"integer\"}},"
           "\"required\":[\"t\"]},{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"b\"}},"
           "\"required\":[\"t\"]}]}",
           "{\"t\":\"a\",\"n\":1}\n{\"t\":\"b\"}", "{\"t\":\"c\"}\n{}\n{\"t\":\"a\",\"n\":\"x\"}");
    schema(
        "{\"$defs\":{\"tree\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},"
        "\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/tree\"}}},\"required\":[\"v\"],"
        "\"additionalProperties\":false}},\"$ref\":\"#/$defs/tree\"}",
        "{\"v\":1}\n{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]},{\"v\":3}]}",
        "{\"kids\":[]}\n{\"v\":1,\"kids\":[{}]}");
    schema("{\"$defs\":{\"a\":{\"$anchor\":\"here\",\"type\":\"null\"}},\"$ref\":\"#here\"}",
           "null", "1");
    schema("{\"$id\":\"http://x/y\",\"$defs\":{\"a\":{\"$id\":\"z\",\"type\":\"null\"}},"
           "\"$ref\":\"http://x/z\"}",
           "null", "1");
}

static void test_refused(void)
{
    refused("{\"properties\":{\"a\":{\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}}}",
            ERR_UNSUPPORTED, "/properties/a/uniqueItems");
    refused("{\"properties\":{\"a\":{\"uniqueItems\":true}}}", ERR_UNSUPPORTED,
            "/properties/a/uniqueItems");
    refused("{\"uniqueItems\":true,\"items\":{\"type\":\"string\",\"pattern\":\"^[ab]$\"}}",
            ERR_UNSUPPORTED, "/uniqueItems");
    ok(strstr(accept_error.text, "\"enum\"") != NULL && strstr(accept_error.text, "leave") != NULL,
       "and what to write instead: %s", accept_error.text);
    refused("{\"not\":{\"items\":{\"enum\":[1,2]},\"uniqueItems\":true}}", ERR_UNSUPPORTED,
            "/not/uniqueItems");
    ok(strstr(accept_error.text, "outside") != NULL, "and there: %s", accept_error.text);
    refused("{\"allOf\":[{\"$ref\":\"http://elsewhere/x\"}]}", ERR_UNSUPPORTED, "/allOf/0/$ref");
    refused("{\"type\":\"strnig\"}", ERR_INVALID, "/type");
    refused("{\"pattern\":\"(a\"}", ERR_SYNTAX, "/pattern");
    refused("{\"pattern\":\"(a)\\\\1\"}", ERR_UNSUPPORTED, "/pattern");
    refused("false", ERR_INVALID, "");
    refused("{\"$schema\":\"http://a.example/own\",\"minimum\":10}", ERR_UNSUPPORTED, "/$schema");
    refused("{\"$defs\":{\"a\":{\"$id\":\"http://a.example/a\",\"$schema\":\"urn:own\"}}}",
            ERR_UNSUPPORTED, "/$defs/a/$schema");
    schema("{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"minimum\":10}", "10",
           "9");
    schema("{\"$schema\":\"https://spec.openapis.org/oas/3.1/dialect/base\",\"minimum\":10}", "10",
           "9");
    schema("{\"properties\":{\"$schema\":{\"type\":\"string\"}}}", "{\"$schema\": \"urn:own\"}",
           "{\"$schema\": 1}");
    schema("{\"const\":{\"$id\":\"urn:a\",\"$schema\":\"urn:own\"}}",
           "{\"$id\":\"urn:a\",\"$schema\":\"urn:own\"}", "1");
    refused("{\"type\":\"string\",\"minimum\":\"x\"}", ERR_INVALID, "/minimum");
    refused("{\"unevaluatedProperties\":false,\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{}}}",
            ERR_UNSUPPORTED, "/unevaluatedProperties");
    refused("{", ERR_SYNTAX, "");
    refused("{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":false}}", ERR_INVALID,
            "");
}

static void test_space(void)
{
    static const struct {
        const char *text;
        bool want;
    } spaced[] = {
        {"{\n  \"a\": [\n    1,\n    2\n  ],\n\n  \"b\":\n  {}\n}", true},
        {"{\r\n\t\"a\" : 1, \r\n\t\"b\":2}", true},
        {"{\n\n\n}", false},
        {"{\n \n}", false},
        {"{\"a\"\n:1}", false},
        {"{\r}", false},
        {"{\v}", false},
    };
    struct grammar_request r = {.kind = GRAMMAR_JSON_OBJECT, .space = GRAMMAR_COMPACT};
    struct buf image = {0};
    int compiled;

    accept_case(r, "{\"a\": [1, 2],\"b\":{}}\n{}", "{ }\n{\"a\" :1}\n{\"a\":1 }\n{\"a\":  1}\n[1]");
    r.space = GRAMMAR_FLEXIBLE;
    accept_case(r, "{ }\n{\t\"a\" :1 }", "[]\n {}\n{\"a\"  :1}\n{\"a\"\t:1}\n{  }\n{\"a\":  1}");
    compiled = accept_compile(&r, &image);
    is_int(compiled, ERR_OK, "white space");
    for (size_t i = 0; i < sizeof spaced / sizeof spaced[0]; i++)
        ok(accept_text(&image, spaced[i].text, strlen(spaced[i].text)) == spaced[i].want,
           "white space, case %zu", i);
    for (int n = 31; n <= 33; n++) { /* blanks of an indentation */
        char text[64];

        (void)snprintf(text, sizeof text, "{\n%*s}", n, "");
        ok(accept_text(&image, text, strlen(text)) == (n <= 32), "%d blanks", n);
        (void)snprintf(text, sizeof text, "{\n\n%*s}", n, "");
        ok(accept_text(&image, text, strlen(text)) == (n <= 32), "%d blanks behind two lines", n);
    }
    buf_fini(&image);
}

/* The client's own pattern: everywhere, and of JSON's white space alone. */
static void test_spacing(void)
{
    static const char source[] = "{\"required\":[\"a\"],\"properties\":{\"a\":{\"items\":"
                                 "{\"type\":\"integer\"}}},\"type\":\"object\"}";
    struct grammar_request r = {.kind = GRAMMAR_SCHEMA,
                                .source = source,
                                .source_len = sizeof source - 1,
                                .space = GRAMMAR_SPACED};
    struct buf image = {0};

    r.spacing = "[ x]?";
    r.spacing_len = strlen(r.spacing);
    accept_case(r, "{\"a\":1}\n{ \"a\" : [ 1 , 2 ] }", "{\"a\":  1}\n{x\"a\":1}\n{\t\"a\":1}");
    r.spacing = "  ";
    r.spacing_len = strlen(r.spacing);
    accept_case(r, "{  \"a\"  :  1  }", "{\"a\":1}\n{ \"a\" : 1 }");
    r.spacing = "x+";
    is_int(accept_compile(&r, &image), ERR_INVALID, "a pattern of something else");
    ok(strstr(accept_error.text, "whitespace_pattern") != NULL, "and says so");
    r.spacing = "(";
    r.spacing_len = 1;
    is_int(accept_compile(&r, &image), ERR_SYNTAX, "no pattern at all");
    buf_fini(&image);
}

/* --- characters counted beside a language -------------------------------------------------- */

/* A text of so many times a piece between two others. */
static const char *stretched(const char *before, const char *piece, int n, const char *behind)
{
    static char text[8192];
    char *at = text + sprintf(text, "%s", before);

    for (int i = 0; i < n; i++)
        at += sprintf(at, "%s", piece);
    (void)sprintf(at, "%s", behind);
    return text;
}

/* Along a text: each mask lets something come, so no count ends where the language cannot. */
static void counted_walk(const struct buf *image, const char *text)
{
    static uint32_t mask[ACCEPT_TOKENS / 32];
    const struct automaton *a = (const struct automaton *)(const void *)image->bytes;
    const struct token_trie *v = (const struct token_trie *)(const void *)accept_image.bytes;
    size_t at = 0, len = strlen(text);
    int dead = 0;

    walk_init(&accept_walk, a);
    for (; at < len; at++) {
        uint32_t any = 0;

        must_ok(walk_bytes(accept_work, a, &accept_walk, text + at, 1));
        if ((at + 30 < len && at % 64 != 0) && at > 20)
            continue;
        must_ok(walk_mask(accept_work, a, v, accept_cache, &accept_walk, mask));
        for (uint32_t i = 0; i < v->n_words; i++)
            any |= mask[i];
        dead += any == 0;
    }
    is_int(dead, 0, "no dead end along %.30s...", text);
}

/* `fits` more of the piece than a text of max characters has are too many. */
static void counted(const char *source, const char *before, const char *piece, int fits,
                    const char *behind)
{
    struct grammar_request r = {
        .kind = GRAMMAR_SCHEMA, .source = source, .source_len = strlen(source)};
    struct buf image = {0};

    if (ok(accept_compile(&r, &image) == 0, "%.60s compiles %s", source, accept_error.text)) {
        ok(image.len < 100000, "in %zu bytes", image.len);
        accept_all(&image, stretched(before, piece, fits, behind), true, source);
        counted_walk(&image, stretched(before, piece, fits, behind));
        accept_all(&image, stretched(before, piece, fits + 1, behind), false, source);
        accept_all(&image, stretched(before, piece, 3, behind), true, source);
    }
    buf_fini(&image);
}

static void test_counted(void)
{
    static const char url[] =
        "{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083}";
    static const char mail[] = "{\"type\":\"string\",\"format\":\"email\",\"maxLength\":320}";
    static const char host[] = "{\"type\":\"string\",\"format\":\"hostname\",\"maxLength\":1024}";
    static const char accents[] =
        "{\"type\":\"string\",\"pattern\":\"^(\\u00e9[a-f\\\\\\\\]{2})+!$\",\"maxLength\":901}";

    counted(url, "\"http://a.b/", "x", 2072, "\"");
    counted(url, "\"http://a.b/", "x", 2069, "%41\"");
    counted(mail, "\"", "a", 314, "@b.org\"");
    counted(mail, "\"\\\"", "a", 312, "\\\"@b.org\"");
    counted(host, "\"a", ".bc", 341, "\"");
    counted(accents, "\"",
            "\xc3\xa9"
            "a\\\\",
            300, "!\"");
    schema("{\"items\":{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":2083},"
           "\"type\":\"array\"}",
           "[\"a:b\", \"c:d\"]\n[\"a:b\"]", "[\"a\"]\n[\"a:b\"");
    schema(
        "{\"anyOf\":[{\"type\":\"string\",\"format\":\"uri\",\"minLength\":1,\"maxLength\":2083},"
        "{\"type\":\"null\"}]}",
        "null\n\"a:b\"", "\"\"\n\"b\"");
    refused("{\"type\":\"string\",\"pattern\":\"^a{200}\",\"format\":\"uri\",\"maxLength\":100}",
            ERR_INVALID, "");
}

#define POSITION   "{\"type\":\"array\",\"minItems\":2,\"items\":{\"type\":\"number\"}}"
#define LIST_OF(X) "{\"type\":\"array\",\"items\":" X "}"
#define MANY_OF(X) "{\"type\":\"array\",\"minItems\":4,\"items\":" X "}"
#define BBOX       "\"bbox\":" MANY_OF("{\"type\":\"number\"}")
#define OBJECT_OF(T, NAME, X)                             \
    "{\"type\":\"object\",\"required\":[\"type\",\"" NAME \
    "\"],\"properties\":{\"type\":{\"type\":"             \
    "\"string\",\"enum\":[\"" T "\"]},\"" NAME "\":" X "," BBOX "}}"
#define SHAPES                                                                          \
    OBJECT_OF("Point", "coordinates", POSITION)                                         \
    "," OBJECT_OF("LineString", "coordinates", LIST_OF(POSITION)) "," OBJECT_OF(        \
        "Polygon", "coordinates",                                                       \
        LIST_OF(MANY_OF(                                                                \
            POSITION))) "," OBJECT_OF("MultiPoint", "coordinates",                      \
                                      LIST_OF(POSITION)) "," OBJECT_OF("MultiPolygon",  \
                                                                       "coordinates",   \
                                                                       LIST_OF(LIST_OF( \
                                                                           MANY_OF(POSITION))))
#define COLLECTION \
    OBJECT_OF("GeometryCollection", "geometries", LIST_OF("{\"oneOf\":[" SHAPES "]}"))
#define FEATURE                                                                 \
    "{\"type\":\"object\",\"required\":[\"type\",\"properties\",\"geometry\"]," \
    "\"properties\":{\"type\":{\"type\":\"string\",\"enum\":[\"Feature\"]},"    \
    "\"id\":{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"string\"}]},"         \
    "\"properties\":{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"object\"}]},"   \
    "\"geometry\":{\"oneOf\":[{\"type\":\"null\"}," SHAPES "," COLLECTION "]}," BBOX "}}"

/* The shape of GeoJSON's schema: nested oneOf of objects that differ by one member. */
static void test_geometry(void)
{
    schema(
        "{\"oneOf\":[" SHAPES "," COLLECTION "," FEATURE
        "," OBJECT_OF("FeatureCollection", "features", LIST_OF(FEATURE)) "]}",
        "{\"type\": \"Point\", \"coordinates\": [1.5, -2]}\n"
        "{\"type\": \"GeometryCollection\", \"geometries\": [{\"type\": \"Point\", "
        "\"coordinates\": [1, 2]}]}\n"
        "{\"type\": \"FeatureCollection\", \"features\": [{\"type\": \"Feature\", \"properties\": "
        "null, \"geometry\": {\"type\": \"LineString\", \"coordinates\": [[1, 2], [3, 4]]}}]}",
        "{\"type\": \"Point\", \"coordinates\": [1.5]}\n{\"type\": \"Circle\"}\n"
        "{\"type\": \"Feature\", \"properties\": 1, \"geometry\": null}");
}

int main(void)
{
    test_types();
    test_numbers();
    test_strings();
    test_objects();
    test_arrays();
    test_logic();
    test_refused();
    test_space();
    test_spacing();
    test_counted();
    test_geometry();
    return tap_done();
}
