// Communications of different streams, groups and pipeline coordinates on the same links.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "sim/cost/contention.h"
#include "sim/cost/pricing.h"
#include "sim/engine/simulate.h"
#include "sim/evaluate.h"
#include "sim/report/breakdown.h"
#include "tests/cluster/instances.h"
#include "tests/sim/tiny_program.h"

namespace {

using schedule::CollectiveKind;
using schedule::GroupKind;

// A step of one class: a send (to itself, as far as the clock is concerned) and an all-reduce of the data
// stream, both ready at once.
schedule::Program send_beside_all_reduce() {
    schedule::Program program;
    program.stages = {{0, {}, -1, -1}, {0, {}, -1, -1}};
    tiny::Builder builder;
    builder.add(tiny::transfer(schedule::InstructionKind::send, schedule::PayloadKind::activation, 0, 0, 0));
    schedule::Instruction reduce;
    reduce.kind = schedule::InstructionKind::collective;
    reduce.stream = schedule::Stream::data;
    reduce.group = GroupKind::data;
    builder.add(reduce);
    program.classes.push_back(builder.list);
    program.class_of_rank = {0};
    return program;
}

struct Lowered {
    cluster::Cluster cluster;
    model::ModelGraph graph;
    schedule::Plan plan;
    std::optional<schedule::Program> program;
    std::optional<sim::CostModels> costs;

