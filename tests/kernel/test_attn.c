/* Rotation, pages and attention against their references: every head size class, groups, pages,
 * chunks and decodes mixed, lengths around the limits of blocks, pages and parts; twice the same
 * bits, and a decode alone with the bits it has in a crowd.
 *
 * Weights of the softmax are rounded to bfloat16 in chunks, so those may be off by 2^-8. */
#include "tests/kernel/gpu.h"

#define SEQS_MAX 8

struct attn_case {
    int n_heads, n_kv_heads, head_dim, block_tokens;
    int n_seqs;
    int kv_len[SEQS_MAX], n_new[SEQS_MAX];
};

static const struct attn_case cases[] = {
    {8, 2, 8, 16, 3, {1, 15, 40}, {1, 15, 7}},
    {5, 1, 12, 4, 4, {1, 17, 65, 300}, {1, 17, 3, 1}},
    {6, 3, 16, 16, 3, {64, 128, 129}, {64, 65, 1}},
    {4, 4, 32, 32, 3, {63, 31, 257}, {63, 1, 1}},
    {8, 4, 64, 16, 5, {16, 17, 512, 513, 300}, {16, 1, 1, 1, 129}},
    {14, 2, 64, 16, 2, {70, 600}, {70, 1}},
    {10, 2, 80, 16, 2, {70, 90}, {70, 1}},
    {6, 2, 96, 16, 3, {100, 33, 33}, {37, 33, 1}},
    {32, 8, 128, 16, 6, {1, 2, 255, 256, 1153, 200}, {1, 2, 1, 1, 1, 200}},
    {16, 1, 128, 64, 2, {320, 257}, {64, 1}},
    {32, 2, 128, 1, 2, {33, 20}, {33, 1}},
    {4, 2, 200, 8, 2, {66, 67}, {66, 1}},
    {4, 2, 250, 8, 2, {66, 67}, {66, 1}},
    {2, 1, 256, 16, 3, {130, 700, 3}, {130, 1, 3}},
};

/* Everything of one case, on host and device. */
struct attn_run {
    const struct attn_case *c;
    struct k_tokens host, dev;
    struct k_kv host_kv, dev_kv;
    struct k_attn_plan plan;
    int32_t *seq, *pos, *page_ids, seq_start[SEQS_MAX + 1];
    int n_tokens, width;
    float *qkv, *turns, *pages;
    size_t qkv_size, page_size, out_size;
    k_bf16 *dev_qkv;
    float *dev_turns;
    float scale;
};

static void place(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    int pages_max = 0, n_pages = 0, t = 0;

    for (int s = 0; s < c->n_seqs; s++) {
        int n = (c->kv_len[s] + c->block_tokens - 1) / c->block_tokens;

        pages_max = n > pages_max ? n : pages_max;
        n_pages += n;
        r->seq_start[s] = r->n_tokens;
        r->n_tokens += c->n_new[s];
    }
    r->seq_start[c->n_seqs] = r->n_tokens;
    r->seq = calloc((size_t)r->n_tokens, 4);
    r->pos = calloc((size_t)r->n_tokens, 4);
    r->page_ids = calloc((size_t)(pages_max * c->n_seqs), 4);
    for (int s = 0, page = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < c->n_new[s]; i++, t++) {
            r->seq[t] = s;
            r->pos[t] = c->kv_len[s] - c->n_new[s] + i;
        }
        for (int p = 0; p < (c->kv_len[s] + c->block_tokens - 1) / c->block_tokens; p++)
            r->page_ids[s * pages_max + p] = page++ * 7 % n_pages; /* shuffled below if 7 | n */
    }
    if (n_pages % 7 == 0) {
        for (int s = 0, page = 0; s < c->n_seqs; s++)
            for (int p = 0; p < (c->kv_len[s] + c->block_tokens - 1) / c->block_tokens; p++)
                r->page_ids[s * pages_max + p] = n_pages - 1 - page++;
    }
    r->host = (struct k_tokens){.seq = r->seq,
                                .pos = r->pos,
                                .seq_start = r->seq_start,
                                .kv_len = c->kv_len,
                                .page_ids = r->page_ids,
                                .n_tokens = r->n_tokens,
                                .n_seqs = c->n_seqs,
                                .pages_max = pages_max};
    r->host_kv = (struct k_kv){
        .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim, .block_tokens = c->block_tokens};
    /* Two layers; the second is used. */
    r->host_kv.layer_elems = (size_t)(2 * c->n_kv_heads * c->block_tokens * c->head_dim);
    r->host_kv.page_elems = 2 * r->host_kv.layer_elems;
    r->page_size = r->host_kv.page_elems * (size_t)n_pages;
}

