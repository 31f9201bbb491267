// Only links that two different streams can use at the same time, and that both together can fill, matter;
// links with the same users and shares behave alike and are counted once. What remains of a thousand devices
// is mostly a handful of network cards and PCIe switches, and nothing at all when stages share no card.
#include "sim/cost/contention.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "core/index/integers.h"
#include "schedule/program/exchange_signature.h"

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

// Instructions of a class that are priced alike; few, so a list is searched.
struct Kind {
    std::size_t class_index;
    InstructionKind kind;
    schedule::CollectiveKind collective;
    schedule::GroupKind group;
    schedule::Stream stream;
    core::OptionalIndex peer, tied_bucket;
    core::Bytes bytes;  // of a send those that each rank sends itself
    bool operator==(const Kind&) const = default;
};

Draft with_shares(Draft draft, core::Bytes bytes) {
    if (draft.streaming.value <= 0) draft.busy.clear();
    for (LinkShare& link : draft.busy)
        link.busy = std::min(1.0, link.busy * bytes.value / draft.streaming.value);
    return draft;
}

}  // namespace

class ContentionFinder::Finder {
public:
    Finder(CommunicationCost& costs, bool is_folded) : costs_(costs), is_folded_(is_folded) {}

    Contention find(const schedule::Program& program) {
        Contention result;
        std::vector<Kind> kinds;
        for (std::size_t c = 0; c < program.classes.size(); ++c) {
            const std::size_t first = kinds.size();
            const auto kinds_of = [&](const std::vector<Instruction>& list) {
                std::vector<core::OptionalIndex> of;
                of.reserve(list.size());
                for (const Instruction& instruction : list)
                    of.push_back(kind_of(program, c, instruction, first, kinds));
                return of;
            };
            result.kind_of.push_back(kinds_of(program.classes[c].instructions));
            result.kind_of_part.push_back(kinds_of(program.classes[c].parts));
        }
        if (!is_found_ || kinds != kinds_) {
            kinds_ = std::move(kinds);
            find_shared(program);
            is_found_ = true;
        }
        result.links = links_;
        result.communications = communications_;
        result.communication_of = communication_of_;
        for (auto* kinds_of : {&result.kind_of, &result.kind_of_part})
            for (std::vector<core::OptionalIndex>& of_class : *kinds_of)
                for (core::OptionalIndex& kind : of_class)
                    if (kind && !is_kept_[*kind]) kind = std::nullopt;
        for (std::size_t c = 0; c < program.classes.size(); ++c) mark_joined(program.classes[c], c, result);
        return result;
    }

private:
    static void mark_joined(const schedule::RankProgram& list, std::size_t class_index, Contention& result) {
        if (list.parts.empty()) return;
        const std::vector<core::OptionalIndex>& of_part = result.kind_of_part[class_index];
        for (std::size_t i = 0; i < list.instructions.size(); ++i) {
            const Instruction& joined = list.instructions[i];
            for (std::uint32_t k = 0; k < joined.parts_count; ++k)
                if (of_part[joined.parts_begin + k]) {
                    result.kind_of[class_index][i] = of_part[joined.parts_begin + k];
                    break;
                }
        }
    }

    // `first` is the first kind of the class.
    core::OptionalIndex kind_of(const schedule::Program& program, std::size_t class_index,
                                const Instruction& instruction, std::size_t first,
                                std::vector<Kind>& kinds) const {
        if (instruction.kind != InstructionKind::send && instruction.kind != InstructionKind::collective)
            return std::nullopt;
        Kind wanted{class_index, instruction.kind, {}, {}, instruction.stream, {}, {}, instruction.bytes};
        if (instruction.kind == InstructionKind::send) {
            wanted.peer = instruction.peer;
            wanted.bytes = costs_.sent(instruction.bytes, instruction.payload);
        } else {
            wanted.collective = instruction.collective;
            wanted.group = instruction.group;
            if (!schedule::tied_ranks_of(program.classes[class_index], instruction).empty())
                wanted.tied_bucket = instruction.bucket;
        }
        std::size_t index = first;
        while (index < kinds.size() && !(kinds[index] == wanted)) ++index;
        if (index == kinds.size()) kinds.push_back(wanted);
        return core::narrow<std::int32_t>(index);
    }

