// Products of linear layers in fp8 (arXiv 2209.05433): forward operands e4m3, gradients of outputs e5m2, each
// tensor scaled by its own largest magnitude at the time of the product, sums in fp32, results in the
// precision of activations.
//
// Matrix units take fp8 with the common dimension of both operands contiguous. So of a weight [outputs,
// inputs] forward takes the octets as they lie and the input's gradient those of the transposed; of an input
// [rows, inputs] forward the former, the weight's gradient the latter; of an output's gradient one product
// takes each. Nothing is kept from one product to another but the gradient's second copy: octets of weights
// would take as much memory again as weights in bf16, and every use of sharded ones has gathered them anew.
#include <algorithm>

#include <fmt/core.h>

#include "exec/cuda/operator/measured_room.h"
#include "exec/cuda/operator/operators.h"
#include "exec/unary.h"
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using model::OperatorKind;

namespace {

// Before the octets of a slot: what takes them back, the scale that was guessed, then partial magnitudes.
constexpr std::size_t octets_head =
    alignment + std::max<std::size_t>(float8_partials, along_partials) * sizeof(float);
static_assert(octets_head % alignment == 0);

}  // namespace

Operators::Octets Operators::octets(int slot, Float8 format, const Matrix& x, bool plain, bool turned,
                                    bool casts) const {
    const std::size_t count = x.rows * x.columns;
    const std::size_t copy = rounded(count);
    auto* room =
        static_cast<std::uint8_t*>(execution_.scratch(slot, octets_head + (plain && turned ? 2 : 1) * copy));
    auto* unscale = reinterpret_cast<float*>(room);
    auto* partials = reinterpret_cast<float*>(room + alignment);
    std::uint8_t *first = room + octets_head, *second = plain ? first + copy : first;
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

std::optional<Product> Operators::forward_in_fp8(model::OperatorId id, const Product& half, const Matrix& x,
                                                 const Matrix& weight) const {
    const bool is_cast = cast_input_ == std::pair(id.index, x.data);
    cast_input_.reset();
    const auto operands = [&](bool casts) {
        return std::pair(octets(low_input_slot, Float8::e4m3, x, true, false, casts && !is_cast),
                         octets(low_weight_slot, Float8::e4m3, weight, true, false, casts));
    };
    const auto [a, b] = operands(false);
    Product p = of_octets(half, a.plain, Float8::e4m3, a.unscale, b.plain, b.unscale);
    p.accumulates_fast = true;  // forward only, as Transformer Engine does (common/recipe/__init__.py,
                                // Float8CurrentScaling: fp8_gemm_fprop)
    if (!machine_.offers_fp8(p, half)) {
        refused_.insert(id.index);
        return {};
    }
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
    cast_input_.reset();
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

const model::Operator* Operators::reader_in_fp8(model::TensorId tensor) const {
    if (type_ != Type::bf16) return nullptr;
    for (;;) {
        const model::Operator* reader = only_reader(tensor);
        if (!reader) return nullptr;
        if (reader->kind == OperatorKind::parallel_enter && !model::gathers_tokens(*reader, context_)) {
            tensor = reader->output;  // the same array in forward
            continue;
        }
        const std::int32_t index = graph_.tensor(reader->output).producer.index;
        // Of linear layers alone (model::fp8_unsupported).
        if (!is_in_fp8(model::OperatorId(index)) || refused_.contains(index)) return nullptr;
        return reader;
    }
}

CastAlong Operators::cast_along(const model::Operator& reader, std::int64_t count) const {
    const std::int32_t index = graph_.tensor(reader.output).producer.index;
    const Octets room = octets(low_input_slot, Float8::e4m3, {type_, count, 1, nullptr}, true, false, false);
    auto* numbers = const_cast<float*>(room.unscale);
    auto* bytes = reinterpret_cast<std::uint8_t*>(numbers);
    auto* guesses =
        static_cast<float*>(execution_.scratch(guess_slot, graph_.operators.size() * sizeof(float)));
    // Anything will do, but something must be there.
    if (guesses_.insert(index).second)
        machine_.fill_zero(execution_.stream(), guesses + index, sizeof(float));
    return {guesses + index, numbers + 1, bytes + octets_head, reinterpret_cast<float*>(bytes + alignment)};
}

void Operators::confirm_octets(const model::Operator& reader, std::int64_t count, const void* x) const {
    const CastAlong cast = cast_along(reader, count);
    kernels_.confirm_octets(execution_.stream(), count, x, cast, cast.guessed - 1);
    cast_input_ = {graph_.tensor(reader.output).producer.index, x};
}

namespace {

// Where a measurement keeps a result with its octets.
struct MeasuredOctets {
    std::size_t y, guess, octets, partials, unscale;

    MeasuredOctets(MeasuredRoom& room, std::int64_t count)
        : y(room.take(count * size_of(Type::bf16))),
          guess(room.take(2 * sizeof(float))),
          octets(room.take(count)),
          partials(room.take(along_partials * sizeof(float))),
          unscale(room.take(sizeof(float))) {}
    CastAlong along(char* at) const {
        auto* numbers = reinterpret_cast<float*>(at + guess);
        return {numbers, numbers + 1, reinterpret_cast<std::uint8_t*>(at + octets),
                reinterpret_cast<float*>(at + partials)};
    }
    void confirm(const Kernels& k, Stream s, char* at, std::int64_t count) const {
        k.confirm_octets(s, count, at + y, along(at), reinterpret_cast<float*>(at + unscale));
    }
    void cast(const Kernels& k, Stream s, char* at, std::int64_t rows, std::int64_t width) const {
        const CastAlong to = along(at);
        k.largest_magnitudes(s, Type::bf16, rows * width, at + y, to.partials);
        k.cast_to_float8(s, Type::bf16, Float8::e4m3, rows, width, at + y, to.partials,
                         reinterpret_cast<float*>(at + unscale), to.octets, nullptr);
    }
};

}  // namespace

bool Operators::norm_takes_octets(bool is_layer, std::int64_t rows, std::int64_t width) const {
    return is_fused(Fused::norm_octets, {is_layer, rows, width}, [&] {
        MeasuredRoom room;
        const std::size_t x = room.take(rows * width * size_of(type_)),
                          scale = room.take(width * size_of(parameter_type_)),
                          statistics = room.take((2 * rows) * sizeof(float));
        const MeasuredOctets kept(room, rows * width);
        const Type factors = parameter_type_;
        Alternatives result{
            fmt::format("norm-octets:{}:{}:{}:{}", factors == Type::fp32, is_layer, rows, width),
            room.bytes(),
            {},
            {}};
        constexpr float epsilon = 1e-5f;
        const auto shift = [=](char* at) { return is_layer ? Values{at + scale, factors} : Values{}; };
        result.fused = [=](const Kernels& k, Stream s, char* at) {
            k.norm_with_octets(s, is_layer, rows, width, epsilon, {at + x, nullptr, nullptr},
                               {at + scale, factors}, shift(at), at + kept.y,
                               reinterpret_cast<float*>(at + statistics), kept.along(at));
            kept.confirm(k, s, at, rows * width);
        };
        result.apart = [=](const Kernels& k, Stream s, char* at) {
            auto* sums = reinterpret_cast<float*>(at + statistics);
            if (is_layer)
                k.layer_norm(s, Type::bf16, rows, width, epsilon, at + x, {at + scale, factors}, shift(at),
                             at + kept.y, sums);
            else
                k.rms_norm(s, Type::bf16, rows, width, epsilon, at + x, {at + scale, factors}, at + kept.y,
                           sums);
            kept.cast(k, s, at, rows, width);
        };
        return result;
    });
}

bool Operators::gated_takes_octets(Unary kind, std::int64_t rows, std::int64_t width) const {
    return is_fused(Fused::gated_octets, {kind == Unary::silu, rows, width}, [&] {
        MeasuredRoom room;
        const std::size_t x = room.take(2 * rows * width * size_of(type_));
        const MeasuredOctets kept(room, rows * width);
        Alternatives result{
            fmt::format("gated-octets:{}:{}:{}", kind == Unary::silu, rows, width), room.bytes(), {}, {}};
        result.fused = [=](const Kernels& k, Stream s, char* at) {
            k.gated_with_octets(s, kind, rows, width, at + x, at + kept.y, kept.along(at));
            kept.confirm(k, s, at, rows * width);
        };
        result.apart = [=](const Kernels& k, Stream s, char* at) {
            k.gated(s, Type::bf16, kind, rows, width, at + x, at + kept.y);
            kept.cast(k, s, at, rows, width);
        };
        return result;
    });
}

bool Operators::gated_with_octets(const model::Operator& o, const Operands& x) const {
    const Sizes y = sizes_of(o.output);
    const auto kind = unary_of<Unary>(o);
    const model::Operator* reader = reader_in_fp8(o.output);
    if (!reader || !gated_takes_octets(kind, y.rows, y.columns)) return false;
    kernels_.gated_with_octets(execution_.stream(), kind, y.rows, y.columns, x.inputs[0].data(),
                               x.output.data(), cast_along(*reader, y.count()));
    confirm_octets(*reader, y.count(), x.output.data());
    return true;
}

}  // namespace exec::cuda
