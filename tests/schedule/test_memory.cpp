#include <catch2/catch.hpp>

#include <algorithm>

#include "core/diagnostics.h"
#include "model/repetition.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/partition.h"
#include "tests/model/catalogue.h"

using namespace schedule;

namespace {

Plan fp32_plan() {
    Plan plan;
    plan.precision = {.compute = core::DataType::fp32,
                      .parameters = core::DataType::fp32,
                      .gradients = core::DataType::fp32,
                      .has_master_parameters = false};
    return plan;
}

// Held by a class after each instruction of its list, performed in list order.
struct Held {
    double persistent = 0, peak = 0, end = 0;
};
Held played(const RankProgram& list, MemoryKind kind) {
    Held held;
    for (const Buffer& b : list.buffers)
        if (b.is_persistent && b.kind == kind) held.persistent += b.bytes.value;
    double now = 0;
    for (const Instruction& i : list.instructions) {
        for (const std::uint32_t b : list.allocates(i))
            if (list.buffers[b].kind == kind) now += list.buffers[b].bytes.value;
        held.peak = std::max(held.peak, now);
        for (const std::uint32_t b : list.frees(i))
            if (list.buffers[b].kind == kind) now -= list.buffers[b].bytes.value;
    }
    held.end = now;
    return held;
}

// The MNIST convnet, one image, fp32: bytes of its tensors.
constexpr double images = 28 * 28 * 4, maps = 26 * 26 * 32 * 4, dense = 128 * 4, logits = 10 * 4, labels = 8,
                 statistics = 3 * 4, softmax = 10 * 4;

}  // namespace

TEST_CASE("the convnet keeps what its operators need and peaks where the walk by hand does") {
    const model::ModelGraph graph = load_graph("mnist-convnet");
    const ActivationFootprint f =
        activation_footprint(graph, {0, static_cast<std::int32_t>(graph.operators.size())}, fp32_plan());
    // conv keeps the images; relu its output, which the dense layer keeps too (flatten is a view); the second
    // relu its output; the loss logits, labels, statistics.
    const double saved = images + maps + dense + logits + labels + statistics + softmax;
    CHECK(f.saved.value == saved);
    // Forward peaks in the first relu: images, its input and its output.
    CHECK(f.forward_transient.value == images + maps + maps - saved);
    // Backward peaks in the first relu: images, its output, and the gradients of its output and input.
    CHECK(f.backward_transient.value == images + 3 * maps - saved);
    CHECK(f.received.value == 0);
    CHECK(f.sent_gradient.value == 0);
    // Split: convolution and both dense layers keep their inputs and their output gradients.
    CHECK(f.saved_for_weight.value == images + maps + dense);
    CHECK(f.kept_for_weight.value == maps + dense + logits);
    CHECK(f.input_transient.value ==
          (images + maps + dense) + (dense + logits) + 2 * maps - saved - (maps + dense + logits));
}

TEST_CASE("one pass over the logits writes their gradient over them") {
    // The head alone: rows of logits through a loss that keeps nothing beside them.
    const model::ModelGraph graph = load_graph("gpt2");
    const auto end = static_cast<std::int32_t>(graph.operators.size());
    Plan plan = fp32_plan();
    plan.fused_cross_entropy = true;
    std::int32_t head = end;
    while (graph.operators[head - 1].kind != model::OperatorKind::linear) --head;
    const model::OperatorRange stage{head - 1, end};
    const ActivationFootprint f = activation_footprint(graph, stage, plan);
    constexpr double tokens = 1024, classes = 50257, width = 768, size = 4;
    const double all_logits = tokens * classes * size, inputs = tokens * width * size;
    // Kept: the head's input, logits, labels of 8 bytes, three statistics a token.
    CHECK(f.saved.value == inputs + all_logits + tokens * (8 + 3 * 4));
    // Backward needs room for the gradient of the input alone, which leaves for the stage before.
    CHECK(f.sent_gradient.value == inputs);
    CHECK(f.backward_transient.value == 0);
    plan.fused_cross_entropy = false;  // the softmax is another array, and the gradient a third one
    const ActivationFootprint apart = activation_footprint(graph, stage, plan);
    CHECK(apart.saved.value == f.saved.value + all_logits);
    // In the loss; the gradient of the head's input is not there yet.
    CHECK(apart.backward_transient.value == all_logits - inputs);
}

