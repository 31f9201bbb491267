#include <cmath>

#include "schedule/collective/rounds.h"

namespace schedule {

const std::vector<CollectiveAlgorithm>& collective_algorithms() {
    static const std::vector<CollectiveAlgorithm> algorithms = {
        ring_algorithm(), tree_algorithm(), hierarchical_algorithm(), hierarchical_intra_first_algorithm()};
    return algorithms;
}

const CollectiveAlgorithm* find_collective_algorithm(const std::string& name) {
    for (const CollectiveAlgorithm& algorithm : collective_algorithms())
        if (algorithm.name == name) return &algorithm;
    return nullptr;
}

namespace {

// A ring needs 2 (n - 1) rounds of S/n bytes, a binomial tree 2 log2 n rounds of S bytes. With a time `alpha`
// per round and bandwidth B the tree is faster while S (log2 n - 1 + 1/n) < alpha B (n - 1 - log2 n). alpha B
// of 3 us x 25 GB/s, an EFA or PCIe 4 link, is 75 kB.
bool is_latency_bound(core::Bytes bytes, int group_size) {
    constexpr double bytes_in_flight = 75e3;
    const double n = group_size, levels = std::ceil(std::log2(n));
    return group_size > 2 && bytes.value * (levels - 1 + 1 / n) < bytes_in_flight * (n - 1 - levels);
}

}  // namespace

const CollectiveAlgorithm& select_collective(const std::string& wanted, CollectiveKind kind, int group_size,
                                             int ranks_per_node, core::Bytes bytes) {
    const auto usable = [&](const char* name) {
        const CollectiveAlgorithm* algorithm = find_collective_algorithm(name);
        return algorithm->supports(kind, group_size, ranks_per_node) ? algorithm : nullptr;
    };
    const CollectiveAlgorithm* chosen = wanted == "auto" ? nullptr : find_collective_algorithm(wanted);
    if (chosen && !chosen->supports(kind, group_size, ranks_per_node)) chosen = nullptr;
    if (!chosen && wanted == "auto") {
        if (is_latency_bound(bytes, group_size)) chosen = usable("tree");
        if (!chosen) chosen = usable("hierarchical");
    }
    return chosen ? *chosen : *find_collective_algorithm("ring");
}

}  // namespace schedule
