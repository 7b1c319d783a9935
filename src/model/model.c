/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a model, and its steps.
 *
 * Opening goes from config.json to the layer plan, the devices, weights, work memory, and last the
 * KV pages, which get the memory that is left. A step turns the engine's batch into a batch of the
 * device on every rank, runs the forward pass, and samples on rank 0.
 *
 * All functions run on the engine's thread; rank_run() hands the work of the other ranks to their
 * threads and waits for them. Copies of pages are in model_pages.c. */
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/pool.h"
#include "model/forward.h"
#include "model/model_parts.h"
#include "model/weights.h"

#define LAYOUT_VERSION 1 /* of the page layout; part of the fingerprint */
#define GEMM_TABLE     QUIRE_DATADIR "/gemm-h200.txt"
#define PAGES_MAX      16777216
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

static bool model_is_set(const char *option)
{
    return option != NULL && option[0] != '\0';
}

/* Choose the formats of weights and pages from the settings quantization and kv_cache_dtype. */
static int model_choose_types(struct model *m, const struct model_options *o)
{
    const char *kv = model_is_set(o->kv_cache_dtype) ? o->kv_cache_dtype : "auto";
    bool rounds = model_is_set(o->quantization);
    bool rounds_head = rounds && strcmp(o->quantization, "fp8_all") == 0;

    if (rounds && !rounds_head && strcmp(o->quantization, "fp8") != 0) {
        log_error("model: quantization \"%s\" is unknown; use fp8 or fp8_all, or leave it empty",
                  o->quantization);
        return ERR_INVALID;
    }
    if (rounds)
        m->layers = k_format_by_row(K_E4M3);
    if (rounds_head)
        m->head = k_format_by_row(K_E4M3);
    /* K_BF16 means plain: float32 on the cpu device. */
    m->kv_type = K_BF16;
    if (strcmp(kv, "auto") == 0)
        return ERR_OK;
    if (strcmp(kv, "fp8") != 0 && strcmp(kv, "fp8_e4m3") != 0) {
        log_error("model: kv_cache_dtype \"%s\" is unknown; use auto or fp8", kv);
        return ERR_INVALID;
    }
    if (!m->device->is_gpu) {
        log_error("model: kv_cache_dtype fp8 needs the cuda device; use auto on %s",
                  m->device->name);
        return ERR_UNSUPPORTED;
    }
    m->kv_type = K_E4M3;
    return ERR_OK;
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

/* Fill in the shape, except for pages, and check the options against each other. */
static int model_choose_shape(struct model *m, const struct model_options *o)
{
    struct model_shape *shape = &m->shape;
    const struct hf_config *config = &m->config;
    bool gpu = m->device->is_gpu;

    shape->is_gpu = gpu;
    shape->n_layers = config->n_layers;
    shape->dim = config->dim;
    shape->n_heads = config->n_heads;
    shape->n_kv_heads = config->n_kv_heads;
    shape->head_dim = config->head_dim;
    shape->ff_dim = config->ff_dim;
    shape->n_vocab = config->n_vocab;
    shape->page_tokens = o->page_tokens;
    /* Large batches on a GPU; on a CPU they would only add latency. */
    shape->max_num_seqs = gpu ? 256 : 64;
    shape->max_num_batched_tokens = gpu ? 8192 : 512;
    if (o->max_num_batched_tokens > 0)
        shape->max_num_batched_tokens = o->max_num_batched_tokens;
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
    /* Checks come last, because they compare the final numbers. */
    if (shape->page_tokens < 1 || shape->page_tokens > 256) {
        log_error("model: page_tokens %d must be 1 to 256", shape->page_tokens);
        return ERR_INVALID;
    }
    if (shape->max_model_len > config->len_max) {
        log_error("model: max_model_len %d is more than the model's %d", shape->max_model_len,
                  config->len_max);
        return ERR_INVALID;
    }
    if (shape->max_num_batched_tokens < shape->max_num_seqs) {
        log_error("model: max_num_batched_tokens %d must be at least max_num_seqs %d",
                  shape->max_num_batched_tokens, shape->max_num_seqs);
        return ERR_INVALID;
    }
    return ERR_OK;
}

/* A page of the engine is the pages of all ranks, one after another. */
static int model_choose_groups(struct model *m)
{
    struct model_shape *shape = &m->shape;
    int rc = cache_make(&m->cache, &m->plan, shape->page_tokens, model_kv_elem_bytes(m));

    if (rc != ERR_OK)
        return rc;
    shape->page_bytes = (size_t)m->ranks.n * m->cache.page_bytes;
    shape->n_groups = m->cache.n_groups;
    memcpy(shape->groups, m->cache.groups, sizeof shape->groups);
    return ERR_OK;
}

/* Host arrays of one step, allocated for the largest. is_sampled starts true, as if a step had
 * ended, so that the first may begin. */
static int model_alloc_host(struct model *m)
{
    size_t tokens = (size_t)m->shape.max_num_batched_tokens, seqs = (size_t)m->shape.max_num_seqs;

    m->token_seq = mem_zalloc_array(tokens, sizeof *m->token_seq);
    m->token_pos = mem_zalloc_array(tokens, sizeof *m->token_pos);
    m->row_tokens = mem_zalloc_array(seqs, sizeof *m->row_tokens);
    m->rows = mem_zalloc_array(seqs, sizeof *m->rows);
    m->histories = mem_zalloc_array(seqs, sizeof *m->histories);
    m->logprobs = mem_zalloc_array(seqs, sizeof *m->logprobs);
    m->n_asked = mem_zalloc_array(seqs, sizeof *m->n_asked);
    m->is_sampled = true;
    if (m->token_seq == NULL || m->token_pos == NULL || m->row_tokens == NULL || m->rows == NULL ||
        m->histories == NULL || m->logprobs == NULL || m->n_asked == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
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
    int rc = ERR_NO_MEMORY;

    job.turns = mem_alloc((size_t)len * (size_t)m->shape.head_dim * sizeof(float));
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

/* The limits of one rank. Only rank 0 computes logits, so the vocabulary of the others is 0. */
static struct device_limits model_rank_limits(const struct model *m, const struct rank *r)
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
        .n_kv_heads = widest.n_kv_heads,
        .head_dim = widest.head_dim,
        .n_windows = widest.n_windows,
        .dim = shape->dim,
        .ff_dim = widest.ff,
        .n_vocab = r->idx == 0 ? shape->n_vocab : 0,
        .codes = r->weights.reads_codes,
        .has_states = widest.has_states,
        .n_experts = widest.experts.n_own,
        .n_experts_used = widest.experts.n_used,
        .expert_dim = widest.experts.ff_dim,
        .n_choices = widest.experts.n,
    };

    for (int group = 0; group < shape->n_groups; group++)
        limits.table_pages[group] = shape->groups[group].n_state_pages;
    return limits;
}

/* Runs per rank: the device's own work memory, then activations. */
static int model_alloc_rank(struct rank *r, void *context)
{
    const struct model *model = context;
    const struct device_limits limits = model_rank_limits(model, r);
    int rc = r->device->ops->reserve(r->device, &limits);

    if (rc != ERR_OK)
        return rc;
    return activations_alloc(&r->act, r->device, &model->plan, &limits);
}

/* Allocate activations, work areas and rotation tables: all memory but weights and pages. */
static int model_alloc_work(struct model *m)
{
    int rc = rank_run(&m->ranks, model_alloc_rank, m);

    if (rc != ERR_OK || (rc = model_alloc_host(m)) != ERR_OK)
        return rc;
    return model_fill_turns(m);
}

/* The bytes that a rank's GPU has left for pages: its share by gpu_memory_utilization, less the
 * memory in use, that of other processes included. */
static int model_rank_budget(struct device *d, double utilization, size_t *out)
{
    size_t free_bytes = 0, total_bytes = 0, used, allowed;
    int rc = d->ops->free(d, &free_bytes, &total_bytes);

    if (rc != ERR_OK)
        return rc;
    /* The setting is a share of the whole GPU, as in vLLM. */
    used = total_bytes - free_bytes;
    allowed = (size_t)((double)total_bytes * utilization);
    *out = allowed > used ? allowed - used : 0;
    return ERR_OK;
}

/* The bytes that KV pages of all ranks may take together. Every page has a part on each GPU, so the
 * GPU with the least room decides. */
static int model_kv_budget(struct model *m, const struct model_options *o, size_t *out)
{
    size_t least_bytes = SIZE_MAX;

    if (!m->device->is_gpu) {
        *out = o->cpu_kv_bytes;
        return ERR_OK;
    }
    for (int i = 0; i < m->ranks.n; i++) {
        size_t bytes;
        int rc = model_rank_budget(m->ranks.at[i].device, o->gpu_memory_utilization, &bytes);

        if (rc != ERR_OK)
            return rc;
        if (bytes < least_bytes)
            least_bytes = bytes;
    }
    *out = least_bytes * (size_t)m->ranks.n;
    return ERR_OK;
}

/* The setting to name in a message on too few pages. */
static const char *model_pages_setting(const struct model *m, const struct model_options *o)
{
    if (o->num_pages > 0)
        return "num_pages";
    if (m->device->is_gpu)
        return "gpu_memory_utilization";
    return "cpu_kv_bytes";
}

/* Choose n_pages. If the memory is too small for a text of max_model_len tokens, lower that length,
 * unless it was asked for: then it is an error. */
static int model_choose_pages(struct model *m, const struct model_options *o)
{
    struct model_shape *shape = &m->shape;
    size_t budget = 0, n;
    int rc = model_kv_budget(m, o, &budget), len;

    if (rc != ERR_OK)
        return rc;
    n = o->num_pages > 0 ? (size_t)o->num_pages : budget / shape->page_bytes;
    if (n > PAGES_MAX)
        n = PAGES_MAX;
    len = cache_tokens(&m->cache, (int)n, shape->max_model_len);
    if (len == 0 || (len < shape->max_model_len && o->max_model_len > 0)) {
        log_error("model: KV memory holds a text of %d tokens (%zu pages), max_model_len is %d; "
                  "lower max_model_len or give more memory (%s)",
                  len, n, shape->max_model_len, model_pages_setting(m, o));
        return ERR_NO_MEMORY;
    }
    shape->n_pages = (int)n;
    if (len < shape->max_model_len) {
        log_warn("model: KV memory holds a text of %d tokens (%zu pages), the model could take %d: "
                 "max_model_len is %d; raise %s for more",
                 len, n, shape->max_model_len, len, model_pages_setting(m, o));
        shape->max_model_len = len;
    }
    return ERR_OK;
}

/* Runs per rank: the pages of all sequences, in one allocation. They are scratch memory, so a sleep
 * loses their content. */
static int model_alloc_rank_pages(struct rank *r, void *context)
{
    const struct model *model = context;

    r->pages = r->device->ops->alloc_scratch(r->device, (size_t)model->shape.n_pages *
                                                            model->cache.page_bytes);
    if (r->pages == NULL)
        return ERR_NO_MEMORY;
    return ERR_OK;
}

/* Everything that decides the bits of a page: layout, config, KV type, page size, rounding of
 * weights, number of ranks, and the weights' digest. Pages in the host tier and the store are used
 * again only under an equal fingerprint. */
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
    if (m->ranks.n > 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %d ranks%s", m->ranks.n,
                      m->has_whole_experts ? " with whole experts" : "");
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
            n += m->cache.layers[i].group == g;
        switch (group->kind) {
        case CACHE_FULL: log_info("model: pages of group %d: %d layers, all tokens", g, n); break;
        case CACHE_WINDOW:
            log_info("model: pages of group %d: %d layers, the last %d tokens", g, n,
                     group->window);
            break;
        case CACHE_STATE:
            log_info("model: pages of group %d: %d layers, states of %d pages", g, n,
                     group->n_state_pages);
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

        for (int layer = 0; layer < m->plan.n_layers; layer++) {
            if (m->plan.layers[layer].ffn.kind == FFN_EXPERTS)
                shape->expert_bytes += model_matrix_bytes(m, &w->layers[layer].experts.in) +
                                       model_matrix_bytes(m, &w->layers[layer].experts.down);
        }
        if (w->head.data != w->embed.data)
            shape->table_bytes += model_matrix_bytes(m, &w->embed);
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
                                        .kv_scales = m->kv_type == K_E4M3};
    struct weights_rank ranks[RANKS_MAX];
    bool given = model_is_set(o->gemm_table);

    for (int i = 0; i < m->ranks.n; i++) {
        struct rank *rank = &m->ranks.at[i];

        rank->device->ops->read_products(rank->device, given ? o->gemm_table : GEMM_TABLE, given);
        ranks[i] = (struct weights_rank){.weights = &rank->weights, .device = rank->device};
    }
    return weights_load(ranks, &m->config, whole, &m->plan, &from);
}

