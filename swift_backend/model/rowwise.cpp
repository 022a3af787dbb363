// y = x @ W.T + b for bfloat16 weights and float32 activations, on CPUs with AVX2 and FMA but no bfloat16 arithmetic.
//
// Every number of the result is the same sum in the same order, k = 0, 1, …, whatever other rows are in the call and
// however the work is divided. Weights are read once for up to six rows, which is what a verification pass lives on.
//
// Layout: panels of 16 outputs. For each k a panel has 8 words of 32 bits; word i holds the weight of output i in its
// low half and of output 8 + i in its high half, so that a shift and a mask make floats of them.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))
#define UNROLL _Pragma("GCC unroll 8")

namespace {

constexpr int64_t PANEL = 16;     // outputs
constexpr int64_t WORDS = 8;      // of 32 bits, for each k
constexpr int MOST_ROWS = 6;      // 12 of the 16 registers are sums then
constexpr int64_t BLOCK_K = 512;  // a panel's block is 16 KB: it stays in the first cache while rows pass
constexpr int64_t AHEAD = 1024;   // bytes of a panel that are fetched before they are needed

// `ROWS` rows of x times `PANELS` panels, k in [from, to); sums begin with the bias, or go on from y.
template <int ROWS, int PANELS>
AVX2 inline void tile(const float* x, int64_t x_stride, const uint32_t* w, int64_t w_stride, const float* bias,
                      float* y, int64_t y_stride, int64_t from, int64_t to) {
    __m256 sum[ROWS][PANELS][2];
    UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int p = 0; p < PANELS; ++p)
            UNROLL for (int h = 0; h < 2; ++h) {
                const int64_t column = p * PANEL + h * WORDS;
                sum[r][p][h] = from ? _mm256_loadu_ps(y + r * y_stride + column) : _mm256_loadu_ps(bias + column);
            }
    const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
    for (int64_t k = from; k < to; ++k) {
        __m256 low_half[PANELS], high_half[PANELS];
        UNROLL for (int p = 0; p < PANELS; ++p) {
            const uint32_t* at = w + p * w_stride + k * WORDS;
            const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
            _mm_prefetch(reinterpret_cast<const char*>(at) + AHEAD, _MM_HINT_T0);
            low_half[p] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
            high_half[p] = _mm256_castsi256_ps(_mm256_and_si256(words, high));
        }
        UNROLL for (int r = 0; r < ROWS; ++r) {
            const __m256 one = _mm256_broadcast_ss(x + r * x_stride + k);
            UNROLL for (int p = 0; p < PANELS; ++p) {
                sum[r][p][0] = _mm256_fmadd_ps(one, low_half[p], sum[r][p][0]);
                sum[r][p][1] = _mm256_fmadd_ps(one, high_half[p], sum[r][p][1]);
            }
        }
    }
    UNROLL for (int r = 0; r < ROWS; ++r)
        UNROLL for (int p = 0; p < PANELS; ++p)
            UNROLL for (int h = 0; h < 2; ++h)
                _mm256_storeu_ps(y + r * y_stride + p * PANEL + h * WORDS, sum[r][p][h]);
}

using Tile = void (*)(const float*, int64_t, const uint32_t*, int64_t, const float*, float*, int64_t, int64_t, int64_t);
// With few rows two panels at a time, or each sum would wait for its last addition.
constexpr Tile TWO_PANELS[] = {tile<1, 2>, tile<2, 2>, tile<3, 2>};
constexpr Tile ONE_PANEL[] = {tile<1, 1>, tile<2, 1>, tile<3, 1>, tile<4, 1>, tile<5, 1>, tile<6, 1>};
constexpr int64_t MOST_ROWS_OF_TWO = 3;

// So many of the rows that are left at once: what remains for the last turn is no single row.
int64_t next_rows(int64_t left) {
    if (left <= MOST_ROWS) return left;
    return left < 2 * MOST_ROWS ? (left + 1) / 2 : MOST_ROWS;
}

// Columns [first, first + 16 * panels) of all rows of y, of which the last ones may not exist.
void panels_of(const float* x, const uint32_t* w, const float* bias, float* y, int64_t m, int64_t n, int64_t k,
               int64_t first, int64_t panels) {
    const int64_t w_stride = k * WORDS, block = m <= MOST_ROWS ? k : BLOCK_K;
    const bool whole = first + panels * PANEL <= n;
    alignas(32) float outside[MOST_ROWS * 2 * PANEL];
    for (int64_t from = 0; from < k; from += block) {
        const int64_t to = std::min(k, from + block);
        for (int64_t row = 0, rows; row < m; row += rows) {
            rows = next_rows(m - row);
            const Tile run = panels == 2 ? TWO_PANELS[rows - 1] : ONE_PANEL[rows - 1];
            float* at = y + row * n + first;
            float* sums = whole ? at : outside;
            const int64_t stride = whole ? n : panels * PANEL, width = std::min(n - first, panels * PANEL);
            if (!whole && from)
                for (int64_t r = 0; r < rows; ++r) std::copy_n(at + r * n, width, outside + r * stride);
            run(x + row * k, k, w, w_stride, bias + first, sums, stride, from, to);
            if (!whole)
                for (int64_t r = 0; r < rows; ++r) std::copy_n(outside + r * stride, width, at + r * n);
        }
    }
}

void linear(const float* x, const uint32_t* w, const float* bias, float* y, int64_t m, int64_t n, int64_t k,
            int threads) {
    const int64_t panels = (n + PANEL - 1) / PANEL, together = m <= MOST_ROWS_OF_TWO ? 2 : 1;
    const int64_t parts = (panels + together - 1) / together;
// Handed out as they are done: another process may hold one of the cores.
#pragma omp parallel for schedule(dynamic, 2) num_threads(threads)
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t panel = part * together;
        panels_of(x, w + panel * k * WORDS, bias, y, m, n, k, panel * PANEL, std::min(together, panels - panel));
    }
}

bool cpu_has_it() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

}  // namespace
#else
namespace {
bool cpu_has_it() { return false; }
void linear(const float*, const uint32_t*, const float*, float*, int64_t, int64_t, int64_t, int) {}
}  // namespace
#endif

// linear(x, weight, bias, y, rows, outputs, inputs, threads): addresses of float32 [rows, inputs], the panels, float32
// [outputs rounded up to 16] and float32 [rows, outputs]; the caller vouches for them.
static PyObject* py_linear(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "linear takes 8 arguments");
        return nullptr;
    }
    long long given[8];
    for (int i = 0; i < 8; ++i) given[i] = PyLong_AsLongLong(arguments[i]);
    if (PyErr_Occurred()) return nullptr;
    Py_BEGIN_ALLOW_THREADS
    linear(reinterpret_cast<const float*>(given[0]), reinterpret_cast<const uint32_t*>(given[1]),
           reinterpret_cast<const float*>(given[2]), reinterpret_cast<float*>(given[3]), given[4], given[5], given[6],
           static_cast<int>(given[7]));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject* py_supported(PyObject*, PyObject*) { return PyBool_FromLong(cpu_has_it()); }

static PyMethodDef methods[] = {
    {"linear", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(py_linear)), METH_FASTCALL, nullptr},
    {"supported", py_supported, METH_NOARGS, "Whether this CPU has what linear needs."},
    {nullptr, nullptr, 0, nullptr},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rowwise", nullptr, -1, methods};

PyMODINIT_FUNC PyInit__rowwise() { return PyModule_Create(&definition); }
