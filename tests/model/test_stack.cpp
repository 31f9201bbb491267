// What the family `stack` is made of, by counts and FLOPs derived here; and what its readers refuse.
#include <algorithm>

#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "tests/model/model_from_text.h"

using Catch::Matchers::Contains;

namespace {

constexpr std::int64_t hidden = 64, heads = 4, vocabulary = 100, ffn = 96, tokens = 16;

const std::string plain =
    "family = \"stack\"\nhidden = 64\nlayers = 4\nheads = 4\nffn = 96\nvocabulary = 100\n"
    "sequence_length = 16\n";

std::int64_t count(const std::string& more) { return model::parameter_count(graph_of(plain + more)); }

std::vector<model::Attributes> attentions(const model::ModelGraph& graph) {
    std::vector<model::Attributes> list;
    for (const model::Operator& op : graph.operators)
        if (op.kind == model::OperatorKind::attention) list.push_back(op.attributes);
    return list;
}

// A layer of Llama's kind: four square linears, three of the feed-forward, two norms.
constexpr std::int64_t layer = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden;
constexpr std::int64_t ends = 2 * vocabulary * hidden + hidden;

}  // namespace

TEST_CASE("keys of a stack add the parameters that they name") {
    CHECK(count("") == 4 * layer + ends);
    CHECK(count("tied_embeddings = true\n") == 4 * layer + ends - vocabulary * hidden);
    CHECK(count("norm_place = \"both\"\n") == 4 * (layer + 2 * hidden) + ends);
    CHECK(count("norm_place = \"behind\"\n") == 4 * layer + ends);
    // A scale each of queries and keys: of a head's 16 columns, of every head's own, of all heads together.
    CHECK(count("query_key_norm = \"per_head\"\n") == 4 * (layer + 2 * 16) + ends);
    CHECK(count("query_key_norm = \"per_head\"\nquery_key_norm_scales = \"own\"\nkv_heads = 2\n") ==
          4 * (layer - 2 * hidden * 32 + 64 + 32) + ends);
    CHECK(count("query_key_norm = \"per_head\"\nquery_key_norm_scales = \"none\"\n") == 4 * layer + ends);
    CHECK(count("query_key_norm = \"all_heads\"\n") == 4 * (layer + 2 * hidden) + ends);
    CHECK(count("attention_sinks = true\n") == 4 * (layer + heads) + ends);
    CHECK(count("norm = \"layer_norm_without_parameters\"\n") == 4 * (layer - 2 * hidden) + ends - hidden);
    CHECK(count("head_transform = true\n") == 4 * layer + ends + hidden * hidden + hidden);
}

TEST_CASE("mixtures stand in the layers that say so, beside experts that all tokens use") {
    const std::string mixture = "experts = 8\nexperts_per_token = 2\nexpert_ffn = 32\n";
    const std::int64_t expert = 3 * hidden * 32, dense = 3 * hidden * ffn;
    const std::int64_t mixed = layer - dense + 8 * expert + 8 * hidden;
    CHECK(count(mixture) == 4 * mixed + ends);
    CHECK(count(mixture + "dense_layers_first = 1\n") == layer + 3 * mixed + ends);
    CHECK(count(mixture + "mixture_layers = [1, 2]\n") == 2 * layer + 2 * mixed + ends);
    CHECK(count(mixture + "shared_expert_ffn = 48\nshared_expert_gate = true\n") ==
          4 * (mixed + 3 * hidden * 48 + hidden) + ends);
    CHECK(count(mixture + "router_bias = true\nexpert_bias = true\n") ==
          4 * (mixed + 8 + 8 * (2 * 32 + hidden)) + ends);
}

TEST_CASE("latent attention has its two ranks, and products of its own two dimensions") {
    const std::string latent =
        "query_rank = 24\nkey_value_rank = 20\nhead_dimension = 24\nrotary_dimension = 8\n"
        "value_dimension = 12\n";
    const std::int64_t attention = hidden * 24 + 24 + 24 * heads * 24 + hidden * (20 + 8) + 20 +
                                   20 * heads * (16 + 12) + heads * 12 * hidden;
    CHECK(count(latent) == 4 * (layer - 4 * hidden * hidden + attention) + ends);
    const model::ModelGraph graph = graph_of(plain + latent);
    model::CostContext context;
    context.attention = model::AttentionImplementation::flash;
    for (const std::int32_t i : core::indices(graph.operators)) {
        if (graph.operators[i].kind != model::OperatorKind::attention) continue;
        const auto flops = [&](model::Phase phase) {
            return model::phase_cost(graph, {i, i + 1}, phase, context).flops.value;
        };
        // A score is a product of 24, its share of the context one of 12; backward makes the scores again,
        // and the gradients of scores and values (12 each), of queries and keys (24 each).
        const double scores = heads * tokens * tokens;
        CHECK(flops(model::Phase::forward) == Approx(2 * scores * (24 + 12)));
        CHECK(flops(model::Phase::backward_input) == Approx(2 * scores * (3 * 24 + 2 * 12)));
    }
}

