// Measures NCCL (or whatever exchanges): every operation over sizes and groups, on the ranks that would
// train.
#pragma once

#include <string>
#include <vector>

#include "cluster/topology.h"
#include "exec/cuda/machine.h"

namespace exec::cuda {

struct ExchangeRate {
    std::string operation;  // "all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"
    int ranks = 0;
    core::Bytes bytes;   // of the whole array; of a message for "send"
    core::Seconds time;  // median on this rank
    // What a link of the slowest kind must carry: bytes / time times 2(n-1)/n, (n-1)/n or 1 (nccl-tests,
    // doc/PERFORMANCE.md).
    core::BytesPerSecond bus_bandwidth() const;
};

// Every rank of `groups` calls with the same groups and sizes; a rank gets the figures of the groups it is
// in. Sizes are multiples of 4 bytes a member.
std::vector<ExchangeRate> profile_exchange(Machine& machine, Exchange& exchange, int rank,
                                           const std::vector<std::vector<int>>& groups,
                                           const std::vector<core::Bytes>& sizes);
std::vector<core::Bytes> profiled_sizes();  // 4 KiB to 256 MiB, fourfold

// Figures of ranks on GPUs of their own: as notes, and as efficiency and latency of the links among a node's
// GPUs when all ranks share one node.
void apply(const std::vector<ExchangeRate>& rates, bool is_one_node, cluster::InstanceType& instance,
           const std::string& date);

}  // namespace exec::cuda
