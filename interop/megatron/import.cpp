// Megatron-LM's arguments back into a plan.
#include <algorithm>
#include <iterator>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "interop/import_place.h"
#include "interop/megatron/arguments.h"
#include "interop/megatron/model.h"
#include "interop/megatron/partition.h"
#include "interop/targets.h"

namespace interop {

namespace {

void read_partition(MegatronArguments& a, std::int64_t layers, schedule::Plan& plan) {
    if (const std::int64_t per_stage = a.positive("num-layers-per-virtual-pipeline-stage", 0);
        per_stage > 0) {
        if (layers == 0 || layers % (per_stage * plan.layout.pipeline) != 0)
            a.error("num-layers-per-virtual-pipeline-stage",
                    fmt::format("{} layers do not divide into stages of {} on {} ranks", layers, per_stage,
                                plan.layout.pipeline),
                    "give --num-layers and a divisor");
        else plan.virtual_stages = static_cast<int>(layers / (per_stage * plan.layout.pipeline));
    }
    plan.virtual_stages =
        static_cast<int>(a.positive("num-virtual-stages-per-pipeline-rank", plan.virtual_stages));
    if (a.has("pipeline-model-parallel-layout")) {
        const auto first = read_megatron_layout(a.text("pipeline-model-parallel-layout"));
        if (!first || first->size() % static_cast<std::size_t>(plan.layout.pipeline) != 0) {
            a.error(
                "pipeline-model-parallel-layout",
                "this layout is no partition into an embedding, layers and a loss over the pipeline's ranks",
                "for example Ett|tt|ttL");
            return;
        }
        plan.partition.first_units = *first;
        plan.virtual_stages = static_cast<int>(first->size()) / plan.layout.pipeline;
    } else if (plan.layout.pipeline > 1 && layers > 0) {
        // Megatron's own partition: equal numbers of layers, but for the first and last where they are given.
        const std::int64_t stages = plan.stages();
        const std::int64_t first = a.positive("decoder-first-pipeline-num-layers", 0),
                           last = a.positive("decoder-last-pipeline-num-layers", 0);
        const std::int64_t others = stages - (first > 0) - (last > 0), rest = layers - first - last;
        if (rest < others || (others > 0 && rest % others != 0) || (others == 0 && rest != 0)) {
            a.error("num-layers",
                    fmt::format("{} layers do not divide evenly over {} stages", layers, stages),
                    "give a number of layers that does");
            return;
        }
        std::int64_t begin = 1;
        for (std::int64_t stage = 0; stage < stages; ++stage) {
            plan.partition.first_units.push_back(static_cast<std::int32_t>(stage == 0 ? 0 : begin));
            begin += stage == 0 && first > 0 ? first : stage == stages - 1 && last > 0 ? last : rest / others;
        }
    }
    if (plan.virtual_stages > 1) plan.schedule = "interleaved-1f1b";
}

void read_precision(MegatronArguments& a, schedule::Precision& precision) {
    const bool bf16 = a.has("bf16"), fp16 = a.has("fp16");
    if (bf16 && fp16) a.error("fp16", "--fp16 and --bf16 cannot be given together", "keep one");
    const core::DataType type = bf16   ? core::DataType::bf16
                                : fp16 ? core::DataType::fp16
                                       : core::DataType::fp32;
    const bool reduces_in_bf16 = a.has("grad-reduce-in-bf16"),
               accumulates_in_fp32 = a.has("accumulate-allreduce-grads-in-fp32");
    const core::DataType gradients =
        (bf16 && !reduces_in_bf16) || accumulates_in_fp32 ? core::DataType::fp32 : type;
    precision = {a.has("fp8-format") ? core::DataType::fp8 : type, type, gradients, bf16 || fp16};
}

// Megatron-FSDP's strategies; without one it divides nothing.
void read_fsdp(MegatronArguments& a, schedule::Plan& plan) {
    a.has("use-distributed-optimizer");
    a.has("fsdp-double-buffer");
    const std::string strategy = a.text("data-parallel-sharding-strategy", "no_shard");
    const std::pair<const char*, schedule::Sharding> strategies[] = {
        {"no_shard", schedule::Sharding::none},
        {"optim", schedule::Sharding::optimizer},
        {"optim_grads", schedule::Sharding::gradients},
        {"optim_grads_params", schedule::Sharding::parameters}};
    for (const auto& [name, sharding] : strategies)
        if (strategy == name) {
            plan.sharding = sharding;
            return;
        }
    a.error("data-parallel-sharding-strategy",
            fmt::format("--data-parallel-sharding-strategy {} is not known", core::in_quotes(strategy)),
            "no_shard, optim, optim_grads or optim_grads_params");
}

// The backends of --attention-backend: auto takes a fused kernel where there is one, as Transformer Engine
// does.
model::AttentionImplementation read_attention(MegatronArguments& a) {
    using model::AttentionImplementation;
    const bool is_unfused = a.has("no-masked-softmax-fusion"), is_flash = a.has("use-flash-attn");
    const std::string backend = a.text("attention-backend");
    if (is_flash || backend == "flash" || backend == "fused" || backend == "auto")
        return AttentionImplementation::flash;
    if (!backend.empty() && backend != "unfused" && backend != "local")
        a.error("attention-backend", fmt::format("--attention-backend {} is not known", backend),
                "flash, fused, unfused, local or auto");
    return is_unfused || backend == "unfused" ? AttentionImplementation::unfused
                                              : AttentionImplementation::fused_softmax;
}

void read_recompute_modules(MegatronArguments& a, schedule::Plan& plan) {
    constexpr const char* key = "recompute-modules";
    if (!a.has(key)) return;
    plan.recompute_modules = {};
    for (const std::string& name : a.words(key)) {
        const auto module = std::find_if(
            std::begin(schedule::all_recompute_modules), std::end(schedule::all_recompute_modules),
            [&](schedule::RecomputeModule known) {
                return schedule::name_of(known) == name && known != schedule::RecomputeModule::activation;
            });
        if (module != std::end(schedule::all_recompute_modules)) plan.recompute_modules.add(*module);
        else
            a.error(key, fmt::format("--{} {} has no counterpart in a plan", key, name),
                    "core_attn, layernorm, mla_up_proj, mlp, moe, moe_act and shared_experts have; whole "
                    "layers are --recompute-granularity full");
    }
}

void read_experts(MegatronArguments& a, schedule::ParallelLayout& layout) {
    const auto ranks = core::narrow<int>(a.positive("expert-model-parallel-size", 1));
    // Megatron-LM's default is the degree of the rest of the model (megatron/training/arguments.py).
    const auto of_an_expert = core::narrow<int>(a.positive("expert-tensor-parallel-size", layout.tensor));
    if (schedule::spread_experts(layout, ranks, of_an_expert)) return;
    a.error(
        "expert-tensor-parallel-size",
        fmt::format("--expert-tensor-parallel-size {} and --expert-model-parallel-size {} beside "
                    "--tensor-model-parallel-size {}: a plan divides experts as the rest of the model, or "
                    "spreads whole ones over all tensor ranks",
                    of_an_expert, ranks, layout.tensor),
        fmt::format("{}, or 1 with a multiple of {} for --expert-model-parallel-size", layout.tensor,
                    layout.tensor));
}

// Of --use-precision-aware-optimizer without it plans have no word: its state may have other types.
void read_optimizer_offload(MegatronArguments& a, schedule::Plan& plan) {
    const bool is_precision_aware = a.has("use-precision-aware-optimizer");
    if (a.has("optimizer-cpu-offload")) {
        plan.optimizer_offload = schedule::Offload::host;
        a.has("overlap-cpu-optimizer-d2h-h2d");
        const double share = a.real("optimizer-offload-fraction", 1.0);
        if (share != 1)
            a.error("optimizer-offload-fraction",
                    fmt::format("a plan has all of its optimizer on the host or nothing, not {:g}", share),
                    "use 1");
    } else if (is_precision_aware) {
        a.error("use-precision-aware-optimizer", "--use-precision-aware-optimizer is not read",
                "remove it, and say it in the plan where it can");
    }
}

void refuse_what_plans_lack(MegatronArguments& a) {
    for (const char* name :
         {"account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split",
          "distribute-saved-activations", "exp-avg-dtype", "exp-avg-sq-dtype",
          "hierarchical-context-parallel-sizes", "main-grads-dtype", "main-params-dtype", "cpu-offloading",
          "fine-grained-activation-offloading", "use-torch-fsdp2", "use-custom-fsdp"})
        if (a.has(name))
            a.error(name, fmt::format("--{} is not read", name),
                    "remove it, and say it in the plan where it can");
}

}  // namespace

std::optional<schedule::PlanFile> read_megatron(const std::string& text, const std::string& path,
                                                const ImportOptions& options,
                                                core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    MegatronArguments a(text, path, diagnostics);
    if (!a.has("num-layers") && !a.has("tensor-model-parallel-size") &&
        !a.has("pipeline-model-parallel-size") && !a.has("micro-batch-size")) {
        diagnostics.error({path, 1, 1}, "", "no argument of Megatron-LM is in this file",
                          "give the arguments of pretrain_gpt.py");
        return std::nullopt;
    }
    // The launcher's arguments, when the same script contains them.
    ImportOptions placed = options;
    const std::optional<std::int64_t> nodes = a.integer("nnodes"), processes = a.integer("nproc-per-node");
    if (!placed.nodes) placed.nodes = nodes;
    if (!placed.processes_per_node) placed.processes_per_node = processes;
    if (options.model.empty() && !a.program().empty() && a.program() != "pretrain_gpt.py")
        a.error("", fmt::format("{} trains a model that these arguments do not describe", a.program()),
                "pretrain_gpt.py's are known; give --model");
    core::Value model = read_megatron_model(a, options);
    placed.model = "megatron-lm";  // the arguments describe it
    ImportLocation place = import_place({}, placed, path, diagnostics);
    place.file.model = std::move(model);
    schedule::Plan& plan = place.file.plan;
    plan.layout.tensor = static_cast<int>(a.positive("tensor-model-parallel-size", 1));
    plan.layout.pipeline = static_cast<int>(a.positive("pipeline-model-parallel-size", 1));
    plan.framework = "megatron-lm";
    plan.layout.order = a.has("use-tp-pp-dp-mapping") ? "DPT" : "PDT";
    plan.sequence_parallel = a.has("sequence-parallel");
    refuse_what_plans_lack(a);
    if (diagnostics.error_count() > errors) return std::nullopt;
    read_partition(a, a.positive("num-layers", 0), plan);
    const auto group = static_cast<int>(a.positive("microbatch-group-size-per-virtual-pipeline-stage", 0));
    if (plan.virtual_stages > 1 && group > 0) plan.schedule_parameters = schedule::GroupParameters{group};
    const std::int64_t replica = std::int64_t{plan.layout.tensor} * plan.layout.pipeline;
    if (place.processes_per_node == 0 || place.processes() % replica != 0) {
        a.error("tensor-model-parallel-size",
                place.processes_per_node == 0
                    ? std::string("how many processes there are is not in this file")
                    : fmt::format("{} processes cannot be divided into replicas of {}", place.processes(),
                                  replica),
                "give --instance and --nodes, or --processes-per-node");
        return std::nullopt;
    }
    plan.layout.data = static_cast<int>(place.processes() / replica);
    plan.micro_batch = static_cast<int>(options.micro_batch.value_or(a.positive("micro-batch-size", 1)));
    plan.layout.context = static_cast<int>(a.positive("context-parallel-size", 1));
    read_experts(a, plan.layout);
    if (plan.layout.data % plan.layout.context != 0) {
        a.error("context-parallel-size",
                fmt::format("{} ranks of the data axis are no multiple of it", plan.layout.data),
                "use a divisor");
        plan.layout.context = 1;
    }
    const std::string type = a.text("cp-comm-type", "p2p");
    if (type == "a2a" || type == "p2p") {
        if (plan.layout.context > 1)
            plan.context_communication = type == "a2a" ? schedule::ContextCommunication::all_to_all
                                                       : schedule::ContextCommunication::ring;
    } else if (type != "all_gather") {
        a.error("cp-comm-type", fmt::format("--cp-comm-type {} has no counterpart in a plan", type),
                "p2p, all_gather or a2a");
    }
    const std::int64_t share = std::int64_t{plan.micro_batch} * plan.layout.replicas(),
                       global = a.positive("global-batch-size", share);
    if (global % share != 0)
        a.error("global-batch-size",
                fmt::format("global batch {} is not a multiple of micro-batch {} x {} replicas", global,
                            plan.micro_batch, plan.layout.replicas()),
                "mend one of them");
    else plan.micro_batches = static_cast<int>(global / share);

    const std::string granularity =
        a.text("recompute-granularity", a.has("recompute-activations") ? "selective" : "none");
    if (granularity == "selective") read_recompute_modules(a, plan);
    if (granularity == "full") plan.recompute = schedule::Recompute::full;
    else if (granularity == "selective") plan.recompute = schedule::Recompute::selective;
    const std::int64_t layers = a.positive("recompute-num-layers", 1);
    const std::string method = a.text("recompute-method", "uniform");
    if (granularity == "full" && method == "block") plan.recompute_layers = core::narrow<int>(layers);
    else if (granularity == "full" && method != "uniform")
        a.error("recompute-method", fmt::format("--recompute-method {} is none of Megatron-LM's", method),
                "use uniform or block");
    else if (granularity == "full" && layers != 1)
        a.error(
            "recompute-num-layers",
            "full recomputation of several layers at once has no counterpart in a plan",
            "use --recompute-num-layers 1, or --recompute-method block for the first layers of each stage");
    for (const char* name : {"rampup-batch-size", "step-batch-size-schedule"})
        if (a.has(name))
            a.warn(name, fmt::format("--{}: the batch grows; the plan is of the whole one", name), "");
    if (a.has("use-megatron-fsdp")) read_fsdp(a, plan);
    else if (a.has("use-distributed-optimizer")) {
        plan.sharding = schedule::Sharding::optimizer;
        const std::int64_t instances = a.positive("num-distributed-optimizer-instances", 1);
        if (plan.layout.data % instances != 0)
            a.error("num-distributed-optimizer-instances",
                    fmt::format("{} instances do not divide {} replicas", instances, plan.layout.data),
                    "use a divisor");
        else if (instances > 1) plan.shard_degree = plan.layout.data / static_cast<int>(instances);
    }
    read_optimizer_offload(a, plan);
    read_precision(a, plan.precision);
    plan.overlaps_gradient_reduction = a.has("overlap-grad-reduce");
    plan.overlaps_parameter_gathering = a.has("overlap-param-gather");
    if (const std::int64_t bucket = a.positive("ddp-bucket-size", 0); bucket > 0)
        plan.gradient_bucket =
            core::Bytes(static_cast<double>(bucket) * core::size_of(plan.precision.gradients).value);
    plan.attention = read_attention(a);
    plan.fused_cross_entropy = a.has("cross-entropy-loss-fusion");
    schedule::Optimizer& o = plan.optimizer;
    const std::string optimizer = a.text("optimizer", "adam");
    if (optimizer != "adam" && optimizer != "sgd")
        a.error("optimizer", fmt::format("--optimizer {} has no counterpart in a plan", optimizer),
                "use adam or sgd");
    o.kind = optimizer == "sgd" ? schedule::OptimizerKind::sgd : schedule::OptimizerKind::adamw;
    o.gradient_clipping = a.real("clip-grad", 1.0);  // Megatron's default
    o.learning_rate = a.real("lr", o.learning_rate);
    o.weight_decay = a.real("weight-decay", 0.01);  // Megatron's defaults
    if (o.kind == schedule::OptimizerKind::sgd) o.momentum = a.real("sgd-momentum", 0.9);
    else {
        o.beta1 = a.real("adam-beta1", 0.9);
        o.beta2 = a.real("adam-beta2", 0.999);
        o.epsilon = a.real("adam-eps", 1e-8);
    }
    std::int64_t steps = a.positive("train-iters", place.file.training.steps);
    if (const auto samples = a.integer("train-samples", std::int64_t{1} << 50))
        steps = std::max<std::int64_t>(1, *samples / global);
    place.file.training.steps = static_cast<int>(std::min<std::int64_t>(1 << 20, steps));
    place.file.training.seed = static_cast<std::uint64_t>(a.positive("seed", 1234));
    a.judge_the_rest();
    return diagnostics.error_count() > errors ? std::nullopt : std::optional(place.file);
}

}  // namespace interop
