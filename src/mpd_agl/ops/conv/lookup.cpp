// Convolutions of small whole numbers by looking sums up, compiled once per SIMD level (LEVEL names it). lookup.h says
// what is computed.
//
// Forward: the 16 sums of each four input channels, for one vector of output channels and all taps of 16 input
// channels, stay in L1 (36 KB with AVX-512) while a band of output pixels uses them. Pixels of a line are in registers.
// Weight gradient: 32 output pixels are eight groups of four; the 16 sums of each group's gradients are in L1, and the
// bits of an input channel along the pixels select them.
//
// The order of additions depends on the shape alone, not on threads.
#include "lookup.h"

#include <cstring>

#include "simd.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr int64_t WORD = 16, GROUPS = WORD / 4;    // channels of a word of bits, groups of four
constexpr int64_t PATTERNS = 16;                   // of four bits
constexpr int64_t BAND = 1024;                     // output pixels that use a piece of the table together, about
constexpr int64_t UNIT = 32, FOURS = UNIT / 4;     // output pixels whose gradients are tabulated together
constexpr int64_t BLOCK = 64;                      // input and output channels of a weight gradient's sums in L2
constexpr int64_t CHUNKS = 16;                     // partial sums of a weight gradient: the same with any threads
constexpr int64_t SLACK = 64;                      // uint16 behind the last plane that a vector may read

struct Planes {  // where the bits of an input are
    int64_t HP, WP, words, line, size;
    Planes(const Geometry *g)
        : HP(g->H + 2 * g->pad), WP(g->W + 2 * g->pad), words(g->C_in / WORD), line(words * WP),
          size(g->N * HP * line) {}
};

int64_t plane_size(const Geometry *g) { return Planes(g).size + SLACK; }

// The bits of 16 values, one word for each plane; false where one is not a whole number
inline bool bits_of(const float *x, float times, int64_t step, uint16_t *out, uint32_t &all) {
#if defined(__AVX512F__)
    const __m512 v = _mm512_mul_ps(_mm512_loadu_ps(x), _mm512_set1_ps(times));
    const __m512i q = _mm512_cvtps_epi32(v);
    const __mmask16 other = _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(q), v, _CMP_NEQ_UQ);
    for (int b = 0; b < MOST_PLANES; b++) {
        const __mmask16 set = _mm512_test_epi32_mask(q, _mm512_set1_epi32(1 << b));
        out[b * step] = static_cast<uint16_t>(set);
        all |= set ? 1u << b : 0u;
    }
    const __mmask16 large = _mm512_test_epi32_mask(q, _mm512_set1_epi32(~15));
    return !(other | large);
#elif defined(__AVX2__)
    int other = 0;
    unsigned set[MOST_PLANES] = {};
    for (int half = 0; half < 2; half++) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * half), _mm256_set1_ps(times));
        const __m256i q = _mm256_cvtps_epi32(v);
        other |= _mm256_movemask_ps(_mm256_cmp_ps(_mm256_cvtepi32_ps(q), v, _CMP_NEQ_UQ));
        other |= !_mm256_testz_si256(q, _mm256_set1_epi32(~15));
        set[0] |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(q, 31)))) << 8 * half;
        set[1] |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(q, 30)))) << 8 * half;
        set[2] |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(q, 29)))) << 8 * half;
        set[3] |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_slli_epi32(q, 28)))) << 8 * half;
    }
    for (int b = 0; b < MOST_PLANES; b++) {
        out[b * step] = static_cast<uint16_t>(set[b]);
        all |= set[b] ? 1u << b : 0u;
    }
    return !other;
#else
    bool whole = true;
    uint16_t set[MOST_PLANES] = {};
    for (int c = 0; c < WORD; c++) {
        const float v = x[c] * times;
        const bool small = v >= 0.0f && v < 16.0f;
        const unsigned q = small ? static_cast<unsigned>(v) : 0u;
        whole = whole && small && static_cast<float>(q) == v;
        for (int b = 0; b < MOST_PLANES; b++) set[b] |= static_cast<uint16_t>((q >> b & 1u) << c);
    }
    for (int b = 0; b < MOST_PLANES; b++) {
        out[b * step] = set[b];
        all |= set[b] ? 1u << b : 0u;
    }
    return whole;
