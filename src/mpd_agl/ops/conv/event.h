// Event-driven convolution: the table of functions, one per SIMD level. No torch, no Python: pointers and sizes only.
// Functions that allocate return DONE or NO_MEMORY (codes.h).
//
// The active lists of x [rows][C] (a row is a pixel, channels innermost): channels are cut into `blocks` of at most
// LIST_BLOCK, and each (row, block) has a slot of `cap` bytes with the indices of its active channels and a count.
// Where values are not all 1, those that are come first (`ones` of them, an even number), then the others, with their
// values at the same places of a slot of `cap` floats.
#pragma once
#include <cstdint>

constexpr int64_t LIST_BLOCK = 128;

struct ActiveLists {
    int64_t rows, C, blocks, cap;
    uint8_t *index;  // [rows][blocks][cap]
    uint8_t *count;  // [rows][blocks]
    uint8_t *ones;   // [rows][blocks], or null: all are 1
    float *value;    // [rows][blocks][cap], or null: all are 1
};

struct Geometry {  // y[n, oy, ox] = sum over taps of x[n, oy * stride + ky - pad, ...]
    int64_t N, H, W, C_in, OH, OW, C_out, K, stride, pad;
};

struct EventKernels {
    // Fills the slots. Returns whether it met a value other than 0 and 1: then `value` must be given, or the lists are
    // not those of x.
    int (*scan)(const float *x, const ActiveLists *lists);
    // floats that `pack` writes
    int64_t (*packed_size)(const Geometry *g);
    // weight [C_out][K][K][C_in] -> [C_out block][C_in block][tap][C_in + a row of zeros][C_out in block]
    void (*pack)(const Geometry *g, const float *weight, float *packed);
    // y [N][OH][OW][C_out]; bias [C_out] or null
    int (*forward)(const Geometry *g, const ActiveLists *lists, const float *packed, const float *bias, float *y);
    // dw [C_out][K][K][C_in] from gy [N][OH][OW][C_out]
    int (*weight_grad)(const Geometry *g, const ActiveLists *lists, const float *gy, float *dw);
};
