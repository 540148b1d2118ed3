// What the hand-written loops share: a vector of the SIMD level's width, checked memory, the threads of a parallel
// region, small integer helpers. Compiled once per level, so everything is in an anonymous namespace.
#pragma once
#include <cstdint>
#include <cstdlib>
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(_WIN32)
#include <malloc.h>
#endif

#include "codes.h"

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

// The threads of a parallel region, `#pragma omp parallel num_threads(team.size)`, and one of them inside it
struct Team {
    int size = 1;
    Team() {
#ifdef _OPENMP
        size = omp_get_max_threads();
#endif
    }
};

struct Member {
    int64_t number = 0;
    Member() {
#ifdef _OPENMP
        number = omp_get_thread_num();
#endif
    }
};

template <class F> struct PerThread {
    F *all;
    int64_t stride;
    F *operator[](const Member &member) const { return all + member.number * stride; }
};

// Blocks on cache lines that are freed together. After the last take(), ok() says whether all of them were there.
class Memory {
  public:
    Memory() = default;
    Memory(const Memory &) = delete;
    ~Memory() {
        for (int i = 0; i < used; i++)
#if defined(_WIN32)
            _aligned_free(blocks[i]);
#else
            std::free(blocks[i]);
#endif
    }
    template <class F> F *take(int64_t count) {
        constexpr int64_t most_bytes = INT64_MAX / 2;
        if (used == MOST_BLOCKS || count < 0 || count > most_bytes / static_cast<int64_t>(sizeof(F)) ||
            !mpd_agl_may_allocate()) {
            complete = false;
            return nullptr;
        }
        const size_t bytes = (static_cast<size_t>(most(count, 1)) * sizeof(F) + 63) / 64 * 64;
        void *block = nullptr;
#if defined(_WIN32)
        block = _aligned_malloc(bytes, 64);
#else
        if (posix_memalign(&block, 64, bytes)) block = nullptr;
#endif
        if (!block) {
            complete = false;
            return nullptr;
        }
        blocks[used++] = block;
        return static_cast<F *>(block);
    }
    template <class F> PerThread<F> each(const Team &team, int64_t count) {
        const int64_t stride = (count / 16 + 2) * 16;  // no two threads write to one cache line
        return {take<F>(team.size * stride), stride};
    }
    bool ok() const { return complete; }

  private:
    static constexpr int MOST_BLOCKS = 32;
    void *blocks[MOST_BLOCKS];
    int used = 0;
    bool complete = true;
};

}  // namespace
