// DeepSpeed's configuration back into a plan: every key is read, harmless, or refused.
#include <algorithm>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/reader.h"
#include "interop/import_place.h"
#include "interop/python_literal.h"
#include "interop/targets.h"

namespace interop {

namespace {

constexpr core::IntegerRange positive{.least = 1, .greatest = 1 << 20};

// "auto" is Hugging Face's word for "from the trainer's arguments".
std::optional<std::int64_t> integer_unless_auto(core::TableReader& reader, const char* key) {
    const core::Value* value = reader.optional_any(key);
    if (!value || value->is_null()) return std::nullopt;
    if (value->is_string() && value->string() == "auto") {
        reader.warning(key, fmt::format("{} = \"auto\" is for the training script to decide", key),
                       "give the number");
        return std::nullopt;
    }
    return reader.optional_integer(key, positive);
}

// Keys of DeepSpeed's configuration (deepspeed/runtime/constants.py, zero/config.py, release 0.18) that
// change neither what a step computes nor what it holds: the others are read, refused where they are on, or
// unknown.
constexpr const char* without_effect[] = {"autotuning",
                                          "checkpoint",
                                          "comet",
                                          "comms_logger",
                                          "csv_monitor",
                                          "dataloader_drop_last",
                                          "dump_state",
                                          "elasticity",
                                          "flops_profiler",
                                          "gradient_predivide_factor",
                                          "load_universal_checkpoint",
                                          "memory_breakdown",
                                          "prescale_gradients",
                                          "scheduler",
                                          "seed",
                                          "steps_per_print",
                                          "tensorboard",
                                          "timers",
                                          "wall_clock_breakdown",
                                          "wandb",
                                          "zero_allow_untested_optimizer",
                                          "zero_force_ds_cpu_optimizer"};
constexpr const char* zero_without_effect[] = {"allgather_bucket_size",
                                               "allgather_partitions",
                                               "contiguous_gradients",
                                               "elastic_checkpoint",
                                               "ignore_unused_parameters",
                                               "legacy_stage1",
                                               "load_from_fp32_weights",
                                               "log_trace_cache_warnings",
                                               "memory_efficient_linear",
                                               "override_module_apply",
                                               "pipeline_loading_checkpoint",
                                               "reduce_scatter",
                                               "round_robin_gradients",
                                               "stage3_gather_16bit_weights_on_model_save",
                                               "stage3_gather_fp16_weights_on_model_save",
                                               "stage3_max_live_parameters",
                                               "stage3_max_reuse_distance",
                                               "stage3_param_persistence_threshold",
                                               "stage3_prefetch_bucket_size",
                                               "reduce_bucket_size",
                                               "sub_group_size"};
// What a plan has no word for, where it is on.
constexpr const char* refused_if_on[] = {
    "amp",           "compression_training",   "curriculum_learning", "data_efficiency",  "eigenvalue",
    "hybrid_engine", "progressive_layer_drop", "quantize_training",   "sparse_attention", "sparse_gradients",
    "compile"};
constexpr const char* zero_refused_if_on[] = {"cpu_offload",
                                              "cpu_offload_params",
                                              "cpu_offload_use_pin_memory",
                                              "mics_hierarchical_params_gather",
                                              "stage3_use_all_reduce_for_fetch_params",
                                              "use_all_reduce_for_fetch_params",
                                              "use_multi_rank_bucket_allreduce",
                                              "zero_quantized_gradients",
                                              "zero_quantized_nontrainable_weights",
                                              "zero_quantized_weights"};

// A section is on where it or a part of it says enabled, or where nothing in it does and it is not empty.
bool has_switch(const core::Value& value) {
    if (!value.is_table()) return false;
    for (const auto& [key, member] : value.members())
        if (key == "enabled" || has_switch(member)) return true;
    return false;
}

bool is_on(const core::Value& value) {
    if (value.is_table()) {
        if (!has_switch(value)) return value.size() > 0;
        if (const core::Value* enabled = value.find("enabled")) return is_on(*enabled);
        for (const auto& [key, member] : value.members())
            if (has_switch(member) && is_on(member)) return true;
        return false;
    }
    if (value.is_number()) return value.number() != 0;
    if (value.is_string())
        return value.string() != "none" && value.string() != "false" && !value.string().empty();
    return !value.is_null() && is_true(value);
}

template <std::size_t Harmless, std::size_t Refused>
void judge_the_rest(core::TableReader& reader, const char* const (&harmless)[Harmless],
                    const char* const (&refused)[Refused]) {
    for (const char* key : harmless) reader.ignore(key);
    for (const char* key : refused)
        if (const core::Value* value = reader.optional_any(key); value && is_on(*value))
            reader.error(key, fmt::format("{} has no counterpart in a plan", reader.path_of(key)),
                         "switch it off, or remove it");
    reader.finish();
}

void read_zero(const core::Value& table, schedule::Plan& plan, core::Diagnostics& diagnostics) {
    core::TableReader zero(table, "zero_optimization", diagnostics);
    plan.sharding = static_cast<schedule::Sharding>(zero.integer("stage", 0, {.least = 0, .greatest = 3}));
    plan.overlaps_gradient_reduction =
        zero.boolean("overlap_comm", plan.sharding == schedule::Sharding::parameters);
    if (plan.sharding == schedule::Sharding::parameters) plan.overlaps_parameter_gathering = true;
    if (const core::Value* prefetch = table.find("stage3_prefetch_bucket_size");
        prefetch && prefetch->is_number())
        plan.overlaps_parameter_gathering = prefetch->number() > 0;
    const core::Value* bucket = table.find("reduce_bucket_size");
    const double elements = bucket && bucket->is_number() ? bucket->number() : 5e8;  // DeepSpeed's default
    plan.gradient_bucket = core::Bytes(elements * core::size_of(plan.precision.gradients).value);
    if (const auto degree =
            zero.optional_integer("mics_shard_size", {.least = -1, .greatest = positive.greatest});
        degree && *degree > 0)
        plan.shard_degree = static_cast<int>(*degree);
    for (const auto& [key, place] : {std::pair("offload_optimizer", &schedule::Plan::optimizer_offload),
                                     {"offload_param", &schedule::Plan::parameter_offload}}) {
        const core::Value* offload = zero.optional_table(key);
        const core::Value* device = offload ? offload->find("device") : nullptr;
        if (!device || !device->is_string() || device->string() == "none") continue;
        if (device->string() == "cpu") plan.*place = schedule::Offload::host;
        else
            zero.error(key, fmt::format("{} to {} has no counterpart in a plan", key, device->string()),
                       "plans keep state on the device, or on the \"cpu\"");
    }
    if (plan.keeps_parameters_on_hosts() && plan.sharding != schedule::Sharding::parameters) {
        plan.parameter_offload = schedule::Offload::none;  // of stage 3 alone
    } else if (plan.keeps_parameters_on_hosts() && !plan.updates_on_hosts()) {
        zero.error("offload_param", "offload_param without offload_optimizer has no counterpart in a plan",
                   "set offload_optimizer to the \"cpu\" too, or remove offload_param");
    }
    if (const auto degree =
            zero.optional_integer("zero_hpz_partition_size", {.least = 0, .greatest = positive.greatest});
        degree && *degree > 1)
        zero.error("zero_hpz_partition_size",
                   "a second shard of parameters within the node (ZeRO++) has no counterpart in a plan",
                   "remove it");
    judge_the_rest(zero, zero_without_effect, zero_refused_if_on);
}

void read_optimizer(const core::Value& table, schedule::Optimizer& optimizer,
                    core::Diagnostics& diagnostics) {
    core::TableReader section(table, "optimizer", diagnostics);
    const std::string type = section.required_choice("type", {"SGD", "Adam", "AdamW", "Lamb"});
    const core::Value* params = section.optional_table("params");
    const core::Value none = core::Value::table();
    core::TableReader reader(params ? *params : none, "optimizer.params", diagnostics);
    const bool is_decoupled = type == "AdamW" || reader.boolean("adam_w_mode", true);
    optimizer.kind = type == "SGD"    ? schedule::OptimizerKind::sgd
                     : type == "Lamb" ? schedule::OptimizerKind::lamb
                     : is_decoupled   ? schedule::OptimizerKind::adamw
                                      : schedule::OptimizerKind::adam;
    const auto number = [&](const char* key, double& into) {
        const core::Value* value = reader.optional_any(key);
        if (value && value->is_number()) into = value->number();
        else if (value) reader.warning(key, fmt::format("{} is no number here: {} is kept", key, into));
    };
    number("lr", optimizer.learning_rate);
    number("weight_decay", optimizer.weight_decay);
    number("eps", optimizer.epsilon);
    number("momentum", optimizer.momentum);
    if (const core::Value* betas = reader.optional_any("betas");
        betas && betas->is_array() && betas->size() == 2 && betas->items()[0].is_number() &&
        betas->items()[1].is_number()) {
        optimizer.beta1 = betas->items()[0].number();
        optimizer.beta2 = betas->items()[1].number();
    }
    for (const char* key :
         {"torch_adam", "bias_correction", "adam_w_mode", "fp32_optimizer_states", "max_coeff", "min_coeff"})
        reader.ignore(key);
    reader.finish();
    section.ignore("legacy_fusion");
    section.finish();
}

}  // namespace

std::optional<schedule::PlanFile> read_deepspeed(const std::string& text, const std::string& path,
                                                 const ImportOptions& options,
                                                 core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = parse_python_literal(text, path, diagnostics);
    if (!document) return std::nullopt;
    const std::size_t errors = diagnostics.error_count();
    ImportLocation place = import_place({}, options, path, diagnostics);
    schedule::Plan& plan = place.file.plan;
    plan.framework = "deepspeed";
    core::TableReader reader(*document, "", diagnostics);
    const auto batch = integer_unless_auto(reader, "train_batch_size"),
               micro = integer_unless_auto(reader, "train_micro_batch_size_per_gpu"),
               steps = integer_unless_auto(reader, "gradient_accumulation_steps");
    if (!batch && !micro && !reader.has("zero_optimization")) {
        if (reader.has("autotuning"))
            diagnostics.error({path, 1, 1}, "autotuning",
                              "the batch size and ZeRO's stage are left to DeepSpeed's autotuner",
                              "give the ds_config_optimal.json that the autotuner wrote");
        else
            diagnostics.error(
                {path, 1, 1}, "",
                "this is no configuration of DeepSpeed: it has neither a batch size nor zero_optimization",
                "give the file that deepspeed_config names");
        return std::nullopt;
    }
    const auto switched_on = [&](const char* key) {
        const core::Value* section = reader.optional_table(key);
        const core::Value* enabled = section ? section->find("enabled") : nullptr;
        return enabled && is_true(*enabled);
    };
    const bool bf16 = switched_on("bf16"), fp16 = switched_on("fp16");
    if (bf16 && fp16) reader.error("fp16", "fp16 and bf16 are both enabled", "keep one");
    const core::DataType type = bf16   ? core::DataType::bf16
                                : fp16 ? core::DataType::fp16
                                       : core::DataType::fp32;
    plan.precision = {type, type, type, bf16 || fp16};
    if (const core::Value* types = reader.optional_table("data_types"))
        if (const core::Value* gradients = types->find("grad_accum_dtype");
            gradients && gradients->is_string()) {
            const auto named = core::data_type_named(gradients->string());
            if (named == core::DataType::fp32 || named == core::DataType::bf16 ||
                named == core::DataType::fp16)
                plan.precision.gradients = *named;
            else
                reader.error("data_types",
                             fmt::format("grad_accum_dtype = {} is no type of gradients",
                                         core::in_quotes(gradients->string())),
                             "use fp32, fp16 or bf16");
        }
    if (const core::Value* zero = reader.optional_table("zero_optimization"))
        read_zero(*zero, plan, diagnostics);
    if (const core::Value* tensor = reader.optional_table("tensor_parallel"))
        if (const core::Value* size = tensor->find("autotp_size");
            size && size->kind() == core::Value::Kind::integer && size->integer() > 0 &&
            size->integer() <= positive.greatest)
            plan.layout.tensor = static_cast<int>(size->integer());
    if (const auto ranks = integer_unless_auto(reader, "sequence_parallel_size"); ranks && *ranks > 1) {
        plan.layout.context = static_cast<int>(std::min<std::int64_t>(*ranks, 1 << 12));
        plan.context_communication = schedule::ContextCommunication::all_to_all;
    }
    const auto replicas = integer_unless_auto(reader, "data_parallel_size");
    bool recomputes = reader.optional_table("activation_checkpointing") != nullptr;
    if (const core::Value* pipeline = reader.optional_table("pipeline")) {
        if (const core::Value* stages = pipeline->find("stages");
            stages && stages->kind() == core::Value::Kind::integer && stages->integer() > 0 &&
            stages->integer() <= positive.greatest)
            plan.layout.pipeline = static_cast<int>(stages->integer());
        if (const core::Value* interval = pipeline->find("activation_checkpoint_interval");
            interval && interval->is_number())
            recomputes = recomputes || interval->number() > 0;
    }
    if (recomputes) plan.recompute = schedule::Recompute::full;
    if (const core::Value* optimizer = reader.optional_table("optimizer"))
        read_optimizer(*optimizer, plan.optimizer, diagnostics);
    if (const core::Value* norm = reader.optional_any("gradient_clipping"); norm && norm->is_number())
        plan.optimizer.gradient_clipping = std::max(0.0, norm->number());
    else if (norm && norm->is_string())
        reader.warning("gradient_clipping", "gradient_clipping is for the training script to decide",
                       "give the number");
    for (const char* key : {"communication_data_type", "seq_parallel_communication_data_type"})
        if (const core::Value* type_name = reader.optional_any(key); type_name && is_on(*type_name))
            reader.warning(key, fmt::format("{}: gradients travel in their own type here", key), "");
    for (const char* key : {"aio", "data_types"}) reader.ignore(key);
    judge_the_rest(reader, without_effect, refused_if_on);
    if (diagnostics.error_count() > errors) return std::nullopt;

    // Two of three batch figures and the processes give the rest: train_batch_size = micro-batch x
    // accumulation x replicas.
    const std::int64_t model_ranks =
        std::int64_t{plan.layout.tensor} * plan.layout.pipeline * plan.layout.context;
    std::int64_t data = place.processes_per_node > 0 ? place.processes() / model_ranks : 0;
    if (place.processes_per_node > 0 && place.processes() % model_ranks != 0)
        reader.error(
            "tensor_parallel",
            fmt::format("{} processes cannot be divided into replicas of {}", place.processes(), model_ranks),
            "give other --nodes");
    if (data == 0 && batch && micro && steps && *batch % (*micro * *steps) == 0)
        data = *batch / (*micro * *steps);
    if (data < 1 || data > positive.greatest) {
        reader.error("train_batch_size", "how many replicas train is not in this file",
                     "give --instance and --nodes, or all three batch sizes");
        return std::nullopt;
    }
    if (replicas && *replicas != data)
        reader.error("data_parallel_size",
                     fmt::format("data_parallel_size = {} where {} replicas train", *replicas, data),
                     "mend it, or give other --nodes");
    plan.layout.data = static_cast<int>(data * plan.layout.context);
    const std::int64_t per_replica = batch ? *batch / data : 0;
    std::int64_t size = options.micro_batch.value_or(micro.value_or(0)), count = steps.value_or(0);
    if (size == 0) size = batch && count > 0 ? per_replica / count : batch ? per_replica : 1;
    if (count == 0) count = batch && size > 0 ? per_replica / size : 1;
    if (size < 1 || count < 1 || (batch && size * count * data != *batch)) {
        reader.error(
            "train_batch_size",
            fmt::format("train_batch_size = {} is not micro-batch {} x accumulation {} x replicas {}",
                        batch.value_or(0), size, count, data),
            "mend one of them");
        return std::nullopt;
    }
    plan.micro_batch = static_cast<int>(size);
    plan.micro_batches = static_cast<int>(count);
    return diagnostics.error_count() > errors ? std::nullopt : std::optional(place.file);
}

}  // namespace interop
