/* The lane: shared memory between one front and the engine.
 *
 * A lane is a sealed memfd that lives exactly as long as the connection of its front to the
 * engine's control socket. Nothing in it is ever repaired: a dead peer ends the lane, and the
 * next connection makes another.
 *
 *   wire_lane | uint32 queue[queue_cap] | wire_slot[n_slots] | wire_out[n_slots][OUT_CAP] | arena
 *
 * One writer a cache line, marked [W: ...]. What is published is stored with release and read
 * with acquire; a sleeper sets its flag, fences, looks again and only then sleeps.
 *
 * A slot's life, and what is found when its owner is gone:
 *
 *   state       known by           front dies there              engine dies there
 *   free        front              nothing to do                 nothing to do
 *   filling     front              nothing was published         submitted to the next engine
 *   queued      front, ring        engine drops the lane         submitted to the next engine
 *   running     both               engine frees its pages        resubmitted with the output so
 *                                                                far; an error the third time
 *   finished    both, in out ring  engine has nothing to free    front still reads the records
 *
 * The engine treats a lane as hostile input: it copies, then checks, then uses the copy, and
 * keeps its own indices in private memory. */
#ifndef QUIRE_IPC_WIRE_LANE_H
#define QUIRE_IPC_WIRE_LANE_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/wire.h"
#include "ipc/wire_request.h"

#define WIRE_SLOTS_MAX 4096 /* a bit each in wire_lane.ready */

/* Records of one slot; a power of two. A client may be this far behind before its sequence
 * pauses. */
#define WIRE_OUT_CAP 1024

enum wire_engine_state {
    WIRE_STARTING = 0,
    WIRE_SERVING = 1,
    WIRE_DRAINING = 2,
    WIRE_ASLEEP = 3, /* requests are welcome: they wake it */
    WIRE_WAKING = 4,
};

/* Why a front no longer wants a sequence: the value of wire_slot.cancel. */
enum wire_cancel { WIRE_WANTED = 0, WIRE_CLIENT_GONE = 1, WIRE_STOP_STRING = 2 };

/* Why a request was refused, or ended before its time. */
enum wire_refusal {
    WIRE_NOT_REFUSED = 0,
    WIRE_REFUSED_REQUESTS, /* too many wait */
    WIRE_REFUSED_TOKENS,   /* too many tokens wait */
    WIRE_REFUSED_TENANT,   /* its tenant had most of the queue and another came, or it has its share
                            * of a front's slots */
    WIRE_REFUSED_SLOTS,    /* the front has no slot, or no room for the prompt */
    WIRE_REFUSED_WAIT,     /* it would have waited past its deadline or queue_timeout_s */
    WIRE_REFUSED_TIMEOUT,  /* it has waited for queue_timeout_s, or wake_timeout_s */
    WIRE_REFUSED_DEADLINE, /* it ran out of its own time */
    WIRE_REFUSALS          /* the length of arrays by reason; [WIRE_NOT_REFUSED] is not used */
};

enum wire_kind {
    WIRE_ADMITTED = 1, /* value: prompt tokens found in the prefix cache; always first */
    WIRE_TOKEN = 2,    /* value: token id; finish is WIRE_FIN_STOP for the one that ends it */
    WIRE_FINISHED = 3, /* finish says why; value: stop token id, or enum err; always last */
    /* Log probabilities, of the logits as the model gave them. value: token id. Those of a prompt
     * come in the order of positions, from the second token on, and before the first WIRE_TOKEN.
     * A prompt whose engine died is told again from the start unless a WIRE_TOKEN has come. */
    WIRE_PROMPT_CHOSEN = 4, /* the token that stands there */
    WIRE_PROMPT_TOP = 5,    /* behind its WIRE_PROMPT_CHOSEN, the most probable first */
    WIRE_CHOSEN = 6,        /* of the WIRE_TOKEN that follows */
    WIRE_TOP = 7,           /* the most probable first, then what was asked for: rank 0 */
    WIRE_FACT = 8,          /* value: enum wire_fact; amount is its number */
    /* In place of the tops behind a chosen one, where more are wanted than WIRE_LOGPROBS_MAX: the
     * whole row, three floats a record. The first of all is the sum whose difference to a logit is
     * its log probability, the others are the logits in the order of ids; the last record is filled
     * up with zeros. */
    WIRE_PROMPT_ROW = 9,
    WIRE_ROW = 10,
};

/* What is told of the cache. A row begins with the fact that names it; those that follow are its
 * numbers. Rows are bounded: what has no room of its own is in the last of its kind. */
