/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads PEFT's folders.
 *
 * The file of matrices is read into memory, not mapped: a file that becomes shorter later must not
 * raise SIGBUS in a server. Names are "base_model.model." + module + ".lora_A.weight" and
 * ".lora_B.weight". Whatever an adapter has beside such pairs is refused by its name, because to
 * leave it out would give other texts than it was trained for. */
#include "model/adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <regex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/must.h"
#include "model/torch_zip.h"

#define CONFIG_BYTES_MAX ((size_t)1 << 20)
#define FILE_BYTES_MAX   ((size_t)64 << 30)

struct adapter {
    struct arena arena; /* names, the list of tensors, the pairs */
    uint8_t *bytes;     /* the file of matrices */
    size_t n_bytes;
    struct hash digest;
    struct adapter_pair *pairs; /* [n_pairs], by name */
    size_t n_pairs;
    int rank;
    void *images[ADAPTER_IMAGES]; /* NULL: none */
    size_t image_bytes;           /* of all */
};

/* Reading of one folder. */
struct reading {
    struct adapter *adapter;
    const char *dir;
    const struct json *config;
    int rank_max;
    char *why;
    size_t why_cap;
};

/* Write the reason for an error. Returns rc. */
__attribute__((format(printf, 3, 4))) static int adapter_refuse(const struct reading *r, int rc,
                                                                const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(r->why, r->why_cap, format, args); /* cut is fine */
    va_end(args);
    return rc;
}

/* --- files ------------------------------------------------------------------------------ */

/* Read n bytes of an open file. */
static int adapter_read_all(int fd, uint8_t *to, size_t n)
{
    for (size_t done = 0; done < n;) { /* ends: each pass reads at least one byte or returns */
        ssize_t got = read(fd, to + done, n - done);

        if (got == -1 && errno == EINTR)
            continue;
        if (got == -1)
            return ERR_IO;
        if (got == 0)
            return ERR_CORRUPT;
        done += (size_t)got;
    }
    return ERR_OK;
}

/* A whole regular file, followed by a NUL. ERR_NOT_FOUND is silent: there may be another name. */
static int adapter_read_file(const struct reading *r, const char *name, size_t most, uint8_t **out,
                             size_t *out_len)
{
    char path[4096];
    uint8_t *bytes = NULL;
    struct stat st;
    int fd, rc = ERR_IO;

    if (snprintf(path, sizeof path, "%s/%s", r->dir, name) >= (int)sizeof path)
        return adapter_refuse(r, ERR_INVALID, "the path is too long");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd == -1) {
        if (errno == ENOENT || errno == ENOTDIR)
            return ERR_NOT_FOUND;
        return adapter_refuse(r, ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (fstat(fd, &st) == -1 || !S_ISREG(st.st_mode) || (size_t)st.st_size > most) {
        rc = adapter_refuse(r, ERR_CORRUPT, "%s: not a file of at most %zu bytes", path, most);
        goto out;
    }
    if ((bytes = mem_alloc((size_t)st.st_size + 1)) == NULL) {
        rc = adapter_refuse(r, ERR_NO_MEMORY, "%s: no memory for its %zu bytes", path,
                            (size_t)st.st_size);
        goto out;
    }
    rc = adapter_read_all(fd, bytes, (size_t)st.st_size);
    if (rc != ERR_OK) {
        rc = adapter_refuse(r, rc, "%s: %s", path,
                            rc == ERR_IO ? strerror(errno) : "it became shorter while it was read");
        goto out;
    }
    bytes[st.st_size] = '\0';
    *out = bytes;
    *out_len = (size_t)st.st_size;
    bytes = NULL;
out:
    mem_free(bytes);
    (void)close(fd); /* was only read */
    return rc;
}

/* --- the configuration ------------------------------------------------------------------ */

/* True for null, false, an empty text, list or object: the field asks for nothing. */
static bool adapter_is_off(const struct json *field)
{
    if (field == NULL)
        return true;
    switch (field->kind) {
    case JSON_NULL: return true;
    case JSON_BOOL: return !field->flag;
    case JSON_TEXT: return field->text_len == 0;
    case JSON_LIST:
    case JSON_OBJECT: return field->n == 0;
    case JSON_INT:
    case JSON_UINT:
    case JSON_REAL: break;
    }
    return false;
}

/* Fields that scales depend on: another type would be another number to PEFT, or none. */
static int adapter_check_types(const struct reading *r)
{
    static const struct {
        const char *name;
        enum json_kind kind;
    } fields[] = {{"bias", JSON_TEXT},
                  {"use_rslora", JSON_BOOL},
                  {"rank_pattern", JSON_OBJECT},
                  {"alpha_pattern", JSON_OBJECT}};

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const struct json *value = json_get(r->config, fields[i].name);

        if (value != NULL && value->kind != JSON_NULL && value->kind != fields[i].kind)
            return adapter_refuse(r, ERR_INVALID,
                                  "adapter_config.json: %s is of another type than PEFT writes",
                                  fields[i].name);
    }
    return ERR_OK;
}

