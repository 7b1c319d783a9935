/* Responses that are kept for later requests (responses_dir): answered by their id, and the
 * beginning of a conversation that goes on (previous_response_id).
 *
 * All fronts of a machine share one file (kept_db.h). A thread of each front writes, so that the
 * streamer does not wait for the disk; an answer's last bytes wait for the commit, so that a
 * response whose end a client has seen is there, at any front, after any death and a power cut. An
 * answer does not wait longer than KEPT_WAIT_US, and goes out the same when the disk is full or the
 * file damaged: with `"store":false`.
 *
 * Bounded in bytes (the oldest go first) and in days. A tenant finds its own alone: names are made
 * of both. */
#ifndef QUIRE_FRONT_KEPT_KEPT_H
#define QUIRE_FRONT_KEPT_KEPT_H

#include "front/kept/kept_db.h"

#define KEPT_WAIT_US 5000000

struct kept;
struct kept_job;

enum kept_state { KEPT_WAITS, KEPT_WRITTEN, KEPT_FAILED };

/* What an exchange whose response is to be kept knows of that; in its arena. */
struct keeping {
    struct kept *kept;
    const char *tenant; /* whose it is; lives as long as the exchange */
    const char *input;  /* JSON: the list of the items up to the answer; in the arena */
    size_t input_len;
    struct kept_job *job; /* once the answer is complete; NULL before */
    uint64_t since_us;    /* when it was given to the thread */
    bool failed;          /* it is not kept: the answer says so */
};

/* Open the store in dir and start its thread. wake_fd: an eventfd that is written when jobs are
 * done. A file that cannot be used now is tried again every minute. ERR_NO_MEMORY alone; the rest
 * is logged. Before the process has other threads (kept_db_open()). */
int kept_open(struct kept **out, const char *dir, uint64_t bytes_max, double days,
              int wake_fd) ERR_CHECKED;

/* Write what was handed over, and end the thread. NULL is fine. */
void kept_close(struct kept *k);

struct hash kept_name(const char *tenant, const char *id);

/* --- the streamer's ---------------------------------------------------------------------------*/

/* Hand a record over; its texts are copied. NULL when it is not taken: too large, too many wait, no
 * memory. Blocks on nothing but a short lock. */
struct kept_job *kept_write(struct kept *k, const struct kept_record *record);

enum kept_state kept_state(const struct kept_job *job);

/* The asker is gone; the job is done all the same. NULL is fine. Any thread. */
void kept_leave(struct kept_job *job);

/* Have jobs been done since this was asked last? */
bool kept_has_news(struct kept *k);

/* --- readers' ---------------------------------------------------------------------------------*/

/* ERR_NOT_FOUND, ERR_NO_MEMORY, ERR_IO, ERR_CORRUPT. They block on the disk, removal on writers. */
int kept_read(struct kept *k, const struct hash *name, struct arena *arena,
              struct kept_record *out) ERR_CHECKED;
int kept_remove(struct kept *k, const struct hash *name) ERR_CHECKED;

#endif
