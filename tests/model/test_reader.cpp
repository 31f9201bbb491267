// Hugging Face configs and descriptions of our own: what is honoured, what is refused, and where the message
// points.
#include "core/diagnostics.h"
#include "tests/model/model_from_text.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include "model/operators/cost.h"

using Catch::Matchers::Contains;

namespace {

const std::string llama = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 4096,
  "intermediate_size": 11008,
  "num_hidden_layers": 32,
  "num_attention_heads": 32,
  "num_key_value_heads": 32,
  "max_position_embeddings": 4096,
  "vocab_size": 32000,
  "hidden_act": "silu",
  "rms_norm_eps": 1e-05,
  "rope_scaling": null,
  "tie_word_embeddings": false,
  "initializer_range": 0.02, "pretraining_tp": 1, "use_cache": true, "torch_dtype": "float16",
        "bos_token_id": 1
})";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}

// One `key: value` line more, at the front.
std::string with(const std::string& config, const std::string& member) {
    return replaced(config, "{", "{ " + member + ",");
}

std::int64_t count(const std::string& json) {
    const ConfigResult result = read_config(json);
    INFO(result.errors);
    REQUIRE(result.graph);
    return model::parameter_count(*result.graph);
}

const model::Operator& first(const model::ModelGraph& graph, model::OperatorKind kind) {
    for (const model::Operator& op : graph.operators)
        if (op.kind == kind) return op;
    throw core::InternalError("no such operator");
}

}  // namespace

TEST_CASE("configs of every supported model_type count the published parameters of their checkpoints") {
    CHECK(count(llama) == 6738415616);  // meta-llama/Llama-2-7b-hf
    CHECK(count(
              R"({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257,
        "n_positions": 1024, "n_ctx": 1024})") == 124439808);
    CHECK(count(
              R"({"model_type": "gpt_neox", "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "vocab_size": 50432,
        "max_position_embeddings": 2048, "rotary_pct": 0.25, "hidden_act": "gelu_fast",
        "tie_word_embeddings": false})") == 20554567680);
    CHECK(count(
              R"({"model_type": "opt", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "ffn_dim": 3072, "vocab_size": 50272, "word_embed_proj_dim": 768,
        "max_position_embeddings": 2048, "do_layer_norm_before": true})") == 125239296);
    CHECK(count(
              R"({"model_type": "bloom", "n_embed": 1024, "n_layer": 24, "num_attention_heads": 16,
        "vocab_size": 250880})") == 559214592);
    CHECK(count(
              R"({"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "max_position_embeddings": 32768, "sliding_window": 4096})") == 7241732096);
    CHECK(count(
              R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "vocab_size": 32000, "max_position_embeddings": 32768, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": null})") == 46702792704);
    // microsoft/Phi-3-mini-4k-instruct: 3.8B.
    CHECK(count(
              R"({"model_type": "phi3", "hidden_size": 3072, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 8192,
        "vocab_size": 32064, "max_position_embeddings": 4096, "sliding_window": 2047, "rope_scaling": null,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0})") == 3821079552);
    CHECK(count(
              R"({"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864,
        "vocab_size": 151936, "max_position_embeddings": 32768, "tie_word_embeddings": true,
        "use_sliding_window": false, "sliding_window": 32768, "max_window_layers": 24})") == 494032768);
    CHECK(count(
              R"({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072,
        "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2})") == 109482240);
    CHECK(count(
              R"({"model_type": "t5", "d_model": 1024, "d_kv": 128, "d_ff": 16384, "num_layers": 24,
        "num_heads": 32, "vocab_size": 32128, "n_positions": 512})") == 2851598336);
    CHECK(count(
              R"({"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400,
        "n_positions": 2048, "rotary_dim": 64, "n_inner": null})") == 6050882784);
    CHECK(count(
              R"({"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432,
        "max_seq_len": 2048, "expansion_ratio": 4, "no_bias": true,
        "attn_config": {"alibi": true, "attn_impl": "torch", "clip_qkv": null}})") == 6649286656);
    CHECK(count(
              R"({"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, "image_size": 224, "patch_size": 16})") == 86567656);
}

