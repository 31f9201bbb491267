// NCCL buffers a few MiB of a message: a larger one leaves its sender when its receiver has come. Here
// nothing is buffered, and whatever may run does.
#include <catch2/catch.hpp>

#include <functional>
#include <optional>
#include <set>
#include <string>

#include "core/diagnostics.h"
#include "exec/cuda/rendezvous.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec_cuda/emulated_run.h"

using exec::cuda::Branches;
using exec::cuda::MessagePlan;
using exec::cuda::plan_messages;
using exec::cuda::RankWaits;
using exec::cuda::stuck_without_buffers;
using schedule::InstructionKind;

namespace {

// Every plan that the registered schedules allow for these numbers.
template <class Visit>
int for_each_schedule(const std::vector<int>& stages, const std::vector<int>& micro_batches,
                      std::size_t units, const Visit& visit) {
    int plans = 0;
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules())
        for (const int ranks : stages)
            for (const int count : micro_batches) {
                schedule::Plan plan = tiny::plan();
                plan.schedule = candidate.name;
                plan.layout.pipeline = ranks;
                plan.micro_batches = count;
                plan.micro_batch = 1;
                plan.virtual_stages = candidate.least_chunks;
                if (plan.stages() > static_cast<int>(units)) continue;
                core::Diagnostics diagnostics;
                if (!schedule::make_schedule(plan, diagnostics)) continue;
                INFO(candidate.name << ", " << ranks << " stages, " << count << " micro-batches");
                visit(candidate, plan);
                ++plans;
            }
    return plans;
}

// The most that a backend may wait for beyond a Program's order: every instruction for all before it in its
// list, but for messages that need not have been taken.
RankWaits strongest_waits(const schedule::Program& program, const MessagePlan& messages, int rank) {
    const auto c = static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(rank)]);
    const std::vector<schedule::Instruction>& list = program.classes[c].instructions;
    RankWaits waits;
    waits.of.resize(list.size());
    for (std::uint32_t i = 0; i < list.size(); ++i)
        for (std::uint32_t other = 0; other < i; ++other)
            if (list[other].kind != InstructionKind::send || messages.taken.empty() ||
                messages.taken[c][other] <= i)
                waits.of[i].push_back(other);
    return waits;
}

// TokenRange in a list of sends, or receives, of what belongs to micro-batches 0, 1, ...
std::vector<std::uint32_t> places_of(const schedule::RankProgram& list, InstructionKind kind) {
    std::vector<std::uint32_t> places;
    for (std::uint32_t i = 0; i < list.instructions.size(); ++i)
        if (list.instructions[i].kind == kind) places.push_back(i);
    return places;
}

}  // namespace

TEST_CASE(
    "with a stream for every channel no pipeline needs its messages buffered; with one for all V-shapes do") {
    const model::ModelGraph tied = tiny::gpt(16), untied = tiny::llama(16);
    std::set<std::string> stuck, with_channels;
    const int programs =
        for_each_schedule({2, 4}, {4, 8, 12}, tied.units.size(),
                          [&](const schedule::PipelineSchedule& candidate, schedule::Plan plan) {
                              plan.layout.data = plan.layout.pipeline == 2 ? 2 : 1;
                              const schedule::Program program =
                                  tiny::program_of(plan, candidate.is_asynchronous ? untied : tied);
                              CHECK_FALSE(stuck_without_buffers(program, true));
                              if (stuck_without_buffers(program, false))
                                  stuck.insert(std::string(candidate.name));
                              if (plan_messages(program).has_channels)
                                  with_channels.insert(std::string(candidate.name));
                          });
    CHECK(programs > 40);
    const std::set<std::string> v_shapes{"1f1b-v", "dualpipe-v", "v-half", "v-min", "zb-v", "zb-v-auto"};
    CHECK(stuck == v_shapes);
    CHECK(with_channels == v_shapes);
}

TEST_CASE("what is stuck is named") {
    // Two ranks of a V: rank 0 sends activations of many micro-batches before rank 1, which waits for a
    // gradient first, takes them.
    schedule::Plan plan = tiny::plan();
    plan.schedule = "zb-v";
    plan.layout.pipeline = 2;
    plan.virtual_stages = 2;
    plan.micro_batches = 8;
    CHECK_THAT(stuck_without_buffers(tiny::program_of(plan, tiny::gpt(4)), false).value(),
               Catch::Contains("rank 0: ") && Catch::Contains("send"));
}

TEST_CASE("whatever a backend waits for beyond a Program's order, no rank of any schedule deadlocks") {
    const model::ModelGraph tied = tiny::gpt(16), untied = tiny::llama(16);
    for_each_schedule({2, 3, 4}, {1, 4, 8, 12}, tied.units.size(),
                      [&](const schedule::PipelineSchedule& candidate, const schedule::Plan& plan) {
                          const schedule::Program program =
                              tiny::program_of(plan, candidate.is_asynchronous ? untied : tied);
                          const MessagePlan messages = plan_messages(program);
                          std::vector<RankWaits> waits;
                          for (int rank = 0; rank < plan.layout.ranks(); ++rank)
                              waits.push_back(strongest_waits(program, messages, rank));
                          CHECK_FALSE(stuck_without_buffers(program, messages.has_channels, waits));
                      });
}

