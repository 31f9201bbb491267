#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <set>
#include <string>

#include "core/diagnostics.h"
#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"

namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;

Schedule parsed(const std::string& text) {
    core::Diagnostics diagnostics;
    const std::optional<Schedule> result = schedule::parse_schedule(text, "list.csv", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(result);
    return *result;
}

// Two stages, two micro-batches, everything a list may hold.
const char* const complete_list =
    "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD,0OPT\n"
    "1UNSHARD,1RECV_F0,1F0,1I0,1SEND_B0,1W0,1RECV_F1,1F1,1B1,1SEND_B1,1RESHARD,1REDUCE_GRAD,1OPT\n";

struct Mutation {
    std::string what;
    std::function<void(Schedule&)> change;
    std::string rule;
    // Of the violation that names the fault.
    int rank;
    std::optional<int> position;
};

auto& list(Schedule& schedule, int rank) { return schedule.actions[static_cast<std::size_t>(rank)]; }
void erase(Schedule& schedule, int rank, int position) {
    list(schedule, rank).erase(list(schedule, rank).begin() + position);
}
void insert(Schedule& schedule, int rank, int position, Action action) {
    list(schedule, rank).insert(list(schedule, rank).begin() + position, action);
}
void swap(Schedule& schedule, int rank, int a, int b) {
    std::swap(list(schedule, rank)[static_cast<std::size_t>(a)],
              list(schedule, rank)[static_cast<std::size_t>(b)]);
}
Action& cell(Schedule& schedule, int rank, int position) {
    return list(schedule, rank)[static_cast<std::size_t>(position)];
}

void check_mutation(const Schedule& good, const Mutation& mutation,
                    const schedule::ScheduleLimits& limits = {}) {
    INFO(mutation.what);
    REQUIRE(verify(good, limits).empty());
    Schedule bad = good;
    mutation.change(bad);
    const std::vector<schedule::Violation> violations = verify(bad, limits);
    std::string found;
    for (const schedule::Violation& v : violations)
        found += v.rule + " at " + std::to_string(v.rank.value_or(-1)) + "," +
                 std::to_string(v.position.value_or(-1)) + ": " + v.message + "\n";
    INFO(found);
    const bool is_named =
        std::any_of(violations.begin(), violations.end(), [&](const schedule::Violation& v) {
            return v.rule == mutation.rule && v.rank == mutation.rank && v.position == mutation.position;
        });
    CHECK(is_named);
    // Every violation of a single fault speaks of that rule.
    CHECK(std::all_of(violations.begin(), violations.end(),
                      [&](const schedule::Violation& v) { return v.rule == mutation.rule; }));
    if (!violations.empty()) CHECK_FALSE(draw(bad, &violations.front()).empty());
}

}  // namespace

