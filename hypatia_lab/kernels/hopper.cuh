// What the kernels for Hopper share: barriers in shared memory, boxes fetched by the copy engine (TMA), and products of
// a warpgroup (wgmma). Layouts of descriptors and swizzles: PTX ISA, sections on wgmma and tensor copies.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

// ---- instructions

// What cuTensorMapEncodeTiled makes of a matrix and a box (loader.tensor_map).
struct alignas(128) TensorMap {
    unsigned char opaque[128];
};

__device__ inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Two sums rounded to scalar, side by side.
template <typename scalar> __device__ inline unsigned rounded(float low, float high);
template <> __device__ inline unsigned rounded<__nv_bfloat16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <> __device__ inline unsigned rounded<__half>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// Two sums rounded to scalar, negative ones to 0, side by side; a NaN stays a NaN, as in torch.relu.
template <typename scalar> __device__ inline unsigned rectified(float low, float high);
template <> __device__ inline unsigned rectified<__nv_bfloat16>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
template <> __device__ inline unsigned rectified<__half>(float low, float high) {
    unsigned pair;
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// The lower (0) or upper (1) number of a pair as float.
template <typename scalar> __device__ inline float half_of(unsigned pair, int upper);
template <> __device__ inline float half_of<__nv_bfloat16>(unsigned pair, int upper) {
    return __uint_as_float(upper ? pair & 0xffff0000 : pair << 16);
}
template <> __device__ inline float half_of<__half>(unsigned pair, int upper) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(upper ? pair >> 16 : pair)));
}
__device__ inline float two_to(float power) {
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(power));
    return found;
}

__device__ inline float about_tanh(float of) {
    float found;
    asm("tanh.approx.f32 %0, %1;" : "=f"(found) : "f"(of));
    return found;
}

// The kernel after this one on the stream may be started from here on; it waits, as this one does, for the end of the
// one before it.
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Blocks count themselves: what a block wrote before it counts is seen by those that have seen the count.
__device__ inline void announce(unsigned* counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
__device__ inline unsigned count_in(unsigned* counter) {
    unsigned before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}
__device__ inline unsigned counted(const unsigned* counter) {
    unsigned found;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
    return found;
}
// Not through the first-level cache, which does not see what other blocks store.
__device__ inline float fresh(const float* from) { return __ldcg(from); }
__device__ inline float4 fresh(const float4* from) { return __ldcg(from); }

// So many bytes, from a multiple of 16 on and as many as one, to the second-level cache.
__device__ inline void prefetch_bytes(const void* from, unsigned bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// 16 bytes from device to shared memory, of which those past `valid` (0 or 16) are zero; waited for by groups.
__device__ inline void copy_async(unsigned to, const void* from, int valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid) : "memory");
}
__device__ inline void close_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> __device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
// What this thread has written to shared memory is seen by TMA's copies and by products that are asked
// for afterwards.
__device__ inline void show_to_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Waits for all 128 threads of warpgroup `group`; barrier 0 is __syncthreads'.
__device__ inline void synchronize_group(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// Waits for THREADS threads of a block, always the same.
template <int THREADS> __device__ inline void synchronize_some() {
    asm volatile("bar.sync 15, %0;" ::"n"(THREADS) : "memory");
}

// A barrier's phase ends when `arrivals` threads have arrived and all the bytes expected in it have come.
__device__ inline void start_barrier(unsigned barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// For readers that are done: it publishes nothing to the other block. A release to the cluster would, by a fence of all of
// the GPU's memory, which costs more than the step of products that it follows.
__device__ inline void arrive_at(unsigned barrier, unsigned block) {
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(block)
        : "memory");
}
__device__ inline void arrive_and_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Whether the phase of this parity has ended; waits a moment before it says no.
__device__ inline bool has_ended(unsigned barrier, unsigned parity) {
    unsigned ended;
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n}"
        : "=r"(ended)
        : "r"(barrier), "r"(parity)
        : "memory");
    return ended;
}

// The map's box at (row, k) to shared memory, zeros beyond the matrix; its bytes count at the barrier.
__device__ inline void fetch_box(unsigned to, const TensorMap& map, int k, int row, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(k), "r"(row), "r"(barrier)
        : "memory");
}
// The same to every block of the cluster whose bit is set, at the same place and barrier in each.
__device__ inline void fetch_box_for(unsigned short blocks, unsigned to, const TensorMap& map, int k, int row,
                                     unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(k), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
}
// The map's box at (row, k) from shared memory, as far as it lies within the matrix; waited for by groups.
__device__ inline void store_box(const TensorMap& map, int k, int row, unsigned from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(k),
                 "r"(row), "r"(from)
                 : "memory");
}
__device__ inline void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until shared memory has been read by all stores of this thread.
__device__ inline void wait_for_stores() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ inline void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline unsigned block_of_cluster() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

