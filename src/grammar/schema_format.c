/* SPDX-License-Identifier: Apache-2.0
 *
 * Formats as patterns over the whole string. Each follows its RFC as far as a pattern can: a date's
 * day fits its month and year; leap seconds see below. Host names are in hostname.c. */
#include <stdio.h>
#include <string.h>

#include "base/must.h"
#include "grammar/regular.h"
#include "grammar/schema_parts.h"

#define DATE                                                                                     \
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"     \
    "|02-(0[1-9]|1[0-9]|2[0-8]))|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579]" \
    "[26])00)-02-29)"
#define HOUR        "([01][0-9]|2[0-3])"
#define OFFSET      "([zZ]|[+-]" HOUR ":[0-5][0-9])"
#define FRACTION    "(\\.[0-9]+)?"
#define COMMON_TIME HOUR ":[0-5][0-9]:[0-5][0-9]" FRACTION OFFSET
#define LEAP_UTC    "23:59:60" FRACTION "([zZ]|[+-]00:00)"
#define LEAP_ANY    HOUR ":[0-5][0-9]:60" FRACTION "[+-]" HOUR ":[0-5][0-9]"
#define TIME_NARROW "(" COMMON_TIME "|" LEAP_UTC ")"
#define TIME_WIDE   "(" COMMON_TIME "|" LEAP_UTC "|" LEAP_ANY ")"
#define BYTE        "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4        BYTE "(\\." BYTE "){3}"
#define H16         "[0-9a-fA-F]{1,4}"
#define LS32        "(" H16 ":" H16 "|" IPV4 ")"
#define LABEL       "[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
#define ATEXT       "[-!#$%&'*+/=?^_`{|}~0-9A-Za-z]"
#define IPV6                                                                                  \
    "((" H16 ":){6}" LS32 "|::(" H16 ":){5}" LS32 "|(" H16 ")?::(" H16 ":){4}" LS32 "|((" H16 \
    ":){0,1}" H16 ")?::(" H16 ":){3}" LS32 "|((" H16 ":){0,2}" H16 ")?::(" H16 ":){2}" LS32   \
    "|((" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|((" H16 ":){0,4}" H16 ")?::" LS32 "|((" H16 \
    ":){0,5}" H16 ")?::" H16 "|((" H16 ":){0,6}" H16 ")?::)"
#define PCT               "%[0-9A-Fa-f]{2}"
#define UCHAR             "([-._~!$&'()*+,;=0-9A-Za-z]|" PCT ")"
#define PCHAR             "([-._~!$&'()*+,;=:@0-9A-Za-z]|" PCT ")"
#define UCS               "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{efffd}"
#define IUCHAR            "([-._~!$&'()*+,;=0-9A-Za-z" UCS "]|" PCT ")"
#define IPCHAR            "([-._~!$&'()*+,;=:@0-9A-Za-z" UCS "]|" PCT ")"
#define PRIVATE           "\\ue000-\\uf8ff\\u{f0000}-\\u{10fffd}"
#define IQUERY            "([-._~!$&'()*+,;=:@0-9A-Za-z" UCS PRIVATE "]|" PCT ")"
#define VARCHAR           "([0-9A-Za-z_]|" PCT ")"
#define VARSPEC           VARCHAR "(\\.?" VARCHAR ")*(:[1-9][0-9]{0,3}|\\*)?"
#define SCHEME            "[A-Za-z][-+.0-9A-Za-z]*:"
#define LITERAL(U)        "\\[(" IPV6 "|[vV][0-9A-Fa-f]+\\." U "+)\\]"
#define AUTH(U)           "//((" U "|:)*@)?(" U "*|" LITERAL(U) ")(:[0-9]*)?"
#define FORMAT_TAIL(P, Q) "(\\?(" Q "|[/?])*)?(#(" P "|[/?])*)?"
#define URI(U, P, Q) \
    SCHEME "(" AUTH(U) "(/" P "*)*|/(" P "+(/" P "*)*)?|" P "+(/" P "*)*)?" FORMAT_TAIL(P, Q)
