#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>

#include "core/diagnostics.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "schedule/verify.h"
#include "tests/model/catalogue.h"

using namespace schedule;

namespace {

std::optional<Program> lowered(Plan plan, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    const std::optional<Schedule> order = make_schedule(plan, diagnostics);
    const std::optional<Partition> partition = complete_partition(plan, graph);
    if (!order || !partition) return std::nullopt;
    plan.partition = *partition;
    return lower(plan, graph, *order);
}

std::string text_of(const std::vector<Violation>& violations) {
    std::string text;
    for (std::size_t i = 0; i < std::min<std::size_t>(violations.size(), 8); ++i)
        text += violations[i].rule + ": " + violations[i].message + "\n";
    return text;
}

// Pipeline 2, data 2, sequence parallelism over 2, tied embedding: everything that a Program can hold.
Program rich_program(Sharding sharding = Sharding::none, OptimizerKind optimizer = OptimizerKind::adamw,
                     double gradient_clipping = 0) {
    Plan plan;
    plan.optimizer.kind = optimizer;
    plan.optimizer.gradient_clipping = gradient_clipping;
    plan.layout = {.data = 2, .tensor = 2, .pipeline = 2};
    plan.micro_batches = 3;
    plan.sequence_parallel = true;
    plan.sharding = sharding;
    plan.gradient_bucket = core::kibibytes(200);
    return *lowered(plan, load_graph("gpt-tiny"));
}

using Match = std::function<bool(const Instruction&)>;

std::size_t find(const RankProgram& list, const Match& match, std::size_t nth = 0) {
    for (std::size_t n = 0; n < list.instructions.size(); ++n)
        if (match(list.instructions[n]) && nth-- == 0) return n;
    FAIL("the Program has no such instruction");
    return 0;
}

// Removes one instruction; edges to it go to nothing, later indices move up. Its buffers stay in the pools of
// nobody.
void erase(RankProgram& list, std::size_t index) {
    list.instructions.erase(list.instructions.begin() + static_cast<std::ptrdiff_t>(index));
    RankProgram old = list;
    list.after_pool.clear();
    for (Instruction& i : list.instructions) {
        const auto begin = static_cast<std::uint32_t>(list.after_pool.size());
        for (const std::uint32_t a : old.after(i))
            if (a != index) list.after_pool.push_back(a > index ? a - 1 : a);
        i.after_begin = begin;
        i.after_count = static_cast<std::uint32_t>(list.after_pool.size()) - begin;
    }
}

Match is_collective(GroupKind group, PayloadKind payload) {
    return [=](const Instruction& i) {
        return i.kind == InstructionKind::collective && i.group == group && i.payload == payload;
    };
}
Match is_compute(ComputePhase phase) {
    return [=](const Instruction& i) { return i.kind == InstructionKind::compute && i.phase == phase; };
}
Match is_kind(InstructionKind kind) {
    return [=](const Instruction& i) { return i.kind == kind; };
}

}  // namespace

TEST_CASE(
    "what lowering makes is a Program that keeps every rule, over layouts, shardings and recomputation") {
    int programs = 0;
    for (const char* name : {"gpt-tiny", "llama-tiny", "bert-tiny"}) {
        const model::ModelGraph graph = load_graph(name);
        for (const int pipeline : {1, 2, 3})
            for (const int tensor : {1, 2})
                for (const int data : {1, 4})
                    for (int variant = 0; variant < 24; ++variant) {
                        Plan plan;
                        plan.layout = {.data = data, .tensor = tensor, .pipeline = pipeline};
                        plan.micro_batches = 3;
                        plan.sharding = static_cast<Sharding>(variant % 4);
                        plan.recompute = static_cast<Recompute>(variant / 4 % 3);
                        if (plan.recompute == Recompute::full && variant >= 12)
                            for (int s = 0; s < pipeline; ++s)
                                plan.recompute_layers_by_stage.push_back((variant + s) % 3);
                        else if (plan.recompute == Recompute::full) plan.recompute_layers = variant % 2;
                        else if (variant % 2)
                            plan.recompute_modules = {RecomputeModule::layernorm,
                                                      RecomputeModule::activation};
                        plan.sequence_parallel =
                            tensor > 1 && variant >= 12 && std::string(name) != "bert-tiny";
                        plan.shard_degree =
                            data > 1 && plan.sharding != Sharding::none && variant >= 12 ? 2 : 0;
                        plan.overlaps_gradient_reduction = variant % 5 != 0;
                        plan.overlaps_parameter_gathering = variant % 7 != 0;
                        plan.gradient_bucket = core::kibibytes(64);
                        if (variant % 3 == 0) plan.optimizer.kind = OptimizerKind::lamb;
                        INFO(name << " data " << data << " tensor " << tensor << " pipeline " << pipeline
                                  << " variant " << variant);
                        const std::optional<Program> program = lowered(plan, graph);
                        REQUIRE(program);
                        const std::vector<Violation> violations = verify(*program);
                        INFO(text_of(violations));
                        CHECK(violations.empty());
                        ++programs;
                    }
    }
    CHECK(programs == 3 * 3 * 2 * 2 * 24);
}

