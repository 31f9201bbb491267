#include "planner/linear_placement.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <queue>

#include "planner/baseline_placement.h"

namespace planner {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Kahn's algorithm with a stack or a queue of ready items; `from_sinks` walks the reversed graph and reverses the answer.
std::vector<int> topological_order(const PlacementProblem& problem, bool is_depth_first, bool from_sinks, bool largest_first) {
    std::size_t n = problem.items.size();
    std::vector<std::vector<int>> next(n);
    std::vector<int> waiting(n, 0);
    for (auto [before, after] : problem.precedence) {
        int from = from_sinks ? after : before, to = from_sinks ? before : after;
        next[static_cast<std::size_t>(from)].push_back(to);
        ++waiting[static_cast<std::size_t>(to)];
    }
    std::deque<int> ready;
    for (std::size_t i = 0; i < n; ++i)
        if (waiting[i] == 0) ready.push_back(static_cast<int>(i));
    std::vector<int> order;
    while (!ready.empty()) {
        int item = is_depth_first ? ready.back() : ready.front();
        if (is_depth_first) ready.pop_back();
        else ready.pop_front();
        order.push_back(item);
        std::vector<int>& list = next[static_cast<std::size_t>(item)];
        std::sort(list.begin(), list.end());
        if (largest_first) std::reverse(list.begin(), list.end());
        for (int s : list)
            if (--waiting[static_cast<std::size_t>(s)] == 0) ready.push_back(s);
    }
    if (from_sinks) std::reverse(order.begin(), order.end());
    return order;
}

struct Choice {
    double value = infinity;
    int from = -1;
    int device_class = 0;
};

// How many devices of each class are used, as one number.
class Layers {
public:
    explicit Layers(const std::vector<DeviceClass>& classes) {
        for (const DeviceClass& c : classes) {
            stride_.push_back(size_);
            size_ *= static_cast<std::size_t>(c.count) + 1;
        }
        for (std::size_t l = 0; l < size_; ++l) {
            used_.emplace_back();
            total_.push_back(0);
            for (std::size_t c = 0; c < classes.size(); ++c) {
                used_.back().push_back(static_cast<int>(l / stride_[c] % (static_cast<std::size_t>(classes[c].count) + 1)));
                total_.back() += used_.back().back();
            }
        }
    }
    std::size_t size() const { return size_; }
    std::size_t stride(std::size_t c) const { return stride_[c]; }
    int used(std::size_t layer, std::size_t c) const { return used_[layer][c]; }
    int total(std::size_t layer) const { return total_[layer]; }

private:
    std::size_t size_ = 1;
    std::vector<std::size_t> stride_;
    std::vector<std::vector<int>> used_;
    std::vector<int> total_;
};

// Smallest largest load with the items in this order: best[layer][i] for the first i items.
double place_on_order(const PlacementProblem& problem, const std::vector<DeviceClass>& classes, const Layers& layers, const std::vector<int>& order,
                      std::vector<PlacedStage>& stages) {
    const std::size_t n = order.size();
    bool has_cpu = false;
    double most_memory = 0;
    for (const DeviceClass& c : classes) {
        has_cpu = has_cpu || (c.is_cpu && c.count > 0);
        if (!c.is_cpu && c.count > 0) most_memory = std::max(most_memory, c.memory_limit.value);
    }
    std::vector<std::vector<Choice>> best(layers.size(), std::vector<Choice>(n + 1));
    best[0][0].value = 0;
    std::vector<std::vector<std::pair<std::size_t, bool>>> incidences(n);
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        incidences[static_cast<std::size_t>(problem.transfers[e].source)].emplace_back(e, true);
        for (int d : problem.transfers[e].destinations) incidences[static_cast<std::size_t>(d)].emplace_back(e, false);
    }
    std::vector<std::size_t> held(problem.transfers.size());
    std::vector<char> has_source(problem.transfers.size());
    for (std::size_t begin = 0; begin < n; ++begin) {
        std::vector<std::size_t> reached;
        for (std::size_t l = 0; l < layers.size(); ++l)
            if (best[l][begin].value < infinity) reached.push_back(l);
        if (reached.empty()) continue;
        std::fill(held.begin(), held.end(), 0);
        std::fill(has_source.begin(), has_source.end(), 0);
        double work = 0, paid = 0, cpu = 0, memory = 0, activations = 0;
        bool is_allowed = true;
        for (std::size_t end = begin; end < n; ++end) {
            std::size_t item = static_cast<std::size_t>(order[end]);
            work += problem.items[item].accelerator_time.value;
            cpu += problem.items[item].cpu_time.value;
            memory += problem.items[item].memory.value;
            activations += problem.items[item].activations.value;
            is_allowed = is_allowed && problem.items[item].runs_on_accelerator && memory + activations <= most_memory;
            if (!is_allowed && !has_cpu) break;
            auto pays = [&](std::size_t e) { return has_source[e] ? held[e] < problem.transfers[e].destinations.size() : held[e] > 0; };
            for (auto [e, is_source] : incidences[item]) {
                if (pays(e)) paid -= problem.transfers[e].time.value;
                if (is_source) has_source[e] = 1;
                else ++held[e];
                if (pays(e)) paid += problem.transfers[e].time.value;
            }
            for (std::size_t l : reached) {
                const double value = best[l][begin].value;
                const int in_flight = std::min(problem.micro_batches, layers.total(l) + 1);
                for (std::size_t c = 0; c < classes.size(); ++c) {
                    if (layers.used(l, c) >= classes[c].count) continue;
                    if (!classes[c].is_cpu && (!is_allowed || memory + activations * in_flight > classes[c].memory_limit.value)) continue;
                    const double load = classes[c].is_cpu ? cpu : work * classes[c].slowness + paid * classes[c].transfer_slowness;
                    Choice& to = best[l + layers.stride(c)][end + 1];
                    const double candidate = std::max(value, load);
                    if (candidate < to.value) to = {candidate, static_cast<int>(begin), static_cast<int>(c)};
                }
            }
        }
    }
    std::size_t layer = 0;
    for (std::size_t l = 0; l < layers.size(); ++l)
        if (best[l][n].value < best[layer][n].value) layer = l;
    const double value = best[layer][n].value;
    stages.clear();
    if (value == infinity) return value;
    for (std::size_t end = n; end > 0;) {
        const Choice& choice = best[layer][end];
        std::size_t begin = static_cast<std::size_t>(choice.from);
        const int in_flight = std::min(problem.micro_batches, layers.total(layer));
        stages.push_back(stage_of(problem, std::vector<int>(order.begin() + static_cast<std::ptrdiff_t>(begin), order.begin() + static_cast<std::ptrdiff_t>(end)),
                                  choice.device_class, in_flight));
        layer -= layers.stride(static_cast<std::size_t>(choice.device_class));
        end = begin;
    }
    std::reverse(stages.begin(), stages.end());
    return value;
}

}  // namespace

std::vector<PlacedStage> place_chain(const PlacementProblem& problem) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<int> order(problem.items.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<PlacedStage> stages;
    place_on_order(problem, classes, Layers(classes), order, stages);
    settle_memory(problem, stages);
    return stages;
}

std::vector<PlacedStage> place_on_orders(const PlacementProblem& problem) {
    std::vector<std::vector<int>> orders;
    orders.emplace_back(problem.items.size());
    std::iota(orders.back().begin(), orders.back().end(), 0);
    for (bool is_depth_first : {true, false})
        for (bool from_sinks : {true, false})
            for (bool largest_first : {true, false}) {
                std::vector<int> order = topological_order(problem, is_depth_first, from_sinks, largest_first);
                if (std::find(orders.begin(), orders.end(), order) == orders.end()) orders.push_back(std::move(order));
            }
    const std::vector<DeviceClass> classes = device_classes(problem);
    const Layers layers(classes);
    std::vector<PlacedStage> best, stages;
    double best_value = infinity;
    for (const std::vector<int>& order : orders) {
        double value = place_on_order(problem, classes, layers, order, stages);
        if (value < best_value) {
            best_value = value;
            best = stages;
        }
    }
    return best;
}

}  // namespace planner
