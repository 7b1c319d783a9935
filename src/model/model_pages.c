/* SPDX-License-Identifier: Apache-2.0
 *
 * Pages of a model: their number, reading, writing and copying them, and the sleep of its devices.
 *
 * A page of the engine is one page on each rank. In host memory the parts of the ranks lie where
 * model_cut_pages() has placed them; so a page has the same bytes whichever thread or process reads
 * it.
 *
 * Where steps are posted (rank.h), a copy into a page waits for the steps that have begun: they may
 * use the page. A copy out need not, because a page that is saved is complete.
 *
 * All functions run on the engine's thread, except model_pin() and model_unpin(). */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"
#include "model/model_parts.h"

#define PAGES_MAX 16777216 /* as num_pages allows */

/* --- how many -------------------------------------------------------------------------------- */

/* The bytes that a rank's GPU has left for pages: its share by gpu_memory_utilization, less the
 * memory in use, that of other processes included. */
static int model_rank_budget(struct device *d, double utilization, size_t *out)
{
    size_t free_bytes = 0, total_bytes = 0, used, allowed;
    int rc = d->ops->free(d, &free_bytes, &total_bytes);

    if (rc != ERR_OK)
        return rc;
    /* The setting is a share of the whole GPU, as in vLLM. */
    used = total_bytes - free_bytes;
    allowed = (size_t)((double)total_bytes * utilization);
    *out = allowed > used ? allowed - used : 0;
    return ERR_OK;
}

/* The number of KV pages that the memory holds. Every page has a part on each GPU, so the GPU with
 * the least room for its parts decides. */
static int model_pages_that_fit(struct model *m, const struct model_options *o, size_t *out)
{
    size_t least = SIZE_MAX;

    if (!m->device->is_gpu) {
        *out = o->cpu_kv_bytes / (m->shape.page_bytes + o->beside_bytes);
        return ERR_OK;
    }
    for (int i = 0; i < m->ranks.n; i++) {
        const struct rank *rank = &m->ranks.at[i];
        size_t bytes;
        int rc = model_rank_budget(rank->device, o->gpu_memory_utilization, &bytes);

        if (rc != ERR_OK)
            return rc;
        if (rank->cache.page_bytes > 0 &&
            bytes / (rank->cache.page_bytes + o->beside_bytes) < least)
            least = bytes / (rank->cache.page_bytes + o->beside_bytes);
    }
    *out = least;
    return ERR_OK;
}

/* The setting to name in a message on too few pages. */
static const char *model_pages_setting(const struct model *m, const struct model_options *o)
{
    if (o->num_pages > 0)
        return "num_pages";
    if (m->device->is_gpu)
        return "gpu_memory_utilization";
    return "cpu_kv_bytes";
}

/* Lower *n to the pages for which models_memory has room beside weights and work areas.
 * ERR_LIMIT (logged): it has none for as many as were asked for, or for any. */
static int model_bound_pages(const struct model *m, const struct model_options *o, size_t *n)
{
    size_t taken = ranks_allocated_bytes(&m->ranks), room;

    if (o->bytes_max == 0)
        return ERR_OK;
    room = taken < o->bytes_max ? o->bytes_max - taken : 0;
    room /= m->shape.page_bytes + o->beside_bytes;
    if (room >= *n)
        return ERR_OK;
    if (room > 0 && o->num_pages == 0) {
        *n = room;
        return ERR_OK;
    }
    log_error("model: weights and work areas take %zu bytes and a page %zu: models_memory leaves "
              "%zu for this model; raise it",
              taken, m->shape.page_bytes + o->beside_bytes, o->bytes_max);
    return ERR_LIMIT;
}

int model_choose_pages(struct model *m, const struct model_options *o)
{
    struct model_shape *shape = &m->shape;
    size_t n = 0;
    int rc = model_pages_that_fit(m, o, &n), len;

    if (rc == ERR_OK && o->num_pages > 0)
        n = (size_t)o->num_pages;
    if (rc == ERR_OK)
        rc = model_bound_pages(m, o, &n);
    if (rc != ERR_OK)
        return rc;
    if (n > PAGES_MAX)
        n = PAGES_MAX;
    len = cache_tokens(&m->cache, (int)n, shape->max_model_len);
    if (len == 0 || (len < shape->max_model_len && o->max_model_len > 0)) {
        log_error("model: KV memory holds a text of %d tokens (%zu pages), max_model_len is %d; "
                  "lower max_model_len or give more memory (%s)",
                  len, n, shape->max_model_len, model_pages_setting(m, o));
        return ERR_NO_MEMORY;
    }
    shape->n_pages = (int)n;
    if (len < shape->max_model_len) {
        log_warn("model: KV memory holds a text of %d tokens (%zu pages), the model could take %d: "
                 "max_model_len is %d; raise %s for more",
                 len, n, shape->max_model_len, len, model_pages_setting(m, o));
        shape->max_model_len = len;
    }
    return ERR_OK;
}

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

