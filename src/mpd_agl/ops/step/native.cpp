// tdBN + LIF + surrogate, forward and backward, in its default form: hard reset, one tau and one v_th, from rest.
// Compiled once per SIMD level (LEVEL names it). general.cpp has every other form; plane.h explains how the plane is
// walked.
#include "native.h"

#include "plane.h"

namespace {

int moments(const float *x, int64_t rows, int64_t C, float *mean, float *var) {
    Plane plane(rows, C);
    const int64_t P = plane.P;
    Team team;
    Memory memory;
    float *shift = repeat(memory, x, C, P);  // the first row: sums of x - shift do not cancel
    double *partial = memory.take<double>(plane.chunks * P), *partial2 = memory.take<double>(plane.chunks * P);
    const auto all_sum = memory.each<float>(team, P), all_square = memory.each<float>(team, P);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *__restrict sum = all_sum[member], *__restrict square = all_square[member];
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < plane.chunks; b++) {
            double *out = partial + b * P, *out2 = partial2 + b * P;
            std::memset(out, 0, P * sizeof(double));
            std::memset(out2, 0, P * sizeof(double));
            int64_t last = (b + 1) * plane.tiles_per_chunk;
            if (last > plane.tiles) last = plane.tiles;
            for (int64_t first = b * plane.tiles_per_chunk; first < last; first += FLUSH) {
                std::memset(sum, 0, P * sizeof(float));
                std::memset(square, 0, P * sizeof(float));
                int64_t end = first + FLUSH < last ? first + FLUSH : last, tile = first;
                // four whole tiles at once: a quarter of the traffic to sum and square
                for (; tile + 4 < end; tile += 4) {
                    const float *__restrict row = x + tile * P;
                    LOOP (int64_t p = 0; p < P; p++) {
                        float a = row[p] - shift[p], b = row[p + P] - shift[p], c = row[p + 2 * P] - shift[p],
                              d = row[p + 3 * P] - shift[p];
                        sum[p] += (a + b) + (c + d);
                        square[p] += (a * a + b * b) + (c * c + d * d);
                    }
                }
                for (; tile < end; tile++) {
                    const float *__restrict row = x + tile * P;
                    const int64_t n = plane.length(tile);
                    LOOP (int64_t p = 0; p < n; p++) {
                        float d = row[p] - shift[p];
                        sum[p] += d;
                        square[p] += d * d;
                    }
                }
                LOOP (int64_t p = 0; p < P; p++) {
                    out[p] += sum[p];
                    out2[p] += square[p];
                }
            }
        }
    }
    fold(partial, plane.chunks, P, C);
    fold(partial2, plane.chunks, P, C);
    for (int64_t c = 0; c < C; c++) {
        double m = partial[c] / rows;
        double v = partial2[c] / rows - m * m;
        mean[c] = static_cast<float>(shift[c] + m);
        var[c] = static_cast<float>(v > 0 ? v : (v <= 0 ? 0 : v));  // rounding may dip below 0; NaN stays NaN
    }
    return DONE;
}

