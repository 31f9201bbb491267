// Starts and ends at one moment are collected and solved together when time moves on, so a round of a
// collective costs one solution, not one a message. The part to solve is found by walking from the changed
// resources over their flows to those flows' resources; progressive filling then raises the common level,
// each time to the next resource that fills or flow that reaches its limit.
#include "sim/engine/flow_engine.h"

#include <algorithm>
#include <limits>

#include "core/errors.h"

namespace sim {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
// Levels closer than this are the same bottleneck: what differs is the rounding of sums.
constexpr double same_level = 1 + 1e-12;

}  // namespace

FlowEngine::FlowEngine(std::vector<double> capacities, bool counts_use)
    : counts_use_(counts_use), resources_(capacities.size()), used_(capacities.size(), 0.0) {
    for (std::size_t i = 0; i < capacities.size(); ++i) {
        core::require(capacities[i] > 0, "a resource has a capacity");
        resources_[i].capacity = capacities[i];
    }
}

void FlowEngine::put(Event event, std::size_t place) {
    events_[place] = event;
    if (event.flow != no_flow) flows_[event.flow].place = static_cast<std::uint32_t>(place);
}

// Places from here to the top are taken by what comes later.
void FlowEngine::rise(Event event, std::size_t place) {
    for (; place > 0 && event < events_[(place - 1) / 2]; place = (place - 1) / 2)
        put(events_[(place - 1) / 2], place);
    put(event, place);
}

void FlowEngine::sink(Event event, std::size_t place) {
    while (2 * place + 1 < events_.size()) {
        std::size_t next = 2 * place + 1;
        if (next + 1 < events_.size() && events_[next + 1] < events_[next]) ++next;
        if (!(events_[next] < event)) break;
        put(events_[next], place);
        place = next;
    }
    put(event, place);
}

FlowEngine::Event FlowEngine::take_first() {
    const Event first = events_.front(), last = events_.back();
    events_.pop_back();
    if (!events_.empty()) sink(last, 0);
    return first;
}

void FlowEngine::start_timer(double time, Token token) {
    core::require(time >= now_, "a timer lies ahead");
    events_.emplace_back();
    rise({time, sequence_++, no_flow, token}, events_.size() - 1);
}

void FlowEngine::start_flow(double work, double limit, std::span<const ResourceUse> uses, Token token,
                            double weight) {
    core::require(work >= 0 && weight > 0 && (limit > 0 || !uses.empty()),
                  "a flow has work, and something that bounds its rate");
    std::uint32_t index;
    if (free_flows_.empty()) {
        index = static_cast<std::uint32_t>(flows_.size());
        flows_.emplace_back();
    } else {
        index = free_flows_.back();
        free_flows_.pop_back();
    }
    Flow& flow = flows_[index];
    flow.left = work;
    flow.rate = 0;
    flow.limit = limit > 0 ? limit : infinite;
    flow.weight = weight;
    flow.since = now_;
    flow.uses = uses.data();
    flow.use_count = static_cast<std::uint32_t>(uses.size());
    flow.token = token;
    flow.place = no_place;
    flow.is_running = true;
    flow.positions.resize(uses.size());
    for (std::uint32_t u = 0; u < flow.use_count; ++u) {
        const auto at = static_cast<std::uint32_t>(uses[u].resource);
        Resource& resource = resources_[at];
        flow.positions[u] = static_cast<std::uint32_t>(resource.flows.size());
        resource.flows.push_back({index, u});
    }
    new_flows_.push_back(index);
}

void FlowEngine::advance(Flow& flow) {
    const double done = std::min(flow.left, flow.rate * (now_ - flow.since));
    flow.left -= done;
    flow.since = now_;
    if (counts_use_)
        for (std::uint32_t u = 0; u < flow.use_count; ++u)
            used_[flow.uses[u].resource] += done * flow.uses[u].share;
}

void FlowEngine::end(std::uint32_t index) {
    Flow& flow = flows_[index];
    if (counts_use_) advance(flow);
    flow.is_running = false;
    for (std::uint32_t u = 0; u < flow.use_count; ++u) {
        const auto at = static_cast<std::uint32_t>(flow.uses[u].resource);
        std::vector<FlowUse>& list = resources_[at].flows;
        const std::uint32_t position = flow.positions[u];
        list[position] = list.back();
        flows_[list[position].flow].positions[list[position].use] = position;
        list.pop_back();
        if (!list.empty()) changed_resources_.push_back(at);
    }
    free_flows_.push_back(index);
    ++completed_;
}

// The rate is final for now; the completion moves only when it is another than before.
void FlowEngine::settle(Flow& flow, double rate) {
    flow.is_settled = true;
    if (rate == flow.rate) return;
    advance(flow);
    flow.rate = rate;
    const Event event{
        now_ + flow.left / rate, sequence_++, static_cast<std::uint32_t>(&flow - flows_.data()), {}};
    if (flow.place == no_place) {
        events_.emplace_back();
        rise(event, events_.size() - 1);
    } else if (event < events_[flow.place]) {
        rise(event, flow.place);
    } else {
        sink(event, flow.place);
    }
}

