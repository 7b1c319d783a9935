/* SPDX-License-Identifier: Apache-2.0
 *
 * The choice between the kernels for Hopper and the portable ones, for the whole process. A build
 * has both or one of them (configure --with-cuda-arch). */
#include "config.h"

#include "kernels/bytes.h"
#include "kernels/choice.h"
#include "kernels/gated.h"
#include "kernels/packed_many.h"

#if defined(HAVE_SM90) && defined(HAVE_PORTABLE)

/* Set before the first launch, and never back. */
static bool kernels_portable;

bool k_is_portable(void)
{
    return kernels_portable;
}

int k_use_portable(void)
{
    kernels_portable = true;
    return 0;
}

#define CHOOSE(op, ...) (kernels_portable ? op##_portable(__VA_ARGS__) : op##_sm90(__VA_ARGS__))

#elif defined(HAVE_SM90)

bool k_is_portable(void)
{
    return false;
}

int k_use_portable(void)
{
    return -1;
}

#define CHOOSE(op, ...) op##_sm90(__VA_ARGS__)

#else

bool k_is_portable(void)
{
    return true;
}

int k_use_portable(void)
{
    return 0;
}

#define CHOOSE(op, ...) op##_portable(__VA_ARGS__)

#endif

#ifdef HAVE_PORTABLE
#define ATTN_CAPPED(op, ...) op##_portable(__VA_ARGS__)
#else
#define ATTN_CAPPED(op, ...) (-1)
#endif

bool k_attn_caps(void)
{
#ifdef HAVE_PORTABLE
    return true;
#else
    return false;
#endif
}

int k_attn_shuts(const struct k_attn_plan *plan, const struct k_kv *kv)
{
    return !k_is_portable() && plan->n_tiles == 0 && kv->cap == 0.0f && kv->value_dim == 0;
}

int k_multiply_takes(const struct k_matrix *w, int n)
{
    return CHOOSE(k_multiply_takes, w, n);
}

int k_multiply_bucket(const struct k_matrix *w, int n)
{
    return CHOOSE(k_multiply_bucket, w, n);
}

int k_multiply(const struct k_product *p, int n, int n_sms, k_stream stream)
{
    return CHOOSE(k_multiply, p, n, n_sms, stream);
}

bool k_multiply_bytes_takes(const struct k_matrix *w)
{
#ifdef HAVE_SM90
    return !k_is_portable() && k_multiply_bytes_takes_sm90(w);
#else
    (void)w;
    return false;
#endif
}

int k_multiply_bytes(k_bf16 *y, int y_stride, const struct k_bytes *x, const struct k_matrix *w,
                     const k_bf16 *bias, int n, int n_sms, k_stream stream)
{
#ifdef HAVE_SM90
    if (!k_is_portable())
        return k_multiply_bytes_sm90(y, y_stride, x, w, bias, n, n_sms, stream);
#else
    (void)y, (void)y_stride, (void)x, (void)w, (void)bias, (void)n, (void)n_sms, (void)stream;
#endif
    return -1;
}

bool k_multiply_gated_takes(const struct k_matrix *w)
{
#ifdef HAVE_SM90
    return !k_is_portable() && k_multiply_gated_takes_sm90(w);
#else
    (void)w;
    return false;
#endif
}

int k_multiply_gated(k_bf16 *y, const k_bf16 *x, const struct k_matrix *w, int n, int n_sms,
                     k_stream stream)
{
#ifdef HAVE_SM90
    if (!k_is_portable())
        return k_multiply_gated_sm90(y, x, w, n, n_sms, stream);
#else
    (void)y, (void)x, (void)w, (void)n, (void)n_sms, (void)stream;
#endif
    return -1;
}

/* The portable kernels do not wait for each other's blocks. */
bool k_adapt_joins(const struct k_adapting *a)
{
#ifdef HAVE_SM90
    return !k_is_portable() && a->meet != NULL && k_adapt_joins_sm90(a);
#else
    (void)a;
    return false;
#endif
}

int k_adapt_join(const struct k_adapting *a, k_stream stream)
{
#ifdef HAVE_SM90
    return k_adapt_join_sm90(a, stream);
#else
    (void)a, (void)stream;
    return -1;
#endif
}

bool k_multiply_many_takes(const struct k_matrix *w)
{
#ifdef HAVE_SM90
    return !k_is_portable() && k_format_is_packed(&w->format) && w->format.elem != K_INT8 &&
           k_format_fits(&w->format, w->n_out, w->n_in);
#else
    (void)w;
    return false;
#endif
}

int k_multiply_many(const struct k_product *p, int n, void *work, int n_sms, k_stream stream)
{
#ifdef HAVE_SM90
    if (k_multiply_many_takes(p->w))
        return k_multiply_many_sm90(p, n, work, n_sms, stream);
#else
    (void)p, (void)n, (void)work, (void)n_sms, (void)stream;
#endif
    return -1;
}

/* Hopper's kernels for attention take no soft cap: on its GPUs, too, the portable ones do. */
static bool attn_is_portable(const struct k_kv *kv)
{
    return k_is_portable() || kv->cap > 0.0f;
}

