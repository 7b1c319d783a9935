/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that are whole numbers: AWQ, GPTQ, and compressed-tensors' packed integers and int8; and
 * plain ones that are rounded to such.
 *
 *   weight = (element - zero) * scale
 *
 * Elements of b bits are packed into little-endian 32-bit words, one after another from the lowest
 * bit on; an element of 3 bits may lie in two words. AWQ and GPTQ store the transpose of a matrix:
 * their words run along the outputs (AWQ) or along the inputs of one output (GPTQ), so a row of the
 * matrix needs the whole tensor. Bits and groups follow from the shapes of the tensors, which is
 * how modules with settings of their own are served.
 *
 * An element and its zero have at most 8 bits, so their difference is exact and each weight is
 * rounded once. Sources: AutoAWQ's and GPTQModel's packing, compressed-tensors' pack_to_int32. */
#include <math.h>
#include <string.h>

#include "model/quant_parts.h"

/* Tensors beside the data, in the order of the rows in quant.c. */
enum { SCALES, ZEROS, ORDER = QUANT_ORDER };

uint32_t quant_word(const uint8_t *bytes, size_t i)
{
    bytes += 4 * i;
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
           (uint32_t)bytes[3] << 24;
}

/* Element i of a run of elements of `bits` bits, whose words are `stride` words apart. */
static uint32_t packed_element(const uint8_t *bytes, size_t i, int bits, size_t stride)
{
    size_t at = i * (size_t)bits, word = at / 32;
    unsigned low = (unsigned)(at % 32);
    uint32_t value = quant_word(bytes, word * stride) >> low;

    if (low + (unsigned)bits > 32) /* the rest is in the next word */
        value |= quant_word(bytes, (word + 1) * stride) << (32 - low);
    return value & ((1U << bits) - 1);
}

static int64_t packed_words(int64_t n, int bits)
{
    return (n * bits + 31) / 32;
}

/* --- shapes --------------------------------------------------------------------------------- */

int quant_expect(const struct quant_search *s, const struct tensor *t, const char *dtype,
                 int64_t rows, int64_t cols)
{
    if (dtype != NULL && strcmp(t->dtype, dtype) != 0)
        return quant_fail(s, ERR_UNSUPPORTED, t, "has type %.20s; %s is read", t->dtype, dtype);
    if (t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == cols)
        return ERR_OK;
    return quant_fail(
        s, ERR_INVALID, t, "has %d dimensions, the first %lld; expected are %lld x %lld", t->n_dims,
        t->n_dims > 0 ? (long long)t->dims[0] : 0LL, (long long)rows, (long long)cols);
}

/* Is there a tensor that says which group each input is of? quant_check_order() comes later. */
static bool packed_says_order(const struct quant_part *p)
{
    const struct tensor *order = p->beside[ORDER];

    return order != NULL && order->bytes >= 4 && quant_word(order->data, 0) != UINT32_MAX;
}

/* Are n_groups groups of equal length not those of the file? With a size that the config names, the
 * last one may be shorter. */
static bool packed_is_ragged(const struct quant_search *s, int64_t n_groups)
{
    for (int i = 0; s->config != NULL && i < s->config->n_groups; i++) {
        int group = s->config->groups[i];

        if (s->cols > group && s->cols % group != 0 && n_groups == s->cols / group + 1)
            return true;
    }
    return s->cols % n_groups != 0;
}

