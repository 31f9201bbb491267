// DeepSpeed's JSON. Stage count, partition and topology of a pipeline live in Python, so a pipeline comes
// with a file of it. Rules: train_batch_size = micro-batch x accumulation x replicas; pipe/engine.py: ZeRO-2
// and ZeRO-3 exclude a pipeline; pipe/topology.py: pipe, data, model, the last fastest.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"
#include "interop/expression.h"
#include "interop/import_place.h"
#include "interop/python_literal.h"
#include "interop/targets.h"

namespace interop {

namespace {

constexpr core::IntegerRange positive{.least = 1, .greatest = 1 << 20};

class DeepSpeedWriter {
public:
    DeepSpeedWriter(const ExportSource& source, core::Diagnostics& diagnostics)
        : e_(source, "DeepSpeed", diagnostics), plan_(source.file.plan), source_(source) {}

    std::optional<Export> write() {
        e_.refuse_parts_of_data_axis();
        e_.refuse_offload();
        document_["train_batch_size"] = plan_.global_batch();
        document_["train_micro_batch_size_per_gpu"] = plan_.micro_batch;
        document_["gradient_accumulation_steps"] = plan_.micro_batches;
        precision();
        optimizer();
        sharding();
        tensor();
        pipeline();
        rest();
        if (!e_.finish()) return std::nullopt;
        Export result{core::to_json(document_), {}, {placement_note(plan_.layout)}};
        if (!python_.empty()) result.companions.push_back({"pipeline.py", python_});
        return result;
    }

private:
    void precision() {
        const schedule::Precision& p = plan_.precision;
        const bool is_low = p.compute == core::DataType::fp16 || p.compute == core::DataType::bf16;
        const bool is_full = p.compute == core::DataType::fp32 && p.parameters == core::DataType::fp32 &&
                             p.gradients == core::DataType::fp32;
        const bool is_mixed = is_low && p.parameters == p.compute && p.has_master_parameters &&
                              (p.gradients == p.compute || p.gradients == core::DataType::fp32);
        if (!is_full && !is_mixed) {
            e_.require_plain_precision();
            return;
        }
        if (is_low) document_[core::name_of(p.compute)]["enabled"] = true;
        if (is_low) document_["data_types"]["grad_accum_dtype"] = core::name_of(p.gradients);
    }

    void optimizer() {
        const schedule::Optimizer& o = plan_.optimizer;
        core::Value section = core::Value::table(), parameters = core::Value::table();
        parameters["lr"] = o.learning_rate;
        parameters["weight_decay"] = o.weight_decay;
        if (o.kind == schedule::OptimizerKind::sgd) {
            section["type"] = "SGD";
            parameters["momentum"] = o.momentum;
            section["params"] = parameters;
            document_["optimizer"] = section;
            return;
        }
        section["type"] = o.kind == schedule::OptimizerKind::lamb   ? "Lamb"
                          : o.kind == schedule::OptimizerKind::adam ? "Adam"
                                                                    : "AdamW";
        if (o.kind == schedule::OptimizerKind::adam)
            parameters["adam_w_mode"] = false;  // its Adam decays like AdamW otherwise
        parameters["betas"] = core::Value(core::Value::Array{o.beta1, o.beta2});
        parameters["eps"] = o.epsilon;
        section["params"] = parameters;
        document_["optimizer"] = section;
    }

