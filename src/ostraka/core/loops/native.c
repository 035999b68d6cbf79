/* The loops of `ostraka.core.loops` in C, each equal to its numpy twin to the bit (ADR 0017).
 *
 * Nothing here allocates, keeps state, reads a clock or knows a key. Python has checked types,
 * shapes and alignment before a pointer gets here, so sizes are true, and no array that is written
 * overlaps another one.
 *
 * Floating-point sums have one order, which the code states: sums are made in LANES separate
 * places, value k in place k mod LANES, which are then added up in halves. The compiler may use
 * vectors of any width for that and get the same bits. It must not contract a product and a sum
 * into one rounding: -ffp-contract=off. Everything else is integers, or float64 sums of integers
 * that stay below 2^53, and these are exact in any order.
 *
 * A loop is written once, as NAME_body, and compiled for several instruction sets. The caller says
 * which one to run, and asks `ostraka_level` first for what the processor has.
 */

#include <stddef.h>
#include <stdint.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ABI 6
#define LANES 128
#define CHUNK 1024 /* values that are worked on at a time; a multiple of LANES */
#define LINE 16 /* values in a line of the cache */
#define AHEAD 512 /* bytes from what is read to what is fetched */
#define SHARED 512 /* values that are shared at a time, and stay in the first cache */
#define WIDE 8 /* float64 that are worked on at a time where sums need no order */
#define TOGETHER 8 /* rows that are added, or blocks that are folded, at a time */
#define SIDE 4 /* rows of integers that are multiplied with as many others at a time */
#define SPAN 4096 /* values of them, whose products sum to less than 2^31 */
#define BYTES 64 /* in a vector of AVX-512 */
#define P 0x7fffffffu

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

enum { BASELINE, AVX2, AVX512, VNNI };

/* Defines NAME(level, ...) from NAME_body(...). PARAMETERS and ARGUMENTS are in brackets. VNNI is
 * AVX-512 with products of bytes, which one loop asks for itself. */
#if defined(__x86_64__)
#define TARGET_AVX2 __attribute__((target("avx2")))
#define TARGET_AVX512                                                                              \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define TARGET_VNNI __attribute__((target("avx512f,avx512bw,avx512vnni")))
#define LOOP(TYPE, NAME, PARAMETERS, ARGUMENTS)                                                    \
    static TYPE NAME##_baseline PARAMETERS { return NAME##_body ARGUMENTS; }                       \
    TARGET_AVX2 static TYPE NAME##_avx2 PARAMETERS { return NAME##_body ARGUMENTS; }               \
    TARGET_AVX512 static TYPE NAME##_avx512 PARAMETERS { return NAME##_body ARGUMENTS; }           \
    EXPORT TYPE ostraka_##NAME PARAMETERS                                                          \
    {                                                                                              \
        switch (level) {                                                                           \
        case VNNI:                                                                                 \
        case AVX512: return NAME##_avx512 ARGUMENTS;                                               \
        case AVX2: return NAME##_avx2 ARGUMENTS;                                                   \
        default: return NAME##_baseline ARGUMENTS;                                                 \
        }                                                                                          \
    }
#else
#define LOOP(TYPE, NAME, PARAMETERS, ARGUMENTS)                                                    \
    EXPORT TYPE ostraka_##NAME PARAMETERS { return NAME##_body ARGUMENTS; }
#endif

EXPORT int32_t ostraka_abi(void) { return ABI; }

/* Returns the widest instruction set that this processor and its system have. */
EXPORT int32_t ostraka_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return __builtin_cpu_supports("avx512vnni") ? VNNI : AVX512;
    if (__builtin_cpu_supports("avx2"))
        return AVX2;
#endif
    return BASELINE;
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Adds x[k] y[k] to sums[k mod LANES]. Four at a time need a quarter of the loads and stores. */
INLINE void add_products(const float *x, const float *y, int64_t n, double *restrict sums)
{
    int64_t k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES)
        for (int64_t lane = k; lane < k + LANES; lane++) {
            double sum = sums[lane - k] + (double)x[lane] * (double)y[lane];
            sum += (double)x[lane + LANES] * (double)y[lane + LANES];
            sum += (double)x[lane + 2 * LANES] * (double)y[lane + 2 * LANES];
            sums[lane - k] = sum + (double)x[lane + 3 * LANES] * (double)y[lane + 3 * LANES];
        }
    for (; k < n; k++)
        sums[k % LANES] += (double)x[k] * (double)y[k];
}