/* The other node's parts of a page in host memory. */
static int model_far_pieces(const struct model *m, char *host, struct node_piece *pieces)
{
    for (int i = 0; i < m->n_far; i++)
        pieces[i] = (struct node_piece){host + m->far[i].at, m->far[i].bytes};
    return m->n_far;
}

/* Node 0: have node 1 send its parts to host memory. */
static int model_ask_page(struct model *m, int32_t page_id, void *host)
{
    struct node_piece pieces[RANKS_MAX];
    int n = model_far_pieces(m, host, pieces);

    _Static_assert(RANKS_MAX <= NODE_PIECES_MAX, "a piece for each rank");
    return node_ask_page(m->node, page_id, pieces, n);
}

/* Node 0: send node 1 its parts. */
static int model_send_page(struct model *m, int32_t page_id, const void *host)
{
    struct node_piece pieces[RANKS_MAX];
    char *bytes;
    int n;

    memcpy(&bytes, &host, sizeof bytes); /* removes const; pieces are only read */
    n = model_far_pieces(m, bytes, pieces);
    return node_order(m->node, (struct node_message){.order = NODE_PAGE_IN, .page = page_id},
                      pieces, n);
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
    if (rc == ERR_OK && m->node != NULL && (rc = model_ask_page(m, page_id, host)) == ERR_OK)
        rc = node_await_pages(m->node, node_n_asked(m->node));
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
    if (rc == ERR_OK && m->node != NULL)
        rc = model_send_page(m, page_id, host);
    return rc;
}

static int model_page_copy_own(struct model *m, int32_t to, int32_t from)
{
    int rc = ranks_settle(&m->ranks);

    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->copy_within(rank->device, model_page_at(m, rank, to),
                                            model_page_at(m, rank, from), rank->cache.page_bytes);
    }
    return rc;
}

int model_page_copy(struct model *m, int32_t to, int32_t from)
{
    const struct node_message order = {.order = NODE_PAGE_COPY, .page = to, .from = from};
    int rc = model_page_copy_own(m, to, from);

    if (rc == ERR_OK && m->node != NULL)
        rc = node_order(m->node, order, NULL, 0);
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
    if (rc == ERR_OK && m->node != NULL)
        rc = model_send_page(m, page_id, host);
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
    if (rc == ERR_OK && m->node != NULL)
        rc = model_ask_page(m, page_id, host);
    return rc;
}

static enum device_way model_device_way(enum model_way way)
{
    return way == MODEL_IN ? DEVICE_IN : DEVICE_OUT;
}

int model_copy_mark(struct model *m, enum model_way way, uint64_t *ticket)
{
    int rc = ranks_copy_mark(&m->ranks, model_device_way(way), ticket);

    if (rc == ERR_OK && m->node != NULL && way == MODEL_OUT)
        m->asked_at[*ticket % DEVICE_MARKS_MAX] = node_n_asked(m->node);
    return rc;
}

