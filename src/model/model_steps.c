/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of a model.
 *
 * A step turns the engine's batch into a batch of the device on every rank, runs the forward pass,
 * and samples on the first rank of the last stage. With stages, each rank's part of a step is: take
 * the rows of the stage before, run the stage's layers, hand the rows to the next stage. Devices
 * that enqueue their operations wait for each other on the device. Where operations run when they
 * are called, steps are posted to the ranks' workers (rank.h), and work on copies of the batch's
 * arrays, because the engine fills in the next batch meanwhile. */
#include "model/model.h"

#include <math.h>
#include <string.h>

#include "base/must.h"
#include "model/forward.h"
#include "model/model_parts.h"

/* --- a batch of the device --------------------------------------------------------------- */

/* A batch is checked completely before the device sees it, because a wrong page id or token would
 * corrupt another sequence's memory silently. All checks are must(): the engine makes batches, no
 * client does. */

/* Check the page ids that sequence i's tokens, from position first_pos on, read and write. Entries
 * before a window are not read and may hold anything. */
static void model_check_pages(const struct model *m, const struct batch *b, int i, int first_pos)
{
    const struct cache *cache = &m->cache;

    for (int g = 0; g < cache->n_groups; g++) {
        const struct cache_group *group = &cache->groups[g];
        const int32_t *row =
            b->page_ids + ((size_t)g * (size_t)b->n_seqs + (size_t)i) * (size_t)b->pages_max;
        int last =
            group->kind == CACHE_STATE ? group->n_state_pages : cache_pages(cache, b->kv_len[i]);

        must(last <= b->pages_max);
        /* A state is one piece, so it has no window. */
        for (int p = cache_first_page(cache, group, first_pos); p < last; p++)
            must(row[p] >= 0 && row[p] < m->shape.n_pages);
    }
}

/* The step that began n steps ago; 0: the one that begins. */
static struct model_step *model_step_before(struct model *m, unsigned n)
{
    return &m->steps[(m->n_begun - n) % m->n_steps];
}

/* The rows that negative ids of the step that begins can refer to. */
static int model_rows_before(struct model *m)
{
    if (m->n_under_way < m->shape.n_stages)
        return 0;
    return model_step_before(m, (unsigned)m->shape.n_stages)->n_rows;
}

/* Derive the sequence and the position of each token, checking the batch's ranges on the way. A
 * negative id refers to a row of an earlier step, which must not have ended. */
static void model_place_tokens(struct model *m, struct model_step *step, const struct batch *b)
{
    int n_rows_before = model_rows_before(m);
    const struct model_shape *shape = &m->shape;

    /* Ranges of batch.h. */
    must(b->n_tokens >= 1 && b->n_tokens <= shape->max_num_batched_tokens);
    must(b->n_seqs >= 1 && b->n_seqs <= shape->max_num_seqs);
    must(b->n_rows >= 0 && b->n_rows <= shape->max_num_seqs);
    must(b->seq_start[0] == 0);
    must(b->seq_start[b->n_seqs] == b->n_tokens);
    for (int i = 0; i < b->n_seqs; i++) {
        int first = b->seq_start[i], last = b->seq_start[i + 1], len = b->kv_len[i];

        /* Every sequence of a step has at least one token. */
        must(first < last);
        must(len >= last - first && len <= shape->max_model_len);
        model_check_pages(m, b, i, len - (last - first));
        for (int t = first; t < last; t++) {
            must(b->token_ids[t] < shape->n_words &&
                 (b->token_ids[t] >= 0 || -1 - b->token_ids[t] < n_rows_before));
            step->token_seq[t] = i;
            step->token_pos[t] = len - (last - first) + (t - first);
        }
    }
}

/* The sampling parameters of row i. History is read only under a penalty. */
static void model_place_row(const struct model *m, struct model_step *step, const struct batch *b,
                            int i)
{
    const struct batch_row *row = &b->rows[i];
    struct k_sample_row *sampled = &step->rows[i];

    must(row->token_idx >= 0 && row->token_idx < b->n_tokens);
    must(i == 0 || row->token_idx >= b->rows[i - 1].token_idx);
    must(row->n_banned >= 0 && row->n_banned <= BATCH_BANNED_MAX);
    step->row_tokens[i] = row->token_idx;
    step->histories[i] = row->history;
    *sampled = (struct k_sample_row){
        .sampling = row->sampling,
        .position = row->position,
        .n_banned = row->n_banned,
        .n_history = sampling_has_penalty(&row->sampling) ? row->n_history : 0,
        .n_prompt = row->n_prompt,
    };
    for (int j = 0; j < row->n_banned; j++) {
        must(row->banned[j] >= 0 && row->banned[j] < m->shape.n_vocab);
        sampled->banned[j] = row->banned[j];
    }
}

