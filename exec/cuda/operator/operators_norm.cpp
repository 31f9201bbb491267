// Norms as launches: with the addition before them, and all their gradients at once, where that is taken.
#include <fmt/core.h>

#include "exec/cuda/operator/measured_room.h"
#include "exec/cuda/operator/operators.h"

namespace exec::cuda {

using model::OperatorKind;

bool Operators::is_fused(Fused what, const FusedShape& shape,
                         const std::function<Alternatives()>& alternatives) const {
    if (!execution_.allows(what)) return false;
    const auto [known, is_new] = fused_.try_emplace({what, shape}, false);
    if (!is_new) return known->second;
    known->second = machine_.pays(alternatives());
    kernel_choices_.insert({std::string(name_of(what)), known->second ? "fused" : "apart", {}});
    return known->second;
}

// In one launch or two, over the same arrays.
bool Operators::norm_takes_sum(bool is_layer, std::int64_t rows, std::int64_t width) const {
    return is_fused(Fused::residual_norm, {is_layer, rows, width}, [&] {
        MeasuredRoom room;
        const std::size_t array = rows * width * size_of(type_), vector = width * size_of(parameter_type_);
        const std::size_t a = room.take(array), b = room.take(array), sum = room.take(array),
                          y = room.take(array), scale = room.take(vector), shift = room.take(vector),
                          statistics = room.take((2 * rows) * sizeof(float));
        const auto factors = [=, type = parameter_type_](char* at) {
            return std::pair(Values{at + scale, type}, is_layer ? Values{at + shift, type} : Values{});
        };
        Alternatives result{fmt::format("residual-norm:{}:{}:{}:{}:{}", static_cast<int>(type_),
                                        static_cast<int>(parameter_type_), is_layer, rows, width),
                            room.bytes(),
                            {},
                            {}};
        result.fused = [=, type = type_](const Kernels& k, Stream s, char* at) {
            const auto [first, second] = factors(at);
            k.add_and_norm(s, type, is_layer, rows, width, 1e-5f, at + a, at + b, at + sum, first, second,
                           at + y, reinterpret_cast<float*>(at + statistics));
        };
        result.apart = [=, type = type_](const Kernels& k, Stream s, char* at) {
            const auto [first, second] = factors(at);
            auto* kept = reinterpret_cast<float*>(at + statistics);
            k.add(s, type, rows * width, at + a, at + b, at + sum);
            if (is_layer) k.layer_norm(s, type, rows, width, 1e-5f, at + sum, first, second, at + y, kept);
            else k.rms_norm(s, type, rows, width, 1e-5f, at + sum, first, at + y, kept);
        };
        return result;
    });
}

bool Operators::norm_gradients_are_one(bool is_layer, std::int64_t rows, std::int64_t width) const {
    return is_fused(Fused::norm_gradients, {is_layer, rows, width}, [&] {
        MeasuredRoom room;
        const std::size_t array = rows * width * size_of(type_), vector = width * size_of(parameter_type_),
                          gradient = width * size_of(gradient_type_);
        const std::size_t x = room.take(array), dy = room.take(array), dx = room.take(array),
                          scale = room.take(vector), dscale = room.take(gradient),
                          dshift = room.take(gradient), statistics = room.take((2 * rows) * sizeof(float)),
                          workspace = room.take(norm_gradients_workspace(rows, width));
        Alternatives result{fmt::format("norm-gradients:{}:{}:{}:{}:{}:{}", static_cast<int>(type_),
                                        static_cast<int>(parameter_type_), static_cast<int>(gradient_type_),
                                        is_layer, rows, width),
                            room.bytes(),
                            {},
                            {}};
        const auto sums = [=, type = gradient_type_](char* at) {
            return std::pair(Sums{at + dscale, type, true},
                             is_layer ? Sums{at + dshift, type, true} : Sums{});
        };
        const Type type = type_, factors = parameter_type_;
        result.fused = [=](const Kernels& k, Stream s, char* at) {
            const auto [first, second] = sums(at);
            k.norm_gradients(s, type, is_layer, rows, width, at + x,
                             reinterpret_cast<const float*>(at + statistics), {at + scale, factors}, at + dy,
                             at + dx, nullptr, first, second, at + workspace);
        };
        result.apart = [=](const Kernels& k, Stream s, char* at) {
            const auto [first, second] = sums(at);
            const auto* kept = reinterpret_cast<const float*>(at + statistics);
            const auto backward = is_layer ? k.layer_norm_backward : k.rms_norm_backward;
            backward(s, type, rows, width, at + x, kept, {at + scale, factors}, at + dy, at + dx, nullptr);
            k.norm_weights(s, type, is_layer, rows, width, at + x, kept, at + dy, first, second,
                           at + workspace);
        };
        return result;
    });
}

void Operators::norm(const model::Operator& o, const Operands& x) const {
    const Sizes y = sizes_of(o.output);
    const Stream s = execution_.stream();
    const bool is_layer = o.kind == OperatorKind::layer_norm;
    const auto epsilon = static_cast<float>(o.attributes.epsilon);
    const Values scale = values(x.parameters[0]),
                 shift = is_layer && o.attributes.has_bias ? values(x.parameters[1]) : Values{};
    auto* statistics = x.saved_context.as<float>();
    const std::optional<HeldSum> held = fusion_->held_sum();
    const bool takes_sum =
        held && held->y == x.inputs[0].data() && norm_takes_sum(is_layer, y.rows, y.columns);
    NormTerms in{x.inputs[0].data(), nullptr, nullptr};
    if (takes_sum) {
        fusion_->drop_held();
        for (const void* term : {held->a, held->b}) execution_.reads(term);
        execution_.writes(held->y);
        in = {held->a, held->b, held->y};
    } else {
        fusion_->flush();
    }
    const model::Operator* reader = reader_in_fp8(o.output);
    if (reader && norm_takes_octets(is_layer, y.rows, y.columns)) {
        kernels_.norm_with_octets(s, is_layer, y.rows, y.columns, epsilon, in, scale, shift, x.output.data(),
                                  statistics, cast_along(*reader, y.count()));
        return confirm_octets(*reader, y.count(), x.output.data());
    }
    if (takes_sum)
        kernels_.add_and_norm(s, type_, is_layer, y.rows, y.columns, epsilon, in.a, in.b, in.sum, scale,
                              shift, x.output.data(), statistics);
    else if (is_layer)
        kernels_.layer_norm(s, type_, y.rows, y.columns, epsilon, in.a, scale, shift, x.output.data(),
                            statistics);
    else kernels_.rms_norm(s, type_, y.rows, y.columns, epsilon, in.a, scale, x.output.data(), statistics);
}

// Where the gradients of scale and shift follow in the same instruction, it waits for them.
void Operators::norm_backward(model::OperatorId id, const Operands& x, const void* dy,
                              const TensorView& dx) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    const HeldNormGradient gradient{o.kind == OperatorKind::layer_norm,
                                    y.rows,
                                    y.columns,
                                    x.inputs[0].data(),
                                    x.saved_context.as<float>(),
                                    values(x.parameters[0]),
                                    dy,
                                    dx.data(),
                                    base_of(dx)};
    if (!execution_.keeps_gradients() && norm_gradients_are_one(gradient.is_layer, y.rows, y.columns))
        fusion_->hold(id.index, gradient);
    else fusion_->launch(gradient);
}

