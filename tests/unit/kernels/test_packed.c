/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: packed weights keep every bit, and stand where the lanes of a product look for them.
 * Method: strips of random codes, scales and zeros, of all arrangements, are packed and unpacked;
 * and a product is played lane by lane, from 32-bit loads, shifts and masks alone, as mma.m16n8k16
 * defines its fragments, against the plain sum. Integers, so that equal means equal. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/packed.h"
#include "tests/tap.h"

#define COLS   384 /* three records */
#define SCALES (16 * (COLS / 16) * 2)
#define BYTES  (16 * COLS + 2 * SCALES)

static unsigned seed;

static void fill(uint8_t *to, size_t n, unsigned mask)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        to[i] = (uint8_t)(seed >> 24 & mask);
    }
}

static void check_round_trip(const struct k_packing *p, int n_rows)
{
    static uint8_t codes[16 * COLS], scales[SCALES], zeros[SCALES];
    static uint8_t codes2[16 * COLS], scales2[SCALES], zeros2[SCALES];
    static uint8_t strip[BYTES + 1], again[BYTES + 1];
    struct k_unpacked from = {codes, scales, zeros}, to = {codes2, scales2, zeros2};
    size_t bytes = k_packed_strip_bytes(p, COLS), n = (size_t)(n_rows * COLS);
    size_t numbers = (size_t)(n_rows * (COLS / p->group));

    fill(codes, n, (1U << p->bits) - 1);
    fill(scales, sizeof scales, 255);
    fill(zeros, sizeof zeros, 255);
    memset(strip, 0xab, sizeof strip);
    memset(again, 0xab, sizeof again);
    k_pack_strip(strip, p, &from, n_rows, COLS);
    k_unpack_strip(&to, p, strip, n_rows, COLS);
    ok(memcmp(codes, codes2, n) == 0 &&
           memcmp(scales, scales2, numbers * (size_t)p->scale_bytes) == 0 &&
           memcmp(zeros, zeros2, numbers * (size_t)p->zero_bytes) == 0,
       "%d bits, groups of %d, %d + %d bytes, %d rows: the same bits", p->bits, p->group,
       p->scale_bytes, p->zero_bytes, n_rows);
    ok(strip[bytes] == 0xab, "nothing behind the strip is written");
    k_pack_strip(again, p, &to, n_rows, COLS);
    ok(memcmp(strip, again, sizeof strip) == 0, "packed again: the same strip");
}

/* Register r of a lane's fragment: two codes, one in each half. */
static uint32_t fragment(const uint8_t *tile, int bits, int lane, int step, int r)
{
    int bits32 = bits == 4 ? step : 2 * step + r / 2;
    uint32_t word;

    memcpy(&word, tile + bits32 / 4 * 512 + lane * 16 + bits32 % 4 * 4, 4);
    return bits == 4 ? word >> 4 * r & 0x000f000fU : word >> r % 2 * 8 & 0x00ff00ffU;
}

/* One lane's part of the sums of 64 columns. */
static void play_lane(long sums[16], const uint8_t *tile, const struct k_packing *p, int lane,
                      const int *x)
{
    int g = lane / 4, q = lane % 4;

    for (int i = 0; i < 16; i++) {
        int step = i / 4, r = i % 4, col = 32 * (step / 2) + 8 * q + 4 * (step % 2) + r / 2 * 2;
        uint32_t two = fragment(tile, p->bits, lane, step, r);

        if (p->in_order)
            col = 16 * step + 2 * q + r / 2 * 8;

        sums[g + r % 2 * 8] += (long)(two & 0xffff) * x[col] + (long)(two >> 16) * x[col + 1];
    }
}

static void check_product(int bits, bool in_order)
{
    static uint8_t codes[16 * COLS], scales[SCALES], strip[BYTES];
    const struct k_packing p = {bits, 128, 2, 0, in_order, false};
    struct k_unpacked from = {codes, scales, NULL};
    long sums[16] = {0}, want;
    int x[COLS], n_wrong = 0;

    fill(codes, sizeof codes, (1U << bits) - 1);
    for (int i = 0; i < COLS; i++)
        x[i] = i * i % 1009 - 500;
    k_pack_strip(strip, &p, &from, 16, COLS);
    for (int tile = 0; tile < COLS / 64; tile++) {
        const uint8_t *record = strip + (size_t)(tile / 2) * k_packed_record_bytes(&p);

        for (int lane = 0; lane < 32; lane++)
            play_lane(sums, record + tile % 2 * 128 * bits, &p, lane, x + tile * 64);
    }
    for (int row = 0; row < 16; row++) {
        want = 0;
        for (int col = 0; col < COLS; col++)
            want += (long)codes[row * COLS + col] * x[col];
        n_wrong += sums[row] != want;
    }
    ok(n_wrong == 0, "%d bits%s: a product played by lanes, %d of 16 rows wrong", bits,
       in_order ? " in order" : "", n_wrong);
}

