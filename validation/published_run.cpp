#include "validation/published_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "cluster/synthetic.h"
#include "core/diagnostics.h"
#include "sim/cost/framework/framework.h"
#include "sim/cost/framework/framework_lookup.h"
#include "validation/published_framework.h"
#include "validation/published_model.h"
#include "validation/row_reader.h"

namespace validation {

const std::vector<std::string>& run_columns() {
    static const std::vector<std::string> columns = {"id",
                                                     "group",
                                                     "model",
                                                     "layers",
                                                     "hidden",
                                                     "heads",
                                                     "kv_heads",
                                                     "ffn",
                                                     "vocab",
                                                     "seq_len",
                                                     "tied_embeddings",
                                                     "image_size",
                                                     "precision",
                                                     "optimizer",
                                                     "cluster",
                                                     "nodes",
                                                     "gpus_per_node",
                                                     "tensor_parallel",
                                                     "pipeline_parallel",
                                                     "virtual_stages",
                                                     "data_parallel",
                                                     "sharding",
                                                     "shard_degree",
                                                     "micro_batch",
                                                     "global_batch",
                                                     "grad_accumulation",
                                                     "recompute",
                                                     "schedule",
                                                     "sequence_parallel",
                                                     "attention",
                                                     "framework",
                                                     "measured_step_s",
                                                     "measured_peak_gib"};
    return columns;
}

const std::vector<std::string>& cluster_columns() {
    static const std::vector<std::string> columns = {"id",
                                                     "gpu",
                                                     "gpu_memory_gib",
                                                     "gpus_per_node",
                                                     "intra_node",
                                                     "intra_node_gbs_per_dir",
                                                     "nics_per_node",
                                                     "gbit_per_nic",
                                                     "transport",
                                                     "gpudirect",
                                                     "ec2_instance"};
    return columns;
}

namespace {

// What a row without a framework was most likely run with, by what its plan asks for.
FrameworkFamily usual_framework(const RowReader& row) {
    const std::string model = row.text("model");
    const auto is = [&](std::string_view part) { return model.starts_with(part); };
    const auto is_one = [&](const char* column) { return row.is_blank(column) || row.text(column) == "1"; };
    if (is("moe")) return FrameworkFamily::compiled_graph;
    // Architectures that came with a code of their own.
    const bool is_plain = is_one("tensor_parallel") && is_one("pipeline_parallel");
    if (is("mpt") && is_plain &&
        (row.text("sharding") == "parameters" || row.text("sharding") == "gradients"))
        return FrameworkFamily::llm_foundry;
    if (is("internlm") && is_plain && row.text("sharding") == "optimizer") return FrameworkFamily::internlm;
    if (is("llama") || is("internlm") || is("mpt") || is("gpt") || is("bloom") || is("bert_megatron"))
        return row.text("sharding") == "parameters" && is_plain ? FrameworkFamily::sharded
                                                                : FrameworkFamily::megatron;
    return FrameworkFamily::apex;
}

// The profile of the row's free text, or the usual one; what was taken, and why, is an assumption of the run.
std::string read_framework(const RowReader& row, std::string_view gpu, PublishedRun& run) {
    const std::string model = row.text("model");
    int year = usual_year_of(gpu, model);
    if (const std::string text = row.text("framework"); !text.empty()) {
        PublishedFramework framework = framework_of(text, year);
        run.assumptions.push_back(std::move(framework.because));
        return framework.profile;
    }
    // Language models on the devices before A100 were trained with the containers of their time.
    constexpr int year_of_volta = 2020;
    const bool is_language_model = model.starts_with("bert") || model.starts_with("transformer_xl");
    const FrameworkFamily family = usual_framework(row);
    if (family == FrameworkFamily::apex && is_language_model && (gpu == "V100" || gpu == "T4"))
        year = year_of_volta;
    std::string profile = profile_of(family, year);
    run.assumptions.push_back("framework is not stated: as usual for such a plan, " + profile);
    return profile;
}

// What the sources state in words about how gradients are reduced.
void read_notes(RowReader& row, schedule::Plan& plan) {
    const std::string notes = row.optional_text("notes");
    const auto says = [&](const char* part) { return notes.find(part) != std::string::npos; };
    if (says("fp32 gradient reduction")) plan.precision.gradients = core::DataType::fp32;
    if (says("bf16 gradient reduction")) plan.precision.gradients = core::DataType::bf16;
    if (says("reduction after backward") || says("all-reduce after backward") ||
        says("no overlap of gradient sync"))
        plan.overlaps_gradient_reduction = false;
    if (says("bucketed overlap")) plan.overlaps_gradient_reduction = true;
    // Alpa's option: gradients are scattered and the optimizer works on shards.
    if (says("prefer_reduce_scatter") && plan.sharding == schedule::Sharding::none && plan.layout.data > 1) {
        plan.sharding = schedule::Sharding::optimizer;
        plan.shard_degree = plan.layout.data;
    }
}

const core::CsvRow* find_cluster(const core::CsvTable& clusters, const std::string& id) {
    for (const core::CsvRow& row : clusters.rows)
        if (clusters.cell(row, "id") == id) return &row;
    return nullptr;
}

// Boards of one name with another power limit run at other clocks, and are devices of their own in the
// catalogue (alias "V100-450W"). A limit that no device states is the usual board's.
std::string device_of(const RowReader& cluster) {
    const std::string gpu = cluster.text("gpu");
    std::string watts = cluster.optional_text("power_limit_w");
    // Files without that column say it in words.
    if (watts.empty() && cluster.optional_text("notes").find("450 W V100") != std::string::npos)
        watts = "450";
    if (watts.empty()) return gpu;
    const std::string limited = fmt::format("{}-{}W", gpu, watts);
    core::Diagnostics unknown;
    return cluster::load_device(limited, unknown) ? limited : gpu;
}

core::Value cluster_table(RowReader& cluster, std::int64_t nodes, bool one_device_is_enough) {
    core::Value table;
    const std::string instance = cluster.text("ec2_instance");
    table["nodes"] = nodes;
    if (!instance.empty()) {
        table["instance"] = instance;
        return table;
    }
    table["device"] = device_of(cluster);
    table["devices_per_node"] =
        one_device_is_enough ? std::int64_t{1} : cluster.integer("gpus_per_node", 1, 1);
    if (!cluster.is_blank("gpu_memory_gib")) table["memory"] = cluster.text("gpu_memory_gib") + "GiB";
    const std::string intra = cluster.text("intra_node");
    table["intra"] = intra.ends_with("nvswitch")                    ? "nvswitch"
                     : intra == "nvlink2_hybrid_cube_mesh"          ? "hybrid-cube-mesh"
                     : intra.ends_with("quad")                      ? "full-mesh"
                     : intra == "none" || intra.starts_with("pcie") ? "pcie"
                     : intra.starts_with("nvlink")
                         ? "nvswitch"  // a generation alone: every pair at the stated rate
                         : intra;
    if (intra.starts_with("nvlink") && !cluster.is_blank("intra_node_gbs_per_dir"))
        table["intra_bandwidth"] = cluster.text("intra_node_gbs_per_dir") + "GB/s";
    const std::int64_t cards = cluster.integer("nics_per_node", 0, 0);
    if (const std::optional<double> rate = cluster.real("gbit_per_nic"); cards > 0 && rate && *rate > 0) {
        table["network_cards"] = cards;
        table["network_bandwidth"] = fmt::format("{}Gbps", *rate * static_cast<double>(cards));
        table["transport"] =
            cluster.text("transport") == "ethernet" ? std::string("tcp") : cluster.text("transport");
    }
    if (const std::string gpudirect = cluster.text("gpudirect"); gpudirect == "yes" || gpudirect == "no")
        table["gpudirect"] = gpudirect == "yes";
    return table;
}

}  // namespace

std::optional<PublishedRun> read_run(const core::CsvTable& runs, const core::CsvRow& csv_row,
                                     const core::CsvTable& clusters, core::Diagnostics& diagnostics,
                                     std::string& unsupported) {
    using schedule::OptimizerKind;
    using schedule::Recompute;
    using schedule::Sharding;
    const std::size_t errors_before = diagnostics.error_count();
    RowReader row(runs, csv_row, diagnostics);
    PublishedRun run;
    run.id = row.text("id");
    run.group = row.text("group");

    schedule::Plan& plan = run.plan;
    const core::CsvRow* cluster_row = find_cluster(clusters, row.text("cluster"));
    const std::string_view gpu =
        cluster_row == nullptr ? std::string_view() : clusters.cell(*cluster_row, "gpu");
    plan.framework = read_framework(row, gpu, run);
    sim::FrameworkTraits traits = sim::framework_traits(plan.framework);
    plan.layout.tensor = static_cast<int>(row.integer("tensor_parallel", 1, 1));
    plan.layout.pipeline = static_cast<int>(row.integer("pipeline_parallel", 1, 1));
    // Where it is not stated it follows from the GPUs used.
    const std::int64_t used = row.integer("nodes", 1, 1) * row.integer("gpus_per_node", 1, 1);
    plan.layout.data = static_cast<int>(row.integer(
        "data_parallel", 1, std::max<std::int64_t>(1, used / plan.layout.tensor / plan.layout.pipeline)));
    plan.virtual_stages = static_cast<int>(row.integer("virtual_stages", 1, 1));
    plan.micro_batch = static_cast<int>(row.integer("micro_batch", 1, 1));
    plan.micro_batches = static_cast<int>(row.integer("grad_accumulation", 1, 1));
    run.global_batch = row.integer("global_batch", 1, 1);
    plan.sequence_parallel = row.text("sequence_parallel") == "yes";
    plan.sharding = row.choice<Sharding, 5>("sharding", {{{"", Sharding::none},
                                                          {"none", Sharding::none},
                                                          {"optimizer", Sharding::optimizer},
                                                          {"gradients", Sharding::gradients},
                                                          {"parameters", Sharding::parameters}}});
    plan.shard_degree = static_cast<int>(row.integer("shard_degree", 1, 0));
    plan.recompute = row.choice<Recompute, 5>("recompute", {{{"", Recompute::none},
                                                             {"none", Recompute::none},
                                                             {"selective_op", Recompute::selective},
                                                             {"selective", Recompute::selective},
                                                             {"full", Recompute::full}}});
    const OptimizerKind usual_optimizer =
        is_convolutional(row.text("model")) ? OptimizerKind::sgd : OptimizerKind::adam;
    plan.optimizer.kind = row.choice<OptimizerKind, 5>("optimizer", {{{"adam", OptimizerKind::adam},
                                                                      {"adamw", OptimizerKind::adamw},
                                                                      {"lamb", OptimizerKind::lamb},
                                                                      {"sgd", OptimizerKind::sgd},
                                                                      {"", usual_optimizer}}});
    if (row.is_blank("optimizer"))
        run.assumptions.push_back(std::string("optimizer is not stated: ") +
                                  (usual_optimizer == OptimizerKind::sgd ? "sgd" : "adam"));
    if (plan.optimizer.kind == OptimizerKind::sgd)
        plan.optimizer.momentum = 0.9;  // the column's definition: sgd means with momentum
    plan.schedule = row.choice<const char*, 6>("schedule", {{{"", "1f1b"},
                                                             {"1f1b", "1f1b"},
                                                             {"interleaved", "interleaved-1f1b"},
                                                             {"zb-h1", "zb-h1"},
                                                             {"zb-h2", "zb-h2"},
                                                             {"gpipe", "simple"}}});
    const auto compute = row.choice<core::DataType, 5>("precision", {{{"fp32", core::DataType::fp32},
                                                                      {"tf32", core::DataType::tf32},
                                                                      {"fp16", core::DataType::fp16},
                                                                      {"bf16", core::DataType::bf16},
                                                                      {"fp8", core::DataType::fp8}}});
    plan.precision.compute = compute;
    const bool is_full = compute == core::DataType::fp32 || compute == core::DataType::tf32;
    plan.precision.parameters = plan.precision.gradients =
        is_full ? core::DataType::fp32 : plan.precision.activations();
    plan.precision.has_master_parameters = !is_full;
    sim::adopt(traits, plan, row.text("model").starts_with("moe"));
    read_notes(row, plan);
    using model::AttentionImplementation;
    // fp8 comes from Transformer Engine, whose attention is of the flash family; so is that of codes with a
    // fused softmax on H100, for which Transformer Engine was made.
    const bool is_recent = gpu.starts_with("H100") || gpu.starts_with("H200") || gpu.starts_with("B200");
    if (compute == core::DataType::fp8 ||
        (traits.attention == AttentionImplementation::fused_softmax && is_recent))
        traits.attention = AttentionImplementation::flash;
    plan.attention = row.choice<AttentionImplementation, 4>(
        "attention", {{{"", traits.attention},
                       {"unfused", AttentionImplementation::unfused},
                       {"fused_softmax", AttentionImplementation::fused_softmax},
                       {"flash", AttentionImplementation::flash}}});
    if (row.is_blank("attention") && !row.is_blank("heads"))
        run.assumptions.push_back("attention is not stated: as usual for " + traits.title);

    const std::int64_t nodes = row.integer("nodes", 1, 1), gpus = row.integer("gpus_per_node", 1, 1);
    // What cells say of one another follows only from cells that can be read.
    const bool can_be_read = diagnostics.error_count() == errors_before;
    if (can_be_read && static_cast<double>(nodes * gpus) !=
                           static_cast<double>(plan.layout.tensor) * plan.layout.pipeline * plan.layout.data)
        row.error("gpus_per_node",
                  fmt::format("{} nodes of {} GPUs are not tensor {} x pipeline {} x data {}", nodes, gpus,
                              plan.layout.tensor, plan.layout.pipeline, plan.layout.data),
                  "the degrees must multiply to the GPUs used");
    if (can_be_read && static_cast<double>(plan.micro_batch) * plan.micro_batches * plan.layout.data !=
                           static_cast<double>(run.global_batch))
        row.error(
            "global_batch",
            fmt::format("global_batch = {} is not micro_batch {} x grad_accumulation {} x data_parallel {}",
                        run.global_batch, plan.micro_batch, plan.micro_batches, plan.layout.data),
            "correct one of the four");

    run.peak_is_of_process = row.optional_text("notes").find("nvidia-smi") != std::string::npos;
    run.peak_is_of_first_node =
        run.peak_is_of_process && row.optional_text("notes").find("first/last stage") == std::string::npos;
    run.ranks_per_node = static_cast<int>(gpus);
    const std::optional<double> seconds = row.real("measured_step_s");
    if (seconds ? *seconds <= 0 : row.is_blank("measured_step_s"))
        row.error("measured_step_s", "measured_step_s is missing or zero",
                  "give seconds of one optimizer step");
    run.measured = core::seconds(seconds.value_or(1));
    if (const std::optional<double> peak = row.real("measured_peak_gib"))
        run.measured_peak = core::gibibytes(*peak);

    run.model = model_table(row, traits);
    // Layers without a form for tensor parallelism: what compilers that divide any operator do with them
    // first is divide the samples.
    const bool has_tensor_form = !is_convolutional(row.text("model")) &&
                                 !row.text("model").starts_with("transformer_xl") &&
                                 !row.text("model").starts_with("vit");
    if (!has_tensor_form && plan.layout.tensor > 1) {
        run.assumptions.push_back(
            fmt::format("{} has no tensor-parallel form: its {} ranks divide the samples", row.text("model"),
                        plan.layout.tensor));
        plan.layout.data *= plan.layout.tensor;
        // The step takes as long as the rank with the most samples.
        plan.micro_batch = (plan.micro_batch + plan.layout.tensor - 1) / plan.layout.tensor;
        plan.layout.tensor = 1;
    }
    if (cluster_row == nullptr) {
        row.error("cluster",
                  "cluster " + core::in_quotes(row.text("cluster")) + " is not in " + clusters.file,
                  "add a row for it");
    } else {
        RowReader cluster(clusters, *cluster_row, diagnostics);
        run.cluster = cluster_table(cluster, nodes, false);
        run.transport = cluster.text("transport");
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    if (row.text("recompute") == "selective_op" && !traits.recomputes_alternate_products) {
        unsupported = "recomputation of chosen operators is modelled as torchtitan's only";
        return std::nullopt;
    }
    if (run.model.is_null()) {
        unsupported = "architecture " + core::in_quotes(row.text("model")) + " is not modelled";
        return std::nullopt;
    }
    return run;
}

core::Bytes published_peak(const PublishedRun& run, const schedule::Plan& plan,
                           const sim::Evaluation& evaluation) {
    core::Bytes peak;
    for (const sim::ClassMemory& memory : evaluation.memory) {
        bool is_read = !run.peak_is_of_first_node;
        for (int rank = 0; !is_read && rank < std::min(run.ranks_per_node, plan.layout.ranks()); ++rank)
            is_read = schedule::coordinates_of(plan.layout, rank).pipeline == memory.pipeline;
        if (is_read) peak = std::max(peak, run.peak_is_of_process ? memory.process : memory.reserved);
    }
    return peak;
}

}  // namespace validation
