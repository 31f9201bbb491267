// Exact contiguous placement: a shortest path, by largest edge, in the lattice of downsets of the precedence order.
//
// A state is (downset, accelerators used, CPUs used) with the smallest possible largest load so far. A stage grows from a downset item by item; every superset
// is visited once (children include one available item and exclude those before it). For a threshold T only stages below T are grown:
//   * work + transfers that can never again become internal (an end lies in the downset or was excluded) is monotone: at T the branch ends;
//   * what is left behind must fit the remaining devices: excluding an item excludes all its descendants, whose work must not exceed
//     (accelerators left) * T + (what the CPUs left can take below T). Far from the next boundary this forces inclusion, so growth is a straight line there.
// A pass with threshold T finds the optimum if it is below T, else proves T a lower bound. Thresholds climb from the relaxation's bound towards the incumbent
// of the linearised dynamic program, so most of the lattice is never visited.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/diagnostics.h"
#include "core/random.h"
#include "planner/linear_placement.h"
#include "planner/placement.h"
#include "planner/placement_reduction.h"

namespace planner {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using Clock = std::chrono::steady_clock;

struct State {
    double value = infinity;  // largest load on the way here
    std::int32_t parent_layer = -1, parent = -1;
    bool by_cpu = false;
};

// Downsets of one (accelerators, CPUs) layer: bit sets in one pool, found by an exact hash table.
class Layer {
public:
    explicit Layer(std::size_t words) : words_(words), slots_(64, -1) {}

    std::size_t size() const { return states_.size(); }
    const std::uint64_t* bits(std::size_t i) const { return pool_.data() + i * words_; }
    State& state(std::size_t i) { return states_[i]; }
    const State& state(std::size_t i) const { return states_[i]; }

    std::int32_t find(const std::uint64_t* set, std::uint64_t hash) const {
        for (std::size_t slot = hash & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
            std::int32_t i = slots_[slot];
            if (i < 0) return -1;
            if (hashes_[static_cast<std::size_t>(i)] == hash && std::equal(set, set + words_, bits(static_cast<std::size_t>(i)))) return i;
        }
    }
    // Keeps the better of the present and the offered value.
    void offer(const std::uint64_t* set, std::uint64_t hash, const State& offered) {
        std::int32_t i = find(set, hash);
        if (i >= 0) {
            if (offered.value < states_[static_cast<std::size_t>(i)].value) states_[static_cast<std::size_t>(i)] = offered;
            return;
        }
        if (2 * (states_.size() + 1) > slots_.size()) grow();
        insert(hash, static_cast<std::int32_t>(states_.size()));
        pool_.insert(pool_.end(), set, set + words_);
        hashes_.push_back(hash);
        states_.push_back(offered);
    }
    std::uint64_t hash(std::size_t i) const { return hashes_[i]; }

private:
    void insert(std::uint64_t hash, std::int32_t i) {
        std::size_t slot = hash & (slots_.size() - 1);
        while (slots_[slot] >= 0) slot = (slot + 1) & (slots_.size() - 1);
        slots_[slot] = i;
    }
    void grow() {
        slots_.assign(slots_.size() * 2, -1);
        for (std::size_t i = 0; i < hashes_.size(); ++i) insert(hashes_[i], static_cast<std::int32_t>(i));
    }

    std::size_t words_;
    std::vector<std::uint64_t> pool_, hashes_;
    std::vector<State> states_;
    std::vector<std::int32_t> slots_;
};

struct Incidence {
    std::int32_t transfer;
    bool is_source;
};

class ContiguousSearch {
public:
    ContiguousSearch(const PlacementProblem& problem, Clock::time_point deadline);

    enum class Outcome { found, none, out_of_time };
    // The best placement with every load below `threshold`.
    Outcome pass(double threshold);
    std::vector<PlacedStage> stages() const { return best_; }
    double value() const { return best_value_; }
    std::int64_t expanded() const { return expanded_; }

private:
    struct Sums {
        double work = 0, paid = 0, permanent = 0, memory = 0;
    };

