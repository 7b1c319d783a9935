/* SPDX-License-Identifier: Apache-2.0
 *
 * A step of the cuda device, from its arrays to its ids.
 *
 * Arrays travel in two copies, small ones and page tables: step_begin() lays them out in pinned
 * memory, which has a mirror on the device, so that a pointer is the same offset on both sides. Ids
 * come back the same way. A kernel makes these copies, so a step does not queue after pages on the
 * copy engines. Slots of pinned memory are used in turn, so that a step is prepared and
 * enqueued while the previous one computes; one mirror is enough, because the stream runs in order.
 *
 * Steps of few tokens (decodes, and the rest of a prompt after a cached prefix) are padded to a
 * bucket and recorded as a CUDA graph up to their logits; such steps differ only in the content of
 * the mirrors. In them each token is a sequence of its own, sampled ones first, so that the logits
 * of a row are at the row's own number; attention is told which of them are runs of one sequence.
 * With states, tokens of a sequence that has several stay in their order: layers with states get
 * whole sequences, as many as any step of the bucket can have, and logits of sampled tokens move
 * to their rows behind the graph. Padding sequences have no keys, and their rows are never read.
 * Sampling is enqueued after the graph; its inputs from the host, except for parameters, are copied
 * while the graph runs. */
#include "config.h"

#include "device/parts_cuda.h"

#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define ALIGN      256
#define SPREAD_MAX K_RUN_MAX /* tokens of a sequence in a recorded step */
/* Tokens of a recorded step in order: in larger ones empty sequences cost more than launches. */
#define ORDERED_MAX 16
#define HISTORY_MAX \
    ((size_t)2 << 20) /* tokens of histories copied at a time: pinning more would
                       * be slow */

/* --- arrays ------------------------------------------------------------------------------- */

/* Laying out is done twice with one function: in pinned memory, where the arrays are filled, and on
 * the mirror, where kernels read them. With base NULL it only measures. */

/* Place an array of n elements at *at, and advance *at to the next aligned offset. */
static void *step_lay_array(char *base, size_t *at, size_t n, size_t bytes)
{
    void *memory = base == NULL ? NULL : base + *at;

    *at = (*at + n * bytes + ALIGN - 1) / ALIGN * ALIGN;
    return memory;
}

/* Segments of n rows. */
static struct k_adapt_rows step_lay_adapted(char *base, size_t *at, size_t n)
{
    struct k_adapt_rows rows;

    rows.count = step_lay_array(base, at, 2, 4);
    rows.order = step_lay_array(base, at, n, 4);
    rows.starts = step_lay_array(base, at, n + 1, 4);
    rows.slots = step_lay_array(base, at, n, 4);
    rows.of = step_lay_array(base, at, n, 4);
    return rows;
}

/* A list of tiles has room for one per token: there is at most one per sequence and one per full
 * tile of tokens. */
static struct step_arrays step_lay_out(const struct cuda *c, char *base, int n_tokens, int n_seqs,
                                       int n_rows)
{
    struct step_arrays arrays = {.bytes = 0};
    size_t at = 0, tokens = (size_t)n_tokens, seqs = (size_t)n_seqs, rows = (size_t)n_rows;

    arrays.ids = step_lay_array(base, &at, tokens, 4);
    arrays.seq = step_lay_array(base, &at, tokens, 4);
    arrays.pos = step_lay_array(base, &at, tokens, 4);
    arrays.seq_start = step_lay_array(base, &at, seqs + 1, 4);
    arrays.kv_len = step_lay_array(base, &at, seqs, 4);
    arrays.row_tokens = step_lay_array(base, &at, rows, 4);
    arrays.decode_seqs = step_lay_array(base, &at, seqs, 4);
    arrays.run_places = step_lay_array(base, &at, seqs, 4);
    for (int i = 0; i < c->n_lists; i++) {
        arrays.tile_seqs[i] = step_lay_array(base, &at, tokens, 4);
        arrays.tile_starts[i] = step_lay_array(base, &at, tokens, 4);
    }
    if (c->base.limits.has_states) {
        arrays.state_seqs = step_lay_array(base, &at, tokens, 4);
        arrays.state_starts = step_lay_array(base, &at, seqs + 1, 4);
        arrays.state_lens = step_lay_array(base, &at, seqs, 4);
    }
    if (c->base.limits.picks)
        arrays.picked = step_lay_array(base, &at, tokens, 4);
    if (c->base.limits.n_adapters > 0) {
        arrays.adapted[0] = step_lay_adapted(base, &at, tokens);
        arrays.adapted[1] = step_lay_adapted(base, &at, rows);
    }
    arrays.rows = step_lay_array(base, &at, rows, sizeof *arrays.rows);
    arrays.bytes = at;
    return arrays;
}

/* Divide the tokens between the kernels for decodes and for chunks: fills the lists in a, and their
 * counts. */
static void step_plan_attention(struct cuda *c, const struct step_arrays *a,
                                const struct k_tokens *t)
{
    struct k_attn_plan *plan = &c->plan;

    plan->n_decodes = 0;
    for (int i = 0; i < c->n_lists; i++) {
        struct attn_list *list = &c->lists[i];

        k_attn_tiles(a->tile_seqs[i], a->tile_starts[i], plan, t, list->group);
        list->n_tiles = plan->n_tiles;
        list->tile_keys = plan->tile_keys;
    }
    for (int seq = 0; seq < t->n_seqs; seq++) {
        if (t->seq_start[seq + 1] - t->seq_start[seq] == 1)
            a->decode_seqs[plan->n_decodes++] = seq;
    }
}

