// The whole diffraction image in one launch. One block computes a tile of the detector; gridDim.z counts crystals of a
// batch. At the tile's centre h, k, l are worked out in double and lose their integer part; every pixel then adds the
// exact difference to the centre,
//     1/R - 1/R0 = -(R^2 - R0^2) / (R R0 (R + R0)),
// so float keeps the digits that count. All numbers of the scene are read from device memory: nothing waits for the host.

constexpr int TILE_FAST = 64, TILE_SLOW = 32, ACROSS = 4, THREADS = 256, CHUNK = 16;
constexpr int LANES = TILE_FAST / ACROSS, ROWS = THREADS / LANES;
constexpr double PI = 3.14159265358979323846;

template <typename T> struct Quad { T start, at, by_fast, by_slow; };
template <typename T> struct Place { T square, radius, inverse, lean_fast, lean_slow, fast_square, slow_square, far; };
template <typename T> struct Turn { T at, by_fast, by_slow; };

__device__ inline float inverse_root(float x) { float y; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ inline double inverse_root(double x) { return 1.0 / sqrt(x); }
__device__ inline float reciprocal(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ inline double reciprocal(double x) { return 1.0 / x; }
__device__ inline float sine(float x) { return __sinf(float(PI) * x); }
__device__ inline double sine(double x) { return sinpi(x); }
__device__ inline float exact_sine(float x) { return sinpif(x); }
__device__ inline double exact_sine(double x) { return sinpi(x); }

constexpr double choose(int n, int k) {
    double c = 1;
    for (int i = 1; i <= k; ++i) c = c * (n - k + i) / i;
    return c;
}

// Coefficient of q^j in sin(Nx)/sin(x) (odd N) or sin(Nx)/(sin(x) cos(x)) (even N), with q = sin^2(x).
constexpr double coefficient(int n, int j) {
    const int m = n / 2;
    double power = n % 2 ? 1 : 2;
    for (int i = 0; i < j; ++i) power *= -4;
    return n % 2 ? power * n / (2 * j + 1) * choose(m + j, 2 * j) : power * choose(m + j, 2 * j + 1);
}

template <typename T, int N, int J> __device__ inline T horner(T q) {
    constexpr int last = N % 2 ? N / 2 : N / 2 - 1;
    if constexpr (J == last) return T(coefficient(N, J));
    else return T(coefficient(N, J)) + q * horner<T, N, J + 1>(q);
}

// sin(pi N p) / sin(pi p) without its sign, squared only where N is even (there it has a factor of cos).
template <typename T, int N> __device__ inline T interference(T p, T& squared) {
    if constexpr (N == 1) {
        return T(1);
    } else if constexpr (N <= 8) {
        const T s = sine(p), q = s * s;
        if constexpr (N % 2 == 0) squared *= T(1) - q;
        return horner<T, N, 0>(q);
    } else {  // a polynomial of high degree would lose digits
        const T d = p - rint(p);
        return d == T(0) ? T(N) : exact_sine(T(N) * d) / exact_sine(d);
    }
}

template <typename T, int NA, int NB, int NC, int TABLE, int KAHN>
__global__ void __launch_bounds__(THREADS) diffraction(
    const double* crystals, const double* sources, const double* detector, const double* polarization,
    const double* structure, T* out, long long crystal_count, long long source_count, long long size_h, long long size_k,
    long long size_l, long long low_h, long long low_k, long long low_l, long long slow, long long fast,
    long long oversample) {
    __shared__ Place<T> place;
    __shared__ Quad<T> steps[CHUNK][3];
    __shared__ int whole[CHUNK][3];
    __shared__ Turn<T> turns[CHUNK][KAHN ? 3 : 1];  // along the beam; with polarization also across it, two ways

    const int step_count = int(crystal_count * source_count), points = int(oversample);
    const long long first_fast = (long long)blockIdx.x * TILE_FAST, first_slow = (long long)blockIdx.y * TILE_SLOW;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES;
    crystals += blockIdx.z * crystal_count * 9;
    out += blockIdx.z * slow * fast;

    const double* along = detector + 3;
    const double* down = detector + 6;
    double at[3], square = 0;
    for (int d = 0; d < 3; ++d) {
        at[d] = detector[d] + (first_fast + TILE_FAST / 2) * along[d] + (first_slow + TILE_SLOW / 2) * down[d];
        square += at[d] * at[d];
    }

    T total[TILE_SLOW / ROWS][ACROSS] = {};
    for (int begun = 0; begun < step_count; begun += CHUNK) {
        const int count = min(CHUNK, step_count - begun);
        __syncthreads();
        for (int task = threadIdx.x; task <= 3 * count; task += THREADS) {
            const double radius = sqrt(square), inverse = 1.0 / radius;
            if (task == 3 * count) {
                double lean_fast = 0, lean_slow = 0, fast_square = 0, slow_square = 0;
                for (int d = 0; d < 3; ++d) {
                    lean_fast += 2 * at[d] * along[d];
                    lean_slow += 2 * at[d] * down[d];
                    fast_square += along[d] * along[d];
                    slow_square += down[d] * down[d];
                }
                const double far = detector[9] * sqrt(fast_square * slow_square) / (step_count * points * points);
                place = {T(square), T(radius), T(inverse), T(lean_fast), T(lean_slow), T(fast_square), T(slow_square), T(far)};
                continue;
            }
            const int number = task / 3, axis = task % 3;
            const double* source = sources + (begun + number) / crystal_count * 4;
            const double* edge = crystals + (begun + number) % crystal_count * 9 + axis * 3;
            double projected = 0, forward = 0, by_fast = 0, by_slow = 0;
            for (int d = 0; d < 3; ++d) {
                projected += edge[d] * at[d];
                forward += edge[d] * source[d];
                by_fast += edge[d] * along[d];
                by_slow += edge[d] * down[d];
            }
            const double wave = 1.0 / source[3], index = (projected * inverse - forward) * wave;
            const double integer = ceil(index - 0.5);
            whole[number][axis] = int(integer);
            // -inverse: what the change of 1/R still lacks, taken along for nothing.
            steps[number][axis] = {T(index - integer), T(-projected * wave * inverse), T(by_fast * wave), T(by_slow * wave)};
            if (axis == 0 || KAHN) {
                double vector[3] = {source[0], source[1], source[2]};
                if (axis > 0) {
                    const double* pole = polarization + 1;
                    double across[3], length = 0;
                    for (int d = 0; d < 3; ++d) {
                        across[d] = pole[(d + 1) % 3] * source[(d + 2) % 3] - pole[(d + 2) % 3] * source[(d + 1) % 3];
                        length += across[d] * across[d];
                    }
                    length = sqrt(length);
                    for (int d = 0; d < 3; ++d) across[d] /= length;
                    for (int d = 0; d < 3; ++d)
                        vector[d] = axis == 1 ? across[d]
                                              : source[(d + 1) % 3] * across[(d + 2) % 3] - source[(d + 2) % 3] * across[(d + 1) % 3];
                }
                double here = 0, there = 0, below = 0;
                for (int d = 0; d < 3; ++d) {
                    here += vector[d] * at[d];
                    there += vector[d] * along[d];
                    below += vector[d] * down[d];
                }
                turns[number][axis] = {T(here), T(there), T(below)};
            }
        }
        __syncthreads();

        const T kahn = KAHN ? T(polarization[0]) : T(0);
        const T single = TABLE ? T(0) : T(structure[0]);
        const T spacing = T(1) / T(points);
        for (int point = 0; point < points * points; ++point) {
            const T shift_slow = (T(point / points) + T(0.5)) * spacing - T(TILE_SLOW / 2);
            const T shift_fast = (T(point % points) + T(0.5)) * spacing - T(TILE_FAST / 2);
#pragma unroll
            for (int pass = 0; pass < TILE_SLOW / ROWS; ++pass) {
                const T ds = T(row + pass * ROWS) + shift_slow;
                const T moved_slow = ds * (place.lean_slow + ds * place.slow_square);
                T inverse[ACROSS], change[ACROSS], df[ACROSS], sum[ACROSS], factor[ACROSS];
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    df[j] = T(lane * ACROSS + j) + shift_fast;
                    const T moved = df[j] * (place.lean_fast + df[j] * place.fast_square) + moved_slow;
                    const T squared = place.square + moved;
                    inverse[j] = inverse_root(squared);
                    change[j] = moved * inverse[j] * reciprocal(squared * inverse[j] + place.radius);
                    sum[j] = 0;
                }
                for (int number = 0; number < count; ++number) {
                    if (number == 0 || (begun + number) % int(crystal_count) == 0) {
                        const Turn<T> beam = turns[number][0];
#pragma unroll
                        for (int j = 0; j < ACROSS; ++j) {
                            const T cosine = (beam.at + ds * beam.by_slow + df[j] * beam.by_fast) * inverse[j];
                            factor[j] = T(0.5) + T(0.5) * cosine * cosine;
                            if constexpr (KAHN) {
                                const Turn<T> one = turns[number][1], two = turns[number][2];
                                const T side = (one.at + ds * one.by_slow + df[j] * one.by_fast) * inverse[j];
                                const T up = (two.at + ds * two.by_slow + df[j] * two.by_fast) * inverse[j];
                                factor[j] -= T(0.5) * kahn * (up * up - side * side);
                            }
                        }
                    }
                    const Quad<T> h = steps[number][0], k = steps[number][1], l = steps[number][2];
                    const T down_h = ds * h.by_slow, down_k = ds * k.by_slow, down_l = ds * l.by_slow;
#pragma unroll
                    for (int j = 0; j < ACROSS; ++j) {
                        const T ph = h.start + h.at * change[j] + (down_h + df[j] * h.by_fast) * inverse[j];
                        const T pk = k.start + k.at * change[j] + (down_k + df[j] * k.by_fast) * inverse[j];
                        const T pl = l.start + l.at * change[j] + (down_l + df[j] * l.by_fast) * inverse[j];
                        T squared = factor[j];
                        const T lattice = interference<T, NA>(ph, squared) * interference<T, NB>(pk, squared) *
                                          interference<T, NC>(pl, squared);
                        if constexpr (TABLE) {
                            const int ih = whole[number][0] + int(ceil(ph - T(0.5))) - int(low_h);
                            const int ik = whole[number][1] + int(ceil(pk - T(0.5))) - int(low_k);
                            const int il = whole[number][2] + int(ceil(pl - T(0.5))) - int(low_l);
                            const int ch = max(0, min(ih, int(size_h) - 1)), ck = max(0, min(ik, int(size_k) - 1));
                            const int cl = max(0, min(il, int(size_l) - 1));
                            squared *= T(structure[(ch * size_k + ck) * size_l + cl]);
                        }
                        sum[j] += squared * lattice * lattice;
                    }
                }
#pragma unroll
                for (int j = 0; j < ACROSS; ++j) {
                    const T solid = place.far * inverse[j] * inverse[j] * inverse[j];
                    total[pass][j] += (TABLE ? solid : solid * single) * sum[j];
                }
            }
        }
    }

    const long long column = first_fast + lane * ACROSS;
    const bool aligned = sizeof(T) == 4 && fast % ACROSS == 0;
#pragma unroll
    for (int pass = 0; pass < TILE_SLOW / ROWS; ++pass) {
        const long long line = first_slow + row + pass * ROWS;
        if (line >= slow || column >= fast) continue;
        T* to = out + line * fast + column;
        if (aligned) {
            // Written once and not read here: the image should not push anything else out of the cache.
            __stcs(reinterpret_cast<float4*>(to), make_float4(total[pass][0], total[pass][1], total[pass][2], total[pass][3]));
        } else {
            for (int j = 0; j < ACROSS; ++j)
                if (column + j < fast) to[j] = total[pass][j];
        }
    }
}