TEST_CASE("logits that come from the stage before keep their array") {
    const model::ModelGraph graph = load_graph("mnist-convnet");
    Plan plan = fp32_plan();
    plan.fused_cross_entropy = true;
    const auto end = static_cast<std::int32_t>(graph.operators.size());
    const ActivationFootprint f = activation_footprint(graph, {end - 2, end}, plan);
    CHECK(f.sent_gradient.value == logits);
    CHECK(f.saved.value == logits + labels + statistics);
    CHECK(f.backward_transient.value == 0);
}

TEST_CASE("what crosses a boundary is counted once: as saved where backward needs it") {
    const model::ModelGraph graph = load_graph("mnist-convnet");
    const Plan plan = fp32_plan();
    const ActivationFootprint stem = activation_footprint(graph, graph.units[0].operators, plan);
    CHECK(stem.saved.value == images + maps);
    CHECK(stem.sent.value == 0);  // its relu keeps it anyway
    CHECK(stem.received_gradient.value == maps);
    const ActivationFootprint rest = activation_footprint(
        graph, {graph.units[1].operators.begin, static_cast<std::int32_t>(graph.operators.size())}, plan);
    CHECK(rest.received_saved.value == maps);
    CHECK(rest.received.value == 0);
    CHECK(rest.saved.value == maps + dense + logits + labels + statistics + softmax);
    CHECK(rest.sent_gradient.value == maps);
}

TEST_CASE(
    "activations leave when one task at least lies between their forward and the beginning of their load") {
    // Forward is task 0. With a horizon of 4 the load of backward task b begins with task b - 4: task 1
    // follows the forward at once, task 2 does not.
    CHECK_FALSE(schedule::leaves(0, 5, 4));
    CHECK(schedule::leaves(0, 6, 4));
    CHECK(schedule::leaves(10, 16, 4));
    CHECK_FALSE(schedule::leaves(0, 6, 5));
}

TEST_CASE("forward alone keeps nothing") {
    const model::ModelGraph graph = load_graph("mnist-convnet");
    const ActivationFootprint f = activation_footprint(
        graph, {0, static_cast<std::int32_t>(graph.operators.size())}, fp32_plan(), true);
    CHECK(f.saved.value == 0);
    CHECK(f.forward_transient.value == 2 * maps);  // the relu's input and output; the images are gone
}

TEST_CASE("1F1B holds min(m, p - s) micro-batches' activations on stage s, GPipe all") {
    const model::ModelGraph graph = load_graph("gpt-small-cpu");
    for (const int p : {2, 3, 5})
        for (const int m : {1, 2, 4, 8})
            for (const char* schedule : {"1f1b", "gpipe"}) {
                Plan plan = fp32_plan();
                plan.layout.pipeline = p;
                plan.micro_batches = m;
                plan.schedule = schedule;
                for (int s = 0; s < p; ++s)
                    plan.partition.first_units.push_back(s * static_cast<int>(graph.units.size()) / p);
                core::Diagnostics diagnostics;
                const Program program = lower(plan, graph, *make_schedule(plan, diagnostics));
                for (int s = 0; s < p; ++s) {
                    INFO(schedule << " p " << p << " m " << m << " stage " << s);
                    const ActivationFootprint f = activation_footprint(
                        graph, program.stages[static_cast<std::size_t>(s)].operators, plan);
                    const int in_flight = schedule == std::string("1f1b") ? std::min(m, p - s) : m;
                    const Held held =
                        played(program.classes[static_cast<std::size_t>(s)], MemoryKind::activations);
                    // Beside them: one gradient on its way in, or one more input on its way in.
                    CHECK(held.peak >= in_flight * f.saved.value);
                    CHECK(held.peak <=
                          in_flight * f.saved.value + f.received_gradient.value + f.received.value);
                    CHECK(held.end == Approx(0).margin(1e-6));
                }
            }
}

