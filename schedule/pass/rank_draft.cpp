#include "schedule/pass/rank_draft.h"

#include <algorithm>

#include "core/index/integers.h"

namespace schedule {

RankDraft::RankDraft(const Program& program, const model::ModelGraph* graph, const Schedule& order,
                     const LowerOptions& options,
                     const std::vector<std::vector<ActivationFootprint>>& footprints, int rank)
    : program(program),
      plan(program.plan),
      graph(graph),
      order(order),
      options(options),
      rank(rank),
      buckets(graph ? buckets_of_rank(*graph, plan, program.stages, rank, program.directions)
                    : RankBuckets()) {
    result.pipeline = rank;
    result.buckets = buckets.buckets;
    for (const std::int32_t s : core::indices(program.stages)) {
        if (program.stages[s].rank != rank) continue;
        const bool splits_backward =
            std::any_of(actions().begin(), actions().end(), [&](const Action& action) {
                return action.stage == s && action.kind == ActionKind::backward_input;
            });
        stages.push_back({s, &footprints[s], splits_backward});
    }
}

RankDraft::RankDraft(const Program& program, const model::ModelGraph& graph, const Schedule& order)
    : program(program),
      plan(program.plan),
      graph(&graph),
      order(order),
      options({.has_optimizer = false}),
      rank(0) {
    for (const std::int32_t s : core::indices(program.stages)) stages.push_back({s, nullptr, false});
}

void RankDraft::wait_for_gradients() {
    for (const std::uint32_t index :
         {frontier.last_step, frontier.reduced_on_data, frontier.reduced_on_tensor, frontier.sent_to_host})
        list.wait_for(index);
    for (const std::uint32_t index : frontier.pending) list.wait_for(index);
}

}  // namespace schedule
