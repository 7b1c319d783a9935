/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of the cuda device that can be given back and taken again at the same addresses. Addresses
 * are reserved once; pieces of memory are mapped to them and unmapped. So no pointer changes, nor a
 * recorded step, nor a tensor map in it.
 *
 * There are two regions. Constant (weights, tables) is copied to host memory by the first sleep,
 * and back by each wake; the copy is kept, because the host needs room for it whenever the device
 * sleeps, and so later sleeps copy nothing. Scratch (KV pages, activations) comes back zeroed. The
 * context, work areas and the mirrors of a step's arrays stay while the device sleeps, because a
 * step may take content of a mirror from the previous one.
 *
 * A device that never sleeps allocates by cudaMalloc(), so its speed is not affected.
 *
 * The driver's functions are looked up by name, because quire is not linked with the driver. */
#include "config.h"

#include "device/parts_cuda.h"

#include <cudaTypedefs.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"

#define ALIGN           512                 /* the alignment of cudaMalloc() */
#define SLEEP_PIECE_MAX ((size_t)128 << 20) /* 2.4 ms of copying: a bounded part of a slice */
#define SLEEP_PIECE_MIN ((size_t)32 << 20)  /* small allocations share a piece */
#define HUGE_BYTES      ((size_t)2 << 20)

struct sleep_calls {
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 unreserve;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
};

/* `to` is any positive number. */
static size_t sleep_round_up(size_t bytes, size_t to)
{
    return (bytes + to - 1) / to * to;
}

/* The driver's errors have no text here; the number is in cuda.h. */
static int sleep_check(CUresult r, const char *what)
{
    if (r == CUDA_SUCCESS)
        return ERR_OK;
    log_error("device: %s: the driver's error %d", what, (int)r);
    return ERR_GPU;
}

/* Check a call that takes memory: lack of it is not an error of the device, because other processes
 * may have it. */
static int sleep_taken(CUresult r, const char *what)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY)
        return ERR_NO_MEMORY;
    return sleep_check(r, what);
}

/* --- preparing ---------------------------------------------------------------------------- */

/* Everything that can fail without harm is done at start: looking up functions, and reserving
 * addresses. */

/* Look up a function of the driver. All of those below have had this form since CUDA 10.2. */
static bool sleep_find(const char *name, void *function)
{
    enum cudaDriverEntryPointQueryResult found;
    void *memory = NULL;

    if (cudaGetDriverEntryPointByVersion(name, &memory, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess || memory == NULL) {
        (void)cudaGetLastError(); /* clears CUDA's last error: a missing function is not an error
                                   * of the device */
        log_warn("device: the driver has no %s", name);
        return false;
    }
    memcpy(function, &memory,
           sizeof memory); /* ISO C does not convert data pointers to function pointers */
    return true;
}

/* All are needed: without one of them the device cannot sleep at all. */
static bool sleep_find_all(struct sleep_calls *f)
{
    return sleep_find("cuMemAddressReserve", &f->reserve) &&
           sleep_find("cuMemAddressFree", &f->unreserve) && sleep_find("cuMemCreate", &f->create) &&
           sleep_find("cuMemRelease", &f->release) && sleep_find("cuMemMap", &f->map) &&
           sleep_find("cuMemUnmap", &f->unmap) && sleep_find("cuMemSetAccess", &f->set_access) &&
           sleep_find("cuMemGetAllocationGranularity", &f->granularity);
}

/* Plain device memory of this GPU. */
static CUmemAllocationProp sleep_properties(const struct cuda *c)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = c->ordinal;
    return prop;
}

/* Addresses cost nothing, so each region gets as many as the GPU has memory. */
static int sleep_reserve(const struct sleep_calls *f, struct sleep_region *r, size_t cap)
{
    CUdeviceptr base = 0;

    if (sleep_check(f->reserve(&base, cap, 0, 0, 0), "reserving addresses") != ERR_OK)
        return ERR_GPU;
    r->base = (char *)(uintptr_t)base;
    r->cap = cap;
    return ERR_OK;
}

