#!/bin/bash
# Goal: quire plan foretells what an engine logs at its start. Method: its figures beside those that
# engines logged on one and two H200s, within 3%; the demo model; wrong arguments.
quire=${builddir:-.}/quire
shapes=${srcdir:-.}/tests/bench
n=0

check() {
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

# near NAME WANTED-MiB GOT-GiB
near() {
    awk -v want="$2" -v got="$3" 'BEGIN {d = got * 1024 - want; exit !(d * d <= (0.03 * want + 52) ^ 2)}'
    check $? "$1: $3 GiB, an engine logged $2 MiB"
}

# figures FOLDER GPUS FORMAT...: weights, work and KV of a row
figures() {
    local folder=$1 gpus=$2
    shift 2
    "$quire" plan "$shapes/$folder" --max-model-len 4096 --len 2048 |
        sed -n "s/^$gpus  *$*  *//p" | awk '{print $1, $2, $3}'
}

read -r weights work kv <<<"$(figures llama-3.1-8b 1 'as the folder')"
near "8B bf16, weights" 15317 "$weights"
near "8B bf16, KV" 111640 "$kv"
read -r weights work kv <<<"$(figures llama-3.3-70b 2 'as the folder')"
near "70B bf16 on two, weights" 136577 "$weights"
near "70B bf16 on two, work" 2986 "$work"
read -r weights work kv <<<"$(figures llama-3.3-70b 2 'fp8, KV fp8')"
near "70B FP8 on two, weights" 71328 "$weights"
near "70B FP8 on two, work" 3217 "$work"
"$quire" plan "$shapes/llama-3.1-8b" | awk '$2 == "as" {tokens[$1] = $(NF - 1)}
    END {exit !(tokens[2] > 2 * tokens[1] && tokens[4] > 2 * tokens[2])}'
check $? "twice the GPUs hold more than twice the tokens"
out=$("$quire" plan "$shapes/llama-3.3-70b" --card h100)
grep -q "^1 *as the folder *does not fit$" <<<"$out"
check $? "70B in bf16 does not fit one H100"
grep -q "^the smallest that works: 2 GPUs" <<<"$out"
check $? "two are the smallest that works"
out=$("$quire" plan "${srcdir:-.}/tests/golden/llama-scaled" --len 16)
grep -q "^2 .*cannot be divided so$" <<<"$out"
check $? "heads that two GPUs cannot share are told"
"$quire" plan "$shapes/llama-3.1-8b" --card 24 | grep -q "^1 *as the folder *15.0 "
check $? "a card by its memory"
out=$("$quire" plan "$shapes/llama-3.3-70b" --pipeline-parallel-size 2 --max-model-len 4096)
awk '$1 == 2 && $2 == "as" {exit !($5 > 125 && $5 < 140)}' <<<"$out"
check $? "two stages have the weights of one model"
grep -q "^the smallest that works: 2 GPUs" <<<"$out"
check $? "and work on two GPUs"
# ModelOpt's mix: MLPs of NVFP4 and attention of FP8 in one half of the layers, MLPs of FP8 and plain
# attention in the other: 16 x (41.9 M x (1 + 2) + 176.2 M x (9/16 + 1)) + 2.1 G bytes
mixed=$(mktemp -d)
python3 - "$shapes/llama-3.1-8b/config.json" >"$mixed/config.json" <<'END'
import json, sys
config = json.load(open(sys.argv[1], encoding="utf-8"))
layers = {}
for i in range(32):
    for name in ("gate_proj", "up_proj", "down_proj"):
        layers["model.layers.%d.mlp.%s" % (i, name)] = {"quant_algo": "NVFP4" if i < 16 else "FP8"}
    for name in "qkvo" if i < 16 else "":
        layers["model.layers.%d.self_attn.%s_proj" % (i, name)] = {"quant_algo": "FP8"}
config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
                                 "quantized_layers": layers}
json.dump(config, sys.stdout)
END
read -r weights work kv <<<"$("$quire" plan "$mixed" --max-model-len 4096 --len 2048 |
    sed -n "s/^1  *as the folder  *//p" | awk '{print $1, $2, $3}')"
awk -v got="$weights" 'BEGIN {exit !(got * 1024 > 8000 && got * 1024 < 8300)}'
check $? "8B in a mix of FP8 and NVFP4, weights: $weights GiB of 7.9"
rm -rf "$mixed"
# 35B-A3B's MTP layer in FP8: 0.75 GiB of experts (256 of 3 x 2048 x 512), 0.47 GiB of the output matrix, and work
# areas; a token's keys and values are 2 heads of 256, one byte each.
out=$("$quire" plan "$shapes/qwen3.6-35b-a3b" --max-model-len 4096 --speculative-config '{"method": "mtp"}')
plain=$("$quire" plan "$shapes/qwen3.6-35b-a3b" --max-model-len 4096)
beside=$(sed -n 's/^the drafter takes \([0-9.]*\) GiB .* and \([0-9.]*\) KiB more a token.*/\1 \2/p' <<<"$out")
awk '{exit !($1 > 1.4 && $1 < 6 && $2 == 1.0)}' <<<"$beside"
check $? "an MTP layer with experts, in FP8: $beside"
[ "$(awk '$1 == 1 && $2 == "as" {print $(NF - 1)}' <<<"$out")" -lt \
    "$(awk '$1 == 1 && $2 == "as" {print $(NF - 1)}' <<<"$plain")" ]
check $? "fewer tokens fit beside it"
for args in "" "/nowhere" "$shapes/llama-3.1-8b --card x" "$shapes/llama-3.1-8b --len 0" \
    "$shapes/llama-3.1-8b --speculative-config {\"method\":\"mtp\"}" \
    "$shapes/llama-3.1-8b --len 200000" "$shapes/llama-3.1-8b --no-such-thing 1"; do
    # shellcheck disable=SC2086 # words on purpose
    "$quire" plan $args >/dev/null 2>&1
    check $((! $?)) "refused: plan ${args//$shapes\//}"
done
"$quire" plan --help | grep -q -- --card
check $? "the help names the options"
echo "1..$n"
