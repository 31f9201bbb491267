// Least memory, of devices and of hosts, and the copies of what devices have no room for.
#include <algorithm>
#include <map>
#include <optional>

#include "cluster/node.h"
#include "core/index/integers.h"
#include "planner/bound/caches.h"
#include "schedule/plan/memory.h"
#include "sim/cost/framework/device_memory.h"
#include "sim/cost/host_memory.h"

namespace planner {

namespace {

// Does no pass backward come before the last one forward, on any rank? Then all that leaves is away at once.
bool goes_forward_first(const schedule::Schedule& order) {
    if (order.directions > 1) return false;
    for (const std::vector<schedule::Action>& actions : order.actions) {
        bool goes_back = false;
        for (const schedule::Action& action : actions) {
            goes_back = goes_back || schedule::is_backward_part(action.kind);
            if (goes_back && action.kind == schedule::ActionKind::forward) return false;
        }
    }
    return true;
}

// Of what a footprint says, as the plan's framework does it.
double share_kept_on_host(const schedule::Plan& plan) {
    return sim::state_bytes_on_host(plan) / schedule::optimizer_bytes_on_host(plan);
}

}  // namespace

std::optional<MemoryBound> Bounds::memory(const schedule::Plan& plan) {
    const schedule::Schedule* order = stages_.stages(plan) ? orders_.order(plan) : nullptr;
    if (!order) return std::nullopt;
    const std::vector<schedule::StateElements>& elements = stages_.state_elements(plan, *order);
    const std::vector<RankActivations>* all = nullptr;
    return memory_of_all(plan, *order, [&](int rank) {
        return memory_of_rank(plan, *order, rank, elements[std::size_t(rank)], [&] {
            if (!all) all = &stages_.activations(plan, *order);
            return (*all)[std::size_t(rank)];
        });
    });
}

std::optional<MemoryBound> Bounds::memory_of(const schedule::Plan& plan,
                                             const std::vector<model::OperatorRange>& ranges,
                                             RankMemories* known) {
    const schedule::Schedule* order = orders_.order(plan);
    if (!order) return std::nullopt;
    const auto of_rank = [&](int rank) {
        return memory_of_rank(plan, *order, rank, stages_.state_elements(plan, *order, ranges, rank),
                              [&] { return stages_.activations(plan, *order, ranges, rank); });
    };
    if (!known) return memory_of_all(plan, *order, of_rank);
    const std::vector<const RankMemory*> found = known->of(*order, ranges, of_rank);
    return memory_of_all(plan, *order, [&](int rank) { return *found[std::size_t(rank)]; });
}

core::Bytes Bounds::peak_of(const schedule::Plan& plan, const schedule::Schedule& order,
                            const std::vector<model::OperatorRange>& ranges, int rank) {
    return memory_of_rank(plan, order, rank, stages_.state_elements(plan, order, ranges, rank),
                          [&] { return stages_.activations(plan, order, ranges, rank); })
        .peak;
}

std::vector<const RankMemory*> RankMemories::of(const schedule::Schedule& order,
                                                const std::vector<model::OperatorRange>& ranges,
                                                const std::function<RankMemory(int rank)>& find_out) {
    ranks_.resize(std::size_t(order.ranks));
    for (Rank& rank : ranks_) rank.asked.clear();
    for (const std::int32_t s : core::indices(ranges))
        for (int direction = 0; direction < order.directions; ++direction) {
            Stages& stages = ranks_[std::size_t(schedule::rank_of_stage(order, s, direction))].asked;
            stages.push_back(ranges[s].begin);
            stages.push_back(ranges[s].end);
        }
    std::vector<const RankMemory*> found;
    for (const std::int32_t r : core::indices(ranks_)) {
        Rank& rank = ranks_[std::size_t(r)];
        if (!rank.last || rank.last->first != rank.asked) {
            const auto [entry, is_new] = rank.known.try_emplace(rank.asked);
            if (is_new) {
                entry->second = find_out(r);
                passes_ += double(order.actions[std::size_t(r)].size());
            }
            rank.last = &*entry;
        }
        found.push_back(&rank.last->second);
    }
    return found;
}

RankMemory Bounds::memory_of_rank(const schedule::Plan& plan, const schedule::Schedule& order, int rank,
                                  const schedule::StateElements& elements,
                                  const std::function<RankActivations()>& activations) {
    const cluster::DeviceSpec& device = cluster_.instance.device;
    const schedule::StateFootprint state = schedule::state_footprint(elements, plan);
    RankMemory memory{.state = state.sum(), .on_host = state.on_host, .peak = {}, .away = {}};
    memory.peak = device.memory - room(plan, rank) + memory.state;
    // Too large already: the activations would only add to it.
    if (memory.peak > device.memory) return memory;
    const RankActivations held = activations();
    const double more = plan.micro_batches - order.micro_batches;
    memory.peak += (held.peak + held.of_a_micro_batch * more) * (1 + device.fragmentation);
    memory.away = held.offloaded * (double(plan.micro_batches) / order.micro_batches) - device.memory;
    return memory;
}

MemoryBound Bounds::memory_of_all(const schedule::Plan& plan, const schedule::Schedule& order,
                                  const std::function<RankMemory(int)>& of_rank) const {
    const core::Bytes available = cluster_.instance.device.memory;
    MemoryBound worst;
    core::Bytes least_on_host;
    // Of activations, but for as many as the device has room for: some are back before the last ones leave.
    const bool counts_activations = plan.offload == schedule::Offload::host && goes_forward_first(order);
    std::optional<core::Bytes> least_away;
    for (int rank = 0; rank < order.ranks; ++rank) {
        const RankMemory memory = of_rank(rank);
        least_on_host = rank == 0 ? memory.on_host : std::min(least_on_host, memory.on_host);
        if (counts_activations && memory.away)
            least_away = least_away ? std::min(*least_away, *memory.away) : *memory.away;
        worst.excess += std::max(core::Bytes(0), memory.peak - available);
        worst.beyond += memory.peak - available;
        if (memory.peak <= worst.peak) continue;
        worst.state = memory.state;
        worst.peak = memory.peak;
        worst.pipeline_rank = rank;
    }
    if (plan.updates_on_hosts()) worst.on_hosts = least_on_host * share_kept_on_host(plan);
    if (least_away && least_away->value > 0) worst.on_hosts += *least_away;
    worst.on_hosts =
        worst.on_hosts * static_cast<double>(cluster::most_ranks_of_a_node(cluster_, plan.layout.ranks()));
    return worst;
}

// Beside what is allocated and its fragmentation there are the context and the communicators that every rank
// of such a plan uses.
core::Bytes Bounds::room(const schedule::Plan& plan, int pipeline_rank) {
    const cluster::DeviceSpec& device = cluster_.instance.device;
    if (!device.has_concurrent_streams) return device.memory;
    const int degree = plan.sharding == schedule::Sharding::none ? 0 : plan.effective_shard_degree();
    const std::lock_guard lock(outside_guard_);
    const auto [entry, is_new] = outside_memory_.try_emplace({layout_key(plan), degree, pipeline_rank});
    if (is_new) entry->second = sim::least_outside_memory(plan, pipeline_rank, cluster_);
    return device.memory - entry->second;
}

core::Bytes Bounds::state(const schedule::Plan& plan, model::OperatorRange range) {
    return schedule::state_footprint(stages_.parameter_count(plan, range), plan).sum();
}

Bounds::Saved Bounds::saved(const schedule::Plan& plan, model::OperatorRange range) {
    Saved least = stages_.saved(plan, range);
    for (int segment = 1; segment < plan.passes_per_micro_batch(); ++segment) {
        const Saved of_segment = stages_.saved(plan, range, segment);
        least.whole = std::min(least.whole, of_segment.whole);
        least.for_weights = std::min(least.for_weights, of_segment.for_weights);
    }
    return least;
}

bool Bounds::offloads_anything(const schedule::Plan& plan) {
    const schedule::Schedule* order = stages_.stages(plan) ? orders_.order(plan) : nullptr;
    if (!order || plan.offload == schedule::Offload::none) return false;
    const std::vector<RankActivations>& ranks = stages_.activations(plan, *order);
    return std::any_of(ranks.begin(), ranks.end(),
                       [](const RankActivations& rank) { return rank.copies > 0; });
}

// The copy stream of each pipeline rank, out and back. Passes of further micro-batches wait no less for their
// backward than those of a short order do, so no less leaves.
std::vector<core::Seconds> Bounds::copy_times(const schedule::Plan& plan, const schedule::Schedule& order,
                                              const std::vector<RankActivations>& ranks) {
    std::vector<core::Seconds> times(order.ranks);
    sim::CommunicationCost& communication = communication_of(plan);
    for (std::size_t r = 0; r < times.size(); ++r) {
        if (ranks[r].copies == 0) continue;
        const core::Bytes mean =
            ranks[r].offloaded / static_cast<double>(ranks[r].copies);  // times are linear in bytes
        times[r] = (communication.host_copy(mean, false, plan.offload) +
                    communication.host_copy(mean, true, plan.offload)) *
                   static_cast<double>(ranks[r].copies) *
                   (static_cast<double>(plan.micro_batches) / order.micro_batches);
    }
    return times;
}

core::Seconds Bounds::time_of_copies(const schedule::Plan& plan,
                                     const std::vector<model::OperatorRange>& ranges) {
    const schedule::Schedule* order = plan.offload == schedule::Offload::none ? nullptr : timed_order(plan);
    if (!order) return core::Seconds(0);
    const std::vector<core::Seconds> times =
        copy_times(plan, *order, stages_.activations(plan, *order, ranges));
    return *std::max_element(times.begin(), times.end()) * claimed_share;
}

// The copy stream of the rank that holds most: shards come before each pass forward and backward of their
// unit, the first before anything else runs. Gradients go after each backward pass but for those that are
// reduced once a step.
core::Seconds Bounds::time_of_state_copies(const schedule::Plan& plan,
                                           const std::vector<RankParameters>& parameters) {
    double most = 0;
    for (const RankParameters& held : parameters) most = std::max(most, held.dense);
    // A tied parameter may be counted twice, and be fetched once.
    const double tied = stages_.tied_elements(plan), own = std::max(0.0, most - tied) / plan.pieces(false);
    sim::CommunicationCost& communication = communication_of(plan);
    const core::Bytes stored = core::size_of(plan.precision.parameters),
                      element = core::size_of(plan.precision.gradients);
    core::Seconds of_pass = communication.state_copy(stored * own, true) * 2;
    if (!plan.has_sequence_parallelism()) of_pass += communication.state_copy(element * own, false);
    return of_pass * (double(plan.micro_batches) * plan.passes_per_micro_batch());
}

core::Bytes Bounds::least_state(const schedule::Plan& plan) {
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    return state(plan, all) / plan.layout.pipeline + cluster_.instance.device.context_memory;
}

const std::vector<std::vector<Bounds::Kept>>& Bounds::kept(const schedule::Plan& plan) {
    const schedule::Schedule* order = orders_.order(plan);
    const auto [entry, is_new] = kept_.try_emplace(order);
    std::vector<std::vector<Kept>>& ranks = entry->second;
    if (!order || !is_new) return ranks;
    for (const std::vector<schedule::Action>& actions : order->actions) {
        Kept now;
        std::map<double, double, std::greater<>> most = {{1, 0}};  // for weights, by whole ones
        for (const schedule::Action& action : actions) {
            if (action.kind == schedule::ActionKind::forward) ++now.whole;
            else if (action.kind == schedule::ActionKind::backward) --now.whole;
            else if (action.kind == schedule::ActionKind::backward_weight) --now.for_weights;
            else if (action.kind == schedule::ActionKind::backward_input) {
                --now.whole;
                ++now.for_weights;
            }
            double& for_weights = most[now.whole];
            for_weights = std::max(for_weights, now.for_weights);
        }
        std::vector<Kept>& moments = ranks.emplace_back();
        for (const auto& [whole, for_weights] : most)
            if (moments.empty() || for_weights > moments.back().for_weights)
                moments.push_back({whole, for_weights});
    }
    return ranks;
}

// Of the fullest host at least the mean.
bool Bounds::state_exceeds_hosts(const schedule::Plan& plan) {
    const core::Bytes available = cluster_.instance.host_memory;
    if (!plan.updates_on_hosts() || available.value <= 0) return false;
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    const core::Bytes of_a_pipeline =
        schedule::state_footprint(stages_.parameter_count(plan, all), plan).on_host *
        share_kept_on_host(plan);
    const double pipelines = double(plan.layout.ranks()) / plan.layout.pipeline;
    return of_a_pipeline * pipelines > available * double(cluster_.nodes);
}

bool Bounds::never_fits(const schedule::Plan& plan) {
    if (state_exceeds_hosts(plan)) return true;
    const cluster::DeviceSpec& device = cluster_.instance.device;
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    double state = this->state(plan, all).value;
    const schedule::Schedule* order = orders_.order(plan);
    const double room = device.memory.value;
    if (!order || order->stages != order->ranks) return state > room * plan.layout.pipeline;
    // The state goes where a byte of activations costs most, as they are there of most micro-batches; what
    // is left takes the activations.
    std::vector<double> in_flight;
    for (const std::vector<Kept>& moments : kept(plan)) in_flight.push_back(moments.front().whole);
    std::sort(in_flight.rbegin(), in_flight.rend());
    double room_left = 0;  // for one micro-batch, or one segment
    for (const double most : in_flight) {
        const double taken = std::min(state, room);
        state -= taken;
        room_left += (room - taken) / (most * (1 + device.fragmentation));
    }
    return state > 0 || saved(plan, all).whole.value > room_left;
}

}  // namespace planner
