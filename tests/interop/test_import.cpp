// Other tools' files into plans: the model that they describe, and every key honoured, harmless or refused.
#include <catch2/catch.hpp>

#include <optional>
#include <string>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "interop/exchange.h"
#include "model/load.h"

namespace {

std::optional<schedule::PlanFile> imported(const std::string& text, const std::string& target,
                                           core::Diagnostics& diagnostics, const std::string& model = "") {
    return interop::find_exchange_target(target)->read(
        text, "file", {.model = model, .instance = "p5.48xlarge", .nodes = 32}, diagnostics);
}

double parameters_of(const std::string& arguments) {
    core::Diagnostics diagnostics;
    const auto file = imported(arguments, "megatron", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(file);
    const std::optional<model::ModelGraph> graph = model::load_model(file->model, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return static_cast<double>(model::parameter_count(*graph));
}

void refused(const std::string& text, const std::string& target, const std::string& key) {
    INFO(target << ": " << text);
    core::Diagnostics diagnostics;
    CHECK(!imported(text, target, diagnostics, target == "deepspeed" ? "gpt2" : ""));
    bool names_key = false;
    for (const core::Diagnostic& entry : diagnostics.entries())
        names_key =
            names_key ||
            (entry.severity == core::Severity::error && !entry.hint.empty() &&
             (entry.key.find(key) != std::string::npos || entry.message.find(key) != std::string::npos));
    INFO(core::format(diagnostics));
    CHECK(names_key);
}

const std::string run = " --micro-batch-size 1 --global-batch-size 256 --bf16 --use-distributed-optimizer ";
const std::string llama_like =
    " --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
    "--group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--untie-embeddings-and-output-weights --vocab-size 128256 ";

}  // namespace

TEST_CASE("Megatron-LM's arguments describe the models that are trained with them") {
    // Parameters as their papers and cards count them: 8.03 and 46.7 billion, 671 billion (DeepSeek-V3,
    // without its module of multi-token prediction) and 30.5 billion (Qwen3-30B-A3B).
    CHECK(parameters_of(run + llama_like) == Approx(8.03e9).epsilon(0.001));
    CHECK(parameters_of(
              run + " --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
                    "--group-query-attention --num-query-groups 8 --seq-length 4096 "
                    "--max-position-embeddings 32768 --position-embedding-type rope --normalization RMSNorm "
                    "--swiglu --disable-bias-linear --untie-embeddings-and-output-weights "
                    "--tokenizer-type Llama2Tokenizer --num-experts 8 --moe-router-topk 2 "
                    "--moe-aux-loss-coeff 1e-2 --expert-model-parallel-size 8") ==
          Approx(46.7e9).epsilon(0.001));
    CHECK(parameters_of(
              run + "--num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128 "
                    "--seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope "
                    "--normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm "
                    "--untie-embeddings-and-output-weights --vocab-size 129280 --multi-latent-attention "
                    "--q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 "
                    "--v-head-dim 128 --num-experts 256 --moe-layer-freq '([0]*3+[1]*58)' "
                    "--moe-ffn-hidden-size 2048 --moe-shared-expert-intermediate-size 2048 "
                    "--moe-router-topk 8 --moe-router-group-topk 4 --moe-router-num-groups 8 "
                    "--moe-router-topk-scaling-factor 2.5 --moe-router-score-function sigmoid "
                    "--moe-router-pre-softmax --moe-router-enable-expert-bias --moe-grouped-gemm "
                    "--expert-model-parallel-size 64") == Approx(671.03e9).epsilon(0.0005));
    CHECK(parameters_of(run +
                        "--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 "
                        "--group-query-attention --num-query-groups 4 --kv-channels 128 --seq-length 4096 "
                        "--max-position-embeddings 40960 --position-embedding-type rope "
                        "--normalization RMSNorm --swiglu --disable-bias-linear --qk-layernorm "
                        "--untie-embeddings-and-output-weights --vocab-size 151936 --num-experts 128 "
                        "--moe-ffn-hidden-size 768 --moe-router-topk 8 --expert-model-parallel-size 8") ==
          Approx(30.53e9).epsilon(0.001));
}

TEST_CASE("how Megatron-LM dispatches tokens is what is priced, or a warning says otherwise") {
    const auto said = [](const std::string& more) {
        core::Diagnostics diagnostics;
        const bool is_read =
            imported(run + llama_like + "--num-experts 8 --expert-model-parallel-size 2 " + more, "megatron",
                     diagnostics)
                .has_value();
        return (is_read ? "read: " : "refused: ") + core::format(diagnostics);
    };
    const std::string priced = "--moe-token-dispatcher-type alltoall --moe-grouped-gemm";
    CHECK(said(priced).find("priced") == std::string::npos);
    // Megatron-LM's own default is allgather.
    CHECK(said("--moe-grouped-gemm").find("dispatched by allgather are priced") != std::string::npos);
    CHECK(said("--moe-token-dispatcher-type alltoall").find("one grouped product") != std::string::npos);
    CHECK(said("--moe-grouped-gemm --moe-token-dispatcher-type ring").find("refused: ") == 0);
}

TEST_CASE("modules that run again are all read, and experts are divided as the rest of the model or whole") {
    core::Diagnostics diagnostics;
    const std::string experts = run + llama_like + "--num-experts 8 --sequence-parallel ";
    for (const char* modules : {"core_attn mla_up_proj layernorm", "core_attn,mla_up_proj,layernorm",
                                "core_attn mla_up_proj layernorm ${MORE[@]} && echo done",
                                "core_attn mla_up_proj layernorm | tee log"}) {
        const auto several =
            imported(experts + "--recompute-granularity selective --recompute-modules " + modules + "\nrun",
                     "megatron", diagnostics);
        REQUIRE(several);
        CHECK(several->plan.recompute_modules.are({schedule::RecomputeModule::core_attn,
                                                   schedule::RecomputeModule::mla_up_proj,
                                                   schedule::RecomputeModule::layernorm}));
    }
    const auto activations =
        imported(experts + "--recompute-granularity selective --recompute-modules moe_act\nrun", "megatron",
                 diagnostics);
    REQUIRE(activations);
    CHECK(activations->plan.recompute_modules.are({schedule::RecomputeModule::moe_act}));
    CHECK(imported(experts + "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 2", "megatron",
                   diagnostics));
    refused(experts + "--tensor-model-parallel-size 2 --expert-tensor-parallel-size 1", "megatron",
            "expert-tensor-parallel-size");
    const auto whole = imported(experts +
                                    "--tensor-model-parallel-size 2 --expert-model-parallel-size 4 "
                                    "--expert-tensor-parallel-size 1",
                                "megatron", diagnostics);
    REQUIRE(whole);
    CHECK(whole->plan.layout.expert_ranks() == 4);
    CHECK(whole->plan.layout.expert_tensor() == 1);
    CHECK(whole->plan.layout.expert == 2);  // of the data axis
}

TEST_CASE("every argument of Megatron-LM is honoured, harmless or refused") {
    core::Diagnostics diagnostics;
    const auto file =
        imported(run + llama_like +
                     "--log-interval 1 --save /x --tensorboard-dir /y --eval-iters 10 --lr 3e-4 "
                     "--lr-decay-style cosine --lr-warmup-iters 500 --data-path a b c --split 99,1,0 "
                     "--clip-grad 0.5 --attention-backend unfused --train-samples 25600000000 "
                     "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
                 "megatron", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(file);
    CHECK(diagnostics.entries().empty());
    CHECK(file->plan.optimizer.gradient_clipping == 0.5);
    CHECK(file->plan.attention == model::AttentionImplementation::unfused);
    CHECK(file->plan.sharding == schedule::Sharding::parameters);
    CHECK(file->plan.framework == "megatron-lm");
    CHECK(file->training.steps == 1 << 20);  // the most that a plan holds; 25.6e9 / 256 are more
    // Without --clip-grad Megatron-LM clips at 1.
    CHECK(imported(run + llama_like, "megatron", diagnostics)->plan.optimizer.gradient_clipping == 1);
    for (const char* argument :
         {"squared-relu", "multi-latent-attentions", "spec a b", "optimizer muon",
          "moe-layer-freq [0]*3+[1]*58 --num-experts 4", "moe-layer-freq (((([1] --num-experts 4",
          "moe-layer-freq [1]*99999999999 --num-experts 4", "window-size x", "use-precision-aware-optimizer",
          "expert-tensor-parallel-size 2", "cp-comm-type a2a+p2p",
          "recompute-granularity selective --recompute-modules gdn_norm_out",
          "recompute-method odd --recompute-granularity full",
          "recompute-num-layers 2 --recompute-granularity full", "softmax-type odd", "attention-backend odd",
          "account-for-embedding-in-pipeline-split"}) {
        const std::string text = argument;
        const std::size_t blank = text.find(' ');
        std::string key = text.substr(0, blank);
        if (key == "recompute-granularity") key = "recompute-modules";
        refused(run + llama_like + "--" + text, "megatron", key);
    }
    refused("pretrain_t5.py " + run + llama_like, "megatron", "pretrain_t5.py");
    refused(R"({"script": "/a/pretrain_bert.py", "arguments": ["--num-layers", "24"]})", "megatron",
            "pretrain_bert.py");
    // What interop/capture writes.
    const auto captured = imported(
        R"({"script": "pretrain_gpt.py", "launcher": ["--nproc_per_node", "8"], "arguments": ["--num-layers",
            "12", "--hidden-size", "768", "--num-attention-heads", "12", "--seq-length", "1024",
            "--max-position-embeddings", "1024", "--micro-batch-size=4", "--merge-file", "x", "--fp16"]})",
        "megatron", diagnostics);
    REQUIRE(captured);
    CHECK(captured->plan.micro_batch == 4);
    CHECK(captured->model.find("vocabulary")->integer() == 50304);  // 50257 in whole multiples of 128
}

