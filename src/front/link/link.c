/* SPDX-License-Identifier: Apache-2.0
 *
 * The connection to the engine.
 *
 * The first part attaches and detaches. The second decides whether a request may be submitted, from
 * values that the engine publishes in the lane and on the statistics page, so that most refusals
 * cost the engine nothing. The third hands out slots.
 *
 * A request is refused, in this order, if no slot is free, if its tenant has its share of the
 * slots, if the engine's queue is full, or if the queue holds too many prompt tokens. */
#include "front/link/link.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define LINK_RETRY_US   50000                /* a restarted engine is found within this time */
#define LINK_TIMEOUT_MS 2000                 /* maximum wait for the welcome */
#define LINK_PAUSE_US   (20 * LINK_RETRY_US) /* after an engine that cannot be used */
#define LINK_DOUBT      2 /* with so many waiting requests of a tenant the engine decides */

/* No engine is searched yet; link_try() does that. */
int link_init(struct link *l, const char *path)
{
    must(path != NULL);
    *l = (struct link){
        .path = path, .control_fd = -1, .calling_fd = -1, .patience_ms = LINK_TIMEOUT_MS};
    l->lane.wake_fd = -1;
    if (pthread_mutex_init(&l->lock, NULL) == 0)
        return ERR_OK;
    return ERR_NO_MEMORY;
}

