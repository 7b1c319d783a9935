/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan as plain arrays. Nothing is decided here. */
#include <string.h>

#include "base/mem.h"
#include "base/must.h"
#include "engine/engine.h"

int fill_init(struct engine *e)
{
    size_t n_seqs = (size_t)e->shape->max_num_seqs;
    struct batch *b = &e->batch;

    b->pages_max = e->pool.pages_cap;
    b->token_ids = mem_zalloc_array((size_t)e->shape->max_num_batched_tokens, sizeof(int32_t));
    b->seq_start = mem_zalloc_array(n_seqs + 1, sizeof(int32_t));
    b->kv_len = mem_zalloc_array(n_seqs, sizeof(int32_t));
    b->page_ids = mem_zalloc_array(n_seqs * (size_t)b->pages_max, sizeof(int32_t));
    b->rows = mem_zalloc_array(n_seqs, sizeof *b->rows);
    e->row_tokens = mem_zalloc_array(n_seqs, sizeof(int32_t));
    for (int i = 0; i < MODEL_STEPS_MAX; i++) {
        struct engine_step *step = &e->steps[i];

        step->seqs = mem_zalloc_array(n_seqs, sizeof(struct seq *));
        step->counts = mem_zalloc_array(n_seqs, sizeof *step->counts);
        step->rows = mem_zalloc_array(n_seqs, sizeof(struct seq *));
        if (step->seqs == NULL || step->counts == NULL || step->rows == NULL)
            return ERR_NO_MEMORY;
    }
    return b->token_ids == NULL || b->seq_start == NULL || b->kv_len == NULL ||
                   b->page_ids == NULL || b->rows == NULL || e->row_tokens == NULL
               ? ERR_NO_MEMORY
               : ERR_OK;
}

/* Ids that may not come yet: whatever would end the text before min_tokens. */
static void fill_banned(const struct engine *e, const struct seq *q, struct batch_row *row)
{
    const struct wire_request *r = &q->request;

    row->n_banned = 0;
    if (q->n_tokens + q->n_pending - q->n_prompt >= (int)r->min_tokens)
        return;
    if ((r->flags & WIRE_IGNORE_EOS) == 0) {
        for (int i = 0; i < e->shape->n_eos; i++)
            row->banned[row->n_banned++] = e->shape->eos[i];
    }
    for (uint32_t i = 0; i < r->n_stop_ids; i++)
        row->banned[row->n_banned++] = r->stop_ids[i];
}

static void fill_row(struct engine *e, struct engine_step *step, struct seq *q, int token_idx)
{
    const struct wire_request *r = &q->request;
    struct batch_row *row = &e->batch.rows[e->batch.n_rows];
    bool penalties = r->presence != 0.0f || r->frequency != 0.0f || r->repetition != 1.0f;

    row->token_idx = token_idx;
    row->temperature = r->temperature;
    row->top_p = r->top_p;
    row->min_p = r->min_p;
    row->top_k = r->top_k;
    row->presence = r->presence;
    row->frequency = r->frequency;
    row->repetition = r->repetition;
    row->seed = r->seed;
    row->position = (uint64_t)(q->n_tokens + q->n_pending);
    row->history = penalties ? q->tokens : NULL;
    row->n_history = q->n_tokens;
    row->n_prompt = q->n_prompt;
    fill_banned(e, q, row);
    step->is_alone = step->is_alone || penalties;
    q->row_ahead = e->batch.n_rows;
    q->n_pending++;
    step->rows[e->batch.n_rows++] = q;
}

/* The tokens of q's plan; the last may be one that the step under way samples. */
static void fill_tokens(int32_t *to, const struct seq *q)
{
    int first = q->n_computed + q->n_ahead, known = q->n_tokens - first;

    must(q->n_planned <= known + q->n_pending);
    if (q->n_planned <= known) {
        memcpy(to, q->tokens + first, sizeof(int32_t) * (size_t)q->n_planned);
        return;
    }
    memcpy(to, q->tokens + first, sizeof(int32_t) * (size_t)known);
    to[known] = -1 - q->row_ahead;
}

void fill_batch(struct engine *e)
{
    struct batch *b = &e->batch;
    struct engine_step *step = &e->steps[e->n_begun % MODEL_STEPS_MAX];

    _Static_assert(WIRE_EOS_MAX + WIRE_STOP_IDS <= BATCH_BANNED_MAX, "all stop ids can be banned");
    b->n_tokens = 0;
    b->n_rows = 0;
    step->is_alone = false;
    b->n_seqs = e->sched.n_planned;
    for (int i = 0; i < b->n_seqs; i++) {
        struct seq *q = e->sched.planned[i];

        b->seq_start[i] = b->n_tokens;
        b->kv_len[i] = q->n_computed + q->n_ahead + q->n_planned;
        fill_tokens(b->token_ids + b->n_tokens, q);
        step->seqs[i] = q;
        step->counts[i] = q->n_planned;
        memcpy(b->page_ids + (size_t)i * (size_t)b->pages_max, q->pages,
               sizeof(int32_t) * (size_t)q->n_pages);
        b->n_tokens += q->n_planned;
        if (b->kv_len[i] == q->n_tokens + q->n_pending)
            fill_row(e, step, q, b->n_tokens - 1);
    }
    b->seq_start[b->n_seqs] = b->n_tokens;
    step->n_seqs = b->n_seqs;
    step->n_rows = b->n_rows;
    step->n_tokens = b->n_tokens;
}

void fill_forget(struct engine *e, const struct seq *q)
{
    for (unsigned i = e->n_ended; i != e->n_begun; i++) {
        struct engine_step *step = &e->steps[i % MODEL_STEPS_MAX];

        for (int s = 0; s < step->n_seqs; s++)
            step->seqs[s] = step->seqs[s] == q ? NULL : step->seqs[s];
        for (int r = 0; r < step->n_rows; r++)
            step->rows[r] = step->rows[r] == q ? NULL : step->rows[r];
    }
}
