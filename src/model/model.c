/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a model.
 *
 * Opening goes from config.json to the layer plan, the devices, weights, work memory, and last the
 * KV pages, which get the memory that is left.
 *
 * All functions run on the engine's thread; rank_run() hands the work of the other ranks to their
 * threads and waits for them. Steps are in model_steps.c, copies of pages in model_pages.c. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "config.h"

#include "base/clock.h"
#include "base/gguf.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "base/pooling.h"
#include "device/pool.h"
#include "model/forward.h"
#include "model/model_parts.h"
#include "model/weights.h"

#define LAYOUT_VERSION 1 /* of the page layout; part of the fingerprint */
#define GEMM_TABLE     QUIRE_DATADIR "/gemm-h200.txt"
#define TURNS_A_TASK   4096
#define TURNS_THREADS  8
#define MIB            (1.0 / 1048576.0)

_Static_assert(MODEL_STEPS_MAX == DEVICE_STEPS_MAX, "steps under way");
_Static_assert(CACHE_GROUPS_MAX == DEVICE_TABLES_MAX, "a table for each group");
_Static_assert(BATCH_BANNED_MAX == K_BANNED_MAX, "a row's banned ids are copied one by one");
_Static_assert(sizeof(((struct model_shape *)0)->eos) == sizeof(((struct hf_config *)0)->eos),
               "the ids that end a text are copied whole");

/* --- opening --------------------------------------------------------------------------- */

/* Options that are absent get defaults of the device or of the model. Options that contradict each
 * other or the model are refused with a message that names the setting, before weights are
 * loaded. */

static int model_least(int a, int b)
{
    return a < b ? a : b;
}

/* Bytes of one key or value element in a page. */
static size_t model_kv_elem_bytes(const struct model *m)
{
    if (m->kv_type == K_E4M3)
        return sizeof(k_e4m3);
    return m->device->elem_bytes;
}

/* The name in logs and /metrics: "NVIDIA H200" or "2 ranks of NVIDIA H200". */
static void model_name_device(struct model *m)
{
    char *out = m->shape.device;

    if (m->ranks.n == 1)
        (void)snprintf(out, sizeof m->shape.device, "%s", m->device->name);
    else
        (void)snprintf(out, sizeof m->shape.device, "%d ranks of %.40s", m->ranks.n,
                       m->device->name);
}

/* Adapters need a device that adds them, and the names of a checkpoint's tensors. */
static int model_choose_adapters(struct model *m, const struct model_options *o)
{
    const char *why = NULL;

    if (!m->device->has_adapters)
        why = "the devices cpu and cuda";
    else if (o->n_nodes > 1)
        why = "one node only (nnodes = 1)";
    else if (gguf_is_path(o->dir))
        why = "models in Hugging Face's format, not in GGUF files";
    if (why != NULL) {
        log_error("model: LoRA adapters (enable_lora, lora_modules, lora_dir) are computed on %s",
                  why);
        return ERR_UNSUPPORTED;
    }
    if (o->adapter_rank < 1 || o->adapter_rank > ADAPTER_RANK_MAX) {
        log_error("model: max_lora_rank %d must be 1 to %d", o->adapter_rank, ADAPTER_RANK_MAX);
        return ERR_INVALID;
    }
    m->shape.n_adapters = o->n_adapters;
    m->adapter_rank = o->adapter_rank;
    return ERR_OK;
}

/* Checks come last, because they compare the final numbers. len_max: the longest that the model's
 * positions reach. */
