#include "planner/partition/stage_table.h"

namespace planner {

// `rank`: the first that is placed alike. Beside it matters only whether messages arrive from before and from
// behind.
StageTable::Key StageTable::key(const schedule::Plan& plan, bool splits, int rank, int place) const {
    return {plan.micro_batch,
            plan.tensor_overlap,
            plan.context_communication,
            recomputation_key(plan),
            plan.sequence_parallel,
            GradientHandling(plan),
            plan.passes_per_micro_batch(),
            splits,
            rank,
            place};
}

StageTable::Row& StageTable::row(const schedule::Plan& plan, const schedule::Schedule& order, bool splits,
                                 int stage) {
    const int rank = schedule::rank_of_stage(order, stage) % bounds_.unlike_places(plan);
    const bool is_single = order.stages == order.ranks;
    const int place = !is_single ? 0 : 1 + (stage > 0 ? 1 : 0) + (stage + 1 < order.stages ? 2 : 0);
    Row& row = rows_[key(plan, splits, rank, place)];
    if (row.empty()) row.resize(runs());
    return row;
}

std::size_t StageTable::first_like(std::size_t begin, std::size_t end) {
    if (first_like_.empty()) first_like_.resize(runs());
    std::optional<std::size_t>& known = first_like_[index(begin, end)];
    if (!known) {
        const model::OperatorRange like = bounds_.first_like(operators(begin, end));
        const auto first = std::size_t(graph_.operators[like.begin].unit);
        known = index(first, first + (end - begin));
    }
    return *known;
}

const schedule::StateElements& StageTable::elements(const schedule::Plan& plan, std::size_t begin,
                                                    std::size_t end) {
    const std::size_t first = first_like(begin, end);
    if (elements_.empty()) elements_.resize(first_like_.size());
    if (!elements_[first]) elements_[first] = bounds_.elements(plan, operators(begin, end));
    return *elements_[first];
}

const StageTable::Passes& StageTable::of(Row& row, const schedule::Plan& plan,
                                         const schedule::Schedule& order, bool splits, int stage,
                                         std::size_t begin, std::size_t end) {
    const Passes*& entry = row[first_like(begin, end)];
    if (!entry)
        entry =
            &passes_.emplace_back(bounds_.stage_passes(plan, order, splits, stage, operators(begin, end)));
    return *entry;
}

StageTable::OnceRow& StageTable::once_row(const schedule::Plan& plan) {
    OnceRow& row = once_[{plan.sharding, plan.effective_shard_degree(), plan.sequence_parallel}];
    if (row.empty()) row.resize(runs());
    return row;
}

const Bounds::OnceAStep& StageTable::once_a_step(OnceRow& row, const schedule::Plan& plan, std::size_t begin,
                                                 std::size_t end) {
    std::optional<Bounds::OnceAStep>& known = row[first_like(begin, end)];
    if (!known) known = bounds_.once_a_step(plan, operators(begin, end));
    return *known;
}

const Bounds::Saved& StageTable::saved(const schedule::Plan& plan, std::size_t begin, std::size_t end) {
    const std::size_t first = first_like(begin, end);
    std::vector<std::optional<Bounds::Saved>>& known =
        saved_[{plan.micro_batch, recomputation_key(plan), plan.sequence_parallel, plan.context_communication,
                plan.passes_per_micro_batch()}];
    if (known.empty()) known.resize(first_like_.size());
    if (!known[first]) known[first] = bounds_.saved(plan, operators(begin, end));
    return *known[first];
}

}  // namespace planner
