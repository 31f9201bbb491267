#include "sim/published_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "sim/cost/framework.h"

namespace sim {

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
    static const std::vector<std::string> columns = {
        "id",           "gpu",       "gpu_memory_gib", "gpus_per_node", "intra_node", "intra_node_gbs_per_dir", "nics_per_node",
        "gbit_per_nic", "transport", "gpudirect",      "ec2_instance"};
    return columns;
}

namespace {

// Typed access to the cells of one row with diagnostics at its line.
class RowReader {
public:
    RowReader(const core::CsvTable& table, const core::CsvRow& row, core::Diagnostics& diagnostics) : table_(table), row_(row), diagnostics_(diagnostics) {}

    std::string text(const char* column) const { return std::string(table_.cell(row_, column)); }
    // Of a column a file may leave out.
    std::string optional_text(const char* column) const { return has_column(column) ? text(column) : std::string(); }
    bool is_blank(const char* column) const { return table_.cell(row_, column).empty(); }

    std::int64_t integer(const char* column, std::int64_t least, std::int64_t fallback_when_blank = 0) {
        if (is_blank(column)) return fallback_when_blank;
        const std::optional<long long> value = core::parse_integer(table_.cell(row_, column));
        // Far above any model or cluster, and small enough that products of a few stay within 64 bits.
        if (!value || *value < least || *value > 100'000'000) {
            error(column, fmt::format("{} = \"{}\" is not a whole number of at least {}", column, text(column), least), "correct the cell");
            return least;
        }
        return *value;
    }

    std::optional<double> real(const char* column) {
        if (is_blank(column)) return std::nullopt;
        const std::optional<double> value = core::parse_real(table_.cell(row_, column));
        if (!value || *value < 0) {
            error(column, fmt::format("{} = \"{}\" is not a number of at least 0", column, text(column)), "correct the cell");
            return std::nullopt;
        }
        return value;
    }

    template <class T, std::size_t N>
    T choice(const char* column, const std::array<std::pair<const char*, T>, N>& words) {
        std::vector<std::string> allowed;
        for (const auto& [word, value] : words) {
            if (table_.cell(row_, column) == word) return value;
            if (*word != '\0') allowed.emplace_back(word);
        }
        error(column, fmt::format("{} = \"{}\" is not one of the words of this column", column, text(column)), "use " + core::list_in_words(allowed));
        return words.front().second;
    }

    void error(const char* column, std::string message, std::string hint) {
        diagnostics_.error({table_.file, row_.line, 1}, column, std::move(message), std::move(hint));
    }

private:
    bool has_column(const char* column) const { return std::find(table_.header.begin(), table_.header.end(), column) != table_.header.end(); }

