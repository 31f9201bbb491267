// Mixtures whose experts are whole on tensor-parallel ranks: what of the graph changes, and what does not.
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "model/whole_experts.h"
#include "tests/model/model_from_text.h"

using model::ModelGraph, model::Operator, model::OperatorKind;

namespace {

const std::string mixture =
    "hidden = 16\nffn = 12\nlayers = 2\nheads = 4\nkv_heads = 2\nvocabulary = 30\n"
    "max_positions = 8\nsequence_length = 8\nexperts = 4\nexperts_per_token = 2\n";

const Operator& operator_named(const ModelGraph& graph, const std::string& name) {
    for (const Operator& op : graph.operators)
        if (op.name == name) return op;
    FAIL("no operator " << name);
    return graph.operators[0];
}
const Operator& producer(const ModelGraph& graph, const Operator& op, std::size_t input) {
    return graph.op(graph.tensor(op.inputs[input]).producer);
}

}  // namespace

TEST_CASE("a mixture alone in its region leaves it, and nothing else changes") {
    const ModelGraph graph = graph_of("family = 'mixtral'\n" + mixture),
                     whole = model::with_whole_experts(graph);
    CHECK(model::hash_of(whole) == model::hash_of(graph));
    CHECK(model::parameter_count(whole) == model::parameter_count(graph));
    REQUIRE(whole.operators.size() == graph.operators.size());
    for (const std::int32_t i : core::indices(graph.operators)) {
        const Operator &before = graph.operators[i], &after = whole.operators[i];
        CHECK(after.name == before.name);
        CHECK(after.inputs == before.inputs);
        CHECK(after.output == before.output);
        const bool is_of_mixture = before.name.find(".mlp.") != std::string::npos;
        CHECK(after.in_parallel_region == (before.in_parallel_region && !is_of_mixture));
        const bool is_border =
            before.kind == OperatorKind::parallel_enter || before.kind == OperatorKind::parallel_exit;
        CHECK(after.kind == (is_of_mixture && is_border ? OperatorKind::reshape : before.kind));
    }
    for (const model::Parameter& parameter : whole.parameters)
        if (parameter.is_expert) CHECK(parameter.split_dimension == 0);
}

TEST_CASE("what a shared expert makes is summed over the tensor ranks before routed results are added") {
    const ModelGraph graph = graph_of("family = 'mixtral'\n" + mixture + "shared_expert_ffn = 12\n");
    const ModelGraph whole = model::with_whole_experts(graph);
    const Operator &sum = operator_named(whole, "layers.1.mlp.experts_sum"),
                   &exit = operator_named(whole, "layers.1.mlp.exit"),
                   &router = operator_named(whole, "layers.1.mlp.mixture.router"),
                   &enter = operator_named(whole, "layers.1.mlp.enter");
    CHECK(sum.kind == OperatorKind::add);
    CHECK(producer(whole, sum, 0).kind == OperatorKind::combine);
    CHECK(producer(whole, sum, 1).name == exit.name);
    CHECK(exit.kind == OperatorKind::parallel_exit);
    CHECK(producer(whole, exit, 0).name.find(".shared.") != std::string::npos);
    CHECK(producer(whole, exit, 0).in_parallel_region);
    // The router reads what the shared expert's region is entered with.
    CHECK(enter.kind == OperatorKind::parallel_enter);
    CHECK(router.inputs[0] == enter.inputs[0]);
    CHECK_FALSE(router.in_parallel_region);
}

TEST_CASE("a rank's products of experts are as large whether experts are halves or whole") {
    const ModelGraph graph = graph_of("family = 'mixtral'\n" + mixture),
                     whole = model::with_whole_experts(graph);
    model::CostContext halves, wholes;
    for (model::CostContext* context : {&halves, &wholes}) {
        context->tensor_parallel = 2;
        context->sequence_parallel = true;
        context->expert_parallel = 2;
    }
    double flops[2] = {0, 0}, weights[2] = {0, 0};
    const auto count = [&](const ModelGraph& of, const model::CostContext& context, std::size_t into) {
        for (const std::int32_t i : core::indices(of.operators))
            if (of.operators[i].kind == OperatorKind::experts)
                for (const model::Kernel& kernel :
                     model::kernels(of, model::OperatorId(i), model::Phase::forward, context))
                    if (kernel.kind == model::KernelKind::matrix_product) flops[into] += kernel.flops.value;
        for (const std::int32_t i : core::indices(of.parameters))
            if (of.parameters[i].is_expert)
                weights[into] += double(model::parameter_elements(of, model::ParameterId(i), context));
    };
    count(graph, halves, 0);
    count(whole, wholes, 1);
    CHECK(flops[0] > 0);
    CHECK(flops[1] == flops[0]);
    // Two of four experts a rank: halves of them over two data ranks, or whole ones over two tensor ranks.
    CHECK(weights[0] * 2 == weights[1]);
}

TEST_CASE("models without experts have none to keep whole") {
    const ModelGraph graph = graph_of(
        "family = 'llama'\nhidden = 16\nffn = 24\nlayers = 1\nheads = 4\nkv_heads = 2\nvocabulary = 30\n"
        "max_positions = 8\nsequence_length = 8\n");
    REQUIRE(model::whole_experts_unsupported(graph));
    CHECK(model::whole_experts_unsupported(graph)->reason == "the model has no experts");
}