    void find_shared(const schedule::Program& program) {
        const std::size_t performers = is_folded_ ? program.classes.size() : program.class_of_rank.size();
        drafts_.clear();
        communication_of_.clear();
        for (const Kind& kind : kinds_) add_drafts(program, kind, performers);
        keep_contended(performers);
    }

    // What the kind takes of links: of all ranks of its class, or of each group or rank.
    void add_drafts(const schedule::Program& program, const Kind& kind, std::size_t performers) {
        std::vector<core::OptionalIndex>& by_performer = communication_of_.emplace_back(performers);
        const schedule::RankProgram& list = program.classes[kind.class_index];
        static const std::vector<std::int32_t> untied;
        const std::vector<std::int32_t>& tied =
            kind.tied_bucket ? list.buckets[*kind.tied_bucket].tied_ranks : untied;
        const bool is_send = kind.kind == InstructionKind::send;
        const std::int64_t streams = schedule::stream_count;
        const std::int64_t stream = core::position_of(kind.stream);
        const core::Seconds priced =
            is_send ? costs_.transfer_between(list.pipeline, *kind.peer).cost.of(kind.bytes)
                    : costs_.collective(kind.collective, kind.group, kind.bytes, list.pipeline, tied);
        if (priced.value <= 0) return;  // a group of one
        if (is_folded_) {
            Draft draft =
                is_send
                    ? transfer(costs_.transfer_between(list.pipeline, *kind.peer), kind.bytes)
                    : collective(costs_.choice(kind.collective, kind.group, kind.bytes, list.pipeline, tied),
                                 kind.bytes);
            draft.priced = priced;
            draft.user = std::int64_t(kind.class_index) * streams + stream;
            by_performer[kind.class_index] = add(std::move(draft));
            return;
        }
        std::map<int, core::OptionalIndex> of_leader;
        for (const std::int32_t rank : core::indices(program.class_of_rank)) {
            if (std::cmp_not_equal(program.class_of_rank[rank], kind.class_index)) continue;
            if (is_send) {
                Draft draft = transfer(costs_.transfer_of(rank, *kind.peer), kind.bytes);
                draft.priced = priced;
                draft.user = rank * streams + stream;
                by_performer[rank] = add(std::move(draft));
                continue;
            }
            const int leader = costs_.leader(kind.group, rank, tied);
            const auto [entry, is_new] = of_leader.try_emplace(leader);
            if (is_new) {
                Draft draft = collective(
                    costs_.choice_of(kind.collective, kind.group, kind.bytes, rank, tied), kind.bytes);
                draft.priced = priced;
                draft.user = leader * streams + stream;
                entry->second = add(std::move(draft));
            }
            by_performer[rank] = entry->second;
        }
    }

    static Draft transfer(const CommunicationCost::Transfer& transfer, core::Bytes bytes) {
        const core::Seconds streaming(transfer.cost.seconds_per_byte * bytes.value);
        return with_shares({transfer.cost.latency, streaming, {}, bytes, transfer.links}, bytes);
    }
    Draft collective(const Candidate& candidate, core::Bytes bytes) const {
        const CommunicationTime time = time_of(candidate, bytes);
        const core::Bytes own = bytes * costs_.bytes_of_a_group(candidate);
        return with_shares({time.latency, time.streaming, {}, own, candidate.links}, bytes);
    }

    std::int32_t add(Draft draft) {
        drafts_.push_back(std::move(draft));
        return core::count_of(drafts_) - 1;
    }

