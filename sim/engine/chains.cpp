#include "sim/engine/chains.h"

#include <algorithm>

#include "core/index/integers.h"
#include "sim/engine/performers.h"

namespace sim {

namespace {

constexpr std::uint32_t none = Chains::none;

class ChainMaker {
public:
    ChainMaker(const schedule::RankProgram& list, const ChainRules& rules) : list_(list), rules_(rules) {
        last_on_.fill(none);
    }

    Chains make() {
        const std::size_t count = list_.instructions.size();
        result_.next.assign(count, none);
        result_.stream_of.resize(count);
        result_.chain_of.resize(count);
        for (std::uint32_t i = 0; i < count; ++i) {
            const schedule::Instruction& instruction = list_.instructions[i];
            const std::size_t stream = stream_of(instruction);
            result_.stream_of[i] = static_cast<std::uint8_t>(stream);
            const bool may_grow = ends_alone(instruction);
            const std::uint32_t latest = latest_awaited(i);
            if (may_grow && latest != none && continues(i, latest)) append(i, latest);
            else begin(i, may_grow);
            last_on_[stream] = i;
        }
        return std::move(result_);
    }

private:
    std::size_t stream_of(const schedule::Instruction& instruction) const {
        if (!rules_.has_concurrent_streams) return 0;
        const bool blocks = rules_.blocks_on_transfers && instruction.kind == schedule::InstructionKind::send;
        return std::size_t(core::position_of(blocks ? schedule::Stream::compute : instruction.stream));
    }

    // Is it over without a transfer and without others that come late?
    bool ends_alone(const schedule::Instruction& instruction) const {
        if (instruction.kind == schedule::InstructionKind::collective)
            return rules_.meets_others[PerformerSet::slot_of(instruction)] == 0;
        return instruction.kind != schedule::InstructionKind::send &&
               instruction.kind != schedule::InstructionKind::receive;
    }

    template <class Work>
    void for_each_awaited(std::uint32_t i, Work work) const {
        if (const std::uint32_t before = last_on_[result_.stream_of[i]]; before != none) work(before);
        for (const std::uint32_t before : list_.after(list_.instructions[i])) work(before);
    }

    std::uint32_t latest_awaited(std::uint32_t i) const {
        std::uint32_t latest = none;
        for_each_awaited(i, [&](std::uint32_t before) {
            if (latest == none || before > latest) latest = before;
        });
        return latest;
    }

    // Is `latest` the end of a chain, and has all else that is waited for ended by then?
    bool continues(std::uint32_t i, std::uint32_t latest) const {
        const std::uint32_t index = result_.chain_of[latest];
        if (tails_[index] != latest || !result_.chains[index].may_grow) return false;
        const Chains::Ended& ended = result_.ended[index];
        bool has_ended = true;
        for_each_awaited(i, [&](std::uint32_t before) {
            has_ended =
                has_ended && (result_.chain_of[before] == index || before < ended[result_.stream_of[before]]);
        });
        return has_ended;
    }

    void append(std::uint32_t i, std::uint32_t latest) {
        result_.next[latest] = i;
        result_.chain_of[i] = result_.chain_of[latest];
        tails_[result_.chain_of[i]] = i;
    }

    void begin(std::uint32_t i, bool may_grow) {
        Chains::Chain chain;
        chain.head = i;
        Chains::Ended ended{};
        chain.before = last_on_[result_.stream_of[i]];
        chain.after_begin = list_.instructions[i].after_begin;
        chain.after_count = list_.instructions[i].after_count;
        chain.may_grow = may_grow;
        for_each_awaited(i, [&](std::uint32_t before) {
            const std::uint32_t other = result_.chain_of[before];
            for (std::size_t stream = 0; stream < ended.size(); ++stream) {
                std::uint32_t& first = ended[stream];
                first = std::max(first, result_.ended[other][stream]);
                // With the end of a chain all of it is over.
                const std::uint32_t last = last_on_[stream];
                if (before == tails_[other] && last != none && last <= before &&
                    result_.chain_of[last] == other)
                    first = std::max(first, last + 1);
            }
            std::uint32_t& first = ended[result_.stream_of[before]];
            first = std::max(first, before + 1);
        });
        result_.chain_of[i] = core::narrow<std::uint32_t>(result_.chains.size());
        result_.queues[result_.stream_of[i]].push_back(result_.chain_of[i]);
        result_.chains.push_back(chain);
        result_.ended.push_back(ended);
        tails_.push_back(i);
    }

    const schedule::RankProgram& list_;
    const ChainRules& rules_;
    Chains result_;
    std::vector<std::uint32_t> tails_;  // by chain
    std::array<std::uint32_t, schedule::stream_count> last_on_;
};

}  // namespace

Chains chains_of(const schedule::RankProgram& list, const ChainRules& rules) {
    return ChainMaker(list, rules).make();
}

}  // namespace sim
