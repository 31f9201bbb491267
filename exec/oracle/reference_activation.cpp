#include "exec/oracle/reference_activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace exec::oracle {

using model::OperatorKind;

namespace {

constexpr double pi = std::numbers::pi;

double gelu(double x, bool is_tanh) {
    if (is_tanh) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
    return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}
double gelu_slope(double x, bool is_tanh) {
    if (!is_tanh)
        return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * pi);
    const double inner = std::sqrt(2 / pi) * (x + 0.044715 * x * x * x), t = std::tanh(inner);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / pi) * (1 + 3 * 0.044715 * x * x);
}
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

double activation_of(OperatorKind kind, bool is_tanh_approximation, double x) {
    switch (kind) {
        case OperatorKind::gelu:
        case OperatorKind::gated_gelu: return gelu(x, is_tanh_approximation);
        case OperatorKind::relu: return std::max(0.0, x);
        case OperatorKind::tanh: return std::tanh(x);
        default: return x * logistic(x);
    }
}

double slope_of_activation(OperatorKind kind, bool is_tanh_approximation, double x) {
    switch (kind) {
        case OperatorKind::gelu:
        case OperatorKind::gated_gelu: return gelu_slope(x, is_tanh_approximation);
        case OperatorKind::relu: return x > 0 ? 1 : 0;
        case OperatorKind::tanh: return 1 - std::tanh(x) * std::tanh(x);
        default: return logistic(x) * (1 + x * (1 - logistic(x)));
    }
}

}  // namespace exec::oracle
