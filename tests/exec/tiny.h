// Models and Programs small enough to run in milliseconds.
#pragma once

#include <memory>
#include <string>

#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "core/document.h"
#include "exec/data.h"
#include "exec/oracle/reference.h"
#include "exec/runtime/run.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan_file.h"
#include "schedule/plan/planned_graph.h"
#include "schedule/verify.h"

namespace tiny {

inline model::ModelGraph model_of(const std::string& toml) {
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(toml, "test", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document);
    const auto graph = model::load_model(*document, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

inline model::ModelGraph gpt(int layers = 4, const std::string& more = "") {
    return model_of("family = 'gpt'\nhidden = 16\nlayers = " + std::to_string(layers) +
                    "\nheads = 4\nvocabulary = 30\nmax_positions = 8\nsequence_length = 8\n" + more);
}
inline model::ModelGraph mixtral(int layers, const std::string& more = "experts_per_token = 2") {
    return model_of(
        "family = 'mixtral'\nhidden = 16\nffn = 12\nlayers = " + std::to_string(layers) +
        "\nheads = 4\nkv_heads = 2\nvocabulary = 30\nmax_positions = 8\nsequence_length = 8\nexperts = 4\n" +
        more);
}
inline model::ModelGraph llama(int layers = 4, const std::string& more = "") {
    return model_of("family = 'llama'\nhidden = 16\nffn = 24\nlayers = " + std::to_string(layers) +
                    "\nheads = 4\nkv_heads = 2\nvocabulary = 30\nmax_positions = 8\nsequence_length = 8\n" +
                    more);
}

inline schedule::Plan plan() {
    schedule::Plan plan;
    plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    plan.optimizer.kind =
        schedule::OptimizerKind::sgd;  // Adam divides by gradients, and so magnifies their rounding
    plan.optimizer.learning_rate = 0.1;
    plan.micro_batch = 2;
    plan.micro_batches = 4;
    plan.gradient_bucket = core::bytes(3000);
    return plan;
}

inline schedule::Program program_of(schedule::Plan plan, const model::ModelGraph& model) {
    core::Diagnostics diagnostics;
    const schedule::PlannedGraph planned(plan, model);
    const model::ModelGraph& graph = *planned;
    exec::check_runnable(plan, graph, diagnostics);
    if (plan.partition.first_units.empty()) {
        const auto partition = schedule::complete_partition(plan, graph);
        REQUIRE(partition);
        plan.partition = *partition;
    }
    const auto order = schedule::make_schedule(plan, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(order);
    REQUIRE_FALSE(diagnostics.has_errors());
    schedule::Program program =
        schedule::lower(plan, graph, *order, {.micro_batches = 0, .has_optimizer = !order->is_forward_only});
    const auto violations = schedule::verify(program);
    for (const auto& violation : violations) UNSCOPED_INFO(violation.rule << ": " << violation.message);
    REQUIRE(violations.empty());
    return program;
}

inline std::shared_ptr<const exec::DataSource> data_of(const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    auto data = exec::load_data("", "", 7, graph, diagnostics);
    REQUIRE(data);
    return data;
}

// Of another seed than data_of.
inline std::shared_ptr<const exec::DataSource> held_out_data_of(const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    auto data = exec::load_data("", "", 8, graph, diagnostics);
    REQUIRE(data);
    return data;
}

struct Comparison {
    double losses = 0, gradients = 0, parameters = 0, copies = 0;
    double held_out = 0;  // after every step on two batches; of backends that evaluate
    std::string worst;
    exec::RunResult run;
};

// Runs both; differences are relative to the largest value of the loss, of each gradient, of each parameter.
inline Comparison compare(const schedule::Plan& plan, const model::ModelGraph& model, int steps = 2,
                          const exec::BackendMaker& make_backend = {}) {
    const schedule::PlannedGraph planned(plan, model);
    const model::ModelGraph& graph = *planned;
    const schedule::Program program = program_of(plan, graph);
    const auto data = data_of(graph);
    exec::RunOptions options;
    options.steps = steps;
    options.keeps_state = true;
    options.make_backend = make_backend;
    options.time_limit = core::seconds(20);
    exec::ReferenceOptions reference_options{steps, options.seed, !schedule::trains(program)};
    if (schedule::trains(program) && !make_backend) {
        reference_options.held_out = held_out_data_of(graph);
        reference_options.held_out_batches = 2;
        options.evaluation = {reference_options.held_out, 1, 2};
    }
    Comparison result;
    result.run = exec::run(program, graph, data, options);
    const exec::ReferenceResult reference =
        program.micro_batches_per_update > 0
            ? exec::run_asynchronous_reference(graph, program.plan, program.micro_batches_per_update, data,
                                               reference_options)
            : exec::run_reference(graph, plan, data, reference_options);
    if (reference.held_out_loss) {
        REQUIRE(result.run.evaluations.size() == static_cast<std::size_t>(steps));
        CHECK(result.run.evaluations.back().step == steps);
        result.held_out = std::abs(result.run.evaluations.back().loss / *reference.held_out_loss - 1);
    }
    REQUIRE(result.run.losses.size() == reference.losses.size());
    for (std::size_t i = 0; i < reference.losses.size(); ++i)
        result.losses = std::max(result.losses, std::abs(result.run.losses[i] - reference.losses[i]) /
                                                    std::abs(reference.losses[i]));
    for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
        double largest = 0;  // biases of keys have no gradient but rounding
        for (const double g : reference.gradients[p]) largest = std::max(largest, std::abs(g));
        const double gradient =
            largest < 1e-7 ? 0 : exec::relative_difference(result.run.gradients[p], reference.gradients[p]);
        if (gradient > result.gradients) result.worst = graph.parameters[p].name;
        result.gradients = std::max(result.gradients, gradient);
        result.parameters = std::max(
            result.parameters, exec::relative_difference(result.run.parameters[p], reference.parameters[p]));
    }
    result.copies = result.run.largest_copy_difference;
    return result;
}

inline void check_equal(const Comparison& comparison, double tolerance = 1e-5) {
    INFO("worst gradient: " << comparison.worst);
    CHECK(comparison.losses < tolerance);
    CHECK(comparison.held_out < tolerance);
    CHECK(comparison.gradients < tolerance);
    CHECK(comparison.copies == 0);
}

// Three steps of the same plan, with buckets exchanged in list order and beside the computation.
struct BothOrders {
    exec::RunResult in_order, beside;
};
inline BothOrders in_order_and_beside(const schedule::Plan& plan, const model::ModelGraph& graph) {
    const schedule::Program program = program_of(plan, graph);
    exec::RunOptions options;
    options.steps = 3;
    options.keeps_state = true;
    options.time_limit = core::seconds(20);
    BothOrders result;
    result.in_order = exec::run(program, graph, data_of(graph), options);
    options.overlaps = true;
    result.beside = exec::run(program, graph, data_of(graph), options);
    return result;
}

}  // namespace tiny
