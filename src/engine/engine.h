/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine: one process with one loop; one thread owns everything below.
 *
 *   intake       fronts that connect and leave, requests, cancellations   intake.c
 *   draft        a smaller model's guesses of the next tokens             drafter.c
 *   plan         how many tokens of which sequences a step computes       sched.c
 *   fill         the plan as arrays for the model                         fill.c
 *   forward      the model                                                model/
 *   guide        masks of allowed tokens, made while the model computes   guide.c
 *   publish      tokens to their lanes, finish reasons, metrics           publish.c
 *   retire       the end of a sequence                                    retire.c
 *   tiers        pages between device, host memory and disk               tiers.c
 *   sleep        device memory given back and taken again                 sleep.c
 *   cache_admin  retention, hit rates, the operators' cache commands      cache_admin.c
 *
 * The parts share struct engine; only main.c makes and ends it. In these files `e` is always the
 * engine and `seq` a sequence. */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/listener.h"
#include "base/names.h"
#include "base/pooling.h"
#include "base/settings.h"
#include "engine/cache_admin.h"
#include "engine/cost.h"
#include "engine/drafter.h"
#include "engine/guide.h"
#include "engine/held.h"
#include "engine/lora.h"
#include "engine/rate.h"
#include "engine/sched.h"
#include "engine/seq.h"
#include "engine/sleep.h"
#include "engine/stats.h"
#include "engine/tiers.h"
#include "ipc/lane.h"
#include "ipc/seats.h"
#include "kv/pages.h"
#include "model/model.h"

#define ENGINE_POOLED_ROWS 64 /* are copied from the device at a time */

/* A step in flight: begun, and not ended. A sequence that is retired meanwhile is set to NULL in
 * it, so that its results are dropped. */
struct engine_step {
    struct seq **seqs; /* [max_num_seqs], the sequences of the step */
    int *counts;       /* int [max_num_seqs], tokens that the step computes of each */
    struct seq **rows; /* [max_num_seqs], the sequence of each row */
    int *targets;      /* int [max_num_seqs], per row: the prompt position whose log probability it
                        * gives, or 0: its token is sampled */
    int *extras;       /* int [max_num_seqs], per row: its index in batch.extras, or -1 */
    int *drafts;       /* int [max_num_seqs], per sequence: drafts among its tokens */
    int n_seqs, n_rows, n_tokens;
    bool waits; /* its rows are sampled after the step before has ended: they need its tokens */
    struct cost_step load; /* its parts, for the cost model */
    bool is_limited;       /* prompts got fewer tokens because of itl_target_ms */
    uint64_t begun_us;
};

enum engine_lane_state { LANE_FREE, LANE_GREETING, LANE_OPEN };

/* The engine's end of a front's connection. Lanes are a fixed array; an element is used again
 * after LANE_FREE. */
struct engine_lane {
    enum engine_lane_state state;
    int control_fd; /* when the peer closes it, the front has ended */
    struct lane lane;
    struct seq **by_slot; /* [lane_slots], the sequence of each slot of the lane, or NULL; allocated
                           * at start */
    struct guide_lane guide;
    uint32_t n_uploads; /* messages with a grammar or vocabulary in this pass, and their bytes */
    uint64_t upload_bytes;
    uint64_t n_uploaded; /* uploads, and requests taken, since the front connected */
    uint64_t n_taken;
    int n_bad;                       /* malformed requests so far */
    uint32_t refused[WIRE_REFUSALS]; /* the front's own refusal counts as last added to our
                                      * statistics */
    uint32_t spans[WIRE_SPANS];      /* likewise */
    pid_t pid;                       /* for the log */
    uint64_t since_us;               /* when it connected */
};

/* The descriptors that the loop polls, apart from those of the lanes. */
struct intake {
    int epoll_fd;
    int signal_fd;
    struct listener listener;   /* for fronts */
    uint64_t listener_opens_us; /* when it is polled again after a lack of descriptors; 0: it is
                                 * polled */
    uint64_t lost_us;           /* when memory or a descriptor for an upload was last lacking; 0:
                                 * never */
};

/* The bounds of the queue of waiting requests. */
struct admission {
    struct rate rate;              /* for Retry-After, and to refuse requests that would wait
                                    * long */
    int64_t max_num_queued_tokens; /* sum of the prompts of waiting requests */
    uint32_t todo_tokens;          /* as in struct wire_lane */
    int n_lanes;                   /* open lanes */
    int n_places;                  /* requests that the next step can admit at once: they do not
                                    * count as waiting */
};

/* Preemptions of the current minute, for a warning. */
struct engine_preempted {
    uint64_t since_us; /* e->now_us at its begin */
    uint64_t n_before; /* sched.n_preemptions then */
    bool was_told;
};

struct engine {
    struct settings settings;
    struct names names;     /* the first of them names the model in files and metrics */
    struct pooling pooling; /* how the model pools; constant */
    struct model *model;
    const struct model_shape *shape; /* borrowed from model */
    struct pages *pages;
    struct sched sched;
    struct stats stats;
    struct seq_pool pool;
    struct guide guide;

    struct intake intake;
    struct admission admission;
    uint64_t epoch;
    struct engine_lane *lanes; /* [max_lanes] */
    uint64_t n_requests;       /* requests so far: the next value of seq.arrival */

