// Event-driven convolution, forward and weight gradient, compiled once per SIMD level (LEVEL names it).
//
// Both are the same loop: a list of active positions selects rows of ROW floats, which are added into registers. What
// makes it fast is that the rows stay in L1: of the weights, a tile of LIST_BLOCK input channels x ROW output channels
// of one tap; of the gradient, a window of pixels x ROW output channels. The order of additions depends on the shape
// alone, not on threads: tests/ops/event_reference.py spells it out.
#include "event.h"

#include <cstring>

#include "scan.h"
#include "simd.h"

namespace {

constexpr int V = 4;                  // vectors per row
constexpr int64_t ROW = V * LANES;    // output channels in a block
constexpr int64_t SUBTILE = 128;      // output pixels whose sums stay close while one weight tile is used
constexpr int64_t MOST_SUBTILES = 4;  // subtiles that share weights in L2
constexpr int64_t WINDOW = 256;       // rows of the gradient in L1
constexpr int64_t POSITIONS = 128;    // input pixels of a window, at most

int64_t slot_size(int64_t C) { return C >= LIST_BLOCK ? LIST_BLOCK : up(C, 8) * 8; }

int scan(const float *x, const ActiveLists *lists) {
    int any = 0;
#pragma omp parallel
    {
        unsigned other = 0;
#pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < lists->rows; row++) other |= scan_row(x + row * lists->C, lists, row);
        if (other) __atomic_store_n(&any, 1, __ATOMIC_RELAXED);
    }
    return any;
}

int64_t tile_size(const Geometry *g) { return (slot_size(g->C_in) + 1) * ROW; }

int64_t packed_size(const Geometry *g) {
    return up(g->C_out, ROW) * up(g->C_in, LIST_BLOCK) * g->K * g->K * tile_size(g);
}

void pack(const Geometry *g, const float *weight, float *packed) {
    const int64_t taps = g->K * g->K, blocks = up(g->C_in, LIST_BLOCK), size = tile_size(g),
                  tiles = up(g->C_out, ROW) * blocks * taps;
#pragma omp parallel for schedule(static)
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t tap = tile % taps, c0 = tile / taps % blocks * LIST_BLOCK, o0 = tile / taps / blocks * ROW;
        const int64_t C = least(LIST_BLOCK, g->C_in - c0), O = least(ROW, g->C_out - o0);
        float *__restrict out = packed + tile * size;
        if (C * ROW < size || O < ROW) std::memset(out, 0, size * sizeof(float));
        for (int64_t c1 = 0; c1 < C; c1 += 16)  // a line of the weights at a time
            for (int64_t o = 0; o < O; o++) {
                const float *__restrict in = weight + ((o0 + o) * taps + tap) * g->C_in + c0;
                for (int64_t c = c1; c < least(c1 + 16, C); c++) out[c * ROW + o] = in[c];
            }
    }
}

// sum += the rows that the list selects, even and odd places in two chains; values of 1 are added, others multiplied
template <bool VALUES>
inline void add_rows(const float *__restrict rows, const uint8_t *__restrict index, const float *__restrict value,
                     int64_t ones, int64_t n, float *__restrict sum) {
    vec a[V] = {}, b[V] = {};
    int64_t i = 0;
    for (; i < ones; i += 2) {
        const float *p = rows + index[i] * ROW, *q = rows + index[i + 1] * ROW;
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) a[j] += load(p + j * LANES);
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) b[j] += load(q + j * LANES);
    }
    if constexpr (VALUES)
        for (; i < n; i += 2) {
            const float *p = rows + index[i] * ROW, *q = rows + index[i + 1] * ROW, u = value[i], w = value[i + 1];
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) a[j] += u * load(p + j * LANES);
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) b[j] += w * load(q + j * LANES);
        }
#pragma GCC unroll 4
    for (int j = 0; j < V; j++) store(sum + j * LANES, load(sum + j * LANES) + (a[j] + b[j]));
}

