// Zero bubble (Qi et al., arXiv 2401.10241): the backward is split, only I is passed on, and W fills what would be idle. The order is built as by the paper's
// automatic scheduler (section 3.1), on a virtual clock: I before F, F as memory allows, W where it fits a wait, where memory asks for one, or where else the stage
// would become the one with the largest bubble; the rest at the end. How many forwards may run ahead, whether a forward may delay a gradient and how W fills
// a wait are left open there: every combination is tried and the order with the smallest longest rank span is kept.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

enum class WeightFilling { only_where_it_fits, where_the_bubble_is_largest, always };

struct Choices {
    int ahead_per_hop = 0, ahead_more = 0;  // at most ahead_per_hop (p - r) + ahead_more forwards without I; 0 and 0: as memory allows
    WeightFilling filling = WeightFilling::only_where_it_fits;
    bool holds_forward = false;  // no F that would delay an I whose arrival is known
};

class ClockedBuilder {
public:
    ClockedBuilder(const PipelineShape& shape, double memory_limit, Choices choices) : shape_(shape), limit_(memory_limit * (1 + 1e-9)), choices_(choices) {
        double greatest = shape.transfer;
        for (int stage = 0; stage < shape.ranks; ++stage) {
            costs_.push_back(shape.cost(stage));
            stages_.emplace_back();
            greatest = std::max({greatest, costs_.back().forward, costs_.back().backward_input, costs_.back().backward_weight});
        }
        slack_ = 1e-9 * greatest;
    }

    // False when the memory limit lets nothing move.
    bool run() {
        const int total = 3 * shape_.ranks * shape_.micro_batches;
        while (placed_ < total) {
            const int stage = next_stage();
            if (stage < 0) return false;
            placed_ += decide(stage);
        }
        return true;
    }

    double greatest_span() const {
        double greatest = 0;
        for (const Stage& stage : stages_) greatest = std::max(greatest, stage.time - stage.start);
        return greatest;
    }
    double makespan() const {
        double last = 0;
        for (const Stage& stage : stages_) last = std::max(last, stage.time);
        return last;
    }
    std::vector<std::vector<Action>> take() {
        std::vector<std::vector<Action>> lists;
        for (Stage& stage : stages_) lists.push_back(std::move(stage.list));
        return lists;
    }

private:
    static constexpr double never = std::numeric_limits<double>::infinity();

    struct Stage {
        std::vector<Action> list;
        std::vector<double> forward_ends, input_ends;
        int forwards = 0, inputs = 0, weights = 0;
        double time = 0;    // end of the last action
        double clock = 0;   // when the stage decides next: its time, or later while it waits
        bool is_blocked = false;  // nothing is known to come before a neighbour acts
        double start = 0, bubble = 0, held = 0;
    };

    Stage& at(int stage) { return stages_[static_cast<std::size_t>(stage)]; }
    const Stage& at(int stage) const { return stages_[static_cast<std::size_t>(stage)]; }
    const RelativeStageCost& cost(int stage) const { return costs_[static_cast<std::size_t>(stage)]; }

    int next_stage() const {
        int best = -1;
        for (int stage = 0; stage < shape_.ranks; ++stage)
            if (at(stage).weights < shape_.micro_batches && !at(stage).is_blocked && (best < 0 || at(stage).clock < at(best).clock)) best = stage;
        return best;
    }

    // When the input of the stage's next forward or I is there; never when it is not made yet.
    double forward_arrival(int stage) const {
        const int k = at(stage).forwards;
        if (k >= shape_.micro_batches) return never;
        if (stage == 0) return 0;
        return k < at(stage - 1).forwards ? at(stage - 1).forward_ends[static_cast<std::size_t>(k)] + shape_.transfer : never;
    }
    double input_arrival(int stage) const {
        const int k = at(stage).inputs;
        if (k >= at(stage).forwards) return never;
        if (stage + 1 == shape_.ranks) return at(stage).forward_ends[static_cast<std::size_t>(k)];
        return k < at(stage + 1).inputs ? at(stage + 1).input_ends[static_cast<std::size_t>(k)] + shape_.transfer : never;
    }
    bool has_room(int stage) const { return at(stage).held + std::max(0.0, cost(stage).memory_forward) <= limit_; }
    bool has_room_for_input(int stage) const { return at(stage).held + std::max(0.0, cost(stage).memory_backward_input) <= limit_; }
    bool may_run_ahead(int stage) const {
        const bool is_free = choices_.ahead_per_hop == 0 && choices_.ahead_more == 0;
        return is_free || at(stage).forwards - at(stage).inputs < choices_.ahead_per_hop * (shape_.ranks - stage) + choices_.ahead_more;
    }

