#include "exec/cpu/rounded_operators.h"

#include <cstring>
#include <numeric>

#include "exec/cpu/bfloat16.h"
#include "exec/cpu/kernels.h"
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
      precision_(precision),
      operators_(graph, context, tensor_rank, seed, is_training, context_rank),
      is_in_fp8_(graph.operators.size(), 0) {
    for (std::size_t i = 0; precision.compute == core::DataType::fp8 && i < graph.operators.size(); ++i)
        is_in_fp8_[i] =
            !model::fp8_unsupported(graph, model::OperatorId(static_cast<std::int32_t>(i)), context);
}

std::int64_t RoundedOperators::elements(model::TensorId tensor) const {
    const core::DataType type = is_rounded(tensor) ? context_.compute : graph_.tensor(tensor).type;
    return static_cast<std::int64_t>(model::tensor_bytes(graph_, tensor, context_) / core::size_of(type) +
                                     0.5);
}

std::int64_t RoundedOperators::elements(const model::Operator& op, model::TensorId tensor,
                                        const Operands& operands) const {
    if (op.kind != OperatorKind::experts || !operands.expert_rows ||
        (tensor != op.inputs[0] && tensor != op.output))
        return elements(tensor);
    return std::accumulate(operands.expert_rows->begin(), operands.expert_rows->end(), std::int64_t{0}) *
           graph_.tensor(tensor).shape.back();
}

void RoundedOperators::round_to_fp8(Float8 format, Array& array) {
    round_to_float8(format, static_cast<std::int64_t>(array.wide.size()), array.wide.data());
}

// Extras are statistics in fp32, masks and indices, but for the scaled input of a linear layer, what experts
// compute inside, and kept probabilities of attention.
RoundedOperators::SavedContext RoundedOperators::saved_context_of(model::OperatorId id,
                                                                  const Operands& operands) const {
    const model::Operator& op = graph_.op(id);
    SavedContext saved_context;
    if (op.kind == OperatorKind::linear && op.attributes.input_scale != 1.0) {
        saved_context.numbers = elements(op.inputs[0]);
    } else if (op.kind == OperatorKind::experts) {
        const model::MixtureShape shape = model::mixture_shape(graph_, op, context_);
        const std::int64_t rows =
            operands.expert_rows
                ? std::accumulate(operands.expert_rows->begin(), operands.expert_rows->end(), std::int64_t{0})
                : shape.routed_tokens;
        saved_context.numbers = rows * (shape.first_width + shape.width);
    } else if (op.kind == OperatorKind::attention &&
               context_.attention != model::AttentionImplementation::flash) {
        // Probabilities; with dropout also the dropped ones and the mask, an octet each.
        const bool is_dropped = op.attributes.probability > 0;
        const double a_score =
            core::size_of(context_.compute).value * (is_dropped ? 2 : 1) + (is_dropped ? 1 : 0);
        const auto scores = static_cast<std::int64_t>(
            model::saved_for_backward(graph_, id, context_).saved_context.value / a_score + 0.5);
        saved_context.numbers = is_dropped ? 2 * scores : scores;
        saved_context.octets = is_dropped ? scores : 0;
    }
    return saved_context;
}

void* RoundedOperators::widen(SavedContext& saved_context, void* stored, bool reads) {
    if (!stored || saved_context.numbers == 0) return stored;
    Array& array = saved_context.array;
    array.stored = static_cast<float*>(stored);
    array.wide.resize(static_cast<std::size_t>(saved_context.numbers) +
                      (static_cast<std::size_t>(saved_context.octets) + sizeof(float) - 1) / sizeof(float));
    if (reads) {
        widen_bfloat16(saved_context.numbers, static_cast<const std::uint16_t*>(stored), array.wide.data());
        std::memcpy(array.wide.data() + saved_context.numbers,
                    static_cast<const std::uint16_t*>(stored) + saved_context.numbers,
                    static_cast<std::size_t>(saved_context.octets));
    }
    return array.wide.data();
}

