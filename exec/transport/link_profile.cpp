#include "exec/transport/link_profile.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>

#include <fmt/core.h>

#include "cluster/build_topology.h"
#include "core/errors.h"
#include "core/index/integers.h"
#include "exec/cpu/cores.h"
#include "exec/transport/collective.h"
#include "exec/transport/exchange.h"
#include "schedule/collective/rounds.h"

namespace exec::transport {

namespace {

using Clock = std::chrono::steady_clock;

enum : Tag { tag_time = 48, tag_links = 49, tag_machine = 50, tag_size = 51, tag_ring = 100 };
constexpr std::uint64_t first_barrier = 1 << 20;
// Differences of measured times may be zero or below: rates are of this time (a clock's tick) at least.
constexpr double shortest_seconds = 1e-9;

// The time of a ring all-reduce of `floats` over `members`, when all other groups do the same at the same
// time, over repetitions of the slowest rank. Inside a host the lower quartile: what disturbs an exchange of
// several processes adds to it and never takes away. Between hosts the median: what TCP loses and sends again
// is part of every step's transfers.
class RingClock {
public:
    explicit RingClock(World& world) : world_(world) {}

    // `times_each` of them without a pause between, for what is too short for a clock that starts after a
    // barrier.
    double seconds(const std::vector<int>& members, std::size_t floats, int repetitions, int times_each = 1,
                   double quantile = 0.25) {
        ProcessCommunicator& communicator = world_.communicator();
        const auto size = core::count_of(members);
        const schedule::Rounds rounds = schedule::find_collective_algorithm("ring")->rounds(
            schedule::CollectiveKind::all_reduce, std::max(2, size), std::max(2, size));
        std::vector<float> data(floats, 1.0f);
        std::vector<double> times;
        for (int i = 0; i <= repetitions; ++i) {
            std::fill(data.begin(), data.end(), 1.0f);
            barrier(communicator, first_barrier + barriers_++);
            const Clock::time_point start = Clock::now();
            for (int n = 0; n < times_each && size > 1; ++n)
                exec::perform(communicator, rounds, members, data, tag_ring);
            const double own = std::chrono::duration<double>(Clock::now() - start).count() / times_each;
            double slowest = own;
            for (const std::string& text : gather_texts(
                     communicator, tag_time, std::string(reinterpret_cast<const char*>(&own), sizeof own))) {
                double one = 0;
                std::memcpy(&one, text.data(), sizeof one);
                slowest = std::max(slowest, one);
            }
            if (i > 0) times.push_back(slowest);  // the first one finds connections and caches cold
        }
        std::sort(times.begin(), times.end());
        return times[static_cast<std::size_t>(times.size() * quantile)];
    }

private:
    World& world_;
    std::uint64_t barriers_ = 0;
};

}  // namespace

LinkProfile measure_links(World& world) {
    LinkProfile links;
    RingClock clock(world);
    const int here = world.ranks_here(), hosts = world.host_count(), rank = world.rank(),
              first = rank - world.rank_on_host();
    if (hosts > 1)
        world.communicator().set_spins(
            false);  // as in the run, where a thread beside the one that computes waits
    constexpr double float_bytes = sizeof(float);
    if (here > 1) {
        // Pairs of neighbours: t = 2 (latency + bytes / 2 / bandwidth).
        const int base = first + world.rank_on_host() / 2 * 2;
        std::vector<int> members = {base};
        if (base + 1 < first + here) members.push_back(base + 1);
        const std::size_t large = 1 << 20;
        const double small_time = clock.seconds(members, 2, 5, 50),
                     large_time = clock.seconds(members, large, 9);
        links.within_bandwidth =
            core::BytesPerSecond(large * float_bytes / std::max(shortest_seconds, large_time - small_time));
        links.within_latency = core::Seconds(small_time / 2);
    }
    if (hosts > 1) {
        // The i-th ranks of all hosts make a ring, all such rings at once: a host sends `here` times 2 (n -
        // 1)/n of the bytes. What differs between two sizes is free of latency and of the credit that a token
        // bucket has gathered.
        std::vector<int> members;
        for (int host = 0; host < hosts; ++host) members.push_back(host * here + world.rank_on_host());
        const double n = hosts;
        const double latency = clock.seconds(members, 2, 5, 20) / (2 * (n - 1));
        // 256 KiB, and what takes some 0.6 s, 1.25 to 16 MiB: as long as the transfers of a step, in which
        // TCP fills queues, loses and sends again. Sizes in floats.
        constexpr std::size_t small = 1 << 16;
        constexpr double long_transfer_seconds = 0.6, least_small_seconds = 1e-6;
        constexpr double least_large = 5 << 16, most_large = 1 << 22;
        const double small_time = clock.seconds(members, small, 7, 1, 0.5);
        const double wanted =
            std::clamp(small * long_transfer_seconds / std::max(least_small_seconds, small_time), least_large,
                       most_large);
        const std::size_t large = std::stoll(broadcast_text(
            world.communicator(), tag_size, fmt::format("{:.0f}", wanted)));  // rank 0 knows the slowest
        const double large_time = clock.seconds(members, large, 7, 1, 0.5);
        const double bytes = (large - small) * float_bytes * 2 * (n - 1) / n * here;
        links.between_bandwidth =
            core::BytesPerSecond(bytes / std::max(shortest_seconds, large_time - small_time));
        links.between_latency = core::Seconds(latency);
    }
    std::ifstream kernel("/proc/sys/kernel/random/boot_id");
    std::string own;
    std::getline(kernel, own);
    std::map<std::string, int> machines;
    if (!own.empty())
        for (const std::string& machine : gather_texts(world.communicator(), tag_machine, own))
            links.ranks_a_machine = std::max(links.ranks_a_machine, ++machines[machine]);
    // A launcher may bind every rank to one core; the machine has the others all the same.
    links.cores_a_machine = cpu::available_cores() == 1 ? static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))
                                                        : cpu::available_cores();
    const std::string text = broadcast_text(world.communicator(), tag_links,
                                            std::string(reinterpret_cast<const char*>(&links), sizeof links));
    std::memcpy(&links, text.data(), sizeof links);
    return links;
}