    void put(int stage, ActionKind kind, int micro_batch, double duration, double change) {
        Stage& s = at(stage);
        const double begin = s.clock;
        if (s.list.empty()) s.start = begin;
        else s.bubble += begin - s.time;
        s.time = s.clock = begin + duration;
        s.held += change;
        s.list.push_back({kind, stage, micro_batch});
        if (kind == ActionKind::forward) s.forward_ends.push_back(s.time);
        if (kind == ActionKind::backward_input) s.input_ends.push_back(s.time);
        for (int neighbour : {stage - 1, stage + 1}) {
            if (neighbour < 0 || neighbour >= shape_.ranks || !at(neighbour).is_blocked) continue;
            at(neighbour).is_blocked = false;
            at(neighbour).clock = std::max(at(neighbour).clock, begin);
        }
    }
    bool put_forward(int stage) {
        put(stage, ActionKind::forward, at(stage).forwards++, cost(stage).forward, cost(stage).memory_forward);
        return true;
    }
    bool put_input(int stage) {
        put(stage, ActionKind::backward_input, at(stage).inputs++, cost(stage).backward_input, cost(stage).memory_backward_input);
        return true;
    }
    bool put_weight(int stage) {
        put(stage, ActionKind::backward_weight, at(stage).weights++, cost(stage).backward_weight, cost(stage).memory_backward_weight);
        return true;
    }

    double greatest_bubble() const {
        double greatest = 0;
        for (const Stage& stage : stages_) greatest = std::max(greatest, stage.bubble);
        return greatest;
    }

    // What the stage does at its clock; false when it waits (its clock moves on).
    bool decide(int stage) {
        Stage& s = at(stage);
        const double input = input_arrival(stage), forward = forward_arrival(stage);
        const bool has_weight = s.weights < s.inputs;
        if (input <= s.clock + slack_) {
            if (has_room_for_input(stage)) return put_input(stage);
            if (has_weight) return put_weight(stage);
        }
        const bool wants_forward = forward < never && may_run_ahead(stage);
        const bool delays_input = choices_.holds_forward && input < never && std::max(s.clock, forward) + cost(stage).forward > input + slack_;
        if (wants_forward && !delays_input && forward <= s.clock + slack_) {
            if (has_room(stage)) return put_forward(stage);
            if (has_weight) return put_weight(stage);
        }
        const double arrival = std::min(input, wants_forward && has_room(stage) && !delays_input ? std::max(forward, s.clock) : never);
        if (has_weight) {
            const bool fits = s.clock + cost(stage).backward_weight <= arrival + slack_;
            const bool becomes_largest = arrival < never && s.bubble + (arrival - s.time) > greatest_bubble() + slack_;
            if (fits || choices_.filling == WeightFilling::always || (choices_.filling == WeightFilling::where_the_bubble_is_largest && becomes_largest))
                return put_weight(stage);
        }
        // Waits for what is known to come, or for a neighbour to do something.
        if (arrival < never && arrival > s.clock) s.clock = arrival;
        else s.is_blocked = true;
        return false;
    }

    const PipelineShape& shape_;
    double limit_, slack_ = 0;
    Choices choices_;
    std::vector<RelativeStageCost> costs_;
    std::vector<Stage> stages_;
    int placed_ = 0;
};

double greatest_forward_memory(const PipelineShape& shape) {
    double greatest = 0;
    for (int stage = 0; stage < shape.stages(); ++stage) greatest = std::max(greatest, shape.cost(stage).memory_forward);
    return greatest;
}

// ZB-H1 (section 3 of the paper): 1F1B's forwards and I's, W from the r-th pair on, so that every rank holds at most p until W.
std::vector<std::vector<Action>> handmade_order(const PipelineShape& shape) {
    std::vector<std::vector<Action>> lists(static_cast<std::size_t>(shape.ranks));
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = lists[static_cast<std::size_t>(rank)];
        const int warm_up = std::min(shape.ranks - 1 - rank, shape.micro_batches);
        int weights = 0;
        for (int k = 0; k < warm_up; ++k) list.push_back(forward_of(rank, k));
        for (int k = 0; k < shape.micro_batches; ++k) {
            if (k + warm_up < shape.micro_batches) list.push_back(forward_of(rank, k + warm_up));
            list.push_back(backward_input_of(rank, k));
            if (k >= rank) list.push_back(backward_weight_of(rank, weights++));
        }
        while (weights < shape.micro_batches) list.push_back(backward_weight_of(rank, weights++));
    }
    return lists;
}

