#include "exec/oracle/reference_activation.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace exec::oracle {

using model::OperatorKind;

namespace {

constexpr double pi = std::numbers::pi;
// Hendrycks and Gimpel, arXiv 1606.08415: gelu(x) ~ x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
constexpr double gelu_cubic = 0.044715;

double gelu(double x, bool is_tanh) {
    if (is_tanh) return 0.5 * x * (1 + std::tanh(std::sqrt(2 / pi) * (x + gelu_cubic * x * x * x)));
    return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}
double gelu_slope(double x, bool is_tanh) {
    if (!is_tanh)
        return 0.5 * (1 + std::erf(x / std::sqrt(2.0))) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * pi);
    const double inner = std::sqrt(2 / pi) * (x + gelu_cubic * x * x * x), t = std::tanh(inner);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / pi) * (1 + 3 * gelu_cubic * x * x);
}
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

enum class Function { gelu, relu, silu, tanh };

// One switch over operators for values and slopes: a new activation is listed once.
Function function_of(OperatorKind kind) {
    switch (kind) {
        case OperatorKind::gelu:
        case OperatorKind::gated_gelu: return Function::gelu;
        case OperatorKind::relu: return Function::relu;
        case OperatorKind::silu:
        case OperatorKind::gated_silu: return Function::silu;
        case OperatorKind::tanh: return Function::tanh;
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
        case OperatorKind::attention:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::conv2d:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
        case OperatorKind::combine:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw core::InternalError(fmt::format("operators of kind {} are no activation", model::name_of(kind)));
}

}  // namespace

double activation_of(OperatorKind kind, bool is_tanh_approximation, double x) {
    const Function function = function_of(kind);
    switch (function) {
        case Function::gelu: return gelu(x, is_tanh_approximation);
        case Function::relu: return std::max(0.0, x);
        case Function::silu: return x * logistic(x);
        case Function::tanh: return std::tanh(x);
    }
    throw core::InternalError(fmt::format("activation {} has no value", static_cast<int>(function)));
}

double slope_of_activation(OperatorKind kind, bool is_tanh_approximation, double x) {
    const Function function = function_of(kind);
    switch (function) {
        case Function::gelu: return gelu_slope(x, is_tanh_approximation);
        case Function::relu: return x > 0 ? 1 : 0;
        case Function::silu: return logistic(x) * (1 + x * (1 - logistic(x)));
        case Function::tanh: return 1 - std::tanh(x) * std::tanh(x);
    }
    throw core::InternalError(fmt::format("activation {} has no slope", static_cast<int>(function)));
}

}  // namespace exec::oracle
