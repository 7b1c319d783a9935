/* SPDX-License-Identifier: Apache-2.0
 *
 * Elements of rows of weights as float32, for one instruction set; included by cpu_tile.h only,
 * whose names and macros it uses.
 *
 * weight_part() and any_part() are the places that know a type. Products of the types that
 * cpu_math_multiplies() names are built of the first directly; rows of all types are made float32
 * by expand(), of which `expands` has a function for each. Layouts of blocks are those of
 * kernels/ref_blocks.c, and so are the roundings. */

/* scale * q - least, rounded twice. */
INLINED part plus_least(part_int q, float scale, float least)
{
    part product = scale * __builtin_convertvector(q, part);

    APART(product);
    return product + least;
}

/* Elements of blocks of 32 whose scale is in one number: those of 16 bytes, low halves first. */
#define HALVES(at) (WIDE_U8((at) + p * WIDTH) >> shift & 15)

/* Elements i and on of a block of 256 with scales of 16 or 32 elements, but Q4_K to Q6_K. */
INLINED part weight_of_256(const uint8_t *b, int i, int p, const enum k_type type)
{
    int j = i / 16, shift = i % 128 / 32 * 2, low, high;
    part_int q;

    if (type == K_IQ4_XS) {
        j = i / 32;
        low = b[4 + j / 2] >> (j % 2 * 4) & 15;
        high = b[2 + j / 4] >> (j % 4 * 2) & 3;
        shift = i % 32 / 16 * 4;
        return HALF(b) * (float)((low | high << 4) - 32) * LOOKUP(uneven, HALVES(b + 8 + 16 * j));
    }
    if (type == K_Q2_K) {
        q = WIDE_U8(b + 16 + i / 128 * 32 + i % 32 + p * WIDTH) >> shift & 3;
        return plus_least(q, HALF(b + 80) * (float)(b[j] & 15),
                          -(HALF(b + 82) * (float)(b[j] >> 4)));
    }
    /* K_Q3_K */
    low = b[96 + j % 8] >> (j / 8 * 4) & 15;
    high = b[96 + 8 + j % 4] >> (j / 4 * 2) & 3;
    q = WIDE_U8(b + 32 + i / 128 * 32 + i % 32 + p * WIDTH) >> shift & 3;
    q |= (WIDE_U8(b + i % 32 + p * WIDTH) >> (i / 32) & 1) << 2;
    return HALF(b + 108) * (float)((low | high << 4) - 32) * __builtin_convertvector(q - 4, part);
}

/* Bits `first` and on of four bytes, one in each number. */
INLINED part_int bits_of(const uint8_t *at, int first)
{
    part_int by;
    uint32_t bits;

    memcpy(&bits, at, sizeof bits);
    memcpy(&by, places, sizeof by);
    return ((part_int){0} + (int32_t)(bits >> first)) >> by & 1;
}

/* Elements i and on of a block of 32 of the types that have a number for each. */
INLINED part weight_of_32(const uint8_t *b, int i, int p, const enum k_type type)
{
    int shift = i / 16 * 4;

    if (type == K_U4)
        return __builtin_convertvector(HALVES(b), part);
    if (type == K_IQ4_NL)
        return HALF(b) * LOOKUP(uneven, HALVES(b + 2));
    if (type == K_MXFP4)
        return half_power(b[0]) * LOOKUP(doubled, HALVES(b + 1));
    if (type == K_Q5_0)
        return HALF(b) * __builtin_convertvector(
                             (HALVES(b + 6) | bits_of(b + 2, i + p * WIDTH) << 4) - 16, part);
    /* K_Q5_1 */
    return plus_least(HALVES(b + 8) | bits_of(b + 4, i + p * WIDTH) << 4, HALF(b), HALF(b + 2));
}

/* Elements k + p * WIDTH and on of a row of weights; k is a multiple of 16. type is a constant
 * wherever this is inlined. WIDE_U8() and its like read WIDTH numbers as whole ones, HALF() an f16
 * number, LOOKUP() numbers of a table of 16. */
