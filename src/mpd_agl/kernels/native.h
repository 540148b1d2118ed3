// The native kernels' table of functions, one per SIMD level. No torch, no Python: pointers and sizes only.
//
// Layout: x is [S][M][C], float32: S = T, or S = 1 when the input is the same at every step; M rows (batch and space), C channels
// innermost. s, g are [T][M][C]. i = (x - mean) * scale + beta per channel; Eq. 2-3 follow.
#pragma once
#include <cstdint>

struct Neuron {
    int64_t S, T, M, C;
    const float *mean, *scale, *beta;  // [C]
    const float *kappa;                // [T]
    float tau, v_th;
    int surrogate;                     // order of mpd_agl.kernels.native.SURROGATE_CODES
    int detach_reset;
};

struct Kernels {
    // mean and biased variance per channel over S*M values
    void (*moments)(const float *x, int64_t rows, int64_t C, float *mean, float *var);
    // out is [T][M][C]: the spikes, plus `residual` of the same shape where it is not null (SEW-ADD)
    void (*forward)(const Neuron *n, const float *x, const float *residual, float *out);
    // dv is [S][M][C] (summed over time when S = 1 < T); sums are [C]: sum dv, sum dv * (x - mean); dtau [1]; dkappa [T] or null
    void (*backward)(const Neuron *n, const float *x, const float *g, float *dv, float *sum_dv, float *sum_dv_x, float *dtau,
                     float *dkappa);
    // in place: dv -> scale * (dv - m1 - (x - mean) * m2)
    void (*normalise_grad)(const float *x, float *dv, int64_t rows, int64_t C, const float *mean, const float *scale, const float *m1,
                           const float *m2);
    // per step t: spikes, |v - v_th| < kappa/2, sum v, sum v^2, sum i, sum i^2: out is [T][6]
    void (*probe)(const Neuron *n, const float *x, double *out);
};
