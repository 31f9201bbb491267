#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "tests/validation/published_figures.h"
#include "validation/validate.h"

namespace {

const PublishedFigures& figures() {
    static const PublishedFigures loaded = published_figures();
    return loaded;
}

validation::Validation predicted(const core::CsvTable& runs) {
    core::Diagnostics diagnostics;
    const auto validation = validation::validate(runs, figures().clusters, &figures().sweeps, diagnostics);
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
        for (const char* column :
             {"group", "model", "framework", "precision", "cluster", "sharding", "recompute", "schedule"})
            kind += std::string(runs.cell(row, column)) + '|';
        if (kinds.insert(kind).second) sample.rows.push_back(row);
    }
    return sample;
}

void set(core::CsvTable& table, std::size_t row, const char* column, const std::string& value) {
    table.rows[row].cells[table.column(column).value()] = value;
}
long long number(const core::CsvTable& table, std::size_t row, const char* column) {
    return core::parse_integer(table.cell(table.rows[row], column)).value_or(1);
}

}  // namespace

TEST_CASE("published step times are predicted no worse than they were") {
    const validation::Validation validation = predicted(figures().runs);
    REQUIRE(validation.rows.size() == 796);
    for (const validation::ScoredRow& row : validation.rows) {
        INFO(row.id << ": " << row.reason);
        CHECK(row.status == validation::PredictionStatus::ok);
    }
    // published/scores.csv holds the errors of the day it was written. A change may trade groups against each
    // other, but not the macro average.
    const core::CsvTable scores = load_table("scores.csv", {"group", "mape_pct"});
    double recorded = 0;
    for (const core::CsvRow& row : scores.rows) {
        const std::string name(scores.cell(row, "group"));
        const double before = core::parse_real(scores.cell(row, "mape_pct")).value_or(0);
        recorded += before / static_cast<double>(scores.rows.size());
        const auto group = std::find_if(validation.groups.begin(), validation.groups.end(),
                                        [&](const validation::GroupScore& g) { return g.group == name; });
        INFO(name << ", " << before << " % when recorded");
        REQUIRE(group != validation.groups.end());
        CHECK(100 * group->mape <= std::max(1.25 * before, before + 2));
    }
    REQUIRE(scores.rows.size() == validation.groups.size());
    CHECK(100 * validation.macro_mape <= recorded + 0.3);
    CHECK(100 * validation.macro_mape <= 7);
}

TEST_CASE("plans of one model on one cluster are ranked as they were measured") {
    const validation::Validation validation = predicted(figures().runs);
    REQUIRE(validation.sweeps.size() >= 10);
    double ranks = 0, regret = 0;
    for (const validation::SweepScore& sweep : validation.sweeps) {
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
        for (const char* column : {"grad_accumulation", "global_batch"})
            set(doubled, i, column, std::to_string(2 * number(sample, i, column)));
    const validation::Validation once = predicted(sample), twice = predicted(doubled);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
        if (once.rows[i].status != validation::PredictionStatus::ok ||
            twice.rows[i].status != validation::PredictionStatus::ok)
            continue;
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
        for (const char* column : {"micro_batch", "global_batch"})
            set(doubled, i, column, std::to_string(2 * number(sample, i, column)));
    const validation::Validation once = predicted(sample), twice = predicted(doubled);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
        if (once.rows[i].status != validation::PredictionStatus::ok ||
            twice.rows[i].status != validation::PredictionStatus::ok)
            continue;
        INFO(once.rows[i].id);
        CHECK(twice.rows[i].predicted > once.rows[i].predicted * 1.0);
        CHECK(twice.rows[i].predicted < once.rows[i].predicted * 2.1);
    }
}

TEST_CASE("twice the data-parallel nodes never finish a step of the same micro-batches sooner") {
    const core::CsvTable sample = some_of_each_kind();
    core::CsvTable wider = sample;
    for (std::size_t i = 0; i < wider.rows.size(); ++i) {
        for (const char* column : {"nodes", "data_parallel", "global_batch"})
            set(wider, i, column, std::to_string(2 * number(sample, i, column)));
        if (sample.cell(sample.rows[i], "sharding") != "none")
            set(wider, i, "shard_degree", std::to_string(2 * number(sample, i, "shard_degree")));
    }
    const validation::Validation once = predicted(sample), twice = predicted(wider);
    for (std::size_t i = 0; i < sample.rows.size(); ++i) {
        if (once.rows[i].status != validation::PredictionStatus::ok ||
            twice.rows[i].status != validation::PredictionStatus::ok)
            continue;
        INFO(once.rows[i].id);
        // The update of a sharded optimizer shrinks with the ranks it is divided over, and small reductions
        // may take another algorithm.
        const bool is_sharded = sample.cell(sample.rows[i], "sharding") != "none";
        CHECK(twice.rows[i].predicted > once.rows[i].predicted * (is_sharded ? 0.85 : 0.98));
    }
}

