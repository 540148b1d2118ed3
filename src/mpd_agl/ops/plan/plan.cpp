// A folded network in one call, compiled once per SIMD level (LEVEL names it). plan.h says what is where.
//
// A layer is a list of items: some output lines of all timesteps, one block of output channels. An item sums its
// currents in scratch memory, lets its neurons run over all T steps on them, and writes their spikes. One parallel
// region holds all layers.
//
// Currents come in one of three ways that give the same bits:
// - dense: a direct convolution with pixels and channels in registers, on floats or (whole weights) with VNNI;
// - lists: per pixel and 64 channels the active ones; they select rows of the weights, which are added up. Whole
//   weights are added as int16, twice as many at once as floats.
#include "plan.h"

#include <cstring>

#include "scan.h"
#include "simd.h"
#if defined(__AVX512F__)
#include <immintrin.h>
#define VNNI __attribute__((target("avx512vnni")))
#define VBMI2 __attribute__((target("avx512vbmi2")))
#endif

namespace {

enum { POOL, MEAN, LINEAR, CONV };
constexpr int64_t LIST = 64, WHOLE_LIST = 128;  // channels of a list: their rows of a block stay in L1
constexpr int64_t STEPS_PIXELS = 512;  // pixels times timesteps of an item, about
constexpr int64_t MOST_ADDED = 258;   // rows of int8 weights whose sum fits into int16
constexpr int64_t MOST_REPEATED = 4;  // a list repeats a channel as often as its value says, up to this
#if defined(__AVX512F__)
constexpr int64_t TILE = 16;  // vectors of a dense tile: two of channels (a piece) or one, for so many pixels
constexpr double SKIP = 0.40, SKIP_WHOLE = 0.33;  // length of lists over channels up to which they are quicker
#else
constexpr int64_t TILE = 8;
constexpr double SKIP = 0.50, SKIP_WHOLE = 0.80;
#endif

typedef int32_t ints __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int16_t shorts __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

bool has_vnni() {
#if defined(__AVX512F__)
    return __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

int64_t block_of(int64_t C_out) {
    int64_t vectors = 8;
    while (C_out % (vectors * LANES)) vectors /= 2;
    return vectors * LANES;
}

int64_t piece_of(int64_t C_out) { return least(block_of(C_out), 2 * LANES); }
int vnni() { return has_vnni(); }

const Place &place_of(const Plan *p, int64_t number) { return p->places[number]; }

struct Shape {  // of a layer: output size, lines of an item
    int64_t OH, OW, block, blocks, lines, per_item, groups, pixels;
    Shape(const Plan *p, const PlanLayer &l) {
        const Place &in = place_of(p, l.own.place);
        OH = (in.H + 2 * l.own.pad - l.own.K) / l.own.stride + 1;
        OW = (in.W + 2 * l.own.pad - l.own.K) / l.own.stride + 1;
        block = block_of(l.C_out), blocks = l.C_out / block;
        lines = p->N * OH;
        per_item = most(1, STEPS_PIXELS / (p->T * OW));
        per_item = most(1, least(per_item, lines * blocks / (2 * p->threads)));
        per_item = least(per_item, lines);
        groups = up(lines, per_item);
        pixels = per_item * OW;
    }
};

bool skips(const Plan *p, const PlanLayer &l) {
    const Place &in = place_of(p, l.own.place);
    if (l.kind != CONV || !in.most || block_of(l.C_out) < 4 * LANES) return false;
    return l.own.scale ? l.own.whole && in.most <= MOST_REPEATED : true;
}

int64_t list_pixels(const Plan *p, const Place &in) {
    return in.steps * p->N * (in.H + 2 * in.border) * (in.W + 2 * in.border);
}

struct ListShape {  // of a layer's input: channels of a list, lists of a pixel, room of a list
    int64_t width, each, cap;
    ListShape(const Place &in, const Synapse &y)
        : width(y.scale ? WHOLE_LIST : LIST), each(up(in.C, width)), cap(y.scale ? width * in.most : width) {}
};

int64_t lists(const Plan *p, int64_t layer, int64_t *cap) {
    const PlanLayer &l = p->layer[layer];
    if (!skips(p, l)) return *cap = 0;
    const Place &in = place_of(p, l.own.place);
    const ListShape shape(in, l.own);
    *cap = shape.cap;
    return list_pixels(p, in) * shape.each;
}

// A thread's memory for one item
struct Scratch {
    float *sums, *other, *x;
    ints *sums32;
    int16_t *sums16;
    uint16_t *since;
    int64_t size;
    static int64_t lined(int64_t n) { return up(n, 64) * 64; }
    Scratch(const Plan *p, const PlanLayer &l, uint8_t *base) {
        uint8_t *at = base;
        const auto take = [&](int64_t count) {
            uint8_t *from = at;
            at += lined(count);
            return from;
        };
        if (l.kind == LINEAR) {
            sums = reinterpret_cast<float *>(take(p->T * block_of(l.C_out) * 4));
            size = at - base;
            return;
        }
        const Shape s(p, l);
        const int64_t sum = p->T * s.pixels * s.block;
        sums = reinterpret_cast<float *>(take(sum * 4));
        other = reinterpret_cast<float *>(take(l.other.place >= 0 ? sum * 4 : 0));
        const auto gathered = [&](const Synapse &y) {
            return y.place < 0 ? 0
                               : ((s.per_item - 1) * y.stride + y.K) * ((s.OW - 1) * y.stride + y.K) *
                                     place_of(p, y.place).C;
        };
        const int64_t input = most(gathered(l.own), gathered(l.other));
        x = reinterpret_cast<float *>(take(input * 4 + 64));
        const bool whole = l.own.whole && skips(p, l);
        sums32 = reinterpret_cast<ints *>(sums);  // becomes the currents in place
        sums16 = reinterpret_cast<int16_t *>(take(whole ? sum * 2 : 0));
        since = reinterpret_cast<uint16_t *>(take(whole ? p->T * s.pixels * 2 : 0));
        size = at - base;
    }
};

int64_t scratch(const Plan *p) {
    int64_t size = 0;
    for (int64_t i = 0; i < p->layers; i++)
        if (p->layer[i].kind >= LINEAR) size = most(size, Scratch(p, p->layer[i], nullptr).size);
    return size;
}

// ---- lists

// The lists of one pixel; returns how long they are together. Without `value` a channel is repeated as often as its
// value says.
int64_t list_pixel(const uint8_t *x, int64_t C, const ListShape &s, uint8_t *index, float *value, uint16_t *count) {
    int64_t total = 0;
    for (int64_t first = 0; first < C; first += s.width, index += s.cap, count++, value += value ? s.cap : 0) {
        const int64_t width = least(s.width, C - first);
        int64_t n = 0;
        for (unsigned least_value = 1, any = 1; any; least_value++) {
            any = 0;
            for (int64_t i = 0; i < width; i += 8) {
                unsigned mask = 0;
                for (int k = 0; k < 8; k++) mask |= static_cast<unsigned>(x[first + i + k] >= least_value) << k;
                any |= mask;
                if (mask) append(index, n, mask, i);
            }
            if (value) break;
        }
        total += n;
        if (value)
            for (int64_t k = 0; k < n; k++) value[k] = x[first + index[k]];
        *count = static_cast<uint16_t>(n);
    }
    return total;
}

#if defined(__AVX512F__)
struct Iota {
    alignas(64) uint8_t at[64];
    constexpr Iota() : at() {
        for (int i = 0; i < 64; i++) at[i] = static_cast<uint8_t>(i);
    }
};
constexpr Iota IOTA;

VBMI2 int64_t list_pixel_vbmi2(const uint8_t *x, int64_t C, const ListShape &s, uint8_t *index, float *value,
                               uint16_t *count) {
    int64_t total = 0;
    for (int64_t first = 0; first < C; first += s.width, index += s.cap, count++, value += value ? s.cap : 0) {
        int64_t n = 0;
        for (int64_t i = first; i < least(C, first + s.width); i += 64) {
            const __mmask64 here = C - i >= 64 ? ~0ull : (1ull << (C - i)) - 1;
            const __m512i numbers =
                _mm512_add_epi8(_mm512_load_si512(IOTA.at), _mm512_set1_epi8(static_cast<char>(i - first)));
            const __m512i v = _mm512_maskz_loadu_epi8(here, x + i);
            __mmask64 mask = _mm512_test_epi8_mask(v, v);
            if (value) {
                alignas(64) uint8_t packed[64];
                _mm512_store_si512(packed, _mm512_maskz_compress_epi8(mask, v));
                for (int64_t k = 0; k < __builtin_popcountll(mask); k += 16) {
                    const __m128i part = _mm_load_si128(reinterpret_cast<const __m128i *>(packed + k));
                    _mm512_storeu_ps(value + n + k, _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(part)));
                }
            }
            for (int least_value = 2; mask; least_value++) {
                _mm512_storeu_si512(index + n, _mm512_maskz_compress_epi8(mask, numbers));
                n += __builtin_popcountll(mask);
                mask = value ? 0 : _mm512_cmpge_epu8_mask(v, _mm512_set1_epi8(static_cast<char>(least_value)));
            }
        }
        *count = static_cast<uint16_t>(n);
        total += n;
    }
    return total;
}
bool has_vbmi2() { return __builtin_cpu_supports("avx512vbmi2"); }
#endif

// By all threads: the lists of a layer's input, the border's included (they are empty)
void make_lists(const Plan *p, int64_t layer) {
    const PlanLayer &l = p->layer[layer];
    const Place &in = place_of(p, l.own.place);
    const ListShape s(in, l.own);
    const int64_t pixels = list_pixels(p, in), chunk = 256;
    const bool values = !l.own.scale && in.most > 1;
    auto *const list = list_pixel;
#if defined(__AVX512F__)
    auto *const make = has_vbmi2() ? list_pixel_vbmi2 : list;
#else
    auto *const make = list;
#endif
#pragma omp for schedule(static)
    for (int64_t c = 0; c < up(pixels, chunk); c++) {
        int64_t total = 0;
        for (int64_t i = c * chunk; i < least(pixels, (c + 1) * chunk); i++)
            total += make(in.data + i * in.C, in.C, s, p->index + i * s.each * s.cap,
                          values ? p->value + i * s.each * s.cap : nullptr, p->count + i * s.each);
        __atomic_fetch_add(p->active + layer, total, __ATOMIC_RELAXED);
    }
}

// sum += the rows that a list selects; the pieces of a row are `apart`. Not inlined: it wants the registers for itself.
template <int NV, bool VALUES>
__attribute__((noinline)) void add_rows(const float *rows, int64_t apart, const uint8_t *index, const float *value,
                                        int64_t n, float *sum) {
    constexpr int P = NV / 2;
    const char *from[P];
#pragma GCC unroll 4
    for (int j = 0; j < P; j++) from[j] = reinterpret_cast<const char *>(rows + j * apart);
    vec a[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) a[j] = load(sum + j * LANES);
    for (const uint8_t *last = index + n; index < last; index++) {
        const uint64_t at = static_cast<uint64_t>(*index) * (2 * LANES * sizeof(float));
        const float times = VALUES ? *value++ : 1.0f;
#pragma GCC unroll 8
        for (int j = 0; j < NV; j++) {
            const vec w = load(reinterpret_cast<const float *>(from[j / 2] + at) + j % 2 * LANES);
            a[j] += VALUES ? times * w : w;
        }
    }
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) store(sum + j * LANES, a[j]);
}

