// ZB-V for measured times and a memory limit (Qi et al., arXiv 2405.15362;
// sail-sg/zero-bubble-pipeline-parallelism): the V placement of zb-v, its order found by playing rounds on a
// virtual clock instead of drawn by hand for F = I = W.
#include <fmt/core.h>
#include <cmath>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>

#include "core/index/integers.h"
#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"
#include "schedule/rounding.h"

namespace schedule {

namespace {

// The authors' scheduler for measured times: warm-up by memory and time, then rounds of one gradient and one
// forward per rank (second chunk first where its input is there), W where it fits a wait or where else the
// rank would idle most. Played again with the idle times found as what each rank may idle.
class VRoundBuilder {
public:
    VRoundBuilder(const PipelineShape& shape, double memory_limit, bool fills_before_forward,
                  bool fills_before_gradient, std::vector<double> allowed_idle)
        : p_(shape.ranks),
          m_(shape.micro_batches),
          cost_(shape.cost(0)),
          transfer_(shape.transfer),
          limit_(memory_limit * (1 + rounding)),
          fills_before_forward_(fills_before_forward),
          fills_before_gradient_(fills_before_gradient),
          allowed_idle_(std::move(allowed_idle)),
          ranks_(shape.ranks) {
        slack_ = rounding * std::max({cost_.forward, cost_.backward_input, cost_.backward_weight, transfer_});
        most_allowed_ = *std::max_element(allowed_idle_.begin(), allowed_idle_.end());
    }

    bool run() {
        warm_up();
        for (int round = 0; round < 2 * m_ && fits_; ++round) {
            add_gradients();
            add_forwards();
        }
        for (int r = 0; r < p_; ++r)
            while (!at(r).weights.empty()) put_weight(r);
        return fits_;
    }
    double greatest_idle() const {
        double greatest = 0;
        for (const Rank& rank : ranks_) greatest = std::max(greatest, rank.idle);
        return greatest;
    }
    double most_allowed() const { return most_allowed_; }
    std::vector<double> idle() const {
        std::vector<double> idle;
        for (const Rank& rank : ranks_) idle.push_back(rank.idle);
        return idle;
    }
    std::vector<std::vector<Action>> take() {
        std::vector<std::vector<Action>> lists;
        for (Rank& rank : ranks_) lists.push_back(std::move(rank.list));
        return lists;
    }

private:
    // Passes of a micro-batch on a rank in their order: down and up as forward, down and up as gradient.
    // "Down" comes from the rank before, "up" from the one after.
    enum Pass { forward_down, forward_up, gradient_down, gradient_up };
    static constexpr double never = std::numeric_limits<double>::infinity();

    struct Rank {
        std::array<std::vector<double>, 4> ends;  // [pass][micro-batch]
        std::deque<Action> weights;
        std::vector<Action> list;
        double time = 0, idle = 0, held = 0;
        int count(Pass pass) const { return core::count_of(ends[pass]); }
    };

    Rank& at(int r) { return ranks_[r]; }
    static bool is_down(Pass pass) { return pass == forward_down || pass == gradient_down; }
    static bool is_forward(Pass pass) { return pass <= forward_up; }
    int neighbour(int r, Pass pass) const { return is_down(pass) ? r - 1 : r + 1; }
    bool has_neighbour(int r, Pass pass) const { return neighbour(r, pass) >= 0 && neighbour(r, pass) < p_; }
    // Gradients leave the V on the side where forwards came out.
    int stage(int r, Pass pass) const {
        return pass == forward_down || pass == gradient_up ? r : 2 * p_ - 1 - r;
    }
    double arrival(int r, Pass pass) {
        if (!has_neighbour(r, pass)) return 0;
        const std::vector<double>& ends = at(neighbour(r, pass)).ends[pass];
        const std::size_t k = at(r).count(pass);
        return k < ends.size() ? ends[k] + transfer_ : never;
    }