TEST_CASE(
    "every registered schedule that a plan can use lowers to a Program that keeps every rule, with operators "
    "and without") {
    const model::ModelGraph graph = load_graph("gpt-small-cpu");
    int programs = 0;
    for (const PipelineSchedule& schedule : pipeline_schedules())
        for (const int pipeline : {1, 2, 4})
            for (const int chunks : {1, 2})
                for (const int micro_batches : {1, 2, 3, 4, 8})
                    for (const Sharding sharding : {Sharding::none, Sharding::parameters}) {
                        Plan plan;
                        plan.schedule = schedule.name;
                        plan.layout = {.data = 2, .tensor = 1, .pipeline = pipeline};
                        plan.virtual_stages = chunks;
                        plan.micro_batches = micro_batches;
                        plan.sharding = sharding;
                        plan.recompute = micro_batches % 2 ? Recompute::full : Recompute::none;
                        if (micro_batches > 2) plan.optimizer.kind = OptimizerKind::lamb;
                        INFO(schedule.name << " " << pipeline << " ranks " << chunks << " chunks "
                                           << micro_batches << " micro-batches");
                        const std::optional<Program> program = lowered(plan, graph);
                        if (!program) continue;
                        const std::vector<Violation> violations = verify(*program);
                        INFO(text_of(violations));
                        CHECK(violations.empty());
                        core::Diagnostics diagnostics;
                        const std::vector<Violation> bare =
                            verify(lower_compute_only(*make_schedule(plan, diagnostics)));
                        INFO(text_of(bare));
                        CHECK(bare.empty());
                        ++programs;
                    }
    CHECK(programs > 100);
}

