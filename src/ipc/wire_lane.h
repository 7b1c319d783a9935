/* SPDX-License-Identifier: Apache-2.0
 *
 * The lane: shared memory between one front and the engine.
 *
 * A lane is a sealed memfd that lives exactly as long as the connection of its front to the
 * engine's control socket. It is never repaired: a dead peer ends the lane, and the next connection
 * makes another one.
 *
 *   the front writes                              the engine writes
 *   +-----------------------------------------+   +---------------------------------------+
 *   | queue [queue_cap]: slot, slot, ...      |   | queue_head: how far it was taken      |
 *   | queue_tail: how far it is filled        |   | heartbeat_us, engine_state,           |
 *   |                                         |   | n_waiting, room_reqs, ...             |
 *   +-----------------------------------------+   +---------------------------------------+
 *   | slots [n_slots], in each:               |   | out [n_slots][WIRE_OUT_CAP]:          |
 *   |   request: parameters, arena_offset --+ |   |   a ring of records for each slot,    |
 *   |   cancel                              | |   |   ADMITTED TOKEN TOKEN ... FINISHED   |
 *   |   out_head: how far records were read | |   | out_tail of each slot                 |
 *   +---------------------------------------|-+   | ready: a bit for each slot that has   |
 *   | arena, a ring of token ids:           v |   |   records; the engine sets it, the    |
 *   |   [prompt, extra] [prompt, extra] free  |   |   front clears it                     |
 *   +-----------------------------------------+   +---------------------------------------+
 *
 * In memory, in this order (lane_layout() in lane.c computes the offsets):
 *
 *   wire_lane | uint32 queue[queue_cap] | wire_slot[n_slots] | wire_out[n_slots][OUT_CAP] | arena
 *
 * A request: the front copies its tokens into the arena and its parameters into a free slot, puts
 * the slot's number into the queue and publishes queue_tail. The engine copies all of it and stores
 * queue_head, which frees the arena's space. Per token it appends a record to the slot's ring and
 * sets the slot's ready bit. After WIRE_FINISHED the front may use the slot again.
 *
 * Every cache line has one writer, marked [W: ...]. Published indices are stored with release and
 * read with acquire. Wake-up: a side that wants to sleep sets its flag (engine_sleeping,
 * front_sleeping), looks for work again and only then sleeps; the peer publishes, looks at the
 * flag, and sends a byte on the control socket if it is set. All four are sequentially consistent.
 *
 * The states of a slot, and the consequence when one of the two processes dies:
 *
 *   state       known by           the front dies                the engine dies
 *   free        front              nothing to do                 nothing to do
 *   filling     front              nothing was published         submitted to the next engine
 *   queued      front, ring        engine drops the lane         submitted to the next engine
 *   running     both               engine frees its pages        resubmitted with the output so
 *                                                                far; an error the third time
 *   finished    both, in out ring  engine has nothing to free    front still reads the records
 *
 * The engine treats a lane as hostile input: it copies, then checks, then uses the copy, and keeps
 * its own indices in private memory. */
#ifndef QUIRE_IPC_WIRE_LANE_H
#define QUIRE_IPC_WIRE_LANE_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/wire.h"
#include "ipc/wire_request.h"

#define WIRE_SLOTS_MAX 4096 /* because wire_lane.ready has one bit per slot */

/* Records in the ring of one slot; a power of two. A sequence pauses when its client has this many
 * records still to read. */
#define WIRE_OUT_CAP 1024

enum wire_engine_state {
    WIRE_STARTING = 0,
    WIRE_SERVING = 1,
    WIRE_DRAINING = 2,
    WIRE_ASLEEP = 3, /* accepts requests; the first one wakes it */
    WIRE_WAKING = 4,
};

/* The reason why a front cancels a sequence: the value of wire_slot.cancel. */
enum wire_cancel { WIRE_WANTED = 0, WIRE_CLIENT_GONE = 1, WIRE_STOP_STRING = 2 };

/* The reason why a request was refused, or ended by the server before it was complete. */
enum wire_refusal {
    WIRE_NOT_REFUSED = 0,
    WIRE_REFUSED_REQUESTS, /* too many requests wait */
    WIRE_REFUSED_TOKENS,   /* too many tokens wait */
    WIRE_REFUSED_TENANT,   /* its tenant had most of the queue when another tenant came, or it
                            * already has its share of a front's slots */
    WIRE_REFUSED_SLOTS,    /* the front has no slot, or no room for the prompt */
    WIRE_REFUSED_WAIT,     /* the expected wait exceeds its deadline or queue_timeout_s */
    WIRE_REFUSED_TIMEOUT,  /* it has waited for queue_timeout_s, or wake_timeout_s */
    WIRE_REFUSED_DEADLINE, /* its own deadline has passed */
    WIRE_REFUSALS          /* array length; element [WIRE_NOT_REFUSED] is unused */
};

