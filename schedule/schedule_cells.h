// Positions of the cells of a schedule, and playing the lists against each other: shared by the rules of
// verify and the drawing.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/index/integers.h"
#include "schedule/schedule.h"

namespace schedule {

// One number per (direction, stage, micro-batch, segment).
class CellIndex {
public:
    explicit CellIndex(const Schedule& schedule)
        : stages_(schedule.stages),
          micro_batches_(schedule.micro_batches),
          parts_(schedule.passes_per_micro_batch()),
          directions_(schedule.directions) {}

    std::size_t size() const { return directions_ * stages_ * micro_batches_ * parts_; }
    bool contains(const Action& action)
        const;  // stage, micro-batch, segment and direction within the schedule's counts
    std::size_t of(int direction, int stage, int micro_batch, int segment) const {
        return ((direction * stages_ + stage) * micro_batches_ + micro_batch) * parts_ + segment;
    }
    std::size_t of(const Action& action) const {
        return of(action.direction, action.stage, action.micro_batch, action.segment);
    }
    std::size_t of(const Action& action, int stage) const {
        return of(action.direction, stage, action.micro_batch, action.segment);
    }

private:
    std::size_t stages_, micro_batches_, parts_, directions_;
};

// Position of every compute and transfer cell in its rank's list; -1 = none, the first when there are
// several.
class CellPositions {
public:
    explicit CellPositions(const Schedule& schedule);
    std::int32_t of(ActionKind kind, std::size_t cell) const {
        return positions_[core::position_of(kind)][cell];
    }
    // The cell that gives the gradient of the stage's input: B or I.
    std::int32_t gradient(std::size_t cell) const;
    // The last cell that needs the stage's activation: B or W.
    std::int32_t release(std::size_t cell) const;

private:
    static constexpr std::size_t kinds = core::position_of(ActionKind::receive_backward) + 1;
    std::array<std::vector<std::int32_t>, kinds> positions_;
};

// Plays the compute cells, one step a cell, each as soon as its rank is free and its inputs were made in an
// earlier step. Other cells are passed over.
struct Playback {
    std::vector<std::vector<std::int32_t>> step;  // [rank][position]; -1 = never reached or no compute cell;
                                                  // both cells of an overlapped pair share one
    std::vector<std::int32_t>
        waiting_at;  // per rank: position of the cell that waits for ever; -1 = played to the end
    bool is_complete = true;
};
Playback play(const Schedule& schedule);

// The cell whose output `action` needs from another stage: F of the stage before or B / I of the stage after.
// False when it needs none.
bool input_cell(const Schedule& schedule, const Action& action, Action& needed);

}  // namespace schedule
