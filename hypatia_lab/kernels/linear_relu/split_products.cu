// float32's accuracy from float16's tensor cores, for Hopper: products of matrices whose rows were scaled and split into
// a large and a small term each (kernels/linear_relu/linear_relu_split.py), three products of terms for one of numbers. Matrix
// units cut off what they add, so they sum 32 large products at most, the small ones first, and these sums are added
// with rounding to nearest. A warpgroup has two of them, so that one is added to the total while the products of the
// other one run.
// Sources: Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores (2022), DeepSeek-V3 (2024; sums
// that leave the matrix units now and then), CUTLASS (one warpgroup copies, its registers given away).

#include "epilogue.cuh"
#include "hopper.cuh"

// ---- kernels

constexpr int CONSUMERS = 2, HEIGHT = 64 * CONSUMERS, WIDTH = 128, INNER = 32;
constexpr unsigned TERM_BYTES = HEIGHT * ROW_BYTES, STAGE_BYTES = 4 * TERM_BYTES;
static_assert(HEIGHT == WIDTH, "terms of both matrices come in boxes of one size");

// As linear_relu_split.py has them: a scaled row's exponent, and what is added to that of a row which is not finite.
constexpr int BOUND = 14, NOT_FINITE = 1024;

// float16's least magnitude.
constexpr float LEAST = 1.0f / (1 << 24);

__device__ inline float power_of_two(int exponent) { return __int_as_float((exponent + 127) << 23); }

// Rows of two matrices, the second's behind the first's, `inner` numbers each: exponents of their largest finite
// magnitudes, then both terms, in rows `pitch` numbers apart, which are multiples of 8. Block 128; WARPS warps have a
// row, and hold its first 1024 WARPS numbers while they look for the largest. PACKED: rows begin at multiples of 16
// bytes.
// [split_rows]
template <int WARPS, bool PACKED>
__global__ __launch_bounds__(128) void split_rows(const float* first, const float* second, __half* large, __half* small,
                                                  int* exponents, Size first_rows, Size rows, Size inner,
                                                  Size first_pitch, Size second_pitch, Size pitch) {
    constexpr int THREADS = 32 * WARPS, PACK = 4, PACKS = 8, INFINITE = 0x7F800000;
    wait_for_kernel_before();
    let_next_kernel_start();
    const int thread = threadIdx.x % THREADS;
    const Size row = static_cast<Size>(blockIdx.x) * (4 / WARPS) + threadIdx.x / THREADS;
    if (row >= rows) return;
    const float* from = row < first_rows ? first + row * first_pitch : second + (row - first_rows) * second_pitch;
    const auto pack_of = [&](int i) { return static_cast<Size>(i * THREADS + thread) * PACK; };
    const auto load = [&](float (&numbers)[PACK], Size k) {
        if (PACKED && k + PACK <= inner) {
            const float4 four = *reinterpret_cast<const float4*>(from + k);
            numbers[0] = four.x, numbers[1] = four.y, numbers[2] = four.z, numbers[3] = four.w;
        } else {
#pragma unroll
            for (int n = 0; n < PACK; ++n) numbers[n] = k + n < inner ? from[k + n] : 0.0f;
        }
    };
    unsigned largest = 0, peak = 0;
    const auto look_at = [&](const float (&numbers)[PACK]) {
#pragma unroll
        for (float number : numbers) {
            const unsigned magnitude = __float_as_uint(number) & 0x7FFFFFFF;
            peak = max(peak, magnitude);
            if (magnitude < INFINITE) largest = max(largest, magnitude);
        }
    };
    float held[PACKS][PACK];
#pragma unroll
    for (int i = 0; i < PACKS; ++i) load(held[i], pack_of(i));  // (1)
#pragma unroll
    for (int i = 0; i < PACKS; ++i) look_at(held[i]);
    for (Size k = pack_of(PACKS); k < inner; k += THREADS * PACK) {
        float numbers[PACK];
        load(numbers, k);
        look_at(numbers);
    }
    largest = __reduce_max_sync(0xffffffff, largest);  // (2)
    peak = __reduce_max_sync(0xffffffff, peak);
    if constexpr (WARPS > 1) {
        __shared__ unsigned found[2][WARPS];
        if (thread % 32 == 0) found[0][thread / 32] = largest, found[1][thread / 32] = peak;
        __syncthreads();
        for (int i = 0; i < WARPS; ++i) largest = max(largest, found[0][i]), peak = max(peak, found[1][i]);
    }
    // Subnormal rows count as those of the least exponent: they have no more digits than fit.
    const int exponent = max(static_cast<int>(largest >> 23), 1), up = BOUND + 127 - exponent;
    if (thread == 0) exponents[row] = exponent + (peak < INFINITE ? 0 : NOT_FINITE);
    const float half_up = power_of_two(up >> 1), rest_up = power_of_two(up - (up >> 1));
    const auto write = [&](const float (&numbers)[PACK], Size k) {
        if (k >= inner) return;
        unsigned larges[PACK / 2], smalls[PACK / 2];
#pragma unroll
        for (int i = 0; i < PACK; i += 2) {
            float scaled[2], kept[2];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                scaled[n] = numbers[i + n] * half_up * rest_up;
                // A number lost beside its row's largest keeps its sign, which counts where it meets an infinity.
                const bool lost = fabsf(scaled[n]) < LEAST && numbers[i + n] != 0;
                kept[n] = lost ? numbers[i + n] < 0 ? -LEAST : LEAST : scaled[n];
            }
            const unsigned pair = rounded<__half>(kept[0], kept[1]);  // (3)
            larges[i / 2] = pair;
            smalls[i / 2] = rounded<__half>(scaled[0] - half_of<__half>(pair, 0), scaled[1] - half_of<__half>(pair, 1));
        }
        *reinterpret_cast<uint2*>(large + row * pitch + k) = make_uint2(larges[0], larges[1]);
        *reinterpret_cast<uint2*>(small + row * pitch + k) = make_uint2(smalls[0], smalls[1]);
    };
