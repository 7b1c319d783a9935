"""A model of Gemma 4's shapes that says known texts (spoken.py): its control tokens have the names of
Gemma 4's. The template writes what Gemma 4's own does of turns, tools, calls, results and thinking;
the own one is not ours to keep here.
"""

import sys

import spoken

ENDS = ("<turn|>", "<|tool_response>", "<eos>")
CONTROL = ("<pad>", "<bos>", "<|turn>", "<|think|>", "<|tool>", "<tool|>", "<|tool_call>",
           "<tool_call|>", "<tool_response|>", '<|"|>', "<|channel>", "<channel|>") + ENDS
SPECIAL = ("<bos>", "<eos>", "<pad>")
N_LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FULL_HEAD_DIM, FF_DIM = 2, 64, 4, 2, 16, 32, 32

TEMPLATE = """\
{%- macro value(v) -%}
{%- if v is string -%}{{ '<|"|>' + v + '<|"|>' }}
{%- elif v is boolean -%}{{ 'true' if v else 'false' }}
{%- elif v is mapping -%}{{ '{' }}{{ members(v) }}{{ '}' }}
{%- elif v is sequence -%}[{% for x in v %}{{ value(x) }}{{ '' if loop.last else ',' }}{% endfor %}]
{%- else -%}{{ v }}
{%- endif -%}
{%- endmacro -%}
{%- macro members(m) -%}
{%- for k, v in m | dictsort -%}{{ k }}:{{ value(v) }}{{ '' if loop.last else ',' }}{%- endfor -%}
{%- endmacro -%}
{{ bos_token }}
{%- if tools or enable_thinking -%}
{{ '<|turn>system\n' }}{{ '<|think|>\n' if enable_thinking }}
{%- for t in tools or [] -%}
{{ '<|tool>declaration:' + t.function.name + '{' }}{{ members(t.function) }}{{ '}<tool|>' }}
{%- endfor -%}
{{ '<turn|>\n' }}
{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{ '<|tool_response>response:' + (m.name or 'unknown') + '{value:' }}{{ value(m.content) }}
{{- '}<tool_response|>' }}
{%- else -%}
{{ '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' }}
{%- for c in m.tool_calls or [] -%}
{{ '<|tool_call>call:' + c.function.name + '{' }}{{ members(c.function.arguments) }}
{{- '}<tool_call|>' }}
{%- endfor -%}
{{ m.content or '' }}{{ '' if m.tool_calls else '<turn|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt and messages[-1].role != 'tool' -%}
{{ '<|turn>model\n' }}{{ '' if enable_thinking else '<|channel>thought\n<channel|>' }}
{%- endif -%}
"""


def tensor_shapes(n_vocab):
    shapes = {"model.embed_tokens.weight": [n_vocab, DIM], "model.norm.weight": [DIM]}
    for i in range(N_LAYERS):
        hd = FULL_HEAD_DIM if i == N_LAYERS - 1 else HEAD_DIM
        layer = {
            "input_layernorm.weight": [DIM], "post_attention_layernorm.weight": [DIM],
            "pre_feedforward_layernorm.weight": [DIM], "post_feedforward_layernorm.weight": [DIM],
            "layer_scalar": [1], "self_attn.q_norm.weight": [hd], "self_attn.k_norm.weight": [hd],
            "self_attn.q_proj.weight": [HEADS * hd, DIM],
            "self_attn.k_proj.weight": [KV_HEADS * hd, DIM],
            "self_attn.v_proj.weight": [KV_HEADS * hd, DIM],
            "self_attn.o_proj.weight": [DIM, HEADS * hd], "mlp.gate_proj.weight": [FF_DIM, DIM],
            "mlp.up_proj.weight": [FF_DIM, DIM], "mlp.down_proj.weight": [DIM, FF_DIM]
        }
        shapes.update({"model.layers.%d.%s" % (i, k): v for k, v in layer.items()})
    return shapes


def config(n_vocab):
    return {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "head_dim": HEAD_DIM,
        "global_head_dim": FULL_HEAD_DIM, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": DIM, "hidden_size_per_layer_input": 0, "intermediate_size": FF_DIM,
        "layer_types": ["sliding_attention", "full_attention"], "max_position_embeddings": 8192,
        "num_attention_heads": HEADS, "num_hidden_layers": N_LAYERS,
        "num_key_value_heads": KV_HEADS, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-6,
        "sliding_window": 128, "tie_word_embeddings": True, "vocab_size": n_vocab,
        "dtype": "bfloat16"
    }


def token_id(name):
    return spoken.read_tokenizer(CONTROL)[1][name]


def folder():
    """Make the model's folder."""
    return spoken.make_folder("gemma4", sys.modules[__name__], TEMPLATE)
