// The neuron's kernels: tables of functions, one per SIMD level. No torch, no Python: pointers and sizes only.
//
// Layout: x is [S][M][C], float32: S = T, or S = 1 when the input is the same at every step; M rows (batch and space),
// C channels innermost. s, g are [T][M][C]. The current is i = (x - mean) * scale + beta per channel. With `kept` what
// a step leaves to the next:
//     v_t = tau * kept_{t-1} + i_t
//     s_t = [v_t >= v_th]
//     kept_t = v_t * (1 - s_t) (hard reset), or v_t - v_th * s_t (soft reset)
//
// Functions that allocate return DONE or NO_MEMORY (codes.h).
#pragma once
#include <cstdint>

// Raised whenever a struct, a function's arguments, the layout of what a function packs or the order of the surrogates
// changes; library.py holds the same number.
constexpr int ABI_VERSION = 5;
#define SURROGATE_NAMES "rectangular triangular sigmoid arctan"

struct Neuron {
    int64_t S, T, M, C;
    const float *mean, *scale, *beta;  // [C]
    const float *kappa;                // [T]
    const float *gain;                 // [T], factors on the surrogate's height
    const float *tau_C, *v_th_C;       // [C]; null: Kernels run, which take one tau and one v_th
    const float *state;                // [M][C]; null: rest
    float tau, v_th;                   // for Kernels
    int32_t surrogate, detach_reset, soft_reset;
};

// The default form: hard reset, one tau and one v_th, from rest, no gain
struct Kernels {
    // mean and biased variance per channel over S*M values
    int (*moments)(const float *x, int64_t rows, int64_t C, float *mean, float *var);
    // out is [T][M][C]: the spikes, plus `residual` of the same shape where it is not null (SEW-ADD)
    int (*forward)(const Neuron *n, const float *x, const float *residual, float *out);
    // dv is [S][M][C] (summed over time when S = 1 < T); sums are [C]: sum dv, sum dv * (x - mean); dtau [1]; dkappa
    // [T] or null
    int (*backward)(const Neuron *n, const float *x, const float *g, float *dv, float *sum_dv, float *sum_dv_x,
                    float *dtau, float *dkappa);
    // in place: dv -> scale * (dv - m1 - (x - mean) * m2)
    int (*normalise_grad)(const float *x, float *dv, int64_t rows, int64_t C, const float *mean, const float *scale,
                          const float *m1, const float *m2);
};

// Every form: tau and v_th per channel, either reset, a state to start from and to end with, gains
struct GeneralKernels {
    // kept is [M][C], the state after the last step, or null
    int (*forward)(const Neuron *n, const float *x, const float *residual, float *out, float *kept);
    // dkept is dL/dkept [M][C] or null; dtau and dv_th are [C]; dkept_0 is [M][C] or null; the rest as in Kernels
    int (*backward)(const Neuron *n, const float *x, const float *g, const float *dkept, float *dv, float *sum_dv,
                    float *sum_dv_x, float *dtau, float *dv_th, float *dkappa, float *dkept_0);
    // per step t: spikes, |v - v_th| < kappa/2, sum v, sum v^2, sum i, sum i^2: out is [T][6]
    int (*probe)(const Neuron *n, const float *x, double *out);
};