TEST_CASE("every mutation of a Program breaks the rule it should") {
    struct Mutation {
        const char* what;
        const char* rule;
        std::function<void(Program&)> apply;
        Sharding sharding = Sharding::none;
    };
    const auto first = [](Program& p) -> RankProgram& { return p.classes[0]; };
    const auto last = [](Program& p) -> RankProgram& { return p.classes[1]; };
    const std::vector<Mutation> mutations = {
        {"a forward segment is lost", "completeness",
         [&](Program& p) { erase(first(p), find(first(p), is_compute(ComputePhase::forward), 1)); }},
        {"a backward segment is lost", "completeness",
         [&](Program& p) { erase(last(p), find(last(p), is_compute(ComputePhase::backward), 2)); }},
        {"a segment is one operator short", "completeness",
         [&](Program& p) {
             --first(p).instructions[find(first(p), is_compute(ComputePhase::forward))].operators.end;
         }},
        {"a tensor-parallel collective is lost", "completeness",
         [&](Program& p) {
             erase(first(p), find(first(p), is_collective(GroupKind::tensor, PayloadKind::activation)));
         }},
        {"a micro-batch is run as another", "completeness",
         [&](Program& p) {
             for (Instruction& i : last(p).instructions)
                 if (i.kind == InstructionKind::compute && i.phase == ComputePhase::backward &&
                     i.micro_batch == 2)
                     i.micro_batch = 1;
         }},
        {"a segment does not wait for its collective", "order",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_compute(ComputePhase::forward), 1)].after_count = 0;
         }},
        {"a collective does not wait for its segment", "order",
         [&](Program& p) {
             first(p)
                 .instructions[find(first(p), is_collective(GroupKind::tensor, PayloadKind::activation), 1)]
                 .after_count = 0;
         }},
        {"a forward does not wait for its receive", "order",
         [&](Program& p) {
             last(p).instructions[find(last(p), is_compute(ComputePhase::forward))].after_count = 0;
         }},
        {"a send does not wait for its forward", "order",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_kind(InstructionKind::send))].after_count = 0;
         }},
        {"a send is lost", "transfers",
         [&](Program& p) { erase(first(p), find(first(p), is_kind(InstructionKind::send))); }},
        {"a receive is lost", "transfers",
         [&](Program& p) { erase(first(p), find(first(p), is_kind(InstructionKind::receive), 1)); }},
        {"a message has another size at its receiver", "transfers",
         [&](Program& p) {
             last(p).instructions[find(last(p), is_kind(InstructionKind::receive))].bytes *= 2;
         }},
        {"a send goes to itself", "transfers",
         [&](Program& p) { first(p).instructions[find(first(p), is_kind(InstructionKind::send))].peer = 0; }},
        {"a message is sent twice", "transfers",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_kind(InstructionKind::send), 1)].micro_batch =
                 first(p).instructions[find(first(p), is_kind(InstructionKind::send))].micro_batch;
         }},
        {"a message carries other tensors", "transfers",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_kind(InstructionKind::send))].tensors = std::nullopt;
         }},
        {"a tied reduction is lost on one side", "collectives",
         [&](Program& p) {
             erase(first(p),
                   find(first(p), is_collective(GroupKind::tied_stages, PayloadKind::parameter_gradient)));
         }},
        {"a tied reduction is smaller on one side", "collectives",
         [&](Program& p) {
             last(p)
                 .instructions[find(last(p),
                                    is_collective(GroupKind::tied_stages, PayloadKind::parameter_gradient))]
                 .bytes /= 2;
         }},
        {"a gradient reduction has half its bytes", "collectives",
         [&](Program& p) {
             first(p)
                 .instructions[find(first(p),
                                    is_collective(GroupKind::data, PayloadKind::parameter_gradient))]
                 .bytes /= 2;
         }},
        {"a buffer is never given back", "buffers",
         [&](Program& p) {
             first(p)
                 .instructions[find(first(p), [](const Instruction& i) { return i.free_count > 0; })]
                 .free_count = 0;
         }},
        {"a buffer is given back twice", "buffers",
         [&](Program& p) {
             const Instruction& one =
                 first(p).instructions[find(first(p), [](const Instruction& i) { return i.free_count > 0; })];
             Instruction& other =
                 first(p).instructions[find(first(p), is_kind(InstructionKind::optimizer_step))];
             other.free_begin = one.free_begin;
             other.free_count = one.free_count;
         }},
        {"a buffer is taken by nobody", "buffers",
         [&](Program& p) { first(p).buffers.push_back({MemoryKind::workspace, core::bytes(1), false}); }},
        {"a persistent buffer is given back", "buffers",
         [&](Program& p) { first(p).buffers[first(p).buffer_pool[0]].is_persistent = true; }},
        {"a gradient is never reduced", "update",
         [&](Program& p) {
             erase(first(p), find(first(p), is_collective(GroupKind::data, PayloadKind::parameter_gradient)));
         }},
        {"an update does not wait for the reductions", "update",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_kind(InstructionKind::optimizer_step))].after_count = 0;
         }},
        {"a bucket is updated twice", "update",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_kind(InstructionKind::optimizer_step), 1)].bucket = 0;
         }},
        {"a bucket is never updated", "update",
         [&](Program& p) { erase(first(p), find(first(p), is_kind(InstructionKind::optimizer_step))); }},
        {"gradients are never zeroed", "update",
         [&](Program& p) { erase(first(p), find(first(p), is_kind(InstructionKind::zero_gradients))); }},
        {"partial gradients of norms are not summed over tensor ranks", "update",
         [&](Program& p) {
             erase(last(p), find(last(p), is_collective(GroupKind::tensor, PayloadKind::parameter_gradient)));
         }},
        {"a gradient is reduced before its backward", "update",
         [&](Program& p) {
             first(p)
                 .instructions[find(first(p),
                                    is_collective(GroupKind::data, PayloadKind::parameter_gradient))]
                 .after_count = 0;
         }},
        {"an updated shard is not gathered", "update",
         [&](Program& p) {
             erase(first(p), find(first(p), is_collective(GroupKind::shard, PayloadKind::parameter)));
         },
         Sharding::optimizer},
        {"a gradient is scattered once too few", "update",
         [&](Program& p) {
             erase(first(p),
                   find(first(p), is_collective(GroupKind::shard, PayloadKind::parameter_gradient)));
         },
         Sharding::gradients},
        {"a unit's parameters are not gathered", "update",
         [&](Program& p) {
             erase(first(p), find(first(p), is_collective(GroupKind::shard, PayloadKind::parameter)));
         },
         Sharding::parameters},
        {"an instruction waits for a later one", "structure",
         [&](Program& p) {
             RankProgram& l = first(p);
             l.after_pool[l.instructions[find(l, is_kind(InstructionKind::send))].after_begin] =
                 static_cast<std::uint32_t>(l.instructions.size()) - 1;
         }},
        {"a bucket does not exist", "structure",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_kind(InstructionKind::optimizer_step))].bucket = 99;
         }},
        {"a rank runs another rank's list", "placement",
         [&](Program& p) { std::swap(p.class_of_rank.front(), p.class_of_rank.back()); }},
        {"a stage is run where it does not live", "placement",
         [&](Program& p) {
             first(p).instructions[find(first(p), is_compute(ComputePhase::forward))].stage = 1;
         }},
    };
    for (const Mutation& mutation : mutations) {
        INFO(mutation.what);
        Program program = rich_program(mutation.sharding);
        REQUIRE(verify(program).empty());
        mutation.apply(program);
        const std::vector<Violation> violations = verify(program);
        INFO(text_of(violations));
        CHECK(std::any_of(violations.begin(), violations.end(),
                          [&](const Violation& v) { return v.rule == mutation.rule; }));
    }
}

