/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: matrices of layers with states stay blocks on the cpu device, and compute what their values
 * do; what a damaged file lacks or contradicts is said in one line. Method: small models of random
 * blocks beside twins of float32 (gguf_write.h). Heads of the delta rule have 128 elements, so that
 * a K-block of 256 columns has two of them, as in Qwen 3.5. (Whole families: test_golden.c.) */
#include <math.h>
#include <sys/stat.h>

#include "model/loader_parts.h"
#include "tests/golden/gguf_write.h"

#define SUM_ERROR 1e-5 /* of logits, where columns are summed in another order */

enum { KEY_HEADS = 2, VALUE_HEADS = 4, STATE = 128, TAPS = 4 };

/* A setting: a number, or a list of one for each layer. */
struct setting {
    const char *key;
    unsigned value;
    int list[LAYERS];
    bool is_list;
};

/* A tensor of layer `layer`; kind -1: the model's, 0: float32. */
struct piece {
    const char *name;
    int layer, rows, cols;
    bool is_matrix;
    float first, step; /* of numbers beside matrices */
};

struct states_model {
    const char *arch;
    const struct setting *settings;
    const struct piece *parts;
};

/* --- models --------------------------------------------------------------------------------- */

#define COMMON                                                                              \
    {"block_count", LAYERS, {0}, false}, {"context_length", 512, {0}, false},               \
        {"embedding_length", DIM, {0}, false}, {"attention.head_count", HEADS, {0}, false}, \
        {"attention.key_length", HEAD, {0}, false},                                         \
    {                                                                                       \
        "attention.value_length", HEAD, {0}, false                                          \
    }
#define FFN(i)                                                                              \
    {"ffn_gate.weight", i, FF, DIM, true, 0, 0}, {"ffn_up.weight", i, FF, DIM, true, 0, 0}, \
    {                                                                                       \
        "ffn_down.weight", i, DIM, FF, true, 0, 0                                           \
    }
#define ATTENTION(i, q_rows)                                    \
    {"attn_q.weight", i, q_rows, DIM, true, 0, 0},              \
        {"attn_k.weight", i, KV_HEADS * HEAD, DIM, true, 0, 0}, \
        {"attn_v.weight", i, KV_HEADS * HEAD, DIM, true, 0, 0}, \
    {                                                           \
        "attn_output.weight", i, DIM, HEADS *HEAD, true, 0, 0   \
    }

static const struct setting delta_settings[] = {COMMON,
                                                {"attention.head_count_kv", KV_HEADS, {0}, false},
                                                {"feed_forward_length", FF, {0}, false},
                                                {"rope.dimension_count", 16, {0}, false},
                                                {"ssm.conv_kernel", TAPS, {0}, false},
                                                {"ssm.state_size", STATE, {0}, false},
                                                {"ssm.group_count", KEY_HEADS, {0}, false},
                                                {"ssm.time_step_rank", VALUE_HEADS, {0}, false},
                                                {"ssm.inner_size", VALUE_HEADS *STATE, {0}, false},
                                                {"full_attention_interval", 2, {0}, false},
                                                {NULL, 0, {0}, false}};

static const struct piece delta_parts[] = {
    {"attn_norm.weight", 0, 0, DIM, false, 1.0f, 0.01f},
    {"post_attention_norm.weight", 0, 0, DIM, false, 1.0f, 0.01f},
    {"attn_qkv.weight", 0, (2 * KEY_HEADS + VALUE_HEADS) * STATE, DIM, true, 0, 0},
    {"attn_gate.weight", 0, VALUE_HEADS *STATE, DIM, true, 0, 0},
    {"ssm_beta.weight", 0, VALUE_HEADS, DIM, true, 0, 0},
    {"ssm_alpha.weight", 0, VALUE_HEADS, DIM, true, 0, 0},
    {"ssm_conv1d.weight", 0, (2 * KEY_HEADS + VALUE_HEADS) * STATE, TAPS, false, 0.3f, 0.02f},
    {"ssm_a", 0, 0, VALUE_HEADS, false, -0.9f, 0.2f},
    {"ssm_dt.bias", 0, 0, VALUE_HEADS, false, -0.5f, 0.3f},
    {"ssm_norm.weight", 0, 0, STATE, false, 1.0f, 0.01f},
    {"ssm_out.weight", 0, DIM, VALUE_HEADS *STATE, true, 0, 0},
    FFN(0),
    {"attn_norm.weight", 1, 0, DIM, false, 1.0f, 0.01f},
    {"post_attention_norm.weight", 1, 0, DIM, false, 1.0f, 0.01f},
    {"attn_q_norm.weight", 1, 0, HEAD, false, 1.0f, 0.01f},
    {"attn_k_norm.weight", 1, 0, HEAD, false, 1.0f, 0.01f},
    ATTENTION(1, 2 * HEADS * HEAD),
    FFN(1),
    {NULL, 0, 0, 0, false, 0, 0}};

