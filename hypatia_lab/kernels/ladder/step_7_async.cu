// Step 7 of the ladder, async: copies that bypass the registers, two stages ahead of the arithmetic.

#include "substep_6b_along_k.cu"

// ---- instructions

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// 16 bytes from device to shared memory, of which those past `valid` (0 or 16) are zero; waited for by groups.
__device__ inline void copy_async(void* to, const void* from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid)
                 : "memory");
}
__device__ inline void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- kernels

constexpr int STAGES = 3;

// [step_async]
template <typename scalar>
__device__ inline void stage_tile(Pack<scalar, WIDE<scalar>>* stage, const scalar* matrix, Size first_row, Size rows,
                                  Size first_k, Size in_features, int thread, bool aligned) {
    constexpr int N = WIDE<scalar>;
#pragma unroll
    for (int n = 0; n < TILE * PACKS / THREADS; ++n) {
        const int element = thread + n * THREADS, row = element / PACKS, pack = element % PACKS;
        const Size k = first_k + pack * N;
        const bool inside = first_row + row < rows && k < in_features;
        const scalar* from = matrix + (inside ? (first_row + row) * in_features + k : 0);
        Pack<scalar, N>* to = stage + staged(row, pack);
        if (aligned) {
            copy_async(to, from, inside ? 16 : 0);  // (1)
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) to->at[i] = inside && k + i < in_features ? from[i] : static_cast<scalar>(0.0f);
        }
    }
}
// [/step_async]

// [step_async]
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_async(const scalar* x, const scalar* w, const scalar* bias,
                                                             scalar* y, Size batch, Size in_features,
                                                             Size out_features) {
    constexpr int N = WIDE<scalar>;
    __shared__ Pack<scalar, N> x_stages[STAGES][TILE * PACKS], w_stages[STAGES][TILE * PACKS];  // (2)
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, down = thread / SQUARE, right_of = thread % SQUARE;
    const bool aligned = in_features % N == 0;
    const int steps = static_cast<int>((in_features + PACKS * N - 1) / (PACKS * N));
    const auto fetch = [&](int step) {
        if (step < steps) {
            const int stage = step % STAGES;
            const Size k = static_cast<Size>(step) * PACKS * N;
            stage_tile<scalar>(x_stages[stage], x, first_row, batch, k, in_features, thread, aligned);
            stage_tile<scalar>(w_stages[stage], w, first_column, out_features, k, in_features, thread, aligned);
        }
        close_group();  // an empty one too: the wait below counts groups
    };
    for (int step = 0; step < STAGES - 1; ++step) fetch(step);  // (3)
    accumulator sums[SIDE][SIDE] = {};
    for (int step = 0; step < steps; ++step) {
        wait_for_groups<STAGES - 2>();  // (4)
        __syncthreads();  // this step's copies are seen by all, and all are done with the stage that is fetched next
        fetch(step + STAGES - 1);  // (5)
        const Pack<scalar, N>*x_stage = x_stages[step % STAGES], *w_stage = w_stages[step % STAGES];
        multiply_stage<scalar>(x_stage, w_stage, down, right_of, sums);
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
// [/step_async]
