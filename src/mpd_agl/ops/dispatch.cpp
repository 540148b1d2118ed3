// The library's door: holds the SIMD level that was chosen (base, avx2 or avx512) and passes calls on to its tables.
//
// Callers hold no lock (ctypes releases Python's), so nothing here is filled on first use: the level is `base` until
// native.load() chooses, once, before any other call.
#include <cstring>

#include "event.h"
#include "codes.h"
#include "native.h"
#include "plan.h"
#include "winograd.h"

namespace {

struct Level {
    const char *name;
    const Kernels *neuron;
    const GeneralKernels *general;
    const EventKernels *event;
    const WinogradKernels *winograd;
    const PlanKernels *plan;
    bool (*runs_here)();
};

}  // namespace

#define TABLES(level)                                        \
    extern "C" const Kernels mpd_agl_kernels_##level;        \
    extern "C" const GeneralKernels mpd_agl_general_##level; \
    extern "C" const EventKernels mpd_agl_event_##level;   \
    extern "C" const WinogradKernels mpd_agl_winograd_##level; \
    extern "C" const PlanKernels mpd_agl_plan_##level;
#define LEVEL_OF(level, test)                                                                                        \
    {#level, &mpd_agl_kernels_##level, &mpd_agl_general_##level, &mpd_agl_event_##level, &mpd_agl_winograd_##level, \
     &mpd_agl_plan_##level, test}

TABLES(base)
#if HAVE_X86_LEVELS
TABLES(avx2)
TABLES(avx512)
#endif

namespace {

#if HAVE_X86_LEVELS
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("fma");
}
#endif

// The best first
const Level LEVELS[] = {
#if HAVE_X86_LEVELS
    LEVEL_OF(avx512, has_avx512),
    LEVEL_OF(avx2, has_avx2),
#endif
    LEVEL_OF(base, [] { return true; }),
};

const Level *chosen = &LEVELS[sizeof(LEVELS) / sizeof(Level) - 1];  // base
const Level *level() { return __atomic_load_n(&chosen, __ATOMIC_ACQUIRE); }

int64_t allocations_left = -1;

}  // namespace

extern "C" bool mpd_agl_may_allocate() {
    return __atomic_load_n(&allocations_left, __ATOMIC_RELAXED) < 0 ||
           __atomic_fetch_sub(&allocations_left, 1, __ATOMIC_RELAXED) > 0;
}

extern "C" {
int mpd_agl_abi_version() { return ABI_VERSION; }
const char *mpd_agl_surrogates() { return SURROGATE_NAMES; }
int64_t mpd_agl_size_of(const char *name) {
    if (!std::strcmp(name, "Neuron")) return sizeof(Neuron);
    if (!std::strcmp(name, "Geometry")) return sizeof(Geometry);
    if (!std::strcmp(name, "ActiveLists")) return sizeof(ActiveLists);
    if (!std::strcmp(name, "Place")) return sizeof(Place);
    if (!std::strcmp(name, "PlanLayer")) return sizeof(PlanLayer);
    if (!std::strcmp(name, "Plan")) return sizeof(Plan);
    return -1;
}
const char *mpd_agl_level() { return level()->name; }
// The level of that name, or the best one where it is null; 0 where this CPU does not have it
int mpd_agl_use_level(const char *name) {
#if HAVE_X86_LEVELS
    __builtin_cpu_init();
#endif
    for (const Level &one : LEVELS)
        if ((!name || !std::strcmp(name, one.name)) && one.runs_here()) {
            __atomic_store_n(&chosen, &one, __ATOMIC_RELEASE);
            return 1;
        }
    return 0;
}
// For tests: after n more allocations one fails; -1 takes it back
void mpd_agl_fail_after(int64_t n) { __atomic_store_n(&allocations_left, n, __ATOMIC_RELAXED); }

int mpd_agl_moments(const float *x, int64_t rows, int64_t C, float *mean, float *var) {
    return level()->neuron->moments(x, rows, C, mean, var);
}
// Neurons that are all alike, with a hard reset and from rest, have kernels of their own
int mpd_agl_forward(const Neuron *n, const float *x, const float *residual, float *out, float *state) {
    if (n->tau_C) return level()->general->forward(n, x, residual, out, state);
    return level()->neuron->forward(n, x, residual, out);
}
int mpd_agl_backward(const Neuron *n, const float *x, const float *g, const float *dstate, float *dv, float *sum_dv,
                     float *sum_dv_x, float *dtau, float *dv_th, float *dkappa, float *dstate_0) {
    if (n->tau_C)
        return level()->general->backward(n, x, g, dstate, dv, sum_dv, sum_dv_x, dtau, dv_th, dkappa, dstate_0);
    return level()->neuron->backward(n, x, g, dv, sum_dv, sum_dv_x, dtau, dkappa);
}
int mpd_agl_normalise_grad(const float *x, float *dv, int64_t rows, int64_t C, const float *mean, const float *scale,
                           const float *m1, const float *m2) {
    return level()->neuron->normalise_grad(x, dv, rows, C, mean, scale, m1, m2);
}
int mpd_agl_probe(const Neuron *n, const float *x, double *out) { return level()->general->probe(n, x, out); }
int mpd_agl_event_scan(const float *x, const ActiveLists *lists) { return level()->event->scan(x, lists); }
int64_t mpd_agl_event_packed_size(const Geometry *g) { return level()->event->packed_size(g); }
void mpd_agl_event_pack(const Geometry *g, const float *weight, float *packed) {
    level()->event->pack(g, weight, packed);
}
int mpd_agl_event_forward(const Geometry *g, const ActiveLists *lists, const float *packed, const float *bias,
                           float *y) {
    return level()->event->forward(g, lists, packed, bias, y);
}
int mpd_agl_event_weight_grad(const Geometry *g, const ActiveLists *lists, const float *gy, float *dw) {
    return level()->event->weight_grad(g, lists, gy, dw);
}
int64_t mpd_agl_winograd_packed_size(const Geometry *g) { return level()->winograd->packed_size(g); }
void mpd_agl_winograd_pack(const Geometry *g, const float *weight, int turned, float *packed) {
    level()->winograd->pack(g, weight, turned, packed);
}
int mpd_agl_winograd_convolve(const Geometry *g, const float *x, const float *packed, const float *bias, float *y) {
    return level()->winograd->convolve(g, x, packed, bias, y);
}
int mpd_agl_winograd_weight_grad(const Geometry *g, const float *x, const float *gy, float *dw) {
    return level()->winograd->weight_grad(g, x, gy, dw);
}
int64_t mpd_agl_plan_block(int64_t C_out) { return level()->plan->block(C_out); }
int64_t mpd_agl_plan_piece(int64_t C_out) { return level()->plan->piece(C_out); }
int mpd_agl_plan_vnni() { return level()->plan->vnni(); }
int64_t mpd_agl_plan_lists(const Plan *plan, int64_t layer, int64_t *cap) {
    return level()->plan->lists(plan, layer, cap);
}
int64_t mpd_agl_plan_scratch(const Plan *plan) { return level()->plan->scratch(plan); }
void mpd_agl_plan_run(const Plan *plan, float *logits) { level()->plan->run(plan, logits); }
}
