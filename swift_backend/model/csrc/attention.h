// Attention of rows over a cache of float32 keys and values.
//
// A row's sum goes through the positions that it sees in their order: in blocks, and in chunks of blocks, that begin at
// multiples of their size. So it depends on the row's position and on what it sees, and on nothing else: not on the rows
// beside it, not on where a draft's tokens lie in the cache, not on who computes which chunk.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "vector.h"

namespace swift {

constexpr int64_t BLOCK = 64;   // positions whose keys and values stay in the first cache
constexpr int64_t CHUNK = 512;  // positions that one thread takes
constexpr int64_t TILE = 8;     // rows of a sequence that go through a chunk together
constexpr int64_t TABLE = 4;    // numbers for each row

// A row sees its sequence's positions up to its own, at most `window` of them. Those before `first` lie in the cache at
// start + position; from there on at start + first + the row's path, or one after another where it has none.
struct Row {
    int64_t start, first, position, path;
};

// slots: [capacity, 2 * kv_heads, head_dim], keys before values. cap: 0 where there is none; window: 0 likewise.
struct Heads {
    int64_t heads, kv_heads, head_dim, window;
    float scale, cap;
    int64_t group() const { return heads / kv_heads; }
    int64_t stride() const { return 2 * kv_heads * head_dim; }
    int64_t oldest(const Row& row) const { return window ? std::max<int64_t>(0, row.position - window + 1) : 0; }
};

struct Rows {
    const int64_t* table;  // [rows, 4]: as in Row; path: where the row's begins in paths, or −1
    const int64_t* paths;
    int64_t count;
    Row at(int64_t row) const {
        const int64_t* one = table + row * TABLE;
        return {one[0], one[1], one[2], one[3]};
    }
    int64_t slot(const Row& row, int64_t position) const {
        if (position < row.first || row.path < 0) return row.start + position;
        return row.start + row.first + paths[row.path + position - row.first];
    }
};

// A sum under way, head_dim + 8 numbers: Σ weight * value, then the largest score and Σ weight, both of e^(score − largest).
inline int64_t state_size(const Heads& heads) { return heads.head_dim + LANES; }

inline void begin(float* state, int64_t head_dim) {
    std::fill_n(state, head_dim, 0.0f);
    state[head_dim] = -std::numeric_limits<float>::infinity();
    state[head_dim + 1] = 0.0f;
}

AVX2 inline __m256 eight_scores(const float* query, const float* const* keys, int64_t head_dim) {
    __m256 sum[LANES];
    UNROLL for (int j = 0; j < LANES; ++j) sum[j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < head_dim; i += LANES) {
        const __m256 one = _mm256_loadu_ps(query + i);
        UNROLL for (int j = 0; j < LANES; ++j) sum[j] = _mm256_fmadd_ps(one, _mm256_loadu_ps(keys[j] + i), sum[j]);
    }
    return sums_of(sum);
}

// sum += Σ weight * value for `N` * 8 of the dimensions.
template <int N>
AVX2 inline void add_values(const float* weights, const float* const* values, int64_t from, int64_t to, int64_t at,
                            float factor, float* sum) {
    __m256 acc[N];
    UNROLL for (int i = 0; i < N; ++i)
        acc[i] = _mm256_mul_ps(_mm256_loadu_ps(sum + at + i * LANES), _mm256_set1_ps(factor));
    for (int64_t j = from; j < to; ++j) {
        const __m256 weight = _mm256_broadcast_ss(weights + j);
        UNROLL for (int i = 0; i < N; ++i)
            acc[i] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(values[j] + at + i * LANES), acc[i]);
    }
    UNROLL for (int i = 0; i < N; ++i) _mm256_storeu_ps(sum + at + i * LANES, acc[i]);
}