/* The same model as Ollama writes it. */
static const struct setting other_settings[] = {COMMON,
                                                {"attention.head_count_kv", 0, {0, KV_HEADS}, true},
                                                {"feed_forward_length", FF, {0}, false},
                                                {"rope.dimension_count", 16, {0}, false},
                                                {"ssm.conv_kernel", TAPS, {0}, false},
                                                {"ssm.state_size", STATE, {0}, false},
                                                {"ssm.group_count", KEY_HEADS, {0}, false},
                                                {"ssm.time_step_rank", VALUE_HEADS, {0}, false},
                                                {"ssm.inner_size", VALUE_HEADS *STATE, {0}, false},
                                                {NULL, 0, {0}, false}};

enum { MAMBA_HEADS = 8, MAMBA_GROUPS = 2, MAMBA_STATE = 16, INNER = 512 };

/* Layer 0 has Mamba-2, layer 1 is an FFN, as the zeros of the lists say. */
static const struct setting mamba_settings[] = {COMMON,
                                                {"attention.head_count_kv", 0, {0, 0}, true},
                                                {"feed_forward_length", 0, {0, FF}, true},
                                                {"ssm.conv_kernel", TAPS, {0}, false},
                                                {"ssm.state_size", MAMBA_STATE, {0}, false},
                                                {"ssm.group_count", MAMBA_GROUPS, {0}, false},
                                                {"ssm.time_step_rank", MAMBA_HEADS, {0}, false},
                                                {"ssm.inner_size", INNER, {0}, false},
                                                {NULL, 0, {0}, false}};

static const struct piece mamba_parts[] = {
    {"attn_norm.weight", 0, 0, DIM, false, 1.0f, 0.01f},
    {"ssm_in.weight", 0, 2 * INNER + 2 * MAMBA_GROUPS *MAMBA_STATE + MAMBA_HEADS, DIM, true, 0, 0},
    {"ssm_conv1d.weight", 0, INNER + 2 * MAMBA_GROUPS *MAMBA_STATE, TAPS, false, 0.3f, 0.02f},
    {"ssm_conv1d.bias", 0, 0, INNER + 2 * MAMBA_GROUPS *MAMBA_STATE, false, 0.0f, 0.01f},
    {"ssm_a", 0, MAMBA_HEADS, 1, false, -0.9f, 0.1f},
    {"ssm_d", 0, MAMBA_HEADS, 1, false, 0.5f, 0.1f},
    {"ssm_dt.bias", 0, 0, MAMBA_HEADS, false, -0.5f, 0.1f},
    {"ssm_norm.weight", 0, MAMBA_GROUPS, INNER / MAMBA_GROUPS, false, 1.0f, 0.01f},
    {"ssm_out.weight", 0, DIM, INNER, true, 0, 0},
    {"attn_norm.weight", 1, 0, DIM, false, 1.0f, 0.01f},
    {"ffn_up.weight", 1, FF, DIM, true, 0, 0},
    {"ffn_down.weight", 1, DIM, FF, true, 0, 0},
    {NULL, 0, 0, 0, false, 0, 0}};

static const struct setting conv_settings[] = {COMMON,
                                               {"attention.head_count_kv", 0, {0, KV_HEADS}, true},
                                               {"feed_forward_length", FF, {0}, false},
                                               {"shortconv.l_cache", 3, {0}, false},
                                               {NULL, 0, {0}, false}};

