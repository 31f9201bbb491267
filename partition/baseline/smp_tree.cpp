#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "core/errors.h"
#include "core/index/integers.h"
#include "model/model_graph.h"
#include "partition/baseline/baseline_placement.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Consecutive runs of least largest cost: first[s] is where run s begins.
std::vector<std::size_t> cut(const std::vector<double>& cost, std::size_t runs) {
    const std::size_t n = cost.size();
    std::vector<double> sum(n + 1, 0);
    for (std::size_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + cost[i];
    std::vector<std::vector<double>> best(runs + 1, std::vector<double>(n + 1, infinity));
    std::vector<std::vector<std::size_t>> from(runs + 1, std::vector<std::size_t>(n + 1, 0));
    best[0][0] = 0;
    for (std::size_t s = 1; s <= runs; ++s)
        for (std::size_t j = s; j <= n; ++j)
            for (std::size_t i = s - 1; i < j; ++i) {
                const double value = std::max(best[s - 1][i], sum[j] - sum[i]);
                if (value < best[s][j]) best[s][j] = value, from[s][j] = i;
            }
    std::vector<std::size_t> first(runs);
    for (std::size_t s = runs, j = n; s > 0; --s) first[s - 1] = j = from[s][j];
    return first;
}

// D'Hondt after one each: the next device goes to the largest cost / (devices it has + 1); ties to the
// earlier.
std::vector<std::size_t> deal(const std::vector<double>& cost, std::size_t devices) {
    std::vector<std::size_t> given(cost.size(), 1);
    for (std::size_t d = cost.size(); d < devices; ++d) {
        std::size_t best = 0;
        for (std::size_t s = 1; s < cost.size(); ++s)
            if (cost[s] / (given[s] + 1) > cost[best] / (given[best] + 1)) best = s;
        ++given[best];
    }
    return given;
}

class TreePartitioner {
public:
    TreePartitioner(const PlacementProblem& problem, const ModuleTree& tree, double memory_weight)
        : tree_(tree), device_(problem.items.size(), 0) {
        double time = 0, memory = 0;
        for (const PlacementItem& item : problem.items) {
            time += item.accelerator_time.value;
            memory += (item.memory + item.activations).value;
        }
        std::vector<double> own;
        for (const PlacementItem& item : problem.items)
            own.push_back((memory > 0 ? memory_weight * (item.memory + item.activations).value / memory : 0) +
                          (time > 0 ? (1 - memory_weight) * item.accelerator_time.value / time : 0));
        cost_.assign(tree.modules.size(), 0);
        for (std::size_t m = tree.modules.size(); m-- > 0;) {  // children are numbered after their parents
            for (std::size_t item : tree.modules[m].items) cost_[m] += own[item];
            for (std::size_t child : tree.modules[m].children) cost_[m] += cost_[child];
        }
    }

    // The device of each item.
    std::vector<std::size_t> run(std::size_t devices) {
        divide({0}, 0, devices);
        return device_;
    }

private:
    void assign(std::size_t module, std::size_t device) {
        for (std::size_t item : tree_.modules[module].items) device_[item] = device;
        for (std::size_t child : tree_.modules[module].children) assign(child, device);
    }
    void divide(std::vector<std::size_t> modules, std::size_t first_device, std::size_t devices) {
        // One module on several devices is its children; what it holds itself runs with the first.
        while (modules.size() == 1 && devices > 1) {
            const ModuleTree::Module& module = tree_.modules[modules.front()];
            if (module.children.empty()) break;
            for (std::size_t item : module.items) device_[item] = first_device;
            modules = module.children;
        }
        if (devices == 1 || modules.size() == 1) {
            for (std::size_t module : modules) assign(module, first_device);
            return;
        }
        std::vector<double> cost;
        for (std::size_t module : modules) cost.push_back(cost_[module]);
        const std::size_t runs = std::min(modules.size(), devices);
        std::vector<std::size_t> first = cut(cost, runs);
        first.push_back(modules.size());
        std::vector<double> run_cost;
        for (std::size_t s = 0; s < runs; ++s)
            run_cost.push_back(std::accumulate(cost.begin() + static_cast<std::ptrdiff_t>(first[s]),
                                               cost.begin() + static_cast<std::ptrdiff_t>(first[s + 1]),
                                               0.0));
        const std::vector<std::size_t> given = deal(run_cost, devices);
        std::size_t device = first_device;
        for (std::size_t s = 0; s < runs; ++s) {
            std::vector<std::size_t> part(modules.begin() + static_cast<std::ptrdiff_t>(first[s]),
                                          modules.begin() + static_cast<std::ptrdiff_t>(first[s + 1]));
            divide(std::move(part), device, given[s]);
            device += given[s];
        }
    }

    const ModuleTree& tree_;
    std::vector<double> cost_;
    std::vector<std::size_t> device_;
};

}  // namespace

ModuleTree flat_tree(const PlacementProblem& problem) {
    ModuleTree tree;
    tree.modules.resize(problem.items.size() + 1);
    for (std::size_t i = 0; i < problem.items.size(); ++i) {
        tree.modules[0].children.push_back(i + 1);
        tree.modules[i + 1].items.push_back(i);
    }
    return tree;
}

ModuleTree module_tree(const model::ModelGraph& graph, const ModelPlacement& placement) {
    ModuleTree tree;
    tree.modules.resize(graph.modules.size());
    for (const std::int32_t m : core::indices(graph.modules)) {
        for (std::int32_t child : graph.modules[m].children) {
            core::require(child > m, "modules are numbered after their parents");
            tree.modules[m].children.push_back(child);
        }
    }
    // Innermost module of an item's first operator.
    for (std::size_t i = 0; i < placement.problem.items.size(); ++i) {
        std::optional<int> first;
        for (std::int64_t node : placement.problem.items[i].nodes)
            for (int op : placement.operators[node]) first = std::min(op, first.value_or(op));
        std::size_t at = 0;
        for (bool goes_deeper = first.has_value(); goes_deeper;) {
            goes_deeper = false;
            for (std::int32_t child : graph.modules[at].children) {
                const model::OperatorRange range = graph.modules[child].operators;
                if (*first < range.begin || *first >= range.end) continue;
                at = child;
                goes_deeper = true;
                break;
            }
        }
        tree.modules[at].items.push_back(i);
    }
    return tree;
}

std::vector<PlacedStage> place_smp_tree(const PlacementProblem& problem, const ModuleTree& tree,
                                        double memory_weight) {
    const std::vector<std::size_t> class_of_device = classes_of_accelerators(problem);
    if (class_of_device.empty()) return {};
    TreePartitioner partitioner(problem, tree, memory_weight);
    return stages_of(problem, partitioner.run(class_of_device.size()), class_of_device);
}

}  // namespace partition
