/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks get of a checkpoint in e4m3 with a scale for each 128 x 128, on a device that takes
 * the format as it is: bytes and scales of each slice stand where they should. Where slices would
 * cut a block, the numbers are those that the whole blocks mean. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/e4m3.h"
#include "model/plan.h"
#include "model/weights.h"
#include "tests/tap.h"

#define DIM        256 /* of all matrices, on both sides */
#define N_MATRICES 7
#define BLOCKS     2 /* on a side */

static const char *const stems[N_MATRICES] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
static char dir[] = "/tmp/quire-shards-XXXXXX";
static char header[8192];
static uint8_t data[600000];
static size_t header_len, data_len;

static uint8_t code(int matrix, int row, int col)
{
    return (uint8_t)((unsigned)(matrix * 31 + row * 7 + col * 3 + row * col) % 0x7f);
}

static float scale(int matrix, int block_row, int block_col)
{
    return 1.0f + (float)matrix + 0.25f * (float)block_row + 0.5f * (float)block_col;
}

static void add(const char *name, const char *dtype, const char *shape, const void *bytes, size_t n)
{
    memcpy(data + data_len, bytes, n);
    header_len +=
        (size_t)snprintf(header + header_len, sizeof header - header_len,
                         "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                         header_len == 1 ? "" : ",", name, dtype, shape, data_len, data_len + n);
    data_len += n;
}

static void write_model(void)
{
    static float ones[8 * DIM];
    static uint8_t codes[DIM][DIM];
    char name[100], path[100];
    uint64_t len;
    FILE *f;

    header_len = (size_t)snprintf(header, sizeof header, "{");
    add("model.embed_tokens.weight", "F32", "8,256", ones, sizeof ones);
    add("model.norm.weight", "F32", "256", ones, DIM * 4);
    add("model.layers.0.input_layernorm.weight", "F32", "256", ones, DIM * 4);
    add("model.layers.0.post_attention_layernorm.weight", "F32", "256", ones, DIM * 4);
    for (int i = 0; i < N_MATRICES; i++) {
        float scales[BLOCKS][BLOCKS];

        for (int j = 0; j < DIM * DIM; j++)
            codes[j / DIM][j % DIM] = code(i, j / DIM, j % DIM);
        for (int j = 0; j < BLOCKS * BLOCKS; j++)
            scales[j / BLOCKS][j % BLOCKS] = scale(i, j / BLOCKS, j % BLOCKS);
        snprintf(name, sizeof name, "model.layers.0.%s.weight", stems[i]);
        add(name, "F8_E4M3", "256,256", codes, sizeof codes);
        snprintf(name, sizeof name, "model.layers.0.%s.weight_scale_inv", stems[i]);
        add(name, "F32", "2,2", scales, sizeof scales);
    }
    header[header_len] = '}';
    len = header_len + 1;
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(&len, 8, 1, f) != 1 || fwrite(header, len, 1, f) != 1 ||
        fwrite(data, data_len, 1, f) != 1 || fclose(f) != 0)
        exit(1);
}

/* Tensors that stand below one another, and what is cut: rows or columns. */
struct stack {
    int first, n;
    bool by_rows;
};

/* The tensor's row of row r of the rank's part. */
static int row_of(const struct stack *s, int own, int rank, int r)
{
    return s->by_rows ? rank * own + r % own : r;
}

static void check_native(const struct k_matrix *m, struct stack s, int rank, int n_ranks)
{
    int own = DIM / n_ranks, rows = s.by_rows ? own : DIM, cols = s.by_rows ? DIM : own;
    int stride = k_format_scale_cols(&m->format, m->n_in), first_col = s.by_rows ? 0 : rank * own;
    bool same = m->n_out == s.n * rows && m->n_in == cols;
    const uint8_t *bytes = m->data;
    const float *scales = m->scales;

    for (int r = 0; r < m->n_out && same; r++) {
        int i = s.first + r / rows, row = row_of(&s, own, rank, r % rows);

        for (int c = 0; c < cols && same; c++)
            same = bytes[(size_t)r * (size_t)cols + (size_t)c] == code(i, row, first_col + c) &&
                   scales[(size_t)(r / 128 * stride + c / 128)] ==
                       scale(i, row / 128, (first_col + c) / 128);
    }
    ok(same, "rank %d of %d, %s: bytes and scales", rank, n_ranks, stems[s.first]);
}

