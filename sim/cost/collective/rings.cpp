// The search for edge-disjoint Hamiltonian cycles is NCCL's ring search (src/graph/search.cc) for the one
// topology where it matters, the 8-V100 mesh: its 24 links split into three cycles, used in both directions:
// six channels of one link each. A node has at most 8 devices, so enumeration is instant.
#include "sim/cost/collective/rings.h"

#include <algorithm>
#include <map>

namespace sim {

namespace {

using Members = std::vector<std::int32_t>;         // local indices
using LinkCounts = std::vector<std::vector<int>>;  // NVLinks between members, by position

// Vertex index -> local device index; nothing for switches, hosts and cards.
std::vector<std::optional<int>> device_of_vertex(const cluster::InstanceType& instance) {
    std::vector<std::optional<int>> local(instance.vertices.size());
    int next = 0;
    for (std::size_t v = 0; v < instance.vertices.size(); ++v)
        if (instance.vertices[v].kind == cluster::VertexKind::device) local[v] = next++;
    return local;
}

LinkCounts direct_links(const cluster::InstanceType& instance, const Members& members) {
    const std::vector<std::optional<int>> local = device_of_vertex(instance);
    LinkCounts counts(members.size(), std::vector<int>(members.size(), 0));
    for (const cluster::Link& link : instance.links) {
        if (link.kind != cluster::LinkKind::nvlink) continue;
        const std::optional<int> a = local[link.a], b = local[link.b];
        if (!a || !b) continue;
        const auto at_a = std::find(members.begin(), members.end(), *a),
                   at_b = std::find(members.begin(), members.end(), *b);
        if (at_a == members.end() || at_b == members.end()) continue;
        counts[at_a - members.begin()][at_b - members.begin()] += link.count;
        counts[at_b - members.begin()][at_a - members.begin()] += link.count;
    }
    return counts;
}

// Every Hamiltonian cycle over present edges once (start at 0, second smaller than last).
void extend(const LinkCounts& counts, Members& path, std::vector<bool>& used, std::vector<Members>& cycles) {
    const std::size_t n = counts.size();
    if (path.size() == n) {
        if (counts[path.back()][0] > 0 && path[1] < path.back()) cycles.push_back(path);
        return;
    }
    for (std::size_t next = 1; next < n; ++next) {
        if (used[next] || counts[path.back()][next] == 0) continue;
        used[next] = true;
        path.push_back(static_cast<std::int32_t>(next));
        extend(counts, path, used, cycles);
        path.pop_back();
        used[next] = false;
    }
}

void change(LinkCounts& counts, const Members& cycle, int by) {
    for (std::size_t i = 0; i < cycle.size(); ++i) {
        const std::size_t a = cycle[i], b = cycle[(i + 1) % cycle.size()];
        counts[a][b] += by;
        counts[b][a] += by;
    }
}

bool has_room(const LinkCounts& counts, const Members& cycle) {
    for (std::size_t i = 0; i < cycle.size(); ++i)
        if (counts[cycle[i]][cycle[(i + 1) % cycle.size()]] <= 0) return false;
    return true;
}

void choose(LinkCounts& left, const std::vector<Members>& cycles, std::size_t first, std::size_t most,
            std::vector<std::size_t>& chosen, std::vector<std::size_t>& best) {
    if (chosen.size() > best.size()) best = chosen;
    if (best.size() >= most) return;
    for (std::size_t c = first; c < cycles.size() && best.size() < most; ++c) {
        if (!has_room(left, cycles[c])) continue;
        change(left, cycles[c], -1);
        chosen.push_back(c);
        choose(left, cycles, c, most, chosen, best);  // c again: a double link takes the same cycle twice
        chosen.pop_back();
        change(left, cycles[c], 1);
    }
}

// Orders of positions in `members`; empty when the devices are not joined directly in a cycle.
std::vector<Members> disjoint_cycles(const cluster::InstanceType& instance, const Members& members) {
    constexpr std::size_t largest = 8;
    if (members.size() < 3 || members.size() > largest) return {};
    LinkCounts counts = direct_links(instance, members);
    int least_degree = 1 << 20;
    for (const std::vector<int>& row : counts) {
        int degree = 0;
        for (int count : row) degree += count;
        least_degree = std::min(least_degree, degree);
    }
    if (least_degree < 2) return {};
    std::vector<Members> cycles;
    Members path = {0};
    std::vector<bool> used(members.size(), false);
    used[0] = true;
    extend(counts, path, used, cycles);
    std::vector<std::size_t> chosen, best;
    choose(counts, cycles, 0, least_degree / 2, chosen, best);
    std::vector<Members> result;
    for (std::size_t c : best) result.push_back(cycles[c]);
    return result;
}

}  // namespace

std::vector<std::vector<std::int32_t>> orders_in_nodes(const cluster::Cluster& cluster,
                                                       const std::vector<std::int32_t>& group) {
    std::vector<std::int32_t> nodes;
    std::map<std::int32_t, Members> local;
    for (std::int32_t device : group) {
        const std::int32_t node = cluster.node_of(cluster::DeviceId(device));
        if (!local.contains(node)) nodes.push_back(node);
        local[node].push_back(cluster.local_index(cluster::DeviceId(device)));
    }
    std::vector<std::vector<std::int32_t>> result;
    std::map<Members, Members> known;  // nodes are alike
    for (std::int32_t node : nodes) {
        const Members& members = local[node];
        const auto [entry, is_new] = known.try_emplace(members, members);
        if (is_new)
            if (const std::vector<Members> cycles = disjoint_cycles(cluster.instance, members);
                !cycles.empty())
                for (std::size_t i = 0; i < members.size(); ++i) entry->second[i] = members[cycles[0][i]];
        std::vector<std::int32_t>& order = result.emplace_back();
        for (std::int32_t member : entry->second) order.push_back(node * cluster.instance.devices + member);
    }
    return result;
}

std::vector<Ring> rings(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group) {
    const std::vector<std::vector<std::int32_t>> nodes = orders_in_nodes(cluster, group);
    if (nodes.size() == 1) {
        Members members;
        for (std::int32_t device : group) members.push_back(cluster.local_index(cluster::DeviceId(device)));
        const std::vector<Members> cycles = disjoint_cycles(cluster.instance, members);
        if (cycles.empty()) return {Ring{group, 1.0}};
        std::vector<Ring> result;
        for (const Members& cycle : cycles) {
            Ring ring{{}, 0.5 / static_cast<double>(cycles.size())};
            for (std::int32_t position : cycle) ring.devices.push_back(group[position]);
            result.push_back(ring);
            std::reverse(ring.devices.begin(), ring.devices.end());
            result.push_back(std::move(ring));
        }
        return result;
    }
    std::size_t least = group.size();
    for (const std::vector<std::int32_t>& order : nodes) least = std::min(least, order.size());
    std::vector<Ring> result;
    for (std::size_t j = 0; j < least; ++j) {
        Ring ring{{}, 1.0 / static_cast<double>(least)};
        for (const std::vector<std::int32_t>& order : nodes)
            for (std::size_t i = 0; i < order.size(); ++i)
                ring.devices.push_back(order[(i + j) % order.size()]);
        result.push_back(std::move(ring));
    }
    return result;
}

}  // namespace sim
