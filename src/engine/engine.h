/* The engine: one process, one loop, one thread that owns everything below.
 *
 *   intake    fronts that come and go, requests, cancellations        intake.c
 *   plan      which sequences compute how many tokens                 sched.c
 *   fill      the plan as arrays for the model                        fill.c
 *   forward   the model                                               model/
 *   guide     which tokens may come, while the model computes         guide.c
 *   publish   tokens to their lanes, ends, metrics                    publish.c
 *   retire    the end of a sequence                                   retire.c
 *   tiers     pages to and from the store                             tiers.c
 *   sleep     the device's memory given back and taken again          sleep.c
 *   keeper    what is to stay and what is to go                       cache_admin.c
 *
 * The parts share struct engine; only main.c makes and ends it. */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/listener.h"
#include "base/names.h"
#include "base/settings.h"
#include "engine/cache_admin.h"
#include "engine/guide.h"
#include "engine/rate.h"
#include "engine/sched.h"
#include "engine/seq.h"
#include "engine/sleep.h"
#include "engine/stats.h"
#include "engine/tiers.h"
#include "ipc/lane.h"
#include "kv/pages.h"
#include "model/model.h"

/* A step that was begun and has not ended. A sequence that is gone meanwhile is NULL. */
struct engine_step {
    struct seq **seqs; /* [max_num_seqs], who computes */
    int *counts;       /* int [max_num_seqs], how many tokens */
    struct seq **rows; /* [max_num_seqs], whose row it is */
    int *targets;      /* int [max_num_seqs], of a row: the prompt position that it tells of, or 0:
                        * its token is sampled */
    int *extras;       /* int [max_num_seqs], of a row: its extra, or -1 */
    int *drafts;       /* int [max_num_seqs], of a sequence: drafts among its tokens */
    int n_seqs, n_rows, n_tokens;
    bool waits; /* its rows are sampled when all tokens before are known */
    uint64_t begun_us;
};

enum engine_lane_state { LANE_FREE, LANE_GREETING, LANE_OPEN };

struct engine_lane {
    enum engine_lane_state state;
    int control_fd; /* its end is the front's end */
    struct lane lane;
    struct seq **by_slot; /* [lane_slots], NULL where no sequence runs; mapped at start */
    struct guide_lane guide;
    uint32_t n_uploads; /* in this pass, and their bytes */
    uint64_t upload_bytes;
    uint64_t n_uploaded; /* in its life, and requests that were taken from it */
    uint64_t n_taken;
    int n_bad;                       /* malformed requests so far */
    uint32_t refused[WIRE_REFUSALS]; /* of what the front says, that is counted */
    pid_t pid;                       /* for the log */
    uint64_t since_us;               /* when it connected */
};

/* The descriptors that the loop waits for, beside the lanes'. */
struct intake {
    int epoll_fd;
    int signal_fd;
    struct listener listener;   /* for fronts */
    uint64_t listener_opens_us; /* when it is polled again; 0: it is not shut */
    uint64_t lost_us;           /* when an upload found no room last; 0: never */
};

/* Which requests may wait. */
struct admission {
    struct rate rate; /* for Retry-After, and to refuse requests that would wait long */
    int64_t max_num_queued_tokens; /* of prompts */
    int n_lanes;                   /* that are open */
    int n_places;                  /* requests for which the next step has places at once */
};

struct engine {
    struct settings settings;
    struct names names; /* the first names the model in files and metrics */
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
    uint64_t n_requests;       /* next seq.arrival */

    struct batch batch;                        /* arrays made at start */
    struct engine_step steps[MODEL_STEPS_MAX]; /* step i stands at i % MODEL_STEPS_MAX */
    unsigned n_begun, n_ended;                 /* steps */
    int32_t *row_tokens;                       /* int32 [max_num_seqs], what was sampled */
    struct batch_logprobs *logprobs;           /* [max_num_seqs], of extras */
    int32_t *extra_words;                      /* room for a request's wire_extra() */

    struct draft_options drafts;
    struct tiers tiers;
    struct power power;
    struct cache_admin cache_admin;

    bool draining;
    bool stop;
    uint64_t drain_until_us;
    uint64_t now_us; /* once per pass */

    uint64_t progress_us; /* when a step ended last, or none had to */
};

/* --- loop.c --- */

/* Run until SIGTERM has been followed through. ERR_OK, or ERR_GPU when the device failed. */
int engine_run(struct engine *e) ERR_CHECKED;

/* --- intake.c --- */

/* Wait for something to do, at most timeout_ms (0: only look), and take what came: fronts,
 * hellos, ends of connections, signals. */
void intake_events(struct engine *e, int timeout_ms);
int intake_init(struct engine *e) ERR_CHECKED;
void intake_requests(struct engine *e);      /* new requests of all lanes */
void intake_cancellations(struct engine *e); /* and deadlines, and slow clients */

/* --- retire.c --- */

/* The end of q: its pages, its slot, its places in steps and tiers, and q itself. */
void retire(struct engine *e, struct seq *q);

/* --- fill.c --- */

int fill_init(struct engine *e) ERR_CHECKED;
void fill_batch(struct engine *e); /* the plan as e->batch, and as the step that begins */
/* What rows want of tokens that were not known when the batch was filled. Sequences that cannot
 * go on end here. */
void fill_extras(struct engine *e, struct engine_step *step);
/* Behind it and before the step is sampled: rows that are told whole. ERR_GPU. */
int fill_rows(struct engine *e, const struct engine_step *step) ERR_CHECKED;

/* --- publish.c --- */

void publish_admitted(struct engine *e); /* before the step: who runs for the first time */
void publish_step(struct engine *e, const struct engine_step *step); /* after it: tokens, ends */
/* More of the row that q tells, into a ring that has room for so many records; returns the room
 * that is left. Behind a row of the output comes its token, and q may end. */
int publish_row(struct engine *e, struct seq *q, int room);
void publish_finish(struct engine *e, struct seq *q, enum wire_finish why, int32_t value);
/* It has no more time: err is ERR_DEADLINE or ERR_OVERLOADED. */
void publish_refuse(struct engine *e, struct seq *q, enum wire_refusal why, int err);
void publish_lane(struct engine *e, struct engine_lane *lane); /* how full the engine is */
void publish_queue(struct engine *e);                          /* and who waits: intake took some */
void publish_wake(struct engine *e); /* fronts that got something; gauges */

/* --- cache_admin.c --- */

int cache_admin_init(struct engine *e) ERR_CHECKED;
void cache_admin_pass(
    struct engine *e); /* once per pass: hints that end, and some of what was asked */
/* q runs for the first time: who asks for what, and what q says of pages in the lower tiers. */
void cache_admin_note_admitted(struct engine *e, const struct seq *q);
/* Before a sequence's end: what it asked to be told of its prompt. */
void cache_admin_tell(struct engine *e, const struct seq *q);
/* Take what an operator asks for; it is answered in a later pass. ERR_INVALID, ERR_OVERLOADED. */
int cache_admin_ask(struct engine *e, struct engine_lane *lane, uint32_t slot,
                    const struct wire_request *request) ERR_CHECKED;
bool cache_admin_has_work(const struct engine *e);
void cache_admin_save_rates(struct engine *e); /* the store keeps what namespaces were asked for */
void cache_admin_forget_lane(struct engine *e, const struct engine_lane *lane);

#endif
