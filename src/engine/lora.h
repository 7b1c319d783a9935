/* SPDX-License-Identifier: Apache-2.0
 *
 * LoRA adapters of the engine: their names, their places in host memory and on the device.
 *
 *   name -> adapter (by the digest of its content) -> host memory -> a slot of the device
 *
 * Names are loaded at start (lora_modules, and those that were loaded by the API before a restart)
 * and by the API; the table is published to the fronts (wire_adapters.h), whose requests have the
 * digest. Folders are read by a thread of their own, one at a time, beside the steps.
 *
 * At most max_loras adapters have slots. When sequences wait for another one, the least recently
 * used that no running sequence has gives its slot up; adapters get slots in the order of their
 * oldest waiting sequence, and sequences that came much later than one that waits for a slot wait
 * too. Host memory has the max_cpu_loras that were used last; others are read again, and must then
 * have the same digest.
 *
 * An unloaded name is gone at once; running and waiting sequences with its adapter finish. */
#ifndef QUIRE_ENGINE_LORA_H
#define QUIRE_ENGINE_LORA_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "ipc/wire_adapters.h"
#include "ipc/wire_request.h"
#include "model/adapter.h"

struct engine;
struct engine_lane;
struct seq;

#define LORA_SLOTS_MAX    64
#define LORA_ADAPTERS_MAX 128 /* named ones, and those that sequences still have */
#define LORA_ORDERS       16

struct lora_adapter {
    bool is_used; /* else the place is free */
    struct hash digest;
    char path[WIRE_ADAPTER_PATH];
    struct adapter *host; /* NULL: not in host memory */
    int slot;             /* -1: none */
    int n_names;
    int n_seqs;      /* sequences that have it, waiting or running */
    int n_running;   /* of these, those that run; counted in each pass */
    uint64_t oldest; /* arrival of its oldest waiting sequence; UINT64_MAX: none waits */
    uint64_t used;   /* the number of its last use */
    int failed;      /* reading it again failed with this error; ERR_OK: it has not */
};

struct lora_name {
    char name[WIRE_ADAPTER_NAME];
    struct lora_adapter *adapter;
    bool is_kept; /* loaded by the API: written to the file of names */
};

/* A command of the API that waits. */
struct lora_order {
    int lane_idx; /* -1: its front has gone */
    uint32_t slot;
    struct wire_adapter what;
};

/* The reader's work: the engine fills it in, the thread answers. The lock guards `state`. */
struct lora_job {
    enum { LORA_IDLE, LORA_ASKED, LORA_DONE } state;
    struct lora_adapter *again; /* read again for this one; NULL: for the first order */
    char path[WIRE_ADAPTER_PATH];
    struct adapter *result;
    int rc;
    char why[ADAPTER_WHY_CAP];
};

struct lora {
    bool is_on;
    int n_slots, n_hosts, rank_max;
    struct lora_adapter adapters[LORA_ADAPTERS_MAX];
    struct lora_name names[WIRE_ADAPTERS_MAX];
    int n_names;
    struct lora_adapter *in_slot[LORA_SLOTS_MAX]; /* NULL: free */
    struct lora_order orders[LORA_ORDERS];        /* the first is in progress */
    int n_orders;
    uint64_t n_used;
    uint64_t since;              /* arrival of the oldest sequence that waits for a slot */
    struct wire_adapters *table; /* shared memory */
    char file[4096];             /* of the names that the API has loaded */
    int event_fd;                /* readable when the reader is done; -1: adapters are off */
    struct engine *engine;       /* for the thread, which reads the model's constants */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked;
    bool has_thread, stops;
    struct lora_job job;
};

/* Load what the settings and the file of names say. Called before the engine allocates no more.
 * ERR_INVALID and others (logged): an adapter of the settings cannot be used. */
int lora_open(struct engine *e, struct wire_adapters *table) ERR_CHECKED;
void lora_close(struct engine *e);

/* The name before the first page of a request. */
struct hash lora_root(const struct engine *e, const struct wire_request *request);

/* A sequence takes the adapter of its request, if that has one, until lora_end().
 * ERR_NO_ADAPTER. */
int lora_begin(struct engine *e, struct seq *seq) ERR_CHECKED;
void lora_end(struct engine *e, struct seq *seq);

/* A command of the API; answered later. ERR_INVALID, ERR_OVERLOADED, ERR_DRAINING. */
int lora_ask(struct engine *e, struct engine_lane *lane, uint32_t slot,
             const struct wire_request *request) ERR_CHECKED;
void lora_forget_lane(struct engine *e, const struct engine_lane *lane);

/* Once per pass: commands, and folders that were read. */
void lora_pass(struct engine *e);

/* Before a plan, while the device is awake: give slots to adapters that sequences wait for, and say
 * which sequences have to wait (seq.awaits_adapter). ERR_GPU. */
int lora_prepare(struct engine *e) ERR_CHECKED;

/* Tell the fronts which adapters run and wait, at the end of a pass. Up to 64 names, no
 * sequences. */
void lora_gauges(struct lora *l);

/* The slot of a sequence that runs; -1: it has no adapter. */
int lora_slot_of(const struct seq *seq);

#endif
