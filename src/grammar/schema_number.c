/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers under constraints, as digits are read: each constraint is a small machine over the
 * digits of the magnitude, all run side by side, and the states that occur are explored.
 *
 * Values decide, not spellings: 1.50 is 1.5. So constrained numbers have no exponent, and whole
 * ones (when fractions are not allowed at all) no '.'. */
#include <stdlib.h>
#include <string.h>

#include "grammar/regular.h"
#include "grammar/schema_parts.h"

#define RULES_MAX    24
#define MULTIPLE_MAX 100000 /* states of one multipleOf */

enum rule_kind { RULE_BOUND, RULE_EQUAL, RULE_MULTIPLE, RULE_FRACTION };

struct rule {
    enum rule_kind kind;
    bool negated;
    bool strict;
    bool most;            /* BOUND: number <= value; else >= */
    struct decimal value; /* BOUND, EQUAL */
    uint32_t modulus;     /* MULTIPLE: of 10^-scale */
    uint32_t scale;
};

enum phase { AT_START, AT_MINUS, AT_ZERO, AT_INT, AT_POINT, AT_FRACTION };

struct machine {
    struct rule rules[RULES_MAX];
    uint32_t n;
    bool point; /* a '.' may come */
};

/* --- decimals ----------------------------------------------------------------------------- */

static bool is_digit(char ch)
{
    return ch >= '0' && ch <= '9';
}

/* Bring digits[0 .. n) with `point` digits before the point into the form of a decimal. */
static bool decimal_place(struct decimal *d, const char *digits, int n, long point)
{
    long i;
    int at = 0;

    while (n > 0 && digits[n - 1] == '0' && n > point)
        n--;
    while (n > 0 && digits[0] == '0')
        digits++, n--, point--;
    while (n > 0 && digits[n - 1] == '0' && n > point)
        n--;
    d->n_int = d->n_frac = 0;
    if (n == 0)
        return true;
    if (point > DECIMAL_DIGITS - 1 || point < -DECIMAL_DIGITS || n > DECIMAL_DIGITS)
        return false;
    if ((point > n ? point : n) + (point < 0 ? -point : 0) > DECIMAL_DIGITS)
        return false;
    for (i = 0; i < point; i++)
        d->digits[at++] = i < n ? digits[i] : '0';
    d->n_int = at;
    for (i = point; i < n; i++)
        d->digits[at++] = i < 0 ? '0' : digits[i];
    d->n_frac = at - d->n_int;
    while (d->n_frac > 0 && d->digits[d->n_int + d->n_frac - 1] == '0')
        d->n_frac--;
    return true;
}

bool decimal_read(struct decimal *d, const char *text, size_t len)
{
    char digits[DECIMAL_DIGITS + 1];
    size_t at = len > 0 && text[0] == '-';
    int n = 0;
    long point = -1;
    long exponent = 0;
    bool small;

    memset(d, 0, sizeof *d);
    for (; at < len && (is_digit(text[at]) || text[at] == '.'); at++) {
        if (text[at] == '.')
            point = n;
        else if (n == DECIMAL_DIGITS)
            return false;
        else
            digits[n++] = text[at];
    }
    if (point < 0)
        point = n;
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        small = at + 1 < len && text[at + 1] == '-';
        at += small || (at + 1 < len && text[at + 1] == '+') ? 2 : 1;
        for (; at < len && is_digit(text[at]); at++)
            exponent = exponent > 100000 ? exponent : exponent * 10 + (text[at] - '0');
        point += small ? -exponent : exponent;
    }
    if (!decimal_place(d, digits, n, point))
        return false;
    d->minus = text[0] == '-' && d->n_int + d->n_frac > 0;
    return true;
}

bool decimal_equal(const struct decimal *a, const struct decimal *b)
{
    return a->minus == b->minus && a->n_int == b->n_int && a->n_frac == b->n_frac &&
           memcmp(a->digits, b->digits, (size_t)(a->n_int + a->n_frac)) == 0;
}

size_t decimal_text(const struct decimal *d, char *out, size_t cap)
{
    size_t n = 0;

    if (cap < (size_t)(d->n_int + d->n_frac) + 4)
        return 0;
    if (d->minus)
        out[n++] = '-';
    if (d->n_int == 0)
        out[n++] = '0';
    memcpy(out + n, d->digits, (size_t)d->n_int);
    n += (size_t)d->n_int;
    if (d->n_frac > 0) {
        out[n++] = '.';
        memcpy(out + n, d->digits + d->n_int, (size_t)d->n_frac);
        n += (size_t)d->n_frac;
    }
    return n;
}

