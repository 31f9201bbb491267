#include <catch2/catch.hpp>

#include <algorithm>

#include "core/random.h"
#include "schedule/collective/rounds.h"

using namespace schedule;

namespace {

using State = std::vector<std::vector<std::int64_t>>;  // [rank][piece], integers: sums are exact in any order

State performed(const Rounds& rounds, State state) {
    for (const std::vector<Transfer>& round : rounds.rounds) {
        const State before = state;
        for (const Transfer& t : round) {
            REQUIRE(t.from != t.to);
            REQUIRE(t.first + t.count <= rounds.pieces);
            for (std::int32_t i = 0; i < t.count; ++i) {
                const std::int64_t value =
                    before[static_cast<std::size_t>(t.from)][static_cast<std::size_t>(t.first + i)];
                std::int64_t& own = state[static_cast<std::size_t>(t.to)]
                                         [static_cast<std::size_t>(t.into.value_or(t.first) + i)];
                own = t.reduces ? own + value : value;
            }
        }
    }
    return state;
}

State random_state(int ranks, int pieces) {
    core::Random random(static_cast<std::uint64_t>(ranks * 1000 + pieces));
    State state(static_cast<std::size_t>(ranks), std::vector<std::int64_t>(static_cast<std::size_t>(pieces)));
    for (auto& vector : state)
        for (auto& value : vector) value = static_cast<std::int64_t>(random.below(1000));
    return state;
}

std::vector<std::int64_t> sum(const State& state) {
    std::vector<std::int64_t> total(state[0].size());
    for (const auto& vector : state)
        for (std::size_t i = 0; i < vector.size(); ++i) total[i] += vector[i];
    return total;
}

void check_result(CollectiveKind kind, const Rounds& rounds, int n) {
    const State start = random_state(n, rounds.pieces);
    const State end = performed(rounds, start);
    const std::vector<std::int64_t> total = sum(start);
    for (std::size_t r = 0; r < static_cast<std::size_t>(n); ++r) {
        switch (kind) {
            case CollectiveKind::all_reduce: CHECK(end[r] == total); break;
            case CollectiveKind::reduce_scatter: {
                const auto own = static_cast<std::size_t>(rounds.owned_piece[r]);
                CHECK(own == r);  // shards are in group order
                CHECK(end[r][own] == total[own]);
                break;
            }
            case CollectiveKind::all_gather:
                for (std::size_t other = 0; other < static_cast<std::size_t>(n); ++other) {
                    const auto piece = static_cast<std::size_t>(rounds.owned_piece[other]);
                    CHECK(end[r][piece] == start[other][piece]);
                }
                break;
            case CollectiveKind::broadcast: CHECK(end[r] == start[0]); break;
            case CollectiveKind::all_to_all:
                for (std::size_t other = 0; other < static_cast<std::size_t>(n); ++other)
                    CHECK(end[r][other] == start[other][r]);
                break;
            case CollectiveKind::rotate: CHECK(end[(r + 1) % static_cast<std::size_t>(n)] == start[r]); break;
        }
    }
}

// Pieces that the busiest rank sends.
int most_sent(const Rounds& rounds, int n, int ranks_per_node = 0) {
    std::vector<int> sent(static_cast<std::size_t>(n));
    for (const auto& round : rounds.rounds)
        for (const Transfer& t : round)
            if (ranks_per_node == 0 || t.from / ranks_per_node != t.to / ranks_per_node)
                sent[static_cast<std::size_t>(t.from)] += t.count;
    return *std::max_element(sent.begin(), sent.end());
}

constexpr CollectiveKind all_kinds[] = {CollectiveKind::all_reduce,     CollectiveKind::all_gather,
                                        CollectiveKind::reduce_scatter, CollectiveKind::broadcast,
                                        CollectiveKind::all_to_all,     CollectiveKind::rotate};

}  // namespace

TEST_CASE("performing the rounds of any algorithm gives what the collective promises") {
    int checked = 0;
    for (const CollectiveAlgorithm& algorithm : collective_algorithms())
        for (const CollectiveKind kind : all_kinds)
            for (int n = 1; n <= 17; ++n)
                for (int per_node = 0; per_node <= n; ++per_node) {
                    if (!algorithm.supports(kind, n, per_node)) continue;
                    if (!algorithm.name.starts_with("hierarchical") && per_node > 0) continue;
                    INFO(algorithm.name << " " << name_of(kind) << " " << n << " ranks, " << per_node
                                        << " a node");
                    check_result(kind, algorithm.rounds(kind, n, per_node), n);
                    ++checked;
                }
    CHECK(checked > 150);
}

