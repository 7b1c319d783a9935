/* SPDX-License-Identifier: Apache-2.0
 *
 * k_route(), k_run_experts() and k_combine() against their references: every way to score, groups,
 * a bias, padding tokens, experts without tokens, all tokens at one expert, ranks that have some
 * experts, all formats, sizes that fill no tile, and sizes whose rows are not whole 16 bytes. The
 * same call gives the same bits, and a token's bits depend on the others only through the limit
 * between few tokens and many. */
#include "kernels/e4m3.h"
#include "kernels/mixing.h"
#include "kernels/packed.h"
#include "tests/kernel/gpu.h"

#define SMS 132

static bool is_plain; /* the cases that follow have ups alone */

struct shape {
    int n_experts, n_used, dim, ff_dim;
    int first, n_own; /* the experts of this rank */
};

/* Everything of one shape on the device and on the host. */
struct run {
    struct shape s;
    int n_max;
    struct k_router router, dev_router;
    struct k_experts experts, dev_experts;
    struct k_mixing m;
    struct k_half_normed norm;
    float *x, *switches;
    k_bf16 *dev_x;
    float *dev_switches;
    int32_t *ids;   /* the device's choices, host */
    float *weights; /* likewise */
};

static float e4m3_value(uint8_t b)
{
    float v = (b >> 3 & 15) != 0 ? ldexpf(1.0f + (float)(b & 7) / 8.0f, (b >> 3 & 15) - 7)
                                 : ldexpf((float)(b & 7) / 8.0f, -6);

    return (b & 0x80) != 0 ? -v : v;
}

