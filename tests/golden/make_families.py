"""Makes the golden files of the folders under families/; README.md here says what they hold.

Versions: torch 2.15.0, transformers 5.23.0, Python 3.11.

    python3 make_families.py --out families [--models LIST]

Each is a model of transformers' own class with random weights, saved by save_pretrained(), so that
names and fields are those of real checkpoints.  All arithmetic is float32 on the CPU, of weights
that were rounded to the type that the file has.  Seeds are tried until the best two logits of every
greedy step differ by GAP_MIN, as in make_goldens.py.
"""

import argparse
import copy
import os
import random
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import make_goldens as goldens  # noqa: E402

SEEDS = 400
NOISE_MAX = 0.05
SMALL = dict(vocab_size=160, hidden_size=40, num_hidden_layers=3, num_attention_heads=4,
             num_key_value_heads=2, intermediate_size=56, max_position_embeddings=512,
             bos_token_id=None, eos_token_id=None, pad_token_id=None)
TYPES = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]


def small(**more):
    return {k: v for k, v in dict(SMALL, **more).items() if v != "left out"}


# Folder: type of the model, fields, deviation of matrices.
MODELS = {
    "cohere": ("cohere", small(num_key_value_heads=1, logit_scale=0.7), 0.25),
    # 4 heads of 10, windows of 24, no positions where all is seen.
    "cohere2": ("cohere2", small(num_hidden_layers=4, sliding_window=24, layer_types=TYPES,
                                 logit_scale=0.7), 0.25),
    "exaone4": ("exaone4", small(num_hidden_layers=4, sliding_window=24, layer_types=TYPES), 0.3),
    "gemma": ("gemma", small(head_dim=16, num_key_value_heads=1,
                             tie_word_embeddings=False), 0.2),
    # The last layer of three sees all; linear scaling of its positions alone.
    "gemma3": ("gemma3_text", small(head_dim=16, sliding_window=30, tie_word_embeddings=False, query_pre_attn_scalar=20,
                                    layer_types=["sliding_attention", "sliding_attention",
                                                 "full_attention"],
                                    final_logit_softcapping=12.0,
                                    rope_parameters={
                                        "full_attention": {"rope_type": "linear", "factor": 8.0,
                                                           "rope_theta": 1e6},
                                        "sliding_attention": {"rope_type": "default",
                                                              "rope_theta": 1e4}}), 0.2),
    # Heads of two sizes, the last three layers without keys of their own and with a wider FFN, keys
    # that are values, an embedding for each layer, scales of layers.
    "gemma4": ("gemma4_text", small(num_hidden_layers=7, head_dim=16, global_head_dim=24,
                                    num_global_key_value_heads=1, attention_k_eq_v=True,
                                    num_kv_shared_layers=3, use_double_wide_mlp=True,
                                    hidden_size_per_layer_input=12, vocab_size_per_layer_input=160,
                                    sliding_window=24, final_logit_softcapping=12.0,
                                    tie_word_embeddings=False,
                                    layer_types=["sliding_attention", "full_attention",
                                                 "sliding_attention", "full_attention",
                                                 "sliding_attention", "sliding_attention",
                                                 "full_attention"]), 0.2),
    "gemma2": ("gemma2", small(num_hidden_layers=4, head_dim=12, sliding_window=24,
                               query_pre_attn_scalar=20, attn_logit_softcapping=3.0,
                               final_logit_softcapping=12.0,
                               layer_types=["sliding_attention", "full_attention"] * 2,
                               tie_word_embeddings=False), 0.25),
    "glm": ("glm", small(head_dim=12), 0.25),
    "glm4": ("glm4", small(head_dim=12), 0.3),
    "gpt2": ("gpt2", dict(vocab_size=160, n_embd=40, n_layer=3, n_head=4, n_inner=56,
                          n_positions=512, bos_token_id=None, eos_token_id=None), 0.25),
    "gpt-neox": ("gpt_neox", small(num_key_value_heads="left out", hidden_size=64), 0.2),
    "gpt-neox-serial": ("gpt_neox", small(num_key_value_heads="left out", hidden_size=48,
                                          use_parallel_residual=False, attention_bias=False,
                                          rope_parameters={"rope_type": "default",
                                                           "rope_theta": 10000.0,
                                                           "partial_rotary_factor": 0.5}), 0.25),
    "granite": ("granite", small(embedding_multiplier=5.0, residual_multiplier=0.4,
                                 attention_multiplier=0.2, logits_scaling=0.5,
                                 tie_word_embeddings=True), 0.25),
    "ministral3": ("ministral3", small(head_dim=12, rope_parameters={
        "rope_type": "yarn", "factor": 16.0, "rope_theta": 10000.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.4}), 0.25),
    "nemotron": ("nemotron", small(head_dim=12), 0.25),
    "olmo2": ("olmo2", small(), 0.3),
    "olmo3": ("olmo3", small(num_hidden_layers=4, sliding_window=24, layer_types=TYPES,
                             rope_parameters={
                                 "full_attention": {"rope_type": "yarn", "factor": 4.0,
                                                    "rope_theta": 500000.0,
                                                    "original_max_position_embeddings": 64,
                                                    "attention_factor": 1.2},
                                 "sliding_attention": {"rope_type": "default",
                                                       "rope_theta": 500000.0}}), 0.3),
    "opt": ("opt", small(ffn_dim=56, intermediate_size="left out",
                         num_key_value_heads="left out"), 0.25),
    "phi": ("phi", small(hidden_size=48), 0.25),
    # Three quarters of a head rotate, with a factor for each of the pairs. transformers goes from
    # one list to the other in the middle of a text; here both are the same.
    "phi3": ("phi3", small(hidden_size=32, original_max_position_embeddings=64,
                           rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0,
                                            "partial_rotary_factor": 0.75,
                                            "short_factor": [1.0, 2.5, 6.0],
                                            "long_factor": [1.0, 2.5, 6.0]},
                           tie_word_embeddings=True), 0.25),
    "qwen2-yarn": ("qwen2", small(rope_parameters={
        "rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
        "original_max_position_embeddings": 128}), 0.25),
    "seed-oss": ("seed_oss", small(head_dim=12), 0.25),
    "smollm3": ("smollm3", small(num_hidden_layers=4, no_rope_layers=[1, 0, 1, 0]), 0.25),
    "stablelm": ("stablelm", small(use_qkv_bias=True), 0.25),
    "starcoder2": ("starcoder2", small(sliding_window=40), 0.25),
}

# Layers with one mixer each: Mamba-2, attention without positions, or an FFN.
NEMOTRON_H = dict(intermediate_size=56, ssm_state_size=12, mamba_num_heads=8, mamba_head_dim=10,
                  n_groups=4, conv_kernel=4, chunk_size=16, time_step_min=1e-9, head_dim=12,
                  num_hidden_layers="left out")
MAMBA = dict(mamba_n_heads=5, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=12, mamba_d_conv=4,
             mamba_expand=2, mamba_chunk_size=16)
