#include "model/reader/onnx/onnx_units.h"

#include <algorithm>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

bool is_weighted_product(const Operator& op) {
    switch (op.kind) {
        case OperatorKind::linear:
        case OperatorKind::conv2d:
        case OperatorKind::convolution:
        case OperatorKind::embedding:
        case OperatorKind::matrix_product:
        case OperatorKind::router:
        case OperatorKind::experts: return !op.parameters.empty();
        case OperatorKind::input:
        case OperatorKind::position_embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
        case OperatorKind::attention:
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
        case OperatorKind::dispatch:
        case OperatorKind::combine:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy:
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
        case OperatorKind::unknown: return false;
    }
    throw core::InternalError("broken promise: every operator kind is a weighted product or none");
}

}  // namespace

void divide_into_units(ModelGraph& graph) {
    const std::size_t count = graph.operators.size();
    std::vector<std::int32_t> last_use(graph.tensors.size(), -1);
    for (std::size_t i = 0; i < count; ++i)
        for (TensorId input : graph.operators[i].inputs)
            last_use[storage_of(graph, input).index] = static_cast<std::int32_t>(i);
    // Tensors crossing the boundary before operator i: those made earlier and read at or after it.
    std::vector<std::int32_t> change(count + 2, 0);
    for (const std::int32_t t : core::indices(graph.tensors)) {
        const std::int32_t producer = graph.tensors[t].producer.index;
        if (last_use[t] <= producer || !has_gradient(graph, TensorId(t))) continue;
        ++change[static_cast<std::size_t>(producer) + 1];
        --change[static_cast<std::size_t>(last_use[t]) + 1];
    }
    std::vector<std::int32_t> cuts;
    std::int32_t crossing = 0;
    for (std::size_t i = 0; i < count; ++i) {
        crossing += change[i];
        if (crossing == 1) cuts.push_back(static_cast<std::int32_t>(i));
    }
    cuts.push_back(static_cast<std::int32_t>(count));

    std::vector<std::int32_t> begins{0};
    bool has_product = false;
    for (std::int32_t i = 0; i < cuts[0]; ++i)
        has_product = has_product || is_weighted_product(graph.operators[i]);
    for (std::size_t c = 0; c + 1 < cuts.size(); ++c) {
        const auto begin = graph.operators.begin() + cuts[c], end = graph.operators.begin() + cuts[c + 1];
        if (!std::any_of(begin, end, is_weighted_product)) continue;
        if (has_product && cuts[c] > 0) begins.push_back(cuts[c]);
        has_product = true;
    }
    begins.push_back(static_cast<std::int32_t>(count));

    graph.units.clear();
    for (std::size_t u = 0; u + 1 < begins.size(); ++u) {
        Unit unit;
        unit.operators = {begins[u], begins[u + 1]};
        for (std::int32_t i = unit.operators.begin; i < unit.operators.end; ++i) {
            Operator& op = graph.operators[i];
            op.unit = static_cast<std::int32_t>(u);
            if (unit.name.empty() && is_weighted_product(op)) unit.name = op.name;
        }
        if (unit.name.empty()) unit.name = graph.operators[unit.operators.begin].name;
        graph.units.push_back(std::move(unit));
    }
}

}  // namespace model