TEST_CASE("every mutation of the copies to and from an optimizer on the host is found") {
    const auto is_copy = [](bool loads) {
        return [loads](const Instruction& i) { return i.kind == InstructionKind::copy && i.loads == loads; };
    };
    const Match is_step = is_kind(InstructionKind::optimizer_step);
    using Apply = std::function<void(RankProgram&)>;
    const std::vector<std::pair<const char*, Apply>> mutations = {
        {"a gradient does not go", [&](RankProgram& l) { erase(l, find(l, is_copy(false))); }},
        {"values do not come back", [&](RankProgram& l) { erase(l, find(l, is_copy(true))); }},
        {"a gradient goes twice, another not",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(false), 1)].bucket = 0; }},
        {"half a gradient goes", [&](RankProgram& l) { l.instructions[find(l, is_copy(false))].bytes /= 2; }},
        {"half the values come back",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(true))].bytes /= 2; }},
        {"parameters go for gradients",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(false))].payload = PayloadKind::parameter; }},
        {"a gradient goes before it is whole",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(false))].after_count = 0; }},
        {"an update does not wait for its gradient",
         [&](RankProgram& l) { l.instructions[find(l, is_step)].after_count = 0; }},
        {"values come back before they are updated",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(true))].after_count = 0; }},
        {"what is gathered was not updated yet",
         [&](RankProgram& l) {
             l.instructions[find(l, is_collective(GroupKind::shard, PayloadKind::parameter))].after_count = 0;
         }},
    };
    const auto program_of = [](Offload place) {
        Plan plan = rich_program(Sharding::optimizer).plan;
        plan.optimizer_offload = place;
        return *lowered(plan, load_graph("gpt-tiny"));
    };
    for (const auto& [what, apply] : mutations) {
        INFO(what);
        Program program = program_of(Offload::host);
        REQUIRE(verify(program).empty());
        apply(program.classes[0]);
        const std::vector<Violation> violations = verify(program);
        INFO(text_of(violations));
        CHECK(std::any_of(violations.begin(), violations.end(),
                          [](const Violation& v) { return v.rule == "update"; }));
    }
    Program program = program_of(Offload::host);
    program.plan.optimizer_offload = Offload::none;
    CHECK_FALSE(verify(program).empty());  // nobody else copies
    program = program_of(Offload::none);
    program.plan.optimizer_offload = Offload::host;
    CHECK_FALSE(verify(program).empty());
}

