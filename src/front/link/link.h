/* SPDX-License-Identifier: Apache-2.0
 *
 * The link to one engine: attaching, reattaching, slots, statistics. A front has one per engine
 * (engines.h).
 *
 * Thread: the streamer; link_is_full(), link_turns_away(), link_read_state(), link_n_held() and
 * link_copy_stats() may be called from any thread. */
#ifndef QUIRE_FRONT_LINK_LINK_H
#define QUIRE_FRONT_LINK_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "front/link/upload.h"
#include "ipc/attach.h"
#include "ipc/lane.h"

struct gen;

/* A tenant that holds slots; counted so that one tenant cannot take them all. */
struct link_tenant {
    char name[WIRE_TENANT_BYTES];
    uint32_t n_held; /* slots; 0: this element is free */
};

struct link {
    const char *path; /* the engine's control socket */
    int control_fd;   /* -1 while no engine is attached */
    int calling_fd;   /* the connection whose welcome has not come; -1: none */
    int patience_ms;  /* time that link_try() may wait for a welcome */
    bool is_patient;  /* the engine may take long to start: its welcome is waited for as long as
                       * link_hang_up() is not called */
    int refused;      /* error that came in place of a welcome, of a patient link; ERR_OK: none. The
                       * caller clears it */
    bool chooses;     /* the front has several engines: this one is to publish what it holds */
    uint64_t called_us;
    struct lane lane;
    struct wire_welcome engine; /* of the last engine; n_vocab == 0: there was none yet */
    struct gen **by_slot;       /* [n_slots]; NULL: free, or its records are dropped */
    uint32_t *free_slots;       /* [n_slots], stack */
    uint32_t n_free;
    uint32_t *automaton; /* [n_slots], as in wire_generate: the automaton of the slot's request */
    struct uploads uploads;
    struct link_tenant *tenants; /* [n_slots], the first n_tenants have been used */
    uint32_t n_tenants;
    uint32_t *tenant_idx; /* [n_slots], the slot's tenant */
    uint64_t retry_us;    /* clock_us() of the next attempt to attach */
    int open_error;       /* the error of the last lane, if it was unusable */
    uint64_t foreign_us;  /* clock_us() since when the engine is of another build; 0: it is not */
    bool drains;          /* the engine has refused a request because it drains */
    bool unpublished;     /* the lane has requests that the engine cannot see yet */

    pthread_mutex_t lock; /* guards the members below against readers of /health and /metrics */
    const struct wire_page *page; /* of the last engine; NULL: there was none yet */
    bool attached;
};

/* The state of the engine, for /health, /v1/models and others. */
struct link_state {
    bool attached;
    bool draining;
    bool asleep, waking;       /* asleep: it holds no device memory */
    uint64_t heartbeat_age_us; /* since the last pass of the engine's loop */
    uint64_t progress_age_us;  /* since its last progress: a step ended, or nothing to do */
    uint32_t n_running, n_waiting;
    uint32_t max_model_len; /* 0: there was no engine yet */
    uint32_t n_vocab;
};

int link_init(struct link *l, const char *path) ERR_CHECKED;

/* Try to attach, if it is time to. True when this call attached an engine. Waits for a welcome at
 * most patience_ms, and looks for it again in the next call. */
bool link_try(struct link *l, uint64_t now_us);

/* Give up the call whose welcome has not come, if there is one. */
void link_hang_up(struct link *l);

/* Give an engine back that was just attached and cannot be used; it is tried again later. */
void link_refuse_engine(struct link *l, uint64_t now_us);

/* The engine has closed the control socket: release the lane. The caller has emptied by_slot. */
void link_lost(struct link *l, uint64_t now_us);

/* Would the engine refuse this request, or does its tenant have enough slots? WIRE_NOT_REFUSED: no.
 * A request that an engine had accepted before needs only a slot. */
enum wire_refusal link_refuses(struct link *l, const struct wire_request *r);
/* Add one to the front's counter of this reason. */
void link_count_refused(struct link *l, enum wire_refusal why);

/* Would every request of this tenant be refused now? The seconds for Retry-After; 0: not every; -1:
 * no engine is attached. Any thread. */
int link_is_full(struct link *l, const char tenant[WIRE_TENANT_BYTES]);

/* Would every request of this tenant be refused now? Then count one and return the seconds for
 * Retry-After; otherwise 0. Any thread; called before a body is read. */
int link_turns_away(struct link *l, const char tenant[WIRE_TENANT_BYTES]);

/* Let the engine take the requests that were written to the lane since the last call. */
void link_publish(struct link *l);

/* Take a free slot for a request of this tenant; -1: none. */
int64_t link_claim(struct link *l, const char tenant[WIRE_TENANT_BYTES]);
void link_release(struct link *l, uint32_t slot);

/* Release a slot after the engine's last record o, which may also say that an upload was lost. */
void link_end(struct link *l, uint32_t slot, const struct wire_out *o);

void link_read_state(struct link *l, struct link_state *out, uint64_t now_us);

/* How many of names [n] follow each other, from the first on, in the engine's cache. 0 when none is
 * attached. */
int link_n_held(struct link *l, const struct hash *names, int n);

/* The adapters of the engine, or of the last one while none is attached. Row i, or the row of a
 * name; false: there is none, or has been no engine. */
bool link_adapter(struct link *l, uint32_t i, struct wire_adapter_row *out);
bool link_find_adapter(struct link *l, const char *name, size_t len, struct wire_adapter_row *out);

/* Which of these rows run and wait, a bit each, row 0 lowest. Returns how many may run at a time;
 * 0: adapters are off, or there has been no engine, and the bits are untouched. */
int link_adapter_uses(struct link *l, uint64_t *running, uint64_t *waiting);

/* Copy the statistics page; false when there has been no engine. */
bool link_copy_stats(struct link *l, struct wire_stats *out);

#endif
