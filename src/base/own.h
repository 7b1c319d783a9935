/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that must be private to this process's user: it owns them, no other user can write them,
 * and no second name (hard link) leads to them. Any other file at their path is not used, because
 * its owner could have written anything into it, or could read the data that we write. */
#ifndef QUIRE_BASE_OWN_H
#define QUIRE_BASE_OWN_H

#include "base/err.h"

/* Open path with flags of open(2); with O_CREAT a new file gets mode 0600. Symbolic links are not
 * followed. A file that others can read gets mode 0600. *fd is the caller's.
 *
 * ERR_NOT_FOUND; ERR_FOREIGN (logged with reason and remedy); ERR_NO_MEMORY (logged) when the disk
 * has no room for a new file; ERR_IO (logged) otherwise, with errno. The caller's name begins log
 * lines. Any thread. */
int own_open(const char *who, const char *path, int flags, int *fd) ERR_CHECKED;

/* Check that the folder at path belongs to this user or to root and that not everybody can write
 * it; otherwise ERR_FOREIGN or ERR_IO (logged). Removes the group's write permission if it can. */
int own_folder(const char *who, const char *path) ERR_CHECKED;

#endif
