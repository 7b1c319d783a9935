/* SPDX-License-Identifier: Apache-2.0
 *
 * Normalization form C (Unicode annex 15): decompose each character, sort the combining marks, then
 * compose pairs. A run of characters is normalized at a time, from one that NFC may change to the
 * next that it cannot, so that work and memory stay small for every length of text. Hangul
 * syllables are computed, as the standard describes; all else is looked up in nfc.inc. */
#include "base/mem.h"
#include "base/must.h"
#include "base/utf8.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

#define NFC_COUNT(array) (sizeof(array) / sizeof(array)[0])

/* Constants of the standard's arithmetic for Hangul: a syllable is a leading consonant (L), a vowel
 * (V) and possibly a trailing consonant (T), and all combinations are numbered in order. */
#define HANGUL_S       0xac00
#define HANGUL_L       0x1100
#define HANGUL_V       0x1161
#define HANGUL_T       0x11a7
#define HANGUL_L_COUNT 19
#define HANGUL_V_COUNT 21
#define HANGUL_T_COUNT 28
#define HANGUL_N_COUNT (HANGUL_V_COUNT * HANGUL_T_COUNT)
#define HANGUL_S_COUNT (HANGUL_L_COUNT * HANGUL_N_COUNT)

/* Rows of the tables in nfc.inc, each sorted by its first members. */
struct unicode_ccc {
    uint32_t c;
    uint8_t ccc; /* canonical combining class; 0: a starter, which begins a new character */
};

struct unicode_decompose {
    uint32_t c;
    uint16_t from; /* its full decomposition is unicode_parts[from .. from + n) */
    uint16_t n;
};

struct unicode_compose {
    uint32_t first;
    uint32_t second;
    uint32_t composed;
};

#include "text/nfc.inc"

/* A decomposed character and its position: marks of the same class must keep their order, and
 * qsort() alone is not stable. */
struct nfc_char {
    uint32_t c;
    uint32_t order;
    uint8_t ccc;
};

/* The run of characters that is being normalized. */
struct nfc {
    struct nfc_char *chars;
    size_t n;
    size_t cap;
    bool failed;
};

/* bsearch() and its three comparisons, one per table. */
static int nfc_compare_ccc(const void *key, const void *entry)
{
    uint32_t c = *(const uint32_t *)key;
    uint32_t e = ((const struct unicode_ccc *)entry)->c;

    if (c < e)
        return -1;
    return c > e;
}

static int nfc_compare_decomposed(const void *key, const void *entry)
{
    uint32_t c = *(const uint32_t *)key;
    uint32_t e = ((const struct unicode_decompose *)entry)->c;

    if (c < e)
        return -1;
    return c > e;
}

/* The order of the table of compositions: by first character, then by second. */
static int nfc_compare_composed(const void *key, const void *entry)
{
    const struct unicode_compose *a = key;
    const struct unicode_compose *b = entry;

    if (a->first != b->first) {
        if (a->first < b->first)
            return -1;
        return 1;
    }
    if (a->second < b->second)
        return -1;
    return a->second > b->second;
}

/* The combining class of a character. No character below U+0300 is a mark. */
static uint8_t nfc_ccc_of(uint32_t c)
{
    const struct unicode_ccc *found;

    if (c < 0x300)
        return 0;
    found =
        bsearch(&c, unicode_ccc, NFC_COUNT(unicode_ccc), sizeof unicode_ccc[0], nfc_compare_ccc);
    if (found == NULL)
        return 0;
    return found->ccc;
}

/* Append a character to the run. A failure is recorded; the run is then not written. */
static void nfc_add(struct nfc *nfc, uint32_t c)
{
    if (nfc->n == nfc->cap) {
        size_t cap = nfc->cap == 0 ? 64 : nfc->cap * 2;
        struct nfc_char *grown = mem_realloc(nfc->chars, cap * sizeof *grown);

        if (grown == NULL) {
            nfc->failed = true;
            return;
        }
        nfc->chars = grown;
        nfc->cap = cap;
    }
    nfc->chars[nfc->n] = (struct nfc_char){.c = c, .order = (uint32_t)nfc->n, .ccc = nfc_ccc_of(c)};
    nfc->n++;
}

/* Append the full canonical decomposition of one character; most characters are their own. */
static void nfc_decompose(struct nfc *nfc, uint32_t c)
{
    const struct unicode_decompose *found;
    uint16_t i;

    /* Nothing below U+00C0 decomposes, which covers most text. */
    if (c < 0xc0) {
        nfc_add(nfc, c);
        return;
    }
    if (c >= HANGUL_S && c < HANGUL_S + HANGUL_S_COUNT) {
        uint32_t s = c - HANGUL_S;

        nfc_add(nfc, HANGUL_L + s / HANGUL_N_COUNT);
        nfc_add(nfc, HANGUL_V + s % HANGUL_N_COUNT / HANGUL_T_COUNT);
        if (s % HANGUL_T_COUNT != 0)
            nfc_add(nfc, HANGUL_T + s % HANGUL_T_COUNT);
        return;
    }
    found = bsearch(&c, unicode_decompose, NFC_COUNT(unicode_decompose),
                    sizeof unicode_decompose[0], nfc_compare_decomposed);
    if (found == NULL) {
        nfc_add(nfc, c);
        return;
    }
    /* The table holds full decompositions, so the parts are not decomposed again. */
    for (i = 0; i < found->n; i++)
        nfc_add(nfc, unicode_parts[found->from + i]);
}