int quant_expect_scales(const struct quant_search *s, struct quant_part *p, const struct tensor *t,
                        int64_t rows, int64_t n_groups)
{
    int64_t n = 1;

    if (!quant_is_number(t))
        return quant_fail(s, ERR_UNSUPPORTED, t,
                          "has type %.20s; F32, BF16, F16 and F8_E8M0 are read", t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        n *= t->dims[i]; /* its bytes are in the file, so this does not overflow */
    if (n_groups < 1 || n_groups > s->cols || n != rows * n_groups)
        return quant_fail(s, ERR_INVALID, t, "has %lld numbers, where %lld x %lld are expected",
                          (long long)n, (long long)rows, (long long)n_groups);
    if (packed_is_ragged(s, n_groups) && !packed_says_order(p))
        return quant_fail(s, ERR_UNSUPPORTED, t,
                          "has %lld groups for %d inputs, which are not of equal length",
                          (long long)n_groups, s->cols);
    p->n_groups = (int)n_groups;
    p->group = s->cols / (int)n_groups;
    return ERR_OK;
}

int quant_check_order(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *t = p->beside[ORDER];

    if (t == NULL)
        return ERR_OK;
    if (strcmp(t->dtype, "I32") != 0 || t->n_dims != 1 || t->dims[0] != s->cols)
        return quant_fail(s, ERR_INVALID, t, "must be %d numbers of I32", s->cols);
    if (quant_word(t->data, 0) == UINT32_MAX) {
        p->beside[ORDER] = NULL;
        return ERR_OK;
    }
    for (int i = 0; i < s->cols; i++) {
        if (quant_word(t->data, (size_t)i) >= (uint32_t)p->n_groups)
            return quant_fail(s, ERR_CORRUPT, t, "names group %d, and there are %d",
                              (int)quant_word(t->data, (size_t)i), p->n_groups);
    }
    return ERR_OK;
}

int quant_group(const struct quant_part *p, int col)
{
    if (p->beside[ORDER] != NULL)
        return (int)quant_word(p->beside[ORDER]->data, (size_t)col);
    return col / p->group;
}

/* --- AWQ ------------------------------------------------------------------------------------- */

/* Of the eight outputs of a word, output i is at this place. */
static const int awq_places[8] = {0, 4, 1, 5, 2, 6, 3, 7};

/* qweight I32 [inputs][outputs / 8], scales [groups][outputs], qzeros I32 [groups][outputs / 8] */
int quant_check_awq(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    int rc = quant_expect(s, p->data, "I32", s->cols, s->rows / 8);

    if (rc == ERR_OK && (s->rows % 8 != 0 || scales->n_dims != 2))
        rc = quant_fail(s, ERR_INVALID, scales, "must be [groups][outputs], with 8 n outputs");
    if (rc == ERR_OK)
        rc = quant_expect_scales(s, p, scales, s->rows, scales->dims[0]);
    if (rc == ERR_OK)
        rc = quant_expect(s, scales, NULL, p->n_groups, s->rows);
    if (rc == ERR_OK && zeros != NULL)
        rc = quant_expect(s, zeros, "I32", p->n_groups, s->rows / 8);
    p->bits = 4;
    return rc;
}

static int awq_element(const uint8_t *words, size_t row, size_t per_row, int out)
{
    uint32_t word = quant_word(words, row * per_row + (size_t)out / 8);

    return (int)(word >> (4 * awq_places[out % 8]) & 15);
}

/* Without zero points they are in the middle: 8. */
void quant_values_awq(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                      int n)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    size_t per_row = (size_t)p->rows / 8;

    for (int k = 0; k < p->cols; k++) {
        size_t group = (size_t)(k / p->group);

        for (int r = 0; r < n; r++) {
            int zero = zeros != NULL ? awq_element(zeros->data, group, per_row, first + r) : 8;
            int q = awq_element(bytes, (size_t)k, per_row, first + r);
            float scale = quant_number(scales, group * (size_t)p->rows + (size_t)(first + r));

            out[(size_t)r * (size_t)p->cols + (size_t)k] = (float)(q - zero) * scale;
        }
    }
}

/* qweight I32 [outputs][inputs / 8], scales [outputs][8 m], qzeros I32 [outputs][m]: rows of scales
 * and zeros are filled up to whole words, or more. */
