/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of settings, generated from settings.def. Each row knows the offset of its member in
 * struct settings, so that reading, printing and range checks are one loop each. Defaults are texts
 * and pass the same parser as an operator's values.
 *
 *   default < file of --config < command line
 *
 * For example, the line `max_num_seqs = 64` of a file and the option --max-num-seqs=64 find the
 * same row. Its type is INT, so the text is checked against the range and stored as an int. */
#include "base/settings.h"

#include <config.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

/* The types of settings.def, as its first column has them. */
enum settings_type { CONF_IS_TEXT, CONF_IS_INT, CONF_IS_BYTES, CONF_IS_REAL, CONF_IS_FLAG };

/* One setting: a line of settings.def. */
struct settings_row {
    enum settings_type type;
    const char *name;
    const char *preset; /* the default, as text */
    double low;
    double high;
    const char *programs;
    const char *help;
    size_t offset;
};

static const struct settings_row settings_rows[] = {
#define CONF(type, name, preset, low, high, programs, help) \
    {CONF_IS_##type, #name,      #preset, (double)(low),    \
     (double)(high), (programs), (help),  offsetof(struct settings, name)},
#include "base/settings.def"
#undef CONF
};

#define SETTINGS_COUNT (sizeof settings_rows / sizeof settings_rows[0])

/* Read a number: "12", "0.5", or for BYTES "8G" (powers of 1024). False when it is not a number, is
 * outside the row's range, or has a fraction where none is allowed. */
static bool settings_number(const struct settings_row *row, const char *text, double *out)
{
    char *end = NULL;
    double number;

    errno = 0;
    number = strtod(text, &end);
    if (end == text || errno != 0 || isnan(number))
        return false;
    /* The suffix's index gives the power of 1024: K is at 0, so 8K is 8 shifted by 10 bits. 1.5G
     * works as well, because the result is a whole number of bytes. */
    if (row->type == CONF_IS_BYTES && *end != '\0') {
        static const char suffixes[] = "KMGT";
        const char *s = strchr(suffixes, toupper((unsigned char)*end));

        if (s == NULL || *s == '\0')
            return false;
        number *= (double)((uint64_t)1 << (10 * (s - suffixes + 1)));
        end++;
    }
    if (*end != '\0' || number < row->low || number > row->high)
        return false;
    if (row->type != CONF_IS_REAL && number != floor(number))
        return false;
    *out = number;
    return true;
}

