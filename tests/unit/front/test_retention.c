/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: cache_retention and cache_control become the retention that retention.h says, and what is
 * wrong is named by its member, its value's kind and its range. Method: rows of JSON with the exact
 * retention or the exact sentence; whole numbers around each bound; marks of random messages
 * against their longest. */
#include "base/mem.h"
#include "front/request/retention.h"
#include "tests/tap.h"

static struct arena arena;

static const struct json *parsed(const char *text)
{
    const struct json *v;

    arena_reset(&arena);
    must_ok(json_parse(&v, &arena, text, strlen(text), NULL, 0));
    return v;
}

/* --- cache_retention -------------------------------------------------------------------------- */

#define RANGE_OF(name, from, to) \
    "'cache_retention." name "' must be a whole number from " from " to " to
#define PRIORITY RANGE_OF("priority", "0", "100")
#define SECONDS  RANGE_OF("seconds", "1", "31536000")
#define TOKENS   RANGE_OF("tokens", "1", "2147483647")

static const struct row {
    const char *text;
    const char *why; /* NULL: it is taken, as: */
    uint32_t retain, retain_s, retain_tokens;
} rows[] = {
    {"{\"priority\": 80, \"seconds\": 3600, \"tokens\": 1000}", NULL, 81, 3600, 1000},
    {"{\"tokens\": 7, \"priority\": 35}", NULL, 36, 0, 7},
    {"{\"priority\": 0}", NULL, 1, 0, 0},
    {"{\"priority\": 100}", NULL, 101, 0, 0},
    {"{\"priority\": 1, \"seconds\": null, \"tokens\": null}", NULL, 2, 0, 0},
    {"{\"priority\": 1, \"seconds\": 31536000, \"tokens\": 2147483647}", NULL, 2, 31536000,
     INT32_MAX},
    {"{\"priority\": 1, \"seconds\": 1, \"tokens\": 1}", NULL, 2, 1, 1},
    {"{\"priority\": 3, \"priority\": 4}", NULL, 5, 0, 0},
    {"{\"priority\": 101}", PRIORITY, 0, 0, 0},
    {"{\"priority\": -1}", PRIORITY, 0, 0, 0},
    {"{\"priority\": 80.0}", PRIORITY, 0, 0, 0},
    {"{\"priority\": 8e1}", PRIORITY, 0, 0, 0},
    {"{\"priority\": 1e-322}", PRIORITY, 0, 0, 0}, /* its bits are those of a small whole number */
    {"{\"priority\": \"80\"}", PRIORITY, 0, 0, 0},
    {"{\"priority\": true}", PRIORITY, 0, 0, 0},
    {"{\"priority\": [80]}", PRIORITY, 0, 0, 0},
    {"{\"priority\": 18446744073709551615}", PRIORITY, 0, 0, 0},
    {"{\"priority\": 4294967296}", PRIORITY, 0, 0, 0},
    {"{\"priority\": 9, \"seconds\": 0}", SECONDS, 0, 0, 0},
    {"{\"priority\": 9, \"seconds\": 31536001}", SECONDS, 0, 0, 0},
    {"{\"priority\": 9, \"seconds\": 4294967297}", SECONDS, 0, 0, 0},
    {"{\"priority\": 9, \"tokens\": 0}", TOKENS, 0, 0, 0},
    {"{\"priority\": 9, \"tokens\": 2147483648}", TOKENS, 0, 0, 0},
    {"{\"priority\": 9, \"tokens\": -5}", TOKENS, 0, 0, 0},
    {"{\"seconds\": 10}", "'cache_retention.priority' is required", 0, 0, 0},
    {"{\"priority\": null}", "'cache_retention.priority' is required", 0, 0, 0},
    {"{}", "'cache_retention.priority' is required", 0, 0, 0},
    {"{\"priority\": 9, \"second\": 10}", "'cache_retention.second' is not known", 0, 0, 0},
    {"{\"Priority\": 9}", "'cache_retention.Priority' is not known", 0, 0, 0},
    {"{\"\": 9}", "'cache_retention.' is not known", 0, 0, 0},
    {"[80]", "'cache_retention' must be an object, not list", 0, 0, 0},
    {"80", "'cache_retention' must be an object, not whole number", 0, 0, 0},
    {"80.5", "'cache_retention' must be an object, not number", 0, 0, 0},
    {"\"high\"", "'cache_retention' must be an object, not string", 0, 0, 0},
    {"false", "'cache_retention' must be an object, not true or false", 0, 0, 0},
    {"null", "'cache_retention' must be an object, not null", 0, 0, 0},
};