int quant_check_awq_gemv(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    int rc = quant_expect(s, p->data, "I32", s->rows, s->cols / 8);
    int64_t wide = 0;

    if (rc == ERR_OK && s->cols % 8 != 0)
        rc = quant_fail(s, ERR_INVALID, p->data, "needs 8 n inputs");
    if (rc == ERR_OK && (zeros == NULL || zeros->n_dims != 2))
        rc = quant_fail(s, ERR_INVALID, p->data, "has no qzeros [outputs][words] beside it");
    if (rc == ERR_OK) {
        wide = zeros->dims[1];
        rc = quant_expect(s, zeros, "I32", s->rows, wide);
    }
    if (rc == ERR_OK)
        rc = quant_expect(s, scales, NULL, s->rows, 8 * wide);
    if (rc == ERR_OK && !quant_is_number(scales))
        rc = quant_fail(s, ERR_UNSUPPORTED, scales, "has type %.20s", scales->dtype);
    /* The padding hides the size of groups; writers use 128, 64 or 32, the largest that needs as
     * many words. */
    for (p->group = 128; rc == ERR_OK && p->group >= 32; p->group /= 2) {
        int64_t groups = (s->cols + p->group - 1) / p->group, unit = 128 / p->group;

        if (((groups + 7) / 8 + unit - 1) / unit * unit == wide)
            break;
    }
    p->n_groups = (int)(8 * wide);
    p->bits = 4;
    if (rc == ERR_OK && p->group < 32)
        rc = quant_fail(s, ERR_INVALID, zeros, "has %lld words a row, for groups of 128, 64 or 32",
                        (long long)wide);
    return rc;
}

void quant_values_awq_gemv(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                           int n)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];

    for (int r = 0; r < n; r++) {
        size_t groups = (size_t)(first + r) * (size_t)p->n_groups;

        for (int k = 0; k < p->cols; k++) {
            size_t group = groups + (size_t)(k / p->group);
            int q = (int)packed_element(bytes, (size_t)r * (size_t)p->cols + (size_t)k, 4, 1);
            int zero = (int)packed_element(zeros->data, group, 4, 1);

            *out++ = (float)(q - zero) * quant_number(scales, group);
        }
    }
}

/* --- GPTQ ------------------------------------------------------------------------------------ */

/* qweight I32 [inputs * bits / 32][outputs], scales [groups][outputs],
 * qzeros I32 [groups][outputs * bits / 32], g_idx I32 [inputs] */
int quant_check_gptq(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *t = p->data, *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    int rc = ERR_OK;

    if (t->n_dims == 2 && t->dims[0] <= s->cols)
        p->bits = (int)(t->dims[0] * 32 / s->cols);
    if ((p->bits != 2 && p->bits != 3 && p->bits != 4 && p->bits != 8) ||
        s->cols * (int64_t)p->bits % 32 != 0)
        return quant_fail(s, ERR_UNSUPPORTED, t, "is read with 2, 3, 4 or 8 bits of %d inputs",
                          s->cols);
    rc = quant_expect(s, t, "I32", packed_words(s->cols, p->bits), s->rows);
    if (rc == ERR_OK && scales->n_dims != 2)
        rc = quant_fail(s, ERR_INVALID, scales, "must be [groups][outputs]");
    if (rc == ERR_OK)
        rc = quant_expect_scales(s, p, scales, s->rows, scales->dims[0]);
    if (rc == ERR_OK)
        rc = quant_expect(s, scales, NULL, p->n_groups, s->rows);
    if (rc == ERR_OK)
        rc = quant_expect(s, zeros, "I32", p->n_groups, packed_words(s->rows, p->bits));
    if (rc == ERR_OK)
        rc = quant_check_order(s, p);
    return rc;
}

/* more: what is added to a zero as it is stored. */
static void gptq_values(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                        int n, uint32_t more)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    size_t per_group = (size_t)packed_words(p->rows, p->bits), rows = (size_t)p->rows;
    uint32_t mask = (1U << p->bits) - 1;

    for (int k = 0; k < p->cols; k++) {
        size_t group = (size_t)quant_group(p, k);

        for (int r = 0; r < n; r++) {
            size_t row = (size_t)(first + r);
            uint32_t zero =
                packed_element(zeros->data + 4 * group * per_group, row, p->bits, 1) + more;
            uint32_t q = packed_element(bytes + 4 * row, (size_t)k, p->bits, rows);

            out[(size_t)r * (size_t)p->cols + (size_t)k] =
                (float)((int)q - (int)(zero & mask)) * quant_number(scales, group * rows + row);
        }
    }
}