FALCON_H1 = dict(intermediate_size=56, head_dim=12, mamba_d_ssm=48, mamba_n_heads=4,
                 mamba_d_head=12, mamba_n_groups=2, mamba_d_state=20, mamba_d_conv=4,
                 mamba_chunk_size=16, attention_in_multiplier=0.8, attention_out_multiplier=0.7,
                 key_multiplier=0.6, ssm_in_multiplier=1.3, ssm_out_multiplier=0.8,
                 ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.6], mlp_multipliers=[0.8, 0.5],
                 lm_head_multiplier=0.9, embedding_multiplier=4.0)
MODELS.update({
    # A group of a norm for two heads.
    "nemotron-h": ("nemotron_h", small(**NEMOTRON_H, layers_block_type=[
        "linear_attention", "mlp", "linear_attention", "full_attention", "mlp",
        "linear_attention"]), 0.25),
    # No experts; positions; a limit of steps; three taps.
    "granite-h-dense": ("granitemoehybrid", small(**dict(MAMBA, mamba_d_conv=3, mamba_n_groups=5),
                                                  num_local_experts=0, shared_intermediate_size=56,
                                                  position_embedding_type="rope",
                                                  time_step_limit=[0.2, 0.9],
                                                  layer_types=["linear_attention",
                                                               "full_attention",
                                                               "linear_attention"],
                                                  embedding_multiplier=5.0,
                                                  residual_multiplier=0.4,
                                                  attention_multiplier=0.2,
                                                  logits_scaling=0.5), 0.25),
    # Both mixers in every layer, multipliers everywhere; without a norm, with one before the gate,
    # and with one after it.
    "falcon-h1": ("falcon_h1", small(**FALCON_H1), 0.3),
    "falcon-h1-first": ("falcon_h1", small(**FALCON_H1, mamba_rms_norm=True), 0.3),
    "falcon-h1-after": ("falcon_h1", small(**FALCON_H1, mamba_rms_norm=True,
                                           mamba_norm_before_gate=False), 0.3),
    # Two groups, half of a head rotates.
    "bamba": ("bamba", small(**dict(MAMBA, mamba_n_heads=8, mamba_d_head=12, mamba_n_groups=2),
                             hidden_size=48, attn_layer_indices=[1]), 0.25),
    "lfm2": ("lfm2", small(num_hidden_layers=4, block_auto_adjust_ff_dim=True,
                           block_multiple_of=8, intermediate_size=78, conv_L_cache=3,
                           layer_types=["conv", "conv", "full_attention", "conv"]), 0.3),
})

# Families that differ from others in a few fields.
LOCAL_ROPES = {"full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5,
                                  "original_max_position_embeddings": 64},
               "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
