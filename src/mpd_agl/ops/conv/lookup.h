// A convolution of small whole numbers (spikes, their sums) by looking sums up. Four inputs of one bit each have 16
// patterns, so the sum of their four weights is one of 16: a table has all of them, and one addition stands for four.
// The weight gradient does the same with four pixels of the output's gradient. Its time does not depend on how many
// inputs are active. One table of functions per SIMD level; pointers and sizes only. Channel counts are multiples of
// 16, kernels are 1x1 or 3x3 with stride 1 or 2. Functions that allocate return DONE or NO_MEMORY (codes.h).
#pragma once
#include "active.h"

constexpr int64_t MOST_PLANES = 4;  // bits of an input

struct LookupKernels {
    // uint16 that one plane has
    int64_t (*plane_size)(const Geometry *g);
    // The bits of x [N][H][W][C_in] times `times`, MOST_PLANES planes: [N][H + 2 pad][C_in / 16][W + 2 pad], a channel
    // per bit. Returns all values or'ed, or -1 where one is no whole number from 0 to 15: then the bits are not x's.
    int (*scan)(const Geometry *g, const float *x, float times, uint16_t *bits);
    // floats that `pack` writes
    int64_t (*packed_size)(const Geometry *g);
    // weight [C_in][K][K][C_out] -> the sums of each four input channels
    void (*pack)(const Geometry *g, const float *weight, float *packed);
    // y [N][OH][OW][C_out] = scale * (the convolution of the bits) + bias; bias [C_out] or null
    int (*forward)(const Geometry *g, const uint16_t *bits, int64_t planes, float scale, const float *packed,
                   const float *bias, float *y);
    // dw [C_out][K][K][C_in] from gy [N][OH][OW][C_out]
    int (*weight_grad)(const Geometry *g, const uint16_t *bits, int64_t planes, float scale, const float *gy,
                       float *dw);
};
