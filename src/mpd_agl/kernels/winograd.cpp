// Dense 3x3 convolutions in Winograd's form, compiled once per SIMD level (LEVEL names it).
//
// A tile of 2x2 outputs reads 4x4 inputs. With d the input tile, g the kernel, y the outputs (all per channel):
//     y = A^T [ (G g G^T) * (B^T d B) ] A,   summed over input channels inside the bracket: 16 small matrix products
//     B^T d = (d0-d2, d1+d2, d2-d1, d1-d3)
//     A^T m = (m0+m1+m2, m1-m2-m3)
//     G g = (g0, (g0+g1+g2)/2, (g0-g1+g2)/2, g2)
//
// The input gradient is such a convolution, of gy with the kernel turned round. The weight gradient runs the same chain
// backwards:
//     dg = G^T [ sum over tiles of (B^T d B) * (A gy A^T) ] G
//
// Only additions and halves besides the products: float32 errors stay near those of the direct sum. The order of
// additions depends on the shape alone, not on threads.
#include "winograd.h"

#include <cstring>

#include "simd.h"

namespace {

constexpr int64_t POINTS = 16;              // of a tile in Winograd's domain
// Tiles whose sums are in registers at once, and input channels of a weight gradient: AVX-512 has 32 registers
constexpr int64_t ROWS = LANES >= 16 ? 12 : 6, GRAD_ROWS = LANES >= 16 ? 8 : 4;
constexpr int64_t PANEL = 2 * LANES;        // output channels likewise
constexpr int64_t DEPTH = 256;              // input channels of a panel in L1
constexpr int64_t BLOCK_BYTES = 192 << 10;  // of a block of tiles in Winograd's domain, in L2
constexpr int64_t CHUNKS = 16;  // partial sums of a weight gradient: a fixed number, for the same bits with any threads

// floats from one point of a block to the next: a line more than it holds, or the 16 planes share few sets of the cache
inline int64_t plane(int64_t tiles, int64_t C) { return tiles * C + 16; }

// Tiles of an output [N][OH][OW], in order; of an input [N][H][W] with a border of `pad` zeros
struct Tiles {
    int64_t N, H, W, OH, OW, pad, down, across;
    Tiles(const Geometry *g)
        : N(g->N), H(g->H), W(g->W), OH(g->OH), OW(g->OW), pad(g->pad), down(up(OH, 2)), across(up(OW, 2)) {}
    int64_t count() const { return N * down * across; }
};

// Neighbouring tiles of one row, from tile `first + at` of a block on
struct Run {
    int64_t at, n, ty, tx, length;
    Run(const Tiles &t, int64_t first, int64_t tiles, int64_t at)
        : at(at),
          n((first + at) / (t.down * t.across)),
          ty((first + at) / t.across % t.down),
          tx((first + at) % t.across),
          length(least(t.across - tx, least(tiles, t.count() - first) - at)) {}
};

// B^T d B of each tile: out [POINTS][tiles][C]; `zeros` is a row of the input
void transform_input(const Tiles &t, const float *x, int64_t first, int64_t tiles, int64_t C, const float *zeros,
                     float *out) {
    const int64_t stride = plane(tiles, C);
    int64_t at = 0;
    while (at < least(tiles, t.count() - first)) {
        const Run run(t, first, tiles, at);
        const float *d[4];
        for (int i = 0; i < 4; i++) {
            const int64_t y = 2 * run.ty - t.pad + i;
            d[i] = y >= 0 && y < t.H ? x + (run.n * t.H + y) * t.W * C : zeros;
        }
        for (int64_t c = 0; c < C; c += LANES) {
            const auto column = [&](int64_t place, vec *m) {
                if (place < 0 || place >= t.W) {
                    m[0] = m[1] = m[2] = m[3] = vec{};
                    return;
                }
                const int64_t from = place * C + c;
                const vec d0 = load(d[0] + from), d1 = load(d[1] + from), d2 = load(d[2] + from),
                          d3 = load(d[3] + from);
                m[0] = d0 - d2, m[1] = d1 + d2, m[2] = d2 - d1, m[3] = d1 - d3;
            };
            int64_t place = 2 * run.tx - t.pad;
            vec m0[4], m1[4], m2[4], m3[4];
            column(place, m0), column(place + 1, m1);
            float *to = out + run.at * C + c;
            // two columns of a tile are the last two of the tile before it
            for (int64_t k = 0; k < run.length; k++, to += C) {
                place += 2;
                column(place, m2), column(place + 1, m3);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    float *row = to + 4 * i * stride;
                    store(row, m0[i] - m2[i]);
                    store(row + stride, m1[i] + m2[i]);
                    store(row + 2 * stride, m2[i] - m1[i]);
                    store(row + 3 * stride, m1[i] - m3[i]);
                    m0[i] = m2[i], m1[i] = m3[i];
                }
            }
        }
        at += run.length;
    }
    if (at < tiles)  // tiles past the last
        for (int64_t point = 0; point < POINTS; point++)
            std::memset(out + point * stride + at * C, 0, (tiles - at) * C * sizeof(float));
}