void RoundedOperators::round(const SavedContext& saved_context) {
    if (!saved_context.array.stored) return;
    auto* const stored = reinterpret_cast<std::uint16_t*>(saved_context.array.stored);
    round_to_bfloat16(saved_context.numbers, saved_context.array.wide.data(), stored);
    std::memcpy(stored + saved_context.numbers, saved_context.array.wide.data() + saved_context.numbers,
                static_cast<std::size_t>(saved_context.octets));
}

float* RoundedOperators::widen(Array& array, float* stored, std::int64_t count, bool reads) {
    if (!stored) return nullptr;
    array.stored = stored;
    array.wide.resize(static_cast<std::size_t>(count));
    if (reads) widen_bfloat16(count, reinterpret_cast<const std::uint16_t*>(stored), array.wide.data());
    return array.wide.data();
}

KeyValues RoundedOperators::widen_rows(Array& array, const KeyValues& stored, std::int64_t count) const {
    const std::int64_t rows = context_.micro_batch * graph_.tokens_per_sample, columns = count / rows;
    array.stored = stored.data;
    array.wide.resize(static_cast<std::size_t>(count));
    for (std::int64_t r = 0; r < rows; ++r)
        widen_bfloat16(columns, reinterpret_cast<const std::uint16_t*>(stored.data) + r * stored.stride,
                       array.wide.data() + r * columns);
    return {array.wide.data(), columns};
}

void RoundedOperators::round(const Array& array) {
    if (array.stored)
        round_to_bfloat16(static_cast<std::int64_t>(array.wide.size()), array.wide.data(),
                          reinterpret_cast<std::uint16_t*>(array.stored));
}

void RoundedOperators::widen_operands(model::OperatorId id, const Operands& operands, bool is_backward,
                                      WidenedOperands& wide) const {
    const model::Operator& op = graph_.op(id);
    wide.operands = operands;
    wide.arrays.resize(op.inputs.size() + op.parameters.size());
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
        if (is_rounded(op.inputs[i]))
            wide.operands.inputs[i] =
                widen(wide.arrays[i], operands.inputs[i], elements(op, op.inputs[i], operands), true);
    if (precision_.parameters == core::DataType::bf16)
        for (std::size_t p = 0; p < operands.parameters.size(); ++p)
            wide.operands.parameters[p] =
                widen(wide.arrays[op.inputs.size() + p], const_cast<float*>(operands.parameters[p]),
                      elements(op.parameters[p]), true);
    // Behind an exchange of copies stands what was received, in another number of rows; no backward pass
    // reads it.
    if (is_backward && model::exchanges_routed_tokens(op, context_)) wide.operands.output = nullptr;
    else if (is_rounded(op.output))
        wide.operands.output =
            widen(wide.output, operands.output, elements(op, op.output, operands), is_backward);
    const std::int64_t key_values =
        op.kind == OperatorKind::attention
            ? static_cast<std::int64_t>(
                  model::key_value_bytes(graph_, op, context_) / core::size_of(context_.compute) + 0.5)
            : 0;
    wide.earlier.resize(operands.earlier.size() + operands.earlier_gradients.size());
    for (std::size_t i = 0; i < operands.earlier.size(); ++i)
        wide.operands.earlier[i] = widen_rows(wide.earlier[i], operands.earlier[i], key_values);
    for (std::size_t i = 0; i < operands.earlier_gradients.size(); ++i)
        wide.operands.earlier_gradients[i] =
            widen_rows(wide.earlier[operands.earlier.size() + i], operands.earlier_gradients[i], key_values);
    if (operands.later_gradient)
        wide.operands.later_gradient =
            widen(wide.later, const_cast<float*>(operands.later_gradient), key_values, true);
    if (operands.keys) {  // of a context-parallel group
        const auto all = static_cast<std::int64_t>(
            model::gathered_key_bytes(graph_, op, context_) / core::size_of(context_.compute) + 0.5);
        wide.operands.keys = widen(wide.keys, const_cast<float*>(operands.keys), all, true);
        wide.operands.dkeys = widen(wide.key_gradients, operands.dkeys, all, true);
    }
    wide.saved_context = saved_context_of(id, operands);
    wide.operands.saved_context = widen(wide.saved_context, operands.saved_context, is_backward);
}

