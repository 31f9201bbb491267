#include "sim/engine/schedule_timing.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"
#include "schedule/schedule_cells.h"

namespace sim {

namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;

constexpr int kinds = 5;  // compute kinds; the table of durations has `kinds` entries a stage and segment,
                          // then one per overlapped pair

// Index into the ends of a replay: 0 is before everything.
std::int32_t end_index(core::OptionalIndex step) { return step ? *step + 1 : 0; }

bool makes_gradients(ActionKind kind) {
    return kind == ActionKind::backward || kind == ActionKind::backward_weight;
}

// Index of the step that makes an action's input: the forward of the stage before, or the gradient of the
// stage after.
class Producers {
public:
    explicit Producers(const Schedule& schedule)
        : schedule_(schedule), cells_(schedule), forward_(cells_.size()), gradient_(cells_.size()) {}

    void made(const Action& action, std::int32_t step) {
        if (action.kind == ActionKind::forward) forward_[cells_.of(action)] = step;
        else if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
            gradient_[cells_.of(action)] = step;
    }

    // False when the action has to wait; otherwise `step` is the producer where that is on another rank.
    bool find(const Action& action, core::OptionalIndex& step) const {
        step = std::nullopt;
        const bool is_forward = action.kind == ActionKind::forward;
        const bool is_gradient =
            action.kind == ActionKind::backward || action.kind == ActionKind::backward_input;
        const int from = is_forward ? action.stage - 1 : action.stage + 1;
        if ((!is_forward && !is_gradient) || from < 0 || from >= schedule_.stages) return true;
        const core::OptionalIndex producer = (is_forward ? forward_ : gradient_)[cells_.of(action, from)];
        if (!producer) return false;
        if (rank_of_stage(schedule_, from, action.direction) !=
            rank_of_stage(schedule_, action.stage, action.direction))
            step = producer;
        return true;
    }

private:
    const Schedule& schedule_;
    const schedule::CellIndex cells_;
    std::vector<core::OptionalIndex> forward_, gradient_;
};

}  // namespace

std::int32_t ReplayOrder::cost_index(const Action& action) const {
    return (action.stage * costs_per_stage_ + action.segment) * kinds + core::position_of(action.kind);
}

ActionKind ReplayOrder::kind_of(const Step& step) { return static_cast<ActionKind>(step.cost % kinds); }

std::size_t ReplayOrder::stage_of(const Step& step) const {
    return std::size_t(step.cost / kinds / costs_per_stage_);
}

ReplayOrder::ReplayOrder(const Schedule& original)
    : ranks_(original.ranks),
      stages_(original.stages),
      costs_per_stage_(std::max(1, original.passes_per_micro_batch())) {
    const Schedule schedule = compute_only(original);
    core::require(ranks_ < 1 << 16, "a pipeline has fewer than 65,536 ranks");
    first_step_.assign(ranks_, std::nullopt);
    last_end_.assign(ranks_, 0);
    last_gradient_end_.assign(ranks_, 0);
    Producers producers(schedule);
    std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> pair_index;
    std::vector<std::size_t> heads(ranks_, 0);
    std::size_t left = 0;
    for (const std::vector<Action>& list : schedule.actions) left += list.size();
    steps_.reserve(left);
    position_.reserve(left);
    before_.reserve(left);
    while (left > 0) {
        const std::size_t left_before = left;
        for (int rank = 0; rank < ranks_; ++rank) {
            const std::vector<Action>& list = schedule.actions[rank];
            std::size_t& head = heads[rank];
            while (head < list.size()) {
                const Action& action = list[head];
                const bool is_pair = action.overlaps_next && head + 1 < list.size();
                core::OptionalIndex first, second;
                if (!producers.find(action, first) || (is_pair && !producers.find(list[head + 1], second)))
                    break;
                Step step{.dependency = end_index(first),
                          .rank = static_cast<std::uint16_t>(rank),
                          .has_second = second.has_value(),
                          .cost = cost_index(action)};
                if (is_pair) {
                    const std::pair key{action.stage, cost_index(list[head + 1])};
                    const auto [entry, is_new] = pair_index.try_emplace(key, core::count_of(pairs_));
                    if (is_new) pairs_.push_back(key);
                    step.cost = stages_ * costs_per_stage_ * kinds + entry->second;
                }
                const auto number = core::count_of(steps_);
                producers.made(action, number);
                if (is_pair) producers.made(list[head + 1], number);
                if (head == 0) first_step_[rank] = number;
                steps_.push_back(step);
                if (second) {
                    second_.resize(std::size_t(number) + 1);
                    second_[std::size_t(number)] = end_index(second);
                }
                position_.push_back(static_cast<std::int32_t>(head));
                before_.push_back(std::exchange(last_end_[rank], number + 1));
                if (makes_gradients(action.kind)) last_gradient_end_[rank] = number + 1;
                has_pairs_ = has_pairs_ || is_pair;
                head += is_pair ? 2 : 1;
                left -= is_pair ? 2 : 1;
            }
        }
        core::require(left < left_before, "a schedule that is timed has passed verify");
    }
}

