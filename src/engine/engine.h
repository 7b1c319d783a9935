/* The engine: one process, one loop, one thread that owns everything below.
 *
 *   intake    fronts that come and go, requests, cancellations        intake.c
 *   plan      which sequences compute how many tokens                 sched.c
 *   fill      the plan as arrays for the model                        fill.c
 *   forward   the model                                               model/
 *   guide     which tokens may come, while the model computes         guide.c
 *   publish   tokens to their lanes, ends, metrics                    publish.c
 *   tiers     pages to and from the store                             tiers.c
 *   sleep     the device's memory given back and taken again          sleep.c
 *   keeper    what is to stay and what is to go                       keeper.c
 *
 * The parts share struct engine; only main.c makes and ends it. */
#ifndef QUIRE_ENGINE_ENGINE_H
#define QUIRE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/door.h"
#include "base/err.h"
#include "base/names.h"
#include "base/settings.h"
#include "engine/guide.h"
#include "engine/keeper.h"
#include "engine/rate.h"
#include "engine/sched.h"
#include "engine/seq.h"
#include "engine/stats.h"
#include "ipc/lane.h"
#include "kv/host.h"
#include "kv/pages.h"
#include "kv/store.h"
#include "model/model.h"

/* A step that was begun and has not ended. A sequence that is gone meanwhile is NULL. */
struct engine_step {
    struct seq **seqs; /* [max_num_seqs], who computes */
    int *counts;       /* int [max_num_seqs], how many tokens */
    struct seq **rows; /* [max_num_seqs], whose row it is */
    int *targets;      /* int [max_num_seqs], of a row: the prompt position that it tells of, or 0:
                        * its token is sampled */
    int *extras;       /* int [max_num_seqs], of a row: its extra, or -1 */
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
    uint32_t n_offers; /* in this pass, and their bytes */
    uint64_t offer_bytes;
    uint64_t n_offered; /* in its life, and requests that were taken from it */
    uint64_t n_taken;
    int n_bad;                       /* malformed requests so far */
    uint32_t refused[WIRE_REFUSALS]; /* of what the front says, that is counted */
    pid_t pid;                       /* for the log */
    uint64_t since_us;               /* when it connected */
};

/* A page that was named and is not on disk yet. */
struct engine_dirty {
    int32_t page;
    struct hash name; /* to notice that the page was given to somebody else since */
};

/* A page on its way to the device. */
enum load_state {
    LOAD_FREE,
    LOAD_SHARED,   /* none of its own: seq waits for another's, which is `of` */
    LOAD_READING,  /* the store reads it */
    LOAD_CHECKING, /* the host tier looks whether it is whole, and will answer with its ticket */
    LOAD_STARTED,  /* its copy was started, and not marked yet */
    LOAD_COPYING,
    LOAD_FAILED, /* its copy could not be started */
};

struct engine_load {
    enum load_state state;
    int32_t page; /* holds one reference */
    struct hash name;
    struct hash parent;
    int32_t *tokens_copy; /* int32 [block_tokens] */
    uint64_t space;       /* its namespace */
    struct retain retain; /* what the lower tier says of it */
    bool dropped;         /* nobody wants it any more */
    struct seq *seq;      /* who waits, or NULL when it left */
    int32_t slot;         /* of the host tier, held; -1: it comes from the store */
    const void *payload;  /* the store's, until it is copied */
    uint64_t mark;        /* of its copy */
    int of;               /* its place in loads */
};

/* A page on its way to the host tier. */
struct engine_save {
    int32_t
        page; /* holds one reference; -1: it was evicted, and the next step waits for the copy */
    int32_t slot; /* being filled */
    struct hash name;
    uint64_t space;
    bool dropped; /* nobody wants it any more */
    bool marked;
    uint64_t mark;
};

/* A page of the host tier that was used again: worth a place on disk. */
struct engine_hot {
    int32_t slot;
    struct hash name;
};

/* What the device is ready for; sleep.c says how one becomes the next. */
enum engine_power {
    POWER_AWAKE,
    POWER_SAVING,
    POWER_FALLING,
    POWER_ASLEEP, /* from here on the device cannot be used */
    POWER_WAKING,
};

/* A front that is to be told when the engine sleeps, or is awake. */
struct engine_order {
    int lane_idx;
    uint32_t slot;
    enum wire_power_action action;
};

#define ENGINE_ORDERS 32
#define ENGINE_SAVES  1024
#define ENGINE_HOT    4096