TEST_CASE("Megatron-LM's vocabulary is padded to whole multiples for every tensor rank") {
    // GPT-3's well-known 51200 rows on 8 tensor ranks: 50 x (128 x 8), the least above 50257.
    const std::pair<const char*, std::int64_t> cases[] = {
        {"--tensor-model-parallel-size 8", 51200},
        {"--tensor-model-parallel-size 4", 50688},  // 99 x 512
        {"--tensor-model-parallel-size 8 --make-vocab-size-divisible-by 1", 50264},
        {"--tensor-model-parallel-size 8 --padded-vocab-size 51456", 51456}};
    for (const auto& [arguments, rows] : cases)
        for (const char* model : {"", "gpt2"}) {  // a named model is padded too
            core::Diagnostics diagnostics;
            const auto file = imported(run +
                                           "--num-layers 12 --hidden-size 768 --num-attention-heads 16 "
                                           "--seq-length 1024 --max-position-embeddings 1024 --vocab-size "
                                           "50257 " +
                                           arguments,
                                       "megatron", diagnostics, model);
            INFO(arguments << core::format(diagnostics));
            REQUIRE(file);
            CHECK(file->model.find("vocabulary")->integer() == rows);
        }
}

TEST_CASE("every key of a DeepSpeed configuration is honoured, harmless or refused") {
    const auto configuration = [](const std::string& more, const std::string& zero = "") {
        return R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
                   "bf16": {"enabled": true},
                   "steps_per_print": 10, "gradient_clipping": 0.5, "zero_optimization": {"stage": 3,
                   "stage3_max_live_parameters": 1e9)" +
               zero + "}" + more + "}";
    };
    core::Diagnostics diagnostics;
    const auto file = imported(configuration(R"(, "compression_training": {"weights": {"enabled": false}})"),
                               "deepspeed", diagnostics, "gpt2");
    INFO(core::format(diagnostics));
    REQUIRE(file);
    CHECK(file->plan.optimizer.gradient_clipping == 0.5);
    CHECK_FALSE(file->plan.updates_on_hosts());
    const auto on_hosts = imported(configuration("", R"(, "offload_optimizer": {"device": "cpu"})"),
                                   "deepspeed", diagnostics, "gpt2");
    REQUIRE(on_hosts);
    CHECK(on_hosts->plan.optimizer_offload == schedule::Offload::host);
    CHECK(on_hosts->plan.parameter_offload == schedule::Offload::none);
    const auto all_on_hosts = imported(
        configuration("", R"(, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"})"),
        "deepspeed", diagnostics, "gpt2");
    REQUIRE(all_on_hosts);
    CHECK(all_on_hosts->plan.parameter_offload == schedule::Offload::host);
    for (const char* key :
         {"compression_training\": {\"weights\": {\"enabled\": true}}", "amp\": {\"enabled\": true}",
          "sparse_gradients\": true", "gradient_cliping\": 1"}) {
        const std::string text = key;
        refused(configuration(", \"" + text), "deepspeed", text.substr(0, text.find('"')));
    }
    for (const char* key :
         {"zero_hpz_partition_size\": 8", "zero_quantized_gradients\": true",
          "zero_quantized_weights\": true", "cpu_offload\": true", "stage3_prefetch_bucket\": 1",
          "offload_optimizer\": {\"device\": \"nvme\"}", "offload_param\": {\"device\": \"nvme\"}",
          "offload_param\": {\"device\": \"cpu\"}"}) {  // and the optimizer stays
        const std::string text = key;
        refused(configuration("", ", \"" + text), "deepspeed", text.substr(0, text.find('"')));
    }
}