/* All arrays per slot. free_slots is a stack with slot 0 on top. */
static int link_slots(struct link *l)
{
    uint32_t n = l->lane.n_slots;

    l->by_slot = mem_zalloc_array(n, sizeof(struct gen *));
    l->free_slots = mem_zalloc_array(n, sizeof *l->free_slots);
    l->automaton = mem_zalloc_array(n, sizeof *l->automaton);
    l->tenants = mem_zalloc_array(n, sizeof *l->tenants);
    l->tenant_idx = mem_zalloc_array(n, sizeof *l->tenant_idx);
    l->n_tenants = 0;
    if (l->by_slot == NULL || l->free_slots == NULL || l->automaton == NULL || l->tenants == NULL ||
        l->tenant_idx == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        l->free_slots[i] = n - 1 - i;
    l->n_free = n;
    return ERR_OK;
}

/* Map the engine's page, read-only. NULL: it cannot be mapped, or is of another build. Its length
 * is compared first, because a read behind the end of the file ends the process by SIGBUS. */
static const struct wire_page *link_map_page(int fd)
{
    const struct wire_page *page;
    struct stat st;

    if (fstat(fd, &st) == -1 || st.st_size < (off_t)sizeof *page)
        return NULL;
    page = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return NULL;
    if (page->stats.magic != WIRE_MAGIC || page->stats.layout != wire_layout()) {
        (void)munmap((void *)(uintptr_t)page, sizeof *page);
        return NULL;
    }
    return page;
}

/* Make a new connection visible to the readers. The old statistics stay mapped until then, so that
 * /metrics has numbers while the engine restarts. */
static void link_show(struct link *l, const struct wire_welcome *w, const struct wire_page *page)
{
    const struct wire_page *old;

    (void)pthread_mutex_lock(&l->lock);
    old = l->page;
    l->page = page;
    l->engine = *w;
    l->attached = true;
    (void)pthread_mutex_unlock(&l->lock);
    if (old != NULL)
        (void)munmap((void *)(uintptr_t)old, sizeof *old);
}

/* Everything after the welcome. On an error the caller calls link_close(). */
static int link_open(struct link *l, const struct wire_welcome *w, const int *fds)
{
    const struct wire_page *page;
    int rc = lane_attach(&l->lane, fds[ATTACH_LANE], w->lane_bytes);

    must(l->control_fd != -1);
    if (rc != ERR_OK)
        return rc;
    l->lane.wake_fd = l->control_fd;
    rc = link_slots(l);
    if (rc != ERR_OK)
        return rc;
    page = link_map_page(fds[ATTACH_STATS]);
    if (page == NULL)
        return ERR_VERSION;
    link_show(l, w, page);
    return ERR_OK;
}

/* Free and close everything of a connection but its statistics page. */
static void link_close(struct link *l)
{
    lane_detach(&l->lane);
    mem_free(l->by_slot);
    l->by_slot = NULL;
    mem_free(l->free_slots);
    l->free_slots = NULL;
    mem_free(l->automaton);
    l->automaton = NULL;
    mem_free(l->tenants);
    l->tenants = NULL;
    mem_free(l->tenant_idx);
    l->tenant_idx = NULL;
    uploads_clear(&l->uploads);
    l->n_free = 0;
    if (l->control_fd != -1)
        (void)close(l->control_fd);
    l->control_fd = -1;
}

/* No engine was attached, for this reason. Reasons are logged once; the longer pause also spares
 * the engine's log. ERR_ENGINE_GONE is not logged: the engine may simply not have started yet. */
static void link_failed(struct link *l, int rc, uint64_t now_us)
{
    if (rc == ERR_LIMIT && l->open_error != rc)
        log_error("front: no file descriptor is left for the engine's lane; raise LimitNOFILE");
    if (rc == ERR_LIMIT)
        l->open_error = rc;
    if (rc == ERR_VERSION && l->foreign_us == 0)
        l->foreign_us = now_us;
    if (l->is_patient && (rc == ERR_INVALID || rc == ERR_ASLEEP))
        l->refused = rc;
    if (rc != ERR_ENGINE_GONE)
        l->retry_us = now_us + LINK_PAUSE_US;
}

/* Call an engine, or look for the answer to an earlier call. ERR_AGAIN while it may still come.
 * Otherwise the call is over, and on ERR_OK the control_fd is set. */
static int link_call(struct link *l, uint64_t now_us, struct wire_welcome *w, int *fds)
{
    int rc;

    if (l->calling_fd == -1) {
        rc = attach_call(l->path, l->chooses ? WIRE_FRONT_CHOOSES : WIRE_FRONT, &l->calling_fd);
        l->called_us = now_us;
        if (rc != ERR_OK)
            return rc;
    }
    rc = attach_answer(l->calling_fd, l->patience_ms, w, fds);
    if (rc == ERR_AGAIN && l->patience_ms < LINK_TIMEOUT_MS &&
        (l->is_patient || now_us - l->called_us < LINK_TIMEOUT_MS * 1000u))
        return rc;
    if (rc == ERR_OK)
        l->control_fd = l->calling_fd;
    else
        (void)close(l->calling_fd);
    l->calling_fd = -1;
    if (rc == ERR_AGAIN)
        return ERR_ENGINE_GONE;
    return rc;
}

/* Try to attach, at most once per LINK_RETRY_US. True: a connection now exists. */
bool link_try(struct link *l, uint64_t now_us)
{
    struct wire_welcome welcome;
    int fds[ATTACH_FDS];
    int rc;

    if (l->control_fd != -1 || (l->calling_fd == -1 && now_us < l->retry_us))
        return false;
    l->retry_us = now_us + LINK_RETRY_US;
    rc = link_call(l, now_us, &welcome, fds);
    if (rc != ERR_OK) {
        if (rc != ERR_AGAIN)
            link_failed(l, rc, now_us);
        return false;
    }
    rc = link_open(l, &welcome, fds);
    (void)close(fds[ATTACH_LANE]);
    (void)close(fds[ATTACH_STATS]);
    if (rc != ERR_OK) {
        if (rc != l->open_error)
            log_error("front: the engine's lane is unusable: %s", err_sentence(rc));
        l->open_error = rc; /* logged once; the longer pause also spares the engine's log */
        l->retry_us = now_us + LINK_PAUSE_US;
        link_close(l);
        return false;
    }
    l->open_error = ERR_OK;
    l->foreign_us = 0;
    l->drains = false;
    l->unpublished = false;
    log_info("front: attached to the engine at %s, %u slots", l->path, l->lane.n_slots);
    return true;
}

void link_hang_up(struct link *l)
{
    if (l->calling_fd != -1)
        (void)close(l->calling_fd);
    l->calling_fd = -1;
}

void link_refuse_engine(struct link *l, uint64_t now_us)
{
    must(l->control_fd != -1);
    (void)pthread_mutex_lock(&l->lock);
    l->attached = false;
    link_close(l);
    (void)pthread_mutex_unlock(&l->lock);
    l->retry_us = now_us + LINK_PAUSE_US;
}

/* The streamer found the connection closed, and has ended the requests on it. */
void link_lost(struct link *l, uint64_t now_us)
{
    must(l->control_fd != -1);
    (void)pthread_mutex_lock(&l->lock); /* because link_read_state() reads from the lane */
    l->attached = false;
    link_close(l);
    (void)pthread_mutex_unlock(&l->lock);
    l->retry_us = now_us;
    log_warn("front: the connection to the engine is lost: %s", l->path);
}

/* The index of a tenant with slots, or a free index. There is one, because there are as many as
 * slots. */
static uint32_t link_tenant_idx(const struct link *l, const char tenant[WIRE_TENANT_BYTES])
{
    uint32_t place = l->n_tenants;

    for (uint32_t i = 0; i < l->n_tenants; i++) {
        const struct link_tenant *t = &l->tenants[i];

        /* An index whose tenant holds nothing may be taken by another. */
        if (t->n_held > 0 && memcmp(t->name, tenant, WIRE_TENANT_BYTES) == 0)
            return i;
        if (t->n_held == 0 && place == l->n_tenants)
            place = i;
    }
    return place;
}

/* The engine's queue as the front sees it: waiting requests per tenant, from the statistics page.
 * The page belongs to another process: no number of it is trusted as an index. */
struct link_queue {
    const char *names[WIRE_TENANTS];
    uint32_t waiting[WIRE_TENANTS];
    uint32_t n;
};

/* The counters are one pass old: they lack requests queued since and include some that ended. Only
 * the streamer maps the page, so it needs no lock here. */
static void link_read_queue(const struct link *l, struct link_queue *q)
{
    uint32_t n = atomic_load_explicit(&l->page->stats.n_tenants, memory_order_relaxed);

    q->n = n < WIRE_TENANTS ? n : WIRE_TENANTS;
    for (uint32_t i = 0; i < q->n; i++) {
        const struct wire_tenant *tenant_row = &l->page->stats.tenants[i];

        q->names[i] = tenant_row->name;
        q->waiting[i] = atomic_load_explicit(&tenant_row->n_waiting, memory_order_relaxed);
    }
}

/* The row of a tenant. A new one gets a row; without a free one it shares the first, as in the
 * engine. */
static uint32_t link_row(struct link_queue *q, const char tenant[WIRE_TENANT_BYTES])
{
    for (uint32_t i = 0; i < q->n; i++) {
        if (memcmp(q->names[i], tenant, WIRE_TENANT_BYTES) == 0)
            return i;
    }
    if (q->n == WIRE_TENANTS)
        return 0;
    q->names[q->n] = tenant;
    q->waiting[q->n] = 0;
    return q->n++;
}

/* The other row with most requests, or `own`. */
static uint32_t link_most(const struct link_queue *q, uint32_t own)
{
    uint32_t most = own;

    for (uint32_t i = 0; i < q->n; i++) {
        if (i != own && (most == own || q->waiting[i] > q->waiting[most]))
            most = i;
    }
    return most;
}

/* In a full queue the engine balances: a tenant may push out a request of the one that has most, as
 * long as that does not end with less than it. Play it for one request; false: it is refused. */
static bool link_push(struct link_queue *q, uint32_t own)
{
    uint32_t most = link_most(q, own);

    if (most == own || q->waiting[most] <= q->waiting[own] + 1)
        return false;
    q->waiting[most]--;
    q->waiting[own]++;
    return true;
}

/* In doubt, when the tenant itself has LINK_DOUBT or more waiting and another has as many, the
 * engine decides, because the counters are old. */
static bool link_in_doubt(const struct link_queue *q, uint32_t own)
{
    uint32_t most = link_most(q, own);

    return q->waiting[own] >= LINK_DOUBT && most != own && q->waiting[most] >= q->waiting[own];
}

/* Would a tenant's request push another out of a full queue? */
static bool link_may_push(const struct link *l, const char tenant[WIRE_TENANT_BYTES])
{
    struct link_queue queue;
    uint32_t own;

    link_read_queue(l, &queue);
    own = link_row(&queue, tenant);
    return link_in_doubt(&queue, own) || link_push(&queue, own);
}

/* Will the engine's queue have a place for a tenant's request after the n_queued ones in the lane,
 * of which `room` find free places? Those are of known tenants: one that has most of the queue is
 * refused there and takes nothing from the others. *pushes: whether it might push another out, also
 * where there is a place. */
static bool link_fits(const struct link *l, const char tenant[WIRE_TENANT_BYTES], uint32_t n_queued,
                      uint32_t room, bool *pushes)
{
    struct link_queue queue;
    uint32_t own;

    link_read_queue(l, &queue);
    own = link_row(&queue, tenant);
    *pushes = link_in_doubt(&queue, own);
    for (uint32_t i = 0; i < n_queued; i++) {
        uint32_t slot = lane_queued(&l->lane, i);
        uint32_t row = link_row(&queue, l->tenants[l->tenant_idx[slot]].name);

        if (i < room)
            queue.waiting[row]++;
        else
            (void)link_push(&queue, row);
    }
    *pushes = *pushes || link_push(&queue, own);
    return n_queued < room || *pushes;
}

/* May a tenant that holds `held` slots have another? It may hold at most LINK_SHARE_FACTOR times
 * the free ones. This shares the slots without knowing how many other tenants will come: one tenant
 * alone may have 4/5 of them, two 4/9 each, and some remain free for the next. */
#define LINK_SHARE_FACTOR 4
static bool link_share_allows(uint64_t held, uint64_t n_free)
{
    return held < LINK_SHARE_FACTOR * n_free;
}

/* The checks, cheapest first. room_reqs and room_tokens are the engine's; requests that are in the
 * lane but not yet taken count against them here. */
enum wire_refusal link_refuses(struct link *l, const struct wire_request *r)
{
    const struct wire_lane *shared = l->lane.shared;
    uint32_t place = link_tenant_idx(l, r->tenant);
    uint32_t held = place < l->n_tenants ? l->tenants[place].n_held : 0;
    uint32_t n_queued; /* our requests that the engine has not counted yet */
    uint32_t room;
    uint64_t n_tokens;
    bool pushes, has_tokens;

    must(shared != NULL);
    if (l->n_free == 0)
        return WIRE_REFUSED_SLOTS;
    /* A resumed request was admitted once, and a probe must measure and not be refused. */
    if ((r->flags & (WIRE_RESUMED | WIRE_PROBE)) != 0)
        return WIRE_NOT_REFUSED;
    if (!link_share_allows(held, l->n_free))
        return WIRE_REFUSED_TENANT;
    lane_backlog(&l->lane, &n_queued, &n_tokens);
    n_tokens += r->n_tokens;
    room = atomic_load_explicit(&shared->room_reqs, memory_order_relaxed);
    /* An empty queue always takes one request, even one with more tokens than the room. */
    has_tokens = n_queued + atomic_load_explicit(&shared->n_waiting, memory_order_relaxed) == 0 ||
                 n_tokens <= atomic_load_explicit(&shared->room_tokens, memory_order_relaxed);
    if (n_queued < room && has_tokens)
        return WIRE_NOT_REFUSED;
    if (!link_fits(l, r->tenant, n_queued, room, &pushes))
        return WIRE_REFUSED_REQUESTS;
    if (n_queued < room && !has_tokens && !pushes)
        return WIRE_REFUSED_TOKENS;
    return WIRE_NOT_REFUSED;
}

/* The engine adds these to its own refusals. */
void link_count_refused(struct link *l, enum wire_refusal why)
{
    must(l->lane.shared != NULL);
    must(why > WIRE_NOT_REFUSED && why < WIRE_REFUSALS);
    atomic_fetch_add_explicit(&l->lane.shared->refused[why], 1, memory_order_relaxed);
}

/* As link_is_full(), under the lock. */
static int link_full_s(const struct link *l, const char tenant[WIRE_TENANT_BYTES])
{
    int again_s;

    if (!l->attached)
        return -1;
    if (atomic_load_explicit(&l->lane.shared->room_reqs, memory_order_relaxed) > 0 ||
        link_may_push(l, tenant))
        return 0;
    again_s = (int)atomic_load_explicit(&l->lane.shared->retry_after_s, memory_order_relaxed);
    if (again_s < 1)
        return 1;
    return again_s;
}

int link_is_full(struct link *l, const char tenant[WIRE_TENANT_BYTES])
{
    int again_s;

    (void)pthread_mutex_lock(&l->lock);
    again_s = link_full_s(l, tenant);
    (void)pthread_mutex_unlock(&l->lock);
    return again_s;
}

/* For a reader, before it parses a request: when the queue is full the request will be refused
 * anyway, so parsing it would only make the overload worse. Returns the seconds for Retry-After; 0:
 * go on. */
int link_turns_away(struct link *l, const char tenant[WIRE_TENANT_BYTES])
{
    int again_s;

    (void)pthread_mutex_lock(&l->lock);
    again_s = link_full_s(l, tenant);
    if (again_s > 0)
        link_count_refused(l, WIRE_REFUSED_REQUESTS);
    (void)pthread_mutex_unlock(&l->lock);
    if (again_s < 0)
        return 0;
    return again_s;
}

bool link_adapter(struct link *l, uint32_t i, struct wire_adapter_row *out)
{
    bool is_there;

    (void)pthread_mutex_lock(&l->lock);
    is_there = l->page != NULL && wire_adapters_at(&l->page->adapters, i, out);
    (void)pthread_mutex_unlock(&l->lock);
    return is_there;
}

int link_adapter_uses(struct link *l, uint64_t *running, uint64_t *waiting)
{
    int n = 0;

    (void)pthread_mutex_lock(&l->lock);
    if (l->page != NULL) {
        const struct wire_adapters *a = &l->page->adapters;

        n = (int)atomic_load_explicit(&a->n_slots, memory_order_relaxed);
        *running = atomic_load_explicit(&a->running, memory_order_relaxed);
        *waiting = atomic_load_explicit(&a->waiting, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&l->lock);
    return n;
}

bool link_find_adapter(struct link *l, const char *name, size_t len, struct wire_adapter_row *out)
{
    bool is_there;

    (void)pthread_mutex_lock(&l->lock);
    is_there = l->page != NULL && wire_adapters_find(&l->page->adapters, name, len, out);
    (void)pthread_mutex_unlock(&l->lock);
    return is_there;
}

void link_publish(struct link *l)
{
    if (l->unpublished)
        lane_publish(&l->lane);
    l->unpublished = false;
}

/* Take a free slot for a request of a tenant; -1: there is none. */
int64_t link_claim(struct link *l, const char tenant[WIRE_TENANT_BYTES])
{
    uint32_t place = link_tenant_idx(l, tenant);
    uint32_t slot;

    if (l->n_free == 0)
        return -1;
    must(place < l->lane.n_slots);
    slot = l->free_slots[--l->n_free];
    memcpy(l->tenants[place].name, tenant, WIRE_TENANT_BYTES);
    l->tenants[place].n_held++;
    l->tenant_idx[slot] = place;
    l->n_tenants += place == l->n_tenants;
    return (int64_t)slot;
}

/* Return a slot, and the use of its automaton. */
void link_release(struct link *l, uint32_t slot)
{
    must(slot < l->lane.n_slots);
    must(l->tenants[l->tenant_idx[slot]].n_held > 0);
    must(l->n_free < l->lane.n_slots);
    if (l->automaton[slot] != 0)
        uploads_release(&l->uploads, l->automaton[slot] - 1);
    l->automaton[slot] = 0;
    l->tenants[l->tenant_idx[slot]].n_held--;
    l->by_slot[slot] = NULL;
    l->free_slots[l->n_free++] = slot;
}

/* A request has ended with record o. An engine that does not have the request's automaton (it may
 * have dropped it) makes the front upload it again. */
void link_end(struct link *l, uint32_t slot, const struct wire_out *o)
{
    must(slot < l->lane.n_slots);
    if (o->finish == WIRE_FIN_ERROR && o->value == ERR_NO_FORM && l->automaton[slot] != 0)
        uploads_lose(&l->uploads, l->automaton[slot] - 1);
    else if (o->finish == WIRE_FIN_ERROR && o->value == ERR_NO_FORM)
        l->uploads.vocabulary = false; /* a bound of a reasoning needs the vocabulary alone */
    link_release(l, slot);
}

/* The connection's state, for readers. now_us may lie before the engine's time stamps, because both
 * processes write them independently; ages are then 0. */
void link_read_state(struct link *l, struct link_state *out, uint64_t now_us)
{
    (void)pthread_mutex_lock(&l->lock);
    *out = (struct link_state){
        .attached = l->attached,
        .max_model_len = l->engine.max_model_len,
        .n_vocab = l->engine.n_vocab,
    };
    if (l->attached) {
        uint64_t beat = atomic_load(&l->lane.shared->heartbeat_us);
        uint32_t state = atomic_load(&l->lane.shared->engine_state);

        out->draining = state == WIRE_DRAINING;
        out->asleep = state == WIRE_ASLEEP;
        out->waking = state == WIRE_WAKING;
        if (now_us > beat)
            out->heartbeat_age_us = now_us - beat;
        else
            out->heartbeat_age_us = 0;
        beat = atomic_load(&l->lane.shared->progress_us);
        if (now_us > beat)
            out->progress_age_us = now_us - beat;
        else
            out->progress_age_us = 0;
        out->n_running = atomic_load(&l->lane.shared->n_running);
        out->n_waiting = atomic_load(&l->lane.shared->n_waiting);
    }
    (void)pthread_mutex_unlock(&l->lock);
}

/* A front's names are those that the engine gives to its pages. */
int link_n_held(struct link *l, const struct hash *names, int n)
{
    int n_held = 0;

    (void)pthread_mutex_lock(&l->lock);
    while (l->attached && n_held < n && wire_held_has(&l->page->held, names[n_held].bytes))
        n_held++;
    (void)pthread_mutex_unlock(&l->lock);
    return n_held;
}

/* Copy the statistics page, also that of an engine which has ended. False: there never was one. */
bool link_copy_stats(struct link *l, struct wire_stats *out)
{
    bool have;

    (void)pthread_mutex_lock(&l->lock);
    have = l->page != NULL;
    if (have)
        memcpy(out, &l->page->stats, sizeof *out);
    (void)pthread_mutex_unlock(&l->lock);
    return have;
}
