/* SPDX-License-Identifier: Apache-2.0
 *
 * Goal: rows of numbers become what the endpoints promise: floats that read back as the same ones,
 * vectors of length 1, probabilities, cosines, ranks. Method: rows are given to an exchange without
 * a client, as records of three floats; what it would send is read as JSON. */
#include "front/answer/pooled.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tests/tap.h"

#define N_MAX 300

static struct exchange x;
static struct pooled pooled;
static struct pooling model;
static struct gen gens[8];
static struct arena arena;

static void begin(enum pooled_answer answer, enum pooling_kind kind, int n_gens)
{
    model = (struct pooling){.kind = kind, .n_labels = 1, .sigma = 1.0};
    pooled = (struct pooled){.answer = answer, .model = &model};
    x = (struct exchange){.id = "ID", .created = 7, .model = "demo", .gens = gens};
    x.pooled = &pooled;
    x.n_gens = n_gens;
    for (int i = 0; i < n_gens; i++)
        gens[i] = (struct gen){.exchange = &x, .index = i, .n_cached = 1};
    pooled.n_tokens = 9;
}

/* As the records of an engine bring it: the last one is padded. */
static void give(int g, const float *v, int n)
{
    for (int i = 0; i < n; i += 3) {
        struct wire_out o = {.kind = WIRE_ROW};

        ok(!pooled_is_whole(&gens[g]), "the row is not whole");
        memcpy(&o.value, &v[i], sizeof o.value);
        memcpy(o.logits, &v[i + 1], (size_t)(n - i - 1 < 2 ? n - i - 1 : 2) * sizeof *v);
        pooled_row(&gens[g], &o, (uint32_t)n);
    }
    ok(pooled_is_whole(&gens[g]), "it is whole");
}

/* The body of the answer. */
static const struct json *reply(void)
{
    const struct json *out = NULL;
    const char *body;
    char why[200];

    pooled_reply(&x);
    body = strstr(x.out.bytes, "\r\n\r\n") + 4;
    ok(json_parse(&out, &arena, body, strlen(body), why, sizeof why) == ERR_OK, "it is JSON");
    buf_fini(&x.out);
    for (int i = 0; i < x.n_gens; i++)
        buf_fini(&gens[i].row);
    arena_reset(&x.arena);
    return out;
}

static const struct json *vector_of(const struct json *body, int i)
{
    return json_get(&json_get(body, "data")->items[i], "embedding");
}