TEST_CASE("sharded parameters hold one gathered unit and the next, and give all back") {
    const model::ModelGraph graph = load_graph("llama-tiny");
    for (const bool prefetches : {true, false}) {
        Plan plan = fp32_plan();
        plan.layout.data = 4;
        plan.sharding = Sharding::parameters;
        plan.overlaps_parameter_gathering = prefetches;
        plan.micro_batches = 2;
        plan.partition.first_units = {0};
        core::Diagnostics diagnostics;
        const RankProgram list = lower(plan, graph, *make_schedule(plan, diagnostics)).classes[0];
        const Held held = played(list, MemoryKind::parameters);
        std::vector<double> units;  // one bucket a unit, last first
        for (const ParameterBucket& b : list.buckets)
            units.push_back(static_cast<double>(b.padded_elements) * 4);
        REQUIRE(units.size() == graph.units.size());
        double largest = 0;
        for (std::size_t i = 0; i < units.size(); ++i)
            largest = std::max(largest, units[i] + (prefetches && i + 1 < units.size() ? units[i + 1] : 0));
        CHECK(held.peak == largest);
        CHECK(held.end == 0);
        double all = 0;
        for (const double unit : units) all += unit;
        CHECK(held.persistent == all / 4);
        CHECK(played(list, MemoryKind::gradients).peak == *std::max_element(units.begin(), units.end()));
    }
}

TEST_CASE("a Program is the same where stages that are alike are looked at once") {
    std::size_t alike = 0;
    for (const char* name : {"gpt2", "bert-base", "llama-2-7b", "t5-base", "mixtral-8x7b", "resnet50"}) {
        const model::ModelGraph graph = load_graph(name);
        model::Repetition repetition(graph);
        for (const char* schedule : {"1f1b", "zb-h1", "interleaved-1f1b"})
            for (const Recompute recompute : {Recompute::none, Recompute::full})
                for (const Offload offload : {Offload::none, Offload::host}) {
                    Plan plan = fp32_plan();
                    plan.schedule = schedule;
                    plan.layout.pipeline = 4;
                    plan.virtual_stages = plan.schedule == "interleaved-1f1b" ? 2 : 1;
                    plan.micro_batches = 8;
                    plan.recompute = recompute;
                    plan.offload = offload;
                    const std::optional<Partition> partition = complete_partition(plan, graph);
                    REQUIRE(partition);
                    plan.partition = *partition;
                    core::Diagnostics diagnostics;
                    const std::optional<Schedule> order = make_schedule(plan, diagnostics);
                    INFO(name << " " << schedule << "\n" << core::format(diagnostics));
                    REQUIRE(order);
                    const Program each = lower(plan, graph, *order),
                                  once = lower(plan, graph, *order, {.repetition = &repetition});
                    CHECK(hash_of(each) == hash_of(once));
                    for (std::size_t c = 0; c < each.classes.size(); ++c)
                        CHECK(std::equal(each.classes[c].buffers.begin(), each.classes[c].buffers.end(),
                                         once.classes[c].buffers.begin(), once.classes[c].buffers.end(),
                                         [](const Buffer& a, const Buffer& b) {
                                             return a.kind == b.kind && a.bytes == b.bytes &&
                                                    a.is_persistent == b.is_persistent;
                                         }));
                    for (const StageInfo& stage : each.stages)
                        alike += repetition.first_like(stage.operators) == stage.operators ? 0 : 1;
                }
    }
    CHECK(alike >= 100);  // not in vain
}
