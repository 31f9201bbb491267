#include "planner/placement.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace planner {

PlacedStage stage_of(const PlacementProblem& problem, std::vector<int> items, bool is_cpu) {
    PlacedStage stage{.is_cpu = is_cpu, .items = std::move(items), .load = {}, .memory = {}};
    std::sort(stage.items.begin(), stage.items.end());
    std::vector<char> inside(problem.items.size(), 0);
    for (int i : stage.items) {
        const PlacementItem& item = problem.items[static_cast<std::size_t>(i)];
        inside[static_cast<std::size_t>(i)] = 1;
        stage.memory += item.memory;
        stage.load += is_cpu ? item.cpu_time : item.accelerator_time;
    }
    if (is_cpu) return stage;
    for (const Transfer& transfer : problem.transfers) {
        auto held = std::count_if(transfer.destinations.begin(), transfer.destinations.end(), [&](int d) { return inside[static_cast<std::size_t>(d)]; });
        bool sends = inside[static_cast<std::size_t>(transfer.source)] && held < std::ssize(transfer.destinations);
        bool receives = !inside[static_cast<std::size_t>(transfer.source)] && held > 0;
        if (sends || receives) stage.load += transfer.time;
    }
    return stage;
}

core::Seconds largest_load(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    std::vector<int> placed(problem.items.size(), 0);
    core::Seconds largest;
    for (const PlacedStage& stage : stages) {
        for (int i : stage.items) ++placed[static_cast<std::size_t>(i)];
        largest = std::max(largest, stage_of(problem, stage.items, stage.is_cpu).load);
    }
    core::require(std::all_of(placed.begin(), placed.end(), [](int n) { return n == 1; }), "a placement holds every item exactly once");
    return largest;
}

core::Seconds placement_lower_bound(const PlacementProblem& problem) {
    // Fractional relaxation without transfers: a load T is possible only if the work that must stay on accelerators fits in accelerators * T. CPUs are filled
    // with what saves most accelerator time per CPU time, pieces allowed.
    double total = 0, must_be_on_cpu = 0, largest = 0;
    std::vector<std::pair<double, double>> movable;  // (cpu time, accelerator time)
    for (const PlacementItem& item : problem.items) {
        double cpu = problem.cpus > 0 ? item.cpu_time.value : std::numeric_limits<double>::infinity();
        if (item.runs_on_accelerator) {
            total += item.accelerator_time.value;
            largest = std::max(largest, problem.accelerators > 0 ? std::min(cpu, item.accelerator_time.value) : cpu);
            if (item.accelerator_time.value > 0) movable.emplace_back(cpu, item.accelerator_time.value);
        } else {
            must_be_on_cpu += cpu;
            largest = std::max(largest, cpu);
        }
    }
    std::sort(movable.begin(), movable.end(), [](auto a, auto b) { return a.second * b.first > b.second * a.first; });
    auto is_possible = [&](double load) {
        double room = problem.cpus * load - must_be_on_cpu, left = total;
        if (room < -1e-12 * load) return false;
        if (problem.cpus > 0)
            for (auto [cpu, accelerator] : movable) {
                if (cpu > room) {
                    left -= room > 0 ? accelerator * room / cpu : 0;
                    break;
                }
                room -= cpu;
                left -= accelerator;
            }
        return left <= problem.accelerators * load * (1 + 1e-12);
    };
    double low = largest, high = std::max(largest, total + must_be_on_cpu);
    if (is_possible(low)) return core::Seconds(low);
    while (!is_possible(high) && high < 1e300) high = high > 0 ? 2 * high : 1;
    for (int i = 0; i < 100 && high - low > 1e-13 * high; ++i) {
        double middle = 0.5 * (low + high);
        (is_possible(middle) ? high : low) = middle;
    }
    return core::Seconds(low);
}

std::string placement_obstacle(const PlacementProblem& problem) {
    core::Bytes total;
    for (const PlacementItem& item : problem.items) {
        std::int64_t node = item.nodes.empty() ? -1 : item.nodes.front();
        if (!item.runs_on_accelerator && problem.cpus == 0) return fmt::format("node {} runs only on a CPU and no CPU is allowed", node);
        if (problem.cpus > 0) continue;
        if (item.memory > problem.memory_limit)
            return fmt::format("node {} (with what must stay beside it) needs {:.0f} bytes, a device has {:.0f}", node, item.memory.value,
                               problem.memory_limit.value);
        total += item.memory;
    }
    if (problem.accelerators == 0 && problem.cpus == 0) return "no device is allowed";
    if (problem.cpus == 0 && total > problem.memory_limit * static_cast<double>(problem.accelerators))
        return fmt::format("all nodes together need {:.0f} bytes, {} devices of {:.0f} have {:.0f}: at least {:.0f} devices", total.value, problem.accelerators,
                           problem.memory_limit.value, problem.memory_limit.value * problem.accelerators, std::ceil(total / problem.memory_limit));
    return {};
}

}  // namespace planner
