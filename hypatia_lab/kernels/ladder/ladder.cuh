// What the ladder's steps on CUDA cores share. Each is Linear+ReLU, y = max(0, x w^T + b), with one idea more than the
// step before; the first is ../linear_relu/naive.cu, and from step 8 on tensor cores multiply (tensor_cores.cuh).
//
// x is (batch, in), w (out, in), bias (out) or null, y (batch, out), all row-major, so both operands lie along k.
// Blocks are numbered along one axis, tiles of the same rows next to each other. Products accumulate in `accumulator`
// (float for the 16-bit types and float, double for double), which is also what most steps keep in shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---- kernels

using Size = long long;

template <typename T, int N> struct alignas(N * sizeof(T)) Pack {
    T at[N];
};

// Numbers of T in 16 bytes.
template <typename T> constexpr int WIDE = 16 / sizeof(T);

template <typename scalar, typename accumulator>
__device__ inline scalar finish(accumulator sum, const scalar* bias, Size column) {
    if (bias) sum += static_cast<accumulator>(bias[column]);
    // `sum < 0` and not `sum > 0`: a NaN stays a NaN, as in torch.relu.
    return static_cast<scalar>(sum < accumulator(0) ? accumulator(0) : sum);
}

// N neighbouring outputs of a row, written at once where `aligned` says that y allows it and all N are there.
template <int N, typename scalar, typename accumulator>
__device__ inline void store(const accumulator* sums, const scalar* bias, scalar* y, Size row, Size column, Size batch,
                             Size out_features, bool aligned) {
    if (row >= batch) return;
    scalar* to = y + row * out_features + column;
    if (aligned && column + N <= out_features) {
        Pack<scalar, N> pack;
#pragma unroll
        for (int j = 0; j < N; ++j) pack.at[j] = finish(sums[j], bias, column + j);
        *reinterpret_cast<Pack<scalar, N>*>(to) = pack;
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (column + j < out_features) to[j] = finish(sums[j], bias, column + j);
        }
    }
}

// From step 4 on: block 256, a tile of 128 x 128, 8 x 8 outputs a thread, the threads a square of 16 x 16.
constexpr int TILE = 128, DEPTH = 16, SIDE = 8, SQUARE = TILE / SIDE, THREADS = SQUARE * SQUARE;