#endif
}

// The bits of 16 values that are 0 or 1; false where one is neither
inline bool spikes_of(const float *x, uint16_t *out) {
#if defined(__AVX512F__)
    const __m512i v = _mm512_loadu_si512(x);
    const __mmask16 ones = _mm512_cmpeq_epi32_mask(v, _mm512_castps_si512(_mm512_set1_ps(1.0f)));
    *out = static_cast<uint16_t>(ones);
    return _mm512_test_epi32_mask(v, v) == ones;
#elif defined(__AVX2__)
    unsigned ones = 0, any = 0;
    for (int half = 0; half < 2; half++) {
        const __m256 v = _mm256_loadu_ps(x + 8 * half);
        ones |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(1.0f), _CMP_EQ_OQ)))
                << 8 * half;
        any |= static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ)))
               << 8 * half;
    }
    *out = static_cast<uint16_t>(ones);
    return ones == any;
#else
    unsigned ones = 0, any = 0;
    for (int c = 0; c < WORD; c++) ones |= (x[c] == 1.0f) << c, any |= (x[c] != 0.0f) << c;
    *out = static_cast<uint16_t>(ones);
    return ones == any;
#endif
}

int scan(const Geometry *g, const float *x, float times, uint16_t *bits) {
    const Planes p(g);
    const int64_t step = plane_size(g);
    int bad = 0, found = 0;
#pragma omp parallel for schedule(static) reduction(| : bad, found)
    for (int64_t row = 0; row < g->N * p.HP; row++) {
        const int64_t n = row / p.HP, iy = row % p.HP - g->pad;
        uint16_t *to = bits + row * p.line;
        for (int64_t b = 0; b < MOST_PLANES; b++) std::memset(to + b * step, 0, p.line * sizeof(uint16_t));
        if (iy < 0 || iy >= g->H) continue;
        const float *line = x + (n * g->H + iy) * g->W * g->C_in, *from = line;
        bool spikes = times == 1.0f, whole = true;
        for (int64_t ix = 0; ix < g->W && spikes; ix++)
            for (int64_t w = 0; w < p.words; w++, from += WORD)
                spikes = spikes_of(from, to + w * p.WP + ix + g->pad) && spikes;
        if (spikes) {
            found |= 1;
            continue;
        }
        uint32_t all = 0;
        from = line;
        for (int64_t ix = 0; ix < g->W; ix++)
            for (int64_t w = 0; w < p.words; w++, from += WORD)
                whole = bits_of(from, times, step, to + w * p.WP + ix + g->pad, all) && whole;
        bad |= !whole, found |= static_cast<int>(all);
    }
    for (int64_t b = 0; b < MOST_PLANES; b++) std::memset(bits + b * step + p.size, 0, SLACK * sizeof(uint16_t));
    return bad ? -1 : found;
}

// The sums of four vectors: out[pattern]
template <int NV> inline void sums_of_four(const float *const *from, float *out) {
    constexpr int64_t row = NV * LANES;
#pragma GCC unroll 2
    for (int j = 0; j < NV; j++) {
        vec e[PATTERNS];
        e[0] = vec{};
        e[1] = load(from[0] + j * LANES), e[2] = load(from[1] + j * LANES);
        e[4] = load(from[2] + j * LANES), e[8] = load(from[3] + j * LANES);
        e[3] = e[1] + e[2], e[12] = e[4] + e[8];
        e[5] = e[1] + e[4], e[6] = e[2] + e[4], e[7] = e[3] + e[4];
        e[9] = e[1] + e[8], e[10] = e[2] + e[8], e[11] = e[3] + e[8];
        e[13] = e[1] + e[12], e[14] = e[2] + e[12], e[15] = e[3] + e[12];
#pragma GCC unroll 16
        for (int k = 0; k < PATTERNS; k++) store(out + k * row + j * LANES, e[k]);
    }
}

