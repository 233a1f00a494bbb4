// Conv2d 3x3 -> InstanceNorm2d -> GELU in one kernel for Hopper: the convolution's sums never leave the registers.
//
// A block computes a strip, some whole rows of one image, of 64 channels. Its input lies in shared memory once, pixel
// after pixel, with one pixel of zeros between rows. So what a tap sees of all the strip is the same memory from another
// pixel on, and each tap is a product of its weights (64 x 64) and that window, transposed, for wgmma. The sums of the
// zeros between rows are computed and ignored. The blocks of an image wait for each other's moments before they
// normalise what they hold, so all must run at once: one a multiprocessor.
// Sources: PTX ISA, sections on wgmma, its shared memory layouts and stmatrix; Chan, Golub, LeVeque (moments).

#include "hopper.cuh"

// ---- instructions

// Two 8 x 8 matrices of 16-bit numbers to shared memory, transposed; lane l gives the address of column l % 8 of matrix
// l / 8 % 2.
__device__ inline void store_transposed(unsigned address, unsigned a, unsigned b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
                 : "memory");
}

__device__ inline float larger_or_nan(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

#define TO_216 \
    SLOTS_0    \
    ", " SLOTS_1 ", " SLOTS_2 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107"
#define SUMS_216                                                                                               \
    SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_8(96), "+f"(sums[104]), "+f"(sums[105]), "+f"(sums[106]), \
        "+f"(sums[107])
MULTIPLY_TILES(__nv_bfloat16, "bf16", 216, TO_216, "%108", "%109", "%110", SUMS_216)
MULTIPLY_TILES(__half, "f16", 216, TO_216, "%108", "%109", "%110", SUMS_216)
// The same with `a` transposed in memory: 16 rows of 64.
template <typename scalar>
__device__ inline void multiply_transposed(float (&sums)[108], unsigned long long a, unsigned long long b,
                                           int accumulate);
#define MULTIPLY_TRANSPOSED(scalar, type)                                                                      \
    template <>                                                                                                \
    __device__ inline void multiply_transposed<scalar>(float (&sums)[108], unsigned long long a,               \
                                                       unsigned long long b, int accumulate) {                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %110, 0;\n"                                             \
                     "wgmma.mma_async.sync.aligned.m64n216k16.f32." type "." type " {" TO_216                  \
                     "}, %108, %109, p, 1, 1, 1, 0;\n}"                                                        \
                     : SUMS_216                                                                                \
                     : "l"(a), "l"(b), "r"(accumulate));                                                       \
    }
MULTIPLY_TRANSPOSED(__nv_bfloat16, "bf16")
MULTIPLY_TRANSPOSED(__half, "f16")

// ---- kernels

constexpr int CHANNELS = 64, GROUPS = 3, SPAN = 216, THREADS = 128 * GROUPS;
// Shared memory: partial sums in float, then, at a multiple of 1024, what is multiplied.
constexpr unsigned PARTIAL_BYTES = 4096, TAP_BYTES = CHANNELS * ROW_BYTES;
// 16-bit numbers: nine taps' weights and the strip's input, all channels of a pixel in a row of 128 bytes, or 8 packs.
constexpr int PACKS = ROW_BYTES / 16, AT_ONCE = THREADS / PACKS;
// float32 comes by 16 channels, and of those two terms of bfloat16, in rows of 32 bytes: the next ones while the ones
// before are multiplied.
constexpr int SHORT_DEPTH = 16, SHORT_PACKS = 2, SHORT_BYTES = 32, STEPS = CHANNELS / SHORT_DEPTH;
constexpr unsigned SHORT_TAP_BYTES = CHANNELS * SHORT_BYTES, SHORT_WEIGHT_BYTES = 9 * SHORT_TAP_BYTES;

// Eight numbers as their two largest terms.
__device__ inline void split(const float* from, bool inside, uint4* large, uint4* small) {
    const float4 zero = make_float4(0, 0, 0, 0), *fours = reinterpret_cast<const float4*>(from);
    const float4 a = inside ? __ldg(fours) : zero, b = inside ? __ldg(fours + 1) : zero;
    const float numbers[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    unsigned larger[4], smaller[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float low = numbers[2 * i], high = numbers[2 * i + 1];
        larger[i] = rounded<__nv_bfloat16>(low, high);
        smaller[i] = rounded<__nv_bfloat16>(low - half_of<__nv_bfloat16>(larger[i], 0),
                                              high - half_of<__nv_bfloat16>(larger[i], 1));
    }
    *large = make_uint4(larger[0], larger[1], larger[2], larger[3]);
    *small = make_uint4(smaller[0], smaller[1], smaller[2], smaller[3]);
}

// GELU by the error function is max(u, 0) - |u| (1 - erf(|u| / sqrt(2))) / 2, and what is taken away is exp(-u^2 / 2)
// times a polynomial in |u|, fitted to 4.1e-6; beyond 6 it is below 1e-8.
template <bool TANH> __device__ inline float gelu(float u) {
    if constexpr (TANH) {
        // u / (1 + exp(-2 sqrt(2 / pi) (u + 0.044715 u^3)))
        return __fdividef(u, 1.0f + two_to(u * fmaf(u * u, -0.10294324f, -2.3022082f)));
    } else {
        const float v = fminf(fabsf(u), 6.0f);
        float sum = fmaf(v, -0.00011161887f, 0.001714044f);
        sum = fmaf(v, sum, -0.011442426f);
        sum = fmaf(v, sum, 0.044972066f);
        sum = fmaf(v, sum, -0.12078666f);
        sum = fmaf(v, sum, 0.24556245f);
        sum = fmaf(v, sum, -0.39832327f);
        sum = fmaf(v, sum, 0.5f);
        return fmaf(-v * two_to(v * v * -0.72134752f), sum, larger_or_nan(u, 0.0f));
    }
}

// Goes from pixel to pixel of a strip in steps: its row and column, where every row has one more column of zeros.
struct Walk {
    int row, column, pitch;
    __device__ Walk(int pixel, int pitch) : row(pixel / pitch), column(pixel % pitch), pitch(pitch) {}
    __device__ void step(int by) {
        for (column += by; column >= pitch; column -= pitch) ++row;
    }
    // By less than a row.
    __device__ void go_on(int by) {
        column += by;
        const bool over = column >= pitch;
        column -= over ? pitch : 0;
        row += over;
    }
};

// y = GELU((x * w - mean) / sqrt(variance + eps) gamma + beta), channels last, `rows` rows of an image a block, `strips`
// blocks an image, block THREADS; at most 3 SPAN + 1 pixels and zeros a strip. A bias moves a plane and its mean alike:
// only its NaN or infinity is seen. z, where not null, is the convolution; statistics, where not null, mean and
// 1 / sqrt(variance + eps) of each plane, (image, 2, channel). moments: two floats a block and channel. counters: two
// zeros an image, left zeros. y may be null: then the convolution is all. ADJOINT, of 16-bit numbers: of the
// convolution's gradient, z is that of its input. gamma and beta may both be null. float is multiplied by three products
// of its two largest terms of bfloat16.
template <typename scalar, bool TANH, bool ADJOINT>
__global__ __launch_bounds__(THREADS, 1) void conv_block_whole(const scalar* x, const scalar* weight,
                                                               const scalar* bias, const scalar* gamma,
                                                               const scalar* beta, scalar* z, scalar* y, float* moments,
                                                               float* statistics, unsigned* counters, Size height,
                                                               Size width, Size rows, Size strips, float eps) {
    constexpr bool SPLIT = sizeof(scalar) == 4;
    float* partial = reinterpret_cast<float*>(dynamic_shared);
    const unsigned shared = shared_address(dynamic_shared);
    const unsigned weights = (shared + PARTIAL_BYTES + 1023) / 1024 * 1024, pixels = weights + 9 * TAP_BYTES;
    const auto pack_at = [&](unsigned address) { return reinterpret_cast<uint4*>(dynamic_shared + (address - shared)); };
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32 % 4;
    const int pitch = static_cast<int>(width) + 1, wide = static_cast<int>(width);
    const int image = static_cast<int>(blockIdx.x / strips), strip = static_cast<int>(blockIdx.x % strips);
    const int first = strip * static_cast<int>(rows), strip_pixels = static_cast<int>(rows) * pitch;
    const int here = min(static_cast<int>(rows), static_cast<int>(height) - first);
    const scalar* plane = x + image * height * width * CHANNELS;
    // Pixel of the strip's input and the zeros around it, by a walk that starts at the row above the strip.
    const auto source_of = [&](const Walk& at, bool& inside) {
        const int row = first - 1 + at.row;
        inside = row >= 0 && row < height && at.column > 0;
        return plane + (inside ? (row * wide + at.column - 1) * CHANNELS : 0);
    };

    wait_for_kernel_before();
    let_next_kernel_start();

    // sums[4 j + 2 half + n] is channel 16 warp + lane / 4 + 8 half of pixel SPAN group + 8 j + 2 (lane % 4) + n.
    float sums[SPAN / 2];
    if constexpr (!SPLIT) {
        const auto fill_pixels = [&](int from, int to) {
            const int pack = thread % PACKS;
            Walk at(from + thread / PACKS, pitch);
            for (int pixel = from + thread / PACKS; pixel < to; pixel += AT_ONCE, at.step(AT_ONCE)) {
                bool inside;
                const scalar* source = source_of(at, inside) + pack * 8;
                copy_async(pixels + pixel * ROW_BYTES + (pack ^ pixel % 8) * 16, source, inside ? 16 : 0);
            }
        };
        const auto fill_weights = [&](int from, int to) {
            for (int i = from * CHANNELS * PACKS + thread; i < to * CHANNELS * PACKS; i += THREADS) {
                const int tap = i / (CHANNELS * PACKS), row = i / PACKS % CHANNELS, pack = i % PACKS;
                const unsigned into = weights + tap * TAP_BYTES + row * ROW_BYTES + (pack ^ row % 8) * 16;
                copy_async(into, weight + (row * 9 + tap) * CHANNELS + pack * 8, 16);
            }
        };
        // Weights and rows that the upper taps see, then what the others see besides.
#pragma unroll
        for (int down = 0; down < 3; ++down) {
            fill_weights(ADJOINT ? 6 - 3 * down : 3 * down, ADJOINT ? 9 - 3 * down : 3 * down + 3);
            fill_pixels(down ? strip_pixels + (down - 1) * pitch + 1 : 0, strip_pixels + down * pitch + 1);
            close_group();
        }
        const unsigned window = pixels + group * SPAN * ROW_BYTES;
#pragma unroll
        for (int down = 0; down < 3; ++down) {
            if (down == 0) wait_for_groups<2>();
            if (down == 1) wait_for_groups<1>();
            if (down == 2) wait_for_groups<0>();
            show_to_copies();
            __syncthreads();
            settle(sums);
            open_products();
#pragma unroll
            for (int across = 0; across < 3; ++across) {
                const int tap = ADJOINT ? 8 - 3 * down - across : 3 * down + across;
                const unsigned long long left = operand(weights + tap * TAP_BYTES);
                const unsigned long long right = operand(window + (down * pitch + across) * ROW_BYTES);
#pragma unroll
                for (int k = 0; k < 4; ++k) {  // 16 along k are 32 bytes, 2 in an operand's units, or 16 rows, 128
                    const int accumulate = down > 0 || across > 0 || k > 0;
                    if constexpr (ADJOINT)
                        multiply_transposed<scalar>(sums, left + 128 * k, right + 2 * k, accumulate);
                    else
                        multiply_tiles<scalar, SPAN>(sums, left + 2 * k, right + 2 * k, accumulate);
                }
            }
            close_products();
        }
    } else {
        // Of each of two buffers: large terms of all pixels, small ones, large ones of nine taps, small ones.
        const unsigned pixel_bytes = (GROUPS * SPAN + 2 * pitch + 2) * SHORT_BYTES;
        const unsigned buffer_bytes = 2 * (pixel_bytes + SHORT_WEIGHT_BYTES);
        const auto swizzled_pack = [&](unsigned address) { return pack_at(address ^ (address >> 7 & 1) << 4); };
        const auto fill = [&](int step) {
            const unsigned to = weights + step % 2 * buffer_bytes, taps = to + 2 * pixel_bytes;
            const int pack = thread % SHORT_PACKS, start = thread / SHORT_PACKS;
            const int channel = step * SHORT_DEPTH + pack * 8;
            Walk at(start, pitch);
#pragma unroll 2
            for (int pixel = start; pixel < strip_pixels + 2 * pitch + 1; pixel += THREADS / SHORT_PACKS) {
                bool inside;
                const scalar* source = source_of(at, inside) + channel;
                const unsigned into = to + pixel * SHORT_BYTES + pack * 16;
                split(source, inside, swizzled_pack(into), swizzled_pack(into + pixel_bytes));
                at.step(THREADS / SHORT_PACKS);
            }
#pragma unroll
            for (int row = start; row < 9 * CHANNELS; row += THREADS / SHORT_PACKS) {  // of a tap, of all taps
                const scalar* source = weight + (row % CHANNELS * 9 + row / CHANNELS) * CHANNELS + channel;
                const unsigned into = taps + row * SHORT_BYTES + pack * 16;
                split(source, true, swizzled_pack(into), swizzled_pack(into + SHORT_WEIGHT_BYTES));
            }
            show_to_copies();
            __syncthreads();
        };
        fill(0);
#pragma unroll 1
        for (int step = 0; step < STEPS; ++step) {
            const unsigned window = weights + step % 2 * buffer_bytes + group * SPAN * SHORT_BYTES;
            const unsigned taps = weights + step % 2 * buffer_bytes + 2 * pixel_bytes;
            settle(sums);
            open_products();
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) {
                const unsigned from = window + (tap / 3 * pitch + tap % 3) * SHORT_BYTES;
                const unsigned long long large = short_operand(from), small = short_operand(from + pixel_bytes);
                const unsigned long long left = short_operand(taps + tap * SHORT_TAP_BYTES);
                multiply_tiles<__nv_bfloat16, SPAN>(sums, left, small, step > 0 || tap > 0);
                multiply_tiles<__nv_bfloat16, SPAN>(sums, left + SHORT_WEIGHT_BYTES / 16, large, 1);
                multiply_tiles<__nv_bfloat16, SPAN>(sums, left, large, 1);
            }
            close_products();
            if (step + 1 < STEPS) {
                // The products before these are done, so their buffer may be filled.
                wait_for_products<1>();
                __syncthreads();
                fill(step + 1);
            }
        }
    }
    wait_for_products<0>();
    settle(sums);
    __syncthreads();

    // ---- what goes out

    const int channel = 16 * warp + lane / 4, own = SPAN * group + lane % 4 * 2;
    const Size base = (image * height + first) * width * CHANNELS;
    float scale[2] = {1, 1}, shift[2] = {0, 0};  // of the normalisation, once its moments are known
    const auto value = [&](float sum, int half, bool last) {
        return last ? gelu<TANH>(fmaf(sum, scale[half], shift[half])) : sum;
    };
    // All of a strip, the convolution or what comes last: 32 bits a number fill whole sectors of memory straight from
    // the registers, 16 do not.
    const auto put = [&](scalar* out, bool last) {
        if constexpr (SPLIT) {
            // Two strips' worth of places would not fit into the registers beside the sums: each goes its own way.
            unsigned start[1] = {static_cast<unsigned>(own)};
            settle(start);
            Walk at(static_cast<int>(start[0]), pitch);
#pragma unroll
            for (int j = 0; j < SPAN / 8; ++j, at.go_on(8)) {
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    Walk one = at;
                    one.go_on(n);
                    if (one.row >= here || one.column >= wide) continue;
                    scalar* to = out + base + (one.row * wide + one.column) * CHANNELS + channel;
                    to[0] = value(sums[4 * j + n], 0, last);
                    to[8] = value(sums[4 * j + 2 + n], 1, last);
                }
            }
        } else {
            // By 80 pixels, so that some are on their way while the next ones are computed.
            constexpr int PART = 10;
            const int within = thread % 128, pack = within % PACKS;
            const unsigned window = pixels + group * SPAN * ROW_BYTES;
            const unsigned column = window + lane % 8 * ROW_BYTES + (2 * warp + lane / 8 % 2 ^ lane % 8) * 16;
            int pixel = within / PACKS;
            Walk at(SPAN * group + pixel, pitch);
#pragma unroll
            for (int part = 0; part < SPAN / 8; part += PART) {
                const int end = part + PART < SPAN / 8 ? part + PART : SPAN / 8;
#pragma unroll
                for (int j = part; j < end; ++j) {
                    const unsigned low =
                        rounded<scalar>(value(sums[4 * j], 0, last), value(sums[4 * j + 1], 0, last));
                    const unsigned high =
                        rounded<scalar>(value(sums[4 * j + 2], 1, last), value(sums[4 * j + 3], 1, last));
                    store_transposed(column + j * 8 * ROW_BYTES, low, high);
                }
                synchronize_group(group);
                for (; pixel < 8 * end; pixel += 128 / PACKS, at.step(128 / PACKS)) {
                    if (at.row >= here || at.column >= wide) continue;
                    scalar* to = out + base + (at.row * wide + at.column) * CHANNELS + pack * 8;
                    *reinterpret_cast<uint4*>(to) = *pack_at(window + pixel * ROW_BYTES + (pack ^ pixel % 8) * 16);
                }
            }
        }
    };
    if (!y) {
        put(z, false);
        return;
    }

    // ---- moments of the strip: the mean, and squares about it, for squares about zero would cancel

    unsigned valid[2] = {0, 0};
    Walk at(own, pitch);
#pragma unroll
    for (int j = 0; j < SPAN / 8; ++j, at.go_on(8)) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
            Walk one = at;
            one.go_on(n);
            valid[n] |= (one.row < here && one.column < wide) << j;
        }
    }
    settle(valid);
    // Of a channel, all that this thread's fours and then all groups hold of it.
    const auto total = [&](float* groups, float (&part)[2]) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            part[half] += __shfl_xor_sync(0xffffffff, part[half], 1);
            part[half] += __shfl_xor_sync(0xffffffff, part[half], 2);
            if (lane % 4 == 0) groups[CHANNELS * group + channel + 8 * half] = part[half];
        }
        __syncthreads();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float* of = groups + channel + 8 * half;
            part[half] = of[0] + of[CHANNELS] + of[2 * CHANNELS];
        }
    };
    float mean[2] = {0, 0}, squares[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < SPAN / 2; ++i) {
        mean[i / 2 % 2] += valid[i % 2] >> i / 4 & 1 ? sums[i] : 0.0f;
    }
    total(partial, mean);
    settle(valid);
    const float count = static_cast<float>(here * wide);
