// Plans beside the space: of those that gather keys or exchange heads the most promising one of some layouts,
// with the keys in a ring. As much moves as is gathered, beside the attention, and an attention is in pieces.
#include "model/operators/rank_share.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// A ring has many small steps, and takes as long to simulate as several plans that gather.
constexpr std::size_t most_rings = 4;

}  // namespace

void Search::note_for_ring(std::size_t i, const RankedPlan& ranked) {
    schedule::Plan plan = entries_[i].plan;
    if (!result_.account.tries_rings ||
        !plan.cost_context().communicates(plan.context_communication) ||  // one rank has all tokens
        plan.context_communication == schedule::ContextCommunication::ring)
        return;
    plan.context_communication = schedule::ContextCommunication::ring;
    if (model::ring_unsupported(graph_, plan.cost_context())) return;
    const sim::Evaluation& evaluation = ranked.evaluation;
    for_rings_.emplace(value_of(ranked.candidate, evaluation.step_time - evaluation.breakdown.tensor_parallel,
                                evaluation.peak_memory),
                       i);
}

// What is left of them when time is up stays out of the account of the space.
void Search::try_rings(core::Diagnostics& diagnostics) {
    std::set<std::tuple<std::size_t, int, schedule::Recompute>> tried;  // layout, micro-batch, recomputation
    for (const auto& [least, i] : for_rings_) {
        const Entry& other = entries_[i];
        if (least >= best_value() || tried.size() == most_rings) break;
        if (is_late(share_of_waves) ||
            !tried.emplace(other.layout, other.plan.micro_batch, other.plan.recompute).second)
            continue;
        Entry ring = other.beside_space();
        ring.plan.context_communication = schedule::ContextCommunication::ring;
        add(std::move(ring));
    }
    if (!tried.empty()) search_waves(diagnostics, share_of_waves);
    leave_beside_space();
}

void Search::leave_beside_space() {
    for (std::size_t i = 0; i < entries_.size(); ++i)
        if (entries_[i].is_beside_space() && !entries_[i].rejection && !entries_[i].is_taken) leave_queue(i);
}

}  // namespace planner
