// Linear+ReLU for Hopper: y (batch, out) = max(0, x (batch, in) times W (out, in) transposed + bias), or another
// epilogue in the ReLU's place, in bfloat16 or float16 with sums in float, or in float rounded to TF32 by the copy engine. At the sizes where a call takes
// microseconds most of them go by before the first product and after the last one. So a block computes one tile, one
// warp alone copies for it, registers stay as they were launched, and tiles leave in whole boxes. Where there are few
// tiles, several blocks share one. Rows that the copy engine cannot fetch are copied first, and few rows are multiplied
// by the ordinary units.
// Sources: CUTLASS's sm90 kernels, fast.cu (pranjalssh), and the ladder's last steps (../ladder).

#include "epilogue.cuh"
#include "hopper.cuh"

// ---- kernels

// A warp's 16 rows of a box, `rows` of which and `columns` are wanted, from shared memory in 128-byte swizzle to `to`
// and every `pitch` numbers on, side by side in the warp, numbers of 16 bits in pairs.
template <int BOX, typename scalar>
__device__ inline void store_rows(const scalar* from, scalar* to, Size pitch, Size rows, Size columns, int lane) {
    constexpr int PACK = 16 / sizeof(scalar);
    const auto number = [&](int row, int k) { return from[row * BOX + (k / PACK ^ row % 8) * PACK + k % PACK]; };
#pragma unroll 4
    for (int row = 0; row < 16; ++row, to += pitch) {
        if (row >= rows) break;
        if constexpr (sizeof(scalar) == 4) {
            if (lane < columns) to[lane] = number(row, lane);
        } else {
            const int shift = reinterpret_cast<size_t>(to) / 2 % 2, k = 2 * lane + shift;
            if (shift && lane == 0 && columns > 0) to[0] = number(row, 0);
            if (k + 1 < columns && k + 1 < BOX) {
                Pack<scalar, 2> both;
                both.at[0] = number(row, k), both.at[1] = number(row, k + 1);
                *reinterpret_cast<Pack<scalar, 2>*>(to + k) = both;
            } else if (k < columns && k < BOX) {
                to[k] = number(row, k);
            }
        }
    }
}

// Copies of two matrices in which rows begin `pitch` numbers apart, a multiple of 16 bytes: `inner` numbers of a row,
// `step` apart in what is copied, and in the copy as many as fill whole packs, the last ones of which may be anything. A
// thread copies a pack of the first matrix, or of the second, which follow. Block 256.
// [pack_rows]
template <typename scalar>
__global__ __launch_bounds__(256) void pack_rows(const scalar* first, scalar* to_first, Size first_rows,
                                                 Size first_pitch, Size first_step, const scalar* second,
                                                 scalar* to_second, Size second_rows, Size second_pitch,
                                                 Size second_step, Size inner, Size pitch) {
    wait_for_kernel_before();
    let_next_kernel_start();
    constexpr int PACK = 16 / sizeof(scalar);
    const unsigned across = static_cast<unsigned>((inner + PACK - 1) / PACK);
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned row = index / across;
    const Size k = static_cast<Size>(index - row * across) * PACK;
    if (row >= first_rows + second_rows) return;
    const bool behind = row >= first_rows;  // (1)
    if (behind) row -= static_cast<unsigned>(first_rows);
    const scalar* from = behind ? second + row * second_pitch : first + row * first_pitch;
    const Size step = behind ? second_step : first_step;
    scalar* to = (behind ? to_second : to_first) + (static_cast<Size>(row) * pitch + k);
    if (sizeof(scalar) == 2 && step == 1 && k + PACK < inner) {
        // Two numbers at a time, from the multiple of 4 bytes that a pack begins at or in the middle of.
        const size_t address = reinterpret_cast<size_t>(from + k);
        const unsigned* words = reinterpret_cast<const unsigned*>(address / 4 * 4);
        unsigned held[5], found[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) held[i] = words[i];
        held[4] = address % 4 ? words[4] : 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) found[i] = address % 4 ? held[i] >> 16 | held[i + 1] << 16 : held[i];  // (2)
        *reinterpret_cast<uint4*>(to) = make_uint4(found[0], found[1], found[2], found[3]);
        return;
    }
    Pack<scalar, PACK> found;
