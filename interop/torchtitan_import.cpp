// What interop/capture/torchtitan_config.py writes of a torchtitan configuration: its own parser, degrees and
// stages, resolved for so many ranks.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "core/reader.h"
#include "interop/expression.h"
#include "interop/import_place.h"
#include "interop/targets.h"
#include "interop/torchtitan_schedules.h"

namespace interop {

namespace {

constexpr core::IntegerRange positive{.least = 1, .greatest = 1 << 30};

void read_degrees(const core::Value& document, schedule::Plan& plan, core::Diagnostics& diagnostics) {
    const core::Value* table = document.find("degrees");
    if (!table || !table->is_table()) {
        diagnostics.error({document.location}, "degrees", "the degrees are missing",
                          "write the file with interop/capture/torchtitan_config.py");
        return;
    }
    core::TableReader degrees(*table, "degrees", diagnostics);
    const auto degree = [&](const char* key) {
        return core::narrow<int>(degrees.integer(key, 1, {.least = 1, .greatest = 1 << 16}));
    };
    const FsdpMesh mesh{.dp_replicate = degree("dp_replicate"),
                        .dp_shard = degree("dp_shard"),
                        .cp = degree("cp"),
                        .tp = degree("tp")};
    plan.layout.pipeline = degree("pp");
    const int experts = degree("ep");
    degrees.finish();
    const int shards = take_mesh(mesh, plan.layout);
    // Experts over ranks are whole on tensor ranks; on their own ranks they are divided over these.
    const int tensor_ranks = experts > 1 ? 1 : plan.layout.tensor;
    if (!schedule::spread_experts(plan.layout, experts, tensor_ranks) || shards % plan.layout.expert != 0)
        degrees.error("ep",
                      fmt::format("ep = {} takes a part of a tensor group, or of ranks that are not sharded: "
                                  "a plan's experts are spread over whole tensor groups of sharded ranks",
                                  experts),
                      "set ep to a multiple of tp, and dp_shard to one of ep / tp");
    if (shards == 1) return;
    const core::Value* reshards = document.find("reshards_after_forward");
    const bool gives_back = reshards && reshards->kind() == core::Value::Kind::boolean && reshards->boolean();
    // Stages of a pipeline that keep parameters whole keep gradients whole too, to the last micro-batch.
    const schedule::Sharding kept =
        plan.layout.pipeline > 1 ? schedule::Sharding::optimizer : schedule::Sharding::gradients;
    plan.sharding = gives_back ? schedule::Sharding::parameters : kept;
    plan.shard_degree = shards == plan.layout.data ? 0 : shards;
}

// First units: the names of the module that a stage begins with, "norm" counted with "lm_head".
void read_stages(const core::Value& stages, schedule::Plan& plan, core::TableReader& reader) {
    const auto count = core::count_of(stages.items());
    if (plan.layout.pipeline == 1) return;
    if (count == 0 || count % plan.layout.pipeline != 0)
        return reader.error("stages", fmt::format("{} stages on {} ranks", count, plan.layout.pipeline),
                            "every rank holds equally many");
    plan.virtual_stages = count / plan.layout.pipeline;
    std::int32_t units = 0;
    for (const core::Value& stage : stages.items()) {
        plan.partition.first_units.push_back(units);
        for (const core::Value& name : stage.items())
            if (name.is_string() && name.string() != "norm") ++units;
        if (units == plan.partition.first_units.back())
            return reader.error("stages", "a stage without layers has no counterpart in a plan",
                                "give every stage a module");
    }
}

void read_precision(core::TableReader& reader, schedule::Plan& plan) {
    const std::string held = reader.required_choice("dtype", {"float32", "bfloat16"});
    const std::string compute = reader.required_choice("mixed_precision_param", {"float32", "bfloat16"});
    schedule::Precision& p = plan.precision;
    if (held == "bfloat16") p = {core::DataType::bf16, core::DataType::bf16, core::DataType::bf16, false};
    else if (compute == "float32")
        p = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    else p = {core::DataType::bf16, core::DataType::bf16, core::DataType::fp32, true};
    if (const auto quantized = reader.optional_strings("quantized"); quantized && !quantized->empty()) {
        if (quantized->front().find("Float8") == std::string::npos)
            reader.error("quantized", fmt::format("{} has no counterpart in a plan", quantized->front()),
                         "use Float8LinearConverter, or none");
        p.compute = core::DataType::fp8;
    }
}

void read_optimizer(const core::Value* table, schedule::Optimizer& o, core::Diagnostics& diagnostics) {
    if (!table || !table->is_table()) return;
    core::TableReader reader(*table, "optimizer", diagnostics);
    const std::string name = reader.required_choice("name", {"Adam", "AdamW"});
    o.kind = name == "Adam" ? schedule::OptimizerKind::adam : schedule::OptimizerKind::adamw;
    o.learning_rate = reader.real("lr", o.learning_rate);
    o.beta1 = reader.real("beta1", o.beta1);
    o.beta2 = reader.real("beta2", o.beta2);
    o.epsilon = reader.real("eps", o.epsilon);
    o.weight_decay = reader.real("weight_decay", o.weight_decay);
    reader.finish();
}

void read_batch(core::TableReader& reader, schedule::PlanFile& file) {
    schedule::Plan& plan = file.plan;
    plan.micro_batch = core::narrow<int>(reader.integer("micro_batch", 1, positive));
    plan.micro_batches = core::narrow<int>(reader.integer("micro_batches", 1, positive));
    const std::int64_t accumulation = reader.integer("accumulation", 1, positive);
    if (accumulation > 1 && plan.layout.pipeline > 1)
        reader.error(
            "accumulation",
            fmt::format("{} pipelines one after the other before an update have no counterpart in a plan",
                        accumulation),
            "raise local_batch_size to the whole batch of a replica");
    else plan.micro_batches = static_cast<int>(plan.micro_batches * accumulation);
    file.training.steps = core::narrow<int>(reader.integer("steps", file.training.steps, positive));
    if (const auto seed = reader.optional_integer("seed", {.least = 0}))
        file.training.seed = static_cast<std::uint64_t>(*seed);
    constexpr double clips_nothing = 1e30;  // as exports write it
    const double norm = reader.real("max_norm", 0);
    plan.optimizer.gradient_clipping = norm < clips_nothing ? norm : 0;
}

void read_checkpointing(core::TableReader& reader, schedule::Plan& plan) {
    const std::string kind =
        reader.required_choice("activation_checkpoint", {"none", "FullAC", "SelectiveAC", "MemoryBudgetAC"});
    if (kind == "FullAC") plan.recompute = schedule::Recompute::full;
    if (kind == "MemoryBudgetAC")
        reader.error("activation_checkpoint", "a memory budget has no counterpart in a plan",
                     "use FullAC, or none");
    if (kind != "SelectiveAC") return;
    plan.recompute = schedule::Recompute::selective;
    reader.warning(
        "activation_checkpoint",
        "torchtitan's selective mode recomputes other operators than recompute = \"selective\" does");
}

}  // namespace

std::optional<schedule::PlanFile> read_torchtitan(const std::string& text, const std::string& path,
                                                  const ImportOptions& options,
                                                  core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    const std::optional<core::Value> document = core::parse_json(text, path, diagnostics);
    if (!document) return std::nullopt;
    core::TableReader reader(*document, "", diagnostics);
    const core::Value* model = document->find("model");
    const bool has_model = options.model.empty() && model && model->is_table();
    ImportOptions named = options;
    if (has_model) named.model = "described";
    if (!named.sequence_length) named.sequence_length = reader.integer("sequence_length", 1, positive);
    ImportLocation place = import_place({}, named, path, diagnostics);
    schedule::Plan& plan = place.file.plan;
    if (has_model) {
        const core::Value length = *place.file.model.find("sequence_length");
        place.file.model = *model;
        place.file.model["family"] = "llama";
        place.file.model["sequence_length"] = length;
    }
    plan.layout.order = "PDT";
    read_degrees(*document, plan, diagnostics);
    plan.sequence_parallel = reader.boolean("sequence_parallel", true) && plan.layout.tensor > 1;
    const std::string schedule = reader.string("schedule", "1F1B");
    if (const auto name = schedule_of_torch(schedule)) plan.schedule = *name;
    else
        reader.error("schedule", fmt::format("the schedule {} is not known", core::in_quotes(schedule)),
                     "use one that torch.distributed.pipelining and `smsim schedule --list` both have");
    if (!reader.string("schedule_file", "").empty())
        reader.error("schedule_file", "an order of its own has no counterpart in a plan",
                     "use a named schedule");
    if (const core::Value* stages = document->find("stages"); stages && stages->is_array())
        read_stages(*stages, plan, reader);
    read_batch(reader, place.file);
    read_precision(reader, plan);
    read_checkpointing(reader, plan);
    read_optimizer(document->find("optimizer"), plan.optimizer, diagnostics);
    if (reader.boolean("cpu_offload", false)) {
        plan.optimizer_offload = plan.parameter_offload = schedule::Offload::host;
        // A rank by itself has its shard there too. Kept from forward to backward, it would be on the device.
        if (plan.layout.data == 1) plan.sharding = schedule::Sharding::parameters;
        if (plan.sharding != schedule::Sharding::parameters || plan.shard_degree > 0)
            reader.error(
                "cpu_offload",
                "with parameters that stay gathered, or divided over some of the replicas, it has no "
                "counterpart in a plan",
                "set fsdp_reshard_after_forward to \"always\", and data_parallel_replicate_degree to 1");
    }
    plan.framework = reader.boolean("compiled", false) ? "torchtitan-compiled" : "torchtitan";
    for (const char* key : {"torchtitan", "ranks", "degrees", "reshards_after_forward", "stages", "optimizer",
                            "model", "sequence_length"})
        reader.ignore(key);
    reader.finish();
    if (place.processes_per_node > 0 && place.processes() != plan.layout.ranks())
        diagnostics.error({path, 1, 1}, "ranks",
                          fmt::format("{} ranks on {} devices", plan.layout.ranks(), place.processes()),
                          "give the --instance and --nodes that the configuration was resolved for");
    if (diagnostics.error_count() > errors) return std::nullopt;
    return place.file;
}

}  // namespace interop
