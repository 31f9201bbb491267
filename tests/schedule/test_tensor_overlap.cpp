// Products of tensor-parallel layers in pieces beside their exchange: what lowering makes of them and what
// verify asks of it.
#include <catch2/catch.hpp>

#include <map>
#include <set>

#include "core/diagnostics.h"
#include "core/document.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "schedule/plan/plan_file.h"
#include "schedule/program/pieces.h"
#include "schedule/verify.h"
#include "tests/model/catalogue.h"

using namespace schedule;

namespace {

Plan base_plan(int pieces) {
    Plan plan;
    plan.layout = {.data = 2, .tensor = 2, .pipeline = 2};
    plan.micro_batches = 4;
    plan.tensor_overlap = pieces;
    return plan;
}

std::optional<Program> lowered(Plan plan, const model::ModelGraph& graph) {
    core::Diagnostics diagnostics;
    const std::optional<Schedule> order = make_schedule(plan, diagnostics);
    const std::optional<Partition> partition = complete_partition(plan, graph);
    if (!order || !partition) return std::nullopt;
    plan.partition = *partition;
    return lower(plan, graph, *order);
}

bool is_exchange(const Instruction& i) {
    return i.kind == InstructionKind::collective && i.group == GroupKind::tensor &&
           (i.payload == PayloadKind::activation || i.payload == PayloadKind::activation_gradient);
}

double exchanged(const Program& program) {
    double bytes = 0;
    for (const RankProgram& list : program.classes)
        for (const Instruction& i : list.instructions)
            if (is_exchange(i)) bytes += i.bytes.value;
    return bytes;
}

std::string first_violation(const Program& program) {
    const std::vector<Violation> violations = verify(program);
    return violations.empty() ? std::string() : violations.front().rule + ": " + violations.front().message;
}

}  // namespace

TEST_CASE("the rows of pieces are all rows, each once, and lie together in what is written") {
    for (const std::int64_t rows : {1, 7, 16, 30})
        for (const int shares : {1, 2})
            for (const int pieces : {1, 2, 3, 7}) {
                if (rows % shares != 0 || rows / shares < pieces) continue;
                std::set<std::int64_t> read;
                std::int64_t written = 0;
                for (int piece = 0; piece < pieces; ++piece) {
                    const PieceRows own = piece_rows(rows, shares, piece, pieces);
                    CHECK(own.to == written);
                    written += own.size();
                    for (int place = 0; place < own.count; ++place)
                        for (std::int64_t row = 0; row < own.rows; ++row)
                            CHECK(read.insert(own.from + place * own.stride + row).second);
                }
                CHECK(written == rows);
                CHECK(std::ssize(read) == rows);
                CHECK(*read.rbegin() == rows - 1);
            }
}

TEST_CASE("row-parallel products forward and input gradients of column-parallel ones are cut in pieces") {
    constexpr int pieces = 4;
    const model::ModelGraph graph = load_graph("gpt-tiny");
    Plan plan = base_plan(pieces);
    plan.sequence_parallel = GENERATE(false, true);
    const auto program = lowered(plan, graph);
    REQUIRE(program);
    CHECK(first_violation(*program).empty());
    std::map<std::pair<ComputePhase, int>, int> products, exchanges;
    for (const RankProgram& list : program->classes)
        for (const Instruction& i : list.instructions)
            if (i.pieces > 1)
                ++(i.kind == InstructionKind::compute ? products : exchanges)[{i.phase, i.piece}];
    // Attention's and the feed-forward's last product and, backward, their first: two a layer and
    // micro-batch.
    int layers = 0;
    for (const model::Unit& unit : graph.units) layers += unit.name.starts_with("layers.");
    const int each = 2 * layers * plan.micro_batches;
    for (const ComputePhase phase : {ComputePhase::forward, ComputePhase::backward})
        for (int piece = 0; piece < pieces; ++piece) {
            CHECK(products[{phase, piece}] == each);
            CHECK(exchanges[{phase, piece}] == each);
        }
    CHECK(products[{ComputePhase::backward, pieces}] == each);  // gradients of weights
    CHECK(products.size() == 2 * pieces + 1);
    CHECK(exchanges.size() == 2 * pieces);
    plan.tensor_overlap = 1;
    CHECK(exchanged(*program) == Approx(exchanged(*lowered(plan, graph))).epsilon(1e-12));
}

TEST_CASE("the exchange of a piece waits for its own product, and what follows for the last exchange") {
    const auto program = lowered(base_plan(3), load_graph("gpt-tiny"));
    REQUIRE(program);
    for (const RankProgram& list : program->classes) {
        std::map<int, std::uint32_t> products;  // of the group at hand, by piece
        std::uint32_t last_exchange = 0;
        bool has_ended = false;
        for (std::uint32_t n = 0; n < list.instructions.size(); ++n) {
            const Instruction& i = list.instructions[n];
            const auto after = list.after(i);
            if (i.pieces > 1 && is_exchange(i)) {
                REQUIRE(after.size() == 1);
                CHECK(after[0] == products.at(i.piece));
                has_ended = is_last_piece(i);
                last_exchange = n;
                if (has_ended) products.clear();
            } else if (i.kind == InstructionKind::compute) {
                if (i.pieces > 1 && i.piece > 0) CHECK(after.empty());
                else if (has_ended)
                    CHECK(std::find(after.begin(), after.end(), last_exchange) != after.end());
                if (i.pieces > 1) products[i.piece] = n;
                has_ended = false;
            }
        }
    }
}