    std::size_t layer_index(int accelerators, int cpus) const { return static_cast<std::size_t>(cpus * (problem_.accelerators + 1) + accelerators); }
    double cpu_can_take(double threshold) const;
    void expand(std::size_t from, std::int32_t index, int accelerators_left, int cpus_left, bool by_cpu);
    void grow(const Sums& sums, std::size_t available_begin, std::size_t available_end);
    double permanent_of(std::int32_t e) const;
    double paid_of(std::int32_t e) const;
    void backtrack(std::size_t layer, std::int32_t index);

    const PlacementProblem& problem_;
    Clock::time_point deadline_;
    std::size_t count_, words_;
    std::vector<double> work_, cpu_work_, memory_;
    std::vector<double> work_below_, memory_below_;  // of an item and all its descendants
    std::vector<char> has_cpu_only_below_;
    std::vector<std::vector<int>> successors_;
    std::vector<int> predecessor_count_;
    std::vector<std::vector<Incidence>> incidences_;
    std::vector<double> transfer_time_;
    std::vector<std::int32_t> destination_count_;
    std::vector<std::uint64_t> key_;  // Zobrist
    std::vector<std::pair<double, double>> movable_;
    double total_work_ = 0, total_memory_ = 0;
    std::int32_t cpu_only_total_ = 0;

    double threshold_ = infinity;
    std::vector<Layer> layers_;

    // One expansion.
    bool by_cpu_ = false, cpu_left_ = false;
    double base_value_ = 0, base_work_ = 0, base_memory_ = 0, room_left_ = 0, memory_left_ = 0;
    std::int32_t base_cpu_only_ = 0, stage_size_ = 0;
    std::size_t from_layer_ = 0, to_layer_ = 0;
    std::int32_t from_index_ = 0;
    std::vector<std::uint64_t> set_;
    std::uint64_t hash_ = 0;
    std::vector<int> waiting_;                  // predecessors not yet inside
    std::vector<std::int32_t> held_, outside_;  // destinations in the stage; destinations that never will be
    std::vector<char> source_inside_, source_outside_;
    std::vector<int> available_;
    bool is_out_of_time_ = false;

