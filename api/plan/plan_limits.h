// Options of `smplan` that keep plans to values: --tp 4,8 --schedule 1f1b ...
#pragma once

#include <string>
#include <vector>

#include "api/options.h"
#include "core/data_type.h"
#include "core/value.h"
#include "planner/search.h"

namespace api {

struct LimitOptions {
    planner::PlanLimits plans;
    std::vector<core::DataType> precisions;  // of the arithmetic; none: the device's usual one
    bool searches_orders = false;            // --schedule auto
    std::string text;                        // "--tp 4,8 --precision bf16"; empty: nothing is kept to a value

    bool is_empty() const { return text.empty(); }
};

// Names of the options, each with a value.
const std::vector<std::string>& limit_option_names();
// Every mistake is a diagnostic of `options`.
LimitOptions read_limits(Options& options);

// Of --precision.
std::vector<core::DataType> read_precisions(Options& options);

// What the values cost, where the same question was searched without them too.
struct CostOfLimits {
    planner::RankedPlan best;  // without
    // By which the objective is worse with them; less than zero where they name a precision that is faster
    // than the device's usual one.
    double pct = 0;
    bool is_proven = false;  // that there is no better one without
};
core::Value to_value(const CostOfLimits& cost, const LimitOptions& limits);
std::string text_of(const CostOfLimits& cost, const LimitOptions& limits);

}  // namespace api