/* The longest sequence decides how many entries of each table row are copied. */
static int step_pages_needed(const struct cuda *c, const struct device_batch *b)
{
    const struct device_limits *lim = &c->base.limits;
    int len = 1;

    for (int seq = 0; seq < b->tokens.n_seqs; seq++) {
        if (b->tokens.kv_len[seq] > len)
            len = b->tokens.kv_len[seq];
    }
    len = (len + lim->page_tokens - 1) / lim->page_tokens;
    if (len < b->tokens.pages_max)
        return len;
    return b->tokens.pages_max;
}

/* The number of entries in a row of a table. Rows of states have a fixed length. */
static int step_row_pages(const struct cuda *c, const struct step_slot *slot, int table)
{
    int fixed = c->base.limits.table_pages[table];

    if (fixed > 0)
        return fixed;
    return slot->n_pages;
}

/* Entries that a table has room for, in a slot and in the mirror. */
static size_t step_table_room(const struct cuda *c)
{
    return (size_t)c->base.limits.n_seqs * (size_t)c->base.limits.pages_max;
}

/* Tables follow one another in the slot. */
static int32_t *step_table_of(const struct cuda *c, const struct step_slot *slot, int table)
{
    return slot->pages + (size_t)table * step_table_room(c);
}

/* Copy the row of sequence `seq` of the batch in one table to that of sequence `to` in the slot. */
static void step_copy_page_row(const struct cuda *c, const struct step_slot *slot, int table,
                               int to, const struct k_tokens *t, int seq)
{
    size_t n = (size_t)step_row_pages(c, slot, table);
    const struct k_tokens own = k_tokens_of(t, table);

    memcpy(step_table_of(c, slot, table) + (size_t)to * n,
           own.page_ids + (size_t)seq * (size_t)t->pages_max, n * 4);
}

/* The same in all tables. */
static void step_copy_page_rows(const struct cuda *c, const struct step_slot *slot, int to,
                                const struct k_tokens *t, int seq)
{
    for (int group = 0; group < c->base.limits.n_tables; group++)
        step_copy_page_row(c, slot, group, to, t, seq);
}

/* Copy the rows' sampling parameters, and assign each history its place; step_copy_histories()
 * follows the same rule. */
static void step_fill_rows(struct cuda *c, const struct step_arrays *a,
                           const struct device_batch *b)
{
    size_t at = 0;

    for (int row = 0; row < b->n_rows; row++) {
        size_t n = (size_t)b->rows[row].n_history;

        a->rows[row] = b->rows[row];
        if (at + n > c->history_cap)
            at = 0;
        a->rows[row].history_at = (int64_t)at;
        at += n;
    }
}

/* Lay out a recorded step: each token is a sequence of its own, with all keys before it. Sampled
 * tokens come first, in the order of rows, unless all keep their order. */
static void step_spread_tokens(const struct cuda *c, const struct step_arrays *a,
                               const struct step_slot *slot, const struct device_batch *b)
{
    const struct k_tokens *tokens = &b->tokens;
    int row = 0, other = b->n_rows;

    for (int k = 0; k < tokens->n_tokens; k++) {
        int at;

        if (c->is_in_order)
            at = k;
        else if (row < b->n_rows && b->row_tokens[row] == k)
            at = row++;
        else
            at = other++;
        a->ids[at] = tokens->ids[k];
        a->seq[at] = a->seq_start[at] = a->row_tokens[at] = at;
        a->pos[at] = tokens->pos[k];
        a->kv_len[at] = tokens->pos[k] + 1;
        c->places[k] = at;
        if (c->adapt.is_active)
            c->adapt.slots[at] = b->adapters[k];
        if (b->picked != NULL)
            a->picked[at] = b->picked[k];
        step_copy_page_rows(c, slot, at, tokens, tokens->seq[k]);
    }
    a->seq_start[tokens->n_tokens] = tokens->n_tokens;
}

/* The runs of a recorded step: neighbours that are one sequence at consecutive positions. */
static void step_find_runs(const struct cuda *c, const struct step_arrays *a,
                           const struct device_batch *b)
{
    const struct k_tokens *tokens = &b->tokens;

    for (int k = 0; k < tokens->n_tokens; k++) {
        int at = c->places[k];
        bool follows = k > 0 && tokens->seq[k] == tokens->seq[k - 1] && c->places[k - 1] == at - 1;

        a->run_places[at] = follows ? a->run_places[at - 1] + 1 : 0;
    }
}

/* A step whose tokens keep their order. Layers with states get its sequences as they are, and
 * others without keys up to n_padded - 1, which are more than any step of so many tokens has,
 * because one sequence has two or more. The last one has the padding. */
static void step_keep_seqs(const struct cuda *c, const struct step_arrays *a,
                           const struct step_slot *slot, const struct k_tokens *t, int n_padded)
{
    for (int k = 0; k < n_padded; k++)
        a->state_seqs[k] = k < t->n_tokens ? t->seq[k] : n_padded - 2;
    for (int seq = 0; seq < n_padded - 1; seq++) {
        a->state_starts[seq] = seq < t->n_seqs ? t->seq_start[seq] : t->n_tokens;
        a->state_lens[seq] = seq < t->n_seqs ? t->kv_len[seq] : 0;
    }
    a->state_starts[n_padded - 1] = n_padded;
    for (int table = 0; table < c->base.limits.n_tables; table++) {
        for (int seq = 0; seq < t->n_seqs && c->base.limits.table_pages[table] > 0; seq++)
            step_copy_page_row(c, slot, table, seq, t, seq);
    }
}

