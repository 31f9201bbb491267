// Runs that nobody measured, as rows of the format of published measurements: facts that must hold between
// them are tested over a grid.
#pragma once

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "validation/published_run.h"
#include "validation/validate.h"

using Cells = std::map<std::string, std::string>;

inline Cells operator+(Cells base, const Cells& changes) {
    for (const auto& [column, value] : changes) base[column] = value;
    return base;
}

class SyntheticRuns {
public:
    SyntheticRuns() {
        runs_.file = "synthetic runs";
        runs_.header = validation::run_columns();
        clusters_.file = "synthetic clusters";
        clusters_.header = validation::cluster_columns();
    }

    // Cells that are not given follow from the others: degrees multiply to the devices, batches to the global
    // batch.
    std::size_t add(const Cells& given) {
        Cells cells = Cells{{"group", "synthetic"},      {"precision", "bf16"},
                            {"optimizer", "adamw"},      {"nodes", "1"},
                            {"gpus_per_node", "8"},      {"tensor_parallel", "1"},
                            {"pipeline_parallel", "1"},  {"virtual_stages", "1"},
                            {"sharding", "none"},        {"micro_batch", "1"},
                            {"grad_accumulation", "1"},  {"recompute", "none"},
                            {"sequence_parallel", "no"}, {"measured_step_s", "1"}} +
                      given;
        const auto number = [&](const char* column) { return std::stoll(cells[column]); };
        const long long data = number("nodes") * number("gpus_per_node") / number("tensor_parallel") /
                               number("pipeline_parallel");
        cells["id"] = std::to_string(runs_.rows.size());
        cells["data_parallel"] = std::to_string(data);
        cells["global_batch"] = std::to_string(data * number("micro_batch") * number("grad_accumulation"));
        if (cells["sharding"] != "none" && cells["shard_degree"].empty())
            cells["shard_degree"] = std::to_string(data);
        if (cells["pipeline_parallel"] != "1" && cells["schedule"].empty())
            cells["schedule"] = cells["virtual_stages"] == "1" ? "1f1b" : "interleaved";
        core::CsvRow row{static_cast<int>(runs_.rows.size()) + 2, {}};
        for (const std::string& column : runs_.header) row.cells.push_back(cells[column]);
        runs_.rows.push_back(std::move(row));
        given_.push_back(given);
        return runs_.rows.size() - 1;
    }

    void add_cluster(const Cells& cells) {
        core::CsvRow row{static_cast<int>(clusters_.rows.size()) + 2, {}};
        for (const std::string& column : clusters_.header) {
            const auto cell = cells.find(column);
            row.cells.push_back(cell == cells.end() ? "" : cell->second);
        }
        clusters_.rows.push_back(std::move(row));
    }
    void take_clusters(const core::CsvTable& table) { clusters_ = table; }

    void predict() {
        core::Diagnostics diagnostics;
        const auto validation = validation::validate(runs_, clusters_, nullptr, diagnostics);
        for (const core::Diagnostic& entry : diagnostics.entries()) UNSCOPED_INFO(entry.message);
        REQUIRE(validation.has_value());
        rows_ = validation->rows;
    }

    const core::CsvTable& table() const { return runs_; }
    const core::CsvTable& clusters() const { return clusters_; }
    void measure(std::size_t i, double seconds) {
        runs_.rows[i].cells[runs_.column("measured_step_s").value()] = std::to_string(seconds);
    }
    std::size_t size() const { return rows_.size(); }
    const validation::ScoredRow& operator[](std::size_t i) const { return rows_[i]; }
    bool is_predicted(std::size_t i) const { return rows_[i].status == validation::PredictionStatus::ok; }
    double seconds(std::size_t i) const { return rows_[i].predicted.value; }
    double peak_gib(std::size_t i) const {
        return rows_[i].predicted_peak ? core::to_gibibytes(*rows_[i].predicted_peak) : 0;
    }
    std::string cell(std::size_t i, const char* column) const {
        return std::string(runs_.cell(runs_.rows[i], column));
    }
    std::string describe(std::size_t i) const {
        std::string text;
        for (const auto& [column, value] : given_[i]) text += column + '=' + value + ' ';
        return text + rows_[i].reason;
    }

private:
    core::CsvTable runs_, clusters_;
    std::vector<Cells> given_;
    std::vector<validation::ScoredRow> rows_;
};

// Runs of which each, compared with the one before it, must not be smaller (beyond a tolerance) in time, in
// time a sample, or in peak memory.
class Ladders {
public:
    enum class Of { time, time_a_sample, memory };

    void climb(Of what, std::vector<std::size_t> rungs, double tolerance) {
        ladders_.push_back({what, std::move(rungs), tolerance});
    }

    void check(const SyntheticRuns& runs) const {
        for (const Ladder& ladder : ladders_)
            for (std::size_t i = 0; i < ladder.rungs.size(); ++i) {
                const std::size_t rung = ladder.rungs[i];
                INFO(runs.describe(rung));
                CHECK(runs.is_predicted(rung));
                if (i == 0 || !runs.is_predicted(rung) || !runs.is_predicted(ladder.rungs[i - 1])) continue;
                INFO("after " << runs.describe(ladder.rungs[i - 1]));
                const double before = value(runs, ladder.what, ladder.rungs[i - 1]),
                             after = value(runs, ladder.what, rung);
                CHECK(after >= before * (1 - ladder.tolerance));
            }
    }

private:
    struct Ladder {
        Of what;
        std::vector<std::size_t> rungs;
        double tolerance;
    };
    static double value(const SyntheticRuns& runs, Of what, std::size_t i) {
        if (what == Of::memory) return runs.peak_gib(i);
        return runs.seconds(i) / (what == Of::time ? 1 : std::stod(runs.cell(i, "global_batch")));
    }
    std::vector<Ladder> ladders_;
};
