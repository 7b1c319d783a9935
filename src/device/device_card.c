/* SPDX-License-Identifier: Apache-2.0
 *
 * A card that does not exist: it counts the memory that a model would take on a GPU, and computes
 * nothing.
 *
 * `quire plan` opens a model on it, so that weights, pages and activations are exactly those that
 * the engine would allocate, because the same code asks for them. Work areas that the cuda device
 * allocates by itself are added up in card_reserve(), and the memory that CUDA and its libraries
 * keep is a measured constant. Pointers are numbers that are never dereferenced. */
#include "config.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "device/gemm_table.h"
#include "kernels/mixing.h"

#define CARD_KEPT_BYTES      ((size_t)1100 << 20) /* context, modules, cuBLASLt on an H200 */
#define CARD_WORKSPACE_BYTES ((size_t)32 << 20)   /* of products, as in device_cuda.c */
#define CARD_HISTORY_TOKENS  ((size_t)2 << 20)    /* as in step_cuda.c */
#define CARD_ALIGN           ((size_t)512)
#define CARD_MIB_MAX         (16 << 20)

struct card {
    struct device base;              /* first */
    size_t total_bytes, taken_bytes; /* the second by another model */
    size_t next;                     /* the pointer of the next allocation */
    int n_ranks;
    bool takes_rows; /* of the stage before */
    bool is_portable;
};

static const struct card_kind {
    const char *name;
    size_t mib;       /* as the driver reports */
    bool is_portable; /* has the portable kernels */
} cards[] = {{"h200", 143771, false},   {"h100", 81559, false},   {"h100-nvl", 95830, false},
             {"gh200", 97871, false},   {"a100", 81920, true},    {"l40s", 46068, true},
             {"rtx-4090", 24564, true}, {"rtx-5090", 32607, true}};

/* base is the first member. */
static struct card *card_of(struct device *d)
{
    return (struct card *)d;
}

static void card_close(struct device *d)
{
    mem_free(card_of(d));
}

/* --- memory ---------------------------------------------------------------------------- */

/* Allocation fails as on a GPU of that size, so a model that does not fit gives the engine's own
 * messages. Copies and conversions have nothing to do. */

/* Free memory is the card's, less the constant part, less the allocations. */
static int card_free(struct device *d, size_t *free_bytes, size_t *total_bytes)
{
    size_t used = CARD_KEPT_BYTES + card_of(d)->taken_bytes + d->allocated_bytes;

    *total_bytes = card_of(d)->total_bytes;
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
    return ERR_OK;
}

/* Addresses grow by at least CARD_ALIGN, so that no two allocations have the same. */
static void *card_alloc(struct device *d, size_t bytes)
{
    struct card *card = card_of(d);
    size_t at = card->next;

    if (bytes > card->total_bytes ||
        CARD_KEPT_BYTES + card->taken_bytes + d->allocated_bytes + bytes > card->total_bytes)
        return NULL;
    card->next += (bytes + CARD_ALIGN - 1) / CARD_ALIGN * CARD_ALIGN + CARD_ALIGN;
    d->allocated_bytes += bytes;
    return (void *)(uintptr_t)at; /* never dereferenced */
}

static int card_copy(struct device *d, void *dst, const void *src, size_t bytes)
{
    (void)d, (void)dst, (void)src, (void)bytes;
    return ERR_OK;
}

static int card_weights(struct device *d, void *dst, size_t at, const void *src,
                        enum device_type type, size_t n)
{
    (void)d, (void)dst, (void)at, (void)src, (void)type, (void)n;
    return ERR_OK;
}

static int card_fill_random(struct device *d, const struct k_matrix *m, float deviation,
                            uint64_t seed)
{
    (void)d, (void)m, (void)deviation, (void)seed;
    return ERR_OK;
}

/* --- choices that the cuda device would make --------------------------------------------- */

/* Formats decide the bytes of weights, so these answers must equal those of device_cuda.c. */

static bool card_takes(struct device *d, const struct k_matrix *m)
{
    (void)d;
    return gemm_takes(m);
}

static int card_arrange(struct device *d, const struct k_matrix *m, const struct k_mxfp4_rows *rows)
{
    (void)d, (void)m, (void)rows;
    return ERR_OK;
}

static void card_read_products(struct device *d, const char *path, bool expected)
{
    (void)d, (void)path, (void)expected;
}

/* Fused steps need no more memory than others. */
static bool card_few(struct device *d, const struct k_matrix *w, int n)
{
    (void)d, (void)w, (void)n;
    return false;
}

/* Ranks change the sizes in card_reserve() only. */
/* A stage has room for the rows of two steps, which card_reserve() counts. */
static int card_join_stages(struct device *const *all, int n_stages, int n_parts)
{
    for (int i = n_parts; i < n_stages * n_parts; i++)
        card_of(all[i])->takes_rows = true;
    return ERR_OK;
}

static int card_join_ranks(struct device *const *all, int n, enum device_links links)
{
    (void)links;
    for (int i = 0; i < n; i++)
        card_of(all[i])->n_ranks = n;
    return ERR_OK;
}

static void card_leave_ranks(struct device *d)
{
    (void)d;
}

