/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads with stdio in pieces of 64 KiB, so that a file that grows or lies about its length does
 * no harm. */
#include "text/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define PIECE ((size_t)64 << 10)

static int file_drain(struct buf *out, FILE *f, size_t limit)
{
    size_t n = 1;

    while (n != 0) {
        if (!buf_reserve(out, PIECE))
            return ERR_NO_MEMORY;
        n = fread(out->bytes + out->len, 1, PIECE, f);
        out->len += n;
        out->bytes[out->len] = '\0';
        if (out->len > limit)
            return ERR_LIMIT;
    }
    return ferror(f) ? ERR_IO : ERR_OK;
}

int file_read(struct buf *out, const char *dir, const char *name, size_t limit, char *why,
              size_t why_cap)
{
    struct buf path = {0};
    FILE *f;
    int rc;

    if (dir != NULL)
        buf_printf(&path, "%s/", dir);
    buf_add_text(&path, name);
    if (path.failed)
        return ERR_NO_MEMORY;
    f = fopen(path.bytes, "rb");
    if (f == NULL) {
        rc = errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO;
        (void)snprintf(why, why_cap, "%s: cannot be opened (error %d)", path.bytes, errno);
    } else {
        rc = file_drain(out, f, limit);
        (void)fclose(f); /* opened for reading: nothing can be lost */
        if (rc != ERR_OK)
            (void)snprintf(why, why_cap, "%s: %s", path.bytes, err_sentence(rc));
    }
    buf_fini(&path);
    return rc;
}