TEST_CASE("pieces take no memory: every list has the buffers of whole products") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    for (const PipelineSchedule& candidate : pipeline_schedules()) {
        if (candidate.is_asynchronous) continue;
        Plan plan = base_plan(1);
        plan.schedule = candidate.name;
        plan.virtual_stages = candidate.least_chunks;
        plan.sequence_parallel = true;
        const auto whole = lowered(plan, graph);
        if (!whole) continue;
        plan.tensor_overlap = 4;
        const auto pieces = lowered(plan, graph);
        INFO(candidate.name);
        CHECK(first_violation(*pieces).empty());
        for (std::size_t c = 0; c < whole->classes.size(); ++c) {
            const std::vector<Buffer>&a = whole->classes[c].buffers, &b = pieces->classes[c].buffers;
            REQUIRE(a.size() == b.size());
            for (std::size_t k = 0; k < a.size(); ++k) CHECK(a[k].bytes == b[k].bytes);
            CHECK(whole->classes[c].buffer_pool == pieces->classes[c].buffer_pool);
        }
    }
}

TEST_CASE("verify refuses pieces that are missing, out of order, or exchanged before they are computed") {
    const model::ModelGraph graph = load_graph("gpt-tiny");
    const Program good = *lowered(base_plan(3), graph);
    REQUIRE(first_violation(good).empty());
    int mutated = 0;
    const auto refuses = [&](const auto& mutate) {
        for (const ComputePhase phase : {ComputePhase::forward, ComputePhase::backward}) {
            Program bad = good;
            RankProgram& list = bad.classes[0];
            for (std::size_t n = 0; n < list.instructions.size(); ++n) {
                Instruction& i = list.instructions[n];
                if (i.pieces == 1 || i.phase != phase || !mutate(list, n, i)) continue;
                INFO(describe(good, 0, static_cast<std::uint32_t>(n)));
                CHECK_FALSE(first_violation(bad).empty());
                ++mutated;
                break;
            }
        }
    };
    refuses([](RankProgram&, std::size_t, Instruction& i) {  // starts with the piece before
        return is_exchange(i) && i.piece == 1 && (i.after_count = 0, true);
    });
    refuses([](RankProgram&, std::size_t, Instruction& i) {  // a piece twice
        return i.kind == InstructionKind::compute && i.piece == 1 && (i.piece = 0, true);
    });
    refuses([](RankProgram&, std::size_t, Instruction& i) {  // exchanged out of order
        return is_exchange(i) && i.piece == 1 && (i.piece = 2, true);
    });
    refuses([](RankProgram&, std::size_t, Instruction& i) {  // the last exchange is another operator's
        return is_exchange(i) && is_last_piece(i) && (++i.operators.begin, ++i.operators.end, true);
    });
    refuses([](RankProgram&, std::size_t, Instruction& i) {  // there is no such piece
        return is_exchange(i) && i.piece == 0 && (i.piece = 3, true);
    });
    refuses(
        [](RankProgram& list, std::size_t n, Instruction& i) {  // the weights' gradient before the last piece
            if (!is_of_weights(i)) return false;
            std::swap(list.instructions[n], list.instructions[n - 1]);
            return true;
        });
    CHECK(mutated == 11);  // forward has no gradient of weights
}

TEST_CASE("tensor_overlap is read and written, and refused in fp8 and beyond 64 pieces") {
    const auto read = [](const std::string& keys, core::Diagnostics& diagnostics) {
        const auto document = core::parse_toml("[plan]\n" + keys, "p.toml", diagnostics);
        REQUIRE(document);
        return read_plan(*document->find("plan"), nullptr, diagnostics);
    };
    core::Diagnostics diagnostics;
    const auto plan = read("tensor_parallel = 2\ntensor_overlap = 4", diagnostics);
    REQUIRE(plan);
    CHECK(plan->tensor_overlap == 4);
    CHECK(core::to_toml(to_value(*plan)).find("tensor_overlap = 4") != std::string::npos);
    CHECK(core::to_toml(to_value(Plan())).find("tensor_overlap") == std::string::npos);
    CHECK_FALSE(read("tensor_overlap = 65", diagnostics));
    CHECK_FALSE(read("tensor_overlap = 0", diagnostics));

    const auto message = [](Plan checked) {
        core::Diagnostics found;
        check_plan(checked, load_graph("gpt-tiny"), checked.layout.ranks(), nullptr, found);
        return core::format(found);
    };
    Plan in_fp8 = base_plan(2);
    in_fp8.precision.compute = core::DataType::fp8;
    CHECK(message(in_fp8).find("operands in fp8 are scaled as a whole") != std::string::npos);
    Plan alone = base_plan(2);
    alone.layout = {.data = 2, .tensor = 1, .pipeline = 2};
    CHECK(message(alone).find("no effect with tensor_parallel = 1") != std::string::npos);
}
