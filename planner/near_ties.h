// Plans that are nearly as good as the best one and differ from it in what else matters to a person: how much
// memory they leave free, how many nodes they need, how much of them there is to set up.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "schedule/plan/plan.h"

namespace planner {

struct RankedPlan;

// What a plan uses beside data parallelism: tensor, pipeline, context and expert parallelism, several chunks
// a rank, sequences in parts, sharding, recomputation, offload. Each is one more thing to set up and to go
// wrong.
int moving_parts(const schedule::Plan& plan);
// Peak memory over what there is of it, of the device that has least left; zero where nothing is known.
double memory_share(const RankedPlan& plan);

struct NearTie {
    std::vector<std::string> merits;  // "least memory", "fewest nodes", "simplest"; at least one
    const RankedPlan* plan = nullptr;
};

// Of all plans that a search simulates those than which none is better by the objective and as good in one of
// the three.
class NearTies {
public:
    void add(const RankedPlan& plan, int nodes);
    // The best in each of the three of those that are worse than `best` by at most this share (0.02) of its
    // value, where it is better in that than `best`, and for memory by at least `memory_step` of the whole.
    std::vector<NearTie> of(const RankedPlan& best, int nodes, double tolerance) const;
    // The best by the objective that takes at most this share of memory; null where there is none.
    const RankedPlan* within_memory(double share) const;

    static constexpr double memory_step = 0.05;

private:
    struct Kept {
        std::shared_ptr<const RankedPlan> plan;
        double figure = 0;  // smaller is better
    };
    using Front = std::vector<Kept>;  // by value, and by the figure the other way
    static void keep(Front& front, const RankedPlan& plan, double figure);
    static const Kept* least(const Front& front, double value);

    Front memory_, nodes_, parts_;
};

}  // namespace planner
