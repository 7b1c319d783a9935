/* SPDX-License-Identifier: Apache-2.0
 *
 * The promise of model.h on the cpu device: a sequence has the same logits, bit for bit, alone and
 * in a crowd, prefilled whole or in chunks of any size, and after its pages were copied out and
 * in: attention over all tokens, over windows, states, and experts; on one rank and on several,
 * whose logits are one rank's up to the order of sums. Pages behind a window are spoilt, and their
 * places in the tables name any page. With random weights, so no golden files are needed. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define N_SEQS  6
#define N_FEW   3 /* of them over ranks, unless the run is a long one */
#define N_SLOW  2 /* of them in chunks of few tokens, likewise */
#define N_VOCAB 211
#define N_PAGES 2003 /* a prime: pages of a sequence are 7 apart */
#define SEQ_MAX 200  /* tokens of a sequence */

static struct model *m;
static struct run *r;
static struct run_seq seqs[N_SEQS];
static int n_seqs; /* of this number of ranks */
static bool is_long;
static float alone[N_SEQS][N_VOCAB], of_one_rank[N_SEQS][N_VOCAB];

#define SIZES                                                              \
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":20," \
    "\"hidden_size\":72,\"intermediate_size\":100,\"vocab_size\":211,"     \
    "\"max_position_embeddings\":300"

#define TWO_SHAPES                                                                   \
    "\"global_head_dim\":28,\"num_global_key_value_heads\":1,\"sliding_window\":19," \
    "\"attention_k_eq_v\":true,"

/* States of several pages, whose rows cross their borders. */
#define DELTA                                                   \
    "\"partial_rotary_factor\":0.5,\"linear_num_key_heads\":4," \
    "\"linear_num_value_heads\":8,\"linear_key_head_dim\":10,"  \
    "\"linear_value_head_dim\":14,"

/* Likewise; a group for two heads. */
#define MAMBA                                                                            \
    "\"mamba_n_heads\":8,\"mamba_d_head\":18,\"mamba_n_groups\":4,\"mamba_d_state\":11," \
    "\"mamba_d_conv\":4,\"mamba_expand\":2,"

