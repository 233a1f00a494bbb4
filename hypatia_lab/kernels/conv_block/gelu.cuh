// What float32's digits ask of GELU.

#pragma once

#include "hopper.cuh"

// ---- kernels

// As normal_tail, itself and times v right to 4.7e-8 where that is to 4.1e-6.
__device__ inline float fine_tail(float v, float decay) {
    constexpr float FITTED[] = {-1.32462e-6f, 1.719165e-5f,  -1.3506153e-4f, 7.298114e-4f, -2.946433e-3f, 9.505244e-3f,
                                -0.025929315f, 0.06218541f, -0.13289343f,   0.24998786f,  -0.3989417f,   0.5f};
    float sum = 4.6154863e-8f;
#pragma unroll
    for (float next : FITTED) sum = fmaf(v, sum, next);
    return sum * decay;
}
