/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice of tokens against its reference, and attention over them: sizes of released models and
 * odd ones, a padding sequence, a decode, a chunk, texts shorter than the choice. Numbers are whole
 * and turns are quarters, so that sums are exact and choices the same, also where many scores are
 * equal. */
#include "kernels/index.h"
#include "tests/kernel/gpu.h"

#define SEQS      4
#define TOKENS    40
#define PAGE      16
#define PAGES_MAX 320
#define N_PAGES   (SEQS * PAGES_MAX)
#define LEN_MAX   (PAGE * PAGES_MAX)

static const struct {
    struct k_index_shape shape;
    int latent, value, heads; /* of attention */
    bool interleaved;
    int most; /* of a number's size: small ones have many equal sums */
} cases[] = {
    {{64, 128, 64, 2048}, 576, 512, 16, false, 3}, {{32, 128, 64, 2048}, 576, 512, 64, true, 2},
    {{64, 128, 64, 300}, 576, 512, 128, false, 3}, {{5, 14, 6, 9}, 28, 20, 4, true, 2},
    {{9, 16, 8, 700}, 40, 32, 3, false, 1},        {{1, 2, 2, 1}, 24, 16, 5, false, 1}};

static const int32_t starts[SEQS + 1] = {0, 1, 2, 36, TOKENS}, lens[SEQS] = {0, 5000, 3001, 4};

static int32_t table[SEQS * PAGES_MAX], seqs[TOKENS], positions[TOKENS];

/* Whole numbers of -most .. most. */
static float *draw(size_t n, int most)
{
    float *f = malloc(n * sizeof *f);

    for (size_t i = 0; i < n; i++)
        f[i] = floorf((gpu_uniform() + 1.0f) * 0.5f * (float)(2 * most + 1)) - (float)most;
    return f;
}

/* Position p turns pair i by p + i quarters. */
static float *make_turns(int rope_dim)
{
    static const float cosines[4] = {1.0f, 0.0f, -1.0f, 0.0f};
    float *turns = malloc(sizeof *turns * LEN_MAX * (size_t)rope_dim);

    for (int p = 0; p < LEN_MAX; p++) {
        for (int i = 0; i < rope_dim / 2; i++) {
            turns[p * rope_dim + 2 * i] = cosines[(p + i) % 4];
            turns[p * rope_dim + 2 * i + 1] = cosines[(p + i + 3) % 4];
        }
    }
    return turns;
}

static struct k_tokens make_tokens(struct k_tokens *dev)
{
    struct k_tokens t = {.seq = seqs,
                         .pos = positions,
                         .seq_start = starts,
                         .kv_len = lens,
                         .page_ids = table,
                         .n_tokens = TOKENS,
                         .n_seqs = SEQS,
                         .pages_max = PAGES_MAX};

    for (int s = 0; s < SEQS; s++) {
        for (int i = starts[s]; i < starts[s + 1]; i++) {
            seqs[i] = s;
            positions[i] = lens[s] == 0 ? 0 : lens[s] - starts[s + 1] + i;
        }
    }
    for (int i = 0; i < N_PAGES; i++)
        table[i] = i * 7 % N_PAGES;
    *dev = t;
    dev->seq = gpu_array(seqs, sizeof seqs);
    dev->pos = gpu_array(positions, sizeof positions);
    dev->seq_start = gpu_array(starts, sizeof starts);
    dev->kv_len = gpu_array(lens, sizeof lens);
    dev->page_ids = gpu_array(table, sizeof table);
    return t;
}

/* Numbers of a case on the host, and what the device has of them. */
struct index_case {
    float *pages, *queries, *weights, *norm, *bias, *absorbed, *keys, *turns;
    struct k_index x, dx;
    struct k_kv kv, dkv, of_keys, dof_keys;
    struct k_tokens t, dt;
};

