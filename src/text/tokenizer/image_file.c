/* SPDX-License-Identifier: Apache-2.0
 *
 * A file is never changed after it was renamed to its final name, so the result of image_check()
 * stays valid for as long as the file is mapped. This holds only if no other user can write to it;
 * therefore the owner and the mode of the file are checked. */
#define _GNU_SOURCE 1 /* mkostemp() */
#include "text/tokenizer/image_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/must.h"

/* The file name holds the first half of the digest of the sources: other files, another image. */
static void image_add_path(struct buf *path, const char *dir, const struct hash *sources)
{
    char hex[2 * HASH_BYTES + 1];

    hash_hex(sources->bytes, HASH_BYTES, hex);
    buf_printf(path, "%s/tokenizer-%.32s.image", dir, hex);
}

static int image_io_failed(const char *what, const char *path, char *why, size_t why_cap)
{
    (void)snprintf(why, why_cap, "%s: %s: %s", path, what, strerror(errno));
    return ERR_IO;
}

/* Check and map an open file. MAP_POPULATE reads it at once, because image_check() needs all of
 * it. */
static int image_map_file(int fd, const char *path, struct image_header **out, size_t *len,
                          char *why, size_t why_cap)
{
    struct stat st;
    void *bytes;

    if (fstat(fd, &st) == -1)
        return image_io_failed("cannot be examined", path, why, why_cap);
    /* The image is used without parsing it, and tokens decide the input of a model. A file that
     * another user could have changed after the check is as good as none. */
    if (!S_ISREG(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) ||
        (st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        (void)snprintf(why, why_cap, "%s: other users may write to it", path);
        return ERR_CORRUPT;
    }
    /* The size is checked before the header is read: a file that is shorter than the header
     * would end in a signal. */
    if (st.st_size < (off_t)sizeof **out || st.st_size > (off_t)IMAGE_BYTES_MAX) {
        (void)snprintf(why, why_cap, "%s: not a tokenizer image", path);
        return ERR_CORRUPT;
    }
    bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (bytes == MAP_FAILED)
        return image_io_failed("cannot be mapped", path, why, why_cap);
    *out = bytes;
    *len = (size_t)st.st_size;
    return ERR_OK;
}

int image_map(struct image_header **out, const char *dir, const struct hash *sources, char *why,
              size_t why_cap)
{
    struct buf path = {0};
    struct image_header *image = NULL;
    const char *reason = "";
    size_t len = 0;
    int fd;
    int rc;

    must(out != NULL && dir != NULL && dir[0] != '\0');
    image_add_path(&path, dir, sources);
    if (path.failed)
        return ERR_NO_MEMORY;
    /* O_NONBLOCK: a FIFO under this name must not block the start. */
    fd = open(path.bytes, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd == -1) {
        if (errno == ENOENT)
            rc = ERR_NOT_FOUND;
        else
            rc = image_io_failed("cannot be opened", path.bytes, why, why_cap);
    } else {
        rc = image_map_file(fd, path.bytes, &image, &len, why, why_cap);
        (void)close(fd); /* the mapping stays */
    }
    if (rc == ERR_OK) {
        /* The file is never changed in place (image_write() renames), so the checks hold for as
         * long as the mapping exists. */
        rc = image_check(image, len, sources, &reason);
        if (rc != ERR_OK) {
            (void)snprintf(why, why_cap, "%s: %s", path.bytes, reason);
            (void)munmap(image, len);
        } else {
            *out = image;
        }
    }
    buf_fini(&path);
    return rc;
}

void image_unmap(struct image_header *image)
{
    /* image_check() has verified that `bytes` is the length of the mapping. */
    if (image != NULL)
        (void)munmap(image, (size_t)image->bytes);
}

static int image_write_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t n = FAULT_HIT(image_write) ? (errno = ENOSPC, -1) : write(fd, bytes, len);

        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0)
            return ERR_IO;
        bytes += n;
        len -= (size_t)n;
    }
    return ERR_OK;
}

/* Write under a temporary name and rename. Another process that opens the file sees the whole image
 * or none, and two processes that write at the same time do not mix their bytes. */
int image_write(const struct image_header *image, const char *dir, char *why, size_t why_cap)
{
    struct buf path = {0};
    struct buf temporary = {0};
    int fd = -1;
    int rc = ERR_OK;

    must(image->bytes > sizeof *image);
    must(dir != NULL && dir[0] != '\0');
    image_add_path(&path, dir, &image->sources);
    buf_printf(&temporary, "%s/.tokenizer-XXXXXX", dir);
    if (path.failed || temporary.failed) {
        rc = ERR_NO_MEMORY;
        goto out;
    }
    fd = mkostemp(temporary.bytes, O_CLOEXEC);
    if (fd == -1) {
        rc = image_io_failed("cannot be made", temporary.bytes, why, why_cap);
        goto out;
    }
    /* No fsync(): after a power failure the checksum detects a damaged file. */
    if (image_write_all(fd, (const char *)image, (size_t)image->bytes) != ERR_OK ||
        rename(temporary.bytes, path.bytes) == -1) {
        rc = image_io_failed("cannot be written", path.bytes, why, why_cap);
        (void)unlink(temporary.bytes);
    }
out:
    if (fd != -1)
        (void)close(fd);
    buf_fini(&path);
    buf_fini(&temporary);
    return rc;
}
