// The ladder's last steps, on tensor cores: Linear+ReLU in bfloat16 or float16 with sums in float.
//     mma        mma.sync on fragments that ldmatrix fetches from swizzled tiles, which cp.async fills stages ahead
//     wgmma      Hopper: one warpgroup only copies (TMA), the others only multiply (wgmma), and mbarriers pass tiles
//                between them; a block stays for many tiles, so that a tile's copies start during the one before
//     multicast  the same with two blocks a cluster that share each tile of w, each fetching half of it for both
// The steps before them are in ladder.cu; x, w, bias, y as there. Public work that reached cuBLAS's rate this way and
// is worth reading: fast.cu (pranjalssh), CUTLASS's sm90 warp-specialised kernels. Layouts of fragments, descriptors
// and swizzles: PTX ISA, sections on mma, ldmatrix, wgmma and tensor copies.

#include "hopper.cuh"

// ---- instructions

// Four 8 x 8 matrices of 16-bit numbers; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

#define MULTIPLY_FRAGMENTS(scalar, type)                                                        \
    template <>                                                                                 \
    __device__ inline void multiply_fragments<scalar>(float (&sums)[4], const unsigned (&a)[4], \
                                                      const unsigned (&b)[2]) {                 \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                     \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"     \
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));       \
    }
// 16 x 8 sums += a (16 x 16) times b (8 x 16) transposed, by a warp.
template <typename scalar>
__device__ inline void multiply_fragments(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]);
MULTIPLY_FRAGMENTS(__nv_bfloat16, "bf16")
MULTIPLY_FRAGMENTS(__half, "f16")

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

constexpr int MMA_TILE = 128, MMA_STAGES = 3, MMA_THREADS = 128, MMA_STAGE_BYTES = 2 * MMA_TILE * ROW_BYTES;
constexpr int MMA_GROUP = 8, MMA_ROWS = 4, MMA_COLUMNS = 8;

// 128 rows of a matrix to `offset` of dynamic shared memory. ALIGNED: rows start at multiples of 16 bytes.
template <bool ALIGNED, typename scalar>
__device__ inline void stage_rows(unsigned offset, const scalar* matrix, Size first_row, Size rows, Size first_k,
                                  Size in_features) {
    constexpr int EACH = MMA_TILE * PACKS / MMA_THREADS;
#pragma unroll(ALIGNED ? EACH : 1)
    for (int n = 0; n < EACH; ++n) {
        const int element = threadIdx.x + n * MMA_THREADS, row = element / PACKS, pack = element % PACKS;
        const Size k = first_k + pack * PACK;
        const bool inside = first_row + row < rows && k < in_features;
        const scalar* from = matrix + (inside ? (first_row + row) * in_features + k : 0);
        const unsigned at = offset + row * ROW_BYTES + (pack ^ row % 8) * 16;
        if constexpr (ALIGNED) {
            copy_async(shared_address(dynamic_shared) + at, from, inside ? 16 : 0);
        } else {
            scalar* to = reinterpret_cast<scalar*>(dynamic_shared + at);
#pragma unroll
            for (int i = 0; i < PACK; ++i) to[i] = inside && k + i < in_features ? from[i] : static_cast<scalar>(0.0f);
        }
    }
}

