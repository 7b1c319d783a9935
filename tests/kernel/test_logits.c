/* SPDX-License-Identifier: Apache-2.0
 *
 * k_logprobs(), k_edit() and k_chosen() against their references, in the order in which a step has
 * them: for every kind of row, of logits, and of vocabulary. A row's log probabilities are the same
 * bits when computed again and alone. With an argument: small vocabularies alone, for
 * compute-sanitizer. */
#include "tests/kernel/gpu.h"

#define ROWS_MAX   512
#define BIASES_MAX 300 /* of a row */

/* How the logits of a case look. */
enum look {
    SPREAD,
    ROUNDED,
    EQUAL,
    PEAKED,
    RISING,
    NAN_SOME,
    NAN_ALL,
    INF_TOP,
    INF_LOW,
    FEW_FINITE,
    HUGE_SOME,
    LOOKS
};

static const char *const look_names[LOOKS] = {"spread",        "rounded",    "equal",   "peaked",
                                              "rising",        "some NaN",   "all NaN", "+infinity",
                                              "all -infinity", "few finite", "huge"};

/* One case, on both sides. */
struct trial {
    int n_vocab, n_rows, n; /* rows of logits; those that are named */
    int n_words;
    float *logits;
    struct k_logits_row rows[ROWS_MAX];
    struct k_bias *biases; /* [n][BIASES_MAX] */
    uint32_t *masks;       /* [n][n_words] */
    int32_t *ids;          /* [n_rows] */
    float *dev_logits;
    struct k_logits_row *dev_rows;
    struct k_bias *dev_biases;
    uint32_t *dev_masks;
    int32_t *dev_ids;
    struct k_logprob_row want[ROWS_MAX], got[ROWS_MAX];
    struct k_logprob_row *dev_out;
};

static uint32_t random_word(void)
{
    uint32_t high = (uint32_t)((gpu_uniform() + 1.0f) * 32768.0f);

    return high << 16 | (uint32_t)((gpu_uniform() + 1.0f) * 32768.0f);
}

static int random_id(int n_vocab)
{
    return (int)(random_word() % (uint32_t)n_vocab);
}

static float random_logit(enum look look, size_t i, int n_vocab)
{
    float x = 9.0f * gpu_uniform();

    switch (look) {
    case SPREAD: return x + 0.01f * gpu_uniform();
    case ROUNDED: return gpu_widen(gpu_round(x));
    case EQUAL: return 2.5f;
    case PEAKED: return x * x * x * 0.1f;
    case RISING: return (float)(i % (size_t)n_vocab) * 0.001f - 50.0f;
    case NAN_SOME: return x > 4.0f ? NAN : x;
    case NAN_ALL: return NAN;
    case INF_TOP: return x > 8.0f ? INFINITY : x;
    case INF_LOW: return -INFINITY;
    case FEW_FINITE: return x > 8.9f ? x : -INFINITY;
    case HUGE_SOME: return x > 8.9f ? 3e38f : x < -8.9f ? -3e38f : x * 1e4f;
    case LOOKS: break;
    }
    return 0.0f;
}

/* Biases of row i: the first id, the last, and others between; some ban. */
static int random_biases(struct k_bias *biases, int i, int n_vocab)
{
    static const int counts[] = {0, 0, 1, 5, BIASES_MAX};
    int n = counts[i % 5] < n_vocab ? counts[i % 5] : n_vocab;

    for (int j = 0; j < n; j++) {
        int id = i % 2 == 0 ? j * (n_vocab / n) : n_vocab - 1 - j * (n_vocab / n);

        biases[j] = (struct k_bias){id, (i + j) % 7 == 3 ? -INFINITY : 5.0f * gpu_uniform(), 7.0f};
    }
    return n;
}

