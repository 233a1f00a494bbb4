// The whole diffraction image in one launch. Each warp computes a tile of the detector; gridDim.z counts crystals of a
// batch. At the tile's centre h, k, l are worked out in double and lose their integer part; every pixel then adds the
// exact difference to the centre. With R^2 = R0^2 (1 + w), s = R0/R and t = s - 1 that is
//     a.p/R - a.p0/R0 = (a.p0 t + a.(p - p0) s) / R0,
// so float keeps the digits that count. All numbers of the scene are read from device memory: nothing waits for the
// host. The lanes of a warp share the work at the centres, each with a vector of its own, by the same instructions:
// double is dear. Of a single step one warp does it for its block.

// ---- instructions
__device__ inline float inverse_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ inline double inverse_root(double x) { return rsqrt(x); }
// [cosine]
__device__ inline float cosine(float x) { return __cosf(x); }  // (1)
__device__ inline double cosine(double x) { return cos(x); }  // (2)
// [/cosine]
__device__ inline float exact_sine(float x) { return sinpif(x); }
__device__ inline double exact_sine(double x) { return sinpi(x); }
// A launch may begin before the one ahead of it has ended, where there is such a thing.
#if __CUDA_ARCH__ >= 900
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ inline void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
#else
__device__ inline void let_next_kernel_start() {}
__device__ inline void wait_for_kernel_before() {}
#endif

// ---- kernels
constexpr int TILE_FAST = 64, ACROSS = 4, WARPS = 4, CHUNK = 8;
constexpr int LANES = TILE_FAST / ACROSS, ROWS = 32 / LANES;
constexpr double PI = 3.14159265358979323846;

// What is seen from the centre of a step: the cell's edges, the source, the direction across source and polarization,
// the centre itself, a pixel's step along fast and along slow.
enum Vector { EDGES = 0, SOURCE = 3, ACROSS_BEAM, CENTRE, FAST, SLOW, VECTORS };

// A vector's products with the centre's direction and a pixel's steps, over the centre's distance. Of a cell's edge they
// are angles, how it moves; `start` is 2 pi times h without its integer part. Of the others `start` is their square.
template <typename T> struct alignas(4 * sizeof(T)) Seen { T start, by_turn, by_fast, by_slow; };

// One source seen from the centre: w, and polarization times (R/R0)^2, are quadratic in the pixel's offset.
template <typename T> struct alignas(4 * sizeof(T)) View {
    T fast, slow, fast_fast, slow_slow;
    T here, view_fast, view_slow, view_fast_fast, view_slow_slow, view_fast_slow, unused[2];
};

template <typename T, int STEPS> struct Tile {
    Seen<T> seen[STEPS][VECTORS];
    View<T> views[STEPS];
    int whole[STEPS][3];
};

