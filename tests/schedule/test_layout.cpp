#include <algorithm>

#include <catch2/catch.hpp>

#include "schedule/plan/layout.h"

using namespace schedule;

namespace {

// Every group of one kind, each once, in order of its lowest rank.
std::vector<std::vector<int>> groups(const ParallelLayout& layout, GroupKind kind, int shard_degree = 1) {
    std::vector<std::vector<int>> all;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        const std::vector<int> group = process_group(layout, kind, rank, shard_degree);
        if (!group.empty() && *std::min_element(group.begin(), group.end()) == rank) all.push_back(group);
    }
    return all;
}

std::string digits(const ParallelLayout& layout, int rank) {
    const RankCoordinates c = coordinates_of(layout, rank);
    return std::to_string(c.data) + std::to_string(c.pipeline) + std::to_string(c.tensor);
}

using Groups = std::vector<std::vector<int>>;

}  // namespace

// Both tables: SageMaker Python SDK, smd_model_parallel_general.rst, placement_strategy.
TEST_CASE("eight ranks in two partitions are numbered as SageMaker's cluster and spread placements say") {
    const ParallelLayout cluster{.data = 4, .tensor = 1, .pipeline = 2, .order = canonical_order("cluster")};
    CHECK(groups(cluster, GroupKind::pipeline) == Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
    CHECK(groups(cluster, GroupKind::data) == Groups{{0, 2, 4, 6}, {1, 3, 5, 7}});
    const ParallelLayout spread{.data = 4, .tensor = 1, .pipeline = 2, .order = canonical_order("spread")};
    CHECK(groups(spread, GroupKind::pipeline) == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
    CHECK(groups(spread, GroupKind::data) == Groups{{0, 1, 2, 3}, {4, 5, 6, 7}});
    CHECK(coordinates_of(spread, 6).data == 2);  // "process 6 has dp_rank 2"
}

TEST_CASE("eight ranks with two of each axis follow the letters, the rightmost fastest") {
    const ParallelLayout dpt{.data = 2, .tensor = 2, .pipeline = 2, .order = "DPT"};
    const ParallelLayout ptd{.data = 2, .tensor = 2, .pipeline = 2, .order = "PTD"};
    const std::vector<std::string> expected_dpt{"000", "001", "010", "011", "100", "101", "110", "111"};
    const std::vector<std::string> expected_ptd{"000", "100", "001", "101", "010", "110", "011", "111"};
    for (int rank = 0; rank < 8; ++rank) {
        CHECK(digits(dpt, rank) == expected_dpt[static_cast<std::size_t>(rank)]);
        CHECK(digits(ptd, rank) == expected_ptd[static_cast<std::size_t>(rank)]);
    }
}

TEST_CASE("SageMaker's DTP example has pairs of neighbours as pipelines and every other rank as data group") {
    // developer guide, tensor parallelism: PP groups (0,1)(2,3)(4,5)(6,7), TP groups (0,2)(1,3)(4,6)(5,7),
    // reduced-data groups (0,4)(1,5)(2,6)(3,7).
    const ParallelLayout layout{.data = 2, .tensor = 2, .pipeline = 2, .order = "DTP"};
    CHECK(groups(layout, GroupKind::pipeline) == Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
    CHECK(groups(layout, GroupKind::tensor) == Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
    CHECK(groups(layout, GroupKind::data) == Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
}

TEST_CASE("shard groups are neighbours in the data group and replicas stride over them") {
    // 32 ranks, tensor 4, shard 4 (SMP 1.15 release notes): sharding groups of tensor rank 0 are (0,4,8,12)
    // and (16,20,24,28).
    const ParallelLayout layout{.data = 8, .tensor = 4, .pipeline = 1, .order = "DPT"};
    CHECK(process_group(layout, GroupKind::shard, 8, 4) == std::vector<int>{0, 4, 8, 12});
    CHECK(process_group(layout, GroupKind::shard, 16, 4) == std::vector<int>{16, 20, 24, 28});
    CHECK(process_group(layout, GroupKind::replica, 4, 4) == std::vector<int>{4, 20});
}

TEST_CASE("a rank and its coordinates determine each other for every order") {
    for (const char* order : {"DPT", "DTP", "PDT", "PTD", "TDP", "TPD"}) {
        const ParallelLayout layout{.data = 3, .tensor = 2, .pipeline = 4, .order = order};
        for (int rank = 0; rank < layout.ranks(); ++rank) {
            CHECK(rank_of(layout, coordinates_of(layout, rank)) == rank);
            for (const GroupKind kind : {GroupKind::world, GroupKind::tensor, GroupKind::data,
                                         GroupKind::pipeline, GroupKind::shard, GroupKind::replica}) {
                const std::vector<int> group = process_group(layout, kind, rank, 3);
                CHECK(std::count(group.begin(), group.end(), rank) == 1);
                for (const int member : group) CHECK(process_group(layout, kind, member, 3) == group);
            }
        }
    }
}

TEST_CASE("tied stages are the ends of a pipeline") {
    const ParallelLayout layout{.data = 2, .tensor = 1, .pipeline = 3, .order = "PDT"};
    CHECK(process_group(layout, GroupKind::tied_stages, 1) == std::vector<int>{1, 5});
    CHECK(process_group(layout, GroupKind::tied_stages, 5) == std::vector<int>{1, 5});
    CHECK(process_group(layout, GroupKind::tied_stages, 2).empty());
}

TEST_CASE("only permutations of the three letters and the known words are orders") {
    CHECK(canonical_order("megatron") == "PDT");
    CHECK(canonical_order("TDP") == "TDP");
    CHECK(canonical_order("DDT").empty());
    CHECK(canonical_order("").empty());
    CHECK(canonical_order("dpt").empty());
}