/* The extra requests of one row; biases and asked ids of all rows share one array each. */
static void model_place_extra(struct model *m, struct model_step *step, const struct batch *b,
                              int i)
{
    const struct batch_extra *extra = &b->extras[i];
    struct device_extras *extras = &step->extras;
    int n_vocab = m->shape.n_vocab;

    must(extra->row >= 0 && extra->row < b->n_rows &&
         (i == 0 || extra->row > b->extras[i - 1].row));
    must(extra->target >= -1 && extra->target < n_vocab);
    must(extra->n_top >= -1 && extra->n_top <= BATCH_LOGPROBS_MAX);
    must(extra->n_biases >= 0 && extra->n_biases <= BATCH_BIASES_MAX);
    must(extra->mask >= -1 && extra->mask < b->n_masks);
    extras->rows[i] = (struct k_logits_row){
        .row = extra->row,
        .target = extra->target < 0 ? K_SAMPLED : extra->target,
        .n_top = extra->n_top,
        .n_biases = extra->n_biases,
        .biases_at = extras->n_biases,
        .mask_at = extra->mask < 0 ? -1 : (int64_t)extra->mask * extras->mask_words,
    };
    must(extra->n_asked >= 0 && extra->n_asked <= BATCH_ASKED_MAX &&
         (extra->n_asked == 0 || extra->n_top >= 0));
    for (int j = 0; j < extra->n_asked; j++) {
        must(extra->asked[j] >= 0 && extra->asked[j] < n_vocab);
        extras->asked[extras->n_asked++] =
            (struct k_asked){.row = extra->row, .id = extra->asked[j]};
    }
    m->n_asked[i] = extra->n_asked;
    for (int j = 0; j < extra->n_biases; j++) {
        must(extra->biases[j].id >= 0 && extra->biases[j].id < n_vocab);
        extras->biases[extras->n_biases++] =
            (struct k_bias){.id = extra->biases[j].id, .value = extra->biases[j].value};
    }
}

/* The slots of the tokens' adapters. */
static void model_place_slots(const struct model *m, struct model_step *step, const struct batch *b)
{
    if (b->adapters == NULL)
        return;
    must(step->token_slots != NULL);
    for (int i = 0; i < b->n_seqs; i++) {
        must(b->adapters[i] >= -1 && b->adapters[i] < m->shape.n_adapters);
        for (int t = b->seq_start[i]; t < b->seq_start[i + 1]; t++)
            step->token_slots[t] = b->adapters[i];
    }
    step->batch.adapters = step->token_slots;
}

/* The rows that a head reads: of the target's activations, where its device has put its tokens. */
static void model_place_hidden(const struct model *m, struct model_step *step,
                               const struct batch *b)
{
    const int32_t *places = NULL;

    if (step->picked == NULL)
        return;
    if (b->hidden.of_target)
        places = m->target->ranks.at[0].device->places;
    for (int i = 0; i < b->n_tokens; i++)
        step->picked[i] = places == NULL ? b->hidden.rows[i] : places[b->hidden.rows[i]];
    step->hidden.rows = step->batch.picked = step->picked;
    step->batch.is_variant = b->hidden.of_target;
}

/* The batch of the device, of the engine's arrays. */
static void model_place_batch(struct model_step *step, const struct batch *b)
{
    step->n_rows = b->n_rows;
    step->hidden = b->hidden;
    step->batch = (struct device_batch){
        .tokens = {.ids = b->token_ids,
                   .seq = step->token_seq,
                   .pos = step->token_pos,
                   .seq_start = b->seq_start,
                   .kv_len = b->kv_len,
                   .page_ids = b->page_ids,
                   .n_tokens = b->n_tokens,
                   .n_seqs = b->n_seqs,
                   .pages_max = b->pages_max,
                   .table_seqs = b->n_seqs},
        .row_tokens = step->row_tokens,
        .rows = step->rows,
        .histories = step->histories,
        .n_rows = b->n_rows,
    };
}

