#include "schedule/plan/layout.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/errors.h"

namespace schedule {

bool spread_experts(ParallelLayout& layout, int ranks, int tensor_ranks_an_expert) {
    const bool are_whole = tensor_ranks_an_expert == 1 && layout.tensor > 1;
    if (!are_whole && tensor_ranks_an_expert != layout.tensor) return false;
    if (are_whole && ranks % layout.tensor != 0) return false;
    layout.has_whole_experts = are_whole;
    layout.expert = are_whole ? ranks / layout.tensor : ranks;
    return true;
}

std::string canonical_order(const std::string& text) {
    // SageMaker SMP's words (smd_model_parallel_general.rst, placement_strategy); Megatron-LM numbers tensor
    // fastest, then data, then pipeline (arguments.py, --use-tp-pp-dp-mapping), as do DeepSpeed's
    // PipeModelDataParallelTopology and torchtitan's mesh.
    if (text == "cluster") return "DPT";
    if (text == "spread") return "TPD";
    if (text == "megatron") return "PDT";
    std::string sorted = text;
    std::sort(sorted.begin(), sorted.end());
    return sorted == "DPT" ? text : std::string();
}

namespace {

int degree_of(const ParallelLayout& layout, char letter) {
    return letter == 'D' ? layout.data : letter == 'T' ? layout.tensor : layout.pipeline;
}
int& axis_of(RankCoordinates& coordinates, char letter) {
    return letter == 'D' ? coordinates.data : letter == 'T' ? coordinates.tensor : coordinates.pipeline;
}

}  // namespace

RankCoordinates coordinates_of(const ParallelLayout& layout, int rank) {
    core::require(rank >= 0 && rank < layout.ranks(), "a rank lies inside its layout");
    RankCoordinates coordinates;
    for (auto letter = layout.order.rbegin(); letter != layout.order.rend(); ++letter) {
        const int degree = degree_of(layout, *letter);
        axis_of(coordinates, *letter) = rank % degree;
        rank /= degree;
    }
    return coordinates;
}

int rank_of(const ParallelLayout& layout, RankCoordinates coordinates) {
    int rank = 0;
    for (const char letter : layout.order)
        rank = rank * degree_of(layout, letter) + axis_of(coordinates, letter);
    return rank;
}

std::string_view name_of(GroupKind kind) {
    switch (kind) {
        case GroupKind::world: return "world";
        case GroupKind::tensor: return "tensor";
        case GroupKind::data: return "data";
        case GroupKind::pipeline: return "pipeline";
        case GroupKind::shard: return "shard";
        case GroupKind::replica: return "replica";
        case GroupKind::tied_stages: return "tied_stages";
        case GroupKind::context: return "context";
        case GroupKind::expert: return "expert";
        case GroupKind::expert_data: return "expert_data";
        case GroupKind::tokens: return "tokens";
        case GroupKind::expert_replica: return "expert_replica";
        case GroupKind::expert_shard: return "expert_shard";
    }
    return "";
}

std::vector<int> process_group(const ParallelLayout& layout, GroupKind kind, int rank, int shard_degree) {
    const RankCoordinates own = coordinates_of(layout, rank);
    std::vector<int> group;
    const auto add = [&](RankCoordinates coordinates) { group.push_back(rank_of(layout, coordinates)); };
    const int degree = std::max(1, shard_degree);
    switch (kind) {
        case GroupKind::world:
            for (int r = 0; r < layout.ranks(); ++r) group.push_back(r);
            break;
        case GroupKind::tensor:
            for (int t = 0; t < layout.tensor; ++t) add({own.data, t, own.pipeline});
            break;
        case GroupKind::data:
            for (int d = 0; d < layout.data; ++d) add({d, own.tensor, own.pipeline});
            break;
        case GroupKind::pipeline:
            for (int p = 0; p < layout.pipeline; ++p) add({own.data, own.tensor, p});
            break;
        case GroupKind::shard:
            core::require(layout.data % degree == 0, "the shard degree divides the data-parallel degree");
            for (int d = own.data / degree * degree, end = d + degree; d < end; ++d)
                add({d, own.tensor, own.pipeline});
            break;
        case GroupKind::replica:
            core::require(layout.data % degree == 0, "the shard degree divides the data-parallel degree");
            for (int d = own.data % degree; d < layout.data; d += degree) add({d, own.tensor, own.pipeline});
            break;
        case GroupKind::tied_stages:
            if (own.pipeline != 0 && own.pipeline != layout.pipeline - 1)
                break;  // middle ranks hold no tied parameter
            add({own.data, own.tensor, 0});
            if (layout.pipeline > 1) add({own.data, own.tensor, layout.pipeline - 1});
            break;
        case GroupKind::context:
        case GroupKind::expert:
        case GroupKind::expert_data:
        case GroupKind::tokens: {
            const bool has_same_samples = kind == GroupKind::context || kind == GroupKind::tokens;
            const int members = has_same_samples ? layout.context : layout.expert;
            core::require(layout.data % members == 0,
                          "context- and expert-parallel degrees divide the data axis");
            const bool has_all_tensor_ranks = (kind == GroupKind::expert || kind == GroupKind::tokens) &&
                                              layout.spreads_experts_over_tensor();
            for (int d = own.data / members * members, end = d + members; d < end; ++d)
                for (int t = 0; t < layout.tensor; ++t)
                    if (has_all_tensor_ranks || t == own.tensor) add({d, t, own.pipeline});
            break;
        }
        case GroupKind::expert_replica:
            for (int d = own.data % layout.expert; d < layout.data; d += layout.expert)
                add({d, own.tensor, own.pipeline});
            break;
        case GroupKind::expert_shard:
            for (int d = own.data / degree * degree, end = d + degree; d < end; ++d)
                if (d % layout.expert == own.data % layout.expert) add({d, own.tensor, own.pipeline});
            break;
    }
    return group;
}

}  // namespace schedule