template <int COUNT> __device__ inline void give_registers_back() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ inline void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

__device__ inline void open_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void close_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ inline void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// The compiler doesn't know that products change sums until they are waited for: no use of sums moves across this.
template <int N> __device__ inline void settle(float (&sums)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Neither does a use of other registers.
template <int N> __device__ inline void settle(unsigned (&pairs)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(pairs[i])::"memory");
}

// 64 x WIDTH sums = (accumulate ? sums : 0) + a (64 x 16) times b (WIDTH x 16) transposed, by a warpgroup. Of float,
// whose last 13 bits are not looked at, a is 64 x 8 and b WIDTH x 8.
template <typename scalar, int WIDTH>
__device__ inline void multiply_tiles(float (&sums)[WIDTH / 2], unsigned long long a, unsigned long long b,
                                      int accumulate);
#define FIRST_8_SLOTS "%0, %1, %2, %3, %4, %5, %6, %7"
#define FIRST_16_SLOTS FIRST_8_SLOTS ", %8, %9, %10, %11, %12, %13, %14, %15"
#define SLOTS_0    \
    FIRST_16_SLOTS \
    ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SLOTS_1                                                                        \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SLOTS_2                                                                        \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SLOTS_3                                                                                    \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SUMS_8(n)                                                                                                 \
    "+f"(sums[n]), "+f"(sums[n + 1]), "+f"(sums[n + 2]), "+f"(sums[n + 3]), "+f"(sums[n + 4]), "+f"(sums[n + 5]), \
        "+f"(sums[n + 6]), "+f"(sums[n + 7])
#define SUMS_16(n) SUMS_8(n), SUMS_8(n + 8)
#define SUMS_32(n) SUMS_16(n), SUMS_16(n + 16)
#define MULTIPLY_TILES(scalar, type, width, slots, a_slot, b_slot, flag_slot, ...)                               \
    template <>                                                                                                  \
    __device__ inline void multiply_tiles<scalar, width>(float (&sums)[width / 2], unsigned long long a,         \
                                                         unsigned long long b, int accumulate) {                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag_slot                                               \
                     ", 0;\n"                                                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type " {" slots "}, " a_slot \
                     ", " b_slot ", p, 1, 1, 0, 0;\n}"                                                           \
                     : __VA_ARGS__                                                                               \
                     : "l"(a), "l"(b), "r"(accumulate));                                                         \
    }
#define MULTIPLY_TILES_OF(scalar, type)                                                                       \
    MULTIPLY_TILES(scalar, type, 16, FIRST_8_SLOTS, "%8", "%9", "%10", SUMS_8(0))                             \
    MULTIPLY_TILES(scalar, type, 32, FIRST_16_SLOTS, "%16", "%17", "%18", SUMS_16(0))                         \
    MULTIPLY_TILES(scalar, type, 64, SLOTS_0, "%32", "%33", "%34", SUMS_32(0))                                \
    MULTIPLY_TILES(scalar, type, 128, SLOTS_0 ", " SLOTS_1, "%64", "%65", "%66", SUMS_32(0), SUMS_32(32))     \
    MULTIPLY_TILES(scalar, type, 192, SLOTS_0 ", " SLOTS_1 ", " SLOTS_2, "%96", "%97", "%98", SUMS_32(0),     \
                   SUMS_32(32), SUMS_32(64))                                                                  \
    MULTIPLY_TILES(scalar, type, 256, SLOTS_0 ", " SLOTS_1 ", " SLOTS_2 ", " SLOTS_3, "%128", "%129", "%130", \
                   SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96))
MULTIPLY_TILES_OF(__nv_bfloat16, "bf16")
MULTIPLY_TILES_OF(__half, "f16")
#define MULTIPLY_TF32(width, slots, a_slot, b_slot, flag_slot, ...)                                              \
    template <>                                                                                                  \
    __device__ inline void multiply_tiles<float, width>(float (&sums)[width / 2], unsigned long long a,          \
                                                        unsigned long long b, int accumulate) {                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag_slot                                               \
                     ", 0;\n"                                                                                    \
                     "wgmma.mma_async.sync.aligned.m64n" #width "k8.f32.tf32.tf32 {" slots "}, " a_slot          \
                     ", " b_slot ", p, 1, 1;\n}"                                                                 \
                     : __VA_ARGS__                                                                               \
                     : "l"(a), "l"(b), "r"(accumulate));                                                         \
    }
