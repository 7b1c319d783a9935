/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrix products by cuBLASLt, with algorithms from a table of measurements.
 *
 * cuBLASLt is column-major: y [n][n_out] is for it a matrix of n_out rows and n columns, y' = w x',
 * where w is read transposed. A plan holds the descriptors and the algorithm of a shape. Plans are
 * found by hashing; where too many collide, one is overwritten, which costs time but not
 * correctness.
 *
 * If the table has the shape, its algorithm is used as it was stored (cuBLASLt allows that within
 * one version) after a check; otherwise cuBLASLt's heuristic chooses.
 *
 * e4m3 with a scale per row and per column uses the tensor cores' short accumulation, which is up
 * to 15% faster and adds an error of 1e-5 of the mean square, where rounding to e4m3 has made one
 * of 1e-3. With scales in blocks the library promotes sums to float32 anyway.
 *
 * The library is loaded when a GPU is opened: its 540 MB cost 0.1 s of CPU and 100 MB of memory at
 * the start of any program that is linked with it, also of one that computes on the cpu. */
#include "config.h"

#include "device/gemm_cuda.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/must.h"
#include "device/gemm_table.h"

#define GEMM_SLOTS     1024 /* a model has 5 products and some 50 buckets */
#define GEMM_PROBES    8
#define CANDIDATES_MAX 16
#define GUESSES_MAX    8 /* candidates from cuBLASLt; the others are found by trying */
#define TUNE_ROUNDS    7
#define TRAIN_US \
    400.0f /* long enough that the time of the events themselves does not
            * matter */
#define TRAIN_MAX    24
#define VARIANTS     8  /* values of the library's "custom option" of an algorithm */
#define SAMPLES      16 /* places of a result that are compared, SAMPLE_BYTES in all */
#define SAMPLE_BYTES ((size_t)16384)

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == GEMM_ALGO_WORDS * sizeof(uint64_t),
               "the table stores algorithms whole");

/* The functions that are used, with their types. Those that end with _internal are what the inline
 * functions of the header call. */
#define FUNCTIONS(F)                         \
    F(cublasLtCreate)                        \
    F(cublasLtDestroy)                       \
    F(cublasLtGetStatusString)               \
    F(cublasLtGetVersion)                    \
    F(cublasLtMatmul)                        \
    F(cublasLtMatmulAlgoCheck)               \
    F(cublasLtMatmulAlgoConfigGetAttribute)  \
    F(cublasLtMatmulAlgoConfigSetAttribute)  \
    F(cublasLtMatmulAlgoGetHeuristic)        \
    F(cublasLtMatmulDescInit_internal)       \
    F(cublasLtMatmulDescSetAttribute)        \
    F(cublasLtMatmulPreferenceInit_internal) \
    F(cublasLtMatmulPreferenceSetAttribute)  \
    F(cublasLtMatrixLayoutInit_internal)
#define TEXT_OF2(x) #x
#define TEXT_OF(x)  TEXT_OF2(x)
#define LIBRARY     "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

struct gemm_lib {
    void *library;
#define F(name) __typeof__(&name) name;
    FUNCTIONS(F)
#undef F
};

