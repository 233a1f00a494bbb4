// Linear+ReLU on a CPU as the seeds wrote it for a GPU: one output at a time, one serial sum each; and in blocks.
// A plain C interface (no torch headers) keeps the build under a second. OpenMP shares out the rows, or the blocks.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "scalars.hpp"

namespace {

// [naive]
template <typename scalar, typename accumulator>
void linear_relu(const scalar* x, const scalar* w, const scalar* bias, scalar* y, int64_t batch, int64_t in_features,
                 int64_t out_features) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t row = 0; row < batch; ++row) {
        for (int64_t column = 0; column < out_features; ++column) {
            accumulator sum = bias ? static_cast<accumulator>(bias[column]) : accumulator(0);  // (1)
            for (int64_t k = 0; k < in_features; ++k) {  // (2)
                sum += static_cast<accumulator>(x[row * in_features + k]) *
                       static_cast<accumulator>(w[column * in_features + k]);
            }
            y[row * out_features + column] = static_cast<scalar>(sum < accumulator(0) ? accumulator(0) : sum);
        }
    }
}
// [/naive]

// Blocks of rows x columns of y, over `depth` numbers along k at a time: x and w of a block are packed so that its
// arithmetic reads them in order, x as panels of `side` rows and w as panels of one vector of columns.
constexpr int64_t block_rows = 96, block_columns = 128, depth = 256, side = 6;

template <typename accumulator> struct Block {
    static constexpr int64_t lanes = 64 / sizeof(accumulator);
    typedef accumulator vector __attribute__((vector_size(64)));
    alignas(64) accumulator x[block_rows * depth];
    alignas(64) accumulator w[block_columns * depth];
    alignas(64) accumulator sums[block_rows * block_columns];
};

// [blocked]
// `rows` rows of a matrix as panels [row / width][k][row % width], zeros for rows that are not there.
template <typename scalar, typename accumulator>
void pack(const scalar* from, accumulator* to, int64_t stride, int64_t rows, int64_t count, int64_t width) {
    for (int64_t first = 0; first < rows; first += width) {
        accumulator* panel = to + first * depth;
        for (int64_t i = 0; i < width; ++i) {
            const scalar* row = from + (first + i) * stride;
            const bool inside = first + i < rows;
            for (int64_t k = 0; k < count; ++k) {
                panel[k * width + i] = inside ? static_cast<accumulator>(row[k]) : accumulator(0);  // (1)
            }
        }
    }
}
// [/blocked]

// [blocked]
// side rows of sums += a panel of x times a panel of w.
template <typename accumulator>
void multiply(const accumulator* x, const accumulator* w, accumulator* sums, int64_t count) {
    using vector = typename Block<accumulator>::vector;
    vector held[side];  // (2)
    for (int64_t i = 0; i < side; ++i) held[i] = *reinterpret_cast<const vector*>(sums + i * block_columns);
    for (int64_t k = 0; k < count; ++k) {
        const vector across = *reinterpret_cast<const vector*>(w + k * Block<accumulator>::lanes);
        for (int64_t i = 0; i < side; ++i) held[i] += x[k * side + i] * across;  // (3)
    }
    for (int64_t i = 0; i < side; ++i) *reinterpret_cast<vector*>(sums + i * block_columns) = held[i];
}
// [/blocked]

template <typename scalar, typename accumulator>
void linear_relu_blocked(const scalar* x, const scalar* w, const scalar* bias, scalar* y, int64_t batch,
                         int64_t in_features, int64_t out_features, bool threaded) {
    constexpr int64_t lanes = Block<accumulator>::lanes;
// [threaded]
#pragma omp parallel if (threaded)  // (1)
    {
        const auto block = std::make_unique<Block<accumulator>>();  // (2)
#pragma omp for collapse(2) schedule(dynamic)  // (3)
        for (int64_t row = 0; row < batch; row += block_rows) {
            for (int64_t column = 0; column < out_features; column += block_columns) {
// [/threaded]
                // [blocked]
                const int64_t rows = std::min(block_rows, batch - row);
                const int64_t columns = std::min(block_columns, out_features - column);
                std::fill_n(block->sums, block_rows * block_columns, accumulator(0));
                for (int64_t k = 0; k < in_features; k += depth) {
                    const int64_t count = std::min(depth, in_features - k);
                    pack(x + row * in_features + k, block->x, in_features, rows, count, side);
                    pack(w + column * in_features + k, block->w, in_features, columns, count, lanes);  // (4)
                    for (int64_t j = 0; j < columns; j += lanes) {
                        for (int64_t i = 0; i < rows; i += side) {  // (5)
                            multiply(block->x + i * depth, block->w + j * depth, block->sums + i * block_columns + j,
                                     count);
                        }
                    }
                }
                for (int64_t i = 0; i < rows; ++i) {
                    for (int64_t j = 0; j < columns; ++j) {
                        accumulator sum = block->sums[i * block_columns + j];
                        if (bias) sum += static_cast<accumulator>(bias[column + j]);
                        y[(row + i) * out_features + column + j] =
                            static_cast<scalar>(sum < accumulator(0) ? accumulator(0) : sum);
                // [/blocked]
                    }
                }
            }
        }
    }
}

// [relu]
template <typename scalar, typename accumulator>
void relu(scalar* data, int64_t size) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < size; ++i) {
        if (static_cast<accumulator>(data[i]) < accumulator(0)) data[i] = static_cast<scalar>(accumulator(0));  // (1)
    }
}
// [/relu]

}  // namespace

#define EXPORT(name, scalar, accumulator)                                                                     \
    extern "C" void linear_relu_naive_##name(const scalar* x, const scalar* w, const scalar* bias, scalar* y, \
                                             int64_t batch, int64_t in_features, int64_t out_features) {      \
        linear_relu<scalar, accumulator>(x, w, bias, y, batch, in_features, out_features);                    \
    }                                                                                                         \
    extern "C" void linear_relu_blocked_##name(const scalar* x, const scalar* w, const scalar* bias,          \
                                               scalar* y, int64_t batch, int64_t in_features,                 \
                                               int64_t out_features, int64_t threaded) {                      \
        linear_relu_blocked<scalar, accumulator>(x, w, bias, y, batch, in_features, out_features, threaded);  \
    }                                                                                                         \
    extern "C" void relu_inplace_##name(scalar* data, int64_t size) { relu<scalar, accumulator>(data, size); }

EXPORT(float32, float, float)
EXPORT(float64, double, double)
EXPORT(bfloat16, bfloat16, float)
EXPORT(float16, _Float16, float)
