// Two levels: n ranks on m nodes of k. What crosses nodes is divided over the k ranks of a node, so every NIC
// carries 1/k of the payload and the slow links see 2 (m - 1)/m of it per node, whatever k is. All-reduce:
// reduce-scatter in the node, all-reduce over the nodes, all-gather in the node. All-gather: over the nodes
// first, then in the node, as MiCS does (arXiv 2205.00119, section 3.3: k times fewer bytes over the network
// than the other order).
#include "schedule/collective/ring_steps.h"

namespace schedule {

namespace {

class TwoLevels {
public:
    TwoLevels(int group_size, int ranks_per_node, bool is_contiguous)
        : k_(ranks_per_node), m_(group_size / ranks_per_node), is_contiguous_(is_contiguous) {
        result_.pieces = group_size;
        for (std::int32_t r = 0; r < group_size; ++r) result_.owned_piece.push_back(piece(r % k_, r / k_));
    }
    void reduce_scatter_in_nodes() {
        const std::size_t first = result_.rounds.size();
        for (std::int32_t node = 0; node < m_; ++node)
            append_ring_reduce_scatter(result_, node_ring(node), first);
    }
    void all_gather_in_nodes() {
        const std::size_t first = result_.rounds.size();
        for (std::int32_t node = 0; node < m_; ++node)
            append_ring_all_gather(result_, node_ring(node), first);
    }
    void reduce_scatter_over_nodes() {
        const std::size_t first = result_.rounds.size();
        for (std::int32_t local = 0; local < k_; ++local)
            append_ring_reduce_scatter(result_, rail_ring(local), first);
    }
    void all_gather_over_nodes() {
        const std::size_t first = result_.rounds.size();
        for (std::int32_t local = 0; local < k_; ++local)
            append_ring_all_gather(result_, rail_ring(local), first);
    }
    // The other order costs this: every member handles the pieces of whole nodes.
    void all_gather_whole_nodes() {
        const std::size_t first = result_.rounds.size();
        for (std::int32_t local = 0; local < k_; ++local) {
            std::vector<RingMember> members = rail_ring(local);
            for (std::int32_t node = 0; node < m_; ++node) {
                members[node].pieces.clear();
                for (std::int32_t other = 0; other < k_; ++other)
                    members[node].pieces.push_back(piece(other, node));
            }
            append_ring_all_gather(result_, members, first);
        }
    }
    // Only the node's own pieces: before anything has crossed.
    void all_gather_own_pieces_in_nodes() {
        const std::size_t first = result_.rounds.size();
        for (std::int32_t node = 0; node < m_; ++node) {
            std::vector<RingMember> members;
            for (std::int32_t local = 0; local < k_; ++local)
                members.push_back({node * k_ + local, {piece(local, node)}});
            append_ring_all_gather(result_, members, first);
        }
    }
    Rounds take() { return std::move(result_); }

private:
    // The piece that rank `local` of `node` owns. Contiguous: one message per rank in the node; else in group
    // order, as shards need it.
    std::int32_t piece(std::int32_t local, std::int32_t node) const {
        return is_contiguous_ ? local * m_ + node : node * k_ + local;
    }

    std::vector<RingMember> node_ring(std::int32_t node) const {
        std::vector<RingMember> members;
        for (std::int32_t local = 0; local < k_; ++local) {
            members.push_back({node * k_ + local, {}});
            for (std::int32_t other = 0; other < m_; ++other)
                members.back().pieces.push_back(piece(local, other));
        }
        return members;
    }
    std::vector<RingMember> rail_ring(std::int32_t local) const {
        std::vector<RingMember> members;
        for (std::int32_t node = 0; node < m_; ++node)
            members.push_back({node * k_ + local, {piece(local, node)}});
        return members;
    }

    std::int32_t k_, m_;
    bool is_contiguous_;
    Rounds result_;
};

Rounds hierarchical_rounds(CollectiveKind kind, int group_size, int ranks_per_node) {
    TwoLevels levels(group_size, ranks_per_node, kind == CollectiveKind::all_reduce);
    if (kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter) {
        levels.reduce_scatter_in_nodes();
        levels.reduce_scatter_over_nodes();
    }
    if (kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather) {
        levels.all_gather_over_nodes();
        levels.all_gather_in_nodes();
    }
    return levels.take();
}

// First in the node, then every member fetches the other nodes' results: k times the bytes over the network,
// the order that SageMaker's documentation of sdp_hierarchical_allgather names.
Rounds intra_first_rounds(CollectiveKind, int group_size, int ranks_per_node) {
    TwoLevels levels(group_size, ranks_per_node, false);
    levels.all_gather_own_pieces_in_nodes();
    levels.all_gather_whole_nodes();
    return levels.take();
}

bool has_two_levels(int group_size, int ranks_per_node) {
    return ranks_per_node > 1 && group_size > ranks_per_node && group_size % ranks_per_node == 0;
}

}  // namespace

CollectiveAlgorithm hierarchical_intra_first_algorithm() {
    return {"hierarchical-intra-first",
            [](CollectiveKind kind, int group_size, int ranks_per_node) {
                return kind == CollectiveKind::all_gather && has_two_levels(group_size, ranks_per_node);
            },
            intra_first_rounds};
}

CollectiveAlgorithm hierarchical_algorithm() {
    return {"hierarchical",
            [](CollectiveKind kind, int group_size, int ranks_per_node) {
                return has_two_levels(group_size, ranks_per_node) &&
                       (kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce_scatter ||
                        kind == CollectiveKind::all_gather);
            },
            hierarchical_rounds};
}

}  // namespace schedule
