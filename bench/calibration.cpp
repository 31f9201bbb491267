// Leave-one-out: how far off are predictions of measurements that took no part in fitting the constants?
//
//   bench_calibration RUNS.csv... CLUSTERS.csv [--rows-per-group 16] [--threads 2] [--fit-only |
//   --sources-only]
//
// For every source (validation/source.h), group and kind of device, the constants are fitted again from their
// priors on the rows of all others (validation/calibration.h), and the rows left out are predicted with them.
// What only the left-out rows could have told is taken away as well: a framework that no other group used is
// known by its kind alone, as any new training code would be (`known_kind` below). docs/accuracy.md shows the
// table; bench/leave-one-out writes it.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "validation/calibration.h"
#include "validation/published_run.h"
#include "validation/score.h"
#include "validation/source.h"
#include "validation/validate.h"

namespace {

// What anyone knows of a training code without having measured it: whose kernels it runs and when it was
// written.
std::string known_kind(const std::string& framework) {
    const std::pair<const char*, const char*> kinds[] = {{"Alpa", "JAX/XLA"},
                                                         {"vTrain", "Megatron-DeepSpeed"},
                                                         {"Megatron-DeepSpeed", "Megatron-LM"},
                                                         {"zero-bubble", "Megatron-LM"},
                                                         {"NeMo", "Megatron-LM"},
                                                         {"Megatron", "Megatron-LM"},
                                                         {"AdaptDL", "PyTorch 2020, DDP"},
                                                         {"llm-foundry", "PyTorch FSDP, FlashAttention 1"},
                                                         {"InternLM", "PyTorch ZeRO-1, FlashAttention 1"},
                                                         {"llm.c", "C++ and CUDA"},
                                                         {"Horovod", "TensorFlow 1 XLA"},
                                                         {"XLA", "TensorFlow 1 XLA"},
                                                         {"TensorFlow", "TensorFlow 1"},
                                                         {"MXNet (NGC)", "graph engine, fused batch norm"},
                                                         {"NGC MXNet", "graph engine, fused batch norm"},
                                                         {"MXNet", "graph engine"},
                                                         {"OneFlow", "graph engine, fused batch norm"},
                                                         {"Paddle", "graph engine"},
                                                         {"NGC 20", "PyTorch 2020 + apex"},
                                                         {"20.03", "PyTorch 2020 + apex"},
                                                         {"NGC", "PyTorch + apex"},
                                                         {"PyTorch", "PyTorch 2020"}};
    for (const auto& [part, kind] : kinds)
        if (framework.find(part) != std::string::npos) return kind;
    return framework;
}

core::CsvTable with_rows(const core::CsvTable& table, const std::vector<std::size_t>& rows) {
    core::CsvTable result{table.file, table.header, {}};
    for (std::size_t i : rows) result.rows.push_back(table.rows[i]);
    return result;
}

// Rows of the left-out part, with frameworks that occur nowhere else known by their kind only.
core::CsvTable as_unknown(const core::CsvTable& runs, const std::vector<std::size_t>& rows,
                          const std::set<std::string>& known_frameworks) {
    core::CsvTable table = with_rows(runs, rows);
    const std::size_t column = table.column("framework").value();
    for (core::CsvRow& row : table.rows)
        if (!known_frameworks.contains(row.cells[column])) row.cells[column] = known_kind(row.cells[column]);
    return table;
}

std::string device_of(const core::CsvTable& runs, const core::CsvRow& row, const core::CsvTable& clusters) {
    for (const core::CsvRow& cluster : clusters.rows)
        if (clusters.cell(cluster, "id") == runs.cell(row, "cluster"))
            return std::string(clusters.cell(cluster, "gpu").substr(0, 4));
    return "";
}

struct Setting {
    core::CsvTable runs, clusters;
    int threads = 0;
};

std::vector<validation::GroupScore> scores_of(const core::CsvTable& table, const Setting& setting,
                                              const sim::CostConstants& constants) {
    core::Diagnostics diagnostics;
    const auto validation =
        validation::validate(table, setting.clusters, nullptr, diagnostics,
                             {.constants = constants, .threads = setting.threads, .progress = {}});
    return validation ? validation->groups : std::vector<validation::GroupScore>{};
}

void print(const sim::CostConstants& constants) {
    fmt::print("\n| constant | fitted | shipped | prior | least | greatest |\n|---|--:|--:|--:|--:|--:|\n");
    for (const sim::NamedConstant& constant : sim::named_constants())
        if (constant.is_fitted)
            fmt::print("| {} | {:.4g} | {:.4g} | {:.4g} | {:.4g} | {:.4g} |\n", constant.name,
                       constants.*constant.value, sim::CostConstants{}.*constant.value, constant.prior,
                       constant.least, constant.greatest);
}

}  // namespace