static int model_check_shape(const struct model_shape *shape, int len_max)
{
    if (shape->page_tokens < 1 || shape->page_tokens > 256) {
        log_error("model: page_tokens %d must be 1 to 256", shape->page_tokens);
        return ERR_INVALID;
    }
    if (shape->max_model_len > len_max) {
        log_error("model: max_model_len %d is more than the model's %d", shape->max_model_len,
                  len_max);
        return ERR_INVALID;
    }
    if (shape->max_num_batched_tokens < shape->max_num_seqs) {
        log_error("model: max_num_batched_tokens %d must be at least max_num_seqs %d",
                  shape->max_num_batched_tokens, shape->max_num_seqs);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* Fill in the shape, except for pages, and check the options against each other. */
static int model_choose_shape(struct model *m, const struct model_options *o)
{
    struct model_shape *shape = &m->shape;
    const struct hf_config *config = &m->config;
    bool gpu = m->device->is_gpu;
    int rc;

    if (gpu && config->latent.kv_rank > 0 &&
        config->n_heads / m->ranks.n_parts > K_LATENT_HEADS_MAX) {
        log_error("model: %s: %d heads of latent attention on a GPU, the kernels take at most %d: "
                  "use a larger tensor_parallel_size",
                  config->arch->name, config->n_heads / m->ranks.n_parts, K_LATENT_HEADS_MAX);
        return ERR_UNSUPPORTED;
    }
    if (o->n_adapters > 0 && (rc = model_choose_adapters(m, o)) != ERR_OK)
        return rc;
    shape->is_gpu = gpu;
    shape->n_layers = config->n_layers;
    shape->dim = config->dim;
    shape->n_heads = config->n_heads;
    shape->n_kv_heads = config->n_kv_heads;
    shape->head_dim = config->head_dim;
    shape->ff_dim = config->ff_dim;
    shape->n_vocab = config->n_vocab;
    shape->n_words = hf_config_words(config);
    shape->pools = config->pooling != NULL;
    shape->page_tokens = o->page_tokens;
    /* Large batches on a GPU; on a CPU they would only add latency. */
    shape->max_num_seqs = gpu ? 256 : 64;
    shape->max_num_batched_tokens = gpu ? 8192 : 512;
    if (gpu && o->n_stages > 1) /* a long step leaves the other stages without work */
        shape->max_num_batched_tokens = 1024;
    if (o->max_num_batched_tokens > 0)
        shape->max_num_batched_tokens = o->max_num_batched_tokens;
    /* Each token of a text whose rows are averaged needs a row of the step. On a GPU the step would
     * need too much memory for logits. */
    if (!gpu && o->pooling != NULL && o->pooling->type == POOLING_MEAN)
        shape->max_num_seqs = shape->max_num_batched_tokens;
    /* A default is lowered to fit a number that was asked for; two numbers that were both asked for
     * must agree, or the message below reports it. */
    if (o->max_num_seqs > 0)
        shape->max_num_seqs = o->max_num_seqs;
    else if (shape->max_num_seqs > shape->max_num_batched_tokens)
        shape->max_num_seqs = shape->max_num_batched_tokens;
    if (o->max_num_batched_tokens <= 0 && shape->max_num_batched_tokens < shape->max_num_seqs)
        shape->max_num_batched_tokens = shape->max_num_seqs;
    shape->max_model_len = o->max_model_len > 0 ? o->max_model_len : config->len_max;
    shape->n_eos = config->n_eos;
    memcpy(shape->eos, config->eos, sizeof shape->eos);
    model_name_device(m);
    if (config->chunk > 0 && shape->max_model_len > config->chunk) {
        log_error("model: max_model_len %d is more than attention_chunk_size %d: in longer texts "
                  "some layers see the tokens of a chunk alone, which is not served",
                  shape->max_model_len, config->chunk);
        return ERR_INVALID;
    }
    return model_check_shape(shape, config->len_scaled);
}

/* The rank of this node that has a part of a stage's layers; NULL: it is another node's. */
static struct rank *model_rank_of(struct model *m, int stage, int part)
{
    for (int i = 0; i < m->ranks.n; i++) {
        if (m->ranks.at[i].stage_idx == stage && m->ranks.at[i].part == part)
            return &m->ranks.at[i];
    }
    return NULL;
}

/* The places of the ranks' parts in a page of the engine. In a simple layout the stages' parts of a
 * rank follow one another: they are the page that one stage alone would have. In others each stage
 * has pages of its own size, and those of all ranks follow one another. */
static int model_cut_pages(struct model *m)
{
    int n_parts = m->ranks.n_parts;
    struct cache cut;
    size_t from, at = 0;

    for (int i = 0; i < m->shape.n_stages * n_parts; i++) {
        struct rank *rank = model_rank_of(m, i / n_parts, i % n_parts);
        struct model_part part;
        int rc =
            cache_cut(&cut, &from, &m->cache, &m->plan,
                      plan_stage(&m->plan, i / n_parts, m->shape.n_stages), model_kv_elem_bytes(m));

        if (rc != ERR_OK)
            return rc;
        part = (struct model_part){at, cut.page_bytes};
        if (cache_is_simple(&m->cache))
            part.at = (size_t)(i % n_parts) * m->cache.page_bytes + from;
        at += cut.page_bytes;
        if (rank == NULL) {
            m->far[m->n_far++] = part;
            cache_fini(&cut);
            continue;
        }
        rank->cache = cut;
        rank->host_at = part.at;
        m->own_page_bytes += part.bytes;
    }
    m->shape.page_bytes = at;
    return ERR_OK;
}

static int model_choose_groups(struct model *m)
{
    struct model_shape *shape = &m->shape;
    int rc = cache_make(&m->cache, &m->plan, shape->page_tokens, model_kv_elem_bytes(m));

    if (rc != ERR_OK || (rc = model_cut_pages(m)) != ERR_OK)
        return rc;
    shape->n_groups = m->cache.n_groups;
    memcpy(shape->groups, m->cache.groups, sizeof shape->groups);
    return ERR_OK;
}

/* Host arrays of one step, allocated for the largest. */
static int model_alloc_step(struct model *m, struct model_step *step)
{
    size_t tokens = (size_t)m->shape.max_num_batched_tokens, seqs = (size_t)m->shape.max_num_seqs;
    size_t pages =
        (size_t)m->shape.n_groups * seqs * (size_t)cache_row(&m->cache, m->shape.max_model_len);

    step->model = m;
    step->extras = m->device->extras;
    step->token_seq = mem_zalloc_array(tokens, sizeof *step->token_seq);
    step->token_pos = mem_zalloc_array(tokens, sizeof *step->token_pos);
    step->row_tokens = mem_zalloc_array(seqs, sizeof *step->row_tokens);
    step->rows = mem_zalloc_array(seqs, sizeof *step->rows);
    step->histories = mem_zalloc_array(seqs, sizeof *step->histories);
    if (step->token_seq == NULL || step->token_pos == NULL || step->row_tokens == NULL ||
        step->rows == NULL || step->histories == NULL)
        return ERR_NO_MEMORY;
    if (m->shape.n_adapters > 0 &&
        (step->token_slots = mem_zalloc_array(tokens, sizeof *step->token_slots)) == NULL)
        return ERR_NO_MEMORY;
    if (m->config.eagle.n_taps > 0 &&
        (step->picked = mem_zalloc_array(tokens, sizeof *step->picked)) == NULL)
        return ERR_NO_MEMORY;
    if (!m->ranks.posts)
        return ERR_OK;
    step->token_ids = mem_zalloc_array(tokens, sizeof *step->token_ids);
    step->seq_start = mem_zalloc_array(seqs + 1, sizeof *step->seq_start);
    step->kv_len = mem_zalloc_array(seqs, sizeof *step->kv_len);
    step->page_ids = mem_zalloc_array(pages, sizeof *step->page_ids);
    if (step->token_ids == NULL || step->seq_start == NULL || step->kv_len == NULL ||
        step->page_ids == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

static void model_free_step(struct model_step *step)
{
    mem_free(step->token_seq);
    mem_free(step->token_pos);
    mem_free(step->token_slots);
    mem_free(step->picked);
    mem_free(step->row_tokens);
    mem_free(step->rows);
    mem_free(step->histories);
    mem_free(step->token_ids);
    mem_free(step->seq_start);
    mem_free(step->kv_len);
    mem_free(step->page_ids);
}

/* is_sampled starts true, as if a step had ended, so that the first may begin. */
static int model_alloc_host(struct model *m)
{
    size_t seqs = (size_t)m->shape.max_num_seqs;
    int rc = ERR_OK;

    m->logprobs = mem_zalloc_array(seqs, sizeof *m->logprobs);
    m->n_asked = mem_zalloc_array(seqs, sizeof *m->n_asked);
    m->is_sampled = true;
    m->n_steps = device_steps(m->shape.n_stages);
    m->row_pages = cache_row(&m->cache, m->shape.max_model_len);
    for (unsigned i = 0; i < m->n_steps && rc == ERR_OK; i++)
        rc = model_alloc_step(m, &m->steps[i]);
    m->own_page = mem_alloc(m->own_page_bytes + 1);
    if (m->logprobs == NULL || m->n_asked == NULL || m->own_page == NULL)
        return ERR_NO_MEMORY;
    return rc;
}

/* The table of one rope while threads compute it. */
struct turning {
    const struct rope *rope;
    int idx, len;
    float *turns;
};

/* A pool task: positions first .. first + TURNS_A_TASK - 1 of one table. */
static void model_turn_positions(void *job, int task, int worker)
{
    const struct turning *table = job;
    int first = task * TURNS_A_TASK, left = table->len - first;

    (void)worker;
    rope_turns(table->rope, table->turns + (size_t)first * (size_t)table->rope->head_dim, first,
               model_least(left, TURNS_A_TASK), table->len);
}

/* Runs per rank: upload the computed table. */
static int model_place_turns(struct rank *r, void *context)
{
    const struct turning *job = context;
    struct device *device = r->device;
    size_t bytes = (size_t)job->len * (size_t)job->rope->head_dim * sizeof(float);
    float *turns = device->ops->alloc_constant(device, bytes);

    r->turns[job->idx] = turns;
    if (turns == NULL)
        return ERR_NO_MEMORY;
    return device->ops->upload(device, turns, job->turns, bytes);
}

/* Compute the tables of rotations, one per rope, and upload them to all ranks. By one thread it
 * would take 80 ms for 131,072 positions, hence the pool. */
static int model_fill_turns(struct model *m)
{
    int len = m->shape.max_model_len, n_tasks = (len + TURNS_A_TASK - 1) / TURNS_A_TASK;
    struct turning job = {.len = len};
    struct pool *pool = NULL;
    int rc = ERR_NO_MEMORY, widest = 0;

    for (int i = 0; i < m->plan.n_ropes; i++) {
        if (m->plan.ropes[i].head_dim > widest)
            widest = m->plan.ropes[i].head_dim;
    }
    job.turns = mem_alloc((size_t)len * (size_t)widest * sizeof(float));
    if (job.turns == NULL)
        return rc;
    rc = pool_open(&pool, model_least(n_tasks, model_least(pool_cores(), TURNS_THREADS)));
    /* One buffer serves all ropes in turn, because the upload blocks. */
    for (job.idx = 0; job.idx < m->plan.n_ropes && rc == ERR_OK; job.idx++) {
        job.rope = &m->plan.ropes[job.idx];
        pool_run(pool, model_turn_positions, &job, n_tasks);
        rc = rank_run(&m->ranks, model_place_turns, &job);
    }
    pool_close(pool);
    mem_free(job.turns);
    return rc;
}

/* The limits of one rank. Only the sampler has all logits, so the vocabulary of the others is 0. */
static struct device_limits model_rank_limits(struct model *m, const struct rank *r)
{
    const struct model_shape *shape = &m->shape;
    const struct plan_widths widest = plan_widest(&m->plan);
    struct device_limits limits = {
        .n_tokens = shape->max_num_batched_tokens,
        .n_seqs = shape->max_num_seqs,
        .pages_max = cache_row(&m->cache, shape->max_model_len),
        .len_max = shape->max_model_len,
        .page_tokens = shape->page_tokens,
        .n_tables = shape->n_groups,
        .n_heads = widest.n_heads,
        .head_dim = widest.head_dim,
        .dim = shape->dim,
        .ff_dim = widest.ff,
        .n_vocab = r->is_last && r->part == 0 ? shape->n_vocab : 0,
        .rounds = m->rounds_inputs,
        .codes = r->weights.reads_codes,
        .packed = r->weights.is_packed,
        .bytes = r->weights.has_bytes,
        .rounded = r->weights.is_rounded,
        .has_states = widest.has_states,
        .state_shared = widest.state_shared,
        .n_experts = widest.experts.n_own,
        .n_experts_used = widest.experts.n_used,
        .expert_dim = widest.experts.ff_dim,
        .n_choices = widest.experts.n,
        .n_stages = shape->n_stages,
        .follows = m->node_rank > 0,
        .picks = m->config.eagle.n_taps > 0,
        .caps_scores = m->config.score_cap > 0.0f,
    };

    if (r->weights.adapters != NULL) {
        limits.n_adapters = shape->n_adapters;
        limits.adapter_rank = m->adapter_rank;
        limits.adapter_in = adapters_widest(r->weights.adapters);
    }

    for (int group = 0; group < shape->n_groups; group++)
        limits.table_pages[group] = shape->groups[group].n_state_pages;
    for (int i = 0; i < m->plan.n_layers; i++) {
        const struct attn_plan *attn = &m->plan.layers[i].attn;

        if (!plan_is_first_of_shape(&m->plan, i))
            continue;
        must(limits.n_shapes < DEVICE_TABLES_MAX); /* no more than groups of pages */
        limits.shapes[limits.n_shapes++] =
            (struct device_heads){attn->n_heads, attn->n_kv_heads, attn->head_dim, attn->window};
    }
    return limits;
}

/* Runs per rank: the device's own work memory, then activations. */
static int model_alloc_rank(struct rank *r, void *context)
{
    struct model *model = context;
    const struct device_limits limits = model_rank_limits(model, r);
    int rc = r->device->ops->reserve(r->device, &limits);

    if (rc != ERR_OK)
        return rc;
    return activations_alloc(&r->act, r->device, &model->plan, &limits, r->is_last);
}

/* Allocate activations, work areas and rotation tables: all memory but weights and pages. */
static int model_alloc_work(struct model *m)
{
    int rc = rank_run(&m->ranks, model_alloc_rank, m);

    if (rc != ERR_OK || (rc = model_alloc_host(m)) != ERR_OK)
        return rc;
    return model_fill_turns(m);
}

/* Runs per rank: the pages of all sequences, in one allocation. They are scratch memory, so a sleep
 * loses their content. */
static int model_alloc_rank_pages(struct rank *r, void *context)
{
    const struct model *model = context;

    r->pages = r->device->ops->alloc_scratch(r->device,
                                             (size_t)model->shape.n_pages * r->cache.page_bytes);
    if (r->pages == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Everything that decides the bits of a page: layout, config, KV type, page size, rounding of
 * weights and inputs, number of ranks, and the weights' digest. Pages in the host tier and the
 * store are used again only under an equal fingerprint. */
static void model_set_fingerprint(struct model *m)
{
    const char *kv = m->kv_type == K_E4M3 ? "e4m3" : m->device->elem_bytes == 2 ? "bf16" : "f32";
    char text[400];
    char config[2 * HASH_BYTES + 1];
    int n;

    hash_hex(m->config.digest.bytes, HASH_BYTES, config);
    /* Readable text, hashed below. Unusual parts are appended only where they apply, so that models
     * without them keep their fingerprints. */
    n = snprintf(text, sizeof text, "layout %d, config %s, kv %s, page_tokens %d%s", LAYOUT_VERSION,
                 config, kv, m->shape.page_tokens,
                 !k_format_is_plain(&m->layers) ? ", weights rounded to e4m3" : "");
    if (m->plan.bf16_states)
        n += snprintf(text + n, sizeof text - (size_t)n, ", states bf16");
    if (m->rounds_inputs && !m->device->is_gpu &&
        weights_have_blocks(&m->ranks.at[0].weights, m->plan.n_layers))
        n += snprintf(text + n, sizeof text - (size_t)n, ", inputs int8");
    if (m->ranks.at[0].weights.is_rounded)
        n += snprintf(text + n, sizeof text - (size_t)n, ", many inputs int8");
    if (m->ranks.n_parts > 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %d ranks%s", m->ranks.n_parts,
                      m->has_whole_experts ? " with whole experts" : "");
    /* In simple layouts a page is the same however many stages share it. */
    if (m->shape.n_stages > 1 && !cache_is_simple(&m->cache))
        n += snprintf(text + n, sizeof text - (size_t)n, ", %d stages", m->shape.n_stages);
    m->shape.fingerprint =
        hash_sha256(text, (size_t)n, m->ranks.at[0].weights.digest.bytes, HASH_BYTES);
    if (!cache_is_simple(&m->cache))
        m->shape.fingerprint = cache_digest(&m->cache, m->shape.fingerprint);
}

/* One line per group; models with a single group of all tokens have nothing to log. */
static void model_log_groups(const struct model *m)
{
    for (int g = 0; g < m->cache.n_groups; g++) {
        const struct cache_group *group = &m->cache.groups[g];
        int n = 0;

        for (int i = 0; i < m->cache.n_layers; i++)
            n += m->cache.layers[i].group == g && m->plan.layers[i].mixer != MIXER_NONE;
        switch (group->kind) {
        case CACHE_FULL: log_info("model: pages of group %d: %d layers, all tokens", g, n); break;
        case CACHE_WINDOW:
            log_info("model: pages of group %d: %d layers, the last %d tokens", g, n,
                     group->window);
            break;
        case CACHE_STATE:
            log_info("model: pages of group %d: %d layers, states in %s of %d pages: %.2f MiB for "
                     "each sequence and each snapshot",
                     g, n, m->plan.bf16_states ? "bf16" : "float32", group->n_state_pages,
                     (double)m->shape.page_bytes * group->n_state_pages / 1048576.0);
            break;
        }
    }
}

/* Of all ranks. */
static size_t model_weights_bytes(const struct model *m)
{
    size_t sum = 0;

    for (int i = 0; i < m->ranks.n; i++)
        sum += m->ranks.at[i].weights.bytes;
    return sum;
}

/* Elements of a matrix in its format. */
static size_t model_matrix_bytes(const struct model *m, const struct k_matrix *w)
{
    if (k_format_is_mxfp4(&w->format)) /* with their exponents */
        return (size_t)w->n_out * (size_t)w->n_in * 17 / 32;
    if (k_format_is_plain(&w->format))
        return (size_t)w->n_out * (size_t)w->n_in * m->device->elem_bytes;
    return (size_t)w->n_out * k_format_row_bytes(&w->format, w->n_in);
}

/* The parts of weight_bytes that a step reads in part only. */
static void model_count_parts(struct model *m)
{
    struct model_shape *shape = &m->shape;

    shape->n_experts = m->config.experts.n;
    shape->n_experts_used = m->config.experts.n_used;
    for (int i = 0; i < m->ranks.n; i++) {
        const struct weights *w = &m->ranks.at[i].weights;

        const struct plan_stage *stage = &m->ranks.at[i].stage;

        for (int layer = stage->first; layer < stage->end; layer++) {
            if (m->plan.layers[layer].ffn.kind == FFN_EXPERTS)
                shape->expert_bytes += model_matrix_bytes(m, &w->layers[layer].experts.in) +
                                       model_matrix_bytes(m, &w->layers[layer].experts.down);
        }
        if (w->embed.data != NULL && w->head.data != w->embed.data)
            shape->table_bytes += model_matrix_bytes(m, &w->embed);
        if (w->embeds != NULL)
            shape->table_bytes += (size_t)m->plan.embeds.n_rows * (size_t)m->plan.n_layers *
                                  (size_t)m->plan.embeds.width * m->device->elem_bytes;
    }
}

/* Only models with experts have this line. */
static void model_log_experts(const struct model *m)
{
    const struct experts_config *experts = &m->config.experts;
    int n = 0;

    for (int layer = 0; layer < m->plan.n_layers; layer++)
        n += m->plan.layers[layer].ffn.kind == FFN_EXPERTS;
    log_info("model: %d layers have %d experts of width %d, of which a token uses %d%s", n,
             experts->n, experts->ff_dim, experts->n_used,
             experts->shared_dim > 0 ? ", and shared ones" : "");
}

/* Two lines: the table of memory, and the settings in force. */
static void model_log_table(const struct model *m, const char *dir, uint64_t start_us)
{
    const struct model_shape *shape = &m->shape;
    char hex[17];

    hash_hex(shape->fingerprint.bytes, 8, hex);
    log_info("model: %s, %s: %d layers, dim %d, %d/%d heads of %d, vocabulary %d", dir,
             m->config.arch->name, shape->n_layers, shape->dim, shape->n_heads, shape->n_kv_heads,
             shape->head_dim, shape->n_vocab);
    if (m->config.full_head_dim != m->config.head_dim)
        log_info("model: layers of all tokens have %d/%d heads of %d", m->config.n_heads,
                 m->config.full_kv_heads, m->config.full_head_dim);
    if (m->config.experts.n > 0)
        model_log_experts(m);
    log_info("model: memory in MiB on %s: weights %.0f, KV pages %.0f (%d of %d tokens, %zu bytes "
             "each), activations and workspace %.0f",
             shape->device, (double)model_weights_bytes(m) * MIB,
             (double)shape->page_bytes * shape->n_pages * MIB, shape->n_pages, shape->page_tokens,
             shape->page_bytes, (double)m->work_bytes * MIB);
    if (!cache_is_simple(&m->cache))
        model_log_groups(m);
    log_info("model: ready after %.1f s; max_model_len %d, max_num_seqs %d, "
             "max_num_batched_tokens %d, fingerprint %s",
             (double)(clock_us() - start_us) * 1e-6, shape->max_model_len, shape->max_num_seqs,
             shape->max_num_batched_tokens, hex);
}

/* The table of measured products is read for each device before its first product runs. */
static int model_load_weights(struct model *m, const struct model_options *o,
                              const struct plan *whole)
{
    const struct weights_source from = {.dir = o->dummy_weights ? NULL : o->dir,
                                        .layers = m->layers,
                                        .head = m->head,
                                        .kv_scales = m->kv_type == K_E4M3,
                                        .n_adapters = o->n_adapters,
                                        .adapter_rank = o->adapter_rank};
    struct weights_rank ranks[RANKS_MAX];
    bool given = o->gemm_table != NULL && o->gemm_table[0] != '\0';

    for (int i = 0; i < m->ranks.n; i++) {
        struct rank *rank = &m->ranks.at[i];

        rank->device->ops->read_products(rank->device, given ? o->gemm_table : GEMM_TABLE, given);
        ranks[i] = (struct weights_rank){.weights = &rank->weights,
                                         .device = rank->device,
                                         .stage = rank->stage_idx,
                                         .share = rank->part,
                                         .is_last = rank->is_last};
    }
    return weights_load(&(struct weights_ranks){ranks, m->ranks.n, m->shape.n_stages}, &m->config,
                        whole, &m->plan, &from);
}

/* All ranks must fuse the same steps, because their sums over ranks must correspond: the smallest
 * limit of any rank holds for all. */
static void model_fuse_ranks(struct model *m)
{
    int most = 0;

    for (int i = 0; i < m->ranks.n; i++) {
        struct rank *rank = &m->ranks.at[i];

        activations_fuse(&rank->act, rank->device, &m->plan, &rank->weights, rank->stage);
        most = i == 0 ? rank->act.fused_max : model_least(most, rank->act.fused_max);
    }
    for (int i = 0; i < m->ranks.n; i++)
        m->ranks.at[i].act.fused_max = most;
}

/* Names for the connections of devices with the other node's, if there can be any. */
static void model_name_far(const struct model *m, struct node_hello *hello)
{
    struct device *device = m->ranks.at[0].device;

    if (device->ops->far_name == NULL)
        return;
    for (int i = 0; i < 2 * m->ranks.n_parts; i++) {
        if (device->ops->far_name(device, hello->far_names[i / 2][i % 2]) != ERR_OK)
            return;
    }
    hello->links = 1;
}

/* Connect this node's end of connection `way` (0: to node 1, 1: back) of a part. */
static int model_open_far_one(struct model *m, const struct node_hello *hello, int part, int way)
{
    struct device_far how = {.name = hello->far_names[part][way],
                             .sends = way == m->node_rank,
                             .lost = node_lost_flag(m->node)};
    const struct rank *end = NULL, *sender = NULL;

    for (int i = 0; i < m->ranks.n; i++) {
        const struct rank *rank = &m->ranks.at[i];

        if (rank->part != part)
            continue;
        if (model_hands_far(m, rank))
            sender = rank;
        if (how.sends ? model_hands_far(m, rank) : model_takes_far(m, rank))
            end = rank;
    }
    must(end != NULL && sender != NULL);
    if (way == 1 && m->node_rank == 0)
        how.after = sender->device;
    return end->device->ops->far_open(end->device, &how);
}

/* Wait for the other node. Both then have the smaller number of pages, the shorter texts, and fuse
 * the same steps. */
static int model_join_node(struct model *m, const struct model_options *o)
{
    struct model_shape *shape = &m->shape;
    size_t dim = (size_t)shape->dim, rows = (size_t)shape->max_num_batched_tokens;
    const struct node_options options = {.rank = o->node_rank,
                                         .addr = o->master_addr,
                                         .port = o->master_port,
                                         .n_parts = m->ranks.n_parts,
                                         .row_bytes = rows * dim * sizeof(float) +
                                                      PASS_FUSED_MAX * dim * 2 * sizeof(float)};
    struct node_hello hello = {.config = m->config.digest,
                               .build = hash_sha256(VERSION, sizeof VERSION, NULL, 0),
                               .page_tokens = shape->page_tokens,
                               .max_num_seqs = shape->max_num_seqs,
                               .max_num_batched_tokens = shape->max_num_batched_tokens,
                               .n_stages = shape->n_stages,
                               .n_parts = m->ranks.n_parts,
                               .kv_type = (int32_t)m->kv_type,
                               .bf16_states = m->plan.bf16_states,
                               .n_pages = shape->n_pages,
                               .max_model_len = shape->max_model_len,
                               .fused_max = m->ranks.at[0].act.fused_max,
                               .sleeps = shape->sleeps};
    int rc;

    model_name_far(m, &hello);
    if ((rc = node_open(&m->node, &options, &hello)) != ERR_OK)
        return rc;
    shape->n_pages = hello.n_pages;
    shape->max_model_len = hello.max_model_len;
    shape->sleeps = hello.sleeps != 0;
    for (int i = 0; i < m->ranks.n; i++)
        m->ranks.at[i].act.fused_max = hello.fused_max;
    m->has_far = hello.links != 0;
    log_info("model: rows go to node %d %s", 1 - m->node_rank,
             m->has_far ? "by NCCL" : "over TCP, through the memory of the hosts");
    for (int i = 0; i < 2 * m->ranks.n_parts && m->has_far && rc == ERR_OK; i++)
        rc = model_open_far_one(m, &hello, i / 2, i % 2);
    return rc;
}

/* Pages come last: they get all memory that weights and work areas leave. */
static int model_load(struct model *m, const struct model_options *o, const struct plan *whole)
{
    size_t before;
    int rc = model_load_weights(m, o, whole);

    if (rc != ERR_OK)
        return rc;
    log_debug("model: weights are loaded");
    before = ranks_allocated_bytes(&m->ranks);
    if ((rc = model_alloc_work(m)) != ERR_OK)
        return rc;
    if ((rc = model_alloc_taps(m, o)) != ERR_OK)
        return rc;
    if (m->config.eagle.n_taps > 0)
        m->device->sample_ids = m->ranks.at[0].weights.eagle.ids;
    model_fuse_ranks(m);
    m->work_bytes = ranks_allocated_bytes(&m->ranks) - before;
    log_debug("model: work memory is allocated");
    if (o->pages_later)
        return ERR_OK;
    if ((rc = model_choose_pages(m, o)) != ERR_OK)
        return rc;
    if ((rc = rank_run(&m->ranks, model_alloc_rank_pages, m)) != ERR_OK || o->n_nodes < 2)
        return rc;
    return model_join_node(m, o);
}

int model_add_pages(struct model *m, int n)
{
    int rc;

    must(m->shape.n_pages == 0 && n >= 1 && m->node == NULL);
    m->shape.n_pages = n;
    rc = rank_run(&m->ranks, model_alloc_rank_pages, m);
    m->shape.device_bytes = ranks_allocated_bytes(&m->ranks);
    m->shape.sleeping_bytes = ranks_sleeping_bytes(&m->ranks);
    return rc;
}

/* Node 0 of two has the first half of the stages, rounded up. */
static int model_own_stages(const struct model_options *o, int n_stages)
{
    if (o->n_nodes < 2)
        return n_stages;
    if (o->node_rank == 0)
        return (n_stages + 1) / 2;
    return n_stages / 2;
}

static int model_first_stage(const struct model_options *o, int n_stages)
{
    return o->n_nodes > 1 && o->node_rank == 1 ? (n_stages + 1) / 2 : 0;
}

/* The numbers of stages and of ranks of a stage are checked before any device is opened. */
static int model_check_ranks(const struct plan *whole, const struct model_options *o, int n_stages,
                             int n_parts)
{
    if (o->n_nodes > 1 &&
        (o->n_nodes > 2 || n_stages < 2 || o->node_rank < 0 || o->node_rank >= o->n_nodes)) {
        log_error("model: nnodes %d, node_rank %d: two nodes have numbers 0 and 1, and "
                  "pipeline_parallel_size must be at least 2",
                  o->n_nodes, o->node_rank);
        return ERR_INVALID;
    }
    if (n_parts > RANKS_MAX) {
        log_error("model: tensor_parallel_size %d must be 1 to %d", n_parts, RANKS_MAX);
        return ERR_INVALID;
    }
    if (n_stages > whole->n_layers || n_stages > DEVICE_STAGES_MAX) {
        log_error("model: pipeline_parallel_size %d must be 1 to %d, and at most the %d layers of "
                  "the model",
                  n_stages, DEVICE_STAGES_MAX, whole->n_layers);
        return ERR_INVALID;
    }
    if (n_stages * n_parts > RANKS_MAX) {
        log_error("model: pipeline_parallel_size %d times tensor_parallel_size %d must be at most "
                  "%d",
                  n_stages, n_parts, RANKS_MAX);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* Split the plan over the ranks of a stage and open a device for each rank. Sleeping is all or
 * nothing: if one device cannot give memory back, none does. */
static int model_open_ranks(struct model *m, const struct model_options *o,
                            const struct plan *whole)
{
    int n_parts = o->n_ranks > 0 ? o->n_ranks : 1, n_stages = o->n_stages > 0 ? o->n_stages : 1;
    const struct ranks_options of_ranks = {.device = o->device,
                                           .first = o->first_gpu,
                                           .n_stages = n_stages,
                                           .n_parts = n_parts,
                                           .first_stage = model_first_stage(o, n_stages),
                                           .n_own = model_own_stages(o, n_stages),
                                           .has_head = o->n_nodes > 1 && o->node_rank == 0,
                                           .cpu_threads = o->cpu_threads,
                                           .links = o->uses_nccl ? DEVICE_LINKS_NCCL
                                                                 : DEVICE_LINKS_PEERS};
    int rc = model_check_ranks(whole, o, n_stages, n_parts);

    if (rc != ERR_OK || (rc = plan_check_stages(whole, n_stages)) != ERR_OK)
        return rc;
    if ((rc = plan_split(&m->plan, whole, n_parts, o->whole_experts)) != ERR_OK)
        return rc;
    if ((rc = device_choose_kernels(o->kernels)) != ERR_OK ||
        (rc = ranks_open(&m->ranks, &of_ranks)) != ERR_OK)
        return rc;
    for (int i = 0; i < m->ranks.n; i++)
        m->ranks.at[i].stage = plan_stage(whole, m->ranks.at[i].stage_idx, n_stages);
    m->device = ranks_sampler(&m->ranks)->device;
    m->shape.n_stages = n_stages;
    m->has_whole_experts = o->whole_experts && m->config.experts.n > 0;
    log_debug("model: %s is open", m->device->name);
    m->node_rank = o->node_rank;
    m->shape.sleeps = o->sleeps;
    for (int i = 0; i < m->ranks.n && m->shape.sleeps; i++) {
        struct device *device = m->ranks.at[i].device;

        m->shape.sleeps = device->ops->may_sleep(device) == ERR_OK;
    }
    return ERR_OK;
}

int model_open(struct model **out, const struct model_options *o)
{
    struct model *model = mem_zalloc(sizeof *model);
    struct plan whole = {.n_layers = 0};
    uint64_t start_us = clock_us();
    int rc = ERR_NO_MEMORY;

    if (model == NULL)
        goto out;
    log_debug("model: opening %s", o->dir);
    /* Cheap checks first: a wrong folder or setting is reported before a GPU is touched. */
    if ((rc = hf_config_read(&model->config, o->dir, o->hf_overrides)) != ERR_OK)
        goto out;
    if ((rc = model_take_mtp(model, o)) != ERR_OK || (rc = model_choose_head(model, o)) != ERR_OK ||
        (rc = plan_make(&whole, &model->config)) != ERR_OK)
        goto out;
    plan_drop_index(&whole, o->max_model_len > 0 ? o->max_model_len : model->config.len_max);
    if ((rc = model_open_ranks(model, o, &whole)) != ERR_OK ||
        (rc = model_check_head(model, o)) != ERR_OK)
        goto out;
    /* Types depend on the device, and groups of pages on the types. */
    if ((rc = model_choose_types(model, o)) != ERR_OK ||
        (rc = model_choose_shape(model, o)) != ERR_OK ||
        (rc = model_choose_groups(model)) != ERR_OK)
        goto out;
    if ((rc = model_load(model, o, &whole)) != ERR_OK)
        goto out;
    model_set_fingerprint(model);
    /* Sums for /metrics; constant from here on. */
    model->shape.device_bytes = ranks_allocated_bytes(&model->ranks);
    model->shape.weight_bytes = model_weights_bytes(model);
    model_count_parts(model);
    model->shape.work_bytes = model->work_bytes;
    model->shape.sleeping_bytes = ranks_sleeping_bytes(&model->ranks);
    model->shape.constant_bytes = ranks_constant_bytes(&model->ranks);
    model_log_table(model, o->dir, start_us);
    *out = model;
    model = NULL;
out:
    if (rc == ERR_NO_MEMORY)
        /* The allocation that failed has logged its size. */
        log_error("model: not enough memory for %s", o->dir);
    plan_fini(&whole);
    model_close(model);
    return rc;
}

/* The devices go first: a step may still read the host arrays. */
void model_close(struct model *m)
{
    if (m == NULL)
        return;
    node_close(m->node);
    ranks_close(&m->ranks);
    cache_fini(&m->cache);
    plan_fini(&m->plan);
    mem_free(m->own_page);
    mem_free(m->logprobs);
    mem_free(m->n_asked);
    for (unsigned i = 0; i < m->n_steps; i++)
        model_free_step(&m->steps[i]);
    mem_free(m);
}

/* Constant after model_open(). */
const struct model_shape *model_shape(const struct model *m)
{
    return &m->shape;
}

/* As the engine's scheduler counts them. */
int model_pages_of(const struct model *m, int n_tokens)
{
    return cache_need(&m->cache, n_tokens);
}
