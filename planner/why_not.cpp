#include "planner/why_not.h"

#include <algorithm>
#include <cmath>

#include "core/diagnostics.h"
#include "schedule/plan/plan_file.h"
#include "sim/uncertainty/responses.h"

namespace planner {

namespace {

using core::Value;

// Long steps follow from their steady state, exactly: mixtures of two plans are many.
constexpr int most_micro_batches = 32;

std::optional<sim::Evaluation> predict(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                       const schedule::Plan& plan, const sim::Posterior& posterior,
                                       core::Diagnostics& diagnostics) {
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(graph, cluster, plan, diagnostics,
                      {.most_micro_batches = most_micro_batches, .constants = posterior.cost_constants()});
    if (evaluation) sim::apply_site_effects(*evaluation, posterior);
    return evaluation;
}

// Plans between two of one global batch, as trees of the fields that are chosen.
class Mixtures {
public:
    Mixtures(const model::ModelGraph& graph, const cluster::Cluster& cluster, const schedule::Plan& plan,
             const schedule::Plan& best, const sim::Posterior& posterior)
        : graph_(graph), cluster_(cluster), posterior_(posterior), ends_{completed(plan), completed(best)} {}

    Value plan() const { return tree(ends_[0]); }
    Value best() const { return tree(ends_[1]); }

    // What a mixture does; nothing, with diagnostics, where it is not legal.
    std::optional<sim::Evaluation> evaluate(const Value& document, core::Diagnostics& diagnostics) const {
        const std::optional<schedule::Plan> plan = read(document, diagnostics);
        if (!plan) return std::nullopt;
        schedule::check_plan(*plan, graph_, std::max(cluster_.device_count(), ends_[0].layout.ranks()),
                             nullptr, diagnostics);
        if (diagnostics.has_errors()) return std::nullopt;
        return predict(graph_, cluster_, *plan, posterior_, diagnostics);
    }

private:
    schedule::Plan completed(schedule::Plan plan) const {
        if (const auto partition =
                sim::complete_partition(plan, graph_, cluster_, posterior_.cost_constants()))
            plan.partition = *partition;
        plan.partition.file.clear();
        if (plan.shard_degree == plan.layout.data) plan.shard_degree = 0;
        return plan;
    }

    bool have_one_number_of_ranks() const { return ends_[0].layout.ranks() == ends_[1].layout.ranks(); }
    bool have_one_number_of_stages() const { return ends_[0].stages() == ends_[1].stages(); }

    Value tree(const schedule::Plan& plan) const {
        Value table = schedule::to_value(plan);
        std::erase_if(table.members(), [&](const auto& member) {
            return (member.first == "data_parallel" && have_one_number_of_ranks()) ||
                   member.first == "micro_batches" ||
                   (member.first == "partition" && !have_one_number_of_stages());
        });
        Value document = Value::table();
        document["plan"] = std::move(table);
        return document;
    }

    std::optional<schedule::Plan> read(const Value& document, core::Diagnostics& diagnostics) const {
        Value table = *document.find("plan");
        const auto degree = [&](const char* key) {
            const Value* value = table.find(key);
            return value != nullptr ? value->integer() : 1;
        };
        const std::int64_t taken =
            degree("tensor_parallel") * degree("pipeline_parallel") * degree("context_parallel");
        const std::int64_t ranks = ends_[0].layout.ranks();
        const std::int64_t batch =
            std::int64_t{ends_[0].micro_batch} * ends_[0].micro_batches * ends_[0].layout.replicas();
        const std::int64_t replicas = have_one_number_of_ranks() ? ranks / taken : degree("data_parallel");
        const std::int64_t share = replicas * degree("micro_batch");
        if ((have_one_number_of_ranks() && ranks % taken != 0) || share == 0 || batch % share != 0) {
            diagnostics.error({}, "plan", "devices or batch do not divide");
            return std::nullopt;
        }
        table["data_parallel"] = replicas;
        table["micro_batches"] = batch / share;
        std::optional<schedule::Plan> plan = schedule::read_plan(table, nullptr, diagnostics);
        if (!plan) return std::nullopt;
        plan->optimizer = ends_[0].optimizer;
        if (plan->recompute != schedule::Recompute::full) plan->recompute_layers = 0;
        if (plan->recompute != schedule::Recompute::full ||
            std::ssize(plan->recompute_layers_by_stage) != plan->stages())
            plan->recompute_layers_by_stage = {};
        if (plan->recompute != schedule::Recompute::selective)
            plan->recompute_modules = schedule::Plan().recompute_modules;
        if (!have_one_number_of_stages())
            for (const schedule::Plan& end : ends_)
                if (end.stages() == plan->stages() && end.layout.pipeline == plan->layout.pipeline)
                    plan->partition = end.partition;
        return plan;
    }

