/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints of a mixture of experts: a tensor for each expert, or one for all of a layer, give
 * the same bits; e4m3 with one scale, scales by row and in blocks, and codes of 4 bits in groups,
 * give those of their twin, whose tensors hold the same numbers as float32. Tensors that are
 * missing, too many or of another shape are refused. And the numbers of experts in config.json that
 * are refused, or fit.
 *
 * QUIRE_TEST_DEVICE=cuda runs it on the GPU, which multiplies e4m3 by row without converting it. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/e4m3.h"
#include "model/hf_config.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define DIM      64
#define FF       32
#define EXPERTS  3
#define VOCAB    50
#define HEADS    16 /* elements of q, k and v: one head */
#define DATA_CAP ((size_t)1 << 20)
#define TEXT_CAP ((size_t)1 << 16)

enum form { EACH, IN_ONE };
enum scaling { PLAIN, TWIN, PER_TENSOR, PER_ROW, PER_BLOCK, CODES };

/* What is wrong with a checkpoint. */
enum damage {
    NOTHING,
    NO_EXPERT,
    ONE_MORE,
    NARROW_EXPERT,
    NO_ROUTER,
    SHORT_ROUTER,
    NO_SCALE,
    FEWER_IN_ONE,
    FLAT_IN_ONE,
    HALF_IN_ONE
};

static bool on_gpu;
static char dir[] = "/tmp/quire-experts-XXXXXX";
static char header[TEXT_CAP];
static uint8_t data[DATA_CAP];
static size_t header_len, data_len;
static unsigned seed;
static size_t weight_bytes; /* of the experts of the model that logits_of() opened last */

/* --- writing a checkpoint ------------------------------------------------------------------ */

static void add(const char *name, const char *dtype, const char *shape, const void *bytes, size_t n)
{
    if (data_len + n > DATA_CAP)
        exit(1);
    memcpy(data + data_len, bytes, n);
    header_len +=
        (size_t)snprintf(header + header_len, sizeof header - header_len,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],"
                         "\"data_offsets\":[%zu,%zu]}",
                         header_len == 1 ? "" : ",", name, dtype, shape, data_len, data_len + n);
    data_len += n;
}

static void put(const char *name, const void *a, size_t a_len, const void *b, size_t b_len)
{
    char path[200];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(a, 1, a_len, f) != a_len || fwrite(b, 1, b_len, f) != b_len ||
        fclose(f) != 0) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
}

static void random_floats(float *to, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525U + 1013904223U;
        to[i] = (float)(int)(seed >> 16) * 0x1p-16f - 0.5f;
    }
}

/* A tensor [rows][cols] of noise; cols 0: a vector. */
static void add_random(const char *name, int rows, int cols)
{
    static float w[VOCAB * DIM];
    size_t n = (size_t)rows * (size_t)(cols > 0 ? cols : 1);
    char shape[40];

    random_floats(w, n);
    snprintf(shape, sizeof shape, cols > 0 ? "%d,%d" : "%d", rows, cols);
    add(name, "F32", shape, w, n * sizeof *w);
}

/* How a matrix is written; like: what a twin is the twin of. */
struct rounding {
    enum scaling scaling, like;
    bool no_scale;
};

/* A matrix in e4m3 with its scales, or its twin. */
static void add_rounded(const char *stem, const float *w, int rows, int cols, struct rounding how)
{
    int high = how.like == PER_ROW ? 1 : rows; /* blocks of 128 are larger than the matrix */
    static k_e4m3 codes[FF * DIM];
    static float means[FF * DIM], scales[DIM];
    char name[200], shape[40];
    int n = 0;

    for (int first = 0; first < rows; first += high, n++) {
        float amax = 0.0f;

        for (int i = first * cols; i < (first + high) * cols; i++)
            amax = fmaxf(amax, fabsf(w[i]));
        scales[n] = k_e4m3_scale(amax);
        for (int i = first * cols; i < (first + high) * cols; i++) {
            codes[i] = k_e4m3_round(w[i] / scales[n]);
            means[i] = k_e4m3_value(codes[i]) * scales[n];
        }
    }
    snprintf(name, sizeof name, "%s.weight", stem);
    snprintf(shape, sizeof shape, "%d,%d", rows, cols);
    if (how.scaling == TWIN) {
        add(name, "F32", shape, means, (size_t)rows * (size_t)cols * sizeof *means);
        return;
    }
    add(name, "F8_E4M3", shape, codes, (size_t)rows * (size_t)cols);
    if (how.no_scale)
        return;
    snprintf(name, sizeof name, "%s.weight_scale", stem);
    if (how.scaling == PER_BLOCK)
        snprintf(shape, sizeof shape, "1,1");
    else
        snprintf(shape, sizeof shape, how.scaling == PER_ROW ? "%d,1" : "1", n);
    add(name, "F32", shape, scales, (size_t)n * sizeof *scales);
}

