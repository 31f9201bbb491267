#include "partition/reader/components.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>

#include "core/diagnostics.h"

namespace partition {

std::vector<int> strong_components(std::size_t vertices, const std::vector<std::pair<int, int>>& edges) {
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
    Graph graph(vertices);
    for (auto [from, to] : edges)
        boost::add_edge(static_cast<std::size_t>(from), static_cast<std::size_t>(to), graph);
    std::vector<int> component(vertices);
    if (vertices == 0) return component;
    int count = boost::strong_components(
        graph, boost::make_iterator_property_map(component.begin(), boost::get(boost::vertex_index, graph)));
    std::vector<int> renumbered(static_cast<std::size_t>(count), -1);
    int next = 0;
    for (int& c : component) {
        int& number = renumbered[static_cast<std::size_t>(c)];
        if (number < 0) number = next++;
        c = number;
    }
    return component;
}

std::vector<int> topological_numbers(const std::vector<int>& component,
                                     const std::vector<std::pair<int, int>>& edges) {
    int count = 0;
    for (int c : component) count = std::max(count, c + 1);
    std::vector<std::set<int>> next(static_cast<std::size_t>(count));
    std::vector<int> waiting(static_cast<std::size_t>(count), 0);
    for (auto [before, after] : edges) {
        int a = component[static_cast<std::size_t>(before)], b = component[static_cast<std::size_t>(after)];
        if (a != b && next[static_cast<std::size_t>(a)].insert(b).second)
            ++waiting[static_cast<std::size_t>(b)];
    }
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (int c = 0; c < count; ++c)
        if (waiting[static_cast<std::size_t>(c)] == 0) ready.push(c);
    std::vector<int> number(static_cast<std::size_t>(count), -1);
    int placed = 0;
    while (!ready.empty()) {
        int c = ready.top();
        ready.pop();
        number[static_cast<std::size_t>(c)] = placed++;
        for (int n : next[static_cast<std::size_t>(c)])
            if (--waiting[static_cast<std::size_t>(n)] == 0) ready.push(n);
    }
    core::require(placed == count, "contracting strong components leaves no cycle");
    return number;
}

}  // namespace partition