// One weight tile (a tap, a block of input channels) for the output pixels [q0, q1) whose sums are at `sums`
template <bool VALUES>
void use_tile(const Geometry *g, const ActiveLists *lists, const float *rows, int64_t block, int64_t ky, int64_t kx,
              int64_t q0, int64_t q1, float *sums) {
    const int64_t s = g->stride, first = kx < g->pad ? up(g->pad - kx, s) : 0;
    const int64_t reach = g->W - 1 + g->pad - kx,
                  last = reach < 0 ? 0 : least(g->OW, reach / s + 1);  // ox in [first, last) meet x
    for (int64_t q = q0; q < q1;) {
        const int64_t ox = q % g->OW, oy = q / g->OW % g->OH, n = q / g->OW / g->OH, iy = oy * s + ky - g->pad;
        const int64_t end = least(q1, q + g->OW - ox);
        if (iy >= 0 && iy < g->H) {
            const int64_t from = most(first, ox), to = least(last, ox + end - q);
            int64_t slot = ((n * g->H + iy) * g->W + from * s + kx - g->pad) * lists->blocks + block;
            float *sum = sums + (q - q0 + from - ox) * ROW;
            for (int64_t x = from; x < to; x++, slot += s * lists->blocks, sum += ROW) {
                const int64_t at = slot * lists->cap;
                if constexpr (VALUES)
                    add_rows<true>(rows, lists->index + at, lists->value + at, lists->ones[slot], lists->count[slot],
                                   sum);
                else
                    add_rows<false>(rows, lists->index + at, nullptr, lists->count[slot], 0, sum);
            }
        }
        q = end;
    }
}

template <bool VALUES>
int forward_as(const Geometry *g, const ActiveLists *lists, const float *packed, const float *bias, float *y) {
    Team team;
    const int64_t pixels = g->N * g->OH * g->OW, subtiles = up(pixels, SUBTILE), taps = g->K * g->K,
                  size = tile_size(g);
    const int64_t group = most(1, least(MOST_SUBTILES, subtiles / (2 * team.size))), groups = up(subtiles, group),
                  O_blocks = up(g->C_out, ROW);
    Memory memory;
    const auto all_sums = memory.each<float>(team, group * SUBTILE * ROW);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *sums = all_sums[member];
#pragma omp for schedule(dynamic) nowait
        for (int64_t item = 0; item < groups; item++) {
            const int64_t first = item * group * SUBTILE, last = least(pixels, first + group * SUBTILE);
            for (int64_t ob = 0; ob < O_blocks; ob++) {
                const int64_t o0 = ob * ROW, O = least(ROW, g->C_out - o0);
                std::memset(sums, 0, (last - first) * ROW * sizeof(float));
                for (int64_t ib = 0; ib < lists->blocks; ib++)
                    for (int64_t q = first; q < last; q += SUBTILE)
                        for (int64_t tap = 0; tap < taps; tap++)
                            use_tile<VALUES>(g, lists, packed + ((ob * lists->blocks + ib) * taps + tap) * size, ib,
                                             tap / g->K, tap % g->K, q, least(last, q + SUBTILE),
                                             sums + (q - first) * ROW);
                for (int64_t q = first; q < last; q++) {
                    const float *__restrict sum = sums + (q - first) * ROW;
                    float *__restrict out = y + q * g->C_out + o0;
                    if (bias)
                        for (int64_t o = 0; o < O; o++) out[o] = sum[o] + bias[o0 + o];
                    else
                        for (int64_t o = 0; o < O; o++) out[o] = sum[o];
                }
            }
        }
    }
    return DONE;
}

int forward(const Geometry *g, const ActiveLists *lists, const float *packed, const float *bias, float *y) {
    return lists->value ? forward_as<true>(g, lists, packed, bias, y) : forward_as<false>(g, lists, packed, bias, y);
}