/* A matrix in codes of 4 bits, of which 32 share a scale in bfloat16, or its twin. */
static void add_codes(const char *stem, int rows, int cols, struct rounding how)
{
    static uint32_t words[FF * DIM / 8];
    static float means[FF * DIM];
    static uint16_t scales[FF * DIM / 32];
    char name[200], shape[40];
    int n = rows * cols;

    memset(words, 0, sizeof words);
    for (int i = 0; i < n; i++) {
        uint32_t code, bits;
        float scale;

        seed = seed * 1664525U + 1013904223U;
        code = seed >> 28;
        if (i % 32 == 0)
            scales[i / 32] = (uint16_t)(0x3d00 + (seed >> 16) % 64);
        bits = (uint32_t)scales[i / 32] << 16;
        memcpy(&scale, &bits, 4);
        words[i / 8] |= code << i % 8 * 4;
        means[i] = (float)((int)code - 8) * scale;
    }
    snprintf(name, sizeof name, "%s.%s", stem, how.scaling == TWIN ? "weight" : "weight_packed");
    snprintf(shape, sizeof shape, "%d,%d", rows, how.scaling == TWIN ? cols : cols / 8);
    if (how.scaling == TWIN)
        add(name, "F32", shape, means, (size_t)n * sizeof *means);
    else
        add(name, "I32", shape, words, (size_t)n / 2);
    snprintf(name, sizeof name, "%s.weight_scale", stem);
    snprintf(shape, sizeof shape, "%d,%d", rows, cols / 32);
    if (how.scaling != TWIN)
        add(name, "BF16", shape, scales, (size_t)n / 32 * 2);
}

/* The three matrices of each expert: w1, w3 [FF][DIM], w2 [DIM][FF]. */
static float experts[EXPERTS + 1][3][FF * DIM];

static void add_each(enum scaling scaling, enum scaling like, enum damage damage)
{
    static const char *const names[] = {"w1", "w3", "w2"};
    int n = damage == ONE_MORE ? EXPERTS + 1 : EXPERTS;

    for (int e = 0; e < n; e++) {
        for (int i = 0; i < 3; i++) {
            int rows = i == 2 ? DIM : FF, cols = i == 2 ? FF : DIM;
            char stem[120], name[140], shape[40];

            if (damage == NO_EXPERT && e == 1 && i == 1)
                continue;
            snprintf(stem, sizeof stem, "model.layers.0.block_sparse_moe.experts.%d.%s", e,
                     names[i]);
            if (like == CODES) {
                add_codes(stem, rows, cols, (struct rounding){scaling, like, false});
                continue;
            }
            if (scaling != PLAIN) {
                add_rounded(
                    stem, experts[e][i], rows, cols,
                    (struct rounding){scaling, like, damage == NO_SCALE && e == 2 && i == 2});
                continue;
            }
            rows -= damage == NARROW_EXPERT && e == 2 && i == 0;
            snprintf(name, sizeof name, "%s.weight", stem);
            snprintf(shape, sizeof shape, "%d,%d", rows, cols);
            add(name, "F32", shape, experts[e][i], (size_t)rows * (size_t)cols * sizeof(float));
        }
    }
}