#pragma unroll
    for (int half = 0; half < 2; ++half) mean[half] /= count;
#pragma unroll
    for (int i = 0; i < SPAN / 2; ++i) {
        const float off = valid[i % 2] >> i / 4 & 1 ? sums[i] - mean[i / 2 % 2] : 0.0f;
        squares[i / 2 % 2] = fmaf(off, off, squares[i / 2 % 2]);
    }
    total(partial + GROUPS * CHANNELS, squares);
    if (group == 0 && lane % 4 == 0) {
        float* to = moments + (image * strips + strip) * 2 * CHANNELS + channel;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            to[8 * half] = mean[half];
            to[CHANNELS + 8 * half] = squares[half];
        }
    }
    __syncthreads();
    if (thread == 0) count_in(counters + 2 * image);
    if (z) put(z, false);

    // ---- moments of the plane

    if (thread == 0) {
        while (counted(counters + 2 * image) < strips) {
        }
        // The last to have seen all leaves the counters as it found them.
        if (count_in(counters + 2 * image + 1) == strips - 1) {
            counters[2 * image] = 0;
            counters[2 * image + 1] = 0;
        }
    }
    __syncthreads();
    {
        constexpr int SHARES = THREADS / CHANNELS;
        const int share = thread / CHANNELS, each = thread % CHANNELS;
        const float* of = moments + image * strips * 2 * CHANNELS + each;
        // Means relative to the first strip's.
        const float origin = fresh(of), all = static_cast<float>(height * width);
        float sum = 0, square = 0;
#pragma unroll 5
        for (int other = share; other < strips; other += SHARES) {
            const int there = min(static_cast<int>(rows), static_cast<int>(height - other * rows)) * wide;
            const float off = fresh(of + other * 2 * CHANNELS) - origin;
            sum = fmaf(static_cast<float>(there), off, sum);
            square += fmaf(static_cast<float>(there) * off, off, fresh(of + (other * 2 + 1) * CHANNELS));
        }
        partial[share * CHANNELS + each] = sum;
        partial[(SHARES + share) * CHANNELS + each] = square;
        __syncthreads();
        if (thread < CHANNELS) {
            sum = square = 0;
            for (int other = 0; other < SHARES; ++other) {
                sum += partial[other * CHANNELS + each];
                square += partial[(SHARES + other) * CHANNELS + each];
            }
            const float off = sum / all, variance = square / all - off * off, middle = origin + off;
            // Rounding may leave less than nothing of a plane of one value; a NaN stays.
            float factor = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps);
            if (statistics && strip == 0) {
                statistics[image * 2 * CHANNELS + each] = middle;
                statistics[(image * 2 + 1) * CHANNELS + each] = factor;
            }
            float summand = bias ? 0.0f * static_cast<float>(bias[each]) : 0.0f;
            if (gamma) {
                factor *= static_cast<float>(gamma[each]);
                summand += static_cast<float>(beta[each]);
            }
            partial[each] = factor;
            partial[CHANNELS + each] = summand - middle * factor;
        }
        __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        scale[half] = partial[channel + 8 * half];
        shift[half] = partial[CHANNELS + channel + 8 * half];
    }
    put(y, true);
}
