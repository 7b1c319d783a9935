/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops for AVX-512 with VNNI; included by cpu_round.c only. A register has the 64 bytes of a pair
 * of blocks, or numbers for 8 outputs and the two blocks, in four parts of four: outputs 0 to 3 of
 * the first block, of the second, outputs 4 to 7 of the first, of the second. Weights are unpacked
 * once for up to ROWS_512 rows. */

#define ROWS_512 4
#define AHEAD    OUTS /* outputs whose weights are fetched before they are needed */

INLINED __m512i avx512_join(__m256i low, __m256i high)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

INLINED __m256i avx512_load(const uint8_t *at)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)at);
}

/* Two registers of the same bytes, each shifted. */
INLINED __m512i avx512_shifted(const uint8_t *at, int low, int high)
{
    __m256i v = avx512_load(at);

    return avx512_join(_mm256_srl_epi16(v, _mm_cvtsi32_si128(low)),
                       _mm256_srl_epi16(v, _mm_cvtsi32_si128(high)));
}

/* The two blocks of pair p of a row of a type with blocks of 32; of the last odd one, the first
 * twice. */
INLINED void avx512_pair_at(const uint8_t **at, const uint8_t *row, int p, int n_blocks,
                            const enum k_type type)
{
    at[0] = row + (size_t)(2 * p) * (size_t)k_type_block_bytes(type);
    at[1] = 2 * p + 1 < n_blocks ? at[0] + k_type_block_bytes(type) : at[0];
}

/* Codes of twice 16 bytes, of each the low halves first; or the numbers of a table at these places,
 * as unsigned ones. */
INLINED __m512i avx512_nibbles(const uint8_t *first, const uint8_t *second, const enum k_type type)
{
    const __m512i twice = _mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0);
    const __m512i shifts = _mm512_set_epi64(4, 4, 0, 0, 4, 4, 0, 0);
    __m256i both = _mm256_set_m128i(_mm_loadu_si128((const __m128i *)(const void *)second),
                                    _mm_loadu_si128((const __m128i *)(const void *)first));
    __m512i v = _mm512_permutexvar_epi64(twice, _mm512_castsi256_si512(both));

    v = _mm512_and_si512(_mm512_srlv_epi64(v, shifts), _mm512_set1_epi8(15));
    if (!round_is_table(type))
        return v;
    v = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_add_epi8(
                                _mm_loadu_si128((const __m128i *)(const void *)round_table(type)),
                                _mm_set1_epi8((char)round_more(type, true)))),
                            v);
    return v;
}

/* Bytes of a pair of blocks of 32, at[0] and at[1], as unsigned numbers. */
INLINED __m512i avx512_codes_32(const uint8_t *const *at, const enum k_type type)
{
    const int skipped = round_skipped(type);
    uint32_t fifths[2];
    __m512i v;

    if (type == K_Q8_0)
        return _mm512_xor_si512(avx512_join(avx512_load(at[0] + 2), avx512_load(at[1] + 2)),
                                _mm512_set1_epi8((char)0x80));
    v = avx512_nibbles(at[0] + skipped, at[1] + skipped, type);
    if (type != K_Q5_0 && type != K_Q5_1)
        return v;
    memcpy(&fifths[0], at[0] + skipped - 4, sizeof fifths[0]);
    memcpy(&fifths[1], at[1] + skipped - 4, sizeof fifths[1]);
    return _mm512_mask_add_epi8(v, (uint64_t)fifths[1] << 32 | fifths[0], v, _mm512_set1_epi8(16));
}

