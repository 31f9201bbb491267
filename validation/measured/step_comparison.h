// A measured step beside its prediction, kind by kind: where the loss is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/units.h"
#include "core/value.h"
#include "sim/report/explain.h"
#include "validation/measured/kineto_trace.h"

namespace validation {

// Predicted seconds of the critical rank by kind: device time of its operators, updates, and transfers while
// data move. An operator of several kernels counts as what most of them are (a router as elementwise).
std::map<StepKind, core::Seconds> predicted_shares(const sim::Explanation& explanation);

struct StepComparison {
    core::Seconds predicted, measured;            // steps
    core::Seconds predicted_idle, measured_idle;  // of the device: bubbles, waiting for the host
    struct Row {
        StepKind kind = StepKind::elementwise;
        core::Seconds predicted, measured;
        std::int64_t count = 0;  // of measured kernels a step
        std::string longest;     // the measured kernel with most of it
        core::Seconds difference() const { return measured - predicted; }
    };
    std::vector<Row> rows;  // the largest difference first; kinds that neither has are left out
};

StepComparison compare_step(const sim::Explanation& explanation, const MeasuredStep& measured);

std::string text_of(const StepComparison& comparison, const MeasuredStep& measured);
core::Value to_value(const StepComparison& comparison, const MeasuredStep& measured);

}  // namespace validation
