// The library's door: picks the best SIMD level that this CPU has, once, and passes calls on. Level names: base, avx2, avx512.
#include <cstring>

#include "active.h"
#include "native.h"
#include "winograd.h"

extern "C" const Kernels mpd_agl_kernels_base;
extern "C" const ActiveKernels mpd_agl_active_kernels_base;
extern "C" const WinogradKernels mpd_agl_winograd_base;
#if HAVE_X86_LEVELS
extern "C" const Kernels mpd_agl_kernels_avx2, mpd_agl_kernels_avx512;
extern "C" const ActiveKernels mpd_agl_active_kernels_avx2, mpd_agl_active_kernels_avx512;
extern "C" const WinogradKernels mpd_agl_winograd_avx2, mpd_agl_winograd_avx512;
#endif

namespace {
const Kernels *chosen = nullptr;
const ActiveKernels *chosen_active = nullptr;
const WinogradKernels *chosen_winograd = nullptr;
const char *chosen_name = "";

bool use(const char *level) {
#if HAVE_X86_LEVELS
    __builtin_cpu_init();
    if (!std::strcmp(level, "avx512") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw")) {
        chosen = &mpd_agl_kernels_avx512, chosen_active = &mpd_agl_active_kernels_avx512, chosen_winograd = &mpd_agl_winograd_avx512;
        chosen_name = "avx512";
        return true;
    }
    if (!std::strcmp(level, "avx2") && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        chosen = &mpd_agl_kernels_avx2, chosen_active = &mpd_agl_active_kernels_avx2, chosen_winograd = &mpd_agl_winograd_avx2;
        chosen_name = "avx2";
        return true;
    }
#endif
    if (!std::strcmp(level, "base")) {
        chosen = &mpd_agl_kernels_base, chosen_active = &mpd_agl_active_kernels_base, chosen_winograd = &mpd_agl_winograd_base;
        chosen_name = "base";
        return true;
    }
    return false;
}

const Kernels *kernels() {
    if (!chosen && !use("avx512") && !use("avx2")) use("base");
    return chosen;
}

const ActiveKernels *active() {
    kernels();
    return chosen_active;
}

const WinogradKernels *winograd() {
    kernels();
    return chosen_winograd;
}
}  // namespace

extern "C" {
const char *mpd_agl_level() {
    kernels();
    return chosen_name;
}
int mpd_agl_use_level(const char *level) { return use(level); }
void mpd_agl_moments(const float *x, int64_t rows, int64_t C, float *mean, float *var) { kernels()->moments(x, rows, C, mean, var); }
void mpd_agl_forward(const Neuron *n, const float *x, const float *residual, float *out) {
    kernels()->forward(n, x, residual, out);
}
void mpd_agl_backward(const Neuron *n, const float *x, const float *g, float *dv, float *sum_dv, float *sum_dv_x, float *dtau,
                      float *dkappa) {
    kernels()->backward(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
}
void mpd_agl_normalise_grad(const float *x, float *dv, int64_t rows, int64_t C, const float *mean, const float *scale, const float *m1,
                            const float *m2) {
    kernels()->normalise_grad(x, dv, rows, C, mean, scale, m1, m2);
}
void mpd_agl_probe(const Neuron *n, const float *x, double *out) { kernels()->probe(n, x, out); }
int mpd_agl_active_scan(const float *x, const ActiveLists *e) { return active()->scan(x, e); }
int64_t mpd_agl_active_packed_size(const Geometry *g) { return active()->packed_size(g); }
void mpd_agl_active_pack(const Geometry *g, const float *weight, float *packed) { active()->pack(g, weight, packed); }
void mpd_agl_active_forward(const Geometry *g, const ActiveLists *e, const float *packed, const float *bias, float *y) {
    active()->forward(g, e, packed, bias, y);
}
void mpd_agl_active_weight_grad(const Geometry *g, const ActiveLists *e, const float *gy, float *dw) { active()->weight_grad(g, e, gy, dw); }
int64_t mpd_agl_winograd_packed_size(const Geometry *g) { return winograd()->packed_size(g); }
void mpd_agl_winograd_pack(const Geometry *g, const float *weight, int turned, float *packed) {
    winograd()->pack(g, weight, turned, packed);
}
void mpd_agl_winograd_convolve(const Geometry *g, const float *x, const float *packed, const float *bias, float *y) {
    winograd()->convolve(g, x, packed, bias, y);
}
void mpd_agl_winograd_weight_grad(const Geometry *g, const float *x, const float *gy, float *dw) {
    winograd()->weight_grad(g, x, gy, dw);
}
}
