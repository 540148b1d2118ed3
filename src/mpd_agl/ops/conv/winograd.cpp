// Dense 3x3 convolutions in Winograd's form F(4x4, 3x3), compiled once per SIMD level (LEVEL names it).
//
// A tile of 4x4 outputs reads 6x6 inputs. With d the input tile, g the kernel, y the outputs (all per channel):
//     y = A^T [ (G g G^T) * (B^T d B) ] A,   summed over input channels inside the bracket: 36 matrix products
// The input gradient is such a convolution, of gy with the kernel turned round. The weight gradient runs the same chain
// backwards:
//     dg = G^T [ sum over tiles of (B^T d B) * (A gy A^T) ] G
//
// The matrices follow from the points 0, P, -P, Q, -Q and infinity. With P = 3/4 and Q = 3/2 all their numbers but G's
// are exact. The order of additions depends on the shape alone, not on threads.
#include "winograd.h"

#include <cstring>

#include "simd.h"

namespace {

constexpr int OUT = 4, SIDE = OUT + 2, POINTS = SIDE * SIDE;  // of a tile: outputs, inputs, and products
// Tiles whose sums are in registers at once, and output channels of a weight gradient: AVX-512 has 32 registers
constexpr int64_t ROWS = LANES >= 16 ? 12 : 6, GRAD_ROWS = LANES >= 16 ? 8 : 4;
constexpr int64_t PANEL = 2 * LANES;  // channels likewise
constexpr int64_t DEPTH = 256;        // input channels of a panel in L1
// Bytes of a block of tiles in Winograd's domain, which is to stay in L2: with AVX-512 that is at least 1 MB
constexpr int64_t BLOCK_BYTES = (LANES >= 16 ? 512 : 192) << 10;
constexpr int64_t LEAST_TILES = 48;  // of a block, also where they need more than L2: each reads all weights once
constexpr int64_t GRAD_TILES = 64;  // tiles of a block of a weight gradient
constexpr int64_t PART = 16;        // tiles that a thread transforms at a time
// Chunks of a weight gradient, and bytes of all their sums: numbers of the shape alone, or threads would change bits
constexpr int64_t MOST_CHUNKS = 32, CHUNK_BYTES = 4 << 20;

constexpr float P = 0.75f, Q = 1.5f, PP = P * P, QQ = Q * Q;
constexpr float G_0 = 1 / (PP * QQ), G_P = 1 / (2 * PP * (PP - QQ)), G_Q = 1 / (2 * QQ * (QQ - PP));

// m = B^T d
inline void to_input(const vec *d, vec *m) {
    const vec even_p = d[4] - QQ * d[2], odd_p = P * (d[3] - QQ * d[1]);
    const vec even_q = d[4] - PP * d[2], odd_q = Q * (d[3] - PP * d[1]);
    m[0] = PP * QQ * d[0] - (PP + QQ) * d[2] + d[4];
    m[1] = even_p + odd_p, m[2] = even_p - odd_p;
    m[3] = even_q + odd_q, m[4] = even_q - odd_q;
    m[5] = PP * QQ * d[1] - (PP + QQ) * d[3] + d[5];
}

// y = A^T m
inline void to_output(const vec *m, vec *y) {
    const vec even_p = m[1] + m[2], odd_p = m[1] - m[2], even_q = m[3] + m[4], odd_q = m[3] - m[4];
    y[0] = m[0] + even_p + even_q;
    y[1] = P * odd_p + Q * odd_q;
    y[2] = PP * even_p + QQ * even_q;
    y[3] = P * PP * odd_p + Q * QQ * odd_q + m[5];
}

// m = A y
inline void from_output(const vec *y, vec *m) {
    const vec even_p = y[0] + PP * y[2], odd_p = P * (y[1] + PP * y[3]);
    const vec even_q = y[0] + QQ * y[2], odd_q = Q * (y[1] + QQ * y[3]);
    m[0] = y[0];
    m[1] = even_p + odd_p, m[2] = even_p - odd_p;
    m[3] = even_q + odd_q, m[4] = even_q - odd_q;
    m[5] = y[3];
}

// h = G g
inline void to_kernel(const vec *g, vec *h) {
    const vec even_p = G_P * (g[0] + PP * g[2]), odd_p = G_P * P * g[1];
    const vec even_q = G_Q * (g[0] + QQ * g[2]), odd_q = G_Q * Q * g[1];
    h[0] = G_0 * g[0];
    h[1] = even_p + odd_p, h[2] = even_p - odd_p;
    h[3] = even_q + odd_q, h[4] = even_q - odd_q;
    h[5] = g[2];
}

// g = G^T h
inline void from_kernel(const vec *h, vec *g) {
    const vec even_p = G_P * (h[1] + h[2]), odd_p = G_P * P * (h[1] - h[2]);
    const vec even_q = G_Q * (h[3] + h[4]), odd_q = G_Q * Q * (h[3] - h[4]);
    g[0] = G_0 * h[0] + even_p + even_q;
    g[1] = odd_p + odd_q;
    g[2] = PP * even_p + QQ * even_q + h[5];
}

// 4x4 tiles of an output [N][OH][OW], in order; of an input [N][H][W] with a border of `pad` zeros
struct Tiles {
    int64_t N, H, W, OH, OW, pad, down, across;
    Tiles(const Geometry *g)
        : N(g->N), H(g->H), W(g->W), OH(g->OH), OW(g->OW), pad(g->pad), down(up(OH, OUT)), across(up(OW, OUT)) {}
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

// A block in Winograd's domain: floats from one point, tile and vector of channels to the next. Points are a line
// farther apart than they need, or they would share few sets of the cache.
struct Layout {
    int64_t point, tile, vector;
    static Layout of_rows(int64_t tiles, int64_t C) { return {tiles * C + 16, C, LANES}; }
    static Layout of_columns(int64_t tiles, int64_t C) { return {tiles * C + 16, LANES, tiles * LANES}; }
};

// B^T d B of each tile; `zeros` is a row of the input
void transform_input(const Tiles &t, const float *x, int64_t first, int64_t tiles, int64_t C, const float *zeros,
                     const Layout &layout, float *out) {
    int64_t at = 0;
    while (at < least(tiles, t.count() - first)) {
        const Run run(t, first, tiles, at);
        const float *d[SIDE];
        for (int i = 0; i < SIDE; i++) {
            const int64_t y = OUT * run.ty - t.pad + i;
            d[i] = y >= 0 && y < t.H ? x + (run.n * t.H + y) * t.W * C : zeros;
        }
        for (int64_t c = 0; c < C; c += LANES) {
            vec m[SIDE][SIDE];  // the tile's columns
            int64_t place = OUT * run.tx - t.pad;
            const auto column = [&](vec *to) {
                vec v[SIDE];
                const bool inside = place >= 0 && place < t.W;
#pragma GCC unroll 6
                for (int i = 0; i < SIDE; i++) v[i] = inside ? load(d[i] + place * C + c) : vec{};
                to_input(v, to);
                place++;
            };
            column(m[0]), column(m[1]);
            float *to = out + run.at * layout.tile + c / LANES * layout.vector;
            for (int64_t k = 0; k < run.length; k++, to += layout.tile) {
#pragma GCC unroll 4
                for (int j = 2; j < SIDE; j++) column(m[j]);
#pragma GCC unroll 6
                for (int i = 0; i < SIDE; i++) {
                    vec v[SIDE], w[SIDE];
#pragma GCC unroll 6
                    for (int j = 0; j < SIDE; j++) v[j] = m[j][i];
                    to_input(v, w);
#pragma GCC unroll 6
                    for (int j = 0; j < SIDE; j++) store(to + (SIDE * i + j) * layout.point, w[j]);
                    m[0][i] = v[OUT], m[1][i] = v[OUT + 1];  // the first two columns of the next tile
                }
            }
        }
        at += run.length;
    }
    for (int64_t point = 0; point < POINTS; point++)  // tiles past the last
        for (int64_t tile = at; tile < tiles; tile++)
            for (int64_t c = 0; c < C; c += LANES)
                store(out + point * layout.point + tile * layout.tile + c / LANES * layout.vector, vec{});
}

// A gy A^T of each tile
void transform_gradient(const Tiles &t, const float *gy, int64_t first, int64_t tiles, int64_t C, const Layout &layout,
                        float *out) {
    for (int64_t at = 0; at < tiles;) {
        const Run run(t, first, tiles, at);
        const int64_t down = least(OUT, t.OH - OUT * run.ty);
        const float *upper = gy + (run.n * t.OH + OUT * run.ty) * t.OW * C;
        for (int64_t c = 0; c < C; c += LANES) {
            float *to = out + run.at * layout.tile + c / LANES * layout.vector;
            for (int64_t k = 0; k < run.length; k++, to += layout.tile) {
                const int64_t place = OUT * (run.tx + k), there = least(OUT, t.OW - place);
                vec m[OUT][SIDE];  // the tile's columns
#pragma GCC unroll 4
                for (int j = 0; j < OUT; j++) {
                    vec v[OUT];
#pragma GCC unroll 4
                    for (int i = 0; i < OUT; i++)
                        v[i] = i < down && j < there ? load(upper + (i * t.OW + place + j) * C + c) : vec{};
                    from_output(v, m[j]);
                }
#pragma GCC unroll 6
                for (int i = 0; i < SIDE; i++) {
                    const vec v[OUT] = {m[0][i], m[1][i], m[2][i], m[3][i]};
                    vec w[SIDE];
                    from_output(v, w);
#pragma GCC unroll 6
                    for (int j = 0; j < SIDE; j++) store(to + (SIDE * i + j) * layout.point, w[j]);
                }
            }
        }
        at += run.length;
    }
}

// A^T m A of each tile, and the bias, into the output; `nowhere` is a row of it
void transform_output(const Tiles &t, const float *m, int64_t first, int64_t tiles, int64_t C, const float *bias,
                      const Layout &layout, float *nowhere, float *y) {
    for (int64_t at = 0; at < least(tiles, t.count() - first);) {
        const Run run(t, first, tiles, at);
        float *rows[OUT];
        for (int i = 0; i < OUT; i++)
            rows[i] = OUT * run.ty + i < t.OH ? y + (run.n * t.OH + OUT * run.ty + i) * t.OW * C : nowhere;
        for (int64_t c = 0; c < C; c += LANES) {
            const vec b = bias ? load(bias + c) : vec{};
            const float *from = m + run.at * layout.tile + c / LANES * layout.vector;
            for (int64_t k = 0; k < run.length; k++, from += layout.tile) {
                vec r[SIDE][OUT];
#pragma GCC unroll 6
                for (int j = 0; j < SIDE; j++) {
                    vec v[SIDE];
#pragma GCC unroll 6
                    for (int i = 0; i < SIDE; i++) v[i] = load(from + (SIDE * i + j) * layout.point);
                    to_output(v, r[j]);
                }
                const int64_t place = OUT * (run.tx + k), there = least(OUT, t.OW - place);
#pragma GCC unroll 4
                for (int i = 0; i < OUT; i++) {
                    vec v[SIDE], w[OUT];
#pragma GCC unroll 6
                    for (int j = 0; j < SIDE; j++) v[j] = r[j][i];
                    to_output(v, w);
#pragma GCC unroll 4
                    for (int j = 0; j < OUT; j++)
                        if (j < there) store(rows[i] + (place + j) * C + c, w[j] + b);
                }
            }
        }
        at += run.length;
    }
}

// out[i][:] (+)= sum over k of a[i, k] b[k][:], M rows and NV vectors in registers.
// a[i, k] is at a + i * a_row + k * a_step, vector j of b[k] at b + k * b_step + j * b_vector.
template <int M, int NV>
inline void multiply(const float *__restrict a, int64_t a_row, int64_t a_step, const float *__restrict b,
                     int64_t b_step, int64_t b_vector, int64_t depth, bool add, float *__restrict out,
                     int64_t out_row) {
    vec sum[M][NV];
#pragma GCC unroll 12
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) sum[i][j] = vec{};
    for (int64_t k = 0; k < depth; k++) {
        vec w[NV];
#pragma GCC unroll 2
        for (int j = 0; j < NV; j++) w[j] = load(b + k * b_step + j * b_vector);
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
        for (int j = 0; j < NV; j++) {
            // a sum of sums: adding each product to a long sum would lose more of it
            float *to = out + i * out_row + j * LANES;
            store(to, add ? load(to) + sum[i][j] : sum[i][j]);
        }
}

// floats from one point of a packed weight to the next, again a line more than it holds
inline int64_t packed_plane(const Geometry *g) { return up(g->C_out, PANEL) * g->C_in * PANEL + 16; }
int64_t packed_size(const Geometry *g) { return POINTS * packed_plane(g); }

// packed [point][panel][C_in][PANEL of C_out]
void pack(const Geometry *g, const float *weight, int turned, float *packed) {
    constexpr int64_t PIECE = 16;  // input channels, of which there are a multiple
    const int64_t C = g->C_in, O = g->C_out, stride = packed_plane(g);
#pragma omp parallel for schedule(static)
    for (int64_t o = 0; o < O; o += LANES)
        for (int64_t c1 = 0; c1 < C; c1 += PIECE) {
            float kernels[9][PIECE][LANES];  // those of a piece, output channels innermost
            for (int64_t tap = 0; tap < 9; tap++)
                if (turned)
                    for (int64_t c = 0; c < PIECE; c++)
                        std::memcpy(kernels[8 - tap][c], weight + ((c1 + c) * 9 + tap) * O + o, LANES * sizeof(float));
                else
                    for (int64_t l = 0; l < LANES; l++) {
                        const float *__restrict in = weight + ((o + l) * 9 + tap) * C + c1;
                        for (int64_t c = 0; c < PIECE; c++) kernels[tap][c][l] = in[c];
                    }
            float *to = packed + (o / PANEL * C + c1) * PANEL + o % PANEL;
            for (int64_t c = 0; c < PIECE; c++, to += PANEL) {
                vec h[3][SIDE];
#pragma GCC unroll 3
                for (int j = 0; j < 3; j++) {
                    const vec taps[3] = {load(kernels[j][c]), load(kernels[3 + j][c]), load(kernels[6 + j][c])};
                    to_kernel(taps, h[j]);
                }
#pragma GCC unroll 6
                for (int i = 0; i < SIDE; i++) {
                    const vec row[3] = {h[0][i], h[1][i], h[2][i]};
                    vec points[SIDE];
                    to_kernel(row, points);
#pragma GCC unroll 6
                    for (int j = 0; j < SIDE; j++) store(to + (SIDE * i + j) * stride, points[j]);
                }
            }
        }
}

int convolve(const Geometry *g, const float *x, const float *packed, const float *bias, float *y) {
    const int64_t C = g->C_in, O = g->C_out, panels = up(O, PANEL);
    const Tiles t(g);
    const int64_t fit = BLOCK_BYTES / (POINTS * 4 * (C + O)) / ROWS * ROWS, block = most(LEAST_TILES, least(fit, 120));
    const int64_t blocks = up(t.count(), block);
    Team team;
    Memory memory;
    const auto all_V = memory.each<float>(team, POINTS * Layout::of_rows(block, C).point),
               all_M = memory.each<float>(team, POINTS * Layout::of_rows(block, O).point);
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
            const Layout in = Layout::of_rows(tiles, C), out = Layout::of_rows(tiles, O);
            transform_input(t, x, first, tiles, C, zeros, in, V);
            for (int64_t point = 0; point < POINTS; point++)
                for (int64_t panel = 0; panel < panels; panel++)
                    for (int64_t c0 = 0; c0 < C; c0 += DEPTH) {
                        const float *u = packed + point * packed_plane(g) + (panel * C + c0) * PANEL;
                        const bool full = O - panel * PANEL >= PANEL;
                        for (int64_t tile = 0; tile < tiles; tile += ROWS) {
                            const float *v = V + point * in.point + tile * C + c0;
                            float *m = M + point * out.point + tile * O + panel * PANEL;
                            const int64_t depth = least(DEPTH, C - c0);
                            full ? multiply<ROWS, 2>(v, C, 1, u, PANEL, LANES, depth, c0 > 0, m, O)
                                 : multiply<ROWS, 1>(v, C, 1, u, PANEL, LANES, depth, c0 > 0, m, O);
                        }
                    }
            transform_output(t, M, first, tiles, O, bias, out, nowhere, y);
        }
    }
    return DONE;
}