TEST_CASE(
    "every word of the vocabulary is predicted, on every device that has the precision, at a share of peak "
    "that is possible") {
    const core::CsvTable& runs = figures().runs;
    core::CsvTable made{runs.file, runs.header, {}};
    std::vector<double> least_seconds;  // the model's products at the device's peak
    // Multiply-adds of a forward pass over one sample, from the usual tables (2 x for FLOPs, 3 x for a step);
    // transformers by 2 h (4 h + 2 f) + ... below.
    struct Kind {
        const char* model;
        double multiply_adds;
    };
    const Kind kinds[] = {{"gpt", 0},
                          {"mpt", 0},
                          {"bloom", 0},
                          {"llama", 0},
                          {"internlm", 0},
                          {"bert_base", 0},
                          {"bert_large", 0},
                          {"bert_megatron", 0},
                          {"bert_base_qa", 0},
                          {"bert_large_qa", 0},
                          {"bert_base_masked", 0},
                          {"bert_large_masked", 0},
                          {"moe_gpt_e8", 0},
                          {"moe_gpt_e16", 0},
                          {"moe_gpt_e32", 0},
                          {"transformer_xl", 0},
                          {"transformer_xl_div4", 0},
                          {"resnet50", 4.1e9},
                          {"resnet18_cifar", 0.56e9},
                          {"wide_resnet50", 4.1e9},
                          {"ssd300_r50", 4.1e9},
                          {"mask_rcnn_r50_fpn", 40e9}};
    struct Place {
        const char *cluster, *precision;
        double peak;  // FLOP/s, datasheet
    };
    const Place places[] = {{"g4dn_12xlarge", "fp32", 8.1e12},  {"g4dn_12xlarge", "fp16", 65e12},
                            {"dgx1_v100_16", "fp32", 15.7e12},  {"dgx1_v100_16", "fp16", 125e12},
                            {"mosaic_a100_40", "tf32", 156e12}, {"mosaic_a100_80", "bf16", 312e12},
                            {"mosaic_a100_80", "fp16", 312e12}, {"mosaic_h100", "bf16", 989e12},
                            {"mosaic_h100", "fp8", 1979e12}};
    for (const Kind& kind : kinds)
        for (const Place& place : places)
            for (const char* code : {"", "PyTorch FSDP", "DeepSpeed ZeRO", "Megatron-LM v3", "TensorFlow 2",
                                     "MXNet", "JAX", "C++ and CUDA", "somebody's trainer, torch.compile"}) {
                const bool is_vision = kind.multiply_adds > 0;
                const std::map<std::string, std::string> cells = {
                    {"model", kind.model},
                    {"layers", is_vision ? "" : "4"},
                    {"hidden", is_vision ? "64" : "512"},
                    {"heads", is_vision ? "" : "8"},
                    {"kv_heads", is_vision ? "" : "8"},
                    {"ffn", is_vision ? "2" : "2048"},
                    {"vocab", is_vision ? "" : "32000"},
                    {"seq_len", is_vision ? "" : "512"},
                    {"tied_embeddings", is_vision ? "" : "yes"},
                    {"image_size", std::string(kind.model) == "resnet18_cifar"      ? "32"
                                   : std::string(kind.model) == "mask_rcnn_r50_fpn" ? "800"
                                   : is_vision                                      ? "224"
                                                                                    : ""},
                    {"precision", place.precision},
                    {"optimizer", is_vision ? "sgd" : "adamw"},
                    {"cluster", place.cluster},
                    {"nodes", "1"},
                    {"gpus_per_node", "4"},
                    {"tensor_parallel", "1"},
                    {"pipeline_parallel", "1"},
                    {"virtual_stages", "1"},
                    {"data_parallel", "4"},
                    {"sharding", "none"},
                    {"shard_degree", ""},
                    {"micro_batch", "8"},
                    {"global_batch", "32"},
                    {"grad_accumulation", "1"},
                    {"recompute", "none"},
                    {"schedule", ""},
                    {"sequence_parallel", "no"},
                    {"attention", ""},
                    {"framework", code},
                    {"measured_step_s", "1"},
                    {"measured_peak_gib", ""},
                    {"notes", ""}};
                core::CsvRow row{static_cast<int>(made.rows.size()), {}};
                for (const std::string& column : made.header) {
                    const auto cell = cells.find(column);
                    row.cells.push_back(cell != cells.end() ? cell->second
                                        : column == "id"    ? std::to_string(made.rows.size())
                                                            : "vocabulary");
                }
                made.rows.push_back(std::move(row));
                // Of a transformer only its linear layers: 4 h^2 + 2 h f multiply-adds a token and layer.
                // Frozen layers of Mask R-CNN have no backward pass.
                const double forward =
                    is_vision ? kind.multiply_adds * 0.25 : 512.0 * 4 * (4 * 512.0 * 512 + 2 * 512.0 * 2048);
                least_seconds.push_back(8 * 3 * 2 * forward / place.peak);
            }
    const validation::Validation validation = predicted(made);
    for (std::size_t i = 0; i < made.rows.size(); ++i) {
        const validation::ScoredRow& row = validation.rows[i];
        INFO(made.cell(made.rows[i], "model")
             << " in " << made.cell(made.rows[i], "precision") << " on " << made.cell(made.rows[i], "cluster")
             << " by \"" << made.cell(made.rows[i], "framework") << "\": " << row.reason);
        CHECK(row.status == validation::PredictionStatus::ok);
        // Convolutions of 3x3 in fp32 beat the peak by Winograd's transform, which the quarter above allows
        // for.
        CHECK(row.predicted.value > least_seconds[i]);
        CHECK(row.predicted.value < 20);
    }
}

