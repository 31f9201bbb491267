#include "partition/contiguous/linear_placement.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>

#include "core/index/integers.h"
#include "partition/baseline/baseline_placement.h"
#include "partition/deadline.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Of the dynamic program's table, 16 bytes each.
constexpr std::size_t most_choices = std::size_t{1} << 24;

// Kahn's algorithm with a stack or a queue of ready items; `from_sinks` walks the reversed graph and reverses
// the answer.
std::vector<std::size_t> topological_order(const PlacementProblem& problem, bool is_depth_first,
                                           bool from_sinks, bool largest_first) {
    std::size_t n = problem.items.size();
    std::vector<std::vector<std::size_t>> next(n);
    std::vector<int> waiting(n, 0);
    for (auto [before, after] : problem.precedence) {
        const std::size_t from = from_sinks ? after : before, to = from_sinks ? before : after;
        next[from].push_back(to);
        ++waiting[to];
    }
    std::deque<std::size_t> ready;
    for (std::size_t i = 0; i < n; ++i)
        if (waiting[i] == 0) ready.push_back(i);
    std::vector<std::size_t> order;
    while (!ready.empty()) {
        const std::size_t item = is_depth_first ? ready.back() : ready.front();
        if (is_depth_first) ready.pop_back();
        else ready.pop_front();
        order.push_back(item);
        std::vector<std::size_t>& list = next[item];
        std::sort(list.begin(), list.end());
        if (largest_first) std::reverse(list.begin(), list.end());
        for (std::size_t s : list)
            if (--waiting[s] == 0) ready.push_back(s);
    }
    if (from_sinks) std::reverse(order.begin(), order.end());
    return order;
}

struct Choice {
    double value = infinity;
    std::uint32_t from = 0;  // meaningless while the value is infinite
    std::uint32_t device_class = 0;
};

bool is_affordable(const std::vector<DeviceClass>& classes, std::size_t items) {
    double choices = static_cast<double>(items) + 1;
    for (const DeviceClass& c : classes) choices *= c.count + 1;
    return choices <= static_cast<double>(most_choices);
}