static void add_in_one(enum damage damage)
{
    static float both[EXPERTS * 2 * FF * DIM], down[EXPERTS * DIM * FF];
    int n = damage == FEWER_IN_ONE ? EXPERTS - 1 : EXPERTS;
    size_t one = (size_t)FF * DIM;
    char shape[40];

    for (size_t e = 0; e < EXPERTS; e++) {
        memcpy(both + 2 * e * one, experts[e][0], one * sizeof(float));
        memcpy(both + (2 * e + 1) * one, experts[e][1], one * sizeof(float));
        memcpy(down + e * one, experts[e][2], one * sizeof(float));
    }
    snprintf(shape, sizeof shape, damage == FLAT_IN_ONE ? "%d,%d" : "%d,%d,%d",
             damage == FLAT_IN_ONE ? n * 2 * FF : n, damage == FLAT_IN_ONE ? DIM : 2 * FF, DIM);
    if (damage != HALF_IN_ONE)
        add("model.layers.0.block_sparse_moe.experts.gate_up_proj", "F32", shape, both,
            (size_t)n * 2 * one * sizeof(float));
    snprintf(shape, sizeof shape, "%d,%d,%d", n, DIM, FF);
    add("model.layers.0.block_sparse_moe.experts.down_proj", "F32", shape, down,
        (size_t)n * one * sizeof(float));
}

static void write_model(enum form form, enum scaling scaling, enum scaling like, enum damage damage)
{
    static const char config[] =
        "{\"architectures\":[\"MixtralForCausalLM\"],\"hidden_size\":64,\"num_hidden_layers\":1,"
        "\"num_attention_heads\":1,\"head_dim\":16,\"intermediate_size\":32,\"vocab_size\":50,"
        "\"max_position_embeddings\":64,\"num_local_experts\":3,\"num_experts_per_tok\":2%s}";
    static const char *const quant[] = {
        [PLAIN] = "",
        [TWIN] = "",
        [PER_TENSOR] = ",\"quantization_config\":{\"quant_method\":\"fp8\"}",
        [PER_ROW] = ",\"quantization_config\":{\"quant_method\":\"fp8\"}",
        [PER_BLOCK] = ",\"quantization_config\":{\"quant_method\":\"fp8\","
                      "\"weight_block_size\":[128,128]}",
        [CODES] = ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\","
                  "\"format\":\"pack-quantized\"}"};
    char text[1024];
    uint64_t len;

    header_len = 1, data_len = 0, seed = 7;
    header[0] = '{';
    random_floats(&experts[0][0][0], sizeof experts / sizeof(float));
    add_random("model.embed_tokens.weight", VOCAB, DIM);
    add_random("lm_head.weight", VOCAB, DIM);
    add_random("model.norm.weight", DIM, 0);
    add_random("model.layers.0.input_layernorm.weight", DIM, 0);
    add_random("model.layers.0.post_attention_layernorm.weight", DIM, 0);
    add_random("model.layers.0.self_attn.q_proj.weight", HEADS, DIM);
    add_random("model.layers.0.self_attn.k_proj.weight", HEADS, DIM);
    add_random("model.layers.0.self_attn.v_proj.weight", HEADS, DIM);
    add_random("model.layers.0.self_attn.o_proj.weight", DIM, HEADS);
    if (damage != NO_ROUTER)
        add_random("model.layers.0.block_sparse_moe.gate.weight",
                   damage == SHORT_ROUTER ? EXPERTS - 1 : EXPERTS, DIM);
    if (form == EACH)
        add_each(scaling, like, damage);
    else
        add_in_one(damage);
    header[header_len++] = '}';
    len = header_len;
    memmove(header + 8, header, header_len);
    memcpy(header, &len, 8);
    put("model.safetensors", header, header_len + 8, data, data_len);
    snprintf(text, sizeof text, config, quant[scaling]);
    put("config.json", text, strlen(text), "", 0);
}

/* --- running -------------------------------------------------------------------------------- */