/* --- comparing while digits are read -------------------------------------------------------------
 * A word holds order (0 equal so far, 1 less, 2 greater) and how many digits were read, the latter
 * no further than it matters. Leading zeros do not occur but in "0", which has no digits. */

#define ORDER(word) ((word)&3u)
#define READ(word)  ((word) >> 2)

static uint32_t compare_int(const struct decimal *v, uint32_t word, int digit)
{
    uint32_t n = READ(word);
    uint32_t order = ORDER(word);

    if (n == 0 && digit == 0)
        return word;
    if (n >= (uint32_t)v->n_int)
        return 2 | ((uint32_t)v->n_int + 1) << 2;
    if (order == 0 && digit != v->digits[n] - '0')
        order = digit < v->digits[n] - '0' ? 1 : 2;
    return order | (n + 1) << 2;
}

/* At the end of the whole digits: shorter is less. The count begins anew for the fraction. */
static uint32_t compare_settle(const struct decimal *v, uint32_t word)
{
    if (READ(word) < (uint32_t)v->n_int)
        return 1;
    if (READ(word) > (uint32_t)v->n_int)
        return 2;
    return ORDER(word);
}

static uint32_t compare_frac(const struct decimal *v, uint32_t word, int digit)
{
    uint32_t n = READ(word);
    int want = n < (uint32_t)v->n_frac ? v->digits[v->n_int + (int)n] - '0' : 0;

    if (ORDER(word) != 0)
        return word;
    if (digit != want)
        return digit < want ? 1 : 2;
    return n < (uint32_t)v->n_frac ? (n + 1) << 2 : word;
}

/* -1, 0, 1: the number read against the value. */
static int compare_end(const struct decimal *v, uint32_t word, bool minus, bool settled)
{
    int order;

    if (!settled)
        word = compare_settle(v, word);
    order = ORDER(word) == 1 ? -1 : ORDER(word) == 2 ? 1 : 0;
    if (order == 0 && READ(word) < (uint32_t)v->n_frac)
        order = -1; /* digits of the value are left, and the last of them is not 0 */
    if (minus && v->minus)
        return -order;
    if (minus || v->minus) { /* only two zeros are equal */
        bool zeros = order == 0 && v->n_int + v->n_frac == 0;

        return zeros ? 0 : minus ? -1 : 1;
    }
    return order;
}

/* --- multiples: remainder, digits of the fraction read, and whether it is lost ------------ */

#define LOST 0xffffffffu

static uint32_t multiple_digit(const struct rule *r, uint32_t word, int digit, bool fraction)
{
    uint32_t rest = word & 0xffffff;
    uint32_t read = word >> 24;

    if (word == LOST)
        return LOST;
    if (fraction && read == r->scale)
        return digit == 0 ? word : LOST;
    rest = (uint32_t)(((uint64_t)rest * 10 + (uint32_t)digit) % r->modulus);
    return rest | (read + fraction) << 24;
}

static bool multiple_end(const struct rule *r, uint32_t word)
{
    uint64_t rest = word & 0xffffff;
    uint32_t read;

    if (word == LOST)
        return false;
    for (read = word >> 24; read < r->scale; read++)
        rest = rest * 10 % r->modulus;
    return rest == 0;
}

/* --- all rules together ------------------------------------------------------------------- */

static uint32_t rule_digit(const struct rule *r, uint32_t word, int digit, bool fraction)
{
    switch (r->kind) {
    case RULE_BOUND:
    case RULE_EQUAL:
        return fraction ? compare_frac(&r->value, word, digit)
                        : compare_int(&r->value, word, digit);
    case RULE_MULTIPLE: return multiple_digit(r, word, digit, fraction);
    case RULE_FRACTION: return word | (fraction && digit != 0);
    }
    return 0;
}

static bool rule_holds(const struct rule *r, uint32_t word, bool minus, bool fraction)
{
    bool holds = false;
    int order;

    switch (r->kind) {
    case RULE_BOUND:
        order = compare_end(&r->value, word, minus, fraction);
        holds = r->most ? order < 0 || (order == 0 && !r->strict)
                        : order > 0 || (order == 0 && !r->strict);
        break;
    case RULE_EQUAL: holds = compare_end(&r->value, word, minus, fraction) == 0; break;
    case RULE_MULTIPLE: holds = multiple_end(r, word); break;
    case RULE_FRACTION: holds = word != 0; break;
    }
    return holds != r->negated;
}

