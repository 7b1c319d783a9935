/* The control socket: how a front and the engine find each other and exchange descriptors.
 *
 * A SEQPACKET unix socket. One hello, one welcome, then bytes that wake (lane.h) and what a front
 * uploads to the engine. The
 * connection itself is the sign of life: its end is the peer's end. */
#ifndef QUIRE_IPC_ATTACH_H
#define QUIRE_IPC_ATTACH_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/listener.h"
#include "ipc/wire_control.h"
#include "ipc/wire_stats.h"

/* Descriptors that travel with a welcome, in this order. */
enum attach_fd { ATTACH_LANE = 0, ATTACH_STATS = 1, ATTACH_FDS = 2 };

/* --- engine --- */

/* Make the path free to listen at: a socket that nobody serves is removed. What is no socket, or
 * one that a process listens at, is left alone: ERR_INVALID, ERR_IN_USE (logged). */
int attach_clear(const char *path) ERR_CHECKED;

/* Listen at path, replacing a socket that nobody serves. *fd is non-blocking. ERR_IO (logged);
 * ERR_IN_USE when another engine answers there; ERR_INVALID. */
int attach_listen(const char *path, int *fd) ERR_CHECKED;

/* Accept one front. ERR_AGAIN when none is waiting, ERR_OVERLOADED as listener_accept(). *uid and
 * *pid come from the kernel. */
int attach_accept(struct listener *listener, int *fd, pid_t *pid, uid_t *uid) ERR_CHECKED;

/* Read the hello; *visitor is who came. ERR_AGAIN when it is not there yet, ERR_VERSION (logged)
 * for another build, ERR_CLIENT_GONE, ERR_CORRUPT. */
int attach_read_hello(int fd, enum wire_visitor *visitor) ERR_CHECKED;

/* Send the welcome; fds NULL with an error in it. ERR_CLIENT_GONE when the front left. */
int attach_send_welcome(int fd, const struct wire_welcome *w, const int *fds) ERR_CHECKED;

/* Read a message of an attached front. Returns 1 with *upload and its descriptor *uploaded, which
 * the caller closes; *uploaded is -1 when this process has no descriptor left. Returns 0 after
 * bytes that only wake, when nothing more is there; ERR_CLIENT_GONE; ERR_CORRUPT: drop it. */
int attach_read_upload(int fd, struct wire_upload *upload, int *uploaded) ERR_CHECKED;

/* Map what was uploaded, for reading. ERR_CORRUPT when it is not sealed or not of that size,
 * ERR_NO_MEMORY. uploaded is closed whatever comes. munmap() ends it. */
int attach_map_upload(const struct wire_upload *upload, int uploaded,
                      const void **bytes) ERR_CHECKED;

/* Close it. ERR_CORRUPT. */
int attach_refuse_upload(int uploaded) ERR_CHECKED;

/* --- front --- */

/* A sealed memfd of these bytes, for attach_upload(). ERR_NO_MEMORY. */
int attach_seal(const void *bytes, size_t len, int *sealed) ERR_CHECKED;

/* Upload it; sealed stays the caller's. ERR_AGAIN when the engine has not read what was sent
 * before, ERR_ENGINE_GONE. */
int attach_upload(int fd, const struct wire_upload *upload, int sealed) ERR_CHECKED;

/* Connect, send hello, wait at most timeout_ms for the welcome. On success *fd is the
 * connection and fds[ATTACH_FDS] are owned by the caller. ERR_ENGINE_GONE when nobody serves
 * the path or does not answer, ERR_LIMIT when this process lacks descriptors (the engine is not
 * asked then), ERR_VERSION (logged), or the welcome's error. */
int attach_connect(const char *path, int timeout_ms, int *fd, struct wire_welcome *w,
                   int *fds) ERR_CHECKED;

/* --- tools --- */

/* The engine's statistics page, mapped for reading; munmap() ends it. Errors as above. */
int attach_observe(const char *path, int timeout_ms, struct wire_welcome *w,
                   const struct wire_stats **stats) ERR_CHECKED;

#endif
