#include "sim/engine/repeated_blocks.h"

#include <utility>

#include "core/diagnostics.h"
#include "schedule/pass/lower.h"
#include "sim/engine/steady_state.h"

namespace sim {

std::shared_ptr<const schedule::Schedule> RepeatedBlocks::whole_order(const schedule::Plan& plan, int total) {
    const std::pair key(plan.order_key(), total);
    {
        const std::lock_guard lock(guard_);
        if (last_key_ == key) return last_;
    }
    core::Diagnostics unneeded;
    std::shared_ptr<const schedule::Schedule> made;
    if (std::optional<schedule::Schedule> order = schedule::make_schedule(plan, unneeded, total))
        made = std::make_shared<const schedule::Schedule>(std::move(*order));
    const std::lock_guard lock(guard_);
    last_key_ = key;
    last_ = made;
    return made;
}

std::optional<RepeatedBlocks::Block> RepeatedBlocks::of(const schedule::Plan& plan, int count, int total) {
    const Key key(plan.order_key(), count, total);
    {
        const std::lock_guard lock(guard_);
        if (const auto known = known_.find(key); known != known_.end()) return known->second;
    }
    core::Diagnostics unneeded;  // a count that the schedule does not allow
    std::optional<Block> block;
    if (const std::shared_ptr<const schedule::Schedule> whole = whole_order(plan, total))
        if (const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, unneeded, count))
            if (const std::optional<int> repeated = repeated_block(*order, *whole))
                block = Block{*repeated, whole->micro_batches - order->micro_batches, whole->directions};
    const std::lock_guard lock(guard_);
    return known_.emplace(key, block).first->second;
}

}  // namespace sim
