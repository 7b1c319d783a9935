/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine's settings as options of a model, for all programs that open one. A wrong value is
 * reported by the part that knows its range. */
#include <string.h>

#include "base/settings.h"
#include "model/model.h"

struct model_options model_options_of(const struct settings *settings)
{
    bool adapts =
        settings->enable_lora || settings->lora_modules[0] != '\0' || settings->lora_dir[0] != '\0';

    return (struct model_options){
        .dir = settings->model,
        .hf_overrides = settings->hf_overrides,
        .device = settings->device,
        .kernels = settings->kernels,
        .dummy_weights = strcmp(settings->load_format, "dummy") == 0,
        .quantization = settings->quantization,
        .kv_cache_dtype = settings->kv_cache_dtype,
        .state_dtype = settings->mamba_ssm_cache_dtype,
        .gemm_table = settings->gemm_table,
        .cpu_threads = settings->cpu_threads,
        .cpu_inputs = settings->cpu_inputs,
        .gpu_inputs = settings->gpu_inputs,
        .n_ranks = settings->tensor_parallel_size,
        .n_stages = settings->pipeline_parallel_size,
        .n_nodes = settings->nnodes,
        .node_rank = settings->node_rank,
        .master_addr = settings->master_addr,
        .master_port = settings->master_port,
        .uses_nccl = settings->disable_custom_all_reduce,
        .whole_experts = settings->enable_expert_parallel,
        .n_adapters = adapts ? settings->max_loras : 0,
        .adapter_rank = settings->max_lora_rank,
        .page_tokens = settings->page_tokens,
        .max_num_seqs = settings->max_num_seqs,
        .max_num_batched_tokens = settings->max_num_batched_tokens,
        .max_model_len = settings->max_model_len,
        .num_pages = settings->num_pages,
        .gpu_memory_utilization = settings->gpu_memory_utilization,
        .cpu_kv_bytes = settings->cpu_kv_bytes,
    };
}
