/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of errors, generated from err.def. Rows are found by a linear search: there are some
 * thirty of them, and only failing requests look. */
#include "base/err.h"

#include <stddef.h>

struct err_row {
    int number;
    int status;
    const char *name;
    const char *type;
    const char *code;
    const char *sentence;
};

/* One row for each line of err.def. */
static const struct err_row err_rows[] = {
#define ERR(name, number, status, type, code, sentence) \
    {(number), (status), #name, (type), (code), (sentence)},
#include "base/err.def"
#undef ERR
};

/* Also the place where an unknown number becomes ERR_INTERNAL. */
static const struct err_row *err_row(int err)
{
    for (size_t i = 0; i < sizeof err_rows / sizeof err_rows[0]; i++) {
        if (err_rows[i].number == err)
            return &err_rows[i];
    }
    return err_row(ERR_INTERNAL);
}

/* The name of an error without its prefix, such as INVALID. */
const char *err_name(int err)
{
    return err_row(err)->name;
}

/* The sentence for clients and logs. */
const char *err_sentence(int err)
{
    return err_row(err)->sentence;
}

/* The status of an error answer. */
int err_http_status(int err)
{
    return err_row(err)->status;
}

/* The members "type" and "code" of OpenAI's error object. */
const char *err_openai_type(int err)
{
    return err_row(err)->type;
}

const char *err_openai_code(int err)
{
    return err_row(err)->code;
}
