/* SPDX-License-Identifier: Apache-2.0
 *
 * The state of the streamer, shared by its files; front.h has the functions for others. Thread: the
 * streamer, except streamer_adopt().
 *
 *   streamer.c         exchanges: adopted, written, ended; timeouts; the loop
 *   streamer_submit.c  generations to the lane, and those that wait for it
 *   streamer_lane.c    the engine's records
 *   streamer_engine.c  engines that come and go */
#ifndef QUIRE_FRONT_STREAM_STREAMER_PARTS_H
#define QUIRE_FRONT_STREAM_STREAMER_PARTS_H

#include <stdbool.h>
#include <stdint.h>

#include "front/answer/blocks.h"
#include "front/front.h"

struct streamer {
    struct front *f;
    int epoll_fd;
    uint64_t now_us;
    uint64_t tick_us;
    struct exchange *open;      /* all that are not dead */
    struct exchange *dead;      /* freed at the end of the pass */
    struct exchange *unflushed; /* answers with several choices and bytes to send */
    struct gen *waiting;        /* generations that wait; see enum gen_wants */
    int n_open;
    uint32_t n_spans[WIRE_SPANS]; /* as the metrics have them */
    uint64_t n_answers;           /* number of answers with several choices so far */
    bool draining;
    uint64_t drain_us; /* clock_us() when the drain began */
    uint64_t drain_until_us;
};

/* --- streamer.c --- */

/* Drop x: its client has gone, or the answer is complete. It is freed at the end of the pass. */
void streamer_close(struct streamer *s, struct exchange *x);

/* Stop all of x's generations and answer with an error; message and param may be NULL. */
void streamer_fail(struct streamer *s, struct exchange *x, int err, const char *message,
                   const char *param);

/* Send x's bytes as far as its socket accepts them; ends x when the answer is complete and sent. */
void streamer_flush(struct streamer *s, struct exchange *x);

/* Stop accepting, and end when all open exchanges have ended. */
void streamer_drain(struct streamer *s);

/* --- streamer_submit.c --- */

/* Add g to the waiting list: as the last one, or, if its answer has begun, as the last of those
 * whose answers have begun. Those come first, because they can no longer be refused and the next
 * engine may have fewer slots. */
void streamer_wait_add(struct streamer *s, struct gen *g, enum gen_wants wants);
/* The first generation of a model that waits for this, or NULL. */
struct gen *streamer_first(const struct streamer *s, const struct served *m, enum gen_wants wants);
void streamer_wait_remove(struct streamer *s, struct gen *g);

/* Submit all generations of x, or let them wait; an error becomes the answer. All choices are
 * published at once, so that the engine knows of the others when the first begins. */
void streamer_submit(struct streamer *s, struct exchange *x);

void streamer_spell(struct streamer *s); /* the vocabulary may be ready */

/* An engine of m is attached, or one of several has gone: submit the waiting ones. */
void streamer_resume(struct streamer *s, struct served *m);

/* Submit the generations that wait for room in the attached engines of m. */
void streamer_submit_rest(struct streamer *s, const struct served *m);

/* g lost its engine, or was not accepted by one that drains: let it wait for another. The next pass
 * submits it if there is one. */
void streamer_go_on(struct streamer *s, struct gen *g);

/* One request may have more texts than there is room for: those without wait for the others, whose
 * ends make room. True: g is such a text, and others of its request run or have their answer. */
bool streamer_has_others(const struct gen *g);

/* --- streamer_lane.c --- */

void streamer_lane(struct streamer *s, struct link *l);                /* all slots with records */
void streamer_slot(struct streamer *s, struct link *l, uint32_t slot); /* one slot */
void streamer_flush_all(struct streamer *s); /* write the answers of several choices after that */

/* Process g's last record. */
void streamer_finished(struct streamer *s, struct gen *g, const struct wire_out *o);

/* Cancel g: its remaining records are dropped. Its slot is freed with the last record, which may be
 * in the ring already. */
void streamer_let_go(struct streamer *s, struct gen *g, enum wire_cancel why);

/* --- streamer_trace.c: no effect without otlp_traces_endpoint --- */

void streamer_trace_begin(struct streamer *s, struct exchange *x);
void streamer_trace_record(struct exchange *x, const struct wire_out *o);
void streamer_trace_end(struct streamer *s, struct exchange *x); /* before its memory is freed */
void streamer_trace_count(struct streamer *s);                   /* once per pass */

/* --- streamer_engine.c --- */

void streamer_engine(struct streamer *s); /* attach if it is time to, or yield to another build */
/* Of engines that are started on demand: which are to be attached to. Now and then. */
void streamer_look_around(struct streamer *s);
void streamer_engine_lost(struct streamer *s, struct link *l);

/* True when x is complete except that its response is still being stored. */
static inline bool streamer_keeps(const struct exchange *x)
{
    return x->keeping != NULL && x->keeping->job != NULL && !x->complete;
}

#endif
