/* SPDX-License-Identifier: Apache-2.0
 *
 * The tiles of a step: every token of a chunk in one tile, longest first; and the window of
 * attention's reference against a plain softmax in float64. */
#include <math.h>

#include "kernels/kernels.h"
#include "tests/tap.h"

#define SEQS  40
#define STEPS 300

static unsigned seed;

static int pick(int n)
{
    seed = seed * 1664525U + 1013904223U;
    return (int)(seed >> 8) % n;
}

/* One random step; the first thing that is wrong, or NULL. */
static const char *check_step(void)
{
    static int32_t seqs[SEQS * 600], starts[SEQS * 600];
    static char seen[SEQS * 600];
    int32_t start[SEQS + 1] = {0}, len[SEQS];
    int n_seqs = 1 + pick(SEQS), group = 1 + pick(9), step = K_TILE_TOKENS(group), keys = 0;
    int before = 1 << 30, n_chunk = 0;
    struct k_attn_plan plan = {0};

    for (int s = 0; s < n_seqs; s++) {
        int n = pick(3) == 0 ? 1 : 1 + pick(600);

        start[s + 1] = start[s] + n;
        len[s] = n + pick(1000);
        keys += n > 1 ? len[s] : 0;
        n_chunk += n > 1 ? n : 0;
    }
    struct k_tokens t = {
        .seq_start = start, .kv_len = len, .n_tokens = start[n_seqs], .n_seqs = n_seqs};

    memset(seen, 0, sizeof seen);
    k_attn_tiles(seqs, starts, &plan, &t, group);
    if (plan.tile_keys != keys)
        return "keys of all sequences";
    for (int i = 0; i < plan.n_tiles; i++) {
        int s = seqs[i], n = start[s + 1] - start[s];
        int end = starts[i] + step < n ? starts[i] + step : n;

        if (starts[i] % step != 0 || starts[i] >= n)
            return "a tile's start";
        if (len[s] - n + end > before)
            return "the longest first";
        before = len[s] - n + end;
        for (int k = starts[i]; k < end; k++, n_chunk--)
            if (seen[start[s] + k]++ != 0)
                return "a token twice";
    }
    return n_chunk == 0 ? NULL : "all tokens";
}

/* One head of 2 elements, 20 keys in pages of 4; sink NULL: none. */
static void check_window(int window, const float *sink)
{
    float pages[5 * 2 * 4 * 2], qkv[6], out[2] = {0}, scratch[20];
    int32_t seq = 0, pos = 19, start[2] = {0, 1}, len = 20, ids[5] = {3, 0, 4, 1, 2};
    struct k_kv kv = {.pages = pages,
                      .page_elems = 16,
                      .n_kv_heads = 1,
                      .head_dim = 2,
                      .page_tokens = 4,
                      .window = window,
                      .sinks = sink};
    struct k_tokens t = {.seq = &seq,
                         .pos = &pos,
                         .seq_start = start,
                         .kv_len = &len,
                         .page_ids = ids,
                         .n_tokens = 1,
                         .n_seqs = 1,
                         .pages_max = 5};
    double sum = sink != NULL ? exp((double)*sink) : 0.0, want[2] = {0.0, 0.0};

    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++)
        pages[i] = (float)pick(2000) * 0.001f - 1.0f;
    for (int i = 0; i < 6; i++)
        qkv[i] = (float)pick(2000) * 0.002f - 2.0f;
    ref_attn(out, qkv, &kv, &t, 1, 0.7f, 0, 0, scratch);
    for (int j = window > 0 && window < 20 ? 20 - window : 0; j < 20; j++) {
        const float *key = pages + ids[j / 4] * 16 + j % 4 * 2, *value = key + 8;
        double w = exp(0.7 * ((double)qkv[0] * (double)key[0] + (double)qkv[1] * (double)key[1]));

        sum += w;
        want[0] += w * (double)value[0];
        want[1] += w * (double)value[1];
    }
    ok(fabs((double)out[0] - want[0] / sum) < 1e-5 && fabs((double)out[1] - want[1] / sum) < 1e-5,
       "a window of %d%s", window, sink != NULL ? ", and a sink" : "");
}

int main(void)
{
    static const int windows[] = {0, 1, 2, 7, 19, 20, 100};
    static const float sinks[] = {-3.0f, 0.5f, 4.0f};
    const char *wrong = NULL;

    seed = tap_seed(1);
    for (int i = 0; i < STEPS && wrong == NULL; i++)
        wrong = check_step();
    ok(wrong == NULL, "tiles of %d steps: %s", STEPS, wrong == NULL ? "right" : wrong);
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++)
        check_window(windows[i], NULL);
    for (size_t i = 0; i < sizeof sinks / sizeof sinks[0]; i++)
        check_window(7, &sinks[i]);
    return tap_done();
}
