/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers under constraints. Each constraint is a small machine that reads the digits of the
 * magnitude; all run in parallel, and their reachable states are explored.
 *
 * Values are compared, not spellings: 1.50 is 1.5. Constrained numbers therefore have no exponent,
 * and whole ones (if fractions are not allowed at all) no '.'. Example: for {"minimum": 12} the
 * machine accepts 12, 13, ..., 20, ..., 100, but not 9 or 11.9. */
#include <stdlib.h>
#include <string.h>

#include "base/must.h"
#include "grammar/regular.h"
#include "grammar/schema_parts.h"

#define NUMBER_RULES_MAX 24
#define MULTIPLE_MAX     100000 /* states per multipleOf */

enum rule_kind { RULE_BOUND, RULE_EQUAL, RULE_MULTIPLE, RULE_FRACTION };

struct number_rule {
    enum rule_kind kind;
    bool negated;
    bool strict;
    bool most;            /* BOUND: number <= value; else >= */
    struct decimal value; /* BOUND, EQUAL */
    uint32_t modulus;     /* MULTIPLE: of 10^-scale */
    uint32_t scale;
};

/* How much of a number was read. */
enum phase { AT_START, AT_MINUS, AT_ZERO, AT_INT, AT_POINT, AT_FRACTION };

struct machine {
    struct number_rule rules[NUMBER_RULES_MAX];
    uint32_t n;
    bool point; /* a '.' is allowed */
};

/* --- decimals ----------------------------------------------------------------------------- */

static bool schema_is_digit(char ch)
{
    return ch >= '0' && ch <= '9';
}

/* Normalise digits[0 .. n) with `point` digits before the point: no leading zeros before the point,
 * no trailing ones after it. False when they do not fit. */
static bool schema_decimal_place(struct decimal *decimal, const char *digits, int n, long point)
{
    long i;
    int at = 0;

    while (n > 0 && digits[n - 1] == '0' && n > point)
        n--;
    while (n > 0 && digits[0] == '0')
        digits++, n--, point--;
    while (n > 0 && digits[n - 1] == '0' && n > point)
        n--;
    decimal->n_int = decimal->n_frac = 0;
    if (n == 0)
        return true;
    if (point > DECIMAL_DIGITS - 1 || point < -DECIMAL_DIGITS || n > DECIMAL_DIGITS)
        return false;
    /* All digits with the zeros that the point needs: on its left, or between it and the first
     * digit. */
    if ((point > n ? point : n) + (point < 0 ? -point : 0) > DECIMAL_DIGITS)
        return false;
    /* Digits before the point; a large exponent adds zeros. */
    for (i = 0; i < point; i++)
        decimal->digits[at++] = i < n ? digits[i] : '0';
    decimal->n_int = at;
    /* Digits after it; a negative exponent adds zeros in front. */
    for (i = point; i < n; i++)
        decimal->digits[at++] = i < 0 ? '0' : digits[i];
    decimal->n_frac = at - decimal->n_int;
    while (decimal->n_frac > 0 && decimal->digits[decimal->n_int + decimal->n_frac - 1] == '0')
        decimal->n_frac--;
    return true;
}

/* Read a JSON number exactly, without rounding to a double: the digits in a row, and the place of
 * the point among them. An exponent moves the point:
 *
 *     12.5e1  ->  digits 125, point 2 + 1 = 3  ->  125 */
bool schema_decimal_read(struct decimal *decimal, const char *text, size_t len)
{
    char digits[DECIMAL_DIGITS + 1];
    size_t at = len > 0 && text[0] == '-';
    int n = 0;
    long point = -1;
    long exponent = 0;
    bool small;

    must(text != NULL || len == 0);
    memset(decimal, 0, sizeof *decimal);
    for (; at < len && (schema_is_digit(text[at]) || text[at] == '.'); at++) {
        if (text[at] == '.')
            point = n;
        else if (n == DECIMAL_DIGITS)
            return false;
        else
            digits[n++] = text[at];
    }
    if (point < 0)
        point = n;
    /* The exponent stops growing at a size at which the number is refused anyway. */
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        small = at + 1 < len && text[at + 1] == '-';
        if (small || (at + 1 < len && text[at + 1] == '+'))
            at += 2;
        else
            at += 1;
        for (; at < len && schema_is_digit(text[at]); at++)
            exponent = exponent > 100000 ? exponent : exponent * 10 + (text[at] - '0');
        if (small)
            point += -exponent;
        else
            point += exponent;
    }
    if (!schema_decimal_place(decimal, digits, n, point))
        return false;
    decimal->minus = text[0] == '-' && decimal->n_int + decimal->n_frac > 0;
    return true;
}

