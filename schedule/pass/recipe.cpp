#include "schedule/pass/recipe.h"

#include <algorithm>

#include "core/index/integers.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/recompute.h"

namespace schedule {

using model::OperatorKind;
using model::OperatorRange;

RecipeMaker::RecipeMaker(const model::ModelGraph& graph, const Plan& plan, std::int32_t stage_index,
                         const StageInfo& stage, const RankBuckets& buckets)
    : graph_(graph),
      plan_(plan),
      context_(plan.cost_context()),
      stage_index_(stage_index),
      stage_(stage),
      buckets_(buckets) {}

Step RecipeMaker::collective(std::int32_t i, CollectiveKind kind, PayloadKind payload, ComputePhase phase,
                             core::Bytes bytes, GroupKind group) const {
    Step step;
    step.kind = Step::Kind::collective;
    step.phase = phase;
    step.operators = {i, i + 1};
    step.collective = kind;
    step.group = group;
    step.payload = payload;
    step.bytes = bytes;
    return step;
}

namespace {

void append_compute(std::vector<Step>& steps, OperatorRange range, ComputePhase phase,
                    std::vector<std::int32_t> begins = {}) {
    if (range.size() <= 0) return;
    Step step;
    step.phase = phase;
    step.operators = range;
    step.begins = std::move(begins);
    steps.push_back(std::move(step));
}

}  // namespace

// Buckets with sharded parameters that a unit reads.
std::vector<std::int32_t> RecipeMaker::gathers_of(OperatorRange unit) const {
    std::vector<std::int32_t> gathers;
    if (!plan_.shards(Sharding::parameters)) return gathers;
    const std::int32_t unit_index = op(unit.begin).unit;
    for (const std::int32_t b : core::indices(buckets_.uses))
        for (const BucketUse& use : buckets_.uses[b])
            if (buckets_.buckets[b].pieces > 1 && use.stage == stage_index_ &&
                std::binary_search(use.units.begin(), use.units.end(), unit_index))
                gathers.push_back(b);
    return gathers;
}

// ... that gradients of its weights read.
std::vector<std::int32_t> RecipeMaker::gathers_for_weight(OperatorRange unit) const {
    std::vector<std::int32_t> gathers;
    for (const std::int32_t bucket : gathers_of(unit)) {
        const std::vector<model::ParameterId>& held = buckets_.buckets[bucket].parameters;
        bool is_read = false;
        for (std::int32_t i = unit.begin; i < unit.end; ++i)
            for (const model::ParameterId parameter : op(i).parameters)
                is_read = is_read || (model::weight_gradients_read_parameters(op(i)) &&
                                      std::find(held.begin(), held.end(), parameter) != held.end());
        if (is_read) gathers.push_back(bucket);
    }
    return gathers;
}

void RecipeMaker::append_forward(std::vector<Step>& steps, OperatorRange range, ComputePhase phase) const {
    const bool is_parallel = context_.tensor_parallel > 1;
    std::int32_t begin = range.begin;
    for (std::int32_t i = range.begin; i < range.end; ++i) {
        if (model::exchanges_routed_tokens(op(i), context_)) {
            append_compute(steps, {begin, i + 1}, phase);
            steps.push_back(collective(i, CollectiveKind::all_to_all, PayloadKind::activation, phase,
                                       model::exchanged_bytes(graph_, op(i), context_), GroupKind::expert));
            begin = i + 1;
            continue;
        }
        if (model::gathers_keys(op(i), context_)) {
            append_compute(steps, {begin, i}, phase);
            steps.push_back(collective(i, CollectiveKind::all_gather, PayloadKind::activation, phase,
                                       model::gathered_key_bytes(graph_, op(i), context_),
                                       GroupKind::context));
            begin = i;
            continue;
        }
        if (!is_parallel) continue;
        const bool is_enter = model::gathers_tokens(op(i), context_);
        const bool is_exit = op(i).kind == OperatorKind::parallel_exit;
        const bool is_split_loss = op(i).kind == OperatorKind::loss_statistics &&
                                   graph_.tensor(op(i).output).split == model::TensorSplit::partial;
        if (!is_enter && !is_exit && !is_split_loss) continue;
        append_compute(steps, {begin, is_split_loss ? i + 1 : i}, phase);
        if (is_enter)
            steps.push_back(
                collective(i, CollectiveKind::all_gather, PayloadKind::activation, phase, output_bytes(i)));
        else if (is_exit && context_.sequence_parallel)
            steps.push_back(collective(i, CollectiveKind::reduce_scatter, PayloadKind::activation, phase,
                                       input_bytes(i)));
        else if (is_exit)
            steps.push_back(
                collective(i, CollectiveKind::all_reduce, PayloadKind::activation, phase, output_bytes(i)));
        else
            steps.push_back(collective(i, CollectiveKind::all_gather, PayloadKind::activation, phase,
                                       output_bytes(i) * context_.tensor_parallel));
        begin = i + 1;
    }
    append_compute(steps, {begin, range.end}, phase);
}

void RecipeMaker::append_backward(std::vector<Step>& steps, OperatorRange unit, ComputePhase phase,
                                  const Reductions& reductions, const Reductions& begins) const {
    const bool is_parallel = context_.tensor_parallel > 1, is_sequence_parallel = context_.sequence_parallel;
    const bool has_input_part = phase != ComputePhase::backward_weight,
               has_weight_part = phase != ComputePhase::backward_input;
    std::int32_t end = unit.end;
    std::vector<std::int32_t> begun;
    std::vector<std::int32_t> gathered;  // enters whose output is there
    const auto flush = [&](std::int32_t begin) {
        append_compute(steps, {begin, end}, phase, begun);
        if (end > begin) begun.clear();
        end = begin;
    };
    for (std::int32_t i = unit.end - 1; i >= unit.begin; --i) {
        const model::Operator& current = op(i);
        const std::int32_t within = i - stage_.operators.begin;
        if (has_input_part && model::gathers_keys(op(i), context_)) {
            flush(i + 1);
            steps.push_back(
                collective(i, CollectiveKind::all_gather, PayloadKind::activation, ComputePhase::recompute,
                           model::gathered_key_bytes(graph_, current, context_), GroupKind::context));
        }
        if (has_input_part && model::exchanges_routed_tokens(op(i), context_)) {
            flush(i + 1);
            steps.push_back(collective(i, CollectiveKind::all_to_all, PayloadKind::activation_gradient, phase,
                                       model::exchanged_bytes(graph_, current, context_), GroupKind::expert));
        }
        if (has_input_part && model::sums_choices(current, context_)) {
            flush(i + 1);
            steps.push_back(collective(i, CollectiveKind::all_reduce, PayloadKind::activation_gradient, phase,
                                       model::choices_bytes(current), GroupKind::context));
        }
        if (has_input_part && is_recomputed(current, plan_.recompute)) {
            flush(i + 1);
            append_compute(steps, {i, i + 1}, ComputePhase::recompute);
        }
        // The weight gradient needs what the enter gathered; only its share was kept.
        for (const model::TensorId tensor : current.inputs) {
            const std::int32_t producer = graph_.tensor(tensor).producer.index;
            if (!has_weight_part || !model::gathers_tokens(op(producer), context_)) continue;
            // Not where it keeps a copy of its own: a scaled input.
            const std::vector<model::TensorId> read =
                model::saved_for_backward(graph_, model::OperatorId(i), context_).tensors;
            if (std::find(read.begin(), read.end(), model::storage_of(graph_, tensor)) == read.end())
                continue;
            if (std::find(gathered.begin(), gathered.end(), producer) != gathered.end()) continue;
            gathered.push_back(producer);
            flush(i + 1);
            Step step = collective(producer, CollectiveKind::all_gather, PayloadKind::activation,
                                   ComputePhase::recompute, output_bytes(producer));
            step.starts_early = true;
            steps.push_back(std::move(step));
        }
        if (!begins.empty()) begun.insert(begun.end(), begins[within].begin(), begins[within].end());
        if (has_input_part && model::gathers_keys(op(i), context_)) {
            flush(i);
            steps.push_back(collective(i, CollectiveKind::reduce_scatter, PayloadKind::activation_gradient,
                                       phase, model::gathered_key_bytes(graph_, current, context_),
                                       GroupKind::context));
        }
        if (is_parallel && has_input_part) {
            const bool is_enter = current.kind == OperatorKind::parallel_enter,
                       is_exit = current.kind == OperatorKind::parallel_exit && is_sequence_parallel;
            if (is_enter || is_exit) {
                flush(i + 1);
                const CollectiveKind kind = is_exit                ? CollectiveKind::all_gather
                                            : is_sequence_parallel ? CollectiveKind::reduce_scatter
                                                                   : CollectiveKind::all_reduce;
                steps.push_back(collective(i, kind, PayloadKind::activation_gradient, phase,
                                           is_exit ? input_bytes(i) : output_bytes(i)));
                end = i;
            }
        }
        if (!reductions.empty() && !reductions[within].empty()) {
            flush(i);
            for (const std::int32_t bucket : reductions[within]) {
                Step step;
                step.kind = Step::Kind::reduce;
                step.phase = phase;
                step.bucket = bucket;
                steps.push_back(std::move(step));
            }
        }
    }
    flush(unit.begin);
}

Step RecipeMaker::mark(Step::Kind kind, std::size_t unit) const {
    Step step;
    step.kind = kind;
    step.unit = static_cast<std::int32_t>(unit);
    return step;
}

Recipe RecipeMaker::forward() const {
    Recipe recipe(1);
    const bool marks = plan_.offload != Offload::none;
    const std::vector<OperatorRange> units = units_of(graph_, stage_.operators);
    for (std::size_t u = 0; u < units.size(); ++u) {
        const bool is_sharded = plan_.shards(Sharding::parameters);
        if (!is_sharded && !marks) continue;
        if (is_sharded) {
            std::vector<std::int32_t> gathers = gathers_of(units[u]);
            if (!recipe.back().steps.empty()) recipe.emplace_back();
            recipe.back().gathers = std::move(gathers);
        }
        if (marks) recipe.back().steps.push_back(mark(Step::Kind::unit, u));
        append_forward(recipe.back().steps, units[u], ComputePhase::forward);
        if (marks) recipe.back().steps.push_back(mark(Step::Kind::store, u));
    }
    if (!plan_.shards(Sharding::parameters) && !marks)
        append_forward(recipe.back().steps, stage_.operators, ComputePhase::forward);
    return recipe;
}

Recipe RecipeMaker::backward(ComputePhase phase, const Reductions& reductions,
                             const Reductions& begins) const {
    const bool has_input_part = phase != ComputePhase::backward_weight;
    const std::vector<OperatorRange> units = units_of(graph_, stage_.operators);
    const auto gathers = [&](OperatorRange unit) {
        return has_input_part ? gathers_of(unit) : gathers_for_weight(unit);
    };
    const bool is_sharded =
        plan_.shards(Sharding::parameters) &&
        (has_input_part ||
         std::any_of(units.begin(), units.end(), [&](OperatorRange unit) { return !gathers(unit).empty(); }));
    const auto runs_again = [&](OperatorRange unit) {
        return has_input_part && is_recomputed(graph_, {"", unit}, plan_.recompute);
    };
    const bool marks = plan_.offload != Offload::none;
    Recipe recipe(1);
    OperatorRange open{stage_.operators.end, stage_.operators.end};  // units that need no cut between them
    const auto flush = [&] {
        if (open.size() > 0) append_backward(recipe.back().steps, open, phase, reductions, begins);
        open.end = open.begin;
    };
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
        if (is_sharded) {
            flush();
            if (!recipe.back().steps.empty()) recipe.emplace_back();
            recipe.back().gathers = gathers(*unit);
        }
        if (marks) {
            flush();
            recipe.back().steps.push_back(mark(Step::Kind::unit, units.rend() - unit - 1));
        }
        if (runs_again(*unit)) {
            flush();
            append_forward(recipe.back().steps, *unit, ComputePhase::recompute);
            append_backward(recipe.back().steps, *unit, phase, reductions, begins);
            open = {unit->begin, unit->begin};
        } else {
            open.begin = unit->begin;
        }
    }
    flush();
    return recipe;
}

}  // namespace schedule