void FlowEngine::give(std::uint32_t index) {
    const Flow& flow = flows_[index];
    for (std::uint32_t u = 0; u < flow.use_count; ++u) {
        Resource& resource = resources_[flow.uses[u].resource];
        resource.left -= flow.uses[u].share * rates_[index];
        resource.demand -= flow.uses[u].share * flow.weight;
        --resource.unsettled;
    }
}

void FlowEngine::solve() {
    for (std::uint32_t index : new_flows_) {
        Flow& flow = flows_[index];
        if (!flow.is_running) continue;
        double rate = flow.limit;
        bool is_alone = true;
        for (std::uint32_t u = 0; u < flow.use_count && is_alone; ++u) {
            const Resource& resource = resources_[flow.uses[u].resource];
            is_alone = resource.flows.size() == 1;
            rate = std::min(rate, resource.capacity / flow.uses[u].share);
        }
        if (is_alone) {
            settle(flow, rate);
        } else {
            for (std::uint32_t u = 0; u < flow.use_count; ++u)
                changed_resources_.push_back(static_cast<std::uint32_t>(flow.uses[u].resource));
        }
    }
    new_flows_.clear();
    if (changed_resources_.empty()) return;
    ++mark_;
    rates_.resize(flows_.size());
    for (std::uint32_t seed : changed_resources_) {
        if (resources_[seed].mark == mark_) continue;
        // The part of the system joined to this resource.
        part_resources_.assign(1, seed);
        part_flows_.clear();
        resources_[seed].mark = mark_;
        for (std::size_t r = 0; r < part_resources_.size(); ++r) {
            Resource& resource = resources_[part_resources_[r]];
            resource.left = resource.capacity;
            resource.demand = 0;
            resource.unsettled = static_cast<std::uint32_t>(resource.flows.size());
            for (const FlowUse& use : resource.flows) {
                Flow& flow = flows_[use.flow];
                resource.demand += flow.uses[use.use].share * flow.weight;
                if (flow.mark == mark_) continue;
                flow.mark = mark_;
                flow.is_settled = false;
                part_flows_.push_back(use.flow);
                for (std::uint32_t u = 0; u < flow.use_count; ++u) {
                    const auto other = static_cast<std::uint32_t>(flow.uses[u].resource);
                    if (resources_[other].mark == mark_) continue;
                    resources_[other].mark = mark_;
                    part_resources_.push_back(other);
                }
            }
        }
        // Fill.
        std::size_t unsettled = part_flows_.size();
        double before = 0;
        while (unsettled > 0) {
            double level = infinite;
            for (std::uint32_t r : part_resources_) {
                const Resource& resource = resources_[r];
                if (resource.unsettled > 0) level = std::min(level, resource.left / resource.demand);
            }
            double least_limit = infinite;
            for (std::size_t f = 0; f < unsettled; ++f)
                least_limit =
                    std::min(least_limit, flows_[part_flows_[f]].limit / flows_[part_flows_[f]].weight);
            const bool is_limit = least_limit <= level;
            // The level never falls; only rounding says so.
            const double reached = std::max(before, std::min(level, least_limit));
            before = reached;
            const double up_to = reached * same_level;
            // Resources that are full at this level, as they are before anything is settled at it.
            if (!is_limit)
                for (std::uint32_t r : part_resources_) {
                    Resource& resource = resources_[r];
                    if (resource.unsettled > 0 && resource.left / resource.demand <= up_to) {
                        for (const FlowUse& use : resource.flows) {
                            Flow& flow = flows_[use.flow];
                            if (flow.is_settled) continue;
                            rates_[use.flow] = reached * flow.weight;
                            settle(flow, rates_[use.flow]);
                        }
                    }
                }
            for (std::size_t f = 0; f < unsettled;) {
                const std::uint32_t index = part_flows_[f];
                Flow& flow = flows_[index];
                if (!flow.is_settled && flow.limit / flow.weight <= up_to) {
                    rates_[index] = flow.limit;
                    settle(flow, flow.limit);
                }
                if (flow.is_settled) {
                    give(index);
                    part_flows_[f] = part_flows_[--unsettled];
                } else {
                    ++f;
                }
            }
        }
    }
    changed_resources_.clear();
}

std::optional<FlowEngine::Token> FlowEngine::next() {
    const bool has_changes = !changed_resources_.empty() || !new_flows_.empty();
    // Everything of this moment is told before time moves on: its consequences may start at the same moment.
    if (has_changes && (events_.empty() || events_.front().time > now_)) solve();
    if (events_.empty()) return std::nullopt;
    const Event event = take_first();
    now_ = event.time;
    if (event.flow == no_flow) {
        ++completed_;
        return event.timer;
    }
    const Token token = flows_[event.flow].token;
    end(event.flow);
    return token;
}

std::optional<double> FlowEngine::rate_of(Token token) const {
    for (const Flow& flow : flows_)
        if (flow.is_running && flow.token == token) return flow.rate;
    return std::nullopt;
}

}  // namespace sim