    void spend(int r, double begin, double duration, double change, const Action& action) {
        Rank& rank = at(r);
        if (!rank.list.empty()) rank.idle += begin - rank.time;
        rank.time = begin + duration;
        rank.held += change;
        fits_ = fits_ && rank.held <= limit_;
        rank.list.push_back(action);
    }
    void put(int r, Pass pass) {
        Rank& rank = at(r);
        const double begin = std::max(rank.time, arrival(r, pass));
        const int k = rank.count(pass);
        fits_ = fits_ && begin < never && k < m_;
        if (!fits_) return;
        if (is_forward(pass)) {
            spend(r, begin, cost_.forward, cost_.memory_forward, forward_of(stage(r, pass), k));
        } else {
            spend(r, begin, cost_.backward_input, cost_.memory_backward_input,
                  backward_input_of(stage(r, pass), k));
            rank.weights.push_back(backward_weight_of(stage(r, pass), k));
        }
        rank.ends[pass].push_back(rank.time);
    }
    void put_weight(int r) {
        const Action weight = at(r).weights.front();
        at(r).weights.pop_front();
        spend(r, at(r).time, cost_.backward_weight, cost_.memory_backward_weight, weight);
    }
    void make_room(int r, double change) {
        while (at(r).held + change > limit_ && fits_) {
            fits_ = !at(r).weights.empty();
            if (fits_) put_weight(r);
        }
    }
    void fill_wait(int r, Pass pass, bool fills) {
        if (!has_neighbour(r, pass)) return;
        const double until = arrival(r, pass);
        while (!at(r).weights.empty() && until >= at(r).time + cost_.backward_weight - slack_ &&
               until < never)
            put_weight(r);
        const double most = std::max(greatest_idle(), most_allowed_ - allowed_idle_[r]);
        if (fills && !at(r).weights.empty() && until < never &&
            until - at(r).time > most - at(r).idle + slack_)
            put_weight(r);
    }

    void warm_up() {
        for (int r = 0; r < p_; ++r) put(r, forward_down);
        for (int r = p_ - 1; r >= 0; --r) {
            if (r < p_ - 1) {
                const double until = arrival(r, forward_up);
                // Every rank before this one takes them too, and one forward more on the way back up.
                while (at(r).held + cost_.memory_forward * (2 + 2 * r) <= limit_ &&
                       at(r).time + cost_.forward <= until + slack_ && at(r).count(forward_down) < m_)
                    for (int before = 0; before <= r; ++before) put(before, forward_down);
            }
            put(r, forward_up);
        }
        Pass pass = forward_down;
        for (int r = 1; r < p_ && fits_; ++r) {
            auto total = [&](int rank) { return at(rank).count(forward_down) + at(rank).count(forward_up); };
            while (total(r) < total(r - 1) || (at(r).count(forward_up) <= at(r - 1).count(forward_up) &&
                                               at(r - 1).count(forward_up) < m_)) {
                for (int after = p_ - 1; after >= r && fits_; --after)
                    if (at(after).count(pass) < m_) put(after, pass);
                if (!fits_) return;
                pass = pass == forward_down ? forward_up : forward_down;
            }
        }
    }

    void add_gradients() {
        for (int r = 0; r < p_; ++r) make_room(r, cost_.memory_backward_input);
        std::vector<int> up, down;
        for (int r = 0; r < p_ && fits_; ++r) {
            const bool may_go_up = at(r).count(gradient_up) < at(r).count(gradient_down);
            const bool goes_up = may_go_up && (r == p_ - 1 || arrival(r, gradient_up) < never ||
                                               at(r).count(gradient_down) >= m_);
            (goes_up ? up : down).push_back(r);
        }
        std::reverse(up.begin(), up.end());
        for (const int r : up) add_gradient(r, gradient_up);
        for (const int r : down) add_gradient(r, gradient_down);
    }
    void add_gradient(int r, Pass pass) {
        if (!fits_) return;
        fill_wait(r, pass, pass == gradient_up || fills_before_gradient_);
        put(r, pass);
    }