enum wire_fact {
    WIRE_FACT_TIER,     /* begins a tier: enum wire_tier */
    WIRE_FACT_SPACE,    /* begins a namespace: its id; 0: all that have no row */
    WIRE_FACT_HINT,     /* begins what is kept alike: the id of its namespace */
    WIRE_FACT_SLOTS,    /* of a tier: pages that it has room for */
    WIRE_FACT_PAGES,    /* of a tier */
    WIRE_FACT_KEPT,     /* of a tier: above the default priority */
    WIRE_FACT_KEPT_MAX, /* of a tier: as many may be */
    WIRE_FACT_DEVICE,   /* of a namespace or hint: pages in each tier */
    WIRE_FACT_HOST,
    WIRE_FACT_STORE,
    WIRE_FACT_KEPT_PAGES, /* of a namespace: above the default priority, in all tiers */
    WIRE_FACT_QUERIES,    /* of a namespace: tokens of prompts, and those found in the cache */
    WIRE_FACT_HITS,
    WIRE_FACT_SHARED,   /* of a namespace: it is the one without a salt */
    WIRE_FACT_PRIORITY, /* of a hint; none of several kinds in one row */
    WIRE_FACT_UNTIL,    /* of a hint: unix seconds; 0: without end */
    WIRE_FACT_DROPPED,  /* pages, of all tiers */
    WIRE_FACT_HELD,     /* tokens of the prompt that are kept as was asked */
    WIRE_FACTS
};

enum wire_tier { WIRE_DEVICE, WIRE_HOST, WIRE_STORE };
#define WIRE_TIERS (WIRE_STORE + 1)

enum wire_finish {
    WIRE_FIN_STOP = 1,      /* an end-of-text or stop id, which is the last token sent */
    WIRE_FIN_LENGTH = 2,    /* max_tokens or the model's length */
    WIRE_FIN_CANCELLED = 3, /* the front asked for it */
    WIRE_FIN_ERROR = 4,     /* value is a negative enum err; may come without WIRE_ADMITTED */
};

struct wire_out {
    int32_t value;
    uint8_t kind;           /* enum wire_kind */
    uint8_t finish;         /* enum wire_finish, with WIRE_FINISHED */
    uint16_t retry_after_s; /* with WIRE_FINISHED and ERR_OVERLOADED: when to come again */
    union {
        uint64_t time_us; /* when the engine had it */
        uint64_t amount;  /* of a WIRE_FACT */
        struct {          /* of log probabilities */
            float logprob;
            uint32_t rank; /* 1: the most probable; of WIRE_CHOSEN 0: not known */
        };
        float logits[2]; /* of a row: behind the one whose bits are value's */
    };
};

struct wire_slot {
    alignas(WIRE_LINE) struct wire_request request; /* [W: front] before it is queued */
    alignas(WIRE_LINE) _Atomic uint32_t cancel;     /* [W: front] enum wire_cancel */
    alignas(WIRE_LINE) _Atomic uint32_t out_tail;   /* [W: engine] records written */
    alignas(WIRE_LINE) _Atomic uint32_t out_head;   /* [W: front] records taken */
};

struct wire_lane {
    /* [W: creator], before the front sees it. */
    uint64_t magic;
    uint64_t layout; /* wire_layout() */
    uint64_t lane_bytes;
    uint64_t epoch;        /* of the engine: one life */
    uint64_t queue_offset; /* bytes from the start of the lane, as the following */
    uint64_t slots_offset;
    uint64_t out_offset;
    uint64_t arena_offset;
    uint64_t arena_bytes;
    uint32_t n_slots;
    uint32_t queue_cap;  /* a power of two >= n_slots: the queue can never be full */
    uint32_t engine_pid; /* for people and tools, never for decisions */
    uint32_t front_pid;

    alignas(WIRE_LINE) _Atomic uint64_t heartbeat_us; /* [W: engine] last pass of its loop */
    _Atomic uint64_t progress_us;                     /* [W: engine] a step ended, or none had to */
    _Atomic uint32_t engine_state;                    /* [W: engine] */
    _Atomic uint32_t n_running;                       /* [W: engine] sequences, all lanes */
    _Atomic uint32_t n_waiting;                       /* [W: engine] */
    _Atomic uint32_t retry_after_s;                   /* [W: engine] for a 429, from its rate */
    _Atomic uint32_t room_reqs;   /* [W: engine] by this one; less when the queue gets full */
    _Atomic uint32_t room_tokens; /* [W: engine] tokens of prompts, by this one */

    alignas(WIRE_LINE) _Atomic uint32_t queue_tail; /* [W: front] */
    alignas(WIRE_LINE) _Atomic uint32_t queue_head; /* [W: engine] */

    alignas(WIRE_LINE) _Atomic uint32_t refused[WIRE_REFUSALS]; /* [W: front] by itself, so far */

    /* Written by both with exchange: the sleeper sets 1, who wakes it sets 0. A front that lies
     * here delays nobody but itself, because each lane has its own. */
    alignas(WIRE_LINE) _Atomic uint32_t engine_sleeping;
    alignas(WIRE_LINE) _Atomic uint32_t front_sleeping;

    /* Slots with something to read: the engine sets a bit, the front takes the word. */
    alignas(WIRE_LINE) _Atomic uint64_t ready[WIRE_SLOTS_MAX / 64];
};

_Static_assert(sizeof(struct wire_out) == 16, "four records share a cache line");
_Static_assert(sizeof(struct wire_slot) % WIRE_LINE == 0, "slots do not share cache lines");
_Static_assert((WIRE_OUT_CAP & (WIRE_OUT_CAP - 1)) == 0, "indices wrap by masking");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock in shared memory dies with its holder");

#endif
