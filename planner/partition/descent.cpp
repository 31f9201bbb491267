// A single partition of one plan: by moves of a unit at a time to where there is memory, then to less time.
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/errors.h"
#include "planner/partition/moves.h"
#include "planner/partition/partition_space.h"

namespace planner {

namespace {

constexpr core::Seconds any_time(std::numeric_limits<double>::infinity());
// A unit goes further than to the stages beside its own where there are no more stages than this.
constexpr int most_stages_for_far_moves = 8;

}  // namespace

std::pair<core::Bytes, core::Bytes> PartitionSpace::need_of(const Cuts& first_units) {
    ++memory_bounds_;
    const std::optional<MemoryBound> memory =
        table_.bounds().memory_of(plan_, ranges_of(table_.graph(), first_units), &memories_);
    core::require(memory.has_value(), "a plan that has an order has a memory bound");
    return {memory->excess, memory->peak};
}

std::vector<Cuts> PartitionSpace::with_room(Cuts first_units, core::Bytes room) {
    std::pair<core::Bytes, core::Bytes> need = need_of(first_units);
    if (need.second <= room) return {std::move(first_units)};
    std::vector<Cuts> found;
    // To the least need of all.
    const auto step = [&](std::vector<Cuts> moves) {
        bool is_less = false;
        for (Cuts& move : moves) {
            const std::pair<core::Bytes, core::Bytes> moved = need_of(move);
            if (moved >= need) continue;
            need = moved;
            first_units = std::move(move);
            is_less = true;
        }
        return is_less;
    };
    while (step(near_moves(first_units, units_)) || step(far_moves(first_units, units_)))
        if (found.empty() && need.second <= room) found.push_back(first_units);
    if (!found.empty() && found.front() != first_units) found.push_back(std::move(first_units));
    return found;
}

std::vector<PartitionOption> PartitionSpace::descend(core::Seconds limit, const Cuts& division,
                                                     core::Bytes room) {
    if (!order_ || order_->directions > 1 || std::cmp_less(units_, order_->stages)) return {};
    Cuts usual = table_.bounds().first_units(plan_);
    if (usual.empty()) return {};
    std::vector<Cuts> roomy = with_room(usual, room);
    // Where moves find no room, some activations may leave the device.
    const bool has_room = !roomy.empty();
    if (!has_room) roomy.push_back(std::move(usual));
    std::vector<PartitionOption> found;
    for (Cuts& cuts : roomy) {
        const core::Seconds bound = bound_of(cuts, any_time);
        found.push_back({bound, std::move(cuts)});
    }
    PartitionOption& best = found.front();
    const auto step = [&](std::vector<Cuts> all) {
        bool is_better = false;
        for (Cuts& cuts : all) {
            const core::Seconds bound = bound_of(cuts, best.bound);
            if (bound >= best.bound || (has_room && need_of(cuts).second > room)) continue;
            best = {bound, std::move(cuts)};
            is_better = true;
        }
        return is_better;
    };
    if (!division.empty()) step({division});
    while (step(near_moves(best.first_units, units_)) ||
           (order_->stages <= most_stages_for_far_moves && step(far_moves(best.first_units, units_)))) {
    }
    std::erase_if(found, [&](const PartitionOption& option) { return option.bound >= limit; });
    return found;
}

}  // namespace planner
