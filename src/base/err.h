/* Errors: one number for the code, the HTTP answer and the sentence (err.def). */
#ifndef QUIRE_BASE_ERR_H
#define QUIRE_BASE_ERR_H

enum err {
#define ERR(name, number, status, type, code, sentence) ERR_##name = (number),
#include "base/err.def"
#undef ERR
};

/* Functions that return an enum err are marked with this: no result is dropped unseen. */
#define ERR_CHECKED __attribute__((warn_unused_result))

/* What err.def says of an error. An unknown number, as a hostile peer could send, is answered
 * as ERR_INTERNAL is. All return static strings; never NULL; any thread. */
const char *err_name(int err);
const char *err_sentence(int err);
int err_http_status(int err);
const char *err_openai_type(int err);
const char *err_openai_code(int err); /* "" stands for null */

#endif
