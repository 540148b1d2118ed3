// Width and height of method mpd-gain for one layer, as core/mpd.py has them (chain_width, matched_gain), in double.
// Some dozens of numbers: no SIMD level, no threads.
#include <cmath>
#include <cstdint>

namespace {

enum { RECTANGULAR, TRIANGULAR, SIGMOID, ARCTAN, ARCTAN_PEAK };  // the order of SURROGATE_NAMES in native.h
constexpr double PI = 3.14159265358979323846;
constexpr int64_t PARTS = 1 << 24;  // core divides the bounds' distance four times by 64

double surrogate(int64_t kind, double u, double kappa) {
    const double r = u / kappa;
    switch (kind) {
        case RECTANGULAR: return std::fabs(u) < 0.5 * kappa ? 1 / kappa : 0;
        case TRIANGULAR: return std::fmax(0.0, 1 - std::fabs(r)) / kappa;
        case SIGMOID: {
            const double e = std::exp(-4 * std::fabs(r));
            return 4 / kappa * e / ((1 + e) * (1 + e));
        }
        default: {
            const double bump = 1 / (1 + PI * PI * r * r);
            return kind == ARCTAN ? bump / kappa : bump;
        }
    }
}

}  // namespace

extern "C" {

// kappa_T: the window that holds `share` of N(mean, std^2) around v_th, between `least` and 2 |v_th - mean| + 8 std
void mpd_agl_chain_width(const float *mean_T, const float *std_T, int64_t T, double share, double v_th, double least,
                         float *kappa_T) {
    for (int64_t t = 0; t < T; t++) {
        const double std = std_T[t], offset = v_th - mean_T[t], scale = 1 / (std::fmax(std, 1e-12) * std::sqrt(2.0));
        const double range = std::fmax(least, 2 * std::fabs(offset) + 8 * std) - least;
        const auto holds = [&](int64_t k) {
            const double half = (least + range * (static_cast<double>(k) / PARTS)) / 2;
            return (std::erf((offset + half) * scale) - std::erf((offset - half) * scale)) / 2 >= share;
        };
        int64_t below = 0, above = PARTS;  // the first of the parts' ends that holds it; the last where none does
        while (above - below > 1) {
            const int64_t middle = (below + above) / 2;
            (holds(middle) ? above : below) = middle;
        }
        kappa_T[t] = static_cast<float>(least + range * ((static_cast<double>(above) - 0.5) / PARTS));
    }
}

// gain_T, with `quantiles` those of the standard normal over which E[h^2] is taken
void mpd_agl_matched_gain(const float *mean_T, const float *std_T, const float *kappa_T, int64_t T, double v_th,
                          int64_t kind, const double *quantiles, int64_t count, double low, double high,
                          float *gain_T) {
    for (int64_t t = 0; t < T; t++) {
        const double spread = std::fmax(static_cast<double>(std_T[t]), 1e-6), mean = mean_T[t];
        const double rate = 0.5 * std::erfc((v_th - mean) / spread / std::sqrt(2.0));
        double energy = 0;
        for (int64_t k = 0; k < count; k++) {
            const double h = surrogate(kind, mean + spread * quantiles[k] - v_th, kappa_T[t]);
            energy += h * h;
        }
        energy /= static_cast<double>(count);
        const double gain = std::sqrt(rate * (1 - rate) / std::fmax(spread * spread * energy, 1e-12));
        gain_T[t] = static_cast<float>(std::fmin(high, std::fmax(low, gain)));
    }
}
}
