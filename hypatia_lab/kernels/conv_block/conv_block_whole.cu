// Conv2d 3x3 -> InstanceNorm2d -> GELU in one kernel for Hopper: the convolution's sums never leave the registers.
//
// A block computes a strip, some whole rows of one image, of 64 channels. Its input lies in shared memory once, pixel
// after pixel, with one or two pixels of zeros between rows. So what a tap sees of all the strip is the same memory from another
// pixel on, and each tap is a product of its weights (64 x 64) and that window, transposed, for wgmma. The sums of the
// zeros between rows are computed and ignored. The blocks of an image wait for each other's moments before they
// normalise what they hold, so all must run at once: one a multiprocessor.
// Sources: PTX ISA, sections on wgmma, its shared memory layouts and stmatrix; Chan, Golub, LeVeque (moments).

#include "gelu.cuh"
#include "hopper.cuh"

// ---- instructions

// Two 8 x 8 matrices of 16-bit numbers to shared memory, transposed; lane l gives the address of column l % 8 of matrix
// l / 8 % 2.
__device__ inline void store_transposed(unsigned address, unsigned a, unsigned b) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
                 : "memory");
}

// Two numbers of bfloat16.
__device__ inline unsigned quadrupled(unsigned pair) {
    unsigned found;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(pair), "r"(0x40804080u));
    return found;
}