/* After a failure the device works as if it had never been asked. */
int sleep_prepare(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    struct sleep_state *state = &gpu->sleep;
    struct sleep_calls *calls = mem_zalloc(sizeof *calls);
    const CUmemAllocationProp prop = sleep_properties(gpu);
    size_t free_bytes = 0, total = 0;

    must(state->calls == NULL);
    if (calls == NULL)
        return ERR_NO_MEMORY;
    if (!sleep_find_all(calls) ||
        sleep_check(
            calls->granularity(&state->granularity, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
            "asking for the granularity of memory") != ERR_OK ||
        state->granularity == 0 || SLEEP_PIECE_MIN % state->granularity != 0 ||
        d->ops->free(d, &free_bytes, &total) != ERR_OK)
        goto out;
    total = sleep_round_up(total, SLEEP_PIECE_MAX);
    /* Set first, so that sleep_close() releases the first region if the second fails. */
    state->calls = calls;
    calls = NULL;
    if (sleep_reserve(state->calls, &state->constant, total) == ERR_OK &&
        sleep_reserve(state->calls, &state->scratch, total) == ERR_OK)
        return ERR_OK;
    sleep_close(gpu);
out:
    mem_free(calls);
    log_warn("device: memory cannot be given back for a sleep; it is taken for good");
    return ERR_UNSUPPORTED;
}

/* --- pieces --------------------------------------------------------------------------------- */

/* Memory is created, mapped and made accessible in pieces. A piece keeps its place in the region
 * for good; only its memory comes and goes. */

/* Map memory to a piece's addresses. ERR_NO_MEMORY (not logged): the GPU has none. After an error,
 * pieces with is_mapped must be given back. */
static int sleep_piece_take(struct cuda *c, const struct sleep_region *r, struct sleep_piece *p)
{
    const struct sleep_calls *calls = c->sleep.calls;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)(r->base + p->at);
    const CUmemAllocationProp prop = sleep_properties(c);
    CUmemAccessDesc access = {.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
                              .location = prop.location};
    CUmemGenericAllocationHandle handle = 0;
    int rc;

    must(!p->is_mapped);
    rc = sleep_taken(calls->create(&handle, p->bytes, &prop, 0), "taking memory");
    if (rc != ERR_OK)
        return rc;
    rc = sleep_taken(calls->map(at, p->bytes, 0, handle, 0), "mapping memory");
    if (rc != ERR_OK) {
        (void)calls->release(handle); /* rc has the first error */
        return rc;
    }
    p->handle = handle;
    p->is_mapped = true;
    return sleep_taken(calls->set_access(at, p->bytes, &access, 1), "opening memory for the GPU");
}

/* Both calls are made even if the first fails. */
static int sleep_piece_give(struct cuda *c, const struct sleep_region *r, struct sleep_piece *p)
{
    const struct sleep_calls *calls = c->sleep.calls;
    int rc;

    if (!p->is_mapped)
        return ERR_OK;
    p->is_mapped = false;
    rc = sleep_check(calls->unmap((CUdeviceptr)(uintptr_t)(r->base + p->at), p->bytes),
                     "unmapping memory");
    if (sleep_check(calls->release(p->handle), "giving memory back") != ERR_OK)
        rc = ERR_GPU;
    return rc;
}

/* All pieces are tried; the first error is returned. */
static int sleep_region_give(struct cuda *c, struct sleep_region *r)
{
    int rc = ERR_OK;

    for (int i = 0; i < r->n_pieces; i++) {
        int one = sleep_piece_give(c, r, &r->pieces[i]);

        if (rc == ERR_OK)
            rc = one;
    }
    return rc;
}

/* --- allocating ----------------------------------------------------------------------------- */

/* Append pieces until the first `want` bytes of a region have memory. */
static int sleep_region_grow(struct cuda *c, struct sleep_region *r, size_t want)
{
    while (r->taken < want) {
        struct sleep_piece *piece = &r->pieces[r->n_pieces];
        size_t bytes = sleep_round_up(want - r->taken, c->sleep.granularity);
        int rc;

        if (bytes < SLEEP_PIECE_MIN)
            bytes = SLEEP_PIECE_MIN;
        if (bytes > SLEEP_PIECE_MAX)
            bytes = SLEEP_PIECE_MAX;
        if (r->n_pieces == CUDA_PIECES_MAX || bytes > r->cap - r->taken)
            return ERR_NO_MEMORY;
        *piece = (struct sleep_piece){.at = r->taken, .bytes = bytes};
        rc = sleep_piece_take(c, r, piece);
        r->n_pieces += piece->is_mapped; /* counted even on error, so that it is given back */
        if (rc != ERR_OK)
            return rc;
        r->taken += bytes;
    }
    return ERR_OK;
}

