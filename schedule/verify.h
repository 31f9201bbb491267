// Proof before play: every receive has its send, nothing can deadlock, buffers balance, every micro-batch is
// finished. Runs before either interpreter.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "schedule/program/program.h"
#include "schedule/schedule.h"

namespace schedule {

struct Violation {
    std::string rule;     // "completeness", "placement", "local order", "progress", "transfers", "memory",
                          // "buffers", ...
    std::string message;  // the fault, with rank, stage, micro-batch
    std::optional<int> rank{};      // pipeline rank (schedule) or class (program)
    std::optional<int> position{};  // in its list
};

// Limits that a Schedule must keep beside the rules over its own cells.
struct ScheduleLimits {
    // Change of a rank's activation memory by a forward, backward_input and backward_weight of a virtual
    // stage: at the action's start when positive, at its end when negative. One entry stands for all stages;
    // empty = memory is not checked.
    struct ActivationChange {
        core::Bytes forward, backward_input, backward_weight;
    };
    std::vector<ActivationChange> activation;
    std::optional<core::Bytes> memory_limit;
    int most_unsharded_stages = 0;  // per rank; 0 = no limit
    // Transfers in a run without anything between them are posted together (batch_isend_irecv); the next cell
    // waits for all of them, sends included. Without it sends are buffered and only receives wait.
    bool sends_wait_for_receives = false;
};

// Rules, each named in Violation::rule (numbers of the schedules.md of the reference lists, section 4.2):
// 1. completeness: every stage, micro-batch, segment and direction has one F, and one B or one I with one W
// (none
//    when forward-only).
// 2. placement: every cell is on the rank of its stage.
// 3. local order: F before R before B or I; I before W; parts of a sequence forward ascending, backward
// descending; an
//    overlapped forward directly before a backward.
// 4. progress: playing the lists ends without a deadlock (one cell of every waiting rank is reported).
// 5. transfers, when the lists have any: each crossing has one send after its producer and one receive before
// its
//    consumer.
// 6. transfer order: between two ranks the k-th send meets the k-th receive (transports such as NCCL have no
//    tags), and playing with transfers ends.
// 7. memory: the running sum of activation changes stays within the limit.
// 8. sharded parameters, when there are UNSHARD or RESHARD: computing stages are unsharded, within the limit
// of
//    stages.
// 9. gradient order: REDUCE_GRAD after the stage's last backward, OPT after that. "weight versions": an
//    asynchronous schedule keeps to its bound.
// Rules 4 to 9 are checked only when 1 to 3 hold: otherwise they would report the same faults again.
std::vector<Violation> verify(const Schedule& schedule);
std::vector<Violation> verify(const Schedule& schedule, const ScheduleLimits& limits);
std::vector<Violation> verify(const Program& program);

// The rank grid as text with the offending cell marked by brackets; at most `width` columns around it. A
// schedule that can be played shows each compute cell in the step in which it can first run (every cell one
// step, so waiting shows as dots); any other shows its lists side by side.
std::string draw(const Schedule& schedule, const Violation* mark = nullptr, int width = 40);
// The whole grid in blocks of columns one below the other, so that no line has more than `line_width`
// characters (or more than one cell). Columns are numbered from 0.
std::string draw_in_blocks(const Schedule& schedule, const Violation* mark, std::size_t line_width);

}  // namespace schedule
