// Dense 3x3 convolutions in Winograd's form, compiled once per SIMD level (LEVEL names it).
//
// A tile of MxM outputs reads (M+2)x(M+2) inputs. With d the input tile, g the kernel, y the outputs (all per channel):
//     y = A^T [ (G g G^T) * (B^T d B) ] A,   summed over input channels inside the bracket: (M+2)^2 matrix products
// The matrices are in Form<M> below. The output and the input gradient take M = 4; the latter is such a convolution, of
// gy with the kernel turned round. The weight gradient takes M = 2 and runs the same chain backwards:
//     dg = G^T [ sum over tiles of (B^T d B) * (A gy A^T) ] G
//
// The order of additions depends on the shape alone, not on threads.
#include "winograd.h"

#include <cstring>

#include "simd.h"

namespace {

// Tiles whose sums are in registers at once, and input channels of a weight gradient: AVX-512 has 32 registers
constexpr int64_t ROWS = LANES >= 16 ? 12 : 6, GRAD_ROWS = LANES >= 16 ? 8 : 4;
constexpr int64_t PANEL = 2 * LANES;        // output channels likewise
constexpr int64_t DEPTH = 256;              // input channels of a panel in L1
// of a block of tiles in Winograd's domain, in L2: processors with AVX-512 have at least 1 MB of it
constexpr int64_t BLOCK_BYTES = (LANES >= 16 ? 512 : 192) << 10;
constexpr int64_t LEAST_TILES = 48;  // of a block: so often is a weight read from L2 or L3 used
constexpr int64_t CHUNKS = 16;  // partial sums of a weight gradient: a fixed number, for the same bits with any threads

// B^T, A^T and G on one row or column of M + 2, M + 2 and 3 values
template <int M> struct Form;

// Points 0, 1, -1 and infinity: additions and halves only
template <> struct Form<2> {
    static inline void input(const vec *d, vec *m) {
        m[0] = d[0] - d[2], m[1] = d[1] + d[2], m[2] = d[2] - d[1], m[3] = d[1] - d[3];
    }
};

// Points 0, 3/4, -3/4, 3/2, -3/2 and infinity. With the usual 0, 1, -1, 2, -2 the float32 error is four times as large.
template <> struct Form<4> {
    static constexpr float P = 0.75f, Q = 1.5f, PP = P * P, QQ = Q * Q;
    static inline void input(const vec *d, vec *m) {
        const vec even_p = d[4] - QQ * d[2], odd_p = P * (d[3] - QQ * d[1]);
        const vec even_q = d[4] - PP * d[2], odd_q = Q * (d[3] - PP * d[1]);
        m[0] = PP * QQ * d[0] - (PP + QQ) * d[2] + d[4];
        m[1] = even_p + odd_p, m[2] = even_p - odd_p;
        m[3] = even_q + odd_q, m[4] = even_q - odd_q;
        m[5] = PP * QQ * d[1] - (PP + QQ) * d[3] + d[5];
    }
    static inline void output(const vec *m, vec *y) {
        const vec even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
        y[0] = m[0] + even_p + even_q;
        y[1] = P * odd_p + Q * odd_q;
        y[2] = PP * even_p + QQ * even_q;
        y[3] = P * PP * odd_p + Q * QQ * odd_q + m[5];
    }
    static inline void kernel(const vec *g, vec *h) {
        constexpr float at_0 = 1 / (PP * QQ), at_p = 1 / (2 * PP * (PP - QQ)), at_q = 1 / (2 * QQ * (QQ - PP));
        const vec even_p = at_p * (g[0] + PP * g[2]), odd_p = at_p * P * g[1];
        const vec even_q = at_q * (g[0] + QQ * g[2]), odd_q = at_q * Q * g[1];
        h[0] = at_0 * g[0];
        h[1] = even_p + odd_p, h[2] = even_p - odd_p;
        h[3] = even_q + odd_q, h[4] = even_q - odd_q;
        h[5] = g[2];
    }
};

// floats from one point of a block to the next: a line more than it holds, or the planes share few sets of the cache
inline int64_t plane(int64_t tiles, int64_t C) { return tiles * C + 16; }

// MxM tiles of an output [N][OH][OW], in order; of an input [N][H][W] with a border of `pad` zeros
template <int M> struct Tiles {
    int64_t N, H, W, OH, OW, pad, down, across;
    Tiles(const Geometry *g)
        : N(g->N), H(g->H), W(g->W), OH(g->OH), OW(g->OW), pad(g->pad), down(up(OH, M)), across(up(OW, M)) {}
    int64_t count() const { return N * down * across; }
};

// Neighbouring tiles of one row, from tile `first + at` of a block on
struct Run {
    int64_t at, n, ty, tx, length;
    template <int M>
    Run(const Tiles<M> &t, int64_t first, int64_t tiles, int64_t at)
        : at(at),
          n((first + at) / (t.down * t.across)),
          ty((first + at) / t.across % t.down),
          tx((first + at) % t.across),
          length(least(t.across - tx, least(tiles, t.count() - first) - at)) {}
};

// B^T d B of each tile: out [point][tiles][C]; `zeros` is a row of the input
template <int M>
void transform_input(const Tiles<M> &t, const float *x, int64_t first, int64_t tiles, int64_t C, const float *zeros,
                     float *out) {
    constexpr int S = M + 2;
    const int64_t stride = plane(tiles, C);
    int64_t at = 0;
    while (at < least(tiles, t.count() - first)) {
        const Run run(t, first, tiles, at);
        const float *d[S];
        for (int i = 0; i < S; i++) {
            const int64_t y = M * run.ty - t.pad + i;
            d[i] = y >= 0 && y < t.H ? x + (run.n * t.H + y) * t.W * C : zeros;
        }
        for (int64_t c = 0; c < C; c += LANES) {
            vec m[S][S];  // the tile's columns
            int64_t place = M * run.tx - t.pad;
            const auto column = [&](vec *to) {
                vec v[S];
                const bool inside = place >= 0 && place < t.W;
#pragma GCC unroll 6
                for (int i = 0; i < S; i++) v[i] = inside ? load(d[i] + place * C + c) : vec{};
                Form<M>::input(v, to);
                place++;
            };
            column(m[0]), column(m[1]);
            float *to = out + run.at * C + c;
            for (int64_t k = 0; k < run.length; k++, to += C) {
#pragma GCC unroll 4
                for (int j = 2; j < S; j++) column(m[j]);
#pragma GCC unroll 6
                for (int i = 0; i < S; i++) {
                    vec v[S], w[S];
#pragma GCC unroll 6
                    for (int j = 0; j < S; j++) v[j] = m[j][i];
                    Form<M>::input(v, w);
#pragma GCC unroll 6
                    for (int j = 0; j < S; j++) store(to + (S * i + j) * stride, w[j]);
                    m[0][i] = v[M], m[1][i] = v[M + 1];  // the first two columns of the next tile
                }
            }
        }
        at += run.length;
    }
    if (at < tiles)  // tiles past the last
        for (int64_t point = 0; point < S * S; point++)
            std::memset(out + point * stride + at * C, 0, (tiles - at) * C * sizeof(float));
}

// A gy A^T of each tile: out [point][tiles][C]; `zeros` is a row of the output
void transform_gradient(const Tiles<2> &t, const float *gy, int64_t first, int64_t tiles, int64_t C, const float *zeros,
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
template <int M>
void transform_output(const Tiles<M> &t, const float *m, int64_t first, int64_t tiles, int64_t C, const float *bias,
                      float *nowhere, float *y) {
    constexpr int S = M + 2;
    const int64_t stride = plane(tiles, C);
    for (int64_t at = 0; at < least(tiles, t.count() - first);) {
        const Run run(t, first, tiles, at);
        float *rows[M];
        for (int i = 0; i < M; i++)
            rows[i] = M * run.ty + i < t.OH ? y + (run.n * t.OH + M * run.ty + i) * t.OW * C : nowhere;
        for (int64_t c = 0; c < C; c += LANES) {
            const vec b = bias ? load(bias + c) : vec{};
            const float *from = m + run.at * C + c;
            for (int64_t k = 0; k < run.length; k++, from += C) {
                vec r[S][M];
#pragma GCC unroll 6
                for (int j = 0; j < S; j++) {
                    vec v[S];
#pragma GCC unroll 6
                    for (int i = 0; i < S; i++) v[i] = load(from + (S * i + j) * stride);
                    Form<M>::output(v, r[j]);
                }
                const int64_t place = M * (run.tx + k), there = least(M, t.OW - place);
#pragma GCC unroll 4
                for (int i = 0; i < M; i++) {
                    vec v[S], w[M];
#pragma GCC unroll 6
                    for (int j = 0; j < S; j++) v[j] = r[j][i];
                    Form<M>::output(v, w);
#pragma GCC unroll 4
                    for (int j = 0; j < M; j++)
                        if (j < there) store(rows[i] + (place + j) * C + c, w[j] + b);
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

constexpr int OUT = 4, POINTS = (OUT + 2) * (OUT + 2);  // of an output's tile

// floats from one point of a packed weight to the next, again a line more than it holds
inline int64_t packed_plane(const Geometry *g) { return up(g->C_out, PANEL) * g->C_in * PANEL + 16; }
int64_t packed_size(const Geometry *g) { return POINTS * packed_plane(g); }

// packed [point][panel][C_in][PANEL of C_out]
void pack(const Geometry *g, const float *weight, int turned, float *packed) {
    constexpr int S = OUT + 2;
    const int64_t C = g->C_in, O = g->C_out, stride = packed_plane(g);
#pragma omp parallel for schedule(static)
    for (int64_t vector = 0; vector < up(O, LANES); vector++) {
        const int64_t o = vector * LANES;
        float *to = packed + o / PANEL * C * PANEL + o % PANEL;
        for (int64_t c = 0; c < C; c++, to += PANEL) {
            vec h[3][S];
#pragma GCC unroll 3
            for (int j = 0; j < 3; j++) {
                vec taps[3];
#pragma GCC unroll 3
                for (int i = 0; i < 3; i++) {
                    const int tap = 3 * i + j;
                    taps[i] = load(weight + (c * 9 + (turned ? 8 - tap : tap)) * O + o);
                }
                Form<OUT>::kernel(taps, h[j]);
            }
#pragma GCC unroll 6
            for (int i = 0; i < S; i++) {
                const vec row[3] = {h[0][i], h[1][i], h[2][i]};
                vec points[S];
                Form<OUT>::kernel(row, points);
#pragma GCC unroll 6
                for (int j = 0; j < S; j++) store(to + (S * i + j) * stride, points[j]);
            }
        }
    }
}

int convolve(const Geometry *g, const float *x, const float *packed, const float *bias, float *y) {
    const int64_t C = g->C_in, O = g->C_out, panels = up(O, PANEL);
    const Tiles<OUT> t(g);
    const int64_t fit = BLOCK_BYTES / (POINTS * 4 * (C + O)) / ROWS * ROWS, block = most(LEAST_TILES, least(fit, 120));
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
                        const float *u = packed + point * packed_plane(g) + (panel * C + c0) * PANEL;
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

constexpr int64_t GRAD_POINTS = 16;  // of a tile of a weight gradient

int weight_grad(const Geometry *g, const float *x, const float *gy, float *dw) {
    const int64_t C = g->C_in, O = g->C_out, size = GRAD_POINTS * C * O;
    const Tiles<2> t(g);
    const int64_t block = most(16, least(BLOCK_BYTES / (GRAD_POINTS * 4 * (C + O)), 128)), blocks = up(t.count(), block);
    const int64_t chunks = most(1, least(CHUNKS, blocks)), per_chunk = up(blocks, chunks);
    Team team;
    Memory memory;
    const auto all_X = memory.each<float>(team, GRAD_POINTS * plane(block, C)),
               all_Y = memory.each<float>(team, GRAD_POINTS * plane(block, O));
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
                for (int64_t point = 0; point < GRAD_POINTS; point++)
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
                for (int64_t point = 0; point < GRAD_POINTS; point++) {
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