struct gemm_plan {
    const struct gemm_lib *lt;
    int n, n_out, n_in; /* n is 0 in an empty slot */
    int y_stride;
    enum gemm_kind kind;
    bool has_bias;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

struct gemm {
    struct gemm_lib lt;
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    struct gemm_plan plans[GEMM_SLOTS];
    struct gemm_table table;
};

/* Rounding up limits the shapes to some 50 per matrix, so that their plans fit the slots. */
int gemm_rows(int n)
{
    if (n <= 8)
        return 8;
    if (n <= 16)
        return 16;
    if (n <= 32)
        return 32;
    if (n <= 1024)
        return (n + 63) / 64 * 64;
    if (n <= 2048)
        return (n + 127) / 128 * 128;
    return (n + 255) / 256 * 256;
}

/* dlsym() returns a data pointer, which POSIX allows to be converted to a function. */
static int gemm_load(struct gemm_lib *lt)
{
    lt->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (lt->library == NULL) {
        log_error("device: cuBLASLt cannot be loaded: %s", dlerror());
        return ERR_GPU;
    }
#define F(name)                                                              \
    if ((*(void **)(void *)&lt->name = dlsym(lt->library, #name)) == NULL) { \
        log_error("device: " LIBRARY " has no " #name                        \
                  ": install the version that this program was built with"); \
        return ERR_GPU;                                                      \
    }
    FUNCTIONS(F)
#undef F
    return ERR_OK;
}

int gemm_open(struct gemm **out, void *workspace, size_t workspace_bytes, const char *gpu)
{
    struct gemm *gemm = mem_zalloc(sizeof *gemm);
    cublasStatus_t status;

    must(workspace != NULL);
    if (gemm == NULL)
        return ERR_NO_MEMORY;
    if (gemm_load(&gemm->lt) != ERR_OK) {
        gemm_close(gemm);
        return ERR_GPU;
    }
    status = gemm->lt.cublasLtCreate(&gemm->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        log_error("device: cuBLASLt does not start: %s", gemm->lt.cublasLtGetStatusString(status));
        gemm->handle = NULL;
        gemm_close(gemm);
        return ERR_GPU;
    }
    gemm->workspace = workspace;
    gemm->workspace_bytes = workspace_bytes;
    gemm->table.version = (long)gemm->lt.cublasLtGetVersion();
    (void)snprintf(gemm->table.gpu, sizeof gemm->table.gpu, "%s", gpu); /* cut like the name in the
                                                                         * table */
    *out = gemm;
    return ERR_OK;
}

/* Accepts NULL. */
void gemm_close(struct gemm *g)
{
    if (g == NULL)
        return;
    if (g->handle != NULL)
        (void)g->lt.cublasLtDestroy(g->handle); /* errors are ignored at the end */
    if (g->lt.library != NULL)
        (void)dlclose(g->lt.library);
    mem_free(g);
}

/* Plans made before are dropped, so that the table counts from the next product on. */
void gemm_read(struct gemm *g, const char *path, bool expected)
{
    int rc = gemm_table_read(&g->table, path);

    if (rc == ERR_NOT_FOUND && expected)
        log_warn("device: %s does not exist; products are chosen without it", path);
    if (rc == ERR_OK)
        log_info("device: %d measured products from %s", g->table.n_entries, path);
    memset(g->plans, 0, sizeof g->plans);
}

/* Called by the tuning tool when it is done. */
int gemm_write(const struct gemm *g, const char *path)
{
    return gemm_table_write(&g->table, path);
}

/* --- plans ----------------------------------------------------------------------------- */

/* A cuBLASLt status of 0 is success. Functions return at the first error; gemm_fail() logs it. */

/* Products with blocks of scales give bf16 only. */
static enum gemm_kind gemm_kind_of(const struct gemm_product *p)
{
    if (k_format_is_plain(&p->w->format))
        return p->y_is_float ? GEMM_BF16_FLOAT : GEMM_BF16;
    if (k_format_has_groups(&p->w->format))
        return GEMM_E4M3_BLOCK;
    if (p->y_is_float)
        return GEMM_E4M3_FLOAT;
    return GEMM_E4M3;
}

/* Shorter to call than the library's function. */
static cublasStatus_t gemm_set(struct gemm_plan *p, cublasLtMatmulDescAttributes_t what,
                               const void *to, size_t bytes)
{
    return p->lt->cublasLtMatmulDescSetAttribute(&p->op, what, to, bytes);
}

/* Describe the scales of an e4m3 product. Operand A is w, and B is x. */
static cublasStatus_t gemm_describe_scales(struct gemm_plan *p)
{
    bool blocks = p->kind == GEMM_E4M3_BLOCK;
    int32_t w = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    int32_t x = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    int8_t fast = !blocks;
    cublasStatus_t status;

    if (blocks) {
        w = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
        x = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    }
    if ((status = gemm_set(p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &w, sizeof w)) != 0 ||
        (status = gemm_set(p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &x, sizeof x)) != 0)
        return status;
    return gemm_set(p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast);
}

/* Fill in the descriptors of a plan's shape. */
static cublasStatus_t gemm_describe(struct gemm_plan *p)
{
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    bool is_float = p->kind == GEMM_BF16_FLOAT || p->kind == GEMM_E4M3_FLOAT;
    bool is_bf16 = p->kind == GEMM_BF16 || p->kind == GEMM_BF16_FLOAT;
    cudaDataType_t y_type = CUDA_R_16BF, type = CUDA_R_16BF;
    uint64_t n = (uint64_t)p->n, n_out = (uint64_t)p->n_out, n_in = (uint64_t)p->n_in;
    cublasStatus_t status;

    if (is_float)
        y_type = CUDA_R_32F;
    if (!is_bf16)
        type = CUDA_R_8F_E4M3;
    if ((status = p->lt->cublasLtMatmulDescInit_internal(&p->op, sizeof p->op, CUBLAS_COMPUTE_32F,
                                                         CUDA_R_32F)) != 0 ||
        (status = gemm_set(p, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned)) != 0)
        return status;
    if (p->has_bias &&
        (status = gemm_set(p, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue)) != 0)
        return status;
    if (!is_bf16 && (status = gemm_describe_scales(p)) != 0)
        return status;
    if ((status = p->lt->cublasLtMatrixLayoutInit_internal(&p->w, sizeof p->w, type, n_in, n_out,
                                                           (int64_t)n_in)) != 0 ||
        (status = p->lt->cublasLtMatrixLayoutInit_internal(&p->x, sizeof p->x, type, n_in, n,
                                                           (int64_t)n_in)) != 0)
        return status;
    return p->lt->cublasLtMatrixLayoutInit_internal(&p->y, sizeof p->y, y_type, n_out, n,
                                                    p->y_stride);
}

/* Ask cuBLASLt for up to cap algorithms, best guess first. */
static cublasStatus_t gemm_guess(const struct gemm *g, struct gemm_plan *p,
                                 cublasLtMatmulAlgo_t *algos, int cap, int *n)
{
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES_MAX];
    cublasStatus_t status;
    int n_found = 0;

    *n = 0;
    if ((status = g->lt.cublasLtMatmulPreferenceInit_internal(&wish, sizeof wish)) != 0)
        return status;
    status =
        g->lt.cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &g->workspace_bytes, sizeof g->workspace_bytes);
    if (status == 0)
        status = g->lt.cublasLtMatmulAlgoGetHeuristic(g->handle, &p->op, &p->w, &p->x, &p->y, &p->y,
                                                      &wish, cap, found, &n_found);
    for (int i = 0; status == 0 && i < n_found; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            /* Each result has a state of its own, which may be a failure. */
            algos[(*n)++] = found[i].algo;
    }
    if (status == 0 && *n == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return status;
}

/* Take the algorithm from the table. False if it has none for the shape, or one that this library
 * rejects. */
static bool gemm_take_measured(const struct gemm *g, struct gemm_plan *p)
{
    const struct gemm_entry *entry = gemm_table_find(&g->table, p->kind, p->n, p->n_out, p->n_in);
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulAlgo_t algo;

    if (entry == NULL)
        return false;
    memcpy(&algo, entry->algo, sizeof algo);
    if (g->lt.cublasLtMatmulAlgoCheck(g->handle, &p->op, &p->w, &p->x, &p->y, &p->y, &algo,
                                      &found) != 0 ||
        found.workspaceSize > g->workspace_bytes)
        return false;
    p->algo = algo;
    return true;
}

/* Plans with and without bias differ in their epilogue. */
static bool gemm_is_same(const struct gemm_plan *a, const struct gemm_plan *b)
{
    return a->n == b->n && a->n_out == b->n_out && a->n_in == b->n_in && a->kind == b->kind &&
           a->has_bias == b->has_bias && a->y_stride == b->y_stride;
}

/* The slot of a plan: the one with this shape, else an empty one among GEMM_PROBES, else the first,
 * which is overwritten. */
static struct gemm_plan *gemm_slot_of(struct gemm *g, const struct gemm_plan *want)
{
    /* Odd constants spread shapes, which are often multiples of powers of two. */
    uint64_t mixed = ((uint64_t)want->n * 0x9e3779b97f4a7c15U) ^
                     ((uint64_t)want->n_out * 0xbf58476d1ce4e5b9U) ^
                     ((uint64_t)want->n_in * 0x94d049bb133111ebU) ^ (uint64_t)want->kind;
    size_t first = (size_t)(mixed ^ mixed >> 29);

    for (size_t i = 0; i < GEMM_PROBES; i++) {
        struct gemm_plan *plan = &g->plans[(first + i) % GEMM_SLOTS];

        if (plan->n == 0 || gemm_is_same(plan, want))
            return plan;
    }
    return &g->plans[first % GEMM_SLOTS];
}

/* An empty plan with the product's rounded shape. */
static struct gemm_plan gemm_plan_of(const struct gemm *g, const struct gemm_product *p)
{
    return (struct gemm_plan){.lt = &g->lt,
                              .n = gemm_rows(p->n),
                              .n_out = p->w->n_out,
                              .n_in = p->w->n_in,
                              .y_stride = p->y_stride > 0 ? p->y_stride : p->w->n_out,
                              .kind = gemm_kind_of(p),
                              .has_bias = p->bias != NULL};
}

/* Set the pointers that differ between calls. The heuristic needs them too, because cuBLASLt finds
 * no algorithm before scales have an address. */
static cublasStatus_t gemm_point(struct gemm_plan *plan, const struct gemm_product *p)
{
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    if (p->bias != NULL)
        status = gemm_set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
    if (status == 0 && k_format_reads_codes(&p->w->format))
        status = gemm_set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->w->scales,
                          sizeof p->w->scales);
    if (status == 0 && k_format_reads_codes(&p->w->format))
        status =
            gemm_set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->x_scales, sizeof p->x_scales);
    return status;
}