static void make_case(struct index_case *c, int which)
{
    const struct k_index_shape *s = &cases[which].shape;
    int most = cases[which].most, latent = cases[which].latent;
    size_t dim = (size_t)s->dim, heads = (size_t)s->n_heads;
    size_t elems = PAGE * ((size_t)latent + dim);

    c->t = make_tokens(&c->dt);
    c->pages = draw(N_PAGES * elems, most);
    c->queries = draw(TOKENS * heads * dim, most);
    c->weights = draw(TOKENS * heads, most);
    c->norm = draw(dim, 2);
    c->bias = draw(dim, 2);
    c->absorbed = draw((size_t)(TOKENS * cases[which].heads * latent), 1);
    c->keys = draw(TOKENS * dim, most);
    c->turns = make_turns(s->rope_dim);
    c->x = (struct k_index){.shape = *s,
                            .norm = c->norm,
                            .bias = c->bias,
                            .turns = c->turns,
                            .interleaved = cases[which].interleaved,
                            .eps = 1e-6f,
                            .scores_len = LEN_MAX};
    c->dx = c->x;
    c->dx.norm = gpu_bf16(c->norm, dim);
    c->dx.bias = gpu_bf16(c->bias, dim);
    c->dx.turns = gpu_array(c->turns, sizeof(float) * LEN_MAX * (size_t)s->rope_dim);
    c->dx.scores = gpu_array(NULL, sizeof(float) * K_INDEX_BLOCKS * LEN_MAX);
    c->kv = (struct k_kv){.pages = c->pages,
                          .page_elems = elems,
                          .n_kv_heads = 1,
                          .head_dim = latent,
                          .value_dim = cases[which].value,
                          .page_tokens = PAGE,
                          .type = K_BF16,
                          .is_shared = true};
    c->of_keys = c->kv;
    c->of_keys.layer_elems = PAGE * (size_t)latent;
    c->of_keys.head_dim = c->of_keys.value_dim = s->dim;
    c->dkv = c->kv;
    c->dof_keys = c->of_keys;
    c->dkv.pages = c->dof_keys.pages = gpu_bf16(c->pages, N_PAGES * elems);
}

static void free_case(struct index_case *c)
{
    free(c->pages), free(c->queries), free(c->weights), free(c->norm), free(c->bias);
    free(c->absorbed), free(c->keys), free(c->turns);
}

/* What the device's attention over chosen positions gives; the padding token's is not written. */
static void check_attention(const struct index_case *c, int which, const int32_t *chosen,
                            const int32_t *dchosen)
{
    const struct k_choice on_host = {chosen, c->x.shape.n_keys},
                          on_device = {dchosen, c->x.shape.n_keys};
    int heads = cases[which].heads;
    size_t own = (size_t)(heads * cases[which].value), n = TOKENS * own;
    float *want = calloc(n, sizeof *want), *scratch = malloc(LEN_MAX * sizeof *scratch), *got;
    k_bf16 *out = gpu_array(NULL, n * sizeof *out);
    k_bf16 *queries = gpu_bf16(c->absorbed, (size_t)(TOKENS * heads * cases[which].latent));

    gpu_must(k_attn_chosen(out, queries, &c->dkv, &c->dt, &on_device, heads, 0.02f,
                           device_cuda_stream(gpu)));
    for (int i = heads; i < TOKENS * heads; i++)
        ref_attn_chosen(want, c->absorbed, &c->kv, &c->t, &on_host, heads, 0.02f, i / heads,
                        i % heads, scratch);
    got = gpu_floats(out, n);
    gpu_compare(got + own, want + own, n - own, 1.5e-5, 1.2e-2, "attention");
    free(want), free(scratch), free(got);
}

static void check(int which)
{
    const struct k_index_shape *s = &cases[which].shape;
    size_t n = TOKENS * (size_t)s->n_keys, dim = (size_t)s->dim;
    int32_t *chosen = malloc(n * sizeof *chosen), *got = malloc(n * sizeof *got), *dchosen;
    float *scratch = malloc(2 * LEN_MAX * sizeof *scratch), *pages;
    struct index_case c;

    make_case(&c, which);
    dchosen = gpu_array(NULL, n * sizeof *dchosen);
    printf("# %d heads of %d, %d keys\n", s->n_heads, s->dim, s->n_keys);
    gpu_must(k_index_choose(dchosen, gpu_bf16(c.queries, TOKENS * (size_t)s->n_heads * dim),
                            gpu_array(c.weights, TOKENS * (size_t)s->n_heads * sizeof(float)),
                            &c.dx, &c.dof_keys, &c.dt, device_cuda_stream(gpu)));
    for (int i = 0; i < TOKENS; i++)
        ref_index_choose(chosen, c.queries, c.weights, &c.x, &c.of_keys, &c.t, i, scratch);
    ok(gpu_get(got, dchosen, n * sizeof *got), "guard bands are whole");
    ok(memcmp(got, chosen, n * sizeof *got) == 0, "the same choices");
    check_attention(&c, which, chosen, dchosen);
    gpu_must(k_index_keys(gpu_bf16(c.keys, TOKENS * dim), &c.dx, &c.dof_keys, &c.dt,
                          device_cuda_stream(gpu)));
    ref_index_keys(c.keys, &c.x, &c.of_keys, &c.t, 0, TOKENS);
    pages = gpu_floats(c.dkv.pages, N_PAGES * c.kv.page_elems);
    gpu_compare(pages, c.pages, N_PAGES * c.kv.page_elems, 1e-5, 4.1e-3, "keys in the pages");
    free_case(&c);
    free(chosen), free(got), free(scratch), free(pages);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (gpu_has_turn())
            check((int)i);
    }
    device_close(gpu);
    return tap_done();
}
