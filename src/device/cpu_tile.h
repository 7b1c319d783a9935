/* Inner loops for one instruction set; included by cpu_math.c alone, several times.
 *
 * TILE(name) names what is defined; TILE_ROWS x TILE_OUTS sums are kept in registers. */

/* Lane i + lane i + width, for width 8, 4, 2, 1. */
static inline float TILE(fold)(const lanes *v)
{
    lanes8 a = __builtin_shufflevector(*v, *v, 0, 1, 2, 3, 4, 5, 6, 7) +
               __builtin_shufflevector(*v, *v, 8, 9, 10, 11, 12, 13, 14, 15);
    lanes4 b =
        __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);

    return (b[0] + b[2]) + (b[1] + b[3]);
}

/* *v = the first n < 16 elements of p, then zeros. */
static inline void TILE(load_rest)(lanes *v, const float *p, int n)
{
    *v = (lanes){0};
    memcpy(v, p, (size_t)n * sizeof *p);
}

/* rows x outs results; rows and outs are constants wherever this is inlined. */
#define TILE_BLOCK(rows, outs)                                                                   \
    lanes sum[rows][outs] = {0};                                                                 \
    int k = 0;                                                                                   \
                                                                                                 \
    for (; k + LANES <= n_in; k += LANES) {                                                      \
        lanes b[outs];                                                                           \
                                                                                                 \
        for (int j = 0; j < (outs); j++)                                                         \
            b[j] = *(const lanes_at *)(w + (size_t)j * n_in + k);                                \
        for (int i = 0; i < (rows); i++) {                                                       \
            lanes a = *(const lanes_at *)(x + (size_t)i * n_in + k);                             \
                                                                                                 \
            for (int j = 0; j < (outs); j++)                                                     \
                sum[i][j] += a * b[j];                                                           \
        }                                                                                        \
    }                                                                                            \
    for (int i = 0; i < (rows); i++) {                                                           \
        for (int j = 0; j < (outs); j++) {                                                       \
            if (k < n_in) {                                                                      \
                lanes a, b;                                                                      \
                                                                                                 \
                TILE(load_rest)(&a, x + (size_t)i * n_in + k, n_in - k);                         \
                TILE(load_rest)(&b, w + (size_t)j * n_in + k, n_in - k);                         \
                sum[i][j] += a * b;                                                              \
            }                                                                                    \
            y[(size_t)i * n_out + j] = TILE(fold)(&sum[i][j]) + (bias == NULL ? 0.0f : bias[j]); \
        }                                                                                        \
    }

static void TILE(block_full)(float *y, const float *x, const float *w, const float *bias, int n_in,
                             int n_out)
{
    TILE_BLOCK(TILE_ROWS, TILE_OUTS)
}

static void TILE(block_row)(float *y, const float *x, const float *w, const float *bias, int n_in,
                            int n_out)
{
    TILE_BLOCK(1, TILE_OUTS)
}

static void TILE(block_one)(float *y, const float *x, const float *w, const float *bias, int n_in,
                            int n_out)
{
    TILE_BLOCK(1, 1)
}

#undef TILE_BLOCK

/* clang-format off */
static void TILE(matmul)(const struct cpu_matmul *m)
{
    size_t n_in = (size_t)m->n_in, n_out = (size_t)m->n_out;
    int o = m->out_first;

    for (; o + TILE_OUTS <= m->out_last; o += TILE_OUTS) {
        const float *w = m->w + (size_t)o * n_in, *bias = m->bias == NULL ? NULL : m->bias + o;
        int r = m->row_first;

        for (; r + TILE_ROWS <= m->row_last; r += TILE_ROWS)
            TILE(block_full)(m->y + (size_t)r * n_out + o, m->x + (size_t)r * n_in, w, bias,
                             m->n_in, m->n_out);
        for (; r < m->row_last; r++)
            TILE(block_row)(m->y + (size_t)r * n_out + o, m->x + (size_t)r * n_in, w, bias,
                            m->n_in, m->n_out);
    }
    for (; o < m->out_last; o++) {
        for (int r = m->row_first; r < m->row_last; r++)
            TILE(block_one)(m->y + (size_t)r * n_out + o, m->x + (size_t)r * n_in,
                            m->w + (size_t)o * n_in, m->bias == NULL ? NULL : m->bias + o,
                            m->n_in, m->n_out);
    }
}
/* clang-format on */

