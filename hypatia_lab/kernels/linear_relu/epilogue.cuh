// What stands behind a product in its kernel: functions of a sum in float, before it is rounded and stored. A kernel
// takes one as a template argument; Then makes one of two. NaN and infinities go through as in PyTorch.

#pragma once

#include "gelu.cuh"

// ---- kernels

struct Same {
    __device__ static float of(float u) { return u; }
};

struct Relu {
    __device__ static float of(float u) { return u < 0 ? 0 : u; }
};

// As exact as scalar asks for, or with FINE, of float, as float is; by TANH or by the error function.
template <typename scalar, bool TANH, bool FINE> struct Gelu {
    __device__ static float of(float u) {
        return gelu<scalar, TANH, FINE, true>(SHARE<scalar> * u) * (COARSE<scalar> ? 4.0f : 1.0f);
    }
};

template <typename First, typename Second> struct Then {
    __device__ static float of(float u) { return Second::of(First::of(u)); }
};