INLINE double add_up(double *sums)
{
    for (int half = LANES / 2; half; half /= 2)
        for (int lane = 0; lane < half; lane++)
            sums[lane] += sums[lane + half];
    return sums[0];
}

/* The inner product of x and y, each (n,). */
INLINE double dot_body(int32_t level, const float *x, const float *y, int64_t n)
{
    double sums[LANES] = {0};
    for (int64_t start = 0; start < n; start += CHUNK)
        add_products(x + start, y + start, least(CHUNK, n - start), sums);
    return add_up(sums);
}

LOOP(double, dot, (int32_t level, const float *x, const float *y, int64_t n), (level, x, y, n))

/* The same of x and x, which are then widened once. */
INLINE double squares_body(int32_t level, const float *x, int64_t n)
{
    return dot_body(level, x, x, n);
}

LOOP(double, squares, (int32_t level, const float *x, int64_t n), (level, x, n))

/* A tile as it is folded: n values, and a bit for each, which turns its sign if it is 1. The highest
 * bit of a byte is the first. */
struct tile {
    const float *values;
    const uint8_t *bits;
    int64_t n;
    float scale;
};

/* Some places of the sketch, and the number of the value that comes to the first of them. */
struct arc {
    int64_t from, to, first;
};

/* Law 12 for the places from i on, before n, at which `count` blocks meet: block j has value
 * first[j] at place 0. Adds the values to the sums, in the order of blocks. The two forms in vectors
 * begin with place 0 and return how many places they did. */
INLINE void fold_baseline(
    const struct tile *tile, int count, const int64_t *first, int64_t i, int64_t n,
    float *restrict sums)
{
    for (; i < n; i++) {
        for (int j = 0; j < count; j++) {
            int64_t k = first[j] + i;
            union { float real; uint32_t bits; } value = {tile->values[k] * tile->scale};
            value.bits ^= ((uint32_t)tile->bits[k / 8] << (24 + k % 8)) & 0x80000000u;
            sums[i] += value.real;
        }
    }
}

#if defined(__x86_64__)
/* The bits of a vector's values are the highest of these. Four bytes are read for them. */
typedef uint32_t unaligned_32 __attribute__((aligned(1), may_alias));
#define WINDOW(bits, k) (__builtin_bswap32(*(const unaligned_32 *)((bits) + ((k) >> 3))) << ((k) & 7))

TARGET_AVX2 INLINE int64_t fold_eight(
    const struct tile *tile, int count, const int64_t *first, int64_t n, float *restrict sums)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    const __m256 factor = _mm256_set1_ps(tile->scale);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 sum = _mm256_loadu_ps(sums + i);
        for (int j = 0; j < count; j++) {
            int32_t window = (int32_t)WINDOW(tile->bits, first[j] + i);
            __m256i turned = _mm256_sllv_epi32(_mm256_set1_epi32(window), lanes);
            __m256 value = _mm256_mul_ps(_mm256_loadu_ps(tile->values + first[j] + i), factor);
            value = _mm256_xor_ps(value, _mm256_castsi256_ps(_mm256_and_si256(turned, sign)));
            sum = _mm256_add_ps(sum, value);
        }
        _mm256_storeu_ps(sums + i, sum);
    }
    return i;
}

TARGET_AVX512 INLINE int64_t fold_sixteen(
    const struct tile *tile, int count, const int64_t *first, int64_t n, float *restrict sums)
{
    const __m512i lanes = _mm512_setr_epi32(
        INT32_MIN, 1 << 30, 1 << 29, 1 << 28, 1 << 27, 1 << 26, 1 << 25, 1 << 24, 1 << 23, 1 << 22,
        1 << 21, 1 << 20, 1 << 19, 1 << 18, 1 << 17, 1 << 16);
    const __m512i sign = _mm512_set1_epi32(INT32_MIN);
    const __m512 factor = _mm512_set1_ps(tile->scale);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 sum = _mm512_loadu_ps(sums + i);
        for (int j = 0; j < count; j++) {
            int32_t window = (int32_t)WINDOW(tile->bits, first[j] + i);
            __mmask16 turned = _mm512_test_epi32_mask(_mm512_set1_epi32(window), lanes);
            __m512 value = _mm512_mul_ps(_mm512_loadu_ps(tile->values + first[j] + i), factor);
            __m512i bits = _mm512_castps_si512(value);
            bits = _mm512_mask_xor_epi32(bits, turned, bits, sign);
            sum = _mm512_add_ps(sum, _mm512_castsi512_ps(bits));
        }
        _mm512_storeu_ps(sums + i, sum);
    }
    return i;
}

