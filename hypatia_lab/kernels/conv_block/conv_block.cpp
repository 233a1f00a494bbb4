// The convolution block on a CPU as the seeds wrote it for a GPU: the same three loops one after the other, an output
// or a plane at a time, on one core or (threaded) on all. The random numbers of its dropout are those of the CUDA
// kernels; they are written down a second time here, and a test holds the two against each other.

#include <cmath>
#include <cstdint>

#include "scalars.hpp"

namespace {

// [loops]
template <typename scalar, typename accumulator>
void convolve(const scalar* x, const scalar* w, const scalar* bias, scalar* z, int64_t batch, int64_t in_channels,
              int64_t out_channels, int64_t height, int64_t width, bool threaded) {
#pragma omp parallel for collapse(3) schedule(static) if (threaded)
    for (int64_t image = 0; image < batch; ++image) {
        for (int64_t channel = 0; channel < out_channels; ++channel) {
            for (int64_t row = 0; row < height; ++row) {
                for (int64_t column = 0; column < width; ++column) {
                    accumulator sum = bias ? static_cast<accumulator>(bias[channel]) : accumulator(0);
                    for (int64_t from = 0; from < in_channels; ++from) {
                        const scalar* plane = x + (image * in_channels + from) * height * width;
                        const scalar* kernel = w + (channel * in_channels + from) * 9;
                        for (int64_t r = row - 1; r <= row + 1; ++r) {
                            for (int64_t c = column - 1; c <= column + 1; ++c) {
                                if (r < 0 || r >= height || c < 0 || c >= width) continue;
                                sum += static_cast<accumulator>(plane[r * width + c]) *  // (1)
                                       static_cast<accumulator>(kernel[(r - row + 1) * 3 + c - column + 1]);
                            }
                        }
                    }
                    z[((image * out_channels + channel) * height + row) * width + column] = static_cast<scalar>(sum);
                }
            }
        }
    }
}
// [/loops]

// [loops]
// statistics: mean, then 1 / sqrt(variance + eps), of every plane; one serial sum each, in double for its length.
template <typename scalar, typename accumulator>
void measure(const scalar* z, accumulator* statistics, int64_t planes, int64_t pixels, bool threaded) {
#pragma omp parallel for schedule(static) if (threaded)
    for (int64_t plane = 0; plane < planes; ++plane) {
        const scalar* own = z + plane * pixels;
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < pixels; ++i) sum += static_cast<accumulator>(own[i]);
        const double mean = sum / static_cast<double>(pixels);
        for (int64_t i = 0; i < pixels; ++i) {
            const double off = static_cast<accumulator>(own[i]) - mean;  // (2)
            squares += off * off;
        }
        const double variance = squares / static_cast<double>(pixels);
        statistics[plane] = static_cast<accumulator>(mean);
        statistics[planes + plane] = static_cast<accumulator>(1 / std::sqrt(variance + 1e-5));
    }
}
// [/loops]

template <typename T> T gelu(T u, bool by_tanh) {
    if (by_tanh) return T(0.5) * u * (T(1) + std::tanh(T(0.79788456080286535588) * (u + T(0.044715) * u * u * u)));
    return T(0.5) * u * (T(1) + std::erf(u * T(0.70710678118654752440)));
}

uint32_t counter_random(uint64_t counter, uint64_t seed) {
    uint32_t words[4] = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
    uint32_t keys[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
    for (int round = 0; round < 10; ++round) {
        const uint64_t left = uint64_t(0xD2511F53) * words[0], right = uint64_t(0xCD9E8D57) * words[2];
        words[0] = static_cast<uint32_t>(right >> 32) ^ words[1] ^ keys[0];
        words[2] = static_cast<uint32_t>(left >> 32) ^ words[3] ^ keys[1];
        words[1] = static_cast<uint32_t>(right);
        words[3] = static_cast<uint32_t>(left);
        keys[0] += 0x9E3779B9;
        keys[1] += 0xBB67AE85;
    }
    return words[0];
}

// [loops]
template <typename scalar, typename accumulator>
void finish(const scalar* z, const accumulator* statistics, const scalar* gamma, const scalar* beta, scalar* y,
            int64_t planes, int64_t channels, int64_t pixels, bool by_tanh, int64_t drop_below, int64_t seed,
            bool threaded) {
#pragma omp parallel for collapse(2) schedule(static) if (threaded)
    for (int64_t plane = 0; plane < planes; ++plane) {
        for (int64_t pixel = 0; pixel < pixels; ++pixel) {
            const int64_t i = plane * pixels + pixel, channel = plane % channels;
            const accumulator off = static_cast<accumulator>(z[i]) - statistics[plane];
            const accumulator normal = off * statistics[planes + plane];
            accumulator value = gelu(
                normal * static_cast<accumulator>(gamma[channel]) + static_cast<accumulator>(beta[channel]), by_tanh);
            if (drop_below) {
                const bool kept = counter_random(i, seed) >= static_cast<uint64_t>(drop_below);
                const auto left = static_cast<accumulator>((int64_t(1) << 32) - drop_below);
                value = kept ? value * (accumulator(4294967296.0) / left) : accumulator(0);
            }
            y[i] = static_cast<scalar>(value);
        }
    }
}
// [/loops]

}  // namespace

#define EXPORT(name, scalar, accumulator)                                                                            \
    extern "C" void conv_block_##name(const scalar* x, const scalar* w, const scalar* bias, const scalar* gamma,     \
                                      const scalar* beta, scalar* z, accumulator* statistics, scalar* y,             \
                                      int64_t batch, int64_t in_channels, int64_t out_channels, int64_t height,      \
                                      int64_t width, int64_t by_tanh, int64_t drop_below, int64_t seed,              \
                                      int64_t threaded) {                                                            \
        const int64_t planes = batch * out_channels, pixels = height * width;                                        \
        convolve<scalar, accumulator>(x, w, bias, z, batch, in_channels, out_channels, height, width, threaded);     \
        measure(z, statistics, planes, pixels, threaded);                                                            \
        finish(z, statistics, gamma, beta, y, planes, out_channels, pixels, by_tanh, drop_below, seed, threaded);    \
    }

EXPORT(float32, float, float)
EXPORT(float64, double, double)
EXPORT(bfloat16, bfloat16, float)
EXPORT(float16, _Float16, float)