// One query and the positions [from, to) of a block; the other pointers in an eight that is begun may be any valid ones.
AVX2 inline void attend_block(const Heads& heads, const float* query, const float* const* keys,
                              const float* const* values, int64_t from, int64_t to, float* state) {
    const int64_t head_dim = heads.head_dim;
    alignas(32) float weights[BLOCK];
    const __m256 least = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    const __m256 places = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 most = least;
    for (int64_t j = from & ~(LANES - 1); j < to; j += LANES) {
        __m256 scores = _mm256_mul_ps(eight_scores(query, keys + j, head_dim), _mm256_set1_ps(heads.scale));
        if (heads.cap > 0)
            scores = _mm256_mul_ps(_mm256_set1_ps(heads.cap), tanh_of(_mm256_div_ps(scores, _mm256_set1_ps(heads.cap))));
        const __m256 place = _mm256_add_ps(places, _mm256_set1_ps(static_cast<float>(j)));
        const __m256 inside = _mm256_and_ps(_mm256_cmp_ps(place, _mm256_set1_ps(static_cast<float>(from)), _CMP_GE_OQ),
                                            _mm256_cmp_ps(place, _mm256_set1_ps(static_cast<float>(to)), _CMP_LT_OQ));
        scores = _mm256_blendv_ps(least, scores, inside);
        _mm256_store_ps(weights + j, scores);
        most = _mm256_max_ps(most, scores);
    }
    const float before = state[head_dim], largest = std::max(before, largest_of(most));
    const __m256 top = _mm256_set1_ps(largest);
    __m256 total = _mm256_setzero_ps();
    for (int64_t j = from & ~(LANES - 1); j < to; j += LANES) {
        const __m256 scores = _mm256_load_ps(weights + j);
        const __m256 outside = _mm256_cmp_ps(scores, least, _CMP_EQ_OQ);
        const __m256 one = _mm256_andnot_ps(outside, exp_of(_mm256_sub_ps(scores, top)));
        _mm256_store_ps(weights + j, one);
        total = _mm256_add_ps(total, one);
    }
    const float factor = before == largest ? 1.0f : std::exp(before - largest);
    state[head_dim] = largest;
    state[head_dim + 1] = state[head_dim + 1] * factor + sum_of(total);
    int64_t at = 0;
    for (; at + 8 * LANES <= head_dim; at += 8 * LANES) add_values<8>(weights, values, from, to, at, factor, state);
    for (; at < head_dim; at += LANES) add_values<1>(weights, values, from, to, at, factor, state);
}

// Rows [first, last) of one sequence, the heads of one kv head, and one chunk: begins and fills states [rows, group].
inline void attend_chunk(const Heads& heads, const Rows& rows, const float* slots, const float* queries, int64_t stride,
                         int64_t first, int64_t last, int64_t kv_head, int64_t chunk, float* states) {
    const int64_t group = heads.group(), size = state_size(heads), head_dim = heads.head_dim;
    for (int64_t i = 0; i < (last - first) * group; ++i) begin(states + i * size, head_dim);
    const float *keys[BLOCK], *values[BLOCK];
    for (int64_t base = chunk * CHUNK; base < (chunk + 1) * CHUNK; base += BLOCK)
        for (int64_t r = first; r < last; ++r) {
            const Row row = rows.at(r);
            const int64_t from = std::max(heads.oldest(row), base) - base;
            const int64_t to = std::min(row.position + 1, base + BLOCK) - base;
            if (from >= to) continue;
            const int64_t end = (to + LANES - 1) & ~(LANES - 1);
            for (int64_t j = from & ~(LANES - 1); j < end; ++j) {
                const int64_t position = base + std::min(std::max(j, from), to - 1);
                keys[j] = slots + rows.slot(row, position) * heads.stride() + kv_head * head_dim;
                values[j] = keys[j] + heads.kv_heads * head_dim;
            }
            for (int64_t g = 0; g < group; ++g)
                attend_block(heads, queries + r * stride + (kv_head * group + g) * head_dim, keys, values, from, to,
                             states + ((r - first) * group + g) * size);
        }
}

// total = total and one, in this order.
AVX2 inline void fold(const Heads& heads, float* total, const float* one) {
    const int64_t d = heads.head_dim;
    const float largest = std::max(total[d], one[d]);
    const float mine = std::exp(total[d] - largest), theirs = std::exp(one[d] - largest);
    for (int64_t i = 0; i < d; ++i) total[i] = total[i] * mine + one[i] * theirs;
    total[d] = largest;
    total[d + 1] = total[d + 1] * mine + one[d + 1] * theirs;
}

inline void finish(const Heads& heads, const float* state, float* out) {
    for (int64_t i = 0; i < heads.head_dim; ++i) out[i] = state[i] / state[heads.head_dim + 1];
}

// Which rows go together: those of one sequence, up to TILE of them.
struct Tiles {
    std::vector<int64_t> begins;
    int64_t chunks = 0;  // of the row that has most
    Tiles(const Heads& heads, const Rows& rows) {
        for (int64_t r = 0; r < rows.count; ++r) {
            const Row row = rows.at(r);
            chunks = std::max(chunks, row.position / CHUNK - heads.oldest(row) / CHUNK + 1);
            if (begins.empty() || r - begins.back() == TILE || rows.at(begins.back()).start != row.start)
                begins.push_back(r);
        }
        begins.push_back(rows.count);
    }
    int64_t count() const { return static_cast<int64_t>(begins.size()) - 1; }
};

