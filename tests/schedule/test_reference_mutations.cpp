// What verify must not let pass: faults put into lists that other projects generate.
#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <sstream>

#include "core/random.h"
#include "schedule/pipeline/registry.h"
#include "schedule/schedule_text.h"
#include "schedule/verify.h"
#include "tests/schedule/reference_lists.h"

namespace {

namespace fs = std::filesystem;
using reference_lists::files_of;
using reference_lists::load;
using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;

// Where the fault has to be reported.
struct Fault {
    std::string rule;
    int rank = 0;
    std::optional<int> position;
};
// Nothing when the list has no place for that fault.
using Mutation = std::function<std::optional<Fault>(Schedule&, core::Random&)>;
using Cells = std::vector<Action>;

Cells& cells(Schedule& list, int rank) { return list.actions[static_cast<std::size_t>(rank)]; }

// A cell that `is_wanted`, one of all with equal chance.
template <class Wanted>
std::optional<std::pair<int, int>> any_cell(const Schedule& list, core::Random& random, Wanted is_wanted) {
    std::vector<std::pair<int, int>> found;
    for (int rank = 0; rank < list.ranks; ++rank) {
        const Cells& row = list.actions[static_cast<std::size_t>(rank)];
        for (std::size_t i = 0; i < row.size(); ++i)
            if (is_wanted(row, i)) found.push_back({rank, static_cast<int>(i)});
    }
    if (found.empty()) return std::nullopt;
    return found[random.below(found.size())];
}

bool is_part_of_pair(const Cells& row, std::size_t i) {
    return row[i].overlaps_next || (i > 0 && row[i - 1].overlaps_next);
}

// Compute cells of one kind that stand alone.
auto of_kind(ActionKind kind) {
    return
        [kind](const Cells& row, std::size_t i) { return row[i].kind == kind && !is_part_of_pair(row, i); };
}

int position_of(const Cells& row, const Action& cell, std::initializer_list<ActionKind> kinds) {
    for (std::size_t i = 0; i < row.size(); ++i)
        for (const ActionKind kind : kinds)
            if (row[i].kind == kind && row[i].stage == cell.stage && row[i].micro_batch == cell.micro_batch &&
                row[i].segment == cell.segment && row[i].direction == cell.direction)
                return static_cast<int>(i);
    return -1;
}

Mutation forget(ActionKind kind) {
    return [kind](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at || list.micro_batches * list.segments == 1)
            return std::nullopt;  // the only one of its number would change what the list is about
        cells(list, at->first).erase(cells(list, at->first).begin() + at->second);
        return Fault{"completeness", at->first, std::nullopt};
    };
}

Mutation repeat(ActionKind kind) {
    return [kind](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at) return std::nullopt;
        Cells& row = cells(list, at->first);
        row.push_back(row[static_cast<std::size_t>(at->second)]);
        return Fault{"completeness", at->first, static_cast<int>(row.size()) - 1};
    };
}

Mutation change(ActionKind kind, std::function<void(Schedule&, Action&)> how) {
    return [kind, how](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at) return std::nullopt;
        how(list, cells(list, at->first)[static_cast<std::size_t>(at->second)]);
        return Fault{"completeness", at->first, at->second};
    };
}

// Moves the cell to the end of another rank's list.
Mutation displace(ActionKind kind) {
    return [kind](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at || list.ranks < 2) return std::nullopt;
        Cells& row = cells(list, at->first);
        const Action moved = row[static_cast<std::size_t>(at->second)];
        row.erase(row.begin() + at->second);
        const int other = (at->first + 1) % list.ranks;
        cells(list, other).push_back(moved);
        return Fault{"placement", other, static_cast<int>(cells(list, other).size()) - 1};
    };
}

