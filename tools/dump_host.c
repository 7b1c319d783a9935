/* SPDX-License-Identifier: Apache-2.0
 *
 * lmdb-dump --host: print the pages of the host tier's file (kv/host.h). The engine may be writing
 * to it meanwhile, so a slot is checked again after it was read, and skipped when it has
 * changed.
 *
 *   the file: struct host_file, slots [n_slots], then from payloads_at on payloads [n_slots] */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "kv/host.h"
#include "tools/dump.h"

/* The mapped file, and the totals of the dump. */
struct tier {
    const struct dump_wishes *wishes;
    const char *map;
    size_t bytes;
    const struct host_file *file;
    const struct host_slot *slots;
    struct dump_roots roots;
    uint64_t n_pages, n_shown, n_damaged, n_changing;
};

/* A slot whose state is HOST_HOLDS has a complete page. */
static bool host_holds(const struct host_slot *s)
{
    return atomic_load_explicit(&s->state, memory_order_acquire) == HOST_HOLDS;
}

/* The damaged part of a page, or NULL. Without --verify only the header's digest is checked. */
static const char *host_damage(const struct tier *t, uint32_t slot)
{
    const struct host_slot *slot_head = &t->slots[slot];

    if (slot_head->n_tokens != t->file->page_tokens ||
        slot_head->slot_xxh3 != host_slot_digest(slot_head))
        return "header";
    /* The payload is read while the engine may replace it; host_look() finds that out. */
    if (t->wishes->verify && slot_head->payload_xxh3 != hash_xxh3(t->map + t->file->payloads_at +
                                                                      slot * t->file->payload_bytes,
                                                                  t->file->page_bytes))
        return "payload";
    return NULL;
}

/* The retention of a slot, as of now. */
static struct retain host_retained(const struct host_slot *s)
{
    uint64_t word = atomic_load_explicit(&s->retains, memory_order_relaxed);

    return retain_now(retain_unpack(word), (uint32_t)time(NULL));
}

/* Print one page, as JSON or as a row of the table. "used" is a counter of the engine's, not a
 * time: a higher value means a later use. */
static void host_show(struct tier *t, uint32_t slot, const char *damage)
{
    const struct host_slot *slot_head = &t->slots[slot];
    char name[2 * HASH_BYTES + 1], parent[2 * HASH_BYTES + 1], kept[48];
    struct retain retain = host_retained(slot_head);

    dump_retain(retain, kept);
    hash_hex(slot_head->name.bytes, HASH_BYTES, name);
    hash_hex(slot_head->parent.bytes, HASH_BYTES, parent);
    if (t->wishes->json)
        printf("%s{\"slot\":%u,\"name\":\"%s\",\"parent\":\"%s\",\"tokens\":%u,"
               "\"tier\":\"host\",\"bytes\":%llu,\"used\":%llu,\"priority\":%d,\"until\":%u,"
               "\"damage\":%s%s%s}",
               t->n_shown == 0 ? "" : ",\n", slot, name, parent, slot_head->n_tokens,
               (unsigned long long)t->file->page_bytes, (unsigned long long)slot_head->used,
               retain_priority(retain), retain.until, damage == NULL ? "null" : "\"",
               damage == NULL ? "" : damage, damage == NULL ? "" : "\"");
    else
        printf("%8u  %.16s  %.16s  %6u  host  %10llu  %10llu  %-24s %s\n", slot, name, parent,
               slot_head->n_tokens, (unsigned long long)t->file->page_bytes,
               (unsigned long long)slot_head->used, kept, damage == NULL ? "" : damage);
    t->n_shown++;
}

/* Filter, check and print the page of one slot. The engine may change a slot at any time and no
 * lock protects the reader, so the slot is looked at again after its check. */