static float TILE(scores)(float *scores, const float *q, const float *keys, int n, int dim,
                          float scale)
{
    float top = -INFINITY;

    for (int i = 0; i < n; i++, keys += dim) {
        lanes sum = {0}, a, b;
        int d = 0;

        for (; d + LANES <= dim; d += LANES)
            sum += *(const lanes_at *)(q + d) * *(const lanes_at *)(keys + d);
        if (d < dim) {
            TILE(load_rest)(&a, q + d, dim - d);
            TILE(load_rest)(&b, keys + d, dim - d);
            sum += a * b;
        }
        scores[i] = TILE(fold)(&sum) * scale;
        top = scores[i] > top ? scores[i] : top;
    }
    return top;
}

/* *v = e^*v within 2e-7 relative; arguments are held within +-87. */
static inline void TILE(exp16)(lanes *v)
{
    lanes x = *v, whole, y, p;
    lanes_int bits, low, high;

    low = x < -87.0f;
    high = x > 87.0f;
    bits = ((lanes_int)x & ~(low | high)) | ((lanes_int)((lanes){0} - 87.0f) & low) |
           ((lanes_int)((lanes){0} + 87.0f) & high);
    x = (lanes)bits;
    y = x * 1.44269504f;
    whole = (y + 12582912.0f) - 12582912.0f; /* 1.5 * 2^23: rounds to the nearest whole */
    y = y - whole;
    p = 1.5403530e-4f * y + 1.3333558e-3f;
    p = p * y + 9.6181291e-3f;
    p = p * y + 5.5504109e-2f;
    p = p * y + 2.4022651e-1f;
    p = p * y + 6.9314718e-1f;
    p = p * y + 1.0f;
    bits = (__builtin_convertvector(whole, lanes_int) + 127) << 23;
    *v = p * (lanes)bits;
}

static float TILE(weights)(float *scores, int n, float top)
{
    lanes sum = {0};

    for (int i = n; i % LANES != 0; i++)
        scores[i] = -INFINITY; /* becomes 1e-38: adds nothing */
    for (int i = 0; i < n; i += LANES) {
        lanes v = *(const lanes_at *)(scores + i) - top;

        TILE(exp16)(&v);
        *(lanes_at *)(scores + i) = v;
        sum += v;
    }
    return TILE(fold)(&sum);
}

static void TILE(mix)(float *out, const float *weights, const float *values, int n, int dim)
{
    int d = 0;

    for (; d + LANES <= dim; d += LANES) {
        lanes sum = *(const lanes_at *)(out + d);

        for (int i = 0; i < n; i++)
            sum += weights[i] * *(const lanes_at *)(values + (size_t)i * dim + d);
        *(lanes_at *)(out + d) = sum;
    }
    for (; d < dim; d++) {
        float sum = out[d];

        for (int i = 0; i < n; i++)
            sum += weights[i] * values[(size_t)i * dim + d];
        out[d] = sum;
    }
}

static void TILE(silu_mul)(float *out, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i += LANES) {
        int rest = n - i < LANES ? n - i : LANES;
        lanes g = {0}, u = {0}, e;

        memcpy(&g, gate + i, (size_t)rest * sizeof *gate);
        memcpy(&u, up + i, (size_t)rest * sizeof *up);
        e = -g;
        TILE(exp16)(&e);
        g = g / (1.0f + e) * u;
        memcpy(out + i, &g, (size_t)rest * sizeof *out);
    }
}

static const struct cpu_math TILE(math) = {
    .name = TILE_NAME,
    .matmul = TILE(matmul),
    .scores = TILE(scores),
    .weights = TILE(weights),
    .mix = TILE(mix),
    .silu_mul = TILE(silu_mul),
};