MODELS.update({
    "arcee": ("arcee", small(head_dim=12), 0.25),
    "cwm": ("cwm", small(bos_token_id="left out", eos_token_id="left out", pad_token_id="left out",
                         num_hidden_layers=4, head_dim=12, sliding_window=24, layer_types=TYPES,
                         rope_parameters={"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0,
                                          "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 64}), 0.25),
    "ernie4-5": ("ernie4_5", small(head_dim=12, use_bias=True, tie_word_embeddings=False), 0.25),
    # One theta for layers with a window, none for the others; sinks in all.
    "granite-swa": ("granite_swa", small(num_hidden_layers=4, sliding_window=24,
                                         layer_types=TYPES, layer_rope_theta=[1e4, 0, 1e4, 5e5],
                                         embedding_multiplier=5.0, residual_multiplier=0.4,
                                         attention_multiplier=0.3, logits_scaling=0.5,
                                         tie_word_embeddings=False), 0.25),
    "helium": ("helium", small(num_key_value_heads=1, head_dim=10), 0.25),
    "hunyuan-dense": ("hunyuan_v1_dense", small(head_dim=12, rope_parameters={
        "rope_type": "dynamic", "alpha": 20.0, "factor": 1.0, "rope_theta": 10000.0}), 0.3),
    "internlm2": ("llama", small(), 0.25),
    "internlm3": ("internlm3", small(head_dim=12, attention_bias=True, mlp_bias=True), 0.25),
    "jais2": ("jais2", small(), 0.25),
    "minicpm": ("granite", small(embedding_multiplier=5.0, residual_multiplier=0.4,
                                 attention_multiplier=10 ** -0.5, logits_scaling=0.5,
                                 tie_word_embeddings=True), 0.25),
    "ministral": ("ministral", small(num_hidden_layers=4, head_dim=12, sliding_window=24,
                                     layer_types=TYPES), 0.25),
    "olmo": ("olmo", small(), 0.25),
    "vaultgemma": ("vaultgemma", small(num_hidden_layers=4, head_dim=12, sliding_window=24,
                                       query_pre_attn_scalar=20, attn_logit_softcapping=3.0,
                                       final_logit_softcapping=12.0,
                                       layer_types=["sliding_attention", "full_attention"] * 2,
                                       tie_word_embeddings=False), 0.25),
    # States that may change their signs, under norms before the mixers; attention without positions
    # under norms after them.
    "olmo-hybrid": ("olmo_hybrid", small(num_hidden_layers=4, linear_num_key_heads=4,
                                         linear_num_value_heads=4, linear_key_head_dim=10,
                                         linear_value_head_dim=18,
                                         layer_types=["linear_attention", "full_attention"] * 2,
                                         rope_parameters={"rope_type": "default",
                                                          "rope_theta": None}), 0.3),
    # A curve of two numbers in each layer.
    "apertus": ("apertus", small(head_dim=12, rope_parameters={
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}), 0.25),
    # Latent attention with a dense FFN; multipliers.
    "minicpm3": ("minicpm3", small(num_key_value_heads=4, q_lora_rank=12, kv_lora_rank=22,
                                   qk_nope_head_dim=8, qk_rope_head_dim=6, v_head_dim=9,
                                   scale_emb=5.0, scale_depth=0.9, dim_model_base=25,
                                   tie_word_embeddings=False), 0.25),
    "youtu": ("youtu", small(num_key_value_heads=4, q_lora_rank=14, kv_lora_rank=20,
                             qk_nope_head_dim=9, qk_rope_head_dim=8, v_head_dim=5,
                             tie_word_embeddings=False), 0.25),
})

# Mixtures of experts; the flag: whether the file has the experts of a layer in one tensor, although
# the class would write each alone. Choices of experts are steps: seeds are tried until noise leaves
# those of the compared positions as they are.
def few_experts(**more):
    return small(**dict(dict(num_hidden_layers=2), **more))


def delta(n_k_heads, n_v_heads, k_dim, v_dim):
    return dict(linear_num_key_heads=n_k_heads, linear_num_value_heads=n_v_heads,
                linear_key_head_dim=k_dim, linear_value_head_dim=v_dim)


def latent(q_rank, kv_rank, nope, rope, v):
    return dict(q_lora_rank=q_rank, kv_lora_rank=kv_rank, qk_nope_head_dim=nope,
                qk_rope_head_dim=rope, v_head_dim=v, n_routed_experts=6, num_experts_per_tok=2,
                moe_intermediate_size=20)


def kimi_latent(q_rank, kv_rank, nope, rope, v):
    return dict(q_lora_rank=q_rank, kv_lora_rank=kv_rank, qk_nope_head_dim=nope,
                qk_rope_head_dim=rope, v_head_dim=v)


def yarn(**more):
    return dict(dict(rope_type="yarn", factor=8.0, rope_theta=10000.0, beta_fast=32.0,
                     beta_slow=1.0, original_max_position_embeddings=64), **more)


DELTA_TYPES = ["linear_attention", "linear_attention", "linear_attention", "full_attention",
               "linear_attention"]
PARTIAL = dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25,
               mrope_section=[1, 1, 0])
LONG = dict(rope_type="longrope", rope_theta=10000.0, original_max_position_embeddings=64,
            short_factor=[1.0, 1.5, 2.5, 4.0, 6.0], long_factor=[1.0, 1.5, 2.5, 4.0, 6.0],
            short_mscale=1.2, long_mscale=1.2)
OSS_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                truncate=False, original_max_position_embeddings=64)
EXPERTS = {
    "mixtral": ("mixtral", few_experts(num_attention_heads=3, num_key_value_heads=1, head_dim=12,
                                       intermediate_size=20, num_local_experts=5), False, 0.25),
    # A dense layer, then three of five experts, whose weights do not add up to 1.
    "qwen2-moe": ("qwen2_moe", small(mlp_only_layers=[0], num_experts=5, num_experts_per_tok=3,
                                     moe_intermediate_size=20,
                                     shared_expert_intermediate_size=24), False, 0.25),
    "qwen3-moe": ("qwen3_moe", few_experts(num_attention_heads=3, num_key_value_heads=1,
                                           head_dim=12, decoder_sparse_step=2, num_hidden_layers=4,
                                           intermediate_size=54, num_experts=6,
                                           num_experts_per_tok=2, moe_intermediate_size=18,
                                           norm_topk_prob=True), False, 0.25),
    "qwen3-moe-fused": ("qwen3_moe", few_experts(head_dim=12, num_experts=4, num_experts_per_tok=2,
                                                 moe_intermediate_size=20), True, 0.25),
    # Wide enough for the products of few rows on a GPU.
    "qwen3-moe-wide": ("qwen3_moe", few_experts(hidden_size=64, head_dim=16, num_experts=5,
                                                num_experts_per_tok=2, moe_intermediate_size=24,
                                                norm_topk_prob=True), False, 0.2),
    # Dense layers between those with experts; positions in three of four layers, which norm heads;
    # queries that grow in the fourth. Chunks are longer than the texts.
    "llama4": ("llama4_text", small(num_hidden_layers=4, head_dim=12, intermediate_size=20,
                                    intermediate_size_mlp=54, num_local_experts=5,
                                    num_experts_per_tok=1, interleave_moe_layer_step=2,
                                    attention_chunk_size=512, floor_scale=30, attn_scale=0.3,
                                    no_rope_layers=[1, 0, 1, 1],
                                    rope_parameters={"rope_type": "llama3", "rope_theta": 1e4,
                                                     "factor": 8.0, "low_freq_factor": 1.0,
                                                     "high_freq_factor": 4.0,
                                                     "original_max_position_embeddings": 64}),
               False, 0.25),
    # A gate for each head, which is a softplus; other heads in each layer, other positions in those
    # with a window; a cap of the router's logits.
    "laguna": ("laguna", small(head_dim=12, sliding_window=24, num_attention_heads=6,
                               num_attention_heads_per_layer=[4, 6, 4],
                               layer_types=["sliding_attention", "full_attention",
                                            "sliding_attention"], num_experts=5,
                               num_experts_per_tok=2, moe_intermediate_size=20,
                               shared_expert_intermediate_size=28, moe_routed_scaling_factor=1.7,
                               moe_router_logit_softcapping=1.5,
                               rope_parameters={
                                   "full_attention": {"rope_type": "default", "rope_theta": 1e4,
                                                      "partial_rotary_factor": 0.5},
                                   "sliding_attention": {"rope_type": "default",
                                                         "rope_theta": 1e3}}), False, 0.25),
    # Values of 10 beside keys of 18, of which 6 elements rotate; other kv heads, and sinks, in layers
    # with a window.
    "mimo-v2": ("mimo_v2_flash", small(head_dim=18, v_head_dim=10, num_key_value_heads=1,
                                       sliding_window=24, layer_types=TYPES[:3], n_routed_experts=6,
                                       n_group=3, topk_group=2, num_experts_per_tok=2,
                                       moe_intermediate_size=20, routed_scaling_factor=1.7,
                                       rope_parameters={
                                           "full_attention": {"rope_type": "default",
                                                              "rope_theta": 1e5,
                                                              "partial_rotary_factor": 0.334},
                                           "sliding_attention": {
                                               "rope_type": "default", "rope_theta": 1e4,
                                               "partial_rotary_factor": 0.334}}), False, 0.25),
    "olmoe": ("olmoe", few_experts(intermediate_size=20, num_experts=5,
                                   num_experts_per_tok=2), False, 0.25),
    "granite-moe": ("granitemoe", few_experts(intermediate_size=20, num_local_experts=5,
                                              num_experts_per_tok=3, embedding_multiplier=5.0,
                                              residual_multiplier=0.4, attention_multiplier=0.2,
                                              logits_scaling=0.5), False, 0.25),
    "granite-moe-shared": ("granitemoeshared", few_experts(intermediate_size=20,
                                                           num_local_experts=4,
                                                           shared_intermediate_size=28,
                                                           residual_multiplier=0.6,
                                                           attention_multiplier=0.3,
                                                           logits_scaling=0.5), False, 0.25),
    # Two of three groups, then two of the four experts there.
    "glm4-moe": ("glm4_moe", small(head_dim=12, attention_bias=True, use_qk_norm=True,
                                   n_routed_experts=6, n_group=3, topk_group=2,
                                   num_experts_per_tok=2, moe_intermediate_size=20,
                                   routed_scaling_factor=1.7), False, 0.25),
    "minimax-m2": ("minimax_m2", few_experts(head_dim=12, intermediate_size=20,
                                             num_local_experts=5, num_experts_per_tok=2,
                                             rotary_dim=6), False, 0.25),
    "ernie4-5-moe": ("ernie4_5_moe", few_experts(moe_num_experts=6, moe_k=2,
                                                 moe_intermediate_size=12,
                                                 tie_word_embeddings=False), False, 0.25),
    "hunyuan-moe": ("hunyuan_v1_moe", few_experts(head_dim=12, intermediate_size=20, num_experts=5,
                                                  moe_topk=2, rope_parameters={
                                                      "rope_type": "dynamic", "alpha": 20.0,
                                                      "factor": 1.0,
                                                      "rope_theta": 10000.0}), False, 0.3),
    # Heads with sinks, a window in the first layer, gates and ups in turn, biases everywhere.
    "gpt-oss": ("gpt_oss", few_experts(head_dim=12, intermediate_size=18, num_local_experts=5,
                                       num_experts_per_tok=2, sliding_window=24,
                                       layer_types=TYPES[:2],
                                       rope_parameters=OSS_ROPE), False, 0.2),
    # The same with experts in floats of four bits, and heads of 64.
    "gpt-oss-mxfp4": ("gpt_oss", few_experts(head_dim=64, hidden_size=64, intermediate_size=32,
                                             num_local_experts=6, num_experts_per_tok=3,
                                             num_attention_heads=8, num_key_value_heads=1,
                                             sliding_window=24, layer_types=TYPES[:2],
                                             rope_parameters=OSS_ROPE), "mxfp4", 0.2),
    # The heads of released checkpoints; a dense FFN beside the experts, each with norms of its own.
    "gemma4-moe": ("gemma4_text", few_experts(hidden_size=32, num_hidden_layers=3,
                                              num_attention_heads=2, head_dim=256,
                                              global_head_dim=512, num_global_key_value_heads=1,
                                              attention_k_eq_v=True, sliding_window=24,
                                              hidden_size_per_layer_input=0,
                                              tie_word_embeddings=False,
                                              enable_moe_block=True, num_experts=5,
                                              top_k_experts=2, moe_intermediate_size=18,
                                              layer_types=["sliding_attention"] * 2 +
                                              ["full_attention"]), True, 0.2),
    # Latent attention. Two of three groups, each as good as its best expert.
    "deepseek-v2": ("deepseek_v2", small(num_key_value_heads=4, n_group=3, topk_group=2,
                                         topk_method="group_limited_greedy",
                                         first_k_dense_replace=1, n_shared_experts=2,
                                         routed_scaling_factor=1.7,
                                         **latent(12, 10, 8, 6, 9)), False, 0.25),
    # Three heads, one product for queries, long contexts.
    "deepseek-v2-lite": ("deepseek_v2", small(hidden_size=42, num_attention_heads=3,
                                              num_key_value_heads=3, first_k_dense_replace=1,
                                              n_shared_experts=1, **latent(None, 22, 12, 8, 5),
                                              rope_parameters=yarn(mscale=0.707,
                                                                   mscale_all_dim=0.707)),
                         False, 0.25),
    # A group is as good as its two best; a bias of the choice.
    "deepseek-v3": ("deepseek_v3", small(num_key_value_heads=4, n_group=3, topk_group=2,
                                         first_k_dense_replace=1, n_shared_experts=1,
                                         routed_scaling_factor=1.7, **latent(14, 20, 9, 8, 5),
                                         rope_parameters=yarn(mscale=1.0, mscale_all_dim=1.0)),
                    False, 0.25),
    # Queries, keys and values of one product each, and pairs that are half of the rope apart.
    "moonlight": ("deepseek_v3", few_experts(num_key_value_heads=4, n_group=1, topk_group=1,
                                             first_k_dense_replace=0, n_shared_experts=2,
                                             routed_scaling_factor=2.4, rope_interleave=False,
                                             **latent(None, 24, 16, 10, 12)), False, 0.25),
    "glm4-moe-lite": ("glm4_moe_lite", small(num_key_value_heads=4, n_shared_experts=1,
                                             mlp_layer_types=["sparse", "dense", "sparse"],
                                             **latent(18, 26, 15, 6, 21)), False, 0.25),
    # Queries that grow with the position.
    "mistral4": ("mistral4", few_experts(num_key_value_heads=4, n_shared_experts=1,
                                         first_k_dense_replace=0, **latent(16, 32, 8, 8, 12),
                                         rope_parameters=yarn(
                                             mscale=1.0, mscale_all_dim=1.0, factor=16.0,
                                             original_max_position_embeddings=16,
                                             llama_4_scaling_beta=0.4,
                                             partial_rotary_factor=0.5)), False, 0.25),
    # Layers with states: key heads of 12 for two value heads of 20 each.
    "qwen3-next": ("qwen3_next", few_experts(head_dim=16, **delta(2, 4, 12, 20),
                                             layer_types=DELTA_TYPES[2:4], num_experts=5,
                                             num_experts_per_tok=3, moe_intermediate_size=20,
                                             shared_expert_intermediate_size=24,
                                             rope_parameters=PARTIAL), False, 0.2),
    # The heads of released checkpoints.
    "qwen3.5-moe": ("qwen3_5_moe_text", few_experts(hidden_size=32, head_dim=16,
                                                    intermediate_size="left out",
                                                    **delta(1, 2, 128, 128),
                                                    layer_types=DELTA_TYPES[2:4], num_experts=6,
                                                    num_experts_per_tok=2,
                                                    moe_intermediate_size=18,
                                                    shared_expert_intermediate_size=24,
                                                    rope_parameters=PARTIAL), True, 0.25),
    # Wide enough for the products of few rows on a GPU; the shared expert is like the others.
    "qwen3.5-moe-wide": ("qwen3_5_moe_text", few_experts(hidden_size=64, head_dim=64,
                                                         num_attention_heads=2,
                                                         num_key_value_heads=2,
                                                         intermediate_size="left out",
                                                         **delta(1, 3, 128, 128),
                                                         layer_types=DELTA_TYPES[2:4],
                                                         num_experts=5, num_experts_per_tok=2,
                                                         moe_intermediate_size=24,
                                                         shared_expert_intermediate_size=24,
                                                         rope_parameters=PARTIAL), True, 0.2),
    # A decay for each channel of keys, beside latent attention without positions; a dense layer.
    "kimi-linear": ("kimi_linear", few_experts(num_key_value_heads=4,
                                               mlp_layer_types=["dense", "sparse"],
                                               linear_head_dim=20, linear_num_heads=6,
                                               linear_conv_kernel_dim=3, num_experts=6,
                                               num_experts_per_token=2, num_expert_group=3,
                                               topk_group=2, num_shared_experts=1,
                                               moe_intermediate_size=20,
                                               routed_scaling_factor=1.7,
                                               layer_types=["full_attention", "linear_attention"],
                                               **kimi_latent(None, 24, 9, 6, 11)), False, 0.25),
    # The heads of released checkpoints, latents of queries, and layers in the list that these have.
    "kimi-linear-wide": ("kimi_linear", few_experts(hidden_size=32, num_key_value_heads=4,
                                                    linear_attn_config=dict(
                                                        head_dim=128, num_heads=1,
                                                        short_conv_kernel_size=4, kda_layers=[1],
                                                        full_attn_layers=[2]),
                                                    first_k_dense_replace=0, num_experts=5,
                                                    num_experts_per_token=3,
                                                    num_shared_experts=2,
                                                    moe_intermediate_size=18,
                                                    **kimi_latent(14, 20, 16, 8, 12)),
                         False, 0.25),
    # Latent attention of chosen tokens: fewer than the longest prompts have.
    "deepseek-v32": ("deepseek_v32", few_experts(num_key_value_heads=4, n_group=1, topk_group=1,
                                                 first_k_dense_replace=1, n_shared_experts=1,
                                                 index_n_heads=9, index_head_dim=14, index_topk=48,
                                                 **latent(14, 20, 9, 8, 5),
                                                 rope_parameters=yarn(mscale=1.0,
                                                                      mscale_all_dim=1.0)),
                     False, 0.25),
    # The middle layer sees the tokens that the first one has chosen.
    "glm-moe-dsa": ("glm_moe_dsa", small(num_key_value_heads=4, n_shared_experts=1,
                                         mlp_layer_types=["dense", "sparse", "dense"],
                                         index_n_heads=10, index_head_dim=12, index_topk=64,
                                         indexer_types=["full", "shared", "full"],
                                         **latent(18, 26, 15, 6, 21)), False, 0.25),
    # Experts without a gate, chosen by sigmoids, and a shared one.
    "nemotron-h-moe": ("nemotron_h", few_experts(**NEMOTRON_H, layers_block_type=[
        "linear_attention", "moe", "full_attention", "moe"], n_routed_experts=6,
        num_experts_per_tok=2, moe_intermediate_size=20, moe_shared_expert_intermediate_size=28,
        routed_scaling_factor=1.7), False, 0.25),
    # The same in a narrower space.
    "nemotron-h-latent": ("nemotron_h", few_experts(**NEMOTRON_H, layers_block_type=[
        "linear_attention", "moe", "full_attention", "moe"], n_routed_experts=6,
        num_experts_per_tok=3, moe_intermediate_size=20, moe_shared_expert_intermediate_size=28,
        moe_latent_size=24, routed_scaling_factor=1.7), False, 0.25),
    # One group for all heads, no positions.
    "granite-h": ("granitemoehybrid", few_experts(**MAMBA, num_local_experts=5,
                                                  num_experts_per_tok=3, intermediate_size=20,
                                                  shared_intermediate_size=28,
                                                  layer_types=["linear_attention",
                                                               "full_attention"],
                                                  embedding_multiplier=5.0,
                                                  residual_multiplier=0.4,
                                                  attention_multiplier=0.2,
                                                  logits_scaling=0.5), False, 0.25),
    # A dense layer, then two with experts.
    "lfm2-moe": ("lfm2_moe", few_experts(num_hidden_layers=3, num_dense_layers=1, num_experts=5,
                                         num_experts_per_tok=2, moe_intermediate_size=20,
                                         conv_L_cache=3, layer_types=["conv", "full_attention",
                                                                      "conv"]), False, 0.3),
    "phimoe": ("phimoe", few_experts(intermediate_size=20, num_local_experts=5,
                                     attention_bias=True, lm_head_bias=True,
                                     rope_parameters=LONG), False, 0.25),
}

GROUPED = dict(n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=2,
               moe_intermediate_size=20, routed_scaling_factor=1.7)
EXPERTS.update({
    # A window of the last layer; two of three groups of experts.
    "dots1": ("dots1", small(head_dim=12, sliding_window=24, max_window_layers=2,
                             first_k_dense_replace=1, n_shared_experts=2, norm_topk_prob=True,
                             **GROUPED), False, 0.25),
    # Layers that see all tokens have no positions.
    "exaone-moe": ("exaone_moe", small(head_dim=12, sliding_window=24, layer_types=TYPES[:3],
                                       num_experts=6, num_shared_experts=1,
                                       **dict(GROUPED, n_routed_experts="left out")), False, 0.25),
    "flex-olmo": ("flex_olmo", few_experts(intermediate_size=20, num_experts=5,
                                           num_experts_per_tok=3), False, 0.3),
    "granite-moe-swa": ("granitemoe_swa", few_experts(intermediate_size=20, num_local_experts=5,
                                                      num_experts_per_tok=2, sliding_window=24,
                                                      layer_types=TYPES[:2],
                                                      layer_rope_theta=[1e4, 0],
                                                      residual_multiplier=0.6,
                                                      attention_multiplier=0.3,
                                                      logits_scaling=0.5), False, 0.25),
    "hy3": ("hy_v3", small(head_dim=12, num_experts=5, num_experts_per_tok=2,
                           moe_intermediate_size=20, num_shared_experts=1,
                           router_scaling_factor=1.7), False, 0.25),
    # A rope for each kind of layer; the first layer is dense.
    "mellum": ("mellum", small(head_dim=12, sliding_window=24, layer_types=TYPES[:3],
                               mlp_layer_types=["dense", "sparse", "sparse"], num_experts=5,
                               num_experts_per_tok=2, moe_intermediate_size=20,
                               rope_parameters=LOCAL_ROPES), False, 0.25),
    "sarvam-moe": ("sarvam_moe", small(head_dim=12, n_shared_experts=1, first_k_dense_replace=1,
                                       **GROUPED), False, 0.25),
    # Gates of attention in a tensor of their own, norms on both sides, a dense first layer.
    "afmoe": ("afmoe", few_experts(head_dim=12, sliding_window=24, layer_types=TYPES[:2],
                                   num_experts=5, num_experts_per_tok=2, moe_intermediate_size=20,
                                   route_scale=1.7, num_shared_experts=1,
                                   mup_enabled=True), False, 0.25),
    "bailing-moe": ("sarvam_moe", small(head_dim=12, n_shared_experts=1, first_k_dense_replace=1,
                                        attention_bias=True,
                                        rope_parameters=dict(rope_type="default", rope_theta=6e5,
                                                             partial_rotary_factor=0.5),
                                        **GROUPED), False, 0.25),
    "sarvam-mla": ("sarvam_mla", small(num_key_value_heads=4, first_k_dense_replace=1,
                                       n_shared_experts=1, n_group=1, topk_group=1,
                                       routed_scaling_factor=1.7,
                                       **latent(None, 20, 9, 8, 5)), False, 0.25),
    "solar-open": ("solar_open", few_experts(head_dim=12, n_shared_experts=1,
                                             **GROUPED), False, 0.25),
})

# Models with another one in them: the fields of the text model, and of the other.
VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=40,
              num_position_embeddings=16, deepstack_visual_indexes=[0])