// The weight gradient's view of space. With u = iy + pad = stride * r + phase, the taps ky = phase + stride * m reach
// oy = r - m. A window holds the gradient rows for a few r of every phase; a position in it is where m = 0.
struct Windows {
    int64_t M, phases, tall, wide, GW, across, down, per_image, images, windows, R, Q;
    Windows(const Geometry *g) {
        const int64_t s = g->stride;
        M = up(g->K, s);
        phases = least(s, g->K);
        R = (g->H - 1 + g->pad) / s + 1, Q = (g->W - 1 + g->pad) / s + 1;  // r and q run below these
        wide = least(Q, M == 1 ? POSITIONS : 32);
        tall = least(R, most(1, least(POSITIONS / wide, WINDOW / (wide + M - 1) - (M - 1))));
        images = most(1, least(POSITIONS / (tall * wide), WINDOW / ((tall + M - 1) * (wide + M - 1))));
        if (tall < R || wide < Q) images = 1;
        GW = wide + M - 1;
        across = up(Q, wide), down = up(R, tall), per_image = across * down;
        windows = images > 1 ? up(g->N, images) : g->N * per_image;
    }
    int64_t lists() const { return phases * phases; }
};

struct Place {  // one image's part of a window: r in [r0, r1), q in [q0, q1); `base` is its first row in the window
    int64_t n, r0, r1, q0, q1, base;
};

int64_t places(const Windows &w, const Geometry *g, int64_t window, Place *out) {
    if (w.images == 1) {
        const int64_t n = window / w.per_image, at = window % w.per_image, r0 = at / w.across * w.tall,
                      q0 = at % w.across * w.wide;
        out[0] = {n, r0, least(w.R, r0 + w.tall), q0, least(w.Q, q0 + w.wide), 0};
        return 1;
    }
    const int64_t first = window * w.images, count = least(w.images, g->N - first);
    for (int64_t i = 0; i < count; i++) out[i] = {first + i, 0, w.R, 0, w.Q, i * (w.R + w.M - 1) * w.GW};
    return count;
}

// Per window, phase and input channel: the positions where it is 1, and, from the slot's end back, other than 0 and 1
struct Transposed {
    uint8_t *position;
    uint8_t *ones, *others;
    float *value;
};

template <bool VALUES>
void transpose(const Windows &w, const Geometry *g, const ActiveLists *lists, int64_t window, const Transposed &t) {
    Place place[POSITIONS];
    const int64_t parts = places(w, g, window, place), s = g->stride, first = window * w.lists() * g->C_in;
    uint8_t *ones = t.ones + first, *others = VALUES ? t.others + first : nullptr;
    std::memset(ones, 0, w.lists() * g->C_in);
    if constexpr (VALUES) std::memset(others, 0, w.lists() * g->C_in);
    for (int64_t i = 0; i < parts; i++) {
        const Place &p = place[i];
        for (int64_t phase = 0; phase < w.lists(); phase++) {
            const int64_t a = phase / w.phases, b = phase % w.phases;
            for (int64_t r = p.r0; r < p.r1; r++) {
                const int64_t iy = r * s + a - g->pad;
                if (iy < 0 || iy >= g->H) continue;
                for (int64_t q = p.q0; q < p.q1; q++) {
                    const int64_t ix = q * s + b - g->pad;
                    if (ix < 0 || ix >= g->W) continue;
                    const uint8_t position =
                        static_cast<uint8_t>(p.base + (r - p.r0 + w.M - 1) * w.GW + (q - p.q0 + w.M - 1));
                    for (int64_t block = 0; block < lists->blocks; block++) {
                        const int64_t slot = ((p.n * g->H + iy) * g->W + ix) * lists->blocks + block,
                                      n = lists->count[slot];
                        const int64_t list = phase * g->C_in + block * LIST_BLOCK;
                        const uint8_t *index = lists->index + slot * lists->cap;
                        int64_t k = 0;
                        for (const int64_t plain = VALUES ? lists->ones[slot] : n; k < plain; k++) {
                            const int64_t at = list + index[k];
                            t.position[(first + at) * POSITIONS + ones[at]++] = position;
                        }
                        if constexpr (VALUES)
                            for (const float *value = lists->value + slot * lists->cap; k < n; k++) {
                                const int64_t at = list + index[k], slot_of = (first + at) * POSITIONS;
                                const int64_t to = slot_of + (value[k] == 1.0f ? ones[at]++ : POSITIONS - ++others[at]);
                                t.position[to] = position;
                                t.value[to] = value[k];
                            }
                    }
                }
            }
        }
    }
}