TEST_CASE("a config's switches change the graph") {
    // A bias of 4096 on each of q, k, v and output in 32 layers; on gate, up (11008) and down (4096).
    CHECK(count(with(llama, "\"attention_bias\": true")) == 6738415616 + 32 * 4 * 4096);
    CHECK(count(with(llama, "\"mlp_bias\": true")) == 6738415616 + 32 * (2 * 11008 + 4096));
    CHECK(count(replaced(llama, "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true")) ==
          6738415616 - 32000 * 4096);
    CHECK(count(with(llama, "\"head_dim\": 64")) == 6738415616 - 32 * 4 * 4096 * 2048LL);
    CHECK(count(replaced(llama, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": 8")) ==
          6738415616 - 32 * 2 * 3072 * 4096LL);

    const ConfigResult scaled = read_config(
        replaced(llama, "\"rope_scaling\": null",
                 "\"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}"));
    REQUIRE(scaled.graph);
    CHECK(first(*scaled.graph, model::OperatorKind::attention).attributes.rotary_base == 500000);
    REQUIRE(scaled.graph->assumptions.size() == 1);
    CHECK_THAT(scaled.graph->assumptions[0], Contains("llama3"));

    const ConfigResult newer = read_config(
        with(llama, "\"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}"));
    REQUIRE(newer.graph);
    CHECK(first(*newer.graph, model::OperatorKind::attention).attributes.rotary_base == 1e6);

    // Qwen2 slides its window only in the layers from max_window_layers on.
    const ConfigResult qwen = read_config(
        R"({"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 100, "max_position_embeddings": 256, "use_sliding_window": true, "sliding_window": 32,
        "max_window_layers": 3})");
    REQUIRE(qwen.graph);
    std::vector<std::int64_t> windows;
    for (const model::Operator& op : qwen.graph->operators)
        if (op.kind == model::OperatorKind::attention) windows.push_back(op.attributes.window);
    CHECK(windows == std::vector<std::int64_t>{0, 0, 0, 32});

    // Mistral slides over 4096 tokens when the key is absent, over none when it is null.
    const std::string mistral =
        R"({"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128,
        "vocab_size": 100, "max_position_embeddings": 256})";
    CHECK(first(*read_config(mistral).graph, model::OperatorKind::attention).attributes.window == 4096);
    CHECK(
        first(*read_config(with(mistral, R"("sliding_window": null)")).graph, model::OperatorKind::attention)
            .attributes.window == 0);
    CHECK(first(*read_config(with(mistral, R"("sliding_window": 128)")).graph, model::OperatorKind::attention)
              .attributes.window == 128);

    // GPT-2 drops 0.1 unless its config says otherwise.
    const std::string gpt2 =
        R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 1, "n_head": 4, "vocab_size": 100,
        "n_positions": 32})";
    CHECK(first(*read_config(gpt2).graph, model::OperatorKind::dropout).attributes.probability == 0.1);
    CHECK_THROWS(
        first(*read_config(with(gpt2, R"("resid_pdrop": 0.0, "embd_pdrop": 0, "attn_pdrop": 0.0)")).graph,
              model::OperatorKind::dropout));
}

