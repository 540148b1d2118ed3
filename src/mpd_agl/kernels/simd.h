// What the hand-written loops share: a vector of the SIMD level's width, aligned memory, small integer helpers. Compiled once per level.
#pragma once
#include <cstdint>
#include <cstdlib>

#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

namespace {

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX2__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

inline vec load(const float *p) { return *reinterpret_cast<const vec *>(p); }
inline void store(float *p, vec v) { *reinterpret_cast<vec *>(p) = v; }
inline int64_t up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
template <class F> F *allocate(int64_t count) {
    return static_cast<F *>(std::aligned_alloc(64, (most(count, 1) * sizeof(F) + 63) / 64 * 64));
}

}  // namespace
