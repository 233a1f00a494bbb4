// Gradient behind InstanceNorm2d -> GELU in one kernel: from that of y to that of the convolution, channels last.
//
// A block has a share of one image's pixels, of 64 channels. It computes once what GELU passes back, keeps it in shared
// memory, adds up what each plane's statistics need, waits for the image's other blocks, and writes the gradient. All
// must run at once: one a multiprocessor. No atomics on numbers: every sum is the same in every run.

#include "hopper.cuh"

// ---- kernels

constexpr int CHANNELS = 64, THREADS = 384, WARPS = THREADS / 32, PACKS = 8, AT_ONCE = THREADS / PACKS, TIMES = 14;

// Derivative of GELU. By the error function: the normal integral, and u times the normal density.
template <bool TANH> __device__ inline float slope(float u) {
    if constexpr (TANH) {
        // s = 1 / (1 + exp(-2 sqrt(2 / pi) (u + 0.044715 u^3)))
        const float square = u * u, s = __fdividef(1.0f, 1.0f + two_to(u * fmaf(square, -0.10294324f, -2.3022082f)));
        return fmaf(u * s * (1.0f - s), 1.5957691f * fmaf(square, 0.134145f, 1.0f), s);
    } else {
        const float v = fminf(fabsf(u), 6.0f), density = two_to(v * v * -0.72134752f);
        const float sum = normal_tail(v, density);
        return fmaf(0.39894228f * density, u, u > 0.0f ? 1.0f - sum : sum);
    }
}

// out = gamma / deviation (g - mean of g - normal * mean of g * normal), g = grad * GELU'(normal * gamma + beta), normal
// = (z - mean) / deviation; statistics: mean and 1 / deviation of each plane, (image, 2, channel). `share` pixels of an
// image a block (at most TIMES AT_ONCE), `blocks` blocks an image, of THREADS. sums: g and g * normal added up by each
// block, (block, 2, channel). counters: two zeros an image, left zeros. gamma and beta may both be null. Dynamic shared
// memory: 8 bytes for each warp and channel, then 256 for each of TIMES AT_ONCE pixels.
// [gradient]
template <typename scalar, bool TANH>
__global__ __launch_bounds__(THREADS, 1) void conv_block_gradient(const scalar* grad, const scalar* z,
                                                                  const float* statistics, const scalar* gamma,
                                                                  const scalar* beta, scalar* out, float* sums,
                                                                  unsigned* counters, Size area, Size share,
                                                                  Size blocks) {
// [/gradient]
    float* partial = reinterpret_cast<float*>(dynamic_shared);
    float4* kept = reinterpret_cast<float4*>(dynamic_shared + WARPS * CHANNELS * 8);
    const int thread = threadIdx.x, pack = thread % PACKS, lane = thread % 32, warp = thread / 32;
    const int image = static_cast<int>(blockIdx.x / blocks), number = static_cast<int>(blockIdx.x % blocks);
    const int first = number * static_cast<int>(share);
    const int pixels = min(static_cast<int>(share), static_cast<int>(area) - first);
    const Size base = (image * area + first) * CHANNELS + pack * 8;
    wait_for_kernel_before();
    let_next_kernel_start();

    // ---- what GELU passes back

    uint4 held[TIMES];
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
        const int pixel = time * AT_ONCE + thread / PACKS;
        held[time] = make_uint4(0, 0, 0, 0);
        if (pixel < pixels) held[time] = __ldg(reinterpret_cast<const uint4*>(z + base + pixel * CHANNELS));
    }
    float over[8], middle[8], factor[8], summand[8];  // normal = z over + middle
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const float* of = statistics + image * 2 * CHANNELS + pack * 8 + i;
        over[i] = of[CHANNELS];
        middle[i] = -of[0] * over[i];
        factor[i] = gamma ? static_cast<float>(gamma[pack * 8 + i]) : 1.0f;
        summand[i] = beta ? static_cast<float>(beta[pack * 8 + i]) : 0.0f;
    }
    // [gradient]
    float plain[8] = {}, weighted[8] = {};
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
        const int pixel = time * AT_ONCE + thread / PACKS;
        if (pixel >= pixels) continue;
        const uint4 upstream = __ldg(reinterpret_cast<const uint4*>(grad + base + pixel * CHANNELS));
        const unsigned from[4] = {upstream.x, upstream.y, upstream.z, upstream.w};
        const unsigned at[4] = {held[time].x, held[time].y, held[time].z, held[time].w};
        float g[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float normal = fmaf(half_of<scalar>(at[i / 2], i % 2), over[i], middle[i]);
            g[i] = half_of<scalar>(from[i / 2], i % 2) * slope<TANH>(fmaf(normal, factor[i], summand[i]));  // (1)
            plain[i] += g[i];
            weighted[i] = fmaf(g[i], normal, weighted[i]);
        }
        kept[2 * time * THREADS + thread] = make_float4(g[0], g[1], g[2], g[3]);  // (2)
        kept[(2 * time + 1) * THREADS + thread] = make_float4(g[4], g[5], g[6], g[7]);
    // [/gradient]
    }

    // ---- sums of the block, then of the image