static const struct piece conv_parts[] = {{"attn_norm.weight", 0, 0, DIM, false, 1.0f, 0.01f},
                                          {"ffn_norm.weight", 0, 0, DIM, false, 1.0f, 0.01f},
                                          {"shortconv.conv.weight", 0, DIM, 3, false, 0.3f, 0.02f},
                                          {"shortconv.in_proj.weight", 0, 3 * DIM, DIM, true, 0, 0},
                                          {"shortconv.out_proj.weight", 0, DIM, DIM, true, 0, 0},
                                          FFN(0),
                                          {"attn_norm.weight", 1, 0, DIM, false, 1.0f, 0.01f},
                                          {"ffn_norm.weight", 1, 0, DIM, false, 1.0f, 0.01f},
                                          {"attn_q_norm.weight", 1, 0, HEAD, false, 1.0f, 0.01f},
                                          {"attn_k_norm.weight", 1, 0, HEAD, false, 1.0f, 0.01f},
                                          ATTENTION(1, HEADS *HEAD),
                                          FFN(1),
                                          {NULL, 0, 0, 0, false, 0, 0}};

static const struct states_model of_delta = {"qwen35", delta_settings, delta_parts},
                                 of_other = {"qwen35", other_settings, delta_parts},
                                 of_mamba = {"nemotron_h", mamba_settings, mamba_parts},
                                 of_conv = {"lfm2", conv_settings, conv_parts};

/* --- writing -------------------------------------------------------------------------------- */

/* What a damaged file has in place of a setting or a tensor. */
static struct {
    const char *key; /* of a setting that has `value`, or in a list for each layer */
    unsigned value;
    int n_list;         /* items of the list; 0: a number */
    const char *tensor; /* "blk.N.NAME": it is missing, or its numbers begin with `first` */
    float first;
} damage;

static void set_list(struct file *f, const char *key, const int *items, int n)
{
    put_text(&f->settings, key);
    put(&f->settings, GGUF_LIST, 4);
    put(&f->settings, GGUF_U32, 4);
    put(&f->settings, (uint64_t)n, 8);
    for (int i = 0; i < n; i++)
        put(&f->settings, (uint64_t)items[i], 4);
    f->n_settings++;
}