/* Returns a plan that is ready; makes it if this is the shape's first product. */
static cublasStatus_t gemm_find_plan(struct gemm *g, struct gemm_plan **out,
                                     const struct gemm_product *p)
{
    struct gemm_plan want = gemm_plan_of(g, p), *plan = gemm_slot_of(g, &want);
    cublasStatus_t status;
    int n = 0;

    *out = plan;
    if (gemm_is_same(plan, &want))
        return CUBLAS_STATUS_SUCCESS;
    if ((status = gemm_describe(&want)) != 0 || (status = gemm_point(&want, p)) != 0)
        return status;
    if (!gemm_take_measured(g, &want) && (status = gemm_guess(g, &want, &want.algo, 1, &n)) != 0)
        return status;
    /* The slot is written only when the plan is complete. */
    *plan = want;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- products -------------------------------------------------------------------------- */

/* x and y have gemm_rows(n) rows, so the plan of the rounded shape fits. */

/* w is separate, because measurements multiply with copies of the weights. */
static cublasStatus_t gemm_multiply(const struct gemm *g, struct gemm_plan *plan,
                                    const struct gemm_product *p, const void *w,
                                    const cublasLtMatmulAlgo_t *algo, k_stream stream)
{
    const float one = 1.0f, zero = 0.0f;

    return g->lt.cublasLtMatmul(g->handle, &plan->op, &one, w, &plan->w, p->x, &plan->x, &zero,
                                p->y, &plan->y, p->y, &plan->y, algo, g->workspace,
                                g->workspace_bytes, stream);
}

/* Log a product that failed, with its shape. Returns ERR_GPU. */
static int gemm_fail(const struct gemm_product *p, const char *why)
{
    log_error("device: %s product of %d x %d x %d: %s", gemm_kind_name(gemm_kind_of(p)), p->n,
              p->w->n_out, p->w->n_in, why);
    return ERR_GPU;
}

int gemm_run(struct gemm *g, const struct gemm_product *p, k_stream stream)
{
    struct gemm_plan *plan = NULL;
    cublasStatus_t status = gemm_find_plan(g, &plan, p);

    if (status == 0)
        status = gemm_point(plan, p);
    if (status == 0)
        status = gemm_multiply(g, plan, p, p->w->data, &plan->algo, stream);
    if (status == 0)
        return ERR_OK;
    return gemm_fail(p, g->lt.cublasLtGetStatusString(status));
}

/* --- measuring ------------------------------------------------------------------------- */

/* Used by the tuning tool only. Each candidate runs in "trains": several products between two
 * events, over changing copies of the weights, so that they come from memory as in a real step. */

/* The state of measuring one product. */
struct train {
    const struct gemm *g;
    struct gemm_plan *plan;
    const struct gemm_product *p;
    k_stream stream;
    cudaEvent_t begin, end;
    size_t w_bytes;
    int n_copies, at; /* at: the copy of the weights to use next */
};

/* The best algorithms so far with their times, fastest first. */
struct contest {
    cublasLtMatmulAlgo_t algos[CANDIDATES_MAX];
    float us[CANDIDATES_MAX];
    int n;
};

/* Microseconds per product of a train of `length`; negative if it failed. */
static float gemm_train_run(struct train *t, const cublasLtMatmulAlgo_t *algo, int length)
{
    float ms = 0.0f;

    if (cudaEventRecord(t->begin, t->stream) != cudaSuccess)
        return -1.0f;
    for (int i = 0; i < length; i++) {
        const char *memory = (const char *)t->p->w->data + (size_t)t->at * t->w_bytes;

        t->at = (t->at + 1) % t->n_copies;
        if (gemm_multiply(t->g, t->plan, t->p, memory, algo, t->stream) != 0)
            return -1.0f;
    }
    if (cudaEventRecord(t->end, t->stream) != cudaSuccess ||
        cudaEventSynchronize(t->end) != cudaSuccess ||
        cudaEventElapsedTime(&ms, t->begin, t->end) != cudaSuccess)
        return -1.0f;
    return ms * 1e3f / (float)length;
}

/* Insert an algorithm by its time; only the fastest `cap` are kept. */
static void gemm_contest_enter(struct contest *c, const cublasLtMatmulAlgo_t *algo, float us,
                               int cap)
{
    int i = cap;

    if (c->n < cap)
        i = c->n++;
    for (; i > 0 && us < c->us[i - 1]; i--) {
        if (i == cap)
            continue;
        c->us[i] = c->us[i - 1];
        c->algos[i] = c->algos[i - 1];
    }
    if (i < cap) {
        c->us[i] = us;
        c->algos[i] = *algo;
    }
}

/* Change tile, cluster and variant of an algorithm, with a single split. False if cuBLASLt rejects
 * the result. */
static bool gemm_vary(const struct gemm *g, struct gemm_plan *p, cublasLtMatmulAlgo_t *algo,
                      uint32_t tile, uint16_t cluster, uint32_t variant)
{
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    const int32_t one_part = 1;
    const struct {
        cublasLtMatmulAlgoConfigAttributes_t what;
        const void *to;
        size_t bytes;
    } sets[] = {
        {CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile},
        {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &cluster, sizeof cluster},
        {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &variant, sizeof variant},
        {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &one_part, sizeof one_part},
        {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &no_reduction, sizeof no_reduction},
    };
    cublasLtMatmulHeuristicResult_t found;

    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (g->lt.cublasLtMatmulAlgoConfigSetAttribute(algo, sets[i].what, sets[i].to,
                                                       sets[i].bytes) != 0)
            return false;
    }
    return g->lt.cublasLtMatmulAlgoCheck(g->handle, &p->op, &p->w, &p->x, &p->y, &p->y, algo,
                                         &found) == 0 &&
           found.workspaceSize <= g->workspace_bytes;
}