static void host_look(struct tier *t, uint32_t slot)
{
    const struct dump_wishes *wishes = t->wishes;
    char name[2 * HASH_BYTES + 1];
    const char *damage;

    if (!host_holds(&t->slots[slot]))
        return;
    hash_hex(t->slots[slot].name.bytes, HASH_BYTES, name);
    if (wishes->name != NULL && strncmp(name, wishes->name, strlen(wishes->name)) != 0)
        return;
    damage = host_damage(t, slot);
    if (!host_holds(&t->slots[slot])) { /* the engine has changed it in the meantime */
        t->n_changing++;
        return;
    }
    t->n_pages++;
    dump_count(&t->roots, t->slots[slot].space, host_retained(&t->slots[slot]), 0);
    t->n_damaged += damage != NULL;
    if (!wishes->summary && (wishes->limit == 0 || t->n_shown < wishes->limit))
        host_show(t, slot, damage);
}

/* Map the file and check its head. Returns -1 after an error message. */
static int host_map(struct tier *t, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    struct stat st;
    void *map = MAP_FAILED;

    if (fd != -1 && fstat(fd, &st) == 0 && st.st_size >= (off_t)sizeof *t->file)
        map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (fd != -1)
        (void)close(fd);
    if (map == MAP_FAILED) {
        (void)fprintf(stderr, "lmdb-dump: %s: %s\n", path,
                      errno == 0 ? "this is not a host tier's file" : strerror(errno));
        return -1;
    }
    t->map = map;
    t->bytes = (size_t)st.st_size;
    t->file = map;
    t->slots = (const struct host_slot *)(const void *)(t->map + sizeof *t->file);
    /* All sizes come from a file that any process of the engine's user could have written: check
     * that the slots and payloads lie inside the mapping before using them. */
    if (t->file->magic == HOST_MAGIC && t->file->version == HOST_VERSION && t->file->n_slots > 0 &&
        t->file->page_tokens <= HOST_TOKENS_MAX && t->file->page_bytes <= t->file->payload_bytes &&
        t->file->payloads_at >= sizeof *t->file + t->file->n_slots * sizeof *t->slots &&
        t->file->payloads_at <= t->bytes &&
        t->file->payload_bytes <= (t->bytes - t->file->payloads_at) / t->file->n_slots)
        return 0;
    (void)fprintf(stderr, "lmdb-dump: %s: not a host tier's file of this version\n", path);
    return -1;
}

/* The last lines, or in JSON the members after the list of pages. */
static void host_totals(const struct tier *t)
{
    const struct host_file *file = t->file;
    char hex[2 * HASH_BYTES + 1];

    hash_hex(file->fingerprint.bytes, HASH_BYTES, hex);
    if (t->wishes->json)
        printf("],\n");
    dump_print_roots(&t->roots, t->wishes->json);
    if (t->wishes->json)
        printf("\"pages\":%llu,\"slots\":%u,\"tokens\":%llu,\"bytes\":%llu,\"damaged\":%llu,"
               "\"fingerprint\":\"%s\"}\n",
               (unsigned long long)t->n_pages, file->n_slots,
               (unsigned long long)(t->n_pages * file->page_tokens),
               (unsigned long long)(t->n_pages * file->page_bytes),
               (unsigned long long)t->n_damaged, hex);
    else
        printf(
            "\n%llu pages of %u tokens in %u slots, %.1f MiB of payload; model %.16s %.63s; %llu "
            "damaged%s\n",
            (unsigned long long)t->n_pages, file->page_tokens, file->n_slots,
            (double)(t->n_pages * file->page_bytes) / 1048576.0, hex, file->name,
            (unsigned long long)t->n_damaged, t->wishes->verify ? "" : " (only headers checked)");
}

int dump_host(const char *path, const struct dump_wishes *wishes)
{
    struct tier tier = {.wishes = wishes};

    errno = 0;
    if (host_map(&tier, path) != 0)
        return 2;
    if (wishes->json)
        printf("{\"tier\":\"host\",\"page_tokens\":%u,\"page_bytes\":%llu,\"entries\":[\n",
               tier.file->page_tokens, (unsigned long long)tier.file->page_bytes);
    else if (!wishes->summary)
        printf("%8s  %-16s  %-16s  %6s  tier  %10s  %10s  retained\n", "slot", "name", "parent",
               "tokens", "bytes", "used");
    for (uint32_t i = 0; i < tier.file->n_slots; i++)
        host_look(&tier, i);
    host_totals(&tier);
    (void)munmap((void *)(uintptr_t)tier.map, tier.bytes);
    if (tier.n_damaged > 0)
        return 3;
    return 0;
}