struct engine {
    struct settings settings;
    struct names names; /* the first names the model in files and metrics */
    struct model *model;
    const struct model_shape *shape; /* borrowed from model */
    struct pages *pages;
    struct sched sched;
    struct store *store; /* NULL: no store is kept */
    struct stats stats;
    struct seq_pool pool;
    struct guide guide;

    int epoll_fd;
    struct door door;       /* for fronts */
    uint64_t door_opens_us; /* when it is looked at again; 0: it is not shut */
    uint64_t lost_us;       /* when there was no room for what a front offered last; 0: never */
    int signal_fd;
    uint64_t epoch;
    struct engine_lane *lanes; /* [max_lanes] */
    uint64_t n_requests;       /* next seq.order */

    struct batch batch;                        /* arrays made at start */
    struct engine_step steps[MODEL_STEPS_MAX]; /* step i stands at i % MODEL_STEPS_MAX */
    unsigned n_begun, n_ended;                 /* steps */
    int32_t *row_tokens;                       /* int32 [max_num_seqs], what was sampled */
    struct batch_logprobs *logprobs;           /* [max_num_seqs], of extras */
    int32_t *extra_words;                      /* room for a request's wire_extra() */

    struct engine_dirty *dirty; /* ring [dirty_cap] */
    uint32_t dirty_cap, dirty_head, dirty_tail;
    struct engine_load *loads; /* [n_loads] */
    int n_loads;
    int next_load; /* where a free one is looked for first */
    int n_loads_used;
    int n_loads_shared;                     /* of those */
    struct host *host;                      /* NULL: no host tier is kept */
    struct engine_save saves[ENGINE_SAVES]; /* ring, in the order of their marks */
    uint32_t saves_head, saves_tail;
    struct engine_hot *hot; /* ring [ENGINE_HOT] */
    uint32_t hot_head, hot_tail;
    struct keeper keeper;
    double read_us;                   /* smoothed: of a page from the store, 0: not known */
    double prefill_us;                /* smoothed: of a token of a prompt */
    uint64_t reads_since_us, n_reads; /* since the store was idle */
    bool device_failed;               /* it said so of copies, or never ends them */
    uint32_t progress;                /* of what is saved for a sleep or at the end */
    uint64_t moved_us;                /* when there was some last */

    bool draining;
    bool stop;
    uint64_t drain_until_us;
    uint64_t now_us; /* once per pass */

    enum engine_power power;
    uint64_t power_us; /* since when */
    uint64_t used_us;  /* when a request ended last, or the engine began; probes do not count */
    uint64_t retry_us; /* while it wakes: when memory is asked for again */
    uint64_t told_us;  /* and when it was last said that there is none */
    struct engine_order orders[ENGINE_ORDERS];
    int n_orders;

    struct rate rate;              /* for Retry-After, and to refuse what would wait too long */
    int64_t max_num_queued_tokens; /* of prompts */
    int n_lanes;                   /* that are open */
    int n_places;                  /* requests for which the next step has places at once */
    uint64_t progress_us;          /* when a step ended last, or none had to */
};

/* --- loop.c --- */

/* Run until SIGTERM has been followed through. ERR_OK, or ERR_GPU when the device failed. */
int engine_run(struct engine *e) ERR_CHECKED;

/* --- intake.c --- */

/* Wait for something to do, at most timeout_ms (0: only look), and take what came: fronts,
 * hellos, ends of connections, signals. */
void intake_events(struct engine *e, int timeout_ms);
int intake_init(struct engine *e) ERR_CHECKED;
void intake_requests(struct engine *e);               /* new requests of all lanes */
void intake_cancellations(struct engine *e);          /* and deadlines, and slow clients */
void intake_release(struct engine *e, struct seq *q); /* all that is held for q, and q */

/* --- fill.c --- */

int fill_init(struct engine *e) ERR_CHECKED;
void fill_batch(struct engine *e); /* the plan as e->batch, and as the step that begins */
/* What rows want of tokens that were not known when the batch was filled. Sequences that cannot
 * go on end here. */
void fill_extras(struct engine *e, struct engine_step *step);
void fill_forget(struct engine *e, const struct seq *q); /* q goes: steps under way forget it */

/* --- publish.c --- */

void publish_admitted(struct engine *e); /* before the step: who runs for the first time */
void publish_step(struct engine *e, const struct engine_step *step); /* after it: tokens, ends */
void publish_finish(struct engine *e, struct seq *q, enum wire_finish why, int32_t value);
/* It has no more time: err is ERR_DEADLINE or ERR_OVERLOADED. */
void publish_refuse(struct engine *e, struct seq *q, enum wire_refusal why, int err);
void publish_lane(struct engine *e, struct engine_lane *l); /* how full the engine is */
void publish_queue(struct engine *e);                       /* and who waits: intake took some */
void publish_wake(struct engine *e);                        /* fronts that got something; gauges */

