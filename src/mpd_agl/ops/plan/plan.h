// A whole folded network as one call: spikes as bytes, the neuron joined to its convolution's tile, nothing allocated.
//
// Pointers and sizes only; kernels/plan.py makes the structs and owns everything that they point to. Channel counts of
// spikes are multiples of 16 (padding channels have weights of zero and never fire). A current is the sum over ky, kx
// and input channels in ascending order, so the dense way and the one that skips zeros give the same bits.
#pragma once
#include <cstdint>

struct Place {  // what lies between two layers: [steps][N][H + 2 border][W + 2 border][C], the border is zero
    int64_t H, W, C, border, steps;
    int64_t most;   // the largest value; 0: floats
    uint8_t *data;  // uint8, or float
};

struct Synapse {
    int64_t place, K, stride, pad;  // place -1: there is none
    const float *rows;              // [C_out piece][K][K][C_in][piece]: weights, or whole numbers with a `scale`
    const int16_t *whole;           // [C_out block][K][K][C_in][block]; or null
    const int8_t *groups;           // [C_out piece][K][K][C_in / 4][piece][4], for VNNI; or null
    const float *scale;             // [C_out] of whole weights; null: the rows are the weights
};

struct PlanLayer {
    int64_t kind;      // POOL, MEAN, LINEAR, CONV
    int64_t out;       // a place; -1: the logits
    int64_t residual;  // spikes that are added to the layer's own (SEW-ADD); -1: none
    int64_t carried;   // spikes that are a current, by `carried_scale` per channel (Zheng et al.); -1: none
    int64_t C_out, soft_reset;
    Synapse own, other;
    const float *bias, *carried_scale, *tau, *v_th;  // [C_out]
};

struct Plan {
    int64_t N, T, threads, layers, classes;
    const Place *places;
    const PlanLayer *layer;
    uint8_t *index;    // [pixel][list][cap]: active channels of the input of the layer at hand
    float *value;      // [pixel][list][cap]
    uint16_t *count;   // [pixel][list]
    int64_t *active;   // [layers]: length of all lists, where a layer made some
    uint8_t *scratch;  // [threads][scratch_size]
    int64_t scratch_size;
    double most_active;  // lists over channels up to which zeros are skipped; below 0: the kernel's own
};

struct PlanKernels {
    int64_t (*block)(int64_t C_out);               // output channels in a block
    int64_t (*piece)(int64_t C_out);               // output channels in a piece
    int (*vnni)();                                 // whether `groups` are used
    int64_t (*lists)(const Plan *plan, int64_t layer, int64_t *cap);  // how many lists a layer makes, and their room
    int64_t (*scratch)(const Plan *plan);          // bytes of a thread
    void (*run)(const Plan *plan, float *logits);  // the input is places[0]; logits [T][N][classes]
};