/* Logits of the last token of a text; the result of opening. */
static int logits_of(float logits[VOCAB])
{
    struct model_options o = {.dir = dir,
                              .kernels = getenv("QUIRE_TEST_KERNELS"),
                              .device = on_gpu ? "cuda" : "cpu",
                              .cpu_threads = 2,
                              .page_tokens = 8,
                              .gpu_memory_utilization = 0.9,
                              .num_pages = 64};
    struct run_seq *s = calloc(1, sizeof *s);
    struct run *r = malloc(sizeof *r);
    struct model *m = NULL;
    int rc = model_open(&m, &o);

    if (rc == ERR_OK) {
        weight_bytes = model_shape(m)->expert_bytes;
        run_init(r, m);
        s->n_tokens = 20;
        for (int i = 0; i < s->n_tokens; i++)
            s->tokens[i] = i * 7 % VOCAB;
        run_clear(r);
        run_add(r, s, s->n_tokens, false);
        is_int(run_step(r), ERR_OK, "a step runs");
        is_int(model_logits(m, logits), ERR_OK, "logits");
    }
    model_close(m);
    free(r), free(s);
    return rc;
}

/* Bits on the cpu device; on a GPU, which rounds activations, nearly so. */
static void check_same(const float *got, const float *want)
{
    double diff = 0.0, norm = 0.0;

    for (int i = 0; i < VOCAB; i++) {
        diff += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    ok(sqrt(diff / norm) <= (on_gpu ? 0.03 : 0.0), "the same logits, within %.1e",
       sqrt(diff / norm));
}

static void check_forms(void)
{
    static const struct {
        const char *name;
        enum scaling scaling;
    } scalings[] = {{"e4m3 with one scale", PER_TENSOR},
                    {"e4m3 with scales by row", PER_ROW},
                    {"e4m3 in blocks", PER_BLOCK},
                    {"codes of 4 bits", CODES}};
    float each[VOCAB], other[VOCAB], largest = 0.0f;
    size_t twin_bytes;

    write_model(EACH, PLAIN, PLAIN, NOTHING);
    is_int(logits_of(each), ERR_OK, "a tensor for each expert");
    write_model(IN_ONE, PLAIN, PLAIN, NOTHING);
    is_int(logits_of(other), ERR_OK, "a tensor for all experts");
    check_same(other, each);
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++) {
        write_model(EACH, TWIN, scalings[i].scaling, NOTHING);
        is_int(logits_of(each), ERR_OK, "the twin of %s", scalings[i].name);
        twin_bytes = weight_bytes;
        write_model(EACH, scalings[i].scaling, scalings[i].scaling, NOTHING);
        is_int(logits_of(other), ERR_OK, "%s", scalings[i].name);
        ok(on_gpu || weight_bytes * 2 < twin_bytes, "%s: kept", scalings[i].name);
        check_same(other, each);
    }
    for (int i = 0; i < VOCAB; i++)
        largest = fmaxf(largest, fabsf(each[i]));
    ok(largest > 0.1f, "the logits are numbers: up to %.2f", (double)largest);
}

static void check_damage(void)
{
    static const struct {
        const char *name;
        enum form form;
        enum scaling scaling;
        enum damage damage;
        int rc;
    } cases[] = {{"a missing matrix of an expert", EACH, PLAIN, NO_EXPERT, ERR_NOT_FOUND},
                 {"an expert too many", EACH, PLAIN, ONE_MORE, ERR_INVALID},
                 {"a narrow expert", EACH, PLAIN, NARROW_EXPERT, ERR_INVALID},
                 {"no router", EACH, PLAIN, NO_ROUTER, ERR_NOT_FOUND},
                 {"a short router", EACH, PLAIN, SHORT_ROUTER, ERR_INVALID},
                 {"an expert without scales", EACH, PER_ROW, NO_SCALE, ERR_NOT_FOUND},
                 {"fewer experts in one tensor", IN_ONE, PLAIN, FEWER_IN_ONE, ERR_INVALID},
                 {"a flat tensor of all experts", IN_ONE, PLAIN, FLAT_IN_ONE, ERR_INVALID},
                 {"gates and ups missing", IN_ONE, PLAIN, HALF_IN_ONE, ERR_NOT_FOUND}};
    float logits[VOCAB];

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_model(cases[i].form, cases[i].scaling, cases[i].scaling, cases[i].damage);
        is_int(logits_of(logits), cases[i].rc, "%s", cases[i].name);
    }
}

/* --- config.json ----------------------------------------------------------------------------- */

