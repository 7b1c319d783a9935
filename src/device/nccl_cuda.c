/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL, loaded at run time. Its functions are looked up by name once; their types come from
 * nccl.h, so a build without that header has no NCCL. */
#include "config.h"

#include "device/nccl_cuda.h"

#include "base/log.h"

#ifdef HAVE_NCCL

#include <assert.h>
#include <dlfcn.h>
#include <nccl.h>
#include <string.h>

#include "base/mem.h"
#include "base/must.h"

#define LIBRARY "libnccl.so.2"

/* The functions that are used, with their types. */
#define FUNCTIONS(F)         \
    F(ncclGetVersion)        \
    F(ncclCommInitAll)       \
    F(ncclGetUniqueId)       \
    F(ncclCommInitRank)      \
    F(ncclCommDestroy)       \
    F(ncclCommAbort)         \
    F(ncclCommGetAsyncError) \
    F(ncclGetErrorString)    \
    F(ncclAllReduce)         \
    F(ncclSend)              \
    F(ncclRecv)              \
    F(ncclGroupStart)        \
    F(ncclGroupEnd)

struct nccl {
    void *library;
#define F(name) __typeof__(&name) name;
    FUNCTIONS(F)
#undef F
    int n;
    int peer;                      /* of a pair: the number of the other process */
    ncclComm_t comms[K_RANKS_MAX]; /* NULL: aborted */
};

/* --- opening ---------------------------------------------------------------------------- */

/* dlsym() returns a data pointer, which POSIX allows to be converted to a function. */
static int nccl_load(struct nccl *n)
{
    n->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL) {
        log_warn("device: NCCL cannot be loaded: %s", dlerror());
        return ERR_UNSUPPORTED;
    }