/* Append padding: sequences n .. n_padded - 1 have one token and no keys. */
static void step_pad_tokens(const struct cuda *c, const struct step_arrays *a, int n, int n_padded)
{
    for (int i = n; i < n_padded; i++) {
        a->ids[i] = 0;
        a->seq[i] = i;
        a->pos[i] = 0;
        a->seq_start[i + 1] = i + 1;
        a->kv_len[i] = 0;
        a->run_places[i] = 0;
        a->row_tokens[i] = i;
        if (c->adapt.is_active)
            c->adapt.slots[i] = -1;
        if (c->base.limits.picks)
            a->picked[i] = 0;
    }
}

/* Lay out any other step: tokens and sequences as in the batch. */
static void step_copy_tokens(const struct cuda *c, const struct step_arrays *a,
                             const struct step_slot *slot, const struct device_batch *b)
{
    const struct k_tokens *tokens = &b->tokens;
    size_t token_bytes = (size_t)tokens->n_tokens * 4, seq_bytes = (size_t)tokens->n_seqs * 4;

    memcpy(a->ids, tokens->ids, token_bytes);
    memcpy(a->seq, tokens->seq, token_bytes);
    memcpy(a->pos, tokens->pos, token_bytes);
    memcpy(a->seq_start, tokens->seq_start, seq_bytes + 4);
    memcpy(a->kv_len, tokens->kv_len, seq_bytes);
    memcpy(a->row_tokens, b->row_tokens, (size_t)b->n_rows * 4);
    if (b->picked != NULL)
        memcpy(a->picked, b->picked, token_bytes);
    for (int seq = 0; seq < tokens->n_seqs; seq++)
        step_copy_page_rows(c, slot, seq, tokens, seq);
}

/* --- buckets ---------------------------------------------------------------------------- */

/* A graph has fixed numbers of rows. Buckets are dense for few rows, where padding costs most, and
 * 64 apart from 64 rows on. */

/* The number of tokens in a recorded step of bucket i: 1 .. 8, 16, 24, 32, 48, 64, 128, ... */
static int step_bucket_rows(const struct cuda *c, int i)
{
    static const int small[] = {1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32, 48};
    int n = (i - 11) * 64;

    if (i < 12)
        n = small[i];
    if (n < c->base.limits.n_seqs)
        return n;
    return c->base.limits.n_seqs;
}

/* Do tokens of the step keep their order if it is recorded? */
static bool step_keeps_order(const struct cuda *c, const struct k_tokens *t)
{
    return c->base.limits.has_states && t->n_tokens != t->n_seqs;
}

/* True if the step may be recorded: it is small, each row has a token of its own, and no sequence
 * has too many tokens. */
static bool step_can_spread(const struct cuda *c, const struct device_batch *b)
{
    const struct k_tokens *tokens = &b->tokens;

    if (tokens->n_tokens > c->base.limits.n_seqs || b->n_rows == 0 ||
        (step_keeps_order(c, tokens) && tokens->n_tokens > ORDERED_MAX))
        return false;
    for (int seq = 0; seq < tokens->n_seqs; seq++) {
        if (tokens->seq_start[seq + 1] - tokens->seq_start[seq] > SPREAD_MAX)
            return false;
    }
    for (int row = 1; row < b->n_rows; row++) {
        if (b->row_tokens[row] <= b->row_tokens[row - 1])
            return false;
    }
    return true;
}

/* The smallest bucket that holds the step; -1 if it cannot be recorded. */
static int step_choose_bucket(const struct cuda *c, const struct device_batch *b)
{
    int i = 0;

    if (!step_can_spread(c, b))
        return -1;
    while (i < CUDA_GRAPHS_MAX && step_bucket_rows(c, i) < b->tokens.n_tokens)
        i++;
    if (i < CUDA_GRAPHS_MAX)
        return i;
    return -1;
}

/* --- ranks ------------------------------------------------------------------------------ */

/* The event that step_end() waits for, and other ranks' next steps. */
static int step_mark_done(struct cuda *c)
{
    unsigned step = c->n_begun - 1;

    c->slots[step % device_steps(c->base.limits.n_stages)].is_marked = true;
    return cuda_check(cudaEventRecord(c->marks[step % CUDA_MARKS].done, c->stream),
                      "marking a step");
}

/* Only one device samples; the other ones get its ids if this step uses some. */
static int step_wait_for_ids(struct cuda *c, const struct device_batch *b)
{
    if (c->peers == NULL && c->stages == NULL)
        return ERR_OK;
    if (c->stages == NULL)
        c->sampled = peers_ids(c);
    for (int i = 0; i < b->tokens.n_tokens; i++) {
        if (b->tokens.ids[i] < 0 && c->stages != NULL)
            return stages_fetch_ids(c);
        if (b->tokens.ids[i] < 0)
            return peers_fetch_ids(c);
    }
    return ERR_OK;
}

/* --- a step ----------------------------------------------------------------------------- */