TEST_CASE("a precision the device does not have is refused, not guessed") {
    core::CsvTable rows = some_of_each_kind();
    std::erase_if(rows.rows,
                  [&](const core::CsvRow& row) { return rows.cell(row, "cluster") != "mosaic_a100_80"; });
    REQUIRE(!rows.rows.empty());
    for (std::size_t i = 0; i < rows.rows.size(); ++i) set(rows, i, "precision", "fp8");
    for (const validation::ScoredRow& row : predicted(rows).rows) {
        INFO(row.id);
        CHECK(row.status == validation::PredictionStatus::unsupported);
        CHECK(row.reason.find("fp8") != std::string::npos);
    }
}

namespace {

// A GPT of 1.3 billion parameters as a row, with some cells replaced.
core::CsvTable one_row(const std::vector<std::map<std::string, std::string>>& changes) {
    const core::CsvTable& runs = figures().runs;
    core::CsvTable table{runs.file, runs.header, {}};
    for (const std::map<std::string, std::string>& change : changes) {
        std::map<std::string, std::string> cells = {{"group", "made"},
                                                    {"model", "gpt"},
                                                    {"layers", "24"},
                                                    {"hidden", "2048"},
                                                    {"heads", "16"},
                                                    {"kv_heads", "16"},
                                                    {"ffn", "8192"},
                                                    {"vocab", "51200"},
                                                    {"seq_len", "1024"},
                                                    {"tied_embeddings", "yes"},
                                                    {"precision", "fp16"},
                                                    {"optimizer", "adamw"},
                                                    {"cluster", "selene"},
                                                    {"nodes", "1"},
                                                    {"gpus_per_node", "8"},
                                                    {"tensor_parallel", "1"},
                                                    {"pipeline_parallel", "1"},
                                                    {"virtual_stages", "1"},
                                                    {"data_parallel", "8"},
                                                    {"sharding", "none"},
                                                    {"micro_batch", "4"},
                                                    {"global_batch", "32"},
                                                    {"grad_accumulation", "1"},
                                                    {"recompute", "full"},
                                                    {"sequence_parallel", "no"},
                                                    {"framework", "PyTorch DDP"},
                                                    {"measured_step_s", "1"}};
        cells["id"] = std::to_string(table.rows.size());
        for (const auto& [column, value] : change) cells[column] = value;
        core::CsvRow row{static_cast<int>(table.rows.size()), {}};
        for (const std::string& column : table.header) row.cells.push_back(cells[column]);
        table.rows.push_back(std::move(row));
    }
    return table;
}

// Steps of rows that must all be predicted.
std::vector<double> steps(const std::vector<std::map<std::string, std::string>>& changes) {
    std::vector<double> seconds;
    for (const validation::ScoredRow& row : predicted(one_row(changes)).rows) {
        INFO(row.id << ": " << row.reason);
        REQUIRE(row.status == validation::PredictionStatus::ok);
        seconds.push_back(row.predicted.value);
    }
    return seconds;
}

}  // namespace

TEST_CASE("a narrower format is never slower: fp32, tf32, half, and fp8 where products are large") {
    for (const char* code : {"", "PyTorch DDP", "Megatron-LM", "JAX", "somebody's trainer"}) {
        INFO(code);
        const std::vector<double> a100 = steps({{{"precision", "fp32"}, {"framework", code}},
                                                {{"precision", "tf32"}, {"framework", code}},
                                                {{"precision", "bf16"}, {"framework", code}}});
        CHECK(a100[0] > 2 * a100[1]);
        CHECK(a100[1] > a100[2]);
        const std::map<std::string, std::string> wide = {{"cluster", "mosaic_h100"},
                                                         {"framework", code},
                                                         {"hidden", "8192"},
                                                         {"ffn", "32768"},
                                                         {"heads", "64"},
                                                         {"kv_heads", "64"},
                                                         {"layers", "4"}};
        std::map<std::string, std::string> half = wide, eighth = wide;
        half["precision"] = "bf16";
        eighth["precision"] = "fp8";
        const std::vector<double> h100 = steps({half, eighth});
        CHECK(h100[1] < h100[0]);
        CHECK(h100[1] > 0.5 * h100[0]);
    }
}

