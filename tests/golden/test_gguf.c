/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a GGUF file whose matrices are blocks of any type computes what its twin computes, whose
 * matrices are the blocks' values as float32; a set of files is one model; what cannot be read is
 * refused with one line. Method: small models of random blocks, written here; on the cpu device the
 * bits of the logits must be equal. (Values of blocks: tests/unit/kernels/test_format.c; heads of
 * files: tests/unit/base/test_gguf.c; families: test_golden.c.) */
#include <math.h>
#include <sys/stat.h>

#include "device/cpu_round.h"
#include "tests/golden/gguf_write.h"
#include "tests/golden/records.h"

#define ROUNDED_ERROR 0.05 /* of logits, where inputs have 8 bits */

/* --- models of blocks ------------------------------------------------------------------------- */

static void add_settings(struct file *f)
{
    set_text(f, "general.architecture", "llama");
    set_number(f, "llama.block_count", GGUF_U32, LAYERS);
    set_number(f, "llama.context_length", GGUF_U32, 512);
    set_number(f, "llama.embedding_length", GGUF_U32, DIM);
    set_number(f, "llama.feed_forward_length", GGUF_U32, FF);
    set_number(f, "llama.attention.head_count", GGUF_U32, HEADS);
    set_number(f, "llama.attention.head_count_kv", GGUF_U32, KV_HEADS);
    set_float(f, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    set_float(f, "llama.rope.freq_base", 10000.0f);
}

/* Layer i; q, k, v may have types of their own, as in files of mixed types. */
static void add_layer(struct file *f, struct file *twin, int i, const struct kind *kind,
                      const struct kind *of_v)
{
    const struct {
        const char *name;
        int rows, cols;
    } matrices[] = {{"attn_q", HEADS * HEAD, DIM},
                    {"attn_k", KV_HEADS * HEAD, DIM},
                    {"attn_v", KV_HEADS * HEAD, DIM},
                    {"attn_output", DIM, HEADS * HEAD},
                    {"ffn_gate", FF, DIM},
                    {"ffn_up", FF, DIM},
                    {"ffn_down", DIM, FF}};
    char name[80];

    snprintf(name, sizeof name, "blk.%d.attn_norm.weight", i);
    add_vector(f, twin, name, DIM);
    snprintf(name, sizeof name, "blk.%d.ffn_norm.weight", i);
    add_vector(f, twin, name, DIM);
    for (size_t m = 0; m < sizeof matrices / sizeof matrices[0]; m++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, matrices[m].name);
        add_matrix(f, twin, name, m == 2 ? of_v : kind, matrices[m].rows, matrices[m].cols);
    }
}

/* A model of one kind of blocks and its twin; split: its second layer is in a second file. */
static void write_model(const struct kind *kind, const struct kind *of_v, const char *path,
                        const char *twin_path, const char *second)
{
    struct file f = {.n_tensors = 0}, twin = {.n_tensors = 0}, more = {.n_tensors = 0};

    add_settings(&f);
    add_settings(&twin);
    if (second != NULL)
        set_number(&f, "split.count", GGUF_U32, 2);
    add_matrix(&f, &twin, "token_embd.weight", kind, VOCAB, DIM);
    add_vector(&f, &twin, "output_norm.weight", DIM);
    add_layer(&f, &twin, 0, kind, of_v);
    add_layer(second != NULL ? &more : &f, &twin, 1, kind, of_v);
    if (second != NULL)
        finish(&more, second);
    finish(&f, path);
    finish(&twin, twin_path);
}

/* --- latents and experts ---------------------------------------------------------------------- */

enum { EXPERTS = 4, RANK = 64, NOPE = 32, ROPE = 16, VALUE = 32 };

static const char *left_out; /* a tensor that the file lacks; NULL: none */