/* step_begin() fills a slot and copies it to the mirrors; step_replay() launches a graph if the
 * bucket has one; otherwise the model enqueues operations, and step_launch() ends the capture if
 * the stream is being captured. */

/* True if the previous step had the same table, so the mirror is up to date. Decodes change their
 * tables only when a page is full. */
static bool step_has_pages(const struct cuda *c, const struct step_slot *slot, int table)
{
    const struct step_slot *before =
        &c->slots[(c->n_begun - 2) % device_steps(c->base.limits.n_stages)];
    size_t n = (size_t)slot->n_seqs * (size_t)step_row_pages(c, slot, table);

    return c->n_begun >= 2 && before->n_seqs == slot->n_seqs && before->n_pages == slot->n_pages &&
           memcmp(step_table_of(c, before, table), step_table_of(c, slot, table),
                  n * sizeof *slot->pages) == 0;
}

/* One kernel for all small arrays, and one per table that has changed. */
static int step_copy_arrays(struct cuda *c, const struct step_slot *slot, size_t bytes)
{
    int rc = k_copy(c->mirror, slot->staging, bytes, c->stream);

    for (int group = 0; group < c->base.limits.n_tables; group++) {
        if (rc == 0 && !step_has_pages(c, slot, group))
            rc = k_copy_rows(c->page_mirror + (size_t)group * step_table_room(c),
                             c->base.limits.pages_max, step_table_of(c, slot, group),
                             step_row_pages(c, slot, group), slot->n_seqs, c->stream);
    }
    if (rc == 0)
        return ERR_OK;
    return cuda_check(cudaGetLastError(), "copying a batch");
}

/* What all sequences of the step have in common: enum k_lengths, or 0. Recorded sequences have at
 * most SPREAD_MAX tokens each, and further ones without keys do not count. */
static int step_lengths(const struct cuda *c)
{
    const struct k_tokens *t = &c->batch->tokens;
    bool has_few = false, has_long = false;

    _Static_assert(SPREAD_MAX <= K_TOKENS_FEW, "recorded sequences are few");
    for (int seq = 0; seq < t->n_seqs && c->bucket < 0; seq++) {
        int n = t->seq_start[seq + 1] - t->seq_start[seq];

        has_long = has_long || n > K_TOKENS_FEW;
        has_few = has_few || (n > 1 && n <= K_TOKENS_FEW);
    }
    if (!has_long)
        return K_LENGTHS_FEW;
    return has_few ? 0 : K_LENGTHS_LONG;
}

/* Point the kernels' structs at the mirrors. In a recorded step each token is a sequence, so the
 * list of decodes is not needed: it would be 0, 1, 2, ... */
static void step_point_kernels(struct cuda *c)
{
    const struct device *d = &c->base;

    c->tokens = (struct k_tokens){
        .ids = c->arrays.ids,
        .seq = c->arrays.seq,
        .pos = c->arrays.pos,
        .seq_start = c->arrays.seq_start,
        .kv_len = c->arrays.kv_len,
        .page_ids = c->page_mirror,
        .n_tokens = d->step_tokens,
        .n_seqs = c->batch->tokens.n_seqs,
        .pages_max = d->limits.pages_max,
        .table_seqs = d->limits.n_seqs,
        .lengths = step_lengths(c),
    };
    c->plan.decode_seqs = c->arrays.decode_seqs;
    if (c->bucket >= 0) {
        c->tokens.n_seqs = d->step_rows;
        c->plan.decode_seqs = NULL;
    }
    c->state_tokens = c->tokens;
    if (c->is_in_order) {
        c->state_tokens.seq = c->arrays.state_seqs;
        c->state_tokens.seq_start = c->arrays.state_starts;
        c->state_tokens.kv_len = c->arrays.state_lens;
        c->state_tokens.n_seqs = d->step_rows - 1;
    }
    c->plan.places = c->bucket >= 0 && c->has_chunks ? c->arrays.run_places : NULL;
    c->plan.is_short = c->is_short;
    c->plan.work = c->attn_work;
    for (int i = 0; i < d->limits.n_shapes; i++)
        c->schedules[i].is_filled = false;
}

/* Arrays of recorded steps are laid out as for the largest recorded step, so that all graphs find
 * them at the same addresses. */
