#include <catch2/catch.hpp>

#include <set>

#include "schedule/pipeline/registry.h"

TEST_CASE("Names and aliases of pipeline schedules are unique and find their schedule") {
    std::set<std::string> seen;
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules()) {
        INFO(entry.name);
        CHECK(seen.insert(entry.name).second);
        CHECK(schedule::find_pipeline_schedule(entry.name) == &entry);
        for (const std::string& alias : entry.aliases) {
            CHECK(seen.insert(alias).second);
            CHECK(schedule::find_pipeline_schedule(alias) == &entry);
        }
        CHECK_FALSE(entry.summary.empty());
        CHECK_FALSE(entry.source.empty());
        CHECK_FALSE(entry.bubble.empty());
        CHECK_FALSE(entry.in_flight.empty());
        CHECK_FALSE(entry.constraint.empty());
    }
    CHECK(schedule::find_pipeline_schedule("gpipe") == schedule::find_pipeline_schedule("simple"));
    CHECK(schedule::find_pipeline_schedule("interleaved") !=
          schedule::find_pipeline_schedule("interleaved-1f1b"));
    CHECK(schedule::find_pipeline_schedule("no such schedule") == nullptr);
}

TEST_CASE("A shape outside a schedule's constraint is refused with the shape's numbers") {
    schedule::PipelineShape shape;
    shape.ranks = 4;
    shape.chunks = 2;
    shape.micro_batches = 6;
    const schedule::PipelineSchedule& interleaved = *schedule::find_pipeline_schedule("interleaved-1f1b");
    const std::optional<core::Unsupported> reason = unsupported(interleaved, shape);
    REQUIRE(reason);
    CHECK(reason->reason.find("2 of 6 micro-batches") != std::string::npos);
    shape.parameters = schedule::GroupParameters{3};
    CHECK(unsupported(interleaved, shape));  // smaller than the ranks
    shape.parameters = schedule::GroupParameters{6};
    CHECK_FALSE(unsupported(interleaved, shape));
    CHECK(unsupported(*schedule::find_pipeline_schedule("1f1b"), shape));  // one chunk only
    shape.micro_batches = 0;
    CHECK(unsupported(interleaved, shape));
}
