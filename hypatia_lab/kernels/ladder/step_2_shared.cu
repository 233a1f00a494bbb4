// Step 2 of the ladder, shared: tiles of 32 x 32 in shared memory: every number is read 32 times for one trip to memory.

#include "ladder.cuh"

// ---- kernels

// [step_shared]
// ROWS x DEPTH of a matrix into shared memory as tile[k][row], zeros beyond the matrix. Neighbouring threads read along
// k and write down a column of the tile, all to the same bank where ROWS is a multiple of 32.
template <int ROWS, int DEPTH, int THREADS, typename scalar, typename accumulator>
__device__ inline void load_tile(accumulator (*tile)[ROWS], const scalar* matrix, Size first_row, Size rows,
                                 Size first_k, Size in_features, int thread) {
    static_assert(ROWS * DEPTH % THREADS == 0, "every thread loads as many");
#pragma unroll
    for (int n = 0; n < ROWS * DEPTH / THREADS; ++n) {
        const int element = thread + n * THREADS, row = element / DEPTH, k = element % DEPTH;
        const bool inside = first_row + row < rows && first_k + k < in_features;
        tile[k][row] =  // (1)
            inside ? static_cast<accumulator>(matrix[(first_row + row) * in_features + first_k + k]) : accumulator(0);
    }
}
// [/step_shared]

constexpr int SHARED_TILE = 32;

// [step_shared]
// Block 1024: a thread per output of a tile of 32 x 32.
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(1024) void linear_relu_shared(const scalar* x, const scalar* w, const scalar* bias,
                                                           scalar* y, Size batch, Size in_features, Size out_features) {
    constexpr int TILE = SHARED_TILE;
    __shared__ accumulator x_tile[TILE][TILE], w_tile[TILE][TILE];  // (2)
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, row = thread / TILE, column = thread % TILE;
    accumulator sum = 0;
    for (Size k = 0; k < in_features; k += TILE) {
        load_tile<TILE, TILE, TILE * TILE>(x_tile, x, first_row, batch, k, in_features, thread);  // (3)
        load_tile<TILE, TILE, TILE * TILE>(w_tile, w, first_column, out_features, k, in_features, thread);
        __syncthreads();  // (4)
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += x_tile[i][row] * w_tile[i][column];  // (5)
        __syncthreads();
    }
    store<1>(&sum, bias, y, first_row + row, first_column + column, batch, out_features, false);
}
// [/step_shared]
