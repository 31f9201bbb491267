// What tests of the planner ask about: places to train, and a small mixture of experts.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "planner/search.h"
#include "planner/search_space.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

// Nodes of an instance type, with the plan that a search begins from there.
inline planner::Target target_of(const std::string& instance, int nodes) {
    planner::Target target;
    target.cluster = nodes_of(instance, nodes);
    target.base = planner::default_plan(target.cluster.instance.device);
    return target;
}

// For the best plan alone, in a small space.
inline planner::SearchRequest small_request(int global_batch, int most_virtual_stages) {
    planner::SearchRequest request;
    request.global_batch = global_batch;
    request.keep = 1;
    request.most_virtual_stages = most_virtual_stages;
    return request;
}

// Experts, two a token, in layers of 512 x ffn with eight heads.
struct SmallMixture {
    std::int64_t layers = 4, tokens = 512, vocabulary = 4096, key_heads = 8, ffn = 1024, experts = 8;
};
inline model::ModelGraph mixture_of(const SmallMixture& size) {
    core::Value table = core::Value::table();
    table["family"] = "mixtral";
    table["name"] = "small mixture";
    for (const auto& [key, value] : {std::pair<const char*, std::int64_t>{"hidden", 512},
                                     {"ffn", size.ffn},
                                     {"layers", size.layers},
                                     {"heads", 8},
                                     {"kv_heads", size.key_heads},
                                     {"vocabulary", size.vocabulary},
                                     {"sequence_length", size.tokens},
                                     {"max_positions", size.tokens},
                                     {"experts", size.experts},
                                     {"experts_per_token", 2}})
        table[key] = value;
    return graph_of(table);
}

// Of a plan that runs whole layers again: now so many of every stage, now a number of each.
template <class Chance>
void run_some_again(schedule::Plan& plan, Chance& chance) {
    if (plan.recompute != schedule::Recompute::full) return;
    if (chance() % 2) plan.recompute_layers = int(chance() % 4);
    else
        for (int stage = 0; stage < plan.stages(); ++stage)
            plan.recompute_layers_by_stage.push_back(int(chance() % 4));
}

// Of an account: every plan of the space is in one part.
inline std::size_t sum_of(const planner::SearchAccount& account) {
    std::size_t sum = account.evaluated + account.pruned + account.unvisited;
    for (const auto& [reason, count] : account.rejected) sum += count;
    return sum;
}

// Eight layers of 1,024 on samples of 8,192 tokens: a layer keeps some 0.3 GiB of a sample, and its input
// 16 MiB.
inline model::ModelGraph small_llama() {
    core::Value table;
    table["family"] = "llama";
    table["name"] = "small llama";
    for (const auto& [key, value] : {std::pair{"hidden", 1024},
                                     {"ffn", 2816},
                                     {"layers", 8},
                                     {"heads", 8},
                                     {"vocabulary", 1024},
                                     {"sequence_length", 8192},
                                     {"max_positions", 8192}})
        table[key] = value;
    return graph_of(table);
}

// A node of g5.12xlarge whose devices have less memory.
inline planner::Target tight(double gibibytes) {
    planner::Target target = target_of("g5.12xlarge", 1);
    target.cluster.instance.device.memory = core::gibibytes(gibibytes);
    return target;
}