/* Copy the engine's arrays. Rows of page tables may be longer than a sequence can be. */
static void model_keep_batch(const struct model *m, struct model_step *step)
{
    struct k_tokens *tokens = &step->batch.tokens;
    int most = m->row_pages, wide = tokens->pages_max;

    if (wide > most)
        wide = most;
    memcpy(step->token_ids, tokens->ids, (size_t)tokens->n_tokens * sizeof *step->token_ids);
    memcpy(step->seq_start, tokens->seq_start,
           (size_t)(tokens->n_seqs + 1) * sizeof *step->seq_start);
    memcpy(step->kv_len, tokens->kv_len, (size_t)tokens->n_seqs * sizeof *step->kv_len);
    for (int row = 0; row < m->shape.n_groups * tokens->n_seqs; row++)
        memcpy(step->page_ids + (size_t)row * (size_t)wide,
               tokens->page_ids + (size_t)row * (size_t)tokens->pages_max,
               (size_t)wide * sizeof *step->page_ids);
    tokens->ids = step->token_ids;
    tokens->seq_start = step->seq_start;
    tokens->kv_len = step->kv_len;
    tokens->page_ids = step->page_ids;
    tokens->pages_max = wide;
}

/* --- begin ------------------------------------------------------------------------------- */

/* Rows come from the other node before node 1's first layer, and before the output matrix. */
bool model_takes_far(const struct model *m, const struct rank *r)
{
    if (m->node == NULL)
        return false;
    return m->node_rank == 0 ? r->is_last : r->idx < m->ranks.n_parts;
}

/* Rows go to it behind each node's last layer. */
bool model_hands_far(const struct model *m, const struct rank *r)
{
    int n_behind = m->node_rank == 0 ? 2 * m->ranks.n_parts : m->ranks.n_parts;

    if (m->node == NULL || r->is_last)
        return false;
    return r->idx >= m->ranks.n - n_behind;
}

/* A head without an embedding has the target's. */
static const struct k_matrix *model_embed(const struct model *m)
{
    const struct k_matrix *own = &m->ranks.at[0].weights.embed;

    if (own->data == NULL && m->target != NULL)
        return &m->target->ranks.at[0].weights.embed;
    return own;
}

/* The forward pass of one rank. */
static int model_forward_rank(const struct model *m, struct rank *r, struct batch_hidden hidden)
{
    struct device *device = r->device;
    struct device_segment segments[FORWARD_SEGMENTS_MAX];
    const struct forward pass = {.device = device,
                                 .rank = r->part,
                                 .plan = &m->plan,
                                 .weights = &r->weights,
                                 .cache = &r->cache,
                                 .act = &r->act,
                                 .pages = r->pages,
                                 .kv_type = m->kv_type,
                                 .stage = r->stage,
                                 .is_last = r->is_last,
                                 .turns = (const float *const *)r->turns,
                                 .taps = m->taps.n > 0 && r->idx == 0 ? &m->taps : NULL,
                                 .hidden = hidden,
                                 .tapped = m->target == NULL ? NULL : &m->target->taps,
                                 .embed = model_embed(m)};
    int n = forward_segments(&pass, segments), rc = ERR_OK;

    if (model_takes_far(m, r) && m->has_far)
        rc = device->ops->far_take(device, segments, n);
    else if (model_takes_far(m, r))
        rc = node_take_rows(m->node, r->part, device, segments, n);
    else if (r->stage.first > 0)
        rc = device->ops->take(device, segments, n);
    /* A recorded step needs no further call. */
    if (rc == ERR_OK && !device->ops->replay(device)) {
        forward(&pass);
        device->ops->launch(device);
    }
    if (rc == ERR_OK && device->limits.n_vocab > 0 && device->ops->place_rows != NULL)
        device->ops->place_rows(device, r->act.logits);
    if (rc == ERR_OK && model_hands_far(m, r) && m->has_far)
        rc = device->ops->far_hand(device, segments, n);
    else if (rc == ERR_OK && model_hands_far(m, r))
        rc = node_send_rows(m->node, r->part, device, segments, n);
    else if (rc == ERR_OK && !r->is_last)
        rc = device->ops->hand(device, segments, n);
    return rc;
}

/* Begin a step on one rank. Only the sampler has all logits; the other ranks get its rows too,
 * because the layout of a step depends on them. A rank that fails leaves, so that the others do not
 * wait for it. */
