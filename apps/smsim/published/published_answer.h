// Our figure of a published case.
#pragma once

#include <optional>

#include "apps/smsim/published/published_case.h"
#include "core/diagnostics_fwd.h"

namespace apps {

struct PublishedAnswer {
    double value = 0;                 // of a job the median
    std::optional<double> low, high;  // of a job: 80 % of its runs lie between
};

// Nothing with diagnostics where the scenario cannot be predicted, or has no such figure.
std::optional<PublishedAnswer> answer_of(const PublishedCase& published, core::Diagnostics& diagnostics);

}  // namespace apps
