// The whole diffraction image in one launch. Each warp computes a tile of the detector; gridDim.z counts crystals of a
// batch. At the tile's centre h, k, l are worked out in double and lose their integer part; every pixel then adds the
// exact difference to the centre. With R^2 = R0^2 (1 + w), s = R0/R and t = s - 1 that is
//     a.p/R - a.p0/R0 = (a.p0 t + a.(p - p0) s) / R0,
// so float keeps the digits that count. All numbers of the scene are read from device memory: nothing waits for the
// host. Warps never wait for each other: with one centre a block, its latency was half of the kernel's time.

constexpr int TILE_FAST = 64, ACROSS = 4, WARPS = 4, CHUNK = 8;
constexpr int LANES = TILE_FAST / ACROSS, ROWS = 32 / LANES;
constexpr double PI = 3.14159265358979323846;

// One axis of one step at the centre, as angles: 2 pi times h without its integer part, and how it moves.
template <typename T> struct alignas(4 * sizeof(T)) Axis { T start, by_turn, by_fast, by_slow; };

// One source seen from the centre: w, and polarization times (R/R0)^2, are quadratic in the pixel's offset.
template <typename T> struct alignas(4 * sizeof(T)) View {
    T fast, slow, fast_fast, slow_slow;
    T here, view_fast, view_slow, view_fast_fast, view_slow_slow, view_fast_slow, unused[2];
};

template <typename T> struct Tile {
    Axis<T> axes[CHUNK][3];
    View<T> views[CHUNK];
    int whole[CHUNK][3];
};