/* The first form stores zeros less 1, modulo their range. */
void quant_values_gptq(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n)
{
    gptq_values(out, p, bytes, first, n, 1);
}

void quant_values_gptq_v2(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                          int n)
{
    gptq_values(out, p, bytes, first, n, 0);
}

/* --- compressed-tensors ----------------------------------------------------------------------- */

/* One row of scales for each output, or one for all; groups as many as there are. */
static int packed_check_scales(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *t = p->beside[SCALES];
    int64_t groups = t->n_dims == 2 ? t->dims[1] : 1;
    bool is_single = t->n_dims == 0 || (t->n_dims == 1 && t->dims[0] == 1) ||
                     (t->n_dims == 2 && t->dims[0] == 1 && groups == 1 && s->rows > 1);

    if (!is_single)
        return quant_expect_scales(s, p, t, s->rows, groups);
    p->n_groups = 0; /* one for the matrix */
    p->group = s->cols;
    if (quant_is_number(t))
        return ERR_OK;
    return quant_fail(s, ERR_UNSUPPORTED, t, "has type %.20s", t->dtype);
}

/* The bits of elements whose rows take so many words; 0: none, or several. Rows of fewer than 32
 * elements fit several, of which the config's are meant. */
static int packed_bits_of(const struct quant_search *s, int64_t words)
{
    unsigned fit = 0, named = s->config != NULL ? s->config->bits : 0;

    for (int bits = 2; bits <= 8; bits++)
        fit |= packed_words(s->cols, bits) == words ? 1U << bits : 0;
    if ((fit & named) != 0)
        fit &= named;
    return fit != 0 && (fit & (fit - 1)) == 0 ? __builtin_ctz(fit) : 0;
}

/* weight_packed I32 [outputs][inputs * bits / 32], weight_scale [outputs][groups],
 * weight_zero_point I32 [outputs * bits / 32][groups] */
int quant_check_packed(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *t = p->data, *zeros = p->beside[ZEROS];
    int rc;

    p->bits = t->n_dims == 2 ? packed_bits_of(s, t->dims[1]) : 0;
    if (p->bits == 0)
        return quant_fail(s, ERR_INVALID, t, "has no whole number of bits for %d inputs", s->cols);
    rc = quant_expect(s, t, "I32", s->rows, packed_words(s->cols, p->bits));
    if (rc == ERR_OK)
        rc = packed_check_scales(s, p);
    if (rc == ERR_OK && zeros != NULL && p->n_groups > 0)
        rc = quant_expect(s, zeros, "I32", packed_words(s->rows, p->bits), p->n_groups);
    if (rc == ERR_OK && zeros != NULL && p->n_groups == 0)
        rc = quant_fail(s, ERR_UNSUPPORTED, zeros, "is not read with a single scale");
    if (rc == ERR_OK)
        rc = quant_check_order(s, p);
    return rc;
}

/* Elements and zeros are stored with half of their range added. Zeros are packed along the outputs:
 * words of one group are n_groups apart. */
void quant_values_packed(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                         int n)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    size_t words = (size_t)packed_words(p->cols, p->bits), groups = (size_t)p->n_groups;
    int middle = 1 << (p->bits - 1);

    for (int r = 0; r < n; r++, bytes += 4 * words) {
        size_t row = (size_t)(first + r);

        for (int k = 0; k < p->cols; k++) {
            size_t group = (size_t)quant_group(p, k);
            int q = (int)packed_element(bytes, (size_t)k, p->bits, 1), zero = middle;

            if (zeros != NULL)
                zero = (int)packed_element(zeros->data + 4 * group, row, p->bits, groups);
            *out++ = (float)(q - zero) * quant_number(scales, row * groups + group);
        }
    }
}

/* weight I8 [outputs][inputs], weight_scale [outputs][groups], weight_zero_point I8 likewise,
 * weight_g_idx I32 [inputs] */
