// Every form of the neuron: tau and v_th per channel, hard or soft reset, a state to start from and to end with, gains
// on the surrogate. Compiled once per SIMD level (LEVEL names it). native.cpp has the default form, which knows T at
// compile time; this one keeps tau and v_th along the tile beside the norm's vectors, and T is any number.
#include "native.h"

#include <initializer_list>

#include "plane.h"

namespace {

struct Threshold {  // tau and v_th, laid out along a tile
    float *tau, *v_th;
    Threshold(Memory &memory, const Neuron *n, int64_t P)
        : tau(repeat(memory, n->tau_C, n->C, P)), v_th(repeat(memory, n->v_th_C, n->C, P)) {}
};

// What a step leaves to the next
template <bool SOFT> inline float reset(float v, float v_th) {
    if constexpr (SOFT) return v >= v_th ? v - v_th : v;
    return v >= v_th ? 0.0f : v;
}

void begin(const Neuron *n, int64_t at, int64_t count, float *kept) {
    if (n->state)
        std::memcpy(kept, n->state + at, count * sizeof(float));
    else
        std::memset(kept, 0, count * sizeof(float));
}

template <bool SOFT, bool RESIDUAL>
int forward_as(const Neuron *n, const float *x, const float *residual, float *s, float *kept_out) {
    const Plane plane(n->M, n->C);
    const int64_t P = plane.P, T = n->T, size = plane.size, x_step = n->S == 1 ? 0 : size;
    Team team;
    Memory memory;
    const Channels ch(memory, n, P);
    const Threshold th(memory, n, P);
    const auto all_kept = memory.each<float>(team, P);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *__restrict kept = all_kept[member];
        const float *__restrict mean = ch.mean, *__restrict scale = ch.scale, *__restrict beta = ch.beta;
        const float *__restrict tau = th.tau, *__restrict v_th = th.v_th;
#pragma omp for schedule(static) nowait
        for (int64_t tile = 0; tile < plane.tiles; tile++) {
            const int64_t count = plane.length(tile), at = tile * P;
            begin(n, at, count, kept);
            for (int64_t t = 0; t < T; t++) {
                const float *__restrict row = x + t * x_step + at;
                const float *__restrict more = RESIDUAL ? residual + t * size + at : nullptr;
                float *__restrict out = s + t * size + at;
                LOOP (int64_t p = 0; p < count; p++) {
                    float v = tau[p] * kept[p] + ((row[p] - mean[p]) * scale[p] + beta[p]);
                    float fired = v >= v_th[p] ? 1.0f : 0.0f;
                    if constexpr (RESIDUAL) fired += more[p];
                    out[p] = fired;
                    kept[p] = reset<SOFT>(v, v_th[p]);
                }
            }
            if (kept_out) std::memcpy(kept_out + at, kept, count * sizeof(float));
        }
    }
    return DONE;
}

int forward(const Neuron *n, const float *x, const float *residual, float *out, float *kept) {
    if (n->soft_reset)
        return residual ? forward_as<true, true>(n, x, residual, out, kept)
                        : forward_as<true, false>(n, x, residual, out, kept);
    return residual ? forward_as<false, true>(n, x, residual, out, kept)
                    : forward_as<false, false>(n, x, residual, out, kept);
}

struct Outputs {
    float *dv, *sum_dv, *sum_dv_x, *dtau, *dv_th, *dkappa, *dkept_0;
};

