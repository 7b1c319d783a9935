/* The link to the engine: attach, attach again, slots, statistics.
 *
 * The streamer's alone, except link_turns_away(), link_read_state() and link_copy_stats(), which
 * any thread calls. */
#ifndef QUIRE_FRONT_LINK_LINK_H
#define QUIRE_FRONT_LINK_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "front/link/upload.h"
#include "ipc/attach.h"
#include "ipc/lane.h"

struct gen;

/* Who has slots, in order that nobody takes them all. */
struct link_tenant {
    char name[WIRE_TENANT_BYTES];
    uint32_t n_held; /* slots; 0: the place is free */
};

struct link {
    const char *path; /* the engine's control socket */
    int control_fd;   /* -1 while no engine is attached */
    struct lane lane;
    struct wire_welcome engine; /* of the last engine; n_vocab == 0 before the first */
    struct gen **by_slot;       /* [n_slots]; NULL: free, or nobody wants what still comes */
    uint32_t *free_slots;       /* [n_slots], stack */
    uint32_t n_free;
    uint32_t *automaton; /* [n_slots], as in wire_generate: what the engine is to hold it to */
    struct uploads uploads;
    struct link_tenant *tenants; /* [n_slots], the first n_tenants were in use */
    uint32_t n_tenants;
    uint32_t *tenant_idx; /* [n_slots], who has it */
    uint64_t retry_us;    /* when to try to attach again */
    int open_error;       /* of the last lane, when it could not be used */
    uint64_t foreign_us;  /* since when the engine is of another build; 0: it is not */

    pthread_mutex_t lock; /* guards what follows against readers of /health, /metrics */
    const struct wire_stats *stats;
    bool attached;
};

/* What /health and /v1/models want to know. */
struct link_state {
    bool attached;
    bool draining;
    bool asleep, waking;       /* the first: it holds no memory of the device's */
    uint64_t heartbeat_age_us; /* since the engine's loop came by */
    uint64_t progress_age_us;  /* since it ended a step, or had none to do */
    uint32_t n_running, n_waiting;
    uint32_t max_model_len; /* 0 before the first engine */
    uint32_t n_vocab;
};

int link_init(struct link *l, const char *path) ERR_CHECKED;

/* Try to attach if it is time to. True when an engine was attached by this call. */
bool link_try(struct link *l, uint64_t now_us);

/* The engine's end of the control socket was closed: forget the lane. by_slot still says whose
 * generations it had; the caller empties it first. */
void link_lost(struct link *l, uint64_t now_us);

/* Would the engine refuse this request, or has its tenant enough slots? WIRE_NOT_REFUSED: no. A
 * request that an engine had taken before is held up by nothing but the slots. */
enum wire_refusal link_refuses(struct link *l, const struct wire_request *r);
void link_count_refused(struct link *l, enum wire_refusal why);

/* Would any request of this tenant be refused now, whatever it is? Then it is counted, and the
 * seconds after which to come again are returned; else 0. Any thread, before a body is read. */
int link_turns_away(struct link *l, const char tenant[WIRE_TENANT_BYTES]);

/* A free slot for a request of this tenant, or -1. */
int64_t link_claim(struct link *l, const char tenant[WIRE_TENANT_BYTES]);
void link_release(struct link *l, uint32_t slot);

/* The same when the engine said that the slot's request has ended, and how. */
void link_end(struct link *l, uint32_t slot, const struct wire_out *o);

void link_read_state(struct link *l, struct link_state *out, uint64_t now_us);

/* Copy the statistics page; false when there never was an engine. */
bool link_copy_stats(struct link *l, struct wire_stats *out);

#endif
