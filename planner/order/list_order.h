// Orders by list scheduling on a virtual clock: the rank that is free first performs the ready action with
// the longest path to the end, and weight gradients fill its waits.
#pragma once

#include <optional>

#include "planner/order/order_graph.h"

namespace planner {

struct ListRule {
    int most_admitted = 1 << 20;     // micro-batches on the first rank between their first forward and their
                                     // last weight; memory may allow fewer
    bool falls_along_ranks = false;  // one fewer on each further rank, as in 1F1B
    bool prefers_gradients = true;   // a ready gradient before any forward, however long the paths to the end
    bool fills_always = false;       // a weight also where it delays what is known to come
};

// Nothing when the memory limit leads to a deadlock: a micro-batch is admitted only while all of its forwards
// on the rank have room.
std::optional<Order> list_order(const OrderGraph& graph, const ListRule& rule);

}  // namespace planner