/* Four blocks are the usual number, for which the inner loop disappears. */
TARGET_AVX2 static int64_t fold_avx2(
    const struct tile *tile, int count, const int64_t *first, int64_t n, float *sums)
{
    return count == 4 ? fold_eight(tile, 4, first, n, sums)
                      : fold_eight(tile, count, first, n, sums);
}

TARGET_AVX512 static int64_t fold_avx512(
    const struct tile *tile, int count, const int64_t *first, int64_t n, float *sums)
{
    return count == 4 ? fold_sixteen(tile, 4, first, n, sums)
                      : fold_sixteen(tile, count, first, n, sums);
}
#endif

INLINE void fold(
    int32_t level, const struct tile *tile, int count, const int64_t *first, int64_t n,
    float *sums)
{
    int64_t done = 0;
#if defined(__x86_64__)
    /* Windows end by the last byte of bits. A vector has eight places at least. */
    int64_t whole = n, last = 8 * ((tile->n + 7) / 8 - 4);
    for (int j = 0; j < count; j++)
        whole = least(whole, last - first[j] + 8);
    if (level >= AVX512)
        done = fold_avx512(tile, count, first, whole, sums);
    if (level == AVX2)
        done = fold_avx2(tile, count, first, whole, sums);
#endif
    fold_baseline(tile, count, first, done, n, sums);
}

/* Adds (x[k] scale)^2, for at most CHUNK values, to sums[k mod LANES]: first each place's few in
 * float32, whose squares are in its range if the scale is chosen well. The order is that of the
 * values, and not of the fold: a client hears whether its norm was right, and must learn nothing of
 * the fold by that. */
INLINE void add_squares(const float *restrict x, float scale, int64_t n, double *restrict sums)
{
    float parts[LANES] = {0};
    int64_t k = 0;
    for (; k + 4 * LANES <= n; k += 4 * LANES)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const float *at = x + k + lane;
            float a = at[0] * scale, b = at[LANES] * scale;
            float c = at[2 * LANES] * scale, d = at[3 * LANES] * scale;
            float sum = parts[lane] + a * a;
            sum += b * b;
            sum += c * c;
            parts[lane] = sum + d * d;
        }
    for (; k < n; k++)
        parts[k % LANES] += (x[k] * scale) * (x[k] * scale);
    for (int64_t lane = 0; lane < LANES; lane++)
        sums[lane] += (double)parts[lane];
}

/* The sum of (x[k] scale)^2, in this order. */
INLINE double scaled_squares_body(int32_t level, const float *x, int64_t n, float scale)
{
    double sums[LANES] = {0};
    for (int64_t start = 0; start < n; start += CHUNK)
        add_squares(x + start, scale, least(CHUNK, n - start), sums);
    return add_up(sums);
}

LOOP(double, scaled_squares, (int32_t level, const float *x, int64_t n, float scale),
    (level, x, n, scale))

/* Sets first[] of the blocks that are at place h, and `*stop` to where others are. Returns how many
 * they are. */
INLINE int meeting(const struct arc *arcs, int count, int64_t h, int64_t *first, int64_t *stop)
{
    int found = 0;
    for (int j = 0; j < count; j++) {
        if (arcs[j].from > h)
            *stop = least(*stop, arcs[j].from);
        else if (arcs[j].to > h) {
            *stop = least(*stop, arcs[j].to);
            first[found++] = arcs[j].first + h - arcs[j].from;
        }
    }
    return found;
}

/* Law 12: folds values (n,) into a sketch (m,), and returns the squares of what it has folded. A
 * block's values go to consecutive places, from its shift on and then from zero. A few blocks are
 * folded at a time, so that a place is read and written once. */