#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int distance = PACKS; distance < 32; distance *= 2) {
            plain[i] += __shfl_xor_sync(0xffffffff, plain[i], distance);
            weighted[i] += __shfl_xor_sync(0xffffffff, weighted[i], distance);
        }
        if (lane < PACKS) {
            partial[warp * 2 * CHANNELS + pack * 8 + i] = plain[i];
            partial[(warp * 2 + 1) * CHANNELS + pack * 8 + i] = weighted[i];
        }
    }
    __syncthreads();
    if (thread < 2 * CHANNELS) {
        float sum = 0;
#pragma unroll
        for (int other = 0; other < WARPS; ++other) sum += partial[other * 2 * CHANNELS + thread];
        sums[(image * blocks + number) * 2 * CHANNELS + thread] = sum;
    }
    __syncthreads();
    // [gradient]
    if (thread == 0) {
        announce(counters + 2 * image);
        while (counted(counters + 2 * image) < blocks) {  // (3)
        }
        // The last to have seen all leaves the counters as it found them.
        if (count_in(counters + 2 * image + 1) == blocks - 1) {
            counters[2 * image] = 0;
            counters[2 * image + 1] = 0;
        }
    }
    __syncthreads();
    // [/gradient]
    constexpr int SHARES = THREADS / (2 * CHANNELS);
    {
        const float* of = sums + image * blocks * 2 * CHANNELS + thread % (2 * CHANNELS);
        float sum = 0;
#pragma unroll 9
        for (int other = thread / (2 * CHANNELS); other < blocks; other += SHARES) sum += fresh(of + other * 2 * CHANNELS);
        partial[thread] = sum / static_cast<float>(area);
    }
    __syncthreads();

    // ---- the gradient

    // [gradient]
    // out = g scale + normal slant + less
    float slant[8], less[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float mean[2] = {0, 0};
#pragma unroll
        for (int other = 0; other < SHARES; ++other) {
            mean[0] += partial[other * 2 * CHANNELS + pack * 8 + i];
            mean[1] += partial[(other * 2 + 1) * CHANNELS + pack * 8 + i];
        }
        factor[i] *= over[i];
        slant[i] = -mean[1] * factor[i];
        less[i] = -mean[0] * factor[i];
    // [/gradient]
    }
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
        const int pixel = time * AT_ONCE + thread / PACKS;
        if (pixel >= pixels) continue;
        const float4 low = kept[2 * time * THREADS + thread], high = kept[(2 * time + 1) * THREADS + thread];
        const float g[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        const unsigned at[4] = {held[time].x, held[time].y, held[time].z, held[time].w};
        float found[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            // [gradient]
            const float normal = fmaf(half_of<scalar>(at[i / 2], i % 2), over[i], middle[i]);
            found[i] = fmaf(g[i], factor[i], fmaf(normal, slant[i], less[i]));  // (4)
        }
        *reinterpret_cast<uint4*>(out + base + pixel * CHANNELS) =
            // [/gradient]
            make_uint4(rounded<scalar>(found[0], found[1]), rounded<scalar>(found[2], found[3]),
                       rounded<scalar>(found[4], found[5]), rounded<scalar>(found[6], found[7]));
    }
}