TEST_CASE("what a config asks for and we do not model is refused at its place") {
    const auto errors = [](const std::string& json) { return read_config(json).errors; };
    CHECK_THAT(
        errors(replaced(llama, "\"silu\"", "\"mish\"")),
        Contains("config.json:11:") && Contains("hidden_act = 'mish' is not supported") && Contains("silu"));
    CHECK_THAT(errors(replaced(llama, "\"llama\"", "\"lama\"")), Contains("config.json:3:") &&
                                                                     Contains("did you mean 'llama'") &&
                                                                     Contains("bert, bloom, camembert"));
    CHECK_THAT(errors(replaced(llama, "\"llama\"", "\"jamba\"")),
               Contains("config.json:3:") &&
                   Contains("'jamba' is not supported: it has state-space layers") &&
                   Contains("smplan partition --graph") && !Contains("did you mean"));
    CHECK_THAT(errors(replaced(llama, "  \"model_type\": \"llama\",\n", "")), Contains("model_type"));
    CHECK_THAT(errors(replaced(llama, "  \"intermediate_size\": 11008,\n", "")),
               Contains("config.json:1:") && Contains("intermediate_size is missing"));
    CHECK_THAT(errors(replaced(llama, "11008", "\"11008\"")),
               Contains("config.json:5:") && Contains("intermediate_size"));
    CHECK_THAT(errors(replaced(llama, "11008", "-1")), Contains("config.json:5:"));
    CHECK_THAT(errors(replaced(llama, "\"num_attention_heads\": 32", "\"num_attention_heads\": 31")),
               Contains("config.json:7:") && Contains("does not divide"));
    CHECK_THAT(errors(replaced(llama, "\"num_key_value_heads\": 32", "\"num_key_value_heads\": 5")),
               Contains("config.json:8:") && Contains("does not divide"));
    CHECK_THAT(errors(replaced(llama, "\"num_hidden_layers\": 32", "\"num_hidden_layers\": 100000000")),
               Contains("num_hidden_layers = 100000000 is above"));
    CHECK_THAT(errors(R"([1, 2])"), Contains("error"));
    CHECK_THAT(errors(R"({"model_type": 7})"), Contains("model_type"));
    CHECK_THAT(
        errors(
            R"({"model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
        "ffn_dim": 4096, "vocab_size": 50272, "word_embed_proj_dim": 512,
        "max_position_embeddings": 2048, "do_layer_norm_before": false})"),
        Contains("do_layer_norm_before") && Contains("word_embed_proj_dim = 512"));
    CHECK_THAT(
        errors(
            R"({"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "intermediate_size": 128, "vocab_size": 100,
        "max_position_embeddings": 32, "type_vocab_size": 2, "position_embedding_type": "relative_key",
        "is_decoder": true})"),
        Contains("relative_key") && Contains("is_decoder"));
    CHECK_THAT(
        errors(
            R"({"model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4,
        "vocab_size": 100, "feed_forward_proj": "gated-tanh"})"),
        Contains("gated-tanh"));
    CHECK_THAT(errors(
                   R"({"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 100,
        "max_seq_len": 32, "attn_config": {"qk_ln": true, "alibi": true}})"),
               Contains("qk_ln"));
}

TEST_CASE("a description refuses unknown keys, impossible dimensions and sizes nobody has") {
    const std::string gpt =
        "family = \"gpt\"\nhidden = 64\nlayers = 2\nheads = 4\nvocabulary = 100\nmax_positions = 16\n";
    CHECK(errors_of(gpt).empty());
    CHECK_THAT(errors_of(gpt + "hiden = 3\n"),
               Contains("inline.toml:7:1") && Contains("hiden") && Contains("hidden"));
    CHECK_THAT(errors_of(gpt + "sequence_length = 32\n"), Contains("longer than the learned positions, 16"));
    CHECK_THAT(errors_of(replaced(gpt, "heads = 4", "heads = 5")),
               Contains("model.heads = 5 does not divide hidden = 64") && Contains("inline.toml:4:"));
    CHECK_THAT(errors_of(replaced(gpt, "\"gpt\"", "\"gtp\"")), Contains("family"));
    CHECK_THAT(errors_of(replaced(gpt, "hidden = 64", "hidden = nan")), Contains("hidden"));
    CHECK_THAT(errors_of(replaced(gpt, "layers = 2", "layers = 100000")),
               Contains("above the greatest allowed"));
    CHECK_THAT(errors_of(replaced(gpt, "max_positions = 16\n", "")), Contains("sequence_length is missing"));
    CHECK_THAT(errors_of("name = \"bert-bas\""), Contains("did you mean 'bert-base'"));
    CHECK_THAT(errors_of("hidden = 3"), Contains("name is missing"));
    CHECK_THAT(errors_of("config = \"nowhere/config.json\""), Contains("nowhere/config.json"));
    CHECK_THAT(errors_of("family = \"mixtral\"\nhidden = 262144\nlayers = 4096\nheads = 64\nffn = "
                         "4194304\nvocabulary = 1000\nsequence_length = 16\nexperts = "
                         "16384\nexperts_per_token = 2\n"),
               Contains("parameters"));
    CHECK_THAT(errors_of("family = \"resnet\"\ndepth = 51\nimage_size = 224\n"),
               Contains("18, 34, 50, 101 or 152"));
    CHECK_THAT(
        errors_of("family = \"swin\"\nhidden = 96\ndepths = [2, 2]\nstage_heads = [3]\nimage_size = 224\n"),
        Contains("stages"));
    CHECK_THAT(errors_of("family = \"convnet\"\nimage_size = 4\nconvolutions = [8, 8]\nclasses = 10\n"),
               Contains("leave nothing"));
}