int step_begin(struct device *d, const struct device_batch *b)
{
    struct cuda *gpu = cuda_of(d);
    struct step_slot *slot = &gpu->slots[gpu->n_begun % device_steps(d->limits.n_stages)];
    const struct k_tokens *tokens = &b->tokens;
    int bucket = step_choose_bucket(gpu, b), n_pages = step_pages_needed(gpu, b), rc;
    int n_tokens = tokens->n_tokens, n_seqs = tokens->n_seqs, n_rows = b->n_rows;
    struct step_arrays arrays;

    if (bucket >= 0)
        n_tokens = n_seqs = n_rows = d->limits.n_seqs;
    gpu->is_in_order = bucket >= 0 && step_keeps_order(gpu, tokens);
    gpu->adapt.is_active = b->adapters != NULL;
    arrays = step_lay_out(gpu, slot->staging, n_tokens, n_seqs, n_rows);
    must(gpu->n_begun - gpu->n_ended <= device_stages(d->limits.n_stages) &&
         arrays.bytes <= gpu->staging_bytes);
    if (gpu->peers != NULL && FAULT_HIT(rank_lost))
        peers_leave(d);
    if ((rc = step_wait_for_ids(gpu, b)) != ERR_OK)
        return rc;
    step_fill_rows(gpu, &arrays, b);
    d->step_tokens = tokens->n_tokens;
    d->step_rows = b->n_rows;
    slot->n_seqs = tokens->n_seqs;
    slot->n_pages = n_pages;
    if (bucket < 0) {
        step_copy_tokens(gpu, &arrays, slot, b);
        step_plan_attention(gpu, &arrays, tokens);
    } else {
        step_spread_tokens(gpu, &arrays, slot, b);
        step_find_runs(gpu, &arrays, b);
        d->step_tokens = d->step_rows = step_bucket_rows(gpu, bucket);
        slot->n_seqs = tokens->n_tokens;
        step_pad_tokens(gpu, &arrays, tokens->n_tokens, d->step_rows);
        if (gpu->is_in_order)
            step_keep_seqs(gpu, &arrays, slot, tokens, d->step_rows);
        arrays.bytes = (size_t)((char *)(arrays.rows + b->n_rows) - slot->staging);
        gpu->plan.n_decodes = d->step_rows;
        for (int i = 0; i < gpu->n_lists; i++)
            gpu->lists[i].n_tiles = 0;
    }
    if (gpu->adapt.is_active)
        adapt_fill(gpu, &arrays, b, bucket < 0 ? 0 : d->step_rows);
    d->places = bucket < 0 ? NULL : gpu->places;
    gpu->batch = b;
    slot->n_rows = 0;
    if (cuda_samples(gpu))
        slot->n_rows = b->n_rows;
    slot->n_extras = 0;
    slot->is_marked = false;
    gpu->is_short = n_pages * d->limits.page_tokens <= K_ATTN_SHORT;
    gpu->has_chunks = tokens->n_tokens != tokens->n_seqs;
    gpu->has_whole_runs =
        bucket >= 0 && gpu->has_chunks && (gpu->is_in_order || tokens->n_tokens == b->n_rows);
    gpu->bucket = bucket;
    gpu->n_begun++;
    gpu->arrays = step_lay_out(gpu, gpu->mirror, n_tokens, n_seqs, n_rows);
    step_point_kernels(gpu);
    rc = step_copy_arrays(gpu, slot, arrays.bytes);
    if (rc != ERR_OK)
        return rc;
    return cuda_check(
        cudaEventRecord(gpu->marks[(gpu->n_begun - 1) % CUDA_MARKS].begun, gpu->stream),
        "marking a step");
}

/* Attention of chunks, of runs and of short contexts are different kernels, and products with
 * adapters have further ones, so each has graphs of its own. */
static struct step_graph *step_graph_of(struct cuda *c)
{
    bool other = c->adapt.is_active || c->batch->is_variant;

    int chunks = c->has_whole_runs ? 2 : c->has_chunks ? 1 : 0;

    return &c->graphs[other][chunks][c->is_short][c->bucket];
}

/* The end of a step with samples is marked after sampling instead. */
static void step_play_graph(struct cuda *c, struct step_graph *g)
{
    cuda_keep(c, cuda_check(cudaGraphLaunch(g->exec, c->stream), "playing a step"), "a step");
    if (!cuda_samples(c))
        cuda_keep(c, step_mark_done(c), "a step");
}

/* First step of a bucket: false, and operations run normally. Second: false, but the stream is
 * captured. Later: the graph runs. */
