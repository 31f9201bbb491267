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
