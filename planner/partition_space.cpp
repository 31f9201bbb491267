#include "planner/partition_space.h"

#include <algorithm>
#include <limits>

namespace planner {

namespace {
constexpr double infinity = std::numeric_limits<double>::infinity();
}  // namespace

bool covers_every_partition(const schedule::Plan& plan, std::size_t units) {
    if (plan.virtual_stages == 1) return true;
    // Ways to place the cuts between units.
    double ways = 1;
    for (int cut = 1; cut < plan.stages() && ways <= most_partitions; ++cut)
        ways = ways * (static_cast<double>(units) - cut) / cut;
    return ways <= most_partitions;
}

std::vector<model::OperatorRange> ranges_of(const model::ModelGraph& graph,
                                            const std::vector<std::int32_t>& first_units) {
    std::vector<model::OperatorRange> ranges;
    for (std::size_t s = 0; s < first_units.size(); ++s) {
        const auto first = static_cast<std::size_t>(first_units[s]);
        const std::size_t end =
            s + 1 < first_units.size() ? static_cast<std::size_t>(first_units[s + 1]) : graph.units.size();
        ranges.push_back({graph.units[first].operators.begin, graph.units[end - 1].operators.end});
    }
    return ranges;
}

// Where nothing is exchanged within a stage, its pipeline rank does not matter, only whether messages arrive
// from before and from behind.
std::vector<std::optional<Bounds::StagePasses>>& StageTable::row(const schedule::Plan& plan,
                                                                 const schedule::Schedule& order, bool splits,
                                                                 int stage) {
    const bool is_alone = plan.layout.tensor == 1 && plan.layout.context == 1 && plan.layout.expert == 1;
    const int rank = is_alone ? 0 : schedule::rank_of_stage(order, stage);
    const bool is_single = order.stages == order.ranks;
    const int place = !is_single ? 0 : 1 + (stage > 0 ? 1 : 0) + (stage + 1 < order.stages ? 2 : 0);
    std::vector<std::optional<Bounds::StagePasses>>& row =
        rows_[{plan.micro_batch, static_cast<int>(plan.recompute), plan.sequence_parallel,
               GradientHandling(plan), segments_of(plan), splits, rank, place}];
    if (row.empty()) row.resize(graph_.units.size() * (graph_.units.size() + 1));
    return row;
}

const Bounds::StagePasses& StageTable::of(const schedule::Plan& plan, const schedule::Schedule& order,
                                          bool splits, int stage, std::size_t begin, std::size_t end) {
    std::optional<Bounds::StagePasses>& entry =
        row(plan, order, splits, stage)[begin * (graph_.units.size() + 1) + end];
    if (!entry)
        entry = bounds_.stage_passes(
            plan, order, splits, stage,
            {graph_.units[begin].operators.begin, graph_.units[end - 1].operators.end});
    return *entry;
}

PartitionSpace::PartitionSpace(StageTable& table, const schedule::Plan& plan)
    : table_(table), plan_(plan), order_(nullptr), units_(table.graph().units.size()) {
    plan_.offload = schedule::Offload::none;
    plan_.partition = {};
    order_ = table_.bounds().timed_order(plan_);
    if (order_) splits_ = splits_backward(*order_);
}

double PartitionSpace::Rank::bound() const {
    // Weight gradients may be computed while the last gradient goes back to the first stage.
    return fill + std::max(busy, host) + std::max(0.0, drain - weight);
}

core::Seconds PartitionSpace::least_of_work() const {
    if (!order_) return core::Seconds(0);
    // Prices of operators add up, so all stages together take what the model takes as one stage.
    const Bounds::StagePasses& all = passes(0, 0, units_);
    const double each = std::max(all.busy.value, all.host.value) / order_->ranks;
    return core::Seconds(each * Bounds::claimed_share);
}

core::Seconds PartitionSpace::bound_of(const std::vector<std::int32_t>& first_units) const {
    return table_.bounds().time_of_order(plan_, ranges_of(table_.graph(), first_units));
}

// Backwards over the stages; before stage s at least fill[s][i] has passed.
void PartitionSpace::tabulate_needs() {
    const auto stages = static_cast<std::size_t>(order_->stages);
    using Table = std::vector<std::vector<double>>;
    Table forward(stages + 1, std::vector<double>(units_ + 1, infinity)), backward = forward;
    forward[0][0] = backward[0][0] = 0;
    for (std::size_t s = 0; s < stages; ++s)
        for (std::size_t i = s; i + (stages - s) <= units_; ++i)
            for (std::size_t j = i + 1; j + (stages - s - 1) <= units_; ++j) {
                const Bounds::StagePasses& p = passes(static_cast<int>(s), i, j);
                forward[s + 1][j] = std::min(forward[s + 1][j], forward[s][i] + p.forward.value);
                backward[s + 1][j] = std::min(backward[s + 1][j], backward[s][i] + p.backward.value);
            }
    needs_.assign(stages + 1, std::vector<double>(units_ + 1, infinity));
    needs_[stages][units_] = 0;
    for (std::size_t s = stages; s-- > 0;)
        for (std::size_t i = s; i + (stages - s) <= units_; ++i)
            for (std::size_t j = i + 1; j + (stages - s - 1) <= units_; ++j) {
                if (s + 1 == stages && j != units_) continue;
                const Bounds::StagePasses& p = passes(static_cast<int>(s), i, j);
                const double rank =
                    forward[s][i] + std::max(p.busy.value, p.host.value) +
                    std::max(0.0, backward[s][i] - p.weight.value);
                needs_[s][i] = std::min(needs_[s][i], std::max(rank, needs_[s + 1][j]));
            }
}

void PartitionSpace::visit(int stage, std::size_t begin, double forward, double backward) {
    if (visited_ > most_) return;
    const int left = order_->stages - stage - 1;
    const auto s = static_cast<std::size_t>(stage);
    Rank& rank = ranks_[static_cast<std::size_t>(schedule::rank_of_stage(*order_, stage))];
    const Rank before = rank;
    first_units_.push_back(static_cast<std::int32_t>(begin));
    const std::size_t first_end = left == 0 ? units_ : begin + 1;
    for (std::size_t end = first_end; end + static_cast<std::size_t>(left) <= units_; ++end) {
        const Bounds::StagePasses& p = passes(stage, begin, end);
        rank = before;
        if (!rank.is_seen) {
            rank.is_seen = true;
            rank.fill = forward;
            rank.drain = backward;
        }
        rank.busy += p.busy.value;
        rank.weight += p.weight.value;
        rank.host += p.host.value;
        if (rank.fill + std::max(rank.busy, rank.host) >= limit_) continue;
        if (!needs_.empty() && (rank.bound() >= limit_ || needs_[s + 1][end] >= limit_)) continue;
        if (left > 0) {
            if (++visited_ > most_) break;
            visit(stage + 1, end, forward + p.forward.value, backward + p.backward.value);
            continue;
        }
        const bool is_beaten = std::any_of(ranks_.begin(), ranks_.end(),
                                           [&](const Rank& r) { return r.bound() >= limit_; });
        if (!is_beaten) found_.push_back({core::Seconds(0), first_units_});
    }
    rank = before;
    first_units_.pop_back();
}

std::optional<std::vector<PartitionOption>> PartitionSpace::below(core::Seconds limit, std::size_t most) {
    if (!order_ || order_->directions > 1) return std::nullopt;
    if (units_ < static_cast<std::size_t>(order_->stages)) return std::vector<PartitionOption>();
    limit_ = limit.value / Bounds::claimed_share;
    most_ = most;
    visited_ = 0;
    found_.clear();
    first_units_.clear();
    ranks_.assign(static_cast<std::size_t>(order_->ranks), {});
    needs_.clear();
    if (order_->stages == order_->ranks) {
        tabulate_needs();
        if (needs_[0][0] >= limit_) return std::vector<PartitionOption>();
    }
    visit(0, 0, 0, 0);
    if (visited_ > most_) return std::nullopt;
    for (PartitionOption& option : found_) option.bound = bound_of(option.first_units);
    std::erase_if(found_, [&](const PartitionOption& option) { return option.bound >= limit; });
    std::stable_sort(found_.begin(), found_.end(),
                     [](const PartitionOption& a, const PartitionOption& b) { return a.bound < b.bound; });
    return std::move(found_);
}

}  // namespace planner
