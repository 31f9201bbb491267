// Rules 7 to 9: what a rank holds while it works through its list - activations, gathered parameters,
// gradients, weight versions.
#include <fmt/core.h>
#include <cmath>

#include <algorithm>
#include <set>

#include "core/index/integers.h"
#include "schedule/rounding.h"
#include "schedule/schedule_cells.h"
#include "schedule/schedule_text.h"
#include "schedule/verify_rules.h"

namespace schedule {

namespace {

std::string at(const Schedule& schedule, int rank, std::size_t position, const std::string& what) {
    return fmt::format("rank {} cell {}: {} {}", rank, position,
                       print_action(schedule, schedule.actions[rank][position]), what);
}

std::size_t state_index(const Schedule& schedule, const Action& action) {
    return action.direction * schedule.stages + action.stage;
}

}  // namespace

void check_memory(const Schedule& schedule, const ScheduleLimits& limits,
                  std::vector<Violation>& violations) {
    if (limits.activation.empty() || !limits.memory_limit) return;
    const double allowed = limits.memory_limit->value * (1 + rounding);
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        double held = 0;
        for (const std::int32_t i : core::indices(list)) {
            const Action& action = list[i];
            if (!is_compute(action.kind)) continue;
            const ScheduleLimits::ActivationChange& change =
                limits.activation.size() == 1 ? limits.activation.front() : limits.activation[action.stage];
            double at_start = 0, at_end = 0;
            auto apply = [&](core::Bytes bytes) { (bytes.value > 0 ? at_start : at_end) += bytes.value; };
            if (action.kind == ActionKind::forward) apply(change.forward);
            if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
                apply(change.backward_input);
            if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight)
                apply(change.backward_weight);
            held += at_start;
            if (held > allowed) {
                violations.push_back({"memory",
                                      at(schedule, rank, i,
                                         fmt::format("brings the rank to {:.6g}, above its limit of {:.6g}",
                                                     held, limits.memory_limit->value)),
                                      rank, i});
                break;
            }
            held += at_end;
        }
    }
}

void check_sharded_parameters(const Schedule& schedule, const ScheduleLimits& limits,
                              std::vector<Violation>& violations) {
    auto is_sharding = [](const Action& action) {
        return action.kind == ActionKind::unshard || action.kind == ActionKind::reshard;
    };
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        if (std::none_of(list.begin(), list.end(), is_sharding)) continue;
        std::set<std::size_t> unsharded;
        for (const std::int32_t i : core::indices(list)) {
            const Action& action = list[i];
            const std::size_t stage = state_index(schedule, action);
            auto violate = [&](const std::string& what) {
                violations.push_back({"sharded parameters", at(schedule, rank, i, what), rank, i});
            };
            if (action.kind == ActionKind::unshard) {
                if (!unsharded.insert(stage).second) violate("gathers parameters that are gathered already");
                if (limits.most_unsharded_stages > 0 &&
                    core::count_of(unsharded) > limits.most_unsharded_stages)
                    violate(fmt::format("makes {} stages gathered, more than {}", unsharded.size(),
                                        limits.most_unsharded_stages));
            } else if (action.kind == ActionKind::reshard) {
                if (unsharded.erase(stage) == 0) violate("frees parameters that are not gathered");
            } else if (is_compute(action.kind) && !unsharded.contains(stage)) {
                violate("computes with parameters that are not gathered");
                unsharded.insert(stage);  // said once
            }
        }
    }
}

namespace {

// Of all directions.
std::size_t count_of_stages(const Schedule& schedule) {
    const std::size_t directions = schedule.directions;
    return directions * schedule.stages;
}

// One update at most per stage and step, after the reduction, after the last backward.
void check_synchronous_update(const Schedule& schedule, std::vector<Violation>& violations) {
    const CellPositions positions(schedule);
    const CellIndex index(schedule);
    const std::size_t states = count_of_stages(schedule);
    std::vector<int> last_backward(states, -1), reduced_at(states, -1), updated_at(states, -1);
    bool has_reduction = false, has_update = false;
    for (const std::vector<Action>& list : schedule.actions)
        for (const std::int32_t i : core::indices(list)) {
            if (list[i].kind == ActionKind::backward || list[i].kind == ActionKind::backward_weight)
                last_backward[state_index(schedule, list[i])] = i;
            has_reduction = has_reduction || list[i].kind == ActionKind::reduce_gradient;
            has_update = has_update || list[i].kind == ActionKind::optimizer_step;
        }
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        for (const std::int32_t i : core::indices(list)) {
            const bool is_reduction = list[i].kind == ActionKind::reduce_gradient,
                       is_update = list[i].kind == ActionKind::optimizer_step;
            if (!is_reduction && !is_update) continue;
            const std::size_t state = state_index(schedule, list[i]);
            const int position = i;
            auto violate = [&](const std::string& what) {
                violations.push_back({"gradient order", at(schedule, rank, i, what), rank, position});
            };
            int& before = is_reduction ? reduced_at[state] : updated_at[state];
            if (before >= 0) violate("is there twice");
            before = position;
            if (last_backward[state] > position) violate("comes before the stage's last backward");
            if (is_update && has_reduction && reduced_at[state] < 0)
                violate("updates with gradients that are not reduced yet");
        }
    }
    for (std::size_t state = 0; state < states; ++state) {
        const int stage = static_cast<int>(state) % schedule.stages,
                  direction = static_cast<int>(state) / schedule.stages;
        const int rank = rank_of_stage(schedule, stage, direction);
        if (has_reduction && reduced_at[state] < 0)
            violations.push_back(
                {"gradient order",
                 fmt::format("rank {}: the gradients of stage {} are never reduced, those of others are",
                             rank, stage),
                 rank, std::nullopt});
        if (has_update && updated_at[state] < 0)
            violations.push_back({"gradient order",
                                  fmt::format("rank {}: stage {} is never updated, others are", rank, stage),
                                  rank, std::nullopt});
    }
}

// The backward of a micro-batch uses the weights of its forward, so every version that a micro-batch in
// flight began with is kept beside the newest.
void check_weight_versions(const Schedule& schedule, std::vector<Violation>& violations) {
    for (int rank = 0; rank < schedule.ranks; ++rank) {
        const std::vector<Action>& list = schedule.actions[rank];
        std::vector<int> newest(count_of_stages(schedule), 0);
        std::vector<std::multiset<int>> kept(newest.size());
        const CellIndex index(schedule);
        std::vector<int> version(index.size(), 0);
        for (const std::int32_t i : core::indices(list)) {
            const Action& action = list[i];
            const std::size_t state = state_index(schedule, action);
            if (action.kind == ActionKind::optimizer_step) ++newest[state];
            else if (action.kind == ActionKind::forward)
                kept[state].insert(version[index.of(action)] = newest[state]);
            else if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight)
                kept[state].erase(kept[state].find(version[index.of(action)]));
            else continue;
            std::set<int> versions(kept[state].begin(), kept[state].end());
            versions.insert(newest[state]);
            if (core::count_of(versions) > schedule.weight_versions) {
                violations.push_back(
                    {"weight versions",
                     at(schedule, rank, i,
                        fmt::format("makes {} versions of the weights of stage {}, more than {}",
                                    versions.size(), action.stage, schedule.weight_versions)),
                     rank, i});
                break;
            }
        }
    }
}

}  // namespace

void check_gradient_order(const Schedule& schedule, std::vector<Violation>& violations) {
    if (schedule.weight_versions > 0) check_weight_versions(schedule, violations);
    else check_synchronous_update(schedule, violations);
}

}  // namespace schedule
