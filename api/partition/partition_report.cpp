#include "api/partition/partition_report.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/document.h"

namespace api {

void add_cut_report(const partition::PlacementProblem& problem, const partition::PlacementResult& result,
                    std::optional<int> devices_per_instance, PartitionAnswer& answer) {
    if (!result.is_feasible) return;
    std::vector<std::size_t> stage_of(problem.items.size(), 0);
    for (std::size_t s = 0; s < result.stages.size(); ++s)
        for (std::size_t item : result.stages[s].items) stage_of[item] = s;
    auto instance_of = [&](std::size_t stage) {
        return devices_per_instance ? stage / *devices_per_instance : 0;
    };
    struct Cut {
        core::Bytes bytes;
        core::Seconds time;
    };
    std::vector<Cut> cuts(result.stages.size());  // [s]: between stage s and s + 1
    Cut inside, between;
    for (const partition::Transfer& transfer : problem.transfers) {
        const std::size_t from = stage_of[transfer.source];
        std::set<std::size_t> to;
        std::size_t first = from, last = from;
        for (std::size_t d : transfer.destinations) {
            const std::size_t stage = stage_of[d];
            if (stage != from) to.insert(stage);
            first = std::min(first, stage);
            last = std::max(last, stage);
        }
        for (std::size_t s = first; s < last; ++s) {
            cuts[s].bytes += transfer.bytes;
            cuts[s].time += transfer.time;
        }
        for (std::size_t stage : to) {
            Cut& sum = instance_of(stage) == instance_of(from) ? inside : between;
            sum.bytes += transfer.bytes;
            sum.time += transfer.time;
        }
    }
    const bool has_bytes = std::any_of(problem.transfers.begin(), problem.transfers.end(),
                                       [](const auto& t) { return t.bytes.value > 0; });
    core::Value list = core::Value::array();
    for (std::size_t s = 0; s + 1 < result.stages.size(); ++s) {
        core::Value entry = core::Value::table();
        const bool is_inside = instance_of(s) == instance_of(s + 1);
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
        answer.text += fmt::format(
            "moved a micro-batch: {} inside instances, {} between instances; over the boundaries:",
            core::format(inside.bytes), core::format(between.bytes));
        for (std::size_t s = 0; s + 1 < result.stages.size(); ++s)
            answer.text += " " + core::format(cuts[s].bytes);
        answer.text += "\n";
    }
}

Picture picture_of(const partition::PlacementProblem& problem, const partition::PlacementResult& result) {
    Picture picture;
    std::vector<std::size_t> node_of_item(problem.items.size());  // stages hold every item
    double heaviest = 0;
    for (const partition::PlacementItem& item : problem.items)
        heaviest = std::max(heaviest, item.accelerator_time.value);
    for (std::size_t s = 0; s < result.stages.size(); ++s) {
        picture.stages.push_back(fmt::format("stage {}: {}, {}", s, core::format(result.stages[s].load),
                                             core::format(result.stages[s].memory)));
        for (std::size_t item : result.stages[s].items) {
            const partition::PlacementItem& placed = problem.items[item];
            node_of_item[item] = picture.nodes.size();
            std::string name = partition::node_name(problem, placed.nodes.front());
            if (placed.nodes.size() > 1) name += fmt::format(" + {}", placed.nodes.size() - 1);
            picture.nodes.push_back(
                {std::move(name), s, heaviest > 0 ? placed.accelerator_time.value / heaviest : 0});
        }
    }
    for (auto [from, to] : problem.precedence)
        picture.edges.emplace_back(node_of_item[from], node_of_item[to]);
    return picture;
}

Picture picture_of(const partition::ReplicatedProblem& problem, const partition::ReplicatedResult& result) {
    Picture picture;
    picture.nodes.resize(problem.nodes.size());
    double slowest = 0;
    for (std::size_t s = 0; s < result.stages.size(); ++s) {
        const partition::ReplicatedStage& stage = result.stages[s];
        picture.stages.push_back(fmt::format("stage {}: data {} x tensor {}, {} a sample, {}", s, stage.data,
                                             stage.tensor, core::format(stage.time),
                                             core::format(stage.memory)));
        for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
            const partition::ConfigurableNode& node = problem.nodes[stage.nodes[i]];
            const partition::NodeConfiguration& configuration =
                node.configurations.at(stage.tensor)[stage.configurations[i]];
            const double work = configuration.time_per_sample.value * stage.tensor;
            slowest = std::max(slowest, work);
            picture.nodes[stage.nodes[i]] = {
                (node.name.empty() ? std::to_string(node.id) : node.name) + ": " + configuration.name, s,
                work};
        }
    }
    for (PictureNode& node : picture.nodes) node.share = slowest > 0 ? node.share / slowest : 0;
    for (const partition::ReplicatedProblem::Edge& edge : problem.edges)
        picture.edges.emplace_back(edge.from, edge.to);
    return picture;
}

Picture picture_of(const partition::HierarchicalProblem& problem,
                   const partition::HierarchicalResult& result) {
    Picture picture;
    double heaviest = 0;
    for (const partition::HierarchicalProblem::Node& node : problem.nodes) {
        picture.nodes.push_back({node.id + (node.description.empty() ? "" : " ") + node.description,
                                 std::nullopt, (node.forward + node.backward).value});
        heaviest = std::max(heaviest, picture.nodes.back().share);
    }
    for (PictureNode& node : picture.nodes) node.share = heaviest > 0 ? node.share / heaviest : 0;
    for (std::size_t s = 0; s < result.stages.size(); ++s) {
        const partition::HierarchicalStage& stage = result.stages[s];
        picture.stages.push_back(fmt::format("stage {}: replicas {}, {}, {}", s,
                                             fmt::join(stage.replicas, " x "), core::format(stage.load),
                                             core::format(stage.memory)));
        for (std::size_t v : stage.nodes) picture.nodes[v].stage = s;
    }
    picture.edges = problem.edges;
    return picture;
}

void add_picture(Picture picture, const PartitionRequest& request, std::vector<OutputFile>& files) {
    picture.title = request.path;
    if (request.dot) files.push_back({*request.dot, to_dot(picture)});
    if (request.svg) files.push_back({*request.svg, to_svg(picture)});
}

}  // namespace api