// One tile over all T steps. STEPS > 0 is T known to the compiler: the membrane stays in registers. STEPS = 0 is any T.
template <int STEPS, bool RESIDUAL> int forward_as(const Neuron *n, const float *x, const float *residual, float *s) {
    Plane plane(n->M, n->C);
    const int64_t P = plane.P, T = STEPS ? STEPS : n->T, size = plane.size, x_step = n->S == 1 ? 0 : size;
    const float tau = n->tau, v_th = n->v_th;
    Team team;
    Memory memory;
    const Channels ch(memory, n, P);
    const auto all_v = memory.each<float>(team, STEPS ? 0 : P);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *__restrict v = all_v[member];
        const float *__restrict mean = ch.mean, *__restrict scale = ch.scale, *__restrict beta = ch.beta;
#pragma omp for schedule(static) nowait
        for (int64_t tile = 0; tile < plane.tiles; tile++) {
            const int64_t count = plane.length(tile), at = tile * P;
            if constexpr (STEPS > 0) {
                const float *__restrict row = x + at, *__restrict more = residual + (RESIDUAL ? at : 0);
                float *__restrict out = s + at;
                LOOP (int64_t p = 0; p < count; p++) {
                    float kept = 0.0f;
#pragma GCC unroll 10
                    for (int t = 0; t < STEPS; t++) {
                        float w = tau * kept + ((row[t * x_step + p] - mean[p]) * scale[p] + beta[p]);  // Eq. 2
                        float fired = w >= v_th ? 1.0f : 0.0f;                                          // Eq. 3
                        if constexpr (RESIDUAL) fired += more[t * size + p];
                        out[t * size + p] = fired;
                        kept = w >= v_th ? 0.0f : w;
                    }
                }
            } else {
                std::memset(v, 0, P * sizeof(float));
                for (int64_t t = 0; t < T; t++) {
                    const float *__restrict row = x + t * x_step + at;
                    const float *__restrict more = residual + (RESIDUAL ? t * size + at : 0);
                    float *__restrict out = s + t * size + at;
                    LOOP (int64_t p = 0; p < count; p++) {
                        float w = tau * v[p] + ((row[p] - mean[p]) * scale[p] + beta[p]);
                        float fired = w >= v_th ? 1.0f : 0.0f;
                        if constexpr (RESIDUAL) fired += more[p];
                        out[p] = fired;
                        v[p] = w >= v_th ? 0.0f : w;
                    }
                }
            }
        }
    }
    return DONE;
}

int forward(const Neuron *n, const float *x, const float *residual, float *out) {
#define STEPS(T) return residual ? forward_as<T, true>(n, x, residual, out) : forward_as<T, false>(n, x, residual, out)
    switch (n->T) {
        case 1: STEPS(1);
        case 2: STEPS(2);
        case 4: STEPS(4);
        case 6: STEPS(6);
        case 10: STEPS(10);
        default: STEPS(0);
    }
#undef STEPS
}

