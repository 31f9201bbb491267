// The event engine: activities (timers and flows) a second on one core, and a ring all-reduce at message
// level, beside SimGrid where it is installed.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "bench/processor_time.h"
#include "bench/ring_on_simgrid.h"
#include "sim/engine/flow_engine.h"

namespace {

double median_of(int repeats, const std::function<double()>& work) {
    std::vector<double> values;
    for (int i = 0; i < repeats; ++i) values.push_back(work());
    std::nth_element(values.begin(), values.begin() + repeats / 2, values.end());
    return values[static_cast<std::size_t>(repeats / 2)];
}

// Rings over `devices` on nodes of eight, four cards a node: device d sends messages to device d + 1 (mod
// devices) over its own port, between nodes over the cards that it shares with its neighbour. Every message
// waits a latency and then flows; a device forwards a message when it has arrived.
struct RingNetwork {
    explicit RingNetwork(int device_count, int rings)
        : devices(device_count), paths(static_cast<std::size_t>(device_count * rings)) {
        const int nodes = devices / 8, ports = devices;
        // Resources: ports out, ports in, then cards out, cards in.
        capacities.assign(static_cast<std::size_t>(2 * ports), 240e9);
        capacities.resize(static_cast<std::size_t>(2 * ports + 8 * nodes), 10.6e9);
        for (int ring = 0; ring < rings; ++ring)
            for (int d = 0; d < devices; ++d) {
                // Ring r visits the devices of a node starting at its r-th, so rings leave nodes at different
                // devices.
                const int node = d / 8, place = d % 8;
                const int from = node * 8 + (place + ring) % 8;
                const int next = (d + 1) % devices;
                const int to = next / 8 * 8 + (next % 8 + ring) % 8;
                std::vector<sim::ResourceUse>& path = paths[static_cast<std::size_t>(ring * devices + d)];
                path = {{from, 1.0}, {ports + to, 1.0}};
                if (from / 8 != to / 8) {
                    path.push_back({2 * ports + from / 8 * 4 + from % 8 / 2, 1.0});
                    path.push_back({2 * ports + 4 * nodes + to / 8 * 4 + to % 8 / 2, 1.0});
                }
            }
    }
    int devices;
    std::vector<double> capacities;
    std::vector<std::vector<sim::ResourceUse>> paths;  // [ring * devices + device]
};

// Plays 2 (n - 1) steps of every ring; `bytes` a message. The simulated time.
double play_rings(const RingNetwork& network, double bytes, double latency, std::uint64_t& activities) {
    sim::FlowEngine engine(network.capacities);
    const auto count = static_cast<std::uint32_t>(network.paths.size());
    const int steps = 2 * (network.devices - 1);
    // A device sends step s when its own message of step s - 1 is out and that of its neighbour is in.
    std::vector<int> sent(count, 0), arrived(count, 0), started(count, 1);
    // Tokens below `count`: the latency is over; above: the message has arrived.
    for (std::uint32_t f = 0; f < count; ++f) engine.start_timer(latency, f);
    while (const auto token = engine.next()) {
        if (*token < count) {
            engine.start_flow(bytes, 0, network.paths[*token], *token + count);
            continue;
        }
        const std::uint32_t flow = *token - count, ring = flow / static_cast<std::uint32_t>(network.devices),
                            d = flow % static_cast<std::uint32_t>(network.devices);
        const std::uint32_t next = ring * static_cast<std::uint32_t>(network.devices) +
                                   (d + 1) % static_cast<std::uint32_t>(network.devices);
        ++sent[flow];
        ++arrived[next];
        for (const std::uint32_t f : {flow, next})
            if (started[f] < steps && started[f] == sent[f] && started[f] <= arrived[f]) {
                ++started[f];
                engine.start_timer(engine.now() + latency, f);
            }
    }
    activities += engine.completed();
    return engine.now();
}

// Transfers of many sizes and starting times over shared links: no two events coincide.
double play_scattered(int transfers, std::uint64_t& activities) {
    constexpr int links = 256, concurrent = 512;
    sim::FlowEngine engine(std::vector<double>(links, 10e9));
    std::vector<std::vector<sim::ResourceUse>> paths;
    std::uint64_t state = 1;
    const auto random = [&state](std::uint64_t below) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<int>((state >> 33) % below);
    };
    // Out of a card and into another: pairs of neighbouring nodes, as in pipelines.
    for (int f = 0; f < concurrent; ++f) {
        const int from = f / 4 % 128, to = (from + 1) % 128;
        paths.push_back({{from, 1.0}, {128 + to, 1.0}});
    }
    int started = 0;
    for (std::uint32_t f = 0; f < concurrent; ++f) engine.start_timer(1e-6 * random(1000), f);
    while (const auto token = engine.next()) {
        if (*token < concurrent) {
            engine.start_flow(1e4 + random(1000000), 0, paths[*token], *token + concurrent);
        } else if (started < transfers) {
            ++started;
            engine.start_timer(engine.now() + 1e-6 * (1 + random(50)), *token - concurrent);
        }
    }
    activities += engine.completed();
    return engine.now();
}

}  // namespace

int main() {
    {
        const RingNetwork network(64, 8);
        double simulated = 0;
        std::uint64_t activities = 0;
        const double rate = median_of(5, [&] {
            activities = 0;
            const double start = processor_seconds();
            simulated = play_rings(network, 1e6, 5e-6, activities);
            return static_cast<double>(activities) / (processor_seconds() - start);
        });
        fmt::print(
            "  eight rings over 64 devices, two flows a network card: {:.2f} M activities/s on one core ({} "
            "activities, {:.3f} s simulated)\n",
            rate / 1e6, activities, simulated);
    }
    {
        std::uint64_t activities = 0;
        const double rate = median_of(5, [&] {
            activities = 0;
            const double start = processor_seconds();
            play_scattered(300000, activities);
            return static_cast<double>(activities) / (processor_seconds() - start);
        });
        fmt::print(
            "  512 transfers of random sizes at any time, four a card: {:.2f} M activities/s on one core\n",
            rate / 1e6);
    }
    // One ring of 64 messages a step, 126 steps.
    const RingNetwork network(64, 1);
    double simulated = 0;
    std::uint64_t activities = 0;
    constexpr int rounds = 20;
    const double ours = median_of(7, [&] {
        const double start = processor_seconds();
        for (int i = 0; i < rounds; ++i) simulated = play_rings(network, 1e6, 5e-6, activities);
        return (processor_seconds() - start) / rounds;
    });
    fmt::print(
        "  ring all-reduce over 64 devices, message by message: {:.3f} ms of processor time, {:.6f} s "
        "simulated\n",
        1e3 * ours, simulated);
    std::fflush(stdout);  // children must not print it again
    const std::vector<bench::SimgridRun> peers = bench::ring_on_simgrid(64, 1e6, 5e-6, 240e9, 10.6e9);
    if (peers.empty()) fmt::print("  SimGrid is not installed (libsimgrid-dev): no comparison\n");
    for (const bench::SimgridRun& peer : peers)
        fmt::print(
            "  the same on SimGrid {} ({}): {:.3f} ms of processor time, {:.6f} s simulated: {:.0f} times "
            "slower\n",
            peer.version, peer.how, 1e3 * peer.processor_seconds, peer.simulated_seconds,
            peer.processor_seconds / ours);
    return EXIT_SUCCESS;
}
