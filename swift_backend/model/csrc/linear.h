// y = x @ W.T + b for float32 activations and weights of 8, 16 or 32 bits, on CPUs with AVX2 and FMA.
//
// Every number of the result is the same sum in the same order, k = 0, 1, …, whatever other rows are in the call and
// however the work is divided. Weights are read once for up to six rows, which is what a verification pass lives on.
//
// Layout: panels of 16 outputs. For each k a panel has its 16 weights side by side; how, its kind says.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "vector.h"

namespace swift {

constexpr int64_t PANEL = 16;     // outputs
constexpr int MOST_ROWS = 6;      // 12 of the 16 registers are sums then
constexpr int64_t BLOCK_K = 512;  // a panel's block of 16 bits is 16 KB: it stays in the first cache while rows pass
// Bytes of a panel that are fetched before they are needed: with two panels each is read half as fast.
constexpr int64_t AHEAD_OF_TWO = 1024, AHEAD_OF_ONE = 4096;

// 8 words of 32 bits: word i holds the weight of output i in its low half and of output 8 + i in its high half, so that
// a shift and a mask make floats of them.
struct Bfloat16 {
    static constexpr int64_t BYTES = 32;  // of a panel, for each k
    static constexpr bool SCALED = false;
    AVX2 static void load(const char* at, __m256& low, __m256& high) {
        const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        low = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
        high = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }
};

// In the outputs' order, to be multiplied by each output's scale.
struct Int8 {
    static constexpr int64_t BYTES = 16;
    static constexpr bool SCALED = true;
    AVX2 static void load(const char* at, __m256& low, __m256& high) {
        low = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
        high = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 8))));
    }
};

// In the outputs' order.
struct Float32 {
    static constexpr int64_t BYTES = 64;
    static constexpr bool SCALED = false;
    AVX2 static void load(const char* at, __m256& low, __m256& high) {
        low = _mm256_loadu_ps(reinterpret_cast<const float*>(at));
        high = _mm256_loadu_ps(reinterpret_cast<const float*>(at) + LANES);
    }
};

enum Kind : int { BFLOAT16, INT8, FLOAT32 };

// weight: panels of `kind`. bias, scale: float32 [outputs rounded up to 16]; scale is read where the kind has one.
struct Linear {
    int kind;
    const char* weight;
    const float* bias;
    const float* scale;
    int64_t outputs, inputs;
    int64_t panels() const { return (outputs + PANEL - 1) / PANEL; }
};

// `ROWS` rows of x times `PANELS` panels, k in [from, to). sums [ROWS, stride]: begun at k = 0, and gone on from then.
// What lies `ahead` bytes on is fetched meanwhile.
template <class W, int ROWS, int PANELS>
AVX2 inline void tile(const float* x, int64_t x_stride, const char* const* w, const float* const* bias,
                      const float* const* scale, float* sums, int64_t stride, int64_t from, int64_t to, bool last,
                      int64_t ahead) {
    __m256 sum[ROWS][PANELS][2];
    UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int p = 0; p < PANELS; ++p)
            UNROLL for (int h = 0; h < 2; ++h) {
                if (from)
                    sum[r][p][h] = _mm256_loadu_ps(sums + r * stride + p * PANEL + h * LANES);
                else
                    sum[r][p][h] = W::SCALED ? _mm256_setzero_ps() : _mm256_loadu_ps(bias[p] + h * LANES);
            }
    _Pragma("GCC unroll 2") for (int64_t k = from; k < to; ++k) {
        __m256 low[PANELS], high[PANELS];
        UNROLL for (int p = 0; p < PANELS; ++p) {
            const char* at = w[p] + k * W::BYTES;
            if (k % 2 == 0) _mm_prefetch(at + ahead, _MM_HINT_T0);
            W::load(at, low[p], high[p]);
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const __m256 one = _mm256_broadcast_ss(x + r * x_stride + k);
            UNROLL for (int p = 0; p < PANELS; ++p) {
                sum[r][p][0] = _mm256_fmadd_ps(one, low[p], sum[r][p][0]);
                sum[r][p][1] = _mm256_fmadd_ps(one, high[p], sum[r][p][1]);
            }
        }
    }
    UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int p = 0; p < PANELS; ++p)
            UNROLL for (int h = 0; h < 2; ++h) {
                if (W::SCALED && last)
                    sum[r][p][h] = _mm256_fmadd_ps(sum[r][p][h], _mm256_loadu_ps(scale[p] + h * LANES),
                                                   _mm256_loadu_ps(bias[p] + h * LANES));
                _mm256_storeu_ps(sums + r * stride + p * PANEL + h * LANES, sum[r][p][h]);
            }
}

using Tile = void (*)(const float*, int64_t, const char* const*, const float* const*, const float* const*, float*,
                      int64_t, int64_t, int64_t, bool, int64_t);