/* The mask of row i; bits behind the last id are anything. */
static bool random_mask(uint32_t *mask, int i, int n_words)
{
    int one = (int)(random_word() % (uint32_t)n_words);

    for (int w = 0; w < n_words; w++) {
        uint32_t r = random_word();

        switch (i % 7) {
        case 0:
        case 1: mask[w] = ~0U; break;
        case 2: mask[w] = 0; break;
        case 3: mask[w] = w == one ? r : 0; break;
        case 4: mask[w] = w == one ? r : ~0U; break;
        default: mask[w] = r;
        }
    }
    return i % 7 > 0;
}

static void random_row(struct trial *t, int i, int kind)
{
    static const int n_tops[] = {20, 5, -1, 0, 1, 20, 3, 7, K_LOGPROBS_MAX, 64, 65};
    struct k_logits_row *r = &t->rows[i];

    r->row = t->n_rows - 1 - i; /* so the first rows of logits are not named */
    r->n_top = n_tops[kind % 11];
    r->target = kind % 3 == 0 ? K_SAMPLED : random_id(t->n_vocab);
    if (kind % 12 == 1)
        r->target = 0;
    if (kind % 12 == 5)
        r->target = t->n_vocab - 1;
    r->biases_at = (int64_t)i * BIASES_MAX;
    r->n_biases = random_biases(&t->biases[r->biases_at], kind, t->n_vocab);
    r->mask_at = (int64_t)i * t->n_words;
    if (!random_mask(&t->masks[r->mask_at], kind, t->n_words))
        r->mask_at = -1;
}

static void trial_init(struct trial *t, int n_vocab, int n_rows, enum look look)
{
    size_t size = (size_t)n_rows * (size_t)n_vocab;

    t->n_vocab = n_vocab;
    t->n_rows = n_rows;
    t->n = n_rows - n_rows / 8;
    t->n_words = (n_vocab + 31) / 32;
    t->logits = malloc(size * sizeof *t->logits);
    t->biases = calloc((size_t)t->n * BIASES_MAX, sizeof *t->biases);
    t->masks = malloc((size_t)t->n * (size_t)t->n_words * sizeof *t->masks);
    t->ids = malloc((size_t)n_rows * sizeof *t->ids);
    for (size_t i = 0; i < size; i++)
        t->logits[i] = random_logit(look, i, n_vocab);
    for (int i = 0; i < t->n; i++)
        random_row(t, i, t->n == 1 ? random_id(1 << 16) : i);
    for (int i = 0; i < n_rows; i++)
        t->ids[i] = i % 9 == 0 ? n_vocab - 1 : random_id(n_vocab);
    for (int i = 0; i < t->n; i++) { /* what has a bias is sampled more often than not */
        if (i % 4 != 0 && t->rows[i].n_biases > 0)
            t->ids[t->rows[i].row] = t->biases[t->rows[i].biases_at + t->rows[i].n_biases / 2].id;
    }
    t->dev_logits = gpu_array(t->logits, size * sizeof *t->logits);
    t->dev_rows = gpu_array(t->rows, (size_t)t->n * sizeof *t->rows);
    t->dev_biases = gpu_array(t->biases, (size_t)t->n * BIASES_MAX * sizeof *t->biases);
    t->dev_masks = gpu_array(t->masks, (size_t)t->n * (size_t)t->n_words * sizeof *t->masks);
    t->dev_ids = gpu_array(t->ids, (size_t)n_rows * sizeof *t->ids);
    t->dev_out = gpu_array(NULL, (size_t)t->n * sizeof *t->got);
    memset(t->want, 0xab, sizeof t->want);
}

static void trial_fini(struct trial *t)
{
    free(t->logits), free(t->biases), free(t->masks), free(t->ids);
}

static bool is_near(float got, float want)
{
    if (memcmp(&got, &want, sizeof got) == 0)
        return true;
    return fabsf(got - want) <= 2e-5f + 0x1p-22f * fabsf(want);
}

static bool is_same_row(const struct k_logprob_row *got, const struct k_logprob_row *want)
{
    bool same = got->n_top == want->n_top && got->rank == want->rank &&
                is_near(got->log_sum, want->log_sum) && is_near(got->chosen, want->chosen);

    if (want->n_top < 0) /* not asked for */
        return memcmp(got, want, sizeof *got) == 0;
    for (int i = 0; same && i < want->n_top; i++)
        same = got->ids[i] == want->ids[i] && got->top[i] == want->top[i];
    return same;
}

