/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads with stdio in pieces of 64 KiB and never asks for a file's size: a file that grows while
 * it is read, or a pipe that reports no size, then needs no case of its own, and the limit holds
 * for the bytes that were really read. */
#include "text/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf.h"
#include "base/mem.h"
#include "base/must.h"
#include "text/gguf_folder.h"

#define PIECE ((size_t)64 << 10)

/* Append all of f to out. The limit is checked after each piece, so at most one piece more than
 * the limit is ever held. */
static int file_drain(struct buf *out, FILE *f, size_t limit)
{
    size_t n = 1;

    while (n != 0) {
        /* buf_reserve() leaves room for a NUL after the piece, so that the content of a file may
         * be read as a C string. */
        if (!buf_reserve(out, PIECE))
            return ERR_NO_MEMORY;
        n = fread(out->bytes + out->len, 1, PIECE, f);
        out->len += n;
        out->bytes[out->len] = '\0';
        /* A pipe or a file that grows has no size to ask for in advance, hence a limit on
         * the bytes read. */
        if (out->len > limit)
            return ERR_LIMIT;
    }
    if (ferror(f))
        return ERR_IO;
    return ERR_OK;
}

/* Open dir/name for reading. *path gets the joined path; the caller frees it in every case, because
 * the error messages name it. */
static int file_open(FILE **out, struct buf *path, const char *dir, const char *name, char *why,
                     size_t why_cap)
{
    int rc;

    /* `dir` is NULL for a path that an operator has set; a name from a model's folder is
     * joined to it. */
    if (dir != NULL)
        buf_printf(path, "%s/", dir);
    buf_add_text(path, name);
    if (path->failed)
        return ERR_NO_MEMORY;
    *out = fopen(path->bytes, "rb");
    if (*out != NULL)
        return ERR_OK;
    /* A missing file is often no error, because most files of a model are optional. The
     * caller decides. */
    if (errno == ENOENT || errno == ENOTDIR)
        rc = ERR_NOT_FOUND;
    else
        rc = ERR_IO;
    (void)snprintf(why, why_cap, "%s: cannot be opened (error %d)", path->bytes, errno);
    return rc;
}

/* A path that is a file in place of a folder is a GGUF file, which holds the texts of one. */
static int file_make(struct buf *out, const char *path, const char *name, size_t limit, char *why,
                     size_t why_cap)
{
    int rc = gguf_folder_read(out, path, name, why, why_cap);

    if (rc != ERR_OK || out->len <= limit)
        return rc;
    (void)snprintf(why, why_cap, "%s: %s", path, err_sentence(ERR_LIMIT));
    return ERR_LIMIT;
}

int file_read(struct buf *out, const char *dir, const char *name, size_t limit, char *why,
              size_t why_cap)
{
    struct buf path = {0};
    FILE *f = NULL;
    int rc;

    must(out != NULL && name != NULL);
    must(why != NULL || why_cap == 0);
    if (dir != NULL && gguf_is_path(dir))
        return file_make(out, dir, name, limit, why, why_cap);
    rc = file_open(&f, &path, dir, name, why, why_cap);
    if (rc == ERR_OK) {
        rc = file_drain(out, f, limit);
        (void)fclose(f); /* opened for reading: nothing can be lost */
        if (rc != ERR_OK)
            (void)snprintf(why, why_cap, "%s: %s", path.bytes, err_sentence(rc));
    }
    buf_fini(&path);
    return rc;
}

/* The length is folded in last: without it, moving bytes from the end of one file to the start of
 * the next would give the same digest. */
static void file_fold_end(struct hash *hash, uint64_t len)
{
    *hash = hash_sha256(hash->bytes, HASH_BYTES, &len, sizeof len);
}

void file_fold(struct hash *hash, const char *bytes, size_t len)
{
    size_t at;

    must(bytes != NULL || len == 0);
    for (at = 0; at < len; at += PIECE) {
        size_t n = len - at < PIECE ? len - at : PIECE;

        *hash = hash_sha256(hash->bytes, HASH_BYTES, bytes + at, n);
    }
    file_fold_end(hash, len);
}

/* Fold the rest of f. The pieces are those of file_fold(), so both ways give the same digest. */
static int file_fold_file(struct hash *hash, FILE *f, size_t limit)
{
    char *piece = mem_alloc(PIECE);
    size_t total = 0;
    size_t n = PIECE;

    if (piece == NULL)
        return ERR_NO_MEMORY;
    while (n == PIECE && total <= limit) { /* a shorter piece is the end of the file */
        n = fread(piece, 1, PIECE, f);
        if (n > 0)
            *hash = hash_sha256(hash->bytes, HASH_BYTES, piece, n);
        total += n;
    }
    mem_free(piece);
    file_fold_end(hash, total);
    if (ferror(f))
        return ERR_IO;
    if (total > limit)
        return ERR_LIMIT;
    return ERR_OK;
}

int file_digest(struct hash *hash, const char *dir, const char *name, size_t limit, char *why,
                size_t why_cap)
{
    struct buf path = {0}, made = {0};
    FILE *f = NULL;
    int rc;

    must(hash != NULL && name != NULL);
    must(why != NULL || why_cap == 0);
    if (dir != NULL && gguf_is_path(dir)) {
        rc = file_make(&made, dir, name, limit, why, why_cap);
        if (rc == ERR_OK)
            file_fold(hash, made.bytes, made.len);
        buf_fini(&made);
        return rc;
    }
    rc = file_open(&f, &path, dir, name, why, why_cap);
    if (rc == ERR_OK) {
        rc = file_fold_file(hash, f, limit);
        (void)fclose(f);
        if (rc != ERR_OK)
            (void)snprintf(why, why_cap, "%s: %s", path.bytes, err_sentence(rc));
    }
    buf_fini(&path);
    return rc;
}