static void add_states_settings(struct file *f, const struct states_model *m)
{
    char key[80];

    set_text(f, "general.architecture", m->arch);
    if (damage.key != NULL) { /* the first of a key counts */
        const int all[] = {(int)damage.value, (int)damage.value};

        snprintf(key, sizeof key, "%s.%s", m->arch, damage.key);
        if (damage.n_list > 0)
            set_list(f, key, all, damage.n_list);
        else
            set_number(f, key, GGUF_U32, damage.value);
    }
    for (const struct setting *s = m->settings; s->key != NULL; s++) {
        snprintf(key, sizeof key, "%s.%s", m->arch, s->key);
        if (s->is_list)
            set_list(f, key, s->list, LAYERS);
        else
            set_number(f, key, GGUF_U32, s->value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", m->arch);
    set_float(f, key, 1e-5f);
    snprintf(key, sizeof key, "%s.rope.freq_base", m->arch);
    set_float(f, key, 10000.0f);
}

/* Numbers first, first + step and so on, five different ones. */
static void add_numbers(struct file *f, struct file *twin, const struct entry *t,
                        const struct piece *p, float first)
{
    size_t n = (size_t)(t->rows > 0 ? t->rows : 1) * (size_t)t->cols;
    float *numbers = malloc(n * sizeof *numbers);

    for (size_t i = 0; i < n; i++)
        numbers[i] = first + (float)(i % 5) * p->step;
    add(f, t, numbers, n * sizeof *numbers);
    add(twin, t, numbers, n * sizeof *numbers);
    free(numbers);
}

static void write_states(const struct states_model *m, const struct kind *kind, const char *path,
                         const char *twin_path)
{
    struct file f = {.n_tensors = 0}, twin = {.n_tensors = 0};

    add_states_settings(&f, m);
    add_states_settings(&twin, m);
    add_matrix(&f, &twin, "token_embd.weight", kind, VOCAB, DIM);
    add_vector(&f, &twin, "output_norm.weight", DIM);
    for (const struct piece *p = m->parts; p->name != NULL; p++) {
        char name[80];
        const struct entry t = {.name = name, .rows = p->rows, .cols = p->cols};
        bool is_damaged;

        snprintf(name, sizeof name, "blk.%d.%s", p->layer, p->name);
        if (m == &of_other && strcmp(p->name, "ssm_dt.bias") == 0)
            snprintf(name, sizeof name, "blk.%d.ssm_dt", p->layer);
        is_damaged = damage.tensor != NULL && strcmp(damage.tensor, name) == 0;
        if (is_damaged && damage.first == 0.0f)
            continue;
        if (p->is_matrix)
            add_tensor(&f, &twin, kind, &t);
        else
            add_numbers(&f, &twin, &t, p, is_damaged ? damage.first : p->first);
    }
    finish(&f, path);
    finish(&twin, twin_path);
}

/* --- blocks --------------------------------------------------------------------------------- */

/* Equal up to the order of sums. */
static void compare_sums(const char *what, const char *path, const char *twin_path)
{
    int rc[2];
    float *got = logits_of(path, 1, &rc[0]), *want = logits_of(twin_path, 1, &rc[1]);
    double error = 0.0, size = 0.0;

    for (int i = 0; got != NULL && want != NULL && i < VOCAB; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    error = sqrt(error / size);
    ok(size > 0.0 && error < SUM_ERROR, "%s: relative error %.1e", what, error);
    free(got);
    free(want);
}

/* What is logged when a file is opened. */
static void listen(char *text, size_t cap, const char *path, int n_ranks)
{
    char said[300];
    int old = dup(STDERR_FILENO), fd, rc;
    ssize_t n = 0;

    snprintf(said, sizeof said, "%s/said", root);
    fd = open(said, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (old != -1 && fd != -1 && dup2(fd, STDERR_FILENO) != -1) {
        free(logits_of(path, n_ranks, &rc));
        (void)dup2(old, STDERR_FILENO);
        n = pread(fd, text, cap - 1, 0);
    }
    text[n > 0 ? n : 0] = '\0';
    (void)close(old), (void)close(fd), (void)unlink(said);
}

/* So many matrices are not multiplied as blocks. */
static void check_converted(const char *what, const char *path, int n_ranks, int n)
{
    char text[4000];
    const char *at;
    int found = 0;

    listen(text, sizeof text, path, n_ranks);
    at = strstr(text, " matrices are ");
    while (at != NULL && at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    if (at != NULL)
        found = atoi(at);
    ok(strstr(text, "model: ready") != NULL && found == n,
       "%s: ranks: %d: %d matrices become float32 (%d)", what, n_ranks, found, n);
}

static void test_blocks(void)
{
    static const int of[] = {7, 9, 4, 0, 2}; /* Q4_K, Q6_K, Q8_0, Q4_0, Q5_0 */
    char path[200], twin[200], what[80];

    snprintf(path, sizeof path, "%s/states.gguf", root);
    snprintf(twin, sizeof twin, "%s/twin.gguf", root);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        const struct kind *kind = &kinds[of[i]];
        bool is_wide = k_type_block(kind->type) > STATE, is_kept = kind->type != K_Q5_0;

        write_states(&of_delta, kind, path, twin);
        snprintf(what, sizeof what, "qwen35 in %s", kind->name);
        if (is_wide)
            compare_sums(what, path, twin);
        else
            compare(what, path, twin, 1);
        compare(what, path, twin, 2);
        if (is_kept) /* all but b and a, which are few rows and always plain */
            check_converted(what, path, 1, 1);
        write_states(&of_mamba, kind, path, twin);
        snprintf(what, sizeof what, "nemotron_h in %s", kind->name);
        compare(what, path, twin, 1);
        if (is_kept)
            check_converted(what, path, 1, 0);
        write_states(&of_conv, kind, path, twin);
        snprintf(what, sizeof what, "lfm2 in %s", kind->name);
        compare(what, path, twin, 1);
        if (is_kept)
            check_converted(what, path, 1, 0);
    }
    write_states(&of_delta, &kinds[7], path, twin);
    check_converted("qwen35 in Q4_K", path, 2, 3); /* and those whose columns are cut */
}

/* A list of key-value heads says which layers have attention, and dt has another name. */
static void test_others(void)
{
    char path[200], twin[200], other[200];

    snprintf(path, sizeof path, "%s/states.gguf", root);
    snprintf(twin, sizeof twin, "%s/twin.gguf", root);
    snprintf(other, sizeof other, "%s/other.gguf", root);
    write_states(&of_other, &kinds[4], path, twin);
    (void)rename(path, other);
    write_states(&of_delta, &kinds[4], path, twin);
    compare("qwen35 as Ollama writes it", path, other, 1);
    (void)unlink(other);
}

/* --- packed matrices, as GPUs have them ------------------------------------------------------- */

static int keep(struct device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    memcpy(dst, src, bytes);
    return ERR_OK;
}

/* What a reader's thread does with the tensor of a part, in two pieces, for one rank that packs
 * it: strips in `data`. */
static int pack(uint8_t *data, const struct quant_part *part, const struct k_format *format,
                const struct slice_shape *shape)
{
    static const struct device_ops ops = {.upload = keep};
    struct device device = {.ops = &ops};
    struct weights_rank rank = {.device = &device};
    struct reader_item item = {.t = part->data, .step = 1};
    struct target target = {.use = BYTES_PACKED,
                            .part = *part,
                            .packed = *format,
                            .slice = slice_make(shape, 0, 1),
                            .dst = data};
    struct loader loader = {
        .ranks = &rank, .n_ranks = 1, .items = &item, .targets = &target, .n_items = 1};
    size_t half = part->data->bytes / 2 + 5, all = part->data->bytes;
    unsigned char *bytes = malloc(all);
    struct device_pipe pipe = {.bytes = bytes};
    int rc;

    memcpy(bytes, part->data->data, half);
    (void)pthread_mutex_init(&loader.turn, NULL);
    rc = loader_place_bytes(&loader, 0, &pipe, 0, half);
    memcpy(bytes, part->data->data + half, all - half);
    if (rc == ERR_OK)
        rc = loader_place_bytes(&loader, 0, &pipe, half, all - half);
    (void)pthread_mutex_destroy(&loader.turn);
    free(bytes);
    return rc;
}

/* The last matrix of the delta rule with its columns in the order of the key heads: the weights in
 * its records against the twin's. */
static void check_packed(const struct kind *kind, const char *path, const char *twin_path)
{
    enum { ROWS = DIM, COLS = VALUE_HEADS * STATE };
    const struct quant_matrix matrix = {"blk.0.ssm_out", ROWS, COLS};
    const struct quant_config none = {.kind = NULL};
    struct slice_shape shape = slice_whole(ROWS, ROWS, COLS, COLS);
    struct checkpoint *files = NULL, *twin = NULL;
    const struct tensor *want = NULL;
    struct quant_part part;
    struct k_matrix m = {.n_in = COLS, .n_out = ROWS};
    char why[QUANT_WHY_CAP];
    float *got = calloc((size_t)ROWS * COLS, sizeof *got), ones[ROWS];
    bool same;

    shape.col_chunk = STATE;
    shape.col_turn = VALUE_HEADS / KEY_HEADS;
    for (int i = 0; i < ROWS; i++)
        ones[i] = 1.0f;
    write_states(&of_delta, kind, path, twin_path);
    same = checkpoint_open(&files, path) == ERR_OK && checkpoint_open(&twin, twin_path) == ERR_OK &&
           (want = checkpoint_find(twin, "blk.0.ssm_out.weight")) != NULL &&
           quant_find(&part, files, &none, &matrix, why, sizeof why) == ERR_OK &&
           quant_packs(&m.format, &part);
    if (same) {
        const struct k_packing packing = k_packing_of(&m.format);
        uint8_t *data = malloc(k_packed_bytes(&packing, ROWS, COLS));

        m.data = data;
        m.scales = ones;
        same = pack(data, &part, &m.format, &shape) == ERR_OK;
        ref_dequantise(got, &m, 0, ROWS);
        free(data);
    }
    for (int i = 0; i < ROWS * COLS && same; i++) {
        int head = i % COLS / STATE;
        int at = i / COLS * COLS + slice_in_turns(head, VALUE_HEADS, shape.col_turn) * STATE;

        same = got[i] == quant_number(want, (size_t)(at + i % STATE));
    }
    ok(same, "%s: records of columns in turns hold the weights", kind->name);
    free(got);
    checkpoint_close(files);
    checkpoint_close(twin);
}

static void test_packed(void)
{
    char path[200], twin[200];

    snprintf(path, sizeof path, "%s/states.gguf", root);
    snprintf(twin, sizeof twin, "%s/twin.gguf", root);
    check_packed(&kinds[0], path, twin); /* Q4_0 */
    check_packed(&kinds[4], path, twin); /* Q8_0 */
}

/* --- damage --------------------------------------------------------------------------------- */

static void test_damage(void)
{
    static const struct {
        const struct states_model *m;
        const char *key;
        unsigned value;
        int n_list;
        const char *tensor;
        float first;
        const char *words;
    } cases[] = {
        {&of_delta, NULL, 0, 0, "blk.0.ssm_a", 0, "tensor blk.0.ssm_a is missing"},
        {&of_delta, NULL, 0, 0, "blk.0.ssm_out.weight", 0, "blk.0.ssm_out.weight is missing"},
        {&of_delta, NULL, 0, 0, "blk.0.ssm_a", 0.5f, "its numbers must be negative"},
        {&of_delta, NULL, 0, 0, "blk.0.ssm_a", NAN, "its numbers must be negative"},
        {&of_delta, "ssm.time_step_rank", 0, 0, NULL, 0,
         "qwen35.ssm.time_step_rank must be a number from 1"},
        {&of_delta, "ssm.group_count", 4000000000U, 0, NULL, 0,
         "qwen35.ssm.group_count must be a number from 1"},
        {&of_delta, "ssm.group_count", 3, 0, NULL, 0, "is not a multiple of linear_num_key_heads"},
        {&of_delta, "ssm.inner_size", 513, 0, NULL, 0, "do not divide ssm.inner_size 513"},
        {&of_delta, "ssm.conv_kernel", 99, 0, NULL, 0, "linear_conv_kernel_dim"},
        {&of_delta, "full_attention_interval", 0, 0, NULL, 0,
         "qwen35.full_attention_interval must be 1 to"},
        {&of_delta, "full_attention_interval", 1, 0, NULL, 0, "blk.0.attn_q"},
        {&of_delta, "attention.recurrent_layers", 1, 1, NULL, 0,
         "qwen35.attention.recurrent_layers must be a number for each layer"},
        {&of_delta, "attention.recurrent_layers", 1, 2, NULL, 0, "blk.1.attn_qkv"},
        {&of_delta, "nextn_predict_layers", 2, 0, NULL, 0, "qwen35.block_count must be"},
        {&of_mamba, "attention.head_count_kv", KV_HEADS, 2, NULL, 0,
         "only one of them is possible"},
        {&of_mamba, "feed_forward_length", 0, 1, NULL, 0,
         "nemotron_h.feed_forward_length must be a number for each layer"},
        {&of_mamba, "ssm.group_count", 3, 0, NULL, 0, "do not divide into 3 groups"},
        {&of_mamba, NULL, 0, 0, "blk.0.ssm_d", 0, "tensor blk.0.ssm_d is missing"},
        {&of_conv, "shortconv.l_cache", 0, 0, NULL, 0,
         "lfm2.shortconv.l_cache must be a number from 1"},
        {&of_conv, "attention.head_count_kv", KV_HEADS, 1, NULL, 0,
         "lfm2.attention.head_count_kv must be a number for each layer"},
        {&of_conv, "attention.sliding_window", 64, 0, NULL, 0, "lfm2 with windows"},
    };
    char path[200], twin[200];

    snprintf(path, sizeof path, "%s/states.gguf", root);
    snprintf(twin, sizeof twin, "%s/twin.gguf", root);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        damage.key = cases[i].key;
        damage.value = cases[i].value;
        damage.n_list = cases[i].n_list;
        damage.tensor = cases[i].tensor;
        damage.first = cases[i].first;
        write_states(cases[i].m, NULL, path, twin);
        ok(refused_with(path, cases[i].words), "%s: \"%s\"", cases[i].m->arch, cases[i].words);
    }
    damage.key = damage.tensor = NULL;
}

int main(void)
{
    char path[200];

    if (mkdtemp(root) == NULL)
        tap_skip_all("no temporary folder");
    test_blocks();
    test_others();
    test_packed();
    test_damage();
    snprintf(path, sizeof path, "%s/states.gguf", root);
    (void)unlink(path);
    snprintf(path, sizeof path, "%s/twin.gguf", root);
    (void)unlink(path);
    (void)rmdir(root);
    return tap_done();
}