// With dkept_t = dL/dkept_t, from the last step back:
//     ds_t = g_t - v_t dkept_t (hard), or g_t - v_th dkept_t (soft), or g_t where the reset is detached
//     dv_t = ds_t h_t + (1 - s_t) dkept_t (hard), or ds_t h_t + dkept_t (soft)
//     dkept_{t-1} = tau dv_t
//     dtau = sum dv_t kept_{t-1};   dv_th = -sum ds_t h_t (hard), or -sum (ds_t h_t + s_t dkept_t) (soft)
template <int SG, bool SOFT, bool KAPPA>
int backward_as(const Neuron *n, const float *x, const float *g, const float *dkept, const Outputs &to) {
    const Plane plane(n->M, n->C);
    const int64_t P = plane.P, T = n->T, C = n->C, size = plane.size, x_step = n->S == 1 ? 0 : size;
    const bool still = n->S == 1;
    const float through_reset = n->detach_reset ? 0.0f : 1.0f;
    Team team;
    Memory memory;
    const Channels ch(memory, n, P);
    const Threshold th(memory, n, P);
    double *part_dv = memory.take<double>(plane.chunks * P), *part_dv_x = memory.take<double>(plane.chunks * P);
    double *part_tau = memory.take<double>(plane.chunks * P), *part_th = memory.take<double>(plane.chunks * P);
    double *part_kappa = memory.take<double>(plane.chunks * T);
    const auto all_kept = memory.each<float>(team, T * P), all_v = memory.each<float>(team, T * P);
    const auto all_after = memory.each<float>(team, P), all_acc = memory.each<float>(team, P),
               all_acc_x = memory.each<float>(team, P);
    const auto all_acc_tau = memory.each<float>(team, P), all_acc_th = memory.each<float>(team, P);
    const auto all_acc_kappa = memory.each<float>(team, KAPPA ? T * P : 0);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *kept = all_kept[member], *v = all_v[member];
        float *__restrict after = all_after[member], *__restrict acc = all_acc[member],
                          *__restrict acc_x = all_acc_x[member];
        float *__restrict acc_tau = all_acc_tau[member], *__restrict acc_th = all_acc_th[member];
        float *__restrict acc_kappa = all_acc_kappa[member];
        const float *__restrict mean = ch.mean, *__restrict scale = ch.scale, *__restrict beta = ch.beta;
        const float *__restrict tau = th.tau, *__restrict v_th = th.v_th;
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < plane.chunks; b++) {
            double *sums[] = {part_dv + b * P, part_dv_x + b * P, part_tau + b * P, part_th + b * P};
            const float *from[] = {acc, acc_x, acc_tau, acc_th};
            for (double *sum : sums) std::memset(sum, 0, P * sizeof(double));
            std::memset(part_kappa + b * T, 0, T * sizeof(double));
            const int64_t last = least(plane.tiles, (b + 1) * plane.tiles_per_chunk);
            for (int64_t first = b * plane.tiles_per_chunk; first < last; first += FLUSH) {
                for (float *sum : {acc, acc_x, acc_tau, acc_th}) std::memset(sum, 0, P * sizeof(float));
                if constexpr (KAPPA) std::memset(acc_kappa, 0, P * T * sizeof(float));
                for (int64_t tile = first; tile < least(last, first + FLUSH); tile++) {
                    const int64_t count = plane.length(tile), at = tile * P;
                    // v and kept again
                    begin(n, at, count, kept);
                    for (int64_t t = 0; t < T; t++) {
                        const float *__restrict row = x + t * x_step + at, *__restrict before = kept + t * P;
                        float *__restrict now = v + t * P;
                        LOOP (int64_t p = 0; p < count; p++)
                            now[p] = tau[p] * before[p] + ((row[p] - mean[p]) * scale[p] + beta[p]);
                        if (t + 1 < T) {
                            float *__restrict next = kept + (t + 1) * P;
                            LOOP (int64_t p = 0; p < count; p++) next[p] = reset<SOFT>(now[p], v_th[p]);
                        }
                    }
                    if (dkept)
                        std::memcpy(after, dkept + at, count * sizeof(float));
                    else
                        std::memset(after, 0, count * sizeof(float));
                    for (int64_t t = T - 1; t >= 0; t--) {  // dv_t takes the place of v_t
                        const float kappa = n->kappa[t], inverse = 1.0f / kappa, gain = n->gain[t];
                        const float *__restrict g_t = g + t * size + at, *__restrict before = kept + t * P;
                        float *__restrict v_t = v + t * P, *__restrict acc_k = KAPPA ? acc_kappa + t * P : nullptr;
                        LOOP (int64_t p = 0; p < count; p++) {
                            const float u = v_t[p] - v_th[p], d_kept = after[p];
                            const bool fired = u >= 0.0f;
                            const float ds = g_t[p] - through_reset * (SOFT ? v_th[p] : v_t[p]) * d_kept;
                            const float h = surrogate<SG>(u, kappa, inverse), by_spike = ds * (gain * h);
                            const float d = by_spike + (!SOFT && fired ? 0.0f : d_kept);
                            acc_th[p] -= by_spike + (SOFT && fired ? d_kept : 0.0f);
                            acc_tau[p] += d * before[p];
                            if constexpr (KAPPA) acc_k[p] += ds * (gain * surrogate_by_kappa(u, h, inverse));
                            after[p] = tau[p] * d;
                            v_t[p] = d;
                        }
                    }
                    if (to.dkept_0) std::memcpy(to.dkept_0 + at, after, count * sizeof(float));
                    if (still)
                        for (int64_t t = 1; t < T; t++) {
                            const float *__restrict d = v + t * P;
                            float *__restrict total = v;
                            LOOP (int64_t p = 0; p < count; p++) total[p] += d[p];
                        }
                    for (int64_t t = 0; t < n->S; t++) {
                        const float *__restrict row = x + t * x_step + at, *__restrict d = v + t * P;
                        float *__restrict d_out = to.dv + t * x_step + at;
                        LOOP (int64_t p = 0; p < count; p++) {
                            acc[p] += d[p];
                            acc_x[p] += d[p] * (row[p] - mean[p]);
                            d_out[p] = d[p];
                        }
                    }
                }
                for (int k = 0; k < 4; k++)
                    for (int64_t p = 0; p < P; p++) sums[k][p] += from[k][p];
                if constexpr (KAPPA)
                    for (int64_t t = 0; t < T; t++)
                        for (int64_t p = 0; p < P; p++) part_kappa[b * T + t] += acc_kappa[t * P + p];
            }
        }
    }
    const auto finish = [&](double *partial, float *out) {
        fold(partial, plane.chunks, P, C);
        for (int64_t c = 0; c < C; c++) out[c] = static_cast<float>(partial[c]);
    };
    finish(part_dv, to.sum_dv), finish(part_dv_x, to.sum_dv_x), finish(part_tau, to.dtau), finish(part_th, to.dv_th);
    if (to.dkappa)
        for (int64_t t = 0; t < T; t++) {
            double sum = 0;
            for (int64_t b = 0; b < plane.chunks; b++) sum += part_kappa[b * T + t];
            to.dkappa[t] = static_cast<float>(sum);
        }
    return DONE;
}