int quant_check_int8(const struct quant_search *s, struct quant_part *p)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];
    int rc = quant_expect(s, p->data, "I8", s->rows, s->cols);

    p->bits = 8;
    if (rc == ERR_OK)
        rc = packed_check_scales(s, p);
    if (rc == ERR_OK && zeros != NULL &&
        (strcmp(zeros->dtype, "I8") != 0 || zeros->n_dims != scales->n_dims ||
         memcmp(zeros->dims, scales->dims, (size_t)zeros->n_dims * sizeof zeros->dims[0]) != 0))
        rc = quant_fail(s, ERR_INVALID, zeros, "must be I8, in the shape of the scales");
    if (rc == ERR_OK)
        rc = quant_check_order(s, p);
    return rc;
}

void quant_values_int8(float *out, const struct quant_part *p, const uint8_t *bytes, int first,
                       int n)
{
    const struct tensor *scales = p->beside[SCALES], *zeros = p->beside[ZEROS];

    for (int r = 0; r < n; r++) {
        size_t groups = (size_t)(first + r) * (size_t)p->n_groups;

        for (int k = 0; k < p->cols; k++) {
            size_t group = groups + (size_t)quant_group(p, k);
            int zero = zeros != NULL ? (int8_t)zeros->data[group] : 0;

            *out++ = (float)((int8_t)*bytes++ - zero) * quant_number(scales, group);
        }
    }
}

/* --- packed as they are --------------------------------------------------------------------- */

/* In each kind: a run of a row's codes, the zero point of a group, and the place of its scale. */

static void awq_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                    int first, int n)
{
    size_t per_row = (size_t)p->rows / 8;

    for (int k = 0; k < n; k++)
        out[k] = (uint8_t)awq_element(bytes, (size_t)(first + k), per_row, row);
}

static int awq_zero(const struct quant_part *p, int row, int group)
{
    if (p->beside[ZEROS] == NULL)
        return 8;
    return awq_element(p->beside[ZEROS]->data, (size_t)group, (size_t)p->rows / 8, row);
}

/* [groups][rows] */
static const uint8_t *column_scale(const struct quant_part *p, const uint8_t *bytes, int row,
                                   int group)
{
    (void)bytes;
    return p->beside[SCALES]->data + 2 * ((size_t)group * (size_t)p->rows + (size_t)row);
}

static void gemv_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                     int first, int n)
{
    size_t at = (size_t)row * (size_t)p->cols + (size_t)first;

    for (int k = 0; k < n; k++)
        out[k] = (uint8_t)packed_element(bytes, at + (size_t)k, 4, 1);
}

/* [rows][groups], or one number for all. */
static size_t group_of_row(const struct quant_part *p, int row, int group)
{
    return (size_t)row * (size_t)p->n_groups + (size_t)(p->n_groups > 0 ? group : 0);
}

static const uint8_t *row_scale(const struct quant_part *p, const uint8_t *bytes, int row,
                                int group)
{
    (void)bytes;
    return p->beside[SCALES]->data + 2 * group_of_row(p, row, group);
}

static int gemv_zero(const struct quant_part *p, int row, int group)
{
    return (int)packed_element(p->beside[ZEROS]->data, group_of_row(p, row, group), 4, 1);
}

static void gptq_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                     int first, int n)
{
    for (int k = 0; k < n; k++)
        out[k] = (uint8_t)packed_element(bytes + 4 * (size_t)row, (size_t)(first + k), p->bits,
                                         (size_t)p->rows);
}

static int gptq_zero_v2(const struct quant_part *p, int row, int group)
{
    size_t per_group = (size_t)packed_words(p->rows, p->bits);

    return (int)packed_element(p->beside[ZEROS]->data + 4 * (size_t)group * per_group, (size_t)row,
                               p->bits, 1);
}

static int gptq_zero(const struct quant_part *p, int row, int group)
{
    return (gptq_zero_v2(p, row, group) + 1) & ((1 << p->bits) - 1);
}

static void packed_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                       int first, int n)
{
    bytes += 4 * (size_t)packed_words(p->cols, p->bits) * (size_t)row;
    for (int k = 0; k < n; k++)
        out[k] = (uint8_t)packed_element(bytes, (size_t)(first + k), p->bits, 1);
}

