// Two or three Linear layers of width 256 in one kernel for Hopper, ReLU between them: bfloat16 or float16, sums in
// float. Three weights of 128 KB are more than a block's shared memory, so they stream through it, 64 numbers along k
// at a time, once for every 128 rows of x; where rows are many, two blocks fetch half of each slice for both. One
// warpgroup only copies. Two others work on 64 rows each, with activations in registers as in mlp.cu: while one rounds
// its sums, the other one's products run, as far apart as there are slices in memory. y is written over the x that it
// came from.
// Sources: tiny-cuda-nn's FullyFusedMLP, whose weights stay (the idea), FlashAttention-3 (left operands of wgmma in
// registers), CUTLASS (one warpgroup copies, its registers given away).

#include "hopper.cuh"

// ---- kernels

constexpr int WIDTH = 256, MOST_LAYERS = 3, TILE_ROWS = 64, WARP_ROWS = 16, PANELS = WIDTH / DEPTH;
constexpr int CONSUMERS = 2, BLOCK_ROWS = CONSUMERS * TILE_ROWS, BUFFERS = 3;
constexpr unsigned BOX_BYTES = TILE_ROWS * ROW_BYTES, TILE_BYTES = PANELS * BOX_BYTES, SLICE_BYTES = WIDTH * ROW_BYTES;

