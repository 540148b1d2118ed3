// What the neuron's kernels share, compiled once per SIMD level.
//
// The plane [M][C] is walked in tiles of P = C * k values, k rows at a time, with the channel vectors laid out k times:
// the inner loops run over a long contiguous P however few channels there are, and the compiler turns them into SIMD
// code. Time is the loop around them, with the membrane in an L1-resident tile. Sums go float -> double every FLUSH
// tiles, and the plane is cut into a number of chunks that does not depend on the number of threads: results are the
// same for any thread count.
#pragma once
#include <cmath>
#include <cstring>

#include "native.h"
#include "simd.h"

#define LOOP _Pragma("omp simd") for

namespace {

constexpr int64_t TILE = 256;   // floats per tile, at least one row
constexpr int64_t FLUSH = 32;   // tiles summed in float before they go to double
constexpr int64_t CHUNKS = 64;  // pieces of the plane, each summed on its own

struct Plane {
    int64_t size, P, tiles, chunks, tiles_per_chunk;
    Plane(int64_t rows, int64_t C) {
        int64_t k = TILE / C;
        if (k < 1) k = 1;
        if (k > rows) k = rows > 0 ? rows : 1;
        P = C * k;
        size = rows * C;
        tiles = (size + P - 1) / P;
        tiles_per_chunk = (tiles + CHUNKS - 1) / CHUNKS;
        if (tiles_per_chunk < 1) tiles_per_chunk = 1;
        chunks = (tiles + tiles_per_chunk - 1) / tiles_per_chunk;
    }
    int64_t length(int64_t tile) const { return tile + 1 < tiles ? P : size - tile * P; }
};

// A vector of C values laid out along a tile; null where there is no memory
inline float *repeat(Memory &memory, const float *v_C, int64_t C, int64_t P) {
    float *out = memory.take<float>(P);
    if (out)
        for (int64_t at = 0; at < P; at += C) std::memcpy(out + at, v_C, C * sizeof(float));
    return out;
}

struct Channels {  // the per-channel vectors of the current, laid out along a tile
    float *mean, *scale, *beta;
    Channels(Memory &memory, const Neuron *n, int64_t P)
        : mean(repeat(memory, n->mean, n->C, P)),
          scale(repeat(memory, n->scale, n->C, P)),
          beta(repeat(memory, n->beta, n->C, P)) {}
};

// Sum over chunks and rows of a tile of partial[chunk][row * C + c], in place: the first C values
inline void fold(double *partial, int64_t chunks, int64_t P, int64_t C) {
    for (const double *row = partial + C; row < partial + chunks * P; row += C)  // P is a multiple of C
        for (int64_t c = 0; c < C; c++) partial[c] += row[c];
}

// exp(-r) for r in [0, 87]: 2^k * polynomial, relative error under 2e-7
inline float exp_neg(float r) {
    float y = -r * 1.44269504088896341f;
    float k = __builtin_floorf(y + 0.5f);
    float f = (y - k) * 0.693147180559945309f;
    float e =
        1.0f +
        f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f + f * (0.00833333333f + f * 0.00138888889f)))));
    int32_t bits = (static_cast<int32_t>(k) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return e * power;
}

enum { RECTANGULAR, TRIANGULAR, SIGMOID, ARCTAN };  // the order of SURROGATE_NAMES in native.h

// h(u; kappa); `inverse` is 1/kappa
template <int SG> inline float surrogate(float u, float kappa, float inverse) {
    if constexpr (SG == RECTANGULAR) return std::fabs(u) < 0.5f * kappa ? inverse : 0.0f;
    if constexpr (SG == TRIANGULAR) {
        float r = 1.0f - std::fabs(u) * inverse;
        return (r > 0.0f ? r : 0.0f) * inverse;
    }
    if constexpr (SG == SIGMOID) {
        float r = std::fabs(u) * 4.0f * inverse;
        float e = exp_neg(r < 87.0f ? r : 87.0f);
        return 4.0f * inverse * e / ((1.0f + e) * (1.0f + e));
    }
    float r = u * 3.14159265358979323846f * inverse;
    return 1.0f / (1.0f + r * r) * inverse;
}

// dH/dkappa
inline float surrogate_by_kappa(float u, float h, float inverse) { return -u * inverse * h; }

}  // namespace
