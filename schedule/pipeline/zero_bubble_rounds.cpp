// The round-by-round builder. Stages are walked down the pipeline for forwards and up it for gradients, so
// what an action waits for always stands already.
#include <algorithm>
#include <array>

#include "core/index/integers.h"
#include "schedule/pipeline/order.h"
#include "schedule/pipeline/zero_bubble_orders.h"
#include "schedule/rounding.h"

namespace schedule {

namespace {

struct RoundChoices {
    bool idles_before_first_gradient =
        false;  // no warm-up forward that would end after the first gradient arrives
    bool skips_forwards =
        false;  // no forward on a stage two ahead of its successor when that one would not take it in time
    bool fills_small_waits =
        false;  // a W that does not fit its wait also where the stage is not the one that idles most
};

class RoundBuilder {
public:
    RoundBuilder(const PipelineShape& shape, double memory_limit, RoundChoices choices)
        : p_(shape.ranks), m_(shape.micro_batches), transfer_(shape.transfer), choices_(choices) {
        double greatest = transfer_;
        for (int s = 0; s < p_; ++s) {
            stages_.emplace_back();
            stages_.back().cost = shape.cost(s);
            const RelativeStageCost& cost = stages_.back().cost;
            greatest = std::max({greatest, cost.forward, cost.backward_input, cost.backward_weight});
        }
        slack_ = rounding * greatest;  // times that are equal in truth must tie
        limit_ = memory_limit * (1 + rounding);
    }

    bool run() {
        first_round();
        for (int round = 1; round < m_; ++round) {
            const std::vector<bool> wants = forwards_wanted();
            for (int s = 0; s < p_; ++s)
                if (wants[index(s)] && !add_forward(s)) return false;
            for (int s = p_ - 1; s >= 0; --s)
                if (!add_gradient(s)) return false;
        }
        for (int s = 0; s < p_; ++s)
            while (at(s).weights < m_) put_weight(s);
        return true;
    }

    double greatest_span() const {
        double greatest = 0;
        for (const Stage& stage : stages_) greatest = std::max(greatest, stage.time - stage.start);
        return greatest;
    }
    ActionLists take() {
        ActionLists lists;
        for (Stage& stage : stages_) lists.push_back(std::move(stage.list));
        return lists;
    }

private:
    struct Stage {
        RelativeStageCost cost;
        std::vector<Action> list;
        std::vector<double> forward_ends, gradient_ends;
        int weights = 0;
        double time = 0, start = 0, idle = 0, held = 0;
        int forwards() const { return core::count_of(forward_ends); }
        int gradients() const { return core::count_of(gradient_ends); }
        bool has_weight() const { return weights < gradients(); }
    };

    static std::size_t index(int i) { return i; }
    Stage& at(int s) { return stages_[index(s)]; }

    // When what the stage's next forward (gradient) needs from its neighbour is there.
    double forward_arrival(int s) {
        return s == 0 ? 0 : at(s - 1).forward_ends[index(at(s).forwards())] + transfer_;
    }
    double gradient_arrival(int s) {
        return s + 1 == p_ ? 0 : at(s + 1).gradient_ends[index(at(s).gradients())] + transfer_;
    }

    void put(int s, const Action& action, double arrival, double duration, double change) {
        Stage& stage = at(s);
        const double begin = std::max(stage.time, arrival);
        if (stage.list.empty()) stage.start = begin;
        else stage.idle += begin - stage.time;
        stage.time = begin + duration;
        stage.held += change;
        stage.list.push_back(action);
    }
    void put_forward(int s) {
        put(s, forward_of(s, at(s).forwards()), forward_arrival(s), at(s).cost.forward,
            at(s).cost.memory_forward);
        at(s).forward_ends.push_back(at(s).time);
    }
    void put_gradient(int s) {
        put(s, backward_input_of(s, at(s).gradients()), gradient_arrival(s), at(s).cost.backward_input,
            at(s).cost.memory_backward_input);
        at(s).gradient_ends.push_back(at(s).time);
    }
    void put_weight(int s) {
        put(s, backward_weight_of(s, at(s).weights++), 0, at(s).cost.backward_weight,
            at(s).cost.memory_backward_weight);
    }

    double greatest_idle() const {
        double greatest = 0;
        for (const Stage& stage : stages_) greatest = std::max(greatest, stage.idle);
        return greatest;
    }

