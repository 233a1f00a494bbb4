// Step 8 of the ladder, mma: mma.sync on fragments that ldmatrix fetches from swizzled tiles, which cp.async fills stages
// ahead.

#include "tensor_cores.cuh"

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
