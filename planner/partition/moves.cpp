#include "planner/partition/moves.h"

#include <utility>

namespace planner {

namespace {

// Two cuts are moved together where there are no more stages than this, and a unit goes further than to its
// neighbours where there are no more than that.
constexpr std::size_t most_stages_in_pairs = 4, most_stages_apart = 64;

void add_cuts(Cuts next, std::size_t units, std::vector<Cuts>& moved) {
    for (std::size_t s = 1; s < next.size(); ++s)
        if (next[s] <= next[s - 1]) return;
    if (std::cmp_less(next.back(), units)) moved.push_back(std::move(next));
}

}  // namespace

std::vector<Cuts> near_moves(const Cuts& cuts, std::size_t units) {
    std::vector<Cuts> moved;
    for (std::size_t a = 1; a < cuts.size(); ++a)
        for (const std::int32_t step : {-1, 1}) {
            Cuts one = cuts;
            one[a] += step;
            add_cuts(one, units, moved);
            if (cuts.size() > most_stages_in_pairs) continue;
            for (std::size_t b = a + 1; b < cuts.size(); ++b)
                for (const std::int32_t other : {-1, 1}) {
                    Cuts two = one;
                    two[b] += other;
                    add_cuts(std::move(two), units, moved);
                }
        }
    return moved;
}

std::vector<Cuts> far_moves(const Cuts& cuts, std::size_t units) {
    std::vector<Cuts> moved;
    if (cuts.size() > most_stages_apart) return moved;
    for (std::size_t first = 1; first < cuts.size(); ++first)
        for (const std::int32_t step : {-1, 1}) {
            Cuts some = cuts;
            some[first] += step;
            for (std::size_t last = first + 1; last < cuts.size(); ++last) {
                some[last] += step;
                add_cuts(some, units, moved);
            }
        }
    return moved;
}

}  // namespace planner
