// Plans in other tools' words: exact texts, round trips, and refusals that name the key.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include <unistd.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/exchange.h"
#include "interop/megatron/partition.h"
#include "interop/python_literal.h"
#include "model/load.h"
#include "model/reader/catalogue.h"

namespace {

// A Llama of 8 layers on 2 p4d.24xlarge; `plan` is the body of [plan], `model` are further keys of [model].
interop::ExportSource source_with(const std::string& plan, const std::string& model = "") {
    static int count = 0;
    const auto path = std::filesystem::temp_directory_path() /
                      ("smplan_export_" + std::to_string(getpid()) + "_" + std::to_string(count++) + ".toml");
    std::ofstream(path) << "version = 1\n[model]\nfamily = \"llama\"\nname = \"small\"\nhidden = 512\nlayers "
                           "= 8\nheads = 8\nffn = 1024\nvocabulary = 1024\nsequence_length = 256\n"
                        << model << "[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\n[plan]\n"
                        << plan;
    core::Diagnostics diagnostics;
    auto source = interop::load_export_source(path.string(), diagnostics);
    std::filesystem::remove(path);
    INFO(core::format(diagnostics));
    REQUIRE(source);
    return *source;
}

std::optional<interop::Export> exported(const interop::ExportSource& source, const std::string& target,
                                        core::Diagnostics& diagnostics) {
    return interop::find_exchange_target(target)->write(source, {}, diagnostics);
}

// The text of an export that has one unless it is `refusal` that is said instead.
std::string said_of(const std::string& plan, const std::string& model, const std::string& target,
                    const std::string& refusal) {
    core::Diagnostics diagnostics;
    const auto written = exported(source_with(plan, model), target, diagnostics);
    INFO(core::format(diagnostics));
    CHECK(written.has_value() == refusal.empty());
    CHECK(core::format(diagnostics).find(refusal) != std::string::npos);
    return written ? written->text : std::string();
}

schedule::Plan there_and_back(const std::string& plan, const std::string& target, bool by_companion = false) {
    const auto source = source_with(plan);
    core::Diagnostics diagnostics;
    const auto written = exported(source, target, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(written);
    const std::string text = by_companion ? written->companions.front().text : written->text;
    const auto read = interop::find_exchange_target(target)->read(
        text, "file", {.model = "small", .instance = "p4d.24xlarge", .nodes = 2}, diagnostics);
    INFO(text << core::format(diagnostics));
    REQUIRE(read);
    // What reads it runs it.
    schedule::Plan expected = source.file.plan;
    if (target == "megatron") expected.framework = "megatron-lm";
    if (target == "deepspeed") expected.framework = "deepspeed";
    CHECK(core::to_json(schedule::to_value(read->plan)) == core::to_json(schedule::to_value(expected)));
    CHECK(read->plan.optimizer.gradient_clipping == source.file.plan.optimizer.gradient_clipping);
    return read->plan;
}

void refused(const std::string& plan, const std::string& target, const std::string& key) {
    INFO(target << ": " << plan);
    const auto source = source_with(plan);
    core::Diagnostics diagnostics;
    CHECK(!exported(source, target, diagnostics));
    const auto& entries = diagnostics.entries();
    CHECK(std::any_of(entries.begin(), entries.end(), [&](const core::Diagnostic& d) {
        return d.severity == core::Severity::error && d.key == "plan." + key && !d.hint.empty() &&
               d.message.find("cannot be expressed by") != std::string::npos;
    }));
}

}  // namespace

TEST_CASE("a model beyond what a target's arguments say is refused, whatever its family") {
    const std::string plan = "data_parallel = 16\nmicro_batch = 1\nmicro_batches = 2\n";
    const std::pair<const char*, const char*> cases[] = {
        {"query_key_norm = \"all_heads\"\n", "norms of queries and keys"},
        {"score_soft_cap = 50.0\n", "soft caps of scores"},
        {"norm_place = \"both\"\n", "norms behind attention and feed-forward"},
        {"rotation_interval = 4\n", "rotary positions that differ between layers"},
        {"embedding_scale = 2.0\n", "embedding.scale, of the kind elementwise"},
        {"prediction_layers = 1\n", "multi-token prediction"},
        {"window = 64\nwindow_layers = [0, 1, 4]\n", "sliding windows that follow no interval"},
        {"experts = 4\nexperts_per_token = 2\nrouter_bias = true\n", "biases in some linear layers"}};
    for (const char* target : {"megatron", "megatron-bridge", "nemo", "torchtitan"})
        for (const auto& [model, reason] : cases) {
            INFO(target << ": " << model);
            const auto source = source_with(plan, model);
            core::Diagnostics diagnostics;
            CHECK(!exported(source, target, diagnostics));
            const std::string text = core::format(diagnostics);
            CHECK(text.find(reason) != std::string::npos);
            // What is in every layer is said once.
            CHECK(text.find("layers.1.") == std::string::npos);
        }
}

TEST_CASE("what only Megatron-core has is refused by the others, and told to it") {
    const std::string plan = "data_parallel = 16\nmicro_batch = 1\nmicro_batches = 2\n";
    const std::tuple<const char*, const char*, const char*> cases[] = {
        {"query_key_norm = \"per_head\"\n", "norms of queries and keys", "--qk-layernorm\n"},
        {"attention_sinks = true\n", "attention sinks", "--softmax-type learnable\n"},
        {"key_value_rank = 32\nrotary_dimension = 16\n", "latent attention", "--kv-lora-rank 32\n"},
        {"window = 64\nglobal_interval = 4\n", "a sliding window", "--window-attn-skip-freq 4\n"},
        {"experts = 4\nexperts_per_token = 2\nmixture_layers = [1, 4]\n", "mixtures in some layers only",
         "--moe-layer-freq [0]*1+[1]*1+[0]*2+[1]*1+[0]*3\n"},
        {"experts = 4\nexperts_per_token = 2\nshared_expert_ffn = 64\nshared_expert_gate = true\n",
         "an expert of all tokens", "--moe-shared-expert-gate\n"},
        {"experts = 4\nexperts_per_token = 2\nrouter_scores = \"sigmoid\"\n", "choice of experts",
         "--moe-router-score-function sigmoid\n"}};
    for (const auto& [model, reason, argument] : cases) {
        INFO(model);
        const auto source = source_with(plan, model);
        for (const char* target : {"nemo", "torchtitan"}) {
            // It has Qwen3 beside Llama.
            if (target == std::string("torchtitan") && std::string(model).starts_with("query_key")) continue;
            core::Diagnostics diagnostics;
            CHECK(!exported(source, target, diagnostics));
            CHECK(core::format(diagnostics).find(reason) != std::string::npos);
        }
        core::Diagnostics diagnostics;
        const auto arguments = exported(source, "megatron", diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(arguments);
        CHECK(arguments->text.find(argument) != std::string::npos);
        CHECK(exported(source, "megatron-bridge", diagnostics));
    }
}

TEST_CASE("what Megatron-core does not combine with a model is refused by its key") {
    const auto says = [](const std::string& plan, const std::string& model, const std::string& refusal) {
        said_of(plan, model, "megatron", refusal);
    };
    const std::string experts =
        "experts = 4\nexperts_per_token = 2\nqkv_bias = true\nattention_output_bias = true\n"
        "router_bias = true\nexpert_bias = true\n";
    const std::string tensor = "data_parallel = 8\ntensor_parallel = 2\nsequence_parallel = true\n";
    says(tensor, experts, "tensor_parallel = 2 cannot be expressed by Megatron-LM");
    says("data_parallel = 16\n", experts, "");
    const std::string plain = "experts = 4\nexperts_per_token = 2\n";
    says(tensor, plain, "");
    const std::string whole =
        said_of(tensor + "expert_parallel = 4\nexpert_tensor_parallel = 1\n", plain, "megatron", "");
    CHECK(whole.find("--expert-model-parallel-size 4") != std::string::npos);
    CHECK(whole.find("--expert-tensor-parallel-size 1") != std::string::npos);
    CHECK(said_of(tensor + "expert_parallel = 4\n", plain, "megatron", "").find("expert-tensor") ==
          std::string::npos);
    const auto with = [](const char* communication) {
        return "data_parallel = 8\ncontext_parallel = 2\ncontext_communication = \"" +
               std::string(communication) + "\"\n";
    };
    says(with("all_gather"), "attention_sinks = true\n", "set context_communication = \"all_to_all\"");
    says(with("all_to_all"), "attention_sinks = true\n", "");
    says(with("all_gather"), "window = 64\n", "");
    says(with("all_to_all"), "window = 64\n", "");
}

TEST_CASE("torchtitan's Qwen3 has experts over ranks that shard parameters") {
    const std::string model =
        "query_key_norm = \"per_head\"\nexperts = 8\nexperts_per_token = 2\nexpert_ffn = 256\n";
    const auto says = [&](const std::string& plan, const std::string& more, const std::string& refusal) {
        return said_of(plan, model + more, "torchtitan", refusal);
    };
    const std::string sharded =
        "precision = { compute = \"bf16\", parameters = \"bf16\", gradients = \"fp32\", "
        "master_parameters = true }\nsharding = \"parameters\"\n";
    const std::string text = says("data_parallel = 16\nexpert_parallel = 4\n" + sharded, "", "");
    for (const char* part : {"expert_parallel_degree=4", "moe=make_moe_config(", "hidden_dim=FFN",
                             "FFN, VOCABULARY, SEQUENCE, EPSILON = 256,", "qk_norm=RMSNorm.Config("})
        CHECK(text.find(part) != std::string::npos);
    says("data_parallel = 16\nexpert_parallel = 8\nshard_degree = 4\n" + sharded, "",
         "expert_parallel = 8 cannot be expressed by torchtitan");
    // Beside tensor ranks experts are divided where each rank has all of them, and whole where not.
    const std::string tensor = "data_parallel = 8\ntensor_parallel = 2\nsequence_parallel = true\n" + sharded;
    says(tensor, "", "");
    says(tensor + "expert_parallel = 4\n", "", "expert_parallel = 4 cannot be expressed by torchtitan");
    CHECK(says(tensor + "expert_parallel = 4\nexpert_tensor_parallel = 1\n", "", "")
              .find("expert_parallel_degree=4") != std::string::npos);
    says("data_parallel = 16\n" + sharded, "auxiliary_loss = 0.01\n", "an auxiliary loss");
}

TEST_CASE("torchtitan's DeepSeek-V3 has dense layers first and experts of all tokens") {
    const std::string plan =
        "data_parallel = 16\nexpert_parallel = 2\nsharding = \"parameters\"\n"
        "precision = { compute = \"bf16\", parameters = \"bf16\", gradients = \"fp32\", "
        "master_parameters = true }\n";
    const std::string latent =
        "key_value_rank = 32\nquery_rank = 48\nrotary_dimension = 16\nvalue_dimension = 32\n"
        "experts = 8\nexperts_per_token = 2\nexpert_ffn = 128\nrouter_scores = \"sigmoid\"\n"
        "expert_groups = 4\nchosen_groups = 2\nrouted_scale = 2.5\n";
    const auto says = [&](const std::string& more, const std::string& refusal) {
        return said_of(plan, latent + more, "torchtitan", refusal);
    };
    const std::string text = says("dense_layers_first = 3\nshared_expert_ffn = 256\n", "");
    for (const char* part :
         {"layers=build_mla_moe_layers(", "n_dense_layers=3,", "q_lora_rank=48,", "kv_lora_rank=32,",
          "qk_nope_head_dim=48,", "qk_rope_head_dim=16,", "v_head_dim=32,", "dense_hidden_dim=FFN,",
          "moe_hidden_dim=128,", "num_shared_experts=2,", "router_num_expert_groups=4,",
          "router_num_limited_groups=2,", "router_route_scale=2.5,", "router_route_norm=True,",
          "expert_parallel_degree=2"})
        CHECK(text.find(part) != std::string::npos);
    says("dense_layers_first = 3\n", "an expert of all tokens");
    says("dense_layers_first = 3\nshared_expert_ffn = 200\n", "as wide as some of them");
    says("mixture_layers = [0, 3]\nshared_expert_ffn = 128\n", "other mixtures than DeepSeek-V3's");
}

TEST_CASE("every model of the catalogue that Megatron-LM's arguments say is read from them as it was") {
    std::set<std::string> known, of_no_arguments;
    for (const std::string& name : model::catalogue_names()) {
        INFO(name);
        core::Diagnostics diagnostics;
        interop::ExportSource source = source_with("data_parallel = 16\n");
        source.file.model = core::Value::table();
        source.file.model["name"] = name;
        const auto graph = model::load_model(source.file.model, {}, diagnostics);
        REQUIRE(graph);
        source.graph = *graph;
        core::Diagnostics refusals;
        const auto written = exported(source, "megatron", refusals);
        if (!written) {
            CHECK(core::format(refusals).find("the model cannot be expressed") != std::string::npos);
            of_no_arguments.insert(name);
            continue;
        }
        known.insert(name);
        const auto read =
            interop::find_exchange_target("megatron")
                ->read(written->text, "file", {.instance = "p4d.24xlarge", .nodes = 2}, diagnostics);
        INFO(written->text << core::format(diagnostics));
        REQUIRE(read);
        std::optional<model::ModelGraph> again = model::load_model(read->model, {}, diagnostics);
        REQUIRE(again);
        CHECK(model::parameter_count(*again) == model::parameter_count(*graph));
        REQUIRE(again->operators.size() == graph->operators.size());
        for (std::size_t o = 0; o < graph->operators.size(); ++o) {
            INFO(graph->operators[o].name);
            CHECK(again->operators[o].name == graph->operators[o].name);
            model::Attributes attributes = again->operators[o].attributes;
            // Of GELU its fusion chooses the approximation by a tanh, no argument.
            attributes.is_tanh_approximation = graph->operators[o].attributes.is_tanh_approximation;
            CHECK(attributes == graph->operators[o].attributes);
            CHECK(again->tensor(again->operators[o].output).shape ==
                  graph->tensor(graph->operators[o].output).shape);
        }
    }
    for (const char* name : {"gpt2", "gpt3-175b", "llama-3.1-405b", "mixtral-8x7b", "mistral-7b", "qwen2-7b",
                             "qwen3-8b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v3"})
        CHECK(known.contains(name));
    for (const char* name : {"bert-base", "bloom-7b1", "gemma-3-4b", "resnet50"})
        CHECK(of_no_arguments.contains(name));
}

TEST_CASE("what a target can express comes back from its file as it was") {
    there_and_back(
        "order = \"DPT\"\nschedule = \"interleaved\"\npipeline_parallel = 2\ndata_parallel = 8\nmicro_batch "
        "= 2\nmicro_batches = 4\nprecision = \"fp16\"\nsharding = \"optimizer\"\nactive_micro_batches = 3\n",
        "sagemaker-smp-v1", true);
    there_and_back(
        "order = \"DPT\"\ndata_parallel = 8\ntensor_parallel = 2\nmicro_batch = 2\nsharding = "
        "\"parameters\"\nshard_degree = 4\nrecompute = \"full\"\n",
        "sagemaker-smp-v2", true);
    there_and_back(
        "data_parallel = 4\ntensor_parallel = 2\npipeline_parallel = 2\nsequence_parallel = "
        "true\nmicro_batches = 4\nsharding = \"optimizer\"\nshard_degree = 2\npartition = [0, 5]\n",
        "megatron");
    there_and_back(
        "order = \"DPT\"\ndata_parallel = 4\npipeline_parallel = 4\nvirtual_stages = 2\nschedule = "
        "\"interleaved-1f1b\"\nmicro_batches = 8\noverlaps_parameter_gathering = false\npartition = "
        "[0,1,3,4,5,6,7,8]\n",
        "megatron");
    there_and_back(
        "data_parallel = 8\npipeline_parallel = 2\nmicro_batches = 4\npartition = [0, "
        "5]\noverlaps_parameter_gathering = false\nrecompute = \"full\"\n"
        "recompute_layers = 3\n",
        "megatron");
    for (const char* communication : {"all_gather", "all_to_all", "ring"})
        there_and_back("data_parallel = 4\ncontext_parallel = 4\ncontext_communication = \"" +
                           std::string(communication) +
                           "\"\nmicro_batches = 4\noverlaps_parameter_gathering = false\n",
                       "megatron");
    there_and_back(
        "data_parallel = 16\nmicro_batch = 2\nmicro_batches = 4\nsharding = \"parameters\"\nrecompute = "
        "\"full\"\n",
        "deepspeed");
    there_and_back(
        "data_parallel = 4\ncontext_parallel = 4\ncontext_communication = \"all_to_all\"\nmicro_batches = 4\n"
        "sharding = \"parameters\"\n",
        "deepspeed");
    const std::string on_host = "data_parallel = 16\nmicro_batches = 4\noptimizer_offload = \"host\"\n";
    there_and_back(on_host + "sharding = \"optimizer\"\noverlaps_parameter_gathering = false\n", "megatron");
    there_and_back(on_host + "sharding = \"parameters\"\n", "deepspeed");
    there_and_back(on_host + "sharding = \"parameters\"\nparameter_offload = \"host\"\n", "deepspeed");
}

TEST_CASE("an optimizer on the host is one of those that say so") {
    const std::string plan = "data_parallel = 16\nmicro_batches = 4\noptimizer_offload = \"host\"\n";
    for (const char* target : {"sagemaker-smp-v1", "sagemaker-smp-v2", "torchtitan", "accelerate", "nemo"})
        refused(plan, target, "optimizer_offload");
    // Both have one where its state is divided.
    for (const char* target : {"megatron", "megatron-bridge", "deepspeed"})
        refused(plan, target, "optimizer_offload");
    core::Diagnostics diagnostics;
    const auto bridged =
        exported(source_with(plan + "sharding = \"optimizer\"\n"), "megatron-bridge", diagnostics);
    REQUIRE(bridged);
    CHECK(bridged->text.find("optimizer_cpu_offload=True") != std::string::npos);
}

TEST_CASE("parameters on the host are DeepSpeed's and FSDP's, which keeps both there or neither") {
    const std::string plan =
        "data_parallel = 16\nmicro_batches = 4\noptimizer_offload = \"host\"\nparameter_offload = "
        "\"host\"\nsharding = \"parameters\"\nprecision = { compute = \"bf16\", parameters = \"bf16\", "
        "gradients = \"GRADIENTS\", master_parameters = true }\nattention = \"flash\"\n";
    const auto with = [&](const char* gradients) {
        std::string text = plan;
        return text.replace(text.find("GRADIENTS"), 9, gradients);
    };
    for (const char* target : {"sagemaker-smp-v1", "sagemaker-smp-v2", "nemo", "megatron", "megatron-bridge"})
        refused(with("bf16"), target, "parameter_offload");
    for (const auto& [target, gradients, said] :
         {std::tuple("torchtitan", "fp32", "enable_cpu_offload=True"),
          std::tuple("accelerate", "bf16", "fsdp_offload_params: true")}) {
        core::Diagnostics diagnostics;
        const auto fsdp = exported(source_with(with(gradients)), target, diagnostics);
        INFO(target << core::format(diagnostics));
        REQUIRE(fsdp);
        CHECK(fsdp->text.find(said) != std::string::npos);
    }
    // ZeRO-3 over one rank too.
    core::Diagnostics diagnostics;
    std::string alone = with("bf16");
    alone.replace(alone.find("16"), 2, "1");
    const auto written = exported(source_with(alone), "deepspeed", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(written);
    CHECK(written->text.find("\"stage\": 3") != std::string::npos);
}

TEST_CASE("parts of layers that run again are Megatron-LM's modules where it has them") {
    const auto source_of = [](const std::string& model, const std::string& modules) {
        interop::ExportSource source = source_with(
            "data_parallel = 16\nmicro_batches = 4\noverlaps_parameter_gathering = false\n"
            "recompute = \"selective\"\nrecompute_modules = [" +
            modules + "]\n");
        source.file.model = core::Value::table();
        source.file.model["name"] = model;
        core::Diagnostics diagnostics;
        source.graph = *model::load_model(source.file.model, {}, diagnostics);
        return source;
    };
    core::Diagnostics diagnostics;
    // As NVIDIA's recipe has it.
    CHECK(exported(source_of("deepseek-v3", "\"mla_up_proj\", \"mlp\""), "megatron", diagnostics)
              ->text.find("--recompute-modules mla_up_proj mlp\n") != std::string::npos);
    const interop::ExportSource source = source_of("deepseek-v3", "\"mla_up_proj\", \"layernorm\"");
    const auto written = exported(source, "megatron", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(written);
    INFO(written->text);
    CHECK(written->text.find("--recompute-modules layernorm mla_up_proj\n") != std::string::npos);
    const auto read =
        interop::find_exchange_target("megatron")
            ->read(written->text, "file", {.instance = "p4d.24xlarge", .nodes = 2}, diagnostics);
    REQUIRE(read);
    CHECK(read->plan.recompute == schedule::Recompute::selective);
    CHECK(read->plan.recompute_modules == source.file.plan.recompute_modules);
    const auto bridged = exported(source, "megatron-bridge", diagnostics);
    REQUIRE(bridged);
    CHECK(bridged->text.find("recompute_modules=[\"layernorm\", \"mla_up_proj\"]") != std::string::npos);

    CHECK(exported(source_of("mixtral-8x7b", "\"moe_act\""), "megatron", diagnostics)
              ->text.find("--recompute-modules moe_act\n") != std::string::npos);

    // Its activations are inside experts; norms of a Llama are in one kernel with what follows.
    for (const auto& [model, module, target] : {std::tuple{"deepseek-v3", "\"activation\"", "megatron"},
                                                {"llama-3-8b", "\"layernorm\"", "megatron"},
                                                {"llama-3-8b", "\"activation\"", "megatron-bridge"},
                                                {"llama-3-8b", "\"layernorm\"", "nemo"},
                                                {"mixtral-8x7b", "\"moe_act\"", "nemo"}}) {
        core::Diagnostics refusals;
        CHECK(!exported(source_of(model, module), target, refusals));
        CHECK(core::format(refusals).find("recompute_modules = ") != std::string::npos);
    }
}

TEST_CASE("keys in a ring are what Megatron-LM calls p2p and PyTorch alltoall") {
    const std::string ring = "data_parallel = 4\ncontext_parallel = 4\ncontext_communication = \"ring\"\n";
    for (const auto& [plan, target, words] :
         {std::tuple{ring, "megatron", "--cp-comm-type p2p"},
          std::tuple{ring + "sharding = \"parameters\"\n", "accelerate",
                     "parallelism_config_cp_comm_strategy: \"alltoall\""}}) {
        core::Diagnostics diagnostics;
        const auto written = exported(source_with(plan), target, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(written);
        INFO(written->text);
        CHECK(written->text.find(words) != std::string::npos);
    }
}

TEST_CASE("what a target cannot express is refused by its key") {
    const std::string piped =
        "data_parallel = 4\npipeline_parallel = 4\nmicro_batches = 8\nprecision = \"fp16\"\n";
    refused(piped + "order = \"DPT\"\n", "sagemaker-smp-v1", "schedule");
    // With one tensor rank PDT is TPD; with two it is neither of the words that the SDK takes.
    refused(
        "data_parallel = 2\ntensor_parallel = 2\npipeline_parallel = 4\nprecision = \"fp16\"\nschedule = "
        "\"interleaved\"\n",
        "sagemaker-smp-v1", "order");
    refused("data_parallel = 16\nsharding = \"gradients\"\n", "sagemaker-smp-v1", "sharding");
    refused("data_parallel = 16\n", "sagemaker-smp-v1", "precision");
    refused("data_parallel = 16\nrecompute = \"selective\"\n", "sagemaker-smp-v1", "recompute");
    for (const char* target :
         {"sagemaker-smp-v1", "sagemaker-smp-v2", "deepspeed", "torchtitan", "accelerate"})
        refused("data_parallel = 16\nrecompute = \"full\"\nrecompute_layers = 2\n", target,
                "recompute_layers");
    for (const char* target :
         {"megatron", "megatron-bridge", "nemo", "deepspeed", "torchtitan", "sagemaker-smp-v1"})
        refused(piped + "recompute = \"full\"\nrecompute_layers = [2, 1, 0, 0]\n", target,
                "recompute_layers");
    for (const char* target : {"sagemaker-smp-v2", "torchtitan", "accelerate"})
        refused(
            "data_parallel = 4\ncontext_parallel = 4\ncontext_communication = \"all_to_all\"\nsharding = "
            "\"parameters\"\n",
            target, "context_communication");
    for (const char* target : {"sagemaker-smp-v2", "torchtitan"})
        refused(
            "data_parallel = 4\ncontext_parallel = 4\ncontext_communication = \"ring\"\nsharding = "
            "\"parameters\"\n",
            target, "context_communication");
    refused("data_parallel = 4\ncontext_parallel = 4\n", "deepspeed", "context_parallel");
    refused(
        "data_parallel = 2\ntensor_parallel = 2\ncontext_parallel = 4\ncontext_communication = "
        "\"all_to_all\"\n",
        "deepspeed", "context_parallel");
    refused(piped, "sagemaker-smp-v2", "pipeline_parallel");
    refused("data_parallel = 16\nsharding = \"optimizer\"\n", "sagemaker-smp-v2", "sharding");
    refused(piped + "schedule = \"simple\"\n", "megatron", "schedule");
    refused("data_parallel = 16\nsharding = \"parameters\"\n", "megatron", "sharding");
    refused(piped + "sharding = \"parameters\"\n", "deepspeed", "sharding");
    refused(piped + "partition = [0, 2, 3, 9]\n", "deepspeed", "partition");
    refused(piped + "order = \"DPT\"\n", "deepspeed", "order");
    // DeepSpeed 0.19 refuses mics_shard_size.
    refused("data_parallel = 16\nsharding = \"parameters\"\nshard_degree = 8\n", "deepspeed", "shard_degree");
    refused("data_parallel = 16\n", "torchtitan", "precision");
    refused(piped + "sharding = \"gradients\"\n", "torchtitan", "sharding");
    refused("data_parallel = 16\nsharding = \"optimizer\"\n", "torchtitan", "sharding");
    refused("data_parallel = 8\ntensor_parallel = 2\n", "accelerate", "sharding");
    refused("data_parallel = 16\nsharding = \"optimizer\"\n", "accelerate", "sharding");
    refused(piped, "accelerate", "pipeline_parallel");
    refused(piped + "schedule = \"simple\"\n", "megatron-bridge", "schedule");
    refused("data_parallel = 15\n", "kubernetes", "data_parallel");
    refused("data_parallel = 15\n", "skypilot", "data_parallel");
    refused(piped + "order = \"DPT\"\n", "nemo", "order");
    refused("data_parallel = 15\n", "slurm", "data_parallel");
}

TEST_CASE("torchtitan keeps gathered parameters by its default where that is what the plan says") {
    const std::string precise =
        "precision = { compute = \"bf16\", parameters = \"bf16\", gradients = \"fp32\", master_parameters = "
        "true }\n";
    // distributed/fsdp.py: "default" is "never" with a pipeline, else "always".
    const std::tuple<const char*, int, const char*> cases[] = {{"parameters", 1, "default"},
                                                               {"gradients", 1, "never"},
                                                               {"optimizer", 4, "default"},
                                                               {"parameters", 4, "always"}};
    for (const auto& [sharding, pipeline, mode] : cases) {
        const auto source = source_with(precise + "data_parallel = " + std::to_string(16 / pipeline) +
                                        "\npipeline_parallel = " + std::to_string(pipeline) +
                                        "\nmicro_batches = 8\nsharding = \"" + sharding + "\"\n");
        core::Diagnostics diagnostics;
        const auto written = exported(source, "torchtitan", diagnostics);
        INFO(sharding << core::format(diagnostics));
        REQUIRE(written);
        CHECK(written->text.find("fsdp_reshard_after_forward=\"" + std::string(mode) + "\"") !=
              std::string::npos);
    }
}

TEST_CASE("a launcher starts smexec with the plan on every rank") {
    auto source = source_with("data_parallel = 16\n");
    source.file.path = "plan.toml";
    core::Diagnostics diagnostics;
    const auto written = exported(source, "torchrun", diagnostics);
    REQUIRE(written);
    CHECK(written->text.find("torchrun --nnodes=2 --nproc_per_node=8 --node_rank=$NODE_RANK "
                             "--master_addr=REPLACE_WITH_FIRST_HOST --master_port=29500 --no-python "
                             "smexec plan.toml --backend cuda --ranks-from env\n") != std::string::npos);
}

TEST_CASE("a Slurm job that keeps checkpoints is requeued when it ends as one that goes on") {
    auto source = source_with("data_parallel = 16\n");
    source.file.path = "plan.toml";
    interop::ExportOptions options;
    options.checkpoint = "my states";
    options.checkpoint_every = 100;
    core::Diagnostics diagnostics;
    const auto written = interop::find_exchange_target("slurm")->write(source, options, diagnostics);
    REQUIRE(written);
    INFO(written->text);
    // The order is sbatch's: what stands behind the first command is no option any more.
    const std::size_t first_command = written->text.find("set -eu\n");
    for (const char* option : {"--requeue\n", "--open-mode=append\n", "--signal=TERM@120\n", "--nodes=2\n"})
        CHECK(written->text.find(std::string("#SBATCH ") + option) < first_command);
    CHECK(written->text.find("smexec plan.toml --backend cuda --ranks-from env --checkpoint 'my states' "
                             "--every 100 --resume --no-compare || status=$?\n") != std::string::npos);
    CHECK(written->text.find("scontrol requeue \"$SLURM_JOB_ID\"") != std::string::npos);

    const auto once = exported(source, "slurm", diagnostics);
    REQUIRE(once);
    CHECK(once->text.find("requeue") == std::string::npos);
}

TEST_CASE("another command finds torch's ranks in a Slurm job") {
    const auto source = source_with("data_parallel = 16\n");
    interop::ExportOptions options;
    options.command = "python3 train.py --name 'a b'";
    core::Diagnostics diagnostics;
    const auto written = interop::find_exchange_target("slurm")->write(source, options, diagnostics);
    REQUIRE(written);
    CHECK(written->text.find("srun --label sh -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; "
                             "python3 train.py --name '\\''a b'\\'''\n") != std::string::npos);
    CHECK(written->text.find("export WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=8\n") != std::string::npos);
    CHECK(written->text.find("SMEXEC") == std::string::npos);
}

TEST_CASE("the announcement's estimator is read although its distribution has lost its name") {
    core::Diagnostics diagnostics;
    const auto read =
        interop::find_exchange_target("sagemaker-smp-v1")
            ->read(
                "from x import TensorFlow\ne = TensorFlow(role=role, instance_count=1, "
                "instance_type='ml.p3.8xlarge',\n {\"smdistributed\": {\"modelparallel\": {\"parameters\": "
                "{\"microbatches\": 2, \"partitions\": 2, \"pipeline\": \"interleaved\", \"optimize\": "
                "\"memory\", \"horovod\": True,}}}, \"mpi\": {\"processes_per_host\": 2}})\ne.fit(i)\n",
                "notebook.py", {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(read);
    CHECK(read->plan.layout == schedule::ParallelLayout{1, 1, 2, "DPT"});
    CHECK(read->plan.micro_batches == 2);
    CHECK(read->plan.schedule == "interleaved");
    CHECK(read->cluster.find("instance")->string() == "p3.8xlarge");
}

TEST_CASE("a pipeline layout with repetitions is the first unit of each stage") {
    CHECK(interop::read_megatron_layout("Et*2|(tt|)*2,tL") == std::vector<std::int32_t>{0, 3, 5, 7});
    CHECK(!interop::read_megatron_layout("Et||tL"));
    CHECK(!interop::read_megatron_layout("E(t*99999999999)*9|L"));
}

TEST_CASE("Megatron-Bridge, whose experts are whole unless they are said to be divided, is told") {
    const std::string mixture = "experts = 8\nexperts_per_token = 2\n",
                      plan =
                          "data_parallel = 4\ntensor_parallel = 4\nsequence_parallel = true\n"
                          "micro_batches = 4\noverlaps_parameter_gathering = false\nexpert_parallel = 4\n";
    for (const bool are_whole : {false, true}) {
        core::Diagnostics diagnostics;
        const auto bridged =
            exported(source_with(plan + (are_whole ? "expert_tensor_parallel = 1\n" : ""), mixture),
                     "megatron-bridge", diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(bridged);
        const char* const said =
            are_whole ? "expert_tensor_parallel_size=1" : "expert_tensor_parallel_size=4";
        CHECK(bridged->text.find(said) != std::string::npos);
    }
}