TEST_CASE("a DeepSpeed configuration that leaves its batch to the autotuner is refused for that") {
    refused(R"({"train_micro_batch_size_per_gpu": "auto", "autotuning": {"enabled": true}})", "deepspeed",
            "autotuning");
}

TEST_CASE("an estimator's hyperparameters by the example scripts' names are the training's") {
    core::Diagnostics diagnostics;
    const auto read = interop::find_exchange_target("sagemaker-smp-v2")
                          ->read(R"({"instance_type": "ml.p5.48xlarge", "instance_count": 2,
                 "hyperparameters": {"max_steps": 50, "lr": 3e-5, "beta2": 0.95, "weight_decay": 0.2,
                                     "fp8": 1,
                                     "bf16": 1, "train_batch_size": 3, "max_context_width": 4096,
                                     "gradient_accumulation": 4, "activation_checkpointing": 1},
                 "distribution": {"smdistributed": {"modelparallel": {"parameters": {
                     "hybrid_shard_degree": 8, "tensor_parallel_degree": 2}}}}})",
                                 "run.json", {.model = "llama-2-7b"}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(read);
    CHECK(read->plan.layout.data == 8);  // 2 instances x 8 devices / 2
    CHECK(read->plan.micro_batch == 3);
    CHECK(read->plan.micro_batches == 4);
    CHECK(read->plan.optimizer.learning_rate == 3e-5);
    CHECK(read->plan.optimizer.beta2 == 0.95);
    CHECK(read->plan.optimizer.weight_decay == 0.2);
    CHECK(read->plan.precision.compute == core::DataType::fp8);
    CHECK(read->plan.precision.parameters == core::DataType::bf16);
    CHECK(read->training.steps == 50);
    CHECK(read->model.find("sequence_length")->integer() == 4096);
}

