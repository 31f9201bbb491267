#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "core/diagnostics.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// Plans of a group whose bounds are tightened at once while its best is looked for; plans that are timed
// before those of them that promise most are simulated, so many of each at once; and how often that may find
// nothing better in a row.
constexpr std::size_t tightened_in_a_look = 24, timed_in_a_probe = 8, at_once = 2;
constexpr int most_vain_probes = 3;
// Of the limit, until when what fits without copies to hosts is looked for, where so many probes found
// nothing at all; and from when on in any case.
constexpr double share_of_need = 0.35;
constexpr double patience_with_offload = 1.5;
// Looks into a group for a plan that fits as it is, before another group is tried.
constexpr int most_looks = 8;

// An axis of numbers along which a search goes from plan to plan, and where a plan lies on it.
struct SearchStep {
    std::string_view name;  // in the words of the plan file
    int (*of)(const schedule::Plan& plan);
    bool trades = false;  // more of it for less of another of these, with as many replicas
};
std::span<const SearchStep> search_steps() {
    using schedule::Plan;
    static constexpr SearchStep steps[] = {
        {"tensor_parallel", [](const Plan& plan) { return plan.layout.tensor; }, true},
        {"pipeline_parallel", [](const Plan& plan) { return plan.layout.pipeline; }, true},
        {"context_parallel", [](const Plan& plan) { return plan.layout.context; }},
        {"expert_parallel", [](const Plan& plan) { return plan.layout.expert_ranks(); }},
        {"expert_tensor_parallel",
         [](const Plan& plan) { return int{plan.layout.spreads_experts_over_tensor()}; }},
        {"micro_batch", [](const Plan& plan) { return plan.micro_batch; }},
        {"tensor_overlap", [](const Plan& plan) { return plan.tensor_overlap; }},
    };
    return steps;
}

}  // namespace

// Where people begin: tensor parallelism inside a node, no more pipeline than memory asks for, a micro-batch
// of one sample, sharded optimizer state.
std::vector<std::size_t> Search::usual_groups() {
    std::map<std::tuple<std::size_t, int, int, int, int>, std::pair<int, std::size_t>>
        chosen;  // by pipeline degree
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        Group& group = groups_[g];
        schedule::Plan plan = families_[group.families.front()].first;
        const schedule::ParallelLayout& layout = plan.layout;
        if (plan.micro_batch != 1 || layout.tensor > targets_[group.target].cluster.instance.devices)
            continue;
        const auto key = std::tuple(group.target, layout.tensor, layout.expert, layout.expert_tensor(),
                                    core::position_of(plan.recompute));
        const auto known = chosen.find(key);
        if (known != chosen.end() && known->second.first <= layout.pipeline) continue;
        plan.schedule = "1f1b";
        if (plan.virtual_stages > 1) {
            plan.virtual_stages = 1;
            const std::shared_ptr<const RunnablePlans>& runnable = targets_[group.target].runnable;
            plan.partition = targets_[group.target].base.partition;
            if (runnable && runnable->partition)
                plan.partition = runnable->partition(plan.stages()).value_or(plan.partition);
        }
        plan.keep_sequences_whole();
        plan.shard_degree = 0;
        if (layout.data > 1) plan.sharding = schedule::Sharding::optimizer;
        if (!bounds_[group.layout]->bounds.never_fits(plan))
            chosen.insert_or_assign(key, std::pair(layout.pipeline, g));
    }
    std::vector<std::size_t> usual;
    for (const auto& [key, group] : chosen) usual.push_back(group.second);
    bound_families_of(usual);
    return usual;
}