MULTIPLY_TF32(64, SLOTS_0, "%32", "%33", "%34", SUMS_32(0))
MULTIPLY_TF32(128, SLOTS_0 ", " SLOTS_1, "%64", "%65", "%66", SUMS_32(0), SUMS_32(32))
MULTIPLY_TF32(192, SLOTS_0 ", " SLOTS_1 ", " SLOTS_2, "%96", "%97", "%98", SUMS_32(0), SUMS_32(32), SUMS_32(64))
MULTIPLY_TF32(256, SLOTS_0 ", " SLOTS_1 ", " SLOTS_2 ", " SLOTS_3, "%128", "%129", "%130", SUMS_32(0), SUMS_32(32),
              SUMS_32(64), SUMS_32(96))

// 64 x WIDTH sums = (accumulate ? sums : 0) + a (64 x 16, four pairs a thread) times b (WIDTH x 16) transposed, by a
// warpgroup.
template <typename scalar, int WIDTH>
__device__ inline void multiply_held(float (&sums)[WIDTH / 2], const unsigned* a, unsigned long long b,
                                     int accumulate);
#define MULTIPLY_HELD(scalar, type, width, slots, a_slots, b_slot, flag_slot, ...)                                 \
    template <>                                                                                                    \
    __device__ inline void multiply_held<scalar, width>(float (&sums)[width / 2], const unsigned* a,               \
                                                        unsigned long long b, int accumulate) {                    \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " flag_slot                                                 \
                     ", 0;\n"                                                                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #width "k16.f32." type "." type " {" slots "}, {" a_slots \
                     "}, " b_slot ", p, 1, 1, 0;\n}"                                                               \
                     : __VA_ARGS__                                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                       \
    }
#define MULTIPLY_HELD_OF(scalar, type)                                                                     \
    MULTIPLY_HELD(scalar, type, 16, FIRST_8_SLOTS, "%8, %9, %10, %11", "%12", "%13", SUMS_8(0))            \
    MULTIPLY_HELD(scalar, type, 32, FIRST_16_SLOTS, "%16, %17, %18, %19", "%20", "%21", SUMS_16(0))        \
    MULTIPLY_HELD(scalar, type, 64, SLOTS_0, "%32, %33, %34, %35", "%36", "%37", SUMS_32(0))               \
    MULTIPLY_HELD(scalar, type, 128, SLOTS_0 ", " SLOTS_1, "%64, %65, %66, %67", "%68", "%69", SUMS_32(0), \
                  SUMS_32(32))                                                                             \
    MULTIPLY_HELD(scalar, type, 256, SLOTS_0 ", " SLOTS_1 ", " SLOTS_2 ", " SLOTS_3,                       \
                  "%128, %129, %130, %131", "%132", "%133", SUMS_32(0), SUMS_32(32), SUMS_32(64), SUMS_32(96))
MULTIPLY_HELD_OF(__nv_bfloat16, "bf16")
MULTIPLY_HELD_OF(__half, "f16")

// Four 8 x 8 matrices of 16-bit numbers to shared memory; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}

// To shared memory, side by side.
__device__ inline void store_pair(unsigned address, float a, float b) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}

// Four numbers of the shared memory of another block of the cluster, at the place that this block calls `address`.
__device__ inline float4 load_of(unsigned address, unsigned block) {
    float4 found;
    asm volatile(
        "{\n.reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [remote];\n}"
        : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
        : "r"(address), "r"(block)
        : "memory");
    return found;
}

// ---- built on them

// Registers a thread in a block, alone on its multiprocessor, of one warpgroup that copies and CONSUMERS that multiply.
// Who takes more than the block was launched with and others have given back would wait for ever.
template <int CONSUMERS, int COPYING, int MULTIPLYING> struct Registers {
    static constexpr int LAUNCHED = 65536 / (128 * (CONSUMERS + 1)) / 8 * 8;
    static_assert(COPYING + CONSUMERS * MULTIPLYING <= (CONSUMERS + 1) * LAUNCHED, "more registers than there are");
    __device__ static void give_back() { give_registers_back<COPYING>(); }
    __device__ static void take() { take_registers<MULTIPLYING>(); }
};

using Size = long long;

