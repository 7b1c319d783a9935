/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: norms of heads, rotation and pages as the GPU does them, without one. Method: rope.cu and
 * the beginning of decode attention played on the host (play.h), against the reference and
 * against each other: without norms, with norms, with norms after the rotation, head sizes of each
 * path, groups, pages of any size, bf16 and e4m3, a sequence that is only padding. Queries and
 * pages are rounded once: 2^-8 of the value, of e4m3 2^-3. */
#include "kernels/e4m3.h"
#include "tests/kernel/gpu.h"
#include "tests/kernel/played.h"

#define N_TOKENS  5
#define N_SEQS    3
#define PAGES_MAX 12
#define TURNS_LEN 16

static const struct {
    int n_heads, n_kv_heads, head_dim, page_tokens;
} shapes[] = {{32, 8, 128, 16}, {64, 8, 128, 64}, {5, 1, 128, 4}, {8, 1, 256, 16}, {4, 4, 64, 16},
              {6, 2, 80, 16},   {6, 2, 96, 4},    {3, 3, 32, 7},  {2, 1, 16, 8},   {3, 1, 72, 16},
              {5, 1, 12, 4},    {4, 2, 10, 5},    {2, 1, 250, 8}};

/* Two tokens of a sequence, one that is padding, two of another. */
static const int32_t seq[N_TOKENS] = {0, 0, 1, 2, 2}, pos[N_TOKENS] = {3, 4, 0, 0, 9};
static const int32_t seq_start[N_SEQS + 1] = {0, 2, 3, 5}, kv_len[N_SEQS] = {5, 0, 10};
static int32_t page_ids[N_SEQS * PAGES_MAX];
static const struct k_tokens tokens = {.seq = seq,
                                       .pos = pos,
                                       .seq_start = seq_start,
                                       .kv_len = kv_len,
                                       .page_ids = page_ids,
                                       .n_tokens = N_TOKENS,
                                       .n_seqs = N_SEQS,
                                       .pages_max = PAGES_MAX};

static struct {
    struct k_kv kv, ref_kv;
    struct k_rotary rotary, ref_rotary;
    int n_heads, width; /* elements of a token */
    size_t page_elems;  /* of all pages */
    k_bf16 *qkv, *raw;
    float *ref_qkv;
} s;

