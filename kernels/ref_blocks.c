/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of blocks of GGUF files: elements of 2 to 8 bits that share scales.
 *
 * The layouts are those of ggml's block structs, stated above each function. All numbers are
 * little-endian; f16 d is a scale. Products and differences are rounded one by one, never fused,
 * because goldens compare the bits. */
#include "config.h"

#include <string.h>

#include "kernels/kernels.h"

/* An f16 number as float32. Exponent 31 is infinity or NaN; exponent 0 is a subnormal, a multiple
 * of 2^-24. */
static float half_at(const uint8_t *at)
{
    uint32_t h = at[0] | (uint32_t)at[1] << 8, exponent = h >> 10 & 31, fraction = h & 1023;
    uint32_t bits = (h & 0x8000) << 16;
    float value = (float)fraction * 0x1p-24f;

    if (exponent == 0) {
        if (bits != 0)
            return -value;
        return value;
    }
    bits |= (exponent == 31 ? 255U : exponent + 112) << 23 | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* --- blocks of 32 ----------------------------------------------------------------------------- */

/* In all of them byte i of 16 holds element i in its low half and element 16 + i in its high
 * half. */
static int nibble(const uint8_t *q, int i)
{
    if (i < 16)
        return q[i] & 15;
    return q[i - 16] >> 4;
}

/* f16 d, 16 bytes: d * (q - 8) */
static void values_q4_0(float *out, const uint8_t *b)
{
    float d = half_at(b);

    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(nibble(b + 2, i) - 8);
}

/* f16 d, f16 m, 16 bytes: d * q + m */
static void values_q4_1(float *out, const uint8_t *b)
{
    float d = half_at(b), m = half_at(b + 2);

    for (int i = 0; i < 32; i++) {
        float product = d * (float)nibble(b + 4, i);

        out[i] = product + m;
    }
}

/* Element i of five bits; bit i of the first four bytes is its highest. */
static int five_bits(const uint8_t *high, const uint8_t *q, int i)
{
    return nibble(q, i) | (high[i / 8] >> (i % 8) & 1) << 4;
}

/* f16 d, u32 fifth bits, 16 bytes: d * (q - 16) */
static void values_q5_0(float *out, const uint8_t *b)
{
    float d = half_at(b);

    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(five_bits(b + 2, b + 6, i) - 16);
}

/* f16 d, f16 m, u32 fifth bits, 16 bytes: d * q + m */
static void values_q5_1(float *out, const uint8_t *b)
{
    float d = half_at(b), m = half_at(b + 2);

    for (int i = 0; i < 32; i++) {
        float product = d * (float)five_bits(b + 4, b + 8, i);

        out[i] = product + m;
    }
}

/* f16 d, i8 q[32]: d * q */
static void values_q8_0(float *out, const uint8_t *b)
{
    float d = half_at(b);

    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

/* The elements of IQ4_NL and IQ4_XS are places of this table, which is denser near 0. */
static const int8_t uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

/* f16 d, 16 bytes: d * uneven[q] */
static void values_iq4_nl(float *out, const uint8_t *b)
{
    float d = half_at(b);

    for (int i = 0; i < 32; i++)
        out[i] = d * (float)uneven[nibble(b + 2, i)];
}

/* An exponent byte e, 16 bytes of e2m1: 2^(e - 127) * value. The table has doubled values, so the
 * scale is halved; its smallest two are subnormal. */
static void values_mxfp4(float *out, const uint8_t *b)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    uint32_t bits = b[0] < 2 ? (uint32_t)0x00200000 << b[0] : ((uint32_t)b[0] - 1) << 23;
    float scale;

    memcpy(&scale, &bits, sizeof scale);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)doubled[nibble(b + 1, i)];
}

/* --- blocks of 256 ---------------------------------------------------------------------------- */

/* Scales of 16 or 32 elements are themselves small whole numbers, times d. */

/* u8 scales[16] (scale in the low half, minimum in the high one), qs[64], f16 d, f16 dmin. Byte t
 * of each half's 32 holds elements t, 32 + t, 64 + t, 96 + t in 2 bits each. */