// Where the states of chunks lie that different threads take: a row's, a head's, one chunk after another.
struct Attention {
    const Heads& heads;
    const Rows& rows;
    const float* slots;
    const float* queries;  // [rows, stride], a row's heads side by side
    int64_t stride;
    float* out;  // [rows, heads * head_dim]
    Tiles tiles;
    bool split;  // chunks of a row among the threads
    std::vector<float> states;

    Attention(const Heads& h, const Rows& r, const float* s, const float* q, int64_t q_stride, float* o, int threads)
        : heads(h), rows(r), slots(s), queries(q), stride(q_stride), out(o), tiles(h, r) {
        split = tiles.chunks > 1 && rows.count <= TILE * threads;
        if (split) states.resize(rows.count * heads.heads * tiles.chunks * state_size(heads));
    }

    // Within a parallel region.
    void run() {
        const int64_t items = tiles.count() * heads.kv_heads;
        if (!split) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t item = 0; item < items; ++item) whole(item / heads.kv_heads, item % heads.kv_heads);
            return;
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t item = 0; item < items * tiles.chunks; ++item)
            part(item / tiles.chunks / heads.kv_heads, item / tiles.chunks % heads.kv_heads, item % tiles.chunks);
#pragma omp for schedule(static)
        for (int64_t one = 0; one < rows.count * heads.heads; ++one) {
            float* state = states.data() + one * tiles.chunks * state_size(heads);
            const Row row = rows.at(one / heads.heads);
            const int64_t chunks = row.position / CHUNK - heads.oldest(row) / CHUNK;
            for (int64_t c = 1; c <= chunks; ++c) fold(heads, state, state + c * state_size(heads));
            finish(heads, state, out + one * heads.head_dim);
        }
    }

   private:
    int64_t first_chunk(int64_t row) const { return heads.oldest(rows.at(row)) / CHUNK; }
    int64_t last_chunk(int64_t row) const { return rows.at(row).position / CHUNK; }

    // All chunks of a tile, one after another.
    void whole(int64_t tile, int64_t kv_head) {
        const int64_t first = tiles.begins[tile], last = tiles.begins[tile + 1], group = heads.group();
        const int64_t size = state_size(heads);
        std::vector<float> total(TILE * group * size), one(TILE * group * size);
        int64_t from = std::numeric_limits<int64_t>::max(), to = 0;
        for (int64_t r = first; r < last; ++r) from = std::min(from, first_chunk(r)), to = std::max(to, last_chunk(r));
        for (int64_t chunk = from; chunk <= to; ++chunk) {
            attend_chunk(heads, rows, slots, queries, stride, first, last, kv_head, chunk, one.data());
            for (int64_t r = first; r < last; ++r)
                for (int64_t g = 0; g < group; ++g) {
                    const int64_t at = ((r - first) * group + g) * size;
                    if (chunk == first_chunk(r))
                        std::copy_n(one.data() + at, size, total.data() + at);
                    else if (chunk > first_chunk(r) && chunk <= last_chunk(r))
                        fold(heads, total.data() + at, one.data() + at);
                }
        }
        for (int64_t r = first; r < last; ++r)
            for (int64_t g = 0; g < group; ++g)
                finish(heads, total.data() + ((r - first) * group + g) * size,
                       out + (r * heads.heads + kv_head * group + g) * heads.head_dim);
    }

    // One chunk of a tile, counted from each row's first.
    void part(int64_t tile, int64_t kv_head, int64_t number) {
        const int64_t first = tiles.begins[tile], last = tiles.begins[tile + 1], group = heads.group();
        const int64_t size = state_size(heads);
        for (int64_t r = first, next; r < last; r = next) {
            for (next = r + 1; next < last && first_chunk(next) == first_chunk(r);) ++next;
            std::vector<float> one((next - r) * group * size);
            attend_chunk(heads, rows, slots, queries, stride, r, next, kv_head, first_chunk(r) + number, one.data());
            for (int64_t i = r; i < next; ++i)
                for (int64_t g = 0; g < group; ++g)
                    std::copy_n(one.data() + ((i - r) * group + g) * size, size,
                                states.data() + ((i * heads.heads + kv_head * group + g) * tiles.chunks + number) * size);
        }
    }
};

}  // namespace swift