    Lowered(const char* instance, int nodes, schedule::ParallelLayout layout, int micro_batches,
            schedule::Sharding sharding = schedule::Sharding::none)
        : cluster(nodes_of(instance, nodes)) {
        core::Diagnostics diagnostics;
        std::optional<model::ModelGraph> loaded = model::load_model(std::string("gpt2-xl"), {}, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(loaded.has_value());
        graph = std::move(*loaded);
        plan.layout = std::move(layout);
        plan.micro_batches = micro_batches;
        plan.sharding = sharding;
        plan.partition = *schedule::complete_partition(plan, graph);
        const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
        REQUIRE(order.has_value());
        program = schedule::lower(plan, graph, *order);
        std::optional<sim::CostModels> made = sim::make_cost_models(graph, cluster, plan, diagnostics);
        REQUIRE(made.has_value());
        costs.emplace(std::move(*made));
    }
};

}  // namespace

TEST_CASE(
    "a transfer and an all-reduce on one link: halves while both run, all of it for the one that is left") {
    // Alone 2 s and 3 s, each the whole link. Shared from 0: each at half speed; the transfer ends at 4, then
    // 1 s of the all-reduce is left: 5.
    const schedule::Program program = send_beside_all_reduce();
    sim::Contention contention;
    contention.links = 1;
    contention.communications = {{core::Seconds(0), core::Seconds(2), core::Seconds(2), {{0, 1.0}}, 1.0},
                                 {core::Seconds(0), core::Seconds(3), core::Seconds(3), {{0, 1.0}}, 1.0}};
    contention.kind_of = {{0, 1}};
    contention.communication_of = {{0}, {1}};
    sim::Durations durations;
    durations.of = {{core::Seconds(2), core::Seconds(3)}};
    const sim::Simulation alone = sim::simulate(program, durations);
    REQUIRE(alone.timeline.makespan.value == 3);
    const sim::Simulation shared = sim::simulate(program, durations, {.contention = &contention});
    REQUIRE(shared.timeline.spans[0][0].end.value == Approx(4));
    REQUIRE(shared.timeline.spans[0][1].end.value == Approx(5));
    // An all-reduce that needs only half of the link leaves the other half: nobody waits.
    contention.communications[1].uses[0].share = 0.5;
    contention.communications[0].uses[0].share = 0.5;
    REQUIRE(sim::simulate(program, durations, {.contention = &contention}).timeline.makespan.value ==
            Approx(3));
    // Latency takes nothing of the link: with 2 s of it the transfer runs alone.
    contention.communications[0].uses[0].share = contention.communications[1].uses[0].share = 1.0;
    contention.communications[1] = {core::Seconds(2), core::Seconds(3), core::Seconds(5), {{0, 1.0}}, 1.0};
    durations.of = {{core::Seconds(2), core::Seconds(5)}};
    REQUIRE(sim::simulate(program, durations, {.contention = &contention}).timeline.makespan.value ==
            Approx(5));
}

TEST_CASE("two groups that share a network card get half each") {
    // p4d: devices 0 and 1 share card 0. Two data-parallel groups of one device a node, {0, 8} and {1, 9},
    // against one group alone.
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    schedule::Plan two;
    two.layout = {2, 2, 1, "PDT"};
    two.collective = "ring";
    cluster::Cluster two_devices = cluster;
    two_devices.ranks_per_node = 2;
    sim::CommunicationCost cost(two, two_devices);
    const core::Bytes bytes = core::gigabytes(1);
    const sim::Candidate& both = cost.choice(CollectiveKind::all_reduce, GroupKind::data, bytes, 0);
    const sim::Candidate& own = cost.choice_of(CollectiveKind::all_reduce, GroupKind::data, bytes, 0);
    REQUIRE(time_of(both, bytes).streaming.value == Approx(2 * time_of(own, bytes).streaming.value));
    // Unfolded, each group is a communication of its own that needs the whole card, and they meet there.
    core::Diagnostics diagnostics;
    schedule::Program program;
    program.plan = two;
    program.stages.resize(1);
    tiny::Builder builder;
    schedule::Instruction reduce;
    reduce.kind = schedule::InstructionKind::collective;
    reduce.stream = schedule::Stream::data;
    reduce.group = GroupKind::data;
    reduce.bytes = bytes;
    builder.add(reduce);
    program.classes.push_back(builder.list);
    program.class_of_rank = {0, 0, 0, 0};
    sim::Durations durations;
    durations.of = {{cost.collective(CollectiveKind::all_reduce, GroupKind::data, bytes, 0)}};
    const sim::Contention folded = sim::find_contention(program, cost, true),
                          unfolded = sim::find_contention(program, cost, false);
    REQUIRE(folded.is_empty());
    REQUIRE(unfolded.communications.size() == 2);
    REQUIRE(unfolded.links >= 1);  // the card, and the PCIe link before it, which both together fill as well
    const double as_class =
        sim::simulate(program, durations, {.contention = &folded}).timeline.makespan.value;
    const double as_ranks = sim::simulate(program, durations, {.is_folded = false, .contention = &unfolded})
                                .timeline.makespan.value;
    REQUIRE(as_class == Approx(as_ranks).epsilon(1e-3));
}

TEST_CASE(
    "every byte that leaves a node's cards enters another's: all-reduce of a ring 2(n-1)/n, of a tree at "
    "most twice the payload") {
    for (const char* algorithm : {"ring", "tree"})
        for (int nodes : {2, 3, 4, 8}) {
            const cluster::Cluster cluster = nodes_of("p4d.24xlarge", nodes);
            schedule::Plan plan;
            plan.layout = {8 * nodes, 1, 1, "PDT"};
            plan.collective = algorithm;
            sim::CommunicationCost cost(plan, cluster);
            const sim::Candidate& candidate =
                cost.choice(CollectiveKind::all_reduce, GroupKind::data, core::gigabytes(8), 0);
            // Bytes over the network links of every node, out and in, for each byte of the payload.
            const std::size_t links = cluster.instance.links.size();
            sim::Network network(cluster, std::nullopt, sim::network_terms(cluster, {}, {}));
            std::map<int, double> out, in;
            for (const sim::LinkShare& share : candidate.links) {
                const auto slot = static_cast<std::size_t>(share.link);
                if (slot / 2 >= links * static_cast<std::size_t>(nodes)) continue;
                const cluster::Link& link = cluster.instance.links[slot / 2 % links];
                if (link.kind != cluster::LinkKind::network) continue;
                const double doublings = std::log2(std::max(2, nodes)) - 1;
                const double rate =
                    link.effective().value / (1 + sim::CostConstants{}.decay_per_doubling * doublings);
                (slot % 2 == 0 ? out : in)[static_cast<int>(slot / 2 / links)] += share.busy * rate;
            }
            double all_out = 0, all_in = 0;
            for (const auto& [node, bytes] : out) all_out += bytes;
            for (const auto& [node, bytes] : in) all_in += bytes;
            REQUIRE(all_out == Approx(all_in));
            // The ring crosses from node to node n times; both trees have n - 1 edges, each used up and down
            // with half of the payload.
            const double n = 8.0 * nodes;
            const double expected =
                std::string(algorithm) == "ring" ? nodes * 2 * (n - 1) / n : 2.0 * (nodes - 1);
            REQUIRE(all_out == Approx(expected));
            for (const auto& [node, bytes] : out) REQUIRE(bytes <= 2.0 + 1e-9);
        }
}

TEST_CASE(
    "contention only delays: no instruction overlaps its stream's next, no part of the step is negative, the "
    "parts sum to the step") {
    for (const schedule::ParallelLayout& layout :
         {schedule::ParallelLayout{2, 2, 4, "DPT"}, schedule::ParallelLayout{4, 1, 4, "PDT"},
          schedule::ParallelLayout{4, 2, 2, "TDP"}})
        for (const schedule::Sharding sharding : {schedule::Sharding::none, schedule::Sharding::optimizer}) {
            Lowered lowered("p4d.24xlarge", 2, layout, 6, sharding);
            const sim::PricedProgram priced = sim::price(*lowered.program, *lowered.costs);
            const sim::Contention contention =
                sim::find_contention(*lowered.program, lowered.costs->communication, true);
            const sim::Simulation alone = sim::simulate(*lowered.program, priced.durations);
            const sim::Simulation shared =
                sim::simulate(*lowered.program, priced.durations, {.contention = &contention});
            REQUIRE(shared.timeline.makespan.value >= alone.timeline.makespan.value * (1 - 1e-12));
            for (std::size_t p = 0; p < shared.timeline.spans.size(); ++p) {
                const auto& list =
                    lowered.program->classes[static_cast<std::size_t>(shared.timeline.class_of[p])]
                        .instructions;
                std::map<schedule::Stream, double> stream_end;
                for (const schedule::Span& span : shared.timeline.spans[p]) {
                    double& before = stream_end[list[span.instruction].stream];
                    REQUIRE(span.start.value >= before);
                    REQUIRE(span.end.value >= span.start.value);
                    REQUIRE(span.end.value - span.start.value >= 0);
                    before = span.end.value;
                }
                const sim::Breakdown parts = sim::break_down(*lowered.program, shared, priced.host, p, true);
                for (const sim::BreakdownPart& part : sim::breakdown_parts())
                    REQUIRE((parts.*part.part).value >= 0);
                REQUIRE(sim::sum(parts).value == Approx(shared.timeline.makespan.value));
            }
        }
}

TEST_CASE("folded and unfolded agree with contention when replicas lie alike on the links") {
    // Stages on different nodes: activations one way, gradients the other, gradient all-reduces beside them,
    // all over the same cards.
    for (const schedule::ParallelLayout& layout :
         {schedule::ParallelLayout{2, 4, 2, "PDT"}, schedule::ParallelLayout{1, 8, 2, "PDT"},
          schedule::ParallelLayout{8, 1, 2, "PDT"}}) {
        Lowered lowered("p4d.24xlarge", 2, layout, 4);
        const sim::PricedProgram priced = sim::price(*lowered.program, *lowered.costs);
        const sim::Contention folded =
            sim::find_contention(*lowered.program, lowered.costs->communication, true);
        const sim::Contention unfolded =
            sim::find_contention(*lowered.program, lowered.costs->communication, false);
        const double as_classes = sim::simulate(*lowered.program, priced.durations, {.contention = &folded})
                                      .timeline.makespan.value;
        const double as_ranks =
            sim::simulate(*lowered.program, priced.durations, {.is_folded = false, .contention = &unfolded})
                .timeline.makespan.value;
        CAPTURE(layout.data, layout.tensor, folded.links, unfolded.links,
                sim::simulate(*lowered.program, priced.durations).timeline.makespan.value);
        CHECK(as_ranks == Approx(as_classes).epsilon(2e-3));
    }
}

TEST_CASE(
    "gradient all-reduces of neighbouring stages on one node share its cards with each other and with the "
    "pipeline's transfers") {
    // Data-parallel groups over two nodes, both stages on both nodes: layout DPT puts pipeline neighbours
    // side by side. The all-reduces of the two stages leave the same cards; the step is longer than if each
    // had them alone, and no longer than if they took turns.
    Lowered lowered("p4d.24xlarge", 2, {2, 1, 8, "DPT"}, 8);
    const sim::PricedProgram priced = sim::price(*lowered.program, *lowered.costs);
    const sim::Contention contention =
        sim::find_contention(*lowered.program, lowered.costs->communication, true);
    REQUIRE(contention.links > 0);
    const double alone = sim::simulate(*lowered.program, priced.durations).timeline.makespan.value;
    const double shared = sim::simulate(*lowered.program, priced.durations, {.contention = &contention})
                              .timeline.makespan.value;
    double reductions = 0;
    for (std::size_t c = 0; c < lowered.program->classes.size(); ++c)
        for (std::size_t i = 0; i < lowered.program->classes[c].instructions.size(); ++i)
            if (lowered.program->classes[c].instructions[i].stream == schedule::Stream::data)
                reductions += priced.durations.of[c][i].value;
    REQUIRE(shared > alone * 1.001);
    REQUIRE(shared < alone + reductions);
}
