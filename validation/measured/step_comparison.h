// A measured step beside its prediction, kind by kind: where the loss is.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "core/value.h"
#include "sim/report/explain.h"
#include "validation/measured/measured_step.h"

namespace validation {

struct PredictedStep {
    sim::Explanation explanation;
    int micro_batches = 1;  // of a rank
    // Of the whole model for one micro-batch, where one device has all of both.
    std::optional<double> parameters, forward_flops;
};

// Predicted seconds of the critical rank by kind: device time of its operators, updates, and transfers while
// data move; of a forward pass its operators alone. An operator of several kernels counts as what most of
// them are (a router as elementwise).
std::map<StepKind, core::Seconds> predicted_shares(const PredictedStep& predicted,
                                                   MeasuredPart part = MeasuredPart::step);

struct StepComparison {
    core::Seconds predicted, measured;            // steps, or forward passes
    core::Seconds predicted_idle, measured_idle;  // of the device: bubbles, waiting for the host; of steps
    struct Row {
        StepKind kind = StepKind::elementwise;
        core::Seconds predicted, measured;
        std::int64_t count = 0;  // of measured kernels a step
        std::string longest;     // the measured kernel with most of it
        // Of communication: as the Program counts them, and as the trace does where it tells.
        core::Bytes predicted_bytes;
        std::map<core::Bytes, MeasuredStep::Message> messages;
        core::Seconds difference() const { return measured - predicted; }
    };
    std::vector<Row> rows;  // the largest difference first; kinds that neither has are left out
    // Two figures of one model; far apart they are of two.
    struct Size {
        const char* name;
        double predicted = 0, measured = 0;
    };
    std::vector<Size> sizes;
    std::optional<core::Seconds> predicted_step;  // beside a measured whole step, where forward is compared
};

StepComparison compare_step(const PredictedStep& predicted, const MeasuredStep& measured);

std::string text_of(const StepComparison& comparison, const MeasuredStep& measured);
core::Value to_value(const StepComparison& comparison, const MeasuredStep& measured);

}  // namespace validation