/* Time a changed algorithm roughly, and enter it. Slow ones are timed once only. */
static void gemm_try_variant(struct train *t, const cublasLtMatmulAlgo_t *base, uint32_t tile,
                             uint16_t cluster, uint32_t variant, struct contest *out)
{
    cublasLtMatmulAlgo_t algo = *base;
    float us;

    if (!gemm_vary(t->g, t->plan, &algo, tile, cluster, variant))
        return;
    (void)gemm_train_run(t, &algo, 1); /* the first run loads code, so it does not count */
    us = gemm_train_run(t, &algo, 1);
    if (us >= 0.0f && us < 100.0f)
        us = gemm_train_run(t, &algo, 4);
    if (us >= 0.0f)
        gemm_contest_enter(out, &algo, us, GUESSES_MAX);
}

/* Search beyond cuBLASLt's own candidates: for e4m3 with vectors of scales it offers a single tile,
 * 128 x 128, which takes up to twice as long as others at 64 to 256 rows (H200). First tiles and
 * clusters are tried, then the variants of the best of these. */
static void gemm_explore(struct train *t, const cublasLtMatmulAlgo_t *base, struct contest *out)
{
    /* The tiles that were fastest for some shape when all 634 of the library were tried. */
    static const uint16_t tiles[] = {
        CUBLASLT_MATMUL_TILE_64x32,   CUBLASLT_MATMUL_TILE_64x64,   CUBLASLT_MATMUL_TILE_128x32,
        CUBLASLT_MATMUL_TILE_64x128,  CUBLASLT_MATMUL_TILE_128x64,  CUBLASLT_MATMUL_TILE_64x256,
        CUBLASLT_MATMUL_TILE_128x128, CUBLASLT_MATMUL_TILE_256x64,  CUBLASLT_MATMUL_TILE_128x256,
        CUBLASLT_MATMUL_TILE_256x128, CUBLASLT_MATMUL_TILE_512x64,  CUBLASLT_MATMUL_TILE_96x64,
        CUBLASLT_MATMUL_TILE_96x128,  CUBLASLT_MATMUL_TILE_128x160, CUBLASLT_MATMUL_TILE_192x128,
        CUBLASLT_MATMUL_TILE_48x64,   CUBLASLT_MATMUL_TILE_56x64,   CUBLASLT_MATMUL_TILE_72x64,
        CUBLASLT_MATMUL_TILE_88x64,   CUBLASLT_MATMUL_TILE_112x64,  CUBLASLT_MATMUL_TILE_112x128,
        CUBLASLT_MATMUL_TILE_144x128, CUBLASLT_MATMUL_TILE_168x128, CUBLASLT_MATMUL_TILE_176x128,
        CUBLASLT_MATMUL_TILE_192x64,  CUBLASLT_MATMUL_TILE_192x192, CUBLASLT_MATMUL_TILE_224x64,
        CUBLASLT_MATMUL_TILE_224x128, CUBLASLT_MATMUL_TILE_320x128, CUBLASLT_MATMUL_TILE_448x64};
    static const uint16_t clusters[] = {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1,
                                        CUBLASLT_CLUSTER_SHAPE_4x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1,
                                        CUBLASLT_CLUSTER_SHAPE_4x2x1};
    struct contest first = {.n = 0};

    for (size_t i = 0; i < sizeof tiles / sizeof tiles[0]; i++) {
        for (size_t j = 0; j < sizeof clusters / sizeof clusters[0]; j++)
            gemm_try_variant(t, base, tiles[i], clusters[j], 0, &first);
    }
    for (int i = 0; i < first.n; i++) {
        uint32_t tile = 0;
        uint16_t cluster = 0;
        size_t n;

        gemm_contest_enter(out, &first.algos[i], first.us[i], GUESSES_MAX);
        if (t->g->lt.cublasLtMatmulAlgoConfigGetAttribute(
                &first.algos[i], CUBLASLT_ALGO_CONFIG_TILE_ID, &tile, sizeof tile, &n) != 0 ||
            t->g->lt.cublasLtMatmulAlgoConfigGetAttribute(&first.algos[i],
                                                          CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID,
                                                          &cluster, sizeof cluster, &n) != 0)
            continue;
        for (uint32_t variant = 1; variant < VARIANTS; variant++)
            gemm_try_variant(t, base, tile, cluster, variant, out);
    }
}