/* Fields that change what the matrices mean, or that add others to them. */
static int adapter_check_kind(const struct reading *r)
{
    static const char *const others[] = {"use_dora",
                                         "modules_to_save",
                                         "layer_replication",
                                         "target_parameters",
                                         "lora_bias",
                                         "trainable_token_indices",
                                         "alora_invocation_tokens",
                                         "arrow_config",
                                         "use_qalora",
                                         "use_bdlora",
                                         "kasa_config",
                                         "monteclora_config"};
    /* Those whose names begin so change the base model's matrices, too. */
    static const char *const inits[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    const char *type = json_get_text(r->config, "peft_type", "");
    const char *bias = json_get_text(r->config, "bias", "none");
    const char *init = json_get_text(r->config, "init_lora_weights", "");

    if (strcmp(type, "LORA") != 0)
        return adapter_refuse(r, ERR_UNSUPPORTED,
                              "adapter_config.json: peft_type is \"%.40s\"; LORA is read", type);
    if (strcmp(bias, "none") != 0)
        return adapter_refuse(r, ERR_UNSUPPORTED,
                              "adapter_config.json: bias \"%.40s\" is not supported; none is",
                              bias);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (!adapter_is_off(json_get(r->config, others[i])))
            return adapter_refuse(r, ERR_UNSUPPORTED, "adapter_config.json: %s is not supported",
                                  others[i]);
    }
    for (size_t i = 0; i < sizeof inits / sizeof inits[0]; i++) {
        if (strncmp(init, inits[i], strlen(inits[i])) == 0)
            return adapter_refuse(r, ERR_UNSUPPORTED,
                                  "adapter_config.json: init_lora_weights \"%.40s\" changes the "
                                  "base model too; save it with path_initial_model_for_weight_"
                                  "conversion",
                                  init);
    }
    return ERR_OK;
}

/* Can the expression be compiled and tried in little memory and time? Counted repetitions that are
 * nested, such as ((a{1,255}){1,255}){1,255}, took all memory of the engine; references to groups
 * take time without bound. */
static bool adapter_key_is_cheap(const char *key)
{
    for (const char *at = key; *at != '\0'; at++) {
        if (*at == '{' || (*at == '\\' && at[1] >= '1' && at[1] <= '9'))
            return false;
    }
    return true;
}

/* Does a key of rank_pattern or alpha_pattern name the module? PEFT looks for
 * "(.*\.)?(key)$" from the module's start on. */
static int adapter_key_matches(const struct reading *r, const char *key, const char *module,
                               bool *matches)
{
    char pattern[1024];
    regex_t regex;

    if (!adapter_key_is_cheap(key) ||
        snprintf(pattern, sizeof pattern, "^(.*\\.)?(%s)$", key) >= (int)sizeof pattern ||
        regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB) != 0)
        return adapter_refuse(r, ERR_INVALID,
                              "adapter_config.json: \"%.100s\" is not an expression that is read",
                              key);
    *matches = regexec(&regex, module, 0, NULL, 0) == 0;
    regfree(&regex);
    return ERR_OK;
}

/* A module's number: that of the first key of `patterns` that names it, else the common one. */
static int adapter_number(const struct reading *r, const char *patterns, const char *common,
                          const char *module, double *out)
{
    const struct json *all = json_get_kind(r->config, patterns, JSON_OBJECT);
    const struct json *found = json_get(r->config, common);
    int rc;

    for (uint32_t i = 0; all != NULL && i < all->n; i++) {
        bool matches = false;

        if ((rc = adapter_key_matches(r, all->items[i].key, module, &matches)) != ERR_OK)
            return rc;
        if (!matches)
            continue;
        found = &all->items[i];
        break;
    }
    if (!json_is_number(found) || !isfinite(json_real(found)))
        return adapter_refuse(r, ERR_INVALID, "adapter_config.json: %s is missing or not a number",
                              common);
    *out = json_real(found);
    return ERR_OK;
}

/* --- matrices --------------------------------------------------------------------------- */

