/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening files that must belong to this process's user alone. All checks are made on the open
 * descriptor (fstat), never on the path, because another user could replace a file in between. */
#include "base/own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

/* The reason why a file is not ours alone, for the log; NULL when it is. */
static const char *own_fault(const struct stat *st)
{
    if (!S_ISREG(st->st_mode))
        return "it is not a regular file";
    if (st->st_uid != geteuid())
        return "another user owns it";
    if (st->st_nlink > 1)
        return "it has a second name (a hard link)";
    if ((st->st_mode & (S_IWGRP | S_IWOTH)) != 0)
        return "other users can write it";
    return NULL;
}

/* Log a failed open(2) or fstat(2), and choose the error. */
static int own_failed(const char *who, const char *path, int error)
{
    if (error == ENOENT)
        return ERR_NOT_FOUND;
    if (error == ELOOP) {
        log_error("%s: %s is not used: it is a symbolic link; remove it", who, path);
        return ERR_FOREIGN;
    }
    log_error("%s: %s: %s", who, path, strerror(error));
    errno = error;
    if (error == ENOSPC || error == EDQUOT || error == ENOMEM)
        return ERR_NO_MEMORY;
    return ERR_IO;
}

/* Open a file of ours. `who` is the name for log lines, such as "front". */
int own_open(const char *who, const char *path, int flags, int *fd)
{
    /* O_NONBLOCK: opening a pipe of this name must not block. */
    int fd_new = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    const char *fault;
    struct stat st;

    if (fd_new == -1)
        return own_failed(who, path, errno);
    if (fstat(fd_new, &st) == -1) {
        int error = errno;

        (void)close(fd_new);
        return own_failed(who, path, error);
    }
    fault = own_fault(&st);
    if (fault != NULL) {
        log_error("%s: %s is not used: %s; remove it, or give it to the engine's user with chown "
                  "and chmod 600",
                  who, path, fault);
        (void)close(fd_new);
        return ERR_FOREIGN;
    }
    /* Readable by others is no danger to us, only to the content: repair it and go on. */
    if ((st.st_mode & 077) != 0 && fchmod(fd_new, 0600) == -1)
        log_warn("%s: %s can be read by others: %s", who, path, strerror(errno));
    *fd = fd_new;
    return ERR_OK;
}

/* Check a folder in which our files lie. Its owner may be root, as with folders that systemd makes;
 * a sticky bit protects files in folders that all may write. */
int own_folder(const char *who, const char *path)
{
    struct stat st;

    if (stat(path, &st) == -1) {
        log_error("%s: %s: %s", who, path, strerror(errno));
        return ERR_IO;
    }
    if (!S_ISDIR(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) ||
        ((st.st_mode & S_IWOTH) != 0 && (st.st_mode & S_ISVTX) == 0)) {
        log_error("%s: %s is not used: it is not a folder, another user owns it, or every user can "
                  "write it; use chown and chmod",
                  who, path);
        return ERR_FOREIGN;
    }
    if ((st.st_mode & S_IWGRP) != 0 && st.st_uid == geteuid() &&
        chmod(path, st.st_mode & 07777 & ~(mode_t)S_IWGRP) == -1)
        log_warn("%s: %s can be written by its group: %s", who, path, strerror(errno));
    return ERR_OK;
}