TEST_CASE(
    "with the waits that memory adds on every rank and the host's own, no rank of any schedule and layout "
    "deadlocks") {
    const model::ModelGraph tied = tiny::gpt(8), untied = tiny::llama(8), mixture = tiny::mixtral(8);
    std::size_t reused = 0;
    const int plans = for_each_schedule(
        {2, 4}, {4, 8}, tied.units.size(),
        [&](const schedule::PipelineSchedule& candidate, const schedule::Plan& plain) {
            const auto check = [&](const char* what, const model::ModelGraph& graph,
                                   const std::function<void(schedule::Plan&)>& change) {
                schedule::Plan plan = plain;
                change(plan);
                INFO(what);
                const schedule::Program program = tiny::program_of(plan, graph);
                std::vector<RankWaits> waits;
                bool has_channels = false;
                for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
                    exec::cuda::RunPlan run = emulated::planned(plan, graph, rank, {.expert_room = 4});
                    has_channels = run.messages.has_channels;
                    reused += run.arena.reuse_edges;
                    CHECK(run.arena.data_edges == 0);
                    waits.push_back({std::move(run.arena.waits), std::move(run.host_waits)});
                }
                CHECK_FALSE(stuck_without_buffers(program, has_channels, waits));
            };
            const model::ModelGraph& graph = candidate.is_asynchronous ? untied : tied;
            const bool whole = !candidate.cuts_sequences(), flushes = !candidate.is_asynchronous,
                       trains = !candidate.is_forward_only;
            check("alone", graph, [](schedule::Plan&) {});
            check("recomputed", graph,
                  [](schedule::Plan& plan) { plan.recompute = schedule::Recompute::full; });
            check("tensor and sequence parallelism", graph, [](schedule::Plan& plan) {
                plan.layout.tensor = 2;
                plan.sequence_parallel = true;
            });
            check("products in pieces", graph, [](schedule::Plan& plan) {
                plan.layout.tensor = 2;
                plan.tensor_overlap = 3;
                plan.sequence_parallel = plan.layout.pipeline > 2;
            });
            for (const schedule::Sharding sharding :
                 {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients,
                  schedule::Sharding::parameters})
                if (flushes || sharding == schedule::Sharding::none)
                    check("replicas", graph, [&](schedule::Plan& plan) {
                        plan.layout.data = 2;
                        plan.sharding = sharding;
                    });
            check("experts", candidate.is_asynchronous ? untied : mixture, [&](schedule::Plan& plan) {
                if (!candidate.is_asynchronous) plan.layout.data = plan.layout.expert = 2;
            });
            if (whole)
                check("divided sequences", graph,
                      [](schedule::Plan& plan) { plan.layout.data = plan.layout.context = 2; });
            if (whole && trains)
                check("offload", graph, [](schedule::Plan& plan) {
                    plan.offload = schedule::Offload::host;
                    plan.activation_loading_horizon = 1;
                });
        });
    CHECK(plans > 40);
    CHECK(reused > 1000);
}

TEST_CASE(
    "where receives wait for the memory of what was sent before them, 1F1B deadlocks: two neighbours each "
    "wait for the other's message to be taken") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "1f1b";
    plan.layout.pipeline = 2;
    const schedule::Program program = tiny::program_of(plan, tiny::gpt(4));
    std::vector<RankWaits> waits(2);
    for (std::size_t rank = 0; rank < 2; ++rank) {
        const std::vector<schedule::Instruction>& list = program.classes[rank].instructions;
        waits[rank].of.resize(list.size());
        std::optional<std::uint32_t> last_sent;
        for (std::uint32_t i = 0; i < list.size(); ++i) {
            if (list[i].kind == InstructionKind::receive && last_sent)
                waits[rank].of[i].push_back(*last_sent);
            if (list[i].kind == InstructionKind::send) last_sent = i;
        }
    }
    CHECK_THAT(stuck_without_buffers(program, false, waits).value(),
               Catch::Contains("rank 0: ") && Catch::Contains("send activation 1"));
    CHECK_FALSE(stuck_without_buffers(program, false));
}

