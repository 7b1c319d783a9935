#!/usr/bin/env python3
"""What vLLM's dashboards and gateways ask of /metrics has an answer, with their labels, and what the
requests of this test make of it: one of a plain prompt, one of three choices, one from the cache, one
from host memory."""

import os
import time

from harness import Stack, Tap, need_nginx, until

need_nginx()
tap = Tap()
TEXT = "/v1/completions"

# Series that its three dashboards, its production example and the inference gateway read.
HISTOGRAMS = """time_to_first_token_seconds inter_token_latency_seconds e2e_request_latency_seconds
    request_queue_time_seconds request_inference_time_seconds request_prefill_time_seconds
    request_decode_time_seconds request_time_per_output_token_seconds request_prompt_tokens
    request_generation_tokens request_max_num_generation_tokens request_params_n
    request_params_max_tokens request_prefill_kv_computed_tokens iteration_tokens_total""".split()
VALUES = """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total gpu_cache_usage_perc
    prompt_tokens_total generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total
    prompt_tokens_cached_total cache_config_info
    num_requests_waiting_by_reason{reason="capacity"} num_requests_waiting_by_reason{reason="deferred"}
    prompt_tokens_by_source_total{source="local_compute"}
    prompt_tokens_by_source_total{source="local_cache_hit"}
    prompt_tokens_by_source_total{source="external_kv_transfer"}
    request_success_total{finished_reason="stop"} request_success_total{finished_reason="length"}
    request_success_total{finished_reason="abort"} engine_sleep_state{sleep_state="awake"}""".split()
PROCESS = """cpu_seconds_total resident_memory_bytes virtual_memory_bytes start_time_seconds open_fds
    max_fds""".split()


def find(m, name):
    """The value of a series by its name and some of its labels, engine and model among them."""
    base, _, labels = name.partition("{")
    want = [x for x in labels.rstrip("}").split(",") if x] + ['engine="0"', 'model_name="demo"']
    found = [v for k, v in m.items()
             if k.split("{")[0] == base and all(w in k for w in want)]
    return found[0] if len(found) == 1 else None


with Stack(host="8M", n_fronts=2) as s:
    m = s.metrics()
    missing = ["vllm:%s_%s" % (h, x) for h in HISTOGRAMS for x in ("sum", "count")
               if find(m, "vllm:%s_%s" % (h, x)) is None]
    missing += [h for h in HISTOGRAMS if find(m, 'vllm:%s_bucket{le="+Inf"}' % h) is None]
    missing += [v for v in VALUES if find(m, "vllm:" + v) is None]
    missing += [p for p in PROCESS if find(m, "process_" + p) is None]
    tap.eq(missing, [], "every series that is asked for is there")
    info = [k for k in m if k.startswith("vllm:cache_config_info")]
    tap.ok(len(info) == 1 and 'block_size="16"' in info[0] and 'num_gpu_blocks="' in info[0] and
           'enable_prefix_caching="True"' in info[0], "the cache's settings are labels", info)

    before = m
    text = "Once upon a time there was a small lantern on a bridge. " * 6
    n = s.post(TEXT, s.completion(text, max_tokens=7, ignore_eos=True)).json["usage"]["prompt_tokens"]
    s.post(TEXT, s.completion("Hello", max_tokens=9, n=3, temperature=1, seed=3, ignore_eos=True))
    cached = s.post(TEXT, s.completion(text, max_tokens=5, ignore_eos=True)).json["usage"][
        "prompt_tokens_details"]["cached_tokens"]
    m = s.metrics()

    def grew(name):
        return find(m, name) - find(before, name)
    tap.eq(grew("vllm:request_max_num_generation_tokens_count"), 3, "three requests")
    tap.eq(grew("vllm:request_max_num_generation_tokens_sum"), 7 + 9 + 5, "of the longest choices")
    tap.eq((grew("vllm:request_params_n_sum"), grew("vllm:request_params_n_count")), (5, 3), "n")
    tap.eq((grew("vllm:request_generation_tokens_count"), grew("vllm:request_generation_tokens_sum")),
           (5, 7 + 27 + 5), "five choices")
    tap.eq(grew("vllm:request_params_max_tokens_sum"), 7 + 27 + 5, "max_tokens of each choice")
    tap.ok(cached > 0 and grew('vllm:prompt_tokens_by_source_total{source="local_cache_hit"}') >= cached
           and grew("vllm:prompt_tokens_cached_total") >= cached, "cached tokens by source")
    tap.eq(sum(grew('vllm:prompt_tokens_by_source_total{source="%s"}' % x) for x in
               ("local_compute", "local_cache_hit", "external_kv_transfer")),
           grew("vllm:prompt_tokens_total"), "the sources add up to the prompts")
    tap.ok(grew("vllm:request_inference_time_seconds_sum") <=
           grew("vllm:e2e_request_latency_seconds_sum") and
           grew("vllm:request_inference_time_seconds_count") == 5, "inference is part of the whole")
    tap.eq(grew("vllm:request_time_per_output_token_seconds_count"), 5, "time per token, per choice")

    pid = s.engine.pid
    with open("/proc/%d/stat" % pid) as f:
        rss = int(f.read().rsplit(")", 1)[1].split()[21]) * os.sysconf("SC_PAGESIZE")
    ok = until(lambda: s.metric("process_open_fds") == len(os.listdir("/proc/%d/fd" % pid)), 10)
    m = s.metrics()
    tap.ok(ok, "descriptors of the engine", find(m, "process_open_fds"))
    tap.ok(rss / 2 < find(m, "process_resident_memory_bytes") < rss * 2 and
           abs(find(m, "process_start_time_seconds") - time.time()) < 600 and
           find(m, "process_cpu_seconds_total") > 0, "its memory, start and CPU time",
           {k: v for k, v in m.items() if k.startswith("process_")})

    s.engine.kill()  # the next life finds the prompt in host memory
    until(lambda: len(s.engine.exits) == 1 and s.get("/health").status == 200)
    until(lambda: s.metric("quire:fronts_attached") == 2)
    r = s.post(TEXT, s.completion(text, max_tokens=1)).json["usage"]
    name = 'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}'
    until(lambda: find(s.metrics(), name))  # a front may still show the dead engine's page
    got = find(s.metrics(), name)
    tap.ok(0 < got <= r["prompt_tokens_details"]["cached_tokens"],
           "tokens from host memory count as fetched", (got, r))

tap.done()
