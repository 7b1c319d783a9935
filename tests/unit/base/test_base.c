/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: the foundation does what its headers say. Method: known answers, and limits hit on
 * purpose. */
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/hash.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/settings.h"
#include "base/utf8.h"
#include "tests/tap.h"

static void test_err(void)
{
    is_int(err_http_status(ERR_OVERLOADED), 429, "overload is 429");
    is_text(err_name(ERR_TOO_LONG), "TOO_LONG", "errors know their name");
    is_text(err_name(-9999), "INTERNAL", "an unknown number is INTERNAL");
}

static void test_buf(void)
{
    struct buf b = {.limit = 32};

    buf_add_json_string(&b, "a\"\\\n\x01\xff\xc3\xa9", 8);
    is_text(b.bytes, "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\"", "JSON escapes");
    ok(!b.failed, "within its limit");
    buf_add_text(&b, "0123456789012345678901234567890123456789");
    ok(b.failed, "past its limit an append fails");
    buf_clear(&b);
    buf_printf(&b, "%d-%s", 7, "x");
    is_text(b.bytes, "7-x", "usable after clear");
    buf_fini(&b);
}

static void test_utf8(void)
{
    is_int(utf8_sequence("\xf0\x9f\x98\x80", 4), 4, "four bytes");
    is_int(utf8_sequence("\xed\xa0\x80", 3), 0, "a surrogate is invalid");
    is_int(utf8_sequence("\xc0\x80", 2), 0, "an overlong form is invalid");
    is_int(utf8_incomplete("\xf0\x9f\x98", 3), 3, "three of four may be finished later");
    is_int(utf8_incomplete("\xf0\x80", 2), 0, "what cannot become valid is not incomplete");
    is_int(utf8_invalid_run("\xf0\x9f\x41", 3), 2, "maximal subpart");
    for (uint32_t c = 1; c < 0x110000; c += 97) {
        char text[4];
        size_t n = utf8_encode(c, text);

        if (c >= 0xd800 && c < 0xe000)
            continue;
        if (utf8_sequence(text, n) != n || utf8_decode(text) != c) {
            ok(false, "round trip of U+%04X", c);
            return;
        }
    }
    ok(true, "every 97th character survives the round trip");
}

static void test_hex(void)
{
    is_int(hex_number("00eF", 4, 4), 0xef, "either case");
    is_int(hex_number("ffffffff", 8, 8), 0xffffffff, "eight digits");
    is_int(hex_number("12", 2, 1), 1, "as many as were asked for");
    is_int(hex_number("12", 1, 2), -1, "not all are there");
    is_int(hex_number("1g", 2, 2), -1, "a letter that is none");
    for (int c = -1; c < 256; c++) {
        const char *digits = "0123456789abcdef";
        const char *at = c > 0 ? strchr(digits, c >= 'A' && c <= 'F' ? c + 32 : c) : NULL;

        if (hex_digit(c) != (at == NULL ? -1 : (int)(at - digits))) {
            ok(false, "the digit %d", c);
            return;
        }
    }
    ok(true, "every byte is a digit or none");
}

static void test_mem(void)
{
    struct arena a = {.limit_bytes = 100000};
    char *p = arena_alloc(&a, 50000);

    ok(p != NULL && ((size_t)p & 15) == 0, "arena memory is aligned");
    ok(arena_alloc(&a, 60000) == NULL, "an arena keeps its limit");
    arena_reset(&a);
    ok(arena_alloc(&a, 60000) != NULL, "and is usable after a reset");
    arena_reset(&a);
    fault_arm(FAULT_mem_alloc, 2, false);
    p = mem_alloc(1);
    ok(p != NULL && mem_alloc(1) == NULL, "the second allocation fails when asked to");
    is_int(fault_fired(FAULT_mem_alloc), 1, "a fault counts");
    mem_free(p);
    ok(mem_zalloc_array(SIZE_MAX / 2, 8) == NULL, "an overflowing array is refused");
}

static void test_hash(void)
{
    struct hash h = hash_sha256("ab", 2, "c", 1);
    char hex[2 * HASH_BYTES + 1];

    hash_hex(h.bytes, HASH_BYTES, hex);
    is_text(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "SHA-256");
}

/* Into s, which holds texts of its own or is zero. */
static int settings_of(struct settings *s, const char *a, const char *b)
{
    struct settings got;
    char *argv[4];
    bool exit_now;
    int rc;

    argv[0] = strdup("test");
    argv[1] = strdup(a);
    argv[2] = strdup(b);
    rc = settings_read(&got, 'E', 3, argv, &exit_now);
    if (rc == ERR_OK) {
        settings_fini(s);
        *s = got;
    }
    for (int i = 0; i < 3; i++)
        free(argv[i]);
    return rc;
}

static void test_settings(void)
{
    struct settings s = {0};

    is_int(settings_of(&s, "--max-model-len", "4096"), ERR_OK, "dashes are accepted");
    is_int(s.max_model_len, 4096, "and the value is there");
    is_int(s.page_tokens, 16, "defaults stand");
    is_text(s.device, "auto", "text defaults too");
    is_int(settings_of(&s, "--kv_store_bytes", "2G"), ERR_OK, "suffixes");
    is_int(s.kv_store_bytes, 2ll << 30, "2G is 2^31");
    is_int(settings_of(&s, "--page_tokens", "0"), ERR_INVALID, "a range is kept");
    is_int(settings_of(&s, "--page_tokens", "1.5"), ERR_INVALID, "whole numbers only");
    is_int(settings_of(&s, "--no_such", "1"), ERR_INVALID, "unknown names are refused");
    is_int(settings_of(&s, "--front_threads", "2"), ERR_INVALID, "the front's settings as well");
    settings_fini(&s);
}

/* What the wall clock says in this test. */
static time_t wall;
time_t time(time_t *t)
{
    if (t != NULL)
        *t = wall;
    return wall;
}

static void test_stamp(void)
{
    static const struct {
        int64_t wall;
        uint32_t stamp;
    } rows[] = {{-5000000000, 1},
                {-1, 1},
                {0, 1},
                {1, 1},
                {1800000000, 1800000000},
                {4294967295, UINT32_MAX},
                {4294967296, UINT32_MAX},
                {9000000000, UINT32_MAX}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        wall = (time_t)rows[i].wall;
        is_int(clock_stamp_s(), rows[i].stamp, "the stamp of %lld", (long long)rows[i].wall);
    }
}

/* A name from a file could otherwise write a line of its own, or move a terminal's cursor. */
static void test_log(void)
{
    FILE *log = tmpfile();
    int stderr_fd = dup(STDERR_FILENO);
    char text[300] = "";

    if (log == NULL || stderr_fd == -1) {
        ok(false, "a file for the log");
        return;
    }
    (void)dup2(fileno(log), STDERR_FILENO);
    log_error("tensor %s is cut", "w\n<3>model: all is well\x1b[2J\x7f\xc3\xa9");
    (void)dup2(stderr_fd, STDERR_FILENO);
    (void)close(stderr_fd);
    rewind(log);
    ok(fgets(text, sizeof text, log) != NULL &&
           strstr(text, "tensor w?<3>model: all is well?[2J?\xc3\xa9 is cut\n") != NULL,
       "control characters do not reach the log");
    ok(fgets(text, sizeof text, log) == NULL, "one call is one line");
    (void)fclose(log);
}

int main(void)
{
    test_err();
    test_log();
    test_buf();
    test_utf8();
    test_hex();
    test_mem();
    test_hash();
    test_settings();
    test_stamp();
    return tap_done();
}