INLINE double absorb_body(
    int32_t level, const float *values, int64_t n, const uint8_t *bits, const uint32_t *shifts,
    float scale, float *sketch, int64_t m)
{
    const struct tile tile = {values, bits, n, scale};
    double squares = scaled_squares_body(level, values, n, scale);
    for (int64_t k = 0; k < n;) {
        struct arc arcs[2 * TOGETHER];
        int count = 0;
        for (; count < 2 * TOGETHER && k < n; k += m) {
            int64_t size = least(m, n - k), place = shifts[k / m] % m;
            int64_t before = least(size, m - place);
            arcs[count++] = (struct arc){place, place + before, k};
            arcs[count++] = (struct arc){0, size - before, k + before};
        }
        for (int64_t h = 0, stop = m; h < m; h = stop, stop = m) {
            int64_t first[TOGETHER];
            int found = meeting(arcs, count, h, first, &stop);
            if (found)
                fold(level, &tile, found, first, stop - h, sketch + h);
        }
    }
    return squares;
}

LOOP(double, absorb,
    (int32_t level, const float *values, int64_t n, const uint8_t *bits, const uint32_t *shifts,
        float scale, float *sketch, int64_t m),
    (level, values, n, bits, shifts, scale, sketch, m))

/* Adds weights[i] rows[i][k] for `count` rows to total[k], from k on for n columns. */
INLINE void add_columns(
    int count, const float *const *rows, const double *weights, int64_t k, int64_t n,
    double *restrict total)
{
    for (int64_t end = k + n; k < end; k++) {
        double sum = total[k];
        for (int row = 0; row < count; row++)
            sum += weights[row] * (double)rows[row][k];
        total[k] = sum;
    }
}

/* The same for TOGETHER rows, with that fraction of the loads and stores of sums. These are too many
 * for the processor to see that each is read in order, so it is told what comes next. */
INLINE void add_together(
    const float *const *rows, const double *weights, int64_t n, double *restrict total)
{
    int64_t k = 0;
    for (; k + LINE <= n; k += LINE) {
        for (int row = 0; row < TOGETHER; row++)
            __builtin_prefetch((const void *)((uintptr_t)(rows[row] + k) + AHEAD));
        add_columns(TOGETHER, rows, weights, k, LINE, total);
    }
    add_columns(TOGETHER, rows, weights, k, n - k, total);
}

/* Adds weights[i] rows[i] to total (n,), in the order of rows. */
INLINE void add_rows_body(
    int32_t level, const float *const *rows, const double *weights, int64_t count, int64_t n,
    double *total)
{
    int64_t row = 0;
    for (; row + TOGETHER <= count; row += TOGETHER)
        add_together(rows + row, weights + row, n, total);
    for (; row < count; row++)
        add_columns(1, rows + row, weights + row, 0, n, total);
}

LOOP(void, add_rows,
    (int32_t level, const float *const *rows, const double *weights, int64_t count, int64_t n,
        double *total),
    (level, rows, weights, count, n, total))

/* Law 7 for n values of a row: q, and their parts of s and of 2^32 v. What is no number in the
 * range of int32 counts as its least one. */
INLINE void quantise(
    const float *restrict values, float scale, const uint16_t *restrict dither, int64_t n,
    int32_t *restrict q, int64_t *s, int64_t *v)
{
    uint32_t spread_out[SHARED]; /* f (2^16 - f), at most 2^30 */
    for (int64_t i = 0; i < n; i++) {
        float real = __builtin_rintf(values[i] * scale);
        int32_t fixed = (int32_t)(real >= -0x1p31f && real < 0x1p31f ? real : -0x1p31f);
        uint32_t low = (uint32_t)fixed & 0xffff;
        spread_out[i] = low * (0x10000 - low);
        q[i] = (int32_t)((uint32_t)fixed + dither[i]) >> 16;
    }
    /* Two of either are at most 2^31. */
    uint64_t squares = 0, variance = 0;
    int64_t half = n / 2;
    for (int64_t i = 0; i < half; i++) {
        squares += (uint32_t)(q[i] * q[i]) + (uint32_t)(q[half + i] * q[half + i]);
        variance += spread_out[i] + spread_out[half + i];
    }
    for (int64_t i = 2 * half; i < n; i++) {
        squares += (uint32_t)(q[i] * q[i]);
        variance += spread_out[i];
    }
    *s += (int64_t)squares;
    *v += (int64_t)variance;
}

/* Law 19 for n <= SHARED values of a row: they are q, and need no more than 32 bits for their part
 * of s. */
INLINE void take_integers(
    const int8_t *restrict values, int64_t n, int32_t *restrict q, int64_t *s)
{
    int32_t squares = 0;
    for (int64_t i = 0; i < n; i++) {
        q[i] = values[i];
        squares += q[i] * q[i];
    }
    *s += squares;
}

INLINE uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
INLINE uint32_t max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }

