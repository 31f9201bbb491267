// Products of linear layers in fp8 (arXiv 2209.05433): forward operands e4m3, gradients of outputs e5m2, each
// tensor scaled by its own largest magnitude at the time of the product, sums in fp32, results in the
// precision of activations.
//
// Matrix units take fp8 with the common dimension of both operands contiguous. So of a weight [outputs,
// inputs] forward takes the octets as they lie and the input's gradient those of the transposed; of an input
// [rows, inputs] forward the former, the weight's gradient the latter; of an output's gradient one product
// takes each. Nothing is kept from one product to another but the gradient's second copy: octets of weights
// would take as much memory again as weights in bf16, and every use of sharded ones has gathered them anew.
#include "exec/cuda/arena.h"
#include "exec/cuda/operator/operators.h"
#include "model/operators/cost.h"

namespace exec::cuda {

Operators::Octets Operators::octets(int slot, Float8 format, const Matrix& x, bool plain, bool turned,
                                    bool casts) const {
    const std::size_t count = x.rows * x.columns;
    const std::size_t head = alignment + rounded(float8_partials * sizeof(float)), copy = rounded(count);
    auto* room =
        static_cast<std::uint8_t*>(execution_.scratch(slot, head + (plain && turned ? 2 : 1) * copy));
    auto* unscale = reinterpret_cast<float*>(room);
    auto* partials = reinterpret_cast<float*>(room + alignment);
    std::uint8_t *first = room + head, *second = plain ? first + copy : first;
    if (casts) {
        const Stream s = execution_.stream();
        kernels_.largest_magnitudes(s, x.type, x.rows * x.columns, x.data, partials);
        kernels_.cast_to_float8(s, x.type, format, x.rows, x.columns, x.data, partials, unscale,
                                plain ? first : nullptr, turned ? second : nullptr);
    }
    return {plain ? first : nullptr, turned ? second : nullptr, unscale};
}

Operators::Matrix Operators::weight_matrix(model::ParameterId id, const ConstTensorView& parameter) const {
    // Where the machine says no, there must be room for the copy in bf16: what it says while the run is
    // planned may be another answer.
    if (parameter_type_ != type_) execution_.scratch(weight_slot, parameter.elements() * size_of(type_));
    return {parameter_type_, extent(id, 0), extent(id, 1), parameter.data()};
}

namespace {

// c [m, n] = a [m, k] b^T [n, k], both contiguous along k.
Product of_octets(Product p, const void* a, Float8 a_format, const float* a_unscale, const void* b,
                  const float* b_unscale) {
    p.in_fp8 = true;
    p.transpose_a = false;
    p.transpose_b = true;
    p.a = a;
    p.b = b;
    p.lda = p.ldb = p.k;
    p.a_format = a_format;
    p.a_unscale = a_unscale;
    p.b_unscale = b_unscale;
    return p;
}

}  // namespace

std::optional<Product> Operators::forward_in_fp8(const Product& half, const Matrix& x,
                                                 const Matrix& weight) const {
    const auto operands = [&](bool casts) {
        return std::pair(octets(low_input_slot, Float8::e4m3, x, true, false, casts),
                         octets(low_weight_slot, Float8::e4m3, weight, true, false, casts));
    };
    const auto [a, b] = operands(false);
    Product p = of_octets(half, a.plain, Float8::e4m3, a.unscale, b.plain, b.unscale);
    p.accumulates_fast = true;  // forward only, as Transformer Engine does (common/recipe/__init__.py,
                                // Float8CurrentScaling: fp8_gemm_fprop)
    if (!machine_.offers_fp8(p, half)) return {};
    operands(true);
    return p;
}

std::optional<Product> Operators::backward_in_fp8(model::OperatorId id, const Product& half, const Matrix& dy,
                                                  const Matrix& weight) const {
    turned_gradient_.reset();
    const bool turns = !execution_.keeps_gradients();
    const auto operands = [&](bool casts) {
        return std::pair(octets(low_gradient_slot, Float8::e5m2, dy, true, turns, casts),
                         octets(low_weight_slot, Float8::e4m3, weight, false, true, casts));
    };
    const auto [a, b] = operands(false);
    const Product p = of_octets(half, a.plain, Float8::e5m2, a.unscale, b.turned, b.unscale);
    if (!machine_.offers_fp8(p, half)) return {};
    operands(true);
    if (turns) turned_gradient_ = {id.index, dy.data};
    return p;
}

std::optional<Product> Operators::weights_in_fp8(model::OperatorId id, const Product& half, const Matrix& dy,
                                                 const Matrix& x) const {
    const bool has_gradient = turned_gradient_ == std::pair(id.index, dy.data);
    turned_gradient_.reset();
    const auto operands = [&](bool casts) {
        return std::pair(
            octets(low_gradient_slot, Float8::e5m2, dy, has_gradient, true, casts && !has_gradient),
            octets(low_input_slot, Float8::e4m3, x, false, true, casts));
    };
    const auto [a, b] = operands(false);
    const Product p = of_octets(half, a.turned, Float8::e5m2, a.unscale, b.turned, b.unscale);
    if (!machine_.offers_fp8(p, half)) return {};
    operands(true);
    return p;
}

}  // namespace exec::cuda