/* Allocations follow one another; memory is never freed singly. */
static void *sleep_region_alloc(struct device *d, struct sleep_region *r, size_t bytes)
{
    struct cuda *gpu = cuda_of(d);
    size_t at = sleep_round_up(r->used, ALIGN);
    int before, rc;

    must(!gpu->sleep.is_asleep);
    if (bytes > r->cap - at || sleep_region_grow(gpu, r, at + bytes) != ERR_OK) {
        log_error("device: no GPU memory for %zu bytes", bytes);
        return NULL;
    }
    r->used = at + bytes;
    d->allocated_bytes += bytes;
    d->sleeping_bytes += bytes;
    before = cuda_enter(gpu);
    rc = cuda_check(cudaMemsetAsync(r->base + at, 0, bytes, gpu->stream), "clearing memory");
    cuda_leave(before);
    if (rc == ERR_OK)
        return r->base + at;
    return NULL;
}

/* Weights and tables. Not after the first sleep, because the copy has a fixed size. */
void *sleep_alloc_constant(struct device *d, size_t bytes)
{
    struct sleep_state *state = &cuda_of(d)->sleep;
    void *memory;

    if (state->calls == NULL)
        return cuda_alloc(d, bytes);
    must(state->copy == NULL); /* the copy would have no room for more */
    memory = sleep_region_alloc(d, &state->constant, bytes);
    if (memory != NULL)
        d->constant_bytes += bytes;
    return memory;
}

/* Pages and activations. */
void *sleep_alloc_scratch(struct device *d, size_t bytes)
{
    struct sleep_state *state = &cuda_of(d)->sleep;

    if (state->calls == NULL)
        return cuda_alloc(d, bytes);
    return sleep_region_alloc(d, &state->scratch, bytes);
}

/* --- falling asleep ------------------------------------------------------------------------- */

/* The copy is made piece by piece in slices of DEVICE_SLICE_US, between which the engine answers
 * its sockets. The GPU's memory is given back only after the copy is complete. */

/* Reserve host addresses for the copy. Their memory comes as pieces are pinned or written. Aligned
 * to huge pages. */
static int sleep_copy_begin(struct sleep_state *s)
{
    size_t room = s->constant.taken + HUGE_BYTES;
    void *memory;

    if (!device_host_has_room(s->constant.taken))
        return ERR_NO_MEMORY;
    memory = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        log_error("device: no host memory for %zu MiB of weights", room >> 20);
        return ERR_NO_MEMORY;
    }
    (void)madvise(memory, room, MADV_HUGEPAGE); /* a hint: pinning huge pages is faster */
    s->copy_map = memory;
    s->copy = (char *)sleep_round_up((uintptr_t)memory, HUGE_BYTES);
    s->copy_room = room;
    s->n_pinned = 0;
    s->n_copied = 0;
    return ERR_OK;
}

/* Pin the host memory of a piece. After one failure no more are tried, so that the pinned pieces
 * are the first n_pinned. Memory that is not pinned is copied too, only slowly. */
static void sleep_copy_pin_next(struct sleep_state *s, const struct sleep_piece *p)
{
    if (s->n_pinned < s->n_copied)
        return; /* an earlier one failed */
    if (cudaHostRegister(s->copy + p->at, p->bytes, cudaHostRegisterPortable) == cudaSuccess) {
        s->n_pinned++;
        return;
    }
    log_warn("device: weights in host memory are not pinned beyond %zu MiB; waking takes longer",
             p->at >> 20);
    (void)cudaGetLastError(); /* clears CUDA's last error */
}

/* The bytes of a piece that belong to allocations. */
static size_t sleep_piece_used(const struct sleep_region *r, const struct sleep_piece *p)
{
    if (r->used - p->at < p->bytes)
        return r->used - p->at;
    return p->bytes;
}

/* Copy pieces of constant memory, out or in, for one slice. Each copy is waited for, because the
 * caller must look at its sockets between slices. */
static int sleep_copy_some(struct cuda *c, enum cudaMemcpyKind kind)
{
    struct sleep_state *state = &c->sleep;
    uint64_t end_us = clock_us() + DEVICE_SLICE_US;
    int rc = ERR_OK;

    while (rc == ERR_OK && state->n_copied < state->constant.n_pieces) {
        const struct sleep_piece *piece = &state->constant.pieces[state->n_copied];
        char *host = state->copy + piece->at, *gpu = state->constant.base + piece->at;
        bool out = kind == cudaMemcpyDeviceToHost;

        if (out)
            sleep_copy_pin_next(state, piece);
        if (piece->at < state->constant.used) /* else no allocation uses it */
            rc = cuda_check(cudaMemcpyAsync(out ? host : gpu, out ? gpu : host,
                                            sleep_piece_used(&state->constant, piece), kind,
                                            c->stream),
                            "copying weights");
        if (rc == ERR_OK)
            rc = cuda_check(cudaStreamSynchronize(c->stream), "copying weights");
        state->n_copied++;
        if (rc == ERR_OK && clock_us() > end_us && state->n_copied < state->constant.n_pieces)
            return ERR_AGAIN;
    }
    return rc;
}