int64_t packed_size(const Geometry *g) { return g->C_out * g->C_in / 4 * g->K * g->K * PATTERNS; }

// packed [vector of C_out][word][tap][group of four][pattern][LANES]
void pack(const Geometry *g, const float *weight, float *packed) {
    const int64_t taps = g->K * g->K, words = g->C_in / WORD, vectors = g->C_out / LANES;
#pragma omp parallel for schedule(static)
    for (int64_t piece = 0; piece < vectors * words; piece++) {
        float *to = packed + piece * taps * GROUPS * PATTERNS * LANES;
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t group = 0; group < GROUPS; group++, to += PATTERNS * LANES) {
                const float *from[4];
                for (int64_t k = 0; k < 4; k++)
                    from[k] = weight + ((piece % words * WORD + 4 * group + k) * taps + tap) * g->C_out +
                              piece / words * LANES;
                sums_of_four<1>(from, to);
            }
    }
}

// PX neighbouring output pixels, one vector of output channels, one word of input channels, all planes.
// Unrolled over the line's inputs: a word is read once for the K outputs that it reaches.
template <int K, int S, int PX>
inline void pixels(const uint16_t *bits, int64_t line, int64_t plane, int64_t planes, const float *table, vec scale,
                   const float *start, int64_t start_step, float *y, int64_t y_step) {
    constexpr int64_t ROW = LANES * sizeof(float), ENTRY = PATTERNS * ROW, TAP = GROUPS * ENTRY;
    vec sum[PX] = {};
    for (int64_t b = planes - 1; b >= 0; b--) {
        if (b < planes - 1)
#pragma GCC unroll 16
            for (int i = 0; i < PX; i++) sum[i] += sum[i];
        const uint16_t *from = bits + b * plane;
        const char *at = reinterpret_cast<const char *>(table);
        for (int ky = 0; ky < K; ky++, from += line, at += K * TAP) {
#pragma GCC unroll 40
            for (int j = 0; j < (PX - 1) * S + K; j++) {
                const uint64_t word = from[j] * static_cast<uint64_t>(ROW);  // so that four bits are a place
#pragma GCC unroll 4
                for (int group = 0; group < GROUPS; group++) {
                    const char *entry = at + group * ENTRY + (word >> 4 * group & 15 * ROW);
#pragma GCC unroll 3
                    for (int kx = 0; kx < K; kx++)
                        if (j >= kx && (j - kx) % S == 0 && (j - kx) / S < PX)
                            sum[(j - kx) / S] += load(reinterpret_cast<const float *>(entry + kx * TAP));
                }
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < PX; i++) store(y + i * y_step, sum[i] * scale + load(start + i * start_step));
}

template <int K, int S>
int forward_as(const Geometry *g, const uint16_t *bits, int64_t planes, float scale, const float *packed,
               const float *bias, float *y) {
    constexpr int PX = LANES >= 16 ? 16 : 8;
    const Planes p(g);
    const int64_t O = g->C_out, vectors = O / LANES, step = plane_size(g), rows = g->N * g->OH;
    const int64_t per_band = most(1, BAND / g->OW), bands = up(rows, per_band);
    const int64_t piece = K * K * GROUPS * PATTERNS * LANES;
    const vec times = vec{} + scale;
    Memory memory;
    float *zeros = memory.take<float>(O);
    if (!memory.ok()) return NO_MEMORY;
    std::memset(zeros, 0, O * sizeof(float));
    if (!bias) bias = zeros;
#pragma omp parallel for schedule(dynamic)
    for (int64_t band = 0; band < bands; band++)
        for (int64_t vector = 0; vector < vectors; vector++)
            for (int64_t w = 0; w < p.words; w++) {
                const float *table = packed + (vector * p.words + w) * piece;
                for (int64_t row = band * per_band; row < least(rows, (band + 1) * per_band); row++) {
                    const uint16_t *from =
                        bits + (row / g->OH * p.HP + row % g->OH * S) * p.line + w * p.WP;
                    float *to = y + row * g->OW * O + vector * LANES;
                    const auto start = [&](int64_t ox) { return w ? to + ox * O : bias + vector * LANES; };
                    const int64_t apart = w ? O : 0;
                    int64_t ox = 0;
                    for (; ox + PX <= g->OW; ox += PX)
                        pixels<K, S, PX>(from + ox * S, p.line, step, planes, table, times, start(ox), apart,
                                         to + ox * O, O);
                    for (; PX > 8 && ox + 8 <= g->OW; ox += 8)
                        pixels<K, S, 8>(from + ox * S, p.line, step, planes, table, times, start(ox), apart,
                                        to + ox * O, O);
                    for (; ox + 4 <= g->OW; ox += 4)
                        pixels<K, S, 4>(from + ox * S, p.line, step, planes, table, times, start(ox), apart,
                                        to + ox * O, O);
                    for (; ox < g->OW; ox++)
                        pixels<K, S, 1>(from + ox * S, p.line, step, planes, table, times, start(ox), apart,
                                        to + ox * O, O);
                }
            }
    return DONE;
}

int forward(const Geometry *g, const uint16_t *bits, int64_t planes, float scale, const float *packed,
            const float *bias, float *y) {
    const auto run = g->K == 3 ? (g->stride == 1 ? forward_as<3, 1> : forward_as<3, 2>)
                               : (g->stride == 1 ? forward_as<1, 1> : forward_as<1, 2>);
    return run(g, bits, planes, scale, packed, bias, y);
}

struct Units {  // the output's pixels in units of up to 32: some of a line, or some short lines
    int64_t each, parts, across, rows, count;
    Units(const Geometry *g)
        : each(least(UNIT, up(g->OW, 4) * 4)),
          parts(UNIT / each),
          across(up(g->OW, UNIT)),
          rows(g->N * g->OH),
          count(up(rows, parts) * across) {}
};

struct Part {  // of a unit: pixels of one line, from bit `at` on
    int64_t row, n, oy, first, length, at;
};

inline int64_t parts_of(const Units &u, const Geometry *g, int64_t unit, Part *out) {
    int64_t count = 0;
    for (int64_t row = unit / u.across * u.parts; count < u.parts && row < u.rows; row++, count++) {
        const int64_t first = unit % u.across * UNIT;
        out[count] = {row, row / g->OH, row % g->OH, first, least(UNIT, g->OW - first), count * u.each};
    }
    return count;
}

// For each of 16 channels its bits along 32 pixels
inline void turn(const uint16_t *words, uint32_t *out) {
#if defined(__AVX512BW__)
    const __m512i v = _mm512_loadu_si512(words);
#pragma GCC unroll 16
    for (int c = 0; c < WORD; c++)
        out[c] = _mm512_test_epi16_mask(v, _mm512_set1_epi16(static_cast<short>(1 << c)));
#elif defined(__AVX2__)
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(words)),
                  high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(words + 16));
    for (int c = 0; c < WORD; c++) {
        const __m128i by = _mm_cvtsi32_si128(WORD - 1 - c);
        const __m256i a = _mm256_srai_epi16(_mm256_sll_epi16(low, by), 15),
                      b = _mm256_srai_epi16(_mm256_sll_epi16(high, by), 15);
        const __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xD8);
        out[c] = static_cast<uint32_t>(_mm256_movemask_epi8(both));
    }