// ROW channels of the gradient around a window, zero outside the image
void copy_window(const Windows &w, const Geometry *g, const float *gy, int64_t window, int64_t o0, float *rows) {
    Place place[POSITIONS];
    const int64_t parts = places(w, g, window, place), O = least(ROW, g->C_out - o0);
    for (int64_t i = 0; i < parts; i++) {
        const Place &p = place[i];
        float *out = rows + p.base * ROW;
        for (int64_t oy = p.r0 - w.M + 1; oy < p.r1; oy++)
            for (int64_t ox = p.q0 - w.M + 1; ox < p.q0 - w.M + 1 + w.GW; ox++, out += ROW) {
                if (oy < 0 || oy >= g->OH || ox < 0 || ox >= g->OW) {
                    std::memset(out, 0, ROW * sizeof(float));
                    continue;
                }
                const float *in = gy + ((p.n * g->OH + oy) * g->OW + ox) * g->C_out + o0;
                if (O == ROW) {
                    std::memcpy(out, in, ROW * sizeof(float));
                } else {
                    std::memset(out, 0, ROW * sizeof(float));
                    std::memcpy(out, in, O * sizeof(float));
                }
            }
    }
}

// dw[tap] += the gradient rows that the lists select, TAPS neighbouring windows at once: each position is read once
template <int TAPS, bool VALUES>
inline void add_taps(const float *const *rows, float *const *dw, const uint8_t *__restrict position,
                     const float *__restrict value, int64_t ones, int64_t others) {
    vec sum[TAPS][V] = {};
    for (int64_t i = 0; i < ones; i++) {
        const int64_t at = position[i] * ROW;
#pragma GCC unroll 4
        for (int t = 0; t < TAPS; t++)
#pragma GCC unroll 4
            for (int j = 0; j < V; j++) sum[t][j] += load(rows[t] + at + j * LANES);
    }
    if constexpr (VALUES)
        for (int64_t i = POSITIONS - 1; i >= POSITIONS - others; i--) {
            const int64_t at = position[i] * ROW;
            const float times = value[i];
#pragma GCC unroll 4
            for (int t = 0; t < TAPS; t++)
#pragma GCC unroll 4
                for (int j = 0; j < V; j++) sum[t][j] += times * load(rows[t] + at + j * LANES);
        }
#pragma GCC unroll 4
    for (int t = 0; t < TAPS; t++)
#pragma GCC unroll 4
        for (int j = 0; j < V; j++) store(dw[t] + j * LANES, load(dw[t] + j * LANES) + sum[t][j]);
}

struct Tap {
    int64_t number, back;  // ky * K + kx, and how many rows of the window before the position
};

int64_t taps_of(const Windows &w, const Geometry *g, int64_t phase, Tap *out) {
    int64_t count = 0;
    for (int64_t ky = phase / w.phases, my = 0; ky < g->K; ky += g->stride, my++)
        for (int64_t kx = phase % w.phases, mx = 0; kx < g->K; kx += g->stride, mx++)
            out[count++] = {ky * g->K + kx, my * w.GW + mx};
    return count;
}

// One window for a block of input channels and ROW output channels: sums is [C][taps][ROW]
template <bool VALUES>
void use_window(const Windows &w, const Geometry *g, const Transposed &t, int64_t window, int64_t c0, int64_t C,
                const float *rows, float *sums) {
    const int64_t taps = g->K * g->K;
    for (int64_t phase = 0; phase < w.lists(); phase++) {
        Tap tap[64];
        const int64_t count = taps_of(w, g, phase, tap), list = (window * w.lists() + phase) * g->C_in + c0;
        for (int64_t c = 0; c < C; c++) {
            const int64_t n = t.ones[list + c], m = VALUES ? t.others[list + c] : 0;
            if (n + m == 0) continue;
            const uint8_t *position = t.position + (list + c) * POSITIONS;
            const float *value = VALUES ? t.value + (list + c) * POSITIONS : nullptr;
            for (int64_t k = 0; k < count; k += 3) {
                const float *from[3];
                float *to[3];
                for (int64_t i = 0; i < least(3, count - k); i++)
                    from[i] = rows - tap[k + i].back * ROW, to[i] = sums + (c * taps + tap[k + i].number) * ROW;
                switch (count - k) {
                    case 1: add_taps<1, VALUES>(from, to, position, value, n, m); break;
                    case 2: add_taps<2, VALUES>(from, to, position, value, n, m); break;
                    default: add_taps<3, VALUES>(from, to, position, value, n, m);
                }
            }
        }
    }
}