bool step_replay(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    struct step_graph *recorded = gpu->bucket < 0 ? NULL : step_graph_of(gpu);

    if (recorded == NULL || recorded->failed || !peers_may_record(gpu))
        return false;
    if (recorded->exec != NULL) {
        step_play_graph(gpu, recorded);
        return true;
    }
    if (recorded->is_warm)
        gpu->is_recording =
            cudaStreamBeginCapture(gpu->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess;
    recorded->is_warm = true;
    return false;
}

/* Make a graph of the captured operations, and run it. A step whose capture fails has not run, so
 * that is an error of the device. */
void step_launch(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    cudaGraph_t graph = NULL;
    struct step_graph *recorded;
    int rc;

    if (!gpu->is_recording) {
        if (!cuda_samples(gpu))
            cuda_keep(gpu, step_mark_done(gpu), "a step");
        return;
    }
    recorded = step_graph_of(gpu);
    gpu->is_recording = false;
    rc = cuda_check(cudaStreamEndCapture(gpu->stream, &graph), "recording a step");
    if (rc == ERR_OK)
        rc = cuda_check(cudaGraphInstantiate(&recorded->exec, graph, 0), "recording a step");
    if (graph != NULL)
        (void)cudaGraphDestroy(graph); /* the executable graph does not need it */
    recorded->failed = rc != ERR_OK;
    cuda_keep(gpu, rc, "recording a step");
    if (rc != ERR_OK)
        return;
    log_debug("device: recorded steps of %d tokens%s", step_bucket_rows(gpu, gpu->bucket),
              gpu->has_whole_runs ? ", runs among them"
              : gpu->has_chunks   ? ", chunks among them"
                                  : "");
    step_play_graph(gpu, recorded);
}

/* --- sampling --------------------------------------------------------------------------- */

/* Log probabilities are computed from the model's logits, then masks and biases change them, then
 * rows are sampled. Rows under a penalty need their history on the device. */

/* From pinned memory to the device, by a kernel. */
static void step_copy_up(struct cuda *c, void *to, const void *from, size_t bytes)
{
    cuda_keep(c, k_copy(to, from, bytes, c->stream), "copying requests of rows");
}

/* True if some row wants log probabilities. */
static bool step_wants_logprobs(const struct device_extras *x)
{
    for (int i = 0; i < x->n_rows; i++) {
        if (x->rows[i].n_top >= 0)
            return true;
    }
    return false;
}

/* Before sampling: log probabilities of the unmodified logits, then masks and biases. */
static void step_enqueue_extras(struct cuda *c, float *logits, bool logprobs)
{
    const struct device_extras *extras = &c->base.extras;
    int n_vocab = c->base.limits.n_vocab;

    step_copy_up(c, c->extras.rows, extras->rows, (size_t)extras->n_rows * sizeof *extras->rows);
    step_copy_up(c, c->extras.biases, extras->biases,
                 (size_t)extras->n_biases * sizeof *extras->biases);
    step_copy_up(c, c->extras.masks, extras->masks,
                 (size_t)extras->n_masks * (size_t)extras->mask_words * sizeof *extras->masks);
    if (extras->n_asked > 0) {
        size_t bytes = (size_t)extras->n_asked * sizeof *extras->asked;

        step_copy_up(c, c->extras.asked, extras->asked, bytes);
        cuda_keep(c, k_read_asked(c->extras.asked, logits, n_vocab, extras->n_asked, c->stream),
                  "logits that are asked for");
        cuda_keep(c, k_copy(extras->asked, c->extras.asked, bytes, c->stream),
                  "logits that are asked for");
    }
    if (logprobs)
        cuda_keep(
            c, k_logprobs(c->logprobs, logits, n_vocab, c->extras.rows, extras->n_rows, c->stream),
            "log probabilities");
    if (extras->n_biases > 0 || extras->n_masks > 0)
        cuda_keep(c,
                  k_edit(logits, n_vocab, c->extras.rows, extras->n_rows, c->extras.masks,
                         c->extras.biases, c->stream),
                  "masks and biases");
}

/* After sampling: the log probabilities of the sampled ids, and their copy to the host. */
static void step_enqueue_chosen(struct cuda *c, const float *logits, struct step_slot *slot)
{
    const struct device_extras *extras = &c->base.extras;

    slot->n_extras = extras->n_rows;
    cuda_keep(c,
              k_chosen(c->logprobs, c->sampled, logits, c->base.limits.n_vocab, c->extras.rows,
                       extras->n_rows, c->extras.biases, c->stream),
              "log probabilities");
    cuda_keep(c,
              k_copy(slot->logprobs, c->logprobs, (size_t)extras->n_rows * sizeof *slot->logprobs,
                     c->stream),
              "log probabilities");
}

/* Sample rows first .. last - 1, whose histories are n tokens in all. */
static void step_sample_rows(struct cuda *c, const float *logits, int first, int last, size_t n)
{
    size_t n_vocab = (size_t)c->base.limits.n_vocab;

    step_copy_up(c, c->history_mirror, c->history, n * sizeof *c->history);
    cuda_keep(c,
              k_sample(c->sampled + first, logits + (size_t)first * n_vocab, last - first,
                       (int)n_vocab, c->arrays.rows + first, c->history_mirror, c->stream),
              "sample");
}

/* Copy histories to where step_fill_rows() has placed them, and sample full batches of rows on the
 * way. When the room is used up, the stream must have read it before it is filled again. (The
 * previous step, which used it before, has ended.) Returns the first row that is not sampled yet;
 * *n is the number of its and later rows' tokens of history. */
static int step_copy_histories(struct cuda *c, const float *logits, size_t *n)
{
    const struct device_batch *batch = c->batch;
    size_t at = 0;
    int first = 0;

    for (int row = 0; row < batch->n_rows; row++) {
        size_t len = (size_t)batch->rows[row].n_history;

        if (at + len > c->history_cap) {
            step_sample_rows(c, logits, first, row, at);
            first = row;
            cuda_keep(c, cuda_check(cudaStreamSynchronize(c->stream), "reading histories"),
                      "histories");
            at = 0;
        }
        if (len > 0)
            memcpy(c->history + at, batch->histories[row], len * sizeof *c->history);
        at += len;
    }
    *n = at;
    return first;
}

/* A head's ids become those of its target. */
static void step_rename(struct cuda *c)
{
    size_t bytes = (size_t)c->base.limits.n_vocab * sizeof *c->renames;
    int rc = ERR_OK;

    if (c->base.sample_ids == NULL)
        return;
    if (c->renames == NULL) {
        c->renames = cuda_alloc(&c->base, bytes);
        rc = c->renames == NULL
                 ? ERR_NO_MEMORY
                 : c->base.ops->upload(&c->base, c->renames, c->base.sample_ids, bytes);
    }
    if (rc == ERR_OK)
        rc = k_rename(c->sampled, c->renames, c->batch->n_rows, c->stream);
    cuda_keep(c, rc, "ids of a head");
}

/* Each row's logits come from its own place or from behind it, so none are overwritten before. */
void step_place_rows(struct device *d, float *logits)
{
    struct cuda *gpu = cuda_of(d);
    size_t n_vocab = (size_t)d->limits.n_vocab;
    int before;

    if (!gpu->is_in_order)
        return;
    before = cuda_enter(gpu);
    for (int row = 0; row < gpu->batch->n_rows; row++) {
        size_t from = (size_t)gpu->batch->row_tokens[row];

        if (from != (size_t)row)
            cuda_keep(gpu,
                      cuda_check(cudaMemcpyAsync(logits + (size_t)row * n_vocab,
                                                 logits + from * n_vocab, n_vocab * sizeof *logits,
                                                 cudaMemcpyDeviceToDevice, gpu->stream),
                                 "logits of rows"),
                      "a step");
    }
    cuda_leave(before);
}

/* Enqueues everything; nothing waits here unless histories exceed their room. */
void step_sample(struct device *d, float *logits)
{
    struct cuda *gpu = cuda_of(d);
    struct step_slot *slot = &gpu->slots[(gpu->n_begun - 1) % device_steps(d->limits.n_stages)];
    bool logprobs = step_wants_logprobs(&d->extras);
    int first, before = cuda_enter(gpu); /* the caller's GPU may be that of the first stage */
    size_t n = 0;

    must(d->extras.n_rows <= gpu->batch->n_rows);
    if (d->extras.n_rows > 0)
        step_enqueue_extras(gpu, logits, logprobs);
    first = step_copy_histories(gpu, logits, &n);
    step_sample_rows(gpu, logits, first, gpu->batch->n_rows, n);
    if (logprobs)
        step_enqueue_chosen(gpu, logits, slot);
    step_rename(gpu);
    cuda_keep(
        gpu, k_copy(slot->ids, gpu->sampled, (size_t)slot->n_rows * sizeof *slot->ids, gpu->stream),
        "sample");
    cuda_keep(gpu, step_mark_done(gpu), "sample");
    cuda_leave(before);
}

/* Measure the step, and how long the stream was idle before it, including the copies of its
 * arrays. */
static void step_measure_times(struct cuda *c, unsigned step)
{
    const struct step_marks *before = &c->marks[(step - 1) % CUDA_MARKS];
    const struct step_marks *marks = &c->marks[step % CUDA_MARKS];
    float ms = 0.0f;

    if (cudaEventElapsedTime(&ms, marks->begun, marks->done) == cudaSuccess)
        c->busy_us += (double)ms * 1e3;
    c->n_steps++;
    if (step > 0 && cudaEventElapsedTime(&ms, before->done, marks->begun) == cudaSuccess)
        c->base.step_gap_us = ms * 1e3f;
    (void)cudaGetLastError(); /* a step without samples has no mark: not an error */
}

/* Ids and log probabilities are in pinned memory once the event has passed. */
int step_end(struct device *d, int32_t *ids, struct k_logprob_row *logprobs, int *n_extras)
{
    struct cuda *gpu = cuda_of(d);
    unsigned step = gpu->n_ended++;
    struct step_slot *slot = &gpu->slots[step % device_steps(d->limits.n_stages)];

    must(step != gpu->n_begun);
    /* Without samples there is no event. */
    cuda_keep(gpu, peers_wait(gpu, slot->is_marked ? gpu->marks[step % CUDA_MARKS].done : NULL),
              "a step");
    step_measure_times(gpu, step);
    if (stages_failed(gpu) && gpu->rc == ERR_OK)
        gpu->rc = ERR_GPU;
    if (peers_failed(gpu) && gpu->rc == ERR_OK) {
        log_error("device: rank %d: another rank did not take part in a sum", gpu->rank);
        gpu->rc = ERR_GPU;
    }
    if (gpu->rc != ERR_OK)
        return gpu->rc;
    if (slot->n_rows > 0)
        memcpy(ids, slot->ids, (size_t)slot->n_rows * sizeof *ids);
    memcpy(logprobs, slot->logprobs, (size_t)slot->n_extras * sizeof *logprobs);
    *n_extras = slot->n_extras;
    return ERR_OK;
}

/* --- room ------------------------------------------------------------------------------- */

/* All memory of steps is allocated once. Copies by kernels move 16 bytes at a time, so pinned and
 * device arrays have 16 bytes to spare. */

/* Allocate the extras' arrays, pinned and on the device. */
static int step_reserve_extras(struct cuda *c)
{
    struct device_extras *extras = &c->base.extras, *wanted = &c->extras;
    size_t rows = (size_t)c->base.limits.n_seqs, biases = rows * DEVICE_BIASES_MAX;
    size_t words;

    extras->mask_words = (c->base.limits.n_vocab + 31) / 32;
    words = rows * (size_t)extras->mask_words;
    extras->rows = cuda_pinned(rows * sizeof *extras->rows + 16); /* copies are rounded up */
    extras->biases = cuda_pinned(biases * sizeof *extras->biases + 16);
    extras->masks = cuda_pinned(words * sizeof *extras->masks + 16);
    extras->asked = cuda_pinned(rows * DEVICE_ASKED_MAX * sizeof *extras->asked + 16);
    wanted->asked = cuda_alloc(&c->base, rows * DEVICE_ASKED_MAX * sizeof *wanted->asked + 16);
    wanted->rows = cuda_alloc(&c->base, rows * sizeof *wanted->rows + 16);
    wanted->biases = cuda_alloc(&c->base, biases * sizeof *wanted->biases + 16);
    wanted->masks = cuda_alloc(&c->base, words * sizeof *wanted->masks + 16);
    c->logprobs = cuda_alloc(&c->base, rows * sizeof *c->logprobs + 16);
    if (extras->rows == NULL || extras->biases == NULL || extras->masks == NULL ||
        wanted->rows == NULL || wanted->biases == NULL || wanted->masks == NULL ||
        c->logprobs == NULL || extras->asked == NULL || wanted->asked == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Layers share a list if as many query heads share a kv head. */
int step_find_lists(struct cuda *c)
{
    const struct device_limits *lim = &c->base.limits;

    c->n_lists = 0;
    for (int i = 0; i < lim->n_shapes; i++) {
        int group = lim->shapes[i].n_heads / lim->shapes[i].n_kv_heads, list = 0;

        if (group > K_TILE_ROWS) {
            log_error("device: %d query heads per kv head, the kernels take at most %d", group,
                      K_TILE_ROWS);
            return ERR_UNSUPPORTED;
        }
        while (list < c->n_lists && c->lists[list].group != group)
            list++;
        if (list == CUDA_LISTS_MAX) {
            log_error("device: layers have more than %d different numbers of query heads per kv "
                      "head",
                      CUDA_LISTS_MAX);
            return ERR_UNSUPPORTED;
        }
        if (list == c->n_lists)
            c->lists[c->n_lists++] = (struct attn_list){.group = group};
    }
    return ERR_OK;
}

/* Histories of all sequences may be too many for pinned memory, so their room is limited, but at
 * least one sequence fits. */
int step_reserve(struct cuda *c)
{
    const struct device_limits *lim = &c->base.limits;
    size_t rows = (size_t)lim->n_seqs, pages = step_table_room(c) * (size_t)lim->n_tables;
    size_t history = rows * (size_t)lim->len_max;

    c->staging_bytes = step_lay_out(c, NULL, lim->n_tokens, lim->n_seqs, lim->n_seqs).bytes;
    c->history_cap = HISTORY_MAX;
    if (c->history_cap < (size_t)lim->len_max)
        c->history_cap = (size_t)lim->len_max;
    if (history < HISTORY_MAX)
        c->history_cap = history;
    for (unsigned i = 0; i < device_steps(lim->n_stages); i++) {
        struct step_slot *slot = &c->slots[i];

        slot->staging = cuda_pinned(c->staging_bytes);
        slot->pages = cuda_pinned(pages * sizeof *slot->pages);
        slot->ids = cuda_pinned(rows * sizeof *slot->ids + 16); /* copies are rounded up */
        slot->logprobs = cuda_pinned(rows * sizeof *slot->logprobs + 16);
        if (slot->staging == NULL || slot->pages == NULL || slot->ids == NULL ||
            slot->logprobs == NULL)
            return ERR_NO_MEMORY;
    }
    for (int i = 0; i < CUDA_MARKS; i++) {
        if (cuda_check(cudaEventCreate(&c->marks[i].begun), "an event") != ERR_OK ||
            cuda_check(cudaEventCreate(&c->marks[i].done), "an event") != ERR_OK)
            return ERR_GPU;
    }
    c->places = mem_zalloc_array(rows, sizeof *c->places);
    c->history = cuda_pinned(c->history_cap * sizeof *c->history + 16);
    c->mirror = cuda_alloc(&c->base, c->staging_bytes);
    c->page_mirror = cuda_alloc(&c->base, pages * sizeof *c->page_mirror);
    c->history_mirror = cuda_alloc(&c->base, c->history_cap * sizeof *c->history + 16);
    c->own_sampled = c->sampled = cuda_alloc(&c->base, rows * sizeof *c->sampled + 16);
    if (c->history == NULL || c->mirror == NULL || c->page_mirror == NULL ||
        c->history_mirror == NULL || c->sampled == NULL || c->places == NULL)
        return ERR_NO_MEMORY;
    return step_reserve_extras(c);
}

/* Graphs are destroyed before the memory that they contain pointers to. */
void step_close(struct cuda *c)
{
    for (int i = 0; i < 12 * CUDA_GRAPHS_MAX; i++) {
        int kind = i / CUDA_GRAPHS_MAX;
        struct step_graph *recorded =
            &c->graphs[kind / 6][kind / 2 % 3][kind % 2][i % CUDA_GRAPHS_MAX];

        if (recorded->exec != NULL)
            (void)cudaGraphExecDestroy(recorded->exec); /* errors are ignored at the end */
    }
    for (int i = 0; i < DEVICE_STEPS_MAX; i++) {
        (void)cudaFreeHost(c->slots[i].staging);
        (void)cudaFreeHost(c->slots[i].pages);
        (void)cudaFreeHost(c->slots[i].ids);
        (void)cudaFreeHost(c->slots[i].logprobs);
    }
    for (int i = 0; i < CUDA_MARKS; i++) {
        if (c->marks[i].begun != NULL)
            (void)cudaEventDestroy(c->marks[i].begun);
        if (c->marks[i].done != NULL)
            (void)cudaEventDestroy(c->marks[i].done);
    }
    mem_free(c->places);
    (void)cudaFreeHost(c->history);
    (void)cudaFreeHost(c->base.extras.rows);
    (void)cudaFreeHost(c->base.extras.biases);
    (void)cudaFreeHost(c->base.extras.masks);
    (void)cudaFreeHost(c->base.extras.asked);
}
