/* SPDX-License-Identifier: Apache-2.0
 *
 * Stored responses (responses_dir): read by their id, and continued as a conversation
 * (previous_response_id).
 *
 * All fronts of a machine share one file (kept_db.h). A thread per front writes, so that the
 * streamer does not wait for the disk. The last bytes of an answer wait for the commit, so that a
 * response whose end a client has seen can be read at any front, even after a crash or a power cut.
 * An answer waits at most KEPT_WAIT_US; when the disk is full or the file damaged, it is sent
 * anyway, with `"store":false`.
 *
 * The file is bounded in bytes (the oldest responses are removed first), and responses expire after
 * some days. Names contain the tenant, so a tenant finds only its own responses. */
#ifndef QUIRE_FRONT_KEPT_KEPT_H
#define QUIRE_FRONT_KEPT_KEPT_H

#include "front/kept/kept_db.h"

#define KEPT_WAIT_US 5000000

struct kept;
struct kept_job;

enum kept_state { KEPT_WAITS, KEPT_WRITTEN, KEPT_FAILED };

/* State of an exchange whose response will be stored; in its arena. */
struct keeping {
    struct kept *kept;
    const char *tenant; /* owner of the response; lives as long as the exchange */
    const char *input;  /* JSON: a list of the items that led to the answer; in the arena */
    size_t input_len;
    struct kept_job *job; /* set when the answer is complete */
    uint64_t since_us;    /* clock_us() when the job was handed over */
    bool failed;          /* not stored; the answer reports it */
};

/* Open the store in dir and start its thread. wake_fd: an eventfd, written when jobs are done. A
 * file that is unusable now is tried again every minute. Returns only ERR_OK or ERR_NO_MEMORY;
 * other errors are logged. Call it while the process has no other threads (kept_db_open()). */
int kept_open(struct kept **out, const char *dir, uint64_t bytes_max, double days,
              int wake_fd) ERR_CHECKED;

/* Write all waiting jobs, and end the thread. Accepts NULL. */
void kept_close(struct kept *k);

/* The name of a response: a hash of tenant and id. */
struct hash kept_name(const char *tenant, const char *id);

/* --- for the streamer ---------------------------------------------------------------------- */

/* Hand over a record; its texts are copied. NULL when it is refused: too many bytes wait, or no
 * memory. Blocks only on a short lock. */
struct kept_job *kept_write(struct kept *k, const struct kept_record *record);

enum kept_state kept_state(const struct kept_job *job);

/* The asker no longer needs the result; the job is done anyway. Accepts NULL. Any thread. */
void kept_leave(struct kept_job *job);

/* True if jobs were done since the last call. */
bool kept_has_news(struct kept *k);

/* --- for readers --------------------------------------------------------------------------- */

/* Read or remove a response. ERR_NOT_FOUND, ERR_NO_MEMORY, ERR_IO, ERR_CORRUPT. They block on the
 * disk; removal also blocks on writers. */
int kept_read(struct kept *k, const struct hash *name, struct arena *arena,
              struct kept_record *out) ERR_CHECKED;
int kept_remove(struct kept *k, const struct hash *name) ERR_CHECKED;

#endif
