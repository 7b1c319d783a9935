/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference of attention with products of e4m3. Where nothing has to be rounded it is
 * ref_attn(). Elsewhere its error against float64 is compared with that of the formats beside it:
 * everything as bfloat16; keys and values as e4m3 (ref_attn() over them); queries and weights too.
 * Errors are root mean squares, relative to those of the result. */
#include <math.h>

#include "kernels/e4m3.h"
#include "kernels/kernels.h"
#include "tests/tap.h"

#define HD         128
#define HEADS      8
#define KEYS       4096
#define PAGE       16
#define PAGE_ELEMS ((size_t)(2 * PAGE * HD))
#define SCALE      0.088388348f

/* Queries and keys are normal, times these; some keys or channels differ. */
struct input {
    const char *name;
    float query, channel; /* factors of queries, and of channel 5 of the keys */
    float sink;           /* of a score, the first key's */
    float mean;           /* of values */
    int window;
    double limit; /* error with products of e4m3 in errors with keys and values of e4m3 */
};

static const struct input inputs[] = {
    {"even weights", 0.3f, 1.0f, 0.0f, 0.0f, 0, 1.6},
    {"normal scores", 1.0f, 1.0f, 0.0f, 0.0f, 0, 1.6},
    {"few keys that count", 4.0f, 1.0f, 0.0f, 0.0f, 0, 1.6},
    {"a channel of the keys 30 times larger", 1.0f, 30.0f, 0.0f, 0.0f, 0, 1.6},
    {"a first key with most of the weight", 1.0f, 1.0f, 9.0f, 0.0f, 0, 1.6},
    {"the same, a window behind it", 1.0f, 1.0f, 9.0f, 0.0f, 1000, 1.6},
    {"values with a mean", 1.0f, 1.0f, 0.0f, 1.0f, 0, 1.6},
};

struct attention {
    float qkv[(HEADS + 2) * HD];
    float pages[KEYS / PAGE * PAGE_ELEMS];
};

static int32_t page_ids[KEYS / PAGE];
static struct attention exact, narrow, rounded;
static float scratch[KEYS], out[HEADS * HD];
static double want[HEADS * HD];
static uint64_t seed = 88172645463325252U;

static double uniform(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return ((double)(seed >> 11) + 0.5) * 0x1p-53;
}