bool schema_decimal_equal(const struct decimal *a, const struct decimal *b)
{
    return a->minus == b->minus && a->n_int == b->n_int && a->n_frac == b->n_frac &&
           memcmp(a->digits, b->digits, (size_t)(a->n_int + a->n_frac)) == 0;
}

/* Write a decimal in its shortest form without an exponent; the number of bytes, 0 if cap is too
 * small. */
size_t schema_decimal_text(const struct decimal *decimal, char *out, size_t cap)
{
    size_t n = 0;

    must(out != NULL && cap > 0);
    /* The sign, a zero before the point, the point, and one byte to spare. */
    if (cap < (size_t)(decimal->n_int + decimal->n_frac) + 4)
        return 0;
    if (decimal->minus)
        out[n++] = '-';
    /* The digits have no leading zeros, so 0.5 has none before the point. */
    if (decimal->n_int == 0)
        out[n++] = '0';
    memcpy(out + n, decimal->digits, (size_t)decimal->n_int);
    n += (size_t)decimal->n_int;
    if (decimal->n_frac > 0) {
        out[n++] = '.';
        memcpy(out + n, decimal->digits + decimal->n_int, (size_t)decimal->n_frac);
        n += (size_t)decimal->n_frac;
    }
    return n;
}

/* --- comparison while digits are read ------------------------------------------------------------
 * A word holds the order so far (0 equal, 1 less, 2 greater) and the number of digits read, as far
 * as it matters. Leading zeros do not occur except in "0", which counts as no digits. */

#define ORDER(word) ((word)&3u)
#define READ(word)  ((word) >> 2)

/* Read a digit before the point. */
static uint32_t schema_compare_int(const struct decimal *value, uint32_t word, int digit)
{
    uint32_t n = READ(word);
    uint32_t order = ORDER(word);

    /* Leading zeros have no place in the number's value. */
    if (n == 0 && digit == 0)
        return word;
    /* More digits than the bound's: the number is larger, whatever its digits are. The count
     * stops at one more than n_int, so that the states stay finite. */
    if (n >= (uint32_t)value->n_int)
        return 2 | ((uint32_t)value->n_int + 1) << 2;
    /* The first digit that differs decides, as long as both numbers turn out to have the same
     * length. */
    if (order == 0 && digit != value->digits[n] - '0') {
        if (digit < value->digits[n] - '0')
            order = 1;
        else
            order = 2;
    }
    return order | (n + 1) << 2;
}

/* The whole part is complete: fewer digits mean less. Counting begins anew for the fraction. */
static uint32_t schema_compare_settle(const struct decimal *value, uint32_t word)
{
    if (READ(word) < (uint32_t)value->n_int)
        return 1;
    if (READ(word) > (uint32_t)value->n_int)
        return 2;
    return ORDER(word);
}

/* Read a digit after the point. */
static uint32_t schema_compare_frac(const struct decimal *value, uint32_t word, int digit)
{
    uint32_t n = READ(word);
    int want = n < (uint32_t)value->n_frac ? value->digits[value->n_int + (int)n] - '0' : 0;

    /* Decided before: further digits of the fraction change nothing. */
    if (ORDER(word) != 0)
        return word;
    if (digit != want) {
        if (digit < want)
            return 1;
        return 2;
    }
    /* Only the digits that the bound has are counted. Beyond them, equal means zeros. */
    if (n < (uint32_t)value->n_frac)
        return (n + 1) << 2;
    return word;
}

/* The order of the complete number and the value: -1, 0 or 1. */
static int schema_compare_end(const struct decimal *value, uint32_t word, bool minus, bool settled)
{
    int order;

    if (!settled)
        word = schema_compare_settle(value, word);
    if (ORDER(word) == 1)
        order = -1;
    else if (ORDER(word) == 2)
        order = 1;
    else
        order = 0;
    if (order == 0 && READ(word) < (uint32_t)value->n_frac)
        order = -1; /* digits of the value are left, and its last digit is not 0 */
    if (minus && value->minus)
        return -order;
    if (minus || value->minus) { /* signs differ: equal only if both are zero */
        bool zeros = order == 0 && value->n_int + value->n_frac == 0;

        if (zeros)
            return 0;
        if (minus)
            return -1;
        return 1;
    }
    return order;
}

/* --- multiples ---------------------------------------------------------------------------- */

