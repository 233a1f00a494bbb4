// The diffraction simulator as a C programmer writes it: the structure of nanoBragg, double arithmetic, libm's sin.
// One OpenMP loop over slow rows. The loops over points of a pixel, sources and crystals stand outside the one over
// fast pixels, so that with -ffast-math g++ takes sin from libmvec, several pixels at a time: about 12 times as
// fast as pixel by pixel with scalar sin (1024² pixels, one step, 2 cores with AVX-512).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

constexpr double pi = 3.14159265358979323846;
// Pixels of a row worked on at a time: their intermediate values (24 KiB) stay in the first-level cache. With a block of
// one this is nanoBragg's own order, pixel by pixel with every sum innermost, and nothing is vectorised.
constexpr int64_t vectorised = 512, pixelwise = 1;

struct Vector {
    double x, y, z;
};

Vector read(const double* from) { return {from[0], from[1], from[2]}; }

double dot(Vector a, Vector b) { return a.x * b.x + a.y * b.y + a.z * b.z; }

Vector cross(Vector a, Vector b) { return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x}; }

// What a source contributes to every pixel alike; across and along are the axes of Kahn's polarization.
struct Source {
    Vector incident, across, along;
    double wavelength;

    Source(const double* from, Vector axis) : incident(read(from)), wavelength(from[3]) {
        across = cross(axis, incident);
        const double scale = 1 / std::max(std::sqrt(dot(across, across)), 1e-12);
        across = {across.x * scale, across.y * scale, across.z * scale};
        along = cross(incident, across);
    }

    double polarization(Vector direction, double kahn) const {
        const double cosine = dot(incident, direction), up = dot(along, direction), side = dot(across, direction);
        return 0.5 * (1 + cosine * cosine - kahn * (up * up - side * side));
    }
};

// F² at a reflection; outside the box, its border. A table of one entry goes the same way: a branch around the lookup
// would keep the loop from being vectorised, and the lookup costs nothing measurable. Indices are clamped as doubles
// and held in 32 bits (a table has fewer than 2³¹ entries), which processors without AVX-512 convert and gather, too.
struct Structure {
    const double* table;
    int32_t size_k, size_l;
    double low_h, low_k, low_l, high_h, high_k, high_l;

    double at(double h, double k, double l) const {
        const int32_t row = static_cast<int32_t>(std::min(std::max(h, low_h), high_h) - low_h);
        const int32_t column = static_cast<int32_t>(std::min(std::max(k, low_k), high_k) - low_k);
        const int32_t layer = static_cast<int32_t>(std::min(std::max(l, low_l), high_l) - low_l);
        return table[(row * size_k + column) * size_l + layer];
    }
};

// Both sines are taken before the test: a call under a condition would not be vectorised.
double interference(double delta, double count) {
    const double above = std::sin(pi * count * delta), below = std::sin(pi * delta);
    return delta == 0 ? count : above / below;
}