static void add_latent_settings(struct file *f)
{
    static const struct {
        const char *key;
        unsigned value;
    } numbers[] = {{"block_count", LAYERS},
                   {"context_length", 512},
                   {"embedding_length", DIM},
                   {"feed_forward_length", FF},
                   {"attention.head_count", HEADS},
                   {"attention.head_count_kv", 1},
                   {"attention.key_length", RANK + ROPE},
                   {"attention.value_length", RANK},
                   {"attention.key_length_mla", NOPE + ROPE},
                   {"attention.value_length_mla", VALUE},
                   {"attention.kv_lora_rank", RANK},
                   {"rope.dimension_count", ROPE},
                   {"leading_dense_block_count", 1},
                   {"expert_count", EXPERTS},
                   {"expert_used_count", 2},
                   {"expert_shared_count", 1},
                   {"expert_feed_forward_length", FF / 2},
                   {"expert_gating_func", 2}};
    char key[80];

    set_text(f, "general.architecture", "deepseek2");
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(key, sizeof key, "deepseek2.%s", numbers[i].key);
        set_number(f, key, GGUF_U32, numbers[i].value);
    }
    set_float(f, "deepseek2.attention.layer_norm_rms_epsilon", 1e-5f);
    set_float(f, "deepseek2.rope.freq_base", 10000.0f);
}

/* Layer i: the first has a dense FFN. Heads' tensors are blocks of 32, as files of K-blocks have
 * them where rows are short. */
static void add_latent_layer(struct file *f, struct file *twin, int i, const struct kind *kind,
                             const struct kind *of_heads)
{
    const struct {
        struct entry t;
        const struct kind *kind;
        int from, to; /* layers that have it */
    } tensors[] = {{{"attn_norm.weight", 0, 0, DIM, 0}, NULL, 0, 1},
                   {{"ffn_norm.weight", 0, 0, DIM, 0}, NULL, 0, 1},
                   {{"attn_kv_a_norm.weight", 0, 0, RANK, 0}, NULL, 0, 1},
                   {{"attn_q.weight", 0, HEADS * (NOPE + ROPE), DIM, 0}, kind, 0, 1},
                   {{"attn_kv_a_mqa.weight", 0, RANK + ROPE, DIM, 0}, kind, 0, 1},
                   {{"attn_k_b.weight", 0, RANK, NOPE, HEADS}, of_heads, 0, 1},
                   {{"attn_v_b.weight", 0, VALUE, RANK, HEADS}, of_heads, 0, 1},
                   {{"attn_output.weight", 0, DIM, HEADS * VALUE, 0}, of_heads, 0, 1},
                   {{"ffn_gate.weight", 0, FF, DIM, 0}, kind, 0, 0},
                   {{"ffn_up.weight", 0, FF, DIM, 0}, kind, 0, 0},
                   {{"ffn_down.weight", 0, DIM, FF, 0}, kind, 0, 0},
                   {{"ffn_gate_inp.weight", 0, EXPERTS, DIM, 0}, NULL, 1, 1},
                   {{"exp_probs_b.bias", 0, 0, EXPERTS, 0}, NULL, 1, 1},
                   {{"ffn_gate_exps.weight", 0, FF / 2, DIM, EXPERTS}, kind, 1, 1},
                   {{"ffn_up_exps.weight", 0, FF / 2, DIM, EXPERTS}, kind, 1, 1},
                   {{"ffn_down_exps.weight", 0, DIM, FF / 2, EXPERTS}, kind, 1, 1},
                   {{"ffn_gate_shexp.weight", 0, FF / 2, DIM, 0}, kind, 1, 1},
                   {{"ffn_up_shexp.weight", 0, FF / 2, DIM, 0}, kind, 1, 1},
                   {{"ffn_down_shexp.weight", 0, DIM, FF / 2, 0}, kind, 1, 1}};
    char name[80];

    for (size_t k = 0; k < sizeof tensors / sizeof tensors[0]; k++) {
        struct entry t = tensors[k].t;

        snprintf(name, sizeof name, "blk.%d.%s", i, t.name);
        if (i < tensors[k].from || i > tensors[k].to ||
            (left_out != NULL && strcmp(name, left_out) == 0))
            continue;
        t.name = name;
        if (t.rows == 0) /* numbers of 1 and around it */
            add_vector(f, twin, name, t.cols);
        else
            add_tensor(f, twin, tensors[k].kind, &t);
    }
}