/* What has become of the spans of traces. */
enum wire_spans { WIRE_SPANS_SENT, WIRE_SPANS_DROPPED, WIRE_SPANS };

enum wire_kind {
    WIRE_ADMITTED = 1, /* value: prompt tokens found in the prefix cache; always first */
    WIRE_TOKEN = 2,    /* value: token id; finish is WIRE_FIN_STOP for a token that ends the text */
    WIRE_FINISHED = 3, /* finish is the reason; value: stop token id, or enum err; always last */
    /* Log probabilities, computed from the model's own logits (before temperature and penalties).
     * value: token id. Those of a prompt come in the order of positions, from the second token on,
     * and before the first WIRE_TOKEN. When the engine dies, the next one sends those of the prompt
     * again from the start, unless a WIRE_TOKEN had been sent. */
    WIRE_PROMPT_CHOSEN = 4, /* the prompt's own token */
    WIRE_PROMPT_TOP = 5,    /* after its WIRE_PROMPT_CHOSEN, most probable first */
    WIRE_CHOSEN = 6,        /* of the WIRE_TOKEN that follows */
    WIRE_TOP = 7,           /* most probable first, then the ids that the request asked for, with
                             * rank 0 */
    WIRE_FACT = 8,          /* value: enum wire_fact; amount is its number */
    /* When more than WIRE_LOGPROBS_MAX alternatives are requested, the whole row of logits follows
     * a chosen token in place of the tops, three floats per record. The very first float is the log
     * of the sum of exponentials: a logit minus it is the token's log probability. The others are
     * the logits in the order of ids; the last record is padded with zeros. A pooled answer is a
     * row without the first float. */
    WIRE_PROMPT_ROW = 9,
    WIRE_ROW = 10,
    WIRE_TEXT = 11, /* a piece of a sentence: `value` bytes, 1 to 8, in `text` */
    /* After WIRE_ADMITTED, of a model whose layers keep tokens in several ways: amount is an enum
     * wire_group, value the prompt tokens that its layers alone could have served. */
    WIRE_FOUND = 12,
};

/* Ways in which layers keep tokens: all of them, the last ones, a state. */
enum wire_group { WIRE_GROUP_FULL, WIRE_GROUP_WINDOW, WIRE_GROUP_STATE };
#define WIRE_GROUPS (WIRE_GROUP_STATE + 1)

/* A report on the cache is a list of rows. A row begins with a fact that names its object (tier,
 * namespace, hint) and continues with facts that are its numbers. The number of rows is bounded:
 * objects without a row of their own are added up in the last row of their kind. */
enum wire_fact {
    WIRE_FACT_TIER,     /* begins a tier: enum wire_tier */
    WIRE_FACT_SPACE,    /* begins a namespace: its id; 0: the sum of all without a row */
    WIRE_FACT_HINT,     /* begins pages of equal retention: the id of their namespace */
    WIRE_FACT_SLOTS,    /* of a tier: pages that fit into it */
    WIRE_FACT_PAGES,    /* of a tier: pages in it */
    WIRE_FACT_KEPT,     /* of a tier: pages above the default priority */
    WIRE_FACT_KEPT_MAX, /* of a tier: the upper bound of WIRE_FACT_KEPT */
    WIRE_FACT_DEVICE,   /* of a namespace or hint: pages in each tier */
    WIRE_FACT_HOST,
    WIRE_FACT_STORE,
    WIRE_FACT_KEPT_PAGES, /* of a namespace: above the default priority, in all tiers */
    WIRE_FACT_QUERIES,    /* of a namespace: tokens of prompts, and those found in the cache */
    WIRE_FACT_HITS,
    WIRE_FACT_SHARED,   /* of a namespace: set for the one without a salt */
    WIRE_FACT_PRIORITY, /* of a hint; absent when the row sums up several kinds */
    WIRE_FACT_UNTIL,    /* of a hint: unix seconds; 0: without end */
    WIRE_FACT_DROPPED,  /* dropped pages, all tiers */
    WIRE_FACT_FAILED,   /* a command has failed: the negative of its enum err; WIRE_TEXT follows */
    WIRE_FACT_HELD,     /* prompt tokens whose pages have the requested retention */
    WIRE_FACTS
};

enum wire_tier { WIRE_DEVICE, WIRE_HOST, WIRE_STORE };
#define WIRE_TIERS (WIRE_STORE + 1)