// floats from one point of a weight gradient's sums to the next
inline int64_t grad_plane(const Geometry *g) { return g->C_out * g->C_in + 16; }

// A block of tiles of a weight gradient: transformed inputs and gradients, and their products added to sums
struct Blocks {
    const Geometry *g;
    const Tiles &t;
    const float *x, *gy, *zeros;
    float *V, *Y, *sums;

    void transform(int64_t first, int64_t tiles, int64_t at) const {
        const Layout in = Layout::of_columns(tiles, g->C_in), out = Layout::of_columns(tiles, g->C_out);
        const int64_t part = least(PART, tiles - at);
        transform_input(t, x, first + at, part, g->C_in, zeros, in, V + at * in.tile);
        transform_gradient(t, gy, first + at, part, g->C_out, out, Y + at * out.tile);
    }

    // product i of POINTS * C_out / GRAD_ROWS; `add` to what the blocks before have left
    void multiply_rows(int64_t tiles, int64_t i, bool add) const {
        const int64_t C = g->C_in, O = g->C_out, rows = O / GRAD_ROWS;
        const Layout in = Layout::of_columns(tiles, C), out = Layout::of_columns(tiles, O);
        const int64_t point = i / rows, o = i % rows * GRAD_ROWS;
        const float *a = Y + point * out.point + o / LANES * out.vector + o % LANES, *b = V + point * in.point;
        float *sum = sums + point * grad_plane(g) + o * C;
        int64_t c = 0;
        for (; c + PANEL <= C; c += PANEL)
            multiply<GRAD_ROWS, 2>(a, 1, LANES, b + c / LANES * in.vector, LANES, in.vector, tiles, add, sum + c, C);
        for (; c < C; c += LANES)
            multiply<GRAD_ROWS, 1>(a, 1, LANES, b + c / LANES * in.vector, LANES, in.vector, tiles, add, sum + c, C);
    }
};

