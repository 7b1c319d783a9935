/* SPDX-License-Identifier: Apache-2.0
 *
 * TAP for tests in C: a test is a program; each check prints one line; the plan comes last.
 *
 *   int main(void) { ok(1 + 1 == 2, "sums"); is_int(f(), 3, "f gives 3"); return tap_done(); }
 */
#ifndef QUIRE_TESTS_TAP_H
#define QUIRE_TESTS_TAP_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Times that a child gets before it is killed are multiplied with this: under a sanitizer it would
 * not have begun. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define TAP_SLOWER 10
#else
#define TAP_SLOWER 1
#endif

static int tap_run;
static int tap_failed;

/* One check; the rest is a printf format that names it. Returns cond. */
__attribute__((format(printf, 4, 5), unused)) static bool tap_ok(bool cond, const char *file,
                                                                 int line, const char *format, ...)
{
    va_list args;

    printf("%sok %d - ", cond ? "" : "not ", ++tap_run);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    if (!cond) {
        tap_failed++;
        printf("# failed at %s:%d\n", file, line);
    }
    fflush(stdout);
    return cond;
}

#define ok(cond, ...) tap_ok((cond), __FILE__, __LINE__, __VA_ARGS__)

#define is_int(got, want, ...)                                         \
    do {                                                               \
        long long tap_g = (long long)(got), tap_w = (long long)(want); \
        if (!tap_ok(tap_g == tap_w, __FILE__, __LINE__, __VA_ARGS__))  \
            printf("# got %lld, wanted %lld\n", tap_g, tap_w);         \
    } while (0)

#define is_text(got, want, ...)                                                                   \
    do {                                                                                          \
        const char *tap_g = (got), *tap_w = (want);                                               \
        if (!tap_ok(tap_g != NULL && strcmp(tap_g, tap_w) == 0, __FILE__, __LINE__, __VA_ARGS__)) \
            printf("# got    %s\n# wanted %s\n", tap_g == NULL ? "(null)" : tap_g, tap_w);        \
    } while (0)

/* The whole program cannot run here: say why, loudly, and leave. */
__attribute__((unused)) static _Noreturn void tap_skip_all(const char *why)
{
    printf("1..0 # SKIP %s\n", why);
    exit(0);
}

/* Print the plan; the value for main() to return. */
__attribute__((unused)) static int tap_done(void)
{
    printf("1..%d\n", tap_run);
    return tap_failed == 0 ? 0 : 1;
}

/* The seed of a randomised test: SEED from the environment or the given one; printed. */
__attribute__((unused)) static unsigned tap_seed(unsigned seed)
{
    const char *env = getenv("SEED");

    if (env != NULL)
        seed = (unsigned)strtoul(env, NULL, 0);
    printf("# SEED=%u\n", seed);
    return seed;
}

/* Whether tests run at full length (tools/check --long). */
__attribute__((unused)) static bool tap_is_long(void)
{
    return getenv("QUIRE_TEST_LONG") != NULL;
}

/* A small generator, the same on every machine. */
__attribute__((unused)) static unsigned random_next(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

/* A step that the test cannot go on without. */
#define must_ok(rc)                                                                     \
    do {                                                                                \
        int tap_rc = (rc);                                                              \
        if (tap_rc != 0) {                                                              \
            printf("Bail out! %s gave %d at %s:%d\n", #rc, tap_rc, __FILE__, __LINE__); \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

/* A path below the source tree, for data files; valid until the next call. */
__attribute__((unused)) static const char *tap_path(const char *below)
{
    static char path[4096];
    const char *srcdir = getenv("srcdir");

    snprintf(path, sizeof path, "%s/%s", srcdir == NULL ? "." : srcdir, below);
    return path;
}

#endif