/* The same of pair p of four of a block of 256. */
INLINED __m512i avx512_codes_256(const uint8_t *at, int p, const enum k_type type)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i v, high;

    if (type == K_IQ4_XS)
        return avx512_nibbles(at + 8 + 32 * p, at + 24 + 32 * p, type);
    if (type == K_Q3_K) {
        v = avx512_shifted(at + 32 + p / 2 * 32, p % 2 * 4, p % 2 * 4 + 2);
        v = _mm512_and_si512(v, _mm512_set1_epi8(3));
        high = _mm512_and_si512(avx512_shifted(at, 2 * p, 2 * p + 1), _mm512_set1_epi8(1));
        return _mm512_or_si512(v, _mm512_slli_epi16(high, 2));
    }
    if (type == K_Q6_K) {
        v = _mm512_loadu_si512(at + p / 2 * 64);
        v = _mm512_and_si512(_mm512_srl_epi16(v, _mm_cvtsi32_si128(p % 2 * 4)), low);
        high = avx512_shifted(at + 128 + p / 2 * 32, p % 2 * 4, p % 2 * 4 + 2);
        high = _mm512_and_si512(high, _mm512_set1_epi8(3));
        return _mm512_or_si512(v, _mm512_slli_epi16(high, 4));
    }
    v = _mm512_and_si512(avx512_shifted(at + (type == K_Q5_K ? 48 : 16) + p * 32, 0, 4), low);
    if (type == K_Q4_K)
        return v;
    high = _mm512_and_si512(avx512_shifted(at + 16, 2 * p, 2 * p + 1), _mm512_set1_epi8(1));
    return _mm512_or_si512(v, _mm512_slli_epi16(high, 4));
}

/* What the sums of four products begin with, because codes of weights are less by so much than the
 * bytes that are multiplied. */
INLINED __m512i avx512_begin(const int32_t *less, const enum k_type type)
{
    __m512i v = _mm512_loadu_si512(less);
    const int more = round_more(type, true);

    if (more == 0)
        return _mm512_setzero_si512();
    if (more == 8) /* GCC keeps a shift by 0 */
        return v;
    if (more == 4)
        return _mm512_srai_epi32(v, 1);
    return _mm512_slli_epi32(v, (unsigned)__builtin_ctz((unsigned)more) - 3);
}

/* The sums of both halves of eight registers. */
INLINED __m512i avx512_fold(const __m512i *v)
{
    __m512i two[4], four[2];

    for (int i = 0; i < 4; i++)
        two[i] = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]),
                                  _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        four[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(two[2 * i], two[2 * i + 1]),
                                   _mm512_unpackhi_epi64(two[2 * i], two[2 * i + 1]));
    return _mm512_add_epi32(_mm512_shuffle_i32x4(four[0], four[1], 0x88),
                            _mm512_shuffle_i32x4(four[0], four[1], 0xdd));
}

/* Numbers of the first and the second block, for all outputs. */
INLINED __m512 avx512_of_blocks(const float *two)
{
    const __m512i which = _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0);
    double both;

    memcpy(&both, two, sizeof both);
    return _mm512_permutevar_ps(_mm512_castpd_ps(_mm512_set1_pd(both)), which);
}

/* Numbers of eight outputs, for both blocks. */
INLINED __m512 avx512_of_outputs(__m256 v)
{
    const __m512i which = _mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0);

    return _mm512_castsi512_ps(
        _mm512_permutexvar_epi64(which, _mm512_castsi256_si512(_mm256_castps_si256(v))));
}

/* Eight float16 numbers, one of each row. */
INLINED __m128i avx512_eight(const uint8_t *const *rows, size_t at)
{
    uint16_t half[OUTS];

    for (int j = 0; j < OUTS; j++)
        memcpy(&half[j], rows[j] + at, sizeof half[j]);
    return _mm_set_epi16((short)half[7], (short)half[6], (short)half[5], (short)half[4],
                         (short)half[3], (short)half[2], (short)half[1], (short)half[0]);
}

/* Float16 numbers of the two blocks of eight outputs. */
INLINED __m512 avx512_halves(const uint8_t *const *first, const uint8_t *const *second, size_t at)
{
    __m256i all = _mm256_set_m128i(avx512_eight(second, at), avx512_eight(first, at));

    return _mm512_cvtph_ps(_mm256_permute4x64_epi64(all, 0xd8));
}

/* Exponents of MXFP4 of the two blocks of eight outputs as scales of doubled values. */
INLINED __m512 avx512_powers(const uint8_t *const *first, const uint8_t *const *second)
{
    __m128i bytes = _mm_setr_epi8(
        (char)first[0][0], (char)first[1][0], (char)first[2][0], (char)first[3][0],
        (char)second[0][0], (char)second[1][0], (char)second[2][0], (char)second[3][0],
        (char)first[4][0], (char)first[5][0], (char)first[6][0], (char)first[7][0],
        (char)second[4][0], (char)second[5][0], (char)second[6][0], (char)second[7][0]);
    __m512i e = _mm512_cvtepu8_epi32(bytes), small;

    small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(
        _mm512_mask_slli_epi32(small, _mm512_cmpgt_epi32_mask(e, _mm512_set1_epi32(1)),
                               _mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23));
}

