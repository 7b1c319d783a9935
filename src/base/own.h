/* Files that are to be this process's alone: its user owns them, no other user can write them and
 * no second name leads to them. What else lies there under their name is not used: its maker could
 * have written anything into it, or still read what comes. */
#ifndef QUIRE_BASE_OWN_H
#define QUIRE_BASE_OWN_H

#include "base/err.h"

/* Open path with flags as of open(2); with O_CREAT it is made with mode 0600. A link is not
 * followed. On a file that only others can read the mode is set to 0600. *fd is the caller's.
 *
 * ERR_NOT_FOUND; ERR_FOREIGN (logged with the reason and the remedy); ERR_NO_MEMORY (logged) when
 * the disk has no room for a new file; ERR_IO (logged) for the rest, with errno. who begins the
 * line in the log. Any thread. */
int own_open(const char *who, const char *path, int flags, int *fd) ERR_CHECKED;

/* Is the folder at path of this user or of root, and not writable for everybody? ERR_FOREIGN and
 * ERR_IO (logged) else. Takes the group's permission to write away where it may. */
int own_folder(const char *who, const char *path) ERR_CHECKED;

#endif
