// The builder on one virtual clock: I before F, F as memory allows, W where it fits a wait, where memory asks
// for one, or where else the stage would become the one with the largest bubble; the rest at the end. How
// many forwards may run ahead, whether a forward may delay a gradient and how W fills a wait are left open by
// the paper: every combination is tried.
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "schedule/pipeline/order.h"
#include "schedule/pipeline/zero_bubble_orders.h"
#include "schedule/rounding.h"

namespace schedule {

namespace {

enum class WeightFilling { only_where_it_fits, where_the_bubble_is_largest, always };

struct Choices {
    int ahead_per_hop = 0,
        ahead_more =
            0;  // at most ahead_per_hop (p - r) + ahead_more forwards without I; 0 and 0: as memory allows
    WeightFilling filling = WeightFilling::only_where_it_fits;
    bool holds_forward = false;  // no F that would delay an I whose arrival is known
};

class ClockedBuilder {
public:
    ClockedBuilder(const PipelineShape& shape, double memory_limit, Choices choices)
        : shape_(shape), limit_(memory_limit * (1 + rounding)), choices_(choices) {
        double greatest = shape.transfer;
        for (int stage = 0; stage < shape.ranks; ++stage) {
            costs_.push_back(shape.cost(stage));
            stages_.emplace_back();
            greatest = std::max({greatest, costs_.back().forward, costs_.back().backward_input,
                                 costs_.back().backward_weight});
        }
        slack_ = rounding * greatest;
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
        double time = 0;          // end of the last action
        double clock = 0;         // when the stage decides next: its time, or later while it waits
        bool is_blocked = false;  // nothing is known to come before a neighbour acts
        double start = 0, bubble = 0, held = 0;
    };

    Stage& at(int stage) { return stages_[stage]; }
    const Stage& at(int stage) const { return stages_[stage]; }
    const RelativeStageCost& cost(int stage) const { return costs_[stage]; }

    int next_stage() const {
        int best = -1;
        for (int stage = 0; stage < shape_.ranks; ++stage)
            if (at(stage).weights < shape_.micro_batches && !at(stage).is_blocked &&
                (best < 0 || at(stage).clock < at(best).clock))
                best = stage;
        return best;
    }

    // When the input of the stage's next forward or I is there; never when it is not made yet.
    double forward_arrival(int stage) const {
        const int k = at(stage).forwards;
        if (k >= shape_.micro_batches) return never;
        if (stage == 0) return 0;
        return k < at(stage - 1).forwards ? at(stage - 1).forward_ends[k] + shape_.transfer : never;
    }
    double input_arrival(int stage) const {
        const int k = at(stage).inputs;
        if (k >= at(stage).forwards) return never;
        if (stage + 1 == shape_.ranks) return at(stage).forward_ends[k];
        return k < at(stage + 1).inputs ? at(stage + 1).input_ends[k] + shape_.transfer : never;
    }
    bool has_room(int stage) const {
        return at(stage).held + std::max(0.0, cost(stage).memory_forward) <= limit_;
    }
    bool has_room_for_input(int stage) const {
        return at(stage).held + std::max(0.0, cost(stage).memory_backward_input) <= limit_;
    }
    bool may_run_ahead(int stage) const {
        const bool is_free = choices_.ahead_per_hop == 0 && choices_.ahead_more == 0;
        return is_free || at(stage).forwards - at(stage).inputs <
                              choices_.ahead_per_hop * (shape_.ranks - stage) + choices_.ahead_more;
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
        put(stage, ActionKind::forward, at(stage).forwards++, cost(stage).forward,
            cost(stage).memory_forward);
        return true;
    }
    bool put_input(int stage) {
        put(stage, ActionKind::backward_input, at(stage).inputs++, cost(stage).backward_input,
            cost(stage).memory_backward_input);
        return true;
    }
    bool put_weight(int stage) {
        put(stage, ActionKind::backward_weight, at(stage).weights++, cost(stage).backward_weight,
            cost(stage).memory_backward_weight);
        return true;
    }

    double greatest_bubble() const {
        double greatest = 0;
        for (const Stage& stage : stages_) greatest = std::max(greatest, stage.bubble);
        return greatest;
    }

