/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of measured products: searching, reading and writing (gemm_table.h shows a file).
 *
 * A table is read once at start and searched when a product of an unknown shape comes up, so a
 * linear search is enough. */
#include "config.h"

#include "device/gemm_table.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/must.h"

#define LINE_CAP   400
#define GEMM_BLOCK 128 /* the only size of blocks that is supported */

/* Names in the file; a new kind needs one. */
static const char *const kind_names[GEMM_KINDS] = {
    [GEMM_BF16] = "bf16",
    [GEMM_BF16_FLOAT] = "bf16-float",
    [GEMM_E4M3] = "e4m3",
    [GEMM_E4M3_FLOAT] = "e4m3-float",
    [GEMM_E4M3_BLOCK] = "e4m3-block",
};

/* The multiples of 16 are cuBLASLt's demand for e4m3. */
bool gemm_takes(const struct k_matrix *w)
{
    must(w->n_in >= 1 && w->n_out >= 1);
    if (k_format_is_plain(&w->format))
        return true;
    if (k_format_is_mxfp4(&w->format)) /* of experts */
        return w->n_in % K_MXFP4_GROUP == 0;
    if (k_format_is_packed(&w->format))
        return k_format_fits(&w->format, w->n_out, w->n_in);
    if (w->format.elem == K_INT8) /* by row */
        return w->n_in % 128 == 0 && w->n_out % 16 == 0 && w->n_in <= K_PACKED_IN_MAX;
    return w->n_in % 16 == 0 && w->n_out % 16 == 0 && w->n_in <= K_QUANTISED_DIM_MAX &&
           (k_format_is_by_row(&w->format, K_E4M3) ||
            k_format_is_in_blocks(&w->format, K_E4M3, GEMM_BLOCK));
}

/* The name in the file and in messages. */
const char *gemm_kind_name(enum gemm_kind kind)
{
    must(kind < GEMM_KINDS);
    return kind_names[kind];
}

/* -1 if the product was not measured. */
static int gemm_table_index(const struct gemm_table *t, enum gemm_kind kind, int n, int n_out,
                            int n_in)
{
    for (int i = 0; i < t->n_entries; i++) {
        const struct gemm_entry *entry = &t->entries[i];

        if (entry->kind == kind && entry->n == n && entry->n_out == n_out && entry->n_in == n_in)
            return i;
    }
    return -1;
}

/* Exact shapes only: an algorithm for another number of rows may be invalid or slow. */
const struct gemm_entry *gemm_table_find(const struct gemm_table *t, enum gemm_kind kind, int n,
                                         int n_out, int n_in)
{
    int i = gemm_table_index(t, kind, n, n_out, n_in);

    if (i < 0)
        return NULL;
    return &t->entries[i];
}

/* Measuring a product again replaces its entry. */
int gemm_table_put(struct gemm_table *t, const struct gemm_entry *entry)
{
    int i = gemm_table_index(t, entry->kind, entry->n, entry->n_out, entry->n_in);

    must(entry->kind < GEMM_KINDS && entry->n >= 1);
    if (i < 0 && t->n_entries == GEMM_ENTRIES_MAX)
        return ERR_LIMIT;
    if (i < 0)
        i = t->n_entries++;
    t->entries[i] = *entry;
    return ERR_OK;
}

/* "bf16 256 6144 4096 22.9 42 0 0 0 0 0 0 0": kind, rows, outputs, inputs, microseconds,
 * algorithm. */
