// Runs a CUDA kernel's source on a CPU, thread by thread, as far as the ladder's kernels need it: every thread is a
// fiber, a barrier or a collective instruction hands over to the next one. Asynchronous work is done as late as the
// rules allow, or early, by chance (copies when they are waited for, products then or at once, TMA's boxes some rounds
// later and in any order), and now and then a warp stands still for some rounds, so that a missing wait or a stage given
// back too early shows in the result. What cannot be, a deadlock for one, ends the launch with a message. The layouts of fragments, descriptors and swizzles are written
// down here a second time, from the PTX ISA.

#include <math.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#define __device__
#define __global__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)

// Nothing here may be met by a name of the process that loads it.
namespace {

struct __nv_bfloat16 {
    uint16_t bits;
    __nv_bfloat16() = default;
    explicit __nv_bfloat16(float value) {
        uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        bits = value != value ? 0x7FC0 : static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
    }
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
};
using __half = _Float16;

struct Index {
    unsigned x = 0, y = 0, z = 0;
};
struct alignas(8) float2 {
    float x, y;
};
float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(8) uint2 {
    unsigned x, y;
};
uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct alignas(16) float4 {
    float x, y, z, w;
};
float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
int min(int a, int b) { return a < b ? a : b; }
float __fdividef(float a, float b) { return a / b; }
double rsqrt(double x) { return 1 / sqrt(x); }
int max(int a, int b) { return a > b ? a : b; }
unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
float inverse_root(float x) { return 1 / sqrtf(x); }
double inverse_root(double x) { return 1 / sqrt(x); }
float cosine(float x) { return cosf(x); }
double cosine(double x) { return cos(x); }
float exact_sine(float x) { return float(sin(M_PI * double(x))); }
double exact_sine(double x) { return sin(M_PI * x); }
template <typename T> T __ldg(const T* from) { return *from; }

// ---- fibers

constexpr unsigned SHARED_BYTES = 240 * 1024, FIRST_SHARED = 1040;  // not aligned beyond what is promised

struct Meeting {
    int arrived = 0;
    long turn = 0;
};
struct Copy {
    void* to;
    const void* from;
    int valid, size;
};
struct Warp {
    Meeting meeting;
    unsigned still = 0;  // rounds that it is held back
    alignas(16) unsigned char slots[32][32];
};
struct Warpgroup {
    Meeting meeting;
    float* sums[128];
    const unsigned* held[128];
    std::vector<std::function<void()>> open;
    std::deque<std::vector<std::function<void()>>> closed;
};
struct Block {
    Index index;
    unsigned rank;
    Meeting meeting, some;  // of all threads, of some of them
    bool refused = false;
    std::vector<Warp> warps;
    std::vector<Warpgroup> warpgroups;
    std::unique_ptr<unsigned char[]> memory{new unsigned char[SHARED_BYTES]};
};
struct alignas(128) TensorMap {
    const unsigned char* matrix;
    long width, height, pitch;
    int rows, columns, size;  // of a box, and bytes of a number
    bool tf32;                // whether numbers are rounded on their way to shared memory
};
struct Box {
    unsigned shared, barrier;
    TensorMap map;
    int k, row;
    unsigned rounds;  // that it takes, about
};
struct Fiber {
    ucontext_t context;  // where it starts
    jmp_buf state;       // where it goes on
    bool started = false;
    std::unique_ptr<char[]> stack{new char[96 * 1024]};
    Block* block;
    Index thread;
    int number;
    bool done = false;
    unsigned heard = 0;  // of a count
    const long* watched = nullptr;  // until this number is another one it need not be asked
    long seen = 0;
    bool waits() const { return watched && *watched == seen; }
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> closed;
    std::vector<Box> open_stores, closed_stores;
    bool waited = false;           // for the kernel before
    std::vector<unsigned> unseen;  // what this thread wrote and no copy may read yet
};
struct Barrier {
    int arrivals = 0, pending = 0;
    long bytes = 0, phase = 0;
    void check() {
        if (pending == 0 && bytes == 0) pending = arrivals, ++phase;
    }
};

std::vector<std::unique_ptr<Block>> blocks;  // of the cluster that runs
std::vector<std::unique_ptr<Fiber>> fibers;
std::map<unsigned, Barrier> barriers;
std::vector<Box> boxes;
Meeting cluster_meeting;
Fiber* fiber;
jmp_buf scheduler;
long progress;
Index block_size, grid_size;
std::function<void()> body;

#define threadIdx (fiber->thread)
#define blockIdx (fiber->block->index)
#define blockDim block_size
#define gridDim grid_size
#define dynamic_shared (fiber->block->memory.get() + FIRST_SHARED)

const char* error;  // of the launch that runs; the first one counts
unsigned launches;
// By jumps, for swapcontext asks the system for the mask of signals each time.
void yield() {
    if (!_setjmp(fiber->state)) _longjmp(scheduler, 1);
}
[[gnu::noinline]] void go_on(Fiber* with) {
    fiber = with;
    if (_setjmp(scheduler)) return;
    if (std::exchange(with->started, true)) _longjmp(with->state, 1);
    setcontext(&with->context);
}
void yield_until_changed(const long& watched) {
    fiber->watched = &watched, fiber->seen = watched;
    yield();
    fiber->watched = nullptr;
}
// For a thread of the kernel: it gets no further.
[[noreturn]] inline void fail(const char* why) {
    if (!error) error = why;
    for (;;) yield();
}
unsigned drawn = 1;
unsigned chance() {  // Marsaglia's xorshift
    drawn ^= drawn << 13, drawn ^= drawn >> 17, drawn ^= drawn << 5;
    return drawn;
}
void meet(Meeting& meeting, int size) {
    if (++meeting.arrived == size)
        meeting.arrived = 0, ++meeting.turn, ++progress;
    else
        yield_until_changed(meeting.turn);
}
void start() {
    body();
    if (!fiber->open_stores.empty() || !fiber->closed_stores.empty()) fail("a block left before its stores were done");
    fiber->done = true;
    ++progress;
    yield();
}

void deliver(const Box& box);
void store(const Box& box);

// Most copies are quick, some are not.
unsigned patience() { return chance() % 4 ? 3 : 200; }
// Does some of the boxes, by chance.
void do_some(std::vector<Box>& waiting, void (*act)(const Box&)) {
    std::vector<Box> later;
    for (const Box& box : std::exchange(waiting, {})) {
        if (chance() % box.rounds)
            later.push_back(box);
        else
            act(box), ++progress;
    }
    waiting.insert(waiting.end(), later.begin(), later.end());
}

void run_cluster(unsigned first, unsigned cluster, int threads) {
    blocks.clear(), fibers.clear(), barriers.clear(), boxes.clear();
    cluster_meeting = {};
    for (unsigned rank = 0; rank < cluster; ++rank) {
        auto block = std::make_unique<Block>();
        block->index.x = first + rank, block->rank = rank;
        block->warps.resize((threads + 31) / 32), block->warpgroups.resize((threads + 127) / 128);
        std::memset(block->memory.get(), 0xFF, SHARED_BYTES);
        for (int number = 0; number < threads; ++number) {
            auto made = std::make_unique<Fiber>();
            made->block = block.get(), made->number = number;
            made->thread = {number % block_size.x, number / block_size.x % block_size.y, 0};
            getcontext(&made->context);
            made->context.uc_stack.ss_sp = made->stack.get(), made->context.uc_stack.ss_size = 96 * 1024;
            made->context.uc_link = nullptr;  // it never returns
            makecontext(&made->context, start, 0);
            fibers.push_back(std::move(made));
        }
        blocks.push_back(std::move(block));
    }
    for (int idle = 0, left = 1; left && !error;) {
        const long before = progress;
        for (auto& block : blocks) {
            for (Warp& warp : block->warps) {
                if (warp.still)
                    --warp.still;
                else if (chance() % 64 == 0)
                    warp.still = patience();
            }
        }
        left = 0;
        for (auto& each : fibers) {
            if (each->done) continue;
            ++left;
            if (each->waits() || each->block->warps[each->number / 32].still) continue;
            go_on(each.get());
        }
        do_some(boxes, deliver);
        for (auto& each : fibers) do_some(each->closed_stores, store);
        idle = progress == before && boxes.empty() ? idle + 1 : 0;
        if (idle > 1000 && !error) error = "deadlock";
    }
    if (!boxes.empty() && !error) error = "a block left before its copies arrived";
}

// What went wrong, or null.
template <typename Function> const char* launch(unsigned grid, unsigned cluster, Index block, Function kernel) {
    block_size = block, grid_size = {grid, 1, 1}, body = kernel, error = nullptr, ++launches;
    for (unsigned first = 0; first < grid && !error; first += cluster) {
        run_cluster(first, cluster, static_cast<int>(block.x * block.y));
    }
    return error;
}

void __syncwarp() { meet(fiber->block->warps[fiber->number / 32].meeting, 32); }
void __syncthreads() { meet(fiber->block->meeting, static_cast<int>(block_size.x * block_size.y)); }
int __syncthreads_and(int agreed) {
    bool& refused = fiber->block->refused;
    if (!agreed) refused = true;
    __syncthreads();
    const int all = !refused;
    __syncthreads();
    if (fiber->number == 0) refused = false;
    __syncthreads();
    return all;
}

// ---- a warp's instructions

Warp& warp() { return fiber->block->warps[fiber->number / 32]; }
int lane() { return fiber->number % 32; }

template <typename T> T from_lane(T value, int other) {
    std::memcpy(warp().slots[lane()], &value, sizeof value);
    meet(warp().meeting, 32);
    T found;
    std::memcpy(&found, warp().slots[other], sizeof found);
    meet(warp().meeting, 32);
    return found;
}
template <typename T> T __shfl_xor_sync(unsigned, T value, int distance) { return from_lane(value, lane() ^ distance); }
int __ffs(int bits) { return __builtin_ffs(bits); }
unsigned __reduce_and_sync(unsigned, unsigned mine) {
    for (int distance = 1; distance < 32; distance *= 2) mine &= from_lane(mine, lane() ^ distance);
    return mine;
}
unsigned __reduce_max_sync(unsigned, unsigned mine) {
    for (int distance = 1; distance < 32; distance *= 2) mine = std::max(mine, from_lane(mine, lane() ^ distance));
    return mine;
}
template <typename T> T __shfl_sync(unsigned, T value, int other) { return from_lane(value, other); }

unsigned shared_address(const void* pointer) {
    return fiber->block->rank << 24 |
           static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - fiber->block->memory.get());
}
unsigned char* at(unsigned address) {
    if ((address & 0xffffff) >= SHARED_BYTES) fail("an address beyond shared memory");
    return blocks[address >> 24]->memory.get() + (address & 0xffffff);
}

