#include "exec/cuda/operator/attention_tables.h"

#include <cmath>
#include <utility>

#include "core/index/integers.h"
#include "model/operators/alibi.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using model::OperatorKind;

AttentionTables::AttentionTables(const model::ModelGraph& graph, const model::CostContext& context,
                                 int tensor_rank, Machine& machine)
    : machine_(machine) {
    const auto keep = [&](const std::vector<float>& values) {
        void* block = machine.allocate(values.size() * sizeof(float));
        blocks_.push_back(block);
        machine.upload_now(block, values.data(), values.size() * sizeof(float));
        return static_cast<float*>(block);
    };
    // Layers are alike: their tables are one.
    std::map<std::vector<float>, std::pair<float*, float*>> rotations;
    for (const std::int32_t i : core::indices(graph.operators)) {
        const model::Operator& o = graph.operators[i];
        if (o.kind != OperatorKind::attention || (!o.attributes.is_rotary && !o.attributes.has_alibi))
            continue;
        Of& tables = tables_[i];
        if (o.attributes.is_rotary) {
            tables.rotary_dimension =
                static_cast<std::int64_t>(o.attributes.rotary_fraction * o.attributes.head_dimension) / 2 * 2;
            const std::int64_t half = tables.rotary_dimension / 2,
                               tokens = graph.tensor(o.inputs[0]).shape[0] * graph.part.count;
            std::vector<float> cosines, sines;
            for (std::int64_t t = 0; t < tokens; ++t)
                for (std::int64_t j = 0; j < half; ++j) {
                    const double angle =
                        t * std::pow(o.attributes.rotary_base, -2.0 * j / tables.rotary_dimension);
                    cosines.push_back(static_cast<float>(std::cos(angle)));
                    sines.push_back(static_cast<float>(std::sin(angle)));
                }
            auto& shared = rotations[cosines];
            if (!shared.first) shared = {keep(cosines), keep(sines)};
            tables.cosines = shared.first;
            tables.sines = shared.second;
        }
        if (o.attributes.has_alibi) {
            const std::int64_t heads = model::rank_heads(o, o.attributes.heads, context);
            std::vector<float> slopes;
            for (std::int64_t h = 0; h < heads; ++h)
                slopes.push_back(static_cast<float>(model::alibi_slope(
                    o.attributes.heads, (o.in_parallel_region ? tensor_rank * heads : 0) + h)));
            tables.slopes = keep(slopes);
        }
    }
}

AttentionTables::~AttentionTables() {
    for (void* block : blocks_) machine_.release(block);
}

const AttentionTables::Of* AttentionTables::find(model::OperatorId attention) const {
    const auto found = tables_.find(attention.index);
    return found == tables_.end() ? nullptr : &found->second;
}

}  // namespace exec::cuda