INLINED part weight_part(const uint8_t *row, int k, int p, const enum k_type type)
{
    const uint8_t *b = row + (size_t)(k / k_type_block(type)) * (size_t)k_type_block_bytes(type);
    int i = k % k_type_block(type), shift, scale, least;

    if (type == K_F32)
        return *(const part_at *)(row + 4 * ((size_t)k + (size_t)(p * WIDTH)));
    if (type == K_BF16_KEPT) {
        return (part)(WIDE_U16(row + 2 * ((size_t)k + (size_t)(p * WIDTH))) << 16);
    }
    if (type == K_Q8_0) {
        return HALF(b) * __builtin_convertvector(WIDE_I8(b + 2 + i + p * WIDTH), part);
    }
    shift = i / 16 * 4; /* of blocks of 32: the low halves of 16 bytes, then the high ones */
    if (type == K_Q4_0)
        return HALF(b) *
               __builtin_convertvector((WIDE_U8(b + 2 + p * WIDTH) >> shift & 15) - 8, part);
    if (type == K_Q4_1)
        return plus_least(WIDE_U8(b + 4 + p * WIDTH) >> shift & 15, HALF(b), HALF(b + 2));
    shift = i / 32 % 2 * 4; /* of 64: the low halves of 32 bytes, then the high ones */
    if (type == K_Q4_K) {
        six_bits(b + 4, i / 32, &scale, &least);
        return plus_least(WIDE_U8(b + 16 + i / 64 * 32 + i % 32 + p * WIDTH) >> shift & 15,
                          HALF(b) * (float)scale, -(HALF(b + 2) * (float)least));
    }
    if (type == K_Q5_K) {
        part_int high = WIDE_U8(b + 16 + i % 32 + p * WIDTH) >> (i / 32) & 1;

        six_bits(b + 4, i / 32, &scale, &least);
        return plus_least((WIDE_U8(b + 48 + i / 64 * 32 + i % 32 + p * WIDTH) >> shift & 15) |
                              high << 4,
                          HALF(b) * (float)scale, -(HALF(b + 2) * (float)least));
    }
    /* K_Q6_K */
    scale = (int8_t)b[192 + i / 16];
    shift = i % 128 / 32;
    return (HALF(b + 208) * (float)scale) *
           __builtin_convertvector(
               ((WIDE_U8(b + i / 128 * 64 + i % 64 + p * WIDTH) >> (i % 128 / 64 * 4) & 15) |
                (WIDE_U8(b + 128 + i / 128 * 32 + i % 32 + p * WIDTH) >> (2 * shift) & 3) << 4) -
                   32,
               part);
}

/* The last n < 16 elements of a row; only types without blocks have rows that end so. */
INLINED lanes weight_rest(const uint8_t *row, int k, int n, const enum k_type type)
{
    float rest[LANES] = {0};

    for (int i = 0; i < n; i++) {
        uint32_t bits = 0;

        if (type == K_F32)
            memcpy(&bits, row + 4 * (size_t)(k + i), 4);
        else if (type == K_BF16_KEPT)
            memcpy((char *)&bits + 2, row + 2 * (size_t)(k + i), 2);
        memcpy(&rest[i], &bits, 4);
        if (type == K_E4M3)
            rest[i] = k_e4m3_value(row[k + i]);
    }
    return load_rest(rest, n);
}

/* The same of any type, of scaled types the stored numbers. */
INLINED part any_part(const uint8_t *row, int k, int p, const enum k_type type)
{
    const uint8_t *b = row + (size_t)(k / k_type_block(type)) * (size_t)k_type_block_bytes(type);
    int i = k % k_type_block(type);

    if (type == K_E4M3)
        return E4M3(row + (size_t)k + (size_t)(p * WIDTH));
    if (type == K_U8)
        return __builtin_convertvector(WIDE_U8(row + (size_t)k + (size_t)(p * WIDTH)), part);
    if (type == K_Q5_0 || type == K_Q5_1 || type == K_IQ4_NL || type == K_MXFP4 || type == K_U4)
        return weight_of_32(b, i, p, type);
    if (type == K_Q2_K || type == K_Q3_K || type == K_IQ4_XS)
        return weight_of_256(b, i, p, type);
    return weight_part(row, k, p, type);
}

