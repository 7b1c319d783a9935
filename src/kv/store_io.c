/* SPDX-License-Identifier: Apache-2.0
 *
 * The store's threads. The I/O thread takes all queued writes as one batch: payloads, fdatasync,
 * one LMDB transaction; then the pages become visible. Reads go before writes, and more threads
 * help with them. Only the I/O thread uses LMDB. */
#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "kv/store_parts.h"

#define STORE_USES_US     60000000u /* between two writes of last uses */
#define STORE_COMPLAIN_US 60000000u /* between two log lines about a failing disk */
#define STORE_TRIES       5         /* to write changes, before they are given up */
#define STORE_TRY_US      20000

/* Log an error of the disk, with errno; at most once per STORE_COMPLAIN_US. */
static void store_complain(struct store *st, const char *what)
{
    uint64_t now = clock_us();

    if (st->complained_us != 0 && now - st->complained_us < STORE_COMPLAIN_US)
        return;
    st->complained_us = now;
    log_warn("store: %s in %s: %s; pages are computed again meanwhile", what, st->options.dir,
             errno == 0 ? "short count" : strerror(errno));
}

/* Read or write a whole slot, header and payload. False with errno; 0 means a short count. */
static bool store_io(struct store *st, struct store_buffer *buffer, bool write)
{
    char *bytes = (char *)buffer->header;
    size_t left = st->format.slot_bytes;
    off_t at = (off_t)buffer->slot * (off_t)st->format.slot_bytes;

    /* Fault points: a test makes the disk fail here. */
    if (write ? FAULT_HIT(store_write) : FAULT_HIT(store_read)) {
        errno = EIO;
        return false;
    }
    while (left > 0) {
        ssize_t n;

        if (write)
            n = pwrite(st->file_fd, bytes, left, at);
        else
            n = pread(st->file_fd, bytes, left, at);
        /* A signal is no error; a short count is continued below. */
        if (n == -1 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? 0 : errno;
            return false;
        }
        bytes += n;
        left -= (size_t)n;
        at += n;
    }
    return true;
}

/* Fill in the header of a buffer that has its payload. */
static void store_seal(struct store *st, struct store_buffer *buffer, uint64_t generation)
{
    struct store_header *header = buffer->header;

    /* Zeros to the end of the block: nothing of an earlier page stays on disk. */
    memset(header, 0, STORE_HEADER_BYTES);
    header->magic = STORE_MAGIC;
    header->version = STORE_VERSION;
    header->n_tokens = (uint32_t)st->options.page_tokens;
    header->generation = generation;
    header->payload_bytes = st->options.page_bytes;
    header->payload_xxh3 =
        hash_xxh3((const char *)header + STORE_HEADER_BYTES, st->options.page_bytes);
    header->name = buffer->name;
    header->parent = buffer->parent;
    header->fingerprint = st->options.namespace_id;
    memcpy(header->tokens, buffer->tokens,
           sizeof *buffer->tokens * (size_t)st->options.page_tokens);
    header->header_xxh3 = hash_xxh3(header, offsetof(struct store_header, header_xxh3));
}

/* Is this page in the batch already? Two records of one page would be harmful: after a restart the
 * engine could take the one whose slot has been reused. */
static bool store_in_batch(const struct store *st, int n_changes, const struct hash *name)
{
    for (int i = 0; i < n_changes; i++) {
        const struct store_change *change = &st->changes[i];

        if (!change->erase && memcmp(&change->record.name, name, sizeof *name) == 0)
            return true;
    }
    return false;
}

/* The page file now reaches to the end of this slot. */
static void store_note_grown(struct store *st, int32_t slot)
{
    uint64_t end = ((uint64_t)slot + 1) * st->format.slot_bytes;

    if (end <= st->file_bytes)
        return;
    st->room_bytes -= (int64_t)(end - st->file_bytes);
    st->file_bytes = end;
}

/* Write one page; its change of the index is appended to the n_changes of the batch. False when
 * there is nothing to commit. */
