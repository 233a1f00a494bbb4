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

// float32's own digits: every step's pixels, and its weights by channel, are multiplied by powers of two that take the
// largest of them below 2^15, half of float16's range; of numbers of a hundred thousandth of that, two terms keep 22
// bits. Matrix units cut off what they add. So a step's small products are added up before its large ones, and its sums
// leave the units then, by parts, for beside all of them there are no registers for as many again.
// Weights are split once an image: each of its blocks splits some, for all of them, and their terms lie in device memory
// in the order of shared memory. Pixels of the first step are looked through for their largest before they are split.
// The next ones are split by a guess, that they are as large as those before, with HEADROOM bits to spare; where the
// largest of them then is not between 2^LOW and 2^15, they are fetched and split once more.
constexpr int UP = 14, LEAST_EXPONENT = 15, BIAS = 127, HEADROOM = 4, LOW = 6;
constexpr int STEP_CHUNKS = 9 * CHANNELS * SHORT_BYTES / PACK, STEP_WORDS = 4 * STEP_CHUNKS + CHANNELS;
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
// SCALED, of float: by three products of two terms of float16 that have float32's digits. raw are then the weights, terms
// STEPS STEP_WORDS words an image for theirs; counters are needed without y, too.
// [whole]
template <typename scalar, bool TANH, bool ADJOINT, bool TRY_HALF, bool SCALED, int SPAN>
__global__ __launch_bounds__(THREADS, 1) void conv_block_whole(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
    const __grid_constant__ TensorMap z_map, const __grid_constant__ TensorMap y_map, const scalar* raw,
    unsigned* terms, const scalar* bias,
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
            const auto fetch = [&](int step, int stage) {
                if (anew() > 0) return;
                const unsigned barrier = barriers + 8 * stage, buffer = step % 2 * buffer_bytes;
                const Strip at = locate();
                arrive_and_expect(barrier, (at.bottom - at.top) * wide * WIDTH + (SCALED ? 0 : 9 * TAP_BYTES));
                const int source = (at.image * static_cast<int>(height) + at.first - 1) * wide;
                for (int row = at.top; row < at.bottom; ++row) {
                    const unsigned to = pixels + buffer + (row * pitch + LEFT) * WIDTH;
                    fetch_box(to, x_map, step * SHORT_DEPTH, source + row * wide, barrier);
                }
                for (int tap = 0; !SCALED && tap < 9; ++tap) fetch_tap(tap, step * SHORT_DEPTH, buffer, barrier);
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
            unsigned seen_bits = 0;  // of the largest that this thread has split: what is not finite may count
            // Rows [begin, count) from `from` on, begin a multiple of AT_ONCE; some are read before the first is written.
            const auto split_rows = [&](unsigned from, int begin, int count, auto scale_of, bool halves) {
                constexpr int BATCH = SCALED ? 1 : 2;
                const int thread = anew(), pack = thread % PACKS, start = row_of(thread);
                const auto at = [&](int row, int pack) { return place(from, start, row, pack); };
#pragma unroll 2
                for (int first = start + begin; first - start < count; first += BATCH * AT_ONCE) {
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
                        if (SCALED) {
                            const float two = fmaxf(fabsf(whole.x), fabsf(whole.y));
                            const float four = fmaxf(fmaxf(fabsf(whole.z), fabsf(whole.w)), two);
                            seen_bits = max(seen_bits, __float_as_uint(four));
                        }
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
            const auto held = [&] {
                unsigned seen[2] = {static_cast<unsigned>(rows), static_cast<unsigned>(width)};
                if (SCALED) settle(seen);
                return static_cast<int>((seen[0] + 2) * ((seen[1] + LEFT) / 2 * 2) + LEFT);
            };
            // Where the second half of all rows begins, for those who go by AT_ONCE.
            const auto middle = [&] { return held() / 2 / AT_ONCE * AT_ONCE; };
            // As bits: the largest magnitude of each step's pixels, then those of its weights by channel.
            unsigned* const magnitudes = reinterpret_cast<unsigned*>(told + 2 * GROUPS * CHANNELS + 2 * CHANNELS + THREADS);
            // What multiplies each step's pixels, and twice what takes sums back: of weights by channel, and of pixels.
            float* const scales = reinterpret_cast<float*>(magnitudes + STEPS);
            float *const by_channel = scales + STEPS, *const backs = by_channel + STEPS * CHANNELS;
            const auto largest_of = [](float4 of) {
                return max(max(finite_magnitude(of.x), finite_magnitude(of.y)),
                           max(finite_magnitude(of.z), finite_magnitude(of.w)));
            };
            // A warp splits 16 channels' weights of one channel out at a time.
            const auto split_weights = [&] {
                const Strip at = locate();
                const int lane = anew() % 32, pack = lane % PACKS, warp = anew() / 32;
                unsigned* const own = terms + at.image * STEPS * STEP_WORDS;
                for (int item = at.strip * (THREADS / 32) + warp; item < STEPS * CHANNELS;
                     item += static_cast<int>(strips) * (THREADS / 32)) {
                    const int outer = item % CHANNELS, step = item / CHANNELS;
                    float4 some[2];
                    unsigned largest = 0;
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int tap = lane / PACKS + 8 * i;
                        some[i] = make_float4(0, 0, 0, 0);
                        if (tap < 9) {
                            some[i] = *reinterpret_cast<const float4*>(
                                raw + ((outer * 9 + tap) * CHANNELS + step * SHORT_DEPTH + 4 * pack));
                        }
                        largest = max(largest, largest_of(some[i]));
                    }
                    largest = __reduce_max_sync(0xffffffff, largest);
                    const float scale = power_of_two(raised(largest));
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int tap = lane / PACKS + 8 * i;
                        if (tap >= 9) continue;
                        const float4 whole = make_float4(scale * some[i].x, scale * some[i].y, scale * some[i].z,
                                                         scale * some[i].w);
                        const unsigned low = rounded<term>(whole.x, whole.y), high = rounded<term>(whole.z, whole.w);
                        // Where wgmma looks for pack p of row r: at p ^ (r / 2 % 4).
                        const auto chunk = [&](int pack) {
                            return own + step * STEP_WORDS +
                                   4 * ((tap * CHANNELS + outer) * PACKS + (pack ^ outer / 2 % PACKS));
                        };
                        reinterpret_cast<uint2*>(chunk(pack / 2))[pack % 2] = make_uint2(low, high);
                        reinterpret_cast<uint2*>(chunk(2 + pack / 2))[pack % 2] =
                            make_uint2(rest(low, whole.x, whole.y), rest(high, whole.z, whole.w));
                    }
                    if (lane == 0) {
                        own[step * STEP_WORDS + 4 * STEP_CHUNKS + outer] =
                            __float_as_uint(power_of_two(-raised(largest) / 2));
                    }
                }
            };
            const auto fetch_terms = [&](int step) {
                const unsigned buffer = step % 2 * buffer_bytes;
                const unsigned* const from = terms + (locate().image * STEPS + step) * STEP_WORDS;
                const int thread = anew();
#pragma unroll 1
                for (int i = 0; i < STEP_CHUNKS / THREADS; ++i) {
                    const int chunk = thread + i * THREADS;
                    copy_async(weights + buffer + chunk * PACK, from + 4 * chunk, PACK);
                }
                if (thread < CHANNELS / 4) {
                    copy_async(shared_address(by_channel + step * CHANNELS + 4 * thread),
                               from + 4 * (STEP_CHUNKS + thread), PACK);
                }
                close_group();
            };
            const auto keep_largest = [&](int step, unsigned own) {
                own = __reduce_max_sync(0xffffffff, own);
                if (anew() % 32 == 0) atomicMax(magnitudes + step, own);
            };
            const auto measure = [&](int step) {
                const int thread = anew(), pack = thread % PACKS, start = row_of(thread);
                const unsigned from = pixels + step % 2 * buffer_bytes;
                const int count = held();
                unsigned own = 0;
#pragma unroll 2
                for (int row = start; row < count; row += AT_ONCE) {
                    own = max(own, largest_of(*reinterpret_cast<const float4*>(place(from, start, row, pack))));
                }
                keep_largest(step, own);
            };
            // Pixels from `begin` to `end`, multiplied by 2^exponent.
            const auto split_pixels = [&](int step, int begin, int end, int exponent) {
                seen_bits = 0;
                const float scale = power_of_two(exponent);
                if (anew() == 0) {
                    scales[step] = scale;
                    backs[step] = power_of_two(-exponent / 2);
                }
                split_rows(pixels + step % 2 * buffer_bytes, begin, end, [&](int) { return scale; }, false);
            };
            const auto split = [&](int step) {
                const unsigned buffer = step % 2 * buffer_bytes;
                wait(barriers + 8 * (step % 2), step / 2 % 2);
                split_rows(weights + buffer, 0, 9 * CHANNELS, [&](int) { return as_half ? WEIGHT_SCALE : 1.0f; },
                           in_halves(step));
                split_rows(pixels + buffer, 0, held(), [&](int) { return as_half ? PIXEL_SCALE : 1.0f; },
                           in_halves(step));
                show_to_copies();
            };
            // What is not within the guess, of the whole block.
            const auto refused = [&](int step) {
                const float found = __uint_as_float(magnitudes[step]) * scales[step];
                return !(found == 0 || (found >= 1 << LOW && found < 2 << UP));  // a NaN or an infinity, too
            };
            // The pixels of a step whose numbers are in memory, as exactly as can be.
            const auto split_exactly = [&](int step) {
                measure(step);
                __syncthreads();
                split_pixels(step, 0, held(), raised(magnitudes[step]));
            };
            fetch(0, 0);
            fetch(1, 1);
            if constexpr (SCALED) {
                if (thread < STEPS) magnitudes[thread] = 0;
                split_weights();
                __syncthreads();
                if (thread == 0) {
                    count_in(counters + 2 * begun.image);
                    while (counted(counters + 2 * begun.image) < strips) {
                    }
                }
                __syncthreads();
                fetch_terms(0);
                fetch_terms(1);
                wait(barriers, 0);
                split_exactly(0);
                wait_for_groups<0>();
                show_to_copies();
            } else {
                split(0);
            }
            __syncthreads();
#pragma unroll 1
            for (int step = 0; step < STEPS; ++step) {
                const unsigned buffer = step % 2 * buffer_bytes;
                const unsigned window = pixels + buffer + (group * SPAN + LEFT - 1) * WIDTH;
                const auto left = [&](int tap) { return short_operand(weights + buffer + tap * TAP_BYTES); };
                const auto right = [&](int tap) { return short_operand(window + (tap / 3 * pitch + tap % 3) * WIDTH); };
                if constexpr (SCALED) {
                    constexpr int PIXELS = PART<SPAN>;
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
                            wait(barriers + 8 * ((step + 1) % 2), (step + 1) / 2 % 2);
                            split_pixels(step + 1, 0, middle(), raised(magnitudes[step]) - HEADROOM);
                            keep_largest(step + 1, seen_bits);
                        }
                        if (step + 1 < STEPS && part == (SPAN > PIXELS ? 2 : 0)) {
                            split_pixels(step + 1, middle(), held(), raised(magnitudes[step]) - HEADROOM);
                            keep_largest(step + 1, seen_bits);
                            wait_for_groups<0>();
                            show_to_copies();
                        }
                        float down[2];  // by channel: twice this takes sums back
#pragma unroll
                        for (int half = 0; half < 2; ++half) {
                            const int channel = anew() % 128 / 32 * 16 + anew() % 32 / 4 + 8 * half;
                            down[half] = by_channel[step * CHANNELS + channel] * backs[step];
                        }
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
                if (step + 2 < STEPS) fetch(step + 2, step % 2);
                if constexpr (SCALED) {
                    if (step + 2 < STEPS) fetch_terms(step + 2);
                    if (refused(step + 1)) {
                        __syncthreads();
                        if (anew() == 0) magnitudes[step + 1] = 0;
                        fetch(step + 1, 2 + step);
                        __syncthreads();
                        wait(barriers + 8 * (2 + step), 0);
                        split_exactly(step + 1);
                        show_to_copies();
                        __syncthreads();
                    }
                }
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
            if (SCALED) break;  // its counters, too, are left as they were
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
            while (counted(counters + 2 * image) < ((TRY_HALF && !as_half) || SCALED ? 2 : 1) * strips) {  // (4)
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
    if (anew() == 0 && count_in(counters + 2 * image + 1) == strips - 1) {
        counters[2 * image] = 0;
        counters[2 * image + 1] = 0;
    }
}

// ---- images in turn

// Rows of 128 pixels, a pixel of zeros between them: three of one image, of two warpgroups, and two of a later image, of
// the third, which multiplies when the others have. So the earlier images are normalised while the later ones' products
// run. Each warpgroup has whole rows or halves of one.
constexpr int WIDE = 128, APART = WIDE + 1, EARLY_ROWS = 3, LATE_ROWS = 2, HALF_ROW = WIDE / 2;
constexpr unsigned TURN_TOLD_BYTES = 8064, TURN_BARRIER_BYTES = 128;  // 1920 floats, and twelve barriers
constexpr unsigned EARLY_BYTES = ((EARLY_ROWS + 2) * APART + 8) / 8 * 1024, LATE_BYTES = ((LATE_ROWS + 2) * APART + 8) / 8 * 1024;
// Barriers: of taps 0, 1, 2, 3, 4 and 5, 6 to 8; of rows 0 and 1, 2, 3, 4; of the late strip; of the turn.
constexpr int ROWS_STAGE = 6, LATE_STAGE = 10, TURN_STAGE = 11;

template <int PIXELS> struct Second {
    static constexpr int pixels = PIXELS;
};

// Rows of an image: which image, which strip of how many, its first row, how many, and rows of the input, the first one
// above the strip, that are in the image.
struct Rows {
    int image, strip, strips, first, here, top, bottom;
    __device__ Rows(int block, int before, int rows, int height) {
        strips = (height + rows - 1) / rows;
        image = before + block / strips, strip = block % strips, first = strip * rows;
        here = min(rows, height - first), top = first == 0, bottom = min(rows + 2, height - first + 1);
    }
};

// What conv_block_whole computes of 16-bit numbers and rows of 128 pixels: `early` of the `images` by strips of three
// rows, the others by strips of two; block b has the b-th strip of both kinds, if there are so many. Boxes of z and y are
// half a row. There are `rounds` times as many images, and blocks go from round to round: the weights stay, and while some
// of its warpgroups multiply others normalise. moments: two floats a strip and channel, by rounds, the early images'
// first.
// [turns]
template <typename scalar, bool TANH>
__global__ __launch_bounds__(THREADS, 1) void conv_block_turns(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap weight_map,
    const __grid_constant__ TensorMap z_map, const __grid_constant__ TensorMap y_map, const scalar* bias,
    const scalar* gamma, const scalar* beta, scalar* z, float* moments, float* statistics, unsigned* counters,
    const scalar* x, Size rounds, Size height, Size early, Size images, float eps) {
    // [/turns]
    constexpr int TAP_BYTES = CHANNELS * ROW_BYTES, PACKS = ROW_BYTES / PACK;
    float* told = reinterpret_cast<float*>(dynamic_shared);
    const unsigned shared = shared_address(dynamic_shared), barriers = shared + TURN_TOLD_BYTES;
    const unsigned weights = (barriers + TURN_BARRIER_BYTES + 1023) / 1024 * 1024;
    const unsigned early_pixels = weights + 9 * TAP_BYTES, late_pixels = early_pixels + EARLY_BYTES;
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32 % 4, channel = 16 * warp + lane / 4;
    const int tall = static_cast<int>(height), before = static_cast<int>(early), block = blockIdx.x;
    const Rows former(block, 0, EARLY_ROWS, tall), latter(block, before, LATE_ROWS, tall);
    const bool has_early = former.image < before, has_late = latter.image < static_cast<int>(images);

    // ---- zeros around the rows, which no copy writes

    const auto clear = [&](unsigned pixels, int pixel, int i) {
        *reinterpret_cast<uint4*>(dynamic_shared + (pixels - shared + pixel * ROW_BYTES + i * PACK)) =
            make_uint4(0, 0, 0, 0);
    };
    // By so many threads, of which this is the `own`-th.
    const auto clear_around = [&](unsigned pixels, const Rows& of, int rows, int own, int threads) {
        if (own < (rows + 3) * PACKS) clear(pixels, own / PACKS * APART, own % PACKS);
#pragma unroll 1
        for (int i = own; of.top && i < WIDE * PACKS; i += threads) clear(pixels, 1, i);
#pragma unroll 1
        for (int i = own; of.bottom < rows + 2 && i < WIDE * PACKS; i += threads) clear(pixels, of.bottom * APART + 1, i);
    };
    if (has_early) clear_around(early_pixels, former, EARLY_ROWS, thread, THREADS);
    if (has_late) clear_around(late_pixels, latter, LATE_ROWS, thread, THREADS);
    show_to_copies();
    if (thread == 0) {
        prefetch(x_map);
        prefetch(weight_map);
        for (int stage = 0; stage <= TURN_STAGE; ++stage) start_barrier(barriers + 8 * stage, stage == TURN_STAGE ? 2 : 1);
        publish_barriers();
    }
    __syncthreads();
    wait_for_kernel_before();
    let_next_kernel_start();

    const auto fetch_taps = [&](int stage, int tap, int taps) {
        arrive_and_expect(barriers + 8 * stage, taps * TAP_BYTES);
#pragma unroll 1
        for (; taps > 0; --taps, ++tap) {
            fetch_box(weights + tap * TAP_BYTES, weight_map, tap * CHANNELS, 0, barriers + 8 * stage);
        }
    };
    const auto fetch_rows = [&](int stage, const Rows& of, int image, unsigned pixels, int row, int end) {
        row = max(row, of.top), end = min(end, of.bottom);
        arrive_and_expect(barriers + 8 * stage, max(end - row, 0) * WIDE * ROW_BYTES);
#pragma unroll 1
        for (; row < end; ++row) {
            fetch_box(pixels + (row * APART + 1) * ROW_BYTES, x_map, 0, (image * tall + of.first - 1 + row) * WIDE,
                      barriers + 8 * stage);
        }
    };
    // The first two rows, or one more.
    const auto fetch_early = [&](int part, const Rows& of, int image) {
        fetch_rows(ROWS_STAGE + part, of, image, early_pixels, part > 0 ? part + 1 : 0, part + 2);
    };
    if (thread == 0) {
#pragma unroll 1
        for (int part = 0; part < 6; ++part) {
            fetch_taps(part, part < 5 ? part : 6, part < 4 ? 1 : part - 2);
            // In the order in which they are needed: rows 0 to 2 behind tap 0, 3 behind tap 3, 4 behind tap 5.
            if (!has_early || part == 1 || part == 2 || part == 5) continue;
            fetch_early(part == 0 ? 0 : part - 1, former, former.image);
            if (part == 0) fetch_early(1, former, former.image);
        }
        if (has_late) fetch_rows(LATE_STAGE, latter, latter.image, late_pixels, 0, LATE_ROWS + 2);
    }

    const auto turn = [&](auto second, unsigned pixels) {
        // A row of this warpgroup, and half or all of the strip's second.
        constexpr int SECOND = decltype(second)::pixels, FELLOWS = SECOND == WIDE ? 128 : 256;
        constexpr bool EARLY = FELLOWS == 256;
        constexpr int ROWS = EARLY ? EARLY_ROWS : LATE_ROWS;
        const auto meet = [&] {
            if constexpr (EARLY)
                synchronize_some<FELLOWS>();
            else
                synchronize_group(group);
        };
        // sums[4 j + 2 half + n] is channel 16 warp + lane / 4 + 8 half of pixel 8 j + 2 (lane % 4) + n.
        float one[WIDE / 2], two[SECOND / 2];
        const int fellow = EARLY ? thread : thread - 256;
        const int row = EARLY && group == 1 ? 2 : 0, column = EARLY && group == 1 ? HALF_ROW : 0;
        const unsigned seen_one = pixels + row * APART * ROW_BYTES, seen_two = pixels + (APART + column) * ROW_BYTES;
#pragma unroll 1
        for (int round = 0; round < static_cast<int>(rounds); ++round) {
            // [turns]
            if (!EARLY) {
                wait(barriers + 8 * LATE_STAGE, round % 2);
                if (has_early && round == 0) wait(barriers + 8 * TURN_STAGE, 0);  // (1)
            }
            // [/turns]
#pragma unroll
            for (int tap = 0; tap < 9; ++tap) {
                constexpr int STAGE_OF[] = {0, 1, 2, 3, 4, 4, 5, 5, 5};
                wait(barriers + 8 * STAGE_OF[tap], 0);
                if (EARLY && tap % 3 == 0) {
                    const int needed = tap == 0 ? group : tap / 3 + 1;
                    for (int part = tap == 6 ? 3 : 0; part <= needed; ++part) {
                        wait(barriers + 8 * (ROWS_STAGE + part), round % 2);
                    }
                }
                settle(one);
                settle(two);
                open_products();
                const unsigned long long left = operand(weights + tap * TAP_BYTES);
                const unsigned moved = (tap / 3 * APART + tap % 3) * ROW_BYTES;
                const unsigned long long by_one = operand(seen_one + moved), by_two = operand(seen_two + moved);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    multiply_tiles<scalar, WIDE>(one, left + 2 * k, by_one + 2 * k, tap > 0 || k > 0);
                    multiply_tiles<scalar, SECOND>(two, left + 2 * k, by_two + 2 * k, tap > 0 || k > 0);
                }
                close_products();
            }
            // Products of one tap are left at most.
            // [turns]
            if (EARLY && round == 0) {
                wait_for_products<1>();
                if (thread % 128 == 0) arrive(barriers + 8 * TURN_STAGE);  // (2)
            }
            // [/turns]
            // Counted anew: kept while products run, it would not fit into the registers beside the sums.
            unsigned seen[1] = {blockIdx.x};
            settle(seen);
            const int own_block = static_cast<int>(seen[0]);
            const Rows of(own_block, EARLY ? 0 : before, ROWS, tall);
            const int image = of.image + round * static_cast<int>(images);
            const bool has_one = row < of.here, has_two = of.here > 1;
            const int early_strips = (tall + EARLY_ROWS - 1) / EARLY_ROWS * before;
            const int entries = early_strips + (tall + LATE_ROWS - 1) / LATE_ROWS * (static_cast<int>(images) - before);
            const int entry = own_block + (EARLY ? 0 : early_strips) + round * entries;
            const int base = (image * tall + of.first) * WIDE;
            const bool goes_on = round + 1 < static_cast<int>(rounds);
            if (fellow == 0 && goes_on) {
                const Size next = base + static_cast<Size>(images * height) * WIDE;
                prefetch_bytes(x + next * CHANNELS, of.here * WIDE * ROW_BYTES);
            }
            wait_for_products<0>();
            settle(one);
            settle(two);

            float scale[2] = {1, 1}, shift[2] = {0, 0};
            const auto value = [&](float sum, int half, bool last) {
                return last ? gelu<scalar, TANH, false>(fmaf(sum, scale[half], shift[half])) : sum;
            };
            // By half rows, so that some are on their way while the next ones are computed.
            const auto put = [&](const TensorMap& map, bool last) {
                const unsigned stage = pixels + (EARLY ? group * 3 * HALF_ROW * ROW_BYTES : 0);
                const unsigned to = stage + lane % 8 * ROW_BYTES + (2 * warp + lane / 8 % 2 ^ lane % 8) * 16;
                const auto leave = [&](const auto& sums, int from, int part, int pixel) {
#pragma unroll
                    for (int j = 0; j < HALF_ROW / 8; ++j) {
                        const float* of = sums + 4 * (from + j);
                        unsigned low = rounded<scalar>(value(of[0], 0, last), value(of[1], 0, last));
                        unsigned high = rounded<scalar>(value(of[2], 1, last), value(of[3], 1, last));
                        if (COARSE<scalar> && last) {
                            low = quadrupled(low);
                            high = quadrupled(high);
                        }
                        store_transposed(to + (part * HALF_ROW + 8 * j) * ROW_BYTES, low, high);
                    }
                    show_to_copies();
                    synchronize_group(group);
                    if (thread % 128 == 0) store_box(map, 0, base + pixel, stage + part * HALF_ROW * ROW_BYTES);
                };
                // The compiler doesn't know that there always are strips, and so doesn't compute both halves before it stores one.
                if (has_one) leave(one, 0, 0, row * WIDE);
                if (has_one && of.strips > 0) leave(one, 8, 1, row * WIDE + HALF_ROW);
                if (has_two) leave(two, 0, 2, WIDE + column);
                if constexpr (SECOND == WIDE) {
                    if (has_two && of.strips > 0) leave(two, 8, 3, WIDE + HALF_ROW);
                }
                close_stores();
                wait_for_stores();
            };

            // ---- moments of the strip

            float parts[4] = {0, 0, 0, 0}, mean[2], squares[2];
            const auto over = [&](auto act) {
                if (has_one) {
#pragma unroll
                    for (int i = 0; i < WIDE / 2; ++i) act(one[i], i % 4);
                }
                if (has_two) {
#pragma unroll
                    for (int i = 0; i < SECOND / 2; ++i) act(two[i], i % 4);
                }
            };
            // Of a channel, all that this warpgroup holds of it.
            const auto total = [&](float (&to)[2]) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    to[half] = parts[2 * half] + parts[2 * half + 1];
                    to[half] += __shfl_xor_sync(0xffffffff, to[half], 1);
                    to[half] += __shfl_xor_sync(0xffffffff, to[half], 2);
                    parts[2 * half] = parts[2 * half + 1] = 0;
                }
            };
            over([&](float sum, int i) { parts[i] += sum; });
            total(mean);
            const int many = (has_one ? WIDE : 0) + (has_two ? SECOND : 0);
            const float share = many > 0 ? 1.0f / static_cast<float>(many) : 0.0f;
            mean[0] *= share;
            mean[1] *= share;
            over([&](float sum, int i) {
                const float off = sum - mean[i / 2];
                parts[i] = fmaf(off, off, parts[i]);
            });
            total(squares);
            float* const own_moments = moments + entry * 2 * CHANNELS;
            if (lane % 4 == 0) {
                float* to = EARLY ? told + 2 * CHANNELS * group : own_moments;
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    to[channel + 8 * half] = mean[half];
                    to[CHANNELS + channel + 8 * half] = squares[half];
                }
            }
            if constexpr (EARLY) {
                meet();
                if (fellow < CHANNELS) {
                    const float first = of.here > 1 ? WIDE + HALF_ROW : WIDE;
                    const float others = of.here * WIDE - first, over_all = 1.0f / static_cast<float>(of.here * WIDE);
                    const float off = told[2 * CHANNELS + fellow] - told[fellow];
                    own_moments[fellow] = fmaf(off, others * over_all, told[fellow]);
                    own_moments[CHANNELS + fellow] =
                        fmaf(off * off, first * others * over_all, told[CHANNELS + fellow] + told[3 * CHANNELS + fellow]);
                }
            }
            if (group != 1) synchronize_group(group);
            unsigned* const counter = counters + 2 * image;
            if (fellow == 0) announce(counter);
            if (z) put(z_map, false);

            // ---- moments of the plane

            float stretch = 1, raise = 0;
            if (fellow < CHANNELS) {
                if (gamma) stretch = static_cast<float>(gamma[fellow]);
                if (beta) raise = static_cast<float>(beta[fellow]);
                if (bias) raise += 0.0f * static_cast<float>(bias[fellow]);
            }
            if (fellow == 0) {
                while (counted(counter) < static_cast<unsigned>(of.strips)) {
                }
            }
            meet();
            // All strips' at once, behind what waits to be written.
            const unsigned gathered = pixels + (EARLY ? 6 : 4) * HALF_ROW * ROW_BYTES;
            const float* strips = own_moments - of.strip * 2 * CHANNELS;
            for (int i = fellow; i < of.strips * CHANNELS / 2; i += FELLOWS) copy_async(gathered + 16 * i, strips + 4 * i, 16);
            close_group();
            wait_for_groups<0>();
            meet();
            const float2* rows = reinterpret_cast<const float2*>(dynamic_shared + (gathered - shared)) + lane;
            float* partial = told + (EARLY ? 4 * CHANNELS : 20 * CHANNELS);
            {
                // Means relative to the first strip's; two channels a lane.
                const float2 origin = rows[0];
                float2 sum = make_float2(0, 0), square = sum;
#pragma unroll 4
                for (int other = fellow / 32; other < of.strips; other += FELLOWS / 32) {
                    const float2 middle = rows[other * CHANNELS], about = rows[other * CHANNELS + CHANNELS / 2];
                    const float there = static_cast<float>(min(ROWS, tall - other * ROWS) * WIDE);
                    const float x = middle.x - origin.x, y = middle.y - origin.y;
                    sum.x = fmaf(there, x, sum.x);
                    sum.y = fmaf(there, y, sum.y);
                    square.x += fmaf(there * x, x, about.x);
                    square.y += fmaf(there * y, y, about.y);
                }
                float2* to = reinterpret_cast<float2*>(partial) + fellow / 32 * CHANNELS + lane;
                to[0] = sum;
                to[CHANNELS / 2] = square;
            }
            meet();
            float* final = told + (EARLY ? 0 : 28 * CHANNELS);
            if (fellow < CHANNELS) {
                float sum = 0, square = 0;
#pragma unroll
                for (int other = 0; other < FELLOWS / 32; ++other) {
                    sum += partial[other * 2 * CHANNELS + fellow];
                    square += partial[(other * 2 + 1) * CHANNELS + fellow];
                }
                const float all = 1.0f / static_cast<float>(tall * WIDE);
                const float origin = reinterpret_cast<const float*>(rows - lane)[fellow];
                sum *= all;
                const float variance = square * all - sum * sum, middle = origin + sum;
                // Rounding may leave less than nothing of a plane of one value; a NaN stays.
                const float inverse = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + eps);
                if (statistics && of.strip == 0) {
                    statistics[image * 2 * CHANNELS + fellow] = middle;
                    statistics[(image * 2 + 1) * CHANNELS + fellow] = inverse;
                }
                const float factor = stretch * inverse;
                final[fellow] = SHARE<scalar> * factor;
                final[CHANNELS + fellow] = SHARE<scalar> * (raise - middle * factor);
            }
            meet();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                scale[half] = final[channel + 8 * half];
                shift[half] = final[CHANNELS + channel + 8 * half];
            }
            put(y_map, true);
            if (goes_on) {
                // What was written has left shared memory: the next round's rows may come.
                meet();
                clear_around(pixels, of, ROWS, fellow, FELLOWS);
                show_to_copies();
                meet();
                if (fellow == 0) {
                    const int next = image + static_cast<int>(images);
                    if constexpr (EARLY) {
#pragma unroll 1
                        for (int part = 0; part < 4; ++part) fetch_early(part, of, next);
                    } else {
                        fetch_rows(LATE_STAGE, of, next, pixels, 0, LATE_ROWS + 2);
                    }
                }
            }
            // The last block to have seen all leaves the counters as it found them.
            if (fellow == 0 && count_in(counter + 1) == static_cast<unsigned>(of.strips) - 1) {
                counter[0] = 0;
                counter[1] = 0;
            }
        }
    };
    if (group < 2) {
        if (has_early) turn(Second<HALF_ROW>(), early_pixels);
    } else if (has_late) {
        turn(Second<WIDE>(), late_pixels);
    }
}