    std::int64_t expanded_ = 0;
    double best_value_ = infinity;
    std::vector<PlacedStage> best_;
};

ContiguousSearch::ContiguousSearch(const PlacementProblem& problem, Clock::time_point deadline)
    : problem_(problem), deadline_(deadline), count_(problem.items.size()), words_((count_ + 63) / 64) {
    successors_.resize(count_);
    predecessor_count_.assign(count_, 0);
    incidences_.resize(count_);
    for (auto [before, after] : problem.precedence) {
        core::require(before < after, "items are in topological order");
        successors_[static_cast<std::size_t>(before)].push_back(after);
    }
    for (std::vector<int>& list : successors_) {
        std::sort(list.begin(), list.end());
        list.erase(std::unique(list.begin(), list.end()), list.end());
        for (int s : list) ++predecessor_count_[static_cast<std::size_t>(s)];
    }
    for (const PlacementItem& item : problem.items) {
        work_.push_back(item.accelerator_time.value);
        cpu_work_.push_back(item.cpu_time.value);
        memory_.push_back(item.memory.value);
        total_memory_ += item.memory.value;
        if (item.runs_on_accelerator) {
            total_work_ += item.accelerator_time.value;
            if (item.accelerator_time.value > 0) movable_.emplace_back(item.cpu_time.value, item.accelerator_time.value);
        } else {
            work_.back() = 0;
            ++cpu_only_total_;
        }
        key_.push_back(core::mix64(key_.size() + 1));
    }
    std::sort(movable_.begin(), movable_.end(), [](auto a, auto b) { return a.second * b.first > b.second * a.first; });
    for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
        const Transfer& transfer = problem.transfers[e];
        transfer_time_.push_back(transfer.time.value);
        destination_count_.push_back(static_cast<std::int32_t>(transfer.destinations.size()));
        incidences_[static_cast<std::size_t>(transfer.source)].push_back({static_cast<std::int32_t>(e), true});
        for (int d : transfer.destinations) incidences_[static_cast<std::size_t>(d)].push_back({static_cast<std::int32_t>(e), false});
    }
    // Descendants by bit sets, last item first.
    std::vector<std::uint64_t> below(count_ * words_, 0);
    work_below_.assign(count_, 0);
    memory_below_.assign(count_, 0);
    has_cpu_only_below_.assign(count_, 0);
    for (std::size_t i = count_; i-- > 0;) {
        std::uint64_t* mine = below.data() + i * words_;
        mine[i / 64] |= std::uint64_t{1} << (i % 64);
        for (int s : successors_[i])
            for (std::size_t w = 0; w < words_; ++w) mine[w] |= below[static_cast<std::size_t>(s) * words_ + w];
        for (std::size_t j = i; j < count_; ++j)
            if (mine[j / 64] >> (j % 64) & 1) {
                work_below_[i] += work_[j];
                memory_below_[i] += memory_[j];
                if (!problem.items[j].runs_on_accelerator) has_cpu_only_below_[i] = 1;
            }
    }
    set_.resize(words_);
    waiting_.resize(count_);
    held_.resize(problem.transfers.size());
    outside_.resize(problem.transfers.size());
    source_inside_.resize(problem.transfers.size());
    source_outside_.resize(problem.transfers.size());
}

double ContiguousSearch::cpu_can_take(double threshold) const {
    double taken = 0, room = threshold;
    for (auto [cpu, accelerator] : movable_) {
        if (cpu > room) {
            taken += room > 0 ? accelerator * room / cpu : 0;
            break;
        }
        room -= cpu;
        taken += accelerator;
    }
    return taken;
}

double ContiguousSearch::paid_of(std::int32_t e) const {
    std::size_t i = static_cast<std::size_t>(e);
    return (source_inside_[i] ? held_[i] < destination_count_[i] : held_[i] > 0) ? transfer_time_[i] : 0;
}

double ContiguousSearch::permanent_of(std::int32_t e) const {
    std::size_t i = static_cast<std::size_t>(e);
    return ((source_inside_[i] && outside_[i] > 0) || (source_outside_[i] && held_[i] > 0)) ? transfer_time_[i] : 0;
}

