// The list of a class as chains: instructions each of which starts when the one before it in its chain has
// ended, whatever their durations are. What a pass computes and exchanges with its tensor group is one chain,
// so a simulation looks at streams and at what is waited for once a pass and not once an instruction.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "schedule/program/program.h"

namespace sim {

struct Chains {
    static constexpr std::uint32_t none = 0xffffffff;

    // Of each stream the first instruction that may not have ended.
    using Ended = std::array<std::uint32_t, schedule::stream_count>;

    // Simulations read these out of order, so they are as small as can be.
    struct Chain {
        std::uint32_t head = none;
        std::uint32_t before = none;    // the instruction before its head on the head's stream
        std::uint32_t after_begin = 0;  // of its head, in RankProgram::after_pool
        std::uint32_t after_count : 31 = 0;
        std::uint32_t may_grow : 1 = 0;  // else one receive, send or meeting with other performers
    };

    std::vector<Chain> chains;
    std::vector<Ended> ended;             // by chain: when it begins, whatever the durations are
    std::vector<std::uint32_t> next;      // by instruction: the one after it in its chain
    std::vector<std::uint32_t> chain_of;  // by instruction
    std::vector<std::uint8_t> stream_of;  // by instruction
    std::array<std::vector<std::uint32_t>, schedule::stream_count> queues;  // chains that begin on the stream
};

struct ChainRules {
    bool has_concurrent_streams = true, blocks_on_transfers = false;  // as in SimulateOptions
    std::vector<char> meets_others;  // by PerformerSet::slot_of: collectives that wait for other performers
};

Chains chains_of(const schedule::RankProgram& list, const ChainRules& rules);

}  // namespace sim
