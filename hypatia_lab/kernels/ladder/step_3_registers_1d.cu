// Step 3 of the ladder, registers_1d: eight outputs a thread in a column: one number of w serves eight sums.

#include "step_2_shared.cu"

// ---- kernels

constexpr int LINE_TILE = 64, LINE_DEPTH = 16, LINE = 8;

// [step_registers_1d]
// Block 512: eight rows of one column a thread, a tile of 64 x 64.
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(512) void linear_relu_registers_1d(const scalar* x, const scalar* w, const scalar* bias,
                                                                scalar* y, Size batch, Size in_features,
                                                                Size out_features) {
    constexpr int TILE = LINE_TILE, THREADS = TILE * TILE / LINE;
    __shared__ accumulator x_tile[LINE_DEPTH][TILE], w_tile[LINE_DEPTH][TILE];
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, row = thread / TILE * LINE, column = thread % TILE;
    accumulator sums[LINE] = {};  // (1)
    for (Size k = 0; k < in_features; k += LINE_DEPTH) {
        load_tile<TILE, LINE_DEPTH, THREADS>(x_tile, x, first_row, batch, k, in_features, thread);
        load_tile<TILE, LINE_DEPTH, THREADS>(w_tile, w, first_column, out_features, k, in_features, thread);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < LINE_DEPTH; ++d) {
            const accumulator factor = w_tile[d][column];  // (2)
#pragma unroll
            for (int i = 0; i < LINE; ++i) sums[i] += x_tile[d][row + i] * factor;  // (3)
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < LINE; ++i) {
        store<1>(sums + i, bias, y, first_row + row + i, first_column + column, batch, out_features, false);
    }
}
// [/step_registers_1d]
