// Step 1 of the ladder, coalesced: a warp per output; neighbouring threads read neighbouring addresses.

#include "ladder.cuh"

// ---- kernels

constexpr int COALESCED_ROWS = 4, COALESCED_COLUMNS = 4;

// [step_coalesced]
// Block (32, 16): a warp per output of a tile of 4 x 4.
template <typename scalar, typename accumulator>
__global__ void linear_relu_coalesced(const scalar* x, const scalar* w, const scalar* bias, scalar* y, Size batch,
                                      Size in_features, Size out_features) {
    const Size across = (out_features + COALESCED_COLUMNS - 1) / COALESCED_COLUMNS;
    const Size row = blockIdx.x / across * COALESCED_ROWS + threadIdx.y / COALESCED_COLUMNS;
    const Size column = blockIdx.x % across * COALESCED_COLUMNS + threadIdx.y % COALESCED_COLUMNS;
    if (row >= batch || column >= out_features) return;
    accumulator sum = 0;
    for (Size k = threadIdx.x; k < in_features; k += 32) {  // (1)
        sum +=
            static_cast<accumulator>(x[row * in_features + k]) * static_cast<accumulator>(w[column * in_features + k]);
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);  // (2)
    if (threadIdx.x == 0) y[row * out_features + column] = finish(sum, bias, column);  // (3)
}
// [/step_coalesced]
