/* The promise of model.h on the cpu device: a sequence has the same logits, bit for bit, alone and
 * in a crowd, prefilled whole or in chunks of any size, and after its pages were copied out and
 * in. With random weights, so no golden files are needed. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/golden/run.h"
#include "tests/tap.h"

#define N_SEQS  6
#define N_VOCAB 211

static struct model *m;
static struct run *r;
static struct run_seq seqs[N_SEQS];
static float alone[N_SEQS][N_VOCAB];

static const char config[] =
    "{\"architectures\":[\"Qwen2ForCausalLM\"],\"hidden_size\":72,\"num_hidden_layers\":3,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":20,"
    "\"intermediate_size\":100,\"vocab_size\":211,\"max_position_embeddings\":300}";

static void open_model(void)
{
    char dir[] = "/tmp/quire-batch-XXXXXX", path[64];
    struct model_options o = {.dir = dir,
                              .device = "cpu",
                              .dummy_weights = true,
                              .block_tokens = 8,
                              .num_pages = 400,
                              .max_num_seqs = 16,
                              .max_num_batched_tokens = 256,
                              .cpu_threads = 3};
    FILE *f;

    ok(mkdtemp(dir) != NULL, "a folder");
    snprintf(path, sizeof path, "%s/config.json", dir);
    f = fopen(path, "w");
    fputs(config, f);
    fclose(f);
    is_int(model_open(&m, &o), ERR_OK, "the model opens");
    unlink(path);
    rmdir(dir);
    if (m == NULL)
        exit(1);
    for (int i = 0; i < N_SEQS; i++) {
        seqs[i].n_tokens = 1 + rand() % 200;
        seqs[i].first_page = i * 40;
        for (int t = 0; t < seqs[i].n_tokens; t++)
            seqs[i].tokens[t] = rand() % N_VOCAB;
    }
}

/* Logits of the step's only row. */
static void step(float *logits, int n_rows)
{
    if (run_step(r) != ERR_OK || model_logits(m, logits) != ERR_OK)
        ok(false, "a step runs");
    (void)n_rows;
}

static void check_chunks(void)
{
    static const int chunks[] = {1, 3, 8, 50};
    float logits[16 * N_VOCAB];

    for (int i = 0; i < N_SEQS; i++) {
        run_clear(r);
        run_add(r, &seqs[i], seqs[i].n_tokens, false);
        step(alone[i], 1);
        for (size_t j = 0; j < sizeof chunks / sizeof chunks[0]; j++) {
            seqs[i].n_computed = 0;
            while (seqs[i].n_computed < seqs[i].n_tokens) {
                int left = seqs[i].n_tokens - seqs[i].n_computed;

                run_clear(r);
                run_add(r, &seqs[i], left < chunks[j] ? left : chunks[j], false);
                step(logits, 1);
            }
            ok(memcmp(logits, alone[i], sizeof alone[i]) == 0,
               "%d tokens in chunks of %d: the same bits", seqs[i].n_tokens, chunks[j]);
        }
    }
}

/* Random steps: any sequence, any number of its next tokens, until all are computed. */
static void check_crowd(void)
{
    float logits[16 * N_VOCAB];
    int n_same = 0, n_done = 0;

    for (int i = 0; i < N_SEQS; i++)
        seqs[i].n_computed = 0;
    while (n_done < N_SEQS) {
        int rows[N_SEQS], n_rows = 0, first = rand() % N_SEQS;

        run_clear(r);
        for (int j = 0; j < N_SEQS; j++) {
            int i = (first + j) % N_SEQS, left = seqs[i].n_tokens - seqs[i].n_computed;
            int n = left > 0 ? 1 + rand() % left : 0;

            n = n > 40 ? 1 : n;
            if (n == 0 || rand() % 3 == 0)
                continue;
            if (n == left)
                rows[n_rows++] = i;
            run_add(r, &seqs[i], n, false);
        }
        if (r->b.n_seqs == 0)
            continue;
        step(logits, n_rows);
        for (int j = 0; j < n_rows; j++)
            n_same += memcmp(logits + j * N_VOCAB, alone[rows[j]], sizeof alone[0]) == 0;
        n_done += n_rows;
    }
    is_int(n_same, N_SEQS, "in a crowd, in random chunks: the same bits");
}

/* Move a sequence's pages elsewhere, spoil the old ones, recompute its last token. */
static void check_pages(void)
{
    size_t bytes = model_shape(m)->page_bytes;
    char *page = malloc(bytes), *junk = malloc(bytes);
    float logits[N_VOCAB];
    int i = 0, n_pages;

    while (seqs[i].n_tokens < 2)
        i++;
    n_pages = (seqs[i].n_tokens + 7) / 8;
    memset(junk, 0x7f, bytes);
    for (int p = 0; p < n_pages; p++) {
        if (model_page_read(m, seqs[i].first_page + p, page) != ERR_OK ||
            model_page_write(m, 300 + p, page) != ERR_OK ||
            model_page_write(m, seqs[i].first_page + p, junk) != ERR_OK)
            ok(false, "pages are copied");
    }
    seqs[i].first_page = 300;
    seqs[i].n_computed = seqs[i].n_tokens - 1;
    run_clear(r);
    run_add(r, &seqs[i], 1, false);
    step(logits, 1);
    ok(memcmp(logits, alone[i], sizeof logits) == 0, "after its pages moved: the same bits");
    free(page);
    free(junk);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARN);
    srand(tap_seed(1));
    r = malloc(sizeof *r);
    open_model();
    run_init(r, m);
    check_chunks();
    check_crowd();
    check_pages();
    model_close(m);
    free(r);
    return tap_done();
}