__device__ inline double dot(const double* a, const double* b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

__device__ constexpr double choose(int n, int k) {
    double c = 1;
    for (int i = 1; i <= k; ++i) c = c * (n - k + i) / i;
    return c;
}

// Coefficient of q^j in sin(Nx)/sin(x) (odd N) or sin(Nx)/(sin(x) cos(x)) (even N), with q = sin^2(x).
__device__ constexpr double in_sine(int n, int j) {
    const int m = n / 2;
    double power = n % 2 ? 1 : 2;
    for (int i = 0; i < j; ++i) power *= -4;
    return n % 2 ? power * n / (2 * j + 1) * choose(m + j, 2 * j) : power * choose(m + j, 2 * j + 1);
}

__device__ constexpr int degree(int n) { return n % 2 ? n / 2 : n / 2 - 1; }

// The same in c = cos(2x) = 1 - 2q: one instruction less a pixel and axis.
__device__ constexpr double in_cosine(int n, int i) {
    double sum = 0;
    for (int j = i; j <= degree(n); ++j) {
        double half = in_sine(n, j) * choose(j, i) * (i % 2 ? -1 : 1);
        for (int k = 0; k < j; ++k) half /= 2;
        sum += half;
    }
    return sum;
}

template <typename T, int N, int J> __device__ inline T horner(T c) {
    if constexpr (J == degree(N)) return T(in_cosine(N, J));
    else return T(in_cosine(N, J)) + c * horner<T, N, J + 1>(c);
}

// sin(Nx) / sin(x) without its sign, x = angle/2; where N is even, all but cos(x), whose square goes to `squared`.
template <typename T, int N> __device__ inline T interference(T angle, T& squared) {
    if constexpr (N == 1) {
        return T(1);
    } else if constexpr (N <= 8) {
        const T c = cosine(angle);
        if constexpr (N % 2 == 0) squared *= T(0.5) + T(0.5) * c;
        return horner<T, N, 0>(c);
    } else {  // a polynomial of high degree would lose digits
        const T p = angle * T(0.5 / PI), d = p - rint(p);
        return d == T(0) ? T(N) : exact_sine(T(N) * d) / exact_sine(d);
    }
}

// The place (mm) of a point of the detector, in pixels from its corner.
__device__ inline void place(const double* detector, double f, double s, double* at) {
    for (int d = 0; d < 3; ++d) at[d] = detector[d] + f * detector[3 + d] + s * detector[6 + d];
}

// [anchor]
template <typename T>
__device__ Seen<T> seen_from(const double* at, const double* edge, const double* source, const double* detector,
                             const double* pole, int number, int* whole) {
    const double inverse = rsqrt(dot(at, at)), per_wavelength = 1 / source[3];
    // Loaded and computed by every lane, then chosen: no lane waits for another one's branch.
    const double* given = number < SOURCE ? edge : number == SOURCE ? source : detector + (number == FAST ? 3 : 6);
    double vector[3];
    for (int d = 0; d < 3; ++d) {
        const double across = pole[(d + 1) % 3] * source[(d + 2) % 3] - pole[(d + 2) % 3] * source[(d + 1) % 3];
        const double from = given[d];
        vector[d] = number == ACROSS_BEAM ? across : number == CENTRE ? at[d] : from;
    }
    const double index = (dot(vector, at) * inverse - dot(vector, source)) * per_wavelength, integer = ceil(index - 0.5);  // (1)
    *whole = int(integer);
    const bool cell = number < SOURCE;
    const double scale = cell ? 2 * PI * inverse * per_wavelength : number <= ACROSS_BEAM ? inverse : inverse * inverse;
    const double start = cell ? 2 * PI * (index - integer) : dot(vector, vector);  // (2)
    return {T(start), T(dot(vector, at) * scale), T(dot(vector, detector + 3) * scale), T(dot(vector, detector + 6) * scale)};
}
// [/anchor]

// R^2 P = (1 - K) R^2 / 2 + (1 + K) (i.p)^2 / 2 + K (c.p)^2, i the beam and c the unit vector across it and the axis of
// polarization; here over R0^2 and with the centre's solid angle.
template <typename T> __device__ View<T> view_of(const Seen<T>* seen, T kahn, T solid) {
    const Seen<T> beam = seen[SOURCE], across = seen[ACROSS_BEAM], centre = seen[CENTRE];
    const T fast_fast = seen[FAST].by_fast, slow_slow = seen[SLOW].by_slow;
    solid *= fast_fast * slow_slow * inverse_root(fast_fast * slow_slow);
    const T even = T(0.5) * (1 - kahn) * solid, along = T(0.5) * (1 + kahn) * solid;
    const T least = T(1e-24), per_length = inverse_root(across.start > least ? across.start : least);
    const T side = kahn * solid * per_length * per_length;
    return {2 * centre.by_fast,
            2 * centre.by_slow,
            fast_fast,
            slow_slow,
            even + along * beam.by_turn * beam.by_turn + side * across.by_turn * across.by_turn,
            2 * (even * centre.by_fast + along * beam.by_turn * beam.by_fast + side * across.by_turn * across.by_fast),
            2 * (even * centre.by_slow + along * beam.by_turn * beam.by_slow + side * across.by_turn * across.by_slow),
            even * fast_fast + along * beam.by_fast * beam.by_fast + side * across.by_fast * across.by_fast,
            even * slow_slow + along * beam.by_slow * beam.by_slow + side * across.by_slow * across.by_slow,
            2 * (along * beam.by_fast * beam.by_slow + side * across.by_fast * across.by_slow)};
}

// The nearest whole number to h, from the moved angle x in float; too near a tie for float, from the pixel in double.
template <typename T>
__device__ inline int nearest(T x, int whole, const double* edge, const double* source, const double* detector, double f,
                              double s) {
    const T p = x * T(0.5 / PI), up = ceil(p - T(0.5));
    if (abs(abs(p - up) - T(0.5)) > T(1e-5)) return whole + int(up);
    double at[3];
    place(detector, f, s, at);
    return int(ceil((dot(edge, at) / sqrt(dot(at, at)) - dot(edge, source)) / source[3] - 0.5));
}

// What the column of a pixel adds to w and to the polarization, and what an angle starts from and turns by there: as
// s = 1 + t, what the column moves an angle by, times s, is part of both.
template <typename T> struct Columns {
    T x[ACROSS], w[ACROSS], light[ACROSS], slope[ACROSS], start[3][ACROSS], swing[3][ACROSS];

    __device__ void place(T first, const View<T>& centre) {
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            x[j] = first + T(j);
            w[j] = x[j] * (centre.fast + x[j] * centre.fast_fast);
        }
    }
    __device__ void look(const View<T>& view) {
#pragma unroll
        for (int j = 0; j < ACROSS; ++j) {
            light[j] = view.here + x[j] * (view.view_fast + x[j] * view.view_fast_fast);
            slope[j] = view.view_slow + x[j] * view.view_fast_slow;
        }
    }
    __device__ void turn(const Seen<T>* axes) {
#pragma unroll
        for (int d = 0; d < 3; ++d)
            for (int j = 0; j < ACROSS; ++j) {
                start[d][j] = axes[d].start + x[j] * axes[d].by_fast;
                swing[d][j] = axes[d].by_turn + x[j] * axes[d].by_fast;
            }
    }
};

