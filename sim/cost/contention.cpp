// Only links that two different streams can use at the same time, and that both together can fill, matter;
// links with the same users and shares behave alike and are counted once. What remains of a thousand devices
// is mostly a handful of network cards and PCIe switches, and nothing at all when stages share no card.
#include "sim/cost/contention.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "core/index/integers.h"

namespace sim {

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

struct Draft {
    core::Seconds latency, streaming, priced;
    core::Bytes bytes;            // of one group or pair of ranks, over its most loaded link
    std::vector<LinkShare> busy;  // share of each link's rate at full speed
    std::int64_t user = 0;        // communications of one user follow one another
};

class Finder {
public:
    Finder(const schedule::Program& program, CommunicationCost& costs, bool is_folded)
        : program_(program), costs_(costs), is_folded_(is_folded) {}

    Contention find() {
        const std::size_t performers = is_folded_ ? program_.classes.size() : program_.class_of_rank.size();
        for (std::size_t c = 0; c < program_.classes.size(); ++c) {
            std::vector<core::OptionalIndex>& kinds = result_.kind_of.emplace_back();
            kinds.reserve(program_.classes[c].instructions.size());
            known_.clear();
            for (const Instruction& instruction : program_.classes[c].instructions)
                kinds.push_back(kind_of(c, instruction, performers));
        }
        keep_contended(performers);
        return std::move(result_);
    }

private:
    // Instructions of a class that are priced alike; few, so a list is searched.
    struct PricedKind {
        InstructionKind kind;
        schedule::CollectiveKind collective;
        schedule::GroupKind group;
        schedule::Stream stream;
        core::OptionalIndex peer, tied_bucket;
        double bytes;
        std::int32_t index;
    };

    core::OptionalIndex kind_of(std::size_t class_index, const Instruction& instruction,
                                std::size_t performers) {
        if (instruction.kind != InstructionKind::send && instruction.kind != InstructionKind::collective)
            return std::nullopt;
        const schedule::RankProgram& list = program_.classes[class_index];
        const bool is_send = instruction.kind == InstructionKind::send;
        const std::vector<std::int32_t>& tied = tied_ranks_of(list, instruction);
        const core::Bytes bytes =
            is_send ? costs_.sent(instruction.bytes, instruction.payload) : instruction.bytes;
        const core::OptionalIndex bucket = tied.empty() ? core::OptionalIndex() : instruction.bucket;
        for (const PricedKind& known : known_)
            if (known.kind == instruction.kind && known.bytes == bytes.value &&
                known.stream == instruction.stream && known.tied_bucket == bucket &&
                (is_send ? known.peer == instruction.peer
                         : known.collective == instruction.collective && known.group == instruction.group))
                return known.index;
        const auto index = core::count_of(result_.communication_of);
        known_.push_back({instruction.kind, instruction.collective, instruction.group, instruction.stream,
                          instruction.peer, bucket, bytes.value, index});
        std::vector<core::OptionalIndex>& by_performer = result_.communication_of.emplace_back(performers);
        const std::int64_t streams = schedule::stream_count;
        const std::int64_t stream = core::position_of(instruction.stream);
        const core::Seconds priced = is_send ? costs_.transfer(list.pipeline, *instruction.peer,
                                                               instruction.bytes, instruction.payload)
                                             : costs_.collective(instruction.collective, instruction.group,
                                                                 instruction.bytes, list.pipeline, tied);
        if (priced.value <= 0) return index;  // a group of one
        if (is_folded_) {
            Draft draft = is_send ? transfer(costs_.transfer_between(list.pipeline, *instruction.peer), bytes)
                                  : collective(costs_.choice(instruction.collective, instruction.group,
                                                             instruction.bytes, list.pipeline, tied),
                                               instruction.bytes);
            draft.priced = priced;
            draft.user = static_cast<std::int64_t>(class_index) * streams + stream;
            by_performer[class_index] = add(std::move(draft));
            return index;
        }
        std::map<int, core::OptionalIndex> of_leader;
        for (std::size_t rank = 0; rank < performers; ++rank) {
            if (std::cmp_not_equal(program_.class_of_rank[rank], class_index)) continue;
            const int global = static_cast<int>(rank);
            if (is_send) {
                Draft draft = transfer(costs_.transfer_of(global, *instruction.peer), bytes);
                draft.priced = priced;
                draft.user = static_cast<std::int64_t>(rank) * streams + stream;
                by_performer[rank] = add(std::move(draft));
                continue;
            }
            const int leader = costs_.leader(instruction.group, global, tied);
            const auto [entry, is_new] = of_leader.try_emplace(leader);
            if (is_new) {
                Draft draft = collective(costs_.choice_of(instruction.collective, instruction.group,
                                                          instruction.bytes, global, tied),
                                         instruction.bytes);
                draft.priced = priced;
                draft.user = static_cast<std::int64_t>(leader) * streams + stream;
                entry->second = add(std::move(draft));
            }
            by_performer[rank] = entry->second;
        }
        return index;
    }

