#include "sim/engine/performers.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"

namespace sim {

namespace {

constexpr std::array<schedule::GroupKind, group_kind_count> group_kinds = {
    schedule::GroupKind::world,          schedule::GroupKind::tensor,       schedule::GroupKind::data,
    schedule::GroupKind::pipeline,       schedule::GroupKind::shard,        schedule::GroupKind::replica,
    schedule::GroupKind::tied_stages,    schedule::GroupKind::context,      schedule::GroupKind::expert,
    schedule::GroupKind::expert_replica, schedule::GroupKind::expert_shard, schedule::GroupKind::tokens,
    schedule::GroupKind::expert_data,
};

}  // namespace

PerformerSet::PerformerSet(const schedule::Program& program, bool is_folded) {
    const schedule::ParallelLayout& layout = program.plan.layout;
    stages_ = std::max<std::int32_t>(1, core::count_of(program.stages));
    micro_batches_ = std::max(1, program.micro_batches);
    std::vector<std::int32_t> performer_of_rank(program.class_of_rank.size());
    if (is_folded) {
        performers.resize(program.classes.size());
        std::vector<core::OptionalIndex> lowest_rank(performers.size());
        for (std::size_t rank = program.class_of_rank.size(); rank-- > 0;) {
            performer_of_rank[rank] = program.class_of_rank[rank];
            lowest_rank[program.class_of_rank[rank]] = static_cast<std::int32_t>(rank);
        }
        for (const std::int32_t c : core::indices(performers)) {
            core::require(lowest_rank[c].has_value(), "every class has a rank");
            performers[c] = {c, *lowest_rank[c], 0, {}, {}};
        }
    } else {
        for (const std::int32_t rank : core::indices(program.class_of_rank)) {
            performer_of_rank[rank] = rank;
            performers.push_back({program.class_of_rank[rank], rank, 0, {}, {}});
        }
    }
    for (Performer& performer : performers)
        performer.group.assign(group_kind_count + program.classes[performer.class_index].buckets.size(),
                               std::nullopt);

    const bool has_layout = std::cmp_equal(layout.ranks(), program.class_of_rank.size());
    assign_lanes(program, performer_of_rank, has_layout);
    if (has_layout) assign_groups(program, performer_of_rank, is_folded);
}

void PerformerSet::assign_lanes(const schedule::Program& program,
                                const std::vector<std::int32_t>& performer_of_rank, bool has_layout) {
    const schedule::ParallelLayout& layout = program.plan.layout;
    // Lanes: performers of one pipeline coordinate in rank order.
    int coordinates = 1;
    for (const schedule::RankProgram& list : program.classes)
        coordinates = std::max(coordinates, list.pipeline + 1);
    std::vector<std::int32_t> lanes_at(coordinates, 0);
    for (Performer& performer : performers) {
        std::int32_t& used = lanes_at[program.classes[performer.class_index].pipeline];
        performer.lane = used++;
        lanes_ = std::max(lanes_, used);
    }
    for (Performer& performer : performers) {
        performer.peer_lane.assign(coordinates, 0);
        if (lanes_ == 1 || !has_layout) continue;
        schedule::RankCoordinates where = coordinates_of(layout, performer.rank);
        for (int p = 0; p < coordinates; ++p) {
            where.pipeline = p;
            const std::size_t peer = performer_of_rank[rank_of(layout, where)];
            performer.peer_lane[p] = performers[peer].lane;
        }
    }
    core::require(lanes_ == 1 || has_layout, "several classes at one pipeline coordinate need the layout");
}

void PerformerSet::assign_groups(const schedule::Program& program,
                                 const std::vector<std::int32_t>& performer_of_rank, bool is_folded) {
    const schedule::ParallelLayout& layout = program.plan.layout;
    // `purpose` tells apart groups with the same members and different collectives.
    std::map<std::pair<std::vector<std::int32_t>, std::int64_t>, std::int32_t> index_of;
    const auto join = [&](Performer& performer, std::size_t slot, const std::vector<int>& ranks,
                          std::int64_t purpose) {
        std::vector<std::int32_t> members;
        for (int rank : ranks) members.push_back(performer_of_rank[rank]);
        std::sort(members.begin(), members.end());
        members.erase(std::unique(members.begin(), members.end()), members.end());
        const auto self = static_cast<std::int32_t>(&performer - performers.data());
        if (members.size() < 2 || !std::binary_search(members.begin(), members.end(), self)) return;
        const auto [entry, is_new] =
            index_of.try_emplace(std::pair(members, purpose), core::count_of(groups));
        if (is_new) groups.push_back(std::move(members));
        performer.group[slot] = entry->second;
    };
    const int shard_degree = program.plan.effective_shard_degree();
    for (Performer& performer : performers) {
        for (schedule::GroupKind kind : group_kinds) {
            if (is_folded && lanes_ == 1 && kind != schedule::GroupKind::world &&
                kind != schedule::GroupKind::pipeline && kind != schedule::GroupKind::tied_stages)
                continue;  // the members are of one class
            join(performer, core::position_of(kind),
                 process_group(layout, kind, performer.rank, shard_degree), -1 - core::position_of(kind));
        }
        const std::vector<schedule::ParameterBucket>& buckets =
            program.classes[performer.class_index].buckets;
        for (const std::int32_t b : core::indices(buckets)) {
            if (buckets[b].tied_ranks.empty() || buckets[b].parameters.empty()) continue;
            schedule::Instruction reduction;
            reduction.group = schedule::GroupKind::tied_stages;
            reduction.bucket = b;
            join(performer, PerformerSet::slot_of(reduction), members_of(program, performer.rank, reduction),
                 buckets[b].parameters.front().index);
        }
    }
}

std::size_t PerformerSet::channel(std::int32_t lane, bool is_gradient, std::int32_t boundary,
                                  std::int32_t micro_batch) const {
    core::require(boundary >= 0 && boundary < stages_ && micro_batch >= 0 && micro_batch < micro_batches_,
                  "a transfer crosses a stage boundary for a micro-batch");
    return ((std::size_t{2} * lane + (is_gradient ? 1 : 0)) * stages_ + boundary) * micro_batches_ +
           micro_batch;
}

// The boundary after stage s is number s: activations cross it from s to s + 1, gradients from s + 1 to s.
std::size_t PerformerSet::channel_of_send(const Performer& sender, const schedule::Instruction& send) const {
    const bool is_gradient = send.payload == schedule::PayloadKind::activation_gradient;
    return channel(sender.lane, is_gradient, is_gradient ? send.stage - 1 : send.stage, send.micro_batch);
}

std::size_t PerformerSet::channel_of_receive(const Performer& receiver,
                                             const schedule::Instruction& receive) const {
    const bool is_gradient = receive.payload == schedule::PayloadKind::activation_gradient;
    core::require(receive.peer && std::cmp_less(*receive.peer, receiver.peer_lane.size()),
                  "a receive names its peer");
    return channel(receiver.peer_lane[*receive.peer], is_gradient,
                   is_gradient ? receive.stage : receive.stage - 1, receive.micro_batch);
}

}  // namespace sim
