/* SPDX-License-Identifier: Apache-2.0
 *
 * The sentence on an architecture that is not served: the nearest one that is, and what differs.
 *
 * For names that people are likely to try, both are in a table. For any other name the nearest is
 * the one with the fewest edits, and nothing is said of differences. */
#include "model/hf_config.h"

#include <stdio.h>
#include <string.h>

#include "base/near.h"

static const struct {
    const char *name, *near, *differs;
} unserved[] = {
    {"Gemma3nForConditionalGeneration", "Gemma4ForConditionalGeneration",
     "several residual streams and sparse activations"},
    {"DeepseekV4ForCausalLM", "DeepseekV3ForCausalLM",
     "compressed attention of tokens by an index"},
    {"LongcatFlashForCausalLM", "DeepseekV3ForCausalLM",
     "two mixers a layer, and experts that do nothing"},
    {"Glm5NextForConditionalGeneration", "KimiLinearForCausalLM",
     "several residual streams, and attention of tokens by an index"},
    {"Qwen4ExpForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration",
     "several residual streams, and attention of blocks by an index"},
    {"Zamba2ForCausalLM", "BambaForCausalLM", "attention that several layers share"},
    {"FalconMambaForCausalLM", "BambaForCausalLM", "layers of Mamba, and no attention"},
    {"JambaForCausalLM", "BambaForCausalLM", "layers of Mamba"},
    {"MambaForCausalLM", "BambaForCausalLM", "layers of Mamba, and no attention"},
    {"Mamba2ForCausalLM", "BambaForCausalLM", "names of fields and tensors, and no attention"},
    {"FalconForCausalLM", "GPTNeoXForCausalLM", "keys and values of its own arrangement"},
    {"BloomForCausalLM", "GPT2LMHeadModel", "positions as biases of scores"},
    {"MPTForCausalLM", "GPT2LMHeadModel", "positions as biases of scores"},
    {"BertModel", "Qwen3ForCausalLM", "attention in both directions; it is no text generator"},
    {"T5ForConditionalGeneration", "LlamaForCausalLM", "an encoder"},
    {"WhisperForConditionalGeneration", "LlamaForCausalLM", "an encoder of audio"},
};

void arch_near(char *out, size_t cap, const char *name)
{
    const char *nearest = "", *served;
    int least = 2 * NEAR_MAX;

    for (size_t i = 0; i < sizeof unserved / sizeof unserved[0]; i++) {
        if (strcmp(unserved[i].name, name) != 0)
            continue;
        (void)snprintf(out, cap, "the nearest that is served is %s; it differs by %s",
                       unserved[i].near, unserved[i].differs);
        return;
    }
    for (size_t i = 0; (served = arch_name(i)) != NULL; i++) {
        int edits = near_distance(name, served);

        if (edits < least) {
            least = edits;
            nearest = served;
        }
    }
    (void)snprintf(out, cap, "the nearest name that is served is %s", nearest);
}
