/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops for AVX2; included by cpu_round.c only. A register has the 32 bytes of a block, or a number
 * for each of 8 outputs. */

/* Eight float16 numbers, one of each row, `at` bytes from their places. */
INLINED __m256 avx2_halves(const uint8_t *const *rows, size_t at)
{
    __m128i all = _mm_setzero_si128();

#define HALF_OF(j)                                \
    do {                                          \
        uint16_t half;                            \
                                                  \
        memcpy(&half, rows[j] + at, sizeof half); \
        all = _mm_insert_epi16(all, half, j);     \
    } while (0)
    HALF_OF(0);
    HALF_OF(1);
    HALF_OF(2);
    HALF_OF(3);
    HALF_OF(4);
    HALF_OF(5);
    HALF_OF(6);
    HALF_OF(7);
#undef HALF_OF
    return _mm256_cvtph_ps(all);
}

INLINED __m256i avx2_shifted(__m256i v, int by)
{
    return _mm256_srl_epi16(v, _mm_cvtsi32_si128(by));
}

/* Eight exponents of MXFP4 as scales of doubled values. */
INLINED __m256 avx2_powers(const uint8_t *const *rows)
{
    const __m256i one = _mm256_set1_epi32(1);
    __m256i e = _mm256_setr_epi32(rows[0][0], rows[1][0], rows[2][0], rows[3][0], rows[4][0],
                                  rows[5][0], rows[6][0], rows[7][0]);
    __m256i normal, small;

    normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_blendv_ps(_mm256_castsi256_ps(small), _mm256_castsi256_ps(normal),
                            _mm256_castsi256_ps(_mm256_cmpgt_epi32(e, one)));
}

/* 16 where a bit of four bytes is set, for each of 32. */
INLINED __m256i avx2_fifths(const uint8_t *at)
{
    const __m256i which = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202,
                                            0x0101010101010101, 0x0000000000000000);
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201ULL);
    int32_t four;
    __m256i v;

    memcpy(&four, at, sizeof four);
    v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(four), which), bits);
    return _mm256_and_si256(_mm256_cmpeq_epi8(v, bits), _mm256_set1_epi8(16));
}

/* Codes of 16 bytes, the low halves first; or the numbers of a table at these places, of MXFP4 16
 * more. */
INLINED __m256i avx2_nibbles(const uint8_t *at, const enum k_type type)
{
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)at);
    __m256i v =
        _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(half, 4), half), _mm256_set1_epi8(15));

    if (!round_is_table(type))
        return v;
    v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(
                                _mm_loadu_si128((const __m128i *)(const void *)round_table(type))),
                            v);
    return _mm256_add_epi8(v, _mm256_set1_epi8((char)round_more(type, false)));
}