/* Copy samples from SAMPLES places of y to the host. */
static bool gemm_sample_y(const struct train *t, unsigned char *out)
{
    size_t bytes = (size_t)t->plan->n * (size_t)t->plan->n_out * (t->p->y_is_float ? 4 : 2);
    size_t each = (bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES) / SAMPLES / 4 * 4;

    memset(out, 0, SAMPLE_BYTES);
    for (size_t i = 0; i < SAMPLES; i++) {
        const char *from = (const char *)t->p->y + bytes / SAMPLES * i / 4 * 4;

        if (cudaMemcpyAsync(out + i * each, from, each, cudaMemcpyDeviceToHost, t->stream) !=
            cudaSuccess)
            return false;
    }
    return cudaStreamSynchronize(t->stream) == cudaSuccess;
}

/* Element i of a sample, as a number. */
static double gemm_sampled(const struct train *t, const unsigned char *bytes, size_t i)
{
    uint32_t bits = 0;
    float value;

    if (t->p->y_is_float)
        memcpy(&bits, bytes + 4 * i, 4);
    else
        memcpy((char *)&bits + 2, bytes + 2 * i, 2); /* bf16 is the upper half */
    memcpy(&value, &bits, 4);
    return (double)value;
}

/* True if algorithm b computes the same as a, cuBLASLt's own choice, up to the order of sums. A
 * wrong algorithm in the table would corrupt every answer. */