TEST_CASE("A list with one fault is rejected with its rule and its cell") {
    const Schedule good = parsed(complete_list);
    //             rank 0: 0 UNSHARD 1 F0 2 SEND_F0 3 F1 4 SEND_F1 5 RECV_B0 6 B0 7 RECV_B1 8 B1 9 RESHARD 10
    //             REDUCE 11 OPT
    // rank 1: 0 UNSHARD 1 RECV_F0 2 F0 3 I0 4 SEND_B0 5 W0 6 RECV_F1 7 F1 8 B1 9 SEND_B1 10 RESHARD 11 REDUCE
    // 12 OPT
    for (const Mutation& mutation : std::vector<Mutation>{
             {"a backward is forgotten", [](Schedule& s) { erase(s, 0, 8); }, "completeness", 0,
              std::nullopt},
             {"a forward is forgotten", [](Schedule& s) { erase(s, 1, 7); }, "completeness", 1, std::nullopt},
             {"the weight half is forgotten", [](Schedule& s) { erase(s, 1, 5); }, "completeness", 1,
              std::nullopt},
             {"the input half is forgotten", [](Schedule& s) { erase(s, 1, 3); }, "completeness", 1,
              std::nullopt},
             {"a forward is there twice", [](Schedule& s) { insert(s, 0, 4, {ActionKind::forward, 0, 1}); },
              "completeness", 0, 4},
             {"a backward is there twice", [](Schedule& s) { insert(s, 0, 9, {ActionKind::backward, 0, 0}); },
              "completeness", 0, 9},
             {"a full backward and its weight half",
              [](Schedule& s) { insert(s, 1, 9, {ActionKind::backward_weight, 1, 1}); }, "completeness", 1,
              9},
             {"a micro-batch that does not exist",
              [](Schedule& s) { insert(s, 0, 4, {ActionKind::forward, 0, 2}); }, "completeness", 0, 4},
             {"a stage that does not exist",
              [](Schedule& s) { insert(s, 1, 8, {ActionKind::forward, 2, 0}); }, "completeness", 1, 8},
             {"a recomputation on the wrong rank",
              [](Schedule& s) { insert(s, 0, 6, {ActionKind::recompute, 1, 0}); }, "placement", 0, 6},
             {"a receive on the wrong rank",
              [](Schedule& s) { insert(s, 0, 6, {ActionKind::receive_forward, 1, 0}); }, "placement", 0, 6},
             {"a backward before its forward", [](Schedule& s) { swap(s, 0, 1, 6); }, "local order", 0, 1},
             {"a weight half before its input half", [](Schedule& s) { swap(s, 1, 3, 5); }, "local order", 1,
              3},
             {"a recomputation after its backward",
              [](Schedule& s) { insert(s, 0, 7, {ActionKind::recompute, 0, 0}); }, "local order", 0, 7},
             {"an overlap without a partner", [](Schedule& s) { cell(s, 0, 3).overlaps_next = true; },
              "local order", 0, 3},
             {"a receive is forgotten", [](Schedule& s) { erase(s, 1, 6); }, "transfers", 1, 6},
             {"a send is forgotten", [](Schedule& s) { erase(s, 0, 2); }, "transfers", 1, 1},
             {"a send before its computation", [](Schedule& s) { swap(s, 1, 8, 9); }, "transfers", 1, 8},
             {"a receive after its use", [](Schedule& s) { swap(s, 1, 1, 2); }, "transfers", 1, 2},
             {"a send twice", [](Schedule& s) { insert(s, 0, 5, {ActionKind::send_forward, 0, 1}); },
              "transfers", 0, 5},
             {"a send beyond the last stage",
              [](Schedule& s) { insert(s, 1, 9, {ActionKind::send_forward, 1, 1}); }, "transfers", 1, 9},
             {"a send beyond the first stage",
              [](Schedule& s) { insert(s, 0, 8, {ActionKind::send_backward, 0, 0}); }, "transfers", 0, 8},
             {"receives in another order than sends",
              [](Schedule& s) {
                  std::rotate(list(s, 1).begin() + 1, list(s, 1).begin() + 6, list(s, 1).begin() + 7);
              },
              "transfer order", 1, 1},
             {"both wait for the other's send",
              [](Schedule& s) {
                  std::rotate(list(s, 0).begin() + 2, list(s, 0).begin() + 5, list(s, 0).begin() + 6);
              },
              "transfer order", 0, 2},
             {"parameters are never gathered",
              [](Schedule& s) {
                  cell(s, 0, 0) = {ActionKind::unshard, 0, -1};
                  erase(s, 0, 0);
                  insert(s, 0, 2, {ActionKind::unshard, 0, -1});
              },
              "sharded parameters", 0, 0},
             {"parameters are freed before the last backward", [](Schedule& s) { swap(s, 0, 8, 9); },
              "sharded parameters", 0, 9},
             {"parameters are gathered twice",
              [](Schedule& s) { insert(s, 1, 5, {ActionKind::unshard, 1, -1}); }, "sharded parameters", 1, 5},
             {"parameters are freed twice",
              [](Schedule& s) { insert(s, 1, 11, {ActionKind::reshard, 1, -1}); }, "sharded parameters", 1,
              11},
             {"gradients are reduced before the last backward",
              [](Schedule& s) {
                  std::rotate(list(s, 1).begin() + 8, list(s, 1).begin() + 11, list(s, 1).begin() + 12);
              },
              "gradient order", 1, 8},
             {"gradients are reduced twice",
              [](Schedule& s) { insert(s, 0, 11, {ActionKind::reduce_gradient, 0, -1}); }, "gradient order",
              0, 11},
             {"the update comes before the reduction", [](Schedule& s) { swap(s, 0, 10, 11); },
              "gradient order", 0, 10},
             {"the gradients of one stage are not reduced", [](Schedule& s) { erase(s, 0, 10); },
              "gradient order", 0, std::nullopt},
             {"one stage is not updated", [](Schedule& s) { erase(s, 0, 11); }, "gradient order", 0,
              std::nullopt},
         })
        check_mutation(good, mutation);
}

TEST_CASE("A list that waits for itself is rejected with every waiting cell") {
    // Rank 0 wants the gradient of micro-batch 0 before it sends micro-batch 1, rank 1 wants micro-batch 1
    // before it makes that gradient.
    const std::vector<schedule::Violation> violations = verify(parsed("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n"));
    REQUIRE(violations.size() == 2);
    CHECK(violations[0].rule == "progress");
    CHECK(violations[0].rank == 0);
    CHECK(violations[0].position == 1);
    CHECK(violations[0].message.find("1B0") != std::string::npos);
    CHECK(violations[1].rank == 1);
    CHECK(violations[1].position == 1);
}

TEST_CASE("Order of sequence segments is kept in both directions") {
    const Schedule good = parsed("0F0.0,0F0.1,0B0.1,0B0.0\n");
    check_mutation(good, {"forwards exchanged", [](Schedule& s) { swap(s, 0, 0, 1); }, "local order", 0, 0});
    check_mutation(good, {"backwards exchanged", [](Schedule& s) { swap(s, 0, 2, 3); }, "local order", 0, 2});
}

TEST_CASE("Activation memory above the limit is rejected at the forward that takes it") {
    schedule::ScheduleLimits limits;
    limits.activation = {{core::Bytes(2), core::Bytes(0), core::Bytes(-2)}};
    limits.memory_limit = core::Bytes(4);
    const Schedule good = parsed("0F0,0F1,0B0,0F2,0B1,0B2\n");
    check_mutation(
        good,
        {"a third forward before the first backward", [](Schedule& s) { swap(s, 0, 2, 3); }, "memory", 0, 2},
        limits);
}

