#include <catch2/catch.hpp>

#include "sim/engine/shared_cores.h"
#include "tests/sim/tiny_program.h"

namespace {

using core::Seconds;
using tiny::Order;

sim::Durations times(const schedule::Program& program, double forward, double backward, double transfer) {
    const std::size_t n = program.stages.size();
    return sim::durations_of(
        program, {std::vector<Seconds>(n, Seconds(forward)), std::vector<Seconds>(n, Seconds(backward / 2)),
                  std::vector<Seconds>(n, Seconds(backward / 2)), Seconds(transfer)});
}

}  // namespace

TEST_CASE("with a core for every rank, shared cores equal the serial clock") {
    for (Order order : {Order::all_forward_first, Order::one_forward_one_backward})
        for (int p = 1; p <= 4; ++p)
            for (int m : {1, 2, 5}) {
                const schedule::Program program = tiny::pipeline(p, m, order, 2, 1);
                const sim::Durations durations = times(program, 1, 2, 0.25);
                const sim::Simulation serial =
                    sim::simulate(program, durations, {.has_concurrent_streams = false, .is_folded = false});
                const sim::Simulation shared = sim::simulate_shared_cores(program, durations, 2 * p);
                REQUIRE(shared.timeline.makespan.value == Approx(serial.timeline.makespan.value));
                for (std::size_t r = 0; r < serial.timeline.spans.size(); ++r)
                    for (std::size_t i = 0; i < serial.timeline.spans[r].size(); ++i) {
                        REQUIRE(shared.timeline.spans[r][i].start.value ==
                                Approx(serial.timeline.spans[r][i].start.value));
                        REQUIRE(shared.timeline.spans[r][i].end.value ==
                                Approx(serial.timeline.spans[r][i].end.value));
                    }
            }
}

TEST_CASE(
    "two equal ranks on one core take twice as long as one, and the work of all ranks bounds the makespan "
    "from below") {
    const schedule::Program program = tiny::pipeline(1, 3, Order::one_forward_one_backward, 2, 1);
    const sim::Durations durations = times(program, 1, 2, 0);
    REQUIRE(sim::simulate_shared_cores(program, durations, 1).timeline.makespan.value == Approx(18.0));
    REQUIRE(sim::simulate_shared_cores(program, durations, 2).timeline.makespan.value == Approx(9.0));
}

TEST_CASE("a pipeline on one core has no bubble: waiting ranks take nothing") {
    for (int p = 1; p <= 4; ++p)
        for (int m : {1, 3, 6}) {
            const schedule::Program program = tiny::pipeline(p, m, Order::one_forward_one_backward);
            // One core is never idle while any rank can work: the sum of all work.
            REQUIRE(sim::simulate_shared_cores(program, times(program, 1, 2, 0), 1).timeline.makespan.value ==
                    Approx(p * m * 3.0));
        }
}

TEST_CASE("a rank that leaves gives its share back at once") {
    // Work 1 and 3 on one core: both at half speed until 2, then the longer alone for its last 2.
    schedule::Program program;
    program.plan.layout = {1, 1, 2, "PDT"};
    program.stages.resize(2);
    sim::Durations durations;
    for (int p = 0; p < 2; ++p) {
        tiny::Builder b;
        b.list.pipeline = p;
        b.add(tiny::compute(schedule::ComputePhase::forward, p, 0));
        program.classes.push_back(b.list);
        program.class_of_rank.push_back(p);
        durations.of.push_back({Seconds(p == 0 ? 1 : 3)});
    }
    const sim::Simulation result = sim::simulate_shared_cores(program, durations, 1);
    REQUIRE(result.end[0].value == Approx(2.0));
    REQUIRE(result.end[1].value == Approx(4.0));
}
