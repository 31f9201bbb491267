// Products in pieces beside their exchange on the clock: closed forms with durations by hand, and prices.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "core/diagnostics.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/partition.h"
#include "sim/cost/pricing.h"
#include "sim/engine/overlapped_compute.h"
#include "sim/engine/simulate.h"
#include "sim/report/trace.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

using core::Seconds;
using schedule::Instruction;
using schedule::InstructionKind;

schedule::Program program_of(schedule::Plan plan, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    plan.partition = *schedule::complete_partition(plan, graph);
    const auto order = schedule::make_schedule(plan, diagnostics);
    REQUIRE(order);
    return schedule::lower(plan, graph, *order);
}

struct Times {
    double product = 0, exchange = 0, weights = 0;
};

// A step in which nothing but the products that may run in pieces takes time, and their exchanges.
double makespan(int pieces, const Times& times) {
    schedule::Plan plan;
    plan.layout.tensor = 2;
    plan.micro_batches = 1;
    plan.tensor_overlap = pieces;
    const schedule::Program program = program_of(plan, load_graph("gpt-tiny"));
    sim::Durations durations;
    for (const schedule::RankProgram& list : program.classes) {
        std::vector<Seconds>& of = durations.of.emplace_back();
        for (const Instruction& i : list.instructions) {
            double time = 0;
            if (i.pieces > 1)
                time = is_of_weights(i)
                           ? times.weights
                           : (i.kind == InstructionKind::compute ? times.product : times.exchange) / i.pieces;
            of.push_back(Seconds(time));
        }
    }
    return sim::simulate(program, durations).timeline.makespan.value;
}

int layers() {
    int count = 0;
    for (const model::Unit& unit : load_graph("gpt-tiny").units) count += unit.name.starts_with("layers.");
    return count;
}

struct Priced {
    double step, compute, exchange;
    core::Flops flops;
};

// Llama 2 7B, by tensor parallelism over all devices.
Priced priced(int pieces, bool has_sequence_parallelism, const char* instance, int nodes) {
    core::Diagnostics diagnostics;
    const model::ModelGraph graph = load_graph("llama-2-7b");
    const cluster::Cluster cluster = nodes_of(instance, nodes);
    schedule::Plan plan;
    plan.layout.tensor = cluster.device_count();
    plan.micro_batch = 8;
    plan.micro_batches = 2;
    plan.sequence_parallel = has_sequence_parallelism;
    plan.tensor_overlap = pieces;
    if (cluster.instance.device.peak.count(core::DataType::bf16) == 0)
        plan.precision = {core::DataType::fp16, core::DataType::fp16, core::DataType::fp16, true};
    const schedule::Program program = program_of(plan, graph);
    auto costs = sim::make_cost_models(graph, cluster, plan, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(costs);
    const sim::PricedProgram prices = sim::price(program, *costs);
    Priced result{sim::simulate(program, prices.durations).timeline.makespan.value, 0, 0, {}};
    for (std::size_t n = 0; n < program.classes[0].instructions.size(); ++n) {
        const Instruction& i = program.classes[0].instructions[n];
        const double time = prices.durations.of[0][n].value;
        if (i.stream == schedule::Stream::compute) result.compute += time;
        else if (i.stream == schedule::Stream::tensor) result.exchange += time;
        if (i.kind == InstructionKind::compute)
            result.flops += costs->compute.price(i.operators, i.phase, i.piece, i.pieces).flops;
    }
    return result;
}

}  // namespace

TEST_CASE("a product and its exchange in n pieces last as the longer of both and one piece of the shorter") {
    // Forward: pieces of the longer follow one another; before the first exchange there is a piece of the
    // product, behind the last product a piece of the exchange. Backward the gradient of the weights follows
    // the product on its stream, and the step goes on when that and the last exchange are over.
    const int groups = 2 * layers();
    for (const int pieces : {2, 4, 8})
        for (const Times& t : {Times{8, 16, 0}, Times{16, 8, 0}, Times{8, 8, 8}, Times{8, 24, 32},
                               Times{8, 64, 8}, Times{8, 0, 8}}) {
            const double exchanged =
                t.exchange >= t.product ? t.product / pieces + t.exchange : t.product + t.exchange / pieces;
            const double backward = std::max(exchanged, t.product + t.weights);
            INFO(pieces << " pieces of " << t.product << ", " << t.exchange << ", weights " << t.weights);
            CHECK(makespan(pieces, t) == Approx(groups * (exchanged + backward)).epsilon(1e-12));
            CHECK(makespan(pieces, t) < groups * (2 * t.product + 2 * t.exchange + t.weights) + 1e-9);
        }
}