// Moves the cell before what it needs on its own rank.
Mutation hasten(ActionKind kind, std::initializer_list<ActionKind> needs) {
    const std::vector<ActionKind> needed = needs;
    return [kind, needed](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at) return std::nullopt;
        Cells& row = cells(list, at->first);
        const Action moved = row[static_cast<std::size_t>(at->second)];
        int to = position_of(row, moved, {needed.front()});
        if (to < 0 && needed.size() > 1) to = position_of(row, moved, {needed[1]});
        if (to < 0 || to > at->second || is_part_of_pair(row, static_cast<std::size_t>(to)))
            return std::nullopt;
        row.erase(row.begin() + at->second);
        row.insert(row.begin() + to, moved);
        return Fault{"local order", at->first, to};
    };
}

// A rank does a whole micro-batch's forward and gradient before the next forward that its successor asks for
// first: both wait for ever.
std::optional<Fault> wait_for_each_other(Schedule& list, core::Random&) {
    if (list.stages != list.ranks || list.ranks < 2 || list.micro_batches < 2 || list.segments > 1 ||
        list.directions > 1 || list.is_forward_only)
        return std::nullopt;
    Cells &first = cells(list, 0), &second = cells(list, 1);
    const std::initializer_list<ActionKind> gradient = {ActionKind::backward, ActionKind::backward_input};
    // Rank 0: gradient of micro-batch 0 before forward 1. Rank 1: forward 1 before gradient 0.
    auto move_before = [](Cells& row, int from, int to) {
        if (from < to) return;
        const Action moved = row[static_cast<std::size_t>(from)];
        row.erase(row.begin() + from);
        row.insert(row.begin() + to, moved);
    };
    move_before(first, position_of(first, {ActionKind::backward, 0, 0}, gradient),
                position_of(first, {ActionKind::forward, 0, 1}, {ActionKind::forward}));
    const int waits = position_of(first, {ActionKind::backward, 0, 0}, gradient);
    move_before(second, position_of(second, {ActionKind::forward, 1, 1}, {ActionKind::forward}),
                position_of(second, {ActionKind::backward, 1, 0}, gradient));
    return Fault{"progress", 0, waits};
}

Mutation forget_transfer(ActionKind kind) {
    return [kind](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at) return std::nullopt;
        Cells& row = cells(list, at->first);
        const Action lost = row[static_cast<std::size_t>(at->second)];
        row.erase(row.begin() + at->second);
        const bool is_forward = kind == ActionKind::send_forward || kind == ActionKind::receive_forward;
        const bool is_send = kind == ActionKind::send_forward || kind == ActionKind::send_backward;
        Action partner = lost;
        partner.stage += is_forward == is_send ? 1 : -1;
        partner.kind = is_forward ? (is_send ? ActionKind::receive_forward : ActionKind::send_forward)
                                  : (is_send ? ActionKind::receive_backward : ActionKind::send_backward);
        const int other = rank_of_stage(list, partner.stage, partner.direction);
        return Fault{"transfers", other, position_of(cells(list, other), partner, {partner.kind})};
    };
}

// A send before what it sends, a receive behind what needs it.
Mutation misplace_transfer(ActionKind kind, std::initializer_list<ActionKind> computes) {
    const std::vector<ActionKind> kinds = computes;
    const bool is_send = kind == ActionKind::send_forward || kind == ActionKind::send_backward;
    return [kind, kinds, is_send](Schedule& list, core::Random& random) -> std::optional<Fault> {
        const auto at = any_cell(list, random, of_kind(kind));
        if (!at) return std::nullopt;
        Cells& row = cells(list, at->first);
        const Action moved = row[static_cast<std::size_t>(at->second)];
        int compute = position_of(row, moved, {kinds.front()});
        if (compute < 0 && kinds.size() > 1) compute = position_of(row, moved, {kinds[1]});
        if (compute < 0 || is_part_of_pair(row, static_cast<std::size_t>(compute))) return std::nullopt;
        row.erase(row.begin() + at->second);
        // Erased in front of the compute cell (a receive), that cell is one place earlier now.
        row.insert(row.begin() + compute, moved);
        return Fault{"transfers", at->first, compute};
    };
}