static bool store_write_one(struct store *st, struct store_buffer *buffer, int n_changes)
{
    struct store_change *change = &st->changes[n_changes];
    uint64_t generation;
    bool known;

    if (store_in_batch(st, n_changes, &buffer->name))
        return false;
    /* A page that is stored already needs no writing, only a new last use and retention. */
    (void)pthread_mutex_lock(&st->lock);
    /* The page may have been dropped while it waited. */
    buffer->slot = buffer->dropped ? -1 : store_find(st, &buffer->name);
    known = buffer->slot != -1;
    if (known) {
        store_touch(st, buffer->slot, false);
        store_retain_slot(st, buffer->slot, buffer->retain);
    } else if (!buffer->dropped) {
        buffer->slot = store_take_slot(st);
    }
    (void)pthread_mutex_unlock(&st->lock);
    /* All slots are being read, or the disk is full: the page is not saved. */
    if (!known && buffer->slot == -1 && !buffer->dropped) {
        errno = ENOSPC;
        store_complain(st, "a page has no place");
    }
    if (known || buffer->slot == -1)
        return false;
    /* A page of the host tier is copied here, by this thread, and not by the engine. */
    if (buffer->source != NULL)
        memcpy((char *)buffer->header + STORE_HEADER_BYTES, buffer->source, st->options.page_bytes);
    generation = st->entries[buffer->slot].record.generation + 1; /* only this thread changes it */
    store_seal(st, buffer, generation);
    /* Applied by store_db_commit() with the rest of the batch. */
    *change = (struct store_change){
        .slot = (uint64_t)buffer->slot,
        .record = {.name = buffer->name,
                   .parent = buffer->parent,
                   .generation = generation,
                   .payload_xxh3 = buffer->header->payload_xxh3,
                   .space = st->space,
                   .n_tokens = (uint32_t)st->options.page_tokens,
                   .created = clock_stamp_s(),
                   .retains = retain_pack(buffer->retain),
                   .root = buffer->root},
    };
    if (store_io(st, buffer, true)) {
        store_note_grown(st, buffer->slot);
        return true;
    }
    store_complain(st, "writing a page failed");
    /* The slot's old record, if there is one, names a page that is overwritten. */
    change->erase = true;
    return true;
}

/* Payloads must be on disk before the index names them. */
static int store_sync(struct store *st, int n_changes)
{
    /* An empty batch needs neither a sync nor a transaction. */
    if (n_changes == 0)
        return ERR_OK;
    if (FAULT_HIT(store_commit) || fdatasync(st->file_fd) == -1) {
        store_complain(st, "syncing pages failed");
        return ERR_IO;
    }
    return store_db_commit(st->db, st->changes, n_changes);
}

/* Wake the engine: the done queue is not empty. */
static void store_tell(struct store *st)
{
    uint64_t one = 1;

    (void)!write(st->event_fd, &one, sizeof one); /* fails only when it is readable already */
}

/* Was the page dropped since its batch began? With the lock held. */
static bool store_was_dropped(const struct store_buffer *list, const struct hash *name)
{
    for (const struct store_buffer *buffer = list; buffer != NULL; buffer = buffer->next) {
        if (buffer->dropped && memcmp(&buffer->name, name, sizeof *name) == 0)
            return true;
    }
    return false;
}

/* Write the whole queue as one batch. Slots were taken from the index before, so they are visible
 * to no reader until the commit is done; if it fails, they are freed again. */
static void store_write_batch(struct store *st, struct store_buffer *list)
{
    bool told = false;
    int n = 0;
    int rc;

    if (st->mode == STORE_WRITING)
        store_measure_room(st);
    for (struct store_buffer *buffer = list; buffer != NULL && st->mode == STORE_WRITING;
         buffer = buffer->next) {
        if (store_write_one(st, buffer, n))
            n++;
    }
    /* Without the lock: the engine goes on while the disk works. */
    rc = store_sync(st, n);
    (void)pthread_mutex_lock(&st->lock);
    for (int i = 0; i < n; i++) {
        const struct store_change *change = &st->changes[i];
        int32_t slot = (int32_t)change->slot;

        /* Also on an error: the slot's content has changed on disk. */
        st->entries[slot].record.generation = change->record.generation;
        if (rc == ERR_OK && !change->erase && store_was_dropped(list, &change->record.name)) {
            store_free_slot(st, slot);
            store_note_changed(st, slot);
        } else if (rc == ERR_OK && !change->erase) {
            store_insert(st, slot, &change->record);
            store_touch(st, slot, false);
            st->counters.written++;
        } else {
            store_free_slot(st, slot);
            st->counters.faults += rc != ERR_OK || change->erase;
        }
    }
    while (list != NULL) {
        struct store_buffer *next = list->next;

        /* Saves with a ticket go to the engine, which is woken below; other buffers become idle. */
        list->writes = false;
        told = told || list->tells;
        store_push(list->tells ? &st->done : &st->idle_buffers, list);
        list = next;
    }
    (void)pthread_mutex_unlock(&st->lock);
    if (told)
        store_tell(st);
}