// [step_mma]
// Block 128: four warps, each 64 x 64 of a tile of 128 x 128 as 4 x 8 fragments of 16 x 8; dynamic shared memory
// MMA_STAGES * MMA_STAGE_BYTES.
template <typename scalar, bool ALIGNED>
__global__ __launch_bounds__(MMA_THREADS, 2) void linear_relu_mma(const scalar* x, const scalar* w, const scalar* bias,
                                                                  scalar* y, Size batch, Size in_features,
                                                                  Size out_features) {
    const int down = static_cast<int>((batch + MMA_TILE - 1) / MMA_TILE);
    const int across = static_cast<int>((out_features + MMA_TILE - 1) / MMA_TILE);
    const Tile tile = tile_at(blockIdx.x, down, across, MMA_GROUP);  // (1)
    const Size first_row = static_cast<Size>(tile.row) * MMA_TILE;
    const Size first_column = static_cast<Size>(tile.column) * MMA_TILE;
    const int lane = threadIdx.x % 32, warp_row = threadIdx.x / 64 * 64, warp_column = threadIdx.x / 32 % 2 * 64;
    const int steps = static_cast<int>((in_features + DEPTH - 1) / DEPTH);
    const auto fetch = [&](int step) {
        if (step < steps) {
            const unsigned stage = step % MMA_STAGES * MMA_STAGE_BYTES;
            const Size k = static_cast<Size>(step) * DEPTH;
            stage_rows<ALIGNED>(stage, x, first_row, batch, k, in_features);
            stage_rows<ALIGNED>(stage + MMA_TILE * ROW_BYTES, w, first_column, out_features, k, in_features);
        }
        close_group();  // an empty one too: the wait below counts groups
    };
    for (int step = 0; step < MMA_STAGES - 1; ++step) fetch(step);
    float sums[MMA_ROWS][MMA_COLUMNS][4] = {};  // (2)
    const unsigned base = shared_address(dynamic_shared);
    for (int step = 0; step < steps; ++step) {
        wait_for_groups<MMA_STAGES - 2>();
        __syncthreads();  // this step's copies are seen by all, and all are done with the stage that is fetched next
        fetch(step + MMA_STAGES - 1);
        const unsigned stage = base + step % MMA_STAGES * MMA_STAGE_BYTES;
#pragma unroll
        for (int k = 0; k < PACKS; k += 2) {
            unsigned a[MMA_ROWS][4], b[MMA_COLUMNS][2];
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
                const int row = warp_row + i * 16 + lane % 16, pack = k + lane / 16;
                load_matrices(a[i], stage + row * ROW_BYTES + (pack ^ row % 8) * 16);  // (3)
            }
#pragma unroll
            for (int j = 0; j < MMA_COLUMNS; j += 2) {
                const int row = warp_column + j * 8 + lane / 16 * 8 + lane % 8, pack = k + lane / 8 % 2;
                unsigned both[4];
                load_matrices(both, stage + (MMA_TILE + row) * ROW_BYTES + (pack ^ row % 8) * 16);  // (4)
                b[j][0] = both[0], b[j][1] = both[1], b[j + 1][0] = both[2], b[j + 1][1] = both[3];
            }
#pragma unroll
            for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
                for (int j = 0; j < MMA_COLUMNS; ++j) multiply_fragments<scalar>(sums[i][j], a[i], b[j]);  // (5)
            }
        }
    }
#pragma unroll
    for (int i = 0; i < MMA_ROWS; ++i) {
#pragma unroll
        for (int j = 0; j < MMA_COLUMNS; j += 4) {
            const Size row = first_row + warp_row + i * 16, column = first_column + warp_column + j * 8;
            const int columns = remaining(out_features, column, 32);
            if (columns <= 0) continue;
            finish_rows(sums[i][j], bias + column, y + row * out_features + column, out_features,
                        remaining(batch, row, 16), columns, lane);
        }
    }
}
// [/step_mma]

