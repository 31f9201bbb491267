#include "model/operators/fp8_products.h"

#include <map>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

// Does the loss read this tensor, as it is or under another shape?
bool is_read_by_loss(const ModelGraph& graph, TensorId tensor) {
    for (const OperatorId reader : graph.tensor(tensor).consumers) {
        const Operator& op = graph.op(reader);
        if (op.kind == OperatorKind::loss_statistics || op.kind == OperatorKind::cross_entropy) return true;
        const bool passes_on = is_view(op.kind) || op.kind == OperatorKind::transpose ||
                               op.kind == OperatorKind::parallel_enter ||
                               op.kind == OperatorKind::parallel_exit;
        if (passes_on && is_read_by_loss(graph, op.output)) return true;
    }
    return false;
}

}  // namespace

std::optional<core::Unsupported> fp8_unsupported(const ModelGraph& graph, OperatorId id,
                                                 const CostContext& context) {
    const Operator& op = graph.op(id);
    if (op.kind != OperatorKind::linear) return core::Unsupported{"no linear layer"};
    if (op.attributes.input_scale != 1.0) return core::Unsupported{"its input is scaled"};
    if (is_read_by_loss(graph, op.output)) return core::Unsupported{"its results are logits"};
    const Parameter& weight = graph.parameter(op.parameters[0]);
    const std::int64_t rows = rank_matrix(graph, op.output, context).rows,
                       outputs = rank_extent(weight, 0, context), inputs = rank_extent(weight, 1, context);
    if (rows % fp8_multiple == 0 && outputs % fp8_multiple == 0 && inputs % fp8_multiple == 0)
        return std::nullopt;
    return core::Unsupported{
        fmt::format("{} rows x {} x {} are not all multiples of {}", rows, outputs, inputs, fp8_multiple),
        true};
}

std::string fp8_summary(const ModelGraph& graph, const CostContext& context) {
    int all = 0, low = 0;
    std::map<std::string, std::pair<std::string, int>>
        others;  // by reason: the first one's name, and how many
    for (const std::int32_t i : core::indices(graph.operators)) {
        if (graph.operators[i].kind != OperatorKind::linear) continue;
        ++all;
        const std::optional<core::Unsupported> unsupported = fp8_unsupported(graph, OperatorId(i), context);
        if (!unsupported) {
            ++low;
            continue;
        }
        auto& [name, count] = others[unsupported->reason];
        if (count++ == 0) name = graph.operators[i].name;
    }
    std::string text = fmt::format("fp8: products of {} of {} linear layers", low, all);
    const char* separator = "; in bf16: ";
    for (const auto& [reason, layers] : others) {
        const auto& [name, count] = layers;
        text += fmt::format("{}{}{} ({})", separator, name,
                            count > 1 ? fmt::format(" and {} more", count - 1) : "", reason);
        separator = ", ";
    }
    return text;
}

}  // namespace model