void ContiguousSearch::grow(const Sums& sums, std::size_t available_begin, std::size_t available_end) {
    if ((++expanded_ & 4095) == 0 && Clock::now() > deadline_) is_out_of_time_ = true;
    if (is_out_of_time_) return;
    double load = sums.work + (by_cpu_ ? 0 : sums.paid);
    // The boundary after this set: the load is below the threshold and the rest can be placed on what is left.
    if (stage_size_ > 0 && load < threshold_ && total_work_ - base_work_ <= room_left_ && total_memory_ - base_memory_ <= memory_left_ &&
        (cpu_left_ || base_cpu_only_ == cpu_only_total_)) {
        State next{.value = std::max(base_value_, load), .parent_layer = static_cast<std::int32_t>(from_layer_), .parent = from_index_, .by_cpu = by_cpu_};
        layers_[to_layer_].offer(set_.data(), hash_, next);
    }

    std::size_t excluded_end = available_begin;
    double permanent = sums.permanent;
    for (std::size_t a = available_begin; a < available_end && !is_out_of_time_; ++a) {
        int item = available_[a];
        std::size_t i = static_cast<std::size_t>(item);
        bool is_cpu_only = !problem_.items[i].runs_on_accelerator;
        Sums next{.work = sums.work + (by_cpu_ ? cpu_work_[i] : work_[i]), .paid = sums.paid, .permanent = permanent, .memory = sums.memory + memory_[i]};
        if (next.work < threshold_ && (by_cpu_ || (!is_cpu_only && next.memory <= problem_.memory_limit.value))) {
            if (!by_cpu_)
                for (auto [e, is_source] : incidences_[i]) {
                    next.paid -= paid_of(e);
                    next.permanent -= permanent_of(e);
                    if (is_source) source_inside_[static_cast<std::size_t>(e)] = 1;
                    else ++held_[static_cast<std::size_t>(e)];
                    next.paid += paid_of(e);
                    next.permanent += permanent_of(e);
                }
            // Sums of differences may end a rounding error below zero or above the exact sum: the margin keeps the bound valid.
            if (by_cpu_ || next.work + next.permanent < threshold_ * (1 + 1e-12)) {
                std::size_t begin = available_.size();
                for (std::size_t b = a + 1; b < available_end; ++b) available_.push_back(available_[b]);
                for (int s : successors_[i])
                    if (--waiting_[static_cast<std::size_t>(s)] == 0) {
                        // By work below, largest first: what cannot be left behind comes first and leaves no choice.
                        auto heavier = [&](int x) { return work_below_[static_cast<std::size_t>(x)] >= work_below_[static_cast<std::size_t>(s)]; };
                        auto place = std::find_if_not(available_.begin() + static_cast<std::ptrdiff_t>(begin), available_.end(), heavier);
                        available_.insert(place, s);
                    }
                set_[i / 64] |= std::uint64_t{1} << (i % 64);
                hash_ ^= key_[i];
                base_work_ += work_[i];
                base_memory_ += memory_[i];
                base_cpu_only_ += is_cpu_only;
                ++stage_size_;
                grow(next, begin, available_.size());
                --stage_size_;
                base_cpu_only_ -= is_cpu_only;
                base_memory_ -= memory_[i];
                base_work_ -= work_[i];
                hash_ ^= key_[i];
                set_[i / 64] &= ~(std::uint64_t{1} << (i % 64));
                for (int s : successors_[i]) ++waiting_[static_cast<std::size_t>(s)];
                available_.resize(begin);
            }
            if (!by_cpu_)
                for (auto [e, is_source] : incidences_[i]) {
                    if (is_source) source_inside_[static_cast<std::size_t>(e)] = 0;
                    else --held_[static_cast<std::size_t>(e)];
                }
        }
        // Now without this item, and so without all its descendants.
        if (work_below_[i] > room_left_ || memory_below_[i] > memory_left_ || (!cpu_left_ && has_cpu_only_below_[i])) break;
        excluded_end = a + 1;
        if (!by_cpu_) {
            for (auto [e, is_source] : incidences_[i]) {
                permanent -= permanent_of(e);
                if (is_source) source_outside_[static_cast<std::size_t>(e)] = 1;
                else ++outside_[static_cast<std::size_t>(e)];
                permanent += permanent_of(e);
            }
            if (sums.work + permanent >= threshold_ * (1 + 1e-12)) break;
        }
    }
    if (!by_cpu_)
        for (std::size_t a = available_begin; a < excluded_end; ++a)
            for (auto [e, is_source] : incidences_[static_cast<std::size_t>(available_[a])]) {
                if (is_source) source_outside_[static_cast<std::size_t>(e)] = 0;
                else --outside_[static_cast<std::size_t>(e)];
            }
}

