#include "schedule/pass/buckets.h"

#include <algorithm>
#include <array>

#include "core/index/integers.h"
#include "model/operators/cost.h"

namespace schedule {

using model::OperatorKind;

namespace {

struct ParameterUse {
    std::vector<BucketUse> stages;    // on this rank
    std::vector<std::int32_t> ranks;  // all pipeline ranks with a copy, where it has several
    core::OptionalIndex first_rank{};
    bool is_partial = false;
    bool is_expert = false;  // spread over ranks
};

// Does each tensor-parallel rank compute only a part of this replicated parameter's gradient? With sequence
// parallelism outside regions each rank sees its share of the tokens; the router of a mixture inside a region
// sees the part of the output gradient that this rank's experts contribute (see model/operator.h).
bool is_partial_over_tensor(const model::Operator& op, const model::Parameter& parameter, const Plan& plan) {
    if (plan.layout.tensor == 1 || parameter.split_dimension) return false;
    if (op.in_parallel_region) return parameter.has_partial_gradient;
    return plan.sequence_parallel;
}

// Nearly all parameters are on one rank, and every rank of a large model asks about all of them.
void add_rank(ParameterUse& use, std::int32_t rank) {
    if (!use.first_rank) use.first_rank = rank;
    if (*use.first_rank == rank) return;
    if (use.ranks.empty()) use.ranks.push_back(*use.first_rank);
    if (std::find(use.ranks.begin(), use.ranks.end(), rank) == use.ranks.end()) use.ranks.push_back(rank);
}

std::vector<ParameterUse> uses_of(const model::ModelGraph& graph, const Plan& plan,
                                  const std::vector<StageInfo>& stages, int rank) {
    std::vector<ParameterUse> uses(graph.parameters.size());
    for (const std::int32_t s : core::indices(stages))
        for (std::int32_t i = stages[s].operators.begin; i < stages[s].operators.end; ++i) {
            const model::Operator& op = graph.operators[i];
            for (const model::ParameterId id : op.parameters) {
                ParameterUse& use = uses[id.index];
                add_rank(use, stages[s].rank);
                use.is_expert = graph.parameter(id).is_expert && plan.layout.expert > 1;
                use.is_partial = use.is_partial || is_partial_over_tensor(op, graph.parameter(id), plan);
                if (stages[s].rank != rank) continue;
                if (use.stages.empty() || use.stages.back().stage != s) use.stages.push_back({s, i, i, {}});
                BucketUse& own = use.stages.back();
                own.highest_operator = i;
                if (own.units.empty() || own.units.back() != op.unit) own.units.push_back(op.unit);
            }
        }
    for (ParameterUse& use : uses) std::sort(use.ranks.begin(), use.ranks.end());
    return uses;
}

class Filler {
public:
    Filler(const model::ModelGraph& graph, const Plan& plan, RankBuckets& result)
        : graph_(graph), plan_(plan), context_(plan.cost_context()), result_(result) {}

    void add(model::ParameterId parameter, const ParameterUse& use) {
        if (is_open_ && plan_.fetches_parameters() && unit_ != use.stages[0].units[0]) close();
        if (!is_open_) {
            result_.buckets.emplace_back();
            result_.uses.emplace_back();
            index_ = result_.buckets.size() - 1;
            is_open_ = true;
            unit_ = use.stages[0].units[0];
        }
        ParameterBucket& bucket = result_.buckets[index_];
        bucket.stage = use.stages[0].stage;
        bucket.is_partial_over_tensor = use.is_partial;
        bucket.is_expert = use.is_expert;
        if (use.ranks.size() > 1) bucket.tied_ranks = use.ranks;
        bucket.parameters.push_back(parameter);
        bucket.offsets.push_back(bucket.elements);
        bucket.elements += model::parameter_elements(graph_, parameter, context_);
        std::vector<BucketUse>& uses = result_.uses[index_];
        if (uses.empty()) uses = use.stages;
        else merge(uses[0], use.stages[0]);
        // DDP closes a bucket once it has reached its size; sharded parameters stay together by unit.
        const core::Bytes size = bucket.elements * core::size_of(plan_.precision.gradients);
        if (!plan_.fetches_parameters() && size >= plan_.gradient_bucket) close();
    }
    void close() { is_open_ = false; }

private:
    static void merge(BucketUse& into, const BucketUse& other) {
        into.lowest_operator = std::min(into.lowest_operator, other.lowest_operator);
        into.highest_operator = std::max(into.highest_operator, other.highest_operator);
        std::vector<std::int32_t> units;
        std::set_union(into.units.begin(), into.units.end(), other.units.begin(), other.units.end(),
                       std::back_inserter(units));
        into.units = std::move(units);
    }

