#include "schedule/plan/plan_sagemaker.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/plan/partition_file.h"

#include <fmt/core.h>

namespace schedule {

namespace {

// Share of memory, against time, in what partitions balance, by the value of `optimize` (SageMaker Python SDK
// documentation, smd_model_parallel_general).
constexpr double memory_weight_for_speed = 0.2, memory_weight_for_memory = 0.8;

constexpr core::IntegerRange positive{.least = 1, .greatest = 1 << 20};

// Rules and defaults: SageMaker Python SDK, smd_model_parallel_general.rst, and its fw_utils.validate_smp;
// developer guide, model-parallel-core-features.
class ParameterReader {
public:
    ParameterReader(const core::Value& table, core::TableReader& plan_reader, Plan& plan)
        : r_(table, plan_reader.path_of("sagemaker.parameters"), plan_reader.diagnostics()),
          plan_reader_(plan_reader),
          plan_(plan) {}

    // `processes` = processes per host x instances.
    void read(std::int64_t processes) {
        read_pipeline();
        read_data_parallelism(processes);
        read_precision();
        read_sharding();
        read_partitioning();
        read_rest();
        r_.finish();
    }

private:
    void clash(const char* one, const char* other, const char* hint) {
        r_.error(one, fmt::format("{} and {} cannot be given together", r_.path_of(one), r_.path_of(other)),
                 hint);
    }
    void without_effect(const char* key, const std::string& why) {
        if (r_.has(key)) r_.warning(key, fmt::format("{} has no effect: {}", key, why));
    }

    void read_pipeline() {
        const bool has_partitions = r_.has("partitions"), has_degree = r_.has("pipeline_parallel_degree");
        if (has_partitions && has_degree)
            clash("partitions", "pipeline_parallel_degree",
                  "they are two names of one parameter; keep partitions");
        const auto degree = r_.optional_integer("pipeline_parallel_degree", positive);
        plan_.layout.pipeline =
            core::narrow<int>(has_degree ? degree.value_or(1) : r_.required_integer("partitions", positive));
        if (has_degree && has_partitions) r_.ignore("partitions");
        plan_.micro_batches = core::narrow<int>(r_.integer("microbatches", 1, positive));
        const std::string pipeline =
            r_.optional_choice("pipeline", {"interleaved", "simple", "_only_forward"})
                .value_or("interleaved");
        plan_.schedule = pipeline == "_only_forward" ? "forward-only" : pipeline;
        AdmissionParameters admission;
        admission.is_strict =
            r_.optional_choice("optimize", {"memory", "speed"}).value_or("memory") == "memory";
        admission.active_micro_batches = core::narrow<int>(
            r_.integer("active_microbatches", 0, positive));  // 0: the schedule's default, partitions + 2
        if (pipeline != "interleaved")
            without_effect("active_microbatches",
                           fmt::format("pipeline = {} has one order", core::in_quotes(pipeline)));
        else if (admission != AdmissionParameters{}) plan_.schedule_parameters = admission;
        const std::string placement = r_.string("placement_strategy", "cluster");
        plan_.layout.order = canonical_order(placement);
        if (plan_.layout.order.empty() || placement == "megatron") {
            r_.error("placement_strategy",
                     fmt::format("placement_strategy = {} is no placement", core::in_quotes(placement)),
                     "use cluster, spread or a permutation of D, P and T");
            plan_.layout.order = "DPT";
        }
        plan_.layout.tensor = core::narrow<int>(r_.integer("tensor_parallel_degree", 1, positive));
    }

