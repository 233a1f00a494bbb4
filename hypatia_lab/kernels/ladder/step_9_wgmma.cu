// Step 9 of the ladder, wgmma: Hopper's own. One warpgroup only copies (TMA), the others only multiply (wgmma), and
// mbarriers pass tiles between them; a block stays for many tiles, so that a tile's copies start during the one before.

#include "tensor_cores.cuh"

// ---- kernels

// [step_wgmma]
// Who fetches a share of w, and who is told that a stage is free: the blocks of a cluster, here the one.
template <int CLUSTER> struct Blocks;
template <> struct Blocks<1> {
    static __device__ inline void fetch(unsigned to, const TensorMap& map, int k, int row, unsigned arrived) {
        fetch_box(to, map, k, row, arrived);
    }
    static __device__ inline void release(unsigned barrier, int lane) {
        if (lane == 0) arrive(barrier);
    }
};

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
                    const unsigned share = stage + X_BYTES + block * SHARE * ROW_BYTES;
                    Blocks<CLUSTER>::fetch(share, w_map, step * DEPTH, column, arrived);
                }
            }
        }
    } else {
        if constexpr (CONSUMERS == 2) Registers<CONSUMERS, 40, 232>::take();
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, rows = (warpgroup - 1) * 64;
        const auto release = [&](int stage) { Blocks<CLUSTER>::release(empty + stage * 8, lane); };
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