struct Figures {
    double span = std::numeric_limits<double>::infinity(), makespan = span;
    bool is_better_than(const Figures& other) const {
        const double slack = 1e-9 * other.span;
        return std::isinf(other.span) ? !std::isinf(span) : span < other.span - slack || (span <= other.span + slack && makespan < other.makespan - slack);
    }
};

// Longest path through given lists; infinite when they exceed the limit.
Figures play(const PipelineShape& shape, const std::vector<std::vector<Action>>& lists, double memory_limit) {
    const auto ranks = static_cast<std::size_t>(shape.ranks);
    std::vector<std::vector<double>> forward_ends(ranks), input_ends(ranks);
    std::vector<double> time(ranks, 0), start(ranks, -1), held(ranks, 0);
    std::vector<std::size_t> head(ranks, 0);
    for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (std::size_t r = 0; r < ranks; ++r)
            for (; head[r] < lists[r].size(); ++head[r], has_moved = true) {
                const Action& action = lists[r][head[r]];
                const RelativeStageCost cost = shape.cost(action.stage);
                const auto k = static_cast<std::size_t>(action.micro_batch);
                double begin = time[r];
                if (action.kind == ActionKind::forward && r > 0) {
                    if (forward_ends[r - 1].size() <= k) break;
                    begin = std::max(begin, forward_ends[r - 1][k] + shape.transfer);
                }
                if (action.kind == ActionKind::backward_input && r + 1 < ranks) {
                    if (input_ends[r + 1].size() <= k) break;
                    begin = std::max(begin, input_ends[r + 1][k] + shape.transfer);
                }
                if (start[r] < 0) start[r] = begin;
                const bool is_forward = action.kind == ActionKind::forward, is_input = action.kind == ActionKind::backward_input;
                const double change = is_forward ? cost.memory_forward : is_input ? cost.memory_backward_input : cost.memory_backward_weight;
                if (held[r] + std::max(0.0, change) > memory_limit * (1 + 1e-9)) return {};
                held[r] += change;
                time[r] = begin + (is_forward ? cost.forward : is_input ? cost.backward_input : cost.backward_weight);
                if (is_forward) forward_ends[r].push_back(time[r]);
                if (is_input) input_ends[r].push_back(time[r]);
            }
    }
    Figures figures{0, 0};
    for (std::size_t r = 0; r < ranks; ++r) {
        figures.span = std::max(figures.span, time[r] - start[r]);
        figures.makespan = std::max(figures.makespan, time[r]);
    }
    return figures;
}

// The best of all combinations of choices within the limit, and of ZB-H1's order where it fits.
std::vector<std::vector<Action>> best_order(const PipelineShape& shape, double memory_limit) {
    std::vector<std::vector<Action>> best = handmade_order(shape);
    Figures best_figures = play(shape, best, memory_limit);
    if (std::isinf(best_figures.span)) best.clear();
    for (const auto& [per_hop, more] : std::vector<std::pair<int, int>>{{0, 0}, {1, 0}, {1, 1}, {2, -1}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 4}, {3, 0}})
        for (const WeightFilling filling : {WeightFilling::only_where_it_fits, WeightFilling::where_the_bubble_is_largest, WeightFilling::always})
            for (const bool holds_forward : {false, true}) {
                ClockedBuilder builder(shape, memory_limit, {per_hop, more, filling, holds_forward});
                if (!builder.run()) continue;
                const Figures figures{builder.greatest_span(), builder.makespan()};
                if (!figures.is_better_than(best_figures)) continue;
                best_figures = figures;
                best = builder.take();
            }
    if (!best.empty()) return best;
    // One micro-batch after the other fits where anything does.
    for (int rank = 0; rank < shape.ranks; ++rank) {
        std::vector<Action>& list = best.emplace_back();
        for (int k = 0; k < shape.micro_batches; ++k) list.insert(list.end(), {forward_of(rank, k), backward_input_of(rank, k), backward_weight_of(rank, k)});
    }
    return best;
}