enum wire_finish {
    WIRE_FIN_STOP = 1,      /* an end-of-text or stop id; it is the last token sent */
    WIRE_FIN_LENGTH = 2,    /* max_tokens or the model's length */
    WIRE_FIN_CANCELLED = 3, /* the front asked for it */
    WIRE_FIN_ERROR = 4,     /* value is a negative enum err; may come without WIRE_ADMITTED */
};

struct wire_out {
    int32_t value;
    uint8_t kind;           /* enum wire_kind */
    uint8_t finish;         /* enum wire_finish, with WIRE_FINISHED */
    uint16_t retry_after_s; /* with WIRE_FINISHED and ERR_OVERLOADED: seconds for Retry-After */
    union {
        uint64_t time_us; /* clock_us() when the engine had sampled it */
        uint64_t amount;  /* the number of a WIRE_FACT; see WIRE_FOUND */
        char text[8];     /* of a WIRE_TEXT */
        struct {          /* of log probabilities */
            float logprob;
            uint32_t rank; /* 1: most probable; 0 in a WIRE_CHOSEN: unknown */
        };
        float logits[2]; /* of a row: the two that follow the float in `value` */
    };
};

struct wire_slot {
    alignas(WIRE_LINE) struct wire_request request; /* [W: front] before it is queued */
    alignas(WIRE_LINE) _Atomic uint32_t cancel;     /* [W: front] enum wire_cancel */
    alignas(WIRE_LINE) _Atomic uint32_t out_tail;   /* [W: engine] records written */
    alignas(WIRE_LINE) _Atomic uint32_t out_head;   /* [W: front] records taken */
};

struct wire_lane {
    /* [W: creator], before the front maps it. Constant afterwards. */
    uint64_t magic;
    uint64_t layout; /* wire_layout() */
    uint64_t lane_bytes;
    uint64_t epoch;        /* of the engine: differs per start */
    uint64_t queue_offset; /* bytes from the start of the lane, like the next three */
    uint64_t slots_offset;
    uint64_t out_offset;
    uint64_t arena_offset;
    uint64_t arena_bytes;
    uint32_t n_slots;
    uint32_t queue_cap;  /* a power of two >= n_slots, so that the queue is never full */
    uint32_t engine_pid; /* shown to operators; no decision depends on it */
    uint32_t front_pid;

    alignas(WIRE_LINE) _Atomic uint64_t heartbeat_us; /* [W: engine] last pass of its loop */
    _Atomic uint64_t progress_us;                     /* [W: engine] last end of a step, or of a
                                                       * pass without one */
    _Atomic uint32_t engine_state;                    /* [W: engine] */
    _Atomic uint32_t n_running;                       /* [W: engine] sequences of all lanes */
    _Atomic uint32_t n_waiting;                       /* [W: engine] */
    _Atomic uint32_t todo_tokens;                     /* [W: engine] of prompts that run or wait:
                                                       * tokens still to be computed, at most */
    _Atomic uint32_t n_fronts;                        /* [W: engine] that are attached to it */
    _Atomic uint32_t retry_after_s;                   /* [W: engine] for a 429, derived from its
                                                       * rate */
    _Atomic uint32_t room_reqs;   /* [W: engine] requests this front may queue; falls as the queue
                                   * fills */
    _Atomic uint32_t room_tokens; /* [W: engine] prompt tokens this front may queue */

    alignas(WIRE_LINE) _Atomic uint32_t queue_tail; /* [W: front] */
    alignas(WIRE_LINE) _Atomic uint32_t queue_head; /* [W: engine] */

    alignas(WIRE_LINE) _Atomic uint32_t refused[WIRE_REFUSALS]; /* [W: front] refused by the front
                                                                 * itself, since its start */
    _Atomic uint32_t spans[WIRE_SPANS];                         /* [W: front] enum wire_spans */

    /* Written by both sides with an atomic exchange: the sleeper sets 1, the waker sets 0. Each
     * lane has its own pair, so a front that misuses them delays only itself. */
    alignas(WIRE_LINE) _Atomic uint32_t engine_sleeping;
    alignas(WIRE_LINE) _Atomic uint32_t front_sleeping;

    /* One bit per slot with unread records: the engine sets a bit, the front takes the whole
     * word. */
    alignas(WIRE_LINE) _Atomic uint64_t ready[WIRE_SLOTS_MAX / 64];
};

_Static_assert(sizeof(struct wire_out) == 16, "four records share a cache line");
_Static_assert(sizeof(struct wire_slot) % WIRE_LINE == 0, "slots do not share cache lines");
_Static_assert((WIRE_OUT_CAP & (WIRE_OUT_CAP - 1)) == 0, "indices wrap by masking");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "a lock in shared memory dies with its holder");

#endif
