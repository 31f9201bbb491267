#include "partition/placement.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "partition/graph_hash.h"

namespace partition {

std::vector<DeviceClass> device_classes(const PlacementProblem& problem) {
    std::vector<DeviceClass> classes = problem.devices;
    if (classes.empty()) {
        classes.push_back(
            {.name = "accelerator", .count = problem.accelerators, .memory_limit = problem.memory_limit});
        classes.push_back({.name = "cpu", .count = problem.cpus, .is_cpu = true});
    }
    core::require(classes.size() <= most_device_classes, "a problem has few classes of devices");
    for (DeviceClass& c : classes) c.count = std::min(c.count, core::count_of(problem.items));
    return classes;
}

std::string node_name(const PlacementProblem& problem, std::int64_t node) {
    if (node >= 0 && node < std::ssize(problem.node_names)) return problem.node_names[node];
    return std::to_string(node);
}

std::string hash_of(const PlacementProblem& problem) {
    GraphHash hash;
    for (const PlacementItem& item : problem.items) {
        for (std::int64_t node : item.nodes) hash.add(static_cast<std::uint64_t>(node));
        hash.add_number(item.accelerator_time.value);
        hash.add_number(item.cpu_time.value);
        hash.add_number(item.memory.value);
        hash.add_number(item.activations.value);
        hash.add(item.runs_on_accelerator);
    }
    for (auto [before, after] : problem.precedence) hash.add(before << 32 | after);
    for (const Transfer& transfer : problem.transfers) {
        hash.add(transfer.source);
        for (std::size_t d : transfer.destinations) hash.add(d | std::uint64_t{1} << 40);
        hash.add_number(transfer.time.value);
    }
    for (const std::string& name : problem.node_names) hash.add_letters(name);
    return hash.text();
}

PlacedStage stage_of(const PlacementProblem& problem, std::vector<std::size_t> items,
                     std::size_t device_class, int in_flight) {
    const DeviceClass device = device_classes(problem)[device_class];
    PlacedStage stage{.device_class = device_class,
                      .is_cpu = device.is_cpu,
                      .items = std::move(items),
                      .load = {},
                      .memory = {}};
    std::sort(stage.items.begin(), stage.items.end());
    std::vector<char> inside(problem.items.size(), 0);
    core::Seconds work, moved;
    for (std::size_t i : stage.items) {
        const PlacementItem& item = problem.items[i];
        inside[i] = 1;
        stage.memory += item.memory + item.activations * in_flight;
        work += device.work(item);
    }
    for (const Transfer& transfer : problem.transfers) {
        auto held = std::count_if(transfer.destinations.begin(), transfer.destinations.end(),
                                  [&](std::size_t d) { return inside[d]; });
        bool sends = inside[transfer.source] && held < std::ssize(transfer.destinations);
        bool receives = !inside[transfer.source] && held > 0;
        if (sends || receives) moved += transfer.time;
    }
    stage.load = device.load(work, moved);
    return stage;
}

void settle_memory(const PlacementProblem& problem, std::vector<PlacedStage>& stages) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
        const int in_flight = std::min(problem.micro_batches, static_cast<int>(stages.size() - s));
        stages[s].memory = {};
        for (std::size_t i : stages[s].items) {
            const PlacementItem& item = problem.items[i];
            stages[s].memory += item.memory + item.activations * in_flight;
        }
    }
}

core::Seconds largest_load(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    std::vector<int> placed(problem.items.size(), 0);
    core::Seconds largest;
    for (const PlacedStage& stage : stages) {
        for (std::size_t i : stage.items) ++placed[i];
        largest = std::max(largest, stage_of(problem, stage.items, stage.device_class).load);
    }
    core::require(std::all_of(placed.begin(), placed.end(), [](int n) { return n == 1; }),
                  "a placement holds every item exactly once");
    return largest;
}

PlacementProblem weighed(const PlacementProblem& problem, double memory_weight) {
    double time = 0, memory = 0;
    for (const PlacementItem& item : problem.items) {
        time += item.accelerator_time.value;
        memory += (item.memory + item.activations).value;
    }
    PlacementProblem result = problem;
    const double per_second = time > 0 ? (1 - memory_weight) / time : 0,
                 per_byte = memory > 0 ? memory_weight / memory : 0;
    for (PlacementItem& item : result.items) {
        const double kept = (item.memory + item.activations).value * per_byte;
        item.accelerator_time = core::Seconds(item.accelerator_time.value * per_second + kept);
        item.cpu_time = core::Seconds(item.cpu_time.value * per_second + kept);
    }
    for (Transfer& transfer : result.transfers) transfer.time = transfer.time * per_second;
    return result;
}

std::string placement_infeasibility(const PlacementProblem& problem) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    int devices = 0, cpus = 0;
    core::Bytes room, largest_device, total;
    for (const DeviceClass& c : classes) {
        devices += c.count;
        cpus += c.is_cpu ? c.count : 0;
        if (c.is_cpu || c.count == 0) continue;
        room += c.most_memory() * static_cast<double>(c.count);
        largest_device = std::max(largest_device, c.most_memory());
    }
    if (devices == 0 && !problem.items.empty()) return "no device is allowed";
    for (const PlacementItem& item : problem.items) {
        const std::string node = node_name(problem, item.nodes.empty() ? -1 : item.nodes.front());
        if (!item.runs_on_accelerator && cpus == 0)
            return fmt::format("node {} runs only on a CPU and no CPU is allowed", node);
        if (cpus > 0) continue;
        const core::Bytes needed = item.memory + item.activations;
        if (needed > largest_device)
            return fmt::format(
                "node {} (with what must stay beside it) needs {:.0f} bytes, a device has {:.0f}", node,
                needed.value, largest_device.value);
        total += needed;
    }
    if (cpus == 0 && total > room)
        return fmt::format(
            "all nodes together need {:.0f} bytes, {} devices of {:.0f} have {:.0f}: at least {:.0f} devices",
            total.value, devices, largest_device.value, room.value, std::ceil(total / largest_device));
    return {};
}

}  // namespace partition