void copy_async(void* to, const void* from, int valid) {
    if (reinterpret_cast<uintptr_t>(from) % 16 || reinterpret_cast<uintptr_t>(to) % 16)
        fail("16 bytes that are unaligned");
    fiber->open.push_back({to, from, valid, 16});
}
void copy_async(unsigned to, const void* from, int valid) { copy_async(static_cast<void*>(at(to)), from, valid); }
void copy_number(unsigned to, const float* from, bool there) { fiber->open.push_back({at(to), from, 4 * there, 4}); }
void close_group() { fiber->closed.push_back(std::exchange(fiber->open, {})); }
template <int PENDING> void wait_for_groups() {
    while (fiber->closed.size() > PENDING) {
        for (const Copy& copy : fiber->closed.front()) {
            std::memset(copy.to, 0, copy.size);
            std::memcpy(copy.to, copy.from, copy.valid);
        }
        fiber->closed.pop_front();
    }
}

void load_matrices(unsigned (&to)[4], unsigned address) {
    std::memcpy(warp().slots[lane()], &address, sizeof address);
    meet(warp().meeting, 32);
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned row;
        std::memcpy(&row, warp().slots[8 * matrix + lane() / 4], sizeof row);
        if (row % 16) fail("a matrix row that is unaligned");
        std::memcpy(&to[matrix], at(row) + lane() % 4 * 4, 4);
    }
    meet(warp().meeting, 32);
}