/* Bytes of a block: of block b at `at`, the place of the block of 32 or of that of 256. */
INLINED __m256i avx2_codes(const uint8_t *at, int b, const enum k_type type)
{
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(3);
    const __m256i one = _mm256_set1_epi8(1);
    const __m256i *q = (const __m256i *)(const void *)at;
    __m256i v, high;

    if (type == K_Q8_0)
        return _mm256_loadu_si256((const __m256i *)(const void *)(at + 2));
    if (type == K_Q5_0 || type == K_Q5_1)
        return _mm256_or_si256(avx2_nibbles(at + round_skipped(type), type),
                               avx2_fifths(at + round_skipped(type) - 4));
    if (type == K_IQ4_XS)
        return avx2_nibbles(at + 8 + 16 * b, type);
    if (k_type_block(type) == 32)
        return avx2_nibbles(at + round_skipped(type), type);
    if (type == K_Q3_K) {
        v = _mm256_loadu_si256((const __m256i *)(const void *)(at + 32 + b / 4 * 32));
        v = _mm256_and_si256(avx2_shifted(v, b % 4 * 2), two);
        high = _mm256_and_si256(avx2_shifted(_mm256_loadu_si256(q), b), one);
        return _mm256_or_si256(v, _mm256_slli_epi16(high, 2));
    }
    if (type == K_Q6_K) {
        q = (const __m256i *)(const void *)(at + b / 4 * 64 + b % 2 * 32);
        v = _mm256_and_si256(avx2_shifted(_mm256_loadu_si256(q), b % 4 / 2 * 4), low);
        q = (const __m256i *)(const void *)(at + 128 + b / 4 * 32);
        high = _mm256_and_si256(avx2_shifted(_mm256_loadu_si256(q), b % 4 * 2), two);
        return _mm256_or_si256(v, _mm256_slli_epi16(high, 4));
    }
    q = (const __m256i *)(const void *)(at + (type == K_Q5_K ? 48 : 16) + b / 2 * 32);
    v = _mm256_and_si256(avx2_shifted(_mm256_loadu_si256(q), b % 2 * 4), low);
    if (type == K_Q4_K)
        return v;
    q = (const __m256i *)(const void *)(at + 16);
    high = _mm256_and_si256(avx2_shifted(_mm256_loadu_si256(q), b), one);
    return _mm256_or_si256(v, _mm256_slli_epi16(high, 4));
}

/* What the sums of four products begin with: codes of weights are less by so much than the bytes
 * that are multiplied. */
INLINED __m256i avx2_begin(const int32_t *less, const enum k_type type)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)less);
    const int more = round_more(type, false);

    if (more == 0)
        return _mm256_setzero_si256();
    if (more == 8) /* GCC keeps a shift by 0 */
        return v;
    if (more == 4)
        return _mm256_srai_epi32(v, 1);
    return _mm256_slli_epi32(v, __builtin_ctz((unsigned)more) - 3);
}