// One step along one axis: recomputation, or degrees and the micro-batch, to the next value that the space
// has or by a factor of two. (315 nodes have no factor of two.)
std::vector<std::size_t> Search::neighbours_of(std::size_t group) {
    const auto plan_of = [&](std::size_t g) -> const schedule::Plan& {
        return families_[groups_[g].families.front()].first;
    };
    const schedule::Plan& own = plan_of(group);
    std::map<std::string_view, std::set<int>> values;
    for (std::size_t g = 0; g < groups_.size(); ++g)
        if (groups_[g].target == groups_[group].target)
            for (const SearchStep& axis : search_steps()) values[axis.name].insert(axis.of(plan_of(g)));
    const auto steps = [&](const schedule::Plan& other) {
        int moved = own.recompute == other.recompute ? 0 : 1;
        for (const SearchStep& axis : search_steps()) {
            const auto [low, high] = std::minmax({axis.of(own), axis.of(other)});
            const bool is_next = low < high && *values[axis.name].upper_bound(low) == high;
            moved += low == high ? 0 : is_next || high == 2 * low ? 1 : 2;
        }
        return moved;
    };
    std::vector<std::size_t> near;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (groups_[g].is_probed || g == group || groups_[g].target != groups_[group].target) continue;
        const schedule::Plan& other = plan_of(g);
        const int moved = steps(other);
        // Tensor against pipeline.
        const bool trades =
            own.recompute == other.recompute && own.layout.data == other.layout.data &&
            std::all_of(search_steps().begin(), search_steps().end(), [&](const SearchStep& axis) {
                return axis.trades || axis.of(own) == axis.of(other);
            });
        if (moved == 1 || (trades && moved == 2)) near.push_back(g);
    }
    bound_families_of(near);
    std::erase_if(near, [&](std::size_t g) { return least_bound_of(groups_[g]) >= best_value(); });
    return near;
}

// Bounds of all its plans, of any partition.
void Search::look_into(Group& group) {
    if (std::exchange(group.is_probed, true)) return;
    std::vector<std::size_t> opened;
    for (const std::size_t f : group.families) {
        if (!families_[f].is_open) continue;
        opened.push_back(f);
        make_members(families_[f].group);
        group.members.insert(group.members.end(), families_[f].members.begin(), families_[f].members.end());
    }
    open_families(opened);
}

// Its plans that are not timed and may be better than the best, most promising first.
std::vector<std::size_t> Search::candidates_of(const Group& group) const {
    std::vector<std::size_t> found;
    for (const std::size_t i : group.members)
        if (!entries_[i].rejection && !entries_[i].is_timed && !entries_[i].is_taken &&
            entries_[i].bound < best_value() && !is_put_off(i))
            found.push_back(i);
    std::sort(found.begin(), found.end(),
              [&](std::size_t a, std::size_t b) { return key_of(a) < key_of(b); });
    return found;
}

// Time is up, and nothing was found.
bool Search::needs_a_plan() const { return lacks_plan() && is_late(patience_with_offload); }

// What must copy activations away to fit promises much, as bounds do not know how fast copies are: once none
// of what promises most has fitted, a plan without copies is needed first. Where none fits without, the waves
// after the probes find one.
bool Search::is_put_off(std::size_t i) const {
    return (probed_in_vain_ || needs_a_plan()) &&
           entries_[i].plan.offload != targets_[entries_[i].target].base.offload;
}

// Its plan that promises most, with a tight bound.
std::optional<std::size_t> Search::most_promising(Group& group) {
    look_into(group);
    for (int looks = 0; !is_stopped() && !(needs_a_plan() && looks >= most_looks); ++looks) {
        std::vector<std::size_t> loose;
        for (const std::size_t i : candidates_of(group)) {
            const Entry& entry = entries_[i];
            if (entry.is_tight) {
                if (loose.empty()) return i;
                continue;
            }
            loose.push_back(i);
            if (loose.size() == tightened_in_a_look) break;
        }
        if (loose.empty()) break;
        tighten_all(loose);
    }
    return std::nullopt;
}

// Groups by what their plans promise.
class Probes {
public:
    explicit Probes(Search& search) : search_(search) {
        for (const std::size_t group : search.usual_groups()) guess(group);
    }

    // True unless nothing is left, or time is up: plans that promise most are timed, and of these the best
    // simulated.
    bool probe(core::Diagnostics& diagnostics);

private:
    void guess(std::size_t group) {
        if (states_.try_emplace(group).second)
            ahead_.emplace(search_.least_bound_of(search_.groups_[group]), group);
    }
    void look(std::size_t group) {
        State& state = states_[group];
        state.plan = search_.most_promising(search_.groups_[group]);
        if (state.plan) ahead_.emplace(search_.entries_[*state.plan].bound, group);
    }
    bool is_late() const { return search_.is_late(share_of_probes); }
    std::optional<std::size_t> next_plan(bool is_over);
    std::vector<std::size_t> next_plans(bool is_over);