template <typename scalar> void multiply_fragments(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    std::memcpy(warp().slots[lane()], a, 16);
    std::memcpy(warp().slots[lane()] + 16, b, 8);
    meet(warp().meeting, 32);
    const auto number = [&](int owner, int pair, int half) {
        scalar value;
        std::memcpy(&value, warp().slots[owner] + pair * 4 + half * 2, 2);
        return static_cast<float>(value);
    };
    for (int n = 0; n < 4; ++n) {
        const int row = lane() / 4 + n / 2 * 8, column = lane() % 4 * 2 + n % 2;
        for (int k = 0; k < 16; ++k) {
            sums[n] += number(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
                       number(column * 4 + k % 8 / 2, 4 + k / 8, k % 2);
        }
    }
    meet(warp().meeting, 32);
}

template <typename scalar> unsigned rounded(float low, float high) {
    const scalar pair[2] = {static_cast<scalar>(low), static_cast<scalar>(high)};
    unsigned both;
    std::memcpy(&both, pair, sizeof both);
    return both;
}
template <typename scalar> unsigned rectified(float low, float high) {
    return rounded<scalar>(low < 0 ? 0 : low, high < 0 ? 0 : high);
}

float from_bits(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}
template <typename scalar> float half_of(unsigned pair, int upper) {
    const uint16_t half = static_cast<uint16_t>(upper ? pair >> 16 : pair);
    scalar value;
    std::memcpy(&value, &half, 2);
    return static_cast<float>(value);
}
unsigned quadrupled(unsigned pair) {
    return rounded<__nv_bfloat16>(4 * half_of<__nv_bfloat16>(pair, 0), 4 * half_of<__nv_bfloat16>(pair, 1));
}
float __int_as_float(int bits) { return from_bits(static_cast<unsigned>(bits)); }
unsigned bits_of(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
unsigned __float_as_uint(float value) { return bits_of(value); }
float __uint_as_float(unsigned bits) { return from_bits(bits); }
// Fibers take turns only where they wait.
unsigned atomicMax(unsigned* at, unsigned value) { return std::exchange(*at, max(*at, value)); }
float about_tanh(float of) { return tanhf(of); }
float two_to(float power) { return exp2f(power); }
float __saturatef(float of) { return of > 0 ? of < 1 ? of : 1 : 0; }
float larger_or_nan(float a, float b) { return a != a || b != b ? NAN : a > b ? a : b; }

// ---- between blocks

void announce(unsigned* counter) {
    if (!fiber->waited) fail("a count while the kernel before may still use the counter");
    ++progress, ++*counter;
}
unsigned count_in(unsigned* counter) { return ++progress, (*counter)++; }
// Every other block hears of a count long after its neighbours; the others do in the next launch.
unsigned counted(const unsigned* counter) {
    yield();
    if (std::exchange(fiber->heard, *counter) != *counter) {
        for (int rounds = (fiber->block->rank + launches) % 2 ? 5000 : 0; rounds > 0; --rounds) ++progress, yield();
    }
    return *counter;
}
float fresh(const float* from) { return *from; }
float4 fresh(const float4* from) {
    if (reinterpret_cast<uintptr_t>(from) % 16) fail("16 bytes that are unaligned");
    return *from;
}
void prefetch_bytes(const void* from, unsigned bytes) {
    if (reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) fail("a prefetch that is unaligned");
    // Each of them must be there.
    for (unsigned i = 0; i < bytes; ++i) static_cast<void>(static_cast<const volatile char*>(from)[i]);
}

// ---- Hopper's instructions

unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
unsigned short_swizzled(unsigned address) { return address ^ (address >> 7 & 3) << 4; }

void start_barrier(unsigned barrier, unsigned arrivals) {
    const int count = static_cast<int>(arrivals);
    if (barrier % 8 || barriers.count(barrier)) fail("a barrier misplaced");
    barriers[barrier] = {count, count, 0, 0};
}
void publish_barriers() {}
Barrier& known(unsigned barrier) {
    if (!barriers.count(barrier)) fail("a barrier that was not started");
    return barriers[barrier];
}
void arrive(unsigned barrier) {
    Barrier& found = known(barrier);
    if (--found.pending < 0) fail("more arrivals than a barrier expects");
    found.check();
    ++progress;
}
void arrive_at(unsigned barrier, unsigned block) { arrive((barrier & 0xffffff) | block << 24); }
void arrive_and_expect(unsigned barrier, unsigned bytes) {
    known(barrier).bytes += bytes;
    arrive(barrier);
}
bool has_ended(unsigned barrier, unsigned parity) {
    const Barrier& found = known(barrier);
    if (found.phase % 2 != static_cast<long>(parity)) return true;
    yield_until_changed(found.phase);
    return false;
}

void prefetch(const TensorMap&) {}
void fetch_box_for(unsigned short mask, unsigned to, const TensorMap& map, int k, int row, unsigned barrier) {
    if (to % 128) fail("a box that is unaligned");
    if ((to & 0xffffff) + map.rows * map.columns * map.size > SHARED_BYTES) fail("a box beyond shared memory");
    known(barrier);
    for (unsigned rank = 0; rank < blocks.size(); ++rank) {
        const unsigned there = rank << 24, low = 0xffffff;
        if (mask >> rank & 1) boxes.push_back({(to & low) | there, (barrier & low) | there, map, k, row, patience()});
    }
}
void fetch_box(unsigned to, const TensorMap& map, int k, int row, unsigned barrier) {
    fetch_box_for(1 << fiber->block->rank, to, map, k, row, barrier);
}
// To the nearest of 11 bits, ties away from zero; what the copy engine does with ties is not told.
void round_to_tf32(unsigned char* number) {
    unsigned bits;
    std::memcpy(&bits, number, sizeof bits);
    if ((bits & 0x7FFFFFFF) < 0x7F800000) bits = (bits + 0x1000) & ~0x1FFFu;
    std::memcpy(number, &bits, sizeof bits);
}
void deliver(const Box& box) {
    const TensorMap& map = box.map;
    const unsigned pitch = map.columns * map.size;
    for (int row = 0; row < map.rows; ++row) {
        for (int k = 0; k < map.columns; ++k) {
            const unsigned place = box.shared + row * pitch + k * map.size;
            unsigned char* to = at(pitch == 64 ? short_swizzled(place) : swizzled(place));
            if (box.row + row < map.height && box.k + k < map.width) {
                std::memcpy(to, map.matrix + (box.row + row) * map.pitch + (box.k + k) * map.size, map.size);
                if (map.tf32) round_to_tf32(to);
            } else {
                std::memset(to, 0, map.size);
            }
        }
    }
    Barrier& barrier = barriers.at(box.barrier);
    barrier.bytes -= map.rows * pitch;
    barrier.check();
}

void store_matrices(unsigned address, unsigned a, unsigned b, unsigned c, unsigned d) {
    const unsigned held[4] = {a, b, c, d};
    std::memcpy(warp().slots[lane()], &address, sizeof address);
    meet(warp().meeting, 32);
    for (int matrix = 0; matrix < 4; ++matrix) {
        unsigned row;
        std::memcpy(&row, warp().slots[8 * matrix + lane() / 4], sizeof row);
        if (row % 16) fail("a matrix row that is unaligned");
        std::memcpy(at(row + lane() % 4 * 4), &held[matrix], 4);
        fiber->unseen.push_back(row + lane() % 4 * 4);
    }
    meet(warp().meeting, 32);
}
void store_pair(unsigned address, float a, float b) {
    if (address % 8) fail("a pair that is unaligned");
    const float both[2] = {a, b};
    std::memcpy(at(address), both, sizeof both);
    fiber->unseen.push_back(address);
}
float4 load_of(unsigned address, unsigned block) {
    if (address % 16) fail("four numbers that are unaligned");
    float4 found;
    std::memcpy(&found, at((address & 0xffffff) | block << 24), sizeof found);
    return found;
}
void store_transposed(unsigned address, unsigned a, unsigned b) {
    const unsigned held[2] = {a, b};
    std::memcpy(warp().slots[lane()], &address, sizeof address);
    meet(warp().meeting, 32);
    for (int matrix = 0; matrix < 2; ++matrix) {
        for (int n = 0; n < 2; ++n) {
            unsigned column;
            std::memcpy(&column, warp().slots[8 * matrix + lane() % 4 * 2 + n], sizeof column);
            if (column % 16) fail("a matrix column that is unaligned");
            const uint16_t half = held[matrix] >> 16 * n;
            std::memcpy(at(column + lane() / 4 * 2), &half, 2);
            fiber->unseen.push_back(column + lane() / 4 * 2);
        }
    }
    meet(warp().meeting, 32);
}
void show_to_copies() { fiber->unseen.clear(); }
void store_box(const TensorMap& map, int k, int row, unsigned from) {
    if (!fiber->waited) fail("a store while the kernel before may still read what it writes over");
    if (from % 1024) fail("a box that is unaligned");
    for (const auto& each : fibers) {
        for (unsigned written : each->unseen) {
            if (written - from < map.rows * 128u) fail("a store of what its copy may not see yet");
        }
    }
    fiber->open_stores.push_back({from, 0, map, k, row, patience()});
}
void store(const Box& box) {
    const TensorMap& map = box.map;
    for (int row = 0; row < map.rows && box.row + row < map.height; ++row) {
        for (int k = 0; k < map.columns && box.k + k < map.width; ++k) {
            unsigned char* to = const_cast<unsigned char*>(map.matrix) + (box.row + row) * map.pitch;
            std::memcpy(to + (box.k + k) * map.size, at(swizzled(box.shared + row * 128 + k * map.size)), map.size);
        }
    }
}
void close_stores() {
    for (const Box& box : std::exchange(fiber->open_stores, {})) fiber->closed_stores.push_back(box);
}
void wait_for_stores() {
    for (const Box& box : std::exchange(fiber->closed_stores, {})) store(box);
}

// The launch before this one has always ended.
void let_next_kernel_start() {}
void wait_for_kernel_before() { fiber->waited = true; }

unsigned block_of_cluster() { return fiber->block->rank; }
void synchronize_cluster() { meet(cluster_meeting, static_cast<int>(fibers.size())); }
template <int COUNT> void give_registers_back() {}
template <int COUNT> void take_registers() {}

Warpgroup& warpgroup_of() { return fiber->block->warpgroups[fiber->number / 128]; }
bool first_of_warpgroup() { return fiber->number % 128 == 0; }
void synchronize_group(int group) {
    if (group != fiber->number / 128) fail("another warpgroup's barrier");
    meet(warpgroup_of().meeting, 128);
}
template <int THREADS> void synchronize_some() { meet(fiber->block->some, THREADS); }
void open_products() {}
template <typename T, int N> void settle(T (&)[N]) {}

// What matrix units see of a number: of a float they drop the last 13 bits.
template <typename scalar> float multiplied(scalar number) {
    if constexpr (sizeof(scalar) == 4)
        return from_bits(bits_of(number) & ~0x1FFFu);
    else
        return static_cast<float>(number);
}
// Rows of 128 or 64 bytes in swizzles of as many.
template <typename scalar> float operand_number(unsigned rank, unsigned long long operand, int row, int k) {
    const unsigned start = (operand & 0x3fff) << 4, step = (operand >> 32 & 0x3fff) << 4;
    const bool brief = operand >> 62 == 2;
    const unsigned place = start + row / 8 * step + row % 8 * (brief ? 64 : 128) + k * sizeof(scalar);
    scalar value;
    std::memcpy(&value, at(rank << 24 | (brief ? short_swizzled(place) : swizzled(place))), sizeof value);
    return multiplied(value);
}

// One product of the warpgroup, done later; left(row, k) is a number of the left operand then.
template <typename scalar, int WIDTH, typename Left>
void multiply(float (&sums)[WIDTH / 2], Left left, unsigned long long b, int accumulate) {
    if (b >> 62 != 1 && b >> 62 != 2) fail("an operand without swizzle");
    Warpgroup& group = warpgroup_of();
    group.sums[fiber->number % 128] = sums;
    meet(group.meeting, 128);
    if (first_of_warpgroup()) {
        const std::vector<float*> to(group.sums, group.sums + 128);
        const unsigned rank = fiber->block->rank;
        group.open.push_back([=] {
            constexpr int DEPTH = 32 / sizeof(scalar);
            static float rows[64][DEPTH], columns[DEPTH][WIDTH];
            for (int k = 0; k < DEPTH; ++k) {
                for (int row = 0; row < 64; ++row) rows[row][k] = left(row, k);
                for (int row = 0; row < WIDTH; ++row) columns[k][row] = operand_number<scalar>(rank, b, row, k);
            }
            for (int row = 0; row < 64; ++row) {
                const auto sum = [&](int column) -> float& {
                    const int owner = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
                    return to[owner][column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
                };
                float totals[WIDTH];
                for (int column = 0; column < WIDTH; ++column) totals[column] = accumulate ? sum(column) : 0;
                for (int k = 0; k < DEPTH; ++k) {
                    for (int column = 0; column < WIDTH; ++column) totals[column] += rows[row][k] * columns[k][column];
                }
                for (int column = 0; column < WIDTH; ++column) sum(column) = totals[column];
            }
        });
    }
    meet(group.meeting, 128);
}
template <typename scalar, int WIDTH>
void multiply_tiles(float (&sums)[WIDTH / 2], unsigned long long a, unsigned long long b, int accumulate) {
    if (a >> 62 != b >> 62) fail("operands of two kinds");
    const unsigned rank = fiber->block->rank;
    const auto left = [=](int row, int k) { return operand_number<scalar>(rank, a, row, k); };
    multiply<scalar, WIDTH>(sums, left, b, accumulate);
}
template <typename scalar, int N>
void multiply_transposed(float (&sums)[N], unsigned long long a, unsigned long long b, int accumulate) {
    const unsigned rank = fiber->block->rank;
    const auto left = [=](int row, int k) { return operand_number<scalar>(rank, a, k, row); };
    multiply<scalar, 2 * N>(sums, left, b, accumulate);
}
// Pairs of the left operand are read when the product is done: they must not change before.
template <typename scalar, int WIDTH>
void multiply_held(float (&sums)[WIDTH / 2], const unsigned* a, unsigned long long b, int accumulate) {
    Warpgroup& group = warpgroup_of();
    group.held[fiber->number % 128] = a;
    meet(group.meeting, 128);
    const std::vector<const unsigned*> from(group.held, group.held + 128);
    const auto left = [=](int row, int k) {
        const int owner = row / 16 * 32 + row % 8 * 4 + k % 8 / 2, pair = row % 16 / 8 + k / 8 * 2;
        scalar value;
        std::memcpy(&value, reinterpret_cast<const unsigned char*>(from[owner] + pair) + k % 2 * 2, 2);
        return static_cast<float>(value);
    };
    multiply<scalar, WIDTH>(sums, left, b, accumulate);
}
void run_products(Warpgroup& group, size_t pending) {
    for (; group.closed.size() > pending; group.closed.pop_front()) {
        for (const auto& product : group.closed.front()) product();
    }
}
void close_products() {
    Warpgroup& group = warpgroup_of();
    meet(group.meeting, 128);
    if (first_of_warpgroup()) {
        group.closed.push_back(std::exchange(group.open, {}));
        if (chance() % 2) run_products(group, 0);
    }
    meet(group.meeting, 128);
}
template <int PENDING> void wait_for_products() {
    Warpgroup& group = warpgroup_of();
    meet(group.meeting, 128);
    if (first_of_warpgroup()) run_products(group, PENDING);
    meet(group.meeting, 128);
}

}  // namespace

// ---- what the test calls

// What is launched next meets the chances that a library just loaded has.
extern "C" void begin_anew() { drawn = 1, launches = 0; }

// Of a tensor map the test passes the address.
template <typename Type> Type value(void* at) { return *static_cast<Type*>(at); }
template <> TensorMap value(void* at) { return **static_cast<TensorMap**>(at); }

template <typename... Types, size_t... At>
void call(void (*kernel)(Types...), void** given, std::index_sequence<At...>) {
    kernel(value<Types>(given[At])...);
}

// As the driver launches a kernel: by the addresses of its arguments. So many blocks run at once.
template <typename... Types>
const char* launch(void (*kernel)(Types...), const unsigned* grid, const unsigned* block, unsigned cluster, void** given) {
    const char* wrong = nullptr;
    for (unsigned row = 0; row < grid[1] * grid[2] && !wrong; ++row)
        wrong = launch(grid[0], cluster, {block[0], block[1], block[2]}, [=] {
            fiber->block->index.y = row % grid[1], fiber->block->index.z = row / grid[1];
            call(kernel, given, std::index_sequence_for<Types...>());
        });
    return wrong;
}

extern "C" void fill_map(void* map, const void* matrix, long width, long height, long pitch, int rows, int columns,
                         int size, int tf32) {
    *static_cast<TensorMap*>(map) = {
        static_cast<const unsigned char*>(matrix), width, height, pitch, rows, columns, size, tf32 != 0};
}