void ContiguousSearch::expand(std::size_t from, std::int32_t index, int accelerators_left, int cpus_left, bool by_cpu) {
    const Layer& layer = layers_[from];
    std::copy_n(layer.bits(static_cast<std::size_t>(index)), words_, set_.begin());
    hash_ = layer.hash(static_cast<std::size_t>(index));
    base_value_ = layer.state(static_cast<std::size_t>(index)).value;
    from_layer_ = from;
    from_index_ = index;
    by_cpu_ = by_cpu;
    cpu_left_ = cpus_left > 0;
    // The margin covers rounding: a sum of differences may exceed the exact one by a few units in the last place.
    room_left_ = (accelerators_left * threshold_ + cpus_left * cpu_can_take(threshold_)) + 1e-12 * total_work_;
    memory_left_ = cpu_left_ || std::isinf(problem_.memory_limit.value) ? infinity : accelerators_left * problem_.memory_limit.value;
    std::copy(predecessor_count_.begin(), predecessor_count_.end(), waiting_.begin());
    std::fill(held_.begin(), held_.end(), 0);
    std::fill(outside_.begin(), outside_.end(), 0);
    std::fill(source_inside_.begin(), source_inside_.end(), 0);
    std::fill(source_outside_.begin(), source_outside_.end(), 0);
    base_work_ = base_memory_ = 0;
    base_cpu_only_ = stage_size_ = 0;
    available_.clear();
    for (std::size_t i = 0; i < count_; ++i) {
        if (!(set_[i / 64] >> (i % 64) & 1)) continue;
        base_work_ += work_[i];
        base_memory_ += memory_[i];
        base_cpu_only_ += !problem_.items[i].runs_on_accelerator;
        for (int s : successors_[i]) --waiting_[static_cast<std::size_t>(s)];
        for (auto [e, is_source] : incidences_[i]) {
            if (is_source) source_outside_[static_cast<std::size_t>(e)] = 1;
            else ++outside_[static_cast<std::size_t>(e)];
        }
    }
    for (std::size_t i = 0; i < count_; ++i)
        if (!(set_[i / 64] >> (i % 64) & 1) && waiting_[i] == 0) available_.push_back(static_cast<int>(i));
    std::stable_sort(available_.begin(), available_.end(),
                     [&](int a, int b) { return work_below_[static_cast<std::size_t>(a)] > work_below_[static_cast<std::size_t>(b)]; });
    grow({}, 0, available_.size());
}

void ContiguousSearch::backtrack(std::size_t layer, std::int32_t index) {
    best_.clear();
    while (layers_[layer].state(static_cast<std::size_t>(index)).parent_layer >= 0) {
        const State& state = layers_[layer].state(static_cast<std::size_t>(index));
        const std::uint64_t* upper = layers_[layer].bits(static_cast<std::size_t>(index));
        const std::uint64_t* lower = layers_[static_cast<std::size_t>(state.parent_layer)].bits(static_cast<std::size_t>(state.parent));
        std::vector<int> items;
        for (std::size_t i = 0; i < count_; ++i)
            if ((upper[i / 64] & ~lower[i / 64]) >> (i % 64) & 1) items.push_back(static_cast<int>(i));
        if (!items.empty()) best_.push_back(stage_of(problem_, std::move(items), state.by_cpu));
        std::size_t parent_layer = static_cast<std::size_t>(state.parent_layer);
        index = state.parent;
        layer = parent_layer;
    }
    std::reverse(best_.begin(), best_.end());
}