inline shorts load16(const int16_t *p) { return *reinterpret_cast<const shorts *>(p); }

template <int NV>
__attribute__((noinline)) void add_whole_rows(const int16_t *rows, const uint8_t *index, int64_t n, int16_t *sum) {
    shorts a[NV];
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) a[j] = load16(sum + j * 2 * LANES);
    for (const uint8_t *last = index + n; index < last; index++) {
        const int16_t *row = rows + static_cast<uint64_t>(*index) * (NV * 2 * LANES);
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) a[j] += load16(row + j * 2 * LANES);
    }
#pragma GCC unroll 4
    for (int j = 0; j < NV; j++) *reinterpret_cast<shorts *>(sum + j * 2 * LANES) = a[j];
}

// sum32 += sum16, which is zero afterwards
inline void flush(int16_t *__restrict sum16, int32_t *__restrict sum32, int64_t count) {
    for (int64_t i = 0; i < count; i++) sum32[i] += sum16[i];
    std::memset(sum16, 0, count * sizeof(int16_t));
}

struct Lines {  // the output lines of an item, and its block of channels
    int64_t first, last, block;
    Lines(const Shape &s, int64_t item)
        : first(item / s.blocks * s.per_item), last(least(s.lines, first + s.per_item)), block(item % s.blocks) {}
};

