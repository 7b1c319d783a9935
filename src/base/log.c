/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats a line into a stack buffer and passes it to write(2) as a whole, so that lines of several
 * threads and processes do not mix. Under systemd (JOURNAL_STREAM is set) a line begins with the
 * "<N>" priority; elsewhere with the time, because a terminal adds none. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static enum log_level log_level_max = LOG_LEVEL_INFO;

/* Lines of less importance than level are dropped. */
void log_set_level(enum log_level level)
{
    log_level_max = level;
}

/* The setting log_level. */
int log_set_level_text(const char *text)
{
    static const struct {
        const char *text;
        enum log_level level;
    } rows[] = {{"error", LOG_LEVEL_ERROR},
                {"warn", LOG_LEVEL_WARN},
                {"info", LOG_LEVEL_INFO},
                {"debug", LOG_LEVEL_DEBUG}};

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].text, text) == 0) {
            log_set_level(rows[i].level);
            return ERR_OK;
        }
    }
    log_error("log: log_level = \"%s\" must be error, warn, info or debug", text);
    return ERR_INVALID;
}

/* The start of a line: "<6>" for journald, or "12:34:56.789 WARN " for a terminal. */
static int log_prefix(char *text, size_t cap, enum log_level level)
{
    struct timespec now;
    struct tm tm;
    const char *mark = "";

    if (getenv("JOURNAL_STREAM") != NULL)
        return snprintf(text, cap, "<%d>", (int)level);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)localtime_r(&now.tv_sec, &tm);
    if (level == LOG_LEVEL_ERROR)
        mark = "ERROR ";
    else if (level == LOG_LEVEL_WARN)
        mark = "WARN ";
    return snprintf(text, cap, "%02d:%02d:%02d.%03ld %s", tm.tm_hour, tm.tm_min, tm.tm_sec,
                    now.tv_nsec / 1000000, mark);
}

/* A name from a file or a request must not end the line, or write a priority at the next one's
 * begin. Other characters of UTF-8 have no such bytes. */
static void log_replace_control(char *text, int len)
{
    for (int i = 0; i < len; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == '\x7f')
            text[i] = '?';
    }
}

/* Write a line. One call of write() is one line, also when several threads log at once. */
void log_line(enum log_level level, const char *format, ...)
{
    char text[2048];
    va_list args;
    int len;
    int body;

    if (level > log_level_max)
        return;
    len = log_prefix(text, sizeof text, level);
    va_start(args, format);
    body = vsnprintf(text + len, sizeof text - (size_t)len - 1, format, args);
    va_end(args);
    if (body > 0)
        len += body;
    /* A line that is too long is cut, with room for the line feed. */
    if ((size_t)len > sizeof text - 2)
        len = (int)sizeof text - 2;
    log_replace_control(text, len);
    text[len++] = '\n';
    (void)!write(STDERR_FILENO, text, (size_t)len);
}