static float e2m1_value(unsigned code)
{
    static const float values[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

    return (code & 8) != 0 ? -values[code & 7] : values[code & 7];
}

/* The rows of one expert in a file: codes, then exponents; and the same as float32, gates first. */
static void make_rows(uint8_t *file, float *w, const struct k_mxfp4_rows *rows, int n_in)
{
    uint8_t *exponents = file + (size_t)rows->n_rows * (size_t)n_in / 2;
    int n_groups = n_in / K_MXFP4_GROUP;

    for (int row = 0; row < rows->n_rows; row++) {
        int to = rows->is_mixed ? row % 2 * (rows->n_rows / 2) + row / 2 : row;

        for (int i = 0; i < n_groups; i++)
            exponents[row * n_groups + i] = (uint8_t)(121.5f + 1.5f * gpu_uniform());
        for (int col = 0; col < n_in; col++) {
            unsigned code = (unsigned)((gpu_uniform() + 1.0f) * 7.999f);
            uint8_t *byte = &file[((size_t)row * (size_t)n_in + (size_t)col) / 2];

            *byte = (uint8_t)(col % 2 == 0 ? code : *byte | code << 4);
            w[(size_t)to * (size_t)n_in + (size_t)col] =
                ldexpf(e2m1_value(code), exponents[row * n_groups + col / K_MXFP4_GROUP] - 127);
        }
    }
}

static void spread_codes(uint32_t *record)
{
    for (int i = 0; i < K_MXFP4_CODES / 4; i++)
        record[i] = k_float4_spread(record[i]);
}

/* An expert's rows in the arrangement of mxfp4.h, by the reference of packed.h. */
static void pack_rows(uint8_t *out, const uint8_t *file, const struct k_mxfp4_rows *rows, int n_in)
{
    const struct k_packing packing = {4, K_MXFP4_GROUP, 1, 0, false, false};
    int n_cols = k_mxfp4_records(n_in) * K_MXFP4_COLS, n_groups = n_cols / K_MXFP4_GROUP;
    const uint8_t *exponents = file + (size_t)rows->n_rows * (size_t)n_in / 2;
    uint8_t *codes = malloc(16 * (size_t)n_cols), *scales = malloc(16 * (size_t)n_groups);
    struct k_unpacked from = {codes, scales, NULL};

    for (int strip = 0; strip < k_mxfp4_strips(rows->n_rows); strip++) {
        memset(codes, 0, 16 * (size_t)n_cols);
        memset(scales, 0, 16 * (size_t)n_groups);
        for (int i = 0; i < 16; i++) {
            int row = k_mxfp4_row(rows, strip, i);

            for (int col = 0; col < n_in && row >= 0; col++)
                codes[i * n_cols + col] =
                    file[((size_t)row * (size_t)n_in + (size_t)col) / 2] >> col % 2 * 4 & 15;
            for (int group = 0; group < n_in / K_MXFP4_GROUP && row >= 0; group++)
                scales[i * n_groups + group] = exponents[row * (n_in / K_MXFP4_GROUP) + group];
        }
        k_pack_strip(out, &packing, &from, 16, n_cols);
        for (int i = 0; i < k_mxfp4_records(n_in); i++)
            spread_codes((uint32_t *)(out + (size_t)i * K_MXFP4_RECORD));
        out += k_packed_strip_bytes(&packing, n_cols);
    }
    free(codes), free(scales);
}

/* A matrix of MXFP4, which the device arranges. Its experts are in turns of gate and up, or not. */
static struct k_matrix make_mxfp4(struct k_matrix *host, const struct k_mxfp4_rows *rows, int n_in)
{
    size_t bytes = k_mxfp4_bytes(rows->n_rows, n_in), all = bytes * (size_t)rows->n_experts;
    size_t n = (size_t)rows->n_rows * (size_t)n_in;
    struct k_matrix dev = {
        .format = k_format_mxfp4(), .n_out = rows->n_rows * rows->n_experts, .n_in = n_in};
    uint8_t *files = calloc(1, all), *want = malloc(all), *got = malloc(all);
    float *w = malloc(n * (size_t)rows->n_experts * sizeof *w);

    for (int i = 0; i < rows->n_experts; i++) {
        make_rows(files + (size_t)i * bytes, w + (size_t)i * n, rows, n_in);
        pack_rows(want + (size_t)i * bytes, files + (size_t)i * bytes, rows, n_in);
    }
    *host = (struct k_matrix){.data = w, .n_out = dev.n_out, .n_in = n_in};
    dev.data = gpu_array(files, all);
    gpu_must(gpu->ops->arrange(gpu, &dev, rows));
    ok(gpu_get(got, dev.data, all) && memcmp(got, want, all) == 0,
       "%d experts of %d x %d are arranged as the reference does", rows->n_experts, rows->n_rows,
       n_in);
    free(files), free(want), free(got);
    return dev;
}

/* A matrix of all experts in a format: on the device, and as float32. */
static struct k_matrix make_matrix(struct k_matrix *host, struct k_format f, int n_out, int n_in)
{
    size_t n = (size_t)n_out * (size_t)n_in, n_scales = k_format_n_scales(&f, n_out, n_in);
    struct k_matrix dev = {.format = f, .n_out = n_out, .n_in = n_in};
    uint8_t *codes = malloc(n);
    float *w, *scales = malloc(n_scales * sizeof *scales + 4);

    *host = (struct k_matrix){.n_out = n_out, .n_in = n_in};
    if (k_format_is_plain(&f)) {
        w = gpu_random(n, 0.2f);
        dev.data = gpu_bf16(w, n);
    } else {
        w = malloc(n * sizeof *w);
        for (size_t i = 0; i < n_scales; i++)
            scales[i] = 0.0005f + 0.0004f * gpu_uniform();
        for (size_t i = 0; i < n; i++) {
            int row = (int)(i / (size_t)n_in), col = (int)(i % (size_t)n_in);
            size_t at = (size_t)(row / f.group_rows) * (size_t)k_format_scale_cols(&f, n_in);

            codes[i] = (uint8_t)((gpu_uniform() + 1.0f) * 127.99f);
            if ((codes[i] & 0x7f) == 0x7f)
                codes[i] = 0;
            at += f.group_cols > 0 ? (size_t)(col / f.group_cols) : 0;
            w[i] = e4m3_value(codes[i]) * scales[at];
        }
        dev.data = gpu_array(codes, n);
        dev.scales = gpu_array(scales, n_scales * sizeof *scales);
    }
    host->data = w;
    free(codes);
    free(scales);
    return dev;
}

/* Biases of both products, and the activation of the models that have them. */
static void add_biases(struct run *r)
{
    size_t n_in = (size_t)r->s.n_own * (is_plain ? 1 : 2) * (size_t)r->s.ff_dim;
    size_t n_down = (size_t)r->s.n_own * (size_t)r->s.dim;
    float *in = gpu_random(n_in, 0.5f), *down = gpu_random(n_down, 0.5f);

    r->experts.in_bias = in;
    r->experts.down_bias = down;
    r->dev_experts.in_bias = gpu_bf16(in, n_in);
    r->dev_experts.down_bias = gpu_bf16(down, n_down);
    if (!is_plain)
        r->experts.activation = r->dev_experts.activation = K_SWISH_CLAMPED;
}

static void run_open(struct run *r, struct shape s, struct k_format f, int n_max)
{
    struct k_mixing_sizes sizes = {.n_tokens = n_max,
                                   .n_used = s.n_used,
                                   .n_choices = s.n_experts,
                                   .n_experts = s.n_own,
                                   .ff_dim = s.ff_dim,
                                   .dim = s.dim};
    size_t bytes, n_w = (size_t)s.n_experts * (size_t)s.dim;
    char *zeros;

    *r = (struct run){.s = s, .n_max = n_max};
    bytes = k_mixing_place(&r->m, NULL, &sizes);
    zeros = calloc(1, bytes);
    (void)!k_mixing_place(&r->m, gpu_array(zeros, bytes), &sizes);
    free(zeros);
    r->x = gpu_random((size_t)n_max * (size_t)s.dim, 1.0f);
    r->dev_x = gpu_bf16(r->x, (size_t)n_max * (size_t)s.dim);
    r->switches = gpu_random((size_t)s.dim, 0.3f);
    r->dev_switches = gpu_array(r->switches, (size_t)s.dim * sizeof(float));
    r->router = (struct k_router){.w = gpu_random(n_w, 0.3f),
                                  .n_experts = s.n_experts,
                                  .n_used = s.n_used,
                                  .n_groups = 1,
                                  .n_groups_used = 1,
                                  .group_best = 1,
                                  .least = 1e-20f,
                                  .scale = 1.0f,
                                  .spread = 0.1f};
    r->dev_router = r->router;
    r->dev_router.w = gpu_array(r->router.w, n_w * sizeof(float));
    r->experts = (struct k_experts){.n = s.n_own,
                                    .first = s.first,
                                    .ff_dim = s.ff_dim,
                                    .is_plain = is_plain,
                                    .activation = is_plain ? K_RELU : K_SILU};
    r->dev_experts = r->experts;
    if (k_format_is_mxfp4(&f)) {
        const struct k_mxfp4_rows in = {s.n_own, 2 * s.ff_dim, true, s.n_own % 8 != 0},
                                  down = {s.n_own, s.dim, false, false};

        r->dev_experts.in = make_mxfp4(&r->experts.in, &in, s.dim);
        f = s.ff_dim % K_MXFP4_GROUP == 0 ? f : (struct k_format){.elem = K_BF16};
        if (k_format_is_mxfp4(&f))
            r->dev_experts.down = make_mxfp4(&r->experts.down, &down, s.ff_dim);
    } else {
        r->dev_experts.in =
            make_matrix(&r->experts.in, f, s.n_own * (is_plain ? 1 : 2) * s.ff_dim, s.dim);
    }
    if (!k_format_is_mxfp4(&f))
        r->dev_experts.down = make_matrix(&r->experts.down, f, s.n_own * s.dim, s.ff_dim);
    if (s.n_own % 4 == 0)
        add_biases(r);
    r->ids = malloc((size_t)n_max * (size_t)s.n_used * sizeof *r->ids);
    r->weights = malloc((size_t)n_max * (size_t)s.n_used * sizeof *r->weights);
}

static void run_close(struct run *r)
{
    free(r->x), free(r->switches), free((float *)(uintptr_t)r->router.w);
    free((void *)(uintptr_t)r->experts.in_bias), free((void *)(uintptr_t)r->experts.down_bias);
    free(r->experts.in.data), free(r->experts.down.data), free(r->ids), free(r->weights);
}

/* Download from the middle of the work memory. */
static void fetch(void *to, const void *from, size_t bytes)
{
    gpu_must(gpu->ops->download(gpu, to, from, bytes));
}

static struct k_mixing_input input_of(struct run *r, const k_bf16 *x, const struct k_tokens *t,
                                      int n)
{
    return (struct k_mixing_input){.router_x = x,
                                   .x = x,
                                   .norm = r->norm.sums != NULL ? &r->norm : NULL,
                                   .router = &r->dev_router,
                                   .experts = &r->dev_experts,
                                   .tokens = t,
                                   .n = n,
                                   .router_dim = r->s.dim};
}

static void route(struct run *r, const k_bf16 *x, const struct k_tokens *t, int n)
{
    size_t n_routes = (size_t)n * (size_t)r->s.n_used;
    const struct k_mixing_input in = input_of(r, x, t, n);

    gpu_must(k_route(&r->m, &in, device_cuda_stream(gpu)));
    fetch(r->ids, r->m.routes.ids, n_routes * sizeof *r->ids);
    fetch(r->weights, r->m.routes.weights, n_routes * sizeof *r->weights);
}

/* --- routes ----------------------------------------------------------------------------- */

/* The order of the routes is that of the reference, for the ids that the device chose. */
static void check_order(struct run *r, int n, const char *name)
{
    int n_routes = n * r->s.n_used, n_own = r->s.n_own, n_touched = 0, n_tiles = 0;
    size_t room = (size_t)n_routes + 1, experts = (size_t)n_own + 1;
    int32_t *got = malloc((3 * room + 4 * experts) * sizeof *got),
            *want = malloc((2 * room + experts) * sizeof *want);
    struct k_sorted ref = {want, want + experts, want + experts + room};
    bool same;

    ref_sort_routes(&ref, r->ids, &r->experts, n_routes);
    fetch(got, r->m.sorted.starts, experts * sizeof *got);
    same = memcmp(got, ref.starts, experts * sizeof *got) == 0;
    fetch(got, r->m.sorted.routes, (size_t)ref.starts[n_own] * sizeof *got);
    same = same && memcmp(got, ref.routes, (size_t)ref.starts[n_own] * sizeof *got) == 0;
    fetch(got, r->m.sorted.places, (size_t)n_routes * sizeof *got);
    same = same && memcmp(got, ref.places, (size_t)n_routes * sizeof *got) == 0;
    ok(same, "%s: %d tokens: the order of routes", name, n);
    fetch(got, r->m.touched, experts * sizeof *got);
    same = true;
    for (int e = 0; e < n_own; e++) {
        if (ref.starts[e + 1] > ref.starts[e])
            same = same && got[1 + n_touched++] == e;
    }
    ok(same && got[0] == n_touched, "%s: %d tokens: %d touched experts", name, n, n_touched);
    if (n > K_MIXING_FEW) {
        fetch(got, r->m.tiles, (1 + 2 * (size_t)(n_routes / K_MIXING_TILE + n_own)) * sizeof *got);
        same = true;
        for (int e = 0; e < n_own; e++) {
            for (int at = ref.starts[e]; at < ref.starts[e + 1]; at += K_MIXING_TILE, n_tiles++)
                same = same && got[1 + 2 * n_tiles] == e && got[2 + 2 * n_tiles] == at;
        }
        ok(same && got[0] == n_tiles, "%s: %d tokens: %d tiles", name, n, n_tiles);
    }
    free(got);
    free(want);
}

/* Choices differ from the reference's only where scores are as good as equal. */
static void check_routes(struct run *r, const struct k_tokens *t, const int32_t *lens, int n,
                         const char *name)
{
    size_t n_routes = (size_t)n * (size_t)r->s.n_used, n_wrong = 0;
    struct k_routes want = {malloc(n_routes * 4), malloc(n_routes * 4)};
    double worst = 0.0;

    route(r, r->dev_x, t, n);
    ref_route(&want, r->x, &r->router, n, r->s.dim);
    for (size_t i = 0; i < n_routes; i++) {
        bool is_padding = lens != NULL && lens[i / (size_t)r->s.n_used] == 0;

        if (is_padding)
            n_wrong += r->ids[i] != -1;
        else if (r->ids[i] != want.ids[i] && !(fabsf(r->weights[i] - want.weights[i]) < 1e-6f))
            n_wrong++;
        else
            worst = fmax(worst, fabs((double)r->weights[i] - (double)want.weights[i]));
    }
    ok(n_wrong * 1000 <= n_routes && worst < 1e-4,
       "%s: %d tokens: %zu of %zu choices differ, weights within %.1e", name, n, n_wrong, n_routes,
       worst);
    check_order(r, n, name);
    free(want.ids);
    free(want.weights);
}

/* One token is chosen for in another way: its choices and weights are the same bits as among
 * many. */
static void check_few_routes(struct run *r, const char *name)
{
    size_t n = (size_t)r->s.n_used;
    int32_t *ids = malloc(n * sizeof *ids);
    float *weights = malloc(n * sizeof *weights);

    route(r, r->dev_x, NULL, r->n_max < 33 ? r->n_max : 33);
    memcpy(ids, r->ids, n * sizeof *ids);
    memcpy(weights, r->weights, n * sizeof *weights);
    for (int k = 1; k <= 3; k += 2) {
        route(r, r->dev_x, NULL, k);
        ok(memcmp(ids, r->ids, n * sizeof *ids) == 0 &&
               memcmp(weights, r->weights, n * sizeof *weights) == 0,
           "%s: a token among %d, the same bits", name, k);
    }
    free(ids), free(weights);
}

/* Does the last expert become one of every token, that the router does not choose? */
static void share_last(struct run *r, bool shares)
{
    r->router.n_shared = r->dev_router.n_shared = shares;
    r->router.n_experts = r->dev_router.n_experts = r->s.n_experts - shares;
}

static void check_router(struct run *r)
{
    static const int numbers[] = {1, 2, 7, 33, 64, 65, 300, 1100};
    static const struct {
        const char *name;
        enum k_scoring scoring;
        bool has_bias, renorms;
        int n_groups, n_groups_used, group_best;
    } ways[] = {{"softmax", K_SCORE_SOFTMAX, false, false, 1, 1, 1},
                {"softmax, renormed, with a bias", K_SCORE_SOFTMAX, true, true, 1, 1, 1},
                {"sigmoid in groups", K_SCORE_SIGMOID, true, true, 4, 2, 2},
                {"softmax in groups", K_SCORE_SOFTMAX, false, false, 4, 3, 1},
                {"softmax of the chosen", K_SCORE_TOP, false, false, 1, 1, 1},
                {"mixer", K_SCORE_MIXER, false, false, 1, 1, 1},
                {"sigmoid, and a shared one", K_SCORE_SIGMOID, true, true, 1, 1, 1},
                {"softmax of the chosen, and a shared one", K_SCORE_TOP, false, false, 1, 1, 1},
                {"softmax, and a shared one with a switch", K_SCORE_SOFTMAX, false, true, 1, 1, 1}};
    float *bias = gpu_random((size_t)r->s.n_experts, 0.3f);
    float *dev_bias = gpu_array(bias, (size_t)r->s.n_experts * sizeof *bias);
    float *switches = gpu_random((size_t)r->s.dim, 0.3f);
    float *dev_switches = gpu_array(switches, (size_t)r->s.dim * sizeof *switches);

    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        struct k_router *both[] = {&r->router, &r->dev_router};

        if (r->s.n_experts % ways[i].n_groups != 0 || !gpu_has_turn())
            continue;
        for (int k = 0; k < 2; k++) {
            both[k]->scoring = ways[i].scoring;
            both[k]->renorms = ways[i].renorms;
            both[k]->n_groups = ways[i].n_groups;
            both[k]->n_groups_used = ways[i].n_groups_used;
            both[k]->group_best = ways[i].group_best;
            both[k]->scale = ways[i].has_bias ? 1.7f : 1.0f;
        }
        r->router.bias = ways[i].has_bias ? bias : NULL;
        r->dev_router.bias = ways[i].has_bias ? dev_bias : NULL;
        r->router.scales = ways[i].renorms ? bias : NULL; /* any numbers will do */
        r->dev_router.scales = ways[i].renorms ? dev_bias : NULL;
        r->router.logit_bias = ways[i].scoring == K_SCORE_TOP ? bias : NULL;
        r->dev_router.logit_bias = ways[i].scoring == K_SCORE_TOP ? dev_bias : NULL;
        share_last(r, strstr(ways[i].name, "shared") != NULL);
        if (strstr(ways[i].name, "switch") != NULL) {
            r->router.shared_switch = switches;
            r->dev_router.shared_switch = dev_switches;
        }
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; k++) {
            if (numbers[k] <= r->n_max)
                check_routes(r, NULL, NULL, numbers[k], ways[i].name);
        }
        check_few_routes(r, ways[i].name);
        share_last(r, false);
        r->router.shared_switch = r->dev_router.shared_switch = NULL;
    }
    r->router.logit_bias = r->dev_router.logit_bias = NULL;
    r->router.scales = r->dev_router.scales = NULL;
    free(bias), free(switches);
}

