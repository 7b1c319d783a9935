/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields that single families have in config.json: what is made of them, and that a value that is
 * not served is refused with one line that names its field. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "model/hf_config.h"
#include "tests/tap.h"

#define SHAPE                                                                                  \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"vocab_size\":320," \
    "\"num_key_value_heads\":2,\"intermediate_size\":128,\"max_position_embeddings\":512"
#define OF(name)    "{\"architectures\":[\"" name "\"]," SHAPE

#define OLMO_HYBRID OF("OlmoHybridForCausalLM")
#define APERTUS     OF("ApertusForCausalLM")
#define LLAMA4      OF("Llama4ForCausalLM") ",\"num_local_experts\":6"

static struct hf_config c;
static char lines[4096];

/* The result of a config; its lines in the log are in `lines`. */
static int parse(const char *text)
{
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO), rc;
    size_t n;

    if (log == NULL || kept == -1)
        return -1;
    (void)dup2(fileno(log), STDERR_FILENO);
    rc = hf_config_parse(&c, "config.json", text, strlen(text), NULL, 0);
    (void)dup2(kept, STDERR_FILENO);
    (void)close(kept);
    rewind(log);
    n = fread(lines, 1, sizeof lines - 1, log);
    lines[n] = '\0';
    (void)fclose(log);
    return rc;
}

static const struct {
    const char *text, *named; /* the line has the second */
    int rc;
} refused[] = {
    {OLMO_HYBRID ",\"linear_num_key_heads\":4}", "linear_num_value_heads 8", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_value_head_dim\":257}", "linear_value_head_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_key_head_dim\":0}", "linear_key_head_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_conv_kernel_dim\":\"4\"}", "linear_conv_kernel_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_allow_neg_eigval\":1}", "linear_allow_neg_eigval", ERR_INVALID},
    {OLMO_HYBRID ",\"layer_types\":[\"full_attention\"]}", "layer_types", ERR_INVALID},
    {OLMO_HYBRID ",\"hidden_act\":\"gelu\"}", "hidden_act", ERR_UNSUPPORTED},
    {APERTUS ",\"hidden_act\":\"yelu\"}", "yelu", ERR_UNSUPPORTED},
    {OF("ArceeForCausalLM") ",\"hidden_act\":\"xielu\"}", "xielu", ERR_UNSUPPORTED},
    {LLAMA4 ",\"attention_chunk_size\":0}", "attention_chunk_size", ERR_INVALID},
    {LLAMA4 ",\"floor_scale\":0}", "floor_scale", ERR_INVALID},
    {LLAMA4 ",\"attn_scale\":\"x\"}", "attn_scale", ERR_INVALID},
    {LLAMA4 ",\"moe_layers\":3}", "moe_layers", ERR_INVALID},
    {LLAMA4 ",\"num_experts_per_tok\":7}", "experts per token", ERR_INVALID},
    {LLAMA4 ",\"no_rope_layers\":[1]}", "no_rope_layers", ERR_INVALID},
    {LLAMA4 ",\"intermediate_size_mlp\":null,\"use_qk_norm\":3}", "use_qk_norm", ERR_INVALID},
};

static void check_refused(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const char *end;

        is_int(parse(refused[i].text), refused[i].rc, "refused: %s", refused[i].named);
        end = strchr(lines, '\n');
        ok(end != NULL && end[1] == '\0' && strstr(lines, refused[i].named) != NULL,
           "with one line that names it");
    }
}