static bool adapter_is_plain(const struct tensor *t)
{
    return strcmp(t->dtype, "F32") == 0 || strcmp(t->dtype, "BF16") == 0 ||
           strcmp(t->dtype, "F16") == 0;
}

/* Are all numbers finite, also as bfloat16? A GPU multiplies other requests' zeros by b's. */
static bool adapter_is_finite(const struct tensor *t)
{
    size_t n = (size_t)t->dims[0] * (size_t)t->dims[1];
    const uint8_t *from = t->data;
    uint32_t none = t->dtype[0] == 'B' ? 0x7f80U : 0x7c00U, n_bad = 0;

    if (strcmp(t->dtype, "F32") == 0) {
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;

            memcpy(&bits, from + 4 * i, sizeof bits);
            n_bad += (bits & 0x7fffffffU) >= 0x7f7f8000U;
        }
        return n_bad == 0;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;

        memcpy(&bits, from + 2 * i, sizeof bits);
        n_bad += (bits & none) == none;
    }
    return n_bad == 0;
}

/* If the name ends in ".lora_A.weight" or with another `letter`, the length of the module's name
 * before it; else 0. PEFT may put the adapter's name before ".weight". */
static size_t adapter_stem(const char *name, char letter)
{
    const char endings[2][32] = {{".lora_?.weight"}, {".lora_?.default.weight"}};
    size_t len = strlen(name);

    for (int i = 0; i < 2; i++) {
        size_t n = strlen(endings[i]);
        const char *at = name + len - n;

        if (len > n && strncmp(at, ".lora_", 6) == 0 && at[6] == letter &&
            strcmp(at + 7, endings[i] + 7) == 0)
            return len - n;
    }
    return 0;
}