    struct State {
        std::optional<std::size_t> plan;  // the most promising, once it is looked into
        bool is_expanded = false;         // its neighbours are ahead too, or were
    };
    Search& search_;
    std::map<std::size_t, State> states_;             // by group
    std::set<std::pair<double, std::size_t>> ahead_;  // bound of its plan or family, group
    std::vector<std::size_t> timed_;                  // and not simulated
};

// The plan that promises most, of the group that does, once its neighbours are ahead too.
std::optional<std::size_t> Probes::next_plan(bool is_over) {
    while (!ahead_.empty() && !search_.is_stopped()) {
        if (search_.is_beaten(ahead_.begin()->first)) {
            ahead_.clear();
            break;
        }
        const std::size_t group = ahead_.begin()->second;
        State& state = states_[group];
        if (state.plan && !state.is_expanded && !is_over) {
            state.is_expanded = true;
            for (const std::size_t neighbour : search_.neighbours_of(group)) guess(neighbour);
            continue;
        }
        ahead_.erase(ahead_.begin());
        if (state.plan && !search_.is_put_off(*state.plan)) return state.plan;
        look(group);
    }
    return std::nullopt;
}

std::vector<std::size_t> Probes::next_plans(bool is_over) {
    std::vector<std::size_t> next;
    while (next.size() < at_once) {
        const std::optional<std::size_t> plan = next_plan(is_over);
        if (!plan) break;
        next.push_back(*plan);
    }
    return next;
}

bool Probes::probe(core::Diagnostics& diagnostics) {
    std::vector<std::size_t> untimed;  // when it is late, and there is no plan yet
    for (std::size_t timed = 0; timed < timed_in_a_probe && untimed.empty(); timed += at_once) {
        const bool is_over = is_late();
        if (search_.is_late(patience) || (is_over && !search_.lacks_plan())) return false;
        search_.tell_progress(std::nullopt);
        const std::vector<std::size_t> next = next_plans(is_over);
        timed_.insert(timed_.end(), next.begin(), next.end());
        if (is_over) {
            untimed = next;
        } else {
            search_.time_all(next);
            for (const std::size_t i : next) look(search_.entries_[i].group);
        }
    }
    std::erase_if(timed_, [&](std::size_t i) {
        const Entry& entry = search_.entries_[i];
        return entry.is_taken || entry.rejection || search_.is_beaten(entry.bound);
    });
    if (timed_.empty() && ahead_.empty()) return false;
    std::sort(timed_.begin(), timed_.end(),
              [&](std::size_t a, std::size_t b) { return search_.key_of(a) < search_.key_of(b); });
    timed_.erase(std::unique(timed_.begin(), timed_.end()), timed_.end());
    std::stable_partition(timed_.begin(), timed_.end(),
                          [&](std::size_t i) { return !search_.is_put_off(i); });
    std::vector<std::size_t> taken = timed_;
    taken.resize(std::min(at_once, taken.size()));
    search_.simulate(taken, diagnostics);
    bool has_more = true;
    const auto goes_on = [&] {
        return !is_late() || (search_.lacks_plan() && !search_.is_late(patience_with_offload));
    };
    while (has_more && goes_on()) has_more = search_.pursue(diagnostics);
    for (const std::size_t i : untimed) look(search_.entries_[i].group);
    return true;
}

// A good plan before anything is proven: from what is usual, downhill along the axes by what plans promise.
void Search::probe_usual_plans(core::Diagnostics& diagnostics) {
    if (!times_plans()) return;
    Probes probes(*this);
    for (int vain = 0; vain < most_vain_probes;) {
        const double before = best_value();
        if (!probes.probe(diagnostics)) return;
        vain = best_value() < before ? 0 : vain + 1;
        if (vain < most_vain_probes || !lacks_plan()) continue;
        if (!std::exchange(probed_in_vain_, true) || !is_late(share_of_need)) vain = 0;
    }
}

}  // namespace planner