TEST_CASE("a newer device of the same family of systems takes less time for the same plan") {
    const std::vector<double> times =
        steps({{{"cluster", "dgx1_v100_32"}}, {{"cluster", "dgx_a100_80"}}, {{"cluster", "mosaic_h100"}}});
    for (std::size_t i = 0; i + 1 < times.size(); ++i) CHECK(times[i] > times[i + 1]);
}

TEST_CASE("tensor parallelism over two nodes is slower than in one, and slowest over the slowest network") {
    const auto over = [](const char* cluster, const char* tensor, const char* nodes) {
        return std::map<std::string, std::string>{{"cluster", cluster},  {"tensor_parallel", tensor},
                                                  {"nodes", nodes},      {"data_parallel", "1"},
                                                  {"global_batch", "4"}, {"framework", "Megatron-LM"}};
    };
    const std::vector<double> times =
        steps({over("dlperf_v100_16", "8", "1"), over("dlperf_v100_16", "16", "2"),
               over("p3_16xlarge", "16", "2"), over("dgx1_v100_16", "16", "2")});
    CHECK(times[1] > times[0]);
    CHECK(times[2] > times[1]);  // 25 Gbit/s of TCP against one EDR card
    CHECK(times[1] > times[3]);  // one card against four
}

TEST_CASE(
    "for one global batch, twice the nodes shorten the step, never to less than half, up to 512 nodes") {
    const char* const codes[] = {"Megatron-LM 2022", "PyTorch FSDP", "DeepSpeed ZeRO-3",
                                 "a trainer of tomorrow"};
    for (const char* code : codes)
        for (const bool is_sharded : {false, true}) {
            std::vector<std::map<std::string, std::string>> rows;
            for (int nodes = 1; nodes <= 512; nodes *= 2)
                rows.push_back({{"nodes", std::to_string(nodes)},
                                {"data_parallel", std::to_string(8 * nodes)},
                                {"grad_accumulation", std::to_string(512 / nodes)},
                                {"micro_batch", "1"},
                                {"global_batch", "4096"},
                                {"framework", code},
                                {"sharding", is_sharded ? "parameters" : "none"},
                                {"shard_degree", is_sharded ? std::to_string(8 * nodes) : ""}});
            const std::vector<double> times = steps(rows);
            for (std::size_t i = 0; i + 1 < times.size(); ++i) {
                INFO(code << (is_sharded ? ", sharded, " : ", ") << (1 << i) << " nodes: " << times[i]
                          << " s, then " << times[i + 1]);
                CHECK(times[i + 1] > 0.49 * times[i]);
                // What every step costs once does not shrink; until it rules, more nodes help.
                if (i < 5) CHECK(times[i + 1] < times[i]);
            }
        }
}

TEST_CASE("odd degrees, many nodes, long sequences and every schedule of the vocabulary are predicted") {
    std::vector<std::map<std::string, std::string>> rows;
    for (const char* ranks : {"3", "5", "6", "7"})
        rows.push_back({{"gpus_per_node", ranks},
                        {"data_parallel", ranks},
                        {"global_batch", std::to_string(4 * std::stoi(ranks))}});
    for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "zb-h2", "gpipe"})
        rows.push_back({{"pipeline_parallel", "4"},
                        {"data_parallel", "2"},
                        {"schedule", schedule},
                        {"virtual_stages", std::string(schedule) == "interleaved" ? "3" : "1"},
                        {"grad_accumulation", "16"},
                        {"micro_batch", "1"},
                        {"global_batch", "32"},
                        {"framework", "Megatron-LM"}});
    rows.push_back({{"nodes", "512"},
                    {"tensor_parallel", "8"},
                    {"pipeline_parallel", "12"},
                    {"gpus_per_node", "6"},
                    {"data_parallel", "32"},
                    {"global_batch", "128"},
                    {"framework", "Megatron-LM"}});
    rows.push_back(
        {{"seq_len", "131072"}, {"micro_batch", "1"}, {"global_batch", "8"}, {"attention", "flash"}});
    rows.push_back({{"heads", "20"},
                    {"kv_heads", "4"},
                    {"hidden", "2560"},
                    {"model", "llama"},
                    {"ffn", "6912"},
                    {"vocab", "151936"},
                    {"tied_embeddings", "no"}});
    for (double seconds : steps(rows)) CHECK(seconds > 0.01);
}