/* Tokens of sequences without keys are padding. */
static void check_padding(struct run *r, int n)
{
    int32_t *seq = malloc((size_t)n * 4), *lens = malloc((size_t)n * 4);
    struct k_tokens t = {.n_tokens = n};

    /* Those of a case before, which QUIRE_TEST_PART may have left out, are not both sides'. */
    r->router.scoring = r->dev_router.scoring = K_SCORE_SOFTMAX;
    r->router.renorms = r->dev_router.renorms = false;
    r->router.n_groups = r->dev_router.n_groups = 1;
    r->router.n_groups_used = r->dev_router.n_groups_used = 1;
    r->router.scale = r->dev_router.scale = 1.0f;
    r->router.bias = r->dev_router.bias = NULL;
    for (int i = 0; i < n; i++) {
        seq[i] = i;
        lens[i] = i % 3 == 1 ? 0 : 5;
    }
    t.seq = gpu_array(seq, (size_t)n * 4);
    t.kv_len = gpu_array(lens, (size_t)n * 4);
    check_routes(r, &t, lens, n, "padding");
    free(seq);
    free(lens);
}

/* --- results ---------------------------------------------------------------------------- */

/* The whole FFN of n tokens of x, after route(); out gets the device's results. */
static void run_experts(struct run *r, const k_bf16 *x, const float *own, int n, float *out)
{
    size_t n_out = (size_t)n * (size_t)r->s.dim;
    struct k_combining c = {.x = x,
                            .switches = own != NULL ? r->dev_switches : NULL,
                            .adds = own != NULL,
                            .n_used = r->s.n_used,
                            .dim = r->s.dim};
    k_bf16 *dev_out = own != NULL ? gpu_bf16(own, n_out) : gpu_array(NULL, n_out * sizeof *dev_out);
    const struct k_mixing_end end = {dev_out, &c, NULL};
    const struct k_mixing_input in = input_of(r, x, NULL, n);
    float *got;

    gpu_must(k_run_experts(&r->m, &in, &end, SMS, device_cuda_stream(gpu)));
    got = gpu_floats(dev_out, n_out);
    memcpy(out, got, n_out * sizeof *out);
    free(got);
}