__device__ inline float inverse_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ inline double inverse_root(double x) { return rsqrt(x); }
// [cosine]
__device__ inline float cosine(float x) { return __cosf(x); }  // (1)
__device__ inline double cosine(double x) { return cos(x); }  // (2)
// [/cosine]
__device__ inline float exact_sine(float x) { return sinpif(x); }
__device__ inline double exact_sine(double x) { return sinpi(x); }
__device__ inline double dot(const double* a, const double* b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
__device__ inline void cross(const double* a, const double* b, double* out) {
    for (int d = 0; d < 3; ++d) out[d] = a[(d + 1) % 3] * b[(d + 2) % 3] - a[(d + 2) % 3] * b[(d + 1) % 3];
}

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
__device__ Axis<T> axis_at(const double* at, const double* edge, const double* source, const double* detector, int* whole) {
    const double inverse = rsqrt(dot(at, at)), scale = 2 * PI * inverse / source[3];
    const double index = (dot(edge, at) * inverse - dot(edge, source)) / source[3], integer = ceil(index - 0.5);  // (1)
    *whole = int(integer);
    return {T(2 * PI * (index - integer)), T(dot(edge, at) * scale), T(dot(edge, detector + 3) * scale),  // (2)
            T(dot(edge, detector + 6) * scale)};
}
// [/anchor]

template <typename T>
__device__ View<T> view_at(const double* at, const double* source, const double* detector, const double* polarization,
                           double share) {
    const double *fast = detector + 3, *slow = detector + 6;
    const double square = dot(at, at), per = 1 / square, inverse = rsqrt(square);
    const double fast_fast = dot(fast, fast) * per, slow_slow = dot(slow, slow) * per;
    double across[3], up[3];
    cross(polarization + 1, source, across);
    const double length = sqrt(dot(across, across));
    for (int d = 0; d < 3; ++d) across[d] /= fmax(length, 1e-12);
    cross(source, across, up);
    // R^2 P = (R^2 + (i.p)^2 - K ((e.p)^2 - (b.p)^2)) / 2, here over R0^2 and with the centre's solid angle.
    double here = 1, by_fast = 2 * dot(at, fast) * per, by_slow = 2 * dot(at, slow) * per, ff = fast_fast, ss = slow_slow, fs = 0;
    const double first = by_fast, second = by_slow;
    const double* vectors[3] = {source, up, across};
    const double weights[3] = {1, -polarization[0], polarization[0]};
    for (int n = 0; n < 3; ++n) {
        const double a = dot(vectors[n], at), f = dot(vectors[n], fast), s = dot(vectors[n], slow), weight = weights[n] * per;
        here += weight * a * a;
        by_fast += 2 * weight * a * f;
        by_slow += 2 * weight * a * s;
        ff += weight * f * f;
        ss += weight * s * s;
        fs += 2 * weight * f * s;
    }
    const double solid = 0.5 * share * detector[9] * sqrt(dot(fast, fast) * dot(slow, slow)) * inverse * per;
    return {T(first),           T(second),          T(fast_fast),  T(slow_slow),  T(solid * here), T(solid * by_fast),
            T(solid * by_slow), T(solid * ff), T(solid * ss), T(solid * fs)};
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

// [image]
// SINGLE: one source, one crystal, one point a pixel and no table of structure factors; then no loop is left inside.
template <typename T, int NA, int NB, int NC, int SINGLE, int TABLE>
__global__ void __launch_bounds__(32 * WARPS) diffraction(
    const double* crystals, const double* sources, const double* detector, const double* polarization,
    const double* structure, T* out, long long crystal_count, long long source_count, long long size_h, long long size_k,
    long long size_l, long long low_h, long long low_k, long long low_l, long long slow, long long fast,
    long long oversample, long long tile_slow) {
    __shared__ Tile<T> tiles[WARPS];
    Tile<T>& tile = tiles[threadIdx.y];

    const int height = int(slow), width = int(fast), tall = int(tile_slow);
    const int crystals_here = SINGLE ? 1 : int(crystal_count), points = SINGLE ? 1 : int(oversample);
    const int step_count = SINGLE ? 1 : crystals_here * int(source_count);
    const int first_fast = blockIdx.x * TILE_FAST, first_slow = (blockIdx.y * WARPS + threadIdx.y) * tall;
    if (first_slow >= height) return;
    const double centre_fast = first_fast + TILE_FAST / 2, centre_slow = first_slow + 0.5 * tall;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, column = first_fast + lane * ACROSS;
    const int passes = (min(tall, height - first_slow) + ROWS - 1) / ROWS;
    crystals += blockIdx.z * crystal_count * 9;
    out += (long long)blockIdx.z * slow * fast;

    for (int begun = 0; begun < step_count; begun += CHUNK) {
        const int count = SINGLE ? 1 : min(CHUNK, step_count - begun);
        __syncwarp();
        const int task = threadIdx.x, number = task / 4, kind = task % 4;
        if (number < count) {
            double at[3];
            place(detector, centre_fast, centre_slow, at);  // (1)
            const double* source = sources + (begun + number) / crystals_here * 4;
            const double* edge = crystals + (begun + number) % crystals_here * 9 + kind * 3;
            const double share = (TABLE ? 1.0 : structure[0]) / (double(step_count) * points * points);
            if (kind < 3) tile.axes[number][kind] = axis_at<T>(at, edge, source, detector, &tile.whole[number][kind]);
            else tile.views[number] = view_at<T>(at, source, detector, polarization, share);
        }
        __syncwarp();

        for (int pass = 0; pass < passes; ++pass) {
            const int line = row + pass * ROWS;
            T total[ACROSS] = {};
            for (int point = 0; point < points * points; ++point) {
                const T spacing = T(1) / T(points), corner = T(0.5) * spacing;
                const T ds = T(line) - T(0.5) * T(tall) + (SINGLE ? T(0.5) : T(point / points) * spacing + corner);
                const T df = T(lane * ACROSS - TILE_FAST / 2) + (SINGLE ? T(0.5) : T(point % points) * spacing + corner);
                const View<T> centre = tile.views[0];
                const T w_slow = ds * (centre.slow + ds * centre.slow_slow);
                T s[ACROSS], t[ACROSS], weight[ACROSS];
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const T x = df + T(j), w = x * (centre.fast + x * centre.fast_fast) + w_slow;
                    s[j] = inverse_root(T(1) + w);  // (2)
                    // s is rounded off near 1, so s - 1 lacks digits; a Newton step on 1 = s^2 (1 + w) gives them back.
                    t[j] = s[j] - T(1);
                    t[j] -= T(0.5) * ((T(1) + w) * (t[j] * s[j] + t[j]) + w);
                }
#pragma unroll 1
                for (int number = 0; number < count; ++number) {
                    if (SINGLE || number == 0 || (begun + number) % crystals_here == 0) {
                        const View<T> view = tile.views[number];
                        const T below = view.here + ds * (view.view_slow + ds * view.view_slow_slow);
                        const T slope = view.view_fast + ds * view.view_fast_slow;
#pragma unroll
                        for (int j = 0; j < ACROSS; ++j) {
                            const T x = df + T(j), s2 = s[j] * s[j];
                            weight[j] = (below + x * (slope + x * view.view_fast_fast)) * (s2 * s2 * s[j]);
                        }
                    }
                    const Axis<T> h = tile.axes[number][0], k = tile.axes[number][1], l = tile.axes[number][2];
                    const T down_h = ds * h.by_slow, down_k = ds * k.by_slow, down_l = ds * l.by_slow;
#pragma unroll
                    for (int j = 0; j < ACROSS; ++j) {
                        const T x = df + T(j);
                        const T ah = h.start + h.by_turn * t[j] + (down_h + x * h.by_fast) * s[j];  // (3)
                        const T ak = k.start + k.by_turn * t[j] + (down_k + x * k.by_fast) * s[j];
                        const T al = l.start + l.by_turn * t[j] + (down_l + x * l.by_fast) * s[j];
                        T squared = weight[j];
                        const T lattice = interference<T, NA>(ah, squared) * interference<T, NB>(ak, squared) *
                                          interference<T, NC>(al, squared);
                        if constexpr (TABLE) {
                            const double f = centre_fast + double(x), s0 = centre_slow + double(ds);
                            const double* source = sources + (begun + number) / crystals_here * 4;
                            const double* edges = crystals + (begun + number) % crystals_here * 9;
                            const int ih = nearest(ah, tile.whole[number][0], edges, source, detector, f, s0) - int(low_h);
                            const int ik = nearest(ak, tile.whole[number][1], edges + 3, source, detector, f, s0) - int(low_k);
                            const int il = nearest(al, tile.whole[number][2], edges + 6, source, detector, f, s0) - int(low_l);
                            const int ch = max(0, min(ih, int(size_h) - 1)), ck = max(0, min(ik, int(size_k) - 1));
                            const int cl = max(0, min(il, int(size_l) - 1));
                            squared *= T(structure[(ch * size_k + ck) * size_l + cl]);
                        }
                        total[j] += squared * lattice * lattice;  // (4)
                    }
                }
            }
            if (first_slow + line >= height || column >= width || line >= tall) continue;
            T* to = out + (long long)(first_slow + line) * width + column;
            if (sizeof(T) == 4 && width % ACROSS == 0) {
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
