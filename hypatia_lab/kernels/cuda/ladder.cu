// The ladder of Linear+ReLU kernels on CUDA cores, y = max(0, x w^T + b), one idea a step, easiest first:
//     coalesced      a warp per output: neighbouring threads read neighbouring addresses
//     shared         tiles of 32 x 32 in shared memory: every number is read 32 times for one trip to device memory
//     registers_1d   eight outputs a thread in a column: one number of w serves eight sums
//     registers_2d   eight by eight outputs a thread: 16 numbers from shared memory serve 64 sums
//     vectorized     16-byte loads and stores
//     conflict_free  a swizzle under which no two threads of a warp want the same bank
//     async          copies that bypass the registers, two stages ahead of the arithmetic
// The step before them is linear_relu_naive.cu, the steps after them, on tensor cores, are in ladder_tensor.cu.
//
// x is (batch, in), w (out, in), bias (out) or null, y (batch, out), all row-major, so both operands lie along k.
// Blocks are numbered along one axis, tiles of the same rows next to each other. Products accumulate in `accumulator`
// (float for the 16-bit types and float, double for double), which is also what most steps keep in shared memory.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

using Size = long long;

template <typename T, int N> struct alignas(N * sizeof(T)) Pack {
    T at[N];
};

// Numbers of T in 16 bytes.
template <typename T> constexpr int WIDE = 16 / sizeof(T);

template <typename scalar, typename accumulator>
__device__ inline scalar finish(accumulator sum, const scalar* bias, Size column) {
    if (bias) sum += static_cast<accumulator>(bias[column]);
    // `sum < 0` and not `sum > 0`: a NaN stays a NaN, as in torch.relu.
    return static_cast<scalar>(sum < accumulator(0) ? accumulator(0) : sum);
}

// N neighbouring outputs of a row, written at once where `aligned` says that y allows it and all N are there.
template <int N, typename scalar, typename accumulator>
__device__ inline void store(const accumulator* sums, const scalar* bias, scalar* y, Size row, Size column, Size batch,
                             Size out_features, bool aligned) {
    if (row >= batch) return;
    scalar* to = y + row * out_features + column;
    if (aligned && column + N <= out_features) {
        Pack<scalar, N> pack;
#pragma unroll
        for (int j = 0; j < N; ++j) pack.at[j] = finish(sums[j], bias, column + j);
        *reinterpret_cast<Pack<scalar, N>*>(to) = pack;
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) {
            if (column + j < out_features) to[j] = finish(sums[j], bias, column + j);
        }
    }
}

// [step_shared]
// ROWS x DEPTH of a matrix into shared memory as tile[k][row], zeros beyond the matrix. Neighbouring threads read along
// k and write down a column of the tile, all to the same bank where ROWS is a multiple of 32.
template <int ROWS, int DEPTH, int THREADS, typename scalar, typename accumulator>
__device__ inline void load_tile(accumulator (*tile)[ROWS], const scalar* matrix, Size first_row, Size rows,
                                 Size first_k, Size in_features, int thread) {
    static_assert(ROWS * DEPTH % THREADS == 0, "every thread loads as many");
#pragma unroll
    for (int n = 0; n < ROWS * DEPTH / THREADS; ++n) {
        const int element = thread + n * THREADS, row = element / DEPTH, k = element % DEPTH;
        const bool inside = first_row + row < rows && first_k + k < in_features;
        tile[k][row] =  // (1)
            inside ? static_cast<accumulator>(matrix[(first_row + row) * in_features + first_k + k]) : accumulator(0);
    }
}
// [/step_shared]

constexpr int COALESCED_ROWS = 4, COALESCED_COLUMNS = 4;