#else
    for (int c = 0; c < WORD; c++) {
        uint32_t mask = 0;
        for (int i = 0; i < UNIT; i++) mask |= static_cast<uint32_t>(words[i] >> c & 1u) << i;
        out[c] = mask;
    }
#endif
}

// masks [plane][tap][C]: the bits of input channels c0.. along a unit's pixels, at each tap
void make_masks(const Geometry *g, const Planes &p, const Part *part, int64_t parts, const uint16_t *bits,
                int64_t planes, int64_t c0, int64_t C, uint32_t *masks) {
    const int64_t step = plane_size(g), S = g->stride;
    for (int64_t b = 0; b < planes; b++)
        for (int64_t tap = 0; tap < g->K * g->K; tap++)
            for (int64_t c = 0; c < C; c += WORD) {
                uint32_t *to = masks + (b * g->K * g->K + tap) * C + c;
                const auto place = [&](const Part &a) {
                    const int64_t row = (a.n * p.HP + a.oy * S + tap / g->K) * p.line + (c0 + c) / WORD * p.WP;
                    return bits + b * step + row + a.first * S + tap % g->K;
                };
                if (parts == 1 && S == 1) {
                    turn(place(part[0]), to);
                    if (part[0].length < UNIT)
                        for (int64_t k = 0; k < WORD; k++) to[k] &= (1u << part[0].length) - 1;
                    continue;
                }
                uint16_t words[UNIT] = {};
                for (int64_t i = 0; i < parts; i++) {
                    const uint16_t *from = place(part[i]);
                    uint16_t *at = words + part[i].at;
                    if (S == 1)
                        std::memcpy(at, from, part[i].length * sizeof(uint16_t));
                    else
                        for (int64_t k = 0; k < part[i].length; k++) at[k] = from[k * S];
                }
                turn(words, to);
            }
}

