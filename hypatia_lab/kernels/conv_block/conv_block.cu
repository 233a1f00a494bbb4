// The convolution block as the seeds built it (S000): three kernels, each of which reads what the one before wrote.
//
//   conv_block_convolve    z = Conv 3x3 (x, w) + b, padding 1: one thread an output, no tile, nothing shared
//   conv_block_statistics  mean and 1 / sqrt(variance + eps) of every plane of z: one block a plane
//   conv_block_finish      y = dropout(GELU((z - mean) * scale * gamma + beta)): one thread an element
//
// Tensors are contiguous, images (batch, channels, height, width). Sums are kept in `accumulator` (float for the 16-bit
// types and float, double for double). Its slowness is the point, and it is left as it is.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---- kernels

constexpr int STATISTICS_THREADS = 256;

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }
__device__ inline float error_function(float x) { return erff(x); }
__device__ inline double error_function(double x) { return erf(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }

template <bool BY_TANH, typename T> __device__ inline T gelu(T u) {
    if (BY_TANH) {
        const T inner = T(0.79788456080286535588) * (u + T(0.044715) * u * u * u);  // sqrt(2 / pi)
        return T(0.5) * u * (T(1) + hyperbolic_tangent(inner));
    }
    return T(0.5) * u * (T(1) + error_function(u * T(0.70710678118654752440)));  // sqrt(1 / 2)
}

// Philox4x32-10, the first of its four numbers: random by counter, so any thread finds its own without a state.
// Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
__device__ inline unsigned counter_random(unsigned long long counter, unsigned long long seed) {
    unsigned a = static_cast<unsigned>(counter), b = static_cast<unsigned>(counter >> 32), c = 0, d = 0;
    unsigned key = static_cast<unsigned>(seed), other = static_cast<unsigned>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const unsigned long long left = 0xD2511F53ull * a, right = 0xCD9E8D57ull * c;
        a = static_cast<unsigned>(right >> 32) ^ b ^ key;
        c = static_cast<unsigned>(left >> 32) ^ d ^ other;
        b = static_cast<unsigned>(right);
        d = static_cast<unsigned>(left);
        key += 0x9E3779B9u;
        other += 0xBB67AE85u;
    }
    return a;
}

// [pipeline]
template <typename scalar, typename accumulator>
__global__ void conv_block_convolve(const scalar* x, const scalar* w, const scalar* bias, scalar* z, long long batch,
                                    long long in_channels, long long out_channels, long long height, long long width) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= batch * out_channels * height * width) return;
    const long long column = i % width, row = i / width % height;
    const long long channel = i / (width * height) % out_channels, image = i / (width * height * out_channels);
    accumulator sum = bias ? static_cast<accumulator>(bias[channel]) : accumulator(0);
    for (long long from = 0; from < in_channels; ++from) {
        const scalar* plane = x + (image * in_channels + from) * height * width;
        const scalar* kernel = w + (channel * in_channels + from) * 9;
        for (int down = -1; down <= 1; ++down) {
            for (int right = -1; right <= 1; ++right) {
                const long long r = row + down, c = column + right;
                if (r < 0 || r >= height || c < 0 || c >= width) continue;
                sum += static_cast<accumulator>(plane[r * width + c]) *
                       static_cast<accumulator>(kernel[(down + 1) * 3 + right + 1]);
            }
        }
    }
    z[i] = static_cast<scalar>(sum);  // (1)
}
// [/pipeline]

// Sum over the block, the same in every thread; `shared` is free again afterwards.
template <typename T> __device__ T sum_of_block(T own, T* shared) {
    shared[threadIdx.x] = own;
    __syncthreads();
    for (int half = STATISTICS_THREADS / 2; half; half /= 2) {
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
        __syncthreads();
    }
    const T total = shared[0];
    __syncthreads();
    return total;
}

// [pipeline]
// statistics: mean, then scale, of every plane. The mean first: squares of z itself would lose the variance's digits.
template <typename scalar, typename accumulator>
__global__ void conv_block_statistics(const scalar* z, accumulator* statistics, long long planes, long long pixels) {
    __shared__ accumulator shared[STATISTICS_THREADS];
    const scalar* plane = z + blockIdx.x * pixels;
    accumulator sum = 0, squares = 0;
    for (long long i = threadIdx.x; i < pixels; i += STATISTICS_THREADS) sum += static_cast<accumulator>(plane[i]);
    const accumulator mean = sum_of_block(sum, shared) / static_cast<accumulator>(pixels);  // (2)
    for (long long i = threadIdx.x; i < pixels; i += STATISTICS_THREADS) {
        const accumulator off = static_cast<accumulator>(plane[i]) - mean;  // (3)
        squares += off * off;
    }
    const accumulator variance = sum_of_block(squares, shared) / static_cast<accumulator>(pixels);
    if (threadIdx.x == 0) {
        statistics[blockIdx.x] = mean;
        statistics[planes + blockIdx.x] = accumulator(1) / root(variance + accumulator(1e-5));
    }
}
// [/pipeline]

// [pipeline]
// An element is dropped where its random number of 32 bits is below `drop_below`, 0 to 2^32; the others are scaled up.
template <typename scalar, typename accumulator, bool BY_TANH>
__global__ void conv_block_finish(const scalar* z, const accumulator* statistics, const scalar* gamma,
                                  const scalar* beta, scalar* y, long long planes, long long channels, long long pixels,
                                  long long drop_below, long long seed) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= planes * pixels) return;
    const long long plane = i / pixels, channel = plane % channels;
    const accumulator normal = (static_cast<accumulator>(z[i]) - statistics[plane]) * statistics[planes + plane];
    accumulator value = gelu<BY_TANH>(normal * static_cast<accumulator>(gamma[channel]) +
                                      static_cast<accumulator>(beta[channel]));
    if (drop_below) {
        const bool kept = counter_random(static_cast<unsigned long long>(i), static_cast<unsigned long long>(seed)) >=
                          static_cast<unsigned long long>(drop_below);
        value = kept ? value * (accumulator(4294967296.0) / static_cast<accumulator>(4294967296ll - drop_below))
                     : accumulator(0);
    }
    y[i] = static_cast<scalar>(value);
}
// [/pipeline]