static void upload(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    size_t tokens = (size_t)r->n_tokens, seqs = (size_t)c->n_seqs;

    r->dev = r->host;
    r->dev.seq = gpu_array(r->seq, tokens * 4);
    r->dev.pos = gpu_array(r->pos, tokens * 4);
    r->dev.seq_start = gpu_array(r->seq_start, (seqs + 1) * 4);
    r->dev.kv_len = gpu_array(c->kv_len, seqs * 4);
    r->dev.page_ids = gpu_array(r->page_ids, seqs * (size_t)r->host.pages_max * 4);
    r->dev_kv = r->host_kv;
    r->host_kv.pages = r->pages;
    r->dev_kv.pages = gpu_bf16(r->pages, r->page_size);
    r->dev_qkv = gpu_bf16(r->qkv, r->qkv_size);
    r->dev_turns = gpu_array(r->turns, 2048 * (size_t)c->head_dim * 4);
}

static void plan(struct attn_run *r)
{
    const struct attn_case *c = r->c;
    int32_t decodes[SEQS_MAX], tiles[1024], starts[1024];
    struct k_attn_plan *p = &r->plan;
    int32_t zero = 0;

    for (int s = 0; s < c->n_seqs; s++) {
        int part = k_attn_part_tokens(c->kv_len[s]), n = (c->kv_len[s] + part - 1) / part;

        if (c->n_new[s] == 1) {
            decodes[p->n_decodes++] = s;
            p->part_count = n > p->part_count ? n : p->part_count;
        }
    }
    k_attn_tiles(tiles, starts, p, &r->host, c->n_heads / c->n_kv_heads);
    p->drawn = gpu_array(&zero, sizeof zero);
    p->decode_seqs = gpu_array(decodes, sizeof decodes);
    p->tile_seqs = gpu_array(tiles, sizeof tiles);
    p->tile_starts = gpu_array(starts, sizeof starts);
    p->work = gpu_array(
        NULL,
        (size_t)(p->n_decodes * c->n_heads * p->part_count) * (size_t)(c->head_dim + 2) * 4 + 4);
}

/* A decode by itself, in its own launch: the bits that it had beside the others. */
static void check_alone(struct attn_run *r, const float *got, const char *name)
{
    const struct attn_case *c = r->c;
    size_t row = (size_t)(c->n_heads * c->head_dim);
    k_bf16 *out = gpu_array(NULL, r->out_size * 2);
    int32_t *list = gpu_array(NULL, 4);

    for (int s = 0; s < c->n_seqs; s++) {
        struct k_attn_plan alone = r->plan;
        int part = k_attn_part_tokens(c->kv_len[s]);
        float *all;

        if (c->n_new[s] != 1)
            continue;
        gpu_must(gpu->ops->upload(gpu, list, &s, 4));
        alone.decode_seqs = list;
        alone.n_decodes = 1;
        alone.n_tiles = 0;
        alone.part_count = (c->kv_len[s] + part - 1) / part;
        gpu_must(k_attn(out, r->dev_qkv, &r->dev_kv, &r->dev, &alone, c->n_heads, r->scale,
                        device_cuda_stream(gpu)));
        all = gpu_floats(out, r->out_size);
        ok(memcmp(all + (size_t)r->seq_start[s] * row, got + (size_t)r->seq_start[s] * row,
                  row * 4) == 0,
           "%s: decode %d alone has the same bits", name, s);
        free(all);
    }
}