#define SHAPE                                                               \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8," \
    "\"intermediate_size\":128,\"vocab_size\":320,\"max_position_embeddings\":512"
#define QWEN3   "\"architectures\":[\"Qwen3MoeForCausalLM\"]," SHAPE ",\"num_experts\":12"
#define GLM     "\"architectures\":[\"Glm4MoeForCausalLM\"]," SHAPE ",\"n_routed_experts\":12"
#define ERNIE   "\"architectures\":[\"Ernie4_5_MoeForCausalLM\"]," SHAPE ",\"moe_num_experts\":12"
#define HUNYUAN "\"architectures\":[\"HunYuanMoEV1ForCausalLM\"]," SHAPE ",\"num_experts\":12"
#define MINIMAX "\"architectures\":[\"MiniMaxM2ForCausalLM\"]," SHAPE ",\"num_local_experts\":12"
#define PHI     "\"architectures\":[\"PhiMoEForCausalLM\"]," SHAPE ",\"num_local_experts\":12"
#define LONG(by)                                                           \
    ",\"rope_scaling\":{\"type\":\"longrope\",\"short_factor\":[1,1,1,1]," \
    "\"long_factor\":[1,1,1,1],\"short_mscale\":1.1,\"long_mscale\":" by "}"

static struct hf_config c;

static int parse(const char *text)
{
    return hf_config_parse(&c, "config.json", text, strlen(text), NULL, 0);
}

static void check_refused(void)
{
    static const struct {
        const char *what, *text;
        int rc;
    } refused[] = {
        {"no number of experts", "{\"architectures\":[\"MixtralForCausalLM\"]," SHAPE "}",
         ERR_INVALID},
        {"no experts", "{" QWEN3 ",\"num_experts\":0}", ERR_INVALID},
        {"a million experts", "{" QWEN3 ",\"num_experts\":1000000}", ERR_INVALID},
        {"a negative number of experts", "{" QWEN3 ",\"num_experts\":-4}", ERR_INVALID},
        {"half an expert", "{" QWEN3 ",\"num_experts\":0.5}", ERR_INVALID},
        {"more experts per token than there are", "{" QWEN3 ",\"num_experts_per_tok\":13}",
         ERR_INVALID},
        {"a hundred experts per token", "{" QWEN3 ",\"num_experts_per_tok\":100}", ERR_INVALID},
        {"no expert per token", "{" QWEN3 ",\"num_experts_per_tok\":0}", ERR_INVALID},
        {"experts of width 0", "{" QWEN3 ",\"moe_intermediate_size\":0}", ERR_INVALID},
        {"experts that fill no memory",
         "{" QWEN3 ",\"num_experts\":1024,\"moe_intermediate_size\":1048576}", ERR_INVALID},
        {"a list as norm_topk_prob", "{" QWEN3 ",\"norm_topk_prob\":[]}", ERR_INVALID},
        {"a number as mlp_only_layers", "{" QWEN3 ",\"mlp_only_layers\":1}", ERR_INVALID},
        {"a step of 0", "{" QWEN3 ",\"decoder_sparse_step\":0}", ERR_INVALID},
        {"a window", "{" QWEN3 ",\"use_sliding_window\":true}", ERR_UNSUPPORTED},
        {"clipped values",
         "{\"architectures\":[\"OlmoeForCausalLM\"]," SHAPE ",\"num_experts\":12,\"clip_qkv\":8}",
         ERR_UNSUPPORTED},
        {"groups that do not divide", "{" GLM ",\"n_group\":5}", ERR_INVALID},
        {"more groups than there are", "{" GLM ",\"n_group\":3,\"topk_group\":4}", ERR_INVALID},
        {"groups too small for the choice",
         "{" GLM ",\"n_group\":6,\"topk_group\":1,\"num_experts_per_tok\":3}", ERR_INVALID},
        {"a thousand groups", "{" GLM ",\"n_group\":1000}", ERR_INVALID},
        {"a factor below 0", "{" GLM ",\"routed_scaling_factor\":-1}", ERR_INVALID},
        {"a million shared experts", "{" GLM ",\"n_shared_experts\":1000000}", ERR_INVALID},
        {"an interval of 0", "{" ERNIE ",\"moe_layer_interval\":0}", ERR_INVALID},
        {"a list for too few layers", "{" HUNYUAN ",\"moe_topk\":[1,1]}", ERR_INVALID},
        {"layers that differ", "{" HUNYUAN ",\"moe_topk\":[1,2,1,1]}", ERR_UNSUPPORTED},
        {"caches across layers", "{" HUNYUAN ",\"use_cla\":true}", ERR_UNSUPPORTED},
        {"an odd rotating part", "{" MINIMAX ",\"rotary_dim\":7}", ERR_INVALID},
        {"a shared expert of MiniMax", "{" MINIMAX ",\"shared_intermediate_size\":8}", ERR_INVALID},
        {"three of PhiMoE's experts", "{" PHI ",\"num_experts_per_tok\":3}", ERR_UNSUPPORTED},
        {"scales of positions that differ", "{" PHI LONG("1.2") "}", ERR_UNSUPPORTED},
    };

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        is_int(parse(refused[i].text), refused[i].rc, "%s", refused[i].what);
}

