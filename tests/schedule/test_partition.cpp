#include <catch2/catch.hpp>

#include <algorithm>
#include <limits>

#include "core/diagnostics.h"
#include "core/random.h"
#include "model/load.h"
#include "schedule/plan/partition.h"

using namespace schedule;

namespace {

std::size_t most_again_of(const PartitionProblem& p, std::size_t stage) {
    return p.most_again.size() == 1 ? p.most_again.front() : p.most_again[stage];
}

// The slow oracle: every way to cut.
double best_by_enumeration(const PartitionProblem& p, std::size_t begin, int stages) {
    const std::size_t units = p.load.size();
    double best = std::numeric_limits<double>::infinity(),
           load = begin > 0 && begin < units ? p.boundary[begin - 1].value : 0, memory = 0;
    std::size_t again = 0;
    for (std::size_t end = begin + 1; end <= units; ++end) {
        load += p.load[end - 1].value;
        if (!p.again.empty() && p.again[end - 1].value > 0 &&
            again++ < most_again_of(p, std::size_t(p.stages - stages)))
            load += p.again[end - 1].value;
        memory += p.memory[end - 1].value;
        if (p.memory_limit.value > 0 && memory > p.memory_limit.value) break;
        const double own = load + (end < units ? p.boundary[end - 1].value : 0);
        if (stages == 1) {
            if (end == units) best = std::min(best, own);
        } else {
            best = std::min(best, std::max(own, best_by_enumeration(p, end, stages - 1)));
        }
    }
    return best;
}

double largest_load(const PartitionProblem& p, const Partition& partition) {
    double largest = 0;
    for (std::size_t s = 0; s < partition.first_units.size(); ++s) {
        const auto begin = static_cast<std::size_t>(partition.first_units[s]);
        const std::size_t end = s + 1 < partition.first_units.size()
                                    ? static_cast<std::size_t>(partition.first_units[s + 1])
                                    : p.load.size();
        double load = (begin > 0 ? p.boundary[begin - 1].value : 0) +
                      (end < p.load.size() ? p.boundary[end - 1].value : 0);
        std::size_t again = 0;
        for (std::size_t i = begin; i < end; ++i) {
            load += p.load[i].value;
            if (!p.again.empty() && p.again[i].value > 0 && again++ < most_again_of(p, s))
                load += p.again[i].value;
        }
        largest = std::max(largest, load);
    }
    return largest;
}

}  // namespace

TEST_CASE("the partition is the best of all that exist, with and without a memory limit") {
    core::Random random(7);
    int infeasible = 0;
    for (int instance = 0; instance < 400; ++instance) {
        PartitionProblem p;
        const std::size_t units = 1 + random.below(9);
        p.stages = 1 + static_cast<int>(random.below(5));
        for (std::size_t i = 0; i < units; ++i) {
            p.load.push_back(
                core::Seconds(static_cast<double>(random.below(20))));  // small integers: sums are exact
            p.memory.push_back(core::Bytes(static_cast<double>(1 + random.below(9))));
            if (i > 0) p.boundary.push_back(core::Seconds(static_cast<double>(random.below(6))));
        }
        if (instance % 3 == 0) {
            p.most_again = {random.below(4)};
            if (instance % 2)
                for (int s = 1; s < p.stages; ++s) p.most_again.push_back(random.below(4));
            for (std::size_t i = 0; i < units; ++i)
                p.again.push_back(core::Seconds(static_cast<double>(random.below(3) * random.below(9))));
        }
        if (instance % 2) p.memory_limit = core::Bytes(static_cast<double>(8 + random.below(20)));
        const double best = best_by_enumeration(p, 0, p.stages);
        const std::optional<PartitionSolution> solution = partition_contiguous(p);
        REQUIRE(solution.has_value() == (best < std::numeric_limits<double>::infinity()));
        if (!solution) {
            ++infeasible;
            continue;
        }
        CHECK(solution->largest_load.value == best);
        CHECK(static_cast<int>(solution->partition.first_units.size()) == p.stages);
        CHECK(solution->partition.first_units[0] == 0);
        CHECK(largest_load(p, solution->partition) == best);
    }
    CHECK(infeasible > 20);
}

TEST_CASE("stages that do not decide the maximum are evened out too") {
    // 9 decides; of the four units left, 2 + 2 is the fairest division, not 1 + 3.
    PartitionProblem p;
    for (const double load : {9.0, 1.0, 1.0, 1.0, 1.0}) p.load.push_back(core::Seconds(load));
    p.stages = 3;
    CHECK(partition_contiguous(p)->partition.first_units == std::vector<std::int32_t>{0, 1, 3});
}

TEST_CASE("an automatic partition gives the stage with the head fewer layers") {
    core::Diagnostics diagnostics;
    // GPT-2 large, 1024 tokens: a layer is 24 s h^2 + 4 s^2 h FLOPs, the head 2 s h v = 2.9 layers, so four
    // stages share 38.9 layers' worth: 10 + 10 + 9 + (7 and the head = 9.9) in some order of the first three
    // is the best.
    const std::optional<model::ModelGraph> graph =
        model::load_model(std::string("gpt2-large"), {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    Plan plan;
    plan.layout.pipeline = 4;
    const std::optional<Partition> partition = complete_partition(plan, *graph);
    REQUIRE(partition);
    const std::vector<std::int32_t>& first = partition->first_units;  // embedding, 36 layers, head
    REQUIRE(first.size() == 4);
    CHECK(first[3] == 1 + 29);
    CHECK(static_cast<int>(graph->units.size()) == 38);
    for (int s = 1; s < 3; ++s)
        CHECK((first[static_cast<std::size_t>(s) + 1] - first[static_cast<std::size_t>(s)] == 9 ||
               first[static_cast<std::size_t>(s) + 1] - first[static_cast<std::size_t>(s)] == 10));
    plan.layout.pipeline = 64;
    CHECK_FALSE(complete_partition(plan, *graph));
    plan.partition.first_units = {0, 5};
    CHECK(complete_partition(plan, *graph)->first_units == std::vector<std::int32_t>{0, 5});
}

TEST_CASE("counted by layers, stages hold equal numbers or the first and the last one less") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph =
        model::load_model(std::string("gpt2-large"), {}, diagnostics);  // embedding, 36 layers, head
    REQUIRE(graph);
    using Units = std::vector<std::int32_t>;
    CHECK(partition_by_layers(*graph, 4)->first_units == Units{0, 10, 19, 28});
    CHECK(partition_by_layers(*graph, 1)->first_units == Units{0});
    CHECK_FALSE(partition_by_layers(*graph, 5));
    // 38 = 36 + 2: the embedding and the head are a stage's share each.
    const std::optional<Partition> thirty_eight = partition_by_layers(*graph, 38);
    REQUIRE(thirty_eight);
    for (std::int32_t s = 0; s < 38; ++s) CHECK(thirty_eight->first_units[static_cast<std::size_t>(s)] == s);
    // 19 stages of two: embedding and one layer, ..., one layer and head.
    const std::optional<Partition> nineteen = partition_by_layers(*graph, 19);
    REQUIRE(nineteen);
    CHECK(nineteen->first_units[1] == 2);
    CHECK(nineteen->first_units[18] == 36);
}