/* Make all tokens choose the same experts, by rows of w that they all agree with. */
static void crowd(struct run *r, bool on)
{
    size_t n = (size_t)r->s.n_experts;
    float *bias = calloc(n, sizeof *bias);

    for (int i = 0; i < r->s.n_used; i++)
        bias[(i * 3 + 1) % r->s.n_experts] = 100.0f;
    r->router.scoring = r->dev_router.scoring = K_SCORE_SIGMOID;
    r->router.renorms = r->dev_router.renorms = true;
    r->dev_router.bias = on ? gpu_array(bias, n * sizeof *bias) : NULL;
    free(bias);
}

/* Rows rounded to e4m3 with a scale for each run, as float32. */
static void round_rows(float *x, int n, int dim)
{
    size_t n_all = (size_t)n * (size_t)dim;
    int n_runs = (dim + K_E4M3_BLOCK - 1) / K_E4M3_BLOCK;
    k_e4m3 *codes = malloc(n_all);
    float *scales = malloc((size_t)n_runs * (size_t)n * sizeof *scales);
    const struct k_quantised q = {.data = codes, .scales = scales, .stride = n};

    ref_quantise(&q, x, n, dim);
    for (size_t i = 0; i < n_all; i++) {
        size_t run = i % (size_t)dim / K_E4M3_BLOCK;

        x[i] = k_e4m3_value(codes[i]) * scales[run * (size_t)n + i / (size_t)dim];
    }
    free(codes), free(scales);
}