#pragma unroll
    for (int i = 0; i < PACKS; ++i) write(held[i], pack_of(i));
    for (Size k = pack_of(PACKS); k < inner; k += THREADS * PACK) {
        float numbers[PACK];
        load(numbers, k);
        write(numbers, k);
    }
}
// [/split_rows]

// One product: out (height, width) = a (height, depth) times b (width, depth) transposed. Exponents are those that
// rows had before they were scaled. `bias` (width) may be null.
struct Product {
    const TensorMap *a_large, *a_small, *b_large, *b_small;
    const int *a_exponents, *b_exponents;
    const float* bias;
    float* out;
    int height, depth, width;

    // In tiles of `rows` by WIDTH.
    __device__ inline int down(int rows) const { return (height + rows - 1) / rows; }
    __device__ inline int across() const { return (width + WIDTH - 1) / WIDTH; }
};

// Whether all rows of a from `row` on and of b from `column` on that `rows` by WIDTH numbers of out take are finite; the
// same in all of a warp.
__device__ inline bool finite(const Product& product, int row, int rows, int column, int lane) {
    int found = 0;
    for (int i = lane; i < rows; i += 32) {
        if (row + i < product.height) found |= product.a_exponents[row + i];
    }
    for (int i = lane; i < WIDTH; i += 32) {
        if (column + i < product.width) found |= product.b_exponents[column + i];
    }
    return __reduce_and_sync(0xffffffff, (found & NOT_FINITE) == 0);
}

// What a column of a tile is scaled by and shifted by in the end.
struct Column {
    int exponent;
    float bias;
};

