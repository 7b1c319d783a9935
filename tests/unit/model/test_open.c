/* SPDX-License-Identifier: Apache-2.0
 *
 * model_open() over folders that are damaged in one way each, over options that cannot be met, and
 * with the first, second, ... allocation failing until one run finds memory: each time the right
 * error, and nothing left behind (the sanitized build sees leaks). */
#include "config.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "model/model.h"
#include "tests/tap.h"

static char dir[] = "/tmp/quire-open-XXXXXX";

static void put(const char *name, const void *bytes, size_t len)
{
    char path[200];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (f == NULL || fwrite(bytes, 1, len, f) != len || fclose(f) != 0) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
}

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void drop(const char *name)
{
    char path[200];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

/* A file of tests/golden; *len bytes, freed by the caller. */
static char *golden(const char *name, size_t *len)
{
    FILE *f = fopen(tap_path(name), "rb");
    char *bytes = malloc(1 << 20);

    if (f == NULL)
        tap_skip_all("tests/golden is not there");
    *len = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static struct model_options options(void)
{
    return (struct model_options){
        .dir = dir, .device = "cpu", .cpu_threads = 2, .page_tokens = 16, .cpu_kv_bytes = 1 << 20};
}

static int open_with(const struct model_options *o)
{
    struct model *m = NULL;
    int rc = model_open(&m, o);

    model_close(m);
    return rc;
}

static int open_folder(void)
{
    struct model_options o = options();

    return open_with(&o);
}

/* With shorter chunks than the golden's. */
static void check_chunks(void)
{
    struct model_options o = options();
    struct model *m = NULL;

    o.dir = tap_path("tests/golden/families/llama4");
    o.hf_overrides = "{\"attention_chunk_size\":100}";
    is_int(model_open(&m, &o), ERR_OK, "a model that attends in chunks");
    if (m != NULL)
        is_int(model_shape(m)->max_model_len, 100, "has texts of a chunk");
    model_close(m);
    m = NULL;
    o.max_model_len = 101;
    is_int(open_with(&o), ERR_INVALID, "a text longer than a chunk");
}

static void check_options(void)
{
    struct model_options o = options();
    struct model *m = NULL;

    o.max_model_len = 100000;
    is_int(open_with(&o), ERR_INVALID, "longer than the model");
    o = options();
    o.page_tokens = 0;
    is_int(open_with(&o), ERR_INVALID, "pages of nothing");
    o = options();
    o.max_num_batched_tokens = 3;
    o.max_num_seqs = 4;
    is_int(open_with(&o), ERR_INVALID, "fewer tokens than sequences");
    o.max_num_seqs = 0;
    is_int(model_open(&m, &o), ERR_OK, "fewer tokens than the preset of sequences");
    if (m != NULL)
        is_int(model_shape(m)->max_num_seqs, 3, "the preset gives way");
    model_close(m);
    m = NULL;
    o = options();
    o.device = "tpu";
    is_int(open_with(&o), ERR_INVALID, "another device");
    o = options();
    o.num_pages = 4;
    o.max_model_len = 100;
    is_int(open_with(&o), ERR_NO_MEMORY, "four pages for a hundred tokens");
    o.max_model_len = 0;
    is_int(model_open(&m, &o), ERR_OK, "four pages for what fits");
    if (m != NULL)
        is_int(model_shape(m)->max_model_len, 64, "is 64 tokens");
    model_close(m);
}

static void check_index(const char *tensors, size_t len)
{
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"../model.safetensors\"}}");
    is_int(open_folder(), ERR_CORRUPT, "an index that leads outside");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"none.safetensors\"}}");
    is_int(open_folder(), ERR_NOT_FOUND, "an index of a missing file");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"x\":\"model.safetensors\"}}");
    is_int(open_folder(), ERR_CORRUPT, "an index that names what is not there");
    put_text("model.safetensors.index.json",
             "{\"weight_map\":{\"model.norm.weight\":\"model.safetensors\","
             "\"lm_head.weight\":\"second.safetensors\"}}");
    put("second.safetensors", tensors, len);
    is_int(open_folder(), ERR_CORRUPT, "two files with the same tensors");
    put_text("model.safetensors.index.json", "{");
    is_int(open_folder(), ERR_SYNTAX, "a broken index");
    drop("model.safetensors.index.json");
    drop("second.safetensors");
}