template <int SG, bool STILL, bool KAPPA, int STEPS = 0>
int backward_as(const Neuron *n, const float *x, const float *g, float *dv_out, float *sum_dv, float *sum_dv_x,
                float *dtau, float *dkappa) {
    Plane plane(n->M, n->C);
    const int64_t P = plane.P, T = STEPS ? STEPS : n->T, size = plane.size;
    const int64_t x_step = STILL ? 0 : size;
    const float tau = n->tau, v_th = n->v_th, through_reset = n->detach_reset ? 0.0f : tau;
    float kappas[STEPS ? STEPS : 1], inverses[STEPS ? STEPS : 1], gains[STEPS ? STEPS : 1];
    for (int t = 0; t < STEPS; t++) {
        kappas[t] = n->kappa[t], inverses[t] = 1.0f / n->kappa[t], gains[t] = n->gain[t];
    }
    Team team;
    Memory memory;
    const Channels ch(memory, n, P);
    double *part_dv = memory.take<double>(plane.chunks * P), *part_dv_x = memory.take<double>(plane.chunks * P);
    double *part_tau = memory.take<double>(plane.chunks), *part_kappa = memory.take<double>(plane.chunks * T);
    const auto all_v = memory.each<float>(team, STEPS ? 0 : T * P), all_next = memory.each<float>(team, STEPS ? 0 : P);
    const auto all_total = memory.each<float>(team, STILL ? P : 0), all_acc = memory.each<float>(team, P);
    const auto all_acc_x = memory.each<float>(team, P), all_acc_tau = memory.each<float>(team, P);
    const auto all_acc_kappa = memory.each<float>(team, KAPPA ? P * T : 0);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *__restrict v = all_v[member], *__restrict next = all_next[member], *__restrict total = all_total[member];
        float *__restrict acc = all_acc[member], *__restrict acc_x = all_acc_x[member],
                          *__restrict acc_tau = all_acc_tau[member];
        float *__restrict acc_kappa = all_acc_kappa[member];
        const float *__restrict mean = ch.mean, *__restrict scale = ch.scale, *__restrict beta = ch.beta;
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < plane.chunks; b++) {
            double *out = part_dv + b * P, *out_x = part_dv_x + b * P;
            std::memset(out, 0, P * sizeof(double));
            std::memset(out_x, 0, P * sizeof(double));
            std::memset(part_kappa + b * T, 0, T * sizeof(double));
            part_tau[b] = 0;
            int64_t last = (b + 1) * plane.tiles_per_chunk;
            if (last > plane.tiles) last = plane.tiles;
            for (int64_t first = b * plane.tiles_per_chunk; first < last; first += FLUSH) {
                std::memset(acc, 0, P * sizeof(float));
                std::memset(acc_x, 0, P * sizeof(float));
                std::memset(acc_tau, 0, P * sizeof(float));
                if constexpr (KAPPA) std::memset(acc_kappa, 0, P * T * sizeof(float));
                for (int64_t tile = first; tile < first + FLUSH && tile < last; tile++) {
                    const int64_t count = plane.length(tile), at = tile * P;
                    if constexpr (STEPS > 0) {  // the same as below with everything in registers
                        const float *__restrict row = x + at, *__restrict g_at = g + at;
                        float *__restrict d_out = dv_out + at;
                        LOOP (int64_t p = 0; p < count; p++) {
                            float centred[STEPS], w[STEPS], after = 0.0f, sum = 0.0f, sum_x = 0.0f, sum_tau = 0.0f;
#pragma GCC unroll 10
                            for (int t = 0; t < STEPS; t++) {
                                centred[t] = row[t * size + p] - mean[p];
                                float i = centred[t] * scale[p] + beta[p];
                                w[t] = t == 0 ? i : tau * (w[t - 1] >= v_th ? 0.0f : w[t - 1]) + i;
                            }
#pragma GCC unroll 10
                            for (int t = STEPS - 1; t >= 0; t--) {
                                float u = w[t] - v_th, ds = g_at[t * size + p] - through_reset * w[t] * after;
                                float kept = u >= 0.0f ? 0.0f : after;
                                after = ds * (gains[t] * surrogate<SG>(u, kappas[t], inverses[t])) + tau * kept;
                                sum_tau += kept * w[t];
                                sum += after;
                                sum_x += after * centred[t];
                                d_out[t * size + p] = after;
                            }
                            acc[p] += sum;
                            acc_x[p] += sum_x;
                            acc_tau[p] += sum_tau;
                        }
                        continue;
                    }
                    // v again: Eq. 2-3
                    for (int64_t t = 0; t < T; t++) {
                        const float *__restrict row = x + t * x_step + at;
                        const float *__restrict old = v + (t > 0 ? t - 1 : 0) * P;
                        float *__restrict now = v + t * P;
                        if (t == 0) {
                            LOOP (int64_t p = 0; p < count; p++) now[p] = (row[p] - mean[p]) * scale[p] + beta[p];
                        } else {
                            LOOP (int64_t p = 0; p < count; p++) {
                                float kept = old[p] >= v_th ? 0.0f : old[p];
                                now[p] = tau * kept + ((row[p] - mean[p]) * scale[p] + beta[p]);
                            }
                        }
                    }
                    // Eq. 12-13, from the last step back
                    std::memset(next, 0, P * sizeof(float));
                    if constexpr (STILL) std::memset(total, 0, P * sizeof(float));
                    for (int64_t t = T - 1; t >= 0; t--) {
                        const float kappa = n->kappa[t], inverse = 1.0f / kappa, gain = n->gain[t];
                        const float *__restrict row = x + t * x_step + at, *__restrict g_t = g + t * size + at;
                        const float *__restrict v_t = v + t * P;
                        float *__restrict d_out = dv_out + t * x_step + at;
                        float *__restrict acc_k = acc_kappa + (KAPPA ? t * P : 0);
                        LOOP (int64_t p = 0; p < count; p++) {
                            float u = v_t[p] - v_th, after = next[p];
                            float ds = g_t[p] - through_reset * v_t[p] * after;
                            float kept = u >= 0.0f ? 0.0f : after;  // dv_{t+1} (1 - s_t)
                            float h = surrogate<SG>(u, kappa, inverse);
                            float d = ds * (gain * h) + tau * kept;
                            acc_tau[p] += kept * v_t[p];
                            if constexpr (KAPPA) acc_k[p] += ds * (gain * surrogate_by_kappa(u, h, inverse));
                            next[p] = d;
                            if constexpr (STILL) {
                                total[p] += d;
                            } else {
                                acc[p] += d;
                                acc_x[p] += d * (row[p] - mean[p]);
                                d_out[p] = d;
                            }
                        }
                    }
                    if constexpr (STILL) {
                        const float *__restrict row = x + at;
                        float *__restrict d_out = dv_out + at;
                        LOOP (int64_t p = 0; p < count; p++) {
                            acc[p] += total[p];
                            acc_x[p] += total[p] * (row[p] - mean[p]);
                            d_out[p] = total[p];
                        }
                    }
                }
                double t_sum = 0;
                for (int64_t p = 0; p < P; p++) {
                    out[p] += acc[p];
                    out_x[p] += acc_x[p];
                    t_sum += acc_tau[p];
                }
                part_tau[b] += t_sum;
                if constexpr (KAPPA) {
                    for (int64_t t = 0; t < T; t++)
                        for (int64_t p = 0; p < P; p++) part_kappa[b * T + t] += acc_kappa[t * P + p];
                }
            }
        }
    }
    fold(part_dv, plane.chunks, P, n->C);
    fold(part_dv_x, plane.chunks, P, n->C);
    for (int64_t c = 0; c < n->C; c++)
        sum_dv[c] = static_cast<float>(part_dv[c]), sum_dv_x[c] = static_cast<float>(part_dv_x[c]);
    for (int64_t b = 1; b < plane.chunks; b++) {
        part_tau[0] += part_tau[b];
        for (int64_t t = 0; t < T; t++) part_kappa[t] += part_kappa[b * T + t];
    }
    *dtau = static_cast<float>(part_tau[0]);
    if (dkappa)
        for (int64_t t = 0; t < T; t++) dkappa[t] = static_cast<float>(part_kappa[t]);
    return DONE;
}