static float dot(const float *w, const float *x, int n)
{
    float sum = 0.0f;

    for (int i = 0; i < n; i++)
        sum += w[i] * x[i];
    return sum;
}

/* out += the experts' results, as ref_experts(), of rows that are rounded before each product. */
static void add_rounded(const struct run *r, float *out, int n)
{
    const struct k_experts *e = &r->experts;
    int dim = r->s.dim, ff_dim = e->ff_dim, rows = is_plain ? ff_dim : 2 * ff_dim;
    const float *in = e->in.data, *down = e->down.data, *in_bias = e->in_bias,
                *down_bias = e->down_bias;
    float *x = malloc((size_t)n * (size_t)dim * sizeof *x),
          *h = malloc(3 * (size_t)ff_dim * sizeof *h);

    memcpy(x, r->x, (size_t)n * (size_t)dim * sizeof *x);
    round_rows(x, n, dim);
    for (int i = 0; i < n * r->s.n_used; i++) {
        int expert = r->ids[i] - e->first, token = i / r->s.n_used;

        if (expert < 0 || expert >= e->n)
            continue;
        for (int k = 0; k < rows; k++)
            h[k] =
                dot(in + (size_t)(expert * rows + k) * (size_t)dim, x + (size_t)token * dim, dim) +
                (in_bias != NULL ? in_bias[expert * rows + k] : 0.0f);
        if (is_plain)
            memcpy(h + ff_dim, h, (size_t)ff_dim * sizeof *h);
        ref_gate(h + 2 * (size_t)ff_dim, h, e->activation, 1, ff_dim);
        round_rows(h + 2 * (size_t)ff_dim, 1, ff_dim);
        for (int k = 0; k < dim; k++)
            out[(size_t)token * dim + k] +=
                r->weights[i] * (dot(down + (size_t)(expert * dim + k) * (size_t)ff_dim,
                                     h + 2 * (size_t)ff_dim, ff_dim) +
                                 (down_bias != NULL ? down_bias[expert * dim + k] : 0.0f));
    }
    free(x), free(h);
}