std::vector<double> ReplayOrder::durations(const ScheduleCosts& costs) const {
    std::vector<double> table;
    // Costs that do not tell parts apart are of each of them.
    const bool tells_parts = costs.stages.size() == std::size_t(stages_ * costs_per_stage_);
    for (int i = 0; i < stages_ * costs_per_stage_; ++i) {
        const StageCost& cost = costs.of(tells_parts ? i : i / costs_per_stage_);
        const double forward = cost.forward.value, input = cost.backward_input.value,
                     weight = cost.backward_weight.value;
        for (const double duration : {forward, input + weight, input, weight, forward})
            table.push_back(duration);
    }
    for (const auto& [forward_stage, backward] : pairs_)
        table.push_back(costs.overlap * (table[forward_stage * costs_per_stage_ * kinds] + table[backward]));
    return table;
}

// By cost index: what an action's input travels.
std::vector<double> ReplayOrder::waits_of(const ScheduleCosts& costs) const {
    core::require(!has_pairs_ && core::count_of(costs.transfers) + 1 == stages_,
                  "transfers of their own are of every boundary between stages that run one by one");
    std::vector<double> waits(stages_ * costs_per_stage_ * kinds, 0);
    for (int stage = 0; stage + 1 < stages_; ++stage)
        for (int segment = 0; segment < costs_per_stage_; ++segment) {
            const double wait = costs.transfers[stage].value;
            const auto set = [&](ActionKind kind, int of_stage) {
                Action action;
                action.kind = kind;
                action.stage = of_stage;
                action.segment = segment;
                waits[cost_index(action)] = wait;
            };
            set(ActionKind::forward, stage + 1);
            set(ActionKind::backward, stage);
            set(ActionKind::backward_input, stage);
        }
    return waits;
}

// By cost index: what an action's result takes on its rank's stream.
std::vector<double> ReplayOrder::sends_of(const ScheduleCosts& costs) const {
    core::require(!has_pairs_ && core::count_of(costs.sends) == stages_,
                  "sends are of every stage, and of passes that end one by one");
    std::vector<double> sends(stages_ * costs_per_stage_ * kinds, 0);
    for (int stage = 0; stage < stages_; ++stage)
        for (int segment = 0; segment < costs_per_stage_; ++segment) {
            const std::int32_t first = (stage * costs_per_stage_ + segment) * kinds;
            sends[first + core::position_of(ActionKind::forward)] = costs.sends[stage].forward.value;
            for (const ActionKind kind : {ActionKind::backward, ActionKind::backward_input})
                sends[first + core::position_of(kind)] = costs.sends[stage].backward.value;
        }
    return sends;
}

