#!/bin/bash
# Goal: quire bench measures on any machine and says what it does not take, and the fronts' bench
# runs. Method: the demo model on the cpu device, a small run of each kind, and wrong arguments;
# fronts over the engine that plays tokens, where every answer must be whole.
quire=${builddir:-.}/quire
model=${srcdir:-.}/tools/demo-model/model
n=0

check() {
    n=$((n + 1))
    if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi
}

out=$("$quire" bench latency --model "$model" --device cpu --log-level error 2>&1)
check $? "latency ends with 0"
grep -Eq '^decode, 1 sequence, context [0-9]+ to 1152: [0-9.]+ ms a step, [0-9.]+ tok/s' <<<"$out"
check $? "it prints decodes"
grep -Eq '^prefill, 512 tokens: [0-9.]+ ms$' <<<"$out"
check $? "and a prefill"
out=$("$quire" bench throughput --model "$model" --device cpu --log-level error --num-prompts 9 \
    --max-concurrency 4 --input-len 20 --output-len 5 2>&1)
check $? "throughput ends with 0"
grep -Eq '^throughput, 9 requests of 20 in and 5 out, 4 at once: [0-9]+ output tok/s' <<<"$out"
check $? "it prints tokens a second"
for args in "" "speed" "latency --model /nowhere" "throughput --num-prompts 0 --model $model" \
    "latency --model $model --no-such-thing 1"; do
    # shellcheck disable=SC2086 # words on purpose
    "$quire" bench $args >/dev/null 2>&1
    check $((! $?)) "refused: bench ${args/$model/MODEL}"
done
"$quire" bench --help | grep -q -- --max-concurrency
check $? "the help names the options"
if PATH=$PATH:/usr/sbin command -v nginx >/dev/null; then
    out=$("${srcdir:-.}/tests/bench/fronts" "$(realpath "${builddir:-.}")" --repeat 1 --tries 1 \
        --seconds 0.3 --only "chats, 1000 tok/s" 2>&1)
    good=$?
    if [ "$good" != 0 ]; then sed 's/^/# /' <<<"$out" | tail -5; fi
    check "$good" "fronts over a mock engine: all answers are whole"
fi
echo "1..$n"