static void write_latent(const struct kind *kind, const struct kind *of_heads, const char *path,
                         const char *twin_path)
{
    struct file f = {.n_tensors = 0}, twin = {.n_tensors = 0};

    add_latent_settings(&f);
    add_latent_settings(&twin);
    add_matrix(&f, &twin, "token_embd.weight", kind, VOCAB, DIM);
    add_vector(&f, &twin, "output_norm.weight", DIM);
    for (int i = 0; i < LAYERS; i++)
        add_latent_layer(&f, &twin, i, kind, of_heads);
    finish(&f, path);
    finish(&twin, twin_path);
}

/* --- comparing -------------------------------------------------------------------------------- */

/* Rounded inputs change logits, by little. */
static void check_rounded(const char *what, const char *path, bool changes)
{
    int rc[2];
    float *got = logits_with(path, "int8", 1, &rc[0]), *want = logits_of(path, 1, &rc[1]);
    double error = 0.0, size = 0.0;

    for (int i = 0; got != NULL && want != NULL && i < VOCAB; i++) {
        error += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        size += (double)want[i] * (double)want[i];
    }
    error = sqrt(error / size);
    ok(size > 0.0 && error < ROUNDED_ERROR && (error > 0.0) == changes,
       "%s: inputs of 8 bits: relative error %.1e", what, error);
    free(got);
    free(want);
}

/* Rounded inputs of a token do not depend on the others. */
static void check_alone(const char *what, const char *path)
{
    int rc[2];
    float *want = logits_with(path, "int8", 1, &rc[0]), *got;

    tokens_a_step = 1;
    got = logits_with(path, "int8", 1, &rc[1]);
    tokens_a_step = PROMPT;
    ok(got != NULL && want != NULL && memcmp(got, want, VOCAB * sizeof *got) == 0,
       "%s: inputs of 8 bits: token by token the same", what);
    free(got);
    free(want);
}

/* The blocks that a GPU multiplies as they are: records hold their weights. */
static void check_records(const char *path, const char *twin_path, const char *name)
{
    const struct quant_matrix matrix = {"blk.0.ffn_up", FF, DIM};
    const struct quant_config none = {.kind = NULL};
    struct checkpoint *files = NULL, *twin = NULL;
    struct quant_part part;
    struct k_format format;
    const struct tensor *want;
    char why[QUANT_WHY_CAP];
    float *got = NULL;

    if (checkpoint_open(&files, path) == ERR_OK && checkpoint_open(&twin, twin_path) == ERR_OK &&
        (want = checkpoint_find(twin, "blk.0.ffn_up.weight")) != NULL &&
        quant_find(&part, files, &none, &matrix, why, sizeof why) == ERR_OK &&
        quant_packs(&format, &part))
        got = records_weights(&part, &format);
    ok(got != NULL && memcmp(got, want->data, want->bytes) == 0, "%s: records hold the weights",
       name);
    free(got);
    checkpoint_close(files);
    checkpoint_close(twin);
}

static void test_kinds(void)
{
    char path[200], twin[200];

    for (size_t i = 0; i < N_KINDS; i++) {
        snprintf(path, sizeof path, "%s/%s.gguf", root, kinds[i].name);
        snprintf(twin, sizeof twin, "%s/twin.gguf", root);
        write_model(&kinds[i], &kinds[i], path, twin, NULL);
        compare(kinds[i].name, path, twin, 1);
        check_rounded(kinds[i].name, path, cpu_round_reads(kinds[i].type));
        if (kinds[i].type == K_Q4_0 || kinds[i].type == K_Q8_0)
            check_records(path, twin, kinds[i].name);
    }
}