ReplayOrder::Totals ReplayOrder::replay(const ScheduleCosts& costs, std::vector<double>& ends) const {
    const std::vector<double> table = durations(costs);
    ends.resize((costs.sends.empty() ? 1 : 2) * (steps_.size() + 1));
    ends[0] = -std::numeric_limits<double>::infinity();
    std::vector<double> rank_end(ranks_, 0);
    for (std::size_t rank = 0; rank < std::min(costs.releases.size(), rank_end.size()); ++rank)
        rank_end[rank] = costs.releases[rank].value;
    const double transfer = costs.transfer.value;
    const double* const duration = table.data();
    double* const end = ends.data();
    double* const free_from = rank_end.data();
    std::size_t number = 0;
    if (!costs.sends.empty()) {
        const std::vector<double> sends = sends_of(costs);
        const double* const send = sends.data();
        std::vector<double> streams(ranks_, 0);
        double* const arrival = end + steps_.size() + 1;
        double* const sent = streams.data();
        arrival[0] = -std::numeric_limits<double>::infinity();
        for (const Step& step : steps_) {
            const double ended =
                std::max(free_from[step.rank], arrival[step.dependency]) + duration[step.cost];
            end[++number] = free_from[step.rank] = ended;
            arrival[number] = sent[step.rank] = std::max(sent[step.rank], ended) + send[step.cost];
        }
    } else if (!costs.transfers.empty()) {
        const std::vector<double> waits = waits_of(costs);
        const double* const wait = waits.data();
        for (const Step& step : steps_)
            end[++number] = free_from[step.rank] =
                std::max(free_from[step.rank], end[step.dependency] + wait[step.cost]) + duration[step.cost];
    } else if (!has_pairs_) {
        for (const Step& step : steps_)
            end[++number] = free_from[step.rank] =
                std::max(free_from[step.rank], end[step.dependency] + transfer) + duration[step.cost];
    } else {
        for (const Step& step : steps_) {
            double start = std::max(free_from[step.rank], end[step.dependency] + transfer);
            if (step.has_second) start = std::max(start, end[second_[number]] + transfer);
            end[++number] = free_from[step.rank] = start + duration[step.cost];
        }
    }
    Totals totals;
    for (int rank = 0; rank < ranks_; ++rank) {
        const std::size_t r = rank;
        totals.makespan = std::max(totals.makespan, core::Seconds(rank_end[r]));
        if (!costs.after.empty())
            totals.makespan = std::max(totals.makespan, core::Seconds(end_of_rank(r, costs, table, ends)));
        if (!first_step_[r]) continue;
        const std::size_t first = *first_step_[r];
        const double start = ends[first + 1] - table[steps_[first].cost];
        totals.greatest_span = std::max(totals.greatest_span, core::Seconds(rank_end[r] - start));
    }
    return totals;
}

double ReplayOrder::end_of_rank(std::size_t rank, const ScheduleCosts& costs,
                                const std::vector<double>& table, const std::vector<double>& ends) const {
    const double own = ends[last_end_[rank]];
    if (costs.after.empty() || costs.after[rank].value <= 0) return own;
    if (!costs.is_after_last_begins) return own + costs.after[rank].value;
    const std::int32_t last = last_gradient_end_[rank];
    return last == 0 ? own
                     : std::max(own, ends[last] - table[steps_[last - 1].cost] + costs.after[rank].value);
}

ReplayOrder::CriticalPath ReplayOrder::critical_path(const ScheduleCosts& costs,
                                                     const std::vector<double>& ends) const {
    const std::vector<double> table = durations(costs), sends = sends_of(costs);
    const double* const arrivals = ends.data() + steps_.size() + 1;
    CriticalPath path;
    path.passes.resize(std::size_t(stages_ * costs_per_stage_));
    std::size_t rank = 0;
    for (std::size_t r = 1; r < std::size_t(ranks_); ++r)
        if (end_of_rank(r, costs, table, ends) > end_of_rank(rank, costs, table, ends)) rank = r;
    std::int32_t end = last_end_[rank];
    bool begins = false;  // the path comes from the beginning of this step
    if (const double length = end_of_rank(rank, costs, table, ends); length > ends[end]) {
        path.beside = costs.after[rank];
        begins = costs.is_after_last_begins;
        if (begins) end = last_gradient_end_[rank];
    }
    while (end != 0) {
        const Step& step = steps_[end - 1];
        if (!std::exchange(begins, false)) {
            CriticalPath::Counts& counts = path.passes[step.cost / kinds];
            const ActionKind kind = kind_of(step);
            if (kind == ActionKind::forward || kind == ActionKind::recompute) ++counts.forward;
            if (kind == ActionKind::backward || kind == ActionKind::backward_input) ++counts.backward_input;
            if (makes_gradients(kind)) ++counts.backward_weight;
        }
        const std::int32_t before = before_[end - 1];
        if (step.dependency == 0 || (before != 0 && arrivals[step.dependency] <= ends[before])) {
            end = before;
            continue;
        }
        // Back over what the sender's stream sent one after another.
        end = step.dependency;
        path.beside += core::Seconds(sends[steps_[end - 1].cost]);
        for (std::int32_t sent = before_[end - 1]; sent != 0 && arrivals[sent] > ends[end];
             sent = before_[end - 1]) {
            end = sent;
            path.beside += core::Seconds(sends[steps_[end - 1].cost]);
        }
    }
    return path;
}

