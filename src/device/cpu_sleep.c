/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the cpu device that can be given back and taken again at the same addresses.
 *
 * A region is a run of reserved addresses without access rights and without memory, so any use
 * while the device sleeps stops the process. Memory comes by mprotect(): unlike a mapping over an
 * old one, it counts against the process's limits, so a lack of memory is an error here and not a
 * fault at first touch. */
#include "device/cpu_sleep.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/must.h"

#define ALIGN      64
#define COPY_BYTES ((size_t)4 << 20)
#define HUGE_BYTES ((size_t)2 << 20) /* a huge page, on most machines */
#define SPARE_TIMES \
    4 /* reserved addresses, in multiples of the machine's memory: they cost
       * nothing */

/* The system's page, not a KV page. */
static size_t cpu_sleep_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t cpu_sleep_round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* Weights are read from end to end in each step, which takes a third less time where a page of the
 * system has 2 MiB: there are fewer addresses to translate. Systems that do not have them, or have
 * been told not to, do nothing, so the result does not matter. */
void cpu_sleep_advise(void *memory, size_t bytes)
{
    size_t before = (HUGE_BYTES - (uintptr_t)memory % HUGE_BYTES) % HUGE_BYTES;

    if (bytes < before + HUGE_BYTES)
        return;
    (void)madvise((char *)memory + before, (bytes - before) / HUGE_BYTES * HUGE_BYTES,
                  MADV_HUGEPAGE);
}

