/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting: scanners by hand for the patterns of GPT-2, Llama 3, Qwen 2 and Qwen 3.5, which
 * together cover nearly every byte-level model and match every character, so that their pieces
 * are their matches; PCRE2 for the rest, with the five behaviors of Hugging Face's Split.
 *
 * The patterns (p is a character that is neither white space, letter nor number):
 *   gpt2    's|'t|'re|'ve|'m|'ll|'d| ?L+| ?N+| ?p+|\s+(?!\S)|\s+
 *   llama3  (?i:'s|...)|[^\r\n L N]?L+|N{1,3}| ?p+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2   the same with N in place of N{1,3}
 *   qwen35  the same as qwen2 with marks counted as letters, but allowed as the first character */
#include "text/pretoken.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/regex.h"
#include "text/unicode.h"

#define BMP 0x10000u

struct cut {
    size_t start;
    size_t end;
    bool is_match;
};

struct pretoken_work {
    struct regex_work *regex;
    /* One list for each step: a step runs inside the loop of the one before. */
    struct cut *cuts[PRETOKEN_STEPS_MAX];
    size_t cuts_cap[PRETOKEN_STEPS_MAX];
    struct buf prefixed[PRETOKEN_STEPS_MAX];
};

struct cutting {
    const struct pretoken *p;
    struct pretoken_work *w;
    pretoken_sink *sink;
    void *context;
};

struct pretoken_work *pretoken_work_open(void)
{
    struct pretoken_work *w = mem_zalloc(sizeof *w);

    if (w == NULL)
        return NULL;
    w->regex = regex_work_open();
    if (w->regex == NULL) {
        mem_free(w);
        return NULL;
    }
    return w;
}

void pretoken_work_close(struct pretoken_work *w)
{
    int i;

    if (w == NULL)
        return;
    for (i = 0; i < PRETOKEN_STEPS_MAX; i++) {
        mem_free(w->cuts[i]);
        buf_fini(&w->prefixed[i]);
    }
    regex_work_close(w->regex);
    mem_free(w);
}

/* --- scanners ----------------------------------------------------------------------------------*/

struct scanner {
    const uint8_t *classes;
    const char *text;
    size_t len;
    enum pretoken_kind kind;
};

/* Class of the character at `at` < len and its length. */
static inline uint8_t class_at(const struct scanner *s, size_t at, size_t *n)
{
    const unsigned char *p = (const unsigned char *)s->text + at;

    if (p[0] < 0x80) {
        *n = 1;
        return s->classes[p[0]];
    }
    if (p[0] < 0xe0) {
        *n = 2;
        return s->classes[(p[0] & 0x1fu) << 6 | (p[1] & 0x3fu)];
    }
    if (p[0] < 0xf0) {
        *n = 3;
        return s->classes[(p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu)];
    }
    *n = 4;
    return unicode_class(utf8_decode(s->text + at));
}

static inline bool is_letter(const struct scanner *s, uint8_t cls)
{
    return unicode_is_letter(cls) || (s->kind == PRETOKEN_QWEN35 && unicode_is_mark(cls));
}

static inline bool is_other(const struct scanner *s, uint8_t cls)
{
    return !is_letter(s, cls) && !unicode_is_number(cls) && (cls & UNICODE_SPACE) == 0;
}

static size_t run_of_letters(const struct scanner *s, size_t at)
{
    size_t n;

    while (at < s->len && is_letter(s, class_at(s, at, &n)))
        at += n;
    return at;
}

static size_t run_of_numbers(const struct scanner *s, size_t at, int max)
{
    size_t n;

    while (max-- > 0 && at < s->len && unicode_is_number(class_at(s, at, &n)))
        at += n;
    return at;
}

static size_t run_of_others(const struct scanner *s, size_t at)
{
    size_t n;

    while (at < s->len && is_other(s, class_at(s, at, &n)))
        at += n;
    return at;
}

static bool is_newline(char c)
{
    return c == '\n' || c == '\r';
}

/* End of an English contraction that begins at `at`; `at` when there is none. */
static size_t contraction(const struct scanner *s, size_t at, bool any_case)
{
    size_t left = s->len - at;
    unsigned char a;
    unsigned char b;

    if (left < 2 || s->text[at] != '\'')
        return at;
    a = (unsigned char)s->text[at + 1];
    b = left < 3 ? 0 : (unsigned char)s->text[at + 2];
    if (any_case && a == 0xc5 && b == 0xbf)
        return at + 3; /* the long s, whose capital is S */
    if (any_case && a >= 'A' && a <= 'Z')
        a |= 0x20;
    if (any_case && b >= 'A' && b <= 'Z')
        b |= 0x20;
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return at + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l'))
        return at + 3;
    return at;
}

/* End of the match in a run of white space. */
static size_t white_space(const struct scanner *s, size_t at, bool by_lines)
{
    size_t end = at;
    size_t last = at;
    size_t after_newline = at;
    size_t n;

    while (end < s->len && (class_at(s, end, &n) & UNICODE_SPACE) != 0) {
        last = end;
        end += n;
        if (is_newline(s->text[last]))
            after_newline = end;
    }
    if (by_lines && after_newline > at)
        return after_newline;
    if (end == s->len || last == at)
        return end;
    return last; /* the last one belongs to the word after it */
}

static size_t scan_gpt2(const struct scanner *s, size_t at)
{
    size_t end = contraction(s, at, false);
    size_t from = s->text[at] == ' ' ? at + 1 : at;
    uint8_t cls;
    size_t n;

    if (end > at)
        return end;
    if (from < s->len) {
        cls = class_at(s, from, &n);
        if (unicode_is_letter(cls))
            return run_of_letters(s, from);
        if (unicode_is_number(cls))
            return run_of_numbers(s, from, INT32_MAX);
        if (is_other(s, cls))
            return run_of_others(s, from);
    }
    return white_space(s, at, false);
}

static size_t scan_llama3(const struct scanner *s, size_t at)
{
    size_t end = contraction(s, at, true);
    size_t n;
    size_t n_next;
    uint8_t cls;

    if (end > at)
        return end;
    cls = class_at(s, at, &n);
    if (is_letter(s, cls))
        return run_of_letters(s, at);
    if (unicode_is_number(cls))
        return run_of_numbers(s, at, s->kind == PRETOKEN_LLAMA3 ? 3 : 1);
    if (!is_newline(s->text[at]) && at + n < s->len && is_letter(s, class_at(s, at + n, &n_next)))
        return run_of_letters(s, at + n);
    end = run_of_others(s, s->text[at] == ' ' ? at + 1 : at);
    if (end > at && !(s->text[at] == ' ' && end == at + 1)) {
        while (end < s->len && is_newline(s->text[end]))
            end++;
        return end;
    }
    return white_space(s, at, true);
}

/* --- steps -------------------------------------------------------------------------------------*/

static int cut_step(const struct cutting *c, int step, const char *text, size_t len);

static int cut_scanner(const struct cutting *c, int step, const char *text, size_t len)
{
    struct scanner s = {
        .classes = c->p->classes, .text = text, .len = len, .kind = c->p->steps[step].kind};
    size_t at = 0;
    int rc = ERR_OK;

    while (at < len && rc == ERR_OK) {
        size_t end = s.kind == PRETOKEN_GPT2 ? scan_gpt2(&s, at) : scan_llama3(&s, at);

        rc = cut_step(c, step + 1, text + at, end - at);
        at = end;
    }
    return rc;
}

static int cuts_add(struct pretoken_work *w, int step, size_t *n, struct cut cut)
{
    if (cut.start == cut.end)
        return ERR_OK;
    if (*n == w->cuts_cap[step]) {
        size_t cap = *n == 0 ? 64 : *n * 2;
        struct cut *grown = mem_realloc(w->cuts[step], cap * sizeof *grown);

        if (grown == NULL)
            return ERR_NO_MEMORY;
        w->cuts[step] = grown;
        w->cuts_cap[step] = cap;
    }
    w->cuts[step][(*n)++] = cut;
    return ERR_OK;
}

static int find_regex(const struct cutting *c, int step, const char *text, size_t len, size_t *n)
{
    const struct pretoken_step *st = &c->p->steps[step];
    size_t covered = 0;
    size_t from = 0;
    int rc;

    while (from <= len) {
        size_t start;
        size_t end;

        rc = regex_next(st->regex, c->w->regex, text, len, from, &start, &end);
        if (rc == ERR_NOT_FOUND)
            break;
        if (rc != ERR_OK)
            return rc;
        if (end == start) { /* an empty match cuts nothing: look on behind the next character */
            from = start + (start < len ? utf8_sequence(text + start, len - start) : 1);
            continue;
        }
        rc = cuts_add(c->w, step, n, (struct cut){.start = covered, .end = start});
        if (rc == ERR_OK)
            rc = cuts_add(c->w, step, n, (struct cut){start, end, true});
        if (rc != ERR_OK)
            return rc;
        covered = end;
        from = end;
    }
    return cuts_add(c->w, step, n, (struct cut){.start = covered, .end = len});
}

static int find_digits(const struct cutting *c, int step, const char *text, size_t len, size_t *n)
{
    struct scanner s = {.classes = c->p->classes, .text = text, .len = len};
    bool single = c->p->steps[step].kind == PRETOKEN_DIGIT;
    size_t covered = 0;
    size_t at = 0;
    size_t n_bytes;

    while (at < len) {
        size_t end;
        int rc;

        if (!unicode_is_number(class_at(&s, at, &n_bytes))) {
            at += n_bytes;
            continue;
        }
        end = run_of_numbers(&s, at, single ? 1 : INT32_MAX);
        rc = cuts_add(c->w, step, n, (struct cut){.start = covered, .end = at});
        if (rc == ERR_OK)
            rc = cuts_add(c->w, step, n, (struct cut){at, end, true});
        if (rc != ERR_OK)
            return rc;
        covered = at = end;
    }
    return cuts_add(c->w, step, n, (struct cut){.start = covered, .end = len});
}

/* Join the cover of matches and gaps as the behavior says, in place; the number that is left. */
static size_t join_cuts(const struct pretoken_step *st, struct cut *cuts, size_t n)
{
    size_t kept = 0;
    size_t i;

    for (i = 0; i < n; i++) {
        struct cut cut = cuts[i];
        bool joins = false;

        if (kept > 0 && st->behavior == PRETOKEN_CONTIGUOUS)
            joins = cuts[kept - 1].is_match == cut.is_match;
        else if (kept > 0 && st->behavior == PRETOKEN_WITH_PREVIOUS)
            joins = cut.is_match && !cuts[kept - 1].is_match;
        else if (kept > 0 && st->behavior == PRETOKEN_WITH_NEXT)
            joins = !cut.is_match && cuts[kept - 1].is_match;
        if (st->behavior == PRETOKEN_REMOVED && cut.is_match)
            continue;
        if (joins) {
            cuts[kept - 1].end = cut.end;
            cuts[kept - 1].is_match = cut.is_match || st->behavior == PRETOKEN_WITH_PREVIOUS;
            continue;
        }
        cuts[kept++] = cut;
    }
    return kept;
}

static int cut_pieces(const struct cutting *c, int step, const char *text, size_t len)
{
    const struct pretoken_step *st = &c->p->steps[step];
    size_t n = 0;
    size_t i;
    int rc;

    if (st->kind == PRETOKEN_REGEX)
        rc = find_regex(c, step, text, len, &n);
    else
        rc = find_digits(c, step, text, len, &n);
    if (rc != ERR_OK)
        return rc;
    for (i = 0; st->invert && i < n; i++)
        c->w->cuts[step][i].is_match = !c->w->cuts[step][i].is_match;
    n = join_cuts(st, c->w->cuts[step], n);
    for (i = 0; i < n && rc == ERR_OK; i++) {
        const struct cut *cut = &c->w->cuts[step][i];

        rc = cut_step(c, step + 1, text + cut->start, cut->end - cut->start);
    }
    return rc;
}

static int cut_prefixed(const struct cutting *c, int step, const char *text, size_t len)
{
    struct buf *b = &c->w->prefixed[step];

    if (text[0] == ' ')
        return cut_step(c, step + 1, text, len);
    buf_clear(b);
    buf_add_byte(b, ' ');
    buf_add(b, text, len);
    if (b->failed)
        return ERR_NO_MEMORY;
    return cut_step(c, step + 1, b->bytes, b->len);
}

/* As deep as the chain is long. */
static int cut_step(const struct cutting *c, int step, const char *text, size_t len)
{
    if (len == 0)
        return ERR_OK;
    if (step == c->p->n_steps)
        return c->sink(c->context, text, len);
    switch (c->p->steps[step].kind) {
    case PRETOKEN_GPT2:
    case PRETOKEN_LLAMA3:
    case PRETOKEN_QWEN2:
    case PRETOKEN_QWEN35: return cut_scanner(c, step, text, len);
    case PRETOKEN_REGEX:
    case PRETOKEN_DIGIT:
    case PRETOKEN_DIGITS: return cut_pieces(c, step, text, len);
    case PRETOKEN_PREFIX: return cut_prefixed(c, step, text, len);
    }
    return ERR_INTERNAL;
}

int pretoken_cut(const struct pretoken *p, struct pretoken_work *w, const char *text, size_t len,
                 pretoken_sink *sink, void *context)
{
    struct cutting c = {.p = p, .w = w, .sink = sink, .context = context};

    return cut_step(&c, 0, text, len);
}

int pretoken_init_gpt2(struct pretoken *p, bool add_prefix_space)
{
    *p = (struct pretoken){.byte_level = true};
    p->classes = mem_alloc(BMP);
    if (p->classes == NULL)
        return ERR_NO_MEMORY;
    unicode_fill(p->classes, BMP);
    if (add_prefix_space)
        p->steps[p->n_steps++].kind = PRETOKEN_PREFIX;
    p->steps[p->n_steps++].kind = PRETOKEN_GPT2;
    return ERR_OK;
}

void pretoken_fini(struct pretoken *p)
{
    int i;

    for (i = 0; i < p->n_steps; i++)
        regex_close(p->steps[i].regex);
    mem_free(p->classes);
    *p = (struct pretoken){0};
}
