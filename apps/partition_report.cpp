#include "apps/partition_report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>

#include <fmt/core.h>

#include "apps/partition_picture.h"
#include "core/document.h"

namespace apps {

void add_cut_report(const planner::PlacementProblem& problem, const planner::PlacementResult& result, int devices_per_instance, PartitionAnswer& answer) {
    if (!result.is_feasible) return;
    std::vector<int> stage_of(problem.items.size(), 0);
    for (std::size_t s = 0; s < result.stages.size(); ++s)
        for (int item : result.stages[s].items) stage_of[static_cast<std::size_t>(item)] = static_cast<int>(s);
    auto instance_of = [&](int stage) { return devices_per_instance > 0 ? stage / devices_per_instance : 0; };
    struct Cut {
        core::Bytes bytes;
        core::Seconds time;
    };
    std::vector<Cut> cuts(result.stages.size());  // [s]: between stage s and s + 1
    Cut inside, between;
    for (const planner::Transfer& transfer : problem.transfers) {
        const int from = stage_of[static_cast<std::size_t>(transfer.source)];
        std::set<int> to;
        int first = from, last = from;
        for (int d : transfer.destinations) {
            const int stage = stage_of[static_cast<std::size_t>(d)];
            if (stage != from) to.insert(stage);
            first = std::min(first, stage);
            last = std::max(last, stage);
        }
        for (int s = first; s < last; ++s) {
            cuts[static_cast<std::size_t>(s)].bytes += transfer.bytes;
            cuts[static_cast<std::size_t>(s)].time += transfer.time;
        }
        for (int stage : to) {
            Cut& sum = instance_of(stage) == instance_of(from) ? inside : between;
            sum.bytes += transfer.bytes;
            sum.time += transfer.time;
        }
    }
    const bool has_bytes = std::any_of(problem.transfers.begin(), problem.transfers.end(), [](const auto& t) { return t.bytes.value > 0; });
    core::Value list = core::Value::array();
    for (std::size_t s = 0; s + 1 < result.stages.size(); ++s) {
        core::Value entry = core::Value::table();
        const bool is_inside = instance_of(static_cast<int>(s)) == instance_of(static_cast<int>(s) + 1);
        entry["after_stage"] = static_cast<std::int64_t>(s);
        entry["link"] = is_inside ? "inside instance" : "between instances";
        if (has_bytes) entry["bytes"] = cuts[s].bytes.value;
        else entry["transfer_s"] = cuts[s].time.value;
        list.append(std::move(entry));
    }
    answer.document["cuts"] = std::move(list);
    if (has_bytes) {
        answer.document["bytes_inside_instances"] = inside.bytes.value;
        answer.document["bytes_between_instances"] = between.bytes.value;
        answer.text += fmt::format("moved a micro-batch: {} inside instances, {} between instances; over the boundaries:", core::format(inside.bytes), core::format(between.bytes));
        for (std::size_t s = 0; s + 1 < result.stages.size(); ++s) answer.text += " " + core::format(cuts[s].bytes);
        answer.text += "\n";
    }
}

schedule::PartitionFile decision_of(const planner::PlacementProblem& problem, const planner::PlacementResult& result) {
    schedule::PartitionFile file;
    const std::vector<planner::DeviceClass> classes = planner::device_classes(problem);
    for (const planner::PlacedStage& stage : result.stages) {
        schedule::PartitionFile::Stage entry;
        entry.device = classes[static_cast<std::size_t>(stage.device_class)].name;
        for (int item : stage.items)
            for (std::int64_t node : problem.items[static_cast<std::size_t>(item)].nodes) entry.nodes.push_back(planner::node_name(problem, node));
        file.stages.push_back(std::move(entry));
    }
    file.is_proven_optimal = result.is_proven_optimal;
    return file;
}

std::optional<planner::PlacementResult> apply_decision(const schedule::PartitionFile& file, const std::string& path, const std::string& graph_hash,
                                                       std::optional<int> default_partition, const planner::PlacementProblem& problem, core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    const core::SourceLocation place{.file = path};
    if (!file.graph_hash.empty() && file.graph_hash != graph_hash) {
        diagnostics.error(place, "partition.graph_hash", fmt::format("the partition was decided for another graph: {} then, {} now", file.graph_hash, graph_hash),
                          "partition the graph again, or go back to the graph it was made for");
        return std::nullopt;
    }
    const std::vector<planner::DeviceClass> classes = planner::device_classes(problem);
    const std::vector<schedule::PartitionFile::Stage>& stages = file.stages;
    if (default_partition && *default_partition >= static_cast<int>(stages.size()))
        diagnostics.error({}, "--default-partition", fmt::format("default_partition = {} is not below partitions = {}", *default_partition, stages.size()));
    std::map<std::string, int> item_of;
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        for (std::int64_t node : problem.items[i].nodes) item_of[planner::node_name(problem, node)] = static_cast<int>(i);
    std::vector<int> stage_of(problem.items.size(), -1);
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (const std::string& name : stages[s].nodes) {
            std::vector<int> items;
            if (const auto found = item_of.find(name); found != item_of.end()) items.push_back(found->second);
            else  // a module: everything below it
                for (auto below = item_of.lower_bound(name + "."); below != item_of.end() && below->first.starts_with(name + "."); ++below) items.push_back(below->second);
            if (items.empty()) diagnostics.error(place, fmt::format("partition.stage[{}].nodes", s), fmt::format("{} names no node of the graph", core::in_quotes(name)));
            for (int item : items) {
                int& holder = stage_of[static_cast<std::size_t>(item)];
                if (holder >= 0 && holder != static_cast<int>(s))
                    diagnostics.error(place, fmt::format("partition.stage[{}].nodes", s),
                                      fmt::format("{}, or what must stay beside it, is in stage {} already", core::in_quotes(name), holder));
                holder = static_cast<int>(s);
            }
        }
    for (std::size_t i = 0; i < stage_of.size(); ++i) {
        if (stage_of[i] >= 0) continue;
        if (default_partition) stage_of[i] = *default_partition;
        else diagnostics.error(place, "partition.stage", fmt::format("{} is in no stage", core::in_quotes(planner::node_name(problem, problem.items[i].nodes.front()))),
                               "name it, or give --default-partition");
        if (diagnostics.error_count() > errors + 20) break;
    }
    if (diagnostics.error_count() > errors) return std::nullopt;
    planner::PlacementResult result;
    std::vector<int> used(classes.size(), 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
        std::vector<int> items;
        for (std::size_t i = 0; i < stage_of.size(); ++i)
            if (stage_of[i] == static_cast<int>(s)) items.push_back(static_cast<int>(i));
        if (items.empty()) continue;
        std::size_t kind = 0;
        while (kind < classes.size() && classes[kind].name != stages[s].device) ++kind;
        if (kind == classes.size()) {
            diagnostics.error(place, fmt::format("partition.stage[{}].device", s), fmt::format("{} is no device of this problem", core::in_quotes(stages[s].device)));
            return std::nullopt;
        }
        if (++used[kind] > classes[kind].count) {
            diagnostics.error(place, fmt::format("partition.stage[{}].device", s), fmt::format("more stages than the {} devices of kind {}", classes[kind].count, stages[s].device));
            return std::nullopt;
        }
        result.stages.push_back(planner::stage_of(problem, std::move(items), static_cast<int>(kind)));
    }
    planner::settle_memory(problem, result.stages);
    result.objective = planner::largest_load(problem, result.stages);
    result.lower_bound = std::min(result.objective, planner::placement_lower_bound(problem));
    result.is_feasible = true;
    for (std::size_t s = 0; s < result.stages.size(); ++s) {
        const planner::DeviceClass& device = classes[static_cast<std::size_t>(result.stages[s].device_class)];
        if (!device.is_cpu && result.stages[s].memory > device.memory_limit) {
            result.is_feasible = false;
            result.reason = fmt::format("stage {} of the partition needs {}, its device has {}", s, core::format(result.stages[s].memory), core::format(device.memory_limit));
            break;
        }
    }
    return result;
}

void write_pictures(const planner::PlacementProblem& problem, const planner::PlacementResult& result, const std::string& title, const std::optional<std::string>& dot,
                    const std::optional<std::string>& svg) {
    if (!dot && !svg) return;
    Picture picture{.title = title, .nodes = {}, .edges = {}, .stages = {}};
    std::vector<int> node_of_item(problem.items.size(), -1);
    double heaviest = 0;
    for (const planner::PlacementItem& item : problem.items) heaviest = std::max(heaviest, item.accelerator_time.value);
    for (std::size_t s = 0; s < result.stages.size(); ++s) {
        picture.stages.push_back(fmt::format("stage {}: {}, {}", s, core::format(result.stages[s].load), core::format(result.stages[s].memory)));
        for (int item : result.stages[s].items) {
            const planner::PlacementItem& placed = problem.items[static_cast<std::size_t>(item)];
            node_of_item[static_cast<std::size_t>(item)] = static_cast<int>(picture.nodes.size());
            std::string name = planner::node_name(problem, placed.nodes.front());
            if (placed.nodes.size() > 1) name += fmt::format(" + {}", placed.nodes.size() - 1);
            picture.nodes.push_back({std::move(name), static_cast<int>(s), heaviest > 0 ? placed.accelerator_time.value / heaviest : 0});
        }
    }
    for (auto [from, to] : problem.precedence) picture.edges.emplace_back(node_of_item[static_cast<std::size_t>(from)], node_of_item[static_cast<std::size_t>(to)]);
    if (dot) core::write_file_atomically(*dot, to_dot(picture));
    if (svg) core::write_file_atomically(*svg, to_svg(picture));
}

std::function<void(const planner::PlacementProgress&)> progress_bar(bool as_json) {
    if (as_json || !::isatty(STDERR_FILENO)) return {};
    return [](const planner::PlacementProgress& p) {
        constexpr int width = 30;
        const double share = std::isfinite(p.objective) && p.objective > 0 ? p.lower_bound / p.objective : 0;
        const int filled = static_cast<int>(std::clamp(share, 0.0, 1.0) * width);
        std::cerr << fmt::format("\r\033[K[{}{}] bound {} of {}, gap {:.2f} %, {:.1f} s", std::string(static_cast<std::size_t>(filled), '#'),
                                 std::string(static_cast<std::size_t>(width - filled), '.'), core::format(core::Seconds(p.lower_bound)),
                                 std::isfinite(p.objective) ? core::format(core::Seconds(p.objective)) : "?", 100 * (1 - share), p.seconds)
                  << std::flush;
    };
}

void clear_progress_bar(bool as_json) {
    if (!as_json && ::isatty(STDERR_FILENO)) std::cerr << "\r\033[K" << std::flush;
}

}  // namespace apps
