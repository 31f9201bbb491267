// The event engine: timers, and flows that share resources max-min fairly while they run. Times and
// completions come out in order; nothing here knows of Programs, links or devices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace sim {

// Units of one resource that a flow uses for each unit of its work.
struct ResourceUse {
    std::int32_t resource = 0;
    double share = 1.0;
};

// Max-min fairness with weights (Bertsekas and Gallager, Data Networks, section 6.5.2): every flow runs at
// weight times a common level, until a resource is full or the flow is at its own limit. Rates change only
// where flows start or end: the flows that are joined to the change by shared resources are solved anew, all
// others keep their rates and completions. Same calls, same answers: ties go by the order of the calls.
class FlowEngine {
public:
    using Token = std::uint32_t;  // the caller's name for a timer or flow

    // Capacities in units a second. `counts_use`: keep the totals that used() tells.
    explicit FlowEngine(std::vector<double> capacities, bool counts_use = false);

    double now() const { return now_; }
    void start_timer(double time, Token token);  // no earlier than now
    // Starts now; `work` units, at most `limit` a second (0: no limit). `uses` must live until the flow has
    // ended; a resource occurs once. A flow without uses needs a limit.
    void start_flow(double work, double limit, std::span<const ResourceUse> uses, Token token,
                    double weight = 1.0);

    // Advances to the next timer or completion. Nothing when none is left.
    std::optional<Token> next();

    std::uint64_t completed() const { return completed_; }
    // Units of the resource used by the flows that have ended or run so far (up to the last change of each
    // flow's rate).
    double used(std::int32_t resource) const { return used_[resource]; }
    // The rate of a running flow after the last call of next().
    std::optional<double> rate_of(Token token) const;

private:
    static constexpr std::uint32_t no_flow = 0xffffffff, no_place = 0xffffffff;

    struct Flow {
        double left = 0, rate = 0, limit = 0, weight = 1, since = 0;
        const ResourceUse* uses = nullptr;
        std::uint32_t use_count = 0;
        Token token = 0;
        std::uint32_t place = no_place;  // of its completion among the events
        std::uint32_t mark = 0;
        bool is_running = false, is_settled = false;
        std::vector<std::uint32_t> positions;  // of each use, its index in the resource's list
    };
    struct FlowUse {
        std::uint32_t flow, use;
    };
    struct Resource {
        double capacity = 0;
        double left = 0,
               demand = 0;  // while solving: capacity not yet assigned, and the rate of the unsettled flows
                            // at level 1
        std::uint32_t unsettled = 0;  // flows on it
        std::uint32_t mark = 0;
        std::vector<FlowUse> flows;
    };
    struct Event {
        double time;
        std::uint64_t sequence;
        std::uint32_t flow;  // or no_flow: a timer
        Token timer;
        bool operator<(const Event& other) const {
            return time != other.time ? time < other.time : sequence < other.sequence;
        }
    };

    void solve();
    void settle(Flow& flow, double rate);
    void give(std::uint32_t index);
    void put(Event event, std::size_t place);
    void rise(Event event, std::size_t place);
    void sink(Event event, std::size_t place);
    Event take_first();
    void advance(Flow& flow);
    void end(std::uint32_t index);

    double now_ = 0;
    bool counts_use_;
    std::uint64_t sequence_ = 0, completed_ = 0;
    std::uint32_t mark_ = 0;
    std::vector<Resource> resources_;
    std::vector<double> used_;
    std::vector<Flow> flows_;
    std::vector<std::uint32_t> free_flows_;
    std::vector<Event> events_;                                 // heap, the first on top
    std::vector<std::uint32_t> changed_resources_, new_flows_;  // since the last solution
    std::vector<std::uint32_t> part_resources_, part_flows_;    // of the part being solved
    std::vector<double> rates_;
};

}  // namespace sim