/* PROT_NONE memory is not counted by the system's overcommit limits. */
static int cpu_region_reserve(struct cpu_region *r, size_t cap)
{
    void *memory = mmap(NULL, cap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return ERR_NO_MEMORY;
    cpu_sleep_advise(memory, cap);
    *r = (struct cpu_region){.base = memory, .cap = cap};
    return ERR_OK;
}

/* The copy of constant memory goes to a memfd, which plays the part of host memory. */
int cpu_sleep_init(struct cpu_sleep *s)
{
    size_t cap = (size_t)sysconf(_SC_PHYS_PAGES) * cpu_sleep_page_bytes() * SPARE_TIMES;

    must(s->constant.base == NULL);
    *s = (struct cpu_sleep){.fd = memfd_create("quire-weights", MFD_CLOEXEC)};
    if (s->fd != -1 && cpu_region_reserve(&s->constant, cap) == ERR_OK &&
        cpu_region_reserve(&s->scratch, cap) == ERR_OK)
        return ERR_OK;
    log_error("device: no addresses for memory that can be given back: %s", strerror(errno));
    cpu_sleep_fini(s);
    return ERR_UNSUPPORTED;
}

/* Also after cpu_sleep_init() failed half-way. */
void cpu_sleep_fini(struct cpu_sleep *s)
{
    if (s->constant.base != NULL)
        (void)munmap(s->constant.base, s->constant.cap); /* errors are ignored at the end */
    if (s->scratch.base != NULL)
        (void)munmap(s->scratch.base, s->scratch.cap);
    if (s->fd != -1)
        (void)close(s->fd);
    *s = (struct cpu_sleep){.fd = -1};
}

/* Access rights are extended page by page as the region grows; fresh pages are zero. */
void *cpu_sleep_alloc(struct cpu_region *r, size_t bytes)
{
    size_t at = cpu_sleep_round_up(r->used, ALIGN), page = cpu_sleep_page_bytes();
    size_t have = cpu_sleep_round_up(r->used, page), want;

    must(r->base != NULL);
    if (bytes > r->cap - at)
        return NULL;
    want = cpu_sleep_round_up(at + bytes, page);
    if (want > have && mprotect(r->base + have, want - have, PROT_READ | PROT_WRITE) != 0)
        return NULL;
    r->used = at + bytes;
    return r->base + at;
}

/* Map fresh pages without rights over the region: its memory goes back at once, its addresses stay
 * reserved. */
static int cpu_region_drop(struct cpu_region *r)
{
    size_t bytes = cpu_sleep_round_up(r->used, cpu_sleep_page_bytes());

    if (bytes == 0 ||
        mmap(r->base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == r->base)
        return ERR_OK;
    log_error("device: memory cannot be given back: %s", strerror(errno));
    return ERR_NO_MEMORY;
}

/* The reverse of cpu_region_drop(); the pages are zero. */
static int cpu_region_take(struct cpu_region *r)
{
    size_t bytes = cpu_sleep_round_up(r->used, cpu_sleep_page_bytes());

    if (bytes > 0 && mprotect(r->base, bytes, PROT_READ | PROT_WRITE) != 0)
        return ERR_NO_MEMORY;
    cpu_sleep_advise(r->base, bytes);
    return ERR_OK;
}

/* Copy constant memory to the memfd or back, for one slice. ERR_AGAIN: more is left. ERR_IO: the
 * copy cannot be written or read. */
static int cpu_sleep_copy(struct cpu_sleep *s, bool out)
{
    uint64_t end_us = clock_us() + DEVICE_SLICE_US;

    while (s->n_copied < s->constant.used) {
        size_t left = s->constant.used - s->n_copied;
        size_t n = left < COPY_BYTES ? left : COPY_BYTES;
        char *memory = s->constant.base + s->n_copied;
        ssize_t did;

        if (out)
            did = pwrite(s->fd, memory, n, (off_t)s->n_copied);
        else
            did = pread(s->fd, memory, n, (off_t)s->n_copied);
        if (did == -1 && errno == EINTR)
            continue;
        if (did <= 0)
            return ERR_IO;
        s->n_copied += (size_t)did;
        if (clock_us() > end_us)
            return ERR_AGAIN;
    }
    return ERR_OK;
}

/* Memory is dropped only after the whole copy has been written, so the device stays usable until
 * then. */
int cpu_sleep_out(struct cpu_sleep *s)
{
    int rc;

    must(s->constant.base != NULL && !s->is_asleep);
    /* Checked once, before the first slice. */
    if (s->n_copied == 0 && !device_host_has_room(s->constant.used))
        return ERR_NO_MEMORY;
    rc = cpu_sleep_copy(s, true);
    if (rc == ERR_IO) {
        log_error("device: weights cannot be copied out: %s", strerror(errno));
        rc = ERR_NO_MEMORY;
    }
    if (rc != ERR_OK || (rc = cpu_region_drop(&s->constant)) != ERR_OK)
        return rc;
    if (cpu_region_drop(&s->scratch) != ERR_OK)
        return ERR_GPU; /* one region is gone and one is not: unusable */
    s->is_asleep = true;
    s->has_memory = false;
    s->n_copied = 0;
    return ERR_OK;
}

/* Take the memory of both regions, or of neither. */
static int cpu_sleep_take(struct cpu_sleep *s)
{
    if (!FAULT_HIT(device_wake) && cpu_region_take(&s->constant) == ERR_OK &&
        cpu_region_take(&s->scratch) == ERR_OK) {
        s->has_memory = true;
        return ERR_OK;
    }
    if (cpu_region_drop(&s->constant) == ERR_OK && cpu_region_drop(&s->scratch) == ERR_OK)
        return ERR_NO_MEMORY;
    return ERR_GPU; /* logged already; the regions are in an unknown state */
}

/* Called repeatedly until all is copied; has_memory marks that the first part is done. */
int cpu_sleep_in(struct cpu_sleep *s)
{
    int rc;

    if (!s->is_asleep)
        return ERR_OK; /* sleep() was not complete */
    if (!s->has_memory && (rc = cpu_sleep_take(s)) != ERR_OK)
        return rc;
    rc = cpu_sleep_copy(s, false);
    if (rc == ERR_IO) {
        log_error("device: weights cannot be copied back: %s", strerror(errno));
        return ERR_GPU;
    }
    if (rc != ERR_OK)
        return rc;
    (void)!ftruncate(s->fd, 0); /* frees the copy's memory; the next sleep writes it again */
    s->is_asleep = false;
    s->n_copied = 0;
    return ERR_OK;
}