core::Seconds ReplayOrder::end_of_messages(const ScheduleCosts& costs, const std::vector<double>& ends,
                                           const std::vector<StageMessages>& messages) const {
    core::require(!has_pairs_, "passes of overlapped slots begin together");
    const std::vector<double> table = durations(costs);
    std::vector<std::size_t> last(std::size_t(stages_), 0);
    for (std::size_t i = 0; i < steps_.size(); ++i)
        if (makes_gradients(kind_of(steps_[i]))) last[stage_of(steps_[i])] = i;
    std::vector<double> stream(std::size_t(ranks_), 0);
    double latest = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
        const std::int32_t cost = steps_[i].cost;
        const std::size_t stage = stage_of(steps_[i]);
        const StageMessages& of_stage = messages[stage];
        double& end = stream[steps_[i].rank];
        const ActionKind kind = kind_of(steps_[i]);
        if (kind == ActionKind::forward) end += of_stage.before_forward.value;
        if (kind == ActionKind::backward || kind == ActionKind::backward_input)
            end += of_stage.before_backward.value;
        if (!makes_gradients(kind)) continue;
        double after = of_stage.after_backward.value;
        if (last[stage] == i) after += of_stage.after_last_backward.value;
        if (after > 0) end = std::max(end, ends[i + 1] - table[std::size_t(cost)]) + after;
        latest = std::max(latest, end);
    }
    for (std::size_t r = 0; r < costs.after.size(); ++r)
        latest = std::max(latest, stream[r] + costs.after[r].value);
    return core::Seconds(latest);
}

namespace {

// In list order, which is time order on a rank: a positive change counts from the action's start, a negative
// one from its end.
void add_memory(const std::vector<Action>& list, const ScheduleCosts& costs, ScheduleTiming& timing) {
    int in_flight = 0, peak_in_flight = 0;
    double held = 0, peak = 0;
    for (const Action& action : list) {
        const StageCost& cost = costs.of(action.stage);
        double at_start = 0, at_end = 0;
        auto change = [&](core::Bytes bytes) { (bytes.value > 0 ? at_start : at_end) += bytes.value; };
        if (action.kind == ActionKind::forward) {
            change(cost.memory_forward);
            peak_in_flight = std::max(peak_in_flight, ++in_flight);
        }
        if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_input)
            change(cost.memory_backward_input);
        if (action.kind == ActionKind::backward || action.kind == ActionKind::backward_weight) {
            change(cost.memory_backward_weight);
            --in_flight;
        }
        held += at_start;
        peak = std::max(peak, held);
        held += at_end;
    }
    timing.peak_in_flight.push_back(peak_in_flight);
    timing.peak_memory.push_back(core::Bytes(peak));
}

}  // namespace

ScheduleTiming time_schedule(const Schedule& original, const ScheduleCosts& costs) {
    const Schedule schedule = compute_only(original);
    const ReplayOrder order(schedule);
    std::vector<double> ends;
    ScheduleTiming timing;
    timing.makespan = order.replay(costs, ends).makespan;
    const std::vector<double> table = order.durations(costs);
    timing.rank_span.resize(schedule.ranks);
    timing.rank_work.resize(schedule.ranks);
    for (const std::vector<Action>& list : schedule.actions) {
        timing.spans.emplace_back(list.size());
        add_memory(list, costs, timing);
    }
    for (std::size_t i = 0; i < order.steps_.size(); ++i) {
        const ReplayOrder::Step& step = order.steps_[i];
        const core::Seconds duration(table[step.cost]);
        const ActionSpan span{core::Seconds(ends[i + 1]) - duration, core::Seconds(ends[i + 1])};
        const std::size_t rank = step.rank, position = order.position_[i];
        timing.spans[rank][position] = span;
        if (schedule.actions[rank][position].overlaps_next && position + 1 < timing.spans[rank].size())
            timing.spans[rank][position + 1] = span;
        timing.rank_work[rank] += duration;
    }
    core::Seconds work;
    for (std::size_t rank = 0; rank < timing.spans.size(); ++rank) {
        if (!timing.spans[rank].empty())
            timing.rank_span[rank] = timing.spans[rank].back().end - timing.spans[rank].front().start;
        work += timing.rank_work[rank];
    }
    const double offered = schedule.ranks * timing.makespan.value;
    timing.bubble_rate = offered > 0 ? 1 - work.value / offered : 0;
    return timing;
}

core::Seconds ScheduleTiming::greatest_span() const {
    return rank_span.empty() ? core::Seconds(0) : *std::max_element(rank_span.begin(), rank_span.end());
}

}  // namespace sim