static void test_read(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        struct wire_generate r = {.retain = 7, .retain_s = 8, .retain_tokens = 9};
        char why[160] = "";
        int rc = retention_read(&r, parsed(row->text), why, sizeof why);

        if (row->why != NULL) {
            is_int(rc, ERR_INVALID, "%s is refused", row->text);
            is_text(why, row->why, "%s: the reason", row->text);
            ok(r.retain == 7 && r.retain_s == 8 && r.retain_tokens == 9, "%s: nothing is set",
               row->text);
            continue;
        }
        ok(rc == ERR_OK && r.retain == row->retain && r.retain_s == row->retain_s &&
               r.retain_tokens == row->retain_tokens,
           "%s: a retention of %u, %u s, %u tokens", row->text, row->retain, row->retain_s,
           row->retain_tokens);
    }
}

/* Whole numbers around the bounds, and of any size. */
static int64_t draw(unsigned *seed)
{
    static const int64_t near[] = {0, 1, 100, 31536000, INT32_MAX, UINT32_MAX, INT64_MAX / 4};
    int64_t at = near[random_next(seed) % (sizeof near / sizeof *near)];

    if (random_next(seed) % 4 == 0)
        return -(int64_t)random_next(seed);
    return at + (int64_t)(random_next(seed) % 5) - 2;
}

static void test_bounds(unsigned seed)
{
    int n_taken = 0;
    bool good = true;

    for (int i = 0; i < 20000 && good; i++) {
        int64_t priority = draw(&seed), seconds = draw(&seed), tokens = draw(&seed);
        bool want = priority >= 0 && priority <= 100 && seconds >= 1 && seconds <= 31536000 &&
                    tokens >= 1 && tokens <= INT32_MAX;
        struct wire_generate r = {0};
        char text[160], why[160];

        (void)snprintf(text, sizeof text,
                       "{\"priority\": %lld, \"seconds\": %lld, \"tokens\": %lld}",
                       (long long)priority, (long long)seconds, (long long)tokens);
        good = (retention_read(&r, parsed(text), why, sizeof why) == ERR_OK) == want;
        if (good && want)
            good = r.retain == 1 + priority && r.retain_s == seconds && r.retain_tokens == tokens;
        n_taken += want;
        if (!good)
            printf("# %s\n", text);
    }
    ok(good && n_taken > 100, "20000 objects of numbers at random, %d of which are taken", n_taken);
}

/* A reason longer than its room is cut, and ends with a NUL. */
static void test_why(void)
{
    struct wire_generate r = {0};
    char why[16];

    memset(why, 'x', sizeof why);
    is_int(retention_read(&r, parsed("{\"priority\": 101}"), why, sizeof why), ERR_INVALID,
           "a reason in little room");
    is_text(why, "'cache_retentio", "is cut");
}

/* --- cache_control ---------------------------------------------------------------------------- */

static const struct mark {
    const char *text; /* of the object that has it */
    const char *why;
    uint32_t before, after;
} marks[] = {
    {"{}", NULL, 0, 0},
    {"{\"cache_control\": null}", NULL, 5, 5},
    {"{\"cache_control\": {}}", NULL, 0, 0},
    {"{\"cache_control\": {\"type\": null, \"ttl\": 5}}", NULL, 0, 0},
    {"{\"cache_control\": {\"type\": \"ephemeral\"}}", NULL, 0, 300},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": null}}", NULL, 0, 300},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"5m\"}}", NULL, 0, 300},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"1h\"}}", NULL, 0, 3600},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"1h\"}}", NULL, 300, 3600},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"5m\"}}", NULL, 3600, 3600},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"scope\": 1}}", NULL, 0, 300},
    {"{\"cache_control\": {\"type\": \"lasting\"}}", "'here.cache_control.type' must be ephemeral",
     9, 9},
    {"{\"cache_control\": {\"type\": 1}}", "'here.cache_control.type' must be ephemeral", 0, 0},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"2h\"}}",
     "'here.cache_control.ttl' must be 5m or 1h", 9, 9},
    {"{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": 300}}",
     "'here.cache_control.ttl' must be 5m or 1h", 0, 0},
    {"{\"cache_control\": \"ephemeral\"}", "'here.cache_control' must be an object, not string", 0,
     0},
    {"{\"cache_control\": [1]}", "'here.cache_control' must be an object, not list", 0, 0},
};

static void test_mark(void)
{
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        uint32_t seconds = marks[i].before;
        char why[160] = "";
        int rc = retention_read_mark(parsed(marks[i].text), "here", &seconds, why, sizeof why);

        is_int(rc, marks[i].why == NULL ? ERR_OK : ERR_INVALID, "%s", marks[i].text);
        is_int(seconds, marks[i].after, "%s: from %u s", marks[i].text, marks[i].before);
        if (marks[i].why != NULL)
            is_text(why, marks[i].why, "%s: the reason", marks[i].text);
    }
}

#define EPHEMERAL "{\"type\": \"text\", \"cache_control\": {\"type\": \"ephemeral\"}}"
#define LASTING   "{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"1h\"}}"
#define WRONG     "{\"cache_control\": {\"type\": \"ephemeral\", \"ttl\": \"1d\"}}"