/* Sums and differences of residues. Of two candidates the wrong one has wrapped, and is huge. */
INLINE uint32_t add(uint32_t a, uint32_t b) { return min_u32(a + b, a + b - P); }
INLINE uint32_t sub(uint32_t a, uint32_t b) { return min_u32(a - b, a - b + P); }

/* factor a by doubling, for the factors x and x x of the points x = 1, 2 and 3. */
INLINE uint32_t times(uint32_t a, int factor)
{
    uint32_t two = add(a, a), four = add(two, two);
    switch (factor) {
    case 2: return two;
    case 3: return add(two, a);
    case 4: return four;
    case 9: return add(add(four, four), a);
    default: return a;
    }
}

/* Law 8 at x and at -x, for n values. Of the t masks r1, r2, r3 only t are read: words of which the
 * highest bit does not count. Returns the greatest of them. */
INLINE uint32_t share_at(
    int x, int t, const int32_t *restrict q, const uint32_t *restrict r1,
    const uint32_t *restrict r2, const uint32_t *restrict r3, int64_t n, uint32_t *restrict plus,
    uint32_t *restrict minus)
{
    uint32_t greatest = 0;
    for (int64_t i = 0; i < n; i++) {
        /* As an unsigned number a negative q is huge, and q + p is its residue. */
        uint32_t even = min_u32((uint32_t)q[i], (uint32_t)q[i] + P), odd = r1[i] & P;
        greatest = max_u32(greatest, odd);
        if (t > 1) {
            uint32_t second = r2[i] & P;
            greatest = max_u32(greatest, second);
            even = add(times(second, x * x), even);
        }
        if (t > 2) {
            uint32_t third = r3[i] & P;
            greatest = max_u32(greatest, third);
            odd = add(times(third, x * x), odd);
        }
        odd = times(odd, x);
        plus[i] = add(even, odd);
        minus[i] = sub(even, odd);
    }
    return greatest;
}

/* Where q comes from: integers as they are, or else values with scales and dither. */
struct source {
    const int8_t *const *integers;
    const float *const *values;
    const float *scales;
    const uint16_t *dither;
};

/* Laws 7 and 8 for a group of rows. t is 1, 2 or 3. kept may be absent, and v for integers. Returns
 * the greatest mask, without its highest bit.
 *
 * integers, values: rows times (width,). dither, kept: (rows, width). masks: (t, rows, width).
 * shares: (2t, rows, width). s, v: (rows,), zeros at first. */
INLINE uint32_t share_of(
    int t, struct source from, const uint32_t *masks, uint32_t *shares, int16_t *kept,
    int64_t rows, int64_t width, int64_t *s, int64_t *v)
{
    uint32_t greatest = 0;
    int64_t plane = rows * width;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t start = 0; start < width; start += SHARED) {
            int32_t q[SHARED];
            int64_t n = least(SHARED, width - start), at = row * width + start;
            const uint32_t *r1 = masks + at, *r2 = t > 1 ? r1 + plane : r1;
            const uint32_t *r3 = t > 2 ? r2 + plane : r1;
            if (from.integers)
                take_integers(from.integers[row] + start, n, q, s + row);
            else
                quantise(from.values[row] + start, from.scales[row], from.dither + at, n, q,
                    s + row, v + row);
            uint32_t *plus = shares + at, *minus = plus + plane;
            greatest = max_u32(greatest, share_at(1, t, q, r1, r2, r3, n, plus, minus));
            if (t > 1)
                share_at(2, t, q, r1, r2, r3, n, plus + 2 * plane, minus + 2 * plane);
            if (t > 2)
                share_at(3, t, q, r1, r2, r3, n, plus + 4 * plane, minus + 4 * plane);
            if (kept)
                for (int64_t i = 0; i < n; i++)
                    kept[at + i] = (int16_t)q[i];
        }
    return greatest;
}

INLINE uint32_t share_any(
    int32_t t, struct source from, const uint32_t *masks, uint32_t *shares, int16_t *kept,
    int64_t rows, int64_t width, int64_t *s, int64_t *v)
{
    if (t == 1)
        return share_of(1, from, masks, shares, kept, rows, width, s, v);
    if (t == 2)
        return share_of(2, from, masks, shares, kept, rows, width, s, v);
    return share_of(3, from, masks, shares, kept, rows, width, s, v);
}

