/* SPDX-License-Identifier: Apache-2.0
 *
 * The index in memory. Every slot is free or an entry in the table. The eviction order has only
 * pages that are not being read and that no other stored page continues: a page cannot be used
 * without its parent, so parents are evicted last. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/must.h"
#include "kv/store_parts.h"

int32_t store_find(const struct store *st, const struct hash *name)
{
    return table_find(&st->table, name);
}

/* Idempotent: called whenever one of the three conditions may have changed. */
void store_place(struct store *st, int32_t slot)
{
    const struct store_entry *entry = &st->entries[slot];

    if (entry->used && entry->n_readers == 0 && entry->n_children == 0)
        eviction_add(st->eviction, slot);
    else
        eviction_remove(st->eviction, slot);
}

/* A slot is in `changed` at most once, so the array of n_slots entries cannot overflow. */
void store_note_changed(struct store *st, int32_t slot)
{
    /* Already in the list: only look at it once more. */
    if (st->entries[slot].changed) {
        st->n_scrubbed = 0; /* it may have been skipped while it was a page */
        (void)pthread_cond_broadcast(&st->work);
        return;
    }
    st->entries[slot].changed = true;
    st->changed[st->n_changed++] = slot;
    (void)pthread_cond_broadcast(&st->work); /* some of the threads only read */
}

/* The effective retention may differ from r, because the share of retained pages is limited; only
 * the effective one is recorded. */
void store_retain_slot(struct store *st, int32_t slot, struct retain r)
{
    struct store_entry *entry = &st->entries[slot];
    uint64_t word;

    eviction_tick(st->eviction, clock_stamp_s());
    eviction_retain(st->eviction, slot, r);
    word = retain_pack(eviction_retained(st->eviction, slot));
    /* Nothing changed for the record: the effective retention is as before. */
    if (word == entry->record.retains)
        return;
    entry->record.retains = word;
    store_note_changed(st, slot);
}

/* Last uses are written in chunks once a minute, so a crash loses at most that. */
void store_touch(struct store *st, int32_t slot, bool read)
{
    st->uses[slot].last = clock_stamp_s();
    st->uses[slot].count = read ? st->uses[slot].count + 1 : 0;
    st->uses_marked[slot / STORE_USES] = true;
    eviction_use(st->eviction, slot);
}

/* Count a child at its parent. A page that came before its parent was not counted there, so the
 * count may be 0 already. */
static void store_parent_count(struct store *st, const struct hash *parent, int by)
{
    int32_t p = store_find(st, parent);

    /* The parent may be gone, or may not have counted this child. */
    if (p == -1 || (by < 0 && st->entries[p].n_children == 0))
        return;
    st->entries[p].n_children = (uint32_t)((int)st->entries[p].n_children + by);
    store_place(st, p);
}

/* Make a page visible: it is found from now on. */
void store_insert(struct store *st, int32_t slot, const struct store_record *record)
{
    struct store_entry *entry = &st->entries[slot];

    entry->record = *record;
    entry->used = true;
    entry->scrubbed = false;
    entry->n_children = 0;
    /* First the name, then the eviction order, which looks the parent up. */
    table_add(&st->table, &record->name, slot);
    eviction_begin(st->eviction, slot, store_find(st, &record->parent),
                   retain_unpack(record->retains));
    eviction_use(st->eviction, slot);
    store_place(st, slot);
    store_parent_count(st, &record->parent, 1);
    st->counters.entries += record->space == st->space;
}

/* Hide a page; its slot is in no list afterwards. Its readers finish: store_end_read() sees
 * that the page is gone. */
void store_remove(struct store *st, int32_t slot)
{
    struct store_entry *entry = &st->entries[slot];

    /* Only a visible page can be hidden. */
    must(entry->used);
    table_erase(&st->table, &entry->record.name);
    entry->used = false;
    eviction_end(st->eviction, slot);
    store_parent_count(st, &entry->record.parent, -1);
    st->counters.entries -= entry->record.space == st->space;
}

void store_free_slot(struct store *st, int32_t slot)
{
    st->entries[slot].next = st->free;
    st->free = slot;
}

/* Would a page in this slot make the page file longer than there is room for? */
static bool store_has_no_room(const struct store *st, int32_t slot)
{
    uint64_t end = ((uint64_t)slot + 1) * st->format.slot_bytes;

    /* Room was measured once per batch, and shrinks with each slot that grows the file. */
    return end > st->file_bytes && st->room_bytes < (int64_t)(end - st->file_bytes);
}

/* Free slots are given out from the lowest up, so the file grows only as far as it is used. */
int32_t store_take_slot(struct store *st)
{
    /* A slot beyond the end of the file needs room on the disk; a page in the middle of the file
     * does not. So with a full disk pages are replaced, and the file does not grow. */
    int32_t slot = st->free;

    if (slot != -1 && !store_has_no_room(st, slot)) {
        st->free = st->entries[slot].next;
        return slot;
    }
    eviction_tick(st->eviction, clock_stamp_s());
    slot = eviction_first(st->eviction);
    if (slot != -1)
        store_remove(st, slot);
    return slot;
}

