// A row of values to its active lists, inlined where a row is made or read.
#pragma once
#include <cstdint>
#include <cstring>

#include "event.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

struct BytePatterns {  // for each mask of 8 bits the positions of its ones, as bytes
    uint64_t at[256];
    constexpr BytePatterns() : at() {
        for (int mask = 0; mask < 256; mask++) {
            uint64_t packed = 0;
            int n = 0;
            for (uint64_t bit = 0; bit < 8; bit++)
                if (mask >> bit & 1) packed |= bit << 8 * n++;
            at[mask] = packed;
        }
    }
};
constexpr BytePatterns PATTERNS;

// bits of the 8 values that are not 0; `other` are those that are not 1 either
inline unsigned active8(const float *x, unsigned &other) {
#if defined(__AVX2__)
    const __m256 v = _mm256_loadu_ps(x);
    const unsigned mask = _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ));
    other = mask & _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(1.0f), _CMP_NEQ_UQ));
    return mask;
#elif defined(__x86_64__)
    const __m128 zero = _mm_setzero_ps(), one = _mm_set1_ps(1.0f), a = _mm_loadu_ps(x), b = _mm_loadu_ps(x + 4);
    const unsigned mask = _mm_movemask_ps(_mm_cmpneq_ps(a, zero)) | _mm_movemask_ps(_mm_cmpneq_ps(b, zero)) << 4;
    other = mask & (_mm_movemask_ps(_mm_cmpneq_ps(a, one)) | _mm_movemask_ps(_mm_cmpneq_ps(b, one)) << 4);
    return mask;
#else
    unsigned mask = 0;
    other = 0;
    for (int i = 0; i < 8; i++) {
        mask |= static_cast<unsigned>(x[i] != 0.0f) << i;
        other |= static_cast<unsigned>(x[i] != 0.0f && x[i] != 1.0f) << i;
    }
    return mask;
#endif
}

// appends the positions of the mask's ones, counted from `first`; writes 8 bytes
inline void append(uint8_t *list, int64_t &n, unsigned mask, int64_t first) {
    const uint64_t found = PATTERNS.at[mask] + first * 0x0101010101010101ull;
    std::memcpy(list + n, &found, 8);
    n += __builtin_popcount(mask);
}

// One row of C values; returns not 0 where a value is neither 0 nor 1. Slots end with an index to the row of zeros
// where a count is odd.
inline unsigned scan_row(const float *x, const ActiveLists *lists, int64_t row) {
    unsigned any = 0;
    for (int64_t b = 0; b < lists->blocks; b++) {
        const int64_t slot = row * lists->blocks + b, first = b * LIST_BLOCK;
        const int64_t width = lists->C - first < LIST_BLOCK ? lists->C - first : LIST_BLOCK;
        uint8_t *index = lists->index + slot * lists->cap, others[LIST_BLOCK + 8];
        const float *in = x + first;
        int64_t n = 0, m = 0, i = 0;
        unsigned other;
        for (; i < width; i += 8) {
            float tail[8] = {};
            if (i + 8 > width) std::memcpy(tail, in + i, (width - i) * sizeof(float));
            const unsigned mask = active8(i + 8 > width ? tail : in + i, other);
            append(index, n, mask & ~other, i);  // n <= i, so this stays in the slot
            if (other) append(others, m, other, i);
        }
        any |= m > 0;
        const int64_t count = n + m;
        lists->count[slot] = static_cast<uint8_t>(count);
        if (lists->value) {
            float *value = lists->value + slot * lists->cap;
            std::memcpy(index + n, others, m);
            const int64_t ones = m > 0 ? n & ~1ll : n;  // an odd 1 goes with the others
            for (int64_t k = ones; k < count; k++) value[k] = in[index[k]];
            if (count & 1) value[count] = 0.0f;
            lists->ones[slot] = static_cast<uint8_t>(ones);
        }
        if (count & 1) index[count] = static_cast<uint8_t>(lists->cap);
    }
    return any;
}

}  // namespace
