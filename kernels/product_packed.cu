/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of one row with codes of 4 bits in records (packed.h), bound by the bytes of w, with the
 * operations around them in a decode (k_multiply() in kernels.h). sm90_product.cu has more rows.
 *
 *   w --bulk copies--> ring of records (per warp) --mma--> accumulators -+  end of a pass: sums of
 *   x --cp.async--> shared memory ------------------^                    +--> warps and CTAs
 *                                                                             -> epilogue -> y
 *
 * Split: a unit is two strips of 16 rows of w: two neighbours or, when gated, a gate and its up. A
 * cluster of n_split CTAs has a run of units, and each of its CTAs a share of n_in, so that the
 * rows of x in that share stay in shared memory, and x is read from L2 by few. n_warps of a CTA's
 * warps share a unit, each with a part of the CTA's records; the others have the next units. Each
 * warp has a ring of its own, which runs on from unit to unit, and whose first records are loaded
 * before the previous kernel has ended.
 *
 * A pass is one unit of every warp. Then partial sums go to shared memory, in one of two buffers;
 * they are read, also by the other CTAs of the cluster, after the mainloop of the next pass, so
 * that the wait for the others is hidden.
 *
 * Codes as they are in a register are subnormal numbers of bfloat16, code * 2^-133 (packed.cuh), of
 * which the tensor cores make exact products; so x is times 2^100 in shared memory. From a sum of a
 * group of columns zero times the group's sum of x is subtracted, and the difference is multiplied
 * by the group's scale, in float32; sums are times 2^33 at the end. Floats are multiplied by their
 * group's scale one by one, which is exact, and a sum by its row's at the end. x is read by
 * ldmatrix; its rows are padded by 16 bytes, so that no two of eight meet in a bank.
 *
 * The order of sums depends on the shape alone. */
#include "kernels/packed.cuh"
#include "kernels/product_cut.h"
#include "kernels/product_end.cuh"

#define WARPS      16
#define THREADS    (WARPS * 32)
#define UNIT_ROWS  32 /* two strips */
#define DEPTH_MAX  3  /* stages of a ring: with more, the end comes later */
#define DEPTH_MIN  2
#define FIRST      1 /* stages that are loaded before x, which waits behind them */
#define RUN_MAX    2
#define SPLIT_MAX  8  /* the largest cluster that every GPU has */
#define COL_STRIDE 20 /* stride of sums in shared memory: 16 rows, and no two lanes in a bank */
#define X_PAD      16
#define SMEM_MAX   (226 * 1024)

/* How a matrix is cut for a bucket of rows. */
struct packed_cut {
    int n_split, split_bits;  /* CTAs of a cluster; as a power of 2 */
    int n_warps, warps_bits;  /* warps that share a unit */
    int n_groups;             /* clusters */
    int n_units;              /* of the matrix */
    int units_each, n_longer; /* of a cluster, and how many clusters have one more */
    int n_records;            /* of a row of w */
    int record_bytes;
    int run;      /* records of a strip in a stage */
    int depth;    /* stages of a ring */
    int x_stride; /* bytes between rows of x in shared memory */
    int x_groups; /* of columns that have a sum of x; 0: floats need none */
    int buffers;  /* of sums: 1 with a single pass */
    int smem;
};

/* What the first copies need comes first: a line of arguments that was not read takes 500
 * cycles. */
struct packed_args {
    struct packed_cut c;
    const char *w;
    const float *rows;                 /* scales [n_out] of floats */
    bool is_gated, has_zeros, is_half; /* scales are float16 */
    int n, n_in, n_out;
    struct k_product p;
};

/* --- loads ------------------------------------------------------------------------------------ */

/* A warp's ring, the same in all lanes. A stage is a run of records of both of a unit's strips. */
struct record_ring {
    char *stages;
    uint64_t *full;
    const char *from;  /* to be loaded next, in the unit's first strip */
    size_t next_strip; /* from there to the second strip */
    size_t next_unit;  /* from the end of a unit's part to the beginning of the next one's */
    int stage;         /* to be multiplied next */
    uint32_t parity;
    int unit, last_unit, record;  /* to be loaded next */
    int first_record, end_record; /* the warp's part of a row */
};

/* Weights are read once per step: evict first. */
static __device__ inline void packed_copy_records(void *to, const void *from, uint32_t bytes,
                                                  uint64_t *bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_addr(to)),
                 "l"(from), "r"(bytes), "r"(shared_addr(bar)), "l"(0x12f0000000000000ULL)
                 : "memory");
}