// Calls use(slot of the first pixel, pixels between slots, place of the sums) for each line, step and tap
template <class Use>
inline void each_line(const Plan *p, const Synapse &y, const Shape &s, const Lines &lines, const Use &use) {
    const Place &in = place_of(p, y.place);
    const int64_t HP = in.H + 2 * in.border, WP = in.W + 2 * in.border, off = in.border - y.pad;
    for (int64_t tap = 0; tap < y.K * y.K; tap++)
        for (int64_t first = 0; first < in.C; first += y.scale ? WHOLE_LIST : LIST)
            for (int64_t t = 0; t < in.steps; t++)
                for (int64_t line = lines.first; line < lines.last; line++) {
                    const int64_t n = line / s.OH, iy = line % s.OH * y.stride + tap / y.K + off, ix = tap % y.K + off;
                    use(tap, first, ((t * p->N + n) * HP + iy) * WP + ix,
                        t * s.pixels + (line - lines.first) * s.OW);
                }
}

template <int NV, bool VALUES>
void sum_lists(const Plan *p, const Synapse &y, const Shape &s, const Lines &lines, float *sums) {
    const Place &in = place_of(p, y.place);
    const ListShape list(in, y);
    const int64_t row = NV * LANES, piece = 2 * LANES, apart = y.K * y.K * in.C * piece, step = y.stride * list.each;
    std::memset(sums, 0, in.steps * s.pixels * row * sizeof(float));
    each_line(p, y, s, lines, [&](int64_t tap, int64_t first, int64_t pixel, int64_t at) {
        const float *rows = y.rows + lines.block * (NV / 2) * apart + (tap * in.C + first) * piece;
        int64_t slot = pixel * list.each + first / LIST;
        for (int64_t ox = 0; ox < s.OW; ox++, slot += step)
            add_rows<NV, VALUES>(rows, apart, p->index + slot * list.cap, p->value + slot * list.cap, p->count[slot],
                                 sums + (at + ox) * row);
    });
}