    struct batch batch;                        /* arrays allocated at start */
    struct engine_step steps[MODEL_STEPS_MAX]; /* step i is at i % MODEL_STEPS_MAX */
    unsigned n_begun, n_ended;                 /* steps begun and ended so far; they differ by the
                                                * steps in flight */
    int32_t *adapter_slots;                    /* int32 [max_num_seqs], of the step's sequences */
    int32_t *row_tokens;                       /* int32 [max_num_seqs], the sampled token of each
                                                * row */
    struct batch_logprobs *logprobs;           /* [max_num_seqs], per extra */
    float *pooled_rows;   /* float [ENGINE_POOLED_ROWS][n_vocab], room for rows to be added */
    int32_t *extra_words; /* room for the arrays of one request
                                                * (wire_extra()) */

    struct cost cost;   /* what steps take */
    uint64_t ended_us;  /* clock_us() at the last step's end */
    bool end_is_unseen; /* that step had no rows, so the device may still have computed it */
    struct draft_options drafts;
    struct drafter drafter;
    struct tiers tiers;
    struct power power;
    struct cache_admin cache_admin;
    struct held held;
    struct lora lora;    /* adapters */
    struct seats *seats; /* of the engines that share the device; NULL: it has the device alone */
    struct seat_room seat_room; /* for all of them */
    struct engine_preempted preempted;

    bool draining;
    bool stop;
    uint64_t drain_until_us;
    uint64_t now_us; /* clock_us(), read once per pass */

    uint64_t progress_us; /* when a step ended last, or when there was nothing to compute: for the
                           * liveness check */
};

/* --- loop.c --- */

/* Run until a SIGTERM has drained the engine. ERR_OK, or ERR_GPU when the device failed. */
int engine_run(struct engine *e) ERR_CHECKED;

/* --- intake.c --- */

/* Wait at most timeout_ms for events (0: poll) and handle them: new fronts, hellos, closed
 * connections, signals. Sets e->now_us. */
void intake_events(struct engine *e, int timeout_ms);
int intake_init(struct engine *e) ERR_CHECKED;
void intake_drain(struct engine *e); /* take no more requests, and end with those that there are */
void intake_requests(struct engine *e);      /* take the new requests of all lanes */
void intake_cancellations(struct engine *e); /* cancelled requests, deadlines, slow clients */

/* --- retire.c --- */

/* End seq: release its pages and its slot, remove it from steps in flight, loads and queues, and
 * return it to the pool. */
void retire(struct engine *e, struct seq *seq);

/* --- fill.c --- */

int fill_init(struct engine *e) ERR_CHECKED;
void fill_batch(struct engine *e); /* write the plan to e->batch and to the step that begins */
/* Fill the extras of a step's rows (masks, biases, log probabilities), which depend on tokens that
 * were unknown when the batch was filled. Sequences for which no token is allowed are finished
 * here. */
void fill_extras(struct engine *e, struct engine_step *step);
/* After fill_extras() and before the step is sampled: copy the logits of rows that are reported
 * whole to their sequences. ERR_GPU. */
int fill_rows(struct engine *e, const struct engine_step *step) ERR_CHECKED;

/* --- publish.c --- */

/* Before a step: report the sequences that run for the first time. */
void publish_admitted(struct engine *e);
/* After a step: its tokens, and the sequences that end. */
void publish_step(struct engine *e, const struct engine_step *step);
/* Continue with the row of logits that seq reports, in a ring with room for `room` records; returns
 * the room that is left. After a row of the output comes its token, which may finish seq. */
int publish_row(struct engine *e, struct seq *seq, int room);
void publish_finish(struct engine *e, struct seq *seq, enum wire_finish why, int32_t value);
/* Finish seq with err, ERR_DEADLINE or ERR_OVERLOADED, because it waited too long; counted as
 * `why`. */
void publish_refuse(struct engine *e, struct seq *seq, enum wire_refusal why, int err);
/* Write the engine's load to a lane. */
void publish_lane(struct engine *e, struct engine_lane *lane);
/* After requests were taken: update the room of all lanes and the counts of the tenants. */
void publish_queue(struct engine *e);
void publish_wake(struct engine *e); /* wake the fronts that have new records; set the gauges */

/* --- cache_admin.c --- */

int cache_admin_init(struct engine *e) ERR_CHECKED;
void cache_admin_pass(
    struct engine *e); /* once per pass: expire retention, and continue the oldest command */
/* seq is admitted for the first time: count its cache hits per namespace, and pass its retention to
 * the pages of the lower tiers. */
void cache_admin_note_admitted(struct engine *e, const struct seq *seq);
/* Before seq finishes: report how many tokens of its prompt are retained, if it asked for that. */
void cache_admin_tell(struct engine *e, const struct seq *seq);
/* Queue a cache command of an operator; it is answered in a later pass. ERR_INVALID,
 * ERR_OVERLOADED, ERR_DRAINING. */
int cache_admin_ask(struct engine *e, struct engine_lane *lane, uint32_t slot,
                    const struct wire_request *request) ERR_CHECKED;
bool cache_admin_has_work(const struct engine *e);
void cache_admin_save_rates(struct engine *e); /* write the hit counts of namespaces to the store */
void cache_admin_forget_lane(struct engine *e, const struct engine_lane *lane);

#endif