CLIP = dict(model_type="clip_vision_model", num_hidden_layers=1, hidden_size=16,
            intermediate_size=16, num_attention_heads=2, image_size=28, patch_size=14)
SIGLIP = dict(CLIP, model_type="siglip_vision_model")
HEARING = dict(model_type="qwen2_audio_encoder", encoder_layers=1, d_model=16, encoder_ffn_dim=16,
               encoder_attention_heads=2, num_mel_bins=8, max_source_positions=16)
WRAPPED = {
    "qwen3-vl": ("qwen3_vl", small(head_dim=16, rope_parameters={
        "rope_type": "default", "rope_theta": 500000.0, "mrope_section": [4, 2, 2]}), VISION, 0.2),
    # Wide enough for the products of few rows on a GPU.
    "qwen3.5": ("qwen3_5", small(hidden_size=64, num_hidden_layers=5, head_dim=16,
                                 **delta(4, 8, 16, 16), layer_types=DELTA_TYPES,
                                 rope_parameters=PARTIAL), VISION, 0.2),
    # A layer in four without experts; experts of all in one tensor, turned.
    "qwen3-vl-moe": ("qwen3_vl_moe", few_experts(head_dim=16, num_experts=5,
                                                 num_experts_per_tok=2, moe_intermediate_size=18,
                                                 mlp_only_layers=[0], num_hidden_layers=3,
                                                 norm_topk_prob=True, rope_parameters={
                                                     "rope_type": "default",
                                                     "rope_theta": 500000.0,
                                                     "mrope_section": [4, 2, 2]}), VISION, 0.25),
    # A gate for each head; other heads and positions in layers with a window; a dense first layer;
    # limits of gates and ups in experts, in the shared one and in dense layers.
    "step3p7": ("step3p7", small(pad_token_id="left out", num_hidden_layers=4, head_dim=12, num_sliding_attention_heads=6,
                                 sliding_window=24, layer_types=TYPES,
                                 mlp_layer_types=["dense", "sparse", "sparse", "dense"],
                                 n_routed_experts=5, num_local_experts=5, num_experts_per_tok=2,
                                 moe_intermediate_size=20, share_expert_dim=28,
                                 moe_router_scaling_factor=1.7, swiglu_limits=[None, 0.4, 0.0, 2],
                                 swiglu_limits_shared=[0.5, 0.3, None, 0.0],
                                 rope_parameters={
                                     "full_attention": {"rope_type": "llama3", "rope_theta": 1e5,
                                                        "partial_rotary_factor": 0.5,
                                                        "factor": 2.0, "low_freq_factor": 1.0,
                                                        "high_freq_factor": 32.0,
                                                        "original_max_position_embeddings": 128},
                                     "sliding_attention": {"rope_type": "default",
                                                           "rope_theta": 1e4,
                                                           "partial_rotary_factor": 1.0}}),
                dict(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, image_size=28,
                     patch_size=14, mlp_ratio=1.0), 0.25),
    "glm4v": ("glm4v", small(hidden_size=48, rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 1]}), dict(VISION, out_hidden_size=48), 0.3),
    "glm4v-moe": ("glm4v_moe", few_experts(head_dim=16, attention_bias=True, n_routed_experts=6,
                                           first_k_dense_replace=1, n_shared_experts=1,
                                           n_group=3, topk_group=2, num_experts_per_tok=2,
                                           moe_intermediate_size=20, routed_scaling_factor=1.7,
                                           rope_parameters={
                                               "rope_type": "default", "rope_theta": 10000.0,
                                               "partial_rotary_factor": 0.5,
                                               "mrope_section": [2, 1, 1]}), VISION, 0.25),
    # Models whose text model is one of another family.
    "internvl": ("internvl", small(model_type="qwen2"), dict(
        num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
        image_size=[28, 28], patch_size=[14, 14]), 0.25),
    "llava": ("llava", small(model_type="llama"), CLIP, 0.25),
    # Their classes leave out logit_scale, which quire, as Cohere2ForCausalLM, multiplies with.
    "aya-vision": ("aya_vision", small(model_type="cohere2", num_hidden_layers=4,
                                       sliding_window=24, layer_types=TYPES, logit_scale=1.0),
                   SIGLIP, 0.25),
    "cohere2-vision": ("cohere2_vision", small(model_type="cohere2", num_hidden_layers=4,
                                               sliding_window=24, layer_types=TYPES,
                                               logit_scale=1.0), SIGLIP, 0.25),
    "idefics3": ("idefics3", small(model_type="llama"), dict(
        num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
        image_size=28, patch_size=14), 0.25),
    "lfm2-vl": ("lfm2_vl", small(model_type="lfm2", num_hidden_layers=4,
                                 block_auto_adjust_ff_dim=True, block_multiple_of=8,
                                 intermediate_size=78, conv_L_cache=3,
                                 layer_types=["conv", "conv", "full_attention", "conv"]),
                dict(SIGLIP, model_type="siglip2_vision_model", num_patches=4), 0.3),
    "llava-next": ("llava_next", small(model_type="mistral"), CLIP, 0.25),
    "llava-onevision": ("llava_onevision", small(model_type="qwen2"), SIGLIP, 0.25),
    "qwen2-audio": ("qwen2_audio", small(model_type="qwen2"), HEARING, 0.25),
    "voxtral": ("voxtral", small(model_type="llama"), dict(
        num_hidden_layers=1, hidden_size=16, intermediate_size=64, num_attention_heads=2,
        num_mel_bins=8, max_source_positions=16), 0.25),
    "smolvlm": ("smolvlm", small(model_type="llama"), dict(
        num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
        image_size=28, patch_size=14), 0.25),
    # Embedded tokens, queries and keys normed without weights; layers without positions.
    "muse-glimmer": ("muse_glimmer", small(num_hidden_layers=5, head_dim=12, sliding_window=24,
                                           output_multiplier=0.7, final_logit_softcapping=6.0,
                                           qk_scale_factor=1.7), dict(
        num_hidden_layers=1, hidden_size=16, intermediate_size=16, num_attention_heads=2), 0.25),
    "kimi-k25": ("kimi_k25", small(model_type="deepseek_v3", num_key_value_heads=4, n_group=1,
                                   topk_group=1, first_k_dense_replace=1, n_shared_experts=1,
                                   routed_scaling_factor=1.3, **latent(14, 28, 10, 4, 7)),
                 dict(num_hidden_layers=1, hidden_size=16, intermediate_size=16,
                      num_attention_heads=2), 0.25),
    "mistral4-vl": ("mistral3", small(model_type="mistral4", num_key_value_heads=4,
                                      n_shared_experts=1, first_k_dense_replace=0,
                                      num_hidden_layers=1,
                                      **latent(None, 12, 8, 4, 6), rope_parameters=yarn(
                                          mscale=1.0, mscale_all_dim=1.0, factor=4.0,
                                          llama_4_scaling_beta=0.1,
                                          partial_rotary_factor=1 / 3)),
                    dict(num_hidden_layers=1, hidden_size=16, intermediate_size=16, head_dim=8,
                         num_attention_heads=2), 0.25),
}