int main(int argc, char** argv) {
    std::vector<std::string> files;
    std::size_t rows_per_group = 16;
    bool folds = true, only_sources = false;
    Setting setting;
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--rows-per-group") == 0 && i + 1 < argc)
            rows_per_group = static_cast<std::size_t>(std::max(1, std::atoi(argv[++i])));
        else if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc)
            setting.threads = std::atoi(argv[++i]);
        else if (std::strcmp(argv[i], "--fit-only") == 0) folds = false;
        else if (std::strcmp(argv[i], "--sources-only") == 0) only_sources = true;
        else files.emplace_back(argv[i]);
    }
    if (files.size() < 2) {
        fmt::print(
            "leave-one-out calibration needs measurements: bench_calibration RUNS.csv... CLUSTERS.csv "
            "[--rows-per-group 16] [--threads 2] [--fit-only | --sources-only]\n");
        return 0;  // `./run bench` starts every program without arguments
    }
    core::Diagnostics diagnostics;
    auto runs = core::load_csv(files[0], validation::run_columns(), diagnostics);
    for (std::size_t f = 1; runs && f + 1 < files.size(); ++f) {
        const auto more = core::load_csv(files[f], validation::run_columns(), diagnostics);
        if (more && more->header == runs->header)
            runs->rows.insert(runs->rows.end(), more->rows.begin(), more->rows.end());
        else diagnostics.error({}, "", files[f] + " has other columns than " + files[0], "");
    }
    const auto clusters = core::load_csv(files.back(), validation::cluster_columns(), diagnostics);
    if (!runs || !clusters || diagnostics.has_errors()) {
        for (const core::Diagnostic& entry : diagnostics.entries()) fmt::print(stderr, "{}\n", entry.message);
        return 2;
    }
    setting.runs = *runs;
    setting.clusters = *clusters;

    // Groups are up to fifty times as large as others, and neighbouring rows repeat each other: a fit needs
    // only some of each.
    std::map<std::string, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < runs->rows.size(); ++i)
        groups[std::string(runs->cell(runs->rows[i], "group"))].push_back(i);
    std::vector<std::size_t> chosen;
    for (const auto& [group, rows] : groups) {
        const std::size_t count = std::min(rows_per_group, rows.size());
        for (std::size_t k = 0; k < count; ++k) chosen.push_back(rows[k * rows.size() / count]);
    }
    const core::CsvTable sample = with_rows(*runs, chosen);
    const auto responses = validation::Responses::measure(
        sample, *clusters, {}, diagnostics,
        {.threads = setting.threads, .progress = [](std::size_t done, std::size_t all) {
             fmt::print(stderr, "\r  constant {} of {}", done + 1, all);
         }});
    fmt::print(stderr, "\n");
    if (!responses) return 1;

    const sim::CostConstants all = responses->fit(std::vector<bool>(sample.rows.size(), true));
    print(all);
    const std::vector<validation::GroupScore> fitted = scores_of(*runs, setting, all),
                                              shipped = scores_of(*runs, setting, {});
    fmt::print("\nin sample: macro {:.2f} % as fitted here, {:.2f} % as shipped\n",
               100 * validation::macro_mape(fitted), 100 * validation::macro_mape(shipped));
    if (!folds) return 0;

    const auto fit_without = [&](auto is_left_out) {
        std::vector<bool> is_used;
        for (const core::CsvRow& row : sample.rows) is_used.push_back(!is_left_out(row));
        return responses->fit(is_used);
    };
    const auto predict_left_out = [&](auto is_left_out, const sim::CostConstants& constants,
                                      bool knows_frameworks = false) {
        std::vector<std::size_t> rows;
        std::set<std::string> known;
        for (std::size_t i = 0; i < runs->rows.size(); ++i) {
            if (is_left_out(runs->rows[i])) rows.push_back(i);
            if (knows_frameworks || !is_left_out(runs->rows[i]))
                known.emplace(runs->cell(runs->rows[i], "framework"));
        }
        return scores_of(as_unknown(*runs, rows, known), setting, constants);
    };
    // Whole sources: what their maker's other groups would tell is taken away with them.
    fmt::print(
        "\n| source left out | rows | MAPE % | bias % | known by kind of code only % | shipped % | groups' "
        "MAPE % "
        "|\n|---|--:|--:|--:|--:|--:|---|\n");
    std::set<std::string> sources;
    for (const auto& [group, rows] : groups) sources.insert(validation::source_of(group));
    std::vector<validation::GroupScore> all_left_out, all_by_kind;
    double source_sum = 0;
    for (const std::string& source : sources) {
        const auto is_left_out = [&](const core::CsvRow& row) {
            return validation::source_of(runs->cell(row, "group")) == source;
        };
        const sim::CostConstants constants = fit_without(is_left_out);
        const std::vector<validation::GroupScore> score = predict_left_out(is_left_out, constants, true);
        const std::vector<validation::GroupScore> by_kind = predict_left_out(is_left_out, constants);
        std::vector<validation::GroupScore> in_sample;
        std::string list;
        int count = 0;
        double bias = 0;
        for (const validation::GroupScore& group : score) {
            list += fmt::format("{}{} {:.1f}", list.empty() ? "" : ", ", group.group, 100 * group.mape);
            count += group.rows;
            bias += group.bias / static_cast<double>(score.size());
            for (const validation::GroupScore& other : shipped)
                if (other.group == group.group) in_sample.push_back(other);
        }
        fmt::print("| {} | {} | {:.1f} | {:+.1f} | {:.1f} | {:.1f} | {} |\n", source, count,
                   100 * validation::macro_mape(score), 100 * bias, 100 * validation::macro_mape(by_kind),
                   100 * validation::macro_mape(in_sample), list);
        std::fflush(stdout);
        source_sum += validation::macro_mape(score);
        all_left_out.insert(all_left_out.end(), score.begin(), score.end());
        all_by_kind.insert(all_by_kind.end(), by_kind.begin(), by_kind.end());
    }
    fmt::print("| **macro over groups** | {} | **{:.1f}** | | {:.1f} | {:.1f} | over sources {:.1f} |\n",
               runs->rows.size(), 100 * validation::macro_mape(all_left_out),
               100 * validation::macro_mape(all_by_kind), 100 * validation::macro_mape(shipped),
               100 * source_sum / static_cast<double>(sources.size()));
    if (only_sources) return 0;

    fmt::print(
        "\n| left out | rows | MAPE % | median % | bias % | with its code's facts % | shipped % "
        "|\n|---|--:|--:|--:|--:|--:|--:|\n");
    double sum = 0, facts_sum = 0;
    for (const auto& [group, rows] : groups) {
        const auto is_left_out = [&, name = group](const core::CsvRow& row) {
            return runs->cell(row, "group") == name;
        };
        const sim::CostConstants constants = fit_without(is_left_out);
        const std::vector<validation::GroupScore> score = predict_left_out(is_left_out, constants);
        if (score.empty()) continue;
        const auto in_sample =
            std::find_if(shipped.begin(), shipped.end(),
                         [&, name = group](const validation::GroupScore& s) { return s.group == name; });
        const double with_facts = predict_left_out(is_left_out, constants, true)[0].mape;
        facts_sum += with_facts;
        fmt::print("| {} | {} | {:.1f} | {:.1f} | {:+.1f} | {:.1f} | {:.1f} |\n", group, score[0].rows,
                   100 * score[0].mape, 100 * score[0].median, 100 * score[0].bias, 100 * with_facts,
                   100 * in_sample->mape);
        sum += score[0].mape;
    }
    fmt::print("| **macro** | {} | **{:.1f}** | | | {:.1f} | {:.1f} |\n", runs->rows.size(),
               100 * sum / static_cast<double>(groups.size()),
               100 * facts_sum / static_cast<double>(groups.size()), 100 * validation::macro_mape(shipped));

    fmt::print(
        "\n| left out | rows | groups | macro MAPE % | with its codes' facts % | shipped % | groups' MAPE % "
        "|\n|---|--:|--:|--:|--:|--:|---|\n");
    double device_sum = 0;
    std::set<std::string> devices;
    for (const core::CsvRow& row : runs->rows) devices.insert(device_of(*runs, row, *clusters));
    for (const std::string& device : devices) {
        const auto is_left_out = [&](const core::CsvRow& row) {
            return device_of(*runs, row, *clusters) == device;
        };
        const sim::CostConstants constants = fit_without(is_left_out);
        const std::vector<validation::GroupScore> score = predict_left_out(is_left_out, constants);
        std::vector<std::size_t> rows;
        std::string list;
        int count = 0;
        for (std::size_t i = 0; i < runs->rows.size(); ++i)
            if (is_left_out(runs->rows[i])) rows.push_back(i);
        for (const validation::GroupScore& group : score) {
            list += fmt::format("{}{} {:.1f}", list.empty() ? "" : ", ", group.group, 100 * group.mape);
            count += group.rows;
        }
        fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {} |\n", device, count, score.size(),
                   100 * validation::macro_mape(score),
                   100 * validation::macro_mape(predict_left_out(is_left_out, constants, true)),
                   100 * validation::macro_mape(scores_of(with_rows(*runs, rows), setting, {})), list);
        device_sum += validation::macro_mape(score);
    }
    fmt::print("| **mean** | | | **{:.1f}** | | | |\n",
               100 * device_sum / static_cast<double>(devices.size()));
    return 0;
}