// [step_coalesced]
// Block (32, 16): a warp per output of a tile of 4 x 4.
template <typename scalar, typename accumulator>
__global__ void linear_relu_coalesced(const scalar* x, const scalar* w, const scalar* bias, scalar* y, Size batch,
                                      Size in_features, Size out_features) {
    const Size across = (out_features + COALESCED_COLUMNS - 1) / COALESCED_COLUMNS;
    const Size row = blockIdx.x / across * COALESCED_ROWS + threadIdx.y / COALESCED_COLUMNS;
    const Size column = blockIdx.x % across * COALESCED_COLUMNS + threadIdx.y % COALESCED_COLUMNS;
    if (row >= batch || column >= out_features) return;
    accumulator sum = 0;
    for (Size k = threadIdx.x; k < in_features; k += 32) {  // (1)
        sum +=
            static_cast<accumulator>(x[row * in_features + k]) * static_cast<accumulator>(w[column * in_features + k]);
    }
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);  // (2)
    if (threadIdx.x == 0) y[row * out_features + column] = finish(sum, bias, column);  // (3)
}
// [/step_coalesced]

constexpr int SHARED_TILE = 32;

// [step_shared]
// Block 1024: a thread per output of a tile of 32 x 32.
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(1024) void linear_relu_shared(const scalar* x, const scalar* w, const scalar* bias,
                                                           scalar* y, Size batch, Size in_features, Size out_features) {
    constexpr int TILE = SHARED_TILE;
    __shared__ accumulator x_tile[TILE][TILE], w_tile[TILE][TILE];  // (2)
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, row = thread / TILE, column = thread % TILE;
    accumulator sum = 0;
    for (Size k = 0; k < in_features; k += TILE) {
        load_tile<TILE, TILE, TILE * TILE>(x_tile, x, first_row, batch, k, in_features, thread);  // (3)
        load_tile<TILE, TILE, TILE * TILE>(w_tile, w, first_column, out_features, k, in_features, thread);
        __syncthreads();  // (4)
#pragma unroll
        for (int i = 0; i < TILE; ++i) sum += x_tile[i][row] * w_tile[i][column];  // (5)
        __syncthreads();
    }
    store<1>(&sum, bias, y, first_row + row, first_column + column, batch, out_features, false);
}
// [/step_shared]

constexpr int LINE_TILE = 64, LINE_DEPTH = 16, LINE = 8;

// [step_registers_1d]
// Block 512: eight rows of one column a thread, a tile of 64 x 64.
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(512) void linear_relu_registers_1d(const scalar* x, const scalar* w, const scalar* bias,
                                                                scalar* y, Size batch, Size in_features,
                                                                Size out_features) {
    constexpr int TILE = LINE_TILE, THREADS = TILE * TILE / LINE;
    __shared__ accumulator x_tile[LINE_DEPTH][TILE], w_tile[LINE_DEPTH][TILE];
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, row = thread / TILE * LINE, column = thread % TILE;
    accumulator sums[LINE] = {};  // (1)
    for (Size k = 0; k < in_features; k += LINE_DEPTH) {
        load_tile<TILE, LINE_DEPTH, THREADS>(x_tile, x, first_row, batch, k, in_features, thread);
        load_tile<TILE, LINE_DEPTH, THREADS>(w_tile, w, first_column, out_features, k, in_features, thread);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < LINE_DEPTH; ++d) {
            const accumulator factor = w_tile[d][column];  // (2)
#pragma unroll
            for (int i = 0; i < LINE; ++i) sums[i] += x_tile[d][row + i] * factor;  // (3)
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < LINE; ++i) {
        store<1>(sums + i, bias, y, first_row + row + i, first_column + column, batch, out_features, false);
    }
}
// [/step_registers_1d]

// From here on: block 256, a tile of 128 x 128, 8 x 8 outputs a thread, the threads a square of 16 x 16.
constexpr int TILE = 128, DEPTH = 16, SIDE = 8, SQUARE = TILE / SIDE, THREADS = SQUARE * SQUARE;

