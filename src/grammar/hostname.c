/* SPDX-License-Identifier: Apache-2.0
 *
 * The format "hostname": labels of RFC 1123, and of RFC 5890 those that begin with "xn--".
 *
 * After "xn--" comes Punycode (RFC 3492): ASCII characters up to the last '-', then numbers that
 * encode which other characters are inserted where, in ascending order. The encoding of a number
 * depends on all numbers before it, which no automaton of a sensible size can follow. This one
 * follows the first number, whose encoding is fixed, and that is enough to refuse a label that
 *
 *   - has no complete number, or does not end at the end of a number
 *   - has as its smallest character one that RFC 5892 forbids by name
 *   - is a single character that needs company (a middle dot between two letters, an iota mark, a
 *     joiner), or begins with a combining mark that is its only one
 *
 * the last two for labels with up to ASCII_MAX characters of ASCII. No valid label is refused. The
 * length of the whole name is not checked: together with the position in a label it would take
 * 25,000 states. A schema that counts characters therefore gets a simpler shape of labels.
 *
 * The checker is an ordinary function from a state and a byte to a state, hostname_step_byte();
 * hostname_dfa() explores all states that it can reach. */
#include <string.h>

#include "grammar/schema_parts.h"

#define LABEL_MAX  63
#define ASCII_MAX  8
#define BASE       36
#define FIRST_CHAR 0x80

/* Where in a label the checker is. */
enum stage {
    LABEL_START,
    LABEL_PLAIN,
    LABEL_PREFIX, /* a part of "xn--" */
    PUNY_NUMBER,  /* in the first number, whose value is tracked */
    PUNY_UNSEEN,  /* in the first number, which can no longer be a refused one */
    PUNY_REFUSED, /* refused, unless a '-' follows and makes all of it ASCII */
    PUNY_ALONE,   /* refused if the label ends here */
    PUNY_MORE,    /* at the end of a number; any digits may follow */
    PUNY_OPEN,    /* after a digit that does not end a number */
};

struct hostname_state {
    uint32_t stage;
    uint32_t n_read;  /* characters of the label */
    uint32_t hyphen;  /* the last character was '-' */
    uint32_t n_ascii; /* characters before the last '-' of Punycode; at most ASCII_MAX */
    uint32_t n_digits;
    uint32_t value; /* of the digits so far */
};

#define HOST_WORDS (sizeof(struct hostname_state) / sizeof(uint32_t))

/* The rule for a character that is the smallest one of a label. */
enum verdict { CHAR_FORBIDDEN, CHAR_NOT_ALONE, CHAR_NOT_FIRST, CHAR_BETWEEN };

/* RFC 5892, 2.6 and appendix A, and the marks of the most common blocks. */
static const struct {
    uint32_t lo, hi;
    enum verdict verdict; /* CHAR_NOT_FIRST and CHAR_BETWEEN: if it is the only one */
} odd_chars[] = {
    {0x00b7, 0x00b7, CHAR_BETWEEN},   {0x0300, 0x036f, CHAR_NOT_FIRST},
    {0x0375, 0x0375, CHAR_NOT_ALONE}, {0x0483, 0x0489, CHAR_NOT_FIRST},
    {0x05f3, 0x05f4, CHAR_NOT_ALONE}, {0x0640, 0x0640, CHAR_FORBIDDEN},
    {0x07fa, 0x07fa, CHAR_FORBIDDEN}, {0x0900, 0x0903, CHAR_NOT_FIRST},
    {0x200c, 0x200d, CHAR_NOT_ALONE}, {0x302e, 0x302f, CHAR_FORBIDDEN},
    {0x3031, 0x3035, CHAR_FORBIDDEN}, {0x303b, 0x303b, CHAR_FORBIDDEN},
    {0x30fb, 0x30fb, CHAR_NOT_ALONE},
};

#define N_ODD (sizeof odd_chars / sizeof odd_chars[0])

/* Punycode writes a number in a mixed radix. With the initial bias of 72 the first two digits have
 * the threshold 1, the rest 26; a digit below the threshold ends the number. */
static uint32_t hostname_threshold(uint32_t n_digits)
{
    if (n_digits < 2)
        return 1;
    return 26;
}