/* Whole numbers of the two blocks of eight outputs. */
INLINED __m512 avx512_bytes(const int8_t *at)
{
    __m128i all = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)at), 0xd8);

    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(all));
}

/* The whole numbers of the scales of 16 elements of pair p. */
INLINED __m512i avx512_four_scales(const uint8_t *at, int p, const enum k_type type)
{
    const __m512i which = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    uint32_t four, high;
    __m128i v;

    memcpy(&four, at + (type == K_Q6_K ? 192 + 4 * p : 96 + p % 2 * 4), sizeof four);
    if (type == K_Q3_K) { /* round_half_scale() of four */
        memcpy(&high, at + 104, sizeof high);
        four = (four >> p / 2 * 4 & 0x0f0f0f0f) | (high >> p * 2 & 0x03030303) << 4;
    }
    v = _mm_cvtepi8_epi32(_mm_cvtsi32_si128((int)four));
    if (type == K_Q3_K)
        v = _mm_sub_epi32(v, _mm_set1_epi32(32));
    return _mm512_permutexvar_epi32(which, _mm512_castsi128_si512(v));
}

/* The weights of eight outputs that a tile is at. */
struct avx512_weights {
    __m512i codes[OUTS];
    __m512 scales, least;
    const uint8_t *at[OUTS], *second[OUTS];
    struct round_k_scales k;
    __m512 d, dmin; /* of blocks of 256 */
};

/* Read pair p of blocks of 32. */
INLINED void avx512_read_32(struct avx512_weights *w, int p, int n_blocks, const enum k_type type)
{
    for (int j = 0; j < OUTS; j++) {
        const uint8_t *both[2];

        avx512_pair_at(both, w->at[j], 0, n_blocks - 2 * p, type);
        w->second[j] = both[1];
        w->codes[j] = avx512_codes_32(both, type);
    }
    w->scales =
        type == K_MXFP4 ? avx512_powers(w->at, w->second) : avx512_halves(w->at, w->second, 0);
    if (round_has_least(type))
        w->least = avx512_halves(w->at, w->second, 2);
    for (int j = 0; j < OUTS; j++)
        w->at[j] += 2 * k_type_block_bytes(type);
}

/* Read pair p of a row with blocks of 256. */
INLINED void avx512_read_256(struct avx512_weights *w, int p, const enum k_type type)
{
    if (p % 4 == 0) {
        for (int j = 0; p > 0 && j < OUTS; j++)
            w->at[j] += k_type_block_bytes(type);
        w->d = avx512_of_outputs(_mm256_cvtph_ps(avx512_eight(w->at, round_scale_at(type))));
        if (round_is_six_bits(type))
            w->dmin = avx512_of_outputs(_mm256_cvtph_ps(avx512_eight(w->at, 2)));
        if (!round_has_halves(type))
            round_read_k_scales(&w->k, w->at, type);
    }
    for (int j = 0; j < OUTS; j++)
        w->codes[j] = avx512_codes_256(w->at[j], p % 4, type);
    w->scales = w->d;
    if (!round_has_halves(type))
        w->scales = _mm512_mul_ps(w->d, avx512_bytes(w->k.scales[p % 4 * 2]));
    if (round_is_six_bits(type))
        w->least = _mm512_xor_ps(_mm512_mul_ps(w->dmin, avx512_bytes(w->k.least[p % 4 * 2])),
                                 _mm512_set1_ps(-0.0f));
}

