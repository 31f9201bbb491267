#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <map>

#include "core/diagnostics.h"
#include "core/document.h"
#include "schedule/pass/list_passes.h"
#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"
#include "tests/schedule/reference_lists.h"

namespace {

namespace fs = std::filesystem;
using reference_lists::read;
using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;

const fs::path& reference = reference_lists::folder;

Schedule parsed(const std::string& text, const std::string& name = "list.csv") {
    core::Diagnostics diagnostics;
    const std::optional<Schedule> result = schedule::parse_schedule(text, name, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(result);
    return *result;
}

// Does `make` turn every *_compute list of PyTorch into the list beside it? Counted by family.
template <class Make>
std::map<std::string, std::pair<int, int>> compare(const std::string& suffix, Make make) {
    std::map<std::string, std::pair<int, int>> equal_of;
    for (const fs::directory_entry& entry : fs::directory_iterator(reference / "pytorch_gen")) {
        const std::string file = entry.path().filename().string(), ending = "_compute.csv";
        if (!file.ends_with(ending)) continue;
        const std::string stem = file.substr(0, file.size() - ending.size());
        const Schedule wanted = parsed(read(reference / "pytorch_gen" / (stem + suffix)), stem);
        const Schedule made = make(parsed(read(entry.path()), stem));
        auto& [equal, files] = equal_of[stem.substr(0, stem.find('_'))];
        ++files;
        equal += made.actions == wanted.actions;
        for (std::size_t rank = 0; rank < made.actions.size(); ++rank)
            if (made.actions[rank] != wanted.actions[rank]) {
                Schedule a = made, b = wanted;
                a.actions = {made.actions[rank]};
                b.actions = {wanted.actions[rank]};
                UNSCOPED_INFO(stem << " rank " << rank << "\nours    " << print_schedule(a) << "PyTorch "
                                   << print_schedule(b));
                break;
            }
    }
    return equal_of;
}

}  // namespace

TEST_CASE("Transfers stand where PyTorch's pass puts them, in every list") {
    if (reference_lists::are_absent()) return;
    int lists = 0;
    for (const auto& [family, count] : compare("_comms.csv", schedule::with_transfers)) {
        INFO(family);
        CHECK(count.first == count.second);
        lists += count.first;
    }
    CHECK(lists == 428);
}

TEST_CASE(
    "Windows of gathered parameters and gradient reductions stand where PyTorch's passes put them, in every "
    "list") {
    if (reference_lists::are_absent()) return;
    int lists = 0;
    for (const auto& [family, count] : compare("_fsdp.csv", [](const Schedule& list) {
             return with_gradient_reductions(schedule::with_sharded_parameters(list));
         })) {
        INFO(family);
        CHECK(count.first == count.second);
        lists += count.first;
    }
    CHECK(lists == 428);
}

TEST_CASE("PyTorch's own test cases of its passes hold") {
    const fs::path path = reference / "pytorch/test_schedule_inline_cases.json";
    if (!fs::exists(path)) {
        WARN("skipped: no " << path.string());
        return;
    }
    core::Diagnostics diagnostics;
    const auto cases = core::parse_json(read(path), path.string(), diagnostics);
    REQUIRE(cases);
    auto row_of = [](const core::Value& cells) {
        std::string row;
        for (const core::Value& cell : cells.items()) row += cell.string() + ",";
        return row + "\n";
    };
    for (const core::Value& item : cases->find("test_action_parse")->items()) {
        const Schedule one = parsed(item.items()[0].string());
        std::string printed;
        for (const std::vector<Action>& row : one.actions)
            for (const Action& action : row) printed += print_action(one, action);
        CHECK(printed == item.items()[0].string());
    }
    for (const core::Value& item : cases->find("test_unshard_reshard")->items())
        CHECK(with_sharded_parameters(parsed(row_of(*item.find("compute")))).actions ==
              parsed(row_of(*item.find("comms"))).actions);
    for (const core::Value& item : cases->find("test_merge_bw")->items())
        CHECK(merge_backward_halves(parsed(row_of(*item.find("compute")))).actions ==
              parsed(row_of(*item.find("comms"))).actions);
    // An empty cell is a turn of PyTorch 2.6's pass and nothing here, so receives may stand elsewhere among
    // the computations: everything else agrees.
    auto check_but_for_turns = [](const Schedule& made, const Schedule& wanted) {
        REQUIRE(made.actions.size() == wanted.actions.size());
        for (std::size_t rank = 0; rank < made.actions.size(); ++rank) {
            auto without_receives = [](std::vector<Action> list) {
                std::erase_if(list, [](const Action& a) {
                    return a.kind == ActionKind::receive_forward || a.kind == ActionKind::receive_backward;
                });
                return list;
            };
            CHECK(without_receives(made.actions[rank]) == without_receives(wanted.actions[rank]));
            for (const ActionKind kind : {ActionKind::receive_forward, ActionKind::receive_backward}) {
                auto only = [kind](std::vector<Action> list) {
                    std::erase_if(list, [kind](const Action& a) { return a.kind != kind; });
                    return list;
                };
                CHECK(only(made.actions[rank]) == only(wanted.actions[rank]));
            }
        }
    };
    // (The second of these cases is no whole schedule: it has B and W of the same cell.)
    for (const core::Value& item : cases->find("test_send_recv")->items())
        check_but_for_turns(
            schedule::with_transfers(
                parsed(row_of(*item.find("compute")->find("0")) + row_of(*item.find("compute")->find("1")))),
            parsed(row_of(*item.find("comms")->find("0")) + row_of(*item.find("comms")->find("1"))));
    check_but_for_turns(schedule::with_transfers(merge_backward_halves(
                            parsed(read(reference / "pytorch/zb1p_2rank_2stagep_compute.csv")))),
                        parsed(read(reference / "pytorch/zb1p_2rank_2stagep_comms.csv")));
}

TEST_CASE("Complete lists of every schedule keep all rules") {
    int lists = 0;
    for (const schedule::PipelineSchedule& entry : schedule::pipeline_schedules())
        for (const int ranks : {1, 2, 3, 4, 8})
            for (int chunks = 1; chunks <= 3; ++chunks)
                for (const int micro_batches : {1, 2, 4, 6, 8, 16}) {
                    schedule::PipelineShape shape;
                    shape.ranks = ranks;
                    shape.chunks = chunks;
                    shape.micro_batches = micro_batches;
                    if (unsupported(entry, shape)) continue;
                    INFO(entry.name << " p " << ranks << " v " << chunks << " m " << micro_batches);
                    const Schedule order = entry.generate(shape);
                    CHECK(verify(schedule::with_transfers(order)).empty());
                    if (entry.is_asynchronous) continue;  // its updates are in the order already
                    schedule::ScheduleLimits limits;
                    limits.most_unsharded_stages = entry.overlaps_forward_backward ? 4 : 3;
                    CHECK(verify(with_gradient_reductions(schedule::with_sharded_parameters(order)), limits)
                              .empty());
                    ++lists;
                }
    CHECK(lists > 200);
}