static const struct {
    const char *name, *config;
} models[] = {
    {"all tokens", "{\"architectures\":[\"Qwen2ForCausalLM\"],\"num_hidden_layers\":3," SIZES "}"},
    {"windows", "{\"architectures\":[\"MistralForCausalLM\"],\"num_hidden_layers\":2,"
                "\"sliding_window\":19," SIZES "}"},
    {"windows and all tokens",
     "{\"architectures\":[\"Qwen3ForCausalLM\"],\"num_hidden_layers\":5,"
     "\"use_sliding_window\":true,\"sliding_window\":24,\"layer_types\":[\"sliding_attention\","
     "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"]," SIZES
     "}"},
    {"states, windows and all tokens",
     "{\"architectures\":[\"ToyRecurrentForCausalLM\"],\"num_hidden_layers\":5,"
     "\"hidden_act\":\"gelu\",\"mixer_width\":700,"
     "\"use_sliding_window\":true,\"sliding_window\":9,\"layer_types\":[\"recurrent\","
     "\"sliding_attention\",\"recurrent\",\"full_attention\",\"recurrent\"]," SIZES "}"},
    {"states", "{\"architectures\":[\"ToyRecurrentForCausalLM\"],\"num_hidden_layers\":2,"
               "\"layer_types\":[\"recurrent\",\"recurrent\"]," SIZES "}"},
    {"delta rule and all tokens",
     "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"num_hidden_layers\":4," DELTA SIZES "}"},
    {"delta rule, gates in turn and experts",
     "{\"architectures\":[\"Qwen3NextForCausalLM\"],\"num_hidden_layers\":3,"
     "\"full_attention_interval\":2,\"num_experts\":7,\"num_experts_per_tok\":3,"
     "\"moe_intermediate_size\":52,\"shared_expert_intermediate_size\":44," DELTA SIZES "}"},
    {"delta rule by channel, latents and experts",
     "{\"architectures\":[\"KimiLinearForCausalLM\"],\"num_hidden_layers\":3,"
     "\"linear_attn_config\":{\"num_heads\":8,\"head_dim\":13,\"short_conv_kernel_size\":3,"
     "\"kda_layers\":[1,3],\"full_attn_layers\":[2]},\"num_experts\":7,"
     "\"num_experts_per_token\":3,\"moe_intermediate_size\":52,\"kv_lora_rank\":22,"
     "\"qk_nope_head_dim\":13,\"qk_rope_head_dim\":6,\"v_head_dim\":17," SIZES "}"},
    {"delta rule of wide values and other signs, norms over all heads",
     "{\"architectures\":[\"OlmoHybridForCausalLM\"],\"num_hidden_layers\":4,"
     "\"layer_types\":[\"linear_attention\",\"full_attention\",\"linear_attention\","
     "\"full_attention\"],\"linear_num_key_heads\":4,\"linear_num_value_heads\":4,"
     "\"linear_key_head_dim\":10,\"linear_value_head_dim\":134," SIZES "}"},
    {"Mamba-2, attention or an FFN a layer",
     "{\"architectures\":[\"NemotronHForCausalLM\"],\"hybrid_override_pattern\":\"M-M*EEM\","
     "\"num_hidden_layers\":7,\"mamba_num_heads\":8,\"mamba_head_dim\":18,\"n_groups\":4,"
     "\"ssm_state_size\":11,\"n_routed_experts\":7,\"num_experts_per_tok\":3,"
     "\"moe_intermediate_size\":52,\"moe_shared_expert_intermediate_size\":44,"
     "\"time_step_limit\":[0.01,Infinity]," SIZES "}"},
    {"Mamba-2 or attention, and experts",
     "{\"architectures\":[\"GraniteMoeHybridForCausalLM\"],\"num_hidden_layers\":3,"
     "\"layer_types\":[\"mamba\",\"attention\",\"mamba\"],\"num_local_experts\":7,"
     "\"num_experts_per_tok\":3,\"shared_intermediate_size\":44,"
     "\"residual_multiplier\":0.4,\"mamba_proj_bias\":true," MAMBA SIZES "}"},
    {"Mamba-2 beside attention",
     "{\"architectures\":[\"FalconH1ForCausalLM\"],\"num_hidden_layers\":2,\"mamba_d_ssm\":144,"
     "\"mamba_rms_norm\":true,\"mlp_multipliers\":[0.7,0.6]," MAMBA SIZES "}"},
    {"short convolutions and all tokens",
     "{\"architectures\":[\"Lfm2ForCausalLM\"],\"num_hidden_layers\":4,\"conv_L_cache\":3,"
     "\"conv_bias\":true,\"block_multiple_of\":8,\"full_attn_idxs\":[1,3]," SIZES "}"},
    {"experts", "{\"architectures\":[\"Qwen2MoeForCausalLM\"],\"num_hidden_layers\":3,"
                "\"mlp_only_layers\":[1],\"num_experts\":7,\"num_experts_per_tok\":3,"
                "\"moe_intermediate_size\":52,\"shared_expert_intermediate_size\":44," SIZES "}"},
    {"experts whose inputs are weighted, norms after the rotation, queries that grow",
     "{\"architectures\":[\"Llama4ForCausalLM\"],\"num_hidden_layers\":3,"
     "\"num_local_experts\":7,\"num_experts_per_tok\":2,\"intermediate_size_mlp\":44,"
     "\"interleave_moe_layer_step\":2,\"floor_scale\":40,\"no_rope_layer_interval\":3," SIZES "}"},
    {"xIELU", "{\"architectures\":[\"ApertusForCausalLM\"],\"num_hidden_layers\":2," SIZES "}"},
    {"a gate for each head, which differ by layer, and limits",
     "{\"architectures\":[\"Step3p5ForCausalLM\"],\"num_hidden_layers\":3,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"],"
     "\"sliding_window\":19,\"num_sliding_attention_heads\":12,\"moe_layers_enum\":[1,2],"
     "\"n_routed_experts\":7,\"num_experts_per_tok\":3,\"moe_intermediate_size\":52,"
     "\"share_expert_dim\":44,\"swiglu_limits\":[0,0.01,0],"
     "\"swiglu_limits_shared\":[0.01,0,0.02]," SIZES "}"},
    {"softplus gates, and a cap of the router's logits",
     "{\"architectures\":[\"LagunaForCausalLM\"],\"num_hidden_layers\":2,"
     "\"num_attention_heads_per_layer\":[4,8],\"gating\":\"per-element\",\"num_experts\":7,"
     "\"num_experts_per_tok\":3,\"moe_intermediate_size\":52,"
     "\"shared_expert_intermediate_size\":44,\"moe_router_logit_softcapping\":0.05," SIZES "}"},
    {"values narrower than keys, sinks and other kv heads under windows",
     "{\"architectures\":[\"MiMoV2FlashForCausalLM\"],\"num_hidden_layers\":3,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\"],"
     "\"sliding_window\":19,\"v_head_dim\":13,\"n_routed_experts\":8,\"n_group\":4,"
     "\"topk_group\":2,\"num_experts_per_tok\":3,\"moe_intermediate_size\":52," SIZES "}"},
    {"experts in groups",
     "{\"architectures\":[\"Glm4MoeForCausalLM\"],\"num_hidden_layers\":3,"
     "\"n_routed_experts\":12,\"num_experts_per_tok\":3,\"n_group\":4,\"topk_group\":2,"
     "\"moe_intermediate_size\":52,\"partial_rotary_factor\":1.0," SIZES "}"},
    {"shared keys and embeddings for each layer",
     "{\"architectures\":[\"Gemma4ForCausalLM\"],\"num_hidden_layers\":6," TWO_SHAPES
     "\"num_kv_shared_layers\":3,\"use_double_wide_mlp\":true,"
     "\"hidden_size_per_layer_input\":12,\"vocab_size_per_layer_input\":211,"
     "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\","
     "\"sliding_attention\",\"full_attention\",\"full_attention\"]," SIZES "}"},
    {"latents of queries, keys and values, and experts in groups",
     "{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"num_hidden_layers\":3,"
     "\"first_k_dense_replace\":1,\"n_routed_experts\":12,\"num_experts_per_tok\":3,"
     "\"n_group\":4,\"topk_group\":2,\"moe_intermediate_size\":52,\"q_lora_rank\":26,"
     "\"kv_lora_rank\":38,\"qk_nope_head_dim\":13,\"qk_rope_head_dim\":10,"
     "\"v_head_dim\":11," SIZES "}"},
    {"latents of chosen tokens",
     "{\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"num_hidden_layers\":4,"
     "\"first_k_dense_replace\":2,\"n_routed_experts\":7,\"num_experts_per_tok\":3,"
     "\"moe_intermediate_size\":52,\"q_lora_rank\":26,\"kv_lora_rank\":38,"
     "\"qk_nope_head_dim\":13,\"qk_rope_head_dim\":10,\"v_head_dim\":11,"
     "\"index_n_heads\":7,\"index_head_dim\":18,\"index_topk\":33,"
     "\"index_topk_pattern\":\"FSFF\"," SIZES "}"},
    {"latents of keys and values, and queries that grow",
     "{\"architectures\":[\"Mistral4ForCausalLM\"],\"num_hidden_layers\":2,"
     "\"n_routed_experts\":7,\"num_experts_per_tok\":3,\"moe_intermediate_size\":52,"
     "\"q_lora_rank\":null,\"kv_lora_rank\":22,\"qk_nope_head_dim\":6,"
     "\"qk_rope_head_dim\":6,\"v_head_dim\":17,\"rope_parameters\":{\"rope_type\":\"yarn\","
     "\"factor\":4.0,\"original_max_position_embeddings\":32,\"mscale_all_dim\":1.0,"
     "\"llama_4_scaling_beta\":0.2,\"partial_rotary_factor\":0.5}," SIZES "}"},
    {"experts beside an FFN",
     "{\"architectures\":[\"Gemma4ForCausalLM\"],\"num_hidden_layers\":3," TWO_SHAPES
     "\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,\"num_experts\":7,"
     "\"top_k_experts\":3,\"moe_intermediate_size\":52,\"layer_types\":[\"sliding_attention\","
     "\"full_attention\",\"full_attention\"]," SIZES "}"},
};