    void sharding() {
        const int degree = plan_.effective_shard_degree();
        const bool shards = degree > 1;
        core::Value& zero = document_["zero_optimization"];
        zero["stage"] = shards ? static_cast<int>(plan_.sharding) : 0;
        if (!shards) {
            e_.leave_to_script(
                fmt::format("gradient_bucket = {} (DeepSpeed reduces in buckets of its own without ZeRO)",
                            core::format(plan_.gradient_bucket)));
            if (plan_.overlaps_gradient_reduction && plan_.layout.data > 1)
                e_.warn(
                    "overlaps_gradient_reduction",
                    "DeepSpeed without ZeRO reduces gradients after the last backward pass, not beside it",
                    "set overlaps_gradient_reduction = false and simulate again, or sharding = "
                    "\"optimizer\"");
            return;
        }
        const std::string name = fmt::format("\"{}\"", schedule::name_of(plan_.sharding));
        if (plan_.layout.pipeline > 1 && plan_.sharding != schedule::Sharding::optimizer)
            e_.refuse("sharding", name, "ZeRO-2 and ZeRO-3 exclude its pipeline",
                      "set sharding to \"optimizer\" or pipeline_parallel = 1");
        zero["overlap_comm"] = plan_.overlaps_gradient_reduction;
        zero["contiguous_gradients"] = true;
        const auto elements = static_cast<std::int64_t>(plan_.gradient_bucket.value /
                                                        core::size_of(plan_.precision.gradients).value);
        zero["reduce_bucket_size"] = elements;
        if (plan_.sharding == schedule::Sharding::parameters) {
            zero["stage3_prefetch_bucket_size"] =
                plan_.overlaps_parameter_gathering ? 50000000 : 0;  // 5e7 is its default; 0: no prefetch
            if (degree != plan_.layout.data) zero["mics_shard_size"] = degree;
        } else {
            zero["allgather_bucket_size"] = elements;
            if (plan_.overlaps_parameter_gathering)
                e_.warn("overlaps_parameter_gathering",
                        "ZeRO-1 and ZeRO-2 gather updated parameters at the end of the step, not beside the "
                        "next forward pass",
                        "set overlaps_parameter_gathering = false and simulate again");
            if (degree != plan_.layout.data)
                e_.refuse("shard_degree", std::to_string(degree),
                          "only parameters are sharded over part of the replicas (MiCS)",
                          "leave shard_degree out, or set sharding = \"parameters\"");
        }
        const auto kind = plan_.optimizer.kind;
        if (kind == schedule::OptimizerKind::sgd || kind == schedule::OptimizerKind::lamb)
            document_["zero_allow_untested_optimizer"] = true;
    }

    void tensor() {
        e_.refuse_sequence_parallel("its tensor parallelism has no such mode");
        if (plan_.layout.tensor == 1) return;
        if (plan_.shards(schedule::Sharding::parameters))
            e_.refuse("tensor_parallel", std::to_string(plan_.layout.tensor),
                      "its tensor parallelism goes with ZeRO stages 0 to 2",
                      "set sharding below \"parameters\", or tensor_parallel = 1");
        document_["tensor_parallel"]["autotp_size"] = plan_.layout.tensor;
        if (plan_.layout.pipeline > 1)
            e_.leave_to_script(
                "tensor-parallel layers of the pipeline's model (pipeline.py has the topology)");
    }

    void pipeline() {
        e_.refuse_virtual_stages();
        e_.require_schedule({"1f1b"});
        e_.require_order({"PDT"});
        if (plan_.active_micro_batches > 0 && plan_.layout.pipeline > 1)
            e_.refuse("active_micro_batches", std::to_string(plan_.active_micro_batches),
                      "its schedule decides this", "leave it out");
        if (plan_.layout.pipeline == 1) return;
        const int stages = plan_.layout.pipeline;
        const std::vector<std::int32_t> even = even_layers(source_.graph, stages);
        if (!plan_.partition.first_units.empty() && plan_.partition.first_units != even)
            e_.refuse("partition", one_line(core::Value(plan_.partition.first_units)),
                      "partition_method cuts into equal numbers of layers or parameters",
                      even.empty() ? "leave partition out"
                                   : "leave partition out, or set it to " + one_line(core::Value(even)));
        if (plan_.partition.first_units.empty())
            e_.warn(
                "partition",
                "DeepSpeed partitions by itself; its partition may differ from the one that was predicted",
                even.empty() ? "" : "set partition = " + one_line(core::Value(even)));
        core::Value& section = document_["pipeline"];
        section["stages"] = stages;
        section["partition"] = even.empty() ? "parameters" : "type:REPLACE_WITH_YOUR_LAYER_CLASS";
        section["activation_checkpoint_interval"] = plan_.recompute == schedule::Recompute::full ? 1 : 0;
        python_ =
            "from deepspeed.pipe import PipelineModule\nfrom deepspeed.runtime.pipe.topology import "
            "PipeModelDataParallelTopology\n\n";
        python_ += fmt::format("topology = PipeModelDataParallelTopology(num_pp={}, num_mp={}, num_dp={})\n",
                               stages, plan_.layout.tensor, plan_.layout.data);
        python_ +=
            "model = PipelineModule(layers=REPLACE_WITH_YOUR_LAYERS, topology=topology, "
            "loss_fn=REPLACE_WITH_YOUR_LOSS,\n";
        python_ += fmt::format(
            "                       partition_method=\"{}\", activation_checkpoint_interval={})\n",
            section["partition"].string(), section["activation_checkpoint_interval"].integer());
        e_.leave_to_script(
            "the pipeline's stages and partition (PipelineModule, in pipeline.py; names that begin with "
            "REPLACE are yours to fill in)");
    }