static void check_results(struct run *r, int n, const char *name)
{
    size_t n_out = (size_t)n * (size_t)r->s.dim;
    float *got = malloc(n_out * sizeof *got), *again = malloc(n_out * sizeof *got);
    float *own = n % 2 == 1 && r->norm.sums == NULL ? gpu_random(n_out, 1.0f) : NULL,
          *want = calloc(n_out, sizeof *want);
    bool rounds = n > K_MIXING_FEW && r->dev_experts.in.format.elem == K_E4M3 && !k_is_portable();
    const struct k_routes routes = {r->ids, r->weights};
    const struct k_combining c = {.x = r->x,
                                  .switches = own != NULL ? r->switches : NULL,
                                  .adds = own != NULL,
                                  .n_used = r->s.n_used,
                                  .dim = r->s.dim};

    route(r, r->dev_x, NULL, n);
    run_experts(r, r->dev_x, own, n, got);
    if (own != NULL)
        memcpy(want, own, n_out * sizeof *want);
    if (rounds) {
        const struct k_combining none = {
            .x = r->x, .switches = c.switches, .adds = c.adds, .dim = c.dim};

        ref_combine(want, NULL, &none, n);
        add_rounded(r, want, n);
    } else {
        ref_experts(want, r->x, &r->experts, &routes, &c, n);
    }
    /* ff and y are rounded to bfloat16, and so are the sum and weights with scales of blocks; with
     * e4m3 some of ff lie between two numbers that are 6% apart. */
    gpu_compare(got, want, n_out, rounds ? 1e-4 : 4e-5, rounds ? 5e-2 : 2e-2, name);
    run_experts(r, r->dev_x, own, n, again);
    ok(memcmp(got, again, n_out * sizeof *got) == 0, "%s: %d tokens: the same bits again", name, n);
    free(got), free(again), free(own), free(want);
}

/* One token whose choice is left to the first product: twice, each after another token's choice,
 * and as padding. */
static void check_late(struct run *r)
{
    size_t dim = (size_t)r->s.dim;
    float *want = malloc(dim * sizeof *want), *got;
    const struct k_combining c = {.x = r->dev_x, .n_used = r->s.n_used, .dim = r->s.dim};
    k_bf16 *out = gpu_array(NULL, dim * sizeof *out);
    const struct k_mixing_end end = {out, &c, NULL};
    int32_t seq = 0, len = 0;
    const struct k_tokens t = {.seq = gpu_array(&seq, 4), .kv_len = gpu_array(&len, 4)};
    struct k_mixing_input in = input_of(r, r->dev_x, NULL, 1);
    bool same = true;

    route(r, r->dev_x, NULL, 1);
    run_experts(r, r->dev_x, NULL, 1, want);
    for (int turn = 0; turn < 2; turn++) {
        route(r, r->dev_x + dim, NULL, 1);
        gpu_must(k_mix_experts(&r->m, &in, &end, turn == 0 ? SMS : 3, device_cuda_stream(gpu)));
        got = gpu_floats(out, dim);
        same = same && memcmp(got, want, dim * sizeof *got) == 0;
        free(got);
    }
    ok(same, "a choice by the first product: the same bits");
    in.tokens = &t;
    gpu_must(k_mix_experts(&r->m, &in, &end, SMS, device_cuda_stream(gpu)));
    got = gpu_floats(out, dim);
    same = true;
    for (size_t i = 0; i < dim; i++)
        same = same && got[i] == 0.0f;
    ok(same, "a padding token has no experts");
    free(got);
    free(want);
}

/* x that is normed by half: the reference gets what is normed. */
static void check_half_normed(struct run *r, int n)
{
    size_t n_x = (size_t)n * (size_t)r->s.dim, n_sums = n_x / 16;
    float *sums = gpu_random(n_sums, 1.0f), *x = r->x;

    r->x = malloc(n_x * sizeof *x);
    for (size_t i = 0; i < n_sums; i++)
        sums[i] = 2.0f + sums[i];
    for (size_t token = 0; token < (size_t)n; token++) {
        size_t dim = (size_t)r->s.dim;
        double sum = 0.0;

        for (size_t i = 0; i < dim / 16; i++)
            sum += (double)sums[token * (dim / 16) + i];
        for (size_t i = 0; i < dim; i++)
            r->x[token * dim + i] =
                x[token * dim + i] * (float)(1.0 / sqrt(sum / (double)dim + 1e-3));
    }
    r->norm = (struct k_half_normed){gpu_array(sums, n_sums * sizeof *sums), r->s.dim / 16, 1e-3f};
    check_routes(r, NULL, NULL, n, "normed by half");
    check_results(r, n, "normed by half");
    if (n == 1)
        check_late(r);
    r->norm.sums = NULL;
    free(r->x), free(sums);
    r->x = x;
}