// Chunks of blocks, each with sums of its own, are summed one by one by whoever is free: no thread waits for another.
// Where the sums of several chunks would be too large there is one, and all threads share every block of it.
int weight_grad(const Geometry *g, const float *x, const float *gy, float *dw) {
    const int64_t C = g->C_in, O = g->C_out, products = POINTS * (O / GRAD_ROWS), sum_size = POINTS * grad_plane(g);
    const Tiles t(g);
    const int64_t blocks = up(t.count(), GRAD_TILES);
    const int64_t chunks = most(1, least(least(blocks, MOST_CHUNKS), CHUNK_BYTES / (4 * sum_size)));
    Team team;
    Memory memory;
    Team alone;
    alone.size = 1;
    const auto all_V = memory.each<float>(chunks > 1 ? team : alone, POINTS * Layout::of_columns(GRAD_TILES, C).point),
               all_Y = memory.each<float>(chunks > 1 ? team : alone, POINTS * Layout::of_columns(GRAD_TILES, O).point);
    float *sums = memory.take<float>(chunks * sum_size), *zeros = memory.take<float>(g->W * C);
    if (!memory.ok()) return NO_MEMORY;
    std::memset(zeros, 0, g->W * C * sizeof(float));
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        if (chunks > 1) {
#pragma omp for schedule(dynamic)
            for (int64_t chunk = 0; chunk < chunks; chunk++) {
                const Blocks block{g, t, x, gy, zeros, all_V[member], all_Y[member], sums + chunk * sum_size};
                const int64_t from = blocks * chunk / chunks, to = blocks * (chunk + 1) / chunks;
                for (int64_t b = from; b < to; b++) {
                    const int64_t first = b * GRAD_TILES, tiles = least(GRAD_TILES, t.count() - first);
                    for (int64_t at = 0; at < tiles; at += PART) block.transform(first, tiles, at);
                    for (int64_t i = 0; i < products; i++) block.multiply_rows(tiles, i, b > from);
                }
            }
        } else {
            const Blocks block{g, t, x, gy, zeros, all_V.all, all_Y.all, sums};
            for (int64_t first = 0; first < t.count(); first += GRAD_TILES) {
                const int64_t tiles = least(GRAD_TILES, t.count() - first);
#pragma omp for schedule(dynamic)
                for (int64_t at = 0; at < tiles; at += PART) block.transform(first, tiles, at);
#pragma omp for schedule(static)
                for (int64_t i = 0; i < products; i++) block.multiply_rows(tiles, i, first > 0);
            }
        }
#pragma omp for schedule(static) nowait
        for (int64_t o = 0; o < O; o++)
            for (int64_t c = 0; c < C; c += LANES) {
                vec h[3][SIDE];
#pragma GCC unroll 6
                for (int j = 0; j < SIDE; j++) {
                    vec v[SIDE], w[3];
#pragma GCC unroll 6
                    for (int i = 0; i < SIDE; i++) {
                        const float *at = sums + (SIDE * i + j) * grad_plane(g) + o * C + c;
                        v[i] = load(at);
                        for (int64_t chunk = 1; chunk < chunks; chunk++) v[i] += load(at + chunk * sum_size);
                    }
                    from_kernel(v, w);
                    h[0][j] = w[0], h[1][j] = w[1], h[2][j] = w[2];
                }
#pragma GCC unroll 3
                for (int i = 0; i < 3; i++) {
                    vec w[3];
                    from_kernel(h[i], w);
#pragma GCC unroll 3
                    for (int j = 0; j < 3; j++) store(dw + (o * 9 + 3 * i + j) * C + c, w[j]);
                }
            }
    }
    return DONE;
}

}  // namespace

extern "C" const WinogradKernels CAT(mpd_agl_winograd_, LEVEL);
extern "C" const WinogradKernels CAT(mpd_agl_winograd_, LEVEL) = {packed_size, pack, convolve, weight_grad};
