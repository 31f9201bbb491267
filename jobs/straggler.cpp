#include "jobs/straggler.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>

#include "core/diagnostics.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/planned_graph.h"
#include "sim/cost/contention.h"
#include "sim/cost/framework/framework_lookup.h"
#include "sim/cost/pricing.h"
#include "sim/engine/overlapped_compute.h"
#include "sim/engine/simulate.h"

namespace jobs {

namespace {

// Instructions of all ranks together; some ten seconds of simulation.
constexpr double most_instructions = 3e7;

// A priced Program in which single ranks can be made slow.
class SlowedProgram {
public:
    SlowedProgram(schedule::Program program, sim::CostModels& costs, const sim::Scenario& scenario,
                  const sim::CostConstants& constants)
        : program_(std::move(program)), durations_(sim::price(program_, costs).durations) {
        const cluster::DeviceSpec& device = scenario.cluster.instance.device;
        options_.is_folded = false;
        options_.has_concurrent_streams = device.has_concurrent_streams;
        options_.keeps_spans = false;
        options_.keeps_memory_samples = false;
        options_.tracks_memory = false;
        options_.blocks_on_transfers =
            sim::framework_traits(scenario.file.plan.framework, constants).blocks_on_transfers;
        if (!device.has_concurrent_streams || program_.plan.layout.ranks() == 1) return;
        // As in sim::evaluate: compute pays for the collectives that run beside it, then links are shared.
        sim::Contention folded = sim::find_contention(program_, costs.communication, true);
        if (constants.overlap_loss > 0 && sim::has_collectives_beside_compute(program_)) {
            sim::SimulateOptions first = options_;
            first.is_folded = true;
            first.keeps_spans = true;
            first.contention = &folded;
            sim::slow_overlapped_compute(program_, sim::simulate(program_, durations_, first),
                                         constants.overlap_loss, device, costs.communication, durations_);
        }
        contention_ = sim::find_contention(program_, costs.communication, false);
    }

    core::Seconds step() const { return step_of(program_, durations_, contention_); }

    core::Seconds step_with(int rank, int ranks_of_node, const StragglerRule& rule) const {
        schedule::Program program = program_;
        sim::Durations durations = durations_;
        sim::Contention contention = contention_;
        const int node = rank / ranks_of_node;
        const int ranks = int(program.class_of_rank.size());
        for (int r = 0; r < ranks; ++r) {
            const double slower_device = r == rank ? 1 / rule.device_speed.value_or(1) : 1;
            const double slower_network = r / ranks_of_node == node ? 1 / rule.network_speed.value_or(1) : 1;
            if (slower_device == 1 && slower_network == 1) continue;
            // The rank does what its class does, in a class of its own.
            const auto old = std::size_t(program.class_of_rank[std::size_t(r)]);
            program.class_of_rank[std::size_t(r)] = std::int32_t(program.classes.size());
            program.classes.push_back(program.classes[old]);
            durations.of.push_back(durations.of[old]);
            if (!contention.kind_of.empty()) contention.kind_of.push_back(contention.kind_of[old]);
            const schedule::RankProgram& list = program.classes.back();
            for (std::size_t i = 0; i < list.instructions.size(); ++i)
                durations.of.back()[i] *= factor(list.instructions[i], slower_device, slower_network);
        }
        return step_of(program, durations, contention);
    }

private:
    static double factor(const schedule::Instruction& instruction, double device, double network) {
        switch (instruction.kind) {
            case schedule::InstructionKind::compute:
            case schedule::InstructionKind::optimizer_step:
            case schedule::InstructionKind::zero_gradients:
            case schedule::InstructionKind::gradient_norm:
            case schedule::InstructionKind::update_norm:
            case schedule::InstructionKind::copy: return device;
            case schedule::InstructionKind::send:
            case schedule::InstructionKind::collective: return network;
            case schedule::InstructionKind::receive: return 1;
        }
        throw core::InternalError("broken promise: every kind of instruction has its place");
    }

    core::Seconds step_of(const schedule::Program& program, const sim::Durations& durations,
                          const sim::Contention& contention) const {
        sim::SimulateOptions options = options_;
        if (!contention.is_empty()) options.contention = &contention;
        return sim::simulate(program, durations, options).timeline.makespan;
    }

    schedule::Program program_;
    sim::Durations durations_;
    sim::Contention contention_;
    sim::SimulateOptions options_;
};

}  // namespace

std::optional<StragglerEffect> straggler_effect(const sim::Scenario& scenario, const StragglerRule& rule,
                                                core::Diagnostics& diagnostics) {
    schedule::Plan plan = scenario.file.plan;
    if (std::optional<schedule::Partition> partition = schedule::complete_partition(plan, scenario.graph))
        plan.partition = std::move(*partition);
    const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
    if (!order) return std::nullopt;
    const schedule::PlannedGraph graph(plan, scenario.graph);
    const sim::CostConstants constants;
    std::optional<sim::CostModels> costs =
        sim::make_cost_models(*graph, scenario.cluster, plan, diagnostics, constants);
    if (!costs) return std::nullopt;
    schedule::Program lowered =
        schedule::lower(plan, *graph, *order, {.has_optimizer = !order->is_forward_only});
    double instructions = 0;
    for (std::int32_t c : lowered.class_of_rank)
        instructions += double(lowered.classes[std::size_t(c)].instructions.size());
    if (instructions > most_instructions) {
        diagnostics.error({}, "job.stragglers",
                          "a straggler among " + std::to_string(plan.layout.ranks()) +
                              " ranks: every rank is simulated on its own, and these are too many",
                          "use fewer nodes or micro-batches to see its effect, and scale step_time by it");
        return std::nullopt;
    }
    const SlowedProgram program(std::move(lowered), *costs, scenario, constants);
    const core::Seconds undisturbed = program.step();
    const int ranks_of_node = scenario.cluster.ranks_per_node > 0 ? scenario.cluster.ranks_per_node
                                                                  : scenario.cluster.instance.devices;
    StragglerEffect effect;
    for (int p = 0; p < plan.layout.pipeline; ++p) {
        schedule::RankCoordinates where;
        where.pipeline = p;
        StragglerPlace place{schedule::rank_of(plan.layout, where), p, 1};
        place.ratio = program.step_with(place.rank, ranks_of_node, rule) / undisturbed;
        effect.places.push_back(place);
        if (p == 0 || place.ratio > effect.worst.ratio) effect.worst = place;
    }
    return effect;
}

Jitter jitter_of(int ranks, double deviation) {
    if (deviation <= 0 || ranks <= 1) return {1, std::max(deviation, 0.0)};
    // P(greatest <= x) = Phi(x)^n. Moments by the trapezoidal rule over the density's support: its error is
    // far below that of the normal law as a model.
    constexpr double widest = 10;
    constexpr int intervals = 20'000;
    const double width = 2 * widest / intervals;
    double mean = 0, square = 0, before = 0;
    for (int i = 0; i <= intervals; ++i) {
        const double x = -widest + width * i;
        const double normal = 0.5 * std::erfc(-x / std::numbers::sqrt2);
        const double distribution = std::pow(normal, double(ranks));
        const double middle = x - width / 2;
        mean += middle * (distribution - before);
        square += middle * middle * (distribution - before);
        before = distribution;
    }
    const double variance = std::max(square - mean * mean, 0.0);
    return {1 + deviation * mean, deviation * std::sqrt(variance)};
}

}  // namespace jobs
