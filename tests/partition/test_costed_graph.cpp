#include <catch2/catch.hpp>

#include <optional>
#include <string>

#include "core/diagnostics.h"
#include "core/document.h"
#include "partition/placement.h"
#include "partition/reader/costed_graph.h"

using namespace partition;

namespace {

PlacementProblem read(const std::string& toml, bool is_contiguous = true) {
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(toml, "graph.toml", diagnostics);
    REQUIRE(document);
    const std::optional<PlacementProblem> problem =
        read_costed_graph(*document, diagnostics, {.bandwidth = {}, .is_contiguous = is_contiguous});
    INFO(core::format(diagnostics));
    REQUIRE(problem);
    return *problem;
}

}  // namespace

TEST_CASE("a CPU's speed divides cpu_time, as a device's divides time") {
    for (const bool is_cpu : {true, false}) {
        const std::string kind = is_cpu ? "cpu = true\n" : "";
        const PlacementProblem problem = read("version = 1\n[[device]]\n" + kind +
                                              "speed = 4.0\n[[node]]\nname = \"only\"\ntime = \"1s\"\n");
        for (const PlacementResult& result : {place_contiguous(problem), place_anywhere(problem)}) {
            REQUIRE(result.is_proven_optimal);
            CHECK(result.objective == core::Seconds(0.25));
            CHECK(result.lower_bound == core::Seconds(0.25));
        }
    }
    // Of two kinds of CPUs the fast one takes three nodes while the slow one takes one: 3 s / 3 = 1 s / 1.
    std::string text =
        "version = 1\n[[device]]\nname = \"fast\"\ncpu = true\nspeed = 3.0\n[[device]]\nname = \"slow\"\ncpu "
        "= true\n";
    for (const char* name : {"a", "b", "c", "d"})
        text += "[[node]]\nname = \"" + std::string(name) + "\"\ntime = \"1s\"\n";
    const PlacementResult result = place_contiguous(read(text));
    REQUIRE(result.is_proven_optimal);
    CHECK(result.objective == core::Seconds(1));
}

TEST_CASE("output_time is of one way, as output is: in training the gradient returns and takes as long") {
    for (const bool trains : {true, false}) {
        const std::string begin =
            std::string("version = 1\n[graph]\ndevices = 2\nbandwidth = \"1MB/s\"\ntraining = ") +
            (trains ? "true" : "false") + "\n";
        const std::string node = "[[node]]\nname = \"a\"\ntime = \"5s\"\n",
                          next = "\n[[node]]\nname = \"b\"\ntime = \"5s\"\ninputs = [\"a\"]\n";
        for (const char* output :
             {"output = \"1MB\"", "output_time = \"1s\"", "output = \"7MB\"\noutput_time = \"1s\""}) {
            const PlacementResult result = place_contiguous(read(begin + node + output + next));
            INFO(output);
            REQUIRE(result.is_proven_optimal);
            CHECK(result.objective == core::Seconds(trains ? 7 : 6));  // 5 s of work, 1 s each way
        }
    }
}

TEST_CASE("colocated nodes part from what they enclose only where stages need not be contiguous") {
    const std::string text =
        "version = 1\n[graph]\ndevices = 2\n"
        "[[node]]\nname = \"first\"\ntime = \"1s\"\ncolocate = \"ends\"\n"
        "[[node]]\nname = \"middle\"\ntime = \"3s\"\ninputs = [\"first\"]\n"
        "[[node]]\nname = \"last\"\ntime = \"1s\"\ninputs = [\"middle\"]\ncolocate = \"ends\"\n";
    const PlacementResult contiguous = place_contiguous(read(text));
    REQUIRE(contiguous.is_proven_optimal);
    CHECK(contiguous.objective == core::Seconds(5));  // all three on one device
    const PlacementResult free = place_anywhere(read(text, false));
    REQUIRE(free.is_proven_optimal);
    CHECK(free.objective == core::Seconds(3));  // the ends, 2 s, beside the middle
}