// [step_registers_2d]
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_registers_2d(const scalar* x, const scalar* w,
                                                                    const scalar* bias, scalar* y, Size batch,
                                                                    Size in_features, Size out_features) {
    __shared__ accumulator x_tile[DEPTH][TILE], w_tile[DEPTH][TILE];
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, row = thread / SQUARE * SIDE, column = thread % SQUARE * SIDE;
    accumulator sums[SIDE][SIDE] = {};  // (1)
    for (Size k = 0; k < in_features; k += DEPTH) {
        load_tile<TILE, DEPTH, THREADS>(x_tile, x, first_row, batch, k, in_features, thread);
        load_tile<TILE, DEPTH, THREADS>(w_tile, w, first_column, out_features, k, in_features, thread);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            accumulator left[SIDE], right[SIDE];
#pragma unroll
            for (int i = 0; i < SIDE; ++i) left[i] = x_tile[d][row + i];  // (2)
#pragma unroll
            for (int j = 0; j < SIDE; ++j) right[j] = w_tile[d][column + j];  // (3)
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
#pragma unroll
                for (int j = 0; j < SIDE; ++j) sums[i][j] += left[i] * right[j];  // (4)
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < SIDE; ++j) {
            store<1>(&sums[i][j], bias, y, first_row + row + i, first_column + column + j, batch, out_features, false);
        }
    }
}
// [/step_registers_2d]

// [step_conflict_free]
// Where tile[k][row] is kept. Threads that load 16 bytes write WIDE numbers of a row to WIDE lines of the tile; eight
// (float) such threads side by side are DEPTH / WIDE columns of k on a few rows, and would meet in the same banks.
// Moved apart by a multiple of 16 bytes that only k decides, they do not, and 16-byte reads along a line stay whole.
template <typename scalar, typename accumulator, bool SWIZZLED> __device__ inline int place(int k, int row) {
    constexpr int COLUMNS = DEPTH / WIDE<scalar>, APART = 128 / static_cast<int>(sizeof(accumulator)) / COLUMNS;
    return SWIZZLED ? row ^ k / WIDE<scalar> * APART : row;  // (1)
}
// [/step_conflict_free]

// [step_vectorized]
// load_tile with 16 bytes a load where the matrix allows it.
template <bool SWIZZLED, typename scalar, typename accumulator>
__device__ inline void load_tile_wide(accumulator (*tile)[TILE], const scalar* matrix, Size first_row, Size rows,
                                      Size first_k, Size in_features, int thread, bool aligned) {
    constexpr int N = WIDE<scalar>;
#pragma unroll
    for (int n = 0; n < TILE * DEPTH / N / THREADS; ++n) {
        const int pack = thread + n * THREADS, row = pack / (DEPTH / N), k = pack % (DEPTH / N) * N;
        Pack<scalar, N> loaded;
#pragma unroll
        for (int i = 0; i < N; ++i) loaded.at[i] = static_cast<scalar>(0.0f);
        const scalar* from = matrix + (first_row + row) * in_features + first_k + k;
        if (first_row + row < rows) {
            if (aligned && first_k + k < in_features) {
                loaded = *reinterpret_cast<const Pack<scalar, N>*>(from);  // (1)
            } else if (!aligned) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    if (first_k + k + i < in_features) loaded.at[i] = from[i];
                }
            }
        }
#pragma unroll
        for (int i = 0; i < N; ++i) {
            tile[k + i][place<scalar, accumulator, SWIZZLED>(k, row)] = static_cast<accumulator>(loaded.at[i]);
        }
    }
}
// [/step_vectorized]

// [step_conflict_free]
// The line of the tile that holds output `n` of 8 of thread `at` of 16. With SPLIT, neighbouring threads hold
// neighbouring 16 bytes, which is what shared memory serves without conflict; without, each holds one run of eight.
template <typename accumulator, bool SPLIT> __device__ inline int line(int at, int n) {
    constexpr int N = WIDE<accumulator>;
    return SPLIT ? n / N * SQUARE * N + at * N + n % N : at * SIDE + n;  // (2)
}
// [/step_conflict_free]

