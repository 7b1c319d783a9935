/* What the parts of the streamer share; front.h has what others call of it. The streamer's thread
 * alone, but for streamer_adopt().
 *
 *   streamer.c         exchanges: adopted, written, ended; time; the loop
 *   streamer_submit.c  generations to the lane, and those that wait for it
 *   streamer_lane.c    what the engine says
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
    struct exchange *dead;      /* to be freed at the end of the pass */
    struct exchange *unflushed; /* answers with several choices that have something to send */
    struct gen *waiting;        /* generations, as enum gen_wants */
    int n_open;
    uint64_t n_answers; /* of several choices, so far */
    bool draining;
    uint64_t drain_us; /* when that began */
    uint64_t drain_until_us;
};

/* --- streamer.c --- */

/* Its client is not wanted any more, or is gone. It is freed at the end of the pass. */
void streamer_close(struct streamer *s, struct exchange *x);

/* Stop all of x's generations and answer with an error; message and param may be NULL. */
void streamer_fail(struct streamer *s, struct exchange *x, int err, const char *message,
                   const char *param);

/* Send what x has, as far as its socket takes it; ends x when that was all. */
void streamer_flush(struct streamer *s, struct exchange *x);

/* Accept no more, and end when what is here has ended. */
void streamer_drain(struct streamer *s);

/* --- streamer_submit.c --- */

/* As the last of those whose answers have begun, which are before all others: they
 * can no longer be refused, and the next engine may have fewer slots than come. */
void streamer_wait_add(struct streamer *s, struct gen *g, enum gen_wants wants);
void streamer_wait_remove(struct streamer *s, struct gen *g);

/* Submit all of x, or have it wait; an error is its answer. The engine gets its choices at once:
 * when one has begun it knows of the others. */
void streamer_submit(struct streamer *s, struct exchange *x);

void streamer_spell(struct streamer *s);  /* the vocabulary may have been made */
void streamer_resume(struct streamer *s); /* there is an engine: submit those that wait */

/* The same while it is there, of those for which it had no room. */
void streamer_submit_rest(struct streamer *s);

/* --- streamer_lane.c --- */

void streamer_lane(struct streamer *s);                /* all slots that have something */
void streamer_slot(struct streamer *s, uint32_t slot); /* one, whether or not */
void streamer_flush_all(struct streamer *s);           /* behind these */

/* g's slot has said its last record, or would have. */
void streamer_finished(struct streamer *s, struct gen *g, const struct wire_out *o);

/* Nobody wants what the engine still says about g; its slot comes back with the last record,
 * which may be there already. */
void streamer_let_go(struct streamer *s, struct gen *g, enum wire_cancel why);

/* --- streamer_engine.c --- */

void streamer_engine(
    struct streamer *s); /* attach if it is time to; or make room for another build */
void streamer_engine_lost(struct streamer *s);

/* All of x has been said but its end, which the store of kept responses holds up. */
static inline bool streamer_keeps(const struct exchange *x)
{
    return x->keeping != NULL && x->keeping->job != NULL && !x->complete;
}

#endif