// Tiles of products, one after the other. Block 128 (CONSUMERS + 1); CLUSTER blocks, as the launch makes them, work on
// tiles one below the other and share b. `product_of` makes of a cluster's tile its product, and of its number that
// among this product's. Dynamic shared memory: 1024 to align, STAGES times four boxes, a tile's columns for each
// warpgroup that multiplies, two barriers a stage. Boxes of 64 along k: HEIGHT rows of a, WIDTH / CLUSTER of b.
template <int STAGES, int CLUSTER, typename Epilogue, typename Find>
__device__ inline void multiply_split(int tiles, int group, const Find& product_of) {
    constexpr int SHARE = WIDTH / CLUSTER, CLUSTER_ROWS = HEIGHT * CLUSTER;
    constexpr unsigned COLUMN_BYTES = WIDTH * sizeof(Column);
    const unsigned stages = (shared_address(dynamic_shared) + 1023) / 1024 * 1024;
    const unsigned columns = stages + STAGES * STAGE_BYTES, full = columns + CONSUMERS * COLUMN_BYTES;
    const unsigned empty = full + STAGES * 8;
    const int block = CLUSTER == 1 ? 0 : static_cast<int>(block_of_cluster());
    const int cluster = blockIdx.x / CLUSTER, clusters = gridDim.x / CLUSTER, lane = threadIdx.x % 32;
    // The same in all of a warp, which the compiler can't see from the quotient alone.
    const int warpgroup = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x / 128), 0);
    // To and fro: who had one of the first and longest tiles gets one of the last.
    const auto tile_of = [&](int round) {
        return round * clusters + (round % 2 ? clusters - 1 - cluster : cluster);
    };
    // The product of tile `index`, and where it begins.
    const auto place = [&](int index, int& row, int& column) {
        const Product product = product_of(index);
        const Tile tile = tile_at(index, product.down(CLUSTER_ROWS), product.across(), group);
        row = tile.row * CLUSTER_ROWS, column = tile.column * WIDTH;
        return product;
    };
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; ++stage) {
            start_barrier(full + stage * 8, 1);
            // A stage is free when every warp that multiplies, here and in the blocks that share b, has read it.
            start_barrier(empty + stage * 8, CLUSTER * CONSUMERS * 4);
        }
        publish_barriers();
    }
    synchronize_blocks<CLUSTER>();
    wait_for_kernel_before();
    let_next_kernel_start();

    Turn<STAGES> turn;
    if (warpgroup == 0) {
        Registers<CONSUMERS, 56, 224>::give_back();
        if (threadIdx.x < 32) {
            for (int round = 0; tile_of(round) < tiles; ++round) {
                int row, column;
                const Product product = place(tile_of(round), row, column);
                const int steps = (product.depth + DEPTH - 1) / DEPTH;
                const auto fetch = [&](int terms) {
                    const int top = row + block * HEIGHT, left = column + block * SHARE;
                    for (int step = 0; lane == 0 && step < steps; ++step, turn.advance()) {
                        const unsigned stage = stages + turn.stage * STAGE_BYTES, arrived = full + turn.stage * 8;
                        wait(empty + turn.stage * 8, turn.parity ^ 1);
                        arrive_and_expect(arrived, terms * 2 * TERM_BYTES);
                        for (int term = 0; term < terms; ++term) {
                            const TensorMap& a = *(term ? product.a_small : product.a_large);
                            const TensorMap& b = *(term ? product.b_small : product.b_large);
                            const unsigned to = stage + term * 2 * TERM_BYTES;
                            const unsigned share = to + TERM_BYTES + block * SHARE * ROW_BYTES;
                            fetch_box(to, a, step * DEPTH, top, arrived);
                            if constexpr (CLUSTER == 1)
                                fetch_box(share, b, step * DEPTH, left, arrived);
                            else
                                fetch_box_for((1 << CLUSTER) - 1, share, b, step * DEPTH, left, arrived);
                        }
                    }
                };
                fetch(2);
                if (!finite(product, row, CLUSTER_ROWS, column, lane)) fetch(1);
            }
        }
    } else {
        Registers<CONSUMERS, 56, 224>::take();
        const int consumer = warpgroup - 1, warp = threadIdx.x / 32 % 4;
        Column* own = reinterpret_cast<Column*>(dynamic_shared + (columns - shared_address(dynamic_shared))) +
                      consumer * WIDTH;
        const auto release = [&](int stage) {
            if constexpr (CLUSTER == 1) {
                if (lane == 0) arrive(empty + stage * 8);
            } else {
                if (lane < CLUSTER) arrive_at(empty + stage * 8, lane);
            }
        };
        // Numbers of each are at row lane / 4 + 8 half, column 8 j + 2 (lane % 4) + n of the warp's: [4 j + 2 half + n].
        float total[WIDTH / 2], first_half[WIDTH / 2], second_half[WIDTH / 2];
        const auto left = [&](int stage) {
            return operand(stages + stage * STAGE_BYTES + consumer * 64 * ROW_BYTES);
        };
        const auto right = [&](int stage) { return operand(stages + stage * STAGE_BYTES + TERM_BYTES); };
        // [split_products]
        // part = all three products of INNER numbers along k, half `half` of the stage whose turn it is.
        const auto multiply = [&](float (&part)[WIDTH / 2], int half) {
            constexpr unsigned long long SMALL = 2 * TERM_BYTES / 16;  // in an operand's units, as 16 numbers are 2
            const unsigned long long a = left(turn.stage) + half * INNER / 8, b = right(turn.stage) + half * INNER / 8;
            settle(part);
            open_products();
#pragma unroll
            for (int k = 0; k < INNER / 16; ++k) {
                multiply_tiles<__half, WIDTH>(part, a + SMALL + 2 * k, b + 2 * k, k > 0);  // (1)
                multiply_tiles<__half, WIDTH>(part, a + 2 * k, b + SMALL + 2 * k, 1);
            }
#pragma unroll
            for (int k = 0; k < INNER / 16; ++k) multiply_tiles<__half, WIDTH>(part, a + 2 * k, b + 2 * k, 1);
            close_products();
        };
        const auto add = [&](float (&part)[WIDTH / 2]) {
            settle(part);
#pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) total[i] += part[i];  // (2)
        };
        // [/split_products]
        for (int round = 0; tile_of(round) < tiles; ++round) {
            int row, column;
            const Product product = place(tile_of(round), row, column);
            const int top = row + block * HEIGHT + consumer * 64 + warp * 16 + lane / 4;
            const int steps = (product.depth + DEPTH - 1) / DEPTH, thread = threadIdx.x % 128;
            if (column + thread < product.width) {
                own[thread] = {product.b_exponents[column + thread],
                               product.bias ? product.bias[column + thread] : 0.0f};
            }
#pragma unroll
            for (int i = 0; i < WIDTH / 2; ++i) total[i] = 0;
            int exponents[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                exponents[half] = top + 8 * half < product.height ? product.a_exponents[top + 8 * half] : 0;
            }
            const bool all_finite = finite(product, row, CLUSTER_ROWS, column, lane);
            const bool brief = (product.depth + INNER - 1) / INNER % 2;  // the last stage has but its first half
            // [split_products]
            for (int step = brief; step < steps; ++step, turn.advance()) {
                wait(full + turn.stage * 8, turn.parity);
                multiply(first_half, 0);
                multiply(second_half, 1);
                wait_for_products<1>();
                add(first_half);  // (3)
                wait_for_products<0>();
                release(turn.stage);  // (4)
                add(second_half);
            }
            // [/split_products]
            if (brief) {
                wait(full + turn.stage * 8, turn.parity);
                multiply(first_half, 0);
                wait_for_products<0>();
                release(turn.stage);
                turn.advance();
                add(first_half);
            }
            synchronize_group(warpgroup);  // all have told of their columns
            if (!all_finite) {
                // Small terms times infinity are infinities of any sign; large terms alone give what IEEE arithmetic
                // gives.
                for (int step = 0; step < steps; ++step, turn.advance()) {
                    wait(full + turn.stage * 8, turn.parity);
                    settle(first_half);
                    open_products();
#pragma unroll
                    for (int k = 0; k < DEPTH / 16; ++k) {
                        multiply_tiles<__half, WIDTH>(first_half, left(turn.stage) + 2 * k, right(turn.stage) + 2 * k,
                                                      step + k > 0);
                    }
                    close_products();
                    wait_for_products<0>();
                    settle(first_half);
                    release(turn.stage);
                }
#pragma unroll
                for (int i = 0; i < WIDTH / 2; ++i) {
                    const int beside = own[i / 4 * 8 + lane % 4 * 2 + i % 2].exponent;
                    if ((exponents[i / 2 % 2] | beside) & NOT_FINITE) total[i] = first_half[i];
                }
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const auto finished = [&](int j, int n) {
                    const Column& by = own[8 * j + lane % 4 * 2 + n];
                    // The factor itself may be out of range, its two halves are not.
                    int down = (exponents[half] & (NOT_FINITE - 1)) + (by.exponent & (NOT_FINITE - 1));
                    down = min(max(down - 2 * (BOUND + 127), -252), 252);
                    const float scaled = total[4 * j + 2 * half + n] * power_of_two(down >> 1);
                    const float found = scaled * power_of_two(down - (down >> 1)) + by.bias;
                    return Epilogue::of(found);
                };
                if (top + 8 * half >= product.height) continue;
                float* to = product.out + static_cast<Size>(top + 8 * half) * product.width + column;
#pragma unroll
                for (int j = 0; j < WIDTH / 8; ++j) {
                    const int at = 8 * j + lane % 4 * 2;
                    const float2 both = {finished(j, 0), finished(j, 1)};
                    if (product.width % 2 == 0) {
                        if (column + at < product.width) *reinterpret_cast<float2*>(to + at) = both;
                    } else {
                        if (column + at < product.width) to[at] = both.x;
                        if (column + at + 1 < product.width) to[at + 1] = both.y;
                    }
                }
            }
            synchronize_group(warpgroup);  // all have read of their columns
        }
    }
    // A block that has left can neither be written to nor arrived at.
    if constexpr (CLUSTER > 1) synchronize_cluster();
}