int backward(const Neuron *n, const float *x, const float *g, float *dv, float *sum_dv, float *sum_dv_x, float *dtau,
             float *dkappa) {
    if (n->surrogate == RECTANGULAR && n->S == n->T && !dkappa)
        switch (n->T) {  // the paper's surrogate at the paper's T
            case 1: return backward_as<RECTANGULAR, false, false, 1>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
            case 2: return backward_as<RECTANGULAR, false, false, 2>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
            case 4: return backward_as<RECTANGULAR, false, false, 4>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
            case 6: return backward_as<RECTANGULAR, false, false, 6>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
            case 10: return backward_as<RECTANGULAR, false, false, 10>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
        }
#define CALL(SG, STILL)                                                                       \
    return dkappa ? backward_as<SG, STILL, true>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa) \
                  : backward_as<SG, STILL, false>(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa)
#define BY_FLAGS(SG)               \
    if (n->S == 1) CALL(SG, true); \
    CALL(SG, false)
    switch (n->surrogate) {
        case RECTANGULAR: BY_FLAGS(RECTANGULAR);
        case TRIANGULAR: BY_FLAGS(TRIANGULAR);
        case SIGMOID: BY_FLAGS(SIGMOID);
        default: BY_FLAGS(ARCTAN);
    }
#undef BY_FLAGS
#undef CALL
}

int normalise_grad(const float *x, float *dv, int64_t rows, int64_t C, const float *mean_C, const float *scale_C,
                   const float *m1_C, const float *m2_C) {
    Plane plane(rows, C);
    const int64_t P = plane.P;
    Memory memory;
    const float *mean = repeat(memory, mean_C, C, P), *scale = repeat(memory, scale_C, C, P);
    const float *m1 = repeat(memory, m1_C, C, P), *m2 = repeat(memory, m2_C, C, P);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel for schedule(static)
    for (int64_t tile = 0; tile < plane.tiles; tile++) {
        const int64_t count = plane.length(tile);
        const float *__restrict row = x + tile * P;
        float *__restrict d = dv + tile * P;
        LOOP (int64_t p = 0; p < count; p++) d[p] = scale[p] * (d[p] - m1[p] - (row[p] - mean[p]) * m2[p]);
    }
    return DONE;
}

}  // namespace

extern "C" const Kernels CAT(mpd_agl_kernels_, LEVEL);
extern "C" const Kernels CAT(mpd_agl_kernels_, LEVEL) = {moments, forward, backward, normalise_grad};