INLINE uint32_t share_body(
    int32_t level, int32_t t, const float *const *values, const float *scales,
    const uint16_t *dither, const uint32_t *masks, uint32_t *shares, int16_t *kept, int64_t rows,
    int64_t width, int64_t *s, int64_t *v)
{
    const struct source from = {0, values, scales, dither};
    return share_any(t, from, masks, shares, kept, rows, width, s, v);
}

LOOP(uint32_t, share,
    (int32_t level, int32_t t, const float *const *values, const float *scales,
        const uint16_t *dither, const uint32_t *masks, uint32_t *shares, int16_t *kept,
        int64_t rows, int64_t width, int64_t *s, int64_t *v),
    (level, t, values, scales, dither, masks, shares, kept, rows, width, s, v))

INLINE uint32_t share_integers_body(
    int32_t level, int32_t t, const int8_t *const *integers, const uint32_t *masks,
    uint32_t *shares, int16_t *kept, int64_t rows, int64_t width, int64_t *s)
{
    const struct source from = {integers, 0, 0, 0};
    return share_any(t, from, masks, shares, kept, rows, width, s, 0);
}

LOOP(uint32_t, share_integers,
    (int32_t level, int32_t t, const int8_t *const *integers, const uint32_t *masks,
        uint32_t *shares, int16_t *kept, int64_t rows, int64_t width, int64_t *s),
    (level, t, integers, masks, shares, kept, rows, width, s))

/* Law 11 for n columns of `count` rows of q, which are `width` apart: one[k] += weights[0] q[k] +
 * weights[2] q[width + k] + ..., and two[k] the same with the weights between these. They are exact
 * integers, in any order. */
INLINE void witness_some(
    int count, const double *weights, const int16_t *q, int64_t width, int64_t n,
    double *restrict one, double *restrict two)
{
    for (int64_t k = 0; k < n; k++) {
        double a = one[k], b = two[k];
        for (int row = 0; row < count; row++) {
            double value = (double)(int32_t)q[row * width + k];
            a += weights[2 * row] * value;
            b += weights[2 * row + 1] * value;
        }
        one[k] = a;
        two[k] = b;
    }
}

/* The same for all rows of q (rows, width). sums: (2, reach). A few columns are worked on at a time,
 * so that their sums stay in the first cache. */
INLINE void witness_body(
    int32_t level, const int16_t *q, const double *weights, int64_t rows, int64_t width,
    double *sums, int64_t reach)
{
    for (int64_t start = 0; start < width; start += SHARED) {
        int64_t n = least(SHARED, width - start), row = 0;
        double *one = sums + start, *two = one + reach;
        for (; row + TOGETHER <= rows; row += TOGETHER)
            witness_some(TOGETHER, weights + 2 * row, q + row * width + start, width, n, one, two);
        for (; row < rows; row++)
            witness_some(1, weights + 2 * row, q + row * width + start, width, n, one, two);
    }
}

LOOP(void, witness,
    (int32_t level, const int16_t *q, const double *weights, int64_t rows, int64_t width,
        double *sums, int64_t reach),
    (level, q, weights, rows, width, sums, reach))

/* SIDE rows of int8 from row i on, each from value `start` on. Where there are no more rows, the last
 * one stands in for them. */
INLINE void take_rows(
    const int8_t *const *rows, int64_t count, int64_t i, int64_t start, const int8_t **out)
{
    for (int side = 0; side < SIDE; side++)
        out[side] = rows[least(i + side, count - 1)] + start;
}

INLINE void widen_rows(const int8_t *const *rows, int64_t n, int16_t (*restrict out)[SPAN])
{
    for (int side = 0; side < SIDE; side++)
        for (int64_t k = 0; k < n; k++)
            out[side][k] = rows[side][k];
}

/* sums[i][j] = x_i y_j, of n values each. Of 16 bits, since processors have an instruction for two
 * such products and their sum. */
INLINE void multiply(
    int16_t (*restrict x)[SPAN], int16_t (*restrict y)[SPAN], int64_t n, int32_t (*sums)[SIDE])
{
    int32_t total[SIDE][SIDE] = {{0}};
    for (int64_t k = 0; k < n; k++)
        for (int i = 0; i < SIDE; i++)
            for (int j = 0; j < SIDE; j++)
                total[i][j] += x[i][k] * y[j][k];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            sums[i][j] = total[i][j];
}