/* The weight of digit number n_digits. */
static uint32_t hostname_weight(uint32_t n_digits)
{
    uint32_t weight = 1;
    uint32_t i;

    for (i = 0; i < n_digits; i++)
        weight *= BASE - hostname_threshold(i);
    return weight;
}

/* The stage after a complete first number, which encodes the smallest character and its place. */
static enum stage hostname_number_stage(const struct hostname_state *host)
{
    uint32_t n_places = host->n_ascii + 1;
    uint32_t c = FIRST_CHAR + host->value / n_places;
    uint32_t place = host->value % n_places;
    size_t i;

    /* `place` is where the character is inserted among the plain ones: 0 is the start of the
     * label. */
    for (i = 0; i < N_ODD; i++) {
        if (c < odd_chars[i].lo || c > odd_chars[i].hi)
            continue;
        switch (odd_chars[i].verdict) {
        case CHAR_FORBIDDEN: return PUNY_REFUSED;
        case CHAR_NOT_ALONE: return PUNY_ALONE;
        case CHAR_NOT_FIRST: return place == 0 ? PUNY_ALONE : PUNY_MORE;
        case CHAR_BETWEEN: return place == 0 || place == host->n_ascii ? PUNY_ALONE : PUNY_MORE;
        }
    }
    return PUNY_MORE;
}

/* Can more digits still make a number that encodes an odd character? "Yes" where it is not needed
 * costs only states, so an approximation is fine. */
static bool hostname_number_may_be_odd(const struct hostname_state *host)
{
    uint32_t n_places = host->n_ascii + 1;
    uint32_t weight = hostname_weight(host->n_digits);
    size_t i;

    if (host->n_digits < 2)
        return true;
    for (i = 0; i < N_ODD; i++) {
        bool first = odd_chars[i].verdict == CHAR_NOT_FIRST;
        uint32_t c;

        /* The numbers of c are lo to hi, one per place. More digits add multiples of `weight` to
         * the value. */
        for (c = odd_chars[i].lo; c <= odd_chars[i].hi; c++) {
            uint32_t lo = (c - FIRST_CHAR) * n_places;
            uint32_t hi = first ? lo : lo + host->n_ascii;

            if (hi >= host->value && (hi - host->value) % weight <= hi - lo)
                return true;
        }
    }
    return false;
}

/* Punycode's digits: a..z are 0 to 25, 0..9 are 26 to 35. */
static uint32_t hostname_digit_of(uint8_t byte)
{
    if (byte >= '0' && byte <= '9')
        return 26u + byte - '0';
    return (uint32_t)(byte | 0x20) - 'a';
}

/* Advance by a digit. Data that can no longer matter is set to 0, so that equal futures are one
 * state. */
static void hostname_number_step(struct hostname_state *host, uint32_t digit)
{
    bool ends = digit < hostname_threshold(host->n_digits);

    if (host->stage == PUNY_NUMBER)
        host->value += digit * hostname_weight(host->n_digits);
    host->n_digits++;
    if (ends) {
        if (host->stage == PUNY_NUMBER)
            host->stage = hostname_number_stage(host);
        else
            host->stage = PUNY_MORE;
    } else if (host->stage == PUNY_NUMBER && !hostname_number_may_be_odd(host))
        host->stage = PUNY_UNSEEN;
    if (host->stage == PUNY_NUMBER)
        return;
    /* Beyond this point only the stage and the next threshold matter. */
    host->value = host->n_ascii = 0;
    if (host->stage != PUNY_UNSEEN)
        host->n_digits = 0;
    else if (host->n_digits > 2)
        host->n_digits = 2;
}

/* A '-' makes the characters before it ASCII and begins a first number. */
static void hostname_number_begin(struct hostname_state *host, uint32_t n_ascii)
{
    if (n_ascii <= ASCII_MAX)
        host->stage = PUNY_NUMBER;
    else
        host->stage = PUNY_UNSEEN;
    if (n_ascii <= ASCII_MAX)
        host->n_ascii = n_ascii;
    else
        host->n_ascii = 0;
    host->n_digits = 0;
    host->value = 0;
}

static bool hostname_label_may_end(const struct hostname_state *host)
{
    return (host->stage == LABEL_PLAIN || host->stage == LABEL_PREFIX ||
            host->stage == PUNY_MORE) &&
           !host->hyphen;
}

