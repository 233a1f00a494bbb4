// Linear+ReLU on a CPU as the seeds wrote it for a GPU: one output at a time, one serial sum each.
// A plain C interface (no torch headers) keeps the build under a second. OpenMP shares out the rows.

#include <cstdint>
#include <cstring>

namespace {

struct bfloat16 {
    uint16_t bits;
    operator float() const {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, sizeof value);
        return value;
    }
    bfloat16() = default;
    explicit bfloat16(float value) {
        uint32_t wide;
        std::memcpy(&wide, &value, sizeof wide);
        // Round to nearest even; a NaN keeps a set mantissa bit.
        bits = value != value ? 0x7FC0 : static_cast<uint16_t>((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16);
    }
};

template <typename scalar, typename accumulator>
void linear_relu(const scalar* x, const scalar* w, const scalar* bias, scalar* y, int64_t batch, int64_t in_features,
                 int64_t out_features) {
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t row = 0; row < batch; ++row) {
        for (int64_t column = 0; column < out_features; ++column) {
            accumulator sum = bias ? static_cast<accumulator>(bias[column]) : accumulator(0);
            for (int64_t k = 0; k < in_features; ++k) {
                sum += static_cast<accumulator>(x[row * in_features + k]) *
                       static_cast<accumulator>(w[column * in_features + k]);
            }
            y[row * out_features + column] = static_cast<scalar>(sum < accumulator(0) ? accumulator(0) : sum);
        }
    }
}

template <typename scalar, typename accumulator>
void relu(scalar* data, int64_t size) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < size; ++i) {
        if (static_cast<accumulator>(data[i]) < accumulator(0)) data[i] = static_cast<scalar>(accumulator(0));
    }
}

}  // namespace

#define EXPORT(name, scalar, accumulator)                                                                     \
    extern "C" void linear_relu_naive_##name(const scalar* x, const scalar* w, const scalar* bias, scalar* y, \
                                             int64_t batch, int64_t in_features, int64_t out_features) {      \
        linear_relu<scalar, accumulator>(x, w, bias, y, batch, in_features, out_features);                    \
    }                                                                                                         \
    extern "C" void relu_inplace_##name(scalar* data, int64_t size) { relu<scalar, accumulator>(data, size); }

EXPORT(float32, float, float)
EXPORT(float64, double, double)
EXPORT(bfloat16, bfloat16, float)
EXPORT(float16, _Float16, float)