TEST_CASE("every mutation of the copies of parameters on the host is found") {
    const auto is_copy = [](bool loads) {
        return [loads](const Instruction& i) { return i.kind == InstructionKind::copy && i.loads == loads; };
    };
    const Match is_gather = is_collective(GroupKind::shard, PayloadKind::parameter);
    using Apply = std::function<void(RankProgram&)>;
    const std::vector<std::pair<const char*, Apply>> mutations = {
        {"a gradient does not go", [&](RankProgram& l) { erase(l, find(l, is_copy(false))); }},
        {"the last gradient does not go",
         [&](RankProgram& l) {
             std::int32_t last = 0;
             for (const std::int32_t n : core::indices(l.instructions))
                 if (is_copy(false)(l.instructions[n])) last = n;
             erase(l, last);
         }},
        {"a shard is not fetched", [&](RankProgram& l) { erase(l, find(l, is_copy(true))); }},
        {"half a gradient goes", [&](RankProgram& l) { l.instructions[find(l, is_copy(false))].bytes /= 2; }},
        {"half a shard is fetched",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(true))].bytes /= 2; }},
        {"another shard is fetched",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(true), 1)].bucket = 0; }},
        {"a gather does not wait for the shard",
         [&](RankProgram& l) { l.instructions[find(l, is_gather)].after_count = 0; }},
        {"a gradient goes before it is reduced",
         [&](RankProgram& l) { l.instructions[find(l, is_copy(false))].after_count = 0; }},
        {"values come back after the update too",
         [&](RankProgram& l) {
             Instruction copy = l.instructions[find(l, is_copy(true))];
             copy.after_count = copy.allocate_count = copy.free_count = 0;
             l.instructions.push_back(copy);
         }},
    };
    const auto program_of = [](Offload place) {
        Plan plan = rich_program(Sharding::parameters).plan;
        plan.optimizer_offload = Offload::host;
        plan.parameter_offload = place;
        return *lowered(plan, load_graph("gpt-tiny"));
    };
    for (const auto& [what, apply] : mutations) {
        INFO(what);
        Program program = program_of(Offload::host);
        INFO(text_of(verify(program)));
        REQUIRE(verify(program).empty());
        apply(program.classes[0]);
        const std::vector<Violation> violations = verify(program);
        INFO(text_of(violations));
        CHECK(std::any_of(violations.begin(), violations.end(),
                          [](const Violation& v) { return v.rule == "update"; }));
    }
    Program program = program_of(Offload::host);
    program.plan.parameter_offload = Offload::none;
    CHECK_FALSE(verify(program).empty());
    program = program_of(Offload::none);
    program.plan.parameter_offload = Offload::host;
    CHECK_FALSE(verify(program).empty());
}

TEST_CASE("every mutation of the norms that LAMB needs before an update is found") {
    struct Mutation {
        const char* what;
        std::function<void(RankProgram&)> apply;
        Sharding sharding = Sharding::optimizer;
        const char* rule = "update";
    };
    const Match is_norm = is_kind(InstructionKind::update_norm),
                is_step = is_kind(InstructionKind::optimizer_step);
    const Match is_shard_sum = is_collective(GroupKind::shard, PayloadKind::update_norm),
                is_tensor_sum = is_collective(GroupKind::tensor, PayloadKind::update_norm);
    const auto swap_places = [](RankProgram& list, std::size_t a, std::size_t b) {
        std::swap(list.instructions[a], list.instructions[b]);
        list.instructions[std::min(a, b)].after_count = 0;  // it cannot wait for what now comes later
    };
    const std::vector<Mutation> mutations = {
        {"norms are never taken", [&](RankProgram& l) { erase(l, find(l, is_norm)); }},
        {"norms of a bucket that nothing divides are never taken",
         [&](RankProgram& l) { erase(l, find(l, is_norm)); }, Sharding::none},
        {"norms of one bucket are taken twice, of another never",
         [&](RankProgram& l) { l.instructions[find(l, is_norm, 1)].bucket = 0; }},
        {"norms are not added up over shards", [&](RankProgram& l) { erase(l, find(l, is_shard_sum)); }},
        {"norms are not added up over tensor ranks",
         [&](RankProgram& l) { erase(l, find(l, is_tensor_sum)); }},
        {"norms are added up over shards where there are none",
         [&](RankProgram& l) { l.instructions[find(l, is_tensor_sum)].group = GroupKind::shard; },
         Sharding::none},
        {"sums of one bucket are those of another",
         [&](RankProgram& l) { l.instructions[find(l, is_shard_sum)].bucket = 1; }},
        {"sums stay with a part of the ranks",
         [&](RankProgram& l) {
             l.instructions[find(l, is_shard_sum)].collective = CollectiveKind::reduce_scatter;
         }},
        {"a sum has half its bytes",
         [&](RankProgram& l) { l.instructions[find(l, is_shard_sum)].bytes /= 2; }, Sharding::optimizer,
         "collectives"},
        {"a sum begins before its norms are there",
         [&](RankProgram& l) { l.instructions[find(l, is_shard_sum)].after_count = 0; }},
        {"sums over tensor ranks begin before those over shards",
         [&](RankProgram& l) { l.instructions[find(l, is_tensor_sum)].after_count = 0; }},
        {"groups are gone through in another order",
         [&](RankProgram& l) {
             std::swap(l.instructions[find(l, is_shard_sum)].group,
                       l.instructions[find(l, is_tensor_sum)].group);
         }},
        {"a step does not wait for its sums",
         [&](RankProgram& l) { l.instructions[find(l, is_step)].after_count = 0; }},
        {"norms come after the step",
         [&](RankProgram& l) { swap_places(l, find(l, is_norm), find(l, is_step)); }, Sharding::none},
        {"norms do not wait for the reductions",
         [&](RankProgram& l) { l.instructions[find(l, is_norm)].after_count = 0; }},
        {"norms do not wait for the clipping factor",
         [&](RankProgram& l) {
             Instruction& first = l.instructions[find(l, is_norm)];
             std::uint32_t kept = 0;  // waits for reductions alone
             for (std::uint32_t a = 0; a < first.after_count; ++a) {
                 const std::uint32_t before = l.after_pool[first.after_begin + a];
                 if (l.instructions[before].payload != PayloadKind::gradient_norm)
                     l.after_pool[first.after_begin + kept++] = before;
             }
             first.after_count = kept;
         }},
        {"norms are those of another update",
         [&](RankProgram& l) { l.instructions[find(l, is_norm)].micro_batch = 1; }},
        {"a gradient is reduced once its norms are taken",
         [&](RankProgram& l) {
             swap_places(l, find(l, is_norm),
                         find(l, is_collective(GroupKind::shard, PayloadKind::parameter_gradient)));
         }},
        {"norms of no bucket are taken",
         [&](RankProgram& l) { l.instructions[find(l, is_norm)].bucket = std::nullopt; }, Sharding::optimizer,
         "structure"},
    };
    for (const Mutation& mutation : mutations) {
        INFO(mutation.what);
        Program program = rich_program(mutation.sharding, OptimizerKind::lamb, 1.0);
        REQUIRE(verify(program).empty());
        mutation.apply(program.classes[0]);
        const std::vector<Violation> violations = verify(program);
        INFO(text_of(violations));
        CHECK(std::any_of(violations.begin(), violations.end(),
                          [&](const Violation& v) { return v.rule == mutation.rule; }));
    }
    // Nobody else takes them.
    Program program = rich_program(Sharding::none, OptimizerKind::lamb);
    program.plan.optimizer.kind = OptimizerKind::adamw;
    CHECK_FALSE(verify(program).empty());
}