template <int NV>
void sum_whole_lists(const Plan *p, const Synapse &y, const Shape &s, const Lines &lines, const Scratch &m) {
    const Place &in = place_of(p, y.place);
    const ListShape list(in, y);
    const int64_t row = NV * 2 * LANES, step = y.stride * list.each, all = in.steps * s.pixels;
    int32_t *sums32 = reinterpret_cast<int32_t *>(m.sums32);
    std::memset(sums32, 0, all * row * sizeof(int32_t));
    std::memset(m.sums16, 0, all * row * sizeof(int16_t));
    std::memset(m.since, 0, all * sizeof(uint16_t));
    each_line(p, y, s, lines, [&](int64_t tap, int64_t first, int64_t pixel, int64_t at) {
        const int16_t *rows = y.whole + ((lines.block * y.K * y.K + tap) * in.C + first) * row;
        int64_t slot = pixel * list.each + first / WHOLE_LIST;
        for (int64_t ox = 0; ox < s.OW; ox++, slot += step) {
            const int64_t here = at + ox;
            const uint8_t *index = p->index + slot * list.cap;
            int64_t n = p->count[slot];
            while (m.since[here] + n > MOST_ADDED) {
                const int64_t some = MOST_ADDED - m.since[here];
                add_whole_rows<NV>(rows, index, some, m.sums16 + here * row);
                flush(m.sums16 + here * row, sums32 + here * row, row);
                m.since[here] = 0, index += some, n -= some;
            }
            m.since[here] = static_cast<uint16_t>(m.since[here] + n);
            add_whole_rows<NV>(rows, index, n, m.sums16 + here * row);
        }
    });
    const float *scale = y.scale + lines.block * row;
    for (int64_t here = 0; here < all; here++)
        for (int64_t c = 0; c < row; c++)
            m.sums[here * row + c] =
                static_cast<float>(sums32[here * row + c] + m.sums16[here * row + c]) * scale[c];
}

// ---- dense

// The same for M pixels and NV vectors of channels: all taps in registers. x is at x + pixel * px + ky * line.
template <int M, int NV>
inline void dense_tile(const float *__restrict x, int64_t px, int64_t line, int64_t K, int64_t depth,
                       const float *__restrict w, int64_t row, float *__restrict out) {
    vec sum[M][NV] = {};
    for (int64_t ky = 0; ky < K; ky++, x += line)
        for (int64_t k = 0; k < depth; k++, w += NV * LANES) {
            vec u[NV];
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) u[j] = load(w + j * LANES);
#pragma GCC unroll 16
            for (int i = 0; i < M; i++)
#pragma GCC unroll 4
                for (int j = 0; j < NV; j++) sum[i][j] += x[i * px + k] * u[j];
        }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) store(out + i * row + j * LANES, sum[i][j]);
}

