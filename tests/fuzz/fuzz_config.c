/* SPDX-License-Identifier: Apache-2.0
 *
 * Any bytes as config.json: refused, or numbers within their bounds. */
#include <stdint.h>

#include "base/log.h"
#include "base/must.h"
#include "model/hf_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t len)
{
    struct hf_config c;

    log_set_level((enum log_level)0); /* nothing is logged */
    if (hf_config_parse(&c, "fuzz", (const char *)bytes, len, NULL, 0) == ERR_OK) {
        must(c.n_heads % c.n_kv_heads == 0);
        must(c.head_dim % 2 == 0 && c.head_dim <= 256);
        must(c.n_eos <= HF_CONFIG_EOS_MAX);
    }
    return 0;
}