    void keep_contended(std::size_t performers) {
        // By link: the communications that use it, each with its share of the link's rate.
        using User = std::pair<std::int32_t, double>;
        std::vector<std::size_t> first(costs_.link_count() + 1, 0);
        for (const Draft& draft : drafts_)
            for (const LinkShare& link : draft.busy) ++first[std::size_t(link.link) + 1];
        std::partial_sum(first.begin(), first.end(), first.begin());
        std::vector<User> users(first.back());
        std::vector<std::size_t> end(first.begin(), first.end() - 1);
        for (const std::int32_t d : core::indices(drafts_))
            for (const LinkShare& link : drafts_[d].busy)
                users[end[std::size_t(link.link)]++] = {d, link.busy};
        const auto before = [](std::span<const User> a, std::span<const User> b) {
            return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
        };
        std::map<std::span<const User>, std::int32_t, decltype(before)> distinct(before);
        std::vector<std::vector<ResourceUse>> uses(drafts_.size());
        constexpr double full = 1 + 1e-9;  // a link's rate, with what sums of shares round up
        std::span<const User> last;        // links side by side often have the same users
        for (std::size_t link = 0; link < end.size(); ++link) {
            const std::span<const User> list(users.data() + first[link], users.data() + end[link]);
            if (list.size() < 2 || std::equal(list.begin(), list.end(), last.begin(), last.end())) continue;
            last = list;
            if (!is_contended(list, full)) continue;
            const auto [entry, is_new] = distinct.try_emplace(list, core::count_of(distinct));
            if (is_new)
                for (const auto& [draft, share] : list) uses[draft].push_back({entry->second, share});
        }
        links_ = distinct.size();
        communications_.clear();
        std::vector<core::OptionalIndex> kept(drafts_.size());
        for (std::size_t d = 0; d < drafts_.size(); ++d) {
            if (uses[d].empty()) continue;
            kept[d] = core::count_of(communications_);
            const core::BytesPerSecond rate = drafts_[d].bytes / drafts_[d].streaming;
            communications_.push_back({drafts_[d].latency, drafts_[d].streaming, drafts_[d].priced,
                                       std::move(uses[d]), core::gigabytes_per_second(1) / rate});
        }
        is_kept_.assign(communication_of_.size(), false);
        for (std::size_t k = 0; k < is_kept_.size(); ++k)
            for (std::size_t p = 0; p < performers; ++p) {
                core::OptionalIndex& communication = communication_of_[k][p];
                if (communication) communication = kept[*communication];
                is_kept_[k] = is_kept_[k] || communication;
            }
    }

    // Can several users, each with one communication at a time, ask for more than the link has?
    bool is_contended(std::span<const std::pair<std::int32_t, double>> users, double full) {
        most_of_user_.clear();
        for (const auto& [draft, share] : users) {
            double& most = most_of_user_[drafts_[draft].user];
            most = std::max(most, share);
        }
        double sum = 0;
        for (const auto& [user, share] : most_of_user_) sum += share;
        return most_of_user_.size() >= 2 && sum > full;
    }

    CommunicationCost& costs_;
    bool is_folded_;
    std::vector<Draft> drafts_;
    std::map<std::int64_t, double> most_of_user_;
    // Of the last Program.
    bool is_found_ = false;
    std::vector<Kind> kinds_;
    std::size_t links_ = 0;
    std::vector<Communication> communications_;
    std::vector<std::vector<core::OptionalIndex>> communication_of_;
    std::vector<bool> is_kept_;
};

ContentionFinder::ContentionFinder(CommunicationCost& costs, bool is_folded)
    : finder_(std::make_unique<Finder>(costs, is_folded)) {}
ContentionFinder::~ContentionFinder() = default;

Contention ContentionFinder::find(const schedule::Program& program) { return finder_->find(program); }

Contention find_contention(const schedule::Program& program, CommunicationCost& costs, bool is_folded) {
    return ContentionFinder(costs, is_folded).find(program);
}

}  // namespace sim
