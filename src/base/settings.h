/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings: one struct, filled from the command line and a file. The command line takes precedence.
 *
 * settings.def lists them. Values outside their range are refused at start. */
#ifndef QUIRE_BASE_SETTINGS_H
#define QUIRE_BASE_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct settings {
#define CONF_TEXT(name)                                     const char *name;
#define CONF_INT(name)                                      int name;
#define CONF_BYTES(name)                                    size_t name;
#define CONF_REAL(name)                                     double name;
#define CONF_FLAG(name)                                     bool name;
#define CONF(type, name, preset, low, high, programs, help) CONF_##type(name)
#include "base/settings.def"
#undef CONF
#undef CONF_TEXT
#undef CONF_INT
#undef CONF_BYTES
#undef CONF_REAL
#undef CONF_FLAG
};

/* Read the settings of one program ('E' engine, 'F' front). --help prints the list,
 * --print-settings the result, --version the version; each sets *exit_now. Texts live until
 * settings_fini().
 *
 * Returns ERR_OK; ERR_INVALID (logged with the setting's name) for an unknown name, a bad value, or
 * a setting of another program on the command line; ERR_IO when the file cannot be read. In the
 * file, settings of other programs are accepted, so that one file serves all. */
int settings_read(struct settings *out, char program, int argc, char **argv,
                  bool *exit_now) ERR_CHECKED;

/* The same with a further file, whose settings take precedence over those of --config: that of one
 * of several models. */
int settings_read_over(struct settings *out, char program, int argc, char **argv,
                       const char *file) ERR_CHECKED;

/* Append a program's settings as members of a JSON object, without its braces. */
void settings_describe(const struct settings *s, char program, struct buf *out);

void settings_fini(struct settings *s); /* accepts {0} */

#endif
