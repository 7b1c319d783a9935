/* config.json: both spellings, defaults, what is refused and how. */
#include <math.h>

#include "base/log.h"
#include "model/config.h"
#include "tests/tap.h"

#define LLAMA                                                                      \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,"                 \
    "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"intermediate_size\":128," \
    "\"vocab_size\":320,\"max_position_embeddings\":512"

#define QWEN2                                                                      \
    "\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":64,"                 \
    "\"num_hidden_layers\":2,\"num_attention_heads\":8,\"intermediate_size\":128," \
    "\"vocab_size\":320,\"max_position_embeddings\":512"

static struct config c;

static int parse(const char *text, const char *generation)
{
    return config_parse(&c, "config.json", text, strlen(text), generation,
                        generation == NULL ? 0 : strlen(generation));
}

#define QUANT(members) ",\"quantization_config\":{" members "}"
#define FP8            "\"quant_method\":\"fp8\""
#define CT             "\"quant_method\":\"compressed-tensors\""
#define BLOCKS         "\"strategy\":\"block\",\"block_structure\":[128,128]"
#define GROUP(weights)                                 \
    ",\"config_groups\":{\"g\":{\"weights\":{" weights \
    "},\"input_activations\":{\"num_bits\":8,\"strategy\":\"token\"}}}"

static const struct {
    const char *what, *text;
    int rc;
} refused[] = {
    {"not JSON", "{", ERR_SYNTAX},
    {"a list", "[]", ERR_SYNTAX},
    {"no architecture", "{}", ERR_INVALID},
    {"another architecture", "{\"architectures\":[\"FooForCausalLM\"]}", ERR_UNSUPPORTED},
    {"no sizes", "{\"architectures\":[\"LlamaForCausalLM\"]}", ERR_INVALID},
    {"a size of 0", "{" LLAMA ",\"hidden_size\":0}", ERR_INVALID},
    {"a negative size", "{" LLAMA ",\"vocab_size\":-1}", ERR_INVALID},
    {"a huge size", "{" LLAMA ",\"num_hidden_layers\":100000000000}", ERR_INVALID},
    {"a broken size", "{" LLAMA ",\"hidden_size\":64.5}", ERR_INVALID},
    {"a text for a size", "{" LLAMA ",\"hidden_size\":\"64\"}", ERR_INVALID},
    {"uneven groups", "{" LLAMA ",\"num_key_value_heads\":3}", ERR_INVALID},
    {"an odd head", "{" LLAMA ",\"head_dim\":7}", ERR_INVALID},
    {"a head too large", "{" LLAMA ",\"head_dim\":512}", ERR_INVALID},
    {"another activation", "{" LLAMA ",\"hidden_act\":\"gelu\"}", ERR_UNSUPPORTED},
    {"quantised in no known way", "{" LLAMA QUANT("") "}", ERR_UNSUPPORTED},
    {"another quant_method", "{" LLAMA QUANT("\"quant_method\":\"awq\"") "}", ERR_UNSUPPORTED},
    {"blocks of 64", "{" LLAMA QUANT(FP8 ",\"weight_block_size\":[64,128]") "}", ERR_UNSUPPORTED},
    {"e5m2", "{" LLAMA QUANT(FP8 ",\"fmt\":\"e5m2\"") "}", ERR_UNSUPPORTED},
    {"no groups", "{" LLAMA QUANT(CT) "}", ERR_UNSUPPORTED},
    {"4 bits in a word", "{" LLAMA QUANT(CT ",\"format\":\"pack-quantized\"") "}", ERR_UNSUPPORTED},
    {"int8", "{" LLAMA QUANT(CT GROUP("\"num_bits\":8,\"type\":\"int\"")) "}", ERR_UNSUPPORTED},
    {"4 bits", "{" LLAMA QUANT(CT GROUP("\"num_bits\":4")) "}", ERR_UNSUPPORTED},
    {"groups of a row", "{" LLAMA QUANT(CT GROUP("\"num_bits\":8,\"strategy\":\"group\"")) "}",
     ERR_UNSUPPORTED},
    {"weights alone",
     "{" LLAMA QUANT(CT ",\"config_groups\":{\"g\":{\"weights\":{\"num_bits\":8}}}") "}",
     ERR_UNSUPPORTED},
    {"a transform",
     "{" LLAMA QUANT(CT GROUP("\"num_bits\":8") ",\"transform_config\":{\"a\":1}") "}",
     ERR_UNSUPPORTED},
    {"another rope", "{" LLAMA ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}",
     ERR_UNSUPPORTED},
    {"a rope without its factor", "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}",
     ERR_INVALID},
    {"a factor of 0", "{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}",
     ERR_INVALID},
    {"a window of 0", "{" QWEN2 ",\"use_sliding_window\":true,\"sliding_window\":0}", ERR_INVALID},
    {"too few layer_types", "{" QWEN2 ",\"layer_types\":[\"full_attention\"]}", ERR_INVALID},
    {"a window without its size",
     "{" QWEN2 ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", ERR_INVALID},
    {"another mixer", "{" QWEN2 ",\"layer_types\":[\"full_attention\",\"recurrent\"]}",
     ERR_UNSUPPORTED},
    {"eos as a text", "{" LLAMA ",\"eos_token_id\":\"x\"}", ERR_INVALID},
    {"tied as a number", "{" LLAMA ",\"tie_word_embeddings\":1}", ERR_INVALID},
};