/* One row as float32. Elements of scaled types are (number - zero) * scale, of a group each. */
INLINED void expand_row(float *out, const struct cpu_matmul *m, int o, const enum k_type type)
{
    const bool is_scaled = type == K_E4M3 || type == K_U4 || type == K_U8;
    const uint8_t *row = (const uint8_t *)m->w + (size_t)o * m->w_bytes;
    const struct cpu_scales *s = &m->scales;
    size_t group = is_scaled ? (size_t)((s->first + o) / s->high) * (size_t)s->a_row : 0;
    int wide = is_scaled && s->wide > 0 ? s->wide : m->n_in, k = 0;
    const uint8_t *next = row + (size_t)(m->out_last - m->out_first) * m->w_bytes;

    for (size_t at = 0; at < m->w_bytes; at += 64) /* of the part that follows */
        __builtin_prefetch(next + at);
    for (int first = 0; first < m->n_in; first += wide, group++) {
        int last = m->n_in - first < wide ? m->n_in : first + wide;
        float scale = is_scaled ? s->at[group] : 1.0f, zero = cpu_zero(s, group, type);

        for (; k + LANES <= last; k += LANES) {
            for (int p = 0; p < PARTS; p++) {
                part v = any_part(row, k, p, type);

                if (is_scaled)
                    v = (type == K_E4M3 ? v : v - zero) * scale;
                *(part_at *)(out + k + p * WIDTH) = v;
            }
        }
        if (k < last) { /* the end of the row, because groups are multiples of 16 */
            lanes rest = weight_rest(row, k, last - k, type);

            for (int p = 0; p < PARTS && is_scaled; p++)
                rest.of[p] *= scale;
            memcpy(out + k, &rest, (size_t)(last - k) * sizeof *out);
        }
    }
}

#define EXPAND(type)                                                        \
    static void TILE(expand_##type)(float *out, const struct cpu_matmul *m) \
    {                                                                       \
        for (int o = m->out_first; o < m->out_last; o++, out += m->n_in)    \
            expand_row(out, m, o, K_##type);                                \
    }
EXPAND(F32)
EXPAND(BF16_KEPT)
EXPAND(E4M3)
EXPAND(U4)
EXPAND(U8)
EXPAND(Q4_0)
EXPAND(Q4_1)
EXPAND(Q5_0)
EXPAND(Q5_1)
EXPAND(Q8_0)
EXPAND(IQ4_NL)
EXPAND(MXFP4)
EXPAND(Q2_K)
EXPAND(Q3_K)
EXPAND(Q4_K)
EXPAND(Q5_K)
EXPAND(Q6_K)
EXPAND(IQ4_XS)
#undef EXPAND
#undef HALVES

/* By type; NULL: expand() does not read it. */
static void (*const TILE(expands)[])(float *, const struct cpu_matmul *) = {
    [K_F32] = TILE(expand_F32),       [K_BF16_KEPT] = TILE(expand_BF16_KEPT),
    [K_E4M3] = TILE(expand_E4M3),     [K_U4] = TILE(expand_U4),
    [K_U8] = TILE(expand_U8),         [K_Q4_0] = TILE(expand_Q4_0),
    [K_Q4_1] = TILE(expand_Q4_1),     [K_Q5_0] = TILE(expand_Q5_0),
    [K_Q5_1] = TILE(expand_Q5_1),     [K_Q8_0] = TILE(expand_Q8_0),
    [K_IQ4_NL] = TILE(expand_IQ4_NL), [K_MXFP4] = TILE(expand_MXFP4),
    [K_Q2_K] = TILE(expand_Q2_K),     [K_Q3_K] = TILE(expand_Q3_K),
    [K_Q4_K] = TILE(expand_Q4_K),     [K_Q5_K] = TILE(expand_Q5_K),
    [K_Q6_K] = TILE(expand_Q6_K),     [K_IQ4_XS] = TILE(expand_IQ4_XS),
};

static void TILE(expand)(float *out, const struct cpu_matmul *m)
{
    TILE(expands)[m->type](out, m);
}
