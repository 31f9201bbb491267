// Compute order only: for each pipeline rank, which micro-batch of which virtual stage runs forward or
// backward next. Generators emit nothing else.
//
// Lists read from files may carry communication and sharding cells too (`is_compute` tells them apart,
// `compute_only` drops them); verify.h checks them too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace schedule {

enum class ActionKind : std::uint8_t {
    forward,           // F
    backward,          // B: input and weight gradients together
    backward_input,    // I
    backward_weight,   // W
    recompute,         // R: the forward once more, right before its backward
    send_forward,      // SEND_F: activation to the next stage
    receive_forward,   // RECV_F: activation from the stage before
    send_backward,     // SEND_B: activation gradient to the stage before
    receive_backward,  // RECV_B: activation gradient from the next stage
    unshard,           // UNSHARD: all-gather of a stage's sharded parameters
    reshard,           // RESHARD: free them
    reduce_gradient,   // REDUCE_GRAD: reduction of a stage's gradients over data-parallel ranks
    optimizer_step,  // OPT: update of a stage's parameters; in asynchronous schedules one per weight version
};

constexpr bool is_compute(ActionKind kind) { return kind <= ActionKind::recompute; }
constexpr bool is_backward_part(ActionKind kind) {
    return kind == ActionKind::backward || kind == ActionKind::backward_input ||
           kind == ActionKind::backward_weight;
}
constexpr bool is_transfer(ActionKind kind) {
    return kind >= ActionKind::send_forward && kind <= ActionKind::receive_backward;
}
// "F", "SEND_F", ...: the words of the text form.
std::string_view code_of(ActionKind kind);

struct Action {
    ActionKind kind = ActionKind::forward;
    std::int32_t stage = 0;  // virtual stage
    std::int32_t micro_batch =
        0;  // -1 for actions of a whole stage (unshard, reshard, reduce_gradient, optimizer_step)
    std::int16_t segment = 0;    // of the sequence (Seq1F1B)
    std::int16_t direction = 0;  // pipeline replica (Chimera, DualPipe)
    bool overlaps_next = false;  // this forward and the backward after it are one slot (DualPipe's F&B)
    bool operator==(const Action&) const = default;
};

// Where virtual stages live. Loop: stage s on rank s mod p. V: stages r and 2p-1-r on rank r (two chunks).
// Bidirectional: direction 0 as loop, direction 1 mirrored (stage s on rank p-1-s). Custom:
// Schedule::stage_ranks.
enum class StagePlacement : std::uint8_t { loop, v_shape, bidirectional, custom };

struct Schedule {
    std::string name;
    int stages = 1;         // virtual stages (of each direction)
    int ranks = 1;          // pipeline ranks
    int micro_batches = 1;  // of each direction
    StagePlacement placement = StagePlacement::loop;
    bool is_forward_only = false;
    std::vector<std::vector<Action>> actions;  // [pipeline rank][order]
    int segments = 1;                          // of a micro-batch's sequence
    int directions = 1;                        // replicas of the pipeline
    std::vector<std::int32_t> stage_ranks;     // custom placement: [direction * stages + stage]
    // Asynchronous: no flush; a stage keeps this many weight versions at most (0 = synchronous, one version).
    int weight_versions = 0;

    bool operator==(const Schedule&) const = default;
    bool cuts_sequences() const { return segments > 1; }
    int passes_per_micro_batch() const { return segments; }
};

int rank_of_stage(const Schedule& schedule, int stage, int direction = 0);
int rank_of_stage(StagePlacement placement, int ranks, int stage);

// The same schedule without communication, sharding and optimizer cells.
Schedule compute_only(const Schedule& schedule);

}  // namespace schedule
