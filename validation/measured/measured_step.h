// What a measurement of training says about time, whichever tool took it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "core/units.h"
#include "validation/measured/step_kind.h"

namespace validation {

// Whole steps, or the forward pass of one micro-batch.
enum class MeasuredPart { step, forward };
// Whose times were taken: kernels of a GPU, operators of a processor, modules (forward, synchronized).
enum class MeasuredWork { kernels, operators, modules };

struct MeasuredStep {
    MeasuredPart part = MeasuredPart::step;
    MeasuredWork work = MeasuredWork::operators;
    int steps = 0;       // that were measured; all times are means over them
    core::Seconds step;  // of `part`, from begin to end
    core::Seconds busy;  // of it, with something at work
    // No clock times were written: `step` and `busy` are of the durations in the order of their dependencies.
    bool is_replayed = false;
    struct Message {
        std::int64_t count = 0;
        core::Seconds time;
    };
    struct Share {
        core::Seconds time;  // what overlaps is counted each
        std::int64_t count = 0;
        std::string longest;  // name of the kernel, operator or class of modules with most of it
        std::map<core::Bytes, Message> messages;  // of communication, by size, where sizes were written
    };
    std::map<StepKind, Share> shares;
    // Of the whole model on one device, where the measurement tells.
    std::optional<double> parameters, forward_flops;
    std::optional<core::Seconds> whole_step;  // where `part` is none
};

}  // namespace validation