TEST_CASE(
    "a ring sends the least possible: 2 (n-1)/n of the payload in 2 (n-1) rounds for an all-reduce, half of "
    "it for its halves") {
    const CollectiveAlgorithm& ring = *find_collective_algorithm("ring");
    for (int n = 2; n <= 17; ++n) {
        const Rounds all_reduce = ring.rounds(CollectiveKind::all_reduce, n, 0);
        CHECK(static_cast<int>(all_reduce.rounds.size()) == 2 * (n - 1));
        CHECK(all_reduce.pieces == n);
        CHECK(most_sent(all_reduce, n) == 2 * (n - 1));
        for (const CollectiveKind half : {CollectiveKind::all_gather, CollectiveKind::reduce_scatter}) {
            CHECK(static_cast<int>(ring.rounds(half, n, 0).rounds.size()) == n - 1);
            CHECK(most_sent(ring.rounds(half, n, 0), n) == n - 1);
        }
        CHECK(most_sent(ring.rounds(CollectiveKind::all_to_all, n, 0), n) == n - 1);
        CHECK(most_sent(ring.rounds(CollectiveKind::broadcast, n, 0), n) == n);
        CHECK(most_sent(ring.rounds(CollectiveKind::rotate, n, 0), n) == 1);
        // Every rank of a ring receives from one neighbour and sends to the other.
        for (const auto& round : all_reduce.rounds) {
            CHECK(static_cast<int>(round.size()) == n);
            for (const Transfer& t : round) CHECK(t.to == (t.from + 1) % n);
        }
    }
}

TEST_CASE("a tree needs two times the logarithm of the group in rounds") {
    const CollectiveAlgorithm& tree = *find_collective_algorithm("tree");
    for (int n = 1; n <= 33; ++n) {
        int levels = 0;
        while ((1 << levels) < n) ++levels;
        CHECK(static_cast<int>(tree.rounds(CollectiveKind::all_reduce, n, 0).rounds.size()) == 2 * levels);
        CHECK(static_cast<int>(tree.rounds(CollectiveKind::broadcast, n, 0).rounds.size()) == levels);
    }
}

TEST_CASE(
    "the hierarchical all-reduce puts 2 (m-1)/m of the payload divided by the ranks of a node on each rank's "
    "way out") {
    const CollectiveAlgorithm& hierarchical = *find_collective_algorithm("hierarchical");
    for (const int k : {2, 4, 8})
        for (const int m : {2, 3, 4, 16}) {
            const int n = k * m;
            const Rounds rounds = hierarchical.rounds(CollectiveKind::all_reduce, n, k);
            CHECK(rounds.pieces == n);
            CHECK(most_sent(rounds, n, k) == 2 * (m - 1));  // of n pieces: 2 (m-1)/m / k
            CHECK(most_sent(rounds, n) == 2 * (k - 1) * m + 2 * (m - 1));
            CHECK(static_cast<int>(rounds.rounds.size()) == 2 * (k - 1) + 2 * (m - 1));
        }
}

TEST_CASE(
    "the selector takes the tree for small all-reduces, the hierarchy across nodes and the ring elsewhere") {
    const auto chosen = [](const char* wanted, CollectiveKind kind, int n, int per_node, core::Bytes bytes) {
        return select_collective(wanted, kind, n, per_node, bytes).name;
    };
    CHECK(chosen("auto", CollectiveKind::all_reduce, 8, 8, core::kibibytes(1)) == "tree");
    CHECK(chosen("auto", CollectiveKind::all_reduce, 8, 8, core::mebibytes(64)) == "ring");
    CHECK(chosen("auto", CollectiveKind::all_reduce, 64, 8, core::mebibytes(64)) == "hierarchical");
    CHECK(chosen("auto", CollectiveKind::all_gather, 64, 8, core::kibibytes(1)) == "hierarchical");
    CHECK(chosen("auto", CollectiveKind::all_reduce, 60, 8, core::mebibytes(64)) == "ring");
    CHECK(chosen("auto", CollectiveKind::all_reduce, 2, 2, core::bytes(4)) == "ring");
    CHECK(chosen("ring", CollectiveKind::all_reduce, 64, 8, core::kibibytes(1)) == "ring");
    CHECK(chosen("tree", CollectiveKind::all_gather, 8, 8, core::kibibytes(1)) ==
          "ring");  // a tree gathers nothing
}

TEST_CASE("an all-gather over two levels that starts inside the node sends k times the bytes between nodes") {
    const CollectiveAlgorithm &outside_first = *find_collective_algorithm("hierarchical"),
                              &inside_first = *find_collective_algorithm("hierarchical-intra-first");
    for (int k : {2, 4, 8})
        for (int nodes : {2, 3, 4}) {
            const int n = k * nodes;
            const int first = most_sent(outside_first.rounds(CollectiveKind::all_gather, n, k), n, k),
                      second = most_sent(inside_first.rounds(CollectiveKind::all_gather, n, k), n, k);
            CHECK(first == nodes - 1);
            CHECK(second == k * first);
        }
}