    const model::ModelGraph& graph_;
    const Plan& plan_;
    const model::CostContext context_;
    RankBuckets& result_;
    bool is_open_ = false;
    std::size_t index_ = 0;
    std::int32_t unit_ = 0;
};

}  // namespace

RankBuckets buckets_of_rank(const model::ModelGraph& graph, const Plan& plan,
                            const std::vector<StageInfo>& stages, int rank, int directions) {
    const std::vector<ParameterUse> uses = uses_of(graph, plan, stages, rank);
    RankBuckets result;
    Filler whole(graph, plan, result), partial(graph, plan, result), of_experts(graph, plan, result),
        alone(graph, plan, result);
    // Bidirectional schedules: what only the copies of one stage use stays together. Their ranks name the
    // buckets in one order, that of the stages.
    const std::int32_t stages_of_copy = core::count_of(stages) / directions;
    const auto is_of_copies = [&](const ParameterUse& use) {
        if (directions == 1 || use.stages.size() != 1 || use.stages[0].units.size() != 1) return false;
        std::vector<std::int32_t> ranks;
        for (int d = 0; d < directions; ++d)
            ranks.push_back(stages[use.stages[0].stage % stages_of_copy + d * stages_of_copy].rank);
        std::sort(ranks.begin(), ranks.end());
        return ranks == use.ranks;
    };
    const auto is_alone = [&](const ParameterUse& use) {
        return (use.ranks.size() > 1 && !is_of_copies(use)) || use.stages.size() > 1 ||
               use.stages[0].units.size() > 1;
    };
    std::vector<std::size_t> order(stages.size());
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = i / directions + i % directions * stages_of_copy;
    for (const std::size_t s : order) {
        if (stages[s].rank != rank) continue;
        for (std::int32_t i = stages[s].operators.end - 1; i >= stages[s].operators.begin; --i) {
            const model::Operator& op = graph.operators[i];
            for (auto id = op.parameters.rbegin(); id != op.parameters.rend(); ++id) {
                const ParameterUse& use = uses[id->index];
                if (!is_alone(use) && use.stages[0].lowest_operator == i)
                    (use.is_expert ? of_experts : use.is_partial ? partial : whole).add(*id, use);
            }
        }
        whole.close();
        partial.close();
        of_experts.close();
    }
    for (const std::int32_t i : core::indices(uses)) {
        if (uses[i].stages.empty() || !is_alone(uses[i])) continue;
        alone.add(model::ParameterId(i), uses[i]);
        alone.close();
    }
    for (ParameterBucket& bucket : result.buckets) {
        bucket.pieces = plan.pieces(bucket.is_expert);
        bucket.padded_elements = (bucket.elements + bucket.pieces - 1) / bucket.pieces * bucket.pieces;
    }
    for (const std::int32_t b : core::indices(result.buckets)) {
        ParameterBucket& bucket = result.buckets[b];
        bucket.sums_on_host = plan.keeps_parameters_on_hosts() && result.uses[b].size() == 1 &&
                              bucket.tied_ranks.empty() && !bucket.is_partial_over_tensor;
    }
    return result;
}

}  // namespace schedule
