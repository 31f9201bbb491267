// Strongly connected components and a stable topological numbering of what they contract to: formats order
// nodes as they like, searches want numbers that only rise.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace partition {

using Edge = std::pair<std::size_t, std::size_t>;  // (from, to)

// Component of every vertex, numbered from 0 by the smallest vertex in it.
std::vector<std::size_t> strong_components(std::size_t vertices, const std::vector<Edge>& edges);
// Number of every component in a topological order of the contracted graph; among those free to come next the
// smallest component comes first.
std::vector<std::size_t> topological_numbers(const std::vector<std::size_t>& component,
                                             const std::vector<Edge>& edges);
// Item of every group, numbered in a topological order of the edges between groups. Groups on a cycle are one
// item; with `keeps_cycles_apart` every group is an item of its own, and edges of a cycle may run back.
std::vector<std::size_t> item_of_groups(std::size_t groups, const std::vector<Edge>& edges,
                                        bool keeps_cycles_apart);

}  // namespace partition