// A gy A^T of each tile: out [POINTS][tiles][C]; `zeros` is a row of the output
void transform_gradient(const Tiles &t, const float *gy, int64_t first, int64_t tiles, int64_t C, const float *zeros,
                        float *out) {
    const int64_t stride = plane(tiles, C);
    for (int64_t at = 0; at < tiles;) {
        const Run run(t, first, tiles, at);
        const float *upper = gy + (run.n * t.OH + 2 * run.ty) * t.OW * C,
                    *lower = 2 * run.ty + 1 < t.OH ? upper + t.OW * C : zeros;
        for (int64_t c = 0; c < C; c += LANES) {
            float *to = out + run.at * C + c;
            for (int64_t k = 0; k < run.length; k++, to += C) {
                const int64_t from = 2 * (run.tx + k) * C + c;
                const bool two = 2 * (run.tx + k) + 1 < t.OW;
                const vec a = load(upper + from), b = two ? load(upper + from + C) : vec{};
                const vec e = load(lower + from), f = two ? load(lower + from + C) : vec{};
                const vec left[4] = {a, a + e, a - e, -e}, right[4] = {b, b + f, b - f, -f};
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    float *row = to + 4 * i * stride;
                    store(row, left[i]);
                    store(row + stride, left[i] + right[i]);
                    store(row + 2 * stride, left[i] - right[i]);
                    store(row + 3 * stride, -right[i]);
                }
            }
        }
        at += run.length;
    }
}

// A^T m A of each tile, and the bias, into the output; `nowhere` is a row of it
void transform_output(const Tiles &t, const float *m, int64_t first, int64_t tiles, int64_t C, const float *bias,
                      float *nowhere, float *y) {
    const int64_t stride = plane(tiles, C);
    for (int64_t at = 0; at < least(tiles, t.count() - first);) {
        const Run run(t, first, tiles, at);
        float *upper = y + (run.n * t.OH + 2 * run.ty) * t.OW * C,
              *lower = 2 * run.ty + 1 < t.OH ? upper + t.OW * C : nowhere;
        for (int64_t c = 0; c < C; c += LANES) {
            const vec b = bias ? load(bias + c) : vec{};
            const float *from = m + run.at * C + c;
            for (int64_t k = 0; k < run.length; k++, from += C) {
                vec r0[4], r1[4];
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) {
                    const float *column = from + j * stride;
                    const vec m1 = load(column + 4 * stride), m2 = load(column + 8 * stride);
                    r0[j] = load(column) + m1 + m2, r1[j] = m1 - m2 - load(column + 12 * stride);
                }
                const int64_t to = 2 * (run.tx + k) * C + c;
                store(upper + to, r0[0] + r0[1] + r0[2] + b);
                store(lower + to, r1[0] + r1[1] + r1[2] + b);
                if (2 * (run.tx + k) + 1 < t.OW) {
                    store(upper + to + C, r0[1] - r0[2] - r0[3] + b);
                    store(lower + to + C, r1[1] - r1[2] - r1[3] + b);
                }
            }
        }
        at += run.length;
    }
}