    void read_data_parallelism(std::int64_t processes) {
        const bool horovod = r_.boolean("horovod", false), ddp = r_.boolean("ddp", false);
        if (horovod && ddp) clash("horovod", "ddp", "Horovod is for TensorFlow, ddp for PyTorch: keep one");
        if (plan_.layout.tensor > 1 && !ddp)
            r_.error("tensor_parallel_degree",
                     fmt::format("tensor_parallel_degree = {} needs ddp = true", plan_.layout.tensor),
                     "set ddp = true");
        for (const char* key : {"ddp_port", "ddp_dist_backend"}) {
            if (!r_.has(key)) continue;
            if (!ddp) r_.error(key, fmt::format("{} needs ddp = true", key), "set ddp = true or remove it");
            else without_effect(key, "how processes find each other is not part of a plan");
        }
        r_.optional_integer("ddp_port", {.least = 0, .greatest = 65535});
        r_.optional_choice("ddp_dist_backend", {"auto", "nccl"});
        const std::int64_t replica = std::int64_t{plan_.layout.pipeline} * plan_.layout.tensor;
        if (processes % replica != 0) {
            plan_reader_.error("sagemaker",
                               fmt::format("{} processes cannot be divided into replicas of {} (partitions = "
                                           "{} x tensor_parallel_degree = {})",
                                           processes, replica, plan_.layout.pipeline, plan_.layout.tensor),
                               fmt::format("make processes_per_host x instances a multiple of {}", replica));
            return;
        }
        plan_.layout.data = core::narrow<int>(processes / replica);
        if (horovod && plan_.layout.data == 1)
            r_.warning("horovod",
                       fmt::format("horovod = true does nothing here: {} processes form one replica of {} "
                                   "partitions, so there are no gradients to average",
                                   processes, plan_.layout.pipeline),
                       "start more processes per host, or leave it out");
        if (!horovod && !ddp && plan_.layout.data > 1)
            r_.warning("partitions",
                       fmt::format("{} replicas train together although neither ddp nor horovod is set",
                                   plan_.layout.data),
                       "set ddp = true (PyTorch) or horovod = true (TensorFlow)");
    }

    void read_precision() {
        const bool fp16 = r_.boolean("fp16", false) || r_.boolean("fp16_params", false),
                   bf16 = r_.boolean("bf16", false);
        r_.ignore("fp16_params");
        if (fp16 && bf16) clash("fp16", "bf16", "keep one");
        if (plan_reader_.has("precision")) {
            if (fp16 || bf16)
                r_.error(fp16 ? "fp16" : "bf16",
                         fmt::format("{} and {} both set the precision", r_.path_of(fp16 ? "fp16" : "bf16"),
                                     plan_reader_.path_of("precision")),
                         "keep one");
            return;
        }
        const core::DataType type = fp16   ? core::DataType::fp16
                                    : bf16 ? core::DataType::bf16
                                           : core::DataType::fp32;
        plan_.precision = {
            .compute = type, .parameters = type, .gradients = type, .has_master_parameters = fp16 || bf16};
    }

    void read_sharding() {
        const bool shards_optimizer = r_.boolean("shard_optimizer_state", false);
        const auto degree = core::narrow<int>(r_.integer("sharded_data_parallel_degree", 1, positive));
        if (degree > 1) {
            if (shards_optimizer)
                clash("sharded_data_parallel_degree", "shard_optimizer_state",
                      "sharded data parallelism divides the optimizer state already");
            if (plan_.layout.pipeline > 1)
                clash("sharded_data_parallel_degree",
                      r_.has("partitions") ? "partitions" : "pipeline_parallel_degree",
                      "SMP v1 shards data only without a pipeline");
            plan_.sharding = Sharding::parameters;
            plan_.shard_degree = degree;
        } else if (shards_optimizer) {
            plan_.sharding = Sharding::optimizer;
        }
        for (const char* key :
             {"sdp_reduce_bucket_size", "sdp_param_persistence_threshold", "sdp_max_live_parameters",
              "sdp_hierarchical_allgather", "sdp_gradient_clipping"}) {
            r_.ignore(key);
            without_effect(key, "parameters are gathered and gradients scattered unit by unit");
        }
    }