/* The fault points let tests see a copy that never ends, and one that fails. */
int model_copy_done(struct model *m, enum model_way way, uint64_t ticket)
{
    if (FAULT_HIT(copy_stuck))
        return 0;
    if (FAULT_HIT(copy_failed))
        return ERR_GPU;
    if (m->node != NULL && node_is_lost(m->node))
        return ERR_GPU;
    if (m->node != NULL && way == MODEL_OUT &&
        node_n_pages(m->node) < m->asked_at[ticket % DEVICE_MARKS_MAX])
        return 0;
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

/* Do all slices of a sleep or a waking at once. */
static int model_slice_through(struct model *m, int (*slice)(struct ranks *r))
{
    int rc;

    do /* ends: each slice does some of the work */
        rc = slice(&m->ranks);
    while (rc == ERR_AGAIN);
    return rc;
}

/* After this node's ranks have slept or woken, the other node's do, while the caller waits: from
 * here on there is no way back but by `undo`. ERR_NO_MEMORY: the other node had no room, and this
 * node's ranks are as they were before. */
static int model_far_sleep(struct model *m, enum node_order order, int (*undo)(struct ranks *r))
{
    int32_t far = ERR_OK;
    int rc = node_ask(m->node, order, &far);

    if (rc != ERR_OK || far == ERR_OK)
        return rc;
    if (far == ERR_NO_MEMORY && model_slice_through(m, undo) == ERR_OK)
        return ERR_NO_MEMORY;
    return ERR_GPU;
}

/* Pages lose their content; the engine has saved or dropped them before. */
int model_sleep(struct model *m)
{
    int rc;

    must(m->shape.sleeps && m->n_under_way == 0);
    rc = ranks_sleep(&m->ranks);
    if (rc != ERR_OK || m->node == NULL)
        return rc;
    return model_far_sleep(m, NODE_SLEEP, ranks_wake);
}

int model_wake(struct model *m)
{
    int rc;

    must(m->shape.sleeps);
    rc = ranks_wake(&m->ranks);
    if (rc != ERR_OK || m->node == NULL)
        return rc;
    return model_far_sleep(m, NODE_WAKE, ranks_sleep);
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

/* --- node 1 ------------------------------------------------------------------------------ */

/* Its ranks' parts follow one another in own_page. A page that is asked for is complete, so no step
 * has to be waited for; device->fetch() does not. */
int model_follow_page_out(struct model *m, const struct node_message *order)
{
    char *to = m->own_page;
    int rc = ERR_OK;

    if (order->page < 0 || order->page >= m->shape.n_pages)
        return ERR_GPU;
    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->fetch(rank->device, to, model_page_at(m, rank, order->page),
                                      rank->cache.page_bytes);
        to += rank->cache.page_bytes;
    }
    if (rc != ERR_OK)
        return rc;
    return node_answer(m->node, m->own_page, m->own_page_bytes);
}

int model_follow_page_in(struct model *m, const struct node_message *order)
{
    const char *from = m->own_page;
    int rc;

    if (order->page < 0 || order->page >= m->shape.n_pages || order->bytes != m->own_page_bytes)
        return ERR_GPU;
    if ((rc = node_take_bytes(m->node, m->own_page, m->own_page_bytes)) == ERR_OK)
        rc = ranks_settle(&m->ranks);
    for (int i = 0; i < m->ranks.n && rc == ERR_OK; i++) {
        const struct rank *rank = &m->ranks.at[i];

        rc = rank->device->ops->upload(rank->device, model_page_at(m, rank, order->page), from,
                                       rank->cache.page_bytes);
        from += rank->cache.page_bytes;
    }
    return rc;
}

int model_follow_page_copy(struct model *m, const struct node_message *order)
{
    int n = m->shape.n_pages;

    if (order->page < 0 || order->page >= n || order->from < 0 || order->from >= n)
        return ERR_GPU;
    return model_page_copy_own(m, order->page, order->from);
}

int model_follow_sleep(struct model *m, const struct node_message *order)
{
    bool sleeps = order->order == NODE_SLEEP;
    int32_t answer;

    if (!m->shape.sleeps || ranks_settle(&m->ranks) != ERR_OK)
        return ERR_GPU;
    answer = model_slice_through(m, sleeps ? ranks_sleep : ranks_wake);
    return node_answer(m->node, &answer, sizeof answer);
}

/* --- adapters --------------------------------------------------------------------------- */

/* Rank 0 has noted all matrices, also those of other stages. */
int model_adapter_check(const struct model *m, const struct adapter *a, char *why, size_t why_cap)
{
    return adapters_check(m->ranks.at[0].weights.adapters, a, why, why_cap);
}

int model_adapter_pack(const struct model *m, struct adapter *a)
{
    int rc = ERR_OK;

    for (int i = 0; i < m->ranks.n && m->device->is_gpu && rc == ERR_OK; i++)
        rc = adapters_pack(m->ranks.at[i].weights.adapters, a, i);
    return rc;
}

/* An adapter and its slot, for all ranks. */
struct placing {
    const struct adapter *adapter; /* NULL: noise of this rank */
    int slot, rank;
};

static int model_place_adapter(struct rank *r, void *context)
{
    const struct placing *placing = context;

    if (placing->adapter == NULL)
        return adapters_place_noise(r->weights.adapters, r->device, placing->slot, placing->rank);
    return adapters_place(r->weights.adapters, r->device, placing->slot, placing->adapter, r->idx);
}

/* Workers may still run a step that reads the table of slots. */
int model_adapter_place(struct model *m, int slot, const struct adapter *a)
{
    struct placing placing = {a, slot, 0};
    int rc = ranks_settle(&m->ranks);

    if (rc == ERR_OK)
        rc = rank_run(&m->ranks, model_place_adapter, &placing);
    return rc == ERR_OK ? ERR_OK : ERR_GPU;
}

int model_adapter_place_noise(struct model *m, int slot, int rank)
{
    struct placing placing = {NULL, slot, rank};
    int rc = ranks_settle(&m->ranks);

    if (rc == ERR_OK)
        rc = rank_run(&m->ranks, model_place_adapter, &placing);
    return rc == ERR_OK ? ERR_OK : ERR_GPU;
}