static void check_attn(struct attn_run *r, const char *name)
{
    const struct attn_case *c = r->c;
    k_bf16 *out = gpu_array(NULL, r->out_size * 2), *again = gpu_array(NULL, r->out_size * 2);
    float *want = malloc(r->out_size * 4), *scratch = malloc(4096 * 4), *got, *second;
    k_stream s = device_cuda_stream(gpu);

    /* What the device holds after the rotation is the reference's input. */
    free(r->qkv), free(r->pages);
    r->qkv = gpu_floats(r->dev_qkv, r->qkv_size);
    r->pages = r->host_kv.pages = gpu_floats(r->dev_kv.pages, r->page_size);
    for (int t = 0; t < r->n_tokens; t++)
        for (int h = 0; h < c->n_kv_heads; h++)
            ref_attn(want, r->qkv, &r->host_kv, &r->host, c->n_heads, r->scale, t, h, scratch);
    gpu_must(k_attn(out, r->dev_qkv, &r->dev_kv, &r->dev, &r->plan, c->n_heads, r->scale, s));
    gpu_must(k_attn(again, r->dev_qkv, &r->dev_kv, &r->dev, &r->plan, c->n_heads, r->scale, s));
    got = gpu_floats(out, r->out_size);
    second = gpu_floats(again, r->out_size);
    gpu_compare(got, want, r->out_size, 2e-5, 8e-3, name);
    ok(memcmp(got, second, r->out_size * 4) == 0, "%s: twice the same bits", name);
    check_alone(r, got, name);
    free(want), free(scratch), free(got), free(second);
}

static void check_case(const struct attn_case *c)
{
    struct attn_run *r = calloc(1, sizeof *r);
    char name[120];
    float *got;

    r->c = c;
    r->width = (c->n_heads + 2 * c->n_kv_heads) * c->head_dim;
    r->scale = 1.0f / sqrtf((float)c->head_dim);
    place(r);
    r->qkv_size = (size_t)r->n_tokens * (size_t)r->width;
    r->out_size = (size_t)r->n_tokens * (size_t)(c->n_heads * c->head_dim);
    r->qkv = gpu_random(r->qkv_size, 3.0f);
    r->pages = gpu_random(r->page_size, 3.0f);
    r->turns = malloc(2048 * (size_t)c->head_dim * 4);
    for (int i = 0; i < 2048 * c->head_dim / 2; i++) {
        r->turns[2 * i] = cosf((float)i * 0.37f);
        r->turns[2 * i + 1] = sinf((float)i * 0.37f);
    }
    upload(r);
    plan(r);
    snprintf(name, sizeof name, "rope_kv %d/%d x %d", c->n_heads, c->n_kv_heads, c->head_dim);
    ref_rope_kv(r->qkv, &r->host_kv, &r->host, r->turns, c->n_heads, 0, r->n_tokens);
    gpu_must(k_rope_kv(r->dev_qkv, &r->dev_kv, &r->dev, r->dev_turns, c->n_heads,
                       device_cuda_stream(gpu)));
    got = gpu_floats(r->dev_qkv, r->qkv_size);
    gpu_compare(got, r->qkv, r->qkv_size, 5e-6, 4.1e-3, name);
    free(got);
    got = gpu_floats(r->dev_kv.pages, r->page_size);
    gpu_compare(got, r->pages, r->page_size, 5e-6, 4.1e-3, name);
    free(got);
    snprintf(name, sizeof name, "attn %d/%d x %d, pages of %d", c->n_heads, c->n_kv_heads,
             c->head_dim, c->block_tokens);
    check_attn(r, name);
    free(r->qkv), free(r->pages), free(r->turns), free(r->seq), free(r->pos), free(r->page_ids);
    free(r);
}

int main(void)
{
    gpu_open();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_case(&cases[i]);
    device_close(gpu);
    return tap_done();
}
