#include "partition/model_placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include <fmt/core.h>
#include <boost/pending/disjoint_sets.hpp>

#include "model/operators/cost.h"
#include "partition/reader/components.h"
#include "schedule/plan/memory.h"
#include "sim/cost/compute.h"

namespace partition {

namespace {

bool is_input(const model::Operator& op) { return op.kind == model::OperatorKind::input; }

// Group of every operator; -1 for the data loader's, which every stage reads by itself.
std::vector<int> group_operators(const model::ModelGraph& graph, Granularity granularity,
                                 std::vector<std::string>& names) {
    const int count = static_cast<int>(graph.operators.size());
    std::vector<int> group(graph.operators.size(), -1);
    names.clear();
    if (granularity == Granularity::unit) {
        for (std::size_t u = 0; u < graph.units.size(); ++u) {
            names.push_back(graph.units[u].name);
            for (int i = graph.units[u].operators.begin; i < graph.units[u].operators.end; ++i)
                if (!is_input(graph.operators[static_cast<std::size_t>(i)]))
                    group[static_cast<std::size_t>(i)] = static_cast<int>(u);
        }
        return group;
    }
    // Leaves: every operator, or those that own parameters.
    auto is_leaf = [&](int i) {
        const model::Operator& op = graph.operators[static_cast<std::size_t>(i)];
        return !is_input(op) && (granularity == Granularity::operation || !op.parameters.empty());
    };
    for (int i = 0; i < count; ++i)
        if (is_leaf(i)) {
            group[static_cast<std::size_t>(i)] = static_cast<int>(names.size());
            names.push_back(graph.operators[static_cast<std::size_t>(i)].name);
        }
    if (granularity == Granularity::operation) return group;
    // The rest: the leaf before it in the nearest module around it that has leaves, else the leaf after it.
    std::vector<std::vector<int>> around(graph.operators.size());  // modules, innermost first
    for (std::size_t m = graph.modules.size(); m-- > 0;)
        for (int i = graph.modules[m].operators.begin; i < graph.modules[m].operators.end; ++i)
            if (graph.modules[m].operators.size() > 1 || m == 0)
                around[static_cast<std::size_t>(i)].push_back(static_cast<int>(m));
    for (int i = 0; i < count; ++i) {
        if (group[static_cast<std::size_t>(i)] >= 0 || is_input(graph.operators[static_cast<std::size_t>(i)]))
            continue;
        int chosen = -1;
        for (int m : around[static_cast<std::size_t>(i)]) {
            const model::OperatorRange range = graph.modules[static_cast<std::size_t>(m)].operators;
            for (int j = i - 1; j >= range.begin && chosen < 0; --j)
                if (is_leaf(j)) chosen = j;
            for (int j = i + 1; j < range.end && chosen < 0; ++j)
                if (is_leaf(j)) chosen = j;
            if (chosen >= 0) break;
        }
        if (chosen >= 0) group[static_cast<std::size_t>(i)] = group[static_cast<std::size_t>(chosen)];
    }
    if (names.empty()) {  // a model without parameters
        names.push_back(graph.name);
        for (int i = 0; i < count; ++i)
            if (!is_input(graph.operators[static_cast<std::size_t>(i)]))
                group[static_cast<std::size_t>(i)] = 0;
    }
    return group;
}

// Of every group the smallest of those that must stay on its device.
std::vector<int> united(int count, const std::vector<std::vector<int>>& together) {
    std::vector<int> groups(static_cast<std::size_t>(count)), rank(groups.size()), parent(groups.size());
    std::iota(groups.begin(), groups.end(), 0);
    boost::disjoint_sets<int*, int*> sets(rank.data(), parent.data());
    for (int group : groups) sets.make_set(group);
    for (const std::vector<int>& set : together)
        for (int group : set) sets.union_set(set.front(), group);
    sets.compress_sets(groups.begin(), groups.end());
    sets.normalize_sets(groups.begin(), groups.end());
    return parent;
}

}  // namespace

std::optional<ModelPlacement> model_placement(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                              const schedule::Plan& plan, int devices,
                                              Granularity granularity, TiedParameters tied,
                                              core::Diagnostics& diagnostics) {
    const std::optional<sim::ComputeCost> cost =
        sim::ComputeCost::make(graph, cluster.instance.device, plan, diagnostics);
    if (!cost) return std::nullopt;
    ModelPlacement result;
    PlacementProblem& problem = result.problem;
    result.assumptions = cost->assumptions();
    const std::vector<int> group = group_operators(graph, granularity, problem.node_names);
    const int groups = static_cast<int>(problem.node_names.size());
    result.operators.resize(static_cast<std::size_t>(groups));
    for (std::size_t i = 0; i < group.size(); ++i)
        if (group[i] >= 0)
            result.operators[static_cast<std::size_t>(group[i])].push_back(static_cast<int>(i));

    std::vector<std::vector<int>> users(graph.parameters.size());
    for (std::size_t i = 0; i < graph.operators.size(); ++i)
        for (model::ParameterId p : graph.operators[i].parameters)
            if (group[i] >= 0) users[static_cast<std::size_t>(p.index)].push_back(group[i]);
    std::vector<std::vector<int>> together;
    for (std::size_t p = 0; p < users.size(); ++p) {
        std::sort(users[p].begin(), users[p].end());
        users[p].erase(std::unique(users[p].begin(), users[p].end()), users[p].end());
        if (users[p].size() < 2) continue;
        if (tied == TiedParameters::together) together.push_back(users[p]);
        else
            result.assumptions.push_back(
                fmt::format("tied parameter {} is kept by every stage that uses it, its gradients summed",
                            graph.parameters[p].name));
    }
    const std::vector<int> root = united(groups, together);

    // Groups on a cycle (a module whose parts enclose another) are one item, as are those that stay together
    // with what lies between them.
    std::vector<std::pair<int, int>> edges;
    auto group_of = [&](model::OperatorId op) {
        return op.index < 0 ? -1 : group[static_cast<std::size_t>(op.index)];
    };
    for (const model::Tensor& tensor : graph.tensors) {
        const int from = group_of(tensor.producer);
        if (from < 0) continue;
        for (model::OperatorId consumer : tensor.consumers)
            if (const int to = group_of(consumer);
                to >= 0 && root[static_cast<std::size_t>(to)] != root[static_cast<std::size_t>(from)])
                edges.emplace_back(root[static_cast<std::size_t>(from)], root[static_cast<std::size_t>(to)]);
    }
    // Roots only: a group that is not its own root has no edges and would be an item of its own.
    std::vector<int> kept, position(static_cast<std::size_t>(groups), -1);
    for (int g = 0; g < groups; ++g)
        if (root[static_cast<std::size_t>(g)] == g) {
            position[static_cast<std::size_t>(g)] = static_cast<int>(kept.size());
            kept.push_back(g);
        }
    for (auto& [from, to] : edges)
        from = position[static_cast<std::size_t>(from)], to = position[static_cast<std::size_t>(to)];
    const std::vector<int> component = strong_components(kept.size(), edges);
    const std::vector<int> number = topological_numbers(component, edges);
    std::vector<int> item_of(static_cast<std::size_t>(groups));
    for (int g = 0; g < groups; ++g)
        item_of[static_cast<std::size_t>(g)] =
            number[static_cast<std::size_t>(component[static_cast<std::size_t>(
                position[static_cast<std::size_t>(root[static_cast<std::size_t>(g)])])])];
    problem.items.resize(
        number.empty() ? 0 : static_cast<std::size_t>(*std::max_element(number.begin(), number.end())) + 1);
    for (int g = 0; g < groups; ++g)
        problem.items[static_cast<std::size_t>(item_of[static_cast<std::size_t>(g)])].nodes.push_back(g);

    // Work and memory.
    const model::OperatorRange whole{0, static_cast<std::int32_t>(graph.operators.size())};
    const schedule::StateFootprint state = schedule::state_footprint(graph, whole, plan);
    const double elements =
        static_cast<double>(std::max<std::int64_t>(1, model::trained_parameter_count(graph)));
    const double state_per_element = (state.parameters + state.gradients + state.optimizer).value / elements;
    const model::CostContext context = plan.cost_context();
    std::vector<std::set<std::int32_t>> saved(problem.items.size()), parameters(problem.items.size());
    for (std::int32_t i = 0; i < whole.end; ++i) {
        if (group[static_cast<std::size_t>(i)] < 0) continue;
        const std::size_t at =
            static_cast<std::size_t>(item_of[static_cast<std::size_t>(group[static_cast<std::size_t>(i)])]);
        PlacementItem& item = problem.items[at];
        const model::OperatorRange one{i, i + 1};
        item.accelerator_time += cost->price(one, schedule::ComputePhase::forward).time() +
                                 cost->price(one, schedule::ComputePhase::backward).time();
        if (plan.recompute == schedule::Recompute::full)
            item.accelerator_time += cost->price(one, schedule::ComputePhase::recompute).time();
        for (model::ParameterId p : graph.operators[static_cast<std::size_t>(i)].parameters)
            if (parameters[at].insert(p.index).second)
                item.memory += core::Bytes(static_cast<double>(model::parameter_elements(graph, p, context)) *
                                           state_per_element);
        if (plan.recompute == schedule::Recompute::full) continue;  // the inputs of units, counted below
        const model::SavedForBackward kept_tensors =
            model::saved_for_backward(graph, model::OperatorId(i), context);
        item.activations += kept_tensors.extra;
        for (model::TensorId t : kept_tensors.tensors)
            if (saved[at].insert(model::storage_of(graph, t).index).second)
                item.activations += model::tensor_bytes(graph, t, context);
    }

    // Transfers: every tensor once to each device that needs it, its gradient back.
    const bool is_one_node = devices <= cluster.instance.devices;
    const cluster::Route link = cluster::route(
        cluster, cluster::DeviceId(0),
        cluster::DeviceId(is_one_node || cluster.nodes == 1 ? std::min(1, cluster.instance.devices - 1)
                                                            : cluster.instance.devices));
    std::set<std::pair<int, int>> precedence;
    for (auto [from, to] : edges) {
        const int a = number[static_cast<std::size_t>(component[static_cast<std::size_t>(from)])],
                  b = number[static_cast<std::size_t>(component[static_cast<std::size_t>(to)])];
        if (a != b) precedence.emplace(a, b);
    }
    problem.precedence.assign(precedence.begin(), precedence.end());
    std::map<std::pair<int, std::vector<int>>, Transfer> transfers;
    for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
        const model::Tensor& tensor = graph.tensors[t];
        const int from_group = group_of(tensor.producer);
        if (from_group < 0) continue;
        const int from = item_of[static_cast<std::size_t>(from_group)];
        std::set<int> to;
        for (model::OperatorId consumer : tensor.consumers)
            if (const int g = group_of(consumer); g >= 0 && item_of[static_cast<std::size_t>(g)] != from)
                to.insert(item_of[static_cast<std::size_t>(g)]);
        if (to.empty()) continue;
        const core::Bytes bytes =
            model::tensor_bytes(graph, model::TensorId(static_cast<std::int32_t>(t)), context);
        if (plan.recompute == schedule::Recompute::full)
            for (int holder : to) problem.items[static_cast<std::size_t>(holder)].activations += bytes;
        const double ways = tensor.is_activation ? 2 : 1;
        Transfer& transfer = transfers[{from, std::vector<int>(to.begin(), to.end())}];
        transfer.time += (link.latency + bytes / link.bandwidth) * ways;
        transfer.bytes += bytes * ways;
    }
    for (auto& [ends, transfer] : transfers) {
        transfer.source = ends.first;
        transfer.destinations = ends.second;
        problem.transfers.push_back(transfer);
    }
    problem.accelerators = devices;
    problem.memory_limit = cluster.instance.device.memory;
    problem.micro_batches = plan.micro_batches;
    return result;
}

