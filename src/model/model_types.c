/* SPDX-License-Identifier: Apache-2.0
 *
 * The types of numbers that options ask for: of weights, pages, inputs of products, and states. */
#include "model/model_parts.h"

#include <string.h>

#include "base/gguf.h"
#include "base/log.h"

static bool model_is_set(const char *option)
{
    return option != NULL && option[0] != '\0';
}

/* Does the setting quantization name the format that the checkpoint has anyway? vLLM names some
 * formats by a kernel, too: awq_marlin, modelopt_fp4. */
static bool model_has_format(const struct model *m, const struct model_options *o)
{
    const struct quant_format *kind = m->config.quant.kind;
    const char *method = kind != NULL && kind->method != NULL ? kind->method : "";
    size_t len = strlen(method);

    if (gguf_is_path(o->dir))
        return strcmp(o->quantization, "gguf") == 0;
    if (len > 0 && strncmp(o->quantization, method, len) == 0 &&
        (o->quantization[len] == '\0' || o->quantization[len] == '_'))
        return true;
    return strcmp(method, "mxfp4") == 0 && strcmp(o->quantization, "gpt_oss_mxfp4") == 0;
}

/* Choose the formats of weights, pages and inputs from the settings quantization, kv_cache_dtype
 * and cpu_inputs. */
static int model_choose_formats(struct model *m, const struct model_options *o)
{
    const char *kv = model_is_set(o->kv_cache_dtype) ? o->kv_cache_dtype : "auto";
    bool is_asked = model_is_set(o->quantization);
    bool is_int8 = is_asked && strcmp(o->quantization, "int8") == 0;
    bool rounds_head = is_asked && strcmp(o->quantization, "fp8_all") == 0;
    bool rounds = is_int8 || rounds_head || (is_asked && strcmp(o->quantization, "fp8") == 0);

    if (is_asked && !rounds && !model_has_format(m, o)) {
        log_error("model: quantization \"%s\" is not the checkpoint's format, and none that "
                  "weights are rounded to; use fp8, fp8_all or int8, or leave it empty",
                  o->quantization);
        return ERR_INVALID;
    }
    if (rounds)
        m->layers = k_format_by_row(is_int8 ? K_INT8 : K_E4M3);
    if (rounds_head)
        m->head = k_format_by_row(K_E4M3);
    m->rounds_inputs = model_is_set(o->cpu_inputs) && strcmp(o->cpu_inputs, "int8") == 0;
    if (model_is_set(o->cpu_inputs) && !m->rounds_inputs && strcmp(o->cpu_inputs, "float32") != 0) {
        log_error("model: cpu_inputs \"%s\" is unknown; use int8 or float32", o->cpu_inputs);
        return ERR_INVALID;
    }
    /* K_BF16 means plain: float32 on the cpu device. */
    m->kv_type = K_BF16;
    if (strcmp(kv, "auto") == 0 || strcmp(kv, "bfloat16") == 0)
        return ERR_OK;
    if (strcmp(kv, "fp8") != 0 && strcmp(kv, "fp8_e4m3") != 0) {
        log_error("model: kv_cache_dtype \"%s\" is unknown; use auto or fp8", kv);
        return ERR_INVALID;
    }
    if (!m->device->is_gpu && m->config.latent.kv_rank == 0) {
        log_error("model: kv_cache_dtype fp8 needs the cuda device, but for latent attention; use "
                  "auto on %s",
                  m->device->name);
        return ERR_UNSUPPORTED;
    }
    m->kv_type = K_E4M3;
    return ERR_OK;
}

/* Whether products of many rows round their inputs, from the setting gpu_inputs. */
static int model_choose_inputs(struct model *m, const struct model_options *o)
{
    const char *inputs = model_is_set(o->gpu_inputs) ? o->gpu_inputs : "auto";

    if (strcmp(inputs, "auto") == 0)
        return ERR_OK;
    if (strcmp(inputs, "int8") != 0 && strcmp(inputs, "bf16") != 0) {
        log_error("model: gpu_inputs \"%s\" is unknown; use auto, bf16 or int8", inputs);
        return ERR_INVALID;
    }
    if (m->device->is_gpu)
        m->config.quant.rounds_x = strcmp(inputs, "int8") == 0;
    return ERR_OK;
}

/* Choose the type of states. A model that has none is not refused: a setting may be for several. */
static int model_choose_state_type(struct model *m, const struct model_options *o)
{
    const char *type = model_is_set(o->state_dtype) ? o->state_dtype : "auto";

    if (strcmp(type, "auto") == 0 || strcmp(type, "float32") == 0)
        return ERR_OK;
    if (strcmp(type, "bfloat16") != 0) {
        log_error("model: mamba_ssm_cache_dtype \"%s\" is unknown; use auto, float32 or bfloat16",
                  type);
        return ERR_INVALID;
    }
    m->plan.bf16_states = plan_can_round_states(&m->plan);
    if (!m->plan.bf16_states)
        log_info("model: mamba_ssm_cache_dtype bfloat16 has no effect: no layer has states of the "
                 "delta rule or Mamba-2");
    return ERR_OK;
}

int model_choose_types(struct model *m, const struct model_options *o)
{
    int rc = model_choose_formats(m, o);

    rc = rc == ERR_OK ? model_choose_inputs(m, o) : rc;
    return rc == ERR_OK ? model_choose_state_type(m, o) : rc;
}
