// Placement without contiguity: seeded simulated annealing over single-item moves, from the best contiguous
// placement.
//
// The energy is the sum of (load / reference)^8: smooth where the largest load alone is flat, and dominated
// by the largest loads. A move changes the loads of at most three devices (both ends and the holder of a
// source), so it costs a few incidences. Memory above the limit is a penalty; only placements without any are
// kept. Where items are few, every assignment is looked at instead.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/random.h"
#include "partition/deadline.h"
#include "partition/free/free_search.h"
#include "partition/placement.h"

namespace partition {

namespace {

// The start of the local search is a contiguous placement, found in at most this and this share of the limit.
constexpr core::Seconds most_for_contiguous{30};
constexpr double share_for_contiguous = 0.3;

// Some tens of items are enumerated below a good bound: about a second of it, several where they are so few
// that the end is in sight.
constexpr std::size_t most_enumerated = 40, few = 16;
constexpr std::int64_t most_expanded = 2'000'000, most_expanded_of_few = 20'000'000;

// Temperatures, in the unit of the energy: a round from the start moves whole layers, one from the best
// placement repairs it, and both end with single moves.
constexpr double hot_from_start = 0.5, hot_from_best = 0.05, cold = 1e-5;

double eighth_power(double x) {
    double square = x * x, fourth = square * square;
    return fourth * fourth;
}

class Annealing {
public:
    Annealing(const PlacementProblem& problem, double reference) : problem_(problem), reference_(reference) {
        const std::vector<DeviceClass> classes = device_classes(problem);
        for (std::size_t c = 0; c < classes.size(); ++c)
            for (int d = 0; d < classes[c].count; ++d) {
                device_.push_back(classes[c]);
                class_of_.push_back(c);
            }
        devices_ = device_.size();
        incidences_.resize(problem.items.size());
        for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
            incidences_[problem.transfers[e].source].push_back({e, true});
            for (std::size_t d : problem.transfers[e].destinations) incidences_[d].push_back({e, false});
        }
    }

    // Devices are numbered class by class.
    void set(const std::vector<std::size_t>& device_of) {
        device_of_ = device_of;
        load_.assign(devices_, 0);
        memory_.assign(devices_, 0);
        held_.assign(problem_.transfers.size() * devices_, 0);
        for (std::size_t i = 0; i < problem_.items.size(); ++i) {
            load_[device_of_[i]] += work(i, device_of_[i]);
            memory_[device_of_[i]] += kept(i);
        }
        for (std::size_t e = 0; e < problem_.transfers.size(); ++e) {
            for (std::size_t d : problem_.transfers[e].destinations) ++held(e, device_of_[d]);
            for (std::size_t device = 0; device < devices_; ++device) load_[device] += paid(e, device);
        }
    }

    bool may_hold_all(std::size_t device) const { return is_cpu(device); }
    bool may_hold(std::size_t item, std::size_t device) const {
        return is_cpu(device) || problem_.items[item].runs_on_accelerator;
    }

    void move(std::size_t item, std::size_t to) {
        const std::size_t from = device_of_[item];
        for (auto [e, is_source] : incidences_[item]) {
            const std::size_t holder = device_of_[problem_.transfers[e].source];
            change(e, from, to, holder, -1);
            if (is_source) {
                device_of_[item] = to;
            } else {
                --held(e, from);
                ++held(e, to);
            }
            change(e, from, to, holder, +1);
            device_of_[item] =
                from;  // until the last transfer is done: the others are still counted from this side
        }
        load_[from] -= work(item, from);
        load_[to] += work(item, to);
        memory_[from] -= kept(item);
        memory_[to] += kept(item);
        device_of_[item] = to;
    }