// y = Linear(ReLU(... Linear(x))) of `rows` rows of WIDTH numbers, 2 or 3 layers. Block 128 (CONSUMERS + 1), any grid
// of whole clusters; CLUSTER blocks, as the launch makes them, share the fetching of slices, of which SLICES are in
// shared memory. Boxes of 64 columns: 64 rows of x, 16 of y, WIDTH / CLUSTER of a weight. Dynamic shared memory:
// biases, two barriers of 8 bytes for every slice and buffer, then, at a multiple of 1024, the slices and the buffers.
// [mlp_streamed]
template <typename scalar, int SLICES, int CLUSTER>
__global__ __launch_bounds__(128 * (CONSUMERS + 1), 1) void mlp_streamed(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map,
    const __grid_constant__ TensorMap weight1_map, const __grid_constant__ TensorMap weight2_map,
    const __grid_constant__ TensorMap weight3_map, const scalar* bias1, const scalar* bias2, const scalar* bias3,
    Size rows, Size layers) {
// [/mlp_streamed]
    constexpr int SHARE = WIDTH / CLUSTER;
    static_assert(SLICES >= 2, "a slice is fetched over when the next one's products run");
    scalar* biases = reinterpret_cast<scalar*>(dynamic_shared);
    const unsigned slice_here = shared_address(dynamic_shared) + MOST_LAYERS * WIDTH * 2;
    const unsigned slice_free = slice_here + SLICES * 8, tile_here = slice_free + SLICES * 8;
    const unsigned tile_free = tile_here + BUFFERS * 8;
    const unsigned slices = (tile_free + BUFFERS * 8 + 1023) / 1024 * 1024, buffers = slices + SLICES * SLICE_BYTES;
    const int block = CLUSTER == 1 ? 0 : static_cast<int>(block_of_cluster());
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    // All blocks go round equally often, for each brings half of what another one needs. Beyond the last row is nothing
    // to read, and nothing is written.
    const Size together = static_cast<Size>(gridDim.x) * BLOCK_ROWS;
    const int rounds = static_cast<int>((rows + together - 1) / together);
    const auto row_at = [&](int round, int consumer) {
        return static_cast<int>((round * gridDim.x + blockIdx.x) * BLOCK_ROWS + consumer * TILE_ROWS);
    };

    if (threadIdx.x == 0) {
        prefetch(x_map, weight1_map, weight2_map, weight3_map, y_map);
        for (int slice = 0; slice < SLICES; ++slice) {
            start_barrier(slice_here + slice * 8, 1);
            // Every warp that multiplies by it, here and in the other block, says when it has.
            start_barrier(slice_free + slice * 8, CLUSTER * CONSUMERS * 4);
        }
        for (int buffer = 0; buffer < BUFFERS; ++buffer) {
            start_barrier(tile_here + buffer * 8, 1);
            start_barrier(tile_free + buffer * 8, 4);
        }
        publish_barriers();
    }
    // Fetching into another block's memory needs its barriers.
    synchronize_blocks<CLUSTER>();
    let_next_kernel_start();
    wait_for_kernel_before();
    for (int i = threadIdx.x; i < layers * WIDTH; i += 128 * (CONSUMERS + 1)) {
        const int layer = i / WIDTH;
        biases[i] = (layer == 0 ? bias1 : layer == 1 ? bias2 : bias3)[i % WIDTH];
    }
    __syncthreads();

    if (warpgroup == 0) {
        Registers<CONSUMERS, 24, 240>::give_back();
        // A thread for x and one for the weights: a tile waits for the y before it, and with it would the slices which
        // that y needs.
        if (threadIdx.x == 0) {
            Turn<SLICES> turn;
            for (int round = 0; round < rounds; ++round) {
                for (int layer = 0; layer < layers; ++layer) {
                    const TensorMap& map = layer == 0 ? weight1_map : layer == 1 ? weight2_map : weight3_map;
                    for (int panel = 0; panel < PANELS; ++panel, turn.advance()) {
                        const unsigned barrier = slice_here + turn.stage * 8, first = block * SHARE;
                        const unsigned share = slices + turn.stage * SLICE_BYTES + first * ROW_BYTES;
                        wait(slice_free + turn.stage * 8, turn.parity ^ 1);
                        arrive_and_expect(barrier, SLICE_BYTES);
                        if constexpr (CLUSTER == 1)
                            fetch_box(share, map, panel * DEPTH, first, barrier);
                        else
                            fetch_box_for((1 << CLUSTER) - 1, share, map, panel * DEPTH, first, barrier);
                    }
                }
            }
        } else if (threadIdx.x == 32) {
            Turn<BUFFERS> turn;
            for (int round = 0; round < rounds; ++round) {
                for (int consumer = 0; consumer < CONSUMERS; ++consumer, turn.advance()) {
                    const unsigned barrier = tile_here + turn.stage * 8, to = buffers + turn.stage * TILE_BYTES;
                    wait(tile_free + turn.stage * 8, turn.parity ^ 1);
                    arrive_and_expect(barrier, TILE_BYTES);
#pragma unroll
                    for (int panel = 0; panel < PANELS; ++panel) {
                        fetch_box(to + panel * BOX_BYTES, x_map, panel * DEPTH, row_at(round, consumer), barrier);
                    }
                }
            }
        }
    } else {
        Registers<CONSUMERS, 24, 240>::take();
        const int consumer = warpgroup - 1, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
        const auto release = [&](int slice) {
            if constexpr (CLUSTER == 1) {
                if (lane == 0) arrive(slice_free + slice * 8);
            } else {
                if (lane < CLUSTER) arrive_at(slice_free + slice * 8, lane);
            }
        };
        // [mlp_streamed]
        // sums[4 j + 2 half + n] is at row lane / 4 + 8 half of the warp's 16, column 8 j + 2 (lane % 4) + n, and pair
        // 2 j + half of `pairs` is two neighbours of them: four pairs are 16 columns, an operand of the next layer.
        float sums[WIDTH / 2];  // (1)
        unsigned pairs[WIDTH / 4];
        Turn<SLICES> turn;
        const auto begin_with_biases = [&](int layer) {
            const unsigned* bias = reinterpret_cast<const unsigned*>(biases + layer * WIDTH) + lane % 4;
#pragma unroll
            for (int j = 0; j < WIDTH / 8; ++j) {
                const unsigned two = bias[4 * j];
                sums[4 * j] = sums[4 * j + 2] = half_of<scalar>(two, 0);
                sums[4 * j + 1] = sums[4 * j + 3] = half_of<scalar>(two, 1);
            }
        };
        // All slices of a layer: product(step, weight) adds 16 numbers along k. After the second meanwhile() runs.
        const auto multiply = [&](const auto& product, const auto& meanwhile) {
            int previous = 0;
#pragma unroll
            for (int panel = 0; panel < PANELS; ++panel, turn.advance()) {
                const unsigned long long weight = operand(slices + turn.stage * SLICE_BYTES);
                wait(slice_here + turn.stage * 8, turn.parity);  // (2)
                settle(sums);
                open_products();
#pragma unroll
                for (int k = 0; k < DEPTH / 16; ++k) product(panel * DEPTH / 16 + k, weight + 2 * k);
                close_products();
                // The products before these are done while these go on: their slice can be fetched over.
                wait_for_products<1>();
                if (panel > 0) release(previous);  // (3)
                previous = turn.stage;
                if (panel == 1) meanwhile();
            }
            wait_for_products<0>();
            settle(sums);
            release(previous);
        };
        for (int round = 0; round < rounds; ++round) {
            const int item = round * CONSUMERS + consumer, buffer = item % BUFFERS;
            const unsigned here = buffers + buffer * TILE_BYTES;
            begin_with_biases(0);
            wait(tile_here + buffer * 8, item / BUFFERS % 2);
            multiply(
                [&](int step, unsigned long long weight) {
                    const unsigned panel = here + step / 4 * BOX_BYTES;
                    multiply_tiles<scalar, WIDTH>(sums, operand(panel) + step % 4 * 2, weight, 1);
                },
                [&] {
                    if (round == 0 || lane != 0) return;
                    // The y before this one has had some time to leave its buffer. The other warpgroup may wait for it,
                    // and further slices for that one.
                    wait_for_stores();
                    arrive(tile_free + (item - CONSUMERS) % BUFFERS * 8);
                });
            synchronize_group(warpgroup);  // all of it is done with this x, which may be written over
            for (int layer = 1; layer < layers; ++layer) {
#pragma unroll
                for (int i = 0; i < WIDTH / 4; ++i) pairs[i] = rectified<scalar>(sums[2 * i], sums[2 * i + 1]);  // (4)
                settle(pairs);
                begin_with_biases(layer);
                multiply(
                    [&](int step, unsigned long long weight) {
                        multiply_held<scalar, WIDTH>(sums, pairs + 4 * step, weight, 1);  // (5)
                    },
                    [] {});
            }
            const unsigned own = here + warp * WARP_ROWS * ROW_BYTES;
            leave_rows<scalar, BOX_BYTES>(own, sums, lane);
            show_to_copies();
            __syncwarp();
            if (lane == 0) {
                const int first = row_at(round, consumer) + warp * WARP_ROWS;
#pragma unroll
                for (int panel = 0; panel < PANELS; ++panel) {
                    store_box(y_map, panel * DEPTH, first, own + panel * BOX_BYTES);
                }
                close_stores();
            }
        }
        // [/mlp_streamed]
        // Shared memory may not go before it is read.
        if (lane == 0) wait_for_stores();
    }
    // A block that has left can neither be written to nor arrived at.
    if constexpr (CLUSTER > 1) synchronize_cluster();
}
