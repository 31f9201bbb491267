// SageMaker SMP v1 `pipeline: interleaved`: not a list but a policy. Every rank has an execution server; a
// micro-batch whose forward is done is sent back at once, backward work goes before forward work, and rank 0
// admits a new micro-batch only while fewer than `active_micro_batches` are in execution (SageMaker developer
// guide, model-parallel-core-features; smdistributed.modelparallel parameters). This file plays the policy on
// a virtual clock and records the order in which each rank worked, so the rest of the program sees a schedule
// like any other.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>
#include <tuple>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

using Tick = std::int64_t;

// Integer time: durations that are equal in truth must tie exactly, or the order would hang on the last bit
// of a sum.
class TickScale {
public:
    explicit TickScale(double greatest) : factor_(greatest > 0 ? std::ldexp(1.0, 30) / greatest : 0) {}
    Tick of(double time) const { return std::llround(time * factor_); }

private:
    double factor_;
};

struct Arrival {
    Tick time = 0;
    std::int64_t sequence = 0;  // ties end in the order of their making
    int rank = 0;
    Action action;  // becomes ready on `rank`; or, as `is_end`, has just ended there
    bool is_end = false;
    bool operator>(const Arrival& other) const {
        return std::tie(time, sequence) > std::tie(other.time, other.sequence);
    }
};

class ExecutionServers {
public:
    explicit ExecutionServers(const PipelineShape& shape)
        : shape_(shape),
          schedule_(empty_schedule("interleaved", shape)),
          scale_(greatest_time(shape)),
          servers_(shape.ranks),
          parameters_(parameters_or_default<AdmissionParameters>(shape.parameters)),
          active_limit_(parameters_.active_micro_batches > 0 ? parameters_.active_micro_batches
                                                             : shape.ranks + 2) {}

    Schedule run() {
        admit(0);
        while (!events_.empty()) {
            const Tick now = events_.top().time;
            // All that happens at this moment happens before anyone chooses: a backward that arrives now goes
            // before a forward that waits.
            while (!events_.empty() && events_.top().time == now) {
                const Arrival event = events_.top();
                events_.pop();
                if (event.is_end) finish(event, now);
                else enqueue(event.rank, event.action);
            }
            for (int rank = 0; rank < shape_.ranks; ++rank) start(rank, now);
        }
        return std::move(schedule_);
    }

private:
    struct Server {
        std::deque<Action> forwards, backwards;
        bool is_busy = false;
        int forward_micro_batch = -1;  // strict: the micro-batch whose forward passes this device now
        int forwards_left = 0;         // visits it has still to make here
    };

    static double greatest_time(const PipelineShape& shape) {
        double greatest = shape.transfer;
        for (int stage = 0; stage < shape.stages(); ++stage) {
            const RelativeStageCost cost = shape.cost(stage);
            greatest = std::max({greatest, cost.forward, cost.backward_input + cost.backward_weight});
        }
        return greatest;
    }

    Server& server(int rank) { return servers_[rank]; }

    void admit(Tick now) {
        while (admitted_ < shape_.micro_batches && admitted_ - finished_ < active_limit_)
            post(now, 0, forward_of(0, admitted_++), false);
    }

    void post(Tick time, int rank, Action action, bool is_end) {
        events_.push({time, sequence_++, rank, action, is_end});
    }

    void enqueue(int rank, const Action& action) {
        std::deque<Action>& queue =
            action.kind == ActionKind::forward ? server(rank).forwards : server(rank).backwards;
        queue.push_back(action);
    }

    void finish(const Arrival& event, Tick now) {
        server(event.rank).is_busy = false;
        const Action& done = event.action;
        const bool is_forward = done.kind == ActionKind::forward;
        const int next = is_forward ? done.stage + 1 : done.stage - 1;
        if (is_forward && next == shape_.stages())
            enqueue(event.rank, backward_of(done.stage, done.micro_batch));
        else if (next < 0) {
            ++finished_;
            admit(now);
        } else {
            const int target = rank_of_stage(schedule_, next);
            const Tick delay = target == event.rank ? 0 : scale_.of(shape_.transfer);
            post(now + delay, target,
                 is_forward ? forward_of(next, done.micro_batch) : backward_of(next, done.micro_batch),
                 false);
        }
    }

    // Strict ("optimize": "memory"): a micro-batch starts its forward on a device only when the one before it
    // has made all its forward visits there; less strict ("speed") lets it start earlier. With one chunk per
    // device both are the same.
    bool may_start(const Server& device, const Action& action) const {
        return !parameters_.is_strict || device.forwards_left == 0 ||
               action.micro_batch == device.forward_micro_batch;
    }

    void start(int rank, Tick now) {
        Server& device = server(rank);
        if (device.is_busy) return;
        Action action;
        if (!device.backwards.empty()) {
            action = device.backwards.front();
            device.backwards.pop_front();
        } else {
            const auto chosen = std::find_if(device.forwards.begin(), device.forwards.end(),
                                             [&](const Action& a) { return may_start(device, a); });
            if (chosen == device.forwards.end()) return;
            action = *chosen;
            device.forwards.erase(chosen);
            if (device.forwards_left == 0) {
                device.forward_micro_batch = action.micro_batch;
                device.forwards_left = shape_.chunks;
            }
            if (action.micro_batch == device.forward_micro_batch) --device.forwards_left;
        }
        device.is_busy = true;
        schedule_.actions[rank].push_back(action);
        const RelativeStageCost cost = shape_.cost(action.stage);
        const double duration =
            action.kind == ActionKind::forward ? cost.forward : cost.backward_input + cost.backward_weight;
        post(now + scale_.of(duration), rank, action, true);
    }

    const PipelineShape& shape_;
    Schedule schedule_;
    TickScale scale_;
    std::vector<Server> servers_;
    std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> events_;
    std::int64_t sequence_ = 0;
    AdmissionParameters parameters_;
    int active_limit_;
    int admitted_ = 0, finished_ = 0;
};

Schedule generate(const PipelineShape& shape) { return ExecutionServers(shape).run(); }

}  // namespace

PipelineSchedule smp_interleaved_schedule() {
    PipelineSchedule schedule;
    schedule.name = "interleaved";
    schedule.parameters = AdmissionParameters{};
    schedule.orders_by_times = true;
    schedule.aliases = {"smp-interleaved"};
    schedule.summary =
        "SageMaker SMP interleaved: run-time policy, backward first, at most active_micro_batches in "
        "execution";
    schedule.source = "SageMaker developer guide, model-parallel-core-features (not Megatron's interleaving)";
    schedule.bubble =
        "(p-1)/(m+p-1) with equal stages, free transfers and at least p active; more with fewer";
    schedule.in_flight = "at most min(m, active_micro_batches)";
    schedule.constraint = "none";
    schedule.generate = generate;
    return schedule;
}

}  // namespace schedule
