/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields that single families have in config.json: what is made of them, and that a value that is
 * not served is refused with one line that names its field. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "model/hf_config.h"
#include "tests/tap.h"

#define SHAPE                                                                                  \
    "\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":8,\"vocab_size\":320," \
    "\"num_key_value_heads\":2,\"intermediate_size\":128,\"max_position_embeddings\":512"
#define OF(name)    "{\"architectures\":[\"" name "\"]," SHAPE

#define OLMO_HYBRID OF("OlmoHybridForCausalLM")

static struct hf_config c;
static char lines[4096];

/* The result of a config; its lines in the log are in `lines`. */
static int parse(const char *text)
{
    FILE *log = tmpfile();
    int kept = dup(STDERR_FILENO), rc;
    size_t n;

    if (log == NULL || kept == -1)
        return -1;
    (void)dup2(fileno(log), STDERR_FILENO);
    rc = hf_config_parse(&c, "config.json", text, strlen(text), NULL, 0);
    (void)dup2(kept, STDERR_FILENO);
    (void)close(kept);
    rewind(log);
    n = fread(lines, 1, sizeof lines - 1, log);
    lines[n] = '\0';
    (void)fclose(log);
    return rc;
}

static const struct {
    const char *text, *named; /* the line has the second */
    int rc;
} refused[] = {
    {OLMO_HYBRID ",\"linear_num_key_heads\":4}", "linear_num_value_heads 8", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_value_head_dim\":257}", "linear_value_head_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_key_head_dim\":0}", "linear_key_head_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_conv_kernel_dim\":\"4\"}", "linear_conv_kernel_dim", ERR_INVALID},
    {OLMO_HYBRID ",\"linear_allow_neg_eigval\":1}", "linear_allow_neg_eigval", ERR_INVALID},
    {OLMO_HYBRID ",\"layer_types\":[\"full_attention\"]}", "layer_types", ERR_INVALID},
    {OLMO_HYBRID ",\"hidden_act\":\"gelu\"}", "hidden_act", ERR_UNSUPPORTED},
};

static void check_refused(void)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        const char *end;

        is_int(parse(refused[i].text), refused[i].rc, "refused: %s", refused[i].named);
        end = strchr(lines, '\n');
        ok(end != NULL && end[1] == '\0' && strstr(lines, refused[i].named) != NULL,
           "with one line that names it");
    }
}

static void check_olmo_hybrid(void)
{
    is_int(parse(OLMO_HYBRID "}"), ERR_OK, "an OLMo hybrid with the defaults of its class");
    ok(c.layer_kinds[0] == LAYER_DELTA && c.layer_kinds[2] == LAYER_DELTA &&
           c.layer_kinds[3] == LAYER_FULL && c.norms == NORMS_AFTER &&
           c.delta_norms == NORMS_BEFORE,
       "its layers and their norms");
    ok(c.delta.n_k_heads == 8 && c.delta.n_v_heads == 8 && c.delta.k_dim == 6 &&
           c.delta.v_dim == 12 && c.delta.n_taps == 4 && c.delta.doubles && c.host_only != NULL,
       "its states, which a GPU does not compute");
    ok(c.n_ropes == 1 && c.ropes[0].rotary_dim == 0, "no positions");
    is_int(parse(OLMO_HYBRID ",\"rope_theta\":500000.0,\"linear_allow_neg_eigval\":false}"), ERR_OK,
           "one with positions");
    ok(c.ropes[0].rotary_dim == 8 && c.ropes[0].theta == 500000.0 && c.host_only == NULL,
       "and states that keep their signs: as of other families");
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    check_refused();
    check_olmo_hybrid();
    return tap_done();
}