// table [FOURS][PATTERNS][NV * LANES]: the sums of each four of a unit's gradients, channels from o0 on
template <int NV>
void make_table(const Geometry *g, const Part *part, int64_t parts, const float *gy, int64_t o0, const float *zeros,
                float *table) {
    const float *pixel[UNIT];
    for (int64_t i = 0; i < UNIT; i++) pixel[i] = zeros;
    for (int64_t i = 0; i < parts; i++)
        for (int64_t k = 0; k < part[i].length; k++)
            pixel[part[i].at + k] = gy + (part[i].row * g->OW + part[i].first + k) * g->C_out + o0;
    for (int64_t four = 0; four < FOURS; four++)
        sums_of_four<NV>(pixel + 4 * four, table + four * PATTERNS * NV * LANES);
}

// sums[i] += what masks[i] select in the tables of UNITS units; masks [unit][plane][i]. Several units at once: each
// sum is loaded and stored once for all of them. Several sums at once: an addition need not wait for the one before.
template <int NV, int UNITS>
void add_selected(const uint32_t *masks, int64_t planes, int64_t count, const float *table, float *sums) {
    constexpr int64_t ROW = NV * LANES * sizeof(float), FOUR = PATTERNS * ROW;
    constexpr int SUMS = 8 / NV;
    for (int64_t i = 0; i < count; i += SUMS, sums += SUMS * NV * LANES) {
        vec a[SUMS][NV] = {};
        for (int64_t b = planes - 1; b >= 0; b--) {
            if (b < planes - 1)
#pragma GCC unroll 8
                for (int k = 0; k < SUMS; k++)
#pragma GCC unroll 2
                    for (int j = 0; j < NV; j++) a[k][j] += a[k][j];
            const char *at = reinterpret_cast<const char *>(table);
            for (int unit = 0; unit < UNITS; unit++) {
                uint64_t mask[SUMS];
#pragma GCC unroll 8
                for (int k = 0; k < SUMS; k++)  // so that four bits are a place
                    mask[k] = masks[(unit * planes + b) * count + i + k] * static_cast<uint64_t>(ROW);
#pragma GCC unroll 8
                for (int four = 0; four < FOURS; four++, at += FOUR)
#pragma GCC unroll 8
                    for (int k = 0; k < SUMS; k++) {
                        const float *row = reinterpret_cast<const float *>(at + (mask[k] >> 4 * four & 15 * ROW));
#pragma GCC unroll 2
                        for (int j = 0; j < NV; j++) a[k][j] += load(row + j * LANES);
                    }
            }
        }
#pragma GCC unroll 8
        for (int k = 0; k < SUMS; k++)
#pragma GCC unroll 2
            for (int j = 0; j < NV; j++) {
                float *to = sums + (k * NV + j) * LANES;
                store(to, load(to) + a[k][j]);
            }
    }
}

