/* SPDX-License-Identifier: Apache-2.0
 *
 * The recurrent mixer against its reference: widths, chunks and decodes, states
 * across pages, padding sequences. Results are rounded to bfloat16 once; states are float32. */
#include "tests/kernel/gpu.h"

#define SEQS    5
#define N_PAGES 40
#define COLUMNS 8 /* of a row of the table */

static const struct {
    int width;
    size_t page_elems, at;
} shapes[] = {{1, 16, 0}, {37, 16, 20}, {128, 256, 0}, {300, 64, 100}, {1024, 4096, 5000}};

/* A padding sequence, one that begins, decodes, chunks. */
static const int32_t starts[SEQS + 1] = {0, 1, 8, 9, 10, 43}, lens[SEQS] = {0, 7, 1, 90, 60};

static void check_recurrent(int i)
{
    int width = shapes[i].width, n = starts[SEQS];
    size_t in_size = (size_t)(n * 2 * width), out_size = (size_t)(n * width);
    size_t state_size = N_PAGES * shapes[i].page_elems;
    float *in = gpu_random(in_size, 3.0f), *pages = gpu_random(state_size, 1.0f), *got;
    float *want = malloc(out_size * 4), *after = malloc(state_size * 4);
    struct k_state host = {.pages = pages, .page_elems = shapes[i].page_elems, .at = shapes[i].at};
    struct k_state dev = host;
    int32_t table[SEQS * COLUMNS];
    struct k_tokens t = {.seq_start = starts,
                         .kv_len = lens,
                         .page_ids = table,
                         .n_tokens = n,
                         .n_seqs = SEQS,
                         .pages_max = COLUMNS};
    struct k_tokens dt = t;
    k_bf16 *out = gpu_array(NULL, out_size * 2), *din = gpu_bf16(in, in_size);

    for (int k = 0; k < SEQS * COLUMNS; k++)
        table[k] = k * 7 % N_PAGES;
    dt.seq_start = gpu_array(starts, sizeof starts);
    dt.kv_len = gpu_array(lens, sizeof lens);
    dt.page_ids = gpu_array(table, sizeof table);
    dev.pages = gpu_array(pages, state_size * 4);
    for (size_t k = 0; k < out_size; k++)
        want[k] = gpu_widen(0xabab);
    for (int s = 0; s < SEQS; s++)
        ref_recurrent(want, in, &host, &t, width, s, 0, width);
    gpu_must(k_recurrent(out, false, din, &dev, &dt, width, device_cuda_stream(gpu)));
    got = gpu_floats(out, out_size);
    gpu_compare(got, want, out_size, 5e-6, 4.1e-3, "recurrent");
    ok(gpu_get(after, dev.pages, state_size * 4), "guard bands are whole");
    gpu_compare(after, pages, state_size, 1e-11, 1e-5, "states");
    free(in), free(pages), free(want), free(after), free(got);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        check_recurrent((int)i);
    device_close(gpu);
    return tap_done();
}
