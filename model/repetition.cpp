#include "model/repetition.h"

#include "core/errors.h"
#include "core/index/integers.h"

#include <algorithm>
#include <functional>

namespace model {

namespace {

bool is_like(const Tensor& a, const Tensor& b) {
    return a.shape == b.shape && a.is_activation == b.is_activation && a.type == b.type &&
           a.split == b.split && a.split_dimension == b.split_dimension;
}

bool is_like(const Parameter& a, const Parameter& b) {
    return a.shape == b.shape && a.split_dimension == b.split_dimension && a.split_blocks == b.split_blocks &&
           a.split_sections == b.split_sections && a.is_expert == b.is_expert &&
           a.has_partial_gradient == b.has_partial_gradient && a.is_task_head == b.is_task_head &&
           a.decays == b.decays;
}

bool is_like(const Operator& a, const Operator& b) {
    return a.kind == b.kind && a.attributes == b.attributes && a.inputs.size() == b.inputs.size() &&
           a.parameters.size() == b.parameters.size() && a.in_parallel_region == b.in_parallel_region &&
           a.in_attention_core == b.in_attention_core;
}

// Numbers of classes: the index of the first like element among those that are unlike all before.
template <class Element>
std::vector<std::int32_t> classes_of(const std::vector<Element>& elements) {
    std::vector<const Element*> representatives;
    std::vector<std::int32_t> classes;
    for (const Element& element : elements) {
        std::size_t c = 0;
        while (c < representatives.size() && !is_like(*representatives[c], element)) ++c;
        if (c == representatives.size()) representatives.push_back(&element);
        classes.push_back(static_cast<std::int32_t>(c));
    }
    return classes;
}

// Of a table, which then takes 8 MB.
constexpr std::size_t most_units = 1024;

// A range as one number; that of an empty one.
constexpr std::uint64_t nothing_yet = 0;
std::uint64_t packed(OperatorRange range) {
    return std::uint64_t(std::uint32_t(range.begin)) << 32 | std::uint32_t(range.end);
}
OperatorRange unpacked(std::uint64_t number) {
    return {std::int32_t(number >> 32), std::int32_t(number & 0xffffffff)};
}

}  // namespace

Repetition::Repetition(const ModelGraph& graph)
    : graph_(graph),
      operator_class_(classes_of(graph.operators)),
      tensor_class_(classes_of(graph.tensors)),
      parameter_class_(classes_of(graph.parameters)),
      unit_from_(graph.operators.size() + 1, -1) {
    for (const std::int32_t u : core::indices(graph.units))
        unit_from_[std::size_t(graph.units[u].operators.begin)] = u;
    unit_from_[std::size_t(graph.units.back().operators.end)] = core::count_of(graph.units);
    const std::size_t boundaries = graph.units.size() + 1;
    if (boundaries <= most_units) table_ = std::vector<std::atomic<std::uint64_t>>(boundaries * boundaries);
    for (const Unit& unit : graph.units)
        crossing_[unit.operators.begin] = tensors_crossing(graph, unit.operators.begin);
    crossing_[graph.units.back().operators.end] = {};
    for (const Unit& unit : graph.units) {
        const std::int32_t moved = unit.operators.begin - first_like(unit.operators).begin;
        for (std::int32_t i = unit.operators.begin; i < unit.operators.end; ++i)
            first_operators_.push_back(i - moved);
    }
}

Repetition::Signature Repetition::signature(OperatorRange range) const {
    Signature text;
    text.reserve(static_cast<std::size_t>(range.size()) * 8);
    text.push_back(range.begin == graph_.units.front().operators.begin);
    text.push_back(range.end == graph_.units.back().operators.end);
    // Tensors and parameters are numbered in the order in which the range meets them.
    std::map<std::int32_t, std::int32_t> tensor_label, parameter_label;
    const std::function<void(TensorId)> write_tensor = [&](TensorId id) {
        const auto [entry, is_new] = tensor_label.try_emplace(id.index, core::count_of(tensor_label));
        text.push_back(entry->second);
        if (!is_new) return;
        const Tensor& tensor = graph_.tensor(id);
        text.push_back(tensor_class_[id.index]);
        text.push_back(core::count_of(tensor.consumers));
        const bool is_wanted_after = !tensor.consumers.empty() && tensor.consumers.back().index >= range.end;
        text.push_back(is_wanted_after ? operator_class_[tensor.consumers.back().index] : -1);
        if (tensor.producer.index >= range.begin) return;
        // From before the range: how it came about decides whose storage it is.
        const Operator& producer = graph_.op(tensor.producer);
        text.push_back(static_cast<std::int32_t>(producer.kind));
        if (is_view(producer.kind) || producer.kind == OperatorKind::parallel_enter ||
            producer.kind == OperatorKind::parallel_exit)
            write_tensor(producer.inputs[0]);
    };
    std::size_t unit = graph_.operators[range.begin].unit;
    for (std::int32_t i = range.begin; i < range.end; ++i) {
        const Operator& op = graph_.operators[i];
        const bool begins_unit = unit < graph_.units.size() && graph_.units[unit].operators.begin == i;
        unit += begins_unit;
        text.push_back(-1 - begins_unit);
        text.push_back(operator_class_[i]);
        for (const TensorId input : op.inputs) write_tensor(input);
        write_tensor(op.output);
        for (const ParameterId parameter : op.parameters) {
            text.push_back(
                parameter_label.try_emplace(parameter.index, core::count_of(parameter_label)).first->second);
            text.push_back(parameter_class_[parameter.index]);
        }
    }
    text.push_back(-3);
    for (const TensorId tensor : crossing_.at(range.begin)) write_tensor(tensor);
    return text;
}

OperatorRange Repetition::find(OperatorRange range) {
    const auto [like, is_first] = first_.try_emplace(signature(range), range);
    if (is_first) like->second = first_of_model(range, like->first);
    return like->second;
}

OperatorRange Repetition::first_like(OperatorRange range) {
    const std::int32_t first = unit_from_[std::size_t(range.begin)],
                       last = unit_from_[std::size_t(range.end)];
    core::require(first >= 0 && last >= 0, "a range begins and ends where units do");
    if (table_.empty()) {
        const std::lock_guard lock(guard_);
        const auto [known, is_new] = known_.try_emplace({first, last}, range);
        if (is_new) known->second = find(range);
        return known->second;
    }
    std::atomic<std::uint64_t>& known =
        table_[std::size_t(first) * (graph_.units.size() + 1) + std::size_t(last)];
    if (const std::uint64_t answer = known.load(std::memory_order_relaxed); answer != nothing_yet)
        return unpacked(answer);
    const std::lock_guard lock(guard_);
    const OperatorRange like = find(range);
    known.store(packed(like), std::memory_order_relaxed);
    return like;
}

OperatorRange Repetition::first_of_model(OperatorRange range, const Signature& wanted) const {
    const auto classes = [&](std::int32_t i) { return operator_class_.begin() + i; };
    for (const Unit& unit : graph_.units) {
        const OperatorRange candidate{unit.operators.begin, unit.operators.begin + range.size()};
        if (candidate.begin >= range.begin) break;
        if (!crossing_.contains(candidate.end) ||
            !std::equal(classes(range.begin), classes(range.end), classes(candidate.begin)))
            continue;
        if (signature(candidate) == wanted) return candidate;
    }
    return range;
}

}  // namespace model
