// Work of each rank: degrees of data, tensor and pipeline parallelism and the order in which ranks are
// numbered.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace schedule {

struct RankCoordinates {
    int data = 0, tensor = 0, pipeline = 0;
    bool operator==(const RankCoordinates&) const = default;
};

// `order` is a permutation of D, P, T; the rightmost letter varies fastest with the global rank (SageMaker
// SMP's placement_strategy: "cluster" = DPT, "spread" = TPD; Megatron-LM numbers tensor, then data, then
// pipeline: PDT).
struct ParallelLayout {
    int data = 1, tensor = 1, pipeline = 1;
    std::string order = "PDT";
    // Parts of the data axis beside replicas. Each divides the degree of the axis, and their groups are
    // consecutive members of it. Context parallelism divides the tokens of a replica's samples (so gradients
    // are added up over the whole axis), expert parallelism the experts of mixtures.
    int context = 1, expert = 1;
    // Experts are not divided over the tensor-parallel group but spread over it as well: `expert` times
    // `tensor` ranks share them (Megatron-LM's --expert-tensor-parallel-size 1).
    bool has_whole_experts = false;

    bool spreads_experts_over_tensor() const { return has_whole_experts && tensor > 1; }
    // Ranks that divide each expert.
    int expert_tensor() const { return spreads_experts_over_tensor() ? 1 : tensor; }
    // Over which the experts of a mixture are spread.
    int expert_ranks() const { return expert * (spreads_experts_over_tensor() ? tensor : 1); }
    int replicas() const { return data / context; }  // ranks along the data axis with samples of their own
    int ranks() const { return data * tensor * pipeline; }
    bool operator==(const ParallelLayout&) const = default;
};

// Gives a layout so many ranks for its experts, each divided by so many of them: 1 or the tensor-parallel
// degree. False, and nothing changed, where such ranks are not whole tensor groups.
bool spread_experts(ParallelLayout& layout, int ranks, int tensor_ranks_an_expert);

// Accepts any permutation of D, P, T and the words cluster, spread, megatron; nothing for other text.
std::string canonical_order(const std::string& text);

RankCoordinates coordinates_of(const ParallelLayout& layout, int rank);
int rank_of(const ParallelLayout& layout, RankCoordinates coordinates);

enum class GroupKind : std::uint8_t {
    world,
    tensor,    // same data and pipeline coordinate
    data,      // same tensor and pipeline coordinate
    pipeline,  // same data and tensor coordinate
    shard,     // consecutive `shard_degree` members of a data group (sharded parameters or optimizer state)
    replica,   // members of a data group with the same position in their shard groups
    tied_stages,  // pipeline ranks with the same data and tensor coordinate that hold a copy of one tied
                  // parameter: first and last for a tied embedding (see ParameterBucket::tied_ranks; middle
                  // ranks have an empty group here)
    context,      // consecutive members of a data group with the tokens of the same samples
    expert,  // ranks with a share of the experts each: consecutive members of a data group; where experts
             // are spread over tensor ranks, too, with all of the tensor groups of these, the tensor
             // coordinate fastest
    tokens,  // ranks with tokens of the same samples at a mixture: the context group; where experts are
             // spread over tensor ranks, too, with all of the tensor groups of its members
    expert_data,     // members of an expert group with the same tensor coordinate
    expert_replica,  // members of a data group with the same experts
    expert_shard,    // members of a shard group with the same experts
};
inline constexpr std::size_t group_kind_count = 13;
std::string_view name_of(GroupKind kind);

// Global ranks of the group of that kind to which `rank` belongs, in group order (the position is the group
// rank).
std::vector<int> process_group(const ParallelLayout& layout, GroupKind kind, int rank, int shard_degree = 1);

}  // namespace schedule