/* Did the read return the page that was asked for? */
static bool store_verify(const struct store *st, const struct store_buffer *buffer)
{
    const struct store_header *header = buffer->header;
    const struct store_record *record = &st->entries[buffer->slot].record;
    size_t n = (size_t)st->options.page_tokens;

    return store_header_matches(header, record, st->options.page_bytes) &&
           memcmp(header->tokens, buffer->tokens, sizeof *buffer->tokens * n) == 0 &&
           header->payload_xxh3 ==
               hash_xxh3((const char *)header + STORE_HEADER_BYTES, st->options.page_bytes);
}

/* Finish a read; buffer->rc is its result. With the lock held. A page that was dropped meanwhile is
 * freed by its last reader; one that cannot be read or is damaged is removed. */
static void store_end_read(struct store *st, struct store_buffer *buffer)
{
    struct store_entry *entry = &st->entries[buffer->slot];

    /* The reader leaves, whatever it has read. */
    entry->n_readers--;
    if (entry->gone) {
        /* For the engine the page is gone, even if the bytes were read. */
        buffer->rc = ERR_NOT_FOUND;
        entry->gone = entry->n_readers > 0;
        if (!entry->gone)
            store_free_slot(st, buffer->slot);
        return;
    }
    if (buffer->rc == ERR_OK) {
        st->counters.read++;
        buffer->retain = eviction_retained(st->eviction, buffer->slot);
        store_touch(st, buffer->slot, true);
        store_place(st, buffer->slot);
        return;
    }
    st->counters.faults++;
    /* A page that cannot be read is hidden at once; another reader in progress would do it
     * otherwise. */
    if (entry->used && entry->n_readers == 0) {
        store_remove(st, buffer->slot);
        store_free_slot(st, buffer->slot);
    }
    if (buffer->rc == ERR_CORRUPT)
        store_note_changed(st, buffer->slot);
}

/* A read without the lock: the slot cannot be reused while it counts a reader. */
static void store_read_one(struct store *st, struct store_buffer *buffer)
{
    buffer->rc = ERR_OK;
    /* In both cases the engine computes the page, and store_end_read() takes the slot out of the
     * index. */
    if (!store_io(st, buffer, false)) {
        store_complain(st, "reading a page failed");
        buffer->rc = ERR_IO;
    } else if (!store_verify(st, buffer)) {
        log_warn("store: slot %d in %s is damaged; dropped", buffer->slot, st->options.dir);
        buffer->rc = ERR_CORRUPT;
    }
    /* The result is handed over under the lock, and the engine is woken after it, so that it
     * need not wait for the lock. */
    (void)pthread_mutex_lock(&st->lock);
    store_end_read(st, buffer);
    store_push(&st->done, buffer);
    (void)pthread_mutex_unlock(&st->lock);
    store_tell(st);
}

/* Last uses and hit rates are worth a transaction a minute, not one per use: after a crash the
 * eviction order is a minute older, and nothing else is lost.
 *
 * The arrays are copied under the lock and written without it, because a transaction may take long.
 * On an error only the order of eviction suffers. */
