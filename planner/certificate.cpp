#include "planner/certificate.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "core/random.h"
#include "model/model_graph.h"
#include "planner/search_space.h"
#include "schedule/plan/planned_graph.h"
#include "sim/cost/compute.h"
#include "sim/evaluate.h"

namespace planner {

namespace {

constexpr double rounding = 1e-9;  // share by which sums of one step may differ

class Checker {
public:
    Checker(const model::ModelGraph& graph, const std::vector<Target>& targets, const SearchRequest& request,
            const Claim& claim)
        : graph_(graph), targets_(targets), request_(request), claim_(claim) {}

    CertificateCheck run(std::size_t samples, std::uint64_t seed) {
        check_counts();
        check_plan();
        check_neighbours();
        check_samples(samples, seed);
        return std::move(check_);
    }

private:
    double value_of(std::size_t target, core::Seconds step, core::Bytes peak) const {
        switch (request_.objective) {
            case Objective::memory: return peak.value;
            case Objective::cost: return (cluster::price(targets_[target].cluster) * step).value;
            case Objective::speed:
            case Objective::time_to_train: return step.value;
        }
        throw core::InternalError("broken promise: every objective has a value");
    }
    bool is_allowed(std::size_t target, core::Seconds step) const {
        if (!request_.tokens) return true;
        const double tokens_a_step = static_cast<double>(request_.global_batch) *
                                     static_cast<double>(std::max<std::int64_t>(1, graph_.tokens_per_sample));
        const core::Seconds all = step * std::ceil(*request_.tokens / tokens_a_step);
        if (request_.deadline && all > *request_.deadline) return false;
        return !request_.budget || cluster::price(targets_[target].cluster) * all <= *request_.budget;
    }
    // Of the whole step; nothing where it does not fit, is not allowed or not run.
    std::optional<double> simulated(std::size_t target, const schedule::Plan& plan) const {
        const std::shared_ptr<const RunnablePlans>& runnable = targets_[target].runnable;
        if (runnable && runnable->takes && !runnable->takes(plan)) return std::nullopt;
        core::Diagnostics unneeded;
        const std::optional<sim::Evaluation> evaluation = sim::evaluate(
            graph_, targets_[target].cluster, plan, unneeded, {.constants = request_.constants});
        if (!evaluation || !evaluation->fits || !is_allowed(target, evaluation->step_time))
            return std::nullopt;
        return value_of(target, evaluation->step_time, evaluation->peak_memory);
    }
    // What nothing may be below.
    double floor() const { return claim_.is_proven ? claim_.value : claim_.lower_bound; }
    bool beats(double value) const { return value < floor() * (1 - rounding); }

    void check_counts();
    void check_plan();
    void check_neighbours();
    void check_samples(std::size_t samples, std::uint64_t seed);
    core::Seconds least_step(std::size_t target, const schedule::Plan& plan) const;