__device__ inline float larger_or_nan(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

#define TO_48 FIRST_16_SLOTS ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TO_96 SLOTS_0 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define TO_72 SLOTS_0 ", %32, %33, %34, %35"
#define TO_216 \
    SLOTS_0    \
    ", " SLOTS_1 ", " SLOTS_2 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107"
#define SUMS_24 SUMS_16(0), SUMS_8(16)
#define SUMS_36 SUMS_32(0), "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), "+f"(sums[35])
#define SUMS_48 SUMS_32(0), SUMS_16(32)
#define SUMS_108                                                                                               \
    SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_8(96), "+f"(sums[104]), "+f"(sums[105]), "+f"(sums[106]), \
        "+f"(sums[107])
// The same with `a` transposed in memory: 16 rows of 64.
template <typename scalar, int SUMS>
__device__ inline void multiply_transposed(float (&sums)[SUMS], unsigned long long a, unsigned long long b,
                                           int accumulate);
#define MULTIPLY_TRANSPOSED(scalar, type, width, slots, a_slot, b_slot, flag_slot, ...)                        \
    template <>                                                                                                \
    __device__ inline void multiply_transposed<scalar>(float (&sums)[width / 2], unsigned long long a,         \
                                                       unsigned long long b, int accumulate) {                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag_slot                                             \
                     ", 0;\n"                                                                                  \
                     "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type " {" slots            \
                     "}, " a_slot ", " b_slot ", p, 1, 1, 1, 0;\n}"                                            \
                     : __VA_ARGS__                                                                             \
                     : "l"(a), "l"(b), "r"(accumulate));                                                       \
    }
#define MULTIPLY_SPANS(how, scalar, type)                         \
    how(scalar, type, 48, TO_48, "%24", "%25", "%26", SUMS_24)    \
    how(scalar, type, 96, TO_96, "%48", "%49", "%50", SUMS_48)    \
    how(scalar, type, 216, TO_216, "%108", "%109", "%110", SUMS_108)
MULTIPLY_SPANS(MULTIPLY_TILES, __nv_bfloat16, "bf16")
MULTIPLY_SPANS(MULTIPLY_TILES, __half, "f16")
MULTIPLY_TILES(__half, "f16", 72, TO_72, "%36", "%37", "%38", SUMS_36)
MULTIPLY_SPANS(MULTIPLY_TRANSPOSED, __nv_bfloat16, "bf16")
MULTIPLY_SPANS(MULTIPLY_TRANSPOSED, __half, "f16")

// ---- kernels

constexpr int CHANNELS = 64, GROUPS = 3, THREADS = 128 * GROUPS;
// Shared memory: numbers in float that threads tell each other, barriers, then, at a multiple of 1024, what is
// multiplied. 16-bit numbers: nine taps' weights and the strip's input, all channels of a pixel in a row of 128 bytes.
// float32 comes by 16 channels, the next ones while the ones before are multiplied, and is split where it lies: a row of
// 16 numbers of 4 bytes becomes one of 16 large and 16 small terms of bfloat16, or of 16 numbers of float16.
constexpr unsigned TOLD_BYTES = 9984, BARRIER_BYTES = 64;
// Before a row are two pixels of zeros, or one if its pixels are an odd number: then it starts at a multiple of 128
// bytes, as TMA asks, and a thread's two neighbouring pixels are of one row.
constexpr int LEFT = 2, PACK = 16, SHORT_DEPTH = 16, SHORT_BYTES = 64, STEPS = CHANNELS / SHORT_DEPTH, STAGES = 5;

// float16 keeps as many digits as TF32, but not of all that float32 holds. So pixels and weights are multiplied by these
// powers of two and rounded to nearest: below FLOAT16_END to 2^-11 of themselves, as TF32 rounds, if they are 2^-14 or
// more, and to 2^-25 if less. The latter is what a product may be off by more than TF32's own, times both its factors;
// so a sum of so many, its scale taken away, is by OFF times the largest of all factors at most. Float16 will do where
// that is within FINE of what the plane is divided by: an eighth of the 2e-3 that TF32's answer is held to, were all these
// errors of one sign. That divisor is of sums of what was rounded, which is more than the plane's own by at most their
// errors: where it passes, these are within FINE of the plane's own or of TF32's errors.
// TF32 itself, the largest error of five million, is off by 1.6e-3 to 2.2e-3 of a normal distribution's numbers. So one
// step in four is of three products of bfloat16 even then, which leaves sqrt(3 / 4) of that. It is the second, for the
// numbers of the third come while it lasts.
constexpr int FINE_STEP = 1;
constexpr float PIXEL_SCALE = 16, WEIGHT_SCALE = 256, FLOAT16_END = 65504, FINE = 1.0f / (1 << 12);
constexpr float UNSCALED = 1 / (PIXEL_SCALE * WEIGHT_SCALE);
constexpr float OFF = 2 * 9 * (CHANNELS - SHORT_DEPTH) * UNSCALED / (1 << 25);

template <typename scalar> constexpr bool COARSE = false;
template <> constexpr bool COARSE<__nv_bfloat16> = true;

// float32's own digits: every step's pixels, and its weights by channel, are multiplied by powers of two that take the
// largest of them below 2^15, half of float16's range; of numbers of a hundred thousandth of that, two terms keep 22
// bits. Matrix units cut off what they add. So a step's small products are added up before its large ones, and its sums
// leave the units then, by parts, for beside all of them there are no registers for as many again.
constexpr int UP = 14, LEAST_EXPONENT = 15, BIAS = 127;
template <bool SCALED> struct Term { using type = __nv_bfloat16; };
template <> struct Term<true> { using type = __half; };
template <int SPAN> constexpr int PART = SPAN == 216 ? 72 : SPAN;
__device__ inline unsigned finite_magnitude(float of) {
    const unsigned bits = __float_as_uint(of) & 0x7fffffff;
    return bits < 0x7f800000 ? bits : 0;
}
// The exponent of what multiplies numbers up to that of these bits; even, so that two of them have half their sum.
__device__ inline int raised(unsigned bits) {
    const int exponent = static_cast<int>(bits >> 23);
    return UP + BIAS - (exponent > LEAST_EXPONENT ? exponent : LEAST_EXPONENT) & ~1;
}
__device__ inline float power_of_two(int exponent) { return __uint_as_float(static_cast<unsigned>(exponent + BIAS) << 23); }

// GELU by the error function is max(u, 0) less |u| times the normal distribution's tail beyond |u|, which past 6 is
// nothing. For bfloat16, whose own rounding is 2e-3 of a number, it is u (1 + tanh(w)) / 2 in both forms, by the
// hardware's tanh, which is right to 5e-4; that w for the error function is fitted to 2.5e-5 of GELU. There u / 8 gives
// GELU / 4: the normalisation yields that at no cost, and its square ends at 1, as a product may at no cost, either.
template <typename scalar> constexpr float SHARE = COARSE<scalar> ? 0.125f : 1.0f;
template <typename scalar, bool TANH, bool FINE_DIGITS> __device__ inline float gelu(float u) {
    if constexpr (COARSE<scalar>) {
        const float square = __saturatef(u * u);
        const float slope = TANH ? fmaf(square, 18.266834f, 6.3830768f)
                                 : fmaf(square, fmaf(square, -11.524788f, 18.947495f), 6.3800528f);
        return fmaf(u, about_tanh(u * slope), u);
    } else if constexpr (TANH) {
        // u / (1 + exp(-2 sqrt(2 / pi) (u + 0.044715 u^3)))
        return __fdividef(u, 1.0f + two_to(u * fmaf(u * u, -0.10294324f, -2.3022082f)));
    } else {
        const float v = fminf(fabsf(u), 6.0f), decay = two_to(v * v * -0.72134752f);
        return fmaf(-v, FINE_DIGITS ? fine_tail(v, decay) : normal_tail(v, decay), larger_or_nan(u, 0.0f));
    }
}

// Goes from pixel to pixel of a strip in steps: its row and column, where every row has one more column of zeros.
struct Walk {
    int row, column, pitch;
    __device__ Walk(int pixel, int pitch) : row(pixel / pitch), column(pixel % pitch), pitch(pitch) {}
    // By less than a row.
    __device__ void go_on(int by) {
        column += by;
        const bool over = column >= pitch;
        column -= over ? pitch : 0;
        row += over;
    }
};

// A block's strip: pixels of a row and from row to row, of which image it is, which one of it, its first row and how
// many; rows of the input, the first one above the strip, that are in the image.
struct Strip {
    int wide, pitch, image, strip, first, here, top, bottom;
    __device__ Strip(unsigned width, unsigned block, unsigned strips, int rows, int height)
        : wide(static_cast<int>(width)), pitch((wide + LEFT) / 2 * 2), image(static_cast<int>(block / strips)),
          strip(static_cast<int>(block % strips)), first(strip * rows), here(min(rows, height - first)),
          top(first == 0 ? 1 : 0), bottom(min(rows + 2, height - first + 1)) {}
};

// y = GELU((x * w - mean) / sqrt(variance + eps) gamma + beta), channels last, `rows` rows of an image a block, `strips`
// blocks an image, block THREADS; at most 3 SPAN pixels and zeros between them a
// strip, SPAN 48, 96 or 216: the sums that a warpgroup has of each channel. Boxes of x are rows of an image,
// those of the weights (out, tap, in) 64 rows, each 64 channels wide, or 16 of float; those of z and y, of which float
// has none, eight pixels of 64 channels. A bias moves a plane and its mean
// alike: only its NaN or infinity is seen. z, where not null, is the convolution; statistics, where not null, mean and
// 1 / sqrt(variance + eps) of each plane, (image, 2, channel). moments: two floats a block and channel. counters: two
// zeros an image, left zeros. follows: the launch before is of the same call, so that x is there and only what is
// written has to wait for it. next, of `following` images, is the x of the launch after this one: of 16-bit numbers it
// is brought to the second-level cache. y may be null: then the convolution is all. ADJOINT, of 16-bit numbers: of the
// convolution's gradient, z is that of its input. gamma and beta may both be null. float is multiplied by three products
// of its two largest terms of bfloat16. TRY_HALF, of float and with y: mostly by one of float16, and once more by those
// three in the images of which that is not TF32's accuracy; moments are then twice as many floats, and one more a block.
// SCALED, of float: by three products of two terms of float16 that have float32's digits.
// [whole]
template <typename scalar, bool TANH, bool ADJOINT, bool TRY_HALF, bool SCALED, int SPAN>
__global__ __launch_bounds__(THREADS, 1) void conv_block_whole(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
    const __grid_constant__ TensorMap z_map, const __grid_constant__ TensorMap y_map, const scalar* bias,
    const scalar* gamma, const scalar* beta, scalar* z, scalar* y, float* moments, float* statistics,
    unsigned* counters, Size follows, const scalar* next, Size following, Size height, Size width, Size rows,
    Size strips, float eps) {
// [/whole]
    constexpr bool SPLIT = sizeof(scalar) == 4;
    using term = typename Term<SCALED>::type;
    constexpr int WIDTH = SPLIT ? SHORT_BYTES : ROW_BYTES, TAP_BYTES = CHANNELS * WIDTH, TURN = SPLIT ? 2 : 1;
    float* told = reinterpret_cast<float*>(dynamic_shared);
    const unsigned shared = shared_address(dynamic_shared), barriers = shared + TOLD_BYTES;
    const unsigned weights = (barriers + BARRIER_BYTES + 1023) / 1024 * 1024, pixels = weights + 9 * TAP_BYTES;
    const auto pack_at = [&](unsigned address) { return reinterpret_cast<uint4*>(dynamic_shared + (address - shared)); };
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32 % 4;
    const int wide = static_cast<int>(width), pitch = (wide + LEFT) / 2 * 2;
    // Both are counted anew where they are asked for: kept while products run, they would not fit into the registers beside
    // the sums.
    const auto anew = [] {
        unsigned own[1] = {threadIdx.x};
        if (SCALED) settle(own);
        return static_cast<int>(own[0]);
    };
    const auto locate = [&] {
        unsigned seen[2] = {static_cast<unsigned>(width), blockIdx.x};
        if (SCALED) settle(seen);
        return Strip(seen[0], seen[1], static_cast<unsigned>(strips), static_cast<int>(rows), static_cast<int>(height));
    };
    const Strip begun = locate();
    // Of a buffer, with room for all that the last window may reach; eight rows are a round of the swizzle.
    const int room = (GROUPS * SPAN + 2 * pitch + 1 + LEFT + 7) / 8 * 8;
    const unsigned buffer_bytes = room * WIDTH + 9 * TAP_BYTES;
    const int top = begun.top, bottom = begun.bottom;

    // ---- zeros around the image, which no copy writes

    constexpr int PACKS = WIDTH / PACK;
    const auto clear = [&](int i) {
#pragma unroll
        for (int buffer = 0; buffer < TURN; ++buffer) {
            *pack_at(pixels + buffer * buffer_bytes + i * PACK) = make_uint4(0, 0, 0, 0);
        }
    };
    const int gap = pitch - wide, gap_packs = gap * PACKS;
    for (int i = thread; i < (static_cast<int>(rows) + 3) * gap_packs; i += THREADS) {
        clear((i / gap_packs * pitch + LEFT - gap) * PACKS + i % gap_packs);
    }
    for (int i = thread; top > 0 && i < wide * PACKS; i += THREADS) clear(LEFT * PACKS + i);
    for (int i = (bottom * pitch + LEFT) * PACKS + thread; i < ((static_cast<int>(rows) + 2) * pitch + LEFT) * PACKS;
         i += THREADS) {
        clear(i);
    }
    if (SPLIT && thread < LEFT * PACKS) clear(thread);  // all that is split is known
    show_to_copies();
    if (thread == 0) {
        prefetch(x_map);
        prefetch(weight_map);
        for (int stage = 0; stage < STAGES; ++stage) start_barrier(barriers + 8 * stage, 1);
        publish_barriers();
    }
    __syncthreads();
    if (!follows) wait_for_kernel_before();
    let_next_kernel_start();

    const auto fetch_row = [&](int row, int k, unsigned buffer, unsigned barrier) {
        const int source = (begun.image * static_cast<int>(height) + begun.first - 1 + row) * wide;
        fetch_box(pixels + buffer + (row * pitch + LEFT) * WIDTH, x_map, k, source, barrier);
    };
    const auto fetch_tap = [&](int tap, int k, unsigned buffer, unsigned barrier) {
        fetch_box(weights + buffer + tap * TAP_BYTES, weight_map, tap * CHANNELS + k, 0, barrier);
    };

    // [whole]
    // sums[4 j + 2 half + n] is channel 16 warp + lane / 4 + 8 half of pixel SPAN group + 8 j + 2 (lane % 4) + n.
    float sums[SPAN / 2];  // (1)
    // [/whole]
    float largest = 0;  // scaled number that this thread has split, or NaN
    // The second time if the first is not enough.
    for (bool as_half = TRY_HALF;; as_half = false) {
        const float unit = TRY_HALF && as_half ? UNSCALED : 1.0f;  // of a sum of scaled numbers
        if constexpr (!SPLIT) {
            // In the order in which the three warpgroups need them: what the upper taps see of one after the other, SPAN
            // pixels and two more, then the rows below. Of few pixels a row is longer than what a warpgroup has: then all
            // wait for the last of what the middle taps see.
            if (thread == 0) {
                int row = top;
                for (int stage = 0; stage < STAGES; ++stage) {
                    const int down = stage == 0 ? 0 : stage == 2 ? 1 : stage == 3 ? 2 : -1;
                    const int end = min(stage + 1, GROUPS) * SPAN + 1 + LEFT + (stage < 3 ? 0 : stage - 2) * pitch;
                    int until = row;
                    while (until < bottom && until * pitch + LEFT < end) ++until;
                    const unsigned barrier = barriers + 8 * stage;
                    arrive_and_expect(barrier, (until - row) * wide * WIDTH + (down < 0 ? 0 : 3 * TAP_BYTES));
                    for (int across = 0; across < 3 && down >= 0; ++across) {
                        fetch_tap(ADJOINT ? 8 - 3 * down - across : 3 * down + across, 0, 0, barrier);
                    }
                    for (; row < until; ++row) fetch_row(row, 0, 0, barrier);
                }
            }
            // [whole]
            const unsigned window = pixels + (group * SPAN + LEFT - 1) * WIDTH;
#pragma unroll
            for (int down = 0; down < 3; ++down) {
                const int needed = down == 0 ? group : down + 1 + (group == GROUPS - 1 || SPAN < pitch);
                for (int stage = 0; stage <= needed; ++stage) wait(barriers + 8 * stage, 0);
                settle(sums);
                open_products();
#pragma unroll
                for (int across = 0; across < 3; ++across) {
                    const int tap = ADJOINT ? 8 - 3 * down - across : 3 * down + across;
                    const unsigned long long left = operand(weights + tap * TAP_BYTES);
                    const unsigned long long right = operand(window + (down * pitch + across) * WIDTH);
#pragma unroll
                    for (int k = 0; k < 4; ++k) {  // 16 along k are 32 bytes, 2 in an operand's units, or 16 rows, 128
                        const int accumulate = down > 0 || across > 0 || k > 0;
                        if constexpr (ADJOINT)
                            multiply_transposed<scalar>(sums, left + 128 * k, right + 2 * k, accumulate);
                        else
                            multiply_tiles<scalar, SPAN>(sums, left + 2 * k, right + 2 * k, accumulate);  // (2)
                    }
                }
                close_products();
            // [/whole]
            }
        } else {
            const auto fetch = [&](int step) {
                if (thread > 0) return;
                const unsigned barrier = barriers + 8 * (step % 2), buffer = step % 2 * buffer_bytes;
                const Strip at = locate();
                arrive_and_expect(barrier, (at.bottom - at.top) * wide * WIDTH + 9 * TAP_BYTES);
                const int source = (at.image * static_cast<int>(height) + at.first - 1) * wide;
                for (int row = at.top; row < at.bottom; ++row) {
                    const unsigned to = pixels + buffer + (row * pitch + LEFT) * WIDTH;
                    fetch_box(to, x_map, step * SHORT_DEPTH, source + row * wide, barrier);
                }
                for (int tap = 0; tap < 9; ++tap) fetch_tap(tap, step * SHORT_DEPTH, buffer, barrier);
            };
            const auto rest = [](unsigned pair, float low, float high) {
                return rounded<term>(low - half_of<term>(pair, 0), high - half_of<term>(pair, 1));
            };
            // Four threads of a warp split a row. Its second and third bit change places, so that what 16 threads store
            // at once lies in different banks.
            constexpr int AT_ONCE = THREADS / PACKS;
            const auto row_of = [](int thread) {
                const int lane = thread % 32;
                return thread / 32 * 8 + lane / 4 % 2 + lane / 8 % 2 * 4 + lane / 16 * 2;
            };
            const auto place = [&](unsigned from, int start, int row, int pack) {
                return pack_at(from + row * WIDTH + (pack ^ start / 2 % PACKS) * PACK);
            };
            // So many rows from `from` on, some of them read before the first is written.
            const auto split_rows = [&](unsigned from, int count, auto scale_of, bool halves) {
                constexpr int BATCH = SCALED ? 1 : 2;
                const int thread = anew(), pack = thread % PACKS, start = row_of(thread);
                const auto at = [&](int row, int pack) { return place(from, start, row, pack); };
#pragma unroll 2
                for (int first = start; first - start < count; first += BATCH * AT_ONCE) {
                    float4 wholes[BATCH];
#pragma unroll
                    for (int i = 0; i < BATCH; ++i) {
                        const int row = first + i * AT_ONCE;
                        wholes[i] = make_float4(0, 0, 0, 0);
                        if (row < count) wholes[i] = *reinterpret_cast<const float4*>(at(row, pack));
                    }
                    __syncwarp();
                    const auto keep = [&](int i, int pack_of, unsigned low, unsigned high) {
                        const int row = first + i * AT_ONCE;
                        if (row < count) reinterpret_cast<uint2*>(at(row, pack_of))[pack % 2] = make_uint2(low, high);
                    };
#pragma unroll
                    for (int i = 0; (TRY_HALF || SCALED) && i < BATCH; ++i) {
                        float4& whole = wholes[i];
                        const float scale = scale_of(first + i * AT_ONCE);
                        whole = make_float4(scale * whole.x, scale * whole.y, scale * whole.z, scale * whole.w);
                        if (SCALED) continue;
                        largest = larger_or_nan(largest, larger_or_nan(fabsf(whole.x), fabsf(whole.y)));
                        largest = larger_or_nan(largest, larger_or_nan(fabsf(whole.z), fabsf(whole.w)));
                    }
                    if (halves) {
#pragma unroll
                        for (int i = 0; i < BATCH; ++i) {
                            const float4& whole = wholes[i];
                            keep(i, pack / 2, rounded<__half>(whole.x, whole.y), rounded<__half>(whole.z, whole.w));
                        }
                    } else {
#pragma unroll
                        for (int i = 0; i < BATCH; ++i) {
                            const float4& whole = wholes[i];
                            const unsigned low = rounded<term>(whole.x, whole.y);
                            const unsigned high = rounded<term>(whole.z, whole.w);
                            keep(i, pack / 2, low, high);
                            keep(i, 2 + pack / 2, rest(low, whole.x, whole.y), rest(high, whole.z, whole.w));
                        }
                    }
                }
            };
            const auto in_halves = [&](int step) { return TRY_HALF && as_half && step != FINE_STEP; };
            const int held = (static_cast<int>(rows) + 2) * pitch + LEFT;
            // Of both buffers, as bits: the largest magnitudes of weights by channel, then that of all pixels.
            unsigned* const magnitudes = reinterpret_cast<unsigned*>(told + 2 * GROUPS * CHANNELS + 2 * CHANNELS + THREADS);
            constexpr int MAGNITUDES = CHANNELS + 1;
            const auto largest_of = [](float4 of) {
                return max(max(finite_magnitude(of.x), finite_magnitude(of.y)),
                           max(finite_magnitude(of.z), finite_magnitude(of.w)));
            };
            const auto measure = [&](int step) {
                const unsigned buffer = step % 2 * buffer_bytes;
                unsigned* const found = magnitudes + step % 2 * MAGNITUDES;
                wait(barriers + 8 * (step % 2), step / 2 % 2);
                const int thread = anew(), pack = thread % PACKS, start = row_of(thread);
#pragma unroll 1
                for (int row = start; row < 9 * CHANNELS; row += AT_ONCE) {
                    const float4 some = *reinterpret_cast<const float4*>(place(weights + buffer, start, row, pack));
                    unsigned own = largest_of(some);
                    own = max(own, __shfl_xor_sync(0xffffffff, own, 1));
                    own = max(own, __shfl_xor_sync(0xffffffff, own, 2));
                    if (pack == 0) atomicMax(found + row % CHANNELS, own);
                }
                unsigned own = 0;
#pragma unroll 1
                for (int row = start; row < held; row += AT_ONCE) {
                    own = max(own, largest_of(*reinterpret_cast<const float4*>(place(pixels + buffer, start, row, pack))));
                }
                own = __reduce_max_sync(0xffffffff, own);
                if (lane == 0) atomicMax(found + CHANNELS, own);
            };
            const auto split = [&](int step) {
                const unsigned buffer = step % 2 * buffer_bytes;
                if constexpr (SCALED) {
                    const unsigned* const found = magnitudes + step % 2 * MAGNITUDES;
                    const float scale = power_of_two(raised(found[CHANNELS]));
                    split_rows(weights + buffer, 9 * CHANNELS,
                               [&](int row) { return power_of_two(raised(found[row % CHANNELS])); }, false);
                    split_rows(pixels + buffer, held, [&](int) { return scale; }, false);
                } else {
                    wait(barriers + 8 * (step % 2), step / 2 % 2);
                    split_rows(weights + buffer, 9 * CHANNELS, [&](int) { return as_half ? WEIGHT_SCALE : 1.0f; },
                               in_halves(step));
                    split_rows(pixels + buffer, held, [&](int) { return as_half ? PIXEL_SCALE : 1.0f; },
                               in_halves(step));
                }
                show_to_copies();
            };
            fetch(0);
            fetch(1);
            if constexpr (SCALED) {
                if (thread < 2 * MAGNITUDES) magnitudes[thread] = 0;
                __syncthreads();
                measure(0);
                __syncthreads();
            }
            split(0);
            __syncthreads();
#pragma unroll 1
            for (int step = 0; step < STEPS; ++step) {
                const unsigned buffer = step % 2 * buffer_bytes;
                const unsigned window = pixels + buffer + (group * SPAN + LEFT - 1) * WIDTH;
                const auto left = [&](int tap) { return short_operand(weights + buffer + tap * TAP_BYTES); };
                const auto right = [&](int tap) { return short_operand(window + (tap / 3 * pitch + tap % 3) * WIDTH); };
                if constexpr (SCALED) {
                    constexpr int PIXELS = PART<SPAN>;
                    float down[2];  // by channel: twice this takes sums back
                    const unsigned* const found = magnitudes + step % 2 * MAGNITUDES;
#pragma unroll
                    for (int half = 0; half < 2; ++half) {
                        const unsigned by_channel = found[anew() % 128 / 32 * 16 + anew() % 32 / 4 + 8 * half];
                        down[half] = power_of_two(-(raised(by_channel) + raised(found[CHANNELS])) / 2);
                    }
#pragma unroll
                    for (int part = 0; part < SPAN / PIXELS; ++part) {
                        float some[PIXELS / 2];
                        const auto seen = [&](int tap) {
                            return short_operand(window + (tap / 3 * pitch + tap % 3 + part * PIXELS) * WIDTH);
                        };
                        settle(some);
                        open_products();
#pragma unroll
                        for (int tap = 0; tap < 9; ++tap) {
                            multiply_tiles<term, PIXELS>(some, left(tap), seen(tap) + 2, tap > 0);
                            multiply_tiles<term, PIXELS>(some, left(tap) + 2, seen(tap), 1);
                        }
#pragma unroll
                        for (int tap = 0; tap < 9; ++tap) multiply_tiles<term, PIXELS>(some, left(tap), seen(tap), 1);
                        close_products();
                        // The next step's numbers are split while these are multiplied.
                        if (step + 1 < STEPS && part == (SPAN > PIXELS ? 1 : 0)) {
                            measure(step + 1);
                            __syncthreads();
                            if (thread < MAGNITUDES) magnitudes[step % 2 * MAGNITUDES + thread] = 0;
                        }
                        if (step + 1 < STEPS && part == (SPAN > PIXELS ? 2 : 0)) split(step + 1);
                        wait_for_products<0>();
                        settle(some);
#pragma unroll
                        for (int i = 0; i < PIXELS / 2; ++i) {
                            float& sum = sums[part * PIXELS / 2 + i];
                            const float by = down[i / 2 % 2];
                            sum = fmaf(some[i] * by, by, step > 0 ? sum : 0.0f);
                        }
                    }
                } else if (in_halves(step)) {
                    settle(sums);
                    open_products();
#pragma unroll
                    for (int tap = 0; tap < 9; ++tap) {
                        multiply_tiles<__half, SPAN>(sums, left(tap), right(tap), step > 0 || tap > 0);
                    }
                    close_products();
                } else {
                    settle(sums);
                    open_products();
#pragma unroll
                    for (int tap = 0; tap < 9; ++tap) {
                        // The small terms are 32 bytes behind the large ones, 2 in an operand's units.
                        const unsigned long long a = left(tap), b = right(tap);
                        multiply_tiles<__nv_bfloat16, SPAN>(sums, a, b + 2, step > 0 || tap > 0);
                        multiply_tiles<__nv_bfloat16, SPAN>(sums, a + 2, b, 1);
                        multiply_tiles<__nv_bfloat16, SPAN>(sums, a, b, 1);
                    }
                    close_products();
                }
                if (step + 1 == STEPS) break;
                if (!SCALED) split(step + 1);
                // All warpgroups have split the next numbers, and are done with these: their buffer may be filled.
                wait_for_products<0>();
                __syncthreads();
                if (step + 2 < STEPS) fetch(step + 2);
            }
        }

        // ---- while the last products run: which sums are of pixels, and what comes after

        const Strip located = locate();
        const int wide = located.wide, pitch = located.pitch, gap = pitch - wide;
        const int image = located.image, strip = located.strip, first = located.first, here = located.here;

        // Sooner, it would be in the way of this launch's own copies. Of float there are no registers for it.
        if (!SPLIT && thread == 0 && image < following) {
            prefetch_bytes(next + (image * static_cast<int>(height) + first) * wide * CHANNELS,
                           here * wide * CHANNELS * sizeof(scalar));
        }
        const int thread = anew(), lane = thread % 32, warp = thread / 32 % 4;
        const int group = __shfl_sync(0xffffffff, thread / 128, 0);
        const int channel = 16 * warp + lane / 4, own = SPAN * group + lane % 4 * 2;
        // Both bits of a pair in one register: of two registers, one for each bit, ptxas 13.0 tests the wrong one.
        unsigned valid[2] = {0, 0}, both = 0;
        Walk at(own, pitch);
#pragma unroll
        for (int j = 0; j < SPAN / 8; ++j, at.go_on(8)) {
            const bool left = at.row < here && at.column < wide, right = at.row < here && at.column + 1 < wide;
            valid[j / 16] |= (left + 2u * right) << 2 * (j % 16);
            both |= right << j;
        }
        settle(valid);
        const auto is_valid = [&](int j, int n) { return valid[j / 16] >> (2 * (j % 16) + n) & 1; };
        // In this warp, eights of pixels of which not all are of the strip.
        const unsigned mixed = ~__reduce_and_sync(0xffffffff, both);
        float* given = told + 2 * GROUPS * CHANNELS;  // gamma, and beta with what is to be seen of the bias
        if (y && thread < CHANNELS) {
            given[thread] = gamma ? static_cast<float>(gamma[thread]) : 1.0f;
            given[CHANNELS + thread] =
                (beta ? static_cast<float>(beta[thread]) : 0.0f) + (bias ? 0.0f * static_cast<float>(bias[thread]) : 0.0f);
        }
        float *numbers = given + 2 * CHANNELS, *gathered = numbers + THREADS;
        // Known to all of a warp.
        const auto largest_number = [&](int count) {
            float found = 0;
            for (int i = lane; i < count; i += 32) found = larger_or_nan(found, numbers[i]);
#pragma unroll
            for (int distance = 16; distance > 0; distance /= 2) {
                found = larger_or_nan(found, __shfl_xor_sync(0xffffffff, found, distance));
            }
            return found;
        };
        if (TRY_HALF && as_half) numbers[thread] = largest;
        wait_for_products<0>();
        settle(sums);
        __syncthreads();
        if (follows) wait_for_kernel_before();

        // ---- what goes out

        const int base = (image * static_cast<int>(height) + first) * wide * CHANNELS;  // what runs at once is not much
        float scale[2] = {1, 1}, shift[2] = {0, 0};  // of the normalisation, once its moments are known
        const auto value = [&](float sum, int half, bool last) {
            return last ? gelu<scalar, TANH, SCALED>(fmaf(sum, scale[half], shift[half])) : sum * unit;
        };
        // All of a strip, the convolution or what comes last: 32 bits a number fill whole sectors of memory straight from
        // the registers, 16 do not. They are written by TMA, eight pixels a box, or where not all are of the strip by
        // threads.
        const auto put = [&](const TensorMap& map, scalar* out, bool last) {
            if constexpr (SPLIT) {
                // All places at once would not fit into the registers beside the sums: each time they are counted anew.
                unsigned start[1] = {static_cast<unsigned>(own)};
                settle(start);
                Walk at(static_cast<int>(start[0]), pitch);
                int place = base + (at.row * wide + at.column) * CHANNELS + channel;
#pragma unroll
                for (int j = 0; j < SPAN / 8; ++j) {
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
                        if (!is_valid(j, n)) continue;
                        out[place + n * CHANNELS] = value(sums[4 * j + n], 0, last);
                        out[place + n * CHANNELS + 8] = value(sums[4 * j + 2 + n], 1, last);
                    }
                    const int row = at.row;
                    at.go_on(8);
                    place += (8 - (at.row - row) * gap) * CHANNELS;
                }
            } else {
                // By 80 pixels, so that some are on their way while the next ones are computed.
                constexpr int PART = 10;
                const int within = thread % 128, pack = within % PACKS;
                const unsigned window = pixels + group * SPAN * ROW_BYTES;
                const unsigned column = window + lane % 8 * ROW_BYTES + (2 * warp + lane / 8 % 2 ^ lane % 8) * 16;
                const Walk box(SPAN * group + 8 * lane, pitch);
#pragma unroll
                for (int part = 0; part < SPAN / 8; part += PART) {
                    const int end = part + PART < SPAN / 8 ? part + PART : SPAN / 8;
#pragma unroll
                    for (int j = part; j < end; ++j) {
                        unsigned low =
                            rounded<scalar>(value(sums[4 * j], 0, last), value(sums[4 * j + 1], 0, last));
                        unsigned high =
                            rounded<scalar>(value(sums[4 * j + 2], 1, last), value(sums[4 * j + 3], 1, last));
                        if (COARSE<scalar> && last) {
                            low = quadrupled(low);
                            high = quadrupled(high);
                        }
                        store_transposed(column + j * 8 * ROW_BYTES, low, high);
                    }
                    show_to_copies();
                    synchronize_group(group);
                    if (warp == 0 && lane >= part && lane < end && !(mixed >> lane & 1)) {
                        store_box(map, 0, base / CHANNELS + box.row * wide + box.column, window + lane * 8 * ROW_BYTES);
                    }
                    if (warp < 2) continue;
                    for (unsigned left = mixed & (1u << end) - (1u << part); left; left &= left - 1) {
                        const int pixel = 8 * (__ffs(left) - 1) + within / PACKS % 8;
                        const Walk at(SPAN * group + pixel, pitch);
                        if (at.row >= here || at.column >= wide) continue;
                        scalar* to = out + (base + (at.row * wide + at.column) * CHANNELS + pack * 8);
                        *reinterpret_cast<uint4*>(to) = *pack_at(window + pixel * ROW_BYTES + (pack ^ pixel % 8) * 16);
                    }
                }
                close_stores();
                wait_for_stores();
            }
        };
        if (!y) {
            put(z_map, z, false);
            return;
        }

        // ---- moments of the strip: the mean, and squares about it, for squares about zero would cancel

        // Sums between rows or beyond the image are given one value.
        const auto fill_between = [&](float first, float second) {
            // Mostly there are none in so many: a branch around each alone would become a choice for each number.
            constexpr int AT_ONCE = 3;
#pragma unroll
            for (int some = 0; some < SPAN / 8; some += AT_ONCE) {
                if (!(mixed >> some & (1 << AT_ONCE) - 1)) continue;
#pragma unroll
                for (int j = some; j < some + AT_ONCE; ++j) {
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
                        if (is_valid(j, n)) continue;
                        sums[4 * j + n] = first;
                        sums[4 * j + 2 + n] = second;
                    }
                }
            }
        };
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
        // [whole]
        float mean[2] = {0, 0}, squares[2] = {0, 0};
        fill_between(0, 0);
#pragma unroll
        for (int i = 0; i < SPAN / 2; ++i) mean[i / 2 % 2] += sums[i];  // (3)
        total(told, mean);
        const float share = 1.0f / static_cast<float>(here * wide);
#pragma unroll
        for (int half = 0; half < 2; ++half) mean[half] *= share;
        fill_between(mean[0], mean[1]);
#pragma unroll
        for (int i = 0; i < SPAN / 2; ++i) {
            const float off = sums[i] - mean[i / 2 % 2];
            squares[i / 2 % 2] = fmaf(off, off, squares[i / 2 % 2]);
        }
        total(told + GROUPS * CHANNELS, squares);
        // [/whole]
        // Those of the second time lie where no block still reads the first. An address kept while the products run would
        // not fit into the registers.
        unsigned block[1] = {blockIdx.x + (TRY_HALF && !as_half ? gridDim.x : 0)};
        settle(block);
        float* const own_largest = moments + (2 * gridDim.x * 2 * CHANNELS + block[0]);
        if (group == 0 && lane % 4 == 0) {
            float* to = moments + (block[0] * 2 * CHANNELS + channel);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                to[8 * half] = mean[half] * unit;
                to[CHANNELS + 8 * half] = squares[half] * (unit * unit);
            }
        }
        if (TRY_HALF && as_half && thread >= THREADS - 32) {
            const float found = largest_number(THREADS);
            if (lane == 0) *own_largest = found;
        }
        __syncthreads();
        // [whole]
        if (thread == 0) announce(counters + 2 * image);
        if (z) put(z_map, z, false);

        // ---- moments of the plane

        // One thread a block asks: where every warp does, they crowd out those that count.
        if (thread == 0) {
            while (counted(counters + 2 * image) < (TRY_HALF && !as_half ? 2 : 1) * strips) {  // (4)
            }
        }
        __syncthreads();
        // [/whole]
        {
            // A half of a warp reads a strip's, four channels a lane: all that a lane asks for is on its way at once.
            constexpr int FOURS = CHANNELS / 4, READERS = THREADS / FOURS, WARPS = THREADS / 32;
            constexpr int AT_ONCE = SPAN == 216 ? 2 : 6;
            const float4* of = reinterpret_cast<const float4*>(moments + (block[0] - strip) * 2 * CHANNELS) + lane % FOURS;
            // Means relative to the first strip's.
            const float4 origin = fresh(of);
            float4 sum = make_float4(0, 0, 0, 0), square = sum;
            float number = 0;
            if (TRY_HALF && as_half && thread < strips) number = fresh(own_largest - strip + thread);
#pragma unroll AT_ONCE
            for (int other = thread / FOURS; other < strips; other += READERS) {
                const float4 middle = fresh(of + other * 2 * FOURS), about = fresh(of + (other * 2 + 1) * FOURS);
                const int there = min(static_cast<int>(rows), static_cast<int>(height - other * rows)) * wide;
                const auto add = [&](float& sum, float& square, float off, float about) {
                    sum = fmaf(static_cast<float>(there), off, sum);
                    square += fmaf(static_cast<float>(there) * off, off, about);
                };
                add(sum.x, square.x, middle.x - origin.x, about.x);
                add(sum.y, square.y, middle.y - origin.y, about.y);
                add(sum.z, square.z, middle.z - origin.z, about.z);
                add(sum.w, square.w, middle.w - origin.w, about.w);
            }
            const auto both_halves = [](float4 part) {
                part.x += __shfl_xor_sync(0xffffffff, part.x, FOURS);
                part.y += __shfl_xor_sync(0xffffffff, part.y, FOURS);
                part.z += __shfl_xor_sync(0xffffffff, part.z, FOURS);
                part.w += __shfl_xor_sync(0xffffffff, part.w, FOURS);
                return part;
            };
            sum = both_halves(sum);
            square = both_halves(square);
            if (lane < FOURS) {
                float4* to = reinterpret_cast<float4*>(gathered) + thread / 32 * 2 * FOURS + lane;
                to[0] = sum;
                to[FOURS] = square;
                if (thread < FOURS) reinterpret_cast<float4*>(gathered)[WARPS * 2 * FOURS + lane] = origin;
            }
            if (TRY_HALF) numbers[thread] = number;
            __syncthreads();
            bool enough = true;
            if (thread < CHANNELS) {
                float sum = 0, square = 0;
#pragma unroll
                for (int other = 0; other < WARPS; ++other) {
                    sum += gathered[other * 2 * CHANNELS + thread];
                    square += gathered[(other * 2 + 1) * CHANNELS + thread];
                }
                const float all = 1.0f / static_cast<float>(height * width);
                const float first_mean = gathered[WARPS * 2 * CHANNELS + thread];
                sum *= all;
                const float variance = square * all - sum * sum, middle = first_mean + sum;
                // Rounding may leave less than nothing of a plane of one value; a NaN stays.
                const float deviation = sqrtf((variance < 0.0f ? 0.0f : variance) + eps), inverse = 1.0f / deviation;
                if (TRY_HALF && as_half) {
                    // All blocks of an image find the same, of the same numbers. Of a NaN nothing is true.
                    const float most = largest_number(static_cast<int>(strips));
                    enough = most < FLOAT16_END && OFF * most <= FINE * deviation;
                }
                if (statistics && strip == 0) {
                    statistics[image * 2 * CHANNELS + thread] = middle;
                    statistics[(image * 2 + 1) * CHANNELS + thread] = inverse;
                }
                // [whole]
                const float factor = given[thread] * inverse;
                told[CHANNELS + thread] = SHARE<scalar> * (given[CHANNELS + thread] - middle * factor);
                told[thread] = SHARE<scalar> * (factor * unit);
                // [/whole]
            }
            if constexpr (TRY_HALF) {
                if (!__syncthreads_and(enough)) continue;
            } else {
                __syncthreads();
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                scale[half] = told[channel + 8 * half];
                shift[half] = told[CHANNELS + channel + 8 * half];
            }
        }
        // [whole]
        put(y_map, y, true);  // (5)
        break;
        // [/whole]
    }
    // The last block to have seen all leaves the counters as it found them.
    const int image = locate().image;
    if (thread == 0 && count_in(counters + 2 * image + 1) == strips - 1) {
        counters[2 * image] = 0;
        counters[2 * image + 1] = 0;
    }
}
