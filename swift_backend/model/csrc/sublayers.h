// Whole sublayers, x + f(norm(x)), each in one parallel region: what torch would spend on small operations between the
// products is as much as half of a pass of a small model.
#pragma once

#include <memory>

#include "attention.h"
#include "linear.h"

namespace swift {

// Numbers that are not set: a vector would write to all of them first.
class Scratch {
   public:
    explicit Scratch(int64_t count) : numbers_(new float[static_cast<size_t>(count)]) {}
    float* take(int64_t count) {
        float* at = numbers_.get() + used_;
        used_ += count;
        return at;
    }

   private:
    std::unique_ptr<float[]> numbers_;
    int64_t used_ = 0;
};

inline void multiply_only(const Linear& linear, const float* x, float* y, int64_t m, int threads) {
#pragma omp parallel num_threads(threads)
    {
        Scratch sums(m * 2 * PANEL);
        multiply(linear, x, m, false, sums.take(m * 2 * PANEL), Store{y, m, linear.outputs});
    }
}

// norm: float32 [hidden].
struct Norm {
    const float* weight;
    float eps;
};

// Within a parallel region.
inline void norm_rows(const Norm& norm, const float* x, int64_t m, int64_t size, float* y) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < m; ++r) rms_norm(x + r * size, norm.weight, norm.eps, size, y + r * size);
}

// up makes gate and up, a multiple of 16 outputs each.
struct Mlp {
    Norm norm;
    Linear up, down;
    int activation;

    void run(const float* x, float* y, int64_t m, int threads) const {
        const int64_t hidden = up.inputs, width = down.inputs;
        Scratch scratch(m * (hidden + width));
        float *normed = scratch.take(m * hidden), *inner = scratch.take(m * width);
#pragma omp parallel num_threads(threads)
        {
            Scratch own(m * 2 * PANEL);
            float* sums = own.take(m * 2 * PANEL);
            norm_rows(norm, x, m, hidden, normed);
            multiply(up, normed, m, true, sums, Gate{inner, m, width, activation});
            multiply(down, inner, m, false, sums, AddTo{x, y, m, hidden});
        }
    }
};

// Rotation of the first `size` dimensions of a head, by columns [from, from + size) of tables [rows, stride].
struct Rope {
    int64_t from, size, stride;
};

// q_norm, k_norm: of each head, weight null where there is none.
struct AttentionSublayer {
    Norm norm, q_norm, k_norm;
    Linear qkv, out;
    Heads heads;
    Rope rope;

    void run(const float* x, float* y, const float* cos, const float* sin, float* slots, const int64_t* slot,
             const Rows& rows, int threads) const {
        const int64_t m = rows.count, hidden = qkv.inputs, projected_size = qkv.outputs;
        Scratch scratch(m * (hidden + projected_size + out.inputs));
        float *normed = scratch.take(m * hidden), *projected = scratch.take(m * projected_size);
        float* attended = scratch.take(m * out.inputs);
        Attention attention(heads, rows, slots, projected, projected_size, attended, threads);
#pragma omp parallel num_threads(threads)
        {
            Scratch own(m * 2 * PANEL);
            float* sums = own.take(m * 2 * PANEL);
            norm_rows(norm, x, m, hidden, normed);
            multiply(qkv, normed, m, false, sums, Store{projected, m, projected_size});
#pragma omp for schedule(static)
            for (int64_t r = 0; r < m; ++r) {
                float* row = projected + r * projected_size;
                prepare(row, cos + r * rope.stride + rope.from, sin + r * rope.stride + rope.from);
                std::copy_n(row + heads.heads * heads.head_dim, heads.stride(), slots + slot[r] * heads.stride());
            }
            attention.run();
            multiply(out, attended, m, false, sums, AddTo{x, y, m, hidden});
        }
    }

   private:
    // Norms and rotates a row's queries and keys.
    AVX2 void prepare(float* row, const float* cos, const float* sin) const {
        for (int64_t h = 0; h < heads.heads + heads.kv_heads; ++h) {
            float* head = row + h * heads.head_dim;
            const Norm& own = h < heads.heads ? q_norm : k_norm;
            if (own.weight) rms_norm(head, own.weight, own.eps, heads.head_dim, head);
            const int64_t half = rope.size / 2;
            for (int64_t i = 0; i < half; ++i) {  // sin's first half is negated
                const float a = head[i], b = head[i + half];
                head[i] = a * cos[i] + b * sin[i];
                head[i + half] = b * cos[i + half] + a * sin[i + half];
            }
        }
    }
};

}  // namespace swift