    double energy() const {
        double sum = 0;
        for (std::size_t d = 0; d < devices_; ++d) {
            sum += eighth_power(load_[d] / reference_);
            const double limit = device_[d].most_memory().value, over = memory_[d] - limit;
            if (over > 0) sum += 10 * (1 + over / std::max(limit, 1.0));
        }
        return sum;
    }
    double largest() const { return *std::max_element(load_.begin(), load_.end()); }
    bool respects_memory() const {
        for (std::size_t d = 0; d < devices_; ++d)
            if (memory_[d] > device_[d].most_memory().value) return false;
        return true;
    }
    std::size_t device_of(std::size_t item) const { return device_of_[item]; }
    const std::vector<std::size_t>& devices_of() const { return device_of_; }
    std::size_t devices() const { return devices_; }
    std::size_t class_of(std::size_t device) const { return class_of_[device]; }

private:
    bool is_cpu(std::size_t device) const { return device_[device].is_cpu; }
    // A device may be visited by a micro-batch many times: all of a step's micro-batches may be in flight on
    // it.
    double kept(std::size_t item) const {
        return (problem_.items[item].memory + problem_.items[item].activations * problem_.micro_batches)
            .value;
    }
    double work(std::size_t item, std::size_t device) const {
        const DeviceClass& of = device_[device];
        return of.work(problem_.items[item]).value * of.slowness;
    }
    int& held(std::size_t e, std::size_t device) { return held_[e * devices_ + device]; }
    int held(std::size_t e, std::size_t device) const { return held_[e * devices_ + device]; }
    double paid(std::size_t e, std::size_t device) const {
        if (is_cpu(device)) return 0;
        const Transfer& transfer = problem_.transfers[e];
        bool is_holder = device_of_[transfer.source] == device;
        return (is_holder ? held(e, device) < std::ssize(transfer.destinations) : held(e, device) > 0)
                   ? transfer.time.value * device_[device].transfer_slowness
                   : 0;
    }
    void change(std::size_t e, std::size_t from, std::size_t to, std::size_t holder, int sign) {
        load_[from] += sign * paid(e, from);
        load_[to] += sign * paid(e, to);
        if (holder != from && holder != to) load_[holder] += sign * paid(e, holder);
    }

    const PlacementProblem& problem_;
    std::vector<DeviceClass> device_;  // of each device
    std::vector<std::size_t> class_of_;
    std::size_t devices_ = 0;
    double reference_;
    std::vector<std::vector<std::pair<std::size_t, bool>>> incidences_;
    std::vector<std::size_t> device_of_;
    std::vector<int> held_;
    std::vector<double> load_, memory_;
};

std::vector<PlacedStage> stages_of(const PlacementProblem& problem, const Annealing& state,
                                   const std::vector<std::size_t>& device_of) {
    std::vector<PlacedStage> stages;
    for (std::size_t d = 0; d < state.devices(); ++d) {
        std::vector<std::size_t> items;
        for (std::size_t i = 0; i < device_of.size(); ++i)
            if (device_of[i] == d) items.push_back(i);
        if (!items.empty())
            stages.push_back(stage_of(problem, std::move(items), state.class_of(d), problem.micro_batches));
    }
    return stages;
}

}  // namespace