TEST_CASE("a named model takes overrides, which are checked like the rest") {
    const model::ModelGraph graph = graph_of("name = \"llama-2-7b\"\nsequence_length = 1024\nlayers = 2\n");
    CHECK(graph.name == "llama-2-7b");
    CHECK(graph.tokens_per_sample == 1024);
    CHECK(graph.units.size() == 4);
    CHECK_THAT(errors_of("name = \"llama-2-7b\"\nsequence_lenght = 1024\n"),
               Contains("inline.toml:2:1") && Contains("sequence_length"));
    CHECK_THAT(errors_of("name = \"gpt2\"\nsequence_length = 2048\n"), Contains("inline.toml:2:"));
    CHECK_THAT(errors_of("name = \"gpt2\"\nheads = 7\n"), Contains("inline.toml:2:"));
    core::Diagnostics diagnostics;
    CHECK_FALSE(model::load_model("gpt2", {.sequence_length = 4096}, diagnostics));
    CHECK(diagnostics.has_errors());
}

TEST_CASE("configs and descriptions are read from files, a checkpoint's folder included") {
    namespace fs = std::filesystem;
    const fs::path folder = fs::path(BINARY_DIR) / "test_reader" / "llama-2-7b";
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << llama;
    std::ofstream(folder / "own.toml") << "[model]\nfamily = \"gpt\"\nhidden = 64\nlayers = 1\nheads = "
                                          "4\nvocabulary = 100\nmax_positions = 8\n";
    core::Diagnostics diagnostics;
    // In the local cache of Hugging Face the folder's own name is a commit.
    const fs::path cached =
        fs::path(BINARY_DIR) / "test_reader" / "models--org--llama-2-7b" / "snapshots" / "0a1b2c";
    fs::create_directories(cached);
    std::ofstream(cached / "config.json") << llama;
    const std::string relative = fs::relative(folder / "config.json").string();
    for (const std::string& reference :
         {(folder / "config.json").string(), folder.string(), relative,
          (folder / "." / "config.json").string(), (cached / "config.json").string()}) {
        const auto graph = model::load_model(reference, {}, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(graph);
        CHECK(graph->name == "llama-2-7b");
        CHECK(model::parameter_count(*graph) == 6738415616);
    }
    model::LoadOptions options;
    options.directory = folder.string();
    CHECK(model::load_model("own.toml", options, diagnostics));
    const auto table =
        core::parse_toml("config = \"config.json\"\nsequence_length = 512\n", "scenario.toml", diagnostics);
    REQUIRE(table);
    const auto graph = model::load_model(*table, options, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    CHECK(graph->tokens_per_sample == 512);
}

TEST_CASE("any dimension at the end of its range gives a model or a diagnostic, quickly") {
    const std::vector<std::pair<std::string, std::vector<std::string>>> families = {
        {"family = \"gpt\"\nmax_positions = 16\n", {"hidden", "layers", "heads", "vocabulary"}},
        {"family = \"llama\"\nsequence_length = 16\n",
         {"hidden", "layers", "heads", "kv_heads", "head_dimension", "ffn", "vocabulary"}},
        {"family = \"mixtral\"\nsequence_length = 16\n",
         {"hidden", "layers", "heads", "ffn", "vocabulary", "experts", "experts_per_token"}},
        {"family = \"bert\"\nmax_positions = 16\n", {"hidden", "layers", "heads", "ffn", "vocabulary"}},
        {"family = \"t5\"\n",
         {"hidden", "layers", "heads", "head_dimension", "ffn", "vocabulary", "sequence_length"}},
        {"family = \"vit\"\n", {"hidden", "layers", "heads", "image_size", "patch", "classes"}},
        {"family = \"resnet\"\ndepth = 50\n", {"image_size", "classes", "channels", "width_factor"}},
        {"family = \"convnet\"\nconvolutions = [4]\ndense = [8]\n",
         {"image_size", "classes", "channels", "kernel"}},
        {"family = \"swin\"\ndepths = [2, 2]\nstage_heads = [1, 1]\n",
         {"hidden", "image_size", "window", "patch"}},
    };
    const std::int64_t ends[] = {0,
                                 1,
                                 2,
                                 4096,
                                 1 << 14,
                                 1 << 18,
                                 1 << 22,
                                 1 << 28,
                                 std::int64_t(1) << 40,
                                 std::numeric_limits<std::int64_t>::max(),
                                 -1};
    int built = 0, refused = 0;
    for (const auto& [head, keys] : families)
        for (const std::string& extreme : keys)
            for (std::int64_t value : ends) {
                std::string text = head;
                for (const std::string& key : keys)
                    text += key + " = " +
                            std::to_string(key == extreme                    ? value
                                           : key == "image_size"             ? 64
                                           : key == "layers"                 ? 2
                                           : key == "experts"                ? 4
                                           : key == "hidden" || key == "ffn" ? 32
                                           : key == "window"                 ? 8
                                                                             : 2) +
                            "\n";
                core::Diagnostics diagnostics;
                const auto table = core::parse_toml(text, "inline.toml", diagnostics);
                REQUIRE(table);
                const auto graph = model::load_model(*table, {}, diagnostics);
                INFO(text);
                REQUIRE(graph.has_value() != diagnostics.has_errors());
                ++(graph ? built : refused);
                if (!graph) continue;
                CHECK(model::trained_parameter_count(*graph) > 0);
                CHECK(model::forward_flops_per_sample(*graph).value > 0);
                for (std::size_t i = 0; i < graph->operators.size() && graph->operators.size() < 1000; ++i)
                    CHECK(
                        model::saved_for_backward(*graph, model::OperatorId(static_cast<std::int32_t>(i)), {})
                            .saved_context.value >= 0);
            }
    CHECK(built > 100);
    CHECK(refused > 100);
}

TEST_CASE("a short config.json of Gemma 3 with images has the language model of the catalogue's entry") {
    // google/gemma-3-4b-it of 2025-03-12 leaves out heads, vocabulary and the head dimension.
    const ConfigResult read = read_config(R"({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144,
        "mm_tokens_per_image": 256, "initializer_range": 0.02,
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                        "num_hidden_layers": 34, "sliding_window": 1024,
                        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        "vision_config": {"hidden_size": 1152, "image_size": 896, "num_hidden_layers": 27}})");
    INFO(read.errors);
    REQUIRE(read.graph);
    core::Diagnostics diagnostics;
    const auto entry = model::load_model("gemma-3-4b", {}, diagnostics);
    REQUIRE(entry);
    CHECK(model::parameter_count(*read.graph) == model::parameter_count(*entry));
    CHECK(read.graph->operators.size() == entry->operators.size());

    CHECK_THAT(read_config(R"({"model_type": "llama4", "vision_config": {}})").errors,
               Contains("text_config is missing"));
    CHECK_THAT(read_config(R"({"model_type": "gemma3", "text_config": {}, "experts": 4})").errors,
               Contains("'experts' is not understood"));
}

TEST_CASE("towers and encoder-decoders count their published parameters") {
    // openai/clip-vit-base-patch32: 151,277,313 in the hub's count; every default is its own.
    CHECK(count(R"({"model_type": "clip", "text_config": {}, "vision_config": {}})") == 151277313);
    // openai/whisper-tiny: 37,760,640, of which 1500 x 384 sinusoids are not trained.
    CHECK(count(R"({"model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
        "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536,
        "decoder_ffn_dim": 1536, "vocab_size": 51865, "max_target_positions": 448})") ==
          37760640 - 1500 * 384);
}

TEST_CASE("relative positions of DeBERTa that nothing reads are refused") {
    const std::string deberta = R"({"model_type": "deberta-v2", "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 300})";
    CHECK(read_config(deberta).graph);
    CHECK_THAT(read_config(with(deberta, R"("relative_attention": true)")).errors,
               Contains("pos_att_type names no scores"));
    CHECK_THAT(read_config(with(deberta, R"("norm_rel_ebd": "layer_norm")")).errors,
               Contains("norm_rel_ebd is a norm of relative positions"));
    CHECK_THAT(read_config(with(deberta, R"("conv_kernel_size": 4)")).errors, Contains("is even"));
    // Twice 24 buckets, once for the table and, shared, without projections of their own.
    const std::string relative = with(deberta, R"("relative_attention": true, "pos_att_type": "p2c|c2p",
        "share_att_key": true, "position_buckets": 24)");
    CHECK(count(relative) == count(deberta) + 2 * 24 * 64);
}
