/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: a GGUF file with any number in place of a setting's, or without one of its tensors, gives a
 * configuration within bounds, or one of the documented errors. Method: files of
 * tests/golden/gguf, of families whose settings are lists, have experts, choose tokens or stand in
 * for a table in code; each number and flag becomes each of some values, and each tensor in turn
 * has another name. (What is refused by name: tests/golden/test_gguf.c.) */
#include "model/gguf_config.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/log.h"
#include "tests/tap.h"

static const char *const files[] = {"qwen3-moe-wide.gguf", "gemma4-00001-of-00002.gguf",
                                    "deepseek-v32.gguf",   "granite-moe-swa.gguf",
                                    "ernie4-5-moe.gguf",   "glm4v.gguf",
                                    "muse-glimmer.gguf",   "qwen3-next.gguf",
                                    "qwen3.5-moe.gguf",    "nemotron-h-latent.gguf",
                                    "granite-h.gguf",      "kimi-linear.gguf",
                                    "lfm2-moe.gguf"};
/* Small and large numbers, and not-a-number and infinity, by their bits. */
static const uint32_t values[] = {0,           1,           3,           255,         1000000,
                                  0x7fffffffU, 0x80000000U, 0xffffffffU, 0x7fc00000U, 0x7f800000U};

static char root[] = "/tmp/quire-config-XXXXXX";
static char first[200], second[200]; /* second: of a set */
static struct hf_config config;
static int n_tried, n_read, n_wrong;

static uint8_t *contents(const char *name, size_t *len)
{
    char below[200];
    FILE *f;
    uint8_t *bytes;

    snprintf(below, sizeof below, "tests/golden/gguf/%s", name);
    f = fopen(tap_path(below), "rb");
    if (f == NULL)
        return NULL;
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(*len + 1);
    if (fread(bytes, 1, *len, f) != *len)
        *len = 0;
    fclose(f);
    return bytes;
}

static void write_file(const char *path, const uint8_t *bytes, size_t len)
{
    FILE *f = fopen(path, "wb");

    if (f == NULL || fwrite(bytes, 1, len, f) != len || fclose(f) != 0) {
        printf("Bail out! %s cannot be written\n", path);
        exit(1);
    }
}

static bool is_within_bounds(void)
{
    const struct experts_config *e = &config.experts;

    return config.n_layers >= 1 && config.n_layers <= HF_CONFIG_LAYERS_MAX && config.dim >= 1 &&
           config.n_heads >= 1 && config.n_kv_heads >= 1 && config.head_dim >= 1 &&
           config.head_dim <= K_LATENT_RANK_MAX + K_LATENT_ROPE_MAX && config.n_ropes >= 1 &&
           config.n_ropes <= HF_CONFIG_ROPES_MAX && e->n >= 0 && e->n <= K_EXPERTS_MAX &&
           e->n_used <= e->n && config.n_kv_shared < config.n_layers;
}

static void try_file(const uint8_t *bytes, size_t len)
{
    int rc;

    write_file(first, bytes, len);
    rc = gguf_config_read(&config, first, NULL);
    n_tried++;
    n_read += rc == ERR_OK;
    if (rc == ERR_OK ? !is_within_bounds()
                     : rc != ERR_INVALID && rc != ERR_UNSUPPORTED && rc != ERR_NOT_FOUND &&
                           rc != ERR_CORRUPT)
        n_wrong++;
}

/* A number or flag becomes each of the values. */
static void try_values(uint8_t *bytes, size_t len, const struct gguf_value *v)
{
    size_t width = v->kind == GGUF_FLAG ? 1 : 4;
    uint8_t *at = bytes + (v->bytes - bytes), kept[4];

    if (v->kind == GGUF_TEXT || v->len < width)
        return;
    memcpy(kept, at, width);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        memcpy(at, &values[i], width);
        try_file(bytes, len);
    }
    memcpy(at, kept, width);
}

static void try_all(const char *name)
{
    struct arena arena = {.chunks = NULL};
    struct gguf g = {.n_values = 0};
    char why[300] = "";
    size_t len = 0;
    uint8_t *bytes = contents(name, &len);

    if (!ok(bytes != NULL && gguf_parse(&g, &arena, bytes, len, why, sizeof why) == ERR_OK,
            "%s is read: %s", name, why))
        return;
    n_tried = n_read = n_wrong = 0;
    for (size_t i = 0; i < g.n_values; i++)
        try_values(bytes, len, &g.values[i]);
    for (size_t i = 0; i < g.n_tensors; i++) {
        uint8_t *at = memmem(bytes, len, g.tensors[i].name, strlen(g.tensors[i].name));
        uint8_t kept = at[0];

        at[0] = 'X';
        try_file(bytes, len);
        at[0] = kept;
    }
    ok(n_wrong == 0 && n_read > 0 && n_read < n_tried, "%s: %d of %d damaged ones are read", name,
       n_read, n_tried);
    arena_reset(&arena);
    free(bytes);
}

int main(void)
{
    size_t len = 0;
    uint8_t *bytes;

    if (mkdtemp(root) == NULL)
        tap_skip_all("no temporary folder");
    log_set_level(LOG_LEVEL_NONE);
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        bool is_set = strstr(files[i], "-of-00002") != NULL;

        snprintf(first, sizeof first, "%s/x%s.gguf", root, is_set ? "-00001-of-00002" : "");
        snprintf(second, sizeof second, "%s/x-00002-of-00002.gguf", root);
        if (is_set && (bytes = contents("gemma4-00002-of-00002.gguf", &len)) != NULL) {
            write_file(second, bytes, len);
            free(bytes);
        }
        try_all(files[i]);
        (void)unlink(first);
        (void)unlink(second); /* of a set only */
    }
    (void)rmdir(root);
    return tap_done();
}
