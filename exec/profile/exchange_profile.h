// What a plan's own exchanges take between its own ranks: each kind, group and size of collective, and each
// message between stages, over the links that the ranks have, whatever these are.
#pragma once

#include <string>
#include <vector>

#include "core/units.h"
#include "exec/transport/communicator.h"
#include "schedule/program/program.h"

namespace exec {

struct MeasuredExchange {
    std::string signature;  // schedule/program/exchange_signature.h
    core::Seconds time;
};

struct ExchangeTiming {
    int ranks_per_node = 0;   // as in RunOptions
    bool times_sends = true;  // messages between stages, too
    core::Seconds budget{2};  // for all, about
};

// Every rank of the plan calls, and rank 0 gets the times, the others nothing: of the slowest rank, medians
// over repetitions, as steps are told. Exchanges that move most are
// measured; all_to_all, whose parts are as large as tokens say, and messages beyond 16 MiB are left out.
std::vector<MeasuredExchange> time_exchanges(Communicator& communicator, const schedule::Program& program,
                                             const ExchangeTiming& timing);

// The same between threads of this process, a core each. Nothing when there are fewer cores than ranks.
std::vector<MeasuredExchange> time_exchanges_of_threads(const schedule::Program& program);

// The signature of a collective or a send of `rank`.
std::string exchange_signature(const schedule::Program& program, int rank,
                               const schedule::Instruction& instruction);

}  // namespace exec
