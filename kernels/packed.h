/* SPDX-License-Identifier: Apache-2.0
 *
 * The arrangement in memory of weights of 4 or 8 bits that a product is to read as they are:
 * records in which codes, scales and zeros travel together.
 *
 *   matrix [n_out][n_in] -> strips of 16 rows -> records of 128 columns, one after the other
 *   record: codes of columns 0..63 | codes of columns 64..127 | scales | zeros
 *
 * Codes stand as the lanes of mma.m16n8k16 want them, with the weights on the side of 16: of 64
 * columns each lane has 32 codes, in words of 16 bytes that lanes read side by side. 32 bits of
 * 4-bit codes (64 of 8-bit codes) make the four registers of a fragment with one mask per register,
 * because the two codes of a register are 16 bits apart. Lane (g = lane / 4, q = lane % 4) has rows
 * g and g + 8; its fragment `step` (0..3) has the columns
 *
 *   32 (step / 2) + 8 q + 4 (step % 2) + 0..3
 *
 * or, in_order, the columns of the instruction itself, 16 step + 2 q + {0, 1, 8, 9}: then ldmatrix
 * and the descriptors of wgmma find x as it is, and else 16-byte loads do.
 *
 * Thus fragments 0 and 1 are columns 0..31 and fragments 2 and 3 are columns 32..63: scales of
 * groups of 32 columns and more can be applied to sums. Scales and zeros are
 * [128 / group][16 rows]; their bits are kept, whatever they mean.
 *
 * Floats (e2m1) have their bits spread over the 32 of a fragment's word, so that a shift by a
 * constant and a mask make a register of bfloat16 (k_float4_spread()), and scales of a byte in the
 * order [8][128 / group][2] of rows g and g + 8, so that a lane reads all of its own at once. */
#ifndef QUIRE_KERNELS_PACKED_H
#define QUIRE_KERNELS_PACKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define K_PACKED_ROWS 16  /* of a strip */
#define K_PACKED_COLS 128 /* of a record */

struct k_packing {
    int bits;        /* of a code: 4 or 8 */
    int group;       /* columns that share a scale: 16, 32, 64 or 128 */
    int scale_bytes; /* of a scale: 1 or 2 */
    int zero_bytes;  /* of a zero point or minimum: 0 (there are none), 1 or 2 */
    bool in_order;   /* columns of a lane: see above */
    bool is_float;   /* codes are e2m1: 4 bits, in_order, scale_bytes 1, zero_bytes 0 */
};

/* The records of a packed format (k_format_is_packed()): scales of 2 bytes, or 1 of floats, zeros
 * of 1, in order. */
K_BOTH struct k_packing k_packing_of(const struct k_format *f)
{
    bool is_float = f->elem == K_FLOAT4;
    struct k_packing packing = {f->elem == K_INT8 ? 8 : 4, f->group_cols, is_float ? 1 : 2,
                                f->has_zeros ? 1 : 0,      true,          is_float};

    return packing;
}

/* Eight codes of e2m1, the registers' one after another from bit 0 on in each half of the word, as
 * records have them. In a half register 0 has its sign in bit 9 and the other bits from 0 on;
 * register 1 in bit 13 and from 4 on; register 2 in bit 3 of the other half and from 10 on;
 * register 3 in bits 15, 8, 7 and 14. */
K_BOTH uint32_t k_float4_spread(uint32_t w)
{
    uint32_t second = w & 0x08000800U;

    return (w & 0x80008000U) | (w & 0x00770077U) | (w & 0x00880088U) << 6 | (w & 0x07000700U) << 2 |
           second << 8 | second >> 24 | (w & 0x10001000U) << 2 | (w & 0x60006000U) >> 6;
}

/* The inverse. */
K_BOTH uint32_t k_float4_gather(uint32_t w)
{
    uint32_t second = w & 0x00080008U;

    return (w & 0x80008000U) | (w & 0x00770077U) | (w >> 6 & 0x00880088U) | (w >> 2 & 0x07000700U) |
           second >> 8 | second << 24 | (w >> 2 & 0x10001000U) | (w & 0x01800180U) << 6;
}

/* Whether rows of n_in columns can be packed: they are whole records, and all sizes are known. */
bool k_packing_takes(const struct k_packing *p, int n_in);

/* Bytes of a record, a multiple of 16; and of a strip of rows of n_in columns. */
size_t k_packed_record_bytes(const struct k_packing *p);
size_t k_packed_strip_bytes(const struct k_packing *p, int n_in);

/* Bytes of a matrix. n_out is rounded up to whole strips. */
size_t k_packed_bytes(const struct k_packing *p, int n_out, int n_in);

/* Rows of a strip that are not packed: one code per byte, in its low bits. */
struct k_unpacked {
    uint8_t *codes;  /* [n_rows][n_in] */
    uint8_t *scales; /* [n_rows][n_in / group], of scale_bytes each */
    uint8_t *zeros;  /* the same shape, of zero_bytes each; NULL without zeros */
};

/* Pack a strip of n_rows (1..16) rows into strip [k_packed_strip_bytes()]. Missing rows get zeros
 * everywhere. k_packing_takes() must hold. Bits above a code's are ignored. No errors; any thread;
 * each code is moved once. */
void k_pack_strip(uint8_t *strip, const struct k_packing *p, const struct k_unpacked *from,
                  int n_rows, int n_in);

/* The inverse, bit for bit. */
void k_unpack_strip(const struct k_unpacked *to, const struct k_packing *p, const uint8_t *strip,
                    int n_rows, int n_in);

#ifdef __cplusplus
}
#endif
#endif