static int model_begin_rank(struct rank *r, void *context)
{
    const struct model_step *step = context;
    struct device *device = r->device;
    int rc;

    r->batch = step->batch;
    rc = device->ops->begin(device, &r->batch);
    if (rc == ERR_OK)
        rc = model_forward_rank(step->model, r, step->hidden);
    if (rc != ERR_OK && step->model->ranks.n > 1)
        device->ops->leave_ranks(device);
    return rc;
}

static void model_post_step(struct model *m, struct model_step *step)
{
    for (int i = 0; i < m->ranks.n; i++)
        step->tickets[i] = rank_post(&m->ranks.at[i], model_begin_rank, step);
}

/* The arrays of a step that node 1 needs: all but ids and rows' parameters, for it neither looks up
 * nor samples. */
static int model_step_pieces(const struct model *m, const struct model_step *step,
                             struct node_piece *pieces)
{
    const struct k_tokens *t = &step->batch.tokens;
    size_t tokens = (size_t)t->n_tokens * 4, seqs = (size_t)t->n_seqs * 4;
    const void *const arrays[] = {t->seq,    t->pos,      t->seq_start,
                                  t->kv_len, t->page_ids, step->batch.row_tokens};
    const size_t bytes[] = {tokens,
                            tokens,
                            seqs + 4,
                            seqs,
                            (size_t)m->shape.n_groups * seqs * (size_t)t->pages_max,
                            (size_t)step->n_rows * 4};

    for (int i = 0; i < 6; i++) {
        memcpy(&pieces[i].data, &arrays[i], sizeof(void *)); /* removes const */
        pieces[i].bytes = bytes[i];
    }
    return 6;
}

/* Tell node 1 of the step. */
static int model_order_step(struct model *m, const struct model_step *step)
{
    const struct k_tokens *t = &step->batch.tokens;
    struct node_piece pieces[6];
    int n = model_step_pieces(m, step, pieces);

    return node_order(m->node,
                      (struct node_message){.order = NODE_STEP,
                                            .n_tokens = t->n_tokens,
                                            .n_seqs = t->n_seqs,
                                            .n_rows = step->n_rows,
                                            .pages_max = t->pages_max},
                      pieces, n);
}

/* Nothing here waits for the device, except a full queue. */
int model_step_begin(struct model *m, const struct batch *b)
{
    struct model_step *step = model_step_before(m, 0);
    int rc = ERR_OK;

    must(m->n_under_way <= m->shape.n_stages && m->is_sampled);
    model_place_tokens(m, step, b);
    for (int i = 0; i < b->n_rows; i++)
        model_place_row(m, step, b, i);
    /* Every rank gets a copy of this, because a device may change its batch. */
    model_place_batch(step, b);
    model_place_slots(m, step, b);
    model_place_hidden(m, step, b);
    if (m->ranks.posts)
        model_keep_batch(m, step);
    if (m->node != NULL)
        rc = model_order_step(m, step);
    if (rc == ERR_OK && m->ranks.posts)
        model_post_step(m, step);
    else if (rc == ERR_OK)
        rc = rank_run(&m->ranks, model_begin_rank, step);
    if (rc != ERR_OK)
        return rc;
    m->n_begun++;
    m->n_under_way++;
    m->is_sampled = false;
    return ERR_OK;
}

/* --- sample ------------------------------------------------------------------------------ */

/* Describe the extras of a step. Their arrays belong to the device; the numbers in use are the
 * step's, because the step before may not have been sampled yet by its worker. */
static void model_place_extras(struct model *m, struct model_step *step, const struct batch *b)
{
    struct device_extras *extras = &step->extras;

    extras->n_rows = b->n_extras;
    extras->n_masks = b->n_masks;
    extras->n_biases = 0;
    extras->n_asked = 0;
    for (int i = 0; i < b->n_extras; i++)
        model_place_extra(m, step, b, i);
}

/* Sample on the sampler's thread or worker. The arrays of extras are this step's, because a step
 * with extras is sampled only when no other one is in flight. */
static int model_sample_rank(struct rank *r, void *context)
{
    const struct model_step *step = context;
    struct device *device = r->device;

    device->extras = step->extras;
    device->ops->sample(device, r->act.logits);
    return ERR_OK;
}

/* Histories and masks depend on tokens of the previous steps, so these must have ended when a row
 * has any (the second must()). */