// [step_vectorized]
// `aligned_x`: rows of x and w start at multiples of 16 bytes; `aligned_y`: so do those of y.
template <bool CONFLICT_FREE, typename scalar, typename accumulator>
__device__ inline void wide_linear_relu(const scalar* x, const scalar* w, const scalar* bias, scalar* y, Size batch,
                                        Size in_features, Size out_features) {
    constexpr int N = WIDE<accumulator>;
    alignas(16) __shared__ accumulator x_tile[DEPTH][TILE], w_tile[DEPTH][TILE];
    const Size across = (out_features + TILE - 1) / TILE;
    const Size first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
    const int thread = threadIdx.x, down = thread / SQUARE, right_of = thread % SQUARE;
    const bool aligned_x = in_features % WIDE<scalar> == 0, aligned_y = out_features % WIDE<scalar> == 0;  // (2)
    accumulator sums[SIDE][SIDE] = {};
    for (Size k = 0; k < in_features; k += DEPTH) {
        load_tile_wide<CONFLICT_FREE>(x_tile, x, first_row, batch, k, in_features, thread, aligned_x);
        load_tile_wide<CONFLICT_FREE>(w_tile, w, first_column, out_features, k, in_features, thread, aligned_x);
        __syncthreads();
#pragma unroll
        for (int d = 0; d < DEPTH; ++d) {
            Pack<accumulator, N> left[SIDE / N], right[SIDE / N];  // (3)
#pragma unroll
            for (int n = 0; n < SIDE; n += N) {
                const int i = place<scalar, accumulator, CONFLICT_FREE>(d, line<accumulator, CONFLICT_FREE>(down, n));
                const int j =
                    place<scalar, accumulator, CONFLICT_FREE>(d, line<accumulator, CONFLICT_FREE>(right_of, n));
                left[n / N] = *reinterpret_cast<const Pack<accumulator, N>*>(&x_tile[d][i]);  // (4)
                right[n / N] = *reinterpret_cast<const Pack<accumulator, N>*>(&w_tile[d][j]);
            }
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
#pragma unroll
                for (int j = 0; j < SIDE; ++j) sums[i][j] += left[i / N].at[i % N] * right[j / N].at[j % N];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < SIDE; ++i) {
#pragma unroll
        for (int j = 0; j < SIDE; j += N) {
            store<N>(&sums[i][j], bias, y, first_row + line<accumulator, CONFLICT_FREE>(down, i),  // (5)
                     first_column + line<accumulator, CONFLICT_FREE>(right_of, j), batch, out_features, aligned_y);
        }
    }
}
// [/step_vectorized]

// [step_vectorized]
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_vectorized(const scalar* x, const scalar* w, const scalar* bias,
                                                                  scalar* y, Size batch, Size in_features,
                                                                  Size out_features) {
    wide_linear_relu<false, scalar, accumulator>(x, w, bias, y, batch, in_features, out_features);
}
// [/step_vectorized]

// [step_conflict_free]
template <typename scalar, typename accumulator>
__global__ __launch_bounds__(THREADS) void linear_relu_conflict_free(const scalar* x, const scalar* w,
                                                                     const scalar* bias, scalar* y, Size batch,
                                                                     Size in_features, Size out_features) {
    wide_linear_relu<true, scalar, accumulator>(x, w, bias, y, batch, in_features, out_features);  // (3)
}
// [/step_conflict_free]

// The copies keep numbers as they are, along k: a stage holds 64 bytes of each row, four packs of 16 bytes.
constexpr int STAGES = 3, PACKS = 4;

// Pack `pack` of row `row` of a stage: eight neighbouring rows' packs lie in eight different 16 bytes of 128.
__device__ inline int staged(int row, int pack) { return row * PACKS + (pack ^ row / 2 % PACKS); }

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
#pragma unroll
        for (int pack = 0; pack < PACKS; ++pack) {
            Pack<scalar, N> right[SIDE];
#pragma unroll
            for (int j = 0; j < SIDE; ++j) right[j] = w_stage[staged(right_of + j * SQUARE, pack)];
#pragma unroll
            for (int i = 0; i < SIDE; ++i) {
                const Pack<scalar, N> left = x_stage[staged(down + i * SQUARE, pack)];
#pragma unroll
                for (int j = 0; j < SIDE; ++j) {
#pragma unroll
                    for (int k = 0; k < N; ++k) {
                        sums[i][j] += static_cast<accumulator>(left.at[k]) * static_cast<accumulator>(right[j].at[k]);
                    }
                }
            }
        }
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