#pragma unroll
    for (int i = 0; i < PACK; ++i) found.at[i] = from[(k + i < inner ? k + i : inner - 1) * step];  // (3)
    *reinterpret_cast<Pack<scalar, PACK>*>(to) = found;
}
// [/pack_rows]

// Few rows of x: y's column is a row of W times each of them, by SHARE warps, which add what each has of the sums. Block
// 128; PACK numbers are loaded at once, rows are of whole packs. By float's own arithmetic, whatever scalar is.
// [few_rows]
template <typename scalar, int BATCH, int PACK, int SHARE, typename Epilogue = Relu>
__global__ __launch_bounds__(128) void linear_relu_rows(const scalar* x, const scalar* weight, const scalar* bias,
                                                        scalar* y, Size in_features, Size out_features, Size x_pitch,
                                                        Size weight_pitch, Size y_pitch, Size finish) {
    constexpr int COLUMNS = 4 / SHARE, STEP = 32 * SHARE * PACK;
    __shared__ float parts[4][BATCH];
    wait_for_kernel_before();
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Size column = static_cast<Size>(blockIdx.x) * COLUMNS + warp / SHARE;
    float sums[BATCH] = {};
    if (column < out_features) {  // (1)
        const scalar* from = weight + column * weight_pitch;
#pragma unroll(BATCH > 4 ? 2 : 4)
        for (Size k = (warp % SHARE * 32 + lane) * PACK; k < in_features; k += STEP) {
            const auto w = *reinterpret_cast<const Pack<scalar, PACK>*>(from + k);
#pragma unroll
            for (int row = 0; row < BATCH; ++row) {
                const auto a = *reinterpret_cast<const Pack<scalar, PACK>*>(x + row * x_pitch + k);
#pragma unroll
                for (int i = 0; i < PACK; ++i) {
                    sums[row] += static_cast<float>(a.at[i]) * static_cast<float>(w.at[i]);  // (2)
                }
            }
        }
    }
#pragma unroll
    for (int row = 0; row < BATCH; ++row) {
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) {
            sums[row] += __shfl_xor_sync(0xffffffff, sums[row], distance);  // (3)
        }
        if (lane == 0) parts[warp][row] = sums[row];
    }
    __syncthreads();
    if (warp % SHARE > 0 || lane >= BATCH || column >= out_features) return;
    float sum = bias ? static_cast<float>(bias[column]) : 0.0f;
#pragma unroll
    for (int part = 0; part < SHARE; ++part) sum += parts[warp + part][lane];
    y[lane * y_pitch + column] = static_cast<scalar>(finish ? Epilogue::of(sum) : sum);
}
// [/few_rows]

