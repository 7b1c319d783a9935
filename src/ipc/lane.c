/* SPDX-License-Identifier: Apache-2.0
 *
 * Both ends of a lane. wire_lane.h has the picture.
 *
 * Memory order of the rings: a producer writes an entry, then stores its index with release; the
 * consumer loads the index with acquire, then reads the entry.
 *
 * Memory order of wake-ups, where both sides write first and read second:
 *
 *   sleeper: sleeping = 1;   look for entries;   none: sleep
 *   waker:   publish entry;  look at sleeping;   set: send a byte
 *
 * All four are sequentially consistent operations, so there is one order of them, in which the
 * later of the two looks comes behind both writes. With weaker ones each side could miss the
 * other's write, and the wake-up would be lost. Fences would do, too, but ThreadSanitizer knows
 * none. */
#include "ipc/lane.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

/* bytes read per call: a peer that floods the socket must not occupy us */
#define LANE_WAKES_MAX 64

/* The layout. Both ends compute it from n_slots and arena_bytes alone, so that the front need not
 * trust offsets in shared memory; lane_attach() only compares the resulting size. Each part begins
 * on a cache line, because its writer differs from its neighbour's. */
static uint64_t lane_align(uint64_t bytes)
{
    return (bytes + WIRE_LINE - 1) & ~(uint64_t)(WIRE_LINE - 1);
}

static uint32_t lane_power_of_two(uint32_t n)
{
    uint32_t p = 1;

    while (p < n)
        p *= 2;
    return p;
}

static struct wire_lane lane_layout(uint32_t n_slots, size_t arena_bytes)
{
    uint32_t queue_cap = lane_power_of_two(n_slots);
    struct wire_lane layout = {
        .magic = WIRE_MAGIC,
        .layout = wire_layout(),
        .n_slots = n_slots,
        .queue_cap = queue_cap,
        .arena_bytes = lane_align(arena_bytes),
    };

    layout.queue_offset = lane_align(sizeof layout);
    layout.slots_offset = lane_align(layout.queue_offset + sizeof(uint32_t) * queue_cap);
    layout.out_offset = layout.slots_offset + sizeof(struct wire_slot) * n_slots;
    layout.arena_offset =
        lane_align(layout.out_offset + sizeof(struct wire_out) * WIRE_OUT_CAP * (uint64_t)n_slots);
    layout.lane_bytes = layout.arena_offset + layout.arena_bytes;
    return layout;
}

/* Fill the view from lane_layout()'s numbers, never from those in the shared page, which the peer
 * can change at any time. */
static int lane_view(struct lane *l, void *base, const struct wire_lane *w)
{
    char *p = base;

    *l = (struct lane){
        .shared = base,
        .queue = (uint32_t *)(void *)(p + w->queue_offset),
        .slots = (struct wire_slot *)(void *)(p + w->slots_offset),
        .out = (struct wire_out *)(void *)(p + w->out_offset),
        .arena = p + w->arena_offset,
        .lane_bytes = w->lane_bytes,
        .arena_bytes = w->arena_bytes,
        .n_slots = w->n_slots,
        .queue_cap = w->queue_cap,
        .wake_fd = -1,
    };
    return ERR_OK;
}

/* A lane's private arrays. The engine allocates nothing after mem_seal(), but fronts attach later:
 * so these are mapped, and returned when the lane ends. */
static void *lane_private(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return NULL;
    return p;
}

/* Making and mapping a lane. The engine creates the memfd when a front attaches, and sends its
 * descriptor; the front maps it. All members before heartbeat_us are written once, before the
 * descriptor is sent. */