cluster::Cluster cluster_of(const cluster::InstanceType& base, const LinkProfile& links, const World& world,
                            const std::string& date) {
    cluster::InstanceType instance = base;
    const std::string source = fmt::format("measured over {} between {} processes on {} hosts by smexec",
                                           world.transport(), world.size(), world.host_count());
    const bool has_network = links.between_bandwidth.value > 0;
    instance.devices = world.ranks_here();
    instance.vertices.clear();
    instance.links.clear();
    for (int i = 0; i < instance.devices; ++i)
        cluster::add_vertex(instance, fmt::format("core{}", i), cluster::VertexKind::device);
    const int host = cluster::add_vertex(instance, "numa0", cluster::VertexKind::host);
    cluster::LinkSpec memory;
    memory.name = "memory";
    memory.kind = cluster::LinkKind::memory;
    memory.bandwidth =
        links.within_bandwidth.value > 0 ? links.within_bandwidth : core::gigabytes_per_second(4);
    memory.efficiency = 1;
    memory.latency = links.within_latency / 2.0;  // a route passes two of them
    memory.is_full_duplex = true;
    for (int i = 0; i < instance.devices; ++i) cluster::add_link(instance, i, host, memory);
    if (has_network) {
        const int card = cluster::add_vertex(instance, "nic0", cluster::VertexKind::nic);
        cluster::LinkSpec bus = memory;
        bus.latency = core::Seconds(0);
        cluster::add_link(instance, card, host, bus);
        instance.network_name = "measured";
        instance.network_bandwidth = instance.network_baseline = links.between_bandwidth;
        instance.network_efficiency = 1;
        instance.network_latency = links.between_latency;
        instance.has_gpudirect = true;  // nothing rests on the way
        instance.device.has_concurrent_streams = true;
        cluster::add_fabric(instance, 1);
        instance.provenance["network"] = {source, date, "measured"};
    }
    if (links.within_bandwidth.value > 0) {
        std::string name = world.transport();
        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        instance.transports[name] = {links.within_bandwidth, links.within_latency};
        instance.provenance["transport." + name] = {source, date, "measured"};
    }
    for (const char* what : {"topology", "topology.link.memory", "link.memory"})
        instance.provenance[what] = {source, date, "measured"};
    cluster::assign_numa(instance);
    std::string reason;
    core::require(cluster::prepare_routes(instance, &reason), "the hosts of a world are joined");
    cluster::Cluster result;
    result.instance = std::move(instance);
    result.nodes = has_network ? world.host_count() : 1;
    return result;
}

}  // namespace exec::transport