// 64 numbers along k a stage: rows of 128 bytes in TMA's and wgmma's 128-byte swizzle, which keeps the 16 bytes that
// are number `pack` of a row at pack ^ (row % 8).
constexpr int DEPTH = 64, ROW_BYTES = 128;

extern __shared__ __align__(1024) unsigned char dynamic_shared[];

// How wgmma finds an operand of 64-number rows in 128-byte swizzle: its address and the 1024 bytes from one group of
// eight rows to the next, both in units of 16 bytes, and the kind of swizzle. The field for a step along k is not used.
__device__ inline unsigned long long operand(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The same of rows of 64 bytes in 64-byte swizzle, which keeps pack p of row r at p ^ (r / 2 % 4).
__device__ inline unsigned long long short_operand(unsigned address) {
    return (address & 0x3ffff) >> 4 | 1ull << 16 | 32ull << 32 | 2ull << 62;
}

// Numbers that are loaded or stored at once.
template <typename scalar, int COUNT> struct alignas(COUNT * sizeof(scalar)) Pack {
    scalar at[COUNT];
};

// The share of a normal distribution beyond v (0 to 6) deviations: decay = exp(-v^2 / 2) times a polynomial that is
// fitted so that v times it is right to 4.1e-6.
__device__ inline float normal_tail(float v, float decay) {
    float sum = fmaf(v, -0.00011161887f, 0.001714044f);
    sum = fmaf(v, sum, -0.011442426f);
    sum = fmaf(v, sum, 0.044972066f);
    sum = fmaf(v, sum, -0.12078666f);
    sum = fmaf(v, sum, 0.24556245f);
    sum = fmaf(v, sum, -0.39832327f);
    return fmaf(v, sum, 0.5f) * decay;
}

__device__ inline void wait(unsigned barrier, unsigned parity) {
    while (!has_ended(barrier, parity)) {
    }
}

// A warp's 16 rows of sums, as wgmma leaves them, to shared memory at `to`, rounded: rows of 64 columns in 128-byte
// swizzle, every further 64 columns BOX_BYTES on.
template <typename scalar, unsigned BOX_BYTES, int SUMS>
__device__ inline void leave_rows(unsigned to, const float (&sums)[SUMS], int lane) {
    // Matrix lane / 8 of the four that are stored at once: rows from 8 (matrix % 2) on, pack matrix / 2 of two.
    const unsigned row = to + lane % 16 * ROW_BYTES;
#pragma unroll
    for (int k = 0; k < SUMS / 8; ++k) {
        const int pack = k % 4 * 2 + lane / 16;
        const float* at = sums + 8 * k;
        store_matrices(row + k / 4 * BOX_BYTES + (pack ^ lane % 8) * 16, rounded<scalar>(at[0], at[1]),
                       rounded<scalar>(at[2], at[3]), rounded<scalar>(at[4], at[5]), rounded<scalar>(at[6], at[7]));
    }
}

// A warp's 16 rows of a box of 128 bytes a row: 64 columns in 16 bits, or 32 in float.
template <typename scalar, int SUMS>
__device__ inline void leave_box(unsigned to, const float (&sums)[SUMS], int lane) {
    static_assert(SUMS == 64 / sizeof(scalar), "what a box has for a thread");
    if constexpr (sizeof(scalar) == 2) {
        leave_rows<scalar, 0>(to, sums, lane);
    } else {
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) {
            const int row = lane / 4 + 4 * (i & 2), pack = i / 4 * 2 + lane % 4 / 2;
            store_pair(to + row * ROW_BYTES + (pack ^ row % 8) * 16 + lane % 2 * 8, sums[i], sums[i + 1]);
        }
    }
}

template <typename... More> __device__ inline void prefetch(const TensorMap& first, const More&... more) {
    prefetch(first);
    (prefetch(more), ...);
}

// Waits for all threads of the cluster's blocks.
template <int CLUSTER> __device__ inline void synchronize_blocks() {
    if constexpr (CLUSTER == 1)
        __syncthreads();
    else
        synchronize_cluster();
}

struct Tile {
    int row, column;
};

// Tile `index` of `down` x `across`, in groups of `group` rows of tiles, column by column within a group: blocks that
// run at the same time then share rows of both operands in the second-level cache.
__device__ inline Tile tile_at(int index, int down, int across, int group) {
    const int first = index / (group * across) * group, within = index % (group * across);
    const int height = down - first < group ? down - first : group;
    return {first + within % height, within / height};
}

// Which of the stages is next, and how many times round they have gone (its parity).
template <int STAGES> struct Turn {
    int stage = 0;
    unsigned parity = 0;
    __device__ inline void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