static void test_floats(void)
{
    static float v[N_MAX];
    const struct json *got;
    int n_same = 0;

    begin(POOLED_EMBEDDINGS, POOLING_EMBED, 1);
    srand(5);
    for (int i = 0; i < N_MAX; i++) {
        float scale = powf(10.0f, (float)(rand() % 24 - 16));

        v[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * scale;
    }
    v[0] = 0.0f, v[1] = 1.0f, v[2] = -1.0f, v[3] = 0.1f, v[4] = 0.99999994f, v[5] = 1e-5f;
    v[6] = 0.0999999940f, v[7] = -0.01f, v[8] = 3.4e38f, v[9] = 1e-45f, v[10] = -0.5f;
    give(0, v, N_MAX);
    got = vector_of(reply(), 0);
    for (int i = 0; i < N_MAX; i++)
        n_same += (float)json_real(&got->items[i]) == v[i];
    is_int(n_same, N_MAX, "floats of all sizes read back as the same");
    v[0] = NAN;
    begin(POOLED_EMBEDDINGS, POOLING_EMBED, 1);
    give(0, v, 4);
    ok(vector_of(reply(), 0)->items[0].kind == JSON_NULL, "what is no number is null");
}

static void test_base64(void)
{
    static const float v[] = {1.0f, -2.5f, 0.0f, 3.0f};
    static const char *const want[] = {"AACAPw==", "AACAPwAAIMA=", "AACAPwAAIMAAAAAA",
                                       "AACAPwAAIMAAAAAAAABAQA=="};

    for (int n = 1; n <= 4; n++) {
        begin(POOLED_EMBEDDINGS, POOLING_EMBED, 1);
        pooled.base64 = true;
        give(0, v, n);
        is_text(vector_of(reply(), 0)->text, want[n - 1], "base64 of %d floats", n);
    }
}

static void test_units(void)
{
    static const float v[] = {3.0f, 4.0f, 12.0f}, zeros[3];
    const struct json *body;

    begin(POOLED_EMBEDDINGS, POOLING_EMBED, 2);
    pooled.activates = true;
    pooled.dimensions = 2;
    give(0, v, 3);
    give(1, zeros, 3);
    body = reply();
    is_int((int)vector_of(body, 0)->n, 2, "cut to two numbers");
    ok(fabs(json_real(&vector_of(body, 0)->items[0]) - 0.6) < 1e-7 &&
           fabs(json_real(&vector_of(body, 0)->items[1]) - 0.8) < 1e-7,
       "and then of length 1");
    ok(json_real(&vector_of(body, 1)->items[0]) == 0.0, "zeros stay");
    is_int((int)json_get_int(json_get(body, "usage"), "prompt_tokens", 0), 9, "the tokens");
}

/* Rows of classifiers are filled up with zeros. */
static void test_labels(void)
{
    static const float one[16] = {2.0f}, three[16] = {1.0f, 3.0f, 2.0f};
    const struct json *data;
    double sum = 0.0;

    begin(POOLED_ROWS, POOLING_SCORE, 1);
    pooled.activates = true;
    model.mean = 1.0;
    model.sigma = 0.5;
    give(0, one, 16);
    data = json_get(&json_get(reply(), "data")->items[0], "data");
    ok(data->n == 1 && fabs(json_real(&data->items[0]) - 1.0 / (1.0 + exp(-2.0))) < 1e-7,
       "one label: (2 - 1) / 0.5, a probability");
    begin(POOLED_ROWS, POOLING_SCORE, 1);
    pooled.activates = true;
    model.n_labels = 3;
    give(0, three, 16);
    data = json_get(&json_get(reply(), "data")->items[0], "data");
    for (uint32_t i = 0; i < data->n; i++)
        sum += json_real(&data->items[i]);
    ok(data->n == 3 && fabs(sum - 1.0) < 1e-6 &&
           fabs(json_real(&data->items[1]) / json_real(&data->items[2]) - exp(1.0)) < 1e-5,
       "three labels: their probabilities");
}

static void test_ranks(void)
{
    static const float rows[][3] = {{1.0f, 0.0f, 0.0f}, {-2.0f, 0.0f, 0.0f}, {5.0f, 5.0f, 0.0f},
                                    {3.0f, 0.0f, 0.0f}, {0.0f, 0.0f, 0.0f},  {9.0f, 0.0f, 0.0f},
                                    {NAN, 0.0f, 0.0f}};
    static const int want[] = {2, 4, 1, 3, 0, 5};
    static const struct json text = {.kind = JSON_TEXT, .text = "t", .text_len = 1};
    const struct json *texts[] = {&text, &text, &text, &text, &text, &text};
    const struct json *results;
    bool order = true;

    for (int top = 0; top <= 2; top += 2) {
        begin(POOLED_RANKS, POOLING_EMBED, 7);
        pooled.by_vectors = true;
        pooled.n_left = 1;
        pooled.n_right = 6;
        pooled.documents = texts;
        pooled.top_n = top;
        pooled.returns_documents = top > 0;
        for (int i = 0; i < 7; i++)
            give(i, rows[i], 3);
        results = json_get(reply(), "results");
        is_int((int)results->n, top > 0 ? top : 6, "the best %d of six", top);
        for (uint32_t i = 0; i < results->n; i++)
            order = order && json_get_int(&results->items[i], "index", -1) == want[i] &&
                    (json_get(&results->items[i], "document") != NULL) == (top > 0);
        ok(order, "by their cosines; equal ones in their order, what is no number last");
    }
    ok(fabs(json_real(json_get(&results->items[0], "relevance_score")) - 1.0) < 1e-7,
       "the best is parallel");
}

int main(void)
{
    test_floats();
    test_base64();
    test_units();
    test_labels();
    test_ranks();
    arena_reset(&arena);
    return tap_done();
}