/* Sort marks by their class. `order`, the index before sorting, makes qsort() stable: marks of the
 * same class must keep their order, because it is visible. */
static int nfc_compare_order(const void *a, const void *b)
{
    const struct nfc_char *x = a;
    const struct nfc_char *y = b;

    if (x->ccc != y->ccc) {
        if (x->ccc < y->ccc)
            return -1;
        return 1;
    }
    if (x->order < y->order)
        return -1;
    return x->order > y->order;
}

/* Sort each run of marks by class. Marks of different classes attach to different places of the
 * letter, so their order in the text has no meaning. */
static void nfc_order(struct nfc *nfc)
{
    size_t i = 0;

    while (i < nfc->n) {
        size_t end = i + 1;

        /* A character of class 0 is a letter: no mark may move past it. */
        if (nfc->chars[i].ccc == 0) {
            i++;
            continue;
        }
        while (end < nfc->n && nfc->chars[end].ccc != 0)
            end++;
        qsort(nfc->chars + i, end - i, sizeof nfc->chars[0], nfc_compare_order);
        i = end;
    }
}

/* The character that a and b compose to; 0 when there is none. */
static uint32_t nfc_find_composed(uint32_t a, uint32_t b)
{
    struct unicode_compose key = {.first = a, .second = b};
    const struct unicode_compose *found;

    /* Hangul syllables are not in the table, because their numbers follow from those of their
     * parts: L + V, then LV + T. */
    if (a >= HANGUL_L && a < HANGUL_L + HANGUL_L_COUNT && b >= HANGUL_V &&
        b < HANGUL_V + HANGUL_V_COUNT)
        return HANGUL_S + ((a - HANGUL_L) * HANGUL_V_COUNT + (b - HANGUL_V)) * HANGUL_T_COUNT;
    if (a >= HANGUL_S && a < HANGUL_S + HANGUL_S_COUNT && (a - HANGUL_S) % HANGUL_T_COUNT == 0 &&
        b > HANGUL_T && b < HANGUL_T + HANGUL_T_COUNT)
        return a + (b - HANGUL_T);
    found = bsearch(&key, unicode_compose, NFC_COUNT(unicode_compose), sizeof unicode_compose[0],
                    nfc_compare_composed);
    if (found == NULL)
        return 0;
    return found->composed;
}

/* Replace a starter and a mark that compose by their composition. A mark is blocked, and stays,
 * when a character of its own or a higher class lies between it and the starter. chars[0 .. kept)
 * is the result so far. */
static void nfc_compose(struct nfc *nfc)
{
    size_t kept = 0;
    size_t starter = SIZE_MAX; /* index of the last starter in the result */
    size_t i;

    for (i = 0; i < nfc->n; i++) {
        struct nfc_char x = nfc->chars[i];
        bool blocked = starter == SIZE_MAX;

        /* A mark composes when only marks of lower classes lie between it and the starter. */
        if (!blocked && kept > starter + 1)
            blocked = nfc->chars[kept - 1].ccc == 0 || nfc->chars[kept - 1].ccc >= x.ccc;
        if (!blocked) {
            uint32_t c = nfc_find_composed(nfc->chars[starter].c, x.c);

            if (c != 0) {
                nfc->chars[starter].c = c;
                continue;
            }
        }
        if (x.ccc == 0)
            starter = kept;
        nfc->chars[kept++] = x;
    }
    nfc->n = kept;
}

/* Finish a run: order, compose and append it. */
static void nfc_flush(struct nfc *nfc, struct buf *out)
{
    size_t i;

    nfc_order(nfc);
    nfc_compose(nfc);
    for (i = 0; i < nfc->n; i++) {
        char utf8[4];

        buf_add(out, utf8, utf8_encode(nfc->chars[i].c, utf8));
    }
    nfc->n = 0;
}

/* Text that NFC cannot change is copied. Where a character may change, the run begins one character
 * earlier, because that one may take the mark, and ends before the next character that is certain
 * to stay: composition never reaches across it. */
void unicode_nfc(const char *text, size_t len, struct buf *out)
{
    struct nfc nfc = {0};
    size_t i = 0;

    must(text != NULL || len == 0);
    must(out != NULL);
    while (i < len) {
        size_t check = unicode_next_check(text, len, i);
        size_t from = check;

        if (check < len && from > i)
            do
                from--;
            while (from > i && ((unsigned char)text[from] & 0xc0) == 0x80);
        buf_add(out, text + i, from - i);
        /* The run ends before a character that NFC cannot change, but has at least the one that was
         * found. */
        for (i = from; i < len; i += utf8_sequence(text + i, len - i)) {
            uint32_t c = utf8_decode(text + i);

            if (i > check && (c < 0x80 || (unicode_class(c) & UNICODE_CHECK) == 0))
                break;
            nfc_decompose(&nfc, c);
        }
        nfc_flush(&nfc, out);
    }
    if (nfc.failed)
        out->failed = true;
    mem_free(nfc.chars);
}
