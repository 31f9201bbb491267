// Structure of built graphs: units, ties, crossings, regions, hashes.
#include "core/diagnostics.h"
#include "tests/model/model_from_text.h"

#include "model/builder/graph_builder.h"
#include "model/model_graph.h"
#include "model/operators/signature.h"

namespace {

const char* const small_gpt =
    "family = \"gpt\"\nhidden = 64\nlayers = 3\nheads = 4\nvocabulary = 100\nmax_positions = 16\n";

model::ModelGraph catalogued(const std::string& name) {
    core::Diagnostics diagnostics;
    auto graph = model::load_model(name, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

}  // namespace

TEST_CASE("a GPT is embedding, layers and head, and one tensor crosses every boundary between them") {
    for (const char* name : {"gpt2", "gpt-neox-20b", "gpt-j-6b", "llama-2-7b", "bloom-560m", "mixtral-8x7b",
                             "bert-base", "vit-base-16"}) {
        const model::ModelGraph graph = catalogued(name);
        INFO(name);
        CHECK(graph.units.front().name == "embedding");
        CHECK(graph.units.back().name == "head");
        for (std::size_t u = 1; u < graph.units.size(); ++u) {
            const auto crossing = model::tensors_crossing(graph, graph.units[u].operators.begin);
            REQUIRE(crossing.size() == 1);
            CHECK(graph.tensor(crossing[0]).split == model::TensorSplit::whole);
        }
    }
}

TEST_CASE("the output of T5's encoder crosses every boundary of its decoder beside the decoder's own") {
    const model::ModelGraph graph = catalogued("t5-small");
    // embedding, 6 layers, joint, 6 layers, head.
    REQUIRE(graph.units.size() == 15);
    for (std::size_t u = 1; u < graph.units.size(); ++u) {
        const std::size_t crossing = model::tensors_crossing(graph, graph.units[u].operators.begin).size();
        INFO(graph.units[u].name);
        CHECK(crossing == (u <= 7 || u == 14 ? 1u : 2u));
    }
}

TEST_CASE("tied parameters name every unit that uses them") {
    const auto gpt = model::tied_parameters(catalogued("gpt2"));
    REQUIRE(gpt.size() == 1);
    CHECK(gpt[0].units == std::vector<std::int32_t>{0, 13});
    CHECK(model::tied_parameters(catalogued("llama-2-7b")).empty());

    const model::ModelGraph t5 = catalogued("t5-small");
    const auto tied = model::tied_parameters(t5);
    REQUIRE(tied.size() == 3);
    CHECK(tied[0].units == std::vector<std::int32_t>{0, 7, 14});  // tokens: encoder, decoder, head
    CHECK(tied[1].units ==
          std::vector<std::int32_t>{1, 2, 3, 4, 5, 6});  // relative bias of the encoder's stack
    CHECK(tied[2].units == std::vector<std::int32_t>{8, 9, 10, 11, 12, 13});
}

TEST_CASE("parameters of a range count each tied parameter once, task heads included") {
    const model::ModelGraph bert = catalogued("bert-base");
    const model::OperatorRange all{0, static_cast<std::int32_t>(bert.operators.size())};
    CHECK(model::parameter_count(bert, all) == model::trained_parameter_count(bert));
    // transformers' BertForPreTraining: transform 768 x 768 + 768, norm 2 x 768, vocabulary bias 30522, next
    // sentence 2 x 768 + 2.
    CHECK(model::trained_parameter_count(bert) - model::parameter_count(bert) ==
          768 * 768 + 768 + 2 * 768 + 30522 + 2 * 768 + 2);
}

TEST_CASE(
    "a transformer layer reduces twice forward and twice backward; without dropout GPT-J's and NeoX's "
    "parallel branches reduce once") {
    const auto count = [](const model::ModelGraph& graph, model::OperatorKind kind) {
        int n = 0;
        for (const model::Operator& op : graph.operators)
            n += op.kind == kind && op.name.starts_with("layers.0.");
        return n;
    };
    using model::OperatorKind;
    CHECK(count(catalogued("gpt2"), OperatorKind::parallel_enter) == 2);
    CHECK(count(catalogued("gpt2"), OperatorKind::parallel_exit) == 2);
    CHECK(count(catalogued("gpt-neox-20b"), OperatorKind::parallel_enter) == 2);  // one norm a branch
    CHECK(count(catalogued("gpt-neox-20b"), OperatorKind::parallel_exit) == 1);
    CHECK(count(catalogued("gpt-j-6b"), OperatorKind::parallel_enter) == 1);
    CHECK(count(catalogued("gpt-j-6b"), OperatorKind::parallel_exit) == 1);
}

TEST_CASE("equal models have equal hashes, whatever their names; any dimension changes the hash") {
    const std::string base = model::hash_of(graph_of(small_gpt));
    CHECK(base.size() == 16);
    CHECK(model::hash_of(graph_of(std::string(small_gpt) + "name = \"another\"\n")) == base);
    CHECK(model::hash_of(graph_of(std::string(small_gpt) + "sequence_length = 8\n")) != base);
    CHECK(model::hash_of(graph_of(std::string(small_gpt) + "dropout = 0.1\n")) != base);
    CHECK(model::hash_of(graph_of(std::string(small_gpt) + "epsilon = 1e-6\n")) != base);
    CHECK(model::hash_of(graph_of(std::string(small_gpt) + "activation = \"gelu_tanh\"\n")) != base);
    CHECK(model::hash_of(graph_of(std::string(small_gpt) + "tied_embeddings = false\n")) != base);
    const auto with = [](const auto& change) {
        model::ModelGraph graph = graph_of(small_gpt);
        change(graph.operators.back().attributes);
        return model::hash_of(graph);
    };
    CHECK(with([](model::Attributes&) {}) == base);
    CHECK(with([](model::Attributes& a) { a.expert_activation = model::OperatorKind::gated_gelu; }) != base);
    CHECK(with([](model::Attributes& a) { a.has_relative_positions = true; }) != base);
    CHECK(with([](model::Attributes& a) { a.is_frozen = true; }) != base);
    CHECK(with([](model::Attributes& a) { a.has_fixed_statistics = true; }) != base);
}

TEST_CASE("tensor parallelism is refused where it does not divide, vocabularies excepted") {
    CHECK_FALSE(model::tensor_parallel_unsupported(catalogued("gpt2"), 2));  // 50257 is odd, and padded
    CHECK(model::tensor_parallel_unsupported(catalogued("gpt2"), 5) ==
          core::Unsupported{"heads = 12 of layers.0.attention.core", true});
    CHECK_FALSE(model::tensor_parallel_unsupported(catalogued("llama-2-70b"), 16));  // two ranks a head
    const auto grouped = [](const std::string& kv_heads) {
        return graph_of("family = 'llama'\nhidden = 768\nlayers = 1\nheads = 24\nkv_heads = " + kv_heads +
                        "\nffn = 96\nvocabulary = 96\nmax_positions = 8\nsequence_length = 8\n");
    };
    CHECK_FALSE(model::tensor_parallel_unsupported(grouped("2"), 8));
    CHECK(model::tensor_parallel_unsupported(grouped("6"), 8) ==  // neither divides the other
          core::Unsupported{"kv_heads = 6 of layers.0.attention.core", true});
    CHECK(model::tensor_parallel_unsupported(catalogued("resnet50"), 2) ==
          core::Unsupported{"the model has no tensor-parallel regions"});
    CHECK_FALSE(model::tensor_parallel_unsupported(catalogued("resnet50"), 1));
    CHECK_FALSE(model::sequence_parallel_unsupported(catalogued("gpt2")));
    CHECK(model::sequence_parallel_unsupported(catalogued("bert-base")));
}

TEST_CASE("a broken graph is a broken promise") {
    const model::ModelGraph good = graph_of(small_gpt);
    CHECK_NOTHROW(model::check(good));
    model::ModelGraph bad = good;
    bad.tensors[2].shape[0] += 1;
    CHECK_THROWS_AS(model::check(bad), core::InternalError);
    bad = good;
    bad.units[1].operators.begin += 1;
    CHECK_THROWS_AS(model::check(bad), core::InternalError);
    bad = good;
    std::swap(bad.operators[4], bad.operators[5]);
    CHECK_THROWS_AS(model::check(bad), core::InternalError);
    bad = good;
    bad.parameters.push_back(bad.parameters[0]);
    CHECK_THROWS_AS(model::check(bad), core::InternalError);
}

TEST_CASE("the module tree covers the operators: layers, blocks, operators") {
    const model::ModelGraph graph = graph_of(small_gpt);
    CHECK(graph.modules[0].operators ==
          model::OperatorRange{0, static_cast<std::int32_t>(graph.operators.size())});
    std::size_t leaves = 0;
    for (std::size_t i = 0; i < graph.modules.size(); ++i) {
        const model::Module& module = graph.modules[i];
        std::int32_t next = module.operators.begin;
        for (std::int32_t child : module.children) {
            const model::Module& part = graph.modules[static_cast<std::size_t>(child)];
            CHECK(part.parent == static_cast<std::int32_t>(i));
            CHECK(part.operators.begin == next);
            next = part.operators.end;
        }
        if (module.children.empty()) ++leaves;
        else CHECK(next == module.operators.end);
    }
    CHECK(leaves == graph.operators.size());
}

TEST_CASE("equal layers have equal signatures; another shard, micro-batch or precision has another") {
    const model::ModelGraph graph = graph_of(small_gpt);
    const model::OperatorRange first = graph.units[1].operators, second = graph.units[2].operators;
    REQUIRE(first.size() == second.size());
    for (std::int32_t i = 0; i < first.size(); ++i)
        CHECK(model::signature(graph, model::OperatorId(first.begin + i), {}) ==
              model::signature(graph, model::OperatorId(second.begin + i), {}));
    for (std::int32_t i = first.begin; i < first.end; ++i) {
        const model::OperatorId op(i);
        if (graph.op(op).kind != model::OperatorKind::linear) continue;
        model::CostContext context;
        const std::string base = model::signature(graph, op, context);
        context.tensor_parallel = 2;
        CHECK(model::signature(graph, op, context) != base);
        context = {};
        context.micro_batch = 2;
        CHECK(model::signature(graph, op, context) != base);
        context = {};
        context.compute = core::DataType::fp32;
        CHECK(model::signature(graph, op, context) != base);
    }
}
