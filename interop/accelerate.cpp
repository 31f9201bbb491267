// Hugging Face accelerate's configuration file (YAML, `accelerate launch --config_file`): FSDP 2 with
// ParallelismConfig, or plain data parallelism. Its mesh is dp_replicate, dp_shard, cp, tp, the last fastest.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/expression.h"
#include "interop/source_text.h"
#include "interop/targets.h"

namespace interop {

namespace {

// What accelerator.prepare does to a model: FSDP 2 keeps fp32 shards, gathers and reduces in the low type;
// DistributedDataParallel keeps fp32 parameters and gradients under autocast.
core::Value precision(Expression& e, bool is_sharded) {
    const schedule::Precision& p = e.plan.precision;
    const bool is_low = p.compute == core::DataType::bf16 || p.compute == core::DataType::fp16;
    const bool is_full = p.compute == core::DataType::fp32 && p.parameters == core::DataType::fp32 &&
                         p.gradients == core::DataType::fp32;
    const core::DataType held = is_sharded ? p.compute : core::DataType::fp32;
    if (is_full) return "no";
    if (!is_low || p.parameters != held || p.gradients != held || p.has_master_parameters != is_sharded)
        e.refuse("precision",
                 fmt::format("{{ compute = {}, parameters = {}, gradients = {}, master_parameters = {} }}",
                             core::name_of(p.compute), core::name_of(p.parameters),
                             core::name_of(p.gradients), p.has_master_parameters),
                 is_sharded ? "it gathers parameters and reduces gradients in the type of mixed_precision"
                            : "without sharding it keeps parameters and gradients in fp32 under autocast",
                 is_sharded ? "set precision = \"bf16\" or \"fp32\""
                            : "set precision = { compute = \"bf16\", parameters = \"fp32\", gradients = "
                              "\"fp32\", master_parameters = false } or \"fp32\"");
    return std::string(core::name_of(p.compute));
}

void add_sharding(Expression& e, core::Value& document) {
    const schedule::Plan& plan = e.plan;
    const FsdpMesh mesh = e.fsdp_mesh();
    core::Value& fsdp = document["fsdp_config"];
    fsdp["fsdp_version"] = 2;
    fsdp["fsdp_auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP";
    fsdp["fsdp_reshard_after_forward"] = plan.sharding == schedule::Sharding::parameters;
    fsdp["fsdp_activation_checkpointing"] = plan.recompute == schedule::Recompute::full;
    fsdp["fsdp_offload_params"] = plan.keeps_parameters_on_hosts();
    fsdp["fsdp_cpu_ram_efficient_loading"] = true;
    fsdp["fsdp_state_dict_type"] = "SHARDED_STATE_DICT";
    core::Value& axes = document["parallelism_config"];
    axes["parallelism_config_dp_replicate_size"] = mesh.dp_replicate;
    axes["parallelism_config_dp_shard_size"] = mesh.dp_shard;
    axes["parallelism_config_cp_size"] = mesh.cp;
    axes["parallelism_config_tp_size"] = mesh.tp;
    if (mesh.cp > 1)  // PyTorch's rings: shards of keys pass on by an all-to-all with one part for the next
        axes["parallelism_config_cp_comm_strategy"] =
            plan.context_communication == schedule::ContextCommunication::ring ? "alltoall" : "allgather";
}

}  // namespace

std::optional<Export> write_accelerate(const ExportSource& source, const ExportOptions&,
                                       core::Diagnostics& diagnostics) {
    Expression e(source, "accelerate", diagnostics);
    const schedule::Plan& plan = e.plan;
    const bool is_sharded = plan.effective_shard_degree() > 1;
    e.refuse_pipeline("set pipeline_parallel = 1, or export to torchtitan or megatron");
    e.require_order({"PDT"});
    e.refuse_sequence_parallel("none of its keys turns it on");
    e.refuse_shared_heads("transformers' plans divide keys and values by whole heads");
    e.refuse_activation_offload();
    e.refuse_optimizer_offload_alone();
    if (plan.keeps_parameters_on_hosts() && plan.effective_shard_degree() == 1)
        e.refuse("parameter_offload", "host", "FSDP keeps them there, of several ranks",
                 "set data_parallel to 2 or more");
    e.refuse_recompute(schedule::Recompute::selective, "it checkpoints whole layers");
    e.refuse_recompute_layers("it checkpoints every layer");
    if (plan.layout.expert_ranks() > 1)
        e.refuse("expert_parallel", std::to_string(plan.layout.expert_ranks()), "its mesh has no such axis",
                 "set expert_parallel = 1");
    const int axes = plan.layout.ranks() / plan.layout.replicas();
    if (!is_sharded && axes > 1)
        e.refuse("sharding", "\"none\"", "its mesh of several axes goes with FSDP",
                 "set sharding = \"parameters\" over more than one rank");
    if (!is_sharded && !plan.overlaps_gradient_reduction && plan.layout.data > 1)
        e.refuse("overlaps_gradient_reduction", "false", "it always reduces beside the backward pass",
                 "set overlaps_gradient_reduction = true");
    const int processes = processes_per_node(source);
    if (processes == 0)
        e.refuse("data_parallel", std::to_string(plan.layout.data), "every node runs equally many processes",
                 "make the ranks a multiple of cluster.nodes");
    core::Value document;
    document["compute_environment"] = "LOCAL_MACHINE";
    document["distributed_type"] = is_sharded ? "FSDP" : plan.layout.ranks() > 1 ? "MULTI_GPU" : "NO";
    document["num_machines"] = source.cluster.nodes;
    document["num_processes"] = plan.layout.ranks();  // of all machines together
    document["machine_rank"] = 0;
    document["rdzv_backend"] = "static";
    document["same_network"] = true;
    document["main_training_function"] = "main";
    if (source.cluster.nodes > 1) {
        document["main_process_ip"] = "REPLACE_WITH_FIRST_HOST";
        document["main_process_port"] = 29500;
        diagnostics.warning({source.file.path, 0, 0}, "cluster.nodes",
                            "the plan does not name hosts: main_process_ip is a placeholder",
                            "run the command on every node with --machine_rank from 0");
    }
    document["mixed_precision"] = precision(e, is_sharded);
    if (is_sharded) add_sharding(e, document);
    e.leave_to_script(
        fmt::format("micro_batch = {} (the loader's batch_size), micro_batches = {} "
                    "(Accelerator(gradient_accumulation_steps))",
                    plan.micro_batch, plan.micro_batches));
    if (plan.optimizer.gradient_clipping > 0)
        e.leave_to_script(fmt::format("gradient_clipping = {} (accelerator.clip_grad_norm_)",
                                      plan.optimizer.gradient_clipping));
    if (plan.layout.tensor > 1) e.leave_to_script("tensor_parallel (from_pretrained(tp_plan=\"auto\"))");
    if (!is_sharded && plan.recompute == schedule::Recompute::full)
        e.leave_to_script("recompute = \"full\" (model.gradient_checkpointing_enable())");
    e.leave_to_script(std::string("attention = ") +
                      (plan.attention == model::AttentionImplementation::flash ? "\"flash\"" : "not flash") +
                      " (attn_implementation)");
    if (plan.fused_cross_entropy) e.leave_to_script("fused_cross_entropy = true");
    e.leave_optimizer_to_script();
    e.leave_collective_to_environment();
    if (!e.finish()) return std::nullopt;
    return Export{yaml(document),
                  {},
                  {placement_note(plan.layout), "accelerate launch --config_file FILE TRAINING_SCRIPT.py"}};
}

}  // namespace interop