// With few rows two panels at a time, or each sum would wait for its last addition.
constexpr int64_t MOST_ROWS_OF_TWO = 3;
template <class W>
constexpr Tile TWO_PANELS[] = {tile<W, 1, 2>, tile<W, 2, 2>, tile<W, 3, 2>};
template <class W>
constexpr Tile ONE_PANEL[] = {tile<W, 1, 1>, tile<W, 2, 1>, tile<W, 3, 1>, tile<W, 4, 1>, tile<W, 5, 1>, tile<W, 6, 1>};

// Up to two panels of all rows: sums [m, 32], the first panel's in the first 16 columns.
template <class W>
void panels_of(const Linear& linear, const float* x, int64_t m, const int64_t* which, int64_t count, float* sums) {
    constexpr int64_t STRIDE = 2 * PANEL;
    const int64_t k = linear.inputs, blocks = m <= MOST_ROWS ? 1 : (k + BLOCK_K - 1) / BLOCK_K;
    const int64_t block = (k + blocks - 1) / blocks;
    const char* w[2];
    const float *bias[2], *scale[2];
    for (int64_t p = 0; p < count; ++p) {
        w[p] = linear.weight + which[p] * k * W::BYTES;
        bias[p] = linear.bias + which[p] * PANEL;
        scale[p] = linear.scale + which[p] * PANEL;
    }
    for (int64_t from = 0; from < k; from += block) {
        const int64_t to = std::min(k, from + block);
        for (int64_t row = 0, rows; row < m; row += rows) {
            rows = std::min<int64_t>(m - row, MOST_ROWS);
            const float* at = x + row * k;
            float* out = sums + row * STRIDE;
            // The last rows' turn fetches the next block.
            const bool next = row && row + rows == m;
            if (count == 2 && rows <= MOST_ROWS_OF_TWO) {
                const int64_t ahead = next ? block * W::BYTES : AHEAD_OF_TWO;
                TWO_PANELS<W>[rows - 1](at, k, w, bias, scale, out, STRIDE, from, to, to == k, ahead);
                continue;
            }
            const int64_t ahead = next ? block * W::BYTES : AHEAD_OF_ONE;
            for (int64_t p = 0; p < count; ++p)
                ONE_PANEL<W>[rows - 1](at, k, w + p, bias + p, scale + p, out + p * PANEL, STRIDE, from, to, to == k, ahead);
        }
    }
}

// Within a parallel region: the product of x [m, inputs], handed to done(sums [m, 32], columns, first column of each) as
// it is ready, two panels at a time; pairs puts output i beside output i + outputs / 2, which are a multiple of 16.
template <class Done>
void multiply(const Linear& linear, const float* x, int64_t m, bool pairs, float* sums, Done done) {
    const int64_t panels = linear.panels(), parts = pairs ? panels / 2 : (panels + 1) / 2;
    // Handed out as they are done, since another process may hold one of the cores; a few at once, since memory is read
    // fastest in long stretches.
    const int64_t stretch = std::clamp<int64_t>(parts / (4 * omp_get_num_threads()), 1, 16);
#pragma omp for schedule(dynamic, stretch)
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t which[2] = {pairs ? part : 2 * part, pairs ? part + parts : 2 * part + 1};
        const int64_t count = which[1] < panels ? 2 : 1;
        if (linear.kind == BFLOAT16)
            panels_of<Bfloat16>(linear, x, m, which, count, sums);
        else if (linear.kind == INT8)
            panels_of<Int8>(linear, x, m, which, count, sums);
        else
            panels_of<Float32>(linear, x, m, which, count, sums);
        done(sums, part);
    }
}

// What multiply's results become.

// y [m, outputs] = sums.
struct Store {
    float* y;
    int64_t m, outputs;
    void operator()(const float* sums, int64_t part) const {
        const int64_t first = part * 2 * PANEL, width = std::min(2 * PANEL, outputs - first);
        for (int64_t r = 0; r < m; ++r) std::copy_n(sums + r * 2 * PANEL, width, y + r * outputs + first);
    }
};

// y [m, outputs] = x + sums.
struct AddTo {
    const float* x;
    float* y;
    int64_t m, outputs;
    void operator()(const float* sums, int64_t part) const {
        const int64_t first = part * 2 * PANEL, width = std::min(2 * PANEL, outputs - first);
        for (int64_t r = 0; r < m; ++r)
            for (int64_t i = 0; i < width; ++i)
                y[r * outputs + first + i] = x[r * outputs + first + i] + sums[r * 2 * PANEL + i];
    }
};

// y [m, width] = activation(gate) * up, of sums that hold a panel of each.
struct Gate {
    float* y;
    int64_t m, width;
    int activation;
    AVX2 void operator()(const float* sums, int64_t part) const {
        for (int64_t r = 0; r < m; ++r)
            for (int64_t i = 0; i < PANEL; i += LANES) {
                const float* at = sums + r * 2 * PANEL + i;
                const __m256 gate = activated(_mm256_loadu_ps(at), activation);
                _mm256_storeu_ps(y + r * width + part * PANEL + i, _mm256_mul_ps(gate, _mm256_loadu_ps(at + PANEL)));
            }
    }
};

}  // namespace swift