template <int NV, int UNITS>
int weight_grad_as(const Geometry *g, const uint16_t *bits, int64_t planes, float scale, const float *gy, float *dw) {
    const Planes p(g);
    const Units u(g);
    const int64_t taps = g->K * g->K, C_in = g->C_in, O = g->C_out, row = NV * LANES, size = taps * C_in * O;
    const int64_t C_blocks = up(C_in, BLOCK), O_blocks = up(O, BLOCK), tasks = C_blocks * O_blocks;
    const int64_t chunks = most(1, least(up(CHUNKS, tasks), u.count / (2 * UNITS)));
    const int64_t per_chunk = up(up(u.count, UNITS), chunks) * UNITS;
    Team team;
    Memory memory;
    const auto all_masks = memory.each<uint32_t>(team, UNITS * planes * taps * BLOCK);
    const auto all_table = memory.each<float>(team, UNITS * FOURS * PATTERNS * row);
    const auto all_sums = memory.each<float>(team, taps * BLOCK * BLOCK);
    float *partial = memory.take<float>(chunks * size), *zeros = memory.take<float>(row);
    if (!memory.ok()) return NO_MEMORY;
    std::memset(zeros, 0, row * sizeof(float));
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        uint32_t *masks = all_masks[member];
        float *table = all_table[member], *sums = all_sums[member];
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks * chunks; task++) {
            const int64_t chunk = task / tasks, c0 = task % tasks / O_blocks * BLOCK, o0 = task % O_blocks * BLOCK;
            const int64_t C = least(BLOCK, C_in - c0), OB = least(BLOCK, O - o0), count = taps * C;
            std::memset(sums, 0, count * OB * sizeof(float));
            const int64_t last = least(u.count, (chunk + 1) * per_chunk);
            for (int64_t unit = chunk * per_chunk; unit < last; unit += UNITS) {
                Part part[UNITS][FOURS];
                int64_t parts[UNITS];
                for (int64_t k = 0; k < UNITS; k++) {
                    parts[k] = unit + k < last ? parts_of(u, g, unit + k, part[k]) : 0;
                    make_masks(g, p, part[k], parts[k], bits, planes, c0, C, masks + k * planes * count);
                }
                for (int64_t o = 0; o < OB; o += row) {
                    for (int64_t k = 0; k < UNITS; k++)
                        make_table<NV>(g, part[k], parts[k], gy, o0 + o, zeros, table + k * FOURS * PATTERNS * row);
                    add_selected<NV, UNITS>(masks, planes, count, table, sums + count * o);
                }
            }
            float *to = partial + chunk * size;
            for (int64_t o = 0; o < OB; o++) {
                const float *from = sums + count * (o / row * row) + o % row;
                for (int64_t tap = 0; tap < taps; tap++)
                    for (int64_t c = 0; c < C; c++)
                        to[((o0 + o) * taps + tap) * C_in + c0 + c] = from[(tap * C + c) * row];
            }
        }
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < size; i++) {
            float sum = partial[i];
            for (int64_t chunk = 1; chunk < chunks; chunk++) sum += partial[chunk * size + i];
            dw[i] = scale * sum;
        }
    }
    return DONE;
}

int weight_grad(const Geometry *g, const uint16_t *bits, int64_t planes, float scale, const float *gy, float *dw) {
    // The tables of two units of one vector, or of one unit of two.
    return g->C_out % (2 * LANES) ? weight_grad_as<1, 2>(g, bits, planes, scale, gy, dw)
                                  : weight_grad_as<2, 1>(g, bits, planes, scale, gy, dw);
}

}  // namespace

extern "C" const LookupKernels CAT(mpd_agl_lookup_, LEVEL);
extern "C" const LookupKernels CAT(mpd_agl_lookup_, LEVEL) = {plane_size, scan,    packed_size,
                                                              pack,       forward, weight_grad};