/* begin + the sums of four products of bytes. Pairs of products fit 16 bits: 2 * 128 * 127. */
INLINED __m256i avx2_dot(__m256i begin, __m256i w, __m256i x, const enum k_type type)
{
    __m256i pairs;

    if (type == K_Q8_0 || type == K_IQ4_NL || type == K_IQ4_XS)
        pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    else
        pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(begin, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* The sums of eight registers, in their order. */
INLINED __m256i avx2_fold(const __m256i *v)
{
    __m256i two[4], four[2];

    for (int i = 0; i < 4; i++)
        two[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                  _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        four[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                                   _mm256_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
    return _mm256_add_epi32(_mm256_permute2x128_si256(four[0], four[1], 0x20),
                            _mm256_permute2x128_si256(four[0], four[1], 0x31));
}

/* The whole numbers of a block's scales of 16 elements: the first one in the lower half. */
INLINED __m256i avx2_two_scales(const uint8_t *at, int b, const enum k_type type)
{
    return _mm256_set_m128i(_mm_set1_epi32(round_half_scale(at, 2 * b + 1, type)),
                            _mm_set1_epi32(round_half_scale(at, 2 * b, type)));
}

/* Whole numbers of eight outputs as float32. */
INLINED __m256 avx2_bytes(const int8_t *at)
{
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at)));
}

/* Scales of the weights of block b of eight outputs, and what all of its weights add. d and dmin
 * are those of blocks of 256. */
INLINED __m256 avx2_scales(__m256 *least, const uint8_t *const *at, const struct round_k_scales *k,
                           const __m256 *d, int b, const enum k_type type)
{
    *least = _mm256_setzero_ps();
    if (round_is_six_bits(type)) {
        *least = _mm256_xor_ps(_mm256_mul_ps(d[1], avx2_bytes(k->least[b])), _mm256_set1_ps(-0.0f));
        return _mm256_mul_ps(d[0], avx2_bytes(k->scales[b]));
    }
    if (type == K_IQ4_XS)
        return _mm256_mul_ps(d[0], avx2_bytes(k->scales[b]));
    if (round_is_k(type))
        return d[0];
    if (type == K_MXFP4)
        return avx2_powers(at);
    if (round_has_least(type))
        *least = avx2_halves(at, 2);
    return avx2_halves(at, 0);
}

/* One row, eight outputs. */
INLINED void avx2_tile(const struct cpu_rounded *r, int row, int out, const enum k_type type)
{
    const struct cpu_matmul *m = &r->m;
    const struct round_row x = round_row_at(r->rows, row, m->n_in);
    const int n_blocks = m->n_in / CPU_ROUND_BLOCK, each = round_is_k(type) ? 8 : 1;
    const uint8_t *at[OUTS];
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, d[2] = {sums[0], sums[0]};
    struct round_k_scales k;
    float results[OUTS];

    round_weights_at(at, m, out);
    for (int first = 0; first < n_blocks; first += each) {
        if (round_is_six_bits(type) || type == K_IQ4_XS)
            round_read_k_scales(&k, at, type);
        if (round_is_k(type))
            d[0] = avx2_halves(at, round_scale_at(type));
        if (round_is_six_bits(type))
            d[1] = avx2_halves(at, 2);
        for (int b = 0; b < each; b++) {
            const int8_t *codes = x.codes + (size_t)(first + b) * CPU_ROUND_BLOCK;
            __m256i q = _mm256_loadu_si256((const __m256i *)(const void *)codes);
            __m256i begin = avx2_begin(x.less + (first + b) * CPU_ROUND_BLOCK / 4, type);
            __m256i dots[OUTS];
            __m256 least, scales = avx2_scales(&least, at, &k, d, b, type), *sum;

            sum = &sums[(first + b) % 2];
            for (int j = 0; j < OUTS; j++) {
                dots[j] = avx2_dot(begin, avx2_codes(at[j], b, type), q, type);
                if (round_has_halves(type))
                    dots[j] = _mm256_mullo_epi32(dots[j], avx2_two_scales(at[j], b, type));
            }
            scales = _mm256_mul_ps(scales, _mm256_set1_ps(x.scales[first + b]));
            scales = _mm256_mul_ps(scales, _mm256_cvtepi32_ps(avx2_fold(dots)));
            *sum = _mm256_add_ps(*sum, scales);
            if (round_has_least(type))
                *sum = _mm256_add_ps(*sum, _mm256_mul_ps(least, _mm256_set1_ps(x.sums[first + b])));
        }
        for (int j = 0; j < OUTS; j++)
            at[j] += k_type_block_bytes(type);
    }
    _mm256_storeu_ps(results, _mm256_add_ps(sums[0], sums[1]));
    round_write(m, results, row, out);
}

INLINED void avx2_matmul(const struct cpu_rounded *r, const enum k_type type)
{
    for (int out = r->m.out_first; out < r->m.out_last; out += OUTS) {
        for (int row = r->m.row_first; row < r->m.row_last; row++)
            avx2_tile(r, row, out, type);
    }
}

/* A function for each type: in one for all, that of Q6_K takes 1.7 times as long (GCC 12). */
#define OF_TYPE(name)                                          \
    static void avx2_matmul_##name(const struct cpu_rounded *r) \
    {                                                          \
        avx2_matmul(r, K_##name);                               \
    }
ROUND_TYPES(OF_TYPE)
#undef OF_TYPE

static void round_matmul_avx2(const struct cpu_rounded *r)
{
#define OF_TYPE(name) [K_##name] = avx2_matmul_##name,
    static void (*const of[])(const struct cpu_rounded *) = {ROUND_TYPES(OF_TYPE)};
#undef OF_TYPE

    of[r->m.type](r); /* cpu_round_reads() */
}

static void round_rows_avx2(uint8_t *to, const float *x, int n, int n_in)
{
    round_rows(to, x, n, n_in);
}

static const struct cpu_round round_avx2 = {.name = "AVX2",
                                            .rows = round_rows_avx2,
                                            .matmul = round_matmul_avx2};