std::optional<Fault> gather_late(Schedule& list, core::Random& random) {
    const auto at = any_cell(list, random, of_kind(ActionKind::unshard));
    if (!at) return std::nullopt;
    Cells& row = cells(list, at->first);
    const Action lost = row[static_cast<std::size_t>(at->second)];
    row.erase(row.begin() + at->second);
    for (std::size_t i = static_cast<std::size_t>(at->second); i < row.size(); ++i)
        if (is_compute(row[i].kind) && row[i].stage == lost.stage && row[i].direction == lost.direction)
            return Fault{"sharded parameters", at->first, static_cast<int>(i)};
    return std::nullopt;
}

std::optional<Fault> gather_twice(Schedule& list, core::Random& random) {
    const auto at = any_cell(list, random, of_kind(ActionKind::unshard));
    if (!at) return std::nullopt;
    Cells& row = cells(list, at->first);
    row.insert(row.begin() + at->second, row[static_cast<std::size_t>(at->second)]);
    return Fault{"sharded parameters", at->first, at->second + 1};
}

std::optional<Fault> free_twice(Schedule& list, core::Random& random) {
    const auto at = any_cell(list, random, of_kind(ActionKind::reshard));
    if (!at) return std::nullopt;
    Cells& row = cells(list, at->first);
    row.insert(row.begin() + at->second, row[static_cast<std::size_t>(at->second)]);
    return Fault{"sharded parameters", at->first, at->second + 1};
}

std::optional<Fault> reduce_early(Schedule& list, core::Random& random) {
    const auto at = any_cell(list, random, of_kind(ActionKind::reduce_gradient));
    if (!at || at->second == 0) return std::nullopt;
    Cells& row = cells(list, at->first);
    const Action moved = row[static_cast<std::size_t>(at->second)];
    row.erase(row.begin() + at->second);
    row.insert(row.begin(), moved);
    return Fault{"gradient order", at->first, 0};
}

std::optional<Fault> reduce_twice(Schedule& list, core::Random& random) {
    const auto at = any_cell(list, random, of_kind(ActionKind::reduce_gradient));
    if (!at) return std::nullopt;
    Cells& row = cells(list, at->first);
    row.push_back(row[static_cast<std::size_t>(at->second)]);
    return Fault{"gradient order", at->first, static_cast<int>(row.size()) - 1};
}

}  // namespace

