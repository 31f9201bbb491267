// Compute order only: for each pipeline rank, which micro-batch of which virtual stage runs forward or backward next. No communication, no times.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace schedule {

enum class ActionKind : std::uint8_t {
    forward,          // F
    backward,         // B: input and weight gradients together
    backward_input,   // I
    backward_weight,  // W
};

struct Action {
    ActionKind kind = ActionKind::forward;
    std::int32_t stage = 0;  // virtual stage
    std::int32_t micro_batch = 0;
    bool operator==(const Action&) const = default;
};

// Where virtual stages live. Loop: stage s on rank s mod p. V: stages r and 2p-1-r on rank r (two chunks).
enum class StagePlacement : std::uint8_t { loop, v_shape };

struct Schedule {
    std::string name;
    int stages = 1;         // virtual stages
    int ranks = 1;          // pipeline ranks
    int micro_batches = 1;
    StagePlacement placement = StagePlacement::loop;
    bool is_forward_only = false;
    std::vector<std::vector<Action>> actions;  // [pipeline rank][order]

    bool operator==(const Schedule&) const = default;
};

int rank_of_stage(const Schedule& schedule, int stage);
int rank_of_stage(StagePlacement placement, int ranks, int stage);

}  // namespace schedule