template <int M, int NV>
inline void dense_tiles(const float *x, int64_t px, int64_t line, int64_t K, int64_t depth, const float *w, int64_t row,
                        int64_t count, float *out) {
    for (int64_t i = 0; i < count; i += M) {
        const int64_t at = least(i, count - M);
        dense_tile<M, NV>(x + at * px, px, line, K, depth, w, row, out + at * row);
    }
}

// A line of outputs; the last tile overlaps the one before it
template <int NV>
void dense_line(const float *x, int64_t px, int64_t line, int64_t K, int64_t depth, const float *w, int64_t row,
                int64_t count, float *out) {
    constexpr int M = TILE / NV;
    if (count >= M) return dense_tiles<M, NV>(x, px, line, K, depth, w, row, count, out);
    if (count >= M / 2) return dense_tiles<M / 2, NV>(x, px, line, K, depth, w, row, count, out);
    dense_tiles<1, NV>(x, px, line, K, depth, w, row, count, out);
}

// One piece of a block: two vectors of channels, or one
inline void dense_piece(const float *x, int64_t px, int64_t line, int64_t K, int64_t depth, const float *w,
                        int64_t row, int64_t count, float *out) {
    row == LANES ? dense_line<1>(x, px, line, K, depth, w, row, count, out)
                 : dense_line<2>(x, px, line, K, depth, w, row, count, out);
}

#if defined(__AVX512F__)
template <int M, int NV>
VNNI inline void vnni_tile(const uint8_t *x, int64_t px, int64_t line, int64_t K, int64_t groups, const int8_t *w,
                           const float *scale, int64_t row, float *out) {
    __m512i sum[M][NV];
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++) sum[i][j] = _mm512_setzero_si512();
    for (int64_t ky = 0; ky < K; ky++, x += line)
        for (int64_t g = 0; g < groups; g++, w += NV * 64) {
            __m512i u[NV];
#pragma GCC unroll 4
            for (int j = 0; j < NV; j++) u[j] = _mm512_loadu_si512(w + j * 64);
#pragma GCC unroll 16
            for (int i = 0; i < M; i++) {
                int32_t four;
                std::memcpy(&four, x + i * px + 4 * g, 4);
                const __m512i v = _mm512_set1_epi32(four);
#pragma GCC unroll 4
                for (int j = 0; j < NV; j++) sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], v, u[j]);
            }
        }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NV; j++)
            _mm512_storeu_ps(out + i * row + j * LANES,
                             _mm512_mul_ps(_mm512_cvtepi32_ps(sum[i][j]), _mm512_loadu_ps(scale + j * LANES)));
}

template <int M, int NV>
VNNI inline void vnni_tiles(const uint8_t *x, int64_t px, int64_t line, int64_t K, int64_t groups, const int8_t *w,
                            const float *scale, int64_t row, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i += M) {
        const int64_t at = least(i, count - M);
        vnni_tile<M, NV>(x + at * px, px, line, K, groups, w, scale, row, out + at * row);
    }
}

template <int NV>
VNNI void vnni_line(const uint8_t *x, int64_t px, int64_t line, int64_t K, int64_t groups, const int8_t *w,
                    const float *scale, int64_t row, int64_t count, float *out) {
    constexpr int M = TILE / NV;
    if (count >= M) return vnni_tiles<M, NV>(x, px, line, K, groups, w, scale, row, count, out);
    if (count >= M / 2) return vnni_tiles<M / 2, NV>(x, px, line, K, groups, w, scale, row, count, out);
    vnni_tiles<1, NV>(x, px, line, K, groups, w, scale, row, count, out);
}

// Lines of a block, whose channels begin at `first`
void vnni_lines(const Synapse &y, int64_t C, int64_t line, int64_t first, int64_t row, int64_t lines, int64_t count,
                const uint8_t *x, float *out) {
    const int64_t piece = least(row, 2 * LANES), groups = y.K * C / 4, size = y.K * groups * piece * 4;
    for (int64_t c = 0; c < row; c += piece)
        for (int64_t k = 0; k < lines; k++) {
            const int8_t *w = y.groups + (first + c) / piece * size;
            const uint8_t *from = x + k * y.stride * line;
            float *to = out + k * count * row + c;
            piece == LANES
                ? vnni_line<1>(from, y.stride * C, line, y.K, groups, w, y.scale + first + c, row, count, to)
                : vnni_line<2>(from, y.stride * C, line, y.K, groups, w, y.scale + first + c, row, count, to);
        }
}
#endif