static void values_q2_k(float *out, const uint8_t *b)
{
    float d = half_at(b + 80), dmin = half_at(b + 82);

    for (int i = 0; i < 256; i++) {
        int scale = b[i / 16], q = b[16 + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
        float product = d * (float)(scale & 15), least = dmin * (float)(scale >> 4);

        product = product * (float)q;
        out[i] = product - least;
    }
}

/* u8 hmask[32], qs[64], scales[12], f16 d. Elements have 2 bits as in Q2_K, and a third in hmask,
 * whose bit i / 32 of byte i % 32 is 0 where 4 is subtracted. Scale j has 6 bits, less 32: four in
 * the low or high half of byte j % 8, two in byte 8 + j % 4. */
static void values_q3_k(float *out, const uint8_t *b)
{
    const uint8_t *qs = b + 32, *s = b + 96;
    float d = half_at(b + 108);

    for (int i = 0; i < 256; i++) {
        int j = i / 16, low = s[j % 8] >> (4 * (j / 8)) & 15, high = s[8 + j % 4] >> (2 * (j / 4));
        int q = qs[i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3;
        float scale = d * (float)((low | (high & 3) << 4) - 32);

        if ((b[i % 32] >> (i / 32) & 1) == 0)
            q -= 4;
        out[i] = scale * (float)q;
    }
}

/* Scale and minimum j of the 8 in 12 bytes, 6 bits each: the first four of both are the low 6 bits
 * of bytes j and 4 + j; of the others, four bits are in byte 8 + j - 4 and the upper two in the
 * bytes of the first four. */
static void six_bits(const uint8_t *s, int j, int *scale, int *least)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *least = s[4 + j] & 63;
    } else {
        *scale = (s[4 + j] & 15) | s[j - 4] >> 6 << 4;
        *least = s[4 + j] >> 4 | s[j] >> 6 << 4;
    }
}

/* One element of Q4_K and Q5_K. */
static float with_least(float d, float dmin, const uint8_t *scales, int j, int q)
{
    int scale, least;
    float product, low;

    six_bits(scales, j, &scale, &least);
    product = d * (float)scale;
    low = dmin * (float)least;
    product = product * (float)q;
    return product - low;
}

/* f16 d, f16 dmin, scales[12], qs[128]. Of each 32 bytes the low halves are 32 elements, the high
 * halves the next 32. */
static void values_q4_k(float *out, const uint8_t *b)
{
    float d = half_at(b), dmin = half_at(b + 2);

    for (int i = 0; i < 256; i++) {
        int q = b[16 + i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15;

        out[i] = with_least(d, dmin, b + 4, i / 32, q);
    }
}

/* f16 d, f16 dmin, scales[12], fifth bits qh[32], qs[128]: bit i / 32 of byte i % 32 belongs to
 * element i. */
static void values_q5_k(float *out, const uint8_t *b)
{
    float d = half_at(b), dmin = half_at(b + 2);

    for (int i = 0; i < 256; i++) {
        int q = b[48 + i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15;

        q |= (b[16 + i % 32] >> (i / 32) & 1) << 4;
        out[i] = with_least(d, dmin, b + 4, i / 32, q);
    }
}

/* u8 ql[128], qh[64], i8 scales[16], f16 d. In each half of 128 elements, bytes t of ql's 64 hold
 * elements t and 64 + t, and byte t % 32 of qh's 32 the upper two bits of t, 32 + t, ... */
static void values_q6_k(float *out, const uint8_t *b)
{
    float d = half_at(b + 208);

    for (int i = 0; i < 256; i++) {
        int half = i / 128, t = i % 128;
        int low = b[half * 64 + t % 64] >> (4 * (t / 64)) & 15;
        int high = b[128 + half * 32 + t % 32] >> (2 * (t / 32)) & 3;
        float scale = d * (float)(int8_t)b[192 + i / 16];

        out[i] = scale * (float)((low | high << 4) - 32);
    }
}

/* f16 d, u16 upper bits of the scales, u8 lower bits[4], qs[128]: eight IQ4_NL blocks with scales
 * of 6 bits, less 32. */
static void values_iq4_xs(float *out, const uint8_t *b)
{
    float d = half_at(b);

    for (int i = 0; i < 256; i++) {
        int j = i / 32, low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
        int high = b[2 + j / 4] >> (2 * (j % 4)) & 3;
        float scale = d * (float)((low | high << 4) - 32);

        out[i] = scale * (float)uneven[nibble(b + 8 + 16 * j, i % 32)];
    }
}

void ref_blocks(float *out, enum k_type type, const void *blocks, size_t n_blocks)
{
    static void (*const values[])(float *, const uint8_t *) = {
        [K_Q4_0] = values_q4_0,     [K_Q4_1] = values_q4_1, [K_Q5_0] = values_q5_0,
        [K_Q5_1] = values_q5_1,     [K_Q8_0] = values_q8_0, [K_IQ4_NL] = values_iq4_nl,
        [K_MXFP4] = values_mxfp4,   [K_Q2_K] = values_q2_k, [K_Q3_K] = values_q3_k,
        [K_Q4_K] = values_q4_k,     [K_Q5_K] = values_q5_k, [K_Q6_K] = values_q6_k,
        [K_IQ4_XS] = values_iq4_xs,
    };
    const uint8_t *at = blocks;

    for (size_t i = 0; i < n_blocks; i++) {
        values[type](out, at);
        out += k_type_block(type);
        at += k_type_block_bytes(type);
    }
}
