// Two clocks for one order: the longest path through the compute list, and the event simulation of the
// Program that it is lowered to.
#include <catch2/catch.hpp>

#include "core/random.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/verify.h"
#include "sim/engine/schedule_timing.h"
#include "sim/engine/simulate.h"

TEST_CASE(
    "Every registered schedule takes as long in the simulated Program as its longest path says, for unequal "
    "stages and transfers") {
    core::Random random(23);
    int orders = 0, simulated = 0;
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules())
        for (int ranks = 1; ranks <= 8; ++ranks)
            for (int chunks = 1; chunks <= 3; ++chunks)
                for (const int micro_batches : {1, 2, 3, 4, 5, 6, 8, 12, 16}) {
                    schedule::PipelineShape shape;
                    shape.ranks = ranks;
                    shape.chunks = chunks;
                    shape.micro_batches = micro_batches;
                    if (unsupported(entry, shape)) continue;
                    INFO(entry.name << " p " << ranks << " v " << chunks << " m " << micro_batches);
                    const schedule::Schedule order = entry.generate(shape);
                    CHECK(verify(order).empty());
                    ++orders;
                    sim::ScheduleCosts costs;
                    costs.stages.clear();
                    auto time = [&] {
                        return core::Seconds(1 + 0.25 * static_cast<double>(random.below(8)));
                    };
                    for (int s = 0; s < order.stages; ++s) costs.stages.push_back({time(), time(), time()});
                    costs.transfer =
                        core::Seconds(0.25);  // shorter than any action: a rank's transfers never queue
                    const sim::ScheduleTiming timing = time_schedule(order, costs);
                    double work = 0;
                    for (const core::Seconds busy : timing.rank_work) work += busy.value;
                    CHECK(timing.makespan.value * ranks >= work * (1 - 1e-12));
                    CHECK(timing.greatest_span() <= timing.makespan);
                    if (entry.cuts_sequences()) continue;  // a Program works on whole sequences
                    const schedule::Program program = schedule::lower_compute_only(order);
                    CHECK(verify(program).empty());
                    sim::StageTimes times;
                    for (std::size_t s = 0; s < program.stages.size(); ++s) {
                        const sim::StageCost& cost = costs.stages[s % costs.stages.size()];
                        times.forward.push_back(cost.forward);
                        times.backward_input.push_back(cost.backward_input);
                        times.backward_weight.push_back(cost.backward_weight);
                    }
                    times.transfer = costs.transfer;
                    const sim::Simulation simulation = simulate(program, durations_of(program, times));
                    double last = 0;
                    for (const core::Seconds end : simulation.end) last = std::max(last, end.value);
                    // An overlapped forward and backward is one slot for the longest path, two instructions
                    // for the Program: its forward is sent on sooner.
                    if (entry.overlaps_forward_backward) CHECK(last <= timing.makespan.value * (1 + 1e-9));
                    else CHECK(last == Approx(timing.makespan.value).epsilon(1e-9));
                    ++simulated;
                }
    CHECK(orders > 1000);
    WARN(orders << " orders verified and timed, " << simulated << " of them simulated as Programs");
}