ContiguousSearch::Outcome ContiguousSearch::pass(double threshold) {
    threshold_ = threshold;
    const int accelerators = problem_.accelerators, cpus = problem_.cpus;
    layers_.assign(static_cast<std::size_t>((accelerators + 1) * (cpus + 1)), Layer(words_));
    std::vector<std::uint64_t> everything(words_, 0);
    std::uint64_t everything_hash = 0;
    for (std::size_t i = 0; i < count_; ++i) {
        everything[i / 64] |= std::uint64_t{1} << (i % 64);
        everything_hash ^= key_[i];
    }
    std::vector<std::uint64_t> nothing(words_, 0);
    layers_[0].offer(nothing.data(), 0, State{.value = 0});
    best_value_ = infinity;
    for (int c = 0; c <= cpus; ++c)
        for (int a = 0; a <= accelerators; ++a) {
            std::size_t here = layer_index(a, c);
            std::size_t size = layers_[here].size();
            for (std::size_t i = 0; i < size; ++i) {
                const std::uint64_t* set = layers_[here].bits(i);
                std::uint64_t hash = layers_[here].hash(i);
                double value = layers_[here].state(i).value;
                if (value >= threshold_) continue;
                // Reached with one device less and no larger load: everything from here was already done there.
                bool is_dominated = false;
                for (auto [da, dc] : {std::pair{1, 0}, std::pair{0, 1}}) {
                    if (a < da || c < dc) continue;
                    Layer& fewer = layers_[layer_index(a - da, c - dc)];
                    std::int32_t other = fewer.find(set, hash);
                    if (other >= 0 && fewer.state(static_cast<std::size_t>(other)).value <= value) is_dominated = true;
                }
                if (hash == everything_hash && std::equal(set, set + words_, everything.begin())) {
                    if (value < best_value_) {
                        best_value_ = value;
                        threshold_ = std::min(threshold_, value);
                        backtrack(here, static_cast<std::int32_t>(i));
                    }
                    continue;
                }
                if (is_dominated) continue;
                if (a < accelerators) {
                    to_layer_ = layer_index(a + 1, c);
                    expand(here, static_cast<std::int32_t>(i), accelerators - a - 1, cpus - c, false);
                }
                if (c < cpus) {
                    to_layer_ = layer_index(a, c + 1);
                    expand(here, static_cast<std::int32_t>(i), accelerators - a, cpus - c - 1, true);
                }
                if (is_out_of_time_) return Outcome::out_of_time;
            }
        }
    return std::isfinite(best_value_) ? Outcome::found : Outcome::none;
}

// The exact search on the items as they are, from an incumbent (none: empty).
PlacementResult solve(const PlacementProblem& problem, std::vector<PlacedStage> incumbent, Clock::time_point deadline) {
    PlacementResult result;
    double lower = placement_lower_bound(problem).value, upper = infinity;
    result.stages = std::move(incumbent);
    if (!result.stages.empty()) {
        upper = largest_load(problem, result.stages).value;
        result.is_feasible = true;
    }
    // Everything on one device with every transfer counted: no stage can be heavier.
    double ceiling = 0;
    for (const PlacementItem& item : problem.items) ceiling += std::max(item.accelerator_time.value, item.cpu_time.value);
    for (const Transfer& transfer : problem.transfers) ceiling += transfer.time.value;
    ceiling = ceiling * (1 + 1e-9) + std::numeric_limits<double>::min();

    ContiguousSearch search(problem, deadline);
    // Steps double: passes that fail cost no more together than the one that succeeds.
    const double top = std::min(upper, ceiling);
    double threshold = lower, step = (top - lower) / 64;
    bool is_done = upper <= lower;
    while (!is_done) {
        threshold = std::min(top, threshold + step);
        step *= 2;
        if (!(threshold > lower)) threshold = top;
        ContiguousSearch::Outcome outcome = search.pass(threshold);
        if (outcome == ContiguousSearch::Outcome::out_of_time) {
            if (search.value() < upper) {
                result.stages = search.stages();
                result.is_feasible = true;
            }
            break;
        }
        if (outcome == ContiguousSearch::Outcome::found) {
            result.stages = search.stages();
            result.is_feasible = true;
            is_done = true;
        } else {
            lower = std::max(lower, threshold);
            is_done = threshold >= top;
        }
    }
    result.expanded = search.expanded();
    result.lower_bound = core::Seconds(lower);
    if (result.is_feasible) {
        result.objective = largest_load(problem, result.stages);
        result.is_proven_optimal = is_done;
        result.lower_bound = is_done ? result.objective : std::min(result.lower_bound, result.objective);
    } else {
        result.is_proven_infeasible = is_done;
    }
    return result;
}

