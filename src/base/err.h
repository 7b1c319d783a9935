/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors. One number gives the code, the HTTP status and the sentence for clients (err.def). */
#ifndef QUIRE_BASE_ERR_H
#define QUIRE_BASE_ERR_H

enum err {
#define ERR(name, number, status, type, code, sentence) ERR_##name = (number),
#include "base/err.def"
#undef ERR
};

/* Marks functions that return an enum err, so that the compiler reports an ignored result. */
#define ERR_CHECKED __attribute__((warn_unused_result))

/* The columns of err.def for an error. An unknown number, which a hostile peer could send, counts
 * as ERR_INTERNAL. All return static strings, never NULL. Any thread. */
const char *err_name(int err);
const char *err_sentence(int err);
int err_http_status(int err);
const char *err_openai_type(int err);
const char *err_openai_code(int err); /* "" is sent as null */

#endif
