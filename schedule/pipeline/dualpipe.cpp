// DualPipe and DualPipeV (DeepSeek-V3, arXiv 2412.19437; step() of deepseek-ai/DualPipe): two streams of
// micro-batches meet on every rank, and in the main phase a forward of one runs in the same slot as a
// backward of the other. DualPipe's streams enter at both ends of two copies of the model; DualPipeV cuts
// that in half and puts the two halves of one model on each rank as a V.
#include <fmt/core.h>

#include <array>
#include <deque>

#include "schedule/pipeline/generators.h"
#include "schedule/pipeline/order.h"

namespace schedule {

namespace {

// One rank's list. Phase 0 is the stream that enters on this side, phase 1 the other; `half_rank` counts from
// the entrance to the turn at `half_ranks` - 1.
class RankBuilder {
public:
    RankBuilder(std::array<Action, 2> phases, int half_ranks, int half_rank, int micro_batches)
        : phases_(phases), half_ranks_(half_ranks), half_rank_(half_rank), micro_batches_(micro_batches) {}

    std::vector<Action> build() {
        const int to_turn = half_ranks_ - half_rank_ - 1;
        for (int i = 0; i < 2 * to_turn; ++i) forward(0);
        for (int i = 0; i <= half_rank_; ++i) {
            forward(0);
            forward(1);
        }
        for (int i = 0; i < to_turn; ++i) {
            backward(1, true);
            weight();
            forward(1);
        }
        for (int i = 0; i < micro_batches_ - 2 * half_ranks_ + half_rank_ + 1; ++i) {
            // The rank at the turn does not overlap the first pair: its forward is wanted at once.
            forward(0, i > 0 || to_turn > 0);
            backward(1, false);
            forward(1, true);
            backward(0, false);
        }
        for (int i = 0; i < to_turn; ++i) {
            backward(1, false);
            forward(1, true);
            backward(0, false);
        }
        bool splits = false;
        for (int i = 0; i <= half_rank_; ++i) {
            const bool is_middle = i == (half_rank_ + 1) / 2;
            if (is_middle && half_rank_ % 2 == 1) splits = true;
            backward(1, splits);
            if (is_middle && half_rank_ % 2 == 0) splits = true;
            backward(0, splits);
        }
        for (int i = 0; i < to_turn; ++i) {
            weight();
            backward(0, true);
        }
        for (int i = 0; i <= half_rank_; ++i) weight();
        return std::move(list_);
    }

private:
    Action of(ActionKind kind, int phase, int micro_batch) const {
        Action action = phases_[phase];
        action.kind = kind;
        action.micro_batch = micro_batch;
        return action;
    }
    void forward(int phase, bool overlaps = false) {
        list_.push_back(of(ActionKind::forward, phase, forwards_[phase]++));
        list_.back().overlaps_next = overlaps;
    }
    void backward(int phase, bool splits) {
        const int micro_batch = backwards_[phase]++;
        list_.push_back(of(splits ? ActionKind::backward_input : ActionKind::backward, phase, micro_batch));
        if (splits) weights_.push_back(of(ActionKind::backward_weight, phase, micro_batch));
    }
    void weight() {
        list_.push_back(weights_.front());
        weights_.pop_front();
    }

    std::array<Action, 2> phases_;
    int half_ranks_, half_rank_, micro_batches_;
    std::array<int, 2> forwards_{}, backwards_{};
    std::deque<Action> weights_;
    std::vector<Action> list_;
};

std::optional<core::Unsupported> dualpipe_unsupported(const PipelineShape& shape) {
    if (shape.ranks % 2 != 0) return core::Unsupported{fmt::format("{} ranks are odd", shape.ranks)};
    if (shape.micro_batches % 2 != 0 || shape.micro_batches < 2 * shape.ranks)
        return core::Unsupported{
            fmt::format("{} micro-batches (of both directions) are odd or fewer than 2 x {} ranks",
                        shape.micro_batches, shape.ranks)};
    return std::nullopt;
}

Schedule generate_dualpipe(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("dualpipe", shape, StagePlacement::bidirectional);
    schedule.directions = 2;
    schedule.micro_batches = shape.micro_batches / 2;
    for (int rank = 0; rank < shape.ranks; ++rank) {
        Action down, up;
        down.stage = rank;
        up.stage = shape.ranks - 1 - rank;
        up.direction = 1;
        const bool is_second_half = rank >= shape.ranks / 2;
        const std::array<Action, 2> phases = is_second_half ? std::array{up, down} : std::array{down, up};
        const int half_rank = is_second_half ? shape.ranks - 1 - rank : rank;
        schedule.actions[rank] =
            RankBuilder(phases, shape.ranks / 2, half_rank, schedule.micro_batches).build();
    }
    return schedule;
}

std::optional<core::Unsupported> dualpipe_v_unsupported(const PipelineShape& shape) {
    if (shape.micro_batches < 2 * shape.ranks)
        return core::Unsupported{
            fmt::format("{} micro-batches are fewer than 2 x {} ranks", shape.micro_batches, shape.ranks)};
    return std::nullopt;
}

Schedule generate_dualpipe_v(const PipelineShape& shape) {
    Schedule schedule = empty_schedule("dualpipe-v", shape, StagePlacement::v_shape);
    for (int rank = 0; rank < shape.ranks; ++rank) {
        Action first, second;
        first.stage = rank;
        second.stage = 2 * shape.ranks - 1 - rank;
        schedule.actions[rank] = RankBuilder({first, second}, shape.ranks, rank, shape.micro_batches).build();
    }
    return schedule;
}

}  // namespace

PipelineSchedule dualpipe_schedule() {
    PipelineSchedule schedule;
    schedule.name = "dualpipe";
    schedule.summary =
        "two directions, two copies of the model; forward of one overlaps backward of the other";
    schedule.source = "arXiv 2412.19437; deepseek-ai/DualPipe";
    schedule.bubble = "(p/2-1)(F&B + B - 3W)";
    schedule.in_flight = "p+1";
    schedule.constraint = "p even; m (both directions) even and at least 2p; one chunk of each copy per rank";
    schedule.splits_backward = true;
    schedule.greatest_chunks = 1;
    schedule.is_bidirectional = true;
    schedule.overlaps_forward_backward = true;
    schedule.unsupported = dualpipe_unsupported;
    schedule.generate = generate_dualpipe;
    return schedule;
}

PipelineSchedule dualpipe_v_schedule() {
    PipelineSchedule schedule;
    schedule.name = "dualpipe-v";
    schedule.aliases = {"dualpipev"};
    schedule.summary =
        "DualPipe cut in half: one model as a V, forward of one half overlaps backward of the other";
    schedule.source = "deepseek-ai/DualPipe DualPipeV; PyTorch ScheduleDualPipeV";
    schedule.bubble = "2(p-1) of 6m + 2(p-1) chunk times with F = I = W";
    schedule.in_flight = "2p+1 chunks";
    schedule.constraint = "two chunks per rank; m >= 2p";
    schedule.splits_backward = true;
    schedule.least_chunks = schedule.greatest_chunks = 2;
    schedule.overlaps_forward_backward = true;
    schedule.unsupported = dualpipe_v_unsupported;
    schedule.generate = generate_dualpipe_v;
    return schedule;
}

}  // namespace schedule