/* Steps and copies must have ended; the synchronisation covers work that only the driver knows. */
int sleep_out(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    struct sleep_state *state = &gpu->sleep;
    int rc = ERR_OK;

    must(state->calls != NULL && !state->is_asleep);
    if (state->copy == NULL)
        rc = sleep_copy_begin(state);
    if (rc == ERR_OK && !state->is_whole)
        rc = sleep_copy_some(gpu, cudaMemcpyDeviceToHost);
    if (rc != ERR_OK)
        return rc;
    state->is_whole = true;
    if (cuda_check(cudaDeviceSynchronize(), "falling asleep") != ERR_OK)
        return ERR_GPU;
    rc = sleep_region_give(gpu, &state->scratch);
    if (rc == ERR_OK)
        rc = sleep_region_give(gpu, &state->constant);
    state->is_asleep = true;
    state->n_copied = 0;
    return rc;
}

/* --- waking --------------------------------------------------------------------------------- */

/* Memory is taken piece by piece, constant first. If it runs out, all of it is given back, so that
 * two processes that wake at once do not block each other. */

/* Take the missing pieces of a region, for one slice. */
static int sleep_region_take(struct cuda *c, struct sleep_region *r)
{
    uint64_t end_us = clock_us() + DEVICE_SLICE_US;

    for (int i = 0; i < r->n_pieces; i++) {
        int rc;

        if (r->pieces[i].is_mapped)
            continue;
        if (clock_us() > end_us)
            return ERR_AGAIN;
        rc = FAULT_HIT(device_wake) ? ERR_NO_MEMORY : sleep_piece_take(c, r, &r->pieces[i]);
        if (rc != ERR_OK)
            return rc;
    }
    return ERR_OK;
}

/* Pages of a GPU's memory may hold another process's data. */
static int sleep_clear_scratch(struct cuda *c)
{
    const struct sleep_region *region = &c->sleep.scratch;
    int rc = region->used == 0
                 ? ERR_OK
                 : cuda_check(cudaMemsetAsync(region->base, 0, region->used, c->stream),
                              "clearing memory");

    if (rc != ERR_OK)
        return rc;
    return cuda_check(cudaStreamSynchronize(c->stream), "clearing memory");
}

/* Repeated until everything is mapped and copied; each call continues where the last one
 * stopped. */
int sleep_in(struct device *d)
{
    struct cuda *gpu = cuda_of(d);
    struct sleep_state *state = &gpu->sleep;
    int rc;

    must(state->calls != NULL);
    if (!state->is_asleep)
        return ERR_OK; /* sleep_out() was not complete */
    rc = sleep_region_take(gpu, &state->constant);
    if (rc == ERR_OK)
        rc = sleep_region_take(gpu, &state->scratch);
    if (rc == ERR_NO_MEMORY) {
        int given = sleep_region_give(gpu, &state->constant);

        if (given == ERR_OK)
            given = sleep_region_give(gpu, &state->scratch);
        if (given == ERR_OK)
            return ERR_NO_MEMORY;
        return given;
    }
    if (rc == ERR_OK)
        rc = sleep_copy_some(gpu, cudaMemcpyHostToDevice);
    if (rc == ERR_OK)
        rc = sleep_clear_scratch(gpu);
    if (rc != ERR_OK)
        return rc;
    state->is_asleep = false;
    return ERR_OK;
}

/* Errors are ignored: the process ends, or the device is not used. */
void sleep_close(struct cuda *c)
{
    struct sleep_state *state = &c->sleep;
    struct sleep_region *regions[] = {&state->constant, &state->scratch};

    if (state->calls == NULL)
        return;
    for (int i = 0; i < 2; i++) {
        (void)sleep_region_give(c, regions[i]);
        if (regions[i]->base != NULL)
            (void)state->calls->unreserve((CUdeviceptr)(uintptr_t)regions[i]->base,
                                          regions[i]->cap);
        regions[i]->base = NULL;
    }
    for (int i = 0; i < state->n_pinned; i++)
        (void)cudaHostUnregister(state->copy + state->constant.pieces[i].at);
    if (state->copy != NULL)
        (void)munmap(state->copy_map, state->copy_room);
    state->copy = NULL;
    mem_free(state->calls);
    state->calls = NULL;
}