/* The zero point of codes that have none. */
static int packed_middle(const struct quant_part *p)
{
    return 1 << (p->bits - 1);
}

static int packed_zero(const struct quant_part *p, int row, int group)
{
    if (p->beside[ZEROS] == NULL)
        return packed_middle(p);
    return (int)packed_element(p->beside[ZEROS]->data + 4 * (size_t)group, (size_t)row, p->bits,
                               (size_t)p->n_groups);
}

/* Codes with a sign get half of their range added. */
static void int8_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                     int first, int n)
{
    bytes += (size_t)row * (size_t)p->cols + (size_t)first;
    for (int k = 0; k < n; k++)
        out[k] = bytes[k] ^ 0x80;
}

static int int8_zero(const struct quant_part *p, int row, int group)
{
    if (p->beside[ZEROS] == NULL)
        return 128;
    return p->beside[ZEROS]->data[group_of_row(p, row, group)] ^ 0x80;
}

/* Blocks of 32 columns: a scale of float16, the codes of the first 16 columns in the lower halves
 * of 16 bytes, those of the others in the upper ones. */
#define Q4_0_BYTES 18

static const uint8_t *q4_0_scale(const struct quant_part *p, const uint8_t *bytes, int row,
                                 int group)
{
    return bytes + ((size_t)row * (size_t)(p->cols / 32) + (size_t)group) * Q4_0_BYTES;
}

static void q4_0_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                     int first, int n)
{
    for (int k = first; k < first + n; k++) {
        const uint8_t *codes = q4_0_scale(p, bytes, row, k / 32) + 2;

        *out++ = (uint8_t)(codes[k % 16] >> (k % 32 < 16 ? 0 : 4) & 15);
    }
}

/* Blocks of 32 columns: a scale of float16, and 32 codes with a sign. */
#define Q8_0_BYTES 34

static const uint8_t *q8_0_scale(const struct quant_part *p, const uint8_t *bytes, int row,
                                 int group)
{
    return bytes + ((size_t)row * (size_t)(p->cols / 32) + (size_t)group) * Q8_0_BYTES;
}

static void q8_0_row(uint8_t *out, const struct quant_part *p, const uint8_t *bytes, int row,
                     int first, int n)
{
    for (int k = first; k < first + n; k++)
        *out++ = q8_0_scale(p, bytes, row, k / 32)[2 + k % 32] ^ 0x80;
}

static int block_zero(const struct quant_part *p, int row, int group)
{
    (void)row, (void)group;
    return packed_middle(p);
}

const struct quant_codes quant_codes_awq = {awq_row, awq_zero, column_scale};
const struct quant_codes quant_codes_awq_gemv = {gemv_row, gemv_zero, row_scale};
const struct quant_codes quant_codes_gptq = {gptq_row, gptq_zero, column_scale};
const struct quant_codes quant_codes_gptq_v2 = {gptq_row, gptq_zero_v2, column_scale};
const struct quant_codes quant_codes_packed = {packed_row, packed_zero, row_scale};
const struct quant_codes quant_codes_int8 = {int8_row, int8_zero, row_scale};
const struct quant_codes quant_codes_q4_0 = {q4_0_row, block_zero, q4_0_scale};
const struct quant_codes quant_codes_q8_0 = {q8_0_row, block_zero, q8_0_scale};

/* An order of groups that is the columns' own is none. */
static bool packed_has_order(const struct quant_part *p)
{
    const struct tensor *t = p->beside[ORDER];

    for (int i = 0; t != NULL && i < p->cols; i++) {
        if (quant_word(t->data, (size_t)i) != (uint32_t)(i / p->group))
            return true;
    }
    return false;
}

static bool packed_has_zeros(const struct quant_part *p)
{
    int n_groups = p->cols / p->group;

    for (int row = 0; row < p->rows && p->beside[ZEROS] != NULL; row++) {
        for (int group = 0; group < n_groups; group++) {
            if (p->kind->codes->zero(p, row, group) != packed_middle(p))
                return true;
        }
    }
    return false;
}