/* A word holds the remainder, the number of digits of the fraction, and LOST when the number has
 * more digits than the divisor and cannot be a multiple. */

#define LOST 0xffffffffu

/* Read a digit: remainder * 10 + digit, modulo the divisor. */
static uint32_t schema_multiple_digit(const struct number_rule *rule, uint32_t word, int digit,
                                      bool fraction)
{
    uint32_t rest = word & 0xffffff;
    uint32_t read = word >> 24;

    /* LOST is final: the fraction has a digit that no multiple has. */
    if (word == LOST)
        return LOST;
    /* With scale 2 (as for 0.25) only two digits of the fraction count; all further ones must be
     * 0. */
    if (fraction && read == rule->scale) {
        if (digit == 0)
            return word;
        return LOST;
    }
    /* For 0.25: 1.75 is read as 175, and 175 % 25 is 0. */
    rest = (uint32_t)(((uint64_t)rest * 10 + (uint32_t)digit) % rule->modulus);
    return rest | (read + fraction) << 24;
}

/* Is the complete number a multiple? Missing digits of the fraction are zeros. */
static bool schema_multiple_end(const struct number_rule *rule, uint32_t word)
{
    uint64_t rest = word & 0xffffff;
    uint32_t read;

    if (word == LOST)
        return false;
    for (read = word >> 24; read < rule->scale; read++)
        rest = rest * 10 % rule->modulus;
    return rest == 0;
}

/* --- all rules together ------------------------------------------------------------------- */

/* One rule reads a digit. */
static uint32_t schema_rule_digit(const struct number_rule *rule, uint32_t word, int digit,
                                  bool fraction)
{
    switch (rule->kind) {
    case RULE_BOUND:
    case RULE_EQUAL:
        return fraction ? schema_compare_frac(&rule->value, word, digit)
                        : schema_compare_int(&rule->value, word, digit);
    case RULE_MULTIPLE: return schema_multiple_digit(rule, word, digit, fraction);
    case RULE_FRACTION: return word | (fraction && digit != 0);
    }
    return 0;
}

/* Does a rule hold for the complete number? */
static bool schema_rule_holds(const struct number_rule *rule, uint32_t word, bool minus,
                              bool fraction)
{
    bool holds = false;
    int order;

    /* schema_compare_end() also decides numbers that ended before the digits of the bound did. */
    switch (rule->kind) {
    case RULE_BOUND:
        order = schema_compare_end(&rule->value, word, minus, fraction);
        if (rule->most)
            holds = order < 0 || (order == 0 && !rule->strict);
        else
            holds = order > 0 || (order == 0 && !rule->strict);
        break;
    case RULE_EQUAL: holds = schema_compare_end(&rule->value, word, minus, fraction) == 0; break;
    case RULE_MULTIPLE: holds = schema_multiple_end(rule, word); break;
    case RULE_FRACTION: holds = word != 0; break;
    }
    /* A negated rule holds if the rule does not. */
    return holds != rule->negated;
}

/* Do all rules hold? word[0]: the phase, word[1]: whether there is a minus, then a word per
 * rule. */
static bool schema_machine_accepts(const struct machine *machine, const uint32_t *word)
{
    bool fraction = word[0] == AT_FRACTION;
    uint32_t i;

    if (word[0] != AT_ZERO && word[0] != AT_INT && word[0] != AT_FRACTION)
        return false;
    for (i = 0; i < machine->n; i++)
        if (!schema_rule_holds(&machine->rules[i], word[2 + i], word[1] != 0, fraction))
            return false;
    return true;
}

/* Advance by a byte. False: the byte is not allowed. */
static bool schema_machine_step(const struct machine *machine, uint32_t *word, char byte)
{
    bool fraction = word[0] >= AT_POINT;
    uint32_t i;

    /* word[0] is the place in the number, word[1] the sign, and word[2 + i] the state of rule i. */
    if (byte == '-') {
        if (word[0] != AT_START)
            return false;
        word[0] = AT_MINUS;
        word[1] = 1;
        return true;
    }
    if (byte == '.') {
        if ((word[0] != AT_ZERO && word[0] != AT_INT) || !machine->point)
            return false;
        /* At the point the number of integer digits is known, so comparisons of magnitude are
         * settled. */
        word[0] = AT_POINT;
        for (i = 0; i < machine->n; i++)
            if (machine->rules[i].kind == RULE_BOUND || machine->rules[i].kind == RULE_EQUAL)
                word[2 + i] = schema_compare_settle(&machine->rules[i].value, word[2 + i]);
        return true;
    }
    /* No digit may follow a leading zero. */
    if (word[0] == AT_ZERO)
        return false;
    if (word[0] <= AT_MINUS) {
        if (byte == '0')
            word[0] = AT_ZERO;
        else
            word[0] = AT_INT;
    } else if (word[0] == AT_POINT)
        word[0] = AT_FRACTION;
    for (i = 0; i < machine->n; i++)
        word[2 + i] = schema_rule_digit(&machine->rules[i], word[2 + i], byte - '0', fraction);
    return true;
}