/* Values of more bits, as in Q4_K_M; split by rows and columns over two ranks; in two files. */
static void test_sets(void)
{
    char path[200], second[200], twin[200];
    int rc;

    snprintf(path, sizeof path, "%s/mixed.gguf", root);
    snprintf(twin, sizeof twin, "%s/twin.gguf", root);
    write_model(&kinds[7], &kinds[9], path, twin, NULL);
    compare("Q4_K with Q6_K", path, twin, 1);
    compare("Q4_K with Q6_K", path, twin, 2);
    snprintf(path, sizeof path, "%s/set-00001-of-00002.gguf", root);
    snprintf(second, sizeof second, "%s/set-00002-of-00002.gguf", root);
    write_model(&kinds[7], &kinds[7], path, twin, second);
    compare("a set of two files", path, twin, 1);
    ok(logits_of(second, 1, &rc) == NULL && rc != ERR_OK, "its second file alone is refused");
    (void)unlink(second);
    ok(logits_of(path, 1, &rc) == NULL && rc == ERR_NOT_FOUND, "so is the first without it");
}

/* Latent attention and experts, alone and over two ranks: with K-blocks, and with blocks of 32. */
static void test_latents(void)
{
    char path[200], twin[200], what[80];

    snprintf(path, sizeof path, "%s/mixed.gguf", root);
    snprintf(twin, sizeof twin, "%s/twin.gguf", root);
    for (size_t i = 0; i < N_KINDS; i++) {
        const struct kind *of_heads = &kinds[k_type_block(kinds[i].type) > 32 ? 4 : i]; /* Q8_0 */

        write_latent(&kinds[i], of_heads, path, twin);
        snprintf(what, sizeof what, "deepseek2 in %s", kinds[i].name);
        compare(what, path, twin, 1);
        compare(what, path, twin, 2);
        check_rounded(what, path, true);
        check_alone(what, path);
    }
}

/* What cannot be computed is refused. */
static void test_refused(void)
{
    static const struct {
        const char *what, *text_key, *text, *number_key;
        int rc;
    } wrong[] = {
        {"no such family", "general.architecture", "mamba", NULL, ERR_UNSUPPORTED},
        {"experts of which none is used", "general.architecture", "llama", "llama.expert_count",
         ERR_INVALID},
        {"a scaling", "llama.rope.scaling.type", "unheard-of", NULL, ERR_UNSUPPORTED},
        {"a missing setting", "general.architecture", "qwen2", NULL, ERR_INVALID},
        {"a number as a scaling", "general.architecture", "llama", "llama.rope.scaling.type",
         ERR_INVALID},
        {"a text as a flag", "llama.use_parallel_residual", "yes", NULL, ERR_INVALID},
        {"a text as a number", "llama.rope.freq_base", "10000", NULL, ERR_INVALID},
    };
    struct file twin = {.n_tensors = 0};
    const uint8_t zeros[66 * VOCAB] = {0};
    char path[200];
    int rc;

    snprintf(path, sizeof path, "%s/wrong.gguf", root);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct file f = {.n_tensors = 0};

        set_text(&f, wrong[i].text_key, wrong[i].text); /* the first of a key counts */
        if (wrong[i].number_key != NULL)
            set_number(&f, wrong[i].number_key, GGUF_U32, 8);
        add_settings(&f);
        add_matrix(&f, &twin, "token_embd.weight", NULL, VOCAB, DIM);
        finish(&f, path);
        ok(logits_of(path, 1, &rc) == NULL && rc == wrong[i].rc, "%s is refused", wrong[i].what);
    }
    for (int i = 0; i < 2; i++) {
        struct file f = {.n_tensors = 0};

        set_float(&f, "llama.rope.freq_base", i == 0 ? NAN : INFINITY);
        add_settings(&f);
        add_matrix(&f, &twin, "token_embd.weight", NULL, VOCAB, DIM);
        finish(&f, path);
        ok(refused_with(path, "llama.rope.freq_base must be a number"), "%g is refused by name",
           (double)(i == 0 ? NAN : INFINITY));
    }
    add_settings(&twin); /* a type that is known, and not read */
    add(&twin,
        &(const struct entry){.name = "output_norm.weight", .type = 16, .rows = VOCAB, .cols = 256},
        zeros, sizeof zeros);
    finish(&twin, path);
    ok(logits_of(path, 1, &rc) == NULL && rc != ERR_OK, "a type that is not read is refused");
    ok(logits_with(path, "int9", 1, &rc) == NULL && rc == ERR_INVALID,
       "unknown inputs are refused");
}