/* All ranks must fuse the same steps, because their sums over ranks must correspond: the smallest
 * limit of any rank holds for all. */
static void model_fuse_ranks(struct model *m)
{
    int most = 0;

    for (int i = 0; i < m->ranks.n; i++) {
        struct rank *rank = &m->ranks.at[i];

        activations_fuse(&rank->act, rank->device, &m->plan, &rank->weights);
        most = i == 0 ? rank->act.fused_max : model_least(most, rank->act.fused_max);
    }
    for (int i = 0; i < m->ranks.n; i++)
        m->ranks.at[i].act.fused_max = most;
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
    model_fuse_ranks(m);
    m->work_bytes = ranks_allocated_bytes(&m->ranks) - before;
    log_debug("model: work memory is allocated");
    if ((rc = model_choose_pages(m, o)) != ERR_OK)
        return rc;
    return rank_run(&m->ranks, model_alloc_rank_pages, m);
}

/* Split the plan over the ranks and open a device for each. Sleeping is all or nothing: if one
 * device cannot give memory back, none does. */
static int model_open_ranks(struct model *m, const struct model_options *o,
                            const struct plan *whole)
{
    int n = o->n_ranks > 0 ? o->n_ranks : 1, rc;

    if (n > RANKS_MAX) {
        log_error("model: tensor_parallel_size %d must be 1 to %d", n, RANKS_MAX);
        return ERR_INVALID;
    }
    if ((rc = plan_split(&m->plan, whole, n, o->whole_experts)) != ERR_OK)
        return rc;
    if ((rc = ranks_open(&m->ranks, o->device, o->first_gpu, n, o->cpu_threads,
                         o->uses_nccl ? DEVICE_LINKS_NCCL : DEVICE_LINKS_PEERS)) != ERR_OK)
        return rc;
    m->device = m->ranks.at[0].device;
    m->has_whole_experts = o->whole_experts && m->config.experts.n > 0;
    log_debug("model: %s is open", m->device->name);
    m->shape.sleeps = o->sleeps;
    for (int i = 0; i < n && m->shape.sleeps; i++) {
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
    if ((rc = hf_config_read(&model->config, o->dir)) != ERR_OK)
        goto out;
    if ((rc = plan_make(&whole, &model->config)) != ERR_OK)
        goto out;
    if ((rc = model_open_ranks(model, o, &whole)) != ERR_OK)
        goto out;
    /* Types depend on the device, and groups of pages on the types. */
    if ((rc = model_choose_types(model, o)) != ERR_OK)
        goto out;
    if ((rc = model_choose_shape(model, o)) != ERR_OK ||
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
    ranks_close(&m->ranks);
    cache_fini(&m->cache);
    plan_fini(&m->plan);
    mem_free(m->histories);
    mem_free(m->logprobs);
    mem_free(m->n_asked);
    mem_free(m->rows);
    mem_free(m->row_tokens);
    mem_free(m->token_pos);
    mem_free(m->token_seq);
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

/* --- steps ----------------------------------------------------------------------------- */

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

/* Derive the sequence and the position of each token, checking the batch's ranges on the way. A
 * negative id refers to a row of the previous step, which must not have ended. */
static void model_place_tokens(struct model *m, const struct batch *b)
{
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
            must(
                b->token_ids[t] < shape->n_vocab &&
                (b->token_ids[t] >= 0 || (m->n_under_way > 0 && -1 - b->token_ids[t] < m->n_rows)));
            m->token_seq[t] = i;
            m->token_pos[t] = len - (last - first) + (t - first);
        }
    }
}

/* The sampling parameters of row i. History is read only under a penalty. */
static void model_place_row(struct model *m, const struct batch *b, int i)
{
    const struct batch_row *row = &b->rows[i];
    struct k_sample_row *sampled = &m->rows[i];

    must(row->token_idx >= 0 && row->token_idx < b->n_tokens);
    must(i == 0 || row->token_idx >= b->rows[i - 1].token_idx);
    must(row->n_banned >= 0 && row->n_banned <= BATCH_BANNED_MAX);
    m->row_tokens[i] = row->token_idx;
    m->histories[i] = row->history;
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
static void model_place_extra(struct model *m, const struct batch *b, int i)
{
    const struct batch_extra *extra = &b->extras[i];
    struct device_extras *extras = &m->device->extras;
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

/* Begin a step on one rank. Only rank 0 computes logits; the other ranks get its rows too, because
 * the layout of a step depends on them. A rank that fails leaves, so that the others do not wait
 * for it in a sum. */
static int model_begin_rank(struct rank *r, void *context)
{
    const struct model *model = context;
    struct device *device = r->device;
    int rc;

    r->batch = model->device_batch;
    if ((rc = device->ops->begin(device, &r->batch)) != ERR_OK) {
        if (model->ranks.n > 1)
            device->ops->leave_ranks(device);
        return rc;
    }
    /* A recorded step needs no further call. */
    if (device->ops->replay(device))
        return ERR_OK;
    forward(&(struct forward){.device = device,
                              .plan = &model->plan,
                              .weights = &r->weights,
                              .cache = &model->cache,
                              .act = &r->act,
                              .pages = r->pages,
                              .kv_type = model->kv_type,
                              .turns = (const float *const *)r->turns});
    device->ops->launch(device);
    return ERR_OK;
}

/* Nothing here waits for the device, except a full queue. */
int model_step_begin(struct model *m, const struct batch *b)
{
    int rc;

    must(m->n_under_way < MODEL_STEPS_MAX && m->is_sampled);
    model_place_tokens(m, b);
    for (int i = 0; i < b->n_rows; i++)
        model_place_row(m, b, i);
    /* Every rank gets a copy of this, because a device may change its batch. */
    m->device_batch = (struct device_batch){
        .tokens = {.ids = b->token_ids,
                   .seq = m->token_seq,
                   .pos = m->token_pos,
                   .seq_start = b->seq_start,
                   .kv_len = b->kv_len,
                   .page_ids = b->page_ids,
                   .n_tokens = b->n_tokens,
                   .n_seqs = b->n_seqs,
                   .pages_max = b->pages_max,
                   .table_seqs = b->n_seqs},
        .row_tokens = m->row_tokens,
        .rows = m->rows,
        .histories = m->histories,
        .n_rows = b->n_rows,
    };
    if ((rc = rank_run(&m->ranks, model_begin_rank, m)) != ERR_OK)
        return rc;
    m->n_under_way++;
    m->n_rows = b->n_rows;
    m->is_sampled = false;
    return ERR_OK;
}

/* Histories and masks depend on tokens of the previous step, so that step must have ended when a
 * row has any (the second must()). */
int model_step_sample(struct model *m, const struct batch *b)
{
    struct device_extras *extras = &m->device->extras;
    bool waits = b->n_extras > 0;

    must(!m->is_sampled && b->n_rows == m->n_rows && b->n_extras <= b->n_rows);
    for (int i = 0; i < b->n_rows; i++) {
        waits = waits || m->rows[i].n_history > 0;
        for (int j = 0; j < m->rows[i].n_history; j++)
            must(b->rows[i].history[j] >= 0 && b->rows[i].history[j] < m->shape.n_vocab);
    }
    must(!waits || m->n_under_way == 1);
    extras->n_rows = b->n_extras;
    extras->n_masks = b->n_masks;
    extras->n_biases = 0;
    extras->n_asked = 0;
    for (int i = 0; i < b->n_extras; i++)
        model_place_extra(m, b, i);
    if (b->n_rows > 0)
        m->device->ops->sample(m->device, m->ranks.at[0].act.logits);
    m->is_sampled = true;
    return ERR_OK;
}

/* Memory of the device's choice: pinned on a GPU. */
uint32_t *model_masks(struct model *m, int *n_words)
{
    *n_words = m->device->extras.mask_words;
    return m->device->extras.masks;
}

/* Wait for the step of all ranks. Ids and log probabilities are rank 0's; the first error is
 * returned. */
static int model_end_ranks(struct model *m, int32_t *token_ids, int *n_extras)
{
    int first = m->device->ops->end(m->device, token_ids, m->logprobs, n_extras);

    for (int i = 1; i < m->ranks.n; i++) {
        struct device *device = m->ranks.at[i].device;
        struct k_logprob_row none;
        int n_none = 0, rc = device->ops->end(device, NULL, &none, &n_none);

        if (first == ERR_OK)
            first = rc;
    }
    return first;
}

/* The device returns logits and their log-sum; differences are the log probabilities, at most 0. */
int model_step_end(struct model *m, int32_t *token_ids, struct batch_logprobs *logprobs)
{
    const struct k_asked *asked = m->device->extras.asked;
    int n_extras = 0, rc;

    must(m->n_under_way > 0);
    m->n_under_way--;
    rc = model_end_ranks(m, token_ids, &n_extras);
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

/* For tests. Sampling applies penalties without changing logits; only biases and masks change
 * them. */
int model_logits(struct model *m, float *logits)
{
    return m->device->ops->download(m->device, logits, m->ranks.at[0].act.logits,
                                    (size_t)m->n_rows * (size_t)m->shape.n_vocab * sizeof *logits);
}

/* Between begin and sample, because masks and biases change logits in place. */
int model_row_logits(struct model *m, int row, float *logits)
{
    size_t n_vocab = (size_t)m->shape.n_vocab;

    must(!m->is_sampled && row >= 0 && row < m->n_rows);
    return m->device->ops->download(m->device, logits,
                                    m->ranks.at[0].act.logits + (size_t)row * n_vocab,
                                    n_vocab * sizeof *logits);
}
