#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "tests/validation/published_figures.h"
#include "sim/validate.h"

namespace {

const PublishedFigures& figures() {
    static const PublishedFigures loaded = published_figures();
    return loaded;
}

sim::Validation predicted(const core::CsvTable& runs) {
    core::Diagnostics diagnostics;
    const auto validation = sim::validate(runs, figures().clusters, &figures().sweeps, diagnostics);
    for (const core::Diagnostic& entry : diagnostics.entries()) UNSCOPED_INFO(entry.message);
    REQUIRE(validation.has_value());
    return *validation;
}

// One row of each architecture family, code and precision: small enough to be varied.
core::CsvTable some_of_each_kind() {
    const core::CsvTable& runs = figures().runs;
    core::CsvTable sample{runs.file, runs.header, {}};
    std::set<std::string> kinds;
    for (const core::CsvRow& row : runs.rows) {
        std::string kind;
        for (const char* column : {"group", "model", "framework", "precision", "cluster", "sharding", "recompute", "schedule"}) kind += std::string(runs.cell(row, column)) + '|';
        if (kinds.insert(kind).second) sample.rows.push_back(row);
    }
    return sample;
}

void set(core::CsvTable& table, std::size_t row, const char* column, const std::string& value) {
    table.rows[row].cells[static_cast<std::size_t>(table.column(column))] = value;
}
long long number(const core::CsvTable& table, std::size_t row, const char* column) {
    return core::parse_integer(table.cell(table.rows[row], column)).value_or(1);
}

}  // namespace

TEST_CASE("published step times are predicted no worse than they were") {
    const sim::Validation validation = predicted(figures().runs);
    REQUIRE(validation.rows.size() == 796);
    for (const sim::ScoredRow& row : validation.rows) {
        INFO(row.id << ": " << row.reason);
        CHECK(row.status == sim::PredictionStatus::ok);
    }
    // published/scores.csv holds the errors of the day it was written. A change may trade groups against each other, but not the macro average.
    const core::CsvTable scores = load_table("scores.csv", {"group", "mape_pct"});
    double recorded = 0;
    for (const core::CsvRow& row : scores.rows) {
        const std::string name(scores.cell(row, "group"));
        const double before = core::parse_real(scores.cell(row, "mape_pct")).value_or(0);
        recorded += before / static_cast<double>(scores.rows.size());
        const auto group = std::find_if(validation.groups.begin(), validation.groups.end(), [&](const sim::GroupScore& g) { return g.group == name; });
        INFO(name << ", " << before << " % when recorded");
        REQUIRE(group != validation.groups.end());
        CHECK(100 * group->mape <= std::max(1.25 * before, before + 2));
    }
    REQUIRE(scores.rows.size() == validation.groups.size());
    CHECK(100 * validation.macro_mape <= recorded + 0.3);
    CHECK(100 * validation.macro_mape <= 7);
}

TEST_CASE("plans of one model on one cluster are ranked as they were measured") {
    const sim::Validation validation = predicted(figures().runs);
    REQUIRE(validation.sweeps.size() >= 10);
    double ranks = 0, regret = 0;
    for (const sim::SweepScore& sweep : validation.sweeps) {
        ranks += sweep.spearman / static_cast<double>(validation.sweeps.size());
        regret += sweep.regret / static_cast<double>(validation.sweeps.size());
    }
    CHECK(ranks > 0.8);
    CHECK(regret < 0.05);
}

TEST_CASE("twice the micro-batches take more time, and at most twice as much and what a step costs once") {
    const core::CsvTable sample = some_of_each_kind();
    core::CsvTable doubled = sample;
    for (std::size_t i = 0; i < doubled.rows.size(); ++i)
        for (const char* column : {"grad_accumulation", "global_batch"}) set(doubled, i, column, std::to_string(2 * number(sample, i, column)));
    const sim::Validation once = predicted(sample), twice = predicted(doubled);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
        if (once.rows[i].status != sim::PredictionStatus::ok || twice.rows[i].status != sim::PredictionStatus::ok) continue;
        INFO(once.rows[i].id);
        CHECK(twice.rows[i].predicted > once.rows[i].predicted);
        // Accumulation itself adds a pass over the gradients when one micro-batch becomes two.
        CHECK(twice.rows[i].predicted < once.rows[i].predicted * 2.35);
    }
}

