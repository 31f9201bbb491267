// Compute orders of plans, short and whole, each made once.
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "schedule/pipeline/registry.h"

namespace planner {

namespace {

// Rounds over the pipeline after which the micro-batches in flight have settled.
constexpr int settled_rounds = 3;

}  // namespace

struct OrderCollection::Content {
    struct Entry {
        std::once_flag is_made;
        std::optional<schedule::Schedule> order;
    };
    struct WholeEntry {
        std::once_flag is_made;
        std::optional<sim::ReplayOrder> order;
    };
    using Key = std::pair<schedule::Plan::OrderKey, int>;  // and micro-batches
    std::mutex guard;  // of the maps; entries are made outside it, each once
    WorkMeter* work = nullptr;
    void count(const std::optional<schedule::Schedule>& order) const {
        if (work && order) work->add(2.0 * order->stages * order->micro_batches, per_ordered_pass);
    }
    std::map<Key, Entry> entries;
    std::map<Key, WholeEntry> whole_entries;
};

OrderCollection::OrderCollection(WorkMeter* work) : content_(std::make_unique<Content>()) {
    content_->work = work;
}
OrderCollection::~OrderCollection() = default;

const schedule::Schedule* OrderCollection::order(const schedule::Plan& plan) {
    // In-flight counts settle after a few rounds of the pipeline, and a step with more micro-batches holds no
    // less at its peak than one with fewer: enough of them, with the same remainder (schedules may ask for
    // multiples), bound the rest from below.
    const int p = plan.layout.pipeline, most = settled_rounds * p;
    const int micro_batches =
        plan.micro_batches <= most ? plan.micro_batches : most - p + plan.micro_batches % p;
    Content::Entry* entry = nullptr;
    {
        const std::lock_guard lock(content_->guard);
        entry = &content_->entries[{plan.order_key(), micro_batches}];
    }
    std::call_once(entry->is_made, [&] {
        core::Diagnostics diagnostics;
        entry->order = schedule::make_schedule(plan, diagnostics, micro_batches);
        if (!entry->order) entry->order = schedule::make_schedule(plan, diagnostics);
        content_->count(entry->order);
        if (entry->order)  // kept for long
            for (std::vector<schedule::Action>& actions : entry->order->actions) actions.shrink_to_fit();
    });
    return entry->order ? &*entry->order : nullptr;
}

const sim::ReplayOrder* OrderCollection::whole_order(const schedule::Plan& plan) {
    // About a millisecond of replay; deeper pipelines also take long to generate.
    if (2.0 * plan.stages() * plan.micro_batches * plan.passes_per_micro_batch() > most_replayed_passes)
        return nullptr;
    Content::WholeEntry* entry = nullptr;
    {
        const std::lock_guard lock(content_->guard);
        entry = &content_->whole_entries[{plan.order_key(), plan.micro_batches}];
    }
    std::call_once(entry->is_made, [&] {
        core::Diagnostics diagnostics;
        std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
        if (!order) return;
        content_->count(order);
        // As lowering runs them: of an overlapped slot the forward is handed on before the backward has
        // ended.
        for (std::vector<schedule::Action>& actions : order->actions)
            for (schedule::Action& action : actions) action.overlaps_next = false;
        entry->order.emplace(*order);
    });
    return entry->order ? &*entry->order : nullptr;
}

}  // namespace planner