// [step_wgmma]
// Block 128 (CONSUMERS + 1): warpgroup 0 fetches, each other one multiplies 64 rows of a tile of 64 CONSUMERS x WIDTH.
// Dynamic shared memory: 1024 to align, STAGES tiles of x and w, two barriers a stage. CLUSTER blocks work on tiles one
// below the other and share w. The grid may be of any number of clusters; in_features is a multiple of 8, not 0; y and
// bias, which is not null, start at multiples of 16 bytes. x_map's box is the tile's rows, w_map's WIDTH / CLUSTER
// rows, each 64 along k.
template <typename scalar, int CONSUMERS, int WIDTH, int STAGES, int CLUSTER>
__global__ __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(128 * (CONSUMERS + 1), 1) void linear_relu_wgmma(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map, const scalar* bias, scalar* y,
    Size batch, Size in_features, Size out_features, Size group) {
    constexpr int HEIGHT = 64 * CONSUMERS, SHARE = WIDTH / CLUSTER;
    constexpr unsigned X_BYTES = HEIGHT * ROW_BYTES, STAGE_BYTES = X_BYTES + WIDTH * ROW_BYTES;
    const unsigned stages = (shared_address(dynamic_shared) + 1023) / 1024 * 1024;
    const unsigned full = stages + STAGES * STAGE_BYTES, empty = full + STAGES * 8;
    const int block = CLUSTER == 1 ? 0 : static_cast<int>(block_of_cluster());
    const int down = static_cast<int>((batch + HEIGHT * CLUSTER - 1) / (HEIGHT * CLUSTER));
    const int across = static_cast<int>((out_features + WIDTH - 1) / WIDTH), tiles = down * across;
    const int steps = static_cast<int>((in_features + DEPTH - 1) / DEPTH);
    const int first_tile = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER;
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    if (threadIdx.x == 0) {
        prefetch(x_map, w_map);
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(full + stage * 8, 1);
            // A stage is free when every warp that multiplies, here and in the blocks that share w, has read it.
            start_barrier(empty + stage * 8, CLUSTER * CONSUMERS * 4);
        }
        publish_barriers();
    }
    synchronize_blocks<CLUSTER>();

    Turn<STAGES> turn;
    if (warpgroup == 0) {
        if constexpr (CONSUMERS == 2) Registers<CONSUMERS, 40, 232>::give_back();
        if (threadIdx.x == 0) {
            for (int index = first_tile; index < tiles; index += clusters) {  // (1)
                const Tile tile = tile_at(index, down, across, static_cast<int>(group));
                const int row = (tile.row * CLUSTER + block) * HEIGHT, column = tile.column * WIDTH + block * SHARE;
                for (int step = 0; step < steps; ++step, turn.advance()) {
                    const unsigned stage = stages + turn.stage * STAGE_BYTES, arrived = full + turn.stage * 8;
                    wait(empty + turn.stage * 8, turn.parity ^ 1);  // (2)
                    arrive_and_expect(arrived, STAGE_BYTES);
                    fetch_box(stage, x_map, step * DEPTH, row, arrived);  // (3)
// [/step_wgmma]
                    // [step_multicast]
                    const unsigned share = stage + X_BYTES + block * SHARE * ROW_BYTES;
                    if constexpr (CLUSTER == 1)
                        fetch_box(share, w_map, step * DEPTH, column, arrived);
                    else
                        fetch_box_for((1 << CLUSTER) - 1, share, w_map, step * DEPTH, column, arrived);  // (1)
                    // [/step_multicast]
                }
            }
        }
    } else {
        if constexpr (CONSUMERS == 2) Registers<CONSUMERS, 40, 232>::take();
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, rows = (warpgroup - 1) * 64;
        // [step_multicast]
        const auto release = [&](int stage) {
            if constexpr (CLUSTER == 1) {
                if (lane == 0) arrive(empty + stage * 8);
            } else {
                if (lane < CLUSTER) arrive_at(empty + stage * 8, lane);  // (2)
            }
        };
        // [/step_multicast]
        // [step_wgmma]
        float sums[WIDTH / 2];
        for (int index = first_tile; index < tiles; index += clusters) {
            int previous = 0;
            for (int step = 0; step < steps; ++step, turn.advance()) {
                const unsigned stage = stages + turn.stage * STAGE_BYTES;
                wait(full + turn.stage * 8, turn.parity);  // (4)
                const unsigned long long a = operand(stage + rows * ROW_BYTES), b = operand(stage + X_BYTES);
                settle(sums);
                open_products();
#pragma unroll
                for (int k = 0; k < DEPTH / 16; ++k) {  // 16 numbers along k are 32 bytes, 2 in an operand's units
                    multiply_tiles<scalar, WIDTH>(sums, a + 2 * k, b + 2 * k, step + k > 0);  // (5)
                }
                close_products();
                // The products before these are done while these go on: their stage can be filled again.
                wait_for_products<1>();
                if (step > 0) release(previous);
                previous = turn.stage;
            }
            wait_for_products<0>();
            settle(sums);
            release(previous);
            const Tile tile = tile_at(index, down, across, static_cast<int>(group));
            const Size row = static_cast<Size>(tile.row * CLUSTER + block) * HEIGHT + rows + warp * 16;
            const Size column = static_cast<Size>(tile.column) * WIDTH;
            const int rows_left = remaining(batch, row, 16), columns_left = remaining(out_features, column, WIDTH);
            scalar* to = y + row * out_features + column;
#pragma unroll
            for (int n = 0; n < WIDTH; n += 32) {
                if (n >= columns_left) continue;
                finish_rows(sums + n / 2, bias + column + n, to + n, out_features, rows_left, columns_left - n, lane);
            }
        }
    }
    // A block that has left can neither be written to nor arrived at.
    if constexpr (CLUSTER > 1) synchronize_cluster();
}
// [/step_wgmma]
