#include "partition/reader/components.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <set>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>

#include "core/errors.h"

namespace partition {

std::vector<std::size_t> strong_components(std::size_t vertices, const std::vector<Edge>& edges) {
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;
    const Graph graph(edges.begin(), edges.end(), vertices);
    std::vector<std::size_t> component(vertices);
    if (vertices == 0) return component;
    const std::size_t count = boost::strong_components(
        graph, boost::make_iterator_property_map(component.begin(), boost::get(boost::vertex_index, graph)));
    std::vector<std::optional<std::size_t>> renumbered(count);
    std::size_t next = 0;
    for (std::size_t& c : component) {
        std::optional<std::size_t>& number = renumbered[c];
        if (!number) number = next++;
        c = *number;
    }
    return component;
}

std::vector<std::size_t> topological_numbers(const std::vector<std::size_t>& component,
                                             const std::vector<Edge>& edges) {
    std::size_t count = 0;
    for (std::size_t c : component) count = std::max(count, c + 1);
    std::vector<std::set<std::size_t>> next(count);
    std::vector<int> waiting(count, 0);
    for (auto [before, after] : edges) {
        const std::size_t a = component[before], b = component[after];
        if (a != b && next[a].insert(b).second) ++waiting[b];
    }
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (std::size_t c = 0; c < count; ++c)
        if (waiting[c] == 0) ready.push(c);
    std::vector<std::size_t> number(count);
    std::size_t placed = 0;
    while (!ready.empty()) {
        const std::size_t c = ready.top();
        ready.pop();
        number[c] = placed++;
        for (std::size_t n : next[c])
            if (--waiting[n] == 0) ready.push(n);
    }
    core::require(placed == count, "contracting strong components leaves no cycle");
    return number;
}

std::vector<std::size_t> item_of_groups(std::size_t groups, const std::vector<Edge>& edges,
                                        bool keeps_cycles_apart) {
    const std::vector<std::size_t> component = strong_components(groups, edges);
    const std::vector<std::size_t> number = topological_numbers(component, edges);
    std::vector<std::size_t> item(groups);
    for (std::size_t g = 0; g < groups; ++g) item[g] = number[component[g]];
    if (!keeps_cycles_apart) return item;
    std::vector<std::size_t> order(groups);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return item[a] < item[b]; });
    for (std::size_t position = 0; position < groups; ++position) item[order[position]] = position;
    return item;
}

}  // namespace partition