TEST_CASE("The limit of gathered stages is kept") {
    schedule::ScheduleLimits limits;
    limits.most_unsharded_stages = 1;
    const Schedule good = parsed("0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1RESHARD,0UNSHARD,0B0,0RESHARD\n");
    check_mutation(
        good, {"the first stage is kept", [](Schedule& s) { swap(s, 0, 2, 3); }, "sharded parameters", 0, 2},
        limits);
}

TEST_CASE("An asynchronous list keeps to its number of weight versions") {
    // PipeDream on stage 0 of 2: two micro-batches in flight, an update after every backward.
    Schedule good =
        parsed("0F0,0F1,0B0,0OPT0,0F2,0B1,0OPT1,0B2,0OPT2\n1F0,1B0,1OPT0,1F1,1B1,1OPT1,1F2,1B2,1OPT2\n");
    good.weight_versions = 2;
    check_mutation(good, {"only one version may be kept", [](Schedule& s) { s.weight_versions = 1; },
                          "weight versions", 0, 3});
}

TEST_CASE("Sends that wait for their receives deadlock when both sides send first in separate runs") {
    schedule::ScheduleLimits rendezvous;
    rendezvous.sends_wait_for_receives = true;
    // Rank 0 cannot leave SEND_F1 before rank 1 posts RECV_F1; rank 1 cannot leave SEND_B0 before rank 0
    // posts RECV_B0. What stands between (R0, RESHARD) keeps each pair from being posted together.
    const Schedule apart = parsed(
        "0F0,0SEND_F0,0F1,0SEND_F1,0R0,0RECV_B0,0B0,0RECV_B1,0B1\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1RESHARD,1RECV_F1,1UNSHARD,1F1,1B1,1SEND_B1\n");
    CHECK(verify(apart).empty());
    const std::vector<schedule::Violation> stuck = verify(apart, rendezvous);
    REQUIRE(stuck.size() == 2);
    CHECK(stuck[0].rule == "transfer order");
    CHECK(stuck[0].rank == 0);
    CHECK(stuck[0].position == 3);
    CHECK(stuck[1].rank == 1);
    CHECK(stuck[1].position == 4);
    const Schedule together = parsed(
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,"
        "1SEND_B1\n");
    CHECK(verify(together, rendezvous).empty());
}

TEST_CASE("Every registered schedule passes verify over a grid of shapes, or refuses the shape") {
    int generated = 0;
    std::set<std::string> turning_back;  // with a forward pass behind a backward one, in some shape
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules())
        for (int ranks = 1; ranks <= 8; ++ranks)
            for (int chunks = 1; chunks <= 3; ++chunks)
                for (int micro_batches = 1; micro_batches <= 24; micro_batches += micro_batches < 10 ? 1 : 3)
                    for (const double transfer : {0.0, 0.3}) {
                        schedule::PipelineShape shape;
                        shape.ranks = ranks;
                        shape.chunks = chunks;
                        shape.micro_batches = micro_batches;
                        shape.transfer = transfer;
                        if (unsupported(entry, shape)) continue;
                        INFO(entry.name << " p " << ranks << " v " << chunks << " m " << micro_batches);
                        const Schedule schedule = entry.generate(shape);
                        const std::vector<schedule::Violation> violations = verify(schedule);
                        if (!violations.empty())
                            FAIL_CHECK(violations[0].rule << ": " << violations[0].message << "\n"
                                                          << draw(schedule, &violations[0], 20));
                        CHECK(schedule.is_forward_only == entry.is_forward_only);
                        CHECK((schedule.directions > 1) == entry.is_bidirectional);
                        CHECK((schedule.segments > 1) == entry.cuts_sequences());
                        CHECK((schedule.weight_versions > 0) == entry.is_asynchronous);
                        CHECK(schedule.ranks == ranks);
                        CHECK(schedule.name == entry.name);
                        bool has_halves = false;
                        for (const std::vector<Action>& rank_list : schedule.actions) {
                            bool goes_back = false;
                            for (const Action& action : rank_list) {
                                has_halves = has_halves || action.kind == ActionKind::backward_weight;
                                goes_back = goes_back || action.kind == ActionKind::backward;
                                if (goes_back && action.kind == ActionKind::forward)
                                    turning_back.insert(entry.name);
                            }
                        }
                        CHECK((!has_halves || entry.splits_backward));
                        // Reading what is printed gives the same cells.
                        if (micro_batches < 6)
                            CHECK(parsed(print_schedule(schedule)).actions == schedule.actions);
                        ++generated;
                    }
    CHECK(generated > 1000);
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules()) {
        INFO(entry.name);
        CHECK((!entry.goes_forward_first || !turning_back.contains(entry.name)));
        if (!entry.splits_backward && !entry.is_forward_only)
            CHECK((entry.goes_forward_first || turning_back.contains(entry.name)));
    }
}