#if defined(__x86_64__)
/* sums[i][j] = x_i (y_j + 128), of n values each, a multiple of BYTES: one factor of the instruction
 * has no sign. x is aligned, since reading across two lines of the cache takes twice as long. */
TARGET_VNNI static void multiply_shifted(
    int8_t (*x)[SPAN], const int8_t *const *y, int64_t n, int32_t (*sums)[SIDE])
{
    const __m512i shift = _mm512_set1_epi8(-128);
    __m512i total[SIDE][SIDE];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            total[i][j] = _mm512_setzero_si512();
    for (int64_t k = 0; k < n; k += BYTES) {
        __m512i left[SIDE];
        for (int i = 0; i < SIDE; i++)
            left[i] = _mm512_load_si512(x[i] + k);
        for (int j = 0; j < SIDE; j++) {
            /* As a byte without a sign, y with its highest bit turned is y + 128. */
            __m512i right = _mm512_xor_si512(_mm512_loadu_si512(y[j] + k), shift);
            for (int i = 0; i < SIDE; i++)
                total[i][j] = _mm512_dpbusd_epi32(total[i][j], right, left[i]);
        }
    }
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++)
            sums[i][j] = _mm512_reduce_add_epi32(total[i][j]);
}
#endif

/* Adds the inner products of n <= SPAN values, from `start` on, of SIDE rows from row i on, but not
 * from `last` on, with these and all later rows. */
INLINE void add_products_of(
    int bytes, const int8_t *const *rows, int64_t count, int64_t i, int64_t last, int64_t start,
    int64_t n, int64_t *gram)
{
    const int8_t *x[SIDE], *y[SIDE];
    int16_t wide_x[SIDE][SPAN], wide_y[SIDE][SPAN];
    _Alignas(BYTES) int8_t own_x[SIDE][SPAN];
    int32_t sums[SIDE][SIDE], more[SIDE] = {0};
    take_rows(rows, count, i, start, x);
    if (!bytes)
        widen_rows(x, n, wide_x);
    else
        for (int side = 0; side < SIDE; side++)
            for (int64_t k = 0; k < n; k++) {
                own_x[side][k] = x[side][k];
                more[side] += x[side][k];
            }
    for (int64_t j = i; j < count; j += SIDE) {
        take_rows(rows, count, j, start, y);
        if (!bytes) {
            widen_rows(y, n, wide_y);
            multiply(wide_x, wide_y, n, sums);
        }
#if defined(__x86_64__)
        else
            multiply_shifted(own_x, y, n, sums);
#endif
        for (int64_t row = i; row < least(i + SIDE, last); row++)
            for (int64_t other = row > j ? row : j; other < least(j + SIDE, count); other++)
                gram[row * count + other] += sums[row - i][other - j] - 128 * more[row - i];
    }
}

/* Adds the inner products of rows first to last with themselves and all later ones, (width,) each,
 * to the upper triangle of gram (count, count). They are exact integers. */
INLINE void add_gram_body(
    int32_t level, const int8_t *const *rows, int64_t count, int64_t width, int64_t first,
    int64_t last, int64_t *gram)
{
    for (int64_t start = 0, n; start < width; start += n) {
        n = least(SPAN, width - start);
        int bytes = level == VNNI && n >= BYTES;
        if (bytes)
            n -= n % BYTES;
        for (int64_t i = first; i < last; i += SIDE)
            if (bytes)
                add_products_of(1, rows, count, i, last, start, n, gram);
            else
                add_products_of(0, rows, count, i, last, start, n, gram);
    }
}

LOOP(void, add_gram,
    (int32_t level, const int8_t *const *rows, int64_t count, int64_t width, int64_t first,
        int64_t last, int64_t *gram),
    (level, rows, count, width, first, last, gram))

/* Keeps the bits of `mask` in every word (n,), and returns the greatest of them, or 0. */
INLINE uint32_t keep_bits_body(int32_t level, uint32_t *words, int64_t n, uint32_t mask)
{
    uint32_t greatest = 0;
    for (int64_t i = 0; i < n; i++) {
        words[i] &= mask;
        greatest = words[i] > greatest ? words[i] : greatest;
    }
    return greatest;
}

LOOP(uint32_t, keep_bits, (int32_t level, uint32_t *words, int64_t n, uint32_t mask),
    (level, words, n, mask))

