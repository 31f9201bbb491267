#include "exec/checkpoint/training_state.h"

#include <algorithm>
#include <tuple>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/runtime/parameters.h"
#include "exec/weights/initial_weights.h"

namespace exec {

namespace {

bool is_first_copy(const schedule::Program& program, const model::Parameter& parameter,
                   const schedule::RankCoordinates& coordinates) {
    const schedule::Plan& plan = program.plan;
    // Shard groups and those of experts are consecutive members of a data group; without sharding every
    // replica has all.
    const int degree = plan.shards(schedule::Sharding::optimizer) ? plan.effective_shard_degree() : 1;
    return coordinates.data < (parameter.is_expert ? std::max(degree, plan.layout.expert) : degree) &&
           (coordinates.tensor == 0 || parameter.split_dimension.has_value());
}

// Arrays put together from runs of elements. What is there already is left out: a tied parameter may lie in
// two buckets of a rank.
class RecordCollector {
public:
    void add(const model::Parameter& parameter, StateKind kind, std::int64_t first,
             std::span<const float> values) {
        const auto [place, is_new] = places_.try_emplace({parameter.name, kind}, records_.size());
        if (is_new) records_.push_back({parameter.name, kind, parameter.shape, {}, {}});
        StateRecord& record = records_[place->second];
        const bool is_behind =
            record.ranges.empty() || record.ranges.back().first + record.ranges.back().count <= first;
        if (is_behind) append(record, first, values);
        else insert(record, first, values);
    }
    std::vector<StateRecord> take() { return std::move(records_); }

private:
    static void append(StateRecord& record, std::int64_t first, std::span<const float> values) {
        const auto count = std::ssize(values);
        if (!record.ranges.empty() && record.ranges.back().first + record.ranges.back().count == first)
            record.ranges.back().count += count;
        else record.ranges.push_back({first, count});
        record.values.insert(record.values.end(), values.begin(), values.end());
    }
    // Somewhere before the record's last element.
    static void insert(StateRecord& record, std::int64_t first, std::span<const float> values) {
        StateRecord merged{record.parameter, record.kind, record.shape, {}, {}};
        const std::int64_t end = first + std::ssize(values);
        std::int64_t next = first, at = 0;  // of the values; of the record
        const auto add_until = [&](std::int64_t limit) {
            const std::int64_t until = std::min(limit, end);
            if (next < until) append(merged, next, values.subspan(next - first, until - next));
            next = std::max(next, until);
        };
        for (const ElementRange& range : record.ranges) {
            add_until(range.first);
            append(merged, range.first, std::span(record.values).subspan(at, range.count));
            at += range.count;
            next = std::max(next, range.first + range.count);
        }
        add_until(end);
        record = std::move(merged);
    }

    std::vector<StateRecord> records_;
    std::map<std::pair<std::string, StateKind>, std::size_t> places_;
};

}  // namespace

StateNeeds needs_of(const schedule::Program& program, const model::ModelGraph& graph, int rank) {
    StateNeeds needs;
    const schedule::Plan& plan = program.plan;
    const ParameterShare share = share_of(plan.layout, schedule::coordinates_of(plan.layout, rank));
    for (const schedule::ParameterBucket& bucket : program.classes[program.class_of_rank[rank]].buckets) {
        const bool is_divided = plan.shards(schedule::Sharding::optimizer) && bucket.pieces > 1;
        const auto padded = static_cast<std::int64_t>(bucket.padded_elements),
                   piece = is_divided ? padded / bucket.pieces : padded,
                   begin = is_divided ? piece_of(plan, bucket, rank) * piece : 0;
        for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
            const model::Parameter& parameter = graph.parameter(bucket.parameters[i]);
            const auto offset = static_cast<std::int64_t>(bucket.offsets[i]);
            for (const ElementRun& run : element_runs(parameter, share)) {
                needs[{parameter.name, StateKind::value}].push_back({run.global, run.count});
                const std::int64_t low = std::max(run.local, begin - offset),
                                   high = std::min(run.local + run.count, begin + piece - offset);
                if (low >= high) continue;
                for (const StateKind kind : {StateKind::first_moment, StateKind::second_moment})
                    needs[{parameter.name, kind}].push_back({run.global + low - run.local, high - low});
            }
        }
    }
    for (auto& [key, ranges] : needs)
        std::sort(ranges.begin(), ranges.end(),
                  [](const ElementRange& a, const ElementRange& b) { return a.first < b.first; });
    return needs;
}

std::vector<StateRecord> records_of(const schedule::Program& program, const model::ModelGraph& graph,
                                    int rank, const std::vector<BucketState>& buckets) {
    RecordCollector records;
    const schedule::RankCoordinates coordinates = schedule::coordinates_of(program.plan.layout, rank);
    for (const BucketState& bucket : buckets)
        for (const BucketState::Trained& own : bucket.trained()) {
            const model::Parameter& parameter = graph.parameter(own.parameter);
            if (!is_first_copy(program, parameter, coordinates)) continue;
            const std::int64_t last = own.first + std::ssize(own.values);
            for (const ElementRun& run :
                 element_runs(parameter, share_of(program.plan.layout, coordinates))) {
                const std::int64_t begin = std::max(run.local, own.first),
                                   end = std::min(run.local + run.count, last);
                if (begin >= end) continue;
                const auto add = [&](StateKind kind, const std::vector<float>& values) {
                    if (values.empty()) return;
                    records.add(parameter, kind, run.global + begin - run.local,
                                std::span(values).subspan(begin - own.first, end - begin));
                };
                add(StateKind::value, own.values);
                add(StateKind::first_moment, own.first_moment);
                add(StateKind::second_moment, own.second_moment);
            }
        }
    return records.take();
}

