#include "planner/partition/partitions.h"

#include "model/model_graph.h"

namespace planner {

namespace {

// Partitions of a plan with several stages a rank of which some are looked at.
constexpr double most_explored = 1e5;

// Ways to place the cuts between units, or a number too large to be of interest.
double partitions(const schedule::Plan& plan, std::size_t units) {
    double ways = 1;
    for (int cut = 1; cut < plan.stages() && ways <= most_explored; ++cut)
        ways = ways * (static_cast<double>(units) - cut) / cut;
    return ways;
}

}  // namespace

bool covers_every_partition(const schedule::Plan& plan, std::size_t units) {
    return plan.virtual_stages == 1 || partitions(plan, units) <= most_partitions;
}

bool has_partitions_to_explore(const schedule::Plan& plan, std::size_t units) {
    return !covers_every_partition(plan, units) && partitions(plan, units) <= most_explored;
}

std::vector<model::OperatorRange> ranges_of(const model::ModelGraph& graph,
                                            const std::vector<std::int32_t>& first_units) {
    std::vector<model::OperatorRange> ranges;
    for (std::size_t s = 0; s < first_units.size(); ++s) {
        const std::size_t first = first_units[s];
        const std::size_t end =
            s + 1 < first_units.size() ? static_cast<std::size_t>(first_units[s + 1]) : graph.units.size();
        ranges.push_back({graph.units[first].operators.begin, graph.units[end - 1].operators.end});
    }
    return ranges;
}

}  // namespace planner