/* Called when nothing is in progress, so no slot is between two states. */
void store_prove_index(const struct store *st)
{
    uint32_t n_used = 0, n_free = 0;
    int n_may_go = 0;

    for (uint32_t i = 0; i < st->n_slots; i++) {
        const struct store_entry *entry = &st->entries[i];

        /* Nothing is in progress, so no used slot has readers or waits for its last one to
         * leave. */
        must(!entry->used || (entry->n_readers == 0 && !entry->gone));
        must(!entry->used || store_find(st, &entry->record.name) == (int32_t)i);
        n_used += entry->used;
        n_may_go += entry->used && entry->n_children == 0;
    }
    must(n_may_go == eviction_count(st->eviction));
    eviction_check(st->eviction);
    /* The free list has each free slot once. The bound ends a list that became a ring. */
    for (int32_t i = st->free; i != -1; i = st->entries[i].next) {
        must(!st->entries[i].used);
        must(++n_free <= st->n_slots);
    }
    /* No slot is lost: each is used or free. */
    must(n_used + n_free == st->n_slots && table_count(&st->table) == n_used);
}

/* --- loading ---------------------------------------------------------------------------------- */

/* State of the scan that fills the index. */
struct store_scan {
    struct store *st;
    uint64_t n_dropped;
};

/* Records that do not fit this store are dropped: of slots beyond max_bytes, of another page size,
 * or of a name that another slot has. */
static void store_scan_one(void *context, uint64_t slot, const struct store_record *record,
                           const struct store_use *use)
{
    struct store_scan *scan = context;
    struct store *st = scan->st;

    if (slot >= st->n_slots || record->n_tokens != (uint32_t)st->options.page_tokens ||
        st->entries[slot].used || store_find(st, &record->name) != -1) {
        scan->n_dropped++;
        return;
    }
    /* The page enters the table only: the eviction order follows when all are known. */
    st->uses[slot] = *use;
    st->entries[slot].record = *record;
    st->entries[slot].used = true;
    table_add(&st->table, &record->name, (int32_t)slot);
}

/* Compare last uses, for qsort_r. Slots of equal time stay in order. A store that was never full is
 * in order already, and this is done only once. */
static int store_by_use(const void *a, const void *b, void *context)
{
    const struct store *st = context;
    const int32_t *x = a;
    const int32_t *y = b;

    if (st->uses[*x].last != st->uses[*y].last)
        return st->uses[*x].last < st->uses[*y].last ? -1 : 1;
    if (*x < *y)
        return -1;
    return *x > *y;
}

/* First all entries into the table, then, by last use, into the eviction order: a parent is in the
 * table by then, whatever the order of the slots. */
int store_load_index(struct store *st)
{
    struct store_scan scan = {.st = st};
    int32_t *order = st->changed; /* nothing has changed yet, so its memory can be used */
    uint64_t n_bad = 0;
    uint32_t n = 0;
    int rc;

    /* `changed` serves as scratch memory below. */
    must(st->n_changed == 0);
    memset(st->entries, 0, st->n_slots * sizeof *st->entries); /* left by a scan that failed */
    table_clear(&st->table);
    rc = store_db_scan(st->db, store_scan_one, &scan, &n_bad);
    if (rc != ERR_OK)
        return rc;
    st->free = -1;
    st->counters.entries = 0;
    /* From the end, so that the lowest slots are first in the list of free ones. */
    for (uint32_t i = st->n_slots; i-- > 0;) {
        if (!st->entries[i].used)
            store_free_slot(st, (int32_t)i);
    }
    for (uint32_t i = 0; i < st->n_slots; i++) {
        if (st->entries[i].used)
            order[n++] = (int32_t)i;
    }
    qsort_r(order, n, sizeof *order, store_by_use, st);
    eviction_tick(st->eviction, clock_stamp_s()); /* retention that has ended takes no room */
    for (uint32_t i = 0; i < n; i++) {
        const struct store_record *record = &st->entries[order[i]].record;

        eviction_begin(st->eviction, order[i], store_find(st, &record->parent),
                       retain_unpack(record->retains));
        eviction_use(st->eviction, order[i]);
        store_place(st, order[i]);
        store_parent_count(st, &record->parent, 1);
        st->counters.entries += record->space == st->space;
    }
    log_info("store: %s holds %u pages, %llu of this model; %llu index entries were dropped",
             st->options.dir, n, (unsigned long long)st->counters.entries,
             (unsigned long long)(n_bad + scan.n_dropped));
    return ERR_OK;
}
