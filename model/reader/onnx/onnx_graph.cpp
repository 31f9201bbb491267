#include "model/reader/onnx/onnx_graph.h"

#include "core/index/integers.h"

#include <functional>
#include <queue>

namespace model {

std::string sort_nodes(OnnxGraph& graph, std::vector<int>& order) {
    const std::size_t count = graph.nodes.size();
    std::vector<int> producer(graph.values.size(), -1), missing(count, 0);
    std::vector<std::vector<int>> readers(count);
    for (std::size_t n = 0; n < count; ++n)
        for (int output : graph.nodes[n].outputs)
            if (output >= 0) producer[output] = static_cast<int>(n);
    for (std::size_t n = 0; n < count; ++n)
        for (int input : graph.nodes[n].inputs)
            if (input >= 0 && producer[input] >= 0) {
                readers[producer[input]].push_back(static_cast<int>(n));
                ++missing[n];
            }
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (std::size_t n = 0; n < count; ++n)
        if (missing[n] == 0) ready.push(static_cast<int>(n));
    order.clear();
    while (!ready.empty()) {
        const int n = ready.top();
        ready.pop();
        order.push_back(n);
        for (int reader : readers[n])
            if (--missing[reader] == 0) ready.push(reader);
    }
    if (order.size() != count) {
        // Walk back along unfinished producers until a node repeats: that loop is the cycle.
        std::size_t node = 0;
        while (missing[node] == 0) ++node;
        std::vector<int> seen(count, -1), path;
        while (seen[node] < 0) {
            seen[node] = core::count_of(path);
            path.push_back(static_cast<int>(node));
            for (int input : graph.nodes[node].inputs) {
                const int from = input < 0 ? -1 : producer[input];
                if (from >= 0 && missing[from] > 0) {
                    node = from;
                    break;
                }
            }
        }
        std::string names;
        for (std::size_t i = seen[node]; i < path.size() && i < static_cast<std::size_t>(seen[node]) + 6; ++i)
            names += (names.empty() ? "" : ", ") + describe(graph.nodes[path[i]]);
        return names;
    }
    std::vector<OnnxNode> sorted;
    sorted.reserve(count);
    for (int n : order) sorted.push_back(std::move(graph.nodes[n]));
    graph.nodes = std::move(sorted);
    return {};
}

}  // namespace model