// Rows of the input as floats, with zeros around it: [rows][wide][C] from row iy0 and column ix0 of the image on
template <class F>
void gather(const Place &in, int64_t image, int64_t iy0, int64_t ix0, int64_t rows, int64_t wide, float *out) {
    const int64_t HP = in.H + 2 * in.border, WP = in.W + 2 * in.border;
    const F *from = reinterpret_cast<const F *>(in.data) + image * HP * WP * in.C;
    const int64_t left = least(wide, most(0, -ix0)), right = most(left, least(wide, WP - ix0));
    for (int64_t r = 0; r < rows; r++, out += wide * in.C) {
        const int64_t iy = iy0 + r;
        if (iy < 0 || iy >= HP) {
            std::memset(out, 0, wide * in.C * sizeof(float));
            continue;
        }
        std::memset(out, 0, left * in.C * sizeof(float));
        const F *__restrict line = from + (iy * WP + ix0 + left) * in.C;
        float *__restrict to = out + left * in.C;
        for (int64_t i = 0; i < (right - left) * in.C; i++) to[i] = static_cast<float>(line[i]);
        std::memset(out + right * in.C, 0, (wide - right) * in.C * sizeof(float));
    }
}

// sums [steps][pixels][block], all taps and channels
void sum_dense(const Plan *p, const Synapse &y, const Shape &s, const Lines &lines, const Scratch &m, float *sums) {
    const Place &in = place_of(p, y.place);
    const int64_t off = in.border - y.pad, row = s.block;
    for (int64_t t = 0; t < in.steps; t++)
        for (int64_t line = lines.first, next; line < lines.last; line = next) {
            const int64_t n = line / s.OH, oy = line % s.OH;
            next = least(lines.last, (n + 1) * s.OH);
            const int64_t iy = oy * y.stride + off;
            float *out = sums + (t * s.pixels + (line - lines.first) * s.OW) * row;
#if defined(__AVX512F__)
            if (y.groups && has_vnni()) {
                const int64_t HP = in.H + 2 * in.border, WP = in.W + 2 * in.border;
                const uint8_t *x = in.data + (((t * p->N + n) * HP + iy) * WP + off) * in.C;
                vnni_lines(y, in.C, WP * in.C, lines.block * row, row, next - line, s.OW, x, out);
                continue;
            }
#endif
            const int64_t wide = (s.OW - 1) * y.stride + y.K, high = (next - line - 1) * y.stride + y.K;
            if (in.most)
                gather<uint8_t>(in, t * p->N + n, iy, off, high, wide, m.x);
            else
                gather<float>(in, t * p->N + n, iy, off, high, wide, m.x);
            const float *w = y.rows + lines.block * y.K * y.K * in.C * row;
            const int64_t piece = least(row, 2 * LANES);
            // a piece's weights are used for all lines while they are close
            for (int64_t c = 0; c < row; c += piece, w += y.K * y.K * in.C * piece)
                for (int64_t k = 0; k < next - line; k++)
                    dense_piece(m.x + k * y.stride * wide * in.C, y.stride * in.C, wide * in.C, y.K, y.K * in.C, w,
                                row, s.OW, out + k * s.OW * row + c);
            if (y.scale)
                for (int64_t i = 0; i < (next - line) * s.OW; i++)
                    for (int64_t c = 0; c < row; c++) out[i * row + c] *= y.scale[lines.block * row + c];
        }
}

// ---- neurons

// The address of an output pixel's channels
uint8_t *pixel_of(const Plan *p, const Place &at, int64_t t, int64_t n, int64_t y, int64_t x) {
    return at.data + (((t * p->N + n) * (at.H + 2 * at.border) + y + at.border) * (at.W + 2 * at.border) + x +
                      at.border) * at.C;
}

// Sums become currents where spikes are added to them (Zheng et al.), from another synapse or by a factor
void add_currents(const Plan *p, const PlanLayer &l, const Shape &s, const Lines &lines, int64_t steps, float *sums,
                  const float *other) {
    for (int64_t t = 0; t < steps; t++)
        for (int64_t line = lines.first; line < lines.last; line++)
            for (int64_t ox = 0; ox < s.OW; ox++) {
                const int64_t c0 = lines.block * s.block,
                              at = (t * s.pixels + (line - lines.first) * s.OW + ox) * s.block;
                float *__restrict sum = sums + at;
                if (l.other.place >= 0) {
                    for (int64_t c = 0; c < s.block; c++) sum[c] += other[at + c];
                } else {
                    const uint8_t *in = pixel_of(p, place_of(p, l.carried), t, line / s.OH, line % s.OH, ox) + c0;
                    for (int64_t c = 0; c < s.block; c++)
                        sum[c] += static_cast<float>(in[c]) * l.carried_scale[c0 + c];
                }
            }
}

