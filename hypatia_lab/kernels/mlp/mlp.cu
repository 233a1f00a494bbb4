// Two or three Linear layers of one width in one kernel for Hopper, ReLU between them: bfloat16 or float16, sums in
// float. Activations stay in registers: what wgmma leaves of 64 rows in its sums lies, rounded pair by pair, as the
// next layer's left operand has to lie. A block keeps all weights in shared memory. Each of its warpgroups works on tiles of
// 64 rows by itself, with stages of its own, so that one rounds while another one's products run; it asks the copy
// engine for its tiles of x as early as it has room, and writes a tile of y over the x that it came from.
// Sources: tiny-cuda-nn's FullyFusedMLP (the idea), FlashAttention-3 (left operands of wgmma in registers), CUTLASS.

#include "hopper.cuh"

// ---- kernels

constexpr int TILE_ROWS = 64, WARP_ROWS = 16, BOX_BYTES = TILE_ROWS * ROW_BYTES;

// The widest layers whose biases are added by one more step of products, a column of ones times the biases: adding them
// to the sums takes the other units longer than such a layer's products take. Wider layers are bound by products.
constexpr int WIDEST_BIAS_PRODUCT = 64;

// y = Linear(ReLU(... Linear(x))) of `rows` rows of WIDTH (16, 32, 64 or 128) numbers, LAYERS (2 or 3) layers.
// Block 128 GROUPS, any grid of whole clusters; CLUSTER blocks, as the launch makes them, share the fetching of the
// weights. AHEAD (at least 2) stages a warpgroup; a multiprocessor's registers are to have room for BLOCKS.
// Boxes of 64 columns: 64 rows of x, 16 of y, WIDTH / CLUSTER of a weight. Dynamic shared memory: biases in float, a
// barrier of 8 bytes for every weight and stage, then, at a multiple of 1024, the weights and the stages.
// [mlp]
template <typename scalar, int WIDTH, int LAYERS, int GROUPS, int AHEAD, int BLOCKS, int CLUSTER>
__global__ __launch_bounds__(128 * GROUPS, BLOCKS) void mlp(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap y_map,
    const __grid_constant__ TensorMap weight1_map, const __grid_constant__ TensorMap weight2_map,
    const __grid_constant__ TensorMap weight3_map, const scalar* bias1, const scalar* bias2, const scalar* bias3,
    Size rows) {
// [/mlp]
    constexpr int PANELS = (WIDTH + DEPTH - 1) / DEPTH, STEPS = WIDTH / 16, SHARE = WIDTH / CLUSTER;
    constexpr unsigned PANEL_BYTES = WIDTH * ROW_BYTES, WEIGHT_BYTES = PANELS * PANEL_BYTES;
    constexpr unsigned TILE_BYTES = PANELS * BOX_BYTES;
    static_assert(AHEAD >= 2, "a stage is filled again while the next one is worked on");
    static_assert(SHARE % 8 == 0, "eight rows are one round of the swizzle");
    constexpr bool BIAS_PRODUCT = WIDTH <= WIDEST_BIAS_PRODUCT;
    float* biases = reinterpret_cast<float*>(dynamic_shared);
    const unsigned weight_here = shared_address(dynamic_shared) + LAYERS * WIDTH * 4;
    const unsigned tile_here = weight_here + LAYERS * 8;
    const unsigned weights = (tile_here + GROUPS * AHEAD * 8 + 1023) / 1024 * 1024;
    const unsigned addends = weights + LAYERS * WEIGHT_BYTES, stages = addends + (BIAS_PRODUCT ? PANEL_BYTES : 0);
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int group = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const bool leads = threadIdx.x % 128 == 0;
    const int tiles = static_cast<int>((rows + TILE_ROWS - 1) / TILE_ROWS);
    // A block's tiles are dealt out to its warpgroups one by one: the turn-th of this one.
    const auto tile_at = [&](int group, int turn) {
        return static_cast<int>(blockIdx.x + gridDim.x * (group + turn * GROUPS));
    };

    if (threadIdx.x == 0) {
        prefetch(x_map, weight1_map, weight2_map, weight3_map, y_map);
        for (int layer = 0; layer < LAYERS; ++layer) start_barrier(weight_here + layer * 8, 1);
        for (int stage = 0; stage < GROUPS * AHEAD; ++stage) start_barrier(tile_here + stage * 8, 1);
        publish_barriers();
    }
    // Fetching into another block's memory needs its barriers.
    synchronize_blocks<CLUSTER>();
    let_next_kernel_start();
    wait_for_kernel_before();

    // [mlp]
    const auto fetch_tile = [&](int group, int turn) {
        const int tile = tile_at(group, turn), stage = group * AHEAD + turn % AHEAD;
        if (tile >= tiles) return;
        const unsigned barrier = tile_here + stage * 8;
        arrive_and_expect(barrier, TILE_BYTES);
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            fetch_box(stages + stage * TILE_BYTES + panel * BOX_BYTES, x_map, panel * DEPTH, tile * TILE_ROWS, barrier);
        }
    };
    // [/mlp]
    const auto fetch_weight = [&](int layer, const TensorMap& map) {
        const unsigned barrier = weight_here + layer * 8, to = weights + layer * WEIGHT_BYTES;
        arrive_and_expect(barrier, WEIGHT_BYTES);
#pragma unroll
        for (int panel = 0; panel < PANELS; ++panel) {
            if constexpr (CLUSTER == 1) {
                fetch_box(to + panel * PANEL_BYTES, map, panel * DEPTH, 0, barrier);
            } else {
                const int first = block_of_cluster() * SHARE;
                fetch_box_for((1 << CLUSTER) - 1, to + panel * PANEL_BYTES + first * ROW_BYTES, map, panel * DEPTH,
                              first, barrier);
            }
        }
    };
    // All that is asked for at once comes at once, so further tiles are asked for later. A thread takes a while to ask:
    // each warpgroup has one that does.
    if (leads) {
        fetch_tile(group, 0);
#pragma unroll
        for (int layer = 0; layer < LAYERS; ++layer) {
            if (layer % GROUPS != group) continue;
            fetch_weight(layer, layer == 0 ? weight1_map : layer == 1 ? weight2_map : weight3_map);
        }
    }
    for (int i = threadIdx.x; i < LAYERS * WIDTH; i += 128 * GROUPS) {
        const int layer = i / WIDTH, column = i % WIDTH;
        const scalar bias = (layer == 0 ? bias1 : layer == 1 ? bias2 : bias3)[column];
        if constexpr (BIAS_PRODUCT) {
            // Of a layer's 16 columns the first one is the bias.
            unsigned char* row = dynamic_shared + (addends - shared_address(dynamic_shared)) + column * ROW_BYTES;
            const unsigned first = rounded<scalar>(static_cast<float>(bias), 0.0f);
            *reinterpret_cast<uint4*>(row + (2 * layer ^ column % 8) * 16) = make_uint4(first, 0, 0, 0);
            *reinterpret_cast<uint4*>(row + (2 * layer + 1 ^ column % 8) * 16) = make_uint4(0, 0, 0, 0);
        } else {
            biases[i] = static_cast<float>(bias);
        }
    }
    if constexpr (BIAS_PRODUCT) show_to_copies();
    __syncthreads();

    // [mlp]
    // sums[4 j + 2 half + n] is at row lane / 4 + 8 half of the warp's 16, column 8 j + 2 (lane % 4) + n, and pair
    // 2 j + half of `pairs` is two neighbours of them: four pairs are 16 columns, an operand of the next layer.
    float sums[WIDTH / 2];  // (1)
    unsigned pairs[WIDTH / 4];
    // A left operand of 16 columns, of which the first is ones.
    const unsigned one = lane % 4 == 0 ? rounded<scalar>(1.0f, 0.0f) : 0, ones[4] = {one, one, 0, 0};
    const auto begin_with_biases = [&](int layer) {
        if constexpr (BIAS_PRODUCT) multiply_held<scalar, WIDTH>(sums, ones, operand(addends) + 2 * layer, 0);
    };
    const auto add_biases = [&](int layer) {
        if constexpr (BIAS_PRODUCT) return;
        const float* bias = biases + layer * WIDTH + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; ++j) {
            const float2 two = *reinterpret_cast<const float2*>(bias + 8 * j);
            sums[4 * j] += two.x;
            sums[4 * j + 1] += two.y;
            sums[4 * j + 2] += two.x;
            sums[4 * j + 3] += two.y;
        }
    };
    for (int turn = 0, tile; (tile = tile_at(group, turn)) < tiles; ++turn) {  // (2)
        const int stage = group * AHEAD + turn % AHEAD;
        const unsigned here = stages + stage * TILE_BYTES;
        if (turn == 0) wait(weight_here, 0);
        wait(tile_here + stage * 8, turn / AHEAD % 2);
        if (turn == 0 && leads) {
            for (int later = 1; later < AHEAD; ++later) fetch_tile(group, later);
        }
        settle(sums);
        open_products();
        begin_with_biases(0);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {  // 16 numbers along k are 32 bytes, 2 in an operand's units
            multiply_tiles<scalar, WIDTH>(sums, operand(here + k / 4 * BOX_BYTES) + k % 4 * 2,
                                           operand(weights + k / 4 * PANEL_BYTES) + k % 4 * 2, BIAS_PRODUCT || k > 0);
        }
        close_products();
        wait_for_products<0>();
        settle(sums);
        add_biases(0);
#pragma unroll
        for (int layer = 1; layer < LAYERS; ++layer) {
#pragma unroll
            for (int i = 0; i < WIDTH / 4; ++i) pairs[i] = rectified<scalar>(sums[2 * i], sums[2 * i + 1]);  // (3)
            settle(pairs);
            if (turn == 0) wait(weight_here + layer * 8, 0);
            settle(sums);
            open_products();
            begin_with_biases(layer);
#pragma unroll
            for (int k = 0; k < STEPS; ++k) {
                const unsigned weight = weights + layer * WEIGHT_BYTES + k / 4 * PANEL_BYTES;
                multiply_held<scalar, WIDTH>(sums, pairs + 4 * k, operand(weight) + k % 4 * 2,  // (4)
                                              BIAS_PRODUCT || k > 0);
            }
            close_products();
            if (layer == 1) {
                // After this, all of the warpgroup is done with this x, which may be written over, and the copy engine
                // with the y before it, whose stage may be filled again.
                if (lane == 0) wait_for_stores();
                synchronize_group(group);
                if (leads && turn > 0) fetch_tile(group, turn - 1 + AHEAD);
            }
            wait_for_products<0>();
            settle(sums);
            add_biases(layer);
        }
        const unsigned own = here + warp * WARP_ROWS * ROW_BYTES;
        leave_rows<scalar, BOX_BYTES>(own, sums, lane);
        show_to_copies();
        __syncwarp();
        if (lane == 0) {
#pragma unroll
            for (int panel = 0; panel < PANELS; ++panel) {
                store_box(y_map, panel * DEPTH, tile * TILE_ROWS + warp * WARP_ROWS, own + panel * BOX_BYTES);  // (5)
            }
            close_stores();
    // [/mlp]
        }
    }
    // Shared memory may go neither before it is read nor before what was asked for is there.
    if (lane == 0) wait_for_stores();
    for (int layer = 0; layer < LAYERS; ++layer) wait(weight_here + layer * 8, 0);
    if constexpr (CLUSTER > 1) synchronize_cluster();
}