TEST_CASE("a larger micro-batch takes longer, never more than in proportion") {
    const core::CsvTable sample = some_of_each_kind();
    core::CsvTable doubled = sample;
    for (std::size_t i = 0; i < doubled.rows.size(); ++i)
        for (const char* column : {"micro_batch", "global_batch"}) set(doubled, i, column, std::to_string(2 * number(sample, i, column)));
    const sim::Validation once = predicted(sample), twice = predicted(doubled);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
        if (once.rows[i].status != sim::PredictionStatus::ok || twice.rows[i].status != sim::PredictionStatus::ok) continue;
        INFO(once.rows[i].id);
        CHECK(twice.rows[i].predicted > once.rows[i].predicted * 1.0);
        CHECK(twice.rows[i].predicted < once.rows[i].predicted * 2.1);
    }
}

TEST_CASE("twice the data-parallel nodes never finish a step of the same micro-batches sooner") {
    const core::CsvTable sample = some_of_each_kind();
    core::CsvTable wider = sample;
    for (std::size_t i = 0; i < wider.rows.size(); ++i) {
        for (const char* column : {"nodes", "data_parallel", "global_batch"}) set(wider, i, column, std::to_string(2 * number(sample, i, column)));
        if (sample.cell(sample.rows[i], "sharding") != "none") set(wider, i, "shard_degree", std::to_string(2 * number(sample, i, "shard_degree")));
    }
    const sim::Validation once = predicted(sample), twice = predicted(wider);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
        if (once.rows[i].status != sim::PredictionStatus::ok || twice.rows[i].status != sim::PredictionStatus::ok) continue;
        INFO(once.rows[i].id);
        // The update of a sharded optimizer shrinks with the ranks it is divided over, and small reductions may take another algorithm.
        const bool is_sharded = sample.cell(sample.rows[i], "sharding") != "none";
        CHECK(twice.rows[i].predicted > once.rows[i].predicted * (is_sharded ? 0.85 : 0.98));
    }
}