template <bool RESIDUAL, bool SOFT>
void fire(const Plan *p, const PlanLayer &l, const Shape &s, const Lines &lines, int64_t steps, const float *sums) {
    const Place &out = place_of(p, l.out);
    const int64_t step = steps > 1 ? s.pixels * s.block : 0;
    for (int64_t line = lines.first; line < lines.last; line++)
        for (int64_t ox = 0; ox < s.OW; ox++) {
            const int64_t n = line / s.OH, oy = line % s.OH, c0 = lines.block * s.block;
            const float *from = sums + ((line - lines.first) * s.OW + ox) * s.block;
            uint8_t *to = pixel_of(p, out, 0, n, oy, ox) + c0;
            const int64_t image = p->N * (out.H + 2 * out.border) * (out.W + 2 * out.border) * out.C;
            const uint8_t *more = nullptr;
            int64_t more_image = 0;
            if constexpr (RESIDUAL) {
                const Place &r = place_of(p, l.residual);
                more = pixel_of(p, r, 0, n, oy, ox) + c0;
                more_image = p->N * (r.H + 2 * r.border) * (r.W + 2 * r.border) * r.C;
            }
            for (int64_t c = 0; c < s.block; c += LANES) {
                const vec bias = load(l.bias + c0 + c), tau = load(l.tau + c0 + c), v_th = load(l.v_th + c0 + c);
                vec kept = {};
                for (int64_t t = 0; t < p->T; t++) {
                    const vec v = tau * kept + (load(from + t * step + c) + bias);  // Eq. 2
                    const ints fired = v >= v_th;                                   // Eq. 3
                    kept = fired ? (SOFT ? v - v_th : vec{}) : v;
                    bytes spikes = __builtin_convertvector(-fired, bytes);
                    if constexpr (RESIDUAL) spikes += *reinterpret_cast<const bytes *>(more + t * more_image + c);
                    *reinterpret_cast<bytes *>(to + t * image + c) = spikes;
                }
            }
        }
}

void fire(const Plan *p, const PlanLayer &l, const Shape &s, const Lines &lines, int64_t steps, const float *sums) {
    if (l.residual >= 0)
        l.soft_reset ? fire<true, true>(p, l, s, lines, steps, sums) : fire<true, false>(p, l, s, lines, steps, sums);
    else
        l.soft_reset ? fire<false, true>(p, l, s, lines, steps, sums) : fire<false, false>(p, l, s, lines, steps, sums);
}

// ---- layers, each called by all threads

void sum_own(const Plan *p, const PlanLayer &l, const Shape &s, const Lines &lines, const Scratch &m, bool skip) {
    if (!skip) return sum_dense(p, l.own, s, lines, m, m.sums);
    const int64_t vectors = s.block / LANES;
    if (l.own.scale)
        return vectors == 8 ? sum_whole_lists<4>(p, l.own, s, lines, m) : sum_whole_lists<2>(p, l.own, s, lines, m);
    if (place_of(p, l.own.place).most > 1)
        return vectors == 8 ? sum_lists<8, true>(p, l.own, s, lines, m.sums)
                            : sum_lists<4, true>(p, l.own, s, lines, m.sums);
    return vectors == 8 ? sum_lists<8, false>(p, l.own, s, lines, m.sums)
                        : sum_lists<4, false>(p, l.own, s, lines, m.sums);
}

void conv(const Plan *p, int64_t layer, uint8_t *memory) {
    const PlanLayer &l = p->layer[layer];
    const Place &in = place_of(p, l.own.place);
    const Shape s(p, l);
    const Scratch m(p, l, memory);
    bool skip = skips(p, l);
    if (skip) {
        make_lists(p, layer);
        const double limit = p->most_active >= 0 ? p->most_active : l.own.scale ? SKIP_WHOLE : SKIP;
        const double all = static_cast<double>(in.steps * p->N * in.H * in.W * in.C);
        skip = static_cast<double>(__atomic_load_n(p->active + layer, __ATOMIC_RELAXED)) <= limit * all;
    }
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < s.groups * s.blocks; item++) {
        const Lines lines(s, item);
        sum_own(p, l, s, lines, m, skip);
        if (l.other.place >= 0) sum_dense(p, l.other, s, lines, m, m.other);
        if (l.other.place >= 0 || l.carried >= 0) add_currents(p, l, s, lines, in.steps, m.sums, m.other);
        fire(p, l, s, lines, in.steps, m.sums);
    }
}

