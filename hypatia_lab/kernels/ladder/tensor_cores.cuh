// What the ladder's last steps share, which multiply bfloat16 or float16 on tensor cores with sums in float; x, w, bias
// and y as in ladder.cuh. Public work that reached cuBLAS's rate this way and is worth reading: fast.cu (pranjalssh),
// CUTLASS's sm90 warp-specialised kernels. Layouts of fragments, descriptors and swizzles: PTX ISA, sections on mma,
// ldmatrix, wgmma and tensor copies.

#include "hopper.cuh"

// ---- kernels

// Packs of 16 bytes, kept at pack ^ (row % 8), which is also what makes ldmatrix free of bank conflicts.
constexpr int PACK = 8, PACKS = DEPTH / PACK;

// Each lane of four holds 4 pairs, pair j from columns 8j + 2 lane; afterwards columns 8 lane + 2j: 16 bytes in a row.
__device__ inline void transpose_pairs(unsigned (&pairs)[4], int lane) {
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            if (n & distance) continue;
            const unsigned other = __shfl_xor_sync(0xffffffff, upper ? pairs[n] : pairs[n + distance], distance);
            if (upper)
                pairs[n] = other;
            else
                pairs[n + distance] = other;
        }
    }
}

// Adds bias, rectifies, rounds and writes 16 rows x 32 columns that a warp holds as four fragments of 16 x 8: sums[4 j
// + 2 half + n] is at row lane / 4 + 8 half, column 8 j + 2 (lane % 4) + n. `bias` and `y` point to the first column
// and number, of which `columns` and `rows` remain in the matrix; `stride` is from row to row. 16 bytes a lane where
// rows of y start at multiples of them.
template <typename scalar>
__device__ inline void finish_rows(const float* sums, const scalar* bias, scalar* y, Size stride, int rows, int columns,
                                   int lane) {
    scalar shift[4][2];
    const int held = lane % 4 * 2, written = lane % 4 * PACK;
    if (columns >= 32) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            *reinterpret_cast<unsigned*>(shift[j]) = *reinterpret_cast<const unsigned*>(bias + 8 * j + held);
        }
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int n = 0; n < 2; ++n) shift[j][n] = bias[8 * j + held + n < columns ? 8 * j + held + n : 0];
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        unsigned pairs[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float* pair = sums + 4 * j + 2 * half;
            pairs[j] =
                rectified<scalar>(pair[0] + static_cast<float>(shift[j][0]), pair[1] + static_cast<float>(shift[j][1]));
        }
        transpose_pairs(pairs, lane);
        const int row = lane / 4 + 8 * half;
        if (row >= rows || written >= columns) continue;
        scalar* to = y + row * stride + written;
        if (stride % PACK == 0) {
            *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        } else {
#pragma unroll
            for (int n = 0; n < PACK; ++n) {
                if (written + n < columns) to[n] = reinterpret_cast<const scalar*>(pairs)[n];
            }
        }
    }
}

// What remains of `size` from `first` on, at most `most`, negative where `first` is beyond it.
__device__ inline int remaining(Size size, Size first, int most) {
    return size - first < most ? static_cast<int>(size - first) : most;
}
