/* SPDX-License-Identifier: Apache-2.0
 *
 * The control socket: how a front and the engine find each other and exchange descriptors.
 *
 * A SEQPACKET unix socket. One hello, one welcome, then wake-up bytes (lane.h) in both directions
 * and uploads of the front. The connection is also the sign of life: when it ends, the peer is
 * gone. */
#ifndef QUIRE_IPC_ATTACH_H
#define QUIRE_IPC_ATTACH_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/listener.h"
#include "ipc/wire_control.h"
#include "ipc/wire_held.h"
#include "ipc/wire_stats.h"

/* Descriptors that travel with a welcome, in this order. */
enum attach_fd { ATTACH_LANE = 0, ATTACH_STATS = 1, ATTACH_FDS = 2 };

/* Engine idx of several has its socket in a folder of its own: /run/quire/engine.sock becomes
 * /run/quire/2/engine.sock. Cut to cap bytes; attach_listen() and attach_call() refuse a path that
 * is too long. */
void attach_path_of(char *out, size_t cap, const char *path, int idx);

/* --- engine --- */

/* Make sure that the engine can listen at path: a socket on which no process listens is removed.
 * Anything else is left alone: ERR_INVALID when it is not a socket, ERR_IN_USE when a process
 * listens on it (both logged). */
int attach_clear(const char *path) ERR_CHECKED;

/* Listen at path, replacing a dead socket. *fd is non-blocking. ERR_IO (logged); ERR_IN_USE and
 * ERR_INVALID as attach_clear(). */
int attach_listen(const char *path, int *fd) ERR_CHECKED;

/* Use a listening socket that was passed on. ERR_INVALID (logged): it has another type. */
int attach_adopt(int fd) ERR_CHECKED;

/* Refuse all connections that wait at a socket: each gets a welcome with this error. */
void attach_turn_away(int listen_fd, int error);

/* Accept one connection. ERR_AGAIN when none is waiting; ERR_OVERLOADED as listener_accept(). *uid
 * and *pid come from the kernel, so the peer cannot forge them. */
int attach_accept(struct listener *listener, int *fd, pid_t *pid, uid_t *uid) ERR_CHECKED;

/* Read the hello and set *visitor. ERR_AGAIN when it has not arrived, ERR_VERSION (logged) for
 * another build, ERR_CLIENT_GONE, ERR_CORRUPT. */
int attach_read_hello(int fd, enum wire_visitor *visitor) ERR_CHECKED;

/* Send the welcome. fds is NULL when the welcome carries an error. ERR_CLIENT_GONE when the front
 * has left. */
int attach_send_welcome(int fd, const struct wire_welcome *w, const int *fds) ERR_CHECKED;

/* Read the next message of an attached front. Returns 1 with *upload and its descriptor *uploaded,
 * which the caller closes; *uploaded is -1 when this process had no free descriptor for it. Returns
 * 0 when only wake-up bytes were there; ERR_CLIENT_GONE; ERR_CORRUPT: drop the front. */
int attach_read_upload(int fd, struct wire_upload *upload, int *uploaded) ERR_CHECKED;

/* Map an upload for reading; munmap() ends it. ERR_CORRUPT when the memfd is not sealed or has
 * another size, ERR_NO_MEMORY. Closes uploaded in every case. */
int attach_map_upload(const struct wire_upload *upload, int uploaded,
                      const void **bytes) ERR_CHECKED;

/* Close an upload of an unknown kind. Always returns ERR_CORRUPT. */
int attach_refuse_upload(int uploaded) ERR_CHECKED;

/* --- front --- */

/* Copy the bytes into a sealed memfd for attach_upload(). ERR_NO_MEMORY (logged). */
int attach_seal(const void *bytes, size_t len, int *sealed) ERR_CHECKED;

/* Send a sealed memfd; it stays the caller's. ERR_AGAIN when the engine has not read earlier
 * messages, ERR_ENGINE_GONE. */
int attach_upload(int fd, const struct wire_upload *upload, int sealed) ERR_CHECKED;

/* Connect and send the hello of a visitor; the caller owns *fd and gives it to attach_answer().
 * ERR_ENGINE_GONE when no process serves the path; ERR_LIMIT when this process has too few free
 * descriptors (nothing is sent then); ERR_INVALID (logged) for a path that is too long. Does not
 * block. */
int attach_call(const char *path, enum wire_visitor visitor, int *fd) ERR_CHECKED;

/* Wait at most timeout_ms for the welcome. ERR_OK: the caller owns fds[ATTACH_FDS], and fd is the
 * connection. ERR_AGAIN: it has not come. Otherwise close fd: ERR_ENGINE_GONE; ERR_VERSION
 * (logged); or the welcome's error. */
int attach_answer(int fd, int timeout_ms, struct wire_welcome *w, int *fds) ERR_CHECKED;

/* --- tools --- */

/* Map the engine's statistics page for reading; munmap() ends it. Errors as attach_call() and
 * attach_answer(); ERR_ENGINE_GONE also when no answer comes in time. */
int attach_observe(const char *path, int timeout_ms, struct wire_welcome *w,
                   const struct wire_stats **stats) ERR_CHECKED;

#endif