static float normal(void)
{
    return (float)(sqrt(-2.0 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

static float as_bf16(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, 4);
    bits = (bits + 0x7fffU + (bits >> 16 & 1)) & 0xffff0000U;
    memcpy(&x, &bits, 4);
    return x;
}

static float as_e4m3(float x)
{
    return k_e4m3_value(k_e4m3_round(x));
}

static float *key_of(struct attention *a, int pos)
{
    return a->pages + (size_t)page_ids[pos / PAGE] * PAGE_ELEMS + (size_t)(pos % PAGE) * HD;
}

static void make(const struct input *in)
{
    for (int i = 0; i < HEADS * HD; i++)
        exact.qkv[i] = as_bf16(normal() * in->query);
    for (int pos = 0; pos < KEYS; pos++) {
        float *key = key_of(&exact, pos), *value = key + PAGE * HD;

        for (int d = 0; d < HD; d++) {
            key[d] = normal() * (d == 5 ? in->channel : 1.0f);
            value[d] = normal() + in->mean;
        }
    }
    for (int d = 0; d < HD && in->sink > 0.0f; d++) { /* along the sum of the queries */
        float *key = key_of(&exact, 0), sum = 0.0f;

        for (int h = 0; h < HEADS; h++)
            sum += exact.qkv[h * HD + d];
        key[d] = sum * in->sink / (SCALE * HD * in->query * in->query);
    }
    narrow = rounded = exact;
    for (size_t i = 0; i < sizeof exact.pages / sizeof exact.pages[0]; i++) {
        narrow.pages[i] = as_bf16(exact.pages[i]);
        rounded.pages[i] = as_e4m3(exact.pages[i]);
    }
}

static struct k_kv kv_of(struct attention *a, int window)
{
    return (struct k_kv){.pages = a->pages,
                         .page_elems = PAGE_ELEMS,
                         .n_kv_heads = 1,
                         .head_dim = HD,
                         .page_tokens = PAGE,
                         .window = window};
}

/* In float64. */
static void compute_exactly(int window)
{
    static double weights[KEYS];

    for (int h = 0; h < HEADS; h++) {
        double top = -1e300, sum = 0.0, *row = want + (size_t)h * HD;
        int first = window > 0 ? KEYS - window : 0;

        memset(row, 0, HD * sizeof *row);
        for (int i = first; i < KEYS; i++) {
            const float *key = key_of(&exact, i);

            weights[i] = 0.0;
            for (int d = 0; d < HD; d++)
                weights[i] += (double)exact.qkv[h * HD + d] * (double)key[d] * (double)SCALE;
            top = fmax(top, weights[i]);
        }
        for (int i = first; i < KEYS; i++) {
            const float *value = key_of(&exact, i) + PAGE * HD;
            double weight = exp(weights[i] - top);

            sum += weight;
            for (int d = 0; d < HD; d++)
                row[d] += weight * (double)value[d];
        }
        for (int d = 0; d < HD; d++)
            row[d] /= sum;
    }
}

typedef void (*reference)(float *, const float *, const struct k_kv *, const struct k_tokens *, int,
                          float, int, int, float *);

/* The error of a reference over one of the three. */
static double error_of(reference f, struct attention *a, int window)
{
    int32_t seq = 0, pos = KEYS - 1, start[2] = {0, 1}, len = KEYS;
    struct k_tokens t = {.seq = &seq,
                         .pos = &pos,
                         .seq_start = start,
                         .kv_len = &len,
                         .page_ids = page_ids,
                         .n_tokens = 1,
                         .n_seqs = 1,
                         .pages_max = KEYS / PAGE};
    struct k_kv kv = kv_of(a, window);
    double error = 0.0, square = 0.0;

    f(out, a->qkv, &kv, &t, HEADS, SCALE, 0, 0, scratch);
    for (int i = 0; i < HEADS * HD; i++) {
        error += ((double)out[i] - want[i]) * ((double)out[i] - want[i]);
        square += want[i] * want[i];
    }
    return sqrt(error / square);
}

static void check_errors(const struct input *in)
{
    double bf16, kv, all;

    make(in);
    compute_exactly(in->window);
    bf16 = error_of(ref_attn, &narrow, in->window);
    kv = error_of(ref_attn, &rounded, in->window);
    all = error_of(ref_attn_e4m3, &rounded, in->window);
    ok(all < in->limit * kv && kv > 4 * bf16,
       "%s: bf16 %.2f%%, keys and values of e4m3 %.2f%%, products of e4m3 %.2f%%", in->name,
       100.0 * bf16, 100.0 * kv, 100.0 * all);
}

/* Queries of 0 give all keys the weight 1, which is exact, as is the mean of small values. */
static void check_exact(void)
{
    double worst = 0.0;

    make(&inputs[0]);
    memset(rounded.qkv, 0, sizeof rounded.qkv);
    memset(want, 0, sizeof want);
    for (int i = 0; i < HEADS * HD; i++) {
        for (int pos = 0; pos < KEYS; pos++)
            want[i] += (double)key_of(&rounded, pos)[PAGE * HD + i % HD] / KEYS;
    }
    worst = error_of(ref_attn_e4m3, &rounded, 0);
    ok(worst < 1e-4, "equal weights are exact: %.1e", worst);
    ok(fabs(worst - error_of(ref_attn, &rounded, 0)) < 1e-5, "as they are in ref_attn()");
}

int main(void)
{
    for (int i = 0; i < KEYS / PAGE; i++)
        page_ids[i] = i * 37 % (KEYS / PAGE);
    check_exact();
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        check_errors(&inputs[i]);
    return tap_done();
}