/* The last token of n, and of fewer, gets the same bits. */
static void check_alone(struct run *r, int n, int fewer)
{
    size_t dim = (size_t)r->s.dim;
    float *all = malloc((size_t)n * dim * sizeof *all),
          *some = malloc((size_t)n * dim * sizeof *all);

    route(r, r->dev_x, NULL, n);
    run_experts(r, r->dev_x, NULL, n, all);
    route(r, r->dev_x + (size_t)(n - fewer) * dim, NULL, fewer);
    run_experts(r, r->dev_x + (size_t)(n - fewer) * dim, NULL, fewer, some);
    ok(memcmp(all + (size_t)(n - 1) * dim, some + (size_t)(fewer - 1) * dim, dim * sizeof *all) ==
           0,
       "a token of %d and of %d: the same bits", n, fewer);
    free(all), free(some);
}

/* The residual's end of one token, of both ways to choose: the same bits, each time. */
static void check_late_residual(struct run *r)
{
    const int sms[] = {SMS, SMS, 3, SMS};
    size_t dim = (size_t)r->s.dim, bytes = dim * sizeof(float);
    float *x = gpu_random(dim, 1.0f), *norm = gpu_random(dim, 1.0f), *own = gpu_random(dim, 1.0f);
    float *want = malloc(3 * bytes), *got = malloc(3 * bytes);
    const struct k_combining c = {.x = r->dev_x,
                                  .switches = r->dev_switches,
                                  .adds = true,
                                  .n_used = r->s.n_used,
                                  .dim = r->s.dim};
    const struct k_mixing_input in = input_of(r, r->dev_x, NULL, 1);

    for (size_t turn = 0; turn <= sizeof sms / sizeof sms[0]; turn++) {
        struct k_product p = {.residual = gpu_array(x, bytes),
                              .norm = gpu_bf16(norm, dim),
                              .normed = gpu_array(NULL, dim * sizeof(k_bf16)),
                              .sums_out = gpu_array(NULL, dim / 16 * sizeof(float))};
        const struct k_mixing_end end = {gpu_bf16(own, dim), &c, &p};
        float *to = turn == 0 ? want : got, *normed;

        if (turn == 0) {
            route(r, r->dev_x, NULL, 1);
            gpu_must(k_run_experts(&r->m, &in, &end, SMS, device_cuda_stream(gpu)));
        } else {
            gpu_must(k_mix_experts(&r->m, &in, &end, sms[turn - 1], device_cuda_stream(gpu)));
        }
        ok(gpu_get(to, p.residual, bytes), "guard bands are whole");
        ok(gpu_get(to + dim, p.sums_out, bytes / 16), "guard bands are whole");
        normed = gpu_floats(p.normed, dim);
        memcpy(to + dim + dim / 16, normed, bytes);
        free(normed);
        ok(memcmp(to, want, 2 * bytes + bytes / 16) == 0, "a residual, turn %zu: the same bits",
           turn);
    }
    free(x), free(norm), free(own), free(want), free(got);
}

/* The sum goes on to the residual and to the norm of the next product. Few multiprocessors have
 * several tiles of one token. */
static void check_residual(struct run *r, int n, bool adds, int n_sms)
{
    size_t n_out = (size_t)n * (size_t)r->s.dim, n_sums = n_out / 16;
    float *plain = malloc(n_out * sizeof *plain), *x = gpu_random(n_out, 1.0f);
    float *norm = gpu_random((size_t)r->s.dim, 1.0f), *got = malloc(n_out * sizeof *got);
    float *sums = malloc(n_sums * sizeof *sums), *normed,
          *want_normed = malloc(n_out * sizeof *got);
    float *want_sums = calloc(n_sums, sizeof *sums);
    struct k_product p = {.residual = gpu_array(x, n_out * sizeof *x),
                          .norm = gpu_bf16(norm, (size_t)r->s.dim),
                          .normed = gpu_array(NULL, n_out * sizeof(k_bf16)),
                          .sums_out = gpu_array(NULL, n_sums * sizeof *sums)};
    float *own = adds ? gpu_random(n_out, 1.0f) : NULL;
    const struct k_combining c = {.x = r->dev_x,
                                  .switches = adds ? r->dev_switches : NULL,
                                  .adds = adds,
                                  .n_used = r->s.n_used,
                                  .dim = r->s.dim};
    const struct k_mixing_end end = {adds ? gpu_bf16(own, n_out) : NULL, &c, &p};
    const struct k_mixing_input in = input_of(r, r->dev_x, NULL, n);

    route(r, r->dev_x, NULL, n);
    run_experts(r, r->dev_x, own, n, plain);
    gpu_must(k_run_experts(&r->m, &in, &end, n_sms, device_cuda_stream(gpu)));
    ok(gpu_get(got, p.residual, n_out * sizeof *got), "guard bands are whole");
    ok(gpu_get(sums, p.sums_out, n_sums * sizeof *sums), "guard bands are whole");
    normed = gpu_floats(p.normed, n_out);
    for (size_t i = 0; i < n_out; i++) {
        x[i] += plain[i];
        want_normed[i] = got[i] * norm[i % (size_t)r->s.dim];
        want_sums[i / 16] += got[i] * got[i];
    }
    gpu_compare(got, x, n_out, 2e-5, 1e-2, "residual");
    gpu_compare(normed, want_normed, n_out, 2e-5, 1e-2, "normed");
    gpu_compare(sums, want_sums, n_sums, 1e-9, 1e-5, "sums of squares");
    free(plain), free(x), free(norm), free(got), free(sums), free(normed), free(want_normed);
    free(want_sums), free(own);
}