/* word[0]: phase, word[1]: minus, then one of each rule. */
static bool machine_accepts(const struct machine *m, const uint32_t *word)
{
    bool fraction = word[0] == AT_FRACTION;
    uint32_t i;

    if (word[0] != AT_ZERO && word[0] != AT_INT && word[0] != AT_FRACTION)
        return false;
    for (i = 0; i < m->n; i++)
        if (!rule_holds(&m->rules[i], word[2 + i], word[1] != 0, fraction))
            return false;
    return true;
}

/* The word after a byte; false: it may not come. */
static bool machine_step(const struct machine *m, uint32_t *word, char byte)
{
    bool fraction = word[0] >= AT_POINT;
    uint32_t i;

    if (byte == '-') {
        if (word[0] != AT_START)
            return false;
        word[0] = AT_MINUS;
        word[1] = 1;
        return true;
    }
    if (byte == '.') {
        if ((word[0] != AT_ZERO && word[0] != AT_INT) || !m->point)
            return false;
        word[0] = AT_POINT;
        for (i = 0; i < m->n; i++)
            if (m->rules[i].kind == RULE_BOUND || m->rules[i].kind == RULE_EQUAL)
                word[2 + i] = compare_settle(&m->rules[i].value, word[2 + i]);
        return true;
    }
    if (word[0] == AT_ZERO)
        return false;
    if (word[0] <= AT_MINUS)
        word[0] = byte == '0' ? AT_ZERO : AT_INT;
    else if (word[0] == AT_POINT)
        word[0] = AT_FRACTION;
    for (i = 0; i < m->n; i++)
        word[2 + i] = rule_digit(&m->rules[i], word[2 + i], byte - '0', fraction);
    return true;
}

static const struct dfa *machine_dfa(struct compile *c, const struct machine *m)
{
    static const char bytes[] = "-.0123456789"; /* in the order of bytes */
    struct keys keys = {.c = c};
    struct dfa_maker maker = {.c = c};
    uint32_t word[RULES_MAX + 2] = {AT_START};
    uint32_t at, i, number;
    bool is_new;

    (void)keys_find(&keys, word, m->n + 2, &is_new);
    dfa_maker_state(&maker, 0);
    for (at = 0; at < maker.states.n && compile_ok(c); at++) {
        dfa_maker_begin(&maker, at);
        for (i = 0; bytes[i] != '\0' && compile_ok(c); i++) {
            memcpy(word, keys.words.items + keys.items[at].at, (m->n + 2) * sizeof *word);
            if (!machine_step(m, word, bytes[i]))
                continue;
            number = keys_find(&keys, word, m->n + 2, &is_new);
            if (is_new)
                dfa_maker_state(&maker, machine_accepts(m, word));
            dfa_maker_edge(&maker, (uint8_t)bytes[i], (uint8_t)bytes[i], number);
        }
    }
    return compile_ok(c) ? dfa_minimise(c, dfa_maker_end(&maker)) : NULL;
}

/* --- from atoms --------------------------------------------------------------------------- */

static struct rule *rule_add(struct schema *s, struct machine *m, enum rule_kind kind, bool negated)
{
    if (m->n == RULES_MAX) {
        compile_fail(s->c, ERR_LIMIT, "more than %d constraints on one number", RULES_MAX);
        return NULL;
    }
    m->rules[m->n] = (struct rule){.kind = kind, .negated = negated};
    return &m->rules[m->n++];
}

static void value_read(struct schema *s, const struct json *node, struct decimal *d)
{
    s->c->at = node;
    if (!decimal_read(d, node->text, node->n))
        compile_fail(s->c, ERR_LIMIT, "a number of more than %d digits", DECIMAL_DIGITS);
}

static void multiple_add(struct schema *s, struct machine *m, const struct atom *atom)
{
    struct decimal d;
    struct rule *r = rule_add(s, m, RULE_MULTIPLE, atom->negated);
    uint64_t value = 0;
    int i;

    value_read(s, atom->node, &d);
    for (i = 0; i < d.n_int + d.n_frac && value <= MULTIPLE_MAX; i++)
        value = value * 10 + (uint64_t)(d.digits[i] - '0');
    if (d.minus || value == 0)
        compile_fail(s->c, ERR_INVALID, "multipleOf must be above 0");
    else if (value > MULTIPLE_MAX || d.n_frac > 100)
        compile_fail(s->c, ERR_LIMIT, "multipleOf has too many digits (at most %d)", MULTIPLE_MAX);
    if (r == NULL || !compile_ok(s->c))
        return;
    r->modulus = (uint32_t)value;
    r->scale = (uint32_t)d.n_frac;
}