bool quant_is_bytes(const struct quant_part *p)
{
    return p->kind != NULL && p->kind->codes == &quant_codes_int8 && p->group == p->cols &&
           !packed_has_zeros(p);
}

bool quant_packs(struct k_format *out, const struct quant_part *p)
{
    bool is_row = p->group == p->cols, is_half, has_zeros;
    int group = is_row ? K_PACKED_COLS : p->group;
    enum k_type scale;

    if (p->kind != NULL && p->kind->floats != NULL) {
        *out = k_format_float4(p->group);
        return p->kind->floats->fit(p);
    }
    if (p->kind == NULL || p->kind->codes == NULL || (p->bits != 4 && p->bits != 8) ||
        p->cols % p->group != 0 ||
        (is_row ? p->cols % K_PACKED_COLS != 0
                : p->group != 32 && p->group != 64 && p->group != 128))
        return false;
    is_half = p->beside[SCALES] == NULL || strcmp(p->beside[SCALES]->dtype, "F16") == 0;
    if ((!is_half && strcmp(p->beside[SCALES]->dtype, "BF16") != 0) || packed_has_order(p))
        return false;
    scale = is_half ? K_F16 : K_BF16;
    has_zeros = packed_has_zeros(p);
    *out = p->bits == 8 ? k_format_int8(scale, group, has_zeros)
                        : k_format_packed(scale, group, has_zeros);
    return true;
}

/* --- rounded while loading ------------------------------------------------------------------ */

