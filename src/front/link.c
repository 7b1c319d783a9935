/* SPDX-License-Identifier: Apache-2.0 */
#include "front/link.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define LINK_RETRY_US   50000 /* a restarted engine is found within this time */
#define LINK_TIMEOUT_MS 2000  /* for the welcome */

int link_init(struct link *l, const char *path)
{
    *l = (struct link){.path = path, .control_fd = -1};
    l->lane.wake_fd = -1;
    return pthread_mutex_init(&l->lock, NULL) == 0 ? ERR_OK : ERR_NO_MEMORY;
}

static int link_slots(struct link *l)
{
    uint32_t n = l->lane.n_slots;

    l->by_slot = mem_zalloc_array(n, sizeof(struct gen *));
    l->free_slots = mem_zalloc_array(n, sizeof *l->free_slots);
    l->automaton = mem_zalloc_array(n, sizeof *l->automaton);
    if (l->by_slot == NULL || l->free_slots == NULL || l->automaton == NULL)
        return ERR_NO_MEMORY;
    for (uint32_t i = 0; i < n; i++)
        l->free_slots[i] = n - 1 - i;
    l->n_free = n;
    return ERR_OK;
}

static const struct wire_stats *link_map_stats(int fd)
{
    const struct wire_stats *s = mmap(NULL, sizeof *s, PROT_READ, MAP_SHARED, fd, 0);

    if (s == MAP_FAILED)
        return NULL;
    if (s->magic != WIRE_MAGIC || s->layout != wire_layout()) {
        (void)munmap((void *)(uintptr_t)s, sizeof *s);
        return NULL;
    }
    return s;
}

static void link_publish(struct link *l, const struct wire_welcome *w,
                         const struct wire_stats *stats)
{
    const struct wire_stats *old;

    (void)pthread_mutex_lock(&l->lock);
    old = l->stats;
    l->stats = stats;
    l->engine = *w;
    l->attached = true;
    (void)pthread_mutex_unlock(&l->lock);
    if (old != NULL)
        (void)munmap((void *)(uintptr_t)old, sizeof *old);
}

/* Everything after the welcome. On error the caller drops what was taken. */
static int link_open(struct link *l, const struct wire_welcome *w, const int *fds)
{
    const struct wire_stats *stats;
    int rc = lane_attach(&l->lane, fds[ATTACH_LANE], w->lane_bytes);

    if (rc != ERR_OK)
        return rc;
    l->lane.wake_fd = l->control_fd;
    rc = link_slots(l);
    if (rc != ERR_OK)
        return rc;
    stats = link_map_stats(fds[ATTACH_STATS]);
    if (stats == NULL)
        return ERR_VERSION;
    link_publish(l, w, stats);
    return ERR_OK;
}

static void link_close(struct link *l)
{
    lane_detach(&l->lane);
    mem_free(l->by_slot);
    l->by_slot = NULL;
    mem_free(l->free_slots);
    l->free_slots = NULL;
    mem_free(l->automaton);
    l->automaton = NULL;
    offers_clear(&l->offers);
    l->n_free = 0;
    if (l->control_fd != -1)
        (void)close(l->control_fd);
    l->control_fd = -1;
}

bool link_try(struct link *l, uint64_t now_us)
{
    struct wire_welcome w;
    int fds[ATTACH_FDS];
    int rc;

    if (l->control_fd != -1 || now_us < l->retry_us)
        return false;
    l->retry_us = now_us + LINK_RETRY_US;
    rc = attach_connect(l->path, LINK_TIMEOUT_MS, &l->control_fd, &w, fds);
    if (rc != ERR_OK) {
        l->control_fd = -1;
        if (rc == ERR_VERSION || rc == ERR_OVERLOADED)
            l->retry_us = now_us + 100 * LINK_RETRY_US; /* said once in a while is enough */
        return false;
    }
    rc = link_open(l, &w, fds);
    (void)close(fds[ATTACH_LANE]);
    (void)close(fds[ATTACH_STATS]);
    if (rc != ERR_OK) {
        log_error("front: the engine's lane cannot be used: %s", err_sentence(rc));
        link_close(l);
        return false;
    }
    log_info("front: attached to the engine, %u slots", l->lane.n_slots);
    return true;
}

void link_lost(struct link *l, uint64_t now_us)
{
    (void)pthread_mutex_lock(&l->lock); /* link_read_state() looks into the lane */
    l->attached = false;
    link_close(l);
    (void)pthread_mutex_unlock(&l->lock);
    l->retry_us = now_us;
    log_warn("front: the engine is gone");
}

int64_t link_claim(struct link *l)
{
    return l->n_free == 0 ? -1 : (int64_t)l->free_slots[--l->n_free];
}

void link_release(struct link *l, uint32_t slot)
{
    must(l->n_free < l->lane.n_slots);
    if (l->automaton[slot] != 0)
        offers_release(&l->offers, l->automaton[slot] - 1);
    l->automaton[slot] = 0;
    l->by_slot[slot] = NULL;
    l->free_slots[l->n_free++] = slot;
}

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

        out->draining = atomic_load(&l->lane.shared->engine_state) == WIRE_DRAINING;
        out->heartbeat_age_us = now_us > beat ? now_us - beat : 0;
    }
    (void)pthread_mutex_unlock(&l->lock);
}

bool link_copy_stats(struct link *l, struct wire_stats *out)
{
    bool have;

    (void)pthread_mutex_lock(&l->lock);
    have = l->stats != NULL;
    if (have)
        memcpy(out, l->stats, sizeof *out);
    (void)pthread_mutex_unlock(&l->lock);
    return have;
}