/* --- tiers.c --- */

int tiers_init(struct engine *e) ERR_CHECKED;
void tiers_prefetch(struct engine *e);     /* ask the store for waiting prompts' pages */
void tiers_poll(struct engine *e);         /* put what was read into pages; see device_failed */
void tiers_save_evicted(struct engine *e); /* before a step overwrites them */
void tiers_note_named(void *engine, int32_t page);
void tiers_write_behind(struct engine *e, int pages_max); /* some of what is not on disk */
/* At the end: save what is only on the device, and wait for copies. ERR_GPU (logged) when the
 * device fails, or for some seconds ends none: what was saved by then stays, the rest is lost. */
int tiers_save_all(struct engine *e) ERR_CHECKED;
void tiers_forget(struct engine *e, struct seq *q); /* before a waiting sequence goes */
/* Waiting sequences whose prefix is being fetched. Cost: none while nothing is. */
int tiers_n_deferred(const struct engine *e);
bool tiers_copy_in(const struct engine *e);   /* pages are on their way from host memory */
bool tiers_have_work(const struct engine *e); /* pages are to be saved, or being saved */
/* Before a sleep: whatever is named on the device and nowhere else is to be saved; no longer. */
void tiers_gather(struct engine *e);
void tiers_give_up(struct engine *e);
/* Asked in each pass from then on: copies to host memory were begun, and for some seconds neither
 * has one ended nor anything else been saved. It is logged. No step may be under way. */
bool tiers_are_stuck(struct engine *e);
/* A page of the host tier is worth a place on disk. */
void tiers_want_stored(struct engine *e, int32_t slot, const struct hash *name);
/* What is on its way between the tiers and is this page, or of this namespace, does not arrive.
 * name NULL: any page; space 0: any namespace. */
void tiers_drop(struct engine *e, const struct hash *name, uint64_t space);
void tiers_time_step(struct engine *e, const struct engine_step *step); /* a step that ended */

/* --- sleep.c --- */

void sleep_init(struct engine *e); /* before the first pass */

/* A pass: fall asleep after sleep_after_s without requests, wake for one that waits. ERR_OK;
 * ERR_GPU when the device failed. */
int sleep_pass(struct engine *e) ERR_CHECKED;

bool sleep_is_awake(const struct engine *e); /* steps may begin, and copies of pages */

/* How long the loop may wait for something to happen, if it would wait for longest_ms. */
int sleep_timeout_ms(const struct engine *e, int longest_ms);

/* Fall asleep now. ERR_AGAIN while a request is under way; ERR_UNSUPPORTED when memory was not
 * taken for it (sleep_after_s is 0, or the device cannot). Asked of a sleeping engine: nothing
 * happens. */
int sleep_begin(struct engine *e) ERR_CHECKED;
void sleep_end(struct engine *e); /* wake, for nobody in particular */

/* The same as an operator's word: the slot's end comes when it is so. Errors as those of
 * sleep_begin(), ERR_BUSY for ERR_AGAIN; ERR_OVERLOADED, ERR_INVALID. */
int sleep_ask(struct engine *e, const struct engine_lane *l, uint32_t slot,
              const struct wire_power *p) ERR_CHECKED;
void sleep_forget_lane(struct engine *e, const struct engine_lane *l);

/* --- keeper.c --- */

int keeper_init(struct engine *e) ERR_CHECKED;
void keeper_pass(struct engine *e); /* once per pass: hints that end, and some of what was asked */
/* q runs for the first time: who asks for what, and what q says of pages in the lower tiers. */
void keeper_note_admitted(struct engine *e, const struct seq *q);
/* Before a sequence's end: what it asked to be told of its prompt. */
void keeper_tell(struct engine *e, const struct seq *q);
/* Take what an operator asks for; it is answered in a later pass. ERR_INVALID, ERR_OVERLOADED. */
int keeper_ask(struct engine *e, struct engine_lane *l, uint32_t slot,
               const struct wire_request *r) ERR_CHECKED;
bool keeper_has_work(const struct engine *e);
void keeper_save_rates(struct engine *e); /* the store keeps what namespaces were asked for */
void keeper_forget_lane(struct engine *e, const struct engine_lane *l);
/* Is a namespace being dropped? What comes from another tier meanwhile is not kept. */
bool keeper_drops(const struct engine *e, uint64_t space);

#endif
