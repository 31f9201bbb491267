#include "partition/model_placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include <fmt/core.h>
#include <boost/pending/disjoint_sets.hpp>

#include "core/index/integers.h"
#include "model/operators/cost.h"
#include "partition/reader/components.h"
#include "schedule/plan/memory.h"
#include "sim/cost/compute.h"

namespace partition {

namespace {

bool is_input(const model::Operator& op) { return op.kind == model::OperatorKind::input; }

using Group = std::optional<std::size_t>;

// Group of every operator; none for the data loader's, which every stage reads by itself.
std::vector<Group> group_by_unit(const model::ModelGraph& graph, std::vector<std::string>& names) {
    std::vector<Group> group(graph.operators.size());
    for (std::size_t u = 0; u < graph.units.size(); ++u) {
        names.push_back(graph.units[u].name);
        for (int i = graph.units[u].operators.begin; i < graph.units[u].operators.end; ++i)
            if (!is_input(graph.operators[i])) group[i] = u;
    }
    return group;
}

// The leaf whose group an operator without a group of its own joins: the last leaf before it in the innermost
// of the modules around it that has leaves, else the first leaf after it there.
template <class IsLeaf>
std::optional<int> leaf_beside(const model::ModelGraph& graph, int op,
                               const std::vector<std::size_t>& modules, IsLeaf is_leaf) {
    for (std::size_t m : modules) {
        const model::OperatorRange range = graph.modules[m].operators;
        for (int j = op - 1; j >= range.begin; --j)
            if (is_leaf(j)) return j;
        for (int j = op + 1; j < range.end; ++j)
            if (is_leaf(j)) return j;
    }
    return std::nullopt;
}

std::vector<Group> group_operators(const model::ModelGraph& graph, Granularity granularity,
                                   std::vector<std::string>& names) {
    if (granularity == Granularity::unit) return group_by_unit(graph, names);
    const int count = core::count_of(graph.operators);
    std::vector<Group> group(graph.operators.size());
    // Leaves: every operator, or those that own parameters.
    auto is_leaf = [&](int i) {
        const model::Operator& op = graph.operators[i];
        return !is_input(op) && (granularity == Granularity::operation || !op.parameters.empty());
    };
    for (int i = 0; i < count; ++i)
        if (is_leaf(i)) {
            group[i] = names.size();
            names.push_back(graph.operators[i].name);
        }
    if (granularity == Granularity::operation) return group;
    std::vector<std::vector<std::size_t>> around(graph.operators.size());  // modules, innermost first
    for (std::size_t m = graph.modules.size(); m-- > 0;)
        for (int i = graph.modules[m].operators.begin; i < graph.modules[m].operators.end; ++i)
            if (graph.modules[m].operators.size() > 1 || m == 0) around[i].push_back(m);
    for (int i = 0; i < count; ++i) {
        if (group[i] || is_input(graph.operators[i])) continue;
        if (const auto leaf = leaf_beside(graph, i, around[i], is_leaf)) group[i] = group[*leaf];
    }
    if (names.empty()) {  // a model without parameters
        names.push_back(graph.name);
        for (int i = 0; i < count; ++i)
            if (!is_input(graph.operators[i])) group[i] = 0;
    }
    return group;
}

// Of every group the smallest of those that must stay on its device.
std::vector<std::size_t> united(std::size_t count, const std::vector<std::vector<std::size_t>>& together) {
    std::vector<std::size_t> groups(count), rank(count), parent(count);
    std::iota(groups.begin(), groups.end(), std::size_t{0});
    boost::disjoint_sets<std::size_t*, std::size_t*> sets(rank.data(), parent.data());
    for (std::size_t group : groups) sets.make_set(group);
    for (const std::vector<std::size_t>& set : together)
        for (std::size_t group : set) sets.union_set(set.front(), group);
    sets.compress_sets(groups.begin(), groups.end());
    sets.normalize_sets(groups.begin(), groups.end());
    return parent;
}

// A model graph as a placement problem, part by part.
class PlacementBuilder {
public:
    PlacementBuilder(const model::ModelGraph& graph, const schedule::Plan& plan, Granularity granularity)
        : graph_(graph),
          plan_(plan),
          context_(plan.cost_context()),
          group_(group_operators(graph, granularity, problem().node_names)) {
        result_.operators.resize(groups());
        for (const std::int32_t i : core::indices(group_))
            if (group_[i]) result_.operators[*group_[i]].push_back(i);
    }