static void check_olmo_hybrid(void)
{
    is_int(parse(OLMO_HYBRID "}"), ERR_OK, "an OLMo hybrid with the defaults of its class");
    ok(c.layer_kinds[0] == LAYER_DELTA && c.layer_kinds[2] == LAYER_DELTA &&
           c.layer_kinds[3] == LAYER_FULL && c.norms == NORMS_AFTER &&
           c.delta_norms == NORMS_BEFORE,
       "its layers and their norms");
    ok(c.delta.n_k_heads == 8 && c.delta.n_v_heads == 8 && c.delta.k_dim == 6 &&
           c.delta.v_dim == 12 && c.delta.n_taps == 4 && c.delta.doubles && c.host_only != NULL,
       "its states, which a GPU does not compute");
    ok(c.n_ropes == 1 && c.ropes[0].rotary_dim == 0, "no positions");
    is_int(parse(OLMO_HYBRID ",\"rope_theta\":500000.0,\"linear_allow_neg_eigval\":false}"), ERR_OK,
           "one with positions");
    ok(c.ropes[0].rotary_dim == 8 && c.ropes[0].theta == 500000.0 && c.host_only == NULL,
       "and states that keep their signs: as of other families");
}

static void check_apertus(void)
{
    is_int(parse(APERTUS "}"), ERR_OK, "an Apertus with the defaults of its class");
    ok(c.has_xielu && c.host_only != NULL && c.ffn == FFN_PLAIN && c.qk_norm == QK_NORM_HEADS,
       "its FFN, which a GPU does not compute");
    ok(c.ropes[0].kind == ROPE_LLAMA3 && c.ropes[0].theta == 12e6 && c.ropes[0].factor == 8.0 &&
           c.ropes[0].original_len == 8192.0,
       "its positions");
    is_int(parse(APERTUS ",\"hidden_act\":\"gelu\",\"rope_theta\":1e4,\"rope_scaling\":{"
                         "\"rope_type\":\"default\"}}"),
           ERR_OK, "one with another activation");
    ok(!c.has_xielu && c.host_only == NULL && c.activation == K_GELU &&
           c.ropes[0].kind == ROPE_PLAIN,
       "is a model of any device");
}

static void check_llama4(void)
{
    is_int(parse(LLAMA4 "}"), ERR_OK, "a Llama 4 with the defaults of its class");
    ok(c.chunk == 8192 && c.len_max == 512 && c.len_scaled == 512, "texts below a chunk");
    ok(c.ropes[0].interleaved && c.layer_ropes[2] == 0 && c.ropes[c.layer_ropes[3]].rotary_dim == 0,
       "every fourth layer has no positions");
    ok(c.qk_norm == QK_NORM_AFTER && c.still_grows && c.growth.period == 8192 &&
           c.growth.first == 1 && fabsf(c.growth.beta - 0.1f) < 1e-6f,
       "norms in the others, and queries that grow in these");
    ok(c.layer_experts[0] && c.layer_experts[3] && c.experts.ff_dim == 128 &&
           c.experts.shared_dim == 128 && c.ff_dim == 16384 && c.experts.n_used == 1 &&
           c.experts.weighs_inputs && !c.experts.renorms && c.host_only != NULL,
       "its experts, which a GPU does not compute");
    is_int(parse(LLAMA4 ",\"attention_chunk_size\":100,\"moe_layers\":[1,9],"
                        "\"no_rope_layers\":[],\"attn_temperature_tuning\":4}"),
           ERR_OK, "one with short chunks");
    ok(c.len_max == 100 && c.len_scaled == 100 && !c.layer_experts[0] && c.layer_experts[1] &&
           !c.layer_experts[2] && c.growth.beta > 0.0f && c.layer_ropes[3] != 0,
       "has texts of these; experts in the layers that it lists");
    is_int(parse(LLAMA4 ",\"attention_chunk_size\":100,\"attn_temperature_tuning\":0,"
                        "\"use_qk_norm\":false,\"layer_types\":[\"full_attention\","
                        "\"full_attention\",\"full_attention\",\"full_attention\"]}"),
           ERR_OK, "one without chunks");
    ok(c.len_max == 512 && c.chunk == 0 && c.growth.beta == 0.0f && c.qk_norm == QK_NORM_NONE,
       "has long texts, and neither norms nor growth");
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    check_refused();
    check_olmo_hybrid();
    check_apertus();
    check_llama4();
    return tap_done();
}