/* Experts that do not fit their settings, each refused by name. */
static void test_wrong_experts(void)
{
    static const struct {
        const char *left_out, *key;
        unsigned value;
        const char *words;
    } wrong[] = {
        {"blk.1.ffn_up_exps.weight", NULL, 0, "tensor blk.1.ffn_up_exps.weight is missing"},
        {"blk.1.ffn_down_exps.weight", NULL, 0, "tensor blk.1.ffn_down_exps.weight is missing"},
        {"blk.1.exp_probs_b.bias", NULL, 0, "blk.1.exp_probs_b"},
        {NULL, "expert_count", EXPERTS + 1, "tensor blk.1.ffn_gate_inp.weight"},
        {NULL, "expert_count", 1U << 30, "num_experts must be a whole number"},
        {NULL, "expert_used_count", EXPERTS + 1, "experts per token"},
        {NULL, "expert_used_count", 0, "num_experts_per_tok"},
        {NULL, "expert_feed_forward_length", FF, "tensor blk.1.ffn_gate_exps.weight"},
        {NULL, "expert_feed_forward_length", 1U << 31, "moe_intermediate_size"},
        {NULL, "expert_group_count", 3, "n_group"},
        {NULL, "expert_gating_func", 9, "expert_gating_func 9"},
        {NULL, "attention.clamp_kqv", 8, "clamp_kqv"},
        {NULL, "attention.temperature_scale", 1, "temperature_scale"},
        {NULL, "block_count", 0, "block_count"},
        {NULL, "nextn_predict_layers", LAYERS, "block_count"},
    };
    char path[200], key[80];

    snprintf(path, sizeof path, "%s/wrong.gguf", root);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct file f = {.n_tensors = 0}, twin = {.n_tensors = 0};

        left_out = wrong[i].left_out;
        snprintf(key, sizeof key, "deepseek2.%s", wrong[i].key != NULL ? wrong[i].key : "none");
        set_number(&f, key, GGUF_U32, wrong[i].value); /* the first of a key counts */
        add_latent_settings(&f);
        add_matrix(&f, &twin, "token_embd.weight", &kinds[4], VOCAB, DIM);
        add_vector(&f, &twin, "output_norm.weight", DIM);
        for (int k = 0; k < LAYERS; k++)
            add_latent_layer(&f, &twin, k, &kinds[4], &kinds[4]);
        finish(&f, path);
        buf_fini(&twin.settings), buf_fini(&twin.tensors), buf_fini(&twin.data);
        ok(refused_with(path, wrong[i].words), "experts: refused with \"%s\"", wrong[i].words);
    }
    left_out = NULL;
}

static void remove_all(void)
{
    static const char *const names[] = {"twin", "mixed", "wrong", "set-00001-of-00002"};
    char path[200];

    for (size_t i = 0; i < N_KINDS; i++) {
        snprintf(path, sizeof path, "%s/%s.gguf", root, kinds[i].name);
        (void)unlink(path);
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s.gguf", root, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(root);
}

int main(void)
{
    if (mkdtemp(root) == NULL)
        tap_skip_all("no temporary folder");
    test_kinds();
    test_sets();
    test_latents();
    test_refused();
    test_wrong_experts();
    remove_all();
    return tap_done();
}
