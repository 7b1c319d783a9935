/* SPDX-License-Identifier: Apache-2.0
 *
 * Log lines on standard error, one write per line, with the priority prefix that journald reads.
 *
 *    log_error("store: map full at %zu bytes; raise kv_store_bytes", n);
 *
 * A line begins with the part of the program, gives the numbers and, for errors, the remedy. Prompt
 * texts, tokens and keys are never logged. Any thread. */
#ifndef QUIRE_BASE_LOG_H
#define QUIRE_BASE_LOG_H

#include "base/err.h"

enum log_level {
    LOG_LEVEL_NONE = 0,
    LOG_LEVEL_ERROR = 3,
    LOG_LEVEL_WARN = 4,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7
};

/* Lines above this level are dropped; LOG_LEVEL_INFO until set. Call before threads start. */
void log_set_level(enum log_level level);

/* Set the level by a setting's text: error, warn, info or debug. ERR_INVALID (logged). */
int log_set_level_text(const char *text) ERR_CHECKED;

/* Write one line. Lines longer than 2 KiB are cut; control characters become '?'. */
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)  log_line(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)  log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