int model_step_sample(struct model *m, const struct batch *b)
{
    struct model_step *step = model_step_before(m, 1);
    struct rank *sampler = ranks_sampler(&m->ranks);
    bool waits = b->n_extras > 0;

    must(!m->is_sampled && b->n_rows == step->n_rows && b->n_extras <= b->n_rows);
    for (int i = 0; i < b->n_rows; i++) {
        waits = waits || step->rows[i].n_history > 0;
        for (int j = 0; j < step->rows[i].n_history; j++)
            must(b->rows[i].history[j] >= 0 && b->rows[i].history[j] < m->shape.n_vocab);
    }
    must(!waits || m->n_under_way == 1);
    m->is_sampled = true;
    model_place_extras(m, step, b);
    if (b->n_rows == 0)
        return ERR_OK;
    if (!m->ranks.posts)
        return model_sample_rank(sampler, step);
    step->tickets[sampler->idx] = rank_post(sampler, model_sample_rank, step);
    return ERR_OK;
}

/* Memory of the device's choice: pinned on a GPU. */
uint32_t *model_masks(struct model *m, int *n_words)
{
    *n_words = m->steps[0].extras.mask_words;
    return m->steps[0].extras.masks;
}

/* --- end --------------------------------------------------------------------------------- */

/* Wait until the workers have run the step. */
static int model_await_workers(struct model *m, const struct model_step *step)
{
    int first = ERR_OK;

    for (int i = 0; i < m->ranks.n && m->ranks.posts; i++) {
        int rc = rank_wait(&m->ranks.at[i], step->tickets[i]);

        if (first == ERR_OK)
            first = rc;
    }
    return first;
}

/* Wait for the step of all ranks. Ids and log probabilities are the sampler's; the first error is
 * returned. */
static int model_end_ranks(struct model *m, const struct model_step *step, int32_t *token_ids,
                           int *n_extras)
{
    int rc = model_await_workers(m, step);

    /* After an error no other rank is waited for: it may wait for the one that failed. */
    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        struct device *device = m->ranks.at[i].device;
        struct k_logprob_row none;
        int n_none = 0;

        if (device == m->device)
            rc = device->ops->end(device, token_ids, m->logprobs, n_extras);
        else
            rc = device->ops->end(device, NULL, &none, &n_none);
    }
    return rc;
}

/* The device returns logits and their log-sum; differences are the log probabilities, at most 0. */
int model_step_end(struct model *m, int32_t *token_ids, struct batch_logprobs *logprobs)
{
    const struct k_asked *asked = m->steps[0].extras.asked; /* the same memory in all steps */
    int n_extras = 0, rc;

    must(m->n_under_way > 0);
    rc = model_end_ranks(m, model_step_before(m, (unsigned)m->n_under_way), token_ids, &n_extras);
    m->n_under_way--;
    if (rc != ERR_OK || logprobs == NULL)
        return rc;
    for (int i = 0; i < n_extras; i++) {
        const struct k_logprob_row *row = &m->logprobs[i];

        logprobs[i] = (struct batch_logprobs){.log_sum = row->log_sum,
                                              .chosen = fminf(row->chosen, 0.0f),
                                              .rank = (uint32_t)row->rank,
                                              .n_top = row->n_top};
        memcpy(logprobs[i].ids, row->ids, sizeof row->ids);
        for (int j = 0; j < row->n_top; j++)
            logprobs[i].top[j] = fminf(row->top[j] - row->log_sum, 0.0f);
        logprobs[i].n_asked = m->n_asked[i];
        for (int j = 0; j < m->n_asked[i]; j++)
            logprobs[i].asked[j] = fminf(asked++->logit - row->log_sum, 0.0f);
    }
    return ERR_OK;
}

/* Measured by the device between its own events. */
float model_gap_us(const struct model *m)
{
    return m->device->step_gap_us;
}

int model_n_ranks(const struct model *m)
{
    return m->ranks.n;
}

void model_measure(struct model *m, int rank, struct model_load *out)
{
    const struct rank *r = &m->ranks.at[rank];
    struct device_load load;

    must(rank >= 0 && rank < m->ranks.n);
    r->device->ops->measure(r->device, &load);
    *out = (struct model_load){.stage = r->stage_idx,
                               .part = r->part,
                               .device_bytes = r->device->allocated_bytes,
                               .n_steps = load.n_steps,
                               .busy_us = load.busy_us,
                               .sum_us = load.sum_us};
}