    void add_forwards() {
        for (int r = 0; r < p_ && fits_; ++r) {
            if (at(r).count(forward_up) >= m_) continue;
            const bool must_go_down = at(r).count(forward_up) >= at(r).count(forward_down);
            Pass pass = forward_down;
            if (!must_go_down) {
                if (r == p_ - 1 || arrival(r, forward_up) < never) pass = forward_up;
                else if (at(r).count(forward_down) >= m_ || arrival(r, forward_down) == never) continue;
            }
            make_room(r, cost_.memory_forward);
            if (!fits_) return;
            fill_wait(r, pass, fills_before_forward_);
            put(r, pass);
        }
    }

    int p_, m_;
    RelativeStageCost cost_;
    double transfer_, limit_, slack_ = 0, most_allowed_ = 0;
    bool fills_before_forward_, fills_before_gradient_, fits_ = true;
    std::vector<double> allowed_idle_;
    std::vector<Rank> ranks_;
};

struct VOrder {
    std::vector<std::vector<Action>> lists;
    double idle = std::numeric_limits<double>::infinity();
};

VOrder play_rounds(const PipelineShape& shape, double memory_limit, bool fills_before_forward,
                   bool fills_before_gradient) {
    VOrder best;
    std::vector<double> allowed(shape.ranks, -1);
    while (true) {
        VRoundBuilder builder(shape, memory_limit, fills_before_forward, fills_before_gradient, allowed);
        if (!builder.run() || builder.greatest_idle() >= best.idle) return best;
        best = {{}, builder.greatest_idle()};
        allowed = builder.idle();
        best.lists = builder.take();
    }
}

double memory_limit_of(const PipelineShape& shape) {
    return shape.memory_limit.value_or(2 * shape.ranks * shape.cost(0).memory_forward);
}

VOrder best_order(const PipelineShape& shape) {
    VOrder best;
    for (const bool before_gradient : {true, false})
        for (const bool before_forward : {true, false}) {
            VOrder order = play_rounds(shape, memory_limit_of(shape), before_forward, before_gradient);
            if (order.idle < best.idle) best = std::move(order);
        }
    return best;
}

std::optional<core::Unsupported> unsupported(const PipelineShape& shape) {
    for (const RelativeStageCost& cost : shape.stage_costs)
        if (cost != shape.stage_costs.front())
            return core::Unsupported{
                "the times and memory of its chunks differ; its rounds are for equal ones"};
    // The default limit always holds the warm-up.
    if ((shape.stage_costs.empty() && !shape.memory_limit) || !best_order(shape).lists.empty())
        return std::nullopt;
    return core::Unsupported{fmt::format(
        "a memory limit of {:.6g} does not hold the warm-up of {} ranks with {:.6g} a chunk (default: "
        "{:.6g})",
        memory_limit_of(shape), shape.ranks, shape.cost(0).memory_forward,
        2 * shape.ranks * shape.cost(0).memory_forward)};
}

Schedule generate(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("zb-v-auto", shape, StagePlacement::v_shape);
    schedule.actions = best_order(shape).lists;
    return schedule;
}

}  // namespace

PipelineSchedule zero_bubble_v_auto_schedule() {
    PipelineSchedule schedule;
    schedule.name = "zb-v-auto";
    schedule.orders_by_times = true;
    schedule.summary =
        "ZB-V for given times (of plans: equal ones) within a memory limit (default: p micro-batches); equal "
        "chunks";
    schedule.source = "arXiv 2405.15362; sail-sg/zero-bubble-pipeline-parallelism";
    schedule.bubble = "by times and limit; span without bubble when F = I = W and m >= 2p-1";
    schedule.in_flight = "within the memory limit, 2p chunks by default";
    schedule.constraint = "two equal chunks per rank; the limit holds the warm-up";
    schedule.splits_backward = true;
    schedule.least_chunks = schedule.greatest_chunks = 2;
    schedule.unsupported = unsupported;
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