HEARD = ("qwen2_audio", "voxtral")
# Sizes of weights between the parts, which are not served: up to 80 MB by default.
BETWEEN = {"muse_glimmer": dict(out_hidden_size=16, projector_hidden_size=16),
           "aya_vision": dict(adapter_layer_norm_eps=1e-6, alignment_intermediate_size=32),
           "cohere2_vision": dict(alignment_intermediate_size=32),
           "lfm2_vl": dict(projector_hidden_size=16)}


def make_config(transformers, kind, fields, vision):
    if vision is None:
        return transformers.AutoConfig.for_model(kind, **fields)
    between = BETWEEN.get(kind, {})
    part = "audio_config" if kind in HEARD else "vision_config"
    return transformers.AutoConfig.for_model(kind, text_config=fields, **{part: vision}, **between)


def scale_of_embedding(config):
    """What embedded tokens are multiplied by."""
    if config.model_type.startswith("gemma") or getattr(config, "mup_enabled", False):
        return config.hidden_size ** 0.5
    return getattr(config, "embedding_multiplier", 1.0)


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def to_mxfp4(torch, w):
    """Blocks and scales of w [n][inputs][outputs], and the numbers that they are."""
    rows = w.transpose(1, 2).contiguous()
    groups = rows.reshape(rows.shape[0], rows.shape[1], -1, 32)
    power = torch.floor(torch.log2(groups.abs().amax(-1, keepdim=True) / 4.0))
    table = torch.tensor(E2M1)
    scaled = groups / 2.0 ** power
    codes = (scaled.abs().unsqueeze(-1) - table).abs().argmin(-1)
    values = table[codes] * scaled.sign() * 2.0 ** power
    codes = codes + 8 * (scaled < 0)
    blocks = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8)
    scales = (power.squeeze(-1) + 127).to(torch.uint8)
    return blocks, scales, values.reshape(rows.shape).transpose(1, 2).contiguous()