#define F(name)                                                                          \
    if ((*(void **)(void *)&n->name = dlsym(n->library, #name)) == NULL) {               \
        log_warn("device: " LIBRARY " has no " #name ": install version 2.18 or later"); \
        return ERR_UNSUPPORTED;                                                          \
    }
    FUNCTIONS(F)
#undef F
    return ERR_OK;
}

static int nccl_check(const struct nccl *n, ncclResult_t result, const char *action)
{
    if (result == ncclSuccess)
        return 0;
    log_error("device: NCCL: %s: %s", action, n->ncclGetErrorString(result));
    return -1;
}

int nccl_open(struct nccl **out, const int *gpus, int n)
{
    struct nccl *nccl = mem_zalloc(sizeof *nccl);
    int version = 0, rc;

    must(n >= 1 && n <= K_RANKS_MAX);
    if (nccl == NULL)
        return ERR_NO_MEMORY;
    rc = nccl_load(nccl);
    if (rc == ERR_UNSUPPORTED)
        log_error("device: GPUs that cannot reach each other's memory need NCCL: install libnccl2");
    if (rc == ERR_OK &&
        nccl_check(nccl, nccl->ncclCommInitAll(nccl->comms, n, gpus), "opening") != 0)
        rc = ERR_GPU;
    if (rc != ERR_OK) {
        nccl_close(nccl);
        return rc;
    }
    nccl->n = n;
    (void)nccl->ncclGetVersion(&version); /* for the log only */
    log_info("device: NCCL %d.%d.%d sums over %d GPUs", version / 10000, version / 100 % 100,
             version % 100, n);
    *out = nccl;
    return ERR_OK;
}

static_assert(NCCL_NAME == NCCL_UNIQUE_ID_BYTES, "names are NCCL's");

int nccl_name(char name[NCCL_NAME])
{
    struct nccl nccl = {.n = 0};
    ncclUniqueId id;
    int rc = nccl_load(&nccl);

    if (rc == ERR_OK && nccl_check(&nccl, nccl.ncclGetUniqueId(&id), "a name") != 0)
        rc = ERR_UNSUPPORTED;
    if (rc == ERR_OK)
        memcpy(name, id.internal, NCCL_NAME);
    else
        log_warn("device: without NCCL, rows go to other nodes through the hosts' memory");
    return rc;
}

int nccl_open_pair(struct nccl **out, const char *name, int gpu, int end)
{
    struct nccl *nccl = mem_zalloc(sizeof *nccl);
    ncclUniqueId id;
    int rc;

    must(end == 0 || end == 1);
    if (nccl == NULL)
        return ERR_NO_MEMORY;
    memcpy(id.internal, name, NCCL_NAME);
    rc = nccl_load(nccl);
    if (rc == ERR_OK && (cudaSetDevice(gpu) != cudaSuccess ||
                         nccl_check(nccl, nccl->ncclCommInitRank(&nccl->comms[0], 2, id, end),
                                    "opening a connection with another node") != 0))
        rc = ERR_GPU;
    nccl->n = 1;
    nccl->peer = 1 - end;
    if (rc == ERR_OK)
        *out = nccl;
    else
        nccl_close(nccl);
    return rc;
}

/* The library stays loaded: its threads may still run. */
void nccl_close(struct nccl *n)
{
    if (n == NULL)
        return;
    for (int i = 0; i < n->n; i++)
        nccl_abort(n, i);
    mem_free(n);
}

/* --- work ------------------------------------------------------------------------------- */

int nccl_sum(struct nccl *n, int rank, k_bf16 *rows, size_t n_elems, cudaStream_t stream)
{
    return nccl_check(
        n, n->ncclAllReduce(rows, rows, n_elems, ncclBfloat16, ncclSum, n->comms[rank], stream),
        "a sum");
}

/* Rank 0 receives each row of each rank at its place: rows of a part are not one piece in `all`. */
static ncclResult_t nccl_move_rows(struct nccl *n, int rank, float *all, const float *part,
                                   int n_rows, int width, cudaStream_t stream)
{
    ncclResult_t result = ncclSuccess;
    size_t row = (size_t)width;

    for (int i = 0; i < n_rows && rank > 0 && result == ncclSuccess; i++)
        result = n->ncclSend(part + (size_t)i * row, row, ncclFloat32, 0, n->comms[rank], stream);
    for (int i = 0; i < n_rows && rank == 0; i++) {
        for (int from = 1; from < n->n && result == ncclSuccess; from++)
            result = n->ncclRecv(all + ((size_t)i * (size_t)n->n + (size_t)from) * row, row,
                                 ncclFloat32, from, n->comms[0], stream);
    }
    return result;
}

int nccl_gather(struct nccl *n, int rank, float *all, const float *part, int n_rows, int width,
                cudaStream_t stream)
{
    size_t bytes = (size_t)width * sizeof *part;
    ncclResult_t result;

    if (rank == 0 &&
        cudaMemcpy2DAsync(all, bytes * (size_t)n->n, part, bytes, bytes, (size_t)n_rows,
                          cudaMemcpyDeviceToDevice, stream) != cudaSuccess)
        return -1;
    result = n->ncclGroupStart();
    if (result == ncclSuccess)
        result = nccl_move_rows(n, rank, all, part, n_rows, width, stream);
    if (n->ncclGroupEnd() != ncclSuccess && result == ncclSuccess)
        result = ncclInternalError;
    return nccl_check(n, result, "gathering");
}

int nccl_move(struct nccl *n, bool sends, const struct nccl_run *runs, int n_runs,
              cudaStream_t stream)
{
    ncclResult_t result;

    if (n->comms[0] == NULL)
        return -1; /* aborted */
    result = n->ncclGroupStart();
    for (int i = 0; i < n_runs && result == ncclSuccess; i++) {
        if (sends)
            result =
                n->ncclSend(runs[i].data, runs[i].bytes, ncclInt8, n->peer, n->comms[0], stream);
        else
            result =
                n->ncclRecv(runs[i].data, runs[i].bytes, ncclInt8, n->peer, n->comms[0], stream);
    }
    if (n->ncclGroupEnd() != ncclSuccess && result == ncclSuccess)
        result = ncclInternalError;
    return nccl_check(n, result, "rows of another node");
}

bool nccl_failed(const struct nccl *n, int rank)
{
    ncclResult_t result = ncclSuccess;

    if (n->comms[rank] == NULL)
        return true;
    if (n->ncclCommGetAsyncError(n->comms[rank], &result) != ncclSuccess)
        return true;
    return result != ncclInProgress && nccl_check(n, result, "a rank's work") != 0;
}

void nccl_abort(struct nccl *n, int rank)
{
    if (n->comms[rank] != NULL)
        (void)n->ncclCommAbort(n->comms[rank]); /* the communicator is gone either way */
    n->comms[rank] = NULL;
}

#else /* no nccl.h */

int nccl_open(struct nccl **out, const int *gpus, int n)
{
    (void)out, (void)gpus, (void)n;
    log_error("device: this build has no NCCL: build it where nccl.h is installed (libnccl-dev)");
    return ERR_UNSUPPORTED;
}

void nccl_close(struct nccl *n)
{
    (void)n;
}

int nccl_sum(struct nccl *n, int rank, k_bf16 *rows, size_t n_elems, cudaStream_t stream)
{
    (void)n, (void)rank, (void)rows, (void)n_elems, (void)stream;
    return -1;
}

int nccl_name(char name[NCCL_NAME])
{
    (void)name;
    log_warn("device: this build has no NCCL: rows go to other nodes through the hosts' memory");
    return ERR_UNSUPPORTED;
}

int nccl_open_pair(struct nccl **out, const char *name, int gpu, int end)
{
    (void)out, (void)name, (void)gpu, (void)end;
    return ERR_UNSUPPORTED;
}

int nccl_move(struct nccl *n, bool sends, const struct nccl_run *runs, int n_runs,
              cudaStream_t stream)
{
    (void)n, (void)sends, (void)runs, (void)n_runs, (void)stream;
    return -1;
}

int nccl_gather(struct nccl *n, int rank, float *all, const float *part, int n_rows, int width,
                cudaStream_t stream)
{
    (void)n, (void)rank, (void)all, (void)part, (void)n_rows, (void)width, (void)stream;
    return -1;
}

bool nccl_failed(const struct nccl *n, int rank)
{
    (void)n, (void)rank;
    return true;
}

void nccl_abort(struct nccl *n, int rank)
{
    (void)n, (void)rank;
}

#endif