// How many devices of each class are used, as one number.
class Layers {
public:
    explicit Layers(const std::vector<DeviceClass>& classes) {
        for (const DeviceClass& c : classes) {
            stride_.push_back(size_);
            size_ *= c.count + 1;
        }
        for (std::size_t l = 0; l < size_; ++l) {
            used_.emplace_back();
            total_.push_back(0);
            for (std::size_t c = 0; c < classes.size(); ++c) {
                used_.back().push_back(static_cast<int>(l / stride_[c] % (classes[c].count + 1)));
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

struct Incidence {
    std::size_t transfer;
    bool is_source;
};

std::vector<std::vector<Incidence>> incidences_of(const PlacementProblem& problem) {
    std::vector<std::vector<Incidence>> incidences(problem.items.size());
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        incidences[problem.transfers[e].source].push_back({e, true});
        for (std::size_t d : problem.transfers[e].destinations) incidences[d].push_back({e, false});
    }
    return incidences;
}

// The sums of a stage that takes items one after the other.
class GrowingStage {
public:
    GrowingStage(const PlacementProblem& problem, const std::vector<std::vector<Incidence>>& incidences)
        : problem_(problem),
          incidences_(incidences),
          held_(problem.transfers.size()),
          has_source_(problem.transfers.size()) {}

    void clear() {
        for (std::size_t e : touched_) held_[e] = 0, has_source_[e] = 0;
        touched_.clear();
        work_ = paid_ = cpu_ = memory_ = activations_ = 0;
        runs_on_accelerator_ = true;
    }
    void add(std::size_t item) {
        const PlacementItem& added = problem_.items[item];
        work_ += added.accelerator_time.value;
        cpu_ += added.cpu_time.value;
        memory_ += added.memory.value;
        activations_ += added.activations.value;
        runs_on_accelerator_ = runs_on_accelerator_ && added.runs_on_accelerator;
        auto pays = [&](std::size_t e) {
            return has_source_[e] ? held_[e] < problem_.transfers[e].destinations.size() : held_[e] > 0;
        };
        for (auto [e, is_source] : incidences_[item]) {
            touched_.push_back(e);
            if (pays(e)) paid_ -= problem_.transfers[e].time.value;
            if (is_source) has_source_[e] = 1;
            else ++held_[e];
            if (pays(e)) paid_ += problem_.transfers[e].time.value;
        }
    }
    double load(const DeviceClass& c) const { return c.load(c.is_cpu ? cpu_ : work_, paid_); }
    // Of every stage that begins so, whatever else joins.
    double least_load(const DeviceClass& c) const { return (c.is_cpu ? cpu_ : work_) * c.slowness; }
    bool fits(const DeviceClass& c, int in_flight) const {
        return c.is_cpu ||
               (runs_on_accelerator_ && memory_ + activations_ * in_flight <= c.most_memory().value);
    }

private:
    const PlacementProblem& problem_;
    const std::vector<std::vector<Incidence>>& incidences_;
    std::vector<std::size_t> held_, touched_;
    std::vector<char> has_source_;
    double work_ = 0, paid_ = 0, cpu_ = 0, memory_ = 0, activations_ = 0;
    bool runs_on_accelerator_ = true;
};

std::vector<std::size_t> items_between(const std::vector<std::size_t>& order, std::size_t begin,
                                       std::size_t end) {
    return {order.begin() + static_cast<std::ptrdiff_t>(begin),
            order.begin() + static_cast<std::ptrdiff_t>(end)};
}

// Stages of at most this load, each as long as it may be on the kind of device on which that is longest;
// infinite when items are left over.
double fill(const PlacementProblem& problem, const std::vector<DeviceClass>& classes,
            const std::vector<std::size_t>& order, double most, GrowingStage& growing,
            std::vector<PlacedStage>& stages) {
    stages.clear();
    std::vector<int> used(classes.size(), 0);
    double largest = 0;
    for (std::size_t begin = 0; begin < order.size();) {
        const int in_flight = std::min(problem.micro_batches, core::count_of(stages) + 1);
        std::size_t furthest = begin, device_class = 0;
        double load = 0;
        for (std::size_t c = 0; c < classes.size(); ++c) {
            if (used[c] == classes[c].count) continue;
            growing.clear();
            for (std::size_t end = begin; end < order.size(); ++end) {
                growing.add(order[end]);
                if (growing.least_load(classes[c]) > most || !growing.fits(classes[c], in_flight)) break;
                if (growing.load(classes[c]) > most || end < furthest) continue;
                furthest = end + 1;
                device_class = c;
                load = growing.load(classes[c]);
            }
        }
        if (furthest == begin) return infinity;
        ++used[device_class];
        largest = std::max(largest, load);
        stages.push_back(stage_of(problem, items_between(order, begin, furthest), device_class, in_flight));
        begin = furthest;
    }
    return largest;
}

// By bisection over that load. O(items + transfers) a trial where stages are short.
double fill_on_order(const PlacementProblem& problem, const std::vector<DeviceClass>& classes,
                     const std::vector<std::size_t>& order, double lower_bound,
                     std::vector<PlacedStage>& stages) {
    const std::vector<std::vector<Incidence>> incidences = incidences_of(problem);
    GrowingStage growing(problem, incidences);
    double high = fill(problem, classes, order, infinity, growing, stages), low = lower_bound;
    std::vector<PlacedStage> tried;
    for (int trial = 0; trial < 50 && high < infinity && high - low > 1e-9 * high; ++trial) {
        const double most = trial == 0
                                ? low * (1 + 1e-9)
                                : low + (high - low) / 2;  // the bound itself first: often it is reached
        const double value = fill(problem, classes, order, most, growing, tried);
        if (value < high) {
            high = value;
            stages = tried;
        }
        if (value > most) low = most;
    }
    return high;
}

// Smallest largest load with the items in this order: best[layer][i] for the first i items. Infinite after
// the deadline.
double place_on_order(const PlacementProblem& problem, const std::vector<DeviceClass>& classes,
                      const Layers& layers, const std::vector<std::size_t>& order, const Deadline& deadline,
                      std::vector<PlacedStage>& stages) {
    const std::size_t n = order.size();
    std::vector<std::vector<Choice>> best(layers.size(), std::vector<Choice>(n + 1));
    best[0][0].value = 0;
    const std::vector<std::vector<Incidence>> incidences = incidences_of(problem);
    GrowingStage growing(problem, incidences);
    for (std::size_t begin = 0; begin < n; ++begin) {
        if (deadline.has_passed()) return infinity;
        std::vector<std::size_t> reached;
        for (std::size_t l = 0; l < layers.size(); ++l)
            if (best[l][begin].value < infinity) reached.push_back(l);
        if (reached.empty()) continue;
        growing.clear();
        for (std::size_t end = begin; end < n; ++end) {
            growing.add(order[end]);
            if (std::none_of(classes.begin(), classes.end(),
                             [&](const DeviceClass& c) { return c.count > 0 && growing.fits(c, 1); }))
                break;
            for (std::size_t l : reached) {
                const double value = best[l][begin].value;
                const int in_flight = std::min(problem.micro_batches, layers.total(l) + 1);
                for (std::size_t c = 0; c < classes.size(); ++c) {
                    if (layers.used(l, c) >= classes[c].count) continue;
                    if (!growing.fits(classes[c], in_flight)) continue;
                    Choice& to = best[l + layers.stride(c)][end + 1];
                    const double candidate = std::max(value, growing.load(classes[c]));
                    if (candidate < to.value)
                        to = {candidate, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(c)};
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
        std::size_t begin = choice.from;
        const int in_flight = std::min(problem.micro_batches, layers.total(layer));
        stages.push_back(stage_of(problem, items_between(order, begin, end), choice.device_class, in_flight));
        layer -= layers.stride(choice.device_class);
        end = begin;
    }
    std::reverse(stages.begin(), stages.end());
    return value;
}

// Both ways: the dynamic program where its table is small enough and the time lasts.
class OrderPlacer {
public:
    OrderPlacer(const PlacementProblem& problem, const Deadline& deadline,
                std::optional<core::Seconds> lower_bound = std::nullopt)
        : problem_(problem),
          classes_(device_classes(problem)),
          deadline_(deadline),
          lower_bound_(lower_bound) {
        if (is_affordable(classes_, problem.items.size())) layers_.emplace(classes_);
    }
    double place(const std::vector<std::size_t>& order, std::vector<PlacedStage>& stages) {
        const double value =
            layers_ ? place_on_order(problem_, classes_, *layers_, order, deadline_, stages) : infinity;
        // No placement at all: filling would find none either.
        if (value < infinity || (layers_ && !deadline_.has_passed())) return value;
        if (!lower_bound_) lower_bound_ = placement_lower_bound(problem_);
        return fill_on_order(problem_, classes_, order, lower_bound_->value, stages);
    }

private:
    const PlacementProblem& problem_;
    const std::vector<DeviceClass> classes_;
    const Deadline deadline_;
    std::optional<core::Seconds> lower_bound_;  // of every order; dear, so made when first needed
    std::optional<Layers> layers_;
};

}  // namespace

std::vector<PlacedStage> place_chain(const PlacementProblem& problem) {
    std::vector<std::size_t> order(problem.items.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<PlacedStage> stages;
    OrderPlacer(problem, Deadline()).place(order, stages);
    settle_memory(problem, stages);
    return stages;
}

std::vector<PlacedStage> place_on_orders(const PlacementProblem& problem, const Deadline& deadline,
                                         std::optional<core::Seconds> lower_bound) {
    std::vector<std::vector<std::size_t>> orders;
    orders.emplace_back(problem.items.size());
    std::iota(orders.back().begin(), orders.back().end(), std::size_t{0});
    for (bool is_depth_first : {true, false})
        for (bool from_sinks : {true, false})
            for (bool largest_first : {true, false}) {
                std::vector<std::size_t> order =
                    topological_order(problem, is_depth_first, from_sinks, largest_first);
                if (std::find(orders.begin(), orders.end(), order) == orders.end())
                    orders.push_back(std::move(order));
            }
    OrderPlacer placer(problem, deadline, lower_bound);
    std::vector<PlacedStage> best, stages;
    double best_value = infinity;
    for (const std::vector<std::size_t>& order : orders) {
        if (best_value < infinity && deadline.has_passed()) break;
        const double value = placer.place(order, stages);
        if (value < best_value) {
            best_value = value;
            best = stages;
        }
    }
    return best;
}

}  // namespace partition