def save_mxfp4(torch, model, folder):
    """As released: blocks and scales in place of the experts' matrices."""
    import json
    from safetensors.torch import load_file, save_file

    model.save_pretrained(folder)
    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        blocks, scales, _ = to_mxfp4(torch, tensors.pop(name).float())
        tensors[name + "_blocks"], tensors[name + "_scales"] = blocks, scales
    save_file(tensors, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    goldens.write_json(path, config)


def make_model(torch, transformers, config, seed, deviation, fused=None):
    """A model with weights that matter: every vector differs from its neutral value, too."""
    # Mistral 4 is listed among these, too.
    is_wrapped = hasattr(config, "vision_config") or config.model_type == "mistral4"
    auto = (transformers.AutoModelForImageTextToText if is_wrapped
            else transformers.AutoModelForSeq2SeqLM if config.model_type in HEARD
            else transformers.AutoModelForCausalLM)
    torch.manual_seed(seed)
    options = {}
    # Grouped products need whole 16 bytes.
    text = getattr(config, "text_config", config)
    if hasattr(text, "num_experts_per_tok") or hasattr(text, "top_k_experts"):
        options["experts_implementation"] = "eager"
    model = auto.from_config(config, **options).float().eval()
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape)
        if name.endswith("A_log"):  # states that forget within some tens of tokens
            p.data = noise - 2
        elif "conv1d" in name or ".conv.conv" in name:
            p.data = 0.6 * noise
        elif name.endswith("dt_bias"):
            p.data = 0.5 * noise - 1
        elif p.dim() == 1 and name.endswith("bias"):
            p.data = 0.2 * noise
        elif p.dim() == 1:  # a norm: about 1, or about 0 where 1 is added
            p.data = p.data.mean().round() + 0.15 * noise
            if name.endswith("q_norm.weight") and config.model_type.startswith("gemma4"):
                p.data /= len(p) ** 0.5  # scores have no other scale
        elif "embed_tokens_per_layer" in name:
            p.data = 0.7 / config.hidden_size_per_layer_input ** 0.5 * noise
        elif "embed" in name or "lm_head" in name or "wte" in name:
            p.data = 0.3 / (1.0 if "lm_head" in name else scale_of_embedding(config)) * noise
        else:
            p.data = deviation * noise
        if fused == "mxfp4" and name.endswith(("gate_up_proj", "down_proj")):
            p.data = to_mxfp4(torch, p.data)[2]
        p.data = p.data.to(torch.bfloat16).float()
    for name, p in list(model.named_parameters()) + list(model.named_buffers()):
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            p.data = (0.1 * torch.randn(p.shape)).to(torch.bfloat16).float()
        if name.endswith("layer_scalar"):
            p.data = (1 + 0.2 * torch.randn(p.shape)).to(torch.bfloat16).float()
    return model