static bool gemm_agrees(struct train *t, const cublasLtMatmulAlgo_t *a,
                        const cublasLtMatmulAlgo_t *b)
{
    static const double limit = 1e-4; /* of the mean square; rounding to bf16 alone makes 3e-6 */
    unsigned char x[SAMPLE_BYTES], y[SAMPLE_BYTES];
    size_t n = SAMPLE_BYTES / (t->p->y_is_float ? 4 : 2);
    double error = 0.0, square = 0.0;

    t->at = 0; /* the same copy of the weights for both */
    if (gemm_train_run(t, a, 1) < 0.0f || !gemm_sample_y(t, x))
        return false;
    t->at = 0;
    if (gemm_train_run(t, b, 1) < 0.0f || !gemm_sample_y(t, y))
        return false;
    for (size_t i = 0; i < n; i++) {
        double want = gemm_sampled(t, x, i), diff = gemm_sampled(t, y, i) - want;

        /* Relative to the square of all samples, because single values may be near 0. */
        error += diff * diff;
        square += want * want;
    }
    return error <= limit * square;
}

/* For qsort(). */
static int gemm_by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Measure the median time of each candidate. Candidates take turns, so that a clock that drops with
 * heat slows all of them alike. A candidate that fails gets a negative time. */
static void gemm_measure(struct train *t, struct contest *c)
{
    float times[CANDIDATES_MAX][TUNE_ROUNDS];
    int lengths[CANDIDATES_MAX];

    for (int i = 0; i < c->n; i++) {
        /* One product to load its code, and one to choose the length of trains. */
        (void)gemm_train_run(t, &c->algos[i], 1);
        c->us[i] = gemm_train_run(t, &c->algos[i], 1);
        lengths[i] = TRAIN_MAX;
        if (c->us[i] * TRAIN_MAX >= TRAIN_US)
            lengths[i] = (int)(TRAIN_US / c->us[i]) + 1;
    }
    /* Rounds are the outer loop, so that candidates alternate. */
    for (int row = 0; row < TUNE_ROUNDS; row++) {
        for (int i = 0; i < c->n; i++)
            times[i][row] = c->us[i] < 0.0f ? -1.0f : gemm_train_run(t, &c->algos[i], lengths[i]);
    }
    for (int i = 0; i < c->n; i++) {
        qsort(times[i], TUNE_ROUNDS, sizeof times[i][0], gemm_by_value);
        c->us[i] = times[i][0] < 0.0f ? -1.0f : times[i][TUNE_ROUNDS / 2];
    }
}

