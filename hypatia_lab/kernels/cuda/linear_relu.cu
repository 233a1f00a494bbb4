// Linear+ReLU in one kernel for Hopper: y (batch, out) = max(0, x (batch, in) times W (out, in) transposed + bias), in
// bfloat16 or float16 with sums in float, or in float rounded to TF32 by the copy engine. At the sizes where a call takes
// microseconds most of them go by before the first product and after the last one. So a block computes one tile, one
// warp alone copies for it, registers stay as they were launched, and tiles leave in whole boxes.
// Sources: CUTLASS's sm90 kernels, fast.cu (pranjalssh), and the ladder's last steps (ladder_tensor.cu).

#include "hopper.cuh"

// ---- kernels

// Block 128 CONSUMERS + 32: warpgroups that multiply 64 rows x WIDTH columns each, then a warp that copies. As many
// blocks as there are tiles of 64 CONSUMERS x WIDTH, which follow one another in groups of `group` rows of tiles. Dynamic
// shared memory: 1023 to align, STAGES boxes of x and of W, WIDTH biases in float, two barriers a stage. Boxes are 128
// bytes along k: x_map's 64 CONSUMERS rows, w_map's WIDTH, both rounded to TF32 where scalar is float. y_map's are 64
// rows of as many bytes; it is used where rows of y start at multiples of 16 bytes. y starts at a multiple of 16 bytes,
// all extents are at least 1, `bias` may be null.
// [linear_relu]
template <typename scalar, int CONSUMERS, int WIDTH, int STAGES>
__global__ __launch_bounds__(128 * CONSUMERS + 32, 1) void linear_relu_tiles(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const __grid_constant__ TensorMap y_map, const scalar* bias, scalar* y, Size batch, Size in_features,
    Size out_features, Size group) {
    // [/linear_relu]
    // Numbers along k in a box, and in a product: 32 bytes, 2 in an operand's units.
    constexpr int BOX = ROW_BYTES / sizeof(scalar), INNER = BOX / 4, PACK = 16 / sizeof(scalar);
    constexpr int HEIGHT = 64 * CONSUMERS, THREADS = 128 * CONSUMERS;
    constexpr unsigned X_BYTES = HEIGHT * ROW_BYTES, STAGE_BYTES = X_BYTES + WIDTH * ROW_BYTES, BOX_BYTES = 64 * ROW_BYTES;
    const unsigned shared = shared_address(dynamic_shared), stages = (shared + 1023) / 1024 * 1024;
    const unsigned biases = stages + STAGES * STAGE_BYTES, full = biases + WIDTH * 4, empty = full + STAGES * 8;
    const int down = static_cast<int>((batch + HEIGHT - 1) / HEIGHT);
    const int across = static_cast<int>((out_features + WIDTH - 1) / WIDTH);
    const Tile tile = tile_at(blockIdx.x, down, across, static_cast<int>(group));
    const int row = tile.row * HEIGHT, column = tile.column * WIDTH;
    const int steps = static_cast<int>((in_features + BOX - 1) / BOX), lane = threadIdx.x % 32;
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int warp_of_block = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 32), 0);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(full + stage * 8, 1);
            start_barrier(empty + stage * 8, CONSUMERS * 4);  // every warp that multiplies
        }
        publish_barriers();
    }
    if (threadIdx.x == THREADS) prefetch(x_map, w_map, y_map);
    __syncthreads();
    // [linear_relu]
    wait_for_kernel_before();  // (1)
    let_next_kernel_start();

    Turn<STAGES> turn;
    if (warp_of_block == THREADS / 32) {
        for (int step = 0; lane == 0 && step < steps; ++step, turn.advance()) {
            const unsigned stage = stages + turn.stage * STAGE_BYTES, arrived = full + turn.stage * 8;
            if (step >= STAGES) wait(empty + turn.stage * 8, turn.parity ^ 1);
            arrive_and_expect(arrived, STAGE_BYTES);
            fetch_box(stage + X_BYTES, w_map, step * BOX, column, arrived);  // (2)
            fetch_box(stage, x_map, step * BOX, row, arrived);
        }
        return;
    }
    // [/linear_relu]
    const int warpgroup = warp_of_block / 4, warp = warp_of_block % 4;
    float* const shift = reinterpret_cast<float*>(dynamic_shared + (biases - shared));
    for (int i = threadIdx.x; i < WIDTH; i += THREADS) {
        shift[i] = bias && column + i < out_features ? static_cast<float>(bias[column + i]) : 0.0f;
    }
    // Numbers of each are at row lane / 4 + 8 half, column 8 j + 2 (lane % 4) + n of the warp's: [4 j + 2 half + n].
    float sums[WIDTH / 2];
    const auto multiply = [&](int step, int k) {
        const unsigned stage = stages + turn.stage * STAGE_BYTES;
        const unsigned long long a = operand(stage + warpgroup * 64 * ROW_BYTES), b = operand(stage + X_BYTES);
        multiply_tiles<scalar, WIDTH>(sums, a + 2 * k, b + 2 * k, step + k > 0);
    };
    const int whole = static_cast<int>(in_features / BOX);
    int previous = 0;
    // [linear_relu]
    for (int step = 0; step < whole; ++step, turn.advance()) {
        wait(full + turn.stage * 8, turn.parity);
        settle(sums);
        open_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(step, k);
        close_products();
        // The products before these are done while these go on: their stage can be filled again.
        wait_for_products<1>();  // (3)
        if (step > 0 && lane == 0) arrive(empty + previous * 8);
        previous = turn.stage;
    }
    // [/linear_relu]
    if (whole < steps) {
        // Of the last box only what lies within the matrices: the rest is zeros.
        wait(full + turn.stage * 8, turn.parity);
        for (int k = 0; whole * BOX + k * INNER < in_features; ++k) {
            settle(sums);
            open_products();
            multiply(whole, k);
            close_products();
        }
    }
    wait_for_products<0>();
    settle(sums);
    // All have told of biases, and all have multiplied: stages are free.
    synchronize_some<THREADS>();
    // [linear_relu]
    const auto finished = [&](int j, int half) {
        const float2 by = *reinterpret_cast<const float2*>(shift + 8 * j + lane % 4 * 2);
        const float low = sums[4 * j + 2 * half] + by.x, high = sums[4 * j + 2 * half + 1] + by.y;
        return make_float2(low < 0 ? 0 : low, high < 0 ? 0 : high);  // (4)
    };
    // [/linear_relu]
    // Of narrow tiles float fills whole sectors of memory from the registers, and sooner.
    if ((sizeof(scalar) == 2 || WIDTH > 64) && out_features % PACK == 0) {
        static_assert(CONSUMERS * (WIDTH / BOX) * BOX_BYTES <= STAGES * STAGE_BYTES, "more results than stages hold");
        const unsigned own = stages + warpgroup * (WIDTH / BOX) * BOX_BYTES;
        // [linear_relu]
        // A box is on its way while the next one is finished.
#pragma unroll
        for (int box = 0; box < WIDTH / BOX; ++box) {
            float part[BOX / 2];
#pragma unroll
            for (int i = 0; i < BOX / 2; i += 2) {
                const float2 both = finished(box * (BOX / 8) + i / 4, i / 2 % 2);
                part[i] = both.x, part[i + 1] = both.y;
            }
            const unsigned to = own + box * BOX_BYTES;
            leave_box<scalar>(to + warp * 16 * ROW_BYTES, part, lane);
            show_to_copies();
            synchronize_group(warpgroup);
            if (threadIdx.x % 128 > 0) continue;
            store_box(y_map, column + box * BOX, row + warpgroup * 64, to);  // (5)
            close_stores();
        }
        // [/linear_relu]
        if (threadIdx.x % 128 == 0) wait_for_stores();
        return;
    }
    const bool pairs = sizeof(scalar) == 4 && out_features % 2 == 0;
    const Size top = row + warpgroup * 64 + warp * 16 + lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        if (top + 8 * half >= batch) continue;
        scalar* to = y + (top + 8 * half) * out_features + column;
#pragma unroll
        for (int j = 0; j < WIDTH / 8; ++j) {
            const int at = 8 * j + lane % 4 * 2;
            const float2 both = finished(j, half);
            if (pairs) {
                if (column + at < out_features) *reinterpret_cast<float2*>(to + at) = both;
            } else {
                if (column + at < out_features) to[at] = static_cast<scalar>(both.x);
                if (column + at + 1 < out_features) to[at + 1] = static_cast<scalar>(both.y);
            }
        }
    }
}
