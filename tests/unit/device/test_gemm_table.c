/* SPDX-License-Identifier: Apache-2.0
 *
 * The file of measured products: what was written is read again, a file of another GPU or version
 * is left alone, and a broken one is refused as a whole. */
#include <unistd.h>

#include "device/gemm_table.h"
#include "tests/tap.h"

static char path[] = "/tmp/quire-gemm-XXXXXX";
static struct gemm_table table;

static void clear(void)
{
    memset(&table, 0, sizeof table);
    table.version = 130100;
    snprintf(table.gpu, sizeof table.gpu, "NVIDIA H200");
}

static int read_text(const char *text)
{
    FILE *f = fopen(path, "w");

    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        exit(1);
    clear();
    return gemm_table_read(&table, path);
}

static void check_round_trip(void)
{
    struct gemm_entry e = {
        .kind = GEMM_E4M3_BLOCK, .n = 64, .n_out = 6144, .n_in = 4096, .us = 9.5f};
    const struct gemm_entry *found;

    clear();
    for (int i = 0; i < GEMM_ALGO_WORDS; i++)
        e.algo[i] = UINT64_MAX / (uint64_t)(i + 1);
    is_int(gemm_table_put(&table, &e), ERR_OK, "a product is put");
    e.kind = GEMM_BF16_FLOAT;
    is_int(gemm_table_put(&table, &e), ERR_OK, "one of another kind too");
    e.us = 8.0f;
    is_int(gemm_table_put(&table, &e), ERR_OK, "a better one takes its place");
    is_int(table.n_entries, 2, "there are two");
    is_int(gemm_table_write(&table, path), ERR_OK, "the table is written");
    clear();
    is_int(gemm_table_read(&table, path), ERR_OK, "and read");
    is_int(table.n_entries, 2, "with both");
    found = gemm_table_find(&table, GEMM_BF16_FLOAT, 64, 6144, 4096);
    ok(found != NULL && memcmp(found->algo, e.algo, sizeof e.algo) == 0 && found->us < 8.1f,
       "as they were");
    ok(gemm_table_find(&table, GEMM_BF16, 64, 6144, 4096) == NULL, "what was not put is not found");
}

static void check_files(void)
{
    static const char *const broken[] = {
        "bf16 64 6144 4096 9.5 1 2 3 4 5 6 7\n",   "fp4 64 6144 4096 9.5 1 2 3 4 5 6 7 8\n",
        "bf16 0 6144 4096 9.5 1 2 3 4 5 6 7 8\n",  "bf16 64 6144 9.5\n",
        "bf16 64 6144 4096 9.5 1 2 3 4 5 6 7 x\n",
    };
    char text[400];

    is_int(read_text("cublaslt 130100\ngpu NVIDIA H200\n\n# none yet\n"), ERR_OK, "an empty one");
    is_int(read_text("cublaslt 130200\ngpu NVIDIA H200\nbf16 64 6144 4096 9.5 1 2 3 4 5 6 7 8\n"),
           ERR_UNSUPPORTED, "another version");
    is_int(read_text("cublaslt 130100\ngpu NVIDIA H100\nbf16 64 6144 4096 9.5 1 2 3 4 5 6 7 8\n"),
           ERR_UNSUPPORTED, "another GPU");
    is_int(read_text("bf16 64 6144 4096 9.5 1 2 3 4 5 6 7 8\n"), ERR_UNSUPPORTED, "no head");
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        snprintf(text, sizeof text, "cublaslt 130100\ngpu NVIDIA H200\n%s%s",
                 "bf16 64 6144 4096 9.5 1 2 3 4 5 6 7 8\n", broken[i]);
        is_int(read_text(text), ERR_SYNTAX, "broken line %zu", i);
        is_int(table.n_entries, 0, "nothing of it is used");
    }
    unlink(path);
    is_int(gemm_table_read(&table, path), ERR_NOT_FOUND, "a missing one");
}

int main(void)
{
    int fd = mkstemp(path);

    if (fd == -1 || close(fd) != 0)
        return 1;
    check_round_trip();
    check_files();
    return tap_done();
}