/* Events are created here and destroyed by gemm_train_close(). */
static int gemm_train_open(struct train *t, const struct gemm *g, struct gemm_plan *plan,
                           const struct gemm_product *p, int n_copies, k_stream stream)
{
    *t = (struct train){.g = g, .plan = plan, .p = p, .stream = stream, .n_copies = n_copies};
    t->w_bytes = (size_t)plan->n_out * k_format_row_bytes(&p->w->format, plan->n_in);
    if (gemm_point(plan, p) != 0 || cudaEventCreate(&t->begin) != cudaSuccess)
        return gemm_fail(p, "cannot be measured");
    if (cudaEventCreate(&t->end) != cudaSuccess) {
        (void)cudaEventDestroy(t->begin); /* the error is returned */
        return gemm_fail(p, "cannot be measured");
    }
    return ERR_OK;
}

static void gemm_train_close(struct train *t)
{
    (void)cudaEventDestroy(t->begin); /* errors are ignored at the end */
    (void)cudaEventDestroy(t->end);
}

/* Measures the plan that gemm_run() would use. */
int gemm_time(struct gemm *g, const struct gemm_product *p, int n_copies, k_stream stream,
              float *us)
{
    struct gemm_plan *plan = NULL;
    struct contest contest = {.n = 1};
    struct train train;
    cublasStatus_t status = gemm_find_plan(g, &plan, p);
    int rc;

    if (status != 0)
        return gemm_fail(p, g->lt.cublasLtGetStatusString(status));
    if ((rc = gemm_train_open(&train, g, plan, p, n_copies, stream)) != ERR_OK)
        return rc;
    contest.algos[0] = plan->algo;
    gemm_measure(&train, &contest);
    gemm_train_close(&train);
    if (contest.us[0] < 0.0f)
        return gemm_fail(p, "does not run");
    *us = contest.us[0];
    return ERR_OK;
}