int backward(const Neuron *n, const float *x, const float *g, const float *dkept, float *dv, float *sum_dv,
             float *sum_dv_x, float *dtau, float *dv_th, float *dkappa, float *dkept_0) {
    const Outputs to = {dv, sum_dv, sum_dv_x, dtau, dv_th, dkappa, dkept_0};
#define BY_FLAGS(SG)                                                      \
    if (n->soft_reset)                                                    \
        return dkappa ? backward_as<SG, true, true>(n, x, g, dkept, to)   \
                      : backward_as<SG, true, false>(n, x, g, dkept, to); \
    return dkappa ? backward_as<SG, false, true>(n, x, g, dkept, to) : backward_as<SG, false, false>(n, x, g, dkept, to)
    switch (n->surrogate) {
        case RECTANGULAR: BY_FLAGS(RECTANGULAR);
        case TRIANGULAR: BY_FLAGS(TRIANGULAR);
        case SIGMOID: BY_FLAGS(SIGMOID);
        default: BY_FLAGS(ARCTAN);
    }
#undef BY_FLAGS
}

template <bool SOFT> int probe_as(const Neuron *n, const float *x, double *result) {
    const Plane plane(n->M, n->C);
    const int64_t P = plane.P, T = n->T, x_step = n->S == 1 ? 0 : plane.size;
    Team team;
    Memory memory;
    const Channels ch(memory, n, P);
    const Threshold th(memory, n, P);
    double *partial = memory.take<double>(plane.chunks * T * 6);
    const auto all_kept = memory.each<float>(team, P);
    if (!memory.ok()) return NO_MEMORY;
#pragma omp parallel num_threads(team.size)
    {
        const Member member;
        float *__restrict kept = all_kept[member];
        const float *__restrict mean = ch.mean, *__restrict scale = ch.scale, *__restrict beta = ch.beta;
        const float *__restrict tau = th.tau, *__restrict v_th = th.v_th;
#pragma omp for schedule(static) nowait
        for (int64_t b = 0; b < plane.chunks; b++) {
            double *out = partial + b * T * 6;
            std::memset(out, 0, T * 6 * sizeof(double));
            const int64_t last = least(plane.tiles, (b + 1) * plane.tiles_per_chunk);
            for (int64_t tile = b * plane.tiles_per_chunk; tile < last; tile++) {
                const int64_t count = plane.length(tile);
                begin(n, tile * P, count, kept);
                for (int64_t t = 0; t < T; t++) {
                    const float *__restrict row = x + t * x_step + tile * P;
                    const float half = 0.5f * n->kappa[t];
                    float fired = 0, available = 0, sum = 0, square = 0, sum_i = 0, square_i = 0;
#pragma omp simd reduction(+ : fired, available, sum, square, sum_i, square_i)
                    for (int64_t p = 0; p < count; p++) {
                        float i = (row[p] - mean[p]) * scale[p] + beta[p];
                        float v = tau[p] * kept[p] + i;
                        fired += v >= v_th[p] ? 1.0f : 0.0f;
                        available += std::fabs(v - v_th[p]) < half ? 1.0f : 0.0f;
                        sum += v;
                        square += v * v;
                        sum_i += i;
                        square_i += i * i;
                        kept[p] = reset<SOFT>(v, v_th[p]);
                    }
                    out[t * 6 + 0] += fired;
                    out[t * 6 + 1] += available;
                    out[t * 6 + 2] += sum;
                    out[t * 6 + 3] += square;
                    out[t * 6 + 4] += sum_i;
                    out[t * 6 + 5] += square_i;
                }
            }
        }
    }
    for (int64_t j = 0; j < T * 6; j++) {
        result[j] = 0;
        for (int64_t b = 0; b < plane.chunks; b++) result[j] += partial[b * T * 6 + j];
    }
    return DONE;
}

int probe(const Neuron *n, const float *x, double *out) {
    return n->soft_reset ? probe_as<true>(n, x, out) : probe_as<false>(n, x, out);
}

}  // namespace

extern "C" const GeneralKernels CAT(mpd_agl_general_, LEVEL);
extern "C" const GeneralKernels CAT(mpd_agl_general_, LEVEL) = {forward, backward, probe};