/* The portable kernel has no variant for short contexts, and does not rotate. */
int k_attn_is_brief(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads)
{
#ifdef HAVE_SM90
    return !attn_is_portable(kv) && k_attn_is_brief_sm90(plan, kv, n_heads);
#else
    (void)plan, (void)kv, (void)n_heads;
    return 0;
#endif
}

/* The portable kernel reads the keys for each decode. */
int k_attn_joins(const struct k_attn_plan *plan, const struct k_kv *kv, int n_heads)
{
#ifdef HAVE_SM90
    return !attn_is_portable(kv) && k_attn_joins_sm90(plan, kv, n_heads);
#else
    (void)plan, (void)kv, (void)n_heads;
    return 0;
#endif
}

int k_attn_rotates(const struct k_rotary *r, const struct k_kv *kv)
{
#ifdef HAVE_SM90
    return !attn_is_portable(kv) && k_attn_rotates_sm90(r, kv);
#else
    (void)r, (void)kv;
    return 0;
#endif
}

/* Only Hopper's kernels for latents read a schedule. */
static bool attn_latents_are_sm90(const struct k_kv *kv)
{
#ifdef HAVE_SM90
    return !k_is_portable() && k_attn_latents_take_sm90(kv) != 0;
#else
    (void)kv;
    return false;
#endif
}

int k_attn_latents(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                   const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream)
{
#ifdef HAVE_SM90
    if (attn_latents_are_sm90(kv))
        return k_attn_latents_sm90(out, qkv, kv, t, plan, n_heads, scale, stream);
#endif
    return k_attn_latents_plain(out, qkv, kv, t, plan, n_heads, scale, stream);
}

int k_latent_joins(const struct k_latent_shape *s, const struct k_matrix *q_b, int n)
{
#ifdef HAVE_SM90
    return !k_is_portable() && k_latent_joins_sm90(s, q_b, n);
#else
    (void)s, (void)q_b, (void)n;
    return 0;
#endif
}

int k_latent_join(k_bf16 *out, const k_bf16 *in, const struct k_latent *l,
                  const struct k_matrix *q_b, const struct k_kv *kv, const struct k_tokens *t,
                  k_stream stream)
{
#ifdef HAVE_SM90
    if (!k_is_portable())
        return k_latent_join_sm90(out, in, l, q_b, kv, t, stream);
#else
    (void)out, (void)in, (void)l, (void)q_b, (void)kv, (void)t, (void)stream;
#endif
    return -1;
}

int k_attn_schedule(const struct k_attn_plan *plan, const struct k_kv *kv, const struct k_tokens *t,
                    int n_heads, k_stream stream)
{
    if (kv->value_dim > 0 && !attn_latents_are_sm90(kv))
        return 0;
    if (kv->cap > 0.0f)
        return ATTN_CAPPED(k_attn_schedule, plan, kv, t, n_heads, stream);
    return CHOOSE(k_attn_schedule, plan, kv, t, n_heads, stream);
}

int k_attn_decode(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                  const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream)
{
    if (kv->cap > 0.0f)
        return ATTN_CAPPED(k_attn_decode, out, qkv, kv, t, plan, n_heads, scale, stream);
    return CHOOSE(k_attn_decode, out, qkv, kv, t, plan, n_heads, scale, stream);
}

int k_attn_rounds(const struct k_kv *kv, int n_heads)
{
#ifdef HAVE_SM90
    return !attn_is_portable(kv) && k_attn_chunk_takes_sm90(kv, NULL, n_heads) &&
           k_attn_chunk_is_fp8(kv);
#else
    (void)kv, (void)n_heads;
    return 0;
#endif
}

int k_attn_chunk(k_bf16 *out, const k_bf16 *qkv, const struct k_kv *kv, const struct k_tokens *t,
                 const struct k_attn_plan *plan, int n_heads, float scale, k_stream stream)
{
#ifdef HAVE_SM90
    if (!attn_is_portable(kv) && k_attn_chunk_takes_sm90(kv, qkv, n_heads)) {
        if (k_attn_chunk_is_fp8(kv))
            return k_attn_chunk_fp8(out, qkv, kv, t, plan, n_heads, scale, stream);
        return k_attn_chunk_sm90(out, qkv, kv, t, plan, n_heads, scale, stream);
    }
#endif
    return k_attn_chunk_plain(out, qkv, kv, t, plan, n_heads, scale, stream);
}

int k_sample(int32_t *ids, const float *logits, int n_rows, int n_vocab,
             const struct k_sample_row *rows, const int32_t *history, k_stream stream)
{
    return CHOOSE(k_sample, ids, logits, n_rows, n_vocab, rows, history, stream);
}

int k_logprobs(struct k_logprob_row *out, const float *logits, int n_vocab,
               const struct k_logits_row *rows, int n, k_stream stream)
{
    return CHOOSE(k_logprobs, out, logits, n_vocab, rows, n, stream);
}
