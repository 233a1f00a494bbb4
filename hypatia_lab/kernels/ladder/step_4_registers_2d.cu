// Step 4 of the ladder, registers_2d: eight by eight outputs a thread: 16 numbers from shared memory serve 64 sums.

#include "step_2_shared.cu"

// ---- kernels

// [step_registers_2d]
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_registers_2d(const scalar* x, const scalar* w,
                                                                    const scalar* bias, scalar* y, Size batch,
                                                                    Size in_features, Size out_features) {
    __shared__ accumulator x_tile[DEPTH][TILE], w_tile[DEPTH][TILE];
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, row = thread / SQUARE * SIDE, column = thread % SQUARE * SIDE;
    accumulator sums[SIDE][SIDE] = {};  // (1)
    for (Size k = 0; k < in_features; k += DEPTH) {
        load_tile<TILE, DEPTH, THREADS>(x_tile, x, first_row, batch, k, in_features, thread);
        load_tile<TILE, DEPTH, THREADS>(w_tile, w, first_column, out_features, k, in_features, thread);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            accumulator left[SIDE], right[SIDE];
#pragma unroll
            for (int i = 0; i < SIDE; ++i) left[i] = x_tile[d][row + i];  // (2)
#pragma unroll
            for (int j = 0; j < SIDE; ++j) right[j] = w_tile[d][column + j];  // (3)
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
#pragma unroll
                for (int j = 0; j < SIDE; ++j) sums[i][j] += left[i] * right[j];  // (4)
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
            store<1>(&sums[i][j], bias, y, first_row + row + i, first_column + column + j, batch, out_features, false);
        }
    }
}
// [/step_registers_2d]
