// Linear+ReLU with one thread per output: y[n][o] = max(0, b[o] + sum_k x[n][k] * w[o][k]).
//
// The seeds' first kernel (S001 "v1"): no tiling, no shared memory, one serial sum a thread. Threads of a warp
// walk down different rows of w, so their loads do not coalesce; that is the point, and it is left as it is.
// Products accumulate in `accumulator` (float for the 16-bit types and float, double for double).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// [naive]
template <typename scalar, typename accumulator>
__global__ void linear_relu_naive(const scalar* x, const scalar* w, const scalar* bias, scalar* y,
                                  long long batch, long long in_features, long long out_features) {
    const long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;  // (1)
    const long long row = static_cast<long long>(blockIdx.y) * blockDim.y + threadIdx.y;  // (2)
    if (row >= batch || column >= out_features) return;
    accumulator sum = bias ? static_cast<accumulator>(bias[column]) : accumulator(0);
    for (long long k = 0; k < in_features; ++k) {  // (3)
        sum += static_cast<accumulator>(x[row * in_features + k]) * static_cast<accumulator>(w[column * in_features + k]);
    }
    // `sum < 0` and not `sum > 0`: a NaN stays a NaN, as in torch.relu.
    y[row * out_features + column] = static_cast<scalar>(sum < accumulator(0) ? accumulator(0) : sum);  // (4)
}
// [/naive]
