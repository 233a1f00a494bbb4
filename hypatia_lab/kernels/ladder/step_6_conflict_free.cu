// Step 6 of the ladder, conflict_free: a swizzle under which no two threads of a warp want the same bank.

#include "step_5_vectorized.cu"

// ---- kernels

// [step_conflict_free]
// Threads that load 16 bytes write WIDE numbers of a row to WIDE lines of the tile; eight (float) such threads side by
// side are DEPTH / WIDE columns of k on a few rows, and would meet in the same banks. Moved apart by a multiple of 16
// bytes that only k decides, they do not, and 16-byte reads along a line stay whole. Neighbouring threads' outputs are
// neighbouring 16 bytes, which is what shared memory serves without conflict.
struct Swizzled {
    template <typename scalar, typename accumulator> static __device__ inline int place(int k, int row) {
        constexpr int COLUMNS = DEPTH / WIDE<scalar>, APART = 128 / static_cast<int>(sizeof(accumulator)) / COLUMNS;
        return row ^ k / WIDE<scalar> * APART;  // (1)
    }
    template <typename accumulator> static __device__ inline int line(int at, int n) {
        constexpr int N = WIDE<accumulator>;
        return n / N * SQUARE * N + at * N + n % N;  // (2)
    }
};

template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_conflict_free(const scalar* x, const scalar* w,
                                                                     const scalar* bias, scalar* y, Size batch,
                                                                     Size in_features, Size out_features) {
    wide_linear_relu<Swizzled, scalar, accumulator>(x, w, bias, y, batch, in_features, out_features);  // (3)
}
// [/step_conflict_free]