def is_steady(torch, model, cases):
    """Noise of one percent, and bfloat16, change the compared logits by little."""
    embed = model.get_input_embeddings()
    plain = embed.weight.data.clone()
    for seed in range(4):
        torch.manual_seed(seed)
        embed.weight.data = plain * (1 + 0.01 * torch.randn(plain.shape))
        off = max(low_error(torch, model, c) for c in cases)
        embed.weight.data = plain
        if off > NOISE_MAX:
            return False
    return max(low_error(torch, copy.deepcopy(model).to(torch.bfloat16), c)
               for c in cases) < NOISE_MAX


def add_next_layer(folder):
    """A layer behind the last one, as released checkpoints of DeepSeek V3 have it."""
    import torch
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    more = {k.replace("layers.2.", "layers.3."): v.clone() for k, v in tensors.items()
            if "layers.2." in k}
    more["model.layers.3.enorm.weight"] = more["model.layers.3.input_layernorm.weight"].clone()
    more["model.layers.3.eh_proj.weight"] = torch.ones(4, 8, dtype=torch.bfloat16)
    save_file({**tensors, **more}, path, metadata={"format": "pt"})


def rename_layers(folder):
    """Released Kimi K2.5 has layers in its text model, too; transformers 5.24 writes blocks."""
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    save_file({k.replace("language_model.model.blocks.", "language_model.model.layers."): v
               for k, v in tensors.items()}, path, metadata={"format": "pt"})


def rename_dense(folder):
    """Released Kimi-Linear has dense layers under mlp; transformers 5.24 writes all alike."""
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    tensors = load_file(path)
    save_file({k.replace("block_sparse_moe.", "mlp.")
               if any("moe." + part + "_proj." in k for part in ("gate", "up", "down")) else k: v
               for k, v in tensors.items()}, path, metadata={"format": "pt"})


def rename_olmo_hybrid(folder):
    """transformers 5.24 cuts the convolutions into equal parts, where released files have q, k and
    v, and gives some norms names that they have in other files: both are in the golden."""
    import torch
    from safetensors.torch import load_file, save_file

    path = os.path.join(folder, "model.safetensors")
    tensors, new = load_file(path), {}
    for name, tensor in tensors.items():
        if "q_conv1d" in name:
            parts = [name.replace("q_conv1d", p + "_conv1d") for p in "qkv"]
            rows = [tensors[p.replace("conv1d", "proj")].shape[0] for p in parts]
            whole = torch.cat([tensors[p] for p in parts])
            new.update({p: t.clone() for p, t in zip(parts, whole.split(rows))})
            continue
        if "conv1d" in name:
            continue
        if any(f"layers.{i}." in name for i in (0, 1)):
            name = name.replace("attention_layer_norm", "input_layernorm")
            name = name.replace("feedforward_layer_norm", "post_attention_layernorm")
        new[name] = tensor
    save_file(new, path, metadata={"format": "pt"})