PlacementResult place_anywhere(const PlacementProblem& problem, const PlacementOptions& options) {
    const Clock::time_point begin = Clock::now();
    const Deadline deadline(begin, options.time_limit, options.is_stopped);
    auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    PlacementOptions for_contiguous;
    for_contiguous.progress = options.progress;
    for_contiguous.is_stopped = options.is_stopped;
    for_contiguous.time_limit = most_for_contiguous;
    if (options.time_limit)
        for_contiguous.time_limit = std::min(most_for_contiguous, *options.time_limit * share_for_contiguous);
    PlacementResult result = place_contiguous(problem, for_contiguous);
    if (!placement_infeasibility(problem).empty() || problem.items.empty()) return result;
    result.lower_bound = placement_lower_bound(problem);
    const bool contiguous_is_excluded = result.is_proven_infeasible,
               contiguous_is_proven = result.is_proven_optimal;
    result.is_proven_infeasible = result.is_proven_optimal = false;
    const std::size_t n = problem.items.size();
    Annealing state(problem, std::max(result.lower_bound.value, 1e-300));
    std::vector<std::size_t> start(n, 0);
    double best = std::numeric_limits<double>::infinity();
    if (result.is_feasible) {
        std::vector<char> is_taken(state.devices(), 0);
        for (const PlacedStage& stage : result.stages)
            for (std::size_t d = 0; d < state.devices(); ++d) {
                if (is_taken[d] || state.class_of(d) != stage.device_class) continue;
                is_taken[d] = 1;
                for (std::size_t i : stage.items) start[i] = d;
                break;
            }
        best = result.objective.value;
    } else {
        // A CPU holds whatever there is.
        for (std::size_t d = 0; d < state.devices(); ++d)
            if (state.may_hold_all(d)) start.assign(n, d);
    }
    std::vector<std::size_t> best_devices = start;
    bool has_improved = false, has_moved = false, is_complete = false;
    if (n <= most_enumerated) {
        FreeSearchResult enumerated =
            search_free(problem, best, n <= few ? most_expanded_of_few : most_expanded, deadline);
        is_complete = enumerated.is_complete &&
                      (contiguous_is_proven || contiguous_is_excluded || problem.micro_batches == 1);
        if (enumerated.device_of) {
            best = enumerated.value;
            best_devices = std::move(*enumerated.device_of);
            has_improved = true;
        }
    }
    core::Random random(0x5eed);
    // One round: hot enough to move whole layers, cooled to single moves. Rounds alternate between the start
    // and the best so far.
    const std::int64_t moves =
        std::min<std::int64_t>(20'000'000, 12'000 * static_cast<std::int64_t>(n) + 200'000);
    const int rounds = 12;
    for (int round = 0; round < rounds && !is_complete && !deadline.has_passed() && state.devices() > 1;
         ++round) {
        if (best <= result.lower_bound.value * (1 + 1e-12)) break;
        state.set(round % 2 == 0 ? start : best_devices);
        double energy = state.energy();
        const double hot = round % 2 == 0 ? hot_from_start : hot_from_best;
        double temperature = hot;
        const double cooling = std::pow(cold / hot, 1000.0 / static_cast<double>(moves));
        for (std::int64_t m = 0; m < moves; ++m) {
            if (m % 1000 == 0) {
                temperature *= cooling;
                if (m % 10000 == 0 && deadline.has_passed()) break;
                if (has_moved && options.progress)
                    options.progress({best, result.lower_bound.value, elapsed()});
                has_moved = false;
            }
            const std::size_t item = random.below(n);
            const std::size_t to = random.below(state.devices());
            const std::size_t from = state.device_of(item);
            if (to == from || !state.may_hold(item, to)) continue;
            state.move(item, to);
            double next = state.energy();
            if (next <= energy || random.uniform() < std::exp((energy - next) / temperature)) {
                energy = next;
                if (state.largest() < best * (1 - 1e-12) && state.respects_memory()) {
                    best = state.largest();
                    has_moved = true;
                    best_devices = state.devices_of();
                    has_improved = true;
                }
            } else {
                state.move(item, from);
            }
        }
    }
    if (has_improved) {
        result.stages = stages_of(problem, state, best_devices);
        result.is_feasible = true;
        result.reason.clear();
    }
    if (result.is_feasible) {
        result.objective = largest_load(problem, result.stages);
        result.lower_bound = is_complete ? result.objective : std::min(result.lower_bound, result.objective);
    } else if (is_complete && contiguous_is_excluded) {
        result.is_proven_infeasible = true;
        result.reason =
            "no placement, contiguous or not, respects the memory of every device (the search is exhaustive)";
    }
    result.is_proven_optimal =
        result.is_feasible && result.objective.value <= result.lower_bound.value * (1 + 1e-9);
    return result;
}

}  // namespace partition
