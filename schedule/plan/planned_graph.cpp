#include "schedule/plan/planned_graph.h"

#include <fmt/core.h>

#include "core/errors.h"
#include "model/whole_experts.h"

namespace schedule {

PlannedGraph::PlannedGraph(const Plan& plan, const model::ModelGraph& graph) : given_(graph) {
    if (plan.layout.spreads_experts_over_tensor() && !graph.has_whole_experts())
        made_ = model::with_whole_experts(graph);
    core::require(is_laid_out(**this, plan), "a graph is laid out for the plan that it is used with");
}

bool check_experts(const Plan& plan, const model::ModelGraph& model, const ReportError& error) {
    const ParallelLayout& layout = plan.layout;
    bool can_stay_whole = true;
    if (layout.spreads_experts_over_tensor() && !model.has_whole_experts()) {
        const auto unsupported = model::whole_experts_unsupported(model);
        can_stay_whole = !unsupported;
        if (unsupported)
            error("expert_tensor_parallel",
                  fmt::format("expert_tensor_parallel = 1 cannot keep the experts of {} whole: {}",
                              model.name, unsupported->reason),
                  "leave it out");
    }
    if (layout.spreads_experts_over_tensor() && !plan.sequence_parallel)
        error("expert_tensor_parallel",
              "expert_tensor_parallel = 1: every tensor rank routes tokens of its own, which it has with "
              "sequence_parallel = true",
              "set sequence_parallel = true");
    const int ranks = layout.expert_ranks();
    if (ranks == 1) return can_stay_whole;
    if (const auto unsupported = model::expert_parallel_unsupported(model, ranks))
        error("expert_parallel",
              fmt::format("expert_parallel = {} cannot spread the experts of {}: {}", ranks, model.name,
                          unsupported->reason),
              "use a divisor of experts");
    const std::string along_data =
        ranks == layout.expert
            ? fmt::format("expert_parallel = {}", ranks)
            : fmt::format("expert_parallel = {} over tensor_parallel = {}", ranks, layout.tensor);
    if (layout.data % layout.expert != 0)
        error("expert_parallel",
              fmt::format("{} does not divide the {} ranks of the data axis", along_data, layout.data),
              "experts are spread over its ranks, replicas and parts of their sequences: use a divisor of "
              "them");
    const int shards = plan.effective_shard_degree();
    if (shards % layout.expert != 0 && layout.expert % shards != 0)
        error("expert_parallel",
              fmt::format("{} and shard_degree = {} divide the data axis into groups that overlap",
                          along_data, shards),
              "one must divide the other");
    return can_stay_whole;
}

}  // namespace schedule