    // Warm-up: one forward everywhere, then on each stage as many as memory and the time until its first
    // gradient take, ever fewer down the pipeline.
    void first_round() {
        for (int s = 0; s < p_; ++s) put_forward(s);
        std::vector<int> more(index(p_), 0);
        double gradient_end = at(p_ - 1).time + at(p_ - 1).cost.backward_input;
        for (int s = p_ - 2; s >= 0; --s) {
            const RelativeStageCost& cost = at(s).cost;
            const double arrival = gradient_end + transfer_;
            double held = at(s).held, time = at(s).time;
            while (at(s).forwards() + more[index(s)] < m_ && held + cost.memory_forward <= limit_) {
                const bool is_late = choices_.idles_before_first_gradient
                                         ? time + cost.forward > arrival + slack_
                                         : time >= arrival - slack_;
                if (is_late) break;
                held += cost.memory_forward;
                time += cost.forward;
                ++more[index(s)];
            }
            gradient_end = std::max(time, arrival) + cost.backward_input;
        }
        // Never more than the stage before gives, which memory may have stopped; and one fewer, until all are
        // through.
        for (int s = 1; s < p_; ++s) {
            int& here = more[index(s)];
            here = std::min(here, more[index(s - 1)]);
            if (here > 0 && here == more[index(s - 1)] && at(s).forwards() + here < m_) --here;
        }
        for (int s = 0; s < p_; ++s)
            for (int k = 0; k < more[index(s)]; ++k) put_forward(s);
        for (int s = p_ - 1; s >= 0; --s) put_gradient(s);
    }

    // A stage that does not add one keeps those before it from running further ahead.
    std::vector<bool> forwards_wanted() {
        std::vector<bool> wants;
        for (int s = 0; s < p_; ++s)
            wants.push_back(at(s).forwards() < m_ && !(choices_.skips_forwards && may_skip(s)));
        for (int s = p_ - 2; s >= 0; --s) wants[index(s)] = wants[index(s)] && wants[index(s + 1)];
        return wants;
    }
    bool may_skip(int s) {
        if (s + 1 >= p_ || at(s).forwards() < at(s + 1).forwards() + 2) return false;
        const Stage &stage = at(s), &next = at(s + 1);
        const double next_is_through = next.time + next.cost.forward + next.cost.backward_input + transfer_;
        if (stage.time >= next_is_through - slack_) return true;
        // With the W's that memory asks for first, does the forward end before the next stage has done its
        // own and sent a gradient back?
        double weights_time = 0, held = stage.held + stage.cost.memory_forward;
        for (int w = stage.weights; held > limit_ && w < stage.gradients(); ++w) {
            weights_time += stage.cost.backward_weight;
            held += stage.cost.memory_backward_weight;
        }
        if (stage.time + stage.cost.forward + weights_time <= next_is_through + slack_) return false;
        return next_is_through - stage.time <= greatest_idle() - stage.idle + slack_;
    }

    bool make_room(int s, double change) {
        while (at(s).held + change > limit_) {
            if (!at(s).has_weight()) return false;
            put_weight(s);
        }
        return true;
    }
    void fill_wait(int s, double arrival) {
        while (at(s).has_weight() && at(s).time + at(s).cost.backward_weight <= arrival + slack_)
            put_weight(s);
        if (!at(s).has_weight() || at(s).time >= arrival - slack_) return;
        const bool idles_less_than_others = arrival - at(s).time <= greatest_idle() - at(s).idle + slack_;
        if (!idles_less_than_others || choices_.fills_small_waits) put_weight(s);
    }
    bool add_forward(int s) {
        if (!make_room(s, at(s).cost.memory_forward)) return false;
        if (s > 0) fill_wait(s, forward_arrival(s));
        put_forward(s);
        return true;
    }
    bool add_gradient(int s) {
        if (!make_room(s, at(s).cost.memory_backward_input)) return false;
        if (s + 1 < p_) fill_wait(s, gradient_arrival(s));
        // Nobody waits for the first stage's gradients once its forwards are done.
        if (s == 0 && at(s).forwards() == m_)
            while (at(s).has_weight()) put_weight(s);
        put_gradient(s);
        return true;
    }

    int p_, m_;
    double transfer_, limit_ = 0, slack_ = 0;
    RoundChoices choices_;
    std::vector<Stage> stages_;
};

// Relative: a span that is shorter by less is the same one, summed in another order.
constexpr double rounding_of_a_span = 1e-12;

}  // namespace

std::optional<ActionLists> zero_bubble_by_rounds(const PipelineShape& shape, double memory_limit) {
    std::optional<ActionLists> best;
    double best_span = std::numeric_limits<double>::infinity();
    for (const bool idles : {true, false})
        for (const bool skips : {true, false})
            for (const bool fills : {true, false}) {
                RoundBuilder builder(shape, memory_limit, {idles, skips, fills});
                if (!builder.run() || builder.greatest_span() >= best_span * (1 - rounding_of_a_span))
                    continue;
                best_span = builder.greatest_span();
                best = builder.take();
            }
    // A warm-up forward is placed without a look at the limit.
    if (best && !(play_order(shape, *best, memory_limit).span < std::numeric_limits<double>::infinity()))
        return std::nullopt;
    return best;
}

}  // namespace schedule