static void check_converted(const struct k_matrix *m, struct stack s, int rank, int n_ranks)
{
    int own = DIM / n_ranks, rows = s.by_rows ? own : DIM, cols = s.by_rows ? DIM : own;
    int first_col = s.by_rows ? 0 : rank * own;
    bool same = k_format_is_plain(&m->format) && m->n_out == s.n * rows && m->n_in == cols;
    const float *at = m->data;

    for (int r = 0; r < m->n_out && same; r++) {
        int i = s.first + r / rows, row = row_of(&s, own, rank, r % rows);

        for (int c = 0; c < cols && same; c++)
            same = *at++ == k_e4m3_value(code(i, row, first_col + c)) *
                                scale(i, row / 128, (first_col + c) / 128);
    }
    ok(same, "rank %d of %d, %s: converted", rank, n_ranks, stems[s.first]);
}

static bool takes_all(struct device *d, const struct k_matrix *m)
{
    (void)d, (void)m;
    return true;
}

static void check_ranks(const struct hf_config *c, const struct plan *whole, int n_ranks)
{
    static struct device_ops ops;
    struct weights_rank ranks[4];
    struct weights w[4];
    struct plan part;

    for (int i = 0; i < n_ranks; i++) {
        ranks[i] = (struct weights_rank){.weights = &w[i], .share = i, .is_last = true};
        if (device_open(&ranks[i].device, "cpu", i, 1) != ERR_OK)
            exit(1);
        ops = *ranks[i].device->ops;
        ops.takes = takes_all;
        ranks[i].device->ops = &ops;
    }
    is_int(plan_split(&part, whole, n_ranks, false), ERR_OK, "%d ranks", n_ranks);
    is_int(weights_load(&(struct weights_ranks){ranks, n_ranks, 1}, c, whole, &part,
                        &(struct weights_source){.dir = dir}),
           ERR_OK, "loaded");
    for (int i = 0; i < n_ranks; i++) {
        const struct layer_weights *l = &w[i].layers[0];
        void (*check)(const struct k_matrix *, struct stack, int, int) =
            n_ranks == 4 ? check_converted : check_native;

        check(&l->mixer_in, (struct stack){0, 3, true}, i, n_ranks);
        check(&l->mixer_out, (struct stack){3, 1, false}, i, n_ranks);
        check(&l->ffn_in, (struct stack){4, 2, true}, i, n_ranks);
        check(&l->down, (struct stack){6, 1, false}, i, n_ranks);
        weights_fini(&w[i]);
        device_close(ranks[i].device);
    }
    plan_fini(&part);
}

int main(void)
{
    const char *text = "{\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":256,"
                       "\"intermediate_size\":256,\"num_hidden_layers\":1,"
                       "\"num_attention_heads\":4,\"vocab_size\":8,\"rms_norm_eps\":1e-5,"
                       "\"max_position_embeddings\":64,\"tie_word_embeddings\":true,"
                       "\"quantization_config\":{\"quant_method\":\"fp8\","
                       "\"weight_block_size\":[128,128]}}";
    struct hf_config c;
    struct plan whole;
    char path[100];

    log_set_level(LOG_LEVEL_WARN);
    if (mkdtemp(dir) == NULL ||
        hf_config_parse(&c, "config.json", text, strlen(text), NULL, 0) != 0 ||
        plan_make(&whole, &c) != ERR_OK)
        exit(1);
    write_model();
    for (int n = 1; n <= 4; n *= 2)
        check_ranks(&c, &whole, n);
    plan_fini(&whole);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
    return tap_done();
}