// Block 128 CONSUMERS + 32: warpgroups that multiply 64 rows x WIDTH columns each, then a warp that copies. As many
// blocks as there are tiles of 64 CONSUMERS x WIDTH, which follow one another in groups of `group` rows of tiles. Dynamic
// shared memory: 1023 to align, STAGES boxes of x and of W, WIDTH biases in float, two barriers a stage. Boxes are 128
// bytes along k: x_map's 64 CONSUMERS rows, w_map's WIDTH, both rounded to TF32 where scalar is float. y_map's are 64
// rows of as many bytes; it is used where rows of y, y_pitch numbers apart, start at multiples of 16 bytes. y starts at
// one, all extents are at least 1, `bias` may be null, and Epilogue is left out unless they `finish`. SHARE blocks, a
// cluster, have one tile between them, each the products of some of the boxes along k; each adds up some of the tile's
// rows, from all of them. Or PAIR blocks, a cluster, have tiles one below the other and fetch W for each other, a part
// each; w_map's boxes are of WIDTH / PAIR rows then.
// [linear_relu]
template <typename scalar, int CONSUMERS, int WIDTH, int STAGES, int SHARE, int PAIR, typename Epilogue = Relu>
__global__ __launch_bounds__(128 * CONSUMERS + 32, 1) void linear_relu_tiles(
    const __grid_constant__ TensorMap x_map, const __grid_constant__ TensorMap w_map,
    const __grid_constant__ TensorMap y_map, const scalar* bias, scalar* y, Size batch, Size in_features,
    Size out_features, Size y_pitch, Size group, Size finish) {
    // [/linear_relu]
    // Numbers along k in a box, and in a product: 32 bytes, 2 in an operand's units.
    constexpr int BOX = ROW_BYTES / sizeof(scalar), INNER = BOX / 4, PACK = 16 / sizeof(scalar);
    constexpr int HEIGHT = 64 * CONSUMERS, THREADS = 128 * CONSUMERS;
    constexpr unsigned X_BYTES = HEIGHT * ROW_BYTES, STAGE_BYTES = X_BYTES + WIDTH * ROW_BYTES, BOX_BYTES = 64 * ROW_BYTES;
    const unsigned shared = shared_address(dynamic_shared), stages = (shared + 1023) / 1024 * 1024;
    const unsigned biases = stages + STAGES * STAGE_BYTES, full = biases + WIDTH * 4, empty = full + STAGES * 8;
    static_assert(SHARE == 1 || PAIR == 1, "blocks share a tile or what they fetch");
    const int block = SHARE * PAIR > 1 ? static_cast<int>(block_of_cluster()) : 0;
    const int down = static_cast<int>((batch + HEIGHT * PAIR - 1) / (HEIGHT * PAIR));
    const int across = static_cast<int>((out_features + WIDTH - 1) / WIDTH);
    const Tile tile = tile_at(blockIdx.x / (SHARE * PAIR), down, across, static_cast<int>(group));
    const int row = (tile.row * PAIR + block % PAIR) * HEIGHT, column = tile.column * WIDTH;
    const int boxes = static_cast<int>((in_features + BOX - 1) / BOX), lane = threadIdx.x % 32;
    const int share = SHARE > 1 ? block : 0;
    const int first = boxes * share / SHARE, last = boxes * (share + 1) / SHARE;
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int warp_of_block = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 32), 0);
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(full + stage * 8, 1);
            start_barrier(empty + stage * 8, PAIR * CONSUMERS * 4);  // every warp that multiplies what is fetched
        }
        publish_barriers();
    }
    if (threadIdx.x == THREADS) prefetch(x_map, w_map, y_map);
    synchronize_blocks<PAIR>();
    // [linear_relu]
    wait_for_kernel_before();  // (1)
    let_next_kernel_start();

    Turn<STAGES> turn;
    if (warp_of_block == THREADS / 32) {
        for (int step = first; lane == 0 && step < last; ++step, turn.advance()) {
            const unsigned stage = stages + turn.stage * STAGE_BYTES, arrived = full + turn.stage * 8;
            if (step - first >= STAGES) wait(empty + turn.stage * 8, turn.parity ^ 1);
            arrive_and_expect(arrived, STAGE_BYTES);
            if constexpr (PAIR == 1) {
                fetch_box(stage + X_BYTES, w_map, step * BOX, column, arrived);  // (2)
            } else {
                constexpr int PART = WIDTH / PAIR;
                fetch_box_for((1 << PAIR) - 1, stage + X_BYTES + block * PART * ROW_BYTES, w_map, step * BOX,
                              column + block * PART, arrived);
            }
            fetch_box(stage, x_map, step * BOX, row, arrived);
        }
        if (SHARE > 1) synchronize_cluster(), synchronize_cluster();
        if (PAIR > 1) synchronize_cluster();
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
    if (SHARE > 1) {  // a block may have no products
#pragma unroll
        for (float& sum : sums) sum = 0;
    }
    const auto multiply = [&](int step, int k) {
        const unsigned stage = stages + turn.stage * STAGE_BYTES;
        const unsigned long long a = operand(stage + warpgroup * 64 * ROW_BYTES), b = operand(stage + X_BYTES);
        multiply_tiles<scalar, WIDTH>(sums, a + 2 * k, b + 2 * k, step > first || k > 0);
    };
    const auto release = [&](int stage) {
        if constexpr (PAIR == 1) {
            if (lane == 0) arrive(empty + stage * 8);
        } else {
            if (lane < PAIR) arrive_at(empty + stage * 8, lane);
        }
    };
    const int whole = min(static_cast<int>(in_features / BOX), last);
    int previous = 0;
    // [linear_relu]
    for (int step = first; step < whole; ++step, turn.advance()) {
        wait(full + turn.stage * 8, turn.parity);
        settle(sums);
        open_products();
#pragma unroll
        for (int k = 0; k < 4; ++k) multiply(step, k);
        close_products();
        // The products before these are done while these go on: their stage can be filled again.
        wait_for_products<1>();  // (3)
        if (step > first) release(previous);
        previous = turn.stage;
    }
    // [/linear_relu]
    if (whole < last) {
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
    // All have told of biases, and all have multiplied: stages are free. No block leaves while another one tells it so.
    if (PAIR > 1) synchronize_cluster();
    synchronize_some<THREADS>();
    if constexpr (SHARE > 1) {
        // Rows are apart by 8 banks more than a multiple of all 32.
        constexpr int PITCH = WIDTH + 8, ROWS = HEIGHT / SHARE, FOURS = WIDTH / 4;
        static_assert(HEIGHT * PITCH * 4 <= STAGES * STAGE_BYTES, "more sums than stages hold");
        const int top = warpgroup * 64 + warp * 16 + lane / 4;
#pragma unroll
        for (int i = 0; i < WIDTH / 4; ++i) {
            const int at = (top + i % 2 * 8) * PITCH + i / 2 * 8 + lane % 4 * 2;
            store_pair(stages + at * 4, sums[2 * i], sums[2 * i + 1]);
        }
        synchronize_cluster();
        for (int i = threadIdx.x; i < ROWS * FOURS; i += THREADS) {
            const int own = share * ROWS + i / FOURS, at = i % FOURS * 4;
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
            for (int other = 0; other < SHARE; ++other) {
                const float4 part = load_of(stages + (own * PITCH + at) * 4, other);
                sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
            }
            const float found[4] = {sum.x, sum.y, sum.z, sum.w};
            const Size to = (row + own) * y_pitch + column + at;
            if (row + own >= batch) continue;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                const float y_n = found[n] + shift[at + n];
                if (column + at + n < out_features) y[to + n] = static_cast<scalar>(finish ? Epilogue::of(y_n) : y_n);
            }
        }
        synchronize_cluster();  // no block leaves while another one reads its sums
        return;
    }
    // [linear_relu]
    const auto finished = [&](int j, int half) {
        const float2 by = *reinterpret_cast<const float2*>(shift + 8 * j + lane % 4 * 2);
        const float low = sums[4 * j + 2 * half] + by.x, high = sums[4 * j + 2 * half + 1] + by.y;
        return make_float2(finish ? Epilogue::of(low) : low, finish ? Epilogue::of(high) : high);  // (4)
    };
    // [/linear_relu]
    // Of narrow tiles float fills whole sectors of memory from the registers, and sooner; what is odd is sooner stored so.
    const bool boxed = y_pitch % PACK == 0, pairs = sizeof(scalar) == 4 && y_pitch % 2 == 0 && out_features % 2 == 0;
    if (WIDTH <= 64 && (pairs || !boxed)) {
        const Size top = row + warpgroup * 64 + warp * 16 + lane / 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            if (top + 8 * half >= batch) continue;
            scalar* to = y + (top + 8 * half) * y_pitch + column;
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
        return;
    }
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
        // [/linear_relu]
        if (!boxed) {
            __syncwarp();
            const Size top = row + warpgroup * 64 + warp * 16, at = column + box * BOX;
            store_rows<BOX>(reinterpret_cast<const scalar*>(dynamic_shared + (to - shared)) + warp * 16 * BOX,
                            y + top * y_pitch + at, y_pitch, batch - top, out_features - at, lane);
            continue;
        }
        // [linear_relu]
        show_to_copies();
        synchronize_group(warpgroup);
        if (threadIdx.x % 128 > 0) continue;
        store_box(y_map, column + box * BOX, row + warpgroup * 64, to);  // (5)
        close_stores();
    }
    // [/linear_relu]
    if (boxed && threadIdx.x % 128 == 0) wait_for_stores();
}