/* Add the pair of an A. */
static int adapter_add_pair(struct reading *r, const struct tensor_list *list,
                            const struct tensor *a, size_t stem)
{
    static const char prefix[] = "base_model.model.";
    struct adapter *adapter = r->adapter;
    struct adapter_pair *pair = &adapter->pairs[adapter->n_pairs];
    size_t skip = strncmp(a->name, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0;
    double rank, alpha;
    int rc;

    if (stem <= skip)
        return adapter_refuse(r, ERR_INVALID, "tensor %.200s is of no module", a->name);
    *pair = (struct adapter_pair){.a = a};
    for (size_t i = 0; i < list->n && pair->b == NULL; i++) {
        const struct tensor *b = &list->tensors[i];

        if (adapter_stem(b->name, 'B') == stem && strncmp(a->name, b->name, stem) == 0)
            pair->b = b;
    }
    if (pair->b == NULL)
        return adapter_refuse(r, ERR_INVALID, "tensor %.200s has no lora_B beside it", a->name);
    pair->module = arena_strndup(&adapter->arena, a->name + skip, stem - skip);
    if (pair->module == NULL)
        return adapter_refuse(r, ERR_NO_MEMORY, "no memory for names");
    if ((rc = adapter_number(r, "rank_pattern", "r", pair->module, &rank)) != ERR_OK ||
        (rc = adapter_number(r, "alpha_pattern", "lora_alpha", pair->module, &alpha)) != ERR_OK)
        return rc;
    if (rank < 1 || rank > r->rank_max || rank != floor(rank))
        return adapter_refuse(r, ERR_INVALID, "%.200s has rank %g; 1 to %d is read (max_lora_rank)",
                              pair->module, rank, r->rank_max);
    pair->rank = (int)rank;
    pair->scale =
        (float)(json_get_bool(r->config, "use_rslora", false) ? alpha / sqrt(rank) : alpha / rank);
    /* For the same reason as adapter_is_finite(). */
    if (!isfinite(pair->scale))
        return adapter_refuse(r, ERR_INVALID,
                              "%.200s: lora_alpha %g of rank %g is too large for a float32",
                              pair->module, alpha, rank);
    if (a->n_dims != 2 || pair->b->n_dims != 2 || a->dims[0] != pair->rank ||
        pair->b->dims[1] != pair->rank)
        return adapter_refuse(r, ERR_INVALID,
                              "%.200s: lora_A and lora_B are not [%d][...] and [...][%d], as the "
                              "rank of adapter_config.json says",
                              pair->module, pair->rank, pair->rank);
    if (!adapter_is_plain(a) || !adapter_is_plain(pair->b))
        return adapter_refuse(r, ERR_UNSUPPORTED,
                              "%.200s has matrices of type %.20s and %.20s; F32, BF16 and F16 are "
                              "read",
                              pair->module, a->dtype, pair->b->dtype);
    if (!adapter_is_finite(pair->b))
        return adapter_refuse(r, ERR_INVALID, "%.200s: lora_B has numbers that are not finite",
                              pair->module);
    if (pair->rank > adapter->rank)
        adapter->rank = pair->rank;
    adapter->n_pairs++;
    return ERR_OK;
}

static int adapter_by_module(const void *a, const void *b)
{
    return strcmp(((const struct adapter_pair *)a)->module,
                  ((const struct adapter_pair *)b)->module);
}

/* Each tensor is one half of a pair, or the adapter is refused. */
static int adapter_pair_tensors(struct reading *r, const struct tensor_list *list)
{
    struct adapter *adapter = r->adapter;
    size_t n_b = 0;
    int rc;

    adapter->pairs = arena_zalloc(&adapter->arena, (list->n + 1) * sizeof *adapter->pairs);
    if (adapter->pairs == NULL)
        return adapter_refuse(r, ERR_NO_MEMORY, "no memory for %zu tensors", list->n);
    for (size_t i = 0; i < list->n; i++) {
        const struct tensor *t = &list->tensors[i];
        size_t stem = adapter_stem(t->name, 'A');

        if (adapter_stem(t->name, 'B') > 0) {
            n_b++;
            continue;
        }
        if (strstr(t->name, "lora_embedding_") != NULL)
            return adapter_refuse(r, ERR_UNSUPPORTED,
                                  "tensor %.200s: adapters of embeddings are not supported",
                                  t->name);
        if (strstr(t->name, "lora_magnitude_vector") != NULL)
            return adapter_refuse(r, ERR_UNSUPPORTED, "tensor %.200s: DoRA is not supported",
                                  t->name);
        if (stem == 0)
            return adapter_refuse(
                r, ERR_UNSUPPORTED,
                "tensor %.200s is neither a lora_A nor a lora_B matrix; PEFT leaves the "
                "base model's own out with save_embedding_layers=False",
                t->name);
        if ((rc = adapter_add_pair(r, list, t, stem)) != ERR_OK)
            return rc;
    }
    if (adapter->n_pairs == 0 || n_b != adapter->n_pairs)
        return adapter_refuse(r, ERR_INVALID, "%zu lora_A and %zu lora_B matrices are no pairs",
                              adapter->n_pairs, n_b);
    qsort(adapter->pairs, adapter->n_pairs, sizeof *adapter->pairs, adapter_by_module);
    return ERR_OK;
}

/* --- the folder ------------------------------------------------------------------------- */

/* The text lives as long as the arena, as parsed JSON does. */
static int adapter_read_config(struct reading *r, struct hash *digest)
{
    uint8_t *text = NULL;
    size_t len = 0;
    char why[200];
    int rc = adapter_read_file(r, "adapter_config.json", CONFIG_BYTES_MAX, &text, &len);

    if (rc == ERR_NOT_FOUND)
        return adapter_refuse(r, rc, "%s: there is no adapter_config.json", r->dir);
    if (rc != ERR_OK)
        return rc;
    rc = json_parse(&r->config, &r->adapter->arena, (const char *)text, len, why, sizeof why);
    *digest = hash_sha256(text, len, NULL, 0);
    mem_free(text);
    if (rc != ERR_OK)
        return adapter_refuse(r, rc, "adapter_config.json: %s",
                              rc == ERR_NO_MEMORY ? err_sentence(rc) : why);
    if (r->config->kind != JSON_OBJECT)
        return adapter_refuse(r, ERR_SYNTAX, "adapter_config.json: it is not an object");
    rc = adapter_check_types(r);
    return rc != ERR_OK ? rc : adapter_check_kind(r);
}

static int adapter_read_matrices(struct reading *r, struct tensor_list *list)
{
    struct adapter *adapter = r->adapter;
    const char *name = "adapter_model.safetensors";
    char why[ADAPTER_WHY_CAP];
    int rc = adapter_read_file(r, name, FILE_BYTES_MAX, &adapter->bytes, &adapter->n_bytes);

    if (rc == ERR_OK)
        rc = safetensors_parse(list, &adapter->arena, adapter->bytes, adapter->n_bytes, why,
                               sizeof why);
    else if (rc == ERR_NOT_FOUND) {
        name = "adapter_model.bin";
        rc = adapter_read_file(r, name, FILE_BYTES_MAX, &adapter->bytes, &adapter->n_bytes);
        if (rc == ERR_NOT_FOUND)
            return adapter_refuse(r, rc,
                                  "%s: there is neither adapter_model.safetensors nor "
                                  "adapter_model.bin",
                                  r->dir);
        if (rc == ERR_OK)
            rc = torch_zip_parse(list, &adapter->arena, adapter->bytes, adapter->n_bytes, why,
                                 sizeof why);
    }
    if (rc != ERR_OK && adapter->bytes != NULL)
        return adapter_refuse(r, rc, "%s: %s", name, rc == ERR_NO_MEMORY ? err_sentence(rc) : why);
    return rc;
}

static int adapter_read(struct reading *r)
{
    struct tensor_list list;
    struct hash config;
    int rc = adapter_read_config(r, &config);

    if (rc != ERR_OK || (rc = adapter_read_matrices(r, &list)) != ERR_OK)
        return rc;
    r->adapter->digest =
        hash_sha256(config.bytes, sizeof config.bytes, r->adapter->bytes, r->adapter->n_bytes);
    return adapter_pair_tensors(r, &list);
}

int adapter_open(struct adapter **out, const char *dir, int rank_max, char *why, size_t why_cap)
{
    struct adapter *adapter = mem_zalloc(sizeof *adapter);
    struct reading reading = {
        .adapter = adapter, .dir = dir, .rank_max = rank_max, .why = why, .why_cap = why_cap};
    int rc;

    if (adapter == NULL)
        return adapter_refuse(&reading, ERR_NO_MEMORY, "no memory for an adapter");
    rc = adapter_read(&reading);
    if (rc != ERR_OK) {
        adapter_close(adapter);
        return rc;
    }
    *out = adapter;
    return ERR_OK;
}

void adapter_close(struct adapter *a)
{
    if (a == NULL)
        return;
    arena_reset(&a->arena);
    mem_free(a->bytes);
    for (int i = 0; i < ADAPTER_IMAGES; i++)
        mem_free(a->images[i]);
    mem_free(a);
}

void *adapter_image(const struct adapter *a, int idx)
{
    return a->images[idx];
}

void adapter_keep_image(struct adapter *a, int idx, void *image, size_t n_bytes)
{
    must(idx >= 0 && idx < ADAPTER_IMAGES && a->images[idx] == NULL);
    a->images[idx] = image;
    a->image_bytes += n_bytes;
}

struct hash adapter_digest(const struct adapter *a)
{
    return a->digest;
}

size_t adapter_bytes(const struct adapter *a)
{
    return a->image_bytes + a->n_bytes + a->arena.used_bytes;
}

int adapter_rank(const struct adapter *a)
{
    return a->rank;
}

size_t adapter_n_pairs(const struct adapter *a)
{
    return a->n_pairs;
}

const struct adapter_pair *adapter_pair(const struct adapter *a, size_t i)
{
    return &a->pairs[i];
}

/* F16 to float32: as the type is defined, without tables, because files may be read anywhere. */
static float adapter_half(uint16_t h)
{
    int exponent = h >> 10 & 31;
    float fraction = (float)(h & 1023), value;

    if (exponent == 31)
        value = fraction == 0.0f ? INFINITY : NAN;
    else if (exponent == 0)
        value = ldexpf(fraction, -24);
    else
        value = ldexpf(fraction + 1024.0f, exponent - 25);
    return (h & 0x8000) != 0 ? -value : value;
}

/* The bytes need not be aligned. */
void adapter_numbers(const struct tensor *t, size_t at, float *to, size_t n)
{
    const uint8_t *from = t->data;

    if (strcmp(t->dtype, "F32") == 0) {
        memcpy(to, from + at * sizeof *to, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        uint32_t bits;

        memcpy(&half, from + 2 * (at + i), sizeof half);
        if (t->dtype[0] == 'F') {
            to[i] = adapter_half(half);
            continue;
        }
        bits = (uint32_t)half << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

#define SOME 256 /* numbers on the stack */

static uint16_t adapter_round(float number)
{
    uint32_t bits;

    memcpy(&bits, &number, sizeof bits);
    if ((bits & 0x7fffffffU) > 0x7f800000U)
        return (uint16_t)(bits >> 16 | 64);
    return (uint16_t)((bits + 0x7fffU + (bits >> 16 & 1)) >> 16);
}

void adapter_bf16(const struct tensor *t, size_t at, uint16_t *to, size_t n)
{
    if (t->dtype[0] == 'B') {
        memcpy(to, (const uint8_t *)t->data + 2 * at, 2 * n);
        return;
    }
    for (size_t done = 0; done < n; done += SOME) {
        size_t some = n - done < SOME ? n - done : SOME;
        float numbers[SOME];

        adapter_numbers(t, at + done, numbers, some);
        for (size_t i = 0; i < some; i++)
            to[done + i] = adapter_round(numbers[i]);
    }
}
