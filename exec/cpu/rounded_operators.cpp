#include "exec/cpu/rounded_operators.h"

#include <cmath>
#include <cstring>
#include <numeric>

#include "core/index/integers.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/low_precision.h"
#include "exec/float8.h"
#include "model/operators/fp8_products.h"
#include "model/operators/rank_share.h"
#include "model/segment.h"

namespace exec::cpu {

using model::OperatorKind;

namespace {

// Nothing to compute: the output is the input's array, or a collective writes it.
bool is_passive(OperatorKind kind) {
    return kind == OperatorKind::input || model::is_view(kind) || kind == OperatorKind::parallel_enter ||
           kind == OperatorKind::parallel_exit;
}

}  // namespace

RoundedOperators::RoundedOperators(const model::ModelGraph& graph, const model::CostContext& context,
                                   const schedule::Precision& precision, int tensor_rank, std::uint64_t seed,
                                   bool is_training, int context_rank)
    : graph_(graph),
      context_(context),
      type_(precision.activations()),
      operators_(graph, context, tensor_rank, seed, is_training, context_rank),
      is_in_fp8_(graph.operators.size(), 0) {
    for (std::size_t i = 0; precision.compute == core::DataType::fp8 && i < graph.operators.size(); ++i)
        is_in_fp8_[i] =
            !model::fp8_unsupported(graph, model::OperatorId(static_cast<std::int32_t>(i)), context);
}

void RoundedOperators::round_to_fp8(Float8 format, std::vector<float>& numbers) {
    round_to_float8(format, std::ssize(numbers), numbers.data());
}

std::int64_t RoundedOperators::expert_rows(const model::MixtureShape& shape, const Operands& operands) {
    if (!operands.expert_rows) return shape.routed_tokens;
    return std::accumulate(operands.expert_rows->begin(), operands.expert_rows->end(), std::int64_t{0});
}

// Extras are statistics in fp32, masks and indices, but for the scaled input of a linear layer, what experts
// compute inside, and kept probabilities of attention.
RoundedOperators::SavedContext RoundedOperators::saved_context_of(model::OperatorId id,
                                                                  const Operands& operands) const {
    const model::Operator& op = graph_.op(id);
    SavedContext saved_context;
    if (op.kind == OperatorKind::linear && op.attributes.input_scale != 1.0) {
        const model::RankMatrix input = model::rank_matrix(graph_, op.inputs[0], context_);
        saved_context.numbers = input.rows * input.columns;
    } else if (op.kind == OperatorKind::experts) {
        const model::MixtureShape shape = model::mixture_shape(graph_, op, context_);
        saved_context.numbers =
            expert_rows(shape, operands) * (shape.first_width + (operands.late_context ? 0 : shape.width));
    } else if (op.kind == OperatorKind::attention &&
               context_.attention != model::AttentionImplementation::flash) {
        // Probabilities; with dropout also the dropped ones and the mask, an octet each.
        const bool is_dropped = op.attributes.probability > 0;
        const auto scores =
            static_cast<std::int64_t>(model::attention_shape(graph_, op, context_).scores() + 0.5);
        saved_context.numbers = is_dropped ? 2 * scores : scores;
        saved_context.octets = is_dropped ? scores : 0;
    }
    return saved_context;
}

RoundedOperators::SavedContext RoundedOperators::late_context_of(model::OperatorId id,
                                                                 const Operands& operands) const {
    SavedContext late_context;
    if (!operands.late_context) return late_context;
    const model::MixtureShape shape = model::mixture_shape(graph_, graph_.op(id), context_);
    late_context.numbers = expert_rows(shape, operands) * shape.width;
    return late_context;
}

OpaqueView RoundedOperators::widen(SavedContext& saved_context, OpaqueView stored, bool reads) const {
    if (!stored || saved_context.numbers == 0) return stored;
    saved_context.stored = stored.as<std::uint16_t>();
    const std::int64_t octets_words = (saved_context.octets + sizeof(float) - 1) / sizeof(float);
    std::vector<float>& wide = saved_context.wide;
    wide.resize(saved_context.numbers + octets_words);
    if (reads) {
        widen_low(type_, saved_context.numbers, saved_context.stored, wide.data());
        std::memcpy(wide.data() + saved_context.numbers, saved_context.stored + saved_context.numbers,
                    saved_context.octets);
    }
    return OpaqueView(wide.data());
}

void RoundedOperators::round(const SavedContext& saved_context) const {
    if (!saved_context.stored) return;
    round_to_low(type_, saved_context.numbers, saved_context.wide.data(), saved_context.stored);
    std::memcpy(saved_context.stored + saved_context.numbers,
                saved_context.wide.data() + saved_context.numbers, saved_context.octets);
}

TensorView RoundedOperators::widen(Array& array, const TensorView& stored, bool reads) {
    if (!stored || !is_low(stored.type())) return stored;
    array.stored = stored;
    array.wide.resize(stored.elements());
    if (reads) widen_low(stored.type(), stored.elements(), stored.as<std::uint16_t>(), array.wide.data());
    return {array.wide.data(), core::DataType::fp32, stored.shape()};
}

ConstTensorView RoundedOperators::widen(std::vector<float>& copy, const ConstTensorView& stored) {
    if (!stored || !is_low(stored.type())) return stored;
    copy.resize(stored.elements());
    widen_low(stored.type(), stored.elements(), stored.as<std::uint16_t>(), copy.data());
    return {copy.data(), core::DataType::fp32, stored.shape()};
}

KeyValues RoundedOperators::widen_rows(Array& array, const KeyValues& stored, std::int64_t count) const {
    const std::int64_t rows = context_.micro_batch * graph_.tokens_per_sample, columns = count / rows;
    array.stored = stored.first;
    array.wide.resize(count);
    for (std::int64_t r = 0; r < rows; ++r)
        widen_low(stored.first.type(), columns, stored.first.as<std::uint16_t>() + r * stored.stride,
                  array.wide.data() + r * columns);
    return {{array.wide.data(), core::DataType::fp32, count}, columns};
}

void RoundedOperators::round(const Array& array) {
    if (array.stored)
        round_to_low(array.stored.type(), std::ssize(array.wide), array.wide.data(),
                     array.stored.as<std::uint16_t>());
}

void RoundedOperators::widen_operands(model::OperatorId id, const Operands& operands, bool is_backward,
                                      WidenedOperands& wide) const {
    const model::Operator& op = graph_.op(id);
    wide.operands = operands;
    wide.inputs.resize(operands.inputs.size());
    for (const std::int32_t i : core::indices(operands.inputs))
        wide.operands.inputs[i] = widen(wide.inputs[i], operands.inputs[i], true);
    wide.parameters.resize(operands.parameters.size());
    for (const std::int32_t p : core::indices(operands.parameters))
        wide.operands.parameters[p] = widen(wide.parameters[p], operands.parameters[p]);
    // Behind an exchange of copies stands what was received, in another number of rows; no backward pass
    // reads it.
    if (is_backward && model::exchanges_routed_tokens(op, context_)) wide.operands.output = {};
    else wide.operands.output = widen(wide.output, operands.output, is_backward);
    const double key_values =
        op.kind == OperatorKind::attention
            ? model::key_value_bytes(graph_, op, context_) / core::size_of(context_.compute)
            : 0;
    wide.earlier.resize(operands.earlier.size() + operands.earlier_gradients.size());
    for (const std::int32_t i : core::indices(operands.earlier))
        wide.operands.earlier[i] = widen_rows(wide.earlier[i], operands.earlier[i], std::llround(key_values));
    for (const std::int32_t i : core::indices(operands.earlier_gradients))
        wide.operands.earlier_gradients[i] =
            widen_rows(wide.earlier[operands.earlier.size() + i], operands.earlier_gradients[i],
                       std::llround(key_values));
    wide.operands.later_gradient = widen(wide.later, operands.later_gradient, true);
    wide.operands.keys = widen(wide.keys, operands.keys, true);  // of a context-parallel group
    wide.operands.dkeys = widen(wide.key_gradients, operands.dkeys, true);
    wide.saved_context = saved_context_of(id, operands);
    wide.operands.saved_context = widen(wide.saved_context, operands.saved_context, is_backward);
    wide.late_context = late_context_of(id, operands);
    wide.operands.late_context = widen(wide.late_context, operands.late_context, is_backward);
}

void RoundedOperators::forward(model::OperatorId id, const Operands& operands,
                               const MicroBatchPosition& place) const {
    if (is_passive(graph_.op(id).kind)) return;
    WidenedOperands wide;
    widen_operands(id, operands, false, wide);
    // In a ring the output is merged with what is there.
    if (operands.key_rank) wide.operands.output = widen(wide.output, operands.output, true);
    if (is_in_fp8(id)) {
        round_to_fp8(Float8::e4m3, wide.inputs[0].wide);
        round_to_fp8(Float8::e4m3, wide.parameters[0]);
    }
    operators_.forward(id, wide.operands, place);
    round(wide.output);
    round(wide.saved_context);
}

void RoundedOperators::backward_input(model::OperatorId id, const Operands& operands, ConstTensorView dy,
                                      const std::vector<TensorView>& dx,
                                      const MicroBatchPosition& place) const {
    const model::Operator& op = graph_.op(id);
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    std::vector<float> gradient;
    dy = widen(gradient, dy);
    if (is_in_fp8(id)) {
        round_to_fp8(Float8::e5m2, gradient);
        round_to_fp8(Float8::e4m3, wide.parameters[0]);
    }
    std::vector<Array> arrays(dx.size());
    std::vector<TensorView> gradients(dx.size());
    // One tensor read twice has one gradient: its contributions follow each other in one array.
    for (std::size_t i = 0; i < dx.size(); ++i) {
        for (std::size_t before = 0; before < i && !gradients[i]; ++before)
            if (dx[i] && dx[i].data() == dx[before].data()) gradients[i] = gradients[before];
        // Written over the input: in one copy too.
        if (dx[i] && dx[i].data() == operands.inputs[i].data()) {
            gradients[i] = wide.operands.inputs[i];
            arrays[i] = std::move(wide.inputs[i]);
        }
        if (!gradients[i]) gradients[i] = widen(arrays[i], dx[i], true);
    }
    operators_.backward_input(id, wide.operands, dy, gradients, place);
    for (const Array& array : arrays) round(array);
    round(wide.key_gradients);
    if (op.kind == OperatorKind::experts) {  // where backward leaves what the weights' gradients need
        round(wide.saved_context);
        round(wide.late_context);
    }
    for (std::size_t i = operands.earlier.size(); i < wide.earlier.size(); ++i)
        round(wide.earlier[i]);  // gradients of the keys and values before
}

void RoundedOperators::backward_weight(model::OperatorId id, const Operands& operands, ConstTensorView dy,
                                       const std::vector<TensorView>& dparameters) const {
    const model::Operator& op = graph_.op(id);
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    std::vector<float> gradient;
    dy = widen(gradient, dy);
    std::vector<Array> arrays(dparameters.size());
    std::vector<TensorView> gradients = dparameters;
    for (const std::int32_t p : core::indices(dparameters))
        gradients[p] = widen(arrays[p], dparameters[p], true);
    std::vector<float> unwanted;
    if (is_in_fp8(id)) {
        // A bias's gradient is a sum and no product: of numbers that are not rounded.
        if (op.attributes.has_bias) {
            const std::int64_t columns = gradients[1].elements();
            kernels().sum_rows(std::ssize(gradient) / columns, columns, dy.floats(), gradients[1].floats());
            unwanted.resize(columns);
            gradients[1] = {unwanted.data(), core::DataType::fp32, columns};
        }
        round_to_fp8(Float8::e5m2, gradient);
        round_to_fp8(Float8::e4m3, wide.inputs[0].wide);
    }
    operators_.backward_weight(id, wide.operands, dy, gradients);
    for (const Array& array : arrays) round(array);
}

std::vector<std::int64_t> RoundedOperators::expert_rows(model::OperatorId id,
                                                        const Operands& operands) const {
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    return operators_.expert_rows(id, wide.operands);
}

void RoundedOperators::choices(model::OperatorId id, const Operands& operands, TensorView all) const {
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    operators_.choices(id, wide.operands, all);
}

void RoundedOperators::add_key_gradients(model::OperatorId id, ConstTensorView piece,
                                         TensorView dpacked) const {
    std::vector<float> own;
    Array sum;
    operators_.add_key_gradients(id, widen(own, piece), widen(sum, dpacked, true));
    round(sum);
}

}  // namespace exec::cpu
