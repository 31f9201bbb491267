// torchtitan's job configuration as TOML (revisions before 9810191bb of 2026-02-23). Its mesh is pp,
// dp_replicate, dp_shard, tp, the last fastest. The only target that takes an arbitrary partition
// (module_fqns_per_model_part) and an arbitrary schedule (pipeline_parallel_schedule_csv).
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/expression.h"
#include "interop/targets.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"

namespace interop {

namespace {

void pipeline(Expression& e, core::Value& parallelism) {
    const schedule::Plan& plan = e.plan;
    if (plan.layout.pipeline == 1) {
        e.refuse_virtual_stages();
        e.require_schedule({"1f1b"});
        return;
    }
    // torch.distributed.pipelining's names.
    static const std::pair<const char*, const char*> names[] = {{"1f1b", "1F1B"},
                                                                {"simple", "GPipe"},
                                                                {"interleaved-1f1b", "Interleaved1F1B"},
                                                                {"looped-bfs", "LoopedBFS"}};
    const schedule::PipelineSchedule* chosen = schedule::find_pipeline_schedule(plan.schedule);
    std::vector<std::string> known;
    std::string word;
    for (const auto& [ours, theirs] : names) {
        known.push_back(ours);
        if (chosen && chosen->name == ours) word = theirs;
    }
    e.require_schedule(known);
    if (plan.group_size > 0 && plan.group_size != plan.layout.pipeline)
        e.refuse("group_size", std::to_string(plan.group_size), "Interleaved1F1B has groups of its own",
                 "leave group_size out");
    parallelism["pipeline_parallel_schedule"] = word;
    parallelism["pipeline_parallel_microbatch_size"] = plan.micro_batch;
    const auto partition = schedule::complete_partition(plan, e.source.graph);
    if (!partition) return;
    if (e.source.graph.family != "llama") {
        e.refuse("partition", "this one", "module names are known for its Llama models only",
                 "export to another target");
        return;
    }
    core::Value parts = core::Value::array();
    const auto& first = partition->first_units;
    for (std::size_t stage = 0; stage < first.size(); ++stage) {
        const std::size_t end = stage + 1 < first.size() ? static_cast<std::size_t>(first[stage + 1])
                                                         : e.source.graph.units.size();
        core::Value part = core::Value::array();
        for (std::size_t unit = first[stage]; unit < end; ++unit) {
            const std::string& name = e.source.graph.units[unit].name;
            if (name == "embedding") part.append("tok_embeddings");
            else if (name == "head") part.append("norm"), part.append("output");
            else part.append(name);
        }
        parts.append(part);
    }
    parallelism["module_fqns_per_model_part"] = parts;
}

void sharding(Expression& e, core::Value& parallelism) {
    const schedule::Plan& plan = e.plan;
    const int degree = plan.effective_shard_degree();
    if (degree > 1 && plan.sharding == schedule::Sharding::optimizer)
        e.refuse("sharding", "\"optimizer\"", "FSDP shards gradients with the optimizer's state",
                 "set sharding to \"gradients\" or \"parameters\"");
    parallelism["data_parallel_replicate_degree"] = plan.layout.data / degree;
    parallelism["data_parallel_shard_degree"] = degree;
    if (degree > 1)
        parallelism["fsdp_reshard_after_forward"] =
            plan.sharding == schedule::Sharding::parameters ? "always" : "never";
    if (!plan.overlaps_gradient_reduction && plan.layout.data > 1)
        e.refuse("overlaps_gradient_reduction", "false", "it always reduces beside the backward pass",
                 "set overlaps_gradient_reduction = true");
    if (!plan.overlaps_parameter_gathering && degree > 1)
        e.refuse("overlaps_parameter_gathering", "false", "FSDP always gathers ahead",
                 "set overlaps_parameter_gathering = true");
}

void precision(Expression& e, core::Value& training) {
    const schedule::Precision& p = e.plan.precision;
    training["dtype"] = "float32";
    if (p.compute == core::DataType::fp32 && p.parameters == core::DataType::fp32 &&
        p.gradients == core::DataType::fp32) {
        training["mixed_precision_param"] = "float32";
    } else if (p.compute == core::DataType::bf16 && p.parameters == core::DataType::bf16 &&
               p.has_master_parameters) {
        training["mixed_precision_param"] = "bfloat16";
        if (p.gradients != core::DataType::fp32)
            e.refuse("precision", "bf16 gradients",
                     "it reduces gradients in fp32 only (mixed_precision_reduce)",
                     "set precision = { compute = \"bf16\", parameters = \"bf16\", gradients = \"fp32\", "
                     "master_parameters = true } and simulate again");
    } else {
        e.refuse("precision", fmt::format("\"{}\"", core::name_of(p.compute)),
                 "it has float32 and bfloat16 with float32 parameters",
                 "set precision to \"fp32\", or bf16 with fp32 gradients");
    }
    training["mixed_precision_reduce"] = "float32";
}

}  // namespace

std::optional<Export> write_torchtitan(const ExportSource& source, const ExportOptions&,
                                       core::Diagnostics& diagnostics) {
    Expression e(source, "torchtitan", diagnostics);
    e.refuse_parts_of_data_axis();
    e.refuse_offload();
    const schedule::Plan& plan = e.plan;
    core::Value document = core::Value::table();
    document["model"]["name"] = source.graph.family == "llama" ? "llama3" : "REPLACE_WITH_A_MODEL";
    document["model"]["flavor"] = "REPLACE_WITH_A_FLAVOR";
    diagnostics.warning(
        {source.file.path, 0, 0}, "model",
        fmt::format("torchtitan's models are named in its own code: model.flavor is a placeholder for {}",
                    source.graph.name),
        "register a flavor with these dimensions");
    core::Value& training = document["training"];
    // A pipeline cuts the local batch into micro-batches; without one the rest is gradient accumulation.
    training["local_batch_size"] =
        plan.layout.pipeline > 1 ? plan.micro_batch * plan.micro_batches : plan.micro_batch;
    training["global_batch_size"] = plan.global_batch();
    training["seq_len"] = source.graph.tokens_per_sample;
    training["steps"] = source.file.training.steps;
    // Its default is 1; a norm beyond all others clips nothing.
    training["max_norm"] = plan.optimizer.gradient_clipping > 0 ? plan.optimizer.gradient_clipping : 1e30;
    precision(e, training);
    core::Value& parallelism = document["parallelism"];
    sharding(e, parallelism);
    parallelism["tensor_parallel_degree"] = plan.layout.tensor;
    parallelism["context_parallel_degree"] = 1;
    parallelism["pipeline_parallel_degree"] = plan.layout.pipeline;
    pipeline(e, parallelism);
    e.require_order({"PDT"});
    if (plan.layout.tensor > 1 && !plan.sequence_parallel)
        e.refuse("sequence_parallel", "false", "its tensor parallelism always divides the tokens too",
                 "set sequence_parallel = true");
    e.refuse_recompute(schedule::Recompute::selective, "its selective mode chooses other operators");
    document["activation_checkpoint"]["mode"] = plan.recompute == schedule::Recompute::full ? "full" : "none";
    const schedule::Optimizer& o = plan.optimizer;
    if (o.kind == schedule::OptimizerKind::adam || o.kind == schedule::OptimizerKind::adamw) {
        core::Value& optimizer = document["optimizer"];
        optimizer["name"] = o.kind == schedule::OptimizerKind::adam ? "Adam" : "AdamW";
        optimizer["lr"] = o.learning_rate;
        optimizer["beta1"] = o.beta1;
        optimizer["beta2"] = o.beta2;
        optimizer["eps"] = o.epsilon;
        optimizer["weight_decay"] = o.weight_decay;
    } else {
        diagnostics.error(
            {source.file.path, 0, 0}, "training.optimizer",
            fmt::format("optimizer = \"{}\" cannot be expressed by torchtitan: it has Adam and AdamW",
                        schedule::name_of(o.kind)),
            "set optimizer = \"adamw\"");
    }
    if (plan.attention != model::AttentionImplementation::flash)
        e.refuse("attention", "not flash", "its models call scaled_dot_product_attention",
                 "set attention = \"flash\"");
    if (plan.fused_cross_entropy) e.leave_to_script("fused_cross_entropy = true");
    if (plan.effective_shard_degree() == 1 && plan.layout.data > 1)
        e.leave_to_script(fmt::format("gradient_bucket = {}", core::format(plan.gradient_bucket)));
    e.leave_to_script("training.seed and data");
    e.leave_collective_to_environment();
    if (!e.finish()) return std::nullopt;
    return Export{core::to_toml(document), {}, {placement_note(plan.layout)}};
}

}  // namespace interop