TEST_CASE(
    "in 1F1B an activation has surely been taken when its gradient comes, a gradient when the activation "
    "after next does") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "1f1b";
    plan.layout.pipeline = 2;
    const schedule::Program program = tiny::program_of(plan, tiny::llama(4));
    const MessagePlan messages = plan_messages(program);
    CHECK_FALSE(messages.has_channels);
    const auto sent = [&](std::size_t rank) {
        return places_of(program.classes[rank], InstructionKind::send);
    };
    const auto received = [&](std::size_t rank) {
        return places_of(program.classes[rank], InstructionKind::receive);
    };
    // Rank 1 sends the gradient of micro-batch k when it has received activation k and not yet k + 1.
    for (std::size_t k = 0; k < 4; ++k) CHECK(messages.taken[0][sent(0)[k]] == received(0)[k] + 1);
    // Rank 0 runs one micro-batch ahead: it sends activation k + 2 when it has received gradient k. Of the
    // last two nobody tells (where an embedding is tied, the sum of its gradients would).
    for (std::size_t k = 0; k < 2; ++k) CHECK(messages.taken[1][sent(1)[k]] == received(1)[k + 2] + 1);
    for (std::size_t k = 2; k < 4; ++k)
        CHECK(messages.taken[1][sent(1)[k]] == program.classes[1].instructions.size());
}

// What a graph's branches, or the streams of ranks that share a device, may do: one at a time.
TEST_CASE("where branches do not run at once, messages in the order of the list deadlock nobody") {
    const model::ModelGraph tied = tiny::gpt(16), untied = tiny::llama(16);
    int in_list_order = 0, refused = 0, stuck_without_order = 0;
    const auto check = [&](const model::ModelGraph& graph, const schedule::Plan& plan) {
        const schedule::Program program = tiny::program_of(plan, graph);
        const MessagePlan messages = plan_messages(program);
        if (!messages.holds_in_list_order) {
            ++refused;
            return;
        }
        ++in_list_order;
        std::vector<RankWaits> waits;
        for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
            exec::cuda::RunPlan run = emulated::planned(plan, graph, rank, {.captures_steps = true});
            waits.push_back({std::move(run.arena.waits), {}});
        }
        INFO(plan.schedule << ", pipeline " << plan.layout.pipeline << ", data " << plan.layout.data);
        for (const Branches branches : {Branches::first_alone, Branches::last_alone}) {
            CHECK_FALSE(stuck_without_buffers(program, false, waits, branches));
            stuck_without_order += stuck_without_buffers(program, false, {}, branches).has_value();
        }
    };
    for_each_schedule({2, 4}, {4, 8}, tied.units.size(),
                      [&](const schedule::PipelineSchedule& candidate, const schedule::Plan& plain) {
                          const model::ModelGraph& graph = candidate.is_asynchronous ? untied : tied;
                          check(graph, plain);
                          if (candidate.is_asynchronous) return;
                          schedule::Plan plan = plain;
                          plan.layout.data = 2;
                          plan.sharding = schedule::Sharding::parameters;
                          check(graph, plan);
                      });
    for (const schedule::Sharding sharding :
         {schedule::Sharding::none, schedule::Sharding::gradients, schedule::Sharding::parameters})
        for (const bool is_sequence_parallel : {false, true}) {
            schedule::Plan plan = tiny::plan();
            plan.layout.data = plan.layout.tensor = 2;
            plan.sequence_parallel = is_sequence_parallel;
            plan.sharding = sharding;
            check(tied, plan);
        }
    CHECK(in_list_order > 6);
    CHECK(refused > 0);              // 1F1B's neighbours send to each other at once
    CHECK(stuck_without_order > 0);  // the order is what keeps them from it
}

TEST_CASE("ranks that share a device have as many times the limit") {
    CHECK(exec::cuda::ranks_of_a_device(1, 1) == 1);
    CHECK(exec::cuda::ranks_of_a_device(8, 8) == 1);
    CHECK(exec::cuda::ranks_of_a_device(2, 1) == 2);
    CHECK(exec::cuda::ranks_of_a_device(5, 2) == 3);
    CHECK(exec::cuda::ranks_of_a_device(1, 8) == 1);
    CHECK(exec::cuda::ranks_of_a_device(4, 0) == 1);
}

TEST_CASE("where ranks could wait for every message to be taken, what was sent is given back at once") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "gpipe";
    plan.layout.pipeline = 3;
    const MessagePlan messages = plan_messages(tiny::program_of(plan, tiny::gpt(4)));
    CHECK_FALSE(messages.has_channels);
    CHECK(messages.taken.empty());
}

TEST_CASE("a host that waits for a size launches nothing behind it, and a circle through that is found") {
    // Rank 0's host waits for its first receive before it launches the send that rank 1 needs to get there.
    schedule::Plan plan = tiny::plan();
    plan.schedule = "1f1b";
    plan.layout.pipeline = 2;
    const schedule::Program program = tiny::program_of(plan, tiny::gpt(4));
    std::vector<RankWaits> waits(2);
    CHECK_FALSE(stuck_without_buffers(program, false, waits));
    waits[0].host = {places_of(program.classes[0], InstructionKind::receive)[0]};
    CHECK_FALSE(stuck_without_buffers(program, false, waits));  // what it waits for comes first in the list
    waits[1].of.resize(program.classes[1].instructions.size());
    const std::uint32_t first = places_of(program.classes[1], InstructionKind::send)[0],
                        second = places_of(program.classes[1], InstructionKind::receive)[2];
    waits[1].of[first] = {second};  // which no list allows
    CHECK(stuck_without_buffers(program, false, waits));
}