/* Threads wait for each other: several a rank over ranks only in a long run. */
static int threads_of(int n_ranks)
{
    if (n_ranks == 1)
        return is_long ? 3 : 2;
    return is_long ? 4 : n_ranks;
}

static void open_model(const char *config, int n_ranks)
{
    char dir[] = "/tmp/quire-batch-XXXXXX", path[64];
    struct model_options o = {.dir = dir,
                              .device = "cpu",
                              .dummy_weights = true,
                              .page_tokens = 8,
                              .num_pages = N_PAGES,
                              .max_num_seqs = 16,
                              .max_num_batched_tokens = 256,
                              .cpu_threads = threads_of(n_ranks),
                              .n_ranks = n_ranks};
    FILE *f;

    ok(mkdtemp(dir) != NULL, "a folder");
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    fputs(config, f);
    fclose(f);
    is_int(model_open(&m, &o), ERR_OK, "the model opens");
    unlink(path);
    rmdir(dir);
    if (m == NULL)
        exit(1);
    for (int i = 0; i < N_SEQS; i++) {
        seqs[i].n_tokens = 1 + rand() % SEQ_MAX;
        seqs[i].n_computed = 0;
        seqs[i].first_page = i * run_pages(m, SEQ_MAX);
        for (int t = 0; t < seqs[i].n_tokens; t++)
            seqs[i].tokens[t] = rand() % N_VOCAB;
    }
}