void Operators::norm_weights(model::OperatorId id, const Operands& x, const void* dy,
                             const std::vector<TensorView>& dparameters) const {
    const model::Operator& o = op(id);
    const Sizes y = sizes_of(o.output);
    const Stream s = execution_.stream();
    const bool is_layer = o.kind == OperatorKind::layer_norm;
    const Sums dscale = sums(dparameters[0]),
               dshift = is_layer && o.attributes.has_bias ? sums(dparameters[1]) : Sums{};
    void* workspace = execution_.scratch(sums_slot, norm_gradients_workspace(y.rows, y.columns));
    const std::optional<HeldNormGradient> held = fusion_->held_norm_gradient();
    if (held && fusion_->owner() == id.index) {
        fusion_->drop_held();
        for (const void* from :
             {held->x, static_cast<const void*>(held->statistics), held->scale.data, held->dy, held->base})
            execution_.reads(from);
        execution_.writes(held->dx);
        kernels_.norm_gradients(s, type_, is_layer, y.rows, y.columns, held->x, held->statistics, held->scale,
                                held->dy, held->dx, held->base, dscale, dshift, workspace);
        return;
    }
    kernels_.norm_weights(s, type_, is_layer, y.rows, y.columns, x.inputs[0].data(),
                          x.saved_context.as<float>(), dy, dscale, dshift, workspace);
}

}  // namespace exec::cuda
