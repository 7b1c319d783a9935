/* SPDX-License-Identifier: Apache-2.0
 *
 * Watching the inputs of products, for calibration: the device tells which matrix a product has,
 * and the weights' places tell which input that is. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "model/model_parts.h"

static const struct k_matrix *watch_matrix(const struct layer_weights *l, enum model_input input)
{
    switch (input) {
    case MODEL_INPUT_MIXER: return &l->mixer_in;
    case MODEL_INPUT_MIXER_OUT: return &l->mixer_out;
    case MODEL_INPUT_FFN: return &l->ffn_in;
    case MODEL_INPUT_DOWN: return &l->down;
    case MODEL_INPUTS: break;
    }
    return NULL;
}

/* A search among all layers costs nothing beside a product. */
static void watch_product(void *context, const struct k_matrix *w, const float *x, int n)
{
    const struct model *m = context;
    const struct weights *weights = &m->ranks.at[0].weights;

    for (int layer = 0; layer < m->shape.n_layers; layer++) {
        for (int input = 0; input < MODEL_INPUTS; input++) {
            const struct k_matrix *own =
                watch_matrix(&weights->layers[layer], (enum model_input)input);

            if (own->data != NULL && own->data == w->data) {
                m->watch(m->watch_context, layer, (enum model_input)input, x, n, w->n_in);
                return;
            }
        }
    }
}

int model_watch(struct model *m, model_watch_fn *fn, void *context)
{
    if (m->shape.is_gpu || m->ranks.n != 1) {
        log_error("model: inputs of products can be watched on one cpu device only");
        return ERR_UNSUPPORTED;
    }
    m->watch = fn;
    m->watch_context = context;
    m->device->watch = watch_product;
    m->device->watch_context = m;
    return ERR_OK;
}

/* Is it the pattern's tensor of this layer? Checkpoints put other prefixes in place of "model.". */
static bool watch_names(const char *pattern, int layer, const char *tensor)
{
    char name[400];
    const char *number = pattern != NULL ? strstr(pattern, "%d") : NULL;
    size_t n, len = strlen(tensor);

    if (number == NULL)
        return false;
    if (strncmp(pattern, "model.", 6) == 0)
        pattern += 6;
    n = (size_t)snprintf(name, sizeof name, "%.*s%d%s", (int)(number - pattern), pattern, layer,
                         number + 2);
    return n < sizeof name && n <= len && strcmp(tensor + len - n, name) == 0 &&
           (n == len || tensor[len - n - 1] == '.');
}

bool model_input_of(const struct model *m, const char *tensor, int layer, enum model_input *input)
{
    const struct arch_names *a = &m->config.form.names;
    const struct {
        const char *pattern;
        enum model_input input;
    } names[] = {{a->q, MODEL_INPUT_MIXER},
                 {a->k, MODEL_INPUT_MIXER},
                 {a->v, MODEL_INPUT_MIXER},
                 {a->qkv, MODEL_INPUT_MIXER},
                 {a->mixer_in, MODEL_INPUT_MIXER},
                 {a->o, MODEL_INPUT_MIXER_OUT},
                 {a->mixer_out, MODEL_INPUT_MIXER_OUT},
                 {a->gate, MODEL_INPUT_FFN},
                 {a->up, MODEL_INPUT_FFN},
                 {a->gate_up, MODEL_INPUT_FFN},
                 {a->shared_gate, MODEL_INPUT_FFN},
                 {a->shared_up, MODEL_INPUT_FFN},
                 {a->down, MODEL_INPUT_DOWN},
                 {a->shared_down, MODEL_INPUT_DOWN}};

    if (m->config.is_twin && layer % 2 == 0) /* Mamba-2, whose inputs are not listed */
        return false;
    if (m->config.is_twin)
        layer /= 2;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (watch_names(names[i].pattern, layer, tensor)) {
            *input = names[i].input;
            return true;
        }
    }
    return false;
}
