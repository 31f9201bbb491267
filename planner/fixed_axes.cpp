#include "planner/fixed_axes.h"

#include <fmt/core.h>

#include "planner/partition/partitions.h"
#include "planner/search.h"

namespace planner {

std::vector<std::pair<std::string, std::string>> fixed_axes(const SearchAccount& account) {
    const auto refined = [&](const char* rule, const char* of_first) {
        return std::string(rule) + (account.is_refined ? std::string("; of the first plan ") + of_first : "");
    };
    return {
        {"partition",
         account.covers_partitions
             ? fmt::format(
                   "of plans with several stages a rank and more than {:.0f} partitions, and of plans "
                   "that offload: the longest stage is shortest, and some others; of the first no move "
                   "of one cut by one unit is better",
                   most_partitions)
             : "the longest stage is shortest; of the first plan no move of one cut by one unit is "
               "better"},
        {"shard_degree", refined("all replicas, or those of one node",
                                 "no other divisor of the replicas is better by a ten-thousandth")},
        {"group_size",
         refined("the ranks of the pipeline", "half and twice as many are no better by a ten-thousandth")},
        {"devices", "all of the nodes are at work"},
        {"order", "of the base plan (PDT: replicas lie side by side, stages furthest apart)"},
        {"offload",
         "only what does not fit: the longest activation_loading_horizon (a power of two) that does, and "
         "shorter ones that may be the best of all; none where the shortest needs more than 1.005 times the "
         "memory"},
        {"optimizer_offload", "of the base plan"},
        {"parameter_offload", "of the base plan"},
        {"recompute_layers",
         account.recomputes_some
             ? "all or none; of a plan too large for memory with none, or for the hosts' to which it "
               "offloads, also the fewest layers of each stage with which it fits, of all stages as many "
               "and of each its own number"
             : "all or none"},
        {"recompute_modules",
         account.recomputes_some
             ? "core_attn, of recompute selective; of a plan too large for memory with "
               "nothing run again also layernorm, activation, mla_up_proj and moe_act, where they suffice"
             : "core_attn, of recompute selective"},
        {"sequence_parallel", "wherever tokens divide"},
        {"expert_tensor_parallel",
         "experts of several ranks of data are whole on tensor ranks wherever their number and tokens divide "
         "and what runs the plans takes it, else divided over these; of one rank of data both"},
        {"context_communication",
         refined(account.tries_rings
                     ? "all_gather; all_to_all too where heads divide and it moves at most twice as much, "
                       "or is all that is run; of the plans found those in a ring that could gain most by it"
                     : "all_gather; all_to_all too where heads divide and it moves at most twice as much, "
                       "or is all that is run; ring where it is asked for",
                 "no other is better by a ten-thousandth")},
        {"tensor_overlap", "of the base plan, or the values that are asked for"},
        {"gradient_bucket",
         refined("of the base plan",
                 "none of the next two of 1, 2, 5, 10, 25, ... MiB is better by a ten-thousandth")},
        {"overlaps_gradient_reduction", "of the base plan"},
        {"overlaps_parameter_gathering", "of the base plan"},
        {"fused_cross_entropy", "of the base plan"},
        {"attention", "of the base plan"},
        {"precision", "of the base plan"},
        {"communication", "of the base plan"},
        {"collective", "of the base plan"},
        {"framework", "of the base plan"},
    };
}

}  // namespace planner