TEST_CASE("a resolved torchtitan configuration is a plan, and what it has beyond one is refused") {
    const std::string begin =
        R"({"torchtitan": "0.3.0", "ranks": 256, "degrees": {"dp_replicate": 2, "dp_shard": 4,
            "cp": 2, "tp": 4, "pp": 4, "ep": 1}, "sequence_parallel": true,
            "reshards_after_forward": false, "schedule": "Interleaved1F1B", "schedule_file": "",
            "micro_batch": 2, "micro_batches": 8, "sequence_length": 4096, "steps": 7, "max_norm":
            1.0, "dtype": "float32", "mixed_precision_param": "bfloat16", "seed": null, "optimizer":
            {"name": "AdamW", "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay":
            0.1}, "model": {"name": "x", "hidden": 512, "layers": 8, "heads": 8, "kv_heads": 4,
            "head_dimension": 64, "ffn": 1024, "vocabulary": 1024, "tied_embeddings": false,
            "epsilon": 1e-5, "rotary_base": 500000.0}, "stages": [["tok_embeddings", "layers.0"],
            ["layers.1"], ["layers.2"], ["layers.3"], ["layers.4"], ["layers.5"], ["layers.6"],
            ["layers.7", "norm", "lm_head"]], )";
    core::Diagnostics diagnostics;
    const auto file = imported(begin + R"("activation_checkpoint": "FullAC", "accumulation": 1})",
                               "torchtitan", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(file);
    const schedule::Plan& plan = file->plan;
    CHECK(plan.layout.data == 16);  // 2 x 4 x 2
    CHECK(plan.layout.replicas() == 8);
    CHECK(plan.layout.tensor == 4);
    CHECK(plan.effective_shard_degree() == 8);              // dp_shard x cp
    CHECK(plan.sharding == schedule::Sharding::optimizer);  // stages keep whole gradients to the last one
    CHECK(plan.virtual_stages == 2);
    CHECK(plan.partition.first_units == std::vector<std::int32_t>{0, 2, 3, 4, 5, 6, 7, 8});
    CHECK(plan.global_batch() == 2 * 8 * 8);
    CHECK(plan.recompute == schedule::Recompute::full);
    CHECK(model::load_model(file->model, {}, diagnostics));
    // Experts over ranks are whole on tensor ranks.
    const auto with_experts = [&](const char* ranks) {
        std::string text = begin + R"("activation_checkpoint": "FullAC", "accumulation": 1})";
        return text.replace(text.find("\"ep\": 1"), 7, "\"ep\": " + std::string(ranks));
    };
    core::Diagnostics without_experts;
    imported(with_experts("16"), "torchtitan", without_experts);
    CHECK(core::format(without_experts).find("ep = 16 takes a part") == std::string::npos);
    refused(with_experts("2"), "torchtitan", "ep");   // of four tensor ranks
    refused(with_experts("64"), "torchtitan", "ep");  // of 32 that share parameters
    refused(begin + R"("activation_checkpoint": "MemoryBudgetAC", "accumulation": 1})", "torchtitan",
            "activation_checkpoint");
    refused(begin + R"("activation_checkpoint": "none", "accumulation": 2})", "torchtitan", "accumulation");
    refused(begin + R"("activation_checkpoint": "none", "accumulation": 1, "cpu_offload": true})",
            "torchtitan", "cpu_offload");
    refused(begin + R"("activation_checkpoint": "none", "accumulation": 1, "news": true})", "torchtitan",
            "news");
}

