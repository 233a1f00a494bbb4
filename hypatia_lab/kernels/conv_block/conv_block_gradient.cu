// Gradient behind InstanceNorm2d -> GELU in one kernel: from that of y to that of the convolution, channels last.
//
// A block has a share of one image's pixels, of 64 channels. It computes once what GELU passes back, keeps it in shared
// memory, adds up what each plane's statistics need, waits for the image's other blocks, and writes the gradient. All
// must run at once: one a multiprocessor. No atomics on numbers: every sum is the same in every run.

#include "gelu.cuh"
#include "hopper.cuh"

// ---- kernels

constexpr int CHANNELS = 64, THREADS = 384, WARPS = THREADS / 32, HELD = 672;

// Numbers of a pack of 16 bytes.
template <typename scalar> constexpr int PACK = 16 / sizeof(scalar);
template <typename scalar> __device__ inline float unpacked(const unsigned (&pack)[4], int i) {
    if constexpr (PACK<scalar> == 4) return __uint_as_float(pack[i]);
    else return half_of<scalar>(pack[i / 2], i % 2);
}
template <typename scalar> __device__ inline uint4 packed(const float (&numbers)[PACK<scalar>]) {
    unsigned found[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (PACK<scalar> == 4) found[i] = __float_as_uint(numbers[i]);
        else found[i] = rounded<scalar>(numbers[2 * i], numbers[2 * i + 1]);
    }
    return make_uint4(found[0], found[1], found[2], found[3]);
}

// Derivative of GELU. By the error function: the normal integral, and u times the normal density.
template <typename scalar, bool TANH> __device__ inline float slope(float u) {
    if constexpr (TANH) {
        // s = 1 / (1 + exp(-2 sqrt(2 / pi) (u + 0.044715 u^3)))
        const float square = u * u, s = __fdividef(1.0f, 1.0f + two_to(u * fmaf(square, -0.10294324f, -2.3022082f)));
        return fmaf(u * s * (1.0f - s), 1.5957691f * fmaf(square, 0.134145f, 1.0f), s);
    } else {
        const float v = fminf(fabsf(u), 6.0f), density = two_to(v * v * -0.72134752f);
        const float sum = PACK<scalar> == 4 ? fine_tail(v, density) : normal_tail(v, density);
        return fmaf(0.39894228f * density, u, u > 0.0f ? 1.0f - sum : sum);
    }
}

// out = gamma / deviation (g - mean of g - normal * mean of g * normal), g = grad * GELU'(normal * gamma + beta), normal
// = (z - mean) / deviation; statistics: mean and 1 / deviation of each plane, (image, 2, channel). `share` pixels of an
// image a block (at most HELD), `blocks` blocks an image, of THREADS. sums: g and g * normal added up by each
// block, (block, 2, channel). counters: two zeros an image, left zeros. gamma and beta may both be null. Dynamic shared
// memory: 8 bytes for each warp and channel, then 256 for each of HELD pixels.
// [gradient]
template <typename scalar, bool TANH>
__global__ __launch_bounds__(THREADS, 1) void conv_block_gradient(const scalar* grad, const scalar* z,
                                                                  const float* statistics, const scalar* gamma,
                                                                  const scalar* beta, scalar* out, float* sums,
                                                                  unsigned* counters, Size area, Size share,
                                                                  Size blocks) {
// [/gradient]
    constexpr int NUMBERS = PACK<scalar>, PACKS = CHANNELS / NUMBERS, AT_ONCE = THREADS / PACKS, TIMES = HELD / AT_ONCE;
    float* partial = reinterpret_cast<float*>(dynamic_shared);
    float4* kept = reinterpret_cast<float4*>(dynamic_shared + WARPS * CHANNELS * 8);
    const int thread = threadIdx.x, pack = thread % PACKS, lane = thread % 32, warp = thread / 32;
    const int image = static_cast<int>(blockIdx.x / blocks), number = static_cast<int>(blockIdx.x % blocks);
    const int first = number * static_cast<int>(share);
    const int pixels = min(static_cast<int>(share), static_cast<int>(area) - first);
    const Size base = (image * area + first) * CHANNELS + pack * NUMBERS;
    wait_for_kernel_before();
    let_next_kernel_start();

    // ---- what GELU passes back

    // Of float a pack of grad is as long as what is kept of it: all of them are on their way while z is read.
    constexpr bool AHEAD = NUMBERS == 4;
    if constexpr (AHEAD) {
#pragma unroll
        for (int time = 0; time < TIMES; ++time) {
            const int pixel = time * AT_ONCE + thread / PACKS;
            const unsigned to = shared_address(kept + time * THREADS + thread);
            copy_async(to, grad + base + (pixel < pixels ? pixel : 0) * CHANNELS, pixel < pixels ? 16 : 0);
            if (time == TIMES / 2 - 1 || time == TIMES - 1) close_group();
        }
    }
    uint4 held[TIMES];
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
        const int pixel = time * AT_ONCE + thread / PACKS;
        held[time] = make_uint4(0, 0, 0, 0);
        if (pixel < pixels) held[time] = __ldg(reinterpret_cast<const uint4*>(z + base + pixel * CHANNELS));
    }
    float over[NUMBERS], middle[NUMBERS], factor[NUMBERS], summand[NUMBERS];  // normal = z over + middle
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
        const float* of = statistics + image * 2 * CHANNELS + pack * NUMBERS + i;
        over[i] = of[CHANNELS];
        middle[i] = -of[0] * over[i];
        factor[i] = gamma ? static_cast<float>(gamma[pack * NUMBERS + i]) : 1.0f;
        summand[i] = beta ? static_cast<float>(beta[pack * NUMBERS + i]) : 0.0f;
    }
    // [gradient]
    float plain[NUMBERS] = {}, weighted[NUMBERS] = {};
