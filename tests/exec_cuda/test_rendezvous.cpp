// NCCL buffers a few MiB of a message: a larger one leaves its sender when its receiver has come. Here nothing is buffered, and whatever may run does.
#include <catch2/catch.hpp>

#include <set>
#include <string>

#include "exec/cuda/rendezvous.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"

using exec::cuda::stuck_without_buffers;

TEST_CASE("with a stream for every channel no pipeline needs its messages buffered; with one for all V-shapes do") {
    const model::ModelGraph tied = tiny::gpt(16), untied = tiny::llama(16);
    int programs = 0;
    std::set<std::string> stuck;
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules())
        for (const int stages : {2, 4})
            for (const int micro_batches : {4, 8, 12}) {
                const model::ModelGraph& graph = candidate.is_asynchronous ? untied : tied;
                schedule::Plan plan = tiny::plan();
                plan.schedule = candidate.name;
                plan.layout.pipeline = stages;
                plan.layout.data = stages == 2 ? 2 : 1;
                plan.micro_batches = micro_batches;
                plan.micro_batch = 1;
                plan.virtual_stages = candidate.least_chunks;
                if (plan.stages() > static_cast<int>(graph.units.size())) continue;
                core::Diagnostics diagnostics;
                if (!schedule::make_schedule(plan, diagnostics)) continue;
                INFO(candidate.name << ", " << stages << " stages, " << micro_batches << " micro-batches");
                ++programs;
                const schedule::Program program = tiny::program_of(plan, graph);
                CHECK(stuck_without_buffers(program, true) == "");
                if (!stuck_without_buffers(program, false).empty()) stuck.insert(std::string(candidate.name));
            }
    CHECK(programs > 40);
    const std::set<std::string> v_shapes{"1f1b-v", "dualpipe-v", "v-half", "v-min", "zb-v", "zb-v-auto"};
    CHECK(stuck == v_shapes);
}

TEST_CASE("what is stuck is named") {
    // Two ranks of a V: rank 0 sends activations of many micro-batches before rank 1, which waits for a gradient first, takes them.
    schedule::Plan plan = tiny::plan();
    plan.schedule = "zb-v";
    plan.layout.pipeline = 2;
    plan.virtual_stages = 2;
    plan.micro_batches = 8;
    CHECK_THAT(stuck_without_buffers(tiny::program_of(plan, tiny::gpt(4)), false), Catch::Contains("rank 0: ") && Catch::Contains("send"));
}
