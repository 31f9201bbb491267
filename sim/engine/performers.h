// Performers of a Program in a simulation: one representative per class (folded), or every rank. Groups and
// channels connect them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/optional_index.h"
#include "schedule/plan/layout.h"
#include "schedule/program/program.h"

namespace sim {

using schedule::group_kind_count;

struct Performer {
    std::int32_t class_index = 0;
    std::int32_t rank = 0;  // global; of a class its lowest
    // Performers at one pipeline coordinate are told apart by their lane. `peer_lane` is the lane transfers
    // are received from, by pipeline coordinate.
    std::int32_t lane = 0;
    std::vector<std::int32_t> peer_lane;
    // By PerformerSet::slot_of: index into PerformerSet::groups. Nothing where no other performer takes part.
    std::vector<core::OptionalIndex> group;
};

struct PerformerSet {
    PerformerSet(const schedule::Program& program, bool is_folded);

    std::vector<Performer> performers;
    std::vector<std::vector<std::int32_t>> groups;  // participants of collectives, at least two, ascending

    // Collectives of one slot are matched in list order. Each kind of group is a slot, and so is each tied
    // bucket: its members are the ranks that hold a replica.
    static std::size_t slot_of(const schedule::Instruction& collective) {
        const bool is_tied = collective.group == schedule::GroupKind::tied_stages && collective.bucket;
        if (is_tied) return group_kind_count + *collective.bucket;
        return core::position_of(collective.group);
    }

    // Transfers are told apart by sending lane, payload, stage boundary and micro-batch.
    std::size_t channel_count() const { return std::size_t{2} * lanes_ * stages_ * micro_batches_; }
    std::size_t channel_of_send(const Performer& sender, const schedule::Instruction& send) const;
    std::size_t channel_of_receive(const Performer& receiver, const schedule::Instruction& receive) const;

private:
    void assign_lanes(const schedule::Program& program, const std::vector<std::int32_t>& performer_of_rank,
                      bool has_layout);
    void assign_groups(const schedule::Program& program, const std::vector<std::int32_t>& performer_of_rank,
                       bool is_folded);
    std::size_t channel(std::int32_t lane, bool is_gradient, std::int32_t boundary,
                        std::int32_t micro_batch) const;

    std::int32_t lanes_ = 1, stages_ = 1, micro_batches_ = 1;
};

}  // namespace sim