/* Floats: the shifts and masks of packed_floats() (packed.cuh) make registers whose halves are the
 * sign, and the others from bit 6 on; scales stand as a lane reads them. */
static void check_floats(int group)
{
    static uint8_t codes[16 * COLS], scales[SCALES], strip[BYTES];
    const struct k_packing p = {4, group, 1, 0, true, true};
    const uint32_t mask = 0x81c081c0U;
    struct k_unpacked from = {codes, scales, NULL};
    int n_wrong = 0, n_scales_wrong = 0, groups = 128 / group;

    fill(codes, sizeof codes, 15);
    fill(scales, sizeof scales, 255);
    k_pack_strip(strip, &p, &from, 16, COLS);
    for (int i = 0; i < COLS / 64 * 32 * 4; i++) { /* tiles, lanes, steps */
        int tile = i / 128, lane = i / 4 % 32, step = i % 4;
        const uint8_t *record = strip + (size_t)(tile / 2) * k_packed_record_bytes(&p);
        uint32_t w, two[4];

        memcpy(&w, record + tile % 2 * 512 + lane * 16 + step * 4, 4);
        two[0] = w << 6 & mask;
        two[1] = w << 2 & mask;
        two[2] = (w >> 4 | w << 28) & mask;
        two[3] = (w & 0x81808180U) | (w >> 8 & 0x00400040U);
        for (int k = 0; k < 8; k++) { /* registers, halves */
            int r = k / 2, row = lane / 4 + r % 2 * 8;
            int col = tile * 64 + 16 * step + 2 * (lane % 4) + r / 2 * 8 + k % 2;
            uint32_t code = codes[row * COLS + col];

            n_wrong += (two[r] >> 16 * (k % 2) & 0xffff) != ((code & 8) << 12 | (code & 7) << 6);
            n_scales_wrong += record[1024 + (row % 8 * groups + col % 128 / group) * 2 + row / 8] !=
                              scales[row * (COLS / group) + col / group];
        }
    }
    ok(n_wrong == 0 && n_scales_wrong == 0,
       "floats in groups of %d as lanes read them: %d codes and %d scales wrong", group, n_wrong,
       n_scales_wrong);
    check_round_trip(&p, 16);
    check_round_trip(&p, 5);
}

static void check_sizes(void)
{
    const struct k_packing int4 = {4, 128, 2, 0, false, false}, nvfp4 = {4, 16, 1, 0, true, true},
                           odd = {4, 48, 2, 0, false, false}, wide = {6, 128, 2, 0, false, false};

    ok(k_packed_record_bytes(&int4) == 1056, "4 bits, groups of 128: 4.125 bits a weight");
    ok(k_packed_record_bytes(&nvfp4) == 1152, "4 bits, groups of 16: 4.5 bits a weight");
    ok(k_packed_bytes(&int4, 17, 256) == (size_t)2 * 2 * 1056, "17 rows are two strips");
    ok(k_packing_takes(&int4, 4096) && k_packing_takes(&nvfp4, 14336), "whole records are taken");
    ok(!k_packing_takes(&int4, 4096 + 64) && !k_packing_takes(&int4, 0), "others are not");
    ok(!k_packing_takes(&odd, 4096) && !k_packing_takes(&wide, 4096), "nor other groups and bits");
}

int main(void)
{
    seed = tap_seed(1);
    check_sizes();
    check_floats(16);
    check_floats(32);
    for (int bits = 4; bits <= 8; bits += 4) {
        for (int group = 16; group <= 128; group *= 2)
            for (int zero_bytes = 0; zero_bytes <= 2; zero_bytes++) {
                const struct k_packing p = {
                    bits, group, 1 + (zero_bytes + group / 16) % 2, zero_bytes, group / 16 % 4 == 1,
                    false};

                check_round_trip(&p, 16);
                check_round_trip(&p, 5);
            }
        check_product(bits, false);
        check_product(bits, true);
    }
    return tap_done();
}