/* Read a flag in any of the spellings that operators use. False: it is none of them. */
static bool settings_flag(const char *text, bool *out)
{
    static const char *const yes[] = {"1", "true", "yes", "on"};
    static const char *const no[] = {"0", "false", "no", "off"};

    for (size_t i = 0; i < 4; i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* Read one value and store it. The switch stores a good value and returns; the code after it logs
 * the reason for a bad one, with the range. */
static int settings_set(struct settings *out, const struct settings_row *row, const char *text)
{
    char *field = (char *)out + row->offset;
    double number = 0;
    bool flag = false;

    switch (row->type) {
    case CONF_IS_TEXT: {
        char *copy = mem_alloc(strlen(text) + 1);
        char *old;

        if (copy == NULL)
            return ERR_NO_MEMORY;
        memcpy(copy, text, strlen(text) + 1);
        /* Free the value that the default or the file has set before. */
        memcpy(&old, field, sizeof old);
        mem_free(old);
        memcpy(field, &copy, sizeof copy);
        return ERR_OK;
    }
    case CONF_IS_FLAG:
        if (!settings_flag(text, &flag))
            break;
        memcpy(field, &flag, sizeof flag);
        return ERR_OK;
    case CONF_IS_INT:
    case CONF_IS_BYTES:
    case CONF_IS_REAL:
        if (!settings_number(row, text, &number))
            break;
        if (row->type == CONF_IS_INT)
            memcpy(field, &(int){(int)number}, sizeof(int));
        else if (row->type == CONF_IS_BYTES)
            memcpy(field, &(size_t){(size_t)number}, sizeof(size_t));
        else
            memcpy(field, &number, sizeof number);
        return ERR_OK;
    }
    if (row->type == CONF_IS_FLAG)
        log_error("settings: %s = \"%s\" must be true or false", row->name, text);
    else if (row->type == CONF_IS_REAL)
        log_error("settings: %s = \"%s\" must be a number from %.10g to %.10g", row->name, text,
                  row->low, row->high);
    else
        log_error("settings: %s = \"%s\" must be a whole number from %.0f to %.0f%s", row->name,
                  text, row->low, row->high,
                  row->type == CONF_IS_BYTES ? " bytes; suffixes K, M, G, T" : "");
    return ERR_INVALID;
}

/* The row of a name; dashes count as underscores, as in --max-num-seqs. */
static const struct settings_row *settings_find(const char *name, size_t len)
{
    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        const char *p = settings_rows[i].name;
        size_t j = 0;

        while (j < len && p[j] != '\0' && (name[j] == p[j] || (name[j] == '-' && p[j] == '_')))
            j++;
        if (j == len && p[j] == '\0')
            return &settings_rows[i];
    }
    return NULL;
}

/* The file: `name = value` per line; empty lines and lines that begin with # are ignored. Settings
 * of other programs are accepted, so that one file serves the engine and the fronts. */
static char *settings_trim(char *text)
{
    char *end = text + strlen(text);

    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    while (isspace((unsigned char)*text))
        text++;
    return text;
}

/* Read one line of the file. The line is split in place: the equals sign becomes the end of the
 * name. An error names file and line. */
static int settings_line(struct settings *out, const char *path, int number, char *line)
{
    char *text = settings_trim(line);
    char *equals = strchr(text, '=');
    const struct settings_row *row;
    char *name;
    int rc;

    if (*text == '\0' || *text == '#')
        return ERR_OK;
    if (equals == NULL) {
        log_error("settings: %s:%d: expected `name = value`", path, number);
        return ERR_INVALID;
    }
    *equals = '\0';
    name = settings_trim(text);
    /* "config" is refused in a file: files do not include other files. */
    row = settings_find(name, strlen(name));
    if (row == NULL || strcmp(row->name, "config") == 0) {
        log_error("settings: %s:%d: unknown setting \"%s\"; --help lists all", path, number, name);
        return ERR_INVALID;
    }
    rc = settings_set(out, row, settings_trim(equals + 1));
    if (rc == ERR_INVALID)
        log_error("settings: the bad value is in %s:%d", path, number);
    return rc;
}

/* Read all lines, up to the first error. A line longer than the buffer is read as two, of which the
 * second is refused, unless it happens to look like a setting. */
static int settings_read_file(struct settings *out, const char *path)
{
    FILE *file = fopen(path, "re");
    char line[4096];
    int number = 0;
    int rc = ERR_OK;

    if (file == NULL) {
        log_error("settings: %s: %s", path, strerror(errno));
        return ERR_IO;
    }
    while (rc == ERR_OK && fgets(line, sizeof line, file) != NULL)
        rc = settings_line(out, path, ++number, line);
    (void)fclose(file); /* it was only read from */
    return rc;
}

/* Printing: --help and --print-settings write text, the fronts' /server_info writes JSON. */
static void settings_write_value(struct buf *out, const struct settings *s,
                                 const struct settings_row *row)
{
    const char *field = (const char *)s + row->offset;

    switch (row->type) {
    case CONF_IS_TEXT: buf_add_text(out, *(const char *const *)(const void *)field); break;
    case CONF_IS_INT: buf_printf(out, "%d", *(const int *)(const void *)field); break;
    case CONF_IS_BYTES: buf_printf(out, "%zu", *(const size_t *)(const void *)field); break;
    case CONF_IS_REAL: buf_printf(out, "%.10g", *(const double *)(const void *)field); break;
    case CONF_IS_FLAG: buf_add_text(out, json_flag_text(*(const bool *)(const void *)field)); break;
    }
}

/* The settings of a program as members of a JSON object, without its braces: "name":value,... Texts
 * are quoted; numbers and flags are already JSON. */
void settings_describe(const struct settings *s, char program, struct buf *out)
{
    const char *comma = "";

    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        const struct settings_row *row = &settings_rows[i];
        struct buf value = {0};

        if (strchr(row->programs, program) == NULL)
            continue;
        settings_write_value(&value, s, row);
        buf_printf(out, "%s\"%s\":", comma, row->name);
        comma = ",";
        if (row->type == CONF_IS_TEXT)
            buf_add_json_string(out, buf_text(&value), value.len);
        else
            buf_add(out, value.bytes, value.len);
        /* A value that was cut for lack of memory must not pass for a short one. */
        out->failed = out->failed || value.failed;
        buf_fini(&value);
    }
}

/* Print the settings of a program: for --help each with its explanation, otherwise in the form that
 * settings_read_file() reads. */
static void settings_print(const struct settings *s, char program, bool help)
{
    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        const struct settings_row *row = &settings_rows[i];
        struct buf value = {0};

        if (strchr(row->programs, program) == NULL)
            continue;
        printf(help ? "  --%s " : "%s = ", row->name);
        settings_write_value(&value, s, row);
        printf("%s", buf_text(&value));
        buf_fini(&value);
        printf(help ? "\n        %s\n" : "\n", row->help);
    }
}