#pragma unroll
    for (int time = 0; time < TIMES; ++time) {
        const int pixel = time * AT_ONCE + thread / PACKS;
        if (AHEAD && time == 0) wait_for_groups<1>();
        if (AHEAD && time == TIMES / 2) wait_for_groups<0>();
        if (pixel >= pixels) continue;
        uint4 upstream;
        if constexpr (AHEAD) upstream = *reinterpret_cast<const uint4*>(kept + time * THREADS + thread);
        else upstream = __ldg(reinterpret_cast<const uint4*>(grad + base + pixel * CHANNELS));
        const unsigned from[4] = {upstream.x, upstream.y, upstream.z, upstream.w};
        const unsigned at[4] = {held[time].x, held[time].y, held[time].z, held[time].w};
        float g[NUMBERS];
#pragma unroll
        for (int i = 0; i < NUMBERS; ++i) {
            const float normal = fmaf(unpacked<scalar>(at, i), over[i], middle[i]);
            g[i] = unpacked<scalar>(from, i) * slope<scalar, TANH>(fmaf(normal, factor[i], summand[i]));  // (1)
            plain[i] += g[i];
            weighted[i] = fmaf(g[i], normal, weighted[i]);
        }
#pragma unroll
        for (int i = 0; i < NUMBERS; i += 4) {
            kept[(time * NUMBERS + i) / 4 * THREADS + thread] = make_float4(g[i], g[i + 1], g[i + 2], g[i + 3]);  // (2)
        }
    // [/gradient]
    }

    // ---- sums of the block, then of the image

#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
#pragma unroll
        for (int distance = PACKS; distance < 32; distance *= 2) {
            plain[i] += __shfl_xor_sync(0xffffffff, plain[i], distance);
            weighted[i] += __shfl_xor_sync(0xffffffff, weighted[i], distance);
        }
        if (lane < PACKS) {
            partial[warp * 2 * CHANNELS + pack * NUMBERS + i] = plain[i];
            partial[(warp * 2 + 1) * CHANNELS + pack * NUMBERS + i] = weighted[i];
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
    float slant[NUMBERS], less[NUMBERS];
#pragma unroll
    for (int i = 0; i < NUMBERS; ++i) {
        float mean[2] = {0, 0};
#pragma unroll
        for (int other = 0; other < SHARES; ++other) {
            mean[0] += partial[other * 2 * CHANNELS + pack * NUMBERS + i];
            mean[1] += partial[(other * 2 + 1) * CHANNELS + pack * NUMBERS + i];
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
        float g[NUMBERS];
#pragma unroll
        for (int i = 0; i < NUMBERS; i += 4) {
            const float4 some = kept[(time * NUMBERS + i) / 4 * THREADS + thread];
            g[i] = some.x, g[i + 1] = some.y, g[i + 2] = some.z, g[i + 3] = some.w;
        }
        const unsigned at[4] = {held[time].x, held[time].y, held[time].z, held[time].w};
        float found[NUMBERS];
#pragma unroll
        for (int i = 0; i < NUMBERS; ++i) {
            // [gradient]
            const float normal = fmaf(unpacked<scalar>(at, i), over[i], middle[i]);
            found[i] = fmaf(g[i], factor[i], fmaf(normal, slant[i], less[i]));  // (4)
        }
        *reinterpret_cast<uint4*>(out + base + pixel * CHANNELS) = packed<scalar>(found);
        // [/gradient]
    }
}