static const struct mark messages[] = {
    {"[]", NULL, 0, 0},
    {"\"hello\"", NULL, 0, 0},
    {"[{\"content\": \"hello\"}, 3, null, {}]", NULL, 0, 0},
    {"[{\"content\": [" EPHEMERAL "]}]", NULL, 0, 300},
    {"[{\"content\": [{}, " LASTING "]}, {\"content\": [" EPHEMERAL "]}]", NULL, 0, 3600},
    {"[{\"content\": [" EPHEMERAL "]}, {\"content\": [{}, {}, " LASTING "]}]", NULL, 0, 3600},
    {"[{\"content\": \"hello\", \"cache_control\": {\"type\": \"ephemeral\"}}]", NULL, 0, 0},
    {"[{\"content\": {\"cache_control\": {\"type\": \"ephemeral\"}}}]", NULL, 0, 0},
    {"[{\"content\": \"hello\"}, {\"content\": [{}, {}, " WRONG ", " LASTING "]}]",
     "'messages.1.content.2.cache_control.ttl' must be 5m or 1h", 0, 0},
    {"[{\"content\": [" EPHEMERAL
     "]}, {\"content\": [{\"cache_control\": 1}]}, {\"content\": [" WRONG "]}]",
     "'messages.1.content.0.cache_control' must be an object, not whole number", 0, 300},
};

static void test_messages(unsigned seed)
{
    static const char *const parts[] = {"{}", EPHEMERAL, LASTING, "3"};
    static const uint32_t seconds_of[] = {0, 300, 3600, 0};
    bool good = true;

    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        uint32_t seconds = messages[i].before;
        char why[160] = "";
        int rc = retention_read_marks(parsed(messages[i].text), &seconds, why, sizeof why);

        is_int(rc, messages[i].why == NULL ? ERR_OK : ERR_INVALID, "%s", messages[i].text);
        is_int(seconds, messages[i].after, "%s: the longest mark", messages[i].text);
        if (messages[i].why != NULL)
            is_text(why, messages[i].why, "%s: the reason", messages[i].text);
    }
    for (int i = 0; i < 2000 && good; i++) {
        char text[4096] = "[{\"content\": [{}";
        uint32_t want = 0, seconds = 0;

        for (unsigned n = random_next(&seed) % 12; n > 0; n--) {
            unsigned part = random_next(&seed) % 8; /* four of eight: a new message */

            strcat(text, part >= 4 ? "]}, {\"content\": [{}" : ", ");
            strcat(text, part >= 4 ? "" : parts[part]);
            if (part < 4 && seconds_of[part] > want)
                want = seconds_of[part];
        }
        strcat(text, "]}]");
        good = retention_read_marks(parsed(text), &seconds, NULL, 0) == ERR_OK && seconds == want;
        if (!good)
            printf("# %s\n", text);
    }
    ok(good, "2000 conversations at random: the longest of their marks");
}

/* --- both together ---------------------------------------------------------------------------- */

static void test_applied(void)
{
    static const struct {
        uint32_t retain, retain_s, seconds, want, want_s;
    } applied[] = {
        {0, 0, 0, 0, 0},      {0, 0, 300, 61, 300}, {0, 0, 3600, 61, 3600},
        {11, 0, 3600, 11, 0}, {1, 20, 300, 1, 20},
    };
    static const struct {
        uint32_t retain, max, want;
    } limits[] = {{0, 50, 0},   {1, 50, 1},    {50, 50, 50},    {51, 50, 51},
                  {52, 50, 51}, {101, 50, 51}, {101, 100, 101}, {101, 99, 100},
                  {1, 0, 0},    {101, 0, 0},   {0, 0, 0},       {61, 1, 2}};

    for (size_t i = 0; i < sizeof applied / sizeof *applied; i++) {
        struct wire_generate r = {.retain = applied[i].retain, .retain_s = applied[i].retain_s};

        retention_mark(&r, applied[i].seconds);
        ok(r.retain == applied[i].want && r.retain_s == applied[i].want_s && r.retain_tokens == 0,
           "a mark of %u s on a retention of %u: %u, %u s", applied[i].seconds, applied[i].retain,
           applied[i].want, applied[i].want_s);
    }
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct wire_generate r = {.retain = limits[i].retain};

        retention_limit(&r, (int)limits[i].max);
        is_int(r.retain, limits[i].want, "retain %u under a bound of %u", limits[i].retain,
               limits[i].max);
    }
}

int main(void)
{
    unsigned seed = tap_seed(5);

    test_read();
    test_bounds(seed);
    test_why();
    test_mark();
    test_messages(seed);
    test_applied();
    arena_reset(&arena);
    return tap_done();
}