// 2x2 sums; the factor of 1/4 is in the next layer's weights
void pool(const Plan *p, const PlanLayer &l) {
    const Place &in = place_of(p, l.own.place), &out = place_of(p, l.out);
    const int64_t lines = out.steps * p->N * out.H, WP = in.W + 2 * in.border;
#pragma omp for schedule(static)
    for (int64_t line = 0; line < lines; line++) {
        const int64_t image = line / out.H, y = line % out.H;
        const uint8_t *from = pixel_of(p, in, 0, image, 2 * y, 0);
        uint8_t *__restrict to = pixel_of(p, out, 0, image, y, 0);
        for (int64_t x = 0; x < out.W; x++, from += 2 * in.C, to += out.C) {
            const uint8_t *__restrict a = from, *__restrict b = from + WP * in.C;
            for (int64_t c = 0; c < in.C; c++) to[c] = static_cast<uint8_t>(a[c] + a[c + in.C] + b[c] + b[c + in.C]);
        }
    }
}

// Means over a picture as floats [steps][N][C]
void mean(const Plan *p, const PlanLayer &l) {
    const Place &in = place_of(p, l.own.place), &out = place_of(p, l.out);
    const float pixels = static_cast<float>(in.H * in.W);
#pragma omp for schedule(static)
    for (int64_t image = 0; image < in.steps * p->N; image++) {
        float *__restrict to = reinterpret_cast<float *>(out.data) + image * out.C;
        std::memset(to, 0, out.C * sizeof(float));
        for (int64_t y = 0; y < in.H; y++)
            for (int64_t x = 0; x < in.W; x++) {
                const uint8_t *__restrict from = pixel_of(p, in, 0, image, y, x);
                for (int64_t c = 0; c < in.C; c++) to[c] += static_cast<float>(from[c]);
            }
        for (int64_t c = 0; c < in.C; c++) to[c] /= pixels;
    }
}

// A linear layer on floats; with neurons, or the readout
void linear(const Plan *p, const PlanLayer &l, uint8_t *memory, float *logits) {
    const Place &in = place_of(p, l.own.place);
    const int64_t block = block_of(l.C_out), blocks = l.C_out / block;
    const Scratch m(p, l, memory);
#pragma omp for schedule(dynamic)
    for (int64_t item = 0; item < p->N * blocks; item++) {
        const int64_t n = item / blocks, ob = item % blocks;
        const float *x = reinterpret_cast<const float *>(in.data) + n * in.C;
        // the pixels of dense_piece are the timesteps of one sample
        const int64_t piece = least(block, 2 * LANES);
        for (int64_t c = 0; c < block; c += piece)
            dense_piece(x, p->N * in.C, 0, 1, in.C, l.own.rows + (ob * block + c) * in.C, block, p->T, m.sums + c);
        if (l.out < 0) {
            for (int64_t t = 0; t < p->T; t++)
                for (int64_t c = 0; c < least(block, p->classes - ob * block); c++)
                    logits[(t * p->N + n) * p->classes + ob * block + c] =
                        m.sums[t * block + c] + l.bias[ob * block + c];
            continue;
        }
        Shape s(p, l);
        s.pixels = 1, s.OW = 1, s.OH = 1;
        Lines lines(s, 0);
        lines.first = n, lines.last = n + 1, lines.block = ob;
        fire(p, l, s, lines, p->T, m.sums);
    }
}

void run(const Plan *p, float *logits) {
    std::memset(p->active, 0, p->layers * sizeof(int64_t));
#pragma omp parallel num_threads(static_cast<int>(p->threads))
    {
        const Member member;
        uint8_t *memory = p->scratch + member.number * p->scratch_size;
        for (int64_t i = 0; i < p->layers; i++) switch (p->layer[i].kind) {
                case POOL: pool(p, p->layer[i]); break;
                case MEAN: mean(p, p->layer[i]); break;
                case LINEAR: linear(p, p->layer[i], memory, logits); break;
                default: conv(p, i, memory);
            }
    }
}

}  // namespace

extern "C" const PlanKernels CAT(mpd_agl_plan_, LEVEL);
extern "C" const PlanKernels CAT(mpd_agl_plan_, LEVEL) = {block_of, piece_of, vnni, lists, scratch, run};