def rewrite_config(folder, change):
    import json

    path = os.path.join(folder, "config.json")
    with open(path, encoding="utf-8") as f:
        config = json.load(f)
    change(config)
    goldens.write_json(path, config)


def release_internlm3(config):
    """transformers writes Llama's names of class and fields."""
    config["architectures"] = ["InternLM3ForCausalLM"]
    config["qkv_bias"] = config.pop("attention_bias")
    config["bias"] = config.pop("mlp_bias")


def release_minicpm(config):
    """Granite's multipliers under the names of MiniCPM, whose class is in its checkpoints."""
    config["architectures"] = ["MiniCPMForCausalLM"]
    config["model_type"] = "minicpm"
    config["scale_emb"] = config.pop("embedding_multiplier")
    config["scale_depth"] = config.pop("residual_multiplier") * config["num_hidden_layers"] ** 0.5
    config["dim_model_base"] = config["hidden_size"] / config.pop("logits_scaling")
    del config["attention_multiplier"]


def release_sarvam(config):
    """transformers writes GLM's and DeepSeek's names of classes."""
    config["architectures"] = ["SarvamMLAForCausalLM" if config["model_type"] == "sarvam_mla"
                               else "SarvamMoEForCausalLM"]


def release_bailing(config):
    """The tensors are Sarvam's; the class is in the checkpoints, and has names of its own."""
    config["architectures"] = ["BailingMoeV2ForCausalLM"]
    config["model_type"] = "bailing_moe"
    config["num_experts"] = config.pop("n_routed_experts")
    config["num_shared_experts"] = config.pop("n_shared_experts")
    config["use_qkv_bias"] = config.pop("attention_bias")
    config["use_bias"] = False
    config["partial_rotary_factor"] = config["rope_parameters"]["partial_rotary_factor"]
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["rope_scaling"] = None


def fuse_internlm2(folder):
    """Llama's tensors as InternLM 2 has them, whose class is in its checkpoints: for each kv head
    its queries, the key and the value."""
    import torch
    from safetensors.torch import load_file, save_file

    names = {"model.embed_tokens": "model.tok_embeddings", "lm_head": "output",
             "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
             "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1",
             "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2"}
    path = os.path.join(folder, "model.safetensors")
    old, new = load_file(path), {}
    for name, tensor in old.items():
        if "k_proj" in name or "v_proj" in name:
            continue
        if "q_proj" in name:
            q, k, v = (old[name.replace("q_proj", p)].reshape(2, -1, 10, 40)
                       for p in ("q_proj", "k_proj", "v_proj"))
            name = name.replace("self_attn.q_proj", "attention.wqkv")
            tensor = torch.cat([q, k, v], dim=1).reshape(-1, 40).contiguous()
        for a, b in names.items():
            name = name.replace(a, b)
        new[name] = tensor
    save_file(new, path, metadata={"format": "pt"})


def release_internlm2(config):
    config["architectures"] = ["InternLM2ForCausalLM"]
    config["model_type"] = "internlm2"
    config["bias"] = config.pop("attention_bias")
    config.pop("mlp_bias")


RELEASED = {"internlm2": release_internlm2, "internlm3": release_internlm3, "minicpm": release_minicpm,
            "sarvam-moe": release_sarvam, "sarvam-mla": release_sarvam,
            "bailing-moe": release_bailing}


def save(model, folder, fused):
    """In the layout of released checkpoints, or in that of the class."""
    if fused == "mxfp4":
        import torch
        save_mxfp4(torch, model, folder)
    elif fused:
        model.save_pretrained(folder, save_original_format=False)
    else:
        model.save_pretrained(folder)


def make(out, name, kind, fields, vision, deviation, fused=None):
    import torch
    import transformers

    folder = os.path.join(out, name)
    config = make_config(transformers, kind, fields, vision)
    n_vocab = fields["vocab_size"]
    for seed in range(1, SEEDS):
        model = make_model(torch, transformers, config, seed, deviation, fused)
        rng = random.Random(seed)
        cases = []
        for n in goldens.PROMPT_LENGTHS:
            prompt = [rng.randrange(n_vocab) for _ in range(n)]
            cases.append(goldens.golden_case(torch, model, prompt))
            if min(cases[-1]["gaps"]) < goldens.GAP_MIN or len(set(cases[-1]["greedy"])) < 12:
                break
        else:
            if fused is None or is_steady(torch, model, cases):
                break
    else:
        raise ValueError("no seed gives clear goldens")
    save(model.to(torch.bfloat16), folder, fused)
    if name == "deepseek-v3":
        add_next_layer(folder)
    if name == "kimi-k25":
        rename_layers(folder)
    if name == "kimi-linear":
        rename_dense(folder)
    if name == "olmo-hybrid":
        rename_olmo_hybrid(folder)
    if name == "internlm2":
        fuse_internlm2(folder)
    if name in RELEASED:
        rewrite_config(folder, RELEASED[name])
    for extra in ("generation_config.json",):
        if os.path.exists(os.path.join(folder, extra)):
            os.unlink(os.path.join(folder, extra))
    goldens.write_cases(os.path.join(folder, "golden.bin"), n_vocab, cases)
    print(name, "seed", seed, "least gap", min(min(c["gaps"]) for c in cases), "distinct",
          [len(set(c["greedy"])) for c in cases], "logit deviation",
          cases[-1]["logits"].std().item(), "bfloat16 error",
          max(low_error(torch, model, c) for c in cases), flush=True)


def low_error(torch, model, case):
    """How far transformers' own logits in bfloat16 are from those in float32."""
    with torch.no_grad():
        low = model(torch.tensor([case["prompt"]])).logits[0, -len(case["logits"]):].float()
    return ((low - case["logits"]).norm() / case["logits"].norm()).item()


def attempt(out, name, *rest):
    """The others are made even where one cannot be."""
    try:
        make(out, name, *rest)
    except Exception as e:  # pylint: disable=broad-except
        print(name, "FAILED:", repr(e)[:300], flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="families")
    parser.add_argument("--models", default="")
    args = parser.parse_args()
    wanted = args.models.split(",") if args.models else []
    for name, (kind, fields, deviation) in MODELS.items():
        if not wanted or name in wanted:
            attempt(args.out, name, kind, fields, None, deviation)
    for name, (kind, fields, fused, deviation) in EXPERTS.items():
        if not wanted or name in wanted:
            attempt(args.out, name, kind, fields, None, deviation, fused)
    for name, (kind, fields, vision, deviation) in WRAPPED.items():
        if not wanted or name in wanted:
            attempt(args.out, name, kind, fields, vision, deviation,
                    False if "num_experts_per_tok" in fields else None)


if __name__ == "__main__":
    main()