float quant_int8_scale(const struct tensor *t, const uint8_t *bytes, size_t at, int cols)
{
    struct tensor row = *t;
    float low = 0.0f, high = 0.0f, scale;
    uint32_t bits;

    row.data = bytes;
    for (int k = 0; k < cols; k++) {
        float x = quant_number(&row, at + (size_t)k);

        if (!isfinite(x)) /* so is all of the row, as its products would be */
            return NAN;
        low = x < low ? x : low;
        high = x > high ? x : high;
    }
    scale = high / 127.0f > -low / 128.0f ? high / 127.0f : -low / 128.0f;
    if (scale < 0x1p-120f) /* a row of zeros */
        scale = 0x1p-120f;
    memcpy(&bits, &scale, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U; /* as checkpoints have it */
    memcpy(&scale, &bits, 4);
    return scale;
}

int8_t quant_int8_code(float x, float scale)
{
    float code = rintf(x / scale);

    if (isnan(code))
        return 0;
    return (int8_t)(code < -128.0f ? -128.0f : code > 127.0f ? 127.0f : code);
}

void quant_order_bytes(uint8_t *bytes, size_t n)
{
    uint8_t ordered[16];

    for (size_t i = 0; i < n; i += 16) {
        for (size_t k = 0; k < 16; k++)
            ordered[K_BYTE_AT(k)] = bytes[i + k];
        memcpy(bytes + i, ordered, 16);
    }
}

float quant_bytes(uint8_t *out, const struct quant_part *p, const uint8_t *bytes,
                  struct quant_run run)
{
    size_t at = (size_t)run.row * (size_t)p->cols;
    float scale = quant_int8_scale(p->data, bytes, at, p->cols);
    struct tensor row = *p->data;

    row.data = bytes;
    for (int i = 0; i < run.n; i++)
        out[K_BYTE_AT((size_t)i)] =
            (uint8_t)quant_int8_code(quant_number(&row, at + (size_t)(run.first + i)), scale);
    return scale;
}

void quant_codes(const struct k_unpacked *to, const struct quant_part *p, const struct k_format *as,
                 const uint8_t *bytes, struct quant_run run)
{
    const struct quant_codes *codes = p->kind->codes;

    if (as->elem == K_FLOAT4) {
        quant_float_codes(to, p, bytes, run);
        return;
    }
    codes->row(to->codes, p, bytes, run.row, run.first, run.n);
    for (int i = 0; i < run.n / as->group_cols; i++) {
        int group = (run.first + i * as->group_cols) / p->group;

        memcpy(to->scales + (size_t)2 * (size_t)i, codes->scale(p, bytes, run.row, group), 2);
        if (as->has_zeros)
            to->zeros[i] = (uint8_t)codes->zero(p, run.row, group);
    }
}

void quant_code_row(const struct quant_coded *to, const struct quant_part *p,
                    const struct k_format *as, const uint8_t *bytes, struct quant_run run)
{
    const struct quant_codes *from = p->kind->codes;

    from->row(to->codes, p, bytes, run.row, run.first, run.n);
    for (int i = 0; i * as->group_cols < run.n; i++) {
        int group = (run.first + i * as->group_cols) / p->group;
        struct tensor scale = *p->beside[SCALES];

        scale.data = from->scale(p, bytes, run.row, group);
        to->scales[i] = quant_number(&scale, 0);
        to->zeros[i] = (float)from->zero(p, run.row, group);
    }
}

bool quant_rounds_inputs(const struct json *config)
{
    const struct json *groups = json_get_kind(config, "config_groups", JSON_OBJECT);
    bool all = groups != NULL && groups->n > 0;

    for (uint32_t i = 0; all && i < groups->n; i++) {
        const struct json *inputs =
            json_get_kind(&groups->items[i], "input_activations", JSON_OBJECT);

        all = all && inputs != NULL && json_get_int(inputs, "num_bits", 0) == 8 &&
              strcmp(json_get_text(inputs, "type", "int"), "int") == 0 &&
              strcmp(json_get_text(inputs, "strategy", "tensor"), "token") == 0 &&
              json_get_bool(inputs, "dynamic", false);
    }
    return all;
}

/* Of one description: what it names and is not named yet. */
static void packed_read_sizes(struct quant_config *out, const struct json *from, const char *bits)
{
    int64_t n_bits = json_get_int(from, bits, 0), group = json_get_int(from, "group_size", 0);

    if (strcmp(json_get_text(from, "type", "int"), "int") != 0)
        return;
    if (n_bits >= 2 && n_bits <= 8)
        out->bits |= 1U << n_bits;
    if (group >= 1 && group <= INT32_MAX && out->n_groups < QUANT_GROUPS_MAX)
        out->groups[out->n_groups++] = (int)group;
}

void quant_read_sizes(struct quant_config *out, const struct json *config)
{
    const struct json *groups = json_get_kind(config, "config_groups", JSON_OBJECT);

    if (groups == NULL)
        packed_read_sizes(out, config, "bits");
    for (uint32_t i = 0; groups != NULL && i < groups->n; i++) {
        const struct json *weights = json_get_kind(&groups->items[i], "weights", JSON_OBJECT);

        if (weights != NULL)
            packed_read_sizes(out, weights, "num_bits");
    }
}

/* "num_bits" and "group_size" of the first group of compressed-tensors, or "bits" and "group_size"
 * of the others; groups of -1 are rows. */
struct k_format quant_packed_config(const struct json *config)
{
    const struct json *groups = json_get_kind(config, "config_groups", JSON_OBJECT);
    const struct json *weights = groups != NULL && groups->n > 0
                                     ? json_get_kind(&groups->items[0], "weights", JSON_OBJECT)
                                     : NULL;
    const struct json *from = weights != NULL ? weights : config;
    int64_t bits = json_get_int(from, weights != NULL ? "num_bits" : "bits", 0);
    int64_t group = json_get_int(from, "group_size", -1);
    bool has_zeros = !json_get_bool(from, weights != NULL ? "symmetric" : "sym", true) ||
                     json_get_bool(from, "zero_point", false);
    if (strcmp(json_get_text(from, "type", "int"), "int") != 0 || (bits != 4 && bits != 8))
        return k_format_bare(K_BF16);
    if (group < 0)
        group = K_PACKED_COLS;
    if (group != 32 && group != 64 && group != 128)
        return k_format_bare(K_BF16);
    if (bits == 8)
        return k_format_int8(weights != NULL ? K_BF16 : K_F16, (int)group, has_zeros);
    return k_format_packed(weights != NULL ? K_BF16 : K_F16, (int)group, has_zeros);
}