    const model::ModelGraph& graph_;
    const std::vector<Target>& targets_;
    const SearchRequest& request_;
    const Claim& claim_;
    std::vector<std::pair<std::size_t, schedule::Plan>> space_;
    CertificateCheck check_;
};

void Checker::check_counts() {
    for (std::size_t t = 0; t < targets_.size(); ++t)
        for (schedule::Plan& plan : legal_plans(graph_, targets_[t].cluster,
                                                {.global_batch = request_.global_batch,
                                                 .base = targets_[t].base,
                                                 .most_virtual_stages = request_.most_virtual_stages,
                                                 .offload = request_.offload,
                                                 .limits = request_.limits,
                                                 .runnable = targets_[t].runnable}))
            space_.emplace_back(t, std::move(plan));
    if (space_.size() != claim_.space)
        check_.violations.push_back(
            fmt::format("the space has {} plans, the certificate says {}", space_.size(), claim_.space));
    const std::size_t sum = claim_.evaluated + claim_.rejected + claim_.pruned + claim_.unvisited;
    if (sum != claim_.space)
        check_.violations.push_back(fmt::format(
            "{} plans are accounted for ({} simulated, {} rejected, {} excluded, {} not reached), not {}",
            sum, claim_.evaluated, claim_.rejected, claim_.pruned, claim_.unvisited, claim_.space));
    if (claim_.is_proven && claim_.lower_bound < claim_.value * (1 - rounding))
        check_.violations.push_back("what is proven has a gap");
    if (claim_.lower_bound > claim_.value * (1 + rounding))
        check_.violations.push_back("the lower bound is above the best value");
}

void Checker::check_plan() {
    const std::optional<double> value = simulated(claim_.target, claim_.plan);
    if (!value) check_.violations.push_back("the claimed plan does not fit, or breaks a constraint");
    else if (std::abs(*value - claim_.value) > rounding * claim_.value)
        check_.violations.push_back(
            fmt::format("the claimed plan simulates at {:.9g}, not {:.9g}", *value, claim_.value));
}

void Checker::check_neighbours() {
    const std::vector<std::int32_t>& cuts = claim_.plan.partition.first_units;
    const auto units = core::count_of(graph_.units);
    for (std::size_t c = 1; c < cuts.size(); ++c)
        for (const std::int32_t step : {-1, 1}) {
            schedule::Plan moved = claim_.plan;
            std::int32_t& cut = moved.partition.first_units[c];
            cut += step;
            const std::int32_t next = c + 1 < cuts.size() ? cuts[c + 1] : units;
            if (cut <= cuts[c - 1] || cut >= next) continue;
            ++check_.neighbours;
            const std::optional<double> value = simulated(claim_.target, moved);
            if (value && beats(*value))
                check_.violations.push_back(
                    fmt::format("with its cut {} at unit {} the claimed plan takes {:.9g}, below {:.9g}", c,
                                cut, *value, floor()));
        }
}

// Every rank computes its own part of every micro-batch: on average what the pipeline divides.
core::Seconds Checker::least_step(std::size_t target, const schedule::Plan& plan) const {
    const cluster::DeviceSpec& device = targets_[target].cluster.instance.device;
    if (!device.has_concurrent_streams) return core::Seconds(0);
    schedule::Plan whole = plan;
    whole.keep_sequences_whole();
    whole.schedule = "1f1b";
    core::Diagnostics unpriced;
    const schedule::PlannedGraph planned(whole, graph_);
    const auto compute = sim::ComputeCost::make(*planned, device, whole, unpriced, request_.constants);
    if (!compute) return core::Seconds(0);
    const model::OperatorRange all{0, core::count_of(graph_.operators)};
    const core::Seconds forward = compute->price(all, schedule::ComputePhase::forward).device,
                        backward = compute->price(all, schedule::ComputePhase::backward_input).device +
                                   compute->price(all, schedule::ComputePhase::backward_weight).device;
    // Bounds are of passes, whose fused kernels may save a little; a hundredth is more than they do.
    constexpr double claimed = 0.99;
    return (forward + backward) * (claimed * plan.micro_batches / plan.layout.pipeline);
}

void Checker::check_samples(std::size_t samples, std::uint64_t seed) {
    if (space_.empty()) return;
    core::Random random(seed);
    for (std::size_t i = 0; i < samples; ++i) {
        auto [target, plan] = space_[random.below(space_.size())];
        ++check_.sampled;
        if (request_.objective != Objective::memory && plan.passes_per_micro_batch() == 1) {
            const core::Seconds step = least_step(target, plan);
            if (value_of(target, step, {}) >= floor() || !is_allowed(target, step)) {
                ++check_.bounded;
                continue;
            }
        }
        const bool is_only = !plan.partition.first_units.empty();  // no other is run
        const std::optional<schedule::Partition> partition =
            sim::complete_partition(plan, graph_, targets_[target].cluster);
        if (!partition) continue;
        // With one stage a rank every partition is covered; of others the balanced one.
        plan.partition = *partition;
        const std::size_t stages = plan.partition.first_units.size();
        if (plan.virtual_stages == 1 && stages > 1 && !is_only) {
            const std::size_t c = 1 + random.below(stages - 1);
            std::vector<std::int32_t>& cuts = plan.partition.first_units;
            const std::int32_t moved = cuts[c] + (random.below(2) == 0 ? -1 : 1);
            const std::int32_t next = c + 1 < stages ? cuts[c + 1] : core::count_of(graph_.units);
            if (moved > cuts[c - 1] && moved < next) cuts[c] = moved;
        } else if (plan.virtual_stages > 1 && !is_only) {
            continue;
        }
        ++check_.simulated;
        const std::optional<double> value = simulated(target, plan);
        if (value && beats(*value))
            check_.violations.push_back(
                fmt::format("a plan of the space takes {:.9g}, below {:.9g}: {} x {} x {}, {}, partition {}",
                            *value, floor(), plan.layout.data, plan.layout.tensor, plan.layout.pipeline,
                            plan.schedule, fmt::join(plan.partition.first_units, ",")));
    }
}

}  // namespace

CertificateCheck check_claim(const model::ModelGraph& graph, const std::vector<Target>& targets,
                             const SearchRequest& request, const Claim& claim, std::size_t samples,
                             std::uint64_t seed) {
    return Checker(graph, targets, request, claim).run(samples, seed);
}

}  // namespace planner
