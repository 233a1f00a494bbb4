// GELU, u times the normal distribution function of u, as exactly as a dtype asks for.

#pragma once

#include "hopper.cuh"

// ---- instructions

__device__ inline float larger_or_nan(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

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

template <typename scalar> constexpr bool COARSE = false;
template <> constexpr bool COARSE<__nv_bfloat16> = true;

// GELU by the error function is max(u, 0) less |u| times the normal distribution's tail beyond |u|, which past 6 is
// nothing. For bfloat16, whose own rounding is 2e-3 of a number, it is u (1 + tanh(w)) / 2 in both forms, by the
// hardware's tanh, which is right to 5e-4; that w for the error function is fitted to 2.5e-5 of GELU. There u / 8 gives
// GELU / 4: the normalisation yields that at no cost, and its square ends at 1, as a product may at no cost, either.
// ENDLESS: -infinity may come, and gives NaN, as its product with 0 does.
template <typename scalar> constexpr float SHARE = COARSE<scalar> ? 0.125f : 1.0f;
template <typename scalar, bool TANH, bool FINE_DIGITS, bool ENDLESS = false> __device__ inline float gelu(float u) {
    if constexpr (COARSE<scalar>) {
        const float square = __saturatef(u * u);
        const float slope = TANH ? fmaf(square, 18.266834f, 6.3830768f)
                                 : fmaf(square, fmaf(square, -11.524788f, 18.947495f), 6.3800528f);
        return fmaf(u, about_tanh(u * slope), u);
    } else if constexpr (TANH) {
        // u / (1 + exp(-2 sqrt(2 / pi) (u + 0.044715 u^3)))
        return __fdividef(u, 1.0f + two_to(u * fmaf(u * u, -0.10294324f, -2.3022082f)));
    } else {
        const float v = fminf(fabsf(u), 6.0f), decay = two_to(v * v * -0.72134752f);
        return fmaf(-v, FINE_DIGITS ? fine_tail(v, decay) : normal_tail(v, decay),
                    ENDLESS ? fmaf(0.5f, u, 0.5f * fabsf(u)) : larger_or_nan(u, 0.0f));
    }
}