static void check_values(void)
{
    is_int(parse("{" LLAMA "}", NULL), ERR_OK, "the least Llama");
    is_int(c.n_kv_heads, 8, "kv heads default to heads");
    is_int(c.head_dim, 8, "head_dim defaults to dim / heads");
    ok(fabs(c.rope.theta - 10000.0) < 1e-9 && c.rope.kind == ROPE_PLAIN, "rope's defaults");
    ok(!c.tied && !c.qkv_bias && c.n_eos == 0, "other defaults");
    is_int(parse("{" LLAMA ",\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\","
                 "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                 "\"original_max_position_embeddings\":8192},\"eos_token_id\":[3,4,999],"
                 "\"attention_bias\":true}",
                 NULL),
           ERR_OK, "an older Llama 3");
    ok(c.rope.kind == ROPE_LLAMA3 && fabs(c.rope.theta - 5e5) < 1e-9, "its rope");
    is_int(c.n_eos, 2, "ids outside the vocabulary end nothing");
    ok(c.qkv_bias && c.o_bias && !c.mlp_bias, "its biases");
    is_int(parse("{" LLAMA ",\"eos_token_id\":3,\"rope_parameters\":{\"rope_type\":\"default\","
                 "\"rope_theta\":500.0}}",
                 "{\"eos_token_id\":[7,8]}"),
           ERR_OK, "a newer one");
    ok(fabs(c.rope.theta - 500.0) < 1e-9, "its theta");
    ok(c.n_eos == 2 && c.eos[0] == 7, "generation_config.json's ids count");
    is_int(parse("{" LLAMA ",\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":100}",
                 NULL),
           ERR_OK, "a Mistral with a window");
    ok(c.len_max == 512 && c.window == 100 && c.layer_kinds[0] == LAYER_WINDOW &&
           c.layer_kinds[1] == LAYER_WINDOW,
       "has it in all layers, and longer texts");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Qwen2ForCausalLM\"],\"sliding_window\":100,"
                 "\"use_sliding_window\":false}",
                 NULL),
           ERR_OK, "a Qwen2");
    ok(c.qkv_bias && !c.o_bias && c.layer_kinds[1] == LAYER_FULL, "has its biases and no window");
    ok(!c.arch->qk_norm, "and no norms of heads");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Qwen3ForCausalLM\"]}", NULL), ERR_OK, "a Qwen3");
    ok(c.arch->qk_norm && !c.qkv_bias && c.head_dim == 128, "has norms, and heads of 128");
    is_int(parse("{" LLAMA ",\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":true,"
                 "\"head_dim\":64}",
                 NULL),
           ERR_OK, "another");
    ok(c.qkv_bias && c.o_bias && c.head_dim == 64, "has what it says");
}