std::optional<std::string> violation_within(const PipelineShape& shape, double memory_limit) {
    for (int stage = 0; stage < shape.ranks; ++stage) {
        const RelativeStageCost cost = shape.cost(stage);
        const double needed = std::max({cost.memory_forward, cost.memory_forward + std::max(0.0, cost.memory_backward_input)});
        if (needed > memory_limit * (1 + 1e-9))
            return fmt::format("one micro-batch on stage {} takes {:.6g}, more than the memory limit of {:.6g}", stage, needed, memory_limit);
        if (cost.memory_forward + cost.memory_backward_input + cost.memory_backward_weight > 1e-9 * std::abs(cost.memory_forward))
            return fmt::format("the actions of one micro-batch on stage {} leave memory behind: {:.6g} {:+.6g} {:+.6g} is above 0", stage, cost.memory_forward,
                               cost.memory_backward_input, cost.memory_backward_weight);
    }
    return std::nullopt;
}

Schedule build(const char* name, const PipelineShape& shape, const PipelineShape& times, double memory_limit) {
    Schedule schedule = empty_schedule(name, shape);
    schedule.actions = best_order(times, memory_limit);
    return schedule;
}

// ZB-H1 and ZB-H2 are made for equal times, whatever the real ones are.
PipelineShape unit_times(const PipelineShape& shape) {
    PipelineShape unit;
    unit.ranks = shape.ranks;
    unit.micro_batches = shape.micro_batches;
    return unit;
}

double limit_in_micro_batches(const PipelineShape& shape, double micro_batches) {
    return shape.memory_limit > 0 ? shape.memory_limit : micro_batches * greatest_forward_memory(shape);
}
double limit_1p(const PipelineShape& shape) { return limit_in_micro_batches(shape, shape.ranks); }
double limit_2p(const PipelineShape& shape) { return limit_in_micro_batches(shape, 2.0 * shape.ranks); }

PipelineSchedule zero_bubble(const char* name, const char* summary) {
    PipelineSchedule schedule;
    schedule.name = name;
    schedule.summary = summary;
    schedule.source = "arXiv 2401.10241; sail-sg/zero-bubble-pipeline-parallelism";
    schedule.splits_backward = true;
    schedule.greatest_chunks = 1;
    return schedule;
}

}  // namespace

PipelineSchedule zb_h1_schedule() {
    PipelineSchedule schedule = zero_bubble("zb-h1", "zero bubble with the memory of 1F1B, made for equal times");
    schedule.bubble = "span m(F+I+W) + (p-1)(F+I-W) for m >= p";
    schedule.in_flight = "at most p on every rank, counted until W";
    schedule.constraint = "one chunk per rank";
    schedule.generate = [](const PipelineShape& shape) { 
        Schedule made = empty_schedule("zb-h1", shape);
        made.actions = handmade_order(shape);
        return made;
    };
    return schedule;
}

PipelineSchedule zb_h2_schedule() {
    PipelineSchedule schedule = zero_bubble("zb-h2", "zero bubble with up to 2p-1 micro-batches in flight, made for equal times");
    schedule.bubble = "span m(F+I+W) + (p-1)(F+I-2W) for m >= 2p-1; makespan + (p-1)F of start skew";
    schedule.in_flight = "at most 2p-1 on every rank, counted until W";
    schedule.constraint = "one chunk per rank; m >= 2p-1 for zero bubble";
    schedule.generate = [](const PipelineShape& shape) { return build("zb-h2", shape, unit_times(shape), 2 * shape.ranks - 1); };
    return schedule;
}

PipelineSchedule zb_1p_schedule() {
    PipelineSchedule schedule = zero_bubble("zb-1p", "zero bubble from measured times within a memory limit (default: p micro-batches)");
    schedule.aliases = {"zb"};
    schedule.bubble = "by times and limit";
    schedule.in_flight = "within the memory limit";
    schedule.constraint = "one chunk per rank; the limit holds one micro-batch";
    schedule.violation = [](const PipelineShape& shape) { return violation_within(shape, limit_1p(shape)); };
    schedule.generate = [](const PipelineShape& shape) { return build("zb-1p", shape, shape, limit_1p(shape)); };
    return schedule;
}

PipelineSchedule zb_2p_schedule() {
    PipelineSchedule schedule = zero_bubble("zb-2p", "zero bubble from measured times within a memory limit (default: 2p micro-batches)");
    schedule.bubble = "by times and limit";
    schedule.in_flight = "within the memory limit";
    schedule.constraint = "one chunk per rank; the limit holds one micro-batch";
    schedule.violation = [](const PipelineShape& shape) { return violation_within(shape, limit_2p(shape)); };
    schedule.generate = [](const PipelineShape& shape) { return build("zb-2p", shape, shape, limit_2p(shape)); };
    return schedule;
}

}  // namespace schedule
