// Strongly connected components and a stable topological numbering of what they contract to: formats order
// nodes as they like, searches want numbers that only rise.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace partition {

// Component of every vertex, numbered from 0 by the smallest vertex in it.
std::vector<int> strong_components(std::size_t vertices, const std::vector<std::pair<int, int>>& edges);
// Number of every component in a topological order of the contracted graph; among those free to come next the
// smallest component comes first.
std::vector<int> topological_numbers(const std::vector<int>& component,
                                     const std::vector<std::pair<int, int>>& edges);

}  // namespace partition
