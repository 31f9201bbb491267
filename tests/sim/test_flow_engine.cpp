#include <catch2/catch.hpp>

#include <map>
#include <vector>

#include "core/random.h"
#include "sim/engine/flow_engine.h"

namespace {

using Uses = std::vector<sim::ResourceUse>;

// Time at which each token came.
std::map<std::uint32_t, double> run(sim::FlowEngine& engine) {
    std::map<std::uint32_t, double> ends;
    while (const auto token = engine.next()) ends[*token] = engine.now();
    return ends;
}

}  // namespace

TEST_CASE("two flows on one link get half each, and the second all of it when the first is done") {
    // 10 units a second: 20 and 40 units. Both at 5 until t = 4, then 20 units at 10: t = 6.
    sim::FlowEngine engine({10.0}, true);
    const Uses link = {{0, 1.0}};
    engine.start_flow(20, 0, link, 1);
    engine.start_flow(40, 0, link, 2);
    const auto ends = run(engine);
    REQUIRE(ends.at(1) == Approx(4));
    REQUIRE(ends.at(2) == Approx(6));
    REQUIRE(engine.used(0) == Approx(60));
}

TEST_CASE("a flow that starts later takes its part from then on") {
    // Alone from 0 to 1 at 10: 10 of 30 units. Shared at 5: the other's 10 units take until 3; then 10 left
    // at 10: t = 4.
    sim::FlowEngine engine({10.0});
    const Uses link = {{0, 1.0}};
    engine.start_flow(30, 0, link, 1);
    engine.start_timer(1, 7);
    REQUIRE(engine.next() == 7u);
    engine.start_flow(10, 0, link, 2);
    const auto ends = run(engine);
    REQUIRE(ends.at(2) == Approx(3));
    REQUIRE(ends.at(1) == Approx(4));
}

TEST_CASE("what one flow cannot use others get: max-min over a chain of links") {
    // Links a = 10, b = 4. Flow 1 on a and b, flow 2 on a, flow 3 on b. b gives 2 each to flows 1 and 3; a
    // leaves 8 to flow 2.
    sim::FlowEngine engine({10.0, 4.0});
    const Uses both = {{0, 1.0}, {1, 1.0}}, a = {{0, 1.0}}, b = {{1, 1.0}};
    engine.start_flow(2, 0, both, 1);
    engine.start_flow(8, 0, a, 2);
    engine.start_flow(2, 0, b, 3);
    for (const auto& [token, time] : run(engine)) REQUIRE(time == Approx(1));
}

TEST_CASE("a flow's own limit leaves the rest to others: TCP flows of 5 Gbit/s beside one without a limit") {
    sim::FlowEngine engine({10.0});
    const Uses link = {{0, 1.0}};
    engine.start_flow(2, 2, link, 1);  // at 2 a second
    engine.start_flow(8, 0, link, 2);  // at 8
    const auto ends = run(engine);
    REQUIRE(ends.at(1) == Approx(1));
    REQUIRE(ends.at(2) == Approx(1));
}

TEST_CASE(
    "weights and shares: a flow with weight two gets twice the level, and takes of a link what its share "
    "says") {
    sim::FlowEngine weighted({9.0});
    const Uses link = {{0, 1.0}};
    weighted.start_flow(6, 0, link, 1, 2.0);
    weighted.start_flow(3, 0, link, 2);
    for (const auto& [token, time] : run(weighted)) REQUIRE(time == Approx(1));
    // Half a unit of the link for each unit of work: alone 20 a second.
    sim::FlowEngine shared({10.0}, true);
    const Uses half = {{0, 0.5}};
    shared.start_flow(40, 0, half, 1);
    REQUIRE(run(shared).at(1) == Approx(2));
    REQUIRE(shared.used(0) == Approx(20));
}

TEST_CASE("flows that share nothing do not touch each other, and ties come in the order of the calls") {
    sim::FlowEngine engine({10.0, 10.0});
    const Uses a = {{0, 1.0}}, b = {{1, 1.0}};
    engine.start_flow(10, 0, a, 5);
    engine.start_flow(10, 0, b, 4);
    engine.start_timer(1, 3);
    REQUIRE(engine.next() == 3u);  // queued before time moved on
    REQUIRE(engine.next() == 5u);
    REQUIRE(engine.next() == 4u);
    REQUIRE(!engine.next());
    REQUIRE(engine.completed() == 3);
}

TEST_CASE(
    "on random networks every link carries exactly the bytes of the flows that cross it, and is never more "
    "than full") {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        core::Random random(seed);
        const int links = 6;
        std::vector<double> capacities;
        for (int l = 0; l < links; ++l) capacities.push_back(1.0 + 9.0 * random.uniform());
        sim::FlowEngine engine(capacities, true);
        std::vector<Uses> uses(40);
        std::vector<double> work(40);
        std::vector<double> expected(links, 0);
        for (std::size_t f = 0; f < uses.size(); ++f) {
            for (int l = 0; l < links; ++l)
                if (random.uniform() < 0.4) uses[f].push_back({l, 0.25 + random.uniform()});
            if (uses[f].empty()) uses[f].push_back({0, 1.0});
            work[f] = 1 + 10 * random.uniform();
            for (const sim::ResourceUse& use : uses[f])
                expected[static_cast<std::size_t>(use.resource)] += use.share * work[f];
            engine.start_timer(5 * random.uniform(), static_cast<std::uint32_t>(f));
        }
        int ended = 0;
        double before = 0;
        while (const auto token = engine.next()) {
            REQUIRE(engine.now() >= before);
            before = engine.now();
            if (*token < 40)
                engine.start_flow(work[*token], *token % 3 == 0 ? 2.0 : 0.0, uses[*token], *token + 40);
            else ++ended;
            // Rates in force fill no link beyond its capacity.
            std::vector<double> load(links, 0);
            for (std::uint32_t f = 0; f < 40; ++f)
                if (const auto rate = engine.rate_of(f + 40))
                    for (const sim::ResourceUse& use : uses[f])
                        load[static_cast<std::size_t>(use.resource)] += use.share * *rate;
            for (int l = 0; l < links; ++l)
                REQUIRE(load[static_cast<std::size_t>(l)] <=
                        capacities[static_cast<std::size_t>(l)] * (1 + 1e-9));
        }
        REQUIRE(ended == 40);
        for (int l = 0; l < links; ++l) {
            REQUIRE(engine.used(l) == Approx(expected[static_cast<std::size_t>(l)]).epsilon(1e-9));
            REQUIRE(expected[static_cast<std::size_t>(l)] <=
                    capacities[static_cast<std::size_t>(l)] * engine.now() * (1 + 1e-9));
        }
    }
}
