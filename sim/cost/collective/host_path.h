// Bytes that go through host memory: copies between device and host, messages between hosts, sums on their
// cores.
#pragma once

#include <vector>

#include "sim/cost/collective/library.h"

namespace sim {

// Links that each device of the groups keeps busy with `to_host` bytes down and `to_device` bytes up for each
// byte of the payload.
std::vector<LinkShare> host_copies(const LibraryContext& context, const Groups& groups, double to_host,
                                   double to_device);
// Every node of a group sends every other one `share` of the payload, spread over the cards beside the
// members: on the network's links alone, at the share of their rate that NCCL reaches there too. What a
// library gains over another is then bytes, hops and copies, not a better figure for the same card.
std::vector<LinkShare> host_messages(const LibraryContext& context, const Groups& groups, double share);
// One message from host to host.
core::Seconds host_message_time(const LibraryContext& context);
// Rate of memory traffic at which the cores of one node add.
core::BytesPerSecond host_sum_rate();
// Sums by link.
std::vector<LinkShare> together(const std::vector<LinkShare>& a, const std::vector<LinkShare>& b);
// Devices of all the groups on the node with the most of them: those whose payloads its processors sum.
double devices_on_a_node(const cluster::Cluster& cluster, const Groups& groups);
double busiest(const std::vector<LinkShare>& links);

}  // namespace sim
