#compdef quire
# Made by tools/make-completion: change that, not this file.
local words_of_command=
case $CURRENT,${words[2]-} in
    2,*)
        words_of_command="batch bench cache chat doctor eval generate plan quantize serve top --help"
        ;;
    *,batch)
        words_of_command="
            --admin-key-file --api-key --cache-per-key --chat-template
            --chat-template-content-format --client-priority-min --client-retention-max
            --client-special-tokens --client-stall-s --concurrency --config --convert
            --cpu-inputs --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --default-chat-template-kwargs --device --disable-custom-all-reduce
            --drain-timeout-s --enable-expert-parallel --enable-force-include-usage
            --enable-lora --enable-prefix-caching --engine-socket --engine-wait-ms
            --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --health-stall-s --help --hf-overrides --input-file
            --itl-target-ms --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes
            --kv-host-file --kv-retained-pct --kv-store-bytes --kv-store-dir
            --kv-store-reserve-bytes --lane-arena-bytes --lane-slots --listen --load-format
            --log-level --long-prefill-token-threshold --lora-dir --lora-modules
            --mamba-ssm-cache-dtype --master-addr --master-port --max-body-bytes --max-choices
            --max-cpu-loras --max-lanes --max-logprobs --max-lora-rank --max-loras
            --max-model-len --max-num-batched-tokens --max-num-queued-reqs
            --max-num-queued-tokens --max-num-seqs --max-stop-strings --model --models-dir
            --models-max --models-memory --models-run --nnodes --node-rank --num-pages
            --otlp-traces-endpoint --output-file --override-generation-config
            --override-pooler-config --page-tokens --pipeline-parallel-size --pooler-config
            --quantization --queue-timeout-s --reasoning-parser --response-role
            --responses-bytes --responses-days --responses-dir --return-tokens-as-token-ids
            --runner --served-model-name --sleep-after-s --speculative-config
            --split-special-tokens --task --tensor-parallel-size --tokenizer-cache-dir
            --tool-call-parser --url --wake-timeout-s"
        ;;
    *,bench)
        words_of_command="
            --admin-key-file --api-key --backend --base-url --burstiness --cache-per-key
            --chat-template --chat-template-content-format --client-priority-min
            --client-retention-max --client-special-tokens --client-stall-s --config --convert
            --cpu-inputs --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --dataset-name --dataset-path --default-chat-template-kwargs --device
            --disable-custom-all-reduce --drafts --drain-timeout-s --enable-expert-parallel
            --enable-force-include-usage --enable-lora --enable-prefix-caching --endpoint
            --engine-socket --engine-wait-ms --extra-body --front-threads --gemm-table
            --generation-config --goodput --gpu-inputs --gpu-memory-utilization
            --health-stall-s --help --hf-overrides --host --ignore-eos --input-len
            --itl-target-ms --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes
            --kv-host-file --kv-retained-pct --kv-store-bytes --kv-store-dir
            --kv-store-reserve-bytes --label --lane-arena-bytes --lane-slots --listen
            --load-format --log-level --long-prefill-token-threshold --lora-adapters --lora-dir
            --lora-modules --lora-rank --mamba-ssm-cache-dtype --master-addr --master-port
            --max-body-bytes --max-choices --max-concurrency --max-cpu-loras --max-lanes
            --max-logprobs --max-lora-rank --max-loras --max-model-len --max-num-batched-tokens
            --max-num-queued-reqs --max-num-queued-tokens --max-num-seqs --max-stop-strings
            --metric-percentiles --model --models-dir --models-max --models-memory --models-run
            --nnodes --node-rank --num-pages --num-prompts --num-warmups --otlp-traces-endpoint
            --output-len --override-generation-config --override-pooler-config --page-tokens
            --pipeline-parallel-size --pooler-config --port --quantization --queue-timeout-s
            --random-input-len --random-output-len --random-prefix-len --random-range-ratio
            --random-vocab-size --read-limit --reasoning-parser --request-rate --response-role
            --responses-bytes --responses-days --responses-dir --result --result-dir
            --result-filename --return-tokens-as-token-ids --runner --save-detailed
            --save-result --seed --served-model-name --sharegpt-output-len --sleep-after-s
            --speculative-config --split-special-tokens --task --temperature
            --tensor-parallel-size --tokenizer-cache-dir --tool-call-parser --url
            --wake-timeout-s"
        ;;
    *,cache)
        words_of_command="
            --help --host --json --limit --name --space --summary --verify"
        ;;
    *,chat)
        words_of_command="
            --admin-key-file --api-key --cache-per-key --chat-template
            --chat-template-content-format --client-priority-min --client-retention-max
            --client-special-tokens --client-stall-s --config --convert --cpu-inputs
            --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --default-chat-template-kwargs --device --disable-custom-all-reduce
            --drain-timeout-s --enable-expert-parallel --enable-force-include-usage
            --enable-lora --enable-prefix-caching --engine-socket --engine-wait-ms --extra
            --frequency-penalty --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --health-stall-s --help --hf-overrides --itl-target-ms
            --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes --kv-host-file
            --kv-retained-pct --kv-store-bytes --kv-store-dir --kv-store-reserve-bytes
            --lane-arena-bytes --lane-slots --listen --load-format --log-level
            --long-prefill-token-threshold --lora-dir --lora-modules --mamba-ssm-cache-dtype
            --master-addr --master-port --max-body-bytes --max-choices --max-cpu-loras
            --max-lanes --max-logprobs --max-lora-rank --max-loras --max-model-len
            --max-num-batched-tokens --max-num-queued-reqs --max-num-queued-tokens
            --max-num-seqs --max-stop-strings --max-tokens --min-p --model --models-dir
            --models-max --models-memory --models-run --nnodes --node-rank --num-pages
            --otlp-traces-endpoint --override-generation-config --override-pooler-config
            --page-tokens --pipeline-parallel-size --pooler-config --presence-penalty
            --quantization --queue-timeout-s --reasoning-parser --repetition-penalty
            --response-role --responses-bytes --responses-days --responses-dir
            --return-tokens-as-token-ids --runner --seed --served-model-name --sleep-after-s
            --speculative-config --split-special-tokens --system --task --temperature
            --tensor-parallel-size --tokenizer-cache-dir --tool-call-parser --top-k --top-p
            --url --wake-timeout-s"
        ;;
    *,doctor)
        words_of_command="
            --config --help"
        ;;
    *,eval)
        words_of_command="
            --admin-key-file --cache-per-key --chat-template --chat-template-content-format
            --client-priority-min --client-retention-max --client-special-tokens
            --client-stall-s --config --convert --cpu-inputs --cpu-kv-bytes --cpu-threads
            --data-parallel-rank --data-parallel-size --default-chat-template-kwargs --device
            --disable-custom-all-reduce --drain-timeout-s --enable-expert-parallel
            --enable-force-include-usage --enable-lora --enable-prefix-caching --engine-socket
            --engine-wait-ms --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --health-stall-s --help --hf-overrides --itl-target-ms
            --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes --kv-host-file
            --kv-retained-pct --kv-store-bytes --kv-store-dir --kv-store-reserve-bytes
            --lane-arena-bytes --lane-slots --len --listen --load-format --log-level
            --long-prefill-token-threshold --lora-dir --lora-modules --mamba-ssm-cache-dtype
            --master-addr --master-port --max-body-bytes --max-choices --max-cpu-loras
            --max-lanes --max-logprobs --max-lora-rank --max-loras --max-model-len
            --max-num-batched-tokens --max-num-queued-reqs --max-num-queued-tokens
            --max-num-seqs --max-stop-strings --model --models-dir --models-max --models-memory
            --models-run --nnodes --node-rank --num-pages --otlp-traces-endpoint
            --override-generation-config --override-pooler-config --page-tokens
            --pipeline-parallel-size --pooler-config --quantization --queue-timeout-s
            --reasoning-parser --response-role --responses-bytes --responses-days
            --responses-dir --return-tokens-as-token-ids --runner --served-model-name
            --sleep-after-s --speculative-config --split-special-tokens --task
            --tensor-parallel-size --tokenizer-cache-dir --tool-call-parser --wake-timeout-s"
        ;;
    *,generate)
        words_of_command="
            --admin-key-file --api-key --cache-per-key --chat-template
            --chat-template-content-format --client-priority-min --client-retention-max
            --client-special-tokens --client-stall-s --concurrency --config --convert
            --cpu-inputs --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --default-chat-template-kwargs --device --disable-custom-all-reduce
            --drain-timeout-s --enable-expert-parallel --enable-force-include-usage
            --enable-lora --enable-prefix-caching --engine-socket --engine-wait-ms --extra
            --frequency-penalty --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --health-stall-s --help --hf-overrides --itl-target-ms
            --json --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes --kv-host-file
            --kv-retained-pct --kv-store-bytes --kv-store-dir --kv-store-reserve-bytes
            --lane-arena-bytes --lane-slots --listen --load-format --log-level
            --long-prefill-token-threshold --lora-dir --lora-modules --mamba-ssm-cache-dtype
            --master-addr --master-port --max-body-bytes --max-choices --max-cpu-loras
            --max-lanes --max-logprobs --max-lora-rank --max-loras --max-model-len
            --max-num-batched-tokens --max-num-queued-reqs --max-num-queued-tokens
            --max-num-seqs --max-stop-strings --max-tokens --min-p --model --models-dir
            --models-max --models-memory --models-run --nnodes --node-rank --num-pages
            --otlp-traces-endpoint --override-generation-config --override-pooler-config
            --page-tokens --pipeline-parallel-size --pooler-config --presence-penalty --prompt
            --quantization --queue-timeout-s --raw --reasoning-parser --repetition-penalty
            --response-role --responses-bytes --responses-days --responses-dir
            --return-tokens-as-token-ids --runner --seed --served-model-name --sleep-after-s
            --speculative-config --split-special-tokens --system --task --temperature
            --tensor-parallel-size --tokenizer-cache-dir --tool-call-parser --top-k --top-p
            --url --wake-timeout-s"
        ;;
    *,plan)
        words_of_command="
            --admin-key-file --cache-per-key --card --chat-template
            --chat-template-content-format --client-priority-min --client-retention-max
            --client-special-tokens --client-stall-s --config --convert --cpu-inputs
            --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --default-chat-template-kwargs --device --disable-custom-all-reduce
            --drain-timeout-s --enable-expert-parallel --enable-force-include-usage
            --enable-lora --enable-prefix-caching --engine-socket --engine-wait-ms
            --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --health-stall-s --help --hf-overrides --itl-target-ms
            --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes --kv-host-file
            --kv-retained-pct --kv-store-bytes --kv-store-dir --kv-store-reserve-bytes
            --lane-arena-bytes --lane-slots --len --listen --load-format --log-level
            --long-prefill-token-threshold --lora-dir --lora-modules --mamba-ssm-cache-dtype
            --master-addr --master-port --max-body-bytes --max-choices --max-cpu-loras
            --max-lanes --max-logprobs --max-lora-rank --max-loras --max-model-len
            --max-num-batched-tokens --max-num-queued-reqs --max-num-queued-tokens
            --max-num-seqs --max-stop-strings --model --models-dir --models-max --models-memory
            --models-run --nnodes --node-rank --num-pages --otlp-traces-endpoint
            --override-generation-config --override-pooler-config --page-tokens
            --pipeline-parallel-size --pooler-config --quantization --queue-timeout-s
            --reasoning-parser --response-role --responses-bytes --responses-days
            --responses-dir --return-tokens-as-token-ids --runner --served-model-name
            --sleep-after-s --speculative-config --split-special-tokens --task
            --tensor-parallel-size --tokenizer-cache-dir --tool-call-parser --wake-timeout-s"
        ;;
    *,quantize)
        words_of_command="
            --admin-key-file --cache-per-key --calibrate --calibrate-tokens --chat-template
            --chat-template-content-format --client-priority-min --client-retention-max
            --client-special-tokens --client-stall-s --config --convert --cpu-inputs
            --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --default-chat-template-kwargs --device --disable-custom-all-reduce
            --drain-timeout-s --enable-expert-parallel --enable-force-include-usage
            --enable-lora --enable-prefix-caching --engine-socket --engine-wait-ms
            --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --group --health-stall-s --help --hf-overrides
            --itl-target-ms --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes
            --kv-host-file --kv-retained-pct --kv-store-bytes --kv-store-dir
            --kv-store-reserve-bytes --lane-arena-bytes --lane-slots --listen --load-format
            --log-level --long-prefill-token-threshold --lora-dir --lora-modules
            --mamba-ssm-cache-dtype --master-addr --master-port --max-body-bytes --max-choices
            --max-cpu-loras --max-lanes --max-logprobs --max-lora-rank --max-loras
            --max-model-len --max-num-batched-tokens --max-num-queued-reqs
            --max-num-queued-tokens --max-num-seqs --max-stop-strings --model --models-dir
            --models-max --models-memory --models-run --nnodes --node-rank --num-pages
            --otlp-traces-endpoint --out --override-generation-config --override-pooler-config
            --page-tokens --pipeline-parallel-size --pooler-config --quantization
            --queue-timeout-s --reasoning-parser --response-role --responses-bytes
            --responses-days --responses-dir --return-tokens-as-token-ids --runner
            --served-model-name --sleep-after-s --speculative-config --split-special-tokens
            --task --tensor-parallel-size --text --threads --to --tokenizer-cache-dir
            --tool-call-parser --wake-timeout-s"
        ;;
    *,serve)
        words_of_command="
            --admin-key-file --allowed-origins --api-key --api-server-count --cache-per-key
            --chat-template --chat-template-content-format --client-priority-min
            --client-retention-max --client-special-tokens --client-stall-s --config --convert
            --cpu-inputs --cpu-kv-bytes --cpu-threads --data-parallel-rank --data-parallel-size
            --default-chat-template-kwargs --device --disable-custom-all-reduce
            --drain-timeout-s --enable-expert-parallel --enable-force-include-usage
            --enable-log-requests --enable-lora --enable-prefix-caching --engine-socket
            --engine-wait-ms --front-threads --gemm-table --generation-config --gpu-inputs
            --gpu-memory-utilization --health-stall-s --help --hf-overrides --host
            --itl-target-ms --keepalive-s --kernels --kv-cache-dtype --kv-host-bytes
            --kv-host-file --kv-retained-pct --kv-store-bytes --kv-store-dir
            --kv-store-reserve-bytes --lane-arena-bytes --lane-slots --listen --load-format
            --log-level --long-prefill-token-threshold --lora-dir --lora-modules
            --mamba-ssm-cache-dtype --master-addr --master-port --max-body-bytes --max-choices
            --max-cpu-loras --max-lanes --max-logprobs --max-lora-rank --max-loras
            --max-model-len --max-num-batched-tokens --max-num-queued-reqs
            --max-num-queued-tokens --max-num-seqs --max-stop-strings --metrics-from --model
            --models-dir --models-max --models-memory --models-run --nnodes --no --no-page
            --node-rank --num-pages --otlp-traces-endpoint --override-generation-config
            --override-pooler-config --page-tokens --pipeline-parallel-size --pooler-config
            --port --quantization --queue-timeout-s --reasoning-parser --response-role
            --responses-bytes --responses-days --responses-dir --return-tokens-as-token-ids
            --runner --served-model-name --sleep-after-s --speculative-config
            --split-special-tokens --ssl-certfile --ssl-keyfile --task --tensor-parallel-size
            --tokenizer-cache-dir --tool-call-parser --uds --wake-timeout-s"
        ;;
    *,top)
        words_of_command="
            --engine-socket --help --once --seconds"
        ;;
esac
if ((CURRENT == 2)) || [[ $PREFIX == -* ]]; then
    compadd -- ${=words_of_command}
else
    _files
fi