INLINE void limbs_of(
    const uint32_t *restrict residues, int64_t n, double *restrict high, double *restrict both,
    double *restrict low)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t above = (int32_t)(residues[i] >> 16), below = (int32_t)(residues[i] & 0xffff);
        high[i] = (double)above;
        both[i] = (double)(above + below);
        low[i] = (double)below;
    }
}

/* The limbs h, h + l and l of 2^16 h + l. residues: (rows, width), its rows `stride` apart. */
INLINE void limbs_body(
    int32_t level, const uint32_t *residues, int64_t rows, int64_t width, int64_t stride,
    double *high, double *both, double *low)
{
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = row * width;
        limbs_of(residues + row * stride, width, high + at, both + at, low + at);
    }
}

LOOP(void, limbs,
    (int32_t level, const uint32_t *residues, int64_t rows, int64_t width, int64_t stride,
        double *high, double *both, double *low),
    (level, residues, rows, width, stride, high, both, low))

/* Adds the products of limbs of at most WIDE values of two rows to parts[3 limb + pair]. */
INLINE void add_limb_products(
    const double *one, const double *two, int count, double (*restrict parts)[WIDE])
{
    for (int lane = 0; lane < count; lane++) {
        double x = one[lane], y = two[lane];
        x -= __builtin_rint(x * (1.0 / P)) * P;
        y -= __builtin_rint(y * (1.0 / P)) * P;
        double high_x = __builtin_rint(x * 0x1p-16), low_x = x - high_x * 0x1p16;
        double high_y = __builtin_rint(y * 0x1p-16), low_y = y - high_y * 0x1p16;
        double both_x = high_x + low_x, both_y = high_y + low_y;
        parts[0][lane] += high_x * high_x;
        parts[1][lane] += high_x * high_y;
        parts[2][lane] += high_y * high_y;
        parts[3][lane] += both_x * both_x;
        parts[4][lane] += both_x * both_y;
        parts[5][lane] += both_y * both_y;
        parts[6][lane] += low_x * low_x;
        parts[7][lane] += low_x * low_y;
        parts[8][lane] += low_y * low_y;
    }
}

/* Law 11's evidence: two rows (n,) of integers within 2^53 - 2^31 are brought within p / 2 + 1 and
 * cut into 2^16 h + l. sums: h h', (h + l)(h' + l') and l l', each for the pairs 00, 01 and 11 of
 * rows. They are exact integers, in any order. */
INLINE void limb_products_body(
    int32_t level, const double *one, const double *two, int64_t n, double *sums)
{
    double parts[9][WIDE] = {{0}};
    int64_t k = 0;
    for (; k + WIDE <= n; k += WIDE)
        add_limb_products(one + k, two + k, WIDE, parts);
    add_limb_products(one + k, two + k, (int)(n - k), parts);
    for (int part = 0; part < 9; part++) {
        sums[part] = 0;
        for (int lane = 0; lane < WIDE; lane++)
            sums[part] += parts[part][lane];
    }
}

LOOP(void, limb_products,
    (int32_t level, const double *one, const double *two, int64_t n, double *sums),
    (level, one, two, n, sums))

/* float16 (n,) as float32. Shifted to their place, exponent and mantissa are those of a float32
 * that is 2^112 too small, denormal ones included; only infinities and NaN are not. */
INLINE void widen_float16_body(
    int32_t level, const uint16_t *restrict raw, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = (uint32_t)(raw[i] & 0x7fff) << 13;
        union { uint32_t bits; float real; } value = {magnitude};
        value.real *= 0x1p112f;
        value.bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : value.bits;
        value.bits |= (uint32_t)(raw[i] & 0x8000) << 16;
        out[i] = value.real;
    }
}

LOOP(void, widen_float16, (int32_t level, const uint16_t *raw, int64_t n, float *out),
    (level, raw, n, out))

/* bfloat16 (n,) as float32: the upper half of its bits. */
INLINE void widen_bfloat16_body(
    int32_t level, const uint16_t *restrict raw, int64_t n, uint32_t *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (uint32_t)raw[i] << 16;
}

LOOP(void, widen_bfloat16, (int32_t level, const uint16_t *raw, int64_t n, uint32_t *out),
    (level, raw, n, out))

/* int8 (n,) as float32, in multiples of `step`. */
INLINE void widen_int8_body(
    int32_t level, const int8_t *restrict raw, int64_t n, float step, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)raw[i] * step;
}

LOOP(void, widen_int8, (int32_t level, const int8_t *raw, int64_t n, float step, float *out),
    (level, raw, n, step, out))
