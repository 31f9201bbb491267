#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"

namespace {

struct Amounts {
    double saved, for_weight, kept;  // from forward to backward; of it until backward_weight; from
                                     // backward_input to backward_weight
};

std::vector<double> peaks(const schedule::Schedule& order, const std::vector<Amounts>& of_stage) {
    std::vector<double> result;
    for (const std::vector<schedule::Action>& actions : order.actions) {
        double held = 0, peak = 0;
        for (const schedule::Action& action : actions) {
            const Amounts& a = of_stage[static_cast<std::size_t>(action.stage)];
            switch (action.kind) {
                case schedule::ActionKind::forward: held += a.saved; break;
                case schedule::ActionKind::backward: held -= a.saved; break;
                case schedule::ActionKind::backward_input:
                    peak = std::max(peak, held + a.kept);
                    held += a.kept - (a.saved - a.for_weight);
                    break;
                case schedule::ActionKind::backward_weight: held -= a.for_weight + a.kept; break;
                case schedule::ActionKind::recompute:
                case schedule::ActionKind::send_forward:
                case schedule::ActionKind::receive_forward:
                case schedule::ActionKind::send_backward:
                case schedule::ActionKind::receive_backward:
                case schedule::ActionKind::unshard:
                case schedule::ActionKind::reshard:
                case schedule::ActionKind::reduce_gradient:
                case schedule::ActionKind::optimizer_step: break;
            }
            peak = std::max(peak, held);
        }
        result.push_back(peak);
    }
    return result;
}

}  // namespace

TEST_CASE(
    "under every registered schedule the order that memory is bounded by holds no more at any rank's peak "
    "than the order of the whole step") {
    std::mt19937 random(20261122);
    std::uniform_real_distribution<double> part(0, 1);
    int compared = 0;
    for (const schedule::PipelineSchedule& registered : schedule::pipeline_schedules()) {
        if (registered.is_forward_only) continue;
        for (const int pipeline : {2, 3, 4, 6, 8})
            for (const int chunks : {1, 2, 3}) {
                planner::OrderCollection orders;
                for (const int micro_batches :
                     {3 * pipeline + 1, 4 * pipeline, 5 * pipeline + 2, 6 * pipeline, 9 * pipeline}) {
                    schedule::Plan plan;
                    plan.schedule = registered.name;
                    plan.layout.pipeline = pipeline;
                    plan.virtual_stages = chunks;
                    plan.micro_batches = micro_batches;
                    if (registered.cuts_sequences())
                        plan.schedule_parameters = schedule::SegmentParameters{schedule::default_segments};
                    core::Diagnostics diagnostics;
                    const std::optional<schedule::Schedule> whole =
                        schedule::make_schedule(plan, diagnostics);
                    if (!whole) continue;
                    const schedule::Schedule* bounding = orders.order(plan);
                    REQUIRE(bounding);
                    for (int sample = 0; sample < 4; ++sample) {
                        std::vector<Amounts> of_stage(static_cast<std::size_t>(whole->stages));
                        for (Amounts& a : of_stage) {
                            a.saved = sample == 0 ? 1 : part(random);
                            a.for_weight = a.saved * (sample == 0 ? 0.5 : part(random));
                            a.kept = sample == 0 ? 0.5 : part(random);
                        }
                        const std::vector<double> least = peaks(*bounding, of_stage),
                                                  all = peaks(*whole, of_stage);
                        INFO(registered.name << " of " << pipeline << " ranks with " << chunks
                                             << " stages each, " << micro_batches << " micro-batches");
                        for (std::size_t r = 0; r < all.size(); ++r) CHECK(least[r] <= all[r] * (1 + 1e-12));
                        ++compared;
                    }
                }
            }
    }
    CHECK(compared > 1000);
}