/* Aligned as memory of a device is. */
static void *room(size_t bytes)
{
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static k_bf16 *rounded(const float *f, size_t n)
{
    k_bf16 *h = room(n * sizeof *h);

    for (size_t i = 0; i < n; i++)
        h[i] = gpu_round(f[i]);
    return h;
}

enum norming { NO_NORMS, NORMS_FIRST, NORMS_AFTER };

static void open_case(size_t shape, enum k_type type, enum norming norming)
{
    int hd = shapes[shape].head_dim, n_kv_heads = shapes[shape].n_kv_heads;
    size_t n;

    s.n_heads = shapes[shape].n_heads;
    s.kv = (struct k_kv){.n_kv_heads = n_kv_heads,
                         .head_dim = hd,
                         .page_tokens = shapes[shape].page_tokens,
                         .type = type,
                         .k_scale = 0.5f,
                         .v_scale = 0.25f};
    s.kv.layer_elems = (size_t)(2 * n_kv_heads * s.kv.page_tokens * hd); /* the second of two */
    s.kv.page_elems = 2 * s.kv.layer_elems;
    s.page_elems = N_SEQS * PAGES_MAX * s.kv.page_elems;
    s.ref_kv = s.kv;
    s.kv.pages = room(s.page_elems * 2);
    memset(s.kv.pages, 0xff, s.page_elems * 2); /* NaN in both types */
    s.ref_kv.pages = malloc(s.page_elems * 4);
    memset(s.ref_kv.pages, 0xff, s.page_elems * 4);
    s.width = (s.n_heads + 2 * n_kv_heads) * hd;
    n = (size_t)(N_TOKENS * s.width);
    s.ref_qkv = gpu_random(n, 3.0f);
    s.qkv = rounded(s.ref_qkv, n);
    s.raw = rounded(s.ref_qkv, n);
    s.ref_rotary = (struct k_rotary){.eps = 0.25f, .norms_after = norming == NORMS_AFTER};
    s.ref_rotary.turns = room((size_t)(TURNS_LEN * hd) * 4);
    for (int i = 0; i < TURNS_LEN * hd / 2; i++) {
        ((float *)(uintptr_t)s.ref_rotary.turns)[2 * i] = cosf((float)i * 0.37f);
        ((float *)(uintptr_t)s.ref_rotary.turns)[2 * i + 1] = sinf((float)i * 0.37f);
    }
    s.rotary = s.ref_rotary;
    if (norming != NO_NORMS) {
        s.ref_rotary.q_norm = gpu_random((size_t)hd, 2.0f);
        s.ref_rotary.k_norm = gpu_random((size_t)hd, 2.0f);
        s.rotary.q_norm = rounded(s.ref_rotary.q_norm, (size_t)hd);
        s.rotary.k_norm = rounded(s.ref_rotary.k_norm, (size_t)hd);
    }
}

static void close_case(void)
{
    free(s.kv.pages), free(s.ref_kv.pages), free(s.ref_qkv), free(s.qkv), free(s.raw);
    free((void *)(uintptr_t)s.rotary.turns);
    free((void *)(uintptr_t)s.rotary.q_norm), free((void *)(uintptr_t)s.rotary.k_norm);
    free((void *)(uintptr_t)s.ref_rotary.q_norm), free((void *)(uintptr_t)s.ref_rotary.k_norm);
}

static bool is_near(float got, float want, float part)
{
    if (want != want)
        return got != got;
    return fabsf(got - want) <= part * fabsf(want) + 2e-3f;
}

static void check_reference(const char *name)
{
    const float *want = s.ref_kv.pages;
    size_t n_far = 0, n_stored = 0;

    ref_rope_kv(s.ref_qkv, &s.ref_kv, &tokens, &s.ref_rotary, s.n_heads, 0, N_TOKENS);
    is_int(k_rope_kv(s.qkv, &s.kv, &tokens, &s.rotary, s.n_heads, NULL), 0, "%s: runs", name);
    for (int i = 0; i < N_TOKENS * s.width; i++)
        n_far += !is_near(gpu_widen(s.qkv[i]), s.ref_qkv[i], 0x1p-8f);
    is_int(n_far, 0, "%s: queries", name);
    for (size_t i = 0; i < s.page_elems; i++) {
        bool is_key = i % s.kv.page_elems < s.kv.layer_elems * 3 / 2;
        float scale = is_key ? s.kv.k_scale : s.kv.v_scale, got;

        got = s.kv.type == K_BF16 ? gpu_widen(((k_bf16 *)s.kv.pages)[i])
                                  : scale * k_e4m3_value(((k_e4m3 *)s.kv.pages)[i]);
        n_far += !is_near(got, want[i], s.kv.type == K_BF16 ? 0x1p-8f : 0x1p-3f);
        n_stored += want[i] == want[i];
    }
    is_int(n_far, 0, "%s: pages", name);
    is_int(n_stored, 4 * 2 * s.kv.n_kv_heads * s.kv.head_dim, "%s: of four tokens", name);
}

/* Decode attention's way to the same numbers: the same bits. */
static void check_decode(const char *name)
{
    size_t elem = s.kv.type == K_BF16 ? 2 : 1, dim = (size_t)s.kv.head_dim, row = dim * elem;
    int group = s.n_heads / s.kv.n_kv_heads, n_rows = 0, n_other = 0;

    for (int t = 0; t < N_TOKENS; t++) {
        int32_t page = page_ids[seq[t] * PAGES_MAX + pos[t] / s.kv.page_tokens];

        for (int h = 0; h < s.kv.n_kv_heads && kv_len[seq[t]] > 0; h++, n_rows += group + 2) {
            k_bf16 *token = s.raw + t * s.width, *queries = token + (size_t)(h * group) * dim;
            k_bf16 *key = token + (size_t)(s.n_heads + h) * dim,
                   *value = key + (size_t)s.kv.n_kv_heads * dim;
            const char *stored =
                (char *)s.kv.pages +
                ((size_t)page * s.kv.page_elems + s.kv.layer_elems +
                 (size_t)(h * s.kv.page_tokens + pos[t] % s.kv.page_tokens) * dim) *
                    elem;

            played_decode_rows(queries, group, key, value, &s.rotary, &s.kv, pos[t]);
            n_other += memcmp(queries, s.qkv + (queries - s.raw),
                              (size_t)group * dim * sizeof *queries) != 0;
            n_other += memcmp(key, stored, row) != 0;
            n_other += memcmp(value, stored + s.kv.layer_elems / 2 * elem, row) != 0;
        }
    }
    ok(n_other == 0 && n_rows > 0, "%s: decode attention has the same bits, %d rows", name, n_rows);
}

static void check_case(size_t shape, enum k_type type, enum norming norming)
{
    static const char *const names[] = {"", ", norms", ", norms after the rotation"};
    char name[100];

    open_case(shape, type, norming);
    snprintf(name, sizeof name, "%d/%d x %d, pages of %d, %s%s", s.n_heads, s.kv.n_kv_heads,
             s.kv.head_dim, s.kv.page_tokens, type == K_BF16 ? "bf16" : "e4m3", names[norming]);
    check_reference(name);
    if ((s.kv.head_dim == 128 || s.kv.head_dim == 256) && norming != NORMS_AFTER)
        check_decode(name);
    if (!ok(played_fault() == NULL, "%s: no thread waits in vain", name))
        printf("# %s\n", played_fault());
    close_case();
}

int main(void)
{
    gpu_seed = tap_seed(1);
    for (int i = 0; i < N_SEQS * PAGES_MAX; i++)
        page_ids[i] = i * 7 % (N_SEQS * PAGES_MAX);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (enum norming norming = NO_NORMS; norming <= NORMS_AFTER; norming++) {
            check_case(i, K_BF16, norming);
            check_case(i, K_E4M3, norming);
        }
    }
    /* A sum in another order shows in one of some 100,000 elements. */
    for (int turn = 0; turn < 30; turn++)
        check_case(0, K_BF16, NORMS_FIRST);
    return tap_done();
}
