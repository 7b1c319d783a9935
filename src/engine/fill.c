/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan as plain arrays for the model: token ids, page tables, and a row for each position whose
 * logits are needed. Nothing is decided here.
 *
 * fill_batch() is called before the step begins and may not know the last token of a sequence; the
 * model then takes it from the step before. fill_extras() is called after that step has ended, for
 * rows that depend on the token: masks, biases and log probabilities. */
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "engine/engine.h"

/* All arrays are as long as the largest step, because the engine allocates nothing after start. */
int fill_init(struct engine *e)
{
    size_t n_seqs = (size_t)e->shape->max_num_seqs;
    struct batch *batch = &e->batch;

    batch->pages_max = e->pool.pages_cap;
    batch->token_ids = mem_zalloc_array((size_t)e->shape->max_num_batched_tokens, sizeof(int32_t));
    batch->seq_start = mem_zalloc_array(n_seqs + 1, sizeof(int32_t));
    batch->kv_len = mem_zalloc_array(n_seqs, sizeof(int32_t));
    batch->page_ids = mem_zalloc_array(
        (size_t)e->shape->n_groups * n_seqs * (size_t)batch->pages_max, sizeof(int32_t));
    batch->rows = mem_zalloc_array(n_seqs, sizeof *batch->rows);
    batch->extras = mem_zalloc_array(n_seqs, sizeof *batch->extras);
    e->row_tokens = mem_zalloc_array(n_seqs, sizeof(int32_t));
    e->adapter_slots = mem_zalloc_array(n_seqs, sizeof *e->adapter_slots);
    e->logprobs = mem_zalloc_array(n_seqs, sizeof *e->logprobs);
    e->pooled_rows =
        mem_zalloc_array((e->shape->pools ? ENGINE_POOLED_ROWS : 1) * (size_t)e->shape->n_vocab,
                         sizeof *e->pooled_rows);
    e->extra_words = mem_zalloc_array(2 * (size_t)e->guide.n_words + 2 * WIRE_BIASES_MAX +
                                          WIRE_BAD_WORDS_MAX + WIRE_ASKED_MAX,
                                      sizeof *e->extra_words);
    for (int i = 0; i < MODEL_STEPS_MAX; i++) {
        struct engine_step *step = &e->steps[i];

        step->seqs = mem_zalloc_array(n_seqs, sizeof(struct seq *));
        step->counts = mem_zalloc_array(n_seqs, sizeof *step->counts);
        step->rows = mem_zalloc_array(n_seqs, sizeof(struct seq *));
        step->targets = mem_zalloc_array(n_seqs, sizeof *step->targets);
        step->extras = mem_zalloc_array(n_seqs, sizeof *step->extras);
        step->drafts = mem_zalloc_array(n_seqs, sizeof *step->drafts);
        if (step->seqs == NULL || step->counts == NULL || step->rows == NULL ||
            step->targets == NULL || step->extras == NULL || step->drafts == NULL)
            return ERR_NO_MEMORY;
    }
    if (batch->token_ids == NULL || batch->seq_start == NULL || batch->kv_len == NULL ||
        batch->page_ids == NULL || batch->rows == NULL || e->row_tokens == NULL ||
        batch->extras == NULL || e->adapter_slots == NULL || e->logprobs == NULL ||
        e->extra_words == NULL || e->pooled_rows == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* The ids that may not come yet: those that would end the text before min_tokens. With an automaton
 * the mask forbids them instead, because only the mask knows whether anything else is allowed. */
static void fill_banned(const struct engine *e, const struct seq *seq, struct batch_row *row)
{
    const struct wire_request *request = &seq->request;

    row->n_banned = 0;
    if (seq->n_tokens + seq->n_pending - seq->n_prompt >= (int)request->generate.min_tokens)
        return;
    if ((request->flags & WIRE_IGNORE_EOS) == 0 && seq->automaton == NULL) {
        for (int i = 0; i < e->shape->n_eos; i++)
            row->banned[row->n_banned++] = e->shape->eos[i];
    }
    for (uint32_t i = 0; i < request->generate.n_stop_ids; i++)
        row->banned[row->n_banned++] = request->generate.stop_ids[i];
}

/* Add a row to the step: for token token_idx of the batch, which is seq's. target: as in struct
 * engine_step. */
static struct batch_row *fill_row(struct engine *e, struct engine_step *step, struct seq *seq,
                                  int token_idx, int target)
{
    int i = e->batch.n_rows++;

    step->rows[i] = seq;
    step->targets[i] = target;
    step->extras[i] = -1;
    e->batch.rows[i] = (struct batch_row){.token_idx = token_idx, .sampling = sampling_greedy()};
    return &e->batch.rows[i];
}

/* Rows for the log probabilities of prompt tokens: seq's tokens [first, first + n) are computed,
 * and the row of each gives the log probability of the token after it. Positions that were reported
 * before a preemption are skipped. */
static void fill_prompt_rows(struct engine *e, struct engine_step *step, struct seq *seq, int first,
                             int n)
{
    for (int i = 0; i < n; i++) {
        int target = first + i + 1;

        if (target <= seq->n_told || target >= seq->n_prompt)
            continue;
        (void)fill_row(e, step, seq, e->batch.n_tokens + i, target);
        seq->n_owed += seq_prompt_records(seq);
        step->waits = true;
    }
}

/* A row that samples seq's next token. It is sampled together with the step, unless it depends on
 * the token before: penalties count it, masks and biases follow from it. */
static void fill_sampled_row(struct engine *e, struct engine_step *step, struct seq *seq,
                             int token_idx)
{
    bool is_behind_draft = seq->draft.n > 0 && seq->n_pending > 0;
    const struct wire_request *request = &seq->request;
    struct batch_row *row = fill_row(e, step, seq, token_idx, 0);
    bool penalties = sampling_has_penalty(&request->generate.sampling);

    row->sampling = request->generate.sampling;
    row->position = (uint64_t)(seq->n_tokens + seq->n_pending);
    row->history = penalties ? seq->tokens : NULL;
    row->n_history = seq->n_tokens + seq->n_pending;
    row->n_prompt = seq->n_prompt;
    fill_banned(e, seq, row);
    seq->is_masked = guide_has_mask(seq) || (is_behind_draft && seq->is_masked);
    step->waits = step->waits || penalties || seq->is_masked || request->generate.n_biases > 0 ||
                  (request->flags & WIRE_LOGPROBS) != 0 || seq_is_pooled(seq);
    seq->row_ahead = e->batch.n_rows - 1;
    seq->n_pending++;
    seq->n_owed += seq_token_records(seq);
}

/* A row at the last known token, if the step computes that, and one at each draft after it. */
static void fill_sampled_rows(struct engine *e, struct engine_step *step, struct seq *seq,
                              int kv_len)
{
    int first = seq->n_tokens + seq->n_pending;

    /* kv_len is the length of seq after the step; positions first.. up to it have no known
     * successor. */
    for (int at = first; at <= kv_len; at++)
        fill_sampled_row(e, step, seq, e->batch.n_tokens - 1 - (kv_len - at));
    seq->draft.n_ahead = seq->draft.n;
    seq->draft.n = seq->draft.n_cut = 0;
}

/* The token ids of seq's plan: known ones, then its drafts, or the token that a step in flight
 * samples. That one is not known here: the id -1 - row means "the token that row sampled". */
static void fill_tokens(int32_t *to, const struct seq *seq)
{
    int first = seq->n_computed + seq->n_ahead, known = seq->n_tokens + seq->draft.n - first;

    must(seq->n_planned <= known + seq->n_pending);
    if (seq->n_planned <= known) {
        memcpy(to, seq->tokens + first, sizeof(int32_t) * (size_t)seq->n_planned);
        return;
    }
    memcpy(to, seq->tokens + first, sizeof(int32_t) * (size_t)known);
    to[known] = -1 - seq->row_ahead;
}

/* Copy the page tables of seq, the i-th sequence of the step. Entries before a window are never
 * read; they are zeroed because the device checks that every entry is a page. */
static void fill_tables(struct engine *e, int i, const struct seq *seq)
{
    struct batch *batch = &e->batch;

    for (int group = 0; group < e->shape->n_groups; group++) {
        const struct seq_table *of = &seq->tables[group];
        size_t row = (size_t)group * (size_t)batch->n_seqs + (size_t)i;
        int32_t *to = batch->page_ids + row * (size_t)batch->pages_max;

        memset(to, 0, sizeof *to * (size_t)of->first);
        memcpy(to + of->first, of->pages + of->first, sizeof *to * (size_t)(of->n - of->first));
    }
}

/* Sequence by sequence: tokens, page tables, then rows. Rows of the prompt come before the sampled
 * ones, in the order in which publish_step() expects them. */
void fill_batch(struct engine *e)
{
    struct batch *batch = &e->batch;
    struct engine_step *step = &e->steps[e->n_begun % MODEL_STEPS_MAX];

    _Static_assert(WIRE_EOS_MAX + WIRE_STOP_IDS <= BATCH_BANNED_MAX, "all stop ids can be banned");
    batch->n_tokens = 0;
    batch->n_rows = 0;
    batch->n_extras = 0;
    batch->n_masks = 0;
    batch->adapters = NULL;
    step->waits = false;
    step->begun_us = e->now_us;
    step->load = e->sched.load;
    step->is_limited = e->sched.is_limited;
    batch->n_seqs = e->sched.n_planned;
    for (int i = 0; i < batch->n_seqs; i++) {
        struct seq *seq = e->sched.planned[i];

        batch->seq_start[i] = batch->n_tokens;
        e->adapter_slots[i] = lora_slot_of(seq);
        if (e->adapter_slots[i] >= 0)
            batch->adapters = e->adapter_slots;
        batch->kv_len[i] = seq->n_computed + seq->n_ahead + seq->n_planned;
        fill_tokens(batch->token_ids + batch->n_tokens, seq);
        step->seqs[i] = seq;
        step->counts[i] = seq->n_planned;
        fill_tables(e, i, seq);
        if (seq_tells_prompt(seq))
            fill_prompt_rows(e, step, seq, seq->n_computed + seq->n_ahead, seq->n_planned);
        batch->n_tokens += seq->n_planned;
        step->drafts[i] = seq->draft.n;
        fill_sampled_rows(e, step, seq, batch->kv_len[i]);
    }
    batch->seq_start[batch->n_seqs] = batch->n_tokens;
    step->n_seqs = batch->n_seqs;
    step->n_rows = batch->n_rows;
    step->n_tokens = batch->n_tokens;
}

/* How many of the most probable ids a sampled row reports: -1 without log probabilities, 0 if its
 * logits are reported whole. */
static int32_t fill_n_top(const struct seq *seq)
{
    if ((seq->request.flags & WIRE_LOGPROBS) == 0)
        return -1;
    if (seq_has_rows(seq))
        return 0;
    return (int32_t)seq->request.generate.n_logprobs;
}

/* Describe the extra outputs and constraints of a row. False: it needs only an id. */
static bool fill_extra(struct engine *e, const struct engine_step *step, int r,
                       struct batch_extra *x)
{
    struct seq *seq = step->rows[r];
    const struct wire_request *request;
    bool masked;

    if (seq == NULL)
        return false; /* the sequence ended meanwhile */
    if (seq_is_pooled(seq))
        return false; /* fill_rows() reads it */
    request = &seq->request;
    /* A row of the prompt: the log probability of its known next token. */
    if (step->targets[r] > 0) {
        *x = (struct batch_extra){
            .row = r,
            .target = seq->tokens[step->targets[r]],
            .n_top = seq_prompt_has_rows(seq) ? 0 : (int32_t)request->generate.n_prompt_logprobs,
            .mask = -1};
        return true;
    }
    /* A sampled row: a mask, biases, and the most probable tokens or those that were asked for. A
     * row that is reported whole needs no list. */
    masked = seq->is_masked;
    *x = (struct batch_extra){
        .row = r,
        .target = -1,
        .n_top = fill_n_top(seq),
        .n_biases = (int32_t)request->generate.n_biases,
        .biases = seq->biases,
        .n_asked = seq_has_rows(seq) ? 0 : (int32_t)request->generate.n_asked,
        .asked = seq->asked,
        .mask = masked ? guide_add(&e->guide, seq) : -1,
    };
    return masked || x->n_top >= 0 || x->n_biases > 0;
}

/* The mask of seq's row is late: the step goes on without the row, and without those of seq's
 * drafts behind it. The tokens at these rows are computed again in the step that has the mask;
 * their keys and values are then overwritten, those of a known token with equal ones. */
static void fill_skip(struct engine_step *step, struct seq *seq, int r)
{
    int n = 0;

    for (int i = r; i < step->n_rows && step->rows[i] == seq; i++, n++)
        step->rows[i] = NULL;
    for (int i = 0; i < step->n_seqs; i++) {
        if (step->seqs[i] != seq)
            continue;
        step->counts[i] -= n;
        step->drafts[i] = 0;
    }
    seq->draft.n_ahead = 0;
    seq->n_ahead -= n;
    seq->n_pending -= n;
    seq->n_owed -= n * seq_token_records(seq);
}

/* Look at the masks that were not made: a late one skips its row, an impossible one ends its
 * sequence with an error; behind a draft, which may be wrong, either ends the drafts before it: the
 * samples of its row and of those behind it do not count. */
static void fill_look(struct engine *e, struct engine_step *step)
{
    for (int r = 0; r < step->n_rows; r++) {
        int extra = step->extras[r];
        struct guide_job *job;

        if (step->rows[r] == NULL || extra < 0 || e->batch.extras[extra].mask < 0)
            continue;
        job = &e->guide.jobs[e->batch.extras[extra].mask];
        if (job->rc == ERR_OK)
            continue;
        if (job->n_drafts > 0)
            job->q->draft.n_cut++;
        else if (job->rc == ERR_AGAIN)
            fill_skip(step, job->q, r);
        else
            publish_finish(e, job->q, WIRE_FIN_ERROR, job->rc);
    }
}

/* All masks are collected first and then made together, because guide_run() distributes them over
 * threads. */
void fill_extras(struct engine *e, struct engine_step *step)
{
    struct batch *batch = &e->batch;

    guide_clear(&e->guide);
    for (int r = 0; r < step->n_rows; r++) {
        if (fill_extra(e, step, r, &batch->extras[batch->n_extras]))
            step->extras[r] = batch->n_extras++;
    }
    guide_run(&e->guide);
    batch->n_masks = e->guide.n_jobs;
    fill_look(e, step);
}

/* The rows of a mean from row r on are added to those before them. They come in the order of the
 * tokens, however the text is cut into steps, so the sum is the same to the last bit. *n: their
 * number, at most ENGINE_POOLED_ROWS. */
static int fill_mean(struct engine *e, const struct engine_step *step, int r, int *n)
{
    struct seq *seq = step->rows[r];
    int width = e->shape->n_vocab, rc;

    *n = 1;
    while (*n < ENGINE_POOLED_ROWS && r + *n < step->n_rows && step->rows[r + *n] == seq)
        (*n)++;
    if ((rc = model_rows_logits(e->model, r, *n, e->pooled_rows)) != ERR_OK)
        return rc;
    for (int k = 0; k < *n; k++) {
        const float *row = e->pooled_rows + (size_t)k * (size_t)width;

        for (int i = 0; i < width; i++)
            seq->row[1 + i] += row[i];
    }
    return ERR_OK;
}

/* Rows of a pooled answer: of a mean all from row r on, else the last token's. */
static int fill_pooled(struct engine *e, const struct engine_step *step, int r, int *n)
{
    struct seq *seq = step->rows[r];

    *n = 1;
    if (seq_is_mean(seq))
        return fill_mean(e, step, r, n);
    return model_row_logits(e->model, r, seq->row + 1);
}

/* Only one row per sequence can be reported whole at a time: seq_awaits_row() delays the next step
 * of such a sequence. */
int fill_rows(struct engine *e, const struct engine_step *step)
{
    int rc = ERR_OK, n;

    for (int r = 0; r < step->n_rows && rc == ERR_OK; r += n) {
        struct seq *seq = step->rows[r];

        n = 1;
        if (seq == NULL)
            continue;
        if (seq_is_pooled(seq)) {
            rc = fill_pooled(e, step, r, &n);
            continue;
        }
        if (step->targets[r] > 0 && !seq_prompt_has_rows(seq))
            continue;
        if (step->targets[r] == 0 && !seq_has_rows(seq))
            continue;
        must(!seq->tells_row);
        rc = model_row_logits(e->model, r, seq->row + 1);
    }
    return rc;
}