/* Explore all reachable words; each is a state. */
static const struct dfa *schema_machine_dfa(struct compile *compile, const struct machine *machine)
{
    static const char bytes[] = "-.0123456789"; /* ascending, as edges must be */
    struct keys keys = {.c = compile};
    struct dfa_maker maker = {.c = compile};
    uint32_t word[NUMBER_RULES_MAX + 2] = {AT_START};
    uint32_t at, i, number;
    bool is_new;

    (void)dfa_keys_find(&keys, word, machine->n + 2, &is_new);
    dfa_maker_state(&maker, 0);
    for (at = 0; at < maker.states.n && compile_ok(compile); at++) {
        dfa_maker_begin(&maker, at);
        for (i = 0; bytes[i] != '\0' && compile_ok(compile); i++) {
            memcpy(word, keys.words.items + keys.items[at].at, (machine->n + 2) * sizeof *word);
            if (!schema_machine_step(machine, word, bytes[i]))
                continue;
            number = dfa_keys_find(&keys, word, machine->n + 2, &is_new);
            if (is_new)
                dfa_maker_state(&maker, schema_machine_accepts(machine, word));
            dfa_maker_edge(&maker, (uint8_t)bytes[i], (uint8_t)bytes[i], number);
        }
    }
    if (compile_ok(compile))
        return dfa_minimise(compile, dfa_maker_end(&maker));
    return NULL;
}

/* --- from atoms --------------------------------------------------------------------------- */

/* Add a rule. NULL after an error. */
static struct number_rule *schema_rule_add(struct schema *schema, struct machine *machine,
                                           enum rule_kind kind, bool negated)
{
    if (machine->n == NUMBER_RULES_MAX) {
        compile_fail(schema->c, ERR_LIMIT, "more than %d constraints on one number",
                     NUMBER_RULES_MAX);
        return NULL;
    }
    machine->rules[machine->n] = (struct number_rule){.kind = kind, .negated = negated};
    return &machine->rules[machine->n++];
}

/* Read the number of a keyword. */
static void schema_value_read(struct schema *schema, const struct json *node,
                              struct decimal *decimal)
{
    schema->c->at = node;
    if (!schema_decimal_read(decimal, node->text, node->n))
        compile_fail(schema->c, ERR_LIMIT, "a number of more than %d digits", DECIMAL_DIGITS);
}

/* Add a multipleOf: with 0.25 the divisor is 25 and the scale 2. */
static void schema_multiple_add(struct schema *schema, struct machine *machine,
                                const struct atom *atom)
{
    struct decimal decimal;
    struct number_rule *rule = schema_rule_add(schema, machine, RULE_MULTIPLE, atom->negated);
    uint64_t value = 0;
    int i;

    schema_value_read(schema, atom->node, &decimal);
    /* The digits without the point are the divisor: 0.25 is 25, with a scale of 2. */
    for (i = 0; i < decimal.n_int + decimal.n_frac && value <= MULTIPLE_MAX; i++)
        value = value * 10 + (uint64_t)(decimal.digits[i] - '0');
    if (decimal.minus || value == 0)
        compile_fail(schema->c, ERR_INVALID, "multipleOf must be above 0");
    else if (value > MULTIPLE_MAX || decimal.n_frac > 100)
        compile_fail(schema->c, ERR_LIMIT, "multipleOf has too many digits (at most %d)",
                     MULTIPLE_MAX);
    if (rule == NULL || !compile_ok(schema->c))
        return;
    /* The remainder is kept in 24 bits of a word, hence MULTIPLE_MAX. */
    rule->modulus = (uint32_t)value;
    rule->scale = (uint32_t)decimal.n_frac;
}

/* Turn an alternative's atoms into rules. */
static void schema_rules_fill(struct schema *schema, const struct alternative *alternative,
                              struct machine *machine)
{
    const struct atom *atom;
    struct number_rule *rule;
    uint32_t i;