TEST_CASE("two ranks that wait for each other are found") {
    // Both receive before they send: each list is sound by itself, and the transfers match.
    core::Diagnostics diagnostics;
    Plan plan;
    plan.layout.pipeline = 2;
    plan.micro_batches = 2;
    Program program = lower_compute_only(*make_schedule(plan, diagnostics));
    REQUIRE(verify(program).empty());
    // Rank 1 takes the second micro-batch's activation before it sends back the first one's gradient: its
    // list is F0 F1 B0 B1 and still runs...
    // ...unless rank 0 sends the second only after it has the first one's gradient.
    RankProgram& zero = program.classes[0];
    RankProgram& one = program.classes[1];
    const auto move_to = [](RankProgram& list, std::size_t from, std::size_t to) {
        const Instruction moved = list.instructions[from];
        list.instructions.erase(list.instructions.begin() + static_cast<std::ptrdiff_t>(from));
        list.instructions.insert(list.instructions.begin() + static_cast<std::ptrdiff_t>(to), moved);
        for (Instruction& i : list.instructions) i.after_count = 0;
    };
    for (Instruction& i : zero.instructions)
        i.stream = Stream::compute;  // one stream each: order is the list's
    for (Instruction& i : one.instructions) i.stream = Stream::compute;
    const auto send = find(
        zero, [](const Instruction& i) { return i.kind == InstructionKind::send && i.micro_batch == 1; });
    const auto gradient = find(
        zero, [](const Instruction& i) { return i.kind == InstructionKind::receive && i.micro_batch == 0; });
    move_to(zero, send, gradient);
    const auto activation = find(
        one, [](const Instruction& i) { return i.kind == InstructionKind::receive && i.micro_batch == 1; });
    const auto back =
        find(one, [](const Instruction& i) { return i.kind == InstructionKind::send && i.micro_batch == 0; });
    if (activation > back) move_to(one, activation, back);
    const std::vector<Violation> violations = verify(program);
    INFO(text_of(violations));
    CHECK(std::any_of(violations.begin(), violations.end(),
                      [](const Violation& v) { return v.rule == "progress"; }));
}
