#include "schedule/plan/plan_file.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/plan/partition_file.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/document.h"
#include "core/reader.h"
#include "schedule/collective/library.h"
#include "schedule/collective/rounds.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/plan_sagemaker.h"
#include "schedule/plan/schedule_parameters.h"
#include "schedule/program/pieces.h"

namespace schedule {

namespace {

constexpr core::IntegerRange positive{.least = 1, .greatest = 1 << 20};
constexpr core::IntegerRange not_negative{.least = 0, .greatest = 1 << 20};

template <class Enum, std::size_t Count>
std::optional<Enum> read_name(core::TableReader& reader, std::string_view key, const Enum (&values)[Count]) {
    std::vector<std::string> names;
    for (const Enum value : values) names.emplace_back(name_of(value));
    const std::optional<std::string> name = reader.optional_choice(key, names);
    if (!name) return std::nullopt;
    return values[std::find(names.begin(), names.end(), *name) - names.begin()];
}

constexpr Sharding all_shardings[] = {Sharding::none, Sharding::optimizer, Sharding::gradients,
                                      Sharding::parameters};
constexpr Offload all_offloads[] = {Offload::none, Offload::host, Offload::disk};
constexpr Recompute all_recomputes[] = {Recompute::none, Recompute::selective, Recompute::full};
constexpr OptimizerKind all_optimizers[] = {OptimizerKind::sgd, OptimizerKind::adam, OptimizerKind::adamw,
                                            OptimizerKind::lamb};
const std::vector<std::string> attention_names = {"unfused", "fused_softmax", "flash"};
const std::vector<std::string> precision_names = {"fp32", "tf32", "fp16", "bf16"};

void read_precision(core::TableReader& reader, Precision& precision) {
    const core::Value* value = reader.optional_any("precision");
    if (!value) return;
    if (!value->is_table()) {
        if (const auto name = reader.optional_choice("precision", precision_names))
            precision = precision_named(*core::data_type_named(*name));
        return;
    }
    core::TableReader table(*value, reader.path_of("precision"), reader.diagnostics());
    const auto compute = table.required_choice("compute", {"fp32", "tf32", "fp16", "bf16", "fp8"});
    precision = precision_named(core::data_type_named(compute).value_or(core::DataType::bf16));
    const std::vector<std::string> stored = {"fp32", "fp16", "bf16"};
    if (const auto name = table.optional_choice("parameters", stored))
        precision.parameters = *core::data_type_named(*name);
    if (const auto name = table.optional_choice("gradients", stored))
        precision.gradients = *core::data_type_named(*name);
    precision.has_master_parameters = table.boolean("master_parameters", precision.has_master_parameters);
    table.finish();
}

void read_recompute_layers(core::TableReader& reader, Plan& plan) {
    constexpr std::string_view key = "recompute_layers";
    const core::Value* value = reader.optional_any(key);
    if (!value || !value->is_array()) {
        plan.recompute_layers = core::narrow<int>(reader.integer(key, plan.recompute_layers, not_negative));
        return;
    }
    const auto layers = reader.optional_integers(key, not_negative);
    if (!layers) return;
    if (std::all_of(layers->begin(), layers->end(), [](std::int64_t of_stage) { return of_stage == 0; }))
        reader.error(
            key, fmt::format("{}: no layer of any stage runs again", reader.path_of(key)),
            "use recompute = \"none\", or name the layers of each stage that run again, as [2, 1, 0, 0]");
    plan.recompute_layers_by_stage.assign(layers->begin(), layers->end());
}

void read_recompute_modules(core::TableReader& reader, Plan& plan) {
    constexpr std::string_view key = "recompute_modules";
    if (reader.has(key) && plan.recompute != Recompute::selective)
        reader.error(key,
                     fmt::format("{} with recompute = \"{}\": single parts of layers run again where it is "
                                 "\"selective\"",
                                 reader.path_of(key), name_of(plan.recompute)),
                     "set recompute = \"selective\", or leave recompute_modules out");
    const auto names = reader.optional_strings(key);
    const core::Value* const value = reader.optional_any(key);
    if (!value || !value->is_array()) return;
    std::vector<std::string> known;
    for (const RecomputeModule module : all_recompute_modules) known.emplace_back(name_of(module));
    RecomputeModules chosen = {};
    for (const core::Value& item : value->items()) {
        if (!item.is_string()) continue;  // said above
        const std::string& name = item.string();
        const auto at = std::find(known.begin(), known.end(), name);
        if (at != known.end()) chosen.add(all_recompute_modules[at - known.begin()]);
        else
            reader.error(key, fmt::format("{}: {} is no module", reader.path_of(key), core::in_quotes(name)),
                         fmt::format("use {}", fmt::join(known, ", ")));
    }
    if (!names) return;
    if (names->empty())
        reader.error(key, fmt::format("{} names nothing that runs again", reader.path_of(key)),
                     fmt::format("use {}, or recompute = \"none\"", fmt::join(known, ", ")));
    plan.recompute_modules = chosen;
}

void read_experts(core::TableReader& reader, ParallelLayout& layout) {
    const auto ranks = core::narrow<int>(reader.integer("expert_parallel", 1, positive));
    layout.expert = ranks;
    const auto given = reader.optional_integer("expert_tensor_parallel", positive);
    if (!given || spread_experts(layout, ranks, core::narrow<int>(*given))) return;
    const std::string key = reader.path_of("expert_tensor_parallel");
    if (*given != 1)
        reader.error(
            "expert_tensor_parallel",
            fmt::format("{} = {}: experts are divided as the rest of a layer, by tensor_parallel = {}, "
                        "or not at all",
                        key, *given, layout.tensor),
            fmt::format("use 1 or {}", layout.tensor));
    else
        reader.error(
            "expert_tensor_parallel",
            fmt::format("{} = 1: whole experts are spread over tensor ranks, too, and expert_parallel = "
                        "{} is no multiple of tensor_parallel = {}",
                        key, ranks, layout.tensor),
            "make expert_parallel a multiple, or leave expert_tensor_parallel out");
}

void read_layout(core::TableReader& reader, Plan& plan) {
    plan.layout.tensor = core::narrow<int>(reader.integer("tensor_parallel", 1, positive));
    plan.layout.pipeline = core::narrow<int>(reader.integer("pipeline_parallel", 1, positive));
    plan.layout.data = core::narrow<int>(reader.integer("data_parallel", 1, positive));
    plan.layout.context =
        core::narrow<int>(reader.integer("context_parallel", 1, {.least = 1, .greatest = 1 << 12}));
    plan.context_communication = read_name(reader, "context_communication", context_communications)
                                     .value_or(plan.context_communication);
    read_experts(reader, plan.layout);
    // Ranks that divide the tokens of one replica's samples stand beside the replicas on one axis.
    plan.layout.data =
        plan.layout.data > (1 << 22) / plan.layout.context ? 1 << 22 : plan.layout.data * plan.layout.context;
    plan.virtual_stages = core::narrow<int>(reader.integer("virtual_stages", 1, positive));
    if (reader.has("order") && reader.has("placement"))
        reader.error("placement",
                     fmt::format("{} and {} cannot be given together", reader.path_of("order"),
                                 reader.path_of("placement")),
                     "they are two names of one choice");
    for (const char* key : {"order", "placement"}) {
        const auto text = reader.optional_string(key);
        if (!text) continue;
        if (const std::string order = canonical_order(*text); !order.empty()) plan.layout.order = order;
        else
            reader.error(key, fmt::format("{} = {} is no order of ranks", key, core::in_quotes(*text)),
                         "use cluster, spread, megatron or a permutation of D, P and T, the fastest last");
    }
}

void read_batch(core::TableReader& reader, Plan& plan) {
    plan.micro_batch = core::narrow<int>(reader.integer("micro_batch", 1, positive));
    plan.micro_batches = core::narrow<int>(reader.integer("micro_batches", 1, positive));
    const auto global = reader.optional_integer("global_batch", {.least = 1, .greatest = 1 << 30});
    if (!global) return;
    const int replicas = plan.layout.replicas();
    const std::int64_t share = std::int64_t{plan.micro_batch} * replicas;
    if (reader.has("micro_batches")) {
        if (share * plan.micro_batches != *global)
            reader.error("global_batch",
                         fmt::format("global_batch = {} contradicts micro_batch = {} x micro_batches = {} x "
                                     "data_parallel = {} = {}",
                                     *global, plan.micro_batch, plan.micro_batches, replicas,
                                     share * plan.micro_batches),
                         "give micro_batches or global_batch, not both");
        return;
    }
    if (*global % share != 0) {
        reader.error(
            "global_batch",
            fmt::format("global_batch = {} is not a multiple of micro_batch = {} x data_parallel = {} = {}",
                        *global, plan.micro_batch, replicas, share),
            fmt::format("use {} or {}", std::max<std::int64_t>(1, *global / share) * share,
                        (*global / share + 1) * share));
        return;
    }
    plan.micro_batches = core::narrow<int>(*global / share);
}

void read_partition(core::TableReader& reader, Plan& plan) {
    plan.memory_weight = reader.real("memory_weight", plan.memory_weight, {.least = 0, .greatest = 1});
    if (const core::Value* value = reader.optional_any("partition"); value && value->is_string()) {
        read_saved_partition(value->string(), value->location, reader.path_of("partition"), plan,
                             reader.diagnostics());
        return;
    }
    const auto units = reader.optional_integers("partition", not_negative);
    if (!units) return;
    bool ascends = !units->empty() && units->front() == 0;
    for (std::size_t i = 1; i < units->size(); ++i) ascends = ascends && (*units)[i] > (*units)[i - 1];
    if (!ascends)
        reader.error("partition", "partition is the first unit of each stage: it begins with 0 and ascends",
                     "for example [0, 9, 17, 25] for four stages");
    else plan.partition.first_units.assign(units->begin(), units->end());
}

void read_offload(core::TableReader& reader, Plan& plan) {
    plan.offload = read_name(reader, "offload", all_offloads).value_or(plan.offload);
    plan.activation_loading_horizon = core::narrow<int>(
        reader.integer("activation_loading_horizon", plan.activation_loading_horizon, positive));
    if (const auto bandwidth = reader.optional_bytes_per_second("offload_bandwidth"))
        plan.offload_bandwidth = *bandwidth;
}

void read_state_offload(core::TableReader& reader, Plan& plan) {
    constexpr Offload places[] = {Offload::none, Offload::host};
    plan.optimizer_offload = read_name(reader, "optimizer_offload", places).value_or(plan.optimizer_offload);
    plan.parameter_offload = read_name(reader, "parameter_offload", places).value_or(plan.parameter_offload);
}

void read_optimizer(core::TableReader& reader, Optimizer& optimizer) {
    if (const auto kind = read_name(reader, "optimizer", all_optimizers)) {
        optimizer.kind = *kind;
        // Not the weight decay of PyTorch's AdamW, 1e-2: a surprise in comparisons.
        if (*kind == OptimizerKind::lamb) optimizer.epsilon = 1e-6;  // arXiv 1904.00962, section 4
    }
    constexpr core::RealRange fraction{.least = 0, .greatest = 1};
    optimizer.learning_rate = reader.real("learning_rate", optimizer.learning_rate, {.least = 0});
    optimizer.momentum = reader.real("momentum", optimizer.momentum, fraction);
    optimizer.beta1 = reader.real("beta1", optimizer.beta1, fraction);
    optimizer.beta2 = reader.real("beta2", optimizer.beta2, fraction);
    // The corrections of the moments divide by 1 - beta^t.
    for (const auto& [key, beta] : {std::pair("beta1", optimizer.beta1), std::pair("beta2", optimizer.beta2)})
        if (beta >= 1)
            reader.error(key,
                         fmt::format("{} = {} must be below 1: gradients would never count",
                                     reader.path_of(key), beta),
                         "PyTorch's defaults are 0.9 and 0.999");
    optimizer.epsilon = reader.real("epsilon", optimizer.epsilon, {.least = 0});
    optimizer.weight_decay = reader.real("weight_decay", optimizer.weight_decay, {.least = 0});
    optimizer.gradient_clipping = reader.real("gradient_clipping", optimizer.gradient_clipping, {.least = 0});
    if (reader.has("momentum") && optimizer.kind != OptimizerKind::sgd && optimizer.momentum != 0)
        reader.error(
            "momentum",
            fmt::format("momentum is of sgd; optimizer = {} has beta1 and beta2", name_of(optimizer.kind)),
            "use optimizer = \"sgd\" or remove momentum");
}

// Text that reads back to the same number.
std::string bytes_text(core::Bytes bytes) {
    const double mebibytes = bytes / core::mebibytes(1);
    if (mebibytes >= 1 && mebibytes == std::floor(mebibytes)) return fmt::format("{:.0f}MiB", mebibytes);
    return fmt::format("{}B", bytes.value);
}

void read_evaluation(core::TableReader& reader, Training& training) {
    training.eval_data = reader.string("eval_data", "");
    training.eval_data_format = reader.optional_choice("eval_data_format", data_formats()).value_or("");
    training.eval_every = core::narrow<int>(reader.integer("eval_every", 0, not_negative));
    training.eval_batches = core::narrow<int>(reader.integer("eval_batches", 0, not_negative));
    if (!training.eval_data.empty() || !training.eval_data_format.empty()) return;
    for (const char* key : {"eval_every", "eval_batches"})
        if (reader.has(key))
            reader.error(key, fmt::format("{} needs held-out data", key),
                         "name it with eval_data, or leave this out");
}

core::Value training_value(const Training& training, const Optimizer& optimizer) {
    core::Value table = core::Value::table();
    table["optimizer"] = name_of(optimizer.kind);
    table["learning_rate"] = optimizer.learning_rate;
    if (optimizer.kind == OptimizerKind::sgd) table["momentum"] = optimizer.momentum;
    table["beta1"] = optimizer.beta1;
    table["beta2"] = optimizer.beta2;
    table["epsilon"] = optimizer.epsilon;
    table["weight_decay"] = optimizer.weight_decay;
    if (optimizer.gradient_clipping > 0) table["gradient_clipping"] = optimizer.gradient_clipping;
    table["seed"] = static_cast<std::int64_t>(training.seed);
    table["steps"] = training.steps;
    if (!training.data.empty()) table["data"] = training.data;
    if (!training.data_format.empty()) table["data_format"] = training.data_format;
    if (training.shuffle_seed) table["shuffle_seed"] = static_cast<std::int64_t>(*training.shuffle_seed);
    if (!training.eval_data.empty()) table["eval_data"] = training.eval_data;
    if (!training.eval_data_format.empty()) table["eval_data_format"] = training.eval_data_format;
    if (training.eval_every > 0) table["eval_every"] = training.eval_every;
    if (training.eval_batches > 0) table["eval_batches"] = training.eval_batches;
    return table;
}

}  // namespace

std::vector<std::string> data_formats() {
    return {"bytes", "tokens", "tokens32", "idx", "cifar10", "cifar100", "synthetic"};
}

Precision precision_named(core::DataType compute) {
    const core::DataType stored = compute == core::DataType::fp8    ? core::DataType::bf16
                                  : compute == core::DataType::tf32 ? core::DataType::fp32
                                                                    : compute;
    return {.compute = compute,
            .parameters = stored,
            .gradients = stored,
            .has_master_parameters = stored != core::DataType::fp32};
}

std::optional<Plan> read_plan(const core::Value& plan_table, const core::Value* training_table,
                              core::Diagnostics& diagnostics, int nodes) {
    const std::size_t errors = diagnostics.error_count();
    Plan plan;
    core::TableReader reader(plan_table, "plan", diagnostics);
    read_layout(reader, plan);
    read_batch(reader, plan);
    plan.schedule = reader.string("schedule", plan.schedule);
    if (reader.has("schedule"))
        check_schedule_name(plan.schedule, diagnostics, reader.location_of("schedule"));
    // SageMaker's block names the schedule itself, and its parameters.
    if (!reader.has("sagemaker")) read_schedule_parameters(reader, plan);
    read_partition(reader, plan);
    plan.sharding = read_name(reader, "sharding", all_shardings).value_or(plan.sharding);
    plan.shard_degree = core::narrow<int>(reader.integer("shard_degree", 0, not_negative));
    plan.sequence_parallel = reader.boolean("sequence_parallel", plan.sequence_parallel);
    plan.tensor_overlap = core::narrow<int>(
        reader.integer("tensor_overlap", plan.tensor_overlap, {.least = 1, .greatest = most_pieces}));
    plan.recompute = read_name(reader, "recompute", all_recomputes).value_or(plan.recompute);
    read_recompute_layers(reader, plan);
    read_recompute_modules(reader, plan);
    read_precision(reader, plan.precision);
    if (const auto name = reader.optional_choice("attention", attention_names))
        plan.attention = static_cast<model::AttentionImplementation>(
            std::find(attention_names.begin(), attention_names.end(), *name) - attention_names.begin());
    plan.fused_cross_entropy = reader.boolean("fused_cross_entropy", plan.fused_cross_entropy);
    plan.gradient_bucket = reader.optional_bytes("gradient_bucket").value_or(plan.gradient_bucket);
    plan.overlaps_gradient_reduction =
        reader.boolean("overlaps_gradient_reduction", plan.overlaps_gradient_reduction);
    plan.overlaps_parameter_gathering =
        reader.boolean("overlaps_parameter_gathering", plan.overlaps_parameter_gathering);
    std::vector<std::string> collectives = {"auto"};
    for (const CollectiveAlgorithm& algorithm : collective_algorithms())
        collectives.push_back(algorithm.name);
    std::vector<std::string> libraries;
    for (const CommunicationLibrary& library : communication_libraries()) libraries.push_back(library.name);
    plan.communication = reader.optional_choice("communication", libraries).value_or(plan.communication);
    plan.collective = reader.optional_choice("collective", collectives).value_or(plan.collective);
    plan.framework = reader.string("framework", plan.framework);
    read_offload(reader, plan);
    read_state_offload(reader, plan);
    if (const core::Value* sagemaker = reader.optional_table("sagemaker"))
        read_sagemaker(*sagemaker, reader, nodes, plan);
    reader.finish();
    if (training_table) read_training(*training_table, plan, diagnostics);
    if (diagnostics.error_count() > errors) return std::nullopt;
    return plan;
}

std::optional<Training> read_training(const core::Value& training_table, Plan& plan,
                                      core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(training_table, "training", diagnostics);
    Training training;
    read_optimizer(reader, plan.optimizer);
    training.seed = reader.integer("seed", training.seed, {.least = 0});
    training.steps = core::narrow<int>(reader.integer("steps", training.steps, positive));
    training.data = reader.string("data", training.data);
    training.data_format = reader.optional_choice("data_format", data_formats()).value_or("");
    if (reader.has("shuffle_seed")) training.shuffle_seed = reader.integer("shuffle_seed", 0, {.least = 0});
    read_evaluation(reader, training);
    reader.finish();
    if (diagnostics.error_count() > errors) return std::nullopt;
    return training;
}

core::Value to_value(const Plan& plan) {
    core::Value table = core::Value::table();
    table["tensor_parallel"] = plan.layout.tensor;
    table["pipeline_parallel"] = plan.layout.pipeline;
    table["data_parallel"] = plan.layout.replicas();
    if (plan.layout.context > 1) table["context_parallel"] = plan.layout.context;
    if (plan.context_communication != ContextCommunication::all_gather)
        table["context_communication"] = name_of(plan.context_communication);
    if (plan.layout.expert_ranks() > 1) table["expert_parallel"] = plan.layout.expert_ranks();
    if (plan.layout.spreads_experts_over_tensor())
        table["expert_tensor_parallel"] = plan.layout.expert_tensor();
    table["virtual_stages"] = plan.virtual_stages;
    table["order"] = plan.layout.order;
    table["schedule"] = plan.schedule;
    write_schedule_parameters(plan, table);
    if (!plan.partition.file.empty()) table["partition"] = plan.partition.file;
    else if (!plan.partition.first_units.empty()) table["partition"] = plan.partition.first_units;
    if (plan.memory_weight > 0) table["memory_weight"] = plan.memory_weight;
    table["micro_batch"] = plan.micro_batch;
    table["micro_batches"] = plan.micro_batches;
    table["sharding"] = name_of(plan.sharding);
    if (plan.shard_degree > 0) table["shard_degree"] = plan.shard_degree;
    table["sequence_parallel"] = plan.sequence_parallel;
    if (plan.tensor_overlap > 1) table["tensor_overlap"] = plan.tensor_overlap;
    table["recompute"] = name_of(plan.recompute);
    if (plan.recompute_layers > 0) table["recompute_layers"] = plan.recompute_layers;
    if (!plan.recompute_layers_by_stage.empty()) table["recompute_layers"] = plan.recompute_layers_by_stage;
    if (plan.runs_chosen_modules_again()) table["recompute_modules"] = names_of(plan.recompute_modules);
    if (plan.offload != Offload::none) {
        table["offload"] = name_of(plan.offload);
        table["activation_loading_horizon"] = plan.activation_loading_horizon;
        if (plan.offload_bandwidth.value > 0)
            table["offload_bandwidth"] = fmt::format("{}B/s", plan.offload_bandwidth.value);
    }
    if (plan.updates_on_hosts()) table["optimizer_offload"] = name_of(plan.optimizer_offload);
    if (plan.keeps_parameters_on_hosts()) table["parameter_offload"] = name_of(plan.parameter_offload);
    const Precision& p = plan.precision;
    if (p.compute != core::DataType::fp8 && p.compute != core::DataType::int64 &&
        p == precision_named(p.compute)) {
        table["precision"] = core::name_of(p.compute);
    } else {
        core::Value precision = core::Value::table();
        precision["compute"] = core::name_of(p.compute);
        precision["parameters"] = core::name_of(p.parameters);
        precision["gradients"] = core::name_of(p.gradients);
        precision["master_parameters"] = p.has_master_parameters;
        table["precision"] = precision;
    }
    table["attention"] = attention_names[core::position_of(plan.attention)];
    if (!plan.framework.empty()) table["framework"] = plan.framework;
    table["fused_cross_entropy"] = plan.fused_cross_entropy;
    table["gradient_bucket"] = bytes_text(plan.gradient_bucket);
    table["overlaps_gradient_reduction"] = plan.overlaps_gradient_reduction;
    table["overlaps_parameter_gathering"] = plan.overlaps_parameter_gathering;
    if (plan.communication != "auto") table["communication"] = plan.communication;
    table["collective"] = plan.collective;
    return table;
}

std::optional<PlanFile> read_plan_file(const core::Value& document, const std::string& path,
                                       core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(document, "", diagnostics);
    const std::int64_t version = reader.required_integer("version");
    if (reader.has("version") && diagnostics.error_count() == errors && version != plan_file_version) {
        reader.error(
            "version",
            fmt::format("version = {} is not a version of plan files that this program reads", version),
            fmt::format("it reads version = {}", plan_file_version));
        return std::nullopt;
    }
    PlanFile file;
    file.path = path;
    if (const core::Value* table = reader.required_table("model")) file.model = *table;
    if (const core::Value* table = reader.required_table("cluster")) file.cluster = *table;
    const core::Value* training = reader.optional_table("training");
    const core::Value* plan_table = reader.required_table("plan");
    if (plan_table) {
        // Instances that processes_per_host counts for; the reader of [cluster] says whether they are sound.
        const core::Value* nodes = file.cluster.find("nodes");
        const bool has_nodes = nodes && nodes->kind() == core::Value::Kind::integer && nodes->integer() > 0 &&
                               nodes->integer() <= positive.greatest;
        if (const std::optional<Plan> plan = read_plan(*plan_table, nullptr, diagnostics,
                                                       has_nodes ? static_cast<int>(nodes->integer()) : 1))
            file.plan = *plan;
    }
    if (training)
        if (const std::optional<Training> read = read_training(*training, file.plan, diagnostics))
            file.training = *read;
    if (const core::Value* table = reader.optional_table("prediction")) file.prediction = *table;
    if (const core::Value* table = reader.optional_table("provenance")) file.provenance = *table;
    reader.ignore("question");
    reader.finish();
    if (diagnostics.error_count() > errors) return std::nullopt;
    return file;
}

std::optional<PlanFile> load_plan_file(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = core::load_document(path, diagnostics);
    if (!document) return std::nullopt;
    return read_plan_file(*document, path, diagnostics);
}

std::string write_plan_file(const PlanFile& file) {
    core::Value document = core::Value::table();
    document["version"] = plan_file_version;
    document["model"] = file.model;
    document["cluster"] = file.cluster;
    document["plan"] = to_value(file.plan);
    document["training"] = training_value(file.training, file.plan.optimizer);
    if (!file.prediction.is_null()) document["prediction"] = file.prediction;
    if (!file.provenance.is_null()) document["provenance"] = file.provenance;
    return core::to_toml(document);
}

}  // namespace schedule