static void rules_fill(struct schema *s, const struct alternative *a, struct machine *m)
{
    const struct atom *t;
    struct rule *r;
    uint32_t i;

    for (t = a->atoms; t != NULL && compile_ok(s->c); t = t->next) {
        if (t->kind == ATOM_LEAST || t->kind == ATOM_MOST) {
            r = rule_add(s, m, RULE_BOUND, false);
            if (r == NULL)
                return;
            r->most = t->kind == ATOM_MOST;
            r->strict = t->strict;
            value_read(s, t->node, &r->value);
        } else if (t->kind == ATOM_MULTIPLE) {
            multiple_add(s, m, t);
        } else if (t->kind == ATOM_NUMBERS && t->negated) {
            for (i = 0; i < t->n; i++)
                if (json_is_number(&t->node[i])) {
                    r = rule_add(s, m, RULE_EQUAL, true);
                    if (r == NULL)
                        return;
                    value_read(s, &t->node[i], &r->value);
                }
        }
    }
    if ((a->types & TYPE_NUMBER) == TYPE_FRACTION)
        (void)rule_add(s, m, RULE_FRACTION, false);
    m->point = (a->types & TYPE_FRACTION) != 0;
}

static bool in_list(struct schema *s, const struct atom *t, const struct decimal *d)
{
    struct decimal other;
    uint32_t i;

    for (i = 0; i < t->n && compile_tick(s->c); i++)
        if (json_is_number(&t->node[i])) {
            value_read(s, &t->node[i], &other);
            if (decimal_equal(d, &other))
                return true;
        }
    return false;
}

/* One of a list: those values of it that all other constraints allow, each as it was written (or
 * whole when only whole ones are allowed) and in its shortest form. */
static void list_build(struct schema *s, uint32_t from, const struct alternative *a,
                       const struct atom *list, const struct dfa *others)
{
    uint32_t i;

    for (i = 0; i < list->n && compile_tick(s->c); i++) {
        const struct json *node = &list->node[i];
        char text[DECIMAL_DIGITS + 8];
        const struct atom *t;
        struct decimal d;
        bool fits;
        size_t n;

        if (!json_is_number(node))
            continue;
        value_read(s, node, &d);
        n = decimal_text(&d, text, sizeof text);
        fits = dfa_match(others, text, n) != 0;
        for (t = a->atoms; t != NULL && fits; t = t->next)
            if (t->kind == ATOM_NUMBERS && !t->negated && t != list)
                fits = in_list(s, t, &d);
        if (!fits)
            continue;
        build_word(s->b, from, text, n);
        if ((a->types & TYPE_FRACTION) != 0)
            build_word(s->b, from, node->text, node->n);
    }
}

bool number_is_free(const struct alternative *a)
{
    const struct atom *t;

    for (t = a->atoms; t != NULL; t = t->next)
        if (t->kind <= ATOM_NUMBERS)
            return false;
    return (a->types & TYPE_NUMBER) == TYPE_NUMBER;
}

void number_build(struct schema *s, uint32_t from, const struct alternative *a)
{
    static const char free_number[] = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?";
    struct machine *m = compile_alloc(s->c, sizeof *m);
    const struct atom *list;
    const struct dfa *d;

    if (m == NULL)
        return;
    if (number_is_free(a)) {
        if (s->number == NONE)
            s->number =
                dfa_build(s->b, regex_whole(s->c, free_number, sizeof free_number - 1), -1, NULL);
        build_jump(s->b, from, s->number);
        return;
    }
    rules_fill(s, a, m);
    d = compile_ok(s->c) ? machine_dfa(s->c, m) : NULL;
    if (!compile_ok(s->c))
        return;
    for (list = a->atoms; list != NULL; list = list->next)
        if (list->kind == ATOM_NUMBERS && !list->negated) {
            uint32_t tree = build_state(s->b);

            list_build(s, tree, a, list, d);
            build_jump(s->b, from, tree);
            return;
        }
    build_jump(s->b, from, dfa_build(s->b, d, -1, NULL));
}