template <bool VALUES> int weight_grad_as(const Geometry *g, const ActiveLists *lists, const float *gy, float *dw) {
    const Windows w(g);
    const int64_t taps = g->K * g->K, O_blocks = up(g->C_out, ROW), tasks = O_blocks * lists->blocks;
    const int64_t chunks = most(1, least(up(16, tasks), w.windows / 4)), per_chunk = up(w.windows, chunks);
    const int64_t slots = w.windows * w.lists() * g->C_in, dw_size = g->C_out * taps * g->C_in;
    Team team;
    Memory memory;
    const Transposed t = {memory.take<uint8_t>(slots * POSITIONS), memory.take<uint8_t>(slots),
                          VALUES ? memory.take<uint8_t>(slots) : nullptr,
                          VALUES ? memory.take<float>(slots * POSITIONS) : nullptr};
    float *partial = chunks > 1 ? memory.take<float>(chunks * dw_size) : dw;
    // Taps look back from a position, so that their row 0 may lie before the window's: it is in this margin.
    const int64_t margin = ((w.M - 1) * w.GW + w.M - 1) * ROW;
    const auto all_rows = memory.each<float>(team, margin + WINDOW * ROW),
               all_sums = memory.each<float>(team, LIST_BLOCK * taps * ROW);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
#pragma omp for schedule(dynamic)
        for (int64_t window = 0; window < w.windows; window++) transpose<VALUES>(w, g, lists, window, t);
        float *rows = all_rows[member] + margin, *sums = all_sums[member];
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tasks * chunks; task++) {
            const int64_t chunk = task / tasks, o0 = task % tasks / lists->blocks * ROW,
                          c0 = task % lists->blocks * LIST_BLOCK;
            const int64_t C = least(LIST_BLOCK, g->C_in - c0), O = least(ROW, g->C_out - o0);
            std::memset(sums, 0, C * taps * ROW * sizeof(float));
            for (int64_t window = chunk * per_chunk; window < least(w.windows, (chunk + 1) * per_chunk); window++) {
                copy_window(w, g, gy, window, o0, rows);
                use_window<VALUES>(w, g, t, window, c0, C, rows, sums);
            }
            for (int64_t tap = 0; tap < taps; tap++)
                for (int64_t c1 = 0; c1 < C; c1 += 16)
                    for (int64_t o = 0; o < O; o++) {
                        float *__restrict out = partial + chunk * dw_size + ((o0 + o) * taps + tap) * g->C_in + c0;
                        for (int64_t c = c1; c < least(c1 + 16, C); c++) out[c] = sums[(c * taps + tap) * ROW + o];
                    }
        }
        if (chunks > 1) {
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < dw_size; i++) {
                float sum = partial[i];
                for (int64_t chunk = 1; chunk < chunks; chunk++) sum += partial[chunk * dw_size + i];
                dw[i] = sum;
            }
        }
    }
    return DONE;
}

int weight_grad(const Geometry *g, const ActiveLists *lists, const float *gy, float *dw) {
    return lists->value ? weight_grad_as<true>(g, lists, gy, dw) : weight_grad_as<false>(g, lists, gy, dw);
}

}  // namespace

extern "C" const EventKernels CAT(mpd_agl_event_, LEVEL);
extern "C" const EventKernels CAT(mpd_agl_event_, LEVEL) = {scan, packed_size, pack, forward, weight_grad};