// out[i][:] (+)= sum over k of a[i, k] b[k][:], M rows and NV vectors in registers.
// a[i, k] is at a + i * a_row + k * a_step.
template <int M, int NV>
inline void multiply(const float *__restrict a, int64_t a_row, int64_t a_step, const float *__restrict b,
                     int64_t b_step, int64_t depth, bool add, float *__restrict out, int64_t out_row) {
    vec sum[M][NV];
#pragma GCC unroll 12
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) sum[i][j] = add ? load(out + i * out_row + j * LANES) : vec{};
    for (int64_t k = 0; k < depth; k++) {
        vec w[NV];
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) w[j] = load(b + k * b_step + j * LANES);
#pragma GCC unroll 12
        for (int i = 0; i < M; i++) {
            const float v = a[i * a_row + k * a_step];
#pragma GCC unroll 2
            for (int j = 0; j < NV; j++) sum[i][j] += v * w[j];
        }
    }
#pragma GCC unroll 12
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) store(out + i * out_row + j * LANES, sum[i][j]);
}

int64_t packed_size(const Geometry *g) { return POINTS * up(g->C_out, PANEL) * g->C_in * PANEL; }

// packed [POINTS][panel][C_in][PANEL of C_out]
void pack(const Geometry *g, const float *weight, int turned, float *packed) {
    const int64_t C = g->C_in, O = g->C_out, stride = up(O, PANEL) * C * PANEL;
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < C; c++)
        for (int64_t o = 0; o < O; o += LANES) {
            vec h[4][3];
#pragma GCC unroll 3
            for (int j = 0; j < 3; j++) {
                const float *w = weight + c * 9 * O + o;
                const vec g0 = load(w + (turned ? 8 - j : j) * O), g1 = load(w + (turned ? 5 - j : 3 + j) * O),
                          g2 = load(w + (turned ? 2 - j : 6 + j) * O);
                h[0][j] = g0, h[1][j] = 0.5f * (g0 + g1 + g2), h[2][j] = 0.5f * (g0 - g1 + g2), h[3][j] = g2;
            }
            float *to = packed + (o / PANEL * C + c) * PANEL + o % PANEL;
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                store(to + 4 * i * stride, h[i][0]);
                store(to + (4 * i + 1) * stride, 0.5f * (h[i][0] + h[i][1] + h[i][2]));
                store(to + (4 * i + 2) * stride, 0.5f * (h[i][0] - h[i][1] + h[i][2]));
                store(to + (4 * i + 3) * stride, h[i][2]);
            }
        }
}

int convolve(const Geometry *g, const float *x, const float *packed, const float *bias, float *y) {
    const int64_t C = g->C_in, O = g->C_out, panels = up(O, PANEL);
    const Tiles t(g);
    const int64_t fit = BLOCK_BYTES / (POINTS * 4 * (C + O)) / ROWS * ROWS,
                  block = most(24, least(fit, 120));
    const int64_t blocks = up(t.count(), block);
    Team team;
    Memory memory;
    const auto all_V = memory.each<float>(team, POINTS * plane(block, C)),
               all_M = memory.each<float>(team, POINTS * plane(block, O));
    const auto all_nowhere = memory.each<float>(team, g->OW * O);
    float *zeros = memory.take<float>(g->W * C);
    if (!memory.ok()) return NO_MEMORY;
    std::memset(zeros, 0, g->W * C * sizeof(float));
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *V = all_V[member], *M = all_M[member], *nowhere = all_nowhere[member];
#pragma omp for schedule(dynamic) nowait
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t first = b * block, tiles = least(block, up(t.count() - first, ROWS) * ROWS);
            transform_input(t, x, first, tiles, C, zeros, V);
            for (int64_t point = 0; point < POINTS; point++)
                for (int64_t panel = 0; panel < panels; panel++)
                    for (int64_t c0 = 0; c0 < C; c0 += DEPTH) {
                        const float *u = packed + ((point * panels + panel) * C + c0) * PANEL;
                        const bool full = O - panel * PANEL >= PANEL;
                        for (int64_t tile = 0; tile < tiles; tile += ROWS) {
                            const float *v = V + point * plane(tiles, C) + tile * C + c0;
                            float *m = M + point * plane(tiles, O) + tile * O + panel * PANEL;
                            const int64_t depth = least(DEPTH, C - c0);
                            full ? multiply<ROWS, 2>(v, C, 1, u, PANEL, depth, c0 > 0, m, O)
                                 : multiply<ROWS, 1>(v, C, 1, u, PANEL, depth, c0 > 0, m, O);
                        }
                    }
            transform_output(t, M, first, tiles, O, bias, nowhere, y);
        }
    }
    return DONE;
}

