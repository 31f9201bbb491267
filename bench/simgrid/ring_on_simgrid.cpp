// Two ways a SimGrid user would write it: an actor per device with mailboxes, and a graph of one-sided
// transfers without actors. SimGrid's engine is one a process, so each runs in a child of its own, timed
// there. The network model is the plain one (CM02, no cross traffic, no TCP window), as cheap as SimGrid
// offers.
#include "bench/ring_on_simgrid.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <simgrid/version.h>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <simgrid/s4u.hpp>
#include <string>

namespace bench {

namespace {

namespace s4u = simgrid::s4u;

double processor_seconds() {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

struct Task {
    int devices;
    double bytes, latency, port, card;
};

std::vector<s4u::Host*> build_platform(const Task& task) {
    auto* zone = s4u::create_full_zone("cluster");
    std::vector<s4u::Host*> hosts;
    std::vector<s4u::Link*> out, in, card_out, card_in;
    for (int d = 0; d < task.devices; ++d) {
        const std::string name = std::to_string(d);
        hosts.push_back(zone->create_host("device" + name, 1e9));
        out.push_back(zone->create_link("out" + name, task.port)->set_latency(task.latency));
        in.push_back(zone->create_link("in" + name, task.port)->set_latency(0));
    }
    for (int c = 0; c < task.devices / 2; ++c) {
        const std::string name = std::to_string(c);
        card_out.push_back(zone->create_link("card_out" + name, task.card)->set_latency(0));
        card_in.push_back(zone->create_link("card_in" + name, task.card)->set_latency(0));
    }
    for (int d = 0; d < task.devices; ++d) {
        const int next = (d + 1) % task.devices;
        const auto from = static_cast<std::size_t>(d), to = static_cast<std::size_t>(next);
        std::vector<s4u::LinkInRoute> route = {s4u::LinkInRoute(out[from]), s4u::LinkInRoute(in[to])};
        if (d / 8 != next / 8) {
            route.emplace_back(card_out[from / 2]);
            route.emplace_back(card_in[to / 2]);
        }
        zone->add_route(hosts[from]->get_netpoint(), hosts[to]->get_netpoint(), nullptr, nullptr, route,
                        false);
    }
    zone->seal();
    return hosts;
}

// A device of the ring: sends step s when the message of step s - 1 has come.
void ring_device(const Task& task, int device) {
    auto* from = s4u::Mailbox::by_name(std::to_string(device));
    auto* to = s4u::Mailbox::by_name(std::to_string((device + 1) % task.devices));
    static int payload = 0;
    for (int step = 0; step < 2 * (task.devices - 1); ++step) {
        const s4u::CommPtr sent = to->put_async(&payload, static_cast<std::uint64_t>(task.bytes));
        from->get<int>();
        sent->wait();
    }
}

void play_with_actors(const Task& task, const std::vector<s4u::Host*>& hosts) {
    for (int d = 0; d < task.devices; ++d)
        s4u::Actor::create("ring" + std::to_string(d), hosts[static_cast<std::size_t>(d)],
                           [&task, d] { ring_device(task, d); });
    s4u::Engine::get_instance()->run();
}

void play_as_graph(const Task& task, const std::vector<s4u::Host*>& hosts) {
    const int steps = 2 * (task.devices - 1);
    std::vector<s4u::CommPtr> before(static_cast<std::size_t>(task.devices));
    std::vector<s4u::CommPtr> all, first;
    for (int step = 0; step < steps; ++step) {
        std::vector<s4u::CommPtr> now;
        for (int d = 0; d < task.devices; ++d) {
            const auto from = static_cast<std::size_t>(d),
                       to = static_cast<std::size_t>((d + 1) % task.devices);
            s4u::CommPtr message = s4u::Comm::sendto_init(hosts[from], hosts[to]);
            message->set_name(std::to_string(step) + ":" + std::to_string(d));
            message->set_payload_size(static_cast<std::uint64_t>(task.bytes));
            const auto predecessor = static_cast<std::size_t>((d + task.devices - 1) % task.devices);
            if (step > 0) {
                before[predecessor]->add_successor(message);
                before[from]->add_successor(message);
            }
            now.push_back(message);
            all.push_back(message);
        }
        before = now;
    }
    for (const s4u::CommPtr& message : all) message->vetoable_start();
    s4u::Engine::get_instance()->run();
}

SimgridRun in_one_child(const std::string& how, const Task& task,
                        const std::function<void(const Task&, const std::vector<s4u::Host*>&)>& play) {
    SimgridRun run;
    run.how = how;
    int pipe_ends[2];
    if (pipe(pipe_ends) != 0) return run;
    const pid_t child = fork();
    if (child == 0) {
        std::string name = "bench", model = "--cfg=network/model:CM02",
                    cross = "--cfg=network/crosstraffic:0", window = "--cfg=network/TCP-gamma:0",
                    quiet = "--log=root.thres:error";
        char* arguments[] = {name.data(), model.data(), cross.data(), window.data(), quiet.data(), nullptr};
        int count = 5;
        s4u::Engine engine(&count, arguments);
        const std::vector<s4u::Host*> hosts = build_platform(task);
        const double start = processor_seconds();
        play(task, hosts);
        const double figures[2] = {processor_seconds() - start, s4u::Engine::get_clock()};
        const bool is_written =
            write(pipe_ends[1], figures, sizeof figures) == static_cast<ssize_t>(sizeof figures);
        _exit(is_written ? 0 : 1);
    }
    close(pipe_ends[1]);
    double figures[2] = {0, 0};
    if (read(pipe_ends[0], figures, sizeof figures) == static_cast<ssize_t>(sizeof figures)) {
        run.processor_seconds = figures[0];
        run.simulated_seconds = figures[1];
    }
    close(pipe_ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return run;
}

// The median of five.
SimgridRun in_a_child(const std::string& how, const Task& task,
                      const std::function<void(const Task&, const std::vector<s4u::Host*>&)>& play) {
    std::vector<SimgridRun> runs;
    for (int i = 0; i < 5; ++i) runs.push_back(in_one_child(how, task, play));
    std::sort(runs.begin(), runs.end(), [](const SimgridRun& a, const SimgridRun& b) {
        return a.processor_seconds < b.processor_seconds;
    });
    return runs[2];
}

}  // namespace

std::vector<SimgridRun> ring_on_simgrid(int devices, double bytes, double latency, double port, double card) {
    const Task task{devices, bytes, latency, port, card};
    std::vector<SimgridRun> runs = {in_a_child("an actor per device", task, play_with_actors),
                                    in_a_child("a graph of transfers, no actors", task, play_as_graph)};
    for (SimgridRun& run : runs)
        run.version = std::to_string(SIMGRID_VERSION_MAJOR) + "." + std::to_string(SIMGRID_VERSION_MINOR);
    return runs;
}

}  // namespace bench