    void read_partitioning() {
        const bool automatic = r_.boolean("auto_partition", true);
        const auto default_partition = r_.optional_integer("default_partition", {.least = 0});
        if (!automatic && !default_partition)
            r_.error("auto_partition", "auto_partition = false needs default_partition",
                     "name the partition of what stands in no smp.partition context");
        if (default_partition && *default_partition >= plan_.layout.pipeline)
            r_.error("default_partition",
                     fmt::format("default_partition = {} is not below partitions = {}", *default_partition,
                                 plan_.layout.pipeline),
                     fmt::format("use 0 to {}", plan_.layout.pipeline - 1));
        if (!automatic && !plan_reader_.has("partition") && !r_.has("partition_file"))
            r_.error("auto_partition",
                     fmt::format(
                         "auto_partition = false leaves the partition to the script, which is not at hand"),
                     fmt::format("give {} = [first unit of each stage]", plan_reader_.path_of("partition")));
        const double by_optimize =
            r_.string("optimize", "memory") == "speed" ? memory_weight_for_speed : memory_weight_for_memory;
        const double weight = r_.real("memory_weight", by_optimize, {.least = 0, .greatest = 1});
        if (plan_.layout.pipeline > 1) plan_.memory_weight = weight;
        r_.ignore("contiguous");
        if (!r_.boolean("contiguous", true))
            r_.warning("contiguous", "contiguous = false has no effect: partitions here are contiguous");
        const bool loads = r_.boolean("load_partition", false);
        const auto file = r_.optional_string("partition_file");
        if (loads && !file)
            r_.error("load_partition", "load_partition = true needs partition_file",
                     "name the file that `smplan partition --out` wrote");
        if (loads && file)
            read_saved_partition(*file, r_.location_of("partition_file"), r_.path_of("partition_file"), plan_,
                                 r_.diagnostics());
    }

    void read_rest() {
        if (r_.boolean("offload_activations", false)) plan_.offload = Offload::host;
        plan_.activation_loading_horizon = core::narrow<int>(
            r_.integer("activation_loading_horizon", plan_.activation_loading_horizon, positive));
        if (plan_.offload != Offload::none && r_.has("activation_loading_horizon"))
            r_.warning("activation_loading_horizon",
                       "activation_loading_horizon counts passes through units (layers) here, SMP 1's "
                       "through stages");
        if (!r_.boolean("prescaled_batch", false) && plan_.layout.tensor > 1)
            r_.warning("tensor_parallel_degree",
                       fmt::format("prescaled_batch = false would give each of {} tensor-parallel ranks its "
                                   "own batch; here they share one (prescaled_batch = true)",
                                   plan_.layout.tensor),
                       "set prescaled_batch = true");
        for (const char* key : {"deterministic_server", "skip_tracing", "delayed_parameter_initialization"})
            r_.ignore(key);
        without_effect("skip_tracing", "nothing is traced");
        without_effect("delayed_parameter_initialization", "parameters are made where they are used");
    }

    core::TableReader r_;
    core::TableReader& plan_reader_;
    Plan& plan_;
};

}  // namespace

void read_sagemaker(const core::Value& table, core::TableReader& plan_reader, int instances, Plan& plan) {
    core::TableReader reader(table, plan_reader.path_of("sagemaker"), plan_reader.diagnostics());
    for (const char* key : {"tensor_parallel", "expert_tensor_parallel", "pipeline_parallel", "data_parallel",
                            "virtual_stages", "micro_batches", "global_batch", "schedule", "order",
                            "placement", "active_micro_batches", "strict_order", "sharding", "shard_degree"})
        if (plan_reader.has(key))
            plan_reader.error(key,
                              fmt::format("{} and {} cannot be given together", plan_reader.path_of(key),
                                          reader.path_of("parameters")),
                              "say it in one of them");
    if (!reader.boolean("enabled", true))
        reader.warning("enabled", "enabled = false: the block is read all the same");
    const std::int64_t processes =
        reader.required_integer("processes_per_host", {.least = 1, .greatest = 1024});
    const auto given = reader.optional_integer("instance_count", positive);
    if (given && instances > 0 && *given != instances)
        reader.error("instance_count",
                     fmt::format("instance_count = {} and cluster.nodes = {} contradict each other", *given,
                                 instances),
                     "give the number of instances once");
    if (const core::Value* parameters = reader.required_table("parameters"))
        ParameterReader(*parameters, plan_reader, plan)
            .read(processes * given.value_or(std::max(1, instances)));
    reader.finish();
}

}  // namespace schedule