#define RELATIVE(U, P)                                                                       \
    "(" AUTH(U) "(/" P "*)*|/(" P "+(/" P "*)*)?|([-._~!$&'()*+,;=@0-9A-Za-z]|" PCT ")+(/" P \
                "*)*)?" FORMAT_TAIL(P, P)
#define IRELATIVE                                                                                 \
    "(" AUTH(IUCHAR) "(/" IPCHAR "*)*|/(" IPCHAR "+(/" IPCHAR "*)*)?|([-._~!$&'()*+,;=@0-9A-Za-z" \
                     "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef\\u{10000}-\\u{efffd}]|" PCT   \
                     ")+(/" IPCHAR "*)*)?" FORMAT_TAIL(IPCHAR, IQUERY)

static const struct {
    const char *name;
    const char *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME_NARROW},
    {"date-time", DATE "[tT]" TIME_NARROW},
    {"duration",
     "P([0-9]+W|([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)(T([0-9]+H([0-9]+M([0-9]+S)?"
     ")?|[0-9]+M([0-9]+S)?|[0-9]+S))?|T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))"},
    {"email", "(" ATEXT "+(\\." ATEXT "+)*|\"([ !#-\\[\\]-~]|\\\\[ -~])*\")@(" LABEL "(\\." LABEL
              ")*|\\[(" IPV4 "|IPv6:[0-9A-Fa-f:.]+)\\])"},
    {"hostname", LABEL "(\\." LABEL ")*"},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", URI(UCHAR, PCHAR, PCHAR)},
    {"uri-reference", "(" URI(UCHAR, PCHAR, PCHAR) "|" RELATIVE(UCHAR, PCHAR) ")"},
    {"iri", URI(IUCHAR, IPCHAR, IQUERY)},
    {"iri-reference", "(" URI(IUCHAR, IPCHAR, IQUERY) "|" IRELATIVE ")"},
    {"uri-template",
     "([^ \"%<>\\\\^`{|}\\x00-\\x1f\\x7f]|" PCT "|\\{[+#./;?&]?" VARSPEC "(," VARSPEC ")*\\})*"},
    {"json-pointer", "(/([^~/]|~[01])*)*"},
    {"relative-json-pointer", "(0|[1-9][0-9]*)(#|(/([^~/]|~[01])*)*)"},
};

/* Formats with many states. Where combining them would take too many, a pattern of fewer states is
 * used that accepts some more texts (wide) or some fewer (narrow). Labels of the narrow host names
 * are short and do not begin with "xn--". */
static const struct {
    const char *name;
    bool alone; /* also needed together with patterns that do not count */
    const char *wide;
    const char *narrow;
} shapes[] = {
    {"time", true, TIME_WIDE, TIME_NARROW},
    {"date-time", true, DATE "[tT]" TIME_WIDE, DATE "[tT]" TIME_NARROW},
    {"hostname", false, LABEL "(\\." LABEL ")*",
     "[0-9A-Za-z](-?[0-9A-Za-z]){0,15}(\\.[0-9A-Za-z](-?[0-9A-Za-z]){0,15})*"},
};

/* --- leap seconds ------------------------------------------------------------------------- */

#define DAY        1440 /* minutes */
#define LEAP_BYTES 16384

/* A leap second is the last one of a UTC day, so its local time and its offset determine each
 * other. An automaton of all 1440 pairs had 23,000 states and took 25 ms. This one has 1500 and
 * takes 3 ms: it enforces the minutes of all pairs, and the hours for offsets of whole quarters of
 * an hour, which all present time zones have. For other offsets the hours are free. */
