// Who exchanges with whom, as groups and channels that every rank makes alike before the first step.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <vector>

#include "exec/cuda/machine.h"
#include "schedule/program/program.h"

namespace exec::cuda {

class RankGroups {
public:
    // `has_channels`: every boundary between stages gets a channel of its own. `joins_all`: all ranks are a
    // group, too.
    RankGroups(const schedule::Program& program, int rank, Exchange& exchange, bool has_channels,
               bool joins_all);

    int of(const std::vector<int>& members) const;
    // Of a message between this rank and `peer`.
    int channel(const schedule::Instruction& message, int peer, bool sends) const;
    const std::vector<int>& all() const { return all_; }  // empty unless joined, and for one rank

private:
    struct Channel {
        int from = 0, to = 0;
        schedule::PayloadKind payload = schedule::PayloadKind::none;
        std::optional<std::int32_t> boundary = {};  // between stages; nothing: any
        auto operator<=>(const Channel&) const = default;
    };
    // What all ranks exchange.
    struct Found;
    Found find(const schedule::Program& program) const;

    const int rank_;
    std::vector<int> all_;
    std::map<std::vector<int>, int> groups_;
    std::map<Channel, int> channels_;
    bool is_boundary_apart_ = false;
};

}  // namespace exec::cuda
