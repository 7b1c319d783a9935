/* SPDX-License-Identifier: Apache-2.0
 *
 * List the tiles of a step's chunks, longest first: CTAs that take them in this order end at about
 * the same time. */
#include "config.h"

#include "kernels/kernels.h"

/* Keys that the last token of a tile attends to. */
static int keys_of(const struct k_tokens *t, int seq, int start, int step)
{
    int n = t->seq_start[seq + 1] - t->seq_start[seq], end = start + step;

    return t->kv_len[seq] - n + (end < n ? end : n);
}

/* Shell sort: needs no memory, and has little to do when one sequence has all tiles. Equal tiles
 * are sorted by sequence, so that tiles that read the same keys are neighbours. */
static void sort(int32_t *seqs, int32_t *starts, int n, const struct k_tokens *t, int step)
{
    for (int gap = n / 2; gap > 0; gap /= 2) {
        for (int i = gap; i < n; i++) {
            int32_t seq = seqs[i], start = starts[i];
            int keys = keys_of(t, seq, start, step), j = i;

            for (; j >= gap; j -= gap) {
                int other = keys_of(t, seqs[j - gap], starts[j - gap], step);

                if (other > keys || (other == keys && seqs[j - gap] <= seq))
                    break;
                seqs[j] = seqs[j - gap];
                starts[j] = starts[j - gap];
            }
            seqs[j] = seq;
            starts[j] = start;
        }
    }
}

/* Within a sequence the tiles are already from the last to the first, that is, longest first. */
void k_attn_tiles(int32_t *tile_seqs, int32_t *tile_starts, struct k_attn_plan *plan,
                  const struct k_tokens *t, int group)
{
    int step = K_TILE_TOKENS(group), n_tiles = 0, n_seqs = 0;

    plan->tile_keys = 0;
    for (int seq = 0; seq < t->n_seqs; seq++) {
        int n = t->seq_start[seq + 1] - t->seq_start[seq];

        if (n == 1)
            continue;
        for (int first = (n - 1) / step * step; first >= 0; first -= step) {
            tile_seqs[n_tiles] = seq;
            tile_starts[n_tiles++] = first;
        }
        plan->tile_keys += t->kv_len[seq];
        n_seqs++;
    }
    if (n_seqs > 1)
        sort(tile_seqs, tile_starts, n_tiles, t, step);
    plan->n_tiles = n_tiles;
}
