#include <catch2/catch.hpp>
#include <fstream>

#include "core/diagnostics.h"
#include "exec/checkpoint/checkpoint.h"
#include "exec/weights/initial_weights.h"
#include "exec/weights/weight_export.h"
#include "tests/exec/temporary_folder.h"
#include "tests/exec/tiny.h"

namespace {

// Models of every way of naming.
model::ModelGraph family(const std::string& name) {
    if (name == "llama") return tiny::llama(2);
    if (name == "tied") return tiny::llama(2, "tied_embeddings = true");
    if (name == "mixtral") return tiny::mixtral(2);
    if (name == "gpt2") return tiny::gpt(2);
    const std::string rest =
        "\nhidden = 16\nlayers = 2\nheads = 4\nvocabulary = 30\nmax_positions = 8\nsequence_length = 8\n";
    if (name == "bert") return tiny::model_of("family = 'bert'" + rest + "ffn = 24\n");
    return tiny::model_of("family = '" + name + "'" + rest);
}

exec::WeightNames names_of(const model::ModelGraph& graph) {
    auto names = exec::huggingface_names(graph);
    if (const auto* unsupported = std::get_if<core::Unsupported>(&names)) FAIL(unsupported->reason);
    return std::get<exec::WeightNames>(names);
}

// A checkpoint of step 0 of a plan, in `folder`.
std::shared_ptr<const exec::Checkpoint> start_of(
    const model::ModelGraph& graph, schedule::Plan plan, const std::string& folder,
    std::shared_ptr<const exec::InitialWeights> initial = nullptr) {
    exec::RunOptions options;
    options.steps = 0;
    options.initial = std::move(initial);
    options.checkpoints.directory = folder;
    options.time_limit = core::seconds(20);
    exec::run(tiny::program_of(std::move(plan), graph), graph, tiny::data_of(graph), options);
    core::Diagnostics diagnostics;
    auto checkpoint = exec::Checkpoint::open(folder, 0, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(checkpoint);
    return checkpoint;
}

std::vector<float> values_of(const exec::Checkpoint& checkpoint, const model::Parameter& parameter) {
    std::vector<float> values(model::element_count(parameter.shape));
    REQUIRE(checkpoint.read(parameter.name, exec::StateKind::value, 0, values));
    return values;
}

std::vector<float> tensor_of(const std::string& path, const std::string& name,
                             const std::vector<std::int64_t>& shape) {
    std::string failure;
    const auto file = exec::SafetensorsFile::open(path, failure);
    INFO(failure);
    REQUIRE(file);
    INFO(name);
    REQUIRE(file->tensors().contains(name));
    CHECK(file->tensors().at(name).shape == shape);
    std::vector<float> values(file->tensors().at(name).elements());
    REQUIRE(file->read(file->tensors().at(name), 0, values, failure));
    return values;
}

const model::Parameter& parameter_of(const model::ModelGraph& graph, const std::string& name) {
    for (const model::Parameter& parameter : graph.parameters)
        if (parameter.name == name) return parameter;
    FAIL("no parameter " << name);
    throw std::logic_error("unreachable");
}

std::string refusal(const std::string& path, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    CHECK(exec::InitialWeights::open(path, graph, diagnostics) == nullptr);
    return core::format(diagnostics);
}

}  // namespace

TEST_CASE("weights that went out come in again as the same bits, for every way of naming and any plan") {
    const std::string name =
        GENERATE(as<std::string>{}, "llama", "tied", "mixtral", "gpt2", "opt", "gpt-neox", "bert");
    INFO(name);
    const model::ModelGraph graph = family(name);
    const TemporaryFolder folder;
    schedule::Plan plan = tiny::plan();
    const auto first = start_of(graph, plan, folder.path + "/first");
    for (const bool has_their_names : {true, false}) {
        const exec::WeightNames names = has_their_names ? names_of(graph) : exec::own_names(graph);
        exec::export_weights(*first, graph, names, folder.path, "x.safetensors");
        core::Diagnostics diagnostics;
        const auto initial = exec::InitialWeights::open(folder.path + "/x.safetensors", graph, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(initial);
        CHECK(diagnostics.entries().empty());
        plan.layout.pipeline = has_their_names ? 2 : 1;
        plan.layout.tensor = 2;
        const std::string place = folder.path + (has_their_names ? "/theirs" : "/ours");
        const auto again = start_of(graph, plan, place, initial);
        CHECK(again->manifest().initial_weights == initial->identity());
        for (const model::Parameter& parameter : graph.parameters) {
            INFO(parameter.name);
            CHECK(values_of(*again, parameter) == values_of(*first, parameter));
        }
    }
}

TEST_CASE("rows lie where transformers' classes look for them") {
    const TemporaryFolder folder;
    const std::string path = folder.path + "/x.safetensors";
    const std::string name = GENERATE(as<std::string>{}, "llama", "mixtral", "gpt2", "gpt-neox");
    const model::ModelGraph graph = family(name);
    const auto checkpoint = start_of(graph, tiny::plan(), folder.path);
    exec::export_weights(*checkpoint, graph, names_of(graph), folder.path, "x.safetensors");
    const auto own = [&](const std::string& parameter) {
        return values_of(*checkpoint, parameter_of(graph, parameter));
    };
    // hidden 16; 4 heads of 4; where there are 2 heads of keys, q has 16 rows, k and v 8 each.
    if (name == "llama") {
        const std::vector<float> qkv = own("layers.1.attention.qkv.weight"),
                                 gate_up = own("layers.1.mlp.gate_up.weight");
        const auto rows = [](const std::vector<float>& all, int first, int count) {
            return std::vector<float>(all.begin() + 16 * first, all.begin() + 16 * (first + count));
        };
        CHECK(tensor_of(path, "model.layers.1.self_attn.q_proj.weight", {16, 16}) == rows(qkv, 0, 16));
        CHECK(tensor_of(path, "model.layers.1.self_attn.k_proj.weight", {8, 16}) == rows(qkv, 16, 8));
        CHECK(tensor_of(path, "model.layers.1.self_attn.v_proj.weight", {8, 16}) == rows(qkv, 24, 8));
        CHECK(tensor_of(path, "model.layers.1.mlp.gate_proj.weight", {24, 16}) == rows(gate_up, 0, 24));
        CHECK(tensor_of(path, "model.layers.1.mlp.up_proj.weight", {24, 16}) == rows(gate_up, 24, 24));
        CHECK(tensor_of(path, "lm_head.weight", {30, 16}) == own("head.logits.weight"));
    } else if (name == "mixtral") {
        // Expert 3 of 4: 24 rows of gate and up, 16 x 12 down.
        const std::vector<float> in = own("layers.0.mlp.mixture.experts.first.weight"),
                                 out = own("layers.0.mlp.mixture.experts.second.weight");
        const std::string expert = "model.layers.0.block_sparse_moe.experts.3.";
        CHECK(tensor_of(path, expert + "w3.weight", {12, 16}) ==
              std::vector<float>(in.begin() + 16 * (3 * 24 + 12), in.begin() + 16 * (4 * 24)));
        CHECK(tensor_of(path, expert + "w2.weight", {16, 12}) ==
              std::vector<float>(out.begin() + 3 * 16 * 12, out.end()));
    } else if (name == "gpt2") {
        const std::vector<float> up = own("layers.0.mlp.up.weight"),
                                 theirs = tensor_of(path, "transformer.h.0.mlp.c_fc.weight", {16, 64});
        for (int o = 0; o < 64; ++o)
            for (int i = 0; i < 16; ++i) CHECK(theirs[i * 64 + o] == up[o * 16 + i]);
        CHECK(tensor_of(path, "transformer.wte.weight", {30, 16}) == own("embedding.tokens.weight"));
    } else {
        // GPTNeoXAttention views its rows as [heads, 3 x 4]: query, key, value of a head together.
        const std::vector<float> qkv = own("layers.0.attention.qkv.weight"),
                                 theirs = tensor_of(
                                     path, "gpt_neox.layers.0.attention.query_key_value.weight", {48, 16});
        for (int part = 0; part < 3; ++part)
            for (int head = 0; head < 4; ++head)
                for (int i = 0; i < 4 * 16; ++i)
                    CHECK(theirs[(head * 12 + part * 4) * 16 + i] == qkv[(part * 16 + head * 4) * 16 + i]);
    }
}

TEST_CASE("a file of other weights is refused with all that is missing or of another shape") {
    const TemporaryFolder folder;
    const model::ModelGraph graph = tiny::llama(2);
    const auto checkpoint = start_of(graph, tiny::plan(), folder.path);
    const std::string path = folder.path + "/x.safetensors";
    exec::export_weights(*checkpoint, graph, names_of(graph), folder.path, "x.safetensors");
    using Catch::Contains;
    CHECK_THAT(refusal(path, tiny::llama(3)),
               Contains("the file has no model.layers.2.input_layernorm.weight") && Contains("more"));
    const std::string wide = refusal(
        path, tiny::model_of("family = 'llama'\nhidden = 16\nffn = 32\nlayers = 2\nheads = 4\nkv_heads = 2\n"
                             "vocabulary = 30\nmax_positions = 8\nsequence_length = 8\n"));
    CHECK_THAT(wide, Contains("model.layers.0.mlp.gate_proj.weight has the shape [24, 16]") &&
                         Contains("needs [32, 16]") && Contains("model.layers.1.mlp.down_proj.weight"));
    CHECK_THAT(refusal(path, tiny::gpt(2)), Contains("the file has no transformer.wte.weight"));
    CHECK_THAT(refusal(folder.path + "/none.safetensors", graph), Contains("No such file"));
    std::ofstream(folder.path + "/text.safetensors") << "weights";
    CHECK_THAT(refusal(folder.path + "/text.safetensors", graph), Contains("no safetensors file"));
    std::ofstream(folder.path + "/model.safetensors.index.json") << "{\"metadata\": {}}";
    CHECK_THAT(refusal(folder.path + "/model.safetensors.index.json", graph), Contains("no weight_map"));
    // One layer of two: the rest has no place, which is said and no error.
    core::Diagnostics diagnostics;
    CHECK(exec::InitialWeights::open(path, tiny::llama(1), diagnostics));
    CHECK_THAT(core::format(diagnostics), Contains("has no place for model.layers.1.input_layernorm.weight"));
}

TEST_CASE("weights may lie in several files with an index, and without the class's prefix") {
    const TemporaryFolder folder;
    const model::ModelGraph graph = tiny::gpt(2);
    const auto checkpoint = start_of(graph, tiny::plan(), folder.path);
    exec::WeightNames names = names_of(graph);
    for (auto& rows : names.rows)
        for (exec::WeightRows& row : rows)
            row.tensor = row.tensor.substr(std::string("transformer.").size());  // as GPT2Model saves them
    exec::export_weights(*checkpoint, graph, names, folder.path, "model-00001-of-00001.safetensors");
    std::ofstream(folder.path + "/model.safetensors.index.json")
        << R"({"weight_map": {"wte.weight": "model-00001-of-00001.safetensors"}})";
    core::Diagnostics diagnostics;
    const auto initial = exec::InitialWeights::open(folder.path, graph, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(initial);
    const model::ParameterId first(0);
    std::vector<float> some(5);
    initial->read(first, 17, some);
    const std::vector<float> whole = values_of(*checkpoint, graph.parameter(first));
    CHECK(some == std::vector<float>(whole.begin() + 17, whole.begin() + 22));
}

TEST_CASE("training that began with given weights is what the reference makes of them") {
    const TemporaryFolder folder;
    const model::ModelGraph graph = tiny::llama(2);
    schedule::Plan plan = tiny::plan();
    exec::RunOptions other;
    other.steps = 0;
    other.seed = 99;  // not the seed of the training that begins with them
    other.checkpoints.directory = folder.path;
    exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), other);
    core::Diagnostics diagnostics;
    const auto checkpoint = exec::Checkpoint::open(folder.path, 0, diagnostics);
    REQUIRE(checkpoint);
    exec::export_weights(*checkpoint, graph, names_of(graph), folder.path, "x.safetensors");
    exec::ReferenceOptions reference{3, 1234};
    reference.initial = exec::InitialWeights::open(folder.path + "/x.safetensors", graph, diagnostics);
    REQUIRE(reference.initial);
    plan.layout.pipeline = plan.layout.data = 2;
    plan.micro_batches = 2;
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    exec::RunOptions options;
    options.steps = 3;
    options.initial = reference.initial;
    const std::vector<double>
        losses = exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options).losses,
        expected = exec::run_reference(graph, plan, tiny::data_of(graph), reference).losses,
        seeded = exec::run_reference(graph, plan, tiny::data_of(graph), {3, 1234}).losses;
    for (std::size_t i = 0; i < 3; ++i) CHECK(losses[i] == Approx(expected[i]).epsilon(1e-5));
    CHECK(std::abs(expected[0] - seeded[0]) > 1e-4);
}