TEST_CASE("Twenty-eight kinds of fault in the reference lists are rejected with their rule and cell") {
    if (reference_lists::are_absent()) return;
    auto to_next = [](Schedule& list, Action& cell) { cell.micro_batch += list.micro_batches; };
    auto to_no_stage = [](Schedule& list, Action& cell) { cell.stage += list.stages; };
    using Kind = ActionKind;
    const std::vector<std::pair<std::string, Mutation>> mutations = {
        {"a forward is forgotten", forget(Kind::forward)},
        {"a backward is forgotten", forget(Kind::backward)},
        {"an input half is forgotten", forget(Kind::backward_input)},
        {"a weight half is forgotten", forget(Kind::backward_weight)},
        {"a forward is there twice", repeat(Kind::forward)},
        {"a backward is there twice", repeat(Kind::backward)},
        {"an input half is there twice", repeat(Kind::backward_input)},
        {"a weight half is there twice", repeat(Kind::backward_weight)},
        {"a forward of a micro-batch that does not exist", change(Kind::forward, to_next)},
        {"a backward of a stage that does not exist", change(Kind::backward, to_no_stage)},
        {"a weight half of a micro-batch that does not exist", change(Kind::backward_weight, to_next)},
        {"a forward on another rank", displace(Kind::forward)},
        {"a backward on another rank", displace(Kind::backward)},
        {"an input half on another rank", displace(Kind::backward_input)},
        {"a weight half on another rank", displace(Kind::backward_weight)},
        {"a backward before its forward", hasten(Kind::backward, {Kind::forward})},
        {"an input half before its forward", hasten(Kind::backward_input, {Kind::forward})},
        {"a weight half before its input half", hasten(Kind::backward_weight, {Kind::backward_input})},
        {"two ranks wait for each other", wait_for_each_other},
        {"a send is forgotten", forget_transfer(Kind::send_forward)},
        {"a gradient's receive is forgotten", forget_transfer(Kind::receive_backward)},
        {"a send before its forward", misplace_transfer(Kind::send_forward, {Kind::forward})},
        {"a receive behind its forward", misplace_transfer(Kind::receive_forward, {Kind::forward})},
        {"parameters are never gathered", gather_late},
        {"parameters are gathered twice", gather_twice},
        {"parameters are freed twice", free_twice},
        {"gradients are reduced before they are there", reduce_early},
        {"gradients are reduced twice", reduce_twice},
    };
    CHECK(mutations.size() == 28);
    std::map<std::string, int> rejected;
    core::Random random(99);
    for (const char* folder : {"pytorch", "pytorch_gen", "sail_gen", "megatron_gen", "dualpipe_gen"})
        for (const fs::path& path : files_of(folder)) {
            const std::optional<Schedule> good = load(path);
            REQUIRE(good);
            std::size_t size = 0;
            for (const Cells& row : good->actions) size += row.size();
            if (size > 1200) continue;  // a long list has no other places for these faults than a short one
            for (const auto& [what, mutate] : mutations) {
                Schedule bad = *good;
                const std::optional<Fault> fault = mutate(bad, random);
                if (!fault) continue;
                const std::vector<schedule::Violation> violations = verify(bad);
                const bool is_named =
                    std::any_of(violations.begin(), violations.end(), [&](const schedule::Violation& v) {
                        return v.rule == fault->rule && v.rank == fault->rank &&
                               v.position == fault->position;
                    });
                if (!is_named) {
                    std::string found;
                    for (const schedule::Violation& v : violations)
                        found += v.rule + " at " + std::to_string(v.rank.value_or(-1)) + "," +
                                 std::to_string(v.position.value_or(-1)) + ": " + v.message + "\n";
                    FAIL_CHECK(path.filename().string()
                               << ": " << what << " at rank " << fault->rank << " cell "
                               << fault->position.value_or(-1) << " (" << fault->rule << ") is not named:\n"
                               << found);
                    return;
                }
                ++rejected[what];
            }
        }
    int all = 0;
    for (const auto& [what, mutate] : mutations) {
        INFO(what);
        CHECK(rejected[what] > 20);
        all += rejected[what];
    }
    WARN(all << " mutated lists rejected with their rule and cell");
}

// DeepSpeed's own instruction lists: steps of a stage are separated by commas, instructions of a step by
// semicolons. Its k-th ForwardPass is the forward of micro-batch k, whatever buffer it names.
TEST_CASE("DeepSpeed's training lists are 1F1B and its inference lists forward-only") {
    if (reference_lists::are_absent()) return;
    int equal = 0;
    for (const fs::path& path : files_of("deepspeed_gen")) {
        INFO(path.filename().string());
        Schedule list;
        std::istringstream rows(reference_lists::read(path));
        for (std::string row; std::getline(rows, row);) {
            std::replace(row.begin(), row.end(), ';', ',');
            std::istringstream instructions(row);
            Cells& cells_of_rank = list.actions.emplace_back();
            const int stage = static_cast<int>(list.actions.size()) - 1;
            int forwards = 0, backwards = 0;
            for (std::string instruction; std::getline(instructions, instruction, ',');) {
                if (instruction.starts_with("ForwardPass"))
                    cells_of_rank.push_back({ActionKind::forward, stage, forwards++});
                if (instruction.starts_with("BackwardPass"))
                    cells_of_rank.push_back({ActionKind::backward, stage, backwards++});
            }
            list.micro_batches = std::max(list.micro_batches, forwards);
        }
        list.ranks = list.stages = static_cast<int>(list.actions.size());
        list.is_forward_only = path.filename().string().find("Inference") != std::string::npos;
        CHECK(verify(list).empty());
        schedule::PipelineShape shape;
        shape.ranks = list.ranks;
        shape.micro_batches = list.micro_batches;
        CHECK(schedule::find_pipeline_schedule(list.is_forward_only ? "forward-only" : "1f1b")
                  ->generate(shape)
                  .actions == list.actions);
        ++equal;
    }
    CHECK(equal == 90);
}