/* Logits of the step's only row. */
static void step(float *logits, int n_rows)
{
    if (run_step(r) != ERR_OK || model_logits(m, logits) != ERR_OK)
        ok(false, "a step runs");
    (void)n_rows;
}

/* Spoil what no further token of a sequence sees. */
static void spoil(const struct run_seq *s)
{
    size_t bytes = model_shape(m)->page_bytes;
    char *junk = malloc(bytes);

    memset(junk, 0x7f, bytes);
    for (int g = 0; g < model_shape(m)->n_groups; g++) {
        if (model_shape(m)->groups[g].kind != CACHE_WINDOW)
            continue;
        for (int p = 0; p < run_first_page(r, g, s->n_computed); p++) {
            if (model_page_write(m, run_page(r, s, g, p), junk) != ERR_OK)
                ok(false, "a page is written");
        }
    }
    free(junk);
}

static void check_chunks(int n_ranks)
{
    static const int chunks[] = {1, 3, 8, 50};
    /* Chunks of few tokens are most of the test's steps: over ranks of one only in a long run. */
    size_t first = n_ranks > 1 && !is_long;
    float logits[16 * N_VOCAB];

    for (int i = 0; i < n_seqs; i++) {
        run_clear(r);
        run_add(r, &seqs[i], seqs[i].n_tokens, false);
        step(alone[i], 1);
        for (size_t j = first; j < sizeof chunks / sizeof chunks[0]; j++) {
            if (chunks[j] < 8 && i >= N_SLOW && !is_long)
                continue;
            seqs[i].n_computed = 0;
            while (seqs[i].n_computed < seqs[i].n_tokens) {
                int left = seqs[i].n_tokens - seqs[i].n_computed;

                run_clear(r);
                run_add(r, &seqs[i], left < chunks[j] ? left : chunks[j], false);
                step(logits, 1);
                spoil(&seqs[i]);
            }
            ok(memcmp(logits, alone[i], sizeof alone[i]) == 0,
               "%d tokens in chunks of %d: the same bits", seqs[i].n_tokens, chunks[j]);
        }
    }
}

