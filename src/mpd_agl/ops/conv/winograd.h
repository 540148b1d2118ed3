// A dense 3x3 convolution of stride 1 in Winograd's form F(4x4, 3x3): 36 multiplications for 16 outputs instead of 144.
// One table of functions per SIMD level; pointers and sizes only. Channel counts are multiples of 16. Functions that
// allocate return DONE or NO_MEMORY (codes.h).
#pragma once
#include "event.h"

struct WinogradKernels {
    // floats that `pack` writes
    int64_t (*packed_size)(const Geometry *g);
    // weight [C_out][3][3][C_in] -> its transform; `turned`: weight [C_in][3][3][C_out], the kernel by 180 degrees
    void (*pack)(const Geometry *g, const float *weight, int turned, float *packed);
    // y [N][OH][OW][C_out] from x [N][H][W][C_in]; bias [C_out] or null
    int (*convolve)(const Geometry *g, const float *x, const float *packed, const float *bias, float *y);
    // dw [C_out][3][3][C_in] from x and gy [N][OH][OW][C_out]
    int (*weight_grad)(const Geometry *g, const float *x, const float *gy, float *dw);
};