void RoundedOperators::forward(model::OperatorId id, const Operands& operands,
                               const MicroBatchPosition& place) const {
    if (is_passive(graph_.op(id).kind)) return;
    WidenedOperands wide;
    widen_operands(id, operands, false, wide);
    if (is_in_fp8(id)) {
        round_to_fp8(Float8::e4m3, wide.arrays[0]);
        round_to_fp8(Float8::e4m3, wide.arrays[1]);
    }
    operators_.forward(id, wide.operands, place);
    round(wide.output);
    round(wide.saved_context);
}

void RoundedOperators::backward_input(model::OperatorId id, const Operands& operands, const float* dy,
                                      const std::vector<float*>& dx, const MicroBatchPosition& place) const {
    const model::Operator& op = graph_.op(id);
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    Array gradient;
    if (op.kind != OperatorKind::cross_entropy)
        dy = widen(gradient, const_cast<float*>(dy), elements(op, op.output, operands), true);
    if (is_in_fp8(id)) {
        round_to_fp8(Float8::e5m2, gradient);
        round_to_fp8(Float8::e4m3, wide.arrays[1]);
    }
    std::vector<Array> arrays(dx.size());
    std::vector<float*> gradients(dx.size());
    // One tensor read twice has one gradient: its contributions follow each other in one array.
    for (std::size_t i = 0; i < dx.size(); ++i) {
        for (std::size_t before = 0; before < i && !gradients[i]; ++before)
            if (dx[i] && dx[i] == dx[before]) gradients[i] = gradients[before];
        if (!gradients[i]) gradients[i] = widen(arrays[i], dx[i], elements(op, op.inputs[i], operands), true);
    }
    operators_.backward_input(id, wide.operands, dy, gradients, place);
    for (const Array& array : arrays) round(array);
    round(wide.key_gradients);
    if (op.kind == OperatorKind::experts)
        round(wide.saved_context);  // where backward leaves what the weights' gradients need
    for (std::size_t i = operands.earlier.size(); i < wide.earlier.size(); ++i)
        round(wide.earlier[i]);  // gradients of earlier segments' keys and values
}

void RoundedOperators::backward_weight(model::OperatorId id, const Operands& operands, const float* dy,
                                       const std::vector<float*>& dparameters) const {
    const model::Operator& op = graph_.op(id);
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    Array gradient;
    if (op.kind != OperatorKind::cross_entropy)
        dy = widen(gradient, const_cast<float*>(dy), elements(op, op.output, operands), true);
    std::vector<Array> arrays(dparameters.size());
    std::vector<float*> gradients = dparameters;
    if (precision_.gradients == core::DataType::bf16)
        for (std::size_t p = 0; p < dparameters.size(); ++p)
            gradients[p] = widen(arrays[p], dparameters[p], elements(op.parameters[p]), true);
    std::vector<float> unwanted;
    if (is_in_fp8(id)) {
        // A bias's gradient is a sum and no product: of numbers that are not rounded.
        if (op.attributes.has_bias) {
            const std::int64_t columns = elements(op.parameters[1]);
            kernels().sum_rows(static_cast<std::int64_t>(gradient.wide.size()) / columns, columns, dy,
                               gradients[1]);
            unwanted.resize(static_cast<std::size_t>(columns));
            gradients[1] = unwanted.data();
        }
        round_to_fp8(Float8::e5m2, gradient);
        round_to_fp8(Float8::e4m3, wide.arrays[0]);
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

void RoundedOperators::choices(model::OperatorId id, const Operands& operands, float* all) const {
    WidenedOperands wide;
    widen_operands(id, operands, true, wide);
    operators_.choices(id, wide.operands, all);
}

void RoundedOperators::add_key_gradients(model::OperatorId id, const float* piece, float* dpacked) const {
    const model::Operator& op = graph_.op(id);
    const auto all = static_cast<std::int64_t>(
        model::gathered_key_bytes(graph_, op, context_) / core::size_of(context_.compute) + 0.5);
    Array own, sum;
    widen(own, const_cast<float*>(piece), all / context_.context_parallel, true);
    widen(sum, dpacked, elements(op.inputs[0]), true);
    operators_.add_key_gradients(id, own.wide.data(), sum.wide.data());
    round(sum);
}

}  // namespace exec::cpu
