/* SPDX-License-Identifier: Apache-2.0
 *
 * cuBLASLt thinks in columns: what is y [n][n_out] for us is a matrix of n_out rows and n columns
 * for it, y' = w x', where w is read turned. The table of shapes holds descriptors and algorithm;
 * a slot is overwritten when two shapes meet in it, which costs time, not correctness. */
#include "config.h"

#include "device/gemm_cuda.h"

#include <cublasLt.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#define GEMM_SLOTS 1024 /* a model has 5 products and some 40 buckets */

struct gemm_plan {
    int n, n_out, n_in; /* n is 0 in an empty slot */
    bool y_is_float, has_bias;
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, y;
    cublasLtMatmulAlgo_t algo;
};

struct gemm {
    cublasLtHandle_t handle;
    void *workspace;
    size_t workspace_bytes;
    struct gemm_plan plans[GEMM_SLOTS];
};

int gemm_rows(int n)
{
    if (n <= 8)
        return 8;
    if (n <= 16)
        return 16;
    if (n <= 32)
        return 32;
    return n <= 512 ? (n + 63) / 64 * 64 : (n + 255) / 256 * 256;
}

int gemm_open(struct gemm **out, void *workspace, size_t workspace_bytes)
{
    struct gemm *g = mem_zalloc(sizeof *g);
    cublasStatus_t status;

    if (g == NULL)
        return ERR_NO_MEMORY;
    status = cublasLtCreate(&g->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        log_error("device: cuBLASLt does not start: %s", cublasLtGetStatusString(status));
        mem_free(g);
        return ERR_GPU;
    }
    g->workspace = workspace;
    g->workspace_bytes = workspace_bytes;
    *out = g;
    return ERR_OK;
}

void gemm_close(struct gemm *g)
{
    if (g == NULL)
        return;
    (void)cublasLtDestroy(g->handle); /* at the end: nothing to be done about it */
    mem_free(g);
}

static cublasStatus_t describe(struct gemm_plan *p)
{
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cudaDataType_t y_type = p->y_is_float ? CUDA_R_32F : CUDA_R_16BF;
    uint64_t n = (uint64_t)p->n, n_out = (uint64_t)p->n_out, n_in = (uint64_t)p->n_in;
    cublasStatus_t s;

    if ((s = cublasLtMatmulDescInit(&p->op, CUBLAS_COMPUTE_32F, CUDA_R_32F)) != 0 ||
        (s = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_TRANSA, &turned,
                                            sizeof turned)) != 0)
        return s;
    if (p->has_bias && (s = cublasLtMatmulDescSetAttribute(&p->op, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                           &epilogue, sizeof epilogue)) != 0)
        return s;
    if ((s = cublasLtMatrixLayoutInit(&p->w, CUDA_R_16BF, n_in, n_out, (int64_t)n_in)) != 0 ||
        (s = cublasLtMatrixLayoutInit(&p->x, CUDA_R_16BF, n_in, n, (int64_t)n_in)) != 0)
        return s;
    return cublasLtMatrixLayoutInit(&p->y, y_type, n_out, n, (int64_t)n_out);
}

static cublasStatus_t choose_algo(const struct gemm *g, struct gemm_plan *p)
{
    cublasLtMatmulPreferenceOpaque_t wish;
    cublasLtMatmulHeuristicResult_t found;
    cublasStatus_t s;
    int n_found = 0;

    if ((s = cublasLtMatmulPreferenceInit(&wish)) != 0)
        return s;
    s = cublasLtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &g->workspace_bytes, sizeof g->workspace_bytes);
    if (s == 0)
        s = cublasLtMatmulAlgoGetHeuristic(g->handle, &p->op, &p->w, &p->x, &p->y, &p->y, &wish, 1,
                                           &found, &n_found);
    if (s == 0 && n_found == 0)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (s == 0)
        p->algo = found.algo;
    return s;
}

static cublasStatus_t find_plan(struct gemm *g, struct gemm_plan **out,
                                const struct gemm_product *p)
{
    struct gemm_plan want = {.n = gemm_rows(p->n),
                             .n_out = p->w->n_out,
                             .n_in = p->w->n_in,
                             .y_is_float = p->y_is_float,
                             .has_bias = p->bias != NULL};
    uint64_t mixed = ((uint64_t)want.n * 0x9e3779b97f4a7c15U) ^
                     ((uint64_t)want.n_out * 0xbf58476d1ce4e5b9U) ^
                     ((uint64_t)want.n_in * 0x94d049bb133111ebU);
    struct gemm_plan *plan = &g->plans[(mixed ^ mixed >> 29) % GEMM_SLOTS];
    cublasStatus_t s;

    if (plan->n == want.n && plan->n_out == want.n_out && plan->n_in == want.n_in &&
        plan->y_is_float == want.y_is_float && plan->has_bias == want.has_bias) {
        *out = plan;
        return CUBLAS_STATUS_SUCCESS;
    }
    if ((s = describe(&want)) != 0 || (s = choose_algo(g, &want)) != 0)
        return s;
    *plan = want;
    *out = plan;
    return CUBLAS_STATUS_SUCCESS;
}

int gemm_run(struct gemm *g, const struct gemm_product *p, k_stream stream)
{
    const float one = 1.0f, zero = 0.0f;
    struct gemm_plan *plan = NULL;
    cublasStatus_t s = find_plan(g, &plan, p);

    if (s == 0 && p->bias != NULL)
        s = cublasLtMatmulDescSetAttribute(&plan->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &p->bias,
                                           sizeof p->bias);
    if (s == 0)
        s = cublasLtMatmul(g->handle, &plan->op, &one, p->w->data, &plan->w, p->x, &plan->x, &zero,
                           p->y, &plan->y, p->y, &plan->y, &plan->algo, g->workspace,
                           g->workspace_bytes, stream);
    if (s == 0)
        return ERR_OK;
    log_error("device: product of %d x %d x %d: %s", p->n, p->w->n_out, p->w->n_in,
              cublasLtGetStatusString(s));
    return ERR_GPU;
}