static void check_weights(const char *config, size_t config_len, const char *tensors, size_t len)
{
    char *text = malloc(config_len + 1), *copy = malloc(len), *at;

    memcpy(text, config, config_len);
    text[config_len] = '\0';
    at = strstr(text, "320"); /* vocab_size */
    memcpy(at, "321", 3);
    put_text("config.json", text);
    is_int(open_folder(), ERR_INVALID, "a vocabulary of another size");
    put("config.json", config, config_len);
    put("model.safetensors", tensors, len - 1);
    is_int(open_folder(), ERR_CORRUPT, "weights cut short");
    put("model.safetensors", tensors, 5);
    is_int(open_folder(), ERR_CORRUPT, "weights of five bytes");
    memcpy(copy, tensors, len);
    at = memmem(copy, len, "lm_head.weight", 14);
    memcpy(at, "lm_heap", 7);
    put("model.safetensors", copy, len);
    is_int(open_folder(), ERR_NOT_FOUND, "a tensor under another name");
    memcpy(copy, tensors, len);
    at = memmem(copy, len, "BF16", 4);
    memcpy(at, "I16\"", 4); /* breaks the header as well */
    put("model.safetensors", copy, len);
    is_int(open_folder(), ERR_CORRUPT, "a broken header");
    drop("model.safetensors");
    is_int(open_folder(), ERR_NOT_FOUND, "no weights");
    drop("config.json");
    is_int(open_folder(), ERR_NOT_FOUND, "no config.json");
    put("config.json", config, config_len);
    put("model.safetensors", tensors, len);
    free(text);
    free(copy);
}

/* Tensors that only some families have, each under another name. */
static void check_families(void)
{
    static const char *const names[] = {"embed_tokens_per_layer", "per_layer_model_projection",
                                        "layers.3.per_layer_input_gate", "layers.6.layer_scalar",
                                        "layers.1.post_per_layer_input_norm"};
    size_t config_len, len;
    char *config = golden("tests/golden/families/gemma4/config.json", &config_len);
    char *tensors = golden("tests/golden/families/gemma4/model.safetensors", &len);

    put("config.json", config, config_len);
    put("model.safetensors", tensors, len);
    is_int(open_folder(), ERR_OK, "a Gemma 4 opens");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *at = memmem(tensors, len, names[i], strlen(names[i]));

        at[strlen(names[i]) - 1] ^= 1;
        put("model.safetensors", tensors, len);
        is_int(open_folder(), ERR_NOT_FOUND, "not without %s", names[i]);
        at[strlen(names[i]) - 1] ^= 1;
    }
    free(config);
    free(tensors);
}

static void check_memory(void)
{
    int n = 0, rc = ERR_NO_MEMORY;

    while (rc == ERR_NO_MEMORY && n < 1000) {
        fault_arm(FAULT_mem_alloc, ++n, false);
        rc = open_folder();
    }
    ok(n > 10 && n < 1000, "%d failing allocations are each reported", n - 1);
    is_int(rc, ERR_OK, "and then the model opens");
}

/* Also on a card that only counts memory, as quire plan opens it. */
static void check_two_shapes(void)
{
    struct model_options o = options();
    struct model *m = NULL;

    o.dir = tap_path("tests/golden/families/gemma4");
    is_int(model_open(&m, &o), ERR_OK, "layers with heads of two sizes open on the cpu device");
    model_close(m);
    m = NULL;
    o.device = "card:h200";
    o.dummy_weights = true;
    o.gpu_memory_utilization = 0.5;
    is_int(model_open(&m, &o), ERR_OK, "and on a card");
    model_close(m);
}

int main(void)
{
    size_t config_len, len;
    char *config = golden("tests/golden/llama-gqa/config.json", &config_len);
    char *tensors = golden("tests/golden/llama-gqa/model.safetensors", &len);
    char first[HASH_BYTES];
    struct model_options o = options();
    struct model *m = NULL;

    if (mkdtemp(dir) == NULL)
        tap_skip_all("no folder in /tmp");
    put("config.json", config, config_len);
    put("model.safetensors", tensors, len);
    is_int(model_open(&m, &o), ERR_OK, "the undamaged folder opens");
    if (m != NULL)
        memcpy(first, model_shape(m)->fingerprint.bytes, sizeof first);
    model_close(m);
    m = NULL;
    check_options();
    check_chunks();
    check_index(tensors, len);
    check_weights(config, config_len, tensors, len);
    tensors[len - 1] ^= 1;
    put("model.safetensors", tensors, len);
    is_int(model_open(&m, &o), ERR_OK, "one bit of a weight differs");
    ok(m != NULL && memcmp(first, model_shape(m)->fingerprint.bytes, sizeof first) != 0,
       "and so does the fingerprint");
    model_close(m);
    check_families();
    check_two_shapes();
    put("config.json", config, config_len);
    put("model.safetensors", tensors, len);
    check_memory();
    drop("config.json");
    drop("model.safetensors");
    rmdir(dir);
    free(config);
    free(tensors);
    return tap_done();
}