static int count_same(const struct trial *t)
{
    int n_same = 0, n_shown = 0;

    for (int i = 0; i < t->n; i++) {
        const struct k_logprob_row *got = &t->got[i], *want = &t->want[i];

        if (is_same_row(got, want))
            n_same++;
        else if (n_shown++ < 5)
            printf("# row %d: log_sum %.9g %.9g, chosen %.9g %.9g, rank %d %d, n_top %d %d, "
                   "first %d %d\n",
                   i, (double)got->log_sum, (double)want->log_sum, (double)got->chosen,
                   (double)want->chosen, got->rank, want->rank, got->n_top, want->n_top,
                   got->ids[0], want->ids[0]);
    }
    return n_same;
}

/* Row i by itself: another place of its logits, another alignment, no company. */
static bool is_same_alone(struct trial *t, int i)
{
    size_t bytes = (size_t)t->n_vocab * sizeof(float);
    struct k_logits_row row = t->rows[i], *dev_row;
    struct k_logprob_row out, *dev_out = gpu_array(NULL, sizeof out);
    float *dev = gpu_array(t->logits + (size_t)row.row * (size_t)t->n_vocab, bytes);
    bool intact;

    row.row = 0;
    dev_row = gpu_array(&row, sizeof row);
    gpu_must(k_logprobs(dev_out, dev, t->n_vocab, dev_row, 1, device_cuda_stream(gpu)));
    intact = gpu_get(&out, dev_out, sizeof out);
    return intact && memcmp(&out, &t->got[i], sizeof out) == 0;
}

static void check_logprobs(struct trial *t, const char *name)
{
    size_t bytes = (size_t)t->n * sizeof *t->got;
    struct k_logprob_row *again = malloc(bytes), *dev_again = gpu_array(NULL, bytes);
    k_stream s = device_cuda_stream(gpu);
    int n_same = 0, n_alone = 0;

    gpu_must(k_logprobs(t->dev_out, t->dev_logits, t->n_vocab, t->dev_rows, t->n, s));
    gpu_must(k_logprobs(dev_again, t->dev_logits, t->n_vocab, t->dev_rows, t->n, s));
    ok(gpu_get(t->got, t->dev_out, bytes), "guard bands are whole");
    ok(gpu_get(again, dev_again, bytes) && memcmp(again, t->got, bytes) == 0, "twice the same");
    ref_logprobs(t->want, t->logits, t->n_vocab, t->rows, t->n);
    is_int(count_same(t), t->n, "vocabulary %d, %d rows, %s: log probabilities", t->n_vocab, t->n,
           name);
    for (int i = 0; i < t->n; i += t->n / 6 + 1, n_alone++)
        n_same += is_same_alone(t, i);
    is_int(n_same, n_alone, "the same bits alone");
    free(again);
}

/* Logits that are asked for: of every row the first id, the last, and one between. */
static void check_asked(struct trial *t, const char *name)
{
    size_t n = 3 * (size_t)t->n_rows;
    struct k_asked *want = calloc(n, sizeof *want), *got = malloc(n * sizeof *got), *dev;
    int n_same = 0;

    for (int i = 0; i < (int)n; i++)
        want[i] = (struct k_asked){.row = i / 3,
                                   .id = i % 3 == 0   ? 0
                                         : i % 3 == 1 ? t->n_vocab - 1
                                                      : random_id(t->n_vocab)};
    dev = gpu_array(want, n * sizeof *want);
    gpu_must(k_read_asked(dev, t->dev_logits, t->n_vocab, (int)n, device_cuda_stream(gpu)));
    ok(gpu_get(got, dev, n * sizeof *got), "guard bands are whole");
    ref_read_asked(want, t->logits, t->n_vocab, (int)n);
    for (size_t i = 0; i < n; i++)
        n_same += memcmp(&got[i], &want[i], sizeof *got) == 0;
    is_int(n_same, (long long)n, "vocabulary %d, %d rows, %s: logits asked for", t->n_vocab,
           t->n_rows, name);
    free(want), free(got);
}