/* Append algorithms found by trying to cuBLASLt's candidates, if their results agree. */
static void gemm_gather_candidates(struct train *t, struct contest *c)
{
    struct contest found = {.n = 0};

    gemm_explore(t, &c->algos[0], &found);
    for (int i = 0; i < found.n; i++) {
        if (gemm_agrees(t, &c->algos[0], &found.algos[i]))
            c->algos[c->n++] = found.algos[i];
    }
}

/* The winner goes into the table. */
int gemm_tune(struct gemm *g, const struct gemm_product *p, int n_copies, k_stream stream,
              struct gemm_timing *out)
{
    struct gemm_plan plan = gemm_plan_of(g, p);
    struct gemm_entry entry = {
        .kind = plan.kind, .n = plan.n, .n_out = plan.n_out, .n_in = plan.n_in};
    struct contest contest = {.n = 0};
    struct train train;
    cublasStatus_t status = gemm_describe(&plan);
    int best = 0, rc;

    if (status == 0)
        status = gemm_point(&plan, p);
    if (status == 0)
        status = gemm_guess(g, &plan, contest.algos, GUESSES_MAX, &contest.n);
    if (status != 0)
        return gemm_fail(p, g->lt.cublasLtGetStatusString(status));
    if ((rc = gemm_train_open(&train, g, &plan, p, n_copies, stream)) != ERR_OK)
        return rc;
    gemm_gather_candidates(&train, &contest);
    gemm_measure(&train, &contest);
    gemm_train_close(&train);
    for (int i = 1; i < contest.n; i++) {
        if (contest.us[i] >= 0.0f && (contest.us[best] < 0.0f || contest.us[i] < contest.us[best]))
            best = i;
    }
    if (contest.us[best] < 0.0f)
        return gemm_fail(p, "no candidate runs");
    entry.us = contest.us[best];
    memcpy(entry.algo, &contest.algos[best], sizeof entry.algo);
    *out = (struct gemm_timing){contest.us[0], contest.us[best], contest.n, best};
    memset(g->plans, 0, sizeof g->plans); /* later products look into the table again */
    return gemm_table_put(&g->table, &entry);
}
