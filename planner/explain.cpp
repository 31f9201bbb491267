#include "planner/explain.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "schedule/plan/explicit_order.h"
#include "sim/cost/host_memory.h"

namespace planner {

namespace {

struct Part {
    const char* name;
    core::Seconds sim::Breakdown::* member;
};

constexpr Part parts[] = {
    {"compute", &sim::Breakdown::compute},
    {"recomputation", &sim::Breakdown::recompute},
    {"pipeline bubble", &sim::Breakdown::bubble},
    {"tensor-parallel communication", &sim::Breakdown::tensor_parallel},
    {"pipeline communication", &sim::Breakdown::pipeline},
    {"data-parallel communication", &sim::Breakdown::data_parallel},
    {"sharding communication", &sim::Breakdown::sharding},
    {"expert communication", &sim::Breakdown::expert},
    {"offload", &sim::Breakdown::offload},
    {"optimizer", &sim::Breakdown::optimizer},
    {"host dispatch", &sim::Breakdown::host},
};

}  // namespace

std::string bound_by(const sim::Evaluation& evaluation) {
    constexpr double full = 0.98;  // share of the memory from which a plan is bound by it
    constexpr double large = 0.1;  // share of the step from which a part beside compute binds it
    if (evaluation.peak_memory >= evaluation.available_memory * full) return "memory";
    const Part* largest = nullptr;
    for (const Part& part : parts) {
        if (part.member == &sim::Breakdown::compute) continue;
        if (!largest || evaluation.breakdown.*part.member > evaluation.breakdown.*(largest->member))
            largest = &part;
    }
    if (largest && evaluation.breakdown.*(largest->member) > evaluation.step_time * large)
        return largest->name;
    return "compute";
}

std::string context_text(const schedule::Plan& plan) {
    const bool divides = plan.layout.context > 1;
    const std::string_view how =
        divides && plan.context_communication == schedule::ContextCommunication::all_to_all ? " a2a"
        : divides && plan.context_communication == schedule::ContextCommunication::ring     ? " ring"
                                                                                            : "";
    return fmt::format("{}{}", plan.layout.context, how);
}

std::string describe(const schedule::Plan& plan) {
    std::string text =
        fmt::format("TP{} PP{} DP{}", plan.layout.tensor, plan.layout.pipeline, plan.layout.replicas());
    if (plan.layout.context > 1) text += " CP" + context_text(plan);
    if (plan.layout.expert_ranks() > 1) text += fmt::format(" EP{}", plan.layout.expert_ranks());
    if (plan.layout.spreads_experts_over_tensor()) text += " ETP1";
    if (plan.layout.pipeline > 1)
        text += fmt::format(" {}{}", schedule::schedule_label(plan.schedule),
                            plan.virtual_stages > 1 ? fmt::format(" x{}", plan.virtual_stages) : "");
    if (plan.passes_per_micro_batch() > 1)
        text += fmt::format(" in {} segments", plan.passes_per_micro_batch());
    if (plan.sharding != schedule::Sharding::none && plan.effective_shard_degree() > 1)
        text += fmt::format(", {} sharded over {}", schedule::name_of(plan.sharding),
                            plan.effective_shard_degree());
    if (plan.tensor_overlap > 1) text += fmt::format(", products in {} pieces", plan.tensor_overlap);
    text += fmt::format(", micro-batch {} x {}", plan.micro_batch, plan.micro_batches);
    if (plan.recompute != schedule::Recompute::none)
        text += fmt::format(", {} recomputation", schedule::recomputation_text(plan));
    if (plan.offload != schedule::Offload::none)
        text += fmt::format(", activations to {} and back {} units ahead",
                            plan.offload == schedule::Offload::host ? "the host" : "disk",
                            plan.activation_loading_horizon);
    if (plan.keeps_parameters_on_hosts()) text += ", parameters and optimizer on the hosts";
    else if (plan.updates_on_hosts()) text += ", optimizer on the hosts";
    return text;
}

namespace {

// What is compared, then the part of the step that makes it longer or shorter most.
std::string difference(const RankedPlan& plan, const RankedPlan& other, const char* who,
                       const std::vector<Target>& targets, Objective objective) {
    const sim::Evaluation &mine = plan.evaluation, &theirs = other.evaluation;
    std::string name = describe(other.plan);
    if (targets.size() > 1)
        name += fmt::format(" on {} x {}", targets[other.candidate].cluster.nodes,
                            targets[other.candidate].cluster.instance.name);
    std::string text = fmt::format("; {} ({}) ", who, name);
    const std::string steps =
        fmt::format("{} against {}", core::format(theirs.step_time), core::format(mine.step_time));
    if (objective == Objective::cost)
        text += fmt::format("costs {:.4g} USD a step against {:.4g}, and takes {}", other.value, plan.value,
                            steps);
    else if (objective == Objective::memory)
        text += fmt::format("needs {} against {}, and takes {}", core::format(theirs.peak_memory),
                            core::format(mine.peak_memory), steps);
    else text += "takes " + steps;
    const double sign = theirs.step_time >= mine.step_time ? 1 : -1;
    const auto by = [&](const Part& part) {
        return sign * (theirs.breakdown.*part.member - mine.breakdown.*part.member).value;
    };
    const Part* chief = &parts[0];
    for (const Part& part : parts)
        if (by(part) > by(*chief)) chief = &part;
    if (by(*chief) <= 0) return text;
    return text + fmt::format(", chiefly {}: {} against {}", chief->name,
                              core::format(theirs.breakdown.*(chief->member)),
                              core::format(mine.breakdown.*(chief->member)));
}

}  // namespace

std::string compare(const RankedPlan& plan, const RankedPlan* other, bool is_winner,
                    const std::vector<Target>& targets, Objective objective) {
    const sim::Evaluation& mine = plan.evaluation;
    std::string text =
        fmt::format("{:.0f} % of the step is {}", 100 * (mine.breakdown.compute / mine.step_time), "compute");
    const Part* largest = nullptr;
    for (const Part& part : parts)
        if (part.member != &sim::Breakdown::compute &&
            (!largest || mine.breakdown.*part.member > mine.breakdown.*(largest->member)))
            largest = &part;
    constexpr double worth_a_word = 0.005;  // share of the step
    if (mine.breakdown.*(largest->member) > mine.step_time * worth_a_word)
        text += fmt::format(", {:.1f} % {}", 100 * (mine.breakdown.*(largest->member) / mine.step_time),
                            largest->name);
    text +=
        fmt::format("; {} of {} used", core::format(mine.peak_memory), core::format(mine.available_memory));
    if (mine.host_memory.value > 0)
        text += fmt::format("; hosts hold up to {} of {} that the devices have no room for",
                            core::format(mine.host_memory), sim::what_is_offloaded(plan.plan));
    else if (plan.plan.offload == schedule::Offload::disk)
        text += "; disks hold activations that the devices have no room for";
    if (!other) return text + "; no other plan was kept";
    return text + difference(plan, *other, is_winner ? "the runner-up" : "the best", targets, objective);
}

}  // namespace planner