TEST_CASE("where the exchange dominates pieces are faster, and never faster than either stream alone") {
    const bool has_sequence_parallelism = GENERATE(false, true);
    for (const auto& [instance, nodes] : {std::pair("p3.2xlarge", 4), std::pair("p4d.24xlarge", 1)}) {
        INFO(instance << ", sequence parallelism " << has_sequence_parallelism);
        const Priced whole = priced(1, has_sequence_parallelism, instance, nodes);
        for (const int pieces : {2, 4}) {
            const Priced cut = priced(pieces, has_sequence_parallelism, instance, nodes);
            INFO(pieces << " pieces: " << cut.step << " s for " << whole.step << ", compute " << cut.compute
                        << ", exchange " << cut.exchange);
            CHECK(cut.step >= std::max(cut.compute, cut.exchange) * (1 - 1e-9));
            CHECK(cut.step <= (cut.compute + cut.exchange) * (1 + 1e-9));
            // Fewer rows fill no more of a device, and every message has its latency.
            CHECK(cut.compute >= whole.compute * (1 - 1e-9));
            CHECK(cut.exchange >= whole.exchange * (1 - 1e-9));
            CHECK(cut.flops.value == Approx(whole.flops.value).epsilon(1e-9));
            // By 10 Gbit/s ranks exchange longer than they compute, and bytes take longer than latencies.
            if (nodes > 1) {
                CHECK(whole.exchange > whole.compute);
                CHECK(cut.step < whole.step);
            }
        }
    }
}

TEST_CASE("a framework's own overlap hides nothing of an exchange that the Program has in pieces") {
    core::Diagnostics diagnostics;
    const model::ModelGraph graph = load_graph("llama-2-7b");
    const cluster::Cluster cluster = nodes_of("p5.48xlarge", 1);
    schedule::Plan plan;
    plan.layout.tensor = 8;
    plan.sequence_parallel = true;
    plan.tensor_overlap = 4;
    plan.framework = "nemo";
    const auto costs = sim::make_cost_models(graph, cluster, plan, diagnostics);
    REQUIRE(costs);
    std::int32_t exit = 0;
    while (graph.operators[exit].kind != model::OperatorKind::parallel_exit ||
           graph.operators[exit - 1].kind != model::OperatorKind::linear)
        ++exit;
    sim::TensorCollective scatter{schedule::CollectiveKind::reduce_scatter,
                                  schedule::GroupKind::tensor,
                                  schedule::PayloadKind::activation,
                                  schedule::ComputePhase::forward,
                                  {exit, exit + 1}};
    const Seconds alone = core::milliseconds(1);
    CHECK(costs->compute.exposed(scatter, alone) < alone);
    scatter.pieces = 4;
    CHECK(costs->compute.exposed(scatter, alone) == alone);
}

TEST_CASE("a trace names the piece of a product, of its exchange, and the gradient of weights behind them") {
    schedule::Plan plan;
    plan.layout.tensor = 2;
    plan.tensor_overlap = 3;
    const schedule::Program program = program_of(plan, load_graph("gpt-tiny"));
    std::set<std::string> labels;
    for (const Instruction& i : program.classes[0].instructions)
        if (i.pieces > 1) labels.insert(sim::label(program, i, true));
    for (const char* text : {"F0 piece 1 of 3", "F0 piece 3 of 3", "B0 piece 2 of 3", "B0 weights"})
        CHECK(labels.contains(text));
    CHECK(std::any_of(labels.begin(), labels.end(), [](const std::string& label) {
        return label.starts_with("all_reduce activation 0 piece 2 of 3 over tensor");
    }));
}

TEST_CASE("products lose time to the exchanges of pieces that run beside them, to none of whole ones") {
    core::Diagnostics diagnostics;
    const model::ModelGraph graph = load_graph("gpt-tiny");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    constexpr double loss = 0.5;
    for (const int pieces : {1, 4}) {
        schedule::Plan plan;
        plan.layout.tensor = 8;
        plan.micro_batches = 1;
        plan.tensor_overlap = pieces;
        const schedule::Program program = program_of(plan, graph);
        CHECK(sim::has_collectives_beside_compute(program) == (pieces > 1));
        auto costs = sim::make_cost_models(graph, cluster, plan, diagnostics);
        sim::PricedProgram prices = sim::price(program, *costs);
        const sim::Simulation before = sim::simulate(program, prices.durations);
        const sim::OverlapLosses losses = sim::slow_overlapped_compute(
            program, before, loss, cluster.instance.device, costs->communication, prices.durations);
        double lost = 0, beside = 0;
        const auto& spans = before.timeline.spans[0];
        const std::vector<Instruction>& list = program.classes[0].instructions;
        for (const schedule::Span& work : spans) {
            lost += losses[0][work.instruction].all().value;
            if (list[work.instruction].kind != InstructionKind::compute) continue;
            for (const schedule::Span& exchange : spans)
                if (list[exchange.instruction].kind == InstructionKind::collective)
                    beside += std::max(0.0, std::min(work.end, exchange.end).value -
                                                std::max(work.start, exchange.start).value);
        }
        CHECK((lost > 0) == (pieces > 1));
        CHECK(lost <= loss * beside * (1 + 1e-9));
    }
}