/* Random steps: any sequence, any number of its next tokens, until all are computed. */
static void check_crowd(void)
{
    float logits[16 * N_VOCAB];
    int n_same = 0, n_done = 0;

    for (int i = 0; i < n_seqs; i++)
        seqs[i].n_computed = 0;
    while (n_done < n_seqs) {
        int rows[N_SEQS], n_rows = 0, first = rand() % n_seqs;

        run_clear(r);
        for (int j = 0; j < n_seqs; j++) {
            int i = (first + j) % n_seqs, left = seqs[i].n_tokens - seqs[i].n_computed;
            int n = left > 0 ? 1 + rand() % left : 0;

            n = n > 40 ? 1 : n;
            if (n == 0 || rand() % 3 == 0)
                continue;
            if (n == left)
                rows[n_rows++] = i;
            run_add(r, &seqs[i], n, false);
        }
        if (r->b.n_seqs == 0)
            continue;
        step(logits, n_rows);
        for (int j = 0; j < n_rows; j++)
            n_same += memcmp(logits + j * N_VOCAB, alone[rows[j]], sizeof alone[0]) == 0;
        n_done += n_rows;
    }
    is_int(n_same, n_seqs, "in a crowd, in random chunks: the same bits");
}

/* Move a sequence's pages elsewhere, spoil the old ones, compute its last token. */
static void check_pages(void)
{
    size_t bytes = model_shape(m)->page_bytes;
    char *page = malloc(bytes), *junk = malloc(bytes);
    int i = 0, elsewhere = N_SEQS * run_pages(m, SEQ_MAX), n_pages;
    float logits[N_VOCAB];

    while (seqs[i].n_tokens < 2)
        i++;
    seqs[i].n_computed = 0;
    run_clear(r);
    run_add(r, &seqs[i], seqs[i].n_tokens - 1, false);
    step(logits, 0);
    n_pages = run_pages(m, seqs[i].n_tokens);
    memset(junk, 0x7f, bytes);
    for (int p = 0; p < n_pages; p++) {
        int32_t from = (int32_t)((long)(seqs[i].first_page + p) * r->page_step % N_PAGES);
        int32_t to = (int32_t)((long)(elsewhere + p) * r->page_step % N_PAGES);

        if (model_page_read(m, from, page) != ERR_OK || model_page_write(m, to, page) != ERR_OK ||
            model_page_write(m, from, junk) != ERR_OK)
            ok(false, "pages are copied");
    }
    seqs[i].first_page = elsewhere;
    run_clear(r);
    run_add(r, &seqs[i], 1, false);
    step(logits, 1);
    ok(memcmp(logits, alone[i], sizeof logits) == 0, "after its pages moved: the same bits");
    free(page);
    free(junk);
}

/* |got - want| / |want| over the logits of all sequences, in the 2-norm. */
static void check_ranks(int n_ranks)
{
    const float *got = &alone[0][0], *want = &of_one_rank[0][0];
    double diff = 0.0, norm = 0.0;

    if (n_ranks == 1) {
        memcpy(of_one_rank, alone, sizeof alone);
        return;
    }
    for (int i = 0; i < n_seqs * N_VOCAB; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    ok(sqrt(diff / norm) < 1e-5, "%d ranks: logits within %.2e of one rank's", n_ranks,
       sqrt(diff / norm));
}

static void check_model(const char *config, int n_ranks)
{
    n_seqs = n_ranks > 1 && !is_long ? N_FEW : N_SEQS;
    open_model(config, n_ranks);
    run_init(r, m);
    r->page_step = 7;
    check_chunks(n_ranks);
    check_ranks(n_ranks);
    check_crowd();
    check_pages();
    model_close(m);
}

int main(void)
{
    static const int n_ranks[] = {1, 2, 4};
    unsigned seed = tap_seed(1);

    is_long = tap_is_long();
    log_set_level(LOG_LEVEL_WARN);
    r = malloc(sizeof *r);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        for (size_t j = 0; j < sizeof n_ranks / sizeof n_ranks[0]; j++) {
            printf("# %s, ranks: %d\n", models[i].name, n_ranks[j]);
            srand(seed + (unsigned)i); /* the same sequences for each number of ranks */
            check_model(models[i].config, n_ranks[j]);
        }
    }
    free(r);
    return tap_done();
}