static void check_windows(void)
{
    is_int(parse("{" QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":1,"
                 "\"sliding_window\":100}",
                 NULL),
           ERR_OK, "a Qwen2 with a window");
    ok(c.window == 100 && c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_WINDOW,
       "has it from max_window_layers on");
    is_int(parse("{" QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":0,"
                 "\"sliding_window\":100,"
                 "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}",
                 NULL),
           ERR_OK, "one with layer_types");
    ok(c.layer_kinds[0] == LAYER_WINDOW && c.layer_kinds[1] == LAYER_FULL, "has it where they say");
    is_int(parse("{" QWEN2 ",\"use_sliding_window\":true,\"max_window_layers\":0,"
                 "\"sliding_window\":512}",
                 NULL),
           ERR_OK, "a window as long as the longest text");
    ok(c.layer_kinds[0] == LAYER_FULL && c.layer_kinds[1] == LAYER_FULL, "is none");
    is_int(parse("{" QWEN2 ",\"architectures\":[\"MistralForCausalLM\"],"
                 "\"max_position_embeddings\":8192}",
                 NULL),
           ERR_OK, "a Mistral that says nothing");
    ok(c.window == 4096 && c.layer_kinds[1] == LAYER_WINDOW, "has transformers' window");
    is_int(parse("{" QWEN2 ",\"architectures\":[\"MistralForCausalLM\"],"
                 "\"max_position_embeddings\":8192,\"sliding_window\":null}",
                 NULL),
           ERR_OK, "one that says null");
    ok(c.layer_kinds[1] == LAYER_FULL, "has none");
}

static void check_quant(void)
{
    is_int(parse("{" LLAMA "}", NULL), ERR_OK, "no quantization_config");
    ok(c.quant.kind == NULL, "names no format");
    is_int(parse("{" LLAMA QUANT(FP8 ",\"activation_scheme\":\"static\"") "}", NULL), ERR_OK,
           "fp8");
    ok(c.quant.kind != NULL && k_format_is_by_row(&c.quant.format, K_E4M3), "is e4m3 by row");
    is_int(parse("{" LLAMA QUANT(FP8 ",\"weight_block_size\":[128,128]") "}", NULL), ERR_OK,
           "fp8 in blocks");
    ok(k_format_is_in_blocks(&c.quant.format, K_E4M3, 128), "is e4m3 with blocks");
    is_int(parse("{" LLAMA QUANT(CT GROUP("\"num_bits\":8," BLOCKS) ",\"sparsity_config\":{}") "}",
                 NULL),
           ERR_OK, "compressed-tensors in blocks");
    ok(k_format_is_in_blocks(&c.quant.format, K_E4M3, 128), "has blocks");
}

static void check_turns(void)
{
    float turns[4 * 8];

    is_int(parse("{" LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NULL), ERR_OK,
           "linear scaling");
    config_turns(&c, turns, 0, 4);
    ok(turns[0] == 1.0f && turns[1] == 0.0f, "position 0 does not turn");
    ok(fabs((double)turns[2 * 8] - cos(1.0)) < 1e-6, "position 2 at half speed");
    ok(fabs((double)turns[2 * 8 + 3] - sin(0.1)) < 1e-6, "the second pair is ten times slower");
}

int main(void)
{
    struct config before;

    log_set_level(LOG_LEVEL_ERROR);
    check_values();
    before = c;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        is_int(parse(refused[i].text, NULL), refused[i].rc, "%s is refused", refused[i].what);
    ok(memcmp(&before, &c, sizeof c) == 0, "and nothing is written");
    check_windows();
    check_quant();
    check_turns();
    return tap_done();
}