static size_t schema_leap_quarters(char *out, size_t cap)
{
    size_t n = 0;
    int local;

    /* For 23:59:60 in UTC the local time is, with an offset east by `east` minutes, east - 1
     * minutes past midnight. The steps of 15 begin at 14, so that east is a whole quarter:
     * 00:14:60 is +00:15. */
    for (local = 14; local < DAY; local += 15) {
        int east = (local + 1) % DAY;
        int west = DAY - 1 - local;

        /* Each local time occurs with one offset to the east and with one to the west:
         * 00:14:60+00:15 and 00:14:60-23:45. */
        n += (size_t)snprintf(out + n, cap - n,
                              "|%02d:%02d:60" FRACTION "([+]%02d:%02d|-%02d:%02d%s)", local / 60,
                              local % 60, east / 60, east % 60, west / 60, west % 60,
                              local == DAY - 1 ? "|[zZ]" : "");
    }
    return n;
}

/* The pairs of other minutes: the sum is fixed, the hours are free. */
static size_t schema_leap_minutes(char *out, size_t cap)
{
    size_t n = 0;
    int minute;

    for (minute = 0; minute < 60; minute++)
        if (minute % 15 != 14)
            n += (size_t)snprintf(out + n, cap - n,
                                  "|" HOUR ":%02d:60" FRACTION "([+]" HOUR ":%02d|-" HOUR ":%02d)",
                                  minute, minute + 1, 59 - minute);
    return n;
}

/* A time after the text `before`, for example a date and 'T'. A leap second is at 23:59:60 UTC,
 * which is another local time for each offset, so all offsets are written out as alternatives. */
static const struct dfa *schema_time_dfa(struct compile *compile, const char *before)
{
    char *text = compile_alloc(compile, LEAP_BYTES);
    size_t n;

    if (text == NULL)
        return NULL;
    n = (size_t)snprintf(text, LEAP_BYTES, "%s(" COMMON_TIME, before);
    n += schema_leap_quarters(text + n, LEAP_BYTES - n);
    n += schema_leap_minutes(text + n, LEAP_BYTES - n);
    n += (size_t)snprintf(text + n, LEAP_BYTES - n, ")");
    return regex_whole(compile, text, n);
}

/* --- by name ------------------------------------------------------------------------------ */

static const char *schema_format_pattern(const char *name)
{
    size_t i;

    for (i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].pattern;
    return NULL;
}

bool schema_format_is_known(const char *name)
{
    must(name != NULL);
    return schema_format_pattern(name) != NULL;
}

bool schema_format_has_shape(const char *name, bool counted)
{
    size_t i;

    must(name != NULL);
    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return counted || shapes[i].alone;
    return false;
}

const struct dfa *schema_format_language(struct compile *compile, const char *name)
{
    const char *pattern = schema_format_pattern(name);

    must(name != NULL);
    /* These three are computed, because as written patterns they would be very large. */
    if (strcmp(name, "hostname") == 0)
        return hostname_dfa(compile);
    if (strcmp(name, "time") == 0)
        return schema_time_dfa(compile, "");
    if (strcmp(name, "date-time") == 0)
        return schema_time_dfa(compile, DATE "[tT]");
    if (pattern == NULL)
        return NULL;
    return regex_whole(compile, pattern, strlen(pattern));
}

const struct dfa *schema_format_wide(struct compile *compile, const char *name)
{
    size_t i;

    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return regex_whole(compile, shapes[i].wide, strlen(shapes[i].wide));
    return schema_format_language(compile, name);
}

const struct dfa *schema_format_narrow(struct compile *compile, const char *name)
{
    size_t i;

    for (i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, name) == 0)
            return regex_whole(compile, shapes[i].narrow, strlen(shapes[i].narrow));
    return schema_format_language(compile, name);
}

bool schema_format_is_refused(const char *name)
{
    must(name != NULL);
    return strcmp(name, "idn-hostname") == 0 || strcmp(name, "idn-email") == 0 ||
           strcmp(name, "regex") == 0;
}
