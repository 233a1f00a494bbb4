// Step 5 of the ladder, vectorized: 16-byte loads and stores.

#include "ladder.cuh"

// ---- kernels

// [step_vectorized]
// Where a tile keeps its numbers: tile[k][row] at its row, and output `n` of 8 of thread `at` of 16 in the thread's run.
struct InOrder {
    template <typename scalar, typename accumulator> static __device__ inline int place(int k, int row) { return row; }
    template <typename accumulator> static __device__ inline int line(int at, int n) { return at * SIDE + n; }
};
// [/step_vectorized]

// [step_vectorized]
// load_tile with 16 bytes a load where the matrix allows it.
template <typename Layout, typename scalar, typename accumulator>
__device__ inline void load_tile_wide(accumulator (*tile)[TILE], const scalar* matrix, Size first_row, Size rows,
                                      Size first_k, Size in_features, int thread, bool aligned) {
    constexpr int N = WIDE<scalar>;
#pragma unroll
    for (int n = 0; n < TILE * DEPTH / N / THREADS; ++n) {
        const int pack = thread + n * THREADS, row = pack / (DEPTH / N), k = pack % (DEPTH / N) * N;
        Pack<scalar, N> loaded;
#pragma unroll
        for (int i = 0; i < N; ++i) loaded.at[i] = static_cast<scalar>(0.0f);
        const scalar* from = matrix + (first_row + row) * in_features + first_k + k;
        if (first_row + row < rows) {
            if (aligned && first_k + k < in_features) {
                loaded = *reinterpret_cast<const Pack<scalar, N>*>(from);  // (1)
            } else if (!aligned) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (first_k + k + i < in_features) loaded.at[i] = from[i];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const int at = Layout::template place<scalar, accumulator>(k, row);
            tile[k + i][at] = static_cast<accumulator>(loaded.at[i]);
        }
    }
}
// [/step_vectorized]

// [step_vectorized]
// `aligned_x`: rows of x and w start at multiples of 16 bytes; `aligned_y`: so do those of y.
template <typename Layout, typename scalar, typename accumulator>
__device__ inline void wide_linear_relu(const scalar* x, const scalar* w, const scalar* bias, scalar* y, Size batch,
                                        Size in_features, Size out_features) {
    constexpr int N = WIDE<accumulator>;
    alignas(16) __shared__ accumulator x_tile[DEPTH][TILE], w_tile[DEPTH][TILE];
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, down = thread / SQUARE, right_of = thread % SQUARE;
    const bool aligned_x = in_features % WIDE<scalar> == 0, aligned_y = out_features % WIDE<scalar> == 0;  // (2)
    const auto line = [](int at, int n) { return Layout::template line<accumulator>(at, n); };
    accumulator sums[SIDE][SIDE] = {};
    for (Size k = 0; k < in_features; k += DEPTH) {
        load_tile_wide<Layout>(x_tile, x, first_row, batch, k, in_features, thread, aligned_x);
        load_tile_wide<Layout>(w_tile, w, first_column, out_features, k, in_features, thread, aligned_x);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            Pack<accumulator, N> left[SIDE / N], right[SIDE / N];  // (3)
#pragma unroll
            for (int n = 0; n < SIDE; n += N) {
                const int row = line(down, n), column = line(right_of, n);
                const int i = Layout::template place<scalar, accumulator>(d, row);
                const int j = Layout::template place<scalar, accumulator>(d, column);
                left[n / N] = *reinterpret_cast<const Pack<accumulator, N>*>(&x_tile[d][i]);  // (4)
                right[n / N] = *reinterpret_cast<const Pack<accumulator, N>*>(&w_tile[d][j]);
            }
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
#pragma unroll
                for (int j = 0; j < SIDE; ++j) sums[i][j] += left[i / N].at[i % N] * right[j / N].at[j % N];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < SIDE; j += N) {
            store<N>(&sums[i][j], bias, y, first_row + line(down, i), first_column + line(right_of, j), batch,
                     out_features, aligned_y);  // (5)
        }
    }
}
// [/step_vectorized]

// [step_vectorized]
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_vectorized(const scalar* x, const scalar* w, const scalar* bias,
                                                                  scalar* y, Size batch, Size in_features,
                                                                  Size out_features) {
    wide_linear_relu<InOrder, scalar, accumulator>(x, w, bias, y, batch, in_features, out_features);
}
// [/step_vectorized]
