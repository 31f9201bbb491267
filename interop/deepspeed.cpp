// DeepSpeed's JSON. Stage count, partition and topology of a pipeline live in Python, so a pipeline comes
// with a file of it. Rules: train_batch_size = micro-batch x accumulation x replicas; pipe/engine.py: ZeRO-2
// and ZeRO-3 exclude a pipeline; pipe/topology.py: pipe, data, model, the last fastest; __init__.py: a mesh
// of data and sequences.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/expression.h"
#include "interop/targets.h"

namespace interop {

namespace {

class DeepSpeedWriter {
public:
    DeepSpeedWriter(const ExportSource& source, core::Diagnostics& diagnostics)
        : e_(source, "DeepSpeed", diagnostics), plan_(source.file.plan), source_(source) {}

    std::optional<Export> write() {
        e_.refuse_expert_parallel();
        e_.refuse_activation_offload();
        document_["train_batch_size"] = plan_.global_batch();
        document_["train_micro_batch_size_per_gpu"] = plan_.micro_batch;
        document_["gradient_accumulation_steps"] = plan_.micro_batches;
        sequences();
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
    // Ulysses: deepspeed.initialize makes a mesh of data x sequence of the two sizes, the latter fastest, and
    // shards state over both. Gradients then travel in a type of their own, fp32 unless it is said.
    void sequences() {
        const int degree = plan_.layout.context;
        if (degree == 1) return;
        if (!plan_.cost_context().communicates(schedule::ContextCommunication::all_to_all))
            e_.refuse("context_parallel", std::to_string(degree),
                      "its ranks exchange heads (Ulysses) and gather no keys",
                      "set context_communication = \"all_to_all\"");
        if (plan_.layout.tensor > 1 || plan_.layout.pipeline > 1)
            e_.refuse("context_parallel", std::to_string(degree),
                      "its mesh is of data and sequences alone, without tensor or pipeline parallelism",
                      "set context_parallel = 1, or tensor_parallel and pipeline_parallel = 1");
        if (plan_.attention == model::AttentionImplementation::unfused)
            e_.refuse("attention", "\"unfused\"", "its exchange of heads goes with fused attention",
                      "set attention = \"flash\"");
        document_["data_parallel_size"] = plan_.layout.replicas();
        document_["sequence_parallel_size"] = degree;
        document_["seq_parallel_communication_data_type"] = core::name_of(plan_.precision.gradients);
        e_.leave_to_script(
            "the exchange of heads and the cut of samples (UlyssesSPAttentionHF.register_with_transformers, "
            "UlyssesSPDataLoaderAdapter)");
    }

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
        if (o.gradient_clipping > 0) document_["gradient_clipping"] = o.gradient_clipping;
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

    void optimizer_on_host(bool shards, core::Value& zero) {
        if (!plan_.updates_on_hosts()) return;
        if (!shards)
            e_.refuse("optimizer_offload", "host", "its optimizer is on the host with ZeRO alone",
                      "set sharding = \"optimizer\", or optimizer_offload = \"none\"");
        if (plan_.optimizer.kind == schedule::OptimizerKind::sgd)
            e_.refuse("optimizer_offload", "host", "its optimizer there is DeepSpeedCPUAdam",
                      "use optimizer = \"adamw\", or set optimizer_offload = \"none\"");
        for (const char* state : {"offload_optimizer", "offload_param"}) {
            if (state == std::string_view("offload_param") && !plan_.keeps_parameters_on_hosts()) continue;
            zero[state]["device"] = "cpu";
            zero[state]["pin_memory"] = true;
        }
    }

    void sharding() {
        const int degree = plan_.effective_shard_degree();
        // ZeRO-3 fetches parameters from the host over one rank too.
        const bool shards = degree > 1 || plan_.keeps_parameters_on_hosts();
        core::Value& zero = document_["zero_optimization"];
        zero["stage"] = shards ? static_cast<int>(plan_.sharding) : 0;
        optimizer_on_host(shards, zero);
        if (!shards) {
            const char* const own_buckets = "DeepSpeed without ZeRO reduces in buckets of its own";
            if (plan_.gradient_bucket == schedule::Plan().gradient_bucket)
                e_.leave_to_script(fmt::format("gradient_bucket = {} ({})",
                                               core::format(plan_.gradient_bucket), own_buckets));
            else if (plan_.layout.data > 1)
                e_.warn("gradient_bucket", own_buckets,
                        "leave gradient_bucket out, or set sharding = \"optimizer\"");
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
            if (degree != plan_.layout.data)
                e_.refuse("shard_degree", std::to_string(degree),
                          "MiCS (mics_shard_size) was removed; ZeRO-3 shards over all replicas",
                          "leave shard_degree out, or export to torchtitan or accelerate");
        } else {
            zero["allgather_bucket_size"] = elements;
            if (plan_.overlaps_parameter_gathering)
                e_.warn("overlaps_parameter_gathering",
                        "ZeRO-1 and ZeRO-2 gather updated parameters at the end of the step, not beside the "
                        "next forward pass",
                        "set overlaps_parameter_gathering = false and simulate again");
            if (degree != plan_.layout.data)
                e_.refuse("shard_degree", std::to_string(degree), "it shards over all replicas",
                          "leave shard_degree out");
        }
        const auto kind = plan_.optimizer.kind;
        if (kind == schedule::OptimizerKind::sgd || kind == schedule::OptimizerKind::lamb)
            document_["zero_allow_untested_optimizer"] = true;
    }

    void tensor() {
        e_.refuse_sequence_parallel("its tensor parallelism has no such mode");
        e_.refuse_shared_heads("its automatic tensor parallelism divides keys and values by whole heads");
        if (plan_.layout.tensor == 1) return;
        if (plan_.fetches_parameters())
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
        e_.refuse_recompute_layers("its intervals are of all layers of a stage");
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

}  // namespace

std::optional<Export> write_deepspeed(const ExportSource& source, const ExportOptions&,
                                      core::Diagnostics& diagnostics) {
    return DeepSpeedWriter(source, diagnostics).write();
}

}  // namespace interop