static void check_shape(struct shape s, struct k_format f, int n_max, const char *format)
{
    static const int numbers[] = {1, 4, 13, 37, 64, 65, 200, 300, 513};
    int many = K_MIXING_FEW + 1; /* tokens that are no longer few */
    char name[100];
    struct run r;

    if (!gpu_has_turn())
        return;
    run_open(&r, s, f, n_max);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i] > n_max)
            continue;
        for (int crowded = 0; crowded < 2; crowded++) {
            snprintf(name, sizeof name, "%d of %d experts, %d, %d, %s, %d tokens%s", s.n_own,
                     s.n_experts, s.dim, s.ff_dim, format, numbers[i],
                     crowded != 0 ? " at the same experts" : "");
            crowd(&r, crowded != 0);
            check_results(&r, numbers[i], name);
        }
        crowd(&r, false);
    }
    check_late(&r);
    check_alone(&r, 64 < n_max ? 64 : n_max, 1);
    check_alone(&r, 64 < n_max ? 64 : n_max, 3);
    check_alone(&r, 64 < n_max ? 64 : n_max, 9);
    if (n_max > many)
        check_alone(&r, n_max, many);
    if (s.dim % 16 == 0) {
        check_late_residual(&r);
        check_residual(&r, 5, true, SMS);
        check_residual(&r, 1, false, SMS);
        check_residual(&r, 1, true, 3);
    }
    if (s.dim % 16 == 0 && s.n_own == s.n_experts) {
        check_half_normed(&r, 1);
        check_half_normed(&r, n_max < 64 ? n_max : 61);
        share_last(&r, true);
        check_half_normed(&r, 1);
        check_half_normed(&r, n_max < 64 ? n_max : 61);
    }
    run_close(&r);
}

int main(void)
{
    const struct k_format plain = {.elem = K_BF16}, by_row = k_format_by_row(K_E4M3),
                          blocks = k_format_in_groups(K_E4M3, 128, 128), mxfp4 = k_format_mxfp4();
    struct run r;

    gpu_open();
    run_open(&r, (struct shape){60, 4, 72, 8, 0, 60}, plain, 1100);
    check_router(&r);
    check_padding(&r, 40);
    check_padding(&r, 150);
    run_close(&r);
    run_open(&r, (struct shape){256, 8, 130, 8, 64, 128}, plain, 300);
    check_router(&r);
    run_close(&r);
    check_shape((struct shape){5, 2, 40, 20, 0, 5}, plain, 80, "bf16");
    check_shape((struct shape){5, 2, 36, 18, 0, 5}, plain, 80, "bf16");
    check_shape((struct shape){12, 3, 136, 200, 0, 12}, plain, 200, "bf16");
    check_shape((struct shape){8, 3, 128, 96, 2, 4}, plain, 200, "bf16");
    check_shape((struct shape){12, 3, 144, 208, 0, 12}, by_row, 200, "e4m3 by row");
    check_shape((struct shape){6, 2, 256, 128, 0, 6}, blocks, 200, "e4m3 in blocks");
    check_shape((struct shape){32, 4, 384, 256, 0, 32}, blocks, 513, "e4m3 in blocks");
    check_shape((struct shape){12, 3, 336, 192, 0, 12}, blocks, 200, "e4m3 in blocks, not whole");
    check_shape((struct shape){16, 4, 272, 304, 0, 16}, by_row, 513, "e4m3 by row");
    check_shape((struct shape){6, 2, 640, 640, 0, 6}, blocks, 300, "e4m3 in blocks");
    check_shape((struct shape){64, 9, 512, 1536, 0, 64}, by_row, 9, "e4m3 by row");
    check_shape((struct shape){24, 8, 2064, 112, 8, 12}, by_row, 9, "e4m3 by row");
    check_shape((struct shape){32, 4, 320, 320, 0, 32}, plain, 513, "bf16");
    check_shape((struct shape){5, 2, 64, 32, 0, 5}, mxfp4, 80, "MXFP4");
    check_shape((struct shape){5, 2, 96, 36, 0, 5}, mxfp4, 80, "MXFP4, then bf16");
    check_shape((struct shape){12, 3, 160, 208, 0, 12}, mxfp4, 200, "MXFP4, then bf16");
    check_shape((struct shape){8, 3, 128, 96, 2, 4}, mxfp4, 200, "MXFP4");
    check_shape((struct shape){12, 4, 352, 416, 0, 12}, mxfp4, 200, "MXFP4");
    check_shape((struct shape){32, 4, 576, 288, 0, 32}, mxfp4, 513, "MXFP4");
    check_shape((struct shape){4, 2, 1312, 96, 0, 4}, mxfp4, 64, "MXFP4");
    is_plain = true;
    check_shape((struct shape){5, 2, 36, 18, 0, 5}, plain, 80, "ups alone, bf16");
    check_shape((struct shape){5, 2, 40, 20, 0, 5}, plain, 80, "ups alone, bf16");
    check_shape((struct shape){8, 3, 128, 96, 2, 4}, plain, 200, "ups alone, bf16");
    check_shape((struct shape){12, 3, 144, 208, 0, 12}, by_row, 200, "ups alone, e4m3 by row");
    check_shape((struct shape){32, 4, 384, 256, 0, 32}, blocks, 513, "ups alone, e4m3 in blocks");
    return tap_done();
}