    const core::CsvTable& table_;
    const core::CsvRow& row_;
    core::Diagnostics& diagnostics_;
};

// Language models are trained with 10 % dropout unless their code base does without.
void set_dropout(core::Value& model, const FrameworkTraits& traits) {
    if (!traits.applies_dropout) return;
    model["dropout"] = 0.1;
    model["attention_dropout"] = 0.1;
}

std::int64_t padded(std::int64_t vocabulary, std::int64_t multiple) { return (vocabulary + multiple - 1) / multiple * multiple; }

void set_transformer(core::Value& model, RowReader& row, const char* family, const FrameworkTraits& traits) {
    model["family"] = family;
    model["layers"] = row.integer("layers", 1, 1);
    model["hidden"] = row.integer("hidden", 1, 1);
    model["heads"] = row.integer("heads", 1, 1);
    if (!row.is_blank("ffn")) model["ffn"] = row.integer("ffn", 1);
    model["vocabulary"] = padded(row.integer("vocab", 1, 1), traits.vocabulary_multiple * row.integer("tensor_parallel", 1, 1));
    model["sequence_length"] = row.integer("seq_len", 1, 1);
}

void set_decoder(core::Value& model, RowReader& row, const char* family, const FrameworkTraits& traits) {
    set_transformer(model, row, family, traits);
    if (!row.is_blank("kv_heads")) model["kv_heads"] = row.integer("kv_heads", 1);
    if (!row.is_blank("tied_embeddings")) model["tied_embeddings"] = row.text("tied_embeddings") == "yes";
    // GPT-2 and GPT-3 code trains with dropout; BLOOM (hidden_dropout 0 in its configuration), Llama and their kin do not.
    if (family == std::string_view("gpt")) set_dropout(model, traits);
}

void set_bert(core::Value& model, RowReader& row, const char* task, bool only_masked, const FrameworkTraits& traits) {
    set_transformer(model, row, "bert", traits);
    model["task"] = task;
    const std::int64_t tokens = row.integer("seq_len", 1, 1);
    // 20 of 128 and 80 of 512 tokens are masked in NVIDIA's and Google's pre-training data: 15.6 %.
    if (only_masked) model["masked_positions"] = std::max<std::int64_t>(1, tokens * 20 / 128);
}

// The [model] table of a word of the vocabulary; empty when the simulator does not know the architecture.
core::Value model_table(RowReader& row, const FrameworkTraits& traits) {
    core::Value model;
    const std::string word = row.text("model");
    model["name"] = word;
    if (word == "gpt" || word == "mpt") set_decoder(model, row, "gpt", traits);
    else if (word == "bloom") set_decoder(model, row, "bloom", traits);
    else if (word == "llama") set_decoder(model, row, "llama", traits);
    else if (word == "internlm") {
        set_decoder(model, row, "llama", traits);
        model["qkv_bias"] = true;
        model["attention_output_bias"] = true;
    } else if (word.starts_with("moe_gpt_e")) {
        set_decoder(model, row, "gpt", traits);
        model["experts"] = static_cast<std::int64_t>(core::parse_integer(word.substr(9)).value_or(1));
        model["experts_per_token"] = 2;
        model["expert_interval"] = 2;
    } else if (word == "bert_base" || word == "bert_large" || word == "bert_megatron") set_bert(model, row, "pretraining", false, traits);
    else if (word == "bert_base_masked" || word == "bert_large_masked") set_bert(model, row, "pretraining", true, traits);
    else if (word == "bert_base_qa" || word == "bert_large_qa") set_bert(model, row, "question_answering", false, traits);
    else if (word == "resnet50") {
        model["family"] = "resnet";
        model["depth"] = 50;
        model["image_size"] = row.integer("image_size", 1, 224);
    } else if (word == "resnet18_cifar") {
        model["family"] = "resnet";
        model["depth"] = 18;
        model["classes"] = 10;
        model["small_stem"] = true;
        model["image_size"] = row.integer("image_size", 1, 32);
    } else if (word == "wide_resnet50") {
        model["family"] = "resnet";
        model["depth"] = 50;
        model["base_channels"] = row.integer("hidden", 1, 64);
        model["width_factor"] = row.integer("ffn", 1, 2);
        model["image_size"] = row.integer("image_size", 1, 224);
    } else if (word == "ssd300_r50") {
        model["family"] = "ssd";
    } else if (word == "mask_rcnn_r50_fpn") {
        model["family"] = "mask_rcnn";
        model["image_size"] = row.integer("image_size", 1, 800);
    } else if (word == "transformer_xl" || word == "transformer_xl_div4") {
        set_transformer(model, row, "transformer_xl", traits);
        model["width_divisor"] = word == "transformer_xl" ? 1 : 4;
    } else {
        return {};
    }
    return model;
}

// What the sources state in words about how gradients are reduced.
void read_notes(RowReader& row, schedule::Plan& plan) {
    const std::string notes = row.optional_text("notes");
    const auto says = [&](const char* part) { return notes.find(part) != std::string::npos; };
    if (says("fp32 gradient reduction")) plan.precision.gradients = core::DataType::fp32;
    if (says("bf16 gradient reduction")) plan.precision.gradients = core::DataType::bf16;
    if (says("reduction after backward") || says("all-reduce after backward") || says("no overlap of gradient sync")) plan.overlaps_gradient_reduction = false;
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

core::Value cluster_table(RowReader& cluster, std::int64_t nodes, bool one_device_is_enough) {
    core::Value table;
    const std::string instance = cluster.text("ec2_instance");
    table["nodes"] = nodes;
    if (!instance.empty()) {
        table["instance"] = instance;
        return table;
    }
    // Cards of one name sold at another power limit run at other clocks.
    const bool is_high_power = cluster.optional_text("notes").find("450 W V100") != std::string::npos;
    table["device"] = is_high_power ? std::string("V100-450W") : cluster.text("gpu");
    table["devices_per_node"] = one_device_is_enough ? std::int64_t{1} : cluster.integer("gpus_per_node", 1, 1);
    if (!cluster.is_blank("gpu_memory_gib")) table["memory"] = cluster.text("gpu_memory_gib") + "GiB";
    const std::string intra = cluster.text("intra_node");
    table["intra"] = intra.ends_with("nvswitch")                    ? "nvswitch"
                     : intra == "nvlink2_hybrid_cube_mesh"          ? "hybrid-cube-mesh"
                     : intra.ends_with("quad")                      ? "full-mesh"
                     : intra == "none" || intra.starts_with("pcie") ? "pcie"
                     : intra.starts_with("nvlink")                  ? "nvswitch"  // a generation alone: every pair at the stated rate
                                                                    : intra;
    if (intra.starts_with("nvlink")) table["intra_bandwidth"] = cluster.text("intra_node_gbs_per_dir") + "GB/s";
    const std::int64_t cards = cluster.integer("nics_per_node", 0, 0);
    if (const std::optional<double> rate = cluster.real("gbit_per_nic"); cards > 0 && rate && *rate > 0) {
        table["network_cards"] = cards;
        table["network_bandwidth"] = fmt::format("{}Gbps", *rate * static_cast<double>(cards));
        table["transport"] = cluster.text("transport");
    }
    if (const std::string gpudirect = cluster.text("gpudirect"); gpudirect == "yes" || gpudirect == "no") table["gpudirect"] = gpudirect == "yes";
    return table;
}

}  // namespace

std::optional<PublishedRun> read_run(const core::CsvTable& runs, const core::CsvRow& csv_row, const core::CsvTable& clusters, core::Diagnostics& diagnostics,
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
    plan.framework = row.text("framework");
    FrameworkTraits traits = framework_traits(plan.framework);
    plan.layout.tensor = static_cast<int>(row.integer("tensor_parallel", 1, 1));
    plan.layout.pipeline = static_cast<int>(row.integer("pipeline_parallel", 1, 1));
    plan.layout.data = static_cast<int>(row.integer("data_parallel", 1, 1));
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
    plan.recompute = row.choice<Recompute, 4>(
        "recompute", {{{"", Recompute::none}, {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}}});
    plan.optimizer.kind = row.choice<OptimizerKind, 4>(
        "optimizer", {{{"adam", OptimizerKind::adam}, {"adamw", OptimizerKind::adamw}, {"lamb", OptimizerKind::lamb}, {"sgd", OptimizerKind::sgd}}});
    if (plan.optimizer.kind == OptimizerKind::sgd) plan.optimizer.momentum = 0.9;  // the column's definition: sgd means with momentum
    plan.schedule = row.choice<const char*, 6>(
        "schedule", {{{"", "1f1b"}, {"1f1b", "1f1b"}, {"interleaved", "interleaved-1f1b"}, {"zb-h1", "zb-h1"}, {"zb-h2", "zb-h2"}, {"gpipe", "simple"}}});
    const auto compute = row.choice<core::DataType, 5>("precision", {{{"fp32", core::DataType::fp32},
                                                                      {"tf32", core::DataType::tf32},
                                                                      {"fp16", core::DataType::fp16},
                                                                      {"bf16", core::DataType::bf16},
                                                                      {"fp8", core::DataType::fp8}}});
    plan.precision.compute = compute;
    const bool is_full = compute == core::DataType::fp32 || compute == core::DataType::tf32;
    plan.precision.parameters = plan.precision.gradients = is_full ? core::DataType::fp32 : compute == core::DataType::fp8 ? core::DataType::bf16 : compute;
    plan.precision.has_master_parameters = !is_full;
    adopt(traits, plan, row.text("model").starts_with("moe"));
    read_notes(row, plan);
    using model::AttentionImplementation;
    plan.attention = row.choice<AttentionImplementation, 4>("attention", {{{"", traits.attention},
                                                                           {"unfused", AttentionImplementation::unfused},
                                                                           {"fused_softmax", AttentionImplementation::fused_softmax},
                                                                           {"flash", AttentionImplementation::flash}}});
    if (row.is_blank("attention") && !row.is_blank("heads")) run.assumptions.push_back("attention is not stated: as usual for " + traits.name);

    const std::int64_t nodes = row.integer("nodes", 1, 1), gpus = row.integer("gpus_per_node", 1, 1);
    if (static_cast<double>(nodes * gpus) != static_cast<double>(plan.layout.tensor) * plan.layout.pipeline * plan.layout.data)
        row.error("gpus_per_node",
                  fmt::format("{} nodes of {} GPUs are not tensor {} x pipeline {} x data {}", nodes, gpus, plan.layout.tensor, plan.layout.pipeline,
                              plan.layout.data),
                  "the degrees must multiply to the GPUs used");
    if (static_cast<double>(plan.micro_batch) * plan.micro_batches * plan.layout.data != static_cast<double>(run.global_batch))
        row.error("global_batch",
                  fmt::format("global_batch = {} is not micro_batch {} x grad_accumulation {} x data_parallel {}", run.global_batch, plan.micro_batch,
                              plan.micro_batches, plan.layout.data),
                  "correct one of the four");

    run.peak_is_of_process = row.optional_text("notes").find("nvidia-smi") != std::string::npos;
    run.peak_is_of_first_node = run.peak_is_of_process && row.optional_text("notes").find("first/last stage") == std::string::npos;
    run.ranks_per_node = static_cast<int>(gpus);
    const std::optional<double> seconds = row.real("measured_step_s");
    if (!seconds || *seconds <= 0) row.error("measured_step_s", "measured_step_s is missing or zero", "give seconds of one optimizer step");
    run.measured = core::seconds(seconds.value_or(1));
    if (const std::optional<double> peak = row.real("measured_peak_gib")) run.measured_peak = core::gibibytes(*peak);

    run.model = model_table(row, traits);
    const core::CsvRow* cluster_row = find_cluster(clusters, row.text("cluster"));
    if (cluster_row == nullptr) {
        row.error("cluster", "cluster \"" + row.text("cluster") + "\" is not in " + clusters.file, "add a row for it");
    } else {
        RowReader cluster(clusters, *cluster_row, diagnostics);
        run.cluster = cluster_table(cluster, nodes, false);
        run.transport = cluster.text("transport");
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    if (run.model.is_null()) {
        unsupported = "architecture \"" + row.text("model") + "\" is not modelled";
        return std::nullopt;
    }
    return run;
}

core::Bytes published_peak(const PublishedRun& run, const schedule::Plan& plan, const Evaluation& evaluation) {
    core::Bytes peak;
    for (const ClassMemory& memory : evaluation.memory) {
        bool is_read = !run.peak_is_of_first_node;
        for (int rank = 0; !is_read && rank < std::min(run.ranks_per_node, plan.layout.ranks()); ++rank)
            is_read = schedule::coordinates_of(plan.layout, rank).pipeline == memory.pipeline;
        if (is_read) peak = std::max(peak, run.peak_is_of_process ? memory.process : memory.reserved);
    }
    return peak;
}

}  // namespace sim