int weight_grad(const Geometry *g, const float *x, const float *gy, float *dw) {
    const int64_t C = g->C_in, O = g->C_out, size = POINTS * C * O;
    const Tiles t(g);
    const int64_t block = most(16, least(BLOCK_BYTES / (POINTS * 4 * (C + O)), 128)), blocks = up(t.count(), block);
    const int64_t chunks = most(1, least(CHUNKS, blocks)), per_chunk = up(blocks, chunks);
    Team team;
    Memory memory;
    const auto all_X = memory.each<float>(team, POINTS * plane(block, C)),
               all_Y = memory.each<float>(team, POINTS * plane(block, O));
    float *zeros = memory.take<float>(g->W * C + g->OW * O), *sums = memory.take<float>(chunks * size);
    if (!memory.ok()) return NO_MEMORY;
    std::memset(zeros, 0, (g->W * C + g->OW * O) * sizeof(float));
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *X = all_X[member], *Y = all_Y[member];
#pragma omp for schedule(dynamic)
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            float *sum = sums + chunk * size;
            std::memset(sum, 0, size * sizeof(float));
            for (int64_t b = chunk * per_chunk; b < least(blocks, (chunk + 1) * per_chunk); b++) {
                const int64_t first = b * block, tiles = least(block, t.count() - first);
                transform_input(t, x, first, tiles, C, zeros, X);
                transform_gradient(t, gy, first, tiles, O, zeros, Y);
                for (int64_t point = 0; point < POINTS; point++)
                    for (int64_t c = 0; c < C; c += GRAD_ROWS) {
                        const float *a = X + point * plane(tiles, C) + c, *from = Y + point * plane(tiles, O);
                        float *to = sum + (point * C + c) * O;
                        int64_t o = 0;
                        for (; o + PANEL <= O; o += PANEL) multiply<GRAD_ROWS, 2>(a, 1, C, from + o, O, tiles, true, to + o, O);
                        for (; o < O; o += LANES) multiply<GRAD_ROWS, 1>(a, 1, C, from + o, O, tiles, true, to + o, O);
                    }
            }
        }
#pragma omp for schedule(static) nowait
        for (int64_t c = 0; c < C; c++)
            for (int64_t o = 0; o < O; o++) {
                float m[4][4], h[3][4];
                for (int64_t point = 0; point < POINTS; point++) {
                    float total = 0;
                    for (int64_t chunk = 0; chunk < chunks; chunk++)
                        total += sums[chunk * size + (point * C + c) * O + o];
                    m[point / 4][point % 4] = total;
                }
                for (int j = 0; j < 4; j++) {
                    const float plus = 0.5f * (m[1][j] + m[2][j]), minus = 0.5f * (m[1][j] - m[2][j]);
                    h[0][j] = m[0][j] + plus, h[1][j] = minus, h[2][j] = plus + m[3][j];
                }
                for (int i = 0; i < 3; i++) {
                    const float plus = 0.5f * (h[i][1] + h[i][2]), minus = 0.5f * (h[i][1] - h[i][2]);
                    float *out = dw + (o * 9 + 3 * i) * C + c;
                    out[0] = h[i][0] + plus, out[C] = minus, out[2 * C] = plus + h[i][3];
                }
            }
    }
    return DONE;
}

}  // namespace

extern "C" const WinogradKernels CAT(mpd_agl_winograd_, LEVEL);
extern "C" const WinogradKernels CAT(mpd_agl_winograd_, LEVEL) = {packed_size, pack, convolve, weight_grad};