static size_t count_same_floats(const float *got, const float *want, size_t n)
{
    size_t n_same = 0;

    for (size_t i = 0; i < n; i++)
        n_same += memcmp(&got[i], &want[i], 4) == 0 || (got[i] != got[i] && want[i] != want[i]);
    return n_same;
}

static void check_edit(struct trial *t, const char *name)
{
    size_t size = (size_t)t->n_rows * (size_t)t->n_vocab;
    size_t n_biases = (size_t)t->n * BIASES_MAX, n_same = 0;
    float *got = malloc(size * sizeof *got);
    struct k_bias *biases = malloc(n_biases * sizeof *biases);

    gpu_must(k_edit(t->dev_logits, t->n_vocab, t->dev_rows, t->n, t->dev_masks, t->dev_biases,
                    device_cuda_stream(gpu)));
    ref_edit(t->logits, t->n_vocab, t->rows, t->n, t->masks, t->biases);
    ok(gpu_get(got, t->dev_logits, size * sizeof *got) &&
           gpu_get(biases, t->dev_biases, n_biases * sizeof *biases),
       "guard bands are whole");
    is_int(count_same_floats(got, t->logits, size), size, "vocabulary %d, %d rows, %s: edited",
           t->n_vocab, t->n, name);
    for (size_t i = 0; i < n_biases; i++)
        n_same += biases[i].id == t->biases[i].id &&
                  count_same_floats(&biases[i].value, &t->biases[i].value, 2) == 2;
    is_int(n_same, n_biases, "the logits before a bias");
    free(got), free(biases);
}

static void check_chosen(struct trial *t, const char *name)
{
    gpu_must(k_chosen(t->dev_out, t->dev_ids, t->dev_logits, t->n_vocab, t->dev_rows, t->n,
                      t->dev_biases, device_cuda_stream(gpu)));
    ok(gpu_get(t->got, t->dev_out, (size_t)t->n * sizeof *t->got), "guard bands are whole");
    ref_chosen(t->want, t->ids, t->logits, t->n_vocab, t->rows, t->n, t->biases);
    is_int(count_same(t), t->n, "vocabulary %d, %d rows, %s: of what was sampled", t->n_vocab, t->n,
           name);
}

static void run_case(int n_vocab, int n_rows, enum look look)
{
    struct trial *t = calloc(1, sizeof *t);

    trial_init(t, n_vocab, n_rows, look);
    check_asked(t, look_names[look]);
    check_logprobs(t, look_names[look]);
    check_edit(t, look_names[look]);
    check_chosen(t, look_names[look]);
    trial_fini(t);
    free(t);
}

static void check(int n_vocab, int n_rows, enum look look)
{
    if (gpu_has_turn())
        run_case(n_vocab, n_rows, look);
}

int main(int argc, char **argv)
{
    static const int vocabs[] = {2, 7, 33, 1000, 1025, 5000};

    (void)argv;
    gpu_open();
    for (size_t i = 0; i < sizeof vocabs / sizeof vocabs[0]; i++)
        for (int look = 0; look < LOOKS; look++)
            check(vocabs[i], argc > 1 ? 23 : 180, (enum look)look);
    if (argc > 1)
        return device_close(gpu), tap_done();
    check(1000, ROWS_MAX, SPREAD);
    for (int look = 0; look < LOOKS; look++)
        check(32000, 24, (enum look)look);
    for (int i = 0; i < 6; i++)
        check(128256, i + 1, i % 2 == 0 ? SPREAD : PEAKED);
    for (int look = 0; look < LOOKS; look++)
        check(128255, 9, (enum look)look);
    check(128256, 64, ROUNDED);
    check(151936, 9, RISING);
    check(425983, 3, SPREAD);
    check(425984, 9, EQUAL);
    check(425984, 9, ROUNDED);
    device_close(gpu);
    return tap_done();
}