// [image]
template <typename scalar, int64_t block>
void diffraction(const double* crystals, const double* sources, const double* detector, const double* polarization,
                 const double* structure, scalar* out, int64_t ncrystals, int64_t nsources, int64_t size_h,
                 int64_t size_k, int64_t size_l, int64_t low_h, int64_t low_k, int64_t low_l, int64_t slow,
                 int64_t fast, int64_t oversample, int64_t na, int64_t nb, int64_t nc) {
    const Vector corner = read(detector), step_fast = read(detector + 3), step_slow = read(detector + 6);
    const double distance = detector[9], kahn = polarization[0];
    const double area = std::sqrt(dot(step_fast, step_fast) * dot(step_slow, step_slow));
    const double share = 1.0 / (static_cast<double>(nsources) * ncrystals * oversample * oversample);
    const double count_a = na, count_b = nb, count_c = nc;
    const Structure squares = {structure,
                               static_cast<int32_t>(size_k),
                               static_cast<int32_t>(size_l),
                               static_cast<double>(low_h),
                               static_cast<double>(low_k),
                               static_cast<double>(low_l),
                               static_cast<double>(low_h + size_h - 1),
                               static_cast<double>(low_k + size_k - 1),
                               static_cast<double>(low_l + size_l - 1)};
    std::vector<Source> beams;
    for (int64_t n = 0; n < nsources; ++n) beams.emplace_back(sources + 4 * n, read(polarization + 1));

#pragma omp parallel for schedule(static)  // (1)
    for (int64_t row = 0; row < slow; ++row) {
        alignas(64) double x[block], y[block], z[block], omega[block], weight[block], total[block];
        for (int64_t first = 0; first < fast; first += block) {  // (2)
            const int pixels = static_cast<int>(std::min(block, fast - first));
            std::fill_n(total, pixels, 0.0);
            for (int64_t point = 0; point < oversample * oversample; ++point) {
                const double s = row + (point / oversample + 0.5) / oversample;
                const double f = first + (point % oversample + 0.5) / oversample;
                for (int i = 0; i < pixels; ++i) {
                    const Vector position = {corner.x + (f + i) * step_fast.x + s * step_slow.x,
                                             corner.y + (f + i) * step_fast.y + s * step_slow.y,
                                             corner.z + (f + i) * step_fast.z + s * step_slow.z};
                    const double inverse = 1 / std::sqrt(dot(position, position));
                    x[i] = position.x * inverse;
                    y[i] = position.y * inverse;
                    z[i] = position.z * inverse;
                    omega[i] = share * area * distance * inverse * inverse * inverse;
                }
                for (const Source& beam : beams) {
                    for (int i = 0; i < pixels; ++i) {
                        weight[i] = omega[i] * beam.polarization({x[i], y[i], z[i]}, kahn);
                    }
                    const Vector incident = beam.incident;
                    const double per_wavelength = 1 / beam.wavelength;
                    for (int64_t n = 0; n < ncrystals; ++n) {  // (3)
                        const Vector a = read(crystals + 9 * n), b = read(crystals + 9 * n + 3),
                                     c = read(crystals + 9 * n + 6);
                        for (int i = 0; i < pixels; ++i) {
                            const Vector scattering = {(x[i] - incident.x) * per_wavelength,
                                                       (y[i] - incident.y) * per_wavelength,
                                                       (z[i] - incident.z) * per_wavelength};
                            const double h = dot(a, scattering), k = dot(b, scattering), l = dot(c, scattering);
                            const double h0 = std::ceil(h - 0.5), k0 = std::ceil(k - 0.5), l0 = std::ceil(l - 0.5);
                            const double lattice = interference(h - h0, count_a) * interference(k - k0, count_b) *
                                                   interference(l - l0, count_c);
                            total[i] += weight[i] * squares.at(h0, k0, l0) * lattice * lattice;  // (4)
                        }
                    }
                }
            }
            for (int i = 0; i < pixels; ++i) out[row * fast + first + i] = static_cast<scalar>(total[i]);
        }
    }
}
// [/image]

}  // namespace

#define EXPORT(name, scalar, block)                                                                                \
    extern "C" void name(const double* crystals, const double* sources, const double* detector,                    \
                         const double* polarization, const double* structure, scalar* out, int64_t ncrystals,      \
                         int64_t nsources, int64_t size_h, int64_t size_k, int64_t size_l, int64_t low_h,          \
                         int64_t low_k, int64_t low_l, int64_t slow, int64_t fast, int64_t oversample, int64_t na, \
                         int64_t nb, int64_t nc) {                                                                 \
        diffraction<scalar, block>(crystals, sources, detector, polarization, structure, out, ncrystals, nsources, \
                                   size_h, size_k, size_l, low_h, low_k, low_l, slow, fast, oversample, na, nb,    \
                                   nc);                                                                            \
    }

EXPORT(diffraction_float32, float, vectorised)
EXPORT(diffraction_float64, double, vectorised)
EXPORT(diffraction_pixelwise_float32, float, pixelwise)
EXPORT(diffraction_pixelwise_float64, double, pixelwise)
