/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of a model: reading, writing and copying them, and the sleep of its devices.
 *
 * A page of the engine is one page on each rank. In host memory the parts of the ranks lie where
 * model_cut_pages() has placed them; so a page has the same bytes whichever thread or process reads
 * it.
 *
 * Where steps are posted (rank.h), a copy into a page waits for the steps that have begun: they may
 * use the page. A copy out need not, because a page that is saved is complete.
 *
 * All functions run on the engine's thread, except model_pin() and model_unpin(). */
#include "base/fault.h"
#include "base/must.h"
#include "model/model_parts.h"

/* --- places of a page ----------------------------------------------------------------------- */

/* The page of a rank in its device's memory. */
static char *model_page_at(const struct model *m, const struct rank *r, int32_t page_id)
{
    must(page_id >= 0 && page_id < m->shape.n_pages);
    return r->pages + (size_t)page_id * r->cache.page_bytes;
}

/* A rank's part of a page in host memory. */
static char *model_part_at(const struct rank *r, void *host)
{
    return (char *)host + r->host_at;
}

static const char *model_const_part_at(const struct rank *r, const void *host)
{
    return (const char *)host + r->host_at;
}

/* Copies that block. They stop at the first rank that fails, because an error of a device ends the
 * engine anyway. */
int model_page_read(struct model *m, int32_t page_id, void *host)
{
    int rc = ERR_OK;

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->fetch(rank->device, model_part_at(rank, host),
                                      model_page_at(m, rank, page_id), rank->cache.page_bytes);
    }
    return rc;
}

int model_page_write(struct model *m, int32_t page_id, const void *host)
{
    int rc = ranks_settle(&m->ranks);

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->upload(rank->device, model_page_at(m, rank, page_id),
                                       model_const_part_at(rank, host), rank->cache.page_bytes);
    }
    return rc;
}

int model_page_copy(struct model *m, int32_t to, int32_t from)
{
    int rc = ranks_settle(&m->ranks);

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->copy_within(rank->device, model_page_at(m, rank, to),
                                            model_page_at(m, rank, from), rank->cache.page_bytes);
    }
    return rc;
}

/* Copies beside the steps go to the copy streams of each rank's device. Marks and tickets of all
 * ranks are combined in rank.c. */
int model_page_in(struct model *m, int32_t page_id, const void *host)
{
    int rc = ranks_settle(&m->ranks);

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->copy_start(rank->device, DEVICE_IN, model_page_at(m, rank, page_id),
                                           model_const_part_at(rank, host), rank->cache.page_bytes);
    }
    return rc;
}

int model_page_out(struct model *m, int32_t page_id, void *host)
{
    int rc = ERR_OK;

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->copy_start(rank->device, DEVICE_OUT, model_part_at(rank, host),
                                           model_page_at(m, rank, page_id), rank->cache.page_bytes);
    }
    return rc;
}

static enum device_way model_device_way(enum model_way way)
{
    return way == MODEL_IN ? DEVICE_IN : DEVICE_OUT;
}

int model_copy_mark(struct model *m, enum model_way way, uint64_t *ticket)
{
    return ranks_copy_mark(&m->ranks, model_device_way(way), ticket);
}

/* The fault points let tests see a copy that never ends, and one that fails. */
int model_copy_done(struct model *m, enum model_way way, uint64_t ticket)
{
    if (FAULT_HIT(copy_stuck))
        return 0;
    if (FAULT_HIT(copy_failed))
        return ERR_GPU;
    return ranks_copy_done(&m->ranks, model_device_way(way), ticket);
}

/* The next step waits on each rank for that rank's copies out. */
int model_copy_fence(struct model *m)
{
    int rc = ERR_OK;

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++)
        rc = m->ranks.at[i].device->ops->copy_fence(m->ranks.at[i].device);
    return rc;
}

/* Pages lose their content; the engine has saved or dropped them before. */
int model_sleep(struct model *m)
{
    must(m->shape.sleeps && m->n_under_way == 0);
    return ranks_sleep(&m->ranks);
}

int model_wake(struct model *m)
{
    must(m->shape.sleeps);
    return ranks_wake(&m->ranks);
}

/* Pinned memory is portable: pinning through rank 0's device serves the others too. */
int model_pin(struct model *m, void *memory, size_t bytes)
{
    return m->device->ops->pin(m->device, memory, bytes);
}

void model_unpin(struct model *m, void *memory)
{
    m->device->ops->unpin(m->device, memory);
}