/* As experts_cuda.c. */
static size_t card_experts_bytes(const struct device_limits *limits)
{
    int few = limits->n_tokens < K_MIXING_FEW ? limits->n_tokens : K_MIXING_FEW;
    int least = few + few / limits->n_experts_used + 1;
    const struct k_mixing_sizes sizes = {.n_tokens =
                                             limits->n_tokens < least ? least : limits->n_tokens,
                                         .n_used = limits->n_experts_used,
                                         .n_choices = limits->n_choices,
                                         .n_experts = limits->n_experts + 1,
                                         .ff_dim = limits->expert_dim,
                                         .dim = limits->dim};
    struct k_mixing none;

    return k_mixing_place(&none, NULL, &sizes);
}

/* Add up the arrays of a step, page tables, extras, and areas for products and sums. Sizes follow
 * step_cuda.c and peers_cuda.c. */
static int card_reserve(struct device *d, const struct device_limits *limits)
{
    const size_t tokens = (size_t)limits->n_tokens, seqs = (size_t)limits->n_seqs;
    const size_t vocab = (size_t)limits->n_vocab, n_ranks = (size_t)card_of(d)->n_ranks;
    size_t bytes = CARD_WORKSPACE_BYTES + CARD_HISTORY_TOKENS * sizeof(int32_t);

    d->limits = *limits;
    /* Five arrays per token: ids, sequences, positions, and the two lists of tiles. */
    bytes += tokens * 5 * sizeof(int32_t) + seqs * sizeof(struct k_sample_row);
    bytes += (size_t)limits->n_tables * seqs * (size_t)limits->pages_max * sizeof(int32_t);
    bytes += seqs * (vocab / 8 + DEVICE_BIASES_MAX * sizeof(struct k_bias) +
                     DEVICE_ASKED_MAX * sizeof(struct k_asked) + sizeof(struct k_logprob_row));
    if (limits->n_experts > 0)
        bytes += card_experts_bytes(limits);
    bytes += device_widened_bytes(limits, card_of(d)->is_portable);
    if (n_ranks > 1)
        bytes += K_SUM_INBOX_BYTES(n_ranks);
    if (limits->n_adapters > 0) /* as adapt_cuda.c */
        bytes += (K_ADAPT_SPLITS * tokens * K_ADAPTED_MAX *
                      (size_t)K_ADAPT_STRIDE(limits->adapter_rank) +
                  (size_t)K_PRODUCT_ROWS_MAX * (size_t)limits->ff_dim) *
                 sizeof(float);
    if (card_of(d)->takes_rows)
        bytes += 2 * tokens * (size_t)limits->dim * sizeof(float);
    if (card_alloc(d, bytes) != NULL)
        return ERR_OK;
    return ERR_NO_MEMORY;
}

/* Operations of steps are NULL: a plan never begins one. */
static const struct device_ops card_ops = {
    .close = card_close,
    .free = card_free,
    .alloc = card_alloc,
    .alloc_constant = card_alloc,
    .alloc_scratch = card_alloc,
    .alloc_shared = card_alloc,
    .upload = card_copy,
    .weights = card_weights,
    .fill_random = card_fill_random,
    .takes = card_takes,
    .arrange = card_arrange,
    .read_products = card_read_products,
    .few = card_few,
    .join_ranks = card_join_ranks,
    .join_stages = card_join_stages,
    .leave_ranks = card_leave_ranks,
    .reserve = card_reserve,
};

/* --- opening --------------------------------------------------------------------------- */

/* A card by its name, or by a number of GiB: a Hopper. mib is 0 if the text is neither. */
static struct card_kind card_find(const char *card)
{
    struct card_kind kind = {.name = card};
    char *end;
    long gib;

    for (size_t i = 0; i < sizeof cards / sizeof cards[0]; i++) {
        if (strcmp(card, cards[i].name) == 0)
            return cards[i];
    }
    gib = strtol(card, &end, 10);
    if (*card != '\0' && *end == '\0' && gib > 0 && gib <= CARD_MIB_MAX / 1024)
        kind.mib = (size_t)gib * 1024;
    return kind;
}

int device_card_open(struct device **out, const char *card)
{
    const char *plus = strchr(card, '+');
    char name[64];
    struct card_kind kind;
    struct card *c;

    (void)snprintf(name, sizeof name, "%.*s", plus == NULL ? 63 : (int)(plus - card), card);
    kind = card_find(name);
    if (kind.mib == 0) {
        log_error("device: card \"%s\" is unknown; use h200, h100, h100-nvl, gh200, a100, l40s, "
                  "rtx-4090, rtx-5090, or its memory in GiB",
                  card);
        return ERR_INVALID;
    }
    if ((c = mem_zalloc(sizeof *c)) == NULL)
        return ERR_NO_MEMORY;
    c->base.ops = &card_ops;
    c->base.elem_bytes = sizeof(k_bf16);
    c->base.is_gpu = true;
    c->base.has_adapters = true;
    /* As device_cuda.c, because it rounds up the rows of activations. */
    c->base.rows_multiple = 256;
    c->total_bytes = kind.mib << 20;
    c->taken_bytes = plus == NULL ? 0 : strtoull(plus + 1, NULL, 10);
    c->is_portable = kind.is_portable;
    c->next = CARD_ALIGN;
    c->n_ranks = 1;
    (void)snprintf(c->base.name, sizeof c->base.name, "a card of %zu MiB", kind.mib);
    *out = &c->base;
    return ERR_OK;
}