static void check_values(void)
{
    is_int(parse("{" QWEN3 ",\"mlp_only_layers\":[3,99],\"decoder_sparse_step\":2}"), ERR_OK,
           "a Qwen3 MoE");
    ok(c.experts.n == 12 && c.experts.n_used == 8 && c.experts.ff_dim == 768 &&
           !c.experts.renorms && c.experts.shared_dim == 0,
       "has its defaults");
    ok(!c.layer_experts[0] && c.layer_experts[1] && !c.layer_experts[2] && !c.layer_experts[3],
       "and its dense layers");
    is_int(parse("{" GLM ",\"n_group\":4,\"topk_group\":2,\"num_experts_per_tok\":6,"
                 "\"n_shared_experts\":2,\"moe_intermediate_size\":32,"
                 "\"first_k_dense_replace\":3}"),
           ERR_OK, "a GLM 4.5");
    ok(c.experts.n_groups == 4 && c.experts.n_groups_used == 2 && c.experts.group_best == 2 &&
           c.experts.shared_dim == 64 && c.experts.scoring == K_SCORE_SIGMOID,
       "has groups and shared experts");
    ok(!c.layer_experts[2] && c.layer_experts[3], "and three dense layers");
    is_int(parse("{" ERNIE ",\"moe_layer_end_index\":2}"), ERR_OK, "an Ernie 4.5");
    ok(!c.layer_experts[0] && c.layer_experts[1] && c.layer_experts[2] && !c.layer_experts[3],
       "has experts from one layer to another");
    is_int(parse("{" HUNYUAN ",\"moe_topk\":[2,2,2,2],\"num_shared_expert\":[1,1,1,1],"
                 "\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":1.0,\"alpha\":1000.0}}"),
           ERR_OK, "a Hunyuan");
    ok(c.experts.n_used == 2 && c.experts.shared_dim == 128 && c.qk_norm == QK_NORM_AFTER,
       "has lists with a number for each layer");
    ok(c.ropes[0].kind == ROPE_PLAIN && c.ropes[0].theta > 1e6, "and positions with another theta");
    is_int(parse("{" MINIMAX ",\"rotary_dim\":64}"), ERR_OK, "a MiniMax M2");
    is_int(c.ropes[0].rotary_dim, 64, "rotates half of a head");
    is_int(parse("{" PHI LONG("1.1") "}"), ERR_OK, "a PhiMoE");
    ok(fabs(c.ropes[0].scale - 1.1) < 1e-9, "gives the scale of its positions");
}

int main(void)
{
    const char *device = getenv("QUIRE_TEST_DEVICE");
    char path[200];

    on_gpu = device != NULL && strcmp(device, "cuda") == 0;
    log_set_level(LOG_LEVEL_WARN);
    if (mkdtemp(dir) == NULL)
        tap_skip_all("no folder in /tmp");
    check_forms();
    check_damage();
    snprintf(path, sizeof path, "%s/config.json", dir);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    (void)unlink(path);
    (void)rmdir(dir);
    check_refused();
    check_values();
    return tap_done();
}