void store_write_uses(struct store *st)
{
    size_t n = (size_t)st->n_chunks * STORE_USES;
    int n_rates = -1;

    st->uses_written_us = clock_us();
    if (st->mode != STORE_WRITING)
        return; /* they stay marked */
    (void)pthread_mutex_lock(&st->lock);
    if (st->rates_marked) {
        n_rates = st->n_rates;
        memcpy(st->rates_copy, st->rates, (size_t)n_rates * sizeof *st->rates);
        st->rates_marked = false;
    }
    memcpy(st->uses_copy, st->uses, n * sizeof *st->uses);
    memcpy(st->uses_copy_marked, st->uses_marked, st->n_chunks * sizeof *st->uses_marked);
    memset(st->uses_marked, 0, st->n_chunks * sizeof *st->uses_marked);
    (void)pthread_mutex_unlock(&st->lock);
    if (store_db_write_uses(st->db, st->uses_copy, st->uses_copy_marked, st->n_chunks) != ERR_OK)
        log_warn("store: last uses could not be written: eviction after a restart is less precise");
    if (n_rates >= 0 &&
        (FAULT_HIT(store_note) || store_db_write_rates(st->db, st->rates_copy, n_rates) != ERR_OK))
        log_warn("store: hit rates of the last minute could not be written");
}

/* Wait for work, at most until the next attempt to use the disk or the next write of last uses. */
static void store_wait(struct store *st)
{
    uint64_t us = store_tend_in_us(st);
    struct timespec until;

    if (us > STORE_USES_US)
        us = STORE_USES_US;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)(us / 1000000u);
    until.tv_nsec += (long)(us % 1000000u) * 1000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    (void)pthread_cond_timedwait(&st->work, &st->lock, &until); /* a timeout is not an error */
}

/* Wake store_flush() when nothing is left to do. With the lock held. */
static void store_note_idle(struct store *st)
{
    if (store_is_idle(st))
        (void)pthread_cond_broadcast(&st->idle);
}

/* A zeroed header fails every check of a later engine, so a record that still names the slot does
 * no harm. O_DIRECT needs an aligned buffer. */
void store_scrub(struct store *st, const int32_t *slots, int n)
{
    static const _Alignas(STORE_ALIGN) char zeros[STORE_HEADER_BYTES];

    for (int i = 0; i < n; i++) {
        uint64_t at = (uint64_t)slots[i] * st->format.slot_bytes;

        if (at + sizeof zeros <= st->file_bytes &&
            pwrite(st->file_fd, zeros, sizeof zeros, (off_t)at) != (ssize_t)sizeof zeros)
            store_complain(st, "a dropped page cannot be overwritten");
    }
    if (n > 0 && fdatasync(st->file_fd) == -1)
        store_complain(st, "syncing dropped pages failed");
}

/* Changed records: a drop or a new retention changes the index in memory at once, and notes the
 * slot in st->changed. The I/O thread writes the records of these slots in one transaction, each as
 * it is at that time, so several changes of a slot cost one write.
 *
 * Records that could not be written are tried again, because the next start would undo a drop; but
 * not forever. False when they are given up. With the lock held. */
static bool store_try_again(struct store *st, int n)
{
    /* After several attempts the drops are carried out in the page file instead. */
    if (++st->n_tries == STORE_TRIES) {
        log_warn("store: %d records in %s could not be changed; drops and retention of their pages "
                 "end with this engine",
                 n, st->options.dir);
        st->n_tries = 0;
        return false;
    }
    for (int i = 0; i < n; i++)
        store_note_changed(st, (int32_t)st->changes[i].slot);
    return true;
}

/* Erase the pages whose records could not be erased. */
static void store_scrub_changes(struct store *st, int n)
{
    for (int i = 0; i < n; i++) {
        int32_t slot = (int32_t)st->changes[i].slot;

        if (st->changes[i].erase)
            store_scrub(st, &slot, 1);
    }
}