    // Performs one action of the stage at its clock; false when it waits and its clock moves on.
    bool decide(int stage) {
        Stage& s = at(stage);
        const double input = input_arrival(stage), forward = forward_arrival(stage);
        const bool has_weight = s.weights < s.inputs;
        if (input <= s.clock + slack_) {
            if (has_room_for_input(stage)) return put_input(stage);
            if (has_weight) return put_weight(stage);
        }
        const bool wants_forward = forward < never && may_run_ahead(stage);
        const bool delays_input = choices_.holds_forward && input < never &&
                                  std::max(s.clock, forward) + cost(stage).forward > input + slack_;
        if (wants_forward && !delays_input && forward <= s.clock + slack_) {
            if (has_room(stage)) return put_forward(stage);
            if (has_weight) return put_weight(stage);
        }
        const double arrival = std::min(
            input, wants_forward && has_room(stage) && !delays_input ? std::max(forward, s.clock) : never);
        if (has_weight) {
            const bool fits = s.clock + cost(stage).backward_weight <= arrival + slack_;
            const bool becomes_largest =
                arrival < never && s.bubble + (arrival - s.time) > greatest_bubble() + slack_;
            if (fits || choices_.filling == WeightFilling::always ||
                (choices_.filling == WeightFilling::where_the_bubble_is_largest && becomes_largest))
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

}  // namespace

bool OrderFigures::is_better_than(const OrderFigures& other) const {
    const double slack = rounding * other.span;
    return std::isinf(other.span) ? !std::isinf(span)
                                  : span < other.span - slack ||
                                        (span <= other.span + slack && makespan < other.makespan - slack);
}

OrderFigures play_order(const PipelineShape& shape, const ActionLists& lists, double memory_limit) {
    const std::size_t ranks = shape.ranks;
    std::vector<std::vector<double>> forward_ends(ranks), input_ends(ranks);
    std::vector<double> time(ranks, 0), start(ranks, -1), held(ranks, 0);
    std::vector<std::size_t> head(ranks, 0);
    for (bool has_moved = true; has_moved;) {
        has_moved = false;
        for (std::size_t r = 0; r < ranks; ++r)
            for (; head[r] < lists[r].size(); ++head[r], has_moved = true) {
                const Action& action = lists[r][head[r]];
                const RelativeStageCost cost = shape.cost(action.stage);
                const std::size_t k = action.micro_batch;
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
                const bool is_forward = action.kind == ActionKind::forward,
                           is_input = action.kind == ActionKind::backward_input;
                const double change = is_forward ? cost.memory_forward
                                      : is_input ? cost.memory_backward_input
                                                 : cost.memory_backward_weight;
                if (held[r] + std::max(0.0, change) > memory_limit * (1 + rounding)) return {};
                held[r] += change;
                time[r] = begin + (is_forward ? cost.forward
                                   : is_input ? cost.backward_input
                                              : cost.backward_weight);
                if (is_forward) forward_ends[r].push_back(time[r]);
                if (is_input) input_ends[r].push_back(time[r]);
            }
    }
    OrderFigures figures{0, 0};
    for (std::size_t r = 0; r < ranks; ++r) {
        figures.span = std::max(figures.span, time[r] - start[r]);
        figures.makespan = std::max(figures.makespan, time[r]);
    }
    return figures;
}

std::optional<ActionLists> zero_bubble_by_clock(const PipelineShape& shape, double memory_limit) {
    std::optional<ActionLists> best;
    OrderFigures best_figures;
    for (const auto& [per_hop, more] : std::vector<std::pair<int, int>>{
             {0, 0}, {1, 0}, {1, 1}, {2, -1}, {2, 0}, {2, 1}, {2, 2}, {2, 3}, {2, 4}, {3, 0}})
        for (const WeightFilling filling :
             {WeightFilling::only_where_it_fits, WeightFilling::where_the_bubble_is_largest,
              WeightFilling::always})
            for (const bool holds_forward : {false, true}) {
                ClockedBuilder builder(shape, memory_limit, {per_hop, more, filling, holds_forward});
                if (!builder.run()) continue;
                const OrderFigures figures{builder.greatest_span(), builder.makespan()};
                if (!figures.is_better_than(best_figures)) continue;
                best_figures = figures;
                best = builder.take();
            }
    return best;
}

}  // namespace schedule