    void make_items(TiedParameters tied);
    void add_work_and_memory(const sim::ComputeCost& cost);
    void add_transfers(const cluster::Route& link);
    PlacementProblem& problem() { return result_.problem; }
    std::vector<std::string>& assumptions() { return result_.assumptions; }
    ModelPlacement take() { return std::move(result_); }

private:
    std::size_t groups() const { return result_.problem.node_names.size(); }
    Group group_of(model::OperatorId op) const { return op.index < 0 ? std::nullopt : group_[op.index]; }
    std::vector<std::vector<std::size_t>> groups_with_tied_parameters(TiedParameters tied);

    const model::ModelGraph& graph_;
    const schedule::Plan& plan_;
    const model::CostContext context_;
    ModelPlacement result_;
    const std::vector<Group> group_;    // of every operator
    std::vector<std::size_t> item_of_;  // of every group
};

// Groups that must stay together because they use one parameter; copies are assumptions.
std::vector<std::vector<std::size_t>> PlacementBuilder::groups_with_tied_parameters(TiedParameters tied) {
    std::vector<std::set<std::size_t>> users(graph_.parameters.size());
    for (std::size_t i = 0; i < graph_.operators.size(); ++i)
        for (model::ParameterId p : graph_.operators[i].parameters)
            if (group_[i]) users[p.index].insert(*group_[i]);
    std::vector<std::vector<std::size_t>> together;
    for (std::size_t p = 0; p < users.size(); ++p) {
        if (users[p].size() < 2) continue;
        if (tied == TiedParameters::together) together.emplace_back(users[p].begin(), users[p].end());
        else
            result_.assumptions.push_back(
                fmt::format("tied parameter {} is kept by every stage that uses it, its gradients summed",
                            graph_.parameters[p].name));
    }
    return together;
}

// Groups on a cycle (a module whose parts enclose another) are one item, as are those that stay together with
// what lies between them.
void PlacementBuilder::make_items(TiedParameters tied) {
    const std::vector<std::size_t> root = united(groups(), groups_with_tied_parameters(tied));
    // Roots only: a group that is not its own root has no edges and would be an item of its own.
    std::vector<std::size_t> position(groups());
    std::size_t roots = 0;
    for (std::size_t g = 0; g < groups(); ++g)
        if (root[g] == g) position[g] = roots++;
    std::vector<Edge> edges;
    for (const model::Tensor& tensor : graph_.tensors) {
        const Group from = group_of(tensor.producer);
        if (!from) continue;
        for (model::OperatorId consumer : tensor.consumers)
            if (const Group to = group_of(consumer); to && root[*to] != root[*from])
                edges.emplace_back(position[root[*from]], position[root[*to]]);
    }
    const std::vector<std::size_t> item_of_root = item_of_groups(roots, edges, false);
    for (std::size_t g = 0; g < groups(); ++g) item_of_.push_back(item_of_root[position[root[g]]]);
    problem().items.resize(roots == 0 ? 0 : *std::max_element(item_of_root.begin(), item_of_root.end()) + 1);
    for (std::size_t g = 0; g < groups(); ++g)
        problem().items[item_of_[g]].nodes.push_back(static_cast<std::int64_t>(g));
    std::set<Edge> precedence;
    for (auto [from, to] : edges)
        if (item_of_root[from] != item_of_root[to]) precedence.emplace(item_of_root[from], item_of_root[to]);
    problem().precedence.assign(precedence.begin(), precedence.end());
}

void PlacementBuilder::add_work_and_memory(const sim::ComputeCost& cost) {
    const model::OperatorRange whole{0, core::count_of(graph_.operators)};
    const schedule::StateFootprint state = schedule::state_footprint(graph_, whole, plan_);
    const double elements =
        static_cast<double>(std::max<std::int64_t>(1, model::trained_parameter_count(graph_)));
    const double state_per_element = (state.parameters + state.gradients + state.optimizer).value / elements;
    const bool recomputes = plan_.recompute == schedule::Recompute::full;
    std::vector<std::set<std::int32_t>> saved(problem().items.size()), parameters(problem().items.size());
    for (std::int32_t i = 0; i < whole.end; ++i) {
        if (!group_[i]) continue;
        const std::size_t at = item_of_[*group_[i]];
        PlacementItem& item = problem().items[at];
        const model::OperatorRange one{i, i + 1};
        item.accelerator_time += cost.price(one, schedule::ComputePhase::forward).time() +
                                 cost.price(one, schedule::ComputePhase::backward).time();
        if (recomputes) item.accelerator_time += cost.price(one, schedule::ComputePhase::recompute).time();
        for (model::ParameterId p : graph_.operators[i].parameters)
            if (parameters[at].insert(p.index).second)
                item.memory += core::Bytes(
                    static_cast<double>(model::parameter_elements(graph_, p, context_)) * state_per_element);
        if (recomputes) continue;  // the inputs of units, counted with the transfers
        const model::SavedForBackward kept =
            model::saved_for_backward(graph_, model::OperatorId(i), context_);
        item.activations += kept.saved_context;
        for (model::TensorId t : kept.tensors)
            if (saved[at].insert(model::storage_of(graph_, t).index).second)
                item.activations += model::tensor_bytes(graph_, t, context_);
    }
}

// Every tensor once to each device that needs it, its gradient back.
void PlacementBuilder::add_transfers(const cluster::Route& link) {
    std::map<std::pair<std::size_t, std::vector<std::size_t>>, Transfer> transfers;
    for (const std::int32_t t : core::indices(graph_.tensors)) {
        const model::Tensor& tensor = graph_.tensors[t];
        const Group from_group = group_of(tensor.producer);
        if (!from_group) continue;
        const std::size_t from = item_of_[*from_group];
        std::set<std::size_t> to;
        for (model::OperatorId consumer : tensor.consumers)
            if (const Group g = group_of(consumer); g && item_of_[*g] != from) to.insert(item_of_[*g]);
        if (to.empty()) continue;
        const core::Bytes bytes = model::tensor_bytes(graph_, model::TensorId(t), context_);
        if (plan_.recompute == schedule::Recompute::full)
            for (std::size_t holder : to) problem().items[holder].activations += bytes;
        const double directions = tensor.is_activation ? 2 : 1;
        Transfer& transfer = transfers[{from, {to.begin(), to.end()}}];
        transfer.time += (link.latency + bytes / link.bandwidth) * directions;
        transfer.bytes += bytes * directions;
    }
    for (auto& [ends, transfer] : transfers) {
        transfer.source = ends.first;
        transfer.destinations = ends.second;
        problem().transfers.push_back(transfer);
    }
}

}  // namespace

std::optional<ModelPlacement> model_placement(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                              const schedule::Plan& plan, int devices,
                                              Granularity granularity, TiedParameters tied,
                                              core::Diagnostics& diagnostics) {
    const std::optional<sim::ComputeCost> cost =
        sim::ComputeCost::make(graph, cluster.instance.device, plan, diagnostics);
    if (!cost) return std::nullopt;
    PlacementBuilder builder(graph, plan, granularity);
    builder.assumptions() = cost->assumptions();
    builder.make_items(tied);
    builder.add_work_and_memory(*cost);
    const bool is_one_node = devices <= cluster.instance.devices || cluster.nodes == 1;
    const int other_end = is_one_node ? std::min(1, cluster.instance.devices - 1) : cluster.instance.devices;
    builder.add_transfers(cluster::route(cluster, cluster::DeviceId(0), cluster::DeviceId(other_end)));
    builder.problem().accelerators = devices;
    builder.problem().memory_limit = cluster.instance.device.memory;
    builder.problem().micro_batches = plan.micro_batches;
    return builder.take();
}

std::vector<std::int32_t> first_units_of(const model::ModelGraph& graph, const ModelPlacement& placement,
                                         const std::vector<PlacedStage>& stages) {
    std::vector<std::optional<std::size_t>> stage_of_operator(graph.operators.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (std::size_t item : stages[s].items)
            for (std::int64_t node : placement.problem.items[item].nodes)
                for (int op : placement.operators[node]) stage_of_operator[op] = s;
    std::vector<std::int32_t> first;
    for (const std::int32_t u : core::indices(graph.units)) {
        std::optional<std::size_t> of_unit;
        for (int i = graph.units[u].operators.begin; i < graph.units[u].operators.end; ++i) {
            const std::optional<std::size_t> stage = stage_of_operator[i];
            if (!stage) continue;
            if (of_unit && stage != of_unit) return {};
            of_unit = stage;
        }
        if (!of_unit || *of_unit + 1 == first.size()) continue;
        if (*of_unit != first.size()) return {};
        first.push_back(first.empty() ? 0 : u);
    }
    return first.size() == stages.size() ? first : std::vector<std::int32_t>();
}

}  // namespace partition