// Stages of the reduced problem in terms of the original items.
std::vector<PlacedStage> unreduced(const PlacementProblem& problem, const ReducedPlacement& reduced, const std::vector<PlacedStage>& stages) {
    std::vector<char> is_placed(problem.items.size(), 0);
    std::vector<std::vector<int>> items(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (int i : stages[s].items)
            for (int member : reduced.members[static_cast<std::size_t>(i)]) {
                items[s].push_back(member);
                is_placed[static_cast<std::size_t>(member)] = 1;
            }
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        if (!is_placed[i]) items[0].push_back(static_cast<int>(i));
    std::vector<PlacedStage> result;
    for (std::size_t s = 0; s < stages.size(); ++s) result.push_back(stage_of(problem, std::move(items[s]), stages[s].is_cpu));
    return result;
}

bool respects_memory(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    return std::all_of(stages.begin(), stages.end(), [&](const PlacedStage& s) { return s.is_cpu || s.memory <= problem.memory_limit; });
}

}  // namespace

PlacementResult place_contiguous(const PlacementProblem& given, const PlacementOptions& options) {
    PlacementResult result;
    Clock::time_point deadline = Clock::time_point::max();
    if (options.time_limit.value < 1e8)
        deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit.value));
    result.reason = placement_obstacle(given);
    if (!result.reason.empty()) {
        result.is_proven_infeasible = true;
        return result;
    }
    PlacementProblem problem = given;
    core::Bytes total_memory;
    for (const PlacementItem& item : problem.items) total_memory += item.memory;
    if (total_memory <= problem.memory_limit) problem.memory_limit = core::Bytes(infinity);

    ReducedPlacement reduced = reduce(problem);
    result = solve(reduced.problem, place_on_orders(reduced.problem), deadline);
    if (result.is_feasible) result.stages = unreduced(problem, reduced, result.stages);
    const bool is_exact = reduced.moved_memory.value == 0 || std::isinf(problem.memory_limit.value);
    if (!is_exact) {
        // Merged items moved memory between stages: the merged optimum is feasible only if the stages still fit with it, and a bound only if memory were free
        // for them.
        if (result.is_feasible && !respects_memory(problem, result.stages)) result = {};
        PlacementProblem relaxed = reduced.problem;
        for (std::size_t i = 0; i < relaxed.items.size(); ++i) {
            relaxed.items[i].memory = core::Bytes(0);
            for (int member : reduced.members[i]) {
                const PlacementItem& item = problem.items[static_cast<std::size_t>(member)];
                if (item.accelerator_time.value > 0 || item.cpu_time.value > 0 || !item.runs_on_accelerator || reduced.members[i].size() == 1)
                    relaxed.items[i].memory += item.memory;
            }
        }
        bool is_proven = false;
        if (result.is_proven_optimal) {
            ContiguousSearch search(relaxed, deadline);
            is_proven = search.pass(result.objective.value) == ContiguousSearch::Outcome::none;
            result.expanded += search.expanded();
        }
        if (!is_proven) {
            std::vector<PlacedStage> incumbent = result.is_feasible ? result.stages : place_on_orders(problem);
            std::int64_t expanded = result.expanded;
            result = solve(problem, std::move(incumbent), deadline);
            result.expanded += expanded;
        }
    }
    if (result.is_feasible) {
        result.stages.erase(std::remove_if(result.stages.begin(), result.stages.end(), [](const PlacedStage& s) { return s.items.empty(); }),
                            result.stages.end());
        result.objective = largest_load(given, result.stages);
        if (result.is_proven_optimal) result.lower_bound = result.objective;
    } else if (result.is_proven_infeasible) {
        result.reason = "no contiguous placement respects the memory of every device (the search is exhaustive): " + core::format(total_memory) + " in all, " +
                        core::format(given.memory_limit) + " on each of " + std::to_string(given.accelerators) + " devices";
    } else {
        result.reason = "no placement was found within the time limit, and none is excluded either";
    }
    return result;
}

}  // namespace planner
