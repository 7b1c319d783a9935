/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers of the Open Inference Protocol: one text, or a tensor of texts. */
#include "front/answer/answer.h"

#include <string.h>

#include "base/must.h"

/* {"model_name":...,"model_version":"1", */
static void kserve_head(const struct exchange *x, struct buf *b)
{
    buf_add_text(b, "{\"model_name\":");
    buf_add_json_string(b, x->model, strlen(x->model));
    buf_add_text(b, ",\"model_version\":\"1\",\"id\":");
    if (x->request != NULL)
        buf_add_json_string(b, x->request->text, x->request->text_len);
    else
        buf_add_json_string(b, x->id, strlen(x->id));
}

void answer_kserve_body(struct exchange *x)
{
    struct buf buf = {0};

    must(x->shape == SHAPE_KSERVE && !x->stream);
    kserve_head(x, &buf);
    if (x->tensors)
        buf_printf(&buf,
                   ",\"outputs\":[{\"name\":\"text_output\",\"datatype\":\"BYTES\",\"shape\":[%d],"
                   "\"data\":[",
                   x->n_gens);
    else
        buf_add_text(&buf, ",\"text_output\":");
    for (int i = 0; i < x->n_gens; i++) {
        buf_add_comma(&buf, i > 0);
        buf_add_json_string(&buf, buf_text(&x->gens[i].text), x->gens[i].text.len);
    }
    buf_add_text(&buf, x->tensors ? "]}]}" : "}");
    exchange_reply_json(x, &buf);
}