// [image]
// SINGLE: one source, one crystal, one point a pixel and no table of structure factors; then no loop is left inside.
// 2: and float rows of whole groups of columns, which leave 16 bytes at a time.
template <typename T, int NA, int NB, int NC, int SINGLE, int TABLE>
__global__ void __launch_bounds__(32 * WARPS) diffraction(
    const double* crystals, const double* sources, const double* detector, const double* polarization,
    const double* structure, T* out, long long crystal_count, long long source_count, long long size_h, long long size_k,
    long long size_l, long long low_h, long long low_k, long long low_l, long long slow, long long fast,
    long long oversample, long long tile_slow) {
    __shared__ Tile<T, SINGLE ? 1 : CHUNK> tiles[WARPS];
    __shared__ double scene[32];
    auto& tile = tiles[threadIdx.y];
    let_next_kernel_start();

    const int height = int(slow), width = int(fast), tall = int(tile_slow);
    const int crystals_here = SINGLE ? 1 : int(crystal_count), points = SINGLE ? 1 : int(oversample);
    const int step_count = SINGLE ? 1 : crystals_here * int(source_count);
    const int first_fast = (blockIdx.x * WARPS + threadIdx.y) * TILE_FAST, first_slow = blockIdx.y * tall;
    if (!SINGLE && first_fast >= width) return;
    const double centre_fast = first_fast + TILE_FAST / 2, centre_slow = first_slow + 0.5 * tall;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, column = first_fast + lane * ACROSS;
    const int lines = column < width ? min(tall, height - first_slow) : 0;
    const bool aligned = SINGLE == 2 || (sizeof(T) == 4 && width % ACROSS == 0);
    crystals += blockIdx.z * crystal_count * 9;
    wait_for_kernel_before();
    out += (unsigned long long)(blockIdx.z * height + first_slow + row) * unsigned(width) + column;
    const int kind = threadIdx.x % VECTORS;
    if (SINGLE) {
        // One warp for all of the block's tiles, eight lanes each; which one differs, for their units are not the same.
        const unsigned turn = blockIdx.x + blockIdx.y + blockIdx.y / 4 + blockIdx.z + blockIdx.z / 4;
        if (threadIdx.y == turn % WARPS) {
            // All numbers of the scene by one request, a lane each: one journey to memory, not three.
            const int n = threadIdx.x, number = n / VECTORS;
            scene[n] = *(n < 9 ? crystals + n : n < 13 ? sources + (n - 9) : n < 23 ? detector + (n - 13)
                         : n < 27 ? polarization + (n - 23) : structure);
            __syncwarp();
            double at[3];
            int whole;
            place(scene + 13, (blockIdx.x * WARPS + number) * TILE_FAST + TILE_FAST / 2, centre_slow, at);
            tiles[number].seen[0][kind] = seen_from<T>(at, scene + (kind < 3 ? kind : 0) * 3, scene + 9, scene + 13,
                                                       scene + 24, kind, &whole);
        }
        __syncthreads();
        if (first_fast >= width) return;
        detector = scene + 13, polarization = scene + 23, structure = scene + 27;
    }

    for (int begun = 0; begun < step_count; begun += CHUNK) {
        const int count = SINGLE ? 1 : min(CHUNK, step_count - begun);
        __syncwarp();
        for (int number = threadIdx.x / VECTORS; !SINGLE && number < count; number += 32 / VECTORS) {
            double at[3];
            place(detector, centre_fast, centre_slow, at);  // (1)
            const double* source = sources + (begun + number) / crystals_here * 4;
            const double* edge = crystals + (begun + number) % crystals_here * 9 + (kind < 3 ? kind : 0) * 3;
            int whole;
            tile.seen[number][kind] = seen_from<T>(at, edge, source, detector, polarization + 1, kind, &whole);
            if (TABLE && kind < 3) tile.whole[number][kind] = whole;
        }
        __syncwarp();
        // Solid angle at the centre: a pixel's area times distance, over R0 cubed; and the mean over all terms.
        const T share = T(TABLE ? 1.0 : structure[0]) / (T(step_count) * T(points * points));
        const auto looked = [&](const Seen<T>* seen) {
            return view_of<T>(seen, T(polarization[0]), share * T(detector[9]) * inverse_root(seen[CENTRE].start));
        };
        if (!SINGLE && threadIdx.x < count) tile.views[threadIdx.x] = looked(tile.seen[threadIdx.x]);
        __syncwarp();

        Columns<T> columns;
        Seen<T> axes[3];
        View<T> view;
        if (SINGLE) {
            view = looked(tile.seen[0]);  // every lane the same: quicker than one lane and the others' wait
#pragma unroll
            for (int d = 0; d < 3; ++d) axes[d] = tile.seen[0][d];
            columns.place(T(lane * ACROSS - TILE_FAST / 2) + T(0.5), view);
            columns.look(view);
            columns.turn(axes);
        }
        // The pixels' edge, or of one point their middle, from the tile's centre: counting is cheaper than converting.
        T above = T(row) - T(0.5) * T(tall) + T(SINGLE ? 0.5 : 0.0);
        T* to = out;
#pragma unroll (SINGLE ? 2 : 1)
        for (int line = row; line < lines; line += ROWS, above += T(ROWS), to += ROWS * width) {
            T total[ACROSS] = {};
            for (int point = 0; point < points * points; ++point) {
                const T spacing = T(1) / T(points), corner = T(0.5) * spacing;
                const T ds = SINGLE ? above : above + (T(point / points) * spacing + corner);
                if (!SINGLE) {
                    view = tile.views[0];
                    columns.place(T(lane * ACROSS - TILE_FAST / 2) + T(point % points) * spacing + corner, view);
                }
                const T w_slow = ds * (view.slow + ds * view.slow_slow);
                T s[ACROSS], t[ACROSS], gain[ACROSS], weight[ACROSS];
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const T w = columns.w[j] + w_slow, ratio = T(1) + w;
                    s[j] = inverse_root(ratio);  // (2)
                    // s is rounded off near 1, so s - 1 lacks digits; a Newton step on 1 = s^2 (1 + w) gives them back.
                    const T near = s[j] - T(1);
                    gain[j] = near * s[j] + near;  // s^2 - 1
                    t[j] = near - T(0.5) * (ratio * gain[j] + w);
                }
#pragma unroll 1
                for (int number = 0; number < count; ++number) {
                    if (SINGLE || number == 0 || (begun + number) % crystals_here == 0) {
                        if (!SINGLE) {
                            view = tile.views[number];
                            columns.look(view);
                        }
                        const T below = ds * view.view_slow_slow;
#pragma unroll
                        for (int j = 0; j < ACROSS; ++j)
                            weight[j] = (columns.light[j] + ds * (columns.slope[j] + below)) * s[j];
                    }
                    if (!SINGLE) {
#pragma unroll
                        for (int d = 0; d < 3; ++d) axes[d] = tile.seen[number][d];
                        columns.turn(axes);
                    }
                    const T down_h = ds * axes[0].by_slow, down_k = ds * axes[1].by_slow, down_l = ds * axes[2].by_slow;
#pragma unroll
                    for (int j = 0; j < ACROSS; ++j) {
                        const T ah = columns.start[0][j] + columns.swing[0][j] * t[j] + down_h * s[j];  // (3)
                        const T ak = columns.start[1][j] + columns.swing[1][j] * t[j] + down_k * s[j];
                        const T al = columns.start[2][j] + columns.swing[2][j] * t[j] + down_l * s[j];
                        // Solid angle falls as s^3, and the polarization here is (R/R0)^2 too large.
                        T squared = weight[j];
                        const T waves = interference<T, NA>(ah, squared) * interference<T, NB>(ak, squared) *
                                        interference<T, NC>(al, squared);
                        const T lattice = waves + waves * gain[j];
                        if constexpr (TABLE) {
                            const double f = centre_fast + double(columns.x[j]), s0 = centre_slow + double(ds);
                            const double* source = sources + (begun + number) / crystals_here * 4;
                            const double* edges = crystals + (begun + number) % crystals_here * 9;
                            const int ih = nearest(ah, tile.whole[number][0], edges, source, detector, f, s0) - int(low_h);
                            const int ik = nearest(ak, tile.whole[number][1], edges + 3, source, detector, f, s0) - int(low_k);
                            const int il = nearest(al, tile.whole[number][2], edges + 6, source, detector, f, s0) - int(low_l);
                            const int ch = max(0, min(ih, int(size_h) - 1)), ck = max(0, min(ik, int(size_k) - 1));
                            const int cl = max(0, min(il, int(size_l) - 1));
                            squared *= T(structure[(ch * size_k + ck) * size_l + cl]);
                        }
                        total[j] += lattice * lattice * squared;  // (4)
                    }
                }
            }
            if (aligned) {
                float4 four = make_float4(total[0], total[1], total[2], total[3]);
                if (begun > 0) {
                    const float4 before = *reinterpret_cast<float4*>(to);
                    four = make_float4(four.x + before.x, four.y + before.y, four.z + before.z, four.w + before.w);
                }
                *reinterpret_cast<float4*>(to) = four;  // (5)
            } else {
                for (int j = 0; j < ACROSS; ++j)
                    if (column + j < width) to[j] = begun > 0 ? to[j] + total[j] : total[j];
            }
        }
    }
}
// [/image]
