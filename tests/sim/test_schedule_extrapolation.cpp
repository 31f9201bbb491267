#include <catch2/catch.hpp>

#include "core/random.h"
#include "sim/engine/schedule_extrapolation.h"

namespace {

sim::ScheduleCosts random_costs(core::Random& random, int stages, bool has_whole_numbers) {
    sim::ScheduleCosts costs;
    costs.stages.clear();
    auto time = [&] {
        return core::Seconds(has_whole_numbers ? 1.0 + static_cast<double>(random.below(6))
                                               : 0.5 + random.uniform());
    };
    for (int s = 0; s < stages; ++s) costs.stages.push_back({time(), time(), time()});
    costs.transfer =
        core::Seconds(has_whole_numbers ? static_cast<double>(random.below(2)) : 0.1 * random.uniform());
    return costs;
}

}  // namespace

TEST_CASE("A long step extrapolated from its periodic part takes as long as the step played in full") {
    core::Random random(17);
    int extrapolated = 0, timed = 0;
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules())
        for (const int ranks : {1, 2, 3, 4, 6, 8})
            for (int chunks = entry.least_chunks; chunks <= std::min(3, entry.greatest_chunks); ++chunks)
                for (const int micro_batches : {48, 96, 131, 240})
                    for (const bool has_whole_numbers : {true, false}) {
                        schedule::PipelineShape shape;
                        shape.ranks = ranks;
                        shape.chunks = chunks;
                        shape.micro_batches = micro_batches;
                        if (unsupported(entry, shape)) continue;
                        INFO(entry.name << " p " << ranks << " v " << chunks << " m " << micro_batches);
                        const sim::ScheduleCosts costs =
                            random_costs(random, shape.stages(), has_whole_numbers);
                        const sim::ExtrapolatedTiming fast = time_extrapolated(entry, shape, costs);
                        const sim::ScheduleTiming whole = time_schedule(entry.generate(shape), costs);
                        if (has_whole_numbers) {
                            CHECK(fast.makespan == whole.makespan);
                            CHECK(fast.greatest_span == whole.greatest_span());
                        } else {
                            CHECK(fast.makespan.value == Approx(whole.makespan.value).epsilon(1e-11));
                            CHECK(fast.greatest_span.value ==
                                  Approx(whole.greatest_span().value).epsilon(1e-11));
                        }
                        ++timed;
                        extrapolated += fast.block > 0;
                    }
    CHECK(timed > 500);
    CHECK(extrapolated > timed / 3);
    WARN(extrapolated << " of " << timed << " steps were extrapolated");
}

TEST_CASE("1F1B with equal stages grows by one forward and backward per micro-batch") {
    schedule::PipelineShape shape;
    shape.ranks = 4;
    shape.micro_batches = 1 << 20;
    const sim::ExtrapolatedTiming timing =
        sim::time_extrapolated(*schedule::find_pipeline_schedule("1f1b"), shape, {});
    CHECK(timing.makespan.value == 3.0 * (shape.micro_batches + 3));  // (m + p - 1)(F + B)
    CHECK(timing.per_block.value == 3.0 * timing.block);
    CHECK(timing.played_micro_batches < 64);
}