/* Advance outside of Punycode, and notice the prefix "xn--". */
static void hostname_plain_step(struct hostname_state *host, uint8_t byte)
{
    static const char prefix[] = "xn--";
    bool fits =
        host->stage != LABEL_PLAIN && (byte == '-' ? '-' : byte | 0x20) == prefix[host->n_read];

    if (fits)
        host->stage = LABEL_PREFIX;
    else
        host->stage = LABEL_PLAIN;
    if (fits && host->n_read == 3)
        hostname_number_begin(host, 0);
}

/* Advance by any byte of a name. False: the byte is not allowed. */
static bool hostname_step_byte(struct hostname_state *host, uint8_t byte)
{
    if (byte == '.') {
        bool may = hostname_label_may_end(host);

        *host = (struct hostname_state){.stage = LABEL_START};
        return may;
    }
    /* A label has at most 63 bytes and does not begin with a hyphen (RFC 1123). */
    if (host->n_read == LABEL_MAX || (byte == '-' && host->n_read == 0))
        return false;
    /* The last hyphen of a label separates its plain characters from the coded ones, so each hyphen
     * begins the coded part again. */
    if (host->stage <= LABEL_PREFIX)
        hostname_plain_step(host, byte);
    else if (byte == '-')
        hostname_number_begin(host, host->n_read - 4);
    else if (host->stage == PUNY_NUMBER || host->stage == PUNY_UNSEEN)
        hostname_number_step(host, hostname_digit_of(byte));
    else if (host->stage != PUNY_REFUSED) {
        if (hostname_digit_of(byte) < 26)
            host->stage = PUNY_MORE;
        else
            host->stage = PUNY_OPEN;
    }
    host->n_read++;
    host->hyphen = byte == '-';
    return true;
}

/* The number of the state after a byte, which may be a new one; NONE: the byte is not allowed. */
static uint32_t hostname_explore_step(struct dfa_maker *maker, struct keys *keys,
                                      struct hostname_state host, uint8_t byte)
{
    uint32_t words[HOST_WORDS];
    uint32_t number;
    bool is_new;

    /* host is a copy, so the caller's state stays as it is for the next byte. */
    if (!hostname_step_byte(&host, byte))
        return NONE;
    /* The structure has no padding, so its words are a key. */
    memcpy(words, &host, sizeof words);
    number = dfa_keys_find(keys, words, HOST_WORDS, &is_new);
    if (is_new)
        dfa_maker_state(maker, hostname_label_may_end(&host));
    return number;
}

/* Explore all bytes from a state and join adjacent bytes with one target to an edge. */
static void hostname_explore_edges(struct dfa_maker *maker, struct keys *keys, uint32_t number)
{
    static const uint8_t ranges[][2] = {{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'a', 'z'}};
    struct hostname_state from;
    size_t i;

    memcpy(&from, keys->words.items + keys->items[number].at, sizeof from);
    dfa_maker_begin(maker, number);
    for (i = 0; i < sizeof ranges / sizeof ranges[0] && compile_tick(maker->c); i++) {
        uint8_t lo = ranges[i][0];
        uint32_t to = hostname_explore_step(maker, keys, from, lo);
        uint8_t byte;

        /* An edge ends before the first byte with another target. */
        for (byte = lo + 1; byte <= ranges[i][1]; byte++) {
            uint32_t next = hostname_explore_step(maker, keys, from, byte);

            if (next == to)
                continue;
            if (to != NONE)
                dfa_maker_edge(maker, lo, byte - 1, to);
            lo = byte;
            to = next;
        }
        if (to != NONE)
            dfa_maker_edge(maker, lo, byte - 1, to);
    }
}

const struct dfa *hostname_dfa(struct compile *compile)
{
    struct keys keys = {.c = compile};
    struct dfa_maker maker = {.c = compile};
    uint32_t words[HOST_WORDS] = {LABEL_START};
    uint32_t i;
    bool is_new;

    (void)dfa_keys_find(&keys, words, HOST_WORDS, &is_new);
    dfa_maker_state(&maker, 0);
    /* The states are explored in the order of their discovery; the key of a state is the words
     * above. */
    for (i = 0; i < maker.states.n && compile_ok(compile); i++)
        hostname_explore_edges(&maker, &keys, i);
    if (compile_ok(compile))
        return dfa_minimise(compile, dfa_maker_end(&maker));
    return NULL;
}