    static Draft transfer(const CommunicationCost::Transfer& transfer, core::Bytes bytes) {
        const core::Seconds streaming(transfer.cost.seconds_per_byte * bytes.value);
        return shares({transfer.cost.latency, streaming, {}, bytes, transfer.links}, bytes);
    }
    Draft collective(const Candidate& candidate, core::Bytes bytes) {
        const CommunicationTime time = time_of(candidate, bytes);
        const core::Bytes own = bytes * costs_.bytes_of_a_group(candidate);
        return shares({time.latency, time.streaming, {}, own, candidate.links}, bytes);
    }
    static Draft shares(Draft draft, core::Bytes bytes) {
        if (draft.streaming.value <= 0) draft.busy.clear();
        for (LinkShare& link : draft.busy)
            link.busy = std::min(1.0, link.busy * bytes.value / draft.streaming.value);
        return draft;
    }

    std::int32_t add(Draft draft) {
        drafts_.push_back(std::move(draft));
        return static_cast<std::int32_t>(drafts_.size() - 1);
    }

    void keep_contended(std::size_t performers) {
        // By link: the communications that use it, each with its share of the link's rate.
        std::vector<std::vector<std::pair<std::int32_t, double>>> users(costs_.link_count());
        for (const std::int32_t d : core::indices(drafts_))
            for (const LinkShare& link : drafts_[d].busy) users[link.link].emplace_back(d, link.busy);
        std::map<std::vector<std::pair<std::int32_t, double>>, std::int32_t> distinct;
        std::vector<std::vector<ResourceUse>> uses(drafts_.size());
        std::map<std::int64_t, double> most_of_user;
        constexpr double full = 1 + 1e-9;  // a link's rate, with what sums of shares round up
        for (std::vector<std::pair<std::int32_t, double>>& list : users) {
            if (list.size() < 2) continue;
            most_of_user.clear();
            for (const auto& [draft, share] : list) {
                double& most = most_of_user[drafts_[draft].user];
                most = std::max(most, share);
            }
            double sum = 0;
            for (const auto& [user, share] : most_of_user) sum += share;
            if (most_of_user.size() < 2 || sum <= full) continue;
            const auto [entry, is_new] = distinct.try_emplace(list, core::count_of(distinct));
            if (is_new)
                for (const auto& [draft, share] : list) uses[draft].push_back({entry->second, share});
        }
        result_.links = distinct.size();
        std::vector<core::OptionalIndex> kept(drafts_.size());
        for (std::size_t d = 0; d < drafts_.size(); ++d) {
            if (uses[d].empty()) continue;
            kept[d] = core::count_of(result_.communications);
            const core::BytesPerSecond rate = drafts_[d].bytes / drafts_[d].streaming;
            result_.communications.push_back({drafts_[d].latency, drafts_[d].streaming, drafts_[d].priced,
                                              std::move(uses[d]), core::gigabytes_per_second(1) / rate});
        }
        std::vector<bool> is_kept(result_.communication_of.size(), false);
        for (std::size_t k = 0; k < is_kept.size(); ++k)
            for (std::size_t p = 0; p < performers; ++p) {
                core::OptionalIndex& communication = result_.communication_of[k][p];
                if (communication) communication = kept[*communication];
                is_kept[k] = is_kept[k] || communication;
            }
        for (std::vector<core::OptionalIndex>& kinds : result_.kind_of)
            for (core::OptionalIndex& kind : kinds)
                if (kind && !is_kept[*kind]) kind = std::nullopt;
    }

    const schedule::Program& program_;
    CommunicationCost& costs_;
    bool is_folded_;
    Contention result_;
    std::vector<PricedKind> known_;
    std::vector<Draft> drafts_;
};

}  // namespace

Contention find_contention(const schedule::Program& program, CommunicationCost& costs, bool is_folded) {
    return Finder(program, costs, is_folded).find();
}

}  // namespace sim
