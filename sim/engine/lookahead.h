// Which communications have their links to themselves. Nothing begins before it would if no link were shared,
// nor before what it waits for has ended; so what is over by then cannot meet it, and needs no events.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "sim/cost/contention.h"
#include "sim/engine/chains.h"

namespace sim {

class Lookahead {
public:
    // `starts` of each performer's instructions where no link is shared. `chains` (by class) and
    // `class_of` must outlive it. What is joined counts as one communication on the stream of compute, from
    // its start on.
    Lookahead(const schedule::Program& program, const Contention& contention,
              const std::vector<Chains>& chains, const std::vector<std::int32_t>& class_of,
              const std::vector<std::vector<double>>& starts);

    // Can no other communication that shares a link with those of the performer's stream, and has not ended,
    // begin before the end of this instruction of it?
    bool is_alone(std::size_t performer, std::uint32_t instruction, double end) {
        const std::size_t stream = chains_[std::size_t(class_of_[performer])].stream_of[instruction];
        Source& source = sources_[performer * schedule::stream_count + stream];
        if (end <= source.alone_until) return true;
        if (source.is_crowded) return false;
        const bool is_still_met =
            source.first_other && start_of(source.others[*source.first_other], performer, instruction) < end;
        return !is_still_met && end <= look(source, performer, instruction);
    }
    // The instruction, which shares links, has ended.
    void pass(std::size_t performer, std::uint32_t instruction) {
        const std::size_t stream = chains_[std::size_t(class_of_[performer])].stream_of[instruction];
        ++sources_[performer * schedule::stream_count + stream].ended;
    }

private:
    struct Source {
        std::vector<double> starts;  // of its communications, in order
        std::vector<std::uint32_t> instructions;
        std::size_t performer = 0, ended = 0;
        double alone_until = 0;
        std::vector<std::uint32_t> others;       // that share links with it
        bool is_crowded = false;                 // too many of them to look at: taken to be never alone
        std::optional<std::size_t> first_other;  // of `others`, at the last look

        double next_start() const {
            return ended < starts.size() ? starts[ended] : std::numeric_limits<double>::infinity();
        }
    };

    // Of the other source's next communication, as far as the instruction of the performer's stream is
    // concerned: infinite where there is none, or it waits for that.
    double start_of(std::uint32_t other, std::size_t performer, std::uint32_t instruction) const;
    double look(Source& source, std::size_t performer, std::uint32_t instruction) const;
    void find_others(const Contention& contention,
                     const std::vector<std::vector<std::int32_t>>& communications_of);

    const std::vector<Chains>& chains_;
    const std::vector<std::int32_t>& class_of_;
    std::vector<Source> sources_;  // by performer and stream
};

}  // namespace sim