/* Load the warp's next records into a stage. */
static __device__ inline void packed_load_next(record_ring &r, const packed_args &a, int stage)
{
    int bytes = min(a.c.run, r.end_record - r.record) * a.c.record_bytes;

    if (r.unit >= r.last_unit)
        return;
    if (leads()) {
        int apart = a.c.run * a.c.record_bytes;
        char *to = r.stages + stage * 2 * apart;

        barrier_expect(&r.full[stage], 2 * bytes);
        packed_copy_records(to, r.from, bytes, &r.full[stage]);
        packed_copy_records(to + apart, r.from + r.next_strip, bytes, &r.full[stage]);
    }
    r.record += a.c.run;
    r.from += bytes;
    if (r.record >= r.end_record) {
        r.record = r.first_record;
        r.unit += WARPS >> a.c.warps_bits;
        r.from += r.next_unit;
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* A word of codes as the operand of a product of 16 x 16: register r has row g + 8 (r % 2), and the
 * codes of row g + 8 are 16 times too large. */
static __device__ __forceinline__ void packed_bare_operand(uint32_t (&a)[4], uint32_t codes)
{
    uint32_t upper = codes >> 8;

    a[0] = codes & CODE_LOW;
    a[1] = codes & CODE_HIGH;
    a[2] = upper & CODE_LOW;
    a[3] = upper & CODE_HIGH;
}

/* Load 32 columns of eight rows of x, as two operands of a product. `at` is the lane's address:
 * eight lanes give those of a matrix of 8 x 8. */
static __device__ inline void packed_load_matrices(uint32_t (&words)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(at)
                 : "memory");
}

/* end_multiply_16x8() that the compiler may move: it has no effect but on c. */
static __device__ inline void packed_multiply_free(float (&c)[4], uint32_t a0, uint32_t a1,
                                                   uint32_t a2, uint32_t a3, uint32_t b0,
                                                   uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Multiply 16 columns: the codes of a lane, and words `at` and at + 1 of rows of x. */
template <int NT>
static __device__ inline void packed_multiply_codes(float (&part)[NT][4], uint32_t codes,
                                                    const uint32_t (&words)[NT][4], int at)
{
    uint32_t a[4];

    packed_bare_operand(a, codes);
#pragma unroll
    for (int i = 0; i < NT; i++)
        packed_multiply_free(part[i], a[0], a[1], a[2], a[3], words[i][at], words[i][at + 1]);
}

/* A lane's numbers of a group of columns, for rows g and g + 8 of a strip. */
struct group_numbers {
    float scale[2], zero[2];
};

/* The codes of row g + 8 are 16 times too large, so its zero is, too. */
template <int GROUPS, bool ZEROS>
static __device__ inline group_numbers packed_numbers_of(const char *record, int group,
                                                         const packed_args &a)
{
    int row = threadIdx.x % 32 / 4;
    const uint16_t *scales = (const uint16_t *)(record + PACKED_CODE_BYTES) + group * 16 + row;
    const uint8_t *zeros =
        (const uint8_t *)record + PACKED_CODE_BYTES + GROUPS * 32 + group * 16 + row;
    group_numbers numbers = {
        {packed_scale(scales[0], a.is_half), packed_scale(scales[8], a.is_half) * 0.0625f},
        {8.0f, 128.0f}};

    if (ZEROS) {
        numbers.zero[0] = (float)zeros[0];
        numbers.zero[1] = (float)zeros[8] * 16.0f;
    }
    return numbers;
}

/* Multiply a record of each strip by the rows of x. Every second product of a strip adds to sums of
 * its own, so that it need not wait for the one before. of_x: sums of x [group][8], times 2^-33. */
template <int NT, int GROUPS, bool ZEROS>
static __device__ inline void packed_multiply_record(float (&acc)[2][NT][4],
                                                     const char *const (&w)[2],
                                                     const uint32_t (&x)[NT], int x_at,
                                                     const float *of_x, const packed_args &a)
{
    const int quarters = 4 / GROUPS; /* of 32 columns, in a group */
    int lane = threadIdx.x % 32;
    uint32_t words[4][NT][4]; /* of a quarter: two steps, a low and a high one of each */
    uint4 codes[2][2];

#pragma unroll
    for (int i = 0; i < 4; i++)
        codes[i / 2][i % 2] = *(const uint4 *)(w[i / 2] + i % 2 * 512 + lane * 16);
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        packed_load_matrices(words[i / NT][i % NT], x[i % NT] + (uint32_t)(x_at + i / NT * 64));
#pragma unroll
    for (int group = 0; group < GROUPS; group++) {
        group_numbers numbers[2] = {packed_numbers_of<GROUPS, ZEROS>(w[0], group, a),
                                    packed_numbers_of<GROUPS, ZEROS>(w[1], group, a)};
        const float2 sums = *(const float2 *)(of_x + group * 8 + lane % 4 * 2);
        float part[2][2][NT][4] = {};

#pragma unroll
        for (int i = group * quarters * 2; i < (group + 1) * quarters * 2; i++) {
            int k = i / 2, strip = i % 2;
            const uint4 &tile = codes[strip][k / 2];

            packed_multiply_codes<NT>(part[0][strip], k % 2 == 0 ? tile.x : tile.z, words[k], 0);
            packed_multiply_codes<NT>(part[1][strip], k % 2 == 0 ? tile.y : tile.w, words[k], 2);
        }
#pragma unroll
        for (int i = 0; i < 2 * NT * 4; i++) {
            const int strip = i / (NT * 4), tile = i / 4 % NT, elem = i % 4;
            float sum = part[0][strip][tile][elem] + part[1][strip][tile][elem];

            if (elem % 2 != 0) /* of rows of x that are not there */
                continue;
            sum = __fmaf_rn(-numbers[strip].zero[elem / 2], elem % 2 == 0 ? sums.x : sums.y, sum);
            acc[strip][tile][elem] =
                __fmaf_rn(sum, numbers[strip].scale[elem / 2], acc[strip][tile][elem]);
        }
    }
}

/* A lane's scales of a record of floats: of two groups in a word. */
template <int GROUPS>
static __device__ inline void packed_load_float_scales(uint32_t (&words)[GROUPS / 2],
                                                       const char *record)
{
    const char *at = record + PACKED_CODE_BYTES + threadIdx.x % 32 / 4 * 2 * GROUPS;

    if constexpr (GROUPS == 8) {
        uint4 four = *(const uint4 *)at;

        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else {
        uint2 two = *(const uint2 *)at;

        words[0] = two.x, words[1] = two.y;
    }
}

/* packed_multiply_record() of floats. */
template <int NT, int GROUPS>
static __device__ inline void packed_multiply_floats(float (&acc)[2][NT][4],
                                                     const char *const (&w)[2],
                                                     const uint32_t (&x)[NT], int x_at)
{
    int lane = threadIdx.x % 32;
    uint32_t words[4][NT][4], scales[2][GROUPS / 2];
    float part[2][NT][4] = {};
    uint4 codes[2][2];

#pragma unroll
    for (int i = 0; i < 4; i++)
        codes[i / 2][i % 2] = *(const uint4 *)(w[i / 2] + i % 2 * 512 + lane * 16);
    packed_load_float_scales<GROUPS>(scales[0], w[0]);
    packed_load_float_scales<GROUPS>(scales[1], w[1]);
#pragma unroll
    for (int i = 0; i < 4 * NT; i++)
        packed_load_matrices(words[i / NT][i % NT], x[i % NT] + (uint32_t)(x_at + i / NT * 64));
#pragma unroll
    for (int i = 0; i < 16; i++) { /* 16 columns of one strip */
        const int step = i / 2, strip = i % 2, group = step * GROUPS / 8;
        const uint4 &tile = codes[strip][step / 4];
        float(&to)[NT][4] = step % 2 == 0 ? acc[strip] : part[strip];
        uint32_t a[4];

        packed_float_operand(a, ((const uint32_t *)&tile)[step % 4],
                             packed_float_scales(scales[strip][group / 2], FLOAT_PICK(group)));
#pragma unroll
        for (int t = 0; t < NT; t++)
            packed_multiply_free(to[t], a[0], a[1], a[2], a[3], words[step / 2][t][step % 2 * 2],
                                 words[step / 2][t][step % 2 * 2 + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++)
        acc[i / (NT * 4)][i / 4 % NT][i % 4] += part[i / (NT * 4)][i / 4 % NT][i % 4];
}

/* The warp's sums of a unit. x: a lane's addresses of each eight rows, and of_x sums of them, from
 * the CTA's first record. */
template <int NT, int GROUPS, bool IS_FLOAT, bool ZEROS>
static __device__ inline void packed_multiply_unit(float (&acc)[2][NT][4], record_ring &r,
                                                   const uint32_t (&x)[NT], int first_of_x,
                                                   const float *of_x, const packed_args &a)
{
    int apart = a.c.run * a.c.record_bytes;

#pragma unroll 1
    for (int record = r.first_record; record < r.end_record; record += a.c.run) {
        const char *at = r.stages + r.stage * 2 * apart;

        barrier_wait(&r.full[r.stage], r.parity);
#pragma unroll 1
        for (int i = 0; i < a.c.run && record + i < r.end_record; i++, at += a.c.record_bytes) {
            const char *const strips[2] = {at, at + apart};
            int of_share = record + i - first_of_x;

            if constexpr (IS_FLOAT)
                packed_multiply_floats<NT, GROUPS>(acc, strips, x, of_share * 256);
            else
                packed_multiply_record<NT, GROUPS, ZEROS>(acc, strips, x, of_share * 256,
                                                          of_x + of_share * GROUPS * 8, a);
        }
        __syncwarp();
        packed_load_next(r, a, r.stage);
        if (++r.stage == a.c.depth) {
            r.stage = 0;
            r.parity ^= 1;
        }
    }
}

/* --- the end of a pass ------------------------------------------------------------------------ */

/* Where sums of a row of the pass are, of warp 0 of the unit: sums [WARPS][2][n][COL_STRIDE]. */
static __device__ inline int packed_sum_at(int warp, int strip, int col, int n)
{
    return ((warp * 2 + strip) * n + col) * COL_STRIDE;
}

template <int NT>
static __device__ inline void packed_store_sums(float *sums, const float (&acc)[2][NT][4], int warp,
                                                int n, float unit)
{
    int row = threadIdx.x % 32 / 4, lane_col = threadIdx.x % 4 * 2;

#pragma unroll
    for (int i = 0; i < 2 * NT * 4; i++) {
        int strip = i / (NT * 4), elem = i % 4, col = i / 4 % NT * 8 + lane_col + elem % 2;

        if (col < n)
            sums[packed_sum_at(warp, strip, col, n) + row + elem / 2 * 8] =
                acc[strip][i / 4 % NT][elem] * unit;
    }
}

/* Numbers of the pass' end. */
struct pass_end {
    float *sums; /* two buffers */
    int buffer;  /* floats of one */
    const float *inverse;
    uint32_t rank; /* of the CTA in its cluster */
    int unit_bits; /* outputs of a unit and column: 32, or 16 when gated; as a power of 2 */
    int pass_bits; /* outputs of a pass and column, likewise */
    int per_pass;  /* units */
};

/* An output, and its rows' scales. */
struct scaled_output {
    output o;
    float scale, scale_up;
};

/* A thread's i-th output of a pass; the cluster's CTAs share them. Sixteen lanes have the rows of a
 * strip. */
static __device__ inline scaled_output packed_choose_output(const packed_args &a, const pass_end &e,
                                                            int base, int last, int i)
{
    int index = ((i << a.c.split_bits) + (int)e.rank) * THREADS + (int)threadIdx.x;
    scaled_output own = {{}, 1.0f, 1.0f};
    output &o = own.o;

    o.place = index & ((1 << e.pass_bits) - 1);
    o.c = index >> e.pass_bits;
    o.row = (base << e.unit_bits) + o.place;
    o.mine = o.c < a.n && base + (o.place >> e.unit_bits) < last;
    if (o.mine)
        end_fetch_output(o, a.p, a.n_out);
    if (o.mine && a.rows != NULL) {
        own.scale = a.rows[o.row];
        own.scale_up = a.rows[a.is_gated ? o.row + a.n_out / 2 : o.row];
    }
    return own;
}

static __device__ inline float packed_load_remote(const float *p, int rank)
{
    uint32_t at;
    float value;

    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_addr(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
    return value;
}

/* The sum over the CTAs of the cluster and the warps of a unit, in their order. */
static __device__ inline float packed_sum_parts(const packed_args &a, const float *sums, int slot,
                                                int strip, int col, int row)
{
    float sum = 0.0f;

    if (a.c.n_split == 1) {
#pragma unroll 4
        for (int i = 0; i < a.c.n_warps; i++)
            sum += sums[packed_sum_at((slot << a.c.warps_bits) + i, strip, col, a.n) + row];
        return sum;
    }
    for (int i = 0; i < a.c.n_warps; i++) {
        const float *at = sums + packed_sum_at((slot << a.c.warps_bits) + i, strip, col, a.n) + row;

#pragma unroll 4
        for (int rank = 0; rank < a.c.n_split; rank++)
            sum += packed_load_remote(at, rank);
    }
    return sum;
}

static __device__ inline void packed_finish(const packed_args &a, const targets &to,
                                            const pass_end &e, const float *sums,
                                            const scaled_output &own)
{
    const output &o = own.o;
    int slot = o.place >> e.unit_bits, row = o.place & ((1 << e.unit_bits) - 1);
    float sum, up = 0.0f;

    if (!o.mine)
        return;
    sum = packed_sum_parts(a, sums, slot, row / 16, o.c, row % 16) * own.scale;
    if (to.kind == K_PRODUCT_GATED)
        up = packed_sum_parts(a, sums, slot, 1, o.c, row) * own.scale_up;
    end_write_output(to, o, sum, up, e.inverse[o.c]);
}

/* All outputs of a pass; the thread's first is prefetched. */
static __device__ inline void packed_end_pass(const packed_args &a, const targets &to,
                                              const pass_end &e, const scaled_output &first,
                                              int base, int last, int pass)
{
    const float *sums = e.sums + (pass & 1) * e.buffer;
    int per_turn = THREADS << a.c.split_bits, n = a.n << e.pass_bits;

    if (a.c.n_split == 1)
        __syncthreads();
    else
        cluster_wait();
    packed_finish(a, to, e, sums, first);
    for (int i = 1; i * per_turn < n; i++)
        packed_finish(a, to, e, sums, packed_choose_output(a, e, base, last, i));
}

/* Release the sums to the cluster; a CTA alone synchronises in packed_end_pass(). */
static __device__ inline void packed_cluster_arrive(int n_split)
{
    if (n_split > 1)
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

/* --- the kernel ------------------------------------------------------------------------------- */

/* Load the stages that the first ones have left. */
static __device__ inline void packed_load_rest(record_ring &r, const packed_args &a)
{
    for (int i = FIRST; i < a.c.depth; i++)
        packed_load_next(r, a, i);
}

/* The rows of x in the CTA's share of n_in, by all threads: a bulk copy would wait behind those of
 * w, for microseconds. The rest of the ring is loaded after them. */
static __device__ inline void packed_load_x(char *xs, const packed_args &a, int first, int end,
                                            record_ring &r)
{
    int bytes = (end - first) * 256;
    const char *from = (const char *)a.p.x + (size_t)first * 256;

    for (int col = 0; col < a.n; col++) {
        for (int at = (int)threadIdx.x * 16; at < bytes; at += THREADS * 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             shared_addr(xs + col * a.c.x_stride + at)),
                         "l"(from + (size_t)col * a.n_in * 2 + at)
                         : "memory");
    }
    packed_load_rest(r, a);
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Eight of x times 2^100; their sum. */
static __device__ inline float packed_enlarge(uint4 &words)
{
    uint32_t *word = (uint32_t *)&words;
    float sum = 0.0f;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum += __uint_as_float(word[i] << 16) + __uint_as_float(word[i] & 0xffff0000U);
        word[i] = mxfp4_times(word[i], 0x71807180U);
    }
    return sum;
}

/* packed_load_x() for codes: x times 2^100, and the sums of its groups of columns, times 2^-33 as
 * those of the products are. */
template <int GROUPS>
static __device__ inline void packed_load_large_x(char *xs, float *of_x, const packed_args &a,
                                                  int first, int end, record_ring &r)
{
    const int TOGETHER = 4, LANES = 16 / GROUPS; /* that have a group */
    int n = (end - first) * 16;                  /* words of 16 bytes */
    const uint4 *from = (const uint4 *)a.p.x + (size_t)first * 16;

    for (int base = 0; base < n; base += TOGETHER * THREADS) {
        uint4 words[TOGETHER];

#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            int i = base + k * THREADS + (int)threadIdx.x;

            if (i < n)
                words[k] = __ldcg(from + i);
        }
        if (base == 0)
            packed_load_rest(r, a);
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) {
            int i = base + k * THREADS + (int)threadIdx.x;
            float sum;

            if (i >= n)
                break;
            sum = packed_enlarge(words[k]);
            *(uint4 *)(xs + i * 16) = words[k];
#pragma unroll
            for (int apart = LANES / 2; apart > 0;
                 apart /= 2) /* a half of the warp may have left */
                sum += __shfl_xor_sync(0xffffU << (threadIdx.x & 16), sum, apart);
            if (threadIdx.x % LANES == 0)
                of_x[i / LANES * 8] = sum * 0x1p-33f;
        }
    }
}

/* The beginning of share i of n, of a power of 2. */
static __device__ inline int packed_share(int n, int i, int bits)
{
    return n * i >> bits;
}

/* The first unit of a cluster. */
static __device__ inline int packed_first_unit(const packed_cut &c, int group)
{
    return group * c.units_each + min(group, c.n_longer);
}

/* The warp's ring, with its first records on their way. */
static __device__ inline record_ring packed_open_ring(const packed_args &a, char *stages,
                                                      uint64_t *full, int warp, int first, int end)
{
    record_ring r = {};
    int group = (int)blockIdx.x >> a.c.split_bits, part = warp & (a.c.n_warps - 1);
    size_t strip_bytes = (size_t)a.c.n_records * a.c.record_bytes;
    size_t unit_bytes = a.is_gated ? strip_bytes : 2 * strip_bytes;

    r.stages = stages;
    r.full = full;
    r.first_record = first + packed_share(end - first, part, a.c.warps_bits);
    r.end_record = first + packed_share(end - first, part + 1, a.c.warps_bits);
    r.record = r.first_record;
    r.unit = packed_first_unit(a.c, group) + (warp >> a.c.warps_bits);
    r.last_unit = packed_first_unit(a.c, group + 1);
    if (r.first_record == r.end_record)
        r.unit = r.last_unit;
    r.next_strip = (a.is_gated ? (size_t)a.c.n_units : 1) * strip_bytes;
    r.from = a.w + (size_t)r.unit * unit_bytes + (size_t)(r.first_record * a.c.record_bytes);
    r.next_unit = (size_t)(WARPS >> a.c.warps_bits) * unit_bytes -
                  (size_t)((r.end_record - r.first_record) * a.c.record_bytes);
    if (leads()) {
        for (int i = 0; i < a.c.depth; i++)
            barrier_init(&r.full[i], 1);
        barrier_init_done();
        fence_async();
    }
    __syncwarp();
    for (int i = 0; i < FIRST; i++)
        packed_load_next(r, a, i);
    return r;
}

/* NT: columns, in eights; GROUPS: of a record; IS_FLOAT: codes are e2m1; ZEROS: there are zero
 * points. Shared memory: rings, x, sums, inverse norms, sums of x, barriers. */
template <int NT, int GROUPS, bool IS_FLOAT, bool ZEROS>
static __global__ void __launch_bounds__(THREADS, 1)
    packed_kernel(const __grid_constant__ packed_args a)
{
    extern __shared__ __align__(128) char shared[];
    int warp = warp_number(), lane = threadIdx.x % 32;
    int ring_bytes = a.c.depth * 2 * a.c.run * a.c.record_bytes;
    char *xs = shared + WARPS * ring_bytes;
    pass_end e = {(float *)(xs + a.n * a.c.x_stride), WARPS * 2 * a.n * COL_STRIDE};
    float *inverse = e.sums + a.c.buffers * e.buffer, *of_x = inverse + 8 * NT;
    uint64_t *bars = (uint64_t *)(of_x + a.c.x_groups * 8);
    int group = (int)blockIdx.x >> a.c.split_bits, rank = (int)blockIdx.x & (a.c.n_split - 1);
    int begin = packed_first_unit(a.c, group), last = packed_first_unit(a.c, group + 1), pass = 0,
        base;
    int first = packed_share(a.c.n_records, rank, a.c.split_bits);
    int end = packed_share(a.c.n_records, rank + 1, a.c.split_bits);
    record_ring r =
        packed_open_ring(a, shared + warp * ring_bytes, bars + warp * a.c.depth, warp, first, end);
    targets to = end_targets_of(a.p, a.n_out);
    uint32_t x[NT];
    float squares[SQUARES];
    scaled_output done = {};

    e.inverse = inverse;
    e.rank = rank;
    e.unit_bits = a.is_gated ? 4 : 5;
    e.per_pass = WARPS >> a.c.warps_bits;
    e.pass_bits = e.unit_bits + 31 - __clz(e.per_pass);
#pragma unroll
    for (int i = 0; i < NT; i++)
        x[i] = shared_addr(xs + min(i * 8 + lane % 8, a.n - 1) * a.c.x_stride + lane / 8 * 16);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
    if constexpr (IS_FLOAT)
        packed_load_x(xs, a, first, end, r);
    else
        packed_load_large_x<GROUPS>(xs, of_x, a, first, end, r);
    end_fetch_squares(squares, warp, a);
    __syncthreads();
    for (base = begin; base < last; base += e.per_pass, pass++) {
        scaled_output next = packed_choose_output(a, e, base, last, 0);
        float acc[2][NT][4] = {};

        if (base + (warp >> a.c.warps_bits) < last)
            packed_multiply_unit<NT, GROUPS, IS_FLOAT, ZEROS>(acc, r, x, first, of_x, a);
        if (pass == 0)
            end_find_inverse<WARPS>(inverse, squares, warp, a);
        else
            packed_end_pass(a, to, e, done, base - e.per_pass, last, pass - 1);
        packed_store_sums<NT>(e.sums + (pass & 1) * e.buffer, acc, warp, a.n,
                              IS_FLOAT ? 1.0f : 0x1p33f);
        packed_cluster_arrive(a.c.n_split);
        done = next;
    }
    packed_end_pass(a, to, e, done, base - e.per_pass, last, pass - 1);
    if (a.c.n_split > 1) /* the others may still read this CTA's sums */
        cluster_sync();
}

/* --- the cut ---------------------------------------------------------------------------------- */

static int packed_ceil_of(int x, int by)
{
    return (x + by - 1) / by;
}

/* The most rows of this kernel. */
static int packed_rows_max(const struct k_matrix *w)
{
    return w->format.elem == K_INT8 ? 0 : 1;
}

/* Clusters of more than two CTAs need multiprocessors of one part of the GPU, which have 16 or 18,
 * or fewer: of 132 an H200 has 120 in such clusters. One that does not fit would run after all
 * others. */
static int packed_groups_of(int n_sms, int n_split, int n_units)
{
    int n = (n_split > 2 ? n_sms * 10 / 11 : n_sms) / n_split;

    n = n < 1 ? 1 : n;
    return n < n_units ? n : n_units;
}

/* Lay out shared memory; false when too few stages fit. */
static bool packed_lay_out(struct packed_cut *c)
{
    int passes = packed_ceil_of(packed_ceil_of(c->n_units, c->n_groups), WARPS / c->n_warps);
    int stages = WARPS * 2 * c->run * c->record_bytes, rest;

    c->x_stride = packed_ceil_of(c->n_records, c->n_split) * 256 + X_PAD;
    c->buffers = passes > 1 ? 2 : 1;
    rest = c->x_stride + c->buffers * WARPS * 2 * COL_STRIDE * 4 + 8 * 4 + WARPS * DEPTH_MAX * 8 +
           c->x_groups * 32;
    c->depth = c->x_groups > 0 && rest + DEPTH_MAX * stages <= SMEM_MAX ? DEPTH_MAX : DEPTH_MIN;
    c->smem = rest + c->depth * stages;
    return c->smem <= SMEM_MAX;
}

/* An estimate of the cycles of a CTA: of its bytes, of its instructions, and of the part of a
 * launch that is not hidden. */
static long packed_cost_of(const struct packed_cut *c)
{
    int units = packed_ceil_of(c->n_units, c->n_groups),
        records = packed_ceil_of(c->n_records, c->n_split);
    int passes = packed_ceil_of(units, WARPS / c->n_warps);
    long bytes = (long)units * records * 2 * c->record_bytes / 20;
    long work =
        passes * (packed_ceil_of(records, c->n_warps) * 900L + (c->n_split > 1 ? 2000L : 800L));
    long x = (long)records * 256 / 40;

    return (bytes > work ? bytes : work) + x + (c->n_split > 1 ? 2500 : 0);
}

/* Cut w; false when no cut fits into shared memory. */
static bool packed_cut_of(struct packed_cut *best, const struct k_matrix *w, int n_sms)
{
    const struct k_packing packing = k_packing_of(&w->format);
    struct packed_cut c = {};
    long least = 0;

    c.n_units = w->n_out / UNIT_ROWS;
    c.n_records = w->n_in / K_PACKED_COLS;
    c.record_bytes = (int)k_packed_record_bytes(&packing);
    for (c.n_split = 1; c.n_split <= SPLIT_MAX && c.n_split <= c.n_records;
         c.n_split *= 2, c.split_bits++) {
        c.n_groups = packed_groups_of(n_sms, c.n_split, c.n_units);
        c.units_each = c.n_units / c.n_groups;
        c.n_longer = c.n_units % c.n_groups;
        c.x_groups = packing.is_float
                         ? 0
                         : packed_ceil_of(c.n_records, c.n_split) * (K_PACKED_COLS / packing.group);
        c.warps_bits = 0;
        for (c.n_warps = 1; c.n_warps <= WARPS; c.n_warps *= 2, c.warps_bits++) {
            /* short parts of rows are loaded sooner in single records */
            c.run = packed_ceil_of(c.n_records, c.n_split * c.n_warps) >= 8 ? RUN_MAX : 1;
            if (!packed_lay_out(&c))
                c.run = 1;
            if (!packed_lay_out(&c) || (least > 0 && packed_cost_of(&c) >= least))
                continue;
            least = packed_cost_of(&c);
            *best = c;
        }
    }
    return least > 0;
}

/* --- launching -------------------------------------------------------------------------------- */

bool product_packed_takes(const struct k_matrix *w, int n)
{
    return k_format_is_packed(&w->format) && k_format_fits(&w->format, w->n_out, w->n_in) &&
           n >= 1 && n <= K_PRODUCT_ROWS_MAX;
}

int product_packed_bucket(const struct k_matrix *w, int n)
{
    if (n > packed_rows_max(w))
        return product_cut_columns(n) == 48 ? K_PRODUCT_ROWS_MAX : product_cut_columns(n);
    return 1;
}

template <int NT, int GROUPS, bool IS_FLOAT, bool ZEROS>
static int packed_launch(const packed_args &a, k_stream stream)
{
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};

    if (cudaFuncSetAttribute(packed_kernel<NT, GROUPS, IS_FLOAT, ZEROS>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_MAX) != cudaSuccess)
        return -1;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim = {(unsigned)a.c.n_split, 1, 1};
    config.gridDim = dim3((unsigned)(a.c.n_groups * a.c.n_split));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)a.c.smem;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = a.c.n_split > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, packed_kernel<NT, GROUPS, IS_FLOAT, ZEROS>, a) == cudaSuccess
               ? 0
               : -1;
}

template <int NT, int GROUPS> static int packed_launch_codes(const packed_args &a, k_stream stream)
{
    return a.has_zeros ? packed_launch<NT, GROUPS, false, true>(a, stream)
                       : packed_launch<NT, GROUPS, false, false>(a, stream);
}

template <int NT>
static int packed_launch_group(const packed_args &a, const struct k_format *f, k_stream stream)
{
    if (f->elem == K_FLOAT4)
        return f->group_cols == 16 ? packed_launch<NT, 8, true, false>(a, stream)
                                   : packed_launch<NT, 4, true, false>(a, stream);
    switch (f->group_cols) {
    case 32: return packed_launch_codes<NT, 4>(a, stream);
    case 64: return packed_launch_codes<NT, 2>(a, stream);
    default: return packed_launch_codes<NT, 1>(a, stream);
    }
}

int product_packed(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    packed_args args = {};

    if (n > K_PRODUCT_ROWS_MAX || !k_format_fits(&p->w->format, p->w->n_out, p->w->n_in))
        return -1;
    if (n > packed_rows_max(p->w))
        return product_wide_packed(p, n, n_sms, stream);
    if (!packed_cut_of(&args.c, p->w, n_sms))
        return -1;
    args.p = *p;
    args.w = (const char *)p->w->data;
    args.rows = p->w->format.elem == K_FLOAT4 ? (const float *)p->w->scales : NULL;
    args.n = n;
    args.n_in = p->w->n_in;
    args.n_out = p->w->n_out;
    args.is_gated = p->kind == K_PRODUCT_GATED;
    args.has_zeros = p->w->format.has_zeros;
    args.is_half = p->w->format.scale == K_F16;
    return packed_launch_group<1>(args, &p->w->format, stream);
}