void restore(const Checkpoint& checkpoint, const schedule::Program& program, const model::ModelGraph& graph,
             int rank, std::vector<BucketState>& buckets) {
    const ParameterShare share =
        share_of(program.plan.layout, schedule::coordinates_of(program.plan.layout, rank));
    for (BucketState& bucket : buckets)
        bucket.restore([&](model::ParameterId id, StateKind kind, std::int64_t first, std::span<float> into) {
            const model::Parameter& parameter = graph.parameter(id);
            const std::int64_t last = first + std::ssize(into);
            for (const ElementRun& run : element_runs(parameter, share)) {
                const std::int64_t begin = std::max(run.local, first),
                                   end = std::min(run.local + run.count, last);
                if (begin >= end) continue;
                const std::span<float> part = into.subspan(begin - first, end - begin);
                if (!checkpoint.read(parameter.name, kind, run.global + begin - run.local, part))
                    throw core::MachineError(fmt::format("the checkpoint of step {} has not all of {}",
                                                         checkpoint.manifest().step, parameter.name));
            }
        });
}

void begin_with(const InitialWeights& weights, const schedule::Program& program,
                const model::ModelGraph& graph, int rank, std::vector<BucketState>& buckets) {
    const ParameterShare share =
        share_of(program.plan.layout, schedule::coordinates_of(program.plan.layout, rank));
    for (BucketState& bucket : buckets)
        bucket.restore([&](model::ParameterId id, StateKind kind, std::int64_t first, std::span<float> into) {
            if (kind != StateKind::value) return;  // zero at the beginning
            for (const ElementRun& run : element_runs(graph.parameter(id), share)) {
                const std::int64_t begin = std::max(run.local, first),
                                   end = std::min(run.local + run.count, first + std::ssize(into));
                if (begin < end)
                    weights.read(id, run.global + begin - run.local,
                                 into.subspan(begin - first, end - begin));
            }
        });
}

StateDifference state_difference(const Checkpoint& checkpoint, const schedule::Plan& plan,
                                 const model::ModelGraph& graph) {
    StateDifference result;
    const double states = schedule::state_bytes_per_parameter(plan.optimizer).value / 4;
    const std::tuple<StateKind, const char*, bool> kinds[] = {
        {StateKind::value, "values", true},
        {StateKind::first_moment, "first moments (momentum)", states > 0},
        {StateKind::second_moment, "second moments", states > 1}};
    for (const auto& [kind, words, is_needed] : kinds)
        for (const model::Parameter& parameter : graph.parameters) {
            const bool has = checkpoint.has(parameter.name, kind);
            if (has == is_needed) continue;
            std::string& list = is_needed ? result.missing : result.beyond;
            list += fmt::format("{}{} of {}", list.empty() ? "" : ", ", words, parameter.name);
            break;  // one parameter stands for all
        }
    return result;
}

std::string recipe_of(const schedule::Program& program, const model::ModelGraph& graph,
                      const LearningRateSchedule& rates) {
    const schedule::Plan& plan = program.plan;
    const schedule::Optimizer& o = plan.optimizer;
    std::string text = fmt::format("batch {}", plan.global_batch());
    if (!schedule::trains(program)) return text + ", evaluated";
    text += fmt::format(", {}, learning rate {}, weight decay {}", schedule::name_of(o.kind), o.learning_rate,
                        o.weight_decay);
    if (!rates.is_constant()) text += ", rate " + rates.describe();
    if (o.kind == schedule::OptimizerKind::sgd) text += fmt::format(", momentum {}", o.momentum);
    else text += fmt::format(", betas {} and {}, epsilon {}", o.beta1, o.beta2, o.epsilon);
    if (o.gradient_clipping > 0) text += fmt::format(", gradients clipped at {}", o.gradient_clipping);
    const schedule::Precision& precision = plan.precision;
    text += fmt::format(", {} with parameters in {}{} and gradients in {}", core::name_of(precision.compute),
                        core::name_of(precision.parameters),
                        precision.has_master_parameters ? " beside fp32" : "",
                        core::name_of(precision.gradients));
    if (program.micro_batches_per_update > 0) {
        text += fmt::format(", an update every {} of {} micro-batches of stages from units",
                            program.micro_batches_per_update, plan.micro_batches);
        for (const std::int32_t unit : plan.partition.first_units) text += fmt::format(" {}", unit);
    }
    const bool has_mixture =
        std::any_of(graph.operators.begin(), graph.operators.end(),
                    [](const model::Operator& op) { return op.kind == model::OperatorKind::router; });
    // "Pieces" are passes: checkpoints hold the line as it is.
    if (has_mixture)
        text += fmt::format(", routed {} at once in {} pieces over {} ranks", plan.micro_batch,
                            program.passes_per_micro_batch(), plan.layout.context);
    return text;
}

std::string degrees_in_words(const schedule::Plan& plan) {
    std::string text = fmt::format("pipeline {} x data {} x tensor {}", plan.layout.pipeline,
                                   plan.layout.replicas(), plan.layout.tensor);
    if (plan.layout.context > 1) text += fmt::format(" x context {}", plan.layout.context);
    if (plan.layout.expert_ranks() > 1) text += fmt::format(", experts over {}", plan.layout.expert_ranks());
    return text + fmt::format(", sharding {}", schedule::name_of(plan.sharding));
}

}  // namespace exec