/* The beginning of --help; the list of settings follows. */
static void settings_print_usage(char program)
{
    printf(
        "usage: %s [--name value]...\n"
        "Settings may also be lines `name = value` in the file of --config; the command line\n"
        "takes precedence. Sizes in bytes may end in K, M, G or T. The values below are those in\n"
        "effect.\n"
        "  --help\n        print this list\n"
        "  --print-settings\n        print the values in effect, as a settings file\n"
        "  --version\n        print the version\n",
        program == 'E' ? "quire-engine" : "quire-front");
}

/* One option of the command line, as "--name value" or "--name=value". The command line is read
 * twice: pass 0 reads only --config, so that the file comes first; pass 1 reads all others. */
static int settings_arg(struct settings *s, char program, int *i, int argc, char **argv, int pass)
{
    const char *arg = argv[*i];
    const char *equals = strchr(arg, '=');
    /* The name ends at the equals sign of "--name=value", or with the argument. */
    size_t len = equals == NULL ? strlen(arg) : (size_t)(equals - arg);
    const struct settings_row *row =
        strncmp(arg, "--", 2) == 0 ? settings_find(arg + 2, len - 2) : NULL;
    const char *value = equals == NULL ? NULL : equals + 1;
    bool is_config;

    if (row == NULL || strchr(row->programs, program) == NULL) {
        log_error("settings: unknown option \"%s\"; --help lists all", arg);
        return ERR_INVALID;
    }
    if (value == NULL) {
        if (*i + 1 >= argc) {
            log_error("settings: %s needs a value", arg);
            return ERR_INVALID;
        }
        value = argv[++*i];
    }
    /* Pass 0 uses only --config, and pass 1 only the others. */
    is_config = strcmp(row->name, "config") == 0;
    if (is_config != (pass == 0))
        return ERR_OK;
    if (is_config) {
        int rc = settings_read_file(s, value);

        if (rc != ERR_OK)
            return rc;
    }
    return settings_set(s, row, value);
}

/* Free the texts; all other values lie in the struct. */
void settings_fini(struct settings *s)
{
    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        char *text;

        if (settings_rows[i].type != CONF_IS_TEXT)
            continue;
        memcpy(&text, (char *)s + settings_rows[i].offset, sizeof text);
        mem_free(text);
    }
    *s = (struct settings){0};
}

/* The defaults of all settings. */
static int settings_preset(struct settings *out)
{
    int rc = ERR_OK;

    for (size_t i = 0; i < SETTINGS_COUNT && rc == ERR_OK; i++) {
        const char *preset = settings_rows[i].preset;
        char text[256];

        /* Defaults of type TEXT were stringified with their quotes: remove them. */
        (void)snprintf(text, sizeof text, "%s", preset[0] == '"' ? preset + 1 : preset);
        if (preset[0] == '"')
            text[strlen(text) - 1] = '\0';
        rc = settings_set(out, &settings_rows[i], text);
    }
    return rc;
}

/* Options that only print. */
struct settings_wishes {
    bool print, help, version;
};

/* Defaults first, then the file, then the command line. --help and the like are only noted in the
 * loop, so that they show the values in effect. file: a further one, after that of --config; or
 * NULL. */
static int settings_fill(struct settings *out, char program, int argc, char **argv,
                         const char *file, struct settings_wishes *wishes)
{
    int rc = settings_preset(out);

    must(program == 'E' || program == 'F');
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 1; i < argc && rc == ERR_OK; i++) {
            if (strcmp(argv[i], "--help") == 0)
                wishes->help = true;
            else if (strcmp(argv[i], "--version") == 0)
                wishes->version = true;
            else if (strcmp(argv[i], "--print-settings") == 0)
                wishes->print = true;
            else
                rc = settings_arg(out, program, &i, argc, argv, pass);
        }
        if (rc == ERR_OK && pass == 0 && file != NULL)
            rc = settings_read_file(out, file);
    }
    if (rc != ERR_OK)
        settings_fini(out);
    return rc;
}

int settings_read(struct settings *out, char program, int argc, char **argv, bool *exit_now)
{
    struct settings settings = {0};
    struct settings_wishes wishes = {0};
    int rc = settings_fill(&settings, program, argc, argv, NULL, &wishes);

    if (rc != ERR_OK)
        return rc;
    *exit_now = wishes.help || wishes.print || wishes.version;
    if (wishes.version)
        printf("quire %s\n", PACKAGE_VERSION);
    if (wishes.help)
        settings_print_usage(program);
    if (wishes.help || wishes.print)
        settings_print(&settings, program, wishes.help);
    *out = settings;
    return ERR_OK;
}

int settings_read_over(struct settings *out, char program, int argc, char **argv, const char *file)
{
    struct settings settings = {0};
    struct settings_wishes wishes = {0};
    int rc = settings_fill(&settings, program, argc, argv, file, &wishes);

    if (rc == ERR_OK)
        *out = settings;
    return rc;
}