TEST_CASE("windows and rotations differ from layer to layer as lists and intervals say") {
    const auto windows = [](const std::string& more) {
        std::vector<std::int64_t> list;
        for (const model::Attributes& a : attentions(graph_of(plain + more))) list.push_back(a.window);
        return list;
    };
    using List = std::vector<std::int64_t>;
    CHECK(windows("window = 4\n") == List{4, 4, 4, 4});
    CHECK(windows("window = 4\nglobal_interval = 2\n") == List{4, 0, 4, 0});
    CHECK(windows("window = 4\nwindow_layers = [3]\n") == List{0, 0, 0, 4});
    const std::vector<model::Attributes> bases =
        attentions(graph_of(plain + "window = 4\nglobal_interval = 2\nwindow_rotary_base = 77.0\n"));
    CHECK(bases[0].rotary_base == 77);
    CHECK(bases[1].rotary_base == 10000);
    const std::vector<model::Attributes> rotated = attentions(graph_of(plain + "rotation_interval = 4\n"));
    for (std::size_t i = 0; i < rotated.size(); ++i) CHECK(rotated[i].is_rotary == (i != 3));
    const std::vector<model::Attributes> chunked =
        attentions(graph_of(plain + "window = 8\nchunked_windows = true\nwindow_layers = [0]\n"));
    CHECK(chunked[0].local_window == 8);
    CHECK(chunked[1].local_window == 0);
}

TEST_CASE("a module of multi-token prediction is a projection, a layer and three norms, with a loss") {
    const std::int64_t module = 2 * hidden * hidden + layer + 3 * hidden;
    CHECK(count("prediction_layers = 1\n") == 4 * layer + ends + module);
    CHECK(count("prediction_layers = 2\n") == 4 * layer + ends + 2 * module);
    const model::ModelGraph graph = graph_of(plain + "prediction_layers = 2\n");
    CHECK(std::ranges::count(graph.operators, model::OperatorKind::cross_entropy, &model::Operator::kind) ==
          3);
}

TEST_CASE("keys of a stack that contradict each other are refused with what is allowed") {
    CHECK_THAT(errors_of(plain + "query_rank = 8\n"), Contains("key_value_rank"));
    CHECK_THAT(errors_of(plain + "key_value_rank = 8\nrotary_dimension = 16\n"),
               Contains("rotary_dimension = 16 is not a part of a head of 16"));
    CHECK_THAT(errors_of(plain + "window = 4\nwindow_layers = [4]\n"),
               Contains("names layer 4 of 4 layers, 0 to 3"));
    CHECK_THAT(errors_of(plain + "window_layers = [1]\n"), Contains("needs a window"));
    CHECK_THAT(errors_of(plain + "window = 5\nchunked_windows = true\n"), Contains("does not divide"));
    CHECK_THAT(errors_of(plain + "norm_place = \"both\"\nparallel_residual = true\n"),
               Contains("norm_place"));
    CHECK_THAT(errors_of(plain + "experts = 6\nexperts_per_token = 2\nexpert_groups = 4\n"),
               Contains("expert_groups = 4 does not divide experts = 6"));
}

TEST_CASE("tensor parallelism is refused where a norm is over all heads together") {
    const auto refused =
        model::tensor_parallel_unsupported(graph_of(plain + "query_key_norm = \"all_heads\"\n"), 2);
    REQUIRE(refused);
    CHECK_THAT(refused->reason, Contains("norm over all heads"));
    CHECK_FALSE(model::tensor_parallel_unsupported(graph_of(plain + "query_key_norm = \"per_head\"\n"), 2));
}

TEST_CASE("a key of a config that is not understood is an error, never passed over") {
    const std::string qwen =
        R"("model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "vocab_size": 100,
        "max_position_embeddings": 256)";
    CHECK(read_config("{" + qwen + "}").errors.empty());
    CHECK(read_config("{" + qwen + R"(, "torch_dtype": "bfloat16", "a_key_of_tomorrow": null})")
              .errors.empty());
    CHECK_THAT(read_config("{" + qwen + R"(, "a_key_of_tomorrow": 3})").errors,
               Contains("'a_key_of_tomorrow' is not understood: it may change the model") &&
                   Contains("'qwen3' of transformers"));
    CHECK_THAT(read_config("{" + qwen + R"(, "attention_biass": true})").errors,
               Contains("did you mean 'attention_bias'"));
    CHECK_THAT(read_config("{" + qwen + R"(, "use_sliding_window": true, "sliding_window": 8,
        "layer_types": ["full_attention", "linear_attention"]})")
                   .errors,
               Contains("linear_attention"));
    // transformers' class ignores these two, so a config that sets them describes another model.
    const std::string mpt =
        R"({"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100,
        "max_seq_len": 32, "expansion_ratio": 8, "no_bias": false})";
    CHECK_THAT(read_config(mpt).errors, Contains("expansion_ratio") && Contains("no_bias"));
}
