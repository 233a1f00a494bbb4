// Step 6b of the ladder, along_k: tiles keep memory's order, as step 7's copies leave them; nothing is copied ahead yet.

#include "ladder.cuh"

// ---- kernels

// Numbers stay along k, as memory has them: a stage holds 64 bytes of each row, four packs of 16 bytes.
constexpr int PACKS = 4;

// Pack `pack` of row `row` of a stage: eight neighbouring rows' packs lie in eight different 16 bytes of 128.
__device__ inline int staged(int row, int pack) { return row * PACKS + (pack ^ row / 2 % PACKS); }

// [step_along_k]
// One stage of a matrix's tile, 16 bytes a load, through registers; zeros beyond the matrix.
template <typename scalar>
__device__ inline void load_stage(Pack<scalar, WIDE<scalar>>* stage, const scalar* matrix, Size first_row, Size rows,
                                  Size first_k, Size in_features, int thread, bool aligned) {
    constexpr int N = WIDE<scalar>;
#pragma unroll
    for (int n = 0; n < TILE * PACKS / THREADS; ++n) {
        const int element = thread + n * THREADS, row = element / PACKS, pack = element % PACKS;
        const Size k = first_k + pack * N;
        const bool inside = first_row + row < rows && k < in_features;
        const scalar* from = matrix + (inside ? (first_row + row) * in_features + k : 0);
        Pack<scalar, N> loaded;
#pragma unroll
        for (int i = 0; i < N; ++i) loaded.at[i] = static_cast<scalar>(0.0f);
        if (inside && aligned) {
            loaded = *reinterpret_cast<const Pack<scalar, N>*>(from);
        } else if (inside) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
                if (k + i < in_features) loaded.at[i] = from[i];
            }
        }
        stage[staged(row, pack)] = loaded;  // (1)
    }
}

// What a thread adds to its 8 × 8 sums for one stage of both tiles.
template <typename scalar, typename accumulator>
__device__ inline void multiply_stage(const Pack<scalar, WIDE<scalar>>* x_stage,
                                      const Pack<scalar, WIDE<scalar>>* w_stage, int down, int right_of,
                                      accumulator (&sums)[SIDE][SIDE]) {
    constexpr int N = WIDE<scalar>;
#pragma unroll
    for (int pack = 0; pack < PACKS; ++pack) {
        Pack<scalar, N> right[SIDE];
#pragma unroll
        for (int j = 0; j < SIDE; ++j) right[j] = w_stage[staged(right_of + j * SQUARE, pack)];  // (2)
#pragma unroll
        for (int i = 0; i < SIDE; ++i) {
            const Pack<scalar, N> left = x_stage[staged(down + i * SQUARE, pack)];
#pragma unroll
            for (int j = 0; j < SIDE; ++j) {
#pragma unroll
                for (int k = 0; k < N; ++k) {  // (3)
                    sums[i][j] += static_cast<accumulator>(left.at[k]) * static_cast<accumulator>(right[j].at[k]);
                }
            }
        }
    }
}

template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_along_k(const scalar* x, const scalar* w, const scalar* bias,
                                                               scalar* y, Size batch, Size in_features,
                                                               Size out_features) {
    constexpr int N = WIDE<scalar>;
    __shared__ Pack<scalar, N> x_stage[TILE * PACKS], w_stage[TILE * PACKS];  // (4)
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, down = thread / SQUARE, right_of = thread % SQUARE;
    const bool aligned = in_features % N == 0;
    accumulator sums[SIDE][SIDE] = {};
    for (Size first_k = 0; first_k < in_features; first_k += PACKS * N) {
        load_stage<scalar>(x_stage, x, first_row, batch, first_k, in_features, thread, aligned);
        load_stage<scalar>(w_stage, w, first_column, out_features, first_k, in_features, thread, aligned);
        __syncthreads();
        multiply_stage<scalar>(x_stage, w_stage, down, right_of, sums);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
            store<1>(&sums[i][j], bias, y, first_row + down + i * SQUARE, first_column + right_of + j * SQUARE, batch,
                     out_features, false);
        }
    }
}
// [/step_along_k]