static int gemm_table_parse_entry(struct gemm_entry *e, const char *line)
{
    char kind[20];
    int at = 0, used = 0;

    if (sscanf(line, "%19s %d %d %d %f%n", kind, &e->n, &e->n_out, &e->n_in, &e->us, &at) != 5)
        return ERR_SYNTAX;
    for (e->kind = 0; e->kind < GEMM_KINDS; e->kind++) {
        if (strcmp(kind, kind_names[e->kind]) == 0)
            break;
    }
    /* An unknown kind may come from a later build. */
    if (e->kind == GEMM_KINDS || e->n < 1 || e->n_out < 1 || e->n_in < 1)
        return ERR_SYNTAX;
    for (int i = 0; i < GEMM_ALGO_WORDS; i++, at += used) {
        if (sscanf(line + at, "%" SCNx64 "%n", &e->algo[i], &used) != 1)
            return ERR_SYNTAX;
    }
    return ERR_OK;
}

/* Parse a line of the head: "cublaslt 130100" or "gpu NVIDIA H200". False for other lines. gpu:
 * char [64]. */
static bool gemm_table_parse_head(const char *line, long *version, char *gpu)
{
    return sscanf(line, "cublaslt %ld", version) == 1 || sscanf(line, "gpu %63[^\r\n]", gpu) == 1;
}

/* The head comes first, so version and GPU are checked at the first entry. */
static int gemm_table_read_lines(struct gemm_table *t, FILE *f, const char *path)
{
    char line[LINE_CAP], gpu[64] = "";
    long version = 0;

    for (int number = 1; fgets(line, sizeof line, f) != NULL; number++) {
        struct gemm_entry entry = {.n = 0};

        if (line[0] == '#' || line[0] == '\n' || gemm_table_parse_head(line, &version, gpu))
            continue;
        if (version != t->version || strcmp(gpu, t->gpu) != 0) {
            /* Not an error: the installed table fits one kind of GPU. */
            log_info(
                "device: %s was measured with cuBLASLt %ld on %s; this is %ld on %s, so products "
                "are chosen without it",
                path, version, gpu, t->version, t->gpu);
            return ERR_UNSUPPORTED;
        }
        if (gemm_table_parse_entry(&entry, line) != ERR_OK || gemm_table_put(t, &entry) != ERR_OK) {
            log_error("device: %s: line %d is not a measured product", path, number);
            return ERR_SYNTAX;
        }
    }
    if (ferror(f) != 0)
        return ERR_IO;
    return ERR_OK;
}

/* A table that is broken in the middle counts as empty, so that behaviour does not depend on where
 * it broke. */
int gemm_table_read(struct gemm_table *t, const char *path)
{
    FILE *file = fopen(path, "re");
    int rc;

    t->n_entries = 0;
    if (file == NULL && errno == ENOENT)
        return ERR_NOT_FOUND;
    if (file == NULL) {
        log_error("device: %s: %s", path, strerror(errno));
        return ERR_IO;
    }
    rc = gemm_table_read_lines(t, file, path);
    (void)fclose(file); /* nothing was written: no error to report */
    if (rc != ERR_OK)
        t->n_entries = 0;
    return rc;
}

/* Errors of fprintf() stay in the stream until ferror() reads them. */
int gemm_table_write(const struct gemm_table *t, const char *path)
{
    FILE *file = fopen(path, "we");
    bool written;

    if (file == NULL) {
        log_error("device: %s: %s", path, strerror(errno));
        return ERR_IO;
    }
    fprintf(file,
            "# Matrix products as they were measured: kind, rows, outputs, inputs, microseconds,"
            " algorithm.\ncublaslt %ld\ngpu %s\n",
            t->version, t->gpu);
    for (int i = 0; i < t->n_entries; i++) {
        const struct gemm_entry *entry = &t->entries[i];

        fprintf(file, "%s %d %d %d %.1f", kind_names[entry->kind], entry->n, entry->n_out,
                entry->n_in, (double)entry->us);
        for (int w = 0; w < GEMM_ALGO_WORDS; w++)
            fprintf(file, " %" PRIx64, entry->algo[w]);
        fputc('\n', file);
    }
    written = ferror(file) == 0;
    if (fclose(file) != 0 || !written) {
        log_error("device: %s cannot be written: %s", path, strerror(errno));
        return ERR_IO;
    }
    return ERR_OK;
}