// y (batch, out) = Epilogue of x (batch, in) times W (out, in) transposed + bias, of x and W in two terms each. Any grid
// of whole clusters; y starts at a multiple of 8 bytes; all extents are at least 1.
// [split_products]
template <int STAGES, int CLUSTER, typename Epilogue = Relu>
__global__ __launch_bounds__(128 * (CONSUMERS + 1), 1) void linear_relu_split(
    const __grid_constant__ TensorMap x_large, const __grid_constant__ TensorMap x_small,
    const __grid_constant__ TensorMap w_large, const __grid_constant__ TensorMap w_small, const int* x_exponents,
    const int* w_exponents, const float* bias, float* y, Size batch, Size in_features, Size out_features, Size group) {
    if (threadIdx.x == 0) prefetch(x_large, x_small, w_large, w_small);
    const Product product = {&x_large, &x_small, &w_large, &w_small, x_exponents, w_exponents, bias, y,
                             static_cast<int>(batch), static_cast<int>(in_features), static_cast<int>(out_features)};
    const int tiles = product.down(HEIGHT * CLUSTER) * product.across();
    multiply_split<STAGES, CLUSTER, Epilogue>(tiles, static_cast<int>(group), [&](int&) { return product; });
}

// Two products without bias or ReLU in one launch: first come the tiles of the first one, whose sums are the longer.
template <int STAGES, int CLUSTER>
__global__ __launch_bounds__(128 * (CONSUMERS + 1), 1) void two_products_split(
    const __grid_constant__ TensorMap a_large, const __grid_constant__ TensorMap a_small,
    const __grid_constant__ TensorMap b_large, const __grid_constant__ TensorMap b_small,
    const __grid_constant__ TensorMap c_large, const __grid_constant__ TensorMap c_small,
    const __grid_constant__ TensorMap d_large, const __grid_constant__ TensorMap d_small, const int* a_exponents,
    const int* b_exponents, const int* c_exponents, const int* d_exponents, float* ab, float* cd, Size ab_height,
    Size ab_depth, Size ab_width, Size cd_height, Size cd_depth, Size cd_width, Size group) {
    if (threadIdx.x == 0) prefetch(a_large, a_small, b_large, b_small, c_large, c_small, d_large, d_small);
    const Product first = {&a_large, &a_small, &b_large, &b_small, a_exponents, b_exponents, nullptr, ab,
                           static_cast<int>(ab_height), static_cast<int>(ab_depth), static_cast<int>(ab_width)};
    const Product second = {&c_large, &c_small, &d_large, &d_small, c_exponents, d_exponents, nullptr, cd,
                            static_cast<int>(cd_height), static_cast<int>(cd_depth), static_cast<int>(cd_width)};
    const int firsts = first.down(HEIGHT * CLUSTER) * first.across();
    const int tiles = firsts + second.down(HEIGHT * CLUSTER) * second.across();
    multiply_split<STAGES, CLUSTER, Same>(tiles, static_cast<int>(group), [&](int& index) {
        if (index < firsts) return first;
        index -= firsts;
        return second;
    });
}
// [/split_products]