std::vector<std::int32_t> first_units_of(const model::ModelGraph& graph, const ModelPlacement& placement,
                                         const std::vector<PlacedStage>& stages) {
    std::vector<int> stage_of_operator(graph.operators.size(), -1);
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (int item : stages[s].items)
            for (std::int64_t node : placement.problem.items[static_cast<std::size_t>(item)].nodes)
                for (int op : placement.operators[static_cast<std::size_t>(node)])
                    stage_of_operator[static_cast<std::size_t>(op)] = static_cast<int>(s);
    std::vector<std::int32_t> first;
    int current = -1;
    for (std::size_t u = 0; u < graph.units.size(); ++u) {
        int of_unit = -1;
        for (int i = graph.units[u].operators.begin; i < graph.units[u].operators.end; ++i) {
            const int s = stage_of_operator[static_cast<std::size_t>(i)];
            if (s < 0) continue;
            if (of_unit >= 0 && s != of_unit) return {};
            of_unit = s;
        }
        if (of_unit < 0 || of_unit == current) continue;
        if (of_unit != current + 1) return {};
        first.push_back(current < 0 ? 0 : static_cast<std::int32_t>(u));
        current = of_unit;
    }
    return first.size() == stages.size() ? first : std::vector<std::int32_t>();
}

}  // namespace partition