/* Write the records that changed, and delete those of dropped pages. Without the lock. */
static void store_write_changed(struct store *st)
{
    bool good, given_up = false;
    int n = 0;

    (void)pthread_mutex_lock(&st->lock);
    while (st->n_changed > 0 && n < STORE_CHANGES) {
        int32_t slot = st->changed[--st->n_changed];
        struct store_entry *entry = &st->entries[slot];

        /* From here on a further change puts the slot into the list again. */
        entry->changed = false;
        st->changes[n++] = (struct store_change){
            .erase = !entry->used, .slot = (uint64_t)slot, .record = entry->record};
    }
    st->n_busy++; /* store_is_quiet() must wait for the commit */
    (void)pthread_mutex_unlock(&st->lock);
    good = n == 0 || (!FAULT_HIT(store_note) && store_db_commit(st->db, st->changes, n) == ERR_OK);
    if (!good)
        clock_sleep_us(STORE_TRY_US);
    (void)pthread_mutex_lock(&st->lock);
    if (!good)
        given_up = !store_try_again(st, n);
    else if (n > 0)
        st->n_tries = 0;
    (void)pthread_mutex_unlock(&st->lock);
    if (given_up) /* no other thread uses their slots */
        store_scrub_changes(st, n);
    (void)pthread_mutex_lock(&st->lock);
    st->n_busy--;
    store_note_idle(st);
    (void)pthread_mutex_unlock(&st->lock);
}

/* While the index cannot be written, changes wait; but dropped pages are erased in the page
 * file. */
static void store_scrub_changed(struct store *st)
{
    int32_t slots[64];
    int n = 0;

    (void)pthread_mutex_lock(&st->lock);
    while (st->n_scrubbed < st->n_changed && n < 64) {
        int32_t slot = st->changed[st->n_scrubbed++];

        /* Changed records wait until the index can be written; only dropped pages are erased
         * now. */
        if (st->entries[slot].used || st->entries[slot].scrubbed)
            continue;
        st->entries[slot].scrubbed = true;
        slots[n++] = slot;
    }
    st->n_busy++;
    (void)pthread_mutex_unlock(&st->lock);
    store_scrub(st, slots, n);
    (void)pthread_mutex_lock(&st->lock);
    st->n_busy--;
    store_note_idle(st);
    (void)pthread_mutex_unlock(&st->lock);
}

/* A plain worker: take a read, do it, look again. It ends only when no read is left. */
void *store_run_reader(void *context)
{
    struct store *st = context;

    (void)pthread_mutex_lock(&st->lock);
    for (;;) { /* until the store closes */
        struct store_buffer *buffer = store_pop(&st->reads);

        if (buffer == NULL && st->stop)
            break;
        if (buffer == NULL) {
            (void)pthread_cond_wait(&st->work, &st->lock);
            continue;
        }
        st->n_busy++;
        (void)pthread_mutex_unlock(&st->lock);
        store_read_one(st, buffer);
        (void)pthread_mutex_lock(&st->lock);
        st->n_busy--;
        store_note_idle(st);
    }
    (void)pthread_mutex_unlock(&st->lock);
    return NULL;
}

/* One round: a read, or else a batch of writes; then changes, last uses, and the state of the
 * disk. */
void *store_run(void *context)
{
    struct store *st = context;

    (void)pthread_mutex_lock(&st->lock);
    while (!st->stop || st->reads.first != NULL || st->writes.first != NULL ||
           store_has_changes(st)) {
        struct store_buffer *read = store_pop(&st->reads);
        struct store_buffer *writes = NULL;
        bool works;

        /* Reads first: a sequence waits for each. The whole queue of writes becomes one batch. */
        if (read == NULL) {
            writes = st->writes.first;
            st->writes = (struct store_queue){0};
        }
        works = read != NULL || writes != NULL || store_has_changes(st);
        st->n_busy += works;
        /* Nothing to do: wake store_flush(), then sleep until there is work, or until it is time to
         * try the disk again. */
        if (!works) {
            store_note_idle(st);
            if (st->stop)
                break;
            store_wait(st);
        }
        (void)pthread_mutex_unlock(&st->lock);
        store_tend(st);
        if (st->mode == STORE_WRITING)
            store_write_changed(st);
        else if (st->mode == STORE_READING)
            store_scrub_changed(st);
        if (read != NULL)
            store_read_one(st, read);
        if (writes != NULL)
            store_write_batch(st, writes);
        if (clock_us() - st->uses_written_us > STORE_USES_US)
            store_write_uses(st);
        (void)pthread_mutex_lock(&st->lock);
        st->n_busy -= works;
    }
    store_note_idle(st);
    (void)pthread_mutex_unlock(&st->lock);
    return NULL;
}