/* Copy the logits of some rows of the step that began last. */
static int model_copy_logits(struct model *m, int first, int n, float *logits)
{
    const struct rank *sampler = ranks_sampler(&m->ranks);
    size_t n_vocab = (size_t)m->shape.n_vocab;
    int rc = ranks_settle(&m->ranks);

    if (rc != ERR_OK)
        return rc;
    return m->device->ops->download(m->device, logits,
                                    sampler->act.logits + (size_t)first * n_vocab,
                                    (size_t)n * n_vocab * sizeof *logits);
}

/* For tests. Sampling applies penalties without changing logits; only biases and masks change
 * them. */
int model_logits(struct model *m, float *logits)
{
    return model_copy_logits(m, 0, model_step_before(m, 1)->n_rows, logits);
}

/* Between begin and sample, because masks and biases change logits in place. */
int model_row_logits(struct model *m, int row, float *logits)
{
    must(!m->is_sampled && row >= 0 && row < model_step_before(m, 1)->n_rows);
    return model_copy_logits(m, row, 1, logits);
}

int model_rows_logits(struct model *m, int first, int n, float *logits)
{
    must(!m->is_sampled && first >= 0 && n >= 1 && first + n <= model_step_before(m, 1)->n_rows);
    return model_copy_logits(m, first, n, logits);
}

/* --- node 1 ------------------------------------------------------------------------------ */

bool model_is_lost(const struct model *m)
{
    return m->node != NULL && node_is_lost(m->node);
}

/* End the steps that node 0 must have ended, for one begins that could not otherwise. */
static int model_follow_ends(struct model *m)
{
    int rc = ERR_OK;

    while (rc == ERR_OK && m->n_under_way > m->shape.n_stages) {
        int n_extras = 0;

        rc = model_end_ranks(m, model_step_before(m, (unsigned)m->n_under_way), NULL, &n_extras);
        m->n_under_way--;
    }
    return rc;
}

/* The sizes of an ordered step are within what this node has allocated. */
static bool model_step_fits(const struct model *m, const struct node_message *order)
{
    const struct model_shape *shape = &m->shape;

    return order->n_tokens >= 1 && order->n_tokens <= shape->max_num_batched_tokens &&
           order->n_seqs >= 1 && order->n_seqs <= shape->max_num_seqs && order->n_rows >= 0 &&
           order->n_rows <= shape->max_num_seqs && order->pages_max >= 1 &&
           order->pages_max <= m->row_pages;
}

/* Take the arrays of a step, and post it. */
static int model_follow_step(struct model *m, const struct node_message *order)
{
    int rc = model_follow_ends(m), n;
    struct model_step *step = model_step_before(m, 0);
    struct node_piece pieces[6];

    if (rc != ERR_OK || !model_step_fits(m, order))
        return ERR_GPU;
    step->n_rows = order->n_rows;
    step->batch = (struct device_batch){.tokens = {.ids = step->token_ids,
                                                   .seq = step->token_seq,
                                                   .pos = step->token_pos,
                                                   .seq_start = step->seq_start,
                                                   .kv_len = step->kv_len,
                                                   .page_ids = step->page_ids,
                                                   .n_tokens = order->n_tokens,
                                                   .n_seqs = order->n_seqs,
                                                   .pages_max = order->pages_max,
                                                   .table_seqs = order->n_seqs},
                                        .row_tokens = step->row_tokens,
                                        .rows = step->rows,
                                        .histories = step->histories,
                                        .n_rows = order->n_rows};
    n = model_step_pieces(m, step, pieces);
    for (int i = 0; i < n && rc == ERR_OK; i++)
        rc = node_take_bytes(m->node, pieces[i].data, pieces[i].bytes);
    if (rc != ERR_OK)
        return rc;
    model_post_step(m, step);
    m->n_begun++;
    m->n_under_way++;
    return ERR_OK;
}

/* The order of orders is that of node 0's calls. */
int model_follow(struct model *m, int stop_fd)
{
    struct node_message order;
    int rc = ERR_OK;

    while (rc == ERR_OK && (rc = node_next(m->node, stop_fd, &order)) == ERR_OK) {
        switch ((enum node_order)order.order) {
        case NODE_STEP: rc = model_follow_step(m, &order); break;
        case NODE_PAGE_OUT: rc = model_follow_page_out(m, &order); break;
        case NODE_PAGE_IN: rc = model_follow_page_in(m, &order); break;
        case NODE_PAGE_COPY: rc = model_follow_page_copy(m, &order); break;
        case NODE_SLEEP:
        case NODE_WAKE: rc = model_follow_sleep(m, &order); break;
        default: rc = ERR_GPU; break;
        }
    }
    return rc;
}