TEST_CASE("every word of the vocabulary is predicted, on every device that has the precision, at a share of peak that is possible") {
    const core::CsvTable& runs = figures().runs;
    core::CsvTable made{runs.file, runs.header, {}};
    std::vector<double> least_seconds;  // the model's products at the device's peak
    // Multiply-adds of a forward pass over one sample, from the usual tables (2 x for FLOPs, 3 x for a step); transformers by 2 h (4 h + 2 f) + ... below.
    struct Kind {
        const char* model;
        double multiply_adds;
    };
    const Kind kinds[] = {{"gpt", 0},           {"mpt", 0},           {"bloom", 0},        {"llama", 0},          {"internlm", 0},      {"bert_base", 0},       {"bert_large", 0},
                          {"bert_megatron", 0}, {"bert_base_qa", 0},  {"bert_large_qa", 0}, {"bert_base_masked", 0}, {"bert_large_masked", 0}, {"moe_gpt_e8", 0}, {"moe_gpt_e16", 0},
                          {"moe_gpt_e32", 0},   {"transformer_xl", 0}, {"transformer_xl_div4", 0}, {"resnet50", 4.1e9}, {"resnet18_cifar", 0.56e9}, {"wide_resnet50", 4.1e9},
                          {"ssd300_r50", 4.1e9}, {"mask_rcnn_r50_fpn", 40e9}};
    struct Place {
        const char *cluster, *precision;
        double peak;  // FLOP/s, datasheet
    };
    const Place places[] = {{"g4dn_12xlarge", "fp32", 8.1e12},   {"g4dn_12xlarge", "fp16", 65e12},    {"dgx1_v100_16", "fp32", 15.7e12}, {"dgx1_v100_16", "fp16", 125e12},
                            {"mosaic_a100_40", "tf32", 156e12}, {"mosaic_a100_80", "bf16", 312e12}, {"mosaic_a100_80", "fp16", 312e12}, {"mosaic_h100", "bf16", 989e12},
                            {"mosaic_h100", "fp8", 1979e12}};
    for (const Kind& kind : kinds)
        for (const Place& place : places)
            for (const char* code : {"", "PyTorch FSDP", "DeepSpeed ZeRO", "Megatron-LM v3", "TensorFlow 2", "MXNet", "JAX", "C++ and CUDA", "somebody's trainer, torch.compile"}) {
                const bool is_vision = kind.multiply_adds > 0;
                const std::map<std::string, std::string> cells = {{"model", kind.model}, {"layers", is_vision ? "" : "4"}, {"hidden", is_vision ? "64" : "512"}, {"heads", is_vision ? "" : "8"},
                                                                  {"kv_heads", is_vision ? "" : "8"}, {"ffn", is_vision ? "2" : "2048"}, {"vocab", is_vision ? "" : "32000"},
                                                                  {"seq_len", is_vision ? "" : "512"}, {"tied_embeddings", is_vision ? "" : "yes"},
                                                                  {"image_size", std::string(kind.model) == "resnet18_cifar" ? "32" : std::string(kind.model) == "mask_rcnn_r50_fpn" ? "800" : is_vision ? "224" : ""}, {"precision", place.precision},
                                                                  {"optimizer", is_vision ? "sgd" : "adamw"}, {"cluster", place.cluster}, {"nodes", "1"}, {"gpus_per_node", "4"},
                                                                  {"tensor_parallel", "1"}, {"pipeline_parallel", "1"}, {"virtual_stages", "1"}, {"data_parallel", "4"}, {"sharding", "none"},
                                                                  {"shard_degree", ""}, {"micro_batch", "8"}, {"global_batch", "32"}, {"grad_accumulation", "1"}, {"recompute", "none"},
                                                                  {"schedule", ""}, {"sequence_parallel", "no"}, {"attention", ""}, {"framework", code}, {"measured_step_s", "1"},
                                                                  {"measured_peak_gib", ""}, {"notes", ""}};
                core::CsvRow row{static_cast<int>(made.rows.size()), {}};
                for (const std::string& column : made.header) {
                    const auto cell = cells.find(column);
                    row.cells.push_back(cell != cells.end() ? cell->second : column == "id" ? std::to_string(made.rows.size()) : "vocabulary");
                }
                made.rows.push_back(std::move(row));
                // Of a transformer only its linear layers: 4 h^2 + 2 h f multiply-adds a token and layer. Frozen layers of Mask R-CNN have no backward pass.
                const double forward = is_vision ? kind.multiply_adds * 0.25 : 512.0 * 4 * (4 * 512.0 * 512 + 2 * 512.0 * 2048);
                least_seconds.push_back(8 * 3 * 2 * forward / place.peak);
            }
    const sim::Validation validation = predicted(made);
    for (std::size_t i = 0; i < made.rows.size(); ++i) {
        const sim::ScoredRow& row = validation.rows[i];
        INFO(made.cell(made.rows[i], "model") << " in " << made.cell(made.rows[i], "precision") << " on " << made.cell(made.rows[i], "cluster") << " by \"" << made.cell(made.rows[i], "framework") << "\": "
                                              << row.reason);
        CHECK(row.status == sim::PredictionStatus::ok);
        // Convolutions of 3x3 in fp32 beat the peak by Winograd's transform, which the quarter above allows for.
        CHECK(row.predicted.value > least_seconds[i]);
        CHECK(row.predicted.value < 20);
    }
}

TEST_CASE("a precision the device does not have is refused, not guessed") {
    core::CsvTable rows = some_of_each_kind();
    std::erase_if(rows.rows, [&](const core::CsvRow& row) { return rows.cell(row, "cluster") != "mosaic_a100_80"; });
    REQUIRE(!rows.rows.empty());
    for (std::size_t i = 0; i < rows.rows.size(); ++i) set(rows, i, "precision", "fp8");
    for (const sim::ScoredRow& row : predicted(rows).rows) {
        INFO(row.id);
        CHECK(row.status == sim::PredictionStatus::unsupported);
        CHECK(row.reason.find("fp8") != std::string::npos);
    }
}
