// Which small pieces are the sums made of? Everything here is one row's, in an order that depends on its length alone.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

#define AVX2 __attribute__((target("avx2,fma")))
#define UNROLL _Pragma("GCC unroll 8")

namespace swift {

constexpr int64_t LANES = 8;

AVX2 inline float sum_of(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

AVX2 inline float largest_of(__m256 x) {
    __m128 half = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_max_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

// The eight sums of eight vectors, in their order.
AVX2 inline __m256 sums_of(const __m256* x) {
    const __m256 low = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    const __m256 high = _mm256_hadd_ps(_mm256_hadd_ps(x[4], x[5]), _mm256_hadd_ps(x[6], x[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31));
}

// e to the power of x, to about two units in the last place; at least e^-87, and NaN stays NaN. With x = n ln 2 + r, the
// power of r is its Taylor series: |r| <= 0.35, so what is left out is below 2^-25 of it.
AVX2 inline __m256 exp_of(__m256 x) {
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), _mm256_max_ps(_mm256_set1_ps(-87.0f), x));
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);  // ln 2 in two parts, the first without rounding
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.0f / 5040);
    for (const float one : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(one));
    const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

AVX2 inline __m256 tanh_of(__m256 x) {
    const __m256 one = _mm256_set1_ps(1.0f), power = exp_of(_mm256_add_ps(x, x));
    return _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(power, one)));
}

enum Activation : int { SILU, GELU_TANH, RELU };

AVX2 inline __m256 activated(__m256 x, int activation) {
    const __m256 one = _mm256_set1_ps(1.0f), zero = _mm256_setzero_ps();
    if (activation == SILU) return _mm256_div_ps(x, _mm256_add_ps(one, exp_of(_mm256_sub_ps(zero, x))));
    if (activation == RELU) return _mm256_max_ps(zero, x);  // in this order NaN stays
    const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
    const __m256 inner = _mm256_mul_ps(_mm256_set1_ps(0.79788456f), _mm256_fmadd_ps(_mm256_set1_ps(0.044715f), cube, x));
    return _mm256_mul_ps(_mm256_mul_ps(_mm256_set1_ps(0.5f), x), _mm256_add_ps(one, tanh_of(inner)));
}

// y = x / sqrt(mean(x²) + eps) * weight for a row of a multiple of 8 numbers; y may be x.
AVX2 inline void rms_norm(const float* x, const float* weight, float eps, int64_t size, float* y) {
    __m256 squares = _mm256_setzero_ps();
    for (int64_t i = 0; i < size; i += LANES) {
        const __m256 one = _mm256_loadu_ps(x + i);
        squares = _mm256_fmadd_ps(one, one, squares);
    }
    const __m256 factor = _mm256_set1_ps(1.0f / std::sqrt(sum_of(squares) / static_cast<float>(size) + eps));
    for (int64_t i = 0; i < size; i += LANES)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), factor), _mm256_loadu_ps(weight + i)));
}

}  // namespace swift