static int lane_memfd(size_t bytes)
{
    int fd = memfd_create("quire-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    if (fd == -1)
        return -1;
    /* Without the seals a front could shrink the file, and the engine would die of SIGBUS. */
    if (ftruncate(fd, (off_t)bytes) == -1 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == -1) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

int lane_create(struct lane *l, int *fd, uint32_t n_slots, size_t arena_bytes, uint64_t epoch,
                uint32_t front_pid)
{
    struct wire_lane layout;
    void *base = MAP_FAILED;
    int memfd = -1;

    must(n_slots >= 1);
    must(n_slots <= WIRE_SLOTS_MAX);
    layout = lane_layout(n_slots, arena_bytes);
    *l = (struct lane){.wake_fd = -1};
    if (FAULT_HIT(lane_create))
        memfd = -1;
    else
        memfd = lane_memfd(layout.lane_bytes);
    if (memfd != -1)
        base = mmap(NULL, layout.lane_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (base == MAP_FAILED) {
        log_error("lane: no memory for a lane of %llu bytes: %s; lower lane_slots or "
                  "lane_arena_bytes",
                  (unsigned long long)layout.lane_bytes, strerror(errno));
        if (memfd != -1)
            (void)close(memfd);
        return ERR_NO_MEMORY;
    }
    layout.epoch = epoch;
    layout.engine_pid = (uint32_t)getpid();
    layout.front_pid = front_pid;
    (void)lane_view(l, base, &layout);
    l->out_at = lane_private(sizeof(uint32_t) * n_slots);
    if (l->out_at == NULL) {
        lane_detach(l);
        (void)close(memfd);
        return ERR_NO_MEMORY;
    }
    memcpy(base, &layout, offsetof(struct wire_lane, heartbeat_us)); /* memfds begin as zeros */
    *fd = memfd;
    return ERR_OK;
}

int lane_attach(struct lane *l, int fd, size_t lane_bytes)
{
    struct wire_lane got;
    struct wire_lane layout;
    void *base;

    *l = (struct lane){.wake_fd = -1};
    if (lane_bytes < sizeof got)
        return ERR_CORRUPT;
    base = mmap(NULL, lane_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return ERR_NO_MEMORY;
    memcpy(&got, base, offsetof(struct wire_lane, heartbeat_us));
    if (got.magic != WIRE_MAGIC || got.layout != wire_layout()) {
        log_error("lane: the engine's layout is %016llx, ours is %016llx: quire-engine and "
                  "quire-front are of different builds; install the same version of both",
                  (unsigned long long)got.layout, (unsigned long long)wire_layout());
        (void)munmap(base, lane_bytes);
        return ERR_VERSION;
    }
    /* n_slots and arena_bytes are bounded first, so that lane_layout() cannot overflow. */
    if (got.n_slots < 1 || got.n_slots > WIRE_SLOTS_MAX || got.arena_bytes > lane_bytes) {
        (void)munmap(base, lane_bytes);
        return ERR_CORRUPT;
    }
    layout = lane_layout(got.n_slots, got.arena_bytes);
    if (layout.lane_bytes != lane_bytes) {
        (void)munmap(base, lane_bytes);
        return ERR_CORRUPT;
    }
    (void)lane_view(l, base, &layout);
    l->out_at = lane_private(sizeof(uint32_t) * layout.n_slots);
    l->arena_marks = lane_private(sizeof(uint64_t) * layout.queue_cap);
    if (l->out_at == NULL || l->arena_marks == NULL) {
        lane_detach(l);
        return ERR_NO_MEMORY;
    }
    return ERR_OK;
}

void lane_detach(struct lane *l)
{
    if (l->out_at != NULL)
        (void)munmap(l->out_at, sizeof(uint32_t) * l->n_slots);
    if (l->arena_marks != NULL)
        (void)munmap(l->arena_marks, sizeof(uint64_t) * l->queue_cap);
    if (l->shared != NULL)
        (void)munmap(l->shared, l->lane_bytes);
    *l = (struct lane){.wake_fd = -1};
}

/* Wake-ups. The peer is woken by a byte on the control socket. An eventfd would be shared, and a
 * hostile peer could make it blocking and full; this send never waits. It fails when the peer is
 * gone, which the socket reports anyway, or when the peer has not read earlier bytes: then it is
 * awake. */
static void lane_ring(int wake_fd)
{
    if (wake_fd != -1)
        (void)!send(wake_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Wake the peer if it sleeps, after an entry was published by a sequentially consistent store. The
 * exchange makes sure that only one of several wakers sends a byte. */
static void lane_wake(const struct lane *l, _Atomic uint32_t *sleeping)
{
    if (atomic_load(sleeping) != 0 && atomic_exchange(sleeping, 0) != 0)
        lane_ring(l->wake_fd);
}

int lane_take_wakes(int wake_fd)
{
    char byte;

    for (int i = 0; i < LANE_WAKES_MAX; i++) {
        ssize_t n = recv(wake_fd, &byte, 1, MSG_DONTWAIT);

        if (n == 0 || (n == -1 && errno != EAGAIN && errno != EINTR))
            return ERR_CLIENT_GONE;
        if (n == -1)
            return ERR_OK;
    }
    return ERR_OK; /* the rest is read next time */
}

/* --- engine -------------------------------------------------------------------------------
 *
 * The engine's end: take requests, put records. Every value that a front can write is copied once,
 * then checked; the copy alone is used, because the front may change the original in between.
 * `volatile` keeps the compiler from reading queue[] a second time after the check. */

int lane_take(struct lane *l, uint32_t *slot, struct wire_request *request)
{
    uint32_t tail = atomic_load_explicit(&l->shared->queue_tail, memory_order_acquire);
    uint32_t n = tail - l->queue_at;
    uint32_t lane_slot;

    if (n == 0)
        return 0;
    if (n > l->queue_cap)
        return ERR_CORRUPT;
    lane_slot = ((volatile uint32_t *)l->queue)[l->queue_at & (l->queue_cap - 1)];
    l->queue_at++;
    if (lane_slot >= l->n_slots)
        return ERR_CORRUPT;
    memcpy(request, &l->slots[lane_slot].request, sizeof *request);
    *slot = lane_slot;
    return 1;
}

int lane_tokens(const struct lane *l, const struct wire_request *request, int32_t n_vocab,
                int32_t *tokens)
{
    uint64_t bytes = (uint64_t)request->n_tokens * sizeof *tokens;

    /* The comparison subtracts on the trusted side: offset + bytes could overflow. */
    if (bytes > l->arena_bytes || request->arena_offset > l->arena_bytes - bytes ||
        request->arena_offset % sizeof *tokens != 0)
        return ERR_INVALID;
    memcpy(tokens, l->arena + request->arena_offset, bytes);
    for (uint32_t i = 0; i < request->n_tokens; i++) {
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return ERR_INVALID;
    }
    return ERR_OK;
}

int lane_extra(const struct lane *l, const struct wire_request *request, int32_t *words)
{
    uint64_t at = request->arena_offset + (uint64_t)request->n_tokens * sizeof *words;
    uint64_t bytes = wire_extra(request) * sizeof *words;

    /* lane_tokens() has checked `at`'s two terms, so their sum cannot overflow. */
    if (at > l->arena_bytes || bytes > l->arena_bytes - at)
        return ERR_INVALID;
    memcpy(words, l->arena + at, bytes);
    return ERR_OK;
}

void lane_taken(struct lane *l)
{
    atomic_store_explicit(&l->shared->queue_head, l->queue_at, memory_order_release);
}

int lane_room(const struct lane *l, uint32_t slot)
{
    uint32_t head = atomic_load_explicit(&l->slots[slot].out_head, memory_order_acquire);
    uint32_t used = l->out_at[slot] - head;

    if (used > WIRE_OUT_CAP)
        return ERR_CORRUPT;
    return (int)(WIRE_OUT_CAP - used);
}

void lane_put(struct lane *l, uint32_t slot, struct wire_out record)
{
    uint32_t at = l->out_at[slot]++;

    /* out_at is private: out_tail is for the front alone, and a front that overwrites it cannot
     * lead this store outside the ring. The caller has seen lane_room() > 0. */
    l->out[(size_t)slot * WIRE_OUT_CAP + (at & (WIRE_OUT_CAP - 1))] = record;
    atomic_store_explicit(&l->slots[slot].out_tail, at + 1, memory_order_release);
    atomic_fetch_or(&l->shared->ready[slot / 64], UINT64_C(1) << (slot % 64));
    l->touched = true;
}

void lane_flush(struct lane *l)
{
    if (!l->touched)
        return;
    l->touched = false;
    lane_wake(l, &l->shared->front_sleeping);
}

enum wire_cancel lane_cancelled(const struct lane *l, uint32_t slot)
{
    /* Any unknown value counts as a client that has gone. */
    uint32_t v = atomic_load_explicit(&l->slots[slot].cancel, memory_order_relaxed);

    switch (v) {
    case WIRE_WANTED: return WIRE_WANTED;
    case WIRE_STOP_STRING: return WIRE_STOP_STRING;
    default: return WIRE_CLIENT_GONE;
    }
}

void lane_sleep_begin(struct lane *l)
{
    atomic_store(&l->shared->engine_sleeping, 1);
}

bool lane_has_work(const struct lane *l)
{
    return atomic_load(&l->shared->queue_tail) != l->queue_at;
}

void lane_sleep_end(struct lane *l)
{
    atomic_store(&l->shared->engine_sleeping, 0);
}

/* --- front --------------------------------------------------------------------------------
 *
 * The front's end: submit requests, take records. The arena is a ring of prompts. arena_put and
 * arena_free count bytes ever allocated and freed, so that their difference is the used space; each
 * queue entry remembers arena_put after its prompt (arena_marks). When the engine has taken an
 * entry, everything up to its mark is free. */

/* Free the arena space of all prompts that the engine has taken. */
static void lane_reclaim(struct lane *l)
{
    uint32_t head = atomic_load_explicit(&l->shared->queue_head, memory_order_acquire);

    /* The second condition bounds the loop by our own count, should queue_head be corrupt. */
    while (l->arena_seen != head && l->arena_seen != l->queue_at) {
        l->arena_free = l->arena_marks[l->arena_seen & (l->queue_cap - 1)];
        l->arena_seen++;
    }
    /* When it is empty, begin at its start again. Otherwise a prompt of more than half the arena
     * might fit neither before nor after the place where the last one ended. */
    if (l->arena_seen == l->queue_at) {
        uint64_t past = l->arena_put % l->arena_bytes;

        l->arena_put += past == 0 ? 0 : l->arena_bytes - past;
        l->arena_free = l->arena_put;
    }
}

/* Allocate contiguous space. When the prompt does not fit before the end of the arena, the rest
 * there is skipped and counts as used until this prompt is freed. */
static int lane_arena(struct lane *l, size_t bytes, uint64_t *offset)
{
    uint64_t at = l->arena_put % l->arena_bytes;
    uint64_t skip = bytes > l->arena_bytes - at ? l->arena_bytes - at : 0;

    if (bytes > l->arena_bytes || l->arena_put + skip + bytes - l->arena_free > l->arena_bytes)
        return ERR_AGAIN;
    *offset = (l->arena_put + skip) % l->arena_bytes;
    l->arena_put += skip + bytes;
    return ERR_OK;
}

void lane_backlog(struct lane *l, uint32_t *n_reqs, uint64_t *n_tokens)
{
    lane_reclaim(l);
    *n_reqs = l->queue_at - l->arena_seen;
    if (*n_reqs == 0)
        *n_tokens = 0;
    else
        *n_tokens = (l->arena_put - l->arena_free) / sizeof(int32_t);
}

uint32_t lane_queued(const struct lane *l, uint32_t i)
{
    uint32_t slot = l->queue[(l->arena_seen + i) & (l->queue_cap - 1)];

    must(slot < l->n_slots); /* this side alone writes the queue */
    return slot;
}

/* The entry becomes visible only in lane_publish(): the streamer fills all choices of an answer
 * first, so that the engine sees them in one pass and can share their prefix. */
int lane_submit(struct lane *l, uint32_t slot, struct wire_request request, const int32_t *tokens,
                const int32_t *extra)
{
    size_t token_bytes = sizeof *tokens * (size_t)request.n_tokens;
    size_t extra_bytes = sizeof *extra * (size_t)wire_extra(&request);
    size_t bytes = lane_align(token_bytes + extra_bytes);
    uint32_t at = l->queue_at & (l->queue_cap - 1);

    must(slot < l->n_slots);
    lane_reclaim(l);
    if (l->queue_at - l->arena_seen >= l->queue_cap)
        return ERR_AGAIN;
    if (lane_arena(l, bytes, &request.arena_offset) != ERR_OK)
        return ERR_AGAIN;
    l->arena_marks[at] = l->arena_put;
    memcpy(l->arena + request.arena_offset, tokens, token_bytes);
    if (extra_bytes > 0)
        memcpy(l->arena + request.arena_offset + token_bytes, extra, extra_bytes);
    l->slots[slot].request = request;
    atomic_store_explicit(&l->slots[slot].cancel, WIRE_WANTED, memory_order_relaxed);
    l->queue[at] = slot;
    l->queue_at++;
    return ERR_OK;
}

void lane_publish(struct lane *l)
{
    atomic_store(&l->shared->queue_tail, l->queue_at);
    lane_wake(l, &l->shared->engine_sleeping);
}

bool lane_peek(const struct lane *l, uint32_t slot, struct wire_out *record)
{
    uint32_t tail = atomic_load_explicit(&l->slots[slot].out_tail, memory_order_acquire);
    uint32_t at = l->out_at[slot];

    if (at == tail)
        return false;
    *record = l->out[(size_t)slot * WIRE_OUT_CAP + (at & (WIRE_OUT_CAP - 1))];
    return true;
}

bool lane_record(struct lane *l, uint32_t slot, struct wire_out *record)
{
    uint32_t at = l->out_at[slot];

    if (!lane_peek(l, slot, record))
        return false;
    l->out_at[slot] = at + 1;
    atomic_store_explicit(&l->slots[slot].out_head, at + 1, memory_order_release);
    return true;
}

uint64_t lane_ready(struct lane *l, uint32_t w)
{
    /* A plain load first: it keeps the cache line shared with the engine while nothing is ready. */
    if (atomic_load_explicit(&l->shared->ready[w], memory_order_relaxed) == 0)
        return 0;
    return atomic_exchange_explicit(&l->shared->ready[w], 0, memory_order_acquire);
}

void lane_cancel(struct lane *l, uint32_t slot, enum wire_cancel why)
{
    atomic_store(&l->slots[slot].cancel, (uint32_t)why);
    lane_wake(l, &l->shared->engine_sleeping);
}

bool lane_front_sleep(struct lane *l)
{
    atomic_store(&l->shared->front_sleeping, 1);
    for (uint32_t w = 0; w * 64 < l->n_slots; w++) {
        if (atomic_load(&l->shared->ready[w]) != 0)
            return false;
    }
    return true;
}

void lane_front_awake(struct lane *l)
{
    atomic_store(&l->shared->front_sleeping, 0);
}