    void rest() {
        e_.refuse_recompute(schedule::Recompute::selective, "it checkpoints whole layers");
        if (plan_.recompute == schedule::Recompute::full) {
            core::Value& section = document_["activation_checkpointing"];
            section["partition_activations"] = false;
            section["cpu_checkpointing"] = false;
            section["number_checkpoints"] = source_.graph.units.size();
            if (plan_.layout.pipeline == 1)
                e_.leave_to_script(
                    "recompute = \"full\" (deepspeed.checkpointing.checkpoint around each layer)");
        }
        const char* const attention[] = {"unfused", "fused_softmax", "flash"};
        e_.leave_to_script(fmt::format("attention = \"{}\"", attention[static_cast<int>(plan_.attention)]));
        if (plan_.fused_cross_entropy) e_.leave_to_script("fused_cross_entropy = true");
        e_.leave_collective_to_environment();
    }

    Expression e_;
    const schedule::Plan& plan_;
    const ExportSource& source_;
    core::Value document_ = core::Value::table();
    std::string python_;
};

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
    for (const char* key : {"offload_optimizer", "offload_param"}) {
        const core::Value* offload = zero.optional_table(key);
        const core::Value* device = offload ? offload->find("device") : nullptr;
        if (device && device->is_string() && device->string() != "none")
            zero.error(key, fmt::format("{} to {} has no counterpart in a plan", key, device->string()),
                       "plans keep all state on the device");
    }
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
}

}  // namespace

std::optional<Export> write_deepspeed(const ExportSource& source, const ExportOptions&,
                                      core::Diagnostics& diagnostics) {
    return DeepSpeedWriter(source, diagnostics).write();
}

std::optional<schedule::PlanFile> read_deepspeed(const std::string& text, const std::string& path,
                                                 const ImportOptions& options,
                                                 core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = parse_python_literal(text, path, diagnostics);
    if (!document) return std::nullopt;
    const std::size_t errors = diagnostics.error_count();
    ImportLocation place = import_place({}, options, path, diagnostics);
    schedule::Plan& plan = place.file.plan;
    core::TableReader reader(*document, "", diagnostics);
    const auto batch = integer_unless_auto(reader, "train_batch_size"),
               micro = integer_unless_auto(reader, "train_micro_batch_size_per_gpu"),
               steps = integer_unless_auto(reader, "gradient_accumulation_steps");
    if (!batch && !micro && !reader.has("zero_optimization")) {
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
    if (diagnostics.error_count() > errors) return std::nullopt;

    // Two of three batch figures and the processes give the rest: train_batch_size = micro-batch x
    // accumulation x replicas.
    const std::int64_t model_ranks = std::int64_t{plan.layout.tensor} * plan.layout.pipeline;
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
    plan.layout.data = static_cast<int>(data);
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