    const model::ModelGraph& graph_;
    const cluster::Cluster& cluster_;
    const sim::Posterior& posterior_;
    const schedule::Plan ends_[2];
};

// Variance of log(step of a / step of b) on one installation: constants and site move both, each run has an
// own deviation.
std::optional<double> variance_of_ratio(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                        const schedule::Plan& a, const schedule::Plan& b, const WhyNot& why,
                                        const sim::Posterior& posterior) {
    if (a == b) return 0.0;
    const sim::ResponseOptions options{.constants = posterior.cost_constants(), .peak = {}};
    const auto of_a = sim::constant_responses(graph, cluster, a, options);
    const auto of_b = sim::constant_responses(graph, cluster, b, options);
    if (!of_a || !of_b) return std::nullopt;
    std::vector<double> difference = sim::whole_response(of_a->step, why.plan.breakdown);
    const std::vector<double> other = sim::whole_response(of_b->step, why.best.breakdown);
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= other[i];
    const std::vector<double> with = posterior.covariance.times(difference);
    double variance = 2 * posterior.step.row * posterior.step.row;
    for (std::size_t i = 0; i < difference.size(); ++i) variance += with[i] * difference[i];
    return variance;
}

std::optional<std::size_t> decisive_of(const WhyNot& why) {
    std::optional<std::size_t> found;
    const bool must_fit = why.verdict == Verdict::does_not_fit;
    for (std::size_t i = 0; i < why.changes.size(); ++i) {
        const PlanChange& change = why.changes[i];
        if (!change.step_time || !change.fits || (!must_fit && *change.step_time >= why.plan.step_time))
            continue;
        if (!found || *change.step_time < *why.changes[*found].step_time) found = i;
    }
    return found;
}

Verdict verdict_of(const WhyNot& why) {
    if (!why.plan.fits) return Verdict::does_not_fit;
    if (std::abs(why.difference_pct) <= why.error_pct) return Verdict::equal;
    return why.difference_pct > 0 ? Verdict::slower : Verdict::faster;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::does_not_fit: return "does not fit";
        case Verdict::slower: return "slower";
        case Verdict::equal: return "equal";
        case Verdict::faster: return "faster";
    }
    throw core::InternalError("broken promise: every verdict has a name");
}

std::optional<WhyNot> why_not(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                              const schedule::Plan& plan, const schedule::Plan& best,
                              const sim::Posterior& posterior, core::Diagnostics& diagnostics) {
    std::optional<sim::Evaluation> of_plan = predict(graph, cluster, plan, posterior, diagnostics);
    std::optional<sim::Evaluation> of_best = predict(graph, cluster, best, posterior, diagnostics);
    if (!of_plan || !of_best) return std::nullopt;
    WhyNot why;
    why.plan = std::move(*of_plan);
    why.best = std::move(*of_best);
    const Mixtures mixtures(graph, cluster, plan, best, posterior);
    const auto step_of = [&](const Value& document, core::Diagnostics& told) {
        const std::optional<sim::Evaluation> evaluation = mixtures.evaluate(document, told);
        return evaluation ? std::optional(evaluation->step_time) : std::nullopt;
    };
    const Value from = mixtures.plan();
    const std::optional<sim::Comparison> comparison =
        sim::compare(from, mixtures.best(), step_of, diagnostics);
    if (!comparison) return std::nullopt;
    why.is_exact = comparison->is_exact;
    for (const sim::ComparedPart& part : comparison->parts) {
        core::Diagnostics refused;
        const auto alone = mixtures.evaluate(sim::changed(from, part.keys), refused);
        PlanChange change;
        change.fields = part.keys;
        change.share = part.difference;
        if (alone) {
            change.step_time = alone->step_time;
            change.peak_memory = alone->peak_memory;
            change.fits = alone->fits;
        }
        for (sim::Difference& field : change.fields) field.key.erase(0, field.key.find('.') + 1);
        why.changes.push_back(std::move(change));
    }
    std::stable_sort(why.changes.begin(), why.changes.end(),
                     [](const PlanChange& a, const PlanChange& b) { return a.share < b.share; });
    why.difference_pct = 100 * (why.plan.step_time / why.best.step_time - 1);
    const std::optional<double> variance = variance_of_ratio(graph, cluster, plan, best, why, posterior);
    if (!variance) {
        diagnostics.error({}, "plan", "the error of the difference has no prediction",
                          "compare plans that smsim predicts with every constant in its range");
        return std::nullopt;
    }
    why.error_pct = 100 * std::expm1(posterior.step.factor_80 * std::sqrt(*variance));
    why.verdict = verdict_of(why);
    why.decisive = decisive_of(why);
    return why;
}

std::optional<MissingMemory> missing_memory(const sim::Evaluation& evaluation) {
    if (evaluation.fits) return std::nullopt;
    MissingMemory missing;
    const sim::ClassMemory* tightest = nullptr;
    for (const sim::ClassMemory& memory : evaluation.memory)
        if (tightest == nullptr || memory.peak > tightest->peak) tightest = &memory;
    if (tightest == nullptr || tightest->peak <= evaluation.available_memory) {
        missing.needed = evaluation.host_memory;
        missing.available = evaluation.available_host_memory.value_or(core::Bytes());
        return missing;
    }
    missing.pipeline_rank = tightest->pipeline;
    missing.needed = tightest->peak;
    missing.available = evaluation.available_memory;
    missing.held = {{"activations", tightest->activations}, {"parameters", tightest->parameters},
                    {"gradients", tightest->gradients},     {"optimizer state", tightest->optimizer},
                    {"workspace", tightest->workspace},     {"overhead", tightest->overhead}};
    std::stable_sort(missing.held.begin(), missing.held.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    return missing;
}

}  // namespace planner
