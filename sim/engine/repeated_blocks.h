// What short orders of a pipeline schedule repeat, kept for evaluations of many plans: it follows from the
// shape alone, and a whole order may be long.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "schedule/plan/plan.h"
#include "schedule/schedule.h"

namespace sim {

// Safe for several threads.
class RepeatedBlocks {
public:
    struct Block {
        int micro_batches = 1;  // of each direction (steady_state.h: repeated_block)
        int more = 0;           // micro-batches of the whole order, in each direction
        int directions = 1;
    };
    // Of the order with `count` micro-batches that the plan's schedule has beside the one with `total`.
    std::optional<Block> of(const schedule::Plan& plan, int count, int total);

private:
    using Key = std::tuple<schedule::Plan::OrderKey, int, int>;
    std::shared_ptr<const schedule::Schedule> whole_order(const schedule::Plan& plan, int total);

    std::mutex guard_;
    std::map<Key, std::optional<Block>> known_;
    // The last one that was asked for; null where there is none.
    std::optional<std::pair<schedule::Plan::OrderKey, int>> last_key_;
    std::shared_ptr<const schedule::Schedule> last_;
};

}  // namespace sim
