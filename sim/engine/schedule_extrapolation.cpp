#include "sim/engine/schedule_extrapolation.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace sim {

namespace {

using schedule::Action;
using schedule::Schedule;

struct Played {
    Schedule order;
    ScheduleTiming timing;
};

// Is the longer list the shorter one with a block in its middle, behind which micro-batches are `later`? Both
// halves of the shorter list have to be there: each holds everything in flight.
bool differ_by_a_block(const Schedule& shorter, const Schedule& longer, int later) {
    for (std::size_t rank = 0; rank < shorter.actions.size(); ++rank) {
        const std::vector<Action>&a = shorter.actions[rank], &b = longer.actions[rank];
        if (b.size() < a.size()) return false;
        const std::size_t half = (a.size() + 1) / 2;
        for (std::size_t i = 0; i < half; ++i) {
            if (a[i] != b[i]) return false;
            Action moved = a[a.size() - 1 - i];
            moved.micro_batch += later;
            if (moved != b[b.size() - 1 - i]) return false;
        }
    }
    return true;
}

// By how much all ends behind the block are later; nothing when not all by the same.
std::optional<double> common_delay(const Played& shorter, const Played& longer) {
    const double scale = longer.timing.makespan.value;
    std::optional<double> delay;
    for (std::size_t rank = 0; rank < shorter.timing.spans.size(); ++rank) {
        const auto &a = shorter.timing.spans[rank], &b = longer.timing.spans[rank];
        for (std::size_t i = 0; i < (a.size() + 1) / 2; ++i) {
            const double later = (b[b.size() - 1 - i].end - a[a.size() - 1 - i].end).value;
            if (!delay) delay = later;
            if (std::abs(later - *delay) > 1e-12 * scale) return std::nullopt;
        }
    }
    return delay;
}

}  // namespace

ExtrapolatedTiming time_extrapolated(const schedule::PipelineSchedule& entry,
                                     const schedule::PipelineShape& shape, const ScheduleCosts& costs) {
    auto play = [&](int micro_batches) -> std::optional<Played> {
        schedule::PipelineShape resized = shape;
        resized.micro_batches = micro_batches;
        if (unsupported(entry, resized)) return std::nullopt;
        Played played{compute_only(entry.generate(resized)), {}};
        played.timing = time_schedule(played.order, costs);
        return played;
    };
    const int group = shape.group_size();
    if (!entry.orders_by_times) {
        // Longer and longer runs until one is in steady state; past half of the step nothing is gained.
        for (int least = 4 * std::max(group, shape.ranks); least < shape.micro_batches / 2; least *= 2)
            for (const int block : {1, 2, 3, 4, group, 2 * group, 3 * group, 4 * group, 6 * group}) {
                const int first = least + (shape.micro_batches - least) % block;
                if (first + block > shape.micro_batches / 2) continue;
                const std::optional<Played> shorter = play(first), longer = play(first + block);
                if (!shorter || !longer ||
                    !differ_by_a_block(shorter->order, longer->order,
                                       longer->order.micro_batches - shorter->order.micro_batches))
                    continue;
                const std::optional<double> delay = common_delay(*shorter, *longer);
                if (!delay) continue;
                const double blocks = (shape.micro_batches - first - block) / block;
                return {longer->timing.makespan + core::Seconds(blocks * *delay),
                        longer->timing.greatest_span() + core::Seconds(blocks * *delay), first + block,
                        core::Seconds(*delay), block};
            }
    }
    const Played whole = *play(shape.micro_batches);
    return {whole.timing.makespan, whole.timing.greatest_span(), shape.micro_batches, core::Seconds(0), 0};
}

}  // namespace sim