    for (atom = alternative->atoms; atom != NULL && compile_ok(schema->c); atom = atom->next) {
        if (atom->kind == ATOM_LEAST || atom->kind == ATOM_MOST) {
            rule = schema_rule_add(schema, machine, RULE_BOUND, false);
            if (rule == NULL)
                return;
            rule->most = atom->kind == ATOM_MOST;
            rule->strict = atom->strict;
            schema_value_read(schema, atom->node, &rule->value);
        } else if (atom->kind == ATOM_MULTIPLE) {
            schema_multiple_add(schema, machine, atom);
        } else if (atom->kind == ATOM_NUMBERS && atom->negated) {
            for (i = 0; i < atom->n; i++)
                if (json_is_number(&atom->node[i])) {
                    rule = schema_rule_add(schema, machine, RULE_EQUAL, true);
                    if (rule == NULL)
                        return;
                    schema_value_read(schema, &atom->node[i], &rule->value);
                }
        }
    }
    /* Fractions alone: whole numbers were excluded, so at least one digit after the point is not
     * zero. */
    if ((alternative->types & TYPE_NUMBER) == TYPE_FRACTION)
        (void)schema_rule_add(schema, machine, RULE_FRACTION, false);
    machine->point = (alternative->types & TYPE_FRACTION) != 0;
}

/* Is a number in an atom's list? */
static bool schema_in_list(struct schema *schema, const struct atom *atom,
                           const struct decimal *decimal)
{
    struct decimal other;
    uint32_t i;

    for (i = 0; i < atom->n && compile_tick(schema->c); i++)
        if (json_is_number(&atom->node[i])) {
            schema_value_read(schema, &atom->node[i], &other);
            if (schema_decimal_equal(decimal, &other))
                return true;
        }
    return false;
}

/* A list of numbers: those that all other constraints allow, in their shortest form and, if
 * fractions are allowed, also as the schema writes them. */
static void schema_number_build_list(struct schema *schema, uint32_t from,
                                     const struct alternative *alternative, const struct atom *list,
                                     const struct dfa *others)
{
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(schema->c); i++) {
        const struct json *node = &list->node[i];
        char text[DECIMAL_DIGITS + 8];
        const struct atom *atom;
        struct decimal decimal;
        bool fits;
        size_t n;

        if (!json_is_number(node))
            continue;
        schema_value_read(schema, node, &decimal);
        n = schema_decimal_text(&decimal, text, sizeof text);
        fits = dfa_match(others, text, n) != 0;
        for (atom = alternative->atoms; atom != NULL && fits; atom = atom->next)
            if (atom->kind == ATOM_NUMBERS && !atom->negated && atom != list)
                fits = schema_in_list(schema, atom, &decimal);
        if (!fits)
            continue;
        build_word(schema->b, from, text, n);
        /* The schema's own spelling, such as 1.0, is allowed as well. */
        if ((alternative->types & TYPE_FRACTION) != 0)
            build_word(schema->b, from, node->text, node->n);
    }
}

bool schema_number_is_free(const struct alternative *alternative)
{
    const struct atom *atom;

    for (atom = alternative->atoms; atom != NULL; atom = atom->next)
        if (atom->kind <= ATOM_NUMBERS)
            return false;
    return (alternative->types & TYPE_NUMBER) == TYPE_NUMBER;
}

void schema_number_build(struct schema *schema, uint32_t from,
                         const struct alternative *alternative)
{
    static const char free_number[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?";
    struct machine *machine = compile_alloc(schema->c, sizeof *machine);
    const struct atom *list;
    const struct dfa *dfa;

    if (machine == NULL)
        return;
    /* Numbers without constraints are by far the most frequent. Their states are built once and
     * shared. */
    if (schema_number_is_free(alternative)) {
        if (schema->number == NONE)
            schema->number = dfa_build(
                schema->b, regex_whole(schema->c, free_number, sizeof free_number - 1), -1, NULL);
        build_jump(schema->b, from, schema->number);
        return;
    }
    schema_rules_fill(schema, alternative, machine);
    if (compile_ok(schema->c))
        dfa = schema_machine_dfa(schema->c, machine);
    else
        dfa = NULL;
    if (!compile_ok(schema->c))
        return;
    for (list = alternative->atoms; list != NULL; list = list->next)
        if (list->kind == ATOM_NUMBERS && !list->negated) {
            uint32_t tree = build_state(schema->b);

            schema_number_build_list(schema, tree, alternative, list, dfa);
            build_jump(schema->b, from, tree);
            return;
        }
    build_jump(schema->b, from, dfa_build(schema->b, dfa, -1, NULL));
}
