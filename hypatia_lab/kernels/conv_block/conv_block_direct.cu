// The 3x3 convolution of few channels in float32 itself, on vector units, with the moments of each patch.
//
// A block has a patch of an image and all its channels: what the patch sees lies in shared memory once, channel after
// channel, and so do all weights. A thread sums PIXELS neighbours of a row by a share of the output channels, so a weight
// from shared memory serves PIXELS pixels, and a pixel three taps.

#include "hopper.cuh"

// ---- instructions

// A number from device to shared memory, or a zero; waited for by groups. Many are under way at once, without registers.
__device__ inline void copy_number(unsigned to, const float* from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// ---- kernels

// x by strides of images, channels and pixels, weight (OUTER, 9, INNER), z (images, height, width, OUTER), moments
// (patches, 2, OUTER): mean and sum of squared deviations. A patch is `tall` rows of 2^bits pixels, 64 PIXELS in all.
// [direct]
template <int INNER, int OUTER, int PIXELS>
__global__ void conv_block_direct(const float* x, const float* weight, const float* bias, float* z, float* moments,
                                  Size height, Size width, Size tall, Size bits, Size to_image, Size to_channel,
                                  Size to_pixel) {
    // [/direct]
    constexpr int GROUPS = (OUTER + 7) / 8, OWN = (OUTER + GROUPS - 1) / GROUPS, PADDED = (OWN + 3) / 4 * 4;
    constexpr int WARPS = 2 * GROUPS, THREADS = 32 * WARPS, APART = OUTER | 1;
    __shared__ float told[2][WARPS][PADDED];
    float* const weights = reinterpret_cast<float*>(dynamic_shared);
    float* const seen = weights + INNER * 9 * GROUPS * PADDED;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, group = warp / 2;
    const int rows = static_cast<int>(tall), wide = 1 << bits, pitch = wide + 4, plane = (rows + 2) * pitch;
    const int across = static_cast<int>(width + wide - 1) >> bits;
    const int patches = across * static_cast<int>((height + rows - 1) / rows);
    const int image = blockIdx.x / patches, within = blockIdx.x % patches;
    const int top = within / across * rows, left = within % across * wide;
    for (int i = thread; i < OUTER * 9 * INNER; i += THREADS) {
        const int o = i / (9 * INNER), tap = i / INNER % 9, k = i % INNER;
        copy_number(shared_address(weights + ((k * 9 + tap) * GROUPS + o / OWN) * PADDED + o % OWN), weight + i, true);
    }
    const float* const own = x + image * to_image;
    // [direct]
    const auto fetch = [&](int k, int row, int column) {
        const int r = top + row - 1, q = left + column - 1;
        const bool inside = r >= 0 && r < height && q >= 0 && q < width;
        const float* const from = own + (inside ? k * to_channel + (r * width + q) * to_pixel : 0);
        copy_number(shared_address(seen + k * plane + row * pitch + column), from, inside);  // (1)
    };
    if (to_channel == 1) {
        for (int row = warp; row < rows + 2; row += WARPS)
            for (int i = lane; i < (wide + 2) * INNER; i += 32) fetch(i % INNER, row, i / INNER);
    } else {
        for (int row = warp; row < INNER * (rows + 2); row += WARPS)
            for (int column = lane; column < wide + 2; column += 32) fetch(row / (rows + 2), row % (rows + 2), column);
    }
    // [/direct]
    close_group();
    wait_for_groups<0>();
    __syncthreads();

    const int place = thread % 64 * PIXELS, row = place >> bits, column = place & wide - 1;
    // [direct]
    float sums[PIXELS][OWN] = {};
#pragma unroll 1
    for (int k = 0; k < INNER; ++k) {
        float parts[PIXELS][OWN] = {};  // (2)
        const float* const line = seen + k * plane + row * pitch + column;
        const float* const taps = weights + (k * 9 * GROUPS + group) * PADDED;
#pragma unroll
        for (int down = 0; down < 3; ++down) {
            float near[PIXELS + 2];
            const float* const at = line + down * pitch;
            if constexpr (PIXELS == 4) {
                const float4 four = *reinterpret_cast<const float4*>(at);
                near[0] = four.x, near[1] = four.y, near[2] = four.z, near[3] = four.w;
            } else {
#pragma unroll
                for (int i = 0; i < PIXELS; ++i) near[i] = at[i];
            }
#pragma unroll
            for (int i = PIXELS; i < PIXELS + 2; ++i) near[i] = at[i];
#pragma unroll
            for (int right = 0; right < 3; ++right) {  // (3)
                float factors[PADDED];
#pragma unroll
                for (int o = 0; o < PADDED; o += 4) {
                    const float* const from = taps + (3 * down + right) * GROUPS * PADDED + o;
                    const float4 four = *reinterpret_cast<const float4*>(from);
                    factors[o] = four.x, factors[o + 1] = four.y, factors[o + 2] = four.z, factors[o + 3] = four.w;
                }
#pragma unroll
                for (int i = 0; i < PIXELS; ++i)
#pragma unroll
                    for (int o = 0; o < OWN; ++o) parts[i][o] = fmaf(near[i + right], factors[o], parts[i][o]);
            }
        }
#pragma unroll
        for (int i = 0; i < PIXELS; ++i)
#pragma unroll
            for (int o = 0; o < OWN; ++o) sums[i][o] += parts[i][o];
    }
    // [/direct]

    const int high = min(rows, static_cast<int>(height) - top), far = min(wide, static_cast<int>(width) - left);
    const float share = 1.0f / static_cast<float>(high * far);
    const auto total = [&](int what, auto of) {
#pragma unroll
        for (int o = 0; o < OWN; ++o) {
            float sum = 0;
#pragma unroll
            for (int i = 0; i < PIXELS; ++i) sum += row < high && column + i < far ? of(sums[i][o], o) : 0.0f;
#pragma unroll
            for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
            if (lane == 0) told[what][warp][o] = sum;
        }
    };
    const auto both = [&](int what, int o) { return told[what][2 * group][o] + told[what][2 * group + 1][o]; };
#pragma unroll
    for (int o = 0; o < OWN; ++o) {
        const float more = bias && group * OWN + o < OUTER ? bias[group * OWN + o] : 0.0f;
#pragma unroll
        for (int i = 0; i < PIXELS; ++i) sums[i][o] += more;
    }
    total(0, [](float sum, int) { return sum; });
    __syncthreads();  // and nobody needs what was seen any longer
    total(1, [&](float sum, int o) {
        const float off = sum - both(0, o) * share;
        return off * off;
    });
#pragma unroll
    for (int i = 0; i < PIXELS; ++i)
#pragma unroll
        for (int o = 0; o < OWN; ++o)
            if (group * OWN + o < OUTER) seen[(place + i) * APART + group * OWN + o] = sums[i][o];
    __syncthreads();
    const int o = group * OWN + thread % 64;
    if (thread % 64 < OWN && o < OUTER) {
        moments[blockIdx.x * 2 * OUTER + o] = both(0, thread % 64) * share;
        moments[(blockIdx.x * 2 + 1) * OUTER + o] = both(1, thread % 64);
    }
    for (int r = warp; r < high; r += WARPS) {
        float* const to = z + ((image * height + top + r) * width + left) * OUTER;
        for (int i = lane; i < far * OUTER; i += 32) to[i] = seen[(r * wide + i / OUTER) * APART + i % OUTER];
    }
}