/* *sum += the products of pair p with a row of inputs. */
INLINED void avx512_add(__m512 *sum, const struct avx512_weights *w, const struct round_row *x,
                        int p, const enum k_type type)
{
    __m512i q = _mm512_loadu_si512(x->codes + (size_t)p * PAIR);
    __m512i begin = avx512_begin(x->less + (size_t)p * (PAIR / 4), type);
    __m512i dots[OUTS];
    __m512 scales = _mm512_mul_ps(w->scales, avx512_of_blocks(x->scales + 2 * p));

    for (int j = 0; j < OUTS; j++) {
        dots[j] = _mm512_dpbusd_epi32(begin, w->codes[j], q);
        if (round_has_halves(type))
            dots[j] = _mm512_mullo_epi32(dots[j], avx512_four_scales(w->at[j], p % 4, type));
    }
    *sum = _mm512_add_ps(*sum, _mm512_mul_ps(scales, _mm512_cvtepi32_ps(avx512_fold(dots))));
    if (round_has_least(type))
        *sum = _mm512_add_ps(*sum, _mm512_mul_ps(w->least, avx512_of_blocks(x->sums + 2 * p)));
}

/* rows (a constant) rows, eight outputs. */
INLINED void avx512_tile(const struct cpu_rounded *r, int row, int out, const int rows,
                         const enum k_type type)
{
    const struct cpu_matmul *m = &r->m;
    const int n_blocks = m->n_in / CPU_ROUND_BLOCK, n_pairs = (n_blocks + 1) / 2;
    const size_t tile_bytes = OUTS * m->w_bytes, step = tile_bytes / (size_t)n_pairs + 1;
    const uint8_t *next = (const uint8_t *)m->w + (size_t)(out + AHEAD) * m->w_bytes;
    size_t fetched = row == m->row_first ? 0 : SIZE_MAX;
    struct avx512_weights w;
    struct round_row x[ROWS_512];
    __m512 sums[ROWS_512];

    round_weights_at(w.at, m, out);
    for (int i = 0; i < rows; i++) {
        x[i] = round_row_at(r->rows, row + i, m->n_in);
        sums[i] = _mm512_setzero_ps();
    }
    for (int p = 0; p < n_pairs; p++) {
        for (; fetched < (size_t)(p + 1) * step; fetched += 64)
            __builtin_prefetch(next + fetched);
        if (round_is_k(type))
            avx512_read_256(&w, p, type);
        else
            avx512_read_32(&w, p, n_blocks, type);
        for (int i = 0; i < rows; i++)
            avx512_add(&sums[i], &w, &x[i], p, type);
    }
    for (int i = 0; i < rows; i++) {
        __m128 low =
            _mm_add_ps(_mm512_extractf32x4_ps(sums[i], 0), _mm512_extractf32x4_ps(sums[i], 1));
        __m128 high =
            _mm_add_ps(_mm512_extractf32x4_ps(sums[i], 2), _mm512_extractf32x4_ps(sums[i], 3));
        float results[OUTS];

        _mm_storeu_ps(results, low);
        _mm_storeu_ps(results + 4, high);
        round_write(m, results, row + i, out);
    }
}

INLINED void avx512_matmul(const struct cpu_rounded *r, const enum k_type type)
{
    for (int out = r->m.out_first; out < r->m.out_last; out += OUTS) {
        int row = r->m.row_first;

        for (; row + ROWS_512 <= r->m.row_last; row += ROWS_512)
            avx512_tile(r, row, out, ROWS_512, type);
        for (; row < r->m.row_last; row++)
            avx512_tile(r, row, out, 1, type);
    }
}

/* A function for each type: in one for all, that of Q6_K takes 1.7 times as long (GCC 12). */
#define OF_TYPE(name)                                          \
    static void avx512_matmul_##name(const struct cpu_rounded *r) \
    {                                                          \
        avx512_matmul(r, K_##name);                               \
    }
ROUND_TYPES(OF_TYPE)
#undef OF_TYPE

static void round_matmul_avx512(const struct cpu_rounded *r)
{
#define OF_TYPE(name) [K_##name] = avx512_matmul_##name,
    static void (*const of[])(const struct cpu_rounded *) = {ROUND_TYPES(OF_TYPE)};
#undef OF_TYPE

    of[r->m.type](r); /* cpu_round_reads() */
}

static void round_rows_avx512(uint8_t *to, const float *x, int n, int n_in)
{
    round_rows(to, x, n, n_in);
}

static const struct cpu_round round_avx512 = {.name = "AVX-512 VNNI",
                                              .rows = round_rows_avx512,
                                              .matmul = round_matmul_avx512};