TEST_CASE("SMDDP's dictionary becomes a plan of replicas, and the same dictionary again") {
    const auto read = [](const std::string& text, core::Diagnostics& diagnostics) {
        return interop::find_exchange_target("sagemaker-smddp")
            ->read(text, "file",
                   {.model = "bert-large", .instance = "p3dn.24xlarge", .nodes = 2, .micro_batch = 8},
                   diagnostics);
    };
    core::Diagnostics diagnostics;
    // As the SDK's documentation writes it, with Python's True.
    const std::string text =
        "distribution={'smdistributed': {'dataparallel': {'enabled': True, 'custom_mpi_options': "
        "'-verbose'}}}";
    const auto file = read(text, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(file);
    CHECK(file->plan.layout.data == 16);
    CHECK(file->plan.layout.ranks() == 16);
    CHECK(file->plan.communication == "smddp");
    CHECK(file->plan.sharding == schedule::Sharding::none);
    const auto sharded = read("{\"torch_distributed\": {\"enabled\": true}}", diagnostics);
    REQUIRE(sharded);
    CHECK(sharded->plan.sharding == schedule::Sharding::parameters);
    CHECK_FALSE(diagnostics.has_errors());
    for (const char* other : {"{\"smdistributed\": {\"dataparallel\": {\"enabled\": false}}}",
                              "{\"smdistributed\": {\"modelparallel\": {\"enabled\": true}}}"}) {
        core::Diagnostics refusal;
        CHECK_FALSE(read(other, refusal));
        CHECK(refusal.has_errors());
    }
    // And out again.
    interop::ExportSource source;
    source.file = *file;
    source.graph = *model::load_model(file->model, {}, diagnostics);
    source.cluster = *cluster::load_cluster(file->cluster, diagnostics);
    const interop::ExchangeTarget& target = *interop::find_exchange_target("sagemaker-smddp");
    const auto written = target.write(source, {}, diagnostics);
    REQUIRE(written);
    const auto again = read(written->text, diagnostics);
    REQUIRE(again);
    CHECK(again->plan.layout == file->plan.layout);
    source.file.plan.layout = {.data = 8, .tensor = 2};
    core::Diagnostics refusal;
    CHECK_FALSE(target.write(source, {}, refusal));
}
